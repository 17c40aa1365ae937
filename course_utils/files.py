"""Writing files so that a broken run (a crash, Ctrl-C, a full disk) leaves what was there before.

Everything is written beside its target and renamed onto it: on one file system a rename happens at once or not at all.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no flock; unique temporary names still keep two runs apart.
    fcntl = None

__all__ = [
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "locked_folder",
    "replace_folder",
    "restore_folder",
]


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file, or leave it as it was. The folder must exist. Raises OSError."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes files that nobody else can read
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole UTF-8 text file with Unix line ends, or leave it as it was. Raises OSError."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as readable JSON, or leave the file as it was. Raises OSError, TypeError."""
    atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def locked_folder(folder: str | os.PathLike[str], waiting: Callable[[], object] = lambda: None) -> Iterator[bool]:
    """Let one process at a time into a block of code.

    The lock is the folder itself (flock), so nothing is left behind, and a process that dies lets go of it.

    Args:
        folder: an existing folder.
        waiting: called once if another process is inside and this one has to wait.

    Yields:
        True, or False where the system or the file system has no such lock.
    """
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except OSError:  # some network file systems
            locked = False
        yield locked
    finally:
        os.close(handle)


@contextmanager
def replace_folder(target: str | os.PathLike[str], alone: bool = False) -> Iterator[Path]:
    """Fill a new folder that takes the place of `target` when the block ends well; otherwise nothing changes.

    No file system renames a folder onto a full one, so the old folder steps aside for the moment between two renames.
    A run killed in that moment leaves it aside; the next run, and `restore_folder`, put it back.

    Args:
        target: the folder to make or to replace. Its parent must exist.
        alone: whether this process holds the lock of the parent folder. Only then may it clear away what a killed
            run has left.

    Yields:
        The new, empty folder to fill.
    """
    target = Path(target)
    if alone:
        restore_folder(target)
        for litter in target.parent.glob(f".{target.name}.new-*"):
            shutil.rmtree(litter, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        os.chmod(fresh, 0o755)
        yield fresh
        aside = _aside(target)
        if target.exists():
            if aside.exists():
                shutil.rmtree(aside)
            os.rename(target, aside)
        try:
            os.rename(fresh, target)
        except BaseException:
            restore_folder(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def restore_folder(target: str | os.PathLike[str]) -> None:
    """Put back a folder that a run killed between its two renames has left aside."""
    target = Path(target)
    if not target.exists() and _aside(target).exists():
        os.rename(_aside(target), target)


def _aside(target: Path) -> Path:
    return target.parent / f".{target.name}.old"
