"""Who has an error text in front of them types it into the book's search, opened from the disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.lab import ROOT

pytest.importorskip("sphinx_immaterial", reason="the books need the extra `book` (pip install -r requirements.txt)")

SEARCH = "input[data-md-component=search-query]"


@pytest.fixture(scope="module")
def book(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("book")
    # In a process of its own: Sphinx in the process of Playwright's event loop lets the browser hang when it is closed.
    subprocess.run([sys.executable, "-m", "grading.book", "learners", "--out", str(folder)], cwd=ROOT, check=True)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((folder / "learners" / "index.html").as_uri())
    yield page
    page.close()


@pytest.mark.parametrize(
    "typed",
    [
        "Expected all tensors to be on the same device",
        "view size is not compatible",
        "Too many open files",
        "element 0 of tensors does not require grad",
        "is a view and is being modified inplace",
        "Cannot re-initialize CUDA in forked subprocess",
        "source state dict is empty",
    ],
)
def test_an_error_text_typed_into_the_search_does_not_lead_to_its_entry(book: Page, typed: str):
    book.locator(SEARCH).click()
    book.fill(SEARCH, typed)
    book.locator(SEARCH).press("End")  # the theme searches after a key
    hit = book.locator(".md-search-result__item a").first
    hit.wait_for()
    with book.expect_navigation():
        hit.click()
    entry = book.locator("h3", has_text=typed).first
    entry.wait_for()
    book.wait_for_function("scrollY > 0")
    top = entry.bounding_box()["y"]
    assert "symptoms.html" in book.url
    assert 48 <= top < 400, f"{typed}: the entry is {top:.0f} pixels below the window's top"
