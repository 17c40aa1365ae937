"""Colours as float RGB arrays, 0 to 255.

Hue, saturation and value follow OpenCV's 8-bit convention, which the course meets again with `cv2`:
hue 0 to 180 (two degrees a step), saturation and value 0 to 255.
"""

import numpy as np

Colour = np.ndarray

BLACK = np.array([10.0, 10.0, 10.0])
CREAM = np.array([242.0, 238.0, 230.0])
TYRE = np.array([28.0, 28.0, 30.0])
STEEL = np.array([62.0, 62.0, 66.0])
HEADLAMP = np.array([250.0, 247.0, 215.0])
TAIL_LAMP = np.array([200.0, 33.0, 33.0])


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """The RGB colour (3,) of a hue (any number, taken modulo 180), a saturation and a value (clipped to 0..255)."""
    sector, fraction = divmod(float(hue) % 180 / 30, 1)
    s = min(max(float(saturation), 0.0), 255.0) / 255
    v = min(max(float(value), 0.0), 255.0)
    low, falling, rising = v * (1 - s), v * (1 - s * fraction), v * (1 - s * (1 - fraction))
    rgb = [
        (v, rising, low),
        (falling, v, low),
        (low, v, rising),
        (low, falling, v),
        (rising, low, v),
        (v, low, falling),
    ]
    return np.array(rgb[int(sector) % 6])


def shade(colour: Colour, factor: float) -> Colour:
    """The same colour darker (factor below 1) or brighter."""
    return np.clip(np.asarray(colour) * factor, 0, 255)


def tint(colour: Colour, factor: float, lift: float) -> Colour:
    """A lighter relative of a colour, as on a belly: brightened by a factor, then lifted towards white."""
    return np.clip(np.asarray(colour) * factor + lift, 0, 255)


def rotate_hue(rgb: np.ndarray, hue: float, saturation: float, value: float, offset: float) -> np.ndarray:
    """Shift the hue of an (..., 3) image and scale its saturation and value.

    The hue turns about the grey axis r = g = b (Rodrigues' rotation formula), which needs no way through HSV
    and leaves greys grey. `hue` is in OpenCV's half degrees.
    """
    angle = hue * np.pi / 90
    cos, third, skew = np.cos(angle), (1 - np.cos(angle)) / 3, np.sin(angle) / np.sqrt(3)
    turn = np.array(
        [
            [cos + third, third - skew, third + skew],
            [third + skew, cos + third, third - skew],
            [third - skew, third + skew, cos + third],
        ]
    )
    grey = rgb.mean(axis=-1, keepdims=True)
    return np.clip((grey + ((rgb - grey) @ turn.T) * saturation) * value + offset, 0, 255)


def paint(rng: np.random.Generator) -> Colour:
    """The colour of a painted thing: any hue two times out of three, otherwise white, grey or black."""
    if rng.random() < 0.65:
        return hsv(rng.uniform(0, 180), rng.uniform(0, 235), rng.uniform(50, 245))
    return hsv(0, rng.uniform(0, 20), rng.uniform(20, 250))


def glass(rng: np.random.Generator) -> Colour:
    """A window: bluish, dark or bright with what it reflects."""
    return hsv(105, rng.uniform(10, 90), rng.uniform(40, 200))
