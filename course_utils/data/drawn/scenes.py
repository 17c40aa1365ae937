"""Backgrounds: sky, sea, grass, road, forest, indoors, a plain wall, snow."""

import numpy as np

from course_utils.data.drawn.colour import Colour, hsv
from course_utils.data.drawn.fields import COLUMN, ROW, blur, cloud, mix
from course_utils.data.drawn.pen import CANVAS

SCENES = ("sky", "sea", "grass", "road", "forest", "indoor", "plain", "snow")
USUAL_SCENES = {
    "airplane": ("sky", "sky", "road", "grass"),
    "automobile": ("road", "road", "grass", "indoor"),
    "bird": ("sky", "forest", "grass", "sea"),
    "cat": ("indoor", "indoor", "grass", "plain"),
    "deer": ("grass", "forest", "snow", "forest"),
    "dog": ("indoor", "grass", "snow", "plain"),
    "frog": ("grass", "forest", "plain", "sea"),
    "horse": ("grass", "grass", "forest", "plain"),
    "ship": ("sea", "sea", "sea", "sky"),
    "truck": ("road", "road", "grass", "forest"),
}
"""Where a class is mostly met. As in photographs, the background says something about the class, not all."""
USUAL = 0.75
"""Part of the images whose scene suits the class; the others take any scene."""


def draw_scene(rng: np.random.Generator, name: str) -> np.ndarray:
    """A background that suits a class, mostly. Returns (CANVAS, CANVAS, 3) float, 0 to 255."""
    scene = str(rng.choice(USUAL_SCENES[name] if rng.random() < USUAL else SCENES))
    horizon = rng.uniform(0.25, 0.7)
    grain = cloud(rng, 6, persistence=0.7)
    if scene == "sky":
        image = _sky(rng)
    elif scene == "plain":
        image = mix(*_two_walls(rng), np.clip(ROW + 0.25 * cloud(rng), 0, 1))
    elif scene == "indoor":
        image = _indoor(rng, horizon)
    else:
        ground = _ground(rng, scene, grain)
        edge = (ROW - horizon - 0.02 * cloud(rng)) * rng.uniform(15, 80) + 0.5
        image = mix(_beyond(rng, scene, horizon), ground, np.clip(edge, 0, 1))
    return np.clip(image + rng.uniform(0, 8) * grain, 0, 255)


def _sky(rng: np.random.Generator) -> np.ndarray:
    """A gradient from the zenith to the haze at the horizon, with more or fewer clouds."""
    zenith = hsv(rng.uniform(95, 118), rng.uniform(20, 150), rng.uniform(120, 250))
    haze = hsv(rng.uniform(90, 120), rng.uniform(0, 70), rng.uniform(170, 250))
    cover = np.clip((cloud(rng) - rng.uniform(-0.5, 1.2)) * 0.6, 0, 1) * rng.uniform(0, 1)
    return mix(mix(zenith, haze, ROW), np.full(3, rng.uniform(170, 255)), cover)


def _two_walls(rng: np.random.Generator) -> tuple[Colour, Colour]:
    first = hsv(rng.uniform(0, 180), rng.uniform(0, 90), rng.uniform(50, 240))
    return first, hsv(rng.uniform(0, 180), rng.uniform(0, 110), rng.uniform(50, 240))


def _indoor(rng: np.random.Generator, horizon: float) -> np.ndarray:
    """A wall, a floor and a few pieces of furniture out of focus."""
    image = np.where(horizon > ROW, *_two_walls(rng))
    for _ in range(rng.integers(1, 5)):
        (x, y), (w, h) = rng.uniform(-10, CANVAS, 2), rng.uniform(10, 60, 2)
        colour = hsv(rng.uniform(0, 180), rng.uniform(0, 140), rng.uniform(30, 250))
        image = np.where(_inside(x, y, x + w, y + h), colour, image)
    return blur(image, rng.uniform(0.5, 3))


def _inside(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """(CANVAS, CANVAS, 1) mask of a rectangle given in pixels."""
    x, y = COLUMN * CANVAS, ROW * CANVAS
    return (x >= left) & (x < right) & (y >= top) & (y < bottom)


def _ground(rng: np.random.Generator, scene: str, grain: np.ndarray) -> np.ndarray:
    if scene == "sea":
        water = hsv(rng.uniform(88, 118), rng.uniform(40, 170), rng.uniform(60, 200))
        return water * (1 + 0.3 * blur(grain, 5, 0.7))  # waves: grain drawn out sideways
    colour = {
        "grass": lambda: hsv(rng.uniform(25, 50), rng.uniform(50, 180), rng.uniform(80, 200)),
        "road": lambda: hsv(rng.uniform(0, 180), rng.uniform(0, 35), rng.uniform(70, 190)),
        "forest": lambda: hsv(rng.uniform(18, 60), rng.uniform(40, 150), rng.uniform(45, 140)),
        "snow": lambda: hsv(110, rng.uniform(0, 30), rng.uniform(190, 250)),
    }[scene]()
    return colour * (1 + 0.18 * grain * rng.uniform(0.3, 1.2))


def _beyond(rng: np.random.Generator, scene: str, horizon: float) -> np.ndarray:
    """What stands above the horizon: sky, leaves, or houses along a road."""
    if scene in ("forest", "grass", "snow") and rng.random() < 0.6:
        leaves = hsv(rng.uniform(25, 65), rng.uniform(30, 150), rng.uniform(35, 130))
        return leaves * (1 + 0.3 * cloud(rng, 8, octaves=3, persistence=0.8))
    image = _sky(rng)
    if scene == "road" and rng.random() < 0.5:
        for _ in range(rng.integers(2, 7)):
            left, width, height = rng.uniform(-5, CANVAS), rng.uniform(8, 35), rng.uniform(0.1, horizon)
            wall = hsv(rng.uniform(0, 180), rng.uniform(0, 90), rng.uniform(50, 220))
            image = np.where(_inside(left, (horizon - height) * CANVAS, left + width, CANVAS), wall, image)
    return image
