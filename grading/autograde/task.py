"""Grade one submission: data in, data out.

:func:`grade` may run in any process on any machine that has the course's package and its data set: it reads no
gradebook, no ``solutions/``, no salt and no file of the instructor's. What the machine cannot do, or nobody could read,
is not gradable, which is not a 0.
"""

from __future__ import annotations

import copy
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import Autograde
from nbgrader.preprocessors import AssignLatePenalties, SaveAutoGrades
from nbgrader.utils import determine_grade, is_grade, is_solution
from traitlets.config import Config

from course_utils.observe.compare import Verdict
from grading.autograde.intake import HandedIn
from grading.autograde.rescue import printable, rescue
from grading.autograde.suspicion import suspicious
from grading.executor import LOOK
from grading.judge import Judge, Report
from grading.restore import Released
from grading.scratch import Scratch

__all__ = ["GRADED", "NOT_GRADABLE", "Result", "Task", "grade"]

GRADED, NOT_GRADABLE = "graded", "not gradable"
_NBCLIENT_SAYS = "Kernel died while waiting for execute reply"  # without saying in which cell
_AT_THE_GRADEBOOK = (SaveAutoGrades, AssignLatePenalties)  # left to the one writer: see grading.autograde.marks


@dataclass(frozen=True)
class Task:
    """All that it takes to grade one submission.

    Attributes
    ----------
    student, assignment, notebook : str
        As nbgrader names them; ``notebook`` without ``.ipynb``.
    key : str
        Of the submission's content and the reference together.
    handed_in : HandedIn
    released : Released
    handed_out : frozenset of str
        The lines of the cells that everybody gets, answers aside.
    judge : dict
        See :meth:`grading.judge.Judge.pack`.
    config : Config
        nbgrader's configuration.
    """

    student: str
    assignment: str
    notebook: str
    key: str
    handed_in: HandedIn
    released: Released
    handed_out: frozenset[str]
    judge: dict[str, Any]
    config: Config


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes
    ----------
    status : str
        ``GRADED`` or ``NOT_GRADABLE``.
    why : str
        Why it is not gradable.
    text : str
        The graded notebook as JSON.
    verdicts : dict
        Exercise -> what the judge said, such as ``right but wasteful``.
    points : dict
        Exercise -> points.
    notes : tuple of str
        What was put right, and what else an instructor may want to know.
    flags : tuple of str
        What a person should look at: it may be an attempt on the grader. Never a reason for fewer points.
    seconds : float
    where : str
        The machine that graded it.
    run : str
        The run in which it was graded.
    to_read : tuple of str
        Answers in words, whose points a person gives.
    digest : str
        Of what was handed in; empty in results that were kept before there was one.
    """

    student: str
    assignment: str
    notebook: str
    key: str
    status: str
    why: str = ""
    text: str = ""
    verdicts: dict[str, str] = field(default_factory=dict)
    points: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    seconds: float = 0.0
    where: str = ""
    run: str = ""
    to_read: tuple[str, ...] = ()
    digest: str = ""

    @classmethod
    def failed(cls, task: Task, why: object, **more: Any) -> Result:
        """Not gradable, with the reason."""
        more["digest"] = task.handed_in.digest
        return cls(task.student, task.assignment, task.notebook, task.key, NOT_GRADABLE, printable(why), **more)

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Result:
        """Raises TypeError or KeyError where the data is not a result's."""
        texts = {name: tuple(data[name]) for name in ("notes", "flags", "to_read")}
        return cls(**{**data, **texts})


def grade(task: Task) -> Result:
    """Grade a submission. Every exception becomes a result: one student's trouble stays one student's."""
    started = time.perf_counter()
    with _warnings() as said:
        try:
            result = _grade(task)
        except Exception as error:  # whatever it is, it is no reason for a 0
            result = Result.failed(task, f"{type(error).__name__}: {error}")
    prefix = f"{task.student}, {task.notebook}: "
    notes = dict.fromkeys(
        [*task.handed_in.notes, *result.notes, *(printable(s.removeprefix(prefix)) for s in _but_flags(said))]
    )
    return Result(
        **{
            **vars(result),
            "notes": tuple(notes),
            "seconds": round(time.perf_counter() - started, 3),
            "where": socket.gethostname(),
            "digest": task.handed_in.digest,
        }
    )


def _grade(task: Task) -> Result:
    rescued = rescue(task.handed_in.notebook)
    if rescued.unreadable:  # a student who sends a file again must not find a 0 that nobody has given
        return Result.failed(task, "; ".join(rescued.notes))
    nb = rescued.notebook
    flags = suspicious(nb, set(task.released.cells), task.handed_out)
    judge = _Witness.unpack(task.judge)
    with Scratch() as folder:
        for name, data in task.handed_in.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        resources: dict[str, Any] = {
            "unique_key": task.notebook,
            "output_files_dir": f"{task.notebook}_files",
            "metadata": {"name": task.notebook, "path": str(folder)},
            "nbgrader": {
                "student": task.student,
                "assignment": task.assignment,
                "notebook": task.notebook,
                "released": copy.deepcopy(task.released),
                "cut_off": rescued.cut_off,
                "judge": judge,
            },
        }
        for preprocessor in _preprocessors(task.config):
            nb, resources = preprocessor(nb, resources)
    nbformat.validate(nb)
    return Result(
        task.student,
        task.assignment,
        task.notebook,
        task.key,
        GRADED,
        text=nbformat.writes(nb) + "\n",
        verdicts={name: verdict.kind.value for name, verdict in judge.seen.items()},
        points={name: verdict.points for name, verdict in judge.seen.items()},
        notes=(*rescued.notes, *_remarks(judge)),
        flags=(*flags, *_unusual(judge)),
        to_read=tuple(_to_read(nb)),
    )


def _to_read(nb: NotebookNode) -> Iterator[str]:
    """The answers that nbgrader finds no points for: those in words, unless their cell is as it was handed out."""
    for cell in nb.cells:
        if is_grade(cell) and is_solution(cell) and determine_grade(cell)[0] is None:
            yield cell.metadata.nbgrader.grade_id


def _preprocessors(config: Config) -> Iterator[Any]:
    """nbgrader's own sequence as configured, without the steps that write into the gradebook."""
    autograde = Autograde(config=config)
    for kind in [*autograde.sanitize_preprocessors, *autograde.autograde_preprocessors]:
        if not issubclass(kind, _AT_THE_GRADEBOOK):
            yield kind(parent=autograde)


class _Witness(Judge):
    """A judge that remembers its verdicts."""

    @property
    def seen(self) -> dict[str, Verdict]:
        return self.__dict__.setdefault("_seen", {})

    def verdict(self, exercise_id: str, report: Report) -> Verdict:
        self.seen[exercise_id] = super().verdict(exercise_id, report)
        return self.seen[exercise_id]

    def broken(self, exercise_id: str, *what: str, **more: Any) -> Verdict:
        self.seen[exercise_id] = super().broken(exercise_id, *what, **more)
        return self.seen[exercise_id]


def _remarks(judge: _Witness) -> Iterator[str]:
    for name, verdict in judge.seen.items():
        yield from (printable(f"{name}: {remark}") for remark in verdict.remarks)


def _unusual(judge: _Witness) -> Iterator[str]:
    """What the seal has noticed, and checks that no honest notebook of this course has been seen to end with."""
    found: dict[str, list[str]] = {}
    for name, verdict in judge.seen.items():
        for flag in verdict.flags:
            found.setdefault(flag, []).append(name)
    for flag, names in found.items():
        yield printable(f"{flag}: {', '.join(names)}")


def _but_flags(said: list[str]) -> list[str]:
    """Without those lines that plain nbgrader logs and that the executor's own, or a place of their own, stand for."""
    return [line for line in said if not line.startswith((LOOK, _NBCLIENT_SAYS))]


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What this thread logs meanwhile, from the level of a warning on, instead of on the terminal."""
    said: list[str] = []
    thread = threading.get_ident()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                said.append(record.getMessage())

    logger = logging.getLogger("traitlets")
    handler = Keep(logging.WARNING)
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)
