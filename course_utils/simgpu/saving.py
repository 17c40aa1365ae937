"""``torch.save`` and ``torch.load``: a file remembers the device of its tensors."""

from __future__ import annotations

import torch
from torch.serialization import _validate_device

from course_utils.simgpu.colours import NAME, Place, is_simulated_storage
from course_utils.simgpu.world import current

__all__ = ["register"]

_PRIORITY = 5  # before the CPU's, which is 10 and would take every storage

_registered = False


def _tag(storage: torch.UntypedStorage) -> str | None:
    return str(storage._sim.device) if is_simulated_storage(storage) else None


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if location != NAME and not location.startswith(f"{NAME}:"):
        return None
    _validate_device(location, NAME)  # raises in torch's words where there is no such device, and says map_location
    world = current()
    device = world.resolve(location)
    copy = torch.UntypedStorage(storage.nbytes()).copy_(storage)
    copy._sim = Place(device, world.account(device), copy.nbytes())
    world.record_copy("h2d", copy.nbytes())
    world.synchronise("blocking copy to the device")
    return copy


def register() -> None:
    """Tell torch.save and torch.load, once per process. It stays: a file may be loaded after the simulation is off."""
    global _registered
    if not _registered:
        torch.serialization.register_package(_PRIORITY, _tag, _restore)
        _registered = True
