"""Work apart: whatever a process does, there is an answer in time, and nothing of it is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace

import psutil
import pytest
import torch

from course_utils.observe import processes
from course_utils.observe.compare import Behaviour, Kind, compare
from course_utils.observe.plain import Fact
from course_utils.observe.processes import apart, can_fork, settled_children, shortage
from course_utils.observe.registry import Exercise
from course_utils.observe.run import observe

pytestmark = pytest.mark.skipif(not can_fork(), reason="work is done apart where processes fork: on Linux")


def watched(observer, answer=None, seconds=20.0):
    exercise = Exercise("watched", "nowhere", 1.0, 1, 1, 1, (), observer, "", seconds, apart=True)
    return observe(exercise, answer, 0, torch.device("cpu"))


def test_facts_remarks_and_output_do_not_come_back():
    def observer(answer, case, see):
        see("one", answer())
        print("said inside")
        see("two", [2.5, "x"])

    def answer():
        import warnings

        warnings.warn("a warning inside", stacklevel=1)
        return 1

    seen = watched(observer, answer)
    assert seen.values() == [("one", 1), ("two", [2.5, "x"])] and seen.ended is None
    assert "said inside" in seen.output
    assert any("a warning inside" in remark for remark in seen.remarks)


def test_what_an_answer_writes_into_the_pipe_passes_for_facts():
    mine = {int(name) for name in os.listdir("/proc/self/fd")}

    def forge():
        for descriptor in set(range(3, 64)) - mine:
            with contextlib.suppress(OSError):
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    link = Connection(os.dup(descriptor), readable=False)
                    link.send(Fact("one", "forged"))
                    link.send_bytes(b"no pickle")
        return "right"

    seen = watched(lambda answer, case, see: see("one", answer()), forge)
    assert (seen.values(), seen.ended) == ([("one", "right")], None)


def test_an_exception_loses_the_students_own_line():
    seen = watched(lambda answer, case, see: answer(), lambda: [][3])
    assert (seen.ended.kind, seen.ended.error) == ("crashed", "IndexError")
    assert "[][3]" in seen.ended.line


def test_what_a_worker_raised_is_hidden_behind_the_loaders_words():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            raise KeyError("no such image")

    def observer(answer, case, see):
        list(torch.utils.data.DataLoader(answer(), num_workers=1, multiprocessing_context="fork"))

    ended = watched(observer, Broken).ended
    assert "no such image" in ended.message and "in a worker" in ended.message
    assert "raise KeyError" in ended.line


@pytest.mark.parametrize("stubborn", [False, True], ids=["waits", "swallows_everything"])
def test_an_answer_that_never_ends_hangs_the_check(stubborn):
    def answer():
        while True:
            try:
                time.sleep(60)
            except BaseException:
                if not stubborn:
                    raise

    def observer(answer, case, see):
        see("before", 1)
        answer()

    started = time.monotonic()
    seen = watched(observer, answer, seconds=0.5)
    assert time.monotonic() - started < 20
    assert seen.values() == [("before", 1)], "what was seen before counts"
    assert seen.ended.kind == "crashed" and "still" in seen.ended.message
    assert settled_children() == []


def test_a_data_set_that_blocks_in_a_worker_hangs_the_check():
    class Blocks(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(60)

    def observer(answer, case, see):
        list(torch.utils.data.DataLoader(answer(), num_workers=2, multiprocessing_context="fork"))

    seen = watched(observer, Blocks, seconds=1.0)
    assert seen.ended.kind == "crashed" and "still" in seen.ended.message
    assert settled_children() == []


def test_a_crash_below_python_takes_the_kernel_along():
    def observer(answer, case, see):
        see("before", 1)
        answer()

    seen = watched(observer, lambda: ctypes.string_at(0))
    assert seen.values() == [("before", 1)]
    assert (seen.ended.error, seen.ended.message) == ("ProcessEnded", "the process was ended by SIGSEGV")
    assert "string_at(0)" in seen.ended.line


def test_a_worker_that_dies_is_no_clear_verdict():
    class Dies(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    def observer(answer, case, see):
        list(torch.utils.data.DataLoader(answer(), num_workers=1, multiprocessing_context="fork"))

    seen = watched(observer, Dies)
    assert seen.ended.error == "RuntimeError" and "worker" in seen.ended.message
    assert settled_children() == []


def test_processes_that_an_answer_starts_outlive_the_check():
    def daemon():
        if os.fork() == 0:
            os.setsid()  # out of the group that is killed as a whole
            time.sleep(60)
        time.sleep(0.2)
        return 1

    watched(lambda answer, case, see: see("one", answer()), daemon)
    assert settled_children() == []


def test_a_killed_process_leaves_temporary_files_behind(tmp_path, monkeypatch):
    def makes_folders_and_dies(_send):
        tempfile.mkdtemp(prefix="pymp-")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert "SIGKILL" in apart(makes_folders_and_dies, 10.0).death
    assert list(tmp_path.iterdir()) == []


def test_an_exit_in_an_answer_ends_the_notebook():
    assert watched(lambda answer, case, see: answer(), lambda: os._exit(3)).ended.message.endswith("exit code 3")


def test_an_answer_as_handed_out_counts_as_a_crash():
    def untouched():
        raise NotImplementedError

    assert watched(lambda answer, case, see: answer(), untouched).ended.kind == "not started"


def test_an_interrupt_leaves_the_process_running():
    def interrupted(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            apart(lambda send: time.sleep(60), 30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert settled_children() == []


def test_a_killed_kernel_leaves_the_process_running():
    program = (
        "import time\nfrom course_utils.observe.processes import apart\n"
        "apart(lambda send: (print(__import__('os').getpid(), flush=True), time.sleep(60)), 60)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(kernel.stdout.readline()))
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    child_gone, _ = psutil.wait_procs([child], timeout=10)
    assert child_gone or child.status() == psutil.STATUS_ZOMBIE


def _lacking(monkeypatch, **changes):
    if "free" in changes:
        monkeypatch.setattr(processes.shutil, "disk_usage", lambda path: SimpleNamespace(free=changes["free"]))
    if "files" in changes:
        monkeypatch.setattr(processes, "DESCRIPTORS", changes["files"])


@pytest.mark.parametrize(
    ("changes", "says"), [({"free": 1 << 20}, "/dev/shm is full"), ({"files": 1 << 40}, "too few file descriptors")]
)
def test_a_machine_that_is_short_of_something_costs_marks(monkeypatch, changes, says):
    observer = lambda answer, case, see: see("one", 1)  # noqa: E731
    expected = Behaviour("watched", watched(observer).facts)
    _lacking(monkeypatch, **changes)
    seen = watched(observer)
    verdict = compare(expected, seen.values(), seen.ended, 1.0)
    assert verdict.kind is Kind.NOT_GRADABLE and says in verdict.detail


def test_shared_memory_that_is_missing_is_no_shortage(monkeypatch):
    monkeypatch.setattr(processes, "SHARED_MEMORY", "/no/such/folder")
    assert "is missing" in shortage()


def test_no_process_to_be_had_is_an_error_of_the_answer(monkeypatch):
    def refused():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(processes.os, "fork", refused)
    assert watched(lambda answer, case, see: see("one", 1)).ended.kind == "machine"


def test_a_child_that_is_about_to_end_counts_as_left():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    try:
        assert child.pid in settled_children(0)
        assert child.pid not in settled_children(20.0)
    finally:
        child.wait()


def test_pythons_own_tracker_of_semaphores_counts_as_a_process_of_the_answer():
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    assert resource_tracker._resource_tracker._pid in [p.pid for p in psutil.Process().children()]
    assert settled_children(0) == []
