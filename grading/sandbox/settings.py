"""What a person may set about the kernels that grade: ``c.Sandbox.memory = 2048`` in ``nbgrader_config.py``."""

from __future__ import annotations

from traitlets import Bool, Enum, Integer, List, Unicode
from traitlets.config import Configurable

__all__ = ["KINDS", "Sandbox"]

KINDS = ("auto", "bubblewrap", "landlock", "none")


class Sandbox(Configurable):
    """The sandbox of one student's kernel: its kind and its limits. Sizes are in MiB."""

    kind = Enum(KINDS, "auto", help="auto takes the strongest that this machine offers").tag(config=True)
    warm = Bool(True, help="fork kernels from a process that has imported torch; else each imports for itself").tag(
        config=True
    )
    memory = Integer(4096, min=256, help="private memory of a kernel and all its processes together").tag(config=True)
    processes = Integer(200, min=8, help="how many processes a kernel may have at once").tag(config=True)
    file_size = Integer(512, min=1, help="the largest file that can be written").tag(config=True)
    scratch = Integer(1024, min=64, help="all files together; as much again in /dev/shm").tag(config=True)
    output = Integer(16, min=1, help="how much a cell may print or display; the rest is left out").tag(config=True)
    flood = Integer(
        1024, min=128, help="a kernel is ended when the grading process has grown by so much through what it sends"
    ).tag(config=True)
    start_seconds = Integer(180, min=10, help="how long a kernel may take to start, imports included").tag(config=True)
    variables = List(
        Unicode(), help="environment variables that kernels see besides the few that the course needs"
    ).tag(config=True)
