"""Draws 32 x 32 images of the ten CIFAR-10 classes: no download, no photographs, no licence.

Each image is a drawing of polygons with random proportions and colours (`mammals`, `small_animals`, `vehicles`,
`ships`, `airplanes`), put in a random pose (`pen`) before a random scene (`scenes`), lit and photographed (`light`).
What tells the classes apart stays visible: a drawing lies within its picture, fills most of it one way, and stands out
from the scene. It is a stand-in that trains and fails like a small photographic data set; an accuracy on it says nothing
about CIFAR-10.

Image `i` of a split depends on the seed, the split and `i` alone, so 200 images are the first 200 of 1000. With the
locked numpy and Pillow it is the same on every machine.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

import numpy as np

from course_utils.data.drawn.airplanes import draw_airplane
from course_utils.data.drawn.light import (
    LEAST_CONTRAST,
    SIZE,
    cast_shadow,
    contrast,
    light_up,
    photograph,
    put_in_front,
)
from course_utils.data.drawn.mammals import draw_mammal
from course_utils.data.drawn.pen import Pen, random_pose
from course_utils.data.drawn.scenes import draw_scene
from course_utils.data.drawn.ships import draw_ship
from course_utils.data.drawn.small_animals import draw_bird, draw_frog
from course_utils.data.drawn.vehicles import draw_automobile, draw_truck

__all__ = ["CLASSES", "MAX_SEED", "draw_image", "draw_indexed", "draw_labels", "draw_split"]

DRAWINGS: dict[str, Callable[[np.random.Generator], Pen]] = {
    "airplane": draw_airplane,
    "automobile": draw_automobile,
    "bird": draw_bird,
    "cat": partial(draw_mammal, animal="cat"),
    "deer": partial(draw_mammal, animal="deer"),
    "dog": partial(draw_mammal, animal="dog"),
    "frog": draw_frog,
    "horse": partial(draw_mammal, animal="horse"),
    "ship": draw_ship,
    "truck": draw_truck,
}
CLASSES = tuple(DRAWINGS)
"""The class names in CIFAR-10's own order: a label is a position in this tuple."""
FLYING = ("airplane", "bird")
"""They bank; everything else stands nearly upright."""
SPLITS = ("train", "test")
MAX_SEED = 2**32 - 1
"""A seed is one 32-bit word of entropy, so that no two seeds can mean the same stream."""

CHUNK = 20  # images per task: enough to hide the cost of passing them between processes


def draw_image(rng: np.random.Generator, class_index: int) -> np.ndarray:
    """Draw one image of a class (0 to 9, a position in `CLASSES`). Returns (32, 32, 3) uint8 RGB."""
    name = CLASSES[class_index]
    drawing = DRAWINGS[name](rng).framed()
    pose = random_pose(rng, scale=rng.uniform(0.65, 0.95), rotation=22 if name in FLYING else 7)
    rgb, coverage = drawing.print(drawing.fitted(pose))
    colours = light_up(rng, rgb, coverage)
    scene = draw_scene(rng, name)
    while contrast(colours, scene, coverage) < LEAST_CONTRAST:
        scene = draw_scene(rng, name)
    scene = cast_shadow(rng, scene, coverage)
    return photograph(rng, put_in_front(rng, scene * (1 - coverage) + colours * coverage))


def draw_labels(split: str, count: int, seed: int) -> np.ndarray:
    """The labels (count,) int64 of a split: every ten images in a row hold each class once, in random order."""
    tens = range(-(-count // 10))
    # A trailing 1 keeps these streams apart from the images' own: SeedSequence pads short entropy with zeros.
    orders = [np.random.default_rng([seed, SPLITS.index(split), ten, 1]).permutation(10) for ten in tens]
    return np.concatenate([np.empty(0, np.int64), *orders])[:count].astype(np.int64)


def draw_indexed(split: str, index: int, class_index: int, seed: int) -> np.ndarray:
    """Image number `index` of a split, (32, 32, 3) uint8: its own random stream, whatever else is drawn."""
    return draw_image(np.random.default_rng([seed, SPLITS.index(split), index]), class_index)


def draw_split(
    split: str,
    count: int,
    seed: int,
    workers: int | None = None,
    progress: Callable[[int], object] = lambda images: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the first `count` images of a split.

    Args:
        split: "train" or "test": independent random streams.
        count: how many.
        seed: 0 to 2**32 - 1.
        workers: processes to draw with; by default one per core for more than a few hundred images.
            The result does not depend on it.
        progress: called with the number of images that have just been finished.

    Returns:
        images: (count, 32, 32, 3) uint8.
        labels: (count,) int64.
    """
    labels = draw_labels(split, count, seed)
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    if workers is None:
        # A fresh process needs about half a second to import what it draws with: a few images are quicker without.
        workers = 1 if count < 200 else min(_cores(), 8)
    starts = range(0, count, CHUNK)
    tasks = [(split, start, labels[start : start + CHUNK].tolist(), seed) for start in starts]
    for start, chunk in zip(starts, _run(tasks, workers), strict=True):
        images[start : start + len(chunk)] = chunk
        progress(len(chunk))
    return images, labels


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _draw_chunk(task: tuple[str, int, list[int], int]) -> np.ndarray:
    split, start, labels, seed = task
    return np.stack([draw_indexed(split, start + i, label, seed) for i, label in enumerate(labels)])


def _run(tasks: list[tuple[str, int, list[int], int]], workers: int) -> Iterator[np.ndarray]:
    """The drawn chunks in order, from this process or from several."""
    if workers <= 1 or len(tasks) <= 1:
        yield from map(_draw_chunk, tasks)
        return
    # Spawned, not forked: a process with threads (torch, Jupyter) must not be forked.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        with _without_ctrl_c():
            chunks = pool.map(_draw_chunk, tasks)
        yield from chunks
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes started in this block never hear Ctrl-C, which the terminal sends to all: this one stops them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
