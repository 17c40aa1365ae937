"""ready, hand-in, reset and repair on the file of a notebook: nothing is overlooked, nothing is lost."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_utils import progress_store as store
from course_utils.__main__ import main
from course_utils.student import hand_in, ready, released, writing
from course_utils.student.cells import grade_id
from course_utils.student.released import find, read_notebook, sections
from course_utils.student.running import Run
from grading.source import ROOT
from grading.source import sections as sources

SECTION = "01_tensor_costs"
HANDED_OUT = ROOT / "notebooks" / SECTION / "tensor_costs.ipynb"
REFLECTION = "reflection-storage_and_description"
ANSWER = "def bgr_to_batch(images):\n    return images  # mine"


class Work:
    """A student's notebook in a folder with a space in its name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "my course" / SECTION / "tensor_costs.ipynb"
        self.path.parent.mkdir(parents=True)
        self.path.write_bytes(HANDED_OUT.read_bytes())
        with self.changed() as notebook:
            self.cell(notebook, "answer-bgr_to_batch").source = ANSWER

    def changed(self):
        work = self

        class Open:
            def __enter__(self) -> NotebookNode:
                self.notebook = nbformat.read(work.path, as_version=4)
                return self.notebook

            def __exit__(self, *_: object) -> None:
                work.path.write_text(nbformat.writes(self.notebook))

        return Open()

    def read(self) -> NotebookNode:
        return nbformat.read(self.path, as_version=4)

    def cell(self, notebook: NotebookNode, name: str) -> NotebookNode:
        return next(c for c in notebook.cells if grade_id(c) == name)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.delenv("COURSE_STUDENT", raising=False)
    return Work(tmp_path)


def says(capsys: pytest.CaptureFixture[str], *command: str | Path) -> tuple[int, str]:
    status = main([str(word) for word in command])
    caught = capsys.readouterr()
    return status, caught.out + caught.err


# ------------------------------------------------------------------------------------------------ what is meant
def test_students_have_other_sections_than_the_course():
    assert [(s.assignment, s.name) for s in sections()] == [(s.assignment, s.name) for s in sources()]


@pytest.mark.parametrize("word", [SECTION, "tensor_costs", "1", "01", "bgr_to_batch", f"{SECTION}/"])
def test_a_section_is_not_found_by_what_people_call_it(word):
    place = find(word)
    assert place.section.assignment == SECTION
    assert place.exercise == ("bgr_to_batch" if word == "bgr_to_batch" else "")


def test_a_wrong_word_gets_no_suggestion(capsys):
    assert "Did you mean bgr_to_batch?" in says(capsys, "reset", "bgr_to_bach")[1]
    assert "The sections are 01_tensor_costs" in says(capsys, "ready", "qqqq")[1]
    assert says(capsys, "ready", "nowhere.ipynb") == (2, "error: there is no notebook nowhere.ipynb.\n")


def test_a_renamed_notebook_is_judged_as_another_section(work, capsys):
    copied = work.path.with_name("tensor_costs-Copy1.ipynb")
    work.path.rename(copied)
    status, text = says(capsys, "ready", copied)
    assert status == 2 and "Rename it back" in text


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "is empty"),
        (b"{ broken", "is no JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", "no notebook of format 4"),
        (b'{"cells": [], "nbformat": 3}', "no notebook of format 4"),
        (b'{"cells": [1], "nbformat": 4}', "one of its cells is no cell"),
        (b"{\n<<<<<<< HEAD\n=======\n>>>>>>> main\n}", "git's conflict marks"),
        (b"[" * 100_000, "is no JSON"),
    ],
)
def test_a_file_that_is_no_notebook_ends_in_a_traceback_or_is_handed_in(data, words, work, capsys, tmp_path):
    work.path.write_bytes(data)
    for command in ("ready", "hand-in"):
        more = ["--to", tmp_path] if command == "hand-in" else []
        status, text = says(capsys, command, work.path, "--no-run", *more)
        assert status == (1 if command == "ready" else 2)
        assert words in text and "brings a fresh one" in text
    for command in ("reset", "repair"):
        status, text = says(capsys, command, *(["bgr_to_batch", "--notebook"] if command == "reset" else []), work.path)
        assert status == 2 and words in text
    assert work.path.read_bytes() == data
    assert not list(tmp_path.glob("*.zip"))


# ------------------------------------------------------------------------------------------------ ready, the file alone
def test_what_is_wrong_with_the_cells_goes_unnoticed(work, capsys):
    with work.changed() as notebook:
        at = notebook.cells.index(work.cell(notebook, "answer-bgr_to_batch"))
        notebook.cells.insert(at, copy.deepcopy(notebook.cells[at]))
        work.cell(notebook, "frame_difference").source = "pass"
        notebook.cells.remove(work.cell(notebook, "to_opencv"))
        notebook.cells.insert(0, notebook.cells.pop(notebook.cells.index(work.cell(notebook, "compact"))))
    before = work.path.read_bytes()
    status, text = says(capsys, "ready", work.path, "--no-run")
    assert status == 1 and work.path.read_bytes() == before
    for words in (
        "answer-bgr_to_batch is there twice",
        "frame_difference is locked and was changed",
        "to_opencv was deleted",
        "compact stood before its answer",
    ):
        assert words in text
    assert text.count("python -m course_utils repair 01_tensor_costs") == 4
    assert "1 of 17 written" in text and "bgr_to_batch" not in text.split("not started", 1)[1].splitlines()[0]


def test_an_untouched_file_has_faults(work, capsys):
    work.path.write_bytes(HANDED_OUT.read_bytes())
    status, text = says(capsys, "ready", work.path, "--no-run")
    assert status == 1 and "all there, each once" in text
    assert text.count("[FAIL]") == 2, "one line for all that is not started, one for what is to be said in words"


@pytest.mark.parametrize("text", ["YOUR ANSWER HERE", "", " \n", "YOUR ANSWER HERE\n"])
def test_an_unwritten_reflection_is_handed_in_without_a_word(text, work, capsys):
    with work.changed() as notebook:
        work.cell(notebook, REFLECTION).source = text
    status, said = says(capsys, "ready", work.path, "--no-run")
    assert status == 1
    assert f"[FAIL] {REFLECTION} not written yet; 2 points, given by a person" in said


def test_a_written_reflection_is_called_missing_or_counted_as_an_exercise(work, capsys):
    with work.changed() as notebook:
        work.cell(notebook, REFLECTION).source = "A view describes, a storage holds."
    said = says(capsys, "ready", work.path, "--no-run")[1]
    assert f"[ ok ] {REFLECTION} written; a person gives its 2 points" in said
    assert "1 of 17 written" in said
    said = says(capsys, "reset", REFLECTION, "--notebook", work.path)[1]
    assert f"Put back: {REFLECTION}" in said
    assert work.cell(work.read(), REFLECTION).source == "YOUR ANSWER HERE"


def test_progress_promises_points_that_only_a_person_gives(work, capsys):
    *_, total, words = says(capsys, "progress", SECTION)[1].splitlines()
    assert " ".join(total.split()) == "total 0 / 39"
    assert " ".join(words.split()) == "in your own words a person reads it ? / 2"
    assert says(capsys, "progress")[1].splitlines()[-1].split()[-1] == "10"


def test_an_answer_that_was_checked_and_not_saved_is_called_undone_only(work, capsys):
    store.save("tensor_costs", "compact", store.Record(tries=1, best=2.0, last=2.0, kind="right"))
    text = says(capsys, "ready", work.path, "--no-run")[1]
    assert "compact                 not started in the file, but your last check earned points" in text
    assert "save the notebook" in text


@pytest.mark.parametrize("counts, words", [((2, 1), "another order"), ((1, None), "were not run before saving")])
def test_old_outputs_go_unnoticed(counts, words, work, capsys):
    with work.changed() as notebook:
        for cell, count in zip([c for c in notebook.cells if c.cell_type == "code"], counts, strict=False):
            cell.execution_count = count
    text = says(capsys, "ready", work.path, "--no-run")[1]
    assert (
        f"[note] outputs                 {'cells were run in ' if counts == (2, 1) else ''}" in text and words in text
    )


def test_without_an_argument_untouched_sections_are_looked_at(work, capsys, monkeypatch):
    class Here(released.Section):
        @property
        def notebook(self) -> Path:
            return work.path.with_name(f"{self.name}.ipynb")

    there = [Here(s.assignment, s.name) for s in sections()]
    monkeypatch.setattr("course_utils.student.ready.sections", lambda: there)
    (work.path.with_name("graph_debugging.ipynb")).write_bytes(
        (ROOT / "notebooks/02_graph_debugging/graph_debugging.ipynb").read_bytes()
    )
    text = says(capsys, "ready", "--no-run")[1]
    assert text.count("all there, each once") == 1 and text.startswith(SECTION)
    work.path.write_bytes(HANDED_OUT.read_bytes())
    status, text = says(capsys, "ready", "--no-run")
    assert status == 2 and "no answer is written yet" in text


# ------------------------------------------------------------------------------------------------ repair
def test_a_repaired_notebook_has_faults_or_lost_an_answer(work, capsys):
    with work.changed() as notebook:
        at = notebook.cells.index(work.cell(notebook, "answer-bgr_to_batch"))
        notebook.cells.insert(at, copy.deepcopy(notebook.cells[at]))
        notebook.cells.remove(work.cell(notebook, "to_opencv"))
        notebook.cells.insert(1, new_markdown_cell("my note"))
    before = work.path.read_bytes()
    status, text = says(capsys, "repair", work.path)
    assert status == 0 and "Reload Notebook from Disk" in text
    (kept,) = (store.progress_folder() / "kept").iterdir()
    assert kept.read_bytes() == before and str(kept) in text
    sources = [c.source for c in work.read().cells]
    assert sources.count(ANSWER) == 2 and "my note" in sources
    assert work.cell(work.read(), "to_opencv").metadata.tags == ["raises-exception"], "Run All would stop there"
    nbformat.validate(work.read())
    assert "all there, each once" in says(capsys, "ready", work.path, "--no-run")[1]
    assert says(capsys, "repair", work.path) == (0, f"Nothing to repair in {work.path}.\n")


def test_a_notebook_of_an_old_editor_cannot_be_repaired(work, capsys):
    plain = json.loads(work.path.read_text())
    plain["nbformat_minor"] = 2
    for cell in plain["cells"]:
        cell.pop("id", None)
    del plain["cells"][5]
    del plain["cells"][[c["metadata"].get("nbgrader", {}).get("grade_id") for c in plain["cells"]].index("compact")]
    work.path.write_text(json.dumps(plain))
    assert says(capsys, "repair", work.path)[0] == 0
    nbformat.validate(work.read())


# ------------------------------------------------------------------------------------------------ reset
def test_reset_changes_another_cell_or_loses_the_old_answer(work, capsys):
    with work.changed() as notebook:
        work.cell(notebook, "answer-compact").source = "def compact(x): return x"
        work.cell(notebook, "bgr_to_batch").outputs = [nbformat.v4.new_output("stream", text="old")]
    before = work.path.read_bytes()
    status, text = says(capsys, "reset", "bgr_to_batch", "--notebook", work.path)
    assert status == 0 and "Reload Notebook from Disk" in text
    (kept,) = (store.progress_folder() / "kept").iterdir()
    assert kept.read_bytes() == before and str(kept) in text
    handed_out = nbformat.read(HANDED_OUT, as_version=4)
    different = [
        grade_id(now)
        for now, then in zip(work.read().cells, handed_out.cells, strict=True)
        if now.source != then.source
    ]
    assert different == ["answer-compact"]
    assert work.cell(work.read(), "bgr_to_batch").outputs == []
    assert "Nothing to put back" in says(capsys, "reset", "bgr_to_batch", "--notebook", work.path)[1]


def test_a_whole_section_is_put_back_without_being_asked(work, capsys):
    before = work.path.read_bytes()
    status, text = says(capsys, "reset", SECTION, "--notebook", work.path)
    assert status == 2 and "1 answers back: bgr_to_batch. Add --yes" in text
    assert work.path.read_bytes() == before
    assert says(capsys, "reset", SECTION, "--notebook", work.path, "--yes")[0] == 0
    handed_out = nbformat.read(HANDED_OUT, as_version=4)
    assert [c.source for c in work.read().cells] == [c.source for c in handed_out.cells]


@pytest.mark.parametrize("doubt", ["twice", "deleted", "text"])
def test_reset_guesses_which_cell_is_meant(doubt, work, capsys):
    with work.changed() as notebook:
        cell = work.cell(notebook, "answer-bgr_to_batch")
        at = notebook.cells.index(cell)
        if doubt == "twice":
            notebook.cells.insert(at, copy.deepcopy(cell))
        elif doubt == "deleted":
            del notebook.cells[at]
        else:
            notebook.cells[at] = new_markdown_cell(cell.source, metadata=cell.metadata)
    before = work.path.read_bytes()
    status, text = says(capsys, "reset", "bgr_to_batch", "--notebook", work.path)
    assert status == 2 and "First: python -m course_utils repair 01_tensor_costs" in text
    assert work.path.read_bytes() == before


def test_an_exercise_is_looked_for_in_the_notebook_of_another_section(work, capsys):
    status, text = says(capsys, "reset", "backward_operators", "--notebook", work.path)
    assert status == 2 and "not in tensor_costs.ipynb" in text


def test_what_jupyterlab_saved_meanwhile_is_overwritten(work, capsys, monkeypatch):
    keep = writing.keep

    def saved_meanwhile(data: bytes, name: str) -> Path:
        work.path.write_bytes(b"saved by JupyterLab")
        return keep(data, name)

    monkeypatch.setattr(writing, "keep", saved_meanwhile)
    status, text = says(capsys, "reset", "bgr_to_batch", "--notebook", work.path)
    assert status == 2 and "saved by another program" in text
    assert work.path.read_bytes() == b"saved by JupyterLab"


def test_two_copies_of_one_second_overwrite_each_other(work):
    paths = {writing.keep(bytes([n]), "x.ipynb") for n in range(3)}
    assert sorted(p.read_bytes() for p in paths) == [b"\0", b"\1", b"\2"]


# ------------------------------------------------------------------------------------------------ hand-in
def test_what_is_handed_in_is_not_the_file(work, capsys, tmp_path):
    target = tmp_path / "shared drive"
    target.mkdir()
    status, text = says(capsys, "hand-in", work.path, "--to", target, "--student", "ada-1", "--no-run")
    assert status == 0
    data = work.path.read_bytes()
    assert f"receipt {hashlib.sha256(data).hexdigest()[:12]}" in text.splitlines()[-1]
    (path,) = target.iterdir()
    assert path.name == "pytorch-foundations_01_tensor_costs_ada-1.zip"
    with zipfile.ZipFile(path) as archive:
        assert archive.read("01_tensor_costs/tensor_costs.ipynb") == data
        manifest = json.loads(archive.read("manifest.json"))
    assert (manifest["section"], manifest["student"]) == (SECTION, "ada-1")
    assert manifest["files"]["01_tensor_costs/tensor_costs.ipynb"]["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("plain", [False, True])
def test_an_earlier_hand_in_is_lost(plain, work, capsys, tmp_path):
    more = ["--plain"] if plain else []
    for number in range(3):
        with work.changed() as notebook:
            notebook.cells.append(new_code_cell(f"number = {number}"))
        assert says(capsys, "hand-in", work.path, "--to", tmp_path, "--no-run", *more)[0] == 0
    folder = tmp_path / SECTION if plain else tmp_path
    there = [p for p in folder.iterdir() if p.is_file()]
    assert len(there) == 3
    assert len([p for p in there if p.suffix == ".ipynb"]) == (1 if plain else 0), "a grader would take all of them"
    newest = folder / ("tensor_costs.ipynb" if plain else "pytorch-foundations_01_tensor_costs.zip")
    data = newest.read_bytes()
    if not plain:
        with zipfile.ZipFile(newest) as archive:
            data = archive.read("01_tensor_costs/tensor_costs.ipynb")
    assert read_notebook(data, "x").cells[-1].source == "number = 2"


def test_a_folder_that_is_not_there_or_read_only_ends_in_a_traceback(work, capsys, tmp_path, monkeypatch):
    status, text = says(capsys, "hand-in", work.path, "--to", tmp_path / "nowhere", "--no-run")
    assert status == 2 and "there is no folder" in text
    monkeypatch.setattr(hand_in.os, "access", lambda path, mode: False)  # root may write anywhere
    status, text = says(capsys, "hand-in", work.path, "--to", tmp_path, "--no-run")
    assert status == 2 and "read-only" in text
    assert not list(tmp_path.glob("*.zip"))


@pytest.mark.parametrize("student", ["../x", "a b", "a_b", "-x", "é"])
def test_an_id_that_would_break_the_files_name_is_taken(student, work, capsys, tmp_path):
    status, text = says(capsys, "hand-in", work.path, "--to", tmp_path, f"--student={student}", "--no-run")
    assert status == 2 and "is no id" in text


def test_a_failed_write_takes_the_earlier_hand_in_away(work, capsys, tmp_path, monkeypatch):
    says(capsys, "hand-in", work.path, "--to", tmp_path, "--no-run")
    (path,) = tmp_path.glob("*.zip")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(hand_in, "atomic_write_bytes", full)
    status, text = says(capsys, "hand-in", work.path, "--to", tmp_path, "--no-run")
    assert status == 2 and "No space left" in text
    assert path.read_bytes() == before


def test_a_file_that_is_saved_while_it_is_looked_at_is_handed_in_unseen(work, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(hand_in, "report", lambda place, *_: place.path.write_bytes(b"another"))
    status, text = says(capsys, "hand-in", work.path, "--to", tmp_path, "--no-run")
    assert status == 2 and "saved while it was looked at" in text
    assert not list(tmp_path.glob("*.zip"))
    assert os.listdir(work.path.parent) == ["tensor_costs.ipynb"]


def test_points_of_what_is_partly_right_are_called_0(work, capsys, monkeypatch):
    records = {"bgr_to_batch": store.Record(last=1.8, kind="partly right"), "strides_after": store.Record(kind="right")}
    monkeypatch.setattr(ready, "run_notebook", lambda notebook, *_: Run(notebook, records))
    points = find(SECTION).section.exercises["strides_after"] + 1.8
    _, text = says(capsys, "ready", work.path)
    assert f"1 of 17 exercises, with those partly right {points:g} of 39 points" in text
