"""The life of a loss scale: choose where gradients overflow, and see which steps are skipped and what the scale does.

Nothing is computed here: a real ``torch.amp.GradScaler`` walks through the steps, on the CPU, with one parameter whose
gradient is made infinite where an overflow is wanted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from course_utils import plots
from course_utils.widgets import LABELS, can_interact, display_widget

__all__ = ["Step", "loss_scale_picture", "loss_scale_stepper", "scale_life"]

MOST_STEPS = 24
_CAPTION = (
    "The loss scale before each step. A cross marks a step whose gradients overflowed: it is skipped, and the scale is "
    "halved. After `growth_interval` good steps in a row the scale doubles."
)


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes
    ----------
    scale : float
        The loss was multiplied by it.
    skipped : bool
        Whether ``scaler.step`` left the weights alone.
    good_steps : int
        Good steps in a row after this one, as the scaler counts them; 0 right after the scale changed.
    scale_after : float
        The scale after ``scaler.update()``.
    """

    scale: float
    skipped: bool
    good_steps: int
    scale_after: float


def scale_life(
    steps: int, overflows: Collection[int], growth_interval: int = 4, init_scale: float = 2.0**16
) -> list[Step]:
    """What a ``GradScaler`` does over some steps.

    Parameters
    ----------
    steps : int
        At most 24.
    overflows : collection of int
        Steps, from 1, whose gradients overflow.
    growth_interval : int
        Good steps in a row after which the scale doubles; PyTorch's default is 2000.
    init_scale : float

    Raises
    ------
    ValueError
        If there are no steps or too many, or an overflow lies outside of them.
    """
    if not 1 <= steps <= MOST_STEPS or not set(overflows) <= set(range(1, steps + 1)):
        raise ValueError(f"1 to {MOST_STEPS} steps, and overflows among them, not {steps} and {sorted(overflows)}")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    life = []
    for step in range(1, steps + 1):
        before, scale = weight.item(), scaler.get_scale()
        optimizer.zero_grad()
        scaler.scale(weight.sum() * (float("inf") if step in overflows else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped = weight.item() == before
        life.append(Step(scale, skipped, scaler.state_dict()["_growth_tracker"], scaler.get_scale()))
    return life


def _describe(life: list[Step], number: int) -> str:
    """One step in a sentence."""
    step = life[number - 1]
    what = "gradients overflow, the step is skipped" if step.skipped else "the weights are changed"
    then = (
        f"{step.good_steps} good step{'' if step.good_steps == 1 else 's'} in a row, the scale stays"
        if step.scale_after == step.scale
        else f"the scale becomes {step.scale_after:,g}"
    )
    return f"step {number}: scale {step.scale:,g}; {what}; {then}"


def _alt_text(life: list[Step]) -> str:
    scales = ", ".join(f"{step.scale:,g}" for step in life)
    skipped = [str(n) for n, step in enumerate(life, 1) if step.skipped]
    return (
        f"A staircase of the loss scale over {len(life)} steps, on an axis where each line doubles: {scales}. "
        f"Skipped steps: {', '.join(skipped) or 'none'}."
    )


def _draw(life: list[Step], marked: int | None = None) -> Figure:
    fig = plots.figure(8.0, 3.0)
    axes = fig.subplots()
    numbers, scales = range(1, len(life) + 1), [step.scale for step in life]
    axes.step(numbers, scales, where="mid", color=plots.INK, linewidth=1.2)
    axes.plot(numbers, scales, "o", color=plots.FILL, markeredgecolor=plots.INK, markersize=6, label="weights changed")
    skipped = [n for n in numbers if life[n - 1].skipped]
    if skipped:
        axes.plot(
            skipped, [life[n - 1].scale for n in skipped], "X", color=plots.INK, markersize=11, label="step skipped"
        )
    if marked:
        axes.plot([marked], [life[marked - 1].scale], "s", fillstyle="none", color=plots.INK, markersize=18)
    axes.set_yscale("log", base=2)
    powers = sorted({*scales, life[-1].scale_after})
    axes.set_yticks(powers, [f"{p:,g}" for p in powers], fontsize=9)
    axes.set_ylim(powers[0] / 2, powers[-1] * 2)
    axes.set_xticks(list(numbers))
    axes.set_xlabel("step", fontsize=9, color=plots.INK)
    axes.set_ylabel("loss scale", fontsize=9, color=plots.INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper right", frameon=False, ncols=2, bbox_to_anchor=(1, 1.16))
    return fig


def loss_scale_picture(life: list[Step], caption: str = _CAPTION) -> None:
    """Display what :func:`scale_life`, or a training loop that notes the same, has seen.

    Parameters
    ----------
    life : list of Step
        At least one.
    caption : str
    """
    plots.show(_draw(life), caption, _alt_text(life))


def loss_scale_stepper(
    overflows: Collection[int] = (2, 3, 13), growth_interval: int = 4, init_power: int = 16, steps: int = 16
) -> None:
    """Display the stepper: choose the overflows, the growth interval and the first scale, and walk through the steps.

    Where widgets cannot run, one picture of the given choice appears.

    Parameters
    ----------
    overflows : collection of int
        Steps, from 1, whose gradients overflow.
    growth_interval : int
        1 to 8.
    init_power : int
        The first scale is 2 to this power; 4 to 20.
    steps : int
        At most 24.

    Raises
    ------
    ValueError
        As for :func:`scale_life`, or if a choice lies outside the sliders.
    """
    if not (1 <= growth_interval <= 8 and 4 <= init_power <= 20):
        raise ValueError(f"a growth interval of 1 to 8 and a power of 4 to 20, not {growth_interval} and {init_power}")
    life = scale_life(steps, overflows, growth_interval, 2.0**init_power)
    if not can_interact():
        loss_scale_picture(life)
        return
    static = f"{plots.picture(_draw(life), _alt_text(life))}\n\n**Figure.** {_CAPTION}"
    widget = _stepper(tuple(sorted(overflows)), growth_interval, init_power, steps)
    display_widget(widget, static, f"[Figure: {_alt_text(life)}]")


def _stepper(overflows: tuple[int, ...], growth_interval: int, init_power: int, steps: int) -> object:
    import ipywidgets as w

    boxes = [
        w.Checkbox(number in overflows, description=str(number), indent=False, layout={"width": "3.2em"})
        for number in range(1, steps + 1)
    ]
    where = w.HBox([w.Label("overflow at steps"), *boxes], layout={"flex_flow": "row wrap"})
    interval = w.IntSlider(growth_interval, 1, 8, description="growth_interval", style=LABELS, continuous_update=False)
    power = w.IntSlider(init_power, 4, 20, description="first scale, 2 to the", style=LABELS, continuous_update=False)
    step = w.IntSlider(1, 1, steps, description="look at step", style=LABELS, continuous_update=False)
    sentence, picture = w.HTML(), w.HTML()

    def redraw(change: object = None) -> None:
        overflowing = [number for number, box in enumerate(boxes, 1) if box.value]
        life = scale_life(steps, overflowing, interval.value, 2.0**power.value)
        sentence.value = f"<p>{_describe(life, step.value)}</p>"
        picture.value = plots.html_picture(_draw(life, step.value), _alt_text(life))

    for control in (*boxes, interval, power, step):
        control.observe(redraw, names="value")
    redraw()
    return w.VBox([where, interval, power, step, sentence, picture, w.HTML(f"<p>{_CAPTION.replace('`', '')}</p>")])
