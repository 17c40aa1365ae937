"""The answer bank: right answers that must get full marks, wrong ones that must lose points for the right reason.

    python -m grading.bank tensor_costs                 every answer of a section, on several seeds
    python -m grading.bank tensor_costs bgr_to_batch    one exercise, with the messages that students would read

An answer is registered by a decorator; its function name says what is typical of it::

    @right("flatten_without_copy")
    def view_of_minus_one(x):
        return x.view(-1)

    @wrong("flatten_without_copy", fails="a copy is refused", says="reshape")
    def reshape_copies_silently(x):
        return x.reshape(-1)

    @right("predict_creation", factory=True)            # a table or a class: the function returns the answer
    def table_of_tuples():
        return {...}
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_utils.devices import available_device
from course_utils.observe import all_exercises, find_exercise, message
from course_utils.observe.compare import Kind, Verdict, compare
from course_utils.observe.registry import public_seed
from course_utils.observe.run import observe
from grading.references import Reference, load_references

__all__ = ["Answer", "answers", "complaints", "judge_answer", "right", "seeds", "wrong"]

SEEDS = (11, 2**40 + 7)  # beside the public seed
SLOW = 60.0  # seconds that an exercise may take; from here on its answers train a model, and are judged once


@dataclass(frozen=True)
class Answer:
    """One answer of the bank.

    Attributes
    ----------
    exercise, name : str
    value : Any
        The function, class or table itself.
    right : bool
    fails : str
        The fact that a wrong answer must fail on.
    says : str
        A part of the message that the student must get (in ``why``, ``try``, ``got`` or the kind).
    kind : Kind or None
        The verdict, where it must be this one (such as ``Kind.WASTEFUL``).
    note : str
        The misconception, from the docstring.
    """

    exercise: str
    name: str
    value: Any
    right: bool
    fails: str = ""
    says: str = ""
    kind: Kind | None = None
    note: str = ""


_ANSWERS: list[Answer] = []


def _register(answer: Answer) -> None:
    if any((a.exercise, a.name) == (answer.exercise, answer.name) for a in _ANSWERS):
        raise ValueError(f"two answers to {answer.exercise} are called {answer.name}")
    _ANSWERS.append(answer)


def right(exercise: str, *, factory: bool = False) -> Callable[[Any], Any]:
    """Register a right answer: full marks on every seed."""

    def add(thing: Any) -> Any:
        _register(Answer(exercise, thing.__name__, thing() if factory else thing, True, note=thing.__doc__ or ""))
        return thing

    return add


def wrong(
    exercise: str, *, fails: str = "", says: str = "", kind: Kind | None = None, factory: bool = False
) -> Callable[[Any], Any]:
    """Register a wrong answer: it must lose points at the fact ``fails``, with a message that contains ``says``.

    ``fails`` may be empty only where ``kind`` is given (an answer that crashes).
    """
    if not fails and kind is None:
        raise ValueError("say which fact the answer must fail on, or which kind of verdict it must get")

    def add(thing: Any) -> Any:
        value = thing() if factory else thing
        _register(Answer(exercise, thing.__name__, value, False, fails, says, kind, thing.__doc__ or ""))
        return thing

    return add


def answers(section: str, exercise: str | None = None) -> list[Answer]:
    """The answers of a section, in the order of their definition."""
    importlib.import_module(f"grading.answers.{section}")
    wanted = {e.id for e in all_exercises(section)}
    unknown = {a.exercise for a in _ANSWERS} - {e.id for e in all_exercises()}
    if unknown:
        raise ValueError(f"the bank answers exercises that do not exist: {', '.join(sorted(unknown))}")
    return [a for a in _ANSWERS if a.exercise in wanted and exercise in (None, a.exercise)]


def seeds(exercise_id: str) -> tuple[int, ...]:
    """The seeds on which an answer of the bank is judged: the public one and others, of a slow exercise one hidden one."""
    return SEEDS[:1] if find_exercise(exercise_id).seconds > SLOW else (public_seed(exercise_id), *SEEDS)


def judge_answer(answer: Answer, reference: Reference, seed: int) -> Verdict:
    """Judge an answer of the bank as the judge would, in this process."""
    exercise = find_exercise(answer.exercise)
    device = available_device()
    seen = observe(exercise, answer.value, seed, device)
    verdict = compare(reference.behaviour(answer.exercise, seed, device), seen.values(), seen.ended, exercise.points)
    return Verdict(**{**vars(verdict), "remarks": seen.remarks})


def complaints(answer: Answer, verdict: Verdict) -> list[str]:
    """What is wrong with a verdict; empty where the answer was judged as it deserves."""
    if answer.right:
        return [] if verdict.kind is Kind.RIGHT else [f"a right answer is refused:\n{message.text(verdict)}"]
    found = []
    if verdict.points >= verdict.max_points:
        found.append("a wrong answer gets full marks")
    failed = [f.name for f in verdict.findings if not f.ok and f.seen]
    if answer.fails and answer.fails not in failed:
        found.append(f"it should fail on {answer.fails!r}, and fails on {failed}")
    if answer.fails and not found and verdict.first is not None and verdict.first.name != answer.fails:
        found.append(f"the message is about {verdict.first.name!r}, not about {answer.fails!r}")
    if answer.kind is not None and verdict.kind is not answer.kind:
        found.append(f"the verdict is {verdict.kind.value!r}, not {answer.kind.value!r}")
    if answer.says and answer.says not in message.text(verdict):
        found.append(f"the message does not say {answer.says!r}")
    return [f"{c}\n{message.text(verdict)}" for c in found]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.bank", description="Judge the answer bank.")
    parser.add_argument("section")
    parser.add_argument("exercise", nargs="?")
    options = parser.parse_args(argv)
    reference = load_references(options.section)
    bad, started = 0, time.perf_counter()
    bank = answers(options.section, options.exercise)
    for answer in bank:
        for seed in seeds(answer.exercise):
            verdict = judge_answer(answer, reference, seed)
            problems = complaints(answer, verdict)
            if problems:
                bad += 1
                print(f"--- {answer.exercise} / {answer.name} (seed {seed})", *problems, sep="\n")
                break
        else:
            if options.exercise:
                print(f"{'right' if answer.right else 'wrong'}  {answer.name}")
                print("\n".join("       " + line for line in message.text(verdict).splitlines()))
    print(f"{len(bank)} answers, {bad} misjudged, {time.perf_counter() - started:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    from grading import bank  # the module that the answers register with, not this copy of it

    sys.exit(bank.main())
