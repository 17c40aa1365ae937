"""How much memory do a loader's workers really need? Private memory, process by process, over epochs.

After a fork a worker shares every page with its parent. A page becomes the worker's own when either of them writes to it,
and *reading* a Python object writes: it counts a reference up and down. So a list of texts is copied, page after page,
into each worker that reads it, while the bytes of an array are not. That is what "a DataLoader that leaks" mostly is.

Three figures that people look at:

* **RSS**, resident set size: all pages of a process that are in memory. A page shared by five processes counts
  five times; a page that stops being shared changes nothing. RSS hides the growth.
* **PSS**: each page divided by the number of processes that share it.
* **USS**, unique set size: pages that this process alone has, what the machine would get back if it ended. This
  is the figure here.

Sources: proc(5), ``/proc/PID/smaps_rollup``; psutil's documentation, ``Process.memory_full_info``.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader

__all__ = ["Reading", "Series", "counted_bytes", "private_bytes", "start_method", "visible", "watch", "worker_memory"]


def private_bytes(pid: int | None = None) -> int:
    """USS of a process in bytes, by default of this one.

    Linux reads ``smaps_rollup``. macOS and Windows know the figure as well, on macOS for processes of one's own.

    Raises
    ------
    psutil.NoSuchProcess, psutil.AccessDenied
        If the process is gone, or another user's.
    """
    return int(psutil.Process(pid).memory_full_info().uss)


@dataclass(frozen=True)
class Reading:
    """The memory of a loader's workers at one moment.

    Attributes
    ----------
    epoch : int
        From 0.
    batches : int
        Batches that have come out of the loader since the first epoch began; 0 before any was loaded.
    workers : dict
        Process id -> private bytes (USS), one entry a worker.
    resident : dict
        Process id -> resident bytes (RSS), to see how little they tell.
    main : int
        Private bytes of the process that reads the batches.
    """

    epoch: int
    batches: int
    workers: dict[int, int]
    resident: dict[int, int]
    main: int


@dataclass
class Series:
    """The readings of one loader, in order.

    Attributes
    ----------
    readings : list of Reading
    at_start : dict
        Process id -> private bytes of a worker that has not read anything yet.
    """

    readings: list[Reading] = field(default_factory=list)
    at_start: dict[int, int] = field(default_factory=dict)

    def growth(self) -> dict[int, int]:
        """Process id -> the most that a worker's private memory grew above its start, in bytes."""
        most: dict[int, int] = {}
        for reading in self.readings:
            for pid, size in reading.workers.items():
                if pid in self.at_start:
                    most[pid] = max(most.get(pid, 0), size - self.at_start[pid])
        return most

    def totals(self) -> list[int]:
        """Private bytes of all workers together, one figure a reading."""
        return [sum(reading.workers.values()) for reading in self.readings]


class _Start:
    """A ``worker_init_fn`` that notes what a worker holds before it reads anything, then calls the loader's own."""

    def __init__(self, then: Callable[[int], None] | None, notes: Any) -> None:
        self._then, self._notes = then, notes

    def __call__(self, worker: int) -> None:
        if self._then is not None:
            self._then(worker)
        self._notes[worker] = private_bytes()


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector of the workers away from what they inherit.

    A collection writes a mark into every object that it visits. Workers would copy all of the parent's objects, whatever
    the data set is made of, and the figures would be noise.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def watch(loader: DataLoader, epochs: int = 3, points: int = 5) -> Iterator[tuple[Reading, Series]]:
    """Run a loader for some epochs, and read the memory of its workers while they live.

    A generator, so that a plot can follow. If the caller stops early, the workers are shut down with the generator.

    Parameters
    ----------
    loader : DataLoader
        With ``persistent_workers`` the growth over epochs shows; without, each epoch starts with new workers.
        A loader without workers gives readings with no worker in them.
    epochs : int
    points : int
        Readings per epoch; the last one falls on the epoch's last batch, when all workers are idle.

    Yields
    ------
    Reading
        The newest.
    Series
        All so far.
    """
    series, seen, total = Series(), 0, len(loader)
    wanted = {max(1, round(total * (k + 1) / points)) for k in range(points)} if total else set()
    # A plain shared array of 8-byte integers travels to a worker with every start method.
    notes = multiprocessing.get_context(start_method(loader)).Array("q", max(1, loader.num_workers), lock=False)
    own = loader.worker_init_fn
    loader.worker_init_fn = _Start(own, notes)
    iterator = None
    try:
        for epoch in range(epochs):
            # Only where workers are started: a collection takes a fraction of a second.
            starts = loader.num_workers and (epoch == 0 or not loader.persistent_workers)
            with _frozen() if starts else nullcontext():
                iterator = iter(loader)
            for number, _batch in enumerate(iterator, 1):
                seen += 1
                if number in wanted:
                    reading = _read(iterator, epoch, seen)
                    for worker, pid in enumerate(reading.workers):
                        series.at_start.setdefault(pid, notes[worker])
                    series.readings.append(reading)
                    yield reading, series
    finally:
        iterator = None  # without persistent workers this ends them
        loader.worker_init_fn = own


def worker_memory(loader: DataLoader, epochs: int = 3, points: int = 5) -> Series:
    """As :func:`watch`, all at once."""
    series = Series()
    for _, series in watch(loader, epochs, points):  # noqa: B007
        pass
    return series


def _read(iterator: Any, epoch: int, batches: int) -> Reading:
    workers: dict[int, int] = {}
    resident: dict[int, int] = {}
    for process in getattr(iterator, "_workers", []):
        info = psutil.Process(process.pid).memory_full_info()
        workers[process.pid], resident[process.pid] = int(info.uss), int(info.rss)
    return Reading(epoch, batches, workers, resident, private_bytes())


def start_method(loader: DataLoader | None = None) -> str:
    """How a loader's workers come into being on this machine: ``fork``, ``spawn`` or ``forkserver``."""
    context = None if loader is None else loader.multiprocessing_context
    return (multiprocessing if context is None else context).get_start_method()


def visible(loader: DataLoader | None = None) -> str:
    """What the figures of this module can show on this machine, and what they cannot; one paragraph."""
    method, system = start_method(loader), {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
    if method == "fork":
        return (
            f"{system}, workers by fork: a worker starts with all pages shared. Private memory shows, page by page, what "
            "it has copied since."
        )
    why = {
        "spawn": "a new Python that imports torch again",
        "forkserver": "a fork of a small server process, the default on Linux from Python 3.14 on",
    }[method]
    return (
        f"{system}, workers by {method}: each is {why}, and gets the data set by pickle. Everything in it is private from "
        "the start, imports too, so that no growth shows: look at the height of the curve. What copying on write "
        "would cost, counted_bytes estimates from the objects that the data set holds."
    )


def counted_bytes(thing: Any) -> int:
    """Bytes of the Python objects that ``thing`` holds and whose reference counts a read may touch.

    The elements of arrays and tensors are no objects and do not count; the texts in a list do, and so do those
    in an array of dtype object. An estimate of what a forked worker would copy, for systems that do not fork.
    """
    seen: set[int] = set()
    queue, total = [thing], 0
    skip = (type, type(sys), type(lambda: None), type(len), torch.dtype, np.dtype)
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, skip):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            if item.dtype.hasobject:
                queue.extend(item.reshape(-1).tolist())
            if item.base is not None:
                queue.append(item.base)
        elif isinstance(item, torch.Tensor):
            continue
        elif not isinstance(item, (bytes, bytearray, memoryview)):
            total += sys.getsizeof(item)
            queue.extend(gc.get_referents(item))
    return total
