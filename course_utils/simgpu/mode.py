"""The dispatch mode: sees every operator below autograd, as a device's back end would.

Of each operator it decides whether the devices of its tensors go together, lets the CPU compute it, and puts the
results on the device. Ordinary CPU programs pass through unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.simgpu import autocast, errors
from course_utils.simgpu.colours import NAME, Place, is_pinned, mark_of, pin, storage_of, unplaced
from course_utils.simgpu.counters import Event
from course_utils.simgpu.generator import device_type_of
from course_utils.simgpu.operators import Operator, describe
from course_utils.simgpu.world import HOST, World, active, adopt, asked_by_user, current

__all__ = ["SimulatedBackend", "backend", "type_name"]

_real_device = torch._C.TensorBase.device.__get__
_real_type = torch._C.TensorBase.type

Named = tuple[str, torch.Tensor, Any]  # argument's name, tensor, mark


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)


def _place(mark: Any) -> torch.device | None:
    return None if mark is None else mark.device


def _device(tensor: torch.Tensor, mark: Any) -> torch.device:
    return _place(mark) or _real_device(tensor)


def type_name(tensor: torch.Tensor) -> str:
    """``torch.sim.FloatTensor``, as ``tensor.type()`` names it."""
    mark = mark_of(tensor)
    name = _real_type(tensor)
    return name if _place(mark) is None else name.replace("torch.", f"torch.{NAME}.", 1)


class SimulatedBackend(TorchDispatchMode):
    """Back end of the simulated devices. One per thread, entered while the simulation is on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, torch's default, imports torch._dynamo at the first use: about a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if not active():  # a thread that outlived the simulation
            return func(*args, **kwargs)
        operator = describe(func)
        if operator.composite:
            # Under inference mode composite operators arrive whole: take them apart, to see what they do.
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        named: list[Named] = []
        for name, value in zip(operator.arguments, args, strict=False):
            if isinstance(value, torch.Tensor):
                named.append((name, value, mark_of(value)))
            elif isinstance(value, (list, tuple)):
                named.extend((name, tensor, mark_of(tensor)) for tensor in _flat(value))
        for name, value in kwargs.items():
            named.extend((name, tensor, mark_of(tensor)) for tensor in _flat(value))
        world = current()
        device: torch.device | None = None
        for _, _, mark in named:
            if mark is not None and mark is not unplaced:
                device = mark.device
                break
        if operator.takes_device:
            device = _wanted(operator, kwargs, device, world)
        if operator.takes_generator:
            _check_generator(kwargs.get("generator"), device)
        if device is None:
            return _on_host(world, operator, func, named, args, kwargs)
        return _on_device(world, operator, func, named, device, args, kwargs)


def _wanted(
    operator: Operator, kwargs: dict[str, Any], device: torch.device | None, world: World
) -> torch.device | None:
    """Where the result of an operator with a ``device`` argument goes. Rewrites the argument: the CPU computes."""
    asked = kwargs.get("device")
    if asked is None:
        return device
    found = world.resolve(asked) if asked.type == NAME else None
    if found is not None:
        kwargs["device"] = HOST
        return found
    if asked.type != "cpu":
        if device is not None and asked.type != "meta":
            raise errors.Unsupported(f"a move from {device} to the real device {asked}", "Go through .cpu().")
        return None
    # C++ says "cpu" for the device of a simulated tensor; only a caller in Python means the host by it.
    return None if asked_by_user() and not operator.casts else device


def _check_generator(generator: torch.Generator | None, device: torch.device | None) -> None:
    if generator is not None:
        expected, found = ("cpu" if device is None else NAME), device_type_of(generator)
        if expected != found:
            errors.wrong_generator(expected, found)


# ------------------------------------------------------------------------------------------------ on the host
def _on_host(world: World, operator: Operator, func: Any, named: list[Named], args: tuple, kwargs: dict) -> Any:
    if world.stream.busy:
        used: dict[torch.UntypedStorage, bool] = {}  # x * x uses the memory of x once
        for name, tensor, _ in named:
            memory = storage_of(tensor)
            if memory is not None:
                used[memory] = used.get(memory, False) or name in operator.writes
        for memory, written in used.items():
            world.host_uses(memory, written)
    if operator.name == "aten::is_pinned":
        return is_pinned(named[0][1])
    if operator.name == "aten::_pin_memory":
        with torch._C._DisableTorchDispatch():
            return pin(named[0][1].clone())
    pinned = operator.takes_device and kwargs.get("pin_memory")
    if pinned:
        kwargs["pin_memory"] = False  # PyTorch would look for a real accelerator
    result = func(*args, **kwargs)
    if pinned:
        pin(result)
    made_by_cpp = all(mark is unplaced for _, _, mark in named) if named else operator.takes_device
    if made_by_cpp and not asked_by_user():
        _leave_open(result)
    return result


def _leave_open(result: Any) -> None:
    """Mark what C++ makes for itself: it may still turn out to belong on the device."""
    for tensor in _flat(result):
        if mark_of(tensor) is None and tensor.layout == torch.strided:
            tensor.untyped_storage()._sim = unplaced


# ------------------------------------------------------------------------------------------------ on the device
def _on_device(
    world: World, operator: Operator, func: Any, named: list[Named], device: torch.device, args: tuple, kwargs: dict
) -> Any:
    if world.process != os.getpid():
        errors.bad_fork()
    if autocast.is_on_for_cpu() and operator.computes:
        raise errors.Unsupported('autocast("cpu") around tensors of the device', f'Use torch.autocast("{NAME}").')
    if operator.name == "aten::is_pinned":
        return False
    if operator.name == "aten::_pin_memory":
        errors.not_pinnable(type_name(named[0][1]))
    if operator.copies:
        first, second = named[0], named[1]
        if _place(first[2]) is not _place(second[2]) and not adopt(first[1], device) and not adopt(second[1], device):
            world.copy(first[1], second[1], bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking", False)))
            return first[1]
    elif operator.indexes:
        device = _check_indices(world, operator, named)
    elif not operator.takes_device:  # zeros_like(x, device=...) and its kind look at the form of x alone
        for _, _, mark in named:
            if mark is None or mark.device is not device:
                _check_devices(operator, named, device)
                break
    if world.stream.busy:
        for _, tensor, mark in named:
            if _place(mark) is not None:
                world.stream.needed(tensor.untyped_storage())
    if operator.reads_scalar:
        world.synchronise("item")
    elif operator.computes:
        world.counters.kernels += 1
        world.events.append(Event("device", "kernel", operator.short_name))
        if operator.waits:
            world.synchronise(operator.short_name)
    result = func(*args, **kwargs)
    if isinstance(result, torch.Tensor):
        results: Any = (result,)
    else:
        results = _flat(result)
    for position, tensor in enumerate(results):
        mark = mark_of(tensor)
        if (
            (mark is None or mark is unplaced)
            and position not in operator.to_host
            and (operator.fresh or not _is_one_of(tensor, named))
        ):
            world.place(tensor, device)
        elif operator.resizes and isinstance(mark, Place):
            mark.resize(tensor.untyped_storage().nbytes())
    return result


def _is_one_of(tensor: torch.Tensor, named: list[Named]) -> bool:
    storage = tensor.untyped_storage()
    return any(storage is argument.untyped_storage() for _, argument, _ in named)


def _check_indices(world: World, operator: Operator, named: list[Named]) -> torch.device:
    """Check ``x[i]`` and ``x[i] = y``. Indices may lie on the host, where they have to be sent over first."""
    home = _place(named[0][2])
    for name, tensor, index_mark in named[1:]:
        place = _place(index_mark)
        if name != "indices":
            if place is not home and tensor.dim() > 0 and not (home and adopt(tensor, home)):
                errors.two_devices(*((home, _device(tensor, index_mark)) if home else (place, HOST)))
            continue
        is_mask = tensor.dtype in (torch.bool, torch.uint8)
        if place is home:
            if is_mask and home is not None:
                world.synchronise("mask as index")  # how many elements are there? nonzero() has to be counted
        elif place is not None:
            errors.index_elsewhere(home or HOST)
        elif not adopt(tensor, home):
            with torch._C._DisableTorchDispatch():
                sizes = [int(tensor.count_nonzero()) * 8] * tensor.dim() if is_mask else [tensor.nbytes]
            for size in sizes:
                world.record_copy("h2d", size)
                world.synchronise("index from the host")
    return home


def _check_devices(operator: Operator, named: list[Named], device: torch.device) -> None:
    """Let pass what CUDA lets pass: host tensors without dimensions, where no wrapper looks. Else raise its words."""
    foreign = [
        (name, tensor, mark)
        for name, tensor, mark in named
        if _place(mark) is not device and name not in operator.from_host and not adopt(tensor, device)
    ]
    if not foreign:
        return
    if operator.method is None and all(
        _place(mark) is None and tensor.dim() == 0 and name not in operator.writes for name, tensor, mark in foreign
    ):
        return
    places = [(name, tensor, _device(tensor, mark_of(tensor))) for name, tensor, _ in named]
    if operator.convolves:
        _, image, home = places[0]
        for name, tensor, place in places[1:]:
            if place != home:
                errors.input_and_parameter(type_name(image), name, type_name(tensor), home.type == "cpu")
    if operator.method is not None:
        _, _, home = places[0]
        for name, _, place in places:
            if place != home:
                errors.checked_argument(operator.renamed.get(name, name), place, home, operator.method)
    for name, tensor, mark in foreign:
        if tensor.dim() > 0 or _place(mark) is not None or name in operator.writes:
            errors.two_devices(device, _device(tensor, mark))


# ------------------------------------------------------------------------------------------------ per thread
@contextmanager
def backend() -> Iterator[None]:
    """Run the block, in this thread, with the simulated back end: dispatch modes belong to a thread."""
    with autocast.available_in_thread(), SimulatedBackend():
        yield
