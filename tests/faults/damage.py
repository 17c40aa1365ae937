"""What can be wrong with a notebook, with its file, or with the code in it. Each entry says what it must earn nevertheless.

All answers are right but for what an entry says. Everything that an entry takes is bounded by itself.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mini_course import NOTEBOOK, POINTS, answer_cell, check_cell
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

__all__ = ["FAULTS", "Fault"]


def but(*lost: str) -> dict[str, float]:
    """Full marks, and nothing for these exercises."""
    return {name: 0.0 if name in lost else points for name, points in POINTS.items()}


@dataclass(frozen=True)
class Fault:
    """One entry.

    Attributes
    ----------
    name : str
    earns : dict
        Exercise -> points; empty where nobody could read it: then there is no mark.
    said : str
        What the instructor's summary must say of it; empty where there is nothing that anybody would need to know.
    first, answers : str, dict
        A cell before all others; the texts of answer cells.
    change : callable
        Changes the notebook in place.
    file : callable
        Notebook -> bytes of the file.
    place : callable
        (folder, bytes) -> writes what is handed in, where it is not a file of the right name.
    """

    name: str
    earns: dict[str, float] = field(default_factory=lambda: dict(POINTS))
    said: str = ""
    first: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    change: Callable[[NotebookNode], object] | None = None
    file: Callable[[NotebookNode], bytes] | None = None
    place: Callable[[Path, bytes], object] | None = None

    @property
    def student(self) -> str:
        return "m-" + re.sub(r"\W+", "-", self.name.lower())


def text(notebook: NotebookNode) -> str:
    return json.dumps(notebook, indent=1)


def _raw(data: bytes) -> Callable[[NotebookNode], bytes]:
    return lambda notebook: data


# ------------------------------------------------------------------------------------------------ code
CODE = [
    Fault(
        "killed by a signal",
        but("doubled"),
        "SIGKILL",
        answers={"doubled": "def doubled(x):\n    import os\n    os.kill(os.getpid(), 9)"},
    ),
    Fault(
        "crashes below Python",
        but("doubled"),
        "SIGSEGV",
        answers={"doubled": "def doubled(x):\n    import ctypes\n    ctypes.string_at(0)"},
    ),
    Fault(
        "exits",
        but("plus_one"),
        "exit code 3",
        answers={"plus_one": "def plus_one(n):\n    import os\n    os._exit(3)"},
    ),
    Fault("raises SystemExit", but("plus_one"), answers={"plus_one": "def plus_one(n):\n    raise SystemExit"}),
    Fault("exit in a cell of its own", first="exit()"),
    Fault("the output is closed in a cell of its own", first="import sys\nsys.stdout.close()"),
    Fault(
        "dies a moment later",
        said="is left out",
        first="import os, threading\nthreading.Timer(0.005, os.abort).start()",
    ),
    Fault("sends half a letter", first="from IPython.display import HTML\nprint('\\ud800')\nHTML('\\ud800')"),
    Fault(
        "shows what no notebook can hold",
        first="from IPython.display import publish_display_data as show\n"
        "for data in ({'text/plain': {'a': 1}}, {'text/html': 3}, {'image/png': [None]}, {'application/json': float('nan')}):\n"
        "    show(data)\nget_ipython().execution_count = 'x'",
    ),
    Fault(
        "sends messages of its own",
        first="kernel = get_ipython().kernel\nfor kind in ('stream', 'comm_open', 'comm_msg', 'display_data', 'error', 'clear_output', 'x'):\n"
        "    for content in ({}, {'name': 3}, {'data': None}, {'execution_count': 'x'}, {'transient': {'display_id': [1]}}):\n"
        "        kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())",
    ),
    Fault("the kernel dies in a cell of its own", said="SIGABRT", first="import os\nos.abort()"),
    Fault("an alarm that nobody hears", said="SIGALRM", first="import signal, time\nsignal.alarm(1)\ntime.sleep(3)"),
    Fault("loops for ever", but("doubled"), answers={"doubled": "def doubled(x):\n    while True:\n        pass"}),
    Fault("loops for ever in a cell of its own", said="no answer within", first="while True:\n    pass"),
    Fault("sleeps too long", said="no answer within", first="import time\ntime.sleep(60)"),
    Fault(
        "cannot be interrupted",
        but("doubled"),
        "no answer within",
        answers={
            "doubled": "def doubled(x):\n    import time\n    while True:\n        try:\n            time.sleep(60)\n"
            "        except BaseException:\n            pass"
        },
    ),
    Fault(
        "wants too much memory",
        but("doubled"),
        answers={"doubled": "def doubled(x):\n    return [bytearray(3 << 30), 2 * x][1]"},
    ),
    Fault(
        "takes too much memory",
        but("doubled"),
        answers={
            "doubled": "def doubled(x):\n    held = [bytearray(b'x') * (1 << 28) for _ in range(5)]\n    import time\n    time.sleep(5)"
        },
    ),
    Fault(
        "prints without end in an answer",
        answers={
            "plus_one": "def plus_one(n):\n    for _ in range(200):\n        print('x' * 100_000)\n    return n + 1"
        },
    ),
    Fault("prints megabytes in a cell of its own", first="for _ in range(40):\n    print('x' * 1_000_000)"),
    Fault(
        "displays more than a message may hold",
        first="from IPython.display import HTML, display\ndisplay(HTML('x' * (70 << 20)))",
    ),
    Fault("writes to descriptors 1 and 2", first="import os\nfor d in (1, 2):\n    os.write(d, b'x' * 1_000_000)"),
    Fault(
        "too many processes",
        but("doubled"),
        "processes",
        answers={
            "doubled": "def doubled(x):\n    import os, time\n    for _ in range(80):\n        if os.fork() == 0:\n"
            "            time.sleep(20)\n            os._exit(0)\n    time.sleep(5)"
        },
    ),
    Fault("a second kernel by fork", first="import os\nchild = os.fork()"),
    Fault("fills the disk", first="for i in range(20):\n    open(f'f{i}', 'wb').write(bytes(10 << 20))"),
    Fault(
        "fills the disk for good",
        first="import contextlib\nfor i in range(20):\n    with contextlib.suppress(OSError):\n        open(f'f{i}', 'wb').write(bytes(10 << 20))",
    ),
    Fault(
        "fills shared memory",
        but("batches"),
        "shm",
        first="import contextlib\nfor i in range(20):\n    with contextlib.suppress(OSError):\n        open(f'/dev/shm/f{i}', 'wb').write(bytes(10 << 20))",
    ),
    Fault(
        "uses up its file descriptors",
        but("batches"),
        "descriptors",
        first="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))",
    ),
    Fault(
        "a loader that waits for ever",
        but("batches"),
        answers={
            "batches": "import torch\n\nclass Waits(torch.utils.data.Dataset):\n    def __len__(self): return 9\n"
            "    def __getitem__(self, i):\n        import time\n        time.sleep(100)\n\n"
            "def batches(n, k):\n    return [b for b in torch.utils.data.DataLoader(Waits(), k, num_workers=1)]"
        },
    ),
    Fault("recursion without end", but("plus_one"), answers={"plus_one": "def plus_one(n):\n    return plus_one(n)"}),
    Fault("a syntax error", but("same_block"), answers={"same_block": "def same_block(a, b)\n    return True"}),
    Fault(
        "mixed tabs and spaces",
        but("same_block"),
        answers={"same_block": "def same_block(a, b):\n\treturn True\n        return False"},
    ),
    Fault("names of builtins are taken", first="globals = {}\n__import__ = dict = print = sys = None"),
    Fault(
        "warnings are errors", first="import warnings, numpy\nwarnings.simplefilter('error')\nnumpy.seterr(all='raise')"
    ),
    Fault("another default dtype", said="default dtype", first="import torch\ntorch.set_default_dtype(torch.float64)"),
    Fault("warnings go to the log", said="showwarning", first="import logging\nlogging.captureWarnings(True)"),
    Fault(
        "names of libraries and of the course are taken",
        first="np = check = hint = io = os = sys = math = id = type = None",
        said="check",
    ),
    Fault(
        "threads, figures and settings stay open",
        first="import gc, threading, time, tracemalloc, matplotlib.pyplot as plt\ntracemalloc.start(9)\ngc.disable()\nplt.plot([1])\n"
        "threading.Thread(target=lambda: [time.sleep(0.001) for _ in range(20_000)], daemon=True).start()",
    ),
    Fault(
        "cells of notebooks, not of Python",
        first="import asyncio\nawait asyncio.sleep(0.01)\n%precision 3\n%xmode Minimal\n%config InteractiveShell.ast_node_interactivity = 'all'\n1\n2",
    ),
    Fault(
        "answers that are objects",
        answers={
            "plus_one": "import functools, operator\nplus_one = functools.partial(operator.add, 1)",
            "sum_of_squares": "class Sum:\n    def __call__(self, x): return torch.dot(x, x)\n\nsum_of_squares = Sum()",
            "doubled": "doubled = torch.no_grad()(lambda x: x + x)",
        },
    ),
    Fault(
        "a thread's honest work",
        answers={
            "sum_of_squares": "from concurrent.futures import ThreadPoolExecutor\n\ndef sum_of_squares(x):\n"
            "    with ThreadPoolExecutor(2) as pool:\n        return pool.submit(torch.dot, x, x).result()"
        },
        said="in a thread",
    ),
    Fault("streams are closed", first="import sys\nsys.stdout = sys.stderr = None"),
    Fault(
        "the working folder is gone",
        first="import os, shutil\nfolder = os.getcwd()\nos.chdir('/')\nshutil.rmtree(folder)",
    ),
    Fault("the namespace is wiped", first="x = 1\n%reset -f"),
    Fault("raises in cells of its own", first="raise KeyboardInterrupt"),
    Fault(
        "a thread that goes on printing",
        first="import threading, time\n\ndef talk():\n    for _ in range(300):\n        print('x')\n        time.sleep(0.05)\n\nthreading.Thread(target=talk, daemon=True).start()",
    ),
    Fault(
        "a module of its own by writefile",
        first="%%writefile mine.py\ndef more(n):\n    return n + 1",
        answers={"plus_one": "import mine\n\ndef plus_one(n):\n    return mine.more(n)"},
    ),
    Fault(
        "patches that are nobody's business",
        said="had been replaced",
        first="import numpy, torch, warnings, matplotlib.pyplot as plt\nwarnings.filterwarnings('ignore')\nplt.rcParams['figure.figsize'] = 3, 3\n"
        "numpy.float, numpy.int = float, int\ntorch.Tensor.__repr__ = lambda self: 'tensor'\n"
        "torch.nn.Module.size = property(lambda self: sum(p.numel() for p in self.parameters()))\ntorch.set_printoptions(precision=2)",
        answers={"plus_one": "def plus_one(n):\n    return numpy.int(n + 1)"},
    ),
]


# ------------------------------------------------------------------------------------------------ cells
def _tagged(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata["tags"] = ["skip-execution", "raises-exception", "remove-cell", ""]


def _merged(notebook: NotebookNode) -> None:
    """All answers in one cell, the other answer cells deleted."""
    cells = [answer_cell(notebook, name) for name in POINTS]
    cells[0].source = "\n\n".join(c.source for c in cells)
    notebook.cells = [c for c in notebook.cells if c not in cells[1:]]


def _split(notebook: NotebookNode) -> None:
    """The answer's cell was cut in two: the function stands in a cell that nobody knows."""
    cell = answer_cell(notebook, "plus_one")
    notebook.cells.insert(notebook.cells.index(cell) + 1, new_code_cell(cell.source))
    cell.source = "import math"


def _without_metadata(notebook: NotebookNode) -> None:
    notebook.metadata = {}
    for cell in notebook.cells:
        cell.metadata = {}


def _renamed_ids(notebook: NotebookNode) -> None:
    for name in POINTS:
        answer_cell(notebook, name).metadata.nbgrader["grade_id"] = f"cell-{name}"


def _each(what: Callable[[NotebookNode], object]) -> Callable[[NotebookNode], object]:
    return lambda notebook: [what(cell) for cell in notebook.cells]


CELLS = [
    Fault(
        "a copied cell",
        said="is there twice",
        change=lambda nb: nb.cells.insert(3, copy.deepcopy(answer_cell(nb, "doubled"))),
    ),
    Fault("every cell twice", said="is there twice", change=lambda nb: nb.cells.extend(copy.deepcopy(nb.cells))),
    Fault("a deleted check", said="was deleted", change=lambda nb: nb.cells.remove(check_cell(nb, "doubled"))),
    Fault(
        "all checks deleted", said="was deleted", change=lambda nb: [nb.cells.remove(check_cell(nb, n)) for n in POINTS]
    ),
    Fault(
        "a deleted answer", but("doubled"), "was deleted", change=lambda nb: nb.cells.remove(answer_cell(nb, "doubled"))
    ),
    Fault(
        "an answer turned into text",
        said="was turned into",
        change=lambda nb: answer_cell(nb, "doubled").update(cell_type="markdown"),
    ),
    Fault(
        "checks turned into raw cells",
        said="was turned into",
        change=lambda nb: check_cell(nb, "doubled").update(cell_type="raw"),
    ),
    Fault(
        "a type that does not exist",
        said="was turned into",
        change=lambda nb: answer_cell(nb, "doubled").update(cell_type="answer"),
    ),
    Fault("cells in reverse order", said="stood before its answer", change=lambda nb: nb.cells.reverse()),
    Fault("all answers in one cell", said="was deleted", change=_merged),
    Fault("an answer cut in two", change=_split),
    Fault(
        "an edited check",
        said="is locked and was changed",
        change=lambda nb: check_cell(nb, "doubled").update(source="1 / 0"),
    ),
    Fault(
        "points and locks changed",
        change=_each(
            lambda c: c.metadata.get("nbgrader", {}).update(
                points=99, locked=False, grade=True, solution=True, schema_version=1
            )
        ),
    ),
    Fault("no metadata at all", said="was deleted", change=_without_metadata),
    Fault("other grade ids", said="was deleted", change=_renamed_ids),
    Fault(
        "metadata of other types",
        said="was deleted",
        change=_each(lambda c: c.update(metadata={"nbgrader": ["x"], "tags": 3})),
    ),
    Fault("equal ids", change=_each(lambda c: c.update(id="one"))),
    Fault("impossible ids", change=_each(lambda c: c.update(id=7))),
    Fault("no ids", change=_each(lambda c: c.pop("id", None))),
    Fault("tags that tools understand", change=_tagged),
    Fault(
        "another kernel",
        change=lambda nb: nb.metadata.update(kernelspec={"name": "ir", "display_name": "R", "language": "R"}),
    ),
    Fault("sources as lines", change=_each(lambda c: c.update(source=c.source.splitlines(keepends=True)))),
    Fault("line ends of Windows", change=_each(lambda c: c.update(source=c.source.replace("\n", "\r\n")))),
    Fault(
        "outputs of megabytes",
        change=lambda nb: answer_cell(nb, "doubled").update(outputs=[new_output("stream", text="x" * 5_000_000)]),
    ),
    Fault(
        "outputs that are none",
        change=lambda nb: answer_cell(nb, "doubled").update(outputs={"a": [None]}, execution_count="x"),
    ),
    Fault("half a letter", change=lambda nb: nb.cells.insert(0, new_code_cell("'\ud800'"))),
    Fault("control characters", change=lambda nb: nb.cells.insert(0, new_code_cell("'\x00\x1b[2J'"))),
    Fault("three hundred more cells", change=lambda nb: nb.cells.extend(new_code_cell("1") for _ in range(300))),
    Fault(
        "entries that are no cells", said="no cells are left out", change=lambda nb: nb.cells.extend([None, 3, "x", []])
    ),
]


# ------------------------------------------------------------------------------------------------ the file
def _old_format(notebook: NotebookNode) -> bytes:
    cells = []
    for cell in notebook.cells:
        old = {"cell_type": cell.cell_type, "metadata": cell.metadata}
        old |= {"input": cell.source, "language": "python"} if cell.cell_type == "code" else {"source": cell.source}
        cells.append(old)
    return json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}).encode()


def _cut(notebook: NotebookNode) -> bytes:
    """The file ends in the middle of the cell behind the check of ``same_block``."""
    whole = text(notebook)
    return whole[: whole.index("def batches")].encode()


def _conflict_in(notebook: NotebookNode) -> bytes:
    """Two counts of executions, as git leaves them."""
    whole = text(notebook)
    return re.sub(
        r'^( *"execution_count": null,\n)',
        r"<<<<<<< HEAD\n\1=======\n   \"execution_count\": 7,\n>>>>>>> other branch\n",
        whole,
        flags=re.M,
    ).encode()


def _zipped(notebook: NotebookNode) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(NOTEBOOK, text(notebook))
    return packed.getvalue()


def _named(name: str) -> Callable[[Path, bytes], object]:
    def write(folder: Path, data: bytes) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return write


def _beside(**more: bytes | int) -> Callable[[Path, bytes], object]:
    """The right file, and others of these contents or sizes."""

    def write(folder: Path, data: bytes) -> None:
        (folder / NOTEBOOK).write_bytes(data)
        for name, content in more.items():
            with (folder / name).open("wb") as file:
                file.truncate(content) if isinstance(content, int) else file.write(content)

    return write


def _with(what: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    return lambda folder, data: ((folder / NOTEBOOK).write_bytes(data), what(folder))


FILES = [
    Fault("a byte order mark", said="utf-8-sig", file=lambda nb: b"\xef\xbb\xbf" + text(nb).encode()),
    Fault("UTF-16", said="utf-16", file=lambda nb: text(nb).encode("utf-16")),
    Fault(
        "Latin-1", said="not UTF-8", file=lambda nb: text(nb).replace("A small section", "\xdcbung").encode("latin-1")
    ),
    Fault("cut off", but("batches", "plus_one"), "damaged", file=_cut),
    Fault("cut off by one character", said="damaged", file=lambda nb: text(nb).rstrip()[:-1].encode()),
    Fault("a comma too many", said="damaged", file=lambda nb: text(nb).rstrip().removesuffix("}").encode() + b",}"),
    Fault("conflict marks of git", said="merge", file=_conflict_in),
    Fault(
        "zeros in the middle",
        said="damaged",
        file=lambda nb: text(nb).replace('"cells": [', '"cells": [\x00\x00').encode(),
    ),
    Fault(
        "text around it",
        said="damaged",
        file=lambda nb: b"Dear all, here it is:\n" + text(nb).encode() + b"\nBest wishes",
    ),
    Fault("empty", {}, "empty", file=_raw(b"")),
    Fault("blank", {}, "empty", file=_raw(b" \n\n")),
    Fault("an essay", {}, "no notebook", file=_raw(b"Dear all, I could not do it.")),
    Fault("null", {}, "no cells", file=_raw(b"null")),
    Fault("a list", {}, "no cells", file=_raw(b"[1, 2]")),
    Fault("an object without cells", {}, "no cells", file=_raw(b'{"cells": {"a": 1}, "metadata": 3}')),
    Fault("brackets without end", {}, "no notebook", file=_raw(b"[" * 200_000)),
    Fault("braces without end", {}, "no notebook", file=_raw(b'{"cells":' * 50_000)),
    Fault("a web page", {}, "no notebook", file=_raw(b"<!DOCTYPE html><html><body>Notebook</body></html>")),
    Fault("an archive that is not compressed", said="damaged", file=_zipped),
    Fault("compressed", {}, "no notebook", file=lambda nb: gzip.compress(text(nb).encode())),
    Fault("random bytes", {}, "no notebook", file=lambda nb: bytes(range(256)) * 100),
    Fault(
        "larger than any notebook",
        {},
        "64 MB",
        place=lambda folder, data: os.truncate(os.open(folder / NOTEBOOK, os.O_CREAT | os.O_WRONLY), 65 << 20),
    ),
    Fault("format 3", said="format 3", file=_old_format),
    Fault("format 5", said="format 5", file=lambda nb: json.dumps({**nb, "nbformat": 5}).encode()),
    Fault("format 4.99", said="4.99", file=lambda nb: json.dumps({**nb, "nbformat_minor": 99}).encode()),
    Fault("no format", said="format None", file=lambda nb: json.dumps({"cells": nb.cells}).encode()),
    Fault(
        "numbers that JSON does not know", file=lambda nb: json.dumps({**nb, "metadata": {"x": float("nan")}}).encode()
    ),
    Fault("another name", said="is graded", place=_named("My solution (final) 2.ipynb")),
    Fault("a name with other letters", said="is graded", place=_named("\xdcbung 1 – 解答.ipynb")),
    Fault("a name that breaks lines", said="is graded", place=_named("a\n\x1b[2Jb.ipynb")),
    Fault("the ending of a text", said="is graded", place=_named("mini.ipynb.txt")),
    Fault("in a folder of its own", said="is graded", place=_named("handed in/deep/mini.ipynb")),
    Fault("missing", {}, "no notebook", place=_named("essay.pdf")),
    Fault("nothing at all", {}, "no notebook", place=lambda folder, data: None),
    Fault("a folder of that name", {}, "is a folder", place=lambda folder, data: (folder / NOTEBOOK).mkdir()),
    Fault(
        "a second notebook beside it",
        place=lambda folder, data: (_named(NOTEBOOK)(folder, data), _named("old.ipynb")(folder, data[:900])),
    ),
    Fault(
        "an empty one beside it",
        said="is graded",
        place=lambda folder, data: (_named(NOTEBOOK)(folder, b""), _named("mini-1.ipynb")(folder, data)),
    ),
    Fault("a link beside it", said="is a link", place=_with(lambda folder: (folder / "data").symlink_to("/"))),
    Fault("links in a circle", said="is a link", place=_with(lambda folder: (folder / "a").symlink_to("a"))),
    Fault("a pipe beside it", said="neither a file", place=_with(lambda folder: os.mkfifo(folder / "pipe"))),
    Fault("a huge file beside it", said="left out", place=_beside(**{"data.bin": 3 << 30})),
    Fault("many files beside it", said="left out", place=_beside(**{f"f{i}.txt": b"x" for i in range(230)})),
    Fault("a timestamp that is none", said="no time", place=_beside(**{"timestamp.txt": b"yesterday\x1b[2J"})),
    Fault("read-only", place=_with(lambda folder: (os.chmod(folder / NOTEBOOK, 0o400), os.chmod(folder, 0o500)))),
]

FAULTS = [*CODE, *CELLS, *FILES]
