"""The command `doctor`: is this machine ready for the course, and if not, what is to be done?

    python -m course_utils doctor          in a terminal; the exit status is 1 where something fails
    from course_utils.doctor import report; report()      in a notebook

Two parts. First what is installed and found: versions, the build of PyTorch, driver and device, images, kernel, memory
and disk. Then whether PyTorch does what the notebooks rely on, in four stages, from a tensor's strides to a step in
mixed precision; the last one runs on the CPU as well. It changes nothing and takes a few seconds.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from course_utils import bootstrap
from course_utils.data.location import cifar_mini_folder, project_root

__all__ = ["Finding", "Mark", "examine", "report", "show"]

GB = 1_000_000_000
NEEDED_MEMORY, NEEDED_DISK = 2 * GB, 1 * GB  # a kernel with torch, a batch and room for the largest notebook; outputs

# The oldest driver for each major version of CUDA, on Linux. Within a major version every minor one will do.
# Source: NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

INSTALL = "make lab (or: python -m pip install -r requirements.txt)"
REINSTALL = "delete .venv and set it up again: make lab"


class Mark(enum.Enum):
    """How a finding counts. The value is printed: a sign and a word, so that neither colour nor font matters."""

    OK = "[ ok ]"
    NOTE = "[note]"  # the course works all the same
    FAIL = "[FAIL]"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    mark : Mark
    subject, found : str
        What was looked at, and what it is.
    advice : str
        What to do; empty only where the mark is OK.
    """

    mark: Mark
    subject: str
    found: str
    advice: str = ""


def _ok(subject: str, found: str) -> Finding:
    return Finding(Mark.OK, subject, found)


# ------------------------------------------------------------------------------------------------ what is installed
def _python() -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if bootstrap.fits("{}.{}".format(*sys.version_info)):
        yield _ok("Python", f"{found}, {sys.executable}")
    else:
        oldest, newest = map(bootstrap.dotted, (bootstrap.OLDEST, bootstrap.NEWEST))
        yield Finding(Mark.FAIL, "Python", f"{found}, and {oldest} to {newest} is needed", bootstrap.PYTHON_ADVICE)


def _packages(lock: Path | None = None) -> Iterator[Finding]:
    """Every package of the lock that belongs on this machine, in its version."""
    from packaging.requirements import InvalidRequirement, Requirement

    lock = lock or project_root() / "requirements.txt"
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError:
        yield Finding(Mark.NOTE, "packages", f"no {lock.name} beside the notebooks", "run it in the course's folder")
        return
    wrong, count = [], 0
    cpu_build = _installed("torch").endswith("+cpu")
    for line in lines:
        if not line.strip() or line.lstrip().startswith(("#", "--")):
            continue
        try:
            wanted = Requirement(line.split(" #")[0])
        except InvalidRequirement:
            continue
        if (wanted.marker and not wanted.marker.evaluate()) or (cpu_build and bootstrap.CUDA_PACKAGE.match(line)):
            continue
        count += 1
        have = _installed(wanted.name)
        # A build such as 2.14.1+cpu is version 2.14.1.
        if not have or not wanted.specifier.contains(have.partition("+")[0], prereleases=True):
            wrong.append(f"{wanted.name} {have or 'is missing'} (locked: {str(wanted.specifier).lstrip('=')})")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        yield Finding(Mark.FAIL, "packages", "; ".join(wrong[:3]) + more, INSTALL)
    else:
        yield _ok("packages", f"{count}, all in the versions of {lock.name}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


# ------------------------------------------------------------------------------------------------ the device
def _driver() -> str:
    """The version of NVIDIA's driver as nvidia-smi tells it; empty where there is none that answers."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = answer.stdout.strip().split("\n")[0].strip()
    return first if answer.returncode == 0 and re.match(r"\d+\.", first) else ""


def _device() -> Iterator[Finding]:
    import torch

    from course_utils.devices import available_device

    build = torch.version.cuda
    yield _ok("PyTorch", f"{torch.__version__}, built {f'for CUDA {build}' if build else 'without CUDA'}")
    driver = _driver()
    if not driver:
        yield _ok("NVIDIA driver", "none; not needed")
    elif not build:
        advice = "to use the GPU, install the full build: delete .venv, then make lab without TORCH=cpu"
        yield Finding(Mark.NOTE, "NVIDIA driver", f"{driver}, and this PyTorch cannot use it", advice)
    elif not torch.cuda.is_available():
        oldest = OLDEST_DRIVER.get(int(build.partition(".")[0]), 0)
        if int(driver.partition(".")[0]) < oldest:
            found, advice = f"{driver} is too old for CUDA {build}", f"update the driver to {oldest} or later"
        elif "CUDA_VISIBLE_DEVICES" in os.environ:
            hidden = os.environ["CUDA_VISIBLE_DEVICES"]
            found, advice = f"{driver}; CUDA_VISIBLE_DEVICES={hidden!r} hides the GPU", "unset CUDA_VISIBLE_DEVICES"
        else:
            found, advice = f"{driver}, and PyTorch sees no GPU", "restart the machine; is the GPU given to it at all?"
        yield Finding(Mark.NOTE, "NVIDIA driver", found, advice)
    else:
        yield _ok("NVIDIA driver", f"{driver}, fits CUDA {build}")
    try:
        device = available_device()
    except RuntimeError as error:
        yield Finding(Mark.FAIL, "device", str(error), "unset COURSE_DEVICE, or set it to cpu")
        return
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        yield _ok("device", f"{device}: {about.name}, {about.total_memory / GB:.1f} GB")
    else:
        yield _ok("device", f"{device}, {torch.get_num_threads()} threads; section 3 brings a simulated GPU")


# ------------------------------------------------------------------------------------------------ data, kernel, room
def _data() -> Iterator[Finding]:
    from course_utils.data import DataError, load_cifar_mini
    from course_utils.data.reading import load_unlabelled

    again = "make build-data (or: python -m course_utils build-data)"
    try:
        train, test = load_cifar_mini("train", verify=True), load_unlabelled("test")
    except (DataError, OSError) as error:
        yield Finding(Mark.FAIL, "images", " ".join(str(error).split()), again)
    else:
        yield _ok("images", f"{train.describe()} and {len(test)} to test with; every checksum is right")


def _kernel() -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    advice = "python -m ipykernel install --sys-prefix"
    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        yield Finding(Mark.FAIL, "kernel", "JupyterLab has no kernel called python3", advice)
        return
    program = spec.argv[0] if spec.argv else ""
    # Jupyter itself puts its own interpreter in the place of a bare `python`.
    if Path(program).is_absolute() and not _same_environment(program):
        yield Finding(Mark.FAIL, "kernel", f"python3 starts {program}, another Python than this", advice)
    elif not _installed("ipykernel"):
        yield Finding(Mark.FAIL, "kernel", "the package ipykernel is missing", INSTALL)
    else:
        yield _ok("kernel", f"python3, {spec.resource_dir}")


def _same_environment(program: str) -> bool:
    return Path(program).parent.resolve() == Path(sys.executable).parent.resolve()


def _room() -> Iterator[Finding]:
    import psutil

    folder = project_root()
    for subject, free, needed, advice in (
        ("memory", psutil.virtual_memory().available, NEEDED_MEMORY, "close other programs and notebooks"),
        ("disk", shutil.disk_usage(folder).free, NEEDED_DISK, f"make room on the disk of {folder}"),
    ):
        found = f"{free / GB:.1f} GB free"
        if free >= needed:
            yield _ok(subject, found)
        else:
            yield Finding(Mark.NOTE, subject, f"{found}, and {needed / GB:.0f} GB are wanted", advice)
    data = cifar_mini_folder().parent
    if data.is_dir() and not os.access(data, os.W_OK):
        yield Finding(Mark.NOTE, "data folder", f"{data} is read-only", "fine, as long as the images are right")


# ------------------------------------------------------------------------------------------------ four stages
def _claim(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _raises(function: Callable[[], object], what: str) -> None:
    try:
        function()
    except RuntimeError:
        return
    raise AssertionError(what)


def _stage_creation() -> str:
    import numpy as np
    import torch

    x = torch.arange(12).view(3, 4)
    _claim(x.dtype == torch.int64 and torch.zeros(2).dtype == torch.float32, "default dtypes are int64 and float32")
    _claim(x.stride() == (4, 1) and x.t().stride() == (1, 4), "strides of a (3, 4) and of its transpose")
    _claim(x.is_contiguous() and not x.t().is_contiguous(), "a transpose is not contiguous")
    array = np.arange(3.0)
    wrapped, copied = torch.from_numpy(array), torch.tensor(array)
    array[0] = 9
    _claim(wrapped[0] == 9 and copied[0] == 0, "from_numpy shares memory, torch.tensor copies")
    return "dtypes, strides, sharing with NumPy"


def _stage_views() -> str:
    import torch

    x = torch.zeros(4, 3)
    row, copied, version = x[1], x[[1]], x._version
    row += 1
    _claim(x[1].sum() == 3 and x._version > version, "a write through a view changes its base, and is counted")
    _claim(copied.sum() == 0, "indexing with a list copies")
    _raises(lambda: x.t().view(-1), "view refuses what would need a copy")
    w = torch.ones(2, requires_grad=True)
    y = w.exp()
    y.add_(1)
    _raises(lambda: y.sum().backward(), "backward notices that a saved value was overwritten")
    return "views, copies, in-place writes"


def _stage_autograd() -> str:
    import torch
    import torch.nn.functional as F

    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    for _ in range(2):
        (x * x).sum().backward()
    _claim(torch.equal(x.grad, 4 * x.detach()), "gradients of x * x, added up over two calls of backward")
    with torch.no_grad():
        _claim(not (x * 2).requires_grad, "no_grad builds no graph")
    generator = torch.Generator().manual_seed(0)
    image, kernel = (
        torch.randn(s, dtype=torch.float64, generator=generator, requires_grad=True)
        for s in ((1, 2, 5, 4), (3, 2, 3, 3))
    )
    _claim(torch.autograd.gradcheck(F.conv2d, (image, kernel)), "gradients of a convolution against differences")
    return "gradients, accumulation, a convolution checked by differences"


def _stage_device() -> str:
    import torch
    from torch import nn

    from course_utils.devices import available_device
    from course_utils.simgpu import simulated_gpu

    device = available_device()
    generator = torch.Generator().manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    x = torch.randn(2, 3, 6, 5, generator=generator)
    expected = model(x).detach()
    model.to(device)
    got = model(x.to(device)).detach().cpu()
    _claim(torch.allclose(got, expected, rtol=1e-2, atol=1e-2), f"a convolution on {device} gives what the CPU gives")

    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    for factor, moves in ((float("inf"), False), (1.0, True)):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=half):
            out = model(x.to(device))
        _claim(out.dtype == half and model.weight.dtype == torch.float32, f"autocast computes in {half}")
        scaler.scale(out.float().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        _claim(
            torch.equal(before, model.weight) != moves, "the scaler leaves out the step after an overflow, only that"
        )
    with simulated_gpu() as gpu:
        _claim((torch.ones(2, device=gpu) + 1).sum().item() == 4, "the simulated GPU computes")
        _raises(lambda: torch.ones(2, device=gpu) + torch.ones(2), "the simulated GPU refuses mixed devices")
    where = f"{device} in {str(half).removeprefix('torch.')}"
    return f"a step in mixed precision on {where}; the simulated GPU"


STAGES = (
    ("1 creation and strides", _stage_creation),
    ("2 views and in-place", _stage_views),
    ("3 autograd", _stage_autograd),
    ("4 device and precision", _stage_device),
)

SECTIONS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("Python", _python),
    ("packages", _packages),
    ("device", _device),
    ("images", _data),
    ("kernel", _kernel),
    ("room", _room),
)


# ------------------------------------------------------------------------------------------------ the report
def examine() -> Iterator[Finding]:
    """Look at everything, one finding after the other. A check that breaks is a finding, too, and stops no other."""
    for subject, check in SECTIONS:
        try:
            yield from check()
        except ImportError as error:
            yield Finding(Mark.FAIL, subject, " ".join(str(error).split()), INSTALL)
        except Exception as error:
            yield Finding(Mark.FAIL, subject, f"{type(error).__name__}: {error}".split("\n")[0], REINSTALL)
    for name, stage in STAGES:
        yield _run_stage(name, stage)


def _run_stage(name: str, stage: Callable[[], str]) -> Finding:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _ok(name, stage())
    except AssertionError as error:
        return Finding(Mark.FAIL, name, f"does not hold: {error}", REINSTALL)
    except ImportError as error:
        return Finding(Mark.FAIL, name, " ".join(str(error).split()), INSTALL)
    except Exception as error:
        return Finding(Mark.FAIL, name, f"{type(error).__name__}: {error}".split("\n")[0], REINSTALL)


def show(finding: Finding) -> None:
    """Print one finding, and below it what to do."""
    print(f"{finding.mark.value} {finding.subject:<23} {finding.found}", flush=True)
    if finding.advice:
        print(f"{'':6} {'':<23} -> {finding.advice}", flush=True)


def report() -> bool:
    """Print every finding as soon as it is made. Returns whether nothing failed."""
    marks = []
    for finding in examine():
        marks.append(finding.mark)
        show(finding)
    failed, notes = marks.count(Mark.FAIL), marks.count(Mark.NOTE)
    if failed:
        print(f"{failed} of {len(marks)} fail: follow the arrows, from the top, and run it again.")
    else:
        print("This machine is ready." + (" The notes cost nothing but comfort." if notes else ""))
    return not failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`doctor` has no options."""


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 where something fails, else 0."""
    return 0 if report() else 1
