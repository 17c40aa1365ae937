"""What a killed grader leaves behind is cleared away, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grading.sandbox.counted import Group, can_count, sweep_groups
from grading.scratch import PREFIX, Scratch, sweep

MAKES = """
import sys, time
{made}
print(made.path, flush=True)
time.sleep(600)
"""
FOLDER = "from grading.scratch import Scratch; made = Scratch(sys.argv[1])"
GROUP = "from grading.sandbox.counted import Group; made = Group(8)"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator:
    """Starts a process that makes something and lives on; its path, and how to kill it."""
    started = []

    def start(made: str) -> tuple[Path, subprocess.Popen]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKES.format(made=made), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return Path(process.stdout.readline().strip()), process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def swept(place: Path) -> None:
    sweep([str(place)], shutil.rmtree)


def test_the_folder_of_a_killed_grader_stays(tmp_path, owner):
    path, process = owner(FOLDER)
    (path / "notebook.ipynb").write_text("{}")
    process.kill()
    process.wait()
    swept(tmp_path)
    assert not path.exists()


def test_the_folder_of_a_living_grader_is_removed(tmp_path, owner):
    path, _ = owner(FOLDER)
    mine = Scratch(str(tmp_path))
    swept(tmp_path)
    assert path.is_dir() and mine.path.is_dir()
    mine.close()
    assert not mine.path.exists()


def test_something_that_is_no_graders_is_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "kept")
    (tmp_path / f"{PREFIX}file").write_text("x")
    (tmp_path / "grading-notes").mkdir()
    swept(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"kept", f"{PREFIX}link", f"{PREFIX}file", "grading-notes"}
    assert (tmp_path / "kept" / "file").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="gives a folder away: for a superuser")
def test_another_users_folder_is_removed(tmp_path):
    path = tmp_path / f"{PREFIX}theirs"
    path.mkdir()
    os.chown(path, 12345, 12345)
    swept(tmp_path)
    assert path.is_dir()


@pytest.mark.skipif(not can_count(), reason="no control groups can be made here")
def test_the_control_group_of_a_killed_keeper_stays_or_a_living_ones_goes(owner):
    path, process = owner(GROUP)
    mine = Group(8)
    try:
        sweep_groups()
        assert path.is_dir() and Path(mine.path).is_dir()
        process.kill()
        process.wait()
        sweep_groups()
        assert not path.exists()
    finally:
        mine.close()
