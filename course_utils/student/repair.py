"""The command `repair`: bring a notebook's cells into the form in which they were handed out. Answers stay as they are.

It does what grading does to a submission: copies lose their mark, deleted cells come back, locked ones are as before.
"""

from __future__ import annotations

import argparse
import copy

from course_utils.student.cells import restore
from course_utils.student.released import find, read_file, read_notebook
from course_utils.student.writing import RELOAD, replace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `repair`."""
    parser.add_argument("what", metavar="SECTION", help="such as 01_tensor_costs, or the path of a notebook")


def run(args: argparse.Namespace) -> int:
    """Put the cells right and say what was done. Raises CourseError where the file cannot be read."""
    place = find(args.what)
    before = read_file(place.path)
    notebook = read_notebook(before, place.path.name)
    cells, notes = restore(copy.deepcopy(notebook.cells), place.section.cells)
    if not notes:
        print(f"Nothing to repair in {place.path}.")
        return 0
    notebook.cells = cells
    kept = replace(place.path, before, notebook)
    for note in notes:
        print(f"* {note}")
    print(f"Put right: {place.path}. As it was: {kept}\n{RELOAD}\nThen run all cells, and save.")
    return 0
