"""Results of a run as files, ``grading/results/SECTION/STUDENT.json``: each is written whole or not at all.

A result is found again only for the same submission and the same reference. So a run that was ended at any moment goes
on where it stopped, and a submission that was replaced is graded anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from course_utils.files import atomic_write_text
from grading.autograde.intake import HandedIn
from grading.autograde.task import Result
from grading.source import ROOT

__all__ = ["RESULTS", "Store", "key_of"]

RESULTS = ROOT / "grading" / "results"
_FORMAT = 2


def key_of(handed_in: HandedIn, reference: str) -> str:
    """The key of a result: it changes with the submission's content, and with everything the reference depends on."""
    return hashlib.sha256(f"{handed_in.digest} {reference}".encode()).hexdigest()[:32]


class Store:
    """The results in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sweep(self) -> None:
        """Remove the drafts of a killed run. The caller has locked the folder."""
        for draft in self.folder.glob("**/.*.tmp"):
            draft.unlink(missing_ok=True)

    def _path(self, assignment: str, student: str) -> Path:
        return self.folder / assignment / f"{student}.json"

    def save(self, result: Result) -> None:
        """Raises OSError where the disk is full or the folder may not be written."""
        path = self._path(result.assignment, result.student)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, json.dumps({"format": _FORMAT, **result.to_plain()}))

    def load(self, assignment: str, student: str) -> Result | None:
        """The last result of a student, whatever it was made of; None where there is none that can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(self._path(assignment, student).read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.pop("format") == _FORMAT:
                return Result.from_plain(data)
        return None
