"""The guard: nothing that an answer prints, warns or changes gets out, and everything is put back."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils import simgpu
from course_utils.observe.guard import _GLOBAL_HOOKS, MAX_OUTPUT, MAX_REMARKS, SETTINGS, guard


def c_writes(text: str) -> None:
    ctypes.CDLL(None).write(2, text.encode(), len(text.encode()))


def child_writes(text: str) -> None:
    subprocess.run([sys.executable, "-S", "-c", f"import os; os.write(2, {text.encode()!r})"], check=True)


WAYS = {
    "a Python warning": lambda: warnings.warn("a word from below", stacklevel=1),
    "a warning of a class of its own": lambda: warnings.warn("a word from below", DeprecationWarning, stacklevel=1),
    "logging": lambda: logging.getLogger("student").warning("a word from %s", "below"),
    "logging of the root": lambda: logging.error("a word from below"),
    "sys.stderr": lambda: print("a word from below", file=sys.stderr),
    "file descriptor 2": lambda: os.write(2, b"a word from below\n"),
    "C code": lambda: c_writes("a word from below\n"),
    "a child process": lambda: child_writes("a word from below\n"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_word_gets_out_on_stderr(way, capfd):
    with guard() as caught:
        WAYS[way]()
    assert capfd.readouterr() == ("", "")
    assert any("a word from below" in remark for remark in caught.remarks)


def test_a_warning_of_torch_gets_out(capfd):
    array = np.ones(2)
    array.flags.writeable = False
    with guard() as caught:
        torch.tensor(torch.ones(2))
        torch.from_numpy(array)
    assert capfd.readouterr() == ("", "")
    assert any("clone" in remark for remark in caught.remarks)


def test_a_log_handler_made_before_the_check_writes_to_the_real_stderr(capfd):
    logger = logging.getLogger("made before")
    handler = logging.StreamHandler(sys.__stderr__)
    logger.addHandler(handler)
    try:
        with guard() as caught:
            logger.warning("from a library")
            logger.info("not worth a remark")
            logger.warning("arguments %s %s that do not fit", 1)
        assert caught.remarks == ["warning: from a library"]
        logger.warning("after the check")
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr().err == "after the check\n"


def test_what_is_printed_is_lost(capfd):
    with guard() as caught:
        print("shape", (2, 3))
    assert caught.output == "shape (2, 3)\n"
    assert caught.remarks == []
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_output_fills_the_memory_or_the_notebook():
    with guard() as caught:
        for i in range(3000):
            print("x" * 100)
            print("e" * 100 + str(i), file=sys.stderr)
        sys.stdout.write("y" * 10**6)
        assert sys.stdout.tell() < 3 * MAX_OUTPUT
    assert len(caught.output) < MAX_OUTPUT + 100
    assert caught.output.endswith("[the rest was cut]\n")
    assert len(caught.remarks) == MAX_REMARKS


def test_a_student_who_closes_the_streams_ends_the_check():
    before = sys.stdout, sys.stderr
    with guard() as caught:
        print("first")
        sys.stdout.close()
        sys.stderr.close()
        os.close(2)
        print("second")
        print("third", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    os.fstat(2)
    assert caught.output == "first\nsecond\n"
    assert caught.remarks == ["third"]


def test_a_stderr_that_was_broken_before_ends_the_check():
    """In a process of its own: pytest needs this one's stderr."""
    code = """
import os, sys
from course_utils.observe.guard import guard
os.close(2)
closed = open(os.devnull, "w")
closed.close()
for sys.stderr in (sys.stderr, closed, None):
    with guard() as caught:
        os.write(2, b"still seen")
    assert caught.remarks == ["still seen"], caught
print("fine")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "fine\n"


def test_warnings_that_the_notebook_turned_into_errors_fail_a_right_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        with guard() as caught:
            warnings.warn("only a warning", stacklevel=1)
        assert warnings.filters == filters
    assert caught.remarks == ["UserWarning: only a warning"]


def test_a_warning_is_told_once_and_never_again():
    def answer():
        warnings.warn("every time", stacklevel=1)

    for _ in range(2):
        with guard() as caught:
            answer()
        assert caught.remarks == ["UserWarning: every time"]


def test_a_warning_whose_text_fails_ends_the_check():
    class Mute(UserWarning):
        asked = 0

        def __str__(self):  # Python asks once for itself
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError
            return "mute"

    with guard() as caught:
        warnings.warn(Mute(), stacklevel=1)
        warnings.warn("heard", stacklevel=1)
    assert caught.remarks == ["UserWarning: heard"]


# ------------------------------------------------------------------------------------------------ settings
CHANGES = {
    "grad mode": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic mode": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "precision of matrix products": lambda: torch.set_float32_matmul_precision("medium"),
    "inference mode": lambda: KEPT.append(torch._C._InferenceMode(True)),
    "simulated GPU": lambda: importlib.import_module("course_utils.simgpu").enable(),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "recursion limit": lambda: sys.setrecursionlimit(1234),
    "working folder": lambda: os.chdir("/"),
    "NumPy's error handling": lambda: np.seterr(all="raise"),
    "NumPy's print options": lambda: np.set_printoptions(precision=2),
}
KEPT: list = []


def read() -> dict:
    return {name: setting[0]() for name, setting in SETTINGS.items()}


@pytest.fixture
def settings():
    before = read()
    yield before
    while KEPT:
        KEPT.pop()
    for name, (get, put, *_) in SETTINGS.items():
        if get() != before[name]:
            put(before[name])


def test_a_setting_has_no_test_here():
    assert set(CHANGES) == set(SETTINGS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_an_answer_changes_stays_changed(name, settings):
    with guard() as caught:
        CHANGES[name]()
        assert read() != settings
    assert read() == settings
    assert any(name in remark for remark in caught.remarks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n, (_, _, standard, _) in SETTINGS.items() if standard is not None])
def test_a_setting_that_the_notebook_changed_decides_about_an_answer(name, settings):
    CHANGES[name]()
    changed = read()
    with guard() as caught:
        assert SETTINGS[name][0]() == SETTINGS[name][2]
    assert read() == changed
    assert any(name in remark and SETTINGS[name][3] in remark for remark in caught.remarks)


def test_inference_mode_left_on_in_the_notebook_fails_a_right_answer():
    with torch.inference_mode():
        with guard() as caught:
            x = torch.ones(2, requires_grad=True)
            (x * x).sum().backward()
            assert x.grad.tolist() == [2, 2]
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert len(caught.remarks) == 1


def test_a_default_device_without_numbers_decides_about_an_answer(settings):
    torch.set_default_device("meta")
    with guard():
        assert torch.ones(2).tolist() == [1, 1]
    assert torch.ones(2).is_meta


def test_a_folder_that_was_deleted_ends_the_check(tmp_path, settings):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with guard() as caught:
        pass
    assert caught.remarks == []


def test_the_notebooks_random_numbers_depend_on_whether_it_was_checked():
    states = random.getstate(), torch.get_rng_state()
    numbers = np.random.get_state()[1]
    with guard():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        torch.rand(3), np.random.rand(3)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state()[1] == numbers).all()


def test_a_global_hook_stays_behind_or_one_of_the_notebook_is_lost():
    calls = []
    mine = torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append("mine"))
    layer = torch.nn.Linear(2, 2)
    try:
        with guard() as caught:
            layer(torch.ones(1, 2))
            assert calls == []
            torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append("theirs"))
            torch.nn.modules.module.register_module_full_backward_hook(lambda *_: None)
            register_optimizer_step_pre_hook(lambda *_: None)
            layer(torch.ones(1, 2))
        assert calls == ["theirs"]
        layer(torch.ones(1, 2))
        assert calls == ["theirs", "mine"]
    finally:
        mine.remove()
    assert not any(getattr(module, name) for module, name in _GLOBAL_HOOKS)
    assert torch.nn.modules.module._global_is_full_backward_hook is None
    assert len(caught.remarks) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_exception_is_swallowed_or_leaves_something_changed(error, settings, capfd):
    streams = sys.stdout, sys.stderr, logging.Logger.callHandlers
    with pytest.raises(error), guard():
        for name in ("default dtype", "grad mode", "number of threads", "working folder"):
            CHANGES[name]()
        print("unheard")
        raise error
    assert (sys.stdout, sys.stderr, logging.Logger.callHandlers) == streams
    assert read() == settings
    assert capfd.readouterr() == ("", "")


def test_a_guard_inside_a_guard_lets_something_out(capfd, settings):
    with guard() as outer:
        print("outer")
        with guard() as inner:
            print("inner")
            torch.set_grad_enabled(False)
            warnings.warn("inside", stacklevel=1)
            os.write(2, b"below")
        assert torch.is_grad_enabled()
        warnings.warn("outside", stacklevel=1)
    assert (inner.output, outer.output) == ("inner\n", "outer\n")
    assert "below" in inner.remarks and "UserWarning: inside" in inner.remarks
    assert outer.remarks == ["UserWarning: outside"]
    assert capfd.readouterr() == ("", "")


class Lies(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return True if func is torch.equal else func(*args, **(kwargs or {}))


class Hides(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return torch.zeros(3) if "add" in str(func) else func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Lies, Hides])
def test_a_mode_left_on_in_the_notebook_answers_the_check(mode):
    one, two = torch.ones(3), torch.full((3,), 2.0)
    with mode():
        seen = torch.equal(one, two), (one + one).tolist()
        with guard() as caught:
            inside = torch.equal(one, two), (one + one).tolist()
        assert (torch.equal(one, two), (one + one).tolist()) == seen, "and the notebook has lost it"
    assert inside == (False, [2.0, 2.0, 2.0])
    assert "set it aside" in caught.remarks[0]
    assert (torch.equal(one, two), (one + one).tolist()) == inside


@pytest.mark.parametrize("mode", [Lies, Hides])
def test_a_mode_that_an_answer_leaves_on_stays_on(mode):
    with guard() as caught:
        mode().__enter__()
    assert not torch.equal(torch.ones(3), torch.zeros(3))
    assert (torch.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]
    assert "switched it off" in caught.remarks[0]


def test_the_guard_switches_a_default_device_or_the_simulated_gpu_off():
    with torch.device("meta"), guard():
        pass
    device = simgpu.enable()
    try:
        with guard():
            assert torch.ones(2, device=device).device.type == device.type
        assert torch.ones(2, device=device).device.type == device.type
    finally:
        simgpu.disable()
