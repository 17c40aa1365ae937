"""Right and wrong answers to the exercises of section 2, graph_debugging."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from grading.bank import Kind, right, wrong

_HELD = []  # what answers that leak hold on to


# ------------------------------------------------------------------------------------------------ predict_cut
def _cut_table(**changed):
    """The true table as texts, with some rows changed; the keys are short names of the rows."""
    rows = {
        "view": ("y = h[:]", "shares, in graph, raises"),
        "detach": ("y = h.detach()", "shares, cut, raises"),
        "clone": ("y = h.clone()", "own, in graph, right"),
        "detach_clone": ("y = h.detach().clone()", "own, cut, right"),
        "data": ("y = h.data", "shares, cut, wrong"),
        "numpy": ("y = h.detach().numpy()", "shares, cut, wrong"),
        "no_grad_name": ("with torch.no_grad(): y = h", "shares, in graph, raises"),
        "no_grad": ("with torch.no_grad(): y = h * 1", "own, cut, right"),
        "inference": ("with torch.inference_mode(): y = h * 1", "own, cut, raises"),
    }
    return {row: changed.get(name, entry) for name, (row, entry) in rows.items()}


@right("predict_cut", factory=True)
def cut_table_of_texts():
    return _cut_table()


@right("predict_cut", factory=True)
def cut_table_in_many_spellings():
    return _cut_table(
        view=["Shares", "in the graph", "raises an error"],
        clone=("copy", "in-graph", "right"),
        data=("shared", "cut", "silently wrong"),
        inference=("own memory", "not in graph", "Raises"),
    )


@wrong("predict_cut", fails="y = h.detach()", says="alias", factory=True)
def detach_copies():
    """Believes that detach makes an independent copy."""
    return _cut_table(detach=("own", "cut", "right"))


@wrong("predict_cut", fails="y = h.data", says="version counter", factory=True)
def data_is_detach():
    """Takes .data for another spelling of detach()."""
    return _cut_table(data=("shares", "cut", "raises"))


@wrong("predict_cut", fails="with torch.no_grad(): y = h", says="second name", factory=True)
def a_name_given_under_no_grad_is_cut():
    """Believes that no_grad changes what is named inside it."""
    return _cut_table(no_grad_name=("shares", "cut", "raises"))


@wrong("predict_cut", fails="y = h.clone()", says="grad_fn", factory=True)
def clone_leaves_the_graph():
    """Believes that a copy has no history."""
    return _cut_table(clone=("own", "cut", "right"))


@wrong("predict_cut", fails="with torch.inference_mode(): y = h * 1", says="marked", factory=True)
def inference_mode_is_a_faster_no_grad():
    """Knows inference mode as no_grad with less overhead, and not its tensors."""
    return _cut_table(inference=("own", "cut", "right"))


@wrong("predict_cut", fails="rows with a prediction", says="6 of 9", factory=True)
def cut_table_half_filled():
    """Stops half way."""
    return _cut_table(view=None, clone=None, numpy=None)


@wrong("predict_cut", fails="y = h[:]", says="not told here", factory=True)
def cut_table_of_guesses():
    """Fills in anything, to read the right answers off the messages."""
    return dict.fromkeys(_cut_table(), ("own", "cut", "wrong"))


@wrong("predict_cut", fails="type of the table", says="dictionary", factory=True)
def cut_as_a_list():
    """Replaces the table by a list of entries."""
    return list(_cut_table().values())


# ------------------------------------------------------------------------------------------------ predict_saved
def _saved_table(**changed):
    rows = {
        "plain": ("h = h.relu()", 224),
        "inplace": ("h = h.relu_()", 224),
        "clone": ("h = h.relu().clone()", 352),
        "detach": ("h = h.relu().detach()", 128),
        "square": ("h = h.square()", 352),
        "exp": ("h = h.relu(), then out = out.exp()", 288),
        "no_grad": ("h = h.relu(), no_grad around all", 0),
        "no_grad_late": ("h = h.relu(), no_grad around out", 224),
    }
    return {row: changed.get(name, entry) for name, (row, entry) in rows.items()}


@right("predict_saved", factory=True)
def saved_as_sums():
    return _saved_table(plain=8 * 3 * 4 + 8 * 4 * 4, exp=224 + 8 * 2 * 4)


@right("predict_saved", factory=True)
def saved_as_numpy_integers():
    return {row: np.int64(entry) for row, entry in _saved_table().items()}


@right("predict_saved", factory=True)
def saved_as_quotients():
    return {row: entry * 8 / 8 for row, entry in _saved_table().items()}


@wrong("predict_saved", fails="rows with a prediction", says="7 of 8", factory=True)
def saved_but_for_one_row():
    """Leaves the row out that is to be read off the message."""
    return _saved_table(square=None)


@wrong("predict_saved", fails="h = h.relu(), no_grad around out", says="frees nothing", factory=True)
def no_grad_late_saves_a_third():
    """Believes that no_grad around the last step frees what was kept: 37 % less."""
    return _saved_table(no_grad_late=141)


@wrong("predict_saved", fails="h = h.relu_()", says="one and the same h", factory=True)
def inplace_relu_saves_one_tensor():
    """Believes that an in-place ReLU saves an activation."""
    return _saved_table(inplace=96)


@wrong("predict_saved", fails="h = h.relu()", says="derivative", factory=True)
def every_tensor_is_saved():
    """Counts every intermediate tensor, needed or not."""
    return _saved_table(plain=96 + 128 + 128 + 64, exp=96 + 128 + 128 + 64 + 64)


@wrong("predict_saved", fails="h = h.relu().detach()", says="freed", factory=True)
def detach_keeps_the_first_layer():
    """Believes that the first layer's graph lives on behind a detach."""
    return _saved_table(detach=224)


@wrong("predict_saved", fails="h = h.relu()", says="not told here", factory=True)
def weights_counted_too():
    """Adds the weights, which exist anyway, and counts h for each step that saves it."""
    return _saved_table(plain=336)


@wrong("predict_saved", fails="h = h.relu(), no_grad around all", says="Without", factory=True)
def no_grad_keeps_the_input():
    """Believes that the input of the model is kept in any case."""
    return _saved_table(no_grad=96)


# ------------------------------------------------------------------------------------------------ predict_inplace
def _inplace_table(**changed):
    rows = {
        "times": ("x = w * 2; x += 1", "works"),
        "exp": ("x = w.exp(); x += 1", "raises at backward"),
        "exp_": ("x = w + 1; x.exp_()", "works"),
        "leaf": ("w += 1; x = w * 2", "raises at once"),
        "clone": ("x = w.clone(); x[0] = 5.0", "works"),
        "data": ("x = w.exp(); x.data += 1", "wrong"),
        "relu": ("x = w.relu(); x += 1", "raises at backward"),
        "relu_": ("x = (w * 2).relu_()", "works"),
        "sigmoid": ("x = w.sigmoid().relu_()", "raises at backward"),
        "norm": ("x = w * 2; x.div_(x.norm())", "raises at backward"),
        "square": ("h = w * 2; x = h ** 2; h += 1", "raises at backward"),
        "relu_input": ("h = w * 2; x = h.relu(); h += 1", "works"),
    }
    return {row: changed.get(name, entry) for name, (row, entry) in rows.items()}


@right("predict_inplace", factory=True)
def inplace_words():
    return _inplace_table()


@right("predict_inplace", factory=True)
def inplace_words_in_many_spellings():
    return _inplace_table(
        times="Works", exp="at backward", leaf="at once", data="silently wrong", relu="raises_at_backward", relu_="fine"
    )


@wrong("predict_inplace", fails="x = w * 2; x += 1", says="No saved value", factory=True)
def inplace_always_breaks():
    """Believes that in-place operations are forbidden in a graph."""
    return {row: "raises at backward" for row in _inplace_table()}


@wrong("predict_inplace", fails="x = w.exp(); x += 1", says="from its result", factory=True)
def inplace_always_works():
    """Believes that += on anything but a leaf is fine."""
    return _inplace_table(exp="works", relu="works", sigmoid="works", norm="works", square="works", data="works")


@wrong("predict_inplace", fails="w += 1; x = w * 2", says="leaf", factory=True)
def leaf_raises_only_at_backward():
    """Believes that the leaf error comes from backward."""
    return _inplace_table(leaf="raises at backward")


@wrong("predict_inplace", fails="x = w.exp(); x.data += 1", says="behind the counter", factory=True)
def data_is_the_safe_way():
    """Uses .data to get rid of the error message."""
    return _inplace_table(data="works")


@wrong("predict_inplace", fails="h = w * 2; x = h.relu(); h += 1", says="relu saves its result", factory=True)
def every_step_needs_its_input():
    """Believes that backward needs the inputs of all steps."""
    return _inplace_table(relu_input="raises at backward")


@wrong("predict_inplace", fails="rows with a prediction", says="11 of 12", factory=True)
def inplace_but_for_one_row():
    """Leaves the row out that is to be read off the message."""
    return _inplace_table(leaf=None)


@wrong("predict_inplace", fails="x = w * 2; x += 1", says="none of", factory=True)
def inplace_yes_and_no():
    """Answers with True and False."""
    return {row: entry == "works" for row, entry in _inplace_table().items()}


# ------------------------------------------------------------------------------------------------ sgd_momentum_step
@right("sgd_momentum_step")
@torch.no_grad()
def step_with_a_decorator(params, buffers, lr, momentum):
    for i in range(len(params)):
        grad = params[i].grad
        if grad is not None:
            old = buffers[i]
            buffers[i] = grad.detach().clone() if old is None else momentum * old + grad
            params[i] -= lr * buffers[i]


@right("sgd_momentum_step")
def step_by_torch_optim(params, buffers, lr, momentum):
    optimizer = torch.optim.SGD(params, lr=lr, momentum=momentum)
    for p, buffer in zip(params, buffers, strict=True):
        if buffer is not None:
            optimizer.state[p]["momentum_buffer"] = buffer
    optimizer.step()
    for i, p in enumerate(params):
        buffers[i] = optimizer.state[p].get("momentum_buffer")


@right("sgd_momentum_step")
def step_with_copy(params, buffers, lr, momentum):
    for i, p in enumerate(params):
        if p.grad is None:
            continue
        start = torch.zeros_like(p.grad) if buffers[i] is None else buffers[i]
        buffers[i] = start * momentum + p.grad
        with torch.no_grad():
            p.copy_(p - lr * buffers[i])


@right("sgd_momentum_step")
def step_on_the_detached_alias(params, buffers, lr, momentum):
    for i, p in enumerate(params):
        if p.grad is not None:
            if buffers[i] is None:
                buffers[i] = torch.zeros_like(p, requires_grad=False)
            buffers[i] *= momentum
            buffers[i] += p.grad
            p.detach().sub_(lr * buffers[i])  # the alias shares the version counter


@wrong("sgd_momentum_step", fails="parameters changed by a step", says="local name")
def rebinds_the_local_name(params, buffers, lr, momentum):
    """p = p - ... looks like an update, and changes a name."""
    with torch.no_grad():
        for i, p in enumerate(params):
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p = p - lr * buffers[i]


@wrong("sgd_momentum_step", fails="params holds the same tensors", says="old ones")
def puts_new_tensors_into_the_list(params, buffers, lr, momentum):
    """The list is right afterwards, and the model knows nothing of it."""
    with torch.no_grad():
        for i, p in enumerate(params):
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            new = (p - lr * buffers[i]).requires_grad_()
            new.grad = p.grad
            params[i] = new


@wrong("sgd_momentum_step", fails="values after one step", says="as it is")
def first_buffer_times_lr(params, buffers, lr, momentum):
    """Multiplies by lr twice in the first step."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is not None:
                buffers[i] = lr * p.grad if buffers[i] is None else momentum * buffers[i] + p.grad
                p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="buffers after three steps", says="times the expected one")
def lr_inside_the_buffer(params, buffers, lr, momentum):
    """Keeps lr times the gradient: right as long as lr stays as it is."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is not None:
                buffers[i] = lr * p.grad + (0 if buffers[i] is None else momentum * buffers[i])
                p -= buffers[i]


@wrong("sgd_momentum_step", fails="the parameter behind it", says="continue", kind=Kind.PARTLY)
def returns_at_the_first_without_gradient(params, buffers, lr, momentum):
    """return where continue was meant."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is None:
                return
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p -= lr * buffers[i]


@wrong("sgd_momentum_step", kind=Kind.CRASHED, says="an update belongs under torch.no_grad()")
def changes_a_leaf_while_recording(params, buffers, lr, momentum):
    """Forgets no_grad."""
    for i, p in enumerate(params):
        buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
        p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="values after three steps", says="copy of the gradient")
def first_buffer_is_the_gradient_itself(params, buffers, lr, momentum):
    """buffers[i] = p.grad: the next gradient overwrites the momentum."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is None:
                continue
            buffers[i] = p.grad if buffers[i] is None else momentum * buffers[i] + p.grad
            p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="values after three steps", says="following ones")
def plain_sgd(params, buffers, lr, momentum):
    """Leaves momentum out."""
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p -= lr * p.grad


@wrong("sgd_momentum_step", fails="values after one step", says="0.", kind=Kind.WRONG_VALUE)
def damped_momentum(params, buffers, lr, momentum):
    """Takes the moving average of Adam for SGD's momentum: (1 - momentum) * grad."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is not None:
                old = torch.zeros_like(p) if buffers[i] is None else buffers[i]
                buffers[i] = momentum * old + (1 - momentum) * p.grad
                p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="an older graph notices the step", says="p.data", kind=Kind.PARTLY)
def steps_through_data(params, buffers, lr, momentum):
    """.data, as in old tutorials: autograd does not notice."""
    for i, p in enumerate(params):
        if p.grad is not None:
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p.data -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="memory of the parameters", says="other memory", kind=Kind.PARTLY)
def gives_the_parameter_new_memory(params, buffers, lr, momentum):
    """p.data = ... is the same tensor with other memory."""
    for i, p in enumerate(params):
        if p.grad is not None:
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p.data = p.data - lr * buffers[i]


@wrong("sgd_momentum_step", fails="a parameter without gradient", says="Skip it", kind=Kind.PARTLY)
def every_parameter_has_a_gradient(params, buffers, lr, momentum):
    """Forgets that grad may be None."""
    with torch.no_grad():
        for i, p in enumerate(params):
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="gradients left as they were", says="to the buffer", kind=Kind.PARTLY)
def adds_the_momentum_to_the_gradient(params, buffers, lr, momentum):
    """Computes the new buffer in p.grad."""
    with torch.no_grad():
        for i, p in enumerate(params):
            if p.grad is None:
                continue
            if buffers[i] is not None:
                p.grad.add_(buffers[i], alpha=momentum)
            buffers[i] = p.grad.clone()
            p -= lr * p.grad


@wrong("sgd_momentum_step", fails="grad mode left as it was", says="switches back", kind=Kind.PARTLY)
def switches_gradients_off_for_good(params, buffers, lr, momentum):
    """set_grad_enabled(False), and nothing puts it back."""
    torch.set_grad_enabled(False)
    for i, p in enumerate(params):
        if p.grad is not None:
            buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
            p -= lr * buffers[i]


@wrong("sgd_momentum_step", fails="still leaves that require grad", says="never trained")
def freezes_to_write(params, buffers, lr, momentum):
    """Gets round the leaf error by switching requires_grad off."""
    for i, p in enumerate(params):
        if p.grad is None:
            continue
        p.requires_grad_(False)
        buffers[i] = p.grad.clone() if buffers[i] is None else momentum * buffers[i] + p.grad
        p -= lr * buffers[i]


# ------------------------------------------------------------------------------------------------ backward_operators
@right("backward_operators")
def breadth_first(loss):
    counts, met, queue = {}, set(), deque([loss.grad_fn] if loss.grad_fn is not None else [])
    met.update(queue)
    while queue:
        node = queue.popleft()
        name = type(node).__name__
        counts[name] = counts.get(name, 0) + 1
        for child, _ in node.next_functions:
            if child and child not in met:
                met.add(child)
                queue.append(child)
    return counts


@right("backward_operators")
def levels_of_sets(loss):
    level, met = {loss.grad_fn}, set()
    while level:
        level = {node for node in level if node is not None} - met
        met |= level
        level = {child for node in level for child, _ in node.next_functions}
    return Counter(node.name() for node in met)


@wrong("backward_operators", fails="a small graph", says="every path")
def follows_every_path(loss):
    """Counts a node once for every path that leads to it."""
    counts, stack = Counter(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None:
            counts[node.name()] += 1
            stack += [child for child, _ in node.next_functions]
    return dict(counts)


@wrong("backward_operators", fails="backward still works", says="used up")
def runs_backward_first(loss):
    """Believes that the graph is there only after backward."""
    counts = levels_of_sets(loss)
    with contextlib.suppress(RuntimeError):
        loss.backward()
    return counts


@wrong("backward_operators", fails="a small graph", says="AccumulateGrad")
def leaves_out_the_leaves(loss):
    """Stops before the AccumulateGrad nodes."""
    met, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in met and hasattr(node, "next_functions") and node.next_functions:
            met.add(node)
            stack += [child for child, _ in node.next_functions]
    return dict(Counter(node.name() for node in met))


@wrong("backward_operators", fails="a small graph", says="cross out")
def follows_the_first_input(loss):
    """grad_fn as a chain: only the first of the inputs is followed."""
    counts, node = Counter(), loss.grad_fn
    while node is not None:
        counts[node.name()] += 1
        node = node.next_functions[0][0] if node.next_functions else None
    return dict(counts)


@wrong("backward_operators", fails="a graph 4000 nodes deep", says="loop", kind=Kind.PARTLY)
def recursion(loss):
    """Right, as long as the graph is shallow."""
    met = set()

    def visit(node):
        if node is not None and node not in met:
            met.add(node)
            for child, _ in node.next_functions:
                visit(child)

    visit(loss.grad_fn)
    return dict(Counter(node.name() for node in met))


@wrong("backward_operators", fails="a loss outside any graph", says="empty dictionary", kind=Kind.PARTLY)
def expects_a_graph(loss):
    """Takes grad_fn for granted."""
    met, stack = {loss.grad_fn}, [loss.grad_fn]
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is not None and child not in met:
                met.add(child)
                stack.append(child)
    return dict(Counter(node.name() for node in met))


@wrong("backward_operators", fails="type of the result", says="dictionary")
def list_of_names(loss):
    """A list where a count is asked."""
    met, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in met:
            met.add(node)
            stack += [child for child, _ in node.next_functions]
    return sorted(node.name() for node in met)


@wrong("backward_operators", fails="a small graph", says="on paper")
def names_met(loss):
    """Remembers names instead of nodes: the second AddBackward0 is taken for the first."""
    counts, met, stack = Counter(), set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node.name() not in met:
            met.add(node.name())
            counts[node.name()] += 1
            stack += [child for child, _ in node.next_functions]
    return dict(counts)


# ------------------------------------------------------------------------------------------------ reached_parameters
def _leaves(loss):
    met, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in met:
            met.add(node)
            stack += [child for child, _ in node.next_functions]
    return [node.variable for node in met if hasattr(node, "variable")]


@right("reached_parameters")
def asks_autograd_grad(loss, model):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not loss.requires_grad or not named:
        return set()
    gradients = torch.autograd.grad(loss, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {n for (n, _), g in zip(named, gradients, strict=True) if g is not None}


@right("reached_parameters")
def list_by_identity(loss, model):
    leaves = _leaves(loss)
    return [name for name, p in model.named_parameters() if any(p is leaf for leaf in leaves)]


@right("reached_parameters")
def set_of_parameters(loss, model):
    leaves = set(_leaves(loss))  # tensors hash by identity
    return {name for name, p in model.named_parameters() if p in leaves}


@wrong("reached_parameters", fails="gradients left as they were", says="stores nothing", kind=Kind.PARTLY)
def runs_backward_and_looks(loss, model):
    """Lets backward find out, and leaves the gradients."""
    for p in model.parameters():
        p.grad = None
    if loss.requires_grad:
        loss.backward(retain_graph=True)
    return {n for n, p in model.named_parameters() if p.grad is not None}


@wrong("reached_parameters", fails="backward still works", says="retain_graph", kind=Kind.PARTLY)
def uses_the_graph_up(loss, model):
    """Forgets that grad frees the graph."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not loss.requires_grad:
        return set()
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return {n for (n, _), g in zip(named, gradients, strict=True) if g is not None}


@wrong("reached_parameters", fails="an unused layer", says="requires_grad")
def requires_grad_is_reached(loss, model):
    """Takes requires_grad for being in the graph."""
    return {n for n, p in model.named_parameters() if p.requires_grad} if loss.requires_grad else set()


@wrong("reached_parameters", kind=Kind.CRASHED, says="the same object")
def looks_in_a_list(loss, model):
    """`in` asks ==, and == of two tensors gives many answers."""
    leaves = _leaves(loss)
    return {n for n, p in model.named_parameters() if p in leaves}


@wrong("reached_parameters", fails="an unused layer with a .grad", says="may be old")
def only_reads_grad(loss, model):
    """Asks .grad, and no backward has run."""
    return {n for n, p in model.named_parameters() if p.grad is not None}


@wrong("reached_parameters", fails="equal numbers elsewhere", says="`is`")
def compares_the_numbers(loss, model):
    """Compares values: a bias of zeros is taken for another one."""
    leaves = _leaves(loss)
    return {
        n for n, p in model.named_parameters() if any(p.shape == leaf.shape and torch.equal(p, leaf) for leaf in leaves)
    }


@wrong("reached_parameters", fails="a layer whose gradients are zero", says="Zero is not None")
def zero_is_not_reached(loss, model):
    """Takes a gradient of zero for no gradient: the dead layer is missing."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not loss.requires_grad:
        return set()
    gradients = torch.autograd.grad(loss, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {n for (n, _), g in zip(named, gradients, strict=True) if g is not None and g.any()}


@wrong("reached_parameters", fails="an unused layer with a .grad", says="may be old")
def reads_what_lies_in_grad(loss, model):
    """Trusts gradients that were there before."""
    if loss.requires_grad:
        loss.backward(retain_graph=True)
    return {n for n, p in model.named_parameters() if p.grad is not None}


@wrong("reached_parameters", fails="type of the result", says="names")
def returns_tensors(loss, model):
    """Returns the leaves themselves."""
    return _leaves(loss)


@wrong("reached_parameters", fails="a loss outside any graph", says="empty set", kind=Kind.PARTLY)
def a_loss_always_has_a_graph(loss, model):
    """autograd.grad raises for a loss without a graph."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {n for (n, _), g in zip(named, gradients, strict=True) if g is not None}


# ------------------------------------------------------------------------------------------------ saved_bytes
def _is_parameter(tensor):
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


@right("saved_bytes")
def list_first_count_later(function):
    saved = []

    def pack(tensor):
        saved.append((tensor.detach(), _is_parameter(tensor)))
        return len(saved) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: saved[index][0]):
        function()
    blocks = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t, weight in saved if not weight}
    return sum(blocks.values())


@right("saved_bytes")
def storages_by_cdata(function):
    seen, total, kept = set(), 0, []

    def pack(tensor):
        nonlocal total
        storage = tensor.untyped_storage()
        base = tensor if tensor._base is None else tensor._base
        if storage._cdata not in seen and type(base) is not nn.Parameter:
            seen.add(storage._cdata)
            kept.append(storage)
            total += storage.nbytes()
        return (tensor.data,)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0]):
        function()
    return total


def _counting(function, size, key=None, skip=_is_parameter, whole=False):
    found, kept = {}, []

    def pack(tensor):
        if not skip(tensor):
            kept.append(tensor.untyped_storage())
            found[key(tensor) if key else len(found)] = size(tensor)
        return tensor if whole else tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(found.values())


@wrong("saved_bytes", fails="outputs kept alive", says="nothing frees them", kind=Kind.PARTLY)
def packs_the_tensor_with_its_graph(function):
    """pack returns the tensor as it came: an output holds its node, which holds the output."""
    storage = lambda t: t.untyped_storage()  # noqa: E731
    return _counting(function, lambda t: storage(t).nbytes(), key=lambda t: storage(t).data_ptr(), whole=True)


@wrong("saved_bytes", fails="a small network", says="hidden layer")
def counts_every_saved_tensor(function):
    """Adds up tensors, not storages: the hidden layer counts for each step that saves it."""
    return _counting(function, lambda t: t.nbytes)


@wrong("saved_bytes", fails="one storage saved several times", says="untyped_storage")
def one_per_first_element(function):
    """Tells storages apart by the address of a view's first element, and counts the view's elements."""
    return _counting(function, lambda t: t.nbytes, key=lambda t: t.data_ptr())


@wrong("saved_bytes", fails="parameters left out", says="_base")
def views_of_parameters_count(function):
    """isinstance(tensor, Parameter) misses the transposed weight."""
    return _counting(
        function,
        lambda t: t.untyped_storage().nbytes(),
        key=lambda t: t.untyped_storage().data_ptr(),
        skip=lambda t: isinstance(t, nn.Parameter),
    )


@wrong("saved_bytes", fails="a small network", says="parameter")
def parameters_count_too(function):
    """Counts weights as if the graph had made them."""
    return _counting(
        function,
        lambda t: t.untyped_storage().nbytes(),
        key=lambda t: t.untyped_storage().data_ptr(),
        skip=lambda t: False,
    )


@wrong("saved_bytes", fails="a small network", says="hidden layer")
def leaves_out_what_requires_no_grad(function):
    """Skips everything without requires_grad: the input is saved all the same."""
    return _counting(
        function,
        lambda t: t.untyped_storage().nbytes(),
        key=lambda t: t.untyped_storage().data_ptr(),
        skip=lambda t: not t.requires_grad or _is_parameter(t),
    )


@wrong("saved_bytes", fails="a leaf that requires grad", says="nn.Parameter")
def leaves_are_taken_for_parameters(function):
    """Takes every leaf that requires grad for a parameter."""
    return _counting(
        function,
        lambda t: t.untyped_storage().nbytes(),
        key=lambda t: t.untyped_storage().data_ptr(),
        skip=lambda t: _is_parameter(t) or (t.requires_grad and t.is_leaf),
    )


@wrong("saved_bytes", fails="saved, and freed again", says="Hold every storage", kind=Kind.PARTLY)
def remembers_addresses_only(function):
    """Notes addresses and sizes: memory that is used again counts once."""
    found = {}

    def pack(tensor):
        if not _is_parameter(tensor):
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(found.values())


@wrong("saved_bytes", fails="backward still works", says="give them back")
def packs_nothing(function):
    """pack returns None: the graph has lost its tensors."""
    found = {}

    def pack(tensor):
        if not _is_parameter(tensor):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(storage.nbytes() for storage in found.values())


@wrong("saved_bytes", fails="counted by your own code", says="inside it")
def asks_the_helper(function):
    """Calls what is to be built."""
    from course_utils import bytes_saved_for_backward

    return bytes_saved_for_backward(function).bytes


@wrong("saved_bytes", fails="function was called", says="once")
def warms_up_first(function):
    """Runs the function once too often."""
    function()
    return list_first_count_later(function)


@wrong("saved_bytes", fails="an error of the function", says="with saved_tensors_hooks", kind=Kind.PARTLY)
def enters_the_hooks_by_hand(function):
    """__enter__ and __exit__ by hand: after an error the hooks stay on."""
    found = {}

    def pack(tensor):
        if not _is_parameter(tensor):
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor.detach()

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    hooks.__enter__()
    function()
    hooks.__exit__()
    return sum(storage.nbytes() for storage in found.values())


# ------------------------------------------------------------------------------------------------ GradientRecorder
def _parts(model):
    return {name: m for name, m in model.named_modules() if not list(m.children())}


@right("GradientRecorder", factory=True)
def recorder_with_an_exit_stack():
    class GradientRecorder:
        def __init__(self, model):
            self.model = model

        def _hook(self, name, module, inputs, output):
            if output.grad_fn is not None:
                handle = output.register_hook(
                    lambda grad: self.norms[name].append(float(torch.linalg.vector_norm(grad)))
                )
                self.stack.callback(handle.remove)

        def __enter__(self):
            import functools

            self.stack = contextlib.ExitStack()
            self.norms = {}
            for name, module in _parts(self.model).items():
                self.norms[name] = []
                self.stack.enter_context(module.register_forward_hook(functools.partial(self._hook, name)))
            return self

        def __exit__(self, *error):
            self.stack.close()

    return GradientRecorder


@right("GradientRecorder", factory=True)
def recorder_that_hands_on_a_clone():
    class GradientRecorder:
        """The next layer works on a clone; the tensor hook sits on the original. A switch silences late gradients."""

        def __init__(self, model):
            self.model, self.norms, self.handles, self.on = model, {}, [], None

        def __enter__(self):
            self.norms = {name: [] for name in _parts(self.model)}
            self.on = on = [True]
            for name, module in _parts(self.model).items():

                def hook(module, inputs, output, numbers=self.norms[name]):
                    if not output.requires_grad:
                        return None

                    def note(grad):
                        if on[0]:
                            numbers.append(grad.square().sum().sqrt().item())

                    output.register_hook(note)
                    return output.clone()

                self.handles.append(module.register_forward_hook(hook))
            return self

        def __exit__(self, kind, error, trace):
            self.on[0] = False
            while self.handles:
                self.handles.pop().remove()
            return False

    return GradientRecorder


def _recorder(**ways):
    """A recorder with some things done in another way."""

    class GradientRecorder:
        def __init__(self, model):
            self.model, self.norms, self.handles = model, {}, []
            if ways.get("register_in_init"):
                self.register()

        def register(self):
            self.norms = {name: [] for name in ways.get("parts", _parts)(self.model)}
            hooks = ways.get("hooks", _tensor_hook)
            for name, module in ways.get("parts", _parts)(self.model).items():
                self.handles.append(module.register_forward_hook(hooks(self, name)))

        def __enter__(self):
            if not ways.get("register_in_init"):
                self.register()
            return None if ways.get("enter_gives_nothing") else self

        def __exit__(self, *error):
            if ways.get("only_without_error") and error[0] is not None:
                return None
            if ways.get("clears"):
                for module in self.model.modules():
                    module._forward_hooks.clear()
            if not ways.get("leaves"):
                for handle in self.handles:
                    handle.remove()
                self.handles.clear()
            return ways.get("exit_gives")

    return GradientRecorder


def _tensor_hook(recorder, name):
    def hook(module, inputs, output):
        if output.requires_grad:
            norms = recorder.norms
            recorder.handles.append(output.register_hook(lambda g: norms[name].append(g.norm().item())))

    return hook


@wrong("GradientRecorder", kind=Kind.CRASHED, says="do not go together", factory=True)
def recorder_of_full_backward_hooks():
    """register_full_backward_hook, and an in-place ReLU behind it."""

    class GradientRecorder:
        def __init__(self, model):
            self.model = model

        def __enter__(self):
            self.norms = {name: [] for name in _parts(self.model)}
            self.handles = [
                module.register_full_backward_hook(
                    lambda m, gi, go, name=name: self.norms[name].append(go[0].norm().item())
                )
                for name, module in _parts(self.model).items()
            ]
            return self

        def __exit__(self, *error):
            for handle in self.handles:
                handle.remove()

    return GradientRecorder


@wrong("GradientRecorder", fails="gradients that arrived", says="closures", factory=True)
def recorder_with_a_closure_over_the_loop():
    """All hooks see the last name."""

    class GradientRecorder:
        def __init__(self, model):
            self.model, self.handles = model, []

        def __enter__(self):
            self.norms = {name: [] for name in _parts(self.model)}
            for name, module in _parts(self.model).items():

                def hook(module, inputs, output):
                    if output.requires_grad:
                        norms = self.norms
                        self.handles.append(output.register_hook(lambda g: norms[name].append(g.norm().item())))  # noqa: B023

                self.handles.append(module.register_forward_hook(hook))
            return self

        def __exit__(self, *error):
            for handle in self.handles:
                handle.remove()
            self.handles.clear()

    return GradientRecorder


@wrong("GradientRecorder", fails="hooks left on the model", says="handle", factory=True)
def recorder_that_leaves_its_hooks():
    """Registers, and never removes."""
    return _recorder(leaves=True)


@wrong("GradientRecorder", fails="the caller's own hook", says="handles", factory=True)
def recorder_that_clears_the_dictionaries():
    """Removes all hooks, those of others as well."""
    return _recorder(clears=True)


@wrong("GradientRecorder", fails="an error inside the block", says="True", kind=Kind.PARTLY, factory=True)
def recorder_that_swallows_errors():
    """Returns True from __exit__ to say that all went well."""
    return _recorder(exit_gives=True)


@wrong("GradientRecorder", fails="an error inside the block", says="clean up there", kind=Kind.PARTLY, factory=True)
def recorder_that_cleans_up_after_success():
    """Cleans up only if nothing went wrong."""
    return _recorder(only_without_error=True)


@wrong("GradientRecorder", fails="entered again", says="in __init__", factory=True, kind=Kind.PARTLY)
def recorder_that_registers_when_made():
    """Registers in __init__: the second block has no hooks, and the old numbers."""
    return _recorder(register_in_init=True)


@wrong("GradientRecorder", kind=Kind.CRASHED, says="None", factory=True)
def recorder_that_enter_does_not_return():
    """Forgets that `with ... as` binds what __enter__ returns: the learner's own line fails, here a later one."""

    class GradientRecorder(_recorder(enter_gives_nothing=True)):
        def __enter__(self):
            entered = super().__enter__()
            return entered.norms

    return GradientRecorder


@wrong("GradientRecorder", fails="what `with` gives", says="Return self", kind=Kind.PARTLY, factory=True)
def recorder_that_gives_nothing_on_entry():
    """__enter__ returns nothing."""
    return _recorder(enter_gives_nothing=True)


@wrong("GradientRecorder", fails="modules in norms", says="without children", factory=True)
def recorder_of_all_modules():
    """Records containers as well."""
    return _recorder(parts=lambda model: dict(model.named_modules()))


@wrong("GradientRecorder", fails="gradients of the parameters", says="return None", factory=True)
def recorder_whose_hook_returns_the_norm():
    """A tensor hook that returns something replaces the gradient."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            if output.requires_grad:
                norms = recorder.norms

                def note(grad):
                    norms[name].append(grad.norm().item())
                    return grad / grad.norm()

                recorder.handles.append(output.register_hook(note))

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="norms", says="all its numbers", factory=True)
def recorder_of_the_largest_number():
    """Takes the largest number for the norm."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            if output.requires_grad:
                norms = recorder.norms
                recorder.handles.append(output.register_hook(lambda g: norms[name].append(g.abs().max().item())))

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="order of the norms", says="order of arrival", factory=True)
def recorder_in_the_order_of_the_forward_pass():
    """Inserts each norm in front, so that the first call of a module comes first."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            if output.requires_grad:
                norms = recorder.norms
                recorder.handles.append(output.register_hook(lambda g: norms[name].insert(0, g.norm().item())))

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="type of norms", says="an empty dictionary", factory=True)
def recorder_without_entries():
    """Makes entries only where a gradient arrives, in a dictionary that nobody fills."""
    return _recorder(parts=lambda model: {})


@wrong("GradientRecorder", kind=Kind.CRASHED, says="return nothing", factory=True)
def recorder_by_lambda():
    """A lambda returns the handle of the tensor's hook, and the next layer gets that."""

    def hooks(recorder, name):
        norms = recorder.norms
        return lambda m, i, o: (
            o.register_hook(lambda g: norms[name].append(g.norm().item())) if o.requires_grad else None
        )

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="activations kept alive", says="closures over them", kind=Kind.PARTLY, factory=True)
def recorder_that_keeps_detached_outputs():
    """Believes that a detached output costs nothing."""

    def hooks(recorder, name):
        inner = _tensor_hook(recorder, name)

        def hook(module, inputs, output):
            recorder.__dict__.setdefault("outputs", []).append(output.detach())
            inner(module, inputs, output)

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="norms", says="in-place", factory=True)
def recorder_with_retain_grad():
    """retain_grad follows an in-place change: it gives the gradient of what ReLU made of the output."""

    class GradientRecorder:
        def __init__(self, model):
            self.model, self.handles = model, []

        def __enter__(self):
            self.norms, self.outputs = {name: [] for name in _parts(self.model)}, []
            for name, module in _parts(self.model).items():

                def hook(module, inputs, output, name=name):
                    if output.requires_grad:
                        output.retain_grad()
                        self.outputs.append((name, output))

                self.handles.append(module.register_forward_hook(hook))
            return self

        def __exit__(self, *error):
            for handle in self.handles:
                handle.remove()
            self.handles.clear()
            for name, output in reversed(self.outputs):
                if output.grad is not None:
                    self.norms[name].append(output.grad.norm().item())
            self.outputs.clear()

    return GradientRecorder


@wrong("GradientRecorder", fails="type of norms", says="item()", factory=True)
def recorder_of_tensors():
    """Keeps the norms as tensors."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            if output.requires_grad:
                norms = recorder.norms
                recorder.handles.append(output.register_hook(lambda g: norms[name].append(g.norm())))

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="a backward pass after the block", says="tensor hooks", kind=Kind.PARTLY, factory=True)
def recorder_that_forgets_tensor_hooks():
    """Removes the module hooks; those on the tensors go on reporting."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            if output.requires_grad:
                norms = recorder.norms
                output.register_hook(lambda g: norms[name].append(g.norm().item()))

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", fails="activations kept alive", says="Store numbers", kind=Kind.PARTLY, factory=True)
def recorder_that_keeps_the_outputs():
    """Keeps every output in a list, for later."""

    def hooks(recorder, name):
        inner = _tensor_hook(recorder, name)

        def hook(module, inputs, output):
            recorder.__dict__.setdefault("outputs", []).append(output)
            inner(module, inputs, output)

        return hook

    return _recorder(hooks=hooks)


@wrong("GradientRecorder", kind=Kind.CRASHED, says="requires_grad", factory=True)
def recorder_that_hooks_every_output():
    """Registers on outputs that need no gradient."""

    def hooks(recorder, name):
        def hook(module, inputs, output):
            norms = recorder.norms
            recorder.handles.append(output.register_hook(lambda g: norms[name].append(g.norm().item())))

        return hook

    return _recorder(hooks=hooks)


# ------------------------------------------------------------------------------------------------ first_bad_module
def _all_finite(value):
    if torch.is_tensor(value):
        return not (value.isnan().any() or value.isinf().any())
    if isinstance(value, dict):
        return all(map(_all_finite, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_all_finite, value))


@right("first_bad_module")
def runs_a_deep_copy(model, x):
    twin, bad = copy.deepcopy(model), []
    for name, module in twin.named_modules():
        module.register_forward_hook(lambda m, i, o, name=name: bad.append(name) if not _all_finite(o) else None)
    try:
        with torch.no_grad():
            twin(x)
    except Exception:
        if not bad:
            raise
    return bad[0] if bad else None


@right("first_bad_module")
def stops_by_an_exception(model, x):
    class Found(Exception):
        pass

    def stop(name):
        def hook(module, inputs, output):
            if not _all_finite(output):
                raise Found(name)

        return hook

    state = {k: v.clone() for k, v in model.state_dict().items()}
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.enter_context(module.register_forward_hook(stop(name)))
        try:
            with torch.no_grad():
                model(x)
        except Found as found:
            return str(found)
        finally:
            model.load_state_dict(state)
    return None


def _bad_modules(model, x, finite=_all_finite, modules=None, call=None, keep=True, restore=True):
    bad, handles = [], []
    for name, module in (modules or dict)(model.named_modules()).items():
        handles.append(module.register_forward_hook(lambda m, i, o, name=name: None if finite(o) else bad.append(name)))
    buffers = [(b, b.clone()) for b in model.buffers()]
    try:
        with torch.no_grad():
            (call or model)(x)
    except Exception:
        if not bad or not keep:
            raise
    finally:
        for handle in handles:
            handle.remove()
        if restore:
            for buffer, before in buffers:
                buffer.copy_(before)
    return bad


@wrong("first_bad_module", fails="a part in the middle", says="inside the hook")
def looks_when_all_is_over(model, x):
    """Collects the outputs and looks at them at the end: in-place ReLU has made 0 of -inf by then."""
    outputs, handles = {}, []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda m, i, o, name=name: outputs.__setitem__(name, o)))
    buffers = [(b, b.clone()) for b in model.buffers()]
    try:
        with torch.no_grad():
            model(x)
    except Exception:
        if all(map(_all_finite, outputs.values())):
            raise
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in buffers:
            buffer.copy_(before)
    return next((name for name, o in outputs.items() if not _all_finite(o)), None)


@wrong("first_bad_module", fails="a part in the middle", says="later ones inherit")
def first_in_the_order_of_definition(model, x):
    """Takes the order of named_modules for the order of execution."""
    bad = _bad_modules(model, x)
    leaves = [n for n, m in model.named_modules() if not list(m.children())]
    return next((n for n in leaves if n in bad), bad[0] if bad else None)


@wrong("first_bad_module", fails="a part in the middle", says="isfinite")
def only_nan_is_bad(model, x):
    """Looks for NaN alone."""
    finite = lambda o: not torch.is_tensor(o) or not o.isnan().any()  # noqa: E731
    bad = _bad_modules(model, x, finite=finite)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="a part in the middle", says="keep the first to fire")
def names_the_last(model, x):
    """Overwrites the name at every bad output."""
    bad = _bad_modules(model, x)
    return bad[-1] if bad else None


@wrong("first_bad_module", fails="the model's own code", says="containers", kind=Kind.PARTLY)
def watches_layers_only(model, x):
    """Containers have no code of their own, it is believed."""
    bad = _bad_modules(model, x, modules=lambda m: {n: k for n, k in m if not list(k.children())})
    return bad[0] if bad else None


@wrong("first_bad_module", fails="the model's own code", says="model.forward(x)", kind=Kind.PARTLY)
def calls_forward(model, x):
    """model.forward(x) runs the model without its own hooks."""
    bad = _bad_modules(model, x, call=model.forward)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="an output that is no tensor", says="look inside", kind=Kind.PARTLY)
def outputs_are_tensors(model, x):
    """Calls isfinite on whatever a module gives."""
    bad = _bad_modules(model, x, finite=lambda o: not torch.is_tensor(o) or bool(torch.isfinite(o).all()))
    return bad[0] if bad else None


@wrong("first_bad_module", fails="an output that is no tensor", says="a list", kind=Kind.PARTLY)
def outputs_are_no_lists(model, x):
    """Looks into tuples and dictionaries."""

    def finite(value):
        if torch.is_tensor(value):
            return bool(torch.isfinite(value).all())
        if isinstance(value, dict):
            value = tuple(value.values())
        return not isinstance(value, tuple) or all(map(finite, value))

    bad = _bad_modules(model, x, finite=finite)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="a model that stops at bad numbers", says="the name was lost", kind=Kind.PARTLY)
def an_error_is_an_error(model, x):
    """Lets every error out, also after the bad module was seen."""
    bad = _bad_modules(model, x, keep=False)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="buffers and input as they were", says="running statistics", kind=Kind.PARTLY)
def poisons_the_statistics(model, x):
    """Runs in train mode under no_grad and believes that nothing is changed."""
    bad = _bad_modules(model, x, restore=False)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="mode of the model", says="train or eval", kind=Kind.PARTLY)
def switches_to_eval(model, x):
    """eval() keeps the statistics, and stays."""
    model.eval()
    bad = _bad_modules(model, x)
    return bad[0] if bad else None


@wrong("first_bad_module", fails="hooks left on the model", says="handle")
def leaves_hooks_behind(model, x):
    """Registers hooks and returns."""
    bad = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, i, o, name=name: None if _all_finite(o) else bad.append(name))
    try:
        with torch.no_grad():
            model(x)
    except Exception:
        if not bad:
            raise
    return bad[0] if bad else None


# ------------------------------------------------------------------------------------------------ safe_norm
@right("safe_norm")
def norm_of_torch(x):
    return torch.linalg.vector_norm(x, dim=-1)


@right("safe_norm")
def norm_of_the_other_rows(x):
    out = x.new_zeros(len(x))
    busy = (x != 0).any(dim=1)
    out[busy] = x[busy].square().sum(dim=1).sqrt()
    return out


@right("safe_norm")
def norm_with_a_masked_fill(x):
    squares = (x * x).sum(1)
    zero = squares == 0
    return squares.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


@wrong("safe_norm", fails="gradient is finite", says="inf * 0")
def plain_formula(x):
    """The formula from the book."""
    return x.square().sum(dim=-1).sqrt()


@wrong("safe_norm", fails="values", says="under the root")
def epsilon_under_the_root(x):
    """The usual epsilon: wrong at zero."""
    return (x.square().sum(dim=-1) + 1e-12).sqrt()


@wrong("safe_norm", fails="values of tiny rows", says="swallows")
def epsilon_taken_off_again(x):
    """Takes the root of the epsilon off again."""
    return (x.square().sum(dim=-1) + 1e-24).sqrt() - 1e-12


@wrong("safe_norm", fails="values of tiny rows", says="swallows")
def tiny_epsilon_under_a_masked_root(x):
    """Believes that 1e-30 cannot matter."""
    squares = x.square().sum(dim=-1)
    return torch.where(squares == 0, 0.0, (squares + 1e-30).sqrt())


@wrong("safe_norm", fails="gradient is finite", says="too late")
def where_behind_the_root(x):
    """where picks the zero after the root; the NaN still comes back."""
    squares = x.square().sum(dim=-1)
    return torch.where(squares == 0, 0.0, squares.sqrt())


@right("safe_norm")
def norm_with_a_clamp(x):
    # clamp's backward selects instead of multiplying: no inf * 0 at its edge
    return x.square().sum(dim=-1).clamp(min=0).sqrt()


@wrong("safe_norm", fails="gradient is finite", says="derivative is infinite")
def square_root_as_a_power(x):
    """** 0.5 is the same root."""
    return (x * x).sum(dim=-1) ** 0.5


@wrong("safe_norm", fails="gradient", says="2 times the expected")
def detached_root(x):
    """The gradient is finite because half of it is gone."""
    squares = x.square().sum(dim=-1)
    norm = torch.where(squares == 0, 1.0, squares).sqrt().detach()
    return torch.where(squares == 0, 0.0, squares / norm)


@wrong("safe_norm", fails="type of the result", says="last axis")
def norm_of_everything(x):
    """x.norm() is one number."""
    return x.norm()


# ------------------------------------------------------------------------------------------------ masked_sqrt
@right("masked_sqrt")
def root_of_the_selected(x):
    out = torch.zeros_like(x)
    positive = x > 0
    out[positive] = x[positive].sqrt()
    return out


@right("masked_sqrt")
def masked_fill_twice(x):
    hole = ~(x > 0)
    return x.masked_fill(hole, 1).sqrt().masked_fill(hole, 0)


@right("masked_sqrt")
def scattered(x):
    positive = x > 0
    return torch.zeros_like(x).masked_scatter(positive, x.masked_select(positive).pow(0.5))


@wrong("masked_sqrt", fails="gradient is finite", says="both sides")
def where_over_a_root(x):
    """Believes that where computes one side only."""
    return torch.where(x > 0, x.sqrt(), 0.0)


@right("masked_sqrt")
def root_of_relu(x):
    # relu's backward selects instead of multiplying: what comes back at a masked place is dropped, inf or not
    return x.relu().sqrt()


@wrong("masked_sqrt", fails="gradient is finite", says="before sqrt")
def zero_in_the_masked_places(x):
    """Multiplies by the mask before the root: inf * 0 on the way back."""
    return (x * (x > 0)).sqrt()


@wrong("masked_sqrt", fails="values", says="masked places")
def clamp_to_a_small_number(x):
    """The root of the small number stays in the masked places."""
    return x.clamp(min=1e-8).sqrt()


@wrong("masked_sqrt", fails="gradient is finite", says="0 * inf")
def times_the_mask(x):
    """NaN * 0 is NaN: here already in the values of negative numbers."""
    return torch.nan_to_num(x.sqrt()) * (x > 0)


@wrong("masked_sqrt", fails="small positive numbers", says="threshold", kind=Kind.PARTLY)
def threshold_for_positive(x):
    """Masks what is small."""
    positive = x > 1e-6
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


@wrong("masked_sqrt", fails="small positive numbers", says="add nothing", kind=Kind.PARTLY)
def tiny_epsilon_under_the_root(x):
    """Believes that 1e-30 cannot matter."""
    return torch.where(x > 0, (x.abs() + 1e-30).sqrt(), 0.0)


@wrong("masked_sqrt", fails="gradient", says="elsewhere")
def root_of_the_absolute_value(x):
    """The where outside is right, but the inner number lets a gradient through for negative x."""
    safe = torch.where(x == 0, 1.0, x.abs())
    return safe.sqrt() - torch.where(x > 0, 0.0, safe.sqrt().detach())


@wrong("masked_sqrt", fails="input left as it was", says="out of place")
def writes_zeros_into_x(x):
    """Clears the masked numbers in the caller's tensor."""
    positive = x > 0
    with torch.no_grad():
        x[~positive] = 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


@wrong("masked_sqrt", fails="type of the result", says="every element")
def only_the_positive_ones(x):
    """Drops the masked places."""
    return x[x > 0].sqrt()


# ------------------------------------------------------------------------------------------------ feature_gradient
@right("feature_gradient")
def gradient_by_a_tensor_hook(model, layer, x, target):
    caught, handles = [], []

    def hook(module, inputs, output):
        if not output.requires_grad:
            output = output.clone().requires_grad_() * 1.0
        handles.append(output.register_hook(caught.append))
        return output

    with torch.enable_grad(), model.get_submodule(layer).register_forward_hook(hook):
        scores = model(x)
        score = scores[torch.arange(len(x), device=x.device), target].sum()
    inputs = [p for p in model.parameters() if p.requires_grad] or None
    if inputs is None:
        score.backward()
    else:
        torch.autograd.grad(score, inputs, allow_unused=True)
    for handle in handles:
        handle.remove()
    return caught[0].detach()


@right("feature_gradient")
def gradient_of_a_probe(model, layer, x, target):
    """Adds a probe of zeros to the output: its gradient is the feature's."""
    probes = []

    def add_probe(module, inputs, output):
        probes.append(torch.zeros_like(output, requires_grad=True))
        return output + probes[0]

    handle = dict(model.named_modules())[layer].register_forward_hook(add_probe)
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    try:
        scores = model(x)
        picked = (scores * F.one_hot(target, scores.shape[1])).sum()
        return torch.autograd.grad(picked, probes[0])[0]
    finally:
        torch.set_grad_enabled(before)
        handle.remove()


@right("feature_gradient")
def gradient_on_a_deep_copy(model, layer, x, target):
    twin, kept = copy.deepcopy(model), []

    def hook(module, inputs, output):
        kept.append(output.clone().detach().requires_grad_(True))
        return kept[0] * 1

    twin.get_submodule(layer).register_forward_hook(hook)
    with torch.enable_grad():
        twin(x)[range(len(target)), target].sum().backward(inputs=kept)
    return kept[0].grad


def _feature_gradient(model, layer, x, target, pick=None, hand_on=None, enable=True, cut=True):
    kept = []

    def hook(module, inputs, output):
        feature = output.detach().requires_grad_() if cut else output
        kept.append(feature)
        return hand_on(feature) if hand_on else feature.clone()

    with torch.enable_grad() if enable else contextlib.nullcontext():
        with model.get_submodule(layer).register_forward_hook(hook):
            scores = model(x)
        score = pick(scores) if pick else scores.gather(1, target[:, None]).sum()
        return torch.autograd.grad(score, kept[0])[0]


@wrong("feature_gradient", fails="gradient", says="its own target")
def gradient_of_all_scores(model, layer, x, target):
    """Adds up the scores of all classes."""
    return _feature_gradient(model, layer, x, target, pick=lambda s: s.sum())


@wrong("feature_gradient", fails="gradient", says="its own target")
def gradient_of_all_pairs(model, layer, x, target):
    """scores[:, target] pairs each image with the targets of all."""
    return _feature_gradient(model, layer, x, target, pick=lambda s: s[:, target].sum())


@wrong("feature_gradient", fails="gradient", says="0.33")
def gradient_of_the_mean_score(model, layer, x, target):
    """The mean instead of the sum."""
    return _feature_gradient(model, layer, x, target, pick=lambda s: s.gather(1, target[:, None]).mean())


@wrong("feature_gradient", fails="the layer before an in-place one", says="wrote over")
def gradient_after_the_in_place_layer(model, layer, x, target):
    """The hooked tensor has become the ReLU's output."""
    return _feature_gradient(model, layer, x, target, cut=False, hand_on=lambda f: f)


@wrong("feature_gradient", fails="a frozen model", says="requires_grad_()", kind=Kind.PARTLY)
def gradient_needs_a_trainable_model(model, layer, x, target):
    """Relies on the parameters in front of the layer."""
    return _feature_gradient(model, layer, x, target, cut=False)


@wrong("feature_gradient", fails="called under no_grad", says="enable_grad", kind=Kind.PARTLY)
def gradient_needs_grad_mode(model, layer, x, target):
    """Relies on the caller's grad mode."""
    return _feature_gradient(model, layer, x, target, enable=False)


@wrong("feature_gradient", fails="gradients of the parameters", says="nobody's .grad", kind=Kind.PARTLY)
def gradient_by_backward(model, layer, x, target):
    """backward() reaches the parameters as well."""
    kept = []

    def hook(module, inputs, output):
        kept.append(output.detach().requires_grad_())
        return kept[0].clone()

    with torch.enable_grad(), model.get_submodule(layer).register_forward_hook(hook):
        model(x).gather(1, target[:, None]).sum().backward()
    return kept[0].grad


@wrong("feature_gradient", fails="gradient carries no graph", says="create_graph", kind=Kind.PARTLY)
def gradient_with_a_graph(model, layer, x, target):
    """create_graph=True, to be on the safe side."""
    kept = []

    def hook(module, inputs, output):
        kept.append(output.detach().requires_grad_())
        return kept[0].clone()

    with torch.enable_grad(), model.get_submodule(layer).register_forward_hook(hook):
        score = model(x).gather(1, target[:, None]).sum()
    return torch.autograd.grad(score, kept[0], create_graph=True)[0]


@wrong("feature_gradient", fails="hooks left on the model", says="handle")
def gradient_that_leaves_a_hook(model, layer, x, target):
    """Forgets the handle."""
    kept = []
    model.get_submodule(layer).register_forward_hook(lambda m, i, o: (kept.append(o.clone()), kept[-1].clone())[1])
    with torch.enable_grad():
        score = model(x).gather(1, target[:, None]).sum()
    return torch.autograd.grad(score, kept[-1])[0]


@wrong("feature_gradient", fails="activations kept alive", says="attributes", kind=Kind.PARTLY)
def gradient_that_keeps_the_scores(model, layer, x, target):
    """Keeps the last scores in a global, for debugging."""

    def pick(scores):
        _HELD[:] = [scores]
        return scores.gather(1, target[:, None]).sum()

    return _feature_gradient(model, layer, x, target, pick=pick)


@wrong("feature_gradient", fails="activations kept alive", says="globals", kind=Kind.PARTLY)
def gradient_that_keeps_a_detached_alias(model, layer, x, target):
    """A detached alias in a global: no graph, and all the memory."""

    def hand_on(feature):
        _HELD[:] = [feature.detach()]
        return feature.clone()

    return _feature_gradient(model, layer, x, target, hand_on=hand_on)


@wrong("feature_gradient", fails="grad mode left as it was", says="switches back by itself", kind=Kind.PARTLY)
def gradient_that_switches_recording_on(model, layer, x, target):
    """set_grad_enabled(True), and the caller's no_grad is at an end."""
    torch.set_grad_enabled(True)
    return _feature_gradient(model, layer, x, target, enable=False)


@wrong("feature_gradient", fails="mode during the forward pass", says="as it comes")
def gradient_in_eval_mode(model, layer, x, target):
    """Looks at features in eval mode only, and leaves it on."""
    return _feature_gradient(model.eval(), layer, x, target)


@wrong("feature_gradient", fails="mode during the forward pass", says="as it comes")
def gradient_in_train_mode(model, layer, x, target):
    """Believes that gradients need train mode."""
    return _feature_gradient(model.train(), layer, x, target)


@wrong("feature_gradient", fails="forward passes", says="One forward pass is enough", kind=Kind.WASTEFUL)
def gradient_in_two_passes(model, layer, x, target):
    """One pass for the scores, one for the feature."""
    with torch.no_grad():
        model(x)
    return _feature_gradient(model, layer, x, target)


@wrong("feature_gradient", fails="model as it was", says="put back", kind=Kind.PARTLY)
def gradient_that_unfreezes(model, layer, x, target):
    """Makes everything trainable so that a graph begins."""
    model.requires_grad_(True)
    return _feature_gradient(model, layer, x, target, cut=False)


# ------------------------------------------------------------------------------------------------ accumulate
@right("accumulate")
def sums_then_divides(model, batches, loss_function):
    model.zero_grad(set_to_none=True)
    count, total = 0, 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) * inputs.shape[0]
        loss.backward()
        count += inputs.shape[0]
        total += loss.item()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= count
    return total / count


@right("accumulate")
def gradients_by_autograd_grad(model, batches, loss_function):
    params = [p for p in model.parameters() if p.requires_grad]
    n = sum(x.size(0) for x, _ in batches)
    sums, average = [torch.zeros_like(p) for p in params], 0.0
    for x, y in batches:
        loss = loss_function(model(x), y)
        for s, g in zip(sums, torch.autograd.grad(loss, params), strict=True):
            s.add_(g, alpha=x.size(0) / n)
        average += float(loss.detach()) * x.size(0) / n
    for p, s in zip(params, sums, strict=True):
        p.grad = s
    return average


@right("accumulate")
def zeros_instead_of_none(model, batches, loss_function):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()
    n = sum(len(y) for _, y in batches)
    losses = []
    for x, y in batches:
        loss = loss_function(model(x), y)
        (loss * len(y) / n).backward()
        losses.append(loss.detach() * len(y) / n)
    return torch.stack(losses).sum().item()


@wrong("accumulate", fails="gradients", says="by its size")
def mean_of_means(model, batches, loss_function):
    """Divides by the number of micro-batches: a small one counts as much as a big one."""
    model.zero_grad()
    average = 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) / len(batches)
        loss.backward()
        average += loss.item()
    return average


@wrong("accumulate", fails="gradients", says="by its size")
def sum_of_means(model, batches, loss_function):
    """Does not divide at all."""
    model.zero_grad()
    average = 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets)
        loss.backward()
        average += loss.item()
    return average / len(batches)


@wrong("accumulate", fails="gradients", says="times the expected one")
def sum_over_all_items(model, batches, loss_function):
    """The sum where the mean is asked."""
    model.zero_grad()
    total = 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) * len(inputs)
        loss.backward()
        total += loss.item()
    return total / sum(len(x) for x, _ in batches)


@wrong("accumulate", fails="gradients of the step before", says="backward adds to it")
def keeps_the_old_gradients(model, batches, loss_function):
    """Forgets zero_grad: the step before is still in there."""
    n, average = sum(len(x) for x, _ in batches), 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) * len(inputs) / n
        loss.backward()
        average += loss.item()
    return average


@wrong("accumulate", fails="micro-batches that count", says="once, before the loop")
def clears_in_the_loop(model, batches, loss_function):
    """zero_grad in the loop: only the last micro-batch is left."""
    n, average = sum(len(x) for x, _ in batches), 0.0
    for inputs, targets in batches:
        model.zero_grad()
        loss = loss_function(model(inputs), targets) * len(inputs) / n
        loss.backward()
        average += loss.item()
    return average


@wrong("accumulate", fails="bytes at peak", says="inside the loop", kind=Kind.WASTEFUL)
def one_backward_at_the_end(model, batches, loss_function):
    """Adds the losses up first: all graphs are alive at once."""
    model.zero_grad()
    n = sum(len(x) for x, _ in batches)
    loss = sum(loss_function(model(x), y) * len(x) / n for x, y in batches)
    loss.backward()
    return loss.item()


@wrong("accumulate", fails="bytes at peak", says="frees the graph", kind=Kind.WASTEFUL)
def one_big_batch(model, batches, loss_function):
    """Concatenates what was split because it does not fit."""
    model.zero_grad()
    loss = loss_function(model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))
    loss.backward()
    return loss.item()


@wrong("accumulate", fails="average loss", says="over all items", kind=Kind.PARTLY)
def unweighted_average(model, batches, loss_function):
    """Right gradients, and the mean of the means as the loss."""
    model.zero_grad()
    n, losses = sum(len(x) for x, _ in batches), []
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets)
        (loss * len(inputs) / n).backward()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@wrong("accumulate", fails="type of result and gradients", says="item()")
def returns_a_tensor_with_its_graphs(model, batches, loss_function):
    """Adds up loss tensors for the log."""
    model.zero_grad()
    n, average = sum(len(x) for x, _ in batches), 0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) * len(inputs) / n
        loss.backward(retain_graph=True)
        average = average + loss
    return average


@wrong("accumulate", fails="parameters left as they were", says="optimizer")
def takes_the_step_too(model, batches, loss_function):
    """Steps after each micro-batch."""
    model.zero_grad()
    n, average = sum(len(x) for x, _ in batches), 0.0
    for inputs, targets in batches:
        loss = loss_function(model(inputs), targets) * len(inputs) / n
        loss.backward()
        average += loss.item()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return average


# ------------------------------------------------------------------------------------------------ diagnose
def _diagnosis(model, loss, **ways):
    """A diagnosis with some things done in another way."""
    verdicts, trainable = {}, {}
    for name, p in model.named_parameters():
        if not ways.get("values_unseen") and not torch.isfinite(p).all():
            verdicts[name] = "bad value"
        elif not p.requires_grad:
            verdicts[name] = "frozen"
        else:
            trainable[name] = p
    if ways.get("frozen_first"):
        verdicts |= {n: "frozen" for n, p in model.named_parameters() if not p.requires_grad}
    leaves = {id(leaf) for leaf in _leaves(loss)}
    gradients = dict.fromkeys(trainable)
    try:
        if loss.requires_grad and trainable:
            retain = not ways.get("uses_up")
            found = torch.autograd.grad(loss, list(trainable.values()), retain_graph=retain, allow_unused=True)
            gradients = dict(zip(trainable, found, strict=True))
    except RuntimeError:
        if ways.get("errors_out"):
            raise
        for name, p in trainable.items():
            verdicts[name] = "backward fails" if id(p) in leaves else "unreached"
        return verdicts
    for name, g in gradients.items():
        if g is None:
            verdicts[name] = "unreached"
            continue
        norm = ways.get("measure", torch.Tensor.norm)(g).item()
        tests = {
            "bad gradient": torch.isnan(g).any() if ways.get("only_nan") else not torch.isfinite(g).all(),
            "zero gradient": (g == 0).any() if ways.get("any_zero") else bool((g == 0).all()),
            "large gradient": norm > ways.get("limit", 1e3),
            "tiny gradient": norm < ways.get("small", 1e-8),
        }
        if ways.get("zero_is_tiny"):
            del tests["zero gradient"]
        verdicts[name] = next((word for word, holds in tests.items() if holds), "healthy")
    return verdicts


@right("diagnose")
def diagnose_by_grad(model, loss):
    return _diagnosis(model, loss)


@right("diagnose")
def diagnose_by_backward_and_putting_back(model, loss):
    kept = {p: p.grad for p in model.parameters()}
    for p in kept:
        p.grad = None
    reached, failed = {id(leaf) for leaf in _leaves(loss)}, False
    try:
        if loss.requires_grad:
            loss.backward(retain_graph=True)
    except RuntimeError:
        failed = True
    out = {}
    for name, p in model.named_parameters():
        g = p.grad
        if not torch.isfinite(p).all():
            out[name] = "bad_value"
        elif not p.requires_grad:
            out[name] = "frozen"
        elif id(p) not in reached:
            out[name] = "unreached"
        elif failed:
            out[name] = "backward fails"
        elif not torch.isfinite(g).all():
            out[name] = "bad gradient"
        elif g.count_nonzero() == 0:
            out[name] = "zero gradient"
        else:
            size = torch.linalg.vector_norm(g)
            out[name] = "large gradient" if size > 1e3 else "tiny gradient" if size < 1e-8 else "healthy"
    for p, g in kept.items():
        p.grad = g
    loss.grad = None
    return out


@wrong("diagnose", fails="gradients left as they were", says="stores none", kind=Kind.PARTLY)
def diagnose_by_backward(model, loss):
    """Runs backward, and leaves its gradients."""
    verdicts = _diagnosis(model, loss)
    with contextlib.suppress(RuntimeError):
        loss.backward(retain_graph=True)
    return verdicts


@wrong("diagnose", fails="backward still works", says="retain_graph", kind=Kind.PARTLY)
def diagnose_and_free(model, loss):
    """Frees the graph that is to be diagnosed."""
    return _diagnosis(model, loss, uses_up=True)


@wrong("diagnose", fails="unused layer", says="No path")
def diagnose_none_is_zero(model, loss):
    """Takes None for a gradient of zero."""
    return {n: "zero gradient" if v == "unreached" else v for n, v in _diagnosis(model, loss).items()}


@wrong("diagnose", fails="frozen layer", says="requires_grad")
def diagnose_frozen_is_unreached(model, loss):
    """Does not look at requires_grad."""
    return {n: "unreached" if v == "frozen" else v for n, v in _diagnosis(model, loss).items()}


@wrong("diagnose", fails="type of the verdicts", says="One entry")
def diagnose_tells_faults_only(model, loss):
    """Reports healthy parameters only if something is wrong: the dictionary misses the others."""
    return {n: v for n, v in _diagnosis(model, loss).items() if v != "healthy"}


@wrong("diagnose", fails="root of zero", says="anomaly", kind=Kind.PARTLY)
def diagnose_only_nan(model, loss):
    """isnan: an infinity is a large gradient then."""
    return _diagnosis(model, loss, only_nan=True)


@wrong("diagnose", fails="dead ReLU", says="Zero is not None", kind=Kind.PARTLY)
def diagnose_zero_is_tiny(model, loss):
    """Takes zero for a very small norm."""
    return _diagnosis(model, loss, zero_is_tiny=True)


@wrong("diagnose", fails="in-place step that spoils", says="Catch", kind=Kind.PARTLY)
def diagnose_lets_errors_out(model, loss):
    """Expects backward to work."""
    return _diagnosis(model, loss, errors_out=True)


@wrong("diagnose", fails="bad parameter values", says="before everything", kind=Kind.PARTLY)
def diagnose_gradients_only(model, loss):
    """Looks at gradients and never at values."""
    return _diagnosis(model, loss, values_unseen=True)


@wrong("diagnose", fails="exploding initialisation", says="limits", kind=Kind.PARTLY)
def diagnose_with_another_limit(model, loss):
    """Has a rule of thumb of its own."""
    return _diagnosis(model, loss, limit=1e12)


@wrong("diagnose", fails="vanishing signal", says="limits", kind=Kind.PARTLY)
def diagnose_without_a_lower_limit(model, loss):
    """Knows only explosions."""
    return _diagnosis(model, loss, small=0.0)


def _near(name, **ways):
    """Registers a diagnosis with other limits, or with another measure than the norm."""

    def answer(model, loss):
        return _diagnosis(model, loss, **ways)

    answer.__name__, answer.__doc__ = f"diagnose_{name}", f"Decides by other limits or by another measure: {name}."
    wrong("diagnose", fails="norms near the limits", says="gradient.norm()", kind=Kind.PARTLY)(answer)


_near("large_from_100", limit=1e2)
_near("large_from_10_000", limit=1e4)
_near("tiny_below_1e_7", small=1e-7)
_near("tiny_below_1e_9", small=1e-9)
_near("by_the_largest_number", measure=lambda g: g.abs().max())
_near("by_the_mean", measure=lambda g: g.abs().mean())


@wrong("diagnose", fails="constant loss", says="requires_grad first", kind=Kind.PARTLY)
def diagnose_expects_a_graph(model, loss):
    """Asks autograd.grad in any case."""
    if not loss.requires_grad:
        torch.autograd.grad(loss, list(model.parameters()))
    return _diagnosis(model, loss)


@wrong("diagnose", fails="healthy", says="0 of 4")
def diagnose_as_in_the_article(model, loss):
    """The snippet that reads .grad without running backward: None everywhere."""
    return {n: "unreached" if p.grad is None else "healthy" for n, p in model.named_parameters()}


@wrong("diagnose", fails="type of the verdicts", says="one word")
def diagnose_with_lists(model, loss):
    """A list of verdicts for each parameter."""
    return {n: [v] for n, v in _diagnosis(model, loss).items()}


# ------------------------------------------------------------------------------------------------ HardSwish
@right("HardSwish", factory=True)
def hard_swish_by_relu6():
    class HardSwish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * F.relu6(x + 3) / 6

        @staticmethod
        def backward(ctx, grad):
            x = ctx.saved_tensors[0]
            inside = ((x > -3) & (x < 3)).to(x.dtype)
            return grad * (inside * (x / 3 + 0.5) + (x >= 3).to(x.dtype))

    return HardSwish


@right("HardSwish", factory=True)
def hard_swish_with_setup_context():
    class HardSwish(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return F.hardswish(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            gate = F.relu6(x + 3) / 6
            return grad * gate + grad * x * ((x > -3) & (x < 3)) / 6

    return HardSwish


@right("HardSwish", factory=True)
def hard_swish_that_saves_nothing_needless():
    class HardSwish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x if ctx.needs_input_grad[0] else None)
            out = (x + 3).clamp_(0, 6).mul_(x).div_(6)
            return out

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            slope = torch.clamp((2 * x + 3) / 6, -0.5, 1.5)
            slope = torch.where(x > 3, torch.ones_like(x), torch.where(x < -3, torch.zeros_like(x), slope))
            return slope * grad

    return HardSwish


def _hard_swish(save=None, load=None, slope=None, backward=None, forward=None):
    def slope_of(x):
        return torch.where(x < -3, 0.0, torch.where(x > 3, 1.0, (2 * x + 3) / 6))

    def keep(ctx, x, y):
        ctx.save_for_backward(x)

    class HardSwish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x) if forward else x * (x + 3).clamp(0, 6) / 6
            (save or keep)(ctx, x, y)
            return y

        @staticmethod
        def backward(ctx, grad):
            x = load(ctx) if load else ctx.saved_tensors[0]
            s = (slope or slope_of)(x)
            return backward(grad, s) if backward else grad * s

    return HardSwish


@wrong("HardSwish", fails="gradient for another loss", says="grad * slope", factory=True)
def hard_swish_without_the_incoming_gradient():
    """Returns the slope: right as long as the loss is the plain sum."""
    return _hard_swish(backward=lambda grad, s: s)


@wrong("HardSwish", fails="gradient", says="product rule", factory=True)
def hard_swish_without_the_product_rule():
    """Takes the gate for the slope: relu6(x + 3) / 6."""
    return _hard_swish(slope=lambda x: F.relu6(x + 3) / 6)


@wrong("HardSwish", fails="gradient", says="1 above 3", factory=True)
def hard_swish_without_the_cuts():
    """Uses the middle piece everywhere."""
    return _hard_swish(slope=lambda x: (2 * x + 3) / 6)


@wrong(
    "HardSwish", fails="an in-place change of x in between", says="save_for_backward", kind=Kind.PARTLY, factory=True
)
def hard_swish_on_ctx():
    """ctx.x = x: nobody notices when x is changed."""
    return _hard_swish(save=lambda ctx, x, y: setattr(ctx, "x", x), load=lambda ctx: ctx.x)


@wrong("HardSwish", fails="outputs kept alive", says="cycle", factory=True)
def hard_swish_that_keeps_its_output():
    """ctx.y = y, for a look at it later: only the garbage collector frees it."""

    def save(ctx, x, y):
        ctx.save_for_backward(x)
        ctx.y = y

    return _hard_swish(save=save)


@wrong("HardSwish", fails="bytes saved for backward", says="Save x alone", kind=Kind.WASTEFUL, factory=True)
def hard_swish_that_saves_three():
    """Saves masks and gate as well as x."""

    def save(ctx, x, y):
        ctx.save_for_backward(x, (x + 3).clamp(0, 6), x > 3)

    return _hard_swish(save=save)


@wrong("HardSwish", fails="second derivative", says="has no history", kind=Kind.PARTLY, factory=True)
def hard_swish_in_numpy():
    """Computes the slope in NumPy: a number without a history."""

    def slope(x):
        a = x.detach().numpy()
        return torch.from_numpy(np.where(a < -3, 0, np.where(a > 3, 1, (2 * a + 3) / 6)).astype(a.dtype))

    return _hard_swish(slope=slope)


@wrong("HardSwish", fails="second derivative", says="in backward", kind=Kind.PARTLY, factory=True)
def hard_swish_with_the_slope_saved():
    """Computes the slope in forward, where nothing is recorded, and saves that."""

    class HardSwish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.where(x < -3, 0.0, torch.where(x > 3, 1.0, (2 * x + 3) / 6)))
            return x * (x + 3).clamp(0, 6) / 6

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    return HardSwish


@wrong("HardSwish", fails="second derivative", says="detach nothing", kind=Kind.PARTLY, factory=True)
def hard_swish_with_a_detached_gradient():
    """Detaches what comes in: it is a number, it is believed."""
    return _hard_swish(backward=lambda grad, s: grad.detach() * s)


@wrong("HardSwish", kind=Kind.CRASHED, says="work out of place", factory=True)
def hard_swish_that_multiplies_in_place():
    """Writes into the incoming gradient, which may be one number expanded."""
    return _hard_swish(backward=lambda grad, s: grad.mul_(s))


@wrong("HardSwish", fails="values", says="relu6", factory=True)
def hard_swish_is_swish():
    """Takes it for x * sigmoid(x)."""
    return _hard_swish(forward=lambda x: x * x.sigmoid())


@wrong("HardSwish", fails="kind of class", says="Function", factory=True)
def hard_swish_as_a_plain_class():
    """A class with an apply of its own, and autograd's backward."""

    class HardSwish:
        @staticmethod
        def apply(x):
            return F.hardswish(x)

    return HardSwish


@wrong("HardSwish", fails="input left as it was", says="out of place", factory=True)
def hard_swish_in_place():
    """Clamps the caller's tensor to save memory."""

    def forward(x):
        gate = (x + 3).clamp(0, 6) / 6
        with torch.no_grad():
            y = x * gate
            x.clamp_(-3, 3)
        return y

    return _hard_swish(forward=forward)


@wrong("HardSwish", fails="dtypes with float32", says="float64", kind=Kind.PARTLY, factory=True)
def hard_swish_in_double():
    """Computes in float64 and forgets the way back."""
    return _hard_swish(forward=lambda x: x.double() * (x.double() + 3).clamp(0, 6) / 6)


# ------------------------------------------------------------------------------------------------ watch_batchnorm
def _watch(model, batches, **ways):
    kinds = nn.modules.batchnorm._BatchNorm
    norms = {n: m for n, m in model.named_modules() if isinstance(m, kinds)}
    if not ways.get("all_norms"):
        norms = {n: m for n, m in norms.items() if m.running_mean is not None}
    totals = {n: [] for n in norms}
    handles = []
    for name, module in norms.items():

        def look(m, inputs, output=None, name=name):
            v = (output if ways.get("outputs") else inputs[0]).movedim(1, 0).flatten(1)
            totals[name].append((v.sum(1), v.shape[1], v if ways.get("keep") else None))

        register = module.register_forward_hook if ways.get("outputs") else module.register_forward_pre_hook
        handles.append(register(look))
    modes = {m: m.training for m in model.modules()}
    if not ways.get("train"):
        model.eval()
    try:
        with contextlib.nullcontext() if ways.get("record") else torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        if not ways.get("leave"):
            for handle in handles:
                handle.remove()
        if ways.get("train_again"):
            model.train()
        elif not ways.get("stay_in_eval"):
            for m, mode in modes.items():
                m.training = mode
    drift = {}
    for name, m in norms.items():
        if ways.get("mean_of_means"):
            mean = torch.stack([s / n for s, n, _ in totals[name]]).mean(0)
        else:
            mean = sum(s for s, _, _ in totals[name]) / sum(n for _, n, _ in totals[name])
        deviation = (mean - m.running_mean).abs() / (m.running_var + (0 if ways.get("no_eps") else m.eps)).sqrt()
        drift[name] = (deviation.mean() if ways.get("mean") else deviation.max()).item()
    return drift


@right("watch_batchnorm")
def watch_with_lists_of_sums(model, batches):
    return _watch(model, batches)


@right("watch_batchnorm")
@torch.no_grad()
def watch_by_a_running_mean(model, batches):
    state = {}

    def hook(module, inputs, output):
        x = inputs[0]
        axes = [0, *range(2, x.dim())]
        n = x.numel() // x.shape[1]
        mean, count = state.get(module, (torch.zeros_like(module.running_mean), 0))
        state[module] = (mean + (x.mean(axes) - mean) * n / (count + n), count + n)

    names = {m: n for n, m in model.named_modules() if getattr(m, "running_mean", None) is not None}
    was = [m.training for m in model.modules()]
    with contextlib.ExitStack() as stack:
        for module in names:
            stack.enter_context(module.register_forward_hook(hook))
        try:
            for batch in batches:
                model.eval()(batch)
        finally:
            for m, training in zip(model.modules(), was, strict=True):
                m.training = training
    return {
        names[m]: float(((mean - m.running_mean).abs() * (m.running_var + m.eps).rsqrt()).max())
        for m, (mean, _) in state.items()
    }


@right("watch_batchnorm")
def watch_a_deep_copy(model, batches):
    twin = copy.deepcopy(model).eval()
    return _watch(twin, batches)


@wrong("watch_batchnorm", fails="drift", says="eval mode")
def watch_in_train_mode(model, batches):
    """no_grad is enough, it is believed: dropout is on, and the statistics move. (A batch of one is doubled to run.)"""
    return _watch(model, [b.repeat(2, 1, 1, 1) if len(b) == 1 else b for b in batches], train=True)


@wrong("watch_batchnorm", fails="running statistics left as they were", says="no_grad does not")
def watch_and_move_the_statistics(model, batches):
    """One more pass in train mode, under no_grad, for the log."""
    drift = _watch(model, batches)
    modes = {m: m.training for m in model.modules()}
    with torch.no_grad():
        model.train()(batches[0])
    for m, mode in modes.items():
        m.training = mode
    return drift


@wrong("watch_batchnorm", fails="drift", says="input not output")
def watch_outputs(model, batches):
    """Looks at what comes out of the layer."""
    return _watch(model, batches, outputs=True)


@wrong("watch_batchnorm", fails="drift", says="all items equal")
def watch_mean_of_means(model, batches):
    """Averages the batches' means: a batch of one counts like a batch of nine."""
    return _watch(model, batches, mean_of_means=True)


@wrong("watch_batchnorm", fails="drift", says="eps")
def watch_without_eps(model, batches):
    """Leaves eps out."""
    return _watch(model, batches, no_eps=True)


@wrong("watch_batchnorm", fails="drift", says="maximum")
def watch_mean_over_channels(model, batches):
    """Averages over channels: one channel that ran away disappears."""
    return _watch(model, batches, mean=True)


@wrong("watch_batchnorm", fails="mode of every module", says="had put it", kind=Kind.PARTLY)
def watch_and_train_again(model, batches):
    """model.train() at the end wakes what was frozen."""
    return _watch(model, batches, train_again=True)


@wrong("watch_batchnorm", fails="mode of every module", says="each one back", kind=Kind.PARTLY)
def watch_and_stay_in_eval(model, batches):
    """Leaves the model in eval mode: training goes on without dropout."""
    return _watch(model, batches, stay_in_eval=True)


@wrong("watch_batchnorm", fails="hooks left on the model", says="handle")
def watch_and_leave_hooks(model, batches):
    """Never removes its hooks."""
    return _watch(model, batches, leave=True)


@wrong("watch_batchnorm", fails="layers", says="3d")
def watch_two_kinds(model, batches):
    """Knows BatchNorm1d and BatchNorm2d."""
    drift = _watch(model, batches)
    modules = dict(model.named_modules())
    return {n: d for n, d in drift.items() if isinstance(modules[n], (nn.BatchNorm1d, nn.BatchNorm2d))}


@wrong("watch_batchnorm", kind=Kind.CRASHED, says="something is None here")
def watch_and_copy_all_means(model, batches):
    """Copies the running mean of every BatchNorm first."""
    before = {n: m.running_mean.clone() for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    return {n: d for n, d in _watch(model, batches).items() if n in before}


@wrong("watch_batchnorm", kind=Kind.CRASHED, says="eval()")
def watch_without_eval(model, batches):
    """Forgets eval(): a batch of one has no variance."""
    return _watch(model, batches, train=True)


@wrong("watch_batchnorm", kind=Kind.CRASHED, says="ask `is None`")
def watch_every_batchnorm(model, batches):
    """Expects running statistics everywhere."""
    return _watch(model, batches, all_norms=True)


@wrong("watch_batchnorm", fails="bytes at peak", says="no inputs", kind=Kind.WASTEFUL)
def watch_and_keep_all_inputs(model, batches):
    """Keeps all feature maps until the end."""
    return _watch(model, batches, keep=True)


@wrong("watch_batchnorm", fails="bytes at peak", says="no_grad", kind=Kind.WASTEFUL)
def watch_and_record(model, batches):
    """eval() is taken for no_grad: graphs are built all the same."""
    drift = _watch(model, batches, record=True)
    return drift


@wrong("watch_batchnorm", fails="type of the result", says="item()")
def watch_tensors(model, batches):
    """Returns tensors."""
    return {n: torch.tensor(d) for n, d in _watch(model, batches).items()}
