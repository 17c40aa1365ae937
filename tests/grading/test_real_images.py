"""The same section on real photographs: from an archive in the official layout to three graded submissions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from submissions import SECTION, submissions

from course_utils.__main__ import main as course_command
from grading.build import execute, source_notebook
from grading.source import ROOT, sections

SHARED = Path(os.environ.get("COURSE_SHARED_DATA", ROOT.parent / "shared" / "data"))
ARCHIVE = SHARED / "cifar-10-python-small.tar.gz"

pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"no real images at {ARCHIVE}")


@pytest.fixture(scope="module")
def real_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    assert course_command(["build-data", "--source", str(ARCHIVE), "--root", str(folder)]) == 0
    meta = json.loads((folder / "cifar_mini" / "meta.json").read_text())
    assert meta["source"] != "drawn"
    before = os.environ.get("COURSE_DATA")
    os.environ["COURSE_DATA"] = str(folder)
    yield folder
    os.environ.pop("COURSE_DATA") if before is None else os.environ.__setitem__("COURSE_DATA", before)


def test_section_1_runs_top_to_bottom_on_real_images(real_data):
    section = sections(SECTION)[0]
    executed = execute(section, source_notebook(section), timeout=120)
    printed = "".join(o.get("text", "") for c in executed.cells for o in c.get("outputs", []))
    assert "not photographs" not in printed


def test_three_submissions_get_their_marks_on_real_images(real_data, course):
    wanted = {
        s.name: s for s in submissions(course.released(SECTION)) if s.name in ("all_right", "half_done", "wasteful")
    }
    for submission in wanted.values():
        course.submit(f"real_{submission.name}", SECTION, submission.notebook)
    assert course.run("grading.release", "--gradebook-only").returncode == 0
    for name in wanted:
        run = course.run("nbgrader", "autograde", SECTION, f"--student=real_{name}", COURSE_DATA=str(real_data))
        assert run.returncode == 0, run.stdout[-4000:]
    scores = course.scores(SECTION)
    for name, submission in wanted.items():
        assert scores[f"real_{name}"] == pytest.approx(submission.deserved), name
