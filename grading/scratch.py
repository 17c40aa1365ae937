"""Scratch folders with an owner: what a grader that was killed has left behind, the next one clears away.

The owner holds a lock (flock) on its folder. The system lets go of it however the owner ends, and knows nothing of process
ids that were given out again, or that belong to another container. So a folder that nobody holds has no owner any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

try:
    import fcntl
except ImportError:  # no flock, and so no sweeping
    fcntl = None

__all__ = ["PREFIX", "Scratch", "claim", "sweep", "sweep_scratch"]

PREFIX = "grader-"


def claim(folder: str | os.PathLike[str]) -> int | None:
    """Hold a folder that was just made, until the handle is closed; None where a sweeper was quicker."""
    handle = None
    try:
        handle = os.open(folder, os.O_RDONLY)
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without such locks: nobody can sweep there either
        return handle
    if handle is not None:
        os.close(handle)
    return None


class Scratch:
    """A new folder in the system's temporary one, or in ``place``; removed by :meth:`close`, or by a later :func:`sweep`."""

    def __init__(self, place: str | None = None) -> None:
        self._handle = None
        while self._handle is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
            self._handle = claim(self.path)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep(places: Iterable[str], remove: Callable[[str], object]) -> None:
    """Remove the folders in ``places`` that are this user's and that nobody holds."""
    if fcntl is None:
        return
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as found:
            for entry in found:
                if entry.name.startswith(PREFIX):
                    _sweep_one(entry.path, remove)


def _sweep_one(path: str, remove: Callable[[str], object]) -> None:
    with contextlib.suppress(OSError):  # held, gone, or no business of ours
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
        finally:
            os.close(handle)


def sweep_scratch() -> None:
    """Clear away what killed graders have left in the temporary folders."""
    sweep({tempfile.gettempdir(), "/tmp"}, lambda path: shutil.rmtree(path, ignore_errors=True))
