"""Change a notebook that may be open in JupyterLab: keep what was there, write at once, say how to see it."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_utils.errors import CourseError
from course_utils.files import atomic_write_bytes, atomic_write_text
from course_utils.progress_store import progress_folder

__all__ = ["RELOAD", "keep", "replace"]

RELOAD = "If it is open in JupyterLab: File > Reload Notebook from Disk. Do not save it there before."


def keep(data: bytes, name: str) -> Path:
    """Store a copy as ``kept/NAME-DATE-TIME.ipynb`` beside the progress, never over another; its path."""
    folder = progress_folder() / "kept"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{Path(name).stem}-{time.strftime('%Y-%m-%d-%H%M%S')}"
    path, count = folder / f"{stem}.ipynb", 1
    while path.exists():
        count += 1
        path = folder / f"{stem}-{count}.ipynb"
    atomic_write_bytes(path, data)
    return path


def replace(path: Path, before: bytes, notebook: NotebookNode) -> Path:
    """Put a changed notebook in the place of a file, of which a copy is kept; the copy's path.

    Raises
    ------
    CourseError
        If the file is not as it was read any more (JupyterLab saves by itself); nothing is changed then.
    """
    notebook.nbformat_minor = max(notebook.get("nbformat_minor", 5), 5)  # cells have ids
    text = nbformat.writes(notebook, version=4) + "\n"
    kept = keep(before, path.name)
    if path.read_bytes() != before:
        raise CourseError(f"{path} was saved by another program just now. Save it in JupyterLab, then run this again.")
    atomic_write_text(path, text)
    return kept
