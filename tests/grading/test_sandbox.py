"""What a student's code can reach and use up, tried from inside, in every sandbox that this machine can make."""

from __future__ import annotations

import ast
import json
import os
import socket
import time
from pathlib import Path

import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

from grading import executor
from grading.sandbox.offer import SandboxMissing, choose, offers

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="sandboxes are made with means of Linux")


class NoJudge:
    """These notebooks have no exercises."""

    def __init__(self, *_: object) -> None: ...

    def __contains__(self, name: object) -> bool:
        return False


@pytest.fixture(params=["bubblewrap", "landlock", "none"])
def kind(request) -> str:
    try:
        return choose(request.param).kind
    except SandboxMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def walls(kind) -> str:
    """Only the kinds that keep a kernel from files and network."""
    if kind == "none":
        pytest.skip("this kind has no walls, only limits")
    return kind


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run cells in a kernel; the texts that each put out, a line an output."""
    monkeypatch.setattr(executor, "Judge", NoJudge)

    def run_cells(kind: str, *cells: str, timeout: int = 30, **settings: object) -> list[str]:
        config = Config()
        config.Sandbox.update({"kind": kind, "memory": 1024, "scratch": 128, "processes": 60, **settings})
        config.Execute.update({"timeout": timeout, "shutdown_kernel": "immediate", "iopub_timeout": 60})
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        folder = tmp_path / "submission"
        folder.mkdir(exist_ok=True)
        execute = executor.ObserveAndJudge(config=config)
        resources = {"metadata": {"path": str(folder)}, "nbgrader": {"assignment": "01_tensor_costs"}}
        execute.preprocess(notebook, resources)
        return [
            "\n".join(o.get("text") or o.get("evalue") or str(o.get("data")) for o in c.outputs).strip()
            for c in notebook.cells
        ]

    return run_cells


TRY = """
import json, os, socket, sys
from pathlib import Path

def tried(function, *arguments):
    try:
        return repr(function(*arguments))[:80]
    except OSError as error:
        return "refused"

"""


def test_a_kernel_reads_what_it_must_not(run, walls, tmp_path, monkeypatch):
    secret = tmp_path / "home" / "secret"
    secret.parent.mkdir()
    secret.write_text("the instructor's")
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "link").symlink_to(secret)
    (tmp_path / "submission" / "own").write_text("the student's")
    monkeypatch.setenv("A_PASSWORD", "geheim")
    paths = [
        secret,
        ROOT / "solutions" / "01_tensor_costs.py",
        ROOT / "grading" / "judge.py",
        ROOT / "nbgrader_config.py",
    ]
    text = run(
        walls,
        TRY + f"seen = [tried(Path(p).read_text) for p in {list(map(str, paths))!r}]\n"
        f"seen.append(tried(os.listdir, {str(ROOT)!r}))\n"
        "links = os.path.lexists('link') and tried(Path('link').read_text)\n"
        "print(json.dumps([seen, links, Path('own').read_text(), 'A_PASSWORD' in os.environ]))",
    )[0]
    seen, links, own, password = json.loads(text)
    assert seen[:4] == ["refused"] * 4
    listed = set() if seen[4] == "refused" else set(ast.literal_eval(seen[4]))
    assert listed <= {"course_utils", "data", ".venv"}, "bare folders, the way to what may be read"
    assert (links, own, password) == (False, "the student's", False)


def test_a_kernel_reads_the_labels_of_the_test_images(run, walls):
    text = run(
        walls,
        TRY + "from course_utils.data import load_cifar_mini\n"
        "train, test = load_cifar_mini('train'), load_cifar_mini('test')\n"
        "print(json.dumps([len(set(train.labels.tolist())), int(test.labels.max()), int(test.images.max()) > 0]))",
    )[0]
    assert json.loads(text) == [10, 0, True]


def test_a_kernel_reaches_the_network(run, walls):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = run(
            walls,
            TRY + f"print(json.dumps([tried(socket.create_connection, ('127.0.0.1', {port}), 2),"
            " tried(socket.create_connection, ('192.0.2.1', 80), 2)]))",
        )[0]
    assert json.loads(text) == ["refused", "refused"]


def test_a_kernel_writes_outside_its_scratch_folder(run, walls, tmp_path):
    places = [ROOT / "course_utils" / "new", ROOT / "grading" / "gradebook.db", "/usr/new", "/etc/new", "/sockets/new"]
    text = run(
        walls,
        TRY + f"print(json.dumps([tried(Path(p).write_text, 'x') for p in {list(map(str, places))!r}]))",
        "%%writefile mine.py\nx = 1",
        "import mine, tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x')\nprint(mine.x)",
    )
    assert json.loads(text[0]) == ["refused"] * len(places)
    assert text[2] == "1"
    assert not list((tmp_path / "submission").iterdir()), "nothing comes back into the submission's folder"


def test_a_kernel_attacks_the_process_that_grades(run, walls):
    if walls == "landlock" and any("signals" in hole for hole in choose(walls).open):
        pytest.skip("this kernel's Landlock does not keep signals inside")
    text = run(
        walls,
        TRY
        + f"print(json.dumps([tried(os.kill, {os.getpid()}, 0), tried(Path('/proc/{os.getpid()}/environ').read_text),"
        f" tried(os.kill, {os.getppid()}, 0)]))",
        "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, 1, 0, 0))",
    )
    assert json.loads(text[0]) == ["refused"] * 3
    assert text[1] == "-1"


def test_something_outlives_its_submission(run, kind):
    mark = f"31{time.time_ns() % 10**9:09}"
    daemon = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        os.execvp('sleep', ['sleep', '{mark}'])\n"
        "    os._exit(0)\n"
    )
    run(kind, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {daemon!r}])")
    running = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert running == []


def test_workers_subprocesses_and_shared_memory_fail(run, kind):
    text = run(
        kind,
        "import subprocess, sys, torch\nfrom torch.utils.data import DataLoader\n"
        "class Squares(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return torch.tensor(i * i)\n"
        "print(sum(int(b.sum()) for b in DataLoader(Squares(), 2, num_workers=2)), torch.ones(3).share_memory_().sum())",
        "print(subprocess.run([sys.executable, '-c', 'import course_utils; print(7)'], capture_output=True, text=True))",
        "import os\npid = os.fork()\nif pid == 0:\n    print('from a child', flush=True); os._exit(0)\nos.waitpid(pid, 0)[1]",
    )
    assert text[0] == "140 tensor(3.)"
    assert "returncode=0, stdout='7\\n'" in text[1]


# What a cell does, the settings, and what its verdict says. The next cell has to run in a kernel with the cells before.
# Each is bounded by itself: were the sandbox broken, the machine would survive the test.
HARM = {
    "loop": ("while True: pass", "within 3 seconds"),
    "sleep": ("import time; time.sleep(60)", "within 3 seconds"),
    "exit": ("import os; os._exit(3)", "exit code 3"),
    "crash": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "processes": (
        "import os, time\nfor _ in range(300):\n    if os.fork() == 0:\n        time.sleep(20); os._exit(0)\ntime.sleep(20)",
        "more than 60 processes",
    ),
    "memory": (
        # One allocation of 400 MiB each: a copy beside it would come near the limit of a single process.
        "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
        "        x = os.urandom(1 << 20) * 400; time.sleep(20); os._exit(0)\ntime.sleep(20)",
        "more than 1024 MiB of memory",
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_harm_costs_more_than_its_own_cell(run, kind, harm):
    code, said = HARM[harm]
    text = run(kind, "a = 41", code, "print(a + 1)", timeout=3 if "within" in said else 60)
    assert said in text[1]
    assert text[2] == "42"


def test_one_process_takes_all_memory(run, kind):
    text = run(kind, "try:\n    x = bytearray(3 << 30)\nexcept MemoryError:\n    print('refused')")
    assert text == ["refused"]


def test_files_fill_the_disk(run, kind):
    code = "for i in range(60):\n    open(f'f{i}', 'wb').write(bytes(10 << 20))\nimport time; time.sleep(5)"
    text = run(kind, code, "print(7)")
    assert "No space left" in text[0] or "more than 128 MiB of files" in text[0]
    assert text[1] == "7"


def test_a_flood_of_output_fills_the_graders_memory(run, kind):
    text = run(kind, "for _ in range(40): print('x' * 1_000_000)", "print(7)", output=2)
    assert len(text[0]) < 3 << 20
    assert "the rest of the output was left out" in text[0]
    assert text[1] == "7"


def test_two_kernels_draw_the_same_random_numbers(run, kind):
    draw = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())"
    one, two = run(kind, draw)[0].split(), run(kind, draw)[0].split()
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_a_sandbox_that_is_missing_is_passed_over_in_silence(monkeypatch):
    lacking = offers()[0].__class__("bubblewrap", "the program is missing")
    monkeypatch.setattr("grading.sandbox.offer.offers", lambda: (lacking, *offers()[1:]))
    with pytest.raises(SandboxMissing, match="the program is missing"):
        choose("bubblewrap")
    assert choose("auto").kind != "bubblewrap"


def test_a_kernel_that_cannot_start_becomes_a_zero(run, monkeypatch):
    monkeypatch.setattr(executor, "_PAUSE", 0.0)
    monkeypatch.setattr(executor, "_PRELUDE", "import os; os._exit(1)")
    with pytest.raises(executor.NotGradable, match="no kernel could be started"):
        run("auto", "print(7)")
