"""A notebook out of the bytes of a file: JSON of any version of the format, damaged JSON, or no JSON at all.

What can be read is read. What comes back is always a valid notebook of the newest format with cells of plain text, so
that nothing behind it can stumble: outputs, attachments and foreign metadata of a submission are of no use to a grader.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from course_utils.student.cells import tell_apart, valid_tags

__all__ = ["Rescued", "printable", "rescue"]

# Where a cell may begin in damaged JSON: the keys of a cell in any order that an editor writes them.
_CELL = re.compile(r'\{\s*"(?:attachments|cell_type|execution_count|collapsed|id|input|metadata|outputs|source)"\s*:')
_ID = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_EFFORT = 200_000_000  # characters read in vain in damaged JSON; a crafted file must not hold up the others
_MAKE = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}


@dataclass(frozen=True)
class Rescued:
    """What could be read.

    Attributes
    ----------
    notebook : NotebookNode
        Valid, format 4.5; without cells where nothing could be read.
    notes : tuple of str
        What had to be put right, for the instructor.
    unreadable : bool
        Nothing was found that could be a cell: a person has to look at the file.
    cut_off : bool
        The file ends in the middle.
    """

    notebook: NotebookNode
    notes: tuple[str, ...] = ()
    unreadable: bool = False
    cut_off: bool = False


def printable(text: object, most: int = 300) -> str:
    """A student's text for a terminal, a log or a table: one line, no control characters, not too long."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return line if len(line) <= most else line[: most - 1] + "…"


def rescue(data: bytes | None) -> Rescued:
    """Read a notebook from the bytes of its file, as far as possible. Raises nothing that the bytes could cause."""
    if data is None:
        return Rescued(new_notebook(), ("no notebook was handed in",), True)
    if not data.strip():
        return Rescued(new_notebook(), ("the notebook's file is empty",), True)
    notes: list[str] = []
    cut_off = False
    text = _decoded(data, notes)
    if "\n<<<<<<<" in text:
        text = _one_side(text)
        notes.append("the file has the marks of a merge; of two versions the first is taken")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        cells = _cells_in(text)
        if not cells:
            return Rescued(new_notebook(), (*notes, f"the file is no notebook: {printable(error, 120)}"), True)
        cut_off = _at_the_end(error)
        what = ", cut off at its end" if cut_off else ""
        notes.append(f"the file is damaged{what} ({printable(error, 120)}); {len(cells)} cells could be read")
    else:
        cells = _cells_of(whole, notes)
        if not cells:
            return Rescued(new_notebook(), (*notes, "the file holds no cells"), True)
    made = [_cell(c) for c in cells]
    lost = sum(c is None for c in made)
    if lost:
        notes.append(f"{lost} entries that are no cells are left out")
    notebook = new_notebook()
    notebook.cells = [c for c in made if c is not None]
    tell_apart(notebook.cells)
    return Rescued(notebook, tuple(notes), not notebook.cells, cut_off)


def _at_the_end(error: ValueError | RecursionError) -> bool:
    """Did the text end where more of it had to come?"""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return not error.doc[error.pos :].strip() or error.msg.startswith("Unterminated string")


def _decoded(data: bytes, notes: list[str]) -> str:
    for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            notes.append(f"the file is written as {name}")
            return data.decode(name, errors="replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Not errors="ignore": a letter that is lost must not join what stood apart.
        notes.append(f"the file is not UTF-8 from byte {error.start} on; such letters are replaced")
        return data.decode("utf-8", errors="replace")


def _one_side(text: str) -> str:
    """What git has left of two versions, as the first of them. No line of a notebook begins like these marks."""
    kept, side = [], ""
    for line in text.splitlines(keepends=True):
        mark = line[:7]
        if mark == "<<<<<<<":
            side = "first"
        elif side and mark in ("|||||||", "======="):
            side = "second"
        elif side and mark == ">>>>>>>":
            side = ""
        elif side != "second":
            kept.append(line)
    return "".join(kept)


def _cells_of(whole: Any, notes: list[str]) -> list[Any]:
    """The entries of a notebook that is valid JSON, of format 3, 4 or one that is not known yet."""
    if not isinstance(whole, dict):
        return []
    major, minor = whole.get("nbformat"), whole.get("nbformat_minor")
    if major != 4:
        notes.append(f"notebook format {printable(major, 20)} is read as far as it is known")
    elif isinstance(minor, int) and minor > 5:
        notes.append(f"notebook format 4.{minor} is newer than this nbformat; read as 4.5")
    cells = whole.get("cells")
    if not isinstance(cells, list):
        sheets = whole.get("worksheets")  # format 3
        sheets = sheets if isinstance(sheets, list) else []
        cells = [c for s in sheets if isinstance(s, dict) and isinstance(s.get("cells"), list) for c in s["cells"]]
    return cells


def _cells_in(text: str) -> list[dict[str, Any]]:
    """Every whole cell in text that is not JSON as a whole: cut off, with the marks of a merge, with a slip of a key."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    at = effort = 0
    while effort < _EFFORT and (start := _CELL.search(text, at)):
        try:
            cell, at = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            at = start.start() + 1
            effort += len(text) - at
            continue
        if isinstance(cell, dict) and "cell_type" in cell:
            found.append(cell)
    return found


def _cell(raw: Any) -> NotebookNode | None:
    """One valid cell with the text, the tags, nbgrader's metadata and the id of an entry; None where it is no cell."""
    if not isinstance(raw, dict):
        return None
    kind = raw.get("cell_type")
    source = _text(raw.get("source", raw.get("input")))  # "input" in format 3
    if kind == "heading":  # format 3
        kind, source = "markdown", f"# {source}"
    cell = _MAKE.get(kind if isinstance(kind, str) else "", new_raw_cell)(source)
    cell["id"] = raw["id"] if isinstance(raw.get("id"), str) and _ID.match(raw["id"]) else ""
    metadata = raw.get("metadata")
    if isinstance(metadata, dict):
        if tags := valid_tags(metadata.get("tags")):
            cell.metadata["tags"] = tags
        grade_id = metadata["nbgrader"].get("grade_id") if isinstance(metadata.get("nbgrader"), dict) else None
        if "nbgrader" in metadata:  # all that counts of it is the name; the rest comes from the gradebook
            cell.metadata["nbgrader"] = NotebookNode({"grade_id": grade_id} if isinstance(grade_id, str) else {})
    return cell


def _text(source: Any) -> str:
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    # A half of a surrogate pair, which JSON may hold, can be written to no file.
    return source.encode("utf-8", "replace").decode() if isinstance(source, str) else ""
