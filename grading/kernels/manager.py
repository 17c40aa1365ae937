"""Kernels for nbclient: forked from a warm process, kept within limits, spoken to over sockets in a private folder."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

from course_utils.observe.processes import can_fork
from grading.kernels.keeper import End, Order
from grading.kernels.warm import PRELOAD
from grading.sandbox import box, bubblewrap
from grading.sandbox.offer import Offer, choose
from grading.sandbox.settings import Sandbox
from grading.scratch import Scratch, sweep_scratch
from grading.source import ROOT

__all__ = ["KernelNotStarted", "StudentKernel", "Warm", "use_warm_process", "warm_process"]

MAX_MESSAGE = 64 << 20  # bytes of one part of a message; a kernel that sends more is cut off
_MIB = 1 << 20


class KernelNotStarted(RuntimeError):
    """No kernel came up: the machine's fault, not the student's."""


# ------------------------------------------------------------------------------------------------ the warm process
class Warm:
    """A process of ``grading.kernels.warm`` that runs already: its socket, and the folder in which its kernels have theirs.

    It may be given to other processes of :mod:`multiprocessing`, which then start kernels from it as well: it takes seconds
    and some hundred MB to make one.
    """

    def __init__(self, modules: tuple[str, ...], folder: Path, data_files: list[str], channel: socket.socket) -> None:
        self.modules, self.folder, self.data_files = modules, folder, data_files
        self.data, self.package = folder / "data", folder / "package"
        self._channel = channel

    def __reduce__(self) -> tuple[Any, ...]:
        return Warm, (self.modules, self.folder, self.data_files, self._channel)

    def alive(self) -> bool:
        look = select.poll()
        look.register(self._channel, 0)
        return not look.poll(0)  # it only ever says that the other end is gone

    def start(self, order: Order, seconds: float) -> KeptProcess:
        """Send an order; the process, once it runs. Raises KernelNotStarted."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._channel, [order.to_text().encode()], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise KernelNotStarted(f"the process that forks kernels is gone: {error}") from None
        return KeptProcess(mine, seconds)

    def close(self) -> None:
        self._channel.close()


class WarmProcess(Warm):
    """A warm process of this process's own: it starts it, and ends it."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        # Socket names are short, at most 107 characters with the folder; some systems' temporary folders are not.
        short = len(tempfile.gettempdir()) < 50
        sweep_scratch()
        self._scratch = Scratch(None if short else "/tmp")
        folder = self._scratch.path
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(modules, folder, box.data_view(folder / "data"), mine)
        # Landlock forbids to list the course's folder, and so to find the package in it.
        self.package.mkdir()
        (self.package / "course_utils").symlink_to(ROOT / "course_utils")
        self._pid = os.getpid()
        variables = {
            **box.environment(os.environ.get("HOME", "/"), str(self.data), []),
            "TMPDIR": str(self.folder),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a note of the debugger's on every start; nothing is debugged here
        }
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "IPYTHONDIR"):
            variables.pop(name)  # it imports as the instructor would: the font list is there already
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "grading.kernels.warm", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is for the grading process
            )
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() != self._pid:  # a copy in a forked process: not its own
            return
        atexit.unregister(self.close)
        super().close()
        self._process.kill()
        self._process.wait()
        self._scratch.close()


_warm_processes: dict[tuple[int, tuple[str, ...]], Warm] = {}


def warm_process(sandbox: Sandbox) -> Warm:
    """The warm process of this grading process; started at the first call, and again where it has died."""
    modules = PRELOAD if sandbox.warm else ()
    process = _warm_processes.get((os.getpid(), modules))
    if process is None or not process.alive():
        if process is not None:
            process.close()
        process = WarmProcess(modules)
        use_warm_process(process)
    return process


def use_warm_process(process: Warm) -> None:
    """From now on this process starts its kernels from another's warm process, and makes one of its own when that dies."""
    _warm_processes[os.getpid(), process.modules] = process


class KeptProcess:
    """A kernel and its keeper, as far as jupyter_client wants a ``Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, channel: socket.socket, seconds: float) -> None:
        self._channel, self.end = channel, None
        channel.settimeout(seconds)
        try:
            self.pid = self._hear().get("pid", 0)
        except TimeoutError:
            channel.close()
            raise KernelNotStarted(f"no kernel came up within {seconds:g} seconds") from None
        channel.setblocking(False)
        if self.end is not None:
            raise KernelNotStarted(f"the kernel's process could not be started: {self.end.said.strip()[-500:]}")

    def _hear(self) -> dict[str, Any]:
        try:
            text = self._channel.recv(1 << 16)
        except ConnectionError:
            text = b""
        word = json.loads(text) if text else {"end": {"status": -9, "cause": "machine", "said": "its keeper is gone"}}
        if "end" in word:
            self.end = End(**word["end"])
            self._channel.close()
        return word

    def poll(self) -> int | None:
        while self.end is None:
            try:
                self._hear()
            except BlockingIOError:
                return None
        return self.end.status

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("kernel", timeout)
            time.sleep(0.005)
        return self.end.status

    def say(self, **word: Any) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):
                self._channel.send(json.dumps(word).encode())

    def send_signal(self, number: int) -> None:
        self.say(do="signal", number=int(number))

    def kill(self) -> None:
        self.say(do="end")

    terminate = kill


# ------------------------------------------------------------------------------------------------ jupyter_client
class _Provisioner(LocalProvisioner):
    """Starts kernels through the warm process, and signals and ends them through their keepers."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        kernel: StudentKernel = self.parent
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        self.process = kernel.launch(arguments)
        self.pid = self.process.pid
        return self.connection_info

    async def send_signal(self, signum: int) -> None:
        if self.process is not None:
            self.process.send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        """End the kernel and everything that it has started; they are gone when this returns."""
        if self.process is not None:
            self.process.kill()
            for _ in range(6000):  # the manager would look again after a tenth of a second
                if self.process.poll() is not None:
                    return
                await asyncio.sleep(0.005)

    terminate = kill


class StudentKernel(AsyncKernelManager):
    """The kernel of one submission.

    Parameters
    ----------
    sandbox : Sandbox
    source : str
        The folder with the submitted files.
    """

    def __init__(self, sandbox: Sandbox, source: str, **settings: Any) -> None:
        super().__init__(kernel_name="python3", **settings)
        self.sandbox, self.source = sandbox, os.path.abspath(source)
        self.process: KeptProcess | None = None
        # Whatever a notebook, or somebody's Jupyter folder, calls its kernel: the course's Python.
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._kernel_spec = KernelSpec(argv=command, display_name="Python 3", language="python")
        self.transport, self.transport_encryption = "ipc", "disabled"  # the folder is private
        self.kept = can_fork()
        if self.kept:
            self._warm = warm_process(sandbox)
            self._folder = Path(tempfile.mkdtemp(prefix="k", dir=self._warm.folder))
            self.provisioner = _Provisioner(kernel_id="kernel", kernel_spec=self._kernel_spec, parent=self)
        else:
            _say_once(self.log)
            self._folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        self._sockets = self._folder / "s"
        self._sockets.mkdir()
        self.connection_file = str(self._sockets / "c.json")
        self.ip = str(self._sockets / "k")
        # A default for all sockets of this kernel; what is larger closes the connection.
        self.context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)

    # ------------------------------------------------------------------------------------------ limits and end
    def limit(self, seconds: float | None, patience: float = 10) -> None:
        """From now on the kernel may take so many own seconds, and ``patience`` times as many on the wall; None: no limit."""
        if self.process is not None:
            wall = None if seconds is None else seconds * patience
            self.process.say(do="limit", seconds=seconds, patience=wall)

    def end(self) -> End | None:
        """How the kernel ended; None where it has not, or where it has no keeper."""
        if self.process is None or self.process.poll() is None:
            return None
        return self.process.end

    def remove_files(self) -> None:
        """Remove its folder. Only once it has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------ start
    def launch(self, arguments: list[str]) -> KeptProcess:
        offer = choose(self.sandbox.kind)
        _warn_once(self.log, offer)
        order = self._order(offer.kind, arguments)
        self.process = self._warm.start(order, self.sandbox.start_seconds)
        return self.process

    def _order(self, kind: str, arguments: list[str]) -> Order:
        settings, data = self.sandbox, str(self._warm.data)
        system = [*box.system_folders(), *box.python_folders()]
        readable = [*system, str(ROOT / "course_utils"), data, *self._warm.data_files]
        sockets, room, disk, package = str(self._sockets), [], "", str(ROOT)
        if kind == "bubblewrap":
            hidden = [str(ROOT)] if box.exposing(system) else []
            room = bubblewrap.arguments(readable, hidden, sockets, self.source, settings.scratch)
            home, source, inside = "/tmp/student", bubblewrap.SUBMISSION, bubblewrap.SOCKETS
            readable, writable = ["/"], ["/tmp", "/dev"]
            self._rename_sockets(inside)
            arguments = [a.replace(sockets, inside) for a in arguments]
        else:
            home, source, inside = str(self._folder / "student"), self.source, sockets
            os.mkdir(home)
            disk, package = home, str(self._warm.package)
            readable += [package, "/proc", "/dev"]
            writable = [home, *(f"/dev/{n}" for n in ("null", "zero", "full", "random", "urandom", "shm"))]
        return Order(
            kind=kind,
            arguments=arguments,
            environment={
                **box.environment(home, data, list(settings.variables)),
                "PYTHONPATH": package,
                "NBGRADER_EXECUTION": "autograde",
            },
            source=source,
            work=f"{home}/work",
            sockets=sockets,
            inside=inside,
            grader=os.getpid(),
            memory=settings.memory * _MIB,
            processes=settings.processes,
            file_size=settings.file_size * _MIB,
            scratch=settings.scratch * _MIB,
            flood=settings.flood * _MIB,
            room=room,
            readable=readable,
            writable=writable,
            disk=disk,
        )

    def _reconcile_connection_info(self, info: dict[str, Any]) -> None:
        """jupyter_client would write the connection file anew, for the other side of the wall."""

    def _rename_sockets(self, inside: str) -> None:
        """In the connection file, which the kernel reads, the folder has its name inside the room."""
        path = Path(self.connection_file)
        path.write_text(json.dumps({**json.loads(path.read_text()), "ip": f"{inside}/k"}))


@functools.cache
def _warn_once(log: logging.Logger, offer: Offer) -> None:
    if offer.open:
        log.warning(
            "student code runs in a sandbox of the kind %r, which leaves open: %s. "
            "`python -m grading.sandbox` says what is missing.",
            offer.kind,
            "; ".join(offer.open),
        )


@functools.cache
def _say_once(log: logging.Logger) -> None:
    log.warning(
        "kernels cannot be forked on this system: each one imports torch anew, in no sandbox and without limits but time"
    )
