"""What a learner types: ``check``, ``hint`` and ``progress``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import Any

from course_utils import progress_store as store
from course_utils.devices import available_device
from course_utils.observe import card, message
from course_utils.observe.compare import Kind, Verdict, compare, skipped
from course_utils.observe.expected import public_behaviour, recorded_order
from course_utils.observe.registry import Exercise, all_exercises, find_exercise, public_seed
from course_utils.observe.run import observe

__all__ = ["CheckFailed", "check", "hint", "judge_public", "progress"]

_TRIES_PER_HINT = 1  # different wrong answers that open the next hint


class Brief(Exception):
    """An error that draws its own traceback: the message, no source."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class UnknownExercise(Brief, LookupError):
    """There is no exercise, or no section, of that name."""


class CheckFailed(Brief):
    """Raised by ``check`` for everything but full marks."""

    def __init__(self, verdict: Verdict, brief: bool) -> None:
        self.verdict = verdict
        head = message.lines(verdict)[0]
        super().__init__(f"{head}. The card above says more." if brief else message.text(verdict))


def check(answer: Any) -> None:
    """Compare your answer with what was asked.

    Parameters
    ----------
    answer : str or object
        The exercise's name, ``check("bgr_to_batch")``, or the thing itself, ``check(bgr_to_batch)``.

    Raises
    ------
    CheckFailed
        For anything but full marks; the card above the error says what was expected, what came, why and what to try.
    UnknownExercise
        If no exercise has that name.
    """
    namespace = _namespace()
    exercise, value, missing = _resolve(answer, namespace)
    if missing:
        verdict = Verdict(exercise.id, Kind.NAME_MISSING, 0.0, exercise.points)
    else:
        try:
            verdict = judge_public(exercise, value, remember=_interactive())
        except KeyboardInterrupt:
            # Without this the traceback would show the observer's source.
            raise Brief(f"{exercise.id}: interrupted while your answer was running; nothing was judged") from None
    if _interactive():
        _show(verdict)
    if not verdict.full:
        raise CheckFailed(verdict, brief=_interactive())


def judge_public(exercise: Exercise, answer: Any, remember: bool = False) -> Verdict:
    """Judge an answer on the public cases, against the reference's recorded behaviour."""
    seen = observe(exercise, answer, public_seed(exercise.id), available_device())
    if seen.ended is not None and seen.ended.kind == "skipped":
        verdict = skipped(exercise.id, seen.ended, exercise.points)
    else:
        expected = public_behaviour(exercise.section, exercise.id)
        verdict = compare(expected, _as_sent(seen.values()), seen.ended, exercise.points)
    verdict = Verdict(**{**vars(verdict), "remarks": seen.remarks})
    if seen.output.strip() and remember:
        print(seen.output, end="" if seen.output.endswith("\n") else "\n")
    if remember:
        _remember(exercise, verdict, seen.values())
    return verdict


def _as_sent(values: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Through JSON and back, as facts travel when grading, so that both ways judge the same data."""
    return [(name, value) for name, value in json.loads(json.dumps(values))]


# ------------------------------------------------------------------------------------------------ the notebook
def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _interactive() -> bool:
    """In a notebook that a person looks at; not while nbgrader validates or grades, nor in a plain script."""
    return _shell() is not None and "NBGRADER_EXECUTION" not in os.environ


def _namespace() -> dict[str, Any]:
    shell = _shell()
    if shell is not None:
        return shell.user_ns
    return sys._getframe(2).f_globals


def _resolve(answer: Any, namespace: dict[str, Any]) -> tuple[Exercise, Any, bool]:
    if isinstance(answer, str):
        exercise = _find(answer)
        return exercise, namespace.get(answer), answer not in namespace
    name = getattr(answer, "__name__", None)
    known = {e.id: e for e in all_exercises()}
    if isinstance(name, str) and name in known:
        return known[name], answer, False
    for exercise_id, exercise in known.items():
        if namespace.get(exercise_id) is answer and answer is not None:
            return exercise, answer, False
    raise TypeError(f"check cannot tell which exercise this {type(answer).__name__} answers: give its name as a text.")


def _find(name: str) -> Exercise:
    try:
        return find_exercise(name)
    except KeyError as error:
        raise UnknownExercise(error.args[0]) from None


def _show(verdict: Verdict) -> None:
    from IPython.display import publish_display_data

    publish_display_data({"text/html": card.html(verdict), "text/plain": message.text(verdict)})


def _remember(exercise: Exercise, verdict: Verdict, values: list[tuple[str, Any]]) -> None:
    record = store.load(exercise.section).get(exercise.id, store.Record())
    record.tries += 1
    record.last, record.kind = verdict.points, verdict.kind.value
    record.best = max(record.best, verdict.points)
    if not verdict.full and verdict.kind is not Kind.NOT_STARTED:
        mark = _fingerprint(verdict, values)
        if mark not in record.failed:
            record.failed.append(mark)
    store.save(exercise.section, exercise.id, record)


def _fingerprint(verdict: Verdict, values: list[tuple[str, Any]]) -> str:
    """Equal for equal answers: without costs, of which some differ by a few bytes from run to run, and addresses."""
    costs = {f.name for f in verdict.findings if f.spec.at_most}
    ended = verdict.ended and (verdict.ended.error, verdict.ended.message, verdict.ended.line)
    seen = json.dumps([[v for v in values if v[0] not in costs], ended], sort_keys=True)
    return hashlib.sha1(re.sub(r"0x[0-9a-f]+", "", seen).encode()).hexdigest()[:12]


# ------------------------------------------------------------------------------------------------ hints, progress
class _Shown:
    """A text with an HTML form, for whatever front end there is."""

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def _display(shown: _Shown) -> None:
    """Show it now, wherever in the cell the call stands."""
    if _shell() is None:
        print(shown)
        return
    from IPython.display import publish_display_data

    publish_display_data({"text/html": shown._repr_html_(), "text/plain": repr(shown)})


def hint(exercise_id: str, level: int | None = None) -> None:
    """Open the hints of an exercise, one level at a time.

    The first is free. Each further one opens after one more *different* wrong answer, so that a hint never takes
    away a thought that you could have had yourself.

    Parameters
    ----------
    exercise_id : str
    level : int, optional
        Read an opened hint again; by default the next one opens.
    """
    from html import escape

    exercise = _find(exercise_id if isinstance(exercise_id, str) else getattr(exercise_id, "__name__", ""))
    record = store.load(exercise.section).get(exercise.id, store.Record())
    allowed = min(len(exercise.hints), 1 + len(record.failed) // _TRIES_PER_HINT)
    wanted = level if level is not None else min(record.hints + 1, allowed)
    shown = max(0, min(wanted, allowed))
    rows = [f"Hint {i + 1} of {len(exercise.hints)}: {h}" for i, h in enumerate(exercise.hints[:shown])]
    if shown < len(exercise.hints):
        closed = wanted > allowed or shown == allowed
        rows.append(
            "The next hint opens after one more different try." if closed else "Call hint again for the next one."
        )
    if not exercise.hints:
        rows = ["This exercise has no hints: read its text again, and the part of the notebook above it."]
    if shown > record.hints:
        record.hints = shown
        store.save(exercise.section, exercise.id, record)
    body = "".join(f"<p>{escape(r)}</p>" for r in rows)
    head = exercise.id if shown or not exercise.hints else f"{exercise.id}: no hint yet"
    _display(_Shown("\n".join([head, *rows]), f"<div><b>{escape(head)}</b>{body}</div>"))


def progress(section: str | None = None) -> _Shown:
    """Where you stand: one row per exercise, with points, tries and minutes. The newest check counts, and the best is kept.

    Without a section all are shown, each below a row with its own sum.
    """
    from html import escape

    from course_utils.graded import being_graded
    from course_utils.student.released import sections

    if being_graded():  # no check runs there: everything would read "not started", beside the mark
        text = "In the graded copy progress is not shown: the marks stand at the top."
        return _Shown(text, f"<p>{text}</p>")
    head = ("exercise", "state", "points", "best", "tries", "hints", "minutes", "level")
    rows: list[tuple[str, ...]] = []
    earned = total = 0.0
    order = {name: place for place, name in enumerate(recorded_order())}
    listed = all_exercises(section)
    if not listed:
        there = ", ".join(sorted({e.section for e in all_exercises()}))
        raise UnknownExercise(f"there is no section {section!r}; there are: {there}")
    titles = {s.name: s.assignment for s in sections()}
    groups: dict[str, list[Exercise]] = {}
    for item in sorted(listed, key=lambda e: order.get(e.id, len(order))):
        groups.setdefault(item.section, []).append(item)
    sums: list[int] = []  # which rows are sums
    for name, items in groups.items():
        records = store.load(name)
        below, got = [], 0.0
        for item in items:
            record = records.get(item.id, store.Record())
            got += record.last
            below.append(_row(item, record))
        of = sum(item.points for item in items)
        if len(groups) > 1:
            sums.append(len(rows))
            rows.append((titles.get(name, name), "", f"{got:g} / {of:g}", "", "", "", "", ""))
        rows += below
        earned, total = earned + got, total + of
    sums.append(len(rows))
    rows.append(("total", "", f"{earned:g} / {total:g}", "", "", "", "", ""))
    words = sum(sum(s.reflections.values()) for s in sections() if s.name in groups)
    if words:
        rows.append(("in your own words", "a person reads it", f"? / {words:g}", "", "", "", "", ""))
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    plain = "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in [head, *rows])
    cells = lambda row, tag: "".join(f"<{tag} style='text-align: left'>{escape(c)}</{tag}>" for c in row)  # noqa: E731
    table = "".join(f"<tr>{cells(r, 'th' if at in sums else 'td')}</tr>" for at, r in enumerate(rows))
    return _Shown(plain, f"<table><tr>{cells(head, 'th')}</tr>{table}</table>")


def _row(item: Exercise, record: store.Record) -> tuple[str, ...]:
    """One exercise in the table of `progress`."""
    sign = "✓" if record.last >= item.points else ("◐" if record.last else ("✗" if record.tries else "○"))
    return (
        item.id,
        f"{sign} {record.kind}",
        f"{record.last:g} / {item.points:g}",
        f"{record.best:g}",
        str(record.tries),
        f"{record.hints} / {len(item.hints)}",
        str(item.minutes),
        "●" * item.difficulty + "○" * (3 - item.difficulty),
    )
