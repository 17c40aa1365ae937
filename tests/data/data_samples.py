"""What the tests of the data make their samples from."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from course_utils.data.images import CIFAR10_CLASSES

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = "cifar-10-batches-py"
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def python2_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 and an old NumPy wrote it: byte strings for keys and values, protocol 2."""
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).tobytes()
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
    array += b"K" + bytes([len(images)]) + b"M\x00\x0c\x86" + dtype + b"\x89"
    array += b"T" + len(rows).to_bytes(4, "little") + rows + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + array + b"u."


def meta_pickle(names: tuple[str, ...] = CIFAR10_CLASSES) -> bytes:
    return pickle.dumps({b"label_names": [name.encode() for name in names]}, protocol=2)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def real_data(name: str) -> Path:
    """A file of real images that the project does not ship; skips the test where it is absent."""
    folder = Path(os.environ.get("COURSE_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not (folder / name).is_file():
        pytest.skip(f"no real images: {name} is not in {folder} (COURSE_SHARED_DATA names another folder)")
    return folder / name
