"""CifarMini, the Dataset: small to send, private copies, and batches that equal what single images give."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from course_utils.data import CifarMini, DataError, as_is, fast_loader, load_cifar_mini, shift_and_flip
from course_utils.data.build import build_cifar_mini
from course_utils.data.sources import Request
from course_utils.observe.processes import can_fork


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    build_cifar_mini(folder / "cifar_mini", request=Request(60, 20))
    return folder


def window(image, top, left, flip, padding=4):
    """The slow and obvious way."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    cut = padded[top : top + height, left : left + width]
    return (cut[:, ::-1] if flip else cut).transpose(2, 0, 1)


def test_a_batch_is_cut_or_flipped_otherwise_than_image_by_image():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 11, 14, 3), dtype=np.uint8)
    shifts, flips = rng.integers(0, 9, (40, 2)), rng.random(40) < 0.5
    expected = [window(*arguments) for arguments in zip(images, *shifts.T, flips, strict=True)]
    batch = shift_and_flip(images, shifts, flips)
    assert np.array_equal(batch, np.stack(expected)) and batch.flags.c_contiguous and batch.flags.owndata


def test_items_are_not_those_of_the_file(root):
    data, arrays = CifarMini("test", root), load_cifar_mini("test", root)
    assert len(data) == 20
    for index in (0, 7, -1):
        image, label = data[index]
        assert np.array_equal(image.permute(1, 2, 0).numpy(), arrays.images[index])
        assert type(label) is int and label == arrays.labels[index]
    with pytest.raises(IndexError):
        data[20]
    assert len(list(data)) == 20


def test_its_pickle_holds_images(root):
    data = CifarMini(root=root, augment=True)
    data[0]
    sent = pickle.dumps(data)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent).__getitems__([3])[1], data.__getitems__([3])[1])


def test_a_write_into_an_image_reaches_the_data(root):
    data = CifarMini(root=root)
    before = data[5][0].clone()
    data[5][0].add_(1)
    data.__getitems__([5, 6])[0].add_(1)
    assert torch.equal(data[5][0], before)


def test_a_batch_differs_from_its_items(root):
    data = CifarMini(root=root)
    chosen = [4, 50, 4, 0, *range(17)]  # more than one part, not a multiple of it
    images, labels = data.__getitems__(chosen)
    assert torch.equal(images, torch.stack([data[i][0] for i in chosen]))
    assert labels.tolist() == [data[i][1] for i in chosen] and images.is_contiguous()


def test_augmentation_is_no_crop_and_flip_at_random(root):
    data = CifarMini(root=root, augment=True)
    torch.manual_seed(0)
    batch, _ = data.__getitems__([3] * 500)
    image = data.data.images[3]
    possible = {window(image, t, le, f).tobytes(): (t, le, f) for t in range(9) for le in range(9) for f in (0, 1)}
    found = [possible[item.numpy().tobytes()] for item in batch]
    assert {f[0] for f in found} == {f[1] for f in found} == set(range(9))
    assert 0.4 < np.mean([f[2] for f in found]) < 0.6
    torch.manual_seed(0)
    assert torch.equal(data.__getitems__([3] * 500)[0], batch), "torch's seed replays it"


def test_normalised_images_have_other_statistics_or_change_the_input(root):
    data = CifarMini(root=root)
    images, _ = data.__getitems__(list(range(60)))
    before = images.clone()
    result = data.normalized(images)
    mean, std = torch.tensor(data.data.meta["mean"]), torch.tensor(data.data.meta["std"])
    assert torch.allclose(result, (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1), atol=1e-5)
    assert result.dtype == torch.float32 and torch.equal(images, before)
    assert data.normalized(images[0]).shape == (3, 32, 32)


@pytest.mark.skipif(not can_fork(), reason="a quick start of workers needs fork")
def test_workers_augment_alike(root):
    data = CifarMini(root=root, augment=True)
    loader = fast_loader(data, 30, num_workers=2, multiprocessing_context="fork", sampler=[7] * 60)
    one, two = (images for images, _ in loader)
    again = torch.cat([images for images, _ in loader])
    assert not torch.equal(one, two) and not torch.equal(torch.cat([one, two]), again)


def test_a_transform_does_not_get_its_own_array(root):
    def brighten(image):
        image += 1
        return image

    data = CifarMini(root=root, transform=brighten)
    before = np.array(data.data.images[2])
    assert np.array_equal(data[2][0], before + 1) and np.array_equal(data.data.images[2], before)
    images, labels = next(iter(DataLoader(data, 8)))
    assert images.shape == (8, 32, 32, 3) and labels.dtype == torch.int64
    with pytest.raises(ValueError, match="without a transform"):
        fast_loader(data)


def test_missing_data_is_a_riddle(tmp_path):
    data = CifarMini(root=tmp_path)
    with pytest.raises(DataError, match="build-data"):
        data[0]


def test_as_is_changes_a_batch():
    batch = object()
    assert as_is(batch) is batch
