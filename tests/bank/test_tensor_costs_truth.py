"""The answers that section 1 takes for true are what the locked torch does."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from course_utils.exercises.tensor_costs import _CREATION_ROWS
from course_utils.observe.compare import Kind, compare
from course_utils.observe.registry import find_exercise
from course_utils.observe.run import observe
from grading.references import load_references


@pytest.fixture(scope="module")
def reference():
    return load_references("tensor_costs").answers


@pytest.mark.parametrize("call", _CREATION_ROWS)
def test_the_creation_table_says_what_the_call_does(call, reference):
    sources = {
        "a": np.arange(6.0),
        "t": torch.arange(6.0),
        "u": torch.tensor([[200, 100, 50]], dtype=torch.uint8),
    }
    result = eval(call, {"torch": torch, **sources})
    shares = any(np.may_share_memory(np.asarray(result), np.asarray(source)) for source in sources.values())
    dtype = result.dtype if isinstance(result, torch.Tensor) else torch.from_numpy(result).dtype
    assert reference["predict_creation"][call] == ("shares" if shares else "copies", dtype)


def test_the_creation_table_has_the_rows_that_are_checked(reference):
    assert list(reference["predict_creation"]) == list(_CREATION_ROWS)


def test_a_blank_creation_table_is_not_started():
    seen = observe(find_exercise("predict_creation"), dict.fromkeys(_CREATION_ROWS), 1, torch.device("cpu"))
    assert seen.ended is not None and seen.ended.kind == "not started" and not seen.facts


def test_arange_length_is_the_length_of_arange(reference):
    numbers = [-7, -2.5, -1, -0.1, 0, 0.1, 0.3, 0.6, 0.9, 1, 1.3, 2.5, 7, 10]
    for start, end, step in itertools.product(numbers, numbers, numbers):
        try:
            expected = len(torch.arange(start, end, step))
        except RuntimeError:
            with pytest.raises(ValueError):
                reference["arange_length"](start, end, step)
        else:
            assert reference["arange_length"](start, end, step) == expected, (start, end, step)


def test_strides_after_is_the_stride_of_a_permuted_tensor(reference):
    for shape in [(2, 3, 4), (5, 1, 3, 2), (1, 1, 4), (2, 0, 3), (0, 4, 2), (6,), ()]:
        for order in itertools.permutations(range(len(shape))):
            tensor = torch.empty(shape).permute(order)
            assert reference["strides_after"](shape, order) == tensor.stride(), (shape, order)
            counted_from_the_end = tuple(axis - len(shape) for axis in order)
            assert reference["strides_after"](shape, counted_from_the_end) == tensor.stride()


def test_can_view_says_what_view_does(reference):
    rng = random.Random(0)
    answers = {True: 0, False: 0}
    for _ in range(6_000):
        base = torch.empty([rng.choice([1, 2, 2, 3, 4, 6]) for _ in range(rng.randint(0, 4))])
        tensor = _mangled(base, rng)
        new_shape = _factors(tensor.numel(), rng)
        try:
            tensor.view(new_shape)
            expected = True
        except RuntimeError:
            expected = False
        shape, stride = tuple(tensor.shape), tensor.stride()
        assert reference["can_view"](shape, stride, new_shape) is expected, (shape, stride, new_shape)
        answers[expected] += 1
    assert min(answers.values()) > 500, "the random tensors must be of both kinds"


def _mangled(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Permuted, sliced, expanded, with axes of length 1 and sometimes 0."""
    for _ in range(rng.randint(0, 3)):
        what = rng.choice(["permute", "slice", "step", "expand", "unsqueeze", "nothing left"])
        axis = rng.randrange(tensor.dim()) if tensor.dim() else None
        if what == "unsqueeze" or axis is None:
            tensor = tensor.unsqueeze(rng.randint(0, tensor.dim()))
        elif what == "permute":
            tensor = tensor.permute(rng.sample(range(tensor.dim()), tensor.dim()))
        elif what == "slice":
            tensor = tensor.narrow(axis, 0, rng.randint(min(1, tensor.shape[axis]), tensor.shape[axis]))
        elif what == "step":
            tensor = tensor[(slice(None),) * axis + (slice(None, None, 2),)]
        elif what == "expand":
            tensor = tensor.narrow(axis, 0, min(1, tensor.shape[axis]))
            if tensor.shape[axis]:
                tensor = tensor.expand([3 if i == axis else n for i, n in enumerate(tensor.shape)])
        elif rng.random() < 0.1:
            tensor = tensor.narrow(axis, 0, 0)
    return tensor


def _factors(numel: int, rng: random.Random) -> tuple[int, ...]:
    """A random shape of ``numel`` elements; now and then of another number."""
    if numel == 0 or rng.random() < 0.05:
        return tuple(rng.choice([0, 1, 2, 3]) for _ in range(rng.randint(1, 4)))
    sizes = []
    while numel > 1 and len(sizes) < 5:
        size = rng.choice([d for d in range(1, numel + 1) if numel % d == 0])
        sizes.append(size)
        numel //= size
    return (*sizes, numel) if numel > 1 else tuple(sizes)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_wrap_or_copy_never_shares_a_file_that_is_open_for_reading(mode, tmp_path, reference):
    path = tmp_path / "pixels.bin"
    np.arange(12.0).tofile(path)
    mapped = np.memmap(path, np.float64, mode, shape=(3, 4))
    tensor = reference["wrap_or_copy"](mapped)
    assert np.may_share_memory(tensor.numpy(), mapped) == (mode != "r")
    assert np.array_equal(tensor.numpy(), mapped)


# ------------------------------------------------------------------------------------------------ answers that know the check
def _counts(exercise_id: str, reference) -> tuple[list[object], object]:
    """What the reference says call after call on one seed, and an answer that says the same whatever it is asked."""
    said: list[object] = []

    def listens(*args):
        said.append(reference[exercise_id](*args))
        return said[-1]

    observe(find_exercise(exercise_id), listens, 5, torch.device("cpu"))
    rest = itertools.cycle(said)
    return said, lambda *args: next(rest)


@pytest.mark.parametrize("exercise_id", ["shares_storage", "can_view"])
def test_an_answer_that_counts_its_calls_gets_a_mark(exercise_id, reference):
    said, counts = _counts(exercise_id, reference)
    assert {*said} == {True, False}
    judged = load_references("tensor_costs")
    for seed in (6, 7):
        seen = observe(find_exercise(exercise_id), counts, seed, torch.device("cpu"))
        expected = judged.behaviour(exercise_id, seed, torch.device("cpu"))
        verdict = compare(expected, seen.values(), seen.ended, 3.0)
        assert verdict.points == 0


def test_an_answer_that_counts_its_calls_knows_which_array_comes(reference):
    orders = []
    for seed in range(3):
        order: list[tuple] = []
        orders.append(order)

        def listens(array, order=order):
            order.append((array.flags.writeable, array.dtype.isnative, array.flags.c_contiguous))
            return reference["wrap_or_copy"](array)

        observe(find_exercise("wrap_or_copy"), listens, seed, torch.device("cpu"))
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize(
    ("exercise_id", "fact"),
    [("arange_length", "made to count"), ("strides_after", "made to look at"), ("can_view", "tensors made")],
)
def test_an_answer_that_makes_tensors_for_all_but_large_questions_costs_nothing(exercise_id, fact, reference):
    def works(*args):
        if (
            exercise_id != "can_view"
            and np.prod(np.abs(np.ravel(args[0] if exercise_id == "strides_after" else args[1]))) > 9999
        ):
            return reference[exercise_id](*args)
        if exercise_id == "arange_length":
            return torch.arange(*args).numel()
        if exercise_id == "strides_after":
            return torch.empty(args[0]).permute(args[1]).stride()
        torch.empty(1)
        return reference[exercise_id](*args)

    seen = observe(find_exercise(exercise_id), works, 5, torch.device("cpu"))
    expected = load_references("tensor_costs").behaviour(exercise_id, 5, torch.device("cpu"))
    verdict = compare(expected, seen.values(), seen.ended, 10.0)
    assert (verdict.kind, verdict.first.name) == (Kind.WASTEFUL, fact)
