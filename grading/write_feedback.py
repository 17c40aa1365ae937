"""Feedback pages: nbgrader writes those that are missing, and anew those whose marks or comments have changed since.

    python -m grading.write_feedback 01_tensor_costs [--student ann]      `make feedback`; the options are nbgrader's

nbgrader writes a page anew where the submission was graded again, and does not look at what a person changed in
formgrader afterwards. So each page has a file beside it that says which marks it shows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory

from course_utils.files import atomic_write_text
from grading.settings import load_config

__all__ = ["main"]

SHOWN = ".marks"  # in a page's folder: the digest of what it shows


def _digest(submission: SubmittedAssignment) -> str:
    """Of every mark and comment of a submission."""
    shown = []
    for notebook in submission.notebooks:
        shown.append([notebook.name, notebook.late_submission_penalty])
        for g in sorted(notebook.grades, key=lambda g: g.name):
            shown.append([g.name, g.auto_score, g.manual_score, g.extra_credit, bool(g.needs_manual_grade)])
        for c in sorted(notebook.comments, key=lambda c: c.name):
            shown.append([c.name, c.auto_comment, c.manual_comment])
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


@contextmanager
def _set_aside(folders: list[Path], within: Path) -> Iterator[None]:
    """Folders that nbgrader is to write anew; one that it has not written is back in its place at the end."""
    if not folders:
        yield
        return
    with tempfile.TemporaryDirectory(prefix=".changed-", dir=within) as aside:
        kept = [Path(aside, str(n)) for n in range(len(folders))]
        try:
            for folder, place in zip(folders, kept, strict=True):
                os.replace(folder, place)
            yield
        finally:
            for folder, place in zip(folders, kept, strict=True):
                if place.exists() and not folder.exists():
                    shutil.move(place, folder)


def main(argv: list[str] | None = None) -> int:
    """Write the pages; the exit status is nbgrader's."""
    parser = argparse.ArgumentParser(prog="python -m grading.write_feedback", description="Write the feedback pages.")
    parser.add_argument("assignment", nargs="?", default="*", help="a section, such as 01_tensor_costs; by default all")
    parser.add_argument("--student", default="*", help="a student's id; * stands for anything")
    options, others = parser.parse_known_args(argv)
    course = CourseDirectory(config=load_config())
    pages = Path(course.root, course.feedback_directory)
    digests: dict[Path, str] = {}
    with Gradebook(course.db_url, course.course_id) as gradebook:
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                if fnmatchcase(assignment.name, options.assignment) and fnmatchcase(
                    submission.student_id, options.student
                ):
                    digests[pages / submission.student_id / assignment.name] = _digest(submission)
    changed = [p for p, digest in digests.items() if p.is_dir() and _shown(p) != digest]
    command = [sys.executable, "-m", "nbgrader", "generate_feedback", options.assignment, "--student", options.student]
    with _set_aside(changed, pages):
        status = subprocess.run([*command, *others], check=False).returncode
        for folder in (p for p in digests if p.is_dir() and (p in changed or not (p / SHOWN).exists())):
            atomic_write_text(folder / SHOWN, digests[folder])
    return status


def _shown(folder: Path) -> str:
    try:
        return (folder / SHOWN).read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
