"""Memory in exact bytes, the same on every machine.

A :class:`MemoryMeter` is a dispatch mode: it sees every operator below autograd, and counts the
storages that operators create and the moments when they are freed. No clock and no operating system is
asked, so two runs give the same figure, on a laptop and on a GPU. It does not see scratch space that lives
and dies inside one operator (a convolution's workspace); ``torch.cuda.max_memory_allocated`` does.

Arrays that NumPy or OpenCV allocate are no tensors; ``memory(numpy=True)`` adds them, through ``tracemalloc``,
which NumPy reports its buffers to. That figure also holds Python's own objects, a few KiB that differ from run to run.

Python's garbage collector is switched off inside the block: otherwise reference cycles would be freed at
moments that differ from run to run.
"""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

__all__ = ["MemoryMeter", "bytes_saved_for_backward", "memory", "storage_bytes"]

# Names of attributes, one for each open block. They are used again: a new name in each block would fill the interpreter's
# table of names, and where that grows inside a block, MiBs of it would be traced as if they were an array's.
_TAGS: list[str] = []
_METERS = itertools.count()
_SEE_NUMPY: list[MemoryMeter] = []  # the open blocks that count NumPy's arrays, too
_OPEN: list[MemoryMeter] = []
_STARTS: list[Callable[[threading.Thread], None]] = []  # how threads start where no block is open
_START = threading.Thread._bootstrap_inner


class _Ref(weakref.ref):
    """A reference to a storage that knows the storage's number."""

    __slots__ = ("key",)


def _counted(thread: threading.Thread) -> None:
    """A thread that starts inside of open blocks: modes belong to one thread, and its bytes count as well."""
    for meter in _OPEN:
        _push_mode(meter)
    (_STARTS[-1] if _STARTS else _START)(thread)


def storage_bytes(*tensors: torch.Tensor) -> int:
    """Bytes of the distinct storages behind ``tensors``: two views of one storage count once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of tensor storages that are born and die inside a ``with`` block.

    Attributes
    ----------
    peak : int
        The most bytes that were alive at once, above the level at the start of the block.
    allocated : int
        All bytes ever born inside the block.
    storages : int
        How many storages were born inside the block, those on the meta device too.
    peak_operator : str
        The operator that reached the peak, such as ``aten.add.Tensor``.
    """

    def __init__(self, numpy: bool = False) -> None:
        super().__init__()
        self.peak = self.allocated = self.storages = self._current = 0
        self.peak_operator = ""
        self._numpy = numpy
        self._numpy_base = 0
        # Plain references, not weakref.finalize: its table is shared by the whole process, and where that grows
        # inside the block, tens of KiB of it are traced as if they were an array's.
        self._live: dict[int, tuple[_Ref, int, int]] = {}  # storage, size, bytes counted
        # A storage's death calls the method of a list. A function of the meter's would lead whoever asks the storage for
        # its references to the meter.
        self._dead: list[_Ref] = []
        self._lock = threading.RLock()
        self._births = 0
        self._tag = ""  # one of its own: nested meters count the same storages
        self._collector_was_on = self._started_tracing = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, torch's default, imports torch._dynamo at the first use: about a second

    @property
    def current(self) -> int:
        """Bytes born inside the block that are still alive."""
        self._bury()
        return self._current

    def __enter__(self) -> MemoryMeter:
        self._tag = _TAGS.pop() if _TAGS else f"_meter{next(_METERS)}"
        self._collector_was_on = gc.isenabled()
        gc.disable()
        if self._numpy:
            self._started_tracing = not tracemalloc.is_tracing()
            if self._started_tracing:
                tracemalloc.start()
            self._see_numpy()
            self._traced = bytearray(1)  # no longer, if tracing is stopped or cleared meanwhile
            self._numpy_base = tracemalloc.get_traced_memory()[0]
            _SEE_NUMPY.append(self)
        if not _OPEN:
            _STARTS.append(threading.Thread._bootstrap_inner)
            threading.Thread._bootstrap_inner = _counted
        _OPEN.append(self)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        taken_off = self._leave(error)
        _OPEN.remove(self)
        if not _OPEN:
            start = _STARTS.pop()
            if threading.Thread._bootstrap_inner is _counted:
                threading.Thread._bootstrap_inner = start
            else:  # replaced inside the block, by what may call it later
                _STARTS.append(start)
        self._bury()
        if self._collector_was_on:
            gc.enable()
        for reference, *_ in self._live.values():
            storage = reference()
            if storage is not None and hasattr(storage, self._tag):
                delattr(storage, self._tag)
        self._live.clear()  # and with the references their callbacks
        _TAGS.append(self._tag)
        self._tag = ""
        if self._numpy:
            self._see_numpy()
            _SEE_NUMPY.remove(self)
            stopped = tracemalloc.get_object_traceback(self._traced) is None
            if self._started_tracing:
                tracemalloc.stop()
            if stopped and error[0] is None:
                raise RuntimeError("tracemalloc was stopped inside the measured block: leave it on there")
        if taken_off and error[0] is None:
            raise RuntimeError("the meter was taken off inside the measured block: leave its dispatch mode on there")

    def _leave(self, error: tuple[object, ...]) -> bool:
        """Take the mode off, and no other's; whether it was off already."""
        C = torch._C
        above = []
        modes = [C._get_dispatch_stack_at(i) for i in range(C._len_torch_dispatch_stack())]
        taken_off = not any(mode is self for mode in modes)
        if taken_off:
            _push_mode(self)
        while C._get_dispatch_stack_at(C._len_torch_dispatch_stack() - 1) is not self:
            above.insert(0, _pop_mode())
        super().__exit__(*error)
        for mode in above:
            _push_mode(mode)
        return taken_off

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():
            # Under inference mode composite operators arrive whole; take them apart to see what they allocate.
            TorchDispatchMode.__enter__(self)  # and not our own: that begins a new block
            try:
                result = func.decompose(*args, **kwargs)
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
            if result is not NotImplemented:
                return result
        if self._numpy:
            self._see_numpy()
        for tensor in _tensors((args, kwargs)):
            self._meet(tensor, func, born=False)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._meet(tensor, func, born=True)
        return result

    def _meet(self, tensor: torch.Tensor, func: Any, born: bool) -> None:
        if not self._tag:  # a thread that has outlived the block
            return
        with self._lock:
            self._count(tensor, func, born)

    def _count(self, tensor: torch.Tensor, func: Any, born: bool) -> None:
        self._bury()
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse and other tensors without a storage
            return
        size = storage.nbytes()
        # The tag sits on the storage's Python object, which lives as long as the memory does. Addresses
        # would not do: the allocator hands them out again.
        key = getattr(storage, self._tag, None)
        if key is None:
            self._births += 1
            key = self._births
            setattr(storage, self._tag, key)
            # A storage that is first met as an argument is older than the block, or NumPy's: it counts for nothing.
            reference = _Ref(storage, self._dead.append)
            reference.key = key
            self._live[key] = (reference, size, size if born else 0)
            grown = size if born else 0
            self.storages += born
        else:
            reference, before, counted = self._live[key]
            grown = size - before  # resize_ of a storage that is known already
            self._live[key] = (reference, size, counted + grown)
        self._current += grown
        self.allocated += max(grown, 0)
        arrays = tracemalloc.get_traced_memory()[0] - self._numpy_base if self._numpy else 0
        if self._current + arrays > self.peak:
            self.peak, self.peak_operator = self._current + arrays, str(func)

    @staticmethod
    def _see_numpy() -> None:
        """Take in the most that NumPy held since the last operator, while the tensors stayed as they were."""
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        for meter in _SEE_NUMPY:
            held = meter.current + most - meter._numpy_base
            if held > meter.peak:
                meter.peak, meter.peak_operator = held, "numpy"

    def _bury(self) -> None:
        """Take off what has been freed since."""
        while self._dead:
            reference = self._dead.pop()
            # The list is within everybody's reach: only what is really dead counts.
            if (
                type(reference) is _Ref
                and reference() is None
                and self._live.get(reference.key, (None,))[0] is reference
            ):
                self._current -= self._live.pop(reference.key)[2]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _tensors(branch)
    elif isinstance(tree, dict):
        for branch in tree.values():
            yield from _tensors(branch)


@contextmanager
def memory(numpy: bool = False) -> Iterator[MemoryMeter]:
    """Measure the block: ``with memory() as used: ...`` and then read ``used.peak`` and ``used.current`` (bytes).

    Parameters
    ----------
    numpy : bool
        Also count what NumPy allocates at the peak.

    Raises
    ------
    RuntimeError
        With ``numpy``, at the end of a block that has stopped ``tracemalloc``.
    """
    with MemoryMeter(numpy) as meter:
        yield meter


@dataclass(frozen=True)
class Saved:
    """What autograd keeps for the backward pass.

    Attributes
    ----------
    bytes : int
        Bytes of the distinct storages that were saved; parameters and their views are left out, they exist anyway.
    tensors : int
        How many tensors were saved, parameters left out.
    kept : int
        Bytes of those that were still saved when the function had returned: the rest hung on a graph that nothing holds.
    result : Any
        What the function returned, so that its graph stays alive while it is looked at.
    """

    bytes: int
    tensors: int
    kept: int
    result: Any


@dataclass(frozen=True)
class _Held:
    tensor: torch.Tensor


def bytes_saved_for_backward(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Saved:
    """Run ``function(*args, **kwargs)`` and count the bytes that autograd saves meanwhile.

    Returns
    -------
    Saved
        ``.bytes``: all that was saved on the way. ``.kept``: what is still saved when the function has returned and its
        result is held. ``.tensors``: how many tensors were saved. ``.result``: what the function returned. Parameters
        (``nn.Parameter``) and their views count nowhere.

    Source: ``torch.autograd.graph.saved_tensors_hooks``.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    held: list[weakref.ref[_Held]] = []

    def pack(tensor: torch.Tensor) -> _Held:
        # Linear saves its weight transposed: a view, whose base is the parameter.
        parameter = isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)
        # In a wrapper that the graph alone holds: the tensor itself may live on for other reasons. And detached: a node
        # that holds its own output, with the graph behind it, is a cycle that nothing ever frees.
        kept = _Held(tensor if parameter else tensor.detach())
        if not parameter:
            held.append(weakref.ref(kept))
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        result = function(*args, **kwargs)
    alive = storage_bytes(*[kept.tensor for ref in held if (kept := ref()) is not None])
    saved = sum(storage.nbytes() for storage in storages.values())
    storages.clear()  # the graph holds pack, and pack this dictionary: nothing shall live longer for having been counted
    return Saved(saved, len(held), alive, result)
