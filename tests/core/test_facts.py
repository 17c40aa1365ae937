"""Facts: whatever an answer returns becomes plain data of bounded size, and keeps what tells right from wrong."""

from __future__ import annotations

import collections
import enum
import json
import time

import numpy as np
import pytest
import torch

from course_utils.observe.facts import MAX_ELEMENTS, attempt, describe, encode
from course_utils.observe.plain import decode_array


def round_trip(value):
    return json.loads(json.dumps(encode(value)))


class Liar:
    """Equal to everything, greater and smaller than everything, true."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __le__(self, other):
        return True

    __lt__ = __gt__ = __ge__ = __le__
    __hash__ = None


class LyingInt(Liar, int):
    def __int__(self):
        return 42

    __index__ = __int__

    def bit_length(self):
        return 1


class LyingFloat(Liar, float):
    def __float__(self):
        return 42.0


class LyingText(Liar, str):
    def __getitem__(self, index):
        return 42

    def __len__(self):
        return 1

    def __str__(self):
        return "forty-two"


class LyingList(Liar, list):
    def __iter__(self):
        return iter([42])

    def __getitem__(self, index):
        return 42

    def __len__(self):
        return 1


class LyingDict(Liar, dict):
    def items(self):
        return [("answer", 42)]


Pair = collections.namedtuple("Pair", "a b")


class Colour(enum.IntEnum):
    RED = 7


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2**70 + 1, 2**70 + 1),
        (0.5, 0.5),
        (float("inf"), float("inf")),
        ("text", "text"),
        (1 + 2j, {"complex": [1.0, 2.0]}),
        (b"\x00\xff", {"bytes": "00ff"}),
        ((1, [2, "a"]), [1, [2, "a"]]),
        ({1: 2, "a": None, (1, 2): 3}, {"1": 2, "a": None, "[1, 2]": 3}),
        ({3, 1, 2}, [1, 2, 3]),
        (torch.Size([2, 3]), [2, 3]),
        (torch.float32, "float32"),
        (torch.channels_last, "channels_last"),
        (torch.device("meta"), "meta"),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), {"numpy": "float32", "value": 0.5}),
        (np.int64(3), {"numpy": "int64", "value": 3}),
        (np.bool_(True), {"numpy": "bool", "value": True}),
        (np.longdouble(0.5), {"numpy": np.dtype(np.longdouble).name, "value": 0.5}),
        (np.str_("a"), "a"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (Pair(1, 2), [1, 2]),
        (Colour.RED, 7),
        (len, {"object": "builtin_function_or_method"}),
        (int, {"object": "the class int"}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_plain_value_is_written_down_as_something_else(value, plain):
    assert round_trip(value) == plain


def test_nan_is_lost():
    assert np.isnan(round_trip(float("nan")))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (LyingInt(3), 3),
        (LyingFloat(3), 3.0),
        (LyingText("three"), "three"),
        (LyingList([3]), [3]),
        (LyingDict(three=3), {"three": 3}),
        (Liar(), {"object": "Liar"}),
        ([Liar()], [{"object": "Liar"}]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_object_that_redefines_its_methods_chooses_its_own_facts(value, plain):
    encoded = round_trip(value)
    assert json.dumps(encoded) == json.dumps(plain)


def test_an_object_that_names_itself_a_tensor_is_taken_for_one():
    class Tensor:
        __class__ = torch.Tensor
        dtype, shape, device, layout = torch.float32, (2, 3), torch.device("cpu"), torch.strided

    assert isinstance(Tensor(), torch.Tensor)
    assert describe(Tensor()) == "Tensor"
    assert encode(Tensor()) == {"object": "Tensor"}


def test_a_metaclass_that_names_its_class_breaks_the_report():
    class Meta(type):
        @property
        def __name__(cls):
            return 42

    class Odd(metaclass=Meta):
        pass

    assert encode(Odd()) == {"object": "Odd"}


TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "no dimensions": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "bool": torch.tensor([True, False]),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "int64 beyond float64": torch.tensor([2**53 + 1]),
    "float64": torch.tensor([1e300], dtype=torch.float64),
    "requires grad": torch.ones(2, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "expanded": torch.ones(1).expand(4),
    "nan and inf": torch.tensor([float("nan"), float("inf")]),
    "complex": torch.tensor([1 + 2j]),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_the_numbers_of_a_tensor_change_on_the_way(tensor):
    plain = round_trip(tensor)
    numbers = decode_array(plain)
    assert numbers.shape == tuple(tensor.shape)
    assert f"torch.{plain['array']}" == str(tensor.dtype)
    np.testing.assert_array_equal(numbers, tensor.detach().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex32], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_dtype_that_numpy_lacks_ends_the_check(dtype):
    plain = round_trip(torch.tensor([1.5, -2.0]).to(dtype))
    assert f"torch.{plain['array']}" == str(dtype)
    np.testing.assert_array_equal(decode_array(plain), [1.5, -2.0])


def test_a_lazy_conjugate_or_negative_is_written_down_unresolved():
    z = torch.tensor([1 + 2j])
    np.testing.assert_array_equal(decode_array(round_trip(z.conj())), [1 - 2j])
    np.testing.assert_array_equal(decode_array(round_trip(z.conj().imag)), np.array([-2.0], "float32"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.eye(3).to_sparse(), "Tensor float32 (3, 3) sparse_coo"),
        (torch.ones(2, 3, device="meta"), "Tensor float32 (2, 3) on meta"),
    ],
)
def test_a_tensor_without_numbers_ends_the_check(value, text):
    assert encode(value, torch.device("cpu")) == {"object": text}


def test_a_tensor_subclass_runs_its_own_code_while_it_is_written_down():
    calls = []

    class Spy(torch.Tensor):
        def detach(self):
            calls.append("detach")
            return 42

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    spy = torch.ones(2).as_subclass(Spy)
    calls.clear()
    np.testing.assert_array_equal(decode_array(round_trip(spy)), [1, 1])
    assert calls == []


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8"])
def test_the_byte_order_of_an_array_is_lost_or_spoils_its_numbers(dtype):
    plain = round_trip(np.array([1, 2, 3], dtype))
    assert plain["array"] == dtype
    np.testing.assert_array_equal(decode_array(plain), [1, 2, 3])


def test_an_array_too_large_to_send_is_copied_first():
    huge = np.broadcast_to(np.float64(1), (10**6, 10**7))
    assert round_trip(huge) == {"array": "float64", "shape": [10**6, 10**7], "kind": "ndarray", "data": None}
    huge = torch.ones(1, dtype=torch.bfloat16).expand(10**6, 10**7)
    assert round_trip(huge)["data"] is None
    assert round_trip(np.ones(MAX_ELEMENTS))["data"] is not None


def test_an_array_of_objects_is_written_down_by_content():
    assert round_trip(np.array([Liar(), None]))["data"] is None
    assert round_trip(np.zeros(2, "i4,f4"))["data"] is None


def test_a_list_that_holds_itself_ends_the_check():
    ring: list = []
    ring.append(ring)
    assert "nested more than" in json.dumps(round_trip(ring))
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert "nested more than" in json.dumps(round_trip(deep))
    assert len(describe(deep)) < 100


def test_lists_of_the_same_lists_take_for_ever_to_write_down():
    laughs: list = ["ha"] * 1000
    for _ in range(15):
        laughs = [laughs] * 1000
    begun = time.process_time()
    text = json.dumps(round_trip({"a": laughs, "b": (laughs, laughs)}))
    describe(laughs)
    assert len(text) < 20_000_000
    assert time.process_time() - begun < 20  # no measurement: without a bound it would be years


def test_many_arrays_in_a_list_fill_the_memory():
    array = np.ones(MAX_ELEMENTS)
    assert len(json.dumps(round_trip([array] * 1000))) < 4_000_000


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x" * 5000 + "a", "x" * 5000 + "b"),
        (list(range(3000)), list(range(3001))),
        (dict.fromkeys(range(3000)), dict.fromkeys(range(3001))),
        (2**63, 2**63 + 1),
    ],
    ids=["text", "list", "dictionary", "integer"],
)
def test_two_long_values_are_taken_for_equal(a, b):
    assert round_trip(a) != round_trip(b)


def test_an_integer_too_large_for_a_float_ends_the_check():
    assert round_trip(10**400) == {"object": "an int of 1329 bits"}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"stored": "O", "data": "AAAA", "shape": [1]},
        {"stored": "(2,)f4", "data": "AAAA", "shape": [1]},
        {"stored": ["f4"], "data": "AAAA", "shape": [1]},
        {"stored": "<f4", "data": "AAAAAA==", "shape": [float("inf")]},
        {"stored": "<f4", "data": "AAAAAA==", "shape": [10**40]},
        {"stored": "<f4", "data": "AAAAAA==", "shape": 1},
        {"stored": "<f4", "data": "AAAAAA==", "shape": [2]},
        {"stored": "<f4", "data": "no base64!", "shape": [1]},
        {"stored": "<f4", "data": None, "shape": [1]},
        {"stored": "<f99", "data": "AAAAAA==", "shape": [1]},
    ],
)
def test_a_forged_array_raises_instead_of_being_refused(broken):
    assert decode_array(broken) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(3, 5), "Tensor float32 (3, 5)"),
        (torch.nn.Parameter(torch.zeros(3)), "Tensor float32 (3,)"),
        (np.zeros((2, 3), np.uint8), "ndarray uint8 (2, 3)"),
        ([np.zeros(3)] * 2, "list of 2 x ndarray float64 (3,)"),
        ((1, 2.0), "tuple of int, float"),
        ([], "empty list"),
        (np.float64(1), "numpy.float64"),
        (True, "bool"),
        (None, "None"),
        (torch.nn.Linear, "the class Linear"),
    ],
)
def test_a_description_says_something_else(value, text):
    assert describe(value, torch.device("cpu")) == text


def test_a_failing_call_is_not_told_from_one_that_is_not_written_yet():
    def fails():
        raise ValueError("no")

    def later():
        raise NotImplementedError

    def unsupported():
        raise NotImplementedError("sparse")

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    def mute():
        raise Mute

    assert attempt(fails).error == "ValueError"
    assert attempt(unsupported).error == "NotImplementedError"
    assert (attempt(mute).error, attempt(mute).message) == ("Mute", "")
    assert attempt(lambda: 3).value == 3
    with pytest.raises(NotImplementedError):
        attempt(later)


@pytest.mark.parametrize(
    ("base", "value"), [(torch.Tensor, torch.ones(2)), (np.ndarray, np.ones(2))], ids=["Tensor", "ndarray"]
)
def test_a_subclass_that_lies_passes_for_the_class_whose_name_it_has(base, value):
    lying = type(base.__name__, (base,), {"__module__": base.__module__})
    made = value.as_subclass(lying) if base is torch.Tensor else value.view(lying)
    assert describe(made) != describe(value)
    assert describe(made).startswith(f"subclass {base.__name__}")


def test_an_array_of_numpys_own_kinds_is_another_form(tmp_path):
    np.ones(3).tofile(tmp_path / "a")
    assert describe(np.memmap(tmp_path / "a", np.float64, "r")) == "ndarray float64 (3,)"
