"""The keeper of one kernel: starts it in its sandbox, watches its limits, and leaves nothing of it behind.

It is forked from the warm process, stays outside the sandbox, and has the kernel and all that descends from it below
itself: it adopts what loses its parent. It talks to the grading process over a socket pair and ends everything when
that process is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from course_utils.observe.own_time import OwnTime, family
from grading.sandbox import linux
from grading.sandbox.box import copy_submission
from grading.sandbox.bubblewrap import Room
from grading.sandbox.counted import Group

__all__ = ["End", "Order", "keep"]

TICK = 0.1  # seconds between two looks
EXACT = 0.5  # seconds between two exact measurements of memory, which cost some milliseconds a process
DISK = 0.5  # seconds between two looks at the files on a disk
THREADS = 4  # that a process may have, on the average, where threads are counted with the processes
FIRST = -10  # priority of the keeper, where it may choose: it must not stand in a queue behind what it watches
SAID = 2000  # characters kept of what a kernel wrote before it had a place for it
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Order:
    """How to start a kernel. Plain values: it is sent as JSON. Sizes are in bytes.

    Attributes
    ----------
    kind : str
        ``bubblewrap``, ``landlock`` or ``none``.
    arguments : list of str
        Of ipykernel.
    environment : dict
        All variables; ``HOME`` is the writable folder.
    source, work : str
        The submitted files, as the kernel's process finds them, and where to copy them: its working folder.
    sockets, inside : str
        The folder for its sockets and its connection file; ``inside`` is its name in the room.
    room : list of str
        bubblewrap's arguments, where it is used.
    readable, writable : list of str
        For Landlock.
    disk : str
        A folder on the instructor's disk that the kernel writes to; empty where it writes to memory of limited size.
    grader : int
        The grading process.
    """

    kind: str
    arguments: list[str]
    environment: dict[str, str]
    source: str
    work: str
    sockets: str
    inside: str
    grader: int
    memory: int
    processes: int
    file_size: int
    scratch: int
    flood: int
    room: list[str] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    disk: str = ""

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class End:
    """How a kernel ended.

    Attributes
    ----------
    status : int
        Exit code, or the number of a signal, negative.
    cause : str
        What the keeper ended it for: ``time``, ``wall``, ``memory``, ``processes``, ``disk``, ``flood``, ``asked``; or
        ``machine`` where the system ran out of memory; empty where it ended by itself.
    said : str
        The end of what it wrote to its own standard error, such as the trace of a crash below Python.
    """

    status: int
    cause: str = ""
    said: str = ""


def keep(channel: socket.socket, order: Order, kernel: Callable[[Order], None]) -> None:
    """Run one kernel from start to end. Never returns an error: what goes wrong is sent as the kernel's end."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            end = _Keeper(channel, order).run(kernel)
        except Exception:
            end = End(1, "start", traceback.format_exc()[-SAID:])
        channel.send(json.dumps({"end": asdict(end)}).encode())


class _Keeper:
    def __init__(self, channel: socket.socket, order: Order) -> None:
        self._channel, self._order = channel, order
        self._room: Room | None = None
        self._group: Group | None = None
        self._kernel = 0
        self._cause, self._status = "", None
        self._said = b""
        self._limit: tuple[float, float] | None = None  # own seconds, and seconds on the wall
        self._exact_at = self._disk_at = 0.0
        self._grader_before = _resident(order.grader)
        self._kills_before = _out_of_memory_kills()

    def run(self, kernel: Callable[[Order], None]) -> End:
        linux.adopt_orphans()
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, FIRST)
        with contextlib.suppress(OSError):
            self._group = Group(self._order.processes * THREADS)
        try:
            if self._order.kind == "bubblewrap":
                self._room = Room(self._order.room)
            heard = self._start(kernel)
            self._channel.send(json.dumps({"pid": self._kernel}).encode())
            self._watch(heard)
        finally:
            self._end_all()
            if self._group is not None:
                self._group.close()
        if self._status == -signal.SIGKILL and not self._cause and _out_of_memory_kills() > self._kills_before:
            self._cause = "machine"
        said = self._said[-SAID:].decode(errors="replace")
        return End(1 if self._status is None else self._status, self._cause, said)

    # ------------------------------------------------------------------------------------------------ start
    def _start(self, kernel: Callable[[Order], None]) -> int:
        """Fork the kernel, inside the room if there is one; the file on which its standard error is heard."""
        heard, say = os.pipe()
        told, tell = os.pipe()
        if self._room is None:
            self._kernel = os.fork()
            if self._kernel == 0:
                self._step_down()
                _become(kernel, self._order, say)
        elif (guide := os.fork()) == 0:
            # Only a process that is forked after entering is inside; and the keeper has to stay outside.
            code = 1
            try:
                self._step_down()
                linux.enter_namespaces(self._room.pid)
                pid = os.fork()
                if pid == 0:
                    _become(kernel, self._order, say)
                os.write(tell, b"%d" % pid)
                code = 0
            except OSError:
                os.write(say, traceback.format_exc().encode())
            finally:
                os._exit(code)
        else:
            os.close(tell)
            os.waitpid(guide, 0)
            self._kernel = int(os.read(told, 32) or 0)
        os.close(say)
        os.close(told)
        if not self._kernel:
            raise OSError(os.read(heard, SAID).decode(errors="replace"))
        return heard

    def _step_down(self) -> None:
        """In the process that becomes the kernel: the usual priority, and counted from now on."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self._usual)
        if self._group is not None:
            self._group.join()

    # ------------------------------------------------------------------------------------------------ watch
    def _watch(self, heard: int) -> None:
        ended = os.pidfd_open(self._kernel)
        self._own = OwnTime(self._kernel)
        with selectors.DefaultSelector() as events:
            for file in (self._channel, heard, ended):
                events.register(file, selectors.EVENT_READ)
            look = 0.0
            while self._status is None and not self._cause:
                for key, _ in events.select(TICK):
                    if key.fileobj is self._channel:
                        self._obey()
                    elif key.fileobj == heard:
                        text = os.read(heard, 65536)
                        self._said = (self._said + text)[-SAID:]
                        if not text:
                            events.unregister(heard)
                self._reap()
                if time.monotonic() >= look:
                    self._cause = self._cause or self._look()
                    look = time.monotonic() + TICK
        os.close(ended)
        os.set_blocking(heard, False)
        with contextlib.suppress(BlockingIOError):
            self._said = (self._said + os.read(heard, 65536))[-SAID:]
        os.close(heard)

    def _obey(self) -> None:
        """Do what the grading process says; when it is gone, end."""
        text = self._channel.recv(4096)
        word = json.loads(text) if text else {"do": "end"}
        if word["do"] == "limit":
            self._limit = None if word["seconds"] is None else (word["seconds"], word["patience"])
            self._own = OwnTime(self._kernel)
        elif word["do"] == "signal":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._kernel, word["number"])
        else:
            self._cause = "asked"

    def _look(self) -> str:
        """The first limit that is passed, or an empty text."""
        order = self._order
        pids = family(os.getpid())[1:]
        if len(pids) > order.processes:
            return "processes"
        if self._limit is not None:
            if self._own.seconds(pids) > self._limit[0]:
                return "time"
            if self._own.wall > self._limit[1]:
                return "wall"
        if self._memory(pids) > order.memory:
            return "memory"
        if _resident(order.grader) - self._grader_before > order.flood:
            return "flood"
        # Sockets alone belong there, a handful.
        if len(os.listdir(order.sockets)) > 64:
            return "disk"
        if order.disk and time.monotonic() >= self._disk_at:
            self._disk_at = time.monotonic() + DISK
            if _size(order.disk, order.scratch) > order.scratch:
                return "disk"
        return ""

    def _memory(self, pids: list[int]) -> int:
        """Private bytes of all processes together.

        The quick figure counts what was shared when a process was forked once for each. Where it is above the limit the
        proportional one decides, which the system takes longer to tell.
        """
        quick = {pid: _anonymous(pid) for pid in pids}
        total = sum(quick.values())
        if total <= self._order.memory:
            return total
        if time.monotonic() < self._exact_at:
            return 0
        self._exact_at = time.monotonic() + EXACT
        return sum(_proportional(pid, quick[pid]) for pid in pids)

    # ------------------------------------------------------------------------------------------------ end
    def _reap(self) -> bool:
        """Take note of what has ended; False when nothing is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._kernel:
                self._status = os.waitstatus_to_exitcode(status)

    def _end_all(self) -> None:
        """Kill the kernel and whatever it has started, and wait until all of it is gone."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self._room is not None:
                self._room.kill()
            # Stopped first, so that none forks another one while the others are being killed.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in family(os.getpid())[1:]:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            if not self._reap():
                return
            time.sleep(0.002)


def _become(kernel: Callable[[Order], None], order: Order, say: int) -> None:
    """In the forked process: give up what is not needed, and be the kernel. Does not return."""
    code = 70
    try:
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when the machine runs out of memory, this process goes before the grading one
        if order.kind != "bubblewrap":  # there the room ends with the keeper; and the parent here is already gone
            linux.die_with_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, say), (2, say)):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(order.environment)
        copy_submission(order.source, order.work, order.scratch // 2)
        os.makedirs(order.environment["TMPDIR"], exist_ok=True)
        os.chdir(order.work)
        linux.set_limits(order.memory, order.file_size, order.processes * THREADS if order.kind == "bubblewrap" else 0)
        if order.kind != "none":
            linux.drop_capabilities()
            if linux.landlock_version() and order.readable:
                linux.allow_files_only(order.readable, order.writable, [order.inside])
            linux.forbid_calls(network=order.kind == "bubblewrap")
        kernel(order)
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


# ------------------------------------------------------------------------------------------------ figures of the system
def _fields(path: str) -> dict[str, int]:
    """The lines ``name: number kB`` of a file in /proc, in bytes."""
    found = {}
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            name, _, rest = line.partition(":")
            if rest.rstrip().endswith(" kB"):
                found[name] = int(rest.split()[0]) << 10
    return found


def _anonymous(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def _proportional(pid: int, otherwise: int) -> int:
    fields = _fields(f"/proc/{pid}/smaps_rollup")
    return fields.get("Pss_Anon", fields.get("Pss", otherwise))


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _out_of_memory_kills() -> int:
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _size(folder: str, most: int) -> int:
    """Bytes of all files below a folder; stops counting above ``most``. Empty files count as a page each."""
    total = 0
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            with contextlib.suppress(OSError):
                total += max(os.lstat(os.path.join(place, name)).st_blocks * 512, _PAGE)
        if total > most:
            break
    return total
