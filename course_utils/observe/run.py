"""Run an observer on an answer."""

from __future__ import annotations

import linecache
import os
import signal
import site
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from course_utils.devices import seed_everything
from course_utils.observe.case import Case
from course_utils.observe.compare import Behaviour, Ended
from course_utils.observe.facts import See, class_name, error_text
from course_utils.observe.guard import guard
from course_utils.observe.plain import Fact
from course_utils.observe.registry import Exercise, Skipped

__all__ = ["Observation", "observe"]

# Where code lies that is not the student's: libraries, and this package. Not all below sys.prefix: in a container
# that is /usr, and people work in /usr/src.
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(Path(__file__).resolve().parents[1]),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)
_GENERATED = (
    "<frozen",
    "<string>",
    "<__array_function__",
    "<eval_with_key>",
)  # by Python, dataclasses, NumPy, torch.fx


@dataclass(frozen=True)
class Observation:
    """One run: the facts in order, why it ended early, and what the guard caught."""

    facts: tuple[Fact, ...]
    ended: Ended | None = None
    remarks: tuple[str, ...] = ()
    output: str = ""
    error: BaseException | None = field(default=None, repr=False, compare=False)

    def behaviour(self, exercise_id: str) -> Behaviour:
        return Behaviour(exercise_id, self.facts, self.ended)

    def values(self) -> list[tuple[str, Any]]:
        """What may leave the process: names and plain values, no tolerances, no shares."""
        return [(fact.name, fact.value) for fact in self.facts]


def observe(exercise: Exercise, answer: Any, seed: int, device: torch.device, keep_error: bool = False) -> Observation:
    """Run the observer of ``exercise`` on ``answer`` for all its cases.

    Parameters
    ----------
    exercise : Exercise
    answer : Any
        The student's function, class or table.
    seed : int
        Decides the cases; global generators are seeded from it before each case.
    device : torch.device
    keep_error : bool
        Keep the exception that ended the run. It holds the frames and their tensors; off by default.
    """
    see = See(device)
    ended, kept = None, None
    with guard() as caught, _deadline(exercise.seconds) as clock:
        for index in range(exercise.cases):
            see.case = index
            seed_everything((seed + index) % 2**32)
            try:
                exercise.observer(answer, Case(seed, index, device), see)
            except (Exception, SystemExit, TimeIsUp) as error:
                clock.stop()
                ended = _explain(error, index)
                kept = error if keep_error else None
                break
    return Observation(tuple(see.facts), ended, tuple(caught.remarks), caught.output, kept)


class TimeIsUp(BaseException):
    """An answer is still running. No ``Exception``: an answer's own ``except Exception`` must not swallow it."""


class _Clock:
    """Raises :class:`TimeIsUp` in the main thread when the time is up, and every second from then on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running = False

    def start(self) -> None:
        self._running = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, 1.0)

    def stop(self) -> None:
        self._running = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def ring(self, *_: object) -> None:
        if self._running:
            raise TimeIsUp(f"still running after {self._seconds:g} seconds")


@contextmanager
def _deadline(seconds: float) -> Iterator[_Clock]:
    """Bound a block by the clock on the wall, where the system has such an alarm and this is the main thread.

    An endless loop inside one C call is not ended by it; interrupting the kernel is the way out of that, and when
    grading the executor's own limit.
    """
    clock = _Clock(seconds)
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        clock.stop = lambda: None  # type: ignore[method-assign]
        yield clock
        return
    before = signal.signal(signal.SIGALRM, clock.ring)
    try:
        clock.start()
        yield clock
    finally:
        clock.stop()
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


def _explain(error: BaseException, case: int) -> Ended:
    frame, line = _own_line(error.__traceback__)
    text = error_text(error).strip()
    kind = "crashed" if frame else "stopped"
    if isinstance(error, NotImplementedError) and not text:
        kind = "not started"
    if isinstance(error, Skipped):
        kind = "skipped"
    return Ended(kind, class_name(error), text.split("\n")[0][:300], line, case)


def _own_line(trace: TracebackType | None) -> tuple[bool, str]:
    """The last line of the student's own code on the way to the error: ``7: return x.view(-1)``."""
    own = ""
    for frame, number in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        if name.startswith((*_LIBRARIES, *_GENERATED)):
            continue
        source = linecache.getline(name, number).strip()
        own = f"{number}: {source}" if source else f"line {number}"
    return bool(own), own[:200]
