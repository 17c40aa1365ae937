"""Facts: what an observer writes down about an answer, as plain data.

A fact is a name and a value. Values are numbers, text, lists, dictionaries and small arrays; whatever else an
answer returns becomes a text that describes it. So facts can cross a process border as JSON, and no object of the
student's ever reaches the judge.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course_utils.meter import MemoryMeter, memory
from course_utils.observe.plain import COST_SHARE, Fact, Spec

__all__ = ["Outcome", "See", "attempt", "describe", "encode"]

MAX_ELEMENTS = 50_000  # of one array; a larger one is written down by shape and dtype alone
MAX_ITEMS = 2_000  # of one list or dictionary
MAX_TEXT = 1_000  # characters


@dataclass(frozen=True)
class Outcome:
    """What came of a call that may fail: a value, or an exception's class and message."""

    value: Any = None
    error: str | None = None
    message: str = ""

    @property
    def raised(self) -> bool:
        return self.error is not None


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    """Call a function whose failing is part of its behaviour. A bare ``NotImplementedError`` is let through: not started."""
    try:
        return Outcome(value=function(*args, **kwargs))
    except Exception as error:
        if isinstance(error, NotImplementedError) and not str(error):
            raise
        return Outcome(error=type(error).__name__, message=str(error)[:MAX_TEXT])


def describe(value: Any, device: torch.device | None = None) -> str:
    """Class, dtype and shape in one text: ``Tensor float32 (3, 5, 7)``, ``list of 3 x ndarray uint8 (5, 7, 3)``.

    The device is named only when it is not ``device``, so that the same text holds on a CPU and on a GPU.
    """
    if isinstance(value, torch.Tensor):
        place = "" if device is None or value.device.type == device.type else f" on {value.device.type}"
        kind = "Tensor" if type(value) in (torch.Tensor, torch.nn.Parameter) else type(value).__name__
        return f"{kind} {_dtype(value.dtype)} {tuple(value.shape)}{place}"
    if isinstance(value, np.ndarray):
        return f"ndarray {value.dtype} {value.shape}"
    if isinstance(value, np.generic):
        return f"numpy.{type(value).__name__}"
    if isinstance(value, (list, tuple)):
        kind = type(value).__name__
        inner = list(dict.fromkeys(describe(v, device) for v in value[:20]))
        if not inner:
            return f"empty {kind}"
        return f"{kind} of {len(value)} x {inner[0]}" if len(inner) == 1 else f"{kind} of {', '.join(inner)}"[:200]
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def encode(value: Any, device: torch.device | None = None) -> Any:
    """Turn a value into plain data. Subclasses that could redefine ``==`` or ``float`` lose that power here."""
    if value is None or type(value) in (bool, int):
        return value if not isinstance(value, int) or abs(value) < 2**63 else f"{value:.6g}"
    if type(value) is float:
        return value
    if type(value) is str:
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + " ..."
    if isinstance(value, Outcome):
        if value.raised:
            return {"raises": value.error, "message": value.message}
        return encode(value.value, device)
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return [int(n) for n in value]
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, device)
    if isinstance(value, np.ndarray):
        return _encode_array(np.array(value, copy=True, subok=False), str(value.dtype), "ndarray")
    if isinstance(value, np.generic):
        return {"numpy": value.dtype.name, "value": encode(value.item())}
    if type(value) in (list, tuple):
        return [encode(v, device) for v in value[:MAX_ITEMS]]
    if type(value) is dict:
        return {str(k)[:MAX_TEXT]: encode(v, device) for k, v in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, (set, frozenset)):
        return sorted((encode(v, device) for v in list(value)[:MAX_ITEMS]), key=str)
    return {"object": describe(value, device)[:MAX_TEXT]}


def _encode_tensor(value: torch.Tensor, device: torch.device | None) -> Any:
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if value.layout != torch.strided or value.is_meta:
            return {"object": describe(value, device)}
        plain = value.detach().resolve_conj().resolve_neg().cpu()
        name = _dtype(plain.dtype)
        if plain.dtype in (torch.bfloat16, torch.float16):
            plain = plain.float()
        if plain.numel() > MAX_ELEMENTS:
            return {"array": name, "shape": list(plain.shape), "data": None, "kind": "Tensor"}
        return _encode_array(plain.numpy().copy(), name, "Tensor")


def _encode_array(value: np.ndarray, dtype: str, kind: str) -> Any:
    if value.dtype.kind not in "biufc" or value.size > MAX_ELEMENTS:
        return {"array": dtype, "shape": list(value.shape), "data": None, "kind": kind}
    stored = np.ascontiguousarray(value)
    if stored.dtype.byteorder == ">":
        stored = stored.astype(stored.dtype.newbyteorder("<"))
    return {
        "array": dtype,
        "shape": list(value.shape),
        "stored": stored.dtype.str,
        "data": base64.b64encode(stored.tobytes()).decode(),
        "kind": kind,
    }


class See:
    """The recorder that an observer gets as ``see``."""

    def __init__(self, device: torch.device) -> None:
        self.facts: list[Fact] = []
        self.case = 0
        self._device = device

    def __call__(
        self,
        name: str,
        value: Any,
        *,
        atol: float = 0.0,
        rtol: float = 0.0,
        at_most: bool = False,
        slack: float = 0.0,
        allowance: float = 0.0,
        share: float | None = None,
        any_error: bool = False,
        why: str = "",
        fix: str = "",
        clues: Sequence[str] = (),
    ) -> None:
        """Write down a fact. See :class:`Spec` for the parameters; a cost without a ``share`` gets ``COST_SHARE``."""
        if at_most and share is None:
            share = COST_SHARE
        spec = Spec(atol, rtol, at_most, slack, allowance, share, False, any_error, why, fix, tuple(clues))
        self.facts.append(Fact(name, encode(value, self._device), self.case, spec))

    def form(self, value: Any, name: str = "type of the result", *, why: str = "", fix: str = "") -> None:
        """Write down class, dtype, shape and device; do this before looking at values."""
        text = value if isinstance(value, str) else describe(value, self._device)
        self.facts.append(Fact(name, encode(text), self.case, Spec(form=True, why=why, fix=fix)))

    def memory(self, numpy: bool = False) -> AbstractContextManager[MemoryMeter]:
        """Measure a block: ``with see.memory() as used: ...``, then ``see("bytes at peak", used.peak, at_most=True)``."""
        return memory(numpy)
