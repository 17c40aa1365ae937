"""Random generators of the device.

The numbers come from a CPU generator: with one seed, ``torch.randn(3, device="sim")`` gives what the CPU would. A GPU's own generators give others.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from course_utils.simgpu.colours import NAME
from course_utils.simgpu.world import HOST, current

__all__ = ["RealGenerator", "SimulatedGenerator", "device_type_of"]

RealGenerator = torch.Generator


class _AnyGenerator(type(RealGenerator)):
    """``isinstance(g, torch.Generator)`` stays true for the generators that PyTorch makes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RealGenerator)


# Operators see a new Python object for the same C++ generator, so the device is kept beside the C++ address.
_on_device: weakref.WeakValueDictionary[int, SimulatedGenerator] = weakref.WeakValueDictionary()


class SimulatedGenerator(RealGenerator, metaclass=_AnyGenerator):
    """``torch.Generator`` while the simulation is on: may belong to a simulated device."""

    def __new__(cls, device: torch.device | str | int = "cpu") -> SimulatedGenerator:
        place = current().resolve(device)
        made = RealGenerator.__new__(cls, device=HOST if place is not None else device)
        made._place = place
        if place is not None:
            _on_device[made._cdata] = made
        return made

    def __init__(self, device: torch.device | str | int = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self._place or RealGenerator.device.__get__(self)


def device_type_of(generator: torch.Generator) -> str:
    return NAME if generator._cdata in _on_device else generator.device.type
