"""What a profiler says, without its clock: which operators ran, how often, and the bytes that each allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from course_utils.demos import table

__all__ = ["OperatorRow", "profile_rows", "profile_table"]


@dataclass(frozen=True)
class OperatorRow:
    """One row of ``key_averages()``.

    Attributes
    ----------
    name : str
        Without ``aten::``.
    calls : int
    self_bytes : int
        Allocated by this operator itself, less what it freed.
    total_bytes : int
        The same with the operators that it called.
    """

    name: str
    calls: int
    self_bytes: int
    total_bytes: int


def profile_rows(function: Callable[..., Any], *args: Any) -> list[OperatorRow]:
    """Profile the second of two calls of ``function(*args)``; the first one may warm something up.

    Counts and bytes alone: they are the same in every run. On CUDA the bytes are those of the CPU's side.
    Source: ``torch.profiler.profile(profile_memory=True)``.
    """
    from course_utils.observe.guard import guard

    function(*args)
    activities = [torch.profiler.ProfilerActivity.CPU]
    # The profiler writes notes to file descriptor 2 from C++; the guard swallows them.
    with guard(), torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        kept = function(*args)
    del kept  # after the profile: what is returned must not count as freed
    return [
        OperatorRow(row.key.removeprefix("aten::"), row.count, row.self_cpu_memory_usage, row.cpu_memory_usage)
        for row in profile.key_averages()
        if row.key.startswith("aten::")
    ]


def profile_table(function: Callable[..., Any], *args: Any, only: tuple[str, ...] = ()) -> None:
    """Display :func:`profile_rows` as a table; with ``only`` just these operators, with a 0 where one did not run."""
    rows = profile_rows(function, *args)
    if only:
        by_name = {row.name: row for row in rows}
        rows = [by_name.get(name, OperatorRow(name, 0, 0, 0)) for name in only]
    table(
        ("operator", "calls", "self bytes", "total bytes"),
        [(row.name, row.calls, row.self_bytes, row.total_bytes) for row in rows],
    )
