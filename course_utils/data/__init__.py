"""CIFAR-mini: ten classes of 32 x 32 colour images, by default drawn, not photographed.

`load_cifar_mini` reads it; `python -m course_utils build-data` makes it. See `data/README.md`. `CifarMini` is the
Dataset on it.
"""

import importlib
from typing import Any

from course_utils.data.images import DataError
from course_utils.data.reading import CifarMiniArrays, load_cifar_mini

# The Dataset needs torch, which the data commands must not wait for.
_LATER = ("CifarMini", "as_is", "fast_loader", "shift_and_flip")

__all__ = ["CifarMini", "CifarMiniArrays", "DataError", "as_is", "fast_loader", "load_cifar_mini", "shift_and_flip"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'course_utils.data' has no attribute {name!r}")
    return getattr(importlib.import_module("course_utils.data.cifar_mini"), name)
