"""Right and wrong answers to the exercises of section 5, resnet_mini_amp."""

from __future__ import annotations

import copy
import functools
import math
import os
import random
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from grading.bank import Kind, right, wrong


# -------------------------------------------------------------------------------------------- conv_output_size
@right("conv_output_size")
def counts_the_starts(size, kernel, stride=1, padding=0, dilation=1):
    covered = (kernel - 1) * dilation + 1
    starts = range(0, size + 2 * padding - covered + 1, stride)
    if len(starts) == 0:
        raise ValueError("no room")
    return len(starts)


@right("conv_output_size")
def floor_of_the_quotient(size, kernel, stride=1, padding=0, dilation=1):
    out = math.floor((size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1)
    if out < 1:
        raise ValueError(f"{out} is no size")
    return out


@wrong("conv_output_size", fails="stride 1, no padding", says="too small")
def forgets_the_plus_one(size, kernel, stride=1, padding=0, dilation=1):
    """Counts the steps between the positions, not the positions."""
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        raise ValueError
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride


@wrong("conv_output_size", fails="padding", says="twice")
def pads_one_side(size, kernel, stride=1, padding=0, dilation=1):
    """Takes padding for the sum of both sides."""
    if size + padding < dilation * (kernel - 1) + 1:
        raise ValueError
    return (size + padding - dilation * (kernel - 1) - 1) // stride + 1


@wrong("conv_output_size", fails="stride", says="sticks out")
def rounds_up(size, kernel, stride=1, padding=0, dilation=1):
    """Lets the last window stick out, as some pooling layers do."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if room < 0:
        raise ValueError
    return math.ceil(room / stride) + 1


@wrong("conv_output_size", fails="dilation", says="gap")
def dilates_the_whole_kernel(size, kernel, stride=1, padding=0, dilation=1):
    """Takes a dilated kernel for one of dilation * kernel pixels."""
    if size + 2 * padding < dilation * kernel:
        raise ValueError
    return (size + 2 * padding - dilation * kernel) // stride + 1


@wrong("conv_output_size", fails="type of the result", kind=Kind.WRONG_FORM)
def divides_with_a_slash(size, kernel, stride=1, padding=0, dilation=1):
    """A size of 30.0."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1


@wrong("conv_output_size", fails="window larger than the row", says="ValueError", kind=Kind.PARTLY)
def never_refuses(size, kernel, stride=1, padding=0, dilation=1):
    """The formula alone: a size of 0 or less comes out."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@wrong("conv_output_size", fails="window as large as the row", says="exactly once")
def refuses_too_early(size, kernel, stride=1, padding=0, dilation=1):
    """Refuses a kernel as large as the padded row."""
    if size + 2 * padding <= dilation * (kernel - 1) + 1:
        raise ValueError
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


# ---------------------------------------------------------------------------------- transposed_output_padding
@right("transposed_output_padding")
def what_is_missing(size, kernel, stride, padding, dilation=1):
    small = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    back = (small - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
    return size - back


@right("transposed_output_padding")
def asks_the_layers(size, kernel, stride, padding, dilation=1):
    x = torch.empty(1, 1, size)
    small = nn.Conv1d(1, 1, kernel, stride, padding, dilation)(x)
    back = nn.ConvTranspose1d(1, 1, kernel, stride, padding, dilation=dilation)(small)
    return x.shape[-1] - back.shape[-1]


@wrong("transposed_output_padding", fails="one stride, sizes in a row", says="7 and 8")
def always_stride_minus_one(size, kernel, stride, padding, dilation=1):
    """The rule that tutorials give for even sizes."""
    return stride - 1


@wrong("transposed_output_padding", fails="one stride, sizes in a row", says="Sizes that become equal")
def always_zero(size, kernel, stride, padding, dilation=1):
    """Believes that a transposed convolution undoes the size by itself."""
    return 0


@wrong("transposed_output_padding", fails="other kernels and paddings", says="remainder")
def remainder_of_the_size(size, kernel, stride, padding, dilation=1):
    """The remainder of the size alone: right for some kernels."""
    return (size - 1) % stride


@wrong("transposed_output_padding", fails="dilation", says="dilated kernel", kind=Kind.PARTLY)
def forgets_dilation(size, kernel, stride, padding, dilation=1):
    """The width of the kernel without its gaps."""
    return (size + 2 * padding - kernel) % stride


@wrong("transposed_output_padding", fails="one stride, sizes in a row")
def other_way_round(size, kernel, stride, padding, dilation=1):
    """Subtracts in the wrong direction."""
    return -(size + 2 * padding - dilation * (kernel - 1) - 1) % stride


@wrong("transposed_output_padding", fails="type of the result", kind=Kind.WRONG_FORM)
def half_pixels(size, kernel, stride, padding, dilation=1):
    """Divides where it should take the remainder."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride % 1 * stride


# --------------------------------------------------------------------------------------------------- BasicBlock
class _Block(nn.Module):
    """A right block, to be spoilt in one place."""

    bias = False

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=self.bias)
        self.first_norm = nn.BatchNorm2d(out_channels)
        self.second = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=self.bias)
        self.second_norm = nn.BatchNorm2d(out_channels)
        self.project = None
        if self.must_project(in_channels, out_channels, stride):
            self.project = self.projection(in_channels, out_channels, stride)

    def must_project(self, in_channels, out_channels, stride):
        return stride != 1 or in_channels != out_channels

    def projection(self, in_channels, out_channels, stride):
        return nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, stride, bias=self.bias), nn.BatchNorm2d(out_channels)
        )

    def side(self, x):
        return x if self.project is None else self.project(x)

    def main(self, x):
        return self.second_norm(self.second(F.relu(self.first_norm(self.first(x)))))

    def forward(self, x):
        return F.relu(self.main(x) + self.side(x))


@right("BasicBlock", factory=True)
def none_as_shortcut():
    return _Block


@right("BasicBlock")
class SequentialAndInPlaceWhereItIsSafe(nn.Module):
    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.shortcut = nn.Sequential()
        if in_channels != out_channels or stride > 1:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))
        self.relu = nn.ReLU(inplace=True)
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            self.relu,
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding="same", bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x):
        out = self.body(x)
        out += self.shortcut(x)
        return self.relu(out)


@wrong("BasicBlock", fails="values in training, same shape", says="ReLU", factory=True)
def relu_before_the_sum():
    """Both paths end in a ReLU, and the sum in none."""

    class Block(_Block):
        def forward(self, x):
            return F.relu(self.main(x)) + self.side(x)

    return Block


@wrong("BasicBlock", fails="values in training, same shape", says="negative numbers", factory=True)
def no_relu_after_the_sum():
    """The block as in a pre-activation network."""

    class Block(_Block):
        def forward(self, x):
            return self.main(x) + self.side(x)

    return Block


@wrong("BasicBlock", fails="values in training, same shape", says="two paths", factory=True)
def no_relu_in_the_middle():
    """Two convolutions in a row, nothing between them but BatchNorm."""

    class Block(_Block):
        def main(self, x):
            return self.second_norm(self.second(self.first_norm(self.first(x))))

    return Block


@wrong("BasicBlock", kind=Kind.CRASHED, says="broadcast", factory=True)
def projects_for_channels_only():
    """A stride changes the shape as well."""

    class Block(_Block):
        def must_project(self, in_channels, out_channels, stride):
            return in_channels != out_channels

    return Block


@wrong("BasicBlock", fails="weights, same shape", says="1x1", factory=True)
def projects_always():
    """A projection where the input could be added as it is."""

    class Block(_Block):
        def must_project(self, in_channels, out_channels, stride):
            return True

    return Block


@wrong("BasicBlock", fails="values in training, more channels", says="shortcut", factory=True)
def projection_without_norm():
    """The 1x1 convolution alone."""

    class Block(_Block):
        def projection(self, in_channels, out_channels, stride):
            return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    return Block


@wrong("BasicBlock", fails="trainable numbers", says="bias=False", kind=Kind.WASTEFUL, factory=True)
def biases_before_batchnorm():
    """Biases that BatchNorm takes away again."""

    class Block(_Block):
        bias = True

    return Block


@wrong("BasicBlock", fails="input left as it was, same shape", says="in place", factory=True)
def sums_into_its_input():
    """x += y saves a tensor, and changes the caller's."""

    class Block(_Block):
        def forward(self, x):
            y = self.main(x)
            x = self.side(x)
            x += y
            return F.relu(x)

    return Block


@wrong("BasicBlock", kind=Kind.CRASHED, says="super", factory=True)
def forgot_super_init():
    """Modules before super().__init__()."""

    class Block(nn.Module):
        def __init__(self, in_channels, out_channels, stride=1):
            self.conv = nn.Conv2d(in_channels, out_channels, 3, stride, 1)

    return Block


@wrong("BasicBlock", fails="values in evaluation, same shape", says="running statistics", factory=True)
def batch_statistics_for_ever():
    """BatchNorm without running statistics."""

    class Block(_Block):
        def __init__(self, *args):
            super().__init__(*args)
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.track_running_stats, module.running_mean, module.running_var = False, None, None

    return Block


# ------------------------------------------------------------------------------------------------- ResNet18Mini
class BasicBlock(_Block):
    """The name counts: the exercise asks for the learner's own."""


class _Net(nn.Module):
    """A right model, to be spoilt in one place."""

    stem_stride, stem_bias = 2, False

    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=self.stem_stride, padding=3, bias=self.stem_bias)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = self.stage(64, 64, 1)
        self.layer2 = self.stage(64, 128, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(128, classes)

    def stage(self, in_channels, out_channels, stride):
        return nn.Sequential(BasicBlock(in_channels, out_channels, stride), BasicBlock(out_channels, out_channels, 1))

    def features(self, x):
        return self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.features(x)), 1))


@right("ResNet18Mini", factory=True)
def layers_as_in_torchvision():
    return _Net


@right("ResNet18Mini", factory=True)
def one_long_sequence():
    def ResNet(classes=10):
        return nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            *(BasicBlock(*a) for a in ((64, 64), (64, 64), (64, 128, 2), (128, 128))),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, classes),
        )

    return ResNet


@wrong("ResNet18Mini", fails="values in training", says="max-pool", factory=True)
def pools_after_the_stem():
    """The max-pool of the ResNet for large images."""

    class Net(_Net):
        def features(self, x):
            x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
            return self.layer2(self.layer1(x))

    return Net


@wrong("ResNet18Mini", fails="convolutions", says="stride", factory=True)
def stride_in_the_first_stage():
    """Every stage halves the image, the first one, too."""

    class Net(_Net):
        def stage(self, in_channels, out_channels, stride):
            return super().stage(in_channels, out_channels, 2)

    return Net


@wrong("ResNet18Mini", fails="convolutions", says="channels and strides", factory=True)
def the_stem_of_cifar_recipes():
    """A 3x3 stem with stride 1."""

    class Net(_Net):
        def __init__(self, classes=10):
            super().__init__(classes)
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)

    return Net


@wrong("ResNet18Mini", fails="parameters for 10 classes", says="bias", factory=True)
def bias_in_the_stem():
    """64 numbers that BatchNorm takes away again."""

    class Net(_Net):
        stem_bias = True

    return Net


@wrong("ResNet18Mini", fails="one image", says="squeeze", kind=Kind.PARTLY, factory=True)
def squeezes():
    """squeeze() drops every axis of length 1."""

    class Net(_Net):
        def forward(self, x):
            return self.fc(self.avgpool(self.features(x)).squeeze())

    return Net


@wrong("ResNet18Mini", fails="images of another size", says="fixed size", kind=Kind.PARTLY, factory=True)
def pools_a_fixed_window():
    """avg_pool2d(8) is right for 32 x 32 images only."""

    class Net(_Net):
        def forward(self, x):
            pooled = F.avg_pool2d(self.features(x), 8)
            return self.fc(pooled[:, :, 0, 0] if pooled.shape[-1] == 1 else pooled.flatten(1)[:, :128])

    return Net


@wrong("ResNet18Mini", fails="values in training", says="ReLU", factory=True)
def no_relu_in_the_stem():
    """The stem ends with BatchNorm."""

    class Net(_Net):
        def features(self, x):
            return self.layer2(self.layer1(self.bn1(self.conv1(x))))

    return Net


@wrong("ResNet18Mini", fails="type of the result", says="classes", kind=Kind.WRONG_FORM, factory=True)
def ten_classes_whatever_is_asked():
    """The parameter is ignored."""

    class Net(_Net):
        def __init__(self, classes=10):
            super().__init__(10)

    return Net


# ------------------------------------------------------------------------------------------------------ expects
def _guard(shape, dtype, args, name="function"):
    x = [a for a in args if torch.is_tensor(a)][0]
    if x.ndim != len(shape):
        raise ValueError(f"{name}: {len(shape)} axes expected {shape}, not {tuple(x.shape)}")
    sizes = {}
    for n, s in zip(x.shape, shape):
        if isinstance(s, str):
            s = sizes.setdefault(s, n)
        if s is not None and s != n:
            raise ValueError(f"{name}: expected {shape}, got {tuple(x.shape)}")
    if dtype is not None and x.dtype is not dtype:
        raise TypeError(f"{name}: expected {dtype}, got {x.dtype}")


@right("expects")
def guard_in_a_helper(*shape, dtype=None, debug=True):
    def wrap(f):
        def g(*args, **kwargs):
            _guard(shape, dtype, args, f.__name__)
            return f(*args, **kwargs)

        g.__name__, g.__doc__ = f.__name__, f.__doc__
        return g

    return wrap if debug else lambda f: f


@right("expects")
class ADecoratorClass:
    def __init__(self, *shape, dtype=None, debug=True):
        self.shape, self.dtype, self.debug = shape, dtype, debug

    def __call__(self, f):
        if not self.debug:
            return f

        @functools.wraps(f)
        def inner(*a, **k):
            _guard(self.shape, self.dtype, a)
            return f(*a, **k)

        return inner


def _expects(check=_guard, wraps=functools.wraps, off=None):
    """`expects` with one part exchanged."""

    def expects(*shape, dtype=None, debug=True):
        def wrap(f):
            if not debug and off is None:
                return f

            @wraps(f)
            def inner(*args, **kwargs):
                if debug:
                    check(shape, dtype, args)
                return f(*args, **kwargs)

            return inner

        return wrap

    return expects


@wrong("expects", fails="costs nothing when off", says="still a call", kind=Kind.PARTLY, factory=True)
def looks_at_the_switch_in_every_call():
    """The switch is read in the wrapper, call after call."""
    return _expects(off="in the wrapper")


@wrong("expects", fails="name and docstring", says="functools.wraps", kind=Kind.PARTLY, factory=True)
def loses_the_name():
    """A wrapper without functools.wraps."""
    return _expects(wraps=lambda f: lambda g: g)


@wrong("expects", fails="the number of axes", says="zip", factory=True)
def zips_to_the_shorter():
    """zip ends with the shorter of the two."""

    def check(shape, dtype, args):
        x = next(a for a in args if torch.is_tensor(a))
        _guard(shape[: x.dim()] if x.dim() < len(shape) else shape + (None,) * (x.dim() - len(shape)), dtype, args)

    return _expects(check)


@wrong("expects", fails="names", says="Equal names", factory=True)
def names_fit_everything():
    """Takes a name for another way to write None."""

    def check(shape, dtype, args):
        _guard(tuple(None if isinstance(s, str) else s for s in shape), dtype, args)

    return _expects(check)


@wrong("expects", fails="names are forgotten between calls", says="next call", factory=True)
def remembers_names_for_ever():
    """The dictionary of names is made when decorating."""

    def expects(*shape, dtype=None, debug=True):
        sizes = {}

        def wrap(f):
            if not debug:
                return f

            @functools.wraps(f)
            def inner(*args, **kwargs):
                _guard(shape, dtype, args)
                x = next(a for a in args if torch.is_tensor(a))
                for n, s in zip(x.shape, shape):
                    if isinstance(s, str) and sizes.setdefault(s, n) != n:
                        raise ValueError(f"{s} was {sizes[s]}: {shape}, {tuple(x.shape)}")
                return f(*args, **kwargs)

            return inner

        return wrap

    return expects


@wrong("expects", fails="on a method", says="self", kind=Kind.PARTLY, factory=True)
def takes_the_first_argument():
    """args[0] is self in a method."""

    def check(shape, dtype, args):
        args[0].shape  # noqa: B018
        _guard(shape, dtype, args)

    return _expects(check)


@wrong("expects", fails="dtype", says="TypeError", factory=True)
def asserts_the_dtype():
    """An assert says the same, with another exception, and vanishes under -O."""

    def check(shape, dtype, args):
        _guard(shape, None, args)
        x = next(a for a in args if torch.is_tensor(a))
        assert dtype is None or x.dtype == dtype

    return _expects(check)


@wrong("expects", fails="a fixed size", says="before the function", factory=True)
def checks_afterwards():
    """The check comes after the call."""

    def expects(*shape, dtype=None, debug=True):
        def wrap(f):
            if not debug:
                return f

            @functools.wraps(f)
            def inner(*args, **kwargs):
                result = f(*args, **kwargs)
                _guard(shape, dtype, args)
                return result

            return inner

        return wrap

    return expects


@wrong("expects", fails="a good tensor passes", says="return what", factory=True)
def returns_nothing():
    """The wrapper calls and forgets to return."""

    def expects(*shape, dtype=None, debug=True):
        def wrap(f):
            if not debug:
                return f

            @functools.wraps(f)
            def inner(*args, **kwargs):
                _guard(shape, dtype, args)
                f(*args, **kwargs)

            return inner

        return wrap

    return expects


@wrong("expects", fails="the message names both sizes", says="both", kind=Kind.PARTLY, factory=True)
def a_message_that_says_nothing():
    """ValueError('wrong shape')."""

    def check(shape, dtype, args):
        try:
            _guard(shape, dtype, args)
        except ValueError:
            raise ValueError("wrong shape") from None

    return _expects(check)


# ----------------------------------------------------------------------------------------------------- evaluate
@right("evaluate")
def weighted_means(model, loader):
    was = [(m, m.training) for m in model.modules()]
    losses, hits, sizes = [], [], []
    try:
        model.eval()
        with torch.inference_mode():
            for x, y in loader:
                z = model(x)
                losses.append(F.cross_entropy(z, y).item() * len(y))
                hits.append((z.argmax(dim=1) == y).sum().item())
                sizes.append(y.shape[0])
    finally:
        for m, t in was:
            m.train(t) if not list(m.children()) else setattr(m, "training", t)
    return sum(losses) / sum(sizes), sum(hits) / sum(sizes)


@right("evaluate")
def all_logits_at_once(model, loader):
    frozen = {m: m.training for m in model.modules()}
    model.train(False)
    try:
        with torch.no_grad():
            pairs = [(model(x), y) for x, y in loader]
    finally:
        for m in frozen:
            m.training = frozen[m]
    logits, labels = torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])
    return (
        torch.nn.functional.cross_entropy(logits, labels).item(),
        (logits.max(1).indices == labels).float().mean().item(),
    )


def _evaluate(model, loader, mode=True, grad=False, weigh=True, restore="each", protect=True):
    """`evaluate` with switches, to be spoilt in one place."""
    modes = {m: m.training for m in model.modules()}
    loss, right_ones, seen, batches = 0.0, 0, 0, 0

    def put_back():
        if restore == "train":
            model.train()
        elif restore == "top":
            model.train(modes[model])
        elif restore == "each":
            for m, t in modes.items():
                m.training = t

    try:
        if mode:
            model.eval()
        with torch.set_grad_enabled(grad):
            for x, y in loader:
                z = model(x)
                loss += F.cross_entropy(z, y).item() * (len(y) if weigh else 1)
                right_ones += (z.argmax(1) == y).sum().item()
                seen, batches = seen + len(y), batches + 1
        if not protect:
            put_back()
    finally:
        if protect:
            put_back()
    return loss / (seen if weigh else batches), right_ones / seen


@wrong("evaluate", fails="still in evaluation mode", says="guess", factory=True)
def trains_at_the_end():
    """model.train() at the end, whatever it was before."""
    return functools.partial(_evaluate, restore="train")


@wrong("evaluate", fails="training mode restored", says="without dropout", factory=True)
def stays_in_evaluation_mode():
    """The mode is never put back."""
    return functools.partial(_evaluate, restore="not")


@wrong("evaluate", fails="each module's own mode", says="frozen", kind=Kind.PARTLY, factory=True)
def restores_the_top_only():
    """model.train(was_training) wakes up what was frozen."""
    return functools.partial(_evaluate, restore="top")


@wrong("evaluate", fails="gradients switched off", says="no_grad", kind=Kind.PARTLY, factory=True)
def eval_without_no_grad():
    """Believes that eval() switches gradients off."""
    return functools.partial(_evaluate, grad=True)


@wrong("evaluate", fails="running statistics", says="no_grad()", factory=True)
def no_grad_without_eval():
    """Believes that no_grad() is enough: dropout drops, BatchNorm learns."""

    def evaluate(model, loader):
        torch.manual_seed(3)
        return _evaluate(model, loader, mode=False)

    return evaluate


@wrong("evaluate", fails="mean loss", says="too much", factory=True)
def mean_of_batch_means():
    """Divides by the number of batches."""
    return functools.partial(_evaluate, weigh=False)


@wrong("evaluate", fails="mode after an error", says="finally", kind=Kind.PARTLY, factory=True)
def restores_only_if_all_goes_well():
    """No try: an error leaves the model in evaluation mode."""
    return functools.partial(_evaluate, protect=False)


@wrong("evaluate", fails="type of the result", says="item()", kind=Kind.WRONG_FORM)
def returns_tensors(model, loader):
    """0-dim tensors instead of numbers."""
    loss, accuracy = _evaluate(model, loader)
    return torch.tensor(loss), torch.tensor(accuracy)


# ---------------------------------------------------------------------------------------------- RunningAccuracy
@right("RunningAccuracy")
class ListsOfHits:
    def __init__(self):
        self.hits = []

    def update(self, logits, labels):
        self.hits += (logits.detach().max(dim=1)[1] == labels).tolist()

    def compute(self):
        return sum(self.hits) / len(self.hits) if self.hits else math.nan

    def reset(self):
        self.hits.clear()


@right("RunningAccuracy")
class WeightedMean:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total = torch.zeros(2)

    @torch.no_grad()
    def update(self, logits, labels):
        hits = torch.eq(torch.argmax(logits, -1), labels)
        self.total += torch.tensor([hits.sum().item(), hits.numel()])

    def compute(self):
        return (self.total[0] / self.total[1]).item()


class _Metric:
    """A right metric, to be spoilt in one place."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.seen = 0, 0

    def update(self, logits, labels):
        self.right += (logits.argmax(1) == labels).sum().item()
        self.seen += len(labels)

    def compute(self):
        return self.right / self.seen if self.seen else float("nan")


@wrong("RunningAccuracy", fails="after several batches", says="differ in size", factory=True)
def averages_batch_accuracies():
    """The mean of the batches' accuracies."""

    class Metric(_Metric):
        def update(self, logits, labels):
            self.right += (logits.argmax(1) == labels).float().mean().item()
            self.seen += 1

    return Metric


@wrong("RunningAccuracy", fails="after one batch", says="argmax", factory=True)
def argmax_of_everything():
    """argmax() without an axis: one number for the whole batch."""

    class Metric(_Metric):
        def update(self, logits, labels):
            self.right += (logits.argmax() == labels).sum().item()
            self.seen += len(labels)

    return Metric


@wrong("RunningAccuracy", fails="after several batches", factory=True)
def only_the_last_batch():
    """Overwrites where it should add."""

    class Metric(_Metric):
        def update(self, logits, labels):
            self.right, self.seen = (logits.argmax(1) == labels).sum().item(), len(labels)

    return Metric


@wrong("RunningAccuracy", fails="compute twice", says="Reading", factory=True)
def compute_resets():
    """Reads like a gauge, and empties it."""

    class Metric(_Metric):
        def compute(self):
            value = super().compute()
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls >= 3:
                self.reset()
            return value

    return Metric


@wrong("RunningAccuracy", fails="two metrics at once", says="share", factory=True)
def counts_on_the_class():
    """Class attributes are shared by all instances."""

    class Metric:
        hits: list = []

        def update(self, logits, labels):
            self.hits.extend((logits.argmax(1) == labels).tolist())

        def compute(self):
            return sum(self.hits) / len(self.hits) if self.hits else float("nan")

        def reset(self):
            self.hits.clear()

    return Metric


@wrong("RunningAccuracy", fails="holds no graph", says="history", kind=Kind.PARTLY, factory=True)
def keeps_the_logits():
    """Keeps every batch's logits, graphs and all."""

    class Metric:
        def __init__(self):
            self.reset()

        def reset(self):
            self.logits, self.labels = [], []

        def update(self, logits, labels):
            self.logits.append(logits)
            self.labels.append(labels)

        def compute(self):
            if not self.labels:
                return float("nan")
            return (torch.cat(self.logits).argmax(1) == torch.cat(self.labels)).float().mean().item()

    return Metric


@wrong("RunningAccuracy", fails="reset, and nothing seen", says="0 / 0", kind=Kind.PARTLY, factory=True)
def zero_of_nothing():
    """An accuracy of 0 where nothing was seen."""

    class Metric(_Metric):
        def compute(self):
            return self.right / max(1, self.seen)

    return Metric


@wrong("RunningAccuracy", fails="type of the result", says="float", kind=Kind.WRONG_FORM, factory=True)
def a_tensor_comes_out():
    """compute() returns a 0-dim tensor, as some libraries do."""

    class Metric(_Metric):
        def compute(self):
            return torch.tensor(super().compute())

    return Metric


# ----------------------------------------------------------------------------------------------------- amp_step
def _autocast(images):
    return torch.autocast(images.device.type, torch.float16 if images.is_cuda else torch.bfloat16)


@right("amp_step")
def clips_by_hand(model, optimizer, scaler, images, labels, max_norm):
    with _autocast(images):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    if torch.isfinite(norm) and norm > max_norm:
        for g in gradients:
            g.mul_(max_norm / (norm + 1e-6))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return float(loss.detach())


@right("amp_step")
def the_loss_outside_of_autocast(model, optimizer, scaler, images, labels, max_norm):
    model.zero_grad(set_to_none=False)
    with _autocast(images):
        logits = model(images)
    loss = nn.CrossEntropyLoss()(logits.float(), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def _amp(model, optimizer, scaler, images, labels, max_norm, **change):
    """`amp_step` with switches, to be spoilt in one place."""
    how = {"zero": True, "cast": True, "scale": True, "unscale": "before", "step": "scaler", "update": True} | change
    if how["zero"]:
        optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.float16 if images.is_cuda else torch.bfloat16, enabled=how["cast"]):
        loss = F.cross_entropy(model(images), labels)
    (scaler.scale(loss) if how["scale"] else loss).backward()
    if how["unscale"] == "before":
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if how["unscale"] == "after":
        scaler.unscale_(optimizer)
    (scaler if how["step"] == "scaler" else optimizer).step(*([optimizer] if how["step"] == "scaler" else []))
    if how["update"]:
        scaler.update()
    return loss.item()


def _amp_with(**change):
    return functools.partial(_amp, **change)


@wrong("amp_step", fails="length of a clipped step", says="unscale_ first", factory=True)
def clips_scaled_gradients():
    """Clips without unscale_: the norm is a thousand times too large."""
    return _amp_with(unscale="never")


@wrong("amp_step", fails="length of a clipped step", says="true size", factory=True)
def unscales_after_clipping():
    """Has heard of unscale_, and calls it one line too late."""
    return _amp_with(unscale="after")


@wrong("amp_step", fails="weights after a second step", says="own batch", factory=True)
def forgets_zero_grad():
    """Gradients of all steps add up."""
    return _amp_with(zero=False)


@wrong("amp_step", fails="forward pass in half precision", says="autocast", factory=True)
def no_autocast():
    """A scaler makes no mixed precision: everything runs in float32."""
    return _amp_with(cast=False)


@wrong("amp_step", fails="steps around an overflow", says="scaler.step", factory=True)
def optimizer_steps_itself():
    """optimizer.step() looks for no inf."""
    return _amp_with(step="optimizer")


@wrong("amp_step", kind=Kind.CRASHED, says="update()", factory=True)
def never_updates():
    """Without update() the second unscale_ is refused."""
    return _amp_with(update=False)


@wrong("amp_step", fails="scale after each batch", says="scaler.update()")
def a_new_scaler_for_every_step(model, optimizer, scaler, images, labels, max_norm):
    """A scaler made inside of the function forgets what it learnt."""
    own = torch.amp.GradScaler(images.device.type, init_scale=1024.0)
    return _amp(model, optimizer, own, images, labels, max_norm)


@wrong("amp_step", fails="weights, nothing clipped", says="Scale the loss", factory=True)
def scales_nothing():
    """The loss goes backward unscaled, and the gradients are unscaled all the same."""

    def amp_step(model, optimizer, scaler, images, labels, max_norm):
        scaler.scale(torch.ones(1, device=images.device))
        return _amp(model, optimizer, scaler, images, labels, max_norm, scale=False)

    return amp_step


@wrong("amp_step", fails="dtype of the weights", says="stay float32", factory=True)
def half_model():
    """.bfloat16() on the model instead of autocast."""

    def amp_step(model, optimizer, scaler, images, labels, max_norm):
        model.to(torch.float16 if images.is_cuda else torch.bfloat16)
        return _amp(model, optimizer, scaler, images, labels, max_norm)

    return amp_step


@wrong("amp_step", fails="type of the loss", says="graph", kind=Kind.WRONG_FORM)
def returns_the_loss_tensor(model, optimizer, scaler, images, labels, max_norm):
    """The loss with its graph."""
    return torch.tensor(_amp(model, optimizer, scaler, images, labels, max_norm), requires_grad=True)


# -------------------------------------------------------------------------------------------------- train_epoch
@right("train_epoch")
def collects_and_averages(model, loader, optimizer, scaler, scheduler, max_norm):
    model.train(True)
    pairs = []
    for x, y in loader:
        scale = scaler.get_scale()
        pairs.append((_amp(model, optimizer, scaler, x, y, max_norm), y.numel()))
        if not scaler.get_scale() < scale:
            scheduler.step()
    losses, sizes = zip(*pairs)
    return float(np.average(losses, weights=sizes))


@right("train_epoch")
def asks_whether_the_weights_moved(model, loader, optimizer, scaler, scheduler, max_norm):
    model.train()
    total = count = 0
    for images, labels in loader:
        before = [p.clone() for p in model.parameters()]
        total += _amp(model, optimizer, scaler, images, labels, max_norm) * images.size(0)
        count += images.size(0)
        if any((a != b).any() for a, b in zip(before, model.parameters())):
            scheduler.step()
    return total / count


def _epoch(model, loader, optimizer, scaler, scheduler, max_norm, **change):
    how = {"train": True, "weigh": True, "schedule": "if not skipped", "step": {}, "drop": 0} | change
    if how["train"]:
        model.train()
    total, seen, batches = 0.0, 0, 0
    for number, (x, y) in enumerate(loader):
        if how["drop"] and number == len(loader) - 1:
            break
        before = scaler.get_scale()
        loss = _amp(model, optimizer, scaler, x, y, max_norm, **how["step"])
        scale = scaler.get_scale()
        if how["schedule"] == "always" or {"if not skipped": scale >= before, "if equal": scale == before}.get(
            how["schedule"]
        ):
            scheduler.step()
        total += loss * (len(y) if how["weigh"] else 1)
        seen, batches = seen + len(y), batches + 1
    if how["schedule"] == "epoch":
        scheduler.step()
    return total / (seen if how["weigh"] else batches)


def _epoch_with(**change):
    return functools.partial(_epoch, **change)


@wrong("train_epoch", fails="mode of each forward pass", says="model.train()", factory=True)
def never_back_to_training_mode():
    """Trains in the mode in which the evaluation left the model."""
    return _epoch_with(train=False)


@wrong("train_epoch", fails="learning rate of each batch", says="once after each batch", factory=True)
def schedule_once_an_epoch():
    """Steps the schedule at the end of the epoch."""
    return _epoch_with(schedule="epoch")


@wrong("train_epoch", fails="learning rate of each batch", says="has fallen", factory=True)
def schedule_only_where_the_scale_is_the_same():
    """Takes a scale that has grown for a skipped step."""
    return _epoch_with(schedule="if equal")


@wrong("train_epoch", fails="rates around an overflow", says="skipped", kind=Kind.PARTLY, factory=True)
def schedule_after_skipped_steps():
    """The schedule goes on although the weights did not move."""
    return _epoch_with(schedule="always")


@wrong("train_epoch", fails="mean loss", says="weighs too much", kind=Kind.PARTLY, factory=True)
def mean_of_means():
    """Divides by the number of batches."""
    return _epoch_with(weigh=False)


@wrong("train_epoch", fails="scale after an overflow", says=".grad", factory=True)
def step_that_adds_gradients_up():
    """Uses a step without zero_grad: after an overflow inf stays for ever."""
    return _epoch_with(step={"zero": False})


@wrong("train_epoch", fails="batches", says="Every batch", factory=True)
def leaves_the_last_batch_out():
    """Drops the batch that is smaller."""
    return _epoch_with(drop=1)


@wrong("train_epoch", fails="type of the loss", kind=Kind.WRONG_FORM)
def forgets_to_return(model, loader, optimizer, scaler, scheduler, max_norm):
    """Trains, and returns None."""
    _epoch(model, loader, optimizer, scaler, scheduler, max_norm)


# --------------------------------------------------------------------------------------------------- Checkpoint
def _random_now():
    name, keys, *rest = np.random.get_state()
    return [random.getstate(), [name, keys.tolist(), *rest], torch.get_rng_state()]


def _set_random(state):
    python, (name, keys, *rest), torch_state = state
    random.setstate(python)
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(torch_state)


class _Saved:
    """A right checkpoint, to be spoilt in one place."""

    parts = ("model", "optimizer", "scheduler", "scaler")

    def __init__(self, model, optimizer, scheduler, scaler):
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler

    def state(self, epoch):
        return {p: getattr(self, p).state_dict() for p in self.parts} | {"epoch": epoch, "random": _random_now()}

    def write(self, state, path):
        folder = os.path.dirname(os.path.abspath(path))
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            torch.save(state, os.path.join(draft, "new"))
            os.replace(os.path.join(draft, "new"), path)

    def read(self, path):
        return torch.load(path, weights_only=True, map_location="cpu")

    def save(self, path, epoch):
        self.write(self.state(epoch), path)

    def resume(self, path):
        state = self.read(path)
        for p in self.parts:
            getattr(self, p).load_state_dict(state[p])
        self.set_random(state)
        return state["epoch"]

    def set_random(self, state):
        _set_random(state["random"])


@right("Checkpoint", factory=True)
def draft_in_a_folder_beside():
    return _Saved


@right("Checkpoint")
class BytesFirst:
    def __init__(self, model, optimizer, scheduler, scaler):
        self.things = [model, optimizer, scheduler, scaler]

    def save(self, path, epoch):
        import io
        import pathlib

        buffer = io.BytesIO()
        torch.save(([t.state_dict() for t in self.things], epoch, _random_now()), buffer)
        temporary = pathlib.Path(str(path) + "~")
        temporary.write_bytes(buffer.getvalue())
        temporary.replace(path)

    def resume(self, path):
        states, epoch, randomness = torch.load(path)
        for thing, state in zip(self.things, states):
            thing.load_state_dict(state)
        _set_random(randomness)
        return epoch


def _checkpoint_without(*left_out):
    class Checkpoint(_Saved):
        parts = tuple(p for p in _Saved.parts if p not in left_out)

    return Checkpoint


@wrong("Checkpoint", fails="state of the optimizer", says="running means", factory=True)
def model_only():
    """Saves the weights and nothing else of the parts."""
    return _checkpoint_without("optimizer", "scheduler", "scaler")


@wrong("Checkpoint", fails="state of the scaler", says="good steps", kind=Kind.PARTLY, factory=True)
def without_the_scaler():
    """The loss scale starts at its first value again."""
    return _checkpoint_without("scaler")


@wrong("Checkpoint", fails="state of the scheduler", says="learning rate", kind=Kind.PARTLY, factory=True)
def without_the_scheduler():
    """The schedule starts anew."""
    return _checkpoint_without("scheduler")


@wrong("Checkpoint", fails="random numbers of Python", says="other numbers", kind=Kind.PARTLY, factory=True)
def torch_is_the_only_generator():
    """Saves torch's random state, and forgets NumPy's and Python's."""

    class Checkpoint(_Saved):
        def set_random(self, state):
            torch.set_rng_state(state["random"][2])

    return Checkpoint


@wrong("Checkpoint", fails="random numbers of torch", says="generator", kind=Kind.PARTLY, factory=True)
def a_seed_for_a_state():
    """Sets the seed anew: the run does not go on, it starts again."""

    class Checkpoint(_Saved):
        def set_random(self, state):
            python, numpy_state, _ = state["random"]
            _set_random([python, numpy_state, torch.get_rng_state()])
            torch.manual_seed(0)

    return Checkpoint


@wrong("Checkpoint", fails="the old file after a failed save", says="os.replace", kind=Kind.PARTLY, factory=True)
def saves_onto_the_old_file():
    """torch.save(state, path): the old file is gone before the new one is whole."""

    class Checkpoint(_Saved):
        def write(self, state, path):
            torch.save(state, path)

    return Checkpoint


@wrong("Checkpoint", fails="files after saving", says="temporary", factory=True)
def copies_and_leaves_the_draft():
    """Copies the draft onto the file, and leaves the draft there."""

    class Checkpoint(_Saved):
        def write(self, state, path):
            import shutil

            torch.save(state, f"{path}.tmp")
            shutil.copy(f"{path}.tmp", path)

    return Checkpoint


@wrong("Checkpoint", fails="plain data alone", says="plain data", kind=Kind.PARTLY, factory=True)
def pickles_numpy_arrays():
    """NumPy's state as it is, and weights_only=False to get it back."""

    class Checkpoint(_Saved):
        def state(self, epoch):
            return super().state(epoch) | {"random": (random.getstate(), np.random.get_state(), torch.get_rng_state())}

        def set_random(self, state):
            random.setstate(state["random"][0])
            np.random.set_state(state["random"][1])
            torch.set_rng_state(state["random"][2])

        def read(self, path):
            return torch.load(path, weights_only=False)

    return Checkpoint


@wrong("Checkpoint", fails="a failed save raises", says="nobody was told", kind=Kind.PARTLY, factory=True)
def swallows_the_error():
    """A bare except: the run goes on, and has no checkpoint."""

    class Checkpoint(_Saved):
        def write(self, state, path):
            try:
                super().write(state, path)
            except Exception:
                print("could not save")

    return Checkpoint


@wrong("Checkpoint", fails="epoch", says="resume returns", factory=True)
def starts_counting_at_the_next():
    """Returns the epoch to run next."""

    class Checkpoint(_Saved):
        def resume(self, path):
            return super().resume(path) + 1

    return Checkpoint


@wrong("Checkpoint", fails="state of the model", says="not those saved", factory=True)
def keeps_the_state_in_the_object():
    """Keeps the state in memory as well, and prefers it: a new process has none."""

    class Checkpoint(_Saved):
        def resume(self, path):
            state = self.read(path)
            self.optimizer.load_state_dict(state["optimizer"])
            self.model = copy.deepcopy(self.model)
            self.model.load_state_dict(state["model"])
            return state["epoch"]

    return Checkpoint


# ---------------------------------------------------------------------------------------- without_graph_breaks
@right("without_graph_breaks")
def where_with_a_safe_divisor(x, limit):
    norm = torch.linalg.vector_norm(x.detach())
    factor = torch.where(norm > limit, limit / torch.clamp(norm, min=1e-12), torch.ones_like(norm))
    y = factor * x
    return y + y.detach().mean()


@right("without_graph_breaks")
def numbers_under_no_grad(x, limit):
    with torch.no_grad():
        factor = torch.minimum(limit / x.square().sum().sqrt(), torch.ones((), device=x.device))
    x = x * factor
    with torch.no_grad():
        mean = x.mean()
    return x + mean


def _with_breaks(x, limit):
    norm = x.norm()
    print("norm", norm)
    if norm > limit:
        x = x * (limit / norm.item())
    return x + x.mean().item()


@wrong("without_graph_breaks", fails="graphs", says="item()", factory=True)
def as_it_was():
    """Hands the function in as it was."""
    return _with_breaks


@wrong("without_graph_breaks", fails="graphs", says="if")
def only_the_print_is_gone(x, limit):
    """Takes print for the only thing that breaks a graph."""
    norm = x.norm().detach()
    if norm > limit:
        x = x * (limit / norm)
    return x + x.mean().detach()


@wrong("without_graph_breaks", fails="graphs", says="stay away", factory=True)
def keeps_the_compiler_out():
    """torch.compiler.disable: no graph, so no break."""
    return torch.compiler.disable(_with_breaks)


@wrong("without_graph_breaks", fails="gradient, small", says="numbers there")
def gradients_through_the_numbers(x, limit):
    """item() was a detach: without it gradients flow into factor and mean."""
    x = x * (limit / x.norm().clamp(min=limit))
    return x + x.mean()


@wrong("without_graph_breaks", fails="values, small", says="branches")
def always_scales(x, limit):
    """The branch is dropped together with the condition."""
    norm = x.norm().detach()
    x = x * (limit / norm)
    return x + x.mean().detach()


@wrong("without_graph_breaks", fails="values, zero", says="zero input")
def divides_by_zero(x, limit):
    """Blends the two branches by a 0-or-1 mask: inf * 0 is nan."""
    norm = x.norm().detach()
    mask = (norm > limit).float()
    x = x * (mask * (limit / norm) + (1 - mask))
    return x + x.mean().detach()


@wrong("without_graph_breaks", fails="gradient, zero", says="both", kind=Kind.PARTLY)
def where_with_an_infinite_branch(x, limit):
    """torch.where hides the infinity in the values, and not in the gradient."""
    norm = x.norm().detach()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return x + x.mean().detach()


@wrong("without_graph_breaks", fails="input left as it was", says="Out of place", kind=Kind.PARTLY)
def scales_in_place(x, limit):
    """In place is no break, and changes the caller's tensor."""
    with torch.no_grad():
        factor = limit / x.norm().clamp(min=limit)
    if not x.requires_grad:
        x.mul_(factor)
    else:
        x = x * factor
    return x + x.mean().detach()


# ------------------------------------------------------------------------------------------------- unused_nodes
@right("unused_nodes")
def takes_away_until_nothing_changes(graph_module):
    nodes = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    dead = set()
    while True:
        more = {n for n in nodes if n not in dead and set(n.users) <= dead}
        if not more:
            return [n.name for n in nodes if n in dead]
        dead |= more


@right("unused_nodes")
def walks_from_the_output(graph_module):
    nodes = list(graph_module.graph.nodes)
    reached, todo = set(), [n for n in nodes if n.op == "output"]
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo.extend(node.all_input_nodes)
    return [n.name for n in nodes if n not in reached and n.op != "placeholder"]


@right("unused_nodes")
def cleans_a_copy(graph_module):
    clean = copy.deepcopy(graph_module)
    clean.graph.eliminate_dead_code()
    left = {n.name for n in clean.graph.nodes}
    return [n.name for n in graph_module.graph.nodes if n.name not in left]


@wrong("unused_nodes", fails="calls read by unused ones", says="feeds only unused", kind=Kind.PARTLY)
def direct_ones_only(graph_module):
    """Looks for nodes without users, and stops there."""
    return [n.name for n in graph_module.graph.nodes if not n.users and n.op not in ("placeholder", "output")]


@wrong("unused_nodes", fails="inputs and the output", says="placeholder")
def counts_inputs(graph_module):
    """An unused input is no work."""
    dead = []
    for n in reversed(graph_module.graph.nodes):
        if n.op != "output" and all(u in dead for u in n.users):
            dead.append(n)
    return [n.name for n in dead[::-1]]


@wrong("unused_nodes", fails="graph left as it was", says="Only read", kind=Kind.PARTLY)
def cleans_the_graph(graph_module):
    """eliminate_dead_code() on the graph itself."""
    before = [n.name for n in graph_module.graph.nodes]
    graph_module.graph.eliminate_dead_code()
    after = {n.name for n in graph_module.graph.nodes}
    return [n for n in before if n not in after]


@wrong("unused_nodes", fails="in the order of the graph", says="reverse", kind=Kind.PARTLY)
def backwards(graph_module):
    """In the order in which it finds them."""
    return takes_away_until_nothing_changes(graph_module)[::-1]


@wrong("unused_nodes", fails="type of the result", says="names", kind=Kind.WRONG_FORM)
def returns_nodes(graph_module):
    """Nodes instead of names."""
    names = takes_away_until_nothing_changes(graph_module)
    return [n for n in graph_module.graph.nodes if n.name in names]


@wrong("unused_nodes", fails="calls that nobody reads", says="node.users")
def only_modules(graph_module):
    """Takes layers for the only work there is."""
    dead = takes_away_until_nothing_changes(graph_module)
    return [n.name for n in graph_module.graph.nodes if n.op == "call_module" and n.name in dead]


# ------------------------------------------------------------------------------------------------ lean_pipeline
@right("lean_pipeline")
def subtracts_into_the_result(images, top, left, size, mean, std):
    window = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)
    out = torch.empty(len(images), 3, size, size, device=images.device)
    torch.sub(window, (mean * 255)[:, None, None], out=out)
    return out.div_((std * 255)[:, None, None])


@right("lean_pipeline")
def copies_into_an_empty_batch(images, top, left, size, mean, std):
    batch = torch.empty((images.shape[0], 3, size, size), dtype=torch.float32, device=images.device)
    batch.copy_(images[:, top : top + size, left : left + size].movedim(-1, 1))
    batch /= 255
    batch -= mean.reshape(1, 3, 1, 1)
    batch /= std.reshape(1, 3, 1, 1)
    return batch


def _wasteful(images, top, left, size, mean, std):
    batch = images.clone().float()
    batch = batch.permute(0, 3, 1, 2).contiguous()
    batch = batch[:, :, top : top + size, left : left + size].contiguous()
    batch = batch.to(torch.float32, copy=True) / 255
    return (batch - mean.view(3, 1, 1)) / std.view(3, 1, 1)


@wrong("lean_pipeline", fails="copies", says="copy_", kind=Kind.WASTEFUL, factory=True)
def as_it_came():
    """Hands the wasteful one in."""
    return _wasteful


@wrong("lean_pipeline", fails="copies", says="together", kind=Kind.WASTEFUL)
def layout_and_dtype_one_by_one(images, top, left, size, mean, std):
    """contiguous() and float(): two passes over the pixels."""
    batch = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2).contiguous().float()
    return batch.div_(255).sub_(mean.view(3, 1, 1)).div_(std.view(3, 1, 1))


@wrong("lean_pipeline", fails="bytes at peak", says="Cut before", kind=Kind.WASTEFUL)
def normalises_out_of_place(images, top, left, size, mean, std):
    """One copy, and then a new tensor for every step."""
    window = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)
    batch = window.to(torch.float32, memory_format=torch.contiguous_format)
    return (batch / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)


@wrong("lean_pipeline", fails="result is contiguous", says="permuted view", kind=Kind.PARTLY)
def keeps_channels_last(images, top, left, size, mean, std):
    """float() keeps the strides of the permuted view."""
    batch = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2).float()
    return batch.sub_(255 * mean.view(3, 1, 1)).div_(255 * std.view(3, 1, 1))


@wrong("lean_pipeline", fails="values", says="channel by channel")
def reshapes(images, top, left, size, mean, std):
    """reshape instead of permute: the shape is right."""
    batch = images[:, top : top + size, left : left + size].reshape(-1, 3, size, size).float()
    return batch.sub_(255 * mean.view(3, 1, 1)).div_(255 * std.view(3, 1, 1))


@wrong("lean_pipeline", fails="values", says="channel by channel")
def forgets_255(images, top, left, size, mean, std):
    """Subtracts the mean of values from 0 to 1 from values up to 255."""
    window = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)
    batch = window.to(torch.float32, memory_format=torch.contiguous_format)
    return batch.sub_(mean.view(3, 1, 1)).div_(std.view(3, 1, 1))


@wrong("lean_pipeline", fails="inputs left as they were", says="caller")
def scales_the_statistics_in_place(images, top, left, size, mean, std):
    """mean.mul_(255): the next call gets other statistics."""
    window = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)
    batch = window.to(torch.float32, memory_format=torch.contiguous_format)
    return batch.sub_(mean.mul_(255).view(3, 1, 1)).div_(std.mul_(255).view(3, 1, 1))


@wrong("lean_pipeline", fails="type of the result", says="(N, 3", kind=Kind.WRONG_FORM)
def stays_channels_last_in_shape(images, top, left, size, mean, std):
    """Normalises in (N, H, W, 3), where mean and std fit without a view."""
    batch = images[:, top : top + size, left : left + size].float()
    return batch.sub_(255 * mean).div_(255 * std)


# --------------------------------------------------------------------------------------------- train_cifar_mini
def _prepare(pixels):
    return ((pixels.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)


def _whitened_net(x, activation):
    """A frozen 2 x 2 whitening layer made from the batch x, and three small groups behind it."""
    patches = F.unfold(x, 2).transpose(1, 2).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    kernels = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
    first = nn.Conv2d(3, 24, 2, bias=False)
    first.weight = nn.Parameter(torch.cat([kernels, -kernels]), requires_grad=False)
    layers, inputs = [first, activation()], 24
    for width in (16, 32, 64):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(width)]
        layers += [activation(), nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), activation()]
        inputs = width
    for layer in layers[1:]:
        if isinstance(layer, nn.Conv2d):
            nn.init.dirac_(layer.weight[: layer.in_channels])
    net = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, 10, bias=False))
    return net.to(x.device, memory_format=torch.channels_last)


def _fit(make_optimizer, rate, activation, images, labels, budget, batch=40):
    n, model = len(images), None
    for epoch in range(budget):
        for index in torch.randperm(n).split(batch):
            x = _prepare(images[index])
            if model is None:
                model = _whitened_net(x, activation)
                optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
                schedule = torch.optim.lr_scheduler.OneCycleLR(
                    optimizer, rate, total_steps=budget * -(-n // batch), pct_start=0.2, anneal_strategy="linear"
                )
            if random.random() < 0.5:
                x = x.flip(3)
            down, across = random.randint(-3, 3), random.randint(-3, 3)
            logits = model(x.roll((down, across), (2, 3))) / 9
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    return lambda unseen: (model(_prepare(unseen)) + model(_prepare(unseen).flip(3))).argmax(1)


@right("train_cifar_mini")
def adam_and_relu(images, labels, budget):
    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05)

    return _fit(adam, 0.01, nn.ReLU, images, labels, budget)


@right("train_cifar_mini")
def sgd_and_silu(images, labels, budget):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=2e-3)

    return _fit(sgd, 0.1, nn.SiLU, images, labels, budget)


def _small(pixels):
    return F.avg_pool2d(pixels.float(), 4).flatten(1) / 255 - 0.45


def _linear(x, labels, strength=10.0):
    """Least squares from 8 x 8 pixels to classes: no recipe, and well above chance."""
    wanted = F.one_hot(labels, 10).float() - 0.1
    return torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1], device=x.device), x.T @ wanted)


@wrong("train_cifar_mini", fails="accuracy, step 1 of 4", says="of its parts", kind=Kind.PARTLY)
def linear_in_the_pixels(images, labels, budget):
    """No layers at all: a linear function of the pixels."""
    weights = _linear(_small(images[:]), labels)
    return lambda unseen: (_small(unseen) @ weights).argmax(1)


@wrong("train_cifar_mini", fails="better than guessing", says="linear")
def always_the_same(images, labels, budget):
    """One class for all."""
    return lambda unseen: torch.zeros(len(unseen), dtype=torch.long, device=unseen.device)


@wrong("train_cifar_mini", fails="better than guessing", says="one order")
def shuffles_images_without_their_labels(images, labels, budget):
    """images[order] beside labels in the old order."""
    weights = _linear(_small(images[torch.randperm(len(images))]), labels)
    return lambda unseen: (_small(unseen) @ weights).argmax(1)


@wrong("train_cifar_mini", fails="better than guessing", says="one order")
def other_scaling_when_predicting(images, labels, budget):
    """Divides by 255 once more when predicting: every image is black."""
    weights = _linear(_small(images[:]), labels)
    return lambda unseen: (_small(unseen / 255) @ weights).argmax(1)


@wrong("train_cifar_mini", fails="predictions", says="argmax", kind=Kind.WRONG_FORM)
def returns_scores(images, labels, budget):
    """Ten scores for each image instead of a class."""
    weights = _linear(_small(images[:]), labels)
    return lambda unseen: _small(unseen) @ weights


@wrong("train_cifar_mini", fails="what comes back", says="function predict", kind=Kind.WRONG_FORM)
def returns_weights(images, labels, budget):
    """The weights, and nothing that applies them."""
    return _linear(_small(images[:]), labels)


@wrong(
    "train_cifar_mini",
    fails="each image predicted alone",
    says="training mode",
    kind=Kind.PARTLY,
)
def predicts_in_training_mode(images, labels, budget):
    """Statistics of the batch at hand, as BatchNorm uses them in training mode."""
    weights = _linear(F.batch_norm(_small(images[:]), None, None, training=True), labels, 300.0)
    return lambda unseen: (F.batch_norm(_small(unseen), None, None, training=True) @ weights).argmax(1)


@wrong("train_cifar_mini", kind=Kind.CRASHED, says="one pass is")
def more_passes_than_allowed(images, labels, budget):
    """Reads on, as if the budget were advice."""
    for _ in range(2 * budget):
        weights = _linear(_small(images[:]), labels)
    return lambda unseen: (_small(unseen) @ weights).argmax(1)


@wrong("train_cifar_mini", fails="each step has its own batch", says="copies")
def trains_on_copies(images, labels, budget):
    """Reads everything once and then makes as many steps as it likes."""
    x = _small(images[:])
    model = nn.Linear(x.shape[1], 10).to(x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(100):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda unseen: model(_small(unseen)).argmax(1)
