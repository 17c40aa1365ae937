"""Run risky code in a process of its own: an answer comes back within a limit, and nothing is left running.

A worker that dies, a data set that waits for ever, a write into a read-only file: code about processes fails in ways
that take its own process along or never end. :func:`apart` forks, because a class that was written in a notebook
exists nowhere else: no other process could import it. Whatever the forked process has sent until its end comes back.

Forking needs Linux. macOS may abort a forked process that uses its frameworks, and Windows cannot fork; there the
work has to be done in the process that asks, without a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any, NoReturn

import psutil

from course_utils.observe.own_time import PATIENCE, OwnTime

__all__ = ["Apart", "apart", "can_fork", "descriptors", "settled_children", "shortage"]

POLL = 0.02  # seconds
SHARED_MEMORY = "/dev/shm"
SHARED_BYTES = 32 << 20  # that must be free in it; no check needs as much
DESCRIPTORS = 128  # that a process must be able to open
MAX_MESSAGE = 256 << 20  # bytes
_DONE = "course: done"


@dataclass(frozen=True)
class Apart:
    """What came of a process.

    Attributes
    ----------
    messages : tuple
        What it sent, in order, up to its end.
    death : str
        Empty where it came to its end; else what happened to it, in a few words.
    frames : tuple of (str, int)
        Files and lines where a process stood that crashed below Python, innermost first.
    lacking : str
        What this machine is too short of; then nothing was run.
    seconds : float
        Its own time (see ``own_time``).
    """

    messages: tuple[Any, ...] = ()
    death: str = ""
    frames: tuple[tuple[str, int], ...] = ()
    lacking: str = ""
    seconds: float = 0.0


def can_fork() -> bool:
    """Whether a forked process may go on using torch."""
    return sys.platform == "linux"


def shortage() -> str:
    """What this machine is too short of for workers, in one line; empty where there is enough.

    A full ``/dev/shm`` or used-up descriptors make a right answer fail: the machine's fault, and to be said before.
    """
    import resource  # not on Windows, where nothing forks

    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return f"{SHARED_MEMORY} is missing: workers send their batches through it"
    if free < SHARED_BYTES:
        return f"{SHARED_MEMORY} is full: {free >> 20} MiB left of the {SHARED_BYTES >> 20} that workers need"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    open_now = psutil.Process().num_fds()
    if limit != resource.RLIM_INFINITY and limit - open_now < DESCRIPTORS:
        return f"too few file descriptors: {open_now} of {limit} are in use (ulimit -n raises the limit)"
    return ""


def apart(function: Callable[[Callable[[Any], None]], None], seconds: float) -> Apart:
    """Run ``function(send)`` in a forked process, for at most ``seconds``.

    Parameters
    ----------
    function : callable
        Gets a function that sends one picklable object back. It should catch its own exceptions: what escapes it is
        lost.
    seconds : float
        Own time (see ``own_time``). Then the process is killed: it should have ended itself before.

    Returns
    -------
    Apart
        Always, within the limit, on a busy machine within ``PATIENCE`` times as long. The process and all that it started are gone by then, also after an interrupt.
    """
    lacking = shortage()
    if lacking:
        return Apart(lacking=lacking)
    reader, writer = multiprocessing.Pipe(duplex=False)
    token = os.urandom(16)  # begins every message: what else the function's code writes into the pipe is none
    messages: list[Any] = []
    # A killed process cannot clear up: multiprocessing's own folders, for one, would stay behind.
    temporary = tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True)
    with reader, writer, temporary as folder, tempfile.TemporaryFile() as trace:
        gc.freeze()  # a collection in the forked process would write to every page with an object, and so copy it
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns that threads do not come along. The forked process uses none of the kernel's.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                reader.close()
                _child(function, writer, token, trace, folder)
        except OSError as error:
            return Apart(lacking=f"no further process can be started here ({error})")
        finally:
            gc.unfreeze()
        own = OwnTime(pid)
        try:
            death = _listen(pid, reader, token, messages, seconds, own)
            took = own.seconds()
        finally:
            _end(pid)
        trace.seek(0)
        frames = re.findall(r'^  File "(.+)", line (\d+) in ', trace.read().decode(errors="replace"), re.MULTILINE)
        return Apart(tuple(messages), death, tuple((name, int(line)) for name, line in frames), seconds=took)


def _child(function: Callable, writer: Connection, token: bytes, trace: IO[bytes], folder: str) -> NoReturn:
    """The forked process. Leaves by ``os._exit``: no cleaning up of the process that asked belongs to it."""
    import torch  # here, because graders use this module in processes that need no torch

    code = 1
    try:
        os.setsid()  # a process group of its own, which can be killed as a whole
        _die_with_parent()
        faulthandler.enable(trace)
        tempfile.tempdir = folder
        torch.set_num_threads(1)  # OpenMP's threads did not come along: a parallel loop would wait for them for ever

        def send(message: Any) -> None:
            writer.send_bytes(token + pickle.dumps(message))

        function(send)
        send(_DONE)
        code = 0
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """A kernel that is killed must not leave this process behind (prctl(2), PR_SET_PDEATHSIG = 1)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _listen(pid: int, reader: Connection, token: bytes, messages: list[Any], seconds: float, own: OwnTime) -> str:
    """Collect what the process sends until it is done, dead or too late; how it died, or an empty text."""
    look = seconds  # on the wall: before that, its own time cannot be up
    # The end of the pipe tells nothing: workers that the process has forked hold it open, too.
    while True:
        gone = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while reader.poll(0 if gone else POLL):
            try:
                data = reader.recv_bytes(MAX_MESSAGE)
            except (EOFError, OSError):
                break
            if not data.startswith(token):
                continue
            message = pickle.loads(data[len(token) :])
            if message == _DONE:
                return ""
            messages.append(message)
        if gone:
            if gone.si_code == os.CLD_EXITED:
                return f"the process left with exit code {gone.si_status}"
            return f"the process was ended by {signal.Signals(gone.si_status).name}"
        if own.wall >= look:
            left = seconds - own.seconds()
            if left <= POLL or own.wall >= PATIENCE * seconds:
                return f"still not done after {seconds:.0f} seconds"
            look = own.wall + left


def _end(pid: int) -> None:
    """Kill the process, its group and whatever else descends from it."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):  # some may have left the group
            with contextlib.suppress(psutil.Error):
                process.kill()
    # Not reaped yet, so the number still belongs to it.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def descriptors(expected: int | None = None, patience: float = 5.0) -> int:
    """How many file descriptors this process has open; 0 where the system does not tell (Windows).

    Where there are more than ``expected``, it waits for up to ``patience`` seconds: the thread that feeds a worker's
    queue closes its pipe in its own time.
    """
    process = psutil.Process()
    if not hasattr(process, "num_fds"):
        return 0
    end = time.monotonic() + patience
    while expected is not None and process.num_fds() > expected and time.monotonic() < end:
        time.sleep(POLL)
    return process.num_fds()


def settled_children(patience: float = 5.0) -> list[int]:
    """The processes that this one has started and that still run, in the order of their numbers.

    One that is on its way out gets ``patience`` seconds: on a busy machine an end takes time. The helper processes that
    Python's multiprocessing keeps for itself until the end of the program do not count.
    """
    children = [p for p in psutil.Process().children(recursive=True) if not _is_pythons_own(p)]
    _, alive = psutil.wait_procs(children, timeout=patience)
    return sorted(process.pid for process in alive)


def _is_pythons_own(process: psutil.Process) -> bool:
    """The tracker of named semaphores, or the server that forks: one of each per program, whoever started it."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:  # gone in the meantime, or not to be read: let the caller wait for it
        return False
    return "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command
