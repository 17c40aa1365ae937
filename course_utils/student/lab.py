"""The command `lab`: what `make lab` does, where there is no make.

Standard library only, and no syntax newer than Python 3.8: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from pathlib import Path

from course_utils import bootstrap
from course_utils.errors import CourseError

COMMAND = "python -m course_utils lab"
ROOT = Path(__file__).resolve().parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lab`."""
    add = parser.add_argument
    add("settings", nargs="*", metavar="NAME=VALUE", help="as with make: PYTHON=, TORCH=cpu, TORCH_INDEX=, PIP_CERT=")
    add("--no-browser", action="store_true", help="print the address only")
    add("--port", type=int, help="where JupyterLab listens (default: 8888, or the next that is free)")
    add("--set-up-only", action="store_true", help="install and make the images, and start nothing")


def run(args: argparse.Namespace) -> int:
    """Set up what is missing, then run JupyterLab until it is closed."""
    for setting in args.settings:
        name, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z_]*", name):
            raise CourseError(f"{setting!r} is no setting: they read NAME=VALUE, such as PYTHON=/path/to/python3.12")
        os.environ[name] = value
    setup = bootstrap.Setup(ROOT, command=COMMAND)
    python = os.environ.get("COURSE_PYTHON")
    if not python:
        status = bootstrap.main(["env"], setup)
        if status:
            return status
        python = str(setup.python)
    status = subprocess.call([python, "-m", "course_utils", "build-data", "--if-missing"], cwd=str(ROOT))
    status = status or bootstrap.main(["notebooks"], setup)
    if status or args.set_up_only:
        return status
    if not os.access(str(ROOT / "notebooks"), os.W_OK):
        print(f"note: {ROOT / 'notebooks'} is read-only: you can read the notebooks, and not save them.", flush=True)
    command = [python, "-m", "jupyterlab", "notebooks", "--LabApp.news_url=None"]
    command += ["--no-browser"] if args.no_browser else []
    command += [f"--port={args.port}"] if args.port else []
    return subprocess.call(command, cwd=str(ROOT))
