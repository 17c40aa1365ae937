"""Seeded inputs. Never square, never constant, never a single item, never of a divisible length only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import torch

__all__ = ["Case"]

T = TypeVar("T")


class Case:
    """One set of inputs, drawn from a seed.

    Attributes
    ----------
    seed : int
        The seed of the whole run.
    index : int
        0 for the first case of the run. Observers use it to vary the kind of input, too.
    device : torch.device
        Where tensors are made.
    rng : numpy.random.Generator
        For everything that this class does not offer.
    """

    def __init__(self, seed: int, index: int, device: torch.device) -> None:
        self.seed, self.index, self.device = seed, index, device
        self.rng = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32, index])

    def integer(self, low: int, high: int) -> int:
        """A random integer, ``low <= n <= high``."""
        return int(self.rng.integers(low, high, endpoint=True))

    def choice(self, *options):
        """One of ``options``."""
        return options[self.integer(0, len(options) - 1)]

    def mixed(self, items: Iterable[T]) -> list[T]:
        """The items in an order drawn for this case; nothing else that the case draws depends on it.

        Questions with few possible answers are asked in this order: an answer that counts its calls learns nothing by it.
        """
        listed = list(items)
        order = np.random.default_rng([self.seed & 0xFFFFFFFF, self.seed >> 32, self.index, len(listed)])
        return [listed[i] for i in order.permutation(len(listed))]

    def sizes(self, n: int, low: int = 3, high: int = 9) -> tuple[int, ...]:
        """``n`` sizes that all differ, in random order, so that no two axes can be mixed up unnoticed."""
        return tuple(int(s) for s in self.rng.choice(np.arange(low, high + n), size=n, replace=False))

    def array(self, *shape: int, dtype: str = "float32") -> np.ndarray:
        """Normally distributed numbers (integers: over the whole range of uint8, else -99..99) as a C-contiguous array."""
        kind = np.dtype(dtype)
        if kind == np.uint8:
            return self.rng.integers(0, 256, size=shape, dtype=np.uint8)
        if kind.kind in "iu":
            return self.rng.integers(-99 if kind.kind == "i" else 0, 100, size=shape).astype(kind)
        if kind.kind == "b":
            return self.rng.random(shape) < 0.5
        return self.rng.standard_normal(shape).astype(kind)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
        """As :meth:`array`, on the case's device."""
        name = str(dtype).removeprefix("torch.")
        values = self.array(*shape, dtype="float32" if name in ("bfloat16", "float16") else name)
        tensor = torch.from_numpy(values).to(self.device, dtype)
        return tensor.requires_grad_(requires_grad)

    def bgr_images(self, n: int = 3, height: int | None = None, width: int | None = None) -> list[np.ndarray]:
        """``n`` images as OpenCV reads them: (H, W, 3) uint8, B-G-R, all of one size with H != W.

        The second one is a strided view (every other column of a wider image), as a crop or a flip gives it.
        """
        if height is None or width is None:
            height, width = self.sizes(2, 5, 12)
        images = [self.array(height, width, 3, dtype="uint8") for _ in range(n)]
        if n > 1:
            wide = self.array(height, 2 * width, 3, dtype="uint8")
            images[1] = wide[:, ::2]
        return images
