"""A control group that bounds how many processes a kernel has.

The system's own limit (RLIMIT_NPROC) does not hold for a superuser, and without a user namespace it counts what else the
user runs. A watchdog alone is too slow: a fork bomb outruns it on a busy machine. A superuser can make a group.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from grading.scratch import PREFIX, claim, sweep

__all__ = ["Group", "can_count", "sweep_groups"]

_PLACES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")  # version 1, version 2


class Group:
    """A group for at most ``processes`` processes and threads. Raises OSError where none can be made."""

    def __init__(self, processes: int) -> None:
        for place in _PLACES * 2:  # a second time, because a sweeper may have been quicker than claim()
            self.path = f"{place}/{PREFIX}{secrets.token_hex(6)}"
            with contextlib.suppress(OSError):
                os.mkdir(self.path)
                self._handle = claim(self.path)
                if self._handle is None:
                    continue
                try:
                    # Opened without creating: the file is there where the controller is on.
                    with open(f"{self.path}/pids.max", "r+") as file:
                        file.write(str(processes))
                    return
                except OSError:
                    self.close()
        raise OSError("no control group can be made here")

    def join(self) -> None:
        """This process and all that it forks from now on belong to it."""
        with open(f"{self.path}/cgroup.procs", "r+") as file:
            file.write("0")

    def close(self) -> None:
        """Remove it, once its processes are gone."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        if self._handle is not None:
            os.close(self._handle)


def sweep_groups() -> None:
    """Remove the groups of keepers that were killed. One that still has processes in it stays."""
    sweep(_PLACES, os.rmdir)


def can_count() -> bool:
    """Whether a group can be made here."""
    try:
        Group(8).close()
    except OSError:
        return False
    return True
