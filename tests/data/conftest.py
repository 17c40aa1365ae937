"""Small data sets for the tests of the data."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_samples import BATCHES, FOLDER, meta_pickle, python2_pickle

from course_utils.data.build import build_cifar_mini
from course_utils.data.sources import Request


@pytest.fixture(scope="session")
def pixels() -> np.ndarray:
    """(60, 32, 32, 3) uint8: ten random images for each batch of a small archive, all different."""
    return np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)


@pytest.fixture(scope="session")
def members(pixels: np.ndarray) -> dict[str, bytes]:
    """The contents of a right, small archive: ten images, one of each class, in each batch."""
    contents = {name: python2_pickle(pixels[i * 10 : i * 10 + 10], list(range(10))) for i, name in enumerate(BATCHES)}
    return {f"{FOLDER}/{name}": data for name, data in contents.items()} | {f"{FOLDER}/batches.meta": meta_pickle()}


@pytest.fixture
def write_archive(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a .tar.gz of given contents, plus members described by TarInfo."""

    def write(contents: dict[str, bytes], *extra: tarfile.TarInfo, name: str = "small.tar.gz") -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w:gz", compresslevel=1) as tar:
            for info in extra:
                tar.addfile(info, io.BytesIO(b"x" * info.size) if info.size else None)
            for member, data in contents.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def write_npz(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a right .npz of 40 + 20 images, with some arrays replaced (None: left out)."""

    def write(**replaced: np.ndarray | None) -> Path:
        rng = np.random.default_rng(1)
        arrays = {
            "x_train": rng.integers(0, 256, (40, 32, 32, 3), np.uint8),
            "y_train": np.arange(40) % 10,
            "x_test": rng.integers(0, 256, (20, 32, 32, 3), np.uint8),
            "y_test": np.arange(20) % 10,
        } | replaced
        path = tmp_path / "small.npz"
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        return path

    return write


@pytest.fixture
def old_data(tmp_path: Path, write_npz: Callable[..., Path]) -> Path:
    """A folder data/cifar_mini that is already there and must survive what fails."""
    folder = tmp_path / "data" / "cifar_mini"
    build_cifar_mini(folder, str(write_npz()), Request(40, 20))
    return folder
