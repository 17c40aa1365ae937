"""Observing: whatever an answer does, the observation comes back, and says where it ended."""

from __future__ import annotations

import collections
import functools
import gc
import linecache
import sys
import sysconfig
import weakref

import numpy as np
import pytest
import torch

import course_utils
from course_utils.observe import NotStarted
from course_utils.observe.compare import Kind
from course_utils.observe.run import observe


def doubled(answer, case, see):
    """Twice the number."""
    n = case.integer(3, 9)
    see.form(answer(n), why="A number.", fix="Return a number.")
    see("value", answer(n), why="Not doubled.", fix="Multiply by 2.")


def twice(n):
    return 2 * n


@pytest.fixture
def toy(trial):
    return trial(doubled, twice)


def test_a_right_answer_is_refused(toy):
    assert toy.judge(lambda n: n + n).kind is Kind.RIGHT


def test_the_right_answer_to_other_cases_passes(toy):
    """An answer that knows the public cases by heart."""
    known = [value for name, value in toy.observe(twice, seed=1).values() if name == "value"]
    calls = iter([known[0], known[0], known[1], known[1]])
    assert toy.judge(lambda n: next(calls), seed=1).kind is Kind.RIGHT
    calls = iter([known[0], known[0], known[1], known[1]])
    assert toy.judge(lambda n: next(calls), seed=2).kind is Kind.WRONG_VALUE


def students_module(code: str) -> dict:
    """A cell of a notebook: code with lines that linecache does not know from a file."""
    name = f"<cell {abs(hash(code))}>"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    namespace: dict = {"functools": functools, "torch": torch}
    exec(compile(code, name, "exec"), namespace)
    return namespace


FAILING = {
    "a function": ("def doubled(n):\n    m = n\n    return m[0]\n", "3: return m[0]"),
    "a lambda": ("doubled = lambda n: n[0]\n", "1: doubled = lambda n: n[0]"),
    "a class": ("class doubled:\n    def __init__(self, n):\n        n.x\n", "3: n.x"),
    "a decorated function": (
        "def loud(f):\n    @functools.wraps(f)\n    def inner(n):\n        return f(n)\n    return inner\n"
        "@loud\ndef doubled(n):\n    return n[0]\n",
        "8: return n[0]",
    ),
    "a helper": ("def helper(n):\n    return n[0]\ndef doubled(n):\n    return helper(n)\n", "2: return n[0]"),
    "torch, called by the answer": (
        "def doubled(n):\n    return torch.nn.functional.linear(torch.ones(2), torch.ones(2, 3))\n",
        "2: return torch.nn.functional.linear(torch.ones(2), torch.ones(2, 3))",
    ),
    "endless recursion": ("def doubled(n):\n    return doubled(n)\n", "2: return doubled(n)"),
    "a silly allocation": ("def doubled(n):\n    return torch.ones(2**60)\n", "2: return torch.ones(2**60)"),
    "no memory": ("def doubled(n):\n    return bytearray(2**62)\n", "2: return bytearray(2**62)"),
    "exit": ("def doubled(n):\n    raise SystemExit(3)\n", "2: raise SystemExit(3)"),
    "an exception group": (
        "def doubled(n):\n    raise ExceptionGroup('two', [ValueError(1), KeyError(2)])\n",
        "2: raise ExceptionGroup('two', [ValueError(1), KeyError(2)])",
    ),
}


@pytest.mark.parametrize("what", FAILING)
def test_the_message_points_to_another_line_than_the_students_own(what, toy):
    code, line = FAILING[what]
    seen = toy.observe(students_module(code)["doubled"])
    assert seen.ended.kind == "crashed"
    assert seen.ended.line == line
    verdict = toy.judge(students_module(code)["doubled"])
    assert (verdict.kind, verdict.points) == (Kind.CRASHED, 0.0)


@pytest.mark.parametrize(
    ("filename", "own"),
    [
        ("/tmp/ipykernel_1/2.py", True),
        ("<ipython-input-3-abc>", True),
        (f"{sys.base_prefix}/src/course/notebook.py", True),
        (f"{sysconfig.get_path('purelib')}/torch/nn/functional.py", False),
        (f"{sysconfig.get_path('stdlib')}/collections/__init__.py", False),
        (course_utils.__file__, False),
        ("<string>", False),
        ("<eval_with_key>.0", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_a_line_of_a_library_passes_for_the_students_own(filename, own, trial):
    namespace: dict = {}
    exec(compile("def doubled(n):\n    return n[0]\n", filename, "exec"), namespace)
    observer = "def observer(answer, case, see):\n    answer(3)\n"
    exec(compile(observer, course_utils.__file__, "exec"), namespace)  # an observer is a part of the course
    ended = trial(namespace["observer"]).observe(namespace["doubled"]).ended
    assert ended.kind == ("crashed" if own else "stopped")
    assert ended.line == ("line 2" if own else "")


@pytest.mark.parametrize("answer", [lambda: 3, None, 3, "text", torch.nn.Linear(2, 2), object()], ids=repr)
def test_something_that_cannot_be_called_like_that_ends_the_check(answer, toy):
    verdict = toy.judge(answer)
    assert (verdict.kind, verdict.points) == (Kind.CRASHED, 0.0)


def test_a_stub_is_told_from_an_answer_that_raises_later(toy):
    def stub(n):
        raise NotImplementedError

    def later(n, calls=[]):  # noqa: B006
        calls.append(n)
        if len(calls) > 1:
            raise NotImplementedError
        return 2 * n

    def unsupported(n):
        raise NotImplementedError("no negative numbers")

    assert toy.judge(stub).kind is Kind.NOT_STARTED
    assert toy.judge(later).kind is Kind.CRASHED
    assert toy.judge(unsupported).kind is Kind.CRASHED


def test_an_observer_cannot_tell_that_nothing_was_written_yet(trial):
    def table(answer, case, see):
        """A table."""
        if not answer:
            raise NotStarted
        see("rows", answer)

    toy = trial(table, {"a": 1}, cases=1)
    assert toy.judge({}).kind is Kind.NOT_STARTED
    assert toy.judge({"a": 1}).kind is Kind.RIGHT


def test_an_exception_that_cannot_say_what_it_is_ends_the_check(toy):
    class Meta(type):
        @property
        def __name__(cls):
            return 42

    class Mute(Exception, metaclass=Meta):
        def __str__(self):
            raise RuntimeError

    def answer(n):
        raise Mute

    ended = toy.observe(answer).ended
    assert (ended.kind, ended.error, ended.message) == ("crashed", "Mute", "")


def test_a_keyboard_interrupt_does_not_stop_the_check(toy):
    def answer(n):
        raise KeyboardInterrupt

    streams = sys.stdout, sys.stderr
    with pytest.raises(KeyboardInterrupt):
        toy.observe(answer)
    assert (sys.stdout, sys.stderr) == streams


def test_facts_seen_before_a_crash_are_lost(toy):
    def answer(n, calls=[]):  # noqa: B006
        calls.append(n)
        return 2 * n if len(calls) < 4 else 1 / 0

    seen = toy.observe(answer)
    assert [name for name, _ in seen.values()] == ["type of the result", "value", "type of the result"]
    assert (seen.ended.error, seen.ended.case) == ("ZeroDivisionError", 1)


def test_what_the_answer_prints_and_warns_is_lost(toy, capfd):
    def answer(n):
        print("n is", n)
        torch.tensor(torch.ones(1))
        return 2 * n

    verdict = toy.judge(answer)
    assert verdict.kind is Kind.RIGHT
    assert any("clone" in remark for remark in verdict.remarks)
    assert toy.observe(answer).output.count("n is") == 4
    assert capfd.readouterr() == ("", "")


def test_random_answers_differ_from_run_to_run(trial):
    def noise(answer, case, see):
        """Noise."""
        see("value", answer(3))

    toy = trial(noise, torch.rand)
    assert toy.judge(torch.rand).kind is Kind.RIGHT
    assert toy.observe(torch.rand).values() == toy.observe(torch.rand).values()
    assert toy.observe(torch.rand, seed=1).values() != toy.observe(torch.rand, seed=2).values()


def test_the_frames_of_a_failed_answer_stay_alive(toy):
    alive = []

    def answer(n):
        big = torch.ones(1000)
        alive.append(weakref.ref(big))
        raise ValueError

    toy.observe(answer)
    gc.collect()
    assert [ref() for ref in alive] == [None]
    seen = observe(toy.exercise, answer, 1, torch.device("cpu"), keep_error=True)
    assert isinstance(seen.error, ValueError)


Pair = collections.namedtuple("Pair", "a b")
SAME_VALUES = {
    "a list for a tuple": ((1, 2), [1, 2]),
    "a float of NumPy": (0.5, np.float64(0.5)),
    "a named tuple": ((1, 2), Pair(1, 2)),
    "torch's own tuple": (
        (torch.tensor(3.0), torch.tensor(1)),
        torch.tensor([1.0, 3.0]).max(dim=0),
    ),
    "an ordered dictionary": ({"a": 1}, collections.OrderedDict(a=1)),
    "a parameter": (torch.ones(2), torch.nn.Parameter(torch.ones(2))),
    "a tensor with a graph": (torch.ones(2), torch.ones(2, requires_grad=True) * 1),
    "another stride": (torch.ones(2, 3), torch.ones(3, 2).t()),
}


@pytest.mark.parametrize("what", SAME_VALUES)
def test_a_right_answer_loses_points_for_how_its_value_is_wrapped(what, trial):
    reference, other = SAME_VALUES[what]

    def observer(answer, case, see):
        """A value."""
        see("value", answer())

    assert trial(observer, lambda: reference).judge(lambda: other).kind is Kind.RIGHT
