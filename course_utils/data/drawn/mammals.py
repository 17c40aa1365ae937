"""Cats, deer, dogs and horses: from the side on four legs, or the face from the front.

One set of drawings for all four: what tells the animals apart are the proportions in `BUILDS` and a few features
(ears, antlers, mane, muzzle), as in life.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course_utils.data.drawn.colour import BLACK, CREAM, Colour, hsv, shade, tint
from course_utils.data.drawn.pen import Pen, Point


@dataclass(frozen=True)
class Build:
    """Proportions of an animal in unit coordinates; body, neck and head sizes are half-axes or lengths."""

    body_length: float
    body_height: float
    leg_length: float
    leg_width: float
    neck_length: float
    neck_angle: float
    """Degrees above the horizontal."""
    head_length: float
    head_height: float

    def varied(self, rng: np.random.Generator) -> "Build":
        """An individual: each proportion up to 15 % off."""
        return Build(*(value * rng.uniform(0.85, 1.15) for value in vars(self).values()))


BUILDS = {
    "cat": Build(0.40, 0.18, 0.30, 0.075, 0.12, 40, 0.21, 0.19),
    "dog": Build(0.40, 0.20, 0.42, 0.095, 0.20, 48, 0.24, 0.18),
    "horse": Build(0.50, 0.22, 0.56, 0.085, 0.42, 52, 0.26, 0.13),
    "deer": Build(0.42, 0.17, 0.58, 0.055, 0.38, 62, 0.19, 0.10),
}
FUR = {
    "cat": [(14, 60), (12, 150), (0, 0), (15, 110)],
    "dog": [(12, 120), (14, 60), (0, 0), (18, 90)],
    "horse": [(9, 150), (8, 110), (0, 15), (14, 90)],
    "deer": [(12, 130), (11, 100), (14, 120), (12, 90)],
}
"""Hue and saturation of the coats that are common in a species."""
HOOFED = ("horse", "deer")


@dataclass(frozen=True)
class Coat:
    """The colours of one animal."""

    main: Colour
    dark: Colour
    light: Colour
    hair: Colour
    """A horse's mane and tail, a dog's ears: much darker than a light coat, much lighter than a dark one."""


def draw_mammal(rng: np.random.Generator, animal: str) -> Pen:
    """One of the four animals, from the side or from the front."""
    side_view = 0.6 if animal in HOOFED else 0.5
    return _side(rng, animal) if rng.random() < side_view else FACES[animal](rng, _coat(rng, animal))


def _coat(rng: np.random.Generator, animal: str) -> Coat:
    hue, saturation = FUR[animal][rng.integers(len(FUR[animal]))]
    # Pale coats may be anything from black to white; a saturated one must not be so dark that it loses its hue.
    value = rng.uniform(45, 235) if saturation < 80 else rng.uniform(80, 210)
    main = hsv(hue + rng.normal(0, 3), saturation * rng.uniform(0.6, 1.2), value)
    hair = shade(main, rng.uniform(0.2, 0.5)) if main.max() > 90 else tint(main, 1.3, rng.uniform(50, 90))
    return Coat(main, shade(main, rng.uniform(0.5, 0.9)), tint(main, rng.uniform(1.05, 1.45), 17), hair)


def _frame(x: float, y: float, degrees: float) -> Callable[[float, float], Point]:
    """A function from a part's own coordinates to the drawing's: turned, then moved to (x, y)."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return lambda u, v: (x + u * cos - v * sin, y + u * sin + v * cos)


# ---------------------------------------------------------------------------------------------- from the side


def _side(rng: np.random.Generator, animal: str) -> Pen:
    """The whole animal looking right: far legs, tail, body, near legs, neck, head, in the order of painting."""
    pen, coat, build = Pen(), _coat(rng, animal), BUILDS[animal].varied(rng)
    sits = animal not in HOOFED and rng.random() < 0.3
    tilt = rng.uniform(-48, -30) if sits else rng.uniform(-6, 6)
    centre_y = -0.02 if animal in HOOFED else 0.05
    body = _frame(0, centre_y, tilt)
    stride = 0.03 if sits else rng.uniform(0, 0.16)
    ground = centre_y + build.body_height * 0.6 + build.leg_length
    hip = body(-build.body_length * 0.75, build.body_height * 0.3)
    shoulder = body(build.body_length * 0.72, build.body_height * 0.3)
    legs = [(hip[0] + 0.04, hip[1], -stride), (shoulder[0] - 0.04, shoulder[1], stride)]

    for x, y, step in legs:
        knee, foot = (x + step * 0.4 - 0.02, (y + ground) / 2), (x + step + rng.uniform(-0.03, 0.03), ground)
        pen.limb([(x, y), knee, foot], build.leg_width * 1.3, build.leg_width * 0.75, coat.dark)
    _tail(pen, rng, animal, coat, body(-build.body_length * 0.95, -build.body_height * 0.2))
    _body(pen, rng, animal, coat, build, tilt, body)
    for x, y, step in legs:
        x += -0.06 if x < 0 else 0.05
        knee, foot = (x - step * 0.4 + 0.01, (y + ground) / 2), (x - step + rng.uniform(-0.03, 0.03), ground)
        pen.limb([(x, y), knee, foot], build.leg_width * 1.5, build.leg_width * 0.8, coat.main)
        paw = shade(coat.main, 0.5) if animal in HOOFED else coat.light
        pen.ellipse(*foot, build.leg_width * 0.6, build.leg_width * 0.4, paw)
    _neck_and_head(pen, rng, animal, coat, build, body)
    return pen


def _tail(pen: Pen, rng: np.random.Generator, animal: str, coat: Coat, root: Point) -> None:
    x, y = root
    if animal == "cat":
        bend, tip = (x - 0.2, y - rng.uniform(0, 0.2)), (x - rng.uniform(0.05, 0.3), y - rng.uniform(0.35, 0.65))
        pen.limb([root, bend, tip], 0.08, 0.06, coat.main)
    elif animal == "dog":
        bend, tip = (x - 0.1, y - rng.uniform(-0.05, 0.1)), (x - rng.uniform(0.1, 0.2), y - rng.uniform(-0.1, 0.2))
        pen.limb([root, bend, tip], rng.uniform(0.08, 0.14), 0.05, coat.main)
    elif animal == "horse":
        bend, tip = (x - 0.14, y + 0.1), (x - rng.uniform(0.1, 0.2), y + rng.uniform(0.4, 0.6))
        pen.limb([root, bend, tip], 0.14, 0.08, coat.hair)
    else:
        pen.ellipse(x, y + 0.05, 0.09, 0.13, CREAM, 20)


def _body(
    pen: Pen,
    rng: np.random.Generator,
    animal: str,
    coat: Coat,
    build: Build,
    tilt: float,
    body: Callable[[float, float], Point],
) -> None:
    """The trunk, deeper at the chest than at the hip, with its belly and markings."""
    length, height = build.body_length, build.body_height
    angles = np.linspace(0, 2 * np.pi, 40)
    pen.polygon([body(length * np.cos(t), height * np.sin(t) * (1 + 0.12 * np.cos(t))) for t in angles], coat.main)
    pen.ellipse(*body(0, height * 0.55), length * 0.7, height * 0.4, coat.light, tilt)
    if animal == "cat" and rng.random() < 0.5:
        for x in np.linspace(-0.6, 0.6, 6) * length:
            pen.line([body(x, -height * 0.85), body(x + 0.02, height * 0.1)], 0.03, coat.dark)
    elif animal == "deer":
        for _ in range(9):
            spot = body(rng.uniform(-0.8, 0.6) * length, rng.uniform(-0.8, 0.2) * height)
            pen.disc(*spot, 0.03, CREAM)
    elif animal in ("dog", "horse") and rng.random() < 0.35:
        patch = body(rng.uniform(-0.5, 0.5) * length, rng.uniform(-0.4, 0.3) * height)
        colour = CREAM if rng.random() < 0.6 else coat.dark
        a, b = length * rng.uniform(0.2, 0.5), height * rng.uniform(0.4, 0.8)
        pen.ellipse(*patch, a, b, colour, rng.uniform(0, 90))


def _neck_and_head(
    pen: Pen,
    rng: np.random.Generator,
    animal: str,
    coat: Coat,
    build: Build,
    body: Callable[[float, float], Point],
) -> None:
    grazes = animal in HOOFED and rng.random() < 0.2
    angle = np.deg2rad(-45.0 if grazes else build.neck_angle * rng.uniform(0.85, 1.15))
    base_x, base_y = body(build.body_length * 0.85, -build.body_height * 0.35)
    head_x, head_y = base_x + build.neck_length * np.cos(angle), base_y - build.neck_length * np.sin(angle)
    pen.limb(
        [(base_x - 0.06, base_y + 0.06), (head_x, head_y)],
        build.body_height * 1.3,
        build.head_height * 1.3,
        coat.main,
    )
    nod = rng.uniform(10, 40) if animal in HOOFED else rng.uniform(-5, 15)
    head = _frame(head_x, head_y, nod)
    length, height = build.head_length, build.head_height
    if animal == "horse":
        pen.limb([(base_x - 0.13, base_y - 0.02), (head_x - 0.09, head_y - 0.05)], 0.15, 0.13, coat.hair)
    if animal == "cat":
        pen.ellipse(head_x, head_y, length, height * 1.05, coat.main)
        for ear in (-0.75, 0.5):
            pen.polygon(
                [
                    head(length * (ear - 0.25), -height * 0.6),
                    head(length * (ear + 0.05), -height * 1.95),
                    head(length * (ear + 0.42), -height * 0.65),
                ],
                coat.main,
            )
        pen.ellipse(*head(length * 0.5, height * 0.35), length * 0.45, height * 0.4, coat.light)
    elif animal == "dog":
        pen.ellipse(head_x, head_y, length * 0.8, height, coat.main)
        snout = [(0.2, -0.35), (1.5, -0.05), (1.55, 0.55), (0.2, 0.85)]
        pen.polygon([head(length * u, height * v) for u, v in snout], coat.light)
        pen.disc(*head(length * 1.45, 0), 0.065, BLACK)
        if rng.random() < 0.7:
            pen.ellipse(*head(-length * 0.35, height * 0.45), length * 0.38, height * 1.05, coat.hair, nod + 15)
        else:
            for ear in (-0.5, 0.1):
                tip = head(length * (ear + 0.02), -height * 1.6)
                left, right = head(length * (ear - 0.2), -height * 0.6), head(length * (ear + 0.3), -height * 0.7)
                pen.polygon([left, tip, right], coat.hair)
    else:
        _long_head(pen, rng, animal, coat, length, height, nod, head)
    eye = head(length * 0.25, -height * 0.2)
    if animal == "cat":
        pen.disc(*eye, 0.055, _cat_iris(rng))
    pen.ellipse(*eye, 0.028, 0.03, BLACK)


def _long_head(
    pen: Pen,
    rng: np.random.Generator,
    animal: str,
    coat: Coat,
    length: float,
    height: float,
    nod: float,
    head: Callable[[float, float], Point],
) -> None:
    """The head of a hoofed animal: long muzzle, upright ears, a deer's antlers."""
    pen.ellipse(*head(0, 0), length * 0.55, height * 1.05, coat.main, nod)
    outline = [(-0.1, -0.9), (1.1, -0.5), (1.25, 0.3), (1.0, 0.75), (-0.1, 1.0)]
    pen.polygon([head(length * u, height * v) for u, v in outline], coat.main)
    muzzle = coat.dark if animal == "horse" else np.array([60.0, 50.0, 45.0])
    pen.ellipse(*head(length * 1.08, height * 0.1), length * 0.22, height * 0.55, muzzle, nod)
    ear_length, ear_width = (0.084, 0.035) if animal == "horse" else (0.14, 0.06)
    for ear in (-0.35, 0.0):
        root = head(length * (ear * 0.2 - 0.2), -height * 1.3)
        pen.ellipse(*root, ear_width, ear_length, coat.dark, nod - 20 + ear * 60)
    if animal == "deer" and rng.random() < 0.75:
        _antlers_from_the_side(pen, rng, head(-length * 0.1, -height))


def _cat_iris(rng: np.random.Generator) -> Colour:
    return hsv(rng.choice([25, 40, 60, 100]), rng.uniform(80, 200), rng.uniform(140, 230))


def _antler_colour(rng: np.random.Generator) -> Colour:
    return hsv(14, rng.uniform(60, 120), rng.uniform(120, 210))


def _antlers_from_the_side(pen: Pen, rng: np.random.Generator, root: Point) -> None:
    width, colour, length = rng.uniform(0.04, 0.055), _antler_colour(rng), rng.uniform(0.3, 0.55)
    x, y = root
    for side in (-1, 1):
        tip = (x + side * length * rng.uniform(0.45, 0.8), y - length)
        pen.line([root, (x + side * length * 0.55, y - length * 0.45), tip], width, colour)
        for part in np.linspace(0.35, 0.9, rng.integers(2, 4)):
            fork = (x + (tip[0] - x) * part + side * 0.03, y + (tip[1] - y) * part)
            tine = (fork[0] + side * rng.uniform(0.05, 0.2), fork[1] - rng.uniform(0.1, 0.2))
            pen.line([fork, tine], width * 0.8, colour)


# --------------------------------------------------------------------------------------------- from the front


def _cat_face(rng: np.random.Generator, coat: Coat) -> Pen:
    pen = Pen()
    w, h = rng.uniform(0.52, 0.66), rng.uniform(0.46, 0.56)
    inner_ear, nose = np.array([205.0, 150.0, 150.0]), np.array([200.0, 110.0, 120.0])
    for side in (-1, 1):
        tip = (side * w * rng.uniform(0.75, 1.0), -h * rng.uniform(1.5, 1.85))
        pen.polygon([(side * w * 0.95, -h * 0.2), tip, (side * w * 0.15, -h * 0.8)], coat.main)
        pen.polygon([(side * w * 0.82, -h * 0.5), (side * w * 0.8, -h * 1.4), (side * w * 0.35, -h * 0.8)], inner_ear)
    pen.ellipse(0, 0, w, h, coat.main)
    if rng.random() < 0.5:
        for x in (-0.12, 0.0, 0.12):
            pen.line([(x, -h * 0.95), (x * 0.8, -h * 0.45)], 0.05, coat.dark)
    iris = _cat_iris(rng)
    for side in (-1, 1):
        pen.ellipse(side * w * 0.42, -h * 0.1, 0.13, 0.12, iris)
        pen.ellipse(side * w * 0.42, -h * 0.1, 0.04, 0.11, BLACK)
        pen.ellipse(side * 0.11, h * 0.48, 0.17, 0.14, coat.light)
    pen.polygon([(-0.06, h * 0.25), (0.06, h * 0.25), (0, h * 0.40)], nose)
    for side in (-1, 1):
        for droop in (-0.16, 0.1):
            pen.line([(side * 0.15, h * 0.45), (side * w * 1.25, h * 0.45 + droop)], 0.018, CREAM)
    return pen


def _dog_face(rng: np.random.Generator, coat: Coat) -> Pen:
    pen = Pen()
    w, h = rng.uniform(0.42, 0.54), rng.uniform(0.48, 0.6)
    floppy = rng.random() < 0.7
    pen.ellipse(0, 0, w, h, coat.main)
    for side in (-1, 1):
        if floppy:
            x, y = side * w * rng.uniform(0.95, 1.1), rng.uniform(-0.05, 0.2)
            pen.ellipse(x, y, w * 0.34, h * rng.uniform(0.6, 0.85), coat.hair, side * -12)
        else:
            ear = [(side * w * 0.95, -h * 0.35), (side * w * 0.95, -h * 1.5), (side * w * 0.25, -h * 0.85)]
            pen.polygon(ear, coat.dark)
        pen.ellipse(side * w * 0.42, -h * 0.2, 0.075, 0.08, BLACK)
    pen.ellipse(0, h * 0.45, w * 0.62, h * 0.48, coat.light)
    pen.ellipse(0, h * 0.2, 0.14, 0.10, BLACK)
    pen.line([(0, h * 0.3), (0, h * 0.6)], 0.03, coat.dark)
    if rng.random() < 0.5:
        pen.ellipse(0, h * 0.85, 0.12, 0.2, np.array([220.0, 100.0, 110.0]))
    return pen


def _long_face(pen: Pen, w: float, h: float, y: float, coat: Coat, muzzle: Colour) -> None:
    """A narrow head about (0, y) with eyes at its sides and nostrils below."""
    right = [(w, y - h * 0.75), (w * 0.75, y + h * 0.5), (w * 0.55, y + h * 0.95)]
    pen.polygon(right + [(-x, below) for x, below in reversed(right)], coat.main)
    pen.ellipse(0, y - h * 0.7, w, h * 0.25, coat.main)
    pen.ellipse(0, y + h * 0.8, w * 0.68, h * 0.25, muzzle)
    for side in (-1, 1):
        pen.ellipse(side * w * 0.78, y - h * 0.3, 0.06, 0.08, BLACK)
        pen.ellipse(side * w * 0.3, y + h * 0.8, 0.04, 0.05, BLACK)


def _horse_face(rng: np.random.Generator, coat: Coat) -> Pen:
    pen = Pen()
    w, h, y = rng.uniform(0.26, 0.34), rng.uniform(0.62, 0.75), 0.1
    for side in (-1, 1):
        ear = [(side * w * 0.95, y - h * 0.7), (side * w * 0.9, y - h * 1.25), (side * w * 0.3, y - h * 0.85)]
        pen.polygon(ear, coat.dark)
    _long_face(pen, w, h, y, coat, muzzle=coat.dark)
    if rng.random() < 0.5:
        blaze = [(-0.07, y - h * 0.6), (0.07, y - h * 0.6), (0.05, y + h * 0.5), (-0.05, y + h * 0.5)]
        pen.polygon(blaze, CREAM)
    forelock = [(-w * 0.5, y - h * 0.95), (w * 0.5, y - h * 0.95), (rng.uniform(-0.1, 0.1), y - h * 0.35)]
    pen.polygon(forelock, coat.hair)
    return pen


def _deer_face(rng: np.random.Generator, coat: Coat) -> Pen:
    pen = Pen()
    w, h, y = rng.uniform(0.24, 0.31), rng.uniform(0.5, 0.6), 0.3
    if rng.random() < 0.8:
        colour, width = _antler_colour(rng), rng.uniform(0.04, 0.06)
        for side in (-1, 1):
            root = (side * w * 0.5, y - h * 0.8)
            tip = (side * rng.uniform(0.5, 0.85), -rng.uniform(0.75, 0.98))
            pen.line([root, (side * rng.uniform(0.4, 0.65), (root[1] + tip[1]) / 2), tip], width, colour)
            for part in (0.4, 0.65, 0.85):
                fork = (root[0] + (tip[0] - root[0]) * part + side * 0.06, root[1] + (tip[1] - root[1]) * part)
                tine = (fork[0] - side * rng.uniform(-0.2, 0.12), fork[1] - rng.uniform(0.15, 0.3))
                pen.line([fork, tine], width * 0.8, colour)
    for side in (-1, 1):
        pen.ellipse(side * w * 1.5, y - h * 0.65, 0.24, 0.10, coat.dark, side * -25)
    _long_face(pen, w, h, y, coat, muzzle=np.array([70.0, 58.0, 52.0]))
    return pen


FACES = {"cat": _cat_face, "dog": _dog_face, "horse": _horse_face, "deer": _deer_face}
