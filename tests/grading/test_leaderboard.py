"""The leaderboard, from notebooks as the judge leaves them."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_utils.observe.plain import SCORE_MIME
from grading.leaderboard import leaderboard, main, to_csv


def hand_in(folder, student, accuracy, points, grade_id="train_cifar_mini", grade=True):
    data = {"text/plain": "..."} | ({} if accuracy is None else {SCORE_MIME: {"exercise": "x", "accuracy": accuracy}})
    cell = new_code_cell(
        'check("train_cifar_mini")',
        metadata={"nbgrader": {"grade": grade, "grade_id": grade_id}},
        outputs=[
            new_output("display_data", data=data),
            new_output("execute_result", data={"text/plain": repr(points)}, execution_count=1),
        ],
    )
    place = folder / student / "05_resnet_mini_amp"
    place.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[cell]), place / "resnet_mini_amp.ipynb")


@pytest.fixture
def graded(tmp_path):
    hand_in(tmp_path, "ann", 0.612, 6.0)
    hand_in(tmp_path, "bob", 0.871, 10.0)
    hand_in(tmp_path, "cy", 0.612, 6.0)
    hand_in(tmp_path, "dan", 0.3, 2.0)
    hand_in(tmp_path, "eve", None, 0.0)  # never got so far
    hand_in(tmp_path, "forger", 0.99, 10.0, grade=False)  # an output in a cell of her own
    (tmp_path / "gil" / "05_resnet_mini_amp").mkdir(parents=True)
    (tmp_path / "gil" / "05_resnet_mini_amp" / "resnet_mini_amp.ipynb").write_text("{ broken")
    return tmp_path


def test_the_best_is_first_and_equal_ones_share_a_rank(graded, capsys):
    rows = leaderboard("train_cifar_mini", graded)
    assert [(r.rank, r.student) for r in rows] == [(1, "bob"), (2, "ann"), (2, "cy"), (4, "dan")]
    assert "gil" in capsys.readouterr().err, "a notebook that cannot be read is named"


def test_the_csv_can_leave_the_names_out(graded):
    rows = leaderboard("train_cifar_mini", graded)
    assert to_csv(rows).splitlines()[:2] == ["rank,student,accuracy,points", "1,bob,87.10,10"]
    assert "bob" not in to_csv(rows, anonymous=True)


def test_the_command_writes_a_file_and_says_what_is_missing(graded, tmp_path, capsys):
    target = tmp_path / "board.csv"
    assert main(["--folder", str(graded), "--to", str(target)]) == 0
    assert len(target.read_text().splitlines()) == 5
    assert main(["--folder", str(tmp_path / "nothing")]) == 1
    assert "make autograde" in capsys.readouterr().err
