"""Small exercises made for one test each, judged as the course judges its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from course_utils.observe.compare import Behaviour, Verdict, compare
from course_utils.observe.expected import from_plain, to_plain
from course_utils.observe.registry import Exercise
from course_utils.observe.run import Observation, observe

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trial:
    """An exercise that is in no registry: an observer, and a reference that is observed on the same cases."""

    exercise: Exercise
    reference: Any

    def behaviour(self, seed: int = 1) -> Behaviour:
        seen = observe(self.exercise, self.reference, seed, CPU).behaviour(self.exercise.id)
        return from_plain(json.loads(json.dumps(to_plain(seen))))

    def observe(self, answer: Any, seed: int = 1) -> Observation:
        return observe(self.exercise, answer, seed, CPU)

    def judge(self, answer: Any, seed: int = 1) -> Verdict:
        seen = self.observe(answer, seed)
        values = json.loads(json.dumps(seen.values()))
        verdict = compare(self.behaviour(seed), [(n, v) for n, v in values], seen.ended, self.exercise.points)
        return Verdict(**{**vars(verdict), "remarks": seen.remarks})


@pytest.fixture
def trial() -> Callable[..., Trial]:
    def make(observer: Callable[..., None], reference: Any = None, cases: int = 2, points: float = 4.0) -> Trial:
        hints = ("first", "second", "third")
        return Trial(Exercise("doubled", "toy", points, 5, 1, cases, hints, observer, "Twice the number."), reference)

    return make
