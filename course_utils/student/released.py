"""The sections as they were handed out: which cells with nbgrader metadata there were, and what stood in them.

``course_utils/released/SECTION.json`` is written by the build from the released notebook, one file a section::

    {"assignment": "01_tensor_costs", "cells": [{"cell_type": ..., "source": ..., "metadata": ...}, ...]}
"""

from __future__ import annotations

import difflib
import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_utils.data.location import project_root
from course_utils.errors import CourseError
from course_utils.student.cells import by_hand

__all__ = ["RELEASED", "Place", "Section", "find", "read_file", "read_notebook", "released_text", "sections"]

RELEASED = Path(__file__).resolve().parents[1] / "released"
MAX_BYTES = 200_000_000  # of a notebook; a browser would not open it either


@dataclass(frozen=True)
class Section:
    """One section as it was handed out.

    Attributes
    ----------
    assignment : str
        nbgrader's name and the folder's, ``01_tensor_costs``.
    name : str
        The notebook's, ``tensor_costs``.
    """

    assignment: str
    name: str

    @property
    def notebook(self) -> Path:
        """Where the notebook lies in the course's folder."""
        return project_root() / "notebooks" / self.assignment / f"{self.name}.ipynb"

    @cached_property
    def cells(self) -> dict[str, NotebookNode]:
        """Every cell with nbgrader metadata by grade id, in the order of the notebook."""
        data = json.loads((RELEASED / f"{self.name}.json").read_text(encoding="utf-8"))
        made = {}
        for plain in data["cells"]:
            make = new_code_cell if plain["cell_type"] == "code" else new_markdown_cell
            cell = make(plain["source"], metadata=nbformat.from_dict(plain["metadata"]))
            made[cell.metadata.nbgrader.grade_id] = cell
        return made

    @property
    def exercises(self) -> dict[str, float]:
        """Points by exercise, in the order of the notebook."""
        graded = {name: c for name, c in self.cells.items() if c.metadata.nbgrader.grade and not by_hand(c)}
        return {name: c.metadata.nbgrader.points for name, c in graded.items()}

    @property
    def reflections(self) -> dict[str, float]:
        """Points by grade id of what is answered in words. A person gives them."""
        return {name: c.metadata.nbgrader.points for name, c in self.cells.items() if by_hand(c)}

    @property
    def answers(self) -> dict[str, str]:
        """The grade id of the cell in which each exercise, and each reflection, is answered."""
        return {**{name: f"answer-{name}" for name in self.exercises}, **{name: name for name in self.reflections}}


@dataclass(frozen=True)
class Place:
    """What a word on the command line stands for: a section, its notebook file, and perhaps one exercise of it."""

    section: Section
    path: Path
    exercise: str = ""


def released_text(assignment: str, notebook: NotebookNode) -> str:
    """The file's text for a released notebook."""
    cells = [
        {"cell_type": c.cell_type, "source": c.source, "metadata": c.metadata}
        for c in notebook.cells
        if "nbgrader" in c.metadata
    ]
    return json.dumps({"assignment": assignment, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def sections() -> list[Section]:
    """All sections, in the order of the course."""
    found = []
    for path in RELEASED.glob("*.json"):
        found.append(Section(json.loads(path.read_text(encoding="utf-8"))["assignment"], path.stem))
    return sorted(found, key=lambda s: s.assignment)


def find(word: str) -> Place:
    """A section (``01_tensor_costs``, ``tensor_costs``, ``1``), the path of a notebook, or the name of an exercise.

    A notebook file belongs to the section whose name it has, wherever it lies.

    Raises
    ------
    CourseError
        If it is none of these; the message names what there is.
    """
    known = sections()
    for section in known:
        number = section.assignment.split("_")[0]
        if word.rstrip("/\\") in (section.assignment, section.name, number, number.lstrip("0")):
            return Place(section, section.notebook)
    path = Path(word).expanduser()
    if path.suffix == ".ipynb":
        if not path.is_file():
            raise CourseError(f"there is no notebook {path}.")
        return Place(_section_of(path, known), path)
    if path.is_dir():
        inside = [p for p in sorted(path.glob("*.ipynb")) if any(p.stem == s.name for s in known)]
        if len(inside) == 1:
            return Place(_section_of(inside[0], known), inside[0])
    for section in known:
        if word in section.answers:
            return Place(section, section.notebook, word)
    names = [n for s in known for n in (s.assignment, s.name, *s.answers)]
    near = difflib.get_close_matches(word, names, n=3)
    more = (
        f"Did you mean {' or '.join(near)}?" if near else f"The sections are {', '.join(s.assignment for s in known)}."
    )
    raise CourseError(f"{word!r} is no section, no notebook and no exercise. {more}")


def _section_of(path: Path, known: list[Section]) -> Section:
    for section in known:
        if path.stem == section.name:
            return section
    names = ", ".join(f"{s.name}.ipynb" for s in known)
    raise CourseError(f"{path.name} is not the name of a notebook of this course. Rename it back; there are {names}.")


def read_file(path: Path) -> bytes:
    """The bytes of a notebook's file. Raises CourseError where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CourseError(f"there is no {path}. `make lab`, or python -m course_utils lab, brings it back.") from None


def read_notebook(data: bytes, name: str) -> NotebookNode:
    """A notebook from the bytes of its file, in nbformat 4.

    Raises
    ------
    CourseError
        If it is no notebook; the message says what to do.
    """
    again = "Open it in JupyterLab and save it, or take an older copy (.ipynb_checkpoints beside it)."
    if len(data) > MAX_BYTES:
        raise CourseError(f"{name} has {len(data) // 1_000_000} MB. Clear its outputs in JupyterLab, and save it.")
    if not data.strip():
        raise CourseError(f"{name} is empty. {again}")
    try:
        text = data.decode("utf-8")
        plain = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        marks = b"<<<<<<<" in data and b">>>>>>>" in data
        why = "it holds git's conflict marks" if marks else f"it is no JSON: {error}"
        raise CourseError(f"{name} cannot be read: {why}. {again}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("cells"), list) or plain.get("nbformat") != 4:
        raise CourseError(f"{name} is no notebook of format 4. {again}")
    if not all(isinstance(cell, dict) for cell in plain["cells"]):
        raise CourseError(f"{name} is damaged: one of its cells is no cell. {again}")
    for cell in plain["cells"]:
        if isinstance(cell.get("source"), list):  # on disk a text is a list of lines
            cell["source"] = "".join(line for line in cell["source"] if isinstance(line, str))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a copied cell's id is there twice: said in better words by whoever asks
            return nbformat.reads(json.dumps(plain), as_version=4)
    except Exception:  # nbformat raises many kinds; cells that an editor broke are put right cell by cell
        return nbformat.from_dict({"metadata": {}, "nbformat_minor": 5, **plain})
