"""Run a notebook top to bottom in a fresh kernel, as grading will: errors allowed, time limited, nothing saved."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

from course_utils import progress_store
from course_utils.data.location import project_root

__all__ = ["Run", "run_notebook"]

CELL_SECONDS = 60  # the limit that grading has


@dataclass
class Run:
    """What came of a run.

    Attributes
    ----------
    notebook : NotebookNode
        The notebook with the run's outputs.
    records : dict
        What the checks found, by exercise.
    stopped : str
        Why the run ended before the last cell; empty where it did not.
    at : int
        The cell in which it ended (its place in the notebook, from 0).
    """

    notebook: NotebookNode
    records: dict[str, progress_store.Record] = field(default_factory=dict)
    stopped: str = ""
    at: int = -1


def run_notebook(
    notebook: NotebookNode,
    folder: Path,
    section: str,
    seconds: int = CELL_SECONDS,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Run:
    """Run all cells; the outputs are written into ``notebook``.

    Parameters
    ----------
    folder : Path
        Where the notebook lies: the kernel's working folder, or a temporary one where nothing can be written into it.
    section : str
        Whose checks are read, such as ``tensor_costs``.
    seconds : int
        For each cell.
    progress : callable
        ``progress(done, total)`` before each cell.
    """
    result = Run(notebook)
    total = len(notebook.cells)

    def started(cell: NotebookNode, cell_index: int, **_: Any) -> None:
        result.at = cell_index
        progress(cell_index, total)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as private:
        records = Path(private) / "progress"
        env = {k: v for k, v in os.environ.items() if k not in ("NBGRADER_EXECUTION", "COURSE_STATIC")}
        env["COURSE_PROGRESS"] = str(records)
        env["PYTHONPATH"] = os.pathsep.join([str(project_root()), *filter(None, [env.get("PYTHONPATH")])])
        config = Config()
        config.KernelManager.transport_encryption = "auto"  # otherwise the kernel warns on our stderr
        client = NotebookClient(
            notebook,
            timeout=seconds,
            startup_timeout=120,
            kernel_name="python3",
            allow_errors=True,
            shutdown_kernel="immediate",
            on_cell_start=started,
            resources={"metadata": {"path": str(folder if os.access(folder, os.W_OK) else private)}},
            config=config,
        )
        client.log = logging.getLogger("course_utils.run")  # whose words are ours: see `stopped`
        client.log.setLevel(logging.CRITICAL)
        try:
            client.execute(env=env)
        except CellTimeoutError:
            result.stopped = f"it did not end within {seconds} seconds"
        except DeadKernelError:
            result.stopped = "the kernel died (too little memory, or a crash in compiled code)"
        except RuntimeError as error:  # jupyter_client: no kernel came up
            result.stopped = f"no kernel: {' '.join(str(error).split())}"
        progress(total, total)
        result.records = progress_store.load(section, records)
    return result


def progress_line(done: int, total: int) -> None:
    """One line that is written over on a terminal; nothing where the output goes into a file."""
    if sys.stderr.isatty():
        text = "" if done >= total else f"running cell {done + 1} of {total}"
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)
