"""Read a section's source: percent-format text with the exercises marked.

    # %% [markdown] exercise="bgr_to_batch"      the task; the build puts a heading with points and minutes above it
    # %% exercise="bgr_to_batch"                 the answer cell, with ### BEGIN SOLUTION ... ### END SOLUTION
    # %% tags=["setup"]                          imports that answers rely on
    # %% [markdown] reflection="bytes" points=2  a question to be answered in words; the build puts a heading above it
    # %% [markdown] reflection="bytes"           a good answer; students get an empty cell, and a person gives the points

The build adds nbgrader's metadata and the check cell, so that no grade id is typed twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

__all__ = ["ROOT", "SOLUTIONS", "WRITE_HERE", "Section", "SourceError", "sections"]

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS = ROOT / "solutions"
WRITE_HERE = "Double-click the cell below and write over its text."  # under a question to be answered in words
_NAME = re.compile(r"^(\d\d)_([a-z][a-z0-9_]*)$")


class SourceError(ValueError):
    """A section's source breaks a rule; the message says which cell and what to do."""


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes
    ----------
    assignment : str
        nbgrader's name and the folder's, ``01_tensor_costs``.
    name : str
        The notebook's and the exercise module's, ``tensor_costs``.
    path : Path
        The source.
    """

    assignment: str
    name: str
    path: Path

    def read(self) -> NotebookNode:
        """The source as a notebook, metadata as written."""
        import jupytext  # a third of a second, for which a worker and the warm process need not wait

        return jupytext.read(self.path, fmt="py:percent")

    def answer_cells(self) -> dict[str, NotebookNode]:
        """The answer cell of every exercise, by id, in order."""
        cells: dict[str, NotebookNode] = {}
        for cell in self.read().cells:
            name = cell.metadata.get("exercise")
            if name and cell.cell_type == "code":
                if name in cells:
                    raise SourceError(f"{self.path.name}: two answer cells are marked exercise={name!r}")
                cells[name] = cell
        return cells

    def setup_cells(self) -> list[NotebookNode]:
        return [c for c in self.read().cells if "setup" in c.metadata.get("tags", []) and c.cell_type == "code"]

    def handed_out_lines(self) -> frozenset[str]:
        """The lines of all code cells but the answers': every student has them in the notebook."""
        cells = [c for c in self.read().cells if c.cell_type == "code" and "exercise" not in c.metadata]
        return frozenset(line.strip() for c in cells for line in c.source.splitlines())


def sections(only: str | None = None) -> list[Section]:
    """The sections found in ``solutions/``; ``only`` may be ``01_tensor_costs`` or ``tensor_costs``.

    Raises
    ------
    SourceError
        If there is no section of that name.
    """
    found = []
    for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*.py")):
        match = _NAME.match(path.stem)
        if match:
            found.append(Section(path.stem, match.group(2), path))
    chosen = [s for s in found if only in (None, s.assignment, s.name)]
    if not chosen:
        raise SourceError(f"no section {only!r}; there are: {', '.join(s.assignment for s in found) or 'none'}")
    return chosen
