"""The seal, in a process of its own: it cannot be taken off again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from course_utils.observe import seal
from grading.judge import Report, read_report

ROOT = Path(__file__).resolve().parents[2]
START = """
import json, sys
import IPython.display
import torch
from course_utils.observe import registry, seal
from course_utils.observe.registry import Exercise

sent = []
IPython.display.publish_display_data = sent.append

def observer(answer, case, see):
    n = case.integer(3, 9)
    with see.memory() as used:
        tensor = answer(n)
    see("value", tensor)
    see("bytes", used.peak, at_most=True)

registry._EXERCISES["tried"] = Exercise("tried", "none", 1.0, 1, 1, 1, (), observer, "")
seal.arm()
KEY = sent.pop()[seal.KEY_MIME]
"""
# As a cell of a notebook: the file is nobody's library.
CELL = "exec(compile({code!r}, '/tmp/ipykernel_1/1.py', 'exec'), globals())"
END = """
for name in ("tried", "tried"):
    sys.audit(seal.ORDER, name, 5, "nonce", globals())
print(json.dumps([KEY, [data["application/vnd.pytorch-foundations.facts+json"] for data in sent]]))
"""
ANSWER = """
import torch

def tried(n):
    return torch.ones(n) + torch.ones(n)
"""


def sealed(*cells: str) -> tuple[str, list[Report]]:
    """What two orders report after the cells have run, and what they printed."""
    code = "\n".join([START, *(CELL.format(code=textwrap.dedent(c)) for c in (ANSWER, *cells)), END])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    *said, last = run.stdout.splitlines()
    key, texts = json.loads(last)
    reports = [read_report(text, "nonce", "tried", bytes.fromhex(key)) for text in texts]
    assert None not in reports
    return "\n".join(said), reports


@pytest.fixture(scope="module")
def honest() -> list[tuple[str, object]]:
    _, (first, second) = sealed()
    assert (first.flags, first.tampered) == (second.flags, second.tampered) == ((), ())
    assert first.facts == second.facts
    return first.facts


def test_what_was_replaced_before_an_observation_decides(honest):
    _, reports = sealed(
        """
        import builtins, sys
        import course_utils.observe.facts as facts, course_utils.observe.run as run
        from course_utils import meter
        from course_utils.observe import registry
        torch.ones = torch.Tensor.__add__ = lambda *a: 3
        meter.MemoryMeter._meet = facts.See.__call__ = run.observe = lambda *a, **k: None
        meter.max = builtins.max = lambda *a, **k: 0
        run.guard.__closure__[0].cell_contents = None
        registry._EXERCISES["tried"] = None
        sys.modules["course_utils.observe.run"] = sys
        """
    )
    assert [r.facts for r in reports] == [honest, honest]
    assert len(reports[0].flags) >= 9
    assert reports[1].flags == ()
    assert not any(r.tampered for r in reports)


def test_what_was_replaced_past_the_class_in_its_dictionary_stays_unnoticed(honest):
    _, reports = sealed(
        """
        from course_utils.meter import MemoryMeter

        class Grab:
            def __eq__(self, names):  # a class's `__dict__` gives what it stands for to be compared
                names["_meet"] = lambda *a, **k: None

        MemoryMeter.__dict__ == Grab()
        """
    )
    assert [r.facts for r in reports] == [honest, honest]
    assert reports[0].flags == ("course_utils.meter.MemoryMeter._meet had been replaced; put back",)


def test_what_an_answer_replaces_during_its_observation_stays_unnoticed():
    _, reports = sealed(
        """
        def tried(n):
            from course_utils import meter
            meter.MemoryMeter._meet = lambda *a, **k: None
            return torch.ones(n) + torch.ones(n)
        """
    )
    assert [r.tampered for r in reports] == [("course_utils.meter.MemoryMeter._meet",)] * 2


BACK = {
    "a method": """
        def tried(n):
            kept, MemoryMeter._meet = MemoryMeter._meet, lambda *a, **k: None
            try:
                return torch.ones(n) + torch.ones(n)
            finally:
                MemoryMeter._meet = kept
    """,
    "a method, past its class": """
        class Grab:
            def __eq__(self, names):  # a class's `__dict__` gives what it stands for to be compared
                names["_meet"] = self.value

        grab = Grab()
        blind = lambda *a, **k: None  # CPython's cache of methods holds no reference of its own

        def tried(n):
            kept, grab.value = MemoryMeter._meet, blind
            MemoryMeter.__dict__ == grab
            try:
                return torch.ones(n) + torch.ones(n)
            finally:
                grab.value = kept
                MemoryMeter.__dict__ == grab
    """,
    "a function": """
        def tried(n):
            kept = facts.encode

            def forge(value, device=None):
                facts.encode = kept
                return 3

            facts.encode = forge
            return torch.ones(n) + torch.ones(n)
    """,
    "an operator": """
        library = torch.library.Library("aten", "IMPL")
        library.impl("equal", lambda one, other: True, "CPU")
    """,
}


@pytest.mark.parametrize("what", BACK)
def test_what_is_replaced_and_put_back_in_time_or_below_python_stays_unnoticed(what):
    _, reports = sealed(
        "from course_utils.meter import MemoryMeter\nfrom course_utils.observe import facts", BACK[what]
    )
    assert all(report.tampered for report in reports)


WAYS = [
    "sys._getframe()",
    "inspect.currentframe()",
    "inspect.stack()",
    "logging.currentframe()",
    "list(traceback.walk_stack(None))",
    "caught.__traceback__.tb_frame",
    "list(traceback.walk_tb(caught.__traceback__))",
    "(i for i in ()).gi_frame",
    "sys._current_frames()",
    "gc.get_referrers(sys)",
    "gc.get_referents(caught.__traceback__)",
    "sys.settrace(print)",
    "sys.setprofile(print)",
    "bdb.Bdb().set_trace()",
    "compile('1', torch.__file__, 'exec')",
    # Libraries that would do it on behalf of the notebook.
    "string.Formatter().get_field('0.tb_frame', (caught.__traceback__,), {})",
    "futures.ThreadPoolExecutor().submit(sys._current_frames).result()",
    "futures.ThreadPoolExecutor().submit(gc.get_referrers, sys).result()",
    "mock.Mock(side_effect=sys._getframe)()",
    "raised(facts.attempt(sys._getframe))",
    "stack_data.FrameInfo(caught.__traceback__)",
    "torch._jit_internal.createResolutionCallbackFromFrame(1)",
    "bdb.Bdb().runcall(print)",
    "codeop.Compile()('1', torch.__file__, 'exec')",
    "Loader('x', torch.__file__).get_code('x')",
    "marshal.loads(marshal.dumps(compile('1', 'x' * len(torch.__file__), 'exec')).replace(b'x' * len(torch.__file__), torch.__file__.encode()))",
    "(lambda: 0).__code__.replace(co_filename=torch.__file__)",
    "setattr(facts.See.__call__, '__code__', (lambda: 0).__code__)",
    "codegen._compile_and_exec_source('import sys; x = sys._getframe()', {}, 'x', 'y')",
    # Past the meter.
    "torch._C._DisableTorchDispatch()",
    "mock.Mock(side_effect=torch._C._DisableTorchDispatch)()",
    "inside(torch._C._get_dispatch_stack_at, 0)",
    "inside(torch._C._pop_torch_dispatch_stack, None)",
    "inside(torch.utils._python_dispatch._get_current_dispatch_mode)",
    "inside(contextlib.ExitStack().enter_context, torch.utils._python_dispatch._disable_current_modes())",
]


def test_code_of_the_notebook_gets_at_frames_or_at_the_collector():
    said, reports = sealed(
        f"""
        import bdb, codeop, contextlib, gc, inspect, logging, marshal, stack_data, string, sys, traceback
        from concurrent import futures
        from importlib.machinery import SourceFileLoader
        from unittest import mock
        from course_utils import memory
        from course_utils.observe import facts
        from torch._functorch._aot_autograd import codegen

        def inside(function, *args):
            with memory():
                return function(*args)

        class Loader(SourceFileLoader):
            def get_data(self, path): return b"1"

        def raised(outcome):
            if outcome.raised:
                raise RuntimeError(outcome.message)

        try:
            1 / 0
        except ZeroDivisionError as error:
            caught = error
        for way in {WAYS!r}:
            try:
                eval(compile(way, "/tmp/ipykernel_1/2.py", "eval"))
                print(way)
            except RuntimeError as error:
                assert "closed while a notebook is graded" in str(error)
        """
    )
    assert said == ""
    assert "tb_frame was tried, and refused" in reports[0].flags


def test_honest_code_is_refused(honest):
    said, reports = sealed(
        """
        import collections, cProfile, dataclasses, enum, gc, io, contextlib, inspect, logging, traceback, typing, warnings
        collections.namedtuple("P", "x y")
        dataclasses.make_dataclass("D", ["x"])
        enum.Enum("E", "A B")
        logging.getLogger("mine").warning("a record")
        warnings.warn("a warning")
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.format_exc()
        inspect.signature(tried), inspect.getsource(torch.nn.Linear), inspect.getmembers(tried)
        compile("1", "<mine>", "eval")
        with contextlib.redirect_stdout(io.StringIO()):
            cProfile.run("sum(range(9))")
        with torch.profiler.profile(with_stack=True):
            torch.ones(3)
        torch.jit.script(torch.nn.ReLU())
        import unittest.mock, pdb, timeit
        timeit.timeit("1", number=1)
        print(any(type(thing) is torch.Tensor for thing in [*gc.get_objects(), *gc.get_objects(2), torch.ones(1)]))
        torch.set_default_dtype(torch.float64)
        torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(2))
        """
    )
    assert said == "True"
    assert [(r.facts, r.flags, r.tampered) for r in reports] == [(honest, (), ())] * 2


def test_what_is_put_aside_sees_the_key_on_its_way_out():
    said, _ = sealed(
        """
        import gc, sys
        def look(*_):
            try:
                frame = sys._getframe()
            except (RuntimeError, ValueError):
                return
            while frame is not None:
                print(frame.f_code.co_name)
                frame = frame.f_back

        class Leaves:
            def __call__(self, *_): return 3
            __del__ = look

        torch.ones = Leaves()
        gc.callbacks.append(look)
        gc.set_threshold(1)
        """
    )
    assert said == ""


def test_the_simulated_gpu_is_put_back_as_if_a_student_had_replaced_pytorch():
    _, reports = sealed(
        """
        from course_utils import simgpu
        device = simgpu.enable()

        def tried(n):
            x = torch.ones(n, device=device, requires_grad=True)
            (2 * x).sum().backward()
            return [x.device.type == device.type, x.is_cpu, x.grad.tolist()]
        """
    )
    assert [(r.flags, r.tampered) for r in reports] == [((), ())] * 2
    assert all(fact[1][:2] == [True, False] for r in reports for fact in r.facts if fact[0] == "value")


def test_the_list_of_all_objects_leads_to_the_key():
    said, _ = sealed(
        """
        import gc
        from types import FrameType, FunctionType
        for thing in gc.get_objects():
            assert not isinstance(thing, FrameType)
            if isinstance(thing, FunctionType):
                for cell in thing.__closure__ or ():
                    try:
                        value = cell.cell_contents
                    except ValueError:
                        continue
                    if isinstance(value, bytes) and value.hex() == KEY:
                        print("found")
            if isinstance(thing, (list, tuple, dict)) and len(thing) < 1000:
                values = thing.values() if isinstance(thing, dict) else thing
                if any(isinstance(v, bytes) and v.hex() == KEY for v in list(values)):
                    print("found")
        """
    )
    assert said == ""


def test_a_signature_does_not_depend_on_the_key_and_on_every_character():
    macs = {seal.mac(body, key) for body in ("a", "b", "a ", "\ud800") for key in (b"1", b"2")}
    assert len(macs) == 8
    assert {len(m) for m in macs} == {32}


def test_a_seal_keeps_arrays_from_being_counted_or_lets_an_answer_reset_their_peak():
    said, _ = sealed(
        """
        import tracemalloc
        import numpy as np
        from course_utils import memory

        with memory(numpy=True) as used:
            np.ones(100_000).sum()
            tracemalloc.reset_peak()
        print(used.peak // 800_000)
        """
    )
    assert said == "1"
