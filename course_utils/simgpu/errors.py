"""The words in which CUDA refuses, from PyTorch 2.14.1 (where each is written stands beside it)."""

from __future__ import annotations

from typing import NoReturn

import torch

__all__ = [
    "Unsupported",
    "bad_fork",
    "checked_argument",
    "gradient_elsewhere",
    "index_elsewhere",
    "input_and_parameter",
    "no_numpy",
    "not_pinnable",
    "two_devices",
    "wrong_generator",
]


class Unsupported(NotImplementedError):
    """The simulated GPU does not do this, and would teach something wrong if it went on."""

    def __init__(self, what: str, instead: str = "Use ordinary tensors, or a real GPU, for this.") -> None:
        super().__init__(f"the simulated GPU does not simulate {what}. {instead}")


def wrapper_name(operator: str, structured: bool) -> str:
    """The C++ wrapper of ``name.overload`` that CUDA's messages name, made as torchgen makes it."""
    name, _, overload = operator.partition(".")
    if structured:
        return f"wrapper_CUDA_{name}_{overload}" if overload else f"wrapper_CUDA_{name}"
    return f"wrapper_CUDA_{overload}_{name}"


def checked_argument(
    name: str, device: torch.device, others: torch.device, method: str
) -> NoReturn:  # ATen/core/adaption.cpp
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but got {name} is on {device}, different from other tensors on "
        f"{others} (when checking argument in method {method})"
    )


def two_devices(first: torch.device, second: torch.device) -> NoReturn:  # ATen/TensorIterator.cpp
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def input_and_parameter(input_type: str, name: str, parameter_type: str, host_input: bool) -> NoReturn:
    # ATen/native/Convolution.cpp
    or_else = f" or input should be a MKLDNN tensor and {name} is a dense tensor" if host_input else ""
    raise RuntimeError(f"Input type ({input_type}) and {name} type ({parameter_type}) should be the same{or_else}")


def index_elsewhere(device: torch.device) -> NoReturn:  # ATen/native/TensorAdvancedIndexing.cpp
    raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({device})")


def gradient_elsewhere(expected: torch.device, got: torch.device) -> NoReturn:  # csrc/autograd/engine.cpp
    raise RuntimeError(f"invalid gradient at index 0 - expected device {expected} but got {got}")


def assigned_gradient(tensor: torch.device, gradient: torch.device) -> NoReturn:  # csrc/autograd/python_variable.cpp
    if tensor.type == gradient.type:
        raise RuntimeError(
            f"attempting to assign a gradient located on device with index '{gradient.index}' to a tensor located on "
            f"device with index '{tensor.index}'. Please ensure that the gradient and the tensor are on the same device"
        )
    raise RuntimeError(
        f"attempting to assign a gradient with device type '{gradient.type}' to a tensor with device type "
        f"'{tensor.type}'. Please ensure that the gradient and the tensor are on the same device"
    )


def no_numpy(device: torch.device) -> NoReturn:  # csrc/utils/tensor_numpy.cpp
    raise TypeError(
        f"can't convert {device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def not_pinnable(type_name: str) -> NoReturn:  # ATen/native/Memory.cpp
    raise RuntimeError(f"cannot pin '{type_name}' only dense CPU tensors can be pinned")


def wrong_generator(expected: str, found: str) -> NoReturn:  # ATen/core/Generator.h
    raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")


def no_such_device() -> NoReturn:  # c10/cuda/CUDAException.h: "CUDA error: invalid device ordinal"
    raise RuntimeError("SIM error: invalid device ordinal")


def bad_fork() -> NoReturn:  # torch/cuda/__init__.py
    raise RuntimeError(
        "Cannot re-initialize SIM in forked subprocess. To use SIM with multiprocessing, you must use the 'spawn' "
        "start method"
    )


def differing_group() -> NoReturn:  # ATen/native/ForeachUtils.h
    raise RuntimeError(
        "Tensors of the same index must be on the same device and the same dtype except `step` tensors that can be CPU "
        "and float32/64, and optimizer states that can be bfloat16 for mixed-precision training"
    )
