"""A class from the answer bank, graded once undisturbed and once with kills: nobody may see a difference.

``CLASS_SIZE=100 pytest tests/scale -s`` takes a larger class, ``CLASS_SECTION=02_graph_debugging`` another section,
``CLASS_SEED=7`` other notebooks and other moments.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from bank_class import BY_HAND, STALE, BankClass
from gradebook import contents
from killing import Killed, grade_with_kills
from nbgrader.api import Gradebook

from grading.scratch import PREFIX

STUDENTS = int(os.environ.get("CLASS_SIZE", "10"))
SECTION = os.environ.get("CLASS_SECTION", "01_tensor_costs")
SEED = int(os.environ.get("CLASS_SEED", "1"))
JOBS = 2
KILLS = 3  # at least so many must have hit the run at work
GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
# What differs between two runs of the same code by itself, or tells of the kills.
OWN = ("seconds", "where", "run", "text", "notes")


@dataclass
class Graded:
    calm: BankClass
    killed: BankClass
    done: Killed
    scratch: Path
    groups_before: set[str]


def _ownerless_groups() -> set[str]:
    """Control groups of graders that nobody holds."""
    found = set()
    for path in (p for place in GROUPS for p in place.glob(f"{PREFIX}*")):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.add(str(path))
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
    return found


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    calm = BankClass(tmp_path_factory.mktemp("calm"), SECTION, STUDENTS, SEED)
    killed = copy.copy(calm)
    killed.root = tmp_path_factory.mktemp("killed")
    shutil.copytree(calm.root, killed.root, dirs_exist_ok=True, symlinks=True)
    groups = _ownerless_groups()
    started = time.monotonic()
    run = calm.run("grading.autograde", "--assignment", SECTION, "--jobs", str(JOBS))
    seconds = time.monotonic() - started
    assert run.returncode == 0, run.stdout[-4000:]
    for name in ("secret_salt", ".cache"):  # the hidden cases are the course's, not the run's
        here, there = calm.root / "grading" / name, killed.root / "grading" / name
        (shutil.copytree if here.is_dir() else shutil.copy2)(here, there)
    scratch = Path(tempfile.mkdtemp(prefix="scale-", dir="/tmp"))
    try:
        done = grade_with_kills(killed, scratch, SEED, JOBS)
        print(
            f"\n{STUDENTS} submissions of {SECTION}: undisturbed {seconds:.0f} s; with {done.ends.total()} kills of the run"
            f" ({dict(done.ends)}, {done.half_written} in a transaction) and {done.singles.total()} of one process"
            f" ({dict(done.singles)}) {done.seconds:.0f} s"
        )
        yield Graded(calm, killed, done, scratch, groups)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _results(course: BankClass) -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(course.results.glob("*.json"))}


def test_the_kills_miss_the_run_at_work(graded):
    assert graded.done.ends.total() >= KILLS, graded.done
    assert graded.done.half_written, "none in the midst of writing the gradebook"


def test_a_killed_run_cannot_be_resumed_to_its_end(graded):
    assert f"{STUDENTS} graded, 0 not gradable" in graded.done.said, graded.done.said[-4000:]
    assert "Traceback" not in graded.done.said, graded.done.said[-4000:]


def test_kills_change_the_gradebook(graded):
    calm, killed = contents(graded.calm.gradebook), contents(graded.killed.gradebook)
    assert calm.keys() == killed.keys()
    for table in calm:
        assert not (calm[table] - killed[table]) and not (killed[table] - calm[table]), table
    assert sum(calm["submitted_assignment"].values()) == STUDENTS


def test_kills_change_the_results_that_are_kept(graded):
    calm, killed = _results(graded.calm), _results(graded.killed)
    assert len(calm) == STUDENTS
    for results in (calm, killed):
        for result in results.values():
            for name in OWN:
                result.pop(name)
    assert killed == calm


def test_kills_change_the_graded_notebooks(graded):
    for name, result in _results(graded.killed).items():
        folder = graded.killed.root / "grading" / "autograded" / name / SECTION
        (path,) = folder.glob("*.ipynb")
        assert path.read_text(encoding="utf-8") == result["text"], "not the notebook that the marks are of"


def test_the_class_is_graded_otherwise_than_its_answers_deserve(graded):
    """Else two equal gradebooks would prove little."""
    with Gradebook(f"sqlite:///{graded.killed.gradebook}") as gradebook:
        for submission in gradebook.assignment_submissions(SECTION):
            answers = graded.killed.chosen[submission.student.id]
            for grade in (g for n in submission.notebooks for g in n.grades if g.name in answers):
                answer = answers[grade.name]
                assert (grade.auto_score == grade.max_score) == answer.right, (submission.student.id, answer)


def test_marks_and_comments_of_a_person_are_lost_or_old_marks_stay(graded):
    with Gradebook(f"sqlite:///{graded.killed.gradebook}") as gradebook:
        entries = [n for s in gradebook.assignment_submissions(SECTION) for n in s.notebooks]
        given = [g for n in entries for g in n.grades if g.manual_score is not None]
        assert {g.manual_score for g in given} == {BY_HAND}
        assert len(given) == len([c for n in entries for c in n.comments if c.manual_comment]) > 0
        assert STALE not in {g.auto_score for n in entries for g in n.grades}


def test_killed_runs_leave_processes_behind(graded):
    assert graded.done.survivors == []


def test_killed_runs_leave_files_behind(graded):
    assert list(graded.scratch.iterdir()) == []
    for course in (graded.calm, graded.killed):
        litter = [p for p in (course.root / "grading").rglob(".*") if p.name not in (".cache", ".gitignore")]
        assert litter == []
        assert not course.gradebook.with_name("gradebook.db-journal").exists()


def test_killed_runs_leave_mounts_or_control_groups_behind(graded):
    assert str(graded.scratch) not in Path("/proc/self/mountinfo").read_text()
    assert _ownerless_groups() <= graded.groups_before
