"""When an answer crashes, the card talks about the crash, not about facts that nobody reached."""

from __future__ import annotations

from course_utils.observe import message
from course_utils.observe.compare import Behaviour, Ended, Kind, compare
from course_utils.observe.plain import Fact, Spec

PART, ESSENTIAL = Spec(share=0.3, why="a part"), Spec(why="the heart")
EXPECTED = Behaviour(
    "thing", (Fact("part", 1, 0, PART), Fact("heart", 2, 0, ESSENTIAL), Fact("heart", 2, 1, ESSENTIAL))
)
CRASH = Ended("crashed", "ValueError", "negative stride", "3: return x", 1)


def test_a_part_that_failed_before_the_crash_does_not_hide_it():
    verdict = compare(EXPECTED, [("part", 0)], CRASH, 2.0)
    assert (verdict.kind, verdict.points) == (Kind.CRASHED, 0.0)
    assert "negative stride" in message.text(verdict) and "3: return x" in message.text(verdict)


def test_an_essential_fact_seen_to_fail_comes_before_the_crash():
    verdict = compare(EXPECTED, [("part", 1), ("heart", 9)], CRASH, 2.0)
    assert (verdict.kind, verdict.first.name) == (Kind.WRONG_VALUE, "heart")
    assert "the heart" in message.text(verdict)


def test_a_table_with_another_key_names_the_key():
    expected = Behaviour("thing", (Fact("nodes", {f"Operator{i}": 1 for i in range(9)}, 0, ESSENTIAL),))
    got = {f"Operator{i}": 1 for i in range(8)}
    first = compare(expected, [("nodes", got)], None, 2.0).first
    assert (first.expected, first.got) == ("Operator8: 1", "nothing for Operator8")
    first = compare(expected, [("nodes", {**got, "Operator8": 1, "More": 2})], None, 2.0).first
    assert (first.expected, first.got) == ("nothing for More", "More: 2")
