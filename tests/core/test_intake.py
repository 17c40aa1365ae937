"""Intake: whatever lies in the folder of a submission, answers in it are found, and nothing outside it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from grading.autograde.intake import HandedIn, hand_in
from grading.autograde.report import summary, write_reports
from grading.autograde.rescue import printable, rescue
from grading.autograde.store import Store, key_of
from grading.autograde.suspicion import suspicious
from grading.autograde.task import GRADED, NOT_GRADABLE, Result
from grading.source import sections

IDS = {"answer-first", "first", "answer-second", "second"}


def notebook() -> nbformat.NotebookNode:
    cells = []
    for name in ("first", "second"):
        cells.append(new_code_cell(f"def {name}(x):\n    return 'ä', x", id=f"cell-{name}"))
        cells[-1].metadata["nbgrader"] = {"grade_id": f"answer-{name}"}
        cells.append(new_code_cell(f'check("{name}")', id=f"cell-check-{name}"))
        cells[-1].metadata["nbgrader"] = {"grade_id": name}
    return new_notebook(cells=cells)


TEXT = nbformat.writes(notebook())
WHOLE = [c.source for c in notebook().cells]


def sources(data: bytes) -> list[str]:
    rescued = rescue(data)
    nbformat.validate(rescued.notebook)
    return [c.source for c in rescued.notebook.cells]


def altered(**changes: object) -> bytes:
    return json.dumps({**json.loads(TEXT), **changes}).encode()


def bare_cells(keep: tuple[str, ...]) -> bytes:
    cells = [{k: v for k, v in c.items() if k in keep} for c in json.loads(TEXT)["cells"]]
    return altered(cells=cells)


FORMAT_3 = {
    "nbformat": 3,
    "nbformat_minor": 0,
    "metadata": {},
    "worksheets": [{"cells": [{"cell_type": "code", "input": s, "outputs": [], "language": "python"} for s in WHOLE]}],
}
READABLE = {
    "as it was": TEXT.encode(),
    "with a mark of the byte order": b"\xef\xbb\xbf" + TEXT.encode(),
    "as UTF-16": TEXT.encode("utf-16"),
    "with Windows line ends": TEXT.replace("\n", "\r\n").encode(),
    "format 4.99": altered(nbformat_minor=99),
    "format 9": altered(nbformat=9),
    "format 3": json.dumps(FORMAT_3).encode(),
    "format as text": altered(nbformat="4"),
    "without format": json.dumps({"cells": json.loads(TEXT)["cells"]}).encode(),
    "metadata that is a list": altered(metadata=[1]),
    "cells without ids and outputs": bare_cells(("cell_type", "source", "metadata")),
    "a comma too many at the end": TEXT.rstrip().removesuffix("}").encode() + b",}",
    "cut off behind the cells": TEXT[: TEXT.index('"nbformat"')].encode(),
    "with the marks of a merge": TEXT.replace("{", "<<<<<<< HEAD\n{", 1).encode(),
}


@pytest.mark.parametrize("how", READABLE)
def test_a_slip_in_the_file_costs_every_answer(how: str):
    assert sources(READABLE[how]) == WHOLE


def test_a_file_that_is_cut_off_loses_more_than_the_cell_it_ends_in():
    half = TEXT[: TEXT.index("def second") + 5].encode()
    assert sources(half) == WHOLE[:2]
    assert any("damaged, cut off" in note for note in rescue(half).notes)
    assert rescue(half).cut_off and not rescue(READABLE["a comma too many at the end"]).cut_off


def test_a_byte_that_is_no_utf8_costs_the_notebook():
    assert len(sources(TEXT.encode("latin-1"))) == 4


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b" \n",
        b"\x00" * 50,
        b"%PDF-1.7",
        b"null",
        b"[]",
        b'{"cells": 7}',
        b'{"cells": [7, null]}',
        b"[" * 90_000,
    ],
)
def test_something_that_is_no_notebook_passes_for_an_empty_one(data: bytes | None):
    rescued = rescue(data)
    assert rescued.unreadable
    assert rescued.notes


@pytest.mark.parametrize(
    "cell",
    [
        {"cell_type": "code", "source": None, "metadata": None},
        {"cell_type": ["code"], "source": {"a": 1}, "metadata": {"tags": 3, "nbgrader": 4}},
        {"cell_type": "code", "source": ["a", 1, "b"], "metadata": {"nbgrader": {"grade_id": {"x": 1}}}, "id": 5},
        {"cell_type": "code", "source": "\ud800", "outputs": "no", "id": "a b c", "execution_count": "x"},
        {},
    ],
)
def test_a_cell_of_the_wrong_types_costs_the_cells_beside_it(cell: dict):
    cells = json.loads(TEXT)["cells"]
    assert [s for s in sources(altered(cells=[cells[0], cell, *cells[1:]])) if s in WHOLE] == WHOLE


def test_a_note_moves_the_cursor_of_the_instructors_terminal():
    assert printable("\x1b[2Ja\nb\x07") == "\\x1b[2Ja b\\x07"
    assert len(printable("x" * 5000)) == 300


# ------------------------------------------------------------------------------------------ the folder
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ann" / "01_x"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("name", ["x (1).ipynb", "X.ipynb", "x.ipynb.txt", "x.json", "deeper/x.ipynb", "mine.ipynb"])
def test_a_notebook_under_another_name_is_not_found(folder: Path, name: str):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(TEXT, encoding="utf-8")
    (folder / "other.ipynb").write_text(nbformat.writes(new_notebook(cells=[new_code_cell("1")])))
    handed_in = hand_in(folder, "x", IDS)
    assert handed_in.notebook == TEXT.encode()
    assert any(Path(name).name in note for note in handed_in.notes)


def test_an_empty_notebook_hides_the_full_one_beside_it(folder: Path):
    (folder / "x.ipynb").touch()
    (folder / "x (1).ipynb").write_text(TEXT, encoding="utf-8")
    assert hand_in(folder, "x", IDS).notebook == TEXT.encode()


def test_a_link_hands_in_what_lies_outside_the_folder(folder: Path, tmp_path: Path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text(TEXT, encoding="utf-8")
    (folder / "x.ipynb").symlink_to(secret)
    (folder / "notes.txt").symlink_to("/etc/passwd")
    (folder / "all").symlink_to(tmp_path)
    handed_in = hand_in(folder, "x", IDS)
    assert handed_in.notebook is None
    assert handed_in.files == {}
    assert sum("is a link" in note for note in handed_in.notes) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_stops_the_whole_run(folder: Path):
    os.mkfifo(folder / "x.ipynb")
    handed_in = hand_in(folder, "x", IDS)
    assert handed_in.notebook is None
    assert any("neither a file nor a folder" in note for note in handed_in.notes)


def test_an_empty_folder_has_no_explanation(folder: Path):
    assert any("there is: nothing" in note for note in hand_in(folder, "x", IDS).notes)


def test_a_module_beside_the_notebook_is_taken_along_and_a_data_file_is_not(folder: Path):
    (folder / "x.ipynb").write_text(TEXT, encoding="utf-8")
    (folder / "numpy.py").write_text("raise SystemExit")
    (folder / "table.csv").write_text("1")
    assert hand_in(folder, "x", IDS).files == {"table.csv": b"1"}


@pytest.mark.parametrize(("text", "kept"), [("2026-03-01 10:00:00 UTC\n", "2026-03-01 10:00:00 UTC"), ("soon", None)])
def test_a_bad_time_stops_the_grading_and_a_good_one_is_lost(folder: Path, text: str, kept: str | None):
    (folder / "x.ipynb").write_text(TEXT, encoding="utf-8")
    (folder / "timestamp.txt").write_text(text)
    assert hand_in(folder, "x", IDS).timestamp == kept


# ------------------------------------------------------------------------------------------ results
def result(student: str = "ann", **changes: object) -> Result:
    base = {"student": student, "assignment": "01_x", "notebook": "x", "key": "k", "status": GRADED}
    return Result(**{**base, "points": {"first": 1.5}, "verdicts": {"first": "right"}, **changes})


def test_a_result_changes_on_its_way_through_the_disk(tmp_path: Path):
    kept = result(notes=("a",), flags=("b",), text="ä\n", seconds=1.25)
    Store(tmp_path).save(kept)
    assert Store(tmp_path).load("01_x", "ann") == kept


def test_the_draft_of_a_killed_run_stays_for_ever(tmp_path: Path):
    Store(tmp_path).save(result())
    (tmp_path / "01_x" / ".ann.json.abc.tmp").write_text("{")
    Store(tmp_path).sweep()
    assert [p.name for p in (tmp_path / "01_x").iterdir()] == ["ann.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_result_stops_the_run_or_counts(tmp_path: Path, text: str):
    store = Store(tmp_path)
    store.save(result())
    (tmp_path / "01_x" / "ann.json").write_text(text)
    assert store.load("01_x", "ann") is None


def test_a_replaced_submission_or_another_reference_keeps_the_old_result():
    keys = {
        key_of(HandedIn(b"a"), "reference"),
        key_of(HandedIn(b"b"), "reference"),
        key_of(HandedIn(None), "reference"),
        key_of(HandedIn(b"a", {"f": b"1"}), "reference"),
        key_of(HandedIn(b"a", timestamp="2026-03-01"), "reference"),
        key_of(HandedIn(b"a"), "another"),
    }
    assert len(keys) == 6


def test_the_table_shows_a_missing_mark_as_a_zero(tmp_path: Path):
    rows = [result("ann", points={"first": 0.0}), result("bob", status=NOT_GRADABLE, why="no file", points={})]
    table = {line.split()[0]: line.split() for line in summary(rows).splitlines() if line[:3] in ("ann", "bob")}
    assert table["ann"][2:4] == ["graded", "0"]
    assert table["bob"][2:5] == ["not", "gradable", "-"]
    assert "not gradable: no file" in summary(rows)
    write_reports(rows, tmp_path)
    assert "bob,01_x,not gradable,no file,,0.0" in (tmp_path / "summary.csv").read_text()


def test_the_table_counts_an_earlier_run_as_this_one():
    rows = [result("ann", run="a", seconds=2.0), result("bob", run="b", seconds=30.0)]
    lines = summary(rows, run="a").splitlines()
    assert "2 graded, 0 not gradable, 0 to look at" in lines
    assert "In this run: 1 of these, 2.0 s of grading. Before it: 1, 30.0 s." in lines
    assert "In this run: 2 of these, 32.0 s of grading." in summary(rows)


def test_a_class_of_100_does_not_fit_into_100_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    rows = [result(f"student-{n}", assignment="05_dataloader_memory", points={"a": 100 / 3}) for n in range(97)]
    rows += [result("x" * 90 + "\x1b[2J", assignment="05_dataloader_memory", notes=("a note " * 40,))]
    rows += [result("bob", assignment="05_dataloader_memory", seconds=9999.99, flags=("starts programs " * 9,))]
    rows += [result("eve", assignment="05_dataloader_memory", status=NOT_GRADABLE, why="why " * 50, points={})]
    lines = summary(rows, ["ann/old is no section's folder"]).splitlines()
    assert max(map(len, lines)) <= 100
    columns = {line.index("05_dataloader_memory") for line in lines if line[:1] in "xbe" and "05_" in line}
    assert len(columns) == 1, "the columns do not stand below each other"
    assert not any("\x1b" in line for line in lines)
    assert "97 graded without anything to say are in grading/summary.csv alone." in lines


def test_a_spreadsheet_runs_a_formula_from_a_submission(tmp_path: Path):
    write_reports([result("=1+1", flags=("@SUM(1)",), notes=('=HYPERLINK("x")',))], tmp_path)
    for name in ("summary.csv", "flags.csv"):
        cells = (tmp_path / name).read_text().replace("\n", ",").split(",")
        assert not any(c.strip('"')[:1] in ("=", "@") for c in cells), name


# ------------------------------------------------------------------------------------------ what a person should see
@pytest.mark.parametrize("section", sections(), ids=lambda s: s.assignment)
def test_a_reference_answer_would_be_reported_as_suspicious(section):
    cells = [new_code_cell(c.source) for c in section.answer_cells().values()]
    assert suspicious(new_notebook(cells=cells), set(), section.handed_out_lines()) == []


@pytest.mark.parametrize(
    "code",
    [
        "torch.equal = lambda a, b: True",
        "get_ipython().ast_transformers.append(Strip())",
        "open('../../gradebook.db')",
        "import subprocess",
        "def check(*a): pass",
        "publish_display_data({'application/vnd.pytorch-foundations.facts+json': ''})",
        "sys.modules['course_utils'] = None",
        "def f(x):\n    import torch\n    setattr(torch, 'allclose', f)",
    ],
)
def test_an_attempt_on_the_grader_is_not_reported(code: str):
    assert suspicious(new_notebook(cells=[new_code_cell(code)]), set(), frozenset())
