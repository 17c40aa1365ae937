"""Section 1, tensor_costs: what does a tensor cost?"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import torch

from course_utils.meter import MemoryMeter, storage_bytes
from course_utils.observe import NotStarted, attempt, describe, exercise, thinned

SECTION = "tensor_costs"


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "An image from OpenCV differs from what a model wants in four ways: axis order, channel order, dtype, range.",
        "Reversing the channels with [..., ::-1] makes a negative stride. Which call takes it, and which does not?",
        "Allocate the result once with torch.empty(N, 3, H, W), fill result[i], and divide in place with div_.",
    ),
)
def bgr_to_batch(answer, case, see):
    """Images as OpenCV reads them, (H, W, 3) uint8 BGR, become one batch (N, 3, H, W) float32 RGB in [0, 1]."""
    images = case.bgr_images(6 - 2 * case.index, *case.sizes(2, 7, 12))
    before = [image.copy() for image in images]
    batch = answer(images)
    unchanged = all(np.array_equal(a, b) for a, b in zip(images, before, strict=True))
    large = case.bgr_images(6 - 2 * case.index, *case.sizes(2, 36, 46))
    with see.memory(numpy=True) as used:
        measured = answer(large)  # the second call: the first may import, and imports are no bytes of the answer
    see.form(
        batch,
        why="A model takes one float32 tensor, channels before height and width.",
        fix="Stack the images, permute the axes, and convert with .float().",
    )
    see(
        "values",
        batch,
        atol=1e-6,
        why="The numbers are not the RGB values divided by 255.",
        fix="Check one pixel by hand: red, green, blue, each divided by 255.",
        clues=[
            "channels_reversed",
            "axes_reversed",
            "scaled_by_255",
            "rest_dropped",
            "axes_swapped",
            "same_numbers_other_places",
        ],
    )
    see(
        "result is contiguous",
        batch.is_contiguous(),
        share=0.2,
        why="Contiguous was asked for, and permute only exchanges strides.",
        fix="Write into a preallocated contiguous result, or call contiguous() once.",
    )
    see(
        "inputs left as they were",
        unchanged,
        why="An image was rewritten in place: the caller's picture has changed, too.",
        fix="Reverse the channels out of place, or in the copy that you make anyway.",
    )
    see(
        "values, measured",
        thinned(measured),
        atol=1e-6,
        why="On the larger input whose bytes are counted, the result is another one.",
        fix="Does the answer depend on the size, or on having been called before?",
    )
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=0.5,  # a uint8 copy or two of the batch are fine, a second float32 batch is not
        allowance=16_384,
        why="Two float32 tensors of the size of the batch were alive at once.",
        fix="Change the layout while the values are uint8; divide in place: div_.",
    )


# ---------------------------------------------------------------------------------------- creation and sharing
_CREATION_ROWS = {
    "torch.tensor(a)": "array",
    "torch.from_numpy(a)": "array",
    "torch.as_tensor(a)": "array",
    "torch.as_tensor(a, dtype=t.dtype)": "array",
    "torch.tensor([1, 2, 3])": "list",
    "torch.Tensor([1, 2, 3])": "list",
    "torch.as_tensor(t)": "tensor",
    "t.float()": "tensor",
    "t.to(torch.float64)": "tensor",
    "t.numpy()": "tensor",
    "torch.zeros_like(u)": "pattern",
    "torch.full((2, 3), 255)": "number",
}
_CREATION_ADVICE = {  # of each source: why and fix for the memory, why and fix for the dtype
    "array": (
        "Some calls wrap the array's own memory, others read it into new memory.",
        "Run it, set a[0] = 9, and look at the result.",
        "a is float64. Does this call keep a dtype, or convert it?",
        "Run it, and print the result's dtype.",
    ),
    "list": (
        "A list has no buffer that a tensor could wrap.",
        "What would a write to the result have to change in the list?",
        "Who chooses the dtype here, the numbers or the class?",
        "Run it, then again with [1., 2., 3.]; compare the two dtypes.",
    ),
    "tensor": (
        "A call copies where it has to convert something. Does this one have to?",
        "Run it, set t[0] = 9, and look at the result.",
        "t is float32. Does this call ask for another dtype?",
        "Run it, and print the result's dtype.",
    ),
    "pattern": (
        "Is u read for its numbers here, or only for what it is like?",
        "Run it, set u[0, 0] = 9, and look at the result.",
        "u is uint8. What does _like take over?",
        "Run it, and print the result's dtype.",
    ),
    "number": (
        "Only a shape and a number are given: is there any memory to share?",
        "Name the tensor or the array whose memory it would be.",
        "The dtype is taken from the number given.",
        "Run it with 255 and with 255.0; compare the two dtypes.",
    ),
}
_DTYPE_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32"}
_UNREADABLE = 'an entry in another form than ("copies", torch.float32)'


def _prediction(entry: Any) -> tuple[str, str]:
    """A table entry as ``("shares", "float64")``, however it was spelt: a tuple, a list or a text; any kind of dtype."""
    if entry is None:
        return ("no prediction",) * 2
    if isinstance(entry, str):
        entry = entry.split(",")
    if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[0], str):
        return (_UNREADABLE,) * 2
    word, dtype = entry[0].strip().lower(), entry[1]
    memory = "shares" if word.startswith("shar") else "copies" if word.startswith(("cop", "own")) else ""
    if isinstance(dtype, (str, torch.dtype)):
        name = str(dtype).strip().lower().rpartition(".")[2]
        name = _DTYPE_ALIASES.get(name, name)
    else:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = ""
    return (memory, name) if memory and name else (_UNREADABLE,) * 2


@exercise(
    section=SECTION,
    points=3,
    minutes=8,
    difficulty=1,
    cases=1,
    hints=(
        "Ask two things of every call: where do the numbers live afterwards, and who chose the dtype?",
        "A call can only share what has a buffer already (an array, a tensor), and only if no dtype has to change.",
        "torch.tensor always makes new memory, from_numpy never does. as_tensor, to and float do if they must.",
    ),
)
def predict_creation(answer, case, see):
    """Predict of twelve creation calls whether the result copies or shares memory, and which dtype it gets."""
    table = answer if isinstance(answer, dict) else {}
    if answer is table and all(table.get(call) is None for call in _CREATION_ROWS):
        raise NotStarted
    see.form(
        "a dictionary" if answer is table else answer,
        name="type of the table",
        why="The predictions are read from a dictionary: call -> prediction.",
        fix="Keep the table as it was handed out, and replace each None.",
    )
    for call, source in _CREATION_ROWS.items():
        memory, dtype = _prediction(table.get(call))
        why_memory, fix_memory, why_dtype, fix_dtype = _CREATION_ADVICE[source]
        share = 1 / len(_CREATION_ROWS)
        # One fact in two halves, so that the message is about the half that is wrong.
        see(call, {"memory": memory}, share=share, secret=True, why=why_memory, fix=fix_memory)
        see(call, {"dtype": dtype}, share=share, secret=True, why=why_dtype, fix=fix_dtype)


@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "data_ptr() is where a tensor's first element lies. Which method tells of the whole block behind it?",
        "Tensor: untyped_storage() has data_ptr() and nbytes(). Array: follow .base as long as it is an array.",
        "Give both blocks as (first byte, one past the last): they share if max(starts) < min(ends). "
        "np.lib.array_utils.byte_bounds(owner) gives it for an array.",
    ),
)
def shares_storage(answer, case, see):
    """Tell whether two tensors or arrays are parts of the same block of memory."""
    rows, columns = case.sizes(2, 5, 9)
    # CPU tensors on every machine: half of the pairs are arrays, and those live nowhere else.
    a = case.array(rows, columns)
    x = torch.from_numpy(case.array(rows, columns))
    w = torch.from_numpy(case.array(columns)).requires_grad_()
    cut = case.integer(1, rows - 2)
    see.form(
        "bool" if isinstance(result := answer(x, a), (bool, np.bool_)) else result,
        why="The question has a yes or a no for an answer.",
        fix="Return True or False, not a tensor, a number or an address.",
    )

    pairs: dict[str, dict[str, tuple[Any, Any]]] = {
        "views": {
            "x and x.t()": (x, x.t()),
            f"x and x[{cut}:]": (x, x[cut:]),
            f"x and x[{cut}].expand(3, {columns})": (x, x[cut].expand(3, columns)),
            "x and x.view(torch.int32)[1:]": (x, x.view(torch.int32)[1:]),
            "w and w.detach()[1:]": (w, w.detach()[1:]),
        },
        "disjoint slices": {
            f"x[:{cut}] and x[{cut}:]": (x[:cut], x[cut:]),
            f"a[:{cut}] and a[{cut}:]": (a[:cut], a[cut:]),
            "x[:, 0] and x[:, 1]": (x[:, 0], x[:, 1]),
        },
        "arrays and from_numpy": {
            "a and from_numpy(a)": (a, torch.from_numpy(a)),
            f"a[{cut}:, ::2] and from_numpy(a)": (a[cut:, ::2], torch.from_numpy(a)),
            "a[::-1] and from_numpy(a)": (a[::-1], torch.from_numpy(a)),
            "from_numpy(a) and from_numpy(a)": (torch.from_numpy(a), torch.from_numpy(a)),
            f"x.numpy()[{cut}:] and x[:{cut}]": (x.numpy()[cut:], x[:cut]),
        },
        "copies": {
            "x and x.clone()": (x, x.clone()),
            "x and x.t().reshape(-1)": (x, x.t().reshape(-1)),
            f"x and x[[0, {cut}]]": (x, x[[0, cut]]),
            "a and torch.tensor(a)": (a, torch.tensor(a)),
            f"a[{cut}:] and a.copy()[{cut}:]": (a[cut:], a.copy()[cut:]),
        },
        "from_numpy of a slice": {f"a and from_numpy(a[{cut}:])": (a, torch.from_numpy(a[cut:]))},
        "two that own nothing": {f"empty(0) and empty(0, {rows})": (torch.empty(0), torch.empty(0, rows))},
        "an empty slice": {f"x[:{cut}] and x[:0]": (x[:cut], x[:0])},
    }
    said: dict[str, dict[str, bool]] = {name: dict.fromkeys(group, False) for name, group in pairs.items()}
    for name, pair in case.mixed((name, pair) for name, group in pairs.items() for pair in group):
        two = pairs[name][pair]
        # In the second case the other way round: the order of the two must not matter.
        said[name][pair] = bool(answer(*(reversed(two) if case.index else two)))
    see(
        "views",
        said["views"],
        why="A view reads the block that another tensor has; only the start differs.",
        fix="data_ptr() is the first element; ask the storage where the block is.",
    )
    see(
        "disjoint slices",
        said["disjoint slices"],
        why="Both are parts of one block, though no element belongs to both.",
        fix="Compare the blocks that the two were cut from, not their own elements.",
    )
    see(
        "arrays and from_numpy",
        said["arrays and from_numpy"],
        why="from_numpy wraps the array's memory: one block, seen from two libraries.",
        fix="Find the block of an array, too: .base leads to the array that owns it.",
    )
    see(
        "copies",
        said["copies"],
        why="The two have memory of their own, though the numbers may be equal.",
        fix="Compare where the numbers lie, not the numbers, the shapes or a history.",
    )
    see(
        "from_numpy of a slice",
        said["from_numpy of a slice"],
        share=0.2,
        why="The tensor's storage begins in the middle of the array's block.",
        fix="Compare ranges, first byte to last, instead of first bytes alone.",
    )
    see(
        "two that own nothing",
        said["two that own nothing"],
        share=0.2,
        why="Two that own no byte have an address of 0: equal, and it means nothing.",
        fix="Ask for at least one common byte.",
    )
    see(
        "an empty slice",
        said["an empty slice"],
        share=0.2,
        why="An empty slice has no element but still holds the whole block.",
        fix="Ask about the storage, not about the number of elements.",
    )


def _awkward_arrays(case: Any, folder: Path) -> Iterator[tuple[str, np.ndarray, str, str]]:
    """Arrays that from_numpy takes, refuses or should not have taken: kind, array, why and fix for sharing."""
    rows, columns = case.sizes(2, 4, 9)
    dtype = ("float64", "int16")[case.index % 2]
    new = lambda *shape: case.array(*shape, dtype=dtype)  # noqa: E731

    why, fix = (
        "Nothing stood in the way of sharing, and a copy was made.",
        "Copy only after you have found a reason to; contiguity is none.",
    )
    yield "plain array", new(rows, columns), why, fix
    yield "every other column", new(rows, 2 * columns)[:, ::2], why, fix
    yield "transposed array", new(rows, columns).T, why, fix

    why, fix = (
        "A tensor cannot be read-only: a write to it would go through.",
        "Look at array.flags.writeable before you share, and leave it as it is.",
    )
    locked = new(rows, columns)
    locked.flags.writeable = False
    yield "read-only array", locked, why, fix
    if case.index:
        yield "read-only and flipped", locked[::-1], why, fix
    yield "broadcast array", np.broadcast_to(new(columns), (rows, columns)), why, fix
    path = folder / "pixels.bin"
    new(rows, columns).tofile(path)
    yield "read-only memmap", np.memmap(path, dtype, "r", shape=(rows, columns)), why, fix

    why, fix = (
        "torch cannot use this memory as it is, so a copy is right.",
        "Give the tensor memory of its own: native byte order, plain strides.",
    )
    yield "flipped array", new(rows, columns)[:, ::-1], why, fix
    yield "flipped axis of size 1", new(rows, 1)[:, ::-1], why, fix
    yield "foreign byte order", new(rows, columns).astype(np.dtype(dtype).newbyteorder("S")), why, fix
    records = np.zeros(rows, dtype=[("label", "u1"), ("value", dtype)])
    records["value"] = new(rows)
    yield "record field", records["value"], why, fix


def _asked(answer: Any, array: np.ndarray) -> tuple[Any, bool]:
    """What came of one call, an error as well, and whether the array is as it was."""
    before, writeable = np.array(array), array.flags.writeable
    try:
        outcome = answer(array)
    except Exception as error:  # raised when its turn comes: the order in which students read of it stays
        outcome = error
    return outcome, array.flags.writeable == writeable and np.array_equal(array, before)


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "List what torch refuses (it raises) and what it takes although it should not (it only warns).",
        "array.flags.writeable, array.dtype.isnative and array.strides tell everything.",
        "np.array(array, dtype=array.dtype.newbyteorder('='), order='C') is a clean copy, whatever the array was.",
    ),
)
def wrap_or_copy(answer, case, see):
    """Turn an array into a tensor that shares its memory where that is safe, and has a copy where it is not."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        arrays = list(_awkward_arrays(case, Path(folder)))
        seen = {kind: _asked(answer, array) for kind, array, *_ in case.mixed(arrays)}
        for kind, array, why, fix in arrays:
            outcome, left_alone = seen[kind]
            if isinstance(outcome, Exception):
                raise outcome
            see.form(
                outcome,
                name=f"{kind}: type",
                why="The tensor is to have the dtype and the shape of the array.",
                fix="Change the byte order or the memory, never the dtype or the shape.",
            )
            see(
                f"{kind}: values",
                outcome,
                why="The tensor is to hold the array's numbers, in the array's order.",
                fix="Copy with NumPy: it knows about strides and byte order.",
            )
            # Sharing is read off addresses. A write would tell as well, but through a mapped read-only file it
            # ends the process.
            see(f"{kind}: sharing", np.may_share_memory(outcome.detach().numpy(), array), why=why, fix=fix)
            see(
                f"{kind}: left alone",
                left_alone,
                why="The caller's array was unlocked or rewritten: others rely on it.",
                fix="Leave array as it is; change a copy.",
            )
    see(
        "an array of texts is refused",
        attempt(answer, np.array(["cat", "dog"])),
        any_error=True,
        share=0.1,
        why="There is no dtype for texts: silence would hide the caller's mistake.",
        fix="Let the TypeError of torch pass.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=1,
    hints=(
        "Try arange(0, 10, 0.5): is 10 among the values? Count them.",
        "How many whole steps fit between start and end, and what happens to a rest?",
        "A rest still gives one more value, an exact hit gives none: round (end - start) / step up.",
    ),
)
def arange_length(answer, case, see):
    """Tell how many values torch.arange(start, end, step) has, without making them."""
    start, n, m = case.integer(-9, 9), case.integer(6, 12), case.integer(3, 5)
    long = case.integer(40_000, 60_000)
    questions = {
        "whole steps": ((start, start + n, 1), (0, n * 0.5, 0.5), (start, start + n * m, m), (0, long, 0.5)),
        "a last step that is cut short": (
            *((start, start + n * m + 1, m), (start, start + n * m + m - 1, m)),
            *((0, n + 0.25, 0.5), (2, 5, 10)),
        ),
        "negative step": ((n, start - 10, -1), (n * m, 0, -m), (n * m + 1, 0, -m), (0.25, -n, -0.5)),
        "start equals end": ((n, n, m), (1.5, 1.5, -0.5)),
        "steps no float can hold": ((1, 1.3, 0.1), (0.6, 0.9, 0.1), (0, 1, 0.1), (0, 0.3, 0.1)),
    }
    see.form(
        answer(start, start + n * 0.25, 0.25),
        why="A length is an int, with floats for start, end and step as well.",
        fix="math.ceil gives an int; NumPy's ceil gives a float.",
    )
    with see.memory(numpy=True) as used:  # of all the questions: no single one is known for being measured
        said = {
            name: {f"arange({a}, {b}, {step})": answer(a, b, step) for a, b, step in group}
            for name, group in questions.items()
        }
    for name, why, fix in (
        (
            "whole steps",
            "The end itself is not among the values.",
            "Count by hand for arange(0, 2, 1), where the end is hit exactly.",
        ),
        (
            "a last step that is cut short",
            "A rest shorter than a step still holds one more value.",
            "Count by hand for arange(0, 5, 2), and for arange(0, 1, 10).",
        ),
        (
            "negative step",
            "A negative step goes down, and the same rule holds.",
            "Count by hand for arange(5, 0, -2): 5, 3, 1.",
        ),
        (
            "start equals end",
            "Nothing lies between start and end, and the end is left out.",
            "Return 0 here, without a special case if your formula is right.",
        ),
    ):
        see(name, said[name], why=why, fix=fix)
    see(
        "steps no float can hold",
        said["steps no float can hold"],
        share=0.2,
        why="0.1 is not exactly a tenth; torch rounds the quotient up as it is.",
        fix="Compute (end - start) / step in floats, once; add or round nothing.",
    )
    impossible = ((0, n, 0), (0, n, -1), (n, 0, 0.5), (0, -0.5, 1), (0, n, -n - m), (start, start + 0.25, -m))
    see(
        "impossible steps",
        {f"arange({a}, {b}, {step})": attempt(answer, a, b, step) for a, b, step in impossible},
        any_error=True,
        share=0.2,
        why="torch.arange raises here: no number is a right length.",
        fix="Compare the sign of the step with the way from start to end.",
    )
    see(
        "made to count",
        _made(used),
        at_most=True,
        why="The values were made in order to count them.",
        fix="A length follows from the three numbers alone.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=6,
    difficulty=1,
    hints=(
        "Print zeros_like(x) for an x that requires a gradient. Which of its properties were taken over?",
        "An optimizer needs a leaf that requires grad. What does an operation on x make of its result?",
        "zeros_like takes requires_grad as an argument.",
    ),
)
def zeros_for_training(answer, case, see):
    """Make zeros like x that an optimizer can train."""
    if case.index:
        base = case.tensor(*case.sizes(4, 2, 6), dtype=torch.float64, requires_grad=True)
        x = (base * 2).contiguous(memory_format=torch.channels_last)
    else:
        x = case.tensor(*case.sizes(3))
        x[1, 0, 2] = torch.inf  # what training that diverged leaves behind
    before, trainable = x.detach().clone(), x.requires_grad
    result = answer(x)
    see.form(
        result,
        why="The zeros are to have the shape, the dtype and the device of x.",
        fix="Take all of them from x: a function that ends in _like does.",
    )
    see(
        "x left as it was",
        {
            "values": "as before" if torch.equal(x.detach(), before) else "changed",
            "requires_grad": "as before" if x.requires_grad == trainable else "changed",
        },
        why="x was written into or switched: a name that ends in _ works in place.",
        fix="Make new zeros; only read the properties of x.",
    )
    see(
        "values",
        result,
        why="Some values are not 0.",
        fix="Do not compute the zeros from x: inf times 0 is nan.",
    )
    see(
        "requires grad",
        result.requires_grad,
        why="zeros_like takes over shape, dtype, device, layout; not requires_grad.",
        fix="Say so: requires_grad=True.",
    )
    see(
        "is a leaf",
        result.is_leaf,
        why="The zeros were computed from x: backward fills .grad of leaves only.",
        fix="Make new zeros instead of working on x.",
    )
    see(
        "order in memory",
        "as in x" if result.stride() == x.stride() else f"strides {result.stride()}, x has {x.stride()}",
        share=0.2,
        why="x lies in memory channels last, the zeros do not.",
        fix="zeros_like keeps the memory format; new_zeros and zeros do not.",
    )


# ------------------------------------------------------------------------------------------------------ strides
def _made(used: MemoryMeter) -> str:
    """What an answer that should compute made instead. Small lists and arrays of sizes are no matter."""
    if used.storages:
        return "a tensor"
    return "an array or a list of all the elements" if used.peak > 65_536 else "no tensor, no long array or list"


def _whole_numbers(value: Any) -> Any:
    """A tuple or list of whole numbers as a list of int, so that NumPy's ints do as well; else the value."""
    if isinstance(value, (tuple, list)) and all(isinstance(v, (int, np.integer)) for v in value):
        return [int(v) for v in value]
    return value


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "What are the strides of torch.empty(2, 3, 4)? How many elements lie between two rows?",
        "First the strides before permute: the product of all sizes further right. Then move them with their axes.",
        "permute(order) puts axis order[i] at place i, with its size and its stride.",
    ),
)
def strides_after(answer, case, see):
    """Compute the strides, in elements, that a contiguous tensor has after permute(order)."""
    a, b, c, d = case.sizes(4, 2, 7)

    large = case.sizes(3, 40, 60)
    questions = {
        "before any permute": (((a, b, c), (0, 1, 2)), ((d, a), (0, 1)), ((c,), (0,))),
        "after permute": (
            *(((a, b, c), (1, 2, 0)), ((a, b, c), (2, 0, 1)), ((b, d, a, c), (0, 2, 3, 1)), ((d, a), (1, 0))),
            (large, (2, 0, 1)),
        ),
        "axes of length 1": (((a, 1, c), (1, 2, 0)), ((1, b, 1, d), (3, 0, 2, 1))),
        "order counted from the end": (((a, b, c), (-1, 0, 1)), ((a, b, c, d), (0, -1, -3, -2))),
        "an axis of length 0": (((a, 0, c), (0, 1, 2)), ((0, b, c), (2, 0, 1))),
    }
    first = _whole_numbers(answer((a, b, c), (0, 1, 2)))
    see.form(
        f"{len(first)} whole numbers" if isinstance(first, list) else first,
        why="Every axis has one stride, a whole number of elements.",
        fix="Return a tuple of int, as tensor.stride() does.",
    )
    with see.memory(numpy=True) as used:  # of all the questions: no single one is known for being measured
        strides = {
            name: {f"{shape}, permute{order}": _whole_numbers(answer(shape, order)) for shape, order in group}
            for name, group in questions.items()
        }
    see(
        "before any permute",
        strides["before any permute"],
        why="The last axis has stride 1; each other one jumps over all to its right.",
        fix="Write down by hand the strides of shape (2, 3, 4): 12, 4, 1.",
    )
    see(
        "after permute",
        strides["after permute"],
        why="Each axis takes its stride along; no number in memory moves.",
        fix="Strides first, from the shape as it was; then put them in the order.",
    )
    see(
        "axes of length 1",
        strides["axes of length 1"],
        why="An axis of length 1 has a stride, too, by the same rule.",
        fix="Do not drop any axis.",
    )
    see(
        "order counted from the end",
        strides["order counted from the end"],
        share=0.15,
        why="permute(-1, 0, 1) puts the last axis first.",
        fix="Index with the numbers of order; Python counts from the end, too.",
    )
    see(
        "an axis of length 0",
        strides["an axis of length 0"],
        share=0.15,
        why="torch counts a length of 0 as 1 where it computes strides.",
        fix="Look at torch.empty(2, 0, 3).stride().",
    )
    see(
        "made to look at",
        _made(used),
        at_most=True,
        why="All the elements were made in order to read strides off them.",
        fix="Compute them from shape and order alone.",
    )


@exercise(
    section=SECTION,
    points=3,
    minutes=18,
    difficulty=3,
    hints=(
        "view needs no contiguous tensor. It needs steps: which axes can be walked through with one step size?",
        "Axes i and i+1 can be merged if stride[i] == shape[i+1] * stride[i+1]. Any axis may be split. Leave out 1s.",
        "Merge the old axes into as few runs as possible; then the new sizes must fill run after run exactly.",
    ),
)
def can_view(answer, case, see):
    """Tell whether view(new_shape) works on a tensor of this shape and stride."""
    a, b, c = case.sizes(3, 2, 6)
    k = case.choice(2, 3)
    block, wide = torch.empty(k * a, b, c), torch.empty(a, b, 2 * c)
    swapped, last_first = block.transpose(0, 1), block.permute(2, 0, 1)

    questions: dict[str, list[tuple[torch.Tensor, tuple[int, ...]]]] = {
        "contiguous": [
            (block, (k, a, b * c)),
            (block, (k * a * b * c,)),
            (block, (b, k * a, c)),
            (block[1:], (c, b, k * a - 1)),
        ],
        "other numbers of elements": [
            (block, (k * a, b, c + 1)),
            (block, (k * a, b)),
            (last_first, (c + 1, k * a, b)),
            (block, ()),
        ],
        "axes that cannot be merged": [
            (swapped, (b * k * a, c)),
            (last_first, (c * k * a, b)),
            (block.permute(0, 2, 1), (k * a, b, c)),
            (wide[:, :, :c], (a, b * c)),
            (block[:, :1], (k * a * c,)),
        ],
        "not contiguous, and yet": [
            (swapped, (b, k * a, c)),
            (swapped, (b, k, a, c)),
            (last_first, (c, k * a * b)),
            (block.permute(1, 2, 0), (b * c, k * a)),
            (wide[:, :, :c], (a * b, c)),
            (wide[:, :, ::2], (a * b * c,)),
        ],
        "axes of length 1": [
            (torch.empty_strided((a, 1, c), (c, 7 * c, 1)), (a * c,)),
            (torch.empty(c, 1).t(), (c,)),
            (block[:, :1], (1, k * a, 1, c, 1)),
            (swapped, (b, 1, k, a, 1, c)),
            (torch.empty(()), (1, 1)),
        ],
        "expanded": [
            (torch.empty(a, 1, c).expand(a, b, c), (a * b, c)),
            (torch.empty(a, 1, c).expand(a, b, c), (a, b * c)),
            (torch.empty(1).expand(a, b), (b, a)),
            (torch.empty(c).expand(a, b, c), (b, a, c)),
        ],
        "no elements": [
            (torch.empty(0, b, c).transpose(0, 2), (b, 0, a)),
            (block[:, :0].transpose(0, 2), (0,)),
        ],
    }
    see.form(
        "bool" if isinstance(one := answer((a, b), (b, 1), (b, a)), (bool, np.bool_)) else one,
        why="The question has a yes or a no for an answer.",
        fix="Return True or False.",
    )
    asked = [(name, tuple(x.shape), x.stride(), size) for name, group in questions.items() for x, size in group]
    said: dict[str, dict[str, Any]] = {
        name: {f"{a} {s} to {b}": None for n, a, s, b in asked if n == name} for name in questions
    }
    with see.memory() as used:  # of all the questions: no single one is known for being measured
        for name, shape, stride, size in case.mixed(asked):
            one = answer(shape, stride, size)
            said[name][f"{shape} {stride} to {size}"] = bool(one) if isinstance(one, np.bool_) else one
    see(
        "contiguous",
        said["contiguous"],
        why="A contiguous tensor can be viewed as any shape of as many elements.",
        fix="All axes merge into one run here, and any sizes can fill it.",
    )
    see(
        "other numbers of elements",
        said["other numbers of elements"],
        why="A view has exactly as many elements as its tensor.",
        fix="Compare the products of the sizes first.",
    )
    see(
        "axes that cannot be merged",
        said["axes that cannot be merged"],
        why="One step size has to walk through the merged axis; here it takes two.",
        fix="Compare the outer stride with the inner size times the inner stride.",
    )
    see(
        "not contiguous, and yet",
        said["not contiguous, and yet"],
        why="view asks for strides that fit, not for a contiguous tensor.",
        fix="Ask only about those neighbours that the new shape merges.",
    )
    see(
        "axes of length 1",
        said["axes of length 1"],
        why="An axis of length 1 is never stepped along: its stride says nothing.",
        fix="Leave the 1s out of both shapes before you compare anything.",
    )
    see(
        "expanded",
        said["expanded"],
        why="expand gives stride 0; the rule for merging holds for 0, too.",
        fix="Use the rule as it stands: no special case for stride 0.",
    )
    see(
        "no elements",
        said["no elements"],
        share=0.15,
        why="Without elements no step is ever made: any view without elements works.",
        fix="Answer for a length of 0 before you look at strides.",
    )
    see(
        "tensors made",
        used.storages,
        at_most=True,
        why="A tensor was made in order to try view on it.",
        fix="The answer follows from the three tuples alone.",
    )


# ------------------------------------------------------------------------------------------------ views and layout
def _without_copy(x: torch.Tensor, y: Any) -> str:
    """What ``y`` is to ``x``, told without reading a value: a view or a copy, and how it steps through memory."""
    if not isinstance(y, torch.Tensor) or y.ndim != 1:
        return describe(y)
    if y.data_ptr() != x.data_ptr():
        return f"a copy, length {y.numel()}"
    return f"a view, length {y.numel()}" + (f", stride {y.stride(0)}" if y.numel() > 1 else "")


def _copied(x: torch.Tensor, y: torch.Tensor) -> str:
    return "no copy" if y.data_ptr() == x.data_ptr() else "a copy"


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Three methods flatten a tensor. Which of them copies when it must, and which never does?",
        "is_contiguous() asks a narrower question: some tensors with gaps still step through memory evenly.",
        "view works exactly where the strides allow it, and raises elsewhere. One call is the whole answer.",
    ),
)
def flatten_without_copy(answer, case, see):
    """A tensor becomes a 1-D view of the same memory; where that would need a copy, an error is raised."""
    n, height, width = case.sizes(3, 3, 8)
    x = case.tensor(n, height, 2 * width, dtype=(torch.float32, torch.int64)[case.index % 2])
    flat = answer(x)
    see.form(
        flat,
        why="A flat tensor has one axis that holds all the elements.",
        fix="Ask for a single axis, and let -1 stand for its length.",
    )
    see(
        "a contiguous input",
        _without_copy(x, flat),
        why="This tensor lies in memory without gaps: a view of it is possible.",
        fix="Do not clone: the result must start at the address of the input.",
    )
    see(
        "values",
        flat,
        why="The elements must keep their order, row after row.",
        fix="Only the shape changes: no axis has to move.",
    )
    see(
        "input left as it was",
        f"{describe(x)}, strides {x.stride()}",
        why="The tensor of the caller has another shape or other strides now.",
        fix="Names that end in _ change the tensor itself: take one that does not.",
    )
    x = case.tensor(n, height, 2 * width)  # a fresh one, whatever became of the first
    impossible = {
        "transposed": x.transpose(1, 2),
        "first half of each row": x[..., :width],
        "every row repeated": x[:, :1].expand(n, height, 2 * width),
    }
    with see.memory() as used:
        outcomes = {name: attempt(answer, view) for name, view in impossible.items()}
    see(
        "a copy is refused",
        {
            name: "an error" if outcome.raised else _without_copy(impossible[name], outcome.value)
            for name, outcome in outcomes.items()
        },
        why="No single stride walks this tensor in order: an error was asked for.",
        fix="No copy, no guessed stride, no None. Which call raises by itself?",
    )
    possible = {
        "one column": x[1, :, 1],
        "even columns": x[..., ::2],
        "one number repeated": x[:1, :1, :1].expand(n, height, width),
    }
    see(
        "gaps, and still a view",
        {
            name: outcome if outcome.raised else _without_copy(view, outcome.value)
            for name, view in possible.items()
            for outcome in [attempt(answer, view)]
        },
        share=0.35,
        why="Not contiguous, yet one stride reaches all elements in order.",
        fix="Do not ask is_contiguous(): try the view, and let it raise.",
    )
    see(
        "unusual shapes",
        {
            name: outcome if outcome.raised else _without_copy(view, outcome.value)
            for name, view in {"no axis": x[1, 1, 1], "empty": x[:0].transpose(0, 1), "size 1": x[:1, 1:2]}.items()
            for outcome in [attempt(answer, view)]
        },
        share=0.15,
        why="Tensors of every shape can come, also () and those without elements.",
        fix="Do not count axes or unpack the shape: -1 works for every shape.",
    )
    see(
        "bytes copied to refuse",
        used.peak,
        at_most=True,
        share=0.25,
        why="A whole copy was made, only to find out that one is needed.",
        fix="Use a call that cannot copy: then there is nothing to find out.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "Two things happen: the channels move to the end, and height and width become one axis. Which can a view do?",
        "An axis is moved by permute, transpose or movedim only. reshape merges axes that are neighbours already.",
        "features.flatten(2) merges height and width; transpose(1, 2) then puts the channels last.",
    ),
)
def to_tokens(answer, case, see):
    """Feature maps (N, C, H, W) become tokens (N, H*W, C): one vector of channels per position, row after row."""
    n, channels, height, width = case.sizes(4, 3, 3)  # 3 to 6: so height * width > channels, too
    if case.index % 2:  # a crop: neighbours in a row are still neighbours in memory, rows are not
        features = case.tensor(n, channels, height + 2, width + 1)[..., 1:-1, :-1]
    else:
        features = case.tensor(n, channels, height, width)
    before = features.tolist()
    tokens = answer(features)
    see.form(
        tokens,
        why="One row per position and one column per channel, for every image.",
        fix="Merge height and width into one axis and put the channels last.",
    )
    see(
        "values",
        tokens,
        why="Token h * W + w of image n is features[n, :, h, w].",
        fix="Compare tokens[0, 1] with features[0, :, 0, 1].",
        clues=["batch_items_mixed", "merged_in_other_order", "axes_swapped", "same_numbers_other_places"],
    )
    see(
        "input left as it was",
        {"form": describe(features), "values changed": features.tolist() != before},
        why="The feature maps of the caller were changed.",
        fix="Names that end in _ change the tensor itself: take one that does not.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "Walk back along the way of to_tokens, in the opposite order.",
        "First move the channels in front of the positions, then split the positions into height and width.",
        "tokens.transpose(1, 2) gives (N, C, H*W). Split its last axis, with N and C spelled out, not as -1.",
    ),
)
def from_tokens(answer, case, see):
    """Tokens (N, H*W, C) become feature maps (N, C, height, width) again; a wrong height or width raises an error."""
    n, channels, width = (2 * size + 1 for size in case.sizes(3, 1, 3))
    half = case.integer(2, 4)
    height = 2 * half  # even, and so different from the odd ones
    if case.index % 2:  # as a vision transformer gives them: the class token in front is left out
        tokens = case.tensor(n, 1 + height * width, channels)[:, 1:]
    else:
        tokens = case.tensor(n, height * width, channels)
    before = tokens.tolist()
    features = answer(tokens, height, width)
    see.form(
        features,
        why="Feature maps are (N, C, height, width), as a convolution takes them.",
        fix="Move the channels in front of the positions, then split the positions.",
    )
    see(
        "values",
        features,
        why="features[n, :, h, w] is token h * W + w of image n.",
        fix="Compare features[0, :, 0, 1] with tokens[0, 1].",
        clues=["batch_items_mixed", "split_in_other_order", "axes_swapped", "same_numbers_other_places"],
    )
    see(
        "input left as it was",
        {"form": describe(tokens), "values changed": tokens.tolist() != before},
        why="The tokens of the caller were changed.",
        fix="Names that end in _ change the tensor itself: take one that does not.",
    )
    for name, wrong in (("half the height", (half, width)), ("a width too large", (height, width + 1))):
        outcome = attempt(answer, tokens, *wrong)
        see(
            f"{name} is refused",
            "an error" if outcome.raised else describe(outcome.value),
            share=0.2,
            why="height * width is not the number of tokens, and nothing was said.",
            fix="Cut nothing off, and give every size by name: -1 takes in the rest.",
        )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "The shape stays (N, C, H, W) in both layouts. Only the strides differ.",
        "contiguous() without an argument means the layout (N, C, H, W). It takes a memory_format.",
        "Pass memory_format=torch.channels_last or torch.contiguous_format to contiguous(): no copy if it holds already.",
    ),
)
def as_layout(answer, case, see):
    """The same values and shape (N, C, H, W), dense in memory in the layout asked for, and copied only if needed."""
    n, channels, height, width = case.sizes(4, 3, 3)
    last, first = torch.channels_last, torch.contiguous_format
    plain = case.tensor(n, channels, height, width)
    tall = plain.contiguous(memory_format=last)
    before = plain.tolist()
    results = {"to channels_last": answer(plain, True), "back": answer(tall, False)}
    see.form(
        results["to channels_last"],
        why="The axes keep their order (N, C, H, W): a layout changes strides only.",
        fix="Look for memory_format: no axis has to be permuted by hand.",
    )
    for name, result in results.items():
        see(
            f"strides, {name}",
            str(tuple(result.stride())),
            why="The elements do not lie in memory in the order that was asked for.",
            fix="Pass the memory_format last: a plain contiguous() afterwards undoes it.",
        )
        see(
            f"values, {name}",
            result,
            why="A change of layout may not change which value is at which index.",
            fix="Lay down no strides by hand: ask for the memory_format instead.",
            clues=["axes_swapped"],
        )
    see(
        "input left as it was",
        {
            "values changed": plain.tolist() != before or tall.tolist() != before,
            "strides": [str(plain.stride()), str(tall.stride())],
        },
        why="The tensor of the caller was changed.",
        fix="Return another tensor; do not write into the one that you got.",
    )
    already = {"channels_last": (tall, True), "plain": (plain, False)}
    see(
        "no needless copy",
        {k: _copied(x, answer(x, flag)) for k, (x, flag) in already.items()},
        share=0.3,
        why="The tensor had this layout already; the copy was for nothing.",
        fix="Ask first whether it holds: is_contiguous takes a memory_format, too.",
    )
    crops = {"channels_last": (tall[:, :, 1:, 1:], True), "plain": (plain[:, :, 1:, 1:], False)}
    dense = {k: answer(x, f).is_contiguous(memory_format=last if f else first) for k, (x, f) in crops.items()}
    see(
        "a crop",
        {k: "dense in the layout" if ok else "not dense in the layout" for k, ok in dense.items()},
        share=0.25,
        why="The crop came back with its gaps: to() only looks at the axis order.",
        fix="Another method takes a memory_format, too, and closes the gaps.",
    )


# ------------------------------------------------------------------------------------------------ memory kept alive
@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "torch.cat needs all the batches alive beside the result. How many may be alive if the peak is the result?",
        "The shape of the rows and the dtype are known with the first batch: allocate there, then fill as you go.",
        "result = batch.new_empty(total, *batch.shape[1:]), then copy into result.narrow(0, at, len(batch)).",
    ),
)
def assemble(answer, case, see):
    """Batches that come one at a time are written into one preallocated tensor of ``total`` rows."""
    channels, size = case.sizes(2, 4, 9)
    dtype = (torch.float32, torch.int64)[case.index % 2]
    lengths = [case.integer(2, 6) for _ in range(5)]
    lengths[2 - 2 * (case.index % 2)] = 0  # an empty batch: the third one, or even the first
    lengths.append(1 + 2 * (case.index % 2))
    total = sum(lengths)
    rows = case.tensor(total, channels, size, dtype=dtype)

    def stream(source, lengths):
        for batch in source.split(lengths):
            # A fresh tensor, as a model returns it, and with other strides than the result will have.
            yield batch.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)

    result = answer(stream(rows, lengths), total)
    see.form(
        result,
        why="All rows in one tensor, of the dtype and the row shape of the batches.",
        fix="Take shape and dtype from the first batch: batch.new_empty(...).",
    )
    see(
        "values",
        result,
        why="The rows of the batches must follow each other, each exactly once.",
        fix="Keep a running position; the batches can be walked through only once.",
        clues=["all_zero", "only_first_right", "same_numbers_other_places"],
    )
    for name, promised in (("too few rows", total + 2), ("too many rows", total - 1)):
        outcome = attempt(answer, stream(rows, lengths), promised)
        see(
            f"{name}: an error",
            "an error" if outcome.raised else describe(outcome.value),
            share=0.15,
            why="The batches do not hold total rows, and nothing was said.",
            fix="Compare the running position with total, in the loop and after it.",
        )
    lengths = [case.integer(24, 36) for _ in range(12)]
    rows = case.tensor(sum(lengths), 9, 13, dtype=dtype)
    with see.memory(numpy=True) as used:
        measured = answer(stream(rows, lengths), sum(lengths))
    see(
        "values, measured",
        thinned(measured),
        why="On the larger input whose bytes are counted, the result is another one.",
        fix="Does the answer depend on the size, or on having been called before?",
    )
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=0.25,
        allowance=16_384,
        why="Beside the result, its rows were alive once more: the peak is double.",
        fix="Allocate once, copy batch by batch, and let go of each batch.",
    )


def _loaded(tensor: torch.Tensor) -> torch.Tensor:
    """Saved and loaded again: the whole storage comes along, and no trace of the tensor that it was cut from."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


@exercise(
    section=SECTION,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "A tensor is a window. What keeps the memory alive is the storage behind it.",
        "tensor.nbytes counts the elements in the window. Ask the storage for its own number.",
        "tensor.untyped_storage() has nbytes().",
    ),
)
def bytes_kept_alive(answer, case, see):
    """How many bytes of memory stay allocated as long as this tensor lives."""
    rows, columns = case.sizes(2, 20, 40)
    dtype = (torch.float32, torch.float64)[case.index % 2]
    big = case.tensor(10 * rows, columns, dtype=dtype)
    pixels = case.tensor(rows, columns, 3, dtype=torch.uint8)
    whole = answer(big)
    see.form(
        whole,
        why="A number of bytes is an int.",
        fix="Return the number itself, no tensor and no text.",
    )
    see(
        "a whole tensor",
        {"numbers": whole, "pixels": answer(pixels)},
        why="A whole tensor keeps its elements: their number times the item size.",
        fix="Try torch.zeros(10) by hand: 10 elements of 4 bytes keep 40 bytes.",
    )
    see(
        "a part of a big tensor",
        {"ten rows": answer(big[5:15]), "one column": answer(big[:, 3]), "one number": answer(big[7, 2])},
        why="A view keeps its whole storage alive, not just the part that it shows.",
        fix="Ask the storage behind the tensor, not its number of elements.",
    )
    see(
        "an expanded row",
        answer(case.tensor(columns, dtype=dtype).expand(10 * rows, columns)),
        share=0.25,
        why="expand repeats by a stride of 0: no memory is added.",
        fix="Ask the storage behind the tensor, not its number of elements.",
    )
    see(
        "empty or loaded",
        {"big[:0]": answer(big[:0]), "empty": answer(big.new_empty(0)), "loaded": answer(_loaded(big[5:15]))},
        share=0.25,
        why="Only the storage knows: a view may be empty, or know no base.",
        fix="Ask the storage in every case; _base and the elements do not know.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "When is a tensor already as small as it can be? Compare its storage with its own elements.",
        "contiguous() returns the tensor itself when it has no gaps, and a slice of rows has none. What always copies?",
        "If the storage has more bytes than tensor.nbytes, return tensor.clone(); else return the tensor.",
    ),
)
def compact(answer, case, see):
    """The same tensor with no more memory behind it than its elements need; it is copied only if that frees memory."""
    rows, columns = case.sizes(2, 20, 40)
    big = case.tensor(10 * rows, columns, dtype=(torch.float32, torch.float64)[case.index % 2])
    parts = {"ten rows": big[5:15], "every fourth column": big[:rows, ::4], "transposed part": big[: rows - 1].t()}
    begins = {name: part.data_ptr() for name, part in parts.items()}
    small = {name: answer(part) for name, part in parts.items()}
    for tensor in small.values():
        see.form(
            tensor,
            why="Shape and dtype stay as they are; only the memory behind them shrinks.",
            fix="Copy the tensor as it is: no list, no other dtype.",
        )
    see(
        "tensor left as it was",
        {name: "as before" if parts[name].data_ptr() == at else "other memory" for name, at in begins.items()},
        why="The tensor that was handed in reads other memory now.",
        fix="Return a new tensor; assign nothing to .data of the caller's.",
    )
    see(
        "bytes kept by a part",
        {name: storage_bytes(tensor) for name, tensor in small.items()},
        why="The part still holds the storage of the big tensor.",
        fix="A part without gaps is contiguous already; only a real copy helps.",
    )
    see(
        "bytes of the big tensor",
        storage_bytes(big),
        why="The storage of the big tensor was cut: its other views are broken now.",
        fix="Leave the storage alone; make a small tensor of your own.",
    )
    see(
        "values",
        small,
        why="The values must stay as they are.",
        fix="Copy the tensor as it is.",
        clues=["axes_swapped", "same_numbers_other_places"],
    )
    see(
        "bytes kept by an odd part",
        {name: storage_bytes(answer(x)) for name, x in {"big[:0]": big[:0], "loaded": _loaded(big[5:15])}.items()},
        share=0.2,
        why="It still holds a storage that is larger than its elements.",
        fix="Compare the bytes of the storage with tensor.nbytes, for every tensor.",
    )
    fine = {"whole": big, "whole, transposed": big.t(), "expanded row": case.tensor(columns).expand(rows, columns)}
    see(
        "no needless copy",
        {name: _copied(x, answer(x)) for name, x in fine.items()},
        share=0.3,
        why="This tensor held no byte too many; the copy only doubled the memory.",
        fix="Copy only where the storage has more bytes than the elements.",
    )


# ------------------------------------------------------------------------------------------------ pixels
@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "What is 4 - 9 in uint8? Try it, and try 9 - 4.",
        "Either make room for negative numbers before you subtract, or never subtract the larger from the smaller.",
        "int16 has room for -255..255. Without it: the elementwise maximum minus the elementwise minimum.",
    ),
)
def frame_difference(answer, case, see):
    """The absolute difference of two uint8 frames (H, W, 3) is uint8 again, and the same in both orders."""
    height, width = case.sizes(2, 10, 20)
    frames = [torch.from_numpy(case.array(height, width + 2, 3, dtype="uint8")) for _ in range(2)]
    if case.index % 2:  # crops
        frames = [frame[:, 1:-1] for frame in frames]
    before = [frame.tolist() for frame in frames]
    difference = answer(*frames)
    see.form(
        "a tensor" if isinstance(difference, torch.Tensor) else difference,
        why="The frames are tensors, and so is their difference.",
        fix="torch.from_numpy makes a tensor of an array, without a copy.",
    )
    see.form(
        difference,
        why="A difference of 8-bit frames fits into 8 bits: 0 to 255.",
        fix="Compute in a wider dtype if you like, and come back to uint8.",
    )
    see(
        "inputs left as they were",
        [frame.tolist() for frame in frames] == before,
        why="A frame of the caller was overwritten.",
        fix="Names that end in _ write into their tensor: do so on your own only.",
    )
    see(
        "values",
        difference,
        why="The result is |a - b|, pixel by pixel and channel by channel.",
        fix="Work out one pixel by hand where a is smaller than b.",
        clues=["eight_bits_went_round", "cut_off_at_zero", "off_by_one"],
    )
    large = [torch.from_numpy(case.array(150, 160, 3, dtype="uint8")) for _ in range(2)]
    with see.memory(numpy=True) as used:
        measured = answer(*large)
    see(
        "values, measured",
        thinned(measured),
        why="On the larger input whose bytes are counted, the result is another one.",
        fix="Does the answer depend on the size, or on having been called before?",
    )
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=2.5,
        allowance=16_384,
        share=0.25,
        why="Whole frames in a 4-byte dtype: four times the memory of uint8.",
        fix="int16 has room for -255..255; or stay in uint8 without going below 0.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "The way back has the same four steps: axis order, channel order, range, dtype. Round before the dtype.",
        "clamp keeps the values inside 0..255. permute gives a view whose array has the strides of the tensor.",
        "np.ascontiguousarray(...) or cv2.cvtColor(..., cv2.COLOR_RGB2BGR) gives an array that OpenCV can draw into.",
    ),
)
def to_opencv(answer, case, see):
    """An RGB tensor (3, H, W) of floats in [0, 1] becomes an array (H, W, 3), uint8, BGR, that OpenCV may draw into."""
    height, width = case.sizes(2, 12, 20)
    # Grey levels with a fraction well away from .5, so that every way of rounding gives the same number,
    # and a few values just outside of [0, 1], as resizing and colour jitter leave them.
    levels = case.rng.integers(-6, 262, size=(3, height, width)) + case.rng.uniform(-0.4, 0.4, size=(3, height, width))
    image = torch.from_numpy((levels / 255).astype(np.float32))
    if case.index % 2:  # the strides that torchvision gives to an image from PIL
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    before = image.tolist()
    array = answer(image)
    see.form(
        array,
        why="OpenCV takes a NumPy array (H, W, 3) of uint8.",
        fix="permute the axes, convert the dtype, and call .numpy().",
    )
    see(
        "values",
        array,
        why="Each value is 255 times the tensor's, rounded, clipped to 0..255, BGR.",
        fix="Work out one pixel by hand: blue, green, red.",
        clues=["channels_reversed", "ends_swapped", "fraction_cut_off", "same_numbers_other_places"],
    )
    see(
        "input left as it was",
        image.tolist() == before,
        why="An in-place step changed the caller's image.",
        fix="Multiply out of place first; after that the memory is your own.",
    )
    drawing = attempt(cv2.rectangle, array, (1, 1), (5, 5), (255, 0, 0))
    see(
        "OpenCV draws into it",
        "a rectangle" if not drawing.raised else "cv2.rectangle refuses the array",
        share=0.35,
        why="OpenCV draws only into writable arrays without gaps or odd strides.",
        fix="Look at array.flags and array.strides; copy once if need be.",
    )
