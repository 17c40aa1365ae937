"""The command `progress`: what `progress()` shows in a notebook, in a terminal."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `progress`."""
    parser.add_argument("section", nargs="?", help="such as tensor_costs; by default all")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from course_utils.checking import progress
    from course_utils.student.released import find

    print(progress(find(args.section).section.name if args.section else None))
    return 0
