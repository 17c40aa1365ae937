"""Where tasks run: in processes of this machine, or on a Dask cluster.

An engine takes tasks, and gives results in the order in which they are done. A process or a machine that is lost in
mid-work costs a retry of what it was working on, and of nothing else.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from typing import Protocol

import psutil

from grading.autograde.task import Result, Task, grade
from grading.kernels.manager import Warm, use_warm_process

__all__ = ["Cluster", "Engine", "Local", "default_jobs", "run"]

_START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
TRIES = 3  # processes that a submission may lose before it counts as not gradable


class Engine(Protocol):
    """Something that runs tasks."""

    slots: int  # tasks at a time

    def submit(self, task: Task) -> concurrent.futures.Future[Result]: ...

    def stop(self) -> None: ...


def run(engine: Engine, tasks: Iterable[Task]) -> Iterator[Result]:
    """Run all tasks, and yield each result once.

    Tasks are taken from the iterable as places become free, so that few of them are in memory.
    """
    waiting = iter(tasks)
    again: deque[Task] = deque()
    lost: dict[tuple[str, str], int] = {}
    running: dict[concurrent.futures.Future[Result], Task] = {}
    while True:
        while len(running) < engine.slots:
            task = again.popleft() if again else next(waiting, None)
            if task is None:
                break
            running[engine.submit(task)] = task
        if not running:
            return
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            try:
                result = future.result()
            except Exception as error:  # the process is gone, or the result could not travel
                name = task.assignment, task.student
                lost[name] = lost.get(name, 0) + 1
                if lost[name] < TRIES:
                    again.append(task)
                    continue
                result = Result.failed(task, f"{TRIES} processes ended while grading it ({type(error).__name__})")
            yield result


class Local:
    """Processes of this machine, one for each slot and each in a pool of its own: a crash touches nobody else's work.

    They are forked from a process that has imported the grader, and fork kernels from one warm process together.

    Parameters
    ----------
    slots : int
        Submissions at a time.
    work : callable
        What a process does with a task; :func:`grading.autograde.task.grade`, but for tests.
    warm : Warm, optional
        By default each process makes its own.
    """

    def __init__(self, slots: int, work: Callable[[Task], Result] = grade, warm: Warm | None = None) -> None:
        self.slots = slots
        self._work, self._warm = work, warm
        self._context = multiprocessing.get_context(_START)
        if _START == "forkserver":
            self._context.set_forkserver_preload([grade.__module__])
            forkserver.ensure_running()  # it imports while the caller goes on
        self._lanes: list[tuple[ProcessPoolExecutor, int, concurrent.futures.Future[Result]]] = []

    def submit(self, task: Task) -> concurrent.futures.Future[Result]:
        pool, pid = self._take() or self._new()
        future = pool.submit(self._work, task)
        self._lanes.append((pool, pid, future))
        return future

    def _take(self) -> tuple[ProcessPoolExecutor, int] | None:
        """A pool that has done its work well; those whose process is gone are put away."""
        for lane in [lane for lane in self._lanes if lane[2].done()]:
            self._lanes.remove(lane)
            pool, pid, future = lane
            if not future.cancelled() and future.exception() is None:
                return pool, pid
            _end(pool, pid)
        return None

    def _new(self) -> tuple[ProcessPoolExecutor, int]:
        pool = ProcessPoolExecutor(1, self._context, initializer=_begin, initargs=(self._warm,))
        return pool, pool.submit(os.getpid).result()

    def stop(self) -> None:
        """End the processes at once, with everything they have started."""
        for pool, pid, _ in self._lanes:
            _end(pool, pid)


def _end(pool: ProcessPoolExecutor, pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    pool.shutdown(wait=True, cancel_futures=True)


def _begin(warm: Warm | None) -> None:
    """In a new process: leave Ctrl-C to the parent, and do not outlive it."""
    # A handler of our own, not SIG_IGN: that one would be inherited by the kernels.
    signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_follow, daemon=True).start()
    if warm is not None:
        use_warm_process(warm)


def _follow() -> None:
    # Not os.getppid(): the fork server, which that names, lives as long as any of its children.
    multiprocessing.parent_process().join()
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(1)


class Cluster:
    """A Dask cluster; its workers need this package and the course's data, and no folder of this machine.

    Parameters
    ----------
    address : str
        Of the scheduler, such as ``tcp://10.0.0.5:8786``.
    work : callable
        As for :class:`Local`.

    Raises
    ------
    OSError
        If there is no scheduler at the address.
    ValueError
        If it is no address.
    """

    def __init__(self, address: str, work: Callable[[Task], Result] = grade) -> None:
        from distributed import Client

        if not address.startswith(("tcp://", "tls://")):  # a Client refuses it as well, and leaves a traceback behind
            raise ValueError("an address looks like tcp://HOST:8786")
        self._work = work
        self._client = Client(address, timeout="20s", set_as_default=False)
        self._executor = self._client.get_executor(pure=False)

    @property
    def slots(self) -> int:
        """One for each thread of each worker, and one more each, so that none waits for its next task."""
        return 2 * max(1, sum(self._client.nthreads().values()))

    def submit(self, task: Task) -> concurrent.futures.Future[Result]:
        return self._executor.submit(self._work, task)

    def stop(self) -> None:
        self._executor.shutdown(wait=False)  # this cancels what waits
        self._client.close(timeout=5)


def default_jobs() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
