"""No submission gains a mark by other means than an answer, harms another, or goes unreported."""

from __future__ import annotations

import pytest
from catalogue import ATTACKS, GOOD, WALLS, Attack
from mini_course import POINTS


@pytest.fixture(params=ATTACKS, ids=lambda attack: attack.student)
def attack(request) -> Attack:
    if request.param.boxed and not WALLS:
        pytest.skip("this machine offers no sandbox: files, network and processes are open to student code")
    return request.param


def test_an_attack_gains_marks_or_costs_what_a_right_answer_earned(attack, graded):
    nothing = dict.fromkeys(POINTS, 0.0)  # as the gradebook counts where there is no mark
    assert graded.scores[attack.student] == pytest.approx(attack.earns or nothing)


def test_an_attack_leaves_the_submission_ungraded(attack, graded):
    row = graded.told[attack.student]
    if attack.earns:
        assert row["state"] == "graded", row["why"]
    else:
        assert (row["state"], row["points"]) == ("not gradable", "")


@pytest.mark.parametrize("attack", [a for a in ATTACKS if not a.unseen], ids=lambda a: a.student, indirect=True)
def test_an_instructor_does_not_hear_of_an_attack(attack, graded):
    row = graded.told[attack.student]
    assert row["to look at"] or row["notes"]


def test_attacks_cost_a_good_student_marks(graded):
    assert {name: graded.scores[name] for name in GOOD} == dict.fromkeys(GOOD, pytest.approx(POINTS))


def test_a_good_student_is_reported(graded):
    assert [graded.told[name]["to look at"] + graded.told[name]["notes"] for name in GOOD] == ["", ""]


@pytest.mark.skipif(not WALLS, reason="this machine offers no sandbox")
def test_an_attack_changes_a_file_of_the_instructors(graded):
    assert graded.changed == []


def test_a_process_of_an_attack_outlives_the_run(graded):
    assert graded.left_running == []


def test_the_summary_sends_codes_to_the_terminal(graded):
    assert [c for c in graded.said if not c.isprintable() and c not in "\n\r\t"] == []


def test_there_are_fewer_attacks_than_promised():
    assert len({a.student for a in ATTACKS}) == len(ATTACKS) >= 40
