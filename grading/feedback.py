"""Styles for the cards in nbgrader's feedback, whose sanitiser removes inline ones."""

from __future__ import annotations

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import List

from course_utils.observe.card import CSS

__all__ = ["CardStyle"]


class CardStyle(NbGraderPreprocessor):
    """Add the cards' style sheet to the page."""

    display_data_priority = List(help="Set by the HTML exporter for every preprocessor; not used here.").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        resources.setdefault("inlining", {}).setdefault("css", []).append(CSS)
        return nb, resources
