"""What grading costs: a notebook by stock nbgrader and by ours, a check, the answer bank. Prints ratios.

    python benchmarks/grading.py [--students 3] [--section 01_tensor_costs]

Both gradings run on the same submissions, in the same run, one after the other: the released notebook with the
reference's answers. Stock nbgrader executes the check cells as they stand (they compare with the public behaviour);
nothing else of this course's configuration is used there. Times differ between machines and hours; read the ratio.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course_utils.observe import all_exercises  # noqa: E402
from grading.bank import answers, judge_answer  # noqa: E402
from grading.references import load_references  # noqa: E402
from grading.source import sections  # noqa: E402

STOCK_CONFIG = """
import os, sys
c = get_config()
c.CourseDirectory.root = {root!r}
c.CourseDirectory.db_url = "sqlite:///{root}/gradebook.db"
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
"""


def run(root: Path, *command: str) -> float:
    """Seconds that a command takes; its output only if it fails."""
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(done.stdout[-3000:])
    return time.perf_counter() - started


def solved(section) -> nbformat.NotebookNode:
    """The released notebook with the reference's answers."""
    notebook = nbformat.read(ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb", as_version=4)
    cells = section.answer_cells()
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "").removeprefix("answer-")
        if cell.metadata.get("nbgrader", {}).get("solution"):
            cell.source = re.sub(r"^\s*### (BEGIN|END) SOLUTION\n?", "", cells[name].source, flags=re.M)
    return notebook


def grade_both(section, students: int) -> None:
    notebook = solved(section)
    names = [f"student{i}" for i in range(students)]
    with tempfile.TemporaryDirectory() as folder:
        stock, ours = Path(folder) / "stock", Path(folder) / "ours"
        (stock / "source" / section.assignment).mkdir(parents=True)
        shutil.copy(section.path.with_suffix("") / f"{section.name}.ipynb", stock / "source" / section.assignment)
        (stock / "nbgrader_config.py").write_text(STOCK_CONFIG.format(root=str(stock)))
        leave = shutil.ignore_patterns(
            "__pycache__", "submitted", "autograded", "feedback", "gradebook.db*", ".cache", "exchange"
        )
        for name in ("course_utils", "grading", "solutions", "notebooks"):
            shutil.copytree(ROOT / name, ours / name, ignore=leave)
        shutil.copy(ROOT / "nbgrader_config.py", ours)
        (ours / "data").mkdir()
        (ours / "data" / "cifar_mini").symlink_to(ROOT / "data" / "cifar_mini")
        os.environ["COURSE_DATA"] = str(ROOT / "data")
        for root, submitted in ((stock, stock / "submitted"), (ours, ours / "grading" / "submitted")):
            run(root, "nbgrader", "generate_assignment", section.assignment, "--force")
            for name in names:
                (submitted / name / section.assignment).mkdir(parents=True)
                nbformat.write(notebook, submitted / name / section.assignment / f"{section.name}.ipynb")
        # Warm the file caches of both alike, and the judge's, with one student; the class is timed.
        timed = {}
        for label, root in (("stock", stock), ("ours", ours)):
            run(root, "nbgrader", "autograde", section.assignment, "--force", f"--student={names[0]}")
            timed[label] = run(root, "nbgrader", "autograde", section.assignment, "--force") / students
    print(
        f"grading {section.assignment}, {students} students, seconds a notebook: stock nbgrader {timed['stock']:.2f}, ours {timed['ours']:.2f}"
    )
    print(f"  ratio ours / stock: {timed['ours'] / timed['stock']:.2f} (goal: at most 1)")


def check_times(section) -> None:
    from course_utils.checking import judge_public

    reference = load_references(section.name)
    times = {}
    for exercise in all_exercises(section.name):
        judge_public(exercise, reference.answers[exercise.id])  # the first call imports
        started = time.perf_counter()
        judge_public(exercise, reference.answers[exercise.id])
        times[exercise.id] = time.perf_counter() - started
    slowest = max(times, key=times.get)
    print(
        f"check, {section.name}: median {statistics.median(times.values()):.3f} s, slowest {times[slowest]:.3f} s ({slowest})"
    )


def bank_times(section) -> None:
    reference, bank = load_references(section.name), answers(section.name)
    started = time.perf_counter()
    for answer in bank:
        judge_answer(answer, reference, 1)
    took = time.perf_counter() - started
    print(
        f"bank, {section.name}: {len(bank)} answers on one seed in {took:.1f} s, {1000 * took / len(bank):.0f} ms each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure grading.")
    parser.add_argument("--students", type=int, default=3)
    parser.add_argument("--section")
    options = parser.parse_args()
    for section in sections(options.section):
        check_times(section)
        bank_times(section)
        grade_both(section, options.students)


if __name__ == "__main__":
    main()
