"""Five ways to load the same images, and how to compare them.

Every way gives an epoch of CIFAR-mini in batches of 128: shuffled, cropped at random after padding by 4, flipped with
probability 0.5, normalised, as float32 (B, 3, 32, 32) with int64 labels. Same work, same distribution; only
who does it, and for how many images at a time, differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from course_utils.data.cifar_mini import PADDING, CifarMini, fast_loader
from course_utils.data.reading import load_cifar_mini

__all__ = ["BASELINE", "Rate", "compare_ways", "ways"]

BASELINE = "array + PIL"
BATCH = 128

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


class ArrayWithPil(Dataset):
    """What tutorials show: the images as an array in memory, a transform per image that goes through PIL."""

    def __init__(self) -> None:
        data = load_cifar_mini("train")
        self.images, self.labels = np.array(data.images), data.labels
        self.transform = v1.Compose(
            [
                v1.ToPILImage(),
                v1.RandomCrop(32, padding=PADDING),
                v1.RandomHorizontalFlip(),
                v1.ToTensor(),
                v1.Normalize(data.meta["mean"], data.meta["std"]),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), int(self.labels[index])


def _tensor_transform() -> v2.Compose:
    meta = load_cifar_mini("train").meta
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomCrop(32, padding=PADDING),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(meta["mean"], meta["std"]),
        ]
    )


class _OneTensor:
    """All images as one uint8 tensor: no Dataset and no DataLoader, the augmentation once a batch."""

    def __init__(self) -> None:
        self._source = CifarMini()
        data = self._source.data
        self._images, self._labels = torch.from_numpy(np.array(data.images)), torch.from_numpy(data.labels)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for chosen in torch.randperm(len(self._images)).split(BATCH):
            planes = self._images[chosen].permute(0, 3, 1, 2)
            padded = torch.nn.functional.pad(planes, (PADDING,) * 4)
            windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)  # a view of every window (B, 3, 9, 9, 32, 32)
            first = torch.randint(2 * PADDING + 1, (2, len(chosen)))
            batch = windows[torch.arange(len(chosen)), :, first[0], first[1]]
            flipped = torch.rand(len(chosen), 1, 1, 1) < 0.5
            batch = torch.where(flipped, batch.flip(3), batch)
            yield self._source.normalized(batch), self._labels[chosen]


class _ItemByItem(Dataset):
    """A CifarMini that hides its ``__getitems__``: what reading by batches saves, without any other difference."""

    def __init__(self, inner: CifarMini) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._inner[index]


class _Normalized:
    """Batches of uint8 images, normalised where they are used."""

    def __init__(self, loader: DataLoader, dataset: CifarMini) -> None:
        self._loader, self._dataset = loader, dataset

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return ((self._dataset.normalized(images), labels) for images, labels in self._loader)


def ways() -> dict[str, Callable[[], Batches]]:
    """Name -> a function that makes the loader; going through what it returns is one epoch."""
    data = CifarMini(augment=True)
    tensors = CifarMini(transform=_tensor_transform())
    return {
        BASELINE: lambda: DataLoader(ArrayWithPil(), BATCH, shuffle=True),
        "memmap + tensor transforms": lambda: DataLoader(tensors, BATCH, shuffle=True),
        "memmap, image by image": lambda: _Normalized(DataLoader(_ItemByItem(data), BATCH, shuffle=True), data),
        "memmap, batch by batch": lambda: _Normalized(fast_loader(data, BATCH, shuffle=True), data),
        "one tensor, batch by batch": _OneTensor,
    }


@dataclass(frozen=True)
class Rate:
    """What one way reached.

    Attributes
    ----------
    images_per_second : float
        By the clock on the wall, the median of the rounds.
    ratio : float
        To the baseline: the median over the rounds, each compared with the baseline of its own round.
    cpu_ratio : float
        The same in processor time, which a busy machine disturbs less.
    mean, std : float
        Of all values of an epoch: equal work shows in equal figures.
    """

    images_per_second: float
    ratio: float
    cpu_ratio: float
    mean: float
    std: float


def compare_ways(rounds: int = 5, chosen: Iterable[str] | None = None) -> dict[str, Rate]:
    """Measure the ways in turn, ``rounds`` times, each in this process alone and with one thread.

    Takes about half a second a round on a quiet machine. Taking turns makes all ways meet the same disturbances.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        names = [BASELINE, *(n for n in (chosen or ways()) if n != BASELINE)]
        loaders = {name: ways()[name]() for name in names}
        moments = {name: _moments(loader) for name, loader in loaders.items()}  # a first epoch, to warm up
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        images = sum(len(y) for _, y in loaders[BASELINE])
        for _ in range(rounds):
            for name, loader in loaders.items():
                spent[name].append(_epoch(loader))
    finally:
        torch.set_num_threads(threads)
    return {
        name: Rate(
            images / median(wall for wall, _ in spent[name]),
            *(median(b[k] / t[k] for b, t in zip(spent[BASELINE], spent[name], strict=True)) for k in (0, 1)),
            *moments[name],
        )
        for name in names
    }


def _epoch(loader: Batches) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    return time.perf_counter() - wall, time.process_time() - cpu


def _moments(loader: Batches) -> tuple[float, float]:
    values = torch.cat([x.flatten() for x, _ in loader])
    return float(values.mean()), float(values.std())
