"""A learner's own progress: tries, best points, hints opened. Kept in one small file per section."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_utils.files import atomic_write_text

__all__ = ["Record", "load", "progress_folder", "save"]

MAX_FINGERPRINTS = 50


@dataclass
class Record:
    """What is remembered of one exercise.

    Attributes
    ----------
    tries : int
        Checks that were run.
    best : float
        The most points a check has shown.
    last : float
        The points of the newest check.
    kind : str
        The newest verdict in words.
    hints : int
        Hints that were opened.
    failed : list of str
        Fingerprints of different wrong answers: the effort that opens hints.
    """

    tries: int = 0
    best: float = 0.0
    last: float = 0.0
    kind: str = "not started"
    hints: int = 0
    failed: list[str] = field(default_factory=list)


def progress_folder() -> Path:
    """Where progress is kept: ``COURSE_PROGRESS``, else ``.progress`` beside the ``notebooks`` folder, else in the home."""
    if os.environ.get("COURSE_PROGRESS"):
        return Path(os.environ["COURSE_PROGRESS"])
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / "course_utils").is_dir() and (folder / "notebooks").is_dir():
            return folder / ".progress"
    return Path.home() / ".pytorch-foundations"


def load(section: str, folder: Path | None = None) -> dict[str, Record]:
    """The records of a section by exercise. An unreadable file is set aside, not lost, and counts as empty."""
    try:
        path = (folder or progress_folder()) / f"{section}.json"
        text = path.read_bytes()
    except (OSError, RuntimeError):
        return {}
    try:
        return {k: _record(v) for k, v in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        with suppress(OSError):
            path.replace(path.with_suffix(".unreadable"))
        return {}


def _record(plain: dict[str, Any]) -> Record:
    record = Record(**plain)
    for name, default in asdict(Record()).items():
        wanted = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(getattr(record, name), wanted):
            raise TypeError(f"{name} is no {type(default).__name__}")
    return record


def save(section: str, exercise_id: str, record: Record) -> bool:
    """Store one record. False where the folder cannot be written: progress is a comfort, never a reason to fail."""
    try:
        folder = progress_folder()
        folder.mkdir(parents=True, exist_ok=True)
        records = load(section)
        record.failed = record.failed[-MAX_FINGERPRINTS:]
        records[exercise_id] = record
        plain = {k: asdict(v) for k, v in records.items()}
        atomic_write_text(folder / f"{section}.json", json.dumps(plain, indent=1))
    except (OSError, RuntimeError):  # RuntimeError: not even a home
        return False
    return True
