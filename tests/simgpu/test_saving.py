"""Checkpoints: a file remembers the device of its tensors."""

from __future__ import annotations

import io
import re

import pytest
import torch
from conftest import Net

from course_utils.simgpu import simulated_gpu


def saved(thing: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


def test_weights_come_back_to_the_device_they_were_saved_from(device: torch.device, net: Net) -> None:
    loaded = torch.load(saved(net.to(device).state_dict()))
    assert loaded["first.weight"].device == loaded["norm.running_mean"].device == device
    assert torch.equal(loaded["first.weight"], net.first.weight)


@pytest.mark.parametrize("where", ["cpu", torch.device("cpu"), lambda storage, location: storage])
def test_map_location_brings_them_to_the_cpu(device: torch.device, net: Net, where: object) -> None:
    loaded = torch.load(saved(net.to(device).state_dict()), map_location=where)
    assert loaded["first.weight"].device.type == "cpu"
    assert torch.equal(loaded["first.weight"], net.first.weight.cpu())


def test_map_location_sends_cpu_weights_to_the_device(device: torch.device, net: Net) -> None:
    for where in (device, device.type, {"cpu": str(device)}):
        assert torch.load(saved(net.state_dict()), map_location=where)["first.weight"].device == device


def test_shared_memory_stays_shared_in_a_file(device: torch.device) -> None:
    x = torch.zeros(4, device=device)
    loaded = torch.load(saved({"whole": x, "part": x[:2]}))
    loaded["whole"][0] = 7
    assert loaded["part"][0] == 7 and loaded["part"].device == device


def test_a_module_loads_weights_from_any_device_and_stays_where_it_is(device: torch.device, net: Net) -> None:
    elsewhere = Net().to(device)
    elsewhere.load_state_dict(net.state_dict())
    assert elsewhere.first.weight.device == device and torch.equal(elsewhere.first.weight.cpu(), net.first.weight)
    here = Net()
    here.load_state_dict(elsewhere.state_dict())
    assert here.first.weight.device.type == "cpu" and torch.equal(here.first.weight, net.first.weight)


def test_a_state_dict_is_on_the_device_and_follows_the_weights(device: torch.device, net: Net) -> None:
    state = net.to(device).state_dict()
    net.first.weight.data.zero_()
    assert state["norm.running_mean"].device == device and state["first.weight"].abs().sum() == 0


def test_a_file_from_a_device_does_not_load_without_one() -> None:
    with simulated_gpu() as device:
        file = saved({"x": torch.ones(3, device=device)})
    words = (
        "Attempting to deserialize object on a SIM device but torch.sim.is_available() is False. If you are running on a "
        "CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU."
    )
    with pytest.raises(RuntimeError, match=re.escape(words)):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["x"].tolist() == [1, 1, 1]


def test_a_file_from_a_second_device_does_not_load_with_one() -> None:
    with simulated_gpu(count=2):
        file = saved(torch.ones(3, device="sim:1"))
    words = "Attempting to deserialize object on SIM device 1 but torch.sim.device_count() is 1"
    with simulated_gpu(count=1) as device:
        with pytest.raises(RuntimeError, match=re.escape(words)):
            torch.load(file)
        file.seek(0)
        assert torch.load(file, map_location={"sim:1": "sim:0"}).device == device
