"""Frogs (sitting, squatting) and birds (perched, flying, round, on water)."""

import numpy as np

from course_utils.data.drawn.colour import BLACK, Colour, hsv, shade, tint
from course_utils.data.drawn.pen import Pen

PLUMAGE_HUES = (5, 12, 15, 22, 100, 110, 0)


def draw_frog(rng: np.random.Generator) -> Pen:
    """A frog from the front or from the side; green two times out of three, otherwise brown; often spotted."""
    hue = rng.uniform(28, 62) if rng.random() < 0.65 else rng.uniform(8, 22)
    skin = hsv(hue, rng.uniform(80, 210), rng.uniform(70, 210))
    dark = shade(skin, rng.uniform(0.5, 0.8))
    belly = hsv(hue - 5, rng.uniform(20, 110), rng.uniform(170, 245))
    return (_frog_sitting if rng.random() < 0.55 else _frog_squatting)(rng, skin, dark, belly)


def _spots(pen: Pen, rng: np.random.Generator, x: float, y: float, a: float, b: float, colour: Colour) -> None:
    """Every second frog: ten spots inside the ellipse about (x, y) with half-axes a and b."""
    if rng.random() < 0.5:
        for _ in range(10):
            distance, angle = np.sqrt(rng.random()), rng.uniform(0, 2 * np.pi)
            pen.ellipse(x + a * distance * np.cos(angle), y + b * distance * np.sin(angle), 0.05, 0.04, colour)


def _frog_sitting(rng: np.random.Generator, skin: Colour, dark: Colour, belly: Colour) -> Pen:
    pen = Pen()
    w, depth = rng.uniform(0.5, 0.66), rng.uniform(0.34, 0.48)
    for side in (-1, 1):
        pen.ellipse(side * w * 0.95, 0.45, 0.30, 0.2, dark, side * -25)
        pen.ellipse(side * w * 1.1, 0.66, 0.25, 0.07, dark)
        pen.limb([(side * w * 0.5, 0.2), (side * w * 0.62, 0.5), (side * w * 0.45, 0.68)], 0.16, 0.12, skin)
    pen.ellipse(0, 0.25, w, depth + 0.1, skin)
    pen.ellipse(0, 0.42, w * 0.7, depth * 0.75, belly)
    pen.ellipse(0, -0.12, w * 0.95, rng.uniform(0.28, 0.38), skin)
    _spots(pen, rng, 0, 0.05, w * 0.8, 0.28, dark)
    iris = hsv(rng.choice([20, 28, 10]), rng.uniform(60, 220), 235)
    for side in (-1, 1):
        x = side * w * rng.uniform(0.5, 0.65)
        pen.disc(x, -0.42, 0.19, skin)
        pen.ellipse(x, -0.43, 0.125, 0.13, iris)
        pen.ellipse(x, -0.43, 0.07, 0.05, BLACK)
    pen.line([(-w * 0.7, -0.02), (-w * 0.3, 0.09), (w * 0.3, 0.09), (w * 0.7, -0.02)], 0.04, shade(skin, 0.4))
    return pen


def _frog_squatting(rng: np.random.Generator, skin: Colour, dark: Colour, belly: Colour) -> Pen:
    pen = Pen()
    tilt = rng.uniform(-32, -18)
    length, depth = rng.uniform(0.5, 0.62), rng.uniform(0.25, 0.33)
    pen.ellipse(0, 0.1, length, depth, skin, tilt)
    pen.ellipse(0.05, 0.25, 0.42, 0.16, belly, tilt)
    pen.ellipse(-0.32, 0.33, 0.32, 0.19, dark, -35)
    pen.limb([(-0.35, 0.5), (0.02, 0.58), (-0.2, 0.68), (0.12, 0.7)], 0.14, 0.08, dark)
    pen.limb([(0.3, 0.2), (0.38, 0.45), (0.5, 0.68)], 0.15, 0.09, skin)
    pen.ellipse(0.48, -0.12, 0.27, 0.21, skin, -12)
    _spots(pen, rng, 0.05, 0.02, length * 0.6, depth * 0.6, dark)
    pen.disc(0.48, -0.32, 0.13, skin)
    pen.disc(0.5, -0.33, 0.085, np.array([235.0, 200.0, 80.0]))
    pen.ellipse(0.51, -0.33, 0.04, 0.05, BLACK)
    pen.line([(0.3, -0.02), (0.72, -0.06)], 0.03, shade(skin, 0.4))
    return pen


def draw_bird(rng: np.random.Generator) -> Pen:
    """A bird: half of them perched, a quarter flying, the rest owls, chicks and water birds."""
    main = hsv(rng.choice(PLUMAGE_HUES) + rng.normal(0, 4), rng.uniform(0, 170), rng.uniform(40, 235))
    dark, light = shade(main, rng.uniform(0.35, 0.8)), tint(main, 1.2, 30)
    beak = hsv(rng.uniform(12, 26), rng.uniform(120, 230), rng.uniform(120, 240))
    kind = rng.choice([_bird_perched, _bird_flying, _bird_round, _bird_on_water], p=[0.5, 0.25, 0.125, 0.125])
    return kind(rng, main, dark, light, beak)


def _bird_perched(rng: np.random.Generator, main: Colour, dark: Colour, light: Colour, beak: Colour) -> Pen:
    pen = Pen()
    a, b, tilt = rng.uniform(0.32, 0.46), rng.uniform(0.2, 0.3), rng.uniform(-45, -5)
    leg, neck = rng.uniform(0.2, 0.45), rng.uniform(0, 0.35)
    for x in (-0.05, 0.07):
        ankle = (x + rng.uniform(-0.03, 0.05), 0.3 + leg)
        pen.line([(x, 0.2), ankle, (x + 0.12, 0.3 + leg)], 0.03, shade(beak, 0.8))
    along = np.array([np.cos(np.deg2rad(tilt)), np.sin(np.deg2rad(tilt))])
    centre = np.array([0, 0.05])
    tail = [(0.7 * a, -0.08), (a + 0.45, -0.02), (a + 0.42, 0.12), (0.6 * a, 0.1)]
    pen.polygon([centre - along * back + (0, side) for back, side in tail], dark)
    pen.ellipse(*centre, a, b, main, tilt)
    pen.ellipse(0.08, 0.14, a * 0.65, b * 0.6, light, tilt)
    head = centre + along * a * 0.95 + (0.05, -0.12 - neck)
    radius = rng.uniform(0.13, 0.2)
    pen.limb([centre + along * a * 0.7, head], b * 0.9, 0.2, main)
    pen.disc(*head, radius, main if rng.random() < 0.6 else dark)
    x, y = head
    tip = (x + radius + rng.uniform(0.12, 0.34), y + rng.uniform(0, 0.05))
    pen.polygon([(x + radius * 0.75, y - 0.07), tip, (x + radius * 0.75, y + 0.08)], beak)
    pen.disc(x + radius * 0.35, y - 0.04, 0.035, BLACK)
    pen.ellipse(-0.06, 0.03, a * 0.7, b * 0.55, dark, tilt + 8)
    return pen


def _bird_flying(rng: np.random.Generator, main: Colour, dark: Colour, light: Colour, beak: Colour) -> Pen:
    pen = Pen()
    a, span = rng.uniform(0.28, 0.38), rng.uniform(0.55, 0.8)
    # Feathers part at the tip of a wing, and it is bent at the wrist: neither is so on an airplane.
    for colour, lift in ((dark, -span), (shade(dark, 0.85), span * rng.uniform(0.3, 0.8))):
        wrist = (rng.uniform(0, 0.15), lift * 0.6)
        feathers = [(-0.1, 1), (-0.2, 0.8), (-0.28, 0.95), (-0.3, 0.7), (-0.42, 0.75), (-0.34, 0.45)]
        pen.polygon([(0.2, 0.02), wrist, *[(x, lift * y) for x, y in feathers], (-0.2, 0.02)], colour)
    pen.polygon([(-a, -0.04), (-a - 0.3, -0.16), (-a - 0.22, 0), (-a - 0.3, 0.16), (-a, 0.07)], dark)
    pen.ellipse(0, 0.02, a, 0.16, main)
    pen.ellipse(0.02, 0.09, a * 0.75, 0.08, light)
    pen.disc(a * 0.95, -0.06, 0.16, main)
    pen.polygon([(a + 0.1, -0.13), (a + 0.36, -0.03), (a + 0.1, 0.05)], beak)
    pen.disc(a + 0.04, -0.09, 0.035, BLACK)
    return pen


def _bird_round(rng: np.random.Generator, main: Colour, dark: Colour, light: Colour, beak: Colour) -> Pen:
    pen = Pen()
    pen.ellipse(0, 0.15, rng.uniform(0.36, 0.5), rng.uniform(0.45, 0.6), main)
    pen.ellipse(0, 0.25, 0.28, 0.36, light)
    pen.ellipse(0, -0.35, rng.uniform(0.3, 0.4), rng.uniform(0.26, 0.34), main)
    for side in (-1, 1):
        pen.ellipse(side * 0.42, 0.15, 0.13, 0.38, dark, side * -8)
        pen.disc(side * 0.15, -0.38, 0.12, np.array([245.0, 235.0, 190.0]))
        pen.disc(side * 0.15, -0.38, 0.062, BLACK)
        pen.line([(side * 0.12, 0.7), (side * 0.12, 0.82)], 0.06, beak)
    pen.polygon([(-0.07, -0.3), (0.07, -0.3), (0, -0.14)], beak)
    return pen


def _bird_on_water(rng: np.random.Generator, main: Colour, dark: Colour, light: Colour, beak: Colour) -> Pen:
    pen = Pen()
    neck = rng.uniform(0.2, 0.6)
    pen.ellipse(0, 0.25, rng.uniform(0.5, 0.62), rng.uniform(0.2, 0.28), main)
    pen.ellipse(0.08, 0.36, 0.4, 0.12, light)
    pen.polygon([(-0.45, 0.15), (-0.8, -0.05), (-0.5, 0.35)], dark)
    pen.ellipse(-0.05, 0.2, 0.36, 0.15, dark, -5)
    pen.limb([(0.38, 0.2), (0.42, 0.1 - neck * 0.5), (0.48, 0.1 - neck)], 0.2, 0.13, main)
    pen.ellipse(0.5, 0.08 - neck, 0.13, 0.12, dark if rng.random() < 0.5 else main)
    pen.polygon([(0.58, 0.05 - neck), (0.85, 0.12 - neck), (0.58, 0.16 - neck)], beak)
    pen.disc(0.53, 0.05 - neck, 0.03, BLACK)
    return pen
