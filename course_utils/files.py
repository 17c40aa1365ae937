"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["atomic_write_bytes", "atomic_write_json", "atomic_write_text"]


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to a temporary file beside ``path`` and move it there in one step.

    A reader sees the old content or the new; after an error (a full disk, Ctrl-C) the old one, and no litter.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """As :func:`atomic_write_bytes`, UTF-8."""
    atomic_write_bytes(path, text.encode())


def atomic_write_json(path: str | os.PathLike[str], data: Any) -> None:
    """As :func:`atomic_write_bytes`, JSON with an indent of 2 and a final newline."""
    atomic_write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
