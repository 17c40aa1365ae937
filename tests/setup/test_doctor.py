"""The doctor tells what is wrong with a machine and what to do, and no broken check keeps it from going on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from course_utils import doctor
from course_utils.__main__ import main
from course_utils.doctor import Finding, Mark

ROOT = Path(__file__).parents[2]


def found(check: str) -> list[Finding]:
    return list(dict(doctor.SECTIONS)[check]())


def test_a_step_of_the_four_stages_fails_on_this_machine() -> None:
    findings = [doctor._run_stage(name, stage) for name, stage in doctor.STAGES]
    assert [f for f in findings if f.mark is not Mark.OK] == []


def test_this_environment_is_called_wrong() -> None:
    findings = [f for check in ("Python", "packages", "device", "kernel") for f in found(check)]
    assert [f for f in findings if f.mark is Mark.FAIL] == []


def test_a_package_of_another_version_or_none_goes_unnoticed(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("# a comment\ntorch==1.0.0\nno-such-package==3.1\nnumpy==9 ; sys_platform == 'plan9'\n")
    (finding,) = doctor._packages(lock)
    assert finding.mark is Mark.FAIL and "make lab" in finding.advice
    assert f"torch {torch.__version__.partition('+')[0]}" in finding.found and "(locked: 1.0.0)" in finding.found
    assert "no-such-package is missing" in finding.found and "numpy" not in finding.found


def test_a_cpu_build_is_asked_for_cuda_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("torch==2.14.1\nnvidia-nothing==1.0\n")
    monkeypatch.setattr(doctor, "_installed", {"torch": "2.14.1+cpu"}.get)
    (finding,) = doctor._packages(lock)
    assert finding.mark is Mark.OK


def test_missing_and_damaged_images_are_called_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    (finding,) = found("images")
    assert finding.mark is Mark.FAIL and "build-data" in finding.advice
    assert main(["build-data", "--train", "10", "--test", "10"]) == 0
    (finding,) = found("images")
    assert finding.mark is Mark.OK and "every checksum" in finding.found
    file = tmp_path / "cifar_mini" / "train_images.bin"
    file.write_bytes(bytes(10 * 32 * 32 * 3))
    (finding,) = found("images")
    assert finding.mark is Mark.FAIL and "train_images.bin" in finding.found


@pytest.mark.parametrize(
    "driver, cuda, words, advice",
    [
        ("470.82.01", "13.0", "too old for CUDA 13.0", "580 or later"),
        ("580.65.06", "13.0", "sees no GPU", "restart"),
        ("525.60.13", "12.4", "sees no GPU", "restart"),
        ("580.65.06", None, "cannot use it", "without TORCH=cpu"),
    ],
)
def test_a_driver_that_does_not_fit_is_not_explained(
    driver: str, cuda: str | None, words: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_driver", lambda: driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (finding,) = (f for f in found("device") if f.subject == "NVIDIA driver")
    assert finding.mark is Mark.NOTE, "the course works without a GPU"
    assert words in finding.found and advice in finding.advice


def test_a_hidden_gpu_is_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_driver", lambda: "600.1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert any("unset CUDA_VISIBLE_DEVICES" in f.advice for f in found("device"))


def test_a_device_that_is_not_there_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DEVICE", "cuda:99")
    assert [f.mark for f in found("device") if f.subject == "device"] == [Mark.FAIL]


def test_a_missing_kernel_goes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client import kernelspec

    def none(self: object, name: str) -> None:
        raise kernelspec.NoSuchKernel(name)

    monkeypatch.setattr(kernelspec.KernelSpecManager, "get_kernel_spec", none)
    (finding,) = found("kernel")
    assert finding.mark is Mark.FAIL and "ipykernel install" in finding.advice


def test_a_kernel_of_another_python_goes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client import kernelspec

    spec = kernelspec.KernelSpec(argv=["/nowhere/bin/python", "-m", "ipykernel_launcher"], resource_dir="/nowhere")
    monkeypatch.setattr(kernelspec.KernelSpecManager, "get_kernel_spec", lambda self, name: spec)
    (finding,) = found("kernel")
    assert finding.mark is Mark.FAIL and "/nowhere/bin/python" in finding.found


def test_a_full_disk_goes_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**12, 10**12, 10**6))
    (disk,) = (f for f in found("room") if f.subject == "disk")
    assert disk.mark is Mark.NOTE and "make room" in disk.advice


def test_a_broken_check_hides_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> str:
        raise RuntimeError("no kernel image is available\nfor execution")

    def lies() -> str:
        raise AssertionError("1 + 1 is 2")

    def needs() -> str:
        raise ImportError("libcudart.so is missing")

    monkeypatch.setattr(doctor, "SECTIONS", (("Python", breaks),))
    monkeypatch.setattr(doctor, "STAGES", (("1", breaks), ("2", lies), ("3", needs), ("4", lambda: "fine")))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines if line.startswith("[")] == ["[FAIL]"] * 4 + ["[ ok ]"]
    assert "does not hold: 1 + 1 is 2" in "\n".join(lines) and "4 of 5 fail" in lines[-1]
    assert sum("-> " in line for line in lines) == 4, "every failure says what to do"


def test_the_command_cannot_be_run_from_a_folder_of_notebooks(tmp_path: Path) -> None:
    """And whoever pipes it into a file gets plain text."""
    command = [sys.executable, "-m", "course_utils", "doctor"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "notebooks", timeout=120)
    assert answer.stdout.isascii() and answer.stdout.count("[ ok ]") >= 8, answer.stdout + answer.stderr
    assert answer.stderr == ""
