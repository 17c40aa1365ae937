"""Release sections: ``nbgrader generate_assignment``, with two cares around it.

    python -m grading.release [SECTION]                   what `make release` runs
    python -m grading.release --gradebook-only [SECTION]  what `make autograde` does first, where it was not done

nbgrader replaces the release folder. A notebook in it that somebody has worked in is first moved to
``grading/replaced/``. And grading needs the section in the gradebook, which a fresh clone does not have; with
``--gradebook-only`` it is entered there, and ``notebooks/`` stays as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grading.source import ROOT, Section, SourceError, sections

__all__ = ["enter_in_gradebook", "in_gradebook", "main", "set_aside"]


def set_aside(section: Section) -> Path | None:
    """Move a notebook that is not as it was released to ``grading/replaced/``; its new place, or None."""
    from grading.build import release_text, source_notebook  # which import torch

    notebook = ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb"
    if not notebook.exists() or notebook.read_text(encoding="utf-8") == release_text(section, source_notebook(section)):
        return None
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    kept = ROOT / "grading" / "replaced" / f"{section.name}-{stamp}.ipynb"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(notebook, kept)
    return kept


def in_gradebook(section: Section) -> bool:
    """Is the section's notebook entered in the gradebook?"""
    from nbgrader.api import Gradebook, MissingEntry

    database = ROOT / "grading" / "gradebook.db"
    if not database.exists():
        return False
    with Gradebook(f"sqlite:///{database}?timeout=60") as gradebook:
        try:
            gradebook.find_notebook(section.name, section.assignment)
        except MissingEntry:
            return False
    return True


def _generate(section: Section, folder: Path | None = None) -> int:
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", section.assignment, "--force"]
    if folder is not None:
        command.append(f"--CourseDirectory.release_directory={folder}")
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def enter_in_gradebook(section: Section) -> int:
    """Enter a section in the gradebook, and leave ``notebooks/`` as it is; nbgrader's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        return _generate(section, Path(folder))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.release", description="Release sections to students.")
    parser.add_argument("section", nargs="?", help="such as 01_tensor_costs; by default all")
    parser.add_argument("--gradebook-only", action="store_true", help="enter what is missing, leave notebooks/ alone")
    options = parser.parse_args(argv)
    try:
        for section in sections(options.section):
            if options.gradebook_only:
                if in_gradebook(section):
                    continue
                code = enter_in_gradebook(section)
            else:
                kept = set_aside(section)
                if kept:
                    print(f"{section.assignment}: the notebook had been worked in; a copy is {kept.relative_to(ROOT)}")
                code = _generate(section)
            if code:
                return code
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
