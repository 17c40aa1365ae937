"""The drawn images: equal everywhere, independent of how many are asked for, ten classes that can be told apart."""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from course_utils.data import drawn
from course_utils.data.images import CIFAR10_CLASSES

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
SEED = 2024
PER_CLASS = 4


def checksums() -> dict[str, str]:
    """Of the first images of each class, one checksum per class."""
    return {
        name: hashlib.sha256(
            b"".join(drawn.draw_indexed("train", i, label, SEED).tobytes() for i in range(PER_CLASS))
        ).hexdigest()
        for label, name in enumerate(drawn.CLASSES)
    }


def locked_versions_are_installed() -> bool:
    dependencies = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    return all(f"{name}=={version(name)}" in dependencies for name in ("numpy", "pillow"))


def test_the_drawings_are_the_recorded_ones():
    """If you have changed them on purpose, run this file as a script: it writes the new checksums."""
    recorded = json.loads((HERE / "drawn_checksums.json").read_text())
    differing = [name for name, value in checksums().items() if recorded[name] != value]
    if differing and not locked_versions_are_installed():
        warnings.warn(
            f"drawn images of {differing} differ: numpy {version('numpy')}, pillow {version('pillow')}", stacklevel=1
        )
        return
    assert not differing


def test_another_processor_draws_the_same_images():
    """NumPy and OpenBLAS are told to work as on an old processor: other last bits in between, the same images."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not found:
        pytest.skip("NumPy uses no optional processor features here, so there are none to switch off")
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(found), "OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, __file__, "--print"],
        env={**os.environ, **plain, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) == checksums()


def test_an_image_does_not_depend_on_how_many_are_drawn():
    few, few_labels = drawn.draw_split("train", 20, SEED, workers=1)
    more, more_labels = drawn.draw_split("train", 40, SEED, workers=1)
    assert np.array_equal(few, more[:20])
    assert np.array_equal(few_labels, more_labels[:20])


def test_an_image_does_not_depend_on_the_number_of_processes():
    alone, _ = drawn.draw_split("test", 40, SEED, workers=1)
    together, _ = drawn.draw_split("test", 40, SEED, workers=2)
    assert np.array_equal(alone, together)


def test_the_global_random_state_does_not_matter():
    np.random.seed(1)
    first = drawn.draw_indexed("train", 3, 4, SEED)
    np.random.seed(2)
    assert np.array_equal(first, drawn.draw_indexed("train", 3, 4, SEED))


@pytest.mark.parametrize(
    "changed", [("test", 3, 4, SEED), ("train", 5, 4, SEED), ("train", 3, 6, SEED), ("train", 3, 4, 1)]
)
def test_split_index_class_and_seed_each_make_another_image(changed):
    assert not np.array_equal(drawn.draw_indexed("train", 3, 4, SEED), drawn.draw_indexed(*changed))


def test_every_ten_labels_hold_each_class_once():
    labels = drawn.draw_labels("train", 200, SEED)
    for start in range(0, 200, 10):
        assert sorted(labels[start : start + 10]) == list(range(10))
    assert labels.dtype == np.int64


def test_no_image_is_drawn_twice_in_train_and_test():
    images = np.concatenate([drawn.draw_split(split, 20, SEED, workers=1)[0] for split in ("train", "test")])
    assert len({image.tobytes() for image in images}) == 40


def test_the_classes_are_in_the_order_of_cifar10():
    assert drawn.CLASSES == CIFAR10_CLASSES


def test_drawn_images_are_32_by_32_uint8_neither_flat_nor_dark():
    images, _ = drawn.draw_split("train", 40, SEED, workers=1)
    assert images.shape == (40, 32, 32, 3)
    assert images.dtype == np.uint8
    assert (images.reshape(40, -1).std(axis=1) > 5).all()
    assert 90 < images.mean() < 160


def test_a_drawing_covers_a_fair_part_of_its_image():
    """The drawing alone, before any scene, must differ between classes and cover a fair part of the image."""
    from course_utils.data.drawn.pen import random_pose

    for name, draw in drawn.DRAWINGS.items():
        cover = []
        for i in range(10):
            rng = np.random.default_rng([SEED, i])
            _, coverage = draw(rng).print(random_pose(rng, scale=1.0, rotation=7))
            assert 0 <= coverage.min() <= coverage.max() <= 1
            cover.append(coverage.mean())
        assert 0.08 < np.mean(cover) < 0.7, name


def test_no_drawing_is_cut_off_by_the_edge_of_its_image():
    """A class must not hang on a head that lies off the picture."""
    from course_utils.data.drawn.pen import CANVAS, random_pose

    for name, draw in drawn.DRAWINGS.items():
        for i in range(10):
            rng = np.random.default_rng([SEED, i])
            drawing = draw(rng).framed()
            pose = drawing.fitted(random_pose(rng, scale=0.8, rotation=7, shift=0.5))
            low, high = drawing.bounds(pose)
            assert (low > -1e-6).all(), name
            assert (high < CANVAS + 1e-6).all(), name


def test_no_drawing_is_lost_in_its_scene():
    """A black horse before a black forest teaches nothing."""
    from course_utils.data.drawn.light import LEAST_CONTRAST, contrast

    scene, coverage = np.full((4, 4, 3), 60.0), np.zeros((4, 4, 1))
    coverage[:2] = 1
    half_hidden = np.full((4, 4, 3), 200.0)
    half_hidden[0] = 65.0
    assert contrast(half_hidden, scene, coverage) < LEAST_CONTRAST
    assert contrast(np.full((4, 4, 3), 200.0), scene, coverage) == 140


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(json.dumps(checksums()))
    else:
        (HERE / "drawn_checksums.json").write_text(json.dumps(checksums(), indent=2) + "\n")
