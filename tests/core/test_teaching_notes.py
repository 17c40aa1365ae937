"""The teaching notes, held against the notebooks and the answer bank that they speak of."""

from __future__ import annotations

import pytest

from course_utils.observe.registry import all_exercises
from course_utils.student.released import find
from grading.bank import answers
from grading.book.editions import executed, headings
from grading.book.places import rows_of
from grading.source import ROOT, sections


@pytest.fixture(params=sections(), ids=lambda s: s.assignment)
def section(request):
    return request.param


@pytest.fixture
def notes(section) -> str:
    return (ROOT / "docs" / "teaching" / f"{section.assignment}.md").read_text(encoding="utf-8")


def test_the_demo_names_a_heading_that_is_not_there_or_goes_back_or_takes_longer(section, notes):
    titles = [h.title for h in headings(section, executed(section))]
    rows = rows_of(notes, "minutes")
    places = [titles.index(row[1]) for row in rows]
    assert places == sorted(places) and len(rows) >= 6
    assert sum(int(row[0]) for row in rows) == 20


def test_the_notes_speak_of_a_wrong_answer_that_the_bank_does_not_know(section, notes):
    wrong = {(a.exercise, a.name) for a in answers(section.name) if not a.right}
    rows = rows_of(notes, "exercise")
    named = {(row[0].strip("`"), row[1].split("`")[1]) for row in rows}
    assert len(named) == len(rows) >= 8
    assert named - wrong == set()


def test_the_timing_of_the_notes_is_not_that_of_the_exercises(section, notes):
    minutes = {e.id: e.minutes for e in all_exercises(section.name)}
    *parts, total = rows_of(notes, "part")
    named = [name for row in parts for name in row[4].replace("`", "").split(", ") if name]
    assert sorted(named) == sorted(minutes)
    for row in parts:
        own = [name for name in row[4].replace("`", "").split(", ") if name]
        assert int(row[3]) == sum(minutes[name] for name in own), row
    assert int(total[3]) == sum(minutes.values())
    assert int(total[2]) == sum(int(row[2]) for row in parts)


def test_the_rubric_gives_other_points_than_the_question_promises(section, notes):
    ((name, points),) = find(section.assignment).section.reflections.items()
    assert f"`{name}`" in notes
    assert sum(float(row[0]) for row in rows_of(notes, "points")) == points
