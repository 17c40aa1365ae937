"""Where images come from: drawn, CIFAR-10, a local archive, a folder of pictures, an .npz, all behind `read_source`."""

import hashlib
import os
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from course_utils.data import archive, drawn
from course_utils.data.images import (
    CIFAR10_CLASSES,
    IMAGE_SHAPE,
    N_CLASSES,
    SIDE,
    DataError,
    LabelledImages,
    SourceData,
    check_classes,
    check_images,
    choose_balanced,
)

SPLITS = ("train", "test")
PICTURE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
MAX_NPZ_MEMBER = 512 * 2**20  # CIFAR-10's 60000 images have 184 MB


@dataclass(frozen=True)
class Request:
    """What is wanted of a source.

    Attributes:
        n_train: training images, a multiple of ten.
        n_test: test images, a multiple of ten.
        seed: decides what is drawn, or which images are taken from a larger set.
        require_official: refuse an archive whose checksum is not that of the official CIFAR-10.
        download_folder: where a download is kept.
        progress: called with the number of images that have just been made.
    """

    n_train: int = 1000
    n_test: int = 1000
    seed: int = 0
    require_official: bool = False
    download_folder: Path = Path("download")
    progress: Callable[[int], object] = lambda images: None

    def __post_init__(self) -> None:
        for option, count in (("--train", self.n_train), ("--test", self.n_test)):
            if count < N_CLASSES or count % N_CLASSES:
                raise DataError(f"{option} {count}: a multiple of ten is needed, for ten classes in equal parts.")
        if not 0 <= self.seed <= drawn.MAX_SEED:
            raise DataError(f"--seed {self.seed}: a whole number from 0 to {drawn.MAX_SEED} is needed.")

    def count(self, split: str) -> int:
        """The images wanted of "train" or "test"."""
        return self.n_train if split == "train" else self.n_test

    def chance(self, split: str) -> np.random.Generator:
        """The random stream that chooses the images of a split. The 3 sets it apart from drawing and distorting."""
        return np.random.default_rng([self.seed, 3, SPLITS.index(split)])


def read_source(source: str, request: Request) -> SourceData:
    """The images of a source, in equal parts of ten classes.

    Args:
        source: "drawn", "cifar10", or the path of an archive (.tar.gz), of an .npz file or of a folder.
        request: how many images, and which seed.

    Raises:
        DataError: the source is not there or cannot be used; the message says why and what to do.
        OSError: something could not be read.
    """
    if source in KEYWORDS:
        return KEYWORDS[source](request)
    path = Path(source).expanduser()
    if path.is_dir():
        return from_folder(path, request)
    if not path.is_file():
        raise DataError(f"no source {source!r}: give drawn, cifar10, or the path of a .tar.gz, an .npz or a folder.")
    if path.name.endswith((".tar.gz", ".tgz")):
        return from_archive(path, request)
    if path.suffix == ".npz":
        return from_npz(path, request)
    raise DataError(f"{path.name}: a .tar.gz archive, an .npz file or a folder is needed.")


def from_drawing(request: Request) -> SourceData:
    """Images drawn by `course_utils.data.drawn`."""
    train, test = (
        LabelledImages(*drawn.draw_split(split, request.count(split), request.seed, progress=request.progress))
        for split in SPLITS
    )
    return SourceData(train, test, drawn.CLASSES, "drawn images (not photographs)", {"name": "drawn"})


def from_cifar10(request: Request) -> SourceData:
    """The real CIFAR-10, downloaded once through torchvision and checked against its official checksum."""
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_url

    target = request.download_folder / CIFAR10.filename
    if not target.is_file() or archive.file_md5(target) != archive.OFFICIAL_MD5:
        request.download_folder.mkdir(parents=True, exist_ok=True)
        try:
            # torchvision shows a bar on stderr; what it prints besides is of no use to the reader.
            with tempfile.TemporaryDirectory(dir=request.download_folder) as folder, redirect_stdout(StringIO()):
                download_url(CIFAR10.url, folder, filename=CIFAR10.filename, md5=archive.OFFICIAL_MD5)
                os.replace(Path(folder) / CIFAR10.filename, target)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"CIFAR-10 could not be downloaded from {CIFAR10.url} ({str(error)[:100]}). Without a network, give "
                "the path of cifar-10-python.tar.gz as the source, or use drawn."
            ) from error
        finally:
            with suppress(OSError):  # not empty after a download
                request.download_folder.rmdir()
    return from_archive(target, request)


def from_archive(path: Path, request: Request) -> SourceData:
    """A local archive in the layout of CIFAR-10's official one."""
    md5 = archive.file_md5(path)
    official = md5 == archive.OFFICIAL_MD5
    if request.require_official and not official:
        raise DataError(f"{path.name} has the MD5 checksum {md5}; CIFAR-10's own is {archive.OFFICIAL_MD5}.")
    train, test, classes = archive.read_archive(path)
    return SourceData(
        _choose(train, "train", classes, request, path.name),
        _choose(test, "test", classes, request, path.name),
        classes,
        "CIFAR-10 photographs" if official else f"images from {path.name} (not the official archive)",
        {"name": "cifar10" if official else "archive", "file": path.name, "md5": md5, "official": official},
        () if official else (f"{path.name} is not the official CIFAR-10 archive (its MD5 checksum is {md5}).",),
    )


def from_npz(path: Path, request: Request) -> SourceData:
    """An .npz file with x_train, y_train, x_test, y_test and perhaps classes. Pickled objects are refused."""
    try:
        with zipfile.ZipFile(path) as file:
            for member in file.infolist():
                if member.file_size > MAX_NPZ_MEMBER:
                    raise DataError(
                        f"{path.name}: {member.filename[:40]} unpacks to {member.file_size} bytes, too many."
                    )
        with np.load(path, allow_pickle=False) as file:
            wanted = [f"{kind}_{split}" for split in SPLITS for kind in "xy"]
            missing = [name for name in wanted if name not in file]
            if missing:
                raise DataError(f"{path.name} has no array {missing[0]}; it needs {', '.join(wanted)}.")
            arrays = {name: file[name] for name in wanted}
            names = file.get("classes")
    except (ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path.name} cannot be read as .npz without running code from it ({str(error)[:100]})."
        ) from error
    if names is not None and (names.dtype.kind != "U" or names.ndim != 1):
        raise DataError(f"{path.name}: classes is {names.dtype} {names.shape}; ten texts are needed.")
    classes = CIFAR10_CLASSES if names is None else check_classes(names.tolist(), path.name)
    train, test = (check_images(arrays[f"x_{s}"], arrays[f"y_{s}"], f"{path.name}, {s}") for s in SPLITS)
    return SourceData(
        _choose(train, "train", classes, request, path.name),
        _choose(test, "test", classes, request, path.name),
        classes,
        f"images from {path.name}",
        {"name": "npz", "file": path.name, "sha256": file_sha256(path), "class_names_given": names is not None},
    )


def from_folder(path: Path, request: Request) -> SourceData:
    """A folder of pictures: one subfolder per class, at once or below `train` and `test`.

    Without `train` and `test` the pictures of each class are divided, so that none is in both. Pictures of another
    size are cut to the square in their middle and resized.
    """
    split_folders = all((path / split).is_dir() for split in SPLITS)
    listing = {split: _list_pictures(path / split if split_folders else path) for split in SPLITS}
    classes = _folder_classes(listing["train"], path.name)
    if set(classes) != set(listing["test"]):
        raise DataError(f"{path.name}: train and test have different classes.")
    if not split_folders:
        listing = _divide(listing["train"], request)
    checksum, resized = hashlib.sha256(), 0
    parts = {}
    for split in SPLITS:
        files = [(file, label) for label, name in enumerate(classes) for file in listing[split][name]]
        labels = np.array([label for _, label in files], np.int64)
        chosen = choose_balanced(labels, request.count(split), classes, request.chance(split), f"{path.name}, {split}")
        images = np.empty((len(chosen), *IMAGE_SHAPE), np.uint8)
        for i, position in enumerate(chosen):
            file = files[position][0]
            images[i], changed = _read_picture(file)
            resized += changed
            checksum.update(f"{split}/{labels[position]}/".encode() + images[i].tobytes())
            request.progress(1)
        parts[split] = LabelledImages(images, labels[chosen])
    return SourceData(
        parts["train"],
        parts["test"],
        classes,
        f"images from the folder {path.resolve().name}",
        {
            "name": "folder",
            "folder": path.resolve().name,
            "sha256_of_pixels": checksum.hexdigest(),
            "divided": not split_folders,
            "resized": resized,
            "resizing": "cut to the square in the middle, then resized to 32 x 32 (Pillow, Lanczos)"
            if resized
            else None,
        },
        (f"{resized} pictures were cut to a square and resized to 32 x 32.",) if resized else (),
    )


KEYWORDS: dict[str, Callable[[Request], SourceData]] = {"drawn": from_drawing, "cifar10": from_cifar10}


def file_sha256(path: Path) -> str:
    """The SHA-256 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _choose(part: LabelledImages, split: str, classes: tuple[str, ...], request: Request, where: str) -> LabelledImages:
    where = f"{where}, {split}"
    chosen = choose_balanced(part.labels, request.count(split), classes, request.chance(split), where)
    return LabelledImages(part.images[chosen], part.labels[chosen])


def _list_pictures(folder: Path) -> dict[str, list[Path]]:
    """The pictures of every subfolder, sorted by name: the order of a folder differs between file systems."""
    found = {}
    for sub in sorted(folder.iterdir()):
        if sub.is_dir() and not sub.name.startswith("."):
            files = (f for f in sub.iterdir() if f.suffix.lower() in PICTURE_ENDINGS and not f.name.startswith("."))
            found[sub.name] = sorted(file for file in files if file.is_file())
    return found


def _folder_classes(listing: dict[str, list[Path]], where: str) -> tuple[str, ...]:
    """CIFAR-10's order if these are its classes, otherwise the alphabet's."""
    if set(listing) == set(CIFAR10_CLASSES):
        return CIFAR10_CLASSES
    return check_classes(sorted(listing), f"the folder {where} (a subfolder per class)")


def _divide(pictures: dict[str, list[Path]], request: Request) -> dict[str, dict[str, list[Path]]]:
    """Each class divided between train and test: first what the training images need, then the rest."""
    rng = np.random.default_rng([request.seed, 4])
    each = request.n_train // N_CLASSES
    parts: dict[str, dict[str, list[Path]]] = {split: {} for split in SPLITS}
    for name in sorted(pictures):
        shuffled = [pictures[name][i] for i in rng.permutation(len(pictures[name]))]
        parts["train"][name], parts["test"][name] = shuffled[:each], shuffled[each:]
    return parts


def _read_picture(path: Path) -> tuple[np.ndarray, bool]:
    """A picture as (32, 32, 3) uint8 RGB, and whether it had another size."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                upright = ImageOps.exif_transpose(picture)
                changed = upright.size != (SIDE, SIDE)
                rgb = upright.convert("RGB")
                square = ImageOps.fit(rgb, (SIDE, SIDE), Image.Resampling.LANCZOS) if changed else rgb
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{path.parent.name}/{path.name} cannot be read as a picture ({str(error)[:80]}).") from error
    return np.asarray(square), changed
