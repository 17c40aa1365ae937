"""Which sandbox this machine can offer, and what each leaves open."""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import dataclass

from grading.sandbox import box, bubblewrap
from grading.sandbox.counted import can_count

__all__ = ["Offer", "SandboxMissing", "choose", "offers"]


class SandboxMissing(RuntimeError):
    """The settings ask for a sandbox that this machine cannot make."""


@dataclass(frozen=True)
class Offer:
    """One kind of sandbox.

    Attributes
    ----------
    kind : str
    lacking : str
        Why it cannot be used here; empty where it can.
    open : tuple of str
        What it does not keep a student's code from, each one line.
    """

    kind: str
    lacking: str
    open: tuple[str, ...] = ()


@functools.cache
def offers() -> tuple[Offer, ...]:
    """All kinds, the strongest first. Tries them once per process: about a tenth of a second."""
    if sys.platform != "linux":
        reason = f"sandboxes are made with means of Linux; this is {platform.system()}"
        return (Offer("bubblewrap", reason), Offer("landlock", reason), _none())
    return (_bubblewrap(), _landlock(), _none())


_UNCOUNTED = "a fork bomb is ended by a watchdog alone, which a busy machine can be too slow for"


def _bubblewrap() -> Offer:
    # As a superuser the limit on processes needs a control group; for others the system has one per namespace.
    counted = os.getuid() != 0 or can_count()
    return Offer(
        "bubblewrap", bubblewrap.missing(), () if counted else (f"{_UNCOUNTED}: grade as another user than root",)
    )


def _landlock() -> Offer:
    from grading.sandbox import linux

    lacking, version = "", linux.landlock_version()
    shown = box.exposing([*box.system_folders(), *box.python_folders()])
    if version < 1:
        lacking = "this kernel has no Landlock, or it is switched off (Linux 5.13 and later, `lsm=` at boot)"
    elif platform.machine() not in linux.MACHINES:
        lacking = f"there is no list of system calls for {platform.machine()}"
    elif shown:
        lacking = f"the course lies inside {shown}, which kernels must be able to read: move it elsewhere"
    still_open = [
        "it can talk to local services that listen on a socket file (docker.sock, an ssh agent)",
        "it sees the names of your other processes",
        "files in /dev/shm are shared by all kernels of one user, and not limited in number",
        "scratch files lie on your disk; their size is looked at twice a second",
    ]
    if version < 6:
        still_open.insert(0, "it can send signals to your other processes, and so end the grading (until Linux 6.12)")
    if not can_count():
        still_open.append(_UNCOUNTED)
    return Offer("landlock", lacking, tuple(still_open))


def _none() -> Offer:
    still_open = ["it reads and writes whatever you can: solutions, gradebook, home", "it uses the network"]
    if sys.platform != "linux":
        still_open += ["memory, processes and files are not limited; time is limited by the clock"]
    return Offer("none", "", tuple(still_open))


def choose(kind: str = "auto") -> Offer:
    """The kind that was asked for, or the strongest that can be used.

    Raises
    ------
    SandboxMissing
        If a certain kind was asked for and cannot be used here; the message says why.
    """
    if kind == "auto":
        return next(offer for offer in offers() if not offer.lacking)
    offer = next(offer for offer in offers() if offer.kind == kind)
    if offer.lacking:
        raise SandboxMissing(
            f"no sandbox of the kind {kind}: {offer.lacking}. Sandbox.kind = 'auto' takes the strongest that there is."
        )
    return offer
