"""Run an observer on an answer."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import signal
import site
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
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
from course_utils.observe.guard import Guarded, guard
from course_utils.observe.own_time import PATIENCE, OwnTime
from course_utils.observe.plain import Fact
from course_utils.observe.processes import apart, can_fork
from course_utils.observe.registry import Exercise, Skipped

__all__ = ["Observation", "observe"]

# Where code lies that is not the student's: libraries, and this package. Not all below sys.prefix: in a container
# that is /usr, and people work in /usr/src.
_HERE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {
        _HERE.rstrip(os.sep),
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
_IN_A_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.")
_QUOTED_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_GRACE = 3.0  # seconds that a process has to come to its end when its time is up
_INSTANT = 0.01  # seconds that are not worth another alarm


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
    if exercise.apart and can_fork():
        return _observe_apart(exercise, answer, seed, see)
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


class _Sent(list):
    """Facts that leave the process one by one: those before a crash are not lost."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        super().__init__()
        self._send = send

    def append(self, fact: Fact) -> None:
        self._send(fact)


def _observe_apart(exercise: Exercise, answer: Any, seed: int, see: See) -> Observation:
    """As :func:`observe`, each case in a process of its own."""

    def work(send: Callable[[Any], None]) -> None:
        see.facts = _Sent(send)
        with guard() as inner, _deadline(max(0.1, round(left, 1))) as clock:
            try:
                exercise.observer(answer, Case(seed, see.case, see.device), see)
            except (Exception, SystemExit, TimeIsUp) as error:
                clock.stop()
                send(_explain(error, see.case))
        send(inner)

    ended, output = None, ""
    left = exercise.seconds
    with guard() as caught:
        for index in range(exercise.cases):
            see.case = index
            seed_everything((seed + index) % 2**32)
            seen = apart(work, left + _GRACE)
            left -= seen.seconds
            if seen.lacking:
                ended = Ended("machine", "Shortage", seen.lacking, case=index)
            for message in seen.messages:
                if isinstance(message, Fact):
                    see.facts.append(message)
                elif isinstance(message, Ended):
                    ended = message
                elif isinstance(message, Guarded):
                    output += message.output
                    for remark in message.remarks:
                        caught.remark(remark)
            if seen.death and ended is None:
                # Innermost first. Beyond the course's own code stands who asked for the check, not who caused it.
                own = itertools.takewhile(lambda frame: not frame[0].startswith(_HERE), seen.frames)
                line = next(filter(None, (_own(*frame) for frame in own)), "")
                ended = Ended("crashed", "ProcessEnded", seen.death, line, index)
            if ended is not None:
                break
    return Observation(tuple(see.facts), ended, tuple(caught.remarks), output)


class TimeIsUp(BaseException):
    """An answer is still running. No ``Exception``: an answer's own ``except Exception`` must not swallow it."""


class _Clock:
    """Raises :class:`TimeIsUp` in the main thread when the time is up, and every second from then on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running = False

    def start(self) -> None:
        self._running = True
        self._own = OwnTime()
        signal.setitimer(signal.ITIMER_REAL, self._seconds, 1.0)

    def stop(self) -> None:
        self._running = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def ring(self, *_: object) -> None:
        if not self._running:
            return
        left = self._seconds - self._own.seconds()
        if left > _INSTANT and self._own.wall < PATIENCE * self._seconds:
            # The rest was spent in the queue for a processor: it is not the answer's.
            signal.setitimer(signal.ITIMER_REAL, left, 1.0)
        else:
            raise TimeIsUp(f"still running after {self._seconds:g} seconds")


@contextmanager
def _deadline(seconds: float) -> Iterator[_Clock]:
    """Bound a block's own time (see ``own_time``), where the system has such an alarm and this is the main thread.

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
    if _IN_A_WORKER.match(text):
        # What a loader raises quotes the worker's traceback: there stands what was wrong, and where.
        quoted = [_own(name, int(number)) for name, number in _QUOTED_FRAME.findall(text)]
        line = next(filter(None, reversed(quoted)), line)
        frame = frame or bool(line)
        said = text.splitlines()[-1].partition(": ")[2]
        text = f"{said} (in a worker)" if said else ""
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
        own = _own(frame.f_code.co_filename, number) or own
    return bool(own), own[:200]


def _own(name: str, number: int) -> str:
    """``7: return x.view(-1)``; an empty text where the file is not the student's, or compiled code (.pyx)."""
    if name.startswith((*_LIBRARIES, *_GENERATED)) or name.endswith(".pyx"):
        return ""
    source = linecache.getline(name, number).strip()
    return f"{number}: {source}" if source else f"line {number}"
