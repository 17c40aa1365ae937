"""Clues: each recognises its own mistake, and keeps silent about everything else."""

from __future__ import annotations

import numpy as np
import pytest

from course_utils.observe import all_exercises, message
from course_utils.observe.clues import CLUES, find_clue
from course_utils.observe.compare import Kind, compare
from course_utils.observe.facts import encode
from course_utils.observe.registry import public_seed
from course_utils.observe.scores import true_labels
from grading.references import load_references
from grading.source import sections

RNG = np.random.default_rng(0)
IMAGES = RNG.random((4, 3, 5, 7)).astype("float32")
BYTES = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
ROUNDED = RNG.integers(1, 250, (5, 7)).astype(np.uint8)
ENDS = np.where(RNG.random((5, 7)) < 0.3, 255, 100).astype(np.uint8)


def first_zeroed(array):
    out = array.copy()
    out.flat[0] = 0
    return out


SIGNED = IMAGES.astype(float) - IMAGES.mean()
MISTAKES = {
    "no_relu_at_the_end": (np.maximum(SIGNED, 0), SIGNED),
    "relu_before_the_sum": (np.maximum(SIGNED, 0), np.maximum(SIGNED, 0) + 1),
    "channels_reversed": (IMAGES, IMAGES[:, ::-1]),
    "scaled_by_255": (IMAGES, IMAGES * 255),
    "rest_dropped": (IMAGES * 3, (IMAGES * 3) // 1),
    "axes_swapped": (IMAGES, IMAGES.transpose(0, 2, 1, 3)),
    "same_numbers_other_places": (IMAGES, IMAGES.reshape(4, 5, 7, 3)),
    "eight_bits_went_round": (BYTES.astype(np.int64), (BYTES.astype(np.int64) - 256)),
    "cut_off_at_zero": (ROUNDED, first_zeroed(ROUNDED)),
    "ends_swapped": (ENDS, np.where(ENDS == 255, 0, ENDS).astype(np.uint8)),
    "fraction_cut_off": (ROUNDED, ROUNDED - (RNG.random((5, 7)) < 0.5).astype(np.uint8)),
    "only_first_right": (IMAGES, np.concatenate([IMAGES[:1], IMAGES[1:] + 1])),
    "batch_items_mixed": (IMAGES, IMAGES.transpose(1, 0, 2, 3).reshape(IMAGES.shape)),
    "merged_in_other_order": (np.arange(12.0), np.arange(12.0).reshape(3, 4).T.reshape(12)),
    "split_in_other_order": (np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(4, 3).T),
    "second_pass_found_nothing": (np.array([0.2, 0.1, 0.3]), np.zeros(3)),
    "root_of_negative": (np.array([0.2, 0.1, 0.3]), np.full(3, np.nan)),
    "few_digits": (np.array([0.2, 0.1, 0.003]), np.array([0.200001, 0.1, 0.004])),
    "all_zero": (IMAGES, np.zeros_like(IMAGES)),
    "axes_reversed": (IMAGES, IMAGES[:, :, ::-1, ::-1]),
    "sign_flipped": (IMAGES, -IMAGES),
    "factor": (IMAGES, 3 * IMAGES),
    "off_by_one": (BYTES.astype(np.int64), BYTES.astype(np.int64) + 1),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_clue_misses_its_own_mistake(name):
    expected, got = MISTAKES[name]
    assert find_clue((name,), expected, got) is not None


@pytest.mark.parametrize("name", sorted(CLUES))
def test_a_clue_sees_a_mistake_in_unrelated_numbers(name):
    other = RNG.random(IMAGES.shape).astype("float32") + 3
    assert find_clue((name,), IMAGES, other) is None


@pytest.mark.parametrize("name", sorted(CLUES))
@pytest.mark.filterwarnings("error")
def test_a_clue_raises_or_warns_on_odd_arrays(name):
    odd = [
        np.array(np.nan),
        np.zeros((0, 3)),
        np.array([np.nan, np.inf]),
        np.array([1 + 2j, 3]),
        np.array([True, False]),
        np.array([2**63], np.uint64),
        np.ones((1,) * 12),
        IMAGES,
    ]
    for expected in odd:
        for got in odd:
            find_clue((name,), expected, got)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_clue_is_too_long_for_its_line(name):
    for text in find_clue((name,), *MISTAKES[name]):
        assert len(text) <= message.WIDTH - 10, text


def test_a_clue_has_no_mistake_here_that_it_must_find():
    assert set(MISTAKES) == set(CLUES)


@pytest.mark.parametrize("section", [s.name for s in sections()])
def test_the_first_message_of_an_exercise_does_not_fit_or_names_no_clue(section):
    """Every fact of every exercise: texts that fit their line, clues that exist, shares that add up to at most 1."""
    import torch

    references = load_references(section)
    for exercise in all_exercises(section):
        expected = references.behaviour(exercise.id, public_seed(exercise.id), torch.device("cpu"))
        shares = {f.name: f.spec.share for f in expected.facts if f.spec.share is not None}
        essential = [f for f in expected.facts if f.spec.share is None]
        total = sum(shares.values())
        assert total <= 1 + 1e-9, f"{exercise.id}: shares of {total}"
        assert essential or total > 1 - 1e-9, f"{exercise.id}: nothing right still earns {1 - total:.0%}"
        for position, fact in enumerate(expected.facts):
            for label, text in (("why", fact.spec.why), ("fix", fact.spec.fix)):
                assert text, f"{exercise.id}, {fact.name}: no {label}"
                assert len(text) <= message.WIDTH - 10, f"{exercise.id}, {fact.name}: {text}"
            assert set(fact.spec.clues) <= set(CLUES), f"{exercise.id}, {fact.name}"
            # Predictions are judged by labels, whatever the reference predicted.
            got = [(f.name, encode(true_labels(f.spec.labels)) if f.spec.labels else f.value) for f in expected.facts]
            got[position] = fact.name, {"object": "something else"}
            verdict = compare(expected, got, None, exercise.points)
            assert verdict.kind is not Kind.RIGHT, f"{exercise.id}, {fact.name}"
            assert fact.name in message.lines(verdict)[0], f"{exercise.id}, {fact.name}: the name is cut off"
