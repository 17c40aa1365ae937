"""Moving tensors and modules, and gradients across devices."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import Net, train_once
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet18


def test_moving_to_where_it_is_returns_the_tensor_itself(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    assert x.to(device) is x and x.to(device.type) is x and x.to(x) is x
    assert x.to(device, copy=True) is not x


def test_moving_a_tensor_leaves_the_original(device: torch.device) -> None:
    x = torch.ones(2)
    y = x.to(device)
    y += 1
    assert x.device.type == "cpu" and x.tolist() == [1, 1] and y.tolist() == [2, 2]


@pytest.mark.parametrize(
    "move",
    [
        lambda x, d: x.to(d, torch.float64),
        lambda x, d: x.to(torch.float64).to(d),
        lambda x, d: x.to(device=d, dtype=torch.float64, non_blocking=True),
        lambda x, d: x.to(torch.zeros(1, dtype=torch.float64, device=d)),
        lambda x, d: x.to(other=torch.zeros(1, dtype=torch.float64, device=d)),
        lambda x, d: x.to(d, torch.float64, False, True),
    ],
)
def test_every_form_of_to_moves_and_converts(device: torch.device, move: object) -> None:
    y = move(torch.ones(2), device)
    assert y.dtype == torch.float64 and y.device == device and y.cpu().tolist() == [1, 1]


def test_moving_a_module_keeps_its_parameter_objects(device: torch.device, net: Net) -> None:
    weight = net.first.weight
    assert net.to(device) is net
    assert net.first.weight is weight and weight.device == net.norm.running_mean.device == device
    assert net.to(dtype=torch.bfloat16).first.weight.dtype == torch.bfloat16


def test_an_optimizer_made_before_the_move_still_trains(device: torch.device, net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.to(device)
    before = net.first.weight.detach().cpu().clone()
    train_once(net, optimizer, device)
    assert not torch.equal(before, net.first.weight.detach().cpu())


def test_moving_a_leaf_leaves_the_gradient_with_the_leaf(device: torch.device) -> None:
    leaf = torch.ones(3, requires_grad=True)
    moved = leaf.to(device)
    assert not moved.is_leaf
    (moved * 2).sum().backward()
    assert leaf.grad.device.type == "cpu" and leaf.grad.tolist() == [2, 2, 2]


def test_a_move_without_grad_mode_is_not_tracked(device: torch.device) -> None:
    with torch.no_grad():
        assert not torch.ones(2, requires_grad=True).to(device).requires_grad


def test_gradients_cross_devices_both_ways(device: torch.device, second: torch.device) -> None:
    a = torch.ones(2, requires_grad=True)
    b = torch.ones(2, device=device, requires_grad=True)
    out = torch.empty(2, device=second)
    out.copy_((a.to(device) * b).to(second) * 3)
    out.cpu().sum().backward()
    assert a.grad.device.type == "cpu" and b.grad.device == device
    assert a.grad.tolist() == b.grad.tolist() == [3, 3]


def test_copying_into_a_device_tensor_returns_the_gradient_to_the_source(device: torch.device) -> None:
    source = torch.ones(2, requires_grad=True)
    torch.zeros(2, device=device).copy_(source).sum().backward()
    assert source.grad.device.type == "cpu"


def test_gradients_lie_with_their_parameters(device: torch.device, net: Net) -> None:
    train_once(net.to(device), None, device)
    assert {p.grad.device for p in net.parameters()} == {device}


def test_second_derivatives_stay_on_the_device(device: torch.device) -> None:
    x = torch.tensor([1.0, -2.0], device=device, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad.tolist() == [6, -12]
    image = torch.randn(1, 2, 6, 6, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(F.max_pool2d(image, 2).sum(), image, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), image)
    assert second.device == device


def test_function_transforms_work(device: torch.device) -> None:
    weight = torch.ones(3, device=device)
    gradient = torch.func.grad(lambda w, x: (w * x).sum())
    assert torch.func.vmap(gradient, (None, 0))(weight, torch.randn(2, 3, device=device)).device == device
    seen = []
    torch.func.vmap(lambda x: seen.append(x.device) or x)(torch.ones(2, 3, device=device))
    assert seen == [device]
    moved = torch.func.grad(lambda x: x.to(device).square().sum())(torch.ones(3))
    assert moved.device.type == "cpu" and moved.tolist() == [2, 2, 2]
    assert torch.func.jvp(lambda x: x * x, (weight,), (weight,))[1].device == device


def test_functional_call_works(device: torch.device, net: Net) -> None:
    net.to(device)
    out = torch.func.functional_call(net, dict(net.named_parameters()), (torch.randn(8, 4, device=device),))
    assert out.device == device


def test_hooks_see_the_device(device: torch.device, net: Net) -> None:
    seen = []
    net.to(device).first.register_forward_hook(lambda module, args, out: seen.append(out.device))
    net.first.weight.register_hook(lambda gradient: seen.append(gradient.device))
    train_once(net, None, device)
    assert seen == [device, device]


def test_checkpointing_gives_the_same_gradients(device: torch.device, net: Net) -> None:
    x = torch.randn(8, 4, device=device, requires_grad=True)
    net.to(device).eval()
    net(x).sum().backward()
    expected, x.grad = x.grad, None
    checkpoint(net, x, use_reentrant=False).sum().backward()
    assert x.grad.device == device and torch.equal(x.grad, expected)


def test_a_deep_copy_stays_on_the_device(device: torch.device, net: Net) -> None:
    twin = copy.deepcopy(net.to(device))
    assert (
        type(twin.first.weight) is nn.Parameter and twin.first.weight.device == twin.norm.running_var.device == device
    )
    twin.first.weight.data.zero_()
    assert net.first.weight.abs().sum() > 0
    shared = copy.deepcopy({"a": (x := torch.ones(4, device=device)), "b": x[:2]})
    shared["a"][0] = 5
    assert shared["b"][0] == 5 and shared["b"].device == device


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.9)])
def test_averaged_weights_stay_on_the_device(device: torch.device, net: Net, average: object) -> None:
    averaged = AveragedModel(net.to(device), multi_avg_fn=average)
    for _ in range(2):
        averaged.update_parameters(net)
    assert averaged.module.first.weight.device == device
    assert torch.allclose(averaged.module.first.weight, net.first.weight)


def test_clipping_measures_on_the_device(device: torch.device, net: Net) -> None:
    train_once(net.to(device), None, device)
    assert nn.utils.clip_grad_norm_(net.parameters(), 0.1).device == device


MODULES = {
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "transformer in evaluation": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (2, 5, 8)),
    "attention": (lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)), (2, 5, 8)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Dropout2d()
        ),
        (2, 3, 8, 8),
    ),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_module_computes_on_the_device(device: torch.device, name: str, mode: type) -> None:
    make, shape = MODULES[name]
    module = make().to(device)
    with mode():
        out = module(torch.randn(shape, device=device))
    assert out.device == device
    if out.requires_grad:
        out.sum().backward()
        assert {p.grad.device for p in module.parameters()} == {device}


def test_a_recurrent_net_computes_on_the_device(device: torch.device) -> None:
    lstm = nn.LSTM(4, 5, 2).to(device)
    out, (h, c) = lstm(torch.randn(3, 2, 4, device=device))
    out.sum().backward()
    assert h.device == c.device == device
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4, device=device), torch.tensor([3, 2]))
    assert packed.batch_sizes.device.type == "cpu"
    assert nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])[0].device == device


def test_resnet_training_gives_the_numbers_of_the_cpu_bit_for_bit(sim: torch.device) -> None:
    def losses(device: torch.device | str) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(0)
        model = resnet18(num_classes=10).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
        images, labels = torch.randn(4, 3, 32, 32).to(device), torch.arange(4).to(device)
        result = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        return result, torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()

    (there, weights_there), (here, weights_here) = losses(sim), losses("cpu")
    assert there == here
    assert torch.equal(weights_there, weights_here)
