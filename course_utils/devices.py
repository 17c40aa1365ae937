"""Which device the exercises run on."""

from __future__ import annotations

import functools
import os

import torch

__all__ = ["available_device", "seed_everything"]


@functools.lru_cache(maxsize=8)
def _usable(name: str) -> torch.device:
    device = torch.device(name)
    torch.zeros(1, device=device)  # raises here, with torch's own words, when there is no such device
    return device


def available_device() -> torch.device:
    """The device of this course: CUDA where there is a GPU that works, else the CPU.

    The environment variable ``COURSE_DEVICE`` (``cpu``, ``cuda``, ``cuda:1``) overrides the choice.

    Returns
    -------
    torch.device

    Raises
    ------
    RuntimeError
        If ``COURSE_DEVICE`` names a device that does not exist or cannot be used here.
    """
    wanted = os.environ.get("COURSE_DEVICE", "").strip()
    if wanted:
        try:
            return _usable(wanted)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise RuntimeError(
                f"COURSE_DEVICE={wanted!r} cannot be used here ({reason}). Unset it, or set COURSE_DEVICE=cpu."
            ) from None
    if torch.cuda.is_available():
        try:
            return _usable("cuda")
        except RuntimeError:  # a driver that answers but cannot allocate: learn on the CPU rather than not at all
            return torch.device("cpu")
    return torch.device("cpu")


def seed_everything(seed: int) -> None:
    """Seed ``random``, NumPy's global generator and torch (every device) with one number (0 <= seed < 2**32)."""
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
