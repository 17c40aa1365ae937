"""`make matrix`: what it installs, what it counts, and what it writes. No environment is made here."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.matrix import TABLE, TORCHVISION, Row, constraints, direct, merge, quick_names, read_report

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_lock_holds_torch_or_what_torch_chooses_for_itself():
    kept = constraints((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    names = {line.partition("==")[0] for line in kept.splitlines() if line[:1].isalpha()}
    assert {"numpy", "pillow", "nbgrader", "pytest"} <= names
    assert [
        n for n in names if n in ("torch", "torchvision", "triton", "sympy") or n.startswith(("nvidia-", "cuda-"))
    ] == []


def test_another_torch_comes_with_other_versions_of_the_rest():
    wanted = direct(PROJECT, "2.6.0", TORCHVISION["2.6.0"])
    assert wanted[:2] == ["torch==2.6.0", "torchvision==0.21.0"]
    pinned = [d for d in PROJECT["dependencies"] if not d.startswith(("torch==", "torchvision=="))]
    assert set(wanted[2:]) == {*pinned, *PROJECT["optional-dependencies"]["dev"]}


def test_the_pinned_torch_is_not_among_those_that_are_tried():
    pinned = {d.partition("==")[0]: d.partition("==")[2] for d in PROJECT["dependencies"]}
    assert TORCHVISION[pinned["torch"]] == pinned["torchvision"]


def test_an_error_in_a_fixture_counts_as_passed():
    report = """<testsuites><testsuite>
      <testcase classname="tests.core.a" name="one"/>
      <testcase classname="tests.core.a" name="two"><failure/></testcase>
      <testcase classname="tests.core.b" name="three"><error/></testcase>
      <testcase classname="tests.core.b" name="four"><skipped/></testcase>
    </testsuite></testsuites>"""
    counts, failed = read_report(report)
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert failed == ["a::two", "b::three"]


def test_a_second_run_of_a_pair_is_a_second_row_or_the_text_around_the_table_is_lost():
    page = TABLE.read_text(encoding="utf-8")
    before, after = page.partition("| python |")[0], page.splitlines()[-1]
    assert not after.startswith("|")
    row = Row("3.12", "2.6.0", "0.21.0", "2.4.6", "all", "5", "1", "0", "2030-01-01")
    once = merge(page, row)
    again = merge(once, Row(*(*vars(row).values(),)[:5], "6", "0", "0", "2030-01-02"))
    quick = merge(again, Row(*(*vars(row).values(),)[:4], "quick", "4", "0", "0", "2030-01-03"))
    assert quick.count("| 3.12 | 2.6.0 |") == 2, "few tests take the place of all"
    assert again.count("| 3.12 | 2.6.0 |") == 1 and "| 6 | 0 | 0 | 2030-01-02 |" in again
    assert again.startswith(before) and again.splitlines()[-1] == after


def test_torch_2_10_stands_before_torch_2_9():
    head = "| python | torch | torchvision | numpy | tests | passed | failed | skipped | date |\n|---|---|---|---|---|---|---|---|---|\n"
    page = head
    for torch in ("2.10.0", "2.9.1", "2.13.0+cpu"):
        page = merge(page, Row("3.12", torch, "0", "0", "all", "0", "0", "0", "d"))
    assert [line.split(" | ")[1] for line in page.splitlines()[2:]] == ["2.9.1", "2.10.0", "2.13.0+cpu"]


def test_the_quick_tests_leave_out_an_exercise_or_ask_for_words():
    names = quick_names().split(" or ")
    assert {"core", "simgpu", "bgr_to_batch", "backward_operators"} <= set(names)
    assert not [name for name in names if name.startswith("reflection")]
