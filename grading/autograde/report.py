"""What an instructor reads after a run: one table, ``grading/summary.csv`` and ``grading/flags.csv``."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path

from course_utils.files import atomic_write_text
from grading.autograde.rescue import printable
from grading.autograde.task import GRADED, Result
from grading.spreadsheet import to_csv

__all__ = ["summary", "write_reports"]

FEW = 40  # so many submissions are all shown; of more, those that have something to say


def _points(result: Result) -> float | None:
    return round(sum(result.points.values()), 6) if result.status == GRADED else None


def _seconds(results: list[Result]) -> float:
    return sum(r.seconds for r in results)


def summary(results: list[Result], elsewhere: Iterable[str] = (), run: str | None = None) -> str:
    """The table.

    Parameters
    ----------
    results : list of Result
    elsewhere : iterable of str
        What lies in the folder of submissions and belongs to no section.
    run : str, optional
        This run: the results of earlier ones are counted apart.
    """
    graded = [r for r in results if r.status == GRADED]
    rest = [r for r in results if r.status != GRADED]
    flagged = [r for r in results if r.flags]
    shown = results if len(results) <= FEW else [r for r in results if r.status != GRADED or r.flags or r.notes]
    width = shutil.get_terminal_size((120, 24)).columns
    names = max([len(r.student) for r in shown], default=7)
    sections = max([len(r.assignment) for r in shown], default=7)
    names, sections = min(max(names, 7), 40), max(sections, 7)  # 100 columns at most
    lines = []
    if shown:
        head = f"{'student':<{names}}  {'section':<{sections}}  {'state':<12}  {'points':>6}  {'seconds':>7}"
        lines += [head, "-" * len(head)]
    for r in sorted(shown, key=lambda r: (r.assignment, r.student)):
        points = _points(r)
        shown_points = "-" if points is None else f"{round(points, 2):g}"
        lines.append(
            f"{printable(r.student, names):<{names}}  {r.assignment:<{sections}}  {r.status:<12}  {shown_points:>6}  {r.seconds:>7.2f}"
        )
        said = [f"not gradable: {r.why}"] if r.status != GRADED else []
        said += [f"look at it: {f}" for f in r.flags] + list(r.notes)
        for text in said:
            lines += textwrap.wrap(text, max(60, width - 4), initial_indent="  · ", subsequent_indent="    ")
    for text in elsewhere:
        lines += textwrap.wrap(text, max(60, width - 4), initial_indent="! ", subsequent_indent="  ")
    lines.append("")
    lines.append(f"{len(graded)} graded, {len(rest)} not gradable, {len(flagged)} to look at")
    now = [r for r in results if run in (None, r.run)]
    lines.append(f"In this run: {len(now)} of these, {_seconds(now):.1f} s of grading.")
    if before := [r for r in results if run not in (None, r.run)]:
        lines[-1] += f" Before it: {len(before)}, {_seconds(before):.1f} s."
    if len(shown) < len(results):
        lines.append(f"{len(results) - len(shown)} graded without anything to say are in grading/summary.csv alone.")
    to_read = sum(len(r.to_read) for r in graded)
    if to_read:
        lines.append(f"Answers in words: {to_read}. They wait for a person's points, see docs/manual-grading.md.")
    if rest:
        lines.append("Not gradable is not 0: these have no mark. `make autograde ARGS=--resume` tries them again.")
    return "\n".join(lines)


def write_reports(results: list[Result], folder: Path) -> list[Path]:
    """Write ``summary.csv`` and ``flags.csv``; their places."""
    ordered = sorted(results, key=lambda r: (r.assignment, r.student))
    table = [["student", "section", "state", "why", "points", "seconds", "machine", "to look at", "to read", "notes"]]
    flags = [["student", "section", "what"]]
    for r in ordered:
        table.append(
            [
                r.student,
                r.assignment,
                r.status,
                r.why,
                _points(r),
                round(r.seconds, 2),
                r.where,
                "; ".join(r.flags),
                "; ".join(r.to_read),
                "; ".join(r.notes),
            ]
        )
        flags += [[r.student, r.assignment, flag] for flag in r.flags]
    written = []
    for name, rows in (("summary.csv", table), ("flags.csv", flags)):
        atomic_write_text(folder / name, to_csv(rows))
        written.append(folder / name)
    return written
