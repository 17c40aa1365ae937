"""What nbgrader's feedback page and formgrader lack: styles for the cards, and HTML that is shown but can run nothing.

nbconvert's sanitiser shows paragraphs, heads of tables and images as text, and leaves out what a student wrote as
Markdown: a text cell may hold a script, and the page opens in the browser of an instructor who is logged in.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import bleach
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor
from traitlets import List

from course_utils.observe.card import CSS

__all__ = ["CardStyle", "Marks", "safe_html", "safe_markdown"]

_TAGS = [
    "a",
    "abbr",
    "b",
    "blockquote",
    "br",
    "caption",
    "code",
    "dd",
    "del",
    "details",
    "div",
    "dl",
    "dt",
    "em",
    "figcaption",
    "figure",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "img",
    "kbd",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "small",
    "span",
    "strong",
    "sub",
    "summary",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
]
# Codes for a terminal but colours: titles, cursor movements, whatever else a terminal obeys.
_CODES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b(?!\[)|[\x00-\x08\x0b-\x1a\x7f]")


# No address of another machine: it would learn who opens the page. A browser runs nothing in an SVG shown as an image.
_IMAGE = re.compile(r"\s*data:image/(?:png|jpeg|gif|webp|svg\+xml)[;,]", re.I)
_WAITS = "Not marked yet: a person reads this answer."


def _may_stay(tag: str, name: str, value: str) -> bool:
    if name in ("class", "id", "title"):
        return True
    if tag == "img":
        return name in ("alt", "width", "height") or (name == "src" and bool(_IMAGE.match(value)))
    return tag == "a" and name == "href" and not value.lstrip().lower().startswith("data:")


@functools.cache
def _exporter() -> HTMLExporter:
    return HTMLExporter()


@pass_context
def safe_markdown(context: Context, source: str) -> str:
    """nbconvert's ``markdown2html``, without scripts, frames, handlers of events, styles and forms."""
    return safe_html(_exporter().markdown2html(context, source))


def safe_html(page: str | bytes) -> str:
    """For nbconvert's ``clean_html``: everything that a page of text, tables and figures needs, and nothing that runs."""
    text = page.decode() if isinstance(page, bytes) else str(page)
    return bleach.clean(text, tags=_TAGS, attributes=_may_stay, protocols=["http", "https", "mailto", "data"])


class Marks(GetGrades):
    """nbgrader's, and a note below each answer that waits for a person: its score is 0 until then."""

    def _get_score(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        super()._get_score(cell, resources)
        grade_id = cell.metadata.nbgrader["grade_id"]
        grade = self.gradebook.find_grade(grade_id, self.notebook_id, self.assignment_id, self.student_id)
        # A mark that a person gave counts, also where it is to be looked at once more.
        if grade.needs_manual_grade and grade.manual_score is None:
            said = cell.metadata.nbgrader.get("comment")
            cell.metadata.nbgrader["comment"] = "\n\n".join(filter(None, [_WAITS, said]))


class CardStyle(NbGraderPreprocessor):
    """Add the cards' style sheet to the page, and take codes for terminals out of outputs."""

    display_data_priority = List(help="Set by the HTML exporter for every preprocessor; not used here.").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        resources.setdefault("inlining", {}).setdefault("css", []).append(CSS)
        for cell in nb.cells:
            for output in cell.get("outputs", ()):
                for name in ("text", "evalue", "ename", "traceback"):
                    if name in output:
                        output[name] = _without_codes(output[name])
        return nb, resources


def _without_codes(text: Any) -> Any:
    return [_without_codes(line) for line in text] if isinstance(text, list) else _CODES.sub("", text)
