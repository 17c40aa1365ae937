"""Facts: what an observer writes down about an answer, as plain data.

A fact is a name and a value. Values are numbers, text, lists, dictionaries and small arrays; whatever else an
answer returns becomes a text that describes it. So facts can cross a process border as JSON, and no object of the
student's ever reaches the judge.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course_utils.meter import MemoryMeter, memory
from course_utils.observe.plain import COST_SHARE, Fact, Spec

__all__ = ["Outcome", "See", "attempt", "class_name", "describe", "encode", "error_text", "thinned"]

MAX_ELEMENTS = 50_000  # of one array; a larger one is written down by shape and dtype alone
MAX_ITEMS = 2_000  # of one list or dictionary
MAX_VALUES = 200_000  # of one fact, elements of arrays counted
MAX_DEPTH = 20  # of lists in lists
MAX_DESCRIBED = 3  # levels of lists in a description
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
    """Call a function that may fail as part of its behaviour. A bare ``NotImplementedError`` gets out: not started."""
    try:
        return Outcome(value=function(*args, **kwargs))
    except Exception as error:
        if isinstance(error, NotImplementedError) and not error_text(error):
            raise
        return Outcome(error=class_name(error), message=error_text(error)[:MAX_TEXT])


def error_text(error: BaseException) -> str:
    """What an exception says; a class whose own ``__str__`` fails says nothing."""
    try:
        return str.__str__(str(error))
    except Exception:
        return ""


def describe(value: Any, device: torch.device | None = None, _depth: int = 0) -> str:
    """Class, dtype and shape in one text: ``Tensor float32 (3, 5, 7)``, ``list of 3 x ndarray uint8 (5, 7, 3)``.

    The device is named only when it is not ``device``, so that the same text holds on a CPU and on a GPU.
    """
    kind = class_name(value)
    if _is(value, torch.Tensor):
        place = "" if device is None or value.device.type == device.type else f" on {value.device.type}"
        layout = "" if value.layout == torch.strided else f" {_short(value.layout)}"
        kind = "Tensor" if type(value) in (torch.Tensor, torch.nn.Parameter) else _foreign(kind, "Tensor")
        return f"{kind} {_short(value.dtype)} {tuple(value.shape)}{layout}{place}"
    if _is(value, np.ndarray):
        numpys = any(getattr(module, kind, None) is type(value) for module in (np, np.ma))
        return f"{'ndarray' if numpys else _foreign(kind, 'ndarray')} {value.dtype} {value.shape}"
    if _is(value, np.generic):
        return f"numpy.{kind}"
    if _is(value, (list, tuple)):
        items = _items(value)
        if not items:
            return f"empty {kind}"
        if _depth == MAX_DESCRIBED:
            return f"{kind} of {len(items)}"
        inner = list(dict.fromkeys(describe(v, device, _depth + 1) for v in items[:20]))
        return f"{kind} of {len(items)} x {inner[0]}" if len(inner) == 1 else f"{kind} of {', '.join(inner)}"[:200]
    if value is None:
        return "None"
    if _is(value, type):
        return f"the class {class_name(value, of_class=True)}"
    return kind


def _foreign(kind: str, name: str) -> str:
    """A subclass of the student's may answer questions as it likes: it must not pass for the class whose name it has."""
    return f"subclass {kind}" if kind == name else kind


def class_name(value: Any, of_class: bool = False) -> str:
    """The name of a value's class (or of the class itself), which no metaclass can redefine."""
    return str.__str__(type.__dict__["__name__"].__get__(value if of_class else type(value)))


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """As ``isinstance``, but deaf to a ``__class__`` that an object has given itself."""
    return issubclass(type(value), kind)


def _items(value: list | tuple) -> list[Any]:
    return list((list if _is(value, list) else tuple).__iter__(value))


def _short(name: torch.dtype | torch.layout) -> str:
    return str(name).removeprefix("torch.")


def encode(value: Any, device: torch.device | None = None) -> Any:
    """Turn a value into plain data, of bounded size whatever the value.

    A subclass of one of Python's own types counts as that type (``np.float64`` is a ``float``, a named tuple a tuple) and
    is read by the type's own methods: what it may have redefined, such as ``==``, has no say.
    """
    return _Encoder(device)(value)


class _Encoder:
    """One walk through a value. Counts what it has written, so that lists that hold each other come to an end."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._room = MAX_VALUES

    def __call__(self, value: Any, depth: int = 0) -> Any:
        self._room -= 1
        if self._room < 0 or depth > MAX_DEPTH:
            return {"object": "too many values" if self._room < 0 else f"nested more than {MAX_DEPTH} deep"}
        if value is None or type(value) is bool:
            return value
        if _is(value, int):
            value = int.__int__(value)
            return value if value.bit_length() <= 1_000 else {"object": f"an int of {value.bit_length()} bits"}
        if _is(value, float):
            return float.__float__(value)
        if _is(value, str):
            return _cut(str.__str__(value))
        if type(value) is Outcome:
            if value.raised:
                return {"raises": value.error, "message": value.message}
            return self(value.value, depth)
        if type(value) is complex:
            return {"complex": [value.real, value.imag]}
        if type(value) in (bytes, bytearray):
            return {"bytes": _cut(value[: 100 * MAX_TEXT].hex())}
        if _is(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return str(value).removeprefix("torch.")
        if _is(value, torch.Tensor):
            return self._tensor(value)
        if _is(value, np.ndarray):
            plain = np.asarray(value)
            return self._array(plain, str(plain.dtype), "ndarray")
        if _is(value, np.generic):
            item = value.item()
            plain = float(item) if isinstance(item, np.longdouble) else item
            return {"numpy": value.dtype.name, "value": self(plain, depth + 1)}
        if _is(value, (list, tuple)):
            return self._list(_items(value), depth)
        if _is(value, dict):
            items = list(dict.items(value))
            plain = {self._key(k, depth): self(v, depth + 1) for k, v in items[:MAX_ITEMS]}
            return plain if len(items) <= MAX_ITEMS else {**plain, "...": f"{len(items) - MAX_ITEMS} more"}
        if _is(value, (set, frozenset)):
            return sorted(self._list(list(frozenset().union(value)), depth), key=str)
        return {"object": _cut(describe(value, self._device))}

    def _key(self, value: Any, depth: int) -> str:
        return _cut(str.__str__(value) if _is(value, str) else str(self(value, depth + 1)))

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        plain = [self(v, depth + 1) for v in items[:MAX_ITEMS]]
        return plain if len(items) <= MAX_ITEMS else [*plain, {"object": f"{len(items) - MAX_ITEMS} more"}]

    def _tensor(self, value: torch.Tensor) -> Any:
        try:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                plain = torch.Tensor.as_subclass(value, torch.Tensor).detach()
                name = _short(plain.dtype)
                if plain.layout != torch.strided or plain.is_meta or plain.is_quantized:
                    return {"object": describe(value, self._device)}
                if plain.numel() > MAX_ELEMENTS:
                    return {"array": name, "shape": list(plain.shape), "data": None, "kind": "Tensor"}
                if plain.dtype.is_floating_point and plain.dtype != torch.float64:
                    plain = plain.float()  # NumPy knows neither bfloat16 nor 8-bit floats
                if plain.dtype == torch.complex32:
                    plain = plain.to(torch.complex64)
                return self._array(plain.resolve_conj().resolve_neg().cpu().numpy(), name, "Tensor")
        except (RuntimeError, TypeError, NotImplementedError):  # fake, nested, functional: no numbers to be had
            return {"object": describe(value, self._device)}

    def _array(self, value: np.ndarray, dtype: str, kind: str) -> Any:
        form = {"array": dtype, "shape": list(value.shape), "kind": kind}
        if value.dtype.kind not in "biufc" or value.size > min(MAX_ELEMENTS, self._room):
            return {**form, "data": None}
        self._room -= value.size
        stored = np.ascontiguousarray(value)
        if stored.dtype.byteorder == ">":
            stored = stored.astype(stored.dtype.newbyteorder("<"))
        return {**form, "stored": stored.dtype.str, "data": base64.b64encode(stored.tobytes()).decode()}


def _cut(text: str) -> str:
    """A long text as its beginning and a digest of all of it: two that differ later are not taken for equal."""
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[:MAX_TEXT]} ... ({len(text)} characters, {digest})"


def thinned(value: Any, most: int = 200) -> Any:
    """At most about ``most`` evenly spread elements of a large tensor, 1-D; anything else is described in words.

    For the result of the call whose bytes were measured: it must be a real answer, too.
    """
    if not isinstance(value, torch.Tensor):
        return describe(value)
    flat = value.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // most)]


class See:
    """The recorder that an observer gets as ``see``."""

    def __init__(self, device: torch.device) -> None:
        self.facts: list[Fact] = []
        self.case = 0
        self.device = device

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
        secret: bool = False,
        why: str = "",
        fix: str = "",
        clues: Sequence[str] = (),
    ) -> None:
        """Write down a fact. See :class:`Spec` for the parameters; a cost without a ``share`` gets ``COST_SHARE``."""
        if at_most and share is None:
            share = COST_SHARE
        spec = Spec(
            atol=atol,
            rtol=rtol,
            at_most=at_most,
            slack=slack,
            allowance=allowance,
            share=share,
            any_error=any_error,
            secret=secret,
            why=why,
            fix=fix,
            clues=tuple(clues),
        )
        self.facts.append(Fact(name, encode(value, self.device), self.case, spec))

    def score(
        self,
        name: str,
        predictions: Any,
        *,
        labels: str,
        steps: Sequence[tuple[float, float, float | None]],
        why: str = "",
        fix: str = "",
    ) -> None:
        """Write down predictions that the judge scores against labels which this process does not know.

        One fact for each step, so that every step reached earns its share.

        Parameters
        ----------
        name : str
            The fact's; of several steps the number is added.
        predictions : array-like of int, (N,)
        labels : str
            Which labels: ``test``, ``train[800:]``.
        steps : sequence of (float, float, float or None)
            Least accuracy on drawn images, least accuracy on photographs, and the share of the points (None: essential).
        why, fix : str
            As everywhere; they belong to the step that is missed.
        """
        plain = encode(predictions, self.device)
        for number, (drawn, photographs, share) in enumerate(steps, 1):
            spec = Spec(labels=labels, at_least=(drawn, photographs), share=share, why=why, fix=fix)
            step = f"{name}, step {number} of {len(steps)}" if len(steps) > 1 else name
            self.facts.append(Fact(step, plain, self.case, spec))

    def form(self, value: Any, name: str = "type of the result", *, why: str = "", fix: str = "") -> None:
        """Write down class, dtype, shape and device; do this before looking at values."""
        text = value if isinstance(value, str) else describe(value, self.device)
        self.facts.append(Fact(name, encode(text), self.case, Spec(form=True, why=why, fix=fix)))

    def memory(self, numpy: bool = False) -> AbstractContextManager[MemoryMeter]:
        """Measure a block: ``with see.memory() as used: ...``, then ``see("bytes at peak", used.peak, at_most=True)``."""
        return memory(numpy)
