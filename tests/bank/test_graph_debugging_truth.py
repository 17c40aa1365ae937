"""The answers that section 2 takes for true are what the locked torch does."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from course_utils import bytes_saved_for_backward
from course_utils.exercises import graph_debugging as section
from course_utils.observe import attempt
from course_utils.observe.case import Case
from course_utils.observe.registry import find_exercise
from course_utils.observe.run import observe
from grading.references import load_references


@pytest.fixture(scope="module")
def reference():
    return load_references("graph_debugging").answers


@pytest.mark.parametrize(
    "table, rows",
    [
        ("predict_cut", section._CUT_ROWS),
        ("predict_saved", section._SAVED_ROWS),
        ("predict_inplace", section._INPLACE_ROWS),
    ],
)
def test_a_table_has_the_rows_that_are_checked_and_is_not_started_when_blank(table, rows, reference):
    assert list(reference[table]) == list(rows)
    seen = observe(find_exercise(table), dict.fromkeys(rows), 1, torch.device("cpu"))
    assert seen.ended is not None and seen.ended.kind == "not started" and not seen.facts


@pytest.mark.parametrize("way", section._CUT_ROWS)
def test_the_table_of_cuts_says_what_the_ways_do(way, reference):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    names = {"torch": torch, "x": x, "h": x.exp()}
    wanted = x.detach().exp()
    exec(way, names)
    y, h = names["y"], names["h"]
    shares = np.may_share_memory(y.detach().numpy() if isinstance(y, torch.Tensor) else y, h.detach().numpy())
    in_graph = isinstance(y, torch.Tensor) and y.requires_grad
    if in_graph:  # a loss made from y sends a gradient to x
        (gradient,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert gradient.any()

    def write_and_go_back() -> None:
        y[:] = 0
        h.sum().backward()

    outcome = attempt(write_and_go_back)
    end = "raises" if outcome.raised else "right" if torch.equal(x.grad, wanted) else "wrong"
    assert reference["predict_cut"][way] == ("shares" if shares else "own", "in graph" if in_graph else "cut", end)


class _Box:
    """Holds the storage of one saved tensor for as long as the graph does."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = tensor.untyped_storage()


def _network(row: str) -> str:
    """The three lines that a row of the table stands for."""
    step, _, rest = row.partition(", ")
    lines = ["h = x @ w1", step, "out = h @ w2"]
    if rest.startswith("then"):
        lines.append(rest.removeprefix("then "))
    elif rest == "no_grad around all":
        lines = ["with torch.no_grad(): " + "; ".join(lines)]
    elif rest == "no_grad around out":
        lines[2] = "with torch.no_grad(): " + lines[2]
    return "\n".join(lines)


@pytest.mark.parametrize("row", section._SAVED_ROWS)
def test_the_table_of_saved_bytes_says_what_the_living_graphs_keep(row, reference):
    w1, w2 = torch.rand(3, 4, requires_grad=True), torch.rand(4, 2, requires_grad=True)
    names = {"torch": torch, "x": torch.rand(8, 3), "w1": w1, "w2": w2}
    kept: weakref.WeakSet[_Box] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Box:
        box = _Box(tensor)
        kept.add(box)
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box):
        exec(_network(row), names)
    weights = {w.untyped_storage().data_ptr() for w in (w1, w2)}
    storages = {box.storage.data_ptr(): box.storage.nbytes() for box in kept}
    assert reference["predict_saved"][row] == sum(n for place, n in storages.items() if place not in weights)


def _numeric_gradient(code: str) -> list[float]:
    """Central differences of x.sum() in float64, without autograd."""
    gradient = []
    for i in range(3):
        ends = []
        for step in (1e-6, -1e-6):
            w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
            w[i] += step
            names = {"torch": torch, "w": w}
            exec(code, names)
            ends.append(names["x"].sum().item())
        gradient.append((ends[0] - ends[1]) / 2e-6)
    return gradient


@pytest.mark.parametrize("code", section._INPLACE_ROWS)
def test_the_table_of_in_place_steps_says_what_the_formulas_do(code, reference):
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    names = {"torch": torch, "w": w}
    if attempt(exec, code, names).raised:
        word = "raises at once"
    elif attempt(lambda: names["x"].sum().backward()).raised:
        word = "raises at backward"
    else:
        word = "works" if np.allclose(w.grad.numpy(), _numeric_gradient(code), rtol=1e-4, atol=1e-4) else "wrong"
    assert reference["predict_inplace"][code] == word


def test_the_step_is_that_of_torch_sgd(reference):
    torch.manual_seed(3)
    mine = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in mine]
    optimizer, buffers = torch.optim.SGD(theirs, lr=0.3, momentum=0.8), [None, None]
    for _ in range(4):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        reference["sgd_momentum_step"](mine, buffers, 0.3, 0.8)
        optimizer.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-6)


def test_hard_swish_is_torchs_own_but_for_the_kinks(reference):
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    x = x[((x - 3).abs() > 1e-9) & ((x + 3).abs() > 1e-9)]
    gradients = []
    for function in (reference["HardSwish"].apply, torch.nn.functional.hardswish):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.square().sum().backward()
        gradients.append((out.detach(), leaf.grad))
    for mine, torchs in zip(*gradients, strict=True):
        assert torch.allclose(mine, torchs, atol=1e-12)


def test_accumulated_gradients_are_those_of_the_full_batch(reference):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2).double()
    x, y = torch.randn(11, 4, dtype=torch.float64), torch.randn(11, 2, dtype=torch.float64)
    whole = torch.nn.functional.mse_loss(model(x), y)
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    parts = list(zip(x.split([5, 4, 2]), y.split([5, 4, 2]), strict=True))
    average = reference["accumulate"](model, parts, torch.nn.functional.mse_loss)
    assert average == pytest.approx(whole.item())
    for p, g in zip(model.parameters(), wanted, strict=True):
        assert torch.allclose(p.grad, g, atol=1e-12)


def _faults(seed: int):
    return list(section._broken_models(Case(seed, seed % 2, torch.device("cpu"))))


WORDS = {
    "healthy": {"healthy"},
    "unused layer": {"healthy", "unreached"},
    "frozen layer": {"healthy", "frozen"},
    "dead ReLU": {"zero gradient", "healthy"},
    "zero-initialised head": {"zero gradient", "healthy"},
    "NaN in the input": {"bad gradient", "healthy"},
    "exploding initialisation": {"large gradient"},
    "vanishing signal": {"tiny gradient", "healthy"},
    "detached branch": {"unreached", "healthy"},
    "no_grad block": {"unreached", "healthy"},
    "in-place overwrite": {"zero gradient", "healthy"},
    "in-place step that spoils": {"backward fails"},
    "constant loss": {"unreached"},
    "loss made a leaf": {"unreached"},
    "rounded features": {"zero gradient", "healthy"},
    "shared parameter": {"healthy"},
    "buffers only": set(),
    "bad parameter values": {"bad value", "frozen", "unreached", "healthy"},
    "root of zero": {"bad gradient", "healthy"},
    "norms near the limits": {"large gradient", "healthy", "tiny gradient"},
    "backward was called before": {"backward fails"},
}


@pytest.mark.parametrize("seed", range(6))
def test_every_broken_model_has_the_fault_that_its_name_says(seed, reference):
    seen = {fault: reference["diagnose"](model, loss) for fault, model, loss, _, _ in _faults(seed)}
    assert {fault: set(verdicts.values()) for fault, verdicts in seen.items()} == WORDS


@pytest.mark.parametrize("seed", range(6))
def test_no_gradient_of_a_broken_model_is_so_near_a_limit_that_rounding_decides(seed):
    for fault, model, loss, _, _ in _faults(seed):
        trainable = [p for p in model.parameters() if p.requires_grad]
        if not trainable or not loss.requires_grad:
            continue
        found = attempt(torch.autograd.grad, loss, trainable, allow_unused=True)
        for gradient in [] if found.raised else found.value:
            norm = 0.0 if gradient is None else gradient.norm().item()
            room = 1.15 if fault == "norms near the limits" else 10
            near = any(limit / room < norm < limit * room for limit in (1e3, 1e-8))
            assert not near, f"{fault}: a norm of {norm}"


def test_every_fault_of_the_list_is_proved_by_a_fact(reference):
    behaviour = observe(find_exercise("diagnose"), reference["diagnose"], 4, torch.device("cpu"))
    assert set(WORDS) <= {fact.name for fact in behaviour.facts}


@pytest.mark.parametrize("row", section._SAVED_ROWS)
def test_what_the_text_offers_for_checking_saved_bytes_gives_the_tables_numbers(row, reference):
    names = {
        "torch": torch,
        "x": torch.rand(8, 3),
        "w1": torch.nn.Parameter(torch.rand(3, 4)),
        "w2": torch.nn.Parameter(torch.rand(4, 2)),
    }

    def function():
        exec(_network(row), names)
        return names.pop("h"), names.pop("out")

    assert bytes_saved_for_backward(function).kept == reference["predict_saved"][row]
