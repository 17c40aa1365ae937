"""What is built from solutions/ is what is committed, and it runs."""

from __future__ import annotations

import json
import re

import nbformat
import pytest

from course_utils.student.released import RELEASED, released_text
from grading.build import _same_cells, expected_text, release_text, source_notebook
from grading.source import ROOT, sections

SECTIONS = sections()


@pytest.fixture(scope="module", params=SECTIONS, ids=lambda s: s.assignment)
def section(request):
    return request.param


def test_the_students_notebook_is_the_one_that_the_source_makes(section):
    path = ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb"
    assert path.read_text() == release_text(section, source_notebook(section)), "run `make build` and commit"


def test_students_are_compared_with_other_cells_than_those_that_were_released(section):
    path = ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    recorded = (RELEASED / f"{section.name}.json").read_text(encoding="utf-8")
    assert recorded == released_text(section.assignment, notebook), "run `make build` and commit"


def test_the_expected_behaviour_is_what_the_reference_does(section):
    path = ROOT / "course_utils" / "expected" / f"{section.name}.json"
    assert json.loads(path.read_text()) == json.loads(expected_text(section)), "run `make build` and commit"


def test_the_reference_edition_is_made_of_the_sources_cells_and_was_executed(section):
    path = section.path.with_suffix("") / f"{section.name}.ipynb"
    assert _same_cells(path, source_notebook(section)), "run `make build` and commit"


def test_the_students_notebook_holds_no_answer(section):
    text = (ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb").read_text()
    assert "BEGIN SOLUTION" not in text and "END SOLUTION" not in text
    released = nbformat.reads(text, as_version=4)
    for cell in released.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            assert "YOUR CODE HERE" in cell.source or cell.source == "YOUR ANSWER HERE"


def test_a_section_asks_nothing_in_words_or_asks_without_saying_what_earns_the_points(section):
    path = section.path.with_suffix("") / f"{section.name}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    (at,) = [i for i, c in enumerate(cells) if c.cell_type == "markdown" and "nbgrader" in c.metadata]
    question, points = cells[at - 1].source, cells[at].metadata.nbgrader.points
    assert f"*{points:g} points, given by a person who reads it" in question
    assert sum(float(n) for n in re.findall(r"^\* ([\d.]+) points?: ", question, re.M)) == points


def test_the_reference_edition_runs_top_to_bottom_without_stderr(section):
    from grading.build import execute

    execute(section, source_notebook(section), timeout=300)  # seconds a cell: a busy machine takes three times as long


def test_the_students_notebook_runs_top_to_bottom_before_anything_is_answered(section, tmp_path, monkeypatch):
    """Only answer stubs at module level and checks may fail; every demonstration must run."""
    from nbclient import NotebookClient

    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path))
    path = ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=300, allow_errors=True, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        grade = cell.metadata.get("nbgrader", {}).get("grade")
        for output in cell.get("outputs", []):
            if grade and output.output_type == "error":
                assert output.ename == "CheckFailed", output.traceback
            elif not grade:
                assert output.output_type != "error", f"{cell.source}\n{output.get('evalue')}"
                assert output.get("name") != "stderr", f"{cell.source}\n{output.text}"
