"""Smooth random fields and blur on the square canvas, as small matrices in float64.

Both are linear along each axis, so each is one matrix per axis. Double precision is deliberate: the order of a sum
differs between processors, and a last bit of a float32 would show in a rounded grey level now and then.
"""

from functools import cache

import numpy as np

from course_utils.data.drawn.pen import CANVAS

ROW, COLUMN = (axis[..., None] for axis in np.mgrid[0:CANVAS, 0:CANVAS] / CANVAS)
"""(CANVAS, CANVAS, 1) coordinates, 0 (top, left) to 1."""


@cache
def _cubic_upsampling(knots: int) -> np.ndarray:
    """(CANVAS, knots) matrix that interpolates evenly spread values by cubic convolution, ends repeated.

    The kernel is Keys' with a = -1/2 (R. Keys, *Cubic convolution interpolation for digital image processing*, 1981).
    """
    position = (np.arange(CANVAS) + 0.5) * knots / CANVAS - 0.5
    weights = np.zeros((CANVAS, knots))
    for offset in range(-1, 3):
        knot = np.floor(position) + offset
        d = np.abs(position - knot)
        near, far = (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2
        np.add.at(
            weights,
            (np.arange(CANVAS), np.clip(knot, 0, knots - 1).astype(int)),
            np.where(d <= 1, near, np.where(d < 2, far, 0)),
        )
    return weights


def cloud(rng: np.random.Generator, coarsest: int = 2, octaves: int = 4, persistence: float = 0.55) -> np.ndarray:
    """Fractal noise of unit variance: octaves of smooth noise, each twice as fine and `persistence` times as strong.

    Returns a (CANVAS, CANVAS, 1) field.
    """
    total = np.zeros((CANVAS, CANVAS))
    cells, strength = coarsest, 1.0
    for _ in range(octaves):
        up = _cubic_upsampling(cells + 1)
        total += strength * (up @ rng.standard_normal((cells + 1, cells + 1)) @ up.T)
        cells, strength = cells * 2, strength * persistence
    return (total / (total.std() + 1e-6))[..., None]


def _gaussian(sigma: float) -> np.ndarray:
    """(CANVAS, CANVAS) matrix that blurs along one axis; beyond the edge the edge pixel is repeated."""
    radius = max(1, int(3 * sigma + 0.5))
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    matrix = np.zeros((CANVAS, CANVAS))
    rows = np.arange(CANVAS)[:, None]
    np.add.at(matrix, (rows, np.clip(rows + offsets, 0, CANVAS - 1)), weights / weights.sum())
    return matrix


def blur(field: np.ndarray, sigma: float, sigma_y: float | None = None) -> np.ndarray:
    """Gaussian blur of a (CANVAS, CANVAS, C) field; sigma in pixels along x, and along y where `sigma_y` differs.

    Below 0.2 pixels nothing would be visible and that axis is left alone.
    """
    sigma_y = sigma if sigma_y is None else sigma_y
    if sigma >= 0.2:
        field = _gaussian(sigma) @ field
    if sigma_y >= 0.2:
        field = (_gaussian(sigma_y) @ field.reshape(CANVAS, -1)).reshape(field.shape)
    return field


def mix(first: np.ndarray, second: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The first where `part` is 0, the second where it is 1, and between in between."""
    return first * (1 - part) + second * part
