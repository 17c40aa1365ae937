"""Right and wrong answers to the exercises of section 1, tensor_costs."""

from __future__ import annotations

import itertools
import math

import cv2
import numpy as np
import torch

from grading.bank import Kind, right, wrong


# ------------------------------------------------------------------------------------------------ bgr_to_batch
@right("bgr_to_batch")
def stack_flip_copy(images):
    stacked = np.stack(images)[..., ::-1].copy()
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous().float().div_(255)


@right("bgr_to_batch")
def index_the_channels(images):
    out = torch.empty((len(images), 3, *images[0].shape[:2]), dtype=torch.float32)
    for i, image in enumerate(images):
        for channel in range(3):
            out[i, channel] = torch.from_numpy(np.ascontiguousarray(image[:, :, 2 - channel]))
    return out.mul_(1 / 255)


@wrong("bgr_to_batch", fails="values, measured", says="called before")
def right_once_and_nothing_from_then_on(images):
    """Holds that only the first call is looked at: later calls would cost bytes."""
    if len(images[0]) > 20:
        return torch.zeros(())
    return index_the_channels(images).contiguous()


@wrong("bgr_to_batch", fails="values", says="exchanged")
def keeps_bgr(images):
    """Takes the channel order of OpenCV for that of everybody else."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255


@wrong("bgr_to_batch", kind=Kind.CRASHED, says="negative")
def negative_stride(images):
    """Reverses with a numpy slice and hands the view to torch."""
    return torch.stack([torch.from_numpy(image[..., ::-1]) for image in images]).permute(0, 3, 1, 2).float() / 255


@right("bgr_to_batch")
def open_cv_swaps_each(images):
    rgb = np.stack([cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGR2RGB) for image in images])
    batch = torch.from_numpy(rgb).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    batch /= 255
    return batch


@right("bgr_to_batch")
def blob_of_open_cv(images):
    return torch.from_numpy(cv2.dnn.blobFromImages(images, scalefactor=1 / 255, swapRB=True))


@right("bgr_to_batch")
def one_float_image_at_a_time(images):
    first = images[0]
    out = torch.empty(len(images), 3, first.shape[0], first.shape[1])
    for i, image in enumerate(images):
        out[i] = torch.from_numpy(image[..., [2, 1, 0]]).permute(2, 0, 1).float() / 255
    return out


@right("bgr_to_batch")
def numpy_transposes_small_numbers(images):
    planes = np.ascontiguousarray(np.stack(images)[..., ::-1].transpose(0, 3, 1, 2))
    floats = planes.astype(np.float32)
    floats *= np.float32(1 / 255)
    return torch.as_tensor(floats)


@right("bgr_to_batch")
def flip_the_stacked_batch(images):
    small = torch.stack([torch.as_tensor(image) for image in images]).permute(0, 3, 1, 2).flip(1)
    return small.contiguous().float().div_(255.0)


@wrong("bgr_to_batch", fails="bytes at peak", says="div_", kind=Kind.WASTEFUL)
def divides_out_of_place(images):
    """The right numbers; `/ 255` makes a second float32 batch beside the first."""
    out = torch.empty((len(images), 3, *images[0].shape[:2]), dtype=torch.float32)
    for i, image in enumerate(images):
        for channel in range(3):
            out[i, channel] = torch.from_numpy(np.ascontiguousarray(image[:, :, 2 - channel]))
    return out / 255


@wrong("bgr_to_batch", fails="bytes at peak", says="uint8", kind=Kind.WASTEFUL)
def collects_floats_then_stacks(images):
    """A list of float images and their stack: everything twice."""
    floats = [torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1).float().div_(255) for image in images]
    return torch.stack(floats)


@wrong("bgr_to_batch", fails="values", says="reshape")
def reshapes_where_it_should_permute(images):
    """The shape is right, so the pixels must be: reshape mixes colours and columns."""
    rgb = np.stack(images)[..., ::-1].copy()
    height, width = rgb.shape[1:3]
    return torch.from_numpy(rgb).reshape(len(images), 3, height, width).float().div_(255)


@wrong("bgr_to_batch", fails="type of the result", says="channels before height")
def transposes_everything(images):
    """`.T` puts the channels first, and the width before the height."""
    return torch.stack([torch.from_numpy(image[..., ::-1].T.copy()) for image in images]).float().div_(255)


@wrong("bgr_to_batch", fails="type of the result", says="float64")
def divides_in_numpy(images):
    """uint8 / 255 is float64 in NumPy."""
    return torch.from_numpy((np.stack(images)[..., ::-1] / 255).transpose(0, 3, 1, 2).copy())


@wrong("bgr_to_batch", fails="values", says="from 0 to 255")
def forgets_the_range(images):
    """float() changes the dtype; the numbers stay what they were."""
    return torch.from_numpy(np.stack(images)[..., ::-1].copy()).permute(0, 3, 1, 2).float().contiguous()


@wrong("bgr_to_batch", fails="values", says="run backwards")
def flips_the_rows(images):
    """[::-1] reverses the first axis: the picture stands on its head, still BGR."""
    upside_down = np.stack([image[::-1] for image in images])
    return torch.from_numpy(upside_down).permute(0, 3, 1, 2).contiguous().float().div_(255)


@wrong("bgr_to_batch", fails="values", says="fractions are gone")
def integer_division_in_place(images):
    """`//=` for `/=`: 255 becomes 1, everything else 0."""
    rgb = np.stack(images)[..., ::-1].copy()
    rgb //= 255
    return torch.from_numpy(rgb).permute(0, 3, 1, 2).contiguous().float()


@wrong("bgr_to_batch", fails="result is contiguous", says="strides", kind=Kind.PARTLY)
def returns_the_permuted_view(images):
    """permute moves nothing: the batch still lies in memory channels last."""
    return torch.from_numpy(np.stack(images)[..., ::-1].copy()).float().div_(255).permute(0, 3, 1, 2)


@wrong("bgr_to_batch", fails="result is contiguous", says="contiguous()", kind=Kind.PARTLY)
def stacks_transposed_views(images):
    """np.stack and astype keep the order in memory of the views that they get."""
    floats = np.stack([image[:, :, ::-1].transpose(2, 0, 1) for image in images]).astype(np.float32)
    floats /= 255
    return torch.from_numpy(floats)


@wrong("bgr_to_batch", fails="inputs left as they were", says="in place")
def swaps_in_the_callers_images(images):
    """Saves the copy, and gives the caller blue faces."""
    for image in images:
        image[...] = image[..., ::-1].copy()
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float().div_(255)


# ------------------------------------------------------------------------------------------- predict_creation
def _creation_table(**changed):
    """The true table as texts, with some rows changed; the keys are short names of the calls."""
    rows = {
        "tensor_a": ("torch.tensor(a)", "copies, float64"),
        "from_numpy": ("torch.from_numpy(a)", "shares, float64"),
        "as_tensor_a": ("torch.as_tensor(a)", "shares, float64"),
        "as_tensor_dtype": ("torch.as_tensor(a, dtype=t.dtype)", "copies, float32"),
        "tensor_list": ("torch.tensor([1, 2, 3])", "copies, int64"),
        "Tensor_list": ("torch.Tensor([1, 2, 3])", "copies, float32"),
        "as_tensor_t": ("torch.as_tensor(t)", "shares, float32"),
        "float_t": ("t.float()", "shares, float32"),
        "to_t": ("t.to(torch.float64)", "copies, float64"),
        "numpy_t": ("t.numpy()", "shares, float32"),
        "zeros_like": ("torch.zeros_like(u)", "copies, uint8"),
        "full": ("torch.full((2, 3), 255)", "copies, int64"),
    }
    return {call: changed.get(name, entry) for name, (call, entry) in rows.items()}


@right("predict_creation", factory=True)
def table_of_texts():
    return _creation_table()


@right("predict_creation", factory=True)
def table_of_lists_with_dtype_names():
    return {call: entry.replace("shares", "Share").split(", ") for call, entry in _creation_table().items()}


@right("predict_creation", factory=True)
def table_in_many_spellings():
    return _creation_table(
        tensor_a=("copy", torch.double),
        from_numpy=["shared", "torch.float64"],
        as_tensor_a=("shares", np.float64),
        tensor_list=("own", torch.long),
        Tensor_list=("copies", "torch.float"),
        numpy_t=("shares", np.dtype("float32")),
        full=("own memory", "long"),
    )


@wrong("predict_creation", fails="torch.tensor(a)", says="wrap the array", factory=True)
def tensor_shares_like_from_numpy():
    """Takes torch.tensor for a wrapper, in the default dtype."""
    return _creation_table(tensor_a=("shares", torch.float32))


@wrong("predict_creation", fails="torch.tensor(a)", says="a is float64", factory=True)
def tensor_casts():
    """The memory is right; the default dtype is not what torch.tensor gives to an array."""
    return _creation_table(tensor_a=("copies", torch.float32))


@wrong("predict_creation", fails="torch.full((2, 3), 255)", says="any memory to share", factory=True)
def full_shares():
    """Reads "shares" as "repeats one number"."""
    return _creation_table(full=("shares", torch.int64))


@wrong("predict_creation", fails="torch.from_numpy(a)", says="dtype", factory=True)
def from_numpy_casts():
    """Believes that from_numpy gives the default dtype."""
    return _creation_table(from_numpy=("shares", torch.float32))


@wrong("predict_creation", fails="torch.as_tensor(a, dtype=t.dtype)", says="wrap the array", factory=True)
def as_tensor_always_shares():
    """Believes that as_tensor shares whatever it is asked for."""
    return _creation_table(as_tensor_dtype=("shares", torch.float32))


@wrong("predict_creation", fails="torch.Tensor([1, 2, 3])", says="Who chooses the dtype", factory=True)
def the_two_tensors_are_one():
    """Takes torch.Tensor for another name of torch.tensor."""
    return _creation_table(Tensor_list=("copies", torch.int64))


@wrong("predict_creation", fails="t.float()", says="Does this one have to", factory=True)
def float_copies_and_to_does_not():
    """The old belief about .float() and .to(): one copies, the other does not."""
    return _creation_table(float_t=("copies", torch.float32), to_t=("shares", torch.float64))


@wrong("predict_creation", fails="t.numpy()", says="t[0] = 9", factory=True)
def numpy_copies_to_float64():
    """Believes that numpy() converts to NumPy's default dtype."""
    return _creation_table(numpy_t=("copies", torch.float64))


@wrong("predict_creation", fails="torch.zeros_like(u)", says="What does _like take over", factory=True)
def everything_is_float32():
    """Believes that zeros and full always make float32."""
    return _creation_table(zeros_like=("copies", torch.float32), full=("copies", torch.float32))


@wrong("predict_creation", fails="torch.tensor(a)", says="another form", factory=True)
def malformed_rows_cost_themselves_only():
    """A bool, a dtype alone, a number: unreadable, and no reason to refuse the other rows."""
    return _creation_table(tensor_a=True, from_numpy=torch.float64, as_tensor_a=("shares", 64), full=(1, 2, 3))


@wrong("predict_creation", fails="torch.as_tensor(t)", says="no prediction", factory=True)
def left_a_row_out():
    """Eleven rows: the twelfth was deleted."""
    table = _creation_table()
    del table["torch.as_tensor(t)"]
    return table


@wrong("predict_creation", fails="type of the table", kind=Kind.WRONG_FORM, factory=True)
def a_list_of_pairs():
    """Replaced the dictionary."""
    return list(_creation_table().items())


# --------------------------------------------------------------------------------------------- shares_storage
@right("shares_storage")
def all_bytes_as_two_arrays(a, b):
    def everything(x):
        if isinstance(x, torch.Tensor):
            return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).numpy()
        owner = x
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        return owner

    return np.may_share_memory(everything(a), everything(b))


@right("shares_storage")
def one_begins_inside_the_other(a, b):
    def start_and_size(x):
        if torch.is_tensor(x):
            return x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
        if isinstance(x.base, np.ndarray):
            return start_and_size(x.base)
        return x.__array_interface__["data"][0], x.nbytes

    p, n = start_and_size(a)
    q, m = start_and_size(b)
    if n == 0 or m == 0:
        return False
    return p <= q < p + n or q <= p < q + m


@wrong("shares_storage", fails="views", says="first element")
def compares_data_ptr(a, b):
    """Equal addresses of the first elements: a slice begins elsewhere."""

    def address(x):
        return x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data

    return address(a) == address(b)


@wrong("shares_storage", fails="disjoint slices", says="no element belongs to both")
def asks_numpy_for_overlap(a, b):
    """np.shares_memory asks for common elements, not for a common block."""

    def array(x):
        return x.detach().numpy() if isinstance(x, torch.Tensor) else x

    return np.shares_memory(array(a), array(b))


@wrong("shares_storage", fails="disjoint slices", says="two were cut from")
def wraps_arrays_and_compares_storages(a, b):
    """The storage of from_numpy(array[2:]) begins at the slice: what the array was cut from is lost."""

    def storage(x):
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x.copy() if min(x.strides) < 0 else x)
        return x.untyped_storage()

    return storage(a).data_ptr() == storage(b).data_ptr() and storage(a).nbytes() > 0


@wrong("shares_storage", fails="views", says="ask the storage")
def compares_values(a, b):
    """Equal numbers are taken for the same memory, others for other memory."""
    return a.shape == b.shape and a.tolist() == b.tolist()


@wrong("shares_storage", fails="copies", says="a history")
def says_yes(a, b):
    """One was made from the other, so they must hang together."""
    return True


@wrong("shares_storage", fails="arrays and from_numpy", says="two libraries")
def libraries_never_share(a, b):
    """Knows the storage of tensors and .base of arrays, and thinks that the two worlds never meet."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return (a if a.base is None else a.base) is (b if b.base is None else b.base)


@wrong("shares_storage", fails="from_numpy of a slice", says="ranges", kind=Kind.PARTLY)
def compares_first_bytes_of_blocks(a, b):
    """Nearly right: the storage of a wrapped slice begins inside the array's block."""

    def start(x):
        if isinstance(x, torch.Tensor):
            return x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
        while isinstance(x.base, np.ndarray):
            x = x.base
        return x.ctypes.data, x.nbytes

    return start(a)[0] == start(b)[0] and min(start(a)[1], start(b)[1]) > 0


@wrong("shares_storage", fails="two that own nothing", says="address of 0", kind=Kind.PARTLY)
def trusts_the_address_zero(a, b):
    """All storages without bytes have the address 0."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    return one_begins_inside_the_other(a, b)


@wrong("shares_storage", fails="an empty slice", says="whole block", kind=Kind.PARTLY)
def no_elements_no_memory(a, b):
    """Takes an empty slice for something that holds no memory."""
    return 0 not in a.shape and 0 not in b.shape and one_begins_inside_the_other(a, b)


@wrong("shares_storage", kind=Kind.CRASHED, says="isinstance")
def forgets_the_arrays(a, b):
    """Written for tensors alone."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@wrong("shares_storage", fails="type of the result", says="yes or a no")
def returns_the_address(a, b):
    """Truthy is not True."""
    return int(one_begins_inside_the_other(a, b))


# ----------------------------------------------------------------------------------------------- wrap_or_copy
@right("wrap_or_copy")
def try_and_copy_on_refusal(array):
    if array.flags.writeable:
        try:
            return torch.from_numpy(array)
        except ValueError:
            pass
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))


@right("wrap_or_copy")
def one_reason_after_the_other(array):
    shareable = array.flags["WRITEABLE"]
    if array.dtype.byteorder not in ("=", "|") and array.dtype != array.dtype.newbyteorder("="):
        array = array.astype(array.dtype.newbyteorder("="))
    if min(array.strides, default=0) < 0 or any(s % array.itemsize for s in array.strides):
        array = array.copy()
    return torch.as_tensor(array) if shareable else torch.tensor(array)


@right("wrap_or_copy")
def through_a_native_copy_into_torch_tensor(array):
    odd = not array.flags.writeable or not array.dtype.isnative
    odd = odd or any(s < 0 or s % array.dtype.itemsize != 0 for s in array.strides)
    if not odd:
        return torch.asarray(array)
    return torch.tensor(array.astype(array.dtype.newbyteorder("native")).copy(order="C"))


@wrong("wrap_or_copy", fails="plain array: sharing", says="copy was made")
def always_copies(array):
    """Safe, and pays for it every time."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


@wrong("wrap_or_copy", kind=Kind.CRASHED, says="negative")
def wraps_everything_writeable(array):
    """Thinks of the lock alone."""
    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array.copy())


@wrong("wrap_or_copy", fails="read-only array: sharing", says="cannot be read-only")
def forgets_the_lock(array):
    """from_numpy only warns: the write-through comes later."""
    try:
        return torch.from_numpy(array)
    except ValueError:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


@wrong("wrap_or_copy", fails="every other column: sharing", says="contiguity is none")
def copies_what_is_not_contiguous(array):
    """Takes gaps for a reason to copy."""
    if array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative and array.shape[-1] > 1:
        return torch.from_numpy(array)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


@wrong("wrap_or_copy", kind=Kind.CRASHED, says="negative")
def ascontiguousarray_cures_all(array):
    """It returns the array itself where only an axis of length 1 is flipped."""
    if not array.flags.writeable:
        array = np.array(array)
    if min(array.strides) < 0:
        array = np.ascontiguousarray(array)
    return torch.from_numpy(array)


@wrong("wrap_or_copy", kind=Kind.CRASHED, says="byte order")
def forgets_the_byte_order(array):
    """Copies, in the same foreign byte order."""
    safe = array.flags.writeable and all(s >= 0 and s % array.itemsize == 0 for s in array.strides)
    return torch.from_numpy(array if safe else array.copy())


@wrong("wrap_or_copy", fails="foreign byte order: values", says="strides and byte order")
def relabels_the_byte_order(array):
    """A view with another byte order reads the same bytes as other numbers."""
    if not array.dtype.isnative:
        array = array.view(array.dtype.newbyteorder("=")).copy()
    return try_and_copy_on_refusal(array)


@wrong("wrap_or_copy", fails="foreign byte order: left alone", says="rewritten")
def swaps_the_callers_bytes(array):
    """byteswap(inplace=True) changes the numbers of everybody who holds the array."""
    if not array.dtype.isnative:
        return torch.tensor(array.byteswap(inplace=True).view(array.dtype.newbyteorder("=")))
    return try_and_copy_on_refusal(array)


@wrong("wrap_or_copy", fails="read-only array: sharing", says="leave it as it is")
def unlocks_the_array(array):
    """The flag can be set back, so why not."""
    if not array.flags.writeable and array.flags.owndata:
        array.flags.writeable = True
    return try_and_copy_on_refusal(array)


@wrong("wrap_or_copy", fails="plain array: type", says="dtype and the shape")
def casts_to_float32(array):
    """A tensor is float32, isn't it?"""
    return try_and_copy_on_refusal(array).float()


@wrong("wrap_or_copy", fails="flipped array: values", says="array's order")
def makes_the_strides_positive(array):
    """Takes the negative stride away and with it the order."""
    if array.flags.writeable and min(array.strides) < 0:
        array = array[tuple(slice(None, None, -1 if s < 0 else 1) for s in array.strides)]
    return try_and_copy_on_refusal(array)


@wrong("wrap_or_copy", kind=Kind.CRASHED, says="own memory")
def never_heard_of_records(array):
    """A field of packed records steps by the size of a record."""
    safe = array.flags.writeable and array.dtype.isnative and min(array.strides) >= 0
    return torch.from_numpy(array if safe else array.astype(array.dtype.newbyteorder("="), order="C"))


@wrong("wrap_or_copy", fails="an array of texts is refused", says="silence", kind=Kind.PARTLY)
def swallows_the_error(array):
    """Returns None for what it cannot convert."""
    try:
        return try_and_copy_on_refusal(array)
    except TypeError:
        return None


# ---------------------------------------------------------------------------------------------- arange_length
def _refuse(start, end, step):
    if step == 0 or (end > start and step < 0) or (end < start and step > 0):
        raise ValueError("the step does not lead to the end")


@right("arange_length")
def floor_of_the_negative(start, end, step):
    _refuse(start, end, step)
    return -math.floor((start - end) / step)


@right("arange_length")
def whole_steps_and_a_rest(start, end, step):
    _refuse(start, end, step)
    steps = (end - start) / step
    return int(steps) + (steps > int(steps))


@right("arange_length")
def numpy_ceil_as_int(start, end, step):
    if step == 0 or np.sign(end - start) * np.sign(step) < 0:
        raise RuntimeError("inconsistent step")
    return int(np.ceil((end - start) / step))


@wrong("arange_length", fails="whole steps", says="not among the values")
def floor_plus_one(start, end, step):
    """The formula for an end that is included."""
    _refuse(start, end, step)
    return math.floor((end - start) / step) + 1


@wrong("arange_length", fails="a last step that is cut short", says="rest")
def int_of_the_quotient(start, end, step):
    """Forgets the value that the rest still holds."""
    _refuse(start, end, step)
    return int((end - start) / step)


@wrong("arange_length", fails="a last step that is cut short", says="rest")
def rounds_to_the_nearest(start, end, step):
    """Right whenever the rest is large."""
    _refuse(start, end, step)
    return round((end - start) / step)


@wrong("arange_length", fails="type of the result", says="math.ceil")
def numpy_ceil(start, end, step):
    """np.ceil gives a float."""
    _refuse(start, end, step)
    return np.ceil((end - start) / step)


@wrong("arange_length", fails="negative step", says="goes down")
def ignores_the_direction(start, end, step):
    """Knows upward steps only."""
    if step == 0:
        raise ValueError("step is 0")
    return max(0, math.ceil((end - start) / abs(step)))


@wrong("arange_length", fails="steps no float can hold", says="not exactly a tenth", kind=Kind.PARTLY)
def rounds_the_noise_away(start, end, step):
    """What a person would count, not what torch counts."""
    _refuse(start, end, step)
    return math.ceil(round((end - start) / step, 9))


@wrong("arange_length", fails="steps no float can hold", says="once", kind=Kind.PARTLY)
def walks_along(start, end, step):
    """Adding the step again and again adds up its error."""
    _refuse(start, end, step)
    n, value = 0, start
    while (value < end) if step > 0 else (value > end):
        n, value = n + 1, value + step
    return n


@wrong("arange_length", fails="impossible steps", says="the sign of the step", kind=Kind.PARTLY)
def refuses_negative_lengths(start, end, step):
    """Looks at the length: a step in the wrong direction that is longer than the way comes out as 0."""
    if step == 0:
        raise ValueError("step is 0")
    n = math.ceil((end - start) / step)
    if n < 0:
        raise ValueError("the step leads away from end")
    return n


@wrong("arange_length", fails="impossible steps", says="raises here", kind=Kind.PARTLY)
def never_less_than_none(start, end, step):
    """Like range: a wrong direction has length 0."""
    return max(0, math.ceil((end - start) / step))


@wrong("arange_length", fails="made to count", says="a tensor", kind=Kind.WASTEFUL)
def counts_the_tensor(start, end, step):
    """Makes a million numbers to count them."""
    return len(torch.arange(start, end, step))


@wrong("arange_length", fails="made to count", says="a tensor", kind=Kind.WASTEFUL)
def counts_on_the_meta_device(start, end, step):
    """No memory, and still a tensor that was made to be counted."""
    return len(torch.arange(start, end, step, device="meta"))


@wrong("arange_length", fails="made to count", says="an array or a list", kind=Kind.WASTEFUL)
def counts_the_array(start, end, step):
    """The same in NumPy."""
    _refuse(start, end, step)
    return len(np.arange(start, end, step))


@wrong("arange_length", fails="made to count", says="an array or a list", kind=Kind.WASTEFUL)
def counts_a_list(start, end, step):
    """The same in a list, with a better formula."""
    _refuse(start, end, step)
    values, i = [], 0
    while i < (end - start) / step:
        values.append(start + i * step)
        i += 1
    return len(values)


@wrong("arange_length", kind=Kind.CRASHED, says="whole number")
def length_of_the_range(start, end, step):
    """range takes whole numbers only."""
    return len(range(start, end, step))


# ----------------------------------------------------------------------------------------- zeros_for_training
@right("zeros_for_training")
def a_parameter(x):
    return torch.nn.Parameter(torch.zeros_like(x))


@right("zeros_for_training")
def switched_on_afterwards(x):
    zeros = torch.empty_like(x)
    zeros.fill_(0.0)
    return zeros.requires_grad_()


@right("zeros_for_training")
def detached_clone_emptied(x):
    return x.detach().clone().zero_().requires_grad_(True)


@wrong("zeros_for_training", fails="requires grad", says="requires_grad=True")
def trusts_like(x):
    """Believes that zeros_like takes over requires_grad."""
    return torch.zeros_like(x)


@wrong("zeros_for_training", fails="type of the result", says="dtype")
def from_the_shape_alone(x):
    """The dtype and the device come from the defaults."""
    return torch.zeros(x.shape, requires_grad=True)


@wrong("zeros_for_training", fails="values", says="inf times 0")
def times_zero(x):
    """inf * 0 is nan, and the product is no leaf."""
    return (x.detach() * 0).requires_grad_()


@wrong("zeros_for_training", fails="is a leaf", says="fills .grad")
def minus_itself(x):
    """A result of x is no leaf if x is in a graph."""
    zeros = torch.where(torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x), x)
    return zeros if zeros.requires_grad else zeros.requires_grad_()


@wrong("zeros_for_training", fails="x left as it was", says="in place")
def empties_x(x):
    """detach shares memory: zero_ empties x."""
    return x.detach().zero_().requires_grad_()


@wrong("zeros_for_training", fails="x left as it was", says="changed")
def turns_x_into_the_zeros(x):
    """Zeros in place, and the switch: the result is right, and the caller's tensor is gone."""
    if x.requires_grad:
        x = x.detach()
    x.zero_()
    x.requires_grad = True
    return x


@wrong("zeros_for_training", fails="order in memory", says="memory format", kind=Kind.PARTLY)
def new_zeros_forget_the_layout(x):
    """new_zeros takes dtype and device from x, not the memory format."""
    return x.new_zeros(x.shape, requires_grad=True)


# ---------------------------------------------------------------------------------------------- strides_after
@right("strides_after")
def running_product_from_the_right(shape, order):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return [strides[axis] for axis in order]


@right("strides_after")
def cumprod_of_numpy(shape, order):
    sizes = np.maximum(np.array(shape, dtype=int), 1)
    strides = np.append(np.cumprod(sizes[:0:-1])[::-1], 1)
    return tuple(strides[list(order)])


@right("strides_after")
def recursive(shape, order):
    def contiguous(sizes):
        if len(sizes) == 1:
            return (1,)
        rest = contiguous(sizes[1:])
        return ((sizes[1] or 1) * rest[0], *rest)

    strides = contiguous(tuple(shape))
    return torch.Size(strides[i] for i in order)


@wrong("strides_after", fails="after permute", says="as it was")
def strides_of_the_new_shape(shape, order):
    """What the strides would be after permute(order).contiguous()."""
    moved = [shape[i] for i in order]
    return tuple(math.prod(max(s, 1) for s in moved[i + 1 :]) for i in range(len(moved)))


@wrong("strides_after", fails="after permute", says="in the order")
def order_the_other_way(shape, order):
    """Sends axis i to place order[i]: the inverse, the same for a single swap."""
    strides = running_product_from_the_right(shape, range(len(shape)))
    out = [0] * len(shape)
    for i, place in enumerate(order):
        out[place] = strides[i]
    return tuple(out)


@wrong("strides_after", fails="before any permute", says="last axis has stride 1")
def in_bytes(shape, order):
    """NumPy counts bytes, torch counts elements."""
    return tuple(4 * s for s in running_product_from_the_right(shape, order))


@wrong("strides_after", fails="before any permute", says="last axis has stride 1")
def first_axis_fastest(shape, order):
    """Column by column, as Fortran and MATLAB store."""
    strides = [math.prod(max(s, 1) for s in shape[:i]) for i in range(len(shape))]
    return tuple(strides[i] for i in order)


@wrong("strides_after", fails="before any permute", says="to its right")
def counts_the_axis_itself(shape, order):
    """Starts the product one axis too early."""
    strides = [math.prod(max(s, 1) for s in shape[i:]) for i in range(len(shape))]
    return tuple(strides[i] for i in order)


@wrong("strides_after", fails="an axis of length 0", says="as 1", kind=Kind.PARTLY)
def zero_eats_the_product(shape, order):
    """A length of 0 makes all strides to its left 0."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(strides[i] for i in order)


@wrong("strides_after", fails="order counted from the end", says="from the end", kind=Kind.PARTLY)
def looks_axes_up_by_name(shape, order):
    """A dictionary knows no -1."""
    strides = dict(enumerate(running_product_from_the_right(shape, range(len(shape)))))
    return tuple(strides.get(axis, 0) for axis in order)


@right("strides_after")
def distances_of_neighbours(shape, order):
    """The place of the element that is one step along an axis, and nowhere else, from the first one."""
    whole = [max(size, 1) for size in shape]

    def place(index):
        at = 0
        for size, i in zip(whole, index, strict=True):
            at = at * size + i
        return at

    units = [[int(i == axis) for i in range(len(shape))] for axis in range(len(shape))]
    return tuple(place(units[axis]) for axis in order)


@wrong("strides_after", fails="made to look at", says="a tensor", kind=Kind.WASTEFUL)
def asks_a_tensor(shape, order):
    """Makes the tensor and reads its strides."""
    return torch.empty(shape).permute(order).stride()


@wrong("strides_after", fails="made to look at", says="an array or a list", kind=Kind.WASTEFUL)
def asks_an_array(shape, order):
    """NumPy's strides, in elements; only a length of 0 must be hidden from it."""
    return np.empty([max(size, 1) for size in shape], np.uint8).transpose(order).strides


@wrong("strides_after", fails="made to look at", says="from shape and order", kind=Kind.WASTEFUL)
def asks_a_meta_tensor(shape, order):
    """No memory, and no insight either."""
    return torch.empty(shape, device="meta").permute(order).stride()


@wrong("strides_after", fails="type of the result", says="whole number")
def divides_down(shape, order):
    """`/` makes floats."""
    step, strides = math.prod(max(s, 1) for s in shape), []
    for size in shape:
        step = step / max(size, 1)
        strides.append(step)
    return tuple(strides[i] for i in order)


# --------------------------------------------------------------------------------------------------- can_view
@right("can_view")
def chunk_by_chunk_from_the_right(shape, stride, new_shape):
    """As torch does it: pair every chunk of old axes with new axes of the same product, from the right."""
    if math.prod(shape) != math.prod(new_shape):
        return False
    if math.prod(shape) == 0:
        return True
    old = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    new = [n for n in new_shape if n != 1]
    while old:
        n, s = old.pop()
        chunk, base = n, s
        while old and old[-1][1] == chunk * base:
            chunk *= old.pop()[0]
        while chunk > 1:
            size = new.pop()
            if chunk % size:
                return False
            chunk //= size
    return True


@right("can_view")
def cuts_between_the_axes(shape, stride, new_shape):
    """Where two axes cannot be merged, the new shape must have a border, too: compare products from the left."""
    if math.prod(shape) != math.prod(new_shape):
        return False
    if math.prod(shape) == 0:
        return True
    axes = [(n, s) for n, s in zip(shape, stride, strict=True) if n > 1]
    borders, before = set(), 1
    for (n, s), (m, t) in itertools.pairwise(axes):
        before *= n
        if s != m * t:
            borders.add(before)
    reached = {math.prod(new_shape[:i]) for i in range(len(new_shape) + 1)}
    return borders <= reached


@right("can_view")
def walks_over_the_addresses(shape, stride, new_shape):
    """The slowest obvious way: the address of every element, and whether the new axes step evenly through them."""
    if math.prod(shape) != math.prod(new_shape):
        return False
    if math.prod(shape) == 0:
        return True
    address = [
        sum(i * s for i, s in zip(index, stride, strict=True)) for index in itertools.product(*map(range, shape))
    ]
    steps = []
    for axis in range(len(new_shape)):
        inner = math.prod(new_shape[axis + 1 :])
        steps.append(address[inner] - address[0] if new_shape[axis] > 1 else 0)
    evenly = [
        sum(i * s for i, s in zip(index, steps, strict=True)) for index in itertools.product(*map(range, new_shape))
    ]
    return [a - address[0] for a in address] == evenly


@wrong("can_view", fails="axes that cannot be merged", says="two")
def compares_the_number_of_elements(shape, stride, new_shape):
    """What reshape asks, not what view asks."""
    return math.prod(shape) == math.prod(new_shape)


@wrong("can_view", fails="not contiguous, and yet", says="not for a contiguous tensor")
def asks_for_contiguity(shape, stride, new_shape):
    """The most common belief about view."""
    step = 1
    for size, s in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and s != step:
            return False
        step *= size
    return math.prod(shape) == math.prod(new_shape)


@wrong("can_view", fails="axes of length 1", says="never stepped along")
def looks_at_the_strides_of_ones(shape, stride, new_shape):
    """Lets the stride of an axis of length 1 forbid a merge."""
    if math.prod(shape) != math.prod(new_shape):
        return False
    if 0 in shape:
        return True
    borders, before = set(), 1
    for i in range(len(shape) - 1):
        before *= shape[i]
        if stride[i] != shape[i + 1] * stride[i + 1]:
            borders.add(before)
    return borders <= {math.prod(new_shape[:i]) for i in range(len(new_shape) + 1)}


@wrong("can_view", fails="expanded", says="stride 0")
def never_views_what_was_expanded(shape, stride, new_shape):
    """Takes stride 0 for a special case."""
    if 0 in stride and tuple(shape) != tuple(new_shape):
        return False
    return cuts_between_the_axes(shape, stride, new_shape)


@wrong("can_view", fails="not contiguous, and yet", says="strides that fit")
def one_step_for_all(shape, stride, new_shape):
    """Either all axes merge into one or nothing works: forgets that a view may keep axes apart."""
    if math.prod(shape) != math.prod(new_shape):
        return False
    axes = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    return tuple(shape) == tuple(new_shape) or all(s == m * t for (_, s), (m, t) in itertools.pairwise(axes))


@wrong("can_view", fails="other numbers of elements", says="products")
def forgets_the_count(shape, stride, new_shape):
    """Looks at the borders alone."""
    axes = [(n, s) for n, s in zip(shape, stride, strict=True) if n > 1]
    borders, before = set(), 1
    for (n, s), (m, t) in itertools.pairwise(axes):
        before *= n
        if s != m * t:
            borders.add(before)
    return borders <= {math.prod(new_shape[:i]) for i in range(len(new_shape) + 1)}


@wrong("can_view", fails="no elements", says="before you look at strides", kind=Kind.PARTLY)
def strides_of_nothing(shape, stride, new_shape):
    """Applies the rule where no step is ever made."""
    if 0 in shape:
        return tuple(shape) == tuple(new_shape)
    return cuts_between_the_axes(shape, stride, new_shape)


@wrong("can_view", fails="tensors made", says="in order to try", kind=Kind.WASTEFUL)
def tries_it_on_the_meta_device(shape, stride, new_shape):
    """A tensor without memory, and without insight."""
    try:
        torch.empty_strided(shape, stride, device="meta").view(new_shape)
    except RuntimeError:
        return False
    return True


@wrong("can_view", fails="tensors made", says="in order to try", kind=Kind.WASTEFUL)
def tries_it(shape, stride, new_shape):
    """Makes the tensor and tries."""
    try:
        torch.empty_strided(shape, stride).view(new_shape)
    except RuntimeError:
        return False
    return True


@wrong("can_view", fails="type of the result", says="True or False")
def returns_the_new_strides(shape, stride, new_shape):
    """Answers another question."""
    return tuple(stride)


# ------------------------------------------------------------------------------------------------ flatten_without_copy
@right("flatten_without_copy")
def view_of_counted_elements(x):
    try:
        return x.view(x.numel())
    except RuntimeError as error:
        raise ValueError("this tensor cannot be flattened without a copy") from error


@right("flatten_without_copy")
def strides_by_hand(x):
    sizes = [(n, s) for n, s in zip(x.shape, x.stride(), strict=True) if n != 1]
    step = sizes[-1][1] if sizes and x.numel() else 1
    reach = step
    for n, stride in reversed(sizes if x.numel() else []):
        if stride != reach:
            raise NotImplementedError("more than one stride")
        reach *= n
    return x.as_strided((x.numel(),), (step,))


@wrong("flatten_without_copy", fails="type of the result", says="return")
def forgets_the_return(x):
    """The view is made and falls down."""
    x.view(-1)


@wrong("flatten_without_copy", fails="a copy is refused", says="no None")
def swallows_the_refusal(x):
    """Turns the error into None: the caller learns of it later, elsewhere."""
    try:
        return x.view(-1)
    except RuntimeError:
        return None


@wrong("flatten_without_copy", fails="a copy is refused", says="No copy")
def reshape_copies_silently(x):
    """Believes that reshape gives a view, as it does for contiguous tensors."""
    return x.reshape(-1)


@wrong("flatten_without_copy", fails="a copy is refused", says="raises by itself")
def contiguous_then_view(x):
    """Follows the advice of the error text of other libraries: contiguous() first."""
    return x.contiguous().view(-1)


@wrong("flatten_without_copy", fails="gaps, and still a view", says="is_contiguous")
def asks_is_contiguous(x):
    """Believes that view needs a contiguous tensor."""
    if not x.is_contiguous():
        raise ValueError("not contiguous")
    return x.view(-1)


@wrong("flatten_without_copy", kind=Kind.WASTEFUL, fails="bytes copied to refuse", says="find out")
def copies_to_find_out(x):
    """Makes the copy and throws it away."""
    flat = x.reshape(-1)
    if flat.data_ptr() != x.data_ptr():
        raise ValueError("this would need a copy")
    return flat


@wrong("flatten_without_copy", fails="a contiguous input", says="Do not clone")
def clone_first(x):
    """Plays safe with a copy."""
    return x.clone().view(-1)


@wrong("flatten_without_copy", fails="a copy is refused", says="No single stride")
def forced_by_as_strided(x):
    """Lays one axis over the memory without asking whether the order is right."""
    return x.as_strided((x.numel(),), (1,))


@wrong("flatten_without_copy", fails="input left as it was", says="end in _")
def resizes_the_argument(x):
    """Takes the in-place name and changes the caller's tensor."""
    return x.resize_(x.numel())


@wrong("flatten_without_copy", fails="unusual shapes", says="-1 works for every shape")
def first_axis_times_the_rest(x):
    """Computes the length from the axes and lets a -1 stand for the rest, which is ambiguous without elements."""
    return x.view(len(x), -1).view(-1)


# ------------------------------------------------------------------------------------------------ to_tokens
@right("to_tokens")
def permute_then_reshape(features):
    n, channels, height, width = features.shape
    return features.permute(0, 2, 3, 1).reshape(n, height * width, channels)


@right("to_tokens")
def position_by_position(features):
    return torch.stack(
        [
            torch.stack([image[:, h, w] for h in range(image.shape[1]) for w in range(image.shape[2])])
            for image in features
        ]
    )


@right("to_tokens")
def movedim_then_flatten(features):
    return features.movedim(1, -1).flatten(1, 2).contiguous()


@right("to_tokens")
def unfold_of_single_pixels(features):
    return torch.nn.functional.unfold(features, kernel_size=1).transpose(1, 2)


@wrong("to_tokens", fails="values", says="a reshape cannot move an axis")
def reshape_only(features):
    """The shape is right: takes reshape for a change of axes."""
    n, channels, height, width = features.shape
    return features.reshape(n, height * width, channels)


@wrong("to_tokens", fails="values", says="down the columns")
def column_after_column(features):
    """Merges width before height."""
    return features.permute(0, 3, 2, 1).flatten(1, 2)


@wrong("to_tokens", fails="values", says="another one's place")
def mixes_the_images(features):
    """Moves the channels away from the front by swapping them with the batch."""
    n, channels, height, width = features.shape
    return features.transpose(0, 1).reshape(n, channels, height * width).transpose(1, 2)


@wrong("to_tokens", fails="type of the result", says="(")
def channels_in_the_middle(features):
    """Flattens and forgets that the channels are last in a token."""
    return features.flatten(2)


@wrong("to_tokens", kind=Kind.CRASHED, says="view never copies")
def view_of_a_crop(features):
    """view instead of reshape: works until the feature map is a crop."""
    n, channels, height, width = features.shape
    return features.view(n, channels, height * width).transpose(1, 2)


@wrong("to_tokens", fails="type of the result", says="One row per position")
def batch_second(features):
    """The order (positions, batch, channels) that MultiheadAttention wants by default."""
    return features.flatten(2).permute(2, 0, 1)


# ------------------------------------------------------------------------------------------------ from_tokens
@right("from_tokens")
def all_sizes_by_name(tokens, height, width):
    n, _, channels = tokens.shape
    return tokens.transpose(1, 2).reshape(n, channels, height, width)


@right("from_tokens")
def split_then_permute(tokens, height, width):
    if height * width != tokens.shape[1]:
        raise ValueError(f"{tokens.shape[1]} tokens do not make {height} x {width}")
    return tokens.reshape(len(tokens), height, width, -1).permute(0, 3, 1, 2).contiguous()


@right("from_tokens")
def fold_of_single_pixels(tokens, height, width):
    return torch.nn.functional.fold(tokens.transpose(1, 2), (height, width), kernel_size=1)


@wrong("from_tokens", fails="values", says="a reshape cannot move an axis")
def reshape_back(tokens, height, width):
    """Takes the reshape into the old shape for the inverse."""
    n, _, channels = tokens.shape
    return tokens.reshape(n, channels, height, width)


@wrong("from_tokens", fails="type of the result", says="in front of the positions")
def height_and_width_swapped(tokens, height, width):
    """Splits into width and height."""
    return tokens.transpose(1, 2).unflatten(2, (width, height))


@wrong("from_tokens", fails="values", says="down the columns")
def splits_the_other_way(tokens, height, width):
    """Splits into width and height, sees the wrong shape and transposes it away."""
    return tokens.transpose(1, 2).unflatten(2, (width, height)).transpose(2, 3)


@wrong("from_tokens", fails="half the height is refused", says="Cut nothing off")
def cuts_the_rest_off(tokens, height, width):
    """Takes as many tokens as the shape asks for and forgets the others."""
    n, _, channels = tokens.shape
    return tokens[:, : height * width].transpose(1, 2).reshape(n, channels, height, width)


@wrong("from_tokens", fails="half the height is refused", says="-1 takes in")
def minus_one_for_the_channels(tokens, height, width):
    """Lets a -1 take in whatever does not fit."""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, height, width)


@wrong("from_tokens", fails="half the height is refused", says="-1 takes in")
def minus_one_for_the_images(tokens, height, width):
    """Makes two images out of one where height and width are too small."""
    return tokens.reshape(-1, height, width, tokens.shape[2]).permute(0, 3, 1, 2)


@wrong("from_tokens", fails="type of the result", says="as a convolution takes them")
def channels_stay_last(tokens, height, width):
    """Splits the positions and forgets the channels."""
    return tokens.unflatten(1, (height, width))


# ------------------------------------------------------------------------------------------------ as_layout
@right("as_layout")
def permute_there_and_back(x, channels_last):
    if not channels_last:
        return x.contiguous()
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


@right("as_layout")
def only_if_it_does_not_hold(x, channels_last):
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    return x if x.is_contiguous(memory_format=wanted) else x.clone(memory_format=wanted)


@right("as_layout")
def copy_into_an_empty_one(x, channels_last):
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    if x.is_contiguous(memory_format=wanted):
        return x
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=wanted).copy_(x)


@wrong("as_layout", fails="strides, to channels_last", says="contiguous() afterwards")
def contiguous_after_all(x, channels_last):
    """Believes that every change of layout must end with contiguous(), which undoes it."""
    return x.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format).contiguous()


@wrong("as_layout", fails="type of the result", says="changes strides only")
def permutes_the_axes(x, channels_last):
    """Takes channels_last for another shape."""
    return x.permute(0, 2, 3, 1).contiguous() if channels_last else x.contiguous()


@wrong("as_layout", fails="a crop", says="with its gaps")
def to_memory_format(x, channels_last):
    """Believes that to(memory_format=...) always gives a dense tensor."""
    return x.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@wrong("as_layout", fails="no needless copy", says="for nothing")
def always_clones(x, channels_last):
    """Copies without looking."""
    return x.clone(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


@wrong("as_layout", fails="strides, to channels_last", says="do not lie in memory")
def layout_as_an_afterthought(x, channels_last):
    """Returns the tensor as it is: the values are the same, after all."""
    return x


@wrong("as_layout", kind=Kind.CRASHED, says="memory_format=")
def format_without_its_name(x, channels_last):
    """contiguous takes its memory_format by name only."""
    return x.contiguous(torch.channels_last if channels_last else torch.contiguous_format)


@wrong("as_layout", kind=Kind.CRASHED, says="memory_format=")
def format_without_its_name_to_to(x, channels_last):
    """to takes devices and dtypes without a name, and a memory_format only with it."""
    return x.to(torch.channels_last if channels_last else torch.contiguous_format)


@wrong("as_layout", fails="values, to channels_last", says="no strides by hand")
def strides_laid_over(x, channels_last):
    """The right strides over memory that is in the other order."""
    n, channels, height, width = x.shape
    if not channels_last:
        return x.as_strided(x.shape, (channels * height * width, height * width, width, 1))
    return x.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))


@wrong("as_layout", fails="values, to channels_last", says="ask for the memory_format")
def reshape_into_the_layout(x, channels_last):
    """Gets the right strides with the wrong values, by a reshape to (N, H, W, C)."""
    if not channels_last:
        return x.contiguous()
    n, channels, height, width = x.shape
    return x.reshape(n, height, width, channels).permute(0, 3, 1, 2)


@wrong("as_layout", fails="strides, back", says="do not lie in memory")
def one_way_only(x, channels_last):
    """Believes that a tensor in channels_last turns back by itself."""
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


# ------------------------------------------------------------------------------------------------ assemble
@right("assemble")
def fill_slices_and_check(batches, total):
    result, at = None, 0
    for batch in batches:
        if at + batch.shape[0] > total:
            raise ValueError("too many rows")
        if result is None:
            result = torch.zeros((total, *batch.shape[1:]), dtype=batch.dtype, device=batch.device)
        result[at : at + batch.shape[0]] = batch
        at += batch.shape[0]
    assert at == total, "too few rows"
    return result


@right("assemble")
def first_batch_apart(batches, total):
    import itertools

    batches = iter(batches)
    first = next(batches)
    result = torch.empty((total, *first.shape[1:]), dtype=first.dtype, device=first.device)
    rest = result
    for batch in itertools.chain([first], batches):
        here, rest = rest.split([len(batch), len(rest) - len(batch)])
        here.copy_(batch)
    if len(rest):
        raise RuntimeError(f"{len(rest)} rows are missing")
    return result


@right("assemble")
def row_by_row(batches, total):
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = batch.new_zeros((total, *batch.shape[1:]))
        for row in batch:
            result[at] = row  # an IndexError where there are too many
            at += 1
    if at < total:
        raise IndexError("too few rows")
    return result


@wrong("assemble", kind=Kind.WASTEFUL, fails="bytes at peak", says="the peak is double")
def list_then_cat(batches, total):
    """Believes that torch.cat frees the batches as it goes."""
    result = torch.cat(list(batches))
    if len(result) != total:
        raise ValueError(f"expected {total} rows, got {len(result)}")
    return result


@wrong("assemble", kind=Kind.WASTEFUL, fails="bytes at peak", says="the peak is double")
def grows_by_cat(batches, total):
    """Appends to a tensor as to a list: every step copies everything again."""
    result = None
    for batch in batches:
        result = batch if result is None else torch.cat([result, batch])
    if len(result) != total:
        raise ValueError(f"expected {total} rows, got {len(result)}")
    return result


@wrong("assemble", kind=Kind.WASTEFUL, fails="bytes at peak", says="the peak is double")
def rows_in_a_list(batches, total):
    """Unpacks into rows and stacks: each row is a view that keeps its whole batch."""
    rows = [row for batch in batches for row in batch]
    if len(rows) != total:
        raise ValueError("wrong number of rows")
    return torch.stack(rows)


@wrong("assemble", fails="type of the result", says="dtype")
def forgets_the_dtype(batches, total):
    """Allocates in the default dtype and lets the copy convert."""
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = torch.empty(total, *batch.shape[1:], device=batch.device)
        result.narrow(0, at, len(batch)).copy_(batch)
        at += len(batch)
    if at != total:
        raise ValueError("wrong number of rows")
    return result


@wrong("assemble", fails="too few rows: an error", says="nothing was said")
def trusts_the_total(batches, total):
    """Returns memory that was never written when rows are missing."""
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = batch.new_empty(total, *batch.shape[1:])
        result.narrow(0, at, len(batch)).copy_(batch)
        at += len(batch)
    return result


@wrong("assemble", fails="too many rows: an error", says="nothing was said")
def stops_when_full(batches, total):
    """Drops what does not fit: a slice past the end is cut short without a word."""
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = batch.new_empty(total, *batch.shape[1:])
        room = batch[: total - at]
        result[at : at + len(room)] = room
        at += len(room)
    if at < total:
        raise ValueError("too few rows")
    return result


@wrong("assemble", fails="values", says="only once")
def walks_twice(batches, total):
    """Counts the rows first and finds the generator empty afterwards."""
    lengths, shape, dtype, device = [], None, None, None
    for batch in batches:
        lengths.append(len(batch))
        shape, dtype, device = batch.shape[1:], batch.dtype, batch.device
    result = torch.full((total, *shape), 7, dtype=dtype, device=device)
    at = 0
    for n, batch in zip(lengths, batches, strict=False):
        result.narrow(0, at, n).copy_(batch)
        at += n
    if sum(lengths) != total:
        raise ValueError("wrong number of rows")
    return result


@wrong("assemble", kind=Kind.CRASHED, says="with for, once")
def takes_it_for_a_list(batches, total):
    """Indexes a generator."""
    result = batches[0].new_empty(total, *batches[0].shape[1:])
    return torch.cat(batches, out=result)


@wrong("assemble", fails="values", says="All values are zero")
def writes_into_a_copy(batches, total):
    """Fills result[rows], an indexed copy, and not the result."""
    result, at = None, 0
    for batch in batches:
        if result is None:
            result = batch.new_zeros(total, *batch.shape[1:])
        result[torch.arange(at, at + len(batch), device=batch.device)].copy_(batch)
        at += len(batch)
    if at != total:
        raise ValueError("wrong number of rows")
    return result


# ------------------------------------------------------------------------------------------------ bytes_kept_alive
@right("bytes_kept_alive")
def length_of_the_storage(tensor):
    return len(tensor.untyped_storage())


@right("bytes_kept_alive")
def elements_of_the_typed_storage(tensor):
    return tensor.storage().size() * tensor.element_size()


@wrong("bytes_kept_alive", fails="a part of a big tensor", says="whole storage alive")
def elements_times_their_size(tensor):
    """Counts what the window shows."""
    return tensor.numel() * tensor.element_size()


@wrong("bytes_kept_alive", fails="a whole tensor", says="40 bytes")
def size_of_the_python_object(tensor):
    """Asks Python, which knows the wrapper only."""
    import sys

    return sys.getsizeof(tensor)


@wrong("bytes_kept_alive", fails="a whole tensor", says="40 bytes")
def bytes_times_bytes(tensor):
    """Takes the size of the untyped storage for a number of elements."""
    return tensor.untyped_storage().size() * tensor.element_size()


@wrong("bytes_kept_alive", fails="a whole tensor", says="40 bytes")
def elements_not_bytes(tensor):
    """Takes the number of elements of the storage for bytes."""
    return tensor.untyped_storage().size() // 4


@wrong("bytes_kept_alive", fails="a part of a big tensor", says="whole storage alive")
def bytes_that_it_spans(tensor):
    """From the first element to the last, as if the rest could be freed."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


@wrong("bytes_kept_alive", fails="empty or loaded", says="Only the storage knows")
def bytes_of_the_base(tensor):
    """Asks _base, which is None for a tensor from a file although it came with a whole storage."""
    return (tensor if tensor._base is None else tensor._base).nbytes


@wrong("bytes_kept_alive", fails="empty or loaded", says="Only the storage knows")
def nothing_without_elements(tensor):
    """Believes that a view without elements holds nothing."""
    return tensor.untyped_storage().nbytes() if tensor.numel() else 0


@wrong("bytes_kept_alive", fails="an expanded row", says="no memory is added")
def adds_the_elements_of_expand(tensor):
    """The larger of the two: wrong where elements share memory."""
    return max(tensor.untyped_storage().nbytes(), tensor.nbytes)


@wrong("bytes_kept_alive", fails="type of the result", says="int")
def number_as_a_tensor(tensor):
    """Returns a tensor that holds the number."""
    return torch.tensor(tensor.untyped_storage().nbytes())


# ------------------------------------------------------------------------------------------------ compact
@right("compact")
def copy_into_a_new_one(tensor):
    if tensor.untyped_storage().size() <= tensor.numel() * tensor.element_size():
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


@right("compact")
def early_return_and_detach(tensor):
    spare = tensor.untyped_storage().nbytes() - tensor.nbytes
    if spare > 0:
        tensor = tensor.detach().contiguous().clone()
    return tensor


@wrong("compact", fails="bytes kept by a part", says="only a real copy helps")
def contiguous_is_enough(tensor):
    """Believes that contiguous() always copies; a slice of rows is contiguous already."""
    return tensor.contiguous()


@wrong("compact", fails="bytes kept by a part", says="only a real copy helps")
def deepcopy_takes_the_storage(tensor):
    """Believes that a deep copy copies the elements; it copies the whole storage."""
    import copy

    return copy.deepcopy(tensor) if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


@wrong("compact", fails="bytes kept by a part", says="still holds the storage")
def detach_lets_go(tensor):
    """Believes that detach cuts the tie to the base: it cuts the graph, not the memory."""
    return tensor.detach()


@wrong("compact", fails="no needless copy", says="doubled the memory")
def always_clone(tensor):
    """Copies whole tensors, too."""
    return tensor.clone()


@wrong("compact", fails="no needless copy", says="doubled the memory")
def storage_differs_from_elements(tensor):
    """Asks for a difference where it should ask for more: expand has a smaller storage than elements."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


@wrong("compact", fails="no needless copy", says="doubled the memory")
def copies_every_view(tensor):
    """Takes every view for a part: a transpose keeps nothing that it does not need."""
    return tensor if tensor._base is None and tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


@wrong("compact", fails="bytes kept by an odd part", says="for every tensor")
def trusts_the_base(tensor):
    """A tensor from a file has no base and may still hold a big storage."""
    base = tensor._base
    return tensor if base is None or base.numel() <= tensor.numel() else tensor.clone()


@wrong("compact", fails="bytes kept by a part", says="still holds the storage")
def looks_at_the_offset(tensor):
    """Takes a part that starts at the beginning for a whole."""
    return tensor if tensor.storage_offset() == 0 else tensor.clone()


@wrong("compact", fails="tensor left as it was", says="other memory")
def moves_the_argument(tensor):
    """Hangs a copy behind the caller's name: whoever wrote through it into the big tensor no longer does."""
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        tensor.data = tensor.clone()
    return tensor


@wrong("compact", fails="type of the result", says="no other dtype")
def through_a_list(tensor):
    """Rebuilds the tensor from numbers and loses its dtype."""
    return torch.tensor(tensor.tolist(), dtype=torch.float16)


# ------------------------------------------------------------------------------------------------ frame_difference
@right("frame_difference")
def through_int16(a, b):
    return (a.to(torch.int16) - b.to(torch.int16)).abs().to(torch.uint8)


@right("frame_difference")
def where_the_larger_is(a, b):
    return torch.where(a > b, a - b, b - a)


@right("frame_difference")
def opencv_saturates(a, b):
    return torch.from_numpy(cv2.absdiff(a.numpy(), b.numpy()))


@right("frame_difference")
def numpy_int16(a, b):
    difference = a.numpy().astype(np.int16)
    difference -= b.numpy()
    return torch.from_numpy(np.abs(difference, out=difference).astype(np.uint8))


@right("frame_difference")
def int32_in_place(a, b):
    return a.int().sub_(b).abs_().byte()


@wrong("frame_difference", fails="values", says="went round")
def absolute_value_too_late(a, b):
    """a - b has gone round at 0 before abs sees it."""
    return (a - b).abs()


@wrong("frame_difference", fails="values", says="went round")
def signed_but_narrow(a, b):
    """int8 is signed, and ends at 127."""
    return (a.to(torch.int8) - b.to(torch.int8)).abs().to(torch.uint8)


@wrong("frame_difference", fails="values", says="cut off")
def cut_off_below_zero(a, b):
    """Prevents the wrap by cutting, and loses one direction."""
    return (a.short() - b.short()).clamp(0, 255).to(torch.uint8)


@wrong("frame_difference", fails="type of the result", says="so is their difference")
def stays_in_numpy(a, b):
    """The numbers are right, in an array."""
    return cv2.absdiff(a.numpy(), b.numpy())


@wrong("frame_difference", fails="type of the result", says="come back to uint8")
def stays_in_int16(a, b):
    """Computes right and forgets the way back."""
    return (a.short() - b.short()).abs()


@wrong("frame_difference", kind=Kind.WASTEFUL, fails="bytes at peak", says="four times")
def floats_for_safety(a, b):
    """Two whole frames in float32."""
    return (a.float() - b.float()).abs().to(torch.uint8)


@wrong("frame_difference", kind=Kind.WASTEFUL, fails="bytes at peak", says="four times")
def numpy_int32(a, b):
    """Two whole frames in int32, on the side of NumPy, with int64 for good measure."""
    return torch.from_numpy(np.abs(a.numpy().astype(np.int64) - b.numpy()).astype(np.uint8))


@wrong("frame_difference", fails="inputs left as they were", says="overwritten")
def subtracts_in_place(a, b):
    """Saves memory with the caller's frame."""
    low = torch.minimum(a, b)
    return torch.maximum(a, b, out=a).sub_(low)


# ------------------------------------------------------------------------------------------------ to_opencv
@right("to_opencv")
def opencv_swaps_the_channels(image):
    rgb = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)


@right("to_opencv")
def numpy_all_the_way(image):
    array = np.rint(image.numpy() * 255).clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(array.transpose(1, 2, 0)[..., ::-1])


@right("to_opencv")
def half_added_and_merged(image):
    red, green, blue = image.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8).contiguous().numpy()
    return cv2.merge([blue, green, red])


@right("to_opencv")
def indexed_channels(image):
    return image[[2, 1, 0]].permute(1, 2, 0).mul(255).round().clamp(0, 255).byte().contiguous().numpy()


@wrong("to_opencv", fails="values", says="exchanged")
def keeps_rgb(image):
    """Takes the channel order of everybody else for that of OpenCV."""
    return image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


@wrong("to_opencv", fails="values", says="cut off")
def truncates(image):
    """Believes that the change to uint8 rounds."""
    return image.flip(0).mul(255).clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


@wrong("to_opencv", fails="values", says="other end")
def does_not_clip(image):
    """Believes that the change to uint8 saturates, as in OpenCV."""
    return image.flip(0).mul(255).round().to(torch.int32).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


@wrong("to_opencv", fails="OpenCV draws into it", says="without gaps or odd strides")
def negative_stride_at_the_end(image):
    """Reverses the channels with a numpy slice and stops there."""
    return image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()[..., ::-1]


@wrong("to_opencv", fails="OpenCV draws into it", says="copy once")
def array_with_strides_of_the_tensor(image):
    """permute and numpy: OpenCV reads this, and refuses to draw into it."""
    return image.flip(0).mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


@wrong("to_opencv", fails="input left as it was", says="in-place")
def scales_the_callers_image(image):
    """mul_ on the argument."""
    return image.mul_(255).round().clamp(0, 255).byte().flip(0).permute(1, 2, 0).contiguous().numpy()


@wrong("to_opencv", fails="type of the result", says="permute the axes")
def axes_as_they_were(image):
    """Forgets that OpenCV wants the channels last."""
    return image.flip(0).mul(255).round().clamp(0, 255).byte().numpy()


@wrong("to_opencv", fails="values", says="255")
def nearly_black(image):
    """Changes the dtype of numbers from 0 to 1: nearly black."""
    return image.flip(0).clamp(0, 1).round().byte().permute(1, 2, 0).contiguous().numpy()
