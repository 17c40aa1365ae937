"""The course's commands: `python -m course_utils COMMAND`.

A command is one line in `COMMANDS` and a module with `add_arguments(parser)` and `run(args) -> exit status`, imported
only when the command is asked for: `build-data` must not wait for what another command imports.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from course_utils.errors import CourseError

COMMANDS = {
    "build-data": ("course_utils.data.build_command", "make the images of the course (CIFAR-mini)"),
    "show-data": ("course_utils.data.show_command", "write a contact sheet of the images"),
    "doctor": ("course_utils.doctor", "look whether this machine is ready, and say what to do"),
}
"""Name: module, and what it does."""

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
    module = importlib.import_module(module_name)
    options = argparse.ArgumentParser(prog=f"{parser.prog} {chosen.command}", description=summary)
    module.add_arguments(options)
    try:
        return module.run(options.parse_args(chosen.arguments))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except (CourseError, OSError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
