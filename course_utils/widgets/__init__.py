"""Interactive pictures. Each has a static form, for saved notebooks and wherever widgets cannot run."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["can_interact", "display_widget"]


def can_interact() -> bool:
    """Whether a person can move controls here.

    True in a notebook kernel; false in a plain script, while nbgrader runs a notebook, and where the variable
    COURSE_STATIC is set (a notebook that is executed to be read, without a front end).
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        return False
    return not ({"NBGRADER_EXECUTION", "COURSE_STATIC"} & os.environ.keys())


def display_widget(widget: Any, markdown: str, plain: str) -> None:
    """Display a widget; front ends that know no widgets show its static form instead."""
    from IPython.display import publish_display_data

    bundle = dict(widget._repr_mimebundle_())
    publish_display_data({**bundle, "text/markdown": markdown, "text/plain": plain})
