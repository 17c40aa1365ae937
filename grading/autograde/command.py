"""Grade what lies in ``grading/submitted/STUDENT/SECTION/``: every submission that is new or was replaced.

    python -m grading.autograde [--assignment 01_tensor_costs] [--students ann bob] [--jobs 8]
    python -m grading.autograde --force                          grade again what is graded already
    python -m grading.autograde --resume                         go on with the last run, as it was called
    python -m grading.autograde --scheduler tcp://HOST:8786      on a Dask cluster

Settings of nbgrader go behind it: ``--Execute.timeout=30``. The exit status is 0 where everything is graded, 1 where
something is not gradable, 2 where the run could not begin, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.coursedir import CourseDirectory
from sqlalchemy.exc import OperationalError, SAWarning
from tqdm import tqdm
from traitlets.config import Config

from course_utils.files import atomic_write_json, locked_folder
from grading.autograde.engines import Cluster, Engine, Local, default_jobs, run
from grading.autograde.intake import HandedIn, hand_in
from grading.autograde.marks import Marks
from grading.autograde.report import summary, write_reports
from grading.autograde.store import RESULTS, Store, key_of
from grading.autograde.task import GRADED, NOT_GRADABLE, Result, Task
from grading.judge import Judge
from grading.kernels.manager import warm_process
from grading.release import enter_in_gradebook
from grading.restore import Released
from grading.sandbox.counted import sweep_groups
from grading.sandbox.settings import Sandbox
from grading.scratch import Scratch, sweep_scratch
from grading.settings import load_config
from grading.source import ROOT, Section, SourceError, sections

__all__ = ["main"]

GRADING = ROOT / "grading"
_STATE = "run.json"


@dataclass(frozen=True)
class _Asked:
    """What a run was asked to do; kept, so that ``--resume`` can go on with it."""

    run: str
    assignment: str | None
    students: list[str]
    force: bool
    settings: list[str]


@dataclass(frozen=True)
class _Reference:
    """What all tasks of a section share."""

    section: Section
    released: Released
    handed_out: frozenset[str]
    judge: dict[str, Any]


class _Course:
    """The folders of a course, and one run over them."""

    def __init__(self, config: Config, asked: _Asked, say: Any) -> None:
        self.config, self.asked = config, asked
        self.folders = CourseDirectory(config=config)
        self.submitted = Path(self.folders.root, self.folders.submitted_directory)
        self.store = Store(RESULTS)
        self.store.sweep()
        self.marks = Marks(config, waiting=say)
        self.elsewhere: list[str] = []

    # ------------------------------------------------------------------------------------------ what there is to do
    def students(self) -> list[str]:
        if not self.submitted.is_dir():
            raise SourceError(f"{self.submitted} is missing: put each notebook into STUDENT/SECTION/ there")
        there = sorted(p.name for p in self.submitted.iterdir() if p.is_dir() and not p.name.startswith("."))
        unknown = sorted(set(self.asked.students) - set(there))
        if unknown:
            raise SourceError(f"no submissions of {', '.join(unknown)} in {self.submitted}")
        return [s for s in there if not self.asked.students or s in self.asked.students]

    def submissions(self) -> list[tuple[Section, str]]:
        """(section, student) of everything handed in; what belongs to no section is kept in ``elsewhere``."""
        wanted = sections(self.asked.assignment)
        known, asked_for = {s.assignment for s in sections()}, {s.assignment for s in wanted}
        found = []
        for student in self.students():
            folder = self.submitted / student
            found += [(s, student) for s in wanted if (folder / s.assignment).is_dir()]
            for path in sorted(folder.iterdir()):
                if path.name not in known and not path.name.startswith("."):
                    what = f"{student}/{path.name} is no section's folder; it is not graded"
                    self.elsewhere.append(what)
                elif path.name in asked_for and not path.is_dir():
                    self.elsewhere.append(f"{student}/{path.name} is a file; the notebook belongs into a folder")
        return sorted(found, key=lambda f: (f[0].assignment, f[1]))

    def references(self, wanted: set[str]) -> dict[str, _Reference]:
        """A section that is not in the gradebook yet is entered first. Raises SourceError where that fails."""
        needed = [section for section in sections() if section.assignment in wanted]
        found: dict[str, Released | None] = {}
        for section in needed:
            found[section.assignment] = self._released(section)
            if found[section.assignment] is None and enter_in_gradebook(section) == 0:
                found[section.assignment] = self._released(section)
            if found[section.assignment] is None:
                raise SourceError(
                    f"nbgrader could not enter {section.assignment} in the gradebook; its reason is above"
                )
        return {
            s.assignment: _Reference(s, found[s.assignment], s.handed_out_lines(), Judge(s.assignment).pack())
            for s in needed
        }

    def _released(self, section: Section) -> Released | None:
        with Gradebook(self.folders.db_url, self.folders.course_id) as gradebook:
            try:
                return Released.of(gradebook, section.name, section.assignment)
            except MissingEntry:
                return None

    # ------------------------------------------------------------------------------------------ one submission
    def read(self, reference: _Reference, student: str) -> HandedIn:
        folder = self.submitted / student / reference.section.assignment
        return hand_in(folder, reference.section.name, set(reference.released.cells))

    def task(self, reference: _Reference, student: str) -> Task:
        handed_in = self.read(reference, student)
        return Task(
            student=student,
            assignment=reference.section.assignment,
            notebook=reference.section.name,
            key=key_of(handed_in, reference.judge["key"]),
            handed_in=handed_in,
            released=reference.released,
            handed_out=reference.handed_out,
            judge=reference.judge,
            config=self.config,
        )

    def is_done(self, result: Result | None, key: str) -> bool:
        """Is there a result that this run need not make again?"""
        if result is None or result.key != key or result.status != GRADED:
            return False
        return not self.asked.force or result.run == self.asked.run


def _plan(course: _Course) -> tuple[dict[str, _Reference], list[tuple[str, str]], list[Result]]:
    """References, the (assignment, student) to grade, and the results that are there already."""
    found = course.submissions()
    references = course.references({section.assignment for section, _ in found})
    ahead, done = [], []
    for section, student in found:
        key = key_of(course.read(references[section.assignment], student), references[section.assignment].judge["key"])
        result = course.store.load(section.assignment, student)
        if result is not None and course.is_done(result, key):
            done.append(result)
        else:
            ahead.append((section.assignment, student))
    return references, ahead, done


def _grade_all(
    course: _Course,
    engine: Engine,
    references: dict[str, _Reference],
    ahead: list[tuple[str, str]],
    results: list[Result],
    bar: tqdm,
) -> None:
    """Grade, keep and enter; ``results`` grows with every one that is done."""
    read: dict[tuple[str, str], HandedIn] = {}

    def tasks(wanted: list[tuple[str, str]]) -> Iterator[Task]:
        for assignment, student in wanted:
            task = course.task(references[assignment], student)
            read[assignment, student] = task.handed_in
            yield task

    def take(result: Result) -> None:
        result = replace(result, run=course.asked.run)
        try:
            course.store.save(result)
        except OSError as error:
            result = replace(result, status=NOT_GRADABLE, why=f"the result could not be kept: {error}", text="")
        course.marks.write(result, read.pop((result.assignment, result.student)))
        results.append(result)
        bar.update()

    second: list[tuple[str, str]] = []
    for result in run(engine, tasks(ahead)):
        if result.status == GRADED:
            take(result)
        else:  # once more, when the machine has less to do
            second.append((result.assignment, result.student))
            bar.set_postfix_str(f"{len(second)} to try again")
    for result in run(engine, tasks(second)):
        take(result)


def _enter_missing(course: _Course, references: dict[str, _Reference], done: list[Result]) -> None:
    """Write those results that an interrupted run had kept and not yet entered."""
    if not done:
        return
    written = course.marks.is_written(done)
    for result in done:
        if (result.assignment, result.student) not in written:
            course.marks.write(result, course.read(references[result.assignment], result.student))


def _asked(options: argparse.Namespace, settings: list[str]) -> _Asked:
    """This run, or the last one where it is to be resumed. Raises SourceError."""
    if not options.resume:
        return _Asked(secrets.token_hex(8), options.assignment, options.students or [], options.force, settings)
    if options.force or options.students or options.assignment or settings:
        raise SourceError("--resume goes on with the last run as it was called: beside it --jobs and --scheduler alone")
    try:
        return _Asked(**json.loads((RESULTS / _STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise SourceError("there is no run to resume") from None


def _engine(options: argparse.Namespace, config: Config) -> Engine:
    if not options.scheduler:
        return Local(max(1, options.jobs), warm=warm_process(Sandbox(config=config)))
    try:
        return Cluster(options.scheduler)
    except ImportError:
        raise SourceError(
            "a cluster needs Dask: pip install 'distributed' (or the extra: pip install -e .[cluster])"
        ) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"no Dask scheduler answers at {options.scheduler}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grading.autograde",
        description="Grade the submissions that are new or were replaced.",
        epilog="Settings of nbgrader may follow, such as --Execute.timeout=30.",
    )
    parser.add_argument("--assignment", help="a section, such as 01_tensor_costs; by default all")
    parser.add_argument("--students", nargs="+", metavar="NAME", help="by default all")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="submissions at a time (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="grade again what is graded already")
    parser.add_argument("--resume", action="store_true", help="go on with the last run where it stopped")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask cluster: tcp://HOST:PORT of its scheduler")
    return parser


def main(argv: list[str] | None = None) -> int:
    options, rest = _parser().parse_known_args(argv)
    warnings.filterwarnings("ignore", category=SAWarning)  # several lines per student, of no use to anyone
    # `kill` ends a run as Ctrl-C does: what is done is kept, and nothing goes on behind its back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        RESULTS.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            locked_folder(RESULTS, lambda: _say("another run is under way here; waiting for it to end")),
            _own_scratch(),
        ):
            return _run(options, rest)
    except (SourceError, ValueError) as error:
        _say(f"error: {error}")
        return 2
    except OperationalError as error:
        _say(f"error: the gradebook cannot be written ({error.orig}). Results are kept: --resume enters them.")
        return 2
    except OSError as error:
        _say(f"error: {error}. Results are kept: --resume goes on.")
        return 2
    except KeyboardInterrupt:
        return 130


@contextmanager
def _own_scratch() -> Iterator[None]:
    """All temporary files of a run and its processes in one folder; first those of runs that were killed are cleared away."""
    sweep_scratch()
    sweep_groups()
    before = os.environ.get("TMPDIR")
    scratch = Scratch()
    # At the very end: multiprocessing has files there as well, which it removes at the exit with a priority of -100.
    Finalize(None, scratch.close, exitpriority=-200)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch.path)
    try:
        yield
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before


def _run(options: argparse.Namespace, settings: list[str]) -> int:
    asked = _asked(options, settings)
    course = _Course(load_config(asked.settings), asked, _say)
    engine = _engine(options, course.config)  # first: its processes import what they need while the plan is made
    results: list[Result] = []
    interrupted = False
    try:
        references, ahead, results = _plan(course)
        atomic_write_json(RESULTS / _STATE, vars(asked))
        _enter_missing(course, references, results)
        # First of all the old marks go: whatever ends this run, none of them passes for that of a new submission.
        course.marks.withdraw(ahead)
        with tqdm(total=len(ahead), unit="notebook", disable=None, file=sys.stderr) as bar:
            _grade_all(course, engine, references, ahead, results, bar)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        engine.stop()
    results = course.marks.still_to_read(results)
    print(summary(results, course.elsewhere, asked.run))
    for path in write_reports(results, GRADING):
        print(f"written: {os.path.relpath(path, ROOT)}")
    if interrupted:
        _say("interrupted; everything above is kept: `make autograde ARGS=--resume` goes on from here")
        return 130
    return 0 if all(r.status == GRADED for r in results) else 1


def _say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)
