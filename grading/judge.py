"""The judge: observes the reference on the same cases, outside the student's process, and decides the points.

From the student's process it takes values only. Names, order, tolerances, shares and points come from its own run of the
reference. That run is kept in ``grading/.cache`` under a key made of everything it depends on, so that a second
grading run starts without importing torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.files import atomic_write_text
from course_utils.observe import seal
from course_utils.observe.compare import Behaviour, Ended, Kind, Verdict, compare
from course_utils.observe.expected import from_plain, to_plain
from grading.source import ROOT, Section, sections

__all__ = ["Judge", "Report", "fresh_seed", "read_report", "read_salt"]

SALT = ROOT / "grading" / "secret_salt"
CACHE = ROOT / "grading" / ".cache"
MAX_REPORT = 8_000_000  # characters
MAX_DEPTH = 60  # of lists and dictionaries; the facts of an honest report stay below 30


def read_salt(path: Path = SALT) -> bytes:
    """The secret that decides the hidden cases; made once, readable by its owner only.

    Keep it as long as marks may be re-graded: with another salt the cases are others.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all, and only the first of several graders that start together: a link never replaces a file.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    salt = path.read_text().strip()
    if len(salt) < 32:
        raise ValueError(f"{path} is damaged: it should hold a long random text. Delete it, and a new one is made.")
    return salt.encode()


def fresh_seed(exercise_id: str, salt: bytes) -> int:
    """The seed of an exercise's hidden cases: equal for every student and every re-grade, unknown without the salt."""
    return int.from_bytes(hmac.new(salt, exercise_id.encode(), hashlib.sha256).digest()[:6], "big")


@dataclass(frozen=True)
class Report:
    """What came out of a student's kernel for one check."""

    facts: list[tuple[str, Any]]
    ended: Ended | None
    remarks: tuple[str, ...] = ()
    missing: bool = False
    tampered: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def read_report(text: Any, nonce: str, exercise_id: str, key: bytes) -> Report | None:
    """Read a published report as plain data; None where it is not the one that was asked for.

    Parameters
    ----------
    text : Any
        As published: JSON with the report as a text, ``body``, and its signature, ``mac``.
    nonce : str
        Of the order that it must answer.
    exercise_id : str
    key : bytes
        Of the kernel's seal (see :mod:`course_utils.observe.seal`).

    Types are checked, unknown keys ignored, texts shortened: an answer's own values are in it.
    """
    if not isinstance(text, str) or len(text) > MAX_REPORT:
        return None
    try:
        outer = json.loads(text)
        body, signature = outer["body"], outer["mac"]
        if not secrets.compare_digest(ascii(signature), ascii(seal.mac(body, key))):
            return None
        data = json.loads(body)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(data, dict) or not _shallow(data) or data.get("exercise") != exercise_id:
        return None
    if not isinstance(data.get("nonce"), str) or not secrets.compare_digest(ascii(data["nonce"]), ascii(nonce)):
        return None
    facts = data.get("facts")
    if not isinstance(facts, list) or len(facts) > 10_000:
        return None
    pairs = [(f[0], f[1]) for f in facts if isinstance(f, list) and len(f) == 2 and isinstance(f[0], str)]
    if len(pairs) != len(facts):
        return None
    remarks = data.get("remarks")
    found = data.get("seal")
    found = found if isinstance(found, dict) else {}
    return Report(
        pairs,
        Ended.from_plain(data.get("ended")),
        _texts(remarks, 5),
        data.get("missing") is True,
        _texts(found.get("during"), 20),
        (
            *(f"{name} had been replaced; put back" for name in _texts(found.get("before"), 20)),
            *(f"{name} was tried, and refused" for name in _texts(found.get("refused"), 20)),
        ),
    )


def _texts(value: Any, most: int) -> tuple[str, ...]:
    return tuple(text[:300] for text in value[:most] if isinstance(text, str)) if isinstance(value, list) else ()


def _shallow(data: Any) -> bool:
    """No deeper than facts can be: whoever writes about the data later need not fear for the stack."""
    level = [data]
    for _ in range(MAX_DEPTH):
        inner = [v for x in level for v in (x.values() if isinstance(x, dict) else x)]
        level = [v for v in inner if isinstance(v, (dict, list))]
        if not level:
            return True
    return False


class Judge:
    """Judges the exercises of one section.

    Parameters
    ----------
    section : str
        ``tensor_costs`` or ``01_tensor_costs``.
    salt : bytes, optional
        By default the one in ``grading/secret_salt``.

    Attributes
    ----------
    key : str
        Changes with everything that the reference's facts depend on.
    """

    def __init__(self, section: str, salt: bytes | None = None) -> None:
        self.section: Section = sections(section)[0]
        self._salt = read_salt() if salt is None else salt
        self._device = _device_name()
        self.key = self._key()
        self._references: dict[str, dict[str, Any]] = self._load()
        self._seeds = {name: fresh_seed(name, self._salt) for name in self._references}

    def pack(self) -> dict[str, Any]:
        """What it takes to judge elsewhere, as plain data: seeds and the reference's facts, and not the salt."""
        return {"key": self.key, "seeds": self._seeds, "references": self._references}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Judge:
        """The judge that :meth:`pack` has described; needs neither ``solutions/`` nor the salt."""
        judge = cls.__new__(cls)
        judge.key, judge._seeds, judge._references = packed["key"], packed["seeds"], packed["references"]
        return judge

    def __contains__(self, exercise_id: str) -> bool:
        return exercise_id in self._references

    def seed(self, exercise_id: str) -> int:
        return self._seeds[exercise_id]

    def points(self, exercise_id: str) -> float:
        return float(self._references[exercise_id]["points"])

    def seconds(self, exercise_id: str) -> float:
        """How long one observation may take, where the machine is not overloaded."""
        return float(self._references[exercise_id]["seconds"])

    def reference(self, exercise_id: str) -> Behaviour:
        return from_plain(self._references[exercise_id])

    def verdict(self, exercise_id: str, report: Report) -> Verdict:
        """The points of a report, and why."""
        most = self.points(exercise_id)
        if report.tampered:
            verdict = self.broken(
                exercise_id,
                "Tampered",
                f"the check was changed while it ran: {report.tampered[0]}",
                "the code of this exercise replaces parts of PyTorch, Python or the check",
            )
        elif report.missing:
            verdict = Verdict(exercise_id, Kind.NAME_MISSING, 0.0, most)
        else:
            verdict = compare(self.reference(exercise_id), report.facts, report.ended, most)
        flags = (*report.flags, *(f"{name} was replaced during the check" for name in report.tampered))
        return Verdict(**{**vars(verdict), "remarks": report.remarks, "flags": flags})

    def broken(self, exercise_id: str, error: str, message: str, detail: str = "", suspect: bool = False) -> Verdict:
        """The verdict where no facts came: the kernel died, the time was up, the check did not report.

        ``suspect``: no honest notebook of this course has been seen to end so.
        """
        ended = Ended("crashed", error, message)
        flags = (f"{message}; {detail}",) if suspect else ()
        most = self.points(exercise_id)
        return Verdict(exercise_id, Kind.CRASHED, 0.0, most, ended=ended, detail=detail, flags=flags)

    # ------------------------------------------------------------------------------------------ the reference's run
    def _load(self) -> dict[str, dict[str, Any]]:
        path = CACHE / f"{self.section.name}-{self.key}.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text(encoding="utf-8"))
        observed = self._observe()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not marks
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds what is expected in the hidden cases
            for old in path.parent.glob(f"{self.section.name}-*.json"):
                old.unlink(missing_ok=True)
            atomic_write_text(path, json.dumps(observed))
            path.chmod(0o600)
        return observed

    def _observe(self) -> dict[str, dict[str, Any]]:
        from course_utils.devices import available_device
        from course_utils.observe.registry import find_exercise
        from grading.references import load_references

        reference = load_references(self.section.name)
        device = available_device()
        return {
            name: {
                "points": find_exercise(name).points,
                "seconds": find_exercise(name).seconds,
                **to_plain(reference.behaviour(name, fresh_seed(name, self._salt), device)),
            }
            for name in reference.answers
        }

    def _key(self) -> str:
        """Changes with everything that the reference's facts depend on."""
        digest = hashlib.sha256(self._salt)
        package = ROOT / "course_utils"
        sources = [self.section.path, *sorted(package.rglob("*.py")), ROOT / "grading" / "references.py"]
        for source in sources:
            digest.update(f"{source.relative_to(ROOT)}:{zlib.crc32(source.read_bytes())}\n".encode())
        for name in ("torch", "torchvision", "numpy", "opencv-python-headless"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
        meta = ROOT / "data" / "cifar_mini" / "meta.json"
        digest.update(meta.read_bytes() if meta.is_file() else b"no data")
        digest.update(f"{self._device} {platform.python_version()}".encode())
        return digest.hexdigest()[:20]


def _device_name() -> str:
    """The device that kernels started from here will use; asks torch only where there may be a GPU."""
    wanted = os.environ.get("COURSE_DEVICE", "").strip()
    if wanted:
        return wanted
    if not Path("/proc/driver/nvidia").exists() and shutil.which("nvidia-smi") is None:
        return "cpu"
    from course_utils.devices import available_device

    return str(available_device())
