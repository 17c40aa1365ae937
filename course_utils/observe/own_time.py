"""How long some code really took: what it computed and what it slept, without what it waited for a processor.

A limit by the clock on the wall punishes a right answer for a busy machine, and a limit on processor time never ends
an answer that sleeps. Linux tells for every thread how long it ran and how long it stood in the queue for a processor
(``/proc/PID/task/TID/schedstat``: nanoseconds running, nanoseconds waiting, number of turns; source: the kernel's
documentation, sched-stats). Where the system does not tell, own time is time on the wall.
"""

from __future__ import annotations

import contextlib
import os
import time

import psutil

__all__ = ["PATIENCE", "OwnTime", "family"]

PATIENCE = 10  # whoever limits own time also ends what has taken this many times as long on the wall


def family(pid: int) -> list[int]:
    """The process and all its living descendants, parents first."""
    found = [pid]
    for parent in found:  # grows while it is read
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    found += map(int, file.read().split())
        except FileNotFoundError:
            if parent == pid and not os.path.exists(
                f"/proc/{pid}/task/{pid}/children"
            ):  # the kernel does not list them
                with contextlib.suppress(psutil.Error):
                    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        except (OSError, ValueError):  # ended meanwhile
            continue
    return found


class OwnTime:
    """The own time of a process and its descendants from now on.

    Parameters
    ----------
    pid : int, optional
        By default this process.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = os.getpid() if pid is None else pid
        self._begun = self._then = time.monotonic()
        self._threads = self._read(family(self._pid))
        self._own = 0.0

    @property
    def wall(self) -> float:
        """Seconds on the wall."""
        return time.monotonic() - self._begun

    def seconds(self, pids: list[int] | None = None) -> float:
        """Own seconds so far, never more than on the wall.

        What a process did that began and ended between two calls is unknown, and counts as sleep. ``pids`` spares the search
        for descendants where the caller knows them.
        """
        now, threads = time.monotonic(), self._read(family(self._pid) if pids is None else pids)
        ran = waited = 0
        for key, (running, waiting) in threads.items():
            before = self._threads.get(key, (0, 0))
            ran, waited = ran + running - before[0], waited + waiting - before[1]
        passed = now - self._then
        # Several threads may wait at once: whatever they lost, what was computed counts.
        self._own += max(min(passed, ran / 1e9), passed - waited / 1e9, 0.0)
        self._then, self._threads = now, threads
        return self._own

    @staticmethod
    def _read(pids: list[int]) -> dict[tuple[int, str], tuple[int, int]]:
        threads = {}
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                        running, waiting, _ = file.read().split()
                    threads[pid, task] = int(running), int(waiting)
        return threads
