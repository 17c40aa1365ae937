"""The course's commands: `python -m course_utils COMMAND`.

A command is one line in `COMMANDS` and a module with `add_arguments(parser)` and `run(args) -> exit status`, imported
only when the command is asked for: `build-data` must not wait for what another command imports.

Nothing but the standard library is imported here, and no syntax newer than Python 3.8 is used: `lab` runs before anything
is installed, and must be able to say which Python is needed. The other commands run in the course's own environment,
whichever Python they were started with.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from course_utils.bootstrap import dotted, fits, venv_python
from course_utils.errors import CourseError

COMMANDS = {
    "lab": ("course_utils.student.lab", "set up what is missing and open JupyterLab on the notebooks"),
    "ready": ("course_utils.student.ready", "look at a notebook before it is handed in"),
    "hand-in": ("course_utils.student.hand_in", "pack a notebook for handing in"),
    "progress": ("course_utils.student.progress", "show where you stand, in all sections"),
    "reset": ("course_utils.student.reset", "put an answer back to its stub; what was there is kept"),
    "repair": ("course_utils.student.repair", "put a notebook's cells right; answers stay as they are"),
    "build-data": ("course_utils.data.build_command", "make the images of the course (CIFAR-mini)"),
    "show-data": ("course_utils.data.show_command", "write a contact sheet of the images"),
    "doctor": ("course_utils.doctor", "look whether this machine is ready, and say what to do"),
}
"""Name: module, and what it does."""

ANYWHERE = ("lab", "doctor")
"""Commands that run in the Python that they were started with."""

BAD_INPUT, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status: 0, 2 after an error the user can put right, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "".join(f"  {name:<12} {summary}\n" for name, (_, summary) in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below; COMMAND --help tells more")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    chosen = parser.parse_args(argv)

    module_name, summary = COMMANDS[chosen.command]
    try:
        if chosen.command not in ANYWHERE and not has_packages():
            return in_the_courses_python(argv)
        module = importlib.import_module(module_name)
        options = argparse.ArgumentParser(prog=f"{parser.prog} {chosen.command}", description=summary)
        module.add_arguments(options)
        return module.run(options.parse_args(chosen.arguments))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except (CourseError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT


def has_packages() -> bool:
    """Whether this Python fits the course and holds its packages."""
    there = all(importlib.util.find_spec(name) for name in ("nbformat", "numpy", "torch"))
    return there and fits(dotted(sys.version_info[:2]))


def in_the_courses_python(argv: Sequence[str]) -> int:
    """Run the command in `.venv`, or in the Python that COURSE_PYTHON names."""
    root = Path(__file__).resolve().parents[1]
    python = os.environ.get("COURSE_PYTHON") or str(venv_python(root))
    if "COURSE_STARTED" in os.environ or not (os.environ.get("COURSE_PYTHON") or Path(python).exists()):
        raise CourseError(
            f"the packages of the course are not in this Python ({sys.executable}). In the course's folder, run: "
            "python -m course_utils lab"
        )
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "COURSE_STARTED": "1"}  # the mark keeps two bare Pythons from calling on
    return subprocess.call([python, "-m", "course_utils", *argv], env=env)


if __name__ == "__main__":
    sys.exit(main())
