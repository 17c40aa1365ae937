"""Cars and trucks, from the side and from the front or rear."""

import numpy as np

from course_utils.data.drawn.colour import HEADLAMP, STEEL, TAIL_LAMP, TYRE, Colour, glass, paint, shade
from course_utils.data.drawn.pen import Pen


def _wheel(pen: Pen, x: float, y: float, radius: float) -> None:
    pen.disc(x, y, radius, TYRE)
    pen.disc(x, y, radius * 0.5, np.array([150.0, 150.0, 155.0]))


def draw_automobile(rng: np.random.Generator) -> Pen:
    """A car: two thirds from the side, the others from the front or rear."""
    body, window = paint(rng), glass(rng)
    sill = shade(body, rng.uniform(0.6, 0.85))
    return (_car_side if rng.random() < 0.65 else _car_end)(rng, body, window, sill)


def _car_side(rng: np.random.Generator, body: Colour, window: Colour, sill: Colour) -> Pen:
    """Looking right: cabin and its two windows, then the body with bonnet and boot, sill, wheels, lamps."""
    pen = Pen()
    half, y = rng.uniform(0.72, 0.88), 0.12
    height, cabin = rng.uniform(0.16, 0.24), rng.uniform(0.2, 0.34)
    front, rear = half * rng.uniform(0.2, 0.45), -half * rng.uniform(0.4, 0.75)
    roof, belt = y - height - cabin, y - height * 0.4
    pen.polygon(
        [
            (rear - 0.1, belt),
            (rear + rng.uniform(0.05, 0.2), roof),
            (front - rng.uniform(0.1, 0.2), roof),
            (front + 0.14, belt),
        ],
        body,
    )
    top, bottom = y - height - cabin * 0.85, y - height * 0.8
    pen.polygon([(rear, bottom), (rear + 0.14, top), (-0.06, top), (-0.06, bottom)], window)
    pen.polygon([(0, bottom), (0, top), (front - 0.16, top), (front + 0.02, bottom)], window)
    outline = [(-1, 0.8), (-0.98, -0.6), (-0.6, -1), (0.5, -1), (0.93, -0.35), (1, 0.8)]
    pen.polygon([(half * u, y + height * v) for u, v in outline], body)
    pen.polygon([(half * u, y + height * v) for u, v in [(-1, 0.35), (1, 0.35), (0.98, 0.9), (-0.98, 0.9)]], sill)
    radius = rng.uniform(0.13, 0.18)
    for x in (-half * 0.58, half * 0.58):
        _wheel(pen, x, y + height * 0.95, radius)
    pen.disc(half * 0.93, y - height * 0.05, 0.05, HEADLAMP)
    pen.ellipse(-half * 0.95, y - height * 0.1, 0.045, 0.05, TAIL_LAMP)
    return pen


def _car_end(rng: np.random.Generator, body: Colour, window: Colour, sill: Colour) -> Pen:
    pen = Pen()
    w = rng.uniform(0.5, 0.62)
    lamp = TAIL_LAMP if rng.random() < 0.4 else HEADLAMP
    for side in (-1, 1):
        pen.box(side * w * 0.95, 0.25, side * w * 0.6, 0.55, TYRE)
    pen.trapezium(-0.5, -0.05, w * 0.62, w * 0.92, body)
    pen.trapezium(-0.43, -0.06, w * 0.55, w * 0.78, window)
    pen.trapezium(-0.08, 0.4, w, w * 1.03, body)
    for side in (-1, 1):
        pen.ellipse(side * w * 0.76, 0.1, 0.1, 0.08, lamp)
    pen.trapezium(0.08, 0.24, w * 0.45, w * 0.42, STEEL * 0.65)
    pen.trapezium(0.28, 0.42, w * 1.02, w, sill)
    return pen


def draw_truck(rng: np.random.Generator) -> Pen:
    """A truck: three quarters from the side (box, tank or tipper), the others from the front."""
    return (_truck_side if rng.random() < 0.75 else _truck_front)(rng, paint(rng), paint(rng), glass(rng))


def _truck_side(rng: np.random.Generator, cab: Colour, load: Colour, window: Colour) -> Pen:
    """Looking right: chassis, load, cab (above or behind the engine), wheels."""
    pen = Pen()
    half, cab_length, chassis = rng.uniform(0.78, 0.92), rng.uniform(0.26, 0.4), 0.3
    load_top = -rng.uniform(0.35, 0.62)
    cab_top = load_top + rng.uniform(-0.05, 0.35)
    cab_back = half - cab_length
    pen.box(-half, chassis - 0.06, half, chassis + 0.06, STEEL * 0.73)

    kind = rng.choice(["box", "container", "tank", "tipper"], p=[1 / 3, 1 / 3, 1 / 6, 1 / 6])
    if kind == "tank":
        length, height = half - cab_length * 0.55, (chassis - load_top) / 2
        pen.ellipse(-cab_length * 0.5, chassis - height, length, height * 0.9, load)
    elif kind == "tipper":
        top = [(-half, load_top + 0.25), (cab_back - 0.06, load_top + 0.2)]
        pen.polygon([*top, (cab_back - 0.12, chassis), (-half + 0.12, chassis)], load)
    else:
        pen.box(-half, load_top, cab_back - 0.04, chassis - 0.02, load)
        if kind == "container":
            for x in np.linspace(-half + 0.08, cab_back - 0.12, 6):
                pen.line([(x, load_top + 0.03), (x, chassis - 0.05)], 0.02, shade(load, 0.75))

    if rng.random() < 0.6:  # the cab above the engine
        nose = [(half - 0.08, cab_top), (half, cab_top + 0.3), (half, chassis)]
        pen.polygon([(cab_back, cab_top), *nose, (cab_back, chassis)], cab)
        pane = half - cab_length * 0.6
        right = [(half - 0.1, cab_top + 0.07), (half - 0.03, cab_top + 0.3)]
        pen.polygon([(pane, cab_top + 0.07), *right, (pane, cab_top + 0.3)], window)
    else:  # a bonnet in front of the cab
        screen = [(half - cab_length * 0.45, cab_top), (half - cab_length * 0.4, 0.0)]
        bonnet = [(half, 0.04), (half, chassis)]
        pen.polygon([(cab_back - 0.02, cab_top), *screen, *bonnet, (cab_back - 0.02, chassis)], cab)
        pane = half - cab_length * 0.9
        right = [(half - cab_length * 0.5, cab_top + 0.06), (half - cab_length * 0.46, 0.0)]
        pen.polygon([(pane, cab_top + 0.06), *right, (pane, 0.0)], window)
    radius = rng.uniform(0.12, 0.16)
    rear_axles = -half + 0.2 + np.arange(rng.integers(1, 4)) * radius * 2.1
    for x in (half - cab_length * 0.5, *rear_axles):
        _wheel(pen, x, chassis + 0.08, radius)
    return pen


def _truck_front(rng: np.random.Generator, cab: Colour, load: Colour, window: Colour) -> Pen:
    pen = Pen()
    w, top = rng.uniform(0.42, 0.52), -rng.uniform(0.6, 0.8)
    for side in (-1, 1):
        pen.box(side * w, 0.4, side * w * 0.62, 0.72, TYRE)
    pen.box(-w * 1.08, top - 0.1, w * 1.08, 0.4, load)
    pen.box(-w, top + 0.15, w, 0.55, cab)
    pen.box(-w * 0.88, top + 0.25, w * 0.88, top + 0.65, window)
    pen.box(-w * 0.7, 0.05, w * 0.7, 0.3, STEEL * 0.8)
    for side in (-1, 1):
        pen.ellipse(side * w * 0.8, 0.42, 0.08, 0.07, HEADLAMP)
    return pen
