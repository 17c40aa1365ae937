"""Memory figures of the device, beside the meter of the course, and running out of memory."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from conftest import Net, train_once
from torch import nn

from course_utils.meter import bytes_saved_for_backward, memory
from course_utils.simgpu import Unsupported, simulated_gpu

accelerator = torch.accelerator


def test_figures_follow_what_lives(device: torch.device) -> None:
    start = accelerator.memory_allocated()
    x = torch.empty(1024, device=device)
    assert accelerator.memory_allocated() - start == 4096
    y = x * 2
    accelerator.reset_peak_memory_stats()
    del x
    assert accelerator.memory_allocated() - start == 4096
    assert accelerator.max_memory_allocated() - start == 8192
    view = y[:1]
    del y
    assert accelerator.memory_allocated() - start == 4096  # the view holds all of it
    del view
    assert accelerator.memory_allocated() == start


def test_blocks_are_rounded_up_to_512_bytes(device: torch.device) -> None:
    start = accelerator.memory_allocated()
    x = torch.empty(3, device=device)
    y = torch.empty(0, device=device)
    assert accelerator.memory_allocated() - start == 512
    del x, y


def test_each_device_has_its_own_figures(device: torch.device, second: torch.device) -> None:
    before = accelerator.memory_allocated(device), accelerator.memory_allocated(second)
    x = torch.empty(1024, device=second)
    assert (accelerator.memory_allocated(device), accelerator.memory_allocated(1)) == (before[0], before[1] + x.nbytes)


def test_a_tensor_that_grows_takes_more(device: torch.device) -> None:
    start = accelerator.memory_allocated()
    x = torch.empty(128, device=device)
    x.resize_(1024)
    assert accelerator.memory_allocated() - start == 4096
    del x
    assert accelerator.memory_allocated() == start


def test_a_trained_model_leaves_nothing_when_it_goes(device: torch.device, net: Net) -> None:
    start = accelerator.memory_allocated()
    net.to(device)
    optimizer = torch.optim.Adam(net.parameters())
    train_once(net, optimizer, device)
    assert accelerator.memory_allocated() > start
    for parameter in net.parameters():
        parameter.data = torch.empty(0)
    optimizer.state.clear()
    net.to("cpu")
    gc.collect()
    assert accelerator.memory_allocated() == start


def test_stats_agree_with_the_figures(device: torch.device) -> None:
    x = torch.ones(1024, device=device)
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == accelerator.memory_allocated() >= x.nbytes
    assert stats["allocated_bytes.all.peak"] == accelerator.max_memory_allocated()


def test_a_tensor_freed_before_its_copy_ran_is_free(sim: torch.device) -> None:
    x = torch.ones(1024).pin_memory().to(sim, non_blocking=True)
    assert accelerator.memory_allocated() == 4096
    del x
    assert accelerator.memory_allocated() == 0


def test_running_out_of_memory_raises_and_leaves_the_figures_right() -> None:
    with simulated_gpu(memory=2**20) as device:
        x = torch.empty(2**17, device=device)
        assert accelerator.get_memory_info() == (2**19, 2**20)
        words = r"SIM out of memory. Tried to allocate 768.00 KiB. GPU 0 has a total capacity of 1.00 MiB of which 512.00 KiB is free"
        with pytest.raises(torch.OutOfMemoryError, match=words):
            torch.empty(3 * 2**16, device=device)
        assert accelerator.memory_allocated() == x.nbytes
        del x
        torch.empty(3 * 2**16, device=device)


def test_figures_without_a_meaning_are_refused(sim: torch.device) -> None:
    for ask in (accelerator.memory_reserved, accelerator.max_memory_reserved, accelerator.get_memory_info):
        with pytest.raises(Unsupported):
            ask()
    accelerator.empty_cache()


# ------------------------------------------------------------------------------------------------ with the meter
def program(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
    images, labels = torch.randn(4, 3, 8, 8, device=device), torch.arange(4, device=device)
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


@pytest.mark.parametrize("meter_outside", [True, False])
def test_the_meter_counts_on_the_device_what_it_counts_on_the_cpu(meter_outside: bool) -> None:
    def measure(device: torch.device) -> tuple[int, int]:
        with memory() as used:
            program(device)
        return used.peak, used.allocated

    if meter_outside:
        with memory() as used, simulated_gpu() as device:
            program(device)
        figures = used.peak, used.allocated
    else:
        with simulated_gpu() as device:
            figures = measure(device)
    here = measure(torch.device("cpu"))
    parameters = (
        4 * (3 * 8 * 9 + 8 + 8 * 2 + 8 * 36 * 5 + 5) + 4 * 8 * 2 + 8
    )  # copied to the device, running statistics too
    # The count of batches, 8 bytes, is made by torch.tensor, which is no operator: the meter meets it when it is copied.
    assert figures == (here[0] + 8, here[1] + parameters)


def test_the_meter_sees_a_copy_to_the_device(sim: torch.device) -> None:
    x = torch.ones(1000)
    with memory() as used:
        y = x.to(sim)
        z = y.cpu()
    assert (used.peak, used.current) == (8000, 8000)
    del z


def test_what_is_saved_for_backward_is_the_same_on_the_device(sim: torch.device, net: Net) -> None:
    x = torch.randn(8, 4)
    here = bytes_saved_for_backward(net, x)
    there = bytes_saved_for_backward(net.to(sim), x.to(sim))
    assert (here.bytes, here.tensors) == (there.bytes, there.tensors) and there.result.device == sim
