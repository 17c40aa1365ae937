"""Section 4: what the references claim is so, and no fact depends on how busy the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from course_utils.devices import available_device
from course_utils.observe import all_exercises, message
from course_utils.observe.compare import compare
from course_utils.observe.processes import settled_children
from course_utils.observe.run import observe
from grading.bank import answers, judge_answer
from grading.references import load_references

SECTION = "dataloader_memory"


@pytest.fixture(scope="module")
def reference():
    return load_references(SECTION)


@pytest.fixture
def busy_machine():
    """Two processes for each core that compute without a pause."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


class Counting(Sampler):
    """Counts the batches that were asked for."""

    def __init__(self, length, size):
        self.batches, self.asked = [list(range(i, min(i + size, length))) for i in range(0, length, size)], 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.asked += 1
            yield batch


@pytest.mark.parametrize(
    ("workers", "factor", "length"), [(0, None, 50), (1, None, 50), (2, 1, 50), (2, None, 50), (3, 4, 50), (2, 5, 17)]
)
def test_a_loader_asks_for_another_number_of_batches_than_is_taught(workers, factor, length, reference):
    counting = Counting(length, 2)
    loader = DataLoader(range(length), batch_sampler=counting, num_workers=workers, prefetch_factor=factor)
    iterator = iter(loader)
    assert counting.asked == reference.answers["batches_in_flight"](loader)
    del iterator


def _fixed(exercise, seen):
    """The facts that must be equal in every run; a cost may vary within what its allowance takes."""
    return [(f.name, f.value) for f in seen.facts if not f.spec.at_most]


def test_a_busy_machine_changes_facts_or_makes_checks_slow(busy_machine, reference):
    device = available_device()
    for exercise in all_exercises(SECTION):
        answer = reference.answers[exercise.id]
        expected = reference.behaviour(exercise.id, 31, device)
        started = time.monotonic()
        seen = observe(exercise, answer, 31, device)
        assert time.monotonic() - started < exercise.seconds / 2, exercise.id
        verdict = compare(expected, seen.values(), seen.ended, exercise.points)
        assert verdict.full, message.text(verdict)
        again = observe(exercise, answer, 31, device)
        assert _fixed(exercise, again) == _fixed(exercise, seen), exercise.id


def test_a_wrong_answer_leaves_processes_behind(reference):
    for answer in answers(SECTION, "closing_loader"):
        judge_answer(answer, reference, 3)
    assert settled_children(10) == []


def test_the_section_asks_for_more_or_fewer_points_than_planned():
    assert 38 <= sum(e.points for e in all_exercises(SECTION)) <= 46


def test_a_reference_breaks_what_its_own_observer_asks(reference):
    for exercise in all_exercises(SECTION):
        seen = observe(exercise, reference.answers[exercise.id], 8, torch.device("cpu"))
        values = {str(f.value) for f in seen.facts}
        broken = {v for v in values if v in ("False", "changed", "never", "otherwise") or v.startswith("no:")}
        assert not broken, f"{exercise.id}: {broken}"
