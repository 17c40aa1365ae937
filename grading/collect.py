"""Put what was handed in where grading looks for it: ``grading/submitted/STUDENT/SECTION/NOTEBOOK.ipynb``.

    python -m grading.collect submissions.zip [MORE ...]     the archive that Canvas or Moodle gives, or a folder
    python -m grading.collect --dry-run submissions.zip      say what would be collected

Who handed a file in is read from its path:

* Canvas: ``doejane_12345_67890_tensor_costs-1.ipynb`` or ``doejane_LATE_12345_...``. The student is ``doejane-12345``.
* Moodle: ``Jane Doe_1234567_assignsubmission_file/tensor_costs.ipynb``, or the same without folders. The student is
  ``jane-doe``. Moodle gives the number anew in each assignment: it is used only where two people in one archive have
  one name, or where a name has no Latin letters. Such students get another folder in each section.
* A zip of ``python -m course_utils hand-in --student ID``: the ID. In an archive of Canvas or Moodle the platform's name
  counts: nobody can choose that one.

Which section a notebook belongs to is told by its own name. One under another name, such as ``tensor_costs_final.ipynb``, and
one that is cut off are collected where nothing else of that student can be meant; else you get the command that does it. Nothing is unpacked to a path that an archive names, links
are not followed, and the sizes that an archive declares are looked at before anything is read.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import shutil
import stat
import sys
import time
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import atomic_write_bytes, atomic_write_text
from course_utils.student.cells import grade_id
from course_utils.student.hand_in import MANIFEST, STUDENT, receipt
from course_utils.student.released import Section, read_notebook, sections
from grading.autograde.rescue import rescue
from grading.source import ROOT

__all__ = ["Found", "Refused", "Sender", "find", "store", "student_ids", "who"]

MAX_BYTES = 50_000_000  # of one file
MAX_ZIP = 100_000_000  # of one student's zip, unpacked
MAX_CLASS = 4_000_000_000  # of a platform's archive, unpacked
MAX_FILES = 20_000

CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_late)?_(?P<number>\d+)_\d+_(?P<file>.+)", re.IGNORECASE)
MOODLE = re.compile(r"(?:[^/]*/)*?(?P<name>[^/]+?)_(?P<number>\d+)_assignsubmission_file(_/|/|_)(?P<file>.+)")
COPY = re.compile(r"(?:-(\d+)| ?\((\d+)\))$")  # what a platform or a browser adds to a name that was there before


@dataclass(frozen=True)
class Sender:
    """Who handed something in.

    Attributes
    ----------
    name : str
        Fit for a folder's name; perhaps empty.
    number : str
        The platform's; empty where the student gave an id.
    own : bool
        The number is the person's in the whole course.
    """

    name: str
    number: str = ""
    own: bool = False


@dataclass(frozen=True)
class Found:
    """A notebook that was handed in.

    Attributes
    ----------
    data : bytes
        The file, as it came.
    order : tuple
        Seconds and a count, which grow with later attempts of one student.
    where : str
        Its path in the archive.
    doubt : str
        Why it may not be the one that is meant; empty where it is.
    """

    sender: Sender
    section: Section
    data: bytes
    order: tuple[float, int]
    where: str
    doubt: str = ""


@dataclass(frozen=True)
class Refused:
    """A file that was not collected, and why."""

    where: str
    why: str


# ------------------------------------------------------------------------------------------------ names
def who(path: str) -> tuple[Sender, str] | None:
    """The sender, and the name that the file had, from a path as Canvas or Moodle write it; None where it is neither."""
    if match := MOODLE.fullmatch(path):
        return Sender(folder_name(match["name"]), match["number"]), match["file"].rpartition("/")[2]
    if match := CANVAS.fullmatch(path.rpartition("/")[2]):
        return Sender(folder_name(match["name"]), match["number"], own=True), match["file"]
    return None


def folder_name(person: str) -> str:
    """Latin letters without accents, digits and ``. @ -``."""
    plain = unicodedata.normalize("NFKD", person).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9.@-]+", "-", plain.lower()).strip("-.")


def student_ids(senders: set[Sender]) -> dict[Sender, str]:
    """The student's id, which is the folder's name, of each sender."""
    numbers: dict[str, set[str]] = defaultdict(set)
    for sender in senders:
        numbers[sender.name].add(sender.number)
    ids = {}
    for sender in senders:
        if sender.number and (sender.own or not sender.name or len(numbers[sender.name]) > 1):
            ids[sender] = f"{sender.name or 'student'}-{sender.number}"
        else:
            ids[sender] = sender.name
    return ids


# ------------------------------------------------------------------------------------------------ files
def open_zip(source: Path | io.BytesIO, where: str, most: int) -> zipfile.ZipFile:
    """An archive, of which only the directory was read.

    Parameters
    ----------
    most : int
        Bytes that it may declare.

    Raises
    ------
    CourseError
        If it is no zip, or declares more.
    """
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, ValueError) as error:
        raise CourseError(f"{where} cannot be read as a zip ({error}). Download it again.") from None
    entries = archive.infolist()
    if len(entries) > MAX_FILES or sum(e.file_size for e in entries) > most:
        archive.close()
        raise CourseError(f"{where} declares more than {MAX_FILES} files or {most // 10**6} MB: it is not opened.")
    return archive


def members(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes] | Refused]:
    """(path, content) of each file in an archive."""
    for entry in archive.infolist():
        path = entry.filename.replace("\\", "/")
        if entry.is_dir() or hidden(path):
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            yield Refused(path, "a link")
        elif entry.flag_bits & 1:
            yield Refused(path, "encrypted")
        elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            yield Refused(path, "packed in a way that not every Python reads")
        elif entry.file_size > MAX_BYTES:
            yield Refused(path, too_big(entry.file_size))
        else:
            try:
                content = archive.read(entry)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                yield Refused(path, f"damaged ({error})")
            else:
                yield path, content


def hidden(path: str) -> bool:
    """What macOS and Jupyter put beside a file."""
    return any(part == "__MACOSX" or (part.startswith(".") and part.strip(".")) for part in path.split("/"))


def too_big(size: int) -> str:
    return f"{size // 10**6} MB; at most {MAX_BYTES // 10**6} MB are taken"


def files(source: Path) -> Iterator[tuple[str, bytes] | Refused]:
    """(path, content) of each file in a folder or in a platform's archive; one student's zip is a folder of one."""
    if source.is_file() and source.suffix.lower() == ".zip" and not who(source.name):
        with open_zip(source, source.name, MAX_CLASS) as archive:
            if MANIFEST not in archive.namelist():
                yield from members(archive)
                return
    folder, paths = (source, sorted(source.rglob("*"))) if source.is_dir() else (source.parent, [source])
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if hidden(name):
            continue
        if path.is_symlink():
            yield Refused(name, "a link")
        elif path.is_file() and path.stat().st_size > MAX_BYTES:
            yield Refused(name, too_big(path.stat().st_size))
        elif path.is_file():
            yield name, path.read_bytes()


def find(source: Path) -> list[Found | Refused]:
    """Every notebook of the course in an archive or a folder, and every file that is none.

    Raises
    ------
    CourseError
        If the archive cannot be opened.
    OSError
        If there is no such file.
    """
    if not source.exists():
        raise CourseError(f"there is no {source}.")
    found: list[Found | Refused] = []
    for item in files(source):
        if isinstance(item, Refused):
            found.append(item)
            continue
        path, data = item
        sender, name = who(path) or (None, path)
        if path.lower().endswith(".zip"):
            try:
                found += hand_in(path, data, sender)
            except CourseError as error:
                found.append(Refused(path, str(error)))
        else:
            found.append(notebook(path, name, data, sender, 0.0))
    return found


def hand_in(path: str, data: bytes, sender: Sender | None) -> Iterator[Found | Refused]:
    """The notebooks in a zip that a student made, with `course_utils hand-in` or by hand."""
    inside: dict[str, bytes] = {}
    with open_zip(io.BytesIO(data), path, MAX_ZIP) as archive:
        for item in members(archive):
            if isinstance(item, Refused):
                yield Refused(f"{path}: {item.where}", item.why)
            else:
                inside[item[0]] = item[1]
    student, made = read_manifest(inside.pop(MANIFEST, b""))
    if sender is None and student:
        sender = Sender(student)
    for name, content in inside.items():
        yield notebook(f"{path}: {name}", name, content, sender, made)


def read_manifest(data: bytes) -> tuple[str, float]:
    """The student's id and when the zip was made, in seconds since 1970; empty and 0 where it does not tell."""
    try:
        manifest = json.loads(data)
        made = datetime.strptime(manifest["made"], "%Y-%m-%d %H:%M:%S %z").timestamp()
        student = manifest["student"] or ""
        return (student if STUDENT.fullmatch(student) else ""), made
    except (ValueError, KeyError, TypeError):
        return "", 0.0


def notebook(where: str, name: str, data: bytes, sender: Sender | None, made: float) -> Found | Refused:
    """One file, as what it is."""
    path = Path(name)
    if path.suffix != ".ipynb":
        return Refused(where, "no notebook")
    copy = COPY.search(path.stem)
    section = next((s for s in sections() if s.name == COPY.sub("", path.stem)), None)
    doubt = "" if section else "another name"
    section = section or likely(path.stem, data)
    if section is None:
        return Refused(where, f"the course has no notebook {path.name}")
    if sender is None:
        return Refused(where, "nothing tells whose it is. Put it into grading/submitted/STUDENT/SECTION/ by hand")
    try:
        read_notebook(data, path.name)
    except CourseError as error:
        if rescue(data).unreadable:
            return Refused(where, str(error))
        doubt = "damaged; grading reads what is left"
    return Found(sender, section, data, (made, int(copy[1] or copy[2]) if copy else 0), where, doubt)


def likely(stem: str, data: bytes) -> Section | None:
    """The section of a notebook under another name: its name begins with the notebook's, or its cells are a section's."""
    if b'"cell_type"' not in data:
        return None
    begins = [s for s in sections() if stem.lower().startswith(s.name)]
    if begins:
        return max(begins, key=lambda s: len(s.name))
    ids = {grade_id(cell) for cell in rescue(data).notebook.cells}
    best = max(sections(), key=lambda s: len(ids & s.cells.keys()))
    return best if ids & best.cells.keys() else None


def marked_late(item: Found) -> bool:
    """Did Canvas write LATE into the name of the file?"""
    name = item.where.partition(": ")[0].rpartition("/")[2]  # of the zip, where it was in one
    return item.sender.own and (match := CANVAS.fullmatch(name)) is not None and match["late"] is not None


def split(found: list[Found], ids: dict[Sender, str]) -> tuple[list[Found], list[Found]]:
    """What is collected, and what a person has to decide: doubtful ones where there are others of one student's section."""
    there: dict[tuple[str, Section], list[Found]] = defaultdict(list)
    for item in found:
        there[ids[item.sender], item.section].append(item)
    sure: list[Found] = []
    open_: list[Found] = []
    for items in there.values():
        alone = len({item.data for item in items}) == 1
        for item in items:
            (sure if alone or not item.doubt else open_).append(item)
    return sure, open_


# ------------------------------------------------------------------------------------------------ the folders
def store(item: Found, student: str, root: Path) -> str:
    """Write one notebook below ``root/grading/submitted``; what was done: new, unchanged or replaced.

    A notebook that is replaced is kept in ``grading/replaced/``. ``timestamp.txt``, by which nbgrader sees that there is
    something new to grade, holds the time of collecting: the time in a hand-in is the student's own word.
    """
    target = root / "grading" / "submitted" / student / item.section.assignment / f"{item.section.name}.ipynb"
    done = "new"
    if target.exists():
        if target.read_bytes() == item.data:
            return "unchanged"
        shutil.copy2(target, aside(student, item.section, target.read_bytes(), root))
        done = "replaced"
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(target, item.data)
    atomic_write_text(target.with_name("timestamp.txt"), time.strftime("%Y-%m-%d %H:%M:%S UTC\n", time.gmtime()))
    return done


def aside(student: str, section: Section, data: bytes, root: Path) -> Path:
    """Where a notebook is kept that is not graded; its folder is made."""
    folder = root / "grading" / "replaced"
    folder.mkdir(exist_ok=True)
    return folder / f"{student}-{section.name}-{receipt(data)}.ipynb"


def to_take(item: Found, student: str, root: Path) -> str:
    """Keep a notebook that is not collected; the command that puts it where it is graded."""
    kept = aside(student, item.section, item.data, root)
    atomic_write_bytes(kept, item.data)
    folder = f"grading/submitted/{student}/{item.section.assignment}"
    words = ["cp", kept.relative_to(root).as_posix(), f"{folder}/{item.section.name}.ipynb"]
    return f"mkdir -p {shlex.quote(folder)} && {shlex.join(words)}"


def main(argv: list[str] | None = None) -> int:
    """Collect. Returns 0, 1 where a file was not collected, 2 where an archive cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m grading.collect", description="Collect what was handed in.")
    parser.add_argument("sources", nargs="+", type=Path, metavar="PATH", help="an archive, or a folder of files")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    try:
        items = [item for source in options.sources for item in find(source)]
        found = [item for item in items if isinstance(item, Found)]
        refused = [item for item in items if isinstance(item, Refused)]
        ids = student_ids({item.sender for item in found})
        found, undecided = split(found, ids)
        latest: dict[tuple[str, Section], Found] = {}
        for item in sorted(found, key=lambda item: item.order):
            key = ids[item.sender], item.section
            if key in latest:
                print(f"older     {latest[key].where}: a later one is {item.where}")
            latest[key] = item
        for (student, section), item in sorted(latest.items(), key=lambda pair: (pair[0][1].assignment, pair[0][0])):
            done = "found" if options.dry_run else store(item, student, ROOT)
            print(f"{done:<10}{section.assignment:<22}{student:<24}receipt {receipt(item.data)}  {item.where}")
            if item.doubt:
                print(f"{'':<10}{item.doubt}: taken as {section.name}.ipynb, there is no other one")
        for item in undecided:
            print(f"left out  {item.where}: {item.doubt}, and {ids[item.sender]} has handed in others")
            if not options.dry_run:
                print(f"{'':<10}to grade it: {to_take(item, ids[item.sender], ROOT)}")
    except (CourseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for item in refused:
        print(f"left out  {item.where}: {item.why}")
    if late := sorted({student for (student, _), item in latest.items() if marked_late(item)}):
        print(f"marked late by Canvas, which changes no mark here: {', '.join(late)}")
    left = len(refused) + len(undecided)
    print(f"{len(latest)} notebooks of {len({student for student, _ in latest})} students, {left} left out")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
