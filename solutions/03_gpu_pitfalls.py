# %% [markdown]
# # 3. Two places, one program
#
# A model was written and tested on a laptop. Tonight it runs on a rented machine with a GPU. Somebody put
# `.to(device)` in six places until the errors stopped. Now no line complains, and in the morning there are three
# questions. Why is the mean of a feature `nan`? Why has the loss not moved? Why is the expensive device idle?
#
# The next cells run that program in small. Not one line raises an error.

# %% tags=["setup"]
import copy
import gc
import importlib.metadata
import inspect
import io
import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from course_utils import bytes_saved_for_backward, check, hint, load_cifar_mini, my_predictions
from course_utils import predict, progress, reveal, shows_error, shows_warning, table
from course_utils.plots import bars, figure, show
from course_utils.simgpu import counting, enable, simulated_gpu
from course_utils.widgets.queue import order_picture, queue_explorer, recording

# %%
device = enable()  # the second place; part 1 says what it is

torch.manual_seed(0)
features = torch.rand(1000, device=device)
on_host = features.to("cpu", non_blocking=True)
print("mean of a feature:", on_host.mean().item())

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = copy.deepcopy(model).to(device)  # "so that the laptop's model stays as it is"
x, y = torch.randn(8, 3, device=device), torch.randn(8, 1, device=device)

losses = []
with counting() as cost:
    for step in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 3))
print("loss of four steps:", losses)
print("in four steps the host stood still, waiting for the device:", cost.synchronisations, "times")

# %% [markdown]
# * The feature is fine. It was read before it had arrived.
# * The optimizer holds the parameters of another model, the one from before the copy.
# * Each `loss.item()` made the host wait for the device.
#
# All three have one root. There are now **two places**, each with a memory of its own, and **two processors**: the
# *host*, which is the CPU and runs Python, and the *device*. They do not wait for each other unless they are told to.
# After this notebook you can say of every line **where its tensors live, what is copied, and who waits**, and prove it.
#
# **You need:** sections 1 and 2, or their ideas: storage, views, gradients. No GPU.
#
# | part | idea | minutes to read and run |
# | :-- | :-- | :-- |
# | 1 | The second place: what is simulated, what your machine has | 20 |
# | 2 | Who moves, and who stays | 25 |
# | 3 | Seven disguises of one error | 20 |
# | 4 | Optimizers and files have a place, too | 15 |
# | 5 | Move once: counting copies, bytes and waits | 15 |
# | 6 | The host does not wait | 25 |
# | 7 | Workers and the device | 10 |
# | 8 | Where the memory goes | 30 |
#
# Every exercise says its own minutes. You need not do all of it at once.

# %%
progress("gpu_pitfalls")

# %% [markdown]
# ## Part 1. The second place
#
# ### What is simulated here, and what is not
#
# Most laptops have no CUDA GPU. So this course brings a *simulated* one. `enable()` switched it on, and it is called
# `sim:0`.

# %%
x = torch.tensor([1.0, 2.0], device=device)
print(x, x.device, x.is_cpu)
print(torch.sim.get_device_name())

# %% [markdown]
# A tensor of `sim` is an ordinary CPU tensor whose memory carries a mark. The simulation looks at every operator and
# applies the rules of CUDA to the marks.
#
# | simulated, exactly | not simulated |
# | :-- | :-- |
# | which tensors may meet, and CUDA's own words when they may not | time: there is no clock, nothing gets faster |
# | what `.to()` copies, what a module takes along | `torch.compile`, sparse tensors, a second stream, CUDA graphs |
# | optimizer state, `torch.save` and `torch.load`, data loaders | the cache of CUDA's allocator ("reserved" memory) |
# | pinned memory and `non_blocking`, with both mistakes | CUDA's random numbers and its rounding |
# | copies, bytes, kernels, waits, as counts | other processes on the same GPU |
# | memory in use, in blocks of 512 bytes | a kernel that crashes the device |
#
# So all numbers below are real numbers, computed by your CPU, and the counts are the same on every machine. Where the
# simulation cannot tell the truth, it refuses:

# %%
with shows_error():
    torch.sim.Event(enable_timing=True)

# %% [markdown]
# Its words are CUDA's, with `sim` in the place of `cuda` and `SIM` in that of `CUDA`. It was built from PyTorch's
# source and is tested on CPUs. If your machine has a CUDA GPU, the cells that loop over `places` show the real device
# as well. Trust what the real device says more.

# %%
places = [device]
if torch.cuda.is_available():
    places.append(torch.device("cuda:0"))
for place in places:
    with shows_error():
        torch.ones(2, device=place) + torch.ones(2)

# %% [markdown]
# This is the message that everybody knows. It will come in other clothes.

# %% [markdown]
# ### What does this machine have?
#
# Ask before the first lesson, not after the first failure. One command checks it all, in a terminal
# (`python -m course_utils doctor`) or here:

# %%
command = [sys.executable, "-m", "course_utils", "doctor"]
checked = subprocess.run(command, capture_output=True, text=True, check=False)
print((checked.stdout or checked.stderr).replace(sys.prefix, "..."))

# %% [markdown]
# A line that is not `ok` says what to do. The last lines are four stages of small tests. Each stage uses only what the
# ones before have shown to work: tensors and strides; views and in-place steps; a gradient through `x`, `w` and `b`;
# the device and mixed precision. The fourth has a form for the CPU, so it can be passed everywhere. If a stage fails,
# mend it before you go on: what comes later would fail for the same reason, in harder words.
#
# ### Three versions with one name
#
# | what | who brings it | where to read it |
# | :-- | :-- | :-- |
# | CUDA **of the wheel**: the libraries that PyTorch was built with | `pip install torch` | `torch.version.cuda` |
# | CUDA **of the driver**: the newest that the driver can run | the operating system's administrator | top right in `nvidia-smi` |
# | CUDA **toolkit**: compiler and headers | you, if you compile CUDA code yourself | `nvcc --version` |

# %%
predict(
    "build_and_driver",
    "`torch.version.cuda` is a version number, such as 13.0. Is `torch.cuda.is_available()` true "
    "on your machine?",
    [True, False],
)
predict(
    "toolkit",
    "Must a CUDA toolkit be installed before `import torch` works with a CUDA wheel?",
    [True, False],
)

# %%
print("torch", torch.__version__)
print("torch.version.cuda:", torch.version.cuda)
print("torch.cuda.is_available():", torch.cuda.is_available())
reveal("build_and_driver", torch.cuda.is_available())
with shows_error():
    print(torch.cuda.get_device_properties(0))

# %%
names = {d.metadata["Name"] for d in importlib.metadata.distributions()}
carried = sorted(n for n in names if n and n.startswith("nvidia-"))
print(len(carried), "packages of CUDA libraries came with the wheel:", ", ".join(carried[:4]), "...")

maps = Path("/proc/self/maps")  # what this process has loaded; Linux only
loaded = {line.split()[-1] for line in maps.read_text().splitlines()} if maps.exists() else set()
runtimes = {path for path in loaded if "libcudart" in path}
print("the CUDA runtime in use:", [p.split("site-packages/")[-1] for p in runtimes] or "none")
reveal("toolkit", any("site-packages" not in path for path in runtimes))

# %% [markdown]
# If you did not know, you were right: the one does not tell the other. The version is a fact about the *build*: it is
# what somebody compiled. Whether CUDA is available is a fact about the *machine*. A wheel for CUDA imports on a machine
# without driver and without toolkit. But it cannot ask a card that is not there: a script that prints the device's name
# and memory first, which is a good habit, must ask `is_available()` before. (If `torch.version.cuda` is `None`, you
# have a CPU build: then a driver helps nothing, and another wheel is what you need.)
#
# "The three must be equal" is a belief that has cost many an evening. The rule is one-sided:
#
# * **The driver must be at least as new as the wheel needs.** A newer driver runs older wheels. NVIDIA lists the
#   minimum driver of every CUDA version: [CUDA compatibility](https://docs.nvidia.com/deploy/cuda-compatibility/).
# * Within one major version (11.x, 12.x, 13.x) the minimum is that of the major version. A driver that shows 11.2 may
#   run a wheel for 11.3.
# * The toolkit does not enter.
#
# These three lines are from the vendor's documentation: without a driver this notebook cannot try them. `doctor`
# shows the two numbers that are needed, the wheel's and the driver's, where there is one.
#
# A lock file holds the rest together. `requirements.txt` pins every package of this course, the CUDA libraries
# included, and `environment.yml` takes its versions from there. Whatever else you use, TensorBoard for one, belongs
# into the lock as well. Do not pin `torch` alone: packages such as `torchvision` ask for a `torch` that fits them.

# %%
for package in ("torch", "torchvision", "numpy"):
    print(f"{package:12} {importlib.metadata.version(package)}")
needed = [n for n in importlib.metadata.requires("torchvision") if n.startswith("torch")]
print("torchvision asks for:", ", ".join(needed))

# %% [markdown]
# ### Old code, new PyTorch
#
# Code that you find is often older than your version. There are three ways to bring it along. Take the first that does:
#
# 1. **another name** for the same call. The warning usually names it;
# 2. **another argument**, where a default has changed or is to be spoken out;
# 3. **another way**, where the call is gone.

# %%
with shows_warning():
    torch.cuda.amp.autocast()
with torch.autocast(device.type):  # level 1: another name, and for any device
    print("autocast on:", torch.is_autocast_enabled(device.type))

# %%
layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
with shows_warning():
    checkpoint(layer, x)
with shows_warning():
    checkpoint(layer, x, use_reentrant=False)  # level 2: another argument

# %% [markdown]
# A level 3 from this course: `loss.data[0]` of old tutorials. It is no renamed call. `loss.item()` reads the number in
# another way, and part 5 shows what that costs.

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

# %% [markdown]
# ## Part 2. Who moves, and who stays
#
# Four traps lie on the way to a second device. You will step into each of them here, so that you need not later.
#
# | trap | symptom | defence | where |
# | :-- | :-- | :-- | :-- |
# | tensors of two devices meet | "Expected all tensors to be on the same device" | look at model *and* data first | parts 2 and 3 |
# | a model moved in part | the same, from deep inside `forward` | ask *all* parameters and buffers | part 2 |
# | the optimizer's state stayed behind | the same, from `optimizer.step()` | move first, or move the state | part 4 |
# | a worker process touches the device | "Cannot re-initialize CUDA in forked subprocess" | CPU tensors in workers | part 7 |
#
# ### A tensor is copied, a module is changed

# %%
predict("tensor_to", "A line says just `x.to(device)`. Where is `x` afterwards?", ["cpu", "sim:0"])
predict("module_to", "It says `layer.to(device)`. Where is `layer.weight`?", ["cpu", "sim:0"])

# %%
x, layer = torch.ones(1, 3), nn.Linear(3, 2)
weight = layer.weight
x.to(device)
layer.to(device)
reveal("tensor_to", x.device)
reveal("module_to", layer.weight.device)
print("layer.weight is the same object as before:", layer.weight is weight)

# %% [markdown]
# A tensor's `.to` returns a tensor. Who does not keep it has copied for nothing: write `x = x.to(device)`. A module's
# `.to` puts new memory behind its parameters. The parameter *objects* stay, so whoever held them, such as an optimizer,
# still holds the right ones.
#
# As always `.to` copies only if it must:

# %%
d = x.to(device)
rows = []
calls = ["x.to('cpu')", "x.cpu()", "d.to(device)", "d.to(device, copy=True)", "d.cpu()", "x.to(device)"]
for call in calls:
    with counting() as cost:
        made = eval(call)
    rows.append((call, made is x or made is d, cost.h2d_bytes + cost.d2h_bytes))
table(("call (x on the host, d on the device)", "returns its tensor itself", "bytes sent"), rows)

# %% [markdown]
# ### A leaf that moved is no leaf
#
# You make a trainable tensor, and move it.

# %%
predict(
    "leaf_grad",
    "`w = torch.zeros(3, requires_grad=True).to(device)`, then a loss from `w`, then `backward()`. "
    "What is `w.grad`?",
    ["the gradient", "None", "an error"],
)

# %%
w = torch.zeros(3, requires_grad=True).to(device)
(w * torch.ones(3, device=device)).sum().backward()
print("w.is_leaf:", w.is_leaf)
with shows_warning():
    gradient = w.grad
reveal("leaf_grad", "None" if gradient is None else "the gradient")

# %% [markdown]
# `.to` is a step of the computation like any other. The gradient went back to the leaf, the tensor on the host, that
# nobody has a name for. On a CPU-only machine the same line works, because there `.to` returns the leaf itself. So
# the test on the laptop passed. Make the tensor where it belongs: `torch.zeros(3, device=device, requires_grad=True)`.
#
# ### Does a move care about `no_grad`?
#
# "Moves must happen outside of `no_grad`", it is said.

# %%
predict("move_no_grad", "Does `x.to(device)` work inside `torch.no_grad()`?", [True, False])

# %%
with torch.no_grad():
    moved = torch.ones(2).to(device)
reveal("move_no_grad", moved.device == device)

# %% [markdown]
# Where a tensor lies, and whether its steps are recorded, are two questions. Only this follows: under `no_grad` the
# copy of a *trainable* tensor is cut off from it, as any result would be.
#
# ### Ask the model where it is

# %%
predict(
    "model_device",
    "What does `model.device` give, for a model of `nn.Linear` layers?",
    ["its device", "an error"],
)
predict(
    "first_parameter",
    "Only the first of two layers was moved. Does `next(model.parameters()).device` show that "
    "something is wrong?",
    [True, False],
)

# %%
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
with shows_error():
    print(model.device)
reveal("model_device", "its device" if hasattr(model, "device") else "an error")

# %%
model[0].to(device)
print("first parameter:", next(model.parameters()).device)
print("all of them:    ", sorted({str(p.device) for p in model.parameters()}))
reveal("first_parameter", next(model.parameters()).device.type == "cpu")
with shows_error():
    next(nn.ReLU().parameters())

# %% [markdown]
# A module has no device. Its tensors have. The first parameter speaks for itself alone, and a module without parameters
# has no first. Ask for the *set* of devices. (Some libraries give their models an attribute `device`. It is theirs, not
# PyTorch's.)
#
# ### In which order?

# %%
predict(
    "back_and_forth",
    "`model[0].cpu()`, then `model.to(device)`. Is `model[0]` on the device?",
    [True, False],
)
predict(
    "replaced_layer",
    "`model.to(device)`, then `model[1] = nn.Linear(3, 5)`. Is all of it on the device?",
    [True, False],
)

# %%
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
model[0].cpu()
model.to(device)
reveal("back_and_forth", model[0].weight.device == device)
model[1] = nn.Linear(3, 5)  # a new head for five classes
reveal("replaced_layer", {p.device for p in model.parameters()} == {device})

# %% [markdown]
# `.to` on a module moves every part that is registered *at that moment*, wherever it was. It leaves no standing order:
# what is put in later comes from where it was made. Change the model first, move it last.
#
# ### What a module takes along
#
# It takes what it knows: parameters, buffers, submodules. A module does not know its plain attributes.

# %%
class Stats(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("std", torch.ones(3), persistent=False)
        self.offset = torch.zeros(3)  # an attribute
        self.layers = [nn.Linear(3, 3)]  # a list
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])


predict(
    "attribute_moves",
    "Which of these follow `module.to(device)`: the buffer `mean`, the attribute `offset`, the layer "
    "in the Python list?",
    ["all three", "the buffer and the attribute", "only the buffer", "none"],
)

# %%
stats = Stats().to(device)
parts = {
    "scale, a parameter": stats.scale,
    "mean, a buffer": stats.mean,
    "std, a buffer that is not saved": stats.std,
    "offset, an attribute": stats.offset,
    "layers[0], in a list": stats.layers[0].weight,
    "blocks[0], in a ModuleList": stats.blocks[0].weight,
}
saved = stats.state_dict()
keys = ["scale", "mean", "std", "offset", "layers.0.weight", "blocks.0.weight"]
table(
    ("what", "where it is now", "in state_dict"),
    [(name, t.device, key in saved) for (name, t), key in zip(parts.items(), keys, strict=True)],
    code=(),
)
followed = [t.device == device for t in (stats.mean, stats.offset, stats.layers[0].weight)]
answers = {
    (True, False, False): "only the buffer",
    (True, True, False): "the buffer and the attribute",
    (True, True, True): "all three",
}
reveal("attribute_moves", answers.get(tuple(followed), "none"))

# %% [markdown]
# What stayed behind is also missing in `state_dict`, and the layer in the list is not trained. So a device error often
# tells you of a second fault that is silent.
#
# There is a fine trap in it: a *second name* of a buffer. `self.mean` is replaced when the module moves, so a name
# that you keep elsewhere still points to the old memory:

# %%
stats = Stats()
kept = stats.mean
stats.to(device)
print("the buffer is on", stats.mean.device, "  the name that was kept is on", kept.device)

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

# %% [markdown]
# ### And the loss function?

# %%
predict(
    "loss_device",
    "Model and data are on the device. `nn.CrossEntropyLoss()` was never moved. What happens?",
    ["an error", "it works"],
)

# %%
scores = torch.randn(4, 3, device=device)
labels = torch.tensor([0, 2, 1, 0], device=device)
criterion = nn.CrossEntropyLoss()
print("its tensors:", list(criterion.parameters()) + list(criterion.buffers()))
try:
    print("loss:", round(criterion(scores, labels).item(), 3))
    outcome = "it works"
except RuntimeError:
    outcome = "an error"
reveal("loss_device", outcome)

# %% [markdown]
# A loss without tensors has no place. The scores and the labels must agree, that is all. With class weights it has a
# tensor, and then it must move like any module:

# %%
weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
with shows_error():
    weighted(scores, labels)
print("moved:", round(weighted.to(device)(scores, labels).item(), 3))

# %% [markdown]
# ### Who may be a guest
#
# Not every tensor of the host is refused.

# %%
predict(
    "zero_dim",
    "`d` is on the device, `torch.tensor(3.0)` on the host. What is `d * torch.tensor(3.0)`?",
    ["an error", "a tensor on the host", "a tensor on the device"],
)

# %%
d = torch.ones(2, device=device)
product = d * torch.tensor(3.0)
reveal("zero_dim", "a tensor on the device" if product.device == device else "a tensor on the host")
with shows_error():
    d * torch.tensor([3.0])

# %% [markdown]
# A tensor *without dimensions* counts as a number, and numbers travel along with the kernel. With one dimension and one
# element it is a tensor, and refused. Indices may come from the host too, but see what they cost:

# %%
with counting() as cost:
    d[torch.tensor([0])]
print("an index from the host:", cost.h2d, "copy,", cost.synchronisations, "wait")
with shows_error():
    torch.ones(2)[torch.tensor([0], device=device)]  # the other way round

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

# %% [markdown]
# ## Part 3. Seven disguises of one error
#
# ### Same device, same dtype, right context
#
# Three questions solve most of these errors, in this order:
#
# 1. **Same device?** `{t.device for t in ...}` of all that meets in the failing line.
# 2. **Same dtype?** `x.dtype` against `layer.weight.dtype`.
# 3. **Right context?** `torch.is_grad_enabled()`, `torch.is_autocast_enabled(device.type)`, `model.training`: does this line run where you
#    think it runs?
#
# Why all three? Because the words deceive.

# %%
predict(
    "input_type",
    "A convolution: `Input type (double) and bias type (float) should be the same`. What is wrong?",
    ["the device", "the dtype"],
)

# %%
images = torch.ones(1, 3, 8, 8)
cases = {
    "another device": (nn.Conv2d(3, 4, 3).to(device), images),
    "another dtype, one device": (nn.Conv2d(3, 4, 3).to(device), images.double().to(device)),
    "another dtype, no device at all": (nn.Conv2d(3, 4, 3), images.double()),
}
for name, (layer, batch) in cases.items():
    print(f"--- {name}")
    with shows_error():
        layer(batch)
layer, batch = cases["another dtype, one device"]
reveal("input_type", "the dtype" if batch.device == layer.weight.device else "the device")

# %% [markdown]
# The same sentence stands for both. The *names of the types* tell them apart: `torch.sim.FloatTensor` (on CUDA
# `torch.cuda.FloatTensor`) against `torch.FloatTensor` is a matter of place, `double` against `float` one of dtype. A
# linear layer has other words again:

# %%
with shows_error():
    nn.Linear(4, 2).to(device)(torch.ones(1, 4))
with shows_error():
    nn.Linear(4, 2).to(device)(torch.ones(1, 4, device=device).double())

# %% [markdown]
# Now the context. "Under autocast model, data and labels must be cast to one dtype", it is said.

# %%
predict(
    "autocast_casts",
    "The weights are float32, the input float16, autocast is on. Does the linear layer accept it?",
    [True, False],
)

# %%
layer, x = nn.Linear(4, 3).to(device), torch.randn(2, 4, device=device)
labels = torch.tensor([0, 2], device=device)
rows = []
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    try:
        plain = layer(x.to(dtype)).dtype
    except RuntimeError as error:
        plain = str(error)
    with torch.autocast(device.type, dtype=torch.float16):
        scores = layer(x.to(dtype))
        loss = F.cross_entropy(scores, labels)
    rows.append((dtype, plain, scores.dtype, layer.weight.dtype, loss.dtype))
table(("input", "without autocast", "with autocast", "weights", "cross entropy"), rows, code=())
reveal("autocast_casts", rows[1][2] == torch.float16)

# %% [markdown]
# Autocast casts. That is its job: leave the weights in float32 and the data as they are. One dtype stays your business
# in every context, that of class labels:

# %%
for dtype in (torch.int64, torch.int32, torch.float32):
    print(f"--- labels in {dtype}")
    with shows_error():
        F.cross_entropy(scores, labels.to(dtype))

# %% [markdown]
# ### The gallery
#
# Seven scenes from everyday programs. Read the scene, guess the first words of the message, then look.

# %%
class Positions(nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[1])  # a new tensor, made on the host


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4)]

    def forward(self, x):
        return self.layers[0](x)


def late_optimizer(here):
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    train_one(layer, optimizer, torch.ones(2, 4))
    train_one(layer.to(here), optimizer, torch.ones(2, 4, device=here))


def train_one(layer, optimizer, x):
    optimizer.zero_grad()
    layer(x).sum().backward()
    optimizer.step()


labels = torch.tensor([0, 2])
scenes = {
    "the batch stayed on the host": lambda here: nn.Linear(4, 2).to(here)(torch.ones(1, 4)),
    "the same, a convolution": lambda here: nn.Conv2d(3, 4, 3).to(here)(torch.ones(1, 3, 8, 8)),
    "a tensor made in `forward`": lambda here: Positions().to(here)(torch.ones(2, 4, device=here)),
    "layers in a Python list": lambda here: Listed().to(here)(torch.ones(2, 4, device=here)),
    "labels on the host": lambda here: F.cross_entropy(torch.ones(2, 3, device=here), labels),
    "a plot of the scores": lambda here: torch.ones(2, 3, device=here).numpy(),
    "an optimizer that stepped before the move": late_optimizer,
}
for place in places:
    rows = []
    for scene, play in scenes.items():
        try:
            play(place)
            message = "no error"
        except (RuntimeError, TypeError) as error:
            message = str(error).splitlines()[0]
        rows.append((scene, message))
    table(("scene", f"what it says, on {place}"), rows, code=())

# %% [markdown]
# One error, seven faces. For each a command that unmasks it, and a cure:
#
# | scene | check | fix |
# | :-- | :-- | :-- |
# | the batch stayed on the host | `x.device`, `{p.device for p in model.parameters()}` | `x = x.to(device)`, and keep the result |
# | a convolution | `x.type()`, `layer.weight.type()`: the kind of type says whether place or dtype differs | move, or convert |
# | a tensor made in `forward` | look in `forward` for `torch.zeros`, `arange`, `ones` | `device=x.device`, or a buffer |
# | layers in a list | `len(list(model.parameters()))` is too small | `nn.ModuleList` |
# | labels on the host | the message names the argument: `target` | move the whole batch, not only the images |
# | a plot of the scores | `scores.device` | `scores.cpu().numpy()`, after `detach()` if it has a graph |
# | an optimizer that stepped before the move | `{v.device for s in optimizer.state.values() for v in s.values()}` | move first; or move the state (part 4) |
#
# Note that "mat1" or "argument target" in the message names the *argument that differs from the first tensors*, not the
# guilty one. If the model stayed behind, it is the innocent batch that is named:

# %%
with shows_error():
    nn.Linear(4, 2)(torch.ones(1, 4, device=device))

# %% [markdown]
# Now seven broken pieces of code. Not all of them say "device", and one says nothing at all. Look at the message if
# there is one, ask the three questions, change as little as you can.

# %% [markdown] exercise="mend_1"
# Mend `mend_1`. Run it first, on the simulated GPU, and read the error:
# `mend_1(nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 9), device)`. Afterwards the device has computed the scores, and model and scores are on the device.

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
# Mend `mend_2`. See the error: `mend_2(nn.Conv2d(3, 4, 3), np.random.rand(2, 3, 8, 9), device)`. The array holds float64 images. The scores are float32, on the device, and the model stays float32.

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
# Mend `mend_3`. See the error: `mend_3(torch.rand(2, 5, 3, device=device))`. It has to work for features on any device, the CPU included, and the result lies where the features lie.

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
# Mend `mend_4`. See the error: `mend_4([3, 5, 2]).to(device)(torch.rand(4, 3, device=device))`. Its model is moved with `.to(device)` and fed with an input on the device.

# %% exercise="mend_4"
def mend_4(sizes):
    """A chain of linear layers from sizes[0] to sizes[-1] features, a ReLU between each two."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(i, o) for i, o in pairwise(sizes)]

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
            self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = layer(x).relu()
            return self.layers[-1](x)

    return Chain()
### END SOLUTION

# %% [markdown] exercise="mend_5"
# Mend `mend_5`. See the error: `mend_5(nn.Linear(3, 4), [torch.rand(5, 3), torch.rand(2, 3)], device)`. The model computes on the device and stays there; the result is one NumPy array. As little as possible comes back.

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
# Mend `mend_6`. Look at the weights before and after
# `mend_6(model, [(torch.rand(5, 3), torch.tensor([0, 1, 2, 3, 0]))], device)`, with `model = nn.Linear(3, 4)`. It raises nothing, and the copy does not learn. `model`, the caller's own, keeps its weights and its place.

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
# Mend `mend_7`. See the error: `mend_7(torch.rand(5, 3), torch.rand(5), device)`. It works with `device="cpu"`. Why not on a GPU? It has to do the same on both.

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

# %% [markdown]
# ## Part 4. Optimizers and files have a place, too
#
# ### State that stayed behind
#
# Adam keeps two tensors for every parameter. They are made in the first step, where the parameter is *then*.

# %%
predict(
    "state_behind",
    "Adam has made one step on the CPU. Then `model.to(device)`, then the next step. What happens?",
    ["an error", "the weights silently stay as they are", "it works"],
)

# %%
def train_step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
train_step(model, optimizer, torch.ones(2, 3))
model.to(device)
before = model.weight.detach().clone()
try:
    train_step(model, optimizer, torch.ones(2, 3, device=device))
    changed = not torch.equal(before, model.weight)
    outcome = "it works" if changed else "the weights silently stay as they are"
except RuntimeError as error:
    print(error)
    outcome = "an error"
reveal("state_behind", outcome)

# %% [markdown]
# It raises. The silent failure that this is mistaken for has another cause, and you saw it in the scene: the *parameter
# objects* were replaced after the optimizer was made.

# %%
predict(
    "replaced_parameter",
    "`optimizer = SGD(layer.parameters())`, then `layer.weight = nn.Parameter(...)`, then a step. "
    "What happens?",
    ["an error", "the new weight silently stays as it is", "the new weight is trained"],
)

# %%
layer = nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer.weight = nn.Parameter(torch.zeros(1, 3, device=device))
train_step(layer, optimizer, torch.ones(2, 3, device=device))
known = {id(p) for group in optimizer.param_groups for p in group["params"]}
print("weight:", layer.weight.tolist(), "  gradient:", layer.weight.grad.tolist())
print("the optimizer knows it:", id(layer.weight) in known)
if layer.weight.abs().sum().item() > 0:
    reveal("replaced_parameter", "the new weight is trained")
else:
    reveal("replaced_parameter", "the new weight silently stays as it is")

# %% [markdown]
# The gradient is there, and nobody uses it. The check is the one in the cell: is every parameter of the model, as an
# *object*, in the optimizer's groups?
#
# The order that avoids both: **build the model, load its weights, move it, make the optimizer, load its state.**
#
# ### Does loading state need help?

# %%
predict(
    "load_state",
    "Adam's state is loaded from a file with everything on the CPU. The model is on the device. "
    "Where does `load_state_dict` put `exp_avg`?",
    ["cpu", "sim:0"],
)

# %%
torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
train_step(model, optimizer, torch.ones(2, 3))
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
file.seek(0)

model = nn.Linear(3, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
kept = torch.load(file, map_location="cpu", weights_only=True)
model.load_state_dict(kept["model"])
optimizer.load_state_dict(kept["optimizer"])
state = optimizer.state[model.weight]
table(("entry", "device", "dtype"), [(name, t.device, t.dtype) for name, t in state.items()])
reveal("load_state", state["exp_avg"].device)
train_step(model, optimizer, torch.ones(2, 3, device=device))
print("one more step: no error")

# %% [markdown]
# `load_state_dict` brings every tensor to its parameter, device and dtype. No helper is needed *there*. `step` stays on
# the CPU on purpose: it is a counter that the host reads, and on the device each reading would be a wait. A helper that
# moves *all* tensors of the state moves this one as well.
#
# Where you do need a helper: the optimizer has stepped already, and the model moves after all.

# %% [markdown] exercise="optimizer_to"
# Write `optimizer_to(optimizer, device)`. The parameters have just been moved to the device, the optimizer's state has
# not: Adam's averages, SGD's momentum. Bring all tensors of the state to the device, with their values, in the optimizer
# that was given. The tensors called `"step"` stay on the host, where the optimizer keeps them.
#
# It works for SGD, Adam, AdamW and RMSprop, and returns nothing.

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

# %% [markdown]
# ### A file remembers where its tensors were

# %%
predict(
    "no_map_location",
    "A file was saved on a machine with two GPUs, from the second. It is loaded where there is one. "
    "What does `torch.load(file)` do?",
    ["puts it on the CPU", "puts it on the one there is", "an error"],
)

# %%
file = io.BytesIO()
with simulated_gpu(count=2):
    torch.save({"weight": torch.ones(2, device="sim:1")}, file)

file.seek(0)
outcome = "an error"
with shows_error():
    outcome = f"puts it on {torch.load(file, weights_only=True)['weight'].device}"
reveal("no_map_location", outcome)
file.seek(0)
print(torch.load(file, map_location="cpu", weights_only=True))

# %% [markdown]
# On a laptop without any GPU the same file raises as well. Load with `map_location="cpu"`: that needs no memory on the
# device, and `load_state_dict` copies into the model, wherever it is.

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

# %% [markdown]
# ## Part 5. Move once
#
# ### What travels
#
# Host and device are joined by a bus. Each copy has a price for being made at all, and a price per byte. Both can be
# counted.

# %%
predict(
    "uint8_travels",
    "A batch of images in uint8 has 196,608 bytes. How many bytes go to the device with "
    "`images.float().to(device)`, and with `images.to(device).float()`?",
    ["196,608 both times", "786,432 both times", "786,432, then 196,608"],
)

# %%
images = torch.tensor(np.array(load_cifar_mini("train").images[:64]))
sent = {}
calls = ["images.float().to(device)", "images.to(device).float()", "images.to(device, torch.float32)"]
for call in calls:
    with counting() as cost:
        eval(call)
    sent[call] = cost.h2d_bytes
table(("call", "bytes to the device"), [(call, f"{size:,}") for call, size in sent.items()])
first, second, _ = (f"{size:,}" for size in sent.values())
reveal("uint8_travels", f"{first}, then {second}" if first != second else f"{first} both times")

# %% [markdown]
# Send the small form, and widen it over there. The third line shows that one call for both does *not* do that: a
# blocking `.to(device, dtype)` converts first and sends the wide form.
#
# ### Who counts the waits?
#
# The host hands work over and goes on. It must wait when it needs a *number*.

# %%
d = torch.rand(100, device=device)
questions = {
    "d.sum()": lambda: d.sum(),
    "d.shape, d.dtype": lambda: (d.shape, d.dtype),
    "d * 2 > 1": lambda: d * 2 > 1,
    "d.sum().item()": lambda: d.sum().item(),
    "float(d.sum())": lambda: float(d.sum()),
    "if d.sum() > 0": lambda: bool(d.sum() > 0),
    "print(d[0])": lambda: str(d[0]),
    "d.cpu()": lambda: d.cpu(),
    "d[d > 0.5]": lambda: d[d > 0.5],
    "d.nonzero()": lambda: d.nonzero(),
    "torch.where(d > 0.5, d, 0.0)": lambda: torch.where(d > 0.5, d, 0.0),
}
rows = []
for code, call in questions.items():
    with counting() as cost:
        call()
    rows.append((code, cost.kernels, cost.d2h, cost.synchronisations))
table(("expression", "kernels", "copies back", "waits"), rows)

# %% [markdown]
# (A kernel is a program that the device runs. The simulation counts one for each operator that computes; a GPU may run
# several for it.)
#
# Shape and dtype are known to the host. Values are not. `d[d > 0.5]` waits because the *shape* of its result is a
# value: somebody must count first. `torch.where` has a shape that is known, so it need not.

# %%
predict(
    "item_every_step",
    "An epoch of 8 steps writes `loss.item()` into a log after each step. Images and labels come "
    "from the host by plain `.to(device)`. How often does the host wait?",
    [0, 8, 16, 24],
)

# %%
def loader_of(count, batch_size=16):
    torch.manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(count, 20), torch.arange(count) % 4), batch_size)


def epoch_that_asks(model, loader, optimizer):
    log = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.append(loss.item())
    return sum(log) / len(log)


def small_classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)


model = small_classifier()
with counting() as cost:
    epoch_that_asks(model, loader_of(128), torch.optim.SGD(model.parameters(), 0.1))
print("copies:", cost.transfers, " bytes:", cost.h2d_bytes, " kernels:", cost.kernels)
reveal("item_every_step", cost.synchronisations)

# %% [markdown]
# Three waits a step: one for each blocking copy, one for the number. Now four programs that compute the same. The first
# moves a tensor wherever it needs it.

# %%
def run_epoch(style, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = loader_of(128)
    if "pinned" in style:
        loader = DataLoader(loader.dataset, 16, pin_memory=True)
    total = torch.zeros((), device=device)
    log = []
    for x, y in loader:
        if style == "moves everywhere":
            optimizer.zero_grad()
            scores = model(x.to(device)).cpu()
            loss = F.cross_entropy(scores.to(device), y.to(device))
            accuracy = (scores.argmax(1).to(device) == y.to(device)).float().mean().item()
        else:
            asynchronous = "pinned" in style
            x, y = x.to(device, non_blocking=asynchronous), y.to(device, non_blocking=asynchronous)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if style in ("moves everywhere", "moves once"):
            log.append(loss.item())
        else:
            total += loss.detach()
    return sum(log) / len(log) if log else (total / len(loader)).item()


styles = ["moves everywhere", "moves once", "moves once, adds on the device", "the same, pinned"]
costs, answers = {}, {}
for style in styles:
    model = small_classifier()
    with counting() as cost:
        answers[style] = run_epoch(style, model)
    costs[style] = cost
table(
    ("program", "mean loss", "copies", "bytes", "waits", "kernels"),
    [
        (s, f"{answers[s]:.4f}", c.transfers, c.h2d_bytes + c.d2h_bytes, c.synchronisations, c.kernels)
        for s, c in costs.items()
    ],
    code=(),
)

# %%
bars(
    styles,
    [costs[s].synchronisations for s in styles],
    "times that the host waits, in an epoch of 8 steps",
    caption="Four programs with the same result. What the host asks for decides how often it waits.",
    alt="Four bars: " + "; ".join(f"{s} {costs[s].synchronisations} waits" for s in styles) + ".",
)

# %% [markdown]
# The rule: **move once, at the top of the loop; stay there; ask for a number at the end.** How much time that saves the
# counts do not say. It depends on bus, model and batch, and only a clock on the real machine can tell.
#
# ### Does moving in the loop eat memory?

# %%
predict(
    "rebinding_grows",
    "`x = x.to(device)` in the loop, ten batches. How many of the ten host tensors are alive then?",
    [0, 1, 10],
)

# %%
sources = []
for step in range(10):
    x = torch.randn(100, 100)
    sources.append(weakref.ref(x))  # knows the tensor without keeping it
    x = x.to(device)
reveal("rebinding_grows", sum(source() is not None for source in sources))

# %% [markdown]
# The name `x` now means the copy, and nobody holds the source. Memory grows when something *keeps*: a list, a dict, a
# log. Part 8 is about that.

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
# * The model may come in evaluation mode. It is trained, and comes back, in training mode.

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

# %% [markdown]
# ## Part 6. The host does not wait
#
# ### A queue between two processors
#
# A call such as `y = d * 10` puts work into a queue and returns. `y` exists at once, with shape and dtype; its numbers
# come when the device gets there. Walk through the programs:

# %%
queue_explorer()

# %% [markdown]
# Try "there and back" first. (The picture shows the numbers of the device because the simulation computes at once. On
# a GPU, what stands in the queue need not have been done.)
#
# Here is a training step as its events came. Each row is one piece of work. It may run anywhere in its bar, after the
# row above it, and *must* be done where the bar ends: at the next wait. The axis is the order of events, not a clock.

# %%
model = small_classifier()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = next(iter(DataLoader(loader_of(16).dataset, 16, pin_memory=True)))
with recording() as happened:
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    loss = F.cross_entropy(model(x), y)
    loss.item()
    loss.backward()
    optimizer.step()
    torch.accelerator.synchronize()
order_picture(
    happened,
    caption="One training step. A dot: the host hands work over. A bar: the span in which the device "
    "may do it. A thick line: the host waits until all of it is done.",
)

# %% [markdown]
# At `item` the host stands still, and so does the device a moment later: nothing new is in the queue. Then the
# queue fills again. That gap, once a step, is what the log of the scene cost.
#
# ### Pinned memory
#
# The operating system may move a program's memory about, even out to disk. A device that copies by itself needs memory
# that stays: *pinned* memory. Only from there, or into it, can the host hand a copy over and go on.

# %%
predict(
    "unpinned",
    "`x` is an ordinary host tensor. Is the copy `x.to(device, non_blocking=True)` queued?",
    [True, False],
)

# %%
rows = []
for kind, source in {"ordinary": torch.rand(100), "pinned": torch.rand(100).pin_memory()}.items():
    for non_blocking in (False, True):
        with recording() as happened:
            source.to(device, non_blocking=non_blocking)
        kinds = [event.what for event in happened]
        rows.append((kind, non_blocking, "copy queued" in kinds, "wait" in kinds))
table(("source", "non_blocking", "queued", "host waits for the device"), rows, code=())
reveal("unpinned", rows[1][2])

# %% [markdown]
# One without the other does little. From ordinary memory the bytes go to a place of the driver's own first. The host
# does not wait for the *device* then, but it is busy with that copy itself. `DataLoader(pin_memory=True)` pins each
# batch, so that `batch.to(device, non_blocking=True)` can be queued. Both together are worth it when there is something
# else to do meanwhile.
#
# The price: until the copy is done, *the memory belongs to the device*. There are two ways to forget that.
#
# ### Stale, first way: read too early

# %%
predict(
    "read_early",
    "`h = d.to('cpu', non_blocking=True)`, and in the next line `h.sum()`. What do you get?",
    ["the right sum", "an error", "whatever lay in that memory before"],
)

# %%
d = torch.tensor([1.0, 2.0, 3.0], device=device)
h = d.to("cpu", non_blocking=True)
early = h.sum().item()
torch.accelerator.synchronize()
late = h.sum().item()
print("before the wait:", early, "  after it:", late)
reveal("read_early", "the right sum" if early == late else "whatever lay in that memory before")

# %% [markdown]
# Nobody raises an error. The simulation fills such memory with `nan` (integers: -1), so that the mistake can be seen,
# and delivers as late as is allowed. On a GPU it may be right a thousand times, and wrong the next.
#
# ### Stale, second way: write too early

# %%
predict(
    "reuse_early",
    "One pinned buffer is filled with 0, sent `non_blocking`, filled with 1, sent, filled with 2, "
    "sent. Which three numbers are on the device?",
    ["0, 1, 2", "2, 2, 2", "an error"],
)

# %%
buffer, sent = torch.empty(4).pin_memory(), []
with recording() as happened:
    for i in range(3):
        buffer.fill_(i)
        sent.append(buffer.to(device, non_blocking=True))
    torch.accelerator.synchronize()
arrived = [int(t[0].item()) for t in sent]
reveal("reuse_early", ", ".join(map(str, arrived)))
order_picture(
    happened,
    caption="Three copies from one buffer. At the dotted lines the host writes into memory that a copy "
    "may still have to read.",
)

# %% [markdown]
# The copies had not begun when the buffer was filled again. Here all three came late; on a GPU some would. What keeps
# you safe:
#
# * a fresh pinned tensor for each batch, which is what `DataLoader(pin_memory=True)` does;
# * or two buffers in turn, and a wait before a buffer is used again;
# * for results: `.cpu()` or `.to("cpu")` without `non_blocking`, which waits by itself.

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

# %% [markdown]
# ### Timing what does not wait
#
# The simulation has no clock. But any queue with a worker shows the point. A pool with *one* thread does its work in
# order, and `submit` returns at once: that is all a stream is. This is the one place in this notebook that asks a
# clock.

# %%
predict(
    "clock_stops",
    "Five tasks of about 20 ms are handed to the pool, then the clock is stopped, without waiting. "
    "What does it show?",
    ["about 100 ms", "much less"],
)

# %%
with ThreadPoolExecutor(1) as pool:
    begin = time.perf_counter()
    work = [pool.submit(time.sleep, 0.02) for _ in range(5)]
    handed_over = time.perf_counter() - begin
    for task in work:
        task.result()  # wait
    done = time.perf_counter() - begin
print(f"handed over after {1000 * handed_over:.2f} ms, done after {1000 * done:.0f} ms")
reveal("clock_stops", "much less" if handed_over < done / 2 else "about 100 ms")

# %%
for place in places[1:]:  # a real device, where there is one
    x = torch.rand(2048, 2048, device=place)
    x @ x  # warm-up: the first call also loads kernels
    torch.cuda.synchronize(place)
    begin = time.perf_counter()
    for _ in range(20):
        x @ x
    handed_over = time.perf_counter() - begin
    torch.cuda.synchronize(place)
    done = time.perf_counter() - begin
    print(place, f"handed over after {1000 * handed_over:.2f} ms, done after {1000 * done:.2f} ms")
if len(places) == 1:
    print("No CUDA device here: nothing was timed.")

# %% [markdown]
# A clock without a wait times the handing over. Worse, it puts the blame on the next line that waits: `loss.item()`
# looks slow, and it only pays for what was queued before. The right order of a measurement:
#
# 1. warm up: the first call loads kernels and takes memory;
# 2. wait, so that no older work is in the queue; start the clock;
# 3. run the function, more than once;
# 4. wait; stop the clock.
#
# See on which side of the thick lines the work lies:

# %%
x = torch.rand(8, 8, device=device)
with recording() as happened:
    torch.accelerator.synchronize()  # 2: the clock starts here
    for _ in range(3):
        x @ x
    torch.accelerator.synchronize()  # 4: the clock stops here
    y = x + 1  # and not here: that would be before this work is done
order_picture(
    happened,
    caption="The three products lie between two waits: a clock that is read there has timed them. The "
    "addition has been asked for, and nobody knows when it runs.",
)

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

# %% [markdown]
# ## Part 7. Workers and the device
#
# ### A forked process cannot use it
#
# A data loader's workers are processes of their own. On Linux they are *forked*: copies of this one. The connection to
# the device cannot be copied.

# %%
predict(
    "worker_init",
    "`worker_init_fn` makes a tensor on the device. Where does the error show?",
    ["when the loader is made", "at `iter(loader)`", "at the first batch", "nowhere"],
)

# %%
CAN_FORK = "fork" in multiprocessing.get_all_start_methods()
fork = {"num_workers": 1, "multiprocessing_context": "fork"} if CAN_FORK else {}
data = TensorDataset(torch.arange(8.0))


def on_device(worker):
    torch.ones(1, device=device)


def failing_stage(**options):
    """Where the loader fails, and the last line of the message."""
    stage = "when the loader is made"
    try:
        loader = DataLoader(data, 4, **options)
        stage = "at `iter(loader)`"
        batches = iter(loader)
        stage = "at the first batch"
        next(batches)
    except RuntimeError as error:
        return stage, str(error).strip().splitlines()[-1]
    return "nowhere", "no error"


if CAN_FORK:
    stage, message = failing_stage(worker_init_fn=on_device, **fork)
    print(message)
    reveal("worker_init", stage)
else:
    reveal("worker_init", "this system cannot fork")
_ = gc.collect()

# %% [markdown]
# The worker died in silence, and its error reached you at the first batch. PyTorch's source raises it only if *both*
# are true: the parent has used CUDA already, and the worker was forked. (The simulation counts as used from `enable()`
# on.) So a script may run for months, until somebody touches the device a line earlier.
#
# ### Move in `collate_fn`?
#
# "Put `.to(device)` at the end of `collate_fn`" is common advice.

# %%
predict(
    "collate_device",
    "`collate_fn` moves the batch to the device. With how many workers does it work?",
    ["with 0 and with 1", "with 0 only", "with none"],
)

# %%
def collate_there(items):
    return torch.stack([x for (x,) in items]).to(device)


rows = [("0", failing_stage(collate_fn=collate_there)[1])]
if CAN_FORK:
    rows.append(("1", failing_stage(collate_fn=collate_there, **fork)[1]))
    works = [message == "no error" for _, message in rows]
    reveal("collate_device", {2: "with 0 and with 1", 1: "with 0 only", 0: "with none"}[sum(works)])
else:
    reveal("collate_device", "this system cannot fork")
table(("workers", "result"), rows, code=())
_ = gc.collect()

# %% [markdown]
# In a worker it fails, and with start methods other than fork it would start the device once more in every worker.
# Workers make CPU tensors; the loop moves them.
#
# ### Who pins?
#
# "`pin_memory=False` keeps the workers off the GPU", it is said.

# %%
predict(
    "who_pins",
    "With `pin_memory=True`, who copies batches to pinned memory?",
    ["the workers", "a thread of this process"],
)

# %%
batches = iter(DataLoader(data, 4, pin_memory=True, **fork))
(batch,) = next(batches)
threads = [t.name for t in threading.enumerate() if "pin_memory" in t.name]
print("pinned:", batch.is_pinned(), "  threads that pin:", threads)
reveal("who_pins", "a thread of this process" if threads else "the workers")
for _ in batches:
    pass
del batches, batch

# %% [markdown]
# Pinning is done by a thread in *this* process. Workers never touch the device because of it, so switching it off cures
# nothing. How many workers to take, and what they cost in host memory, is the next section's subject.

# %% [markdown]
# ## Part 8. Where the memory goes
#
# ### A training step, in bytes
#
# Four kinds of tensors fill a device: **parameters, gradients, optimizer state, activations**. The first three do not
# depend on the batch.

# %%
predict("adam_state", "How large is the state of Adam, in multiples of the parameters?", [1, 2, 3])
predict("adamw_less", "Does AdamW need less memory than Adam?", [True, False])

# %%
def state_bytes(optimizer_class, **options):
    model = nn.Linear(256, 256).to(device)
    optimizer = optimizer_class(model.parameters(), lr=0.01, **options)
    train_step(model, optimizer, torch.ones(2, 256, device=device))
    parameters = sum(p.nbytes for p in model.parameters())
    values = [v for entry in optimizer.state.values() for v in entry.values()]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return parameters, sum(t.nbytes for t in tensors if t.dim() > 0), sum(t.dim() == 0 for t in tensors)


choices = {
    "SGD": (torch.optim.SGD, {}),
    "SGD, momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "Adam, amsgrad": (torch.optim.Adam, {"amsgrad": True}),
}
measured = {name: state_bytes(kind, **options) for name, (kind, options) in choices.items()}
table(
    ("optimizer", "parameters, bytes", "state, bytes", "state / parameters", "counters beside it"),
    [(n, f"{p:,}", f"{s:,}", f"{s / p:.0f}", c) for n, (p, s, c) in measured.items()],
    code=(),
)
reveal("adam_state", measured["Adam"][1] // measured["Adam"][0])
reveal("adamw_less", measured["AdamW"][1] < measured["Adam"][1])

# %% [markdown]
# Two buffers, so twice the parameters. With parameters and gradients that makes *four* times, before the first
# activation. Now the whole step, against the meter of the device:

# %%
def memory_of(place):
    """Bytes in use there. torch.sim and torch.cuda have the same function."""
    return getattr(torch, place.type).memory_allocated(place)


def stages(place, batch=256):
    """(stage, bytes in use) during two training steps."""
    gc.collect()
    before, seen = memory_of(place), []

    def note(stage):
        seen.append((stage, memory_of(place) - before))

    layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers).to(place)
    del layers
    note("model")
    optimizer = torch.optim.Adam(model.parameters())
    for step in (1, 2):
        x = torch.ones(batch, 256, device=place)
        note(f"batch {step}")
        loss = model(x).square().mean()
        note("forward")
        loss.backward()
        note("backward")
        optimizer.step()
        note("step")
        optimizer.zero_grad()
        del loss, x
        note("zero_grad")
    return seen


def draw_stages(seen, place):
    fig = figure(7.5, 3.2)
    axes = fig.subplots()
    heights = [size / 2**20 for _, size in seen]
    axes.step(range(len(seen)), heights, where="mid", color="#1a1a1a")
    axes.plot(range(len(seen)), heights, "o", color="#1a1a1a", markersize=4)
    axes.set_xticks(range(len(seen)), [name for name, _ in seen], rotation=40, ha="right", fontsize=9)
    axes.set_ylabel("MiB in use", fontsize=9)
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    show(
        fig,
        f"Memory in use on {place} during two steps. In the first `step` Adam makes its state.",
        "A staircase line: " + ", ".join(f"{name} {size:,} bytes" for name, size in seen) + ".",
    )


for place in places:
    draw_stages(stages(place), place)

# %% [markdown]
# Read it from left to right. The forward pass adds activations, and they leave in the backward pass, as gradients come.
# After the first step the floor is higher, for ever: that is the state. So a program that survives the *second* step
# usually survives the epoch, if batches are of one size and nothing leaks. (On CUDA the first matrix product also takes
# a workspace of the library, which stays.)

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

# %% [markdown]
# ### Planning against the meter
#
# How large may the batch be? Do not try it out in an expensive place. The peak is a straight line: a fixed part, and a
# part per image. Two measurements give the line. Here the device has 24 MiB.

# %%
def peak_of(batch, memory=None):
    """The most bytes in use during two training steps on a device with so much memory."""
    with simulated_gpu(memory=memory) as here:
        first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        model = nn.Sequential(first, nn.ReLU(), second).to(here)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(2):
            x = torch.ones(batch, 3, 32, 32, device=here)
            train_step(model, optimizer, x)
        return torch.accelerator.max_memory_allocated(here)


budget = 24 * 2**20
small, large = peak_of(8), peak_of(16)
per_image = (large - small) // 8
fixed = small - 8 * per_image
largest = (budget - fixed) // per_image
print(f"per image {per_image:,} bytes, fixed {fixed:,} bytes, so at most {largest} images")

# %%
print(f"batch {largest}: peak {peak_of(largest, budget):,} of {budget:,} bytes")
with shows_error():
    peak_of(largest + 1, budget)

# %% [markdown]
# The plan is right to the image. On a real GPU keep a reserve: the driver, cuDNN's scratch space and gaps
# between blocks take memory that no tensor shows. Measure there with `torch.cuda.max_memory_reserved()`.
#
# The message of the last cell is worth reading. It says how much was *asked for*, how much there is, and how much
# PyTorch holds. The line in the traceback is only where the last straw fell.

# %%
sizes = [8, 16, 32, 64, 96, largest]
peaks = [peak_of(n) / 2**20 for n in sizes]
fig = figure(6.5, 3.2)
axes = fig.subplots()
axes.plot(sizes, peaks, "o-", color="#1a1a1a", label="measured peak")
axes.axhline(budget / 2**20, color="#1a1a1a", linestyle="--", label="memory of the device")
axes.set_xlabel("images in a batch", fontsize=9)
axes.set_ylabel("MiB at the peak", fontsize=9)
axes.set_ylim(0)
axes.legend(frameon=False, fontsize=9)
axes.spines[["top", "right"]].set_visible(False)
show(
    fig,
    f"The peak of a training step against the batch, up to {largest} images: a straight line.",
    "A rising straight line: "
    + ", ".join(f"{n} images {peak:.1f} MiB" for n, peak in zip(sizes, peaks, strict=True))
    + "; a dashed line at 24 MiB.",
)

# %% [markdown]
# ### Five roots of "out of memory"
#
# When a batch that used to fit fits no more, or memory grows from step to step, look for these five. Each is measured
# below.
#
# | root | how it shows | cure |
# | :-- | :-- | :-- |
# | 1. optimizer state | in the first `step`, then constant | another optimizer, or a smaller model |
# | 2. tensors in a log | a little more with every step | `.item()` at the end, or `.detach()` |
# | 3. a cached feature | a constant too much, and `deepcopy` fails | keep it detached, or drop it |
# | 4. activations | in every forward pass, grows with the batch | smaller batch, checkpointing |
# | 5. workers | the *host* runs out, not the device | fewer workers, smaller prefetch |
#
# Root 1 you have seen.
#
# ### Root 2: tensors in a log

# %%
predict(
    "logged_loss",
    "Training: `log.append(loss)` after `backward()`, five steps. Of how many do the activations stay?",
    [0, 1, 5],
)
predict(
    "validation_loss",
    "Validation without `no_grad`: `log.append(loss)`, no `backward()`, five batches. Of how many do "
    "they stay?",
    [0, 1, 5],
)

# %%
def logged(backward, keep):
    """Of how many of five steps are the activations alive, and how many bytes the log costs."""
    with simulated_gpu() as here:  # a device of its own, where nothing else lives
        model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 1)).to(here)
        x, seen, log = torch.ones(32, 64, device=here), [], []

        def remember(module, args, output):
            seen.append(weakref.ref(output.untyped_storage()))  # without keeping it

        model(x).mean().backward()  # the gradients exist now
        before = torch.sim.memory_allocated(here)
        model[1].register_forward_hook(remember)
        for step in range(5):
            loss = model(x).square().mean()
            if backward:
                loss.backward()
            log.append(keep(loss))
        del loss
        alive = sum(storage() is not None for storage in seen)
        return alive, torch.sim.memory_allocated(here) - before


cases = {
    "training, loss": (True, lambda loss: loss),
    "training, loss.detach()": (True, lambda loss: loss.detach()),
    "training, loss.item()": (True, lambda loss: loss.item()),
    "validation, loss": (False, lambda loss: loss),
    "validation, loss.detach()": (False, lambda loss: loss.detach()),
    "validation, loss.item()": (False, lambda loss: loss.item()),
}
found = {name: logged(*case) for name, case in cases.items()}
table(
    ("what is logged", "activations of so many steps alive", "bytes kept on the device"),
    [(name, alive, f"{size:,}") for name, (alive, size) in found.items()],
    code=(),
)
reveal("logged_loss", found["training, loss"][0])
reveal("validation_loss", found["validation, loss"][0])

# %% [markdown]
# `backward()` frees what the graph had saved, so the logged loss of training keeps a block of 512 bytes and the bare
# nodes of its graph. Without `backward()` the loss keeps everything. `.detach()` costs no wait and keeps one number on
# the device; `.item()` keeps nothing there, and waits.
#
# A *sum* of losses is a chain: it holds the nodes of all steps.

# %%
def graph_nodes(tensor):
    found, open_nodes = set(), [tensor.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in found:
            found.add(node)
            open_nodes += [following for following, _ in node.next_functions]
    return len(found)


layer, x, total = nn.Linear(4, 1).to(device), torch.ones(2, 4, device=device), 0
for step in range(1, 31):
    loss = layer(x).mean()
    loss.backward()
    total = total + loss
    if step in (1, 10, 30):
        print(f"after {step:2} steps `total = total + loss` holds {graph_nodes(total):3} nodes")

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

# %% [markdown] exercise="validation_losses"
# Mend `validation_losses(model, loader, loss_function, device)`. The values are right, and the device runs out of memory after some
# thousand batches. The model is on the device already. Return the list of losses, one per batch, as floats or as tensors
# that hold nothing else. No batch builds a graph: nobody will call backward. The model comes back in the mode that it came in.

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

# %% [markdown]
# ### Root 3: a cached feature

# %%
class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        self.feature = self.body(x)  # "we may want to look at it later"
        return self.head(self.feature)


predict(
    "cached_feature",
    "A model stores `self.feature = ...` in `forward`. After `loss.backward()` and `del loss`: is the "
    "feature still in memory?",
    [True, False],
)

# %%
with simulated_gpu() as here:  # a device of its own, where nothing else lives
    model = Caching().to(here)
    x = torch.ones(256, 64, device=here)
    model(x).sum().backward()  # the gradients exist now
    model.feature = None
    before = torch.sim.memory_allocated(here)
    loss = model(x).sum()
    loss.backward()
    del loss
    kept = torch.sim.memory_allocated(here) - before
    print(f"{kept:,} bytes kept; the feature has {model.feature.nbytes:,}")
    with shows_error():
        copy.deepcopy(model)
reveal("cached_feature", kept >= 256 * 64 * 4)

# %% [markdown]
# An attribute is a name like any other, and it lives as long as the model. In validation, where no `backward()` comes,
# it holds the whole graph. And a copy of the model for an average of weights, say, fails with words that speak of
# leaves, and mean this attribute.

# %% [markdown] exercise="FeatureCache"
# Mend the class `FeatureCache(layer)`. After every forward pass of the layer, `latest` holds the values that the layer
# returned. It must hold no graph and no memory of the device, and in-place layers that follow must not change it, on the
# device or on the host. After `close()` the layer is as it was before, with the hooks of others, and `latest` is `None`; a
# second `close()` does no harm.

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
        # detach lets the graph go. copy=True: from the host, too, before an in-place ReLU overwrites the output.
        self.latest = output.detach().to("cpu", copy=True)

    def close(self):
        self.handle.remove()
        self.latest = None
### END SOLUTION

# %% [markdown]
# ### Root 4: activations, and checkpointing
#
# Autograd saves what the backward pass needs. Checkpointing saves only the input of a segment, and computes the rest
# again.

# %%
predict(
    "reentrant",
    "`y = checkpoint(layer, x, use_reentrant=True)`, and `x` needs no gradient, as a batch of images. "
    "Do the layer's weights get gradients?",
    [True, False],
)
predict(
    "checkpoint_saves",
    "Sixteen equal layers. By how much does checkpointing cut the saved bytes?",
    ["by 40 %", "it depends on the number of segments", "to zero"],
)

# %%
layer, x = nn.Linear(8, 8).to(device), torch.ones(2, 8, device=device)
rows = []
for reentrant in (True, False):
    with shows_warning():
        y = checkpoint(layer, x, use_reentrant=reentrant)
    rows.append((f"use_reentrant={reentrant}", y.requires_grad))
table(("checkpoint(layer, x, ...)", "result can be differentiated"), rows)
reveal("reentrant", rows[0][1])

# %% [markdown]
# The old kind loses all gradients of the segment, with a warning that is easily overlooked. Pass `use_reentrant=False`,
# always.

# %%
def in_segments(blocks, x, segments):
    size = len(blocks) // segments
    for i in range(segments):
        x = checkpoint(blocks[i * size : (i + 1) * size], x, use_reentrant=False)
    return x


def cost_of(function, place):
    """Bytes saved for backward, bytes at the peak of a step, and how many blocks were computed."""
    function().sum().backward()  # warm-up: the first use of checkpoint leaves something behind
    blocks.zero_grad()
    gc.collect()
    saved = bytes_saved_for_backward(function).bytes
    before = torch.sim.memory_allocated(place)
    torch.sim.reset_peak_memory_stats(place)
    computed.clear()
    function().sum().backward()
    return saved, torch.sim.max_memory_allocated(place) - before, len(computed)


# %%
with simulated_gpu() as here:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(16)]
    blocks = nn.Sequential(*blocks).to(here)
    x, computed = torch.randn(512, 64, device=here), []
    for block in blocks:
        block.register_forward_pre_hook(lambda module, args: computed.append(1))

    rows = [("all in one go", *cost_of(lambda: blocks(x), here))]
    gradients = [p.grad.clone() for p in blocks.parameters()]
    same = True
    for segments in (1, 2, 4, 8, 16):
        name = f"{segments} segments" if segments > 1 else "1 segment"
        rows.append((name, *cost_of(lambda: in_segments(blocks, x, segments), here)))
        pairs = zip(blocks.parameters(), gradients, strict=True)
        same = same and all(torch.equal(p.grad, g) for p, g in pairs)
full = rows[0][1]
table(
    ("sixteen blocks", "kept for backward, bytes", "less by", "peak of a step, bytes", "blocks computed"),
    [(n, f"{s:,}", f"{1 - s / full:.0%}", f"{p:,}", c) for n, s, p, c in rows],
    code=(),
)
print("the gradients are the same, bit for bit:", same)
shares = {round(100 * (1 - saved / full)) for _, saved, _, _ in rows[1:]}
one = f"by {min(shares)} %"
reveal("checkpoint_saves", "it depends on the number of segments" if len(shares) > 1 else one)

# %% [markdown]
# Read the two columns of bytes together. One segment keeps almost nothing, and its peak is no lower: in the backward
# pass the whole chain is computed again and held at once. Sixteen segments save sixteen inputs. Between them lies the
# best peak. The price stands in the last column: blocks are computed twice. So "40 % less memory" is no rule: with
# these blocks it is anything between the third column's ends.
#
# (The saved bytes count the input of the chain as well. It exists anyway, so the peak does not count it again.)
#
# Computing twice has a side effect:

# %%
norm, x = nn.BatchNorm1d(8).to(device), torch.randn(4, 8, device=device)
checkpoint(norm, x, use_reentrant=False).sum().backward()
print("batches that BatchNorm has counted in one step:", norm.num_batches_tracked.item())

# %% [markdown]
# The running mean was moved twice by the same batch. Leave batch norm outside of the segments, or know that its
# momentum is another.

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

# %% [markdown]
# ### Root 5: workers

# %%
predict(
    "workers_device",
    "Does a data loader with a worker take more memory *on the device* than one without?",
    [True, False],
)

# %%
def device_peak(**options):
    with simulated_gpu() as here:
        for (x,) in DataLoader(TensorDataset(torch.ones(32, 1000)), 8, **options):
            x.to(here)
        return torch.sim.max_memory_allocated(here)


without, with_one = device_peak(), device_peak(**fork)
print(f"without: {without:,} bytes, with a worker: {with_one:,} bytes")
reveal("workers_device", with_one > without)

# %% [markdown]
# Workers hold their batches in the memory of the *host*. Fewer of them do not cure "CUDA out of memory". If the machine
# kills the process without any message of PyTorch, it is the host that ran out, and then they are the first suspects:
# section 4.
#
# ### `empty_cache`

# %%
predict(
    "empty_cache",
    "`torch.cuda.empty_cache()`: does it free the memory of tensors that your program still holds?",
    [True, False],
)

# %%
freed = {}
for place in places:
    x = torch.ones(1000, 1000, device=place)
    before = memory_of(place)
    getattr(torch, place.type).empty_cache()
    freed[place] = before - memory_of(place)
    print(place, "freed:", freed[place], "bytes")
reveal("empty_cache", any(freed.values()))
note = inspect.getdoc(torch.cuda.empty_cache).split(".. note::")[1].split("However")[0]
print("PyTorch's own note:", " ".join(note.split()).replace(":func:`~torch.cuda.empty_cache`", "It"))

# %% [markdown]
# (The simulation has no cache, so for `sim` the call does nothing at all. A CUDA device answers for itself.) It gives
# *unused* blocks of PyTorch's cache back to the driver, so that other programs may have them. PyTorch would have used
# them itself. The note goes on to say that it may help where memory is cut into small pieces. The memory of a tensor is
# freed when its last name goes: `del loss`.
#
# ### Reading a memory summary

# %%
predict(
    "summary_names",
    "Does `torch.cuda.memory_summary()` say how much is parameters, and how much activations?",
    [True, False],
)

# %%
source = inspect.getsource(torch.cuda.memory_summary).lower()
reveal("summary_names", any(word in source for word in ("parameter", "gradient", "activation")))
with shows_error():
    print(torch.cuda.memory_summary(abbreviated=True))

# %% [markdown]
# (Without CUDA it fails with a bare `KeyError`: there are no figures to print.) The summary is a table of the
# *allocator*. It counts bytes, whoever they belong to. Its rows:
#
# | row | what it is | what to look for |
# | :-- | :-- | :-- |
# | Allocated memory | bytes of living tensors, in blocks of 512 | *Cur* grows from step to step: something keeps tensors |
# | Active memory | the same, and blocks that a stream still uses | much more than allocated: work on several streams |
# | Requested memory | what the tensors asked for, before rounding | far below allocated: very many tiny tensors |
# | GPU reserved memory | what PyTorch has taken from the driver, its cache included | this is what `nvidia-smi` shows, more or less |
# | Non-releasable memory | free gaps inside reserved pieces | large, while an allocation fails: fragmentation |
# | Allocations | how many blocks | grows: the same leak, seen as a count |
#
# The columns are *Cur* (now), *Peak*, *Tot Alloc* and *Tot Freed*. The first look goes to Peak of *Allocated*. Then
# compare it with *reserved*: what lies between is cache and gaps.
#
# What the simulation has of it:

# %%
for name, value in torch.sim.memory_stats(device).items():
    print(f"{name:32} {value:>12,}")

# %% [markdown]
# Who *owns* the bytes, you find by measuring before and after, as in the staircase above, or with PyTorch's snapshot
# tool on CUDA: `torch.cuda.memory._record_memory_history()`, then
# `torch.cuda.memory._dump_snapshot("snapshot.pickle")`, and look at the file on
# [pytorch.org/memory_viz](https://pytorch.org/memory_viz).
#
# A poor man's census works everywhere: ask Python for the tensors that live.

# %%
def census(place):
    """Living tensors there, by shape: (count, bytes)."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter) and thing.device == place:
            count, size = found.get(tuple(thing.shape), (0, 0))
            found[tuple(thing.shape)] = count + 1, size + thing.nbytes
    return sorted(found.items(), key=lambda item: -item[1][1])


rows = [(shape, n, f"{size:,}") for shape, (n, size) in census(device)[:6]]
table(("shape", "tensors", "bytes"), rows)

# %% [markdown]
# Views count twice in it, and tensors that only the graph holds are missing. It finds what *names* keep.
#
# ### Watching from outside
#
# | command, in a terminal | shows |
# | :-- | :-- |
# | `nvidia-smi` | driver, its CUDA version, memory and processes of every GPU, once |
# | `watch -n 1 nvidia-smi` | the same, every second |
# | `nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv -l 1` | two columns, every second, for a file |
# | `nvidia-smi dmon -s um` | utilisation and memory, a line a second |
# | `nvidia-smi --query-compute-apps=pid,used_memory --format=csv` | who holds the memory |
# | `free -h`, `top` | the *host's* memory: for root 5 |
#
# From inside: `torch.cuda.memory_allocated()`, `max_memory_allocated()`, `reset_peak_memory_stats()`, or
# `torch.accelerator.memory_allocated()` and so on for any accelerator. `nvidia-smi` shows more than `memory_allocated`:
# the cache, and some hundred MiB that CUDA takes for itself in every process.
#
# "Utilisation 100 %" there means that *some* kernel was running at every look. It does not mean that the device was
# busy in all its parts.

# %%
found = shutil.which("nvidia-smi")
if found:
    query = [found, "--query-gpu=name,driver_version,memory.used,memory.total", "--format=csv"]
    print(subprocess.run(query, capture_output=True, text=True, check=False).stdout)
else:
    print("no nvidia-smi on this machine")

# %% [markdown]
# ## Habits
#
# * **Say the device where a tensor is made**: `torch.zeros(3, device=x.device)`, not `torch.zeros(3).to(...)`.
# * **Every move has a pair.** Model and batch; labels as well as images; `state` as well as weights; `.cpu()` before `numpy`.
# * **Build, load, move, then make the optimizer.**
# * **Move at one place**: at the top of the loop, in the small dtype.
# * **Numbers at the end.** Keep sums on the device, ask once an epoch.
# * **Assert at the entrance** of a training run, while it is cheap:
#
# ```python
# assert {t.device for t in (*model.parameters(), *model.buffers())} == {device}
# assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {id(p) for p in model.parameters()}
# ```
#
# * **Look at the memory after every change of the loader or the model**: the peak of the *second* step, written in the log.
# * **`non_blocking` only with pinned memory, and never use a buffer again before its copy is done.**

# %% [markdown]
# ## When something looks wrong
#
# These are CUDA's words. The simulation says `sim` for `cuda`, and `SIM` for `CUDA`.
#
# | symptom | cause | check | fix |
# | :-- | :-- | :-- | :-- |
# | "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!" | two tensors of an expression | `.device` of each | make or move the one |
# | "... but got mat1 is on cpu, different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)" | batch or model stayed behind | `x.device`, `{p.device for p in model.parameters()}` | `x = x.to(device)`; `model.to(device)` |
# | "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same" | a convolution on the host | the same | `model.to(device)`, layers in `ModuleList` |
# | "Input type (double) and bias type (float) should be the same"; "mat1 and mat2 must have the same dtype" | dtype, not device | `x.dtype` | `.float()` |
# | "can't convert cuda:0 device type tensor to numpy" | array wanted from the device | `x.device` | `.cpu()` |
# | "indices should be either on cpu or on the same device as the indexed tensor (cpu)" | index on the device, data on the host | both devices | `index.cpu()` |
# | "'Linear' object has no attribute 'device'" | a module has none | `hasattr(model, "device")` | ask its parameters |
# | the error comes from `optimizer.step()` | state stayed where it was | devices of `optimizer.state` | move before the first step, or move the state |
# | no error, and the loss does not move | the optimizer has other parameter objects | compare `id` | make the optimizer last |
# | `.grad` is `None`, with a warning of a leaf | `.to()` after `requires_grad=True` | `w.is_leaf` | create it on the device |
# | "Attempting to deserialize object on a CUDA device"; "... on CUDA device 1 but torch.cuda.device_count() is 1" | file from another machine | `torch.accelerator.device_count()` | `map_location="cpu"` |
# | "Cannot re-initialize CUDA in forked subprocess" | a worker touches the device | `num_workers=0` works | CPU tensors in dataset and collate |
# | "expected target dtype to be Long or Byte, but got Float" | class labels in floats | `y.dtype` | `.long()` |
# | `nan` or old values now and then | result of a `non_blocking` copy read too early | wait before reading: does it go away? | `.cpu()`, or wait |
# | batches mixed, now and then | pinned buffer filled again too early | the same | a fresh buffer, or wait |
# | the last line of the loop looks slow | it pays for the queue | wait before it, time again | measure with waits |
# | device idle, host busy | too many waits or small copies | count `.item()`, `.cpu()`, masks | move once, ask once |
# | "CUDA out of memory" in the first `step()`, or in the step after it | optimizer state | 2 x parameters for Adam | smaller batch, other optimizer |
# | "CUDA out of memory" after hours | something keeps tensors | `memory_allocated()` in every epoch | `detach()`, `no_grad` |
# | process killed, no message | memory of the *host* | `free -h` | fewer workers (section 4) |
# | `is_available()` is False on a GPU machine | driver too old, or a CPU wheel | `torch.version.cuda`, `nvidia-smi` | newer driver, or a wheel for CUDA |

# %% [markdown]
# ## What you can now explain
#
# * where each tensor of a line lives, and what a module takes along when it moves and what not;
# * why the same mistake has seven messages, and which three questions find it;
# * why an optimizer may fail loudly or be wrong silently, and the order that avoids both;
# * what `.to`, `.item()`, a mask and a plot cost, in copies, bytes and waits, and how to count them;
# * what pinned memory is for, and the two ways to read what is not there yet;
# * how to time a device that does not wait, and what a clock shows without it;
# * why workers make CPU tensors;
# * what fills the memory in a training step, how to plan a batch, and which five things make it grow;
# * what a memory summary shows, and what it cannot;
# * which versions must agree on a GPU machine, and which need not.
#
# Your predictions, beside what was measured:

# %%
my_predictions()

# %% [markdown] reflection="the_slow_line" points=2
# A colleague has timed every line of a training loop on a GPU. The result: `loss.item()` takes nearly all of the
# time. "So I shall leave out the log, and training will be many times as fast."
#
# Explain from the queue and from your measurement (Part 6) what the clock has shown, and what the colleague will
# really see. Then describe a measurement that tells which part of the step is slow, and say what leaving out `item()`
# can gain.
#
# * 1 point: what a call on the device does at once, what is left for later, and why `item()` gets the blame.
# * 1 point: a measurement with its waits in the right places, and the gain that is left.

# %% [markdown] reflection="the_slow_line"
# A call on the device puts work into a queue and returns at once, so the clock shows how long it takes to hand work
# over. `item()` needs the number: it waits until all the work queued before it is done, and pays for the forward and
# the backward pass too. Without it the same work has to be done, and the next line that waits will look slow. To
# measure a part: run it once to warm up, wait, start the clock, run it several times, wait, stop the clock. What can
# be gained is the gap at each wait, in which the device has nothing to do because the host stood still; so log
# seldom, or collect losses on the device.

# %%
progress("gpu_pitfalls")
