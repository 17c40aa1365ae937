"""On and off."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode, _get_current_dispatch_mode_stack

from course_utils.simgpu import autocast, backend, colours, saving
from course_utils.simgpu.colours import NAME
from course_utils.simgpu.mode import SimulatedBackend
from course_utils.simgpu.mode import backend as backend_in_thread
from course_utils.simgpu.patches import Patches, all_patches
from course_utils.simgpu.world import World, _stack

__all__ = ["disable", "enable", "simulated_gpu"]

_patches = Patches()
_switched_on: tuple[World, ExitStack] | None = None  # by enable()


def _prepare() -> None:
    """What is done once per process and harmless afterwards: the name, torch.sim, autocast rules, torch.load."""
    if hasattr(torch, NAME):
        return
    colours.devices()
    saving.register()
    autocast.register()
    atexit.register(disable)  # before the interpreter takes the modules apart
    torch._register_device_module(NAME, sys.modules[backend.__name__])  # last: it tells that all is done


@contextmanager
def _world(count: int, memory: int | None) -> Iterator[World]:
    _prepare()
    world = World(count, memory)
    outermost = not _stack
    with ExitStack() as cleaning:
        if outermost:
            replacements = all_patches()
            cleaning.callback(_reset_default_device)
            cleaning.callback(_patches.remove)
            _patches.install(replacements)
        _stack.append(world)
        cleaning.callback(_leave, world)
        if not any(isinstance(mode, SimulatedBackend) for mode in _get_current_dispatch_mode_stack()):
            cleaning.enter_context(backend_in_thread())
        yield world


def _leave(world: World) -> None:
    world.stream.wait()
    _stack.remove(world)


def _reset_default_device() -> None:
    # torch.get_default_device() would make a tensor on it
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is not None and context.device.type == NAME:
        torch.set_default_device(None)


@contextmanager
def simulated_gpu(count: int = 1, memory: int | None = None) -> Iterator[torch.device]:
    """Simulate GPUs inside the block: ``with simulated_gpu() as device: ...``.

    The devices are new: no memory in use, all counters at zero. Blocks can be nested, and used while :func:`enable`
    is in force. Tensors that leave the block are on the CPU afterwards, with their values.

    Parameters
    ----------
    count : int
        How many devices, 1 to 8.
    memory : int or None
        Bytes of memory of each. None: no limit.

    Yields
    ------
    torch.device
        ``sim:0``.
    """
    with _world(count, memory) as world:
        yield world.devices[0]


def enable(count: int = 1, memory: int | None = None) -> torch.device:
    """Simulate GPUs from now on, in the whole notebook. A cell with it may run as often as you like.

    A second call changes nothing and keeps counters and memory, unless it asks for other devices: then it starts anew.

    Returns
    -------
    torch.device
        ``sim:0``.

    Raises
    ------
    RuntimeError
        Inside a ``with`` block that watches operators, such as ``memory()``: the two would be left in the wrong order.
    """
    global _switched_on
    if _switched_on is not None:
        world, _ = _switched_on
        if (count, memory) == (len(world.devices), world.accounts[0].capacity):
            return world.devices[0]
        disable()
    elif _stack:
        return _stack[-1].devices[0]
    if _get_current_dispatch_mode() is not None:
        raise RuntimeError("switch the simulated GPU on outside of `with` blocks such as memory()")
    stack = ExitStack()
    world = stack.enter_context(_world(count, memory))
    _switched_on = world, stack
    return world.devices[0]


def disable() -> None:
    """End what :func:`enable` began. Tensors of the device become CPU tensors, with their values.

    Raises
    ------
    RuntimeError
        Inside a ``with`` block that began after ``enable()``.
    """
    global _switched_on
    if _switched_on is None:
        return
    world, stack = _switched_on
    if _stack[-1] is not world or not isinstance(_get_current_dispatch_mode(), SimulatedBackend):
        raise RuntimeError("switch the simulated GPU off outside of `with` blocks such as simulated_gpu() or memory()")
    _switched_on = None
    stack.close()
