"""Section 2, graph_debugging: see the graph, find the fault."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import meter
from course_utils.observe import NotStarted, attempt, describe, exercise
from course_utils.observe.guard import take_saved_tensors_hooks

SECTION = "graph_debugging"
DOUBLE = torch.float64  # gradients are compared closely, so rounding must be far below every tolerance


# ------------------------------------------------------------------------------------------------ helpers
def _filled(case: Any, model: nn.Module) -> nn.Module:
    """The model in double precision on the case's device, with parameters from the case's own generator.

    Not from torch's global one: an answer that draws random numbers would change what later models look like.
    """
    model = model.to(case.device, DOUBLE)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter.shape[-1] if parameter.dim() < 3 else parameter[0].numel()
            parameter.copy_(case.tensor(*parameter.shape, dtype=DOUBLE) / max(fan_in, 1) ** 0.5)
    return model


def _data(case: Any, *shape: int, requires_grad: bool = False) -> torch.Tensor:
    return case.tensor(*shape, dtype=DOUBLE, requires_grad=requires_grad)


def _gradients(model: nn.Module) -> dict[str, Any]:
    return {name: p.grad for name, p in model.named_parameters()}


def _hooks(model: nn.Module) -> int:
    """How many hooks hang on the modules of a model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def _modes(model: nn.Module) -> dict[str, str]:
    """Mode of each module by its name; the model itself is ``the model``."""
    return {name or "the model": "train" if m.training else "eval" for name, m in model.named_modules()}


def _put_back(model: nn.Module, modes: dict[str, str]) -> None:
    for name, module in model.named_modules():
        module.training = modes[name or "the model"] == "train"


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@contextmanager
def _collector_off() -> Iterator[None]:
    """Without the garbage collector only reference counts free memory: a reference cycle stays, and shows."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _witness(tensor: torch.Tensor) -> weakref.ref:
    """Knows whether a tensor's memory is still there, under whatever name: a detached alias keeps it as well."""
    return weakref.ref(tensor.untyped_storage())


def _grad_mode_kept(see: Any, share: float = 0.1) -> None:
    """Write down whether gradients are still recorded, and switch recording on again for the rest of the observation."""
    kept = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    see(
        "grad mode left as it was",
        kept,
        share=share,
        why="Gradients are switched off for everything that runs after your call.",
        fix="Use `with torch.no_grad():`, which switches back by itself.",
    )


def _no_hook_left(see: Any, before: int, model: nn.Module, share: float | None = None) -> None:
    see(
        "hooks left on the model",
        max(0, _hooks(model) - before),
        share=share,
        why="A hook that is left runs again at every later call of the model.",
        fix="Keep the handle of each hook; remove your own, and only those.",
    )


def _word(entry: Any, words: dict[str, tuple[str, ...]], asked: str) -> str:
    """A word of a table in its standard spelling; ``words`` maps it to the beginnings that are taken for it."""
    if not isinstance(entry, str):
        return f"an entry that is none of: {asked}"
    text = " ".join(entry.lower().replace("-", " ").replace("_", " ").split())
    for word, beginnings in words.items():
        if text.startswith(beginnings):
            return word
    return f"an entry that is none of: {asked}"


def _check_table(answer: Any, rows: Any, see: Any) -> dict[str, Any]:
    """The form of a table exercise; an untouched table counts as not started."""
    if isinstance(answer, dict) and all(answer.get(row) is None for row in rows):
        raise NotStarted
    see.form(
        answer if not isinstance(answer, dict) else "a dictionary",
        name="type of the table",
        why="The predictions are read from a dictionary: code -> prediction.",
        fix="Keep the table as it was handed out, and replace each None.",
    )
    table = answer if isinstance(answer, dict) else {}
    see(
        "rows with a prediction",
        f"{sum(table.get(row) is not None for row in rows)} of {len(rows)}",
        share=0.0,
        why="What you did not guess before, you will not be surprised by.",
        fix="Write down a guess for every row, and check then.",
    )
    return table


# ------------------------------------------------------------------------------------------------ predictions
_OWN_NEW = (
    "New memory takes a write alone; being in the graph is another question.",
    "Compare data_ptr() of y and h, and look at y.grad_fn.",
)
_CUT_ROWS = {
    "y = h[:]": (
        "A view is h seen again: same memory, same graph, same version counter.",
        "Run it: y.grad_fn, then y[:] = 0, h._version, then the backward pass.",
    ),
    "y = h.detach()": (
        "detach makes an alias: the same memory, and a common version counter.",
        "Run it: compare data_ptr(), write to y, look at h and at h._version.",
    ),
    "y = h.clone()": _OWN_NEW,
    "y = h.detach().clone()": _OWN_NEW,
    "y = h.data": (
        ".data gives the memory without the version counter: nobody is told.",
        "Run it: write to y, look at h._version, and compare x.grad with exp(x).",
    ),
    "y = h.detach().numpy()": (
        "NumPy knows nothing of version counters: a write stays unnoticed.",
        "Run it: write to y, look at h._version, and compare x.grad with exp(x).",
    ),
    "with torch.no_grad(): y = h": (
        "no_grad is about operations, and giving h a second name is none.",
        "Ask after the block: y is h? y.requires_grad?",
    ),
    "with torch.no_grad(): y = h * 1": _OWN_NEW,
    "with torch.inference_mode(): y = h * 1": (
        "What inference mode makes stays marked: outside it may not be written to.",
        "Run it, and try y[:] = 0 after the block.",
    ),
}
_CUT_WORDS = (
    {"shares": ("shar",), "own": ("own", "cop")},
    {"in graph": ("in graph", "in the graph", "ingraph"), "cut": ("cut", "not in", "out")},
    {"right": ("right",), "wrong": ("wrong", "silent"), "raises": ("rais", "error")},
)


def _cut_prediction(entry: Any) -> str:
    if entry is None:
        return "no prediction"
    if isinstance(entry, str):
        entry = entry.split(",")
    asked = '("shares", "cut", "raises")'
    if not isinstance(entry, (tuple, list)) or len(entry) != 3:
        return f"an entry in another form than {asked}"
    return ", ".join(_word(part, words, " / ".join(words)) for part, words in zip(entry, _CUT_WORDS, strict=True))


@exercise(
    section=SECTION,
    points=3,
    minutes=10,
    difficulty=1,
    cases=1,
    hints=(
        "Three separate questions: whose memory is it, is there a grad_fn, and who notices when h changes?",
        "A write to shared memory raises at backward only where a version counter counts it: look at h._version.",
        "detach and a view share the counter of h. .data has one of its own, NumPy has none. New memory harms nobody.",
    ),
)
def predict_cut(answer, case, see):
    """Predict of nine ways to leave the graph: is memory shared, is the result in the graph, what does a write do?"""
    table = _check_table(answer, _CUT_ROWS, see)
    for row, (why, fix) in _CUT_ROWS.items():
        see(row, _cut_prediction(table.get(row)), share=1 / len(_CUT_ROWS), secret=True, why=why, fix=fix)


_LINEAR_SAVES = (
    "Each step saves what its own gradient formula needs, and nothing else.",
    "Write down the derivative of each step: which of its tensors occur in it?",
)
_SAVED_ROWS = {
    "h = h.relu()": _LINEAR_SAVES,
    "h = h.relu_()": (
        "relu saves its result, and @ its input: one and the same h either way.",
        "Count what is saved, not what is computed on the way.",
    ),
    "h = h.relu().clone()": (
        "The clone is a tensor of its own, and relu still needs the original.",
        "Ask of each step which tensor it saved; two storages count twice.",
    ),
    "h = h.relu().detach()": (
        "No one holds the first layer's graph any more, so it was freed.",
        "Follow out.grad_fn as far as it goes: what do these nodes need?",
    ),
    "h = h.square()": (
        "The derivative of a square needs its input, and h is another tensor then.",
        "Write down the derivative of each step: which of its tensors occur in it?",
    ),
    "h = h.relu(), then out = out.exp()": _LINEAR_SAVES,
    "h = h.relu(), no_grad around all": (
        "All steps are inside the block.",
        "Without a recorded step there is no node that could save something.",
    ),
    "h = h.relu(), no_grad around out": (
        "no_grad records nothing new. It frees nothing that was recorded before.",
        "h is alive, and h.grad_fn with it: what does that graph hold?",
    ),
}


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    cases=1,
    hints=(
        "A float32 has 4 bytes: x has 96 bytes, h 128, out 64. Which of them does each step save?",
        "a @ w saves a (for the gradient of w). relu and exp save their results, square saves its input.",
        "A storage counts once, however many steps save it. What no living tensor's graph leads to has been freed.",
    ),
)
def predict_saved(answer, case, see):
    """Predict of eight versions of a two-layer network how many bytes autograd keeps for the backward pass."""
    table = _check_table(answer, _SAVED_ROWS, see)
    for row, (why, fix) in _SAVED_ROWS.items():
        see(row, _whole(table.get(row)), share=1 / len(_SAVED_ROWS), secret=True, why=why, fix=fix)


def _whole(entry: Any) -> Any:
    """A number of bytes as an int, however it was computed (``7 * 64 / 2``)."""
    numbers = (int, float, np.integer, np.floating)
    return int(entry) if isinstance(entry, numbers) and not isinstance(entry, bool) and entry % 1 == 0 else entry


_NEEDS_RESULT = (
    "Its gradient is computed from its result, and that has changed.",
    "Which numbers does the derivative use: the input, the result, or none?",
)
_NEEDS_NOTHING = (
    "No saved value has changed: an in-place step harms nothing else.",
    "Which numbers does the derivative use: the input, the result, or none?",
)
_INPLACE_ROWS = {
    "x = w * 2; x += 1": _NEEDS_NOTHING,
    "x = w.exp(); x += 1": _NEEDS_RESULT,
    "x = w + 1; x.exp_()": (
        "exp_ saves what it wrote; that + 1 lost its result does not matter.",
        "Look at both steps: which of them needs a number that is gone?",
    ),
    "w += 1; x = w * 2": (
        "w is a leaf that requires grad: where would its gradient belong then?",
        "Run the first step alone.",
    ),
    "x = w.clone(); x[0] = 5.0": (
        "The clone is no leaf, and clone needs no number for its gradient.",
        "Run it; then look at x.grad_fn.",
    ),
    "x = w.exp(); x.data += 1": (
        "exp needs its result, and .data changed it behind the counter's back.",
        "Run it, and compare w.grad with exp(w).",
    ),
    "x = w.relu(); x += 1": (
        "relu's gradient asks its result where it is above 0.",
        "Which numbers does the derivative use: the input, the result, or none?",
    ),
    "x = (w * 2).relu_()": _NEEDS_NOTHING,
    "x = w.sigmoid().relu_()": _NEEDS_RESULT,
    "x = w * 2; x.div_(x.norm())": (
        "norm and the division both need the x from before the division.",
        "Write down the derivatives of both steps: which tensors occur?",
    ),
    "h = w * 2; x = h ** 2; h += 1": (
        "The derivative of a square needs its input.",
        "Write down the derivative of h ** 2 and look for h in it.",
    ),
    "h = w * 2; x = h.relu(); h += 1": (
        "relu saves its result: its input may change afterwards.",
        "Which numbers does the derivative use: the input, the result, or none?",
    ),
}
_INPLACE_WORDS = {
    "raises at once": ("raises at once", "at once", "raises at the step", "raises immediately"),
    "raises at backward": ("raises at backward", "at backward", "raises in backward", "backward"),
    "wrong": ("wrong", "silent"),
    "works": ("work", "fine", "right", "ok"),
}


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    cases=1,
    hints=(
        "In-place steps are not forbidden. Ask one thing: has a number changed that a gradient formula needs?",
        "exp, sigmoid, relu need their result; ** and norm their input; +, * by a constant and clone need nothing.",
        "A leaf raises at once; a changed saved tensor at backward; .data is never noticed.",
    ),
)
def predict_inplace(answer, case, see):
    """Predict which of twelve formulas with an in-place step work, raise at once or at backward, or go wrong."""
    table = _check_table(answer, _INPLACE_ROWS, see)
    for row, (why, fix) in _INPLACE_ROWS.items():
        entry = table.get(row)
        value = "no prediction" if entry is None else _word(entry, _INPLACE_WORDS, " / ".join(_INPLACE_WORDS))
        see(row, value, share=1 / len(_INPLACE_ROWS), secret=True, why=why, fix=fix)


# ------------------------------------------------------------------------------------------------ an optimizer's step
@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=2,
    hints=(
        "A step must change the numbers of the tensors that the model holds, not make new tensors.",
        "Under torch.no_grad() a leaf may be changed in place: p -= ... or p.sub_(...). p = p - ... makes a new tensor.",
        "buffers[i] starts as a copy of the gradient; later: buffers[i].mul_(momentum).add_(p.grad), p.sub_(lr * buffers[i]).",
    ),
)
def sgd_momentum_step(answer, case, see):
    """One step of SGD with momentum changes the parameters in place, and they stay leaves outside any graph."""
    a, b, c = case.sizes(3)
    lr, momentum = case.integer(1, 9) / 20, case.integer(5, 9) / 10
    held = [_data(case, a, b).t().requires_grad_(), _data(case, c, requires_grad=True)]
    if case.index:
        held.append(_data(case, requires_grad=True))  # a single number
    grads = [[_data(case, *p.shape) for p in held] for _ in range(3)]
    params, buffers = list(held), [None] * len(held)
    places = [p.data_ptr() for p in held]
    start, after_one = [p.detach().clone() for p in held], None
    for step, grad in enumerate(grads):
        for parameter, g in zip(held, grad, strict=True):
            if parameter.grad is None:
                parameter.grad = g.clone()
            else:  # as zero_grad(set_to_none=False) and backward do: the same tensor, with other numbers
                parameter.grad.copy_(g)
        answer(params, buffers, lr, momentum)
        if step == 0:
            after_one = [p.detach().clone() for p in held]
    mode_kept = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    see(
        "params holds the same tensors",
        [p is q for p, q in zip(params, held, strict=False)],
        why="The list holds new tensors; the model still has the old ones.",
        fix="Write into the tensor: p -= ... under no_grad, not params[i] = ...",
    )
    see(
        "still leaves that require grad",
        [[p.is_leaf, p.requires_grad] for p in held],
        why="A parameter that is no leaf, or needs no grad, is never trained again.",
        fix="Change the numbers under torch.no_grad(); leave requires_grad alone.",
    )
    see(
        "memory of the parameters",
        [p.data_ptr() == place for p, place in zip(held, places, strict=True)],
        share=0.15,
        why="The parameter got other memory: a flat buffer or a view of it is lost.",
        fix="Write into the memory it has: p -= ..., p.add_(...), p.copy_(...).",
    )
    see(
        "parameters changed by a step",
        [not torch.equal(p, before) for p, before in zip(after_one, start, strict=True)],
        why="After the call the parameters hold what they held before.",
        fix="p -= ... changes the tensor, p = p - ... only your local name for it.",
    )
    see(
        "values after one step",
        torch.cat([p.flatten() for p in after_one]),
        atol=1e-10,
        why="The parameters do not hold p - lr * buffer.",
        fix="By hand: in the first step the buffer is the gradient, as it is.",
    )
    see(
        "values after three steps",
        [p.detach() for p in held],
        atol=1e-10,
        why="The first step is right, the following ones are not: see the buffers.",
        fix="buffer = momentum * buffer + grad; start with a copy of the gradient.",
    )
    see(
        "buffers after three steps",
        torch.cat([b.detach().flatten() for b in buffers])
        if all(isinstance(b, torch.Tensor) for b in buffers)
        else [describe(b) for b in buffers],
        atol=1e-10,
        why="buffers[i] does not hold momentum * buffer + gradient.",
        fix="Store every buffer in buffers[i]; multiply by lr when you subtract.",
        clues=["factor"],
    )
    see(
        "buffers carry no graph",
        [isinstance(b, torch.Tensor) and (b.requires_grad or b.grad_fn is not None) for b in buffers],
        share=0.2,
        why="Each step would hang on the one before: memory grows step by step.",
        fix="Compute the buffers under torch.no_grad(), too.",
    )
    see(
        "gradients left as they were",
        [torch.equal(p.grad, g) if p.grad is not None else False for p, g in zip(held, grads[-1], strict=True)],
        share=0.2,
        why="The gradient was changed: logging and clipping after the step see it.",
        fix="Add to the buffer, not to p.grad; clearing is zero_grad's business.",
    )

    unused, used = _data(case, a, requires_grad=True), _data(case, b, requires_grad=True)
    used.grad, before = _data(case, b), unused.detach().clone()
    outcome = attempt(answer, [unused, used], [None, None], lr, momentum)
    torch.set_grad_enabled(True)
    see(
        "a parameter without gradient",
        outcome if outcome.raised else "left as it was" if torch.equal(unused, before) else "changed",
        share=0.15,
        why="grad is None where a parameter took no part: it stays as it is.",
        fix="Skip it, and go on with the next one.",
    )
    see(
        "the parameter behind it",
        used.detach(),
        share=0.05,
        atol=1e-10,
        why="A parameter without gradient came first, and this one was forgotten.",
        fix="continue goes on with the next parameter; return and break do not.",
    )

    weight = _data(case, c, requires_grad=True)
    weight.grad, loss = _data(case, c), weight.square().sum()
    answer([weight], [None], lr, momentum)
    torch.set_grad_enabled(True)
    see(
        "an older graph notices the step",
        attempt(loss.backward),
        any_error=True,
        share=0.15,
        why="An older loss still ran backward, with numbers that had changed.",
        fix="Change p itself under no_grad; p.data hides the change from autograd.",
    )
    torch.set_grad_enabled(mode_kept)
    _grad_mode_kept(see)


# ------------------------------------------------------------------------------------------------ walking the graph
def _counts(value: Any) -> Any:
    """A Counter, or any other dictionary, as a plain one; ``torch::autograd::AccumulateGrad`` without its namespace."""
    if not isinstance(value, dict):
        return value
    return {str(name).rpartition("::")[2]: value[name] for name in sorted(value, key=str)}


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "loss.grad_fn is the last operator. node.next_functions are pairs: (node or None, number of its output).",
        "Two paths may lead to one node: keep a set of the nodes that you have met, and count each once.",
        "A list as a stack instead of recursion: take a node, count node.name(), put its unknown neighbours on the stack.",
    ),
)
def backward_operators(answer, case, see):
    """Count the nodes of a loss's graph by name, walking next_functions."""
    n, k = case.sizes(2)
    x, w = _data(case, n, k), _data(case, k, requires_grad=True)
    offset = _data(case, k)
    h = (x * w).tanh()
    loss = (h * h + h.detach() + offset).sum() if case.index else (h * w - offset).abs().sum()
    counts = answer(loss)
    see.form(
        _form_of_counts(counts),
        why="The answer is a dictionary: name of the operator -> number of nodes.",
        fix="Count node.name() for every node, and return the dictionary.",
    )
    see(
        "a small graph",
        _counts(counts),
        why="A node is missing, or counted once for every path that leads to it.",
        fix="Draw the graph on paper, and cross out each node that you have met.",
    )
    doubled = w.sum()
    for _ in range(9):
        doubled = doubled + doubled
    see(
        "nodes with many paths to them",
        _counts(answer(doubled)),
        why="There are 512 paths through this graph of a dozen nodes.",
        fix="Keep the nodes that you have met in a set, and pass each one once.",
    )
    see(
        "a loss outside any graph",
        [_outcome_counts(answer, value) for value in (loss.detach(), w)],
        share=0.2,
        why="A detached loss, or a leaf, has no grad_fn: there is nothing to count.",
        fix="Return an empty dictionary where loss.grad_fn is None.",
    )
    deep = w.sum()
    for _ in range(4000):
        deep = deep + 1
    see(
        "a graph 4000 nodes deep",
        _outcome_counts(answer, deep),
        share=0.2,
        why="Recursion ends at about a thousand levels, and networks are deeper.",
        fix="Use a loop with a list of the nodes that are still to be visited.",
    )
    outcome = attempt(loss.backward)
    see(
        "backward still works",
        outcome.error or w.grad,
        atol=1e-10,
        why="The graph was used up, or gradients were left in the leaves.",
        fix="Only look at the graph: no backward, no autograd.grad.",
    )


def _form_of_counts(value: Any) -> str:
    if not isinstance(value, dict):
        return describe(value)
    kinds = sorted({f"{type(k).__name__} -> {type(v).__name__}" for k, v in value.items()})
    return f"dictionary {', '.join(kinds)}"


def _outcome_counts(answer: Callable[..., Any], loss: torch.Tensor) -> Any:
    outcome = attempt(answer, loss)
    return outcome if outcome.raised else _counts(outcome.value)


_PLACES = ("stem", "body", "neck", "left", "right", "head", "gate", "skip", "base", "lift", "join")


def _renamed(case: Any, model: nn.Module, children: dict[str, nn.Module]) -> dict[str, str]:
    """Give a model its children, in this order, under names drawn by the case: role -> name."""
    names = [str(name) for name in case.rng.permutation(_PLACES)]
    place = dict(zip(children, names, strict=False))
    for role, child in children.items():
        setattr(model, place[role], child)
    return place


class _Branches(nn.Module):
    """A model in which parameters take part in every way, and do not. The names tell nothing."""

    def __init__(self, case: Any, n: int) -> None:
        super().__init__()
        roles = ("first", "second", "unused", "stale", "twin", "frozen", "detached", "silent", "dead")
        layers = {role: nn.Linear(n, n) for role in roles}
        tied = nn.Linear(n, n, bias=False)
        tied.weight = layers["first"].weight
        layers["frozen"].requires_grad_(False)
        self.place = _renamed(case, self, {**layers, "tied": tied})

    def part(self, role: str) -> nn.Module:
        return getattr(self, self.place[role])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.part("frozen")(self.part("first")(x).tanh())
        with torch.no_grad():
            quiet = self.part("silent")(h)
        out = self.part("second")(h) + self.part("detached")(x).detach() + quiet
        return out + (self.part("dead")(x) - 1e3).relu() + self.part("tied")(x)


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "A leaf's node in the graph is called AccumulateGrad. What attribute of it is the leaf?",
        "Walk the graph as in backward_operators, and collect node.variable where a node has it.",
        "Compare tensors with `is` (or by id): == compares numbers, and two biases can hold the same numbers.",
    ),
)
def reached_parameters(answer, case, see):
    """Name the parameters of a model that a loss leads to, without running a backward pass into them."""
    n, rows = case.sizes(2, 3, 7)
    model = _filled(case, _Branches(case, n))
    with torch.no_grad():
        for role in ("second", "twin"):
            model.part(role).bias.zero_()  # equal numbers in different parameters
    x = _data(case, rows, n)
    loss = model(x).square().sum()
    stale = model.part("stale").weight
    stale.grad = torch.ones_like(stale)  # left over from an earlier pass
    names = answer(loss, model)
    see.form(
        "names" if _are_names(names) else describe(names),
        why="The answer is a set of names, as model.named_parameters() has them.",
        fix="Collect the names, not the tensors.",
    )
    found = _reached(names, model)
    see(
        "an unused layer",
        _part(found, model, "unused"),
        why="It asks for gradients by requires_grad, but this loss does not use it.",
        fix="Ask the graph, not the parameter: walk from loss.grad_fn to the leaves.",
    )
    see(
        "an unused layer with a .grad",
        _part(found, model, "stale"),
        why="What lies in .grad may be old: it says nothing about this loss.",
        fix="Ask the graph: walk from loss.grad_fn to the leaves.",
    )
    see(
        "equal numbers elsewhere",
        _part(found, model, "twin"),
        why="Another layer's bias holds zeros, too: equal numbers, two parameters.",
        fix="Compare with `is`, or by id(): that asks whether it is the same object.",
    )
    see(
        "a layer whose gradients are zero",
        _part(found, model, "dead"),
        why="The graph leads there, and a gradient of zero is a gradient.",
        fix="Zero is not None: do not look at the numbers.",
    )
    see(
        "names",
        found,
        why="A parameter is reached when the graph has a node that collects for it.",
        fix="Compare your names with these: how does the loss get to each of them?",
    )
    parts = model(x)
    bias = model.part("second").bias
    see(
        "another loss of the same model",
        _reached(answer(bias.sum() + 0 * parts.detach().sum(), model), model),
        why="Only what this loss leads to counts, and not what the model could use.",
        fix="Start at loss.grad_fn; model is only asked for the names.",
    )
    see(
        "gradients left as they were",
        sorted(name for name, p in model.named_parameters() if p.grad is not None),
        share=0.3,
        why="A backward pass leaves gradients, and the next step adds to them.",
        fix="Only walk the graph: a walk stores nothing.",
    )
    see(
        "backward still works",
        attempt(loss.backward).error,
        share=0.3,
        why="The graph was freed: the caller can no longer run backward.",
        fix="Only look at the graph, or keep it with retain_graph=True.",
    )
    outcome = attempt(answer, loss.detach(), model)
    see(
        "a loss outside any graph",
        outcome if outcome.raised else _reached(outcome.value, model),
        share=0.2,
        why="Such a loss reaches nothing, and the question still has an answer.",
        fix="Return an empty set where loss.grad_fn is None.",
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, (set, frozenset, list, tuple)) and all(isinstance(v, str) for v in value)


def _reached(value: Any, model: nn.Module) -> Any:
    """For every parameter whether it was named, so that a difference shows by its name; and names of none."""
    if not _are_names(value):
        return describe(value)
    known = [name for name, _ in model.named_parameters()]
    return {name: "reached" if name in value else "not reached" for name in known} | {
        "names of no parameter": sorted(set(value) - set(known))
    }


def _part(found: Any, model: Any, role: str) -> Any:
    """What was said of the parameters of one part of the model."""
    if not isinstance(found, dict):
        return found
    return {name: word for name, word in found.items() if name.startswith(f"{model.place[role]}.")}


# ------------------------------------------------------------------------------------------------ saved bytes
def _asked_by_meter() -> bool:
    """Whether the running function was called by the course's own helper, which is what the learner is to write."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == meter.__file__:
            return True
        frame = frame.f_back
    return False


@exercise(
    section=SECTION,
    points=3,
    minutes=18,
    difficulty=3,
    hints=(
        "torch.autograd.graph.saved_tensors_hooks(pack, unpack) calls pack(tensor) for each tensor that is saved.",
        "pack has to return what unpack turns back into the tensor. Collect storages: tensor.untyped_storage().",
        "A parameter may be saved as a view of itself: look at tensor._base, too. Count each storage once, by data_ptr() "
        "of the storage, and keep it alive while you count.",
    ),
)
def saved_bytes(answer, case, see):
    """Count the bytes that autograd saves while a function runs: each storage once, parameters left out."""
    n, a, b, c = case.sizes(4, 4, 9)
    model = _filled(case, nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Linear(b, c)))
    x, first, second = _data(case, n, a), nn.Parameter(_data(case, a, b)), nn.Parameter(_data(case, b, c))
    runs: list[torch.Tensor] = []
    helped: list[bool] = []

    def forward() -> torch.Tensor:
        helped.append(_asked_by_meter())
        runs.append(((x @ first).tanh() @ second).square().sum())
        return runs[-1]

    count = answer(forward)
    see.form(count, why="A number of bytes is an int.", fix="Return the number itself, no tensor and no list.")
    see(
        "function was called",
        len(runs),
        why="The function is to be run once, and only once: it may be slow.",
        fix="Call function() once, inside the hooks.",
    )
    see(
        "counted by your own code",
        helped == [False],
        why="The course's helper did the counting; here you write what is inside it.",
        fix="Use torch.autograd.graph.saved_tensors_hooks.",
    )
    see(
        "a small network",
        count,
        why="Count the input, the hidden layer and the output that is squared.",
        fix="Print each saved tensor's shape, and whether it is a parameter.",
    )
    wide = _data(case, n, 3 * a, requires_grad=True)
    image, kernel = _data(case, 2, 3, n + 4, a + 4), nn.Parameter(_data(case, 4, 3, 3, 3))
    see(
        "a leaf that requires grad",
        answer(lambda: wide.square()),
        why="Only an nn.Parameter is left out, and this leaf is none: it counts.",
        fix="Ask isinstance(tensor, nn.Parameter), not requires_grad or is_leaf.",
    )
    see(
        "one storage saved several times",
        {
            "h * h.tanh()": answer(lambda: wide * wide.tanh()),
            "two halves": answer(lambda: wide[:, :a].exp() + wide[:, a:].square().sum()),
            "expanded": answer(lambda: (x[:1].expand(40, a) * wide[:, :a].sum()).exp()),
        },
        why="Two views of one storage, or one tensor saved twice, hold it only once.",
        fix="Collect storages, not tensors: untyped_storage(), its bytes, its address.",
    )
    see(
        "parameters left out",
        {
            "convolution": answer(lambda: F.conv2d(image, kernel).relu()),
            "linear with an input that needs grad": answer(lambda: model[0](wide[:, :a])),
        },
        why="Parameters exist anyway; their views and transposes are no extra bytes.",
        fix="Leave out a tensor that is a Parameter, and one whose _base is one.",
    )
    see(
        "saved, and freed again",
        answer(lambda: [wide.exp().shape for _ in range(50)]),  # often enough: an allocator may hand out new places
        share=0.15,
        why="The next storage got the address of one that had been freed.",
        fix="Hold every storage until you have counted.",
    )
    with torch.no_grad():
        nothing = answer(forward)
    see(
        "nothing recorded",
        [nothing, answer(lambda: 3)],
        why="Where no graph is built, nothing is saved.",
        fix="Start from 0, and count only what the hook is given.",
    )
    failed = attempt(runs[0].backward).error
    wanted = torch.autograd.grad(((x @ first).tanh() @ second).square().sum(), (first, second))
    same = [p.grad is not None and torch.equal(p.grad, g) for p, g in zip((first, second), wanted, strict=True)]
    see(
        "backward still works",
        failed or same,
        why="The graph got something back that is not the saved tensor.",
        fix="pack must return the tensor's values, unpack must give them back.",
    )
    see(
        "outputs kept alive",
        _kept_by_counting(answer, first),
        share=0.1,
        why="The node holds its output, and the output the node: nothing frees them.",
        fix="Return the tensor detached from pack, and keep none that is not.",
    )
    see(
        "an error of the function",
        {
            "reaches the caller": attempt(answer, lambda: torch.zeros(2) @ torch.zeros(3)).raised,
            "hooks left on": len(take_saved_tensors_hooks()),
        },
        share=0.15,
        why="An error must reach the caller, and no hook may stay switched on.",
        fix="Use `with saved_tensors_hooks(...)`, and catch nothing.",
    )


def _kept_by_counting(answer: Callable[..., Any], weight: torch.Tensor) -> int:
    """How many outputs of a counted function live on when nobody holds them."""
    outputs: list[weakref.ref] = []

    def forward() -> None:
        out = weight.exp()
        outputs.append(weakref.ref(out))

    with _collector_off():
        answer(forward)
        return sum(ref() is not None for ref in outputs)


# ------------------------------------------------------------------------------------------------ hooks
class _Reused(nn.Module):
    """A small network with in-place layers, a layer that runs twice, one that is frozen and one that never runs."""

    def __init__(self, n: int, width: int, inplace: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(n, width), nn.ReLU(inplace=inplace))
        self.twice = nn.Linear(width, width)
        self.act = nn.Hardtanh(inplace=inplace)
        self.frozen = nn.Linear(n, width).requires_grad_(False)
        self.unused = nn.Linear(n, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.twice(self.stem(x)))
        h = self.twice(h) + self.frozen(x)
        return self.head(h)


def _norms(recorder: Any) -> Any:
    """The recorder's norms as plain data: name -> list of numbers."""
    norms = getattr(recorder, "norms", "no attribute norms")
    if not isinstance(norms, dict):
        return norms
    return {str(k): list(v) if isinstance(v, (list, tuple)) else v for k, v in norms.items()}


@exercise(
    section=SECTION,
    points=4,
    minutes=30,
    difficulty=3,
    hints=(
        "A forward hook gets the output tensor of its module, and a tensor has register_hook, too: it sees the gradient.",
        "output.register_hook works with in-place layers, where a full backward hook raises. Mind outputs without grad.",
        "In __enter__: a forward hook for each module without children. It registers a tensor hook that appends "
        "grad.norm().item(). Keep every handle; __exit__ removes them all, and returns nothing.",
    ),
)
def GradientRecorder(answer, case, see):  # the name of the class that the learner writes
    """A context manager that records the norm of the gradient arriving at each module's output, and leaves no hook."""
    n, width, rows = case.sizes(3, 3, 8)
    model = _filled(case, _Reused(n, width))
    x, other = _data(case, rows, n), _data(case, rows + 1, n)
    seen: list[int] = []
    user_hook = model.head.register_forward_hook(lambda *_: seen.append(1))  # the caller's own hook
    before = _hooks(model)
    recorder = answer(model)
    with recorder as entered:
        model(x).square().sum().backward()
    norms = _norms(recorder)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    model(x).square().sum().backward()
    see.form(
        _form_of_norms(norms),
        name="type of norms",
        why="recorder.norms is a dictionary: module name -> list of floats.",
        fix="Make the lists when the block is entered, and append norm().item().",
    )
    see(
        "what `with` gives",
        entered is recorder,
        share=0.1,
        why="`with ... as recorder` binds whatever __enter__ returns.",
        fix="Return self from __enter__.",
    )
    see(
        "modules in norms",
        sorted(norms) if isinstance(norms, dict) else norms,
        why="Every module without children has an entry, used or not.",
        fix="Go through named_modules(), and take those that have no children.",
    )
    see(
        "gradients that arrived",
        {k: len(v) for k, v in norms.items()} if isinstance(norms, dict) else norms,
        why="One number per gradient: two where a layer ran twice, none if unused.",
        fix="Append to the list of the right module; mind names in closures.",
    )
    see(
        "gradients of the parameters",
        [
            torch.equal(p.grad, gradients[k]) if p.grad is not None else gradients[k] is None
            for k, p in model.named_parameters()
        ],
        why="With the recorder the model gets other gradients than without it.",
        fix="A hook that returns something replaces the gradient: return None.",
    )
    see(
        "norms",
        {name: sorted(numbers) for name, numbers in norms.items()} if isinstance(norms, dict) else norms,
        atol=1e-9,
        rtol=1e-9,
        why="The norm of the gradient with respect to the output of the module.",
        fix="norm() of all its numbers, as it was before an in-place layer.",
    )
    see(
        "order of the norms",
        norms,
        atol=1e-9,
        rtol=1e-9,
        why="The numbers are right, and come in another order.",
        fix="The order of arrival: the gradient of the last call comes first.",
    )
    _no_hook_left(see, before, model)
    see(
        "the caller's own hook",
        len(seen),
        why="A hook that was there before has gone: it was not yours.",
        fix="Remove hooks by their handles, never by clearing the dictionary.",
    )
    late = _late_backward(answer, model, x)
    see(
        "a backward pass after the block",
        late,
        share=0.15,
        why="A graph made inside the block still carries your hooks, and reports.",
        fix="Keep the handles of the tensor hooks as well, and remove them.",
    )

    def failing() -> Any:
        with recorder:
            model(x).square().sum().backward()
            model(torch.zeros(1, n + 1, dtype=DOUBLE, device=case.device))

    outcome = attempt(failing)
    see(
        "an error inside the block",
        {"reaches the caller": outcome.raised, "hooks left": _hooks(model) - before},
        share=0.2,
        why="An error must get out, and the hooks must go all the same.",
        fix="__exit__ always runs: clean up there, and do not return True.",
    )
    model.zero_grad()
    with recorder:
        with torch.no_grad():
            model(x)
        model(other).square().sum().backward()
        model(x).square().sum().backward()
    see(
        "entered again",
        _norms(recorder),
        atol=1e-9,
        rtol=1e-9,
        share=0.2,
        why="A new block starts with empty lists, and has each gradient once.",
        fix="Reset norms in __enter__; register there, not in __init__.",
    )
    see(
        "activations kept alive",
        _kept_by_recorder(answer, model, x),
        share=0.15,
        why="Something still holds a tensor of the forward pass after the block.",
        fix="Store numbers; do not store outputs, gradients or closures over them.",
    )
    user_hook.remove()


def _form_of_norms(norms: Any) -> str:
    if not isinstance(norms, dict):
        return describe(norms)
    if not norms:
        return "an empty dictionary"
    values = sorted({type(v).__name__ for v in norms.values()})
    items = sorted({type(i).__name__ for v in norms.values() if isinstance(v, list) for i in v})
    return f"dictionary of {', '.join(values)} of {', '.join(items) or 'nothing: all are empty'}"


def _late_backward(answer: Any, model: nn.Module, x: torch.Tensor) -> int:
    """How many norms come in when backward runs after the block."""
    recorder = answer(model)
    with recorder:
        loss = model(x).square().sum()
    loss.backward()
    norms = _norms(recorder)
    return sum(len(v) for v in norms.values() if isinstance(v, list)) if isinstance(norms, dict) else -1


def _kept_by_recorder(answer: Any, model: nn.Module, x: torch.Tensor) -> int:
    """How many outputs of the model's layers outlive the block, while the recorder lives."""
    outputs: list[weakref.ref] = []
    handles = [
        module.register_forward_hook(lambda module, inputs, output: outputs.append(_witness(output)))
        for module in (model.stem, model.twice, model.head)
    ]
    with _collector_off():
        recorder = answer(model)
        with recorder:
            model(x).square().sum().backward()
        alive = sum(ref() is not None for ref in outputs)
    for handle in handles:
        handle.remove()
    return alive


class _Spoils(nn.Module):
    """Returns its input with one number replaced."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[-1, -1] = self.value
        return x


class _Pair(nn.Module):
    """Returns a tuple with its input, a dictionary of a list of numbers, and None."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]], None]:
        return x, {"scales": [x.new_tensor([1.0]), x.new_tensor([2.0, self.value])]}, None


class _Parts(nn.Module):
    """Runs its parts in another order than they were defined in; may fail in its own code, or refuse a bad number.

    ``bad`` maps roles of parts to the number that each of them spoils its output with.
    """

    def __init__(
        self, case: Any, n: int, bad: dict[str, float] | None = None, own: bool = False, strict: bool = False
    ) -> None:
        super().__init__()
        bad = bad or {}
        spoil = lambda role: [_Spoils(bad[role])] if role in bad else []  # noqa: E731
        fillers = [nn.Linear(n, n) for _ in range(case.integer(0, 2))]  # so that the places in a part differ, too
        body = [*fillers, nn.Linear(n, n), nn.BatchNorm1d(n), *spoil("body"), nn.ReLU(inplace=True)]
        parts = {
            "body": nn.Sequential(*body),
            "pair": _Pair(bad.get("pair", 2.0)),
            "drop": nn.Dropout(0.5),
            "tail": nn.Sequential(nn.Linear(n, n), *spoil("tail")),
        }
        self.place = _renamed(case, self, dict(reversed(parts.items())))
        self.own, self.strict = own, strict

    def part(self, role: str) -> nn.Module:
        return getattr(self, self.place[role])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.part("body")(x)
        if self.strict and not torch.isfinite(h).all():
            raise ValueError("a part of the model got numbers that are not finite")
        h, _, _ = self.part("pair")(h)
        out = self.part("tail")(self.part("drop")(h))
        return out / (out - out) if self.own else out


@exercise(
    section=SECTION,
    points=3,
    minutes=18,
    difficulty=2,
    hints=(
        "Forward hooks fire when their module is done: in execution order, the inner module before the outer one.",
        "Look at the output at once, inside the hook: the next layer may overwrite it in place.",
        "Register on all named_modules(), note the first name whose output is not all torch.isfinite, "
        "remove the hooks in a finally, and put the buffers back.",
    ),
)
def first_bad_module(answer, case, see):
    """Name the first module, in the order of execution, whose output holds NaN or an infinity."""
    n, rows = case.sizes(2, 4, 8)
    value = float("-inf") if case.index else float("nan")
    x = _data(case, rows, n)

    def named(model: nn.Module, batch: torch.Tensor = x) -> Any:
        return _module_name(answer(model, batch))

    new = lambda *args, **kwargs: _filled(case, _Parts(case, n, *args, **kwargs))  # noqa: E731
    in_body = named(new({"body": value}))
    see(
        "a part in the middle",
        in_body,
        why="The bad numbers come out of this module first; later ones inherit them.",
        fix="Look inside the hook, with isfinite, and keep the first to fire.",
    )
    see(
        "two bad parts",
        named(new({"tail": value, "body": -value})),
        why="The first in the order of execution is asked, not of definition.",
        fix="Let the hooks report in the order in which they fire.",
    )
    see(
        "a healthy model",
        [named(new()), named(new().eval())],
        why="Every output is finite here: there is no module to name.",
        fix="Return None then.",
    )
    see(
        "a bad input",
        named(new(), torch.full_like(x, value)),
        share=0.1,
        why="The first module that passes the bad numbers on is to be named.",
        fix="Outputs are asked about; the input of the model needs no special case.",
    )
    see(
        "the model's own code",
        named(new(own=True)),
        share=0.15,
        why="The fault is in forward of the model itself: its name is ''.",
        fix="Watch containers, too; call model(x): model.forward(x) skips its hook.",
    )
    see(
        "an output that is no tensor",
        _name_of(attempt(answer, new({"pair": value}), x)),
        share=0.1,
        why="A module may return a tuple, a list, a dictionary, None: look inside.",
        fix="Write a small function that is called again for lists, tuples, values.",
    )
    see(
        "a model that stops at bad numbers",
        _name_of(attempt(answer, new({"body": value}, strict=True), x)),
        share=0.1,
        why="The model raised after the bad module, and the name was lost.",
        fix="If a bad module was seen, its name is the answer, error or not.",
    )
    model = new({"body": value})
    model.part("drop").eval()
    modes, buffers, batch = _modes(model), _buffers(model), x.clone()
    answer(model, batch)
    mode_kept = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    _no_hook_left(see, 0, model)
    failing = new()
    raised = attempt(answer, failing, x[:, 1:]).raised
    torch.set_grad_enabled(True)
    see(
        "an error of the model",
        {"reaches the caller": raised, "hooks left": _hooks(failing)},
        share=0.15,
        why="The forward pass failed before anything bad was seen: say so, clean up.",
        fix="Remove the hooks in a finally; do not swallow the error.",
    )
    see(
        "mode of the model",
        _modes(model) == modes,
        share=0.15,
        why="The model was switched to train or eval; afterwards all is different.",
        fix="Run the model in the mode that it is in.",
    )
    see(
        "buffers and input as they were",
        [torch.equal(b, buffers[name]) for name, b in model.named_buffers()] + [torch.equal(batch, x)],
        share=0.15,
        why="In train mode BatchNorm took bad numbers into its running statistics.",
        fix="Clone the buffers before, copy them back after; or run a deep copy.",
    )
    torch.set_grad_enabled(mode_kept)
    _grad_mode_kept(see)


def _name_of(outcome: Any) -> Any:
    return outcome if outcome.raised else _module_name(outcome.value)


def _module_name(value: Any) -> Any:
    if value == "":
        return "'' (the model itself)"
    return value if isinstance(value, str) or value is None else describe(value)


# ------------------------------------------------------------------------------------------------ finite gradients
def _gradient(function: Callable[..., torch.Tensor], x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of ``(function(x) * weights).sum()`` with respect to x."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((function(leaf) * weights).sum(), leaf)
    return gradient


def _gradcheck(function: Callable[..., torch.Tensor], x: torch.Tensor) -> bool:
    """Whether analytic and numeric gradients agree; an error of the answer gets out."""
    leaf = x.clone().requires_grad_()
    function(leaf)
    return bool(torch.autograd.gradcheck(function, (leaf,), raise_exception=False))


def _away_from(x: torch.Tensor, *points: float, gap: float = 0.1) -> torch.Tensor:
    """The same numbers, none closer than ``gap`` to one of the points where a formula has its kinks."""
    for point in points:
        close = (x - point).abs() < gap
        x = torch.where(close, point + torch.where(x < point, -gap, gap) * 1.5, x)
    return x


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "What is the derivative of sqrt at 0, and what is 0 times that?",
        "Adding a small number under the root changes every result. Is there a safe input for the rows of zeros alone?",
        "Replace the sum of squares by 1 where it is 0, take the root, and put 0 back. Or find torch's own norm.",
    ),
)
def safe_norm(answer, case, see):
    """The Euclidean norm of each row, with a gradient of 0 where a row is all zeros."""
    n, d = case.sizes(2, 4, 9)
    rows = _data(case, n, d)
    x = rows.clone()
    x[1] = 0
    x[-2] = 0
    weights = _data(case, n)
    kept = x.clone()
    norm = answer(x)
    see.form(norm, why="One norm per row, in the dtype of x.", fix="Sum over the last axis, and let it go.")
    see(
        "values",
        norm,
        atol=1e-10,
        why="The norm of a row is the root of its sum of squares, exactly.",
        fix="Add nothing under the root: it shows at zero, and in small rows.",
    )
    see(
        "values of tiny rows",
        answer(x * 1e-60),  # any number that could be added under the root is larger than the squares
        rtol=1e-9,
        why="A small number added under the root swallows rows of its own size.",
        fix="Treat rows of zeros apart, and leave all others alone.",
    )
    gradient = _gradient(answer, x, weights)
    see(
        "gradient is finite",
        torch.isfinite(gradient).all(dim=-1),
        why="At a row of zeros the root's derivative is infinite, and inf * 0 is NaN.",
        fix="Choose a safe number before the root: where() on its result is too late.",
    )
    see(
        "gradient",
        gradient,
        atol=1e-10,
        why="The gradient is x / norm, and 0 for a row of zeros.",
        fix="Compare with the plain formula on rows without zeros.",
        clues=["factor"],
    )
    see(
        "gradcheck away from zero",
        _gradcheck(answer, rows[:4]),
        why="The gradient is not that of the values that come out.",
        fix="Do not detach a part of the formula or change gradients by a hook.",
    )
    see(
        "input left as it was",
        torch.equal(x, kept),
        why="The caller's tensor was changed.",
        fix="Work out of place: torch.where makes a new tensor.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "where(x > 0, x.sqrt(), 0) computes both sides for all numbers: what gradient does sqrt send back at -1?",
        "NaN * 0 is NaN. So no number may reach sqrt at which its derivative is not finite.",
        "Two wheres: safe = where(x > 0, x, 1), then where(x > 0, safe.sqrt(), 0).",
    ),
)
def masked_sqrt(answer, case, see):
    """The square root where x is positive and 0 elsewhere, with a gradient that is finite everywhere."""
    n, d = case.sizes(2, 4, 9)
    x = _away_from(_data(case, n, d), 0.0)
    x[0, 0], x[1, 1], x[2, 2] = 0.0, -4.0, 4.0
    weights = _data(case, n, d)
    kept = x.clone()
    roots = answer(x)
    see.form(roots, why="The result has the shape and the dtype of x.", fix="Keep every element, masked or not.")
    see(
        "values",
        roots,
        atol=1e-12,
        why="The root where x > 0; exactly 0 at 0 and below it.",
        fix="Add nothing under the root, and set the masked places to 0.",
    )
    see(
        "input left as it was",
        torch.equal(x, kept),
        why="The caller's tensor was changed.",
        fix="Work out of place: torch.where makes a new tensor.",
    )
    gradient = _gradient(answer, x, weights)
    see(
        "gradient is finite",
        torch.isfinite(gradient),
        why="where() picks a value, but backward visits both sides: 0 * inf is NaN.",
        fix="Replace the masked numbers before sqrt sees them.",
    )
    see(
        "gradient",
        gradient,
        atol=1e-10,
        why="1 / (2 sqrt(x)) where x > 0, and 0 elsewhere, times what comes in.",
        fix="Compare with the plain formula on positive numbers.",
        clues=["factor"],
    )
    see(
        "small positive numbers",
        [answer(x.abs() * 1e-60), _gradient(answer, kept[kept > 0] * 1e-60, torch.ones_like(kept[kept > 0]))],
        rtol=1e-9,
        share=0.25,
        why="A small positive number is not masked: its root is far larger than it.",
        fix="Compare with 0, not with a threshold, and add nothing to x.",
    )
    see(
        "nothing is positive",
        [answer(-x.abs()), _gradient(answer, -x.abs(), weights)],
        atol=1e-12,
        share=0.2,
        why="All is masked here: zeros, and gradients of zero.",
        fix="Let the formula work for an empty selection, too.",
    )
    see(
        "gradcheck",
        _gradcheck(answer, _away_from(kept[:4], 0.0)),
        why="The gradient is not that of the values that come out.",
        fix="Do not detach a part of the formula or change gradients by a hook.",
    )


# ------------------------------------------------------------------------------------------------ gradients of features
class _Picture(nn.Module):
    """A convolutional classifier with in-place ReLUs, BatchNorm and a skip connection."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.Tanh())
        self.head = nn.Linear(width, classes)
        self.calls = 0
        self.modes: list[dict[str, str]] = []  # of all modules, at each call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.modes.append(_modes(self))
        h = self.stem(x)
        h = F.relu(h + self.block(h), inplace=True)
        return self.head(h.mean(dim=(2, 3)))


@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=3,
    hints=(
        "A forward hook gets the layer's output. Which function gives a gradient without writing to any .grad?",
        "torch.autograd.grad(score, feature). An in-place layer may overwrite the feature: whose gradient is it then?",
        "Let the hook return feature.clone(), so that in-place layers write into the clone, and take the gradient "
        "with respect to feature. If nothing needs grad, feature = output.detach().requires_grad_() starts a graph.",
    ),
)
def feature_gradient(answer, case, see):
    """The gradient of the target classes' scores with respect to the output of one layer, and nothing left behind."""
    width, classes, height, columns = case.sizes(4, 3, 7)
    model = _filled(case, _Picture(width, classes)).eval()
    if case.index:
        model.train().stem[1].eval()  # as in training with frozen statistics
    modes = _modes(model)
    x = _data(case, 3, 3, height, columns)
    target = torch.tensor([case.integer(0, classes - 1) for _ in range(3)], device=case.device)
    with torch.no_grad():
        buffers = _buffers(model)
    gradient = answer(model, "block.0", x, target)
    calls = model.calls
    see.form(
        gradient,
        why="One number for each number of the layer's output.",
        fix="Take the gradient of the layer's output, not of x or of a parameter.",
    )
    see(
        "mode during the forward pass",
        next((seen for seen in model.modes if seen != modes), modes),
        why="The model ran in another mode, and BatchNorm and dropout differ there.",
        fix="Run the model as it comes: neither train() nor eval().",
    )
    see(
        "gradient",
        gradient,
        atol=1e-12,
        rtol=1e-8,
        why="The gradient of the sum of scores[i, target[i]] is asked for.",
        fix="Pick one score per image, by its own target, and add them up.",
        clues=["factor"],
    )
    see(
        "the layer before an in-place one",
        answer(model, "stem.1", x, target),
        atol=1e-12,
        rtol=1e-8,
        why="ReLU wrote over the output: this is the gradient after it, not before.",
        fix="Hand a clone on to the next layer, or hook the tensor itself.",
    )
    see(
        "gradient carries no graph",
        gradient.requires_grad or gradient.grad_fn is not None,
        share=0.1,
        why="As long as the result lives, the whole graph lives with it.",
        fix="No create_graph; detach what you return.",
    )
    see(
        "gradients of the parameters",
        [name for name, g in _gradients(model).items() if g is not None],
        share=0.15,
        why="The parameters were given gradients; the next training step adds them.",
        fix="torch.autograd.grad(score, feature) writes to nobody's .grad.",
    )
    _no_hook_left(see, 0, model)
    see(
        "forward passes",
        calls,
        at_most=True,
        share=0.1,
        why="One forward pass is enough.",
        fix="Take scores and feature from the same pass.",
    )
    see(
        "activations kept alive",
        _kept_by(answer, model, "block.0", x, target),
        share=0.15,
        why="A tensor of the forward pass lives on after the call.",
        fix="Keep no outputs in attributes, globals or hooks that stay.",
    )
    frozen = _filled(case, _Picture(width, classes)).eval().requires_grad_(False)
    outcome = attempt(answer, frozen, "block.0", x, target)
    see(
        "a frozen model",
        outcome,
        atol=1e-12,
        rtol=1e-8,
        share=0.1,
        why="Nothing in front of the layer needs a gradient, so no graph begins.",
        fix="Let the feature itself require grad: detach it, requires_grad_().",
    )
    switched_on = torch.is_grad_enabled()
    with torch.no_grad():
        outcome = attempt(answer, model, "block.0", x, target)
        switched_off = not torch.is_grad_enabled()
    see(
        "called under no_grad",
        outcome,
        atol=1e-12,
        rtol=1e-8,
        share=0.1,
        why="Who looks at features has often switched gradients off around it.",
        fix="Use `with torch.enable_grad():` inside your function.",
    )
    see(
        "model as it was",
        {
            **_modes(model),
            "buffers": all(torch.equal(b, buffers[name]) for name, b in model.named_buffers()),
            "trainable": all(p.requires_grad for p in model.parameters()),
            "frozen": not any(p.requires_grad for p in frozen.parameters()),
        },
        share=0.1,
        why="The model's mode, statistics or requires_grad flags were changed.",
        fix="Run the model as it comes; change nothing that you do not put back.",
    )
    broken = attempt(answer, model, "block.0", x[:, :2], target)
    see(
        "an error of the model",
        {"reaches the caller": broken.raised, "hooks left": _hooks(model)},
        share=0.1,
        why="The forward pass failed, and your hook stayed.",
        fix="Remove the hook in a finally, or use `with` on the handle.",
    )
    see(
        "grad mode left as it was",
        {"on": switched_on, "off, after a call under no_grad": switched_off},
        share=0.1,
        why="The caller's switch for gradients stands differently after your call.",
        fix="Use `with torch.enable_grad():`, which switches back by itself.",
    )


def _kept_by(answer: Any, model: nn.Module, layer: str, *args: Any) -> int:
    """How many outputs of the layer and of the model live on after the call, while its result lives."""
    outputs: list[weakref.ref] = []
    handles = [
        module.register_forward_hook(lambda module, inputs, output: outputs.append(_witness(output)))
        for module in (model, model.get_submodule(layer))
    ]
    with _collector_off():
        result = answer(model, layer, *args)
        alive = sum(ref() is not None for ref in outputs)
        del result
    for handle in handles:
        handle.remove()
    return alive


# ------------------------------------------------------------------------------------------------ accumulation
@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "loss_function gives the mean over one micro-batch. What must it be multiplied by to be its part of the whole mean?",
        "Weight each loss by len(inputs) / total before backward: gradients add up by themselves.",
        "total = sum(len(inputs) for inputs, _ in batches); zero_grad once, before the loop; backward inside the loop.",
    ),
)
def accumulate(answer, case, see):
    """Leave the full batch's gradients in the parameters, from micro-batches of unequal sizes, one graph at a time."""
    features, hidden = case.sizes(2, 8, 14)
    model = _filled(case, nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 3)))
    model[2].bias.requires_grad_(False)
    sizes = case.sizes(5, 80, 120) if case.index else (*case.sizes(4, 90, 120), 7)
    batches = [(_data(case, size, features), _data(case, size, 3)) for size in sizes]
    loss_function = F.smooth_l1_loss if case.index else F.mse_loss
    values = [p.detach().clone() for p in model.parameters()]

    def call(parts: Any, left_over: float | None = None) -> tuple[Any, torch.Tensor]:
        """Result of a call on these micro-batches, and all gradients in a row; ``left_over`` fills .grad before."""
        for parameter in model.parameters():
            empty = left_over is None or not parameter.requires_grad
            parameter.grad = None if empty else torch.full_like(parameter, left_over)
        result = answer(model, parts, loss_function)
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return result, torch.cat(found) if found else torch.zeros(0, dtype=DOUBLE)

    average, together = call(batches)
    gradients = [p.grad for p in model.parameters()]
    unchanged = [torch.equal(p, v) for p, v in zip(model.parameters(), values, strict=True)]
    see.form(
        f"{describe(average)}, gradients: {describe(gradients)}",
        name="type of result and gradients",
        why="A float comes back; gradients are where backward puts them.",
        fix="Return a number without a graph: item(); leave p.grad to backward.",
    )
    see(
        "parameters left as they were",
        unchanged,
        why="The step is the optimizer's business, after this function.",
        fix="Change gradients only.",
    )
    others = [[*batches[:i], (inputs + 1, targets), *batches[i + 1 :]] for i, (inputs, targets) in enumerate(batches)]
    see(
        "micro-batches that count",
        [not torch.equal(call(parts)[1], together) for parts in others],
        why="The gradients of a micro-batch are gone: cleared, or never computed.",
        fix="zero_grad once, before the loop; in the loop gradients add up.",
    )
    see(
        "gradients",
        together,
        atol=1e-10,
        why="These are not the gradients of the mean over all items together.",
        fix="Each item counts the same, so a micro-batch counts by its size.",
        clues=["factor"],
    )
    see(
        "gradients of the step before",
        call(batches, left_over=3.0)[1],
        atol=1e-10,
        why="What lay in .grad before is still in there: backward adds to it.",
        fix="Drop it with model.zero_grad(), once, before the loop.",
    )
    see(
        "average loss",
        average,
        atol=1e-10,
        share=0.25,
        why="The average is that over all items, as for the full batch.",
        fix="Add up the weighted losses, as for the gradients.",
        clues=["factor"],
    )
    with see.memory() as used:
        answer(model, batches, loss_function)
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=0.35,
        why="More than one micro-batch's graph was alive at a time.",
        fix="Call backward inside the loop: it frees the graph. Keep plain numbers.",
    )
    ragged = [(batches[0][0][:1], batches[0][1][:1]), batches[1]]
    answer(model, ragged, loss_function)
    see(
        "a micro-batch of one item",
        [p.grad for p in model.parameters()],
        atol=1e-10,
        share=0.2,
        why="One item has the weight of one item.",
        fix="Take the weight from len(inputs), for every micro-batch.",
    )


# ------------------------------------------------------------------------------------------------ diagnosis
class _Layers(nn.Module):
    """Two layers, under names that tell nothing, and whatever else a broken model needs.

    ``between(model, h)`` is applied to what the first layer gives.
    """

    def __init__(
        self, case: Any, layers: dict[str, nn.Module], between: Callable[[Any, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.place = _renamed(case, self, layers)
        self.between = between

    def part(self, role: str) -> Any:
        return getattr(self, self.place[role])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part("last")(self.between(self, self.part("first")(x)))


class _OnlyBuffers(nn.Module):
    """A layer whose weight was registered as a buffer: it moves with the model, and is never trained."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(n, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def _overwritten(model: Any, h: torch.Tensor) -> torch.Tensor:
    h = h.tanh() * 1.0
    h[:] = 0.5
    return h


def _spoilt_in_place(model: Any, h: torch.Tensor) -> torch.Tensor:
    h = h.sigmoid()
    h += 1
    return h


def _inside_no_grad(model: Any, h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.part("extra")(h).tanh()


def _broken_models(case: Any) -> Iterator[tuple[str, nn.Module, torch.Tensor, str, str]]:
    """Name of the fault, the model, its loss, and why and fix for a wrong diagnosis."""
    n, width, rows = case.sizes(3, 4, 9)

    def build(between: Any = lambda model, h: h.tanh(), **extra: nn.Module) -> Any:
        layers = {"first": nn.Linear(n, width), "last": nn.Linear(width, 2), **extra}
        return _filled(case, _Layers(case, layers, between))

    def run(model: nn.Module) -> torch.Tensor:
        return model(_data(case, rows, n)).square().mean()

    healthy = build()
    yield "healthy", healthy, run(healthy), "Nothing is wrong here.", "Call healthy what no other word fits."

    unused = build(spare=nn.Linear(n, 2))
    yield (
        "unused layer",
        unused,
        run(unused),
        "No path leads from the loss to this layer: not even a gradient of zero.",
        "autograd.grad(..., allow_unused=True) gives None for it.",
    )
    frozen = build(lambda model, h: model.part("extra")(h).tanh(), extra=nn.Linear(width, width))
    frozen.part("extra").requires_grad_(False)
    yield (
        "frozen layer",
        frozen,
        run(frozen),
        "requires_grad is False: nobody asks for this gradient.",
        "Ask requires_grad before you ask for gradients.",
    )
    dead = build(lambda model, h: h.relu())
    with torch.no_grad():
        dead.part("first").bias.fill_(-1e3)
    yield (
        "dead ReLU",
        dead,
        run(dead),
        "All is 0 behind the ReLU: the gradients exist, and are zero.",
        "Zero is not None: look at the numbers.",
    )
    zero_head = build()
    nn.init.zeros_(zero_head.part("last").weight)
    yield (
        "zero-initialised head",
        zero_head,
        run(zero_head),
        "The head's gradient is fine; it sends zeros to everything before it.",
        "Judge each parameter by its own gradient.",
    )
    bad_input = build()
    yield (
        "NaN in the input",
        bad_input,
        bad_input(_data(case, rows, n).index_fill(1, torch.tensor(1, device=case.device), float("nan"))).mean(),
        "The parameters are fine, their gradients are not finite.",
        "NaN > limit is False, and NaN == 0 is False: ask isfinite first.",
    )
    exploding = build(lambda model, h: 1e3 * h)
    with torch.no_grad():
        exploding.part("last").weight.mul_(1e3)
    yield (
        "exploding initialisation",
        exploding,
        run(exploding),
        "The norm of the gradient is above the limit.",
        "Use the norm of the whole gradient, and the limits of the task.",
    )
    tiny = build(lambda model, h: 1e-12 * h.tanh())
    yield (
        "vanishing signal",
        tiny,
        run(tiny),
        "The norm of the gradient is not zero, and below the limit.",
        "Use the norm of the whole gradient, and the limits of the task.",
    )
    detached = build(lambda model, h: h.tanh().detach())
    yield (
        "detached branch",
        detached,
        run(detached),
        "The graph ends at the detach: the loss does not lead to the first layer.",
        "autograd.grad(..., allow_unused=True) gives None for it.",
    )
    silent = build(_inside_no_grad, extra=nn.Linear(width, width))
    yield (
        "no_grad block",
        silent,
        run(silent),
        "What ran under no_grad is not in the graph, nor what came before it.",
        "autograd.grad(..., allow_unused=True) gives None for it.",
    )
    cut = build(_overwritten)
    yield (
        "in-place overwrite",
        cut,
        run(cut),
        "h[:] = 0.5 leaves a path, and sends zeros along it.",
        "Zero is not None: look at the numbers.",
    )
    spoilt = build(_spoilt_in_place)
    yield (
        "in-place step that spoils",
        spoilt,
        run(spoilt),
        "backward raises: a saved value was changed in place.",
        "Catch the RuntimeError, and tell it of every parameter that is reached.",
    )
    constant = build()
    with torch.no_grad():
        loss = run(constant)
    yield (
        "constant loss",
        constant,
        loss,
        "The loss has no graph at all, so it reaches nobody.",
        "autograd.grad would raise here: ask loss.requires_grad first.",
    )
    relabelled = build()
    yield (
        "loss made a leaf",
        relabelled,
        run(relabelled).detach().requires_grad_(),
        "detach cut the graph; requires_grad_() afterwards only hides the error.",
        "No path leads from this loss to any parameter.",
    )
    rounded = build(lambda model, h: h.round())
    yield (
        "rounded features",
        rounded,
        run(rounded),
        "round has a derivative of zero, and autograd uses it.",
        "Zero is not None: look at the numbers.",
    )
    square = {"first": nn.Linear(n, n), "again": nn.Linear(n, n), "last": nn.Linear(n, 2)}
    square["again"].weight = square["first"].weight
    shared = _filled(case, _Layers(case, square, lambda model, h: model.part("again")(h.tanh()).tanh()))
    yield (
        "shared parameter",
        shared,
        run(shared),
        "Two layers hold one parameter: one name, one verdict.",
        "Go through named_parameters(), which lists it once.",
    )
    buffers = _filled(case, _OnlyBuffers(n))
    yield (
        "buffers only",
        buffers,
        run(buffers),
        "A model without parameters has no verdicts.",
        "Return an empty dictionary; autograd.grad wants at least one input.",
    )
    spoilt_value = build(spare=nn.Linear(n, 2), extra=nn.Linear(n, 2))
    with torch.no_grad():
        spoilt_value.part("spare").bias[0] = float("inf")
        spoilt_value.part("extra").weight[0, 0] = float("nan")
        spoilt_value.part("extra").requires_grad_(False)
    yield (
        "bad parameter values",
        spoilt_value,
        run(spoilt_value),
        "The parameter itself is not finite: that comes before everything else.",
        "Look at the values first, of frozen and of unused parameters, too.",
    )
    root = build(lambda model, h: h.tanh() + model.part("scale").weight.sqrt(), scale=nn.Linear(1, 1, bias=False))
    nn.init.zeros_(root.part("scale").weight)
    yield (
        "root of zero",
        root,
        run(root),
        "The gradient is infinite; anomaly mode would not have said a word.",
        "isfinite knows infinities, isnan does not.",
    )
    near = build(extra=nn.Linear(width, width))
    yield (
        "norms near the limits",
        near,
        _with_gradients_of_norm(
            case,
            {
                near.part("first").weight: 1.5e3,
                near.part("last").weight: 7e2,
                near.part("last").bias: 1.2e3,
                near.part("extra").weight: 5e-9,
                near.part("first").bias: 1.5e-8,
                near.part("extra").bias: 3e-8,
            },
        ),
        "The limits are 1e3 and 1e-8, for the norm of the whole gradient.",
        "Take gradient.norm(), not its largest number and not the mean.",
    )
    used_up = build()
    loss = run(used_up)
    loss.backward()
    yield (
        "backward was called before",
        used_up,
        loss,
        "The graph is freed: backward raises, and .grad shows the old gradients.",
        "Compute gradients yourself; do not read what lies in .grad.",
    )


def _with_gradients_of_norm(case: Any, norms: dict[torch.Tensor, float]) -> torch.Tensor:
    """A loss whose gradients have these norms, with numbers of one size in each, so that no single one reaches a limit."""
    loss = torch.zeros((), dtype=DOUBLE, device=case.device)
    for parameter, norm in norms.items():
        signs = _data(case, *parameter.shape).sign()
        loss = loss + (parameter * signs).sum() * (norm / parameter.numel() ** 0.5)
    return loss


_DIAGNOSES_THAT_COUNT = ("healthy", "unused layer", "frozen layer")


@exercise(
    section=SECTION,
    points=4,
    minutes=35,
    difficulty=3,
    hints=(
        "Three layers, in this order: the values (isfinite, requires_grad), the path (is it reached?), the gradient's numbers.",
        "torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) answers the second and third at once.",
        "It raises when nothing is asked for, when the loss has no graph, and when backward fails. To tell who is reached "
        "then, walk the graph with reached_parameters.",
    ),
)
def diagnose(answer, case, see):
    """Give each parameter of a model exactly one verdict: values, flow, or integrity of the graph."""
    models = list(_broken_models(case))
    outcomes = {}
    # In another order for every case, but healthy first: an answer cannot count along.
    for number in [0, *(1 + case.rng.permutation(len(models) - 1))]:
        fault, model, loss, _, _ = models[number]
        before = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        outcomes[fault] = attempt(answer, model, loss)
        torch.set_grad_enabled(True)
        outcomes[fault, "stored"] = not all(_same_gradient(before[n], p.grad) for n, p in model.named_parameters())
    first = outcomes["healthy"]
    see.form(
        first.error if first.raised else _form_of_verdicts(first.value),
        name="type of the verdicts",
        why="The answer is a dictionary: name of the parameter -> one word.",
        fix="One entry per named_parameters(), each a text.",
    )
    for fault, _, _, why, fix in models:
        outcome = outcomes[fault]
        see(
            fault,
            outcome if outcome.raised else _verdicts(outcome.value),
            share=None if fault in _DIAGNOSES_THAT_COUNT else 0.1 if fault == "norms near the limits" else 0.035,
            why=why,
            fix=fix,
        )
    see(
        "gradients left as they were",
        [fault for fault, *_ in models if outcomes[fault, "stored"]],
        share=0.15,
        why="The diagnosis wrote to .grad: the next step trains on it.",
        fix="torch.autograd.grad returns gradients and stores none.",
    )
    see(
        "backward still works",
        [attempt(loss.backward).error for fault, _, loss, _, _ in models if fault in _DIAGNOSES_THAT_COUNT],
        share=0.15,
        why="The diagnosis used the graph up.",
        fix="retain_graph=True keeps it.",
    )


def _same_gradient(before: torch.Tensor | None, after: torch.Tensor | None) -> bool:
    if before is None or after is None:
        return before is after
    return torch.equal(before, after)


def _form_of_verdicts(value: Any) -> str:
    if not isinstance(value, dict):
        return describe(value)
    kinds = sorted({f"{type(k).__name__} -> {type(v).__name__}" for k, v in value.items()})
    return f"dictionary {', '.join(kinds)}"


def _verdicts(value: Any) -> Any:
    """Verdicts by name, spelt in one way."""
    if not isinstance(value, dict):
        return describe(value)
    clean = lambda v: " ".join(v.lower().replace("_", " ").split()) if isinstance(v, str) else describe(v)  # noqa: E731
    return {str(k): clean(v) for k, v in sorted(value.items(), key=lambda item: str(item[0]))}


# ------------------------------------------------------------------------------------------------ autograd.Function
@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=3,
    hints=(
        "Three pieces: 0 below -3, x above 3, x (x + 3) / 6 between. Differentiate each.",
        "backward gets the gradient of the loss with respect to the output: multiply by it. x comes from ctx.saved_tensors.",
        "forward: ctx.save_for_backward(x). backward: slope = (2 * x + 3) / 6 between -3 and 3, 0 below, 1 above; grad * slope.",
    ),
)
def HardSwish(answer, case, see):
    """The activation x * relu6(x + 3) / 6 as an autograd.Function with its own backward."""
    n, d = case.sizes(2, 5, 9)
    x = _away_from(3 * _data(case, n, d), -3.0, 3.0)
    if case.index:
        x = x.t()
    x[0, 0], x[1, 1], x[2, 2] = -5.0, 5.0, -1.0
    weights = _data(case, *x.shape)
    kept = x.clone()
    apply = getattr(answer, "apply", None)
    y = apply(x) if apply is not None else None
    see.form(
        "a subclass of torch.autograd.Function"
        if isinstance(answer, type) and issubclass(answer, torch.autograd.Function)
        else describe(answer),
        name="kind of class",
        why="A Function brings its own backward; a Module leaves it to autograd.",
        fix="class HardSwish(torch.autograd.Function) with two static methods.",
    )
    see.form(y, why="The result has the shape and the dtype of x.", fix="Work elementwise.")
    see(
        "values",
        y,
        atol=1e-12,
        why="x * relu6(x + 3) / 6, with relu6(z) = min(max(z, 0), 6).",
        fix="Try x = -5, -1, 5 by hand: 0, -1/3, 5.",
        clues=["factor"],
    )
    see(
        "input left as it was",
        torch.equal(x, kept),
        why="forward wrote into its input.",
        fix="Work out of place.",
    )
    see(
        "gradient",
        _gradient(apply, x, torch.ones_like(x)),
        atol=1e-12,
        why="The slope is 0 below -3, 1 above 3, (2x + 3) / 6 between.",
        fix="Differentiate x (x + 3) / 6 by the product rule.",
        clues=["factor"],
    )
    see(
        "gradient for another loss",
        _gradient(apply, x, weights),
        atol=1e-12,
        why="backward must multiply by the gradient that comes in.",
        fix="Return grad * slope.",
        clues=["factor"],
    )
    see(
        "gradcheck in float64",
        _gradcheck(apply, x[:4, :4]),
        why="Analytic and numeric gradients differ.",
        fix="Compare one number of each: (f(x + h) - f(x - h)) / (2 h).",
    )
    small = x.float().requires_grad_()
    out = apply(small)
    out.sum().backward()
    see(
        "dtypes with float32",
        [out.dtype, small.grad.dtype],
        share=0.15,
        why="Everything stays in the dtype of x.",
        fix="Build no float64 or default-dtype constants into forward or backward.",
    )
    see(
        "outputs kept alive",
        _outlives(apply, x),
        share=0.25,
        why="The output holds its node, and the node's ctx holds the output: a cycle.",
        fix="Do not keep an output as an attribute of ctx.",
    )
    saved = meter.bytes_saved_for_backward(apply, x.clone().requires_grad_())
    see(
        "bytes saved for backward",
        saved.bytes + _hidden_bytes(apply, x),
        at_most=True,
        share=0.25,
        why="More is kept than one tensor of the size of x.",
        fix="Save x alone; all else can be computed again in backward.",
    )
    del saved
    see(
        "an in-place change of x in between",
        _edited_between(apply, x),
        share=0.2,
        why="A tensor kept as an attribute of ctx has no guard: wrong gradients.",
        fix="ctx.save_for_backward(x), then ctx.saved_tensors in backward.",
    )
    leaf = x.clone().requires_grad_()
    second = attempt(lambda: torch.autograd.grad(_first_gradient(apply, leaf, weights).sum(), leaf)[0])
    see(
        "second derivative",
        second,
        atol=1e-10,
        share=0.15,
        any_error=True,
        why="backward is differentiated, too; what forward computes has no history.",
        fix="Compute the slope in backward, from the saved x; detach nothing.",
    )


def _first_gradient(function: Callable[..., torch.Tensor], x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    # The square makes the incoming gradient depend on x: a backward that detaches it shows, too.
    (gradient,) = torch.autograd.grad((function(x).square() * weights).sum(), x, create_graph=True)
    return gradient


def _node_tensors(node: Any) -> list[torch.Tensor]:
    """Tensors that are attributes of a Function's ctx: they are kept, and no hook sees them."""
    values = list(vars(node).values()) if hasattr(node, "__dict__") else []
    return [v for v in values if isinstance(v, torch.Tensor)]


def _hidden_bytes(apply: Callable[..., torch.Tensor], x: torch.Tensor) -> int:
    out = apply(x.clone().requires_grad_())
    return meter.storage_bytes(*_node_tensors(out.grad_fn))


def _edited_between(apply: Callable[..., torch.Tensor], x: torch.Tensor) -> str:
    """What comes of a backward pass after the input was changed in place."""
    leaf = x.clone().requires_grad_()
    inner = leaf * 1.0
    out = apply(inner)
    with torch.no_grad():
        inner.add_(1.5)
    outcome = attempt(out.sum().backward)
    if outcome.raised:
        return "noticed or harmless"
    harmless = torch.allclose(leaf.grad, _gradient(apply, x, torch.ones_like(x)))
    return "noticed or harmless" if harmless else "wrong gradients, and no error"


def _outlives(apply: Callable[..., torch.Tensor], x: torch.Tensor) -> bool:
    """Whether an output that nobody holds is still there."""
    with _collector_off():
        out = apply(x.clone().requires_grad_())
        ref = weakref.ref(out)
        del out
        return ref() is not None


# ------------------------------------------------------------------------------------------------ BatchNorm
class _Normed(nn.Module):
    """BatchNorms of all three kinds, one more without running statistics, a dropout, and in-place ReLUs."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, channels, 3)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.free = nn.BatchNorm2d(channels, track_running_stats=False)
        self.clip = nn.BatchNorm3d(channels)
        self.head = nn.Sequential(nn.Linear(channels, width), nn.BatchNorm1d(width, eps=0.1), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.free(self.drop(self.act(self.norm(self.conv(x)))))
        return self.head(self.clip(h[:, :, None]).mean(dim=(2, 3, 4)))


@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=3,
    hints=(
        "A forward pre-hook on each BatchNorm sees what goes in. It fires under no_grad and in eval mode as well.",
        "Batches differ in size: add up sums and counts per channel, and divide at the end. Channels are axis 1.",
        "Note module.training of every module, model.eval(), run under no_grad, put each module back, remove the hooks. "
        "Drift: max over channels of |mean - running_mean| / sqrt(running_var + eps).",
    ),
)
def watch_batchnorm(answer, case, see):
    """Tell of each BatchNorm how far its inputs at inference have drifted from its running statistics."""
    channels, width, height, columns = case.sizes(4, 5, 10)
    model = _filled(case, _Normed(channels, width))
    with torch.no_grad():
        for norm in (model.norm, model.clip, model.head[1]):
            norm.running_mean.copy_(_data(case, norm.num_features))
            norm.running_var.copy_(_data(case, norm.num_features).square() + 0.5)
    model.train()
    model.norm.eval()  # a part that the caller had frozen
    batches = [_data(case, size, 2, height, columns) + shift for size, shift in ((9, 0.0), (4, 2.0), (1, -3.0))]
    if case.index:
        batches = batches[1:]
    modes, buffers = _modes(model), _buffers(model)
    copies = [b.clone() for b in batches]
    drift = answer(model, batches)
    mode_kept = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    after_modes, after_buffers = _modes(model), _buffers(model)
    see.form(
        _form_of_drift(drift),
        why="The answer is a dictionary: name of the BatchNorm -> float.",
        fix="One plain number per layer: item().",
    )
    see(
        "layers",
        sorted(drift) if isinstance(drift, dict) else drift,
        why="Every BatchNorm, 1d, 2d or 3d, with running statistics has an entry.",
        fix="Go through named_modules(); leave out those whose running_mean is None.",
    )
    see(
        "drift",
        drift,
        atol=1e-6,
        rtol=1e-6,
        why="Mean of each channel over all batches, against the running one.",
        fix="Check: eval mode, input not output, all items equal, eps, the maximum.",
        clues=["factor"],
    )
    see(
        "running statistics left as they were",
        [name for name, b in after_buffers.items() if not torch.equal(b, buffers[name])],
        why="A forward pass in train mode moved them; no_grad does not prevent it.",
        fix="model.eval() before the first batch.",
    )
    see(
        "mode of every module",
        after_modes,
        share=0.25,
        why="Not every module is back in the mode in which the caller had put it.",
        fix="Note `training` of each module before, and put each one back.",
    )
    _no_hook_left(see, 0, model)
    _put_back(model, modes)
    outcome = attempt(answer, model, [batches[0], batches[0][:, :1]])
    torch.set_grad_enabled(True)
    see(
        "an error of the model",
        {"reaches the caller": outcome.raised, "hooks left": _hooks(model), "modes": _modes(model) == modes},
        share=0.15,
        why="After an error in the second batch, hooks or modes were not put back.",
        fix="Put everything back in a finally.",
    )
    see(
        "batches left as they were",
        [torch.equal(a, b) for a, b in zip(batches, copies, strict=True)],
        share=0.15,
        why="A batch of the caller was changed.",
        fix="Work out of place.",
    )
    big = [_data(case, 6, 2, 24, 30) for _ in range(8)]
    with see.memory() as used:
        answer(model, big)
    torch.set_grad_enabled(True)
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        share=0.25,
        slack=0.6,
        why="Inputs of all batches, or their graphs, were kept until the end.",
        fix="Run under no_grad; keep a sum and a count per channel, no inputs.",
    )
    torch.set_grad_enabled(mode_kept)
    _grad_mode_kept(see)


def _form_of_drift(value: Any) -> str:
    if not isinstance(value, dict):
        return describe(value)
    kinds = sorted({type(v).__name__ for v in value.values()})
    return f"dictionary of {', '.join(kinds)}"
