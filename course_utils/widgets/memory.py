"""Memory curves: what a loader's workers hold privately while they read, and what the resident size makes of it.

The figures come from :mod:`course_utils.process_memory`. Where a front end is there, the picture grows with the readings.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch.utils.data import DataLoader

from course_utils import plots
from course_utils.process_memory import Reading, Series, watch
from course_utils.widgets import can_interact

__all__ = ["Curve", "alt_text", "draw", "memory_curves", "worker_panels"]

MIB = 1 << 20
REFRESH = 1.0  # seconds
STYLES = (("o", "-"), ("s", "--"), ("^", "-."), ("x", ":"), ("D", "-"), ("v", "--"))
COLOURS = ("#08519c", "#d94801", "#238b45", "#54278f", "#1a1a1a", "#a50f15")


@dataclass
class Curve:
    """One loader's memory; a value per reading, bytes. The processes that load: its workers, or the main process without any.

    Attributes
    ----------
    batches : list of int
        Batches read so far.
    grown : list of int
        Private memory of the loading processes together, above what they held before they read anything (the main
        process: above its first reading).
    resident : list of int
        Their resident sizes added up.
    """

    batches: list[int] = field(default_factory=lambda: [0])
    grown: list[int] = field(default_factory=lambda: [0])
    resident: list[int] = field(default_factory=list)


def _take(curve: Curve, reading: Reading, series: Series) -> None:
    if reading.workers:
        grown = sum(reading.workers.values()) - sum(series.at_start[pid] for pid in reading.workers)
        resident = sum(reading.resident.values())
    else:
        # No process was started, so there is no start to compare with: its first reading is the level.
        grown, resident = reading.main - series.readings[0].main, 0
    if not curve.resident:
        curve.resident.append(resident)  # nobody has looked before the first batch; all pages were there already
    curve.batches.append(reading.batches)
    curve.grown.append(grown)
    curve.resident.append(resident)


def _measure(loader: DataLoader, epochs: int, points: int, after: Callable[[Curve], Any] = lambda _: None) -> Curve:
    curve = Curve()
    for reading, series in watch(loader, epochs, points):
        _take(curve, reading, series)
        after(curve)
    return curve


def _lines(axes: Axes, curves: Mapping[str, Curve], what: str, title: str) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        marker, line = STYLES[number % len(STYLES)]
        values = [v / MIB for v in getattr(curve, what)]
        axes.plot(
            curve.batches[: len(values)],
            values,
            marker=marker,
            linestyle=line,
            markersize=5,
            color=COLOURS[number % len(COLOURS)],
            label=name,
        )
    axes.set_title(title, fontsize=10, color=plots.INK)
    axes.set_xlabel("batches read", fontsize=9, color=plots.INK)
    axes.tick_params(labelsize=8, colors=plots.INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.axhline(0, color="#bbbbbb", linewidth=0.7)


def draw(curves: Mapping[str, Curve]) -> Figure:
    """Two panels: growth of private memory, and the resident sizes added up."""
    fig = plots.figure(8.6, 3.7)
    left, right = fig.subplots(1, 2)
    _lines(left, curves, "grown", "private memory (USS), growth")
    _lines(right, curves, "resident", "resident size (RSS), all workers")
    left.set_ylabel("MiB", fontsize=9, color=plots.INK)
    if curves:
        fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(curves), fontsize=9)
    return fig


def alt_text(curves: Mapping[str, Curve], resident: bool = True) -> str:
    """What the curves show, in words."""
    parts = []
    for name, curve in curves.items():
        text = f"{name} grows by {curve.grown[-1] / MIB:.0f} MiB over {curve.batches[-1]} batches"
        if resident and curve.resident:
            text += f", its resident size goes from {curve.resident[0] / MIB:.0f} to {curve.resident[-1] / MIB:.0f} MiB"
        parts.append(text)
    return "; ".join(parts) + "."


class _Live:
    """A picture that is replaced by the next one where a person looks on."""

    def __init__(self, caption: str) -> None:
        self._caption, self._handle, self._next = caption, None, 0.0

    def show(self, curves: Mapping[str, Curve], last: bool = False) -> None:
        """Draw, unless the picture is younger than a second: drawing takes longer than reading does."""
        if not can_interact() or (time.monotonic() < self._next and not last):
            return
        from IPython.display import Markdown, display

        text = Markdown(f"{plots.picture(draw(curves), alt_text(curves))}\n\n**Figure.** {self._caption}")
        if self._handle is None:
            self._handle = display(text, display_id=True)
        else:
            self._handle.update(text)
        self._next = time.monotonic() + REFRESH


def memory_curves(
    loaders: Mapping[str, DataLoader], caption: str, epochs: int = 3, points: int = 4
) -> dict[str, Curve]:
    """Run loaders one after the other and display how the memory of their workers grows.

    Parameters
    ----------
    loaders : mapping of str to DataLoader
        With ``persistent_workers``, so that one worker's memory can be followed over all epochs.
    caption : str
        As in :func:`course_utils.plots.show`.
    epochs, points : int
        Epochs, and readings per epoch.

    Returns
    -------
    dict of str to Curve
    """
    curves: dict[str, Curve] = {}
    live = _Live(caption)
    for name, loader in loaders.items():

        def look_on(curve: Curve, name: str = name) -> None:
            live.show({**curves, name: curve})

        curves[name] = _measure(loader, epochs, points, look_on)
    if can_interact():
        live.show(curves, last=True)
    else:
        plots.show(draw(curves), caption, alt_text(curves))
    return curves


def worker_panels(
    make: Callable[[str, int], DataLoader], kinds: Iterable[str], workers: Iterable[int], caption: str, epochs: int = 3
) -> dict[int, dict[str, Curve]]:
    """Display growth of private memory for several numbers of workers, a panel each.

    Parameters
    ----------
    make : callable
        ``make(kind, num_workers)`` returns a loader.
    kinds, workers : iterables
        The curves of a panel, and the panels.
    caption : str
        As in :func:`course_utils.plots.show`.
    epochs : int

    Returns
    -------
    dict of int to dict of str to Curve
    """
    kinds, panels = list(kinds), {}
    with warnings.catch_warnings():
        # Four workers on two cores: PyTorch warns that they slow each other down. Here their memory is the question.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        for count in workers:
            panels[count] = {kind: _measure(make(kind, count), epochs, 2) for kind in kinds}
    fig = plots.figure(8.6, 3.5)
    axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (count, curves) in zip(axes, panels.items(), strict=True):
        _lines(ax, curves, "grown", f"{count} workers")
    axes[0].set_ylabel("growth of private memory, MiB", fontsize=9, color=plots.INK)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(kinds), fontsize=9)
    words = " ".join(f"With {n} workers: {alt_text(curves, resident=False)}" for n, curves in panels.items())
    plots.show(fig, caption, words)
    return panels
