"""A life cycle of submissions to section 1, named by what each must get."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_utils.observe import all_exercises
from grading.source import sections

__all__ = ["SECTION", "Submission", "few_submissions", "submissions"]

SECTION = "01_tensor_costs"
POINTS = {e.id: e.points for e in all_exercises("tensor_costs")}


@dataclass
class Submission:
    """One student's notebook and the points it deserves.

    ``but`` holds the exercises that do not get full marks.
    """

    name: str
    notebook: NotebookNode
    but: dict[str, float] = field(default_factory=dict)
    nothing: bool = False
    points: dict[str, float] = field(default_factory=lambda: POINTS)

    @property
    def deserved(self) -> dict[str, float]:
        return {e: 0.0 if self.nothing else self.but.get(e, p) for e, p in self.points.items()}


def answers_of_the_reference(section: str = SECTION) -> dict[str, str]:
    """The reference's answer cells without the solution marks."""
    cells = sections(section)[0].answer_cells()
    return {name: re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", c.source, flags=re.M) for name, c in cells.items()}


def answer_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == f"answer-{exercise}")


def check_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == exercise)


WASTEFUL = '''
def bgr_to_batch(images):
    """Right, with several copies of the whole batch alive at once."""
    batch = torch.stack([torch.from_numpy(image.copy()).flip(-1).permute(2, 0, 1).float() for image in images])
    return batch.contiguous() / 255
'''
NOISY = '''
import logging, os, subprocess, sys, warnings
_quiet_frame_difference = frame_difference

def frame_difference(a, b):
    """Right, and loud on every way to stderr that there is."""
    print("to stderr", file=sys.stderr)
    warnings.warn("a warning")
    logging.getLogger("mine").error("a log record")
    os.write(2, b"to file descriptor 2\\n")
    subprocess.run(["sh", "-c", "echo from a child process >&2"])
    return _quiet_frame_difference(a, b)
'''
DIES = """
def frame_difference(a, b):
    import os
    os._exit(3)
"""
LOOPS = """
def frame_difference(a, b):
    while True:
        try:
            pass
        except KeyboardInterrupt:
            pass
"""
WRONG = """
def frame_difference(a, b):
    return (a - b).abs()
"""
REPLACES_CHECK = """
def check(*anything):
    print("all right")

import course_utils
course_utils.check = check
"""
PATCHES_EQUAL = """
import numpy, torch
torch.equal = torch.allclose = numpy.array_equal = numpy.allclose = numpy.isclose = lambda *a, **k: True
torch.testing.assert_close = lambda *a, **k: None

class EqualToAll:
    def __eq__(self, other): return True
    def __le__(self, other): return True
    def __float__(self): return 0.0
    def __bool__(self): return True
    __hash__ = None

def frame_difference(a, b):
    return EqualToAll()
"""
STRIPS_ASSERTS = """
import ast

class Strip(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.Pass()

get_ipython().ast_transformers.append(Strip())
"""
FORGES = """
from IPython.display import publish_display_data

def frame_difference(a, b):
    import json
    facts = json.dumps({"nonce": "", "exercise": "frame_difference", "facts": [], "ended": None, "missing": False})
    publish_display_data({"application/vnd.pytorch-foundations.facts+json": facts, "text/plain": "2.0"})
    get_ipython().displayhook(2.0)
    return (a - b).abs()
"""


def submissions(released: NotebookNode) -> list[Submission]:
    """All submissions, built from the released notebook."""
    answers = answers_of_the_reference()

    def solved(*only: str) -> NotebookNode:
        notebook = copy.deepcopy(released)
        for exercise in only or answers:
            answer_cell(notebook, exercise).source = answers[exercise]
        return notebook

    def with_answer(exercise: str, code: str) -> NotebookNode:
        notebook = solved()
        answer_cell(notebook, exercise).source = code
        return notebook

    def changed(change: Callable[[NotebookNode], None]) -> NotebookNode:
        notebook = solved()
        change(notebook)
        return notebook

    def delete_check(notebook: NotebookNode) -> None:
        notebook.cells.remove(check_cell(notebook, "frame_difference"))

    def duplicate(notebook: NotebookNode) -> None:
        for find in (answer_cell, check_cell):
            cell = find(notebook, "bgr_to_batch")
            notebook.cells.insert(notebook.cells.index(cell) + 1, copy.deepcopy(cell))

    def change_locked(notebook: NotebookNode) -> None:
        check_cell(notebook, "frame_difference").source = "2.0"
        answer_cell(notebook, "frame_difference").source = WRONG

    def insert_first(code: str) -> Callable[[NotebookNode], None]:
        def change(notebook: NotebookNode) -> None:
            notebook.cells.insert(0, new_code_cell(code))
            answer_cell(notebook, "frame_difference").source = WRONG

        return change

    half = list(answers)[: len(answers) // 2]
    zero = {"frame_difference": 0.0}
    return [
        Submission("all_right", solved()),
        Submission("nothing_done", copy.deepcopy(released), nothing=True),
        Submission("half_done", solved(*half), {e: 0.0 for e in answers if e not in half}),
        Submission("wasteful", with_answer("bgr_to_batch", WASTEFUL), {"bgr_to_batch": 0.6 * POINTS["bgr_to_batch"]}),
        Submission("prints_to_stderr", with_answer("frame_difference", answers["frame_difference"] + NOISY)),
        Submission("deletes_a_check", changed(delete_check)),
        Submission("duplicates_cells", changed(duplicate)),
        Submission("changes_a_locked_cell", changed(change_locked), zero),
        Submission("kernel_dies", with_answer("frame_difference", DIES), zero),
        Submission("endless_loop", with_answer("frame_difference", LOOPS), zero),
        Submission("replaces_check", changed(insert_first(REPLACES_CHECK)), zero),
        Submission("patches_torch_equal", with_answer("frame_difference", PATCHES_EQUAL), zero),
        Submission("strips_asserts", changed(insert_first(STRIPS_ASSERTS)), zero),
        Submission("forges_a_result", with_answer("frame_difference", FORGES), zero),
    ]


LOUD = """
import logging, os, sys, warnings
warnings.warn("a warning at the top")
logging.getLogger("mine").error("a log record")
print("to stderr", file=sys.stderr)
os.write(2, b"to file descriptor 2\\n")
"""


def few_submissions(released: NotebookNode, section: str) -> list[Submission]:
    """For every section: all right, nothing done, and half of it in a loud notebook whose kernel dies once."""
    answers = answers_of_the_reference(section)
    points = {e.id: e.points for e in all_exercises(sections(section)[0].name)}
    functions = [name for name, code in answers.items() if f"def {name}(" in code]
    half = list(answers)[::2]
    dying = next(name for name in functions if name not in half)
    missing = [name for name in answers if name not in half]
    # An answer that calls one that is missing cannot be right either.
    standing = {e for e in half if not any(re.search(rf"\b{name}\(", answers[e]) for name in missing)}

    right, mixed = copy.deepcopy(released), copy.deepcopy(released)
    for exercise, code in answers.items():
        answer_cell(right, exercise).source = code
        if exercise in half:
            answer_cell(mixed, exercise).source = code
    answer_cell(mixed, dying).source = f"def {dying}(*anything, **more):\n    import os\n    os._exit(3)"
    mixed.cells.insert(0, new_code_cell(LOUD))
    return [
        Submission("all_right", right, points=points),
        Submission("nothing_done", copy.deepcopy(released), nothing=True, points=points),
        Submission("half_in_a_mess", mixed, dict.fromkeys(answers.keys() - standing, 0.0), points=points),
    ]
