"""A class of attackers between two good students, graded in one run of the parallel runner."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from catalogue import ATTACKS, GOOD, MARK, WALLS, WRONG, Attack, with_places
from mini_course import ASSIGNMENT, MiniCourse
from nbformat.v4 import new_code_cell

# Small, so that what an attack takes is little. Kernels of the mini course need about 300 MiB.
LIMITS = ("--Execute.timeout=8", "--Sandbox.memory=1000", "--Sandbox.processes=40", "--Sandbox.scratch=128")
# What no submission may change. Marks, results and reports are the run's own.
KEPT = ("course_utils", "grading", "notebooks", "solutions", "nbgrader_config.py", "write.py")
OWN = ("gradebook.db", "results/", "autograded/", "summary.csv", "flags.csv", ".cache/", "exchange", "__pycache__")


@dataclass
class Graded:
    """What the run has left: points by student and exercise, the report's rows, and changes to files."""

    course: MiniCourse
    home: Path
    said: str
    scores: dict[str, dict[str, float]]
    told: dict[str, dict[str, str]]
    changed: list[str]
    left_running: list[list[str]]


def _digests(*roots: Path) -> dict[str, str]:
    found = {}
    for root in roots:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and not any(own in name for own in OWN):
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _hand_in(course: MiniCourse, attack: Attack, **places: object) -> None:
    attack = with_places(attack, ROOT=course.root, **places)
    notebook = course.notebook(**{**WRONG, **attack.answers})
    if attack.first:
        notebook.cells.insert(0, new_code_cell(attack.first))
    if attack.last:
        notebook.cells.append(new_code_cell(attack.last))
    if attack.change:
        attack.change(notebook)
    path = course.hand_in(attack.student, notebook)
    for name, text in attack.files.items():
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            file.unlink(missing_ok=True)
            file.symlink_to(text.removeprefix("->").replace("ROOT", str(course.root)))
        else:
            file.write_text(text)


@pytest.fixture(scope="session")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    course = MiniCourse(tmp_path_factory.mktemp("attacked"))
    home = tmp_path_factory.mktemp("home")
    (course.root / "grading" / "secret_salt").write_text("5" * 64)
    (home / ".netrc").write_text("machine example.org password secret")
    for name in GOOD:
        course.hand_in(name, course.notebook())
    with socket.create_server(("127.0.0.1", 0)) as server:
        for attack in (a for a in ATTACKS if WALLS or not a.boxed):
            _hand_in(course, attack, HOME=home, PORT=server.getsockname()[1])
        before = _digests(*(course.root / name for name in KEPT), home)
        done = course.grade("--jobs", "2", *LIMITS, HOME=str(home), COURSE_SECRET_TOKEN="geheim")
    after = _digests(*(course.root / name for name in KEPT), home)
    changed = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    running = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if MARK in (p.info["cmdline"] or [])]
    assert "graded" in done.stdout, done.stdout[-4000:]
    return Graded(course, home, done.stdout, course.scores(ASSIGNMENT), course.told(), changed, running)
