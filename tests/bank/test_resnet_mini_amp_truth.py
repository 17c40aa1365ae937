"""The answers that section 5 takes for true are what the locked torch does."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from grading.references import STAND_INS, load_references


@pytest.fixture(scope="module")
def reference():
    return load_references("resnet_mini_amp").answers


def test_conv_output_size_is_the_size_of_the_layer_and_the_way_back_restores_it(reference):
    size_of, padding_of = reference["conv_output_size"], reference["transposed_output_padding"]
    for size, kernel, stride, padding, dilation in itertools.product((1, 5, 8), (1, 2, 3), (1, 2, 3), (0, 2), (1, 2)):
        layer = nn.Conv1d(1, 1, kernel, stride, padding, dilation)
        try:
            small = layer(torch.zeros(1, 1, size))
        except RuntimeError:
            with pytest.raises(ValueError):
                size_of(size, kernel, stride, padding, dilation)
            continue
        assert size_of(size, kernel, stride, padding, dilation) == small.shape[-1]
        extra = padding_of(size, kernel, stride, padding, dilation)
        if extra < max(stride, dilation):  # what the layer takes
            back = nn.ConvTranspose1d(1, 1, kernel, stride, padding, extra, dilation=dilation)(small)
            assert back.shape[-1] == size, (size, kernel, stride, padding, dilation)


def test_the_model_has_the_numbers_and_shapes_of_the_article(reference):
    model = reference["ResNet18Mini"]()
    assert sum(p.numel() for p in model.parameters()) == 684_362
    shapes = []
    for module in model.modules():
        if type(module).__name__ == "BasicBlock":
            module.register_forward_hook(lambda m, i, out: shapes.append(tuple(out.shape[1:])))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == [(64, 16, 16), (64, 16, 16), (128, 8, 8), (128, 8, 8)]


def test_the_two_functions_in_the_text_are_what_the_answers_must_equal(reference):
    namespace = reference["without_graph_breaks"].__globals__
    source = load_references("resnet_mini_amp").section.path.read_text()
    for name in ("with_breaks", "wasteful_pipeline"):
        body = source[source.index(f"def {name}(") :]
        exec(body[: body.index("\n\n")] if "\n# %%" not in body else body[: body.index("\n# %%")], namespace)
    for x in (torch.randn(3, 4) * 0.1, torch.randn(3, 4) * 9, torch.zeros(2, 3)):
        assert torch.allclose(namespace["with_breaks"](x, 1.5), reference["without_graph_breaks"](x, 1.5))
    images = torch.randint(0, 256, (3, 20, 24, 3), dtype=torch.uint8)
    arguments = (images, 3, 5, 12, torch.rand(3), torch.rand(3) + 0.2)
    assert torch.allclose(namespace["wasteful_pipeline"](*arguments), reference["lean_pipeline"](*arguments), atol=1e-5)


def test_every_stand_in_stands_in_for_a_reference(reference):
    assert STAND_INS.keys() <= reference.keys()
