"""Where tensors are made, and what they say about it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

SAME = "same device"


def test_a_bare_device_type_means_index_0(device: torch.device) -> None:
    assert torch.ones(2).to(device.type).device == device
    assert torch.ones(2, device=device.type).device == device


def test_other_tensors_stay_on_the_cpu(device: torch.device) -> None:
    assert torch.ones(2).device.type == "cpu"
    assert torch.ones(2).is_cpu and not torch.ones(2, device=device).is_cpu


MAKERS = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "arange": lambda d: torch.arange(3, device=d),
    "full": lambda d: torch.full((2,), 7.0, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "randn": lambda d: torch.randn(2, device=d),
    "randint": lambda d: torch.randint(5, (2,), device=d),
    "randperm": lambda d: torch.randperm(5, device=d),
    "tensor": lambda d: torch.tensor([1.0, 2.0], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0], device=d),
    "asarray": lambda d: torch.asarray([1.0], device=d),
    "tensor of a tensor": lambda d: torch.tensor(torch.ones(2).numpy(), device=d),
    "from_numpy": lambda d: torch.from_numpy(np.ones(2)).to(d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, device=d)),
    "zeros_like with a device": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "new_zeros": lambda d: torch.ones(2, device=d).new_zeros(3),
    "new_tensor": lambda d: torch.ones(2, device=d).new_tensor([1.0]),
    "requires_grad": lambda d: torch.zeros(2, device=d, requires_grad=True).exp(),
    "one_hot": lambda d: F.one_hot(torch.arange(3, device=d), 4),
    "diag_embed": lambda d: torch.diag_embed(torch.ones(3, device=d)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_new_tensor_lies_where_it_was_asked_for(device: torch.device, maker: str) -> None:
    assert MAKERS[maker](device).device == device


def test_asking_for_the_cpu_beside_a_device_tensor_gives_the_cpu(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert x.new_zeros(3, device="cpu").device.type == "cpu"
    assert torch.tensor([1.0], device="cpu").device.type == "cpu"


def test_a_block_with_a_default_device_ends(device: torch.device) -> None:
    with torch.device(device.type):
        layer, x, data = nn.Linear(2, 2), torch.zeros(2), torch.tensor([1.0])
    assert {layer.weight.device, x.device, data.device} == {device}
    assert torch.zeros(1).device.type == torch.tensor([1.0]).device.type == "cpu"


def test_the_default_device_can_be_set_and_reset(device: torch.device) -> None:
    torch.set_default_device(device.type)
    try:
        assert torch.zeros(2).device == nn.Linear(2, 2).weight.device == device
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_views_share_memory_and_device(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    x[:2].fill_(1)
    x.view(2, 2)[1] += 3
    assert x.tolist() == [1, 1, 3, 3]
    assert x[:2].device == x.detach().device == x.t().device == device


def test_a_tensor_is_an_ordinary_tensor(device: torch.device) -> None:
    assert type(torch.ones(2, device=device)) is torch.Tensor
    assert type(nn.Linear(2, 2).to(device).weight) is nn.Parameter


def test_its_type_names_the_device(device: torch.device) -> None:
    assert torch.ones(2, device=device).type() == f"torch.{device.type}.FloatTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"


def test_storage_and_index_name_the_device(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    assert x.untyped_storage().device == device
    assert x.get_device() == 0 and torch.ones(2).get_device() == -1


def test_numpy_is_refused_in_the_words_of_cuda(device: torch.device) -> None:
    words = rf"can't convert {device} device type tensor to numpy. Use Tensor.cpu\(\) to copy the tensor to host memory first."
    x = torch.ones(2, device=device)
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=words):
            convert()
    assert x.numpy(force=True).tolist() == [1, 1]


def test_values_can_be_read(device: torch.device) -> None:
    x = torch.tensor([1.5, 2.0], device=device)
    assert x[0].item() == 1.5 and float(x[1]) == 2.0 and x.tolist() == [1.5, 2.0] and bool(x[0] > 1)
    assert repr(x) == f"tensor([1.5000, 2.0000], device='{device}')"


def test_another_thread_has_the_device_too(device: torch.device) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append((torch.ones(2, device=device) * 2).device))
    thread.start()
    thread.join()
    assert results == [device]


def test_operators_inside_inference_mode_stay_on_the_device(device: torch.device) -> None:
    with torch.inference_mode():
        assert F.linear(torch.ones(2, 3, device=device), torch.ones(4, 3, device=device)).device == device


def test_layout_in_memory_survives_a_move(device: torch.device) -> None:
    layer = nn.Conv2d(3, 4, 3).to(device, memory_format=torch.channels_last)
    images = torch.randn(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
    assert layer(images).is_contiguous(memory_format=torch.channels_last)
    assert torch.ones(2, 3).t().to(device).stride() == (1, 3)


def test_seeds_repeat(device: torch.device) -> None:
    torch.manual_seed(0)
    first = F.dropout(torch.ones(9, device=device))
    torch.manual_seed(0)
    assert torch.equal(first, F.dropout(torch.ones(9, device=device)))


def test_a_generator_belongs_to_a_device(device: torch.device) -> None:
    generator = torch.Generator(device=device)
    assert generator.device == device and isinstance(generator, torch.Generator)
    assert torch.randn(3, generator=generator.manual_seed(1), device=device).device == device
    words = f"Expected a '{device.type}' device type for generator but found 'cpu'"
    with pytest.raises(RuntimeError, match=words):
        torch.randn(3, generator=torch.Generator(), device=device)
    with pytest.raises(RuntimeError, match=words):
        torch.zeros(3, device=device).normal_(generator=torch.Generator())


def test_the_accelerator_is_found(device: torch.device) -> None:
    assert torch.accelerator.is_available() and torch.accelerator.device_count() >= 1
    assert torch.accelerator.current_accelerator().type == device.type
    assert torch.accelerator.current_device_index() == 0


def test_a_device_can_be_chosen_for_a_block(device: torch.device, second: torch.device) -> None:
    with torch.accelerator.device_index(1):
        assert torch.ones(1, device=device.type).device == second
    assert torch.ones(1, device=device.type).device == device


def test_a_device_that_does_not_exist_is_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device=torch.device(device.type, 7))
