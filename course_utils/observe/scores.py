"""Predictions against labels. Labels are read here, in the process that judges, and nowhere else. Needs no torch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from course_utils.data.reading import load_cifar_mini
from course_utils.observe.plain import Spec, decode_array

__all__ = ["accuracy", "is_drawn", "least", "percent", "true_labels"]

_NAME = re.compile(r"(train|test)(?:\[(\d*):(\d*)\])?")


def true_labels(name: str) -> np.ndarray:
    """Labels of CIFAR-mini by name: ``test``, ``train[800:]``, ``train[:100]``.

    Returns
    -------
    numpy.ndarray, (N,) int64

    Raises
    ------
    ValueError
        If the name is none of these.
    DataError
        If there is no data; the message says what to do. A judge without labels must not give a mark.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"no labels are called {name!r}: say train, test, or a part such as train[800:]")
    split, start, stop = match.groups()
    return load_cifar_mini(split).labels[int(start or 0) : int(stop) if stop else None]


def is_drawn() -> bool:
    """Are the images in use the drawn ones, which are easier than photographs?"""
    return load_cifar_mini("train").meta["source"].get("name") == "drawn"


def least(spec: Spec) -> float:
    """The accuracy that a fact asks for, on the images in use."""
    return spec.at_least[0 if is_drawn() else 1]


def accuracy(labels: str, predictions: Any) -> float | None:
    """The share of right predictions; None where the plain value is no (N,) array of whole numbers, one for each label."""
    truth = true_labels(labels)
    if not isinstance(predictions, dict):
        return None
    found = decode_array(predictions)
    if found is None or found.dtype.kind not in "iu" or found.shape != truth.shape:
        return None
    return float(np.mean(found == truth))


def percent(share: float) -> str:
    """``57.3 %``."""
    return f"{100 * share:.1f} %"
