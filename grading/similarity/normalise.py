"""Code as a row of words that stays the same when variables are renamed, comments written or lines wrapped anew."""

from __future__ import annotations

import ast
import builtins
import keyword
import re

__all__ = ["MOST", "rough_words", "words"]

MOST = 3000  # words of an answer that are compared; the longest answer of the bank has a tenth of it
_WORD = re.compile(r"\w+|[^\w\s]")
_COMMENT = re.compile(r"#[^\n]*")
_MAGIC = re.compile(r"^\s*[%!?].*$", re.M)
_MODULES = {"numpy": "np", "torch.nn.functional": "F", "matplotlib.pyplot": "plt"}
_KEPT = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "torch", "nn", "F", "np", "torchvision", "math"}
_MIRROR = {ast.Gt: ast.Lt, ast.GtE: ast.LtE}


def words(source: str) -> tuple[str, ...]:
    """The words of an answer, at most ``MOST``; where it has a syntax error, those of :func:`rough_words`.

    Arguments are known by their place (``a0``), everything else that the answer binds is ``v``, names of libraries,
    built-in functions and attributes stay. Docstrings, comments, annotations, imports, ``pass``, the order of keywords
    and of dictionaries, and the side on which a constant stands are gone.
    """
    try:
        tree = ast.parse(_MAGIC.sub("pass", source))
        text = ast.unparse(_Normal(tree).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return rough_words(source)
    return tuple(_WORD.findall(text)[:MOST])


def rough_words(source: str) -> tuple[str, ...]:
    """The words of text that may be no Python: names behind a dot, of libraries and of built-ins stay, others are ``v``."""
    found: list[str] = []
    for word in _WORD.findall(_COMMENT.sub("", source))[:MOST]:
        own = word.isidentifier() and word not in _KEPT and found[-1:] != ["."]
        found.append("v" if own else word)
    return tuple(found)


class _Normal(ast.NodeTransformer):
    """Rewrites a tree in place."""

    def __init__(self, tree: ast.AST) -> None:
        self.names: dict[str, str] = {}
        places: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in node.names:
                    bound = name.asname or name.name.partition(".")[0]
                    whole = name.name if isinstance(node, ast.ImportFrom) or name.asname else bound
                    self.names[bound] = _MODULES.get(whole, whole.rpartition(".")[2])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.names.setdefault(node.id, "v")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
                self.names.setdefault(node.name or "", "v")
            elif isinstance(node, ast.arguments):
                for place, arg in enumerate([*node.posonlyargs, *node.args, *node.kwonlyargs]):
                    places.setdefault(arg.arg, f"a{place}")
                for arg in (node.vararg, node.kwarg):
                    if arg is not None:
                        places.setdefault(arg.arg, "v")
        self.names.update(places)

    # ------------------------------------------------------------------------------------------ names
    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg, node.annotation = self.names.get(node.arg, node.arg), None
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = None
        return self.generic_visit(node)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        node.name = "v"
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    # ------------------------------------------------------------------------------------------ what says nothing
    def visit_Import(self, node: ast.AST) -> None:
        return None

    visit_ImportFrom = visit_Pass = visit_Global = visit_Nonlocal = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    # ------------------------------------------------------------------------------------------ order
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        mirror = _MIRROR.get(type(node.ops[0])) if len(node.ops) == 1 else None
        if mirror:
            node.left, node.comparators, node.ops = node.comparators[0], [node.left], [mirror()]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.Mult) and isinstance(node.left, ast.Constant):
            node.left, node.right = node.right, node.left
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords.sort(key=lambda k: k.arg or "~")
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.generic_visit(node)
        if None not in node.keys:  # of {**a, "b": 1} the order counts
            pairs = sorted(zip(node.keys, node.values, strict=True), key=lambda pair: ast.unparse(pair[0]))
            node.keys, node.values = [k for k, _ in pairs], [v for _, v in pairs]
        return node
