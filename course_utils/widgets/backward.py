"""A backward pass, node by node: which node is at work, which gradients arrive at it and which ones leave it.

The pass is a real one. Hooks on the nodes of the graph write down shapes and norms while ``backward`` runs; nothing of
it is computed here. ``.grad`` of every leaf is as before afterwards, and the graph can be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import nn

from course_utils import plots
from course_utils.demos import table
from course_utils.graphs import Node, draw_graph, walk
from course_utils.widgets import can_interact, display_widget

__all__ = ["BackwardPass", "backward_explorer", "record_backward"]

MAX_NODES = 20
_CAPTION = (
    "The backward pass starts at the loss, at the top, and follows the arrows. Numbers give the order. ▶ and a thick "
    "frame mark the node at work, ✓ those that have been, a dotted frame those that wait. Rounded boxes are leaves."
)


@dataclass(frozen=True)
class _Gradient:
    """One gradient on its way to a node."""

    node: int
    text: str


@dataclass
class BackwardPass:
    """What happened during one backward pass.

    Attributes
    ----------
    nodes : list of Node
        The nodes of the graph, as :func:`~course_utils.graphs.draw_graph` draws them; the loss's own is the first.
    order : list of int
        The nodes in the order in which they ran.
    arrived, left : dict
        For every node that ran, its incoming and outgoing gradients as text.
    """

    nodes: list[Node]
    order: list[int] = field(default_factory=list)
    arrived: dict[int, list[str]] = field(default_factory=dict)
    left: dict[int, list[_Gradient]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.order)

    def rows(self) -> list[tuple[int, str, str, str]]:
        """All steps as a table: number, node, what arrives, what leaves."""
        return [
            (k + 1, self.nodes[i].title, "; ".join(self.arrived[i]), "; ".join(g.text for g in self.left[i]))
            for k, i in enumerate(self.order)
        ]

    def describe(self, step: int) -> list[str]:
        """What the node of this step (from 0) gets, needs and sends, in lines of text."""
        number = self.order[step]
        node = self.nodes[number]
        lines = [f"step {step + 1} of {len(self)}: {self.nodes[number].title}", "", "arrives:"]
        lines += [f"  {text}" for text in self.arrived[number]]
        if node.leaf:
            return [*lines, "", "added to .grad of this leaf"]
        saved = [f"  {note.removeprefix('saves ')}" for note in node.notes if note.startswith("saves ")]
        lines += ["", "saved in the forward pass:", *(saved or ["  nothing"]), "", "leaves:"]
        for gradient in self.left[number]:
            lines.append(f"  {gradient.text} to {self.nodes[gradient.node].title}")
        return lines

    def alt_text(self, step: int) -> str:
        """The picture of a step, in words."""
        names = ", ".join(self.nodes[n].title for n in self.order)
        words = "; ".join(line.strip() for line in self.describe(step) if line).replace(":; ", ": ")
        return f"A graph of {len(self.nodes)} nodes. Backward runs through them in this order: {names}. {words}."


def _measure(gradient: torch.Tensor | None) -> str:
    return "no gradient" if gradient is None else f"{tuple(gradient.shape)}, norm {gradient.norm().item():.3g}"


def record_backward(loss: torch.Tensor, model: nn.Module | None = None) -> BackwardPass:
    """Run a backward pass from ``loss`` and write down every node's turn.

    Parameters
    ----------
    loss : Tensor
        A single number with a graph of at most 20 nodes that was not freed. The graph stays usable, and every ``.grad`` as it is.
    model : Module, optional
        Gives the leaves their names.

    Raises
    ------
    TypeError
        If ``loss`` is no tensor or ``model`` no module.
    ValueError
        If ``loss`` is no single number, has no graph, or has a graph that is too large to draw.
    """
    drawing = draw_graph(loss, model, limit=MAX_NODES)
    if loss.numel() != 1 or loss.grad_fn is None:
        raise ValueError("record_backward needs a loss of one number that is the result of a recorded computation")
    if drawing.total > MAX_NODES:
        raise ValueError(
            f"a graph of {drawing.total} nodes, more than {MAX_NODES}: take a smaller model, or draw_graph"
        )
    functions = list(walk(loss.grad_fn))
    number = {function: i for i, function in enumerate(functions)}
    leaves = [function.variable for function in functions if hasattr(function, "variable")]
    recorded = BackwardPass(drawing.nodes)

    def watch(i: int, function: Any) -> Callable[..., None]:
        targets = [None if f is None else number[f] for f, _ in function.next_functions]

        def look(outgoing: tuple[Any, ...], incoming: tuple[Any, ...]) -> None:
            recorded.order.append(i)
            recorded.arrived[i] = [_measure(g) for g in incoming]
            pairs = zip(targets, outgoing, strict=False)  # a leaf has neither
            recorded.left[i] = [_Gradient(t, _measure(g)) for t, g in pairs if t is not None]

        return look

    before = [leaf.grad for leaf in leaves]
    handles = [function.register_hook(watch(i, function)) for i, function in enumerate(functions)]
    try:
        for leaf in leaves:
            leaf.grad = None
        loss.backward(retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
        for leaf, gradient in zip(leaves, before, strict=True):
            leaf.grad = gradient
    return recorded


# ------------------------------------------------------------------------------------------------ the picture
def _places(nodes: list[Node]) -> list[tuple[float, float]]:
    """A column and a row for each node: below all nodes that lead to it, near the middle of them."""
    row = [0] * len(nodes)
    for (
        _
    ) in nodes:  # the longest way from the loss; a graph without cycles settles within as many rounds as it has nodes
        for i, node in enumerate(nodes):
            for j in node.next:
                row[j] = max(row[j], row[i] + 1)
    column = [0.0] * len(nodes)
    for level in range(1, max(row) + 1):
        members = [j for j in range(len(nodes)) if row[j] == level]
        for j in members:
            parents = [
                (i, node.next.index(j) - (len(node.next) - 1) / 2) for i, node in enumerate(nodes) if j in node.next
            ]
            column[j] = sum(column[i] + shift for i, shift in parents) / len(parents)
        members.sort(key=lambda j: column[j])
        middle = sum(column[j] for j in members) / len(members)
        for k, j in enumerate(members[1:], 1):
            column[j] = max(column[j], column[members[k - 1]] + 1)
        moved = sum(column[j] for j in members) / len(members) - middle
        for j in members:
            column[j] -= moved
    return [(c, float(-r)) for c, r in zip(column, row, strict=True)]


def draw(recorded: BackwardPass, step: int) -> Figure:
    """The picture of one step: the graph, and beside it what the node at work gets and sends.

    Raises
    ------
    ValueError
        If there is no such step.
    """
    if not 0 <= step < len(recorded):
        raise ValueError(f"step {step} is none of the steps 0 to {len(recorded) - 1}")
    places = _places(recorded.nodes)
    depth = 1 - min(y for _, y in places)
    fig = plots.figure(8.6, max(3.6, 0.72 * depth + 0.3))
    graph, text = fig.subplots(1, 2, width_ratios=[1.5, 1])
    _draw_graph(graph, recorded, places, step)
    text.set_axis_off()
    lines = "\n".join(recorded.describe(step))
    text.text(0, 0.97, lines, family="monospace", fontsize=9, va="top", color=plots.INK, linespacing=1.5)
    return fig


def _draw_graph(axes: Axes, recorded: BackwardPass, places: list[tuple[float, float]], step: int) -> None:
    current = recorded.order[step]
    turn = {n: k for k, n in enumerate(recorded.order)}
    for i, node in enumerate(recorded.nodes):
        for j in dict.fromkeys(node.next):
            (x, y), (u, v) = places[i], places[j]
            arrow = FancyArrowPatch(
                (x, y - 0.27), (u, v + 0.27), arrowstyle="-|>", mutation_scale=10, color=plots.INK,
                linewidth=2.4 if i == current else 0.9, linestyle="-" if turn.get(i, step + 1) <= step else ":", zorder=1,
            )  # fmt: skip
            axes.add_patch(arrow)
    for i, node in enumerate(recorded.nodes):
        x, y = places[i]
        waits = turn.get(i, step + 1) > step
        sign = "▶ " if i == current else ("" if waits else "✓ ")
        order = f"{turn[i] + 1}  " if i in turn else ""
        box = FancyBboxPatch(
            (x - 0.43, y - 0.2), 0.86, 0.4, boxstyle=f"round,pad=0.04,rounding_size={0.2 if node.leaf else 0.02}",
            facecolor=plots.FILL if i == current else "white", edgecolor=plots.INK,
            linewidth=3 if i == current else 1, linestyle=":" if waits else "-", zorder=2,
        )  # fmt: skip
        axes.add_patch(box)
        size = 8 if len(node.title) <= 22 else 6.5
        weight = "bold" if i == current else "normal"
        axes.text(
            x,
            y,
            f"{sign}{order}{node.title}",
            ha="center",
            va="center",
            fontsize=size,
            weight=weight,
            color=plots.INK,
            zorder=3,
        )
    axes.set_xlim(min(x for x, _ in places) - 0.55, max(x for x, _ in places) + 0.55)
    axes.set_ylim(min(y for _, y in places) - 0.4, 0.4)
    axes.set_axis_off()


def backward_explorer(loss: torch.Tensor, model: nn.Module | None = None, step: int = 0) -> None:
    """Display a backward pass with a slider that walks through its nodes.

    Where widgets cannot run, the picture of one step appears, and below it a table of all steps.

    Parameters
    ----------
    loss, model
        As in :func:`record_backward`.
    step : int
        The step shown first, from 0.
    """
    recorded = record_backward(loss, model)
    fig, alt = draw(recorded, step), recorded.alt_text(step)
    if not can_interact():
        plots.show(fig, _CAPTION, alt)
        table(("", "node", "arrives", "leaves"), recorded.rows(), code=(1,))
        return
    static = f"{plots.picture(fig, alt)}\n\n**Figure.** {_CAPTION}"
    display_widget(_explorer(recorded, step), static, f"[Figure: {alt}]")


def _explorer(recorded: BackwardPass, step: int) -> Any:
    import ipywidgets as w

    steps = w.IntSlider(step + 1, 1, len(recorded), description="step", continuous_update=False)
    back, forth = w.Button(description="◀ back"), w.Button(description="next ▶")
    picture = w.HTML()

    def redraw(change: object = None) -> None:
        at = steps.value - 1
        back.disabled, forth.disabled = at == 0, at == len(recorded) - 1
        picture.value = plots.html_picture(draw(recorded, at), recorded.alt_text(at))

    def move(by: int) -> Callable[[Any], None]:
        return lambda button: setattr(steps, "value", steps.value + by)  # the slider keeps within its limits

    back.on_click(move(-1))
    forth.on_click(move(1))
    steps.observe(redraw, names="value")
    redraw()
    return w.VBox([w.HBox([steps, back, forth]), picture, w.HTML(f"<p>{_CAPTION}</p>")])
