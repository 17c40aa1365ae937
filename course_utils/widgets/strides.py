"""The stride explorer: a small tensor above its memory, and the walk from an index to a place in memory.

The tensors are cut from ``torch.arange(n)``, so the number in a cell is its place in memory. Shape, strides, offset
and contiguity are read from the real tensor, never computed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_utils import plots
from course_utils.widgets import LABELS, can_interact, choices, display_widget

__all__ = ["alt_text", "draw", "stride_explorer", "stride_picture", "walk"]

MAX_CELLS = 24
SHAPES = ((3, 4), (4, 3), (2, 6), (2, 3, 2), (12,))


def _cut(shape: Sequence[int], order: Sequence[int], start: int, step: int) -> tuple[torch.Tensor, str]:
    """The tensor, and the expression that makes it."""
    count = 1
    for size in shape:
        count *= size
    tensor, code = torch.arange(count), f"torch.arange({count})"
    if len(shape) > 1:
        tensor, code = tensor.view(*shape), f"{code}.view({', '.join(map(str, shape))})"
    if list(order) != sorted(order):
        tensor, code = tensor.permute(*order), f"{code}.permute({', '.join(map(str, order))})"
    if start or step > 1:
        tensor, code = tensor[start::step], f"{code}[{start or ''}::{step if step > 1 else ''}]"
    return tensor, code.replace("::]", ":]")


def _place(tensor: torch.Tensor, index: Sequence[int]) -> int:
    return tensor.storage_offset() + sum(i * s for i, s in zip(index, tensor.stride(), strict=True))


def _indices(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    """All indices in reading order: the last axis runs first."""
    return list(itertools.product(*map(range, tensor.shape)))


def walk(tensor: torch.Tensor, element: int) -> str:
    """The way from an index to a place: ``index [2, 1]: offset 0 + 2*1 + 1*4 = place 6``.

    Parameters
    ----------
    tensor : Tensor
    element : int
        Which element, counted in reading order (last axis first).
    """
    index = _indices(tensor)[element]
    steps = "".join(f" + {i}*{s}" for i, s in zip(index, tensor.stride(), strict=True))
    return f"index {list(index)}: offset {tensor.storage_offset()}{steps} = place {_place(tensor, index)}"


def _can_be_flat(tensor: torch.Tensor) -> bool:
    try:
        tensor.view(-1)
    except RuntimeError:
        return False
    return True


def _facts(tensor: torch.Tensor, element: int) -> list[str]:
    return [
        f"shape    {tuple(tensor.shape)}",
        f"stride   {tensor.stride()}",
        f"offset   {tensor.storage_offset()}",
        f"contiguous?         {'yes' if tensor.is_contiguous() else 'no'}",
        f"view(-1) possible?  {'yes' if _can_be_flat(tensor) else 'no'}",
        "",
        walk(tensor, element),
    ]


def alt_text(tensor: torch.Tensor, code: str, element: int = 0) -> str:
    """What the picture shows, in words."""
    places = [_place(tensor, i) for i in _indices(tensor)]
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    return (
        f"{code} has shape {tuple(tensor.shape)}, stride {tensor.stride()} and offset {tensor.storage_offset()}; "
        f"it is {'' if tensor.is_contiguous() else 'not '}contiguous. Below it lie the {held} cells of its memory in a "
        f"row. Read row by row, the tensor visits the places {', '.join(map(str, places))}. "
        f"Marked: {walk(tensor, element)}."
    )


def draw(tensor: torch.Tensor, code: str, element: int = 0) -> Figure:
    """The picture: the tensor as its reader sees it, its memory, and the walk through it in reading order.

    Parameters
    ----------
    tensor : Tensor
        One to three axes, not empty, on a storage of at most 24 elements that hold their own place.
    code : str
        The expression that makes it; the title.
    element : int
        The marked element, counted in reading order.

    Raises
    ------
    ValueError
        If the tensor is too large to draw, or ``element`` is none of its elements.
    """
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if not 1 <= tensor.dim() <= 3 or tensor.numel() == 0 or held > MAX_CELLS:
        raise ValueError(f"only 1 to 3 axes on at most {MAX_CELLS} cells can be drawn, not {tuple(tensor.shape)}")
    if not 0 <= element < tensor.numel():
        raise ValueError(f"element {element} is not one of the {tensor.numel()} elements")
    fig = plots.figure(8.6, 4.7)
    fig.suptitle(code, family="monospace", fontsize=11, color=plots.INK)
    upper, lower = fig.subfigures(2, 1, height_ratios=[1.25, 1])
    grid, text = upper.subplots(1, 2, width_ratios=[1, 1.15])
    _draw_grid(grid, tensor, element)
    text.set_axis_off()
    lines = "\n".join(_facts(tensor, element))
    text.text(0, 0.92, lines, family="monospace", fontsize=9.5, va="top", color=plots.INK, linespacing=1.5)
    _draw_memory(lower.subplots(), tensor, held, element)
    return fig


def _cell(axes: Axes, x: float, y: float, label: str, used: bool, marked: bool) -> None:
    axes.add_patch(
        Rectangle(
            (x, y),
            1,
            1,
            facecolor=(plots.FILL if marked else "#eef4fa") if used else "white",
            edgecolor=plots.INK if used else "#6e6e6e",
            linewidth=3 if marked else 1,
            linestyle="-" if used else ":",
            zorder=3 if marked else 2,
        )
    )
    weight = "bold" if marked else "normal"
    colour = plots.INK if used else "#6e6e6e"
    axes.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=10, weight=weight, color=colour, zorder=4)


def _draw_grid(axes: Axes, tensor: torch.Tensor, element: int) -> None:
    """Rows and columns; a third axis becomes blocks side by side."""
    blocks = tensor.reshape(-1, *tensor.shape[-2:]) if tensor.dim() > 1 else tensor.view(1, 1, -1)
    many, rows, columns = blocks.shape
    for number, (b, r, c) in enumerate(itertools.product(range(many), range(rows), range(columns))):
        _cell(axes, b * (columns + 1) + c, rows - 1 - r, str(int(blocks[b, r, c])), True, number == element)
    if tensor.dim() == 3:
        for b in range(many):
            axes.text(b * (columns + 1) + columns / 2, rows + 0.15, f"[{b}]", ha="center", fontsize=9, color=plots.INK)
    _frame(axes, many * (columns + 1) - 1, 0, rows + 0.6)
    axes.set_title("as you index it", fontsize=9, color=plots.INK)


def _draw_memory(axes: Axes, tensor: torch.Tensor, held: int, element: int) -> None:
    """The storage in a row; arrows follow the reading order, forward above and backward below."""
    places = [_place(tensor, i) for i in _indices(tensor)]
    for place in range(held):
        _cell(axes, place, 0, str(place), place in places, place == places[element])
    for here, there in itertools.pairwise(places):
        above = there >= here
        y = 1.06 if above else -0.06
        hop = FancyArrowPatch(
            (here + 0.5, y),
            (there + 0.5, y),
            connectionstyle=f"arc3,rad={-0.35 if above else -0.25}",
            arrowstyle="-|>",
            mutation_scale=8,
            color=plots.INK,
            linewidth=0.9,
        )
        axes.add_patch(hop)
    _frame(axes, held, -2.1, 2.4)
    axes.set_title("as it lies in memory; the arrows read the tensor row by row", fontsize=9, color=plots.INK)


def _frame(axes: Axes, right: float, bottom: float, top: float) -> None:
    axes.set_xlim(-0.2, right + 0.2)
    axes.set_ylim(bottom - 0.1, top)
    axes.set_aspect("equal")
    axes.set_axis_off()


def stride_picture(tensor: torch.Tensor, code: str, caption: str, element: int = 0) -> None:
    """Display the picture of one tensor with its caption; the parameters are those of :func:`draw`."""
    plots.show(draw(tensor, code, element), caption, alt_text(tensor, code, element))


def stride_explorer(
    shape: Sequence[int] = (3, 4), order: Sequence[int] = (1, 0), start: int = 0, step: int = 1, element: int = 5
) -> None:
    """Display the stride explorer: choose a shape, an order of the axes and a slice, and walk through the elements.

    Where widgets cannot run, one picture of the given tensor appears.

    Parameters
    ----------
    shape : sequence of int
        One of ``SHAPES``.
    order : sequence of int
        The order of the axes, as in ``permute``.
    start, step : int
        The slice ``[start::step]`` of the first axis, taken last.
    element : int
        The marked element, counted in reading order.

    Raises
    ------
    ValueError
        If the shape cannot be chosen, or the start or element lies outside.
    """
    if tuple(shape) not in SHAPES or sorted(order) != list(range(len(shape))):
        raise ValueError(f"choose a shape of {SHAPES} and an order of its axes, not {tuple(shape)} and {tuple(order)}")
    tensor, code = _cut(shape, order, start, step)
    caption = (
        "The number in a cell is its place in memory. A thick frame marks one element. "
        "Dotted cells belong to the storage but not to the tensor."
    )
    fig, alt = draw(tensor, code, element), alt_text(tensor, code, element)
    if not can_interact():
        plots.show(fig, caption, alt)
        return
    static = f"{plots.picture(fig, alt)}\n\n**Figure.** {caption}"
    display_widget(_explorer(tuple(shape), tuple(order), start, step, element, caption), static, f"[Figure: {alt}]")


def _explorer(
    shape: tuple[int, ...], order: tuple[int, ...], start: int, step: int, element: int, caption: str
) -> object:
    import ipywidgets as w

    shapes = choices([(" x ".join(map(str, s)), s) for s in SHAPES], shape, "shape")
    orders = choices(_orders(shape), order, "order of the axes")
    starts = w.IntSlider(start, 0, 3, description="slice: start", style=LABELS, continuous_update=False)
    steps = w.IntSlider(step, 1, 3, description="slice: step", style=LABELS, continuous_update=False)
    elements = w.IntSlider(element, 0, 11, description="marked element", style=LABELS, continuous_update=False)
    picture = w.HTML()
    busy = False

    def redraw(change: object = None) -> None:
        nonlocal busy
        if busy:  # setting the limits of one control moves another, which would draw again
            return
        busy = True
        try:
            if len(orders.value) != len(shapes.value):
                orders.options = _orders(shapes.value)
            starts.max = shapes.value[orders.value[0]] - 1
            tensor, code = _cut(shapes.value, orders.value, starts.value, steps.value)
            elements.max = tensor.numel() - 1
            picture.value = plots.html_picture(
                draw(tensor, code, elements.value), alt_text(tensor, code, elements.value)
            )
        finally:
            busy = False

    for control in (shapes, orders, starts, steps, elements):
        control.observe(redraw, names="value")
    redraw()
    return w.VBox([shapes, orders, starts, steps, elements, picture, w.HTML(f"<p>{caption}</p>")])


def _orders(shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    every = itertools.permutations(range(len(shape)))
    return [(("as it is" if list(o) == sorted(o) else f"permute{o}"), o) for o in every]
