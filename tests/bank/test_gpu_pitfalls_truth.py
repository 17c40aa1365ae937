"""Section 3: what is handed out is broken and counts as not started; the planned bytes are those of a real step."""

from __future__ import annotations

import re
import types
from typing import Any

import pytest
import torch
from torch import nn

from course_utils import gpu_snippets
from course_utils.devices import available_device
from course_utils.observe import find_exercise
from course_utils.observe.compare import compare
from course_utils.observe.registry import public_seed
from course_utils.observe.run import observe
from course_utils.simgpu import simulated_gpu
from grading.references import Reference, load_references
from grading.source import sections

SNIPPETS = [
    *(f"mend_{i}" for i in range(1, 8)),
    "validation_losses",
    "FeatureCache",
    "LossHistory",
]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return load_references("gpu_pitfalls")


@pytest.fixture(scope="module")
def handed_out() -> dict[str, Any]:
    """The names that the students' notebook defines before anything is mended."""
    section = sections("gpu_pitfalls")[0]
    namespace: dict[str, Any] = {}
    for cell in section.setup_cells():
        exec(cell.source, namespace)
    for name, cell in section.answer_cells().items():
        if name in SNIPPETS:
            exec(
                re.sub(r"### BEGIN SOLUTION.*### END SOLUTION", "# YOUR CODE HERE", cell.source, flags=re.S), namespace
            )
    return namespace


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_that_nobody_has_touched_counts_as_tried(name: str, handed_out: dict[str, Any]) -> None:
    seen = observe(find_exercise(name), handed_out[name], public_seed(name), available_device())
    assert seen.ended is not None and seen.ended.kind == "not started", (
        "the cell and course_utils/gpu_snippets.py differ"
    )
    assert seen.facts == ()


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_broken_snippet_is_not_broken(name: str, reference: Reference) -> None:
    original = getattr(gpu_snippets, name)
    if isinstance(original, type):
        broken = type("as_handed_out", (original,), {})
    else:
        broken = types.FunctionType(original.__code__, vars(gpu_snippets), "as_handed_out")
    seen = observe(find_exercise(name), broken, 3, available_device())
    verdict = compare(reference.behaviour(name, 3, available_device()), seen.values(), seen.ended, 1.0)
    assert verdict.points < 1.0


def test_a_mended_answer_counts_as_untouched(reference: Reference) -> None:
    assert [name for name in SNIPPETS if gpu_snippets.is_untouched(reference.answers[name])] == []


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_planned_bytes_are_not_those_of_a_real_step(kind: type[torch.optim.Optimizer], reference: Reference) -> None:
    plan = reference.answers["training_bytes"]
    with simulated_gpu() as device:
        model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 32)).to(device)  # all sizes are multiples of 512 bytes
        model[1].bias = None
        planned = plan(model, kind)
        assert torch.accelerator.memory_allocated() == planned["parameters"]
        x = torch.ones(2, 64, device=device)
        in_use = torch.accelerator.memory_allocated()
        model(x).sum().backward()
        assert torch.accelerator.memory_allocated() - in_use == planned["gradients"]
        optimizer = kind(model.parameters())
        optimizer.step()
        assert torch.accelerator.memory_allocated() - in_use == planned["gradients"] + planned["state"]
