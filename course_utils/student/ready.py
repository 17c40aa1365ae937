"""The command `ready`: is this notebook fit to be handed in, and if not, what is to be done?

    python -m course_utils ready                    every section in which an answer was written
    python -m course_utils ready 01_tensor_costs    or the path of a notebook; --no-run looks at the file only

It changes nothing. The exit status is 0 where nothing is left to do, 1 where something is.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from course_utils import progress_store
from course_utils.doctor import Finding, Mark, show
from course_utils.errors import CourseError
from course_utils.student.cells import grade_id, restore, written
from course_utils.student.released import Place, Section, find, read_file, read_notebook, sections
from course_utils.student.running import CELL_SECONDS, progress_line, run_notebook

__all__ = ["answered", "look"]

SAVE = "save the notebook in JupyterLab (Ctrl+S, on macOS Command+S), and run this again"
RUN_ALL = "Kernel > Restart Kernel and Run All Cells, then save"


def answered(cells: list[NotebookNode], section: Section) -> set[str]:
    """The exercises and reflections whose answer cell is not as it was handed out."""
    sources: dict[str, list[str]] = {}
    for cell in cells:
        if name := grade_id(cell):
            sources.setdefault(name, []).append(str(cell.get("source", "")).strip())
    return {
        exercise
        for exercise, name in section.answers.items()
        if any(written(source, section.cells[name]) for source in sources.get(name, []))
    }


def look(place: Place, data: bytes, run: bool = True, seconds: int = CELL_SECONDS) -> Iterator[Finding]:
    """Everything that is to be said about a notebook, one finding after the other.

    Parameters
    ----------
    place : Place
    data : bytes
        What is in the notebook's file.
    run : bool
        Also run it, which takes as long as the notebook does.
    seconds : int
        The limit for each cell.
    """
    section, name = place.section, place.path.name
    try:
        notebook = read_notebook(data, name)
    except CourseError as error:
        advice = "or move it away: `make lab` (python -m course_utils lab) brings a fresh one"
        yield Finding(Mark.FAIL, "file", str(error), advice)
        return
    cells, notes = restore(copy.deepcopy(notebook.cells), section.cells)
    for note in notes:
        advice = f"python -m course_utils repair {section.assignment} puts it right (in grading: {note.done})"
        yield Finding(Mark.FAIL, note.cell or "cell", note.found, advice)
    if not notes:
        yield Finding(Mark.OK, "cells", "all there, each once, the locked ones as they were")
    yield from _order(notebook.cells)
    done = answered(cells, section)
    for reflection, points in section.reflections.items():
        if reflection in done:
            yield Finding(Mark.OK, reflection, f"written; a person gives its {points:g} points")
        else:
            advice = "write your 3 to 5 sentences into its cell, or hand in without them"
            yield Finding(Mark.FAIL, reflection, f"not written yet; {points:g} points, given by a person", advice)
    if run:
        yield from _judge(place, cells, notebook, seconds)
    else:
        yield from _undone(section, done)


def _undone(section: Section, done: set[str]) -> Iterator[Finding]:
    yield from _not_started(section, [e for e in section.exercises if e not in done])
    count = len(done & section.exercises.keys())
    yield Finding(Mark.OK, "answers", f"{count} of {len(section.exercises)} written; not run")


def _not_started(section: Section, exercises: list[str]) -> Iterator[Finding]:
    remembered = progress_store.load(section.name)
    unsaved = [e for e in exercises if remembered.get(e, progress_store.Record()).last]
    for exercise in unsaved:
        yield Finding(Mark.FAIL, exercise, "not started in the file, but your last check earned points", SAVE)
    rest = [e for e in exercises if e not in unsaved]
    if rest:
        advice = "write them, or hand in without them" if len(rest) > 1 else "write it, or hand in without it"
        yield Finding(Mark.FAIL, "not started", _few(rest), advice)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _order(cells: list[NotebookNode]) -> Iterator[Finding]:
    """Outputs that are not from one run, top to bottom."""
    code = [c for c in cells if c.get("cell_type") == "code" and str(c.get("source", "")).strip()]
    counts = [c.get("execution_count") for c in code]
    known = [n for n in counts if isinstance(n, int)]
    if known and known != sorted(known):
        yield Finding(Mark.NOTE, "outputs", "cells were run in another order than they stand in", RUN_ALL)
    elif known and len(known) < len(counts):
        yield Finding(Mark.NOTE, "outputs", f"{len(counts) - len(known)} cells were not run before saving", RUN_ALL)


def _judge(place: Place, cells: list[NotebookNode], saved: NotebookNode, seconds: int) -> Iterator[Finding]:
    """Run the notebook as grading will, with its cells put right, and say what each check finds."""
    section = place.section
    before = {grade_id(c): _card(c) for c in saved.cells if c.get("cell_type") == "code"}
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    metadata = saved.get("metadata")
    notebook = new_notebook(cells=cells, metadata=metadata if isinstance(metadata, dict) else {})
    folder = place.path.parent.resolve()
    result = run_notebook(notebook, folder, section.name, seconds, progress_line)
    if result.stopped:
        advice = "mend this cell; what stands below it was not run"
        yield Finding(Mark.FAIL, _label(cells, result.at), result.stopped, advice)
    else:
        yield Finding(Mark.OK, "run", f"{len(cells)} cells, top to bottom, in a fresh kernel")
    yield from _errors(cells)

    remembered = progress_store.load(section.name)
    checks = {grade_id(c): c for c in cells if c.cell_type == "code"}
    full, stale, undone = [], [], []
    for exercise in section.exercises:
        record = result.records.get(exercise)
        card = _card(checks[exercise])
        if before.get(exercise) and before[exercise][0] != (card or [""])[0]:
            stale.append(exercise)
        if record is not None and record.kind in ("right", "skipped"):
            full.append(exercise)
            continue
        if record is not None and record.kind == "not started":
            undone.append(exercise)
            continue
        last = remembered.get(exercise, progress_store.Record())
        if record is None and not card:
            if not result.stopped:
                yield Finding(Mark.FAIL, exercise, "its check did not run", RUN_ALL)
            continue
        advice = next((line[4:].strip() for line in card if line.startswith("try:")), f'check("{exercise}") says more')
        if last.kind == "right":
            advice = f"your last check was right, the file is not: {SAVE}"
        yield Finding(Mark.FAIL, exercise, (card or ["name missing"])[0].removeprefix(exercise).lstrip(":, "), advice)
    yield from _not_started(section, undone)
    if stale:
        yield Finding(Mark.NOTE, "outputs", f"old ones are saved for {_few(stale)}", RUN_ALL)
    partly = sum(record.last for e, record in result.records.items() if e in section.exercises and e not in full)
    points = round(sum(section.exercises[e] for e in full) + partly, 2)
    total = sum(section.exercises.values())
    right = f"{len(full)} of {len(section.exercises)} exercises, {'with those partly right ' if partly else ''}"
    yield Finding(Mark.OK, "right", f"{right}{points:g} of {total:g} points")


def _errors(cells: list[NotebookNode]) -> Iterator[Finding]:
    """Cells that fail and were not meant to. A check's own verdict is no such error.

    What only misses a name after another cell has failed is counted, and not listed: it is right once that one is.
    """
    failed, missing = 0, 0
    for at, cell in enumerate(cells):
        metadata = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code" or metadata.get("grade") or "raises-exception" in cell.metadata.get("tags", []):
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                if failed and output.get("ename") == "NameError" and "nbgrader" not in cell.metadata:
                    missing += 1
                    break
                failed += 1
                words = " ".join(f"{output.get('ename')}: {output.get('evalue')}".split())[:100]
                advice = "mend it" if "nbgrader" in cell.metadata else "mend it, or delete the cell if it is your own"
                if output.get("ename") == "NameError":
                    advice += ": grading runs all cells in their order, and this name comes later or not at all"
                yield Finding(Mark.FAIL, _label(cells, at), f"fails: {words}", advice)
                break
    if missing:
        found = f"{missing} more miss a name, perhaps because of what failed above"
        yield Finding(Mark.FAIL, "cells", found, "mend that first, then look again")


def _card(cell: NotebookNode) -> list[str]:
    """The lines of the card that a check cell shows; none where it shows none."""
    for output in cell.get("outputs", []):
        text = output.get("data", {}).get("text/plain", "") if output.get("output_type") == "display_data" else ""
        if text:
            return ("".join(text) if isinstance(text, list) else text).splitlines()
    return []


def _label(cells: list[NotebookNode], at: int) -> str:
    if not 0 <= at < len(cells):
        return "run"
    return (grade_id(cells[at]) or "").removeprefix("answer-") or f"cell {at + 1}"


# ------------------------------------------------------------------------------------------------ the command
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `ready`."""
    add = parser.add_argument
    add(
        "what", nargs="?", metavar="SECTION", help="such as 01_tensor_costs, or a notebook; by default all with answers"
    )
    add("--no-run", action="store_true", help="look at the file, and run nothing")
    add("--seconds", type=_positive, default=CELL_SECONDS, help=f"limit for each cell (default {CELL_SECONDS})")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 second is needed")
    return number


def chosen(what: str | None) -> list[Place]:
    """The notebooks that are meant: one that is named, or all in which something was answered.

    Raises CourseError where there is none.
    """
    if what is not None:
        return [find(what)]
    begun = []
    for section in sections():
        if not section.notebook.is_file():
            continue
        try:
            cells = read_notebook(section.notebook.read_bytes(), section.notebook.name).cells
        except CourseError:
            begun.append(Place(section, section.notebook))  # it is there, and something is wrong with it
            continue
        if answered(cells, section):
            begun.append(Place(section, section.notebook))
    if not begun:
        raise CourseError("no answer is written yet in any notebook here. Name a section or a notebook to look at it.")
    return begun


def report(place: Place, data: bytes, run: bool, seconds: int) -> bool:
    """Print what there is to say about one notebook. Returns whether nothing is left to do."""
    print(f"{place.section.assignment}: {place.path}", flush=True)
    marks = []
    for finding in look(place, data, run, seconds):
        show(finding)
        marks.append(finding.mark)
    left = marks.count(Mark.FAIL)
    print("Nothing is left to do." if not left else f"{left} to look at: follow the arrows, or hand in as it is.")
    return not left


def run(args: argparse.Namespace) -> int:
    """Look at the notebooks. Returns 1 where something is left to do, else 0."""
    good = True
    for place in chosen(args.what):
        good &= report(place, read_file(place.path), not args.no_run, args.seconds)
    return 0 if good else 1
