"""Code outside the notebook: in a file beside it, which workers can import, or in a Python of its own.

A new Python knows nothing of a notebook's cells. Data sets that spawned workers load must lie in a file, and what may
end or block a process is better tried in another one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["fresh_import", "in_child"]

GRACE = 3.0  # seconds that a killed child may take to go


def fresh_import(name: str) -> ModuleType:
    """Import a module that lies in the working folder; again, if it was imported before and may have changed.

    The folder goes on ``sys.path``, which spawned workers inherit.

    Raises
    ------
    ModuleNotFoundError
        If there is no such file here; the message names the cell to run.
    """
    folder = Path.cwd()
    if not (folder / f"{name}.py").is_file():
        raise ModuleNotFoundError(f"no {name}.py in this folder: run the cell that begins with %%writefile {name}.py")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # the file may be younger than what Python remembers of the folder
    if name in sys.modules:
        return importlib.reload(sys.modules[name])
    return importlib.import_module(name)


def in_child(code: str, *arguments: object, seconds: float = 60) -> str:
    """Run a piece of Python in a process of its own and return what it prints.

    Parameters
    ----------
    code : str
        A program; its ``sys.argv[1:]`` are the arguments, its working folder is this one.
    seconds : float
        Then the child is killed, with every process that it has started.

    Returns
    -------
    str
        What it wrote to stdout, without the last line's end; below it a line on how it ended, if not by itself. What it wrote to stderr is dropped.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # a group of its own, so that its workers can be ended with it
    )
    ended = ""
    try:
        output, _ = child.communicate(timeout=seconds)
        if child.returncode < 0:
            ended = f"(ended by {signal.Signals(-child.returncode).name})"
        elif child.returncode > 0:
            ended = f"(left with exit code {child.returncode})"
    except subprocess.TimeoutExpired:
        _kill(child)
        output, _ = child.communicate(timeout=GRACE)
        ended = f"(stopped after {seconds:g} seconds)"
    finally:
        _kill(child)
    return "\n".join(part for part in (output.rstrip(), ended) if part)


def _kill(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()  # Windows: workers end when their parent is gone
