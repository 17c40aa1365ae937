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


SETTINGS: dict[str, tuple[Any, Any, Any, str]] = {
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled, True, "torch.set_grad_enabled(True)"),
    "default dtype": (
        torch.get_default_dtype,
        torch.set_default_dtype,
        torch.float32,
        "torch.set_default_dtype(torch.float32)",
    ),
    "default device": (torch.get_default_device, _set_device, torch.device("cpu"), "torch.set_default_device(None)"),
    "anomaly mode": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _set_anomaly,
        (False, True),
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "deterministic mode": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        False,
        "torch.use_deterministic_algorithms(False)",
    ),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
        False,
        'torch.set_autocast_enabled("cpu", False)',
    ),
    "number of threads": (torch.get_num_threads, torch.set_num_threads, None, ""),
    "working folder": (os.getcwd, os.chdir, None, ""),
    "NumPy's error handling": (np.geterr, lambda value: np.seterr(**value), None, ""),
    "NumPy's print options": (np.get_printoptions, lambda value: np.set_printoptions(**value), None, ""),
}


def _simulated_gpu_is_on() -> bool:
    simgpu = sys.modules.get("course_utils.simgpu")  # not loaded: nobody can have switched it on
    return simgpu is not None and simgpu.is_enabled()


def _switch_simulated_gpu(on: bool) -> None:
    from course_utils import simgpu

    simgpu.enable() if on else simgpu.disable()


SETTINGS["simulated GPU"] = (_simulated_gpu_is_on, _switch_simulated_gpu, None, "")

_GLOBAL_HOOKS = [name for name in vars(module_hooks) if name.startswith("_global_") and "hooks" in name]


@contextmanager
def _settings(caught: Guarded) -> Iterator[None]:
    """Run the block under the standard settings; leave the notebook with its own."""
    before = {}
    for name, (read, write, standard, cure) in SETTINGS.items():
        before[name] = read()
        if standard is not None and before[name] != standard:
            caught.remark(f"{name} is changed in this notebook; the check set it aside. {cure} puts it right.")
            write(standard)
    inside = {name: read() for name, (read, *_) in SETTINGS.items()}
    hooks = {name: dict(getattr(module_hooks, name) or {}) for name in _GLOBAL_HOOKS}
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        for name, (read, write, *_) in SETTINGS.items():
            # A setting that cannot be read or written any more must not keep the others from being put back.
            with suppress(Exception):
                if read() != inside[name]:
                    caught.remark(f"your code changed the {name} and did not put it back; the check did.")
                if read() != before[name]:
                    write(before[name])
        for name, then in hooks.items():
            now = getattr(module_hooks, name)
            if now and dict(now) != then:
                caught.remark("your code left a global module hook behind; the check removed it.")
                for key in [k for k in now if k not in then]:
                    del now[key]
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


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


@contextmanager
def _streams(caught: Guarded) -> Iterator[None]:
    """Catch ``sys.stdout``, ``sys.stderr`` and file descriptor 2 (C++ code and child processes)."""
    out, err = io.StringIO(), io.StringIO()
    stdout, stderr = sys.stdout, sys.stderr
    with suppress(Exception):
        stderr.flush()
    saved = os.dup(2)
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
            for line in (err.getvalue()[:MAX_OUTPUT] + "\n" + written).splitlines():
                caught.remark(line[:300])
            text = out.getvalue()
            caught.output = text if len(text) <= MAX_OUTPUT else text[:MAX_OUTPUT] + "\n[the rest was cut]\n"


@contextmanager
def guard() -> Iterator[Guarded]:
    """Run a block of foreign code: nothing reaches stdout or stderr, and no state is left changed."""
    caught = Guarded()
    shown: list[warnings.WarningMessage] = []
    try:
        with _streams(caught), _logging(caught), _settings(caught), warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("default")
            yield caught
    finally:
        for warning in shown:
            caught.remark(f"{warning.category.__name__}: {warning.message}"[:300])
