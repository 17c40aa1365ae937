"""Airplanes from the side, from above or below, and head-on."""

import numpy as np

from course_utils.data.drawn.colour import STEEL, Colour, hsv, paint, shade
from course_utils.data.drawn.pen import Pen

COCKPIT = np.array([40.0, 50.0, 70.0])


def draw_airplane(rng: np.random.Generator) -> Pen:
    """An airplane: mostly white or grey, with a tail fin in another colour."""
    fuselage = hsv(0, rng.uniform(0, 25), rng.uniform(150, 255)) if rng.random() < 0.6 else paint(rng)
    wing, accent = shade(fuselage, rng.uniform(0.5, 0.85)), paint(rng)
    kind = rng.choice([_from_the_side, _from_above, _head_on], p=[0.45, 0.35, 0.2])
    return kind(rng, fuselage, wing, accent)


def _from_the_side(rng: np.random.Generator, fuselage: Colour, wing: Colour, accent: Colour) -> Pen:
    """Flying right: far wing, fin, fuselage tapering to the tail, windows, cockpit, near wing, tailplane, engine."""
    pen = Pen()
    half, radius = rng.uniform(0.75, 0.9), rng.uniform(0.085, 0.14)
    far_tip, far_edge = (rng.uniform(-0.2, -0.05), -rng.uniform(0.2, 0.42)), (-0.32, -rng.uniform(0.2, 0.42))
    pen.polygon([(-0.02, -0.02), far_tip, far_edge, (-0.25, 0)], shade(wing, 0.9))
    fin = [(-half * 1.02, -rng.uniform(0.3, 0.45)), (-half * 0.82, -rng.uniform(0.3, 0.42))]
    pen.polygon([(-half * 0.98, -0.02), *fin, (-half * 0.6, -radius * 0.6)], accent)
    t = np.linspace(0, 2 * np.pi, 40)
    taper = np.where(np.cos(t) < 0, 1 - 0.5 * np.abs(np.cos(t)), 1)
    pen.polygon(np.stack([half * np.cos(t), radius * np.sin(t) * taper], axis=1), fuselage)
    for x in np.linspace(-half * 0.55, half * 0.6, rng.integers(5, 10)):
        pen.disc(x, -radius * 0.3, 0.022, np.array([50.0, 60.0, 85.0]))
    pane = [(0.8, -0.45), (0.9, -0.3), (0.82, -0.05), (0.72, -0.2)]
    pen.polygon([(half * x, radius * y) for x, y in pane], COCKPIT)
    tip = rng.uniform(0.3, 0.6)
    pen.polygon([(0.2, 0.02), (-0.25, 0.03), (-0.5 - rng.uniform(0, 0.15), tip), (-0.3, tip)], wing)
    pen.polygon([(-half * 0.75, 0), (-half * 0.98, 0.16), (-half * 0.85, 0.17), (-half * 0.6, 0.02)], wing)
    if rng.random() < 0.6:
        pen.ellipse(rng.uniform(-0.1, 0.05), rng.uniform(0.13, 0.22), 0.12, 0.05, shade(accent, 0.8))
    return pen


def _from_above(rng: np.random.Generator, fuselage: Colour, wing: Colour, accent: Colour) -> Pen:
    """Flying right; the sweep decides between an airliner, a glider and a jet."""
    pen = Pen()
    half, radius = rng.uniform(0.78, 0.92), rng.uniform(0.07, 0.11)
    sweep, span, chord = rng.uniform(-0.05, 0.45), rng.uniform(0.7, 0.95), rng.uniform(0.16, 0.3)
    engines = rng.random() < 0.6
    for side in (-1, 1):
        tips = [(0.12 - sweep, side * span), (0.12 - sweep - chord * 0.5, side * span)]
        pen.polygon([(0.12, 0), *tips, (0.12 - chord * 1.4, 0)], wing)
        tail = [(-half * 0.88 - sweep * 0.15, side * 0.32), (-half * 0.98 - sweep * 0.15, side * 0.32)]
        pen.polygon([(-half * 0.72, 0), *tail, (-half * 0.95, 0)], wing)
        if engines:
            pen.ellipse(0.05 - sweep * 0.4, side * span * 0.4, 0.12, 0.045, shade(accent, 0.7))
    pen.ellipse(0, 0, half, radius, fuselage)
    pen.box(-half * 0.98, -0.02, -half * 0.7, 0.02, accent)
    return pen


def _head_on(rng: np.random.Generator, fuselage: Colour, wing: Colour, accent: Colour) -> Pen:
    pen = Pen()
    radius, span, dihedral = rng.uniform(0.14, 0.2), rng.uniform(0.8, 0.97), rng.uniform(-0.12, 0.12)
    for side in (-1, 1):
        tip = [(side * span, -dihedral - 0.01), (side * span, -dihedral + 0.03)]
        pen.polygon([(side * 0.08, 0), *tip, (side * 0.08, 0.11)], wing)
        pen.disc(side * span * 0.45, 0.1 - dihedral * 0.4, 0.085, STEEL)
        pen.line([(side * 0.12, 0.15), (side * 0.13, 0.36)], 0.03, STEEL)
    pen.trapezium(-0.55, -0.1, 0.02, 0.03, accent)
    pen.box(-0.3, -0.22, 0.3, -0.18, wing)
    pen.disc(0, 0, radius, fuselage)
    pen.trapezium(-radius * 0.4, -radius * 0.05, radius * 0.6, radius * 0.5, COCKPIT)
    return pen
