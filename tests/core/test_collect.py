"""Collecting: every notebook goes to the folder of whoever handed it in, and nothing goes anywhere else."""

from __future__ import annotations

import io
import json
import stat
import subprocess
import zipfile
from pathlib import Path

import pytest

from course_utils.student.hand_in import pack, receipt
from course_utils.student.released import Place, sections
from grading import collect
from grading.collect import Found, Refused, Sender, find, main, who

SECTION = sections()[0]
NAME = f"{SECTION.name}.ipynb"


def text(mark: str = "") -> bytes:
    cell = {"cell_type": "markdown", "metadata": {}, "source": mark, "id": "a"}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def handed_in(student: str, made: str, mark: str = "") -> bytes:
    return pack(Place(SECTION, Path(NAME)), text(mark), student, made)


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "course"
    (root / "grading").mkdir(parents=True)
    monkeypatch.setattr(collect, "ROOT", root)
    return root


def submitted(course: Path) -> dict[str, bytes]:
    """What lies below the course's folder, but for the timestamps."""
    paths = sorted(p for p in course.rglob("*") if p.is_file() and p.name != "timestamp.txt")
    return {p.relative_to(course / "grading").as_posix(): p.read_bytes() for p in paths}


@pytest.mark.parametrize(
    "path, sender, file",
    [
        (f"doejane_12345_678_{NAME}", Sender("doejane", "12345", True), NAME),
        (f"doejane_LATE_12345_678_{NAME}", Sender("doejane", "12345", True), NAME),
        (f"submissions/doejane_12345_678_{NAME}", Sender("doejane", "12345", True), NAME),
        (f"Jane Doe_123_assignsubmission_file_/{NAME}", Sender("jane-doe", "123"), NAME),
        (f"Jane Doe_123_assignsubmission_file/sub/{NAME}", Sender("jane-doe", "123"), NAME),
        (f"Jane Doe_123_assignsubmission_file_{NAME}", Sender("jane-doe", "123"), NAME),
        (f"Group 1/Zoë O'Neil_7_assignsubmission_file/{NAME}", Sender("zoe-o-neil", "7"), NAME),
        (f"../../.._1_assignsubmission_file/{NAME}", Sender("", "1"), NAME),
    ],
)
def test_a_platforms_file_belongs_to_nobody_or_to_another_person(path, sender, file):
    assert who(path) == (sender, file)


@pytest.mark.parametrize(
    "path", [NAME, f"{SECTION.assignment}/{NAME}", f"pytorch-foundations_{SECTION.assignment}_ada.zip"]
)
def test_a_students_own_file_name_is_taken_for_a_platforms(path):
    assert who(path) is None


def test_a_class_of_a_platform_is_not_collected_whole(course, tmp_path):
    canvas = {
        f"doejane_12345_1_{NAME}": text("jane"),
        f"roeali_LATE_22_2_{SECTION.name}-1.ipynb": text("ali"),
        "poeeva_33_3_handed-in-1.zip": handed_in("somebody-else", "2026-01-01 10:00:00 +0000", "eva"),
    }
    moodle = {
        f"Jane Doe_5_assignsubmission_file/{NAME}": text("jane"),
        f"Ann Lee_6_assignsubmission_file/{NAME}": text("one"),
        f"Ann Lee_7_assignsubmission_file/{NAME}": text("two"),
        f"李明_8_assignsubmission_file/{SECTION.name} (1).ipynb": text("li"),
        f"Jane Doe_5_assignsubmission_file/__MACOSX/._{NAME}": b"",
    }
    sources = [archive(tmp_path / "canvas.zip", canvas), archive(tmp_path / "moodle.zip", moodle)]
    assert main([str(s) for s in sources]) == 0
    end = f"{SECTION.assignment}/{NAME}"
    expected = {"doejane-12345": "jane", "roeali-22": "ali", "poeeva-33": "eva", "jane-doe": "jane"}
    expected |= {"ann-lee-6": "one", "ann-lee-7": "two", "student-8": "li"}
    assert submitted(course) == {f"submitted/{who}/{end}": text(mark) for who, mark in expected.items()}


def test_of_two_hand_ins_the_earlier_is_graded_or_the_receipt_is_another(course, tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.zip").write_bytes(
        handed_in("ada", "2026-01-01 10:30:00 +0200", "earlier, though the clock says later")
    )
    (folder / "b.zip").write_bytes(handed_in("ada", "2026-01-01 09:00:00 +0000", "later"))
    assert main([str(folder)]) == 0
    assert list(submitted(course).values()) == [text("later")]
    out = capsys.readouterr().out
    assert receipt(text("later")) in out and "older     a.zip" in out


def test_collecting_again_loses_an_earlier_file_or_hides_a_new_one_from_nbgrader(course, tmp_path, capsys):
    path = tmp_path / "x.zip"
    stamp = course / "grading/submitted/ada" / SECTION.assignment / "timestamp.txt"
    path.write_bytes(handed_in("ada", "2026-01-01 10:00:00 +0000", "first"))
    assert main([str(path)]) == 0
    stamp.write_text("2026-01-01 00:00:00 UTC")
    assert main([str(path)]) == 0
    assert stamp.read_text() == "2026-01-01 00:00:00 UTC", "the same file is nothing new to grade"
    path.write_bytes(handed_in("ada", "2026-01-01 11:00:00 +0000", "second"))
    assert main(["--dry-run", str(path)]) == 0
    assert list(submitted(course).values()) == [text("first")]
    assert main([str(path)]) == 0
    assert sorted(submitted(course).values()) == [text("first"), text("second")]
    assert stamp.read_text() > "2026-01-01 00:00:00 UTC"
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "receipt" in line]
    assert words == ["new", "unchanged", "found", "replaced"]


def test_an_archive_writes_outside_the_folder_of_submissions(course, tmp_path):
    before = {p for p in tmp_path.rglob("*")}
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as made:
        made.writestr(f"../../../../{NAME}", text("up"))
        made.writestr(f"/etc/{NAME}", text("root"))
        made.writestr("manifest.json", json.dumps({"student": "../../x", "made": "2026-01-01 10:00:00 +0000"}))
    hostile = {
        f"../../.._1_assignsubmission_file/{NAME}": text("dots"),
        f"..\\..\\x_2_assignsubmission_file\\{NAME}": text("windows"),
        "evil_9_9_x.zip": inner.getvalue(),
    }
    path = archive(tmp_path / "hostile.zip", hostile)
    main([str(path)])
    loose = tmp_path / "loose.zip"
    loose.write_bytes(inner.getvalue())
    assert main([str(loose)]) == 1
    written = {p for p in tmp_path.rglob("*") if p.is_file()} - before - {path, loose}
    assert written and all(p.is_relative_to(course / "grading/submitted") for p in written)
    assert all(len(p.relative_to(course / "grading/submitted").parts) == 3 for p in written)


def test_links_and_what_is_no_notebook_are_collected_or_left_out_in_silence(course, tmp_path, capsys):
    link = zipfile.ZipInfo(f"a_1_1_{NAME}")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    path = archive(
        tmp_path / "x.zip",
        {f"b_2_2_{NAME}": b"{", "c_3_3_essay.pdf": b"", "d_4_4_mine.ipynb": text(), NAME: text(), "e_5_5_x.zip": b"PK"},
    )
    with zipfile.ZipFile(path, "a") as made:
        made.writestr(link, "/etc/passwd")
    assert main([str(path)]) == 1
    assert submitted(course) == {}
    out = capsys.readouterr().out
    for words in ("a link", "is no JSON", "no notebook", "no notebook mine.ipynb", "whose it is", "as a zip"):
        assert words in out
    assert "6 left out" in out
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f"a_1_1_{NAME}").symlink_to("/etc/passwd")
    assert find(folder) == [Refused(f"a_1_1_{NAME}", "a link")]


def test_what_declares_too_much_is_read(course, tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *a: pytest.fail("it was read"))
    path = archive(tmp_path / "x.zip", {f"a_1_1_{NAME}": text()})
    monkeypatch.setattr(collect, "MAX_BYTES", 10)
    assert [type(item) for item in find(path)] == [Refused]
    monkeypatch.setattr(collect, "MAX_CLASS", 10)
    assert main([str(path)]) == 2
    monkeypatch.setattr(collect, "MAX_CLASS", 10_000)
    monkeypatch.setattr(collect, "MAX_FILES", 0)
    assert main([str(path)]) == 2


def test_a_students_zip_that_declares_too_much_stops_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "MAX_ZIP", 1000)
    big = handed_in("ada", "2026-01-01 10:00:00 +0000", "x" * 2000)
    path = archive(tmp_path / "x.zip", {"a_1_1_x.zip": big, f"b_2_2_{NAME}": text()})
    first, second = find(path)
    assert isinstance(first, Refused) and "declares more than" in first.why and isinstance(second, Found)


@pytest.mark.parametrize("data", [None, b"", b"no zip", handed_in("a", "2026-01-01 10:00:00 +0000")[:-30]])
def test_an_archive_that_is_broken_or_missing_ends_in_a_traceback(data, course, tmp_path, capsys):
    path = tmp_path / "x.zip"
    if data is not None:
        path.write_bytes(data)
    assert main([str(path)]) == 2
    assert "error: " in capsys.readouterr().err


def test_the_only_notebook_of_a_student_is_left_out_for_its_name_or_its_end(course, tmp_path, capsys):
    cells = {
        "cell_type": "code",
        "metadata": {"nbgrader": {"grade_id": next(iter(SECTION.cells))}},
        "source": "",
        "id": "a",
    }
    known = json.dumps({"cells": [cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    members = {
        f"a_1_1_{SECTION.name}_final_v2.ipynb": text("a"),
        f"b_2_2_{NAME}": text("b")[:-30],
        "c_3_3_homework.ipynb": known,
        f"Cora_8_assignsubmission_file/{SECTION.name}-Copy1.ipynb": text("cora"),
    }
    assert main([str(archive(tmp_path / "x.zip", members))]) == 0
    expected = {"a-1": text("a"), "b-2": text("b")[:-30], "c-3": known, "cora": text("cora")}
    assert submitted(course) == {f"submitted/{who}/{SECTION.assignment}/{NAME}": d for who, d in expected.items()}
    assert capsys.readouterr().out.count(f"taken as {NAME}, there is no other one") == 4


def test_of_several_notebooks_one_is_guessed_or_cannot_be_put_in_place(course, tmp_path, capsys):
    members = {
        f"Ann Lee_5_assignsubmission_file/{NAME}": text("right"),
        f"Ann Lee_5_assignsubmission_file/{SECTION.name}-Copy1.ipynb": text("copy"),
        f"Bo_6_assignsubmission_file/{SECTION.name}_old.ipynb": text("old"),
        f"Bo_6_assignsubmission_file/{SECTION.name} new.ipynb": text("new"),
    }
    path = archive(tmp_path / "x.zip", members)
    assert main(["--dry-run", str(path)]) == 1
    assert submitted(course) == {}
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert [p for p in submitted(course) if p.startswith("submitted")] == [
        f"submitted/ann-lee/{SECTION.assignment}/{NAME}"
    ]
    for line in out.splitlines():
        if "to grade it: " in line:
            subprocess.run(line.partition("to grade it: ")[2], shell=True, check=True, cwd=course, timeout=10)
    held = submitted(course)
    assert held[f"submitted/ann-lee/{SECTION.assignment}/{NAME}"] == text("copy")
    assert held[f"submitted/bo/{SECTION.assignment}/{NAME}"] in (text("old"), text("new"))


def test_whom_canvas_marked_late_is_not_said(course, tmp_path, capsys):
    late = handed_in("x", "2026-01-01 10:00:00 +0000", "li")
    members = {f"ann_1_1_{NAME}": text(), f"bob_LATE_2_2_{NAME}": text(), "li_LATE_3_3_x.zip": late}
    assert main([str(archive(tmp_path / "x.zip", members))]) == 0
    assert "marked late by Canvas, which changes no mark here: bob-2, li-3\n" in capsys.readouterr().out
