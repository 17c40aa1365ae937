"""Writes CIFAR-mini: raw files, and a meta.json that says what they are."""

import errno
import hashlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from course_utils.data.distort import Distortions
from course_utils.data.images import IMAGE_SHAPE, N_CLASSES, DataError, LabelledImages, SourceData
from course_utils.data.reading import CLASS_NAMES_FILE, FORMAT, FORMAT_VERSION, META_FILE, image_file, label_file
from course_utils.data.sources import Request, read_source
from course_utils.files import atomic_write_json, locked_folder, replace_folder

__all__ = ["build_cifar_mini", "channel_statistics"]


def build_cifar_mini(
    folder: Path,
    source: str = "drawn",
    request: Request | None = None,
    distortions: Distortions | None = None,
    waiting: Callable[[], object] = lambda: None,
    still_needed: Callable[[], bool] = lambda: True,
) -> SourceData | None:
    """Make CIFAR-mini in `folder`, in place of what is there; on any failure what is there stays whole.

    Args:
        folder: for example data/cifar_mini. Its parent is made if need be.
        source: see `read_source`.
        request: how many images and which seed.
        distortions: for the training images; none by default.
        waiting: called once if another build of the same folder has to be waited for.
        still_needed: asked when this build's turn has come.

    Returns:
        What was written, or None if it was not needed any more.

    Raises:
        DataError: the source cannot be used, or the disk is full.
        OSError: something could not be read or written.
    """
    request, distortions = request or Request(), distortions or Distortions()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder.parent, waiting) as alone:
        if not still_needed():
            return None
        data = read_source(source, request)
        train = LabelledImages(distortions.apply(data.train.images, request.seed), data.train.labels)
        try:
            with replace_folder(folder, alone) as fresh:
                _write(fresh, data, train, request, distortions)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            need = (data.train.images.nbytes + data.test.images.nbytes) / 1e6
            raise DataError(
                f"the disk is full: {need:.0f} MB are needed in {folder.parent}. Nothing was changed."
            ) from error
    return data


def channel_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over all pixels, on a scale from 0 to 1.

    The sums are of whole numbers, image by image, so they are exact, the same everywhere, and need no float copy.

    Args:
        images: (N, 32, 32, 3) uint8.

    Returns:
        Two lists of three: the means, and the standard deviations (of all pixels, so divided by their number).
    """
    total, squares = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for image in images:
        wide = image.reshape(-1, 3).astype(np.int64)
        total += wide.sum(axis=0)
        squares += (wide * wide).sum(axis=0)
    pixels = images[..., 0].size
    mean = total / pixels
    return (mean / 255).tolist(), (np.sqrt(squares / pixels - mean * mean) / 255).tolist()


def _write(folder: Path, data: SourceData, train: LabelledImages, request: Request, distortions: Distortions) -> None:
    files: dict[str, dict[str, Any]] = {}

    def put(name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    for split, part in (("train", train), ("test", data.test)):
        put(image_file(split), np.ascontiguousarray(part.images).tobytes())
        put(label_file(split), part.labels.astype(np.uint8).tobytes())
    put(CLASS_NAMES_FILE, "".join(f"{name}\n" for name in data.classes).encode())
    mean, std = channel_statistics(train.images)
    meta = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": data.kind,
        "source": data.detail,
        "seed": request.seed,
        "counts": {"train": len(train.labels), "test": len(data.test.labels), "classes": N_CLASSES},
        "image_shape": list(IMAGE_SHAPE),
        "image_dtype": "uint8",
        "label_dtype": "uint8",
        "layout": "raw C-order bytes: image, row, column, channel (red, green, blue)",
        "class_names": list(data.classes),
        "mean": mean,
        "std": std,
        "statistics_of": "training images as written, pixels from 0 to 1, per channel",
        "distortions": {
            "noise": distortions.noise,
            "crop": distortions.crop,
            "jitter": distortions.jitter,
            "text": str(distortions),
            "applied_to": "train" if distortions else None,
        },
        "files": files,
        "made_with": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
    }
    atomic_write_json(folder / META_FILE, meta)
