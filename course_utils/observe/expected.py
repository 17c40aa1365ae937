"""Behaviours as files: the reference's on the public cases, written by the build, read by ``check``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from course_utils.observe.compare import Behaviour, Ended
from course_utils.observe.plain import Fact, Spec

__all__ = ["EXPECTED", "from_plain", "public_behaviour", "recorded_order", "to_plain"]

EXPECTED = Path(__file__).resolve().parents[1] / "expected"


def to_plain(behaviour: Behaviour) -> dict[str, Any]:
    """A behaviour as plain data. An observation that ended early is no reference, unless it was skipped."""
    e = behaviour.ended
    if e is not None and e.kind != "skipped":
        raise ValueError(f"the reference of {behaviour.exercise} {e.kind}: {e.error}: {e.message} at {e.line}")
    facts = [
        # Predictions are judged by labels, not by the reference's own: those are not kept.
        {
            "name": f.name,
            "case": f.case,
            "value": None if f.spec.labels else f.value,
            **({"spec": p} if (p := f.spec.plain()) else {}),
        }
        for f in behaviour.facts
    ]
    return {"exercise": behaviour.exercise, "facts": facts, **({"ended": dict(vars(e))} if e else {})}


def from_plain(data: dict[str, Any]) -> Behaviour:
    """The inverse of :func:`to_plain`."""
    facts = tuple(Fact(f["name"], f["value"], f["case"], Spec.from_plain(f.get("spec", {}))) for f in data["facts"])
    return Behaviour(data["exercise"], facts, Ended.from_plain(data.get("ended")))


def recorded_order() -> list[str]:
    """All recorded exercises, sections in the order of the course, exercises in the order of their notebook."""
    built = [json.loads(path.read_text(encoding="utf-8")) for path in EXPECTED.glob("*.json")]
    return [name for data in sorted(built, key=lambda d: d["assignment"]) for name in data["exercises"]]


def public_behaviour(section: str, exercise_id: str) -> Behaviour:
    """The reference's recorded behaviour on the public cases.

    Raises
    ------
    FileNotFoundError, KeyError
        If the build has not recorded it.
    """
    data = json.loads((EXPECTED / f"{section}.json").read_text(encoding="utf-8"))
    return from_plain(data["exercises"][exercise_id])
