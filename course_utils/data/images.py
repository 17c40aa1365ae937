"""What every source of images has in common: ten classes, labelled images, equal parts of each class."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from course_utils.errors import CourseError

SIDE = 32
IMAGE_SHAPE = (SIDE, SIDE, 3)
N_CLASSES = 10
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class DataError(CourseError):
    """Data that cannot be used or is not there. The message says what is wrong and what to do."""


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, 32, 32, 3) uint8 RGB and their labels (N,) int64, 0 to 9."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class SourceData:
    """The images that a source gave, and what `meta.json` says about them.

    Attributes:
        train: training images, equal parts of each class.
        test: test images, equal parts of each class.
        classes: the ten class names; a label is a position in them.
        kind: what the images are, to be read after a number: "drawn images (not photographs)".
        detail: more about the source, as plain data: file name, checksums, notes.
        notices: sentences that the user should read.
    """

    train: LabelledImages
    test: LabelledImages
    classes: tuple[str, ...]
    kind: str
    detail: dict[str, Any]
    notices: tuple[str, ...] = field(default=())


def check_classes(names: Sequence[str], where: str) -> tuple[str, ...]:
    """The names as a tuple if they are ten different, printable, non-empty words; DataError otherwise."""
    names = tuple(str(name) for name in names)
    if len(names) != N_CLASSES or len(set(names)) != N_CLASSES:
        raise DataError(f"{where} has {len(set(names))} different classes ({len(names)} names); CIFAR-mini needs ten.")
    for name in names:
        if not name.strip() or not name.isprintable() or len(name) > 100:
            raise DataError(f"{where} has a class name that cannot be used: {name[:40]!r}.")
    return names


def check_images(images: np.ndarray, labels: np.ndarray, where: str) -> LabelledImages:
    """Images and labels in the one form that the course uses; DataError if shape, dtype or range is another."""
    if images.dtype != np.uint8:
        raise DataError(f"{where}: the images are {images.dtype}; uint8 (0 to 255) is needed.")
    if images.ndim != 4 or images.shape[1:] != IMAGE_SHAPE:
        raise DataError(f"{where}: the images have shape {images.shape}; (N, 32, 32, 3) is needed.")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where}: the labels are {labels.dtype} {labels.shape}; whole numbers of shape (N,) are needed."
        )
    if len(labels) != len(images):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels.")
    if len(labels) and (labels.min() < 0 or labels.max() >= N_CLASSES):
        raise DataError(f"{where}: labels from {labels.min()} to {labels.max()}; 0 to {N_CLASSES - 1} are needed.")
    return LabelledImages(images, labels.astype(np.int64))


def choose_balanced(
    labels: np.ndarray, count: int, classes: Sequence[str], rng: np.random.Generator, where: str
) -> np.ndarray:
    """Positions (count,) of as many items of each class, drawn without replacement, in random order.

    Raises DataError that names the class of which there are too few.
    """
    each = count // N_CLASSES
    chosen = []
    for label, name in enumerate(classes):
        positions = np.flatnonzero(labels == label)
        if len(positions) < each:
            raise DataError(
                f"{where}: class {name!r} has {len(positions)} images, {each} are needed for {count} in equal parts. "
                "Ask for fewer (--train, --test) or add some."
            )
        chosen.append(rng.choice(positions, each, replace=False))
    return rng.permutation(np.concatenate(chosen)).astype(np.int64)
