# %% [markdown]
# # 2. See the graph, find the fault

# %% tags=["setup"]
import copy
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_utils import check, draw_fx, draw_graph, hint, progress

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

# %% [markdown] exercise="predict_saved"
# A network of two layers, eight times:
#
# ```python
# x = torch.rand(8, 3)                           #  96 bytes
# w1 = torch.rand(3, 4, requires_grad=True)      # h = x @ w1 has 128 bytes
# w2 = torch.rand(4, 2, requires_grad=True)      # out = h @ w2 has 64 bytes
# ```
#
# Replace each `None` by the number of bytes that autograd keeps for the backward pass while `x`, `h` and `out` are alive.
# A storage counts once, however often it is saved; `w1` and `w2` do not count, they exist anyway.

# %% exercise="predict_saved"
predict_saved = {
    "h = (x @ w1).relu(); out = h @ w2": None,
    "h = (x @ w1).relu_(); out = h @ w2": None,
    "h = (x @ w1).relu().clone(); out = h @ w2": None,
    "h = (x @ w1).relu().detach(); out = h @ w2": None,
    "with torch.no_grad(): h = (x @ w1).relu(); out = h @ w2": None,
    "h = (x @ w1).relu()\nwith torch.no_grad(): out = h @ w2": None,
    "h = (x @ w1).square(); out = h @ w2": None,
    "h = (x @ w1).relu(); out = (h @ w2).exp()": None,
}
### BEGIN SOLUTION
predict_saved = {
    # x for the gradient of w1, and h: relu's result and the second product's input are one tensor.
    "h = (x @ w1).relu(); out = h @ w2": 96 + 128,
    # In place or not: x @ w1 itself was never saved, so there is nothing to gain.
    "h = (x @ w1).relu_(); out = h @ w2": 96 + 128,
    # relu saves its own result, the second product the clone.
    "h = (x @ w1).relu().clone(); out = h @ w2": 96 + 128 + 128,
    # No name leads to the first layer's graph any more. It is gone, and x with it.
    "h = (x @ w1).relu().detach(); out = h @ w2": 128,
    "with torch.no_grad(): h = (x @ w1).relu(); out = h @ w2": 0,
    # h is alive and so is its graph. no_grad around the end frees nothing.
    "h = (x @ w1).relu()\nwith torch.no_grad(): out = h @ w2": 96 + 128,
    # The derivative 2z needs z = x @ w1; the second product needs z * z.
    "h = (x @ w1).square(); out = h @ w2": 96 + 128 + 128,
    # exp saves its result.
    "h = (x @ w1).relu(); out = (h @ w2).exp()": 96 + 128 + 64,
}
### END SOLUTION

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

# %% [markdown] exercise="backward_operators"
# Write `backward_operators(loss)`: how many nodes of each name the graph behind `loss` has, as a dictionary.
#
# Start at `loss.grad_fn`. A node has a `name()` and `next_functions`: pairs of a node, or `None`, and a number that you do not need.
# Every node counts once, however many paths lead to it, the leaves' `AccumulateGrad` nodes included. The graph may be thousands of nodes deep. Where
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
# reach. Names are those of `model.named_parameters()`.
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

# %% [markdown] exercise="saved_bytes"
# Write `saved_bytes(function)`: run `function()` once and return how many bytes autograd saves for the backward pass meanwhile, as an `int`.
#
# Each storage counts once, with all its bytes, however many saved tensors are views of it. Parameters (`nn.Parameter`) and views of parameters do not
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

# %% [markdown] exercise="safe_norm"
# Write `safe_norm(x)`: `(N, D)` -> `(N,)`, the Euclidean norm of each row, exact, also for rows of zeros and for tiny ones.
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
# | `"large gradient"` | has a gradient with a norm above 1e3 |
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

# %% [markdown] exercise="watch_batchnorm"
# A model was trained on daylight, and now it sees dusk. Its BatchNorms still subtract the mean of daylight. Write `watch_batchnorm(model, batches)`: run the model at inference on a list of batches, and
# return for each BatchNorm how far its inputs have drifted, as a dictionary from names (as in `named_modules`) to floats.
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
