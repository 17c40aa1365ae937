"""Mixed devices: which operators refuse them, and in which words. The words are CUDA's, with the name of the device."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

HERE = torch.device("cpu")


def checked(name: str, method: str, host_first: bool = False) -> str:
    """The words of an operator whose CUDA wrapper compares devices."""
    a, b = ("{device}", "cpu") if host_first else ("cpu", "{device}")
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {a}, different from other tensors on {b} "
        f"(when checking argument in method wrapper_CUDA_{method})"
    )


TWO = "Expected all tensors to be on the same device, but found at least two devices, {device} and cpu!"
Make = Callable[..., torch.Tensor]

# name: the call with makers of host (h) and device (d) tensors, and the words
MIXED: dict[str, tuple[Callable[[Make, Make], object], str]] = {
    "linear, input on the host": (lambda h, d: F.linear(h(2, 3), d(4, 3), d(4)), checked("mat1", "addmm")),
    "linear, weights on the host": (lambda h, d: F.linear(d(2, 3), h(4, 3), h(4)), checked("mat1", "addmm", True)),
    "linear without bias": (lambda h, d: F.linear(h(2, 3), d(4, 3)), checked("mat2", "mm", True)),
    "matmul": (lambda h, d: d(3, 4) @ h(4, 2), checked("mat2", "mm")),
    "bmm": (lambda h, d: h(2, 3, 4) @ d(2, 4, 2), checked("mat2", "bmm", True)),
    "dot": (lambda h, d: torch.dot(d(3), h(3)), checked("tensor", "_dot")),
    "cat": (lambda h, d: torch.cat([h(2), d(2)]), checked("tensors", "cat", True)),
    "stack": (lambda h, d: torch.stack([d(2), h(2)]), checked("tensors", "cat")),
    "embedding": (lambda h, d: F.embedding(torch.tensor([1]), d(5, 3)), checked("index", "_index_select")),
    "cross entropy": (
        lambda h, d: F.cross_entropy(d(2, 3), torch.tensor([0, 1])),
        checked("target", "nll_loss_forward"),
    ),
    "layer norm": (lambda h, d: F.layer_norm(d(2, 4), (4,), h(4), h(4)), checked("weight", "_native_layer_norm")),
    "gather": (lambda h, d: d(3).gather(0, torch.tensor([0])), checked("index", "gather")),
    "add": (lambda h, d: h(3) + d(3), TWO),
    "add, other way round": (lambda h, d: d(3) + h(3), TWO),
    "add in place": (lambda h, d: h(3).add_(d(3)), TWO),
    "add in place to a host number": (lambda h, d: h(()).add_(d(())), TWO),
    "compare": (lambda h, d: d(3) > h(3), TWO),
    "where": (lambda h, d: torch.where(h(3) > 0, d(3), d(3)), TWO),
    "mse loss": (lambda h, d: F.mse_loss(d(3), h(3)), TWO),
    "set by index": (lambda h, d: d(4).__setitem__(torch.tensor([0, 1]), h(2)), TWO),
    "plain normalisation": (lambda h, d: (d(2, 3) - h(3)) / h(3), TWO),
    "convolution, weights on the host": (
        lambda h, d: F.conv2d(d(1, 3, 8, 8), h(4, 3, 3, 3)),
        "Input type (torch.{type}.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    ),
    "convolution, input on the host": (
        lambda h, d: F.conv2d(h(1, 3, 8, 8), d(4, 3, 3, 3)),
        "Input type (torch.FloatTensor) and weight type (torch.{type}.FloatTensor) should be the same or input should be a "
        "MKLDNN tensor and weight is a dense tensor",
    ),
    "index on the device of a host tensor": (
        lambda h, d: h(5)[torch.zeros(2, dtype=torch.long, device=d(1).device)],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_raise_in_the_words_of_cuda(device: torch.device, name: str) -> None:
    call, words = MIXED[name]
    with pytest.raises(RuntimeError) as raised:
        call(torch.randn, lambda *size: torch.randn(*size, device=device))
    assert words.format(device=device, type=device.type) in str(raised.value)


BATCH_NORM = {
    "training": lambda x, h: F.batch_norm(x, h(3), h(3).abs(), training=True),
    "evaluation": lambda x, h: F.batch_norm(x, h(3), h(3).abs()),
    "module": lambda x, h: nn.BatchNorm2d(3)(x),
    "recurrent": lambda x, h: nn.LSTM(4, 5)(x[0]),
    "attention": lambda x, h: F.scaled_dot_product_attention(x, h(2, 3, 4, 4), h(2, 3, 4, 4)),
    "conv transpose": lambda x, h: F.conv_transpose2d(x, h(3, 2, 3, 3)),
    "masked fill": lambda x, h: x.masked_fill(h(2, 3, 4, 4) > 0, 0.0),
    "lerp": lambda x, h: torch.lerp(x, h(2, 3, 4, 4), 0.5),
    "out": lambda x, h: torch.add(x, x, out=torch.zeros(2, 3, 4, 4)),
}


@pytest.mark.parametrize("name", BATCH_NORM)
def test_mixed_devices_raise(device: torch.device, name: str) -> None:
    # The kernel that CUDA picks (cuDNN, flash attention) decides which words these use.
    with pytest.raises(RuntimeError, match=r"same device|should be the same|same type"):
        BATCH_NORM[name](torch.randn(2, 3, 4, 4, device=device), torch.randn)


def test_two_devices_of_one_kind_do_not_mix(device: torch.device, second: torch.device) -> None:
    with pytest.raises(RuntimeError, match=re.escape(f"found at least two devices, {device} and {second}!")):
        torch.ones(2, device=device) + torch.ones(2, device=second)


def test_a_host_number_may_mix(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    for y in (
        x * torch.tensor(2.0),
        torch.tensor(2.0) * x,
        x.clone().add_(torch.tensor(1.0)),
        x.where(x > 0, torch.tensor(0.0)),
    ):
        assert y.device == x.device


def test_a_host_index_may_be_used(device: torch.device) -> None:
    x = torch.arange(5.0, device=device)
    assert x[torch.tensor([0, 3])].tolist() == [0, 3]
    assert x[torch.tensor([True, False, False, True, False])].tolist() == [0, 3]
    x[torch.tensor([1])] = 9.0
    assert x.tolist() == [0, 9, 2, 3, 4]


def test_assigning_a_slice_copies_from_the_host(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    x[:2] = torch.tensor([1.0, 2.0])
    assert x.tolist() == [1, 2, 0, 0]


def test_a_gradient_of_another_device_is_refused(device: torch.device) -> None:
    words = (
        f"attempting to assign a gradient with device type '{device.type}' to a tensor with device type 'cpu'. Please ensure "
        "that the gradient and the tensor are on the same device"
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        nn.Parameter(torch.ones(2)).grad = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match=f"invalid gradient at index 0 - expected device cpu but got {device}"):
        (torch.ones(3, requires_grad=True) * 2).backward(torch.ones(3, device=device))


def test_device_memory_cannot_be_pinned(device: torch.device) -> None:
    words = f"cannot pin 'torch.{device.type}.FloatTensor' only dense CPU tensors can be pinned"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        torch.ones(2, device=device).pin_memory()


def test_a_constant_that_is_no_buffer_stays_behind(device: torch.device) -> None:
    class Normalise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.zeros(3)
            self.register_buffer("std", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - self.mean) / self.std

    module = Normalise().to(device)
    assert module.std.device == device and module.mean.device == HERE
    with pytest.raises(RuntimeError, match=TWO.format(device=device)):
        module(torch.randn(2, 3, device=device))


def test_class_weights_of_a_loss_have_to_move(device: torch.device) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    logits, labels = torch.randn(2, 3, device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(RuntimeError, match="same device"):
        loss(logits, labels)
    assert loss.to(device)(logits, labels).device == device
