"""Section 4, dataloader_memory: processes, pages and prefetch.

Most observers here run in a forked process of their own (``apart``): a write into a read-only file ends it, a worker that
waits for ever is ended with it. Loaders that get a learner's class use fork as well, because no other process could
import the class from a notebook; where there is no fork they read without workers, and the facts are the same.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset
from torch.utils.data._utils import worker as torch_worker

from course_utils.observe import attempt, describe, exercise
from course_utils.observe.processes import can_fork, descriptors, settled_children

SECTION = "dataloader_memory"
MIB = 1 << 20


def _forked(workers: int = 2) -> dict[str, Any]:
    """Settings of a loader for a learner's data set."""
    return {"num_workers": workers, "multiprocessing_context": "fork"} if can_fork() else {}


_by_number: list[Any] = []


def _numbered(number: int) -> Any:
    return _by_number[number]


class _ByNumber(pickle.Pickler):
    """A pickler for this process alone: classes and functions that no module holds, as in a notebook, go by number."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, (type, FunctionType)):
            return NotImplemented
        if getattr(sys.modules.get(thing.__module__), thing.__qualname__, None) is thing:
            return NotImplemented
        _by_number.append(thing)
        return _numbered, (len(_by_number) - 1,)


def _pickled(thing: Any) -> bytes:
    """What a spawned worker would get of an object."""
    buffer = BytesIO()
    _ByNumber(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return buffer.getvalue()


def _forms(result: Any) -> str:
    """Dtype and shape of the parts of a result, short enough for a line: ``uint8 (5, 3, 8, 9), int64 (5,)``."""
    parts = list(result) if isinstance(result, (tuple, list)) else [result]
    return ", ".join(describe(part).removeprefix("Tensor ") for part in parts)


def _objects(thing: Any) -> int:
    """How many Python objects ``thing`` holds, directly or not: each has a reference count that a read may touch.

    The numbers in an array or a tensor are no objects. Classes, functions and modules are not counted: all share them.
    """
    seen: set[int] = set()
    queue = [thing]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, (type, type(sys), FunctionType, type(len))):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            queue.extend(item.reshape(-1).tolist() if item.dtype.hasobject else [])
            queue.extend([] if item.base is None else [item.base])
        elif not isinstance(item, torch.Tensor):
            queue.extend(gc.get_referents(item))
    return len(seen)


def _opened_for_writing(path: Path, function: Callable[[], Any]) -> bool:
    """Whether ``function`` opens ``path`` in a mode that may write."""
    modes: list[int] = []
    watching = True

    def look(event: str, arguments: Any) -> None:
        if watching and event == "open" and str(arguments[0]) == str(path):
            modes.append(arguments[2])

    sys.addaudithook(look)  # cannot be removed; most checks run in a process that ends with them
    try:
        function()
    finally:
        watching = False
    return any(mode & (os.O_WRONLY | os.O_RDWR) for mode in modes)


def _global_states() -> list[Any]:
    return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]


# -------------------------------------------------------------------------------------------------- data sets
def _image_file(folder: Path, images: np.ndarray) -> Path:
    path = folder / "images.bin"
    images.tofile(path)
    return path


@exercise(
    section=SECTION,
    points=5,
    minutes=30,
    difficulty=3,
    apart=True,
    hints=(
        "__init__ needs to remember four things and to open none of them. What does the first __getitem__ do?",
        "np.memmap(path, np.uint8, 'r', shape=(n, *shape)) reads a page when you touch it. But a tensor "
        "made from it is a window onto the file, and a pickle of it is the whole file.",
        "Copy one image: torch.from_numpy(np.array(images[i])), then permute. For the pickle, __getstate__ returns a "
        "copy of self.__dict__ in which the map is None again.",
    ),
)
def CifarMini(answer, case, see):
    """A Dataset on a file of raw images: opened lazily, private copies, and a pickle without the images."""
    height, width = case.sizes(2, 30, 44)
    count = case.integer(80, 100)
    images = case.array(count, height, width, 3, dtype="uint8")
    labels = case.rng.integers(0, 10, count)
    given = [labels.tolist(), labels.astype(np.uint8)][case.index]
    with TemporaryDirectory() as folder:
        path = _image_file(Path(folder), images)
        shape = (height, width, 3)
        dataset = answer(path, given, shape)
        first = dataset[0]
        see.form(
            _forms(first),
            name="type of an item",
            why="An item is (image, label): a uint8 tensor (3, H, W) and a plain int.",
            fix="Permute the axes, and turn the label into an int with int().",
        )
        picked = [0, count - 1, *case.rng.integers(1, count - 1, 3).tolist()]
        see(
            "images",
            torch.stack([dataset[i][0] for i in picked]),
            why="These are not the pixels of the images that were asked for.",
            fix="Compare dataset[3][0] with the file's fourth image, axis by axis.",
            clues=["axes_swapped", "same_numbers_other_places", "channels_reversed"],
        )
        see(
            "labels",
            [dataset[i][1] for i in picked],
            why="Image and label must have the same index.",
            fix="Return int(self.labels[index]) beside the image.",
        )
        see("length", len(dataset), why="len() is the number of images.", fix="Count the labels.")
        see(
            "index -2, and an index from NumPy",
            [torch.equal(dataset[i][0], dataset[int(i) % count][0]) for i in (-2, np.int64(5))],
            why="A Dataset is indexed as a list is: from the end, and by any integer.",
            fix="Leave the indexing to the map, or add len(self) to a negative index.",
        )
        see(
            "an index past either end",
            [attempt(lambda i=i: dataset[i]).error for i in (count, -count - 1)],
            why="A loop over a Dataset ends where IndexError is raised.",
            fix="Do not wrap or clip the index: let the map or the labels refuse it.",
        )
        again = answer(path, given, shape)
        with see.memory(numpy=True) as used:
            again = answer(path, given, shape)
            again[1]
        see(
            "bytes to open and read one image",
            used.peak,
            at_most=True,
            share=0.3,
            allowance=48 * 1024,  # the smallest file has 216,000 bytes, an image as int64 at most 46 KiB
            why="The whole file was read, although one image was asked for.",
            fix="np.memmap reads a page of the file when it is touched.",
        )
        sent = attempt(_pickled, again)
        see(
            "bytes of its pickle, after use",
            len(sent.value) if not sent.raised else sent,
            at_most=True,
            share=0.3,
            allowance=8 * 1024,
            why="Spawned workers get the Dataset by pickle, each with all that is in it.",
            fix="Pickle the path, not the map or the open file: see __getstate__.",
        )
        copy = attempt(lambda: pickle.loads(sent.value))
        see(
            "the unpickled copy reads the same",
            copy.value is not None and torch.equal(copy.value[3][0], again[3][0]),
            share=0.2,
            why="What a worker unpickles must be able to open the file by itself.",
            fix="Open the file where it is first read, if it is not open.",
        )
        other_folder = Path(folder) / "other"
        other_folder.mkdir()
        other = answer(_image_file(other_folder, images[::-1]), given, shape)
        see(
            "a second data set, with another file",
            [np.array_equal(d[4][0].permute(1, 2, 0), i) for d, i in ((other, images[-5]), (dataset, images[4]))],
            why="Two data sets are in use, and one shows the other one's images.",
            fix="Keep the map on self: what lies on the class is shared by all.",
        )
        third = answer(path, given, shape)
        see(
            "the file is opened",
            "to read and write" if _opened_for_writing(path, lambda: third[0]) else "to read",
            share=0.2,
            why="Nobody may be allowed to write to the file, and nothing here has to.",
            fix='Mode "r" for a map, "rb" for a file.',
        )
        loader = DataLoader(dataset, batch_size=7, **_forked())
        sums = [x.long().sum(dim=(1, 2, 3)) for x, _ in loader]
        see(
            "images through two workers",
            torch.cat(sums),
            why="In workers other images come out than in this process.",
            fix="Share nothing between processes, such as the position in an open file.",
        )
        brighter = answer(path, given, shape, lambda image: image.float().add_(1))
        see(
            "with a transform",
            attempt(lambda: brighter[2][0]),
            why="A transform gets the uint8 image (3, H, W); what it returns is the item.",
            fix="if self.transform is not None: image = self.transform(image)",
        )
        # Last: a write through a map that may only be read ends the process.
        dataset[1][0].add_(77)
        see(
            "the image after a write into a copy",
            "as before" if np.array_equal(dataset[1][0].permute(1, 2, 0).numpy(), images[1]) else "changed",
            why="The tensor was a window: a write to it changed the Dataset or its file.",
            fix="Give each image memory of its own: np.array(images[index]).",
        )


@exercise(
    section=SECTION,
    points=2,
    minutes=15,
    difficulty=2,
    hints=(
        "The mean of the images' means is the mean of all pixels only if all images are equally large. Is the std ever?",
        "Three sums over all pixels are enough: how many, their sum, the sum of their squares.",
        "uint8 squares go round at 256, and float32 runs out of digits. Integers (int64) or float64 do neither.",
    ),
)
def channel_statistics(answer, case, see):
    """Mean and standard deviation of each channel over all pixels of a stream of images, exactly."""
    count = 60
    low, high = np.array([0, 90, 249]), np.array([256, 140, 253])
    images = []
    for k in range(count):
        height, width = case.sizes(2, 24, 40)
        shift = np.array([0, 3 * (k % 11), 0])
        images.append(case.rng.integers(low + shift, high + shift, (height, width, 3)).astype(np.uint8))
    before = [image.copy() for image in images]
    if case.index:
        for image in images:
            image.flags.writeable = False
    answer(iter(images[:2]))
    with see.memory(numpy=True) as used:
        result = answer(image for image in images)
    see.form(
        ", ".join(map(describe, result)) if isinstance(result, (tuple, list)) else describe(result),
        why="Two NumPy arrays of three float64 numbers are asked for: mean, std.",
        fix="Sum in float64 or int64, and return (mean, std).",
    )
    mean, std = (np.asarray(x, dtype=np.float64) for x in result)
    see(
        "mean",
        mean,
        atol=1e-9,
        why="This is not the mean of all pixels, divided by 255.",
        fix="Add up pixels and their number over all images; divide at the end.",
        clues=["scaled_by_255", "channels_reversed"],
    )
    see(
        "standard deviation",
        std,
        atol=1e-9,
        why="It is not the spread of all pixels around one mean, with enough digits.",
        fix="sqrt(mean of squares - square of mean), summed in int64 or float64.",
        clues=["scaled_by_255", "channels_reversed", "second_pass_found_nothing", "root_of_negative", "few_digits"],
    )
    see(
        "images left as they were",
        all(map(np.array_equal, images, before)),
        why="An image was changed in place: the caller's picture is another now.",
        fix="Convert out of place: image.astype(np.int64).",
    )
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=1.0,
        allowance=100_000,  # some float64 copies of one image are fine, all images together are not
        why="All images were held at once. A stream may be larger than the memory.",
        fix="Keep three numbers a channel, and let each image go.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=1,
    hints=(
        "normalised = (image - mean) / std. Solve for image.",
        "mean has three numbers, the batch has its channels on the third axis from the end: view(3, 1, 1).",
        "torch.as_tensor(mean, dtype=batch.dtype, device=batch.device).view(3, 1, 1)",
    ),
)
def denormalize(answer, case, see):
    """Undo Normalize for an image or a batch on any device; the input stays as it is."""
    mean, std = case.rng.uniform(0.3, 0.6, 3), case.rng.uniform(0.15, 0.35, 3)
    n, height, width = case.sizes(3, 4, 9)
    if case.index:
        width = 3  # as wide as there are channels: a factor on the wrong axis fits, too
        mean, std = torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
    else:
        mean, std = tuple(mean.tolist()), std.tolist()
    batch = case.tensor(n, 3, height, width)
    before = batch.clone()
    result = answer(batch, mean, std)
    see.form(
        result,
        why="Shape, dtype and device are those of the batch.",
        fix="Give the constants shape (3, 1, 1), and the batch's dtype and device.",
    )
    see(
        "values",
        result,
        atol=1e-5,
        why="The numbers are not normalised * std + mean, channel by channel.",
        fix="Undo the two steps in turn, constants of shape (3, 1, 1); clip nothing.",
    )
    see(
        "input left as it was",
        torch.equal(batch, before),
        why="The batch was changed in place: the model would see other numbers.",
        fix="Use * and +, not mul_ and add_, or work on a clone.",
    )
    for name, image in (("one image", batch[0]), ("float64", batch.double()), ("frames of videos", batch[None])):
        outcome = attempt(answer, image, mean, std)
        see(
            name,
            outcome if outcome.raised else [describe(outcome.value), outcome.value.float()],
            atol=1e-5,
            share=0.25,
            why="Any (..., 3, H, W) is to come back in its own shape and dtype.",
            fix="view(3, 1, 1) broadcasts to any number of axes in front.",
        )
    # The meta device has shapes and no numbers, and it is never the CPU: constants left behind are noticed.
    outcome = attempt(answer, batch.to("meta"), mean, std)
    see(
        "a batch on another device",
        outcome.error if outcome.raised else describe(outcome.value, torch.device("cpu")),
        share=0.25,
        why="The constants stayed on the CPU (or wherever they were made).",
        fix="Make them with device=batch.device.",
    )


def _pixel_codes(case: Any, height: int, width: int) -> np.ndarray:
    """An image whose red tells the row and whose green tells the column; no pixel is black."""
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 40 + 3 * np.arange(height)[:, None]
    image[..., 1] = 60 + 3 * np.arange(width)
    image[..., 2] = case.rng.integers(100, 256, (height, width))
    return image


def _shift_and_flip(output: np.ndarray, image: np.ndarray) -> tuple[int, int, bool] | None:
    """Which window of the image, flipped or not, an augmented image shows; None if it shows no such thing."""
    height, width, _ = image.shape
    inside = np.argwhere(output.any(axis=-1))
    if not len(inside) or output.shape != image.shape:
        return None
    y, x = inside[len(inside) // 2]
    row, column = (int(output[y, x, 0]) - 40) // 3, (int(output[y, x, 1]) - 60) // 3
    for flipped in (False, True):
        dy, dx = int(row - y), int(column - (width - 1 - x if flipped else x))
        if max(abs(dy), abs(dx)) >= min(height, width):
            continue
        wide = np.pad(image, ((abs(dy),) * 2, (abs(dx),) * 2, (0, 0)))
        window = wide[abs(dy) + dy :][:height, abs(dx) + dx :][:, :width]
        if np.array_equal(window[:, ::-1] if flipped else window, output):
            return dy, dx, flipped
    return None


def _plain(result: Any) -> Any:
    """A tensor without its subclass: torchvision's own classes of tensors are as good."""
    return result.as_subclass(torch.Tensor) if isinstance(result, torch.Tensor) else result


@exercise(
    section=SECTION,
    points=4,
    minutes=20,
    difficulty=2,
    apart=True,
    hints=(
        "Which steps need an image, which a tensor, which floating-point numbers? That gives most of the order.",
        "RandomCrop pads with 0. What is 0 before Normalize, and what after? And what does a flip do with an array "
        "that torchvision takes for no image?",
        "A private copy first (np.array), then v2.ToImage, crop and flip while it is uint8, "
        "v2.ToDtype(torch.float32, scale=True), v2.Normalize.",
    ),
)
def build_transform(answer, case, see):
    """The transform from a mapped image to a normalised tensor; for training with a random crop and flip."""
    height, width = case.sizes(2, 24, 36)
    mean, std = case.rng.uniform(0.35, 0.55, 3).tolist(), case.rng.uniform(0.18, 0.3, 3).tolist()
    with TemporaryDirectory() as folder:
        pixels = _pixel_codes(case, height, width)
        mapped = np.memmap(_image_file(Path(folder), pixels), np.uint8, "r", shape=(height, width, 3))
        # Warnings of torch's come once per process: a cell before this one may have shown them already.
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                test = answer(False, (height, width), mean, std)
                result = _plain(test(mapped))
                answer(True, (height, width), mean, std)(mapped)
        finally:
            torch.set_warn_always(always)
        see.form(
            result,
            name="type, for testing",
            why="A float32 tensor (3, H, W) is asked for.",
            fix="Convert to a tensor, and then to float32 with scale=True.",
        )
        see(
            "the same every time, for testing",
            all(torch.equal(_plain(test(mapped)), result) for _ in range(20)),
            why="With a random step in it, two evaluations of one model differ.",
            fix="Only the training transform crops and flips.",
        )
        see(
            "values, for testing",
            result,
            atol=1e-5,
            why="These are not the pixels / 255, minus mean, divided by std.",
            fix="First scale to [0, 1], then normalise. Nothing random for testing.",
            clues=["axes_swapped", "same_numbers_other_places"],
        )
        see(
            "warnings",
            sorted({str(w.message).split(",")[0].split(". ")[0] for w in warned}),
            share=0.25,
            why="A call warns: what is written to that tensor would end the process.",
            fix="Give the image memory of its own before it becomes a tensor.",
        )
        train = answer(True, (height, width), mean, std)
        see.form(
            _plain(train(mapped)),
            name="type, for training",
            why="A float32 tensor (3, H, W) is asked for.",
            fix="The crop has the size of the image: size, with padding=4.",
        )
        back = lambda t: (t * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)) * 255  # noqa: E731
        drawn = [
            back(_plain(train(mapped))).permute(1, 2, 0).round().clamp(0, 255).numpy().astype(np.uint8)
            for _ in range(400)
        ]
        own = {tuple(p) for p in [[0, 0, 0], *pixels.reshape(-1, 3).tolist()]}
        others = {tuple(p) for p in np.concatenate(drawn[:50]).reshape(-1, 3).tolist()} - own
        see(
            "colours that are new, black aside",
            sorted(map(list, others))[:3],
            why="The border that padding adds is to be black, (0, 0, 0).",
            fix="Pad while 0 is still black: before Normalize.",
        )
        found = [_shift_and_flip(output, pixels) for output in drawn]
        see(
            "all are windows of the image",
            found.count(None) == 0,
            why="Some results are no shifted window of the image, flipped or not.",
            fix="Crop with padding=4, flip left and right, nothing else.",
        )
        flips = sum(f[2] for f in found if f is not None) / len(found)
        see(
            "flipped",
            "about half" if 0.4 < flips < 0.6 else f"{flips:.0%} of the images",
            why="About half are to be flipped; v2 passes on what it does not know.",
            fix="Convert to an image or tensor first; then flip with probability 0.5.",
        )
        for axis, name in enumerate(("rows", "columns")):
            see(
                f"shifts in {name}",
                sorted({f[axis] for f in found if f is not None}),
                why="A padding of 4 on each side allows shifts from -4 to 4.",
                fix="RandomCrop(size, padding=4) chooses among all of them.",
            )
        see(
            "input left as it was",
            np.array_equal(mapped, pixels),
            why="The image itself was changed.",
            fix="Start from a copy.",
        )


# -------------------------------------------------------------------------------------------------- order, seeds
@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "A generator that lives through the training cannot replay epoch 7 alone. What must epoch 7 depend on?",
        "Make a new generator in every call, from both numbers. Why is seed + epoch not enough?",
        "np.random.default_rng([seed, epoch]).permutation(length) mixes the two properly.",
    ),
)
def epoch_sampler(answer, case, see):
    """The order of an epoch: shuffled, another one in each epoch and for each seed, and replayed from its number."""
    length, seed, epoch = case.integer(90, 120), case.integer(1, 10_000), case.integer(1, 30)
    before = _global_states()
    order = answer(length, epoch, seed)
    untouched = _global_states() == before
    indices = [int(i) for i in order]
    see(
        "every index once",
        sorted(indices) == list(range(length)),
        why="An epoch reads each item exactly once.",
        fix="Return a permutation of range(length).",
    )
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    see(
        "the same epoch again",
        [int(i) for i in answer(length, epoch, seed)] == indices,
        why="The order depends on more than length, epoch and seed.",
        fix="Seed a generator of your own inside the call.",
    )
    orders = {tuple(int(i) for i in answer(length, e, seed)) for e in range(6)}
    see(
        "orders in 6 epochs",
        len(orders),
        why="The epoch has to decide about the order, too.",
        fix="Seed the generator with both numbers, seed and epoch.",
    )
    orders = {tuple(int(i) for i in answer(length, epoch, s)) for s in range(6)}
    see(
        "orders for 6 seeds",
        len(orders),
        why="Two runs with different seeds are to differ.",
        fix="Seed the generator with both numbers, seed and epoch.",
    )
    clashes = [f for f in (10, 100, 1000) if list(answer(length, f, seed)) == list(answer(length, 0, seed + 1))]
    steps = np.diff(indices) % length
    see(
        "shuffled",
        bool((np.bincount(steps, minlength=length) < length // 4).all()),
        why="The items follow each other as in another epoch, only shifted or turned.",
        fix="Use a random permutation.",
    )
    grid = {tuple(int(i) for i in answer(length, e, s)) for e in range(5) for s in range(seed, seed + 5)}
    see(
        "orders in 5 epochs of 5 runs",
        len(grid),
        share=0.25,
        why="Epoch 2 of seed 1 is epoch 1 of seed 2: the numbers were just added.",
        fix="Mix them: NumPy's default_rng takes a list of both.",
    )
    see(
        "epochs shared with the next seed",
        clashes,
        share=0.1,
        why="This epoch is epoch 0 of the next seed: a factor only moves the clash.",
        fix="Mix the two numbers: NumPy's default_rng takes a list of both.",
    )
    steps_of = [_python_steps(lambda e=e: list(answer(length, e, seed))) for e in (3, 3, 2003)]  # the first may import
    see(
        "steps for 2000 more epochs",
        max(0, steps_of[2] - steps_of[1]),
        at_most=True,
        allowance=2_000,  # fewer than one for each epoch that is skipped is no way through them
        share=0.3,
        why="The call goes through all epochs before the one that is asked for.",
        fix="Make a generator from seed and epoch: its first order is the answer.",
    )
    see(
        "the global generators",
        "left alone" if untouched else "changed",
        share=0.2,
        why="Seeding a global generator resets every other random number, too.",
        fix="Use torch.Generator, random.Random or np.random.default_rng.",
    )
    see(
        "works as a sampler",
        attempt(lambda: len(DataLoader(range(length), batch_size=7, sampler=answer(length, epoch, seed)))),
        share=0.15,
        why="A loader asks its sampler for a length.",
        fix="Return a list, an array or a tensor rather than an iterator.",
    )


class _Generators(Dataset):
    """Three private generators, as data sets that augment have them."""

    def __init__(self, length: int) -> None:
        # No number that an answer would choose as a seed: seeded anew must look different.
        self.numpy_rng = np.random.default_rng(918_273)
        self.torch_rng = torch.Generator().manual_seed(918_273)
        self.python_rng = random.Random(918_273)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[int]:
        return [
            int(self.numpy_rng.integers(2**31)),
            int(torch.randint(2**31, (), generator=self.torch_rng)),
            self.python_rng.randrange(2**31),
        ]


def _epoch_in_workers(dataset: Dataset, init: Callable[[int], None], seed: int) -> list[list[int]]:
    """An epoch of ``dataset`` through two workers; where none can be forked, through two that are played here."""
    torch.manual_seed(seed)  # a loader draws its workers' seeds from the global generator
    settings = _forked()
    if settings:
        loader = DataLoader(dataset, batch_size=2, collate_fn=list, worker_init_fn=init, **settings)
        return [item for batch in loader for item in batch]
    base, items = int(torch.randint(2**62, ())), []
    for worker in range(2):
        copy = pickle.loads(_pickled(dataset))
        torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=2, seed=base + worker, dataset=copy)
        try:
            torch.manual_seed(base + worker)
            init(worker)
            items += [copy[i] for i in range(worker, len(copy), 2)]
        finally:
            torch_worker._worker_info = None
    return items


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    cases=1,
    apart=True,
    hints=(
        "torch seeds the three global generators of a worker. Who seeds those that a data set keeps for itself?",
        "torch.utils.data.get_worker_info() knows the worker's copy of the data set and a seed that differs by "
        "worker and by epoch.",
        "info.seed is for this worker in this epoch: np.random.default_rng(info.seed), manual_seed, seed.",
    ),
)
def worker_init(answer, case, see):
    """Give the private generators of a data set new seeds in each worker, in each epoch, and the same in a replay."""
    length, seed = 2 * case.integer(5, 9), case.integer(1, 10**6)
    dataset = _Generators(length)
    one, two, replay = (np.array(_epoch_in_workers(dataset, answer, s)) for s in (seed, seed + 1, seed))
    untouched = np.array([dataset[i] for i in range(length)])
    for column, name in enumerate(("NumPy", "torch", "Python")):
        share = None if not column else 0.12
        see(
            f"{name}: generator",
            "as it was made" if set(untouched[:, column]) & set(one[:, column]) else "seeded anew",
            share=share,
            why="A worker still draws from the copy of the data set's own generator.",
            fix="torch seeds the global ones. Seed dataset's in get_worker_info().dataset.",
        )
        see(
            f"{name}: numbers in an epoch",
            len(set(one[:, column].tolist())),
            share=share,
            why="Both workers draw the same numbers: they have the same seed.",
            fix="A fixed seed makes workers equal; get_worker_info().seed does not.",
        )
        see(
            f"{name}: numbers in two epochs",
            len(set(one[:, column].tolist() + two[:, column].tolist())),
            share=share,
            why="Every epoch brings the same numbers again.",
            fix="The seed must come from the loader, which draws a new one each epoch.",
        )
        see(
            f"{name}: the same when replayed",
            bool((one[:, column] == replay[:, column]).all()),
            share=share,
            why="With the same torch seed other numbers come: no run can be repeated.",
            fix="Seed from get_worker_info().seed, not from the clock or the system.",
        )


@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=3,
    apart=True,
    hints=(
        "Numbers that come one after the other from a generator depend on who drew before. What must the noise of "
        "item 5 depend on, and on nothing else?",
        "A new generator per item, made from seed, epoch and index: then it does not matter who draws, or when.",
        "np.random.default_rng([self.seed, self.epoch, index]); make sure that index -1 is the last item's.",
    ),
)
def SeededDataset(answer, case, see):
    """A data set whose noise depends on seed, epoch and index alone: the same with any number of workers."""
    length, width = case.integer(1_010, 1_050), case.integer(6, 9)
    seed, sigma = case.integer(1, 1000), 0.5
    looked_at = [*range(40), 99, 100, 101, 1_000, 1_001]  # where seed * 10000 + epoch * 100 + index clashes
    values = case.array(length, width)
    before = values.copy()
    dataset = answer(values, seed, sigma)
    states = _global_states()
    item = dataset[3]
    untouched = _global_states() == states
    see.form(
        item,
        name="type of an item",
        why="An item is the row plus noise, as a float32 tensor.",
        fix="torch.from_numpy(row + sigma * noise), in float32.",
    )
    see("length", len(dataset), why="One item for every row.", fix="Return len(self.values).")
    see(
        "values left as they were",
        np.array_equal(values, before),
        why="The noise was added to the data itself: it grows from epoch to epoch.",
        fix="Add out of place: row + noise.",
    )

    def epoch(data: Any, number: int) -> torch.Tensor:
        data.set_epoch(number)
        return torch.stack([data[i] for i in looked_at])

    first = epoch(dataset, 0)
    see(
        "the same item again",
        torch.equal(first[3], item),
        why="A second look at an item shows other noise.",
        fix="Make a generator per item, from seed, epoch and index, in __getitem__.",
    )
    last = attempt(lambda: torch.equal(dataset[-1], dataset[length - 1]))
    see(
        "index -1",
        last.error or last.value,
        share=0.2,
        why="Item -1 is the last one, and its noise is to be the last one's.",
        fix="Turn a negative index into the one it stands for before you use it.",
    )
    second = epoch(dataset, 1)
    noise = (torch.cat([first, second]) - torch.from_numpy(before[looked_at * 2])).numpy()
    few = [i for i, index in enumerate(looked_at * 2) if index < 40]
    see(
        "noises in two epochs",
        len({row.tobytes() for row in np.round(noise[few], 4)}),
        why="Items, or epochs, share their noise.",
        fix="Use seed, epoch and index, all three.",
    )
    see(
        "size of the noise",
        "sigma" if abs(noise.std() - sigma) < 0.12 and abs(noise.mean()) < 0.12 else "otherwise",
        why="The noise is to have mean 0 and standard deviation sigma.",
        fix="sigma * generator.standard_normal(shape)",
    )
    random.seed(2)
    np.random.seed(2)
    torch.manual_seed(2)
    replay = answer(values, seed, sigma)
    see(
        "epoch 1 replayed alone",
        torch.equal(epoch(replay, 1), second),
        why="Epoch 1 needs what came before it, or depends on a global generator.",
        fix="Let set_epoch only remember the number.",
    )
    replay.set_epoch(1)
    loader = DataLoader(Subset(replay, looked_at), batch_size=5, **_forked())
    see(
        "epoch 1 through two workers",
        torch.equal(torch.cat(list(loader)), second),
        why="The noise depends on which worker draws it.",
        fix="Make a generator per item, from seed, epoch and index, in __getitem__.",
    )
    rows: set[bytes] = set()
    for number, run in itertools.product(range(4), range(4)):
        noisy = epoch(answer(values, seed + run, sigma), number)
        rows |= {row.tobytes() for row in np.round(noisy.numpy() - before[looked_at], 4)}
    see(
        "noises in 4 epochs of 4 runs",
        len(rows),
        share=0.3,
        why="Different (seed, epoch, index) share noise: a sum, or too small a factor.",
        fix="Mix them: NumPy's default_rng takes a list of numbers.",
    )
    see(
        "the global generators",
        "left alone" if untouched else "changed",
        share=0.3,
        why="Seeding a global generator resets every other random number, too.",
        fix="Use a generator of your own.",
    )


# -------------------------------------------------------------------------------------------------- memory
def _texts(first: int, count: int) -> list[str]:
    return [f"{first + i:06d}" * (8 + i % 9) for i in range(count)]


@exercise(
    section=SECTION,
    points=4,
    minutes=25,
    difficulty=3,
    apart=True,
    hints=(
        "Reading a text from a list counts a reference: a write. What holds texts without an object for each?",
        "One array with the bytes of all texts, one with the places where they begin. Mind that a character may be "
        "several bytes.",
        "b''.join of the encoded texts into np.frombuffer(..., np.uint8), np.cumsum of their lengths; "
        "item i is data[start:stop].tobytes().decode().",
    ),
)
def PackedStrings(answer, case, see):
    """A data set of texts whose workers do not grow when they read it."""
    odd = ["", "Größe", "猫", "naïve 🐈", "tab\tand\nline", " spaces ", "a" * 3_000]
    texts = odd + _texts(case.integer(0, 500_000), case.integer(20, 30))
    case.rng.shuffle(texts)
    dataset = answer(list(texts))
    see(
        "texts",
        [attempt(lambda i=i: dataset[i]) for i in range(len(texts))],
        why="This is not the text that was put in.",
        fix="Offsets count bytes, not characters; cut out bytes, then decode them.",
    )
    zeros = ["two at the end\0\0", "one\0"]
    kept = answer(list(zeros))
    see(
        "texts that end in a zero character",
        [repr(attempt(lambda i=i: kept[i]).value) for i in range(2)],
        why="NumPy cuts zeros off the end of texts in an array of its own (U, S).",
        fix="Keep bytes and places. A fixed width pays for the longest text, too.",
    )
    see("length", len(dataset), why="One item for every text.", fix="There is one more offset than texts.")
    see(
        "index -1",
        attempt(lambda: dataset[-1]).value == texts[-1],
        share=0.1,
        why="A Dataset is indexed as a list is, also from the end.",
        fix="Add len(self) to a negative index.",
    )
    see(
        "an index past either end",
        [attempt(lambda i=i: dataset[i]).error for i in (len(texts), -len(texts) - 1)],
        share=0.1,
        why="A loop over a Dataset ends where IndexError is raised.",
        fix="Raise IndexError yourself: a slice past the end is just empty.",
    )
    many = _texts(case.integer(0, 500_000), 20_000)
    many[7] = "long " * 60
    dataset = answer(many)
    del many
    size = attempt(lambda: len(_pickled(dataset)))
    see(
        "bytes that it holds",
        size if size.raised else size.value,
        at_most=True,
        share=0.2,
        slack=0.4,
        why="More is held than the texts' bytes and a number for each.",
        fix="Keep no list beside the arrays, and no fixed width for all texts.",
    )
    for index in case.rng.permutation(20_000)[:600].tolist():  # what has been read must not be kept, either
        dataset[index]
    # What a worker would copy by reading. Its private memory says the same, some MiB more or less, and not everywhere.
    see(
        "Python objects that it holds",
        _objects(dataset),
        at_most=True,
        share=0.6,
        allowance=300,
        why="Each object has a counter: reading it writes, and copies its page.",
        fix="Two arrays, of bytes and of places: no list, tuple or object array.",
    )


class _Numbers(Dataset):
    """Importable by every kind of worker. An item is a pair of its number and the process that read it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        import os

        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor([index, os.getpid()])


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=1,
    apart=True,
    hints=(
        "A loader gives each worker some batches in advance. How many, and to how many workers?",
        "Look at loader.num_workers and loader.prefetch_factor. What is prefetch_factor without workers?",
        "There may be fewer batches than that: min with len(loader).",
    ),
)
def batches_in_flight(answer, case, see):
    """How many batches a loader has asked its sampler for before it hands out the first one."""
    workers, factor = case.choice((2, 3), (3, 2), (2, 5))
    length, size = case.integer(200, 300), case.integer(3, 5)
    data = _Numbers(length)
    few = workers * factor - 1
    shuffled = BatchOrder(RandomSampler(data, generator=torch.Generator().manual_seed(0)), size)
    loaders = {
        "prefetch_factor given": {"batch_size": size, "num_workers": workers, "prefetch_factor": factor},
        "prefetch_factor left out": {"batch_size": size, "num_workers": workers},
        "no workers": {"batch_size": size},
        "fewer batches than that": {
            "batch_size": -(-length // few) if case.index else length // few,
            "drop_last": not case.index,
            "num_workers": workers,
            "prefetch_factor": 4 * factor,
        },
        "a batch_sampler": {"batch_sampler": shuffled, "num_workers": workers, "prefetch_factor": factor},
        "batch_size None": {"batch_size": None, "num_workers": 2, "prefetch_factor": 1 + case.index},
    }
    advice = {
        "prefetch_factor given": ("Every worker gets prefetch_factor batches to do.", "Multiply by the workers."),
        "prefetch_factor left out": (
            "With workers, prefetch_factor has a default.",
            "Print DataLoader(data, num_workers=1).prefetch_factor.",
        ),
        "no workers": ("Without workers nothing is asked for in advance.", "prefetch_factor is None then."),
        "fewer batches than that": (
            "No more batches can be under way than there are.",
            "len(loader) counts the batches.",
        ),
        "a batch_sampler": ("A batch_sampler is asked batch by batch as well.", "Do not read loader.batch_size."),
        "batch_size None": ("Without batching, every item is sent by itself.", "len(loader) still counts them."),
    }
    for name, settings in loaders.items():
        loader = _quiet_loader(data, **settings)
        why, fix = advice[name]
        with warnings.catch_warnings():
            # An answer may make such a loader itself, to measure; more workers than cores are not its fault.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            result = attempt(answer, loader)
        see(name, result, why=why, fix=fix)
    see(
        "processes left running",
        len(settled_children(1.0)),
        share=0.3,
        why="Workers were started to count, and still run.",
        fix="Delete the iterator, or compute the number without starting one.",
    )


class BatchOrder(Sampler):
    """Batches of a fixed size from the order of another sampler."""

    def __init__(self, order: Sampler, size: int) -> None:
        self.order, self.size = order, size

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(self.order)
        while batch := list(itertools.islice(order, self.size)):
            yield batch


def _quiet_loader(data: Any, **settings: Any) -> DataLoader:
    """A loader that may have more workers than this machine has cores: nothing is run on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DataLoader(data, **settings)


@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=2,
    hints=(
        "Write down for each goal what costs it: a process, a batch in advance, a copy, a start of workers per epoch.",
        "Some arguments exclude others: what do prefetch_factor and persistent_workers need?",
        "debugging wants no workers at all; low memory at most one worker and one batch; throughput as many as cores, "
        "kept alive.",
    ),
)
def loader_settings(answer, case, see):
    """The arguments of a DataLoader for one of three goals: debugging, low memory, throughput."""
    data = _Numbers(case.integer(90, 110))
    cores, gpu = [(case.integer(4, 6), False), (case.integer(2, 3), True)][case.index]
    yes = lambda holds, else_: "yes" if holds else f"no: {else_}"  # noqa: E731
    for goal in ("debugging", "low memory", "throughput"):
        settings = answer(goal, cores, gpu)
        made = attempt(lambda s=settings: _quiet_loader(data, **s))
        see(
            f"{goal}: DataLoader takes it",
            made if made.raised else "yes",
            any_error=True,
            why="DataLoader refuses these arguments, or this combination of them.",
            fix="Make a DataLoader with them by hand, and read what it says.",
        )
        if made.raised:
            return
        loader = made.value
        workers, factor = loader.num_workers, loader.prefetch_factor or 0
        shuffled = not isinstance(loader.sampler, torch.utils.data.SequentialSampler)
        if goal == "debugging":
            see(
                "debugging: in this process",
                yes(not workers, f"{workers} workers"),
                why="A breakpoint in a worker cannot be reached from the notebook.",
                fix="num_workers=0 reads in the process that asks.",
            )
            see(
                "debugging: one order",
                yes(not shuffled, "shuffled"),
                share=0.1,
                why="In a new order each epoch the faulty image comes at another moment.",
                fix="Leave shuffle off.",
            )
        elif goal == "low memory":
            see(
                "low memory: at most one worker",
                yes(workers <= 1, f"{workers} workers"),
                why="Every worker is a process with memory of its own.",
                fix="One worker, or none.",
            )
            see(
                "low memory: batches in advance",
                yes(workers * factor <= 1, f"{workers * factor} batches"),
                share=0.15,
                why="num_workers * prefetch_factor batches wait in memory.",
                fix="prefetch_factor=1 with one worker; none without workers.",
            )
            see(
                "low memory: no second copy",
                yes(not loader.pin_memory, "pinned"),
                share=0.1,
                why="pin_memory copies each batch into memory that cannot be paged out.",
                fix="Leave pin_memory off.",
            )
        else:
            see(
                "throughput: a worker per core, at most",
                yes(2 <= workers <= cores, f"{workers} workers on {cores} cores"),
                why="Too few workers wait for one another, too many for a core.",
                fix="Between 2 and cores; cores is an argument of your function.",
            )
            see(
                "throughput: workers stay",
                yes(loader.persistent_workers, "a new set every epoch"),
                share=0.2,
                why="Without persistent_workers every epoch starts new processes.",
                fix="persistent_workers=True",
            )
            see(
                "throughput: batches in advance",
                yes(factor >= 2, f"{factor} a worker"),
                share=0.15,
                why="A worker with one batch to do idles while that one is fetched.",
                fix="prefetch_factor of 2, the default, or more.",
            )
            see(
                "throughput: pinned only with a GPU",
                yes(bool(loader.pin_memory) == gpu, f"pin_memory={loader.pin_memory} and gpu={gpu}"),
                share=0.2,
                why="Pinned memory speeds up copies to a GPU; without one it is a cost.",
                fix="pin_memory=gpu",
            )
            see(
                "throughput: shuffled",
                yes(shuffled, "always in the same order"),
                share=0.1,
                why="Throughput is for training, and training shuffles.",
                fix="shuffle=True",
            )


class _Halt(Exception):
    """Raised inside a ``with`` block by the observer."""


@exercise(
    section=SECTION,
    points=4,
    minutes=25,
    difficulty=3,
    cases=1,
    apart=True,
    hints=(
        "Workers end when the last reference to their iterator goes. Who may still hold one after the with block?",
        "You cannot delete the caller's variable. Remember every iterator that the loader makes (a subclass of DataLoader "
        "with its own __iter__), and end each one in finally.",
        "An iterator with workers has _shutdown_workers(). A loader with persistent_workers keeps its iterator in "
        "loader._iterator: set it to None afterwards.",
    ),
)
def closing_loader(answer, case, see):
    """A context manager that gives a DataLoader and leaves no worker and no file descriptor behind."""
    length, size = case.integer(30, 40), case.integer(3, 6)
    data = _Numbers(length)
    workers = {"num_workers": 2, "batch_size": size}
    if can_fork():
        workers["multiprocessing_context"] = "fork"
    for _ in DataLoader(data, **workers):  # what torch opens once and keeps is no leak
        pass
    gc.collect()
    at_first = descriptors()
    # Enough for a worker that is ending; those that have to be ended are gone when the block is.
    running, patience = len(settled_children(0)), 1.0

    def left(name: str) -> bool:
        """Whether workers are left. Then nothing that follows could earn a point, and the check ends."""
        more = len(settled_children(patience)) - running
        see(
            f"workers left {name}",
            more,
            why="Worker processes still run after the with block.",
            fix="End the workers of every iterator that was made, in a finally clause.",
        )
        return more > 0

    with answer(data, **workers) as loader:
        items = torch.cat([batch[:, 0] for batch in loader]).tolist()
    see(
        "items of an epoch",
        items,
        why="The loader does not give the data set's items, in batches as asked.",
        fix="Pass the settings on: DataLoader(dataset, **settings).",
    )
    if left("after an epoch"):
        return
    with answer(data, **workers) as loader:
        for _ in loader:
            break
    if left("after a break"):
        return
    with answer(data, **workers) as loader:
        kept = iter(loader)
        number = int(next(kept)[0, 0])
    if left("with an iterator kept"):
        return
    del kept
    see("the first item", number, why="Another item came first.", fix="Do not read ahead.")

    def fails() -> None:
        with answer(data, **workers) as loader:
            holder.append(iter(loader))
            next(holder[0])
            raise _Halt("inside the with block")

    holder: list[Any] = []
    outcome = attempt(fails)
    see(
        "an exception leaves the block",
        outcome.raised,
        why="The exception was swallowed: the caller goes on as if all were well.",
        fix="try: yield loader, finally: close. No except, no return True.",
    )
    see(
        "it is the block's own",
        outcome.error,
        why="Another exception comes out in place of the one that the block raised.",
        fix="Raise nothing of your own, and close in finally: it goes on by itself.",
    )
    if left("after an exception"):
        return
    holder.clear()
    with answer(data, **workers, persistent_workers=True) as loader:
        pids = [{int(p) for batch in loader for p in batch[:, 1]} for _ in range(2)]
        alive = len(settled_children(0)) - running
    see(
        "persistent workers serve two epochs",
        {"workers": len(pids[0]), "the same in both epochs": pids[0] == pids[1], "alive after them": alive},
        why="persistent_workers was not passed on, or the workers were ended too soon.",
        fix="Close at the end of the with block, not at the end of an epoch.",
    )
    if left("with persistent_workers"):
        return
    del loader
    gc.collect()
    see(
        "file descriptors left",
        max(0, descriptors(at_first, patience=2.0) - at_first),
        share=0.4,
        why="Pipes to the workers are still open.",
        fix="Drop your references to the iterators, loader._iterator too.",
    )
    with answer(data, batch_size=size) as loader:
        count = sum(len(batch) for batch in loader)
    see("items without workers", count, why="num_workers=0 has nothing to end.", fix="Ask before you end workers.")


# -------------------------------------------------------------------------------------------------- batches
def _python_steps(function: Callable[..., Any], *args: Any) -> int:
    """How many Python instructions ``function(*args)`` executes, in all functions that are written in Python."""
    steps = 0

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return steps


@exercise(
    section=SECTION,
    points=4,
    minutes=25,
    difficulty=3,
    apart=True,
    hints=(
        "images[indices] takes all images of the batch in one step. Which rows and columns of each are wanted?",
        "rows = dy + arange(H) has shape (B, H), columns (B, W); a flip reverses a row of columns. "
        "Put a black border around the batch, so that no index falls outside.",
        "padded[np.arange(B)[:, None, None], rows[:, :, None], columns[:, None, :]] has shape (B, H, W, 3).",
    ),
)
def fetch_batch(answer, case, see):
    """Many images at once, each shifted and flipped in its own way, without a Python loop over them."""
    height, width = case.sizes(2, 14, 24)
    images, labels = case.array(900, height, width, 3, dtype="uint8"), case.rng.integers(0, 10, 900)

    def batch(n: int) -> tuple[list[int], np.ndarray, np.ndarray]:
        return case.rng.integers(0, 900, n).tolist(), case.rng.integers(-4, 5, (n, 2)), case.rng.random(n) < 0.5

    with TemporaryDirectory() as folder:
        mapped = np.memmap(_image_file(Path(folder), images), np.uint8, "r", shape=images.shape)
        indices, shifts, flips = batch(21)
        kept = shifts.copy(), flips.copy(), list(indices)
        result = answer(mapped, labels, indices, shifts, flips)
        see.form(
            _forms(result),
            why="Asked for: images uint8 (B, 3, H, W) and labels int64 (B,), as tensors.",
            fix="Turn both arrays into tensors, and permute the images.",
        )
        pixels, found = result
        see(
            "images",
            pixels,
            why="Some image differs from what fetch_one gives for the same shift and flip.",
            fix="Try one image: first only a shift, then only a flip, then both.",
            clues=["axes_swapped", "batch_items_mixed"],
        )
        see("labels", found, why="Labels belong to their images.", fix="Keep the order of indices for both.")
        see(
            "result is contiguous",
            pixels.is_contiguous(),
            share=0.2,
            why="permute only rearranges strides: every later kernel reads with jumps.",
            fix="Call contiguous() once, while the values are uint8.",
        )
        same = all(map(np.array_equal, kept[:2], (shifts, flips))) and kept[2] == indices
        see("arguments left as they were", same, why="An argument was changed.", fix="Compute out of place.")
        few, many = batch(40), batch(120)
        answer(mapped, labels, *few)  # the first call may import
        steps = [_python_steps(answer, mapped, labels, *arguments) for arguments in (few, many)]
        see(
            "Python steps per further image",
            round((steps[1] - steps[0]) / 80),
            at_most=True,
            share=0.5,
            why="Python runs once more for every image: that is what costs the time.",
            fix="Index with arrays: one expression takes the windows of all images.",
        )
        one = batch(2)
        with see.memory(numpy=True) as used:
            answer(mapped, labels, *one)
        see(
            "bytes at peak for two images",
            used.peak,
            at_most=True,
            share=0.3,
            allowance=300_000,  # all images have 500,000 and more, two of them at most 4,000
            why="The whole file was read, for a batch of two images.",
            fix="Take the images of the batch out of the map first; work on those.",
        )
        pixels.add_(1)
        see(
            "the images after a write into the batch",
            "as before" if np.array_equal(mapped, images) else "changed",
            why="The batch was a window onto the images.",
            fix="An index with a list or an array copies; a slice does not.",
        )


@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=2,
    cases=3,
    apart=True,
    hints=(
        "torch.stack wants equal shapes. What is the largest number of boxes in this batch? Not always the first's.",
        "Make zeros (B, most, 4), and copy each image's boxes into the beginning of its row.",
        "present = arange(most) < counts[:, None]; max(..., default=0) and new_zeros keep empty batches and dtypes right.",
    ),
)
def pad_collate(answer, case, see):
    """Collate images with different numbers of boxes: padded boxes, and which of them are there."""
    height, width = case.sizes(2, 5, 9)
    counts = [[2, 0, 5, 1, 3], [0, 0, 0], [1, 2, 0, 1]][case.index]  # in the last the longest ends in a box of zeros
    if case.index != 1:
        case.rng.shuffle(tail := counts[1:])
        counts = [counts[0], *tail]
    dtype = [torch.float32, torch.float32, torch.float64][case.index]
    samples = [
        (torch.from_numpy(case.array(3, height, width)), torch.from_numpy(case.array(k, 4)).to(dtype)) for k in counts
    ]
    for _, boxes in samples:
        boxes[1:2] = 0  # a box of zeros is a box; the last one of some image is one
    before = [(image.clone(), boxes.clone()) for image, boxes in samples]
    result = answer(samples)
    see.form(
        f"{len(result)} parts" if isinstance(result, (tuple, list)) else describe(result),
        why="Three things are asked for: images, boxes, present.",
        fix="return images, boxes, present",
    )
    images, boxes, present = result
    see.form(
        images,
        name="type of images",
        why="All images of the batch are asked for, (B, 3, H, W).",
        fix="torch.stack the images.",
    )
    see.form(
        boxes,
        name="type of boxes",
        why="Asked for: (B, most, 4), in the dtype of the boxes.",
        fix="Pad to the most boxes of this batch; keep the dtype of the boxes.",
    )
    see.form(
        present,
        name="type of present",
        why="A mask is asked for: bool, one value for each place, (B, most).",
        fix="A comparison gives bool; torch.zeros and counts do not.",
    )
    see("images", images, why="These are not the images in order.", fix="torch.stack the images.")
    see(
        "which boxes are there",
        present,
        why="present tells boxes from padding; a box of zeros may be a real one.",
        fix="Compare arange(most) with the number of boxes of each image.",
    )
    see(
        "boxes",
        boxes,
        why="A box is missing, moved or made up; padding is 0.",
        fix="Write each image's boxes into the first places of its row.",
    )
    see(
        "samples left as they were",
        all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(samples, before, strict=True)),
        why="The data set's own tensors were changed.",
        fix="Copy into new tensors.",
    )
    for pixels, corners, _ in (result, answer(samples[:1])):
        pixels.add_(1)
        corners.add_(1)
    see(
        "samples after a write into the batch",
        all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(samples, before, strict=True)),
        why="The batch shares memory with the data set.",
        fix="Copy into new tensors.",
    )
    if case.index:
        return
    loader = DataLoader(before, batch_size=2, collate_fn=answer, **_forked())
    see(
        "boxes through two workers",
        [int(p.sum()) for _, _, p in loader],
        why="As collate_fn of a loader it loses boxes.",
        fix="Let everything depend on samples alone.",
    )


class _Archive(Dataset):
    """A data set that says how many images it has, and has others. Counts what is read."""

    def __init__(self, claimed: int, images: int, gone: dict[int, type[Exception]]) -> None:
        self.claimed, self.images, self.gone, self.reads = claimed, images, gone, 0
        self.raised: list[Exception] = []

    def __len__(self) -> int:
        return self.claimed

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        if self.reads > 10 * self.images:
            raise RuntimeError("read ten times as often as there are images")
        if index in self.gone:
            self.raised.append(self.gone[index](f"image {index}"))
            raise self.raised[-1]
        if not -self.images <= index < self.images:
            raise IndexError(f"index {index} is out of range")
        return index % self.images


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    cases=4,
    apart=True,
    hints=(
        "A loop over the data set ends at the first IndexError without a word. Ask for each index yourself.",
        "Two questions: which of range(len(dataset)) cannot be read? And what comes after the end that it claims?",
        "try: dataset[i] / except Exception: remember i. Then go on from len(dataset) until IndexError.",
    ),
)
def find_the_missing_image(answer, case, see):
    """Post-mortem of a data set: the indices that it promises and cannot read, and those that it has and hides."""
    images, few = case.integer(60, 80), case.integer(2, 4)
    gaps = case.rng.choice(np.arange(5, 50), 2, replace=False).tolist()
    claimed = images + [few, -few, 0, -4][case.index]
    gone: dict[int, type[Exception]] = [
        {gaps[0]: FileNotFoundError},
        {gaps[0]: IndexError, gaps[1]: ValueError},
        {},
        {gaps[0]: KeyError, claimed + 1: OSError},
    ][case.index]
    dataset = _Archive(claimed, images, gone)
    result, error = None, "none"
    try:
        result = answer(dataset)
    except (LookupError, OSError, ValueError) as caught:
        if not any(caught is known for known in dataset.raised):
            raise
        error = type(caught).__name__
    see(
        "an image's error that came out",
        error,
        why="One image that cannot be read has ended the whole search.",
        fix="Catch Exception around each read: an image may fail in any way.",
    )
    if error != "none":
        return
    see.form(
        "two lists" if [type(part) for part in result] == [list, list] else result,
        why="Two lists of indices are asked for: broken and hidden.",
        fix="return broken, hidden",
    )
    broken, hidden = ([int(i) for i in indices] for indices in result)
    see(
        "broken",
        broken,
        why="An index below len(dataset) that raises, whatever it raises, is broken.",
        fix="Ask for each index of range(len(dataset)), and go on after an error.",
    )
    see(
        "hidden, one damaged" if case.index == 3 else "hidden",
        hidden,
        share=0.3 if case.index == 3 else None,
        why=(
            "A damaged image is not the end: only IndexError says that there is none."
            if case.index == 3
            else "Images from len(dataset) on are never loaded, although they are there."
        ),
        fix="Go on from len(dataset) until IndexError says that there is no more.",
    )
    see(
        "images read",
        dataset.reads,
        at_most=True,
        allowance=20,  # a second look at the few that fail is fine
        why="Images were read several times to find it out.",
        fix="One read of each index is enough.",
    )
