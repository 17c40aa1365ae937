"""Keeps the observation out of the reach of the answer that is observed. Armed in a student's kernel before its first cell.

Observer and answer share a process, so an answer could replace the observer, or send a report of its own. Therefore:

* The order to observe comes as an audit event (PEP 578). Nothing in Python takes an audit hook out again, and no name
  leads to it. Whoever replaces ``sys.audit``, the shell or its transformers keeps the order from arriving, and earns nothing.
* Each report is signed with a key that is born in the hook's closure, and is told to the judge before student code runs.
* What the observers rely on is compared with a snapshot before each observation and put back; what has changed *during*
  an observation is told to the judge. Where something of this package was replaced and is the same again, the versions
  tell that CPython counts for its caches; where an operator of PyTorch's has got another implementation, its dispatcher tells.
* The ways to the hook's frames and closure (frames of others, the garbage collector's lists, another function's code) are
  closed to code of the notebook, also where a library would go them on its behalf. They all raise audit events, and the
  hook refuses them.

What stays open is told in ``grading/README.md``.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import json
import os
import pkgutil
import site
import sys
import sysconfig
from _blake2 import blake2b
from collections.abc import Iterator
from ctypes import c_uint64
from importlib.util import find_spec
from operator import is_
from pathlib import Path
from threading import RLock, get_ident
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

__all__ = ["KEY_MIME", "ORDER", "arm", "mac", "prepare"]

ORDER = "pytorch_foundations.observe"  # the audit event that asks for an observation: exercise, seed, nonce, namespace
OBJECTS = "pytorch_foundations.objects"
GATE = "pytorch_foundations.gate"
KEY_MIME = "application/vnd.pytorch-foundations.key+json"
MAX_NOTES = 20

# What observers, recorder, meters and reports rely on. A name that ends in a dot stands for a package and all in it.
WATCHED = (
    "course_utils.",
    *("builtins", "sys", "gc", "os", "json.", "weakref", "tracemalloc", "random", "signal", "tempfile", "logging"),
    *(
        "warnings",
        "contextlib",
        "base64",
        "hashlib",
        "copy",
        "pickle",
        "multiprocessing.",
        "psutil.",
        "cv2",
        "threading",
    ),
    *("torch", "torch._C", "torch._tensor", "torch.functional", "torch.storage", "torch.random", "torch.serialization"),
    *("torch.autograd.", "torch.nn.", "torch.optim.", "torch.utils.data.", "torch.utils.checkpoint", "torch.amp."),
    *("torch.utils._python_dispatch", "torch.overrides", "torch.testing."),
    *("numpy", "numpy.linalg", "numpy.random", "numpy.testing"),
)
OURS = "course_utils"
# Modules of ours whose data decides, too. Elsewhere data may change: caches, counters, the simulated GPU's memory.
DECIDES = ("course_utils.observe.", "course_utils.meter", "course_utils.exercises.")
# What Python and IPython set anew for every cell.
PASSING = {"input", "display", "get_ipython", "stdin", "stdout", "stderr", "displayhook", "excepthook", "last_value"}
# What PyTorch sets anew itself: ``set_default_dtype`` changes the class of new storages.
SETTINGS = {("torch", "Storage")}
OF_CLASSES = {
    "__dict__",
    "__weakref__",
    "__doc__",
    "__abstractmethods__",
    "_abc_impl",
    "__annotations__",
    "__slotnames__",
}

FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
CODE = {"__code__", "__defaults__", "__kwdefaults__"}
# Library code that hands frames on: who called it has asked.
HAND_ON = ("/inspect.py", "/IPython/utils/frame.py", "/IPython/core/ultratb.py", "/bdb.py", "/_jit_internal.py")
HAND_ON_FOLDERS = ("/stack_data/", "/executing/", "/pure_eval/")
HAND_ON_FUNCTIONS = {"walk_tb", "walk_stack", "currentframe"}
REFUSED = {
    *("sys._getframe", "sys._current_frames", "sys._current_exceptions", "object.__getattr__", "object.__setattr__"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.settrace", "sys.setprofile", "sys.addaudithook"),
    *("sys.monitoring.register_callback", "compile", "code.__new__", "marshal.loads", "marshal.load"),
}
# How library code that causes an event itself calls it, where that is not the event's own name.
ALSO = {
    "settrace": {"_settraceallthreads", "settrace_all_threads"},
    "setprofile": {"_setprofileallthreads", "setprofile_all_threads"},
    "__new__": {"CodeType", "replace"},
}

# Profilers below Python that libraries switch on and off. Each check switches them off before it looks.
PROFILERS = {"enable", "disable", "_enable_profiler", "_disable_profiler"}


# Functions in C that lead to the meter, or past it. What a mode's own block does with them stays allowed.
MODES = {"_get_dispatch_stack_at", "_pop_torch_dispatch_stack"}
SWITCHES = {
    *("_DisableTorchDispatch", "_DisablePythonDispatcher", "_RestorePythonTLSSnapshot", "_ForceDispatchKeyGuard"),
    *("_ExcludeDispatchKeyGuard", "_SetExcludeDispatchKeyGuard", "_dispatch_tls_set_dispatch_key_excluded"),
}
KERNELS = {"impl", "fallback"}  # of torch.library: they give operators other implementations
PEAK = "reset_peak"  # of tracemalloc: it would make a meter forget
GATE_FILES = ("/torch/utils/_python_dispatch.py", "/contextlib.py", "/functools.py")  # they ask on behalf of others


def mac(body: str, key: bytes) -> str:
    """The signature of a report: 32 hexadecimal digits."""
    return blake2b(body.encode("utf-8", "surrogatepass"), key=key, digest_size=16).hexdigest()


@functools.cache
def prepare() -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Import what is to be sealed; every operator of PyTorch's that it may call, with its implementations; the gates.

    Takes a tenth of a second, and may be called ahead, in the process that kernels are forked from.
    """
    import torch

    for module in pkgutil.walk_packages(importlib.import_module(OURS).__path__, f"{OURS}."):
        if module.name.startswith((f"{OURS}.exercises.", f"{OURS}.observe.")):
            importlib.import_module(module.name)
    names = set(_OPERATORS)
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and module.__spec__ is not None and (code := module.__spec__.loader.get_code(name)):
            for part in _codes(code):
                names.update(part.co_names)
    every = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    chosen = [name for name in every if name[6:].partition(".")[0].strip("_") in names]
    return {name: torch._C._dispatch_dump(name) for name in chosen}, _gates()


def arm() -> None:
    """Seal this process, and publish the key under :data:`KEY_MIME`. Only code that runs later is kept out."""
    operators, gates = map(dict, prepare())
    # A copy of this module that no name leads to, with builtins of its own: patching this one changes nothing.
    private = {"__name__": __name__, "__file__": __file__, "__builtins__": dict(vars(builtins))}
    exec(__spec__.loader.get_code(__name__), private)
    private["_arm"](operators, gates)


def _arm(operators: dict[str, str], gates: dict[str, list[Any]]) -> None:
    from IPython.display import publish_display_data

    from course_utils.observe.agent import report
    from course_utils.observe.plain import MIME

    key = os.urandom(32)
    encode = json.JSONEncoder().encode
    notes: list[str] = []
    observing: set[int] = set()  # threads
    hidden: set[int] = set()
    lock = RLock()

    def looks():
        """Yields the frame that has caused the event: the caller's of the hook, which has called this."""
        while True:
            yield own.f_back.f_back

    looking = looks()
    own = looking.gi_frame  # sys._getframe would be an event again

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == ORDER:
            if observing:
                notes.append("an order of the answer's own")
            else:
                observe(*args)
        elif event == GATE:
            with lock:
                frame = next(looking)
            pass_gate(*args, frame.f_back)
        elif event == OBJECTS and not observing:
            args[0].extend(thing for thing in get_objects(args[1]) if not is_hidden(thing))
        elif event in REFUSED or event == OBJECTS:
            # What a collection or a signal runs in between finds the generator at work, and fails: no way round it.
            with lock:
                frame = next(looking)
            if what := asked_by_notebook(event, args, frame):
                if what not in notes and len(notes) < MAX_NOTES:
                    notes.append(what)
                raise RuntimeError(f"{what} is closed while a notebook is graded")

    def pass_gate(box: list[Any], name: str, args: tuple[Any, ...], more: dict[str, Any], frame: FrameType) -> None:
        """Call the function behind a gate for whoever stands before it, unless that is the notebook and may not."""
        nonlocal kernels_changed
        notebooks = frame is None or name not in _said(
            frame.f_code
        )  # else it was given it, to call on behalf of others
        while frame is not None and frame.f_code.co_filename.endswith(GATE_FILES):
            frame = frame.f_back
        notebooks = notebooks or frame is None or not _is_library(frame.f_code)
        kernels_changed = kernels_changed or name in KERNELS
        if name == PEAK and notebooks:
            meter._see_numpy()
        refused = notebooks and name in SWITCHES
        if not refused:
            box.append(gated[name](*args, **more))
            if notebooks and name in MODES and isinstance(box[0], meter):
                refused = True
                mode = box.pop()
                if name.startswith("_pop"):
                    push(mode)
        if refused:
            if name not in notes and len(notes) < MAX_NOTES:
                notes.append(name)
            raise RuntimeError(f"{name} is closed while a notebook is graded")

    def observe(exercise_id: str, seed: int, nonce: str, namespace: dict[str, Any]) -> None:
        me = get_ident()
        before, marks = changes(), snapshot.marks()
        observing.add(me)
        try:
            plain = report(exercise_id, seed, namespace)
        finally:
            observing.discard(me)
            back = snapshot.changed_back(marks)
            during = [*(changes() or back), *(snapshot.foreign_operators() if kernels_changed else ())]
        seal = {"before": before[:MAX_NOTES], "during": during[:MAX_NOTES], "refused": notes[:]}
        notes.clear()
        body = encode({"nonce": nonce, "exercise": exercise_id, **plain, "seal": seal})
        # As one text: values such as NaN are no valid JSON inside a Jupyter message.
        publish_display_data(
            {MIME: encode({"body": body, "mac": mac(body, key)}), "text/plain": f"{exercise_id}: observed"}
        )

    def changes() -> list[str]:
        sys.settrace(None)
        sys.setprofile(None)
        return snapshot.put_back()

    def is_hidden(thing: Any) -> bool:
        return id(thing) in hidden or type(thing) in (FrameType, TracebackType)

    def asked_by_notebook(event: str, args: tuple[Any, ...], frame: FrameType | None) -> str:
        """The event in a few words where code of the notebook has caused it and may not; else an empty text."""
        what, name = event, event.rpartition(".")[2]
        if event == OBJECTS:
            return "gc.get_objects"
        if event.startswith("object."):
            what = name = str(args[1])
            if name not in (FRAMES if event.endswith("getattr__") else CODE):
                return ""
            if name in CODE and id(args[0]) not in snapshot.functions:
                return ""
        elif event == "compile":
            # The name of its file would pass for that of a library.
            return what if _names_library_file(str(args[1])) and not _is_text_of(args[0], str(args[1])) else ""
        elif event == "marshal.loads":
            return what if _names_a_library(args[0]) and not _is_cached(args[0], frame) else ""
        elif event == "code.__new__" and not _names_library_file(str(args[1])):
            return ""
        if frame is None or not _is_library(frame.f_code):
            return what
        # Library code whose own text does not name it was given it, to be called on behalf of others.
        said = _said(frame.f_code)
        if event == "sys.setprofile" and not observing and said & PROFILERS:
            return ""
        if not said & {name, *ALSO.get(name, ())}:
            return what
        while frame is not None and _hands_on(frame.f_code):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(HERE):
            return ""
        if not _is_library(frame.f_code):
            return what
        if event.startswith("sys.set"):  # whoever traces, it is for the one at the end of the way
            while frame is not None and _is_library(frame.f_code):
                if frame.f_code.co_filename.startswith(HERE):
                    return ""
                frame = frame.f_back
            return what if frame is not None else ""
        return what if observing and event.startswith("gc.") else ""

    get_objects = gc.get_objects

    def listed(generation=None):
        ask(OBJECTS, found := [], generation)  # noqa: F821  (see ``names``: nothing of this module may be within its reach)
        return found

    # A census of living tensors is taught, so the list is to be had: without what belongs to the seal.
    names = {"ask": sys.audit, "OBJECTS": OBJECTS, "__builtins__": {}}
    gc.get_objects = FunctionType(listed.__code__, names, "get_objects", (None,))
    meter = sys.modules[f"{OURS}.meter"].MemoryMeter
    push = sys.modules["torch"]._C._push_on_torch_dispatch_stack
    kernels_changed = False
    gated: dict[str, Any] = {}
    for name, owners in gates.items():
        gated[name] = getattr(owners[0], name)
        names = {"ask": sys.audit, "GATE": GATE, "name": name, "__builtins__": {}}
        gate = FunctionType(_gate.__code__, names, name)
        for owner in owners:
            setattr(owner, name, gate)
    hidden.update(id(function) for function in gated.values())
    snapshot = _Snapshot(operators)
    hook.__cantrace__ = True  # observers count a program's steps with sys.settrace
    hidden.update(map(id, _belongings(hook)))
    publish_display_data({KEY_MIME: key.hex(), "text/plain": "sealed"})
    sys.addaudithook(hook)


def _gate(*args, **more):
    ask(GATE, box := [], name, args, more)  # noqa: F821  (as in ``listed``)
    return box[0]


def _gates() -> dict[str, list[Any]]:
    """Name of each function behind a gate -> the modules and classes through which it is to be had."""
    torch, tracemalloc = sys.modules["torch"], sys.modules["tracemalloc"]
    kernels = type(torch._C._dispatch_library("FRAGMENT", "course_utils", "", __file__, 1))
    found: dict[str, list[Any]] = {name: [kernels] for name in sorted(KERNELS)}
    found[PEAK] = [tracemalloc, sys.modules["_tracemalloc"]]
    modules = [torch._C, *(m for n, m in list(sys.modules.items()) if n.startswith("torch.") and m is not None)]
    for name in sorted(MODES | SWITCHES):
        if (function := getattr(torch._C, name, None)) is not None:
            found[name] = [m for m in modules if vars(m).get(name) is function]
    return found


HERE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
TORCH = f"{Path(find_spec('torch').origin).parent}{os.sep}"
LIBRARIES = (
    HERE,
    "<frozen",
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(f"{folder}{os.sep}" for folder in (*site.getsitepackages(), site.getusersitepackages())),
)


def _names_library_file(name: str) -> bool:
    """Is it a library's file? What PyTorch's compiler makes, ``codegen.py:codegen(...)``, is anybody's."""
    return name.startswith(LIBRARIES) and name.endswith((".py", ".pyc", ".pyx", ">"))


def _is_library(code: CodeType) -> bool:
    return _names_library_file(code.co_filename)


def _said(code: CodeType) -> set[str]:
    """The names and texts in a piece of code."""
    return {*code.co_names, *code.co_freevars, *(c for c in code.co_consts if type(c) is str)}


def _hands_on(code: CodeType) -> bool:
    file = code.co_filename.replace(os.sep, "/")
    return (
        file.endswith(HAND_ON)
        or any(folder in file for folder in HAND_ON_FOLDERS)
        or code.co_name in HAND_ON_FUNCTIONS
        or (code.co_name == "<lambda>" and file.endswith("/logging/__init__.py"))  # its currentframe
    )


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def _is_text_of(source: Any, file: str) -> bool:
    """Is it what stands in the file of that name?"""
    if isinstance(source, str):
        source = source.encode("utf-8", "replace")
    return isinstance(source, bytes) and source.split() == _read(file).split()


def _names_a_library(data: Any) -> bool:
    data = bytes(data)
    return any(folder.encode() in data for folder in LIBRARIES)


def _is_cached(data: Any, frame: FrameType | None) -> bool:
    """Is it a library's compiled module, which Python reads from the file that is meant for it?"""
    if frame is None or frame.f_code.co_filename != "<frozen importlib._bootstrap_external>":
        return False
    file = str(frame.f_locals.get("bytecode_path"))
    return file.startswith(LIBRARIES) and _read(file)[16:] == bytes(data)


def _belongings(thing: Any, found: dict[int, Any] | None = None) -> Iterator[Any]:
    """The hook, what its closure holds, and this private module: what a list of all objects must not give away."""
    seen = {} if found is None else found
    if id(thing) in seen:
        return
    seen[id(thing)] = thing
    yield thing
    inner: list[Any] = []
    if type(thing) is FunctionType and thing.__globals__ is globals():
        inner = [thing.__globals__, thing.__closure__, *(thing.__closure__ or ())]
        inner += [cell.cell_contents for cell in thing.__closure__ or ()]
    elif type(thing) is _Snapshot:
        inner = [vars(thing), *vars(thing).values()]
    elif thing is globals():
        inner = [v for v in thing.values() if type(v) is FunctionType or v is _Snapshot]
    for other in inner:
        yield from _belongings(other, seen)


class _Snapshot:
    """Modules, classes and functions as they were, by identity."""

    def __init__(self, operators: dict[str, str]) -> None:
        self.dump, self.operators = sys.modules["torch"]._C._dispatch_dump, operators
        self.modules: dict[str, ModuleType] = {}
        self.owners: list[tuple[str, Any, tuple[str, ...], tuple[Any, ...], frozenset[str]]] = []
        self.original: dict[int, dict[str, Any]] = {}
        self.tables: list[tuple[str, Any, Any]] = []
        self.cells: list[tuple[str, Any, Any]] = []
        self.functions: set[int] = set()
        self.builtins = dict(vars(builtins))
        self.kinds: set[int] = set()
        self.codes: set[int] = set()  # of the simulated GPU: its functions take the places of PyTorch's
        seen: set[int] = set()
        for name, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or not _is_watched(name):
                continue
            self.modules[name] = module
            ours = name.startswith(OURS)
            entries = {k: v for k, v in vars(module).items() if _decides(name, k, v)}
            self._own(name, module, entries)
            for key, value in entries.items():
                inner = getattr(value, "__wrapped__", None) if ours else None  # of a cached function
                if type(value) is FunctionType:
                    self._function(f"{name}.{key}", value, ours)
                elif type(inner) is FunctionType:
                    self._function(f"{name}.{key}", inner, ours)
                elif isinstance(value, type) and id(value) not in seen and value.__module__ == name:
                    seen.add(id(value))
                    if not value.__flags__ & _IMMUTABLE:
                        self._class(f"{name}.{key}", value, ours)
            if name.startswith(DECIDES):
                for key, value in vars(module).items():
                    # What is empty now is there to be filled: a cache, a stack of open blocks.
                    if type(value) in (dict, list) and value and not key.startswith("__"):
                        self.tables.append((f"{name}.{key}", value, value.copy()))

        # A look at each of 17000 names costs 8 ms and, in a forked kernel, a copy of every page with such an object.
        self.versions = [_version(owner) for _, owner, *_ in self.owners]
        self.seen = [version.value for version in self.versions]
        self.ours = [i for i, (label, *_) in enumerate(self.owners) if label.startswith(DECIDES[:2])]

    def marks(self) -> list[int]:
        return [self.versions[i].value for i in self.ours]

    def changed_back(self, before: list[int]) -> list[str]:
        """What was replaced since, of this package's own, though it may be the same again."""
        now = zip(self.ours, before, self.marks(), strict=True)
        return [f"something of {self.owners[i][0].rpartition('.')[2]}" for i, was, mark in now if was and mark != was]

    def foreign_operators(self) -> list[str]:
        """Operators that have got another implementation since (``torch.library``): no name of Python's tells."""
        found = []
        for name, before in self.operators.items():
            if (now := self.dump(name)) != before:
                # PyTorch adds these itself when a device of one's own is registered, as the simulated GPU.
                lines = set(now.splitlines()) ^ set(before.splitlines())
                if not all("PrivateUse1" in line for line in lines):
                    found.append(f"the operator {name}")
        return found

    def _own(self, label: str, owner: Any, entries: dict[str, Any]) -> None:
        self.original[id(owner)] = entries
        self.owners.append((label, owner, tuple(entries), tuple(entries.values()), frozenset(vars(owner))))

    def _class(self, label: str, kind: type, ours: bool) -> None:
        if label.startswith(f"{OURS}.simgpu"):
            self.kinds.add(id(kind))
        entries = {
            k: v
            for k, v in vars(kind).items()
            if k not in OF_CLASSES and (ours or callable(v) or hasattr(v, "__get__"))
        }
        self._own(label, kind, entries)
        for key, value in entries.items():
            inner = getattr(value, "__func__", value)
            if type(inner) is FunctionType:
                self._function(f"{label}.{key}", inner, ours)

    def _function(self, label: str, function: FunctionType, ours: bool) -> None:
        self.functions.add(id(function))
        if ours:
            for cell in function.__closure__ or ():
                self.cells.append((label, cell, cell.cell_contents))
        if label.startswith(f"{OURS}.simgpu"):
            self.codes.update(map(id, _codes(function.__code__)))

    def put_back(self) -> list[str]:
        """Undo every change, and return the names of what had changed."""
        changed: list[str] = []
        held: list[Any] = []  # until the end: what is put aside may have a ``__del__``
        for name, module in self.modules.items():
            if sys.modules.get(name) is not module:
                held.append(sys.modules.get(name))
                sys.modules[name] = module
                changed.append(name)
        for i, (version, seen) in enumerate(zip(self.versions, self.seen, strict=True)):
            if version.value == seen != 0:
                continue
            label, owner, keys, values, known = self.owners[i]
            now = vars(owner)
            if not all(map(is_, map(now.get, keys), values)):
                for key, value in zip(keys, values, strict=True):
                    if not (now.get(key) is value or self._is_ours(now.get(key)) or _wraps(now.get(key), value)):
                        held.append(now.get(key))
                        _set(owner, key, value)
                        changed.append(f"{label}.{key}")
            for key in now.keys() - known:
                if _shadows(owner, key) and not (self._is_ours(now[key]) or self._hides_nothing(owner, key, now[key])):
                    held.append(now[key])
                    type.__delattr__(owner, key) if isinstance(owner, type) else vars(owner).pop(key)
                    changed.append(f"{label}.{key}")
            self.seen[i] = version.value
        for label, table, before in self.tables:
            if type(table) is list:
                if len(table) != len(before) or not all(map(is_, table, before)):
                    table[:] = before
                    changed.append(label)
            elif not all(map(is_, map(table.get, before), before.values())):
                table.update(before)
                changed.append(label)
        for label, cell, before in self.cells:
            if cell.cell_contents is not before:
                cell.cell_contents = before
                changed.append(label)
        return changed

    def _hides_nothing(self, owner: Any, name: str, value: Any) -> bool:
        """``np.float = float``, which old code needs, or a wrapper of PyTorch's around what a base class has."""
        if isinstance(owner, type):
            return any(_wraps(value, self.original.get(id(base), {}).get(name, self)) for base in owner.__mro__[1:])
        return self.builtins.get(name) is value

    def _is_ours(self, value: Any) -> bool:
        """Is it one of the simulated GPU's functions, properties or objects?"""
        if type(value) is property:
            return all(self._is_ours(f) for f in (value.fget, value.fset) if f is not None)
        if id(type(value)) in self.kinds:
            return True
        return id(getattr(getattr(value, "__func__", value), "__code__", None)) in self.codes


# What comparisons and conversions call without its name.
_OPERATORS = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "abs",
    "all",
    "any",
    "max",
    "min",
    "equal",
    "isclose",
    "local_scalar_dense",
    "item",
    "detach",
    "alias",
    "to_copy",
    "is_nonzero",
    "clone",
    "copy",
    "view",
    "reshape",
    "contiguous",
    "resolve_conj",
    "resolve_neg",
    "index",
    "select",
    "slice",
    "bitwise_and",
    "logical_and",
    "pow",
]


def _version(thing: Any) -> c_uint64:
    """The number that CPython changes with every change of a class's or module's names, as it is now and later.

    It is that of the dictionary (``ma_version_tag``), which nothing in Python shows: a class's ``tp_version_tag`` stays the
    same for whoever gets hold of its dictionary. 0 where there is none.
    """
    names = vars(thing)
    if not isinstance(names, dict):
        (names,) = gc.get_referents(names)  # what stands behind the proxy
    return c_uint64.from_address(id(names) + 24) if _VERSIONS_WORK else c_uint64(0)


def _versions_work() -> bool:
    """Are the numbers where CPython 3.11 to 3.13 keep them in a process of 64 bits?"""
    global _VERSIONS_WORK
    _VERSIONS_WORK = True
    answers = []
    for thing in (type("Probe", (), {"x": 1}), ModuleType("probe")):
        version = _version(thing)
        thing.x = 1
        first, _, same = version.value, thing.x, version.value
        thing.x = 2
        second = version.value
        thing.x = 1
        answers.append(first == same != second != version.value != first != 0)
    return all(answers)


_VERSIONS_WORK = False
if sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.maxsize > 1 << 32:
    _VERSIONS_WORK = _versions_work()

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: nobody can set an attribute of such a class


_PACKAGES = tuple(w for w in WATCHED if w.endswith("."))
_MODULES = frozenset(w.rstrip(".") for w in WATCHED)


def _is_watched(name: str) -> bool:
    return name.startswith(_PACKAGES) or name in _MODULES


def _decides(module: str, name: str, value: Any) -> bool:
    if name in PASSING or (name.startswith("__") and name != "__import__") or (module, name) in SETTINGS:
        return False
    return callable(value) or isinstance(value, ModuleType) or (module.startswith(DECIDES) and type(value) in _PLAIN)


_PLAIN = (str, int, float, bool, tuple, frozenset)


def _set(owner: Any, name: str, value: Any) -> None:
    type.__setattr__(owner, name, value) if isinstance(owner, type) else vars(owner).__setitem__(name, value)


def _shadows(owner: Any, name: str) -> bool:
    """Would this new name be found in place of one that has always been there?"""
    if isinstance(owner, type):
        # On a class of ours it may also stand before what its objects hold.
        ours = owner.__module__.startswith(OURS)
        return name not in OF_CLASSES and (ours or any(name in vars(base) for base in owner.__mro__[1:]))
    return owner is not builtins and hasattr(builtins, name) and not name.startswith("__")


def _wraps(value: Any, inner: Any) -> bool:
    """Is this a function of PyTorch's that calls ``inner``, and nothing of the notebook's?

    PyTorch replaces functions of its own: an optimizer's ``step`` when the first one is made, more at the first ``compile``.
    """
    if value is inner:
        return True
    if type(value) is not FunctionType or not value.__code__.co_filename.startswith(TORCH):
        return False
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    functions = [thing for thing in held if type(thing) is FunctionType]
    return all(_is_library(f.__code__) for f in functions) and any(_wraps(f, inner) for f in held)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
