"""The queue of copies that the host does not wait for.

Real hardware runs a ``non_blocking`` copy at some moment between the call and the next synchronisation. The simulation takes the moment that
shows a mistake, every time: the latest. A copy to the device is done when a kernel first needs its result, a copy to the host at the
next synchronisation. Meanwhile the memory of the copy belongs to the device, and a host that uses it has made a mistake.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Stream"]


@dataclass
class _Copy:
    direction: str  # h2d or d2h
    host: torch.UntypedStorage  # the memory on the host's side
    run: Callable[[], None]
    target: weakref.ref[torch.UntypedStorage] | None  # of a copy to the device: nobody may want the result any more
    number: int  # its place in the order of all copies, from 1
    done: bool = False


class Stream:
    """Copies in the order in which they were asked for.

    Parameters
    ----------
    delivered : callable
        Called with the direction when a queued copy has been done.
    """

    def __init__(self, delivered: Callable[[str], None]) -> None:
        self._copies: list[_Copy] = []
        self._delivered = delivered
        self.position = 0  # how many copies have been asked for

    @property
    def busy(self) -> bool:
        """Whether copies are on their way that no synchronisation has waited for."""
        return bool(self._copies)

    def reached(self, position: int) -> bool:
        """Whether the host has waited for all copies up to ``position``."""
        return all(copy.number > position for copy in self._copies)

    def _queue(
        self,
        direction: str,
        host: torch.UntypedStorage,
        run: Callable[[], None],
        target: weakref.ref[torch.UntypedStorage] | None = None,
    ) -> None:
        self.position += 1
        self._copies.append(_Copy(direction, host, run, target, self.position))

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a copy from pinned memory. The source is read when the copy is done, not now."""
        source = source.detach()
        storage = weakref.ref(target.untyped_storage())
        layout = target.storage_offset(), target.size(), target.stride()
        dtype = target.dtype

        def run() -> None:
            memory = storage()  # a strong reference would keep memory in use that the program has freed
            if memory is not None:
                with torch._C._DisableTorchDispatch(), torch.no_grad():
                    torch.empty(0, dtype=dtype, device="cpu").set_(memory, *layout).copy_(source)

        self._queue("h2d", source.untyped_storage(), run, storage)

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a copy into pinned memory. Kernels that come later do not change what it delivers: streams keep order."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            source, target = source.detach().clone(), target.detach().data

        def run() -> None:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                target.copy_(source)

        self._queue("d2h", target.untyped_storage(), run)

    def needed(self, storage: torch.UntypedStorage) -> None:
        """A kernel reads or writes ``storage``: what was to be copied there has to be there."""
        for copy in self._copies:
            if not copy.done and copy.target is not None and copy.target() is storage:
                self._run(copy)

    def arriving(self, storage: torch.UntypedStorage) -> bool:
        """Whether a copy to the device that goes to ``storage`` has not been done yet."""
        return any(not c.done and c.target is not None and c.target() is storage for c in self._copies)

    def used_by_host(self, storage: torch.UntypedStorage, writes: bool) -> str | None:
        """Name the mistake in the host's using ``storage`` now, or None where there is none."""
        for copy in self._copies:
            if copy.host is storage:
                if copy.direction == "d2h":
                    return "memory used before the copy from the device was done"
                if writes:
                    return "pinned memory changed before the copy to the device was done"
        return None

    def wait(self, position: int | None = None) -> None:
        """Do what is queued, in order: everything, or the copies up to ``position``."""
        last = self.position if position is None else position
        copies, self._copies = self._copies, [c for c in self._copies if c.number > last]
        for copy in copies:
            if copy.number > last:
                break
            if not copy.done:
                self._run(copy)

    def _run(self, copy: _Copy) -> None:
        copy.done = True
        copy.run()
        self._delivered(copy.direction)
