"""What PyTorch's Python side has to be told: installed and removed as one.

The mode (mode.py) sees operators. These are the places that are none: attributes such as ``tensor.device``, conversions that read memory
directly, and the questions that PyTorch's own Python code asks about devices.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.jit import _builtins
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from course_utils.simgpu import autocast, backend, errors
from course_utils.simgpu import mode as dispatch
from course_utils.simgpu.colours import NAME, Place, device_of, is_simulated_storage, pin
from course_utils.simgpu.generator import SimulatedGenerator
from course_utils.simgpu.moves import copy_, move, to
from course_utils.simgpu.world import HOST, adopt, current, in_user_call

__all__ = ["Patches", "all_patches"]

Tensor, Base = torch.Tensor, torch._C.TensorBase
_ABSENT = object()


class Patches:
    """Attributes replaced for a time. Either all are in place or none."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def install(self, replacements: list[tuple[Any, str, Any]]) -> None:
        try:
            for owner, name, value in replacements:
                self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
                setattr(owner, name, value)
        except BaseException:  # an interrupt as well
            self.remove()
            raise

    def remove(self) -> None:
        while self._saved:
            owner, name, value = self._saved[-1]
            if value is not _ABSENT:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)
            self._saved.pop()


# ------------------------------------------------------------------------------------------------ attributes
def _get_device(tensor: Tensor) -> torch.device:
    return device_of(tensor) or Base.device.__get__(tensor)


def _get_index(tensor: Tensor) -> int:
    place = device_of(tensor)
    return Base.get_device(tensor) if place is None else place.index


def _get_gradient(tensor: Tensor) -> Tensor | None:
    return _adopted(Base.grad.__get__(tensor), tensor)


def _adopted(gradient: Tensor | None, tensor: Tensor) -> Tensor | None:
    """A gradient of zeros that C++ made for itself lies where its tensor lies."""
    place = device_of(tensor)
    if gradient is not None and place is not None and device_of(gradient) is None:
        adopt(gradient, place)
    return gradient


def _set_gradient(tensor: Tensor, gradient: Tensor | None) -> None:
    if isinstance(gradient, Tensor) and device_of(gradient) is not device_of(tensor):
        errors.assigned_gradient(tensor.device, gradient.device)
    Base.grad.__set__(tensor, gradient)


def _get_storage_device(storage: torch.UntypedStorage) -> torch.device:
    return storage._sim.device if is_simulated_storage(storage) else torch._C.StorageBase.device.__get__(storage)


def _clone_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if is_simulated_storage(storage):
        current().stream.needed(storage)
    copy = torch.UntypedStorage(storage.nbytes(), device=torch._C.StorageBase.device.__get__(storage)).copy_(storage)
    if is_simulated_storage(storage):
        device = storage._sim.device
        copy._sim = Place(device, current().account(device), copy.nbytes())
    return copy


def _storage_to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    if not is_simulated_storage(storage):
        return storage.clone() if storage.device.type != "cpu" else storage
    world = current()
    world.stream.needed(storage)
    world.record_copy("d2h", storage.nbytes())
    world.synchronise("copy to the host")
    return torch.UntypedStorage(storage.nbytes()).copy_(storage)


# ------------------------------------------------------------------------------------------------ reading memory
def _cpu(tensor: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    return to(tensor, HOST, memory_format=memory_format)


def _numpy(tensor: Tensor, *, force: bool = False) -> np.ndarray:
    place = device_of(tensor)
    if place is not None:
        if not force:
            errors.no_numpy(place)
        tensor = tensor.detach().cpu()
    return Base.numpy(tensor, force=force)


def _tolist(tensor: Tensor) -> Any:
    if device_of(tensor) is not None:
        tensor = tensor.detach().cpu()
    elif current().stream.busy:
        current().host_uses(tensor.untyped_storage())
    return Base.tolist(tensor)


def _repr(tensor: Tensor, *, tensor_contents: str | None = None) -> str:
    if device_of(tensor) is not None and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        host = tensor.detach().cpu()
        if tensor_contents is None and host.numel():
            with torch.no_grad():
                tensor_contents = torch._tensor_str._tensor_str(host, indent=len("tensor("))
    return _real_repr(tensor, tensor_contents=tensor_contents)


def _type(tensor: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    return dispatch.type_name(tensor) if dtype is None else Base.type(tensor, dtype, non_blocking, **kwargs)


def _dlpack(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    place = device_of(tensor)
    if place is not None:
        raise BufferError(f"memory of {place} cannot be shared with another library. Use Tensor.cpu() first.")
    return _real_dlpack(tensor, *args, **kwargs)


_real_repr, _real_dlpack = Tensor.__repr__, Tensor.__dlpack__


# ------------------------------------------------------------------------------------------------ making tensors
def _asked_by_user(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Mark a call from Python, where ``device="cpu"`` means the host (see mode.py)."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        with in_user_call():
            return function(*args, **kwargs)

    return call


def _default_device() -> torch.device | None:
    """The device of the innermost ``with torch.device(...)``, or of ``torch.set_default_device``."""
    if torch._C._len_torch_function_stack():
        for context in reversed(_get_current_function_mode_stack()):
            if isinstance(context, DeviceContext):
                return context.device
    return None


def _from_data(function: Callable[..., Tensor], shares: bool) -> Callable[..., Tensor]:
    """``torch.tensor`` and its relatives build on the CPU and send the result over: PyTorch's C++ would ask for a driver."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.get("device")
        if device is None:
            device = _default_device()
        data = args[0] if args else kwargs.get("data")
        home = device_of(data) if isinstance(data, Tensor) else None
        wanted = home if device is None else current().resolve(device)
        pinned = wanted is None and kwargs.pop("pin_memory", False)
        if wanted is None and home is None:
            made = function(*args, **kwargs)
            return pin(made) if pinned else made
        kwargs.pop("pin_memory", None)
        if isinstance(data, Tensor) and shares:
            return to(data, wanted or HOST, kwargs.get("dtype") or data.dtype)
        kwargs["device"] = HOST
        wants_gradient = kwargs.pop("requires_grad", False)
        made = function(*args, **kwargs).detach()
        return move(made, wanted).requires_grad_(wants_gradient)

    return call


def _new_tensor(tensor: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device, **kwargs)


# ------------------------------------------------------------------------------------------------ PyTorch's questions
def _group_by_device(lists: list[list[Tensor | None]], with_indices: bool = False) -> dict:
    """Optimizers treat the parameters of one device together; C++ would take all for CPU tensors."""
    groups: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(lists[0]):
        groups.setdefault(tensor.device, []).append(index)
        for other in lists[1:]:
            if other and other[index] is not None and other[index].device != tensor.device:
                step = other[index].device.type == "cpu" and other[index].dtype in (torch.float32, torch.float64)
                if not step:
                    errors.differing_group()
    result = {}
    for device, members in groups.items():
        part = [[values[i] for i in members] if values else values for values in lists]
        for (_, dtype), (tensors, indices) in _real_group(part, with_indices).items():
            result[device, dtype] = tensors, [members[i] for i in indices]
    return result


_real_group = torch._C._group_tensors_by_device_and_dtype


def _make_gradients(outputs: Any, gradients: Any, is_grads_batched: bool) -> Any:
    for output, gradient in zip(outputs, gradients, strict=False):
        if (
            isinstance(output, Tensor)
            and isinstance(gradient, Tensor)
            and gradient.dim() > 0
            and device_of(output) is not device_of(gradient)
        ):
            errors.gradient_elsewhere(output.device, gradient.device)
    return _real_make_gradients(outputs, gradients, is_grads_batched=is_grads_batched)


_real_make_gradients = torch.autograd._make_grads


@functools.wraps(torch.autograd.grad)
def _gradients(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
    gradients = _real_gradients(outputs, inputs, *args, **kwargs)
    sources = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for gradient, source in zip(gradients, sources, strict=False):
        if isinstance(source, Tensor):
            _adopted(gradient, source)
    return gradients


_real_gradients = torch.autograd.grad


def _compile(*_: Any, **__: Any) -> Any:
    raise errors.Unsupported("torch.compile", "Compile on the CPU, with the simulation off.")


def _bootstrap(thread: threading.Thread) -> None:
    with dispatch.backend():
        _real_bootstrap(thread)


_real_bootstrap = threading.Thread._bootstrap_inner


def _tell_torchscript(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """TorchScript, which forward-mode differentiation loads, knows PyTorch's functions by identity."""
    for known in (function, replacement):
        _builtins._builtin_ops.append((known, f"aten::{function.__name__}"))
        if _builtins._builtin_table is not None:
            _builtins._builtin_table[id(known)] = f"aten::{function.__name__}"


# ------------------------------------------------------------------------------------------------ the list
@functools.cache
def all_patches() -> list[tuple[Any, str, Any]]:
    """Owner, name and replacement of everything that is replaced. First called while nothing is."""
    Storage = torch.UntypedStorage
    patches: list[tuple[Any, str, Any]] = [
        (Tensor, "device", property(_get_device)),
        (Tensor, "is_cpu", property(lambda tensor: tensor.device.type == "cpu")),
        (Tensor, f"is_{NAME}", property(lambda tensor: device_of(tensor) is not None)),
        (Tensor, "get_device", _get_index),
        (Tensor, "grad", property(_get_gradient, _set_gradient, Base.grad.__delete__)),
        (Tensor, "to", to),
        (Tensor, "cpu", _cpu),
        (Tensor, "copy_", copy_),
        (Tensor, "numpy", _numpy),
        (Tensor, "tolist", _tolist),
        (Tensor, "type", _type),
        (Tensor, "__repr__", _repr),
        (Tensor, "__dlpack__", _dlpack),
        (Tensor, "new_tensor", _new_tensor),
        (Storage, "device", property(_get_storage_device)),
        (Storage, "clone", _clone_storage),
        (Storage, "cpu", _storage_to_host),
        (torch, "Generator", SimulatedGenerator),
        (torch, "compile", _compile),
        (torch, "clear_autocast_cache", autocast.clear_cache),
        (torch, "set_autocast_enabled", autocast.set_enabled),
        (torch._C, "_group_tensors_by_device_and_dtype", _group_by_device),
        (torch.autograd, "_make_grads", _make_gradients),
        (torch.autograd, "grad", _gradients),
        (threading.Thread, "_bootstrap_inner", _bootstrap),
    ]
    from_data = {"tensor": False, "as_tensor": True, "asarray": True}
    for name, shares in from_data.items():
        replacement = _from_data(getattr(torch, name), shares)
        _tell_torchscript(getattr(torch, name), replacement)
        patches.append((torch, name, replacement))
    made = {function.__name__ for function in _device_constructors()} - from_data.keys()
    likes = {f"{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")}
    for name in sorted(made | likes):
        function = getattr(torch, name, None)
        if function is not None:
            replacement = _asked_by_user(function)
            _tell_torchscript(function, replacement)
            patches.append((torch, name, replacement))
    for name in ("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"):
        patches.append((Tensor, name, _asked_by_user(getattr(Tensor, name))))
    accelerator = torch.accelerator
    for name in (
        "is_available",
        "device_count",
        "current_accelerator",
        "synchronize",
        "current_stream",
        "set_stream",
        "memory_allocated",
        "max_memory_allocated",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "memory_stats",
        "get_memory_info",
        "empty_cache",
    ):
        patches.append((accelerator, name, getattr(backend, name)))
    patches += [
        (accelerator, "current_device_index", backend.current_device),
        (accelerator, "set_device_index", backend.set_device),
        (accelerator, "device_index", backend.device),
        (accelerator, "memory_reserved", backend.no_reserved_memory),
        (accelerator, "max_memory_reserved", backend.no_reserved_memory),
    ]
    return patches
