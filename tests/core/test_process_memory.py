"""Private memory of a loader's workers: lists grow, arrays do not, and nothing is left running."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from course_utils.observe.processes import settled_children
from course_utils.process_memory import counted_bytes, private_bytes, start_method, visible, watch, worker_memory

MIB = 2**20
forks = pytest.mark.skipif(sys.platform != "linux", reason="growth by copying on write needs workers that fork: Linux")


class Texts(Dataset):
    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return len(self.texts[index])


def texts(count=150_000):
    return [f"{i:06d}" * 12 for i in range(count)]


def growth(dataset):
    picked = np.random.default_rng(0).permutation(len(dataset))[:15_000]
    loader = DataLoader(Subset(dataset, picked.tolist()), batch_size=500, num_workers=2, multiprocessing_context="fork")
    return max(worker_memory(loader, epochs=1, points=2).growth().values()) / MIB


@forks
def test_a_list_that_workers_read_seems_to_cost_nothing():
    assert growth(Texts(texts())) > 12


@forks
def test_an_array_that_workers_read_seems_to_be_copied():
    assert growth(Texts(np.array(texts(), dtype="S"))) < 8


@forks
def test_private_bytes_miss_memory_that_was_written_or_count_shared_pages():
    block = np.ones(40 * MIB, np.uint8)
    reader, writer = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        before = private_bytes()
        block.sum()
        read = private_bytes()
        block[:] = 2
        writer.send((read - before, private_bytes() - read))
        os._exit(0)
    read, written = reader.recv()
    os.waitpid(pid, 0)
    assert read < 5 * MIB and 39 * MIB < written < 45 * MIB


@forks
def test_the_readings_do_not_follow_epochs_and_batches():
    loader = DataLoader(
        Texts(texts(40)), batch_size=4, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    series = worker_memory(loader, epochs=3, points=2)
    assert [(r.epoch, r.batches) for r in series.readings] == [(0, 5), (0, 10), (1, 15), (1, 20), (2, 25), (2, 30)]
    assert all(len(r.workers) == len(r.resident) == 2 and r.main > 0 for r in series.readings)
    assert set(series.at_start) == set(series.readings[0].workers), "persistent workers stay the same"
    assert all(r.resident[pid] > r.workers[pid] for r in series.readings for pid in r.workers)
    assert len(series.totals()) == 6


@forks
def test_watching_leaves_workers_a_hook_or_a_frozen_collector_behind():
    gc.collect()  # Python 3.12 itself freezes objects that never end: some hundreds
    own, frozen = len, gc.get_freeze_count()
    loader = DataLoader(
        Texts(texts(40)), batch_size=4, num_workers=2, multiprocessing_context="fork", worker_init_fn=None
    )
    for _ in watch(loader, epochs=5):
        break
    gc.collect()
    assert loader.worker_init_fn is None and own is len
    assert gc.get_freeze_count() < frozen + 1000
    assert settled_children(10) == []


@forks
def test_the_loaders_own_worker_init_fn_is_not_called(tmp_path):
    def init(worker):
        (tmp_path / str(worker)).touch()

    loader = DataLoader(Texts(texts(8)), num_workers=2, multiprocessing_context="fork", worker_init_fn=init)
    worker_memory(loader, epochs=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "1"]


def test_a_loader_without_workers_cannot_be_watched():
    series = worker_memory(DataLoader(Texts(texts(8)), batch_size=4), epochs=2, points=1)
    assert [r.workers for r in series.readings] == [{}, {}] and series.growth() == {} and series.totals() == [0, 0]


@pytest.mark.parametrize(
    ("context", "says"), [("fork", "all pages shared"), ("spawn", "no growth shows"), ("forkserver", "no growth shows")]
)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has spawn alone")
def test_it_is_not_said_what_the_figures_can_show(context, says):
    loader = DataLoader(Texts(texts(8)), num_workers=1, multiprocessing_context=context)
    assert start_method(loader) == context and says in visible(loader)


@pytest.mark.parametrize(
    ("make", "few"),
    [
        (list, False),
        (tuple, False),
        (lambda t: np.array(t, dtype=object), False),
        (lambda t: {i: x for i, x in enumerate(t)}, False),
        (lambda t: np.array(t), True),
        (lambda t: "".join(t).encode(), True),
        (lambda t: torch.zeros(len(t), 70, dtype=torch.uint8), True),
    ],
    ids=["list", "tuple", "objects", "dict", "array", "bytes", "tensor"],
)
def test_the_estimate_without_fork_takes_an_array_for_objects(make, few):
    estimate = counted_bytes(Texts(make(texts(10_000))))
    assert estimate < 100_000 if few else estimate > 1_000_000
