"""Right and wrong answers to the exercises of section 4, dataloader_memory."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing, contextmanager

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torchvision import transforms as v1
from torchvision.transforms import v2

from grading.bank import Kind, right, wrong


# ---------------------------------------------------------------------------------------- find_the_missing_image
def _readable(dataset, index):
    try:
        dataset[index]
    except Exception:
        return False
    return True


@right("find_the_missing_image")
def asks_for_the_error(dataset):
    def error_of(i):
        try:
            dataset[i]
        except Exception as error:
            return error

    n = len(dataset)
    broken = [i for i in range(n) if error_of(i) is not None]
    hidden, i = [], n
    while not isinstance(error := error_of(i), IndexError):
        hidden += [i] if error is None else []
        i += 1
    return broken, hidden


@wrong("find_the_missing_image", fails="hidden, one damaged", says="not the end", kind=Kind.PARTLY)
def any_error_is_the_end(dataset):
    """Whatever cannot be read behind the end is the end: a damaged image hides those after it."""
    n = len(dataset)
    broken = [i for i in range(n) if not _readable(dataset, i)]
    hidden = []
    while _readable(dataset, n + len(hidden)):
        hidden.append(n + len(hidden))
    return broken, hidden


@right("find_the_missing_image")
def one_loop_over_both(dataset):
    broken, hidden, i = [], [], 0
    while True:
        try:
            dataset[i]
            if i >= len(dataset):
                hidden.append(i)
        except IndexError:
            if i >= len(dataset):
                break
            broken.append(i)
        except Exception:
            if i < len(dataset):
                broken.append(i)
        i += 1
    return [broken, hidden]


@wrong("find_the_missing_image", fails="broken", says="range(len(dataset))")
def trusts_the_for_loop(dataset):
    """The sequence protocol ends at the first IndexError: what follows is taken for missing."""
    seen = 0
    try:
        for seen, _ in enumerate(dataset, 1):
            pass
    except Exception:
        pass
    return list(range(seen, len(dataset))), list(range(len(dataset), seen))


@wrong("find_the_missing_image", fails="an image's error that came out", says="Catch Exception")
def only_index_errors(dataset):
    """Believes that a missing image is always an IndexError."""
    broken = []
    for i in range(len(dataset)):
        try:
            dataset[i]
        except IndexError:
            broken.append(i)
    return broken, []


@wrong("find_the_missing_image", fails="broken", says="go on after an error")
def stops_at_the_first(dataset):
    """One fault found, job done."""
    for i in range(len(dataset)):
        if not _readable(dataset, i):
            return [i], []
    hidden = []
    while _readable(dataset, len(dataset) + len(hidden)):
        hidden.append(len(dataset) + len(hidden))
    return [], hidden


@wrong("find_the_missing_image", fails="hidden", says="Go on from len(dataset)")
def believes_len(dataset):
    """Looks no further than the data set says."""
    return [i for i in range(len(dataset)) if not _readable(dataset, i)], []


@wrong("find_the_missing_image", fails="images read", says="One read", kind=Kind.WASTEFUL)
def reads_everything_twice(dataset):
    """Asks again for what it has just read."""
    n = len(dataset)
    broken = [i for i in range(n) if not _readable(dataset, i) and not _readable(dataset, i)]
    good = [i for i in range(n) if i not in broken and _readable(dataset, i)]
    return sorted(set(range(n)) - set(good)), asks_for_the_error(dataset)[1]


@wrong("find_the_missing_image", fails="type of the result", kind=Kind.WRONG_FORM)
def broken_ones_alone(dataset):
    """Answers one question of the two."""
    return [i for i in range(len(dataset)) if not _readable(dataset, i)]


# ------------------------------------------------------------------------------------------------------ CifarMini
class _Base(Dataset):
    """What most answers have in common."""

    def __init__(self, path, labels, shape, transform=None):
        self.path, self.labels, self.shape, self.transform = str(path), labels, shape, transform
        self.images = None

    def __len__(self):
        return len(self.labels)

    def open(self):
        if self.images is None:
            self.images = np.memmap(self.path, dtype="uint8", mode="r", shape=(len(self.labels),) + tuple(self.shape))
        return self.images

    def finish(self, image, index):
        if self.transform:
            image = self.transform(image)
        return image, int(self.labels[index])

    def __getstate__(self):
        state = self.__dict__.copy()
        state["images"] = None
        return state


@right("CifarMini")
class maps_anew_for_every_image(Dataset):
    def __init__(self, path, labels, shape, transform=None):
        self.path, self.shape, self.transform = path, shape, transform
        self.labels = torch.as_tensor(labels)

    def __len__(self):
        return self.labels.numel()

    def __getitem__(self, index):
        label = self.labels[index].item()
        images = np.memmap(self.path, np.uint8, "r", shape=(len(self), *self.shape))
        image = torch.tensor(images[index].transpose(2, 0, 1))
        if self.transform is not None:
            image = self.transform(image)
        return image, label


@right("CifarMini")
class seeks_and_reads(Dataset):
    def __init__(self, path, labels, shape, transform=None):
        self.path, self.shape, self.transform = path, shape, transform
        self.labels = list(labels)
        self.size = int(np.prod(shape))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError("no such image")
        flat = np.fromfile(self.path, np.uint8, count=self.size, offset=int(index) * self.size)
        image = torch.from_numpy(flat.reshape(self.shape)).permute(2, 0, 1)
        return (self.transform(image) if self.transform else image), int(self.labels[index])


@right("CifarMini")
class reduces_to_its_arguments(_Base):
    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1).contiguous(), index)

    def __reduce__(self):
        return type(self), (self.path, self.labels, self.shape, self.transform)


@right("CifarMini")
class copy_of_a_private_map(_Base):
    def open(self):
        if self.images is None:
            self.images = np.memmap(self.path, np.uint8, "c", shape=(len(self.labels), *self.shape))
        return self.images

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index]).permute(2, 0, 1).clone(), index)


@wrong("CifarMini", fails="bytes of its pickle, after use", says="Spawned workers", kind=Kind.WASTEFUL)
class opens_in_init(_Base):
    """A memmap is small, so its pickle must be small: it is the whole file."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.open()

    def __getstate__(self):
        return self.__dict__

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.images[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", fails="bytes of its pickle, after use", says="pickle", kind=Kind.WASTEFUL)
class lazy_but_pickled_open(_Base):
    """Lazy at first; once used, the map goes into the pickle."""

    def __getstate__(self):
        return self.__dict__

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", kind=Kind.CRASHED, says="SIGSEGV")
class window_onto_the_file(_Base):
    """from_numpy of a read-only map: right numbers, and the first write ends the process."""

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index]).permute(2, 0, 1), index)


@wrong("CifarMini", fails="the image after a write into a copy", says="window")
class writable_window(_Base):
    """Mode 'r+' makes the warning go away, and every augmentation goes into the file."""

    def open(self):
        if self.images is None:
            self.images = np.memmap(self.path, np.uint8, "r+", shape=(len(self.labels), *self.shape))
        return self.images

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index]).permute(2, 0, 1), index)


@wrong("CifarMini", fails="the image after a write into a copy", says="window")
class copy_on_write_window(_Base):
    """Mode 'c' protects the file, not the data set: the process goes on with the changed image."""

    def open(self):
        if self.images is None:
            self.images = np.memmap(self.path, np.uint8, "c", shape=(len(self.labels), *self.shape))
        return self.images

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index]).permute(2, 0, 1), index)


@wrong("CifarMini", fails="bytes to open and read one image", says="whole file")
class reads_it_all(_Base):
    """Loads the file, since it is only a few megabytes."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.images = np.fromfile(self.path, np.uint8).reshape(-1, *self.shape)

    def __getstate__(self):
        return self.__dict__

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.images[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", fails="type of an item", says="plain int", kind=Kind.WRONG_FORM)
class label_as_it_comes(_Base):
    """labels[i] of an array is a NumPy scalar, uint8 here: batches of labels get another dtype."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.labels = np.asarray(self.labels, np.uint8)

    def __getitem__(self, index):
        return torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), self.labels[index]


@wrong("CifarMini", fails="images", says="reshape")
class reshapes_the_pixels(_Base):
    """The file is H, W, 3; a reshape to 3, H, W mixes colours and places."""

    def __getitem__(self, index):
        height, width, _ = self.shape
        return self.finish(torch.from_numpy(self.open()[index].reshape(3, height, width).copy()), index)


@wrong("CifarMini", fails="an index past either end", says="IndexError")
class wraps_the_index(_Base):
    """index % len makes negative indices work, and the data set endless."""

    def __getitem__(self, index):
        index = int(index) % len(self)
        return self.finish(torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", fails="index -2, and an index from NumPy", says="as a list")
class offset_without_negative_indices(_Base):
    """An offset computed from the index: -2 lies before the file, and is read from its beginning."""

    def __getitem__(self, index):
        if index >= len(self) or index < -len(self):
            raise IndexError(index)
        size = int(np.prod(self.shape))
        flat = np.fromfile(self.path, np.uint8, count=size, offset=max(0, int(index)) * size)
        return self.finish(torch.from_numpy(flat.reshape(self.shape)).permute(2, 0, 1), index)


@wrong("CifarMini", fails="length", says="Count the labels")
class length_of_the_file(_Base):
    """One image too many: a closed interval in mind."""

    def __len__(self):
        return len(self.labels) + 1

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", fails="images through two workers", says="in an open file")
class one_open_file_for_all(_Base):
    """A file opened before the fork has one position, and two workers move it."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.file = open(self.path, "rb", buffering=0)

    def __getstate__(self):
        return {**self.__dict__, "file": None}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.file = open(self.path, "rb", buffering=0)

    def __getitem__(self, index):
        label = int(self.labels[index])
        size = int(np.prod(self.shape))
        self.file.seek(int(index) % len(self) * size)
        if get_worker_info() is not None:
            time.sleep(0.001)  # what a busy disk does
        image = np.frombuffer(bytearray(self.file.read(size)).ljust(size, b"\0"), np.uint8).reshape(self.shape)
        image = torch.from_numpy(image).permute(2, 0, 1)
        return (self.transform(image) if self.transform else image), label


@wrong("CifarMini", fails="a second data set, with another file", says="on the class")
class one_map_for_all_data_sets(_Base):
    """The map on the class, so that it is opened once: once for all data sets."""

    shared = None

    def __getitem__(self, index):
        if type(self).shared is None:
            type(self).shared = np.memmap(self.path, np.uint8, "r+", shape=(len(self.labels), *self.shape))
        label = int(self.labels[index])
        image = torch.from_numpy(self.shared[index].copy()).permute(2, 0, 1)
        return (self.transform(image) if self.transform else image), label


@wrong("CifarMini", fails="the file is opened", says='Mode "r"', kind=Kind.PARTLY)
class opened_to_write(_Base):
    """Mode "r+" for the sake of a warning, although each image is copied."""

    def open(self):
        if self.images is None:
            self.images = np.memmap(self.path, np.uint8, "r+", shape=(len(self.labels), *self.shape))
        return self.images

    def __getitem__(self, index):
        return self.finish(torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), index)


@wrong("CifarMini", fails="with a transform", says="gets the uint8 image")
class transform_forgotten(_Base):
    """Takes a transform and does nothing with it."""

    def __getitem__(self, index):
        return torch.from_numpy(self.open()[index].copy()).permute(2, 0, 1), int(self.labels[index])


# -------------------------------------------------------------------------------------------------- PackedStrings
class _Packed(Dataset):
    """Bytes and offsets, as most answers have them."""

    def __init__(self, texts):
        parts = [t.encode("utf-8") for t in texts]
        self.offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(p) for p in parts], out=self.offsets[1:])
        self.data = np.frombuffer(b"".join(parts), np.uint8)

    def __len__(self):
        return len(self.offsets) - 1

    def place(self, index):
        if index < 0:
            index += len(self)
        if index < 0 or index >= len(self):
            raise IndexError(index)
        return self.offsets[index], self.offsets[index + 1]

    def __getitem__(self, index):
        start, end = self.place(index)
        return bytes(self.data[start:end]).decode("utf-8")


@right("PackedStrings")
class offsets_with_a_leading_zero(_Packed):
    pass


@right("PackedStrings")
class tensors_of_bytes(_Packed):
    def __init__(self, texts):
        super().__init__(texts)
        self.offsets, self.data = torch.from_numpy(self.offsets), torch.tensor(self.data)

    def __getitem__(self, index):
        start, end = self.place(index)
        return self.data[start:end].numpy().tobytes().decode()


@right("PackedStrings")
class one_bytes_object(_Packed):
    """A single bytes object has a single reference count."""

    def __init__(self, texts):
        super().__init__(texts)
        self.data = self.data.tobytes()

    def __getitem__(self, index):
        start, end = self.place(index)
        return self.data[start:end].decode()


@wrong("PackedStrings", fails="Python objects that it holds", says="has a counter", kind=Kind.WASTEFUL)
class keeps_the_list(Dataset):
    """A list that nobody changes is shared: reading it writes, too."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


@wrong("PackedStrings", fails="Python objects that it holds", says="object array", kind=Kind.WASTEFUL)
class array_of_objects(Dataset):
    """np.array(dtype=object) is a list in disguise."""

    def __init__(self, texts):
        self.texts = np.array(texts, dtype=object)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


@wrong("PackedStrings", fails="Python objects that it holds", says="of bytes and of places", kind=Kind.WASTEFUL)
class tuple_of_bytes(Dataset):
    """Encoded and immutable, and still an object for each text."""

    def __init__(self, texts):
        self.texts = tuple(t.encode() for t in texts)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index].decode()


@wrong("PackedStrings", fails="Python objects that it holds", says="no list", kind=Kind.WASTEFUL)
class offsets_in_a_list(_Packed):
    """The bytes are packed; the places are a list of integers, each an object with a counter."""

    def __init__(self, texts):
        super().__init__(texts)
        self.offsets, self.data = self.offsets.tolist(), self.data.tobytes()


@wrong("PackedStrings", fails="Python objects that it holds", says="has a counter", kind=Kind.WASTEFUL)
class keeps_what_was_read(_Packed):
    """A cache of decoded texts: every worker fills its own."""

    def __init__(self, texts):
        super().__init__(texts)
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index)
        return self.cache[index]


@wrong("PackedStrings", fails="texts that end in a zero character", says="cuts zeros off")
class fixed_width_array(Dataset):
    """NumPy's own texts: a zero at the end is lost, and each takes the room of the longest."""

    def __init__(self, texts):
        self.texts = np.array(texts)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return str(self.texts[index])


@wrong("PackedStrings", fails="texts", says="bytes, not characters")
class offsets_of_characters(_Packed):
    """Counts characters and cuts bytes: right for ASCII."""

    def __init__(self, texts):
        self.offsets = np.cumsum([0] + [len(t) for t in texts])
        self.data = np.frombuffer("".join(texts).encode(), np.uint8)

    def __getitem__(self, index):
        start, end = self.place(index)
        return self.data[start:end].tobytes().decode(errors="replace")


@wrong("PackedStrings", fails="bytes that it holds", says="no list beside", kind=Kind.WASTEFUL)
class packed_and_kept(_Packed):
    """Packs everything, and keeps the list for the length."""

    def __init__(self, texts):
        super().__init__(texts)
        self.texts = texts

    def __len__(self):
        return len(self.texts)


@wrong("PackedStrings", fails="bytes that it holds", says="no fixed width", kind=Kind.WASTEFUL)
class four_bytes_a_character(_Packed):
    """One array of UTF-32: every character takes four bytes."""

    def __init__(self, texts):
        self.offsets = np.cumsum([0] + [len(t) for t in texts])
        self.data = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)

    def __getitem__(self, index):
        start, end = self.place(index)
        return self.data[start:end].tobytes().decode("utf-32-le")


@wrong("PackedStrings", fails="texts", says="not the text that was put in")
class joined_with_newlines(_Packed):
    """A separator that a text may contain."""

    def __init__(self, texts):
        self.data = "\n".join(texts)
        self.offsets = np.zeros(len(texts) + 1, np.int64)

    def __getitem__(self, index):
        self.place(index)
        return self.data.split("\n")[index]


@wrong("PackedStrings", fails="an index past either end", says="Raise IndexError", kind=Kind.PARTLY)
class slices_past_the_end(_Packed):
    """A slice past the end is empty, and so the data set has no end."""

    def __getitem__(self, index):
        index = index % len(self)
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]]).decode()


# ------------------------------------------------------------------------------------------------ build_transform
@right("build_transform")
def first_version_through_pillow(train, size, mean, std):
    steps = [v1.ToPILImage()]
    if train:
        steps += [v1.RandomHorizontalFlip(0.5), v1.RandomCrop(size, padding=4)]
    chain = v1.Compose([*steps, v1.ToTensor(), v1.Normalize(mean, std)])
    return lambda image: chain(np.asarray(image))


@right("build_transform")
def tensors_all_the_way(train, size, mean, std):
    random_steps = [v2.RandomHorizontalFlip(0.5), v2.RandomCrop(size, padding=(4, 4))] if train else []
    return v2.Compose(
        [
            lambda image: torch.tensor(image).permute(2, 0, 1),
            v2.ToDtype(torch.float32, scale=True),
            *random_steps,
            v2.Normalize(mean=mean, std=std),
        ]
    )


@right("build_transform")
def by_hand(train, size, mean, std):
    mean, std = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)

    def transform(image):
        image = np.array(image)
        if train:
            dy, dx = torch.randint(0, 9, (2,)).tolist()
            image = np.pad(image, ((4, 4), (4, 4), (0, 0)))[dy : dy + size[0], dx : dx + size[1]]
            if torch.rand(()) < 0.5:
                image = image[:, ::-1].copy()
        return (torch.from_numpy(image).permute(2, 0, 1) / 255 - mean) / std

    return transform


@wrong("build_transform", fails="flipped", says="does not know")
def flips_what_v2_does_not_know(train, size, mean, std):
    """v2 hands an array on as it is: the flip silently does nothing."""
    steps = [v2.RandomHorizontalFlip()] if train else []
    steps += [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps.append(v2.RandomCrop(size, padding=4))
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", kind=Kind.CRASHED, says="PIL Image")
def flips_the_array_first(train, size, mean, std):
    """The order of many tutorials: the first version's flip refuses an array, whenever the coin says flip."""
    steps = [v1.RandomHorizontalFlip()] if train else []
    steps += [v1.Lambda(np.array), v1.ToTensor()]
    if train:
        steps.append(v1.RandomCrop(size, padding=4))
    return v1.Compose([*steps, v1.Normalize(mean, std)])


@wrong("build_transform", fails="colours that are new, black aside", says="before Normalize")
def crops_after_normalize(train, size, mean, std):
    """Pads with 0 when 0 is no longer black but the mean colour."""
    steps = [v2.Lambda(np.array), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps + ([v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()] if train else []))


@wrong("build_transform", fails="values, for testing", says="First scale")
def dtype_without_scale(train, size, mean, std):
    """ToDtype(float32) is believed to scale, as ToTensor did."""
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32), v2.Normalize(mean, std)])


@wrong("build_transform", fails="the same every time, for testing", says="Only the training transform")
def always_augments(train, size, mean, std):
    """Forgets the switch."""
    return v2.Compose(
        [
            v2.Lambda(np.array),
            v2.ToImage(),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
        ]
    )


@wrong("build_transform", fails="shifts in rows", says="padding of 4")
def crop_without_padding(train, size, mean, std):
    """A crop to the size of the image has one place only."""
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size), v2.RandomHorizontalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", fails="warnings", says="memory of its own", kind=Kind.PARTLY)
def image_of_the_map_itself(train, size, mean, std):
    """ToImage takes the map as it is, and the tensor is a window onto the file."""
    steps = [v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", fails="flipped", says="% of the images")
def flips_a_third(train, size, mean, std):
    """Another probability than the one asked for."""
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip(p=0.3)]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", fails="flipped", says="0.5")
def always_flips(train, size, mean, std):
    """p=1 makes the flip easy to see, and stays in."""
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip(p=1.0)]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", fails="all are windows of the image", says="left and right")
def flips_upside_down(train, size, mean, std):
    """A horizontal flip is taken for one about the horizontal axis."""
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        steps += [v2.RandomCrop(size, padding=4), v2.RandomVerticalFlip()]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])


@wrong("build_transform", fails="type, for testing", says="float32 tensor (3, H, W)")
def hands_on_height_width_channels(train, size, mean, std):
    """Normalises by hand and leaves the channels last."""

    def transform(image):
        values = (np.array(image) / 255 - np.array(mean)) / np.array(std)
        return torch.from_numpy(values.astype(np.float32))

    return transform


# ------------------------------------------------------------------------------------------- channel_statistics
@right("channel_statistics")
def counts_every_value(images):
    histogram = np.zeros((3, 256), np.int64)
    for image in images:
        for c in range(3):
            histogram[c] += np.bincount(image[..., c].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = histogram @ values / histogram.sum(1)
    std = np.sqrt((histogram * (values - mean[:, None]) ** 2).sum(1) / histogram.sum(1))
    return mean, std


@right("channel_statistics")
def running_moments(images):
    n, mean, m2 = 0, np.zeros(3), np.zeros(3)
    for image in images:
        x = (image / 255.0).reshape(-1, 3)
        k, m = len(x), x.mean(0)
        m2 += ((x - m) ** 2).sum(0) + (m - mean) ** 2 * n * k / (n + k)
        mean = mean + (m - mean) * k / (n + k)
        n += k
    return mean, np.sqrt(m2 / n)


@right("channel_statistics")
def torch_doubles(images):
    n, s, q = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for image in images:
        x = torch.tensor(image).double() / 255
        n += x.shape[0] * x.shape[1]
        s += x.sum((0, 1))
        q += x.square().sum((0, 1))
    return (s / n).numpy(), (q / n - (s / n) ** 2).sqrt().numpy()


@wrong("channel_statistics", fails="standard deviation", says="one mean")
def mean_of_the_stds(images):
    """The recipe behind the widely copied 0.2023: averages the images' own stds, with the right mean."""
    n, s, stds = 0, np.zeros(3), []
    for image in images:
        x = image.reshape(-1, 3) / 255
        n, s = n + len(x), s + x.sum(0)
        stds.append(x.std(0))
    return s / n, np.mean(stds, axis=0)


@wrong("channel_statistics", fails="mean", says="all pixels")
def mean_of_the_means(images):
    """Gives a small image the weight of a large one."""
    means, squares = [], []
    for image in images:
        x = image.reshape(-1, 3) / 255
        means.append(x.mean(0))
        squares.append((x**2).mean(0))
    mean = np.mean(means, axis=0)
    return mean, np.sqrt(np.mean(squares, axis=0) - mean**2)


@wrong("channel_statistics", fails="standard deviation", says="int64 or float64")
def squares_in_eight_bits(images):
    """uint8 squares go round at 256."""
    n, s, q = 0, np.zeros(3), np.zeros(3)
    for image in images:
        x = image.reshape(-1, 3)
        n, s, q = n + len(x), s + x.sum(0), q + (x**2).sum(0)
    mean = s / n
    return mean / 255, np.sqrt(np.abs(q / n - mean**2)) / 255


@wrong("channel_statistics", fails="standard deviation", says="go round at 256")
def root_of_what_went_round(images):
    """uint8 squares, and a root of what is left: no number at all."""
    n, s, q = 0, np.zeros(3), np.zeros(3)
    for image in images:
        x = image.reshape(-1, 3)
        n, s, q = n + len(x), s + x.sum(0), q + (x * x).sum(0)
    return s / n / 255, np.sqrt(q / n - (s / n) ** 2) / 255


@wrong("channel_statistics", fails="type of the result", says="Tensor float64", kind=Kind.WRONG_FORM)
def hands_on_tensors(images):
    """The right numbers as tensors."""
    return tuple(map(torch.from_numpy, running_moments(images)))


@wrong("channel_statistics", fails="bytes at peak", says="held at once", kind=Kind.WASTEFUL)
def all_pixels_at_once(images):
    """Right, as long as everything fits into the memory."""
    x = np.concatenate([image.reshape(-1, 3) for image in images]) / 255
    return x.mean(0), x.std(0)


@wrong("channel_statistics", fails="standard deviation", says="seven digits")
def in_single_precision(images):
    """float32 has seven digits, and the difference of two large squares eats them."""
    n, s, q = 0, np.zeros(3, np.float32), np.zeros(3, np.float32)
    total = np.zeros(3, np.int64)
    for image in images:
        x = image.reshape(-1, 3).astype(np.float32) / np.float32(255)
        n, q = n + len(x), q + (x**2).sum(0)
        total += image.reshape(-1, 3).sum(0, dtype=np.int64)
        s = s + x.sum(0)
    mean = (s / n).astype(np.float64)
    return total / n / 255, np.sqrt(np.abs(q / n - mean**2)).astype(np.float64)


@wrong("channel_statistics", fails="mean", says="from 0 to 255")
def leaves_the_range(images):
    """Statistics of 0..255 for pixels that will be 0..1."""
    n, s, q = 0, np.zeros(3), np.zeros(3)
    for image in images:
        x = image.reshape(-1, 3).astype(np.float64)
        n, s, q = n + len(x), s + x.sum(0), q + (x**2).sum(0)
    return s / n, np.sqrt(q / n - (s / n) ** 2)


@wrong("channel_statistics", fails="standard deviation", says="gone through twice")
def goes_through_twice(images):
    """Two passes over something that can be gone through once: the second finds nothing."""
    n, s = 0, np.zeros(3)
    for image in images:
        x = image.reshape(-1, 3) / 255
        n, s = n + len(x), s + x.sum(0)
    q = np.zeros(3)
    for image in images:
        q += ((image.reshape(-1, 3) / 255 - s / n) ** 2).sum(0)
    return s / n, np.sqrt(q / n)


# ---------------------------------------------------------------------------------------------------- denormalize
@right("denormalize")
def unsqueeze_twice(batch, mean, std):
    mean = torch.as_tensor(mean).to(batch)[:, None, None]
    std = torch.as_tensor(std).to(batch)[:, None, None]
    return std.mul(batch).add(mean)


@right("denormalize")
def channels_to_the_end(batch, mean, std):
    last = batch.movedim(-3, -1)
    out = last * batch.new_tensor([float(s) for s in std]) + batch.new_tensor([float(m) for m in mean])
    return out.movedim(-1, -3)


@right("denormalize")
def channel_by_channel(batch, mean, std):
    out = batch.clone()
    for c in range(3):
        out[..., c, :, :].mul_(float(std[c])).add_(float(mean[c]))
    return out


@right("denormalize")
def normalises_backwards(batch, mean, std):
    m = [float(x) for x in mean]
    s = [float(x) for x in std]
    return v2.functional.normalize(batch, [-a / b for a, b in zip(m, s)], [1 / b for b in s])


@wrong("denormalize", fails="values", says="(3, 1, 1)")
def on_the_last_axis(batch, mean, std):
    """Shape (3,) belongs to the last axis, the width."""
    mean, std = torch.as_tensor(mean).to(batch), torch.as_tensor(std).to(batch)
    if batch.shape[-1] != 3:
        mean, std = mean.view(3, 1, 1), std.view(3, 1, 1)
    return batch * std + mean


@wrong("denormalize", fails="input left as it was", says="in place")
def in_place(batch, mean, std):
    """Saves memory, and changes what the model is about to see."""
    mean = torch.as_tensor(mean).to(batch).view(3, 1, 1)
    std = torch.as_tensor(std).to(batch).view(3, 1, 1)
    return batch.mul_(std).add_(mean)


@wrong("denormalize", fails="values", says="normalised * std + mean")
def normalises_once_more(batch, mean, std):
    """The formula of Normalize itself."""
    mean = torch.as_tensor(mean).to(batch).view(3, 1, 1)
    std = torch.as_tensor(std).to(batch).view(3, 1, 1)
    return (batch - mean) / std


@wrong("denormalize", fails="a batch on another device", says="stayed on the CPU", kind=Kind.PARTLY)
def constants_on_the_cpu(batch, mean, std):
    """Constants are made where tensors are made by default."""
    mean = torch.as_tensor(mean, dtype=batch.dtype).view(3, 1, 1)
    std = torch.as_tensor(std, dtype=batch.dtype).view(3, 1, 1)
    return batch * std + mean


@wrong("denormalize", fails="values", says="clip nothing")
def clips_as_well(batch, mean, std):
    """For the picture values are clipped; the function was to undo, not to paint."""
    mean = torch.as_tensor(mean).to(batch).view(3, 1, 1)
    std = torch.as_tensor(std).to(batch).view(3, 1, 1)
    return (batch * std + mean).clamp(0, 1)


@wrong("denormalize", fails="one image", says="its own shape", kind=Kind.PARTLY)
def batches_only(batch, mean, std):
    """view(1, 3, 1, 1) makes a batch of one out of an image."""
    mean = torch.as_tensor(mean).to(batch).view(1, 3, 1, 1)
    std = torch.as_tensor(std).to(batch).view(1, 3, 1, 1)
    return batch * std + mean


@wrong("denormalize", fails="type of the result", kind=Kind.WRONG_FORM)
def in_double_precision(batch, mean, std):
    """NumPy's constants are float64, and a tensor of them makes the result float64."""
    mean = torch.from_numpy(np.array([float(m) for m in mean])).to(batch.device)
    std = torch.from_numpy(np.array([float(s) for s in std])).to(batch.device)
    return batch * std.view(3, 1, 1) + mean.view(3, 1, 1)


# ---------------------------------------------------------------------------------------------- batches_in_flight
@right("batches_in_flight")
def if_without_workers(loader):
    if loader.num_workers == 0:
        return 0
    return min(len(loader), loader.num_workers * loader.prefetch_factor)


@right("batches_in_flight")
def asks_an_iterator(loader):
    iterator = iter(loader)
    try:
        return getattr(iterator, "_send_idx", 0)
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


@right("batches_in_flight")
def counts_what_is_asked_for(loader):
    class Counting:
        def __init__(self, sampler):
            self.sampler, self.count = sampler, 0

        def __iter__(self):
            for item in self.sampler:
                self.count += 1
                yield item

        def __len__(self):
            return len(self.sampler)

    settings = dict(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor)
    if loader.batch_sampler is None:
        counting = Counting(loader.sampler)
        copy = DataLoader(loader.dataset, batch_size=None, sampler=counting, **settings)
    else:
        counting = Counting(loader.batch_sampler)
        copy = DataLoader(loader.dataset, batch_sampler=counting, **settings)
    iterator = iter(copy)
    count = counting.count
    del iterator
    return count


@wrong("batches_in_flight", fails="prefetch_factor given", says="Multiply by the workers")
def takes_the_factor_for_the_total(loader):
    """Believes that prefetch_factor counts for the loader, not for a worker."""
    return min(loader.prefetch_factor or 0, len(loader))


@wrong("batches_in_flight", fails="prefetch_factor given", says="prefetch_factor batches")
def always_two_each(loader):
    """Knows the default, and overlooks that it was set."""
    return min(2 * loader.num_workers, len(loader))


@wrong("batches_in_flight", fails="no workers", says="TypeError")
def multiplies_none(loader):
    """Without workers prefetch_factor is None."""
    return min(loader.num_workers * loader.prefetch_factor, len(loader))


@wrong("batches_in_flight", fails="fewer batches than that", says="len(loader) counts")
def more_than_there_are(loader):
    """Forgets that the data may end first."""
    return loader.num_workers * (loader.prefetch_factor or 0)


@wrong("batches_in_flight", fails="no workers", says="Without workers nothing")
def one_without_workers(loader):
    """Counts the batch that will be read when it is asked for."""
    return min(max(1, loader.num_workers * (loader.prefetch_factor or 0)), len(loader))


@wrong("batches_in_flight", fails="a batch_sampler", says="batch_size")
def batches_from_the_batch_size(loader):
    """Computes the number of batches from batch_size, which is None beside a batch_sampler."""
    if loader.batch_size is None and loader.batch_sampler is not None:
        return 0
    return min(loader.num_workers * (loader.prefetch_factor or 0), len(loader))


_kept = []


@wrong("batches_in_flight", fails="processes left running", says="Delete the iterator", kind=Kind.PARTLY)
def leaves_its_workers(loader):
    """Measures, and keeps the iterator."""
    _kept.append(iter(loader))
    return getattr(_kept[-1], "_send_idx", 0)


# ------------------------------------------------------------------------------------------------ loader_settings
@right("loader_settings")
def table_of_settings(goal, cores, gpu):
    return {
        "debugging": {},
        "low memory": {"num_workers": 0},
        "throughput": dict(num_workers=cores, persistent_workers=True, pin_memory=gpu, shuffle=True, drop_last=True),
    }[goal]


@right("loader_settings")
def with_more_arguments(goal, cores, gpu):
    settings = {"batch_size": 32}
    if goal == "throughput":
        settings.update(
            num_workers=max(2, cores - 1), prefetch_factor=4, persistent_workers=True, pin_memory=gpu, shuffle=True
        )
    elif goal == "low memory":
        settings.update(batch_size=8, num_workers=1, prefetch_factor=1, persistent_workers=False)
    else:
        settings.update(num_workers=0, pin_memory=False, shuffle=False, prefetch_factor=None)
    return settings


def _settings(goal, cores, gpu, **changed):
    good = {
        "debugging": dict(num_workers=0),
        "low memory": dict(num_workers=1, prefetch_factor=1),
        "throughput": dict(num_workers=cores, persistent_workers=True, pin_memory=gpu, shuffle=True),
    }[goal]
    return {**good, **changed.get(goal.replace(" ", "_"), {})}


@wrong("loader_settings", fails="throughput: DataLoader takes it", says="keyword")
def max_workers(goal, cores, gpu):
    """An argument of other libraries."""
    return _settings(goal, cores, gpu, throughput={"max_workers": 2})


@wrong("loader_settings", fails="debugging: DataLoader takes it", says="persistent_workers")
def persistent_without_workers(goal, cores, gpu):
    """persistent_workers is believed to do no harm without workers."""
    return _settings(goal, cores, gpu, debugging={"persistent_workers": True})


@wrong("loader_settings", fails="low memory: DataLoader takes it", says="prefetch_factor")
def prefetch_without_workers(goal, cores, gpu):
    """prefetch_factor=1 for low memory, with no worker to fetch."""
    return _settings(goal, cores, gpu, low_memory={"num_workers": 0, "prefetch_factor": 1})


@wrong("loader_settings", fails="debugging: in this process", says="breakpoint")
def one_worker_is_debuggable(goal, cores, gpu):
    """One worker is no parallelism, but another process."""
    return _settings(goal, cores, gpu, debugging={"num_workers": 1})


@wrong("loader_settings", fails="low memory: batches in advance", says="prefetch_factor=1", kind=Kind.PARTLY)
def one_worker_default_prefetch(goal, cores, gpu):
    """Fewer workers, and their default of two batches each."""
    return {"num_workers": 1} if goal == "low memory" else _settings(goal, cores, gpu)


@wrong("loader_settings", fails="throughput: a worker per core, at most", says="cores")
def the_more_the_better(goal, cores, gpu):
    """Sixteen workers on any machine."""
    return _settings(goal, cores, gpu, throughput={"num_workers": 16})


@wrong("loader_settings", fails="throughput: pinned only with a GPU", says="pin_memory=gpu", kind=Kind.PARTLY)
def always_pins(goal, cores, gpu):
    """pin_memory=True as a rule."""
    return _settings(goal, cores, gpu, throughput={"pin_memory": True})


@wrong("loader_settings", fails="throughput: workers stay", says="every epoch", kind=Kind.PARTLY)
def new_workers_every_epoch(goal, cores, gpu):
    """Believes that workers stay by themselves."""
    return _settings(goal, cores, gpu, throughput={"persistent_workers": False})


@wrong("loader_settings", fails="throughput: batches in advance", says="idles", kind=Kind.PARTLY)
def one_batch_each(goal, cores, gpu):
    """prefetch_factor=1, carried over from the other goal."""
    return _settings(goal, cores, gpu, throughput={"prefetch_factor": 1})


# ------------------------------------------------------------------------------------------------- closing_loader
@right("closing_loader")
class closing_loader_as_a_class:
    def __init__(self, dataset, **settings):
        self.made = made = []

        class Loader(DataLoader):
            def _get_iterator(self):
                made.append(super()._get_iterator())
                return made[-1]

        self.loader = Loader(dataset, **settings)

    def __enter__(self):
        return self.loader

    def __exit__(self, *error):
        for iterator in self.made:
            getattr(iterator, "_shutdown_workers", lambda: None)()
        self.made.clear()
        self.loader._iterator = None


@right("closing_loader")
@contextmanager
def patches_the_instance(dataset, **settings):
    loader = DataLoader(dataset, **settings)
    make, made = loader._get_iterator, []
    loader._get_iterator = lambda: made.append(make()) or made[-1]
    try:
        yield loader
    finally:
        while made:
            iterator = made.pop()
            if loader.num_workers > 0:
                iterator._shutdown_workers()
            del iterator
        loader._iterator = None
        del loader._get_iterator  # a reference cycle otherwise


@wrong("closing_loader", fails="workers left with an iterator kept", says="every iterator")
@contextmanager
def deletes_its_own_name(dataset, **settings):
    """del loader drops one reference of several."""
    loader = DataLoader(dataset, **settings)
    try:
        yield loader
    finally:
        del loader


@wrong("closing_loader", fails="workers left with an iterator kept", says="finally")
@contextmanager
def shuts_down_the_persistent_one(dataset, **settings):
    """loader._iterator is the persistent iterator alone; others are not found there."""
    loader = DataLoader(dataset, **settings)
    try:
        yield loader
    finally:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()
            loader._iterator = None


def _remembering(dataset, settings):
    made = []

    class Loader(DataLoader):
        def __iter__(self):
            made.append(super().__iter__())
            return made[-1]

    return Loader(dataset, **settings), made


@wrong("closing_loader", fails="workers left after an exception", says="finally")
@contextmanager
def no_finally(dataset, **settings):
    """What stands after yield does not run when the block raises."""
    loader, made = _remembering(dataset, settings)
    yield loader
    for iterator in made:
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    made.clear()
    loader._iterator = None


@wrong("closing_loader", fails="an exception leaves the block", says="swallowed")
@contextmanager
def swallows(dataset, **settings):
    """except Exception, to be on the safe side."""
    loader, made = _remembering(dataset, settings)
    try:
        yield loader
    except Exception:
        pass
    finally:
        for iterator in made:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
        made.clear()
        loader._iterator = None


@wrong("closing_loader", fails="it is the block's own", says="in place of the one")
@contextmanager
def raises_one_of_its_own(dataset, **settings):
    """Wraps the exception: whoever waits for the block's own one does not get it."""
    loader, made = _remembering(dataset, settings)
    try:
        yield loader
    except Exception as error:
        raise RuntimeError("the loop failed") from error
    finally:
        for iterator in made:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
        made.clear()
        loader._iterator = None


@wrong("closing_loader", kind=Kind.CRASHED, says="_shutdown_workers")
@contextmanager
def the_famous_line(dataset, **settings):
    """loader._iterator._shutdown_workers(), although there is no _iterator without persistent workers."""
    loader = DataLoader(dataset, **settings)
    try:
        yield loader
    finally:
        loader._iterator._shutdown_workers()


@wrong("closing_loader", fails="persistent workers serve two epochs", says="passed on")
@contextmanager
def never_persistent(dataset, **settings):
    """Solves it by forbidding what was asked for."""
    settings.pop("persistent_workers", None)
    loader, made = _remembering(dataset, settings)
    try:
        yield loader
    finally:
        for iterator in made:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
        made.clear()


_remembered = []


@wrong("closing_loader", fails="file descriptors left", says="Pipes", kind=Kind.PARTLY)
@contextmanager
def remembers_for_ever(dataset, **settings):
    """A module-level list keeps ended iterators, and with them their pipes."""
    loader, made = _remembering(dataset, settings)
    _remembered.append(made)
    try:
        yield loader
    finally:
        for iterator in made:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
        loader._iterator = None


@wrong("closing_loader", kind=Kind.CRASHED, says="close")
def contextlib_closing(dataset, **settings):
    """closing() calls loader.close(), which a DataLoader does not have."""
    return closing(DataLoader(dataset, **settings))


# -------------------------------------------------------------------------------------------------- epoch_sampler
@right("epoch_sampler")
def torch_generator(length, epoch, seed):
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(length, generator=generator).tolist()


@right("epoch_sampler")
def python_random(length, epoch, seed):
    return random.Random(f"{seed}/{epoch}").sample(range(length), length)


@right("epoch_sampler")
def array_of_indices(length, epoch, seed):
    order = np.arange(length)
    np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,)))).shuffle(order)
    return order


@right("epoch_sampler")
class sampler_class(torch.utils.data.Sampler):
    def __init__(self, length, epoch, seed):
        self.length, self.entropy = length, (seed, epoch)

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(np.random.default_rng(self.entropy).permutation(self.length))


@wrong("epoch_sampler", fails="orders in 5 epochs of 5 runs", says="just added", kind=Kind.PARTLY)
def seed_plus_epoch(length, epoch, seed):
    """The common recipe: runs with neighbouring seeds share most epochs."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


@wrong("epoch_sampler", fails="epochs shared with the next seed", says="moves the clash", kind=Kind.PARTLY)
def seed_times_a_thousand(length, epoch, seed):
    """Room for a thousand epochs: epoch 1000 is the next seed's first."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(1000 * seed + epoch)).tolist()


@wrong("epoch_sampler", fails="steps for 2000 more epochs", says="goes through all epochs", kind=Kind.WASTEFUL)
def shuffles_its_way_there(length, epoch, seed):
    """One generator from the seed, and all orders before the one that is wanted."""
    rng = np.random.default_rng(seed)
    for _ in range(epoch):
        rng.permutation(length)
    return rng.permutation(length).tolist()


@wrong("epoch_sampler", fails="the global generators", says="resets", kind=Kind.PARTLY)
def seeds_the_global_generator(length, epoch, seed):
    """Replayable, and everything random after it is the same in every epoch."""
    torch.manual_seed(hash((seed, epoch)))
    return torch.randperm(length).tolist()


@wrong("epoch_sampler", fails="orders in 6 epochs", says="epoch has to decide")
def same_order_every_epoch(length, epoch, seed):
    """Seeded with the seed alone, so that it is reproducible."""
    return np.random.default_rng(seed).permutation(length).tolist()


@wrong("epoch_sampler", fails="orders for 6 seeds", says="different seeds")
def epoch_alone(length, epoch, seed):
    """manual_seed(epoch): every run has the same orders."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(epoch)).tolist()


@wrong("epoch_sampler", fails="the same epoch again", says="a generator of your own")
def not_seeded_at_all(length, epoch, seed):
    """Shuffled, and never again the same."""
    return np.random.default_rng().permutation(length).tolist()


_living = np.random.default_rng(3)


@wrong("epoch_sampler", fails="the same epoch again", says="depends on more")
def generator_that_lives_on(length, epoch, seed):
    """One generator for all epochs: reproducible from the start only."""
    return _living.permutation(length).tolist()


@wrong("epoch_sampler", fails="shuffled", says="shifted or turned")
def rotates(length, epoch, seed):
    """Each epoch begins elsewhere in the same order."""
    return [(i + 7919 * seed + 104_729 * epoch) % length for i in range(length)]


@wrong("epoch_sampler", fails="every index once", says="exactly once")
def with_replacement(length, epoch, seed):
    """Random indices are no permutation."""
    return np.random.default_rng([seed, epoch]).integers(0, length, length).tolist()


@wrong("epoch_sampler", fails="works as a sampler", says="length", kind=Kind.PARTLY)
def generator_function(length, epoch, seed):
    """yields the indices: no length."""
    yield from np.random.default_rng([seed, epoch]).permutation(length).tolist()


# ---------------------------------------------------------------------------------------------------- worker_init
@right("worker_init")
def from_the_initial_seed(worker_id):
    dataset = get_worker_info().dataset
    seed = torch.initial_seed()
    dataset.numpy_rng = np.random.default_rng(seed)
    dataset.torch_rng = torch.Generator().manual_seed(seed)
    dataset.python_rng = random.Random(seed)


@right("worker_init")
def drawn_from_seeded_globals(worker_id):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.numpy_rng = np.random.default_rng(np.random.randint(0, 2**31, size=4))
    dataset.torch_rng.manual_seed(int(torch.randint(2**62, ())))
    dataset.python_rng.seed(random.getrandbits(64))


@right("worker_init")
def seed_sequences(worker_id):
    info = get_worker_info()
    a, b, c = np.random.SeedSequence(info.seed).spawn(3)
    info.dataset.numpy_rng = np.random.default_rng(a)
    info.dataset.torch_rng.manual_seed(int(b.generate_state(1)[0]))
    info.dataset.python_rng.seed(int(c.generate_state(1)[0]))


def _seed_all(dataset, seed):
    dataset.numpy_rng = np.random.default_rng(seed)
    dataset.torch_rng.manual_seed(seed)
    dataset.python_rng.seed(seed)


@wrong("worker_init", fails="NumPy: generator", says="data set's own generator")
def seeds_the_globals(worker_id):
    """The recipe for NumPy's global generator, which torch seeds anyway; private ones stay copies."""
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed())


@wrong("worker_init", fails="NumPy: numbers in two epochs", says="draws a new one each epoch")
def by_worker_number(worker_id):
    """Different for each worker, and the same in every epoch."""
    _seed_all(get_worker_info().dataset, worker_id)


@wrong("worker_init", fails="NumPy: numbers in an epoch", says="A fixed seed")
def constant_seed(worker_id):
    """A fixed seed, for reproducibility: brings back what it was to cure."""
    _seed_all(get_worker_info().dataset, 42)


@wrong("worker_init", fails="NumPy: the same when replayed", says="clock")
def entropy_of_the_system(worker_id):
    """Fresh entropy: different everywhere, and never again."""
    _seed_all(get_worker_info().dataset, int.from_bytes(os.urandom(6), "big"))


@wrong("worker_init", fails="NumPy: the same when replayed", says="no run can be repeated")
def time_and_process(worker_id):
    """Clock and process number."""
    _seed_all(get_worker_info().dataset, time.time_ns() ^ os.getpid())


@wrong("worker_init", kind=Kind.CRASHED, says="32")
def seed_too_large_for_numpy(worker_id):
    """np.random.seed takes 32 bits, torch.initial_seed() has 64."""
    np.random.seed(torch.initial_seed())
    _seed_all(get_worker_info().dataset, torch.initial_seed())


@wrong("worker_init", fails="torch: generator", says="the copy of", kind=Kind.PARTLY)
def numpy_alone(worker_id):
    """One generator of three."""
    info = get_worker_info()
    info.dataset.numpy_rng = np.random.default_rng(info.seed)


# -------------------------------------------------------------------------------------------------- SeededDataset
class _Noisy(Dataset):
    def __init__(self, values, seed, sigma):
        self.values, self.seed, self.sigma, self.epoch = values, seed, sigma, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.values)

    def generator(self, index):
        return np.random.default_rng((self.seed, self.epoch, index))

    def __getitem__(self, index):
        index = index + len(self) if index < 0 else index
        row = self.values[index]
        noise = self.generator(index).normal(0, self.sigma, row.shape)
        return torch.tensor(row + noise, dtype=torch.float32)


@right("SeededDataset")
class numpy_generator_per_item(_Noisy):
    pass


@right("SeededDataset")
class torch_generator_per_item(_Noisy):
    def __getitem__(self, index):
        index = range(len(self))[index]
        key = np.random.SeedSequence([self.seed, self.epoch, index]).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(key))
        row = torch.from_numpy(self.values[index])
        return row + self.sigma * torch.randn(row.shape, generator=generator)


@right("SeededDataset")
class noise_of_the_epoch_at_once(_Noisy):
    """All noise of an epoch, drawn again by whoever needs it: much work, and right."""

    def __getitem__(self, index):
        noise = np.random.default_rng([self.seed, self.epoch]).standard_normal(self.values.shape)
        return torch.from_numpy((self.values + self.sigma * noise)[index].astype(np.float32))


@wrong("SeededDataset", fails="the same item again", says="generator per item")
class generator_in_init(_Noisy):
    """A private generator: what comes out depends on who asked before."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rng = np.random.default_rng(self.seed)

    def generator(self, index):
        return self.rng


@wrong("SeededDataset", fails="the same item again", says="generator per item")
class generator_in_set_epoch(_Noisy):
    """Seeds anew for each epoch, and then draws in order."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.rng = np.random.default_rng([self.seed, epoch])

    def generator(self, index):
        return self.rng


@wrong("SeededDataset", fails="noises in two epochs", says="all three")
class epoch_forgotten(_Noisy):
    """Item and seed decide: the same augmentation in every epoch."""

    def generator(self, index):
        return np.random.default_rng([self.seed, index])


@wrong("SeededDataset", fails="noises in two epochs", says="share their noise")
class index_forgotten(_Noisy):
    """The same noise for every item of an epoch."""

    def generator(self, index):
        return np.random.default_rng([self.seed, self.epoch])


@wrong("SeededDataset", fails="noises in two epochs", says="share their noise")
class sum_of_all_three(_Noisy):
    """seed + epoch + index: item 5 of epoch 0 is item 4 of epoch 1."""

    def generator(self, index):
        return np.random.default_rng(self.seed + self.epoch + index)


@wrong("SeededDataset", fails="noises in 4 epochs of 4 runs", says="share noise", kind=Kind.PARTLY)
class runs_overlap(_Noisy):
    """Room for the items, none between epochs and seeds."""

    def generator(self, index):
        return np.random.default_rng(self.seed + self.epoch + 1_000 * index)


@wrong("SeededDataset", fails="noises in 4 epochs of 4 runs", says="too small a factor", kind=Kind.PARTLY)
class room_for_a_hundred_items(_Noisy):
    """A factor for each number: item 100 of an epoch is item 0 of the next."""

    def generator(self, index):
        return np.random.default_rng(self.seed * 10_000 + self.epoch * 100 + index)


@wrong("SeededDataset", fails="index -1", says="Turn a negative index", kind=Kind.PARTLY)
class minus_one_has_noise_of_its_own(_Noisy):
    """values[-1] is the last row, but -1 is another seed than the last index."""

    def __getitem__(self, index):
        row = self.values[index]
        noise = np.random.default_rng((self.seed, self.epoch, index % 2**32)).normal(0, self.sigma, row.shape)
        return torch.tensor(row + noise, dtype=torch.float32)


@wrong("SeededDataset", fails="the global generators", says="of your own", kind=Kind.PARTLY)
class reseeds_the_global_one(_Noisy):
    """np.random.seed in __getitem__."""

    def generator(self, index):
        np.random.seed(np.random.SeedSequence([self.seed, self.epoch, index]).generate_state(1))
        return np.random


@wrong("SeededDataset", fails="values left as they were", says="grows")
class adds_in_place(_Noisy):
    """+= on a row writes into the data set's own array."""

    def __getitem__(self, index):
        index = range(len(self))[index]
        row = self.values[index]
        row += self.sigma * self.generator(index).standard_normal(row.shape).astype(np.float32)
        return torch.from_numpy(row.copy())


@wrong("SeededDataset", fails="type of an item", says="float32", kind=Kind.WRONG_FORM)
class double_precision(_Noisy):
    """NumPy's noise is float64, and so is the sum."""

    def __getitem__(self, index):
        index = range(len(self))[index]
        return torch.from_numpy(
            self.values[index] + self.sigma * self.generator(index).standard_normal(len(self.values[0]))
        )


@wrong("SeededDataset", fails="size of the noise", says="sigma *")
class uniform_noise(_Noisy):
    """random() is uniform on [0, 1)."""

    def __getitem__(self, index):
        index = range(len(self))[index]
        row = self.values[index]
        return torch.from_numpy((row + self.sigma * self.generator(index).random(len(row))).astype(np.float32))


# ---------------------------------------------------------------------------------------------------- fetch_batch
@right("fetch_batch")
def clipped_places_and_a_mask(images, labels, indices, shifts, flips):
    height, width = images.shape[1:3]
    rows = np.arange(height) + shifts[:, 0:1]
    columns = np.where(flips[:, None], np.arange(width)[::-1], np.arange(width)) + shifts[:, 1:2]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    chosen = np.asarray(indices)[:, None, None]
    out = images[chosen, rows.clip(0, height - 1)[:, :, None], columns.clip(0, width - 1)[:, None, :]]
    out[~inside] = 0
    return torch.from_numpy(np.ascontiguousarray(out.transpose(0, 3, 1, 2))), torch.as_tensor(labels[indices])


@right("fetch_batch")
def gather_in_torch(images, labels, indices, shifts, flips):
    batch = torch.from_numpy(images[indices]).permute(0, 3, 1, 2)
    n, c, h, w = batch.shape
    padded = torch.nn.functional.pad(batch, (4, 4, 4, 4))
    shifts = torch.as_tensor(shifts)
    rows = 4 + shifts[:, :1] + torch.arange(h)
    columns = torch.arange(w).expand(n, w)
    columns = torch.where(torch.as_tensor(flips)[:, None], columns.flip(1), columns) + 4 + shifts[:, 1:]
    out = padded.gather(2, rows[:, None, :, None].expand(n, c, h, w + 8))
    out = out.gather(3, columns[:, None, None, :].expand(n, c, h, w))
    return out, torch.as_tensor(labels)[indices]


@right("fetch_batch")
def sliding_windows(images, labels, indices, shifts, flips):
    batch = np.pad(images[indices], ((0, 0), (4, 4), (4, 4), (0, 0)))
    h, w = images.shape[1:3]
    windows = np.lib.stride_tricks.sliding_window_view(batch, (h, w), axis=(1, 2))
    out = windows[np.arange(len(batch)), 4 + shifts[:, 0], 4 + shifts[:, 1]]
    out[flips] = out[flips][..., ::-1]
    return torch.from_numpy(out).contiguous(), torch.from_numpy(np.asarray(labels)[indices])


def _one(image, dy, dx, flip):
    height, width, _ = image.shape
    window = np.pad(image, ((4, 4), (4, 4), (0, 0)))[4 + dy : 4 + dy + height, 4 + dx : 4 + dx + width]
    return window[:, ::-1] if flip else window


@wrong("fetch_batch", fails="Python steps per further image", says="once more for every image", kind=Kind.WASTEFUL)
def a_loop_in_a_comprehension(images, labels, indices, shifts, flips):
    """One expression is not one step."""
    windows = [_one(images[i], dy, dx, f) for i, (dy, dx), f in zip(indices, shifts, flips)]
    return torch.from_numpy(np.stack(windows)).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="Python steps per further image", says="Index with arrays", kind=Kind.WASTEFUL)
def a_loop_inside_map(images, labels, indices, shifts, flips):
    """map calls the function for every image as well."""
    windows = list(map(_one, images[indices], shifts[:, 0], shifts[:, 1], flips))
    return torch.from_numpy(np.stack(windows)).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


def _windows(images, indices, shifts, flips):
    height, width = images.shape[1:3]
    padded = np.pad(images[indices], ((0, 0), (4, 4), (4, 4), (0, 0)))
    rows = 4 + shifts[:, :1] + np.arange(height)
    columns = 4 + shifts[:, 1:] + np.where(flips[:, None], np.arange(width)[::-1], np.arange(width))
    return padded[np.arange(len(padded))[:, None, None], rows[:, :, None], columns[:, None, :]]


@wrong("fetch_batch", fails="bytes at peak for two images", says="whole file", kind=Kind.WASTEFUL)
def pads_all_images_first(images, labels, indices, shifts, flips):
    """A border around everything, for a batch of a few: the map is read from end to end."""
    padded = np.pad(np.array(images), ((0, 0), (4, 4), (4, 4), (0, 0)))[indices]
    height, width = images.shape[1:3]
    rows = 4 + shifts[:, :1] + np.arange(height)
    columns = 4 + shifts[:, 1:] + np.where(flips[:, None], np.arange(width)[::-1], np.arange(width))
    out = torch.from_numpy(padded[np.arange(len(padded))[:, None, None], rows[:, :, None], columns[:, None, :]])
    return out.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="result is contiguous", says="strides", kind=Kind.PARTLY)
def permuted_view(images, labels, indices, shifts, flips):
    """permute moves nothing."""
    out = torch.from_numpy(_windows(images, indices, shifts, flips))
    return out.permute(0, 3, 1, 2), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="images", says="fetch_one gives")
def flips_first(images, labels, indices, shifts, flips):
    """Flips before the shift: flipped images move the other way."""
    turned = np.where(flips, -1, 1)[:, None] * shifts[:, 1:]
    out = torch.from_numpy(_windows(images, indices, np.hstack([shifts[:, :1], turned]), flips))
    return out.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="images", says="only a shift")
def rolls_around(images, labels, indices, shifts, flips):
    """Modulo instead of a border: what leaves on one side comes in on the other."""
    height, width = images.shape[1:3]
    rows = (shifts[:, :1] + np.arange(height)) % height
    columns = (shifts[:, 1:] + np.where(flips[:, None], np.arange(width)[::-1], np.arange(width))) % width
    out = images[np.asarray(indices)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="images", says="fetch_one gives")
def one_shift_for_all(images, labels, indices, shifts, flips):
    """Vectorised by treating all images alike."""
    out = torch.from_numpy(_windows(images, indices, shifts[:1].repeat(len(shifts), 0), flips))
    return out.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="type of the result", says="uint8", kind=Kind.WRONG_FORM)
def floats_already(images, labels, indices, shifts, flips):
    """Converts on the way: four times the bytes to send."""
    out = torch.from_numpy(_windows(images, indices, shifts, flips))
    return out.permute(0, 3, 1, 2).float() / 255, torch.from_numpy(labels[indices])


@wrong("fetch_batch", fails="labels", says="order of indices")
def sorted_labels(images, labels, indices, shifts, flips):
    """Sorts the indices for the disk's sake, in one place of two."""
    out = torch.from_numpy(_windows(images, indices, shifts, flips))
    return out.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[sorted(indices)])


# ---------------------------------------------------------------------------------------------------- pad_collate
@right("pad_collate")
def pad_sequence_of_torch(samples):
    images = torch.stack([s[0] for s in samples])
    boxes = pad_sequence([s[1] for s in samples], batch_first=True)
    counts = torch.tensor([s[1].shape[0] for s in samples]).unsqueeze(1)
    return images, boxes, torch.arange(boxes.size(1)).expand(len(samples), -1) < counts


@right("pad_collate")
def concatenates_padding(samples):
    most = max(b.shape[0] for _, b in samples)
    images, boxes, present = [], [], []
    for image, b in samples:
        missing = most - b.shape[0]
        images.append(image)
        boxes.append(torch.cat([b, b.new_zeros(missing, 4)]))
        present.append([True] * b.shape[0] + [False] * missing)
    return torch.stack(images), torch.stack(boxes), torch.tensor(present, dtype=torch.bool).view(len(samples), most)


@right("pad_collate")
def mask_in_the_loop(samples):
    most = max((len(b) for _, b in samples), default=0)
    boxes = torch.zeros(len(samples), most, 4, dtype=samples[0][1].dtype)
    present = torch.zeros(len(samples), most, dtype=torch.bool)
    for i, (_, b) in enumerate(samples):
        boxes[i, : len(b)] = b
        present[i, : len(b)] = True
    return torch.utils.data.default_collate([image for image, _ in samples]), boxes, present


def _padded(samples, most, mask=None):
    boxes = samples[0][1].new_zeros(len(samples), most, 4)
    for i, (_, b) in enumerate(samples):
        boxes[i, : min(most, len(b))] = b[:most]
    present = torch.arange(most) < torch.tensor([len(b) for _, b in samples])[:, None]
    return torch.stack([image for image, _ in samples]), boxes, present if mask is None else mask(boxes)


@wrong("pad_collate", fails="type of boxes", says="most boxes", kind=Kind.WRONG_FORM)
def the_first_is_the_longest(samples):
    """Takes the number of boxes from the first image."""
    return _padded(samples, len(samples[0][1]))


@wrong("pad_collate", fails="which boxes are there", says="may be a real one")
def what_is_not_zero(samples):
    """Takes a box of zeros for padding."""
    return _padded(samples, max(len(b) for _, b in samples), mask=lambda b: (b != 0).any(-1))


@wrong("pad_collate", fails="type of present", says="A comparison gives bool", kind=Kind.WRONG_FORM)
def mask_of_floats(samples):
    """1.0 and 0.0 in place of True and False."""
    images, boxes, present = _padded(samples, max(len(b) for _, b in samples))
    return images, boxes, present.float()


@wrong("pad_collate", fails="type of boxes", says="most boxes", kind=Kind.WRONG_FORM)
def a_fixed_maximum(samples):
    """Ten boxes are enough for everybody."""
    return _padded(samples, 10)


@wrong("pad_collate", kind=Kind.CRASHED, says="raised at line")
def stacks_them(samples):
    """default_collate's way, which wants equal sizes."""
    return torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples]), None


@wrong("pad_collate", fails="which boxes are there", says="padding")
def everything_is_present(samples):
    """No mask: padding counts as boxes."""
    return _padded(samples, max(len(b) for _, b in samples), mask=lambda b: torch.ones(b.shape[:2], dtype=torch.bool))


@wrong("pad_collate", fails="type of present", kind=Kind.WRONG_FORM)
def counts_in_place_of_a_mask(samples):
    """Returns how many boxes there are."""
    images, boxes, _ = _padded(samples, max(len(b) for _, b in samples))
    return images, boxes, torch.tensor([len(b) for _, b in samples])


@wrong("pad_collate", fails="type of boxes", says="dtype", kind=Kind.WRONG_FORM)
def always_float32(samples):
    """torch.zeros has a dtype of its own."""
    images, boxes, present = _padded(samples, max(len(b) for _, b in samples))
    return images, boxes.float(), present


@wrong("pad_collate", fails="boxes", says="padding is 0")
def pads_with_minus_one(samples):
    """-1 marks padding elsewhere; here the mask does."""
    images, boxes, present = _padded(samples, max(len(b) for _, b in samples))
    boxes[~present] = -1
    return images, boxes, present


@wrong("pad_collate", fails="samples after a write into the batch", says="shares memory")
def nothing_to_pad_in_one(samples):
    """A batch of one needs no copy, so it hands on the data set's own tensors."""
    if len(samples) == 1:
        image, boxes = samples[0]
        return image[None], boxes[None], torch.ones(1, len(boxes), dtype=torch.bool)
    return _padded(samples, max(len(b) for _, b in samples))
