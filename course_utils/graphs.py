"""Autograd and FX graphs as pictures, without any system program.

JupyterLab draws Mermaid (output type ``text/vnd.mermaid``) by itself. Everywhere else, in a terminal, while nbgrader
validates, in feedback, the same graph is a readable text: one line per node.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

__all__ = ["Drawing", "Node", "draw_fx", "draw_graph", "walk"]

LIMIT = 60  # nodes drawn by default: more do not fit on a screen
MOST = 250  # nodes drawn at all: Mermaid refuses pictures of more than 500 edges or 50,000 characters
MAX_EDGES = 480
MAX_TEXT = 45_000
# Mermaid's own colours follow the theme in which a cell was run, and stay when the reader changes it: arrows in light
# grey on white. These can be read on both grounds.
COLOURS = (
    '%%{init: {"theme": "base", "themeVariables": {"lineColor": "#767676", "primaryColor": "#ffffff", '
    '"primaryBorderColor": "#767676", "primaryTextColor": "#1a1a1a", "textColor": "#1a1a1a", '
    '"edgeLabelBackground": "#ffffff"}}}%%'
)


@dataclass
class Node:
    """One node of a drawing.

    Attributes
    ----------
    number : int
        Counted in the order in which the graph is walked: the same graph gets the same numbers.
    title : str
        The operator's or the parameter's name.
    notes : list of str
        Shape, saved tensors and their bytes, one each.
    leaf : bool
        An end of the graph: a parameter, an input, an output.
    next : list of int
        Numbers of the nodes that the arrows lead to.
    """

    number: int
    title: str
    notes: list[str] = field(default_factory=list)
    leaf: bool = False
    next: list[int] = field(default_factory=list)


class Drawing:
    """A graph that shows itself: a picture in JupyterLab, text everywhere else (``print`` it, or ``str``).

    Attributes
    ----------
    nodes : list of Node
        The nodes that are drawn.
    total : int
        How many nodes the graph has.
    saved_bytes : int or None
        Bytes of the distinct storages that the whole graph keeps for the backward pass, parameters left out. None for
        FX graphs.
    mermaid, text : str
    """

    def __init__(self, head: str, nodes: list[Node], total: int, saved_bytes: int | None = None) -> None:
        self.head, self.total, self.saved_bytes = head, total, saved_bytes
        self.nodes = nodes
        while True:  # labels may be long: fewer nodes, until Mermaid takes the text
            self.mermaid, self.text = self._mermaid(), self._text()
            if (len(self.mermaid) <= MAX_TEXT and self._edges() <= MAX_EDGES) or len(self.nodes) == 1:
                break
            self.nodes = self.nodes[: max(1, len(self.nodes) * 3 // 4)]

    def _edges(self) -> int:
        return self.mermaid.count("-->")

    def _left_out(self) -> str:
        left = self.total - len(self.nodes)
        return f"{left} more nodes are not drawn" if left else ""

    def _mermaid(self) -> str:
        shown = {node.number for node in self.nodes}
        rows = [COLOURS, "flowchart TD", f"  accTitle: {_plain(self.head)}"]
        hidden: list[int] = []
        for node in self.nodes:
            label = "<br/>".join(_escape(line) for line in (f"{node.number}: {node.title}", *node.notes))
            rows.append(f'  n{node.number}(["{label}"]):::leaf' if node.leaf else f'  n{node.number}["{label}"]')
        for node in self.nodes:
            for target, times in _counted(node.next):
                if target in shown:
                    arrow = f"-->|{times} times|" if times > 1 else "-->"
                    rows.append(f"  n{node.number} {arrow} n{target}")
            if any(target not in shown for target in node.next):
                hidden.append(node.number)
        if self._left_out():
            rows.append(f'  more["{self._left_out()}"]:::more')
            rows += [f"  n{number} -.-> more" for number in hidden[:20]]
        rows.append("  classDef leaf fill:#dff0d8,stroke:#3c763d,color:#1a1a1a")
        rows.append("  classDef more fill:#ffffff,stroke:#666666,color:#1a1a1a,stroke-dasharray: 4 3")
        return "\n".join(rows)

    def _text(self) -> str:
        rows = [self.head]
        width = max((len(node.title) for node in self.nodes), default=0)
        for node in self.nodes:
            targets = ", ".join(str(t) if n == 1 else f"{t} ({n} times)" for t, n in _counted(node.next))
            parts = [*node.notes, *([f"-> {targets}"] if targets else [])]
            rows.append(f"{node.number:>4}  {node.title.ljust(width)}  {'; '.join(parts)}".rstrip())
        if self._left_out():
            rows.append(f"      ... {self._left_out()}; draw more with limit={min(self.total, MOST)}")
        return "\n".join(rows)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/vnd.mermaid": self.mermaid, "text/plain": self.text}


def _counted(numbers: Iterable[int]) -> list[tuple[int, int]]:
    counts: dict[int, int] = {}
    for number in numbers:
        counts[number] = counts.get(number, 0) + 1
    return list(counts.items())


def _escape(text: str) -> str:
    """Characters that Mermaid or HTML would take for their own, as Mermaid's entities."""
    return re.sub(r'[#"<>&`\\;{}\[\]|]', lambda m: f"#{ord(m.group())};", text)


def _plain(text: str) -> str:
    return re.sub(r"[^\w ,.:()]", " ", text)


def _bytes(n: int) -> str:
    return f"{n:,} B"


def _check_limit(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST:
        raise ValueError(f"limit is the number of nodes to draw, from 1 to {MOST}, and not {limit!r}")
    return limit


# ------------------------------------------------------------------------------------------------ autograd
def draw_graph(loss: torch.Tensor, model: nn.Module | None = None, limit: int = LIMIT) -> Drawing:
    """Draw the graph that a backward pass from ``loss`` would walk, in its direction.

    Each operator shows the shape of its result and the tensors that it keeps for the backward pass, with their bytes; each end shows
    the leaf, by its parameter's name.

    Parameters
    ----------
    loss : torch.Tensor
        Any tensor; the graph may be freed already, and says so.
    model : nn.Module, optional
        Gives the parameters their names.
    limit : int
        Nodes to draw, nearest to the loss first; the drawing says how many it left out.

    Raises
    ------
    TypeError
        If ``loss`` is no tensor or ``model`` no module.
    ValueError
        If ``limit`` is not from 1 to 250.

    Notes
    -----
    What a node keeps is read off its ``_saved_...`` attributes and a Function's ``saved_tensors``. What else a custom
    Function holds on to (attributes of its ``ctx``) does not show.
    """
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"draw_graph draws the graph of a tensor, and got {type(loss).__name__}")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model gives the parameters their names: an nn.Module, not {type(model).__name__}")
    _check_limit(limit)
    # A shared parameter is one leaf with several names.
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False) if model is not None else ():
        names.setdefault(id(parameter), []).append(name)
    if loss.grad_fn is None:
        state = "a leaf that requires grad" if loss.requires_grad else "it does not require grad"
        title = names.get(id(loss), ["tensor"])
        note = f"{_shape(loss.shape)}, no grad_fn: {state}"
        return Drawing("a graph of 1 node, without any operator", [Node(0, " = ".join(title), [note], leaf=True)], 1, 0)

    order = walk(loss.grad_fn)
    storages: dict[int, torch.UntypedStorage] = {}
    # Told by their memory: a saved tensor may be a view of a parameter, or, after saved-tensors hooks, an alias.
    weights = {p.untyped_storage().data_ptr() for p in _parameters(order, model)}
    numbers = {function: number for number, function in enumerate(order)}
    nodes = []
    for number, (function, following) in enumerate(order.items()):
        if hasattr(function, "variable"):
            node = _leaf(number, function, names)
        else:
            node = _operator(number, function, storages, weights)
        node.next = [numbers[child] for child in following]
        nodes.append(node)
    saved = sum(storage.nbytes() for storage in storages.values())
    head = f"a graph of {len(nodes)} nodes that keeps {_bytes(saved)} for the backward pass, parameters not counted"
    return Drawing(head, nodes[:limit], len(nodes), saved)


def walk(root: Any) -> dict[Any, list[Any]]:
    """All nodes of an autograd graph, breadth first, each with the nodes that follow it, once for every time."""
    order: dict[Any, list[Any]] = {root: []}
    queue = deque([root])
    while queue:
        function = queue.popleft()
        for child, _ in function.next_functions:
            if child is None:
                continue
            order[function].append(child)
            if child not in order:
                order[child] = []
                queue.append(child)
    return order


def _leaf(number: int, function: Any, names: dict[int, list[str]]) -> Node:
    variable = function.variable
    title = " = ".join(names.get(id(variable), ["leaf"]))
    return Node(number, title, [f"{_shape(variable.shape)}, {_bytes(variable.nbytes)}"], leaf=True)


def _parameters(functions: Iterable[Any], model: nn.Module | None) -> Iterator[torch.Tensor]:
    if model is not None:
        yield from model.parameters()
    for function in functions:
        if isinstance(getattr(function, "variable", None), nn.Parameter):
            yield function.variable


def _operator(number: int, function: Any, storages: dict[int, torch.UntypedStorage], weights: set[int]) -> Node:
    notes = [f"result {_shape(meta.shape)}" for meta in getattr(function, "_input_metadata", [])[:1]]
    for name, tensor in _saved(function):
        if isinstance(tensor, str):
            notes.append(f"saves {name}: {tensor}")
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() in weights:
            notes.append(f"saves {name} {_shape(tensor.shape)}, a parameter")
            continue
        again = storage.data_ptr() in storages
        storages[storage.data_ptr()] = storage
        notes.append(f"saves {name} {_shape(tensor.shape)}, {'kept above' if again else _bytes(storage.nbytes())}")
    return Node(number, function.name().rpartition("::")[2], notes)


def _saved(function: Any) -> Iterator[tuple[str, torch.Tensor | str]]:
    """Name and tensor of everything that a node has saved; a word instead where it can no longer be read."""
    attributes = [name for name in dir(function) if name.startswith("_saved_")]
    if not attributes and hasattr(function, "saved_tensors"):  # a Function written in Python
        attributes = ["saved_tensors"]
    for attribute in attributes:
        name = attribute.removeprefix("_saved_")
        try:
            value = getattr(function, attribute)
        except RuntimeError as error:
            yield name, "changed in place since, backward will raise" if "inplace" in str(error) else "freed"
            continue
        many = isinstance(value, (list, tuple))
        for index, item in enumerate(value if many else [value]):
            if isinstance(item, torch.Tensor):
                yield (f"{name}[{index}]" if many else name), item


def _shape(shape: Iterable[int]) -> str:
    return str(tuple(int(n) for n in shape)) if not isinstance(shape, str) else shape


# ------------------------------------------------------------------------------------------------ torch.fx
def draw_fx(module: nn.Module, *inputs: Any, limit: int = LIMIT) -> Drawing:
    """Draw the FX graph of a module: what its ``forward`` does, step by step.

    Parameters
    ----------
    module : nn.Module
        A ``torch.fx.GraphModule``, or any module that ``torch.fx.symbolic_trace`` can trace.
    *inputs
        Example inputs. With them, a copy of the module is run once, and each step shows the shape of its result.
    limit : int
        Nodes to draw, the first ones first; the drawing says how many it left out.

    Raises
    ------
    TypeError
        If ``module`` is no module.
    ValueError
        If it cannot be traced (a branch or a loop that depends on values), or ``limit`` is not from 1 to 250.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"draw_fx draws an nn.Module, and got {type(module).__name__}")
    _check_limit(limit)
    try:
        # A copy where it is going to run: BatchNorm's statistics are not the drawing's to change.
        source = copy.deepcopy(module) if inputs else module
        traced = source if isinstance(source, fx.GraphModule) else fx.symbolic_trace(source)
    except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"torch.fx cannot trace {type(module).__name__}: {reason}. "
            "Tracing runs forward without values: branches and loops may ask shapes, not numbers."
        ) from error
    if inputs:
        from torch.fx.passes.shape_prop import ShapeProp

        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            ShapeProp(traced).propagate(*inputs)
    numbers = {node: number for number, node in enumerate(traced.graph.nodes)}
    nodes = [_fx_node(number, node, traced, numbers) for node, number in numbers.items()]
    head = f"the forward pass of {type(module).__name__} in {len(nodes)} nodes"
    return Drawing(head, nodes[:limit], len(nodes))


def _fx_node(number: int, node: fx.Node, traced: fx.GraphModule, numbers: dict[fx.Node, int]) -> Node:
    notes = [] if node.op in ("placeholder", "output") else [node.op]
    title = node.name if node.op in ("placeholder", "output") else _target(node)
    if node.op == "call_module":
        part = traced.get_submodule(str(node.target))
        own = sum(p.numel() for p in part.parameters())
        notes = [type(part).__name__ + (f", {own:,} parameters" if own else "")]
    meta = node.meta.get("tensor_meta")
    if hasattr(meta, "shape"):
        notes.append(f"result {_shape(meta.shape)}")
    unused = not node.users and node.op not in ("output", "placeholder")
    if unused:
        notes.append("its result is never used")
    leaf = node.op in ("placeholder", "output", "get_attr")
    return Node(number, title, notes, leaf, [numbers[user] for user in node.users])


def _target(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
