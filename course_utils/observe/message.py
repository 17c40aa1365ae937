"""A verdict in words: five short lines."""

from __future__ import annotations

import textwrap

from course_utils.observe.compare import Kind, Verdict
from course_utils.observe.errors import advice

__all__ = ["WIDTH", "lines", "one_line", "points_text", "text"]

WIDTH = 83  # nbgrader validate indents by 4 and cuts at 87


def points_text(verdict: Verdict) -> str:
    """``2 of 3 points``."""
    return f"{verdict.points:g} of {verdict.max_points:g} points"


def one_line(text: str, width: int) -> str:
    """A text cut to one line that every front end can show: no control characters, no lone surrogates."""
    line = " ".join(text[: 10 * width].split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= width else line[: width - 3] + "..."


def _cut(label: str, content: str) -> str:
    return f"{label:<9} {one_line(content, WIDTH - max(10, len(label) + 1))}"


def _head(verdict: Verdict) -> str:
    """Which exercise, fact and case, and the points. The case gives way where the line is too long, then the name."""
    end = f": {verdict.kind.value}, {points_text(verdict)}"
    first = verdict.first
    name, case = verdict.exercise, ""
    if first is not None and verdict.kind not in (Kind.CRASHED, Kind.RIGHT):
        name = f"{name}, {first.name}"
        case = f" (case {first.cases[0] + 1})" if len(first.cases) == 1 and first.cases[0] else ""
    if len(name + case + end) > WIDTH:
        case = ""
    return one_line(name, WIDTH - len(case + end)) + case + end


def lines(verdict: Verdict, hidden: bool = False) -> list[str]:
    """The message, one entry a line. ``hidden`` leaves out expected values: the cases are the instructor's."""
    first = verdict.first
    head = _head(verdict)
    if verdict.kind is Kind.RIGHT:
        return [head]
    if verdict.kind in (Kind.SKIPPED, Kind.NOT_GRADABLE):
        return [head, _cut("why:", verdict.detail)]
    if verdict.kind is Kind.NAME_MISSING:
        return [
            head,
            _cut("expected:", f"something called {verdict.exercise}"),
            _cut("got:", "no such name in this notebook"),
            _cut("why:", verdict.detail or "the cell that defines it was not run, failed, or uses another name"),
            _cut("try:", f"run the cell that defines {verdict.exercise}, and keep its name"),
        ]
    if verdict.kind is Kind.NOT_STARTED:
        return [
            head,
            _cut("why:", "the answer is still as it was handed out"),
            _cut("try:", f'write your answer above, check again; hint("{verdict.exercise}") helps'),
        ]
    if verdict.kind is Kind.CRASHED and verdict.ended is not None:
        ended = verdict.ended
        nowhere = "in no line of yours: in the call itself, or while the result was used"
        place = f"raised at line {ended.line}" if ended.line else nowhere
        fix = (
            advice(ended.error, ended.message, verdict.exercise) or f'call it by hand; hint("{verdict.exercise}") helps'
        )
        return [
            head,
            _cut("expected:", "a result"),
            _cut("got:", f"{ended.error}: {ended.message}"),
            _cut("why:", verdict.detail or place),
            _cut("try:", fix),
        ]
    if first is None:
        return [head, _cut("why:", verdict.detail or "the check saw more facts than the reference has")]
    expected = "not shown: graded on other inputs than the check's" if hidden else first.expected
    return [
        head,
        _cut("expected:", expected),
        _cut("got:", first.got),
        _cut("why:", first.why or "the reference behaves differently here"),
        _cut("try:", first.fix or f'hint("{verdict.exercise}")'),
    ]


def text(verdict: Verdict, hidden: bool = False) -> str:
    """The message and at most three remarks of at most two lines: their cure stands at the end."""
    rows = lines(verdict, hidden)
    indent = " " * 10
    for remark in verdict.remarks[:3]:
        line = one_line(remark, 2 * (WIDTH - len(indent)))
        rows += textwrap.wrap(line, WIDTH, initial_indent="note:     ", subsequent_indent=indent, max_lines=2)
    return "\n".join(rows)
