"""A budget of passes over the data: images that count how often they are read."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["BudgetSpent", "CountedImages"]


class BudgetSpent(RuntimeError):
    """More images were asked for than the budget allows."""


class CountedImages:
    """Images that can be read ``passes`` times each, on average.

    ``images[index]`` gives a copy and counts the images in it; an index is a number, a slice, a list or a tensor, as for
    the first axis of a tensor. ``len(images)`` and ``images.shape`` cost nothing.

    Parameters
    ----------
    images : torch.Tensor, (N, 3, 32, 32) uint8
    passes : int
        The budget.

    Attributes
    ----------
    shape : torch.Size
    device : torch.device
    images_read, reads : int
        Images read so far, and calls that read them.
    """

    def __init__(self, images: torch.Tensor, passes: int) -> None:
        self._images, self._passes = images, passes
        self.shape, self.device = images.shape, images.device
        self.images_read = self.reads = 0

    def __len__(self) -> int:
        return len(self._images)

    @property
    def images_left(self) -> int:
        """How many images may still be read."""
        return self._passes * len(self) - self.images_read

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A copy of one image (3, 32, 32), or of several (B, 3, 32, 32).

        Raises
        ------
        BudgetSpent
            If fewer images are left than are asked for. Nothing is then counted.
        IndexError
            If there is no such image.
        """
        if isinstance(index, tuple):
            raise TypeError("index the images alone, images[i], and cut pixels out of the copy that you get")
        chosen = self._images[index]
        count = 1 if chosen.dim() == self._images.dim() - 1 else len(chosen)
        if count > self.images_left:
            raise BudgetSpent(
                f"{self.images_read} images were read; {count} more are over the budget of {self._passes} passes"
            )
        self.images_read += count
        self.reads += 1
        # A slice is a view: a copy keeps the images as they are, whatever is written into a batch.
        return (
            chosen.clone()
            if chosen.untyped_storage().data_ptr() == self._images.untyped_storage().data_ptr()
            else chosen
        )
