"""The observers of a section of five small exercises: a value, a cost, facts that are easily guessed, workers, and one more.

It takes the place of the course's own sections in the copy that attacks and faults are graded in.
"""

from __future__ import annotations

import torch

from course_utils.observe import exercise

SECTION = "mini"


@exercise(section=SECTION, points=2, minutes=1, seconds=4)
def doubled(answer, case, see):
    """Twice the tensor, which stays as it is."""
    x = case.tensor(*case.sizes(2))
    before = x.clone()
    y = answer(x)
    see.form(y)
    see("values", y, atol=1e-6)
    see("input left as it was", torch.equal(x, before), share=0.25)


@exercise(section=SECTION, points=3, minutes=1, seconds=4)
def sum_of_squares(answer, case, see):
    """The sum of the squares, without a copy of the vector."""
    x = case.tensor(case.integer(1_000, 2_000))
    answer(x[:5])
    with see.memory() as used:
        total = answer(x)
    see.form(total)
    see("value", total, rtol=1e-4)
    see("bytes at peak", used.peak, at_most=True, allowance=64)


@exercise(section=SECTION, points=2, minutes=1, cases=1, seconds=4)
def same_block(answer, case, see):
    """Do two tensors share their memory?"""
    x = case.tensor(*case.sizes(2))
    see("a view", bool(answer(x, x[1:])))
    see("a copy", bool(answer(x, x.clone())))
    see("two halves", bool(answer(x[:1], x[1:])))


@exercise(section=SECTION, points=2, minutes=1, cases=1, seconds=6, apart=True)
def batches(answer, case, see):
    """The numbers below n in batches of k, as lists."""
    see("batches", answer(case.integer(7, 9), 3))


@exercise(section=SECTION, points=1, minutes=1, seconds=4)
def plus_one(answer, case, see):
    """One more."""
    n = case.integer(2, 99)
    see("value", answer(n))
