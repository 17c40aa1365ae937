"""A pen that remembers opaque polygons, and the pose in which they are printed.

Drawings live in unit coordinates: x and y from -1 to 1, x to the right, y *down* as in images. A drawing is only
turned into pixels when it is posed: the pose moves the *points*, so no picture is ever resampled and no edge is
blurred twice. Every vertex is rounded to a whole pixel of a fine canvas; with integer vertices the fill is the same
on every machine, whatever the last bit of its sine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from course_utils.data.drawn.colour import Colour

CANVAS = 96
"""Side in pixels of the working image, three times the final 32."""
FINE = 4
"""Sub-pixels along one side of a working pixel when polygons are filled (anti-aliasing)."""

Point = tuple[float, float]


def ellipse_outline(x: float, y: float, a: float, b: float, degrees: float = 0.0, corners: int = 32) -> np.ndarray:
    """The (corners, 2) outline of an ellipse with half-axes a and b, turned clockwise (y is down)."""
    t = np.arange(corners) * (2 * np.pi / corners)
    turn = np.deg2rad(degrees)
    u, v = a * np.cos(t), b * np.sin(t)
    return np.stack([x + u * np.cos(turn) - v * np.sin(turn), y + u * np.sin(turn) + v * np.cos(turn)], axis=1)


def _project(pose: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Where a (3, 3) homography takes (k, 2) points."""
    x, y, w = pose[:, :2] @ points.T + pose[:, 2:]
    return np.stack([x / w, y / w], axis=1)


@dataclass
class Pen:
    """Collects shapes in the order in which they are painted: later ones cover earlier ones."""

    shapes: list[tuple[np.ndarray, Colour]] = field(default_factory=list)

    def polygon(self, points: Sequence[Point] | np.ndarray, colour: Colour) -> None:
        """A filled polygon through (k, 2) points."""
        self.shapes.append((np.asarray(points, dtype=np.float64), np.asarray(colour, dtype=np.float64)))

    def ellipse(self, x: float, y: float, a: float, b: float, colour: Colour, degrees: float = 0.0) -> None:
        """A filled ellipse about (x, y) with half-axes a and b."""
        self.polygon(ellipse_outline(x, y, a, b, degrees), colour)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A filled circle."""
        self.ellipse(x, y, radius, radius, colour)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A filled upright rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def trapezium(self, top: float, bottom: float, half_top: float, half_bottom: float, colour: Colour) -> None:
        """A filled trapezium, symmetrical about x = 0: what a vehicle shows from the front."""
        self.polygon([(-half_top, top), (half_top, top), (half_bottom, bottom), (-half_bottom, bottom)], colour)

    def line(self, points: Sequence[Point], width: float, colour: Colour) -> None:
        """A line of constant width with round joints and ends."""
        self.limb(points, width, width, colour)

    def limb(self, points: Sequence[Point], start_width: float, end_width: float, colour: Colour) -> None:
        """A line that tapers from one width to another, with round joints and ends: a leg, a neck, a tail."""
        path = np.asarray(points, dtype=np.float64)
        widths = np.linspace(start_width, end_width, len(path))
        for (x, y), width in zip(path, widths, strict=True):
            self.polygon(ellipse_outline(x, y, width / 2, width / 2, corners=16), colour)
        for start, end, wide, thin in zip(path[:-1], path[1:], widths[:-1], widths[1:], strict=True):
            along = end - start
            length = float(np.hypot(*along))
            if length > 0:
                across = np.array([-along[1], along[0]]) / length / 2
                self.polygon(
                    [start + across * wide, end + across * thin, end - across * thin, start - across * wide], colour
                )

    def bounds(self, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest x and y, (2,) each, once a (3, 3) pose has been applied."""
        points = np.concatenate([_project(pose, points) for points, _ in self.shapes])
        return points.min(axis=0), points.max(axis=0)

    def framed(self) -> "Pen":
        """The same drawing moved to the middle, its longer side from -1 to 1."""
        low, high = self.bounds(np.eye(3))
        centre, half = (low + high) / 2, (high - low).max() / 2
        return Pen([((points - centre) / half, colour) for points, colour in self.shapes])

    def fitted(self, pose: np.ndarray) -> np.ndarray:
        """The (3, 3) pose, shrunk and shifted as little as is needed to have all of the drawing on the canvas."""
        low, high = self.bounds(pose)
        shrink = min(1.0, CANVAS / (high - low).max())
        centre, half = (low + high) / 2, shrink * (high - low) / 2
        move = np.diag([shrink, shrink, 1.0])
        move[:2, 2] = np.clip(centre, half, CANVAS - half) - shrink * centre
        return move @ pose

    def print(self, pose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fill the shapes on the canvas.

        Args:
            pose: (3, 3) homography from unit coordinates to canvas pixels, see `random_pose`.

        Returns:
            rgb: (CANVAS, CANVAS, 3) float, 0 to 255, premultiplied by the coverage.
            coverage: (CANVAS, CANVAS, 1) float, 0 (background) to 1 (drawing).
        """
        image = Image.new("RGBA", (CANVAS * FINE, CANVAS * FINE), (0, 0, 0, 0))
        draw = ImageDraw.Draw(image)
        for points, colour in self.shapes:
            vertices = np.rint(_project(pose, points) * FINE).astype(int)
            fill = tuple(int(channel) for channel in np.clip(colour, 0, 255))
            draw.polygon(vertices.ravel().tolist(), fill=(*fill, 255))
        # Uncovered sub-pixels are (0, 0, 0, 0), so the plain average is already premultiplied. 16 * 255 fits uint16.
        fine = np.asarray(image).reshape(CANVAS, FINE, CANVAS, FINE, 4)
        average = fine.sum(axis=(1, 3), dtype=np.uint16) / float(FINE * FINE)
        return average[..., :3], average[..., 3:] / 255


def random_pose(
    rng: np.random.Generator,
    scale: float,
    rotation: float,
    shift: float = 0.08,
    shear: float = 0.1,
    perspective: float = 0.06,
) -> np.ndarray:
    """The (3, 3) homography that puts a drawing somewhere on the canvas, seen from somewhere.

    Args:
        rng: source of chance.
        scale: side of the drawing's square as a part of the canvas.
        rotation: standard deviation of the turn, in degrees.
        shift: standard deviation of the shift, as a part of the canvas (cut at a quarter).
        shear: standard deviation of the shear.
        perspective: standard deviation of each corner's own shift, as a part of the drawing.
    """
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    placed = corners / 2 * scale * rng.uniform(0.85, 1.18, 2)
    if rng.random() < 0.5:
        placed[:, 0] *= -1
    angle = np.deg2rad(rng.normal(0, rotation))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[1, rng.normal(0, shear)], [0, 1]])
    placed = placed @ (turn @ slant).T
    placed += rng.normal(0, perspective * scale, (4, 2)) + np.clip(rng.normal(0, shift, 2), -0.25, 0.25)
    return homography(corners, (placed + 0.5) * CANVAS)


def homography(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The (3, 3) projective map that takes four (4, 2) points to four others.

    Each pair of points gives two linear equations in the eight unknown entries, the ninth being 1
    (Hartley and Zisserman, *Multiple View Geometry*, 4.1).
    """
    equations, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        equations += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.append(np.linalg.solve(np.array(equations), np.array(values)), 1.0).reshape(3, 3)
