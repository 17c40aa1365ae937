"""Before a submission is graded: put its notebook back into the released form, whatever happened to its cells.

A cell that was copied, deleted, moved, edited or turned into another type costs nobody a mark; on stock nbgrader a
single copied cell leaves the whole submission ungraded. The released form comes from the gradebook.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from course_utils.student.cells import Note, by_hand, grade_id, new_cell, restore

__all__ = ["Released", "RestoreCells"]

# Not the text that was handed out, for which nbgrader gives 0: a person looks whether the answer stands in another cell.
_DELETED = "*This cell was deleted. Does the answer stand in another cell?*"
_FEW = 4  # so many cells that were deleted are named one by one
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


@dataclass(frozen=True)
class Released:
    """A notebook as it was released: plain data, which a grader far from the gradebook can use.

    Attributes
    ----------
    cells : dict
        Every cell with nbgrader metadata by its grade id, in the order of the notebook.
    kernelspec : dict
    """

    cells: dict[str, NotebookNode]
    kernelspec: dict[str, Any]

    @classmethod
    def of(cls, gradebook: Gradebook, notebook: str, assignment: str) -> Released:
        """Raises nbgrader's MissingEntry where the gradebook does not know the notebook."""
        source = gradebook.find_notebook(notebook, assignment)
        points = {c.name: c.max_score for c in source.grade_cells}
        answers = {c.name for c in source.solution_cells}
        cells = {}
        for stored in source.source_cells:
            cell = new_cell(stored.cell_type, stored.source or "", stored.name)
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
        return cls(cells, json.loads(source.kernelspec or "null") or _KERNELSPEC)


class RestoreCells(NbGraderPreprocessor):
    """The preprocessor; what it does is :func:`course_utils.student.cells.restore`, and to the notebook's metadata the same."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        names = resources["nbgrader"]
        released = names.get("released")
        if released is None:
            with Gradebook(names["db_url"]) as gradebook:
                released = Released.of(gradebook, names["notebook"], names["assignment"])
        handed_in = {grade_id(cell) for cell in nb.cells}
        nb.cells, notes = restore(nb.cells, released.cells)
        for cell in nb.cells:
            name = grade_id(cell)
            if name in released.cells and name not in handed_in and by_hand(released.cells[name]):
                cell.source = _DELETED
        nb.metadata = NotebookNode({"kernelspec": released.kernelspec, "language_info": {"name": "python"}})
        for text in _said(notes, released, names.get("cut_off", False)):
            self.log.warning("%s, %s: %s", names.get("student", "?"), names["notebook"], text)
        return nb, resources


def _said(notes: list[Note], released: Released, cut_off: bool) -> Iterator[str]:
    """The notes; many cells that are missing are one line."""
    missing = [note for note in notes if note.found == f"{note.cell} was deleted"]
    if len(missing) <= _FEW and not cut_off:
        missing = []
    yield from (str(note) for note in notes if note not in missing)
    if missing:
        names = [n.cell for n in missing if released.cells[n.cell].metadata.nbgrader.grade]
        how = "is lost with the end of the file" if cut_off else "was deleted"
        which = f"{len(names)} exercises and questions: {', '.join(names)}" if names else "no exercise"
        yield f"each of {len(missing)} cells {how} ({which}); the released cells are put back"
