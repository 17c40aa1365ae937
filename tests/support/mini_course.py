"""A course with one small section, and a class in it that is graded in one run."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

from course import Course
from nbformat import NotebookNode

__all__ = ["ASSIGNMENT", "POINTS", "RIGHT", "MiniCourse", "answer_cell", "check_cell"]

HERE = Path(__file__).parent
ASSIGNMENT, NOTEBOOK = "09_mini", "mini.ipynb"
POINTS = {"doubled": 2.0, "sum_of_squares": 3.0, "same_block": 2.0, "batches": 2.0, "plus_one": 1.0}

_WRITE = f"""
import nbformat
from grading.build import source_notebook
from grading.source import sections

nbformat.write(source_notebook(sections("mini")[0]), "solutions/{ASSIGNMENT}/{NOTEBOOK}")
"""


def _right_answers() -> dict[str, str]:
    text = (HERE / "mini_section.py").read_text()
    cells = re.findall(r'# %% exercise="(\w+)"\n(.*?)(?=\n# %%|\Z)', text, re.S)
    return {name: re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", code, flags=re.M).strip() for name, code in cells}


RIGHT = _right_answers()


def answer_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == f"answer-{exercise}")


def check_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == exercise)


class MiniCourse(Course):
    """A copy of the course whose only section is ``mini``."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for folder in ("solutions", "notebooks", "course_utils/exercises", "course_utils/expected"):
            for path in (root / folder).iterdir():
                if path.name not in ("__init__.py", "README.md"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copy(HERE / "mini_section.py", root / "solutions" / f"{ASSIGNMENT}.py")
        shutil.copy(HERE / "mini_exercises.py", root / "course_utils" / "exercises" / "mini.py")
        # As `grading.build` and `grading.release` do it, but for what nobody looks at here: the executed reference edition.
        (root / "solutions" / ASSIGNMENT).mkdir()
        (root / "write.py").write_text(_WRITE)
        for command in (["write"], ["nbgrader", "generate_assignment", ASSIGNMENT, "--force"]):
            made = self.run(*command)
            assert made.returncode == 0, made.stdout

    def notebook(self, **answers: str) -> NotebookNode:
        """A submission with every right answer, but for those that are given."""
        notebook = copy.deepcopy(self.released(ASSIGNMENT))
        for exercise, code in {**RIGHT, **answers}.items():
            answer_cell(notebook, exercise).source = code
        return notebook

    def folder(self, student: str) -> Path:
        folder = self.root / "grading" / "submitted" / student / ASSIGNMENT
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def hand_in(self, student: str, notebook: NotebookNode | dict[str, Any] | bytes) -> Path:
        """Write a notebook as it stands, valid or not."""
        path = self.folder(student) / NOTEBOOK
        path.write_bytes(notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode())
        return path
