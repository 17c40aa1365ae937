"""The export of marks: nobody's mark becomes a 0, another person's, or a formula."""

from __future__ import annotations

import csv
import io
import os
import shutil
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from course_utils.errors import CourseError
from grading import grades
from grading.autograde import intake
from grading.autograde.store import Store
from grading.autograde.task import GRADED, Result
from grading.grades import canvas, main, moodle, plain, read_marks
from grading.settings import load_config

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own, several for each student
ONE, TWO = "01_tensor_costs", "02_graph_debugging"
CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,1. Tensor costs (811),Graph Debugging (812),Essay (813),Current Score
    Points Possible,,,,,12,12,100,(read only)
"Doe, Jane",12345,u1,jdoe@uni.edu,"Tue, 9",,,88,71.5
"Müller ""Mü"", Jürgen",22,u2,jm@uni.edu,A,,3,,12
"=HYPERLINK(""x"";""y"")",33,u3,ali@uni.edu,A,,,,
"Lee, Ann",44,u4,ann,A,,,7,
"Student, Test",99,,,A,,,,
"""
MOODLE = """\
First name,Last name,ID number,Email address,Assignment: One (Real)
Jane,Doe,u1,Jane.Doe@uni.edu,-
Jürgen,Müller,u2,jm@uni.edu,-
Ann,Lee,u4,ann@uni.edu,-
Zoë,"O'Neil, Jr.",u5,zoe@uni.edu,-
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gradebook of two sections, each with one checked exercise out of 10 and a question for 2. Making one takes seconds."""
    path = tmp_path_factory.mktemp("released") / "gradebook.db"
    with Gradebook(f"sqlite:///{path}") as book:
        for section in (ONE, TWO):
            book.add_assignment(section)
            book.add_notebook(section[3:], section)
            book.add_grade_cell("exercise", section[3:], section, max_score=10, cell_type="code")
            book.add_grade_cell("why", section[3:], section, max_score=2, cell_type="markdown")
            book.add_solution_cell("why", section[3:], section)
    return path


@pytest.fixture
def gradebook(tmp_path: Path, released: Path):
    """A copy of it; fill(student, ...) hands in and grades."""
    shutil.copy(released, tmp_path)
    url = f"sqlite:///{tmp_path / released.name}"

    def fill(student, section=ONE, exercise=8.0, why=1.5, waits=False, late=None, comment=None):
        with Gradebook(url) as book:
            book.update_or_create_student(student)
            book.update_or_create_submission(section, student)
            notebook = book.find_submission_notebook(section[3:], section, student)
            notebook.late_submission_penalty = late
            for grade in notebook.grades:
                code = grade.name == "exercise"
                grade.auto_score = exercise if code else None
                grade.manual_score = None if code or waits else why
                grade.needs_manual_grade = exercise is None if code else waits
            for entry in notebook.comments:
                entry.manual_comment = comment
            book.db.commit()

    fill.url = url
    fill.folder = tmp_path
    fill.marks = lambda only=None: read_marks(url, "default_course", only)
    return fill


def file(gradebook, text: str, name: str = "exported.csv", encoding: str = "utf-8") -> Path:
    path = gradebook.folder / name
    path.write_bytes(text.encode(encoding))
    return path


def read(sheet, delimiter: str = ",") -> dict[str, list[str]]:
    """The rows by their first cell, read back from the bytes."""
    text = sheet.to_bytes().decode("utf-8-sig")
    return {row[0]: row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)}


def command(gradebook, monkeypatch, *arguments) -> int:
    config = load_config()
    config.CourseDirectory.db_url = gradebook.url
    config.CourseDirectory.course_id = "default_course"
    config.CourseDirectory.root = str(gradebook.folder)
    monkeypatch.setattr("grading.autograde.ungraded.RESULTS", gradebook.folder / "results")
    monkeypatch.setattr(grades, "load_config", lambda: config)
    return main([str(a) for a in arguments])


# ------------------------------------------------------------------------------------------------ marks
def test_what_is_missing_or_not_gradable_becomes_a_zero(gradebook):
    gradebook("ann")
    gradebook("bob", exercise=None)
    gradebook("cy", exercise=0.0, why=0.0)
    gradebook("cy", TWO)
    rows = {(r[0], r[1]): r for r in plain(gradebook.marks()).rows}
    assert [rows[ONE, s][5] for s in ("ann", "bob", "cy")] == [9.5, None, 0]
    assert rows[ONE, "bob"][2:] == ["not gradable", None, None, None, 12]
    assert rows[TWO, "ann"][2:] == ["not handed in", None, None, None, 12]


def test_an_answer_that_waits_for_a_person_is_exported_as_if_it_were_done(gradebook):
    gradebook("ann", waits=True)
    gradebook("bob")
    marks = gradebook.marks()
    assert read(moodle(marks, None)).keys() == {"Username", "bob"}
    assert read(moodle(marks, None, waiting=True))["ann"] == ["ann", "8"]
    assert plain(marks).rows[1][2:6] == ["answers in words wait", 8.0, 0.0, 8]


def test_the_late_penalty_is_lost_or_makes_a_negative_mark(gradebook):
    gradebook("ann", late=3.0)
    gradebook("bob", late=30.0)
    rows = read(moodle(gradebook.marks(), None))
    assert (rows["ann"][1], rows["bob"][1]) == ("6.5", "0")


def test_an_unknown_section_or_an_empty_gradebook_writes_a_file(gradebook, monkeypatch, capsys):
    assert command(gradebook, monkeypatch, "--to", gradebook.folder / "out.csv") == 2
    gradebook("ann")
    assert command(gradebook, monkeypatch, "--to", gradebook.folder / "out.csv", "--assignment", "09_x") == 2
    assert "make autograde" in capsys.readouterr().err
    assert not (gradebook.folder / "out.csv").exists()


# ------------------------------------------------------------------------------------------------ Canvas
def test_canvas_gets_a_mark_for_the_wrong_person_or_another_column(gradebook):
    gradebook("doejane-12345")  # as collect names the students
    gradebook("doejane-12345", TWO, exercise=None)
    gradebook("JM@uni.edu", TWO, waits=True)  # by SIS Login ID, in other letters
    gradebook("ann-lee")  # by name
    gradebook("nobody-77")
    before = file(gradebook, CANVAS)
    sheet = canvas(gradebook.marks(), before, {})
    rows, old = read(sheet), read_rows(CANVAS)
    assert rows["Doe, Jane"] == ["Doe, Jane", "12345", "u1", "jdoe@uni.edu", "Tue, 9", "9.5", "", "88", "71.5"]
    assert rows['Müller "Mü", Jürgen'] == old['Müller "Mü", Jürgen'], "a mark of Canvas's own was lost"
    assert rows["Lee, Ann"][5] == "9.5"
    for same in ("Student", "    Points Possible", "Student, Test"):
        assert rows[same] == old[same]
    assert len(rows) == len(old)
    assert sheet.unmatched
    assert "not in the platform's file: nobody-77" in sheet.said
    assert any(line.startswith("no submission: =HYPER") for line in sheet.said)
    assert sheet.to_bytes().count(b"\r\n") == len(rows)


def read_rows(text: str) -> dict[str, list[str]]:
    return {row[0]: row for row in csv.reader(io.StringIO(text))}


def test_a_name_becomes_a_formula_or_an_id_no_longer_matches(gradebook):
    gradebook("ali-33")
    rows = read(canvas(gradebook.marks(), file(gradebook, CANVAS.replace("ali@uni.edu", "+49-33")), {}))
    row = next(r for r in rows.values() if r[1] == "33")
    assert row[0].startswith("'=HYPERLINK")
    assert row[3] == "+49-33"
    assert row[5] == "9.5"
    gradebook("=2+5")
    assert read(plain(gradebook.marks())) and "'=2+5" in plain(gradebook.marks()).to_bytes().decode()


@pytest.mark.parametrize("encoding, delimiter", [("utf-8", ","), ("utf-8-sig", ","), ("utf-8-sig", ";")])
def test_the_file_comes_back_in_another_encoding_than_canvas_wrote(gradebook, encoding, delimiter):
    gradebook("jm@uni.edu")
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(csv.reader(io.StringIO(CANVAS)))
    sheet = canvas(gradebook.marks(), file(gradebook, text.getvalue(), encoding=encoding), {})
    assert sheet.to_bytes().startswith(b"\xef\xbb\xbf") == (encoding == "utf-8-sig")
    assert read(sheet, delimiter)['Müller "Mü", Jürgen'][5] == "9.5"


def test_two_people_of_one_name_share_a_mark(gradebook):
    gradebook("ann-lee")
    twins = CANVAS + '"Lee, Ann",45,u9,ann2,A,,,,\n'
    with pytest.raises(CourseError, match=r"several people.*rows 6, 8"):
        canvas(gradebook.marks(), file(gradebook, twins), {})


def test_two_submissions_of_one_person_overwrite_each_other(gradebook):
    gradebook("ann-lee")
    gradebook("leeann-44")
    with pytest.raises(CourseError, match="are one person"):
        canvas(gradebook.marks(), file(gradebook, CANVAS), {})


def test_a_section_without_a_column_is_dropped_or_takes_a_wrong_one(gradebook):
    gradebook("ann")
    text = CANVAS.replace("1. Tensor costs", "Homework A")
    with pytest.raises(CourseError, match=r"no column for 01_tensor_costs.*Homework A \(811\)"):
        canvas(gradebook.marks(), file(gradebook, text), {})
    assert read(canvas(gradebook.marks(), file(gradebook, text), {ONE: "Homework A"}))["Lee, Ann"][5] == "9.5"
    with pytest.raises(CourseError, match="Current Score"):
        canvas(gradebook.marks(), file(gradebook, text), {ONE: "Current Score"})


def test_a_column_out_of_another_maximum_goes_unnoticed(gradebook):
    gradebook("ann")
    said = canvas(gradebook.marks(), file(gradebook, CANVAS.replace(",12,12,100", ",100,12,100")), {}).said
    assert "1. Tensor costs (811) is out of 100 in Canvas; the marks are out of 12" in said


def test_a_new_file_lacks_what_canvas_asks_for(gradebook):
    """gradebook_importer.rb: Student first, ID second, Section last of the columns about people."""
    gradebook("doejane-12345")
    gradebook("jm@uni.edu", exercise=None)
    rows = read(canvas(gradebook.marks(), None, {}))
    assert rows["Student"] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", ONE]
    assert rows["    Points Possible"][5] == "12"
    assert rows["doejane-12345"][1:] == ["12345", "", "", "", "9.5"]
    assert rows["jm@uni.edu"][1:] == ["", "", "jm@uni.edu", "", ""]


@pytest.mark.parametrize("text", ["", "a\n", "a,b\n1,2\n", 'Student,ID,Section\n"open', "\xff"])
def test_another_file_than_canvas_exported_is_filled_in(gradebook, text):
    gradebook("ann")
    with pytest.raises(CourseError):
        canvas(gradebook.marks(), file(gradebook, text, encoding="latin-1"), {})


# ------------------------------------------------------------------------------------------------ Moodle
def test_moodle_gets_a_row_that_it_refuses_or_a_zero(gradebook):
    """An unknown person makes Moodle refuse the whole file."""
    for student in ("jane-doe", "jurgen-muller", "zoe-o-neil-jr", "stranger"):  # as collect names them
        gradebook(student, comment="Gut, weiter so!")
    gradebook("ann@uni.edu", exercise=None)
    sheet = moodle(gradebook.marks(), file(gradebook, MOODLE), comments=True)
    assert list(read(sheet).values()) == [
        ["Email address", ONE, f"{ONE} (feedback)"],
        ["Jane.Doe@uni.edu", "9.5", "Gut, weiter so!"],
        ["jm@uni.edu", "9.5", "Gut, weiter so!"],
        ["zoe@uni.edu", "9.5", "Gut, weiter so!"],
    ]
    assert sheet.said == ["not in the platform's file: stranger"]


def test_another_column_or_language_of_moodle_cannot_be_used(gradebook):
    gradebook("jane-doe")
    german = MOODLE.replace("First name,Last name,ID number,Email address", "Vorname,Nachname,ID-Nummer,E-Mail-Adresse")
    with pytest.raises(CourseError, match=r"no column 'Email address'.*E-Mail-Adresse"):
        moodle(gradebook.marks(), file(gradebook, german))
    assert "u1" in read(moodle(gradebook.marks(), file(gradebook, german), identify="ID-Nummer"))


def test_an_empty_cell_takes_a_mark_away_without_a_word(gradebook):
    gradebook("jane-doe")
    gradebook("ann-lee", TWO)
    said = moodle(gradebook.marks(), file(gradebook, MOODLE)).said
    assert any("one section at a time" in line for line in said)
    assert not any("at a time" in line for line in moodle(gradebook.marks(ONE), file(gradebook, MOODLE)).said)


# ------------------------------------------------------------------------------------------------ the command
def test_the_instructors_file_is_overwritten(gradebook, monkeypatch, capsys):
    gradebook("ann")
    path = file(gradebook, CANVAS)
    arguments = ["--format", "canvas", "--from", path, "--to"]
    assert command(gradebook, monkeypatch, *arguments, gradebook.folder / "." / "exported.csv") == 2
    assert path.read_text() == CANVAS
    out = gradebook.folder / "out.csv"
    assert command(gradebook, monkeypatch, *arguments, out) == 0
    assert path.read_text() == CANVAS
    assert "9.5" in out.read_text()


def test_an_error_leaves_half_a_file_or_the_old_one_is_gone(gradebook, monkeypatch, capsys):
    gradebook("ann-lee")
    out = file(gradebook, "old", "out.csv")
    twins = file(gradebook, CANVAS + '"Lee, Ann",45,u9,ann2,A,,,,\n')
    assert command(gradebook, monkeypatch, "--format", "canvas", "--from", twins, "--to", out) == 2
    assert out.read_text() == "old"
    assert "Nothing was written" in capsys.readouterr().err


def test_the_command_does_not_say_whose_marks_are_missing(gradebook, monkeypatch, capsys):
    gradebook("jane-doe")
    gradebook("ann-lee", waits=True)
    gradebook("stranger", exercise=None)
    out = gradebook.folder / "out.csv"
    arguments = ["--format", "moodle", "--from", file(gradebook, MOODLE), "--to", out]
    assert command(gradebook, monkeypatch, *arguments) == 1
    text = capsys.readouterr().out
    assert "not in the platform's file: stranger" in text
    assert "no submission: Zoë O'Neil, Jr." in text
    assert f"{ONE}: 1 of 4 people got a mark" in text
    assert "1 wait for a person's points, left empty (--waiting count takes the points so far): ann-lee\n" in text
    assert "1 not gradable, left empty: stranger\n" in text
    assert out.read_text().splitlines()[1:] == ["Jane.Doe@uni.edu,9.5"]


def hand_in(gradebook, student: str, text: str = "{}") -> Path:
    folder = gradebook.folder / "grading" / "submitted" / student / ONE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{ONE[3:]}.ipynb").write_text(text)
    return folder


def keep_result(gradebook, student: str) -> None:
    """As a run does."""
    digest = intake.hand_in(gradebook.folder / "grading" / "submitted" / student / ONE, ONE[3:], set()).digest
    Store(gradebook.folder / "results").save(Result(student, ONE, ONE[3:], "key", GRADED, digest=digest))


def test_an_old_mark_is_exported_for_a_new_file_or_a_file_without_a_mark_is_no_submission(
    gradebook, monkeypatch, capsys
):
    for student in ("ann-lee", "jane-doe"):
        gradebook(student)
        hand_in(gradebook, student)
        keep_result(gradebook, student)
    out = gradebook.folder / "out.csv"
    arguments = ["--format", "moodle", "--from", file(gradebook, MOODLE), "--to", out]
    assert command(gradebook, monkeypatch, *arguments) == 0
    assert "not graded yet" not in capsys.readouterr().err

    hand_in(gradebook, "ann-lee", "{ }")  # a later file
    hand_in(gradebook, "jurgen-muller")  # the first one
    gradebook("jane-doe", exercise=None)  # a run that was killed had withdrawn this mark
    assert command(gradebook, monkeypatch, *arguments) == 1
    said = capsys.readouterr()
    assert f"{ONE}: handed in, not graded yet: ann-lee, jane-doe, jurgen-muller; run `make autograde`" in said.err
    assert "no submission: J" not in said.out
    assert out.read_text().splitlines() == [f"Email address,{ONE}"]
    assert command(gradebook, monkeypatch, "--to", out) == 1
    assert f"{ONE},ann-lee,not graded yet,,,,12" in out.read_text()


def test_what_nbgrader_itself_has_graded_is_left_out(gradebook, monkeypatch, capsys):
    gradebook("ann")
    submitted = hand_in(gradebook, "ann")
    shutil.copytree(submitted, gradebook.folder / "grading" / "autograded" / "ann" / ONE)
    out = gradebook.folder / "out.csv"
    assert command(gradebook, monkeypatch, "--to", out) == 0
    os.utime(submitted / f"{ONE[3:]}.ipynb", (2e9, 2e9))  # handed in again
    assert command(gradebook, monkeypatch, "--to", out) == 1


def test_a_mark_out_of_tenths_has_fifteen_digits(gradebook):
    gradebook("ann", exercise=0.1 + 0.2, why=0.0)
    assert plain(gradebook.marks()).rows[1][3] == 0.3
