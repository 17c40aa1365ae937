"""An answer that does not come back: the check does."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

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
