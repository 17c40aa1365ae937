"""Images per second of five ways to load the same images, and the private memory of the fast one's workers."""

from __future__ import annotations

import argparse
import sys

from course_utils.data import CifarMini, DataError, fast_loader, load_cifar_mini
from course_utils.loading import BASELINE, compare_ways
from course_utils.process_memory import visible, worker_memory

FAST = "memmap, batch by batch"
GOAL = 6.0  # times the images per second of an array with PIL transforms
MIB_GROWTH = 4.0  # at most, per worker


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=5, help="over which the workers' memory is watched")
    options = parser.parse_args()
    try:
        print(f"Source: {load_cifar_mini('train').describe()}. One process, one thread, {options.rounds} rounds.\n")
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    rates = compare_ways(options.rounds)
    print(f"{'':28} {'images / s':>10} {'times':>7} {'in CPU time':>12} {'mean':>8} {'std':>7}")
    for name, rate in rates.items():
        print(
            f"{name:28} {rate.images_per_second:10,.0f} {rate.ratio:7.1f} {rate.cpu_ratio:12.1f} "
            f"{rate.mean:8.3f} {rate.std:7.3f}"
        )
    print(f"\nGoal: {FAST!r} at least {GOAL:g} times {BASELINE!r}: {rates[FAST].ratio:.1f}")
    loader = fast_loader(CifarMini(augment=True), shuffle=True, num_workers=2, persistent_workers=True)
    series = worker_memory(loader, options.epochs, points=1)
    growth = [size / 2**20 for size in series.growth().values()]
    first, last = series.readings[0].workers, series.readings[-1].workers
    later = [(last[pid] - first[pid]) / 2**20 for pid in last]
    print(f"Private memory of each of its workers grew, over {options.epochs} epochs (goal: below {MIB_GROWTH:g} MiB),")
    print(f"  from the worker's start:         {', '.join(f'{g:.1f}' for g in growth)} MiB")
    print(f"  from the end of the first epoch: {', '.join(f'{g:.1f}' for g in later)} MiB")
    print(visible(loader))
    return 0 if rates[FAST].ratio >= GOAL and max(growth) < MIB_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
