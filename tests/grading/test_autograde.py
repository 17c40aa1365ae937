"""The runner behind `make autograde`: plain nbgrader's gradebook, no mark lost to a kill, no student to another's file."""

from __future__ import annotations

import copy
import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from course import Course
from nbgrader.api import Gradebook
from submissions import SECTION, Submission, submissions
from traitlets.config import Config

from grading.autograde.engines import TRIES, Cluster, Local, run
from grading.autograde.intake import HandedIn
from grading.autograde.task import GRADED, NOT_GRADABLE, Result, Task, grade
from grading.restore import Released
from grading.settings import load_config

STUDENTS = ("all_right", "duplicates_cells", "kernel_dies")
LATE = "duplicates_cells"
WRITER, REFLECTION = "all_right", "reflection-storage_and_description"  # the one who has answered it


class Class(Course):
    """A course with submissions, and what its gradebook and its folder of graded notebooks hold."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        chosen = [s for s in submissions(self.released(SECTION)) if s.name in STUDENTS]
        for submission in chosen:
            if submission.name == WRITER:
                submission.notebook = copy.deepcopy(submission.notebook)
                cells = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in submission.notebook.cells}
                cells[REFLECTION].source = "A view describes, a storage holds."
        self.handed_in: dict[str, Submission] = {s.name: s for s in chosen}
        for submission in chosen:
            self.submit(submission.name, SECTION, submission.notebook)
        self.file(LATE, "timestamp.txt").write_text("2026-03-02 10:00:00 UTC")
        with self.gradebook() as gradebook:  # which does not know the section's notebook yet, as in a fresh clone
            gradebook.update_or_create_assignment(SECTION, duedate="2026-03-01 10:00:00 UTC")

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.root / 'grading' / 'gradebook.db'}")

    def file(self, student: str, name: str = "tensor_costs.ipynb") -> Path:
        return self.root / "grading" / "submitted" / student / SECTION / name

    def autograded(self, student: str) -> Path:
        return self.root / "grading" / "autograded" / student / SECTION

    def autograde(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("grading.autograde", *options)

    def held(self) -> dict[str, object]:
        """Everything that the gradebook says about a submission, and the names of the files of its graded notebook."""
        table: dict[str, object] = {}
        with self.gradebook() as gradebook:
            for submission in gradebook.assignment_submissions(SECTION):
                (notebook,) = submission.notebooks
                grades = {
                    g.name: (g.auto_score, g.manual_score, g.score, g.max_score, g.needs_manual_grade)
                    for g in notebook.grades
                }
                seconds_late, penalty = submission.total_seconds_late, notebook.late_submission_penalty
                files = sorted(p.name for p in self.autograded(submission.student.id).rglob("*") if p.is_file())
                table[submission.student.id] = (grades, seconds_late, penalty, files)
        return table


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Class:
    return Class(tmp_path_factory.mktemp("class"))


@pytest.fixture(scope="module")
def graded(group: Class) -> dict[str, object]:
    """The class graded by the runner."""
    done = group.autograde("--jobs", "2")
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{len(STUDENTS)} graded, 0 not gradable" in done.stdout
    return group.held()


def test_the_runner_gives_other_marks_than_deserved(group, graded):
    assert group.scores(SECTION) == {name: pytest.approx(s.deserved) for name, s in group.handed_in.items()}


def test_the_runner_leaves_another_gradebook_than_plain_nbgrader(group, graded):
    database, folder = group.root / "grading" / "gradebook.db", group.root / "grading" / "autograded"
    with group.gradebook() as gradebook:
        for name in STUDENTS:
            gradebook.remove_submission(SECTION, name)
    shutil.copy(database, group.root / "without_marks.db")
    shutil.move(folder, group.root / "aside")
    try:
        plain = group.run("nbgrader", "autograde", SECTION)
        assert plain.returncode == 0, plain.stdout[-4000:]
        assert group.held() == graded
    finally:  # the runner's own again, out of its kept results: nothing is executed for that
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(group.root / "aside", folder)
        shutil.move(group.root / "without_marks.db", database)
    again = group.autograde("--jobs", "2")
    assert again.returncode == 0, again.stdout
    assert group.held() == graded


def test_a_second_run_executes_again_what_is_graded(group, graded):
    result = group.root / "grading" / "results" / SECTION / "all_right.json"
    before = result.stat().st_mtime_ns
    assert group.autograde().returncode == 0
    assert result.stat().st_mtime_ns == before
    assert group.held() == graded


def test_an_answer_in_words_gets_points_from_the_program_or_an_empty_one_waits(group, graded):
    held = {student: grades[REFLECTION] for student, (grades, *_) in graded.items()}
    waits, empty = (None, None, 0, 2, True), (0, None, 0, 2, False)
    assert held == {student: waits if student == WRITER else empty for student in STUDENTS}
    with (group.root / "grading" / "summary.csv").open() as file:
        assert {r["student"]: r["to read"] for r in csv.DictReader(file)} == {
            student: REFLECTION if student == WRITER else "" for student in STUDENTS
        }


def test_grading_again_takes_away_what_a_person_gave_for_words(group, graded):
    with group.gradebook() as gradebook:
        grade = gradebook.find_grade(REFLECTION, "tensor_costs", SECTION, WRITER)
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        gradebook.find_comment(REFLECTION, "tensor_costs", SECTION, WRITER).manual_comment = "And clone()?"
        gradebook.db.commit()
    assert group.autograde().returncode == 0
    assert group.held()[WRITER][0][REFLECTION] == (None, 1.5, 1.5, 2, False), "looked at once is not enough"
    again = group.autograde("--force", "--students", WRITER)
    assert again.returncode == 0 and "Answers in words: 1." in again.stdout
    assert group.held()[WRITER][0][REFLECTION] == (None, 1.5, 1.5, 2, True)
    with group.gradebook() as gradebook:
        grade = gradebook.find_grade(REFLECTION, "tensor_costs", SECTION, WRITER)
        assert gradebook.find_comment(REFLECTION, "tensor_costs", SECTION, WRITER).comment == "And clone()?"
        grade.manual_score = None
        gradebook.db.commit()
    assert group.held() == graded


def give(group: Class, points: float | None) -> None:
    """A mark by a person, or none of it any more."""
    with group.gradebook() as gradebook:
        grade = gradebook.find_grade("frame_difference", "tensor_costs", SECTION, "all_right")
        grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.db.commit()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_run_loses_marks_leaves_old_ones_or_processes(group, graded):
    give(group, 0.25)
    before_the_kill = group.held()
    results = group.root / "grading" / "results" / SECTION
    before = {p.name: p.stat().st_mtime_ns for p in results.iterdir()}
    command = [sys.executable, "-m", "grading.autograde", "--force", "--jobs", "1"]
    env = {**os.environ, "PYTHONPATH": str(group.root)}
    process = subprocess.Popen(
        command, cwd=group.root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 300
        while {p.name: p.stat().st_mtime_ns for p in results.glob("[!.]*.json")} == before:
            assert process.poll() is None, "the run was over before it had a result"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)  # into the next submission
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert children, "the kill was to hit a run at work"
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive
    assert group.held() != before_the_kill, "old marks pass for those of the new run"
    resumed = group.autograde("--resume", "--jobs", "2")
    assert resumed.returncode == 0, resumed.stdout[-4000:]
    assert group.scores(SECTION)["all_right"]["frame_difference"] == 0.25, "what a person gave is lost"
    give(group, None)
    assert group.held() == graded
    changed = {p.name for p in results.iterdir() if p.stat().st_mtime_ns != before[p.name]}
    assert changed == set(before), "--resume forgot that the run was to grade everything again"


def test_what_nobody_can_read_counts_as_zero_or_costs_another_student(group, graded):
    whole = group.file("all_right").read_text(encoding="utf-8")
    broken = {
        "b_no_notebook": ("essay.txt", "see my e-mail"),
        "b_not_json": ("tensor_costs.ipynb", "Dear all,"),
        "b_empty": ("tensor_costs.ipynb", ""),
    }
    try:
        for student, (name, text) in broken.items():
            group.file(student, name).parent.mkdir(parents=True)
            group.file(student, name).write_text(text)
        (group.root / "grading" / "submitted" / "b_empty" / "99_elsewhere").mkdir()
        done = group.autograde()
        assert done.returncode == 1, done.stdout
        assert f"{len(STUDENTS)} graded, 3 not gradable" in done.stdout
        assert "b_empty/99_elsewhere is no section's folder" in done.stdout
        for why in ("no notebook was handed in", "the file is no notebook", "the notebook's file is empty"):
            assert f"not gradable: {why}" in done.stdout
        with (group.root / "grading" / "summary.csv").open() as file:
            rows = {r["student"]: r for r in csv.DictReader(file)}
        assert [rows[s]["points"] for s in broken] == ["", "", ""]
        held = group.held()
        assert {s: held[s] for s in STUDENTS} == graded
        for student in broken:
            grades = held[student][0]
            assert all(auto is None and needs_a_person for auto, _, _, _, needs_a_person in grades.values()), student
        # Handed in again, as a damaged file under another name.
        group.file("b_empty").unlink()
        group.file("b_empty", "tensor_costs (1).ipynb.txt").write_text(whole.rstrip().removesuffix("}") + ",}")
        again = group.autograde("--students", "b_empty")
        assert again.returncode == 0, again.stdout
        assert "the file is damaged" in again.stdout
        assert group.scores(SECTION)["b_empty"] == group.scores(SECTION)["all_right"]
        # And replaced by one that cannot be read: the mark of the old one goes.
        group.file("b_empty", "tensor_costs (1).ipynb.txt").write_text("oh")
        assert group.autograde("--students", "b_empty").returncode == 1
        assert all(grade[0] is None for grade in group.held()["b_empty"][0].values())
        assert not group.autograded("b_empty").exists()
    finally:
        with group.gradebook() as gradebook:
            for student in broken:
                shutil.rmtree(group.root / "grading" / "submitted" / student, ignore_errors=True)
                gradebook.remove_student(student)


def test_a_wrong_call_ends_in_a_traceback_or_costs_marks(group, graded):
    for options, said in (
        (["--students", "nobody"], "no submissions of nobody"),
        (["--force", "--scheduler", "nonsense://x"], "no Dask scheduler answers"),
    ):
        done = group.autograde(*options)
        assert done.returncode == 2, done.stdout
        assert said in done.stdout
        assert "Traceback" not in done.stdout
    assert group.held() == graded
    with pytest.raises(ValueError, match="unknown option --frobnicate"):
        load_config(["--frobnicate"])


# ------------------------------------------------------------------------------------------ engines
def task(student: str, folder: Path) -> Task:
    """A task whose work is decided by the student's name; see :func:`work`."""
    return Task(student, str(folder), "x", "key", HandedIn(None), Released({}, {}), frozenset(), {}, Config())


def work(task: Task) -> Result:
    """Dies always, dies the first time, or takes a moment."""
    tried = Path(task.assignment, task.student)
    first = not tried.exists()
    tried.touch()
    if task.student == "dies" or (task.student == "dies once" and first):
        os._exit(9)
    time.sleep(0.1)
    return Result(task.student, task.assignment, task.notebook, task.key, GRADED, why=str(os.getpid()))


NAMES = ["ann", "dies once", "bob", "dies", "cem", "dia"]


def test_a_process_that_dies_takes_other_submissions_along(tmp_path):
    engine = Local(2, work)
    try:
        results = {r.student: r for r in run(engine, [task(n, tmp_path) for n in NAMES])}
    finally:
        engine.stop()
    assert {n: r.status for n, r in results.items()} == {n: NOT_GRADABLE if n == "dies" else GRADED for n in NAMES}
    assert f"{TRIES} processes ended" in results["dies"].why
    pids = {int(r.why) for r in results.values() if r.status == GRADED}
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids), "workers go on behind the run's back"


@pytest.fixture(scope="module")
def scheduler():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (the extra 'cluster')")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_a_worker_of_a_cluster_that_is_lost_takes_submissions_along(scheduler, tmp_path):
    engine = Cluster(scheduler, work)
    try:
        names = [n for n in NAMES if n != "dies"]
        results = list(run(engine, [task(n, tmp_path) for n in names]))
    finally:
        engine.stop()
    assert sorted(r.student for r in results) == sorted(names)
    assert {r.status for r in results} == {GRADED}


def test_a_cluster_gives_other_marks_than_one_machine(scheduler, group, graded):
    done = group.autograde("--scheduler", scheduler, "--force", "--students", "all_right")
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 graded, 0 not gradable" in done.stdout
    assert group.held() == graded


def test_an_error_of_the_grader_becomes_a_zero(tmp_path):
    result = grade(task("ann", tmp_path))
    assert result.status == NOT_GRADABLE
    broken = Task("ann", "01_x", "x", "key", HandedIn(b'{"cells": [{"cell_type": "code"}]}'), *([None] * 4))
    assert grade(broken).status == NOT_GRADABLE
    assert grade(broken).why
