"""One list of versions: pyproject.toml, the lock and the conda environment must not drift apart."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from course_utils.bootstrap import fits
from tests.setup.clean import env

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [text for listed in PROJECT["optional-dependencies"].values() for text in listed]
DIRECT = [Requirement(text) for text in PROJECT["dependencies"] + EXTRAS]
LOCK_LINES = [
    line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.lstrip().startswith("#")
]
LOCK = [Requirement(line) for line in LOCK_LINES]
PYTHONS = ("3.11", "3.12", "3.13")


def environment(platform: str, python: str = "3.12") -> dict[str, str]:
    """The marker environment of a machine ("linux" or "darwin")."""
    return {
        "sys_platform": platform,
        "platform_system": platform.capitalize(),
        "platform_machine": "x86_64" if platform == "linux" else "arm64",
        "python_version": python,
        "python_full_version": python + ".6",
        "implementation_name": "cpython",
        "os_name": "posix",
    }


def applies(requirement: Requirement, platform: str, python: str = "3.12") -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment(platform, python))


@pytest.mark.parametrize("direct", DIRECT, ids=lambda requirement: requirement.name)
def test_a_direct_dependency_has_one_exact_version_and_the_lock_has_the_same(direct: Requirement) -> None:
    assert re.fullmatch(r"==[\d.]+", str(direct.specifier)), f"{direct} is not pinned"
    locked = [requirement for requirement in LOCK if requirement.name == direct.name]
    assert [str(requirement.specifier) for requirement in locked] == [str(direct.specifier)], "run `make lock`"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_gives_no_package_two_versions_on_one_machine(platform: str, python: str) -> None:
    names = [requirement.name for requirement in LOCK if applies(requirement, platform, python)]
    assert sorted(names) == sorted(set(names))


def test_every_line_of_the_lock_is_one_exact_version() -> None:
    loose = [line for line, requirement in zip(LOCK_LINES, LOCK, strict=True) if "==" not in str(requirement.specifier)]
    assert loose == []


def test_cuda_packages_are_locked_for_linux_and_for_no_other_system() -> None:
    cuda = [requirement for requirement in LOCK if re.match(r"(nvidia|cuda)-|triton$", requirement.name)]
    assert len(cuda) > 10, "the Linux builds of torch carry CUDA"
    assert [requirement.name for requirement in cuda if applies(requirement, "darwin")] == []
    assert [requirement.name for requirement in cuda if not applies(requirement, "linux")] == []


def test_the_lock_names_its_command_and_no_folder_of_the_machine_that_made_it() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert "make lock" in text.splitlines()[1]
    assert not re.search(r"(file:|https?:|/home/|/tmp/|/root/|--index-url|--find-links)", text)


def test_conda_takes_its_packages_from_the_lock_and_a_python_that_the_project_allows() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    plain = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    (by_pip,) = [entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict)]
    assert by_pip == ["-r requirements.txt", "-e ."], "a version in environment.yml would be a second list"
    assert [entry.partition("=")[0] for entry in plain] == ["python", "pip"]
    python = plain[0].partition("=")[2]
    assert python in PYTHONS
    assert python in SpecifierSet(PROJECT["requires-python"])


def test_the_set_up_accepts_the_pythons_of_the_project() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    for minor in range(8, 20):
        assert fits(f"3.{minor}") == (f"3.{minor}" in allowed), f"3.{minor}"


def test_conda_tells_the_makefile_to_make_no_second_environment() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    command = ["make", "-n", "lint", *(f"{key}={value}" for key, value in conda["variables"].items())]
    dry_run = subprocess.run(command, cwd=ROOT, env=env(), capture_output=True, text=True, check=True).stdout
    assert "python -m ruff" in dry_run
    assert "bootstrap.py" not in dry_run


def test_the_packages_of_this_environment_fit_together() -> None:
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("name", ["torch", "torchvision", "numpy", "opencv-python-headless", "pillow", "nbgrader"])
def test_this_environment_has_the_locked_version(name: str) -> None:
    (locked,) = [requirement for requirement in LOCK if requirement.name == name]
    assert version(name).partition("+")[0] in locked.specifier
