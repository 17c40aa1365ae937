"""What is broken costs what is broken: the rest is graded, others keep their marks, and the instructor is told why."""

from __future__ import annotations

import json

import pytest
from damage import FAULTS, Fault
from mini_course import ASSIGNMENT, POINTS, MiniCourse
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook

GOOD = ("a-good", "z-good")
LIMITS = (
    "--Execute.timeout=5",
    "--Execute.iopub_timeout=20",
    "--Sandbox.memory=1000",
    "--Sandbox.processes=40",
    "--Sandbox.scratch=96",
    "--Sandbox.output=1",
)


def _hand_in(course: MiniCourse, fault: Fault) -> None:
    notebook = course.notebook(**fault.answers)
    if fault.first:
        notebook.cells.insert(0, new_code_cell(fault.first))
    if fault.change:
        fault.change(notebook)
    data = fault.file(notebook) if fault.file else json.dumps(notebook).encode()
    folder = course.folder(fault.student)
    if fault.place:
        fault.place(folder, data)
    else:
        course.hand_in(fault.student, data)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> MiniCourse:
    course = MiniCourse(tmp_path_factory.mktemp("faults"))
    for name in GOOD:
        course.hand_in(name, course.notebook())
    for fault in FAULTS:
        _hand_in(course, fault)
    done = course.grade("--jobs", "2", *LIMITS)
    assert done.returncode == 1, done.stdout[-4000:]
    course.scored, course.rows = course.scores(ASSIGNMENT), course.told()
    return course


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.student)
def fault(request) -> Fault:
    return request.param


def test_a_fault_costs_more_than_what_is_broken(fault, graded):
    row = graded.rows[fault.student]
    if fault.earns:
        assert row["state"] == "graded", row["why"]
        assert graded.scored[fault.student] == pytest.approx(fault.earns)
    else:
        assert (row["state"], row["points"]) == ("not gradable", ""), "it passes for a 0 that somebody has given"


def test_an_instructor_is_not_told_of_a_fault(fault, graded):
    row = graded.rows[fault.student]
    said = f"{row['why']} {row['notes']} {row['to look at']}"
    assert fault.said.lower() in said.lower()


def test_what_is_not_gradable_has_a_mark(graded):
    with Gradebook(f"sqlite:///{graded.root / 'grading' / 'gradebook.db'}") as gradebook:
        for fault in FAULTS:
            if not fault.earns:
                notebook = gradebook.find_submission_notebook("mini", ASSIGNMENT, fault.student)
                assert all(g.auto_score is None and g.needs_manual_grade for g in notebook.grades), fault.name


def test_faults_cost_a_good_student_marks(graded):
    assert {name: graded.scored[name] for name in GOOD} == dict.fromkeys(GOOD, pytest.approx(POINTS))


def test_there_are_fewer_faults_than_promised():
    assert len({f.student for f in FAULTS}) == len(FAULTS) >= 40
