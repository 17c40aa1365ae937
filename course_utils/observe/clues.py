"""What the difference between two values tells about the mistake.

A clue is a function of the expected and the received array. It returns ``(why, fix)`` when it recognises a
mistake and None otherwise. It knows properties of mismatches (two axes swapped, a factor of 255), never an answer.
Observers name the clues that make sense for a fact: ``see("values", batch, clues=["channels_reversed"])``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import suppress

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
        look = CLUES[name]
        # No warning of NumPy's may reach stderr: `nbgrader validate` shows it as a failure.
        with suppress(Exception), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if found := look(expected, got):
                return found
    return None


@clue
def channels_reversed(expected, got):
    """The three channels come in the opposite order, on whichever axis has length 3."""
    for axis, size in enumerate(expected.shape):
        if size == 3 and _same(np.flip(got, axis), expected):
            return (
                "Red and blue are exchanged: the channels run the other way.",
                "Reverse the channel axis, exactly once.",
            )
    return None


@clue
def axes_reversed(expected, got):
    """The right numbers, one or more axes running backwards."""
    for n in range(1, min(expected.ndim, 4) + 1):
        for axes in itertools.combinations(range(expected.ndim), n):
            if _same(np.flip(got, axes), expected):
                word = "Axis" if n == 1 else "Axes"
                verb = "runs" if n == 1 else "run"
                return (
                    f"{word} {' and '.join(map(str, axes))} of the result {verb} backwards.",
                    "[::-1] reverses the first axis: name the axis that you mean.",
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
def rest_dropped(expected, got):
    """Whole numbers, each the expected one rounded down: the result of an integer division."""
    if np.all(expected >= 0) and np.any(expected != np.floor(expected)) and np.array_equal(got, np.floor(expected)):
        return (
            "All values are whole numbers: the fractions are gone.",
            "// and //= divide without a rest: divide floats, with / or div_.",
        )
    return None


@clue
def axes_swapped(expected, got):
    """The right numbers with axes transposed."""
    if got.ndim == expected.ndim and 2 <= got.ndim <= 5 and sorted(got.shape) == sorted(expected.shape):
        for order in itertools.permutations(range(got.ndim)):
            if order != tuple(range(got.ndim)) and _same(got.transpose(order), expected):
                return (
                    f"The axes are in another order: transpose{order} makes it right.",
                    "Say for every axis of the input where it ends up.",
                )
    return None


@clue
def same_numbers_other_places(expected, got):
    """All numbers are there, in other places: a reshape where a permute was meant."""
    if expected.size == got.size > 1 and _same(np.sort(got, axis=None), np.sort(expected, axis=None)):
        return (
            "All the numbers are there, elsewhere: a reshape cannot move an axis.",
            "Use permute or transpose to move axes, and only then reshape.",
        )
    return None


@clue
def eight_bits_went_round(expected, got):
    """8-bit arithmetic left its range: each wrong value and the right one differ by 256, or add up to it."""
    a, b = expected.astype(np.int64), got.astype(np.int64)
    wrong = a != b
    if wrong.any() and (np.all((a - b)[wrong] % 256 == 0) or np.all((a + b)[wrong] == 256)):
        return (
            "8 bits went round: wrong and right value differ by, or add up to, 256.",
            "Compute in a wider signed dtype, and come back to uint8 at the end.",
        )
    return None


@clue
def cut_off_at_zero(expected, got):
    """Every wrong value is 0 where something positive was expected."""
    wrong = ~np.isclose(expected, got)
    if wrong.any() and not wrong.all() and np.all(got[wrong] == 0) and np.all(expected[wrong] > 0):
        return (
            "Every wrong value is 0: differences below 0 were cut off.",
            "Take the absolute value before the change to uint8, instead of clipping.",
        )
    return None


@clue
def ends_swapped(expected, got):
    """Wrong only where an end of the range 0..255 was expected, and then far away from it."""
    wrong = expected != got
    far = np.abs(expected.astype(float) - got.astype(float)) > 127
    if wrong.any() and np.all(far[wrong]) and np.all(np.isin(expected[wrong], (0, 255))):
        return (
            "Values just outside of the range came out at its other end.",
            "Clip before the change to uint8: a cast goes round, it does not clip.",
        )
    return None


@clue
def fraction_cut_off(expected, got):
    """Some integers are one too small, the others right."""
    if set(np.unique(np.asarray(expected, float) - np.asarray(got, float))) == {0.0, 1.0}:
        return (
            "Some values are one too small: their fractions were cut off.",
            "A cast to an integer dtype does not round: call round() before it.",
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
def batch_items_mixed(expected, got):
    """Numbers of one item along axis 0 turn up in another item."""
    if (
        expected.shape != got.shape
        or expected.ndim < 2
        or not _same(np.sort(got, axis=None), np.sort(expected, axis=None))
    ):
        return None
    items = zip(got, expected, strict=True)
    if all(_same(np.sort(a, axis=None), np.sort(b, axis=None)) for a, b in items):
        return None
    return (
        "Numbers of one item of the batch stand in another one's place.",
        "Leave the batch axis in front in every step.",
    )


def _regrouped(array: np.ndarray, axis: int, rows: int) -> np.ndarray:
    """``axis`` read as ``rows`` rows and walked column after column."""
    head, tail = array.shape[:axis], array.shape[axis + 1 :]
    split = array.reshape(*head, rows, array.shape[axis] // rows, *tail)
    return split.swapaxes(axis, axis + 1).reshape(array.shape)


@clue
def merged_in_other_order(expected, got):
    """Two axes were merged into one, the second before the first."""
    if expected.shape == got.shape:
        for axis, size in enumerate(expected.shape):
            for rows in range(2, size // 2 + 1):
                if size % rows == 0 and _same(_regrouped(got, axis, rows), expected):
                    return (
                        "The positions run down the columns; row after row was asked.",
                        "Where height and width become one axis, height comes first.",
                    )
    return None


@clue
def split_in_other_order(expected, got):
    """One axis was split into the last two, the second before the first: each image is read column after column."""
    if expected.shape == got.shape and expected.ndim >= 2:
        *head, height, width = expected.shape
        if _same(got.swapaxes(-1, -2).reshape(*head, height, width), expected):
            return (
                "The positions run down the columns; row after row was asked.",
                "Where one axis is split into height and width, height comes first.",
            )
    return None


@clue
def no_relu_at_the_end(expected, got):
    """Right where something positive is expected, and negative where 0 is."""
    if np.any(got < 0) and _same(np.maximum(got, 0), expected):
        return "The sum goes out as it is, with its negative numbers.", "ReLU comes last, after the shortcut was added."
    return None


@clue
def relu_before_the_sum(expected, got):
    """No zero comes out where many are expected, or only the positive part of one summand was added."""
    if expected.shape == got.shape and np.any(expected == 0) and np.all(got >= expected - 1e-9):
        return (
            "Nowhere smaller than expected: a ReLU came before the sum.",
            "The second path ends with its BatchNorm; ReLU comes after the sum.",
        )
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
            "Look for a factor: a sum for a mean, a term counted twice, no 1 / n.",
        )
    return None


@clue
def second_pass_found_nothing(expected, got):
    """Zero, or no number at all, where a second walk through an iterator would have added something up."""
    if got.shape == expected.shape and np.all(expected != 0) and not np.any(np.nan_to_num(got)) and not got.all():
        return (
            "All are 0. Is the input gone through twice? A stream is empty by then.",
            "Gather all that you need in one pass.",
        )
    return None


@clue
def root_of_negative(expected, got):
    """No number anywhere: the root of a difference that should not be negative, after sums that went round."""
    if got.shape == expected.shape and np.isnan(got).all() and np.isfinite(expected).all():
        return (
            "No numbers: a root of something negative. The squares are too small.",
            "uint8 squares go round at 256: change the dtype before you square.",
        )
    return None


@clue
def few_digits(expected, got):
    """The largest number is nearly right and the smallest is not: a difference that took most of the digits."""
    if got.shape != expected.shape or expected.size < 2:
        return None
    wrong = np.abs(np.nan_to_num(got) - expected) / np.abs(expected)
    if 0 < wrong[np.argmax(expected)] < 5e-5 and wrong[np.argmin(expected)] > 1e-4:
        return (
            "The largest is nearly right, the smallest is not: digits ran out.",
            "float32 has seven digits; sum in float64 or in integers.",
        )
    return None
