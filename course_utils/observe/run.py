"""Run an observer on an answer."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
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
from course_utils.observe.plain import Fact
from course_utils.observe.processes import TimeIsUp, apart, can_fork
from course_utils.observe.registry import Exercise

__all__ = ["Observation", "observe"]

_HERE = str(Path(__file__).resolve().parents[1])
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.")
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in ', re.MULTILINE)
_LIBRARIES = tuple({sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()})


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
    with guard() as caught:
        for index in range(exercise.cases):
            see.case = index
            seed_everything((seed + index) % 2**32)
            if exercise.limit is not None and can_fork():
                ended = _observe_apart(exercise, answer, seed, see, caught)
                if ended is not None:
                    break
                continue
            try:
                exercise.observer(answer, Case(seed, index, device), see)
            except (Exception, SystemExit) as error:
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


def _observe_apart(exercise: Exercise, answer: Any, seed: int, see: See, caught: Guarded) -> Ended | None:
    """Observe one case in a process of its own; its facts, remarks and output are added to ``see`` and ``caught``."""

    def work(send: Callable[[Any], None]) -> None:
        see.facts = _Sent(send)
        with guard() as inner:
            try:
                exercise.observer(answer, Case(seed, see.case, see.device), see)
            except (Exception, SystemExit, TimeIsUp) as error:
                send(_explain(error, see.case))
        send(inner)

    seen = apart(work, exercise.limit)
    if seen.lacking:
        return Ended("machine", "Shortage", seen.lacking, case=see.case)
    ended = None
    for message in seen.messages:
        if isinstance(message, Fact):
            see.facts.append(message)
        elif isinstance(message, Ended):
            ended = message
        else:
            caught.output += message.output
            for remark in message.remarks:
                caught.remark(remark)
    if seen.death and ended is None:
        line = next(filter(None, (_own(*frame) for frame in seen.frames)), "")
        ended = Ended("crashed", "ProcessEnded", seen.death, line, see.case)
    return ended


def _explain(error: BaseException, case: int) -> Ended:
    frame, line = _own_line(error.__traceback__)
    text = error_text(error).strip()
    inside = _WORKER.match(text)
    if inside:
        # What a loader raises quotes the worker's traceback: there stands what was wrong, and where.
        quoted = [_own(name, int(number)) for name, number in _FRAME.findall(text)]
        line = next(filter(None, reversed(quoted)), line)
        said = text.splitlines()[-1].partition(": ")[2]
        text = f"{said} (in a worker)" if said else ""
    unwritten = isinstance(error, NotImplementedError) and not text
    kind = "not started" if unwritten else "crashed" if frame else "stopped"
    return Ended(kind, class_name(error), text.split("\n")[0][:300], line, case)


def _own_line(trace: TracebackType | None) -> tuple[bool, str]:
    """The last line of the student's own code on the way to the error: ``7: return x.view(-1)``."""
    own = ""
    for frame, number in traceback.walk_tb(trace):
        own = _own(frame.f_code.co_filename, number) or own
    return bool(own), own[:200]


def _own(name: str, number: int) -> str:
    """``7: return x.view(-1)``, or an empty text where the file belongs to the course or to a library."""
    if name.startswith((_HERE, *_LIBRARIES, "<frozen")):
        return ""
    source = linecache.getline(name, number).strip()
    return f"{number}: {source}" if source else f"line {number}"
