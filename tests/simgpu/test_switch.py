"""On and off: blocks, the switch of a notebook, threads, interrupts, and the other tools of the course."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from conftest import Net, train_once
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

from course_utils import simgpu
from course_utils.meter import memory
from course_utils.observe.facts import describe, encode
from course_utils.observe.guard import guard
from course_utils.simgpu import Unsupported, counters, disable, enable, is_enabled, simulated_gpu
from course_utils.simgpu.patches import all_patches


def state_of_torch() -> dict[tuple[int, str], object]:
    return {(id(owner), name): vars(owner).get(name) for owner, name, _ in all_patches()}


@pytest.fixture(autouse=True)
def off() -> object:
    yield
    disable()
    assert not is_enabled()


def test_leaving_a_block_leaves_nothing_behind() -> None:
    before = state_of_torch()
    with simulated_gpu() as device:
        assert state_of_torch() != before
        x = torch.ones(2, device=device)
        torch.set_default_device("sim")
    assert state_of_torch() == before
    assert (torch.zeros(1).device.type == "cpu" and not torch.accelerator.is_available()) or torch.cuda.is_available()
    assert x.device.type == "cpu" and (x + torch.ones(2)).tolist() == [2, 2]


def test_an_exception_ends_the_block() -> None:
    before = state_of_torch()
    with pytest.raises(KeyError), simulated_gpu():
        raise KeyError
    assert state_of_torch() == before and not is_enabled()


def test_a_block_inside_a_block_has_counters_and_memory_of_its_own() -> None:
    with simulated_gpu() as outer:
        x = torch.ones(1000).to(outer)
        with simulated_gpu(count=2) as inner:
            assert inner == outer and counters().h2d == 0 and torch.accelerator.memory_allocated() == 0
            torch.ones(2).to("sim:1")
            del x  # returned to the device it came from
            assert counters().h2d == 1
        assert counters().h2d == 1 and torch.accelerator.memory_allocated() == 0


def test_enabling_twice_changes_nothing() -> None:
    device = enable()
    x = torch.ones(4).to(device)
    assert enable() == device
    assert counters().h2d == 1 and x.device == device
    disable()
    disable()
    assert not is_enabled() and x.device.type == "cpu"


def test_enabling_with_other_devices_starts_anew() -> None:
    torch.ones(4).to(enable())
    enable(count=2)
    assert counters().h2d == 0 and torch.accelerator.device_count() == 2


def test_enabling_inside_a_block_lasts_as_long_as_the_block() -> None:
    with simulated_gpu() as device:
        assert enable() == device
        disable()
        assert is_enabled()
    assert not is_enabled()


def test_the_switch_is_refused_where_it_would_cross_another_block() -> None:
    with memory(), pytest.raises(RuntimeError, match="outside of `with` blocks"):
        enable()
    enable()
    with memory(), pytest.raises(RuntimeError, match="outside of `with` blocks"):
        disable()
    with simulated_gpu(), pytest.raises(RuntimeError, match="outside of `with` blocks"):
        disable()
    disable()


def test_cells_can_be_run_again_and_in_any_order() -> None:
    shell = InteractiveShell.instance()
    cells = [
        "import torch\nfrom course_utils.simgpu import enable, disable, counters\ndevice = enable()",
        "model = torch.nn.Linear(3, 2).to(device)\nbefore = counters()\ny = model(torch.ones(1, 3, device=device))",
        "used = (counters() - before).kernels",
        "torch.ones(2) + torch.ones(2, device=device)",
    ]

    def run(number: int) -> object:
        result = shell.run_cell(cells[number], silent=True)
        return result.error_in_exec or result.error_before_exec

    assert run(0) is run(1) is run(0) is run(0) is run(1) is run(2) is None
    assert shell.user_ns["used"] == 2
    assert "same device" in str(run(3)) and run(1) is None
    assert shell.run_cell("disable()", silent=True).success and shell.run_cell("disable()", silent=True).success
    assert run(0) is run(1) is None


def test_an_interrupt_in_the_middle_leaves_all_in_order() -> None:
    class Interrupting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    device = enable()
    before = state_of_torch()
    with pytest.raises(KeyboardInterrupt):
        torch.func.vmap(lambda x: Interrupting()(torch.zeros(2, device=device) + x))(torch.ones(3, 2, device=device))
    assert state_of_torch() == before
    assert (torch.ones(2, device=device) * 2).device == device and torch.zeros(1).device.type == "cpu"


def test_an_interrupt_while_switching_on_leaves_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_of_torch()

    class Interrupting:
        def __setattr__(self, name: str, value: object) -> None:
            raise KeyboardInterrupt

    patches = [*all_patches(), (Interrupting(), "anything", None)]
    monkeypatch.setattr("course_utils.simgpu.switch.all_patches", lambda: patches)
    with pytest.raises(KeyboardInterrupt):
        enable()
    monkeypatch.undo()
    assert state_of_torch() == before and not is_enabled()
    assert enable().type == "sim"


def test_an_error_in_a_thread_does_not_reach_the_others() -> None:
    device, caught = enable(), []

    def fail() -> None:
        try:
            torch.ones(2) + torch.ones(2, device=device)
        except RuntimeError as error:
            caught.append(str(error))

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == 4 and all("same device" in text for text in caught)
    assert (torch.ones(2, device=device) * 2).device == device


def test_a_thread_that_outlives_the_simulation_computes_on_the_cpu() -> None:
    go, done = threading.Event(), []

    def wait() -> None:
        go.wait()
        done.append((torch.ones(2) * 2).device.type)

    with simulated_gpu():
        thread = threading.Thread(target=wait)
        thread.start()
    go.set()
    thread.join()
    assert done == ["cpu"]


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda d: torch.compile(lambda x: x), "torch.compile"),
        (lambda d: nn.Linear(2, 2).to(d).compile(), "torch.compile"),
        (lambda d: torch.eye(3, device=d).to_sparse(), "layout torch.sparse"),
        (lambda d: torch.eye(3).to_sparse().to(d), "layout torch.sparse"),
        (lambda d: torch.sim.Stream(), "a second stream"),
        (lambda d: torch.sim.Event(enable_timing=True), "time"),
        (lambda d: torch.sim.Event().elapsed_time(torch.sim.Event()), "time"),
        (lambda d: torch.ones(1, device=d).to("cuda"), "the real device cuda"),
    ],
)
def test_what_is_not_simulated_says_so(sim: torch.device, use: object, words: str) -> None:
    with pytest.raises(Unsupported, match=f"the simulated GPU does not simulate .*{words}"):
        use(sim)


def test_memory_cannot_be_shared_with_other_libraries(sim: torch.device) -> None:
    with pytest.raises(BufferError, match=r"Use Tensor.cpu\(\) first"):
        torch.ones(1, device=sim).__dlpack__()


def test_the_one_stream_can_be_waited_for(sim: torch.device) -> None:
    host = torch.ones(2, device=sim).to("cpu", non_blocking=True)
    event = torch.sim.Event()
    event.record()
    assert not event.query()
    torch.accelerator.current_stream().synchronize()
    assert event.query() and host.tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------ with the course's tools
def test_facts_name_the_device(sim: torch.device) -> None:
    x = torch.ones(3, device=sim)
    assert describe(x, torch.device("cpu")) == "Tensor float32 (3,) on sim"
    assert describe(x, sim) == "Tensor float32 (3,)"
    assert encode(x.device) == "sim:0"
    assert encode(x)["shape"] == [3] and encode(x)["data"] == encode(torch.ones(3))["data"]


def test_the_guard_and_the_simulation_go_together(net: Net) -> None:
    with guard() as caught, simulated_gpu() as device:
        train_once(net.to(device), torch.optim.SGD(net.parameters(), 0.1), device)
    assert caught.remarks == []
    enable()
    with guard() as caught, simulated_gpu() as device:
        torch.ones(2, device=device)
    assert caught.remarks == [] and is_enabled()


def test_the_guard_switches_off_what_an_answer_has_left_on() -> None:
    with guard() as caught:
        enable()
    assert not is_enabled() and any("simulated GPU" in remark for remark in caught.remarks)


def test_the_course_does_not_load_the_simulation_unasked() -> None:
    code = (
        "import sys, torch, course_utils.checking, course_utils.meter; print([m for m in sys.modules if 'simgpu' in m])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_nothing_happens_to_torch_before_the_first_use() -> None:
    code = (
        "import torch\nname, to = torch._C._get_privateuse1_backend_name(), torch.Tensor.to\nimport course_utils.simgpu\n"
        "assert torch._C._get_privateuse1_backend_name() == name and torch.Tensor.to is to and not hasattr(torch, 'sim')\n"
        "course_utils.simgpu.enable()\n"
        "assert torch.ones(1, device='sim').device.type == 'sim'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_asking_for_counters_while_it_is_off_says_how_to_switch_it_on() -> None:
    with pytest.raises(RuntimeError, match="the simulated GPU is off"):
        simgpu.counters()
