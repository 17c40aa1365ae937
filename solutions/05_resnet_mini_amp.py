# %% [markdown]
# # 5. From blocks to a trained, resumable model

# %% tags=["setup"]
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import check, hint, load_cifar_mini, operators, progress
from course_utils.compile_counter import count_graphs

# %% [markdown] exercise="conv_output_size"
# Write `conv_output_size(size, kernel, stride=1, padding=0, dilation=1)`, without torch. It gets whole numbers that
# describe one axis of a convolution, and returns the length of that axis in the result. Where the kernel does not even
# fit once, it raises a `ValueError`.
#
# `conv_output_size(32, 3)` is 30, and `conv_output_size(32, 7, stride=2, padding=3)` is 16.

# %% exercise="conv_output_size"
def conv_output_size(size, kernel, stride=1, padding=0, dilation=1):
    """Length of one axis after a convolution."""
    ### BEGIN SOLUTION
    covered = dilation * (kernel - 1) + 1  # k weights with k - 1 gaps between them
    room = size + 2 * padding - covered
    if room < 0:  # before the division: -1 // 2 + 1 is 0, but -1 // 3 + 1 with other numbers may look like a size
        raise ValueError(f"a kernel that covers {covered} pixels does not fit into {size} + 2 * {padding}")
    return room // stride + 1
    ### END SOLUTION

# %% [markdown] exercise="transposed_output_padding"
# Several sizes become the same under a stride: with kernel 3, stride 2 and padding 1, both 7 and 8 become 4. Coming back,
# `nn.ConvTranspose2d` with the same settings gives 7, or 8 with `output_padding=1`.
#
# Write `transposed_output_padding(size, kernel, stride, padding, dilation=1)`. It returns the `output_padding` with which
# the transposed convolution gives back exactly `size`, the size that the convolution took.

# %% exercise="transposed_output_padding"
def transposed_output_padding(size, kernel, stride, padding, dilation=1):
    """The output_padding that leads back to `size`."""
    ### BEGIN SOLUTION
    # The convolution divides the room for its window by the stride and rounds down. What it threw away is missing.
    return (size + 2 * padding - dilation * (kernel - 1) - 1) % stride
    ### END SOLUTION

# %% [markdown] exercise="BasicBlock"
# Write the module `BasicBlock(in_channels, out_channels, stride=1)`, the block of ResNet-18:
#
# * the main path is a 3x3 convolution (with the stride), BatchNorm, ReLU, a second 3x3 convolution, BatchNorm;
# * the shortcut is the input itself, or, where the shape changes, a 1x1 convolution with the stride, and BatchNorm;
# * the two are added, and ReLU comes last. No convolution has a bias.
#
# `BasicBlock(64, 128, 2)` makes of (N, 64, 16, 16) a (N, 128, 8, 8). The input is left as it was.

# %% exercise="BasicBlock"
class BasicBlock(nn.Module):
    """(N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride), rounded up."""

    def __init__(self, in_channels, out_channels, stride=1):
        ### BEGIN SOLUTION
        super().__init__()
        # BatchNorm takes the mean away, and with it any bias before it.
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()
        else:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))
        ### END SOLUTION

# %% [markdown] exercise="ResNet18Mini"
# Build `ResNet18Mini(classes=10)` from your `BasicBlock`:
#
# | part | layers | (N, 3, 32, 32) becomes |
# | :-- | :-- | :-- |
# | stem | 7x7 convolution with stride 2 and padding 3, no bias; BatchNorm; ReLU; no max-pool | (N, 64, 16, 16) |
# | stage 1 | two blocks with 64 channels | (N, 64, 16, 16) |
# | stage 2 | two blocks with 128 channels, the first with stride 2 | (N, 128, 8, 8) |
# | head | mean over height and width; a linear layer | (N, classes) |
#
# For 10 classes that makes 684,362 trainable numbers. Images of any size go through, also a single one.

# %% exercise="ResNet18Mini"
class ResNet18Mini(nn.Module):
    """(N, 3, H, W) -> logits (N, classes)."""

    def __init__(self, classes=10):
        ### BEGIN SOLUTION
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.stage1 = nn.Sequential(BasicBlock(64, 64), BasicBlock(64, 64))
        self.stage2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128))
        self.head = nn.Linear(128, classes)
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        x = self.stage2(self.stage1(self.stem(x)))
        return self.head(x.mean((2, 3)))  # a mean fits every size, and keeps the batch axis
        ### END SOLUTION

# %% [markdown] exercise="expects"
# Write `expects(*shape, dtype=None, debug=True)`, a decorator that guards a function:
#
# ```python
# @expects("N", 3, None, None, dtype=torch.float32)
# def forward(self, images): ...
# ```
#
# It looks at the first tensor among the positional arguments, before the function is entered. In `shape` a number is a size
# that the axis must have, `None` fits every size, and equal names stand for equal sizes within one call. A wrong shape
# raises a `ValueError` that names the expected and the actual shape, a wrong dtype a `TypeError`. Everything else about
# the function stays as it was: arguments, result, name, docstring.
#
# With `debug=False` the guard must cost nothing at all, not even one more call.

# %% exercise="expects"
def expects(*shape, dtype=None, debug=True):
    """Decorator that checks shape and dtype of a function's first tensor."""
    ### BEGIN SOLUTION
    import functools

    def decorate(function):
        if not debug:
            return function  # decided once, here: a wrapper that looks at a switch costs a call every time

        @functools.wraps(function)
        def guarded(*args, **kwargs):
            tensor = next(a for a in args if isinstance(a, torch.Tensor))  # not args[0]: in a method that is self
            names = {}
            fits = tensor.dim() == len(shape) and all(
                wanted is None or size == (names.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
                for size, wanted in zip(tensor.shape, shape)
            )
            if not fits:
                raise ValueError(f"{function.__name__} expects the shape {shape}, and got {tuple(tensor.shape)}")
            if dtype is not None and tensor.dtype != dtype:
                raise TypeError(f"{function.__name__} expects {dtype}, and got {tensor.dtype}")
            return function(*args, **kwargs)

        return guarded

    return decorate
    ### END SOLUTION

# %% [markdown] exercise="evaluate"
# Write `evaluate(model, loader)`. The loader gives `(images, labels)`; the model gives logits. Return `(loss, accuracy)`,
# two floats: the cross entropy and the share of right predictions, both as a mean over all *images*.
#
# The model is evaluated in evaluation mode, no graph is built, and afterwards the model is as it was: each of its modules in
# its own mode, even where a batch fails, and BatchNorm untouched.

# %% exercise="evaluate"
def evaluate(model, loader):
    """(mean loss, accuracy) over all images of a loader."""
    ### BEGIN SOLUTION
    modes = {module: module.training for module in model.modules()}  # train() would wake up frozen layers as well
    loss, right, seen = 0.0, 0, 0
    try:
        model.eval()  # for dropout and BatchNorm; no_grad is for the graph: neither does the other's work
        with torch.no_grad():
            for images, labels in loader:
                logits = model(images)
                loss += F.cross_entropy(logits, labels, reduction="sum").item()
                right += int((logits.argmax(1) == labels).sum())
                seen += len(labels)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return loss / seen, right / seen
    ### END SOLUTION

# %% [markdown] exercise="RunningAccuracy"
# Write the class `RunningAccuracy` with three methods: `update(logits, labels)` takes a batch, (B, classes) and (B,);
# `compute()` returns the share of right predictions among all images since the last reset, as a float (`nan` where there
# were none); `reset()` forgets everything. It must not keep a graph alive.

# %% exercise="RunningAccuracy"
class RunningAccuracy:
    """Accuracy over batches of any size."""

    def __init__(self):
        self.reset()

    def reset(self):
        ### BEGIN SOLUTION
        self.right = self.seen = 0
        ### END SOLUTION

    def update(self, logits, labels):
        ### BEGIN SOLUTION
        self.right += int((logits.argmax(1) == labels).sum())  # int: a number has no history to keep alive
        self.seen += len(labels)
        ### END SOLUTION

    def compute(self):
        ### BEGIN SOLUTION
        return self.right / self.seen if self.seen else float("nan")
        ### END SOLUTION

# %% [markdown] exercise="amp_step"
# Write `amp_step(model, optimizer, scaler, images, labels, max_norm)`: one training step in mixed precision. Forward and
# cross entropy run under autocast, in float16 on CUDA and in bfloat16 on the CPU. Then the gradients are computed
# through the scaler, clipped to the norm `max_norm` (`nn.utils.clip_grad_norm_`), and applied; a step with
# infinite gradients is skipped, by the scaler's own means. Return the loss as a float.

# %% exercise="amp_step"
def amp_step(model, optimizer, scaler, images, labels, max_norm):
    """One step of mixed-precision training; the loss as a float."""
    ### BEGIN SOLUTION
    device = images.device.type
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    with torch.autocast(device, dtype=dtype):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()  # outside of autocast: backward runs in the dtypes of the forward pass
    scaler.unscale_(optimizer)  # before clipping, which means the norm of the true gradients
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)  # looks for inf and NaN, and then leaves the step out
    scaler.update()  # halves the scale after such a step, doubles it after a run of good ones
    return loss.item()
    ### END SOLUTION

# %% [markdown] exercise="train_epoch"
# Write `train_epoch(model, loader, optimizer, scaler, scheduler, max_norm)`: one pass over the loader in training mode,
# one `amp_step` for each batch. The scheduler is stepped after each batch, but not after a batch whose step was skipped:
# the weights have not moved, so neither should the schedule. A skipped step shows in the scale, which has
# become smaller. Return the mean loss over all *images*, as a float.

# %% exercise="train_epoch"
def train_epoch(model, loader, optimizer, scaler, scheduler, max_norm):
    """One epoch of mixed-precision training; the mean loss of its images."""
    ### BEGIN SOLUTION
    model.train()
    total, seen = 0.0, 0
    for images, labels in loader:
        before = scaler.get_scale()
        loss = amp_step(model, optimizer, scaler, images, labels, max_norm)
        if scaler.get_scale() >= before:  # only an overflow makes the scale smaller
            scheduler.step()
        total += loss * len(labels)  # the last batch may be smaller
        seen += len(labels)
    return total / seen
    ### END SOLUTION

# %% [markdown] exercise="Checkpoint"
# Write the class `Checkpoint(model, optimizer, scheduler, scaler)` with two methods.
#
# * `save(path, epoch)` writes everything that the run will need to go on, into one file. If saving fails, the exception
#   comes out, and the file that was there before is still whole.
# * `resume(path)` puts the saved state into the four parts that the object was made with, and returns the epoch.
#
# A run that was broken and resumed in a new process goes on **bit by bit** as if it had not been broken: weights, running
# statistics, momentum, schedule, loss scale, and the random numbers of Python, NumPy and torch. The file
# can be loaded with `torch.load(path, weights_only=True)`, which runs no code that the file brings along.

# %% exercise="Checkpoint"
class Checkpoint:
    """Saves a training run in one file, and goes on from it."""

    def __init__(self, model, optimizer, scheduler, scaler):
        ### BEGIN SOLUTION
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        ### END SOLUTION

    def save(self, path, epoch):
        ### BEGIN SOLUTION
        name, keys, *rest = np.random.get_state()
        state = {part: thing.state_dict() for part, thing in self.parts.items()}
        state["epoch"] = epoch
        state["random"] = {
            "python": random.getstate(),
            "numpy": [name, torch.from_numpy(keys), *rest],  # weights_only loads tensors, but no arrays
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        draft = f"{path}.{os.getpid()}.tmp"  # in the same folder: a rename within one file system is all or nothing
        try:
            torch.save(state, draft)
            os.replace(draft, path)
        finally:
            if os.path.exists(draft):
                os.remove(draft)
        ### END SOLUTION

    def resume(self, path):
        ### BEGIN SOLUTION
        # On the CPU: load_state_dict moves what has to be moved, and generators want their state there.
        state = torch.load(path, map_location="cpu", weights_only=True)
        for part, thing in self.parts.items():
            thing.load_state_dict(state[part])
        random.setstate(state["random"]["python"])
        name, keys, *rest = state["random"]["numpy"]
        np.random.set_state((name, keys.numpy(), *rest))
        torch.set_rng_state(state["random"]["torch"])
        if state["random"]["cuda"]:
            torch.cuda.set_rng_state_all(state["random"]["cuda"])
        return state["epoch"]
        ### END SOLUTION

# %%
def with_breaks(x, limit):
    """Scale x down to the norm `limit` where it is longer, and add its mean."""
    norm = x.norm()
    print("norm", norm)
    if norm > limit:
        x = x * (limit / norm.item())
    return x + x.mean().item()

# %% [markdown] exercise="without_graph_breaks"
# `with_breaks`, above, falls into several graphs. Write `without_graph_breaks(x, limit)`: the same results, and the same
# gradients, in **one** graph for every kind of input, without the print. Note what `item()` does to the gradient. `x` is
# left as it was. (The norm may be 0.)

# %% exercise="without_graph_breaks"
def without_graph_breaks(x, limit):
    """As with_breaks, in one graph."""
    ### BEGIN SOLUTION
    # detach: item() made a number of it, through which no gradient flows.
    norm = x.norm().detach()
    x = x * (limit / norm.clamp(min=limit))  # 1 where the norm is smaller: no condition, and no division by 0
    return x + x.mean().detach()
    ### END SOLUTION

# %% [markdown] exercise="unused_nodes"
# Write `unused_nodes(graph_module)`. It gets a `torch.fx.GraphModule` and returns a list of the names of all calls whose
# results are never used, not even indirectly: a chain of calls that ends in nothing is unused as a whole. Inputs and the
# output are no calls. The names come in the order of the graph, which is left as it is. (No call in it works in place.)

# %% exercise="unused_nodes"
def unused_nodes(graph_module):
    """Names of the calls whose results are never used, in the order of the graph."""
    ### BEGIN SOLUTION
    unused = []
    for node in reversed(graph_module.graph.nodes):  # users come before what they use
        if node.op not in ("placeholder", "output") and all(user in unused for user in node.users):
            unused.append(node)
    return [node.name for node in reversed(unused)]
    ### END SOLUTION

# %%
def wasteful_pipeline(images, top, left, size, mean, std):
    """(N, H, W, 3) uint8 -> the window at (top, left), (N, 3, size, size) float32, normalised."""
    batch = images.clone().float()
    batch = batch.permute(0, 3, 1, 2).contiguous()
    batch = batch[:, :, top : top + size, left : left + size].contiguous()
    batch = batch.to(torch.float32, copy=True) / 255
    return (batch - mean.view(3, 1, 1)) / std.view(3, 1, 1)

# %% [markdown] exercise="lean_pipeline"
# `wasteful_pipeline`, above, works, and copies its pixels several times: `operators(wasteful_pipeline, ...)` shows a
# `copy_` for each. Write `lean_pipeline(images, top, left, size, mean, std)`: the same contiguous batch, with one copy,
# and without a second tensor of the size of the result at any moment. The arguments are left as they were.

# %% exercise="lean_pipeline"
def lean_pipeline(images, top, left, size, mean, std):
    """(N, H, W, 3) uint8 -> the window at (top, left), (N, 3, size, size) float32, normalised."""
    ### BEGIN SOLUTION
    window = images[:, top : top + size, left : left + size].permute(0, 3, 1, 2)  # views: nothing has moved yet
    # Layout and dtype in one copy, of the window alone.
    batch = window.to(torch.float32, memory_format=torch.contiguous_format)
    # In place, and 255 goes into the three numbers: (p / 255 - mean) / std = (p - 255 mean) / (255 std).
    return batch.sub_(255 * mean.view(3, 1, 1)).div_(255 * std.view(3, 1, 1))
    ### END SOLUTION

# %% [markdown] exercise="train_cifar_mini"
# Write `train_cifar_mini(images, labels, budget)`: your own recipe. It gets
#
# * `images`, N training images that count how often they are read: `images[index]` gives a copy, (B, 3, 32, 32) uint8 RGB,
#   for a number, a slice, a list or a tensor of numbers. `len(images)`, `images.device`, `images.images_left` cost nothing;
# * `labels`, (N,) int64, 0 to 9;
# * `budget`, a whole number: each image may be read that many times on average. Asking for more raises `BudgetSpent`.
#
# It returns a function `predict(images)` that takes (M, 3, 32, 32) uint8 and returns (M,) int64, the classes. Read a batch
# anew for each step of the optimizer. When you check, you get four fifths of the training images, and the rest is
# predicted; when you are graded, you get all of them, and predict test images whose labels only the judge has.

# %% exercise="train_cifar_mini"
def train_cifar_mini(images, labels, budget):
    """Train within a budget of passes; a function that predicts classes."""
    ### BEGIN SOLUTION
    batch_size, classes, device = 50, 10, images.device
    # Few passes: a small net that learns fast, hardly disturbed. Many passes: more room, and more noise against learning by heart.
    long_run = budget > 25
    widths = (48, 96, 192) if long_run else (32, 64, 128)

    def prepare(pixels):
        return ((pixels.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)

    def whitening(x):
        """Weights of a 2x2 convolution whose outputs on x are uncorrelated and of equal size; then the same, negated."""
        patches = x.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        weights = (vectors / (values + 5e-4).sqrt()).T.reshape(12, 3, 2, 2)
        return torch.cat([weights, -weights])

    def group(inputs, outputs):
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.GELU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.GELU(),
        ]  # fmt: skip

    def augment(x, mirrored):
        """Mirror, crop after padding by 4; in long runs also shift colours and cut a hole of 8 x 8."""
        n, rows = len(x), torch.arange(32, device=device)
        x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
        corner = torch.randint(0, 9, (2, n, 1), device=device)
        item, channel = torch.arange(n, device=device)[:, None, None, None], torch.arange(3, device=device)[:, None, None]
        x = F.pad(x, (4, 4, 4, 4), mode="reflect")[
            item, channel, (corner[0] + rows)[:, None, :, None], (corner[1] + rows)[:, None, None, :]
        ]
        if long_run:
            contrast = 1 + 0.1 * torch.randn(n, 1, 1, 1, device=device)
            x = x * contrast + 0.1 * torch.randn(n, 3, 1, 1, device=device)
            corner = torch.randint(0, 25, (2, n, 1), device=device)
            down, across = ((rows >= corner) & (rows < corner + 8)).unbind(0)
            x = x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0)
        return x.contiguous(memory_format=torch.channels_last)

    a, b, c = widths
    model = nn.Sequential(
        nn.Conv2d(3, 24, 2, bias=False), nn.GELU(), *group(24, a), *group(a, b), *group(b, c),
        nn.MaxPool2d(3), nn.Flatten(), nn.Linear(c, classes, bias=False),
    )  # fmt: skip
    for layer in model[1:]:
        if isinstance(layer, nn.Conv2d):  # each layer begins by passing its input on: gradients reach the first from step 1
            nn.init.dirac_(layer.weight[: layer.in_channels])
    model.to(device, memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)

    kernels = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    scales = [p for p in model.parameters() if p.requires_grad and p.dim() == 1]
    optimizer = torch.optim.SGD(
        [{"params": kernels, "weight_decay": 2e-3}, {"params": scales, "weight_decay": 0}],
        lr=0.15, momentum=0.9, nesterov=True,
    )  # fmt: skip
    batches = -(-len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.15, total_steps=budget * batches, pct_start=0.2, anneal_strategy="linear",
        cycle_momentum=False, div_factor=10, final_div_factor=100,
    )  # fmt: skip
    mirrored = torch.rand(len(images), device=device) < 0.5
    model.train()
    for epoch in range(budget):
        for index in torch.randperm(len(images), device=device).split(batch_size):
            x = prepare(images[index])
            if epoch == 0 and schedule.last_epoch == 0:  # before the first step: from 48,000 patches of the first batch
                with torch.no_grad():
                    model[0].weight.copy_(whitening(x))
            # Mirrored in every second epoch: in two passes each image is seen both ways once, which chance does not grant.
            logits = model(augment(x, mirrored[index] ^ (epoch % 2 == 1))) / 9  # gentle logits at the start
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()

    @torch.no_grad()
    def predict(unseen):
        """Mean over six views: the image, two shifts by one pixel, and their mirror images."""
        classes = []
        for x in unseen.split(250):
            padded = F.pad(prepare(x), (1, 1, 1, 1), mode="reflect")
            views = [padded[:, :, i : i + 32, i : i + 32] for i in range(3)]
            views += [view.flip(3) for view in views]
            classes.append(sum(model(view).softmax(1) for view in views).argmax(1))
        return torch.cat(classes)

    return predict
    ### END SOLUTION
