"""The page that a student's notebook becomes runs nothing in the browser of whoever opens it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from catalogue import ATTACKS
from mini_course import ASSIGNMENT
from nbconvert.exporters import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from grading.settings import load_config

SHOWN = [a for a in ATTACKS if "owned" in a.last or a.name in ("script in texts", "names that break a page")]
# The page's own: styles, and MathJax, which keeps to safe links by its "Safe" extension.
OWN = ("meta", "style", "script")
ACTIVE = (*OWN, "iframe", "object", "embed", "form", "base", "link", "applet", "frame", "svg", "math", "input", "video")


class Page(HTMLParser):
    """The elements and attributes of a page that could run something, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script"
        if tag in ACTIVE:
            self.active.append(tag)
        for name, value in attributes:
            target = "".join((value or "").lower().split())
            runs = target.startswith(("javascript:", "vbscript:")) or (
                target.startswith("data:") and not (tag == "img" and target.startswith("data:image/"))
            )
            runs = runs or (name == "style" and "url" in target)  # colours are harmless
            if name.startswith("on") or name in ("srcdoc", "formaction") or runs:
                self.active.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False


@pytest.fixture(scope="module")
def pages(graded) -> dict[str, str]:
    pages = {}
    for student in ("a-good", *(a.student for a in SHOWN)):
        made = graded.course.run("nbgrader", "generate_feedback", ASSIGNMENT, "--student", student)
        assert made.returncode == 0, made.stdout
        folder = graded.course.root / "grading" / "feedback" / student / ASSIGNMENT
        pages[student] = (folder / "mini.html").read_text(encoding="utf-8")
    return pages


@pytest.mark.parametrize("student", [a.student for a in SHOWN])
def test_feedback_runs_what_a_student_wrote(student, pages):
    page, good = Page(pages[student]), Page(pages["a-good"])
    assert page.active == good.active, "more than the page's own"
    assert page.scripts == good.scripts


@pytest.mark.parametrize("student", [a.student for a in SHOWN])
def test_feedback_sends_codes_to_a_terminal(student, pages):
    assert {c for c in pages[student] if ord(c) < 32} <= {"\n", "\t", "\r"}


def test_feedback_lost_headings_text_or_cards(pages):
    page = pages["a-good"]
    for part in ("<h1", "A small section", "Do they share memory?", 'class="course-card course-card-good"', "<p>"):
        assert part in page
    assert len(SHOWN) == 3


def test_feedback_shows_our_cards_tables_or_figures_as_text():
    figure = "<p><img src='data:image/png;base64,iVBORw0KGgo=' alt='a figure'></p>"
    table = "<table><thead><tr><th style='text-align: left'>state</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>"
    outputs = [
        new_output("display_data", {"text/markdown": figure}),
        new_output("display_data", {"text/html": table}),
        new_output("display_data", {"text/html": "<div class='course-card'><p>Measured</p></div>"}),
        new_output(
            "display_data", {"text/html": "<p onclick='x()' style='position:fixed'>bad</p><script>x()</script>"}
        ),
        new_output("display_data", {"text/html": "<img src='https://example.org/who.png' alt='remote'>"}),
    ]
    exporter = HTMLExporter(config=load_config(), template_name="classic")
    page, _ = exporter.from_notebook_node(new_notebook(cells=[new_code_cell("1", outputs=outputs)]))
    body = page[page.index("<body") :]
    for shown in ('src="data:image/png;base64,', "<thead>", "<tbody>", "<th>state</th>", "<p>Measured</p>"):
        assert shown in body
    for text in ("&lt;p", "&lt;th", "&lt;tbody", "&lt;img", "onclick", "position:fixed", "example.org", "<script>x"):
        assert text not in body
