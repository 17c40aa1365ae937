"""What a student handed in, read from the folder of a submission, whatever state it is in.

Nothing outside the folder is read: links are named and left alone, and so is everything that is no plain file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.utils import parse_utc

from grading.autograde.rescue import printable, rescue

__all__ = ["IGNORED", "HandedIn", "hand_in"]

IGNORED = (".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback", "*.py", ".progress")  # see nbgrader_config.py
MAX_NOTEBOOK = 64 << 20  # bytes; the notebooks of this course have below 1 MB with every picture in them
MAX_FILE = 16 << 20
MAX_FILES = 64 << 20  # all files beside the notebook together
MAX_COUNT = 200
_TIMESTAMP = "timestamp.txt"


@dataclass(frozen=True)
class HandedIn:
    """One submission as plain data.

    Attributes
    ----------
    notebook : bytes or None
        The file that is taken as the notebook, as it is.
    files : dict
        The other plain files by their path inside the folder.
    timestamp : str or None
        What ``timestamp.txt`` says, where it is a time.
    notes : tuple of str
        What the instructor should know about the files.
    """

    notebook: bytes | None
    files: dict[str, bytes] = field(default_factory=dict)
    timestamp: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Changes with everything that can change the marks."""
        digest = hashlib.sha256(b"none" if self.notebook is None else b"some" + self.notebook)
        for name, data in sorted(self.files.items()):
            digest.update(f"\n{name!a} {len(data)}\n".encode() + data)
        digest.update(f"\n{self.timestamp}".encode())
        return digest.hexdigest()


def _plain_bytes(path: Path, most: int) -> bytes | None:
    """The content of a plain file; None for a link, a folder, a pipe, a file larger than ``most``, or an unreadable one."""
    try:
        # Without waiting: a named pipe would hang a plain open().
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        try:
            data = file.read(most + 1)
        except OSError:
            return None
    return data if len(data) <= most else None


def _strangers(folder: Path) -> dict[Path, str]:
    """Everything below a submission's folder that is not a plain file or folder, and what it is. Nothing is followed."""
    found: dict[Path, str] = {}
    for base, folders, files in os.walk(folder, followlinks=False):
        for name in [*folders, *files]:
            path = Path(base, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[path] = "a link"
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                found[path] = "neither a file nor a folder"
    return found


def hand_in(folder: Path, name: str, grade_ids: set[str]) -> HandedIn:
    """Read a submission.

    Parameters
    ----------
    folder : Path
        ``submitted/STUDENT/SECTION``.
    name : str
        The notebook's name as released, without ``.ipynb``.
    grade_ids : set of str
        The ids of its released cells: a notebook under another name is known by them.
    """
    notes: list[str] = []
    if folder.is_symlink() or folder.parent.is_symlink():
        return HandedIn(None, notes=("the folder is a link, which is not followed",))
    for path, what in _strangers(folder).items():
        notes.append(f"{_shown(path, folder)} is {what}; it is left out")
    notebook, taken = _notebook(folder, name, grade_ids, notes)
    files = _files(folder, taken, notes)
    timestamp = _timestamp(files.get(_TIMESTAMP), notes)
    if timestamp is None:
        files.pop(_TIMESTAMP, None)
    return HandedIn(notebook, files, timestamp, tuple(notes))


def _shown(path: Path, folder: Path) -> str:
    return printable(path.relative_to(folder), 80)


def _notebook(folder: Path, name: str, grade_ids: set[str], notes: list[str]) -> tuple[bytes | None, Path | None]:
    right = folder / f"{name}.ipynb"
    if right.is_file() and not right.is_symlink():
        data = _plain_bytes(right, MAX_NOTEBOOK)
        if data is None:
            notes.append(f"{right.name} cannot be read or has more than {MAX_NOTEBOOK >> 20} MB")
        elif data.strip():
            return data, right
    # Not there: under another name, with .txt or (1) behind it, one folder deeper. Known by its grade ids.
    best, found, path = 0, None, None
    for other in _plain_files(folder):
        if other == right or not _may_be_notebook(other):
            continue
        data = _plain_bytes(other, MAX_NOTEBOOK)
        if data is None or b'"cell_type"' not in data:
            continue
        ids = {c.metadata.get("nbgrader", {}).get("grade_id") for c in rescue(data).notebook.cells}
        if len(ids & grade_ids) > best:
            best, found, path = len(ids & grade_ids), data, other
    if path is not None:
        notes.append(f"{right.name} is missing or empty; {_shown(path, folder)} holds its exercises and is graded")
        return found, path
    if right.is_dir():
        notes.append(f"{right.name} is a folder")
    there = sorted(_shown(p, folder) for p in _plain_files(folder))[:5]
    notes.append(f"no notebook of this section was found; there is: {', '.join(there) or 'nothing'}")
    return (b"" if right.is_file() and not right.is_symlink() else None), None


def _may_be_notebook(path: Path) -> bool:
    return ".ipynb" in path.name.lower() or path.suffix.lower() in (".json", ".txt", "")


def _plain_files(folder: Path) -> list[Path]:
    found = []
    for base, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if not _ignored(f))
        found += [p for p in (Path(base, f) for f in sorted(files)) if p.is_file() and not p.is_symlink()]
    return found


def _ignored(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in IGNORED)


def _files(folder: Path, taken: Path | None, notes: list[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    size = 0
    for path in _plain_files(folder):
        if path.suffix == ".py":
            notes.append(f"{_shown(path, folder)} is left out: code belongs into the notebook")
        if path == taken or path.suffix == ".ipynb" or _ignored(path.name):
            continue
        data = _plain_bytes(path, MAX_FILE)
        if data is None or len(files) >= MAX_COUNT or size + len(data) > MAX_FILES:
            notes.append(f"{_shown(path, folder)} is left out: unreadable, too large, or one of too many")
            continue
        size += len(data)
        files[path.relative_to(folder).as_posix()] = data
    return files


def _timestamp(data: bytes | None, notes: list[str]) -> str | None:
    if data is None:
        return None
    text = data.decode("utf-8", errors="replace").strip()
    try:
        if text and parse_utc(text):
            return text
    except (ValueError, OverflowError, TypeError, AttributeError):
        pass
    notes.append(f"timestamp.txt is no time: {printable(text, 40)!r}")
    return None
