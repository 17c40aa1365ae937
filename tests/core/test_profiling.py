"""Profiler tables without clocks."""

import torch
import torch.nn.functional as F

from course_utils import profiling


def test_total_counts_the_operators_inside_and_self_does_not(capfd):
    rows = {r.name: r for r in profiling.profile_rows(F.linear, torch.randn(5, 4), torch.randn(3, 4), torch.randn(3))}
    assert rows["linear"].self_bytes == 0 and rows["linear"].total_bytes == rows["addmm"].self_bytes > 0
    assert capfd.readouterr().err == "", "the profiler's notes must not reach the notebook"


def test_a_hidden_copy_has_a_row_of_its_own_with_its_calls():
    def copies(x):
        return x.t().contiguous().contiguous()

    rows = {r.name: r for r in profiling.profile_rows(copies, torch.randn(64, 48))}
    assert rows["clone"].calls == 1, "the second contiguous() has nothing to do"
    assert rows["clone"].total_bytes == 64 * 48 * 4


def test_the_table_shows_a_zero_for_an_operator_that_did_not_run(monkeypatch):
    shown = []
    monkeypatch.setattr(profiling, "table", lambda head, rows: shown.extend(rows))
    profiling.profile_table(torch.neg, torch.randn(3), only=("neg", "copy_"))
    assert [(row[0], row[1]) for row in shown] == [("neg", 1), ("copy_", 0)]
