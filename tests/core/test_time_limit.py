"""An answer that does not come back: the check does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from course_utils.observe import message
from course_utils.observe.compare import Behaviour, Kind, compare
from course_utils.observe.registry import Exercise
from course_utils.observe.run import observe

CPU = torch.device("cpu")


def observer(answer, case, see):
    see("value", answer())


def exercise(seconds):
    return Exercise("thing", "nowhere", 2.0, 1, 1, 2, (), observer, "", seconds)


def endless():
    while True:
        pass


def endless_and_deaf():
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def test_an_endless_loop_becomes_a_verdict_with_the_learners_own_line():
    for answer in (endless, endless_and_deaf):
        seen = observe(exercise(0.2), answer, 1, CPU)
        verdict = compare(Behaviour("thing", observe(exercise(30), lambda: 1, 1, CPU).facts), [], seen.ended, 2.0)
        assert verdict.kind is Kind.CRASHED
        text = message.text(verdict)
        assert "still running after 0.2 seconds" in text
        assert "raised at line" in text


def test_no_alarm_is_left_behind():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    try:
        assert observe(exercise(0.2), lambda: 1, 1, CPU).ended is None
        time.sleep(0.3)
        assert not rang
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        signal.raise_signal(signal.SIGALRM)
        assert rang, "the handler of before is back"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_check_in_another_thread_works_without_an_alarm():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(observe(exercise(5), lambda: 7, 1, CPU)))
    thread.start()
    thread.join()
    assert [f.value for f in seen[0].facts] == [7, 7]


# Four write into one pipe: a line in one piece, or a hog whose number nobody could read runs on for ever.
HOG = (
    "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.write(1, b'%d\\n' % os.getpid())\nwhile True: pass"
)
# The shell ends at once: what descends from this process would count as its own.
FOUR_HOGS = 'for i in 1 2 3 4; do "$0" -c "$1" "$2" & done'


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to one processor")
def test_a_busy_machine_turns_a_right_answer_into_an_endless_one():
    def computes():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return 1

    processors = os.sched_getaffinity(0)
    one = min(processors)
    with subprocess.Popen(["sh", "-c", FOUR_HOGS, sys.executable, HOG, str(one)], stdout=subprocess.PIPE) as shell:
        hogs = [int(shell.stdout.readline()) for _ in range(4)]
    try:
        os.sched_setaffinity(0, {one})
        begun = time.monotonic()
        seen = observe(exercise(0.9), computes, 1, CPU)  # two cases of 0.3 s each, on a fifth of a processor
        assert time.monotonic() - begun > 0.9, "the processor was busy"
        assert seen.ended is None and len(seen.facts) == 2
    finally:
        os.sched_setaffinity(0, processors)
        for hog in hogs:
            os.kill(hog, signal.SIGKILL)


def test_time_asleep_counts_for_nothing():
    assert observe(exercise(0.2), lambda: time.sleep(30), 1, CPU).ended.error == "TimeIsUp"
