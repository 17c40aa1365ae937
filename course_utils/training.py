"""A trainer that can be read in one go: mixed precision, clipping, live curves, checkpoints, exact resume.

Each concern is one switch that degrades by itself: no GPU means bfloat16, no front end means a line per epoch, no path
means no checkpoint, no ``tensorboard`` package means no log.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from course_utils.checkpoints import (
    ShuffledBatches,
    random_state,
    read_checkpoint,
    restore_random_state,
    write_checkpoint,
)

__all__ = ["History", "LiveCurves", "Trainer", "mixed_precision", "tensorboard_log"]

Metrics = dict[str, float]
History = list[Metrics]


def mixed_precision(device: torch.device | str) -> tuple[torch.dtype, torch.amp.GradScaler]:
    """The dtype for autocast and the scaler for a device.

    CUDA: float16, whose smallest gradients would be lost without scaling. CPU: bfloat16, which has the range of float32 and
    needs no scaling; its scaler works all the same, so that the whole procedure can be seen on any machine.
    """
    kind = torch.device(device).type
    return (torch.float16 if kind == "cuda" else torch.bfloat16), torch.amp.GradScaler(kind)


@dataclass
class Trainer:
    """Trains a classifier.

    Parameters
    ----------
    model : torch.nn.Module
        On its device already. (B, 3, H, W) -> (B, classes).
    optimizer : torch.optim.Optimizer
    loader : DataLoader
        With a :class:`ShuffledBatches` as its ``batch_sampler``; gives (images, labels).
    evaluate : callable, optional
        ``evaluate(model) -> {"validation loss": ..., ...}``, called after each epoch.
    scheduler : optional
        Stepped after each batch that was not skipped.
    amp : bool
        Mixed precision; off is plain float32.
    max_norm : float
        Gradients are clipped to this norm.
    path : path, optional
        Of the checkpoint, written after each epoch.
    report : callable, optional
        Called with the history after each epoch, and with ``batch=`` and ``batches=`` in between: a :class:`LiveCurves`.
    log : optional
        A TensorBoard writer, see :func:`tensorboard_log`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader
    evaluate: Callable[[nn.Module], Metrics] | None = None
    scheduler: Any = None
    amp: bool = True
    max_norm: float = 1.0
    path: str | os.PathLike[str] | None = None
    report: Callable[..., None] | None = None
    log: Any = None
    history: History = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.loader.batch_sampler, ShuffledBatches):
            raise TypeError("the loader needs batch_sampler=ShuffledBatches(...), which knows where it is")
        self.batches: ShuffledBatches = self.loader.batch_sampler
        self.device = next(self.model.parameters()).device
        self.dtype, self.scaler = mixed_precision(self.device)
        if not self.amp:
            self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)
        self._sums = {"loss": 0.0, "right": 0, "images": 0}
        self._random: dict[str, Any] | None = None

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One batch: forward, scaled backward, unscale, clip, step, update."""
        images, labels = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, self.dtype, enabled=self.amp):
            logits = self.model(images)
            loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)  # clipping means the norm of the true gradients
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)  # skipped where a gradient is inf or NaN
        self.scaler.update()
        if self.scheduler is not None and self.scaler.get_scale() >= before:
            self.scheduler.step()
        self._sums["loss"] += loss.item() * len(labels)  # weighted: the last batch may be smaller
        self._sums["right"] += int((logits.argmax(1) == labels).sum())
        self._sums["images"] += len(labels)

    def epoch(self) -> Metrics:
        """What is left of the current epoch; its metrics, evaluation included."""
        number = self.batches.epoch
        # Making the iterator draws a number for its workers. A run that was broken between two epochs has not drawn it yet.
        if self._random is not None and self.batches.position == 0:
            restore_random_state(self._random)
        iterator = iter(self.loader)
        if self._random is not None and self.batches.position > 0:
            restore_random_state(self._random)
        self._random = None
        self.model.train()
        for images, labels in iterator:
            self.step(images, labels)
            self.batches.advance()
            if self.report is not None and self.batches.position:
                self.report(self.history, batch=self.batches.position, batches=len(self.batches))
        metrics = {
            "loss": self._sums["loss"] / self._sums["images"],
            "accuracy": self._sums["right"] / self._sums["images"],
        }
        self._sums = dict.fromkeys(self._sums, 0)
        metrics |= self.evaluate(self.model) if self.evaluate is not None else {}
        for name, value in metrics.items() if self.log is not None else ():
            self.log.add_scalar(name, value, number)
        return metrics

    def fit(self, epochs: int) -> History:
        """Train until ``epochs`` are done, counted from the very beginning; a checkpoint after each. The history."""
        while self.batches.epoch < epochs:
            self.history.append(self.epoch())
            if self.path is not None:
                self.save()
            if self.report is not None:
                self.report(self.history)
        return self.history

    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "batches": self.batches}
        if self.scheduler is not None:
            parts["scheduler"] = self.scheduler
        if self.scaler.is_enabled():  # a scaler that is off has an empty state, and refuses to load one
            parts["scaler"] = self.scaler
        return parts

    def save(self) -> None:
        """Write the checkpoint; may be called after any batch."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        # Between a resume and the next batch the generators are not yet where the run left them.
        random_now = self._random if self._random is not None else random_state()
        write_checkpoint(self.path, {**state, "random": random_now, "history": self.history, "sums": self._sums})

    def resume(self) -> bool:
        """Go on from the checkpoint, bit by bit as if the run had not been broken; False where there is none.

        With ``num_workers=0``. Workers draw their random numbers from a seed of the iterator's, so that with random
        transforms in workers an epoch broken in its middle goes on with others.
        """
        if self.path is None or not Path(self.path).exists():
            return False
        state = read_checkpoint(self.path)
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.history[:], self._sums, self._random = state["history"], state["sums"], state["random"]
        return True


class LiveCurves:
    """Curves and a progress bar that renew themselves: in a notebook one picture, elsewhere one line per epoch.

    Nothing goes to stderr, and a run without a front end ends with the same picture.

    Parameters
    ----------
    epochs : int
    caption, alt : str
        As for every figure of the course.
    """

    def __init__(self, epochs: int, caption: str, alt: str) -> None:
        self._epochs, self._caption, self._alt = epochs, caption, alt
        self._id = f"curves-{uuid.uuid4().hex}"
        self._shown, self._tenth, self._picture = False, -1, ""

    def __call__(self, history: History, batch: int = 0, batches: int = 1) -> None:
        notebook = _in_notebook()
        if batch and (not notebook or 10 * batch // batches == self._tenth):
            return  # ten renewals an epoch are enough
        self._tenth = 10 * batch // batches
        if not batch:
            self._picture = ""
        if not notebook:
            print(self._line(history))
            return
        from IPython.display import publish_display_data

        done = (len(history) + batch / batches) / self._epochs
        bar = "█" * int(30 * done) + "░" * (30 - int(30 * done))
        if history and not self._picture:
            self._picture = self._draw(history)
        text = f"`{bar}` epoch {min(len(history) + 1, self._epochs)} of {self._epochs}"
        markdown = "\n\n".join([*([] if done >= 1 else [text]), self._picture, f"**Figure.** {self._caption}"])
        publish_display_data(
            {"text/markdown": markdown, "text/plain": self._line(history) if history else text},
            transient={"display_id": self._id},
            update=self._shown,
        )
        self._shown = True

    def _line(self, history: History) -> str:
        values = ", ".join(f"{name} {value:.3f}" for name, value in history[-1].items())
        return f"epoch {len(history)} of {self._epochs}: {values}"

    def _draw(self, history: History) -> str:
        from course_utils.plots import figure, picture

        fig = figure(8.0, 3.0)
        names = list(history[-1])
        kinds = ["loss", "accuracy"]
        for axes, kind in zip(fig.subplots(1, 2), kinds, strict=True):
            styles = zip((n for n in names if kind in n), ("-o", "--s", ":^", "-.d"), strict=False)
            for name, style in styles:
                axes.plot(range(1, len(history) + 1), [h[name] for h in history], style, label=name, markersize=4)
            axes.set_xlabel("epoch")
            axes.set_ylabel(kind)
            axes.set_xlim(0.5, self._epochs + 0.5)
            axes.legend(fontsize=8)
        return picture(fig, f"{self._alt} {self._line(history)}.")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def tensorboard_log(folder: str | os.PathLike[str]) -> Any:
    """A TensorBoard writer for ``folder``, or None (with a line that says so) where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no TensorBoard here: `pip install tensorboard`, and this run is logged as well")
        return None
    return SummaryWriter(str(folder))
