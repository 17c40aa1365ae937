"""Section 5, resnet_mini_amp: from blocks to a trained, resumable model."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.budget import CountedImages
from course_utils.compile_counter import count_graphs
from course_utils.data.reading import load_unlabelled
from course_utils.observe import attempt, describe, exercise
from course_utils.observe.guard import guard
from course_utils.observe.registry import public_seed
from course_utils.observe.scores import true_labels

SECTION = "resnet_mini_amp"


# ------------------------------------------------------------------------------------------------ sizes
@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=1,
    hints=(
        "Draw a row of 10 pixels and slide a window of 3 over it: how often does it fit with step 1, and with step 2?",
        "Dilation spreads the kernel: it covers dilation * (kernel - 1) + 1 pixels. Padding counts twice.",
        "(size + 2 * padding - covered) // stride + 1, and an error if the window is larger than the padded row.",
    ),
)
def conv_output_size(answer, case, see):
    """The length of one axis after a convolution, from size, kernel, stride, padding and dilation."""
    see.form(answer(10, 3), why="A size is a whole number.", fix="Use //, which keeps whole numbers whole.")
    drawn = [(case.integer(17, 60), *case.sizes(3, 2, 5)) for _ in range(5)]
    see(
        "stride 1, no padding",
        [answer(size, kernel) for size, kernel, *_ in drawn],
        why="A window of k pixels fits n - k + 1 times into a row of n.",
        fix="Count by hand how often 3 pixels fit into 5.",
        clues=["off_by_one"],
    )
    see(
        "padding",
        [answer(size, kernel, padding=padding) for size, kernel, padding, _ in drawn],
        why="Padding adds pixels at both ends of the row.",
        fix="Count the padding twice.",
    )
    see(
        "stride",
        [answer(size, kernel, stride, padding) for size, kernel, stride, padding in drawn],
        why="With a stride the window starts at 0, s, 2s, ... while it still fits.",
        fix="Round down before you add 1: a window that sticks out does not count.",
        clues=["off_by_one"],
    )
    see(
        "dilation",
        [answer(size, kernel, stride, padding, dilation=3) for size, kernel, stride, padding in drawn],
        why="A dilated kernel covers more pixels than it has weights.",
        fix="Between k weights there are k - 1 gaps; each is dilation wide.",
    )
    kernel = case.integer(4, 9)
    see(
        "window as large as the row",
        [attempt(answer, kernel, kernel), attempt(answer, kernel - 2, kernel, stride=2, padding=1)],
        why="A window that fits exactly once gives one position.",
        fix="Refuse only windows that are larger than the padded row.",
    )
    see(
        "window larger than the row",
        [attempt(answer, kernel - 3, kernel, 2, 1), attempt(answer, kernel + 1, kernel, 1, 0, 2)],
        share=0.25,
        why="No position is left: the formula gives 0 or less, and that is no size.",
        fix="Raise a ValueError where the window is larger than the padded row.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "With stride 2 the sizes 7 and 8 both become 4. Coming back, something must say which of the two it was.",
        "Transposed: (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + output_padding. Solve for the last.",
        "What is missing is what the division by the stride threw away: a remainder.",
    ),
)
def transposed_output_padding(answer, case, see):
    """The output_padding with which a transposed convolution gives back the size that a convolution took."""
    see.form(answer(8, 3, 2, 1), why="output_padding is a whole number of pixels.", fix="Use // and %.")
    rows = [(case.integer(20, 60), kernel, stride, padding) for kernel, stride, padding in ((3, 2, 1), (5, 3, 2))]
    see(
        "one stride, sizes in a row",
        [answer(size + i, kernel, stride, padding) for size, kernel, stride, padding in rows for i in range(stride)],
        why="Sizes that become equal under a stride need different paddings back.",
        fix="Try 7 and 8 with kernel 3, stride 2, padding 1: both become 4.",
    )
    kernel, stride, padding, size = *case.sizes(3, 2, 5), case.integer(30, 60)
    see(
        "other kernels and paddings",
        [answer(size + i, kernel, stride, padding) for i in range(7)],
        why="The remainder is taken after kernel and padding are accounted for.",
        fix="Work out the transposed size for output_padding=0, and compare.",
    )
    see(
        "dilation",
        [answer(size + i, kernel, stride, padding, dilation=2) for i in range(5)],
        share=0.25,
        why="A dilated kernel covers dilation * (kernel - 1) + 1 pixels.",
        fix="Use the width that the kernel covers in place of the kernel's size.",
    )
    see(
        "stride 1",
        [answer(size + i, 3, 1, 1) for i in range(3)],
        why="With stride 1 no size is lost, so nothing is to be padded.",
        fix="Your result should always be smaller than the stride.",
    )


# ------------------------------------------------------------------------------------------------ the model
def _fill(model: nn.Module, seed: int) -> nn.Module:
    """Numbers that depend on a parameter's shape alone: the same for every way to name and order the layers. In float64."""
    model = model.double()
    with torch.no_grad():
        for module in model.modules():
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            for name, parameter in module.named_parameters(recurse=False):
                rng = np.random.default_rng([seed & 0xFFFF, *parameter.shape, norm, name == "bias"])
                values = rng.standard_normal(tuple(parameter.shape)) / max(1, parameter[0].numel()) ** 0.5
                if norm:
                    values = 1 + 0.3 * values if name == "weight" else 0.3 * values
                elif name == "bias":
                    values = 0 * values
                parameter.copy_(torch.from_numpy(values))
    return model


def _a_module(answer: Any, *args: Any) -> nn.Module:
    """An instance of the answer; a clear error where it is no module."""
    model = answer(*args)
    if not isinstance(model, nn.Module):
        raise TypeError(f"a module is asked for, a class that inherits from nn.Module, and this is {describe(model)}")
    return model


@exercise(
    section=SECTION,
    points=4,
    minutes=20,
    difficulty=2,
    hints=(
        "Two 3x3 convolutions, each with BatchNorm. Where are the two ReLUs, and what is added between them?",
        "The input can only be added where its shape is the sum's. When is it not, and which layer changes just that?",
        "out = relu(bn1(conv1(x))); out = bn2(conv2(out)) + shortcut(x); relu(out). The shortcut is nn.Sequential() or "
        "a 1x1 convolution with the stride, and BatchNorm. Convolutions before BatchNorm need no bias.",
    ),
)
def BasicBlock(answer, case, see):
    """The residual block of ResNet-18, with a projection on the shortcut where the shape changes."""
    batch = case.integer(2, 3)  # small, so that the record stays short
    height, width = case.sizes(2, 4, 6)
    narrow, wide = case.sizes(2, 4, 6)
    kinds = {
        "same shape": (narrow, narrow, 1),
        "more channels": (narrow, wide, 1),
        "stride 2": (narrow, wide, 2),
        "stride 2, same width": (wide, wide, 2),
    }
    blocks, inputs, results = {}, {}, {}
    for kind, (channels, *rest) in kinds.items():
        # The stride is left out where it is 1: it has a default.
        arguments = (channels, rest[0]) if rest[1] == 1 else (channels, *rest)
        blocks[kind] = _fill(_a_module(answer, *arguments), case.seed).to(case.device)
        inputs[kind] = case.tensor(batch, channels, height, width, dtype=torch.float64, requires_grad=True)
    for kind, block in blocks.items():
        before = inputs[kind].detach().clone()
        results[kind] = block.train()(inputs[kind] * 1)
        see.form(
            results[kind],
            name=f"result, {kind}",
            why="The block gives (N, out, H / stride, W / stride), rounded up.",
            fix="3x3 with padding 1 keeps the size; only the first one has the stride.",
        )
        x = before.clone()
        block(x)
        see(
            f"input left as it was, {kind}",
            torch.equal(x, before),
            why="The block wrote into its input: the shortcut then adds something else.",
            fix="Nothing in place on x: no inplace=True on it, no x += ...",
        )
        trained = {n for n, p in block.named_parameters() if p.requires_grad}
        shapes = Counter(str(tuple(p.shape)) for n, p in block.named_parameters() if n in trained and p.dim() > 1)
        see(
            f"weights, {kind}",
            dict(sorted(shapes.items())),
            why="Two 3x3 convolutions; a 1x1 one only where the shape changes.",
            fix="Compare stride and channels of input and output, then project or not.",
        )
        see(
            f"values in training, {kind}",
            results[kind].float(),  # computed in float64, so that float32 is exact to its last digits
            atol=1e-5,
            rtol=1e-5,
            why="Conv, norm, ReLU, conv, norm, then add the shortcut, then ReLU.",
            fix="Write the two paths one below the other, and join them once.",
            clues=["no_relu_at_the_end", "relu_before_the_sum"],
        )
        (grad,) = torch.autograd.grad(results[kind].square().sum(), inputs[kind])
        see(
            f"gradient, {kind}",
            grad.float(),
            atol=1e-5,
            rtol=1e-5,
            why="The gradient must flow through both paths.",
            fix="Nothing is detached; the sum is made out of place.",
        )
        with torch.no_grad():
            see(
                f"values in evaluation, {kind}",
                block.eval()(before).float(),
                atol=1e-5,
                rtol=1e-5,
                why="In evaluation BatchNorm uses the running statistics of training.",
                fix="Use nn.BatchNorm2d modules, one for each convolution.",
            )
    see(
        "trainable numbers",
        sum(p.numel() for block in blocks.values() for p in block.parameters() if p.requires_grad),
        at_most=True,
        share=0.25,
        why="BatchNorm takes the mean away, and with it every bias before it.",
        fix="bias=False in every convolution that a BatchNorm follows.",
    )


@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=2,
    hints=(
        "Stem, two stages, head. What does each do to (N, 3, 32, 32)? 16, 16, 8, and then one number per channel.",
        "Only the first block of a stage changes channels and stride; and no max-pool in this one.",
        "conv 7x7 stride 2 padding 3 without bias, BatchNorm, ReLU; blocks (64, 64, 1), (64, 64, 1), (64, 128, 2), "
        "(128, 128, 1); mean over height and width; Linear(128, classes).",
    ),
)
def ResNet18Mini(answer, case, see):
    """The small ResNet: a 7x7 stem with stride 2, two stages of two blocks, 64 and 128 channels, a linear head."""
    classes = case.integer(3, 9)
    whole = _a_module(answer)
    model = _fill(_a_module(answer, classes), case.seed).to(case.device)
    images = case.tensor(case.integer(3, 5), 3, 32, 32, dtype=torch.float64)
    result = model.train()(images)
    see.form(
        result,
        why="One row of logits per image, one column per class.",
        fix="Pool over height and width, then a Linear layer with `classes` outputs.",
    )
    convolutions = Counter(
        f"{m.in_channels} -> {m.out_channels}, {m.kernel_size[0]}x{m.kernel_size[1]}, stride {m.stride[0]}"
        for m in model.modules()
        if isinstance(m, nn.Conv2d)
    )
    see(
        "convolutions",
        dict(sorted(convolutions.items())),
        why="Count them: 1 in the stem, 2 in each of 4 blocks, and one projection.",
        fix="Print the model and compare channels and strides, layer by layer.",
    )
    see(
        "parameters for 10 classes",
        sum(p.numel() for p in whole.parameters() if p.requires_grad),
        why="684,362 is the number for 10 classes, and 10 is the default.",
        fix="No bias before a BatchNorm; one BatchNorm per convolution.",
    )
    see(
        "values in training",
        result,
        atol=1e-6,
        rtol=1e-5,
        why="Same layers, other result: their order, a ReLU, or the pooling differs.",
        fix="Stem: conv, norm, ReLU, no max-pool. Head: mean over space, Linear.",
    )
    with torch.no_grad():
        see(
            "values in evaluation",
            model.eval()(images),
            atol=1e-6,
            rtol=1e-5,
            why="In evaluation the model differs from what was asked.",
            fix="Nothing but BatchNorm may depend on the mode.",
        )
        height, width = case.sizes(2, 33, 49)
        see(
            "images of another size",
            model(case.tensor(2, 3, height, width, dtype=torch.float64)),
            atol=1e-6,
            rtol=1e-5,
            share=0.2,
            why="A mean over height and width works for every size.",
            fix="Pool with nn.AdaptiveAvgPool2d(1) or x.mean((2, 3)): no fixed size.",
        )
        one = attempt(model, images[:1])
        see(
            "one image",
            one,
            atol=1e-6,
            rtol=1e-5,
            share=0.2,
            why="With one image, squeeze() drops the batch axis as well.",
            fix="flatten(1) keeps the first axis, whatever its length.",
        )
    blocks = [m for m in model.modules() if type(m).__name__ == "BasicBlock"]
    see(
        "built from your BasicBlock",
        len(blocks),
        share=0.2,
        why="The model is to be built from the block that you wrote.",
        fix="Create four BasicBlock modules, two for each stage.",
    )


# ------------------------------------------------------------------------------------------------ guards
class _Ran(Exception):
    """The guarded function was entered."""


@exercise(
    section=SECTION,
    points=4,
    minutes=25,
    difficulty=3,
    hints=(
        "A decorator with arguments is three functions deep. What must the outermost return when it is switched off?",
        "Off: return the function itself. On: find the first tensor among the arguments, compare axis by axis, then call.",
        "names = {}; for size, wanted in zip(x.shape, shape): None fits, an int must equal, and for a text "
        "names.setdefault(wanted, size) must equal size. functools.wraps keeps name and docstring.",
    ),
)
def expects(answer, case, see):
    """A decorator that checks the shape and dtype of a function's tensor, and costs nothing when switched off."""
    a, b, c = case.sizes(3, 3, 9)

    def body(x, scale=2):
        """Says what it does."""
        return x * scale

    guarded = answer("N", 3, None, dtype=torch.float32)(body)
    x = case.tensor(a, 3, b)
    see(
        "a good tensor passes",
        [guarded(x), guarded(x, 3), guarded(x, scale=4)],
        atol=1e-6,
        why="A tensor of the expected shape must go through, result and all.",
        fix="Pass *args and **kwargs on, and return what the function returns.",
    )

    def ask(decorator: Any, *tensors: torch.Tensor) -> list[Any]:
        def enter(tensor):
            raise _Ran

        checked = decorator(enter)
        outcomes = [attempt(checked, tensor) for tensor in tensors]
        return [{"_Ran": "entered"}.get(o.error, o.error or "no error") for o in outcomes]

    see(
        "a fixed size",
        ask(answer("N", 3, None), case.tensor(a, 3, b), case.tensor(a, 4, b), case.tensor(a, 1, b)),
        why="A number in the shape is a size that the axis must have.",
        fix="Raise a ValueError before the function is entered.",
    )
    see(
        "the number of axes",
        ask(answer("N", 3, None), case.tensor(a, 3), case.tensor(a, 3, b, c), case.tensor(3), case.tensor(a, 3, b)),
        why="zip stops at the shorter of the two: a missing axis goes unseen.",
        fix="Compare the number of axes first.",
    )
    see(
        "names",
        ask(answer(None, "S", "S"), case.tensor(c, a, a), case.tensor(c, a, b), case.tensor(a, a, b)),
        why="Equal names stand for equal sizes.",
        fix="Remember the first size that a name stood for, and compare later ones.",
    )
    see(
        "names are forgotten between calls",
        ask(answer("N", "S"), case.tensor(a, b), case.tensor(b, c), case.tensor(c, a)),
        why="A name means one size within a call; the next call may bring another.",
        fix="Make the dictionary of names inside of the wrapper.",
    )
    see(
        "dtype",
        ask(
            answer("N", None, dtype=torch.float32),
            case.tensor(a, b),
            case.tensor(a, b, dtype=torch.float64),
            case.tensor(a, b, dtype=torch.uint8),
        ),
        why="A wrong dtype is a TypeError; without dtype= every one is welcome.",
        fix="Compare x.dtype with dtype, if one was given, and raise TypeError.",
    )
    see(
        "any dtype where none is given",
        ask(answer("N", None), case.tensor(a, b, dtype=torch.int64), case.tensor(a, b, dtype=torch.float64)),
        why="Without dtype= every dtype is welcome.",
        fix="Compare dtypes only where one was given.",
    )

    class Module(nn.Module):
        @answer("N", c)
        def forward(self, y):
            return y + 1

    see(
        "on a method",
        [attempt(Module(), case.tensor(a, c)), attempt(Module(), case.tensor(a, c + 1))],
        any_error=True,
        atol=1e-6,
        share=0.25,
        why="In a method the first argument is self, and no tensor.",
        fix="Check the first tensor among the arguments, wherever it stands.",
    )
    off = answer("N", 3, None, dtype=torch.float32, debug=False)(body)
    see(
        "costs nothing when off",
        off is body,
        share=0.25,
        why="A wrapper that only looks at the switch is still a call, every time.",
        fix="Decide when decorating: return the function itself.",
    )
    see(
        "name and docstring",
        [getattr(guarded, "__name__", None), getattr(guarded, "__doc__", None)],
        share=0.15,
        why="A traceback and help() should speak of the function, not of a wrapper.",
        fix="Put functools.wraps(function) above the wrapper.",
    )
    message = attempt(guarded, case.tensor(a, c + 10, b)).message
    see(
        "the message names both sizes",
        [str(3) in message, str(c + 10) in message],
        share=0.15,
        why="A guard is as good as its message: what was expected, and what came?",
        fix="Put the expected shape and the tensor's shape into the message.",
    )


# ------------------------------------------------------------------------------------------------ evaluation
class _Probe(nn.Module):
    """A classifier with everything that a mode matters for; notes the mode and grad mode of each forward."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm1d(features)
        self.body = nn.Sequential(nn.Linear(features, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(12, classes)
        self.grad_modes: list[bool] = []
        self.fail_at: int | None = None

    def forward(self, x):
        if self.fail_at == len(self.grad_modes):
            raise RuntimeError("the loader gave a broken batch")
        self.grad_modes.append(torch.is_grad_enabled())
        return self.head(self.body(self.frozen(x)))


def _probe(case: Any) -> tuple[_Probe, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model and batches, the last of which is smaller and far harder than the others."""
    features, classes = case.integer(5, 7), case.integer(3, 5)
    model = _Probe(features, classes).to(case.device)
    with torch.no_grad():
        model(case.tensor(64, features))  # running statistics that are not those of a new layer
    sizes = (*(7, 7, 7)[: 2 + case.index], 2)
    batches = []
    for size in sizes:
        x = case.tensor(size, features) * (1 if size > 2 else 6)
        batches.append((x, torch.from_numpy(case.rng.integers(0, classes, size)).to(case.device)))
    model.grad_modes.clear()
    return model, batches


class _Loader:
    """Counts how often it is read, and has a length as a DataLoader has."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches, self.read = batches, 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self.read += 1
        return iter(self._batches)


def _modes(model: nn.Module) -> list[bool]:
    return [m.training for m in model.modules()]


@exercise(
    section=SECTION,
    points=4,
    minutes=20,
    difficulty=2,
    hints=(
        "Four things can go wrong: the mode, the graph, the running statistics, and the last batch, which is smaller.",
        "eval() is for dropout and BatchNorm, no_grad() is for the graph: neither does the other's work.",
        "Keep {module: module.training} before; sum loss * len(labels) and divide by the number of images; put the "
        "modes back in a finally.",
    ),
)
def evaluate(answer, case, see):
    """Mean loss and accuracy of a model over a loader, leaving the model as it was."""
    model, batches = _probe(case)
    loader = _Loader(batches)
    model.train()
    model.frozen.eval()  # a frozen BatchNorm inside of a model in training, as in fine-tuning
    modes = _modes(model)
    before = copy.deepcopy(model.state_dict())
    result = answer(model, loader)
    see.form(
        result,
        why="Two plain numbers are asked: mean loss and accuracy.",
        fix="Return (loss, accuracy) as floats: call .item().",
    )
    loss, accuracy = result
    after = model.state_dict()
    with torch.no_grad():
        answer(model.eval(), loader)
    see(
        "running statistics",
        all(torch.equal(before[k], after[k]) for k in before),
        why="The model has changed: BatchNorm learns from each batch in training mode.",
        fix="Evaluation mode before the first batch; no_grad() does not protect it.",
    )
    see(
        "accuracy",
        accuracy,
        atol=1e-6,
        why="Right predictions over images, the model in evaluation mode.",
        fix="Count right ones and images over all batches; divide once.",
    )
    see(
        "mean loss",
        loss,
        atol=1e-4,
        rtol=1e-4,
        why="The last batch is smaller: in a mean of batch means it weighs too much.",
        fix="Weight each batch's loss by its number of images.",
    )
    see(
        "gradients switched off",
        not any(model.grad_modes[: len(batches)]),
        share=0.2,
        why="Gradients were on: every batch built a graph that nobody needs.",
        fix="Compute under torch.no_grad(); eval() does not switch gradients off.",
    )
    see(
        "still in evaluation mode",
        not any(m.training for m in model.modules()),
        share=0.2,
        why="The model came in evaluation mode and went out in another.",
        fix="Remember the mode; a train() at the end is a guess.",
    )
    model, batches = _probe(case)
    model.train()
    model.frozen.eval()
    answer(model, _Loader(batches))
    see(
        "training mode restored",
        [model.training, model.head.training],
        share=0.3,
        why="The model came in training mode, and training went on without dropout.",
        fix="Remember the mode on entry, and put it back at the end.",
    )
    see(
        "each module's own mode",
        _modes(model) == modes,
        share=0.15,
        why="A frozen BatchNorm was woken up: train() sets every module.",
        fix="Remember and restore .training of each module.",
    )
    model, batches = _probe(case)
    model.train()
    model.fail_at = 1
    attempt(answer, model, _Loader(batches))
    see(
        "mode after an error",
        model.training,
        share=0.15,
        why="A batch failed, and the model was left in evaluation mode.",
        fix="Restore the mode in a finally block, or in a context manager.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=1,
    hints=(
        "Two whole numbers are enough to remember. Which?",
        "argmax over the class axis; count the right ones; keep Python numbers, not tensors.",
        "update: self.right += int((logits.argmax(1) == labels).sum()); self.seen += len(labels).",
    ),
)
def RunningAccuracy(answer, case, see):
    """A metric that gathers batches: update, compute, reset."""
    classes = case.integer(3, 6)
    sizes = [*case.sizes(2, 5, 12), 1]
    metric, other = answer(), answer()

    def draw(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.from_numpy(case.rng.integers(0, classes, size)).to(case.device)
        # The small batches are easy and the large ones hard, so that a mean of means is far off.
        push = 5.0 if size == 1 else 0.7
        return case.tensor(size, classes) + push * F.one_hot(labels, classes), labels

    batches = [draw(size) for size in sizes]
    metric.update(*batches[0])
    alone = metric.compute()
    other.update(-batches[0][0], batches[0][1])  # all the other way round
    both = metric.compute()
    see.form(
        alone,
        why="A share of images: one plain number.",
        fix="Return a float: count with int(), divide once in compute().",
    )
    see(
        "two metrics at once",
        alone == both,
        why="Two metrics share their counts.",
        fix="Put the counts on self, not on the class.",
    )
    see(
        "after one batch",
        alone,
        atol=1e-6,
        why="Right predictions over images in this batch.",
        fix="argmax along the class axis: argmax(1), one class per image.",
    )
    for logits, labels in batches[1:]:
        metric.update(logits, labels)
    see(
        "after several batches",
        metric.compute(),
        atol=1e-6,
        why="Batches differ in size: a mean of their accuracies is another number.",
        fix="Add up right ones and images; divide only in compute().",
    )
    see(
        "compute twice",
        metric.compute(),
        atol=1e-6,
        why="Reading a metric must not change it.",
        fix="compute() only divides; reset() starts anew.",
    )
    logits = case.tensor(5, classes, requires_grad=True) * 1
    logits.sum().backward(retain_graph=True)
    metric.update(logits, batches[0][1].new_zeros(5))
    held = [v for v in vars(metric).values() if _holds_graph(v)] if hasattr(metric, "__dict__") else []
    see(
        "holds no graph",
        len(held),
        share=0.25,
        why="A tensor with a history keeps that history alive, batch after batch.",
        fix="Keep plain numbers: int(...) or .item().",
    )
    metric.reset()
    see(
        "reset, and nothing seen",
        metric.compute(),
        share=0.25,
        why="Of no images there is no accuracy: 0 / 0.",
        fix="Return float('nan') while nothing has been seen.",
    )
    metric.update(*batches[1])
    see(
        "after a reset",
        metric.compute(),
        atol=1e-6,
        why="reset() forgets everything that came before.",
        fix="Set both counts back to 0.",
    )


def _holds_graph(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_graph(v) for v in value)
    return isinstance(value, torch.Tensor) and value.requires_grad


# ------------------------------------------------------------------------------------------------ mixed precision
class _Overflow(torch.autograd.Function):
    """Identity whose gradient is infinite: an overflow injected into the graph, not into .grad."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")


class _TracedSGD(torch.optim.SGD):
    """Notes each step that is really made."""

    def step(self, closure=None):
        self.trace.append("optimizer.step")
        return super().step(closure)


class _TracedScaler(torch.amp.GradScaler):
    """Notes in which order it is called."""

    def scale(self, outputs):
        self.trace.append("scaler.scale")
        return super().scale(outputs)

    def unscale_(self, optimizer):
        self.trace.append("scaler.unscale_")
        super().unscale_(optimizer)

    def update(self, new_scale=None):
        self.trace.append("scaler.update")
        super().update(new_scale)


class _Run:
    """A small model in training, the same for every answer and on every device, with a trace of what is called."""

    def __init__(self, case: Any, seed: int, growth_interval: int = 3, scale: float = 1024.0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to(case.device)
        self.optimizer = _TracedSGD(self.model.parameters(), lr=0.5, momentum=0.5)
        self.scaler = _TracedScaler(case.device.type, init_scale=scale, growth_interval=growth_interval)
        self.trace = self.optimizer.trace = self.scaler.trace = []
        self.dtypes: list[torch.dtype] = []
        self.overflow = False
        self.model[-1].register_forward_hook(self._after_forward)

    def _after_forward(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        self.dtypes.append(output.dtype)
        self.trace.append("forward")
        return _Overflow.apply(output) if self.overflow else None

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().float().cpu().clone() for p in self.model.parameters()]

    def changed_since(self, weights: list[torch.Tensor]) -> bool:
        return any(not torch.equal(a, b) for a, b in zip(self.weights(), weights, strict=True))


def _amp_batch(case: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return case.tensor(size, 6), torch.from_numpy(case.rng.integers(0, 4, size)).to(case.device)


_HALF = {"cuda": torch.float16, "cpu": torch.bfloat16}
_SCALE_WHY = "The scale is halved by an overflow, and doubled after some good steps."


@exercise(
    section=SECTION,
    points=5,
    minutes=25,
    difficulty=2,
    hints=(
        "Five calls after the loss, each once: scale, unscale_, clip, step, update. Say what each of them expects.",
        "Clipping means the norm of the true gradients: unscale_ comes first. step skips what is not finite; update "
        "decides the next scale.",
        "with torch.autocast(images.device.type, dtype): logits and loss. zero_grad; scaler.scale(loss).backward(); "
        "scaler.unscale_(optimizer); clip_grad_norm_; scaler.step(optimizer); scaler.update().",
    ),
)
def amp_step(answer, case, see):
    """One training step in mixed precision: scale, unscale, clip, step, update."""
    images, labels = _amp_batch(case, case.integer(9, 15))
    # A small scale here: with a large one, gradients that were not reset are divided away at the next unscale_.
    run = _Run(case, seed=1, scale=2.0)
    loss = answer(run.model, run.optimizer, run.scaler, images, labels, 1e9)
    see.form(
        loss,
        name="type of the loss",
        why="For a log a plain number is asked; a tensor keeps its graph.",
        fix="Return loss.item().",
    )
    # The tolerances leave room for the rounding of float16 and bfloat16, on other processors, too.
    see(
        "loss",
        loss,
        atol=0.02,
        why="The loss of this batch, unscaled.",
        fix="Return the loss itself, not the scaled one.",
    )
    see(
        "forward pass in half precision",
        [dtype == _HALF[case.device.type] for dtype in run.dtypes[:1]],
        why="The layers ran in another dtype: autocast was off, or for another device.",
        fix="torch.autocast(images.device.type, dtype=...) around forward and loss.",
    )
    see(
        "dtype of the weights",
        [str(p.dtype) for p in run.model.parameters()],
        why="Autocast casts on the way; the weights themselves stay float32.",
        fix="No .half() and no .bfloat16() on the model.",
    )
    see(
        "weights, nothing clipped",
        run.weights(),
        atol=0.005,
        why="The optimizer saw other gradients than those of the loss.",
        fix="Scale the loss, and bring the gradients back before anything reads them.",
    )
    answer(run.model, run.optimizer, run.scaler, images, labels, 1e9)
    see(
        "weights after a second step",
        run.weights(),
        atol=0.01,
        why="The second step was not made with the gradients of its own batch alone.",
        fix="Set the gradients to None before backward adds to them.",
    )
    run = _Run(case, seed=2)
    before = run.weights()
    answer(run.model, run.optimizer, run.scaler, images, labels, 0.01)
    moved = torch.cat([(a - b).flatten() for a, b in zip(run.weights(), before, strict=True)]).norm().item()
    see(
        "length of a clipped step",
        moved,
        rtol=0.02,
        why="The gradients were not clipped at their true size.",
        fix="unscale_ first: the scaled norm is a thousand times the true one.",
    )
    run = _Run(case, seed=3)
    scales, changed = [], []
    for number in range(6):
        run.overflow = number == 2 + case.index
        weights = run.weights()
        answer(run.model, run.optimizer, run.scaler, images, labels, 1.0)
        scales.append(run.scaler.get_scale())
        changed.append(run.changed_since(weights))
    see(
        "steps around an overflow",
        changed,
        why="A step with infinite gradients must be skipped, and only that one.",
        fix="Let scaler.step(optimizer) decide; it looks for inf and NaN.",
    )
    see(
        "scale after each batch",
        scales,
        why=_SCALE_WHY,
        fix="Call scaler.update() once, at the end of every step.",
    )
    run = _Run(case, seed=4)
    run.model.train()
    answer(run.model, run.optimizer, run.scaler, images, labels, 1.0)
    see(
        "order of the calls",
        run.trace,
        why="One forward, then scale, unscale_, step, update: each once.",
        fix="Compare your order with the one that is expected.",
    )


@exercise(
    section=SECTION,
    points=4,
    minutes=25,
    difficulty=3,
    hints=(
        "What happens once per epoch, and what once per batch? Mode, step, schedule, sum of losses.",
        "A skipped step leaves the weights alone. Should the schedule go on? The scale tells you that it was skipped.",
        "before = scaler.get_scale(); loss = amp_step(...); if scaler.get_scale() >= before: scheduler.step().",
    ),
)
def train_epoch(answer, case, see):
    """One epoch in mixed precision: every batch one step, a schedule that waits for skipped steps, the mean loss."""
    # Four times the same images, and then two of them with wrong labels: a small batch with a loss of its own.
    images, labels = _amp_batch(case, 12)
    batches = [(images, labels)] * 4 + [(images[:2], (labels[:2] + 1) % 4)]
    hit = 1 + case.index

    def ready(seed: int, overflow: bool) -> tuple[_Run, Any, _Loader]:
        run = _Run(case, seed, growth_interval=2)
        scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=1, gamma=0.5)
        loader = _Loader(batches)
        modes.clear()

        def enter(module: nn.Module, args: Any) -> None:
            modes.append(module.training)
            run.overflow = overflow and len(modes) - 1 == hit
            rates.append(run.optimizer.param_groups[0]["lr"])

        run.model.register_forward_pre_hook(enter)
        return run, scheduler, loader

    modes: list[bool] = []
    rates: list[float] = []
    run, scheduler, loader = ready(seed=5, overflow=False)
    run.model.eval()  # as an evaluation before this epoch may have left it
    loss = answer(run.model, loader, run.optimizer, run.scaler, scheduler, 1.0)
    see.form(
        loss,
        name="type of the loss",
        why="The mean loss of the epoch: one plain number.",
        fix="Sum Python floats, and return a float.",
    )
    see(
        "batches",
        [len(modes), loader.read],
        why="Every batch of the loader is used once.",
        fix="One loop over the loader, to its end.",
    )
    see(
        "mode of each forward pass",
        list(modes),
        why="The model came in evaluation mode: dropout and BatchNorm did not train.",
        fix="Call model.train() at the beginning of the epoch.",
    )
    see(
        "learning rate of each batch",
        list(rates),
        atol=1e-9,
        why="The schedule counts batches here; only a skipped step is left out.",
        fix="scheduler.step() once after each batch, unless the scale has fallen.",
    )
    see(
        "mean loss",
        loss,
        atol=0.01,
        share=0.25,
        why="The last batch is smaller: in a mean of batch means it weighs too much.",
        fix="Weight each loss by its number of images, and divide by all images.",
    )
    see(
        "weights after the epoch",
        run.weights(),
        atol=0.02,
        why="Each batch is one full step of mixed precision.",
        fix="Use your amp_step, once per batch.",
    )
    rates.clear()
    run, scheduler, loader = ready(seed=6, overflow=True)
    answer(run.model, loader, run.optimizer, run.scaler, scheduler, 1.0)
    see(
        "scale after an overflow",
        run.scaler.get_scale(),
        why=_SCALE_WHY,
        fix="update() once per batch; no inf may stay in .grad.",
    )
    see(
        "rates around an overflow",
        list(rates),
        atol=1e-9,
        share=0.25,
        why="A step was skipped, and the schedule went on without it.",
        fix="Step the schedule only where the scale has not become smaller.",
    )


# ------------------------------------------------------------------------------------------------ checkpoints
class _Job:
    """A training run with everything that has a state: dropout, momentum, a schedule, a scaler, three generators."""

    def __init__(self, case: Any, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
        self.model.to(case.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.3)
        self.scaler = torch.amp.GradScaler(case.device.type, init_scale=64.0, growth_interval=3)
        self.device = case.device
        self.epoch = 0

    def parts(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("model", "optimizer", "scheduler", "scaler")}

    def train(self, epochs: int) -> None:
        """Epochs of two batches, whose data come from all three global generators."""
        for _ in range(epochs):
            for _ in range(2):
                x = torch.randn(7, 6).to(self.device) + float(np.random.randn()) + random.gauss(0, 1)
                y = torch.from_numpy(np.random.randint(0, 3, 7)).to(self.device)
                self.optimizer.zero_grad()
                self.scaler.scale(F.cross_entropy(self.model(x), y)).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
            self.epoch += 1

    def state(self, part: str) -> Any:
        return copy.deepcopy(getattr(self, part).state_dict())


def _same_state(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_state(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same_state, a, b))
    return a == b


class _Unwritable:
    """A part whose state cannot be pickled: saving it fails after the file was begun."""

    def __reduce__(self) -> Any:
        raise OSError("no space left on device")

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": torch.zeros(50_000), "broken": _Unwritable()}

    def load_state_dict(self, state: Any) -> None:
        pass


@contextmanager
def _scrambled(seed: int) -> Iterator[None]:
    """What a new process is like: every generator somewhere else."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    yield


@exercise(
    section=SECTION,
    points=6,
    minutes=35,
    difficulty=3,
    hints=(
        "List everything that will have another value tomorrow: four parts have a state_dict. What else is random?",
        "random.getstate(), np.random.get_state(), torch.get_rng_state(). And write beside the file first: os.replace "
        "puts a whole file in the place of the old one, at once.",
        "weights_only=True loads tensors, numbers, texts, lists, tuples, dictionaries; NumPy's state holds an array: "
        "torch.from_numpy on the way out, .numpy() on the way in. Save to path + '.tmp', then os.replace.",
    ),
)
def Checkpoint(answer, case, see):
    """Save a training run in one file and go on from it bit by bit as if it had never been broken."""
    seed = case.integer(1, 10_000)
    epochs = case.integer(2, 3)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        given = str(path) if case.index else path
        job = _Job(case, seed)
        checkpoint = answer(**job.parts())
        job.train(epochs)
        checkpoint.save(given, job.epoch)
        saved = {part: job.state(part) for part in job.parts()}
        draws = random.random(), np.random.rand(), torch.rand(3)
        # Two runs go on from here: this one, from where it was saved; the draws above do not belong to it.
        listed = sorted(p.name for p in Path(folder).iterdir())
        see(
            "files after saving",
            listed,
            why="One checkpoint is one file, under the name that was asked for.",
            fix="Replace the temporary file onto the path: nothing may be left beside it.",
        )
        loaded = attempt(torch.load, path, weights_only=True)
        with _scrambled(seed + 1):
            other = _Job(case, seed + 2)
            epoch = answer(**other.parts()).resume(given)
        redrawn = random.random(), np.random.rand(), torch.rand(3)
        see.form(
            epoch,
            name="what resume returns",
            why="resume returns the epoch that was saved.",
            fix="Save epoch, return it.",
        )
        see("epoch", epoch, why="resume returns the epoch that was saved.", fix="Save epoch beside the states.")
        advice = {
            "model": (None, "The weights or the running statistics are not those saved."),
            "optimizer": (None, "The optimizer's running means are lost: its first steps are wrong."),
            "scheduler": (0.1, "The schedule starts anew: the learning rate jumps."),
            "scaler": (0.15, "The scaler starts at its first scale, and counts its good steps anew."),
        }
        for part, (share, why) in advice.items():
            see(
                f"state of the {part}",
                _same_state(other.state(part), saved[part]),
                share=share,
                why=why,
                fix="Save its whole state_dict(), and load it into the part that was given.",
            )
        names = ("Python", "NumPy", "torch")
        for name, a, b in zip(names, draws, redrawn, strict=True):
            see(
                f"random numbers of {name}",
                _same_state(a, b),
                share=0.1,
                why="Dropout, shuffling and augmentation go on with other numbers.",
                fix=f"Save the state of {name}'s generator, and set it when resuming.",
            )
        see(
            "plain data alone",
            not loaded.raised,
            share=0.1,
            why="torch.load(weights_only=True) refuses it: not everything is plain data.",
            fix="Save state_dicts, tensors, numbers, lists; no model, no NumPy array.",
        )
        see("three more epochs", _unbroken(answer, case, seed, epochs, given), share=0.1, **_UNBROKEN)

        broken = answer(**{**other.parts(), "model": _Unwritable()})
        failed = attempt(broken.save, given, 99)
        see(
            "a failed save raises",
            failed.raised,
            share=0.1,
            why="The save failed and nobody was told.",
            fix="Let the exception out; clean up in a finally.",
        )
        survivor = _Job(case, seed + 3)
        again = attempt(answer(**survivor.parts()).resume, given)
        see(
            "the old file after a failed save",
            again.value if not again.raised else "unreadable",
            share=0.15,
            why="The old file was opened for writing before the new one was whole.",
            fix="Write to a file beside it, then os.replace(temporary, path).",
        )


_UNBROKEN = {
    "why": "Resumed and unbroken run part ways: some state was not put back.",
    "fix": "Look which of the states above differs; resume must restore all of them.",
}


def _unbroken(answer: Any, case: Any, seed: int, epochs: int, path: Any) -> bool:
    """Is a resumed run the unbroken one, bit by bit? Both of the answer's own parts."""
    with _scrambled(seed):
        whole = _Job(case, seed)
        whole.train(epochs)
        answer(**whole.parts()).save(path, epochs)
        whole.train(3)
    with _scrambled(seed + 5):
        resumed = _Job(case, seed + 6)
        answer(**resumed.parts()).resume(path)
        resumed.train(3)
    return all(_same_state(whole.state(part), resumed.state(part)) for part in whole.parts())


# ------------------------------------------------------------------------------------------------ looking inside
@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=2,
    cases=1,
    hints=(
        "Three lines break the graph: what does each of them need that only Python can see?",
        "A condition on a tensor's value can become arithmetic: torch.where, clamp, minimum, maximum.",
        "x * (limit / norm.clamp(min=limit)) scales only where norm is larger. item() can go: a 0-dim tensor broadcasts.",
    ),
)
def without_graph_breaks(answer, case, see):
    """The same function as with_breaks, in one graph."""
    rows, columns = case.sizes(2, 3, 8)
    x = case.tensor(rows, columns)
    x = x / x.norm()
    limit = 1.5
    kinds = {"small": 0.7 * x, "large": 4 * x, "zero": 0 * x, "just at the limit": limit * x}
    first = answer(kinds["small"], limit)
    see.form(first, why="A tensor of the input's shape is asked.", fix="Return the scaled tensor, plus the mean.")
    for kind, value in kinds.items():
        see(
            f"values, {kind}",
            answer(value.clone(), limit),
            atol=1e-5,
            why="The two branches must give what they gave before.",
            fix="Compare with with_breaks on a small, a large and a zero input.",
        )
    kept = kinds["large"].clone()
    answer(kept, limit)
    see(
        "input left as it was",
        torch.equal(kept, kinds["large"]),
        share=0.25,
        why="x was changed in place.",
        fix="Out of place: x = x * factor.",
    )
    for kind in ("small", "large"):
        value = kinds[kind].clone().requires_grad_()
        see(
            f"gradient, {kind}",
            torch.autograd.grad(answer(value, limit).square().sum(), value)[0],
            atol=1e-4,
            why="The gradient differs from that of with_breaks.",
            fix="The factor and the mean are numbers there: no gradient flows into them.",
        )
    value = kinds["zero"].clone().requires_grad_()
    see(
        "gradient, zero",
        torch.autograd.grad(answer(value, limit).square().sum(), value)[0],
        atol=1e-4,
        share=0.25,
        why="torch.where lets gradients into both branches, and 0 * inf is NaN.",
        fix="Keep the division finite in both: clamp(min=...) before it.",
    )
    counted = count_graphs(answer, *((value, limit) for value in kinds.values()), dynamic=False)
    see(
        "graphs",
        len(counted.graphs),
        why="More than one: a break. None: the compiler was told to stay away.",
        fix="Look for print, item() and if: each needs a number in Python.",
    )
    see(
        "work is inside of the graph",
        all(n >= 4 for n in counted.operations),
        why="The graph is nearly empty: the work is done outside of it.",
        fix="Keep the whole computation in tensors.",
    )


@exercise(
    section=SECTION,
    points=3,
    minutes=15,
    difficulty=2,
    hints=(
        "A node of an fx graph knows who uses its result: node.users.",
        "A node whose only user is itself unused is work for nothing as well. In which order do you find these in one go?",
        "Walk graph.nodes backwards and keep a set: a call is unused if all of its users are in the set.",
    ),
)
def unused_nodes(answer, case, see):
    """The names of the calls in an fx graph whose results are never used, not even indirectly."""
    depth = case.integer(2, 4)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.forgotten = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, mask):
            lost = self.forgotten(x)
            for _ in range(depth):
                lost = torch.relu(lost)
            kept = self.used(x)
            kept.detach()
            both = torch.cat([kept, kept.clone()])
            split = kept.chunk(2)
            return both * split[0].mean()

    class Clean(nn.Module):
        def forward(self, x):
            return torch.relu(x) + x.t().t()

    class Two(nn.Module):
        def forward(self, x):
            y = x + 1
            z = y * 2
            y.sum()
            w = z.sum()
            w.exp()
            return {"y": y, "z": [z]}

    graphs = {
        "a forgotten branch": torch.fx.symbolic_trace(Model()),
        "nothing unused": torch.fx.symbolic_trace(Clean()),
        "several results": torch.fx.symbolic_trace(Two()),
    }
    before = {kind: str(graph.graph) for kind, graph in graphs.items()}
    nodes = list(graphs["a forgotten branch"].graph.nodes)
    direct = [n.name for n in nodes if not n.users and n.op != "output"]
    found = {kind: answer(graph) for kind, graph in graphs.items()}
    see.form(
        "list of text"
        if all(isinstance(f, list) and all(isinstance(n, str) for n in f) for f in found.values())
        else found["a forgotten branch"],
        why="A list of names is asked, node.name of each.",
        fix="Return [node.name, ...], not the nodes.",
    )
    see(
        "calls that nobody reads",
        sorted(set(direct) & set(found["a forgotten branch"]) - {"mask"}),
        why="A result without a reader is work for nothing.",
        fix="Look at node.users: it is empty for such a node.",
    )
    see(
        "inputs and the output",
        sorted({"mask", "x", "output"} & set(found["a forgotten branch"])),
        why="An input is no work, and the output is what all is done for.",
        fix="Leave out nodes whose op is placeholder or output.",
    )
    see(
        "calls read by unused ones",
        sorted(set(found["a forgotten branch"]) - set(direct) - {"mask"}),
        share=0.3,
        why="Whatever feeds only unused results is unused as well.",
        fix="Walk the nodes backwards: users come before what they use.",
    )
    for kind in ("nothing unused", "several results"):
        see(
            kind,
            sorted(found[kind]),
            share=0.15,
            why="What the output holds is used, also inside of a list or a dictionary.",
            fix="node.users knows these uses, too.",
        )
    see(
        "in the order of the graph",
        found["a forgotten branch"] == [n.name for n in nodes if n.name in found["a forgotten branch"]],
        share=0.15,
        why="The names are asked in the order in which the graph runs.",
        fix="A walk backwards finds them in reverse: turn the list round.",
    )
    see(
        "graph left as it was",
        all(str(graph.graph) == before[kind] for kind, graph in graphs.items()),
        share=0.25,
        why="The graph has lost nodes: it was to be read, not to be cleaned.",
        fix="Only read; or work on copy.deepcopy(graph_module).",
    )


def _copies(function: Any, *args: Any, least: int) -> int:
    """How many copies of at least so many elements a call makes: the profiler's rows ``copy_``, by their shapes."""
    # The profiler writes notes to file descriptor 2; the learner need not see them.
    with guard(), torch.autograd.profiler.profile(record_shapes=True) as profile:
        function(*args)
    shapes = [event.input_shapes[0] for event in profile.function_events if event.name == "aten::copy_"]
    return sum(math.prod(shape) >= least for shape in shapes)


@exercise(
    section=SECTION,
    points=3,
    minutes=20,
    difficulty=2,
    hints=(
        "operators(wasteful_pipeline, ...) lists what runs. Every copy_ moves all of its pixels once: how many are needed?",
        "Cut first, then convert: slices and permute cost nothing. One call can change layout and dtype together.",
        "out = images[:, top:top + size, left:left + size].permute(0, 3, 1, 2).to(torch.float32, "
        "memory_format=torch.contiguous_format), and then sub_ and div_ in place.",
    ),
)
def lean_pipeline(answer, case, see):
    """The same batch as wasteful_pipeline, without its hidden copies."""
    height, width = case.sizes(2, 36, 48)
    count, size = case.integer(5, 8), case.integer(19, 25)
    images = case.tensor(count, height, width, 3, dtype=torch.uint8)
    top, left = case.integer(0, height - size), case.integer(0, width - size)
    mean, std = case.tensor(3).abs() + 0.3, case.tensor(3).abs() + 0.2
    before = images.clone(), mean.clone(), std.clone()
    arguments = (images, top, left, size, mean, std)
    result = answer(*arguments)
    see.form(
        result,
        why="The model takes (N, 3, size, size) float32.",
        fix="Cut, permute to (N, 3, H, W), convert, normalise.",
    )
    see(
        "values",
        result,
        atol=1e-4,
        rtol=1e-4,
        why="The numbers differ from those of wasteful_pipeline.",
        fix="(pixel / 255 - mean) / std, channel by channel.",
        clues=["scaled_by_255", "axes_swapped", "same_numbers_other_places"],
    )
    see(
        "inputs left as they were",
        all(torch.equal(a, b) for a, b in zip((images, mean, std), before, strict=True)),
        why="The caller's images, mean or std were changed in place.",
        fix="In place only on the tensor that you have made yourself.",
    )
    see(
        "result is contiguous",
        result.is_contiguous(),
        share=0.25,
        why="wasteful_pipeline gives a contiguous batch; this one is a permuted view.",
        fix="memory_format=torch.contiguous_format in the one copy that you make.",
    )
    see(
        "copies",
        _copies(answer, *arguments, least=count * size * size),  # 3 numbers converted on the way are no matter
        at_most=True,
        share=0.4,
        why="More than one pass copies pixels: see copy_ in the profiler's rows.",
        fix="One .to() can change dtype and layout together; clone() is not needed.",
    )
    with see.memory() as used:
        answer(*arguments)
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=0.3,
        allowance=4_096,
        share=0.3,
        why="Beside the result, another tensor of its size was alive.",
        fix="Cut before you convert, and normalise in place: sub_, div_, mul_.",
    )


# ------------------------------------------------------------------------------------------------ the capstone
PASSES = 12
# Accuracy on drawn images, on photographs, and the share of the points.
STEPS = ((0.22, 0.18, None), (0.42, 0.31, 0.2), (0.56, 0.40, 0.2), (0.68, 0.47, 0.2), (0.76, 0.53, 0.2))


def _planes(images: np.ndarray, device: torch.device) -> torch.Tensor:
    """(N, 32, 32, 3) uint8 -> (N, 3, 32, 32) uint8."""
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).contiguous().to(device)


@exercise(
    section=SECTION,
    points=10,
    minutes=90,
    difficulty=3,
    cases=1,
    seconds=240,
    hints=(
        "First a plain recipe that runs: a small convolutional net, SGD with momentum, batches of 50, flips. Note its "
        "accuracy on images that you held back, then change one thing at a time.",
        "With few passes the learning rate matters most: warm up, then let it fall to 0 at the last step "
        "(OneCycleLR). BatchNorm in every layer, momentum 0.9, weight decay.",
        "Then: random crops of the padded image, flips, label smoothing, a frozen whitening layer in front, averaging "
        "the logits of an image and its mirror image when predicting.",
    ),
)
def train_cifar_mini(answer, case, see):
    """Your own recipe: train on labelled images within a budget of passes, and predict images that you have not seen."""
    public = case.seed == public_seed("train_cifar_mini")
    train = load_unlabelled("train")
    # While learning, the last fifth of the training images is held back; when grading, the test images are asked,
    # whose labels this process never reads.
    part = f"[:{len(train) * 4 // 5}]" if public else ""
    labels = torch.from_numpy(true_labels(f"train{part}")).to(case.device)
    unseen = train[len(labels) :] if public else load_unlabelled("test")
    images = CountedImages(_planes(train[: len(labels)], case.device), PASSES)
    steps: Counter[int] = Counter()
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.update([id(optimizer)]))
    try:
        predict = answer(images, labels.clone(), PASSES)
    finally:
        hook.remove()
    if not callable(predict):
        see.form(
            predict,
            name="what comes back",
            why="Something that predicts is asked: images in, class numbers out.",
            fix="Return a function predict(images), with the model inside of it.",
        )
        return
    see.form(
        "something to call",
        name="what comes back",
        why="Something that predicts is asked: images in, class numbers out.",
        fix="Return a function predict(images), with the model inside of it.",
    )
    see(
        "each step has its own batch",
        max(steps.values(), default=0) <= images.reads,
        why="An optimizer made more steps than batches were read: copies were reused.",
        fix="Read images[index] anew for each step; that is what the budget counts.",
    )
    unseen_images = _planes(unseen, case.device)
    with torch.no_grad():
        predictions = predict(unseen_images)
        alone = predict(unseen_images[:3])
    see.form(
        predictions,
        name="predictions",
        why="One class number per image: (M,) int64.",
        fix="argmax(1) of the logits.",
    )
    see(
        "each image predicted alone",
        bool(torch.equal(alone, predictions[:3])),
        share=0.1,
        why="Three images alone got other classes than among many: training mode?",
        fix="model.eval() before you predict.",
    )
    asked = f"train[{len(labels)}:]" if public else "test"
    see.score(
        "better than guessing",
        predictions.cpu(),
        labels=asked,
        steps=STEPS[:1],
        why="A linear function of the pixels does better than this.",
        fix="Are images and labels in one order, and scaled alike in both places?",
    )
    see.score(
        "accuracy",
        predictions.cpu(),
        labels=asked,
        steps=STEPS[1:],
        why="The recipe can do better: look at what each of its parts is worth.",
        fix="Change one thing at a time, and judge it on images that you held back.",
    )
