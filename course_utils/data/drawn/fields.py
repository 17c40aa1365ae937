"""Smooth random fields and blur on the square canvas, in float64.

Both are sums of a few shifted copies along each axis. Written so, they need no matrix library, whose threads get in
each other's way when several processes draw. Double precision is deliberate: the last bits of sums and of exponentials
differ between processors, and those of a float32 would show in a rounded grey level now and then.
"""

from functools import cache

import numpy as np

from course_utils.data.drawn.pen import CANVAS

ROW, COLUMN = (axis[..., None] for axis in np.mgrid[0:CANVAS, 0:CANVAS] / CANVAS)
"""(CANVAS, CANVAS, 1) coordinates, 0 (top, left) to 1."""


@cache
def _cubic_taps(knots: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """How to interpolate `knots` evenly spread values at every pixel: four pairs of positions and weights (CANVAS,).

    The kernel is Keys' with a = -1/2 (R. Keys, *Cubic convolution interpolation for digital image processing*, 1981);
    beyond the ends the last value is repeated.
    """
    position = (np.arange(CANVAS) + 0.5) * knots / CANVAS - 0.5
    taps = []
    for offset in range(-1, 3):
        knot = np.floor(position) + offset
        d = np.abs(position - knot)
        weights = np.where(d <= 1, (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2)
        taps.append((np.clip(knot, 0, knots - 1).astype(int), weights))
    return taps


def _upsample(values: np.ndarray) -> np.ndarray:
    """(K, K) values spread over the canvas and interpolated: (CANVAS, CANVAS)."""
    for _ in range(2):  # the rows, then, transposed, the columns
        values = sum(weights[:, None] * values[positions] for positions, weights in _cubic_taps(len(values))).T
    return values


def cloud(rng: np.random.Generator, coarsest: int = 2, octaves: int = 4, persistence: float = 0.55) -> np.ndarray:
    """Fractal noise of unit variance: octaves of smooth noise, each twice as fine and `persistence` times as strong.

    Returns a (CANVAS, CANVAS, 1) field.
    """
    total = np.zeros((CANVAS, CANVAS))
    cells, strength = coarsest, 1.0
    for _ in range(octaves):
        total += strength * _upsample(rng.standard_normal((cells + 1, cells + 1)))
        cells, strength = cells * 2, strength * persistence
    return (total / (total.std() + 1e-6))[..., None]


def blur(field: np.ndarray, sigma: float, sigma_y: float | None = None) -> np.ndarray:
    """Gaussian blur of a (CANVAS, CANVAS, C) field; sigma in pixels along x, and along y where `sigma_y` differs.

    Beyond the edge the edge pixel is repeated. Below 0.2 pixels nothing would be visible and that axis is left alone.
    """
    for axis, width in ((1, sigma), (0, sigma if sigma_y is None else sigma_y)):
        if width < 0.2:
            continue
        radius = max(1, int(3 * width + 0.5))
        offsets = np.arange(-radius, radius + 1)
        weights = np.exp(-0.5 * (offsets / width) ** 2)
        weights /= weights.sum()
        margins = [(radius, radius) if i == axis else (0, 0) for i in range(3)]
        padded = np.moveaxis(np.pad(field, margins, mode="edge"), axis, 0)
        field = np.moveaxis(sum(w * padded[i : i + CANVAS] for i, w in enumerate(weights)), 0, axis)
    return field


def mix(first: np.ndarray, second: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The first where `part` is 0, the second where it is 1, and between in between."""
    return first * (1 - part) + second * part
