"""The two books, rendered once and read as a browser would: every link, every index, and no answer for learners."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from course_utils.observe.registry import all_exercises
from grading.book.editions import EDITIONS, executed, headings
from grading.book.pages import _readable, _said
from grading.book.places import Places, read_rows, rows_of
from grading.source import ROOT, sections

pytest.importorskip("sphinx_immaterial", reason="the books need the extra `book` (pip install -r requirements.txt)")

SECTIONS = {int(s.assignment[:2]): s for s in sections()}
ROWS = read_rows()


class Page(HTMLParser):
    """Ids, links, pictures, text and table rows of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.needed: list[str] = []
        self.without_alt: list[str] = []
        self.words: list[str] = []
        self.rows: list[tuple[str, list[str]]] = []
        self.parts: list[tuple[str, list[str]]] = []  # from one heading to the next: text and links
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id"):
            self.ids.add(str(named["id"]))
        if tag == "tr":
            self.rows.append(("", []))
        if re.fullmatch(r"h[1-6]", tag):
            self.parts.append(("", []))
        if tag == "a" and named.get("href"):
            self.links.append(str(named["href"]))
            for pieces in (self.rows, self.parts):
                if pieces:
                    pieces[-1][1].append(str(named["href"]))
        if tag in ("script", "img", "link") and (named.get("src") or named.get("href")):
            self.needed.append(str(named.get("src") or named.get("href")))
        if tag == "img" and not (named.get("alt") or "").strip():
            self.without_alt.append(str(named.get("src"))[:80])

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        for pieces in (self.rows, self.parts):
            if pieces:
                text, links = pieces[-1]
                pieces[-1] = (text + data, links)

    @property
    def text(self) -> str:
        return "".join(self.words)


@pytest.fixture(scope="module")
def books(tmp_path_factory) -> dict[str, dict[str, Page]]:
    from grading.book.__main__ import build_book

    folder = tmp_path_factory.mktemp("book")
    for name in EDITIONS:
        build_book(name, folder / name)
    found = {name: {p.name: Page(p) for p in sorted((folder / name).glob("*.html"))} for name in EDITIONS}
    found["folder"] = folder  # type: ignore[assignment]
    return found


@pytest.fixture(params=EDITIONS)
def book(request, books) -> dict[str, Page]:
    return books[request.param]


def test_a_link_leads_to_a_page_or_a_place_that_is_not_there(book):
    lost = []
    for name, page in book.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = unquote(parts.path) or name
            if target not in book or (parts.fragment and unquote(parts.fragment) not in book[target].ids):
                lost.append(f"{name}: {link}")
    assert lost == []


def test_a_page_needs_the_network(book, books, request):
    folder = books["folder"] / request.node.callspec.params["book"]
    for name, page in book.items():
        for needed in page.needed:
            parts = urlsplit(needed)
            assert parts.scheme in ("", "data"), f"{name} fetches {needed[:100]}"
            if not parts.scheme:
                assert (folder / unquote(parts.path)).exists(), f"{name}: {needed}"


def test_a_graph_stays_blank_without_a_network(book, books, request):
    folder = books["folder"] / request.node.callspec.params["book"]
    assert (folder / "_static" / "mermaid" / "mermaid.min.js").stat().st_size > 1_000_000
    graphs = book["graph_debugging.html"]
    assert graphs.source.count('class="mermaid"') == 2
    assert graphs.text.count("The same graph as text") == 2
    assert "accTitle: a graph of 10 nodes" in graphs.text
    assert "skipping unknown output" not in graphs.text


def test_a_picture_has_lost_its_alt_text_or_its_caption(book):
    for name, page in book.items():
        assert page.without_alt == [], name
    for number, section in SECTIONS.items():
        figures = sum(
            "**Figure.**" in output.get("data", {}).get("text/markdown", "")
            for cell in executed(section).cells
            for output in cell.get("outputs", [])
        )
        assert figures and book[f"{section.name}.html"].text.count("Figure.") >= figures, f"section {number}"


def _lines(source: str) -> set[str]:
    return {" ".join(line.split()) for line in source.splitlines() if len(line.strip()) > 24}


def test_the_learners_book_tells_an_answer(books):
    checked = 0
    for section in SECTIONS.values():
        page = " ".join(books["learners"][f"{section.name}.html"].text.split())
        full = " ".join(books["solutions"][f"{section.name}.html"].text.split())
        released = nbformat.read(ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb", as_version=4)
        given = " ".join(" ".join(cell.source.split()) for cell in released.cells)
        for name, cell in section.answer_cells().items():
            regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.S)
            for line in (line for line in _lines("\n".join(regions)) if line not in given):
                assert line in full, f"the test looks for {line!r} in a form that no book has"
                assert line not in page, f"{name}: {line}"
                checked += 1
    assert checked > 300


def test_the_learners_book_answers_in_words_or_the_other_one_does_not(books):
    for section in SECTIONS.values():
        (answer,) = [
            c.source for c in executed(section).cells if c.cell_type == "markdown" and "nbgrader" in c.metadata
        ]
        start = re.sub(r"\W+", "", answer)[:60]
        texts = {name: re.sub(r"\W+", "", books[name][f"{section.name}.html"].text) for name in EDITIONS}
        assert start in texts["solutions"] and start not in texts["learners"], section.assignment
        assert not any("writeoveritstext" in text for text in texts.values()), "nobody can write into a page"


def test_the_learners_book_shows_the_verdict_on_an_answer_that_is_not_there(books):
    for section in SECTIONS.values():
        page = books["learners"][f"{section.name}.html"]
        assert "course-card" not in page.source
        assert "SOLUTION" not in page.text and page.text.count("YOUR CODE HERE") >= len(all_exercises(section.name))
        assert "course-card-good" in books["solutions"][f"{section.name}.html"].source


def test_the_learners_book_gives_a_prediction_away(books):
    page = books["learners"]["tensor_costs.html"].source
    measured = page.index("Measured: float64")
    assert page.rfind("<details", 0, measured) > page.rfind("</details>", 0, measured)


@pytest.mark.parametrize("kind", ["topics", "beliefs"])
def test_a_topic_or_belief_of_the_list_is_in_no_index_or_leads_nowhere(book, kind):
    rows = {
        (text.split()[0], link) for text, links in book[f"{kind}.html"].rows for link in links or [""] if text.split()
    }
    expected = [r for r in ROWS if r.kind == kind]
    assert len(expected) > 60
    for row in expected:
        own = f"{SECTIONS[row.section].name}.html#"
        # C13 and their like share a row's place by "the same".
        assert any(i == row.id and own in link for i, link in rows), f"{row.id} of section {row.section}: {row.where}"


def test_an_error_text_does_not_lead_to_the_place_where_it_is_met(book):
    parts = book["symptoms.html"].parts
    for words, heading in (
        ("Expected all tensors to be on the same device", "gpu-pitfalls-who-may-be-a-guest"),
        ("view size is not compatible", "tensor-costs-what-view-needs"),
        ("Too many open files", "dataloader-memory-through-which-door-does-a-batch-come"),
        ("cannot assign module before Module.__init__() call", "graph-debugging-the-line-that-makes-it-a-module"),
    ):
        (links,) = [links for text, links in parts if words in text.splitlines()[0] and len(links) > 1]
        assert any(link.endswith(f"#{heading}") for link in links), (words, links)


def test_a_symptom_of_a_section_is_left_out(book):
    text = re.sub(r"\W+", "", book["symptoms.html"].text)
    for section in SECTIONS.values():
        cell = next(c for c in executed(section).cells if "## When something looks wrong" in c.source)
        rows = rows_of(cell.source, "symptom")
        assert len(rows) > 10
        for row in rows:
            assert re.sub(r"\W+", "", row[0]) in text, row[0]


def test_the_list_of_exercises_leaves_one_out_or_its_points(book):
    rows = book["exercises.html"].rows
    for exercise in all_exercises():
        anchor = re.sub(r"[^a-z0-9]+", "-", exercise.id.lower()).strip("-")
        (text,) = [t for t, links in rows if any(link.endswith(f"-exercise-{anchor}") for link in links)]
        assert f"{exercise.points:g}" in text.split() and str(exercise.minutes) in text.split()


def test_the_same_notebooks_give_another_book(books, tmp_path):
    from grading.book.__main__ import build_book

    build_book("learners", tmp_path / "again")
    once = books["folder"] / "learners"
    files = sorted(p.relative_to(once) for p in once.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    differ = [str(f) for f in files if (once / f).read_bytes() != (tmp_path / "again" / f).read_bytes()]
    assert differ == []


# ------------------------------------------------------------------------------------------------ without a build
def test_a_comment_in_a_code_fence_becomes_a_heading():
    for section in SECTIONS.values():
        titles = [h.title for h in headings(section, executed(section))]
        assert "When something looks wrong" in titles
        assert len({h.target for h in headings(section, executed(section))}) == len(titles)


def test_a_place_that_the_table_of_topics_names_is_not_found():
    places = Places({n: headings(s, executed(s)) for n, s in SECTIONS.items()})
    for row in ROWS:
        markdown, met = places.linked(row)
        assert met, f"{row.id or row.cells[0]}: {row.where}"
        quoted = re.findall(r'(?<!\[)"([^"\]]+)"', markdown)
        assert quoted == [], f"{row.id}: no heading begins with {quoted}"


def test_the_pieces_of_an_error_text_that_are_searched_for():
    assert _said('"DataLoader worker (pid ...) is killed by signal: Killed"') == [
        "dataloader worker",
        ") is killed by signal: killed",
    ]
    assert _said("colours look odd, accuracy a little low") == []


def test_a_pattern_is_shown_as_a_reader_understands_it():
    assert _readable(r"same device|at least two devices") == 'same device" or "at least two devices'
    assert _readable(r"[Cc]an(no|')t pickle") == "Can(no/')t pickle"
    assert _readable(r"numpy\(\) on Tensor") == "numpy() on Tensor"
    assert html.unescape(_readable(r"^FileNotFoundError")) == "FileNotFoundError"
