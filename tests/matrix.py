"""Which versions of Python and PyTorch the course works with, found by running it: `make matrix`.

    python tests/matrix.py --torch 2.6.0 --python 3.12      one pair
    python tests/matrix.py --quick                          the machinery, the simulated GPU, the answers of two sections
    python tests/matrix.py                                  every pair of PAIRS, one after the other

Each pair gets an environment of its own in a temporary folder, removed at once afterwards: torch and torchvision of the
pair, everything else as locked. A run of the quick tests there gives one row of docs/versions.md. Downloads about 3 GB and
needs 10 GB of disk for each pair on Linux. Needs uv; runs on the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import astuple, dataclass, fields
from datetime import date
from pathlib import Path

__all__ = ["Row", "constraints", "direct", "merge", "read_report"]

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "docs" / "versions.md"
# torch's release, and the release of torchvision that was made for it.
TORCHVISION = {
    "2.6.0": "0.21.0",
    "2.7.1": "0.22.1",
    "2.8.0": "0.23.0",
    "2.9.1": "0.24.1",
    "2.10.0": "0.25.0",
    "2.11.0": "0.26.0",
    "2.12.1": "0.27.1",
    "2.13.0": "0.28.0",
    "2.14.1": "0.29.1",
    "2.15.0": "0.29.2",
}
PAIRS = [(python, torch) for torch in TORCHVISION for python in ("3.11", "3.12", "3.13")]
# The machinery, the simulated GPU, what a learner's check says to the reference, and every answer of the bank.
SELECTION = [
    "tests/core",
    "tests/simgpu",
    "tests/bank",
    "tests/notebooks/test_built.py",
]
LEFT_OUT = (
    "not train_cifar_mini and not students_notebook and not reference_edition"  # minutes each, or no torch in them
)
QUICK = ["tests/core", "tests/simgpu", "tests/bank"]
QUICK_SECTIONS = ("tensor_costs", "graph_debugging")  # of the bank: tensors, and autograd with its hooks
# What torch chooses for itself. Everything else is held to the lock.
_OF_TORCH = re.compile(r"^(torch|torchvision|triton|sympy|(nvidia|cuda)-[\w-]+)==")


@dataclass(frozen=True)
class Row:
    """One line of the table; the fields' names are its head."""

    python: str
    torch: str
    torchvision: str
    numpy: str
    tests: str
    passed: str
    failed: str
    skipped: str
    date: str


def constraints(lock: str) -> str:
    """The lock without torch and what torch brings along."""
    return "\n".join(line for line in lock.splitlines() if not _OF_TORCH.match(line)) + "\n"


def direct(project: dict, torch: str, torchvision: str) -> list[str]:
    """The direct dependencies of a pyproject.toml, tests included, with this torch."""
    listed = project["dependencies"] + project["optional-dependencies"]["dev"]
    kept = [line for line in listed if not _OF_TORCH.match(line)]
    return [f"torch=={torch}", f"torchvision=={torchvision}", *kept]


def read_report(report: str) -> tuple[Counter, list[str]]:
    """Counts of passed, failed (errors too) and skipped, and the names of the failed tests, from pytest's JUnit XML."""
    counts, failed = Counter(passed=0, failed=0, skipped=0), []
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        state = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[state] += 1
        if state == "failed":
            failed.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
    return counts, failed


def merge(text: str, row: Row) -> str:
    """The page with this row in its table: in the place of an older row of the same pair and tests, in the order of versions."""
    head = [f.name for f in fields(Row)]
    lines = text.splitlines()
    start = lines.index("| " + " | ".join(head) + " |") + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    rows = [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[start:end]]
    same = (row.python, row.torch, row.tests)
    rows = [old for old in rows if (old.python, old.torch, old.tests) != same] + [row]
    rows.sort(key=lambda r: [int(n) for n in re.findall(r"\d+", f"{r.torch.partition('+')[0]} {r.python}")])
    lines[start:end] = ["| " + " | ".join(astuple(r)) + " |" for r in rows]
    return "\n".join(lines) + "\n"


def quick_names() -> str:
    """What pytest's -k takes for the quick tests: of the bank the exercises of QUICK_SECTIONS alone."""
    names = ["core", "simgpu"]
    for section in QUICK_SECTIONS:
        released = json.loads((ROOT / "course_utils" / "released" / f"{section}.json").read_text(encoding="utf-8"))
        marks = [cell["metadata"]["nbgrader"] for cell in released["cells"]]
        names += [mark["grade_id"] for mark in marks if mark["grade"] and not mark["solution"]]
    return " or ".join(names)


def run_pair(python: str, torch: str, uv: str, tests: str, selection: list[str], names: str) -> tuple[Row | None, str]:
    """Make the environment, run the tests, remove it. Returns the row, or None where it cannot be installed, and a log.

    Parameters
    ----------
    tests : str
        What the row calls the tests.
    selection : list of str
        Paths for pytest.
    names : str
        For its -k.
    """
    torchvision = TORCHVISION[torch.partition("+")[0]]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = Path(tempfile.mkdtemp(prefix="course-matrix-"))
    environment = {**os.environ, "UV_CACHE_DIR": str(folder / "cache"), "COURSE_PROGRESS": str(folder / "progress")}
    environment.pop("PYTHONPATH", None)
    interpreter = str(folder / "env" / "bin" / "python")
    try:
        (folder / "constraints.txt").write_text(constraints((ROOT / "requirements.txt").read_text(encoding="utf-8")))
        for command in (
            [uv, "venv", "--quiet", "--python", python, str(folder / "env")],
            [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                interpreter,
                "--constraint",
                str(folder / "constraints.txt"),
                *direct(project, torch, torchvision),
            ],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                return None, done.stderr[-3000:]
        versions = subprocess.run(
            [
                interpreter,
                "-c",
                "import numpy, torch, torchvision as v; print(torch.__version__, v.__version__, numpy.__version__)",
            ],
            capture_output=True,
            text=True,
        )
        if versions.returncode:
            return None, versions.stderr[-3000:]
        report = folder / "report.xml"
        began = time.monotonic()
        done = subprocess.run(
            [
                interpreter,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                names,
                f"--junitxml={report}",
                *selection,
            ],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        log = f"{done.stdout}\n{done.stderr}\n{time.monotonic() - began:.0f} s of tests\n"
        if not report.exists():
            return None, log
        counts, _ = read_report(report.read_text(encoding="utf-8"))
        now, vision, numpy = versions.stdout.split()
        numbers = [str(counts[state]) for state in ("passed", "failed", "skipped")]
        found = (now.partition("+cu")[0], vision.partition("+cu")[0], numpy)
        return Row(python, *found, tests, *numbers, date.today().isoformat()), log
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", help="such as 3.12; may be given more than once")
    parser.add_argument("--torch", action="append", help="such as 2.6.0; may be given more than once")
    parser.add_argument("--tests", nargs="+", default=SELECTION, help="paths to run instead; the table stays as it is")
    parser.add_argument("--quick", action="store_true", help="fewer tests, about 4 minutes a pair; a row of its own")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--log", type=Path, help="a folder for the tests' output")
    options = parser.parse_args()
    if shutil.which(options.uv) is None:
        print(f"{options.uv} is not found: pip install uv, or name it with UV=...", file=sys.stderr)
        return 2
    torches = options.torch or list(TORCHVISION)
    unknown = [t for t in torches if t.partition("+")[0] not in TORCHVISION]
    if unknown:
        print(f"add the torchvision of torch {', '.join(unknown)} to TORCHVISION in {__file__}", file=sys.stderr)
        return 2
    lost = 0
    for torch in torches:
        for python in options.python or ("3.11", "3.12", "3.13"):
            chosen = ("quick", QUICK, quick_names()) if options.quick else ("all", options.tests, LEFT_OUT)
            row, log = run_pair(python, torch, options.uv, *chosen)
            if options.log:
                options.log.mkdir(parents=True, exist_ok=True)
                (options.log / f"python{python}-torch{torch}.txt").write_text(log, encoding="utf-8")
            if row is None:
                lost += 1
                print(f"Python {python}, torch {torch}: could not be installed or started\n{log}", flush=True)
                continue
            print(", ".join(f"{f.name} {getattr(row, f.name)}" for f in fields(Row)), flush=True)
            if options.quick or options.tests == SELECTION:
                TABLE.write_text(merge(TABLE.read_text(encoding="utf-8"), row), encoding="utf-8")
            lost += row.failed != "0"
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
