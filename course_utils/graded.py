"""Is this notebook run to be graded?"""

from __future__ import annotations

import os

__all__ = ["being_graded"]


def being_graded() -> bool:
    """True in a kernel that ``nbgrader autograde`` started: nobody looks at pictures there, and long runs may be short.

    Source: nbgrader sets ``NBGRADER_EXECUTION`` to ``autograde`` (or ``validate``) around a run.
    """
    return os.environ.get("NBGRADER_EXECUTION") == "autograde"
