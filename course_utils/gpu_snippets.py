"""The broken code of section 3 as it is handed out: the learner's cell begins with the same text.

An answer that still is this code has not been started. A test compares these texts with the cells of the notebook.
"""

from __future__ import annotations

import copy
import inspect
from itertools import pairwise
from types import CodeType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["is_untouched"]


def mend_1(model, images, device):
    """The model's scores for the images, computed on the device."""
    model.to(device)
    images.to(device)
    return model(images)


def mend_2(model, array, device):
    """The model's scores for a NumPy array of images (N, C, H, W), computed on the device."""
    images = torch.from_numpy(array).to(device)
    return model.to(device)(images)


def mend_3(features):
    """Features (N, T, C), each position weighted: the first by 1, the last by 0."""
    ramp = torch.linspace(1, 0, features.shape[1])
    return features * ramp[:, None]


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


def mend_5(model, batches, device):
    """The predicted class of every image, as one NumPy array; the model computes on the device."""
    model.to(device).eval()
    found = []
    with torch.no_grad():
        for images in batches:
            scores = model(images.to(device))
            found.append(scores.argmax(1).numpy())
    return np.concatenate(found)


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


def validation_losses(model, loader, loss_function, device):
    """The loss of every batch, in evaluation mode."""
    model.eval()
    losses = []
    for x, y in loader:
        losses.append(loss_function(model(x.to(device)), y.to(device)))
    model.train()
    return losses


class FeatureCache:
    """Keeps the latest output of a layer in ``latest`` until ``close()`` is called."""

    def __init__(self, layer):
        self.latest = None
        layer.register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.latest = output

    def close(self):
        self.latest = None


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


# ------------------------------------------------------------------------------------------------ untouched?
def is_untouched(answer: Any) -> bool:
    """Whether ``answer`` is, byte code for byte code, the snippet of the same name. Texts do not count."""
    snippet = globals().get(getattr(answer, "__name__", ""))
    if getattr(snippet, "__module__", "") != __name__ or type(answer) is not type(snippet):
        return False
    # Compiled alone, as a notebook compiles a cell: beside its imports the same text gets another byte code.
    alone: dict[str, Any] = {}
    exec(inspect.getsource(snippet), alone)
    return _codes(alone[snippet.__name__]) == _codes(answer)


def _codes(thing: Any) -> Any:
    if inspect.isclass(thing):
        return {name: _codes(value) for name, value in vars(thing).items() if inspect.isfunction(value)}
    return _plain(thing.__code__)


def _plain(code: CodeType) -> tuple:
    constants = (c for c in code.co_consts if not isinstance(c, str))
    inner = tuple(_plain(c) if isinstance(c, CodeType) else c for c in constants)
    return code.co_code, code.co_names, code.co_varnames, inner
