"""Grade a class while the runner is killed again and again, at moments drawn from a seed, until it is done.

Every kill leaves the run something to do: it comes after the first new result of its round, but for those that are meant
for the start of a run, and after each of these comes one that lets the run get on. So it ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from bank_class import BankClass

__all__ = ["Killed", "grade_with_kills"]

PATIENCE = 900  # seconds that a run may go without a result
SINGLE = ("worker", "kernel", "keeper", "warm")
ENDS = ("write", "power", "start", "runner", "power")  # in turn; the moments are drawn


@dataclass
class Killed:
    """What was done to the class."""

    ends: Counter[str] = field(default_factory=Counter)  # kills of the whole run while it was at work
    singles: Counter[str] = field(default_factory=Counter)  # kills of one process
    half_written: int = 0  # kills that left a transaction of the gradebook behind
    survivors: list[str] = field(default_factory=list)  # processes that went on after their run
    said: str = ""
    seconds: float = 0.0


class _Run:
    """One start of the runner, in a session of its own, with all its temporary files in ``scratch``."""

    def __init__(self, course: BankClass, scratch: Path, options: list[str]) -> None:
        self.scratch, self.course = str(scratch), course
        self.log = course.root / "said.txt"
        env = {**os.environ, "PYTHONPATH": str(course.root), "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
        with self.log.open("w") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "grading.autograde", *options],
                cwd=course.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.before = self._results()

    def _results(self) -> dict[str, int]:
        found = {}
        for path in self.course.results.glob("[!.]*.json"):
            found[path.name] = path.stat().st_mtime_ns
        return found

    def over(self) -> bool:
        return self.process.poll() is not None

    def has_new_result(self) -> bool:
        return self._results() != self.before

    def in_write(self) -> bool:
        return (self.course.root / "grading" / "gradebook.db-journal").exists()

    def wait(self, until: Callable[[], bool], seconds: float = PATIENCE, step: float = 0.02) -> bool:
        """Until something is so; False where the run ended before, or the time did."""
        deadline = time.monotonic() + seconds
        while not self.over() and time.monotonic() < deadline:
            if until():
                return True
            time.sleep(step)
        return False

    # ------------------------------------------------------------------------------------------ its processes
    def family(self) -> list[psutil.Process]:
        """Its processes, those as well that have lost their parents."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("TMPDIR", "").startswith(self.scratch) or any(
                    self.scratch in part for part in process.cmdline()
                ):
                    for one in (process, *process.children(recursive=True)):
                        found[one.pid] = one
        return list(found.values())

    def one(self, kind: str) -> list[psutil.Process]:
        """Its processes of a kind."""
        with contextlib.suppress(psutil.Error):
            children = self.process.children()
            if kind == "worker":
                servers = [p for p in children if _runs(p, "forkserver")]
                return [p for server in servers for p in server.children()]
            warm = [p for p in children if _runs(p, "grading.kernels.warm")]
            keepers = [p for process in warm for p in process.children()]
            kernels = [p for keeper in keepers for p in keeper.children() if _runs(p, "grading.kernels.warm")]
            return {"warm": warm, "keeper": keepers, "kernel": kernels}[kind]
        return []

    def kill_all(self) -> None:
        """As a power cut would."""
        self.process.kill()
        while family := self.family():
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        """As ``kill -9 -GROUP`` would: what stands outside of the group has to notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _runs(process: psutil.Process, what: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(what in part for part in process.cmdline())
    return False


def grade_with_kills(course: BankClass, scratch: Path, seed: int, jobs: int, quiet: float = 2.5) -> Killed:
    """Grade a class, killing the runner, until a run of it has ended by itself and well.

    Parameters
    ----------
    course : BankClass
    scratch : Path
        A folder for the temporary files of all runs.
    seed : int
        Of the moments and the kinds of kills.
    jobs : int
    quiet : float
        Seconds between the first result of a run and its end, at most.
    """
    draw, done, started, startup = random.Random(seed), Killed(), time.monotonic(), 5.0
    ends: list[str] = []  # still to come, the next one last
    options = ["--assignment", course.assignment]
    while True:
        if not ends:
            ends = list(reversed(ENDS))
        run, end = _Run(course, scratch, [*options, "--jobs", str(jobs)]), ends.pop()
        options = ["--resume"] if (course.results.parent / "run.json").exists() else options
        began = time.monotonic()
        if end == "start":
            run.wait(lambda: False, draw.uniform(0.2, startup))
            landed = not run.over()
        elif landed := run.wait(run.has_new_result):
            startup = time.monotonic() - began
            _kill_one(run, draw, done)
            run.wait(lambda: False, draw.uniform(0, quiet))
            if end == "write":
                landed = run.wait(run.in_write, step=0.001)
                time.sleep(draw.uniform(0, 0.01))
        if landed and not run.over():
            (run.kill_all if end in ("power", "write") else run.kill_group)()
            if run.process.returncode == -signal.SIGKILL:
                done.ends[end] += 1
                done.half_written += run.in_write()
            if end == "write" and not done.half_written:
                ends.append(end)  # it came too late: once more
            _, alive = psutil.wait_procs(run.family(), timeout=20)
            done.survivors += [" ".join(p.cmdline()) for p in alive if p.is_running()]
            options = ["--resume"] if (course.results.parent / "run.json").exists() else options
            continue
        code = run.process.wait(PATIENCE)
        done.said = run.log.read_text()
        if code == 0 or code > 1:
            done.seconds = time.monotonic() - started
            return done


def _kill_one(run: _Run, draw: random.Random, done: Killed) -> None:
    """Kill one process that the run can do without."""
    kind = draw.choice(SINGLE)
    run.wait(lambda: False, draw.uniform(0, 0.5))
    victims = run.one(kind)
    if victims and not run.over():
        with contextlib.suppress(psutil.Error):
            draw.choice(victims).kill()
            done.singles[kind] += 1
