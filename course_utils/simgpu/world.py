"""The state of the simulation: devices, their memory, one stream, the counters, the order of events."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from course_utils.simgpu import errors
from course_utils.simgpu.colours import (
    MOST_DEVICES,
    NAME,
    Place,
    device_of,
    devices,
    is_pinned,
    mark_of,
    pin,
    unplaced,
)
from course_utils.simgpu.counters import Counters, Event
from course_utils.simgpu.memory import Account
from course_utils.simgpu.stream import Stream

__all__ = ["World", "active", "asked_by_user", "current", "in_user_call"]

MOST_EVENTS = 10_000  # the oldest are dropped

HOST = torch.device("cpu")


class World:
    """One set of simulated devices.

    Parameters
    ----------
    count : int
        How many devices, 1 to 8.
    memory : int or None
        Bytes of each device; asking for more raises ``torch.OutOfMemoryError``. None: no limit.
    """

    def __init__(self, count: int = 1, memory: int | None = None) -> None:
        if not 1 <= count <= MOST_DEVICES:
            raise ValueError(f"count has to be 1 to {MOST_DEVICES}, not {count}")
        self.devices = devices()[:count]
        self.current = 0  # index of the device that a bare "sim" means
        self.accounts = [Account(index, memory) for index in range(count)]
        self.counters = Counters()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.stream = Stream(lambda direction: self.events.append(Event("device", "copy done", direction)))
        self.process = os.getpid()

    def resolve(self, device: torch.device | str | int | None) -> torch.device | None:
        """The simulated device that ``device`` names; None where it names another kind of device.

        Raises
        ------
        RuntimeError
            In CUDA's words: for a device that does not exist, and in a forked process.
        """
        if isinstance(device, int):
            index = device
        else:
            device = torch.device(NAME if device is None else device)
            if device.type != NAME:
                return None
            index = self.current if device.index is None else device.index
        if os.getpid() != self.process:
            errors.bad_fork()
        if not 0 <= index < len(self.devices):
            errors.no_such_device()
        return self.devices[index]

    def account(self, device: torch.device | str | int | None = None) -> Account:
        found = self.resolve(device)
        if found is None:
            raise ValueError(f"{device} is no device of the simulation; it has {', '.join(map(str, self.devices))}")
        return self.accounts[found.index]

    # ---------------------------------------------------------------------------------------------- placing
    def place(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Let a fresh CPU tensor lie on ``device`` from now on."""
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:
            raise errors.Unsupported(f"tensors of layout {tensor.layout}", "Use dense tensors.") from None
        storage._sim = Place(device, self.accounts[device.index], storage.nbytes())
        return tensor

    # ---------------------------------------------------------------------------------------------- waiting
    def synchronise(self, reason: str, position: int | None = None) -> None:
        """The host waits until the device has done everything, or all copies up to a position in the stream."""
        self.counters.synchronisations += 1
        self.events.append(Event("host", "wait", reason))
        self.stream.wait(position)

    def host_uses(self, memory: torch.UntypedStorage, writes: bool = False) -> None:
        """Called when the host reads or changes its memory while copies are on their way."""
        mistake = self.stream.used_by_host(memory, writes)
        if mistake is not None:
            self.counters.hazards += 1
            self.events.append(Event("host", "hazard", mistake))

    # ---------------------------------------------------------------------------------------------- copying
    def record_copy(self, direction: str, size: int, queued: bool = False) -> None:
        counters = self.counters
        setattr(counters, direction, getattr(counters, direction) + 1)
        setattr(counters, direction + "_bytes", getattr(counters, direction + "_bytes") + size)
        self.events.append(Event("host", "copy queued" if queued else "copy", direction, size))

    def copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
        """Copy between two devices, as ``target.copy_(source, non_blocking)`` does on CUDA.

        Which bytes travel, and when the host waits, follows ``ATen/native/cuda/Copy.cu``: a blocking copy converts
        dtypes on the host, an asynchronous one on the device; only pinned memory lets the host go on.
        """
        to, origin = device_of(target), device_of(source)
        direction = "h2d" if origin is None else "d2h" if to is None else "d2d"
        convert_first = (direction == "h2d") != non_blocking or direction == "d2d"
        size = target.numel() * (target if convert_first else source).element_size()
        host = source if direction == "h2d" else target
        contiguous = source.is_contiguous() or source.stride() == target.stride()
        same_form = contiguous and source.shape == target.shape and source.dtype == target.dtype
        # With another layout CUDA copies to pageable memory first: then there is nothing left to overwrite.
        queued = non_blocking and direction != "d2d" and is_pinned(host) and same_form and target.numel() > 0
        if origin is not None:
            self.stream.needed(source.untyped_storage())
        if to is not None:
            self.stream.needed(target.untyped_storage())
        self.record_copy(direction, size, queued)
        if queued and direction == "h2d":
            self.stream.to_device(source, target)
            return
        if queued:
            self.stream.to_host(source, target)
            return
        if direction == "d2h" or (direction == "h2d" and not non_blocking):
            self.synchronise("copy to the host" if direction == "d2h" else "blocking copy to the device")
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            target.copy_(source)

    def moved(
        self, source: torch.Tensor, device: torch.device | None, non_blocking: bool, memory_format: torch.memory_format
    ) -> torch.Tensor:
        """A copy of ``source`` on ``device`` (None: the host), outside of autograd."""
        with torch.no_grad(), in_user_call():
            place = HOST if device is None else device
            target = torch.empty_like(source, device=place, memory_format=memory_format, requires_grad=False)
            if non_blocking and device is None:
                pin(target)  # as PyTorch does: Tensor.to allocates pinned memory for it
                # Whatever lay in that memory before is what an impatient reader gets; here it can be recognised.
                with torch._C._DisableTorchDispatch():
                    target.fill_(float("nan") if target.is_floating_point() or target.is_complex() else -1)
            self.copy(target, source.detach(), non_blocking)
        return target


# ------------------------------------------------------------------------------------------------ the active world
_stack: list[World] = []


def active() -> bool:
    return bool(_stack)


def current() -> World:
    """The innermost active world.

    Raises
    ------
    RuntimeError
        Where none is active.
    """
    if not _stack:
        raise RuntimeError(
            "the simulated GPU is off: call course_utils.simgpu.enable(), or use `with simulated_gpu():`"
        )
    return _stack[-1]


# ------------------------------------------------------------------------------------------------ who asks?
class _Local(threading.local):
    in_user_call = False


_local = _Local()


def asked_by_user() -> bool:
    """Whether a tensor is being made because Python code asked for it, not PyTorch's C++ for itself."""
    return _local.in_user_call


@contextmanager
def in_user_call() -> Iterator[None]:
    """Take ``device="cpu"`` at its word inside the block."""
    before, _local.in_user_call = _local.in_user_call, True
    try:
        yield
    finally:
        _local.in_user_call = before


def adopt(tensor: torch.Tensor, device: torch.device) -> bool:
    """Let a tensor that C++ made for itself follow its partners to ``device``; False where it is somebody's own."""
    if mark_of(tensor) is not unplaced:
        return False
    current().place(tensor, device)
    return True
