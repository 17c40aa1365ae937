"""Restore: whatever was done to the cells of a notebook, it can be graded, and an answer still counts."""

from __future__ import annotations

import copy
import logging
import random

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell
from nbgrader.utils import compute_checksum, determine_grade

from course_utils.student.cells import restore
from grading.restore import Released, RestoreCells

NAMES = ("first", "second", "third")


def nbgrader(grade_id: str, **changes) -> NotebookNode:
    base = {
        "grade_id": grade_id,
        "grade": False,
        "solution": False,
        "locked": False,
        "task": False,
        "schema_version": 3,
    }
    return NotebookNode({**base, **changes})


def cell(grade_id: str, source: str, **changes) -> NotebookNode:
    made = new_code_cell(source)
    made.metadata["nbgrader"] = nbgrader(grade_id, cell_type="code", **changes)
    return made


def released_cells() -> dict[str, NotebookNode]:
    cells = [cell("setup-1", "import torch", locked=True)]
    for name in NAMES:
        cells.append(cell(f"answer-{name}", f"def {name}(x):\n    raise NotImplementedError", solution=True))
        cells.append(cell(name, f'check("{name}")', grade=True, locked=True, points=2.0))
    return {c.metadata.nbgrader.grade_id: c for c in cells}


def handed_out() -> list[NotebookNode]:
    """The notebook as a student gets it, with texts between the cells, and answered."""
    cells = [new_markdown_cell("# Title")]
    for c in copy.deepcopy(list(released_cells().values())):
        if c.metadata.nbgrader.solution:
            c.source = c.source.replace("raise NotImplementedError", "return x")
            cells.append(new_markdown_cell("The task."))
        cells.append(c)
    return cells


def grade_ids(cells) -> list[str]:
    return [c.metadata.nbgrader.grade_id for c in cells if "nbgrader" in c.metadata]


def at(cells, grade_id: str) -> int:
    return next(i for i, c in enumerate(cells) if (c.metadata.get("nbgrader") or {}).get("grade_id") == grade_id)


def restored(cells) -> list[NotebookNode]:
    out, _ = restore(cells, released_cells())
    assert_gradable(out)
    return out


def assert_gradable(out: list[NotebookNode]) -> None:
    """Every released cell exactly once, locked ones as released, each check behind its answer; valid for nbformat."""
    released = released_cells()
    assert sorted(grade_ids(out)) == sorted(released)
    for name, model in released.items():
        found = out[at(out, name)]
        assert found.cell_type == model.cell_type
        assert found.metadata.nbgrader == model.metadata.nbgrader
        if model.metadata.nbgrader.locked:
            assert found.source == model.source
    for name in NAMES:
        assert at(out, f"answer-{name}") < at(out, name)
    assert len({c.id for c in out}) == len(out)
    nbformat.validate(new_notebook(cells=out))


def results(out: list[NotebookNode]) -> dict[str, object]:
    """Run the cells as a kernel would, errors allowed; what each check finds."""
    found: dict[str, object] = {}
    namespace: dict = {"check": lambda name: found.__setitem__(name, call(namespace.get(name)))}

    def call(function):
        try:
            return function(7)
        except Exception as error:
            return type(error).__name__

    for c in out:
        if c.cell_type == "code":
            try:
                exec(c.source.replace("import torch", "torch = 1"), namespace)
            except Exception:
                continue
    return found


def test_an_untouched_notebook_is_changed():
    cells = handed_out()
    out, notes = restore(copy.deepcopy(cells), released_cells())
    assert notes == []
    assert [(c.cell_type, c.source) for c in out] == [(c.cell_type, c.source) for c in cells]
    assert results(out) == dict.fromkeys(NAMES, 7)


def test_a_deleted_check_costs_the_mark():
    cells = handed_out()
    del cells[at(cells, "second")]
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_a_notebook_without_metadata_is_checked_before_it_has_answered():
    cells = handed_out()
    for c in cells:
        c.metadata = NotebookNode()
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_imports_that_were_moved_to_the_end_come_too_late():
    cells = handed_out()
    cells.append(cells.pop(at(cells, "setup-1")))
    out = restored(cells)
    assert at(out, "setup-1") < min(at(out, f"answer-{name}") for name in NAMES)


def test_a_tag_that_nbformat_refuses_leaves_the_notebook_invalid():
    cells = handed_out()
    cells[at(cells, "answer-first")].metadata["tags"] = ["mine", "", "a,b", 3, "mine"]
    out = restored(cells)
    assert out[at(out, "answer-first")].metadata.tags == ["mine"]


def test_a_deleted_answer_costs_other_marks():
    cells = handed_out()
    del cells[at(cells, "answer-second")]
    assert results(restored(cells)) == {"first": 7, "second": "NotImplementedError", "third": 7}


@pytest.mark.parametrize("place", ["answer-first", "answer-third"])
@pytest.mark.parametrize(
    "code", ["def second(x):\n    return x", "second = lambda x: x", "second: object = abs", "class second(int): pass"]
)
def test_an_answer_written_into_another_cell_is_overridden_by_the_empty_one(code, place):
    cells = handed_out()
    del cells[at(cells, "answer-second")]
    cells[at(cells, place)].source += "\n" + code
    if place == "answer-third":  # and the check stands behind it
        cells.append(cells.pop(at(cells, "second")))
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_everything_deleted_is_not_gradable():
    assert results(restored([])) == dict.fromkeys(NAMES, "NotImplementedError")


def test_a_copied_cell_counts_twice_or_is_lost():
    cells = handed_out()
    empty = copy.deepcopy(cells[at(cells, "answer-first")])
    cells[at(cells, "answer-first")].source = "# the next cell is better"
    cells.insert(at(cells, "first"), empty)
    cells.insert(at(cells, "second"), copy.deepcopy(cells[at(cells, "second")]))
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_an_answer_written_into_a_locked_cell_is_lost():
    cells = handed_out()
    cells[at(cells, "answer-first")].source = "# see below"
    cells[at(cells, "first")].source = "def first(x):\n    return x"
    copied = copy.deepcopy(cells[at(cells, "second")])
    cells[at(cells, "answer-second")].source = "# see below"
    copied.source = "def second(x):\n    return x"
    cells.insert(at(cells, "second"), copied)
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_a_check_that_was_edited_stays_edited():
    cells = handed_out()
    cells[at(cells, "first")].source = "pass"
    cells[at(cells, "setup-1")].source = "torch = None"
    out = restored(cells)
    assert out[at(out, "first")].source == 'check("first")'
    assert results(out) == dict.fromkeys(NAMES, 7)


def test_a_check_moved_before_its_answer_finds_nothing():
    cells = handed_out()
    cells.insert(0, cells.pop(at(cells, "third")))
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_cell_turned_into_text_is_lost(kind):
    cells = handed_out()
    for name in ("answer-first", "second", "setup-1"):
        index = at(cells, name)
        new = new_markdown_cell if kind == "markdown" else new_raw_cell
        cells[index] = new(cells[index].source, metadata=cells[index].metadata)
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def test_a_tag_of_the_students_own_keeps_a_locked_cell_from_running():
    cells = handed_out()
    for c in cells:
        c.metadata["tags"] = ["skip-execution"]
    out = restored(cells)
    assert "tags" not in out[at(out, "setup-1")].metadata


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [],
        {},
        {"grade_id": None},
        {"grade_id": 3},
        {"grade_id": "unknown", "grade": True, "points": 100},
        {"grade_id": "first", "grade": True, "points": 100, "locked": False},
        {"grade_id": ["first"]},
    ],
    ids=repr,
)
def test_metadata_that_nbgrader_never_wrote_ends_grading_or_earns_points(metadata):
    cells = handed_out()
    cells.insert(1, new_code_cell("mine = 1", metadata={"nbgrader": metadata}))
    cells[at(cells, "second")].metadata.nbgrader.points = 1000
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


@pytest.mark.parametrize(
    "broken",
    [
        {"cell_type": "code"},
        {"cell_type": "code", "source": None, "metadata": None},
        {"cell_type": "heading", "source": "Old", "metadata": {}},
        {"source": "x", "metadata": []},
        {"cell_type": "code", "source": "x = 1", "metadata": {"tags": 3}, "id": "same"},
    ],
    ids=repr,
)
def test_a_cell_that_an_editor_broke_ends_grading(broken):
    cells = handed_out()
    for _ in range(2):
        cells.insert(2, nbformat.from_dict({"id": "same", **broken}))
    assert results(restored(cells)) == dict.fromkeys(NAMES, 7)


def surgery(rng: random.Random, cells: list[NotebookNode]) -> None:
    """One random thing that people or programs do to a notebook."""
    if not cells:
        return
    index = rng.randrange(len(cells))
    other = rng.randrange(len(cells))
    victim = cells[index]
    match rng.randrange(9):
        case 0:
            del cells[index]
        case 1:
            cells.insert(other, copy.deepcopy(victim))
        case 2:
            cells.insert(other, cells.pop(index))
        case 3:
            victim.source = rng.choice(["", "pass", "1/0", 'check("first")', "def first(x):\n    return x"])
        case 4:
            victim.cell_type = rng.choice(["code", "markdown", "raw"])
        case 5:
            victim.metadata = rng.choice([None, NotebookNode(), NotebookNode(nbgrader=None), NotebookNode(tags=[1])])
        case 6:
            some = rng.choice([*released_cells(), "unknown"])
            victim.metadata = NotebookNode(nbgrader=nbgrader(some, points=-1))
        case 7:
            victim.id = cells[other].get("id")
        case 8:
            cells.insert(other, new_code_cell("x = 1"))


@pytest.mark.parametrize("seed", range(4))
def test_surgery_on_a_notebook_loses_or_doubles_a_cell(seed):
    rng = random.Random(seed)
    for _ in range(60):
        cells = handed_out()
        for _ in range(rng.randrange(1, 12)):
            surgery(rng, cells)
        written = [c.source for c in cells if c.cell_type == "code" and "return x" in c.source]
        out = restored(cells)
        kept = [c.source for c in out]
        assert all(source in kept for source in written)
        assert_gradable(restore(copy.deepcopy(out), released_cells())[0])


# ------------------------------------------------------------------------------------------------ answers in words
STUB = "YOUR ANSWER HERE"


def reflection(text: str) -> NotebookNode:
    made = new_markdown_cell(text)
    made.metadata["nbgrader"] = nbgrader("in_words", cell_type="markdown", grade=True, solution=True, points=2.0)
    return made


def in_words(*cells: NotebookNode) -> tuple[list[str], list[str]]:
    """The texts of the graded cell, which is there once, and what was put right."""
    out, notes = restore([*handed_out(), *cells], {**released_cells(), "in_words": reflection(STUB)})
    return [c.source for c in out if c.metadata.get("nbgrader", {}).get("grade_id") == "in_words"], list(
        map(str, notes)
    )


@pytest.mark.parametrize(
    "texts, kept",
    [
        ((STUB, "mine"), "mine"),
        (("mine", STUB), "mine"),
        (("mine", "mine"), "mine"),
        (("one", "", "two"), "one\n\ntwo"),
        (("", STUB), STUB),
    ],
)
def test_a_copied_reflection_hides_what_was_written_in_one_of_them(texts, kept):
    sources, notes = in_words(*map(reflection, texts))
    assert sources == [kept]
    assert len(notes) == len(texts) - 1 and all("in_words is there twice" in note for note in notes)


def test_an_emptied_reflection_is_taken_for_an_answer():
    assert in_words(reflection("  \n")) == ([STUB], [])


def test_a_reflection_that_became_code_is_lost():
    cell = new_code_cell("mine", metadata=reflection("").metadata)
    sources, notes = in_words(cell)
    assert sources == ["mine"] and "turned into a code cell" in notes[0]


def grade_of(cells: list[NotebookNode]) -> float | None:
    """What nbgrader gives before a person has looked."""
    model = reflection(STUB)
    model.metadata.nbgrader["checksum"] = compute_checksum(model)
    released = Released({**released_cells(), "in_words": model}, {})
    names = {"released": released, "notebook": "x", "student": "ann"}
    nb, _ = RestoreCells().preprocess(new_notebook(cells=cells), {"nbgrader": names})
    (cell,) = [c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade_id") == "in_words"]
    return determine_grade(cell)[0]


def test_an_answer_in_words_gets_points_from_a_program_or_an_empty_one_waits_for_a_person():
    assert grade_of([reflection("mine")]) is None
    assert grade_of([reflection(STUB)]) == grade_of([reflection("")]) == 0


def test_a_deleted_reflection_gets_0_although_its_text_may_stand_elsewhere():
    assert grade_of([new_markdown_cell("My answer: a view describes.")]) is None


@pytest.mark.parametrize("cut_off, how", [(True, "is lost with the end of the file"), (False, "was deleted")])
def test_a_file_that_is_cut_off_fills_the_report_with_a_line_for_each_cell(caplog, cut_off, how):
    names = {"released": Released(released_cells(), {}), "notebook": "x", "student": "ann", "cut_off": cut_off}
    preprocessor = RestoreCells()
    preprocessor.log = logging.getLogger("restore")
    preprocessor.preprocess(new_notebook(cells=handed_out()[:4]), {"nbgrader": names})  # up to the first answer
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"ann, x: each of 5 cells {how} (3 exercises and questions: first, second, third); the released cells are put back"
    ]
