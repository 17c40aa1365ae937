"""What the difference between two values tells about the mistake.

A clue is a function of the expected and the received array. It returns ``(why, fix)`` when it recognises a
mistake and None otherwise. It knows properties of mismatches (two axes swapped, a factor of 255), never an answer.
Observers name the clues that make sense for a fact: ``see("values", batch, clues=["channels_reversed"])``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

__all__ = ["CLUES", "find_clue"]

Clue = Callable[[np.ndarray, np.ndarray], tuple[str, str] | None]
CLUES: dict[str, Clue] = {}


def clue(function: Clue) -> Clue:
    CLUES[function.__name__] = function
    return function


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True))


def find_clue(names: tuple[str, ...], expected: np.ndarray, got: np.ndarray) -> tuple[str, str] | None:
    """The first of the named clues that fits. A clue that cannot be computed for these arrays does not fit."""
    for name in names:
        try:
            found = CLUES[name](expected, got)
        except (ValueError, IndexError, TypeError, FloatingPointError):
            continue
        if found:
            return found
    return None


@clue
def channels_reversed(expected, got):
    """The three channels come in the opposite order, on whichever axis has length 3."""
    for axis, size in enumerate(expected.shape):
        if size == 3 and _same(np.flip(got, axis), expected):
            return (
                "The channels are in the other order: BGR where RGB is asked.",
                "Reverse the channel axis; mind that torch has no negative strides.",
            )
    return None


@clue
def scaled_by_255(expected, got):
    """Right up to the factor 255."""
    if _same(got.astype(float), expected.astype(float) * 255):
        return "The values still run from 0 to 255.", "Divide by 255 after the change to a floating-point dtype."
    if _same(got.astype(float) * 255, expected.astype(float)):
        return "The values were divided by 255 once too often.", "Scale once."
    return None


@clue
def axes_swapped(expected, got):
    """The right numbers with axes transposed."""
    if got.ndim == expected.ndim and 2 <= got.ndim <= 5 and sorted(got.shape) == sorted(expected.shape):
        for order in itertools.permutations(range(got.ndim)):
            if order != tuple(range(got.ndim)) and _same(got.transpose(order), expected):
                return (
                    f"The axes are in another order: transpose(*{order}) would make it right.",
                    "Say for every axis of the input where it ends up.",
                )
    return None


@clue
def same_numbers_other_places(expected, got):
    """All numbers are there, in other places: a reshape where a permute was meant."""
    if expected.size == got.size > 1 and _same(np.sort(got, axis=None), np.sort(expected, axis=None)):
        return (
            "All the numbers are there, in other places: a reshape cannot move an axis.",
            "Use permute or transpose to move axes, and only then reshape.",
        )
    return None


@clue
def wrapped_at_256(expected, got):
    """uint8 arithmetic went round."""
    a, b = expected.astype(np.int64), got.astype(np.int64)
    wrong = a != b
    if wrong.any() and bool(np.all((a - b)[wrong] % 256 == 0) or np.all((a + b)[wrong] == 256)):
        return (
            "The wrong values differ by 256: uint8 went round at 0.",
            "Compute in a wider or signed dtype, and come back to uint8 at the end.",
        )
    return None


@clue
def sign_flipped(expected, got):
    """Right up to the sign."""
    if _same(-got.astype(float), expected.astype(float)):
        return "The sign is the other way round.", "Look at the order of the two operands."
    return None


@clue
def off_by_one(expected, got):
    """Integers that are all one too large or one too small."""
    difference = np.unique(np.asarray(got, float) - np.asarray(expected, float))
    if difference.size == 1 and abs(difference[0]) == 1:
        word = "large" if difference[0] > 0 else "small"
        return f"One too {word}.", "Try the smallest input by hand, and one whose end is hit exactly."
    return None


@clue
def all_zero(expected, got):
    """Nothing was written."""
    if not np.any(got) and np.any(expected):
        return (
            "All values are zero: nothing was written into the result.",
            "An indexed copy is not a view; write with result[...] = or copy_().",
        )
    return None


@clue
def only_first_right(expected, got):
    """The first item along axis 0 is right, a later one is not."""
    if expected.shape == got.shape and expected.ndim and len(expected) > 1 and _same(got[0], expected[0]):
        return "The first item is right and a later one is not.", "Check what happens between one item and the next."
    return None


@clue
def factor(expected, got):
    """Right up to one factor: a sum where a mean was meant, a mean of means, something added k times."""
    a, b = expected.astype(float).ravel(), got.astype(float).ravel()
    if a.size < 2 or a.shape != b.shape or not a.any():
        return None
    k = float(b @ a / (a @ a))
    if abs(k) > 1e-9 and abs(k - 1) > 1e-6 and np.allclose(b, k * a, rtol=1e-6, atol=1e-12):
        return (
            f"Every number is {k:.4g} times the expected one.",
            "Look for a factor: a sum or a mean, something counted twice, a missing 1/n.",
        )
    return None
