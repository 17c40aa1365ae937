"""A tensor that an answer returns does not answer for itself."""

from __future__ import annotations

import pytest
import torch

from course_utils.observe.firm import firm_methods


@pytest.mark.parametrize("name", ["data_ptr", "stride", "tolist", "is_contiguous"])
def test_an_attribute_of_a_tensor_hides_the_method(name):
    tensor = torch.ones(2, 3).t()
    right = getattr(tensor, name)()
    vars(tensor)[name] = lambda: "mine"
    with firm_methods():
        assert getattr(tensor, name)() == right
        with pytest.raises(AttributeError, match="another name"):
            setattr(tensor, name, None)
    assert getattr(tensor, name)() == "mine"


def test_an_attribute_of_a_storage_hides_the_number_of_its_bytes():
    storage = torch.ones(4).untyped_storage()
    storage.nbytes = lambda: 0
    with firm_methods():
        assert storage.nbytes() == 16


def test_the_block_leaves_something_in_the_class_or_takes_something_out():
    before = dict(vars(torch.Tensor)), dict(vars(torch.UntypedStorage))
    with firm_methods():
        assert torch.Tensor.stride is torch._C.TensorBase.stride
        torch.ones(2).named = "an attribute of another name"
    assert (dict(vars(torch.Tensor)), dict(vars(torch.UntypedStorage))) == before


def test_an_answer_that_takes_a_method_out_of_the_class_goes_unnoticed():
    with pytest.raises(RuntimeError, match="stride was taken away"), firm_methods():
        del torch.Tensor.stride
    assert torch.ones(2, 3).stride() == (3, 1)


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_an_answer_that_compiles_itself_crashes_or_gives_another_result(value):
    def function(x):
        return x.sum() * 2 if x.mean().item() > 1 else x.reshape(-1).abs()

    x = torch.full((2, 3), value)
    with firm_methods():
        assert torch.equal(torch.compile(function, backend="eager")(x), function(x))
