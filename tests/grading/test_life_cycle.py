"""Section 1 from release to feedback through plain nbgrader commands, with submissions of every kind."""

from __future__ import annotations

import csv
import re

import nbformat
import pytest
from submissions import SECTION, Submission, submissions

from grading.references import load_references


@pytest.fixture(scope="module")
def handed_in(course) -> dict[str, Submission]:
    everything = {s.name: s for s in submissions(course.released(SECTION))}
    for submission in everything.values():
        course.submit(submission.name, SECTION, submission.notebook)
    return everything


@pytest.fixture(scope="module")
def graded(course, handed_in) -> dict[str, dict[str, float]]:
    released = course.run("grading.release", "--gradebook-only")
    assert released.returncode == 0, released.stdout
    # A short limit: the endless loop is waited for, nothing else comes near it.
    run = course.run("nbgrader", "autograde", SECTION, "--Execute.timeout=25")
    assert run.returncode == 0, run.stdout[-4000:]
    return course.scores(SECTION)


def test_every_submission_gets_what_it_deserves(graded, handed_in):
    assert graded == {name: pytest.approx(s.deserved) for name, s in handed_in.items()}


def test_grading_again_gives_the_same_marks(course, graded):
    names = ["all_right", "half_done", "wasteful"]
    for name in names:
        run = course.run("nbgrader", "autograde", SECTION, "--force", f"--student={name}")
        assert run.returncode == 0, run.stdout[-4000:]
    again = course.scores(SECTION)
    assert {n: again[n] for n in names} == {n: graded[n] for n in names}


def test_another_salt_gives_the_same_marks_for_the_same_answers(course, graded):
    salt = course.root / "grading" / "secret_salt"
    before = salt.read_text()
    salt.write_text("another secret, long enough to be one: 0123456789abcdef\n")
    try:
        for name in ("all_right", "wasteful", "forges_a_result"):
            run = course.run("nbgrader", "autograde", SECTION, "--force", f"--student={name}")
            assert run.returncode == 0, run.stdout[-4000:]
        again = course.scores(SECTION)
    finally:
        salt.write_text(before)
    for name in ("all_right", "wasteful", "forges_a_result"):
        assert again[name] == graded[name], name


def test_export_lacks_a_student_or_makes_a_missing_mark_a_zero(course, graded):
    run = course.run("grading.grades")
    assert run.returncode == 0, run.stdout
    with (course.root / "grading" / "grades.csv").open() as file:
        rows = {r["student_id"]: r["score"] for r in csv.DictReader(file) if r["assignment"] == SECTION}
    assert {name: float(score) for name, score in rows.items() if score} == {
        name: pytest.approx(sum(points.values())) for name, points in graded.items()
    }


def test_a_broken_cache_of_the_reference_costs_no_mark(course, graded):
    cache = course.root / "grading" / ".cache"
    for file in cache.iterdir():
        file.write_text("{ broken")
    run = course.run("nbgrader", "autograde", SECTION, "--force", "--student=all_right")
    assert run.returncode == 0, run.stdout[-4000:]
    assert course.scores(SECTION)["all_right"] == graded["all_right"]


@pytest.fixture(scope="module")
def feedback(course, graded) -> dict[str, str]:
    run = course.run("nbgrader", "generate_feedback", SECTION)
    assert run.returncode == 0, run.stdout[-4000:]
    folder = course.root / "grading" / "feedback"
    return {p.parents[1].name: p.read_text() for p in folder.glob(f"*/{SECTION}/*.html")}


def test_feedback_shows_no_reference_answer(feedback):
    cells = load_references("tensor_costs").section.answer_cells()
    lines = set()
    for cell in cells.values():
        region = re.search(r"### BEGIN SOLUTION\n(.*)### END SOLUTION", cell.source, re.S).group(1)
        lines |= {line.strip() for line in region.splitlines() if len(line.strip()) > 40}
    assert lines
    pages = {n: re.sub(r"<[^>]+>", "", p) for n, p in feedback.items() if n in ("nothing_done", "wasteful")}
    assert "nothing_done" in pages
    for line in lines:
        assert line not in pages["nothing_done"], line


def test_feedback_shows_no_expected_hidden_value(course, feedback):
    page = feedback["forges_a_result"]
    assert "not shown: graded on other inputs" in page
    executed = course.root / "grading" / "autograded" / "forges_a_result" / SECTION / "tensor_costs.ipynb"
    notebook = nbformat.read(executed, as_version=4)
    cards = [
        output.data["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "display_data" and cell.metadata.get("nbgrader", {}).get("grade")
    ]
    assert cards
    for text in cards:
        assert all(
            "not shown" in row or "a result" in row or "something called" in row
            for row in text.splitlines()
            if row.startswith("expected:")
        )


def test_feedback_holds_the_card_of_each_exercise_readable_without_styles(feedback, handed_in):
    page = feedback["wasteful"]
    assert "right but wasteful" in page
    assert "course-card" in page
    for exercise in handed_in["wasteful"].deserved:
        assert exercise in page


def test_no_facts_of_hidden_cases_stay_in_the_graded_notebook(course, graded):
    for path in (course.root / "grading" / "autograded").glob(f"*/{SECTION}/*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                assert not any("facts" in mime for mime in output.get("data", {})), path


def test_validate_and_autograde_agree_on_the_public_case(course, graded, tmp_path, handed_in):
    for name in ("all_right", "nothing_done", "wasteful"):
        notebook = nbformat.read(course.root / "grading" / "submitted" / name / SECTION / "tensor_costs.ipynb", 4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown" and cell.metadata.get("nbgrader", {}).get("solution"):
                cell.source = "An answer in words: without one nbgrader's validate counts one failed cell more."
        path = tmp_path / name / SECTION / "tensor_costs.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)
        run = course.run("nbgrader", "validate", str(path))
        failed = [e for e, p in graded[name].items() if p < handed_in["all_right"].deserved[e]]
        if failed:
            assert f"VALIDATION FAILED ON {len(failed)} CELL(S)" in run.stdout, run.stdout[-3000:]
            assert all(f'check("{e}")' in run.stdout for e in failed)
        else:
            assert "Success! Your notebook passes all the tests." in run.stdout, run.stdout[-3000:]
