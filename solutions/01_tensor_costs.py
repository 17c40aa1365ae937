# %% [markdown]
# # 1. What does a tensor cost?
#
# A camera watches a gate. A program subtracts each frame from the next and raises an alarm when the difference is
# large. In the morning all is well. At dusk, when each frame is a little darker than the last, it rings without end.
# Nobody finds an error in the log, because there is none.
#
# The next cell runs three lines of everyday code. Not one of them complains.

# %% tags=["setup"]
import io
import math

import cv2
import numpy as np
import torch
from torch import nn

from course_utils import check, hint, load_cifar_mini, memory, my_predictions, operators
from course_utils import predict, progress, reveal, shows_error, shows_warning, table
from course_utils.plots import bars, figure, image_row, show
from course_utils.widgets.strides import stride_explorer, stride_picture

# %%
data = load_cifar_mini("train")
horse = np.array(data.images[data.labels == data.classes.index("horse")][0])

earlier, later = torch.tensor([200, 199], dtype=torch.uint8)
print("brightness changes by ", (later - earlier).item())

channels_first = torch.from_numpy(horse).reshape(3, 32, 32)
print("the shape a model takes:", tuple(channels_first.shape))

embeddings, file = torch.zeros(10_000, 100), io.BytesIO()
torch.save(embeddings[0], file)
print("one row of", embeddings[0].nbytes, "bytes, saved: ", file.getbuffer().nbytes, "bytes")

# %% [markdown]
# All three are wrong.
#
# * 199 - 200 is not 255. It is what `uint8` makes of -1.
# * The shape is right and the picture is destroyed. You will see it in part 4.
# * A row of 400 bytes went to disk with the 4 MB that it was cut from.
#
# Such faults have one root: a tensor is two things, a *storage* full of bytes and a *description* of how to read
# it. Many calls change only the description. Some copy the bytes. A few change the numbers without a word. After
# this notebook you can say of a line of tensor code **what is new, what is shared, and in which order it lies**,
# and prove it.
#
# **You need:** Python, NumPy slicing, and to have seen a convolutional network once. No GPU.
#
# | part | idea | minutes to read and run |
# | :-- | :-- | :-- |
# | 1 | A new tensor: copy or share, and of what dtype | 20 |
# | 2 | Which bytes: storage, `data_ptr`, `id` | 20 |
# | 3 | Strides: the order in which bytes are read | 25 |
# | 4 | From an OpenCV image to a batch | 20 |
# | 5 | Feature maps as tokens for attention | 10 |
# | 6 | Contiguity: when to care, when not to | 10 |
# | 7 | Bytes that stay | 10 |
#
# Every exercise says its own minutes; together they take about three hours. You need not do all of it at once.

# %% [markdown]
# ### How this notebook works
#
# **Predict** cells ask you for a guess. Choose before you run the cell below: a guess that turns out wrong is
# remembered far better than an explanation that was read. Nobody marks your guesses.
#
# **Exercises** ask for a function or a table. Under each stands a cell like `check("bgr_to_batch")`. Run it as
# often as you like. It tries your answer on several inputs and says what was expected, what it got, why, and what
# to try. The final mark comes from other inputs of the same kind, so an answer that fits only the examples will not
# do.
#
# `hint("bgr_to_batch")` opens the first hint. The next one opens after one more *different* try.
# `progress("tensor_costs")` shows where you stand.

# %%
progress("tensor_costs")

# %%
print("The images of this course:", data.describe())
image_row(
    [data.images[data.labels == k][0] for k in range(10)],
    data.classes,
    columns=5,
    caption=f"One image of each class, 32 x 32 pixels, from {data.describe()}.",
    alt="Ten small colour images in two rows, one for each class from airplane to truck.",
)

# %% [markdown]
# Where the line above says *drawn*, these are drawings made by a program, not photographs. They load, break and
# train like photographs. An accuracy on them says nothing about CIFAR-10.

# %% [markdown]
# ## Part 1. A new tensor: copy or share, and of what dtype
#
# ### A NumPy array of doubles
#
# NumPy makes float64 unless told otherwise. A model's weights are float32.

# %%
predict(
    "from_numpy_double",
    "`a = np.zeros(2)` holds float64. What is the dtype of `torch.from_numpy(a)`?",
    ["float32", "float64", "none: it raises an error"],
)

# %%
a = np.zeros(2)
from_doubles = torch.from_numpy(a)
reveal("from_numpy_double", from_doubles.dtype)

# %% [markdown]
# `from_numpy` takes the bytes as they are, so the dtype comes with them. The trouble starts later, somewhere else:

# %%
with shows_error():
    nn.Linear(2, 1)(from_doubles)

# %% [markdown]
# What `from_numpy` does refuse is an array that a tensor cannot describe. Let us ask it.

# %%
candidates = {
    "np.zeros(2, np.float64)": np.zeros(2),
    "np.zeros(2, np.uint16)": np.zeros(2, np.uint16),
    "np.zeros(2, np.longdouble)": np.zeros(2, np.longdouble),
    "np.array(['cat', 'dog'])": np.array(["cat", "dog"]),
    "np.zeros(2, '>f4')  # big-endian": np.zeros(2, ">f4"),
    "np.arange(4.0)[::-1]": np.arange(4.0)[::-1],
}
rows = []
for code, array in candidates.items():
    try:
        answer = f"{torch.from_numpy(array).dtype}"
    except (TypeError, ValueError) as error:
        answer = f"{type(error).__name__}: {str(error).split('. ')[0][:70]}"
    rows.append((code, answer))
table(("array", "torch.from_numpy"), rows)

# %% [markdown]
# Strings, extended precision, foreign byte order, negative strides: those are refused. Doubles are not.

# %% [markdown]
# ### One capital letter
#
# `torch.tensor` and `torch.Tensor` differ by more than a letter.

# %%
predict("capital_tensor", "What is the shape of `torch.Tensor(3)`?", [(), (1,), (3,)])

# %%
reveal("capital_tensor", tuple(torch.Tensor(3).shape))
rows = []
for call in ["Tensor(3)", "tensor(3)", "Tensor([3])", "Tensor([True])", "tensor([True])"]:
    made = eval("torch." + call)
    rows.append(("torch." + call, tuple(made.shape), made.dtype))
table(("call", "shape", "dtype"), rows)

# %% [markdown]
# The old constructor `torch.Tensor` reads a number as a *size* and gives you three numbers that nobody wrote.
# Whatever it is given as data becomes float32. Use `torch.tensor(data)` for data and `torch.empty(size)` for space.

# %% [markdown]
# ### Copy or share?
#
# A call shares when the tensor's storage begins where the array's bytes begin. Then a write on one side shows on
# the other.

# %%
predict(
    "as_tensor_dtype",
    "`a` is a float32 array. `torch.as_tensor(a)` shares its memory. Does `torch.as_tensor(a, "
    "dtype=torch.float64)` share it too?",
    [True, False],
)

# %%
a = np.arange(6, dtype=np.float32)
as_doubles = torch.as_tensor(a, dtype=torch.float64)
a[0] = 99
print(as_doubles)
reveal("as_tensor_dtype", as_doubles[0].item() == 99)

# %% [markdown]
# A float64 needs eight bytes where the array has four: no description can turn the one into the other. `as_tensor`
# shares *if it can* and copies if it must, without telling you which. The whole family, measured:

# %%
a = np.arange(6, dtype=np.float32)
x = torch.ones(6)
calls = [
    "torch.tensor(a)",
    "torch.from_numpy(a)",
    "torch.as_tensor(a)",
    "torch.as_tensor(a, dtype=torch.float64)",
    "torch.as_tensor([0, 1, 2, 3, 4, 5])",
    "torch.Tensor(a)",
    "torch.empty(6)",
    "torch.zeros_like(x)",
    "torch.arange(6)",
    "torch.linspace(0, 1, 6)",
]
rows = []
for call in calls:
    made = eval(call)
    storage = made.untyped_storage()
    shares = storage.data_ptr() == a.ctypes.data
    memory_is, new = ("shares with a", 0) if shares else ("own bytes", storage.nbytes())
    rows.append((call, memory_is, made.dtype, made.nbytes, new))
table(("call", "memory", "dtype", "bytes it reads", "new bytes"), rows)

# %% [markdown]
# Read the last two columns together. `from_numpy` reads 24 bytes and allocates none.
#
# Two rows deserve a second look. From a Python list nothing can be shared: a list holds pointers to objects, not
# numbers side by side. And the old `torch.Tensor(a)` shares, but only as long as `a` is float32; from any other
# dtype it copies. One more reason to leave it alone.
#
# `torch.tensor` copies by promise, also from a tensor. There it tells you that you probably meant something else:

# %%
with shows_warning():
    torch.tensor(x)

# %% [markdown]
# A list of *arrays* is treated like any other list: number by number. Here too the warning names the cure.

# %%
with shows_warning():
    torch.tensor([np.zeros(3), np.ones(3)])
print(torch.tensor(np.array([np.zeros(3), np.ones(3)])).shape)

# %% [markdown] exercise="predict_creation"
# Before you run anything: predict what each of these twelve calls gives.
#
# `a` is a NumPy array of `float64`, `t` a tensor of `float32`, `u` a tensor of `uint8`.
#
# Replace every `None` by a pair such as `("copies", torch.int32)`:
#
# * `"shares"` if the result lies in the memory of `a` or `t`, so that a later write to one shows in the other;
#   `"copies"` if it has memory of its own;
# * the dtype of the result. For a NumPy result give the dtype of the same name: `torch.float32` for `float32`.
#
# Four calls are new: `t.float()`, `t.to`, `t.numpy()` and `torch.full`. Part 2 returns to the first two. The idea is the
# one that you have seen: a result can share when nothing has to be converted; a dtype is kept, asked for, or taken
# from the data.
#
# Then check. The message names the half of a row that is wrong, memory or dtype. For each row that surprises you, run
# the call and look before you change the prediction.

# %% exercise="predict_creation"
a = np.arange(6.0)  # float64
t = torch.arange(6.0)  # float32
u = torch.tensor([[200, 100, 50]], dtype=torch.uint8)

predict_creation = {
    "torch.tensor(a)": None,
    "torch.from_numpy(a)": None,
    "torch.as_tensor(a)": None,
    "torch.as_tensor(a, dtype=t.dtype)": None,
    "torch.tensor([1, 2, 3])": None,
    "torch.Tensor([1, 2, 3])": None,
    "torch.as_tensor(t)": None,
    "t.float()": None,
    "t.to(torch.float64)": None,
    "t.numpy()": None,
    "torch.zeros_like(u)": None,
    "torch.full((2, 3), 255)": None,
}
### BEGIN SOLUTION
predict_creation = {
    # torch.tensor always copies and keeps the array's dtype: the model in float32 will complain later.
    "torch.tensor(a)": ("copies", torch.float64),
    # from_numpy never copies, and float64 is no obstacle.
    "torch.from_numpy(a)": ("shares", torch.float64),
    # as_tensor shares as long as nothing has to be converted ...
    "torch.as_tensor(a)": ("shares", torch.float64),
    # ... and another dtype needs other bytes.
    "torch.as_tensor(a, dtype=t.dtype)": ("copies", torch.float32),
    # From a list torch.tensor takes the dtype of the numbers; the class torch.Tensor is float32, always.
    "torch.tensor([1, 2, 3])": ("copies", torch.int64),
    "torch.Tensor([1, 2, 3])": ("copies", torch.float32),
    # Nothing to convert: these two return t itself, the very same object.
    "torch.as_tensor(t)": ("shares", torch.float32),
    "t.float()": ("shares", torch.float32),
    "t.to(torch.float64)": ("copies", torch.float64),
    "t.numpy()": ("shares", torch.float32),
    # _like takes over dtype and shape, not the memory.
    "torch.zeros_like(u)": ("copies", torch.uint8),
    # full takes the dtype of its number: 255 is an int.
    "torch.full((2, 3), 255)": ("copies", torch.int64),
}
### END SOLUTION

# %% [markdown]
# ### Empty means unwritten
#
# `torch.empty` asks for memory and writes nothing: you see what was there before. In deterministic mode PyTorch
# fills it with NaN, so that a program which reads it gives itself away.

# %%
torch.set_deterministic_debug_mode("error")
print(torch.empty(2, 3))
torch.set_deterministic_debug_mode("default")

# %%
predict(
    "empty_or_zeros",
    "You read that `torch.empty` is three times as fast as `torch.zeros`. How does the ratio behave"
    " from 16 to 4 million numbers?",
    [
        "about 3 at every size",
        "there is no fixed ratio: it depends on the size",
        "about 1 at every size",
    ],
)

# %%
print("zeros runs:", operators(torch.zeros, 2, 3))
print("empty runs:", operators(torch.empty, 2, 3))

# %% [markdown]
# `zeros` *is* `empty`, and then a pass over the memory. The first costs about the same at every size. The second
# costs per byte. This is the one place in this notebook where a clock is asked; your figures will differ from those
# in print, and from run to run.

# %%
from timeit import repeat

ratios = {}
for side in (4, 64, 512, 2048):
    seconds = [
        min(repeat(lambda: f(side, side), number=5, repeat=7)) for f in (torch.zeros, torch.empty)
    ]
    ratios[f"{side} x {side}"] = seconds[0] / seconds[1]
table(
    ("size", "time of zeros / time of empty"),
    [(size, f"{ratio:.1f}") for size, ratio in ratios.items()],
)
spread = max(ratios.values()) / min(ratios.values())
steady = f"about {3 if min(ratios.values()) > 2 else 1} at every size"
reveal("empty_or_zeros", steady if spread < 2 else "there is no fixed ratio: it depends on the size")

# %% [markdown]
# "Three times" was true on one machine at one size. Use `empty` where every element will be written, because then
# the zeros are work for nothing; use `zeros` everywhere else.

# %% [markdown]
# ### What a `_like` inherits

# %%
predict(
    "zeros_like_grad",
    "`w = torch.ones(2, requires_grad=True)`. Does `torch.zeros_like(w)` require gradients?",
    [True, False],
)

# %%
w = torch.ones(2, 3, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
z = torch.zeros_like(w)
table(
    ("", "w", "torch.zeros_like(w)"),
    [
        ("dtype", w.dtype, z.dtype),
        ("device", w.device, z.device),
        ("stride", w.stride(), z.stride()),
        ("requires_grad", w.requires_grad, z.requires_grad),
    ],
)
reveal("zeros_like_grad", z.requires_grad)

# %% [markdown]
# dtype, device and even the order in memory come from the template. Whether a tensor is to be trained does not:
# that is no property of the bytes, it is a decision.

# %% [markdown] exercise="zeros_for_training"
# Write `zeros_for_training(x)`. It gets a floating-point tensor and returns zeros that an optimizer can train:
# shape, dtype, device and order in memory as those of `x`, a leaf, with a gradient required. `x` stays as it is.
# (Order in memory: what is channels last stays channels last. If `x` has gaps between its elements, the zeros need
# none.)
#
# Mind that `x` may itself be trainable, be the result of a computation, or hold `inf`.

# %% exercise="zeros_for_training"
def zeros_for_training(x):
    """Floating-point tensor -> trainable leaf of zeros with its shape, dtype, device and order in memory."""
    ### BEGIN SOLUTION
    # Everything comes from x but requires_grad, which no _like function takes over.
    return torch.zeros_like(x, requires_grad=True)
    ### END SOLUTION

# %% [markdown]
# ### Counting the steps of `arange`

# %%
predict("arange_count", "How many elements has `torch.arange(0, 10, 0.5)`?", [19, 20, 21])

# %%
steps = torch.arange(0, 10, 0.5)
print("first", steps[0].item(), " last", steps[-1].item())
reveal("arange_count", len(steps))

# %% [markdown]
# The end is left out. So the number of elements is (end - start) / step, *rounded up*. Formulas
# with "floor ... + 1" count the end in.
#
# With steps that binary numbers cannot hold, the rounding can go wrong by one:

# %%
print(torch.arange(1, 1.3, 0.1).tolist())
print("(1.3 - 1) / 0.1 =", (1.3 - 1) / 0.1)

# %% [markdown]
# The quotient came out a hair above 3, so a fourth element appeared, and it is the "excluded" end. Where the number
# of elements matters, name the number: `torch.linspace`, or `torch.arange(n)` with whole numbers, divided
# afterwards.

# %% [markdown] exercise="arange_length"
# Write `arange_length(start, end, step)`: how many values `torch.arange(start, end, step)` has, as an `int`.
# The three are ints or floats, `step` may be negative. Compute it: no tensor (not even on the meta device), no array
# and no list of the values is made to be counted.
#
# Where `torch.arange` raises, because `step` is 0 or leads away from `end`, however long it is, raise a `ValueError`.
#
# ```python
# arange_length(0, 5, 2)      # 3: the values 0, 2, 4
# ```

# %% exercise="arange_length"
def arange_length(start, end, step):
    """Number of values of torch.arange(start, end, step), an int; ValueError where arange raises."""
    ### BEGIN SOLUTION
    if step == 0 or (end - start) * step < 0:
        raise ValueError(f"no step of {step} leads from {start} to {end}")
    # The end is excluded: a rest still holds one value more, an exact hit holds none.
    return math.ceil((end - start) / step)
    ### END SOLUTION

# %% [markdown]
# ### Is `linspace` an `arange`?

# %%
predict(
    "linspace_bytes",
    "Which needs fewer bytes: `torch.linspace(0, 1, 100000)` or `torch.arange(0, 1, 0.00001)`?",
    ["linspace", "arange", "both need the same"],
)
predict("linspace_inside", "Does `linspace` run `arange` inside?", [True, False])

# %%
line, steps = torch.linspace(0, 1, 100_000), torch.arange(0, 1, 0.00001)
table(
    ("", "elements", "bytes", "last value"),
    [
        ("linspace", len(line), line.nbytes, f"{line[-1].item():.7f}"),
        ("arange", len(steps), steps.nbytes, f"{steps[-1].item():.7f}"),
    ],
)
fewer = "linspace" if line.nbytes < steps.nbytes else "arange"
reveal("linspace_bytes", "both need the same" if line.nbytes == steps.nbytes else fewer)

# %%
print("linspace runs:", operators(torch.linspace, 0, 1, 4))
reveal("linspace_inside", "arange" in operators(torch.linspace, 0, 1, 4))
line, product = torch.linspace(0, 1, 4), torch.arange(4) * (1 / 3)
print("the same numbers?", torch.equal(line, product), " difference:", (line - product).tolist())

# %% [markdown]
# A tensor stores its numbers, whatever formula made them: the same count and dtype, the same bytes. `linspace` runs
# no `arange`: it asks `empty` for memory and fills it in a second `linspace`, the one that writes into a given tensor.
#
# The formulas differ, too. `linspace` counts from both ends towards the middle; `arange(n) * step` rounds the step
# once and multiplies it. Here that changes one of four numbers, in its last bit. It is enough for `torch.equal` to say
# no: compare floats with `torch.allclose`.

# %% [markdown]
# ## Part 2. Which bytes: storage, `data_ptr`, `id`
#
# ### A pointer says where a tensor begins
#
# `t.data_ptr()` is the address of the tensor's *first element*. `t.untyped_storage().data_ptr()` is the address of
# the *storage* that it reads.

# %%
predict(
    "pointer_of_a_slice",
    "`x[1:]` shares its storage with `x`. Is `x[1:].data_ptr() == x.data_ptr()`?",
    [True, False],
)

# %%
x = torch.arange(6)
rows = []
for call in ["x", "x[1:]", "x.view(2, 3)", "x[::2]", "x.clone()"]:
    y = eval(call)
    same_storage = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    begins = f"x's + {y.data_ptr() - x.data_ptr()} bytes" if same_storage else "elsewhere"
    rows.append((call, begins, y.data_ptr() == x.data_ptr(), same_storage))
table(("tensor", "first element at", "same data_ptr", "same storage"), rows)
reveal("pointer_of_a_slice", x[1:].data_ptr() == x.data_ptr())

# %% [markdown]
# Equal pointers mean sharing (but for empty tensors, whose pointer may be 0). Unequal pointers mean nothing:
# `x[1:]` begins eight bytes later in the same storage. Ask for the storage. For NumPy arrays on either side there is
# `np.shares_memory`, which looks at the elements themselves: `x[0::2]` and `x[1::2]` share a storage and not one
# element.
#
# An array has no storage object. It has `.base`, the thing that it was cut from, and the owner of the memory has none:

# %%
owner = np.zeros((4, 3))
first, past = np.lib.array_utils.byte_bounds(owner)
print("owner.base:", owner.base, "  owner[2:].base is owner:", owner[2:].base is owner)
print("one past the last byte - the first byte =", past - first, "bytes; owner.nbytes:", owner.nbytes)
print("base of an array that was made from a tensor:", type(torch.zeros(3).numpy().base).__name__)

# %% [markdown] exercise="shares_storage"
# Write `shares_storage(a, b)`. Each of the two is a CPU tensor or a NumPy array, in any combination.
# It returns `True` if both are parts of the same block of memory, and `False` otherwise.
#
# * The block is what was allocated at one go: of a tensor its whole storage, of an array the memory of the array
#   that it was cut from. So the two halves `x[:2]` and `x[2:]` share a block, though they have no element in common.
# * `torch.from_numpy(array)` makes no block: it is a part of the array's.
# * An empty slice `x[:0]` still holds the block of `x`: `True`. Two things that own not a single byte, such as two
#   `torch.empty(0)`, share nothing: `False`.
#
# ```python
# x = torch.zeros(6)
# shares_storage(x, x[4:])        # True, although x.data_ptr() != x[4:].data_ptr()
# shares_storage(x, x.clone())    # False
# ```

# %% exercise="shares_storage"
def shares_storage(a, b):
    """Two CPU tensors or NumPy arrays, in any combination -> bool: are they parts of the same block of memory?"""
    ### BEGIN SOLUTION

    def block(x):
        """The first byte of the memory behind x, and one past the last."""
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        while isinstance(x.base, np.ndarray):  # a view knows the array that it was cut from
            x = x.base
        return np.lib.array_utils.byte_bounds(x)

    # Ranges, not first bytes: the storage of from_numpy(array[2:]) begins inside the array's block.
    # "<", not "<=": blocks that only touch are two, and a block without bytes overlaps with nothing.
    (start_a, end_a), (start_b, end_b) = block(a), block(b)
    return max(start_a, start_b) < min(end_a, end_b)
    ### END SOLUTION

# %% [markdown]
# ### `x += 1` or `x = x + 1`?

# %%
predict("inplace_alias", "`y = x`, then `x += 1`. Does `y` change?", [True, False])
predict("outofplace_alias", "`y = x`, then `x = x + 1`. Does `y` change?", [True, False])

# %%
x = torch.zeros(3)
y = x
x += 1
reveal("inplace_alias", y[0].item() == 1)

# %%
x = torch.zeros(3)
y = x
x = x + 1
reveal("outofplace_alias", y[0].item() == 1)

# %% [markdown]
# `x += 1` writes into the storage. `x = x + 1` makes a new tensor and hangs the *name* `x` on it. People check this
# with `id`, and take `id` for the address of the numbers.

# %%
predict(
    "id_of_a_view",
    "`y = x.view(2, 3)` reads the same bytes as `x`. Is `id(y) == id(x)`?",
    [True, False],
)

# %%
x = torch.zeros(6)
y = x.view(2, 3)
print("same data_ptr:", y.data_ptr() == x.data_ptr())
reveal("id_of_a_view", id(y) == id(x))

# %%
rows = []
for line in ["x += 1", "x = x + 1", "x[:] = 7", "x = x.view(3, 2)", "x.data = torch.ones(6)"]:
    x = torch.zeros(6)
    old = x  # keeps the first tensor alive, so that its id and address cannot be used again
    name, pointer = id(x), x.data_ptr()
    exec(line)
    rows.append((line, id(x) == name, x.data_ptr() == pointer))
table(("line", "same id", "same data_ptr"), rows)

# %% [markdown]
# `id` names the Python object, the label on the box. `data_ptr` names the bytes. A view is a new label on the old
# box; assigning to `.data` puts another box behind the old label. To learn about memory, ask the memory.
#
# The two forms also treat dtypes differently. In place, the result has to fit into the bytes that exist:

# %%
x = torch.zeros(3, dtype=torch.int64)
print((x + 0.5).dtype)
with shows_error():
    x += 0.5

# %% [markdown]
# ### In place, in somebody else's memory
#
# A dataset hands out its images. The training code subtracts the mean, in place, to save a copy.

# %%
predict(
    "dataset_alias",
    "`image, = dataset[0]`, then `image.sub_(1)`. Do you get the same numbers when you ask for "
    "`dataset[0]` again?",
    [True, False],
)

# %%
dataset = torch.utils.data.TensorDataset(torch.full((2, 3), 5.0))
for epoch in range(3):
    (image,) = dataset[0]
    print("epoch", epoch, "the dataset gives", image.tolist())
    image.sub_(1)
reveal("dataset_alias", dataset[0][0].tolist() == [5.0, 5.0, 5.0])

# %% [markdown]
# The item was a view of the dataset's own storage. Every epoch darkens the images a little more. In place is safe
# on what *you* have made, and only there.

# %% [markdown]
# ### `.to()` is not always a copy

# %%
predict("to_same", "`x` is float32 on the CPU. Is `x.to(torch.float32)` a copy?", [True, False])
predict("float_same", "And `x.float()`?", [True, False])

# %%
x, u = torch.zeros(3), torch.zeros(3, dtype=torch.uint8)
calls = ["x.to(torch.float32)", "x.float()", "x.to('cpu')", "x.cpu()", "x.to(torch.float32, copy=True)"]
table(("call", "is x itself"), [(call, eval(call) is x) for call in calls])
reveal("to_same", x.to(torch.float32) is not x)
reveal("float_same", x.float() is not x)

# %%
print("u.float()           runs", operators(u.float))
print("u.to(torch.float32) runs", operators(u.to, torch.float32))

# %% [markdown]
# `.float()` and `.to(torch.float32)` are the same operation. Nothing to change: you get *the very same object*, and
# an in-place step on the "copy" changes the original. Something to change: a copy, and the source stays as it is.
# To be sure of a copy, write `copy=True` or `.clone()`. (A *module* is different: `model.to(...)` changes the
# module itself.)

# %% [markdown]
# ### Arrays that a tensor must not write to

# %%
predict(
    "read_only",
    "`a` is read-only. `t = torch.from_numpy(a)`, then `t[0] = 9`. What happens?",
    ["an error", "t changes, a does not", "a changes"],
)

# %%
a = np.ones(3)
a.flags.writeable = False
with shows_warning():
    t = torch.from_numpy(a)
try:
    t[0] = 9
    outcome = "a changes" if a[0] == 9 else "t changes, a does not"
except RuntimeError:
    outcome = "an error"
print(a)
reveal("read_only", outcome)

# %% [markdown]
# A tensor has no read-only flag. It shares the memory, warns once, and writes. Our images come from such an array:
# a file that was opened with `np.memmap(mode="r")`. There the *operating system* guards the page. A child process
# shows what a write through a bare address does:

# %%
import subprocess
import sys
import tempfile

child = """
import ctypes, sys, numpy as np
images = np.memmap(sys.argv[1], np.uint8, mode="r")
ctypes.memset(images.ctypes.data, 9, 1)   # a write to the address, as a tensor does it
"""
with tempfile.NamedTemporaryFile() as pixels:
    pixels.write(bytes(4096))
    pixels.flush()
    ended = subprocess.run([sys.executable, "-c", child, pixels.name], capture_output=True)
print("the child ended with code", ended.returncode, "(a negative code is the signal that killed it)")

# %% [markdown]
# No exception, no traceback: the process is gone, and in a notebook the kernel with it. From a read-only array take
# a copy: `torch.tensor(a)`.

# %% [markdown] exercise="wrap_or_copy"
# Write `wrap_or_copy(array)`. It gets a NumPy array and returns a CPU tensor with the same numbers, shape and dtype
# (`float64` stays `float64`).
#
# * Where that is safe the tensor shares the memory of the array. A slice or a transpose is no reason to copy.
# * It has a copy of its own where sharing would be wrong or is impossible: the array is read-only (also a memory
#   map opened with mode `"r"`, where a write through a tensor would end the process), has a negative stride,
#   a stride that is no multiple of the size of its elements, or numbers in a foreign byte order
#   (`array.dtype.isnative` is false; `array.dtype.newbyteorder("=")` is the dtype in this machine's order).
# * The array itself stays as it is, its read-only flag too. For a dtype that torch does not know let torch's error pass.
#
# ```python
# image = np.zeros((4, 6, 3), np.uint8)
# wrap_or_copy(image[:, ::2])     # shares: a step of 2 is no problem
# wrap_or_copy(image[:, ::-1])    # a copy: torch has no negative strides
# ```

# %% exercise="wrap_or_copy"
def wrap_or_copy(array):
    """NumPy array -> CPU tensor of its shape and dtype: shares where that is safe, else has a copy."""
    ### BEGIN SOLUTION
    safe = (
        array.flags.writeable  # tensors know no read-only: a write would go through to the owner
        and array.dtype.isnative
        # An axis of length 1 is never stepped along, but torch looks at its stride as well.
        and all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    )
    if not safe:
        # One copy cures all: it is writable, native and in C order. np.ascontiguousarray would not do: it
        # returns the array itself where only a stride of an axis of length 1 is odd.
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)
    ### END SOLUTION

# %% [markdown]
# ## Part 3. Strides: the order in which bytes are read
#
# ### Twelve numbers in a row
#
# A storage has no shape; it is a row of numbers. The *stride* says, for each axis, how many places to move for one
# step along it. Place = offset + index times stride, summed over the axes. That is all.

# %%
x = torch.arange(12).view(3, 4)
stride_picture(
    x,
    "torch.arange(12).view(3, 4)",
    element=6,
    caption="One step down is 4 places, one step to the right is 1. Read row by row, the memory is "
    "passed from left to right.",
)

# %%
predict(
    "transpose_bytes", "How many bytes does `x.t()` allocate for its twelve int64 numbers?", [0, 48, 96]
)

# %%
with memory() as used:
    t = x.t()
print("x:    ", tuple(x.shape), x.stride())
print("x.t():", tuple(t.shape), t.stride(), " same data_ptr:", t.data_ptr() == x.data_ptr())
reveal("transpose_bytes", used.peak)

# %%
stride_picture(
    t,
    "torch.arange(12).view(3, 4).t()",
    element=5,
    caption="The same twelve places. Only the strides were exchanged, so reading row by row now "
    "jumps through the memory.",
)

# %% [markdown]
# A tensor is called *contiguous* when reading it row by row passes through its places one by one. `x` is, `x.t()`
# is not. Its bytes are in perfect order; it is the reading that jumps.
#
# Try it. Can you find
#
# 1. a tensor that is contiguous and does not begin at place 0,
# 2. a tensor that is not contiguous, and yet `view(-1)` is possible,
# 3. a permuted tensor whose arrows all point forward?

# %%
stride_explorer(start=1, step=2, element=2)

# %% [markdown]
# One solution for each: (1) shape 3 x 4 as it is, from row 1 with step 1; (2) shape 12 with step 2: one stride is enough to describe
# it; (3) shape 2 x 3 x 2 with `permute(2, 0, 1)` and a slice that starts at 1: the axis that jumped has only one
# step left.

# %% [markdown] exercise="strides_after"
# Write `strides_after(shape, order)`: the strides, counted in elements, that a contiguous tensor of `shape` has after
# `permute(order)`, as a tuple of ints. Compute them: no tensor of that shape, and no array or list of all its elements,
# is made to be looked at.
#
# `order` may count axes from the end, as in `permute(-1, 0, 1)`. Lengths of 1 and 0 are allowed. torch counts a
# length of 0 as 1 when it computes strides.
#
# ```python
# strides_after((2, 3, 4), (0, 1, 2))     # (12, 4, 1)
# ```

# %% exercise="strides_after"
def strides_after(shape, order):
    """Shape and axis order -> strides in elements after permute(order) of a contiguous tensor, a tuple of ints."""
    ### BEGIN SOLUTION
    # Before permute: an axis jumps over everything to its right.
    strides = [math.prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))]
    # permute moves no number: each axis takes its stride along.
    return tuple(strides[axis] for axis in order)
    ### END SOLUTION

# %% [markdown]
# ### One permute or two transposes?

# %%
predict(
    "permute_or_transposes",
    "An image (3, 32, 32) for OpenCV. Have `permute(1, 2, 0)` and `transpose(0, 2).transpose(0, 1)`"
    " the same strides?",
    [True, False],
)

# %%
chw = torch.zeros(3, 32, 32)
once, twice = chw.permute(1, 2, 0), chw.transpose(0, 2).transpose(0, 1)
for name, result in {"permute": once, "two transposes": twice}.items():
    print(f"{name:15}", tuple(result.shape), result.stride(), "contiguous:", result.is_contiguous())
reveal("permute_or_transposes", once.stride() == twice.stride())

# %% [markdown]
# Neither is "more contiguous". The result depends on the order of the axes, not on how you got there. Use
# `permute`: it says what it does.

# %% [markdown]
# ### What `view` needs

# %%
predict(
    "view_not_contiguous",
    "`t = torch.arange(24).view(2, 3, 4).transpose(0, 1)` is not contiguous. What does `t.view(3, "
    "2, 2, 2)` do?",
    ["an error", "works, shares memory", "works, copies"],
)

# %%
t = torch.arange(24).view(2, 3, 4).transpose(0, 1)
print("contiguous:", t.is_contiguous())
try:
    v = t.view(3, 2, 2, 2)
    outcome = "works, shares memory" if v.data_ptr() == t.data_ptr() else "works, copies"
except RuntimeError:
    outcome = "an error"
reveal("view_not_contiguous", outcome)

# %% [markdown]
# `view` does not ask for contiguity. It asks whether *strides for the new shape exist*. Splitting an axis is always
# possible. Merging two neighbours is possible when the outer step is exactly "size times step" of the inner one.
# Here it is not:

# %%
print("shape", tuple(t.shape), " stride", t.stride())
with shows_error():
    t.view(-1, 4)

# %% [markdown]
# Axes 0 and 1 would have to merge. One step along axis 0 would have to be 2 x 12 = 24 places, and it is 4. No
# single stride can describe this, and `view` never copies.

# %% [markdown] exercise="can_view"
# Write `can_view(shape, stride, new_shape)`: `True` if a tensor of this shape and stride (in elements) has a
# `view(new_shape)`, `False` if `view` raises. All three are tuples of ints; no -1 among them, no negative stride.
# Compute it; make no tensor, not even on the meta device.
#
# The tensor may be anything: a slice, a permuted or expanded tensor, one with axes of length 1 or 0.
# `new_shape` may have another number of elements: then the answer is `False`.
#
# ```python
# can_view((3, 4), (4, 1), (12,))     # True: contiguous
# can_view((4, 3), (1, 4), (12,))     # False: its transpose
# ```

# %% exercise="can_view"
def can_view(shape, stride, new_shape):
    """Shape, stride in elements, new shape -> bool: does view(new_shape) work?"""
    ### BEGIN SOLUTION
    if math.prod(shape) != math.prod(new_shape):
        return False
    if 0 in shape:
        return True  # no element, no step: every stride is right

    # Merge neighbours that one step size can walk through: the rows of a contiguous matrix follow one another.
    # Axes of length 1 are never stepped along, so their strides do not count.
    runs, outer = [], None
    for size, step in zip(shape, stride):
        if size == 1:
            continue
        if outer == size * step:
            runs[-1] *= size
        else:
            runs.append(size)
        outer = step

    # A run can be split as one likes, but no new axis may reach from one run into the next.
    sizes = iter(new_shape)
    for run in runs:
        filled = 1
        while filled < run:
            filled *= next(sizes)
        if filled != run:
            return False
    return True
    ### END SOLUTION

# %% [markdown]
# ### `reshape`: a view if possible, else a copy, silently

# %%
predict(
    "reshape_contiguous",
    "`x` is contiguous. `y = x.reshape(-1)`, then `y[0] = 99`. Does `x` change?",
    [True, False],
)
predict(
    "reshape_transposed",
    "`t = x.t()`. `y = t.reshape(-1)`, then `y[0] = 99`. Does `x` change?",
    [True, False],
)

# %%
x = torch.arange(12).view(3, 4)
y = x.reshape(-1)
y[0] = 99
reveal("reshape_contiguous", x[0, 0].item() == 99)

# %%
x = torch.arange(12).view(3, 4)
y = x.t().reshape(-1)
y[0] = 99
reveal("reshape_transposed", x[0, 0].item() == 99)

# %% [markdown]
# The same line, two meanings, chosen by the strides of its input. So never write through the result of `reshape`.
# When you need the sharing, write `view`: it raises where `reshape` would copy.
#
# Some people avoid the hidden copy by writing `contiguous().view(...)`.

# %%
predict(
    "contiguous_view",
    "`p = torch.arange(24).view(2, 3, 4).permute(2, 0, 1)`. Which allocates fewer bytes: "
    "`p.reshape(4, 6)` or `p.contiguous().view(4, 6)`?",
    ["reshape", "contiguous().view", "both the same"],
)

# %%
p = torch.arange(24).view(2, 3, 4).permute(2, 0, 1)
t = torch.arange(24).view(2, 3, 4).transpose(0, 1)
calls = [
    "p.reshape(4, 6)",
    "p.contiguous().view(4, 6)",
    "t.reshape(-1, 4)",
    "t.contiguous().view(-1, 4)",
]
rows = []
for call in calls:
    with memory() as used:
        eval(call)
    rows.append((call, used.peak, "clone" in operators(lambda call=call: eval(call))))
table(("call", "bytes allocated", "runs clone"), rows)
reshape_bytes, contiguous_bytes = rows[0][1], rows[1][1]
fewer = "reshape" if reshape_bytes < contiguous_bytes else "contiguous().view"
reveal("contiguous_view", "both the same" if reshape_bytes == contiguous_bytes else fewer)

# %% [markdown]
# Where a copy is needed, both run the same `clone`. Where a view would do, `reshape` takes it and `contiguous()`
# copies all the same. In `p` only axes 1 and 2 merge, and those two still fit together: their strides are 12 and 4,
# their inner size is 3, and 12 = 3 x 4.

# %% [markdown] exercise="flatten_without_copy"
# Write `flatten_without_copy(x)`. It gets a tensor of any shape, with any strides. It returns a 1-D tensor with the
# same elements in the same order that **shares memory with `x`**. Where no such view exists it raises an error,
# whichever you like.
#
# It never copies, not even to find out whether it must. `x` itself stays as it is.
#
# ```python
# x = torch.arange(6).view(2, 3)
# flatten_without_copy(x)[0] = 9     # x[0, 0] is 9 now
# flatten_without_copy(x.t())        # an error: the columns cannot be walked with one stride
# flatten_without_copy(x[:, 1])      # fine, though not contiguous: stride 3 reaches every element
# ```

# %% exercise="flatten_without_copy"
def flatten_without_copy(x):
    """Tensor of any shape -> 1-D view of the same memory. Raises an error where a copy would be needed."""
    ### BEGIN SOLUTION
    # view looks at the strides and either describes the same memory anew, at no cost, or raises.
    return x.view(-1)
    ### END SOLUTION

# %% [markdown]
# ### Indexing with a list copies, a slice does not

# %%
predict("list_index", "`x[[0, 1]][0] = 5`. Does `x` change?", [True, False])

# %%
x = torch.zeros(3)
x[[0, 1]][0] = 5
reveal("list_index", x[0].item() == 5)
x[0:2][0] = 5
print("after x[0:2][0] = 5:", x.tolist())

# %% [markdown]
# A slice can be told by offset and stride. A list of indices cannot, in general, so its result has its own bytes,
# and the write went into a tensor that nobody holds. `x[[0, 1]] = 5`, in *one* step, writes into `x`.

# %% [markdown]
# ### Flatten, and keep the batch
#
# A linear layer works on the *last* axis. A batch of images does not fit:

# %%
batch = torch.zeros(4, 3, 8, 8)
with shows_error():
    nn.Linear(192, 10)(batch)
print(tuple(nn.Linear(192, 10)(batch.flatten(1)).shape))

# %% [markdown]
# `view(-1)` gets rid of the axes as well, and of the batch with them. It raises nothing; the next layer does.

# %%
features = torch.zeros(2, 128, 1, 1)
print("flatten(1):", tuple(features.flatten(1).shape), "  view(-1):", tuple(features.view(-1).shape))
with shows_error():
    nn.Linear(128, 10)(features.view(-1))

# %% [markdown]
# ## Part 4. From an OpenCV image to a batch
#
# ### Four things are different
#
# `cv2.imread` gives (height, width, channel), blue first, `uint8`, 0 to 255. A model wants (batch, channel, height,
# width), red first, `float32`, 0 to 1. We play `imread` with our own image. Each of the four differences has a way to
# be missed.

# %%
predict(
    "imread_complaint",
    "An image as `imread` returns it goes straight into `nn.Conv2d(3, 8, 3)`. What is complained "
    "about first?",
    ["the dtype", "the axes", "the order of the colours"],
)

# %%
bgr = cv2.cvtColor(horse, cv2.COLOR_RGB2BGR)  # what cv2.imread would return
conv = nn.Conv2d(3, 8, 3)
try:
    conv(torch.from_numpy(bgr))
except RuntimeError as error:
    print(error)
    reveal("imread_complaint", "the dtype" if "type" in str(error) else "the axes")

# %% [markdown]
# Once the dtype is mended, the axes are next:

# %%
with shows_error():
    conv(torch.from_numpy(bgr).float())

# %% [markdown]
# PyTorch saw 32 channels, because it takes the first axis of an image for the channel. The order of the colours and
# the range raise nothing at all, ever. Now the axes.

# %%
predict(
    "reshape_image",
    "`reshape(3, 32, 32)` and `permute(2, 0, 1)` of a (32, 32, 3) image have the same shape. Have "
    "they the same pixels in the same places?",
    [True, False],
)

# %%
hwc = torch.from_numpy(horse)
reshaped, permuted = hwc.reshape(3, 32, 32), hwc.permute(2, 0, 1)
reveal("reshape_image", torch.equal(reshaped, permuted))
image_row(
    [*permuted, *reshaped],
    ["permute: red", "permute: green", "permute: blue", "reshape: [0]", "reshape: [1]", "reshape: [2]"],
    caption="`permute` gives three channels of one picture. `reshape` cuts the bytes into three "
    "equal runs: each 'channel' is a third of the picture "
    "with the colours side by side.",
    alt="Six grey images. The first three show the whole horse, in red, green and blue light. The "
    "last three show the upper, middle and "
    "lower third of the picture, stretched and striped.",
)

# %% [markdown]
# `permute` asks "which axis comes first?". `reshape` asks "how do I cut the row?". Both are right questions; only
# one is yours. And with a batch of images the wrong one stays hidden, because every shape fits.
#
# What the network would have been trained on, put back into a picture:

# %%
image_row(
    [horse, bgr, reshaped.permute(1, 2, 0), hwc.permute(1, 0, 2)],
    ["as it is", "BGR taken for RGB", "reshape for permute", "height and width swapped"],
    caption="The original, and three mistakes that raise no error. All four have the right shape "
    "and dtype.",
    alt="Four versions of one image of a horse: the original; the same with red and blue exchanged;"
    " a striped pattern in which "
    "the horse cannot be recognised; and the original mirrored at its diagonal.",
)

# %% [markdown]
# ### Red first
#
# In NumPy one reverses the channels with `[..., ::-1]`. That is free: the stride becomes negative.

# %%
rgb_view = bgr[..., ::-1]
print(
    "strides", bgr.strides, "->", rgb_view.strides, " shares memory:", np.shares_memory(bgr, rgb_view)
)
for call in ("torch.from_numpy(rgb_view)", "torch.as_tensor(rgb_view)", "torch.tensor(rgb_view)"):
    try:
        eval(call)
    except ValueError as error:
        print(f"{call:27} {str(error)[:56]} ...")

# %% [markdown]
# A tensor's strides cannot be negative, not even while it is being copied. Three ways out, and what they allocate:

# %%
ways = [
    "torch.from_numpy(rgb_view.copy())",
    "torch.from_numpy(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB))",
    "torch.from_numpy(bgr).flip(-1)",
]
rows = []
for way in ways:
    rgb = eval(way)
    rows.append((way, np.array_equal(rgb.numpy(), horse), rgb.nbytes))
table(("way", "same pixels", "bytes of the result"), rows)

# %% [markdown]
# `np.ascontiguousarray` is the popular fourth. It copies only if it sees a need, and for an axis of length 1 it
# sees none:

# %%
one = np.arange(1.0)[::-1]
with shows_error():
    torch.from_numpy(np.ascontiguousarray(one))

# %% [markdown]
# ### The whole way, in bytes
#
# Each step on its own, for one image. Watch where new bytes appear.

# %%
image = torch.from_numpy(bgr)
steps = [
    ("flip(-1)", lambda t: t.flip(-1)),
    ("permute(2, 0, 1)", lambda t: t.permute(2, 0, 1)),
    ("float()", lambda t: t.float()),
    ("contiguous()", lambda t: t.contiguous()),
    ("div_(255)", lambda t: t.div_(255)),
]
rows = [("torch.from_numpy", tuple(image.shape), image.dtype, image.stride(), 0)]
for name, step in steps:
    with memory() as used:
        image = step(image)
    rows.append((name, tuple(image.shape), image.dtype, image.stride(), used.peak))
table(("step", "shape", "dtype", "stride", "new bytes"), rows)

# %% [markdown]
# `float()` made four bytes of each one and *kept the order in memory*; then `contiguous()` copied all of it once
# more, into another order. `div_` works in place, on bytes that are ours. With a batch one can do better: allocate
# the result once, and convert each image on the way in.

# %% [markdown] exercise="bgr_to_batch"
# Write `bgr_to_batch(images)`. It gets a list of images as OpenCV reads them: (H, W, 3), `uint8`, blue first.
# It returns one tensor (N, 3, H, W), `float32`, red first, values from 0 to 1, contiguous.
#
# * The images stay as they are. Some of them may be views with gaps between the columns.
# * The result should be the only `float32` tensor of its size that is alive at any time: `x / 255` makes a second
#   one. A `uint8` copy on the way is a quarter of that and does no harm.

# %% exercise="bgr_to_batch"
def bgr_to_batch(images):
    """List of (H, W, 3) uint8 BGR images -> (N, 3, H, W) float32 RGB in [0, 1]."""
    ### BEGIN SOLUTION
    height, width, _ = images[0].shape
    batch = torch.empty(len(images), 3, height, width)
    for slot, image in zip(batch, images):
        # from_numpy shares memory and copy_ converts on the way: the batch is the only allocation of its size.
        # flip, not [..., ::-1]: torch has no negative strides. It copies, one small uint8 image at a time.
        slot.copy_(torch.from_numpy(image).flip(-1).permute(2, 0, 1))
    return batch.div_(255)
    ### END SOLUTION

# %% [markdown]
# ### Back to OpenCV

# %%
predict(
    "numpy_of_permuted",
    "`t` is not contiguous. What does `t.numpy()` do?",
    ["an error", "copies", "shares memory"],
)

# %%
t = torch.arange(24, dtype=torch.uint8).view(2, 3, 4).permute(1, 2, 0)
try:
    array = t.numpy()
    outcome = "shares memory" if np.shares_memory(array, t.permute(2, 0, 1).numpy()) else "copies"
    print("contiguous in NumPy's eyes:", array.flags.c_contiguous, " strides:", array.strides)
except RuntimeError:
    outcome = "an error"
reveal("numpy_of_permuted", outcome)

# %% [markdown]
# NumPy knows strides as well as PyTorch does. So does OpenCV, for reading:

# %%
predict(
    "opencv_contiguous",
    "`view` is a permuted, non-contiguous (H, W, 3) array. Which OpenCV calls accept it?",
    ["cvtColor and rectangle", "cvtColor only", "neither"],
)

# %%
view = torch.from_numpy(horse).permute(2, 0, 1).contiguous().permute(1, 2, 0).numpy()


def accepts(call):
    try:
        call()
    except cv2.error as error:
        lines = str(error).splitlines()
        print("refused:", next((line for line in lines if "Layout" in line), lines[0]).strip(" >-"))
        return False
    return True


converts = accepts(lambda: cv2.cvtColor(view, cv2.COLOR_RGB2BGR))
draws = accepts(lambda: cv2.rectangle(view, (4, 4), (20, 20), (255, 0, 0)))
outcomes = {
    (True, True): "cvtColor and rectangle",
    (True, False): "cvtColor only",
    (False, False): "neither",
}
reveal("opencv_contiguous", outcomes[converts, draws])
print("the same result:", np.array_equal(cv2.cvtColor(view, cv2.COLOR_RGB2BGR), bgr))

# %% [markdown]
# A function that reads may copy its input behind your back. One that draws *into* the array cannot: the drawing
# would land in the copy.
#
# The other direction holds a surprise. Tensors that come from torchvision's image functions are often the
# non-contiguous ones, and `permute(1, 2, 0)` puts them in order. (torchvision is large: its first import can take
# several seconds.)

# %%
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor

from_pil = pil_to_tensor(Image.fromarray(horse))
for t in (from_pil, from_pil.permute(1, 2, 0)):
    print(tuple(t.shape), t.stride(), "contiguous:", t.is_contiguous())

# %% [markdown]
# `torchvision.io.read_image` also gives (3, H, W), but its days are numbered:

# %%
from pathlib import Path

import torchvision

with tempfile.TemporaryDirectory() as folder:
    file = str(Path(folder) / "horse.png")
    cv2.imwrite(file, bgr)
    with shows_warning():
        print(tuple(torchvision.io.read_image(file).shape))

# %% [markdown] exercise="to_opencv"
# Write `to_opencv(image)`. It gets an RGB image as a tensor (3, H, W) of `float32`, in ordinary memory, and returns a
# NumPy array (H, W, 3) of `uint8`, blue first, **that OpenCV can draw into**.
#
# The values run from 0 to 1 and become 0 to 255, rounded to the nearest number. A few values lie just outside, as resizing
# and colour jitter leave them: clip them. `image` stays as it is.

# %% exercise="to_opencv"
def to_opencv(image):
    """(3, H, W) float32 RGB in [0, 1] -> (H, W, 3) uint8 BGR array, contiguous and writable."""
    ### BEGIN SOLUTION
    # mul makes a tensor of our own, so the next steps may work in place. The change to uint8 only cuts off
    # fractions, and 258 would come out as 2: round and clamp come before it.
    levels = image.mul(255).round_().clamp_(0, 255).to(torch.uint8)
    # flip, because torch takes no negative strides. permute alone would give an array with the strides of
    # (3, H, W): OpenCV reads that, but refuses to draw into it.
    return levels.flip(0).permute(1, 2, 0).contiguous().numpy()
    ### END SOLUTION

# %% [markdown]
# ### Arithmetic on bytes

# %%
predict(
    "uint8_minus",
    "Two `uint8` tensors hold 10 and 200. What is the first minus the second?",
    [-190, 0, 66, "an error"],
)
predict(
    "uint8_compare",
    "`u = torch.tensor([10, 200], dtype=torch.uint8)`. What is `u < 256`?",
    ["True, True", "False, False", "an error"],
)

# %%
u = torch.tensor([10, 200], dtype=torch.uint8)
reveal("uint8_minus", (u[0] - u[1]).item())
reveal("uint8_compare", ", ".join(str(b) for b in (u < 256).tolist()))

# %% [markdown]
# Eight bits count from 0 to 255 and then begin again. Even the 256 had to fit: it became 0, and nothing is smaller
# than 0. The camera at the gate subtracts two frames:

# %%
gray = cv2.cvtColor(horse, cv2.COLOR_RGB2GRAY)
earlier = torch.from_numpy(gray)
later = torch.from_numpy(np.roll(gray, 2, axis=1))  # the scene has moved by two pixels
naive = later - earlier
patched = (later - earlier).int().abs().to(torch.uint8)
right = (later.int() - earlier.int()).abs().to(torch.uint8)
image_row(
    [earlier, later, naive, patched, right],
    ["earlier", "later", "later - earlier", "abs() afterwards", "widened before"],
    columns=5,
    caption=f"Mean difference: {naive.float().mean():.0f} with wrap-around, "
    f"{patched.float().mean():.0f} with `abs` afterwards, {right.float().mean():.0f} in truth. "
    "Where the picture grew a little darker, the wrap-around is nearly white.",
    alt="Five grey images: the earlier frame, the later one moved by two pixels, and three "
    "differences. The first two differences are equal "
    "and full of bright speckles; the last is dark except along edges.",
)

# %% [markdown]
# `abs` afterwards is too late: there is nothing negative left. The numbers must be widened *before* the
# subtraction. Sums are safe, because `sum` counts in int64.

# %%
print(u.sum(), u.float().mean())
with shows_error():
    u.mean()

# %% [markdown] exercise="frame_difference"
# Write `frame_difference(a, b)`. It gets two frames of a video, `uint8` tensors (H, W, 3) in ordinary memory, and returns
# |a - b| as a `uint8` tensor of the same shape. Both orders give the same result, and the frames stay as they are.
#
# At its peak it may hold a few frames of memory: the way through `int16` is fine, whole frames in a 4-byte dtype are not.

# %% exercise="frame_difference"
def frame_difference(a, b):
    """Two (H, W, 3) uint8 frames -> their absolute difference, (H, W, 3) uint8."""
    ### BEGIN SOLUTION
    # Larger minus smaller never goes below 0, so uint8 is wide enough: two frames at the peak, six through int16.
    return torch.maximum(a, b).sub_(torch.minimum(a, b))
    ### END SOLUTION

# %% [markdown]
# ## Part 5. Feature maps as tokens for attention
#
# A backbone gives feature maps (N, C, H, W). An attention layer wants tokens: each place of the map becomes one
# vector of length C, so an image becomes H*W tokens. `nn.MultiheadAttention` expects (tokens, batch, C), unless
# told `batch_first=True`.

# %%
torch.manual_seed(0)
features = torch.randn(4, 8, 3, 5)  # 4 images, 8 channels, 3 x 5 places
tokens = features.flatten(2).transpose(1, 2)  # (4, 15, 8): batch first
attention = nn.MultiheadAttention(embed_dim=8, num_heads=2)  # batch_first is False

# %%
predict(
    "attention_axes",
    "`tokens` is (batch, tokens, C), but this layer expects (tokens, batch, C). What happens?",
    [
        "an error",
        "a warning",
        "no error, and images influence each other",
        "no error, and all is right",
    ],
)

# %% [markdown]
# How can one see whether images mix? Change *one* image and look whose output changes.

# %%
def influence(layer, tokens):
    """(N, N) table: does changing image j change the output of image i? Axis 0 of `tokens` is the batch."""
    with torch.no_grad():
        before = layer(tokens)
        moved = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
        for j in range(len(tokens)):
            changed = tokens.clone()
            changed[j] += torch.randn_like(changed[j])
            moved[:, j] = (layer(changed) - before).abs().flatten(1).amax(1) > 1e-4
    return moved


batch_first = nn.MultiheadAttention(8, 2, batch_first=True)
batch_first.load_state_dict(attention.state_dict())
with shows_warning():
    wrong = influence(lambda t: attention(t, t, t)[0], tokens)
    right = influence(lambda t: batch_first(t, t, t)[0], tokens)
mixes = bool((wrong & ~torch.eye(4, dtype=torch.bool)).any())
reveal(
    "attention_axes",
    "no error, and images influence each other" if mixes else "no error, and all is right",
)

# %%
fig = figure(7, 3.6)
tables = {"batch_first=False": wrong, "batch_first=True": right}
for axes, (title, matrix) in zip(fig.subplots(1, 2), tables.items()):
    axes.imshow(~matrix, cmap="gray", vmin=-1, vmax=1)
    for i in range(4):
        for j in range(4):
            axes.text(j, i, "yes" if matrix[i, j] else "-", ha="center", va="center", fontsize=11)
    axes.set(title=title, xticks=range(4), yticks=range(4))
    axes.set(xlabel="image that was changed", ylabel="image whose output is read")
show(
    fig,
    caption="Does changing one image change another's output? With the axes in the wrong order "
    "every image attends to all the others: the layer took the "
    "batch for the sequence.",
    alt=f"Two tables of 4 by 4. With batch_first=False, {int(wrong.sum())} of 16 cells say yes. "
    f"With batch_first=True only the {int(right.sum())} cells on the diagonal do.",
)

# %% [markdown]
# The output had the right shape, the loss would fall, and a validation score would depend on which images happen to
# share a batch. No error tells you. This test does: **change one item, see who else changes.** It is one short
# function and works for any model in eval mode.
#
# A second mistake keeps the images apart and still ruins the tokens: `reshape` instead of flatten and transpose.

# %%
numbers = torch.arange(2 * 3 * 2 * 2).view(2, 3, 2, 2)  # channel c at place p of image 0 holds 4*c + p
right_tokens = numbers.flatten(2).transpose(1, 2)
wrong_tokens = numbers.reshape(2, 4, 3)
print("right: first token of image 0", right_tokens[0, 0].tolist(), "- place 0 in all three channels")
print("wrong: first token of image 0", wrong_tokens[0, 0].tolist(), "- three places of one channel")

# %% [markdown]
# Must the tokens be contiguous? They are not, after `transpose`. Ask the layer:

# %%
with torch.no_grad():
    strided = batch_first(tokens, tokens, tokens)[0]
    copy = tokens.contiguous()
    packed = batch_first(copy, copy, copy)[0]
print("contiguous:", tokens.is_contiguous())
print("same result as a contiguous copy:", torch.allclose(strided, packed, atol=1e-6))

# %% [markdown] exercise="to_tokens"
# Write `to_tokens(features)`. It gets feature maps (N, C, H, W) as a convolution returns them and returns
# tokens (N, H*W, C) as attention takes them: for every image one vector of channels per position. Positions run
# row after row: token `h * W + w` of image `n` is `features[n, :, h, w]`.
#
# The feature maps may be a crop of larger ones (not contiguous). View or copy, both are fine. `features` stays as it is.

# %% exercise="to_tokens"
def to_tokens(features):
    """Feature maps (N, C, H, W) -> tokens (N, H*W, C), positions row after row."""
    ### BEGIN SOLUTION
    # Merging neighbours (H, W) comes first, moving the channels second. flatten is a view wherever the rows
    # follow each other in memory, and copies a crop; transpose is always a view.
    return features.flatten(2).transpose(1, 2)
    ### END SOLUTION

# %% [markdown] exercise="from_tokens"
# Write `from_tokens(tokens, height, width)`, the way back: tokens (N, height * width, C) to feature maps
# (N, C, height, width), so that `from_tokens(to_tokens(features), H, W)` equals `features`.
#
# If `height * width` is not the number of tokens, it raises an error, whichever you like. It must not return
# feature maps of another number of images or channels. `tokens` stays as it is; it need not be contiguous.

# %% exercise="from_tokens"
def from_tokens(tokens, height, width):
    """Tokens (N, height*width, C) -> feature maps (N, C, height, width). Raises an error where the sizes do not fit."""
    ### BEGIN SOLUTION
    # unflatten splits one axis and checks that height * width is its length. A reshape with a -1 would move
    # what does not fit into the channels or into the batch.
    return tokens.transpose(1, 2).unflatten(2, (height, width))
    ### END SOLUTION

# %% [markdown]
# ## Part 6. Contiguity: when to care, when not to
#
# "Always add `.contiguous()` after a permute" is common advice. Let us test what it protects from.

# %%
predict(
    "conv_strided",
    "Does `nn.Conv2d` accept a permuted, non-contiguous batch?",
    ["an error", "works, same result", "works, other result"],
)
predict(
    "linear_strided",
    "And `nn.Linear`, on a transposed matrix?",
    ["an error", "works, same result", "works, other result"],
)

# %%
def compare(layer, strided):
    """Run a layer on a tensor and on its contiguous copy."""
    try:
        result = layer(strided)
    except RuntimeError:
        return "an error"
    same = torch.allclose(result, layer(strided.contiguous()), atol=1e-6)
    return "works, same result" if same else "works, other result"


images = torch.rand(2, 9, 7, 3).permute(0, 3, 1, 2)
print("contiguous:", images.is_contiguous(), torch.rand(6, 4).t().is_contiguous())
reveal("conv_strided", compare(nn.Conv2d(3, 4, 3), images))
reveal("linear_strided", compare(nn.Linear(6, 2), torch.rand(6, 4).t()))

# %% [markdown]
# Layers accept any strides. The message "expected contiguous tensor", which people quote for this case, came from
# no call in this notebook; the one that you will meet is `view`'s. And there is a layout that `.contiguous()`
# destroys: *channels last*, in which the channels of a pixel lie side by side in memory, as in an OpenCV image,
# while the *shape* stays (N, C, H, W).

# %%
predict(
    "channels_last",
    "`y = x.to(memory_format=torch.channels_last)`. What does `y.is_contiguous()` say?",
    [True, False],
)

# %%
x = torch.rand(2, 3, 9, 7)
y = x.to(memory_format=torch.channels_last)
rows = []
for call in ["x", "y", "y.contiguous()", "y.contiguous(memory_format=torch.channels_last)"]:
    t = eval(call)
    last = t.is_contiguous(memory_format=torch.channels_last)
    rows.append((call, tuple(t.shape), t.stride(), t.is_contiguous(), last, t is y))
table(("tensor", "shape", "stride", "contiguous", "... in channels_last", "is y itself"), rows)
reveal("channels_last", y.is_contiguous())

# %% [markdown]
# "Not contiguous" only means "not in the default order". A dutiful `.contiguous()` copied everything back out of
# the order that somebody had asked for. Whether your convolutions run faster in it depends on the kernel, the dtype
# and the device: measure there.
#
# `to` and `contiguous` both take a `memory_format`, by that name only. They ask different questions. `to` asks whether the
# *order* of the strides is right; then it returns what it was given. `contiguous` asks whether the elements also
# lie without gaps. A crop shows the difference:

# %%
crop = y[:, :, 2:7]
rows = []
for call in [
    "crop",
    "crop.to(memory_format=torch.channels_last)",
    "crop.contiguous(memory_format=torch.channels_last)",
]:
    t = eval(call)
    rows.append((call, t.stride(), t.is_contiguous(memory_format=torch.channels_last), t is crop))
table(("tensor", "stride", "contiguous in channels_last", "is crop itself"), rows)

# %% [markdown]
# An image from OpenCV *is* channels last already, if you let it:

# %%
batch_of_one = torch.from_numpy(bgr).permute(2, 0, 1)[None]
print(batch_of_one.stride(), batch_of_one.is_contiguous(memory_format=torch.channels_last))

# %% [markdown] exercise="as_layout"
# Write `as_layout(x, channels_last)`. It gets a tensor (N, C, H, W) and returns one of the same shape with the same
# values whose memory is laid out as asked: `channels_last` true means that the channels of a pixel are neighbours in
# memory, false means that the pixels of a row are.
#
# * Afterwards `is_contiguous(memory_format=...)` holds for the format asked for, also when `x` was a crop.
# * If it holds already, nothing is copied.

# %% exercise="as_layout"
def as_layout(x, channels_last):
    """Tensor (N, C, H, W) -> the same shape and values, dense in channels_last layout or in the plain one."""
    ### BEGIN SOLUTION
    # contiguous, not to: to(memory_format=...) is content when the order of the strides is right, and leaves
    # the gaps of a crop as they are. Both return x itself, without a copy, where nothing is to be done.
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    ### END SOLUTION

# %% [markdown]
# ### A template
#
# Check first, copy only when needed, keep the order that is wanted, and say so where it happens:

# %%
def in_order(x, memory_format=torch.contiguous_format):
    """`x` itself if it lies in the wanted order already, else a copy that does. Never changes `x`."""
    if x.is_contiguous(memory_format=memory_format):
        return x
    return x.contiguous(memory_format=memory_format)


for name, t in {"contiguous": x, "permuted": x.permute(0, 2, 3, 1), "channels last": y}.items():
    with memory() as used:
        in_order(t)
    print(f"{name:14} {used.peak:5} bytes copied")

# %% [markdown]
# `x.contiguous()` alone does the same test inside, so on a contiguous tensor it is free. Write it where one of
# these is true, and nowhere else:
#
# * you need `view`, and it refused;
# * a C function gets the bare pointer, or OpenCV draws into the array;
# * a slice is to be saved or kept, and the rest is not (then `clone()`: part 7);
# * a tensor with bad strides is read *many* times: one copy, then short steps.
#
# Leave it out before layers, before `.numpy()`, before `reshape`, and never put it behind a `channels_last`.

# %% [markdown]
# ## Part 7. Bytes that stay
#
# ### A slice holds its whole storage

# %%
predict(
    "slice_keeps",
    "`big` has a million float32 (4,000,000 bytes). `small = big[:10]`, then `del big`. How many "
    "bytes stay in memory?",
    [0, 40, 4000000],
)
predict("contiguous_frees", "Does `small = big[:10].contiguous()` let the rest go?", [True, False])

# %%
with memory() as used:
    big = torch.zeros(1_000_000)
    small = big[:10]
    del big
    reveal("slice_keeps", used.current)

# %%
with memory() as used:
    big = torch.zeros(1_000_000)
    small = big[:10].contiguous()
    del big
    reveal("contiguous_frees", used.current < 4_000_000)

# %% [markdown]
# A storage lives as long as anything reads it. The slice `big[:10]` is contiguous already, so `contiguous()`
# returned it as it was. `clone()` is the call that promises bytes of its own. The same holds on disk:

# %%
def saved_bytes(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getbuffer().nbytes


big = torch.zeros(1_000_000)
kept = {
    "big": big,
    "big[:10]": big[:10],
    "big[:10].contiguous()": big[:10].contiguous(),
    "big[:10].clone()": big[:10].clone(),
    "torch.zeros(1).expand(1000000)": torch.zeros(1).expand(1_000_000),
}
table(
    ("tensor", "elements", "nbytes", "bytes of its storage", "bytes of the file"),
    [
        (name, t.numel(), t.nbytes, t.untyped_storage().nbytes(), saved_bytes(t))
        for name, t in kept.items()
    ],
)

# %%
bars(
    list(kept),
    [saved_bytes(t) for t in kept.values()],
    "bytes of the saved file (each grid step is ten times more)",
    log=True,
    caption="What `torch.save` writes. It saves the storage, so that tensors which share memory "
    "still share it after loading.",
    alt="Five bars on a logarithmic axis: "
    + "; ".join(f"{name} {saved_bytes(t)} bytes" for name, t in kept.items())
    + ".",
)

# %% [markdown]
# `nbytes` is what a tensor *reads*: elements times bytes per element. It is too small for a slice and too large for
# an `expand`, whose stride 0 reads one number a million times. What is *held* is the storage.

# %% [markdown] exercise="bytes_kept_alive"
# Write `bytes_kept_alive(tensor)`. It returns, as an `int`, how many bytes of tensor memory cannot be freed as long as
# `tensor` lives, even when every other name is gone. (Only the memory behind its values: no gradients, no Python objects.)
#
# ```python
# photos = torch.zeros(1000, 32, 32)      # 4,096,000 bytes
# bytes_kept_alive(photos[0])             # 4096000, for an image of 4096 bytes
# ```

# %% exercise="bytes_kept_alive"
def bytes_kept_alive(tensor):
    """Bytes of memory that stay allocated as long as the tensor lives, as an int."""
    ### BEGIN SOLUTION
    # The storage is what is counted and freed; the tensor is a window onto it. untyped_storage() makes no copy.
    return tensor.untyped_storage().nbytes()
    ### END SOLUTION

# %% [markdown] exercise="compact"
# Write `compact(tensor)`. It returns a tensor with the same values, shape and dtype that keeps no more memory alive
# than its own elements need (`tensor.nbytes`).
#
# If the tensor keeps no more than that already, return it as it is, without a copy. That holds for a whole tensor, for
# its transpose, and for an expanded one (which keeps even less). `tensor` itself stays as it is (nothing is assigned to
# its `.data`), and so does the tensor that it was cut from.

# %% exercise="compact"
def compact(tensor):
    """The same values with at most tensor.nbytes behind them; copied only where that frees memory."""
    ### BEGIN SOLUTION
    # contiguous() would not do: a slice of rows is contiguous and comes back as it is, big storage and all.
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
    ### END SOLUTION

# %% [markdown]
# ### Putting batches together
#
# Predictions of a validation run arrive batch by batch. Most people collect them in a list and join the list at the
# end.

# %%
predict(
    "cat_peak",
    "Ten batches of 40,000 bytes are collected in a list and joined by `torch.cat`. How many bytes "
    "are alive at the peak?",
    [400000, 440000, 800000],
)

# %%
with memory() as used:
    parts = [torch.zeros(100, 100) for _ in range(10)]
    joined = torch.cat(parts)
    del parts
reveal("cat_peak", used.peak)
print("kept in the end:", used.current)

# %% [markdown]
# While `cat` runs, the parts and the result are alive together: twice the data. Who knows the size beforehand can
# allocate the result first and let each batch go as soon as it is written.

# %% [markdown] exercise="assemble"
# A model gives its features batch by batch; you want them in one tensor. Write `assemble(batches, total)`.
# `batches` is a generator: it yields tensors (n, ...), makes each one when it is asked for, and can be walked through
# only once. `total` is the number of rows of all batches together.
#
# Return one tensor (total, ...) with all rows in order, of the dtype and on the device of the batches. The peak
# of memory is this result and a batch or two, not all the batches beside it.
#
# * Batches differ in length; some are empty, even the first. There is at least one.
# * If the batches hold fewer or more than `total` rows, raise an error, whichever you like.
#
# ```python
# batches = (model(images) for images in loader)
# features = assemble(batches, total=len(dataset))
# ```

# %% exercise="assemble"
def assemble(batches, total):
    """Generator of tensors (n, ...) -> one tensor (total, ...). Raises an error unless there are total rows."""
    ### BEGIN SOLUTION
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = batch.new_empty(total, *batch.shape[1:])  # dtype and device come along
        # narrow raises when the rows do not fit. result[at : at + n] would be cut short without a word,
        # and a batch of one row would then vanish by broadcasting.
        result.narrow(0, at, len(batch)).copy_(batch)
        at += len(batch)
    if at != total:
        raise ValueError(f"expected {total} rows, got {at}")  # the rest of result was never written
    return result
    ### END SOLUTION

# %% [markdown]
# ## When something looks wrong
#
# | symptom | cause | check | fix |
# | :-- | :-- | :-- | :-- |
# | "mat1 and mat2 must have the same dtype, but got Double and Float" | the array came from NumPy as float64 | `x.dtype` | `x.float()`, or make the array float32 |
# | "Input type (unsigned char) and bias type (float) should be the same" | image still `uint8` | `x.dtype` | `x.float().div_(255)` |
# | "expected input[...] to have 3 channels, but got 32 channels" | axes are height, width, channel | `x.shape` | `permute(2, 0, 1)`, not `reshape` |
# | "At least one stride in the given numpy array is negative" | flip or `[..., ::-1]` in NumPy | `a.strides` | `a.copy()`, or `flip` on the tensor |
# | "The given NumPy array is not writable"; later data changes, or the kernel dies | tensor made from a read-only array or memmap | `a.flags.writeable` | `torch.tensor(a)` |
# | "view size is not compatible with input tensor's size and stride" | two axes that cannot merge | `x.shape`, `x.stride()` | `reshape` if a copy is fine |
# | "Layout of the output array img is incompatible with cv::Mat" | OpenCV draws into a non-contiguous array | `a.flags.c_contiguous` | `np.ascontiguousarray(a)` |
# | colours look odd, accuracy a little low | BGR taken for RGB | show one image | reverse the channels once, at the entrance |
# | right shape, network learns nothing | `reshape` where `permute` was meant | show one image, or a tensor of `arange` | `permute` |
# | score depends on the batch size | attention or a mean over the batch axis | change one image, see who else changes | `batch_first=True`, or transpose |
# | difference of frames is bright where it should be dark | `uint8` wraps around | `x.dtype`, `.min()` | widen before subtracting |
# | data drifts from epoch to epoch | in-place step on memory that the dataset owns | read an item twice | `clone()` first |
# | a write has no effect | `reshape` copied, or indexing with a list did | `untyped_storage().data_ptr()` of both | `view`, or one indexed assignment |
# | small file expected, large file written; memory is not freed | a slice holds its storage | `x.untyped_storage().nbytes()` | `clone()` |
# | numbers that nobody wrote | `torch.Tensor(n)` or `empty` | deterministic mode fills with NaN | `torch.tensor`, `zeros` |
# | one element too many | float step in `arange` | `len(...)` | `linspace` |

# %% [markdown]
# ## What you can now explain
#
# * why two tensors can have different `data_ptr` and share every byte they read, and how to test it;
# * which creation calls copy, which share, and when `as_tensor`, `.to` and `reshape` do the one or the other;
# * how an index becomes a place, and what `permute`, `view` and slicing do to offset and stride;
# * when `view` is possible, on paper;
# * what an image goes through between `imread` and a model, and what each step allocates;
# * why the wrong order of axes may raise nothing, and the test that finds it: change one item, see who else changes;
# * when `.contiguous()` helps, when it does nothing, and when it does harm;
# * what a slice keeps alive, in memory and on disk.
#
# Your predictions, beside what was measured:

# %%
my_predictions()

# %% [markdown] reflection="storage_and_description" points=2
# Two of your measurements look as if they contradicted each other. A transpose moved no byte (Part 3). Ten numbers
# kept 4,000,000 bytes alive (Part 7).
#
# Explain both with one picture: a storage, and a description of how to read it. Then say which of `big[:10]`,
# `big[:10].contiguous()` and `big[:10].clone()` let the large storage go, and why the other two do not.
#
# * 1 point: both measurements follow from storage and description, and it is said which of the two a transpose changes.
# * 1 point: the right call, and the reason why each of the other two keeps the storage.

# %% [markdown] reflection="storage_and_description"
# A tensor is a description (shape, strides, offset) of how to read a storage, and several tensors may describe the
# same one. A transpose writes a new description with other strides, so no byte of the storage moves. A slice is such
# a description too: it reads ten numbers, but what it holds is the whole storage, and a storage lives as long as
# anything reads it. `contiguous()` does not help, because the ten numbers lie side by side already and it returns the
# slice itself. Only `clone()` promises bytes of its own: after it nothing reads the large storage any more.

# %%
progress("tensor_costs")
