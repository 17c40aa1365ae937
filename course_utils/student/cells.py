"""A notebook whose cells were copied, deleted, moved or edited: what is wrong with it, and the same notebook put right.

Grading puts every submission right in this way, and so does ``python -m course_utils repair``.
What the student wrote is kept in the student's order and runs as it stands. What was released as locked (imports,
checks) comes from the released notebook.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

__all__ = ["Note", "by_hand", "grade_id", "new_cell", "restore", "tell_apart", "valid_tags", "written"]


class Note(NamedTuple):
    """One thing that was put right.

    Attributes
    ----------
    cell : str
        The grade id; empty where the cell has none that is known.
    found, done : str
        What was wrong, and what was done about it.
    """

    cell: str
    found: str
    done: str

    def __str__(self) -> str:
        return f"{self.found}; {self.done}"


def restore(submitted: list[NotebookNode], released: dict[str, NotebookNode]) -> tuple[list[NotebookNode], list[Note]]:
    """Returns the cells of a notebook that can be graded, and a note for everything that was put right.

    Parameters
    ----------
    submitted : list of cells
        As handed in. Cells without, or with unknown, nbgrader metadata count as the student's own.
    released : dict
        Every cell with nbgrader metadata as it was released, by grade id, in the order of the notebook.
    """
    notes: list[Note] = []
    out: list[NotebookNode] = []
    seen: dict[str, NotebookNode] = {}
    for cell in map(_readable, submitted):
        name = grade_id(cell)
        if name is None or name not in released:
            if "nbgrader" in cell.metadata:
                found = f"a cell has nbgrader metadata that no released cell has ({name})"
                notes.append(Note("", found, "it is taken as the student's own"))
                cell.metadata.pop("nbgrader")
            out.append(cell)
            continue
        model = released[name]
        locked = model.metadata.nbgrader.locked
        changed = cell.source.strip() != model.source.strip()
        if name in seen and by_hand(model):
            both = [t for t in (seen[name].source.strip(), cell.source.strip()) if written(t, model)]
            seen[name].source = "\n\n".join(dict.fromkeys(both)) or model.source
            kept = "the texts of both are kept together" if len(set(both)) > 1 else "one of them is left out"
            notes.append(Note(name, f"{name} is there twice", kept))
            continue
        if name in seen:
            # A copy still runs, in its place: the student may have gone on in the copy, even in that of a locked cell.
            used = changed or not locked
            notes.append(
                Note(name, f"{name} is there twice", "the copy runs as well" if used else "the copy is left out")
            )
            if used:
                out.append(_plain(cell))
            continue
        if cell.cell_type != model.cell_type:
            notes.append(
                Note(name, f"{name} was turned into a {cell.cell_type} cell", f"it is {model.cell_type} again")
            )
        if locked and changed:
            notes.append(
                Note(name, f"{name} is locked and was changed", "the released text runs after the changed one")
            )
            out.append(_plain(cell))
        as_released = locked or (by_hand(model) and not written(cell.source, model))
        fresh = new_cell(model.cell_type, model.source if as_released else cell.source, cell.get("id") or name)
        fresh.metadata = NotebookNode(model.metadata)
        if not locked and (tags := valid_tags(cell.metadata.get("tags"))):
            fresh.metadata["tags"] = tags
        seen[name] = fresh
        out.append(fresh)
    _add_missing(out, released, seen, notes)
    _move_early(out, released, notes)
    _move_late(out, released, seen, notes)
    tell_apart(out)
    return out, notes


def by_hand(cell: NotebookNode) -> bool:
    """Is this a released cell that is answered in words, for points that a person gives?"""
    return bool(cell.metadata.nbgrader.grade and cell.metadata.nbgrader.solution)


def written(source: str, model: NotebookNode) -> bool:
    """Does the source of an answer hold anything that was not handed out?"""
    return source.strip() not in ("", model.source.strip())


def _readable(cell: NotebookNode) -> NotebookNode:
    """The cell with everything that nbformat asks for, whatever an editor has made of it."""
    source, metadata = cell.get("source"), cell.get("metadata")
    cell["source"] = source if isinstance(source, str) else ""
    cell["metadata"] = metadata if isinstance(metadata, dict) else NotebookNode()
    if "tags" in cell.metadata:
        cell.metadata["tags"] = valid_tags(cell.metadata["tags"])
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
        if not (isinstance(cell.get("id"), str) and cell["id"]) or cell["id"] in seen:
            cell["id"] = next(i for i in _ids(f"cell-{number}") if i not in seen)
        seen.add(cell["id"])


def _ids(start: str) -> Iterator[str]:
    yield start
    yield from (f"{start}-{n}" for n in itertools.count(2))


def grade_id(cell: NotebookNode) -> str | None:
    """The grade id of a cell; None where it has no readable one."""
    metadata = cell.metadata.get("nbgrader")
    name = metadata.get("grade_id") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else None


def valid_tags(tags: object) -> list[str]:
    """Those tags that nbformat does not refuse, each once."""
    kept = [t for t in tags if isinstance(t, str) and t and "," not in t] if isinstance(tags, list) else []
    return list(dict.fromkeys(kept))


def _plain(cell: NotebookNode) -> NotebookNode:
    return new_cell(cell.cell_type, cell.source, cell.get("id") or "copy")


def new_cell(cell_type: str, source: str, cell_id: object) -> NotebookNode:
    """A cell whose id depends on the submission alone: grading twice gives the same notebook."""
    cell = (new_code_cell if cell_type == "code" else new_markdown_cell)(source)
    cell["id"] = re.sub(r"[^a-zA-Z0-9_-]", "-", str(cell_id))[:56] or "cell"
    return cell


def _add_missing(
    out: list[NotebookNode], released: dict[str, NotebookNode], seen: Collection[str], notes: list[Note]
) -> None:
    """Put a deleted cell back behind the released cell before it."""
    code = "\n".join(c.source for c in out if c.cell_type == "code")
    previous: str | None = None
    for name, model in released.items():
        if name not in seen:
            notes.append(Note(name, f"{name} was deleted", "the released cell is put back"))
            cell = new_cell(model.cell_type, model.source, name)
            cell.metadata = NotebookNode(model.metadata)
            if model.metadata.nbgrader.solution and _defines(code, name.removeprefix("answer-")):
                # Answered in another cell: the empty answer must not take the place of that one.
                cell.source = f"# {name} was deleted, and answered in another cell."
            at = next((i + 1 for i, c in enumerate(out) if previous and grade_id(c) == previous), 0)
            out.insert(at, cell)
        previous = name


def _defines(code: str, name: str) -> bool:
    name = re.escape(name)
    return bool(
        re.search(rf"^((async +)?def|class) +{name}\b|^{name} *(:[^=\n]*)?=(?!=)|^from .*\b{name}\b", code, re.M)
    )


def _move_early(out: list[NotebookNode], released: dict[str, NotebookNode], notes: list[Note]) -> None:
    """Imports that stand behind an answer which was released behind them: move them before it."""
    names = list(released)
    for place, name in reversed(list(enumerate(names))):
        marks = released[name].metadata.nbgrader
        if released[name].cell_type != "code" or not marks.locked or marks.grade:
            continue
        at = next(i for i, c in enumerate(out) if grade_id(c) == name)
        later = {n for n in names[place + 1 :] if released[n].metadata.nbgrader.solution}
        first = min((i for i, c in enumerate(out) if grade_id(c) in later), default=at)
        if first < at:
            notes.append(Note(name, f"{name} stood behind what needs it", "it is moved before that"))
            out.insert(first, out.pop(at))


def _move_late(
    out: list[NotebookNode], released: dict[str, NotebookNode], seen: Collection[str], notes: list[Note]
) -> None:
    """A check that stands before its answer would look for a name that is not there yet: move it behind the answer."""
    for name, model in released.items():
        answer = f"answer-{name}"
        if not model.metadata.nbgrader.grade or answer not in released:
            continue
        at = next(i for i, c in enumerate(out) if grade_id(c) == name)
        # Where its own cell is lost, the answer is any cell that defines the name.
        last = max(
            i
            for i, c in enumerate(out)
            if grade_id(c) == answer or (answer not in seen and c.cell_type == "code" and _defines(c.source, name))
        )
        if at < last:
            notes.append(Note(name, f"{name} stood before its answer", "it is moved behind it"))
            out.insert(last, out.pop(at))
