"""Marks out of the gradebook: a table, or a file that Canvas or Moodle imports.

    python -m grading.grades                                             grading/grades.csv
    python -m grading.grades --format canvas --from exported.csv         the gradebook that Canvas exported, filled in
    python -m grading.grades --format moodle --from exported.csv         a file for Moodle's "Import grades"

A mark that is not there stays empty and is never 0: nothing handed in, not gradable, handed in and not graded yet, or an
answer in words that waits for a person (``--waiting count`` takes the points so far). Late penalties are nbgrader's. What is
read is never written to.

Formats: Canvas, https://github.com/instructure/canvas-lms/blob/master/lib/gradebook_importer.rb;
Moodle, https://docs.moodle.org/en/Grade_import and grade/import/csv/classes/load_data.php in its source.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbgrader.api import Gradebook, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory

from course_utils.errors import CourseError
from course_utils.files import atomic_write_bytes
from grading.autograde.ungraded import ungraded
from grading.collect import folder_name
from grading.settings import load_config
from grading.source import ROOT
from grading.spreadsheet import to_csv

__all__ = ["Mark", "Marks", "Sheet", "canvas", "main", "match", "moodle", "plain", "read_marks", "without_old"]

GRADED, WAITING, NOT_GRADABLE = "graded", "answers in words wait", "not gradable"
UNGRADED = "not graded yet"
EMAIL = "Email address"
_NUMBER = re.compile(r"-(\d+)$")  # Canvas's number of a person at the end of an id that `collect` made
_CANVAS_ID = re.compile(r"\s*\(\d+\)\s*$")
_EXACT = {"canvas": ("SIS Login ID", "SIS User ID", "ID"), "moodle": ("Username", "ID number", EMAIL)}


def _short(points: float) -> float | int:
    """To two decimals, as Canvas shows them, and none where there are none."""
    return int(points) if points == int(points) else round(points, 2)


@dataclass(frozen=True)
class Mark:
    """What a student has in a section.

    Attributes
    ----------
    raw, penalty : float
        Points before the late penalty, and the penalty.
    state : str
    comment : str
        What a person wrote in formgrader.
    """

    raw: float
    penalty: float
    state: str
    comment: str = ""

    def points(self, waiting: bool = False) -> float | int | None:
        """Points to two decimals; None where there is no mark. ``waiting`` takes what is there so far."""
        if self.state in (NOT_GRADABLE, UNGRADED) or (self.state == WAITING and not waiting):
            return None
        return _short(max(0.0, self.raw - self.penalty))


@dataclass(frozen=True)
class Marks:
    """The gradebook: the best that each section gives, and the mark of each student who handed it in.

    Attributes
    ----------
    most : dict
        By section.
    of : dict
        By student and section.
    ungraded : dict
        Section -> who handed in what was not graded yet.
    """

    most: Mapping[str, float]
    of: Mapping[str, Mapping[str, Mark]]
    ungraded: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def sections(self) -> list[str]:
        return list(self.most)


@dataclass(frozen=True)
class Sheet:
    """A file to be written, and what to say about it.

    Attributes
    ----------
    people : int or None
        How many the platform's file knows; None where there is no platform.
    got : dict
        Section -> how many of them have a mark of it in ``rows``.
    """

    rows: list[list[object]]
    bom: bool = False
    delimiter: str = ","
    lineterminator: str = "\r\n"
    said: list[str] = field(default_factory=list)
    unmatched: bool = False
    people: int | None = None
    got: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return to_csv(self.rows, self.delimiter, self.lineterminator).encode("utf-8-sig" if self.bom else "utf-8")


# ------------------------------------------------------------------------------------------------ the gradebook
def read_marks(url: str, course: str, only: str | None = None) -> Marks:
    """Every mark. Sections that nobody handed in are left out.

    Raises
    ------
    CourseError
        If there is no mark, or no section ``only``.
    """
    most: dict[str, float] = {}
    of: dict[str, dict[str, Mark]] = defaultdict(dict)
    with Gradebook(url, course) as gradebook:
        names = [a.name for a in gradebook.assignments]
        for assignment in gradebook.assignments:
            if only in (None, assignment.name) and assignment.submissions:
                most[assignment.name] = _short(assignment.max_score)
                for submission in assignment.submissions:
                    of[submission.student_id][assignment.name] = _mark(submission)
    if only and only not in names:
        raise CourseError(f"the gradebook has no section {only}; it has: {', '.join(names) or 'none'}.")
    if not of:
        raise CourseError("the gradebook has no marks: run `make autograde` first.")
    return Marks(dict(sorted(most.items())), dict(sorted(of.items())))


def without_old(marks: Marks, ungraded: Iterable[tuple[str, str]]) -> Marks:
    """The marks without those that belong to an earlier file than the one that was handed in."""
    of = {student: dict(sections) for student, sections in marks.of.items()}
    names: dict[str, list[str]] = defaultdict(list)
    for section, student in sorted(ungraded):
        names[section].append(student)
        sections = of.setdefault(student, {})
        if section in marks.most:
            sections[section] = Mark(0.0, 0.0, UNGRADED)
    return Marks(marks.most, dict(sorted(of.items())), names)


def _mark(submission: SubmittedAssignment) -> Mark:
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    # What the machine could not judge, and nobody else has: the whole section has no mark.
    lost = any(g.cell.cell_type == "code" and g.auto_score is None and g.manual_score is None for g in grades)
    waits = any(g.needs_manual_grade for g in grades)
    said = [c.manual_comment for n in submission.notebooks for c in n.comments if c.manual_comment]
    return Mark(
        sum(g.score for g in grades),
        sum(n.late_submission_penalty or 0.0 for n in submission.notebooks),
        NOT_GRADABLE if lost or not grades else WAITING if waits else GRADED,
        "\n".join(said),
    )


# ------------------------------------------------------------------------------------------------ who is who
def read_table(path: Path) -> tuple[list[str], list[list[str]], str, bool]:
    """Header, rows, delimiter and whether the file begins with a byte order mark. Raises CourseError, OSError."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CourseError(f"{path} is not UTF-8: take the file as the platform exported it.") from None
    first = text.partition("\n")[0]
    delimiter = max((",", ";", "\t"), key=first.count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise CourseError(f"{path} is no CSV file ({error}): take it as the platform exported it.") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise CourseError(f"{path} has no students in it.")
    header = [cell.strip() for cell in rows[0]]
    return header, [row + [""] * (len(header) - len(row)) for row in rows[1:]], delimiter, data[:3] == b"\xef\xbb\xbf"


def match(
    students: Iterable[str], levels: Sequence[tuple[Callable[[str], str], Mapping[str, set[int]]]]
) -> dict[str, int]:
    """The row of each student that has one.

    Parameters
    ----------
    levels : sequence of (function, mapping)
        From the most to the least certain: a student's key, and the rows that have a key. The first that knows the
        student decides.

    Raises
    ------
    CourseError
        If a student could be two rows, or two students are one row.
    """
    found: dict[str, int] = {}
    for student in students:
        rows = next((index[key(student)] for key, index in levels if index.get(key(student))), set())
        if len(rows) > 1:
            places = ", ".join(str(row + 2) for row in sorted(rows))
            raise CourseError(
                f"{student} could be several people in the platform's file (rows {places}). Rename the student's folder in "
                "grading/submitted/ to an id that only one of them has, and grade it again. Nothing was written."
            )
        for row in rows:
            if row in found.values():
                twin = next(s for s, r in found.items() if r == row)
                raise CourseError(f"{twin} and {student} are one person in row {row + 2}. Nothing was written.")
            found[student] = row
    return found


def _index(pairs: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    index: dict[str, set[int]] = defaultdict(set)
    for key, row in pairs:
        if key.strip():
            index[key.strip().lower()].add(row)
    return index


def _cells(header: list[str], rows: list[list[str]], columns: Iterable[str]) -> Iterable[tuple[str, int]]:
    for column in columns:
        if column in header:
            at = header.index(column)
            yield from ((row[at], n) for n, row in enumerate(rows))


def _names(pairs: Iterable[tuple[str, str, int]]) -> dict[str, set[int]]:
    """Rows by first and last name in either order, as ``collect`` writes a name."""
    return _index(
        (folder_name(name), row) for one, other, row in pairs for name in (f"{one} {other}", f"{other} {one}")
    )


# ------------------------------------------------------------------------------------------------ the formats
def plain(marks: Marks) -> Sheet:
    """A row for each student and section; the score so far, and beside it what it is worth."""
    head = ["assignment", "student_id", "state", "raw_score", "late_submission_penalty", "score", "max_score"]
    rows: list[list[object]] = [head]
    for section in marks.sections:
        for student, of in marks.of.items():
            mark = of.get(section)
            values = ["not handed in", None, None, None] if mark is None else [mark.state, None, None, None]
            if mark is not None and mark.state not in (NOT_GRADABLE, UNGRADED):
                values[1:] = [round(mark.raw, 6), mark.penalty, mark.points(waiting=True)]
            rows.append([section, student, *values, marks.most[section]])
    return Sheet(rows, lineterminator="\n")


def canvas(marks: Marks, exported: Path | None, columns: Mapping[str, str], waiting: bool = False) -> Sheet:
    """The gradebook that Canvas exported with the marks in it; without one, a file with what Canvas asks for.

    Everything but the sections' cells stays as it is, and so does the cell of a student without a mark.

    Raises
    ------
    CourseError
        If the file is not Canvas's, a section has no column, or a student could be two people.
    """
    if exported is None:
        return _new_canvas(marks, waiting)
    header, rows, delimiter, bom = read_table(exported)
    if "Student" not in header[0] or "ID" not in header or "Section" not in header:
        raise CourseError(f"{exported} is no gradebook of Canvas: it has no columns Student, ID, Section.")
    people = [
        (n, row)
        for n, row in enumerate(rows)
        if row[0].strip() not in ("", "Points Possible", "Student, Test") and "Points Possible" not in row[0]
    ]
    possible = next((row for row in rows if "Points Possible" in row[0]), [""] * len(header))
    places = {section: _column(section, header, columns) for section in marks.sections}
    said = []
    for section, at in places.items():
        if "read only" in possible[at]:
            raise CourseError(f"Canvas does not let anybody write to the column {header[at]!r}.")
        if possible[at].strip() and _number(possible[at]) != marks.most[section]:
            said.append(
                f"{header[at]} is out of {possible[at].strip()} in Canvas; the marks are out of {marks.most[section]:g}"
            )
    last_first = [(*row[0].partition(",")[::2], n) for n, row in people]
    rows_of_people = {n for n, _ in people}
    exact = [(cell, n) for cell, n in _cells(header, rows, _EXACT["canvas"]) if n in rows_of_people]
    ids = [(cell, n) for cell, n in _cells(header, rows, ["ID"]) if n in rows_of_people]
    found = match(
        marks.of,
        [
            (str.lower, _index(exact)),
            (lambda s: m[1] if (m := _NUMBER.search(s)) else "", _index(ids)),
            (str.lower, _names(last_first)),
        ],
    )
    got = dict.fromkeys(marks.sections, 0)
    for student, row in found.items():
        for section, mark in marks.of[student].items():
            if (points := mark.points(waiting)) is not None:
                rows[row][places[section]] = points
                got[section] += 1
    said += _unmatched(marks, found, [(row[0], n) for n, row in people])
    unmatched = len(found) < len(marks.of)
    return Sheet([header, *rows], bom, delimiter, said=said, unmatched=unmatched, people=len(people), got=got)


def _new_canvas(marks: Marks, waiting: bool) -> Sheet:
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *marks.sections]
    rows: list[list[object]] = [head, ["    Points Possible", *[""] * 4, *marks.most.values()]]
    for student, of in marks.of.items():
        number = _NUMBER.search(student)
        who = [student, number[1], "", "", ""] if number else [student, "", "", student, ""]
        rows.append([*who, *(of[s].points(waiting) if s in of else None for s in marks.sections)])
    said = ["without --from, students are known by Canvas's number at the end of their id, else by SIS Login ID"]
    return Sheet(rows, bom=True, said=said, people=len(marks.of), got=_got(marks, marks.of, waiting))


def _got(marks: Marks, students: Iterable[str], waiting: bool) -> dict[str, int]:
    """How many of these students have a mark in each section."""
    of = [marks.of[student] for student in students]
    return {s: sum(s in m and m[s].points(waiting) is not None for m in of) for s in marks.sections}


def _column(section: str, header: list[str], columns: Mapping[str, str]) -> int:
    """Where the section's marks stand: the column that was named, else the one whose title is the section's."""
    wanted = columns.get(section)
    if wanted is not None:
        found = [n for n, title in enumerate(header) if wanted in (title, _CANVAS_ID.sub("", title))]
    else:
        found = [n for n, title in enumerate(header) if _plain(_CANVAS_ID.sub("", title)) == _plain(section)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} columns" if found else "no column"
    assignments = [title for title in header if _CANVAS_ID.search(title)]
    raise CourseError(
        f"the file has {what} for {section}. Name one: --column {section}='TITLE (ID)'. There are: "
        f"{', '.join(assignments) or 'no assignments; make one in Canvas and export again'}."
    )


def _plain(title: str) -> str:
    """``01_tensor_costs``, ``1. Tensor costs`` and ``Tensor Costs`` are one title."""
    return re.sub(r"[^a-z0-9]", "", title.lower()).lstrip("0123456789")


def _number(text: str) -> float | None:
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return None


def moodle(
    marks: Marks, exported: Path | None, identify: str = EMAIL, waiting: bool = False, comments: bool = False
) -> Sheet:
    """A file for Moodle's import: who, a column for each section, and perhaps one for the comments.

    Moodle refuses the whole file for one person whom it does not know, and takes an empty cell as "no grade": a student
    without any mark has no row.

    Parameters
    ----------
    exported : Path or None
        Grades or participants, exported from Moodle: first name, last name, and the column ``identify``. Without it
        the students' ids must be the user names.

    Raises
    ------
    CourseError
        If the file lacks the column, or a student could be two people.
    """
    said: list[str] = []
    if exported is None:
        who, identify = {student: student for student in marks.of}, "Username"
        people = len(who)
        said.append("without --from, the students' ids are taken as Moodle's user names")
    else:
        header, rows, _, _ = read_table(exported)
        if identify not in header:
            raise CourseError(f"{exported} has no column {identify!r}. Name one with --identify: {', '.join(header)}.")
        at, people = header.index(identify), len(rows)
        found = match(
            marks.of,
            [
                (str.lower, _index(_cells(header, rows, dict.fromkeys([identify, *_EXACT["moodle"]])))),
                (str.lower, _names((row[0], row[1], n) for n, row in enumerate(rows))),  # Moodle begins with the names
            ],
        )
        found = {student: row for student, row in found.items() if rows[row][at].strip()}
        who = {student: rows[row][at].strip() for student, row in found.items()}
        said += _unmatched(marks, found, [(f"{row[0]} {row[1]}", n) for n, row in enumerate(rows)])
    head: list[object] = [identify]
    for section in marks.sections:
        head += [section, *([f"{section} (feedback)"] if comments else [])]
    table: list[list[object]] = [head]
    holes = 0
    for student, person in who.items():
        of = marks.of[student]
        points = [of[s].points(waiting) if s in of else None for s in marks.sections]
        if all(p is None for p in points):
            continue
        holes += any(p is None for p in points)
        cells: list[object] = []
        for section, value in zip(marks.sections, points, strict=True):
            cells += [value, *([of[section].comment if value is not None else ""] if comments else [])]
        table.append([person, *cells])
    if holes:
        said.append(
            f"{holes} students lack the mark of a section. Moodle takes an empty cell as no grade, also where it has one: "
            "export one section at a time (SECTION=01_tensor_costs)"
        )
    got = _got(marks, who, waiting)
    return Sheet(table, said=said, unmatched=len(who) < len(marks.of), people=people, got=got)


def _unmatched(marks: Marks, found: Mapping[str, int], people: Iterable[tuple[str, int]]) -> list[str]:
    """Lines about who is known on one side alone."""
    said = [f"not in the platform's file: {s}" for s in marks.of if s not in found]
    taken = set(found.values())
    return said + [f"no submission: {' '.join(name.split())}" for name, row in people if row not in taken]


# ------------------------------------------------------------------------------------------------ the command
def _columns(texts: Sequence[str]) -> dict[str, str]:
    wrong = [t for t in texts if "=" not in t]
    if wrong:
        raise CourseError(f"{wrong[0]!r} should be SECTION=COLUMN, such as 01_tensor_costs='Tensor costs (4711)'.")
    return dict((section, title) for section, _, title in (t.partition("=") for t in texts))


def main(argv: list[str] | None = None) -> int:
    """Export. Returns 0, 1 where a mark is left out of the file that should be in it, 2 where nothing was written.

    Left out are those of students who are not in the platform's file, and of what was handed in and not graded yet.
    """
    parser = argparse.ArgumentParser(prog="python -m grading.grades", description="Export the marks.")
    parser.add_argument("--format", choices=("plain", "canvas", "moodle"), default="plain")
    parser.add_argument("--from", type=Path, dest="exported", metavar="CSV", help="what Canvas or Moodle exported")
    parser.add_argument("--to", type=Path, help="by default grading/grades.csv, grades-canvas.csv or grades-moodle.csv")
    parser.add_argument("--assignment", help="a section, such as 01_tensor_costs; by default all")
    parser.add_argument("--waiting", choices=("leave", "count"), default="leave", help="marks without the points for answers in words: leave them out, or count what is there (default: %(default)s)")  # fmt: skip
    parser.add_argument("--column", action="append", default=[], metavar="SECTION=TITLE", help="Canvas: the column of a section")  # fmt: skip
    parser.add_argument("--identify", default=EMAIL, metavar="COLUMN", help="Moodle: by what people are known (default: %(default)s)")  # fmt: skip
    parser.add_argument("--comments", action="store_true", help="Moodle: with the comments of formgrader")
    options = parser.parse_args(argv)
    name = "grades.csv" if options.format == "plain" else f"grades-{options.format}.csv"
    target = options.to or ROOT / "grading" / name
    try:
        if options.exported and target.exists() and target.samefile(options.exported):
            raise CourseError(f"{target} is the file to read: name another with --to. Nothing was written.")
        folders = CourseDirectory(config=load_config())
        marks = _marks(folders, options.assignment)
        counted = options.waiting == "count"
        if options.format == "canvas":
            sheet = canvas(marks, options.exported, _columns(options.column), counted)
        elif options.format == "moodle":
            sheet = moodle(marks, options.exported, options.identify, counted, options.comments)
        else:
            sheet = plain(marks)
        atomic_write_bytes(target, sheet.to_bytes())
    except (CourseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in sheet.said:
        print(line)
    so_far = counted or options.format == "plain"
    done = "with the points so far" if so_far else "left empty (--waiting count takes the points so far)"
    for section in marks.sections:
        who = defaultdict(list)
        for student, of in marks.of.items():
            if section in of:
                who[of[section].state].append(student)
        if sheet.people is None:
            print(f"{section}: {len(who[GRADED])} marks")
        else:
            print(f"{section}: {sheet.got[section]} of {sheet.people} people got a mark")
        if waits := who[WAITING]:
            print(f"  {len(waits)} wait for a person's points, {done}: {_few(waits)}")
        if lost := who[NOT_GRADABLE]:
            print(f"  {len(lost)} not gradable, left empty: {_few(lost)}")
    for section, names in marks.ungraded.items():
        print(f"warning: {section}: handed in, not graded yet: {_few(names)}; run `make autograde`", file=sys.stderr)
    print(f"written: {os.path.relpath(target)}")
    return 1 if sheet.unmatched or marks.ungraded else 0


def _marks(folders: CourseDirectory, only: str | None) -> Marks:
    """The marks that belong to what is handed in now. Raises CourseError."""
    marks = read_marks(folders.db_url, folders.course_id, only)
    return without_old(marks, {(a, s) for a, s in ungraded(folders) if only in (None, a)})


def _few(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


if __name__ == "__main__":
    sys.exit(main())
