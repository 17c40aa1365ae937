# %% [markdown]
# # 2. See the graph, find the fault
#
# A network has been training all night. The loss fell, then it stood still. The memory grew, and in the morning the
# process was killed. The log holds no error, because there was none until then.
#
# The next cells train a small network on the images of this course. They hold three faults. Not one of them raises.

# %% tags=["setup"]
import copy
import gc
import itertools
import threading
import warnings
import weakref
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import bytes_saved_for_backward, check, draw_fx, draw_graph, hint, load_cifar_mini
from course_utils import memory, my_predictions, predict, progress, reveal, shows_error, shows_warning, table
from course_utils.plots import bars, figure, show
from course_utils.widgets.backward import backward_explorer

# %%
torch.set_num_threads(1)  # the networks are tiny: two threads would mostly wait for each other
data = load_cifar_mini("train")
print("The images of this course:", data.describe())

mean, std = (torch.tensor(data.meta[key]).view(3, 1, 1) for key in ("mean", "std"))
images = torch.from_numpy(np.array(data.images[:200])).permute(0, 3, 1, 2) / 255
images, labels = (images - mean) / std, torch.from_numpy(data.labels[:200])


def small_network():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "backbone": nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, stride=2, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
            ),
            "head": nn.Linear(64, 10),
        }
    )

# %%
network = small_network()
first = network["backbone"][0].weight
at_the_start = first.clone()
optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
losses = []
for step in range(20):
    with torch.no_grad():  # "features need no graph: that saves memory"
        features = network["backbone"](images)
    loss = F.cross_entropy(network["head"](features), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"the loss falls:                           {losses[0]:.2f} -> {losses[-1]:.2f}")
print("the first layer has moved by             ", (first - at_the_start).norm().item())

# %%
with memory() as used:
    epoch_loss = 0
    for batch, target in zip(images.split(20), labels.split(20)):
        epoch_loss += F.cross_entropy(network["head"](network["backbone"](batch)), target)
    del batch, target
print("a number for the log keeps alive          ", f"{used.current:,} bytes")

# %%
statistics = network["backbone"][1].running_mean
before = statistics.clone()
with torch.no_grad():
    network["head"](network["backbone"](images + 3))  # validation, on brighter images
print("validation has moved the running mean by  ", f"{(statistics - before).abs().max().item():.3f}")

# %% [markdown]
# All three are wrong.
#
# * The loss falls because the last layer learns. Everything before it is as random as on the first day.
# * A sum of losses for the log holds the graph of every batch.
# * `no_grad` did not keep the validation images out of the model.
#
# Such faults have one root: PyTorch writes a second program while yours runs, the *graph*, and it is not on the
# screen. After this notebook you can say of a line **what it adds to the graph, what it keeps alive, and who gets a
# gradient**, and prove it.
#
# **You need:** section 1, Python classes, and the chain rule. No GPU.
#
# | part | idea | minutes to read and run |
# | :-- | :-- | :-- |
# | 1 | A graph is written while you compute | 25 |
# | 2 | Leaves: who gets a `.grad` | 25 |
# | 3 | Ways of cutting the graph | 25 |
# | 4 | Writing in place | 20 |
# | 5 | Hooks: looking without disturbing | 25 |
# | 6 | NaN: who began? | 20 |
# | 7 | Two switches: `eval` and `no_grad` | 15 |
# | 8 | What stays alive | 10 |
# | 9 | A diagnosis in three layers | 10 |
#
# That is about 3 hours, and the exercises take about 4.5 more; each says its own minutes. You need not do all of it
# at once. **Predict** cells ask for a guess, which nobody marks; `check("...")` tries an answer as often as you like;
# `hint("...")` opens the hints one by one.

# %%
progress("graph_debugging")

# %% [markdown]
# ## Part 1. A graph is written while you compute
#
# ### Every result remembers how it was made
#
# `a` and `b` are ours. Everything else was computed, and carries a *node* that knows how to send a gradient back.

# %%
a = torch.tensor(2.0, requires_grad=True)
b = torch.tensor(3.0, requires_grad=True)
product = a * b
loss = (product + a).exp()
for name in ["a", "b", "product", "loss"]:
    made = globals()[name]
    print(f"{name:8} grad_fn:", made.grad_fn and made.grad_fn.name())

# %%
predict(
    "nodes_reached",
    "`loss.grad_fn` is the node of the last step. Beginning there, how many of the graph's five nodes can you reach?",
    ["1: it shows only its direct predecessor", "2", "5: the whole graph"],
)

# %% [markdown]
# A node has `next_functions`: the nodes to which it sends gradients.

# %%
exp_node = loss.grad_fn
((sum_node, _),) = exp_node.next_functions
(product_node, _), (end_a, _) = sum_node.next_functions
(same_end, _), (end_b, _) = product_node.next_functions
for node in (exp_node, sum_node, product_node, end_a, end_b):
    print(f"{node.name():32} -> {', '.join(n.name() for n, _ in node.next_functions) or '(none)'}")
print(f"two ways to one node: {same_end is end_a}, and its leaf is a: {end_a.variable is a}")
reached = len({exp_node, sum_node, product_node, end_a, same_end, end_b})
answers = {1: "1: it shows only its direct predecessor", 2: "2", 5: "5: the whole graph"}
reveal("nodes_reached", answers.get(reached, reached))

# %% [markdown]
# A loss holds the whole graph. That makes backward possible, and it makes a loss heavy. The nodes called
# `AccumulateGrad` are the ends: each has a `variable`, the leaf that it adds gradients to. Here there are two, one
# for `a` and one for `b`. (The text that each node gives is its `name()`; a `torch::autograd::` in front is part of
# it.)

# %% [markdown]
# ### What a node saves
#
# The gradient of a product needs the factors. The node of `a * b` saved them; the node of a sum saved nothing.

# %%
def saved_tensors(node):
    """The tensors that a node saved, by name."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    saved = {name.removeprefix("_saved_"): getattr(node, name) for name in names}
    return {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}


for name, made in {"a * b": product, "a * b + a": product + a}.items():
    print(f"{name:9} saved", {k: v.item() for k, v in saved_tensors(made.grad_fn).items()} or "nothing")

# %% [markdown]
# What is saved stays in memory until backward has used it. Which formula saves what?

# %%
x = torch.rand(100, requires_grad=True)
formulas = ["x + 1", "x * 2", "x.exp()", "x.sin()", "x.square()", "x.relu()", "x.sigmoid()"]
formulas += ["x.sum()", "x.sort().values", "F.dropout(x)"]
rows = []
for formula in formulas:
    saved = bytes_saved_for_backward(lambda: eval(formula))
    node = saved.result.grad_fn
    rows.append((formula, node.name(), ", ".join(saved_tensors(node)) or "nothing", saved.bytes))
table(("formula of 100 float32", "node", "saves", "bytes saved"), rows)

# %% [markdown]
# `self` is the input, `result` the output. `sin` and `square` need their input; `exp`, `sigmoid` and `relu` get by
# with their result. A product with a number keeps the number. `sort` keeps places (`int64`, eight bytes each), and
# dropout is a product with a mask. Remember this table: it decides in part 4 which numbers may be overwritten.

# %% [markdown]
# ### The picture
#
# The graph of a network of two layers, with names and with what each node saves:

# %%
torch.manual_seed(0)
mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
x, target = torch.rand(8, 3), torch.rand(8, 2)
drawing = draw_graph(F.mse_loss(mlp(x), target), mlp)
drawing

# %% [markdown]
# Where nothing can draw, in a terminal or on a feedback page, the same graph is a text:

# %%
print(drawing)

# %% [markdown]
# The arrows are the way of the gradient: from the loss down to the parameters. `x` and `target` are not in the
# picture. Nobody asked for their gradients, so no arrow leads to them.
#
# ### A backward pass, node by node
#
# Now let it run. Move the slider, with the mouse or with the arrow keys. At each step: which shape arrives, which
# shapes leave?
#
# 1. Why does a gradient of shape (8, 2) leave as (2,) for the bias?
# 2. Which node sends *nothing* to one of its inputs, and why?
# 3. On the way down to layer 0, which node makes the norm smaller by the largest factor?

# %%
backward_explorer(F.mse_loss(mlp(x), target), mlp, step=1)

# %% [markdown]
# (1) One bias served eight rows, so its gradient is the sum over them. (2) The first layer's `AddmmBackward0`: its
# input is the data, which needs no gradient. (3) Here the ReLU, to a quarter: where its input was negative nothing
# goes through. Small weights take their part as well. Gradients that pass many such layers fade; part 5 measures it.
# (`TBackward0` turns the gradient of the transposed weight back.)

# %% [markdown] exercise="backward_operators"
# Write `backward_operators(loss)`: how many nodes of each name the graph behind `loss` has, as a dictionary.
#
# Start at `loss.grad_fn`. A node has a `name()` and `next_functions`: pairs of a node, or `None`, and a number that you do not need.
# Every node counts once, however many paths lead to it, the leaves' `AccumulateGrad` nodes included (with or without the `torch::autograd::` in front of their name). The graph may be thousands of nodes deep. Where
# there is none (a detached loss, a leaf), the dictionary is empty. Only look: the caller still wants to run backward.
#
# ```python
# w = torch.ones(3, requires_grad=True)
# backward_operators((w * w).sum())      # {"SumBackward0": 1, "MulBackward0": 1, "AccumulateGrad": 1}
# ```

# %% exercise="backward_operators"
def backward_operators(loss):
    """Nodes of the loss's graph, counted by name: {"AddBackward0": 2, ...}."""
    ### BEGIN SOLUTION
    counts = Counter()
    # The set holds the nodes themselves, not their ids: an id is used again once its object is gone.
    met = {loss.grad_fn} - {None}
    stack = list(met)  # a list, not recursion: networks are deeper than Python's limit
    while stack:
        node = stack.pop()
        counts[node.name()] += 1
        for child, _ in node.next_functions:
            if child is not None and child not in met:
                met.add(child)
                stack.append(child)
    return dict(counts)
    ### END SOLUTION

# %% [markdown] exercise="reached_parameters"
# Write `reached_parameters(loss, model)`: the set of the names of those parameters of `model` that a backward pass from `loss` would
# reach (a list of them is taken, too). Names are those of `model.named_parameters()`.
#
# A gradient of zero counts as reached, a layer behind `detach()` or under `no_grad` does not, nor does a frozen or unused one. No gradient may be
# stored in any `.grad`, and what lies there already means nothing. The graph must still be good for a backward pass.
# A loss outside any graph reaches nothing: an empty set.

# %% exercise="reached_parameters"
def reached_parameters(loss, model):
    """Names of the model's parameters to which the loss's graph leads, as a set."""
    ### BEGIN SOLUTION
    # By identity: two biases of zeros are equal, and still two parameters.
    names = {id(p): name for name, p in model.named_parameters()}
    reached = set()
    met = {loss.grad_fn} - {None}
    stack = list(met)
    while stack:
        node = stack.pop()
        # Only the AccumulateGrad nodes at the ends of the graph have a variable: the leaf.
        leaf = getattr(node, "variable", None)
        if id(leaf) in names:
            reached.add(names[id(leaf)])
        for child, _ in node.next_functions:
            if child is not None and child not in met:
                met.add(child)
                stack.append(child)
    return reached
    ### END SOLUTION

# %% [markdown]
# ### A drawing without numbers
#
# The graph so far was a record of one run. There is another kind: `torch.fx` runs the Python code once with
# placeholders and writes down the *program*, before any number is there.

# %%
draw_fx(mlp)

# %% [markdown]
# A program drawn ahead of time cannot know which way an `if` will go. The record of a run can:

# %%
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.bright, self.dark = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.bright(x) if x.mean() > 0 else self.dark(x)


picky = Picky()
for value in (1.0, -1.0):
    picky.zero_grad()
    picky(torch.full((1, 3), value)).sum().backward()
    print(
        f"inputs of {value:4}: gradients for",
        [n for n, p in picky.named_parameters() if p.grad is not None],
    )
with shows_error():
    draw_fx(picky)

# %% [markdown]
# ### A new graph in every run
#
# This is what *dynamic* means: a new graph in every run, made by whatever Python did. Its price: nobody checks the
# program before it runs. When does a wrong shape show?

# %%
predict(
    "shape_error",
    "Two layers that do not fit together. Where is the error raised?",
    ["when the layers are made", "in the forward pass, at the line", "at loss.backward()"],
)

# %%
try:
    conv, linear = nn.Conv2d(3, 16, 3), nn.Linear(10, 2)
    where = "in the forward pass, at the line"
    out = linear(conv(torch.rand(2, 3, 8, 8)).flatten(1))
    where = "at loss.backward()"
    out.sum().backward()
except RuntimeError as error:
    print(error)
    reveal("shape_error", where)

# %% [markdown]
# At the very line, with both shapes. Backward has nothing to complain about: it uses shapes that forward has proved.
# So read the shapes in the message first, and the traceback from below.
#
# ### Asserts at the top of `forward`
#
# But some wrong shapes fit. Then only you can object, at the top of `forward`:

# %%
class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)

    def forward(self, x):
        assert x.dim() == 4, f"Stem takes (N, 3, H, W), got {tuple(x.shape)}"
        assert x.shape[1] == 3, f"Stem takes 3 channels, got {x.shape[1]}: is it (N, H, W, 3)?"
        return self.conv(x)


print("without the assert, one image gives", tuple(nn.Conv2d(3, 16, 3)(torch.rand(3, 8, 8)).shape))
with shows_error():
    Stem()(torch.rand(3, 8, 8))
with shows_error():
    Stem()(torch.rand(2, 8, 8, 3))

# %% [markdown]
# An assert costs one comparison of small integers, and `python -O` leaves it out:

# %%
import subprocess
import sys

program = "assert False, 'stopped'\nprint('went on')"
for options in ([], ["-O"]):
    ran = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True)
    print(f"python {' '.join(options):3}", (ran.stdout + ran.stderr).strip().splitlines()[-1])

# %% [markdown]
# So an assert is for *your own* mistakes. What a user may get wrong deserves an `if` and a `raise`, which stay.
#
# ### The line that makes it a module

# %%
predict(
    "missing_super",
    "A module forgets `super().__init__()` and holds only a number, `self.scale = 2.0`. When does it fail?",
    ["when it is made", "when it is called", "never: there is nothing to register"],
)

# %%
class Scale(nn.Module):
    def __init__(self):
        self.scale = 2.0

    def forward(self, x):
        return x * self.scale


when = "when it is made"
try:
    scale = Scale()
    when = "when it is called"
    scale(torch.ones(2))
    when = "never: there is nothing to register"
except AttributeError as error:
    print(error)
reveal("missing_super", when)

# %% [markdown]
# `super().__init__()` makes the dictionaries in which a module keeps its parameters, buffers, children and hooks. A
# number does not need them; a call looks for hooks, and does. With a layer inside, the error comes at once and says
# it plainly:

# %%
class Forgetful(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(3, 2)


with shows_error():
    Forgetful()

# %% [markdown]
# ## Part 2. Leaves: who gets a `.grad`
#
# ### What is a leaf?

# %%
predict("leaf_data", "`x = torch.ones(2)`, without `requires_grad`. Is `x.is_leaf`?", [True, False])
predict(
    "leaf_double",
    "`w = torch.ones(2, requires_grad=True).double()`. Is `w.is_leaf`?",
    [True, False],
)

# %%
w = torch.ones(2, requires_grad=True)
rows = []
for code in [
    "torch.ones(2)",
    "torch.ones(2) * 2",
    "w",
    "w * 2",
    "w.double()",
    "w.float()",
    "(w * 2).detach()",
    "nn.Linear(2, 2).weight",
    "nn.Linear(2, 2).double().weight",
]:
    t = eval(code)
    rows.append((code, t.requires_grad, t.grad_fn.name() if t.grad_fn else "none", t.is_leaf))
table(("tensor", "requires_grad", "grad_fn", "is_leaf"), rows)
reveal("leaf_data", torch.ones(2).is_leaf)
reveal("leaf_double", w.double().is_leaf)

# %% [markdown]
# A leaf is what no *recorded* step has made. Asking for gradients does not make a leaf, and data are leaves too.
# `.grad` is filled for leaves that require grad, and only there.
#
# `w.double()` is a step like any other. An optimizer that got its result would train nothing that gets a gradient.
# `w.float()` had nothing to do and gave `w` itself (section 1, part 2). A *module's* `.double()` puts new numbers
# into the old parameters, so they stay leaves. Two errors belong here:

# %%
with shows_error():
    (w * 2).requires_grad = False
with shows_error():
    torch.tensor([1, 2], requires_grad=True)

# %% [markdown]
# ### The gradient of something in between

# %%
predict(
    "grad_of_intermediate",
    "`y = w * 2`, then `y.sum().backward()`. What is `y.grad`?",
    ["ones", "None", "ones, until the graph is freed"],
)

# %%
w = torch.ones(2, requires_grad=True)
y = w * 2
y.sum().backward()
with shows_warning():
    gradient = y.grad
reveal("grad_of_intermediate", "None" if gradient is None else "ones")

# %% [markdown]
# The gradient passed by `y` on its way to `w`, and nobody kept it. Code that looks for it fails one line later:

# %%
with shows_error():
    gradient.histc()

# %%
predict(
    "retain_late",
    "`retain_grad()` keeps such a gradient. What is `y.grad` if it is called *after* `backward`?",
    ["ones", "None", "an error"],
)
predict(
    "retain_bytes",
    "`y` has 4,000 bytes. How many bytes does `y.retain_grad()` keep after `backward`?",
    [0, 4000, "the whole graph"],
)

# %%
w = torch.ones(2, requires_grad=True)
y = w * 2
y.sum().backward()
y.retain_grad()
reveal("retain_late", "None" if y.grad is None else "ones")

# %%
w = torch.ones(1000, requires_grad=True)


def step(retain):
    y = w.exp()
    if retain:
        y.retain_grad()
    y.sum().backward()
    w.grad = None
    return y


kept = []
for retain in (False, True):
    with memory() as used:
        y = step(retain)
        kept.append(used.current)
        del y
print("kept without and with retain_grad:", kept)
reveal("retain_bytes", kept[1] - kept[0])

# %% [markdown]
# One gradient, of the size of the tensor. The graph is freed as ever. Asking it again raises:

# %%
y = w.exp()
y.retain_grad()
y.sum().backward()
with shows_error():
    y.sum().backward()

# %% [markdown]
# A leaf keeps its gradient anyway, so there the call does nothing. A tensor without a graph refuses it:

# %%
with shows_error():
    torch.ones(2).retain_grad()

# %% [markdown]
# ### Looking at a distribution
#
# What does the gradient of a feature map look like? One batch, one forward, one backward, `retain_grad` in between.

# %%
network = small_network()
maps = network["backbone"][:3](images)  # after the first convolution, BatchNorm and ReLU
maps.retain_grad()
scores = network["head"](network["backbone"][3:](maps))
F.cross_entropy(scores, labels).backward()

gradient = maps.grad.flatten()
edges = torch.linspace(-6e-5, 6e-5, 41)
counts = torch.histogram(gradient.clamp(edges[0], edges[-1]), edges).hist
fig = figure(7.5, 2.8)
axes = fig.subplots()
axes.stairs(counts, edges, fill=True, facecolor="#9ecae1", edgecolor="#1a1a1a")
axes.set_xlabel("gradient of one element of the feature map")
axes.set_ylabel("elements")
axes.ticklabel_format(style="sci", scilimits=(0, 0))
show(
    fig,
    caption=f"{gradient.numel():,} gradients of the first feature map at the start of training. They lie around zero; "
    "what lies outside is counted in the outermost bars.",
    alt=f"A histogram with one peak at zero that falls off to both sides. Mean {gradient.mean():.1e}, standard deviation {gradient.std():.1e}.",
)

# %% [markdown]
# A narrow peak is normal: the loss is a mean over the batch, and each number has a small share in it. Look for *all*
# zeros (dead), for a lone spike far outside (one bad image), for NaN (part 6).

# %% [markdown]
# ### Gradients add up

# %%
predict(
    "two_backwards",
    "`(3 * w).backward()`, then `(5 * w).backward()`. What is `w.grad`?",
    [3, 5, 8],
)
predict(
    "zero_grad",
    "After `optimizer.zero_grad()`, what is `w.grad`?",
    ["zeros", "None"],
)

# %%
w = torch.tensor(1.0, requires_grad=True)
(3 * w).backward()
(5 * w).backward()
reveal("two_backwards", int(w.grad))

# %%
torch.optim.SGD([w], lr=0.1).zero_grad()
reveal("zero_grad", "None" if w.grad is None else "zeros")

# %% [markdown]
# Backward *adds*. That is what lets a tensor be used twice, and a batch come in pieces. And `zero_grad` has removed
# the gradient altogether since PyTorch 2.0. Older code then breaks, and a stale idea of it trains:

# %%
with shows_error():
    print(w.grad.norm())

# %%
rows = []
for to_none in (True, False):
    w = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    w.backward()
    optimizer.step()
    was = w.item()
    optimizer.zero_grad(set_to_none=to_none)
    optimizer.step()  # no backward in between
    rows.append((f"zero_grad(set_to_none={to_none})", str(w.grad), round(was, 3), round(w.item(), 3)))
table(("call", "w.grad", "w before a step without backward", "w after it"), rows)

# %% [markdown]
# `None` means: skip this parameter. Zero means: a gradient of zero, and momentum rolls on.
#
# ### A batch in pieces

# %%
predict(
    "accumulate_uneven",
    "A batch of 10 is split into 8 and 2. Each piece's mean loss is divided by 2, the number of pieces. Is the "
    "gradient that of the full batch?",
    [True, False],
)

# %%
torch.manual_seed(0)
x, y, w = torch.randn(10, 3), torch.randn(10), torch.zeros(3, requires_grad=True)


def accumulated(sizes, weight):
    """The gradient after all pieces; weight(n) multiplies the mean loss of a piece of n rows."""
    w.grad = None
    for xs, ys in zip(x.split(sizes), y.split(sizes)):
        (F.mse_loss(xs @ w, ys) * weight(len(xs))).backward()
    return w.grad.clone()


full = accumulated([10], lambda n: 1)
rows = []
for sizes, rule, weight in [
    ([5, 5], "sum of means", lambda n: 1),
    ([5, 5], "mean / 2 pieces", lambda n: 1 / 2),
    ([8, 2], "mean / 2 pieces", lambda n: 1 / 2),
]:
    error = (accumulated(sizes, weight) - full).abs().max().item()
    rows.append((str(sizes), rule, f"{error:.1e}"))
table(("pieces", "rule", "largest error"), rows, code=())
reveal("accumulate_uneven", float(rows[2][2]) < 1e-5)

# %% [markdown]
# A mean over 2 rows must not count as much as a mean over 8. And the last batch of an epoch is nearly always shorter.

# %% [markdown] exercise="accumulate"
# Write `accumulate(model, batches, loss_function)`. `batches` is a list of `(inputs, targets)` pairs, each with one item per row; the sizes differ.
# `loss_function(outputs, targets)` gives the mean loss of the items of one micro-batch.
#
# After the call each parameter's `.grad` is the gradient of the mean loss over the items of *all* micro-batches, as if they had been one batch. Gradients left over from before are
# dropped. Return that mean loss as a `float`. Hold the graph of one micro-batch at a time: the batches are split because one graph for all does not fit.

# %% exercise="accumulate"
def accumulate(model, batches, loss_function):
    """Leave the full batch's gradients in .grad, one micro-batch at a time; return the mean loss over all items."""
    ### BEGIN SOLUTION
    model.zero_grad()
    total = sum(len(inputs) for inputs, _ in batches)
    average = 0.0
    for inputs, targets in batches:
        # The mean over n items stands for n / total of the mean over all.
        loss = loss_function(model(inputs), targets) * (len(inputs) / total)
        loss.backward()  # adds to .grad, and frees this micro-batch's graph
        average += loss.item()
    return average
    ### END SOLUTION

# %% [markdown]
# ### A gradient that is handed to you
#
# `backward` writes to every leaf that it reaches. To *look* at a gradient, ask for it by name: `torch.autograd.grad`
# returns the gradients of one number with respect to the tensors of your choice, leaves or not, and writes to no
# `.grad`.

# %%
w, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
h = w * 3
loss = h.square().sum()
of_w, of_h = torch.autograd.grad(loss, [w, h], retain_graph=True)
print("of w:", of_w.tolist(), " of h:", of_h.tolist(), " w.grad:", w.grad)
with shows_error():
    torch.autograd.grad(loss, [w, unused], retain_graph=True)
print("allow_unused:", torch.autograd.grad(loss, [w, unused], allow_unused=True))

# %% [markdown]
# It frees the graph as `backward` does; `retain_graph=True` keeps it for whoever comes next. A tensor that the loss
# does not lead to is an error, or `None` with `allow_unused=True`. A loss without any graph is an error in any case.

# %% [markdown]
# ### Six reasons for `grad is None`
#
# "It is frozen or detached", people say. Those are two of at least six.

# %%
def reasons():
    """Each case as (what happened, the tensor)."""
    w = torch.ones(2, requires_grad=True)
    loss = w.sum()
    yield "backward was not called yet", w
    w = torch.ones(2, requires_grad=True)
    y = w * 2
    y.sum().backward()
    yield "not a leaf: the gradient passed through", y
    w, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    w.sum().backward()
    yield "not used for this loss", unused
    w, x = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with torch.no_grad():
        h = w * 2
    (h * x).sum().backward()
    yield "its step ran under no_grad, or before a detach", w
    w = torch.ones(2, requires_grad=True)
    w.sum().backward()
    torch.optim.SGD([w], lr=0.1).zero_grad()
    yield "zero_grad has removed it", w
    w, x = torch.ones(2), torch.ones(2, requires_grad=True)
    (w * x).sum().backward()
    yield "frozen: requires_grad is False", w


with warnings.catch_warnings(action="ignore"):  # .grad of a tensor that is no leaf
    found = [(why, t.requires_grad, t.is_leaf, t.grad is None) for why, t in reasons()]
table(("reason", "requires_grad", "is_leaf", "grad is None"), found, code=())

# %% [markdown]
# The checks, in this order: `is_leaf`? `requires_grad`? was `backward` called since the last `zero_grad`? and if all
# are fine, is it in the graph of *this* loss (your `reached_parameters`)?
# %% [markdown]
# ## Part 3. Ways of cutting the graph
#
# ### `detach` makes a second tensor

# %%
predict("detach_original", "`d = y.detach()`. Is `y` itself still in the graph?", [True, False])
predict(
    "detach_square",
    "The derivative of `x.square().detach() * x` at `x = 2`?",
    ["12, as that of x³", "4", "8"],
)

# %%
x = torch.tensor(2.0, requires_grad=True)
y = x.square()
d = y.detach()
print("y:", y.grad_fn.name(), "| d:", d.grad_fn, "| same memory:", d.data_ptr() == y.data_ptr())
reveal("detach_original", y.grad_fn is not None)

# %%
(x.square().detach() * x).backward()
reveal("detach_square", {12.0: "12, as that of x³", 4.0: "4", 8.0: "8"}[x.grad.item()])

# %% [markdown]
# `detach` takes nothing out of the graph. It returns another tensor on the *same* memory without a history. In the
# product the square counts as the number 4, and only the second factor is differentiated.
#
# The same memory: what does a write through it do?

# %%
predict(
    "write_detached",
    "`y = x.exp()`, then `y.detach().zero_()`, then `y.sum().backward()`. What happens?",
    ["the right gradient", "a wrong gradient, silently", "an error"],
)
predict(
    "write_data",
    "The same with `y.data.zero_()`?",
    ["the right gradient", "a wrong gradient, silently", "an error"],
)

# %%
def after_write(write):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    write(y)
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(str(error).split(" Hint")[0])
        return "an error"
    print("x.grad =", x.grad.tolist())
    right = torch.allclose(x.grad, x.detach().exp())
    return "the right gradient" if right else "a wrong gradient, silently"


reveal("write_detached", after_write(lambda y: y.detach().zero_()))
reveal("write_data", after_write(lambda y: y.data.zero_()))

# %% [markdown]
# `exp` saved its result, and the write spoiled it. After `detach` PyTorch notices, by a counter that both tensors
# share (part 4). `.data` has a counter of its own. It is a leftover of old times; there is no task left for it that
# `detach()` or `no_grad` does not do better.
#
# For numbers that nothing can reach any more: `detach().clone()`. Both halves are needed.

# %%
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = x.exp()
rows = []
for code in ["y.detach()", "y.clone()", "y.detach().clone()", "y.clone().detach()"]:
    t = eval(code)
    rows.append((code, t.data_ptr() == y.data_ptr(), t.requires_grad))
table(("call", "shares memory with y", "in the graph"), rows)

# %% [markdown]
# ### `no_grad` covers what runs inside it, and nothing else

# %%
predict(
    "no_grad_loss",
    "The forward pass has run. Now `with torch.no_grad(): loss = out.sum()`. How many of the tensors saved so far "
    "does that free?",
    ["none", "half", "all"],
)
predict(
    "no_grad_submodule",
    "`h = f1(x)`, then `with torch.no_grad(): z = f2(h)`. The loss is `h.sum() + z.sum()`. Who gets a gradient?",
    ["both", "only f1", "only f2", "neither"],
)

# %%
saved = []


def pack(tensor):
    kept = tensor.detach()  # part 8 tells why not the tensor itself
    saved.append(weakref.ref(kept))
    return kept


x = torch.rand(5, 3, requires_grad=True)
with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    out = x.exp().sin().cos().square()
before = sum(ref() is not None for ref in saved)
with torch.no_grad():
    loss = out.sum()
freed = before - sum(ref() is not None for ref in saved)
print(f"{before} saved tensors before, {freed} of them freed")
reveal("no_grad_loss", {0: "none", before // 2: "half", before: "all"}.get(freed, freed))
with shows_error():
    loss.backward()

# %% [markdown]
# `out` still holds its graph. `no_grad` around the loss only made a loss that is of no use.

# %%
f1, f2 = nn.Linear(3, 3), nn.Linear(3, 3)
h = f1(torch.rand(2, 3))
with torch.no_grad():
    z = f2(h)
(h.sum() + z.sum()).backward()
who = [name for name, f in {"f1": f1, "f2": f2}.items() if f.weight.grad is not None]
reveal("no_grad_submodule", {2: "both", 0: "neither"}.get(len(who), f"only {who[0]}"))

# %% [markdown]
# A block of `no_grad` is a gap in the record, no more. What ran before it is still there. It is also a setting of the
# *thread*, not of the program, and a decorator if you like:

# %%
@torch.no_grad()
def evaluate(record):
    record.append(torch.is_grad_enabled())
    thread = threading.Thread(target=lambda: record.append(torch.is_grad_enabled()))
    thread.start()
    thread.join()


record = []
evaluate(record)
inside, in_thread = record
print(f"inside: {inside}, in a thread started inside: {in_thread}, after: {torch.is_grad_enabled()}")

# %%
predict(
    "leaf_in_no_grad",
    "Inside `no_grad`: `w = torch.ones(2, requires_grad=True)`, then `y = w * 2`. Do `w` and `y` require grad?",
    ["both", "only w", "neither"],
)

# %%
with torch.no_grad():
    w = torch.ones(2, requires_grad=True)
    y = w * 2
who = [name for name, t in {"w": w, "y": y}.items() if t.requires_grad]
reveal("leaf_in_no_grad", {2: "both", 0: "neither"}.get(len(who), f"only {who[0]}"))

# %% [markdown]
# `requires_grad` is a wish, and it is kept. Without a record no graph grows from it, so such tensors leak nothing.
#
# The opposite block is `enable_grad`. A function that needs a graph of its own records one inside it, whatever its
# caller has switched off, and afterwards the caller's setting is back:

# %%
with torch.no_grad():
    with torch.enable_grad():
        slope = torch.autograd.grad((w * w).sum(), w)
    print("a gradient under no_grad:", slope[0].tolist(), " recording afterwards:", torch.is_grad_enabled())

# %% [markdown]
# `inference_mode` goes further: its results have no version counter and can never enter a graph.

# %%
with torch.inference_mode():
    features = torch.ones(2) * 2
w = torch.ones(2, requires_grad=True)
with shows_error():
    (w * features).sum().backward()
print("a clone, made outside, may:", (w * features.clone()).sum().item())

# %% [markdown] exercise="predict_cut"
# Nine ways to get `y` from `h`. Some of them leave the graph, some share memory, some do both or neither. `x` and `h` are
# always made anew:
#
# ```python
# x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
# h = x.exp()                  # exp needs h for its backward pass
# ```
#
# Before you run anything, replace each `None` by three words, such as `("own", "cut", "right")`:
#
# * `"shares"` if `y` lies in the memory of `h`, `"own"` if it has memory of its own;
# * `"in graph"` if a loss made from `y` would send a gradient to `x`, `"cut"` if it would not;
# * what comes of `y[:] = 0` followed by `h.sum().backward()`: `"right"` if `x.grad` is what it would be without the write,
#   `"wrong"` if it is something else and nobody says so, `"raises"` if one of the two lines raises.

# %% exercise="predict_cut"
predict_cut = {
    "y = h[:]": None,
    "y = h.detach()": None,
    "y = h.clone()": None,
    "y = h.detach().clone()": None,
    "y = h.data": None,
    "y = h.detach().numpy()": None,
    "with torch.no_grad(): y = h": None,
    "with torch.no_grad(): y = h * 1": None,
    "with torch.inference_mode(): y = h * 1": None,
}
### BEGIN SOLUTION
predict_cut = {
    # A view: the write goes to h, its version counter goes up, and exp finds its saved result changed.
    "y = h[:]": ("shares", "in graph", "raises"),
    # An alias outside the graph. The counter is common, so backward still notices.
    "y = h.detach()": ("shares", "cut", "raises"),
    # New memory, and a step of the graph like any other.
    "y = h.clone()": ("own", "in graph", "right"),
    "y = h.detach().clone()": ("own", "cut", "right"),
    # The same alias with a counter of its own: backward computes with zeros and tells nobody.
    "y = h.data": ("shares", "cut", "wrong"),
    # NumPy has no counter at all.
    "y = h.detach().numpy()": ("shares", "cut", "wrong"),
    # A second name for h is no operation: no_grad has nothing to do here.
    "with torch.no_grad(): y = h": ("shares", "in graph", "raises"),
    "with torch.no_grad(): y = h * 1": ("own", "cut", "right"),
    # Made under inference mode, it has no counter, and writing to it outside is refused.
    "with torch.inference_mode(): y = h * 1": ("own", "cut", "raises"),
}
### END SOLUTION

# %% [markdown]
# ### In bytes
#
# "`no_grad` saves 37 % of the memory." A figure of two digits sounds measured. Let us measure: a network 784-256-10,
# a full training step against a forward pass under `no_grad`.

# %%
predict(
    "no_grad_share",
    "By how much is the peak lower, at batch sizes 8, 128 and 4096?",
    ["by about 37 % each time", "there is no fixed figure", "by about 98 % each time"],
)

# %%
def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def training_step(model, x):
    model(x).sum().backward()


def without_graph(model, x):
    with torch.no_grad():
        model(x).sum()


peaks, model = {}, two_layers()
for rows_in_batch in (8, 128, 4096):
    x = torch.rand(rows_in_batch, 784)
    for run in (training_step, without_graph):
        with memory() as used:
            run(model, x)
        model.zero_grad()
        peaks[rows_in_batch, run] = used.peak
savings = {}
for rows_in_batch in (8, 128, 4096):
    trained, forward = (peaks[rows_in_batch, run] for run in (training_step, without_graph))
    savings[f"batch of {rows_in_batch}"] = round(100 * (1 - forward / trained))
    print(
        f"batch of {rows_in_batch:4}: peak {trained:>10,} bytes in training, {forward:>9,} under no_grad"
    )
spread = max(savings.values()) - min(savings.values())
steady = f"by about {round(sum(savings.values()) / 3)} % each time"
reveal("no_grad_share", steady if spread < 10 else "there is no fixed figure")

# %%
bars(
    [*savings, "as it is told"],
    [*savings.values(), 37],
    "per cent of the peak saved by no_grad",
    caption="The same network, the same call, another batch. A small batch needs little beside the gradients of the "
    "parameters, which `no_grad` avoids; a large one needs mostly its own activations.",
    alt="Four bars: "
    + "; ".join(f"{name} {value} %" for name, value in savings.items())
    + "; as it is told 37 %.",
)

# %% [markdown]
# Now the ways of cutting, on the same network with 128 rows. What do they keep for the backward pass, what is alive
# when the result is there, and who can still learn?

# %%
def as_usual(model, x):
    return model(x)


def detach_between(model, x):
    return model[2](model[1](model[0](x)).detach())


def clone_and_detach(model, x):
    return model[2](model[1](model[0](x)).clone().detach())


def data_between(model, x):
    return model[2](model[1](model[0](x)).data)


def no_grad_at_the_end(model, x):
    h = model[1](model[0](x))
    with torch.no_grad():
        return model[2](h), h  # h lives on, as a local variable of a training loop does


def no_grad_around(model, x):
    with torch.no_grad():
        return model(x)


def inference_around(model, x):
    with torch.inference_mode():
        return model(x)


x, rows = torch.rand(128, 784), []
ways = [
    as_usual,
    detach_between,
    clone_and_detach,
    data_between,
    no_grad_at_the_end,
    no_grad_around,
    inference_around,
]
for way in ways:
    model = two_layers()
    with memory() as used:
        saved = bytes_saved_for_backward(way, model, x)
        born = used.current
    out = saved.result[0] if isinstance(saved.result, tuple) else saved.result
    if out.requires_grad:
        out.sum().backward()
    learns = [f"layer {i}" for i in (0, 2) if model[i].weight.grad is not None]
    rows.append(
        (way.__name__, f"{saved.kept:,}", f"{born:,}", f"{used.peak:,}", ", ".join(learns) or "nobody")
    )
    del saved, out
head = ("way", "kept for backward", "new and still alive", "peak of the forward pass", "who learns")
table(head, rows)

# %% [markdown]
# "Kept for backward" is `.kept` of `bytes_saved_for_backward`: what is still saved when the function has returned and
# its result is held. (`.bytes` counts all that was saved on the way.) The input `x` has 401,408 bytes, `h` has 131,072, the result 5,120. `detach` in the middle gives up the claim on
# `x`, but the second layer still needs `h` for its own weights: of the *new* memory nothing is saved. Only a forward
# pass that runs wholly without a record keeps nothing, and even that has the same peak, because at one moment input
# and output of the ReLU are both there. And the three ways that cut in the middle have a price that no memory profile
# shows: layer 0 does not learn.

# %% [markdown] exercise="predict_saved"
# Three lines, eight times:
#
# ```python
# x = torch.rand(8, 3)                           #  96 bytes
# w1 = nn.Parameter(torch.rand(3, 4))
# w2 = nn.Parameter(torch.rand(4, 2))
#
# h = x @ w1                                     # 128 bytes
# h = h.relu()                                   # the line that the table changes
# out = h @ w2                                   #  64 bytes
# ```
#
# Replace each `None` by the number of bytes that autograd keeps for the backward pass after the last line, while `x`, `h` and `out` are alive.
# A storage counts once, however often it is saved; `w1` and `w2` do not count, they exist anyway. "no_grad around all" means that the
# three lines stand in a `with torch.no_grad():` block, "no_grad around out" that only the last one does.
#
# To look afterwards: put the lines into a function that returns `(h, out)`, and read `bytes_saved_for_backward(function).kept`. Its `.bytes` is another number: all that was saved at any
# time, also what has been freed by the end.

# %% exercise="predict_saved"
predict_saved = {
    "h = h.relu()": None,
    "h = h.relu_()": None,
    "h = h.relu().clone()": None,
    "h = h.relu().detach()": None,
    "h = h.square()": None,
    "h = h.relu(), then out = out.exp()": None,
    "h = h.relu(), no_grad around all": None,
    "h = h.relu(), no_grad around out": None,
}
### BEGIN SOLUTION
predict_saved = {
    # x for the gradient of w1, and h: relu's result and the second product's input are one tensor.
    "h = h.relu()": 96 + 128,
    # In place or not: x @ w1 itself is saved by nobody, so there is nothing to gain.
    "h = h.relu_()": 96 + 128,
    # relu saves its own result, the second product the clone.
    "h = h.relu().clone()": 96 + 128 + 128,
    # No name leads to the first layer's graph any more. It is gone, and x with it.
    "h = h.relu().detach()": 128,
    # The derivative 2h needs the old h; the second product needs the new one.
    "h = h.square()": 96 + 128 + 128,
    # exp saves its result.
    "h = h.relu(), then out = out.exp()": 96 + 128 + 64,
    "h = h.relu(), no_grad around all": 0,
    # h is alive and so is its graph. no_grad around the end frees nothing.
    "h = h.relu(), no_grad around out": 96 + 128,
}
### END SOLUTION

# %% [markdown] exercise="saved_bytes"
# Write `saved_bytes(function)`: run `function()` once and return how many bytes autograd saves for the backward pass meanwhile, as an `int`.
#
# Each storage counts once, with all its bytes, however many saved tensors are views of it, and it counts even if it is freed again before `function` returns. Parameters (`nn.Parameter`) and views of parameters do not
# count. The graph must work as usual afterwards, and be freed as usual when its result is dropped: a node must not hold its own output together with
# the graph behind it, so let `pack` return `tensor.detach()`. An error of `function` reaches the caller, and no hook stays switched on. Use
# `torch.autograd.graph.saved_tensors_hooks`; the course's own `bytes_saved_for_backward` is what you are building.
#
# ```python
# x = torch.ones(100, requires_grad=True)
# saved_bytes(lambda: x.exp())      # 400: the result
# saved_bytes(lambda: x + 1)        # 0
# ```

# %% exercise="saved_bytes"
def saved_bytes(function):
    """Bytes of the distinct storages that autograd saves while function() runs, parameters left out."""
    ### BEGIN SOLUTION
    storages = {}

    def pack(tensor):
        # Linear saves its weight transposed: a view, whose _base is the parameter.
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storage = tensor.untyped_storage()
            # Keeping the storage keeps its address from being given to another one while we count.
            storages[storage.data_ptr()] = storage
        # Detached: a node that holds its own output, and with it the graph, would never be freed.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(storage.nbytes() for storage in storages.values())
    ### END SOLUTION

# %% [markdown]
# ## Part 4. Writing in place
#
# ### The counter

# %%
predict(
    "inplace_grad_fn",
    "`x = w * 2`, then `x += 1`. What is `x.grad_fn`?",
    ["None: the graph is cut", "the node of the product", "the node of the sum"],
)

# %%
w = torch.ones(2, requires_grad=True)
x = w * 2
print(x.grad_fn.name(), "version", x._version)
x += 1
print(x.grad_fn.name(), "version", x._version)
x.sum().backward()
print("w.grad =", w.grad.tolist())
names = {"MulBackward0": "the node of the product", "AddBackward0": "the node of the sum"}
reveal("inplace_grad_fn", names.get(x.grad_fn and x.grad_fn.name(), "None: the graph is cut"))

# %% [markdown]
# Nothing is cut. The step was recorded like any other, and the gradient is right. What guards you is a counter: every
# write adds one to `_version`. When a node saves a tensor it notes the version, and backward compares.

# %%
rows = []
for formula in [
    "x = w * 2",
    "x = w.exp()",
    "x = w.square()",
    "x = w.sigmoid()",
    "x = w.relu()",
    "x = w.sin()",
]:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    exec(formula)
    x += 1
    try:
        x.sum().backward()
        outcome = "works"
    except RuntimeError as error:
        outcome = "raises: version" + str(error).split(" at version")[1].split(". Hint")[0]
    rows.append((formula, outcome))
table(("then x += 1, then backward", "outcome"), rows)

# %% [markdown]
# Compare with the table of part 1: it fails exactly where the *result* was saved. The rule, then: **you may overwrite
# a number that no backward needs**. "Nothing in place, ever" is too strict, and "in place is fine" too loose.
#
# ### Where it raises

# %%
predict(
    "relu_leaf",
    "`x` is a leaf that requires grad. `y = F.relu(x, inplace=True)`, then `y.sum().backward()`. Which line raises?",
    ["the relu", "the backward", "none"],
)
predict("relu_nonleaf", "And if `x` is the result of a product?", ["the relu", "the backward", "none"])

# %%
def relu_in_place(x):
    try:
        y = F.relu(x, inplace=True)
    except RuntimeError as error:
        print(error)
        return "the relu"
    try:
        y.sum().backward()
    except RuntimeError as error:
        print(error)
        return "the backward"
    return "none"


leaf = torch.tensor([-1.0, 3.0], requires_grad=True)
reveal("relu_leaf", relu_in_place(leaf))
reveal("relu_nonleaf", relu_in_place(leaf * 2))
print("leaf.grad =", leaf.grad.tolist())

# %% [markdown]
# A leaf has no history in which the change could be noted, so it is refused at the very line. A view of a leaf is
# refused in the same way. Two ways out, both in daily use:

# %%
w = torch.ones(2, requires_grad=True)
with shows_error():
    w[0] = 5.0
with torch.no_grad():  # an optimizer does this: a change that is no part of the formula
    w[0] = 5.0
print("under no_grad: leaf", w.is_leaf, "version", w._version)
x = w.clone()  # a mask does this: the change is part of the formula
x[0] = 0.0
x.sum().backward()
print("on a clone: w.grad =", w.grad.tolist())

# %% [markdown]
# Under `no_grad` one slip is easy. Both lines look alike:

# %%
w = torch.ones(2, requires_grad=True)
w.grad = torch.ones(2)
v = w
with torch.no_grad():
    w -= 0.1 * w.grad
print("w -= ...     requires grad:", w.requires_grad, " same tensor:", w is v)
with torch.no_grad():
    w = w - 0.1 * w.grad
print("w = w - ...  requires grad:", w.requires_grad, " same tensor:", w is v)

# %% [markdown]
# The second made a new tensor, without a wish for gradients, and the model still holds the old one (section 1, part
# 2).

# %% [markdown] exercise="predict_inplace"
# Twelve formulas with a step in place. Each starts from a new
#
# ```python
# w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
# ```
#
# and ends with `x.sum().backward()`. Replace each `None` by one of these words:
#
# * `"works"`: `w.grad` is the derivative of `x.sum()`;
# * `"wrong"`: nothing raises, and `w.grad` is something else;
# * `"raises at once"`: a line of the formula raises;
# * `"raises at backward"`: the formula runs, and `backward` raises.

# %% exercise="predict_inplace"
predict_inplace = {
    "x = w * 2; x += 1": None,
    "x = w.exp(); x += 1": None,
    "x = w + 1; x.exp_()": None,
    "w += 1; x = w * 2": None,
    "x = w.clone(); x[0] = 5.0": None,
    "x = w.exp(); x.data += 1": None,
    "x = w.relu(); x += 1": None,
    "x = (w * 2).relu_()": None,
    "x = w.sigmoid().relu_()": None,
    "x = w * 2; x.div_(x.norm())": None,
    "h = w * 2; x = h ** 2; h += 1": None,
    "h = w * 2; x = h.relu(); h += 1": None,
}
### BEGIN SOLUTION
predict_inplace = {
    # A product with a constant needs none of its numbers again.
    "x = w * 2; x += 1": "works",
    # exp's derivative is its own result, and that is gone.
    "x = w.exp(); x += 1": "raises at backward",
    # exp_ saves the result that it wrote; + needs nothing.
    "x = w + 1; x.exp_()": "works",
    # A leaf that requires grad has no history in which the change could be noted.
    "w += 1; x = w * 2": "raises at once",
    # No leaf, and clone needs no numbers. The gradient of the overwritten place is 0.
    "x = w.clone(); x[0] = 5.0": "works",
    # .data has a version counter of its own: backward multiplies by exp(w) + 1.
    "x = w.exp(); x.data += 1": "wrong",
    # relu asks its result where it was positive. So a residual sum must not be written into it.
    "x = w.relu(); x += 1": "raises at backward",
    "x = (w * 2).relu_()": "works",
    # sigmoid's derivative is y (1 - y): it needs y.
    "x = w.sigmoid().relu_()": "raises at backward",
    # The norm needs the old x for its own derivative.
    "x = w * 2; x.div_(x.norm())": "raises at backward",
    # A square needs its input ...
    "h = w * 2; x = h ** 2; h += 1": "raises at backward",
    # ... and relu its result.
    "h = w * 2; x = h.relu(); h += 1": "works",
}
### END SOLUTION

# %% [markdown] exercise="sgd_momentum_step"
# Write `sgd_momentum_step(params, buffers, lr, momentum)`: one step of stochastic gradient descent with momentum.
#
# `params` is a list of leaf tensors that require grad. `buffers` is a list of the same length that belongs to you from one
# call to the next: before the first call it holds a `None` for each parameter. For each parameter `p` with gradient `g`
#
# * buffer = momentum * buffer + g (at the first step: g), kept in `buffers[i]`;
# * p = p - lr * buffer, in the memory that `p` has.
#
# After the call the model must still hold the same tensors, as leaves that require grad. Nothing may hang on a graph,
# `p.grad` stays as it is, and a parameter whose `grad` is `None` is skipped. The caller may reuse the memory of `p.grad` for the
# next gradient. A loss that was computed before the step must no longer run backward with the changed numbers. Nothing is returned.
#
# ```python
# w = torch.tensor([1.0], requires_grad=True); w.grad = torch.tensor([10.0])
# buffers = [None]
# sgd_momentum_step([w], buffers, lr=0.1, momentum=0.9)      # w is now 0, buffers[0] is 10
# ```

# %% exercise="sgd_momentum_step"
def sgd_momentum_step(params, buffers, lr, momentum):
    """One step of SGD with momentum, in place: list of leaves, list of their buffers (None at first)."""
    ### BEGIN SOLUTION
    # no_grad: a leaf may be changed in place here, and the buffers record no graph from step to step.
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is None:
                continue
            if buffers[i] is None:
                buffers[i] = p.grad.clone()  # a copy: the gradient's memory is used again
            else:
                buffers[i].mul_(momentum).add_(p.grad)
            p.sub_(buffers[i], alpha=lr)  # no temporary
    ### END SOLUTION

# %% [markdown]
# ### In-place ReLU and its 12 %

# %%
predict(
    "relu_saved",
    "A network conv - BatchNorm - ReLU - conv. By how much do the bytes saved for backward change with "
    "`nn.ReLU(inplace=True)`?",
    ["12 % fewer", "half", "not at all"],
)

# %%
def conv_net(inplace, depth):
    torch.manual_seed(0)
    layers = []
    for i in range(depth):
        layers += [nn.Conv2d(3 if i == 0 else 8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=inplace)]
    return nn.Sequential(*layers, nn.Conv2d(8, 4, 3))


def whole_step(model, x):
    model(x).sum().backward()


rows, x = [], torch.rand(4, 3, 24, 24)
for depth in (1, 3, 6):
    for inplace in (False, True):
        model = conv_net(inplace, depth)
        saved = bytes_saved_for_backward(model, x)
        with memory() as used:
            whole_step(model, x)
        rows.append((depth, inplace, saved.bytes, used.peak))
        del saved
table(
    ("blocks", "in place", "bytes saved for backward", "peak of a training step"),
    [(*row[:2], *(f"{count:,}" for count in row[2:])) for row in rows],
    code=(),
)
same = all(a[2] == b[2] for a, b in zip(rows[::2], rows[1::2]))
reveal("relu_saved", "not at all" if same else f"{100 * (1 - rows[1][2] / rows[0][2]):.0f} % fewer")

# %% [markdown]
# ReLU saves its *result*, which the next layer saves as well: one storage. Its input was saved by nobody, and it is
# freed in either case as soon as the next line has run. What in-place ReLU spares is a moment: input and output side
# by side.

# %%
rows = []
for inplace in (False, True):
    with torch.no_grad(), memory() as used:
        F.relu(torch.zeros(100, 1000), inplace=inplace)
    rows.append((f"F.relu(temporary of 400,000 bytes, inplace={inplace})", used.peak))
table(("call", "peak"), rows)

# %% [markdown]
# So it halves the peak of a lone ReLU, and here it changed no peak of a training step. Whether it helps *your*
# network is a matter of two calls of `memory()`.
#
# ### In place, inside a model
#
# torchvision's ResNets use in-place ReLUs and write `out += identity`. Are their gradients right?

# %%
from torchvision.models import resnet18

relus = [module.inplace for module in resnet18().modules() if isinstance(module, nn.ReLU)]
print(f"resnet18: {sum(relus)} of {len(relus)} ReLUs work in place")


# %%
class Block(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.in_place, self.conv, self.norm = in_place, nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        out = self.norm(self.conv(x))
        if self.in_place:
            out += x
            return F.relu(out, inplace=True)
        return F.relu(out + x)


def block_gradients(in_place):
    torch.manual_seed(0)
    block = Block(in_place)
    block(torch.rand(2, 4, 6, 6)).square().sum().backward()
    return [p.grad for p in block.parameters()]


print("equal:", all(map(torch.equal, block_gradients(False), block_gradients(True))))

# %% [markdown]
# To the last bit: BatchNorm and convolution need their inputs, not their results. Two writes are wrong nevertheless.

# %%
w = torch.tensor([3.0, 4.0], requires_grad=True)
x = w * 2
with shows_error():
    x.div_(x.norm()).sum().backward()
x = w * 2
x.clamp_(0, 7).sum().backward()
print("clamp_ is fine:", w.grad.tolist())

# %% [markdown]
# `norm` needs the old `x`, and `div_` has overwritten it. `clamp_` keeps what it needs. The other wrong write raises
# nothing. It changes what belongs to the caller:

# %%
class Normalize(nn.Module):
    def forward(self, x):
        return x.mul_(2)


batch = torch.ones(3)
Normalize()(batch)
print("the caller's batch is now", batch.tolist())

# %%
predict(
    "from_numpy_write",
    "`t = torch.from_numpy(images)` in the preprocessing, then `t.sub_(mean)`. Is `images` as before?",
    [True, False],
)

# %%
pixels = np.ones(3, np.float32)
torch.from_numpy(pixels).sub_(0.5)
reveal("from_numpy_write", bool((pixels == 1).all()))

# %% [markdown]
# In place is safe on what this very function has made and no backward needs. Data sets hand out views of their own memory (section 1, part
# 2), and `forward` does not own its input.
# %% [markdown]
# ## Part 5. Hooks: looking without disturbing
#
# A hook is a function of yours that a module or a tensor calls. *Forward* hooks see outputs, *backward* hooks see
# gradients.
#
# ### Who is called when

# %%
def named_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


events = []
model = named_layers()
for name, module in model.named_modules():
    name = name or "model"
    module.register_forward_pre_hook(
        lambda m, i, name=name: events.append((name, "before forward", tuple(i[0].shape)))
    )
    module.register_forward_hook(
        lambda m, i, o, name=name: events.append((name, "after forward", tuple(o.shape)))
    )
    module.register_full_backward_hook(
        lambda m, gi, go, name=name: events.append(
            (name, "backward", f"{tuple(go[0].shape)} -> {tuple(gi[0].shape)}")
        )
    )
x = torch.rand(8, 3, requires_grad=True)
model(x).sum().backward()
table(("module", "event", "shape"), events)

# %% [markdown]
# Down into the children and up again, then the whole way back. A full backward hook gets two tuples: `grad_output`,
# what arrives at the outputs of the module, and `grad_input`, what leaves through its inputs. Mind `name=name` in the
# code above. Without it:

# %%
model, seen = named_layers(), {}
for name, module in model.named_children():
    module.register_forward_hook(lambda m, i, o: seen.update({name: tuple(o.shape)}))
model(x)
print("without name=name, three modules left:", seen)

# %% [markdown]
# All three closures look up the *same* variable when they are called, and by then it holds the last name.
#
# There is an older `register_backward_hook` without the `full`. It hangs on the last *operation* of a module,
# whatever that is:

# %%
model, old = named_layers(), []
model[0].register_backward_hook(lambda m, grad_input, grad_output: old.append(grad_input))
with shows_warning():
    model(torch.rand(8, 3)).sum().backward()
print(
    "grad_input of a linear layer with one input:", [g is not None and tuple(g.shape) for g in old[0]]
)

# %% [markdown]
# Three gradients for one input, and two of them are those of bias and weight. Use the full one.
#
# ### Inside `no_grad`

# %%
predict(
    "hooks_no_grad",
    "Which hooks run in a forward pass under `no_grad`?",
    ["none", "forward hooks only", "forward and backward hooks"],
)
predict(
    "hook_registered_there",
    "A full backward hook is registered inside `no_grad`. Does it run in a later training step?",
    [True, False],
)

# %%
model, ran = named_layers(), []
model[0].register_forward_hook(lambda *_: ran.append("forward"))
with torch.no_grad():
    model[2].register_full_backward_hook(lambda *_: ran.append("backward"))
    model(x)
words = {(): "none", ("forward",): "forward hooks only"}
reveal("hooks_no_grad", words.get(tuple(ran), "forward and backward hooks"))
ran.clear()
model(x).sum().backward()
reveal("hook_registered_there", "backward" in ran)

# %% [markdown]
# `no_grad` switches off the record, not the hooks. There are no backward hooks in such a pass because there is no
# backward. Registering is no operation on tensors, so it does not matter where it happens: a hook that was registered
# inside the block runs in every later training step. And feature maps and statistics *can* be watched at inference:

# %%
network = small_network().eval()
watched = {}
norm = network["backbone"][1]
handle = norm.register_forward_hook(
    lambda m, i, o: watched.update(mean=i[0].mean((0, 2, 3)), running=m.running_mean.clone())
)
with torch.no_grad():
    network["backbone"](images)
handle.remove()
print("mean of what came in:", [round(v, 2) for v in watched["mean"][:4].tolist()])
print("running mean:        ", [round(v, 2) for v in watched["running"][:4].tolist()])

# %% [markdown]
# ### The first layer

# %%
predict(
    "first_layer_hook",
    "A full backward hook on the first layer, which gets plain data. What is `grad_input`?",
    ["a tensor of the shape of the data", "zeros", "(None,)"],
)

# %%
model, caught = named_layers(), []
model[0].register_full_backward_hook(lambda m, grad_input, grad_output: caught.append(grad_input))
with shows_warning():
    model(torch.rand(8, 3)).sum().backward()
shape = "(None,)" if caught[0] == (None,) else "a tensor of the shape of the data"
reveal("first_layer_hook", shape)

# %% [markdown]
# Nobody needs the gradient of the data, so it is not computed, and a hook does not change that. With
# `x.requires_grad_()` it is.
#
# ### In-place layers and backward hooks

# %%
predict(
    "hook_before_inplace",
    "`nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))`, and a full backward hook. On which of the two layers does it work?",
    ["on both", "on the ReLU only", "on the linear layer only", "on neither"],
)

# %%
works = []
for position, name in enumerate(["linear layer", "ReLU"]):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    model[position].register_full_backward_hook(lambda *_: None)
    try:
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
        works.append(name)
    except RuntimeError as error:
        print(f"{name}: {str(error).split('. ')[0][:100]}")
reveal(
    "hook_before_inplace",
    {0: "on neither", 2: "on both"}.get(len(works), f"on the {works[0] if works else ''} only"),
)

# %% [markdown]
# A full backward hook wraps the inputs and outputs of its module in nodes of its own, and their outputs may not be
# overwritten. The same happens in a ResNet that is watched at a BatchNorm and then does `out += identity`. The way
# out is a hook on the *tensor*:

# %%
def watch_gradient(module, inputs, output):
    output.register_hook(lambda gradient: seen.append((tuple(gradient.shape), gradient.norm().item())))


for inplace in (False, True):
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 1)), []
    model[0].register_forward_hook(watch_gradient)
    model(torch.ones(5, 3)).sum().backward()
    print(
        f"in place {inplace!s:5}  gradient at the linear layer: shape {seen[0][0]}, norm {seen[0][1]:.4f}"
    )

# %% [markdown]
# The same gradient in both networks: that of the output *as the layer gave it*, before the ReLU wrote over it.
#
# `watch_gradient` is a `def` without `return`, and not a `lambda`, for a reason. **What a forward hook returns
# replaces the output of the module**; `None` leaves it alone. `register_hook` returns a handle, and a `lambda` would
# pass it on to the next layer:

# %%
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
handle = model[0].register_forward_hook(lambda m, i, o: o.register_hook(print))
with shows_error():
    model(torch.ones(5, 3))
handle.remove()
model[0].register_forward_hook(lambda m, i, o: 0 * o)
print("with a hook that returns 0 * o:", model(torch.ones(5, 3)).detach().flatten().tolist())
print("the bias of the last layer:    ", model[2].bias.tolist())

# %% [markdown]
# Used on purpose, this is how a hook hands on a changed or copied output. A tensor's hook works alike: what it
# returns replaces the gradient.
#
# What is recorded on the way forward has the in-place layer for an enemy, too:

# %%
predict(
    "recorded_activation",
    "A forward hook stores `o.detach()` of the linear layer; the in-place ReLU follows. What is the minimum of what was stored?",
    ["negative, as the layer gave it", "0"],
)

# %%
torch.manual_seed(0)
model, stored = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)), {}
model[0].register_forward_hook(
    lambda m, i, o: stored.update(
        {"o": o, "o.detach()": o.detach(), "o.detach().clone()": o.detach().clone()}
    )
)
with torch.no_grad():
    model(torch.ones(1, 3))
table(("stored", "minimum"), [(name, round(t.min().item(), 2)) for name, t in stored.items()])
reveal(
    "recorded_activation", "0" if stored["o.detach()"].min() == 0 else "negative, as the layer gave it"
)

# %% [markdown]
# ### Hooks that are called too often, or never

# %%
predict("forward_method", "How often does a forward hook run for `model.forward(x)`?", [0, 1])

# %%
model, calls = named_layers(), []
for _ in range(3):  # a cell that was run three times
    handle = model.register_forward_hook(lambda *_: calls.append(1))
model.forward(x)
reveal("forward_method", len(calls))
model(x)
print("hooks run by model(x):", len(calls))
handle.remove()
calls.clear()
model(x)
print("after handle.remove():", len(calls))

# %% [markdown]
# `model.forward(x)` goes past everything that `model(x)` does around it. And every run of a cell registers one more
# hook; the last handle removes the last one. So keep the handles, in a list, and remove them in a `finally` or at the
# end of a `with`.

# %% [markdown] exercise="GradientRecorder"
# Write the class `GradientRecorder(model)`, a context manager that tells how strong the gradients are on their way through a model:
#
# ```python
# with GradientRecorder(model) as recorder:
#     loss_function(model(x), y).backward()
# recorder.norms      # {"stem.0": [0.8213], "stem.1": [1.0471], ...}
# ```
#
# `norms` has an entry for every module without children, by its name in `model.named_modules()`: a list with one `float` for each gradient that arrived at
# an output of the module, its norm, in the order of arrival. A module that ran twice has two numbers after one backward pass, one that got no gradient has an empty list.
# Every module gives one tensor.
#
# * In-place layers may follow any module. The norm is that of the gradient with respect to the output as the module gave it.
# * The model's gradients are the same as without the recorder.
# * After the block none of your hooks is left, neither on modules nor on tensors (a backward pass that comes later records nothing), whatever
#   happened inside. Errors get out. Hooks of others stay. No tensor is kept alive.
# * The same recorder can be entered again, and starts with empty lists then.

# %% exercise="GradientRecorder"
class GradientRecorder:
    """Context manager; norms maps the name of each module without children to the norms of its output gradients."""

    def __init__(self, model):
        ### BEGIN SOLUTION
        self.model = model
        self.norms = {}
        self._handles = []
        ### END SOLUTION

    def __enter__(self):
        ### BEGIN SOLUTION
        parts = {name: m for name, m in self.model.named_modules() if not any(m.children())}
        self.norms = {name: [] for name in parts}

        # A function of its own, so that each hook has its own list: a closure over a loop variable sees the last one.
        def watch(norms):
            def see_output(module, inputs, output):
                if output.requires_grad:
                    # On the tensor, not the module: a full backward hook and an in-place layer exclude each other.
                    self._handles.append(output.register_hook(lambda grad: norms.append(grad.norm().item())))

            return see_output

        for name, module in parts.items():
            self._handles.append(module.register_forward_hook(watch(self.norms[name])))
        return self
        ### END SOLUTION

    def __exit__(self, *error):
        ### BEGIN SOLUTION
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # Nothing is returned: an error goes on its way.
        ### END SOLUTION

# %% [markdown] exercise="feature_gradient"
# Which places of a feature map matter for a class? Write `feature_gradient(model, layer, x, target)`.
#
# `layer` is the name of a module that runs once, `x` a batch of N images, `target` N class numbers (`int64`). Return the gradient of
# `scores[0, target[0]] + ... + scores[N-1, target[N-1]]`, with `scores = model(x)`, with respect to the output of the layer: a tensor of that output's shape,
# outside any graph.
#
# * An in-place layer may follow. The gradient is that with respect to the output as the layer gave it.
# * It also works where all parameters are frozen, and where the caller has switched gradients off with `no_grad`.
# * One forward pass. The model runs in the mode in which it comes; its parameters' `.grad`, flags and hooks stay as they are, also after an error.
# * No tensor of the forward pass outlives the call.
#
# It takes a hook, `torch.autograd.grad` (part 2) and `enable_grad` (part 3).

# %% exercise="feature_gradient"
def feature_gradient(model, layer, x, target):
    """Gradient of the target scores with respect to the output of the layer of that name."""
    ### BEGIN SOLUTION
    features = []

    def start_here(module, inputs, output):
        # A new leaf: it works for frozen models, and nothing in front of it has to be kept for backward.
        feature = output.detach().requires_grad_()
        features.append(feature)
        # In-place layers get a copy to write on. A leaf that requires grad may not be written to.
        return feature.clone()

    handle = model.get_submodule(layer).register_forward_hook(start_here)
    try:
        with torch.enable_grad():
            score = model(x).gather(1, target[:, None]).sum()
    finally:
        handle.remove()
    # autograd.grad, not backward: it stores nothing in the parameters' .grad.
    (gradient,) = torch.autograd.grad(score, features)
    return gradient
    ### END SOLUTION

# %% [markdown]
# ### Fading gradients
#
# Twelve layers, twice, with the same weights. Only the activation differs. Each point is the norm of the gradient that
# arrives at one layer.

# %%
def gradient_norms(activation, scale=1.0):
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), activation())]
    model = nn.Sequential(*layers, nn.Linear(32, 1))
    norms = []

    def watch_gradient(module, inputs, output):
        output.register_hook(lambda gradient: norms.append(gradient.norm().item()))

    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight)
        layer.register_forward_hook(watch_gradient)
    (scale * model(torch.randn(64, 32)).square().mean()).backward()
    return norms[::-1]  # backward met the last layer first


sigmoid, relu = gradient_norms(nn.Sigmoid), gradient_norms(nn.ReLU)
fig = figure(7.5, 3)
axes = fig.subplots()
for norms, name, style, marker in [(relu, "ReLU", "-", "o"), (sigmoid, "sigmoid", "--", "s")]:
    axes.plot(range(1, 13), norms, style, marker=marker, color="#1a1a1a", label=name)
axes.set_yscale("log")
axes.set_xticks(range(1, 13))
axes.set_xlabel("layer, 1 is next to the data")
axes.set_ylabel("norm of the gradient")
axes.legend()
show(
    fig,
    caption="The backward pass runs from right to left. Through twelve sigmoids little arrives at the first layer.",
    alt=f"Two lines over the layers 1 to 12, logarithmic. ReLU, solid with circles: from {relu[-1]:.1e} at layer 12 to {relu[0]:.1e} at "
    f"layer 1. Sigmoid, dashed with squares: from {sigmoid[-1]:.1e} at layer 12 down to {sigmoid[0]:.1e} at layer 1.",
)
print(
    f"sigmoid: layer 12 gets {sigmoid[-1] / sigmoid[0]:,.0f} times as much as layer 1; ReLU: {relu[-1] / relu[0]:.2g} times"
)

# %% [markdown]
# "Below 1e-6 is dead, above 10 explodes", says a rule that is going round. What does it say about the same ReLU
# network when the loss is multiplied by 1024, as mixed precision does?

# %%
scaled = gradient_norms(nn.ReLU, scale=1024)
for name, norms in {"loss": relu, "1024 * loss": scaled}.items():
    print(f"{name:12} layer 1: {norms[0]:<8.4g} layer 12 / layer 1: {norms[-1] / norms[0]:.4f}")

# %% [markdown]
# Nothing in the network has changed. A limit for gradient norms belongs to one loss, one batch size and one scale.
# The *ratio* between layers does not.

# %% [markdown]
# ## Part 6. NaN: who began?
#
# ### Anomaly mode
#
# Once a NaN is in the weights, everything is NaN, and the last place tells nothing. Anomaly mode checks the result of
# every node of the backward pass.

# %%
predict(
    "anomaly_inf",
    "`torch.tensor(0.0, requires_grad=True).sqrt().backward()` gives an infinite gradient. Does anomaly mode report it?",
    [True, False],
)

# %%
def report(formula):
    """What anomaly mode says, on from the first line, when the gradient of the formula is computed at w = 0."""
    w = torch.tensor(0.0, requires_grad=True)
    with warnings.catch_warnings(action="ignore"), torch.autograd.set_detect_anomaly(True):
        loss = eval(formula)
        try:
            loss.backward()
        except RuntimeError as error:
            return formula, loss.item(), "(none)", str(error)
    return formula, loss.item(), w.grad.item(), "silent"


reports = [
    report("w.sqrt()"),
    report("w.sqrt() * 0"),
    report("w + float('nan')"),
    report("(w + 1e30) * 1e30"),
]
table(("formula at w = 0", "loss", "gradient", "anomaly mode"), reports)
reveal("anomaly_inf", reports[0][3] != "silent")

# %% [markdown]
# It looks for a NaN that a *backward* function gives, and for nothing else. An infinite gradient passes. Infinite
# times zero is NaN, and that it sees. A NaN or an infinity on the way *forward* passes as long as the gradients are
# finite: the third loss is NaN, and all is quiet. For the way forward there is another tool, and you write it below.

# %%
predict(
    "anomaly_late",
    "Anomaly mode is switched on only around `backward()`. What does it still give?",
    ["nothing", "the error, without the line of your code", "the error and the line of your code"],
)

# %%
def anomaly_report(late):
    """The warning's text; it holds the traceback of the forward line, where there is one."""
    w = torch.tensor(0.0, requires_grad=True)
    with warnings.catch_warnings(record=True, action="always") as caught:
        with torch.autograd.set_detect_anomaly(not late):
            loss = w.sqrt() * 0
        with torch.autograd.set_detect_anomaly(True), shows_error():
            loss.backward()
    return "\n".join(str(w.message) for w in caught)


early, late = anomaly_report(late=False), anomaly_report(late=True)
print(
    "early:",
    [line.strip() for line in early.splitlines() if "sqrt()" in line and "Anomaly" not in line][-1:],
)
print(
    "late: ",
    [
        part.split(" Enable")[0]
        for part in late.split(". ")
        if "No forward" in part or "Error detected" in part
    ],
)
outcome = (
    "the error and the line of your code"
    if "w.sqrt() * 0" in late
    else "the error, without the line of your code"
)
reveal("anomaly_late", outcome)

# %% [markdown]
# The line is noted while forward runs, so the mode must be on *then*. It costs a traceback for every node: switch it
# on for one batch, and off again.

# %% [markdown] exercise="first_bad_module"
# Write `first_bad_module(model, x)`: run `model(x)` once and return the name (as in `model.named_modules()`) of the first module whose output holds
# a NaN or an infinity, or `None` if there is none.
#
# First means first to be finished while the model runs; the order of definition says nothing. The model itself counts as well, under its name `""`, if its
# own `forward` spoils the numbers. An output may be a tensor, a tuple, list or dictionary of such, or anything else, which is fine.
# A later in-place layer may hide the bad numbers again. If the model raises after a bad output, return that name; if it raises before, let the error out.
#
# The model stays as it was: its mode, its buffers (BatchNorm in train mode must not keep NaN as its mean), its hooks, also after an error.

# %% exercise="first_bad_module"
def first_bad_module(model, x):
    """Name of the first module whose output is not finite when model(x) runs, or None."""
    ### BEGIN SOLUTION
    bad = []

    def finite(output):
        if isinstance(output, torch.Tensor):
            return bool(torch.isfinite(output).all())
        if isinstance(output, dict):
            output = output.values()
        elif not isinstance(output, (list, tuple)):
            return True
        return all(finite(part) for part in output)

    def watch(name):
        def look(module, inputs, output):
            # At once: the next layer may write over this very output.
            if not bad and not finite(output):
                bad.append(name)

        return look

    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            model(x)
    except Exception:
        if not bad:
            raise
    finally:
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return bad[0] if bad else None
    ### END SOLUTION

# %% [markdown]
# ### Three makers of NaN
#
# **The softmax that was written by hand.**

# %%
predict(
    "log_softmax",
    "`F.log_softmax(torch.tensor([1000.0, 0.0]), 0)`. What is its second value?",
    ["-inf: the softmax underflows", "-1000", "nan"],
)

# %%
def with_gradient(function):
    x = torch.tensor([1000.0, 0.0], requires_grad=True)
    values = function(x)
    values.sum().backward()
    return values.tolist(), x.grad.tolist()


fused = with_gradient(lambda x: F.log_softmax(x, 0))
by_hand = with_gradient(lambda x: torch.log(torch.softmax(x, 0)))
table(
    ("formula", "values", "gradient"),
    [("F.log_softmax(x, 0)", *fused), ("torch.log(torch.softmax(x, 0))", *by_hand)],
)
second = fused[0][1]
reveal("log_softmax", "-1000" if second == -1000 else str(second))

# %% [markdown]
# `log_softmax` is one formula, not two, and never makes the number that underflows. `cross_entropy` uses it. Give it
# scores, not probabilities.
#
# **The branch that was not taken.**

# %%
predict(
    "where_gradient",
    "`torch.where(x > 0, x.sqrt(), x)` at `x = -1`. The gradient there?",
    [1, 0, "nan"],
)

# %%
x = torch.tensor([-1.0, 4.0], requires_grad=True)
torch.where(x > 0, x.sqrt(), x).sum().backward()
print("gradient:", x.grad.tolist())
reveal("where_gradient", x.grad[0].item())

# %% [markdown]
# `where` computes both branches. Backward sends 0 into the branch that was not taken, and 0 times the derivative of
# `sqrt` at -1, a NaN, is NaN. So the *input* of the dangerous function must be made harmless first; the exercises
# below do it.
#
# **The norm of nothing.**

# %%
x = torch.zeros(3, requires_grad=True)
x.square().sum().sqrt().backward()
print("gradient of the norm at zero:", x.grad.tolist())

# %% [markdown] exercise="safe_norm"
# Write `safe_norm(x)`: `(N, D)` -> `(N,)`, the Euclidean norm of each row, exact: nothing may be added under the root. Rows
# whose squares add up to 0 (all zeros, or so small that their squares are rounded to 0) count as zeros.
#
# The gradient must be that of the norm, and 0 for a row of zeros. The plain formula `x.square().sum(-1).sqrt()` gives NaN there.

# %% exercise="safe_norm"
def safe_norm(x):
    """(N, D) -> (N,) norms of the rows; the gradient of a row of zeros is 0."""
    ### BEGIN SOLUTION
    squares = x.square().sum(dim=-1)
    zero = squares == 0
    # The root never sees a 0, so its derivative is finite; the outer where then sends zeros back to those rows.
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())
    ### END SOLUTION

# %% [markdown] exercise="masked_sqrt"
# Write `masked_sqrt(x)`: the square root where `x > 0`, and 0 elsewhere; the gradient is 1 / (2 sqrt(x)) where `x > 0`, and 0 elsewhere. Both exact, for any shape.
#
# `torch.where(x > 0, x.sqrt(), 0)` has the right values, and NaN in its gradient.

# %% exercise="masked_sqrt"
def masked_sqrt(x):
    """sqrt(x) where x > 0, else 0, with a finite gradient everywhere."""
    ### BEGIN SOLUTION
    positive = x > 0
    # Two wheres: the inner one keeps numbers from sqrt at which its derivative is infinite or NaN.
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
    ### END SOLUTION

# %% [markdown]
# ### To multiply, or to select
#
# Some short formulas do without a second `where`. What tells them from those that fail?

# %%
rows = []
for code in ["(x * (x > 0)).sqrt()", "(x ** 2).sqrt()", "x.relu().sqrt()", "x.clamp(min=0).sqrt()", "x.norm()"]:
    x = torch.zeros(1, requires_grad=True)
    result = eval(code)
    result.sum().backward()
    rows.append((code, result.item(), x.grad.item()))
table(("formula at x = 0", "value", "gradient"), rows)

# %% [markdown]
# In each but the last `sqrt` sends back an infinity. The backward of `*` and `**` *multiplies* it by 0, and that is
# NaN. The backward of `relu` and `clamp` *selects*: where nothing goes through it puts a 0, whatever came in.
# `norm` is one formula with a backward of its own, which knows the case. To use such a formula you must know which
# kind its backward is; two `where` work for any function.

# %% [markdown]
# ### Is my own derivative right?
#
# `torch.autograd.gradcheck` compares a derivative with a difference quotient, number by number. Let us try it on a
# derivative with a mistake:

# %%
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x**2  # wrong: it is 3 x^2


x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
try:
    torch.autograd.gradcheck(Cube.apply, x)
except RuntimeError as error:
    print(error)

# %%
predict(
    "gradcheck_float32",
    "A *right* derivative, checked in float32, with gradcheck's usual tolerances. Does it pass?",
    [True, False],
)

# %%
x = torch.linspace(-2.5, 2.5, 7)
doubles, floats = x.double().requires_grad_(), x.clone().requires_grad_()
print("float64:", torch.autograd.gradcheck(F.hardswish, doubles, raise_exception=False))
with shows_warning():
    passes = torch.autograd.gradcheck(F.hardswish, floats, raise_exception=False)
reveal("gradcheck_float32", passes)

# %% [markdown]
# The step of the difference quotient is 1e-6. In float32 that is lost in the rounding, so the *check* fails, not the
# derivative. Always check in `float64`. What does it say of a NaN, that of the branch not taken?

# %%
x = torch.tensor([-1.0, 4.0], dtype=torch.float64, requires_grad=True)
with shows_error():
    torch.autograd.gradcheck(lambda x: torch.where(x > 0, x.sqrt(), x), x)

# %% [markdown]
# It fails, as it should, and names no line. It compares numbers; finding the line is anomaly mode's part.

# %% [markdown] exercise="HardSwish"
# Write `HardSwish`, an `autograd.Function` for the activation `x * relu6(x + 3) / 6`, where `relu6(z)` is `z` cut off below 0 and above 6. It is used as `HardSwish.apply(x)`.
#
# `backward(ctx, grad)` gets the gradient with respect to the output and returns the one with respect to `x`. It must pass `gradcheck` in `float64`, keep the dtype of `x`, and keep no more for backward than one tensor
# of the size of `x`. A change of `x` between forward and backward must not go unnoticed, no output may be kept alive by its own node, and `backward` must itself be differentiable.
# (At the two kinks, -3 and 3, either slope is accepted.)

# %% exercise="HardSwish"
class HardSwish(torch.autograd.Function):
    """x * relu6(x + 3) / 6, elementwise."""

    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        # save_for_backward: guarded by the version counter, and free of reference cycles. An attribute of ctx is neither.
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        # Computed again from x: cheaper than keeping a second tensor from forward to backward.
        slope = torch.where(x < -3, 0.0, torch.where(x > 3, 1.0, (2 * x + 3) / 6))
        return grad * slope
        ### END SOLUTION

# %% [markdown]
# ## Part 7. Two switches: `eval` and `no_grad`
#
# `model.eval()` tells layers to *behave* otherwise. `torch.no_grad()` tells autograd to *record* nothing. Three short
# questions:

# %%
predict(
    "no_grad_statistics",
    "Does BatchNorm in train mode move its running mean under `no_grad`?",
    [True, False],
)
predict("no_grad_dropout", "Does `no_grad` switch dropout off?", [True, False])
predict("eval_gradients", "Does `eval()` switch gradients off?", [True, False])

# %%
rows = []
for train, grad in itertools.product((True, False), (True, False)):
    network = small_network()
    network["dropout"] = nn.Dropout(0.5)
    network.train(train)
    norm = network["backbone"][1]
    before = norm.running_mean.clone()
    with torch.set_grad_enabled(grad):
        features = network["dropout"](network["backbone"](images))
    moved = (norm.running_mean - before).abs().max().item()
    dropped = (network["dropout"](torch.ones(1000)) == 0).sum().item()
    rows.append(
        (
            f"{'train()' if train else 'eval()'}, {'grad' if grad else 'no_grad'}",
            f"{moved:.4f}",
            norm.num_batches_tracked.item(),
            dropped,
            features.requires_grad,
        )
    )
table(
    (
        "mode",
        "running mean moved by",
        "batches counted",
        "of 1000 ones dropped",
        "result requires grad",
    ),
    rows,
    code=(),
)
reveal("no_grad_statistics", float(rows[1][1]) > 0)
reveal("no_grad_dropout", rows[1][3] == 0)
reveal("eval_gradients", not rows[2][4])

# %% [markdown]
# Two switches, four states, and each state is useful:
#
# | | record | no record |
# | :-- | :-- | :-- |
# | **train()** | training | letting BatchNorm see data anew |
# | **eval()** | saliency, training with frozen statistics | validation |
#
# What harm does the wrong one do? We train for a moment, then validate five times on brighter images, once with
# `eval()` and once without.

# %%
def trained():
    network = small_network()
    model = nn.Sequential(network["backbone"], network["head"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(images[:100]), labels[:100]).backward()
        optimizer.step()
    return model


def accuracy(model):
    """On the images of the training, judged in eval mode; the model's mode is put back."""
    was = model.training
    model.eval()
    with torch.no_grad():
        right = (model(images[:100]).argmax(1) == labels[:100]).float().mean().item()
    model.train(was)
    return right


model = trained()
curves = {}
for mode in ("train", "eval"):
    validated = copy.deepcopy(model)
    curves[mode] = [accuracy(validated)]
    for _ in range(5):
        getattr(validated, mode)()
        with torch.no_grad():
            validated(images + 2)  # another camera
        curves[mode].append(accuracy(validated))
fig = figure(7, 2.8)
axes = fig.subplots()
for mode, style, marker in [("eval", "-", "o"), ("train", "--", "s")]:
    axes.plot(curves[mode], style, marker=marker, color="#1a1a1a", label=f"validated in {mode} mode")
axes.set_ylim(0, 1)
axes.set_xlabel("number of validation runs (no weight changes)")
axes.set_ylabel("accuracy on the training images")
axes.legend()
show(
    fig,
    caption="Nothing was trained between the points. Validation in train mode changes the model, under `no_grad` too.",
    alt="Two lines over 0 to 5 validation runs. In eval mode the accuracy stays at "
    f"{curves['eval'][0]:.2f}. In train mode it goes from {curves['train'][0]:.2f} to {curves['train'][-1]:.2f}.",
)

# %% [markdown]
# *Forgetting* does harm. Switching to and fro does none:

# %%
def running_mean(switch):
    network = small_network()
    for batch in images.split(50):
        if switch:
            network.eval()
            network.train()
        network["backbone"](batch)
    return network["backbone"][1].running_mean


print("the same statistics with and without switching:", torch.equal(running_mean(False), running_mean(True)))

# %% [markdown]
# So switch as often as you like, and leave a validation function in the mode in which the model came.
#
# ### A BatchNorm without memory

# %%
predict(
    "no_running_stats",
    "`nn.BatchNorm1d(3, track_running_stats=False)`. Does its output change between `train()` and `eval()`?",
    [True, False],
)

# %%
norm, x = nn.BatchNorm1d(3, track_running_stats=False), torch.randn(8, 3, requires_grad=True)
in_train, in_eval = norm.train()(x), norm.eval()(x)
print("running_mean:", norm.running_mean)
reveal("no_running_stats", not torch.equal(in_train, in_eval))
in_eval.square().mul(torch.rand(8, 3)).sum().backward()
print("largest gradient in eval mode:", round(x.grad.abs().max().item(), 3))

# %% [markdown]
# There are no statistics that could be stale: it uses those of the batch in both modes, and gradients flow. The price
# is another: an image's result depends on who else is in the batch.

# %% [markdown] exercise="watch_batchnorm"
# A model was trained on daylight, and now it sees dusk. Its BatchNorms still subtract the mean of daylight. Write `watch_batchnorm(model, batches)`: run the model at inference on a list of batches, and
# return for each BatchNorm (1d, 2d or 3d) how far its inputs have drifted, as a dictionary from names (as in `named_modules`) to floats.
#
# The drift of a layer is the maximum over its channels of `|mean - running_mean| / sqrt(running_var + eps)`. `mean` is the mean of the layer's *inputs* in that channel (axis 1) over all items of all
# batches and, for images, over all places. Each item counts the same; batches differ in size, down to a single item. A BatchNorm that tracks no running statistics (`running_mean is None`) is left out.
#
# Afterwards everything is as before, also after an error: running statistics, hooks, and the mode of every single module, some of which may be in train mode and some not. Do not
# keep the inputs of all batches: the videos are long.

# %% exercise="watch_batchnorm"
def watch_batchnorm(model, batches):
    """Drift of each BatchNorm's inputs from its running statistics at inference: name -> float."""
    ### BEGIN SOLUTION
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    norms = {n: m for n, m in model.named_modules() if isinstance(m, kinds) and m.running_mean is not None}
    sums = {name: 0.0 for name in norms}
    counts = {name: 0 for name in norms}

    def watch(name):
        def look(module, inputs):
            values = inputs[0].transpose(0, 1).flatten(1)  # (C, items and places)
            sums[name] = sums[name] + values.sum(dim=1)  # a sum and a count: no input is kept
            counts[name] += values.shape[1]

        return look

    modes = [(module, module.training) for module in model.modules()]
    handles = [module.register_forward_pre_hook(watch(name)) for name, module in norms.items()]
    try:
        model.eval()  # without it the forward pass itself would move the statistics, no_grad or not
        with torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:  # one by one: train() would wake what was frozen on purpose
            module.training = training
    return {
        name: ((sums[name] / counts[name] - m.running_mean).abs() / (m.running_var + m.eps).sqrt()).max().item()
        for name, m in norms.items()
    }
    ### END SOLUTION

# %% [markdown]
# ## Part 8. What stays alive
#
# ### Is a graph a cycle?

# %%
predict(
    "graph_cycle",
    "`y = (x * 2).exp()`, and then `del y`. The garbage collector is off. Is the graph freed?",
    [True, False],
)
predict(
    "ctx_cycle",
    "And if a custom Function has stored its output by `ctx.y = y`?",
    [True, False],
)

# %%
class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y  # the mistake: ctx.save_for_backward(y) is the right way
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y


def after_del(function):
    """Is the result gone with its name? Bytes alive then, and after a call of the collector."""
    x = torch.ones(1000, requires_grad=True)
    with memory() as used:  # inside this block the collector does not come by itself
        y = function(x)
        witness = weakref.ref(y)  # knows y without keeping it alive
        del y
        gone, alive = witness() is None, used.current
        gc.collect()
        return gone, alive, used.current


plain, ring = after_del(lambda x: (x * 2).exp()), after_del(KeepsOutput.apply)
head = ("result of 4,000 bytes", "gone after del", "bytes alive", "after gc.collect()")
table(head, [("(x * 2).exp()", *plain), ("KeepsOutput.apply(x)", *ring)])
reveal("graph_cycle", plain[0])
reveal("ctx_cycle", ring[0])

# %% [markdown]
# A tensor holds its node, and a node holds what it saved, but no node holds its result: PyTorch takes care to store a
# `result` without the way back. With `ctx.y = y` the output holds the node and the node the output. Such a ring waits
# for the collector, and Python calls the collector by the number of objects, however many bytes hang on them.
#
# ### A reference that was forgotten
#
# A ring is one way to keep a graph alive. The other is a name that somebody holds. Ten batches, four ways to write a log:

# %%
def log_of(keep):
    network, log = small_network(), []
    with memory() as used:
        for batch, target in zip(images.split(20), labels.split(20)):
            loss = F.cross_entropy(network["head"](network["backbone"](batch)), target)
            log.append(keep(loss))
        del loss, batch, target
        return used.current


keepers = {
    "loss": lambda loss: loss,
    "loss + 0": lambda loss: loss + 0,
    "loss.detach()": lambda loss: loss.detach(),
    "loss.item()": lambda loss: loss.item(),
}
table(
    ("log.append(...)", "bytes alive after ten batches"),
    [(code, f"{log_of(keep):,}") for code, keep in keepers.items()],
)

# %% [markdown]
# ### A search order
#
# When memory grows from step to step, look in this order:
#
# 1. a sum or a list of losses, outputs, features: `.item()`, or `.detach()`, or `.detach().cpu()`;
# 2. a hook that stores tensors and was never removed;
# 3. `retain_graph=True` that nobody needs;
# 4. a traceback: after an error the notebook holds the frame with all its tensors; so does `Out[...]` of a displayed
#    result;
# 5. a ring: is less alive after `gc.collect()`? Then find the `ctx` or the object that holds itself.

# %% [markdown]
# ## Part 9. A diagnosis in three layers
#
# The loss does not move. Where to look? **Values**: is every parameter finite? **Flow**: does a gradient get there,
# and how large is it? **Graph**: is the parameter in the graph of this loss at all? This snippet is copied from page
# to page:

# %%
def snippet(model):
    for name, p in model.named_parameters():
        if p.grad is None:
            print(name, "has no gradient")
        if (p.grad == 0).all():
            print(name, "is dead")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare, self.used = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.used(x)


unused = Unused()
unused(torch.rand(4, 3)).sum().backward()
with shows_error():
    snippet(unused)

# %% [markdown]
# It breaks on the very case that it was written for: `None == 0` is `False`, a bool, and has no `all`. A missing
# `else`. And is a gradient of zeros a dead layer?

# %%
predict(
    "zero_gradients",
    "All gradients of a layer's weights are zero. Does that prove that its ReLU is dead?",
    [True, False],
)

# %%
def gradients_are_zero(last_is_zero, bias):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(model[0].bias, bias)
    if last_is_zero:
        nn.init.zeros_(model[2].weight)
    x, zero = torch.rand(8, 3), []
    alive = (model[1](model[0](x)) > 0).float().mean().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        zero.append(not model[0].weight.grad.any().item())
        optimizer.step()
    return *zero, f"{alive:.0%}"


rows = [
    ("ReLU dead: bias of -10", *gradients_are_zero(False, -10.0)),
    ("next layer starts at zero", *gradients_are_zero(True, 1.0)),
    ("healthy", *gradients_are_zero(False, 1.0)),
]
head = ("network", "all gradients of layer 0 are zero", "and in the second step", "positive after the ReLU")
table(head, rows, code=())
reveal("zero_gradients", not (rows[1][1] and rows[1][3] != "0%"))

# %% [markdown]
# A last layer that starts at zero sends nothing back in the first step, and all is well from the second step on. The
# gradient says *that* nothing came. The activations say why.

# %% [markdown] exercise="diagnose"
# The loss does not fall, or it is NaN. Write `diagnose(model, loss)`: it gives each parameter exactly one verdict, as a dictionary from the
# names of `model.named_parameters()` to words. `loss` is a single number, computed with the model. Take the first word of this list that fits:
#
# | word | the parameter |
# |:--|:--|
# | `"bad value"` | holds a NaN or an infinity itself |
# | `"frozen"` | does not require grad |
# | `"unreached"` | is not in the graph of `loss`: unused, behind a `detach` or `no_grad`, or the loss has no graph |
# | `"backward fails"` | is reached, but the backward pass raises a `RuntimeError` |
# | `"bad gradient"` | has a gradient that holds a NaN or an infinity |
# | `"zero gradient"` | has a gradient of nothing but zeros |
# | `"large gradient"` | has a gradient with a norm above 1e3 (the norm of the whole gradient) |
# | `"tiny gradient"` | has a gradient with a norm below 1e-8 |
# | `"healthy"` | none of these |
#
# It never raises on a broken model: that is what it is for. It stores nothing in `.grad` (what lies there may be old), and leaves the graph as good as it was. You may
# use your `reached_parameters`. The two limits are rules of thumb; with another loss scale they would be others.

# %% exercise="diagnose"
def diagnose(model, loss):
    """One verdict for each parameter: name -> word, the first that fits."""
    ### BEGIN SOLUTION
    verdicts = {}
    reached = {}
    names_in_graph = reached_parameters(loss, model)
    # First layer: the values. Second: does the gradient get there? Neither needs a backward pass.
    for name, p in model.named_parameters():
        if not torch.isfinite(p).all():
            verdicts[name] = "bad value"
        elif not p.requires_grad:
            verdicts[name] = "frozen"
        elif name not in names_in_graph:
            verdicts[name] = "unreached"
        else:
            reached[name] = p
    if not reached:  # autograd.grad wants at least one input
        return verdicts
    # Third: the numbers. autograd.grad stores nothing, and retain_graph leaves the graph to the caller.
    try:
        gradients = torch.autograd.grad(loss, list(reached.values()), retain_graph=True)
    except RuntimeError:
        return verdicts | dict.fromkeys(reached, "backward fails")
    for name, gradient in zip(reached, gradients, strict=True):
        norm = gradient.norm()
        if not torch.isfinite(gradient).all():  # before all comparisons: they are False for NaN
            verdicts[name] = "bad gradient"
        elif not gradient.any():
            verdicts[name] = "zero gradient"
        elif norm > 1e3:
            verdicts[name] = "large gradient"
        elif norm < 1e-8:
            verdicts[name] = "tiny gradient"
        else:
            verdicts[name] = "healthy"
    return verdicts
    ### END SOLUTION

# %% [markdown]
# ## When something looks wrong
#
# | symptom | cause | check | fix |
# | :-- | :-- | :-- | :-- |
# | "element 0 of tensors does not require grad and does not have a grad_fn" | the loss is outside any graph: `no_grad`, `detach`, `.item()`, all frozen | `loss.grad_fn`, `torch.is_grad_enabled()` | record the forward pass |
# | "a leaf Variable that requires grad is being used in an in-place operation" | a parameter is written to | `w.is_leaf` | `with torch.no_grad():` for an update, `w.clone()` for a formula |
# | "one of the variables needed for gradient computation has been modified by an inplace operation" | a saved number was overwritten | the node in the message; `_version` | out of place at that line; anomaly mode names the line |
# | "Trying to backward through the graph a second time" | the graph is freed by the first backward; or a state is carried from step to step | is a tensor of the last step in this loss? | one `backward` on the sum; `detach()` the state |
# | "you can only change requires_grad flags of leaf variables" | the tensor was computed | `t.is_leaf` | `detach()`, then `requires_grad_()` |
# | "Output 0 of BackwardHookFunction is a view and is being modified inplace" | full backward hook next to an in-place step | which layer follows? | hook on the tensor, in a forward hook |
# | "cannot assign module before Module.__init__() call" | `super().__init__()` is missing or comes too late | first line of `__init__` | put it there |
# | "'NoneType' object has no attribute ..." at `.grad` | one of the six reasons | `is_leaf`, `requires_grad`, `zero_grad` before? | `retain_grad()`, or the cause |
# | "Inference tensors cannot be saved for backward" | made under `inference_mode` | `t.is_inference()` | `no_grad` there, or `clone()` outside |
# | "mat1 and mat2 shapes cannot be multiplied" | layers do not fit | print shapes before that line | an assert at the top of `forward` |
# | loss falls a little and stops | part of the model is cut off or frozen | `reached_parameters`, compare weights before and after | move `detach` or `no_grad` |
# | loss does not move at all | zero gradients, unused model, optimizer with other tensors | `diagnose`; `p is q` for the optimizer's parameters | by the verdict |
# | loss is NaN | a bad number on the way forward, or 0 times infinity on the way back | `first_bad_module`, then anomaly mode from forward on | double `where`, `log_softmax`, smaller steps |
# | gradients twice as large, then three times | no `zero_grad`, or in the wrong place | norm after each `backward` | `zero_grad` before each step |
# | small batches count too much | mean of means | sizes of the micro-batches | weight by the number of rows |
# | validation makes the model worse | BatchNorm in train mode | `num_batches_tracked` before and after | `eval()` there, and back |
# | validation differs from run to run | dropout is on | `model.training` of every module | `eval()` |
# | a backward hook gets three gradients, of odd shapes | the old `register_backward_hook` | its name | `register_full_backward_hook` |
# | a hook prints three times | registered three times | `len(model._forward_hooks)` | keep the handle, `remove()` |
# | a hook never runs | `model.forward(x)`, or another module object | `model(x)` | call the module |
# | stored activations have no negative values | an in-place layer wrote over them | `_version` | `detach().clone()` |
# | memory grows with every step | a loss in a list or a sum | `loss.grad_fn` of what is kept | `.item()` |
# | memory falls only after `gc.collect()` | a ring, often by `ctx.y = y` | weakref with the collector off | `save_for_backward` |
# | gradcheck fails on a right formula | float32 | `x.dtype` | `x.double()` |

# %% [markdown]
# ## What you can now explain
#
# * what a line adds to the graph, and how to walk through all of it from `loss.grad_fn`;
# * what a node saves, why that decides the memory of a training step, and why there is no fixed percentage;
# * what a leaf is, why a gradient is `None`, and which of six reasons it is;
# * how `detach`, `clone`, `.data`, `no_grad` and `inference_mode` differ in memory, graph and safety;
# * which writes in place are right, which raise, at which line, and which one nobody notices;
# * when each kind of hook runs, and why some fail next to in-place layers;
# * where anomaly mode helps and where it is silent;
# * why `eval()` and `no_grad()` are two switches, and what BatchNorm does in each of the four states;
# * what keeps a graph alive, and in which order to look for it;
# * how to give each parameter of a model that does not learn one verdict.
#
# Your predictions, beside what was measured:

# %%
my_predictions()

# %% [markdown] reflection="two_switches" points=2
# A colleague validates in a `with torch.no_grad():` block and says: "So validation changes nothing in my model."
# Another calls `model.eval()` instead and says: "So it costs no memory for a graph."
#
# Explain with what you measured in Part 7 why both are wrong: what each of the two switches does, and what it leaves
# as it was. Then say what you would print before and after a validation to prove to each of them what happened.
#
# * 1 point: what each switch does and does not, with what BatchNorm did in train mode.
# * 1 point: one value for each colleague that can be printed and would convict the mistake.

# %% [markdown] reflection="two_switches"
# `no_grad` tells autograd to record nothing; it does not change how layers behave. In train mode BatchNorm still
# updates its running statistics with the images of the validation, so the model is another one afterwards. `eval()`
# tells layers to behave otherwise and records as before: every result has a `grad_fn`, and what its nodes have saved
# stays in memory. To the first I would print `running_mean` or `num_batches_tracked` of a BatchNorm before and after,
# to the second `out.requires_grad` or `out.grad_fn`. Validation needs both switches.

# %%
progress("graph_debugging")
