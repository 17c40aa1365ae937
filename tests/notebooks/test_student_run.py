"""What a student sees in a kernel: the look before handing in runs the notebook, and hints outlive a restart."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course_utils import progress_store as store
from course_utils.__main__ import main
from course_utils.student.cells import grade_id
from course_utils.student.released import find, sections
from course_utils.student.running import run_notebook
from grading.source import ROOT
from grading.source import sections as sources

SECTION = "01_tensor_costs"


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Section 1 with every right answer."""
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress"))
    made = nbformat.read(ROOT / "notebooks" / SECTION / "tensor_costs.ipynb", as_version=4)
    answers = sources(SECTION)[0].answer_cells()
    for cell in made.cells:
        name = (grade_id(cell) or "").removeprefix("answer-")
        if name in answers and cell.metadata.nbgrader.solution:
            cell.source = re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", answers[name].source, flags=re.M)
        elif cell.cell_type == "markdown" and grade_id(cell):
            cell.source = "A view describes, a storage holds."
    path = tmp_path / "hand in" / SECTION / "tensor_costs.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(made, path)
    return path


def change(path: Path, **answers: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        name = (grade_id(cell) or "").removeprefix("answer-")
        if name in answers and cell.metadata.nbgrader.solution:
            cell.source = answers[name]
    nbformat.write(notebook, path)


def test_a_notebook_that_is_all_right_is_not_called_ready(notebook, capsys):
    before = notebook.read_bytes()
    assert main(["ready", str(notebook)]) == 0
    text = capsys.readouterr().out
    assert "17 of 17 exercises, 39 of 39 points" in text and "a person gives its 2 points" in text and "Nothing is left to do." in text
    assert "[FAIL]" not in text and "[note]" not in text
    assert notebook.read_bytes() == before
    assert os.listdir(notebook.parent) == [notebook.name]
    assert not (store.progress_folder() / "tensor_costs.json").exists(), "a look is no try of the student's"


def test_what_fails_in_a_run_goes_unnoticed(notebook, capsys):
    change(
        notebook,
        compact="def compact(x):\n    return x",
        assemble="def assemble(*a):\n    return no_such_name",
        can_view="",
        arange_length="arange_length = = 1",
        to_opencv="def to_opencv(batch):\n    raise NotImplementedError()",
    )
    made = nbformat.read(notebook, as_version=4)
    made.cells.insert(3, new_code_cell("print(defined_much_later)"))
    made.cells.insert(4, new_code_cell("print(defined_much_later + 1)"))
    made.cells.append(new_code_cell("defined_much_later = 1"))
    check = next(c for c in made.cells if grade_id(c) == "bgr_to_batch")
    old = "bgr_to_batch: not started, 0 of 3 points"
    check.outputs = [nbformat.v4.new_output("display_data", {"text/plain": old, "text/html": "<b>old</b>"})]
    nbformat.write(made, notebook)
    store.save("tensor_costs", "compact", store.Record(tries=1, best=2.0, last=2.0, kind="right"))

    assert main(["ready", str(notebook)]) == 1
    text = capsys.readouterr().out
    for words in (
        "[FAIL] cell 4                  fails: NameError: name 'defined_much_later' is not defined",
        "-> mend it, or delete the cell if it is your own: grading runs all cells in their order, and this name comes later",
        "[FAIL] cells                   1 more miss a name, perhaps because of what failed above",
        "[FAIL] arange_length           fails: SyntaxError: invalid syntax",
        "-> mend it\n",
        "[FAIL] can_view                name missing, 0 of 3 points",
        "[FAIL] assemble                crashed, 0 of 3 points",
        "[FAIL] not started             to_opencv",
        "[note] outputs                 old ones are saved for bgr_to_batch",
        "12 of 17 exercises",
    ):
        assert words in text, text
    after = text.split("[FAIL] compact", 1)[1].splitlines()
    assert "wrong value" in after[0] and "your last check was right, the file is not: save" in after[1]


@pytest.mark.parametrize(
    "code, why",
    [("while True:\n    pass", "did not end within 3 seconds"), ("import os; os._exit(1)", "the kernel died")],
)
def test_a_cell_without_end_hangs_the_look(code, why, tmp_path):
    made = new_notebook(cells=[new_code_cell("a = 1"), new_code_cell(code), new_code_cell("b = 1")])
    result = run_notebook(made, tmp_path, "tensor_costs", seconds=3)
    assert why in result.stopped and result.at == 1
    assert made.cells[2].execution_count is None


def test_a_read_only_folder_keeps_a_notebook_from_running(tmp_path, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))
    made = new_notebook(cells=[new_code_cell("open('mine.txt', 'w').write('x')\nimport course_utils")])
    assert run_notebook(made, tmp_path, "tensor_costs").stopped == ""
    assert not [o for o in made.cells[0].outputs if o.output_type == "error"]
    assert list(tmp_path.iterdir()) == []


def run_cells(*code: str) -> list[str]:
    """What each cell shows, in a kernel of its own."""
    made = new_notebook(cells=[new_code_cell(c) for c in ("from course_utils import check, hint, progress", *code)])
    NotebookClient(made, timeout=60, allow_errors=True, resources={"metadata": {"path": str(ROOT)}}).execute()
    shown = []
    for cell in made.cells[1:]:
        texts = [o.get("data", {}).get("text/plain", "") for o in cell.outputs]
        shown.append("\n".join(t for t in texts if t))
    return shown


def test_a_restart_forgets_progress_or_hints_and_two_hints_in_a_cell_show_one(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path))
    twice = 'hint("compact")\nhint("bgr_to_batch")'
    wrong = "def compact(x):\n    return x\ncheck('compact')"
    shown = run_cells(twice, 'hint("compact")', wrong, 'hint("compact")')
    assert "compact\nHint 1 of" in shown[0] and "bgr_to_batch\nHint 1 of" in shown[0]
    assert "Hint 2 of" not in shown[1] and "after one more different try" in shown[1]
    assert "Hint 2 of" in shown[3] and "Hint 3 of" not in shown[3]

    again = run_cells('hint("compact")', "progress()")
    assert "Hint 2 of" in again[0] and "Hint 3 of" not in again[0]
    row = next(line.split() for line in again[1].splitlines() if line.startswith("compact "))
    assert row[1:4] == ["✗", "wrong", "value"] and row[9:12] == ["2", "/", "3"]
    assert all(s.assignment in again[1] for s in sections())
    assert find("compact").section.assignment == SECTION
