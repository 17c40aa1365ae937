"""The one writer to nbgrader's gradebook and to ``autograded/``.

It writes what nbgrader's own steps would write, through them: students, submissions, SaveAutoGrades, late penalties.
Each submission is one transaction, and writing it twice changes nothing. A mark given by a person is never touched.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, MissingEntry, SubmittedNotebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from sqlalchemy.exc import OperationalError
from traitlets.config import Config

from course_utils.files import replace_folder
from grading.autograde.intake import HandedIn
from grading.autograde.task import GRADED, Result

__all__ = ["Marks"]


@contextmanager
def _transaction(gradebook: Gradebook) -> Iterator[Gradebook]:
    """A gradebook whose many small commits become one: all of the block is written, or nothing.

    nbgrader commits after every grade, which costs a notebook of 17 exercises 0.6 s on an ordinary disk.
    """
    with gradebook.engine.connect() as connection, connection.begin():
        # The session's commits end at this connection, its rollbacks and errors do not.
        gradebook.db.configure(bind=connection, join_transaction_mode="rollback_only")
        try:
            yield gradebook
            gradebook.db.commit()
        finally:
            gradebook.db.remove()


def _withdraw(gradebook: Gradebook, assignment: str, student: str) -> None:
    """Take the automatic marks of a submission away, if there are any, and ask for a person.

    What a person has given stays. Whoever looks at a mark then never takes an old one for that of a new submission.
    """
    try:
        submission = gradebook.find_submission(assignment, student)
    except MissingEntry:
        return
    for notebook in submission.notebooks:
        for grade in notebook.grades:
            grade.auto_score = None
            grade.needs_manual_grade = True
    gradebook.db.commit()


class Marks:
    """Writes results into the gradebook of a course.

    Parameters
    ----------
    config : Config
        nbgrader's configuration; it names the gradebook and the folders.
    waiting : callable
        Called with a line of text when somebody else holds the gradebook and this has to wait.
    patience : float
        Seconds to wait for it at most.
    """

    def __init__(
        self, config: Config, waiting: Callable[[str], object] = lambda _: None, patience: float = 1800
    ) -> None:
        self._config = config
        self._folders = CourseDirectory(config=config)
        self._waiting, self._patience = waiting, patience

    @functools.cached_property
    def _gradebook(self) -> Gradebook:
        """Opened once: SQLAlchemy compiles its statements anew for every engine, which is half of what a write takes."""
        gradebook = Gradebook(self._folders.db_url, self._folders.course_id)
        gradebook.db.remove()
        return gradebook

    # ------------------------------------------------------------------------------------------ writing
    def withdraw(self, submissions: Iterable[tuple[str, str]]) -> None:
        """Take away the old marks of (assignment, student) that are about to be graded again, all or none."""

        def write(gradebook: Gradebook) -> None:
            for assignment, student in submissions:
                _withdraw(gradebook, assignment, student)

        self._write(write)

    def write(self, result: Result, handed_in: HandedIn) -> None:
        """Bring gradebook and ``autograded/`` in line with a result."""
        notebook = nbformat.reads(result.text, as_version=4) if result.status == GRADED else None
        target = self._autograded(result)
        if notebook is None:
            # As nbgrader does: no graded notebook stays that its mark does not belong to.
            shutil.rmtree(target, ignore_errors=True)
        self._write(lambda gradebook: self._enter(gradebook, result, handed_in, notebook))
        if notebook is not None:
            self._write_folder(target, result, handed_in)

    def is_written(self, results: Iterable[Result]) -> set[tuple[str, str]]:
        """The (assignment, student) of those results that gradebook and ``autograded/`` already agree with."""
        with _transaction(self._gradebook) as gradebook:
            return {(r.assignment, r.student) for r in results if self._agrees(gradebook, r)}

    def still_to_read(self, results: Iterable[Result]) -> list[Result]:
        """The results, each with those answers in words alone that wait for a person in the gradebook."""
        with _transaction(self._gradebook) as gradebook:
            return [replace(r, to_read=tuple(self._open(gradebook, r))) for r in results]

    def _open(self, gradebook: Gradebook, result: Result) -> list[str]:
        if result.status != GRADED:
            return []
        try:
            notebook = gradebook.find_submission_notebook(result.notebook, result.assignment, result.student)
        except MissingEntry:  # the run was ended before it was entered
            return list(result.to_read)
        return [g.name for g in notebook.grades if g.cell.cell_type != "code" and g.needs_manual_grade]

    def _agrees(self, gradebook: Gradebook, result: Result) -> bool:
        try:
            notebook = gradebook.find_submission_notebook(result.notebook, result.assignment, result.student)
        except MissingEntry:
            return False
        if result.status != GRADED:
            return all(g.auto_score is None and g.needs_manual_grade for g in notebook.grades)
        judged = [g for g in notebook.grades if g.cell.cell_type == "code"]  # the others' points come from a person
        if any(g.auto_score is None or g.auto_score != result.points.get(g.name) for g in judged):
            return False
        try:
            return (self._autograded(result) / f"{result.notebook}.ipynb").read_text(encoding="utf-8") == result.text
        except (OSError, ValueError):
            return False

    # ------------------------------------------------------------------------------------------ one submission
    def _enter(self, gradebook: Gradebook, result: Result, handed_in: HandedIn, notebook: Any) -> None:
        gradebook.update_or_create_student(result.student)
        late = {"timestamp": handed_in.timestamp} if handed_in.timestamp else {}
        gradebook.update_or_create_submission(result.assignment, result.student, **late)
        if notebook is None:
            _withdraw(gradebook, result.assignment, result.student)
            return
        saver = SaveAutoGrades(config=self._config)
        saver.gradebook = gradebook
        saver.notebook_id, saver.assignment_id, saver.student_id = result.notebook, result.assignment, result.student
        for index, cell in enumerate(notebook.cells):
            saver.preprocess_cell(cell, {}, index)
        entry = gradebook.find_submission_notebook(result.notebook, result.assignment, result.student)
        self._penalty(gradebook, result, entry)

    def _penalty(self, gradebook: Gradebook, result: Result, entry: SubmittedNotebook) -> None:
        """The late penalty, as nbgrader's AssignLatePenalties sets it."""
        submission = gradebook.find_submission(result.assignment, result.student)
        entry.late_submission_penalty = None
        if submission.total_seconds_late <= 0:
            return
        assign = AssignLatePenalties(config=self._config)
        assign.init_plugin()
        penalty = assign.plugin_inst.late_submission_penalty(result.student, entry.score, submission.total_seconds_late)
        if penalty is not None:
            entry.late_submission_penalty = assign._check_late_penalty(entry, penalty)

    def _autograded(self, result: Result) -> Path:
        folders = self._folders
        return Path(folders.format_path(folders.autograded_directory, result.student, result.assignment))

    def _write_folder(self, target: Path, result: Result, handed_in: HandedIn) -> None:
        """The graded notebook and the submission's other files, readable only, like nbgrader's."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with replace_folder(target, alone=True) as folder:
            for name, data in {**handed_in.files, f"{result.notebook}.ipynb": result.text.encode()}.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod(0o444)

    # ------------------------------------------------------------------------------------------ the lock
    def _write(self, block: Callable[[Gradebook], object]) -> None:
        """One transaction. Where somebody else holds the gradebook, wait and try again from the start."""
        deadline = time.monotonic() + self._patience
        told = False
        while True:
            try:
                with _transaction(self._gradebook) as gradebook:
                    block(gradebook)
                return
            except OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                if not told:
                    self._waiting("another program holds the gradebook; waiting for it")
                    told = True
                time.sleep(1)
