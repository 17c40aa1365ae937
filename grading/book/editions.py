"""The notebooks of a book: headings get names that can be linked to, and outputs a form that static HTML shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from grading.source import ROOT, WRITE_HERE, Section, SourceError

__all__ = ["EDITIONS", "Heading", "edition", "executed", "headings", "plain_title"]

EDITIONS = ("solutions", "learners")
_HEADING = re.compile(r"^(#{1,4}) (.+?)\s*$")


@dataclass(frozen=True)
class Heading:
    """A heading of a notebook.

    Attributes
    ----------
    title : str
        As written, in Markdown.
    target : str
        The name of the place in the book: unique in the whole book, and the same in both editions.
    level : int
        1 to 4.
    part : int
        The number of the part that it lies in; 0 before the first.
    cell : int
        Index of its cell in the notebook.
    """

    title: str
    target: str
    level: int
    part: int
    cell: int


def plain_title(markdown: str) -> str:
    """A title without Markdown's signs, for comparing and for links."""
    return re.sub(r"[`*]", "", markdown)


def _heading_lines(source: str) -> Iterator[tuple[int, int, str]]:
    """(line, level, title) of every heading in a Markdown cell; a comment in a code fence is none."""
    fenced = False
    for number, line in enumerate(source.split("\n")):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        match = None if fenced else _HEADING.match(line)
        if match:
            yield number, len(match.group(1)), match.group(2)


def headings(section: Section, notebook: NotebookNode) -> list[Heading]:
    """All headings of a section's notebook, in order."""
    found: list[Heading] = []
    names: set[str] = set()
    part = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        for _, level, title in _heading_lines(cell.source):
            numbered = re.match(r"Part (\d+)\.", title)
            part = int(numbered.group(1)) if numbered else part
            words = re.findall(r"[a-z0-9]+", title.lower())
            name = "-".join([section.name.replace("_", "-"), *words])
            target = next(n for n in [name, *(f"{name}-{i}" for i in range(2, 100))] if n not in names)
            names.add(target)
            found.append(Heading(title, target, level, part, index))
    return found


def edition(section: Section, name: str) -> NotebookNode:
    """A section's executed notebook, as the book shows it.

    Parameters
    ----------
    section : Section
    name : str
        ``"solutions"``, or ``"learners"``: answers replaced by their stubs, and nothing left of what answers put out.

    Raises
    ------
    SourceError
        If the executed and the released notebook are missing or differ in their cells: ``make build`` makes them.
    """
    notebook = executed(section)
    if name == "learners":
        released = _read(section, "notebooks")
        if [c["id"] for c in notebook.cells] != [c["id"] for c in released.cells]:
            raise SourceError(f"{section.assignment}: the two notebooks have different cells; run `make build`")
        for cell, given in zip(notebook.cells, released.cells, strict=True):
            _without_answer(cell, given)
    for cell in notebook.cells:
        cell.source = re.sub(r"^ *### (BEGIN|END) SOLUTION\n?", "", cell.source, flags=re.M)
        if cell.cell_type == "markdown":
            cell.source = _in_words(cell, name)
    targets = headings(section, notebook)
    cells: list[NotebookNode] = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source = _with_targets(cell.source, [h.target for h in targets if h.cell == index])
        cells.append(cell)
        cells += _graphs(cell)
    notebook.cells = cells
    notebook.metadata.pop("widgets", None)
    return notebook


def executed(section: Section) -> NotebookNode:
    """The executed reference edition of a section, as it lies in ``solutions/``."""
    return _read(section, "solutions")


def _read(section: Section, folder: str) -> NotebookNode:
    path = ROOT / folder / section.assignment / f"{section.name}.ipynb"
    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise SourceError(f"{path.relative_to(ROOT)} cannot be read; `make build` writes it ({error})") from None


def _without_answer(cell: NotebookNode, given: NotebookNode) -> None:
    """A cell of the executed edition becomes what a learner may see."""
    grading = cell.metadata.get("nbgrader", {})
    shows_progress = cell.cell_type == "code" and re.search(r"^progress\(", cell.source, re.M)
    cell.source = given.source
    if cell.cell_type != "code":
        return
    if grading.get("solution") or grading.get("grade") or shows_progress:
        cell.outputs = []
    elif re.search(r"^\s*reveal\(", cell.source, re.M):
        cell.metadata.setdefault("tags", []).append("hide-output")  # a fold: guess first


def _in_words(cell: NotebookNode, edition: str) -> str:
    """The text of a cell: nobody can write into a page, and a good answer is called one."""
    if "nbgrader" not in cell.metadata:
        return cell.source.removesuffix(WRITE_HERE).rstrip()
    return f"**One good answer.** {cell.source}" if edition == "solutions" else "*Your answer, in the notebook.*"


def _with_targets(source: str, targets: list[str]) -> str:
    lines = source.split("\n")
    places = [number for number, _, _ in _heading_lines(source)]
    for number, target in reversed(list(zip(places, targets, strict=True))):
        lines[number:number] = [f"({target})=", ""]
    return "\n".join(lines)


def _graphs(cell: NotebookNode) -> list[NotebookNode]:
    """Takes the Mermaid graphs out of a cell's outputs: each becomes a picture in a cell below, and its text in a fold."""
    drawn = [o for o in cell.get("outputs", []) if "text/vnd.mermaid" in o.get("data", {})]
    if drawn:
        cell.outputs = [o for o in cell.outputs if o not in drawn]
    return [
        new_markdown_cell(
            f"```````{{md-mermaid}}\n{output.data['text/vnd.mermaid']}\n```````\n\n"
            f"<details><summary>The same graph as text</summary><pre>{escape(output.data['text/plain'])}</pre></details>",
            id=f"{cell['id'][:56]}-graph{number or ''}",
        )
        for number, output in enumerate(drawn)
    ]
