"""Comparison: what costs points and what does not, and that no forged fact can stop a judge."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from course_utils.observe import card, message
from course_utils.observe.compare import Behaviour, Ended, Kind, compare
from course_utils.observe.facts import describe, encode
from course_utils.observe.plain import Fact, Spec

CRASH = Ended("crashed", "ValueError", "no", "3: return x")


def behaviour(*facts: Fact) -> Behaviour:
    return Behaviour("doubled", facts)


def one(expected, got, **spec):
    """The verdict on an exercise with one fact."""
    fact = Fact("value", encode(expected), 0, Spec(**spec))
    return compare(behaviour(fact), [("value", json.loads(json.dumps(encode(got))))], None, 4.0)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (3, 3),
        (3, np.int64(3)),
        (True, np.bool_(True)),
        (0.5, np.float64(0.5)),
        (0.5, np.float32(0.5)),
        (NAN, NAN),
        (INF, INF),
        ([1, 2], (1, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, {2, 1}),
        (torch.Size([2, 3]), [2, 3]),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0])),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        (torch.tensor(2.5), torch.tensor(2.5)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (np.array([1, 2]), np.array([1, 2])),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_equal_values_cost_points(expected, got):
    assert one(expected, got).kind is Kind.RIGHT


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (3, 4),
        (3, 3.0),
        (3.0, 3),
        (1, True),
        (True, 1),
        (True, np.int64(1)),
        (3, "3"),
        (None, False),
        (0, None),
        ("", None),
        (2**60, 2**60 + 1),
        (float(2**53), 2**53 + 1),
        (INF, -INF),
        (INF, 1e308),
        (0.0, NAN),
        (NAN, 0.0),
        ([1, 2], [2, 1]),
        ([1, 2], [1]),
        ([], [[]]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([1], {"0": 1}),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53])),
        (torch.tensor([1.0]), torch.tensor([1])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.tensor([1.0]), np.array([1.0], "float32")),
        (torch.tensor([1.0]), torch.tensor(1.0)),
        (torch.tensor([1.0]), 1.0),
        (torch.zeros(0, 3), torch.zeros(3, 0)),
        (torch.tensor([True]), torch.tensor([1], dtype=torch.uint8)),
        (np.array([1], ">i4"), np.array([1], "<i4")),
        (1 + 2j, 1 - 2j),
        (b"a", b"b"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_different_values_are_taken_for_equal(expected, got):
    verdict = one(expected, got)
    assert (verdict.kind, verdict.points) == (Kind.WRONG_VALUE, 0.0)


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        (1.0, 1.0 + 9e-4, True),
        (1.0, 1.0 + 2e-3, False),
        (1000.0, 1000.5, False),
        (1, 1.0, True),
        (0.0, np.float64(5e-4), True),
        (INF, INF, True),
        (INF, 1.0, False),
        (1.0, NAN, False),
        (10**300, 10**300 + 1, False),
        (1.5, 10**400, False),
        ([1.0, 2.0], [1.0, 2.0005], True),
        ({"a": [1.0]}, {"a": [1.1]}, False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0005]), True),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), False),
        (torch.tensor([INF]), torch.tensor([1.0]), False),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1.0005j]), True),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_a_tolerance_is_ignored_or_swallows_too_much(expected, got, right):
    assert (one(expected, got, atol=1e-3).kind is Kind.RIGHT) is right


def test_a_relative_tolerance_is_relative_to_the_answer():
    assert one(1000.0, 1009.0, rtol=0.01).kind is Kind.RIGHT
    assert one(1000.0, 1011.0, rtol=0.01).kind is Kind.WRONG_VALUE


@pytest.mark.parametrize(
    ("got", "points"),
    [(0, 4.0), (100, 4.0), (160, 4.0), (161, 2.4), (INF, 2.4), (NAN, 2.4), (None, 2.4), ("1", 2.4), (True, 2.4)],
)
def test_a_cost_within_its_limit_costs_points_or_one_beyond_it_does_not(got, points):
    verdict = one(100, got, at_most=True, slack=0.5, allowance=10, share=0.4)
    assert verdict.points == points
    assert verdict.kind is (Kind.RIGHT if points == 4.0 else Kind.WASTEFUL)
    assert points == 4.0 or verdict.first.expected == "at most 160"


@pytest.mark.parametrize(
    ("expected", "got", "right"),
    [
        (3, np.int64(3), True),
        (0.5, np.float64(0.5), True),
        (True, np.bool_(True), True),
        (3, np.float64(3), False),
        (0.5, np.float32(0.5), False),
        (3, torch.tensor(3), False),
        (np.int64(3), 3, False),
        ([3], [np.int64(3)], False),
    ],
    ids=repr,
)
def test_a_number_of_numpys_costs_points_or_another_kind_of_number_does_not(expected, got, right):
    fact = Fact("type of the result", describe(expected), 0, Spec(form=True))
    kind = compare(behaviour(fact), [(fact.name, describe(got))], None, 4.0).kind
    assert kind is (Kind.RIGHT if right else Kind.WRONG_FORM)


def test_an_exception_of_another_class_is_taken_for_the_right_one():
    raises = {"raises": "ValueError", "message": "a"}
    for got, strict, loose in [
        ({"raises": "ValueError", "message": "b"}, Kind.RIGHT, Kind.RIGHT),
        ({"raises": "TypeError", "message": "a"}, Kind.WRONG_VALUE, Kind.RIGHT),
        ({"object": "None"}, Kind.WRONG_VALUE, Kind.WRONG_VALUE),
        (None, Kind.WRONG_VALUE, Kind.WRONG_VALUE),
    ]:
        for any_error, kind in ((False, strict), (True, loose)):
            fact = Fact("error", raises, 0, Spec(any_error=any_error))
            assert compare(behaviour(fact), [("error", got)], None, 1.0).kind is kind


@pytest.mark.parametrize("got", [[], [("value", "shares")], [("other", 1)]])
def test_a_secret_answer_is_told(got):
    secret = Fact("value", "copies, float64", 0, Spec(secret=True, share=1.0))
    for ended in (None, CRASH):
        verdict = compare(behaviour(secret), got, ended, 4.0)
        assert "float64" not in message.text(verdict) + card.html(verdict)


def test_the_message_names_another_place_than_the_first_difference():
    expected = torch.zeros(2, 3, 4)
    got = expected.clone()
    got[1, 0, 2], got[1, 2, 3] = 0.5, -2.0
    first = one(expected, got).first
    assert first.expected == "0 at [1, 0, 2]"
    assert first.got == "0.5; 2 of 24 differ; largest error 2"
    assert one([[1, 2], [3, 4]], [[1, 2], [3, 5]]).first.expected == "at [1] at [1] 4"
    assert one({"a": 1, "b": 2}, {"a": 1, "b": 3}).first.got == "b: 3"


def test_shape_and_dtype_are_compared_after_the_numbers():
    first = one(torch.zeros(2, 3), torch.ones(3, 2)).first
    assert (first.expected, first.got) == ("Tensor float32 (2, 3)", "Tensor float32 (3, 2)")


LEAVES = [
    *(None, True, False, 0, -3, 2**70, 0.25, -1e300, NAN, INF, "", "a\nb", "\ud800", b"x", 1 - 2j),
    *(np.float32(0.1), np.int64(2), np.bool_(True), torch.float16, torch.channels_last, torch.Size([2])),
    *(torch.arange(3), torch.tensor(NAN), torch.zeros(0, 2), torch.ones(2, 2).bfloat16(), torch.tensor([1j])),
    *(np.array([1, 2], ">i2"), np.array([True]), np.array(["text"]), torch.eye(2).to_sparse(), object, len),
]


def random_value(rng: random.Random, depth: int = 0):
    """Something that an answer may return, as deep as three."""
    kind = rng.randrange(3 + 3 * (depth < 3))
    if kind == 3:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 4:
        return tuple(random_value(rng, depth + 1) for _ in range(rng.randrange(4)))
    if kind == 5:
        return {rng.choice(["a", "b", 1, None, (1, 2)]): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(LEAVES)


@pytest.mark.parametrize("seed", range(4))
def test_a_value_differs_from_itself_or_equals_another(seed):
    rng = random.Random(seed)
    values = [random_value(rng) for _ in range(60)]
    for value in values:
        if '"data": null' in json.dumps(encode(value)):  # an array of texts: no reference may hold one
            continue
        for spec in ({}, {"atol": 1e-3}, {"rtol": 1e-3}):
            assert one(value, value, **spec).kind is Kind.RIGHT, value
        assert one([value, 1], [value, 2]).kind is Kind.WRONG_VALUE
        assert one({"a": value, "b": [value]}, {"a": value, "b": [value, value]}).kind is Kind.WRONG_VALUE


# ------------------------------------------------------------------------------------------------ points
ESSENTIAL = Fact("form", "Tensor", 0, Spec(form=True))
VALUE = Fact("value", 1, 0, Spec())
QUARTER = Fact("tidy", True, 0, Spec(share=0.25))
HALF = Fact("exact", 2, 0, Spec(share=0.5))
COST = Fact("bytes", 100, 0, Spec(at_most=True, share=0.4))
ALL = behaviour(ESSENTIAL, VALUE, QUARTER, HALF, COST)
RIGHT = {"form": "Tensor", "value": 1, "tidy": True, "exact": 2, "bytes": 100}


@pytest.mark.parametrize(
    ("changes", "kind", "points"),
    [
        ({}, Kind.RIGHT, 10.0),
        ({"tidy": False}, Kind.PARTLY, 7.5),
        ({"bytes": 101}, Kind.WASTEFUL, 6.0),
        ({"bytes": 101, "tidy": False}, Kind.PARTLY, 3.5),
        ({"exact": 3, "tidy": False}, Kind.PARTLY, 2.5),
        ({"exact": 3, "tidy": False, "bytes": 101}, Kind.WRONG_VALUE, 0.0),
        ({"value": 2}, Kind.WRONG_VALUE, 0.0),
        ({"form": "ndarray"}, Kind.WRONG_FORM, 0.0),
        ({"form": "ndarray", "value": 2, "bytes": 0}, Kind.WRONG_FORM, 0.0),
        ({"value": 2, "tidy": False}, Kind.WRONG_VALUE, 0.0),
    ],
)
def test_the_points_do_not_follow_the_rule(changes, kind, points):
    verdict = compare(ALL, list({**RIGHT, **changes}.items()), None, 10.0)
    assert (verdict.kind, verdict.points) == (kind, points)
    assert verdict.full is (kind is Kind.RIGHT)


def test_full_marks_are_lost_to_rounding():
    thirds = behaviour(*[Fact(f"row {i}", True, 0, Spec(share=1 / 12)) for i in range(12)])
    assert compare(thirds, [(f"row {i}", True) for i in range(12)], None, 3.0).points == 3.0
    assert compare(thirds, [(f"row {i}", i > 0) for i in range(12)], None, 3.0).points == 2.75
    assert compare(thirds, [(f"row {i}", False) for i in range(12)], None, 3.0).kind is Kind.WRONG_VALUE


def test_a_fact_that_fails_in_several_cases_costs_more_than_once():
    facts = [Fact("tidy", True, case, Spec(share=0.25, why=f"why {case}")) for case in range(3)]
    verdict = compare(behaviour(*facts), [("tidy", True), ("tidy", False), ("tidy", False)], None, 4.0)
    assert verdict.points == 3.0
    (finding,) = verdict.findings
    assert (finding.cases, finding.why) == ((1, 2), "why 1")


def test_the_message_is_about_a_lesser_fault_than_the_one_that_decides():
    got = {**RIGHT, "tidy": False, "value": 2}
    facts = behaviour(QUARTER, VALUE)
    assert compare(facts, [("tidy", False), ("value", 2)], None, 10.0).first.name == "value"
    assert compare(ALL, list({**got, "value": 1, "bytes": 500}.items()), None, 10.0).first.name == "tidy"


@pytest.mark.parametrize("facts_seen", range(5))
def test_an_answer_that_does_not_get_through_earns_points(facts_seen):
    verdict = compare(ALL, list(RIGHT.items())[:facts_seen], CRASH, 10.0)
    assert (verdict.kind, verdict.points) == (Kind.CRASHED, 0.0)


def test_an_answer_that_crashes_after_its_last_fact_earns_points():
    assert compare(ALL, list(RIGHT.items()), CRASH, 10.0).points == 0.0


def test_a_crash_hides_the_wrong_fact_that_led_to_it():
    verdict = compare(ALL, [("form", "ndarray")], CRASH, 10.0)
    assert (verdict.kind, verdict.first.name) == (Kind.WRONG_FORM, "form")


def test_not_started_is_told_only_while_nothing_was_observed():
    stub = Ended("not started", "NotImplementedError")
    assert compare(ALL, [], stub, 10.0).kind is Kind.NOT_STARTED
    assert compare(ALL, [("form", "Tensor")], stub, 10.0).kind is Kind.CRASHED


@pytest.mark.parametrize(
    "got",
    [
        [],
        list(RIGHT.items())[1:],
        [*RIGHT.items(), ("value", 1)],
        [("value", 1), ("form", "Tensor"), *list(RIGHT.items())[2:]],
        [(name + " ", value) for name, value in RIGHT.items()],
    ],
    ids=["nothing", "first missing", "one more", "other order", "other names"],
)
def test_facts_that_left_the_expected_path_earn_points(got):
    verdict = compare(ALL, got, None, 10.0)
    assert verdict.points == 0.0
    assert message.lines(verdict)


# ------------------------------------------------------------------------------------------------ forged data
def odd_data(rng: random.Random, depth: int = 0):
    """Plain data as it may arrive in a forged report: like a fact's, and not quite."""
    leaves = [
        None,
        True,
        0,
        -1,
        10**4000,
        0.5,
        NAN,
        INF,
        "",
        "\ud800",
        "\x1b[31m<script>",
        "x" * 2000,
        "float32",
        "<f4",
        "AAAAAA==",
    ]
    kind = rng.random()
    if depth > 3 or kind < 0.4:
        return rng.choice(leaves)
    if kind < 0.6:
        return [odd_data(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ["array", "shape", "stored", "data", "kind", "raises", "message", "object", "numpy", "value", "complex", "a"]
    plain = {k: odd_data(rng, depth + 1) for k in rng.sample(keys, rng.randrange(5))}
    if kind < 0.8:
        plain = {**encode(torch.ones(2, 3)), **plain}
    return plain


REFERENCES = [
    *(1, 0.5, True, None, "text", [1, [2]], {"a": 1}, 2**80, NAN),
    *(torch.ones(2, 3), torch.ones(0, 3), np.ones(3, bool), np.int64(3), torch.ones(2) * 1j, {"x": torch.ones(2)}),
]
SPECS = [
    Spec(),
    Spec(atol=1e-3, rtol=1e-3),
    Spec(at_most=True, share=0.4),
    Spec(any_error=True),
    Spec(clues=("channels_reversed", "scaled_by_255", "axes_swapped", "same_numbers_other_places", "only_first_right")),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(8))
def test_forged_facts_raise_in_the_judge(seed):
    rng = random.Random(seed)
    for _ in range(150):
        fact = Fact("value", encode(rng.choice(REFERENCES)), 0, rng.choice(SPECS))
        got = json.loads(json.dumps([odd_data(rng) for _ in range(rng.randrange(3))]))
        ended = Ended.from_plain({k: odd_data(rng) for k in ("kind", "error", "message", "line", "case")})
        verdict = compare(behaviour(fact), [("value", g) for g in got], rng.choice([None, ended]), 4.0)
        assert 0.0 <= verdict.points <= 4.0
        for hidden in (False, True):
            assert all(len(line) <= message.WIDTH for line in message.lines(verdict, hidden))
            page = card.html(verdict, hidden) + message.text(verdict, hidden)
            page.encode()
            assert "<script" not in page.split("<div", 1)[1].split("</div>")[0]


@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_write_a_warning_to_stderr():
    big = torch.tensor([3e38, -3e38, NAN])
    for spec in ({}, {"atol": 1e-3}, {"clues": ("eight_bits_went_round", "scaled_by_255", "off_by_one")}):
        assert one(big, -big, **spec).points == 0.0


def test_a_reference_too_large_to_record_passes_for_one():
    large = torch.ones(60_000)
    with pytest.raises(ValueError, match="reference"):
        one(large, large)


def test_the_message_is_about_what_was_seen_to_fail_not_about_what_was_not_reached():
    kind = Fact("kind", "a tensor", 0, Spec(form=True))
    value = Fact("value", 2, 0, Spec(why="half of it", fix="double it"))
    expected = behaviour(kind, value, Fact("kind", "a tensor", 1, Spec(form=True)), Fact("value", 4, 1, value.spec))
    verdict = compare(expected, [("kind", "a tensor"), ("value", 1)], CRASH, 4.0)
    assert (verdict.kind, verdict.points) == (Kind.WRONG_VALUE, 0.0)
    assert verdict.first.name == "value" and "half of it" in message.text(verdict)
