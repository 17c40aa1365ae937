"""Released notebooks in JupyterLab, run from top to bottom before anything is answered."""

from __future__ import annotations

import nbformat
import pytest

from tests.browser.lab import HEIGHT, ROOT, THEMES, WIDTH

NOTEBOOKS = sorted(path.relative_to(ROOT / "notebooks") for path in (ROOT / "notebooks").glob("*/*.ipynb"))
PARTS = {
    "picture": ".jp-OutputArea img",
    "graph": ".jp-RenderedMermaid",
    "table": ".jp-OutputArea table",
    "card": ".course-card",
    "question": ".widget-radio",
    "widget": ".widget-html-content img",
}


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.parts[0])
def book(request, open_notebook):
    notebook = open_notebook(request.param.as_posix())
    notebook.run_all(600)
    yield notebook
    notebook.close()


def test_run_all_stops_or_a_demonstration_fails(book):
    """Only check cells may fail, and stubs that are run as they stand."""
    assert book.not_run() == []
    cells = nbformat.read(ROOT / "notebooks" / book.path, as_version=4).cells
    failed, noise = [], []
    for number, (cell, outputs) in enumerate(zip(cells, book.outputs(), strict=True)):
        marks = cell.metadata.get("nbgrader", {})
        allowed = "CheckFailed" if marks.get("grade") else "NotImplementedError" if marks.get("solution") else None
        for output in outputs:
            if output["output_type"] == "error" and output["ename"] != allowed:
                failed.append((number, output["ename"], output["evalue"]))
            if output.get("name") == "stderr":
                noise.append((number, output["text"]))
    assert failed == [] and noise == []


def test_the_browser_meets_an_error_of_its_own(book):
    assert book.complaints == []


def test_a_picture_is_broken_or_says_nothing_to_a_screen_reader(book):
    pictures = book.measure("looks.pictures()")
    assert pictures
    assert [p["place"] for p in pictures if not p["drawn"] or len(p["alt"]) < 10] == []


def test_a_graph_is_not_drawn(book):
    sent = sum("text/vnd.mermaid" in output.get("data", {}) for cell in book.outputs() for output in cell)
    if not sent:
        pytest.skip("this section draws no graph")
    assert book.page.locator(".jp-RenderedMermaid img, .jp-RenderedMermaid svg").count() == sent


@pytest.mark.parametrize("theme", THEMES)
def test_a_text_can_hardly_be_told_from_its_ground(book, theme):
    book.theme(theme)
    texts = book.measure("looks.contrasts()")
    book.photograph(f"{book.path.split('/')[0]}-{theme}", PARTS)
    assert texts["count"] > 500 and texts["low"] == []


def test_something_is_cut_off_when_the_page_is_zoomed_to_200_percent(book):
    """To a page, zoom is half the width."""
    wide = {}
    for zoom in (1, 2):
        book.page.set_viewport_size({"width": WIDTH // zoom, "height": HEIGHT // zoom})
        book.page.wait_for_timeout(1000)
        wide[zoom] = book.measure("looks.overflows()")
    book.photograph(f"{book.path.split('/')[0]}-zoomed", PARTS)
    book.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    assert wide == {1: [], 2: []}
