"""Answers that are alike: ``grading/similarity.html`` and ``grading/similarity.csv``, for a person to read.

    python -m grading.similarity                                        all sections in grading/submitted/
    python -m grading.similarity --assignment 01_tensor_costs --threshold 0.9 --top 20

It reads code as text and executes nothing. A likeness proves nothing and costs nobody a point.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from nbgrader.coursedir import CourseDirectory
from tqdm import tqdm

from course_utils.files import atomic_write_text
from course_utils.student.cells import restore
from course_utils.student.released import find
from grading.autograde.intake import hand_in
from grading.autograde.rescue import printable, rescue
from grading.settings import load_config
from grading.similarity.known import known
from grading.similarity.page import page
from grading.similarity.pairs import Group, groups
from grading.source import ROOT, Section, SourceError, sections
from grading.spreadsheet import to_csv

__all__ = ["main", "read_answers"]

GRADING = ROOT / "grading"


def read_answers(section: Section, submitted: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The code of each exercise and student, as the autograder reads it, and the students whose notebook nobody can read."""
    released = find(section.assignment).section.cells
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    unread = []
    for folder in sorted(submitted.glob(f"[!.]*/{section.assignment}")):
        student = folder.parent.name
        if not folder.is_dir():
            continue
        rescued = rescue(hand_in(folder, section.name, set(released)).notebook)
        if rescued.unreadable:
            unread.append(student)
            continue
        for cell in restore(rescued.notebook.cells, released)[0]:
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            if cell.cell_type == "code" and name.startswith("answer-"):
                answers[name.removeprefix("answer-")][student] = cell.source
    return dict(answers), unread


def _rows(found: Iterable[Group]) -> list[list[object]]:
    rows: list[list[object]] = [["group", "exercise", "student", "nearest", "likeness", "surprise"]]
    for number, group in enumerate(found, 1):
        for m in group.members:
            rows.append([number, group.exercise, m.student, m.nearest, round(m.likeness, 3), round(m.surprise, 1)])
    return rows


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def main(argv: list[str] | None = None) -> int:
    """Compare. Returns 0, or 2 where there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m grading.similarity", description="List answers that are alike.")
    parser.add_argument("--assignment", help="a section, such as 01_tensor_costs; by default all")
    parser.add_argument(
        "--threshold", type=_share, default=0.85, help="the least likeness, 0 to 1 (default: %(default)s)"
    )
    parser.add_argument(
        "--top", type=int, default=50, help="groups on the page; the table has all (default: %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=GRADING, help="the folder to write to (default: grading/)")
    options = parser.parse_args(argv)
    try:
        folders = CourseDirectory(config=load_config())
        submitted = Path(folders.root, folders.submitted_directory)
        if not submitted.is_dir():
            raise SourceError(f"{submitted} is missing: run `make collect` first")
        answers: dict[str, dict[str, str]] = {}
        found: list[Group] = []
        students: set[str] = set()
        for section in sections(options.assignment):
            here, unread = read_answers(section, submitted)
            for student in unread:
                print(f"left out  {printable(student)}, {section.assignment}: nobody can read the notebook")
            nobodys = known(section)
            for exercise, code in tqdm(here.items(), desc=section.assignment, disable=None, file=sys.stderr):
                found += groups(exercise, code, nobodys[exercise], options.threshold)
                students |= code.keys()
            answers |= here
        if not answers:
            raise SourceError(f"no notebook in {submitted} can be compared")
        found.sort(key=lambda g: (-g.surprise, g.exercise))
        head = f"{len(students)} students, {len(answers)} exercises; likeness of at least {options.threshold:.0%}."
        written = {
            "similarity.html": page(found, answers, head, options.top),
            "similarity.csv": to_csv(_rows(found)),
        }
        for name, text in written.items():
            atomic_write_text(options.to / name, text)
    except (SourceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{head} Groups of answers that are alike: {len(found)}. This proves nothing; read them.")
    for name in written:
        print(f"written: {os.path.relpath(options.to / name)}")
    return 0
