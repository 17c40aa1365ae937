"""A course of its own for the tests that grade: a copy of the repository's files in a temporary folder."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

__all__ = ["Course"]

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = (
    "results",
    "submitted",
    "autograded",
    "feedback",
    "exchange",
    "gradebook.db*",
    "secret_salt",
    ".cache",
    "replaced",
    "*.csv",
)


class Course:
    """A course folder, with the commands of an instructor."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("course_utils", "solutions", "notebooks"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "grading", root / "grading", ignore=shutil.ignore_patterns("__pycache__", *RUNTIME))
        shutil.copy(ROOT / "nbgrader_config.py", root)
        if (ROOT / "data" / "cifar_mini").is_dir():
            (root / "data").mkdir()
            (root / "data" / "cifar_mini").symlink_to(ROOT / "data" / "cifar_mini")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ...`` in the course folder; stdout and stderr together."""
        env = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", **environment}
        env.pop("NBGRADER_EXECUTION", None)
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
            check=False,
        )

    def released(self, assignment: str) -> nbformat.NotebookNode:
        """The students' notebook of a section."""
        path = next((self.root / "notebooks" / assignment).glob("*.ipynb"))
        return nbformat.read(path, as_version=4)

    def submit(self, student: str, assignment: str, notebook: nbformat.NotebookNode) -> None:
        folder = self.root / "grading" / "submitted" / student / assignment
        folder.mkdir(parents=True, exist_ok=True)
        name = next((self.root / "notebooks" / assignment).glob("*.ipynb")).name
        nbformat.write(copy.deepcopy(notebook), folder / name)

    def scores(self, assignment: str) -> dict[str, dict[str, float]]:
        """Points by student and exercise, from the gradebook."""
        from nbgrader.api import Gradebook

        table: dict[str, dict[str, float]] = {}
        with Gradebook(f"sqlite:///{self.root / 'grading' / 'gradebook.db'}") as gradebook:
            for submission in gradebook.assignment_submissions(assignment):
                for notebook in submission.notebooks:
                    table[submission.student.id] = {g.name: g.score for g in notebook.grades}
        return table
