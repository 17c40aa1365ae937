"""What a submission costs to grade: stock nbgrader, plain `nbgrader autograde` with this course's executor, `make autograde`.

    python benchmarks/autograde.py [--students 40] [--section-students 4] [--jobs 2] [--rounds 1]

The same submissions, all right, graded three times one after the other on the same machine:

* stock: nbgrader as it is installed, with nothing of this course's configuration. In the small course plain asserts take
  the place of the check cells; in a real section the check cells run as they stand, and compare with the public behaviour.
* plain: `nbgrader autograde` with this course's executor: sandbox, hidden cases, judge.
* make: `python -m grading.autograde`, which `make autograde` runs: the same, submissions side by side.

The first table divides what the whole command takes, its start included, by the number of submissions. The second one takes
a run with one submission away from it: what each further submission costs, as in a large class. CPU seconds are those of
all processes together; they are counted where this program may make a control group (cgroup v1, as root). Times differ
between machines and hours, and a busy machine favours nobody: read the ratios, of CPU seconds as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import numpy as np
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import mini_course  # noqa: E402
from course import Course  # noqa: E402
from nbgrader.api import Gradebook  # noqa: E402

from grading.source import sections  # noqa: E402

GOAL = 12.0  # times stock's seconds, for trivial student code
STOCK_CONFIG = """
import os, sys
c = get_config()
c.CourseDirectory.root = {root!r}
c.CourseDirectory.db_url = "sqlite:///{root}/gradebook.db"
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
"""
ASSERTS = {
    "doubled": "assert torch.equal(doubled(torch.arange(6).reshape(2, 3)), torch.tensor([[0, 2, 4], [6, 8, 10]]))",
    "sum_of_squares": "assert sum_of_squares(torch.ones(1000)) == 1000",
    "same_block": "x = torch.ones(4, 3)\nassert same_block(x, x[1:]) and not same_block(x, x.clone())",
    "batches": "assert batches(7, 3) == [[0, 1, 2], [3, 4, 5], [6]]",
    "plus_one": "assert plus_one(41) == 42",
}


@dataclass
class Way:
    """One way to grade the class, and what each round of it took."""

    name: str
    root: Path
    gradebook: Path
    command: list[str]
    one: str  # the option that grades one student alone
    took: list[tuple[float, float]] = field(default_factory=list)  # of each round: seconds and CPU seconds
    took_one: list[tuple[float, float]] = field(default_factory=list)

    def grade(self) -> None:
        self.took_one.append(measured(self.root, [*self.command, f"{self.one}=student00"]))
        self.took.append(measured(self.root, self.command))

    def each(self, students: int) -> np.ndarray:
        """Seconds and CPU seconds of a submission by round, (rounds, 2): the start's share included."""
        return np.array(self.took) / students

    def each_further(self, students: int) -> np.ndarray:
        """The same without the start."""
        return (np.array(self.took) - np.array(self.took_one)) / (students - 1)

    def points(self, assignment: str) -> set[float]:
        with Gradebook(f"sqlite:///{self.gradebook}") as gradebook:
            return {round(s.score, 3) for s in gradebook.assignment_submissions(assignment)}


@contextlib.contextmanager
def cpu_group():
    """A control group that counts the CPU time of all that runs in it; None where none can be made."""
    path = Path("/sys/fs/cgroup/cpuacct") / f"benchmark-{secrets.token_hex(6)}"
    try:
        path.mkdir()
    except OSError:
        yield None
        return
    try:
        yield path
    finally:
        path.rmdir()


def measured(root: Path, command: list[str]) -> tuple[float, float]:
    """Seconds, and CPU seconds or NaN, of ``python -m command``; its output only if it fails."""
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}", "COURSE_DATA": os.environ["COURSE_DATA"]}
    with cpu_group() as group:
        join = (lambda: (group / "cgroup.procs").write_text("0")) if group else None
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=root,
            env=env,
            preexec_fn=join,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            sys.exit(done.stdout[-3000:])
        time.sleep(0.5)  # what is being ended is gone then
        cpu = int((group / "cpuacct.usage").read_text()) / 1e9 if group else float("nan")
    return seconds, cpu


def stock_course(root: Path, assignment: str, source: NotebookNode, notebook: str) -> None:
    """A folder of stock nbgrader with one released assignment."""
    folder = root / "source" / assignment
    folder.mkdir(parents=True)
    nbformat.write(source, folder / notebook)
    (root / "nbgrader_config.py").write_text(STOCK_CONFIG.format(root=str(root)))
    measured(root, ["nbgrader", "generate_assignment", assignment])


def hand_in(folder: Path, assignment: str, notebook: str, what: NotebookNode, names: list[str]) -> None:
    for name in names:
        (folder / name / assignment).mkdir(parents=True)
        nbformat.write(what, folder / name / assignment / notebook)


def with_asserts(notebook: NotebookNode) -> NotebookNode:
    """The small course's notebook as one would write it for stock nbgrader."""
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in ASSERTS:
            cell.source = ASSERTS[name]
        cell.source = cell.source.replace("from course_utils import check\n", "").replace(
            "from course_utils import check", ""
        )
    return notebook


def solved(course: Course, section) -> NotebookNode:
    """The released notebook with the reference's answers."""
    notebook = course.released(section.assignment)
    cells = section.answer_cells()
    for cell in notebook.cells:
        mark = cell.metadata.get("nbgrader", {})
        if mark.get("solution"):
            answer = cells[mark["grade_id"].removeprefix("answer-")]
            cell.source = re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", answer.source, flags=re.M)
    return notebook


def compare(title: str, ways: list[Way], assignment: str, students: int, rounds: int) -> dict[str, float]:
    """Grade in all ways, print the table; how many times faster than stock each is."""
    for _ in range(rounds):
        for way in ways:
            way.grade()
    print(f"\n{title}: {students} submissions, {rounds} round{'s' * (rounds > 1)}, load {os.getloadavg()[0]:.1f}")
    for what, figures in (("start included", Way.each), ("each further one", Way.each_further)):
        print(f"{what:18}{'seconds':>9}{'CPU s':>8}{'stock / this':>14}{'in CPU time':>13}   points")
        for way in ways:
            mine, stock = figures(way, students), figures(ways[0], students)
            (seconds, cpu), (times, times_cpu) = np.median(mine, axis=0), np.median(stock / mine, axis=0)
            points = ", ".join(f"{p:g}" for p in sorted(way.points(assignment)))
            print(f"  {way.name:16}{seconds:9.2f}{cpu:8.2f}{times:14.1f}{times_cpu:13.1f}   {points}", flush=True)
    return {way.name: float(np.median(ways[0].each(students) / way.each(students), axis=0)[0]) for way in ways}


def ways(course: Course, stock: Path, assignment: str, jobs: int) -> list[Way]:
    ours = course.root / "grading" / "gradebook.db"
    return [
        Way("stock", stock, stock / "gradebook.db", ["nbgrader", "autograde", assignment, "--force"], "--student"),
        Way("plain", course.root, ours, ["nbgrader", "autograde", assignment, "--force"], "--student"),
        Way("make", course.root, ours, ["grading.autograde", "--force", "--jobs", str(jobs)], "--students"),
    ]


def trivial(folder: Path, students: int, jobs: int, rounds: int) -> float:
    course = mini_course.MiniCourse(folder / "mini")
    assignment, notebook = mini_course.ASSIGNMENT, mini_course.NOTEBOOK
    names = [f"student{i:02}" for i in range(students)]
    source = nbformat.read(course.root / "solutions" / assignment / notebook, as_version=4)
    stock_course(folder / "stock-mini", assignment, with_asserts(source), notebook)
    hand_in(folder / "stock-mini" / "submitted", assignment, notebook, with_asserts(course.notebook()), names)
    hand_in(course.root / "grading" / "submitted", assignment, notebook, course.notebook(), names)
    graded = ways(course, folder / "stock-mini", assignment, jobs)
    return compare("Trivial student code (five small exercises)", graded, assignment, students, rounds)["make"]


def real(folder: Path, name: str, students: int, jobs: int, rounds: int) -> None:
    section = sections(name)[0]
    course = Course(folder / "course")
    assignment, notebook = section.assignment, f"{section.name}.ipynb"
    names = [f"student{i:02}" for i in range(students)]
    source = nbformat.read(course.root / "solutions" / assignment / notebook, as_version=4)
    stock_course(folder / "stock", assignment, source, notebook)
    measured(course.root, ["grading.release", "--gradebook-only", assignment])
    for submitted in (folder / "stock" / "submitted", course.root / "grading" / "submitted"):
        hand_in(submitted, assignment, notebook, solved(course, section), names)
    # The judge observes its reference once per machine and version of the course, not once per class.
    measured(course.root, ["grading.autograde", "--students", names[0]])
    compare(f"Section {assignment}", ways(course, folder / "stock", assignment, jobs), assignment, students, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long a submission takes to grade.")
    parser.add_argument("--students", type=int, default=40, help="with trivial code")
    parser.add_argument("--section", default="01_tensor_costs")
    parser.add_argument("--section-students", type=int, default=4, help="0 leaves the section out")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("COURSE_DATA", str(ROOT / "data"))
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        reached = trivial(folder, options.students, options.jobs, options.rounds)
        print(f"Goal: make at least {GOAL:g} times as fast as stock with trivial code: {reached:.1f}", flush=True)
        if options.section_students:
            real(folder, options.section, options.section_students, options.jobs, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
