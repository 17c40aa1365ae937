"""Facts as plain data, and how they are judged. Needs NumPy only: a judge that has the reference's facts needs no torch."""

from __future__ import annotations

import base64
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["COST_SHARE", "MIME", "SCORE_MIME", "Fact", "Spec", "decode_array"]

MIME = "application/vnd.pytorch-foundations.facts+json"  # under which facts leave a student's kernel
SCORE_MIME = "application/vnd.pytorch-foundations.score+json"  # under which a judge writes an accuracy
COST_SHARE = 0.4  # of the points, lost by an answer that is right but wasteful

_STORED = re.compile(r"[<|][biufc]\d\d?")


@dataclass(frozen=True)
class Spec:
    """How a fact is judged. Plain data: it is stored with the reference's behaviour.

    Attributes
    ----------
    atol, rtol : float
        Tolerance for numbers: ``|got - expected| <= atol + rtol * |expected|``. Both 0: equal.
    at_most : bool
        The value is a cost: right is whatever is not above
        ``expected * (1 + slack) + allowance``.
    share : float or None
        The part of the points that this fact alone decides. None: essential, the answer is wrong without it.
    form : bool
        The fact is about type, shape, dtype or device.
    any_error : bool
        Of an exception only that there was one counts, not its class.
    secret : bool
        The expected value is never shown: it is the answer itself, as in a table of predictions.
    why, fix : str
        One line each: the reason, and what to try.
    clues : tuple of str
        Names of functions in ``clues`` that may find a better reason in the values.
    labels : str
        The value is predictions, scored against the labels of this name (see :func:`course_utils.observe.scores.true_labels`).
        Only the process that judges reads them; neither the observer nor the recorded behaviour holds any.
    at_least : tuple of two floats
        With ``labels``: the share of right predictions that is asked, on drawn images and on photographs.
    """

    atol: float = 0.0
    rtol: float = 0.0
    at_most: bool = False
    slack: float = 0.0
    allowance: float = 0.0
    share: float | None = None
    form: bool = False
    any_error: bool = False
    secret: bool = False
    why: str = ""
    fix: str = ""
    clues: tuple[str, ...] = ()
    labels: str = ""
    at_least: tuple[float, float] = (0.0, 0.0)

    def plain(self) -> dict[str, Any]:
        """As a dictionary, without what is at its default."""
        default = asdict(Spec())
        return {k: v for k, v in asdict(self).items() if v != default[k]}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Spec:
        pairs = {name: tuple(data[name]) for name in ("clues", "at_least") if name in data}
        return cls(**{**data, **pairs})


@dataclass(frozen=True)
class Fact:
    """One observed fact. ``value`` is plain data (see :func:`encode`), ``case`` the index of the case."""

    name: str
    value: Any
    case: int = 0
    spec: Spec = field(default_factory=Spec)


def decode_array(plain: dict[str, Any]) -> np.ndarray | None:
    """The numbers of an encoded array, or None where they were not kept or do not fit the stated shape."""
    try:
        if not _STORED.fullmatch(plain["stored"]):
            return None
        data = base64.b64decode(plain["data"], validate=True)
        shape = tuple(int(n) for n in plain["shape"])
        return np.frombuffer(data, np.dtype(plain["stored"])).reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
