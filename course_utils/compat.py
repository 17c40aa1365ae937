"""Where an older PyTorch lacks what the course needs of it. Everything here has a reason, a version, and a test.

Three levels, the first that is enough: another name for the same thing, another argument, other logic. What is found at
import is what the installed version has; no version number is compared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _autograd
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["default_device", "pop_saved_tensors_hooks", "push_saved_tensors_hooks", "remember_saved_tensors_hooks"]

Pair = tuple[Callable[..., Any], Callable[..., Any]]


# ------------------------------------------------------------------------------------------------ default device
def default_device() -> torch.device:
    """The device of new tensors.

    In PyTorch 2.9 `torch.get_default_device()` fails after `torch.set_default_device(None)`. Other logic: a new tensor is asked.
    """
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.empty(0).device


# ------------------------------------------------------------------------------------------------ saved-tensors hooks
# PyTorch 2.6 can switch off the innermost pair of hooks and cannot say which pair it was. Other logic: each thread keeps a list of
# the pairs that were switched on by `with saved_tensors_hooks(...)` or a class made of it.
_on = threading.local()


def _pairs() -> list[Pair]:
    if not hasattr(_on, "pairs"):
        _on.pairs = []
    return _on.pairs


def remember_saved_tensors_hooks() -> Callable[[], None]:
    """Keep the list from now on; returns a function that ends it. Blocks that are open already are not in it."""
    enter, leave = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__

    def entered(self: saved_tensors_hooks) -> Any:
        result = enter(self)
        _pairs().append((self.pack_hook, self.unpack_hook))
        return result

    def left(self: saved_tensors_hooks, *raised: object) -> Any:
        if _pairs():
            _pairs().pop()
        return leave(self, *raised)

    saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = entered, left

    def end() -> None:
        saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__ = enter, leave
        _pairs().clear()

    return end


def _pop_listed() -> Pair | None:
    if not _pairs():
        return None
    _autograd._pop_saved_tensors_default_hooks()
    return _pairs().pop()


def _push_listed(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    _autograd._push_saved_tensors_default_hooks(pack, unpack)
    _pairs().append((pack, unpack))


def _pop_asked() -> Pair | None:
    pair = _autograd._top_saved_tensors_default_hooks(True)
    if pair is not None:
        _autograd._pop_saved_tensors_default_hooks()
    return pair


if hasattr(_autograd, "_top_saved_tensors_default_hooks"):
    pop_saved_tensors_hooks = _pop_asked
    push_saved_tensors_hooks = _autograd._push_saved_tensors_default_hooks
else:
    remember_saved_tensors_hooks()
    pop_saved_tensors_hooks = _pop_listed
    push_saved_tensors_hooks = _push_listed
