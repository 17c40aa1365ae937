"""Drawings of autograd and FX graphs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from course_utils import bytes_saved_for_backward, draw_fx, draw_graph
from course_utils.graphs import MAX_EDGES, MAX_TEXT, MOST


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 3 * 4, 2)
    )


def images() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 3 * 5 * 6).reshape(2, 3, 5, 6)


def title(drawing, name):
    return next(node for node in drawing.nodes if node.title == name)


def test_every_parameter_stands_in_the_drawing_under_its_name_with_shape_and_bytes():
    model = network()
    drawing = draw_graph(model(images()).sum(), model)
    leaves = {node.title: node.notes for node in drawing.nodes if node.leaf}
    assert set(leaves) == {name for name, _ in model.named_parameters()}
    assert leaves["4.weight"] == ["(2, 48), 384 B"]


@pytest.mark.parametrize(
    "function",
    [
        lambda w: (w * w.tanh()).sum(),
        lambda w: torch.cat([w.exp(), w]).sum(),
        lambda w: (w[:1].exp() + w[1:2].square()).sum(),
        lambda w: (w + 1).sum(),
    ],
)
def test_the_bytes_are_those_that_saved_tensors_hooks_count(function):
    w = torch.ones(4, 3, requires_grad=True)
    assert draw_graph(function(w)).saved_bytes == bytes_saved_for_backward(function, w).bytes


def test_the_bytes_of_a_network_are_those_that_saved_tensors_hooks_count():
    model = network()
    saved = bytes_saved_for_backward(lambda: model(images()).square().sum())
    assert draw_graph(saved.result, model).saved_bytes == saved.bytes > 0


def test_a_storage_that_two_nodes_keep_counts_once_and_says_so():
    w = torch.ones(5, requires_grad=True)
    h = w.exp()
    drawing = draw_graph((h * h).sum())
    assert drawing.saved_bytes == 20
    assert title(drawing, "ExpBackward0").notes[-1] == "saves result (5,), kept above"


def test_the_same_graph_gets_the_same_numbers():
    model = network()
    one, two = (draw_graph(model(images()).sum(), model) for _ in range(2))
    assert one.mermaid == two.mermaid and one.text == two.text
    assert [node.number for node in one.nodes] == list(range(len(one.nodes)))


def test_numbers_rise_with_the_distance_from_the_loss():
    w = torch.ones(3, requires_grad=True)
    drawing = draw_graph((w.exp() + w).sum())
    assert [node.title for node in drawing.nodes] == ["SumBackward0", "AddBackward0", "ExpBackward0", "leaf"]
    assert drawing.nodes[1].next == [2, 3]


def test_an_input_used_twice_is_one_node_with_one_arrow():
    w = torch.ones(3, requires_grad=True)
    drawing = draw_graph((w * w).sum())
    assert drawing.total == 3
    assert "n1 -->|2 times| n2" in drawing.mermaid


def test_a_shared_parameter_is_one_leaf_with_both_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    drawing = draw_graph(model(torch.ones(2, 3)).sum(), model)
    assert [node.title for node in drawing.nodes if node.leaf] == ["0.weight = 2.weight"]


def test_a_freed_graph_says_that_it_is_freed():
    w = torch.ones(3, requires_grad=True)
    loss = w.exp().sum()
    loss.backward()
    drawing = draw_graph(loss)
    assert title(drawing, "ExpBackward0").notes[-1] == "saves result: freed"
    assert drawing.saved_bytes == 0


def test_a_saved_tensor_that_was_changed_in_place_is_named_before_backward_raises():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    loss = h.sum()
    h.add_(1)
    assert "changed in place" in title(draw_graph(loss), "ExpBackward0").notes[-1]


def test_a_function_of_ones_own_shows_what_it_saved():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0]

    node = title(draw_graph(Square.apply(torch.ones(3, requires_grad=True) + 1)), "SquareBackward")
    assert node.notes[-1] == "saves saved_tensors[0] (3,), 12 B"


@pytest.mark.parametrize(
    "tensor, words",
    [
        (torch.ones(2), "does not require grad"),
        (torch.ones(2, requires_grad=True), "a leaf that requires grad"),
        (torch.ones(2, requires_grad=True).exp().detach(), "does not require grad"),
    ],
)
def test_a_tensor_outside_any_graph_is_one_node_that_says_why(tensor, words):
    drawing = draw_graph(tensor)
    assert drawing.total == 1 and words in drawing.text and words in drawing.mermaid


def chain(n: int) -> torch.Tensor:
    total = torch.ones(1, requires_grad=True).sum()
    for _ in range(n):
        total = total + 1
    return total


def test_a_graph_beyond_the_limit_is_cut_with_a_word_how_much_is_missing():
    drawing = draw_graph(chain(5000), limit=10)
    assert len(drawing.nodes) == 10 and drawing.total == 5002
    assert "4992 more nodes are not drawn" in drawing.text
    assert "4992 more nodes are not drawn" in drawing.mermaid and "n9 -.-> more" in drawing.mermaid


def test_the_bytes_are_those_of_the_whole_graph_though_only_a_part_is_drawn():
    w = torch.ones(5, requires_grad=True)
    loss = w.exp().exp().exp().sum()
    assert draw_graph(loss, limit=2).saved_bytes == draw_graph(loss).saved_bytes == 60


def test_a_picture_never_grows_beyond_what_mermaid_draws():
    w = torch.ones(1, requires_grad=True)
    parts = [w * k for k in range(120)]
    crowded = [sum(parts[k:], start=w) for k in range(0, 120, 3)]
    drawing = draw_graph(sum(crowded), limit=MOST)
    assert len(drawing.mermaid) <= MAX_TEXT and drawing.mermaid.count("-->") <= MAX_EDGES
    model = nn.ModuleDict({f"{'very_long_name_' * 20}{k}": nn.Linear(2, 2) for k in range(100)})
    drawing = draw_graph(sum(layer(torch.ones(1, 2)).sum() for layer in model.values()), model, limit=MOST)
    assert len(drawing.mermaid) <= MAX_TEXT and "more nodes are not drawn" in drawing.text


@pytest.mark.parametrize("limit", [0, MOST + 1, 2.5, True, None])
def test_a_limit_that_makes_no_sense_is_refused_with_the_range(limit):
    with pytest.raises(ValueError, match=f"from 1 to {MOST}"):
        draw_graph(chain(1), limit=limit)
    with pytest.raises(ValueError, match=f"from 1 to {MOST}"):
        draw_fx(nn.ReLU(), limit=limit)


@pytest.mark.parametrize("call", [lambda: draw_graph(3.0), lambda: draw_graph(chain(1), "model"), lambda: draw_fx(len)])
def test_something_else_than_a_tensor_or_a_module_is_refused_by_its_type(call):
    with pytest.raises(TypeError, match=r"float|str|builtin_function"):
        call()


def test_a_front_end_gets_the_picture_and_the_text():
    drawing = draw_graph(chain(1))
    assert drawing._repr_mimebundle_() == {"text/vnd.mermaid": drawing.mermaid, "text/plain": drawing.text}
    assert str(drawing) == repr(drawing) == drawing.text


def test_labels_hold_nothing_that_mermaid_would_read_as_its_own():
    module = nn.ModuleDict({'a"b]<c>;#': nn.Linear(2, 2)})
    drawing = draw_graph(module['a"b]<c>;#'](torch.ones(1, 2)).sum(), module)
    for label in re.findall(r'\["(.*?)"\]', drawing.mermaid):
        assert not re.search(r'["<>\[\]]', label.replace("<br/>", ""))
    assert 'a"b]<c>;#.weight' in drawing.text


def test_drawing_leaves_the_graph_fit_for_backward():
    w = torch.ones(3, requires_grad=True)
    loss = w.exp().sum()
    draw_graph(loss)
    loss.backward()
    assert w.grad is not None


# ------------------------------------------------------------------------------------------------ torch.fx
def test_an_fx_graph_shows_layers_with_parameters_and_with_inputs_also_shapes():
    drawing = draw_fx(network(), images())
    assert title(drawing, "0").notes == ["Conv2d, 112 parameters", "result (2, 4, 3, 4)"]
    assert drawing.nodes[0].next == [1] and drawing.nodes[-1].title == "output"
    assert title(draw_fx(network()), "0").notes == ["Conv2d, 112 parameters"]


def test_looking_at_shapes_changes_neither_statistics_nor_random_numbers():
    model = network()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    draw_fx(nn.Sequential(model, nn.Dropout()), images())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_whose_result_nobody_uses_is_marked():
    class Wasteful(nn.Module):
        def forward(self, x):
            x.exp()
            return x + 1

    assert "its result is never used" in title(draw_fx(Wasteful()), "exp").notes
    assert "its result is never used" not in title(draw_fx(Wasteful()), "add").notes


def test_a_module_that_cannot_be_traced_is_refused_with_the_reason():
    class Branch(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"cannot trace Branch.*branches and loops"):
        draw_fx(Branch())


def test_a_long_fx_graph_is_cut_with_a_word():
    drawing = draw_fx(nn.Sequential(*[nn.Tanh() for _ in range(30)]), limit=5)
    assert len(drawing.nodes) == 5 and "27 more nodes are not drawn" in drawing.text
