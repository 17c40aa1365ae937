"""The command `hand-in`: pack a notebook, after a look at it that warns and forbids nothing.

    python -m course_utils hand-in 01_tensor_costs                           a zip beside the notebooks
    python -m course_utils hand-in 01_tensor_costs --to FOLDER               the zip in another folder
    python -m course_utils hand-in 01_tensor_costs --to FOLDER --plain       FOLDER/01_tensor_costs/tensor_costs.ipynb

The zip holds ``SECTION/NOTEBOOK.ipynb`` and ``manifest.json`` with the notebook's SHA-256. The first twelve digits are the
receipt: whoever collects sees the same ones.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import time
import zipfile
from pathlib import Path

from course_utils.data.location import project_root
from course_utils.errors import CourseError
from course_utils.files import atomic_write_bytes
from course_utils.student.ready import chosen, report
from course_utils.student.released import Place, read_file, read_notebook
from course_utils.student.running import CELL_SECONDS

__all__ = ["MANIFEST", "pack", "receipt"]

COURSE = "pytorch-foundations"
MANIFEST = "manifest.json"
STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.@+-]*")  # no underscore: it parts the words of a file's name


def receipt(data: bytes) -> str:
    """The first twelve hexadecimal digits of the SHA-256 of a notebook's file."""
    return hashlib.sha256(data).hexdigest()[:12]


def pack(place: Place, data: bytes, student: str, made: str) -> bytes:
    """The zip file: the notebook and its manifest."""
    name = f"{place.section.assignment}/{place.section.name}.ipynb"
    manifest = {
        "course": COURSE,
        "section": place.section.assignment,
        "student": student or None,
        "made": made,
        "files": {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}},
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
        archive.writestr(MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return buffer.getvalue()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `hand-in`."""
    add = parser.add_argument
    add(
        "what", nargs="?", metavar="SECTION", help="such as 01_tensor_costs, or a notebook; by default all with answers"
    )
    add("--to", metavar="FOLDER", type=Path, help="where to (default: the course's folder)")
    add("--plain", action="store_true", help="copy the notebook itself instead of a zip")
    add("--student", default=os.environ.get("COURSE_STUDENT", ""), help="your id (or the variable COURSE_STUDENT)")
    add("--no-run", action="store_true", help="do not run the notebook before")
    add("--seconds", type=int, default=CELL_SECONDS, help=f"limit for each cell (default {CELL_SECONDS})")


def run(args: argparse.Namespace) -> int:
    """Look at the notebooks, then pack them. Returns 0 where all were packed, whatever the look said."""
    if args.student and not STUDENT.fullmatch(args.student):
        raise CourseError(f"{args.student!r} is no id: letters, digits and . @ + - are allowed.")
    folder = args.to or project_root()
    if not folder.is_dir():
        raise CourseError(f"there is no folder {folder} to hand in to.")
    if not os.access(folder, os.W_OK):
        raise CourseError(f"{folder} is read-only. Name another folder: --to FOLDER")
    for place in chosen(args.what):
        data = read_file(place.path)
        report(place, data, not args.no_run, args.seconds)
        read_notebook(data, place.path.name)  # what nobody can read is not handed in
        if read_file(place.path) != data:
            raise CourseError(f"{place.path} was saved while it was looked at. Run this again.")
        made = time.strftime("%Y-%m-%d %H:%M:%S %z")
        if args.plain:
            target = folder / place.section.assignment / f"{place.section.name}.ipynb"
            content = data
        else:
            words = [COURSE, place.section.assignment, *filter(None, [args.student])]
            target, content = folder / ("_".join(words) + ".zip"), pack(place, data, args.student, made)
        target.parent.mkdir(exist_ok=True)
        earlier = _keep_earlier(target)
        atomic_write_bytes(target, content)
        if target.read_bytes() != content:
            raise CourseError(f"{target} does not hold what was written into it: is the disk or the network broken?")
        if earlier:
            print(f"An earlier one is kept as {earlier.name}.")
        if not args.to:
            print("The file below is yours to upload where your course collects work: nothing was sent.")
        print(
            f"{'Handed in' if args.to else 'Packed'}: {place.section.assignment}, receipt {receipt(data)}, {made}, {target}"
        )
    return 0


def _keep_earlier(target: Path) -> Path | None:
    """Copy a file that is already there to a name of its own; its new place."""
    if not target.exists():
        return None
    stamp = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(target.stat().st_mtime))
    # Not .ipynb: a grader would take it for a notebook of the section.
    end = ".zip" if target.suffix == ".zip" else f"{target.suffix}.old"
    aside, count = target.with_name(f"{target.stem}.{stamp}{end}"), 1
    while aside.exists():
        count += 1
        aside = target.with_name(f"{target.stem}.{stamp}-{count}{end}")
    shutil.copy2(target, aside)
    return aside
