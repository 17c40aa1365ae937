"""What judging costs: a check in the notebook, and an answer of the bank.

    python benchmarks/grading.py [--section 01_tensor_costs]

What a whole submission costs, beside stock nbgrader, is measured by ``benchmarks/autograde.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course_utils.observe import all_exercises  # noqa: E402
from grading.bank import answers, judge_answer  # noqa: E402
from grading.references import load_references  # noqa: E402
from grading.source import sections  # noqa: E402


def check_times(section) -> None:
    from course_utils.checking import judge_public

    reference = load_references(section.name)
    times = {}
    for exercise in all_exercises(section.name):
        judge_public(exercise, reference.answers[exercise.id])  # the first call imports
        started = time.perf_counter()
        judge_public(exercise, reference.answers[exercise.id])
        times[exercise.id] = time.perf_counter() - started
    slowest = max(times, key=times.get)
    print(
        f"check, {section.name}: median {statistics.median(times.values()):.3f} s, slowest {times[slowest]:.3f} s ({slowest})"
    )


def bank_times(section) -> None:
    reference, bank = load_references(section.name), answers(section.name)
    started = time.perf_counter()
    for answer in bank:
        judge_answer(answer, reference, 1)
    took = time.perf_counter() - started
    print(
        f"bank, {section.name}: {len(bank)} answers on one seed in {took:.1f} s, {1000 * took / len(bank):.0f} ms each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure grading.")
    parser.add_argument("--section")
    options = parser.parse_args()
    for section in sections(options.section):
        check_times(section)
        bank_times(section)


if __name__ == "__main__":
    main()
