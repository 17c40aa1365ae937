"""Code in a submission that a person should look at: it reaches for the grader, the machine or other people's work.

This reads text. It proves nothing and costs nobody a point: marks are safe without it. It only tells an instructor whose
notebook to open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from grading.autograde.rescue import printable

__all__ = ["suspicious"]

# Words that an answer to this course's exercises has no use for, and what they are about.
_WORDS = {
    r"ast_transformers|input_transformers|set_custom_exc|displayhook|do_execute|run_cell\b|run_cell_async|execute_request"
    r"|user_ns|showtraceback|display_formatter|\bevents\.register|get_ipython\(\)\.kernel|kernel_app|comm_manager": "changes how IPython runs cells",
    r"\bupdate_display\b|\bdisplay_id\b": "changes what was shown before",
    r"publish_display_data|facts\+json|\bnonce\b|observe\.agent|observe\.run|observe\.compare|find_exercise|_find_and_load|__subclasses__"
    r"|course_utils(?:\.|\s+import\s.*)\b(?:meter|observe|exercises|checking|scores)\b|MemoryMeter|_python_dispatch"
    r"|_disable_current_modes|DisableTorchDispatch|_torch_dispatch_stack|_dispatch_stack_at|DispatchMode\b|reset_peak|ExcludeDispatchKey|_dispatch_mode|dispatch_library|library\.Library"
    r"|__array_interface__": "reaches for the observer",
    r"gradebook|secret_salt|manual_score|grading\.judge|\bsolutions/|grading/|\.\./\.\.|/submitted\b|/autograded\b|sqlite3": "looks for the grader's files",
    r"\bsubprocess\b|os\.(?:system|popen|exec\w*|spawn\w*|posix_spawn)|\bpty\b|^\s*!|get_ipython\(\)\.system|%%(?:bash|sh|script)": "starts programs",
    r"os\.(?:kill|killpg|fork|abort|_exit|setsid)|signal\.(?:signal|SIGKILL)|PR_SET|faulthandler|\bsetrlimit": "handles processes",
    r"\bsocket\b|urllib|\brequests\.|http\.client|urlopen|ftplib|smtplib": "uses the network",
    r"\bctypes\b|\bcffi\b|/proc/|/etc/|/dev/(?!null)|\.ssh|id_rsa|AWS_|API_KEY|TOKEN\b": "reaches for the machine",
    r"\bThread\(|ThreadPool\w*|\b_thread\b|\bio_loop\b|call_soon_threadsafe|\bmmap\b": "works in a thread, or in memory of its own",
    r"os\.environ|os\.getenv|expanduser|Path\.home": "reads the environment",
    r"sys\.modules|builtins|__builtins__|_getframe|currentframe|inspect\.stack|settrace|setprofile|gc\.get_(?:objects|referrers)|meta_path|path_hooks": "looks behind Python's scenes",
    r"os\.symlink|os\.link\b|shutil\.rmtree|chmod": "changes files",
    r"(?i:<\s*script|javascript:|<\s*iframe|\bonerror\s*=|\\x1b\]|\\033\])": "puts active content into its output",
}
_PATTERNS = [(re.compile(words, re.M), what) for words, what in _WORDS.items()]
# Modules whose functions an answer calls and never replaces.
_MODULES = {
    *(
        "torch",
        "nn",
        "F",
        "torchvision",
        "numpy",
        "np",
        "math",
        "json",
        "time",
        "os",
        "sys",
        "io",
        "builtins",
        "random",
    ),
    *("course_utils", "check", "warnings", "logging", "pickle", "copy", "functools", "IPython", "tracemalloc"),
}
_SETTINGS = re.compile(r"backends\.|^plt\.rcParams|\.use_deterministic|\.environ\b")  # meant to be set


def suspicious(notebook: NotebookNode, released: set[str], handed_out: frozenset[str]) -> list[str]:
    """A line for every kind of thing found in what a student wrote.

    Parameters
    ----------
    notebook : NotebookNode
    released : set of str
        The grade ids of the section.
    handed_out : frozenset of str
        Lines that every student gets with the notebook; they are nobody's idea.
    """
    found: dict[str, list[str]] = {}
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        place = name if name in released else f"cell {number}"
        own = "\n".join(line for line in cell.source.splitlines() if line.strip() not in handed_out)
        for what in [*_words_in(own), *(_patches(cell.source) if own.strip() else ())]:
            found.setdefault(what, []).append(place)
    return [printable(f"{what}: {', '.join(dict.fromkeys(places))}") for what, places in found.items()]


def _words_in(source: str) -> Iterator[str]:
    """What code reaches for, by its words, such as ``"starts programs (subprocess)"``."""
    for pattern, what in _PATTERNS:
        words = dict.fromkeys(m.group(0).strip() for m in pattern.finditer(source))
        if words:
            yield f"{what} ({', '.join(list(words)[:3])})"


def _patches(source: str) -> Iterator[str]:
    """Assignments to attributes of modules: ``torch.equal = ...``, ``setattr(np, ...)``, also inside functions."""
    try:
        tree = ast.parse(re.sub(r"^\s*[%!].*$", "pass", source, flags=re.M))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [t for target in node.targets for t in _flat(target)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "…")] if node.args else []
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == "check":
            names["check"] = None
        for target in targets:
            text = ast.unparse(target)
            if isinstance(target, ast.Name) and target.id == "check":
                names["check"] = None
            if isinstance(target, ast.Attribute) and _root(target) in _MODULES and not _SETTINGS.search(text):
                names[text] = None
    if names:
        yield f"replaces parts of libraries ({', '.join(list(names)[:3])})"


def _flat(target: ast.expr) -> list[ast.expr]:
    return [t for e in target.elts for t in _flat(e)] if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
