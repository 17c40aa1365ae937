"""Before a submission is graded: put its notebook back into the released form, whatever happened to its cells.

A cell that was copied, deleted, moved, edited or turned into another type costs nobody a mark; on stock nbgrader a
single copied cell leaves the whole submission ungraded. The released form comes from the gradebook.
"""

from __future__ import annotations

from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from course_utils.student.cells import restore

__all__ = ["RestoreCells", "released_cells"]


class RestoreCells(NbGraderPreprocessor):
    """The preprocessor; what it does is :func:`course_utils.student.cells.restore`."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            released = released_cells(gradebook, names["notebook"], names["assignment"])
        nb.cells, notes = restore(nb.cells, released)
        for note in notes:
            self.log.warning("%s, %s: %s", names.get("student", "?"), names["notebook"], note)
        return nb, resources


def released_cells(gradebook: Gradebook, notebook: str, assignment: str) -> dict[str, NotebookNode]:
    """Every cell with nbgrader metadata as it was released, by grade id, in the order of the notebook."""
    source = gradebook.find_notebook(notebook, assignment)
    points = {c.name: c.max_score for c in source.grade_cells}
    answers = {c.name for c in source.solution_cells}
    cells = {}
    for stored in source.source_cells:
        make = new_code_cell if stored.cell_type == "code" else new_markdown_cell
        cell = make(stored.source or "")
        metadata: dict[str, Any] = {
            "schema_version": 3,
            "grade_id": stored.name,
            "cell_type": stored.cell_type,
            "checksum": stored.checksum,
            "locked": bool(stored.locked),
            "grade": stored.name in points,
            "solution": stored.name in answers,
            "task": False,
        }
        if stored.name in points:
            metadata["points"] = points[stored.name]
        cell.metadata["nbgrader"] = metadata
        cells[stored.name] = cell
    return cells
