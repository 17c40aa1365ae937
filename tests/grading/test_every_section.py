"""Every other section through release, autograde and feedback: full marks, none, and half in a mess."""

from __future__ import annotations

import pytest
from submissions import SECTION, few_submissions

from grading.source import sections

OTHERS = [s.assignment for s in sections() if s.assignment != SECTION]


@pytest.mark.parametrize("assignment", OTHERS)
def test_every_submission_gets_what_it_deserves_and_feedback(course, assignment):
    handed_in = {s.name: s for s in few_submissions(course.released(assignment), assignment)}
    for submission in handed_in.values():
        course.submit(submission.name, assignment, submission.notebook)
    released = course.run("grading.release", "--gradebook-only", assignment)
    assert released.returncode == 0, released.stdout
    run = course.run("nbgrader", "autograde", assignment)
    assert run.returncode == 0, run.stdout[-4000:]
    assert course.scores(assignment) == {name: pytest.approx(s.deserved) for name, s in handed_in.items()}
    feedback = course.run("nbgrader", "generate_feedback", assignment)
    assert feedback.returncode == 0, feedback.stdout[-4000:]
    pages = list((course.root / "grading" / "feedback").glob(f"*/{assignment}/*.html"))
    assert len(pages) == len(handed_in)
