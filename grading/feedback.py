"""What nbgrader's feedback page and formgrader lack: styles for the cards, and text that can run nothing.

Their sanitiser removes inline styles, and leaves out what a student wrote as Markdown: a text cell may hold a script, and
the page opens in the browser of an instructor who is logged in.
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
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import List

from course_utils.observe.card import CSS

__all__ = ["CardStyle", "safe_markdown"]

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


def _may_stay(tag: str, name: str, value: str) -> bool:
    if name in ("class", "id", "title"):
        return True
    if tag == "img":
        return name in ("alt", "width", "height") or (name == "src" and value.startswith(("data:image/", "http")))
    return tag == "a" and name == "href" and not value.lstrip().lower().startswith("data:")


@functools.cache
def _exporter() -> HTMLExporter:
    return HTMLExporter()


@pass_context
def safe_markdown(context: Context, source: str) -> str:
    """nbconvert's ``markdown2html``, without scripts, frames, handlers of events, styles and forms."""
    page = _exporter().markdown2html(context, source)
    return bleach.clean(page, tags=_TAGS, attributes=_may_stay, protocols=["http", "https", "mailto", "data"])


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
