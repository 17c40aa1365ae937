"""Checkpoints: one file that is whole or not there, random states, and batches that know where they are."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from course_utils.files import atomic_write_bytes

__all__ = ["ShuffledBatches", "random_state", "read_checkpoint", "restore_random_state", "write_checkpoint"]


def write_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Save plain data and tensors. A crash, Ctrl-C or a full disk leaves the checkpoint that was there before.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)  # in memory first: what cannot be pickled fails before the disk is touched
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(path, buffer.getbuffer())


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state that :func:`write_checkpoint` saved, tensors on the CPU. Runs no code of the file (``weights_only``).

    Raises
    ------
    FileNotFoundError
        If there is no checkpoint.
    pickle.UnpicklingError, RuntimeError
        If the file is something else, or damaged.
    """
    # On the CPU: load_state_dict moves what has to be moved, and a generator's state must not leave the CPU.
    return torch.load(path, map_location="cpu", weights_only=True)


def random_state() -> dict[str, Any]:
    """The state of every global generator: Python, NumPy, torch, and each CUDA device. Plain data and tensors only."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(keys.copy()), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """The inverse of :func:`random_state`. States of GPUs that this machine lacks are left out."""
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(device_state, device)


class ShuffledBatches(Sampler[list[int]]):
    """Shuffled batches of indices that can go on where they were left: a ``batch_sampler`` for a ``DataLoader``.

    The order depends on the seed and the epoch alone, so that a position says all. The loop that uses the batches calls
    :meth:`advance` after each one: a loader with workers fetches ahead, and what was fetched is not yet what was learnt.

    Parameters
    ----------
    size : int
        Items in the data set.
    batch_size : int
        The last batch of an epoch may be smaller.
    seed : int
    """

    def __init__(self, size: int, batch_size: int, seed: int = 0) -> None:
        self._size, self._batch_size, self._seed = size, batch_size, seed
        self.epoch = self.position = 0

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return -(-self._size // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self._seed, self.epoch]).permutation(self._size).tolist()
        for batch in range(self.position, len(self)):
            yield order[batch * self._batch_size : (batch + 1) * self._batch_size]

    def advance(self) -> None:
        """One more batch is done; after the last one the next epoch begins."""
        self.position += 1
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position, self._seed = state["epoch"], state["position"], state["seed"]
