"""The command `reset`: put an answer back to the stub that was handed out. What was there is kept.

python -m course_utils reset bgr_to_batch             one answer
python -m course_utils reset 01_tensor_costs --yes    all answers of a section
"""

from __future__ import annotations

import argparse

from nbformat import NotebookNode

from course_utils.errors import CourseError
from course_utils.student.cells import grade_id
from course_utils.student.released import Section, find, read_file, read_notebook
from course_utils.student.writing import RELOAD, replace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `reset`."""
    add = parser.add_argument
    add("what", metavar="EXERCISE", help="the exercise's name alone, or a section (with --yes)")
    add("--notebook", metavar="PATH", help="where the notebook lies, if not in notebooks/")
    add("--yes", action="store_true", help="put all answers of a section back")


def run(args: argparse.Namespace) -> int:
    """Put the answers back and say where the old notebook is kept. Raises CourseError where that is not safe."""
    place = find(args.what)
    path = find(args.notebook).path if args.notebook else place.path
    section = place.section
    before = read_file(path)
    notebook = read_notebook(before, path.name)
    if args.notebook and find(args.notebook).section != section:
        raise CourseError(f"{args.what} is not in {path.name}, but in {section.name}.ipynb.")
    answers = {e: i for e, i in section.answers.items() if place.exercise in ("", e)}
    cells = {e: answer_cell(notebook, e, section) for e in answers}
    changed = [e for e, i in answers.items() if cells[e].source.strip() != section.cells[i].source.strip()]
    if not changed:
        print(f"Nothing to put back: {args.what} is as it was handed out in {path}.")
        return 0
    if not place.exercise and not args.yes:
        raise CourseError(
            f"this would put {len(changed)} answers back: {', '.join(changed)}. Add --yes if you mean it."
        )
    for exercise in changed:
        cells[exercise].source = section.cells[answers[exercise]].source
        for cell in notebook.cells:
            if grade_id(cell) in (exercise, f"answer-{exercise}") and cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
    kept = replace(path, before, notebook)
    print(f"Put back: {', '.join(changed)}. The notebook as it was: {kept}\n{RELOAD}")
    return 0


def answer_cell(notebook: NotebookNode, exercise: str, section: Section) -> NotebookNode:
    """The one answer cell of an exercise. Raises CourseError where it is missing, there twice, or of another type."""
    name = section.answers[exercise]
    found = [cell for cell in notebook.cells if grade_id(cell) == name]
    mend = f"First: python -m course_utils repair {section.assignment}"
    if not found:
        raise CourseError(f"the answer cell of {exercise} was deleted. {mend}")
    if len(found) > 1:
        raise CourseError(f"the answer cell of {exercise} is there {len(found)} times; which one is meant? {mend}")
    kind = section.cells[name].cell_type
    if found[0].get("cell_type") != kind or not isinstance(found[0].get("source"), str):
        raise CourseError(f"the answer cell of {exercise} is no {kind} cell any more. {mend}")
    return found[0]
