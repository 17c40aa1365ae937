"""A room made by bubblewrap: a process that does nothing stands in it, and a kernel that was forked elsewhere walks in.

bubblewrap builds the namespaces and mounts, the part that is easy to get wrong. It can only start a program in them,
which would have to import torch; a forked process, which has torch already, joins them with setns(2).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable

from grading.source import ROOT

__all__ = ["SOCKETS", "SUBMISSION", "Room", "arguments", "missing"]

SUBMISSION = "/submission"  # inside: the submitted files, read-only
SOCKETS = "/sockets"  # inside: the folder of the kernel's sockets
_MIB = 1 << 20
_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{n}" for n in range(16)))


def arguments(readable: Iterable[str], hidden: Iterable[str], sockets: str, submission: str, scratch: int) -> list[str]:
    """bubblewrap's arguments: /tmp and /dev/shm of ``scratch`` MiB each are all that can be written, besides ``sockets``.

    ``hidden`` folders are empty, even inside a readable one, up to what is readable below them.
    """
    size = ["--size", str(scratch * _MIB)]
    command = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--hostname", "room"]
    command += [*size, "--tmpfs", "/tmp"]
    places = [(path, True) for path in readable] + [(path, False) for path in hidden]
    for path, shown in sorted(set(places)):  # a folder before what lies in it
        if not shown:
            command += ["--tmpfs", path]
        elif os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm"]
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    command += ["--bind", sockets, SOCKETS, "--ro-bind", submission, SUBMISSION]
    for path in [*hidden, "/dev", "/"]:
        command += ["--remount-ro", path]
    return command


class Room:
    """The namespaces, kept alive by a ``cat`` that ends when this object's process does.

    Attributes
    ----------
    pid : int
        The first process inside, as seen from outside. When it is killed, everything inside is killed with it.
    """

    def __init__(self, options: list[str]) -> None:
        told, tell = os.pipe()
        with os.fdopen(told) as info:
            self._outer = subprocess.Popen(
                ["bwrap", "--info-fd", str(tell), *options, "--", "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"PATH": os.defpath},
                pass_fds=[tell],
            )
            os.close(tell)
            # What cat gives back says that everything is mounted.
            with contextlib.suppress(BrokenPipeError):
                self._outer.stdin.write(b"\n")
                self._outer.stdin.flush()
            if self._outer.stdout.readline() != b"\n":
                self._outer.kill()
                raise OSError(self._outer.communicate()[1].decode(errors="replace").strip() or "bubblewrap ended")
            self.pid: int = json.load(info)["child-pid"]
            self._first = os.pidfd_open(self.pid)  # a number alone may belong to another process one day
        # What is written to these would come from inside.
        self._outer.stdout.close()
        self._outer.stderr.close()

    def kill(self) -> None:
        """End everything inside at once; the kernel does it, no process can get away."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._outer.stdin.close()
        self._outer.wait()
        os.close(self._first)


def missing() -> str:
    """Why bubblewrap cannot be used here; empty where it can."""
    if shutil.which("bwrap") is None:
        return "the program bwrap is not installed (Debian, Ubuntu, Fedora, Arch: the package bubblewrap)"
    shown = [p for p in ("/usr", "/bin", "/lib", "/lib64") if os.path.lexists(p)]
    try:
        room = Room(arguments(shown, [], "/tmp", "/tmp", 16))
    except OSError as error:
        return f"bwrap does not run here: {error}"
    try:
        return _walk_in(room.pid)
    finally:
        room.close()


def _walk_in(pid: int) -> str:
    """Try it, in a process that ends with it."""
    program = "import sys; from grading.sandbox.linux import enter_namespaces; enter_namespaces(int(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(pid)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return "" if ended.returncode == 0 else f"its namespaces cannot be joined: {ended.stderr.strip().splitlines()[-1]}"
