"""Keeps what an answer prints, warns about and leaves behind out of the notebook and out of the next check.

nbgrader gives 0 to a right answer whose cell writes anything to stderr, and PyTorch warns often: from Python, through
``logging``, from C++ on file descriptor 2. The guard catches all of these; warnings come back as remarks.
"""

from __future__ import annotations

import io
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._device import DeviceContext

from course_utils.compat import default_device, pop_saved_tensors_hooks, push_saved_tensors_hooks
from course_utils.observe.firm import firm_methods

__all__ = ["Guarded", "guard"]

MAX_REMARKS = 5
MAX_OUTPUT = 4_000  # characters of what an answer prints


@dataclass
class Guarded:
    """What the guard has caught. Filled when the block is left.

    Attributes
    ----------
    remarks : list of str
        Warnings, and what was found or put back; each one line.
    output : str
        What was written to stdout, at most ``MAX_OUTPUT`` characters.
    """

    remarks: list[str] = field(default_factory=list)
    output: str = ""

    def remark(self, text: str) -> None:
        line = " ".join(text.split())
        if line and line not in self.remarks and len(self.remarks) < MAX_REMARKS:
            self.remarks.append(line)


# ------------------------------------------------------------------------------------------------ settings
# name -> (read, write, the standard value, how a person puts it right)
def _set_device(value: torch.device | None) -> None:
    torch.set_default_device(None if value in (None, torch.device("cpu")) else value)


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*value)


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the folder was deleted: nothing to come back to
        return None


def _simulated_gpu_is_on() -> bool:
    simgpu = sys.modules.get("course_utils.simgpu")  # not loaded: nobody can have switched it on
    return simgpu is not None and simgpu.is_enabled()


def _switch_simulated_gpu(on: bool) -> None:
    from course_utils import simgpu

    simgpu.enable() if on else simgpu.disable()


SETTINGS: dict[str, tuple[Any, Any, Any, str]] = {
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled, True, "torch.set_grad_enabled(True)"),
    "default dtype": (
        torch.get_default_dtype,
        torch.set_default_dtype,
        torch.float32,
        "torch.set_default_dtype(torch.float32)",
    ),
    "default device": (default_device, _set_device, torch.device("cpu"), "torch.set_default_device(None)"),
    "anomaly mode": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _set_anomaly,
        (False, True),
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "deterministic mode": (
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        0,
        "torch.use_deterministic_algorithms(False)",
    ),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
        False,
        'torch.set_autocast_enabled("cpu", False)',
    ),
    "precision of matrix products": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "highest",
        'torch.set_float32_matmul_precision("highest")',
    ),
    "inference mode": (torch.is_inference_mode_enabled, lambda on: None, None, ""),  # see _settings
    "simulated GPU": (_simulated_gpu_is_on, _switch_simulated_gpu, None, ""),
    "number of threads": (torch.get_num_threads, torch.set_num_threads, None, ""),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit, None, ""),
    "working folder": (_working_folder, os.chdir, None, ""),
    "NumPy's error handling": (np.geterr, lambda value: np.seterr(**value), None, ""),
    "NumPy's print options": (np.get_printoptions, lambda value: np.set_printoptions(**value), None, ""),
}

# Every place where a hook for all modules, or all optimizers, can be left behind.
_GLOBAL_HOOKS = [
    (module, name)
    for module in (module_hooks, optimizer_hooks)
    for name, value in vars(module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]


@contextmanager
def _hooks(caught: Guarded) -> Iterator[None]:
    """Run the block without the notebook's global hooks; put them back, and nothing else, afterwards."""
    tables = [getattr(module, name) for module, name in _GLOBAL_HOOKS]
    before = [dict(table) for table in tables]
    kind = module_hooks._global_is_full_backward_hook
    if any(before):
        caught.remark("global hooks are set in this notebook; the check set them aside.")
    for table in tables:  # emptied in place: their handles point at them
        table.clear()
    module_hooks._global_is_full_backward_hook = None
    try:
        yield
    finally:
        if any(tables):
            caught.remark("your code left a global hook behind; the check removed it.")
        for table, then in zip(tables, before, strict=True):
            table.clear()
            table.update(then)
        module_hooks._global_is_full_backward_hook = kind


def take_saved_tensors_hooks() -> list[tuple[Any, Any]]:
    """Switch off every pair of saved-tensors hooks that is on, and return the pairs, the outermost first.

    While a pair is on, PyTorch does not compare version counters: a spoilt graph runs backward without an error.
    """
    pairs = []
    while (pair := pop_saved_tensors_hooks()) is not None:
        pairs.insert(0, pair)
    return pairs


@contextmanager
def _saved_tensors_hooks(caught: Guarded) -> Iterator[None]:
    """Run the block without the notebook's saved-tensors hooks; put them back, and nothing else, afterwards."""
    before = take_saved_tensors_hooks()
    if before:
        caught.remark("saved_tensors_hooks are on in this notebook; the check set them aside. Leave their block.")
    try:
        yield
    finally:
        if take_saved_tensors_hooks():
            caught.remark("your code left saved_tensors_hooks switched on; the check switched them off.")
        for pair in before:
            push_saved_tensors_hooks(*pair)


def _is_the_courses(mode: Any) -> bool:
    simgpu = sys.modules.get("course_utils.simgpu.mode")
    return type(mode) is DeviceContext or (simgpu is not None and type(mode) is simgpu.SimulatedBackend)


def _take_modes() -> list[tuple[Any, list[Any]]]:
    """Leave every function and dispatch mode but the course's own; with each stack's push, the modes that were left."""
    C = torch._C
    taken = []
    for length, pop, push in (
        (C._len_torch_function_stack, C._pop_torch_function_stack, C._push_on_torch_function_stack),
        (C._len_torch_dispatch_stack, lambda: C._pop_torch_dispatch_stack(None), C._push_on_torch_dispatch_stack),
    ):
        modes = [pop() for _ in range(length())][::-1]
        for mode in filter(_is_the_courses, modes):
            push(mode)
        taken.append((push, [mode for mode in modes if not _is_the_courses(mode)]))
    return taken


@contextmanager
def _modes(caught: Guarded) -> Iterator[None]:
    """Run the block without the notebook's TorchFunctionMode or TorchDispatchMode: one left on would answer the check."""
    before = _take_modes()
    if any(modes for _, modes in before):
        caught.remark("a function or dispatch mode is on in this notebook; the check set it aside. Leave its block.")
    try:
        yield
    finally:
        if any(modes for _, modes in _take_modes()):
            caught.remark("your code left a function or dispatch mode switched on; the check switched it off.")
        for push, modes in before:
            for mode in modes:
                push(mode)


@contextmanager
def _random_state() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def _settings(caught: Guarded) -> Iterator[None]:
    """Run the block under the standard settings; leave the notebook with its own."""
    before = {name: read() for name, (read, *_) in SETTINGS.items()}
    if before["inference mode"]:
        caught.remark("inference mode is on in this notebook; the check set it aside. Leave its block first.")
    # Nothing writes inference mode but entering it, and leaving it puts back what was there.
    with torch.inference_mode(False):
        for name, (_, write, standard, cure) in SETTINGS.items():
            if standard is not None and before[name] != standard:
                if name != "grad mode" or not before["inference mode"]:  # one remark for the two
                    caught.remark(f"{name} is changed in this notebook; the check set it aside. {cure} puts it right.")
                write(standard)
        inside = {name: read() for name, (read, *_) in SETTINGS.items()}
        try:
            yield
        finally:
            for name, (read, write, *_) in SETTINGS.items():
                # A setting that cannot be read or written any more must not keep the others from being put back.
                with suppress(Exception):
                    now = read()
                    if now != inside[name]:
                        caught.remark(f"your code changed the {name} and did not put it back; the check did.")
                    if now != before[name]:
                        write(before[name])
    if torch.is_grad_enabled() != before["grad mode"]:
        torch.set_grad_enabled(before["grad mode"])


@contextmanager
def _logging(caught: Guarded) -> Iterator[None]:
    """Catch log records before any handler: handlers made earlier hold the real stderr."""
    original = logging.Logger.callHandlers

    def catch(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            with suppress(Exception):  # a record whose arguments do not fit its text is the student's business
                caught.remark(f"{record.levelname.lower()}: {record.getMessage()}"[:300])

    logging.Logger.callHandlers = catch
    try:
        yield
    finally:
        logging.Logger.callHandlers = original


class _Capped(io.StringIO):
    """Takes everything and keeps the beginning: a loop that prints must not fill the memory."""

    def write(self, text: str) -> int:
        if not self.closed and self.tell() <= MAX_OUTPUT:
            super().write(text[: MAX_OUTPUT + 1])
        return len(text)

    def close(self) -> None:
        """Stays open: what an answer has written before it closed its stdout is still to be read."""


def _duplicate(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except (
        OSError
    ):  # closed in this notebook; afterwards it leads nowhere, which is better than to the next file opened
        nowhere = os.open(os.devnull, os.O_WRONLY)
        return os.dup(nowhere) if nowhere == descriptor else nowhere


@contextmanager
def _streams(caught: Guarded) -> Iterator[None]:
    """Catch ``sys.stdout``, ``sys.stderr`` and file descriptor 2 (C++ code and child processes)."""
    out, err = _Capped(), _Capped()
    stdout, stderr = sys.stdout, sys.stderr
    with suppress(Exception):
        stderr.flush()
    saved = _duplicate(2)
    with tempfile.TemporaryFile() as low:
        os.dup2(low.fileno(), 2)
        sys.stdout, sys.stderr = out, err
        try:
            yield
        finally:
            sys.stdout, sys.stderr = stdout, stderr
            os.dup2(saved, 2)
            os.close(saved)
            low.seek(0)
            written = low.read(MAX_OUTPUT).decode(errors="replace")
            for line in (err.getvalue() + "\n" + written).splitlines():
                caught.remark(line[:300])
            text = out.getvalue()
            caught.output = text if len(text) <= MAX_OUTPUT else text[:MAX_OUTPUT] + "\n[the rest was cut]\n"


@contextmanager
def guard() -> Iterator[Guarded]:
    """Run a block of foreign code: nothing reaches stdout or stderr, and no state is left changed."""
    caught = Guarded()
    shown: list[warnings.WarningMessage] = []
    try:
        with (
            _streams(caught),
            _logging(caught),
            _random_state(),
            _hooks(caught),
            _saved_tensors_hooks(caught),
            firm_methods(),  # around the settings: the simulated GPU replaces some of these methods
            _settings(caught),
            _modes(caught),
            warnings.catch_warnings(record=True) as shown,
        ):
            warnings.simplefilter("default")
            yield caught
    finally:
        for warning in shown:
            with suppress(Exception):  # the text of a warning may be an object of the student's
                caught.remark(f"{warning.category.__name__}: {warning.message}"[:300])
