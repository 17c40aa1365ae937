"""Exercises as behaviours: observe an answer, write down facts, compare, explain.

=================  ==================================================================
``registry``       the exercises, one observer each
``case``           seeded inputs for an observer
``facts``          the recorder ``see``; ``plain``: the data that it writes, free of torch
``guard``          keeps an answer's warnings, output and mess out of the notebook
``run``            runs an observer on an answer
``processes``      a process of its own for an answer that may crash or hang
``compare``        behaviour of an answer against the reference's: a verdict
``clues``          what the difference of two values tells about the mistake
``errors``         PyTorch's error texts, and what to try
``scores``         predictions against labels that only a judge reads
``expected``       the reference's behaviour as files
``message``        the five lines of text, and ``card`` the same for JupyterLab
``agent``          what runs in a student's kernel when an instructor grades
=================  ==================================================================

Everything here ships to students; nothing here knows an answer.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Case": "case",
    "Exercise": "registry",
    "NotStarted": "registry",
    "Skipped": "registry",
    "all_exercises": "registry",
    "exercise": "registry",
    "find_exercise": "registry",
    "See": "facts",
    "attempt": "facts",
    "describe": "facts",
    "thinned": "facts",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'course_utils.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"course_utils.observe.{_HOMES[name]}"), name)
