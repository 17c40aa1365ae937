"""What a learner's notebook may have left switched on does not reach a check, and what a check switches off comes back."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from course_utils import bytes_saved_for_backward
from course_utils.observe.guard import guard, take_saved_tensors_hooks


@pytest.fixture
def hooks_left_on():
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    hooks.__enter__()
    yield
    take_saved_tensors_hooks()


def spoilt_graph_raises() -> bool:
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h += 1
    try:
        h.sum().backward()
    except RuntimeError:
        return True
    return False


def test_saved_tensors_hooks_of_the_notebook_would_hide_spoilt_graphs(hooks_left_on):
    assert not spoilt_graph_raises()


def test_saved_tensors_hooks_of_the_notebook_are_set_aside_and_put_back(hooks_left_on):
    with guard() as caught:
        assert spoilt_graph_raises()
    assert any("saved_tensors_hooks are on in this notebook" in remark for remark in caught.remarks)
    assert len(take_saved_tensors_hooks()) == 1


def test_saved_tensors_hooks_left_on_by_an_answer_are_switched_off():
    with guard() as caught:
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor).__enter__()
    assert any("left saved_tensors_hooks switched on" in remark for remark in caught.remarks)
    assert take_saved_tensors_hooks() == [] and spoilt_graph_raises()


def test_a_hook_registered_three_times_for_all_modules_does_not_run_in_a_check():
    calls = []
    handles = [nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1)) for _ in range(3)]
    try:
        with guard() as caught:
            nn.ReLU()(torch.ones(2))
        assert calls == [] and any("global hooks" in remark for remark in caught.remarks)
        nn.ReLU()(torch.ones(2))
        assert len(calls) == 3
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(
    "switch, back, words",
    [
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "grad mode"),
        (
            lambda: torch.autograd.set_detect_anomaly(True),
            lambda: torch.autograd.set_detect_anomaly(False),
            "anomaly mode",
        ),
    ],
)
def test_a_mode_that_the_notebook_left_on_is_set_aside_named_and_put_back(switch, back, words):
    state = lambda: (torch.is_grad_enabled(), torch.is_anomaly_enabled())  # noqa: E731
    try:
        switch()
        left = state()
        with guard() as caught:
            assert state() == (True, False)
        assert state() == left
        assert any(words in remark and "set it aside" in remark for remark in caught.remarks)
    finally:
        back()


def test_an_answer_that_fails_in_a_hook_leaves_nothing_behind():
    model = nn.Linear(2, 2)

    def broken(*_):
        raise ValueError("in a hook")

    with guard():
        handle = nn.modules.module.register_module_forward_hook(broken)
        torch.set_grad_enabled(False)
        with pytest.raises(ValueError, match="in a hook"):
            model(torch.ones(1, 2))
        assert handle is not None
    assert model(torch.ones(1, 2)).requires_grad


def test_a_parameter_saved_as_a_view_of_itself_counts_for_nothing():
    layer, x = nn.Linear(3, 5), torch.ones(2, 3, requires_grad=True)
    assert bytes_saved_for_backward(layer, x).bytes == x.nbytes


def test_counting_saved_bytes_keeps_no_graph_alive():
    w = torch.ones(3, requires_grad=True)
    output = weakref.ref(bytes_saved_for_backward(w.exp).result)
    assert output() is None


def test_a_graph_that_was_counted_can_be_differentiated_twice():
    w = torch.full((3,), 2.0, requires_grad=True)
    cube = bytes_saved_for_backward(lambda: (w * w * w).sum()).result
    (first,) = torch.autograd.grad(cube, w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert first.tolist() == [12.0] * 3 and second.tolist() == [12.0] * 3
