"""The prefetch timeline: which batches are on their way while another one is in use.

Nothing is simulated and no clock is read. A real DataLoader runs; its batch sampler notes when a batch is asked for, each batch
says which worker has made it, and the loop notes when it gets the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from course_utils import plots
from course_utils.widgets import can_interact, choices, display_widget

__all__ = ["Timeline", "alt_text", "draw", "prefetch_picture", "prefetch_timeline", "run_loader"]

WORKERS = (0, 1, 2, 3)
FACTORS = (1, 2, 3, 4)
BATCHES = 14
FILLS = ("#ffffff", "#e3eef8", "#c6dbef", "#eaeaea")
HATCHES = ("", "//", "\\\\", "..")


@dataclass(frozen=True)
class Timeline:
    """What one epoch of a loader did, in steps of the loop. Step 0 is ``iter(loader)``; in step k batch k - 1 is in use.

    Attributes
    ----------
    workers, factor : int
        ``num_workers`` and ``prefetch_factor``.
    asked : list of int
        The step in which batch k was asked for.
    made_by : list of int
        The worker that made batch k; -1 for the main process.
    """

    workers: int
    factor: int
    asked: list[int]
    made_by: list[int]

    def in_flight(self, step: int) -> int:
        """How many batches were asked for and not handed over at the end of a step."""
        return sum(asked <= step for asked in self.asked) - step

    @property
    def ahead(self) -> int:
        """Batches that are asked for before the first one is used."""
        return self.in_flight(0)


class _Makers(Dataset):
    """Each item is the number of the worker that makes it."""

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        return -1 if info is None else info.id


class _Noting(Sampler):
    """Batches of one item; notes at which step each is asked for."""

    def __init__(self, batches: int) -> None:
        self.batches, self.step, self.asked = batches, 0, []

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self.batches):
            self.asked.append(self.step)
            yield [batch]

    def __len__(self) -> int:
        return self.batches


def run_loader(num_workers: int, prefetch_factor: int, batches: int = BATCHES) -> Timeline:
    """Run one epoch of a real loader and count.

    Raises
    ------
    ValueError
        If workers or factor are none of ``WORKERS`` and ``FACTORS``.
    """
    if num_workers not in WORKERS or prefetch_factor not in FACTORS:
        raise ValueError(f"choose num_workers of {WORKERS} and prefetch_factor of {FACTORS}")
    noting = _Noting(batches)
    # More workers than cores, which PyTorch warns of, do no harm here: they have nothing to do.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _Makers(),
            batch_sampler=noting,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
        )
        iterator, makers = iter(loader), []
    for step in range(1, batches + 1):
        noting.step = step
        makers.append(int(next(iterator)))
    del iterator  # ends the workers
    return Timeline(num_workers, prefetch_factor, noting.asked, makers)


def alt_text(line: Timeline) -> str:
    """What the picture shows, in words."""
    per_step = ", ".join(str(line.in_flight(s)) for s in range(len(line.asked) + 1))
    return (
        f"A grid of {len(line.asked)} batches and {len(line.asked) + 1} steps of the loop, for num_workers={line.workers} and "
        f"prefetch_factor={line.factor if line.workers else None}. {line.ahead} batches are asked for before the first is used. On their way "
        f"at the end of each step: {per_step}."
    )


def draw(line: Timeline) -> Figure:
    """The picture: a row per batch, a column per step; hatched while on its way, black while in use."""
    count = len(line.asked)
    fig = plots.figure(8.6, 4.9)
    axes = fig.subplots()
    for batch, asked in enumerate(line.asked):
        row, worker = count - 1 - batch, line.made_by[batch]
        for step in range(asked, batch + 1):
            axes.add_patch(
                Rectangle(
                    (step, row),
                    1,
                    0.9,
                    facecolor=FILLS[worker + 1],
                    hatch=HATCHES[worker + 1],
                    edgecolor="#5a5a5a",
                    lw=0.7,
                )
            )
        axes.add_patch(Rectangle((batch + 1, row), 1, 0.9, facecolor=plots.INK))
        maker = "main" if worker < 0 else f"worker {worker}"
        text = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(batch + 1.5, row + 0.42, f"{batch}", color="white", **text)
        axes.text(batch + 2.15, row + 0.42, maker, color=plots.INK, **{**text, "ha": "left"})
    for step in range(count + 1):
        axes.text(step + 0.5, -0.65, str(line.in_flight(step)), ha="center", va="center", fontsize=9, color=plots.INK)
    axes.text(-0.2, -0.65, "on their way", ha="right", va="center", fontsize=9, color=plots.INK)
    axes.set_xlim(-0.1, count + 3.4)
    axes.set_ylim(-1.1, count)
    axes.set_xticks(
        [0.5, *(s + 0.5 for s in range(1, count + 1))], ["iter()", *map(str, range(1, count + 1))], fontsize=8
    )
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("step of the loop", fontsize=9, color=plots.INK)
    axes.set_yticks([count - 0.55 - b for b in range(count)], [f"batch {b}" for b in range(count)], fontsize=8)
    axes.tick_params(length=0, colors=plots.INK)
    axes.spines[:].set_visible(False)
    factor = line.factor if line.workers else None
    axes.set_title(
        f"num_workers={line.workers}, prefetch_factor={factor}: {line.ahead} batches asked for before the first is used",
        fontsize=10,
        color=plots.INK,
    )
    return fig


_CAPTION = (
    "Black: the batch that the loop is using. Hatched: batches that were asked for and are not used yet; the pattern names "
    "the worker. Counted from a real loader, in steps of its loop."
)


def prefetch_picture(num_workers: int, prefetch_factor: int) -> None:
    """Display one timeline as a picture."""
    line = run_loader(num_workers, prefetch_factor)
    plots.show(draw(line), _CAPTION, alt_text(line))


def prefetch_timeline(num_workers: int = 2, prefetch_factor: int = 2) -> None:
    """Display the timeline with controls for both numbers; one picture where widgets cannot run.

    Raises
    ------
    ValueError
        If the numbers cannot be chosen.
    """
    line = run_loader(num_workers, prefetch_factor)
    if not can_interact():
        plots.show(draw(line), _CAPTION, alt_text(line))
        return
    static = f"{plots.picture(draw(line), alt_text(line))}\n\n**Figure.** {_CAPTION}"
    display_widget(_controls(line), static, f"[Figure: {alt_text(line)}]")


def _controls(line: Timeline) -> Any:
    import ipywidgets as w

    workers = choices(WORKERS, line.workers, "num_workers")
    factors = choices(FACTORS, line.factor, "prefetch_factor")
    picture = w.HTML(_html(line))

    def run(change: object) -> None:
        picture.value = _html(run_loader(workers.value, factors.value))

    for control in (workers, factors):
        control.observe(run, names="value")
    return w.VBox([workers, factors, picture, w.HTML(f"<p>{_CAPTION}</p>")])


def _html(line: Timeline) -> str:
    return plots.html_picture(draw(line), alt_text(line))
