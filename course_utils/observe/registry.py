"""The registry of exercises. An exercise's id is the name that the student writes."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Exercise", "NotStarted", "Skipped", "all_exercises", "exercise", "find_exercise", "public_seed"]

Observer = Callable[[Any, Any, Any], None]


class NotStarted(NotImplementedError):
    """Raised by an observer that finds an answer still in the state in which it was handed out."""


class Skipped(Exception):
    """Raised by an observer where this machine cannot show the behaviour; its text says why. It costs nobody a point.

    A judge believes it only where the observation of the reference on the same machine was skipped as well.
    """


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes
    ----------
    id : str
        The name of the function, class or table that the student writes.
    section : str
        The module in ``course_utils.exercises`` that holds the observer, such as ``tensor_costs``.
    points : float
        Full marks.
    minutes : int
        About how long it takes.
    difficulty : int
        1 (apply what was just shown), 2 (combine), 3 (think).
    cases : int
        How many cases one run observes.
    hints : tuple of str
        Opened one after the other by ``hint``; each gives away more.
    observer : callable
        ``observer(answer, case, see)``.
    summary : str
        The first line of the observer's docstring: what is asked, in one sentence.
    seconds : float
        How long one check may take before it counts as an endless loop.
    apart : bool
        The observer runs in a forked process of its own, where there is one (see ``processes``): what it observes may
        crash, hang or leave processes behind.
    """

    id: str
    section: str
    points: float
    minutes: int
    difficulty: int
    cases: int
    hints: tuple[str, ...]
    observer: Observer
    summary: str
    seconds: float = 30.0
    apart: bool = False


_EXERCISES: dict[str, Exercise] = {}


def exercise(
    *,
    section: str,
    points: float,
    minutes: int,
    difficulty: int = 1,
    cases: int = 2,
    hints: tuple[str, ...] = (),
    seconds: float = 30.0,
    apart: bool = False,
) -> Callable[[Observer], Observer]:
    """Register the decorated observer as the exercise of the same name."""

    def register(observer: Observer) -> Observer:
        name = observer.__name__
        known = _EXERCISES.get(name)
        if known is not None and known.section != section:
            raise ValueError(f"two exercises are called {name!r}: in {known.section} and in {section}")
        summary = (inspect.getdoc(observer) or "").split("\n\n")[0].replace("\n", " ").strip()
        _EXERCISES[name] = Exercise(
            name, section, float(points), minutes, difficulty, cases, tuple(hints), observer, summary, seconds, apart
        )
        return observer

    return register


def all_exercises(section: str | None = None) -> list[Exercise]:
    """Every exercise, or those of one section, in the order of their definition."""
    from course_utils import exercises

    for module in pkgutil.iter_modules(exercises.__path__):
        if section is None or module.name == section:
            importlib.import_module(f"course_utils.exercises.{module.name}")
    return [e for e in _EXERCISES.values() if section in (None, e.section)]


def find_exercise(exercise_id: str) -> Exercise:
    """The exercise of that name.

    Raises
    ------
    KeyError
        If there is none; the message names the nearest ones.
    """
    if exercise_id not in _EXERCISES:
        all_exercises()
    try:
        return _EXERCISES[exercise_id]
    except KeyError:
        near = difflib.get_close_matches(exercise_id, _EXERCISES, n=3)
        more = f"Did you mean {' or '.join(near)}?" if near else "progress() lists them all."
        raise KeyError(f"there is no exercise {exercise_id!r}. {more}") from None


def public_seed(exercise_id: str) -> int:
    """The seed of the cases that ``check`` uses in a student's notebook."""
    return zlib.crc32(exercise_id.encode())
