"""`make feedback` after a person has changed a mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_course import ASSIGNMENT, MiniCourse
from nbgrader.api import Gradebook


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> MiniCourse:
    course = MiniCourse(tmp_path_factory.mktemp("feedback"))
    for student in ("ann", "bob"):
        course.hand_in(student, course.notebook())
    graded = course.grade()
    assert graded.returncode == 0, graded.stdout
    return course


def written(course: MiniCourse) -> dict[str, Path]:
    run = course.run("grading.write_feedback", ASSIGNMENT)
    assert run.returncode == 0, run.stdout
    return {s: course.root / "grading" / "feedback" / s / ASSIGNMENT / "mini.html" for s in ("ann", "bob")}


def test_a_page_shows_old_marks_or_is_written_without_need(course):
    pages = written(course)
    first = {s: p.stat().st_mtime_ns for s, p in pages.items()}
    assert {s: p.stat().st_mtime_ns for s, p in written(course).items()} == first

    with Gradebook(f"sqlite:///{course.root / 'grading' / 'gradebook.db'}") as gradebook:
        gradebook.find_grade("doubled", "mini", ASSIGNMENT, "ann").manual_score = 0.25
        gradebook.db.commit()
    again = written(course)
    assert "(Score: 0.25 / 2.0)" in again["ann"].read_text()
    assert again["bob"].stat().st_mtime_ns == first["bob"]

    with Gradebook(f"sqlite:///{course.root / 'grading' / 'gradebook.db'}") as gradebook:
        gradebook.find_grade("doubled", "mini", ASSIGNMENT, "ann").manual_score = 0.5
        gradebook.db.commit()
    (course.root / "grading" / "autograded" / "ann" / ASSIGNMENT / "mini.ipynb").unlink()
    course.run("grading.write_feedback", ASSIGNMENT)
    assert "(Score: 0.25 / 2.0)" in again["ann"].read_text(), "the page is lost where no other can be written"
