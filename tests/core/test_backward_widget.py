"""The widget that steps through a backward pass: what it records, what it draws, and what it leaves behind."""

import pytest
import torch
from torch import nn

from course_utils import demos, plots
from course_utils.meter import bytes_saved_for_backward, memory
from course_utils.widgets import backward


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def loss(mlp):
    return nn.functional.mse_loss(mlp(torch.rand(8, 3)), torch.rand(8, 2))


def test_the_recorded_gradients_are_those_of_a_real_backward_pass(mlp, loss):
    recorded = backward.record_backward(loss, mlp)
    arrived = {name: arrives for _, name, arrives, _ in recorded.rows()}
    gradients = torch.autograd.grad(loss, list(mlp.parameters()))
    for (name, _), gradient in zip(mlp.named_parameters(), gradients, strict=True):
        assert arrived[name] == f"{tuple(gradient.shape)}, norm {gradient.norm().item():.3g}"


def test_a_node_never_runs_before_those_that_send_to_it(mlp, loss):
    recorded = backward.record_backward(loss, mlp)
    turn = {number: k for k, number in enumerate(recorded.order)}
    assert sorted(turn) == list(range(len(recorded.nodes))), "every node runs once"
    for number, node in enumerate(recorded.nodes):
        assert all(turn[number] < turn[following] for following in node.next)


def test_recording_leaves_gradients_graph_and_hooks_as_they_were(mlp, loss):
    first, second = mlp[0].weight, mlp[2].weight
    first.grad = torch.full_like(first, 7.0)
    backward.record_backward(loss, mlp)
    backward.record_backward(loss, mlp)
    assert torch.equal(first.grad, torch.full_like(first, 7.0)) and second.grad is None
    loss.backward()
    assert second.grad is not None


def test_an_error_during_the_pass_takes_no_gradient_away():
    x = torch.rand(3, requires_grad=True)
    y = x.exp()
    x.grad = torch.ones(3)
    loss = y.sum()
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward.record_backward(loss)
    assert torch.equal(x.grad, torch.ones(3))


def test_no_gradient_leaves_towards_data(mlp, loss):
    recorded = backward.record_backward(loss, mlp)
    left = {recorded.nodes[n].title: len(recorded.left[n]) for n in recorded.order[:6]}
    assert left["AddmmBackward0"] == 3, "bias, input and weight of the second layer"
    assert len(recorded.left[recorded.order[6]]) == 2, "the first layer's input is data"


def test_the_description_names_what_arrives_what_was_saved_and_where_it_goes(mlp, loss):
    recorded = backward.record_backward(loss, mlp)
    text = recorded.alt_text(1)
    for part in (
        "step 2 of 10: AddmmBackward0",
        "arrives: (8, 2), norm",
        "mat1 (8, 4), 128 B",
        "(2,), norm",
        "to 2.bias",
    ):
        assert part in text
    assert "added to .grad" in recorded.alt_text(2)


def test_shared_leaves_and_one_node_graphs_can_be_drawn():
    w = torch.rand(3, requires_grad=True)
    for loss in (((w * w).exp() + w).sum(), w.sum()):
        recorded = backward.record_backward(loss)
        for step in range(len(recorded)):
            assert plots.png(backward.draw(recorded, step)).startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused_and_says_what_to_do(mlp):
    with pytest.raises(ValueError, match="one number"):
        backward.record_backward(mlp(torch.rand(8, 3)), mlp)
    with pytest.raises(ValueError, match="recorded computation"):
        backward.record_backward(torch.tensor(1.0))
    with pytest.raises(ValueError, match="more than 20: take a smaller model"):
        backward.record_backward(nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])(torch.rand(1, 2)).sum())
    with pytest.raises(TypeError, match="float"):
        backward.record_backward(1.0)
    w = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="none of the steps 0 to 2"):
        backward.draw(backward.record_backward((w * 2).sum()), 3)


def test_outside_a_notebook_every_step_can_be_read(mlp, loss, monkeypatch):
    shown = []
    for module in (demos, plots):
        monkeypatch.setattr(module, "show_markdown", lambda markdown, plain: shown.append((markdown, plain)))
    backward.backward_explorer(loss, mlp, step=3)
    (picture, alt), (_, steps) = shown
    assert "data:image/png" in picture and "step 4 of 10" in alt
    assert len(steps.splitlines()) == 11 and "ReluBackward0" in steps


def test_the_buttons_move_the_step_and_stop_at_the_ends(mlp, loss):
    controls, picture, _ = backward._explorer(backward.record_backward(loss, mlp), 0).children
    steps, back, forth = controls.children
    assert back.disabled and not forth.disabled
    forth.click()
    assert steps.value == 2 and "step 2 of 10" in picture.value
    steps.value = 10
    assert forth.disabled and not back.disabled and "step 10 of 10" in picture.value


def test_bytes_that_hang_on_a_graph_nobody_holds_are_saved_but_not_kept(mlp):
    x = torch.rand(8, 3)
    whole = bytes_saved_for_backward(mlp, x)
    cut = bytes_saved_for_backward(lambda: mlp[2](mlp[1](mlp[0](x)).detach()))
    assert whole.kept == whole.bytes == 96 + 128
    assert cut.bytes == 96 + 128 and cut.kept == 128
    assert bytes_saved_for_backward(torch.no_grad()(mlp), x).kept == 0


def test_counting_what_is_saved_keeps_nothing_alive(mlp):
    x = torch.rand(8, 3)
    with memory() as plain:
        result = mlp[1](mlp[0](x)).clone().detach()
    with memory() as counted:
        saved = bytes_saved_for_backward(lambda: mlp[1](mlp[0](x)).clone().detach())
    assert result.nbytes == plain.current == counted.current and saved.bytes > 0
