"""Section 3, gpu_pitfalls: two places, one program.

Every exercise runs on the simulated GPU, on every machine, so that transfers, bytes and waits can be counted. Where
CUDA is available some run there as well (:func:`_on_cuda`).
"""

from __future__ import annotations

import copy
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils.gpu_snippets import is_untouched
from course_utils.meter import storage_bytes
from course_utils.observe import NotStarted, attempt, describe, exercise
from course_utils.simgpu import counting, events, is_enabled, simulated_gpu

SECTION = "gpu_pitfalls"


# ------------------------------------------------------------------------------------------------ inputs, and looking
def _host(case: Any, *shape: int, dtype: str = "float32") -> torch.Tensor:
    """A tensor on the host, whatever the device of the case."""
    return torch.from_numpy(case.array(*shape, dtype=dtype))


def _labels(case: Any, count: int, classes: int) -> torch.Tensor:
    return torch.from_numpy(case.rng.integers(0, classes, count))


@contextmanager
def _gpus(case: Any) -> Iterator[torch.device]:
    """Two simulated GPUs. Yields ``sim:0`` in the first case and ``sim:1`` in the second: a name written down is no device."""
    with simulated_gpu(count=2):
        yield torch.device("sim", case.index % 2)


def _placed(value: Any) -> str:
    """As ``describe``, with the device of a tensor: ``Tensor float32 (3, 5) on sim:0``."""
    return f"{describe(value)} on {value.device}" if isinstance(value, torch.Tensor) else describe(value)


def _numbers(tensors: Any) -> list[torch.Tensor]:
    return [t.detach().cpu().clone() for t in tensors]


def _devices(tensors: Any) -> str:
    """``cpu`` or ``cpu and sim:1``; where there are no tensors, that."""
    return " and ".join(sorted({str(t.device) for t in tensors})) or "no tensors"


def _outcome(function: Callable, *args: Any) -> str:
    return "an error" if attempt(function, *args).raised else "no error"


def _in_use(device: torch.device) -> int:
    return torch.accelerator.memory_allocated(device)


def _on_cuda(case: Any, work: Callable[[torch.device], Any]) -> list[torch.Tensor] | None:
    """What ``work`` gives on CUDA; None without CUDA, and while a notebook has the simulation on: it would be in between."""
    if case.device.type != "cuda" or is_enabled():
        return None
    return _numbers(work(case.device))


def _everywhere(seen: list[torch.Tensor], there: list[torch.Tensor] | None) -> list[torch.Tensor]:
    """``seen``, from the simulated GPU; what CUDA gave where that is something else."""
    if there is None:
        return seen
    same = len(there) == len(seen) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3)
        for a, b in zip(seen, there, strict=True)
    )
    return seen if same else there


def _not_as_handed_out(answer: Any) -> None:
    if is_untouched(answer):
        raise NotStarted


def _convolution(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    )


_PLACE = "The result is not on the device that was asked for, or of another kind."


# ------------------------------------------------------------------------------------------------ which device
@contextmanager
def _no_gpu() -> Iterator[None]:
    """A machine without an accelerator, as far as PyTorch's questions go."""
    with (
        mock.patch("torch.cuda.is_available", lambda: False),
        mock.patch("torch.cuda.device_count", lambda: 0),
        mock.patch("torch.accelerator.is_available", lambda: False),
        mock.patch("torch.accelerator.device_count", lambda: 0),
        mock.patch("torch.accelerator.current_accelerator", lambda check_available=False: None),
    ):
        yield


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=1,
    hints=(
        "torch.device('sim:7') is only a name: it raises nothing, even on a machine with one GPU.",
        "torch.accelerator knows every kind of GPU; torch.cuda only NVIDIA's. The sure test of a device is to use it.",
        "torch.zeros(1, device=device) raises if it cannot be used. current_accelerator() names the kind.",
    ),
)
def pick_device(answer, case, see):
    """Turn a wish (None, a name or a device) into a device that works, or raise an error at once."""

    def place(wish: Any) -> str:
        picked = answer(wish)
        return str(torch.zeros(1, device=picked).device) if isinstance(picked, torch.device) else describe(picked)

    last = case.integer(1, 6)
    with simulated_gpu(count=last + 1):
        see.form(
            answer("cpu"),
            why="A torch.device was asked for: it has .type and .index, a text has not.",
            fix="Return a torch.device, not its name as text.",
        )
        see(
            "no wish, with a GPU",
            place(None),
            why="There is a GPU, and the answer does not use it.",
            fix="torch.cuda sees one kind of GPU. Ask torch.accelerator instead.",
        )
        see(
            "a wish that can be met",
            {str(w): place(w) for w in ("cpu", "sim", f"sim:{last}", torch.device("sim", last), torch.device("cpu"))},
            why="The device that was asked for is there, and another one came back.",
            fix="A name and a torch.device both say what is wanted; keep the index.",
        )
        see(
            "a GPU that is not there",
            _outcome(answer, f"sim:{last + 1}"),
            why="The wish cannot be met, and nobody was told.",
            fix="torch.device checks names only. Make a small tensor there to see.",
        )
        see(
            "a kind that is not there",
            _outcome(answer, "hpu"),
            why="A silent way out: the program runs on something nobody asked for.",
            fix="Let the error out. Choose for people only if they wished for nothing.",
        )
    with _no_gpu():
        see(
            "no wish, without a GPU",
            place(None),
            why="Without a GPU the CPU is the device that works.",
            fix="Ask whether an accelerator is available before you name it.",
        )


class _Attention(nn.Module):
    """Something with a parameter, two kinds of buffer and a tensor that PyTorch does not know about."""

    def __init__(self, case: Any, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width + 1)
        self.register_buffer("mask", _host(case, width))
        self.register_buffer("positions", _host(case, 3, width), persistent=False)
        setattr(self, case.choice("scale", "anchors", "grid", "offsets", "priors"), _host(case, 1))
        self.name, self.width, self.unused = "attention", width, None


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "One parameter says where one parameter is. Which three kinds of tensor can a module hold?",
        "named_parameters and named_buffers go down the tree. named_modules gives every module; look into vars(module).",
        'A module\'s plain attributes are the tensors among vars(module).values(); their name is f"{prefix}.{key}".',
    ),
)
def placement(answer, case, see):
    """Tell of every parameter, buffer and forgotten plain tensor of a model on which device it lies."""
    narrow, wide = case.sizes(2, 3, 7)
    with _gpus(case) as device:
        model = nn.Sequential(*(nn.ReLU() for _ in range(case.integer(0, 3))), _Attention(case, narrow))
        model.append(nn.Sequential(_Attention(case, wide)))
        model.to(device)
        model[-1][0].mix.to(torch.device("sim", 1 - device.index))
        setattr(model, case.choice("shift", "bias", "origin"), _host(case, 2).to(device))
        found = answer(model)
        see.form(
            found if not isinstance(found, dict) else "dictionary",
            why="A dictionary was asked for: name -> device, as text.",
            fix="Return {name: str(tensor.device), ...}.",
        )
        table = {str(k): str(v) for k, v in found.items()}
        parameters = {n for n, _ in model.named_parameters()}
        buffers = {n for n, _ in model.named_buffers()}
        why_fix = {
            "why": "A tensor of this kind is missing, or on another device in truth.",
            "fix": "Walk down the whole tree; the devices may differ from layer to layer.",
        }
        see("parameters", {k: table.get(k, "missing") for k in sorted(parameters)}, **why_fix)
        see("buffers", {k: table.get(k, "missing") for k in sorted(buffers)}, **why_fix)
        see(
            "forgotten tensors",
            {k: v for k, v in sorted(table.items()) if k not in parameters | buffers},
            why="A plain attribute that is a tensor is missing, or has another name.",
            fix='vars(module) of every module; "scale" of model[2] is called "2.scale".',
        )


@exercise(
    section=SECTION,
    points=2,
    minutes=6,
    difficulty=1,
    hints=(
        "A tensor in an attribute is invisible to .to(): no parameter, no buffer.",
        "register_buffer makes it a part of the module that moves, is saved, and is not trained.",
        "Give the buffers the shape (C, 1, 1), then (x - self.mean) / self.std works on (N, C, H, W).",
    ),
)
def Normalize(answer, case, see):
    """A module that subtracts the mean of each channel and divides by its std, wherever it is moved to."""
    n, height, width = case.sizes(3, 3, 8)
    channels = case.integer(2, 4)
    mean, std = case.rng.normal(size=channels), case.rng.uniform(0.5, 2, size=channels)
    if case.index == 0:
        mean, std = mean.tolist(), std.tolist()
    else:
        mean, std = torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
    images = _host(case, n, channels, height, width)

    def work(device: torch.device) -> list[torch.Tensor]:
        return [answer(mean, std).to(device)(images.to(device))]

    real = _on_cuda(case, work)
    with _gpus(case) as device:
        on_host = answer(mean, std)(images.clone())
        layer = answer(mean, std).to(device)
        there = images.to(device)
        before = there.clone()
        result = layer(there)
        see.form(
            _placed(result),
            why=_PLACE,
            fix="Everything in forward has to be float32, and on the input's device.",
        )
        see(
            "values",
            _everywhere([result.cpu()], real)[0],
            atol=1e-5,
            why="Not (x - mean) / std, channel by channel.",
            fix="The channels are axis 1: give mean and std the shape (C, 1, 1).",
        )
        see(
            "values on the host", on_host, atol=1e-5, why="On the host it computes something else.", fix="No .to there."
        )
        see(
            "input left as it was",
            torch.equal(before, there),
            why="The images were changed in place.",
            fix="Use - and /, not -= and /=.",
        )
        see(
            "nothing to train",
            [name for name, _ in layer.named_parameters()],
            share=0.25,
            why="mean and std became parameters: an optimizer would take them.",
            fix="A buffer is what moves along and is not trained.",
        )
        with counting() as cost:
            layer(there)
        see(
            "transfers in forward",
            cost.transfers,
            at_most=True,
            why="Every call sends the constants to the device again, and waits.",
            fix="Let them live where the module lives: register them once.",
        )
        see(
            "dtype after .double()",
            str(answer(mean, std).double()(images.double()).dtype),
            share=0.25,
            why="The constants did not follow the module to float64.",
            fix="What is registered follows .to(), .double() and .half() alike.",
        )


# ------------------------------------------------------------------------------------------------ moving
_Sample = namedtuple("_Sample", "image label")


@exercise(
    section=SECTION,
    points=3,
    minutes=10,
    difficulty=2,
    hints=(
        "A batch is a tensor, or a container of batches, or something else: three cases, and one calls itself.",
        "A named tuple is a tuple whose class takes its fields one by one: type(batch)(*fields).",
        "hasattr(batch, '_fields') tells a named tuple. What is neither tensor nor container goes back as it came.",
    ),
)
def to_device(answer, case, see):
    """Move all tensors of a nested batch, and copy nothing that is already there."""
    n, width, other = case.sizes(3, 3, 7)
    image, label, boxes = _host(case, n, width), _labels(case, n, 5), _host(case, other, 4)

    def batch(device: torch.device) -> dict[str, Any]:
        return {
            "image": image,
            "target": {"label": label, "boxes": [boxes, boxes[:1].clone()]},
            "pair": (image[:2], torch.tensor(case.index)),
            "sample": _Sample(image[1:], "a name"),
            "there": (image + 1).to(device),
            "path": f"image_{n}.png",
            "index": n,
            "nothing": None,
            "flags": [],
        }

    def leaves(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from leaves(item)
        else:
            yield value

    def form(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(k): form(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__}({', '.join(str(form(v)) for v in value)})"
        return _placed(value) if isinstance(value, torch.Tensor) else repr(value)

    def tensors(value: Any) -> list[torch.Tensor]:
        return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]

    real = _on_cuda(case, lambda cuda: tensors(answer(batch(cuda), cuda)))
    with _gpus(case) as device:
        given = batch(device)
        structure = form(given)
        there = given["there"]
        see(
            "a tensor alone",
            _placed(answer(image, device)),
            why="A batch may be a single tensor.",
            fix="Treat the tensor first, containers after it.",
        )
        refused = "positional argument" in attempt(answer, _Sample(image, label), device).message
        see(
            "a named tuple",
            "its class refuses the fields" if refused else "no complaint of its class",
            why="A named tuple's class takes its fields one by one, not as one list.",
            fix="Tell it by its _fields; then unpack the fields, or use its _make.",
        )
        if refused:
            return  # the batch has a named tuple inside: the same error, in harder words
        with counting() as cost:
            moved = answer(given, device)
        see(
            "the form of the batch",
            form(moved),
            why="Same containers, same keys, every tensor on the device: not so here.",
            fix="Go down into dict, list and tuple; rebuild each as what it was.",
        )
        see(
            "values",
            _everywhere(_numbers(tensors(moved)), real),
            why="The numbers must not change on the way.",
            fix="Move each tensor as it is.",
        )
        see(
            "the batch given is left as it was",
            form(given) == structure,
            why="The caller's own containers were filled with other tensors.",
            fix="Build new containers instead of writing into the old ones.",
        )
        see(
            "what is there stays",
            isinstance(moved, dict) and moved.get("there") is there,
            share=0.2,
            why="A tensor that was on the device already came back as a copy.",
            fix="tensor.to(device) returns the tensor itself where it can.",
        )
        see(
            "transfers",
            cost.transfers,
            at_most=True,
            share=0.3,
            why="More copies than tensors that had to move.",
            fix="One .to(device) per tensor; no way around by the CPU.",
        )


def _adam_states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [v for s in optimizer.state.values() for k, v in sorted(s.items()) if torch.is_tensor(v) and k != "step"]


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    cases=3,
    hints=(
        "optimizer.state is a dictionary: parameter -> its own dictionary of tensors and other things.",
        "Adam's step counter is a tensor as well, and lives on the host on purpose: the host reads it in every step.",
        "Write the moved tensors back into the same dictionaries, and leave 'step' out.",
    ),
)
def optimizer_to(answer, case, see):
    """Bring the state of an optimizer to a device, as CUDA would have it: the step counter stays on the host."""
    n, width, out = case.sizes(3, 3, 8)
    kind = (
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.05, amsgrad=True),
    )[case.index % 3]
    x = _host(case, n, width)
    model = nn.Linear(width, out)
    optimizer = kind(model.parameters())

    def step(device: torch.device) -> None:
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()

    with _gpus(case) as device:
        step(torch.device("cpu"))
        before = _numbers(_adam_states(optimizer))
        model.to(device)
        result = answer(optimizer, device)
        see.form(
            "None" if result is None or result is optimizer else result,
            why="The optimizer itself is to be changed.",
            fix="Return nothing.",
        )
        see(
            "devices of the state",
            _devices(_adam_states(optimizer)),
            why="Averages and momenta have to lie where their parameters lie.",
            fix="Look at every tensor in optimizer.state[parameter], and store it back.",
        )
        see(
            "values of the state",
            [
                "as before" if torch.equal(a, b) else "another"
                for a, b in zip(before, _numbers(_adam_states(optimizer)), strict=False)
            ],
            why="The state has other numbers, or fewer, than before: the past is lost.",
            fix="Move what is there; do not start a new optimizer state.",
        )
        model(x.to(device)).square().mean().backward()
        with counting() as cost:
            optimizer.step()
        see(
            "waits in the next step",
            cost.synchronisations,
            at_most=True,
            why="The step counter went to the device; the host waits for it in each step.",
            fix='Leave the tensor called "step" where the optimizer made it.',
        )
        step(device)
        see(
            "parameters three steps on",
            _numbers(model.parameters()),
            atol=1e-6,
            why="Training goes on in another way than it would have without the move.",
            fix="Compare optimizer.state before and after, entry by entry.",
        )


# ------------------------------------------------------------------------------------------------ seven disguises
def _computed_there(see: Any, cost: Any, fewest: int) -> None:
    """Whether the device did the work: at least ``fewest`` kernels ran there."""
    see(
        "where it was computed",
        "on the device" if cost.kernels >= fewest else "on the host",
        why="The host computed it, and only the result went to the device.",
        fix="Move what goes in, and let the device do the work.",
    )


def _mend(hints: tuple[str, ...], minutes: int = 5, difficulty: int = 1) -> Callable:
    return exercise(section=SECTION, points=1, minutes=minutes, difficulty=difficulty, hints=hints)


@_mend(
    (
        "Print images.device before and after the second line of the function.",
        "A module moves in place. What does a tensor's .to() do with its result here?",
    )
)
def mend_1(answer, case, see):
    """Two things are sent to the device, and one of them never arrives."""
    _not_as_handed_out(answer)
    n, channels, size = case.sizes(3, 2, 6)
    model, images = _convolution(channels, 5), _host(case, n, channels, size + 3, size + 4)
    with _gpus(case) as device:
        reference = copy.deepcopy(model)(images).detach()
        with counting() as cost:
            result = answer(model, images, device)
        see.form(_placed(result), why=_PLACE, fix="Which object does images.to(device) return?")
        see(
            "the model's scores",
            torch.allclose(result.cpu(), reference, atol=1e-5),
            why="These are not the scores of this model for these images.",
            fix="Change where things lie and nothing else.",
        )
        see(
            "where the model ends",
            _devices(model.parameters()),
            why="The error is gone because the model works somewhere else.",
            fix="Both go to the device, the model and the images.",
        )
        _computed_there(see, cost, 4)


@_mend(
    (
        "Everything is on one device here. Read the two types in the message again.",
        "NumPy computes in float64, models in float32: convert the images, before they travel.",
    )
)
def mend_2(answer, case, see):
    """The message looks like a device error. Both sides are on the device."""
    _not_as_handed_out(answer)
    n, channels, size = case.sizes(3, 2, 6)
    model, array = _convolution(channels, 5), case.array(n, channels, size + 3, size + 4, dtype="float64")
    with _gpus(case) as device:
        reference = copy.deepcopy(model)(torch.from_numpy(array).float()).detach()
        with counting() as cost:
            result = answer(model, array, device)
        see.form(
            _placed(result),
            why="The scores should be float32, on the device.",
            fix="float32 is enough for images: convert them, not the model.",
        )
        see(
            "the model's scores",
            torch.allclose(result.cpu(), reference, atol=1e-5),
            why="These are not the scores of this model for these images.",
            fix="Change the dtype and nothing else.",
        )
        see(
            "dtype of the model",
            sorted({str(p.dtype) for p in model.parameters()}),
            why="The whole model was converted, and stays so for everyone else.",
            fix="Convert the images: they come from NumPy, the model does not.",
        )
        _computed_there(see, cost, 4)
        see(
            "bytes to the device",
            cost.h2d_bytes,
            at_most=True,
            share=0.25,
            why="float64 images travelled: twice the bytes that are needed.",
            fix="Convert on the host, before the images travel.",
        )


@_mend(
    (
        "Which tensor in this function is made here, and where is it made?",
        "linspace, arange, zeros and their kind take device=...; the input knows the right one.",
    )
)
def mend_3(answer, case, see):
    """The inputs are all on the device, and still two devices meet."""
    _not_as_handed_out(answer)
    n, length, channels = case.sizes(3, 3, 7)
    features = _host(case, n, length, channels)
    with _gpus(case) as device:
        there = features.to(device)
        with counting() as cost:
            result = answer(there)
        see.form(_placed(result), why=_PLACE, fix="Make the ramp where the features are.")
        see("values", result.cpu(), atol=1e-6, why="Other weights than from 1 down to 0.", fix="Keep the formula.")
        on_host = answer(features)
        see(
            "features on the host",
            _placed(on_host),
            why="Features on the CPU give an error or a result elsewhere.",
            fix="Name no device: the features know theirs.",
        )
        see(
            "transfers",
            cost.transfers,
            at_most=True,
            share=0.25,
            why="The ramp, or the features, travel in every call.",
            fix="linspace can make its result on any device: ask the features for theirs.",
        )


@_mend(
    (
        "Print len(list(model.parameters())).",
        "A Python list hides its layers from .to(), parameters() and state_dict(). nn has a list that does not.",
    )
)
def mend_4(answer, case, see):
    """The model was moved, says the code. Its layers were not."""
    _not_as_handed_out(answer)
    sizes, n = list(case.sizes(4, 3, 8)), case.integer(2, 5)
    with _gpus(case) as device:
        model = answer(sizes)
        see.form(
            "Module" if isinstance(model, nn.Module) else model,
            why="A model was asked for.",
            fix="Return the model that you make.",
        )
        model.to(device)
        see(
            "sizes of the parameters",
            sorted(str(tuple(p.shape)) for p in model.parameters()),
            why="parameters() does not see the layers: no .to(), no optimizer does.",
            fix="Keep layers in something that registers them.",
        )
        see(
            "entries of the state_dict",
            len(model.state_dict()),
            why="In a saved file layers would be missing, or there twice.",
            fix="Keep layers in something that registers them, once.",
        )
        see("devices after .to()", _devices(model.parameters()), why="A layer stayed behind.", fix="Register it.")
        with torch.no_grad():
            for p in model.parameters():  # the same numbers for whoever made the layers, in whatever order
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
        result = model(_host(case, n, sizes[0]).to(device))
        see("output", _placed(result), why=_PLACE, fix="Is every layer on the device that x is on?")
        see(
            "values",
            result.cpu(),
            rtol=1e-4,
            atol=1e-4,
            why="Not a ReLU between each two layers and none at the end.",
            fix="Change how layers are kept, not what forward computes.",
        )


@_mend(
    (
        "NumPy cannot read the memory of a GPU. Who brings the numbers back?",
        ".cpu() copies to the host. What is the smallest thing that you can send: scores or classes?",
    )
)
def mend_5(answer, case, see):
    """The predictions are wanted as a NumPy array, and NumPy cannot see the GPU."""
    _not_as_handed_out(answer)
    channels, size = case.sizes(2, 2, 5)
    model = _convolution(channels, 7)
    batches = [_host(case, n, channels, size + 3, size + 4) for n in (case.integer(5, 9), 4, 3)]
    with _gpus(case) as device:
        reference = copy.deepcopy(model)
        expected = torch.cat([reference(b).argmax(1) for b in batches]).numpy()
        with counting() as cost:
            result = answer(model, batches, device)
        see.form(
            result,
            why="One integer array of all predictions was asked for.",
            fix="np.concatenate makes one array of many arrays.",
        )
        see(
            "predictions",
            bool(np.array_equal(result, expected)),
            why="These are not the classes with the highest score.",
            fix="Change how the result comes to the host and nothing else.",
        )
        see(
            "where the model ends",
            _devices(model.parameters()),
            why="The error is gone because the GPU is not used any more.",
            fix="Compute on the device; bring the predictions back.",
        )
        _computed_there(see, cost, 4 * len(batches))
        see(
            "bytes to the host",
            cost.d2h_bytes,
            at_most=True,
            share=0.25,
            why="More than the classes came back, such as all scores.",
            fix="Take the argmax on the device, then bring 8 bytes per image back.",
        )
        see(
            "waits for the device",
            cost.synchronisations,
            at_most=True,
            share=0.25,
            why="The host waits for every single number.",
            fix="Bring a whole batch back at once.",
        )


@_mend(
    (
        "No error here. Compare the weights of the copy before and after the call.",
        "Whose parameters does the optimizer hold: those of the model or those of the copy?",
    ),
    difficulty=2,
)
def mend_6(answer, case, see):
    """Nothing raises, the loss is computed on the device, and the model does not learn."""
    _not_as_handed_out(answer)
    width, n = case.sizes(2, 4, 9)
    model = nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 5))
    batches = [(_host(case, n + i, width), _labels(case, n + i, 5)) for i in range(4)]
    before = _numbers(model.parameters())
    with _gpus(case) as device:
        with counting() as cost:
            trained = answer(model, batches, device)
        see.form(
            "Sequential" if isinstance(trained, nn.Sequential) else trained,
            why="The trained copy was asked for.",
            fix="Return it.",
        )
        see("where the copy is", _devices(trained.parameters()), why="Not on the device.", fix="Move the copy.")
        after = _numbers(trained.parameters())
        see(
            "the copy has learnt",
            any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)),
            why="The weights are as they were: the optimizer steps something else.",
            fix="An optimizer changes the very parameters that it was given.",
        )
        see(
            "the model stays as it was",
            trained is not model and all(map(torch.equal, before, (p.detach().cpu() for p in model.parameters()))),
            why="The caller's own model was trained.",
            fix="Keep the copy; give the optimizer the copy's parameters.",
        )
        see(
            "where the model stays",
            _devices(model.parameters()),
            why="The caller's model has been moved to the device.",
            fix="Move the copy alone.",
        )
        see(
            "weights of the copy",
            after,
            atol=1e-5,
            why="It learnt, but not as one SGD with momentum over all batches does.",
            fix="One optimizer, made once, before the loop; leave its settings.",
        )
        _computed_there(see, cost, 4 * len(batches))


@_mend(
    (
        "Print weights.is_leaf, and weights.grad after backward.",
        ".to(device) of a tensor that requires a gradient is an operation: its result is no leaf.",
    ),
    difficulty=2,
)
def mend_7(answer, case, see):
    """On the CPU it works. On the GPU the weights have no gradient."""
    _not_as_handed_out(answer)
    n, width = case.sizes(2, 4, 9)
    x, y = _host(case, n + 5, width), _host(case, n + 5)
    with _gpus(case) as device:
        with counting() as cost:
            result = answer(x, y, device)
        see.form(_placed(result), why=_PLACE, fix="Weights, x and y all belong on the device.")
        see(
            "the result is free of the graph",
            (result.requires_grad, result.grad_fn is None),
            why="The result still belongs to autograd.",
            fix="Leave the detach() at the end.",
        )
        see(
            "the weights have changed",
            bool(result.any()),
            why="All weights are zero, as at the start: no step was taken.",
            fix="A .grad that is None? Only leaf tensors get one.",
        )
        see(
            "weights",
            result.cpu(),
            atol=1e-5,
            why="Not five steps of gradient descent from zero.",
            fix="Each step uses its own gradient only: look at what .grad holds.",
        )
        see(
            "weights on the host",
            answer(x, y, torch.device("cpu")),
            atol=1e-5,
            why="With device cpu it computes something else.",
            fix="The same lines have to work for both devices.",
        )
        _computed_there(see, cost, 20)


# ------------------------------------------------------------------------------------------------ training and loading
class _Mark:
    """Something that a weak reference can watch."""


@exercise(
    section=SECTION,
    points=4,
    minutes=20,
    difficulty=3,
    hints=(
        "Count per batch: which copies, of how many bytes, and where does the host wait?",
        "Send uint8 and convert on the device: a quarter of the bytes. non_blocking=True from pinned memory: no wait.",
        "Sum loss.detach() * len(labels) on the device; one .item() at the end of the epoch is the only wait.",
    ),
)
def train_lean(answer, case, see):
    """Train one epoch with the fewest transfers, and wait for the device at most once."""
    batch, height, width = case.sizes(3, 12, 16)
    count, classes = 3 * batch + case.integer(1, batch - 2), case.integer(4, 7)
    images = _host(case, count, 3, height, width, dtype="uint8")
    labels = _labels(case, count, classes)
    start = _convolution(3, classes)

    def train(device: torch.device) -> tuple[nn.Module, Any, int]:
        model = copy.deepcopy(start).to(device).eval()
        graphs, most = [], 0

        def look(module: nn.Module, inputs: Any, scores: torch.Tensor) -> None:
            nonlocal most
            most = max(most, sum(graph() is not None for graph in graphs))
            if scores.grad_fn is not None:
                mark = _Mark()
                scores.grad_fn.metadata["mark"] = mark  # lives as long as the node of the graph does
                graphs.append(weakref.ref(mark))

        model.register_forward_hook(look)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(TensorDataset(images, labels), batch, pin_memory=device.type != "cpu")
        torch.accelerator.reset_peak_memory_stats(device)
        loss = answer(model, loader, optimizer, device)
        return model, loss, most

    real = _on_cuda(case, lambda cuda: train(cuda)[0].parameters())
    with _gpus(case) as device:
        train(device)  # twice: the first call may import
        with counting() as cost:
            model, loss, graphs = train(device)
            peak = torch.accelerator.max_memory_allocated(device)
        see.form(
            "float" if isinstance(loss, float) else loss,
            why="The mean loss of the epoch was asked for as a Python float.",
            fix="item() turns a tensor of one number into a Python number.",
        )
        see(
            "weights after the epoch",
            _everywhere(_numbers(model.parameters()), real),
            atol=1e-5,
            why="The weights differ from plain training on images in [0, 1].",
            fix="float(), / 255, zero_grad, backward and step, once for every batch.",
        )
        see(
            "mean loss",
            loss,
            rtol=1e-4,
            why="Not the mean over all samples.",
            fix="Weight each batch by its size: the last one is smaller.",
        )
        see(
            "transfers",
            cost.transfers,
            at_most=True,
            share=0.2,
            allowance=1,  # the mean loss may come back as a copy
            why="More copies than images and labels of each batch.",
            fix="Send each tensor once; keep the running loss on the device.",
        )
        see(
            "bytes to the device",
            cost.h2d_bytes,
            at_most=True,
            share=0.2,
            allowance=64,
            why="The images travelled as float32: four times the bytes of uint8.",
            fix="Send the bytes as they are; float() and / 255 on the device.",
        )
        model_moves = len(list(model.parameters()))
        see(
            "waits for the device",
            cost.synchronisations - model_moves,
            at_most=True,
            share=0.3,
            why="The host waited more than once: item(), print or a blocking copy.",
            fix="non_blocking=True, and read the loss once, after the loop.",
        )
        see(
            "memory at the peak",
            peak,
            at_most=True,
            share=0.2,
            slack=0.1,
            allowance=4096,
            why="More than one batch, or the graphs of old losses, were kept alive.",
            fix="detach() what you keep; let each batch go before the next.",
        )
        see(
            "graphs alive when a batch comes",
            graphs,
            at_most=True,
            share=0.2,
            why="The running loss holds the graph of every batch before.",
            fix="Only backward() needs the graph: detach() what you add up.",
        )
        see(
            "mode of the model",
            model.training,
            share=0.1,
            why="The model came in evaluation mode and was trained in it.",
            fix="model.train() first.",
        )


_code_ran: list[str] = []


def _note_that_code_ran(what: str) -> dict:
    _code_ran.append(what)
    return {}


class _Code:
    """Pickles as a call: loading it runs code."""

    def __reduce__(self) -> tuple:
        return _note_that_code_ran, ("a file ran code",)


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "A file remembers the device of each tensor. What if that device is not here?",
        "map_location='cpu' reads everything on the host; weights_only=True reads tensors and refuses code.",
        "Model first, then move it, then the optimizer: load_state_dict puts state beside the parameters.",
    ),
)
def load_anywhere(answer, case, see):
    """Load a checkpoint that was written on another machine's GPU, and go on training on this device."""
    n, width, out = case.sizes(3, 30, 40)
    x, epoch = _host(case, n, width), case.integer(2, 90)

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(width, out)
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()

    with TemporaryDirectory() as folder:
        path, bad = Path(folder) / "checkpoint.pt", Path(folder) / "with_code.pt"
        with simulated_gpu(count=4):
            there = torch.device("sim:3")
            model, optimizer = make()
            model.to(there)
            step(model, optimizer, there)
            step(model, optimizer, there)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, path)
            torch.save({**state, "note": _Code()}, bad)
        with simulated_gpu() as gpu:
            device = gpu if case.index == 0 else torch.device("cpu")
            model, optimizer = make()
            result = answer(path, model, optimizer, device)
            peak = torch.accelerator.max_memory_allocated(gpu)
            see.form(result, why="The number of the epoch was asked for.", fix='Return checkpoint["epoch"].')
            see("epoch", result, why="Another number than the file's.", fix='Return checkpoint["epoch"].')
            see(
                "where the model is",
                _devices(model.parameters()),
                why="The model is not on the device that was asked for.",
                fix="model.to(device), after or before its state is loaded.",
            )
            see(
                "where the state is",
                _devices(_adam_states(optimizer)),
                why="The optimizer's state is missing, or not where the parameters are.",
                fix="Load it once the model is on the device: it follows the parameters.",
            )
            step(model, optimizer, device)
            see(
                "weights one step on",
                _numbers(model.parameters()),
                atol=1e-6,
                why="Training does not go on where it stopped.",
                fix="Both states have to be loaded, into the model and optimizer given.",
            )
            see(
                "memory at the peak",
                peak,
                at_most=True,
                share=0.2,
                slack=0.2,
                why="The file's tensors and the model's lay on the device together.",
                fix='map_location="cpu": only what is used goes to the device.',
            )
            _code_ran.clear()
            attempt(answer, bad, *make(), device)
            see(
                "code in a file",
                "the code ran" if _code_ran else "no code ran",
                why="The file held code, and loading it ran the code.",
                fix="A checkpoint is data: weights_only=True refuses anything else.",
            )
            _code_ran.clear()


# ------------------------------------------------------------------------------------------------ asynchronous copies
@exercise(
    section=SECTION,
    points=4,
    minutes=20,
    difficulty=3,
    hints=(
        "A copy that nobody waits for reads its source later. What may you do with the source until then?",
        "Two pinned buffers take turns: fill one while the copy from the other is on its way.",
        "After each copy record an event of its own, and wait for that event before you refill the buffer.",
    ),
)
def staged_copy(answer, case, see):
    """Send batches through at most two pinned buffers, without waiting for each, and without sending wrong numbers."""
    height, width = case.sizes(2, 40, 60)
    sizes = (16, 16, 16, 16, 16, 16, 7) if case.index == 0 else (12, 12, 12, 12, 12, 5)
    batches = [_host(case, n, height, width) for n in sizes]
    if case.index:
        batches[1] = _host(case, height, 12, width).transpose(0, 1)
    before = [b.clone() for b in batches]
    largest = max(b.nbytes for b in batches)
    with _gpus(case) as device:
        answer(batches[:2], device)
        start = len(events())
        with counting() as cost, see.memory() as used:
            result = list(answer(iter(batches), device))
            on_device = storage_bytes(*result) if all(isinstance(r, torch.Tensor) for r in result) else 0
        queued = [e for e in events()[start:] if e.what == "copy queued" and e.detail == "h2d"]
        see.form(
            f"{len(result)} tensors: " + ", ".join(dict.fromkeys(_placed(r) for r in result)),
            why="One tensor on the device for every batch was asked for, in order.",
            fix="Collect what .to(device, non_blocking=True) returns.",
        )
        see(
            "values",
            {
                f"batch {i}": "right" if torch.equal(r.cpu(), b) else "other numbers"
                for i, (r, b) in enumerate(zip(result, before, strict=False))
            },
            why="A batch arrived with numbers of another: its buffer was refilled early.",
            fix="Wait for the copy out of a buffer before you write into it again.",
        )
        see(
            "batches left as they were",
            all(map(torch.equal, before, batches)),
            why="The caller's batches were changed.",
            fix="Only read them.",
        )
        see(
            "copies that nobody waits for",
            len(queued),
            share=0.4,
            why="A copy is asynchronous only from pinned memory, non_blocking=True.",
            fix="Check both: buffer.is_pinned(), and the argument of to().",
        )
        see(
            "waits for the device",
            cost.synchronisations,
            at_most=True,
            share=0.3,
            why="The host waits for each copy right away: nothing overlaps.",
            fix="With two buffers you wait for the one before the last.",
        )
        see(
            "pinned bytes",
            used.peak - on_device,
            at_most=True,
            share=0.3,
            allowance=largest // 4,
            why="More pinned memory than two batches at a time.",
            fix="Pinned memory cannot be swapped out: reuse two buffers.",
        )


# ------------------------------------------------------------------------------------------------ leaks
@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=1,
    hints=(
        "What does one loss hold, as long as nobody calls backward?",
        "torch.no_grad() keeps the graph from being built; item() keeps a number, not a tensor.",
        "was = model.training before, model.train(was) after: the caller's mode comes back.",
    ),
)
def validation_losses(answer, case, see):
    """Close the leak: the losses of all batches, and no byte of the graphs."""
    _not_as_handed_out(answer)
    width, hidden = case.sizes(2, 24, 40)
    model = nn.Sequential(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.5))
    model.append(nn.Linear(hidden, 5))
    if case.index:
        model.eval()
    loader = [(_host(case, n, width), _labels(case, n, 5)) for n in (64, 60, 56, 31)]
    with _gpus(case) as device:
        model.to(device)
        statistics = _numbers(model.buffers())
        in_use = _in_use(device)
        torch.accelerator.reset_peak_memory_stats(device)
        losses = answer(model, loader, F.cross_entropy, device)
        kept = _in_use(device) - in_use
        peak = torch.accelerator.max_memory_allocated(device) - in_use
        see.form(
            f"a sequence of {len(losses)} losses" if isinstance(losses, (list, tuple, torch.Tensor)) else losses,
            why="One loss for every batch was asked for.",
            fix="Return the list.",
        )
        see(
            "losses",
            [float(value) for value in losses],
            rtol=1e-4,
            why="Not the losses of the batches in evaluation mode.",
            fix="model.eval() for the time of the loop; one loss per batch.",
        )
        see(
            "mode afterwards",
            model.training,
            share=0.2,
            why="The mode that the model came in was not given back.",
            fix="Remember model.training before, and set it again afterwards.",
        )
        see(
            "statistics of BatchNorm",
            all(map(torch.equal, statistics, _numbers(model.buffers()))),
            why="Validation has changed what the model knows of the data.",
            fix="model.eval() before the first batch.",
        )
        see(
            "bytes kept on the device",
            kept,
            at_most=True,
            share=0.4,
            allowance=512 * len(loader),  # a loss as a tensor of its own costs one block
            why="Each loss holds its graph, and the graph all activations.",
            fix="Keep numbers: item(), or detach() at least.",
        )
        see(
            "bytes at the peak",
            peak,
            at_most=True,
            share=0.3,
            slack=0.1,
            allowance=512 * len(loader),
            why="Graphs were built, though nobody will call backward.",
            fix="Which context builds no graph?",
        )


@exercise(
    section=SECTION,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "The output of a layer holds the graph; detach() lets that go. Where are its bytes then?",
        "A copy on the host costs the device nothing, and no later in-place step can change it.",
        "register_forward_hook returns a handle; close() has to call its remove().",
    ),
)
def FeatureCache(answer, case, see):
    """Close the leak: keep a layer's output for looking at, and nothing on the device."""
    _not_as_handed_out(answer)
    n, width, hidden = case.sizes(3, 24, 40)
    layer = nn.Linear(width, hidden)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), layer, nn.ReLU(inplace=True), nn.Linear(hidden, 3))
    x = _host(case, n, width)
    with _gpus(case) as device:
        model.to(device)
        there = x.to(device)
        expected = layer(model[1](model[0](there))).detach().cpu()
        in_use = _in_use(device)
        handle = layer.register_forward_hook(lambda *_: None)  # somebody else's
        cache = answer(layer)
        model(there)
        model(there)
        kept = _in_use(device) - in_use
        latest = cache.latest
        see.form(
            describe(latest),
            why="After a forward pass, latest is the layer's output.",
            fix="Keep the attribute's name: cache.latest.",
        )
        see(
            "the graph is let go",
            not latest.requires_grad,
            why="What is kept holds the graph, and the graph all that was computed.",
            fix="detach() what you keep.",
        )
        see(
            "values",
            bool(torch.allclose(latest.cpu(), expected, atol=1e-6)),
            why="Not what the layer returned: a later in-place layer overwrote it.",
            fix="Keep a copy, not a second name for the same memory.",
        )
        see(
            "bytes kept on the device",
            kept,
            at_most=True,
            why="The kept output stays on the device until the next forward pass.",
            fix="Bring it to the host: looking at it needs no GPU.",
        )
        out = model(there)
        out.sum().backward()
        see(
            "training is not disturbed",
            model[0].weight.grad is not None and str(out.device),
            why="The hook changed what the layer returns, or cut the graph for all.",
            fix="A forward hook that returns nothing leaves the output as it is.",
        )
        cache.close()
        model(there)
        see(
            "after close()",
            (describe(cache.latest), len(layer._forward_hooks.keys() - {handle.id})),
            why="The hook is still on the layer, or the last output still kept.",
            fix="Remove the hook by its handle, and set latest to None.",
        )
        see(
            "hooks of others",
            handle.id in layer._forward_hooks,
            why="close() has removed a hook that somebody else had registered.",
            fix="Remove your own alone, by the handle that registering it returned.",
        )
        again = answer(layer)
        again.close()
        again.close()
    model.cpu()
    expected = layer(model[1](model[0](x))).detach()
    cache = answer(layer)
    model(x)
    see(
        "values on the host",
        isinstance(cache.latest, torch.Tensor) and bool(torch.allclose(cache.latest, expected, atol=1e-6)),
        share=0.4,
        why="On the host, cpu() copies nothing: the in-place layer overwrote latest.",
        fix="Ask for a copy, wherever the output lies.",
    )


@exercise(
    section=SECTION,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "self.total + loss is one more node of a graph. How long is the chain after 1000 batches?",
        "detach() before you add. item() would do as well, and wait for the device in every batch.",
        "loss.detach() shares the loss's memory: total += writes into it. loss.detach() * n is a tensor of its own.",
    ),
)
def LossHistory(answer, case, see):
    """Close the leak: a running mean that holds no graph and makes the host wait once."""
    _not_as_handed_out(answer)
    width = case.integer(20, 40)
    model = nn.Linear(width, 1)
    sizes = [case.integer(2, 9) for _ in range(40)]
    batches = [_host(case, n, width) for n in sizes]
    with _gpus(case) as device:
        model.to(device)
        history, untouched = answer(), True
        batches = [b.to(device) for b in batches]
        in_use = _in_use(device)
        with counting() as cost:
            for n, x in zip(sizes, batches, strict=True):
                loss = model(x).square().mean()
                history.add(loss, n)
        kept = _in_use(device) - in_use
        del loss
        loss = model(batches[0]).square().mean()
        value = loss.item()
        other = answer()
        other.add(loss, 3)
        other.add(loss, 2)
        untouched = loss.item() == value and loss.requires_grad
        mean = history.mean()
        see.form(
            "float" if isinstance(mean, float) else mean,
            why="mean() is asked for a Python float.",
            fix="item() at the end.",
        )
        see(
            "mean",
            mean,
            rtol=1e-4,
            why="Not the mean per sample.",
            fix="Weight every batch by its n, and divide by the number of samples.",
        )
        see("asked again", history.mean(), rtol=1e-4, why="mean() changed the history.", fix="Only read in mean().")
        see(
            "the loss is left as it was",
            untouched,
            why="Adding has changed the caller's loss, in place.",
            fix="detach() shares memory: make a tensor of your own before +=.",
        )
        see(
            "bytes kept on the device",
            kept,
            at_most=True,
            share=0.6,
            allowance=1024,
            why="Each batch leaves something behind: a graph, or one more tensor.",
            fix="Keep one running total, out of the graph.",
        )
        see(
            "waits in add()",
            cost.synchronisations,
            at_most=True,
            share=0.3,
            why="Every add() makes the host wait for the device.",
            fix="Add on the device; read the number in mean() alone.",
        )


# ------------------------------------------------------------------------------------------------ memory
_OPTIMIZERS: tuple[tuple[str, type[torch.optim.Optimizer], dict[str, Any]], ...] = (
    ("SGD", torch.optim.SGD, {"lr": 0.1}),
    ("SGD with momentum", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    ("Adam", torch.optim.Adam, {}),
    ("AdamW with amsgrad", torch.optim.AdamW, {"amsgrad": True}),
    ("RMSprop, centered", torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
)


class _Tied(nn.Module):
    """A model whose first and last layer share a weight, with a frozen layer, a half-precision one, and buffers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.encode = nn.Linear(width, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.frozen = nn.Linear(hidden, hidden).requires_grad_(False)
        self.half = nn.Linear(hidden, 3).to(torch.bfloat16)
        self.decode = nn.Linear(width, hidden, bias=False)
        self.decode.weight = self.encode.weight


@exercise(
    section=SECTION,
    points=4,
    minutes=18,
    difficulty=3,
    hints=(
        "Which tensors exist once per parameter? Which only where it is trained?",
        "parameters() gives tied weights once. Which tensors an optimizer makes, only the optimizer knows: let it step once.",
        "Let it step on stand-ins: nn.Parameter(torch.empty_like(p, device='meta')), with a gradient, take no memory.",
    ),
)
def training_bytes(answer, case, see):
    """Predict the bytes of parameters, gradients and optimizer state of a training step, exactly."""
    width, hidden = case.sizes(2, 60, 90)
    models = {"plain": nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 7))}
    models["tied"] = _Tied(width, hidden)
    keys = ("parameters", "gradients", "state")
    with _gpus(case) as device:
        model = models[("plain", "tied")[case.index]].to(device)
        in_use = _in_use(device)
        torch.accelerator.reset_peak_memory_stats(device)
        found = {name: answer(model, kind, **options) for name, kind, options in _OPTIMIZERS}
        peak = torch.accelerator.max_memory_allocated(device) - in_use
        first = next(iter(found.values()))
        see.form(
            f"dictionary of {', '.join(sorted(map(str, first)))}" if isinstance(first, dict) else first,
            why="A dictionary of three numbers was asked for.",
            fix='Return {"parameters": ..., "gradients": ..., "state": ...}.',
        )
        advice = {
            "parameters": (
                "Each number has element_size() bytes, and a tied weight exists once.",
                "Sum nbytes over model.parameters().",
            ),
            "gradients": (
                "A gradient is as large as its parameter, if that is trained at all.",
                "Count the parameters that require a gradient.",
            ),
        }
        for key in keys[:2]:
            why, fix = advice[key]
            see(key, {name: sizes.get(key) for name, sizes in found.items()}, why=why, fix=fix)
        for name, sizes in found.items():
            see(
                f"state of {name}",
                sizes.get("state"),
                share=0.16,
                why="Not the bytes that this optimizer keeps on the device.",
                fix="Step once, look into optimizer.state. Adam's step is on the host.",
            )
        see(
            "model left as it was",
            (_devices(model.parameters()), all(p.grad is None for p in model.parameters())),
            why="Planning has changed the model: its device or its gradients.",
            fix="Work on stand-ins, or on a copy.",
        )
        see(
            "bytes used on the device",
            peak,
            at_most=True,
            share=0.2,
            allowance=2048,
            why="To plan the memory you have used it: a plan comes before the step.",
            fix="Count, or let tensors on the device meta step: they take no memory.",
        )


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "torch.utils.checkpoint.checkpoint(block, x) keeps x, forgets the inside, and computes it again in backward.",
        "Reentrant checkpointing loses the gradients if x needs none: use_reentrant=False.",
        "One checkpoint per block: one around everything keeps little and needs all of it again in backward.",
    ),
)
def checkpointed(answer, case, see):
    """Run blocks one after the other, keeping only what goes into each, with the same gradients."""
    n, width = case.sizes(2, 40, 60)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 3 * width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3 * width, width), nn.Tanh())
        for _ in range(6)
    )  # on the host: the random numbers of dropout are others on CUDA
    values, factors = case.array(n, width), _host(case, n, width)

    def run() -> tuple[torch.Tensor, Any, int, int]:
        x = torch.from_numpy(values.copy()).requires_grad_(case.index == 1)
        blocks.zero_grad(set_to_none=True)
        torch.manual_seed(case.seed % 1000)
        with see.memory() as used:
            out = answer(list(blocks), x)
            kept = used.current
            if isinstance(out, torch.Tensor) and out.requires_grad:
                (out * factors).sum().backward()
        return x, out, kept, used.peak

    run()  # the first use of checkpoint leaves a reference cycle behind
    forwards = []
    handles = [b.register_forward_pre_hook(lambda *_: forwards.append(1)) for b in blocks]
    x, out, kept, peak = run()
    for handle in handles:
        handle.remove()
    see.form(out, why="The output of the last block was asked for.", fix="Pass x from block to block.")
    see(
        "values",
        out,
        atol=1e-5,
        why="The blocks were not run one after the other, each once.",
        fix="x = checkpoint(block, x, ...) for block after block.",
    )
    see(
        "the output can be trained",
        out.requires_grad,
        why="The graph is cut: reentrant checkpointing of an input without gradient.",
        fix="use_reentrant=False.",
    )
    see(
        "gradients of the parameters",
        [describe(p.grad) if p.grad is None else p.grad[:5].clone() for p in blocks.parameters()],
        rtol=1e-3,
        atol=1e-4,
        why="Other gradients than without checkpoints.",
        fix="use_reentrant=False, and leave the random state to checkpoint.",
    )
    see(
        "gradient of the input",
        describe(x.grad) if x.grad is None else x.grad,
        rtol=1e-3,
        atol=1e-4,
        why="The input's own gradient is another, or missing.",
        fix="Do not detach x.",
    )
    see(
        "runs of the blocks",
        len(forwards),
        at_most=True,
        share=0.2,
        why="Blocks ran more often than forward and backward need: twice each.",
        fix="One checkpoint for each block; none inside another.",
    )
    see(
        "bytes kept after forward",
        kept,
        at_most=True,
        share=0.5,
        slack=0.1,
        allowance=16_384,  # a leaf of one's own for x is fine
        why="The insides of blocks are kept for backward.",
        fix="torch.utils.checkpoint keeps a block's input and computes the rest again.",
    )
    see(
        "bytes at peak",
        peak,
        at_most=True,
        share=0.3,
        slack=0.1,
        allowance=4096,
        why="In backward, more than one block's inside was alive at a time.",
        fix="Make each block a checkpoint of its own.",
    )


# ------------------------------------------------------------------------------------------------ timing
class _Bench:
    """A clock and a function of a device that works on behind the host's back, both made up, so that times are exact.

    A call costs the host 1 ms and the device 10 ms; the first one 500 ms more. The clock moves when the function is
    called and when the host waits for the device.
    """

    def __init__(self) -> None:
        self.host = self.ready = 0.0
        self.log: list[str] = []
        self._waits = 0

    def _look(self) -> None:
        waits = sum(e.what == "wait" for e in events())
        if waits > self._waits:
            self._waits = waits
            self.log.append("wait")
            self.host = max(self.host, self.ready)

    def function(self) -> None:
        self._look()
        first = "call" not in self.log
        self.log.append("call")
        self.host += 0.001
        self.ready = max(self.ready, self.host) + 0.010 + (0.5 if first else 0.0)

    def clock(self) -> float:
        self._look()
        self.log.append("clock")
        return self.host

    def timed(self) -> tuple[list[str], list[str]] | None:
        """What happened before the first look at the clock, and from there to the last; None without two looks."""
        self._look()
        if self.log.count("clock") < 2:
            return None
        first = self.log.index("clock")
        last = len(self.log) - 1 - self.log[::-1].index("clock")
        return self.log[:first], self.log[first:last]


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "A call returns when the work is queued. What has to happen before a clock means anything?",
        "The order: warm up, wait, clock, calls, wait, clock.",
        "torch.accelerator.synchronize(device) waits for a GPU; on the CPU there is nothing to wait for.",
    ),
)
def time_on(answer, case, see):
    """Time a function on an asynchronous device: seconds per call, warmed up, with waits in the right places."""
    repeats = case.integer(4, 9)
    with _gpus(case) as device:
        bench = _Bench()
        seconds = answer(device, bench.function, repeats, bench.clock)
        timed = bench.timed()
        see.form(
            "float" if isinstance(seconds, float) else seconds,
            why="Seconds per call were asked for, as a number.",
            fix="(stop - start) / repeats",
        )
        see(
            "looks at the clock",
            "two or more" if timed else "fewer than two",
            why="The time was taken from another clock than the one that was given.",
            fix="Call clock() before the calls and after them.",
        )
        before, within = timed or ([], [])
        see(
            "calls to warm up",
            "some" if "call" in before else "none",
            why="The first call is slow, and was timed.",
            fix="Call the function before the clock starts.",
        )
        see(
            "last thing before the clock starts",
            before[-1] if before else "nothing",
            why="The device still works on the warm-up when the clock starts.",
            fix="A call returns before its work is done: what has to come after it?",
        )
        see(
            "last thing before the clock stops",
            within[-1] if within else "nothing",
            why="The clock stops when the calls are queued, not when they are done.",
            fix="A call returns before its work is done: what has to come after it?",
        )
        see(
            "calls that are timed",
            within.count("call"),
            why="Another number of calls than repeats was timed.",
            fix="Time exactly `repeats` calls; the warm-up comes in addition.",
        )
        see(
            "seconds per call",
            seconds,
            rtol=0.12,  # waiting after each call, too, is allowed: it adds the 1 ms of the host's side
            why="The clock ran for something else than these calls.",
            fix="Divide by repeats. What lies between the two looks at the clock?",
        )
    with _no_gpu():
        calls, ticks = [], iter(range(100))
        seconds = answer(torch.device("cpu"), lambda: calls.append(1), repeats, lambda: float(next(ticks)))
        see(
            "on the CPU",
            (isinstance(seconds, float), len(calls) >= repeats),
            share=0.2,
            why="On a machine without a GPU there is nothing to wait for.",
            fix='Ask device.type: only a device other than "cpu" is waited for.',
        )
