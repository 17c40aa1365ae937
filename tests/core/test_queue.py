"""The queue explorer and the order of events: what they show is what the simulated GPU did."""

import re

import pytest
import torch

from course_utils import plots
from course_utils.simgpu import Event, counters, simulated_gpu
from course_utils.widgets import queue


@pytest.fixture
def shown(monkeypatch):
    """What would be displayed in a notebook: (markdown, plain) pairs."""
    out = []
    monkeypatch.setattr(plots, "show_markdown", lambda markdown, plain: out.append((markdown, plain)))
    return out


def test_a_tensor_stands_on_its_own_side():
    first, second, *_ = queue.run(queue.PROGRAMS["there and back"])
    assert first.host == ("x = [1, 2]",) and first.device == ()
    assert second.host == ("x = [1, 2]",) and second.device == ("d = [1, 2]",)


def test_work_stands_in_the_queue_until_the_host_waits():
    *_, before, last = queue.run(queue.PROGRAMS["there and back"])
    assert before.queue == ("mul", "add")
    assert last.queue == () and "s = 33, a number" in last.host


def test_looking_at_the_tensors_costs_no_copy_and_no_wait():
    last = queue.run(queue.PROGRAMS["there and back"])[-1]
    assert (last.counted.transfers, last.counted.synchronisations) == (1, 2), "the copy, and item()"


def test_a_program_ends_with_the_error_and_shows_its_words():
    snapshots = queue.run(("w = torch.ones(2, device=device)", "y = w * torch.ones(2)", "z = y"))
    assert len(snapshots) == 2
    assert snapshots[-1].error.startswith("Expected all tensors to be on the same device")


def test_both_ways_to_read_stale_data_are_shown():
    early = queue.run(queue.PROGRAMS["read too early"])
    assert "early = nan" in early[2].host and "late = 3" in early[4].host
    assert [bool(s.mistake) for s in early] == [False, False, True, False, False]
    late = queue.run(queue.PROGRAMS["written too early"])
    assert late[1].device == ("d: not there yet",), "the copy has not been done"
    assert late[2].mistake and late[3].device[0] == "d = [9, 9]"


@pytest.mark.parametrize("program", queue.PROGRAMS)
def test_the_alt_text_tells_of_every_step_what_the_picture_tells(program):
    lines = queue.PROGRAMS[program]
    for step, seen in enumerate(queue.run(lines)):
        text = queue.alt_text(lines, step)
        drawn = {t.get_text() for f in queue.draw(lines, step).subfigs for a in _axes(f) for t in a.texts}
        for part in (*seen.host, *seen.device, *seen.queue):
            assert part in text and part in drawn


def _axes(figure):
    return [*figure.axes, *(a for f in figure.subfigs for a in f.axes)]


def test_running_a_program_leaves_the_counters_of_the_notebook_alone():
    with simulated_gpu() as device:
        torch.ones(2).to(device)
        before = counters()
        queue.run.__wrapped__(queue.PROGRAMS["there and back"])
        assert counters() == before


def test_choosing_another_program_begins_at_its_first_line():
    box = queue._explorer("read too early", 4, "caption")
    program, line, picture, _ = box.children
    assert line.value == 5
    program.value = "two places"  # has fewer lines
    assert (line.value, line.max) == (1, 3) and "After the line w = " in picture.value
    line.value = 3
    assert "Expected all tensors to be on the same device" in picture.value


def test_a_program_or_step_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="choose one of there and back"):
        queue.queue_explorer("no such program")
    with pytest.raises(ValueError, match="step 3 is none of the 3 steps"):
        queue.draw(queue.PROGRAMS["two places"], 3)


def test_outside_a_notebook_the_explorer_is_a_picture(shown):
    queue.queue_explorer()
    assert "data:image/png" in shown[0][0] and "early = nan" in shown[0][1]


# ------------------------------------------------------------------------------------------------ the order of events
def test_recording_keeps_the_events_of_the_block_alone_and_in_order():
    with simulated_gpu() as device:
        x = torch.ones(2).to(device)
        with queue.recording() as happened:
            (x * 2).sum().item()
        x + 1
    assert [(e.what, e.detail) for e in happened] == [("kernel", "mul"), ("kernel", "sum"), ("wait", "item")]


def test_recording_does_not_lose_events_when_the_simulation_drops_old_ones():
    with simulated_gpu() as device:
        x = torch.ones(1, device=device)
        from course_utils.simgpu.world import MOST_EVENTS, current

        current().events.extend(Event("device", "kernel", "old") for _ in range(MOST_EVENTS))
        with queue.recording() as happened:
            x + 1
    assert [e.detail for e in happened] == ["add"]


def test_a_bar_ends_at_the_next_wait():
    happened = [Event("device", "kernel", "mm"), Event("host", "wait", "item"), Event("device", "kernel", "add")]
    axes = queue.draw_order(happened).axes[0]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert spans == [(0, 1), (2, 3)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mm", "add"]


def test_the_moment_of_a_queued_copy_is_not_drawn_as_if_it_were_known():
    happened = [Event("host", "copy queued", "h2d", 8), Event("device", "copy done", "h2d")]
    axes = queue.draw_order(happened).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["copy to the device"]
    assert len(axes.patches) == 1


def test_the_alt_text_lists_the_events(shown):
    with simulated_gpu() as device, queue.recording() as happened:
        torch.ones(2).pin_memory().to(device, non_blocking=True).sum().item()
    queue.order_picture(happened, caption="A copy and a sum.")
    assert re.search(r"copy to the device, kernel sum, the host waits \(item\)\.", shown[0][1])


@pytest.mark.parametrize("count", [0, 31])
def test_nothing_and_too_much_are_not_drawn(count):
    with pytest.raises(ValueError, match="1 to 30 pieces of work"):
        queue.draw_order([Event("device", "kernel", "mm")] * count)
