# %% [markdown]
# # 3. Two places, one program

# %% tags=["setup"]
import copy
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import check, hint, progress
from course_utils.simgpu import counting, simulated_gpu

# %% [markdown] exercise="pick_device"
# Write `pick_device(wish=None)`. It returns a `torch.device` that can be used.
#
# * `wish` is `None`: the GPU if this machine has one, whatever its maker, else the CPU. A simulated GPU that is switched
#   on counts.
# * `wish` is a name (`"cpu"`, `"sim:1"`, `"cuda"`) or a `torch.device`: that device. If it cannot be used, an error,
#   whichever you like. It must not become another device in silence.

# %% exercise="pick_device"
def pick_device(wish=None):
    """None, a name or a device -> a torch.device that works. Raises an error for one that does not."""
    ### BEGIN SOLUTION
    if wish is None:
        # current_accelerator names the kind of GPU (cuda, mps, xpu, sim), so the code names none.
        wish = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    device = torch.device(wish)
    # torch.device("cuda:7") checks the spelling only. Using the device is the one sure test, and costs 512 bytes.
    torch.zeros(1, device=device)
    return device
    ### END SOLUTION

# %% [markdown] exercise="placement"
# Write `placement(model)`. It returns a dictionary `{name: device}` with an entry for every tensor that the model
# holds: parameters, buffers, and *forgotten* tensors, those that some module in the tree keeps as a plain attribute.
# Devices are text, as `str(tensor.device)` gives it. Names are as PyTorch makes them: `"2.mix.weight"`, and in the
# same manner `"2.scale"` for the attribute `scale` of `model[2]`.
#
# Lists of tensors in an attribute need not be looked into.

# %% exercise="placement"
def placement(model):
    """Model -> {name: device as text} of its parameters, buffers and plain tensor attributes."""
    ### BEGIN SOLUTION
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for prefix, module in model.named_modules():
        # Parameters, buffers and children live in dictionaries of their own; vars() shows what is left.
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                tensors[f"{prefix}.{name}" if prefix else name] = value
    return {name: str(tensor.device) for name, tensor in tensors.items()}
    ### END SOLUTION

# %% [markdown] exercise="Normalize"
# Write the module `Normalize(mean, std)`. It gets one mean and one std per channel, as lists or tensors. Called with
# images (N, C, H, W) it returns `(images - mean) / std`, each channel with its own two numbers, in float32.
#
# After `.to(device)` it works there, without sending anything in `forward`. After `.double()` it computes in float64.
# It has nothing that an optimizer could train.

# %% exercise="Normalize"
class Normalize(nn.Module):
    """Images (N, C, H, W) -> (images - mean) / std, channel by channel, wherever the module is."""

    def __init__(self, mean, std):
        ### BEGIN SOLUTION
        super().__init__()
        # Buffers follow .to() and .double(), and no optimizer sees them. (C, 1, 1) broadcasts over N, H and W.
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).view(-1, 1, 1))
        ### END SOLUTION

    def forward(self, images):
        ### BEGIN SOLUTION
        return (images - self.mean) / self.std
        ### END SOLUTION

# %% [markdown] exercise="to_device"
# Write `to_device(batch, device)`. A batch is a tensor, or a dictionary, list, tuple or named tuple of batches, or
# something else (text, numbers, `None`). It returns the same structure with every tensor on the device. What is no tensor stays as it is.
#
# A tensor that is there already comes back as the same object. The batch that was given keeps its own tensors.

# %% exercise="to_device"
def to_device(batch, device):
    """The batch with all its tensors on the device, in new containers of the same kinds."""
    ### BEGIN SOLUTION
    if isinstance(batch, torch.Tensor):
        return batch.to(device)  # returns the tensor itself where there is nothing to do
    if isinstance(batch, dict):
        return type(batch)((key, to_device(value, device)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)):
        moved = [to_device(value, device) for value in batch]
        # A named tuple takes its fields one by one, list and tuple take them as one iterable.
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch
    ### END SOLUTION

# %% [markdown] exercise="optimizer_to"
# Write `optimizer_to(optimizer, device)`. The parameters have just been moved to the device, the optimizer's state has
# not: Adam's averages, SGD's momentum. Bring all tensors of the state to the device, with their values, in the optimizer
# that was given. The tensors called `"step"` stay on the host, where the optimizer keeps them.
#
# It works for any optimizer of `torch.optim`, and returns nothing.

# %% exercise="optimizer_to"
def optimizer_to(optimizer, device):
    """Move the optimizer's state to the device, in place. The step counters stay on the host."""
    ### BEGIN SOLUTION
    for state in optimizer.state.values():
        for key, value in state.items():
            # The host reads "step" in every step: on the device it would have to wait for each one.
            if isinstance(value, torch.Tensor) and key != "step":
                state[key] = value.to(device)
    ### END SOLUTION

# %% [markdown] exercise="mend_1"
# Mend `mend_1`. Run it first, on the simulated GPU, and read the error. Afterwards model and scores are on the device.

# %% exercise="mend_1"
def mend_1(model, images, device):
    """The model's scores for the images, computed on the device."""
    model.to(device)
    images.to(device)
    return model(images)


### BEGIN SOLUTION
def mend_1(model, images, device):
    """The model's scores for the images, computed on the device."""
    model.to(device)  # a module moves in place
    images = images.to(device)  # a tensor does not: the moved one is the result
    return model(images)
### END SOLUTION

# %% [markdown] exercise="mend_2"
# Mend `mend_2`. The array holds float64 images. The scores are float32, on the device, and the model stays float32.

# %% exercise="mend_2"
def mend_2(model, array, device):
    """The model's scores for a NumPy array of images (N, C, H, W), computed on the device."""
    images = torch.from_numpy(array).to(device)
    return model.to(device)(images)


### BEGIN SOLUTION
def mend_2(model, array, device):
    """The model's scores for a NumPy array of images (N, C, H, W), computed on the device."""
    # Same device, other dtype: NumPy makes float64. Converted on the host, half of the bytes travel.
    images = torch.from_numpy(array).float().to(device)
    return model.to(device)(images)
### END SOLUTION

# %% [markdown] exercise="mend_3"
# Mend `mend_3`. It has to work for features on any device, the CPU included, and the result lies where the features lie.

# %% exercise="mend_3"
def mend_3(features):
    """Features (N, T, C), each position weighted: the first by 1, the last by 0."""
    ramp = torch.linspace(1, 0, features.shape[1])
    return features * ramp[:, None]


### BEGIN SOLUTION
def mend_3(features):
    """Features (N, T, C), each position weighted: the first by 1, the last by 0."""
    # Made where it is needed: nothing travels, and no device is named.
    ramp = torch.linspace(1, 0, features.shape[1], device=features.device)
    return features * ramp[:, None]
### END SOLUTION

# %% [markdown] exercise="mend_4"
# Mend `mend_4`. Its model is moved with `.to(device)` and fed with an input on the device.

# %% exercise="mend_4"
def mend_4(sizes):
    """A chain of linear layers from sizes[0] to sizes[-1] features, a ReLU between each two."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(i, o) for i, o in zip(sizes, sizes[1:])]

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = layer(x).relu()
            return self.layers[-1](x)

    return Chain()


### BEGIN SOLUTION
def mend_4(sizes):
    """A chain of linear layers from sizes[0] to sizes[-1] features, a ReLU between each two."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            # A Python list hides its layers from .to(), parameters() and state_dict(). A ModuleList registers them.
            self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(sizes, sizes[1:]))

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = layer(x).relu()
            return self.layers[-1](x)

    return Chain()
### END SOLUTION

# %% [markdown] exercise="mend_5"
# Mend `mend_5`. The model computes on the device and stays there; the result is one NumPy array. As little as possible comes back.

# %% exercise="mend_5"
def mend_5(model, batches, device):
    """The predicted class of every image, as one NumPy array; the model computes on the device."""
    model.to(device).eval()
    found = []
    with torch.no_grad():
        for images in batches:
            scores = model(images.to(device))
            found.append(scores.argmax(1).numpy())
    return np.concatenate(found)


### BEGIN SOLUTION
def mend_5(model, batches, device):
    """The predicted class of every image, as one NumPy array; the model computes on the device."""
    model.to(device).eval()
    found = []
    with torch.no_grad():
        for images in batches:
            scores = model(images.to(device))
            found.append(scores.argmax(1).cpu().numpy())  # classes come back, not scores: 8 bytes an image
    return np.concatenate(found)
### END SOLUTION

# %% [markdown] exercise="mend_6"
# Mend `mend_6`. It raises nothing, and the copy does not learn. `model`, the caller's own, keeps its weights and its place.

# %% exercise="mend_6"
def mend_6(model, batches, device):
    """A copy of the model on the device, trained on the batches; the model stays as it is."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained = copy.deepcopy(model).to(device)
    for images, labels in batches:
        loss = F.cross_entropy(trained(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return trained


### BEGIN SOLUTION
def mend_6(model, batches, device):
    """A copy of the model on the device, trained on the batches; the model stays as it is."""
    trained = copy.deepcopy(model).to(device)
    # An optimizer changes the parameter objects that it is given: make it last, from the model that is trained.
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
    for images, labels in batches:
        loss = F.cross_entropy(trained(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return trained
### END SOLUTION

# %% [markdown] exercise="mend_7"
# Mend `mend_7`. It works with `device="cpu"`. Why not on a GPU? It has to do the same on both.

# %% exercise="mend_7"
def mend_7(x, y, device):
    """Weights (features,) on the device that fit y by x @ weights: five steps of gradient descent from zero."""
    x, y = x.to(device), y.to(device)
    weights = torch.zeros(x.shape[1], requires_grad=True).to(device)
    for _ in range(5):
        loss = ((x @ weights - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            weights.grad.zero_()
    return weights.detach()


### BEGIN SOLUTION
def mend_7(x, y, device):
    """Weights (features,) on the device that fit y by x @ weights: five steps of gradient descent from zero."""
    x, y = x.to(device), y.to(device)
    # Made on the device, it is a leaf. zeros(..., requires_grad=True).to(device) is a copy of the leaf: no leaf, no .grad.
    weights = torch.zeros(x.shape[1], device=device, requires_grad=True)
    for _ in range(5):
        loss = ((x @ weights - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            weights.grad.zero_()
    return weights.detach()
### END SOLUTION

# %% [markdown] exercise="train_lean"
# Write `train_lean(model, loader, optimizer, device)`: one epoch of training. The model is on the device already. The
# loader gives batches `(images, labels)` on the host, in pinned memory: images (N, 3, H, W) uint8, labels (N,) int64. The model takes
# float32 images in [0, 1]. The loss is cross entropy. The last batch is smaller than the others.
#
# It returns the mean loss of the epoch, over all samples, as a Python float.
#
# * Each image and each label travels once, as the bytes that it has.
# * The host waits for the device once in the whole epoch.
# * The device holds one batch at a time, and no graph of an old one.

# %% exercise="train_lean"
def train_lean(model, loader, optimizer, device):
    """Train one epoch; returns the mean loss per sample as a float."""
    ### BEGIN SOLUTION
    model.train()
    total, count = torch.zeros((), device=device), 0
    for images, labels in loader:
        # uint8 travels, float32 is made on the device: a quarter of the bytes. From pinned memory nobody waits.
        images = images.to(device, non_blocking=True).float().div_(255)
        labels = labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)  # stays on the device: item() here would wait in every batch
        count += len(labels)
    return total.item() / count  # the one wait
    ### END SOLUTION

# %% [markdown] exercise="load_anywhere"
# Write `load_anywhere(path, model, optimizer, device)`. The file holds `{"model": ..., "optimizer": ..., "epoch": ...}`,
# two state_dicts and an integer. It was saved on a machine with more GPUs, so its tensors may name a device that is not
# here. `model` and `optimizer` are new, on the host, and belong together.
#
# Afterwards the model is on `device`, both states are loaded, and training goes on as if it had never stopped. The epoch is
# returned. The device holds no second copy of anything, at no time. A file that holds code must not run it.

# %% exercise="load_anywhere"
def load_anywhere(path, model, optimizer, device):
    """Load a checkpoint into model and optimizer, on the device; returns its epoch."""
    ### BEGIN SOLUTION
    # To the host first: a file remembers devices that need not exist here, and the device holds only what is used.
    # weights_only refuses to run code; it is the default by now, and worth saying.
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    model.to(device)
    optimizer.load_state_dict(checkpoint["optimizer"])  # last: the state follows the parameters to their device
    return checkpoint["epoch"]
    ### END SOLUTION

# %% [markdown] exercise="staged_copy"
# Write `staged_copy(batches, device)`. It gets host tensors of one dtype, an iterable of them, all of one shape but for
# the number of rows, which is never larger than in the first batch. It returns the list of their copies on the device.
#
# * Each copy comes out of pinned memory and nobody waits for it: `non_blocking=True`.
# * There is pinned memory for two batches at most. So buffers are used again.
# * A buffer must not be written to while a copy out of it may still be reading. Wait for *that* copy, not for each right away.
# * The batches are only read.
#
# `event = torch.get_device_module(device).Event()`, `event.record()` after a copy, `event.synchronize()` waits until that copy is done.

# %% exercise="staged_copy"
def staged_copy(batches, device):
    """Host tensors -> list of their copies on the device, through two pinned buffers that take turns."""
    ### BEGIN SOLUTION
    buffers, events, result = [], [], []
    for i, batch in enumerate(batches):
        turn = i % 2
        if i < 2:
            buffers.append(torch.empty_like(batch, memory_format=torch.contiguous_format, pin_memory=True))
            events.append(torch.get_device_module(device).Event())
        else:
            events[turn].synchronize()  # the copy of two batches ago; the last one may go on meanwhile
        staged = buffers[turn][: len(batch)]
        staged.copy_(batch)
        result.append(staged.to(device, non_blocking=True))
        events[turn].record()
    return result
    ### END SOLUTION

# %% [markdown] exercise="validation_losses"
# Mend `validation_losses(model, loader, loss_function, device)`. The values are right, and the device runs out of memory after some
# thousand batches. The model is on the device already. Return the list of losses, one per batch, as floats or as tensors
# that hold nothing else. The model comes back in the mode that it came in.

# %% exercise="validation_losses"
def validation_losses(model, loader, loss_function, device):
    """The loss of every batch, in evaluation mode."""
    model.eval()
    losses = []
    for x, y in loader:
        losses.append(loss_function(model(x.to(device)), y.to(device)))
    model.train()
    return losses


### BEGIN SOLUTION
def validation_losses(model, loader, loss_function, device):
    """The loss of every batch, in evaluation mode."""
    was_training = model.training
    model.eval()
    losses = []
    with torch.no_grad():  # no graph: activations go as soon as the next layer has them
        for x, y in loader:
            losses.append(loss_function(model(x.to(device)), y.to(device)).item())
    model.train(was_training)
    return losses
### END SOLUTION

# %% [markdown] exercise="FeatureCache"
# Mend the class `FeatureCache(layer)`. After every forward pass of the layer, `latest` holds the values that the layer
# returned. It must hold no graph and no memory of the device, and in-place layers that follow must not change it. After
# `close()` the layer is as it was before, and `latest` is `None`; a second `close()` does no harm.

# %% exercise="FeatureCache"
class FeatureCache:
    """Keeps the latest output of a layer in ``latest`` until ``close()`` is called."""

    def __init__(self, layer):
        self.latest = None
        layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.latest = output

    def close(self):
        self.latest = None


### BEGIN SOLUTION
class FeatureCache:
    """Keeps the latest output of a layer in ``latest`` until ``close()`` is called."""

    def __init__(self, layer):
        self.latest = None
        self.handle = layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        # detach lets the graph go, cpu frees the device and copies, before an in-place ReLU overwrites the output.
        self.latest = output.detach().cpu()

    def close(self):
        self.handle.remove()
        self.latest = None
### END SOLUTION

# %% [markdown] exercise="LossHistory"
# Mend the class `LossHistory`. `add(loss, n)` takes the mean loss of a batch of `n` samples, a tensor on the device. `mean()` is the mean over all
# samples so far, as a Python float, and can be asked for at any time. The history holds no graph, and as much memory after a thousand batches as after
# two. `add` does not wait for the device and leaves the loss as it is.

# %% exercise="LossHistory"
class LossHistory:
    """The mean loss per sample, over all batches so far."""

    def __init__(self):
        self.total = 0
        self.count = 0

    def add(self, loss, n):
        """Take in the mean loss of one batch of n samples."""
        self.total = self.total + loss * n
        self.count += n

    def mean(self):
        """The mean as a Python float."""
        return (self.total / self.count).item()


### BEGIN SOLUTION
class LossHistory:
    """The mean loss per sample, over all batches so far."""

    def __init__(self):
        self.total = 0
        self.count = 0

    def add(self, loss, n):
        """Take in the mean loss of one batch of n samples."""
        # Without detach each total would hold the one before it: a chain as long as the training.
        self.total = self.total + loss.detach() * n
        self.count += n

    def mean(self):
        """The mean as a Python float."""
        return (self.total / self.count).item()
### END SOLUTION

# %% [markdown] exercise="training_bytes"
# Write `training_bytes(model, optimizer_class, **options)`. It returns the bytes that one training step with `optimizer_class(model.parameters(), **options)`
# keeps on the model's device, as a dictionary:
#
# * `"parameters"`: all of them, frozen ones too; a weight that two layers share counts once
# * `"gradients"`: one for each parameter that is trained
# * `"state"`: what the optimizer keeps beside them, after its first step. Adam's `step` stays on the host and does not count.
#
# Buffers and activations are left out, and nothing is rounded. The model stays as it is, and the device gives no memory for the answer: it is a plan.
# Optimizers asked for: SGD, Adam, AdamW and RMSprop, with any options.

# %% exercise="training_bytes"
def training_bytes(model, optimizer_class, **options):
    """Bytes on the device of a model in training: {"parameters": ..., "gradients": ..., "state": ...}."""
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]  # parameters() gives a shared one once
    # What an optimizer keeps, only the optimizer knows. It steps on tensors that have a shape and no memory.
    stand_ins = [nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta")) for p in trained]
    for p in stand_ins:
        p.grad = torch.empty_like(p)
    optimizer = optimizer_class(stand_ins, **options)
    optimizer.step()
    state = [value for values in optimizer.state.values() for key, value in values.items() if key != "step"]
    return {
        "parameters": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.nbytes for p in trained),
        "state": sum(value.nbytes for value in state if isinstance(value, torch.Tensor)),
    }
    ### END SOLUTION

# %% [markdown] exercise="checkpointed"
# Write `checkpointed(blocks, x)`. It runs a list of modules one after the other and returns the last output, with the
# gradients of the plain loop. Between forward and backward only what goes *into* each block is kept. The inside of a
# block is computed again when backward comes to it, one block at a time. `x` need not require a gradient. Blocks may hold dropout.
#
# `from torch.utils.checkpoint import checkpoint` is done in the first cell.

# %% exercise="checkpointed"
def checkpointed(blocks, x):
    """Blocks in sequence, each a checkpoint: its inside is computed twice and kept never."""
    ### BEGIN SOLUTION
    for block in blocks:
        # The reentrant kind would lose the gradients where x needs none. Random state is kept: the same dropout twice.
        x = checkpoint(block, x, use_reentrant=False)
    return x
    ### END SOLUTION

# %% [markdown] exercise="time_on"
# Write `time_on(device, function, repeats=5, clock=time.perf_counter)`. It returns the seconds that one call of
# `function()` takes on the device, as a float, from `repeats` calls. `clock()` gives the time in seconds: use it, and
# no other. The checks pass a clock of their own.
#
# A first call is slow (memory, kernels, caches) and must not be part of the time. Calls return before the device has done the
# work. On the CPU there is nothing to wait for, and perhaps no accelerator to ask.

# %% exercise="time_on"
def time_on(device, function, repeats=5, clock=time.perf_counter):
    """Seconds per call of function() on the device, warmed up, from `repeats` calls."""
    ### BEGIN SOLUTION
    def wait():
        if torch.device(device).type != "cpu":
            torch.accelerator.synchronize(device)

    function()  # warm up
    wait()  # or the rest of the warm-up would run into the time
    start = clock()
    for _ in range(repeats):
        function()
    wait()  # or the clock would tell how long it took to ask, not to compute
    return (clock() - start) / repeats
    ### END SOLUTION
