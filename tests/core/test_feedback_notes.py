"""What a feedback page says below an answer that a person marks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from nbformat import from_dict

from grading.feedback import Marks


@pytest.mark.parametrize(
    ("waits", "manual", "said"),
    [
        (True, None, "Not marked yet: a person reads this answer.\n\nWell begun."),
        (True, 1.5, "Well begun."),  # graded again: to be looked at once more, and the mark counts meanwhile
        (False, 0.0, "Well begun."),
    ],
)
def test_an_answer_that_waits_looks_like_a_zero_or_a_mark_that_was_given_like_none(waits, manual, said):
    grade = SimpleNamespace(score=manual or 0.0, max_score=2.0, needs_manual_grade=waits, manual_score=manual)
    marks = Marks()
    marks.gradebook = SimpleNamespace(find_grade=lambda *where: grade)
    marks.notebook_id, marks.assignment_id, marks.student_id = "mini", "09_mini", "ann"
    cell = from_dict({"metadata": {"nbgrader": {"grade_id": "reflection", "comment": "Well begun."}}})
    marks._get_score(cell, {})
    assert cell.metadata.nbgrader.comment == said
