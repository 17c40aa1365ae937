"""Figures of the course: every one has a caption, and a text for those who cannot see it.

Figures are drawn on white, so that they can be read in a dark notebook, and never tell anything by colour alone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.demos import show_markdown

__all__ = ["bars", "figure", "html_picture", "image_row", "picture", "png", "show"]

DPI = 100
INK = "#1a1a1a"
FILL = "#9ecae1"


def figure(width: float, height: float) -> Figure:
    """An empty white figure, ``width`` x ``height`` inches. It belongs to no global state and never shows itself."""
    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")


def png(fig: Figure, trim: bool = True) -> bytes:
    """The figure as a PNG file; ``trim`` cuts to what is drawn, otherwise the size stays as it was asked for."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", facecolor="white", bbox_inches="tight" if trim else None, pad_inches=0.1)
    return buffer.getvalue()


def picture(fig: Figure, alt: str) -> str:
    """The figure as a Markdown picture that carries its own data; ``alt`` is one paragraph of plain text."""
    text = " ".join(alt.split()).replace("[", "(").replace("]", ")")
    return f"![{text}](data:image/png;base64,{base64.b64encode(png(fig)).decode()})"


def html_picture(fig: Figure, alt: str) -> str:
    """The figure as an HTML picture that carries its own data, for widgets: of one size, so that it does not jump about."""
    data = base64.b64encode(png(fig, trim=False)).decode()
    style = "max-width: 100%; height: auto"  # on a narrow page, or a page that is zoomed, it shrinks
    return f'<img alt="{escape(alt)}" style="{style}" src="data:image/png;base64,{data}">'


def show(fig: Figure, caption: str, alt: str) -> None:
    """Display a figure with its caption.

    Parameters
    ----------
    fig : Figure
    caption : str
        What to see in it, one or two sentences; Markdown.
    alt : str
        What is in it, for those who cannot see it; plain text.

    Raises
    ------
    ValueError
        If the caption or the text is missing.
    """
    if not caption.strip() or not alt.strip():
        raise ValueError("a figure needs a caption and an alt text")
    show_markdown(f"{picture(fig, alt)}\n\n**Figure.** {caption}", f"[Figure: {' '.join(alt.split())}]\n{caption}")


def image_row(images: Sequence[Any], titles: Sequence[str], caption: str, alt: str, columns: int = 6) -> None:
    """Display images side by side, pixels as squares.

    Parameters
    ----------
    images : sequence of arrays or tensors
        (H, W, 3) RGB or (H, W) grey; uint8 from 0 to 255, or floats from 0 to 1. The sizes may differ.
    titles : sequence of str
        One per image, drawn above it.
    caption, alt : str
        As in :func:`show`.
    columns : int
        Images in one row.
    """
    if len(images) != len(titles):
        raise ValueError(f"{len(images)} images need as many titles, not {len(titles)}")
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    fig = figure(1.7 * columns, 1.95 * rows)
    for i, axes in enumerate(fig.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if i < len(images):
            image = np.asarray(images[i])
            top = 255 if image.dtype == np.uint8 else 1
            axes.imshow(image, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
            axes.set_title(titles[i], fontsize=9, color=INK)
    show(fig, caption, alt)


def bars(names: Sequence[str], values: Sequence[float], unit: str, caption: str, alt: str, log: bool = False) -> None:
    """Display horizontal bars, each with its name and its value written beside it.

    Parameters
    ----------
    names : sequence of str
    values : sequence of float
        Not negative; with ``log`` greater than zero.
    unit : str
        The label of the axis.
    caption, alt : str
        As in :func:`show`.
    log : bool
        A logarithmic axis, for values that differ by powers of ten.
    """
    fig = figure(7.5, 0.6 + 0.42 * len(names))
    axes: Axes = fig.subplots()
    drawn = axes.barh(range(len(names)), values, color=FILL, edgecolor=INK, hatch="//")
    axes.bar_label(drawn, labels=[f"{v:,.10g}" for v in values], padding=4, fontsize=9, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlabel(unit, fontsize=9, color=INK)
    if log:
        axes.set_xscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.18)
    show(fig, caption, alt)
