"""Helpers of the course: ``from course_utils import check, hint, progress``.

Names are looked up when they are first used: the data commands and the set-up must not wait for ``import torch``.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "check": "checking",
    "hint": "checking",
    "progress": "checking",
    "CheckFailed": "checking",
    "available_device": "devices",
    "seed_everything": "devices",
    "draw_fx": "graphs",
    "draw_graph": "graphs",
    "memory": "meter",
    "storage_bytes": "meter",
    "bytes_saved_for_backward": "meter",
    "being_graded": "graded",
    "load_cifar_mini": "data",
    "operators": "demos",
    "shows_error": "demos",
    "shows_warning": "demos",
    "table": "demos",
    "predict": "predictions",
    "reveal": "predictions",
    "my_predictions": "predictions",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'course_utils' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"course_utils.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
