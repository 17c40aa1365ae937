"""What has to be known of each operator: which arguments CUDA compares, and whether the host has to wait."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from course_utils.simgpu.cuda_checks import PLAIN, STRUCTURED
from course_utils.simgpu.errors import wrapper_name

__all__ = ["Operator", "describe"]

aten = torch.ops.aten

# The host waits for these: the size or the value of the result has to be known before the program can go on.
# Source: the calls of at::cuda::memcpy_and_sync and cudaStreamSynchronize in ATen/native/cuda.
WAITS = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::allclose",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave",
}
INDEXES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
CONVOLVES = {"aten::convolution", "aten::_convolution", "aten::mkldnn_convolution"}
ALLOCATES = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::empty_permuted",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::lift_fresh",
    "aten::resize_",
    "aten::set_",
}
# CUDA runs an embedding as index_select(weight, 0, indices) and stack as cat, and these are what its messages name.
RENAMED = {
    "aten::embedding": ("index_select", {"weight": "self", "indices": "index"}),
    "aten::stack": ("cat", {}),
}
# Arguments that CUDA takes from the host as well, by operator.
FROM_HOST = {
    "aten::_pack_padded_sequence": {"lengths"},
    "aten::_pack_padded_sequence_backward": {"batch_sizes"},
}
# Results that CUDA leaves on the host, by operator and position.
TO_HOST = {"aten::_pack_padded_sequence": {1}}


@dataclass(frozen=True)
class Operator:
    """One operator overload. See :func:`describe`."""

    name: str
    short_name: str
    arguments: tuple[str, ...]
    writes: frozenset[str]
    method: str | None  # the CUDA wrapper that compares the devices of all tensors, where there is one
    renamed: dict[str, str]
    composite: bool
    computes: bool  # counts as a kernel
    fresh: bool  # every result has memory of its own
    takes_device: bool
    takes_generator: bool
    waits: bool
    indexes: bool
    convolves: bool
    reads_scalar: bool
    copies: bool
    casts: bool
    resizes: bool
    from_host: frozenset[str]
    to_host: frozenset[int]


@functools.cache
def describe(func: Any) -> Operator:
    """Look an operator up, once."""
    schema = func._schema
    name, overload = schema.name, schema.overload_name
    short = name.removeprefix("aten::")
    method, renamed = _method(short, overload), {}
    if name in RENAMED:
        other, renamed = RENAMED[name]
        method = _method(other, "")
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    returns_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    names = tuple(a.name for a in schema.arguments)
    return Operator(
        name=name,
        short_name=short,
        arguments=names,
        writes=written,
        method=method,
        renamed=renamed,
        composite=func._can_decompose(),
        computes=not returns_view and name not in ALLOCATES,
        fresh=all(r.alias_info is None for r in schema.returns),
        takes_device="device" in names,
        takes_generator="generator" in names,
        waits=name in WAITS,
        indexes=name in INDEXES,
        convolves=name in CONVOLVES,
        reads_scalar=name == "aten::_local_scalar_dense",
        copies=name == "aten::copy_",
        casts=name == "aten::_to_copy",
        resizes=name == "aten::resize_",
        from_host=frozenset(FROM_HOST.get(name, ())),
        to_host=frozenset(TO_HOST.get(name, ())),
    )


def _method(name: str, overload: str) -> str | None:
    full = f"{name}.{overload}" if overload else name
    return wrapper_name(full, full in STRUCTURED) if full in STRUCTURED or full in PLAIN else None
