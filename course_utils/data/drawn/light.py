"""Light on the drawing, its shadow, what stands in front, and the camera."""

import numpy as np

from course_utils.data.drawn.colour import hsv, rotate_hue
from course_utils.data.drawn.fields import COLUMN, ROW, blur, cloud
from course_utils.data.drawn.pen import CANVAS

SIZE = 32
"""Side in pixels of a finished image."""


LEAST_CONTRAST = 22.0
"""Grey levels of 0 to 255 between a drawing and the scene behind it; a quarter of the drawing may stand out less."""


def contrast(colours: np.ndarray, scene: np.ndarray, coverage: np.ndarray) -> float:
    """How far a drawing stands out from its scene, in grey levels: three quarters of its pixels differ by more.

    A quantile, not the mean: a dark head before dark leaves must count, however bright the snow behind the legs.
    Takes (CANVAS, CANVAS, 3), (CANVAS, CANVAS, 3) and (CANVAS, CANVAS, 1) floats.
    """
    difference = np.abs(colours - scene).mean(axis=2)
    return float(np.quantile(difference[coverage[..., 0] > 0.5], 0.25))


def light_up(rng: np.random.Generator, rgb: np.ndarray, coverage: np.ndarray) -> np.ndarray:
    """The colours of a printed drawing under random light: a slope from one side and soft blotches.

    Args:
        rng: source of chance.
        rgb: (CANVAS, CANVAS, 3), premultiplied by the coverage.
        coverage: (CANVAS, CANVAS, 1), 0 to 1.

    Returns:
        (CANVAS, CANVAS, 3) colours, 0 to 255, no longer premultiplied.
    """
    direction = rng.uniform(0, 2 * np.pi)
    slope = np.cos(direction) * (COLUMN - 0.5) + np.sin(direction) * (ROW - 0.5)
    light = 1 + 0.5 * slope * rng.uniform(0, 1.5) + 0.1 * cloud(rng, 4) * rng.uniform(0, 1.3)
    colours = rotate_hue(
        rgb / np.maximum(coverage, 1e-3),
        hue=rng.normal(0, 3),
        saturation=rng.uniform(0.5, 1.1),
        value=rng.uniform(0.65, 1.15),
        offset=rng.uniform(-15, 15),
    )
    return np.clip(colours * light, 0, 255)


def cast_shadow(rng: np.random.Generator, scene: np.ndarray, coverage: np.ndarray) -> np.ndarray:
    """Darken the scene by a soft, shifted copy of the drawing, in 7 images of 10."""
    if rng.random() >= 0.7:
        return scene
    shift = (int(rng.integers(1, 7)), int(rng.integers(-5, 6)))
    shadow = np.roll(blur(coverage, rng.uniform(2, 6)), shift, axis=(0, 1))
    return scene * (1 - rng.uniform(0.1, 0.5) * shadow * (1 - coverage))


def put_in_front(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """One image in ten has a pole in front of the object or something along the lower edge."""
    if rng.random() >= 0.1:
        return image
    colour = hsv(rng.uniform(0, 180), rng.uniform(0, 140), rng.uniform(30, 220))
    if rng.random() < 0.5:
        hedge = 0.3 * image + 0.7 * colour * (1 + 0.2 * cloud(rng, 8))
        return np.where(rng.uniform(0.78, 0.95) <= ROW, hedge, image)
    distance = np.abs(COLUMN - rng.uniform(0, 1) - rng.uniform(-0.2, 0.2) * ROW) * CANVAS
    return np.where(distance < rng.uniform(1, 2.5), colour, image)


def photograph(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """What a small, cheap camera makes of it: blur, few pixels, contrast, exposure, white balance, sensor noise.

    Takes (CANVAS, CANVAS, 3) float and returns (SIZE, SIZE, 3) uint8.
    """
    step = CANVAS // SIZE
    small = blur(image, rng.uniform(0.3, 1.6)).reshape(SIZE, step, SIZE, step, 3).mean(axis=(1, 3))
    contrast, exposure, balance = rng.uniform(0.9, 1.3), rng.uniform(-20, 20), rng.normal(0, 5, 3)
    exposed = (small - 128) * contrast + 128 + exposure + balance
    noisy = exposed + rng.normal(0, rng.uniform(1, 6), small.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
