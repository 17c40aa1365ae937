"""Reads CIFAR-mini: images through np.memmap, so that opening costs nothing and pages are read when touched."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from course_utils.data.images import IMAGE_SHAPE, N_CLASSES, DataError
from course_utils.data.location import cifar_mini_folder
from course_utils.graded import being_graded

__all__ = ["CifarMiniArrays", "load_cifar_mini", "load_unlabelled"]

FORMAT = "cifar-mini"
FORMAT_VERSION = 1
META_FILE = "meta.json"
CLASS_NAMES_FILE = "class_names.txt"
HELD_BACK = (
    "the labels of the test images are held back from notebooks: grading asks for them. Hold a part of the training "
    "images back yourself; load_unlabelled('test') reads the test images."
)
REPAIR = "Run `make build-data` in the course's folder (or `python -m course_utils build-data`)."


def image_file(split: str) -> str:
    """The name of the file with a split's images."""
    return f"{split}_images.bin"


def label_file(split: str) -> str:
    """The name of the file with a split's labels."""
    return f"{split}_labels.bin"


@dataclass(frozen=True)
class CifarMiniArrays:
    """One split of CIFAR-mini.

    Attributes:
        images: (N, 32, 32, 3) uint8 RGB, a read-only np.memmap of the file.
        labels: (N,) int64, 0 to 9, in memory.
        classes: the ten names; `classes[labels[i]]` is the name of image i.
        meta: what meta.json holds, with "mean" and "std" of the training images per channel, pixels from 0 to 1.
        split: "train" or "test".
    """

    images: np.memmap
    labels: np.ndarray
    classes: tuple[str, ...]
    meta: dict[str, Any]
    split: str

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        """What these images are, in a few words: "1000 drawn images (not photographs)"."""
        distorted = self.split == "train" and self.meta["distortions"]["applied_to"] == "train"
        return f"{len(self)} {self.meta['kind']}" + (f", with {self.meta['distortions']['text']}" if distorted else "")


def load_cifar_mini(
    split: Literal["train", "test"] = "train", root: str | os.PathLike[str] | None = None, verify: bool = False
) -> CifarMiniArrays:
    """Open one split of CIFAR-mini.

    Args:
        split: "train" or "test".
        root: the folder that holds `cifar_mini`; by default the variable COURSE_DATA, else the course's `data`.
        verify: also compare every file's SHA-256 checksum with meta.json (6 MB are read for 2000 images).

    Returns:
        The images, labels, class names and meta data.

    Raises:
        ValueError: no such split.
        DataError: the data is missing or damaged; the message names the command that makes it. Or the labels of the
            test images were held back from this edition.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split is 'train' or 'test', not {split!r}")
    folder = cifar_mini_folder(root)
    meta = _read_meta(folder)
    count = meta["counts"][split]
    _check_files(folder, meta, verify)
    if label_file(split) not in meta["files"]:
        raise DataError(HELD_BACK)
    images = np.memmap(folder / image_file(split), np.uint8, mode="r", shape=(count, *IMAGE_SHAPE))
    try:
        labels = np.fromfile(folder / label_file(split), np.uint8).astype(np.int64)
    except OSError:
        labels = np.empty(0, np.int64)
    if len(labels) != count:  # checked before, but for test labels that grading hides
        raise DataError(HELD_BACK)
    if labels.max() >= N_CLASSES:
        raise DataError(f"{folder / label_file(split)} is damaged: it holds the label {labels.max()}. {REPAIR}")
    return CifarMiniArrays(images, labels, tuple(meta["class_names"]), meta, split)


def load_unlabelled(split: Literal["train", "test"], root: str | os.PathLike[str] | None = None) -> np.memmap:
    """The images of one split alone: their labels are not read, and need not be there.

    Returns:
        (N, 32, 32, 3) uint8 RGB, a read-only np.memmap.

    Raises:
        DataError: the images are missing or damaged; the message names the command that makes them.
    """
    folder = cifar_mini_folder(root)
    shape = (_read_meta(folder)["counts"][split], *IMAGE_SHAPE)
    path = folder / image_file(split)
    if not path.is_file() or path.stat().st_size != np.prod(shape):
        raise DataError(f"{path} is missing or has another size than meta.json says. {REPAIR}")
    return np.memmap(path, np.uint8, mode="r", shape=shape)


def _read_meta(folder: Path) -> dict[str, Any]:
    """meta.json, with everything that is read of it checked."""
    path = folder / META_FILE
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"no images in {folder}. {REPAIR}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). {REPAIR}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or meta.get("format_version") != FORMAT_VERSION:
        raise DataError(f"{path} is not of {FORMAT} version {FORMAT_VERSION}, which this course reads. {REPAIR}")
    try:
        whole = (
            all(type(meta["counts"][split]) is int and meta["counts"][split] > 0 for split in ("train", "test"))
            and len(meta["class_names"]) == N_CLASSES
            and len(meta["mean"]) == len(meta["std"]) == IMAGE_SHAPE[-1]
            and {"text", "applied_to"} <= set(meta["distortions"])
            and isinstance(meta["kind"], str)
            and all({"bytes", "sha256"} <= set(entry) for entry in meta["files"].values())
        )
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise DataError(f"{path} is damaged: entries are missing. {REPAIR}")
    return meta


def _check_files(folder: Path, meta: dict[str, Any], verify: bool) -> None:
    """Every file there with its size, and with its checksum on request."""
    sizes = {CLASS_NAMES_FILE: meta["files"].get(CLASS_NAMES_FILE, {}).get("bytes")}
    for split in ("train", "test"):
        sizes[image_file(split)] = meta["counts"][split] * int(np.prod(IMAGE_SHAPE))
        # An edition for students may lack the test labels, and while a notebook is graded they are hidden from it.
        if split == "train" or (label_file(split) in meta["files"] and not being_graded()):
            sizes[label_file(split)] = meta["counts"][split]
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing. {REPAIR}")
        if path.stat().st_size != size:
            raise DataError(f"{path} has {path.stat().st_size} bytes instead of {size}. {REPAIR}")
        if verify:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != meta["files"].get(name, {}).get("sha256"):
                raise DataError(f"{path} has changed since it was made (its checksum differs). {REPAIR}")
