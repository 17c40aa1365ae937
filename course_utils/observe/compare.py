"""Compare the behaviour of an answer with the reference's, and decide the points.

The rule, in three sentences. A fact without a share is essential: without it the answer earns nothing. A fact with a
share costs its share, once, in however many cases it fails. An answer that does not get through all cases earns nothing.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from course_utils.observe.clues import find_clue
from course_utils.observe.plain import Fact, Spec, decode_array
from course_utils.observe.scores import accuracy, least, percent

__all__ = ["Behaviour", "Ended", "Finding", "Kind", "Verdict", "agrees", "compare", "skipped"]


class Kind(enum.Enum):
    """What a verdict says; the value is the word that people read."""

    RIGHT = "right"
    WASTEFUL = "right but wasteful"
    PARTLY = "partly right"
    WRONG_VALUE = "wrong value"
    WRONG_FORM = "wrong type or shape"
    CRASHED = "crashed"
    NAME_MISSING = "name missing"
    NOT_STARTED = "not started"
    SKIPPED = "skipped"
    NOT_GRADABLE = "not gradable"


@dataclass(frozen=True)
class Ended:
    """Why an observation ended before its last fact.

    Attributes
    ----------
    kind : str
        ``not started``, ``crashed`` (in the answer), ``stopped`` (the observer could not go on with what it got),
        ``skipped`` (this machine cannot show it) or ``machine`` (it is too short of something just now).
    error, message : str
        Class and first line of the exception.
    line : str
        The student's own line, ``3: return x.view(-1)``, or empty.
    case : int
        The case in which it happened.
    """

    kind: str
    error: str = ""
    message: str = ""
    line: str = ""
    case: int = 0

    @classmethod
    def from_plain(cls, data: Any) -> Ended | None:
        if not isinstance(data, dict):
            return None
        text = {k: v[:500] for k in ("kind", "error", "message", "line") if isinstance(v := data.get(k), str)}
        if text.get("kind") not in ("not started", "crashed", "stopped", "skipped", "machine"):
            text["kind"] = "crashed"
        case = data.get("case", 0)
        return cls(**text, case=case if type(case) is int else 0)


@dataclass(frozen=True)
class Behaviour:
    """The facts of one run of an observer, in order."""

    exercise: str
    facts: tuple[Fact, ...]
    ended: Ended | None = None


@dataclass(frozen=True)
class Finding:
    """One fact, judged. ``cases`` are the cases in which it failed; texts belong to the first of them.

    ``score`` is the share of right predictions, where the fact is predictions.
    """

    name: str
    ok: bool
    spec: Spec
    expected: str = ""
    got: str = ""
    why: str = ""
    fix: str = ""
    cases: tuple[int, ...] = ()
    seen: bool = True
    score: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What an answer earns, and why. ``flags`` are for the instructor's eyes: what looks like an attempt on the grader."""

    exercise: str
    kind: Kind
    points: float
    max_points: float
    findings: tuple[Finding, ...] = ()
    ended: Ended | None = None
    remarks: tuple[str, ...] = ()
    detail: str = ""
    flags: tuple[str, ...] = ()

    @property
    def score(self) -> float | None:
        """The share of right predictions, where the exercise asks for predictions and got some."""
        return next((f.score for f in self.findings if f.score is not None), None)

    @property
    def full(self) -> bool:
        return self.kind in (Kind.RIGHT, Kind.SKIPPED)

    @property
    def first(self) -> Finding | None:
        """The finding to talk about: the first essential fact that was seen to fail, else the first that fails."""
        failed = [f for f in self.findings if not f.ok]
        seen = [f for f in failed if f.seen]
        essential = [f for f in seen if f.spec.share is None]
        return (essential or seen or failed or [None])[0]


def skipped(exercise: str, ended: Ended, max_points: float) -> Verdict:
    """Nothing could be observed on this machine, and it costs nothing."""
    return Verdict(exercise, Kind.SKIPPED, max_points, max_points, ended=ended, detail=ended.message)


def compare(expected: Behaviour, got: list[tuple[str, Any]], ended: Ended | None, max_points: float) -> Verdict:
    """Judge an answer.

    Parameters
    ----------
    expected : Behaviour
        The reference's. Names, order, tolerances, shares and texts come from here alone.
    got : list of (name, value)
        What the observer wrote down about the answer. Taken as values; the names only tell where the
        observation left the expected path.
    ended : Ended or None
        Why the observation of the answer ended early, if it did.
    max_points : float
        Full marks.
    """
    if expected.ended is not None and expected.ended.kind == "skipped":
        return skipped(expected.exercise, expected.ended, max_points)
    if ended is not None and ended.kind == "not started" and not got:
        return Verdict(expected.exercise, Kind.NOT_STARTED, 0.0, max_points, ended=ended)
    if ended is not None and ended.kind == "machine":
        return Verdict(expected.exercise, Kind.NOT_GRADABLE, 0.0, max_points, ended=ended, detail=ended.message)
    judged: dict[str, Finding] = {}
    for position, fact in enumerate(expected.facts):
        seen = position < len(got) and got[position][0] == fact.name
        finding = _judge(fact, got[position][1]) if seen else _unseen(fact, ended)
        known = judged.get(fact.name)
        if known is None:
            judged[fact.name] = finding
        elif not finding.ok:
            first = finding if known.ok else known
            cases = tuple(dict.fromkeys((*known.cases, fact.case)))
            judged[fact.name] = replace(first, ok=False, cases=cases)
    findings = tuple(judged.values())
    failed = [f for f in findings if not f.ok]
    too_many = len(got) > len(expected.facts)
    essential = [f for f in failed if f.spec.share is None]
    wrong = [f for f in essential if f.seen]
    if ended is not None and not wrong:
        # A part that failed before the crash is not what the answer has to hear first.
        kind, share = Kind.CRASHED, 0.0
    elif essential or too_many:
        kind, share = (Kind.WRONG_FORM if wrong and wrong[0].spec.form else Kind.WRONG_VALUE), 0.0
    elif failed:
        share = max(0.0, 1.0 - sum(f.spec.share or 0.0 for f in failed))
        kind = Kind.WASTEFUL if all(f.spec.at_most for f in failed) else Kind.PARTLY
        if share < 1e-9:
            kind = Kind.WRONG_VALUE
    else:
        kind, share = Kind.RIGHT, 1.0
    points = max_points if kind is Kind.RIGHT else round(max_points * share, 2)
    return Verdict(expected.exercise, kind, points, max_points, findings, ended)


_SECRET = "not told here: run it and look"


def _unseen(fact: Fact, ended: Ended | None) -> Finding:
    got = f"not reached: {ended.error}" if ended else "not observed"
    return Finding(
        fact.name,
        False,
        fact.spec,
        _SECRET if fact.spec.secret or fact.spec.labels else _text(fact.value),
        got,
        cases=(fact.case,),
        seen=False,
    )


def _judge(fact: Fact, value: Any) -> Finding:
    spec = fact.spec
    if spec.labels:
        return _judge_predictions(fact, value)
    difference = _difference(fact.value, value, spec)
    if difference is None:
        return Finding(fact.name, True, spec, _text(fact.value), _text(value))
    expected, got = difference
    if spec.secret:
        expected = _SECRET
    why, fix = spec.why, spec.fix
    if spec.form and value == "None":
        why, fix = "The function returned nothing.", "Does every way through it end in a return?"
    if spec.clues:
        better = find_clue(spec.clues, _as_array(fact.value), _as_array(value))
        if better:
            why, fix = better
    return Finding(fact.name, False, spec, expected, got, why, fix, (fact.case,))


def _judge_predictions(fact: Fact, value: Any) -> Finding:
    spec, needed = fact.spec, least(fact.spec)
    expected = f"at least {percent(needed)} right"
    score = accuracy(spec.labels, value)
    if score is None:
        return Finding(
            fact.name, False, spec, expected, f"no class numbers: {_text(value)}", spec.why, spec.fix, (fact.case,)
        )
    ok = score >= needed
    cases = () if ok else (fact.case,)
    return Finding(fact.name, ok, spec, expected, f"{percent(score)} right", spec.why, spec.fix, cases, score=score)


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, dict) and "array" in value:
        array = decode_array(value)
        return np.array(np.nan) if array is None else array
    try:
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return np.array(np.nan)


# Forms that are as good: what NumPy returns where Python has a type of the same name and range.
_NUMBERS = {"numpy.int64": "int", "numpy.float64": "float", "numpy.bool": "bool"}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _close(expected: float, got: float, spec: Spec) -> bool:
    """NumPy's rule for two numbers of Python's: exact for integers of any size, NaN equals NaN."""
    if got == expected or (got != got and expected != expected):
        return True
    try:
        finite = math.isfinite(got) and math.isfinite(expected)
        return finite and abs(got - expected) <= spec.atol + spec.rtol * abs(expected)
    except OverflowError:
        return False


_SPECIAL = {"raises", "array", "object", "numpy"}  # keys of values that are no tables


def agrees(expected: Any, got: Any, spec: Spec) -> bool:
    """Do two plain values agree under a spec?"""
    return _difference(expected, got, spec) is None


def _difference(expected: Any, got: Any, spec: Spec) -> tuple[str, str] | None:
    """None where the values agree, else two texts for ``expected`` and ``got``."""
    if spec.at_most and _is_number(expected):
        limit = expected * (1 + spec.slack) + spec.allowance
        if _is_number(got) and got <= limit:
            return None
        return f"at most {_number(int(limit) if type(expected) is int else limit)}", _text(got)
    if isinstance(expected, dict) and isinstance(got, dict):
        if "raises" in expected and "raises" in got:
            same = spec.any_error or expected["raises"] == got["raises"]
            return None if same else (_text(expected), _text(got))
        if "array" in expected and "array" in got:
            return _array_difference(expected, got, spec)
        if expected.keys() == got.keys():
            for key in expected:
                inner = _difference(expected[key], got[key], spec)
                if inner:
                    return f"{key}: {inner[0]}", f"{key}: {inner[1]}"
            return None
        if not _SPECIAL & {*expected, *got}:
            # Two tables with other keys: the one that is missing, or too many, says more than both in full.
            for key in expected:
                if key not in got:
                    return f"{key}: {_text(expected[key])}", f"nothing for {key}"
            key = next(k for k in got if k not in expected)
            return f"nothing for {key}", f"{key}: {_text(got[key])}"
        return _text(expected), _text(got)
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{len(expected)} items: {_text(expected)}", f"{len(got)} items: {_text(got)}"
        for index, (a, b) in enumerate(zip(expected, got, strict=True)):
            inner = _difference(a, b, spec)
            if inner:
                return f"at [{index}] {inner[0]}", f"at [{index}] {inner[1]}"
        return None
    if isinstance(got, dict) and "numpy" in got:
        # The number counts here, not who made it: an observer that cares asks for the form.
        got = got.get("value")
    if _is_number(expected) and _is_number(got):
        tolerant = spec.atol or spec.rtol
        if not tolerant and type(expected) is not type(got):
            return f"{_text(expected)} ({type(expected).__name__})", f"{_text(got)} ({type(got).__name__})"
        return None if _close(expected, got, spec) else (_text(expected), _text(got))
    if type(expected) is type(got) and (expected == got or (spec.form and expected == _NUMBERS.get(got))):
        return None
    return _text(expected), _text(got)


def _form(value: dict) -> str:
    shape = value.get("shape")
    return f"{value.get('kind', 'array')} {value['array']} {tuple(shape) if isinstance(shape, list) else shape}"


def _array_difference(expected: dict, got: dict, spec: Spec) -> tuple[str, str] | None:
    if _form(expected) != _form(got):
        return _form(expected), _form(got)
    a, b = decode_array(expected), decode_array(got)
    if a is None:
        raise ValueError("the reference's array is too large to record, or holds no numbers: observe another")
    if b is None or a.shape != b.shape:
        return _form(expected), "an array that cannot be read"
    with np.errstate(all="ignore"):
        if spec.atol or spec.rtol:
            close = np.isclose(b, a, rtol=spec.rtol, atol=spec.atol, equal_nan=True)
        else:  # isclose would compare large integers as floats
            close = (a == b) | ((a != a) & (b != b))
        if close.all():
            return None
        index = tuple(int(i) for i in np.argwhere(~close)[0])
        worst = np.abs(b.astype(complex) - a.astype(complex))
    finite = worst[np.isfinite(worst)]
    largest = f"; largest error {finite.max():.3g}" if finite.size else ""
    where = f"[{', '.join(map(str, index))}]" if index else "the value"
    share = f"{int((~close).sum())} of {close.size} differ"
    return f"{_number(a[index])} at {where}", f"{_number(b[index])}; {share}{largest}"


def _number(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}" if abs(int(value)) >= 10_000 else str(int(value))
    if isinstance(value, (float, np.floating)):
        whole = 10_000 <= abs(value) < 1e15 and float(value).is_integer()
        return f"{float(value):,.0f}" if whole else f"{float(value):.6g}"
    return str(value)


def _text(value: Any, depth: int = 0) -> str:
    """A short text for one plain value."""
    if depth > 5:
        return "..."
    if isinstance(value, dict):
        if "raises" in value:
            message = str(value.get("message", "")).split("\n")[0]
            return f"{value['raises']}" + (f": {message}" if message else "")
        if "array" in value:
            array = decode_array(value)
            return f"{_form(value)} {array.tolist()}" if array is not None and array.size <= 8 else _form(value)
        if "object" in value:
            return str(value["object"])
        if "numpy" in value:
            return f"numpy.{value['numpy']}({_text(value.get('value'), depth + 1)})"
        return "{" + ", ".join(f"{k}: {_text(v, depth + 1)}" for k, v in list(value.items())[:8]) + "}"
    if isinstance(value, list):
        more = ", ..." if len(value) > 12 else ""
        return "[" + ", ".join(_text(v, depth + 1) for v in value[:12]) + more + "]"
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)):
        return _number(value)
    return str(value)
