"""Ships: with decks and funnels, under sail, motor boats, and seen bow-on."""

import numpy as np

from course_utils.data.drawn.colour import STEEL, Colour, hsv, paint, shade
from course_utils.data.drawn.pen import Pen

WATERLINE = 0.42


def draw_ship(rng: np.random.Generator) -> Pen:
    """A ship or boat; half of them have foam along the waterline."""
    hull = paint(rng)
    upper = paint(rng) if rng.random() < 0.3 else hsv(0, rng.uniform(0, 20), rng.uniform(190, 255))
    kind = rng.choice([_liner, _sailing_boat, _motor_boat, _bow_on], p=[0.55, 0.25, 0.12, 0.08])
    pen = kind(rng, hull, upper)
    if rng.random() < 0.5:
        crest = [(-0.95, -0.02), (-0.5, -0.05), (0, -0.02), (0.5, -0.05), (0.95, -0.02), (0.8, 0.07), (-0.8, 0.07)]
        foam = hsv(100, rng.uniform(0, 60), rng.uniform(150, 240))
        pen.polygon([(x, WATERLINE + y) for x, y in crest], foam)
    return pen


def _liner(rng: np.random.Generator, hull: Colour, upper: Colour) -> Pen:
    """A cargo ship, liner or ferry: hull, decks with portholes, funnel, containers, mast."""
    pen = Pen()
    half, freeboard = rng.uniform(0.75, 0.92), rng.uniform(0.18, 0.32)
    deck = WATERLINE - freeboard
    bow, keel = (half, deck - rng.uniform(0, 0.08)), (half * rng.uniform(0.75, 0.9), WATERLINE)
    pen.polygon([(-half, deck), bow, keel, (-half * 0.9, WATERLINE)], hull)
    boot_top = [(-0.93, -0.05), (0.85, -0.05), (0.8, 0), (-0.9, 0)]
    band = hsv(rng.choice([0, 105]), rng.uniform(100, 220), rng.uniform(60, 160))
    pen.polygon([(half * x, WATERLINE + y) for x, y in boot_top], band)

    left = rng.uniform(-0.75, -0.1) * half
    right, top = left + rng.uniform(0.35, 1.1) * half, deck
    for _ in range(rng.integers(1, 4)):
        height = rng.uniform(0.1, 0.16)
        pen.polygon([(left, top), (left + 0.02, top - height), (right - 0.03, top - height), (right, top)], upper)
        for x in np.arange(left + 0.06, right - 0.08, 0.1):
            pen.disc(x, top - height * 0.5, 0.025, np.array([60.0, 70.0, 95.0]))
        top -= height
        left, right = left + rng.uniform(0.03, 0.12), right - rng.uniform(0.03, 0.15)
        if right - left < 0.2:
            break
    if rng.random() < 0.7:
        x, height, colour = (left + right) / 2, rng.uniform(0.14, 0.26), paint(rng)
        pen.polygon([(x - 0.08, top), (x - 0.06, top - height), (x + 0.07, top - height), (x + 0.08, top)], colour)
        pen.box(x - 0.06, top - height, x + 0.07, top - height * 0.75, STEEL * 0.42)
    if rng.random() < 0.5:
        for x in np.linspace(rng.uniform(0.1, 0.3), 0.8, rng.integers(2, 6)) * half:
            stack = rng.uniform(0.08, 0.2)
            pen.polygon(
                [(x - 0.09, deck), (x - 0.09, deck - stack), (x + 0.08, deck - stack), (x + 0.08, deck)], paint(rng)
            )
    if rng.random() < 0.6:
        x = rng.uniform(-0.6, 0.7) * half
        pen.line([(x, deck), (x, deck - rng.uniform(0.3, 0.55))], 0.025, STEEL)
    return pen


def _sailing_boat(rng: np.random.Generator, hull: Colour, upper: Colour) -> Pen:
    pen = Pen()
    half, mast, top = rng.uniform(0.45, 0.7), rng.uniform(-0.1, 0.15), -rng.uniform(0.7, 0.95)
    outline = [(-half, -0.14), (half, -0.16), (half * 0.7, 0.02), (-half * 0.75, 0.02)]
    pen.polygon([(x, WATERLINE + y) for x, y in outline], hull)
    pen.line([(mast, WATERLINE - 0.12), (mast, top)], 0.03, np.array([90.0, 75.0, 60.0]))
    sail, foot = hsv(rng.uniform(0, 180), rng.uniform(0, 90), rng.uniform(200, 255)), WATERLINE - 0.22
    pen.polygon([(mast + 0.03, top + 0.03), (mast + 0.03, foot), (mast + rng.uniform(0.35, 0.6), foot)], sail)
    if rng.random() < 0.7:
        head, clew = (mast - 0.03, top + rng.uniform(0.05, 0.3)), (mast - rng.uniform(0.25, 0.5), foot)
        pen.polygon([head, (mast - 0.03, foot), clew], shade(sail, 0.9))
    return pen


def _motor_boat(rng: np.random.Generator, hull: Colour, upper: Colour) -> Pen:
    pen = Pen()
    half = rng.uniform(0.65, 0.85)
    parts = [
        ([(-1, -0.2), (1, -0.32), (0.55, 0), (-0.95, 0)], hull),
        ([(-0.5, -0.22), (-0.35, -0.48), (0.1, -0.48), (0.35, -0.28)], upper),
        ([(-0.3, -0.3), (-0.25, -0.44), (0.05, -0.44), (0.2, -0.3)], hsv(105, 60, 90)),
    ]
    for outline, colour in parts:
        pen.polygon([(half * x, WATERLINE + y) for x, y in outline], colour)
    return pen


def _bow_on(rng: np.random.Generator, hull: Colour, upper: Colour) -> Pen:
    pen = Pen()
    w = rng.uniform(0.3, 0.42)
    stem = [(w * 0.75, WATERLINE), (0, WATERLINE + 0.04), (-w * 0.75, WATERLINE)]
    pen.polygon([(-w, -0.1), (w, -0.1), *stem], hull)
    pen.trapezium(-0.55, -0.1, w * 0.7, w * 0.8, upper)
    pen.box(-w * 0.6, -0.42, w * 0.6, -0.3, np.array([50.0, 60.0, 80.0]))
    pen.line([(0, -0.55), (0, -0.9)], 0.03, STEEL * 1.3)
    return pen
