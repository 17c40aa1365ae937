"""What the executor says about a cell: its name, or a number as a reader counts."""

from __future__ import annotations

from nbformat.v4 import new_code_cell, new_notebook

from grading.executor import ObserveAndJudge


def test_a_cell_that_ends_its_kernel_is_named_by_a_number_from_zero():
    named = new_code_cell("", metadata={"nbgrader": {"grade_id": "answer-strides"}})
    executor = ObserveAndJudge()
    executor.nb = new_notebook(cells=[new_code_cell(""), named, new_code_cell("")])
    assert [executor._label(n) for n in range(3)] == ["cell 1", "answer-strides", "cell 3 (behind answer-strides)"]
