"""The queue between host and device: a small program in steps, and the order of events of any program.

Everything is read from the simulated GPU (``course_utils.simgpu``), never computed here. It has no clock: of a piece of
work that was handed to the device one knows only that it is done when the host has waited.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils import plots
from course_utils.simgpu import Counters, Event, counters, events, simulated_gpu
from course_utils.simgpu.world import current
from course_utils.widgets import LABELS, can_interact, choices, display_widget

__all__ = [
    "PROGRAMS",
    "Snapshot",
    "alt_text",
    "draw",
    "draw_order",
    "order_picture",
    "queue_explorer",
    "recording",
    "run",
]

PROGRAMS = {
    "there and back": (
        "x = torch.tensor([1., 2.])",
        "d = x.to(device)",
        "y = d * 10",
        "z = y + d",
        "s = z.sum().item()",
    ),
    "two places": (
        "w = torch.tensor([1., 2.], device=device)",
        "x = torch.tensor([3., 4.])",
        "y = w * x",
    ),
    "read too early": (
        "d = torch.tensor([1., 2.], device=device)",
        'h = d.to("cpu", non_blocking=True)',
        "early = h.sum()",
        "torch.accelerator.synchronize()",
        "late = h.sum()",
    ),
    "written too early": (
        "buffer = torch.tensor([1., 1.]).pin_memory()",
        "d = buffer.to(device, non_blocking=True)",
        "buffer.fill_(9)",
        "y = d * 1",
    ),
}
"""Programs of the explorer: each line may use torch and ``device``."""

MOST_WORK = 30  # rows of an order picture

_COPIES = {"h2d": "copy to the device", "d2h": "copy to the host", "d2d": "copy between devices"}


# ------------------------------------------------------------------------------------------------ a program in steps
@dataclass(frozen=True)
class Snapshot:
    """The state after one line of a program.

    Attributes
    ----------
    host, device : tuple of str
        The tensors on either side: name, value, and what is special about them.
    queue : tuple of str
        Work that was handed to the device and not waited for, the oldest first.
    counted : Counters
        Since the beginning of the program.
    error : str
        What the line raised; else empty.
    mistake : str
        The use of memory that still belonged to a copy, in this line; else empty.
    """

    host: tuple[str, ...]
    device: tuple[str, ...]
    queue: tuple[str, ...]
    counted: Counters
    error: str
    mistake: str


def _value(tensor: torch.Tensor) -> str:
    """Its numbers, read behind the back of the simulation: a look must not count as waiting."""
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        numbers = torch._C.TensorBase.tolist(tensor.detach())
    return str(numbers).replace(".0", "")


def _chips(names: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    stream = current().stream
    host, device = [], []
    for name, value in names.items():
        if isinstance(value, float):
            host.append(f"{name} = {value:g}, a number")
        if not isinstance(value, torch.Tensor):
            continue
        if value.device.type == "cpu":
            host.append(f"{name} = {_value(value)}" + (", pinned" if value.is_pinned() else ""))
        else:
            arriving = stream.arriving(value.untyped_storage())
            device.append(f"{name}: not there yet" if arriving else f"{name} = {_value(value)}")
    return tuple(host), tuple(device)


@functools.lru_cache(maxsize=32)
def run(lines: tuple[str, ...]) -> tuple[Snapshot, ...]:
    """Run a program line by line on a simulated device of its own, and keep what there was to see after each line.

    It ends with the first line that raises an error.
    """
    snapshots = []
    with simulated_gpu() as device:
        names: dict[str, Any] = {"torch": torch, "device": device}
        for line in lines:
            before, error = len(events()), ""
            try:
                exec(line, names)
            except RuntimeError as raised:
                error = str(raised).splitlines()[0]
            new = events()[before:]
            mistakes = [e.detail for e in new if e.what == "hazard"]
            host, on_device = _chips(names)
            queue = tuple(name for name, _, _ in _waited_for(events())[1])
            snapshots.append(Snapshot(host, on_device, queue, counters(), error, "".join(mistakes[:1])))
            if error:
                break
    return tuple(snapshots)


def alt_text(lines: Sequence[str], step: int) -> str:
    """What the picture of one step shows, in words."""
    seen = run(tuple(lines))[step]
    parts = [
        f"After the line {lines[step]}:",
        f"on the host {'; '.join(seen.host) or 'no tensor'};",
        f"handed over and not waited for: {', '.join(seen.queue) or 'nothing'};",
        f"on the device {'; '.join(seen.device) or 'no tensor'}.",
        f"{_figures(seen.counted)}.",
    ]
    if seen.error:
        parts.append(f"The line raised: {seen.error}")
    if seen.mistake:
        parts.append(f"Mistake: {seen.mistake}.")
    return " ".join(parts)


def _figures(c: Counters) -> str:
    return f"copies {c.transfers}, bytes {c.h2d_bytes + c.d2h_bytes}, kernels {c.kernels}, waits {c.synchronisations}"


def draw(lines: Sequence[str], step: int) -> Figure:
    """The program with the line that has just run, and below it host, queue and device.

    Parameters
    ----------
    lines : sequence of str
        Lines of Python that may use ``torch`` and ``device``.
    step : int
        The line that has just run, counted from 0.

    Raises
    ------
    ValueError
        If the program did not come so far.
    """
    snapshots = run(tuple(lines))
    if not 0 <= step < len(snapshots):
        raise ValueError(f"step {step} is none of the {len(snapshots)} steps that ran")
    seen = snapshots[step]
    fig = plots.figure(8.6, 4.6)
    upper, lower = fig.subfigures(2, 1, height_ratios=[1, 1.25])
    text = upper.subplots()
    text.set_axis_off()
    text.set_xlim(0, 1)
    for number, line in enumerate(lines):
        here = number == step
        text.text(
            0.02,
            0.97 - 0.14 * number,
            ("\u25b6 " if here else "   ") + line,
            family="monospace",
            fontsize=9.5,
            weight="bold" if here else "normal",
            color=plots.INK if number <= step else "#6e6e6e",
            va="top",
            transform=text.transAxes,
        )
    note = f"error: {seen.error}" if seen.error else f"mistake: {seen.mistake}" if seen.mistake else ""
    body = "\n".join([_figures(seen.counted), *textwrap.wrap(note, 105)])
    text.text(0.02, 0.0, body, fontsize=8.8, color=plots.INK, va="bottom", transform=text.transAxes)
    columns = (
        ("host memory", seen.host),
        ("queue: handed over, not waited for", seen.queue),
        ("device memory", seen.device),
    )
    for axes, (title, chips) in zip(lower.subplots(1, 3), columns, strict=True):
        _draw_column(axes, title, chips, dotted=title.startswith("queue"))
    return fig


def _draw_column(axes: Axes, title: str, chips: Sequence[str], dotted: bool) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 5.2)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(plots.INK)
        spine.set_linestyle(":" if dotted else "-")
    axes.set_title(title, fontsize=9, color=plots.INK)
    for number, chip in enumerate(chips[:5]):
        y = 4.25 - number
        box = Rectangle((0.05, y), 0.9, 0.75, facecolor="#eef4fa", edgecolor=plots.INK, hatch="//" if dotted else None)
        axes.add_patch(box)
        box = {"facecolor": "#eef4fa", "edgecolor": "none", "pad": 1.5}
        axes.text(0.5, y + 0.36, chip, ha="center", va="center", fontsize=8.4, color=plots.INK, bbox=box)


def queue_explorer(program: str = "read too early", step: int = 2) -> None:
    """Display the queue explorer: choose a program and walk through its lines.

    Where widgets cannot run, one picture of the given step appears.

    Parameters
    ----------
    program : str
        A name of ``PROGRAMS``.
    step : int
        The line that has just run, counted from 0.

    Raises
    ------
    ValueError
        If there is no such program or step.
    """
    if program not in PROGRAMS:
        raise ValueError(f"no program {program!r}: choose one of {', '.join(PROGRAMS)}")
    lines = PROGRAMS[program]
    caption = (
        "A program after the marked line: what lies where, and what the device still has to do as far as the host "
        "knows. All of it is read from the simulated GPU."
    )
    fig, alt = draw(lines, step), alt_text(lines, step)
    if not can_interact():
        plots.show(fig, caption, alt)
        return
    static = f"{plots.picture(fig, alt)}\n\n**Figure.** {caption}"
    display_widget(_explorer(program, step, caption), static, f"[Figure: {alt}]")


def _explorer(program: str, step: int, caption: str) -> object:
    import ipywidgets as w

    programs = choices(list(PROGRAMS), program, "program")
    steps = w.IntSlider(step + 1, 1, len(run(PROGRAMS[program])), description="line", style=LABELS)
    picture = w.HTML()
    busy = False

    def redraw(change: object = None) -> None:
        nonlocal busy
        if busy:  # setting the limit of the slider moves it, which would draw again
            return
        busy = True
        try:
            lines = PROGRAMS[programs.value]
            steps.max = len(run(lines))
            picture.value = plots.html_picture(draw(lines, steps.value - 1), alt_text(lines, steps.value - 1))
        finally:
            busy = False

    def choose(change: object) -> None:
        nonlocal busy
        busy = True
        steps.value = 1  # another program begins at its first line
        busy = False
        redraw()

    programs.observe(choose, names="value")
    steps.observe(redraw, names="value")
    redraw()
    return w.VBox([programs, steps, picture, w.HTML(f"<p>{caption}</p>")])


# ------------------------------------------------------------------------------------------------ the order of events
Work = tuple[str, int, int]  # name, place in the order at which it was handed over, place of the next wait


def _waited_for(happened: Sequence[Event]) -> tuple[list[Work], list[Work]]:
    """Work that was waited for, and work that was not; places count events."""
    done: list[Work] = []
    open_work: list[Work] = []
    for place, event in enumerate(happened):
        if event.what in ("kernel", "copy", "copy queued"):
            name = event.detail if event.what == "kernel" else _COPIES[event.detail]
            open_work.append((name, place, len(happened)))
        elif event.what == "wait":
            done += [(name, begun, place) for name, begun, _ in open_work]
            open_work = []
    return done, open_work


@contextmanager
def recording() -> Iterator[list[Event]]:
    """Collect the events of a block, in order: the simulation's own list drops the oldest when it gets long.

    Yields
    ------
    list of Event
        Filled when the block is left.
    """
    before, happened = events(), []
    last = before[-1] if before else None
    try:
        yield happened
    finally:
        for event in reversed(events()):
            if event is last:
                break
            happened.insert(0, event)


def draw_order(happened: Sequence[Event]) -> Figure:
    """One row for each piece of work, one step to the right for each event: when may it run, and where does the host wait?

    Parameters
    ----------
    happened : sequence of Event
        As ``simgpu.events()`` gives them; at most 30 pieces of work.

    Raises
    ------
    ValueError
        If there is nothing to draw, or too much.
    """
    happened = [e for e in happened if e.what != "copy done"]  # the moment is the simulation's choice, not a fact
    done, left = _waited_for(happened)
    rows = done + left
    if not 1 <= len(rows) <= MOST_WORK:
        raise ValueError(f"1 to {MOST_WORK} pieces of work can be drawn, not {len(rows)}")
    fig = plots.figure(8.6, 1.5 + 0.3 * len(rows))
    axes = fig.subplots()
    for row, (_, begun, end) in enumerate(rows):
        axes.barh(row, end - begun, left=begun, height=0.62, color="#eef4fa", edgecolor=plots.INK, hatch="//")
        axes.plot(begun, row, marker="o", color=plots.INK, markersize=5, zorder=4)
    for place, event in enumerate(happened):
        if event.what in ("wait", "hazard"):
            axes.axvline(
                place,
                color=plots.INK,
                linewidth=2.4 if event.what == "wait" else 1.4,
                linestyle="-" if event.what == "wait" else ":",
            )
            label = f"host waits: {event.detail}" if event.what == "wait" else "too early!"
            axes.text(place, -0.75, label, rotation=28, fontsize=8, color=plots.INK, ha="left", va="bottom")
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8.5, color=plots.INK)
    axes.set_xticks([])
    axes.set_xlim(-0.5, len(happened) + 0.5)
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.set_xlabel("order of events, from left to right (no clock)", fontsize=9, color=plots.INK)
    axes.spines[["top", "right"]].set_visible(False)
    return fig


def order_picture(happened: Sequence[Event], caption: str) -> None:
    """Display :func:`draw_order` with its caption and a text that lists the events."""
    words = [
        {"kernel": f"kernel {e.detail}", "wait": f"the host waits ({e.detail})", "hazard": "the host is too early"}.get(
            e.what, _COPIES.get(e.detail, e.detail)
        )
        for e in happened
        if e.what != "copy done"
    ]
    alt = "The order of events, from left to right: " + ", ".join(words) + "."
    plots.show(draw_order(happened), caption, alt)
