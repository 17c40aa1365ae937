"""Put a submitted notebook back into the released form, whatever happened to its cells.

What the student wrote is kept in the student's order and runs as it stands. What was released as locked (imports,
checks) comes from the gradebook. A cell that was copied, deleted, moved, edited or turned into another type costs
nobody a mark; on stock nbgrader a single copied cell leaves the whole submission ungraded.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

__all__ = ["Released", "RestoreCells", "restore", "tell_apart"]

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
            cell = _new(stored.cell_type, stored.source or "", stored.name)
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
    """The preprocessor; what it does is :func:`restore`, and to the notebook's metadata the same."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        names = resources["nbgrader"]
        released = names.get("released")
        if released is None:
            with Gradebook(names["db_url"]) as gradebook:
                released = Released.of(gradebook, names["notebook"], names["assignment"])
        nb.cells, notes = restore(nb.cells, released.cells)
        nb.metadata = NotebookNode({"kernelspec": released.kernelspec, "language_info": {"name": "python"}})
        for note in notes:
            self.log.warning("%s, %s: %s", names.get("student", "?"), names["notebook"], note)
        return nb, resources


def restore(submitted: list[NotebookNode], released: dict[str, NotebookNode]) -> tuple[list[NotebookNode], list[str]]:
    """Returns the cells of a notebook that can be graded, and a line for everything that was put right.

    Parameters
    ----------
    submitted : list of cells
        As handed in. Cells without, or with unknown, nbgrader metadata count as the student's own.
    released : dict
        See :class:`Released`.
    """
    notes: list[str] = []
    out: list[NotebookNode] = []
    seen: set[str] = set()
    for cell in map(_readable, submitted):
        name = _grade_id(cell)
        if name is None or name not in released:
            if "nbgrader" in cell.metadata:
                notes.append(f"a cell with unknown nbgrader metadata is taken as the student's own ({name})")
                cell.metadata.pop("nbgrader")
            out.append(cell)
            continue
        model = released[name]
        locked = model.metadata.nbgrader.locked
        changed = cell.source.strip() != model.source.strip()
        if name in seen:
            # A copy still runs, in its place: the student may have gone on in the copy, even in that of a locked cell.
            used = changed or not locked
            notes.append(f"{name} is there twice; " + ("the copy runs as well" if used else "the copy is left out"))
            if used:
                out.append(_plain(cell))
            continue
        seen.add(name)
        if cell.cell_type != model.cell_type:
            notes.append(f"{name} was turned into a {cell.cell_type} cell; it is {model.cell_type} again")
        if locked and changed:
            notes.append(f"{name} is locked and was changed; the released text runs after the changed one")
            out.append(_plain(cell))
        fresh = _new(model.cell_type, model.source if locked else cell.source, cell.get("id") or name)
        fresh.metadata = NotebookNode(model.metadata)
        if not locked and (tags := _tags(cell)):
            fresh.metadata["tags"] = tags
        out.append(fresh)
    _add_missing(out, released, seen, notes)
    _move_late(out, released, notes)
    tell_apart(out)
    return out, notes


def _readable(cell: NotebookNode) -> NotebookNode:
    """The cell with everything that nbformat asks for, whatever an editor has made of it."""
    source, metadata = cell.get("source"), cell.get("metadata")
    cell["source"] = source if isinstance(source, str) else ""
    cell["metadata"] = metadata if isinstance(metadata, dict) else NotebookNode()
    if "tags" in cell.metadata:
        cell.metadata["tags"] = _tags(cell)
    if cell.get("cell_type") not in ("code", "markdown"):
        cell["cell_type"] = "raw"
    if cell.cell_type == "code":
        cell.setdefault("outputs", [])
        cell.setdefault("execution_count", None)
    else:
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    return cell


def tell_apart(out: list[NotebookNode]) -> None:
    """A new id for a cell that has none, or that of another: nbformat refuses the notebook otherwise."""
    seen: set[str] = set()
    for number, cell in enumerate(out):
        if not cell.get("id") or cell["id"] in seen:
            cell["id"] = next(i for i in _ids(f"cell-{number}") if i not in seen)
        seen.add(cell["id"])


def _ids(start: str) -> Iterator[str]:
    yield start
    yield from (f"{start}-{n}" for n in itertools.count(2))


def _grade_id(cell: NotebookNode) -> str | None:
    metadata = cell.metadata.get("nbgrader")
    name = metadata.get("grade_id") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def _tags(cell: NotebookNode) -> list[str]:
    tags = cell.metadata.get("tags")
    return list(dict.fromkeys(t for t in tags if isinstance(t, str))) if isinstance(tags, list) else []


def _plain(cell: NotebookNode) -> NotebookNode:
    return _new(cell.cell_type, cell.source, cell.get("id") or "copy")


def _new(cell_type: str, source: str, cell_id: str) -> NotebookNode:
    """A cell whose id depends on the submission alone: grading twice gives the same notebook."""
    cell = (new_code_cell if cell_type == "code" else new_markdown_cell)(source)
    cell["id"] = re.sub(r"[^a-zA-Z0-9_-]", "-", cell_id)[:56] or "cell"
    return cell


def _add_missing(out: list[NotebookNode], released: dict[str, NotebookNode], seen: set[str], notes: list[str]) -> None:
    """Put a deleted cell back behind the released cell before it."""
    code = "\n".join(c.source for c in out if c.cell_type == "code")
    previous: str | None = None
    for name, model in released.items():
        if name not in seen:
            notes.append(f"{name} was deleted; the released cell is put back")
            cell = _new(model.cell_type, model.source, name)
            cell.metadata = NotebookNode(model.metadata)
            if model.metadata.nbgrader.solution and _defines(code, name.removeprefix("answer-")):
                # Answered in another cell: the empty answer must not take the place of that one.
                cell.source = f"# {name} was deleted, and answered in another cell."
            at = next((i + 1 for i, c in enumerate(out) if previous and _grade_id(c) == previous), 0)
            out.insert(at, cell)
        previous = name


def _defines(code: str, name: str) -> bool:
    name = re.escape(name)
    return bool(
        re.search(rf"^((async +)?def|class) +{name}\b|^{name} *(:[^=\n]*)?=(?!=)|^from .*\b{name}\b", code, re.M)
    )


def _move_late(out: list[NotebookNode], released: dict[str, NotebookNode], notes: list[str]) -> None:
    """A check that stands before its answer would look for a name that is not there yet: move it behind the answer."""
    for name, model in released.items():
        answer = f"answer-{name}"
        if not model.metadata.nbgrader.grade or answer not in released:
            continue
        at = next(i for i, c in enumerate(out) if _grade_id(c) == name)
        last = max(i for i, c in enumerate(out) if _grade_id(c) == answer)
        if at < last:
            notes.append(f"{name} stood before its answer; it is moved behind it")
            out.insert(last, out.pop(at))
