"""Autocast of the device, by CUDA's lists: which operators run in float16, which in float32, which in the widest dtype of their arguments.

The CPU's lists are others (softmax and layer norm stay in half precision there), so the CPU's autocast would teach
something wrong. PyTorch keeps an autocast key for the device type that may be named, without rules; these are the rules. They look at the device of
the arguments, so ``torch.autocast("sim")`` leaves CPU tensors alone, as ``torch.autocast("cuda")`` does.

Source: the macros AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and AT_FORALL_PROMOTE in
ATen/autocast_mode.h, and the CUDA part of ATen/autocast_mode.cpp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from course_utils.simgpu.colours import NAME, device_of

__all__ = [
    "FLOAT32",
    "LOWER",
    "WIDEST",
    "available_in_thread",
    "clear_cache",
    "is_on_for_cpu",
    "register",
    "set_enabled",
]

KEY = torch._C.DispatchKey.AutocastPrivateUse1
_KEYS = torch._C.DispatchKeySet(KEY)

LOWER = """
_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution
prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear linalg_multi_dot chain_matmul addbmm baddbmm bmm
lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
"""
FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm rms_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dtype
norm.ScalarOpt_dim_dtype
"""
WIDEST = """
addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add vdot
"""
BANNED = "binary_cross_entropy"

Cast = Callable[[torch.Tensor], torch.Tensor]
_libraries: list[torch.library.Library] = []


class _InThread(threading.local):
    def __init__(self) -> None:
        # Half-precision copies of parameters, kept until the block ends, as CUDA's autocast does.
        self.casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.for_cpu = False


_in_thread = _InThread()
_real_set_enabled, _real_clear_cache = torch.set_autocast_enabled, torch.clear_autocast_cache


def _eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and device_of(tensor) is not None


def _to_lower(tensor: torch.Tensor) -> torch.Tensor:
    lower = torch.get_autocast_dtype(NAME)
    if not _eligible(tensor) or tensor.dtype == lower:
        return tensor
    if not (
        tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32 and torch.is_autocast_cache_enabled()
    ):
        return tensor.to(lower)
    known = _in_thread.casts.get(id(tensor))
    if known is None or known[0] is not tensor or known[1].dtype != lower:
        known = _in_thread.casts[id(tensor)] = (tensor, tensor.to(lower))
    return known[1]


def _to_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if _eligible(tensor) else tensor


def _map(value: Any, cast: Cast) -> Any:
    if isinstance(value, torch.Tensor):
        return cast(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, cast) for item in value)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _widest(args: tuple) -> Cast:
    wide = any(tensor.dtype == torch.float32 for tensor in _tensors(args) if _eligible(tensor))
    return _to_float32 if wide else _to_lower


def _rule(operator: Any, choose: Callable[[tuple], Cast]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            cast = choose(args)
            args = tuple(_map(value, cast) for value in args)
            return operator(*args, **{name: _map(value, cast) for name, value in kwargs.items()})

    return run


def _refuse(*args: Any, **kwargs: Any) -> Any:
    # ATen/autocast_mode.cpp
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss. binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )


def register() -> None:
    """Tell the dispatcher the rules, once per process. They are idle until ``available_in_thread``."""
    if _libraries:
        return
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, KEY.name)
    rules = torch.library.Library("aten", "IMPL")
    for names, choose in ((LOWER, lambda _: _to_lower), (FLOAT32, lambda _: _to_float32), (WIDEST, _widest)):
        for name in names.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            rules.impl(name, _rule(operator, choose), KEY.name)
    rules.impl(BANNED, _refuse, KEY.name)
    _libraries.extend((others, rules))


@contextmanager
def available_in_thread() -> Iterator[None]:
    """Let ``torch.autocast("sim")`` reach the rules in this thread.

    The dispatcher looks at the keys of the arguments, and these are CPU tensors: the key has to be added by hand.
    ``torch.autocast`` itself takes it in and out of the excluded keys.
    """
    before = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, before)


def clear_cache() -> None:
    """``torch.clear_autocast_cache``, which the end of a block calls."""
    _in_thread.casts.clear()
    _real_clear_cache()


def set_enabled(*args: Any) -> None:
    """``torch.set_autocast_enabled``. Operators are run with autocast off, so the mode cannot ask whether it is on."""
    _real_set_enabled(*args)
    _in_thread.for_cpu = torch.is_autocast_enabled("cpu")


def is_on_for_cpu() -> bool:
    """Whether ``torch.autocast("cpu")`` is in force in this thread."""
    return _in_thread.for_cpu
