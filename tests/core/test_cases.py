"""Cases, the registry, recorded behaviours and devices: what observers stand on."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from course_utils import devices
from course_utils.observe import all_exercises, exercise, find_exercise, registry
from course_utils.observe.case import Case
from course_utils.observe.compare import Behaviour, Ended
from course_utils.observe.expected import from_plain, to_plain
from course_utils.observe.plain import Fact, Spec
from course_utils.observe.registry import public_seed

CPU = torch.device("cpu")


def cases(n: int = 50):
    return [Case(seed, index, CPU) for seed in (0, 1, 2**47 + 5) for index in range(n)]


# ------------------------------------------------------------------------------------------------ cases
def test_the_same_seed_gives_other_inputs():
    for seed in (0, 2**32 - 1, 2**48 - 1):
        a, b = Case(seed, 1, CPU), Case(seed, 1, CPU)
        assert a.sizes(3) == b.sizes(3)
        assert torch.equal(a.tensor(3, 4), b.tensor(3, 4))


def test_another_seed_or_case_gives_the_same_inputs():
    seen = {Case(seed, index, CPU).array(4).tobytes() for seed in (1, 2, 1 + 2**32, 1 + 2**40) for index in range(3)}
    assert len(seen) == 12


def test_two_axes_have_the_same_size():
    for case in cases():
        sizes = case.sizes(4)
        assert len(set(sizes)) == 4
        assert min(sizes) >= 3


def test_an_end_of_the_range_is_never_drawn():
    drawn = {case.integer(2, 5) for case in cases()}
    assert drawn == {2, 3, 4, 5}
    assert {case.choice("a", "b") for case in cases()} == {"a", "b"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int16", "int64", "bool", "float16"])
def test_an_array_is_constant_or_of_another_dtype(dtype):
    array = Case(3, 0, CPU).array(20, 30, dtype=dtype)
    assert (array.dtype, array.shape) == (np.dtype(dtype), (20, 30))
    assert len(np.unique(array)) > 1
    if dtype in ("float32", "int64"):
        assert array.min() < 0 < array.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool])
def test_a_tensor_is_of_another_dtype_or_device(dtype):
    tensor = Case(3, 0, torch.device("meta")).tensor(2, 3, dtype=dtype)
    assert (tensor.dtype, tensor.shape, tensor.device.type) == (dtype, (2, 3), "meta")
    assert Case(3, 0, CPU).tensor(2, requires_grad=True).is_leaf


def test_images_are_square_or_all_contiguous():
    for case in cases(10):
        images = case.bgr_images(3)
        height, width, channels = images[0].shape
        assert channels == 3 and height != width
        assert {i.shape for i in images} == {(height, width, 3)}
        assert [i.flags.c_contiguous for i in images] == [True, False, True]


# ------------------------------------------------------------------------------------------------ registry
def test_an_exercise_cannot_be_found_or_has_no_text():
    for item in all_exercises():
        assert find_exercise(item.id) is item
        assert item.summary and item.points > 0 and item.cases > 0 and item.id.isidentifier()


def test_two_exercises_of_different_sections_share_a_name(monkeypatch):
    monkeypatch.setattr(registry, "_EXERCISES", {})

    def toy(answer, case, see):
        """One
        line.

        More.
        """

    exercise(section="a", points=1, minutes=1)(toy)
    assert registry._EXERCISES["toy"].summary == "One line."
    with pytest.raises(ValueError, match="two exercises are called 'toy'"):
        exercise(section="b", points=1, minutes=1)(toy)


def test_two_exercises_have_the_same_public_cases():
    names = [e.id for e in all_exercises()]
    assert len({public_seed(n) for n in names}) == len(names)
    assert public_seed("bgr_to_batch") == public_seed("bgr_to_batch") < 2**32


# ------------------------------------------------------------------------------------------------ behaviours as files
def test_a_recorded_behaviour_differs_from_the_observed_one():
    values = {bool: True, float: 0.5, str: "text", tuple: ("all_zero",), type(None): 0.3}
    spec = Spec(**{f.name: values[type(f.default)] for f in dataclasses.fields(Spec) if f.name != "labels"})
    scored = Fact("c", None, 1, Spec(labels="test", at_least=(0.9, 0.4)))  # predictions are not recorded
    before = Behaviour("doubled", (Fact("a", [1, None], 0, spec), Fact("b", {"x": 1.5}, 1), scored))
    assert from_plain(json.loads(json.dumps(to_plain(before)))) == before


def test_a_reference_that_fails_is_recorded():
    with pytest.raises(ValueError, match="the reference of doubled crashed: ValueError: no at 3: x"):
        to_plain(Behaviour("doubled", (), Ended("crashed", "ValueError", "no", "3: x")))


# ------------------------------------------------------------------------------------------------ devices
@pytest.mark.parametrize("name", ["no_such_device", "cuda:99", "cpu:x"])
def test_a_device_that_does_not_exist_is_used(name, monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", name)
    with pytest.raises(RuntimeError, match="Unset it, or set COURSE_DEVICE=cpu"):
        devices.available_device()


def test_the_wish_for_a_device_is_ignored(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", " meta ")
    assert devices.available_device() == torch.device("meta")
    monkeypatch.setenv("COURSE_DEVICE", "")
    assert devices.available_device().type in ("cpu", "cuda")


def test_a_gpu_that_cannot_allocate_stops_the_course(monkeypatch):
    def broken(name):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "_usable", broken)
    assert devices.available_device() == torch.device("cpu")


def test_one_of_the_generators_is_not_seeded():
    import random

    def draw():
        devices.seed_everything(2**32 - 1)
        return random.random(), np.random.rand(), torch.rand(1).item()

    assert draw() == draw()
