"""A learner's answer in JupyterLab: check, the Validate button, the card, and what is remembered."""

from __future__ import annotations

import re
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from grading.source import sections
from tests.browser.lab import ROOT, THEMES

SECTION, EXERCISE = "01_tensor_costs", "strides_after"
WRONG = "def strides_after(shape, order):\n    return tuple(shape)"


def right_answer() -> str:
    source = sections(SECTION)[0].answer_cells()[EXERCISE].source
    return re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", source, flags=re.M)


@pytest.fixture(scope="module", params=["right", "wrong"])
def answered(request, server, open_notebook):
    """The released notebook with one exercise only, so that validation takes seconds."""
    released = nbformat.read(next((ROOT / "notebooks" / SECTION).glob("*.ipynb")), as_version=4)
    cells = {c.metadata.get("nbgrader", {}).get("grade_id"): c for c in released.cells}
    setup, answer, check = cells["setup-1"], cells[f"answer-{EXERCISE}"], cells[EXERCISE]
    answer.source = right_answer() if request.param == "right" else WRONG
    notebook = new_notebook(cells=[setup, answer, check, new_code_cell('progress("tensor_costs")')])
    notebook.metadata = released.metadata
    nbformat.write(notebook, server.folder / f"{request.param}.ipynb")
    opened = open_notebook(f"{request.param}.ipynb")
    opened.run_all(120)
    yield SimpleNamespace(book=opened, right=request.param == "right")
    opened.close()


def test_check_does_not_tell_right_from_wrong(answered):
    card, *error = answered.book.outputs()[2]
    kind = "good" if answered.right else "bad"
    assert f"course-card-{kind}" in card["data"]["text/html"]
    assert [e["ename"] for e in error] == ([] if answered.right else ["CheckFailed"])


def test_the_validate_button_disagrees_with_check(answered):
    page = answered.book.page
    page.locator(".validate-button").click()
    result = page.locator(".jp-Dialog .validation-success, .jp-Dialog .validation-failed")
    result.wait_for(timeout=180_000)
    passed = "validation-success" in result.get_attribute("class")
    text = result.inner_text()
    page.keyboard.press("Escape")
    assert passed == answered.right, text
    if not answered.right:
        assert f'check("{EXERCISE}")' in text


@pytest.mark.parametrize("theme", THEMES)
def test_a_card_can_hardly_be_read(answered, theme):
    book = answered.book
    book.theme(theme)
    for fold in book.page.locator(".course-card details:not([open]) summary").all():
        fold.click()
    texts = book.measure("looks.contrasts()")
    book.photograph(f"card-{'right' if answered.right else 'wrong'}-{theme}", {"card": ".course-card"})
    assert texts["count"] > 50 and texts["low"] == []


def test_progress_is_lost_with_the_kernel(answered):
    book = answered.book
    book.restart()
    book.run(0)
    book.run(3)
    row = re.search(rf"{EXERCISE}.*", book.outputs()[3][0]["data"]["text/plain"])[0]
    assert ("✓" in row) == answered.right
    assert "not started" not in row
