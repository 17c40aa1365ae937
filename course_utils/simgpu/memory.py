"""Memory of a simulated device, counted as CUDA's caching allocator counts what it has handed out."""

from __future__ import annotations

import torch

__all__ = ["BLOCK", "Account", "readable"]

BLOCK = 512  # bytes; CUDA's allocator rounds every request up to it (kMinBlockSize in CUDACachingAllocator)


def _rounded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def readable(size: int) -> str:
    """``20.00 MiB``: bytes as CUDA's messages write them."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"


class Account:
    """The bytes in use on one device.

    Attributes
    ----------
    current, peak : int
        Bytes in use now, and the most since the last :meth:`reset_peak`; each block is rounded up to 512 bytes.
    capacity : int or None
        Bytes the device has; None: no limit.
    """

    def __init__(self, index: int, capacity: int | None = None) -> None:
        self.index, self.capacity = index, capacity
        self.current = self.peak = self.allocations = 0

    def take(self, size: int) -> None:
        """Hand out ``size`` bytes; raises ``torch.OutOfMemoryError`` where they are not free."""
        block = _rounded(size)
        if self.capacity is not None and self.current + block > self.capacity:
            raise torch.OutOfMemoryError(
                f"SIM out of memory. Tried to allocate {readable(block)}. GPU {self.index} has a total capacity of "
                f"{readable(self.capacity)} of which {readable(self.capacity - self.current)} is free. "
                f"Of the allocated memory {readable(self.current)} is allocated by PyTorch."
            )
        self.current += block
        self.allocations += size > 0
        self.peak = max(self.peak, self.current)

    def give_back(self, size: int) -> None:
        self.current -= _rounded(size)

    def reset_peak(self) -> None:
        self.peak = self.current
