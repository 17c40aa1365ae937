"""docs/manual-grading.md, step by step: formgrader in a browser, on a course of its own with three submissions."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook
from playwright.sync_api import Page

from tests.browser.lab import HEIGHT, SCREENSHOTS, WIDTH, served
from tests.grading.conftest import Course

SECTION, NOTEBOOK, REFLECTION = "01_tensor_costs", "tensor_costs", "reflection-storage_and_description"
WORDS = {  # what each student answered; None: nothing
    "ann": "A tensor *describes* a storage. A transpose writes other strides; a slice holds the storage whole.",
    "bob": None,
    "cem": "Views are free.",
}
COMMENT = "And why does contiguous() not let it go?"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Graded by the program, not yet by a person."""
    course = Course(tmp_path / "course")
    released = course.released(SECTION)
    for student, words in WORDS.items():
        cells = [
            c for c in released.cells if "nbgrader" in c.metadata
        ]  # without the demonstrations: seconds, not minutes
        notebook = nbformat.from_dict(new_notebook(cells=cells, metadata=released.metadata))
        for cell in notebook.cells:
            if cell.metadata.nbgrader.grade_id == REFLECTION and words:
                cell.source = words
        course.submit(student, SECTION, notebook)
    for command in (["grading.release", "--gradebook-only", SECTION], ["grading.autograde", "--jobs", "1"]):
        done = course.run(*command)
        assert done.returncode == 0, done.stdout[-3000:]
    return course


def submission_ids(course: Course) -> dict[str, str]:
    with Gradebook(f"sqlite:///{course.root / 'grading' / 'gradebook.db'}") as gradebook:
        return {s: gradebook.find_submission_notebook(NOTEBOOK, SECTION, s).id for s in WORDS}


def photograph(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"grading-{name}.png")


def test_a_mark_or_a_comment_in_formgrader_is_lost_or_not_seen_by_the_student(browser, course, tmp_path):
    ids = submission_ids(course)
    (tmp_path / "lab").mkdir()
    with served(tmp_path / "lab", course=course.root) as server:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        page.set_default_timeout(60_000)
        page.goto(f"{server.url}lab?token={server.token}")  # formgrader itself does not remember a token
        page.goto(f"{server.url}formgrader/gradebook/{SECTION}/{NOTEBOOK}")
        page.wait_for_selector(f"a[href*='{ids['ann']}']")
        photograph(page, "list")
        waiting = page.locator("tr:has(td[data-search='needs manual grade'])")
        hrefs = [row.locator("a[href*='submissions']").first.get_attribute("href") for row in waiting.all()]
        assert {s for s in WORDS if any(ids[s] in href for href in hrefs)} == {"ann", "cem"}, "who is to be read"

        page.locator(f"a[href*='{ids['ann']}']").first.click()
        score, comment = page.locator(f"#{REFLECTION}"), page.locator(f"#{REFLECTION}-comment")
        score.wait_for()
        page.wait_for_load_state("networkidle")  # the marks have come
        assert "needs_manual_grade" in score.get_attribute("class")
        for box, text in ((score, "1.5"), (comment, COMMENT)):
            with page.expect_response(
                lambda answer: "/api/" in answer.url and answer.request.method == "PUT"
            ) as answer:
                box.fill(text)
                box.press("Tab")
            assert answer.value.ok
        score.scroll_into_view_if_needed()
        photograph(page, "mark")

        again = course.run("grading.autograde", "--force", "--students", "ann")
        assert again.returncode == 0, again.stdout[-3000:]
        page.goto(f"{server.url}formgrader/submissions/{ids['ann']}/?index=0")
        page.wait_for_load_state("networkidle")
        assert (score.input_value(), comment.input_value()) == ("1.5", COMMENT)
        resolve = page.locator(f".nbgrader_cell:has(#{REFLECTION}) .mark-graded")
        resolve.scroll_into_view_if_needed()
        photograph(page, "resolve")
        with page.expect_response(lambda answer: "/api/grade/" in answer.url and answer.request.method == "PUT"):
            resolve.click()
        resolve.wait_for(state="hidden")

        done = course.run("nbgrader", "generate_feedback", SECTION)
        assert done.returncode == 0, done.stdout[-3000:]
        pages = {s: course.root / "grading" / "feedback" / s / SECTION / f"{NOTEBOOK}.html" for s in WORDS}
        page.goto(pages["ann"].as_uri())
        shown = page.locator(".nbgrader_cell", has_text="describes a storage")
        shown.scroll_into_view_if_needed()
        photograph(page, "feedback")
        text = shown.inner_text()
        page.close()
    assert COMMENT in text and "1.5 / 2.0" in text
    assert "No response." in pages["bob"].read_text() and COMMENT not in pages["cem"].read_text()
