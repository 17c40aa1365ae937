"""``Tensor.to`` and its relatives: copies between devices, with their gradients."""

from __future__ import annotations

from typing import Any

import torch

from course_utils.simgpu.colours import NAME, device_of
from course_utils.simgpu.errors import Unsupported
from course_utils.simgpu.world import current

__all__ = ["ToCopy", "move", "to"]

_real_to = torch._C.TensorBase.to


class ToCopy(torch.autograd.Function):
    """A copy on another device. The gradient travels back."""

    @staticmethod
    def forward(
        source: torch.Tensor, device: torch.device | None, non_blocking: bool, memory_format: torch.memory_format
    ) -> torch.Tensor:
        return current().moved(source, device, non_blocking, memory_format)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.home = device_of(inputs[0])
        ctx.device = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return move(gradient, ctx.home), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:
        return move(tangent, ctx.device)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, source: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int | None]:
        return ToCopy.apply(source, *rest), in_dims[0]


def move(
    tensor: torch.Tensor,
    device: torch.device | None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """``tensor`` on ``device`` (None: the host): itself where it is there already, else a copy that autograd knows."""
    if device_of(tensor) is device:
        return tensor
    if tensor.layout != torch.strided:
        raise Unsupported(f"tensors of layout {tensor.layout}", "Use dense tensors.")
    return ToCopy.apply(tensor, device, non_blocking, memory_format)


def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``Tensor.to``, all of its forms."""
    other = kwargs.pop("other", None)
    if args and isinstance(args[0], torch.Tensor):
        other, args = args[0], args[1:]
    if other is not None:
        args = (other.device, other.dtype, *args)
    copy = kwargs.pop("copy", False)
    if len(args) == 4 or (len(args) == 3 and isinstance(args[0], torch.dtype)):
        args, copy = args[:-1], args[-1]
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    if device is None:
        return _keep_device(tensor, dtype, copy, memory_format)
    home = device_of(tensor)
    wanted = current().resolve(device) if device.type == NAME else None
    if wanted is None and (home is None or device.type == "meta"):
        return _real_to(tensor, *args, copy=copy, **kwargs)
    if wanted is None and device.type != "cpu":
        raise Unsupported(f"a move from {home} to the real device {device}", "Go through .cpu().")
    if wanted is not home:
        copy = False
        # A blocking copy converts on the host, an asynchronous one on the device; between devices the source does.
        # So images in uint8 travel as such with `.to(device).float()`, and as float32 with `.to(device, torch.float32)`.
        convert_first = (home is not None and wanted is not None) or (home is None) != non_blocking
        if convert_first:
            tensor = _keep_device(tensor, dtype, False, None)
        tensor = move(tensor, wanted, non_blocking, memory_format or torch.preserve_format)
    return _keep_device(tensor, dtype, copy, memory_format)


def _keep_device(
    tensor: torch.Tensor, dtype: torch.dtype | None, copy: bool, memory_format: torch.memory_format | None
) -> torch.Tensor:
    if dtype is None and memory_format is None and not copy:
        return tensor
    more = {} if memory_format is None else {"memory_format": memory_format}
    return _real_to(tensor, dtype=dtype or tensor.dtype, copy=copy, **more)


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``Tensor.copy_``. The gradient of the source has to come back to the source's device."""
    if isinstance(source, torch.Tensor) and source.requires_grad and torch.is_grad_enabled():
        home = device_of(target)
        if device_of(source) is not home:
            source = move(source, home, non_blocking)
    return torch._C.TensorBase.copy_(target, source, non_blocking)
