"""What a program made the device do, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

__all__ = ["Counters", "Event"]


@dataclass
class Counters:
    """Exact counts, the same in every run. The simulation has no clock.

    Attributes
    ----------
    h2d, h2d_bytes : int
        Copies from the host to a device, and their bytes.
    d2h, d2h_bytes : int
        Copies from a device to the host. ``x.item()`` is a synchronisation and not counted here.
    d2d, d2d_bytes : int
        Copies between devices.
    kernels : int
        Operators that computed something on a device. Views and allocations do not count. Real hardware may run
        several kernels for one operator.
    synchronisations : int
        Times that the host had to wait for the device: ``item()``, a blocking copy, ``nonzero``, a mask as index,
        ``synchronize()``.
    hazards : int
        Times that the host used memory of a copy that was still on its way: it read or changed what a
        ``non_blocking`` copy had not delivered yet, or overwrote a pinned source that had not been read yet.
    """

    h2d: int = 0
    h2d_bytes: int = 0
    d2h: int = 0
    d2h_bytes: int = 0
    d2d: int = 0
    d2d_bytes: int = 0
    kernels: int = 0
    synchronisations: int = 0
    hazards: int = 0

    @property
    def transfers(self) -> int:
        """Copies between the host and a device, both ways."""
        return self.h2d + self.d2h

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def copy(self) -> Counters:
        return self - Counters()

    def add(self, other: Counters) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


class Event(NamedTuple):
    """One step of the program, in the order in which it happened.

    Attributes
    ----------
    side : str
        ``host`` or ``device``: who did it.
    what : str
        ``kernel``, ``copy``, ``copy queued``, ``copy done``, ``wait`` or ``hazard``.
    detail : str
        The operator, the direction of the copy, or the reason for waiting.
    bytes : int
        Of a copy; else 0.
    """

    side: str
    what: str
    detail: str = ""
    bytes: int = 0
