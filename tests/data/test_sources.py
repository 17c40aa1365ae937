"""Sources: each gives balanced images of ten classes, or says what is wrong."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_samples import real_data
from PIL import Image

from course_utils.data import archive
from course_utils.data.distort import Distortions
from course_utils.data.images import CIFAR10_CLASSES, DataError
from course_utils.data.sources import Request, read_source


def counts(labels: np.ndarray) -> list[int]:
    return np.bincount(labels, minlength=10).tolist()


def picture(
    path: Path, size: tuple[int, int] = (32, 32), colour: tuple[int, ...] = (200, 30, 90), mode: str = "RGB"
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode == "RGB" else 100).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four pictures in each of ten classes; the colour tells the class (red) and the picture (green)."""
    root = tmp_path / "pictures"
    for label, name in enumerate(sorted(CIFAR10_CLASSES, reverse=True)):
        for i in range(4):
            picture(root / name / f"{i}.png", colour=(label, i, 0))
    return root


# ------------------------------------------------------------------------------------------------ what is asked


@pytest.mark.parametrize("wrong", [{"n_train": 15}, {"n_test": 0}, {"n_train": -10}, {"seed": -1}, {"seed": 2**32}])
def test_counts_that_are_no_multiple_of_ten_and_wrong_seeds_are_refused(wrong):
    with pytest.raises(DataError, match="needed"):
        Request(**wrong)


@pytest.mark.parametrize("source", ["drwan", "no/such/file.npz", ""])
def test_a_source_that_is_not_there_is_answered_with_the_choices(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if source == "":
        source = str(tmp_path / "empty.txt")
        Path(source).touch()
    with pytest.raises(DataError, match=r"\.npz"):
        read_source(source, Request(10, 10))


def test_drawn_images_are_said_to_be_no_photographs():
    data = read_source("drawn", Request(20, 10, seed=3))
    assert data.kind == "drawn images (not photographs)"
    assert (counts(data.train.labels), counts(data.test.labels)) == ([2] * 10, [1] * 10)


# ------------------------------------------------------------------------------------------------------ archives


def test_an_archive_with_another_checksum_is_used_with_a_notice(write_archive, members):
    path = write_archive(members)
    data = read_source(str(path), Request(20, 10))
    assert data.detail["official"] is False
    assert data.detail["md5"] == hashlib.md5(path.read_bytes()).hexdigest()
    assert "not the official" in data.notices[0]
    assert "not the official" in data.kind


def test_an_archive_with_another_checksum_is_refused_on_request(write_archive, members):
    with pytest.raises(DataError, match=archive.OFFICIAL_MD5):
        read_source(str(write_archive(members)), Request(20, 10, require_official=True))


def test_the_official_archive_is_called_cifar10(write_archive, members, monkeypatch):
    path = write_archive(members)
    monkeypatch.setattr(archive, "OFFICIAL_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    data = read_source(str(path), Request(20, 10, require_official=True))
    assert (data.kind, data.detail["official"], data.notices) == ("CIFAR-10 photographs", True, ())


def test_a_class_with_too_few_images_is_named(write_archive, members):
    with pytest.raises(DataError, match=r"train: class 'airplane' has 5 images, 6 are needed for 60"):
        read_source(str(write_archive(members)), Request(60, 10))


def test_the_images_chosen_depend_on_the_seed_alone_and_none_is_taken_twice(write_archive, members):
    path = str(write_archive(members))
    first, again, other = (read_source(path, Request(20, 10, seed=seed)).train.images for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len({image.tobytes() for image in first}) == 20


def fake_download(monkeypatch, fail: Exception | None = None, source: Path | None = None) -> list[str]:
    """Replace torchvision's download by a copy of a file or by a failure."""
    utils = pytest.importorskip("torchvision.datasets.utils", reason="torchvision is not installed")
    urls = []

    def download_url(url: str, root: str, filename: str, md5: str) -> None:
        urls.append(url)
        (Path(root) / filename).write_bytes(b"half of it")
        if fail:
            raise fail
        shutil.copy(source, Path(root) / filename)

    monkeypatch.setattr(utils, "download_url", download_url)
    return urls


def test_cifar10_is_downloaded_once_and_kept(write_archive, members, monkeypatch, tmp_path):
    path = write_archive(members)
    monkeypatch.setattr(archive, "OFFICIAL_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    urls = fake_download(monkeypatch, source=path)
    request = Request(20, 10, download_folder=tmp_path / "download")
    first, second = read_source("cifar10", request), read_source("cifar10", request)
    assert len(urls) == 1 and urls[0].startswith("https://")
    assert np.array_equal(first.train.images, second.train.images)
    assert [p.name for p in (tmp_path / "download").iterdir()] == ["cifar-10-python.tar.gz"]


@pytest.mark.parametrize("fail", [OSError("no network"), RuntimeError("File not found or corrupted.")])
def test_a_failed_download_leaves_nothing_and_says_what_else_can_be_done(monkeypatch, tmp_path, fail):
    fake_download(monkeypatch, fail)
    with pytest.raises(DataError, match=r"could not be downloaded.*drawn"):
        read_source("cifar10", Request(20, 10, download_folder=tmp_path / "download"))
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------------------- npz


def test_an_npz_gives_its_own_images_and_class_names(write_npz):
    names = [f"class {i}" for i in range(10)]
    path = write_npz(classes=np.array(names))
    data = read_source(str(path), Request(20, 10))
    originals = {image.tobytes(): label % 10 for label, image in enumerate(np.load(path)["x_train"])}
    assert [originals[image.tobytes()] for image in data.train.images] == data.train.labels.tolist()
    assert data.classes == tuple(names)


@pytest.mark.parametrize(
    "replaced, reason",
    [
        ({"x_train": np.array([object()] * 40)}, "without running code"),
        ({"y_test": np.array([None] * 20)}, "without running code"),
        ({"classes": np.array(["a"] * 10, dtype=object)}, "without running code"),
        ({"classes": np.arange(10)}, "ten texts"),
        ({"classes": np.array(["a"] * 10)}, "ten"),
        ({"x_train": None}, "x_train"),
        ({"y_test": None}, "y_test"),
        ({"x_train": np.zeros((40, 32, 32, 3), np.float32)}, "uint8"),
        ({"x_train": np.zeros((40, 3, 32, 32), np.uint8)}, r"\(N, 32, 32, 3\)"),
        ({"x_test": np.zeros((20, 28, 28), np.uint8)}, r"\(N, 32, 32, 3\)"),
        ({"y_train": np.arange(40) % 11}, "0 to 9"),
        ({"y_train": np.arange(40) % 10 - 1}, "0 to 9"),
        ({"y_train": np.arange(39) % 10}, "40 images but 39 labels"),
        ({"y_train": np.linspace(0, 9, 40)}, "whole numbers"),
        ({"y_train": np.zeros(40, np.int64)}, "class 'automobile' has 0 images"),
    ],
)
def test_a_wrong_npz_is_refused_with_the_reason(write_npz, replaced, reason):
    with pytest.raises(DataError, match=reason):
        read_source(str(write_npz(**replaced)), Request(20, 10))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"no zip"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz"):
        read_source(str(path), Request(10, 10))


def test_a_cut_off_npz_is_refused(write_npz):
    path = write_npz()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"small\.npz"):
        read_source(str(path), Request(10, 10))


def test_an_npz_array_that_claims_a_huge_size_is_refused(write_npz):
    """A header that promises 3 TB, with no data behind it."""
    path = write_npz()
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 32, 32, 3), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    contents["x_train.npy"] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w") as new:
        for name, data in contents.items():
            new.writestr(name, data)
    with pytest.raises(DataError, match="cannot be read"):
        read_source(str(path), Request(10, 10))


def test_an_npz_that_unpacks_to_too_much_is_refused_unread(write_npz, monkeypatch):
    monkeypatch.setattr("course_utils.data.sources.MAX_NPZ_MEMBER", 1000)
    with pytest.raises(DataError, match="too many"):
        read_source(str(write_npz()), Request(10, 10))


# -------------------------------------------------------------------------------------------------------- folder


def test_a_folder_is_divided_so_that_no_picture_is_in_train_and_test(folder):
    data = read_source(str(folder), Request(20, 20))
    seen = [tuple(image[0, 0]) for part in (data.train, data.test) for image in part.images]
    assert len(set(seen)) == 40
    assert data.detail["divided"] is True
    assert data.classes == CIFAR10_CLASSES  # CIFAR-10's order, not the alphabet's
    reds = {name: 9 - i for i, name in enumerate(sorted(CIFAR10_CLASSES))}
    for part in (data.train, data.test):
        assert [reds[data.classes[label]] for label in part.labels] == part.images[:, 0, 0, 0].tolist()


def test_train_and_test_folders_are_kept_apart(tmp_path):
    for split, blue in (("train", 1), ("test", 2)):
        for i in range(10):
            for k in range(2):
                picture(tmp_path / split / f"class {i}" / f"{k}.png", colour=(i, k, blue))
    data = read_source(str(tmp_path), Request(20, 10))
    assert set(data.train.images[:, 0, 0, 2]) == {1}
    assert set(data.test.images[:, 0, 0, 2]) == {2}
    assert data.classes == tuple(f"class {i}" for i in range(10))


def test_a_picture_of_another_size_is_cut_to_its_middle_and_this_is_said(folder):
    for path in (folder / "cat").iterdir():
        wide = Image.new("RGB", (128, 64), (255, 0, 0))
        wide.paste((0, 0, 255), (32, 0, 96, 64))  # blue in the middle square, red at the sides that are cut away
        wide.save(path)
    data = read_source(str(folder), Request(20, 20))
    cats = data.train.images[data.train.labels == CIFAR10_CLASSES.index("cat")]
    assert (cats[:, :, 4:-4] == (0, 0, 255)).all()  # the outermost pixels take in a little of what is beside them
    assert data.detail["resized"] == 4
    assert "middle" in data.detail["resizing"]
    assert "resized" in data.notices[0]


def test_a_grey_picture_becomes_rgb(folder):
    for path in (folder / "cat").iterdir():
        picture(path, mode="L")
    data = read_source(str(folder), Request(20, 20))
    assert (data.train.images[data.train.labels == 3] == 100).all()


def test_a_damaged_picture_is_named(folder):
    for path in (folder / "cat").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"cat/\d\.png cannot be read"):
        read_source(str(folder), Request(20, 20))


def test_a_picture_of_too_many_pixels_is_refused(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="cannot be read"):
        read_source(str(folder), Request(20, 20))


def test_what_is_no_picture_is_passed_over(folder):
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / "cat" / ".hidden.png").write_text("x")
    (folder / ".git").mkdir()
    read_source(str(folder), Request(20, 20))


def test_a_folder_with_nine_classes_is_refused(folder):
    shutil.rmtree(folder / "cat")
    with pytest.raises(DataError, match="9 different classes"):
        read_source(str(folder), Request(20, 20))


def test_the_class_with_too_few_pictures_is_named(folder):
    (folder / "dog" / "0.png").unlink()
    with pytest.raises(DataError, match="test: class 'dog' has 1 images, 2 are needed"):
        read_source(str(folder), Request(20, 20))


# --------------------------------------------------------------------------------------------------- distortions


@pytest.mark.parametrize("distortions", [Distortions(noise=0.1), Distortions(crop=True), Distortions(jitter=True)])
def test_each_distortion_changes_images_repeatably_and_image_by_image(pixels, distortions):
    before = pixels.copy()
    out = distortions.apply(pixels, seed=1)
    assert (out != pixels).reshape(60, -1).any(axis=1).mean() > 0.9
    assert np.array_equal(out[:7], distortions.apply(pixels[:7], seed=1))
    assert not np.array_equal(out, distortions.apply(pixels, seed=2))
    assert np.array_equal(pixels, before)


def test_noise_has_the_standard_deviation_that_was_asked_for():
    grey = np.full((20, 32, 32, 3), 128, np.uint8)
    assert Distortions(noise=0.1).apply(grey, 0).std() / 255 == pytest.approx(0.1, rel=0.02)


def test_a_crop_shifts_by_at_most_four_pixels():
    """A single bright pixel in the middle: where is it now?"""
    images = np.zeros((200, 32, 32, 3), np.uint8)
    images[:, 16, 16] = 255
    rows, columns = (np.argwhere(Distortions(crop=True).apply(images, 0)[..., 0])[:, axis] for axis in (1, 2))
    for found in (rows, columns):
        assert set(found.tolist()) == set(range(12, 21))


def test_jitter_keeps_black_black_and_grey_grey():
    grey = np.full((20, 32, 32, 3), 100, np.uint8)
    out = Distortions(jitter=True).apply(grey, 0)
    assert (out == out[..., :1]).all()
    assert len(set(out[:, 0, 0, 0].tolist())) > 5
    assert not Distortions(jitter=True).apply(np.zeros_like(grey), 0).any()


@pytest.mark.parametrize("noise", [-0.1, 8.0, float("nan")])
def test_noise_that_is_not_from_0_to_1_is_refused(noise):
    with pytest.raises(DataError, match="0 to 1"):
        Distortions(noise=noise)


# ----------------------------------------------------------------------------------------------------- real data


def test_a_real_archive_is_read():
    path = real_data("cifar-10-python-small.tar.gz")
    data = read_source(str(path), Request(1000, 1000))
    assert (counts(data.train.labels), counts(data.test.labels)) == ([100] * 10, [100] * 10)
    assert data.classes == CIFAR10_CLASSES
    # CIFAR-10's well-known channel means, 0.491 0.482 0.447: a swapped channel or axis would show.
    assert data.train.images.mean(axis=(0, 1, 2)) / 255 == pytest.approx([0.491, 0.482, 0.447], abs=0.02)


def test_a_real_archive_and_a_real_npz_hold_the_same_kind_of_images():
    """Neighbouring pixels of a photograph are alike: bytes read in a wrong order would not be."""
    names: tuple[str, ...] = ("cifar-10-python-small.tar.gz", "cifar10_1000_train_1000_test.npz")
    for path in map(real_data, names):
        images = read_source(str(path), Request(1000, 1000)).train.images.astype(int)
        for axis in (1, 2):
            assert np.abs(np.diff(images, axis=axis)).mean() < 20


def test_a_cut_off_real_archive_is_refused(tmp_path: Path):
    whole = real_data("cifar-10-python-small.tar.gz").read_bytes()
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.tar\.gz"):
        read_source(str(path), Request(1000, 1000))
