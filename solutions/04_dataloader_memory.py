# %% [markdown]
# # 4. Processes, pages and prefetch
#
# A training starts on Friday evening, on a machine with 64 GB of memory. On Sunday it is gone. The last line of the
# log says `DataLoader worker (pid 4711) is killed by signal: Killed`. Nothing in the loop allocates anything. So
# somebody halves the batch size, and on Monday it dies a few hours later.
#
# A data set of ten lines is enough to see why. Run the next cells. Not one of them complains.

# %% tags=["setup"]
import itertools
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SubsetRandomSampler
from torch.utils.data import default_collate, get_worker_info
from torchvision import transforms
from torchvision.transforms import v2

from course_utils import check, hint, load_cifar_mini, memory, my_predictions, predict, progress
from course_utils import reveal, shows_error, shows_warning, table
from course_utils.data.distort import Distortions
from course_utils.loading import compare_ways
from course_utils.plots import bars, figure, image_row
from course_utils.process_memory import counted_bytes, private_bytes, start_method, visible, worker_memory
from course_utils.scripts import fresh_import, in_child
from course_utils.widgets.memory import memory_curves, worker_panels
from course_utils.widgets.prefetch import prefetch_timeline

# %%
# %%writefile lesson_photos.py
import numpy as np
from torch.utils.data import Dataset


class Photos(Dataset):
    """Names of image files, and a random shift for each, as an augmentation would use it."""

    def __init__(self, names):
        self.names = names
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        name = self.names[index]  # here the file would be opened
        return len(name), self.rng.integers(-4, 5)

# %%
lesson_photos = fresh_import("lesson_photos")
names = [f"photo_{i:08}.png" for i in range(300_000)]
photos = lesson_photos.Photos(names)

for epoch in range(2):
    loader = DataLoader(photos, batch_size=4, sampler=range(8), num_workers=2)
    print("epoch", epoch, "shifts:", [shifts.tolist() for _, shifts in loader])

# %%
some = RandomSampler(photos, replacement=True, num_samples=20_000)
series = worker_memory(DataLoader(photos, batch_size=500, sampler=some, num_workers=2), epochs=1)
print("two workers that only read, grown by", sum(series.growth().values()) >> 20, "MiB")

train = load_cifar_mini("train")
flip = v2.RandomHorizontalFlip(p=1)  # p=1: always
print("flipped?", not np.array_equal(flip(train.images[0]), train.images[0]))

# %% [markdown]
# All three are faults.
#
# * The second worker draws the same shifts as the first, and the second epoch the same as the first. The
#   augmentation that should make eight different images makes four, and never a new one.
# * The workers changed nothing, and grew. With a hundred times as many names and a few workers more, that is the
#   Sunday.
# * A flip that always flips did not flip, and said nothing.
#
# Such faults have one root: a `DataLoader` with workers is several **processes**. Each has its own memory, its own
# random numbers, its own copy of your data set, and hears of nothing that happens elsewhere. After this notebook you
# can say of a loader **who holds which bytes, how many batches are on their way, and which state each process sees**,
# and count it.
#
# **You need:** section 1 (what a tensor shares), Python classes. No GPU.
#
# | part | idea | minutes to read and run |
# | :-- | :-- | :-- |
# | 1 | Workers are processes | 25 |
# | 2 | Pages: why reading costs memory | 20 |
# | 3 | Batches on their way | 20 |
# | 4 | Random numbers, order, epochs | 20 |
# | 5 | From bytes to normalised tensors | 30 |
# | 6 | A data set of your own | 20 |
# | 7 | Fast loading, argument by argument | 20 |
#
# Every exercise says its own minutes. Exercises that start workers take some seconds to check. As in the other
# notebooks: guess first where a cell says **Predict**, `check` as often as you like, `hint("closing_loader")` when
# you are stuck.

# %%
print(visible())
progress("dataloader_memory")

# %% [markdown]
# The line above says what memory figures can show on your machine. The text describes Linux with Python 3.11 to 3.13,
# where workers are forked. Elsewhere some cells print other figures, and say so.

# %% [markdown]
# ## Part 1. Workers are processes
#
# ### Who reads?
#
# The data sets of this notebook lie in small files that the notebook writes. You will soon see why. (If you change
# one, run the cell with `fresh_import` again.)

# %%
# %%writefile lesson_workers.py
import os

from torch.utils.data import Dataset

setting = "as imported"


class WhoReads(Dataset):
    """Eight items. Each says which process reads it, and what that process sees."""

    scale = 1

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"process": os.getpid(), "setting": setting, "scale": self.scale}


class Incomplete(Dataset):
    """Promises eight items; number 5 is missing."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise IndexError("there is no image 5")
        return index


def fails_at_start(worker):
    raise RuntimeError(f"worker {worker} touched the GPU")

# %%
predict(
    "threads_or_processes",
    "`DataLoader(..., num_workers=2)`: who reads the images?",
    ["two threads of this process", "this process and two more", "two other processes"],
)

# %%
lesson_workers = fresh_import("lesson_workers")
reader = lesson_workers.WhoReads()
rows = []
for workers in (0, 2):
    items = list(DataLoader(reader, batch_size=None, num_workers=workers))
    readers = {item["process"] for item in items}
    rows.append((workers, len(readers), os.getpid() in readers))
table(("num_workers", "processes that read", "the notebook's own among them"), rows, code=())
others = "two other processes" if len(readers) == 2 else f"{len(readers)} processes"
reveal("threads_or_processes", "this process and two more" if os.getpid() in readers else others)

# %% [markdown]
# Without workers the notebook's own process reads, between two steps of the training. With workers it does not read
# at all. So the question is never "is my data set thread-safe?". The question is what crosses from one process to
# another, and what does not.

# %% [markdown]
# ### How a process begins
#
# There are two ways to start a worker. *Fork*: the operating system doubles the running process, and both go on
# with the same memory. *Spawn*: a new Python begins from nothing, imports what it needs, and gets the data set as a
# pickle.

# %%
predict(
    "default_start",
    "How does PyTorch start workers on the machine on which this notebook runs?",
    ["fork", "spawn", "forkserver"],
)
predict(
    "global_in_worker",
    'The notebook sets `lesson_workers.setting = "changed"`. What does a *spawned* worker read?',
    ["as imported", "changed"],
)

# %%
reveal("default_start", start_method())

# %%
lesson_workers.setting = "changed"
rows = []
for method in [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]:
    loader = DataLoader(reader, batch_size=None, num_workers=1, multiprocessing_context=method)
    start = time.perf_counter()
    seen = next(iter(loader))["setting"]
    rows.append((method, seen, f"{time.perf_counter() - start:.1f}"))
table(("start method", "what the worker reads in setting", "seconds to the first item"), rows)
reveal("global_in_worker", seen)

# %% [markdown]
# A forked worker inherits everything as it was at that moment. A spawned one imports the module anew: whatever you
# changed since the import does not exist for it.
#
# | start method | where it is the default | a worker begins with |
# | :-- | :-- | :-- |
# | `fork` | Linux, up to Python 3.13 | all memory of the parent, shared until somebody writes |
# | `spawn` | macOS, Windows | nothing: it imports everything again (the seconds above), and gets a pickle |
# | `forkserver` | Linux, from Python 3.14 | a fork of a small clean process, and a pickle |
#
# A program that works with all three puts its classes into modules and changes no globals.

# %% [markdown]
# ### A class that lives in a cell

# %%
class InACell(Dataset):
    def __getitem__(self, index):
        return "the magic word"


predict(
    "class_in_cell",
    "`pickle.dumps(InACell())`: what of the class is in it?",
    ["its code", "only its name"],
)

# %%
pickled = pickle.dumps(InACell())
print(pickled)
reveal("class_in_cell", "its code" if b"magic" in pickled else "only its name")

# %% [markdown]
# The pickle says "the class `InACell` of the module `__main__`". A new Python has a `__main__` of its own, and your
# cell was never run in it. Let one unpickle it:

# %%
program = """
import pickle, sys
try:
    pickle.loads(bytes.fromhex(sys.argv[1]))
except AttributeError as error:
    print("AttributeError:", error)
"""
print(in_child(program, pickled.hex()))

# %% [markdown]
# This is the error that people with Windows, macOS or a new Python post in forums, followed some seconds later by
# "DataLoader worker exited unexpectedly". Under fork nobody notices. The cure: put the class into a file and
# import it. That is what the cells with `%%writefile` are for.

# %% [markdown]
# ### Does a worker copy the model?
#
# "Each worker copies the whole main process, model and optimizer included. Four workers need four times the memory."

# %%
predict(
    "copy_of_main",
    "The notebook holds a tensor of 200 MB. By how much does that raise the private memory of a "
    "worker that has just begun?",
    ["by about 200 MB", "by less than 5 MB"],
)

# %%
def at_start():
    """Private bytes of a worker before it reads anything."""
    series = worker_memory(DataLoader(reader, num_workers=1), epochs=1)
    return sum(series.at_start.values())


without = at_start()
model = torch.ones(50_000_000)
with_model = at_start()
table(
    ("process", "private memory, MB"),
    [
        ("the notebook, with the tensor", private_bytes() // 10**6),
        ("a worker, without the tensor", without // 10**6),
        ("a worker, with the tensor", with_model // 10**6),
    ],
    code=(),
)
more = with_model - without
said = "by about 200 MB" if more > 150e6 else f"by {more:,} bytes"
reveal("copy_of_main", "by less than 5 MB" if more < 5e6 else said)
del model

# %% [markdown]
# After a fork both processes read the *same* pages of memory. The system copies a page (4096 bytes, mostly) when one of
# the two writes to it: *copy on write*. The model is not written by a worker, so it is never copied. And a spawned
# worker does not get it at all: only the data set, `collate_fn` and `worker_init_fn` travel.
#
# What does get copied then? Part 2 will find it.

# %% [markdown]
# ### An error in a worker

# %%
predict(
    "error_in_worker",
    "The data set promises eight items; item 5 raises `IndexError` in a worker. What does the "
    "training loop see?",
    ["the loop ends early, without a word", "item 5 is left out", "an IndexError"],
)
predict(
    "error_at_start",
    "`worker_init_fn` raises an error in the worker. What does the training see?",
    ["it hangs", "nothing, until memory is full", "an error at the first batch"],
)

# %%
received, outcome = [], "the loop ends early, without a word"
try:
    for batch in DataLoader(lesson_workers.Incomplete(), num_workers=2):
        received.append(batch.item())
    if max(received) == 7:
        outcome = "item 5 is left out"
except IndexError as error:
    outcome = "an IndexError"
    lines = str(error).strip().splitlines()
    print("first line:", lines[0])
    print("last line: ", lines[-1])
    error.__traceback__ = None  # it would keep the loop's iterator alive, and with it the workers
print("received before:", received)
reveal("error_in_worker", outcome)

# %%
loader = DataLoader(reader, num_workers=1, worker_init_fn=lesson_workers.fails_at_start)
try:
    next(iter(loader))
    outcome = "nothing, until memory is full"
except RuntimeError as error:
    outcome = "an error at the first batch"
    print(str(error).strip().splitlines()[-1])
    error.__traceback__ = None
reveal("error_at_start", outcome)

# %% [markdown]
# A worker sends its exception home, with its traceback as text, and the loop raises one of the same class. Nothing is
# skipped, nothing hangs. Read such a message from the *end*: there stands what went wrong, and above it your own
# line.
#
# A process that is *killed* cannot send anything. Here a worker is ended as the system ends one that takes too much
# memory (in another Python, so that this one is out of danger):

# %%
program = """
import os, signal
from torch.utils.data import DataLoader, Dataset

class Greedy(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

try:
    next(iter(DataLoader(Greedy(), num_workers=1, multiprocessing_context="fork")))
except RuntimeError as error:
    print("RuntimeError:", str(error).splitlines()[0])
"""
print(in_child(program))

# %% [markdown]
# "exited unexpectedly" or "is killed by signal: Killed", and no traceback: nobody was left to write one. Look for the
# system's reason (`dmesg` on Linux says "Out of memory"), and at the memory of the workers.

# %% [markdown]
# ### How long does a worker live?

# %%
predict(
    "workers_left",
    "An epoch with `num_workers=2` is over (without `persistent_workers`). How many worker processes "
    "are left, holding memory?",
    [0, 2],
)
predict(
    "same_processes",
    "With `persistent_workers=True`: do the same processes work in the next epoch?",
    [True, False],
)

# %%
rows = []
for persistent in (False, True):
    loader = DataLoader(reader, batch_size=None, num_workers=2, persistent_workers=persistent)
    first = {item["process"] for item in loader}
    left = len(multiprocessing.active_children())
    second = {item["process"] for item in loader}
    rows.append((persistent, left, first == second))
    del loader
table(("persistent_workers", "workers after the epoch", "the same in the next epoch"), rows, code=())
reveal("workers_left", rows[0][1])
reveal("same_processes", rows[1][2])
print("left when the loader is gone:", len(multiprocessing.active_children()))

# %% [markdown]
# A process that ends gives back all of its memory: the system sees to that. So ordinary workers cannot "leak from epoch
# to epoch". Persistent workers are no cure for memory; they keep it. What they save is the *start*, in
# every epoch: the seconds in the table of start methods.
#
# People look for a knob, and find some that do not exist:

# %%
with shows_error():
    DataLoader(reader, num_workers=2, max_workers=2)
with shows_error():
    DataLoader(reader, persistent_workers=True)

# %% [markdown]
# Or they end the workers by `loader._iterator._shutdown_workers()`.

# %%
loader = DataLoader(reader, num_workers=1)
iterator = iter(loader)
next(iterator)
with shows_error():
    loader._iterator._shutdown_workers()
print("workers while the iterator is held:", len(multiprocessing.active_children()))
iterator._shutdown_workers()
print("workers after its own shutdown:    ", len(multiprocessing.active_children()))

# %% [markdown]
# Without `persistent_workers` the loader does not keep its iterator: the loop does. Workers live as long as *somebody
# holds the iterator*. In a `for` loop that is over, nobody does. In a notebook a variable does, or the traceback of an
# error that was not caught. (With `persistent_workers` the loader holds it, in `loader._iterator`. There the call does
# end the workers, and the next loop over that loader raises "Queue ... is closed".)
#
# So the method works, and it belongs to the iterator. A loader can have several at a time: each `for` loop and each
# `iter(loader)` asks `loader.__iter__()`, and gets a new one. Whoever wants to know of all of them has to look on there:

# %%
class Telling(DataLoader):
    """Says when an iterator is asked for."""

    def __iter__(self):
        iterator = super().__iter__()
        print("made:", type(iterator).__name__, " can shut down:", hasattr(iterator, "_shutdown_workers"))
        return iterator


for workers in (0, 1):
    for _ in Telling(reader, num_workers=workers):
        break

# %% [markdown] exercise="closing_loader"
# A notebook that is interrupted, a test that fails, a loop left by `break`: workers stay as long as *somebody* holds
# the iterator. `closing_loader(dataset, **settings)` puts an end to that:
#
#     with closing_loader(dataset, batch_size=64, num_workers=2) as loader:
#         for images, labels in loader:
#             ...
#
# It gives a `DataLoader` with these settings. When the block is left, in whatever way, no worker process is left: also
# when the caller has kept `iterator = iter(loader)`, also with `persistent_workers=True`, also after an exception, which
# comes out as it was. And when the caller has let go of loader and iterators, no file descriptor is left open.

# %% exercise="closing_loader"
@contextmanager
def closing_loader(dataset, **settings):
    """Yield a DataLoader; end the workers of all its iterators afterwards."""
    ### BEGIN SOLUTION
    iterators = []

    class Remembering(DataLoader):
        def __iter__(self):
            iterators.append(super().__iter__())
            return iterators[-1]

    loader = Remembering(dataset, **settings)
    try:
        yield loader
    finally:
        for iterator in iterators:
            if hasattr(iterator, "_shutdown_workers"):  # private, but what the iterator itself calls at its end
                iterator._shutdown_workers()
        loader._iterator = None  # persistent workers: an iterator without workers must not be used again
        iterators.clear()  # the pipes are closed with the last reference
    ### END SOLUTION

# %% [markdown]
# ### What a living worker does not hear

# %%
predict(
    "stale_state",
    "`persistent_workers=True`. After the first epoch you set `dataset.scale = 2`. What scale do the "
    "items of the second epoch have?",
    [1, 2],
)

# %%
rows = []
for persistent in (False, True):
    dataset = lesson_workers.WhoReads()
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=persistent)
    before = {item["scale"] for item in loader}
    dataset.scale = 2
    after = {item["scale"] for item in loader}
    rows.append((persistent, *before, *after))
    del loader
table(("persistent_workers", "scale in epoch 0", "scale in epoch 1"), rows, code=())
reveal("stale_state", rows[1][2])

# %% [markdown]
# Each worker has its own copy of the data set, made when it began. New workers get the new state. Persistent ones keep
# theirs: `set_epoch`, a new transform, a larger crop size never arrive, and nothing complains. What must change from
# epoch to epoch either goes through the *sampler* (it lives in the main process and its indices are sent), or
# lies in memory that all share:

# %%
shared = torch.ones(1).share_memory_()
dataset = lesson_workers.WhoReads()
dataset.scale = shared
loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
before = {item["scale"].item() for item in loader}
shared.fill_(2)
after = {item["scale"].item() for item in loader}
print("epoch 0:", before, "  epoch 1:", after)
del loader

# %% [markdown]
# ## Part 2. Pages: why reading costs memory
#
# ### Reading is writing
#
# Python counts for every object how many names and containers refer to it. At zero the object is freed.

# %%
predict("reading_writes", "`held = names[7]` only reads. Does it write to memory?", [True, False])

# %%
before = sys.getrefcount(names[7])
held = names[7]
after = sys.getrefcount(names[7])
print("references before:", before, "  while it is held:", after)
reveal("reading_writes", before != after)

# %% [markdown]
# The counter lies *inside the object*, in its first bytes. Reading the text writes the counter; writing copies the
# page; and on the same page lie more than fifty other texts. So a worker that reads one name in fifty copies most of
# the pages.
#
# `counted_bytes` adds up the objects whose counters a read may touch:

# %%
containers = {
    "list": names,
    "object array": np.array(names, dtype=object),
    "array": np.array(names),
}
table(
    ("names as", "dtype", "bytes in Python objects"),
    [(k, getattr(c, "dtype", ""), f"{counted_bytes(c):,}") for k, c in containers.items()],
    code=(),
)

# %% [markdown]
# An array of dtype `object` is a row of pointers: the texts are still Python objects, as in the list. An array of
# fixed-width texts (`<U18`) holds the characters themselves, and a single counter for all. Now let two workers read.
# (Eight workers are started and watched: the second cell from here takes some ten seconds.)

# %%
predict(
    "who_grows",
    "Two workers read at random from the list, the object array, the packed array and a memory-mapped "
    "file. Whose private memory grows by more than 10 MiB?",
    ["all four", "only the list", "the list and the object array"],
)
predict(
    "grows_forever",
    "Persistent workers read for ten epochs. How does the growth of the list go on?",
    ["the same every epoch, without end", "it levels off"],
)

# %%
folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "names.npy"
np.save(file, containers["array"])
containers["memmap"] = np.load(file, mmap_mode="r")
print("letters:", {k: sum(map(len, c)) for k, c in containers.items()})


def reading_loader(kind, workers):
    """Persistent workers that read 6000 names at random per epoch."""
    dataset = lesson_photos.Photos(containers[kind])
    some = RandomSampler(dataset, replacement=True, num_samples=6000)
    return DataLoader(
        dataset, batch_size=500, sampler=some, num_workers=workers, persistent_workers=workers > 0
    )

# %%
curves = memory_curves(
    {kind: reading_loader(kind, 2) for kind in containers},
    epochs=10,
    points=2,
    caption="Two workers read texts at random, 12 batches an epoch. Left: what each has for itself alone, "
    "both added up. Right: what `top` and most memory plots show.",
)

# %%
mib = {kind: curve.grown[-1] / 2**20 for kind, curve in curves.items()}
growing = [kind for kind, grown in mib.items() if grown > 10]
named = {("list", "object array"): "the list and the object array", ("list",): "only the list"}
reveal("who_grows", named.get(tuple(growing), "all four" if len(growing) == 4 else f"{growing}"))

grown = curves["list"].grown
early, late = grown[len(grown) // 4], grown[-1] - grown[-len(grown) // 4]
print(f"growth of the list in the first quarter {early >> 20} MiB, in the last {late >> 20} MiB")
reveal("grows_forever", "it levels off" if late < early / 2 else "the same every epoch, without end")

# %% [markdown]
# The list and the object array grow until every page is copied; then there is nothing left to copy. Packed bytes
# stay shared. The few MiB of every worker are its own working memory.
#
# The curves climb in steps, two points an epoch. Half of an epoch is six batches, but the workers are ahead of the
# loop: two workers have been asked for two batches each beyond those that came out (part 3). At half-time they have
# read ten batches of the twelve, and the second half has little left to add.
#
# The right-hand picture shows why this is hard to find. **RSS** counts a page for every process that *sees* it. A
# page that was shared and is now copied counted before and counts after. The machine runs full, and the curve is
# flat. **USS** counts what would be given back if this process ended. Ask
# `psutil.Process(pid).memory_full_info().uss`, or read `Private_Dirty` in `/proc/PID/smaps_rollup`.

# %% [markdown] exercise="PackedStrings"
# Captions, file names, labels in words: sooner or later a data set holds a million texts. In a list, each worker
# copies them all, just by reading.
#
# Write `PackedStrings(texts)`: the same texts, in two arrays.
#
# * `dataset[i]` is the text as it was put in. It may be empty, hold any character, end in spaces or in `"\0"`.
#   Negative indices and `IndexError` are as with a list.
# * The private memory of a worker that reads the texts does not grow: no object per text, neither for its characters
#   nor for its place. (`check` counts the Python objects that the data set holds.)
# * It holds hardly more than the bytes of the texts (UTF-8) and one number for each. A few texts may be far longer than
#   the rest.

# %% exercise="PackedStrings"
class PackedStrings(Dataset):
    """Texts in one array of bytes and one of places, with no Python object for each."""

    def __init__(self, texts):
        ### BEGIN SOLUTION
        encoded = [text.encode() for text in texts]
        # A reference count per array, not one per text: workers read the bytes and write nothing.
        self.ends = np.cumsum([len(e) for e in encoded], dtype=np.int64)
        self.data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        return len(self.ends)
        ### END SOLUTION

    def __getitem__(self, index):
        ### BEGIN SOLUTION
        end = self.ends[index]  # raises IndexError past either end
        start = self.ends[index - 1] if index % len(self) else 0
        return self.data[start:end].tobytes().decode()
        ### END SOLUTION

# %% [markdown]
# ### More workers
#
# "Two workers are best; four leak." Let us count processes and their growth. (On a machine with two cores
# PyTorch would warn here that four workers are too many for it; this helper keeps that back.)

# %%
kinds = ("list", "array")
panels = worker_panels(
    reading_loader,
    kinds,
    workers=(0, 2, 4),
    epochs=3,
    caption="The same reading with no, two and four workers, all workers of a loader added up. Each worker makes "
    "its own copies; without workers there is nobody to copy from.",
)

# %%
last = {n: {k: f"{c.grown[-1] / 2**20:.0f}" for k, c in p.items()} for n, p in panels.items()}
table(
    ("workers", *(f"{k}, MiB" for k in kinds)),
    [(n, *row.values()) for n, row in last.items()],
    code=(),
)

# %% [markdown]
# There is no best number in this. After three epochs the curves of the list still rise; the ten epochs above showed
# where they end, because a worker cannot copy more than all objects. It is the *data set* that is wrong, not the
# number. The cure is one line, `np.array(names)`. What is left in the last column is each worker's own working memory.

# %% [markdown]
# ### What a memory map saves
#
# "`np.memmap` reduces the memory of the thousand images from 1.2 GB to 20 MB."

# %%
predict(
    "images_bytes",
    "How much memory do 1000 images of 32 x 32 x 3 bytes need, read whole?",
    ["3 MB", "20 MB", "1.2 GB"],
)
predict(
    "pickled_memmap",
    "A data set with a `np.memmap` goes to a spawned worker. What is in the pickle of the map?",
    ["the file's path", "every pixel"],
)

# %%
images = load_cifar_mini("train").images
before = psutil.Process().memory_info().rss
total = int(images.sum())  # touches every page
grown = psutil.Process().memory_info().rss - before
print(f"nbytes {images.nbytes:,}; resident size grew by about {grown / 1e6:.0f} MB")
reveal("images_bytes", f"{images.nbytes / 1e6:.0f} MB")

# %%
pickled = pickle.dumps(images)
print(f"{len(pickled):,} bytes; the path is in it: {b'cifar_mini' in pickled}")
reveal("pickled_memmap", "every pixel" if len(pickled) >= images.nbytes else "the file's path")

# %% [markdown]
# Do the multiplication before you believe a saving: there never was more than 3 MB. What a map does give: opening
# costs nothing, pages come when they are touched, all processes share them, and the system can drop them again.
#
# And a map must not travel. Its pickle is a plain copy of the file. A data set keeps the *path* and opens the map when
# the first item is read, in whichever process that is. You will write one in part 6.

# %% [markdown]
# ## Part 3. Batches on their way
#
# ### How many before the first?
#
# `prefetch_factor` says how many batches each worker gets in advance. A sampler that writes down what it hands out
# shows how far ahead the loader is.

# %%
predict(
    "batches_ahead",
    "Two workers, `prefetch_factor=3`. How many batches are asked for before the loop gets the first "
    "one?",
    [1, 2, 3, 6],
)
predict(
    "default_factor",
    "You read that `prefetch_factor=2` makes training 18 % faster. What is it in a loader with "
    "workers if you do not set it?",
    [0, 1, 2],
)

# %%
class Noting(Sampler):
    """Writes down every index that it hands out. It stays in the main process."""

    def __init__(self, length):
        self.length, self.asked = length, []

    def __iter__(self):
        for index in range(self.length):
            self.asked.append(index)
            yield index

    def __len__(self):
        return self.length


rows = []
for workers, factor in [(0, None), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]:
    noting = Noting(40)
    loader = DataLoader(reader, sampler=noting, num_workers=workers, prefetch_factor=factor)
    iterator = iter(loader)
    rows.append((workers, factor, len(noting.asked)))
    del iterator
table(("num_workers", "prefetch_factor", "batches asked for"), rows, code=())
reveal("batches_ahead", rows[-1][2])

# %%
print("no workers: ", DataLoader(reader).prefetch_factor)
print("one worker: ", DataLoader(reader, num_workers=1).prefetch_factor)
with shows_error():
    DataLoader(reader, prefetch_factor=2)
reveal("default_factor", DataLoader(reader, num_workers=1).prefetch_factor)

# %% [markdown]
# Workers times factor, and 2 is what you have anyway. A larger factor adds no hands. It lets more batches lie ready,
# for the moment when one takes long. What does it cost? Bytes, for each batch that waits:

# %%
rows = []
for side in (32, 224, 512):
    batch = 64 * 3 * side * side * 4  # float32
    rows.append((f"64 x 3 x {side} x {side}", *(f"{batch * n / 1e6:,.0f}" for n in (1, 4, 16, 64))))
table(("float32 batch", "one, MB", "2 x 2 ahead", "8 x 2 ahead", "16 x 4 ahead"), rows, code=())

# %% [markdown]
# The timeline below runs a real loader and draws what it counted. (Where no controls appear, change the arguments of
# the call: `num_workers=0` for the first question.) Try
#
# 1. no workers: when is a batch asked for?
# 2. one worker with factor 4, then two with factor 2: what is the same, what differs?
# 3. where does the number on their way fall, and why?

# %%
prefetch_timeline(num_workers=2, prefetch_factor=2)

# %% [markdown]
# (1) In the step that uses it: nothing is ever under way, and the model waits for every batch. (2) Four are on
# their way, because the product decides; but one worker makes them one after the other. (3) At the end of the epoch,
# because nothing is left to ask for. At the next `iter()` it starts from zero: for the first batch of an epoch
# the loop waits in full.
#
# Whenever the loop takes a batch, one more is asked for. Batches come back *in order*, whichever worker was faster: a
# slow batch 3 holds up batches 4 and 5, though they lie ready.

# %% [markdown] exercise="batches_in_flight"
# How many batches has a loader asked its sampler for when `iter(loader)` has been called and nobody has asked for
# a batch yet? That many are being read, or wait in memory, before your model sees the first one.
#
# `batches_in_flight(loader)` returns the number for any `DataLoader` on a data set with a length. Compute it
# or measure it; leave no process running.

# %% exercise="batches_in_flight"
def batches_in_flight(loader):
    """Return how many batches are under way before the first one is handed out."""
    ### BEGIN SOLUTION
    # prefetch_factor is None without workers; without batching, len(loader) counts the items that are sent.
    return min(loader.num_workers * (loader.prefetch_factor or 0), len(loader))
    ### END SOLUTION

# %% [markdown]
# ### Through which door does a batch come?
#
# A worker writes a batch into *shared memory* and sends only a note where it lies. On Linux that note is, by default,
# an open file (`file_descriptor`). Usually you never see it. Let us keep the batches of an epoch, as one keeps
# predictions, in a process that may have 64 files open.

# %%
predict(
    "open_files",
    "100 batches from one worker are kept in a list. The process may have 64 files open. What happens?",
    ["nothing: a batch is no file", "an error after about 50 batches"],
)

# %%
program = """
import resource, sys, torch
from torch.utils.data import DataLoader, TensorDataset

strategy, how, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.multiprocessing.set_sharing_strategy(strategy)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
kept = []
try:
    for (batch,) in DataLoader(TensorDataset(torch.arange(200.0)), batch_size=2, num_workers=1):
        kept.append(batch.clone() if how == "clone" else batch)
    print("kept all", len(kept))
except RuntimeError as error:
    print("RuntimeError after", len(kept), "batches:", str(error).split(".")[0])
"""
rows = []  # three new Pythons, each imports torch: some ten seconds
for strategy, how in [("file_descriptor", "batch"), ("file_descriptor", "clone"), ("file_system", "batch")]:
    rows.append((strategy, how, in_child(program, strategy, how, 64, seconds=30)))
table(("sharing strategy", "kept", "outcome"), rows)
failed = "RuntimeError after" in rows[0][2]
reveal("open_files", "an error after about 50 batches" if failed else "nothing: a batch is no file")

# %% [markdown]
# Each kept batch keeps its file open. "Too many open files" is about batches that *stay*, not about the number of
# workers: one was enough. Cures, best first: keep what you need (`loss.item()`), or a `clone()`, which is ordinary
# memory; raise the limit (`ulimit -n`); or `set_sharing_strategy("file_system")`, which uses names instead of open
# files and leaves them behind when a process is killed. Near the limit a loop can also hang without an error, which
# is why this cell has a time limit.
#
# Shared memory itself is finite, too. In a container it is often 64 MB:

# %%
if os.path.exists("/dev/shm"):
    print(f"/dev/shm here: {shutil.disk_usage('/dev/shm').total >> 20:,} MiB")
else:
    print("this system has no /dev/shm")

# %% [markdown]
# When the batches on their way do not fit, the worker raises "unable to allocate shared memory(shm) ... No space left
# on device". Compare the table above: it is batch bytes times batches ahead. Make that smaller, or the room larger
# (`docker run --shm-size=2g`).

# %% [markdown]
# ### Pinned memory
#
# `pin_memory=True` copies each batch once more, in the main process, into memory that a GPU can read by itself.

# %%
with shows_warning():
    batch = next(iter(DataLoader(torch.arange(8), batch_size=4, pin_memory=True)))
print("pinned:", batch.is_pinned())

# %% [markdown]
# Without a GPU nobody can use it; PyTorch says so, once, and goes on. Section 3 shows what it gains where there is one.
# And batches from workers are CPU tensors: workers "that load onto the GPU" are a way to trouble, not to speed.

# %% [markdown]
# ## Part 4. Random numbers, order, epochs
#
# ### Who seeds what?
#
# The scene at the beginning showed workers that draw the same numbers. Old advice says: seed NumPy in
# `worker_init_fn`. Let us see which generators need it.

# %%
# %%writefile lesson_noise.py
import random

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info


class Noise(Dataset):
    """Eight items; each is a number from four generators, the last one the data set's own."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {
            "random.random()": random.random(),
            "np.random.rand()": np.random.rand(),
            "torch.rand(())": torch.rand(()).item(),
            "self.rng.random()": self.rng.random(),
        }


def same_seed(worker):
    np.random.seed(0)


def seed_of_worker(worker):
    np.random.seed(get_worker_info().seed % 2**32)

# %%
predict(
    "global_numpy",
    "Eight items, two workers, each item `np.random.rand()` (the global generator). How many different "
    "numbers in an epoch?",
    [4, 8],
)
predict(
    "private_numpy",
    "Eight items, two workers, each item a number from a generator that the data set made in `__init__`. "
    "How many different numbers in an epoch?",
    [4, 8],
)
predict(
    "private_epochs",
    "A generator of the data set's own: does it give new numbers in the next epoch?",
    [True, False],
)

# %%
lesson_noise = fresh_import("lesson_noise")


def numbers_of_two_epochs(**settings):
    """Generator -> two lists of the numbers that came out of two epochs."""
    epochs = []
    for epoch in range(2):
        items = list(DataLoader(lesson_noise.Noise(), batch_size=None, num_workers=2, **settings))
        epochs.append(items)
    return {name: [[item[name] for item in items] for items in epochs] for name in epochs[0][0]}


numbers = numbers_of_two_epochs()
table(
    ("generator", "different among 8", "other numbers in epoch 1"),
    [(name, len(set(first)), first != second) for name, (first, second) in numbers.items()],
)
reveal("global_numpy", len(set(numbers["np.random.rand()"][0])))
reveal("private_numpy", len(set(numbers["self.rng.random()"][0])))
reveal("private_epochs", numbers["self.rng.random()"][0] != numbers["self.rng.random()"][1])

# %% [markdown]
# PyTorch seeds the three *global* generators in each worker: from a number that it draws anew per epoch, plus the
# worker's own. It knows nothing of generators that you make. Those are copied with the data set, state and all, into
# every worker of every epoch, and the main process's copy never moves on.
#
# And a `worker_init_fn` from an old recipe brings the fault *back* where PyTorch had mended it:

# %%
rows = []
for function in (lesson_noise.same_seed, lesson_noise.seed_of_worker):
    first, second = numbers_of_two_epochs(worker_init_fn=function)["np.random.rand()"]
    rows.append((function.__name__, len(set(first)), first != second))
table(("worker_init_fn", "different among 8", "other numbers in epoch 1"), rows)

# %% [markdown]
# The seed that PyTorch has drawn for a worker is `get_worker_info().seed`. It has up to 63 bits, and NumPy's old
# `np.random.seed` takes 32:

# %%
with shows_error():
    np.random.seed(2**40)
print(np.random.default_rng(2**40).random())  # the new generators take any

# %% [markdown] exercise="worker_init"
# A data set keeps three generators of its own: `dataset.numpy_rng` (`np.random.Generator`), `dataset.torch_rng`
# (`torch.Generator`) and `dataset.python_rng` (`random.Random`). Every worker has the same copy of them, in every epoch.
#
# Write `worker_init(worker_id)` for `DataLoader(dataset, num_workers=2, worker_init_fn=worker_init)`. In the worker it
# gives the three generators new seeds, so that numbers differ between workers and between epochs, and come again when
# the run is repeated after the same `torch.manual_seed`.

# %% exercise="worker_init"
def worker_init(worker_id):
    """Seed the private generators of this worker's copy of the data set."""
    ### BEGIN SOLUTION
    info = get_worker_info()
    # The loader draws a base seed per epoch from torch's generator; info.seed is that plus the worker's number.
    info.dataset.numpy_rng = np.random.default_rng(info.seed)
    info.dataset.torch_rng.manual_seed(info.seed)
    info.dataset.python_rng.seed(info.seed)
    ### END SOLUTION

# %% [markdown] exercise="SeededDataset"
# With `worker_init` a run can be repeated, with the same number of workers. The stronger promise is: **item, epoch and
# seed decide**, and nothing else.
#
# `SeededDataset(values, seed, sigma)`: `values` is a float32 array (N, D). `dataset[i]` is row i plus normal noise of
# standard deviation `sigma`, a float32 tensor (D,). `dataset.set_epoch(epoch)` chooses the epoch, 0 at first.
#
# * The noise depends on seed, epoch and index alone: the same in any process, in any order, asked once or twice.
#   Index -1 is the last item, with the last item's noise.
# * It differs between any two of these triples, also for item 100 or item 1000.
# * `values` and the global generators stay as they are.

# %% exercise="SeededDataset"
class SeededDataset(Dataset):
    """Rows of an array with noise that can be replayed, whoever draws it."""

    def __init__(self, values, seed, sigma):
        ### BEGIN SOLUTION
        self.values, self.seed, self.sigma, self.epoch = values, seed, sigma, 0
        ### END SOLUTION

    def set_epoch(self, epoch):
        ### BEGIN SOLUTION
        self.epoch = epoch
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        return len(self.values)
        ### END SOLUTION

    def __getitem__(self, index):
        ### BEGIN SOLUTION
        index = range(len(self))[index]  # -1 becomes the last index; IndexError past either end
        # A generator per item costs some 20 microseconds, and makes order and process irrelevant.
        noise = np.random.default_rng([self.seed, self.epoch, index]).standard_normal(self.values.shape[1])
        return torch.from_numpy(self.values[index] + np.float32(self.sigma) * noise.astype(np.float32))
        ### END SOLUTION

# %% [markdown]
# ### The same order again?
#
# A sampler decides the order, in the main process. `SubsetRandomSampler` shuffles a list of indices, such as those of a
# training split.

# %%
predict(
    "sampler_epochs",
    "`SubsetRandomSampler(range(6), generator=g)` with one generator, seeded once. Has the second "
    "epoch the same order as the first?",
    [True, False],
)
predict(
    "sampler_replay",
    "One generator for all epochs: can epoch 2 be repeated without going through epochs 0 and 1?",
    [True, False],
)

# %%
def orders(generator, epochs=3):
    sampler = SubsetRandomSampler(range(6), generator=generator)
    return [list(sampler) for _ in range(epochs)]


one = orders(torch.Generator().manual_seed(0))
again = orders(torch.Generator().manual_seed(0))
(alone,) = orders(torch.Generator().manual_seed(0), epochs=1)
table(
    ("epoch", "one generator", "the same, a second run"),
    [(epoch, one[epoch], again[epoch]) for epoch in range(3)],
    code=(),
)
print("a run that begins with epoch 2 gets:", alone)
reveal("sampler_epochs", one[0] == one[1])
reveal("sampler_replay", alone == one[2])

# %% [markdown]
# The generator's state moves on with every epoch. So the orders differ, and a second run from the start repeats them.
# But a run that was interrupted and goes on with epoch 2 gets the order of epoch 0. What is to be replayed alone must
# be a function of its number. The common way makes the generator anew in each epoch:

# %%
def order_of(epoch):
    generator = torch.Generator().manual_seed(epoch)
    return list(SubsetRandomSampler(range(6), generator=generator))


print("epochs 0, 1, 2:", [order_of(epoch) for epoch in range(3)])
print("epoch 2 alone: ", order_of(2))

# %% [markdown]
# One step is missing: with `manual_seed(epoch)` *every run* of your life has the same orders. With `seed + epoch`,
# run 1 is run 0 one epoch later.

# %% [markdown] exercise="epoch_sampler"
# A run was interrupted in epoch 7. To go on where it stopped you need the order of epoch 7, without going through
# epochs 0 to 6.
#
# `epoch_sampler(length, epoch, seed)` returns the order of one epoch: each index from 0 to `length - 1` once, shuffled.
# The same three numbers give the same order at any time; other epochs and other seeds give other orders. Epoch 2 of
# seed 1 is no exception: it is not epoch 1 of seed 2. Nor is epoch 1000 of seed 1 epoch 0 of seed 2. A far epoch
# takes no longer than a near one. No global generator is touched. A loader takes the result as `sampler`.

# %% exercise="epoch_sampler"
def epoch_sampler(length, epoch, seed):
    """Return the order of an epoch, a permutation of range(length) that depends on epoch and seed alone."""
    ### BEGIN SOLUTION
    # default_rng mixes a list of seeds; seed + epoch would give seed 1, epoch 2 the order of seed 2, epoch 1.
    return np.random.default_rng([seed, epoch]).permutation(length).tolist()
    ### END SOLUTION

# %% [markdown]
# ## Part 5. From bytes to normalised tensors
#
# ### `ToTensor`, in four steps
#
# Images on disk are bytes, (H, W, 3). A model wants (3, H, W), floating point, around zero. `ToTensor` and `Normalize`
# have done that in ten thousand programs. Here they are, made of what you know from section 1.

# %%
horse = np.array(train.images[train.labels == train.classes.index("horse")][0])
mean, std = torch.tensor(train.meta["mean"]), torch.tensor(train.meta["std"])

by_hand = torch.from_numpy(horse).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
x = transforms.ToTensor()(horse)
print("ToTensor: ", tuple(x.shape), x.dtype, " equal:", torch.equal(x, by_hand))

by_hand = x.clone().sub_(mean[:, None, None]).div_(std[:, None, None])
y = transforms.Normalize(mean, std)(x)
print("Normalize:", tuple(y.shape), y.dtype, " equal:", torch.equal(y, by_hand))

# %%
predict(
    "totensor_float",
    "An image as *float32* array, values 0 to 255. What is its largest value after `ToTensor`?",
    [1.0, 255.0],
)
predict("normalize_writes", "Does `Normalize(mean, std)(x)` overwrite `x`?", [True, False])

# %%
inputs = {
    "uint8 array": horse,
    "float32 array, 0 to 255": horse.astype(np.float32),
    "float64 array, 0 to 1": horse / 255,
    "int16 array": horse.astype(np.int16),
    "PIL image, 8 bit": Image.fromarray(horse),
    "PIL image, mode I": Image.fromarray(horse[..., 0].astype(np.int32)),
    "tensor": torch.from_numpy(horse),
}
rows = []
for name, given in inputs.items():
    try:
        result = transforms.ToTensor()(given)
        rows.append((name, result.dtype, f"{result.max().item():g}"))
    except TypeError as error:
        rows.append((name, "TypeError", str(error)[:60]))
table(("given to ToTensor", "dtype", "largest value"), rows, code=())
reveal("totensor_float", transforms.ToTensor()(inputs["float32 array, 0 to 255"]).max().item())

# %%
before = x.clone()
transforms.Normalize(mean, std)(x)
reveal("normalize_writes", not torch.equal(x, before))
transforms.Normalize(mean, std, inplace=True)(x)
print("overwritten with inplace=True:", not torch.equal(x, before))
x = before

# %% [markdown]
# The division by 255 is for bytes only. A float image stays as it is, and then `Normalize` with statistics for 0
# to 1 gives numbers in the hundreds, without a word. And `Normalize` makes a copy first, unless it is told not to.
#
# `ToTensor` is the old name. What do its successors do?

# %%
with shows_warning():
    v2.ToTensor()
new = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
print("the new pair gives the same:", torch.allclose(new(horse), transforms.ToTensor()(horse)))
forgotten = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32)])
print("largest value without scale=True:", forgotten(horse).max().item())

# %% [markdown]
# ### Which mean, which std?

# %%
predict(
    "normalize_default",
    "What are the default `mean` and `std` of `Normalize()`?",
    ["those of ImageNet", "0 and 1", "there are none: an error"],
)
predict(
    "imagenet_constants",
    "Pixels from 0 to 1, normalised with the constants of ImageNet instead of your own. What happens?",
    ["values overflow", "nothing special: values from about -2 to 3", "an error"],
)

# %%
try:
    v2.Normalize()
    reveal("normalize_default", "those of ImageNet")
except TypeError as error:
    print(error)
    reveal("normalize_default", "there are none: an error")

# %%
lowest_highest = torch.tensor([0.0, 1.0]).expand(3, 1, 2)  # a black and a white pixel
imagenet = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])(lowest_highest)
ours = v2.Normalize(mean, std)(lowest_highest)
for name, result in {"ImageNet's": imagenet, "our own": ours}.items():
    print(f"{name:11} from {result.min().item():.2f} to {result.max().item():.2f}")
harmless = imagenet.isfinite().all() and imagenet.abs().max() < 3
reveal("imagenet_constants", "nothing special: values from about -2 to 3" if harmless else "values overflow")

# %% [markdown]
# Other constants shift and stretch a little; a network learns that away. What matters is that training and use have
# the *same* ones. A pretrained network needs those it was trained with.
#
# Where do such constants come from? For CIFAR-10 everybody copies the std 0.2023, 0.1994, 0.2010. The true one is
# 0.2470, 0.2435, 0.2616. Somebody had averaged over images.

# %%
predict(
    "std_per_image",
    "You compute the std of each image and average them. How does that compare with the std of all "
    "pixels together?",
    ["smaller", "the same", "larger"],
)

# %%
pixels = train.images / 255
per_image = pixels.std(axis=(1, 2)).mean(axis=0)
of_all = pixels.std(axis=(0, 1, 2))
print("mean of the images' std:", per_image.round(4))
print("std of all pixels:      ", of_all.round(4))
smaller = (per_image < of_all).all()
reveal("std_per_image", "smaller" if smaller else "the same" if np.allclose(per_image, of_all) else "larger")

# %% [markdown]
# A dark image and a bright one may each vary little; together they vary much. Averaging the std loses what lies
# *between* images. The mean has no such trouble, as long as all images are equally large.

# %% [markdown] exercise="channel_statistics"
# `channel_statistics(images)` gets an *iterable* of images (H, W, 3), uint8, of different sizes. It can be gone through
# once, and it may be larger than the memory.
#
# Return `(mean, std)`, two NumPy arrays of three float64 numbers: over all pixels of all images, channel by
# channel, with pixels from 0 to 1. `std` divides by the number of pixels (no Bessel correction). Exact to nine decimals.

# %% exercise="channel_statistics"
def channel_statistics(images):
    """Return mean and std of each channel, (3,) float64 each, over all pixels / 255 of a stream of images."""
    ### BEGIN SOLUTION
    count, total, squares = 0, np.zeros(3, np.int64), np.zeros(3, np.int64)
    for image in images:
        pixels = image.reshape(-1, 3).astype(np.int64)  # uint8 squares would go round at 256
        count += len(pixels)
        total += pixels.sum(axis=0)  # integers: exact up to 10**14 pixels
        squares += (pixels**2).sum(axis=0)
    mean = total / count
    return mean / 255, np.sqrt(squares / count - mean**2) / 255
    ### END SOLUTION

# %% [markdown]
# ### What `Normalize` accepts

# %%
normalize = v2.Normalize(mean, std)
inputs = {
    "float32 (3, H, W)": x,
    "float16 (3, H, W)": x.half(),
    "float32 (8, 3, H, W)": x.expand(8, 3, 32, 32),
    "uint8 (3, H, W)": (x * 255).to(torch.uint8),
    "float32 (H, W, 3)": x.permute(1, 2, 0),
    "float32 (H, W)": x[0],
}
rows = []
for name, given in inputs.items():
    try:
        rows.append((name, f"{normalize(given).dtype}, {tuple(normalize(given).shape)}"))
    except (TypeError, ValueError, RuntimeError) as error:
        rows.append((name, f"{type(error).__name__}: {str(error).split('. ')[0][:95]}"))
table(("given to Normalize", "result"), rows, code=())

# %% [markdown]
# Any floating-point dtype, any number of axes in front: a whole batch at once will do. Part 7 makes use of it.

# %% [markdown]
# ### In which order?
#
# "`RandomHorizontalFlip` must come before `ToTensor`, because it works on PIL images."

# %%
predict(
    "flip_before_or_after",
    "Flip, then `ToTensor`; or `ToTensor`, then flip. Are the two results equal?",
    [True, False],
)

# %%
flip = transforms.RandomHorizontalFlip(p=1)
flip_first = transforms.ToTensor()(flip(Image.fromarray(horse)))
flip_last = flip(transforms.ToTensor()(horse))
reveal("flip_before_or_after", torch.equal(flip_first, flip_last))

# %% [markdown]
# A tensor is flipped along its *last* axis. That is right for (3, H, W). For an image that is still (H, W, 3), the last
# axis is the colour:

# %%
image_row(
    [horse, flip(torch.from_numpy(horse)), flip_last.permute(1, 2, 0)],
    ["the image", "flipped as (H, W, 3)", "flipped as (3, H, W)"],
    caption="In the middle nobody was turned round; red and blue have changed places.",
    alt="Three small pictures of a horse: the original, one with red and blue exchanged and not "
    "flipped, and one flipped left to right.",
)

# %% [markdown]
# Now our images as they come from the file: a `np.memmap`.

# %%
predict(
    "flip_memmap_v1",
    "`transforms.RandomHorizontalFlip(p=1)` on an image of the memmap. What happens?",
    ["it is flipped", "an error", "nothing: it comes back unflipped"],
)
predict(
    "flip_memmap_v2",
    "`v2.RandomHorizontalFlip(p=1)` on an image of the memmap. What happens?",
    ["it is flipped", "an error", "nothing: it comes back unflipped"],
)

# %%
mapped = train.images[0]


def flip_outcome(flip):
    """What a flip makes of an image of the memmap, in the words of the prediction."""
    try:
        same = np.array_equal(flip(mapped), mapped)
    except TypeError as error:
        print(f"{type(error).__name__}: {error}")
        return "an error"
    return "nothing: it comes back unflipped" if same else "it is flipped"


reveal("flip_memmap_v1", flip_outcome(transforms.RandomHorizontalFlip(p=1)))
reveal("flip_memmap_v2", flip_outcome(v2.RandomHorizontalFlip(p=1)))

# %% [markdown]
# The old one raises, and with its usual p=0.5 only when the coin says so: a run dies after some images. The new one
# hands on whatever it takes for no image. Labels and boxes may pass through a `v2` pipeline that way, and so does an
# array. **Make it an image first** (`v2.ToImage`).
#
# Is the array itself a good beginning?

# %%
with shows_warning():
    tensor = torch.from_numpy(mapped)
with shows_warning():
    tensor = torch.from_numpy(np.array(mapped))

# %% [markdown]
# You know that warning from section 1: a write to the first tensor would end the process. `np.array` copies 3 KB.
#
# So the order has reasons, and most steps could not stand elsewhere:
#
# | step | why here |
# | :-- | :-- |
# | `np.array` | own memory before anything may write |
# | `ToImage` | later steps must know that this is an image |
# | crop, flip, colours | while a pixel is one byte; the padding's 0 is black |
# | `ToDtype(float32, scale=True)` | `Normalize` refuses bytes |
# | `Normalize` | last; a crop behind it would pad with 0, and 0 is no longer black |

# %% [markdown] exercise="build_transform"
# `build_transform(train, size, mean, std)` returns the transform from a mapped image to what a model takes.
#
# * It gets a `np.memmap` (H, W, 3), uint8 RGB, that may only be read; `size` is `(H, W)`.
# * It returns a float32 tensor (3, H, W): pixels / 255, minus `mean`, divided by `std`, channel by channel.
# * With `train=True` it first crops at random to `size` after padding 4 *black* pixels on each side, and flips left
#   and right with probability 0.5. With `train=False` nothing is random.
# * No warning, and the image stays as it is.

# %% exercise="build_transform"
def build_transform(train, size, mean, std):
    """Return a callable: mapped uint8 image (H, W, 3) -> normalised float32 tensor (3, H, W)."""
    ### BEGIN SOLUTION
    # np.array: a private copy. It is writable (no warning) and no longer a memmap. ToImage makes it an image that
    # the next steps recognise: v2 hands on what it does not know, unflipped.
    steps = [v2.Lambda(np.array), v2.ToImage()]
    if train:
        # Here the padding's 0 is black, and a pixel is one byte; behind Normalize 0 would be the mean colour.
        steps += [v2.RandomCrop(size, padding=4), v2.RandomHorizontalFlip()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
    return v2.Compose(steps)
    ### END SOLUTION

# %% [markdown]
# ### Normalised images and their picture
#
# Sooner or later you look at a batch.

# %%
predict(
    "picture_of_normalised",
    "A normalised image is drawn as it is. What will you see?",
    ["all black", "the image, a little pale", "a distorted image: some black, some glaring"],
)

# %%
y = normalize(x)
drawn = y.permute(1, 2, 0).clamp(0, 1)  # matplotlib clips just so, and says it in a log line
restored = y * std[:, None, None] + mean[:, None, None]
image_row(
    [x.permute(1, 2, 0), drawn, restored.permute(1, 2, 0).clamp(0, 1)],
    ["as it was", "normalised", "denormalised"],
    caption="Drawing takes floats from 0 to 1. Below 0 everything is black, above 1 everything glares.",
    alt="Three small pictures of a horse: the original, a version with hard contrast and black "
    "patches, and one that looks like the original.",
)
black, glaring = (y <= 0).float().mean().item(), (y >= 1).float().mean().item()
print(f"clipped to 0: {black:.0%} of the values, to 1: {glaring:.0%}")
print(f"after denormalising the largest error is {(restored - x).abs().max().item():.0e}")
seen = "the image, a little pale" if black < 0.05 else "a distorted image: some black, some glaring"
reveal("picture_of_normalised", "all black" if black > 0.95 else seen)

# %% [markdown]
# And with its axes in the model's order it cannot be drawn at all:

# %%
with shows_error():
    figure(2, 2).subplots().imshow(x)

# %% [markdown] exercise="denormalize"
# `denormalize(batch, mean, std)` undoes `Normalize`.
#
# * `batch` is a floating-point tensor (..., 3, H, W) on any device: one image, a batch, frames of videos.
# * `mean` and `std` are three numbers each, as a list, a tuple or a tensor, wherever it lives.
# * Shape, dtype and device of the result are those of `batch`, and `batch` stays as it is. Nothing is clipped.

# %% exercise="denormalize"
def denormalize(batch, mean, std):
    """Return batch * std + mean, channel by channel."""
    ### BEGIN SOLUTION
    # as_tensor moves constants to the batch, whatever they were; a batch on the GPU stays there.
    mean, std = (torch.as_tensor(c, dtype=batch.dtype, device=batch.device).view(3, 1, 1) for c in (mean, std))
    return batch * std + mean
    ### END SOLUTION

# %% [markdown]
# ## Part 6. A data set of your own
#
# ### What a loader asks for

# %%
class Bare(Dataset):
    def __getitem__(self, index):
        return train.images[index], train.labels[index]


with shows_error():
    DataLoader(Bare(), shuffle=True)
with shows_error():
    next(iter(DataLoader(Bare())))

# %% [markdown]
# `__getitem__` and `__len__`, then. With `shuffle=True` the loader asks for the length at once, without it at the first
# batch. Must an item be a tensor?

# %%
items = {
    "array and int": (horse, 3),
    "dictionary with text": {"image": horse, "name": "horse.png", "score": 0.5},
    "PIL image": (Image.fromarray(horse), 3),
}
rows = []
for name, item in items.items():
    try:
        batch = default_collate([item, item])
        parts = batch.values() if isinstance(batch, dict) else batch
        rows.append((name, ", ".join(str(getattr(p, "dtype", p)) for p in parts)))
    except TypeError as error:
        rows.append((name, f"TypeError: {error}"))
table(("item", "batch of two"), rows, code=())

# %% [markdown]
# `default_collate` takes numbers, arrays, texts, and dictionaries of those. No PIL images, and nothing of unequal
# shapes. For those you write a `collate_fn`.

# %% [markdown] exercise="pad_collate"
# One image has five boxes, the next has none: `default_collate` cannot stack them.
#
# `pad_collate(samples)` gets a list of `(image, boxes)`, an image (3, H, W) and boxes (k, 4) with a k of its own. It returns
# `(images, boxes, present)`:
#
# * `images` (B, 3, H, W);
# * `boxes` (B, most, 4) in the dtype of the boxes, `most` being the largest k of *this* batch, 0 included. Each image's
#   boxes come first, then zeros;
# * `present` (B, most), bool: which of them are boxes. (A box of zeros may be a real one.)
#
# Nothing in `samples` is changed or shared.

# %% exercise="pad_collate"
def pad_collate(samples):
    """Return images (B, 3, H, W), boxes (B, most, 4) and present (B, most) of a list of (image, boxes)."""
    ### BEGIN SOLUTION
    images, boxes = zip(*samples, strict=True)
    counts = torch.tensor([len(b) for b in boxes])
    padded = boxes[0].new_zeros(len(boxes), int(counts.max()), 4)  # new_zeros keeps the dtype
    for row, b in zip(padded, boxes, strict=True):
        row[: len(b)] = b
    return torch.stack(images), padded, torch.arange(padded.shape[1]) < counts[:, None]
    ### END SOLUTION

# %% [markdown]
# ### Post-mortem: the loader ends early
#
# A data set says `len` 11, and has ten images. "The loader silently stops early", says the report.

# %%
class OneTooMany(Dataset):
    def __init__(self):
        self.images = np.zeros((10, 4, 4, 3), np.uint8)

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return self.images[index]


predict(
    "loop_over_loader",
    "`for batch in DataLoader(OneTooMany(), batch_size=2)`: what happens?",
    ["ends early, no error", "an IndexError"],
)
predict(
    "loop_over_dataset",
    "`for image in OneTooMany()`, without a loader?",
    ["ends early, no error", "an IndexError"],
)

# %%
def go_through(images):
    count = 0
    try:
        for _ in images:
            count += 1
        outcome = "ends early, no error"
    except IndexError as error:
        outcome = "an IndexError"
        print(error)
    print(count, "came out,", len(images), "were promised")
    return outcome


reveal("loop_over_loader", go_through(DataLoader(OneTooMany(), batch_size=2)))
reveal("loop_over_dataset", go_through(OneTooMany()))

# %% [markdown]
# The loader asks for index 10 and passes the error on. It is the *plain* loop that is silent: a class without
# `__iter__` is read from index 0 until `IndexError`, which Python takes for the end. So who uses a data set without a
# loader, in a script that computes statistics, say, loses images without a word if there is a hole.
#
# "Then let us guard `__getitem__`":

# %%
class Guarded(OneTooMany):
    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(f"index {index} is out of range")
        return self.images[index]


with shows_error():
    Guarded()[10]
print("index -1 gives an image of", Guarded()[-1].shape, "and is no error")

# %% [markdown]
# That is NumPy's message, not the guard's: 10 is smaller than 11, so it passes. A guard that asks the number that is
# wrong guards nothing. Mend `__len__`: take it from the data, `len(self.images)`.

# %% [markdown] exercise="find_the_missing_image"
# A data set says `len(dataset) == 1001` and has 1000 images. Another one has a hole in the middle. A third has two
# images more than it admits, and nobody has ever trained on them.
#
# Write the post-mortem. `find_the_missing_image(dataset)` returns two lists of indices, in ascending order:
#
# * `broken`: indices from 0 to `len(dataset) - 1` that raise an exception, whatever it is (a file may be gone, a
#   record damaged);
# * `hidden`: indices from `len(dataset)` on that can be read. One among them may be damaged, too: the end is where
#   `IndexError` is raised, and no other error.
#
# Read each index once: a real archive is large.
#
# A data set that promises 6 and has images 0 to 4, of which number 2 is damaged, gives `([2, 5], [])`.

# %% exercise="find_the_missing_image"
def find_the_missing_image(dataset):
    """Return (broken, hidden), two lists of indices: promised and unreadable, present and never promised."""
    ### BEGIN SOLUTION
    broken = []
    # Index by index: `for image in dataset` would end at the first IndexError and call that the end of the data.
    for index in range(len(dataset)):
        try:
            dataset[index]
        except Exception:  # the question is whether it can be read, not why
            broken.append(index)
    hidden = []
    for index in itertools.count(len(dataset)):
        try:
            dataset[index]
        except IndexError:
            return broken, hidden
        except Exception:  # there, but damaged: not the end
            continue
        hidden.append(index)
    ### END SOLUTION

# %% [markdown]
# ### Files, names, labels
#
# "The class reads the files from `./data`."

# %%
predict(
    "file_name",
    'With `train = True`, what is `f"cifar_mini_{train}_data.dat"`?',
    ["cifar_mini_train_data.dat", "cifar_mini_True_data.dat"],
)

# %%
name = f"cifar_mini_{True}_data.dat"
reveal("file_name", name)
with shows_error():
    np.memmap(name, np.uint8, mode="r")

# %% [markdown]
# A raw file has no header. Nobody checks that shape and file fit, except the length:

# %%
pixel_file, label_file = Path(folder.name) / "pixels.bin", Path(folder.name) / "labels.txt"
train.images[:200].tofile(pixel_file)
label_file.write_text("\n".join(map(str, train.labels[:200])) + "\n")

with shows_error():
    np.memmap(pixel_file, np.uint8, mode="r", shape=(201, 32, 32, 3))
wrong = np.memmap(pixel_file, np.uint8, mode="r", shape=(100, 64, 32, 3))
print("accepted, and two images one above the other:", wrong.shape)

# %% [markdown]
# Labels come from a text file in many data sets. Read them into *one array*, at the start, and compare the count with
# the images:

# %%
labels = np.loadtxt(label_file, dtype=np.int64)
images = np.memmap(pixel_file, np.uint8, mode="r").reshape(-1, 32, 32, 3)  # raises unless it divides
if len(labels) != len(images):
    raise ValueError(f"{len(images)} images and {len(labels)} labels")
print(images.shape, labels.shape, [train.classes[k] for k in labels[:5]])

# %% [markdown] exercise="CifarMini"
# Write the data set that the rest of this section relies on.
#
# `CifarMini(path, labels, shape, transform=None)`: the file `path` holds `len(labels)` images of `shape` (H, W, 3),
# uint8, one after the other and nothing else. `labels` is a list or an array of integers.
#
# * `dataset[i]` is `(image, label)`: a uint8 tensor (3, H, W), or what `transform` makes of it, and a plain `int`.
# * Indices work as with a list: -1 is the last, NumPy's integers are fine, and past either end there is an
#   `IndexError`.
# * The file is opened when the first image is read, by each process and each data set for itself, and to read only.
#   Only the bytes of an image that is asked for are read.
# * An image has memory of its own: a write to it changes neither the data set nor the file.
# * A pickle of the data set holds no image, also after it was used. Spawned workers get it that way.

# %% exercise="CifarMini"
class CifarMini(Dataset):
    """Images in a file of raw uint8 pixels, with their labels."""

    def __init__(self, path, labels, shape, transform=None):
        ### BEGIN SOLUTION
        self.path, self.shape, self.transform = Path(path), tuple(shape), transform
        self.labels = np.asarray(labels, dtype=np.int64)  # one object, not one per label
        self.images = None
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        return len(self.labels)
        ### END SOLUTION

    def __getitem__(self, index):
        ### BEGIN SOLUTION
        label = int(self.labels[index])  # raises IndexError past either end
        if self.images is None:
            self.images = np.memmap(self.path, np.uint8, mode="r", shape=(len(self), *self.shape))
        # np.array copies 3 KB here. A window onto the map could not be written to: the process would end.
        image = torch.from_numpy(np.array(self.images[index])).permute(2, 0, 1)
        return (image if self.transform is None else self.transform(image)), label

    def __getstate__(self):
        """What a pickle holds: the path, not the map, which would be written out in full."""
        return {**self.__dict__, "images": None}
        ### END SOLUTION

# %% [markdown]
# ### Distorted on disk, or on the way?
#
# The set can be made harder: `make build-data NOISE=0.05 CROP=1 JITTER=1` writes training images with noise, shifted
# by some pixels, with changed colours. Here are those distortions, one by one, on a copy.

# %%
some = np.array(train.images[:1])
kinds = {
    "as drawn": Distortions(),
    "noise 0.1": Distortions(noise=0.1),
    "crop": Distortions(crop=True),
    "jitter": Distortions(jitter=True),
    "all": Distortions(noise=0.1, crop=True, jitter=True),
}
distorted = {name: kind.apply(some, seed=3)[0] for name, kind in kinds.items()}
image_row(
    list(distorted.values()),
    list(distorted),
    columns=5,
    caption="One training image, and what the three distortions do to it.",
    alt="Five versions of one small image: the original, with grains of noise, shifted by a few "
    "pixels, with other colours, and with all three.",
)

# %%
predict(
    "distorted_epochs",
    "The distorted images are written to the file. How many different versions of image 0 does a model "
    "see in five epochs?",
    [1, 5],
)

# %%
on_disk = Path(folder.name) / "distorted.bin"
kinds["all"].apply(np.array(train.images[:4]), seed=3).tofile(on_disk)
from_file, on_the_way = set(), set()
for epoch in range(5):
    stored = np.memmap(on_disk, np.uint8, mode="r", shape=(4, 32, 32, 3))
    from_file.add(stored[0].tobytes())
    on_the_way.add(kinds["all"].apply(np.array(train.images[:1]), seed=epoch)[0].tobytes())
print("distorted on the way:", len(on_the_way), "versions")
reveal("distorted_epochs", len(from_file))

# %% [markdown]
# On disk a distortion is part of the *data*: harder images, the same for everybody and in every epoch. On the way it is
# *augmentation*: a new version each time, if the random numbers are right (part 4).

# %% [markdown]
# ## Part 7. Fast loading, argument by argument
#
# ### Five ways to load the same images
#
# Each way below gives 1000 training images in batches of 128: padded by 4, cropped at random, flipped at random,
# normalised.
#
# | way | where the images are | how they are made ready |
# | :-- | :-- | :-- |
# | array + PIL | an array in memory | image by image: to PIL, crop, flip, `ToTensor`, `Normalize`. The usual way |
# | memmap + tensor transforms | a mapped file | image by image, by the transforms of `torchvision` on tensors |
# | memmap, image by image | a mapped file | the steps of the next row, for one image at a time; normalised by batch |
# | memmap, batch by batch | a mapped file | one step of each kind for many images, as `fetch_batch` below |
# | one tensor, batch by batch | a tensor in memory | the same without `Dataset` and `DataLoader`, by tensor indexing |

# %%
times = ["about the same", "about twice", "about five times", "more than eight times"]
predict(
    "without_pil",
    "Image by image, but with tensors from a memory map instead of PIL images: how many times the "
    "images per second of the usual way?",
    times,
)
predict(
    "batch_at_once",
    "A batch of 128 images cropped, flipped and normalised in one call each: how many times the images "
    "per second of the usual way?",
    times,
)

# %%
rates = compare_ways(rounds=4)
table(
    ("way", "images per second", "times the usual way", "... in processor time", "mean", "std"),
    [
        (
            way,
            f"{r.images_per_second:,.0f}",
            f"{r.ratio:.1f}",
            f"{r.cpu_ratio:.1f}",
            f"{r.mean:.2f}",
            f"{r.std:.2f}",
        )
        for way, r in rates.items()
    ],
    code=(),
)

# %%
bars(
    list(rates),
    [round(r.ratio, 1) for r in rates.values()],
    "images per second, as a multiple of the usual way",
    caption="Measured just now in one process with one thread, on this machine and beside whatever "
    "else it does. Yours will differ.",
    alt="Five bars: " + "; ".join(f"{way} {r.ratio:.1f}" for way, r in rates.items()) + ".",
)


def in_words(rate):
    """In processor time, which a busy machine disturbs less than the clock on the wall."""
    return times[(rate.cpu_ratio > 1.5) + (rate.cpu_ratio > 3.5) + (rate.cpu_ratio > 8)]


reveal("without_pil", in_words(rates["memmap + tensor transforms"]))
reveal("batch_at_once", in_words(rates["memmap, batch by batch"]))

# %% [markdown]
# Mean and std agree: all five ways do the same work. This is one of the few places of the course where a clock is
# asked, and a clock tells of *this* machine at *this* moment. Look at the second row: PIL was not the brake. The tensor
# transforms make just as many small calls, and on 3 KB of pixels it is the call that costs, not the pixels. Five calls
# per image are five thousand an epoch. With a call per batch they are forty.
#
# Workers multiply whatever you have, at best by their number, minus the price of sending the batches, and only where
# cores are free. Doing less per image helps everywhere. So look into `__getitem__` first, and at `num_workers` second.
#
# And ask whether loading is what you wait for at all: if the model takes longer than the loader, nothing in this part
# makes your training faster.
#
# Compare the last two rows as well. A tensor in memory and no loader at all are not the fastest by themselves: both
# make one call a step and batch, and what remains is how each cuts its windows out of the padded batch.
#
# The code of the five is in `course_utils/loading.py`.

# %% [markdown]
# ### A batch at once
#
# How does a data set get at whole batches? By a method `__getitems__(indices)`. The loader then hands it the list of
# indices of a batch, and one call of each step does for all images. What it returns goes to `collate_fn` (here one
# that hands the finished batch on).
#
# The shifts and the flip differ from image to image, so a slice will not do. An index array will.

# %% [markdown] exercise="fetch_batch"
# `fetch_one` below shifts and flips one image. In a loop over a batch it is where the time goes.
#
# `fetch_batch(images, labels, indices, shifts, flips)` gives the same for a whole batch at once:
#
# * `images` is a `np.memmap` (N, H, W, 3) uint8 that may only be read, `labels` an int64 array (N,), `indices` a list of B
#   indices, as a loader gives it to `__getitems__`;
# * `shifts` (B, 2) holds `dy` and `dx` from -4 to 4 for each image, `flips` (B,) is bool;
# * it returns `(batch, labels)`: a contiguous uint8 tensor (B, 3, H, W) in memory of its own, and an int64 tensor (B,).
#
# Only the images of the batch are read from the file. No Python code runs once per image, neither as a loop nor
# hidden in `map` or a comprehension.

# %% exercise="fetch_batch"
def fetch_one(image, dy, dx, flip):
    """The window of an image (H, W, 3) that begins dy rows and dx columns later, black outside; then flipped."""
    height, width, _ = image.shape
    window = np.pad(image, ((4, 4), (4, 4), (0, 0)))[4 + dy : 4 + dy + height, 4 + dx : 4 + dx + width]
    return window[:, ::-1] if flip else window


def fetch_batch(images, labels, indices, shifts, flips):
    """Return images (B, 3, H, W) uint8 and labels (B,) int64 of a batch, each image as fetch_one gives it."""
    ### BEGIN SOLUTION
    batch = images[indices]  # the one copy out of the map
    count, height, width, _ = batch.shape
    padded = np.pad(batch, ((0, 0), (4, 4), (4, 4), (0, 0)))
    rows = 4 + shifts[:, :1] + np.arange(height)  # (B, H)
    columns = np.arange(width)
    columns = 4 + shifts[:, 1:] + np.where(flips[:, None], columns[::-1], columns)  # (B, W)
    # Small index arrays that broadcast to (B, H, W): one step takes every image's own window.
    windows = padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return torch.from_numpy(windows).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels[indices])
    ### END SOLUTION

# %% [markdown]
# ### The last batch

# %%
predict(
    "mean_of_means",
    "A loss of 0, 1, ... 999 for 1000 images, in batches of 128. Is the mean of the batch means the mean "
    "of all?",
    [True, False],
)

# %%
values = torch.arange(1000.0)
batches = list(DataLoader(values, batch_size=128))
mean_of_means = torch.stack([batch.mean() for batch in batches]).mean().item()
print(len(batches), "batches, the last one of", len(batches[-1]))
print("mean of the batch means:", mean_of_means, "  mean of all:", values.mean().item())
reveal("mean_of_means", mean_of_means == values.mean().item())

# %% [markdown]
# The last batch has 104 images and weighs as much as the others. Add up `loss * len(batch)` and divide by the
# number of images. (`drop_last=True` would make the batches equal by leaving 104 images out; for training that is fine,
# for a score it is not.)

# %% [markdown]
# ### Every argument, and its price
#
# | argument | what it does | what it costs, and when it is wrong |
# | :-- | :-- | :-- |
# | `batch_size` | items per batch; `None`: no batching | bytes, times the batches ahead |
# | `shuffle` | a new order each epoch | nothing worth naming; excludes `sampler` |
# | `sampler`, `batch_sampler` | the order, or the batches, by you | runs in the main process; one of them, and no `shuffle` |
# | `num_workers` | processes that read | each: a start, private memory (part 1), and copies of Python objects (part 2); 0 is right for debugging |
# | `collate_fn` | items into a batch | runs in the worker; under spawn no lambda and no function from a cell |
# | `pin_memory` | a copy that a GPU can fetch by itself | one more copy per batch in main memory; useless without a GPU |
# | `drop_last` | leaves out the short batch | those images, this epoch; never for a score |
# | `timeout` | seconds to wait for a batch, then an error | 0 waits for ever; needs workers |
# | `worker_init_fn` | runs once in each new worker | part 4; a constant seed is a fault; no CUDA here |
# | `multiprocessing_context` | fork, spawn, forkserver | spawn: seconds per start (part 1), and everything must be importable |
# | `generator` | the base of shuffling and of the workers' seeds | nothing; without it the global one is used, and others move it |
# | `prefetch_factor` | batches ahead per worker, 2 by default | bytes: workers x factor x batch |
# | `persistent_workers` | keeps the processes between epochs | memory stays; changes to the data set do not arrive (part 1) |
# | `in_order` | batches come in the order asked for | `False` lets quick batches overtake, and the order is no longer repeatable |
#
# Not all pairs go together, and the loader says so at once:

# %%
for settings in [
    {"shuffle": True, "sampler": range(8)},
    {"batch_sampler": [[0, 1]], "batch_size": 4},
    {"timeout": 5, "prefetch_factor": 2},
    {"batch_size": None, "drop_last": True},
]:
    print(settings)
    with shows_error():
        DataLoader(reader, **settings)

# %% [markdown] exercise="loader_settings"
# `loader_settings(goal, cores, gpu)` returns a dictionary of arguments, so that
# `DataLoader(dataset, **loader_settings(...))` serves a goal on a machine with `cores` cores (two or more), and with a
# GPU or not:
#
# | goal | what it needs |
# | :-- | :-- |
# | `"debugging"` | a breakpoint in `__getitem__` is reached; every epoch goes through the items in the same order |
# | `"low memory"` | at most one worker, at most one batch in advance, no second copy of a batch |
# | `"throughput"` | for training: two workers or more, but no more than cores, that live through all epochs, each with two batches or more in advance; pinned memory if there is a GPU, and only then; shuffled |

# %% exercise="loader_settings"
def loader_settings(goal, cores, gpu):
    """Return the arguments of a DataLoader for "debugging", "low memory" or "throughput"."""
    ### BEGIN SOLUTION
    if goal == "debugging":
        return {"num_workers": 0, "shuffle": False}
    if goal == "low memory":
        # One process and one batch more than with no workers, and loading still runs beside the model.
        return {"num_workers": 1, "prefetch_factor": 1}
    return {
        "shuffle": True,
        "num_workers": min(cores, 8),
        "persistent_workers": True,  # processes are started once, not once an epoch
        "prefetch_factor": 2,
        "pin_memory": gpu,  # without a GPU it is a copy for nothing, and a warning
    }
    ### END SOLUTION

# %% [markdown]
# ## When something looks wrong
#
# | symptom | cause | check | fix |
# | :-- | :-- | :-- | :-- |
# | "DataLoader worker (pid ...) is killed by signal: Killed" | memory full | USS of the workers over time; `dmesg` | packed arrays instead of lists; fewer batches ahead |
# | "DataLoader worker (pid ...) exited unexpectedly" | the worker crashed below Python, or could not start | `num_workers=0` shows the true error | mend that; see the next row |
# | `Can't get attribute ... on <module '__main__'>` | class or function from a cell or without import, with spawn or forkserver | `type(dataset).__module__` | put it into a file and import it |
# | "An attempt has been made to start a new process before ..." | a script without a main guard, with spawn | is there an `if __name__ == "__main__":`? | add it |
# | memory grows during the epochs, then levels off | reading counts references, pages are copied | USS (not RSS) per worker; `counted_bytes(dataset)` | `np.array(texts)`, bytes and offsets, memmap |
# | "Too many open files" | kept batches, each an open file | `len(os.listdir("/proc/self/fd"))` | keep clones or numbers; `ulimit -n`; `file_system` |
# | "unable to allocate shared memory(shm)" | `/dev/shm` too small for the batches ahead | `df -h /dev/shm` | smaller batches, fewer workers, `--shm-size` |
# | every epoch the same augmentation, or the same in each worker | a generator of the data set's own, or a constant seed in `worker_init_fn` | count different numbers among the items | seed from `get_worker_info().seed`, or from seed, epoch and index |
# | `set_epoch` or a new transform has no effect | persistent workers have copies | let items say what they see | shared tensor, sampler, or new workers |
# | "... is out of bounds" near the end of an epoch | `__len__` too large | `dataset[len(dataset) - 1]` | take the length from the data |
# | fewer images than expected, no error | a plain loop over the data set ended at a hole | compare the count with `len` | loop over `range(len(dataset))` |
# | `img should be PIL Image. Got <class 'numpy.memmap'>`, now and then | a flip before `ToTensor`, coin p=0.5 | set p=1 | `ToImage` first |
# | augmentation seems to do nothing | `v2` passes unknown types through | p=1, compare in and out | `ToImage` first |
# | colours odd after a flip | flipped as (H, W, 3) | shape before the flip | axes first |
# | picture black and glaring | it is normalised | `x.min(), x.max()` | denormalise, clip, then draw |
# | "Invalid shape (3, 32, 32) for image data" | axes in the model's order | `x.shape` | `permute(1, 2, 0)` |
# | values in the hundreds after `Normalize` | float image of 0 to 255 | `x.max()` before it | divide by 255, or `scale=True` |
# | "'pin_memory' argument is set as true but no accelerator is found" | no GPU | `torch.accelerator.is_available()` | `pin_memory` only with a GPU |
# | "This DataLoader will create ... worker processes" | more workers than cores | `len(os.sched_getaffinity(0))` | as many as cores, or fewer |
# | "The given NumPy array is not writable" | tensor made from a read-only map | `a.flags.writeable` | `np.array(a)` first |
# | the first batch of each epoch is slow | workers start, and the queue is empty | time the first batch apart | `persistent_workers=True` |

# %% [markdown]
# ## What you can now explain
#
# * what a forked and a spawned worker begin with, and why a class in a cell breaks the second;
# * why a list of texts grows in workers and an array does not, why it levels off, and why RSS does not show it;
# * how many batches are on their way for given arguments, and what they weigh;
# * what holds an open file, and what a kept batch costs;
# * which generators PyTorch seeds, which you must, and how an epoch is replayed alone;
# * what persistent workers save, keep, and do not hear;
# * what `ToTensor` and `Normalize` do, in basic steps, and why the order of transforms has reasons;
# * when a loader ends early, and when a loop does;
# * what each argument of `DataLoader` costs.
#
# The next cell removes the files that this notebook has written (`lesson_photos.py`, `lesson_workers.py`,
# `lesson_noise.py`, and its folder of temporary files). To go on after it, run the notebook again from the top. Then it
# shows your predictions, beside what was measured:

# %%
for name in ("lesson_photos", "lesson_workers", "lesson_noise"):
    Path(f"{name}.py").unlink(missing_ok=True)
folder.cleanup()
my_predictions()

# %% [markdown] reflection="reading_writes" points=2
# Over an epoch the workers of one data set grew by many megabytes, and those of another did not, although both only
# *read* (Part 2). After a while the growth levelled off, and the RSS of the processes had not shown it.
#
# Explain what was measured: what a worker has of its parent's memory at the start, what turns reading into writing
# for a list of texts and not for an array, why it ends, and why RSS is the wrong number here. Then name the remedy,
# and what it leaves a worker to write to.
#
# * 1 point: copy on write, the reference counts, and why an array is spared.
# * 1 point: the end of the growth, the right number to look at, and the remedy.

# %% [markdown] reflection="reading_writes"
# A forked worker shares all pages with its parent until one of the two writes to a page; then it gets a copy of that
# page. To read a text Python counts a reference, and the count stands in the object, so reading writes, and page
# after page is copied. An array is one object whose numbers have no counts of their own, so its bytes stay shared.
# The growth ends when every page with such objects is copied. RSS counts a page for each process that sees it, shared
# or not, so it hardly changes; USS counts what a process has alone. The remedy is to pack the texts into one array of
# bytes and one of offsets, so that a few counts are written to instead of one for each text.

# %%
progress("dataloader_memory")
