"""An exercise that this machine cannot show is skipped, says why, and costs nothing."""

from __future__ import annotations

import json

import pytest
import torch

from course_utils.observe import Skipped, message
from course_utils.observe.compare import Ended, Kind, compare
from course_utils.observe.expected import from_plain, to_plain
from course_utils.observe.registry import Exercise
from course_utils.observe.run import observe

CPU = torch.device("cpu")


def observer(answer, case, see):
    """Skipped unless the answer says otherwise."""
    if answer == "skip":
        raise Skipped("this needs two disks")
    see("value", answer)


EXERCISE = Exercise("thing", "nowhere", 2.0, 1, 1, 1, (), observer, "")


def through_json(behaviour):
    return from_plain(json.loads(json.dumps(to_plain(behaviour))))


def test_a_skipped_reference_costs_nobody_a_point_and_says_why():
    expected = through_json(observe(EXERCISE, "skip", 1, CPU).behaviour("thing"))
    seen = observe(EXERCISE, 3, 1, CPU)
    verdict = compare(expected, seen.values(), seen.ended, 2.0)
    assert (verdict.kind, verdict.points, verdict.full) == (Kind.SKIPPED, 2.0, True)
    assert "this needs two disks" in message.text(verdict)


def test_an_answer_cannot_skip_what_the_reference_has_shown():
    expected = through_json(observe(EXERCISE, 3, 1, CPU).behaviour("thing"))
    verdict = compare(expected, [], Ended("skipped", "Skipped", "please"), 2.0)
    assert (verdict.kind, verdict.points) == (Kind.CRASHED, 0.0)


def test_a_reference_that_fails_is_no_reference():
    behaviour = observe(EXERCISE, torch.nn.Linear, 1, CPU).behaviour("thing")
    assert behaviour.ended is None
    broken = Exercise("thing", "nowhere", 2.0, 1, 1, 1, (), lambda a, c, s: a(), "")
    with pytest.raises(ValueError, match="the reference of thing"):
        to_plain(observe(broken, 3, 1, CPU).behaviour("thing"))
