"""The helpers of section 4's demonstrations: code outside the notebook, the prefetch timeline, memory curves."""

import os
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from course_utils import plots
from course_utils.observe.processes import settled_children
from course_utils.scripts import fresh_import, in_child
from course_utils.widgets import memory as memory_widget
from course_utils.widgets import prefetch


@pytest.fixture
def shown(monkeypatch):
    """What would be displayed in a notebook: (markdown, plain) pairs."""
    out = []
    monkeypatch.setattr(plots, "show_markdown", lambda markdown, plain: out.append((markdown, plain)))
    return out


# ------------------------------------------------------------------------------------------------ code outside the notebook
@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("lesson_of_the_test", None)


def test_a_changed_file_is_imported_as_it_is_now(folder):
    file = folder / "lesson_of_the_test.py"
    file.write_text("value = 1\n")
    assert fresh_import("lesson_of_the_test").value == 1
    file.write_text("value = 200  # another length: no cached bytecode fits\n")
    assert fresh_import("lesson_of_the_test").value == 200


def test_a_spawned_worker_finds_the_file(folder):
    (folder / "lesson_of_the_test.py").write_text("")
    fresh_import("lesson_of_the_test")
    assert str(folder) in sys.path  # what multiprocessing hands on to a new Python


def test_a_missing_file_names_the_cell_to_run(folder):
    with pytest.raises(ModuleNotFoundError, match="cell that begins with %%writefile nowhere"):
        fresh_import("nowhere")


def test_a_child_gives_what_it_prints_and_keeps_its_errors_to_itself(capfd):
    assert in_child("import sys; print(sys.argv[1:]); print('x', file=sys.stderr)", "a", 2) == "['a', '2']"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; print('so far', flush=True); sys.exit(3)", "so far\n(left with exit code 3)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "(ended by SIGKILL)"),
    ],
    ids=["exit code", "signal"],
)
def test_how_a_child_ended_is_told(code, says):
    assert in_child(code) == says


def test_a_child_that_hangs_is_stopped_with_all_that_it_started():
    code = (
        "import subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(other.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    output = in_child(code, seconds=2)
    assert output.endswith("(stopped after 2 seconds)")
    other = int(output.split()[0])
    deadline = time.monotonic() + 10
    while psutil.pid_exists(other) and psutil.Process(other).status() != "zombie" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(other) or psutil.Process(other).status() == "zombie"


# ------------------------------------------------------------------------------------------------ prefetch
@pytest.mark.parametrize(("workers", "factor", "ahead"), [(0, 1, 0), (1, 3, 3), (2, 2, 4)])
def test_the_timeline_counts_what_a_loader_asks_for(workers, factor, ahead):
    line = prefetch.run_loader(workers, factor)
    assert line.ahead == ahead
    count = len(line.asked)
    # While batches are left to ask for, each one taken is replaced; in the end nothing is under way.
    assert [line.in_flight(s) for s in range(count + 1)] == [min(ahead, count - s) for s in range(count + 1)]
    assert line.made_by == ([-1] * count if workers == 0 else [b % workers for b in range(count)])


def test_the_timeline_leaves_no_worker():
    before = set(settled_children(0))
    prefetch.run_loader(2, 2)
    assert set(settled_children(10)) <= before


def test_numbers_that_cannot_be_chosen_are_refused():
    with pytest.raises(ValueError, match="choose num_workers"):
        prefetch.run_loader(64, 2)


def test_without_a_front_end_the_timeline_is_a_picture_with_its_words(shown):
    prefetch.prefetch_timeline(1, 2)
    ((markdown, plain),) = shown
    assert markdown.startswith("![A grid of 14 batches") and "data:image/png;base64," in markdown
    assert "2 batches are asked for before the first is used" in plain


# ------------------------------------------------------------------------------------------------ memory curves
class Texts(Dataset):
    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return len(self.texts[index])


@pytest.mark.skipif(sys.platform != "linux", reason="pages are shared only where workers are forked")
def test_the_curve_of_a_list_rises_and_that_of_an_array_does_not(shown):
    texts = [f"{i:050}" for i in range(100_000)]  # 10 MB of objects
    loaders = {
        name: DataLoader(Texts(kind), batch_size=5_000, num_workers=1, persistent_workers=True)
        for name, kind in {"list": texts, "array": np.array(texts)}.items()
    }
    curves = memory_widget.memory_curves(loaders, "Texts.", epochs=2, points=2)
    assert curves["list"].batches == [0, 10, 20, 30, 40]
    assert curves["list"].grown[-1] > 8e6 > 2 * curves["array"].grown[-1]
    assert len(curves["list"].resident) == 5
    assert "list grows by" in shown[0][1]


def test_without_workers_the_curve_is_that_of_the_main_process_from_its_first_reading(shown):
    panels = memory_widget.worker_panels(
        lambda kind, workers: DataLoader(torch.arange(20), num_workers=workers), ["tensor"], [0], "Numbers.", epochs=1
    )
    curve = panels[0]["tensor"]
    assert curve.grown[:2] == [0, 0] and curve.batches == [0, 10, 20]
    assert "With 0 workers: tensor grows by" in shown[0][1]


@pytest.mark.filterwarnings("error")
def test_more_workers_than_cores_do_not_warn(shown, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)  # what PyTorch asks for the cores
    memory_widget.worker_panels(
        lambda kind, workers: DataLoader(torch.arange(20), num_workers=workers), ["tensor"], [2], "Numbers.", epochs=1
    )
    prefetch.run_loader(2, 1)
    assert len(shown) == 1


def test_where_a_person_looks_on_one_picture_is_replaced_and_the_last_one_is_complete(monkeypatch):
    import IPython.display

    pictures = []

    class Handle:
        def update(self, text):
            pictures.append(("again", text.data))

    def display(text, display_id):
        pictures.append(("new", text.data))
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(memory_widget, "can_interact", lambda: True)
    loaders = {name: DataLoader(torch.arange(20), num_workers=0) for name in ("one", "two")}
    memory_widget.memory_curves(loaders, "Numbers.", epochs=1, points=2)
    assert [how for how, _ in pictures] == ["new"] + ["again"] * (len(pictures) - 1) and len(pictures) >= 2
    assert "one grows by" in pictures[-1][1] and "two grows by" in pictures[-1][1]
