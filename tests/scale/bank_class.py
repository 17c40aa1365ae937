"""A class out of the answer bank: every student's notebook is a mix of right and wrong answers, drawn from a seed."""

from __future__ import annotations

import ast
import copy
import random
from dataclasses import dataclass
from pathlib import Path

from course import ROOT, Course
from nbformat import NotebookNode
from nbgrader.api import Gradebook

__all__ = ["ANSWERED", "BankClass", "bank_cells"]

DUE, LATE = "2026-03-01 10:00:00 UTC", "2026-03-02 10:00:00 UTC"
ANSWERED = "It depends on who holds the storage."
BY_HAND = 0.5  # what a person has given before the class is graded
STALE = 77.0  # an automatic mark of a submission that has been replaced


@dataclass(frozen=True)
class BankCell:
    """An answer of the bank as the text of a notebook's cell."""

    name: str
    right: bool
    source: str


def bank_cells(section: str) -> dict[str, list[BankCell]]:
    """The answers of a section by exercise.

    A cell holds the answer, whatever else of the bank's module it uses, and a line that gives it the exercise's name.
    """
    text = (ROOT / "grading" / "answers" / f"{section}.py").read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    defined: dict[str, ast.stmt] = {}
    marks: dict[ast.stmt, list[ast.Call]] = {}
    for node in tree.body:
        marks[node] = [d for d in getattr(node, "decorator_list", []) if _registers(d)]
        if marks[node]:
            node.decorator_list = [d for d in node.decorator_list if not _registers(d)]
        defined.update((name, node) for name in _binds(node))

    def needs(node: ast.stmt, found: set[ast.stmt]) -> set[ast.stmt]:
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & defined.keys():
            if (other := defined[name]) not in found:
                found.add(other)
                needs(other, found)
        return found

    cells: dict[str, list[BankCell]] = {}
    for node, calls in marks.items():
        for call in calls:
            parts = sorted(needs(node, set()) | {node}, key=lambda n: n.lineno)
            options = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg == "factory"}
            exercise = ast.literal_eval(call.args[0])
            last = f"{exercise} = {node.name}{'()' if options.get('factory') else ''}"
            source = "\n\n".join([*(_text(p, lines) for p in parts), last])
            cells.setdefault(exercise, []).append(BankCell(node.name, call.func.id == "right", source))
    return cells


def _registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") in ("right", "wrong")


def _binds(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(a.asname or a.name).partition(".")[0] for a in node.names]
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _text(node: ast.stmt, lines: list[str]) -> str:
    decorators = [f"@{ast.unparse(d)}" for d in getattr(node, "decorator_list", [])]
    return "\n".join([*decorators, *lines[node.lineno - 1 : node.end_lineno]])


class BankClass(Course):
    """A course whose students hand in one section.

    Some hand in late, some have answered the questions in words, and some had been graded before: a person's marks and
    comments are there, and automatic marks of what they had handed in first.
    """

    def __init__(self, root: Path, assignment: str, students: int, seed: int) -> None:
        super().__init__(root)
        self.assignment, draw = assignment, random.Random(seed)
        self.chosen: dict[str, dict[str, BankCell]] = {}
        bank = bank_cells(assignment[3:])
        released = self.released(assignment)
        made = self.run("grading.release", "--gradebook-only", assignment)
        assert made.returncode == 0, made.stdout
        (path,) = (self.root / "notebooks" / assignment).glob("*.ipynb")
        with Gradebook(f"sqlite:///{self.gradebook}") as gradebook:
            gradebook.update_or_create_assignment(assignment, duedate=DUE)
            for number in range(students):
                name = f"student{number:03}"
                self.submit(name, assignment, self._notebook(name, released, bank, draw))
                if draw.random() < 0.25:
                    (self.submitted(name) / "timestamp.txt").write_text(LATE)
                if draw.random() < 0.25:
                    _graded_before(gradebook, assignment, name, path.stem)

    @property
    def gradebook(self) -> Path:
        return self.root / "grading" / "gradebook.db"

    @property
    def results(self) -> Path:
        return self.root / "grading" / "results" / self.assignment

    def submitted(self, student: str) -> Path:
        return self.root / "grading" / "submitted" / student / self.assignment

    def _notebook(
        self, student: str, released: NotebookNode, bank: dict[str, list[BankCell]], draw: random.Random
    ) -> NotebookNode:
        notebook, skill = copy.deepcopy(released), draw.random()
        chosen = self.chosen[student] = {}
        for cell in notebook.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            exercise = name.removeprefix("answer-")
            if exercise in bank and exercise != name:
                right = draw.random() < skill
                chosen[exercise] = draw.choice([a for a in bank[exercise] if a.right == right] or bank[exercise])
                cell.source = chosen[exercise].source
            elif cell.metadata.get("nbgrader", {}).get("solution") and cell.cell_type == "markdown":
                cell.source = ANSWERED if draw.random() < 0.5 else cell.source
        return notebook


def _graded_before(gradebook: Gradebook, assignment: str, student: str, notebook: str) -> None:
    gradebook.update_or_create_student(student)
    gradebook.update_or_create_submission(assignment, student)
    entry = gradebook.find_submission_notebook(notebook, assignment, student)
    for grade in entry.grades:
        grade.auto_score = STALE
    first = min(entry.grades, key=lambda g: g.name)
    first.manual_score, first.needs_manual_grade = BY_HAND, False
    min(entry.comments, key=lambda c: c.name).manual_comment = "Well thought, and wrong."
    gradebook.db.commit()
