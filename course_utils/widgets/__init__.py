"""Interactive pictures. Each has a static form, for saved notebooks and wherever widgets cannot run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["LABELS", "can_interact", "choices", "display_widget"]

LABELS = {"description_width": "10em"}
"""The style of controls that stand below each other."""


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


def choices(options: Sequence[Any], value: Any, description: str) -> Any:
    """Radio buttons in a row.

    No menu and no list: those need the arrow keys, which JupyterLab keeps for going from cell to cell. Radio buttons of
    ipywidgets are reached with Tab and chosen with the space bar.
    """
    import ipywidgets

    return ipywidgets.RadioButtons(
        options=options,
        value=value,
        description=description,
        orientation="horizontal",
        style=LABELS,
        layout={"width": "auto"},
    )


def display_widget(widget: Any, markdown: str, plain: str) -> None:
    """Display a widget; front ends that know no widgets show its static form instead."""
    from IPython.display import publish_display_data

    bundle = dict(widget._repr_mimebundle_())
    publish_display_data({**bundle, "text/markdown": markdown, "text/plain": plain})
