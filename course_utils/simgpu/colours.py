"""Where a tensor lies: a mark on its storage.

Every simulated tensor is an ordinary CPU tensor. Its storage carries a :class:`Place`, as an attribute of the storage's
Python object, which PyTorch keeps for as long as the memory lives. Views share the storage and with it the place;
``parameter.data = moved`` takes the place over. No mark means the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from course_utils.simgpu.memory import Account

__all__ = [
    "MOST_DEVICES",
    "NAME",
    "Place",
    "device_of",
    "devices",
    "is_pinned",
    "is_simulated_storage",
    "mark_of",
    "pin",
    "storage_of",
    "unplaced",
]

NAME = "sim"  # what torch.device calls it: PyTorch leaves one device type free to be named (rename_privateuse1_backend)
MOST_DEVICES = 8

_untyped_storage = torch._C.TensorBase.untyped_storage
_devices: list[torch.device] = []


class Place:
    """The mark of a storage on a simulated device. It ends with the memory and then returns the bytes."""

    __slots__ = ("_account", "bytes", "device")

    def __init__(self, device: torch.device, account: Account, size: int) -> None:
        self.bytes = 0  # if the next line raises, nothing is returned
        self._account = account
        self.device: torch.device | None = device
        account.take(size)
        self.bytes = size

    def resize(self, size: int) -> None:
        self._account.take(size)
        self._account.give_back(self.bytes)
        self.bytes = size

    def __del__(self) -> None:
        self._account.give_back(self.bytes)


class _Unplaced:
    """The mark of a tensor that PyTorch's own C++ made for itself: on the host, until a device tensor meets it.

    Code such as ``one_hot`` asks for ``zeros`` on the device of its argument, and for C++ that is the CPU. On a GPU the
    zeros would lie beside the argument, so they may follow it here.
    """

    __slots__ = ()
    device = None


unplaced = _Unplaced()


def devices() -> list[torch.device]:
    """``sim:0``, ``sim:1`` and so on, always the same objects. Names the device type on first use.

    Raises
    ------
    RuntimeError
        If this process has given the free device type another name already.
    """
    if not _devices:
        torch.utils.rename_privateuse1_backend(NAME)
        _devices.extend(torch.device(NAME, index) for index in range(MOST_DEVICES))
    return _devices


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory behind ``tensor``; None for tensors without any of their own (sparse ones)."""
    try:
        return _untyped_storage(tensor)
    except RuntimeError:
        return None


def mark_of(tensor: torch.Tensor) -> Place | _Unplaced | None:
    """The mark of the memory behind ``tensor``; None where there is none."""
    try:
        return getattr(_untyped_storage(tensor), "_sim", None)
    except RuntimeError:  # no storage of its own: sparse, or wrapped by vmap or grad
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            return mark_of(functorch.get_unwrapped(tensor))
        return None


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """The simulated device of ``tensor``, or None for the host (or a real device)."""
    mark = mark_of(tensor)
    return None if mark is None else mark.device


def is_simulated_storage(storage: torch.UntypedStorage) -> bool:
    return isinstance(getattr(storage, "_sim", None), Place)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the memory behind a host tensor as page-locked."""
    _untyped_storage(tensor)._sim_pinned = True
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    return getattr(storage_of(tensor), "_sim_pinned", False)
