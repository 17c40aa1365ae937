"""CIFAR-mini as a Dataset that is easy on memory and quick in batches.

What it does, and why:

* It opens its files when the first image is read, in each process by itself, and its pickle holds a path: a spawned worker
  is sent some hundred bytes, not 3 MB.
* Every image that it hands out is a copy. A tensor on a map that may only be read ends the process at the first write.
* A loader that is told so by ``__getitems__`` asks once a batch. Crop and flip then are one indexing step for all images
  instead of several calls for each; the distribution is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from course_utils.data.reading import CifarMiniArrays, load_cifar_mini

__all__ = ["CifarMini", "as_is", "fast_loader", "shift_and_flip"]

PART = 16  # images that are worked on at once
PADDING = 4  # black pixels on each side before the random crop, as usual for CIFAR


def shift_and_flip(images: np.ndarray, shifts: np.ndarray, flips: np.ndarray, padding: int = PADDING) -> np.ndarray:
    """Crop every image at its own place after padding with black, and mirror some of them.

    Parameters
    ----------
    images : (B, H, W, 3) uint8
    shifts : (B, 2) integers from 0 to 2 * padding
        The first row and the first column of each window in the padded image.
    flips : (B,) bool
        Which windows are mirrored left and right.

    Returns
    -------
    (B, 3, H, W) uint8, contiguous
        As ``RandomCrop(padding=4)`` and ``RandomHorizontalFlip`` give it image by image.
    """
    count, height, width, channels = images.shape
    padded = np.zeros((count, channels, height + 2 * padding, width + 2 * padding), np.uint8)
    padded[:, :, padding : padding + height, padding : padding + width] = images.transpose(0, 3, 1, 2)
    # All windows of all images, as a view: no byte is copied before one window of each is chosen. The copy then moves
    # whole rows: 0.35 ms for 128 images; with an index for every single pixel it took 2.1 ms.
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    batch = np.ascontiguousarray(windows[np.arange(count), :, shifts[:, 0], shifts[:, 1]])
    batch[flips] = batch[flips][..., ::-1]
    return batch


class CifarMini(Dataset):
    """One split of CIFAR-mini.

    Parameters
    ----------
    split : "train" or "test"
    root : path, optional
        The folder that holds ``cifar_mini``; by default the course's data.
    augment : bool
        Random crop after padding by 4, and random flip, from torch's global generator. A loader seeds it differently in
        every worker and epoch.
    transform : callable, optional
        In place of that: gets the uint8 image (H, W, 3) as an array of its own, and makes the item. Such a data
        set is read image by image.

    Items are ``(image, label)``: a uint8 tensor (3, 32, 32) and an int. ``__getitems__`` gives a whole batch, ``(images,
    labels)``; use it with ``collate_fn=as_is``, as :func:`fast_loader` does.

    Raises
    ------
    DataError
        At the first read, if the data is missing; the message names the command that makes it.
    """

    def __init__(
        self,
        split: Literal["train", "test"] = "train",
        root: str | os.PathLike[str] | None = None,
        *,
        augment: bool = False,
        transform: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        self.split, self.root = split, root
        self.augment, self.transform = augment, transform
        self._data: CifarMiniArrays | None = None

    @property
    def data(self) -> CifarMiniArrays:
        """The arrays, opened by this process when it first asks."""
        if self._data is None:
            self._data = load_cifar_mini(self.split, self.root)
        return self._data

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None}  # a pickled map would be the whole file

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        label = int(self.data.labels[index])  # raises IndexError past either end, which ends a for loop
        if self.transform is not None:
            return self.transform(np.array(self.data.images[index])), label
        images, _ = self._batch([int(index)])
        return images[0], label

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """A batch in one call: uint8 images (B, 3, 32, 32), int64 labels (B,); with a transform, a list of items."""
        if self.transform is not None:
            return [self[i] for i in indices]
        return self._batch(list(indices))

    def normalized(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 images (..., 3, 32, 32) as float32, minus mean, divided by std of the training images, on their device.

        Call it where the batch is used, not in a worker: a quarter of the bytes is sent, and a GPU does the sum.
        """
        mean, std = (
            torch.tensor(self.data.meta[k], dtype=torch.float32, device=images.device).view(3, 1, 1)
            for k in ("mean", "std")
        )
        return images.float().mul_(1 / (255 * std)).sub_(mean / std)  # x / 255, minus mean, by std; in place

    def _batch(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = np.empty((len(indices), 3, *self.data.images.shape[1:3]), np.uint8)
        shifts = torch.randint(2 * PADDING + 1, (len(indices), 2)).numpy() if self.augment else None
        flips = torch.rand(len(indices)).numpy() < 0.5 if self.augment else None
        # In parts: what is needed in between stays small, in the worker's memory and in the processor's cache.
        for start in range(0, len(indices), PART):
            part = slice(start, start + PART)
            images = self.data.images[indices[part]]  # with a list of indices NumPy copies, once
            if self.augment:
                batch[part] = shift_and_flip(images, shifts[part], flips[part])
            else:
                batch[part] = images.transpose(0, 3, 1, 2)
        return torch.from_numpy(batch), torch.from_numpy(self.data.labels[indices])


def as_is(batch: Any) -> Any:
    """The ``collate_fn`` for a data set whose ``__getitems__`` gives finished batches."""
    return batch


def fast_loader(dataset: CifarMini, batch_size: int = 128, **settings: Any) -> DataLoader:
    """A DataLoader that takes whole batches from a :class:`CifarMini` without a transform."""
    if dataset.transform is not None:
        raise ValueError("fast_loader is for CifarMini without a transform: one reads image by image")
    return DataLoader(dataset, batch_size, collate_fn=as_is, **settings)
