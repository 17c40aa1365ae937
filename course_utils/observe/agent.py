"""What runs in a student's kernel when an instructor grades: observe the answer, send the facts out, decide nothing."""

from __future__ import annotations

import json
from typing import Any

from course_utils.devices import available_device
from course_utils.observe.compare import Ended
from course_utils.observe.plain import MIME
from course_utils.observe.registry import find_exercise
from course_utils.observe.run import observe

__all__ = ["report"]

MAX_BYTES = 4_000_000  # of one report


def report(exercise_id: str, seed: int, nonce: str, namespace: dict[str, Any]) -> None:
    """Observe ``namespace[exercise_id]`` on the cases of ``seed`` and publish the facts under :data:`plain.MIME`.

    The nonce comes back with the facts, so that an output published earlier cannot pass for this one.
    """
    from IPython.display import publish_display_data

    exercise = find_exercise(exercise_id)
    if exercise_id in namespace:
        seen = observe(exercise, namespace[exercise_id], seed, available_device())
        plain = {
            "facts": seen.values(),
            "ended": _plain(seen.ended),
            "remarks": list(seen.remarks),
            "missing": False,
        }
    else:
        plain = {"facts": [], "ended": None, "remarks": [], "missing": True}
    text = json.dumps({"nonce": nonce, "exercise": exercise_id, **plain})
    if len(text) > MAX_BYTES:
        ended = Ended("crashed", "TooMuchData", "the result is far larger than anything that was asked for")
        text = json.dumps(
            {
                "nonce": nonce,
                "exercise": exercise_id,
                "facts": [],
                "ended": _plain(ended),
                "remarks": [],
                "missing": False,
            }
        )
    # As one text: values such as NaN are no valid JSON inside a Jupyter message.
    publish_display_data({MIME: text, "text/plain": f"{exercise_id}: observed"})


def _plain(ended: Ended | None) -> dict[str, Any] | None:
    return None if ended is None else dict(vars(ended))
