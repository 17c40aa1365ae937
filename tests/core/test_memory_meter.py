"""The meter counts exact bytes: every figure here is worked out by hand."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

from course_utils.meter import bytes_saved_for_backward, memory, storage_bytes

KB = 4000  # bytes of a float32 tensor of 1000 elements


@pytest.fixture(autouse=True)
def nothing_stays_switched():
    assert gc.isenabled()
    yield
    assert gc.isenabled()
    assert not tracemalloc.is_tracing()


def x() -> torch.Tensor:
    return torch.ones(10, 100)


def in_place(t):
    y = t + 1
    y += 1
    y.mul_(2)
    return y


def out_argument(t):
    y = torch.empty_like(t)
    torch.add(t, 1, out=y)
    return y


def freed_between(t):
    a = t + 1
    del a
    return t + 2


def grown(t):
    y = torch.empty(10)
    y.resize_(1000)
    return y


def shrunk_storage(t):
    y = torch.empty(1000)
    y.untyped_storage().resize_(0)
    return y, t + 1


def without_graph(t):
    with torch.inference_mode():
        # matmul's result (2000) and the weight (20,000); linear arrives whole under inference mode
        return torch.nn.functional.linear(t, torch.ones(50, 100)).reshape(100, 5)


def backward(t):
    w = torch.ones(10, 100, requires_grad=True)
    (w * t).sum().backward()
    return w


def cycle(t):
    ring = [t + 1]
    ring.append(ring)


PROGRAMS = {
    # name: (program, peak, current, allocated)
    "one result": (lambda t: t + 1, KB, KB, KB),
    "temporary results": (lambda t: ((t + 1) + 1) + 1, 2 * KB, KB, 3 * KB),
    "in place": (in_place, KB, KB, KB),
    "out=": (out_argument, KB, KB, KB),
    "freed between": (freed_between, KB, KB, 2 * KB),
    "views": (lambda t: (t.t(), t[2:], t.view(-1), t.expand(3, 10, 100), t.detach()), 0, 0, 0),
    "contiguous where it is": (lambda t: t.contiguous(), 0, 0, 0),
    "contiguous where it is not": (lambda t: t.t().contiguous(), KB, KB, KB),
    "a view of a result": (lambda t: (t + 1)[0], KB, KB, KB),
    "two views of a result": (lambda t: (t + 1).split(5), KB, KB, KB),
    "another dtype": (lambda t: t.double(), 2 * KB, 2 * KB, 2 * KB),
    "several results": (lambda t: t.max(dim=0), 400 + 800, 400 + 800, 400 + 800),
    "nothing kept": (lambda t: (t + 1).shape, KB, 0, KB),
    "resize_": (grown, KB, KB, KB),
    "inference mode": (without_graph, 22_000, 2_000, 22_000),
    "backward": (backward, 2 * KB + 8, 2 * KB, None),
    "a cycle lives to the end of the block": (cycle, KB, KB, KB),
    "empty": (lambda t: torch.empty(0), 0, 0, 0),
    "no tensor at all": (lambda t: [0] * 10_000, 0, 0, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_meter_counts_other_bytes_than_a_hand(name):
    program, peak, current, allocated = PROGRAMS[name]
    start = x()
    with memory() as used:
        kept = program(start)
        assert (used.peak, used.current) == (peak, current)
        assert allocated in (None, used.allocated)
    del kept
    assert used.peak == peak


@pytest.mark.parametrize("name", ["in place", "temporary results", "inference mode", "resize_", "several results"])
def test_a_block_inside_a_block_spoils_the_figures_of_both(name):
    program, peak, current, allocated = PROGRAMS[name]
    start = x()
    with memory() as outer:
        before = start + 1
        with memory() as inner:
            kept = program(start)
        assert (inner.peak, inner.current, inner.allocated) == (peak, current, allocated)
        more = before.add_(1)
    assert outer.peak == KB + peak
    assert outer.allocated == KB + allocated
    del kept, more


def test_a_tensor_of_the_outer_block_counts_in_the_inner_one():
    with memory() as outer:
        a = torch.ones(1000)
        with memory() as inner:
            a.mul_(2)
            del a
        assert outer.current == 0
    assert (inner.peak, inner.current, outer.peak) == (0, 0, KB)


def test_a_tensor_without_memory_or_a_view_is_miscounted_among_the_storages():
    old = x()
    with memory() as used:
        old.view(-1), old + 1, torch.empty(5, device="meta").view(5, 1), torch.empty(0)
    assert used.storages == 3


def test_the_operator_of_the_peak_is_another():
    with memory() as used:
        torch.ones(10) @ torch.ones(10, 1000)
    assert used.peak == 40 + 40_000 + KB
    assert used.peak_operator == "aten.mm.default"


def test_a_result_that_lives_on_counts_in_the_next_block():
    with memory():
        kept = torch.ones(1000)
    with memory() as used:
        kept += 1
        del kept
    assert (used.peak, used.current, used.allocated) == (0, 0, 0)


@pytest.mark.parametrize("numpy", [False, True])
def test_an_exception_leaves_the_meter_on(numpy):
    with pytest.raises(ZeroDivisionError), memory(numpy) as used:
        kept = torch.ones(1000)
        raise ZeroDivisionError
    assert kept.sum() == 1000
    assert used.peak >= KB
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_collector_that_was_off_is_switched_on():
    gc.disable()
    try:
        with memory():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_two_runs_give_different_figures():
    def run() -> int:
        layer = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        with memory() as used:
            layer(torch.ones(2, 3, 16, 16)).sum().backward()
        return used.peak

    assert len({run() for _ in range(3)}) == 1


# ------------------------------------------------------------------------------------------------ NumPy
MB = 1_000_000
ALLOWANCE = 20_000  # Python's own objects


def test_an_array_is_not_counted_or_counted_where_it_was_not_asked_for():
    with memory(numpy=True) as used:
        a = np.ones(MB, np.uint8)
        b = a + 1
        del a, b
    assert 2 * MB <= used.peak <= 2 * MB + ALLOWANCE
    assert used.peak_operator == "numpy"
    with memory() as used:
        np.ones(MB, np.uint8)
    assert used.peak == 0


def test_arrays_and_tensors_at_different_moments_are_added():
    with memory(numpy=True) as used:
        a = np.ones(MB, np.uint8)
        del a
        t = torch.ones(MB, dtype=torch.uint8)
        del t
    assert MB <= used.peak <= MB + ALLOWANCE


def test_arrays_and_tensors_at_the_same_moment_are_not_added():
    with memory(numpy=True) as used:
        a = np.ones(MB, np.uint8)
        t = torch.from_numpy(a)  # no bytes of its own
        u = t + 1
    assert 2 * MB <= used.peak <= 2 * MB + ALLOWANCE
    assert u.sum() == 2 * MB


def test_a_block_with_arrays_inside_another_hides_the_peak_of_the_outer_one():
    with memory(numpy=True) as outer:
        a = np.ones(2 * MB, np.uint8)
        del a
        with memory(numpy=True) as inner:
            b = np.ones(MB, np.uint8)
        c = np.ones(MB, np.uint8)
        assert b.size + c.size == 2 * MB
        del b, c
        d = np.ones(3 * MB, np.uint8)
        del d
    assert MB <= inner.peak <= MB + ALLOWANCE
    assert 3 * MB <= outer.peak <= 3 * MB + ALLOWANCE


def test_a_tracemalloc_of_the_students_own_is_stopped():
    tracemalloc.start()
    try:
        with memory(numpy=True) as used:
            a = np.ones(MB, np.uint8)
            del a
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert MB <= used.peak <= MB + ALLOWANCE


def test_an_answer_that_stops_tracemalloc_costs_nothing():
    with pytest.raises(RuntimeError, match="tracemalloc"), memory(numpy=True):
        np.ones(MB, np.uint8)
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------ saved, storages
def test_a_shared_storage_counts_twice():
    t = torch.ones(1000)
    assert storage_bytes(t, t[1:], t.view(10, 100).t()) == KB
    assert storage_bytes(t, t.clone()) == 2 * KB
    assert storage_bytes(t[:0]) == KB
    assert storage_bytes() == 0


def test_bytes_saved_for_backward_are_other_than_by_hand():
    t = torch.ones(1000, requires_grad=True)
    assert bytes_saved_for_backward(lambda: t + t).bytes == 0
    saved = bytes_saved_for_backward(lambda: (t * 1.0).exp().exp())
    assert (saved.bytes, saved.tensors) == (2 * KB, 2)  # exp saves its result
    saved = bytes_saved_for_backward(lambda: t * t)
    assert (saved.bytes, saved.tensors) == (KB, 2)  # one storage, saved twice
    assert saved.result.shape == (1000,)
    weight = torch.nn.Parameter(torch.ones(1000))
    assert bytes_saved_for_backward(lambda: weight * t.detach()).bytes == KB
    with torch.no_grad():
        assert bytes_saved_for_backward(lambda: t * t).tensors == 0


def test_the_count_of_arrays_depends_on_how_many_finalizers_the_program_has():
    class Anything:
        pass

    alive, peaks = [], []
    for _ in range(3000):  # the table of all finalizers grows at least once on the way
        alive.append(Anything())
        weakref.finalize(alive[-1], len, ())
        with memory(numpy=True) as used:
            torch.zeros(3000)
        peaks.append(used.peak)
    assert max(peaks) - min(peaks) < 8192


# ------------------------------------------------------------------------------------------------ out of its sight
def test_a_thread_works_out_of_sight():
    with memory() as used:
        worker = threading.Thread(target=lambda: x() + 1)
        worker.start()
        worker.join()
    assert used.peak == 2 * KB
    assert threading.Thread._bootstrap_inner.__name__ == "_bootstrap_inner"


def test_a_thread_that_outlives_the_block_changes_its_figures():
    go = threading.Event()
    with memory() as used:
        worker = threading.Thread(target=lambda: go.wait(5) and x())
        worker.start()
    go.set()
    worker.join()
    assert (used.peak, used.storages) == (0, 0)


def test_an_answer_that_takes_the_meter_off_costs_nothing():
    with pytest.raises(RuntimeError, match="taken off"), memory():
        torch._C._pop_torch_dispatch_stack(None)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_answer_that_stops_tracemalloc_and_starts_it_again_costs_nothing():
    with pytest.raises(RuntimeError, match="tracemalloc was stopped"), memory(numpy=True):
        tracemalloc.stop()
        tracemalloc.start()


def test_a_storage_leads_to_the_meter():
    with memory() as used:
        y = x() + 1
        for reference in weakref.getweakrefs(y.untyped_storage()):
            if reference.__callback__ is not None:
                assert type(reference.__callback__.__self__) is list
                reference.__callback__(reference)  # nothing has died
        assert used.current == KB
