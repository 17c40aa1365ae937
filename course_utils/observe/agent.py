"""What runs in a student's kernel when an instructor grades: observe the answer, and decide nothing."""

from __future__ import annotations

import json
from typing import Any

from course_utils.devices import available_device
from course_utils.observe.compare import Ended
from course_utils.observe.registry import find_exercise
from course_utils.observe.run import observe

__all__ = ["report"]

MAX_BYTES = 4_000_000  # of one report


def report(exercise_id: str, seed: int, namespace: dict[str, Any]) -> dict[str, Any]:
    """Observe ``namespace[exercise_id]`` on the cases of ``seed``; the facts, and what ended it, as plain data.

    :mod:`course_utils.observe.seal` calls it when the order comes, signs what it returns, and sends it.
    """
    exercise = find_exercise(exercise_id)
    if exercise_id not in namespace:
        return {"facts": [], "ended": None, "remarks": [], "missing": True}
    seen = observe(exercise, namespace[exercise_id], seed, available_device())
    facts, ended, remarks = seen.values(), seen.ended, list(seen.remarks)
    if len(json.dumps(facts)) > MAX_BYTES:
        ended = Ended("crashed", "TooMuchData", "the result is far larger than anything that was asked for")
        facts, remarks = [], []
    return {"facts": facts, "ended": None if ended is None else dict(vars(ended)), "remarks": remarks, "missing": False}
