"""Copies, waiting and counting: pinned memory, ``non_blocking`` in both directions and its two mistakes."""

from __future__ import annotations

import pytest
import torch
from conftest import Net, train_once
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from course_utils.simgpu import counters, counting, events


# ------------------------------------------------------------------------------------------------ on both
def test_pinned_memory_is_known_as_such(device: torch.device) -> None:
    pinned = torch.arange(4.0).pin_memory()
    assert pinned.is_pinned() and pinned.tolist() == [0, 1, 2, 3] and pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned() and not torch.ones(4).is_pinned() and not pinned.to(device).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned() and torch.tensor([1.0], pin_memory=True).is_pinned()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_pins_its_batches(device: torch.device, workers: int) -> None:
    data = TensorDataset(torch.randn(8, 3), torch.arange(8))
    for images, labels in DataLoader(data, 4, pin_memory=True, num_workers=workers):
        assert images.is_pinned() and labels.is_pinned()
        assert images.to(device, non_blocking=True).device == device


class OnDevice(Dataset):
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, device=self.device)


def test_a_forked_worker_cannot_use_the_device(device: torch.device) -> None:
    torch.ones(1, device=device)  # CUDA is started in this process
    loader = DataLoader(OnDevice(device), num_workers=1, multiprocessing_context="fork")
    name = device.type.upper()
    words = f"Cannot re-initialize {name} in forked subprocess. To use {name} with multiprocessing, you must use the 'spawn'"
    with pytest.raises(RuntimeError, match=words):
        next(iter(loader))
    assert next(iter(DataLoader(OnDevice(device)))).device == device


def test_a_queued_copy_has_arrived_when_a_kernel_uses_it(device: torch.device) -> None:
    x = torch.arange(4.0).pin_memory()
    assert (x.to(device, non_blocking=True) * 2).tolist() == [0, 2, 4, 6]


def test_waiting_between_copies_keeps_a_reused_buffer_right(device: torch.device) -> None:
    buffer, sent = torch.empty(4).pin_memory(), []
    for i in range(3):
        buffer.fill_(i)
        sent.append(buffer.to(device, non_blocking=True))
        torch.accelerator.synchronize()
    assert [x[0].item() for x in sent] == [0, 1, 2]


def test_a_reused_buffer_that_is_not_pinned_is_safe(device: torch.device) -> None:
    buffer, sent = torch.empty(4), []
    for i in range(3):
        buffer.fill_(i)
        sent.append(buffer.to(device, non_blocking=True))
    assert [x[0].item() for x in sent] == [0, 1, 2]


def test_a_copy_to_the_host_is_right_after_waiting(device: torch.device) -> None:
    x = torch.ones(4, device=device)
    host = x.to("cpu", non_blocking=True)
    x += 1  # later in the stream: does not change what was copied
    torch.accelerator.synchronize()
    assert host.tolist() == [1, 1, 1, 1] and host.is_pinned()


# ------------------------------------------------------------------------------------------------ both mistakes
def test_overwriting_a_pinned_source_changes_what_arrives(sim: torch.device) -> None:
    buffer, sent = torch.empty(4).pin_memory(), []
    for i in range(3):
        buffer.fill_(i)
        sent.append(buffer.to(sim, non_blocking=True))
    torch.accelerator.synchronize()
    assert [x[0].item() for x in sent] == [2, 2, 2]
    assert counters().hazards == 2  # the second and the third fill


def test_overwriting_a_source_is_a_mistake_even_where_the_numbers_come_out_right(sim: torch.device) -> None:
    buffer = torch.ones(4).pin_memory()
    moved = buffer.to(sim, non_blocking=True) * 1  # has run in the simulation; on a GPU nobody has waited for it
    buffer.zero_()
    assert moved.tolist() == [1, 1, 1, 1] and counters().hazards == 1


def test_reading_before_the_copy_is_done_gives_what_was_there(sim: torch.device) -> None:
    x = torch.ones(4, device=sim)
    fresh = x.to("cpu", non_blocking=True)
    reused = torch.full((4,), 7.0).pin_memory()
    reused.copy_(x, non_blocking=True)
    assert fresh.isnan().all() and reused.tolist() == [7, 7, 7, 7] and fresh.numpy()[0] != 1
    assert counters().hazards == 3
    torch.accelerator.synchronize()
    assert fresh.tolist() == reused.tolist() == [1, 1, 1, 1] and counters().hazards == 3


def test_an_event_waits_for_the_copies_before_it_and_for_no_later_one(sim: torch.device) -> None:
    first, second = torch.ones(2).pin_memory(), torch.ones(2).pin_memory()
    event = torch.sim.Event()
    sent = [first.to(sim, non_blocking=True)]
    event.record()
    assert not event.query()
    sent.append(second.to(sim, non_blocking=True))
    event.synchronize()
    assert event.query()
    first.zero_(), second.zero_()
    assert sent[0].tolist() == [1, 1] and sent[1].tolist() == [0, 0]
    assert counters().hazards == 1


@pytest.mark.parametrize("recorded", [False, True])
def test_an_event_that_was_not_recorded_after_the_copy_does_not_wait_for_it(sim: torch.device, recorded: bool) -> None:
    source, event = torch.ones(2).pin_memory(), torch.sim.Event()
    if recorded:
        event.record()
    sent = source.to(sim, non_blocking=True)
    event.synchronize()
    source.zero_()
    assert event.query() and sent.tolist() == [0, 0]


def test_a_stream_records_an_event_where_it_is(sim: torch.device) -> None:
    source = torch.ones(2).pin_memory()
    sent = source.to(sim, non_blocking=True)
    torch.sim.current_stream().record_event().synchronize()
    source.zero_()
    assert sent.tolist() == [1, 1]


def test_integers_that_have_not_arrived_can_be_recognised(sim: torch.device) -> None:
    labels = torch.arange(3, device=sim).to("cpu", non_blocking=True)
    assert labels.tolist() == [-1, -1, -1]


def test_a_copy_to_memory_that_is_not_pinned_waits(sim: torch.device) -> None:
    host = torch.zeros(4)
    with counting() as cost:
        host.copy_(torch.ones(4, device=sim), non_blocking=True)
        assert host.tolist() == [1, 1, 1, 1]
    assert (cost.synchronisations, cost.hazards) == (1, 0)


def test_a_queued_copy_into_a_device_tensor_is_late_too(sim: torch.device) -> None:
    target, source = torch.zeros(4, device=sim), torch.ones(4).pin_memory()
    target.copy_(source, non_blocking=True)
    source.fill_(5)
    assert target.tolist() == [5, 5, 5, 5]


def test_a_source_that_nobody_holds_is_kept_until_it_was_read(sim: torch.device) -> None:
    moved = torch.ones(4).pin_memory().to(sim, non_blocking=True)
    torch.zeros(4)
    assert moved.tolist() == [1, 1, 1, 1] and counters().hazards == 0


# ------------------------------------------------------------------------------------------------ counting
def test_copies_and_bytes_are_counted_both_ways(sim: torch.device) -> None:
    with counting() as cost:
        x = torch.ones(1000).to(sim)
        x.cpu()
        torch.tensor([1.0, 2.0], device=sim)
        x.to("sim:1")
    assert (cost.h2d, cost.h2d_bytes) == (2, 4008)
    assert (cost.d2h, cost.d2h_bytes) == (1, 4000)
    assert (cost.d2d, cost.d2d_bytes) == (1, 4000)
    assert cost.transfers == 3


def test_converting_before_the_move_sends_more_bytes_than_after(sim: torch.device) -> None:
    image = torch.zeros(1000, dtype=torch.uint8)
    sizes = []
    for move in (
        lambda: image.to(sim).float(),
        lambda: image.to(sim, torch.float32),  # a blocking copy converts on the host
        lambda: image.pin_memory().to(sim, torch.float32, non_blocking=True),
        lambda: torch.zeros(1000, device=sim).to("cpu", torch.float64),
        lambda: torch.zeros(1000, device=sim).to("cpu", torch.float64, non_blocking=True),
    ):
        with counting() as cost:
            move()
        sizes.append(cost.h2d_bytes + cost.d2h_bytes)
    assert sizes == [1000, 4000, 1000, 4000, 8000]


WAITS = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "if": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "print": lambda x: repr(x),
    "nonzero": lambda x: x.nonzero(),
    "mask as index": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "index from the host": lambda x: x[torch.tensor([0])],
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x),
    "synchronize": lambda x: torch.accelerator.synchronize(),
    "blocking copy": lambda x: torch.ones(3).to(x.device),
    "tensor from a list": lambda x: torch.tensor([1.0], device=x.device),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_makes_the_host_wait_counts_once(sim: torch.device, name: str) -> None:
    x = torch.ones(3, device=sim)
    with counting() as cost:
        WAITS[name](x)
    assert cost.synchronisations == 1


GOES_ON = {
    "arithmetic": lambda x: (x * 2 + 1).sum(),
    "argmax": lambda x: x.argmax(),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "sort": lambda x: x.sort(),
    "queued copy": lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
    "queued copy back": lambda x: x.to("cpu", non_blocking=True),
    "detach": lambda x: x.detach(),
    "shape": lambda x: x.shape,
    "fill": lambda x: torch.zeros(3, device=x.device),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_what_lets_the_host_go_on_counts_no_wait(sim: torch.device, name: str) -> None:
    x = torch.ones(3, device=sim)
    with counting() as cost:
        GOES_ON[name](x)
    assert cost.synchronisations == 0


def test_views_and_allocations_are_no_kernels(sim: torch.device) -> None:
    with counting() as cost:
        x = torch.empty(4, 6, device=sim)
        x.t()[1:].view(5, 4).detach().expand(2, 5, 4)
    assert cost.kernels == 0
    with counting() as cost:
        (x.zero_() + 1).relu()
    assert cost.kernels == 3


def test_a_training_loop_costs_the_same_in_every_run(sim: torch.device) -> None:
    def cost_of(read_every_loss: bool) -> tuple[int, ...]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 3)).to(sim)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        batches = DataLoader(TensorDataset(torch.randn(64, 48), torch.randint(0, 3, (64,))), 8)
        total = torch.zeros((), device=sim)
        with counting() as cost:
            for images, labels in batches:
                loss = nn.functional.cross_entropy(model(images.to(sim)), labels.to(sim))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() if read_every_loss else loss.detach()
            total.item()
        return cost.h2d, cost.h2d_bytes, cost.synchronisations, cost.kernels

    careful, chatty = cost_of(False), cost_of(True)
    assert careful == cost_of(False)
    assert careful[:2] == chatty[:2] == (16, 64 * 48 * 4 + 64 * 8)
    assert (careful[2], chatty[2]) == (17, 25)


def test_a_program_that_stays_on_the_cpu_costs_the_device_nothing(sim: torch.device, net: Net) -> None:
    train_once(net, torch.optim.Adam(net.parameters()), "cpu")
    assert counters() == type(counters())()


def test_events_come_in_the_order_of_the_program(sim: torch.device) -> None:
    x = torch.ones(2).pin_memory().to(sim, non_blocking=True)
    x.add_(1)
    torch.accelerator.synchronize()
    steps = [(event.side, event.what, event.detail) for event in events()]
    assert steps == [
        ("host", "copy queued", "h2d"),
        ("device", "copy done", "h2d"),
        ("device", "kernel", "add_"),
        ("host", "wait", "synchronize"),
    ]


def test_a_block_that_raises_is_counted(sim: torch.device) -> None:
    with pytest.raises(ZeroDivisionError), counting() as cost:
        torch.ones(2).to(sim)
        raise ZeroDivisionError
    assert cost.h2d == 1
