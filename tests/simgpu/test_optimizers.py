"""Where optimizers keep their state, and what happens when it is somewhere else."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import Net, train_once
from torch import nn

# optimizer, options, and per parameter: the state's entries and whether each lies with the parameter
STATES = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer": True}),
    "Adam": (torch.optim.Adam, {}, {"step": False, "exp_avg": True, "exp_avg_sq": True}),
    "Adam, foreach": (torch.optim.Adam, {"foreach": True}, {"step": False, "exp_avg": True, "exp_avg_sq": True}),
    "Adam, one by one": (torch.optim.Adam, {"foreach": False}, {"step": False, "exp_avg": True, "exp_avg_sq": True}),
    "Adam, fused": (torch.optim.Adam, {"fused": True}, {"step": True, "exp_avg": True, "exp_avg_sq": True}),
    "AdamW": (torch.optim.AdamW, {}, {"step": False, "exp_avg": True, "exp_avg_sq": True}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.9}, {"step": False, "square_avg": True, "momentum_buffer": True}),
}


def make(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind, options, _ = STATES[name]
    return kind(model.parameters(), lr=0.1, **options)


@pytest.mark.parametrize("name", STATES)
def test_state_lies_with_the_parameters_but_plain_step_counts_stay_on_the_cpu(
    device: torch.device, net: Net, name: str
) -> None:
    optimizer = make(name, net.to(device))
    train_once(net, optimizer, device)
    state = optimizer.state[net.first.weight]
    assert {key: value.device.type == device.type for key, value in state.items()} == STATES[name][2]


@pytest.mark.parametrize("name", STATES)
def test_training_changes_the_weights_as_on_the_cpu(device: torch.device, net: Net, name: str) -> None:
    twin = copy.deepcopy(net)
    for model, place in ((net, "cpu"), (twin.to(device), device)):
        optimizer = make(name, model)
        for _ in range(3):
            train_once(model, optimizer, place)
    assert torch.allclose(net.first.weight, twin.first.weight.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adam, one by one", "AdamW", "RMSprop"])
def test_state_that_stayed_behind_when_the_model_moved_raises(device: torch.device, net: Net, name: str) -> None:
    optimizer = make(name, net)
    train_once(net, optimizer, "cpu")
    net.to(device)
    with pytest.raises(RuntimeError, match="same device"):
        train_once(net, optimizer, device)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_loading_state_moves_it_to_the_parameters(device: torch.device, net: Net, name: str) -> None:
    optimizer = make(name, net)
    train_once(net, optimizer, "cpu")
    saved = copy.deepcopy(optimizer.state_dict())
    moved = copy.deepcopy(net).to(device)
    fresh = make(name, moved)
    fresh.load_state_dict(saved)
    state = fresh.state[moved.first.weight]
    assert {key: value.device.type == device.type for key, value in state.items()} == STATES[name][2]
    train_once(moved, fresh, device)


def test_one_optimizer_serves_parameters_on_two_devices(device: torch.device, second: torch.device) -> None:
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 3).to(device), nn.Linear(3, 3).to(second), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.b(self.a(x).to(second)).cpu())

    model = Split()
    optimizer = torch.optim.Adam(model.parameters())
    before = [p.detach().cpu().clone() for p in model.parameters()]
    for _ in range(2):
        train_once(model, None, device)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert all(not torch.equal(a, b.cpu()) for a, b in zip(before, model.parameters(), strict=True))
    assert [p.device for p in model.parameters()][::2] == [device, second, torch.device("cpu")]


def test_an_optimizer_of_a_newer_pytorch_asks_the_stream_in_vain(sim: torch.device) -> None:
    assert torch.accelerator.current_stream().is_capturing() is False  # PyTorch 2.15 asks before each step
