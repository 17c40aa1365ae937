"""The commands that the Makefile offers, lists and the README names."""

import re
import subprocess
from pathlib import Path

import pytest

from course_utils.bootstrap import GB, SIZES
from tests.conftest import KERNEL, QUICK, rank
from tests.setup.clean import env

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
GROUPS = {
    "Student": ["lab", "build-data", "show-data"],
    "Instructor": ["release", "collect", "autograde", "similarity", "feedback", "grades", "student-bundle"],
    "Maintainer": [
        "build",
        "check-build",
        "test",
        "test-quick",
        "test-cuda",
        "lint",
        "format",
        "lock",
        "book",
        "matrix",
        "bench",
        "clean",
    ],
}


def make(*arguments: str, folder: Path = ROOT, **settings: str) -> str:
    run = subprocess.run(["make", *arguments], cwd=folder, env=env(**settings), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_help_is_what_make_alone_shows_and_lists_each_group_with_its_commands() -> None:
    text = make()
    assert text == make("help")
    for group, commands in GROUPS.items():
        part = re.split(r"\n\n", text.split(f"\n{group}", 1)[1])[0]
        assert re.findall(r"^  make (\S+) ", part, re.MULTILINE) == commands


def test_every_target_is_listed_by_help_but_the_two_inner_steps() -> None:
    listed = set(re.findall(r"^  make (\S+) ", make("help"), re.MULTILINE))
    assert TARGETS - listed == {"ready", "data"}


def test_help_gives_the_sizes_that_the_set_up_reckons_with_and_the_way_to_a_smaller_one() -> None:
    text = " ".join(make("help").split())
    for size in SIZES.values():
        for figure in (size.download, size.installed):
            assert f"{figure / GB:.1f}" in text
    assert "make lab TORCH=cpu TORCH_INDEX=ADDRESS" in text


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "grading/README.md", "data/README.md"])
def test_every_command_that_a_document_names_exists(document: str) -> None:
    if not (ROOT / document).exists():
        pytest.skip(f"{document} is not written yet")
    named = set(re.findall(r"`make ([a-z][a-z-]*)", (ROOT / document).read_text()))
    assert named - TARGETS == set()


def test_the_options_of_build_data_are_passed_on_with_spaces_and_only_when_typed() -> None:
    typed = make("-n", "build-data", "SOURCE=/my photos/a.npz", "TRAIN=50", "TEST=20", "SEED=3", "NOISE=0.1")
    assert '--source "/my photos/a.npz" --train "50" --test "20" --seed "3" --noise "0.1"' in typed
    inherited = make("-n", "build-data", SEED="4", TEST="yes")
    assert "--seed" not in inherited
    assert "--test" not in inherited


def test_jupyterlab_gets_the_arguments_that_were_typed() -> None:
    assert "-m jupyterlab notebooks --LabApp.news_url=None --no-browser --port 8899" in make(
        "-n", "lab", "ARGS=--no-browser --port 8899"
    )


def test_grading_takes_another_section_or_other_options_than_those_that_were_typed() -> None:
    grade = make("-n", "autograde", "SECTION=01_tensor_costs", "ARGS=--jobs 3 --students ann bob")
    assert '-m grading.autograde --assignment "01_tensor_costs" --jobs 3 --students ann bob' in grade


def test_feedback_or_release_take_another_section() -> None:
    assert '-m grading.write_feedback "01_tensor_costs"' in make("-n", "feedback", "SECTION=01_tensor_costs")
    release = make("-n", "release", "SECTION=01_tensor_costs")
    assert "-m grading.release 01_tensor_costs" in release


def test_marks_are_exported_for_another_platform_than_the_one_that_was_typed() -> None:
    typed = make("-n", "grades", "FORMAT=canvas", "FROM=my grades.csv", "SECTION=01_tensor_costs", FORMAT="moodle")
    assert '-m grading.grades --format "canvas" --from "my grades.csv" --assignment "01_tensor_costs"' in typed
    assert "--f" not in make("-n", "grades", FORMAT="moodle", FROM="x")
    assert '-m grading.similarity --assignment "01_tensor_costs"' in make("-n", "similarity", "SECTION=01_tensor_costs")


def test_collecting_takes_another_folder_than_the_one_that_was_typed() -> None:
    assert '-m grading.collect --dry-run "my class.zip"' in make("-n", "collect", "FROM=my class.zip", "ARGS=--dry-run")
    assert '"handed-in"' in make("-n", "collect", FROM="/elsewhere"), "what the shell calls FROM is not meant"


def test_clean_keeps_everything_that_somebody_made(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    kept = [
        "notebooks/01_a/a.ipynb",
        "notebooks/01_a/.ipynb_checkpoints/a-checkpoint.ipynb",
        "data/cifar_mini/train.bin",
        "grading/submitted/me/01_a/a.ipynb",
        "grading/gradebook.db",
        ".progress/me.json",
        ".venv/lib/__pycache__/x.pyc",
    ]
    for name in [*kept, "course_utils/__pycache__/x.pyc", ".pytest_cache/x", ".ruff_cache/x"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    make("clean", folder=tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*kept, "Makefile"}


def test_quick_layers_come_first_and_kernel_layers_can_be_left_out() -> None:
    assert sorted([*KERNEL, "new", *QUICK], key=rank) == [*QUICK, "new", *KERNEL]
    assert '-m pytest -m "not kernel"' in make("-n", "test-quick")
