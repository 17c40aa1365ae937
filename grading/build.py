"""Build what is made from the sources in ``solutions/``.

    python -m grading.build [SECTION]            everything that is out of date
    python -m grading.build --check              change nothing; fail if anything is out of date

From one source, ``solutions/01_tensor_costs.py``, come

* ``solutions/01_tensor_costs/tensor_costs.ipynb``   the reference edition, executed, outputs kept
* ``notebooks/01_tensor_costs/tensor_costs.ipynb``   the students' edition, stripped by nbgrader itself
* ``course_utils/released/tensor_costs.json``        the cells that grading knows, as they were handed out
* ``course_utils/expected/tensor_costs.json``        what the reference does on the public cases

Two builds of the same source are equal, byte for byte, but for the outputs of the reference edition. It is executed
again only when its cells have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_utils.files import atomic_write_text
from course_utils.observe.compare import agrees
from course_utils.observe.expected import EXPECTED, to_plain
from course_utils.observe.plain import Spec
from course_utils.observe.registry import Exercise, all_exercises, public_seed
from course_utils.student.released import RELEASED, released_text
from grading.references import load_references
from grading.source import ROOT, WRITE_HERE, Section, SourceError, sections

__all__ = ["build", "execute", "expected_text", "release_text", "source_notebook"]

_NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


# ------------------------------------------------------------------------------------------------ the notebook
def source_notebook(section: Section) -> NotebookNode:
    """The section with answers, nbgrader's metadata, headings and check cells, without outputs."""
    exercises = {e.id: e for e in all_exercises(section.name)}
    cells: list[NotebookNode] = []
    asked: set[str] = set()
    in_words: dict[str, float] = {}
    for cell in section.read().cells:
        name = cell.metadata.pop("exercise", None)
        reflection = cell.metadata.pop("reflection", None)
        points = cell.metadata.pop("points", None)
        tags = cell.metadata.get("tags", [])
        cell.metadata = NotebookNode({"tags": tags} if tags else {})
        if reflection is not None:
            cells.append(_reflection_cell(section, cell, reflection, points, in_words))
            continue
        if name is None:
            if "setup" in tags:
                cell.metadata["nbgrader"] = _nbgrader(
                    f"setup-{sum('setup' in _tags(c) for c in cells) + 1}", locked=True
                )
            cells.append(cell)
            continue
        if name not in exercises:
            raise SourceError(f"{section.path.name}: exercise={name!r} has no observer in exercises/{section.name}.py")
        if cell.cell_type == "markdown":
            asked.add(name)
            cell.source = f"{_heading(exercises[name])}\n\n{cell.source.strip()}"
            cells.append(cell)
        else:
            if name not in asked:
                raise SourceError(f"{section.path.name}: {name} has no markdown cell with its task before the answer")
            if not re.search(r"### BEGIN SOLUTION.*### END SOLUTION", cell.source, re.S):
                raise SourceError(f"{section.path.name}: the answer cell of {name} has no ### BEGIN/END SOLUTION")
            cell.metadata["nbgrader"] = _nbgrader(f"answer-{name}", solution=True)
            cells += [cell, _check_cell(exercises[name])]
    answered = {c.metadata.nbgrader.grade_id for c in cells if "nbgrader" in c.metadata}
    left_out = [
        *(e for e in exercises if e not in answered),
        *(r for r in in_words if f"reflection-{r}" not in answered),
    ]
    if left_out:
        raise SourceError(f"{section.path.name}: no cell asks for {', '.join(left_out)}")
    _name_cells(cells)
    notebook = new_notebook(cells=cells, metadata=_NOTEBOOK_METADATA)
    nbformat.validate(notebook)
    return notebook


def _reflection_cell(
    section: Section, cell: NotebookNode, name: str, points: float | None, asked: dict[str, float]
) -> NotebookNode:
    """The question of a reflection, which carries its points, or the answer behind it."""
    if cell.cell_type != "markdown" or (points is None) != (name in asked):
        raise SourceError(
            f"{section.path.name}: reflection={name!r} is a markdown cell with the question and its points, then one "
            "with the answer"
        )
    if points is None:
        cell.metadata["nbgrader"] = _nbgrader(f"reflection-{name}", grade=True, solution=True, points=asked[name])
    else:
        asked[name] = points
        cell.source = (
            f"## In your own words\n\n*{points:g} points, given by a person who reads it · 3 to 5 sentences*\n\n"
            f"{cell.source.strip()}\n\n{WRITE_HERE}"
        )
    return cell


def _heading(exercise: Exercise) -> str:
    level = "●" * exercise.difficulty + "○" * (3 - exercise.difficulty)
    points = f"{exercise.points:g} point{'' if exercise.points == 1 else 's'}"
    return (
        f"### Exercise: `{exercise.id}`\n\n"
        f"*{points} · about {exercise.minutes} minutes · level {exercise.difficulty} of 3 {level}*"
    )


def _check_cell(exercise: Exercise) -> NotebookNode:
    cell = new_code_cell(f'check("{exercise.id}")')
    cell.metadata["nbgrader"] = _nbgrader(exercise.id, grade=True, locked=True, points=exercise.points)
    # An answer that is not right yet must not stop "Run All Cells".
    cell.metadata["tags"] = ["raises-exception"]
    return cell


def _nbgrader(grade_id: str, **changes: object) -> NotebookNode:
    base = {
        "grade": False,
        "grade_id": grade_id,
        "locked": False,
        "schema_version": 3,
        "solution": False,
        "task": False,
    }
    return NotebookNode({**base, **changes})


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _name_cells(cells: list[NotebookNode]) -> None:
    """Stable ids: the grade id, else a digest of the text. The same source gives the same ids."""
    seen: dict[str, int] = {}
    for cell in cells:
        base = cell.metadata["nbgrader"]["grade_id"] if "nbgrader" in cell.metadata else _digest(cell.source)[:8]
        base = re.sub(r"[^a-zA-Z0-9_-]", "-", base)[:56]
        seen[base] = seen.get(base, 0) + 1
        cell["id"] = base if seen[base] == 1 else f"{base}-{seen[base]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=4) + "\n"


# ------------------------------------------------------------------------------------------------ what is made of it
def release_text(section: Section, notebook: NotebookNode) -> str:
    """The students' notebook as text, made by ``nbgrader generate_assignment`` in a temporary course folder."""
    from nbgrader.apps import NbGraderAPI
    from nbgrader.converters import GenerateAssignment
    from traitlets.config import Config

    from grading.settings import stock
    from grading.strip import StripSolutions

    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        source = course / "source" / section.assignment
        source.mkdir(parents=True)
        nbformat.write(notebook, source / f"{section.name}.ipynb")
        config = Config()
        config.CourseDirectory.root = folder
        config.CourseDirectory.db_url = f"sqlite:///{course / 'gradebook.db'}"
        config.GenerateAssignment.preprocessors = stock(
            GenerateAssignment, "preprocessors", ClearSolutions=StripSolutions
        )
        result = NbGraderAPI(config=config).generate_assignment(section.assignment)
        if not result["success"]:
            raise SourceError(f"nbgrader refuses {section.path.name}:\n{result.get('log') or result.get('error')}")
        released = nbformat.read(course / "release" / section.assignment / f"{section.name}.ipynb", as_version=4)
    released.metadata = NotebookNode(_NOTEBOOK_METADATA)
    return _text(released)


def expected_text(section: Section) -> str:
    """The reference's behaviour on the public cases, recorded on the CPU, exercises in the order of the notebook.

    A value that agrees with the one recorded before, within the fact's own tolerance, stays as it was: another processor's
    last digit, or a few KiB of Python objects in a cost, are no news.
    """
    import torch

    before = _recorded(section)
    reference = load_references(section.name)
    device = torch.device("cpu")
    recorded = {}
    for name in section.answer_cells():
        seen = reference.behaviour(name, public_seed(name), device)
        if seen.ended is not None and seen.ended.kind == "skipped":
            raise SourceError(f"{name} cannot be recorded on this machine: {seen.ended.message}")
        recorded[name] = to_plain(seen)
        for new, old in zip(recorded[name]["facts"], before.get(name, {}).get("facts", []), strict=False):
            if _same_fact(new, old):
                new["value"] = old["value"]
    data = {"assignment": section.assignment, "exercises": recorded}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _recorded(section: Section) -> dict[str, dict]:
    try:
        return json.loads((EXPECTED / f"{section.name}.json").read_text(encoding="utf-8"))["exercises"]
    except (OSError, ValueError, KeyError):
        return {}


def _same_fact(new: dict, old: dict) -> bool:
    if any(new.get(key) != old.get(key) for key in ("name", "case", "spec")):
        return False
    spec = Spec.from_plain(new.get("spec", {}))
    if spec.at_most and isinstance(old["value"], (int, float)):
        # A count has no tolerance, and neither has what is recorded of it.
        return abs(new["value"] - old["value"]) <= max(spec.allowance, spec.slack * new["value"])
    return agrees(old["value"], new["value"], spec)


def execute(section: Section, notebook: NotebookNode, timeout: int = 600) -> NotebookNode:
    """Run the reference edition top to bottom; outputs are kept.

    Raises
    ------
    SourceError
        If a cell fails or writes to stderr, check cells included: the reference must be right.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from traitlets.config import Config

    executed = nbformat.reads(_text(notebook), as_version=4)
    for cell in executed.cells:  # the reference passes its checks: an error here is a fault
        if "nbgrader" in cell.metadata and cell.metadata.nbgrader.grade:
            cell.metadata.pop("tags", None)
    folder = ROOT / "notebooks"
    with tempfile.TemporaryDirectory() as progress:
        before = {k: os.environ.get(k) for k in ("COURSE_PROGRESS", "COURSE_STATIC", "NBGRADER_EXECUTION")}
        os.environ["COURSE_PROGRESS"] = progress
        os.environ["COURSE_STATIC"] = "1"  # pictures, which a reader sees without running anything, instead of widgets
        os.environ.pop("NBGRADER_EXECUTION", None)
        try:
            config = Config()
            config.KernelManager.transport_encryption = "auto"  # otherwise the kernel warns on our stderr
            NotebookClient(
                executed,
                timeout=timeout,
                kernel_name="python3",
                resources={"metadata": {"path": str(folder)}},
                config=config,
            ).execute()
        except CellExecutionError as error:
            raise SourceError(f"{section.path.name} does not run:\n{error}") from None
        finally:
            for key, value in before.items():
                os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
    for cell, model in zip(executed.cells, notebook.cells, strict=True):
        cell.metadata = model.metadata  # without the times of this run
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise SourceError(f"{section.path.name}: a cell writes to stderr:\n{cell.source}\n---\n{output.text}")
    executed.metadata = NotebookNode({**_NOTEBOOK_METADATA, **_widgets(executed)})
    return executed


def _widgets(notebook: NotebookNode) -> dict[str, object]:
    return {"widgets": notebook.metadata["widgets"]} if "widgets" in notebook.metadata else {}


# ------------------------------------------------------------------------------------------------ files
def _same_cells(path: Path, notebook: NotebookNode) -> bool:
    """Is the file there, executed, and made of these cells?"""
    try:
        old = nbformat.read(path, as_version=4)
    except Exception:  # nbformat raises many kinds for a broken file, and every one means: build it again
        return False
    strip = lambda nb: [(c["id"], c.cell_type, c.source, c.metadata) for c in nb.cells]  # noqa: E731
    done = all(c.execution_count for c in old.cells if c.cell_type == "code" and c.source.strip())
    return done and strip(old) == strip(notebook)


def _stale(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") != text
    except OSError:
        return True


def build(section: Section, check: bool = False) -> list[Path]:
    """Bring a section's files up to date, and return those that were not. With ``check`` nothing is written."""
    notebook = source_notebook(section)
    changed = []
    expected = EXPECTED / f"{section.name}.json"
    released = ROOT / "notebooks" / section.assignment / f"{section.name}.ipynb"
    text = release_text(section, notebook)
    cells = released_text(section.assignment, nbformat.reads(text, as_version=4))
    # The expected behaviour first: the reference edition's own checks read it.
    files = ((expected, expected_text(section)), (released, text), (RELEASED / f"{section.name}.json", cells))
    for path, text in files:
        if _stale(path, text):
            changed.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_text(path, text)
    edition = section.path.with_suffix("") / f"{section.name}.ipynb"
    if not _same_cells(edition, notebook):
        changed.append(edition)
        if not check:
            edition.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(edition, _text(execute(section, notebook)))
    return changed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grading.build", description="Build notebooks from solutions/.")
    parser.add_argument("section", nargs="?", help="such as 01_tensor_costs; by default all")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if anything is out of date")
    options = parser.parse_args(argv)
    try:
        for section in sections(options.section):
            changed = build(section, options.check)
            state = "is out of date" if options.check else "written"
            for path in changed:
                print(f"{path.relative_to(ROOT)} {state}")
            if not changed:
                print(f"{section.assignment}: up to date")
            elif options.check:
                print("run `make build` and commit what it writes")
                return 1
    except SourceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
