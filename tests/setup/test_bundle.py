"""What students get: whole, the same every time, and with nothing in it that they must not see."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement

from course_utils.bootstrap import Setup
from course_utils.data import DataError, load_cifar_mini
from course_utils.data.reading import load_unlabelled
from grading import bundle
from grading.source import ROOT, sections
from tests.setup.clean import env

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return bundle.contents()


@pytest.fixture(scope="module")
def zipped(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "bundle.zip"
    bundle.write_zip(files, path)
    return path


@pytest.fixture(scope="module")
def unpacked(zipped: Path) -> Path:
    folder = zipped.parent / "a student's folder"
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(folder)
    return folder / bundle.TOP


def paths(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_bundle_lacks_something_or_holds_what_is_the_instructors(unpacked):
    there = paths(unpacked)
    tops = {name.split("/")[0] for name in there}
    plain = {"LICENSE", "Makefile", "README.md", "environment.yml", "pyproject.toml", "requirements.txt"}
    assert tops == {*plain, "course_utils", "data", "notebooks"}
    for section in sections():
        assert f"notebooks/{section.assignment}/{section.name}.ipynb" in there
    code = {p.relative_to(ROOT).as_posix() for p in (ROOT / "course_utils").rglob("*.py")}
    assert code <= set(there)
    forbidden = re.compile(
        r"(^|/)(grading|solutions|\.progress|\.git|\.venv|__pycache__|\.ipynb_checkpoints)(/|$)|\.pyc$"
    )
    assert [name for name in there if forbidden.search(name)] == []
    assert not any(name.endswith("test_labels.bin") for name in there)


# The trainer of section 5 keeps random states, and so does the exercise Checkpoint. Its other 20 lines are nowhere.
TOOLS = {
    '"cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],',
    "np.random.set_state((name, keys.numpy(), *rest))",
}


def test_a_reference_answer_ships_to_students(unpacked):
    """Longer lines of the answers are looked for in every file, but for lines that the learner is shown: broken code
    that is to be mended, and demonstrations."""
    answers, shown = set(), set()
    for section in sections():
        for cell in section.answer_cells().values():
            region = re.search(r"### BEGIN SOLUTION\n(.*)### END SOLUTION", cell.source, re.DOTALL)
            answers |= {line.strip() for line in region.group(1).splitlines() if len(line.strip()) > 40}
        for cell in section.read().cells:
            shown |= {
                line.strip()
                for line in re.sub(r"### BEGIN.*### END SOLUTION", "", cell.source, flags=re.DOTALL).splitlines()
            }
    answers -= shown | TOOLS
    assert len(answers) > 300
    for name in paths(unpacked):
        if not name.endswith(".bin"):
            text = (unpacked / name).read_text(encoding="utf-8")
            if name.endswith(".ipynb"):
                text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
                assert "BEGIN SOLUTION" not in text, name
            assert {line.strip() for line in text.splitlines()} & answers == set(), name


def test_the_notebooks_are_those_of_somebody_who_worked_in_them(unpacked):
    for section in sections():
        path = unpacked / "notebooks" / section.assignment / f"{section.name}.ipynb"
        assert path.read_bytes() == (ROOT / path.relative_to(unpacked)).read_bytes(), "run `make build`"
        for cell in nbformat.read(path, as_version=4).cells:
            assert not cell.get("outputs") and cell.get("execution_count") is None


def test_two_bundles_of_the_same_sources_differ(files, zipped, tmp_path):
    again = tmp_path / "again.zip"
    bundle.write_zip(dict(reversed(files.items())), again)
    assert again.read_bytes() == zipped.read_bytes()
    with zipfile.ZipFile(zipped) as archive:
        entries = archive.infolist()
    assert [e.filename for e in entries] == sorted(e.filename for e in entries)
    assert {e.date_time for e in entries} == {(1980, 1, 1, 0, 0, 0)}


def test_the_images_of_the_bundle_cannot_be_used_or_tell_the_test_labels(unpacked, monkeypatch):
    root = unpacked / "data"
    train = load_cifar_mini("train", root, verify=True)
    assert len(train) and len(load_unlabelled("test", root))
    assert train.meta["seed"] is None and "test_labels.bin" not in train.meta["files"]
    with pytest.raises(DataError, match="held back"):
        load_cifar_mini("test", root)
    # The check of the capstone judges on a part of the training images.
    monkeypatch.setenv("COURSE_DATA", str(root))
    from course_utils.observe.scores import true_labels

    assert len(true_labels("train[800:]")) == len(train) - 800


def test_a_bundle_without_images_is_refused_or_holds_some(monkeypatch, files):
    nothing = nbformat.writes(nbformat.v4.new_notebook())
    monkeypatch.setattr(bundle, "release_text", lambda section, notebook: nothing)
    monkeypatch.setattr(bundle, "source_notebook", lambda section: None)
    names = set(bundle.contents(data=False))
    assert names == {name for name in files if not name.startswith("data/cifar_mini/")}
    monkeypatch.setenv("COURSE_DATA", "/nowhere")
    with pytest.raises(DataError, match="build-data"):
        bundle.contents()


def test_the_project_of_the_bundle_installs_other_packages_than_the_course(unpacked):
    student = tomllib.loads((unpacked / "pyproject.toml").read_text())
    assert student["project"]["dependencies"] == PROJECT["project"]["dependencies"]
    assert student["build-system"] == PROJECT["build-system"]
    assert "optional-dependencies" not in student["project"]
    assert student["tool"]["setuptools"]["packages"]["find"]["include"] == ["course_utils*"]
    assert (unpacked / "requirements.txt").read_bytes() == (ROOT / "requirements.txt").read_bytes()
    assert all(Requirement(text) for text in student["project"]["dependencies"])


def test_a_notebook_that_a_student_lost_or_wrote_in_is_not_brought_back_or_overwritten(unpacked, tmp_path):
    folder = tmp_path / "course"
    shutil.copytree(unpacked, folder)
    lost = folder / "notebooks/02_graph_debugging/graph_debugging.ipynb"
    mine = folder / "notebooks/01_tensor_costs/tensor_costs.ipynb"
    before = lost.read_bytes()
    shutil.rmtree(lost.parent)
    mine.write_text("mine")
    assert Setup(folder, env()).notebooks() == ["notebooks/02_graph_debugging/graph_debugging.ipynb"]
    assert lost.read_bytes() == before and mine.read_text() == "mine"


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments]
    return subprocess.run(command, cwd=folder, env=env(), capture_output=True, text=True, timeout=120)


def test_the_bundles_make_does_not_list_its_commands_or_runs_others(unpacked):
    listed = re.findall(r"^  make (\S+) ", make(unpacked).stdout, re.MULTILINE)
    assert listed == ["help", "lab", "ready", "hand-in", "progress", "build-data", "show-data"]
    named = set(re.findall(r"`make ([a-z-]+)", (unpacked / "README.md").read_text()))
    assert named <= set(listed)
    typed = make(unpacked, "-n", "hand-in", "SECTION=01_tensor_costs", "TO=/my drive", "STUDENT=ada").stdout
    assert 'hand-in "01_tensor_costs" --to "/my drive" --student "ada"' in typed


def test_the_bundles_code_needs_what_is_not_in_it(unpacked):
    code = "import course_utils, sys; from course_utils.observe import all_exercises; print(course_utils.__file__, len(all_exercises()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=unpacked, env=env(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(unpacked)) and int(run.stdout.split()[-1]) == sum(
        len(section.answer_cells()) for section in sections()
    )


def test_a_failed_packing_leaves_half_a_zip(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bundle, "contents", lambda data: {"a": b"a"})
    target = tmp_path / "x.zip"
    target.write_bytes(b"the one before")

    def full(path: Path, data: bytes) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(bundle, "atomic_write_bytes", full)
    assert bundle.main(["--to", str(target)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert target.read_bytes() == b"the one before"


def test_the_zip_of_the_bundle_is_not_one_that_everybody_can_open(zipped):
    with zipfile.ZipFile(io.BytesIO(zipped.read_bytes())) as archive:
        assert archive.testzip() is None
        assert all(e.compress_type == zipfile.ZIP_DEFLATED and e.create_system == 3 for e in archive.infolist())
        assert json.loads(archive.read(f"{bundle.TOP}/data/cifar_mini/meta.json"))["counts"]["train"] > 0
