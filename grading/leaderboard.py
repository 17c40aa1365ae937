"""A class's leaderboard: the accuracies that the judge has written into the graded notebooks.

    python -m grading.leaderboard [--exercise train_cifar_mini] [--to leaderboard.csv] [--anonymous]

Reads ``grading/autograded/STUDENT/SECTION/NOTEBOOK.ipynb``, where the outputs of graded cells are the judge's own, and
writes CSV: rank, student, accuracy, points. Equal accuracies share a rank.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.files import atomic_write_text
from course_utils.observe.plain import SCORE_MIME
from grading.source import ROOT

__all__ = ["Row", "leaderboard", "main", "to_csv"]


@dataclass(frozen=True)
class Row:
    """One student's place."""

    rank: int
    student: str
    accuracy: float
    points: float


def leaderboard(exercise: str, folder: Path) -> list[Row]:
    """The students whose answer to ``exercise`` was scored, best first; equal accuracies in the order of their names.

    A notebook that cannot be read is left out, with a line on stderr.
    """
    found = []
    for path in sorted(folder.glob("*/*/*.ipynb")):
        student = path.relative_to(folder).parts[0]
        try:
            notebook = nbformat.read(path, as_version=4)
        except Exception as error:  # nbformat raises many kinds for a broken file
            print(f"left out: {path}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found += [(accuracy, points, student) for accuracy, points in _scores(notebook, exercise)]
    found.sort(key=lambda f: (-f[0], f[2]))
    ranks = {accuracy: rank for rank, (accuracy, _, _) in reversed(list(enumerate(found, 1)))}
    return [Row(ranks[accuracy], student, accuracy, points) for accuracy, points, student in found]


def _scores(notebook: NotebookNode, exercise: str) -> list[tuple[float, float]]:
    """Accuracy and points from the cell that nbgrader knows as this exercise's check, and from no other."""
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code" or not mark.get("grade") or mark.get("grade_id") != exercise:
            continue
        scored = [o.data[SCORE_MIME] for o in cell.outputs if SCORE_MIME in o.get("data", {})]
        points = [o.data.get("text/plain", "") for o in cell.outputs if o.output_type == "execute_result"]
        if scored and points:
            return [(float(scored[0]["accuracy"]), float(points[0]))]
    return []


def to_csv(rows: list[Row], anonymous: bool = False) -> str:
    """The rows as CSV; ``anonymous`` leaves the names out, for the class to see."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", *([] if anonymous else ["student"]), "accuracy", "points"])
    for row in rows:
        writer.writerow(
            [row.rank, *([] if anonymous else [row.student]), f"{100 * row.accuracy:.2f}", f"{row.points:g}"]
        )
    return text.getvalue()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.leaderboard", description="Export a class's leaderboard.")
    parser.add_argument("--exercise", default="train_cifar_mini")
    parser.add_argument("--folder", type=Path, default=ROOT / "grading" / "autograded")
    parser.add_argument("--to", type=Path, help="a CSV file; by default it is printed")
    parser.add_argument("--anonymous", action="store_true", help="without names")
    options = parser.parse_args(argv)
    rows = leaderboard(options.exercise, options.folder)
    if not rows:
        print(
            f"no graded answer to {options.exercise} in {options.folder}: run `make autograde` first", file=sys.stderr
        )
        return 1
    text = to_csv(rows, options.anonymous)
    if options.to:
        atomic_write_text(options.to, text)
        print(f"{len(rows)} students: {options.to}")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
