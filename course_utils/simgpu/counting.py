"""Reading the counters: of the simulation, or of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from course_utils.simgpu.counters import Counters, Event
from course_utils.simgpu.world import current

__all__ = ["counters", "counting", "events"]


def counters() -> Counters:
    """The counts since the simulation began, as a copy. Subtract two copies to see what happened in between."""
    return current().counters.copy()


def events() -> list[Event]:
    """What happened since the simulation began, in order (the last 10,000 events)."""
    return list(current().events)


@contextmanager
def counting() -> Iterator[Counters]:
    """Count what a block does: ``with counting() as cost: ...``, then read ``cost.h2d_bytes``.

    Yields
    ------
    Counters
        Filled when the block is left, also by an exception.
    """
    before, counted = counters(), Counters()
    try:
        yield counted
    finally:
        counted.add(counters() - before)
