"""Keeps what an answer returns from answering for itself.

A tensor takes attributes of any name, and one that is called ``stride`` hides the method: ``y.data_ptr = lambda: x.data_ptr()``
would turn a copy into a view. A descriptor that has ``__set__`` goes before an object's own attributes (Python's data
model, "Invoking Descriptors"), so for the time of a check the methods that observers call are such descriptors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, NoReturn

import torch

__all__ = ["firm_methods"]

_TENSOR = tuple(
    [
        "abs",
        "all",
        "any",
        "clone",
        "contiguous",
        "cpu",
        "data_ptr",
        "detach",
        "dim",
        "double",
        "element_size",
        "equal",
        "expand",
        "flatten",
        "float",
        "is_contiguous",
        "is_pinned",
        "is_shared",
        "item",
        "long",
        "max",
        "mean",
        "min",
        "nelement",
        "numel",
        "numpy",
        "permute",
        "reshape",
        "resolve_conj",
        "resolve_neg",
        "select",
        "size",
        "square",
        "storage_offset",
        "stride",
        "sum",
        "t",
        "to",
        "tolist",
        "transpose",
        "type",
        "unique",
        "untyped_storage",
        "view",
    ]
)
_STORAGE = ("data_ptr", "nbytes", "size", "tolist")


class _Firm:
    """A method that an object's own attribute of the same name does not hide."""

    __slots__ = ("_method", "_name")

    def __init__(self, name: str, method: Any) -> None:
        self._name, self._method = name, method

    def __get__(self, thing: Any, kind: type | None = None) -> Any:
        return self._method if thing is None else MethodType(self._method, thing)

    def __set__(self, thing: Any, value: Any) -> NoReturn:
        raise AttributeError(f"{self._name} is a method of tensors: give your attribute another name")


@contextmanager
def firm_methods() -> Iterator[None]:
    """For the time of the block, tensors and storages answer with PyTorch's own methods.

    Raises
    ------
    RuntimeError
        At the end, if a method was taken away meanwhile.
    """
    placed = []
    for owner, names in ((torch.Tensor, _TENSOR), (torch.UntypedStorage, _STORAGE)):
        for name in names:
            own = vars(owner).get(name)  # most are inherited
            firm = _Firm(name, getattr(owner, name))
            setattr(owner, name, firm)
            placed.append((owner, name, own, firm))
    try:
        yield
    finally:
        lost = [name for owner, name, *_ in placed if name not in vars(owner)]
        for owner, name, own, firm in placed:
            if vars(owner).get(name, firm) is not firm:  # somebody else's, and theirs to put back
                continue
            if own is not None:
                setattr(owner, name, own)
            elif name in vars(owner):
                delattr(owner, name)
    if lost:
        raise RuntimeError(f"torch.Tensor.{lost[0]} was taken away while the check ran")
