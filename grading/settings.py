"""nbgrader's configuration, as ``nbgrader_config.py`` and the command line give it."""

from __future__ import annotations

import contextlib
from typing import Any

from nbgrader.apps import NbGrader
from nbgrader.converters.base import BaseConverter
from traitlets.config import Config

from grading.source import ROOT

__all__ = ["load_config", "stock"]


def stock(converter: type[BaseConverter], trait: str, **changes: type | None) -> list[type]:
    """nbgrader's own list of preprocessors with some replaced by ours, or left out (None)."""
    chosen: list[Any] = [changes.get(p.__name__, p) for p in converter.class_traits()[trait].make_dynamic_default()]
    return [p for p in chosen if p is not None]


def load_config(options: list[str] | None = None) -> Config:
    """The configuration of the course.

    Parameters
    ----------
    options : list of str, optional
        Such as ``--Execute.timeout=30``, which go before the file's.

    Raises
    ------
    ValueError
        If an option is none of nbgrader's.
    """
    wrong = [o for o in options or [] if not (o.startswith("--") and "." in o.partition("=")[0] and "=" in o)]
    if wrong:
        raise ValueError(f"unknown option {wrong[0]}; settings of nbgrader look like --Execute.timeout=30")
    app = NbGrader()
    app.parse_command_line(options or [])
    typed = app.config.copy()
    with contextlib.chdir(ROOT):  # nbgrader reads the file of the folder in which it is started
        app.load_config_file()
    app.config.merge(typed)
    return app.config
