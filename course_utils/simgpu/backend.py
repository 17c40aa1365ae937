"""``torch.sim``: what PyTorch looks up in a device's module, and what ``torch.cuda`` offers to people.

While the simulation is on, ``torch.accelerator`` answers from here as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from course_utils.simgpu.colours import NAME
from course_utils.simgpu.errors import Unsupported
from course_utils.simgpu.world import active, current

__all__ = [
    "Event",
    "Stream",
    "current_accelerator",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_memory_info",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "synchronize",
]

Device = torch.device | str | int | None


# ------------------------------------------------------------------------------------------------ devices
def is_available() -> bool:
    return active()


def is_initialized() -> bool:
    return active()


def device_count() -> int:
    return len(current().devices) if active() else 0


def current_device() -> int:
    return current().current


def current_accelerator(check_available: bool = False) -> torch.device:
    return torch.device(NAME)


def set_device(device: Device) -> None:
    """Choose the device that a bare ``"sim"`` means."""
    world = current()
    found = world.resolve(device)
    if found is None:
        raise ValueError(f"{device} is no device of the simulation")
    world.current = found.index


@contextmanager
def device(index: Device) -> Iterator[None]:
    """Choose a device for the length of a block; a negative index or None changes nothing."""
    world = current()
    before = world.current
    if index is not None and not (isinstance(index, int) and index < 0):
        set_device(index)
    try:
        yield
    finally:
        world.current = before


def get_device_name(device: Device = None) -> str:
    current().resolve(device)
    return "simulated GPU (the CPU computes)"


def _is_in_bad_fork() -> bool:  # asked by torch.manual_seed
    return False


# ------------------------------------------------------------------------------------------------ memory
def memory_allocated(device: Device = None, /) -> int:
    """Bytes that tensors hold on the device, each storage rounded up to 512."""
    return current().account(device).current


def max_memory_allocated(device: Device = None, /) -> int:
    """The most bytes since the start or the last ``reset_peak_memory_stats``."""
    return current().account(device).peak


def reset_peak_memory_stats(device: Device = None, /) -> None:
    current().account(device).reset_peak()


def reset_accumulated_memory_stats(device: Device = None, /) -> None:
    current().account(device).allocations = 0


def memory_stats(device: Device = None, /) -> OrderedDict[str, Any]:
    """The figures that the simulation has: bytes now, at the peak, and how many blocks were handed out."""
    account = current().account(device)
    return OrderedDict(
        {
            "allocated_bytes.all.current": account.current,
            "allocated_bytes.all.peak": account.peak,
            "allocation.all.allocated": account.allocations,
        }
    )


def get_memory_info(device: Device = None, /) -> tuple[int, int]:
    """Free and total bytes; only where the device was given an amount of memory."""
    account = current().account(device)
    if account.capacity is None:
        raise Unsupported("a size of the device's memory", "Give it one: simulated_gpu(memory=2**30).")
    return account.capacity - account.current, account.capacity


def no_reserved_memory(device: Device = None, /) -> NoReturn:
    raise Unsupported("reserved memory: it has no caching allocator", "memory_allocated() is simulated.")


def empty_cache() -> None:
    """Nothing to do: there is no cache. On CUDA it does not make more memory available to PyTorch either."""


# ------------------------------------------------------------------------------------------------ waiting
def synchronize(device: Device = None, /) -> None:
    """Wait until everything that was asked of the device has been done."""
    world = current()
    world.resolve(device)
    world.synchronise("synchronize")


class Event:
    """A point in the stream. It can be waited for, not timed.

    As on CUDA, an event stands where it was last recorded: copies that are asked for later are not waited for, and an
    event that was never recorded is over at once.

    Raises
    ------
    Unsupported
        For ``enable_timing=True`` and ``elapsed_time``: there is no clock.
    """

    def __init__(self, device: Device = None, *, enable_timing: bool = False, **_: Any) -> None:
        if enable_timing:
            self.elapsed_time(self)
        self._position = 0

    def record(self, stream: Any = None) -> None:
        self._position = current().stream.position

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        current().synchronise("Event.synchronize", self._position)

    def query(self) -> bool:
        """Whether everything before the event is done."""
        return current().stream.reached(self._position)

    def elapsed_time(self, other: Event) -> NoReturn:
        raise Unsupported("time", "Count transfers, kernels and synchronisations instead.")


class Stream:
    """The one stream. A second one cannot be made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise Unsupported("a second stream", "Everything runs in order, in one stream.")

    def synchronize(self) -> None:
        current().synchronise("Stream.synchronize")

    def query(self) -> bool:
        return not current().stream.busy

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being recorded; optimizers of PyTorch 2.15 ask. Nothing is recorded here."""
        return False


_the_stream = object.__new__(Stream)


def current_stream(device: Device = None, /) -> Stream:
    current().resolve(device)
    return _the_stream


def set_stream(stream: Stream) -> None:
    if stream is not _the_stream:
        raise Unsupported("a second stream", "Everything runs in order, in one stream.")


# ------------------------------------------------------------------------------------------------ random numbers
# The device draws from the CPU's generator (see generator.py), which torch.manual_seed has seeded already.
def manual_seed(seed: int) -> None:
    torch.random.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    pass


def get_rng_state(device: Device = None) -> torch.Tensor:
    return torch.random.default_generator.get_state()


def set_rng_state(state: torch.Tensor, device: Device = None) -> None:
    torch.random.default_generator.set_state(state)


# ------------------------------------------------------------------------------------------------ mixed precision
def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]
