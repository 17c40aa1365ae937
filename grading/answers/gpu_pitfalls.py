"""Answers to section 3, gpu_pitfalls: right ones in other ways than the reference's, and wrong ones that people give."""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from course_utils.observe.compare import Kind
from grading.bank import right, wrong


# ------------------------------------------------------------------------------------------------ pick_device
@right("pick_device")
def with_early_returns(wish=None):
    if wish is not None:
        return torch.empty(1, device=wish).device
    kind = torch.accelerator.current_accelerator(check_available=True)
    return kind or torch.device("cpu")


@right("pick_device")
def names_every_kind(wish=None):
    if wish is None:
        for kind in ("cuda", "mps", "xpu", "sim", "cpu"):
            try:
                return torch.zeros(1, device=kind).device
            except (RuntimeError, AssertionError, NotImplementedError):
                continue
    return torch.tensor([0.0], device=wish).device


@right("pick_device")
def counts_the_devices(wish=None):
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device(wish or kind or "cpu")
    if device.type != "cpu":
        if kind is None or device.type != kind.type or (device.index or 0) >= torch.accelerator.device_count():
            raise ValueError(f"no {device} here")
    return device


@wrong("pick_device", fails="no wish, with a GPU", says="torch.accelerator")
def asks_cuda_only(wish=None):
    """The line that every tutorial has: it knows one kind of GPU."""
    if wish is None:
        wish = "cuda" if torch.cuda.is_available() else "cpu"
    torch.zeros(1, device=wish)
    return torch.device(wish)


@wrong("pick_device", fails="a GPU that is not there", says="checks names only")
def trusts_the_name(wish=None):
    """Believes that torch.device("sim:7") fails where there is no such device."""
    if wish is None:
        wish = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return torch.device(wish)


@wrong("pick_device", fails="a GPU that is not there", says="nobody was told")
def falls_back_to_the_cpu(wish=None):
    """A program that runs anywhere, and fifty times slower without a word."""
    try:
        return torch.zeros(1, device=wish or torch.accelerator.current_accelerator() or "cpu").device
    except Exception:
        return torch.device("cpu")


@wrong("pick_device", fails="type of the result", says="not its name", kind=Kind.WRONG_FORM)
def returns_the_name(wish=None):
    """A text does for .to(), so it is returned."""
    wish = wish or (torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu")
    torch.zeros(1, device=wish)
    return str(wish)


@wrong("pick_device", fails="a wish that can be met", says="keep the index")
def drops_the_index(wish=None):
    """Takes the kind for the device."""
    if wish is None:
        wish = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    torch.zeros(1, device=wish)
    return torch.device(torch.device(wish).type)


@wrong("pick_device", fails="a wish that can be met", says="another one came back")
def always_the_gpu(wish=None):
    """The GPU is always best, so a wish for the CPU is not heard."""
    if wish is not None:
        torch.zeros(1, device=wish)
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


@wrong("pick_device", fails="no wish, without a GPU", says="Without a GPU")
def forgets_the_machine_without(wish=None):
    """Written on a machine with a GPU, where current_accelerator() always is something."""
    device = torch.zeros(1, device=wish).device if wish is not None else torch.accelerator.current_accelerator()
    return device


# ------------------------------------------------------------------------------------------------ placement
@right("placement")
def recursive_walk(model, prefix=""):
    found = {}
    for table in (model._parameters, model._buffers, model.__dict__):
        found.update({prefix + k: str(v.device) for k, v in table.items() if isinstance(v, torch.Tensor)})
    for name, child in model.named_children():
        found.update(recursive_walk(child, f"{prefix}{name}."))
    return found


@right("placement")
def one_loop_over_modules(model):
    found = {}
    for prefix, module in model.named_modules():
        tensors = dict(module.named_parameters(recurse=False))
        tensors.update(module.named_buffers(recurse=False))
        tensors.update({k: v for k, v in module.__dict__.items() if torch.is_tensor(v)})
        for name, t in tensors.items():
            found[".".join(filter(None, (prefix, name)))] = str(t.device)
    return found


@wrong("placement", fails="parameters", says="missing")
def asks_the_first_parameter(model):
    """next(model.parameters()).device tells of the first parameter, not of the model."""
    name, first = next(model.named_parameters())
    return {name: str(first.device)}


@wrong("placement", fails="parameters", says="differ from layer to layer")
def gives_all_the_first_device(model):
    """Believes that a model has one device."""
    device = str(next(model.parameters()).device)
    found = dict.fromkeys([*dict(model.named_parameters()), *dict(model.named_buffers())], device)
    for prefix, module in model.named_modules():
        for k, v in vars(module).items():
            if torch.is_tensor(v):
                found[f"{prefix}.{k}" if prefix else k] = str(v.device)
    return found


@wrong("placement", fails="buffers", says="missing")
def reads_the_state_dict(model):
    """The state_dict has no buffer that is not persistent, and no plain tensor."""
    return {k: str(v.device) for k, v in model.state_dict().items()}


@wrong("placement", fails="forgotten tensors", says="is missing")
def parameters_and_buffers_only(model):
    """Stops at what PyTorch knows of, which is what .to() would have moved anyway."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {k: str(v.device) for k, v in tensors}


@wrong("placement", fails="forgotten tensors", says="every module")
def looks_at_the_top_only(model):
    """Looks for plain tensors in the outermost module alone."""
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    tensors.update({k: v for k, v in vars(model).items() if torch.is_tensor(v)})
    return {k: str(v.device) for k, v in tensors.items()}


@wrong("placement", fails="forgotten tensors", says="has another name")
def dot_before_the_name(model):
    """The outermost module's prefix is empty, and the dot stays."""
    found = {k: str(v.device) for k, v in [*model.named_parameters(), *model.named_buffers()]}
    for prefix, module in model.named_modules():
        for k, v in vars(module).items():
            if torch.is_tensor(v):
                found[f"{prefix}.{k}"] = str(v.device)
    return found


# ------------------------------------------------------------------------------------------------ Normalize
class _Buffers(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("m", torch.tensor([float(v) for v in mean]), persistent=False)
        self.register_buffer("inv", 1 / torch.tensor([float(v) for v in std]), persistent=False)

    def forward(self, images):
        return (images - self.m[:, None, None]) * self.inv[None, :, None, None]


class _FunctionalNormalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.layer = nn.Module()
        self.layer.mean = nn.Buffer(torch.as_tensor(mean).float().clone())
        self.layer.std = nn.Buffer(torch.as_tensor(std).float().clone())

    def forward(self, images):
        shape = (1, -1, 1, 1)
        return torch.div(images.sub(self.layer.mean.view(shape)), self.layer.std.view(shape))


@right("Normalize", factory=True)
def multiplied_by_the_inverse():
    return _Buffers


@right("Normalize", factory=True)
def buffers_of_a_child():
    return _FunctionalNormalize


def _normalize(keep, use=lambda self, x, name: getattr(self, name)):
    class Normalize(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            for name, value in (("mean", mean), ("std", std)):
                keep(self, name, torch.as_tensor(value, dtype=torch.float32).view(-1, 1, 1))

        def forward(self, images):
            return (images - use(self, images, "mean")) / use(self, images, "std")

    return Normalize


@wrong("Normalize", kind=Kind.CRASHED, says="different devices", factory=True)
def plain_attributes():
    """The constants are attributes, and stay on the host when the module moves."""
    return _normalize(setattr)


@wrong("Normalize", fails="transfers in forward", says="register them once", factory=True)
def sends_them_in_every_call():
    """No error any more, and two copies and two waits in every call."""
    return _normalize(setattr, lambda self, x, name: getattr(self, name).to(x))


@wrong("Normalize", fails="nothing to train", says="optimizer", factory=True)
def makes_them_parameters():
    """Parameters move along, and are trained."""
    return _normalize(lambda self, name, value: setattr(self, name, nn.Parameter(value)))


@wrong("Normalize", fails="dtype after .double()", says="float64", factory=True)
def casts_back_to_float32():
    """Forces float32, whatever the module was turned into."""

    class Normalize(_Buffers):
        def forward(self, images):
            return super().forward(images).float()

    return Normalize


@wrong("Normalize", fails="input left as it was", says="in place", factory=True)
def works_in_place():
    """Saves memory at the cost of the caller's images."""

    class Normalize(_Buffers):
        def forward(self, images):
            return images.sub_(self.m[:, None, None]).mul_(self.inv[:, None, None])

    return Normalize


@wrong("Normalize", fails="values", says="channel by channel", factory=True)
def one_number_for_all():
    """Normalises with the mean of the means."""

    class Normalize(_Buffers):
        def forward(self, images):
            return (images - self.m.mean()) * self.inv.mean()

    return Normalize


@wrong("Normalize", fails="type of the result", says="device", factory=True)
def brings_the_images_to_the_host():
    """Cures the error on the wrong side."""

    class Normalize(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.m, self.s = (torch.as_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (mean, std))

        def forward(self, images):
            return (images.cpu() - self.m) / self.s

    return Normalize


# ------------------------------------------------------------------------------------------------ to_device
@right("to_device")
def by_tree_map(batch, device):
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, batch)


@right("to_device")
def by_match(batch, device):
    match batch:
        case torch.Tensor():
            return batch.to(device, non_blocking=True)
        case dict():
            return {k: by_match(v, device) for k, v in batch.items()}
        case list():
            return [by_match(v, device) for v in batch]
        case tuple() if hasattr(batch, "_fields"):
            return batch._make(by_match(v, device) for v in batch)
        case tuple():
            return tuple(by_match(v, device) for v in batch)
    return batch


@wrong("to_device", fails="the form of the batch", says="Go down")
def flat_dictionaries_only(batch, device):
    """Moves the tensors of the outermost dictionary."""
    if torch.is_tensor(batch):
        return batch.to(device)
    return {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}


@wrong("to_device", fails="the form of the batch", says="rebuild each as what it was")
def tuples_become_lists(batch, device):
    """Every sequence comes back as a list."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: tuples_become_lists(v, device) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [tuples_become_lists(v, device) for v in batch]
    return batch


@wrong("to_device", fails="a named tuple", says="_fields")
def named_tuples_are_tuples(batch, device):
    """A named tuple does not take a list of its fields."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {k: named_tuples_are_tuples(v, device) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)([named_tuples_are_tuples(v, device) for v in batch])
    return batch


@wrong("to_device", kind=Kind.CRASHED, says="isinstance first")
def everything_has_to(batch, device):
    """A batch holds more than tensors."""
    if isinstance(batch, dict):
        return {k: everything_has_to(v, device) for k, v in batch.items()}
    if hasattr(batch, "_fields"):
        return batch._make(everything_has_to(v, device) for v in batch)
    if isinstance(batch, (list, tuple)):
        return type(batch)(everything_has_to(v, device) for v in batch)
    return batch.to(device)


@wrong("to_device", fails="the batch given is left as it was", says="new containers")
def writes_into_the_batch(batch, device):
    """Fills the caller's dictionary."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for k in batch:
            batch[k] = writes_into_the_batch(batch[k], device)
        return batch
    if hasattr(batch, "_fields"):
        return batch._make(writes_into_the_batch(v, device) for v in batch)
    if isinstance(batch, (list, tuple)):
        return type(batch)(writes_into_the_batch(v, device) for v in batch)
    return batch


@wrong("to_device", fails="what is there stays", says="itself where it can")
def copies_to_be_safe(batch, device):
    """copy=True copies what is there, too."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.to(device, copy=True) if torch.is_tensor(v) else v, batch)


@wrong("to_device", fails="what is there stays", says="came back as a copy")
def by_way_of_the_cpu(batch, device):
    """First everything to a known place, then to the device."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.cpu().to(device) if torch.is_tensor(v) else v, batch)


@wrong("to_device", fails="the form of the batch", says="every tensor on the device")
def numbers_become_tensors(batch, device):
    """Turns labels and indices into tensors."""
    from torch.utils._pytree import tree_map

    return tree_map(
        lambda v: torch.as_tensor(v).to(device) if isinstance(v, (torch.Tensor, int)) and v is not None else v, batch
    )


# ------------------------------------------------------------------------------------------------ optimizer_to
@right("optimizer_to")
def reloads_its_own_state(optimizer, device):
    """load_state_dict casts every entry to the device of its parameter, and leaves step alone."""
    optimizer.load_state_dict(optimizer.state_dict())


@right("optimizer_to")
def shape_tells_the_counter(optimizer, device):
    for group in optimizer.param_groups:
        for p in group["params"]:
            for k, v in optimizer.state.get(p, {}).items():
                if torch.is_tensor(v) and v.dim() > 0:
                    optimizer.state[p][k] = v.to(device)


@right("optimizer_to")
def through_data(optimizer, device):
    for state in optimizer.state.values():
        for k, v in state.items():
            if isinstance(v, torch.Tensor) and k != "step":
                v.data = v.data.to(device)
    return optimizer


@wrong("optimizer_to", fails="waits in the next step", says="step", kind=Kind.WASTEFUL)
def moves_the_counter_too(optimizer, device):
    """The function that is copied from forum to forum."""
    for state in optimizer.state.values():
        for k, v in state.items():
            if isinstance(v, torch.Tensor):
                state[k] = v.to(device)


@wrong("optimizer_to", fails="devices of the state", says="store it back")
def forgets_to_store(optimizer, device):
    """.to() of a tensor returns the moved one."""
    for state in optimizer.state.values():
        for v in state.values():
            if torch.is_tensor(v):
                v.to(device)


@wrong("optimizer_to", fails="devices of the state", says="have to lie where their parameters lie")
def moves_the_parameters(optimizer, device):
    """Takes the parameters for the state."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.data = p.data.to(device)


@wrong("optimizer_to", fails="devices of the state", says="no tensors")
def clears_the_state(optimizer, device):
    """No state, no wrong device."""
    optimizer.state.clear()


@wrong("optimizer_to", fails="devices of the state")
def only_adam_is_known(optimizer, device):
    """Names Adam's two averages, and forgets amsgrad and momentum."""
    for state in optimizer.state.values():
        for k in ("exp_avg", "exp_avg_sq"):
            if k in state:
                state[k] = state[k].to(device)


@wrong("optimizer_to", fails="values of the state", says="the past is lost")
def starts_again_with_zeros(optimizer, device):
    """The right place with nothing in it."""
    for state in optimizer.state.values():
        for k, v in state.items():
            if torch.is_tensor(v) and k != "step":
                state[k] = torch.zeros_like(v, device=device)


# ------------------------------------------------------------------------------------------------ mend_1
@right("mend_1")
def moves_in_the_call(model, images, device):
    return model.to(device)(images.to(device))


@right("mend_1")
def follows_the_parameter(model, images, device):
    model = model.to(device)
    return model(images.to(next(model.parameters()).device, non_blocking=True))


@wrong("mend_1", fails="type of the result", says="device")
def works_on_the_cpu(model, images, device):
    """No mixed devices, and no GPU."""
    return model.cpu()(images)


@wrong("mend_1", fails="where the model ends", says="works somewhere else")
def sends_the_result_only(model, images, device):
    """Computes on the host and dresses it up."""
    return model(images).to(device)


@wrong("mend_1", fails="where it was computed", says="only the result went")
def computes_on_the_host_and_moves_both(model, images, device):
    """Everything ends on the device, and the device has done nothing."""
    scores = model.cpu()(images)
    model.to(device)
    return scores.to(device)


@wrong("mend_1", kind=Kind.CRASHED, says="Input type")
def the_first_gpu(model, images, device):
    """Writes a device down instead of using the one that was asked for."""
    return model.to(device)(images.to("sim"))


@wrong("mend_1", fails="the model's scores", says="not the scores of this model")
def random_images_on_the_device(model, images, device):
    """randn_like on the device: right place, other images."""
    return model.to(device)(torch.randn_like(images, device=device))


@wrong("mend_1", kind=Kind.CRASHED, says="one type names a GPU")
def looks_and_throws_away(model, images, device):
    """cuda-style calls in a row, none of which is kept."""
    model = model.to(device)
    images.to(device, non_blocking=True)
    images.contiguous()
    return model(images)


# ------------------------------------------------------------------------------------------------ mend_2
@right("mend_2")
def astype_float32(model, array, device):
    return model.to(device)(torch.from_numpy(array.astype(np.float32)).to(device))


@right("mend_2")
def as_tensor_with_dtype(model, array, device):
    model = model.to(device)
    p = next(model.parameters())
    return model(torch.as_tensor(array, dtype=p.dtype, device=p.device))


@wrong("mend_2", fails="bytes to the device", says="Convert on the host", kind=Kind.WASTEFUL)
def converts_on_the_device(model, array, device):
    """Right, and twice the bytes travel."""
    return model.to(device)(torch.from_numpy(array).to(device).float())


@wrong("mend_2", fails="type of the result", says="not the model")
def doubles_the_model(model, array, device):
    """Gives the model the dtype of the array."""
    return model.double().to(device)(torch.from_numpy(array).to(device))


@wrong("mend_2", fails="dtype of the model", says="was converted")
def doubles_and_casts_back(model, array, device):
    """The scores are float32 again, the model is float64 for everyone."""
    return model.double().to(device)(torch.from_numpy(array).to(device)).float()


@wrong("mend_2", fails="where it was computed", says="let the device do the work")
def computes_on_the_host_in_float32(model, array, device):
    """The right dtype, on the wrong processor."""
    return model(torch.from_numpy(array).float()).to(device)


@wrong("mend_2", kind=Kind.CRASHED, says="dtype")
def moves_once_more(model, array, device):
    """Takes it for a device error."""
    images = torch.from_numpy(array).to(device)
    return model.to(images.device)(images.to(device))


@wrong("mend_2", fails="the model's scores")
def through_integers(model, array, device):
    """Images are bytes, are they not?"""
    return model.to(device)(torch.from_numpy(array).to(torch.int32).float().to(device))


# ------------------------------------------------------------------------------------------------ mend_3
@right("mend_3")
def with_new_tensor_methods(features):
    n = features.shape[1]
    steps = torch.arange(n, device=features.device, dtype=features.dtype)
    return features * (1 - steps / (n - 1)).unsqueeze(-1)


@right("mend_3")
def under_a_device_context(features):
    with features.device:
        ramp = torch.linspace(1, 0, features.size(1))
    return torch.einsum("ntc,t->ntc", features, ramp)


@wrong("mend_3", fails="transfers", says="ask the features", kind=Kind.WASTEFUL)
def sends_the_ramp(features):
    """Makes it on the host and sends it in every call."""
    ramp = torch.linspace(1, 0, features.shape[1]).to(features.device)
    return features * ramp[:, None]


@wrong("mend_3", fails="features on the host", says="Name no device")
def asks_the_accelerator(features):
    """The device of the machine, not that of the input."""
    if features.device.type == "cpu":
        return features.to("sim") * torch.linspace(1, 0, features.shape[1], device="sim")[:, None]
    return features * torch.linspace(1, 0, features.shape[1], device=features.device)[:, None]


@wrong("mend_3", fails="type of the result", says="where the features are")
def brings_the_features(features):
    """Mends the side that was right."""
    return features.cpu() * torch.linspace(1, 0, features.shape[1])[:, None]


@wrong("mend_3", fails="values", says="Other weights")
def ramp_the_other_way(features):
    """On the right device, and backwards."""
    return features * torch.linspace(0, 1, features.shape[1], device=features.device)[:, None]


@wrong("mend_3", kind=Kind.CRASHED, says="different devices")
def requires_grad_moves(features):
    """Believes that like-functions on the host follow later."""
    ramp = torch.linspace(1, 0, features.shape[1])
    ramp.to(features.device)
    return features * ramp[:, None]


@wrong("mend_3", fails="transfers", says="travel", kind=Kind.WASTEFUL)
def both_to_the_host_and_back(features):
    """There and back again."""
    ramp = torch.linspace(1, 0, features.shape[1])
    return (features.cpu() * ramp[:, None]).to(features.device)


# ------------------------------------------------------------------------------------------------ mend_4
@right("mend_4")
def a_sequential(sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@right("mend_4")
def add_module_by_name(sizes):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = len(sizes) - 1
            for k in range(self.n):
                self.add_module(f"layer{k}", nn.Linear(sizes[k], sizes[k + 1]))

        def forward(self, x):
            for k in range(self.n):
                x = getattr(self, f"layer{k}")(x)
                if k < self.n - 1:
                    x = F.relu(x)
            return x

    return Chain()


def _chain(init, forward):
    def make(sizes):
        class Chain(nn.Module):
            def __init__(self):
                super().__init__()
                init(self, [nn.Linear(i, o) for i, o in zip(sizes, sizes[1:])])

        Chain.forward = forward
        return Chain()

    return make


def _forward(self, x):
    for layer in self.layers[:-1]:
        x = layer(x).relu()
    return self.layers[-1](x)


@wrong("mend_4", fails="sizes of the parameters", says="does not see the layers", factory=True)
def layers_move_in_forward():
    """No error any more; no optimizer and no file will ever see these layers."""

    def forward(self, x):
        for layer in self.layers:
            layer.to(x.device)
        return _forward(self, x)

    return _chain(lambda self, layers: setattr(self, "layers", layers), forward)


@wrong("mend_4", fails="sizes of the parameters", says="does not see the layers", factory=True)
def a_tuple_instead():
    """A tuple hides them as well as a list does."""
    return _chain(lambda self, layers: setattr(self, "layers", tuple(layers)), _forward)


@wrong("mend_4", fails="sizes of the parameters", says="registers them", factory=True)
def a_dictionary_instead():
    """So does a dictionary."""
    return _chain(lambda self, layers: setattr(self, "layers", dict(enumerate(layers))), lambda self, x: x)


@wrong("mend_4", fails="entries of the state_dict", says="there twice", factory=True)
def a_parameter_list():
    """Registers the parameters a second time, under other names."""

    def init(self, layers):
        self.layers = nn.ModuleList(layers)
        self.all = nn.ParameterList(p for layer in layers for p in layer.parameters())

    return _chain(init, _forward)


@wrong("mend_4", fails="values", says="ReLU", factory=True)
def a_relu_too_many():
    """Mended the list, and the last layer with it."""

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

    return _chain(lambda self, layers: setattr(self, "layers", nn.ModuleList(layers)), forward)


# ------------------------------------------------------------------------------------------------ mend_5
@right("mend_5")
def concatenates_on_the_device(model, batches, device):
    model.to(device).eval()
    with torch.inference_mode():
        return torch.cat([model(b.to(device)).argmax(dim=1) for b in batches]).cpu().numpy()


@right("mend_5")
def by_lists(model, batches, device):
    model.to(device).eval()
    found = []
    with torch.no_grad():
        for images in batches:
            found += model(images.to(device)).argmax(1).tolist()
    return np.array(found)


@right("mend_5")
def forced(model, batches, device):
    model.to(device).eval()
    with torch.no_grad():
        return np.concatenate([model(b.to(device)).argmax(1).numpy(force=True) for b in batches])


@wrong("mend_5", fails="where the model ends", says="not used any more")
def model_to_the_cpu(model, batches, device):
    """NumPy works with the CPU, so everything does."""
    model.cpu().eval()
    with torch.no_grad():
        return np.concatenate([model(b).argmax(1).numpy() for b in batches])


@wrong("mend_5", fails="where it was computed", says="The host computed it")
def predicts_on_the_host_and_moves_the_model(model, batches, device):
    """The model is found on the device afterwards, where it was never used."""
    found = model_to_the_cpu(model, batches, device)
    model.to(device)
    return found


@wrong("mend_5", fails="bytes to the host", says="argmax on the device")
def all_scores_come_back(model, batches, device):
    """Right, with seven scores for each class."""
    model.to(device).eval()
    with torch.no_grad():
        return np.concatenate([model(b.to(device)).cpu().argmax(1).numpy() for b in batches])


@wrong("mend_5", fails="waits for the device", says="every single number", kind=Kind.WASTEFUL)
def item_by_item(model, batches, device):
    """One wait per image."""
    model.to(device).eval()
    found = []
    with torch.no_grad():
        for b in batches:
            found += [v.item() for v in model(b.to(device)).argmax(1)]
    return np.array(found)


@wrong("mend_5", kind=Kind.CRASHED, says="NumPy reads host memory only")
def detach_is_enough(model, batches, device):
    """The cure for another complaint of numpy()."""
    model.to(device).eval()
    return np.concatenate([model(b.to(device)).argmax(1).detach().numpy() for b in batches])


@wrong("mend_5", fails="type of the result", says="integer array")
def a_tensor_is_an_array(model, batches, device):
    """Returns a tensor."""
    model.to(device).eval()
    with torch.no_grad():
        return torch.cat([model(b.to(device)).argmax(1) for b in batches]).cpu()


@wrong("mend_5", fails="predictions", says="highest score")
def argmax_over_the_batch(model, batches, device):
    """The largest along the wrong axis."""
    model.to(device).eval()
    with torch.no_grad():
        found = [model(b.to(device)).argmin(1).cpu().numpy() for b in batches]
    return np.concatenate(found)


# ------------------------------------------------------------------------------------------------ mend_6
def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _train(model, batches, device, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return model


@right("mend_6")
def optimizer_of_the_copy(model, batches, device):
    model = copy.deepcopy(model)
    model.to(device)
    return _train(model, batches, device, _sgd(model))


@right("mend_6")
def optimizer_before_the_move(model, batches, device):
    """A module's .to() keeps the parameter objects, so this order works as well."""
    model = copy.deepcopy(model)
    optimizer = _sgd(model)
    return _train(model.to(device), batches, device, optimizer)


@wrong("mend_6", fails="the model stays as it was", says="own model was trained")
def without_the_copy(model, batches, device):
    """One model, one optimizer, and the caller's weights are gone."""
    return _train(model.to(device), batches, device, _sgd(model))


@wrong("mend_6", fails="the copy has learnt", says="very parameters")
def moves_the_optimizer_only(model, batches, device):
    """Believes that the device is the matter."""
    optimizer = _sgd(model)
    trained = copy.deepcopy(model).to(device)
    optimizer.load_state_dict(optimizer.state_dict())
    return _train(trained, batches, device, optimizer)


@wrong("mend_6", fails="weights of the copy", says="One optimizer")
def an_optimizer_per_batch(model, batches, device):
    """It learns, and forgets its momentum in every step."""
    trained = copy.deepcopy(model).to(device)
    for batch in batches:
        _train(trained, [batch], device, _sgd(trained))
    return trained


@wrong("mend_6", fails="where it was computed", says="only the result went")
def trains_on_the_host(model, batches, device):
    """Trains the copy on the host, and moves it when all is done."""
    trained = copy.deepcopy(model)
    return _train(trained, batches, torch.device("cpu"), _sgd(trained)).to(device)


@wrong("mend_6", fails="where the model stays", says="moved to the device")
def moves_the_model_first(model, batches, device):
    """Moves what was to stay."""
    trained = copy.deepcopy(model.to(device))
    return _train(trained, batches, device, _sgd(trained))


@wrong("mend_6", fails="weights of the copy", says="One optimizer")
def other_settings(model, batches, device):
    """Makes a new optimizer, without the momentum."""
    trained = copy.deepcopy(model).to(device)
    return _train(trained, batches, device, torch.optim.SGD(trained.parameters(), lr=0.1))


@wrong("mend_6", fails="weights of the copy", says="leave its settings")
def gradients_pile_up(model, batches, device):
    """zero_grad got lost while mending."""
    trained = copy.deepcopy(model).to(device)
    optimizer = _sgd(trained)
    for x, y in batches:
        F.cross_entropy(trained(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return trained


# ------------------------------------------------------------------------------------------------ mend_7
def _descend(x, y, w, rate=0.1):
    for _ in range(5):
        ((x @ w - y) ** 2).mean().backward()
        with torch.no_grad():
            w -= rate * w.grad
            w.grad = None
    return w.detach()


@right("mend_7")
def requires_grad_after_the_move(x, y, device):
    w = torch.zeros(x.shape[1]).to(device).requires_grad_()
    return _descend(x.to(device), y.to(device), w)


@right("mend_7")
def a_parameter_and_sgd(x, y, device):
    x, y = x.to(device), y.to(device)
    w = nn.Parameter(x.new_zeros(x.shape[1]))
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.mse_loss(x @ w, y).backward()
        optimizer.step()
    return w.detach()


@right("mend_7")
def by_autograd_grad(x, y, device):
    x, y = x.to(device), y.to(device)
    w = torch.zeros(x.shape[1], requires_grad=True, device=device)
    for _ in range(5):
        (g,) = torch.autograd.grad(((x @ w - y) ** 2).mean(), w)
        w = (w - 0.1 * g).detach().requires_grad_()
    return w.detach()


@wrong("mend_7", fails="the weights have changed", says="no step was taken")
def skips_what_is_none(x, y, device):
    """No gradient, no error, no learning."""
    x, y = x.to(device), y.to(device)
    w = torch.zeros(x.shape[1], requires_grad=True).to(device)
    for _ in range(5):
        ((x @ w - y) ** 2).mean().backward()
        if w.grad is not None:
            with torch.no_grad():
                w -= 0.1 * w.grad
    return w.detach()


@wrong("mend_7", fails="type of the result", says="belong on the device")
def everything_on_the_host(x, y, device):
    """On the CPU it works."""
    return _descend(x, y, torch.zeros(x.shape[1], requires_grad=True))


@wrong("mend_7", fails="where it was computed", says="only the result went")
def descends_on_the_host(x, y, device):
    """The leaf is a leaf again, and the device has nothing to do."""
    return _descend(x, y, torch.zeros(x.shape[1], requires_grad=True)).to(device)


@wrong("mend_7", fails="weights", says="five steps")
def gradients_add_up(x, y, device):
    """The leaf is right; its gradient is never set to zero."""
    x, y = x.to(device), y.to(device)
    w = torch.zeros(x.shape[1], device=device, requires_grad=True)
    for _ in range(5):
        ((x @ w - y) ** 2).mean().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
    return w.detach()


@wrong("mend_7", kind=Kind.CRASHED, says="leaf Variable")
def in_place_on_the_leaf(x, y, device):
    """A leaf now, and the no_grad block is gone."""
    x, y = x.to(device), y.to(device)
    w = torch.zeros(x.shape[1], device=device, requires_grad=True)
    for _ in range(5):
        ((x @ w - y) ** 2).mean().backward()
        w -= 0.1 * w.grad
        w.grad = None
    return w.detach()


@wrong("mend_7", fails="the result is free of the graph", says="detach")
def returns_the_leaf(x, y, device):
    """The weights come back with requires_grad."""
    w = torch.zeros(x.shape[1], device=device, requires_grad=True)
    _descend(x.to(device), y.to(device), w)
    return w


@wrong("mend_7", kind=Kind.CRASHED, says="NoneType")
def requires_grad_twice(x, y, device):
    """Asks the copy to require a gradient, which it does already."""
    w = torch.zeros(x.shape[1], requires_grad=True).to(device).requires_grad_()
    return _descend(x.to(device), y.to(device), w)


# ------------------------------------------------------------------------------------------------ train_lean
@right("train_lean")
def losses_stacked_at_the_end(model, loader, optimizer, device):
    model.train()
    losses, sizes = [], []
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x.float() / 255), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        sizes.append(len(y))
    return float(np.average(torch.stack(losses).cpu().numpy(), weights=sizes))


@right("train_lean")
def sums_and_the_dataset_length(model, loader, optimizer, device):
    model.train()
    total = None
    for images, labels in loader:
        images = images.to(device, dtype=torch.float32, non_blocking=True).mul_(1 / 255)
        labels = labels.to(device, non_blocking=True)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        part = loss.detach() * labels.shape[0]
        total = part if total is None else total + part
    return (total / len(loader.dataset)).item()


def _epoch(model, loader, optimizer, device, send, note, finish):
    model.train()
    kept = []
    for images, labels in loader:
        x, y = send(images, labels)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append((note(loss), len(labels)))
    return finish(kept)


def _lean_send(device):
    return lambda x, y: (x.to(device, non_blocking=True).float() / 255, y.to(device, non_blocking=True))


def _mean(kept):
    return float(sum(v * n for v, n in kept) / sum(n for _, n in kept))


@right("train_lean")
def sums_in_one_tensor(model, loader, optimizer, device):
    model.train()
    sums = torch.zeros(2, device=device)
    for x, y in loader:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = F.cross_entropy(model(x / 255), y, reduction="sum")
        optimizer.zero_grad()
        (loss / len(y)).backward()
        optimizer.step()
        with torch.no_grad():
            sums[0] += loss
            sums[1] += len(y)
    total, count = sums.tolist()
    return total / count


@wrong("train_lean", fails="waits for the device", says="read the loss once", kind=Kind.WASTEFUL)
def item_in_every_batch(model, loader, optimizer, device):
    """loss.item() in the loop: one wait per batch."""
    return _epoch(model, loader, optimizer, device, _lean_send(device), lambda v: v.item(), _mean)


@wrong("train_lean", fails="waits for the device", says="blocking copy", kind=Kind.WASTEFUL)
def blocking_copies(model, loader, optimizer, device):
    """.to(device) alone waits, pinned or not."""
    send = lambda x, y: (x.to(device).float() / 255, y.to(device))  # noqa: E731
    return _epoch(model, loader, optimizer, device, send, lambda v: v.detach(), _mean)


@wrong("train_lean", fails="bytes to the device", says="four times the bytes")
def floats_travel(model, loader, optimizer, device):
    """Converts on the host, as a transform would."""
    send = lambda x, y: (  # noqa: E731
        (x.float() / 255).pin_memory().to(device, non_blocking=True),
        y.to(device, non_blocking=True),
    )
    return _epoch(model, loader, optimizer, device, send, lambda v: v.detach(), _mean)


@wrong("train_lean", fails="memory at the peak", says="graphs of old losses")
def keeps_the_graphs(model, loader, optimizer, device):
    """Appends the losses themselves. After backward little is left of each graph, but the batches pile up, too."""
    batches = []
    inner = _lean_send(device)

    def send(x, y):
        batches.append(inner(x, y))
        return batches[-1]

    return _epoch(model, loader, optimizer, device, send, lambda v: v, _mean)


@wrong("train_lean", fails="memory at the peak", says="each batch go")
def the_whole_data_set_at_once(model, loader, optimizer, device):
    """Two transfers in all, and the device has to hold everything."""
    x, y = (torch.cat(part).pin_memory().to(device, non_blocking=True) for part in zip(*loader))
    x = x.float() / 255
    size = loader.batch_size
    pairs = list(zip(x.split(size), y.split(size)))
    return _epoch(model, pairs, optimizer, device, lambda a, b: (a, b), lambda v: v.detach(), _mean)


@wrong("train_lean", fails="graphs alive when a batch comes", says="detach() what you add up", kind=Kind.WASTEFUL)
def total_with_its_graphs(model, loader, optimizer, device):
    """total + loss is a node of a graph that grows with every batch."""
    return _epoch(model, loader, optimizer, device, _lean_send(device), lambda v: v, _mean)


@wrong("train_lean", fails="mode of the model", says="model.train() first", kind=Kind.PARTLY)
def leaves_the_mode(model, loader, optimizer, device):
    """Trains in whatever mode the model comes in."""
    loss = losses_stacked_at_the_end(model, loader, optimizer, device)
    model.eval()
    return loss


@wrong("train_lean", fails="mean loss", says="Weight each batch")
def mean_of_means(model, loader, optimizer, device):
    """The last batch counts as much as the others."""
    finish = lambda kept: float(sum(v for v, _ in kept) / len(kept))  # noqa: E731
    return _epoch(model, loader, optimizer, device, _lean_send(device), lambda v: v.detach(), finish)


@wrong("train_lean", fails="weights after the epoch", says="images in [0, 1]")
def bytes_as_floats(model, loader, optimizer, device):
    """float() without the division."""
    send = lambda x, y: (x.to(device, non_blocking=True).float(), y.to(device, non_blocking=True))  # noqa: E731
    return _epoch(model, loader, optimizer, device, send, lambda v: v.detach(), _mean)


@wrong("train_lean", fails="type of the result", says="Python float")
def returns_a_tensor(model, loader, optimizer, device):
    """No wait at all, and no number."""
    finish = lambda kept: sum(v * n for v, n in kept) / sum(n for _, n in kept)  # noqa: E731
    return _epoch(model, loader, optimizer, device, _lean_send(device), lambda v: v.detach(), finish)


@wrong("train_lean", fails="weights after the epoch", says="zero_grad")
def no_zero_grad(model, loader, optimizer, device):
    """Gradients of all batches add up."""
    model.train()
    total = count = 0
    for x, y in loader:
        x, y = _lean_send(device)(x, y)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total, count = total + loss.detach() * len(y), count + len(y)
    return (total / count).item()


# ------------------------------------------------------------------------------------------------ load_anywhere
@right("load_anywhere")
def moves_first(path, model, optimizer, device):
    state = torch.load(path, map_location=torch.device("cpu"))
    model.to(device).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@right("load_anywhere")
def maps_by_a_function(path, model, optimizer, device):
    with open(path, "rb") as file:
        state = torch.load(file, map_location=lambda storage, place: storage, weights_only=True)
    model.load_state_dict(state.pop("model"))
    model.to(device)
    optimizer.load_state_dict(state.pop("optimizer"))
    return int(state["epoch"])


@wrong("load_anywhere", kind=Kind.CRASHED, says="map_location")
def no_map_location(path, model, optimizer, device):
    """The file wants a device that is not here."""
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    model.to(device)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_anywhere", fails="memory at the peak", says="map_location", kind=Kind.WASTEFUL)
def maps_to_the_device(path, model, optimizer, device):
    """Everything is on the device twice for a moment."""
    state = torch.load(path, map_location=device, weights_only=True)
    model.to(device).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_anywhere", fails="code in a file", says="weights_only=True")
def trusts_the_file(path, model, optimizer, device):
    """weights_only=False, because it made an error go away once."""
    state = torch.load(path, map_location="cpu", weights_only=False)
    model.load_state_dict(state["model"])
    model.to(device)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_anywhere", fails="where the state is", says="once the model is on the device")
def optimizer_before_the_move_of_the_model(path, model, optimizer, device):
    """The state follows the parameters of that moment: they were on the host."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    model.to(device)
    return state["epoch"]


@wrong("load_anywhere", fails="where the state is", says="missing")
def forgets_the_optimizer(path, model, optimizer, device):
    """Adam starts from nothing."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    model.to(device)
    return state["epoch"]


@wrong("load_anywhere", fails="where the model is", says="model.to(device)")
def forgets_the_move(path, model, optimizer, device):
    """map_location says where tensors are read to, and load_state_dict copies into the model's place."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_anywhere", fails="weights one step on", says="Both states")
def only_the_optimizer(path, model, optimizer, device):
    """The weights stay as they were drawn."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.to(device)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


# ------------------------------------------------------------------------------------------------ staged_copy
def _pinned_like(batch):
    return torch.empty(batch.shape, dtype=batch.dtype, pin_memory=True)


@right("staged_copy")
def waits_for_pairs(batches, device):
    """Fills two buffers, waits once, fills both again."""
    buffers, result = None, []
    for i, batch in enumerate(batches):
        if buffers is None:
            buffers = [_pinned_like(batch), _pinned_like(batch)]
        if i and i % 2 == 0:
            torch.accelerator.synchronize(device)
        place = buffers[i % 2][: batch.shape[0]].copy_(batch)
        result.append(place.to(device, non_blocking=True))
    return result


@right("staged_copy")
def copies_into_empty_targets(batches, device):
    Event = torch.sim.Event if device.type == "sim" else torch.cuda.Event
    free, result = [], []
    for batch in batches:
        if len(free) < 2:
            buffer = torch.empty_like(batch, memory_format=torch.contiguous_format).pin_memory()
        else:
            buffer, event = free.pop(0)
            event.synchronize()
        view = buffer[: len(batch)]
        view.copy_(batch)
        target = torch.empty(batch.shape, dtype=batch.dtype, device=device)
        target.copy_(view, non_blocking=True)
        event = Event()
        event.record()
        free.append((buffer, event))
        result.append(target)
    return result


@right("staged_copy")
def two_halves_of_one_block(batches, device):
    pool, events, result = None, [None, None], []
    for i, batch in enumerate(batches):
        if pool is None:
            pool = torch.empty(2, *batch.shape, dtype=batch.dtype, pin_memory=True)
        if events[i % 2] is not None:
            events[i % 2].synchronize()
        view = pool[i % 2, : len(batch)]
        view.copy_(batch)
        result.append(view.to(device, non_blocking=True))
        events[i % 2] = torch.get_device_module(device).Event()
        events[i % 2].record()
    return result


@wrong("staged_copy", fails="values", says="refilled early")
def never_waits(batches, device):
    """Two buffers take turns, and nobody asks whether the copy is done."""
    buffers, result = [], []
    for i, batch in enumerate(batches):
        if len(buffers) < 2:
            buffers.append(_pinned_like(batch))
        view = buffers[i % 2][: len(batch)]
        view.copy_(batch)
        result.append(view.to(device, non_blocking=True))
    return result


@wrong("staged_copy", fails="values", says="numbers of another")
def one_buffer_and_one_wait_at_the_end(batches, device):
    """Believes that one wait at the end covers everything before it."""
    buffer, result = None, []
    for batch in batches:
        buffer = _pinned_like(batch) if buffer is None else buffer
        view = buffer[: len(batch)]
        view.copy_(batch)
        result.append(view.to(device, non_blocking=True))
    torch.accelerator.synchronize(device)
    return result


def _with_events(batches, device, before, after):
    buffers, marks, result = [], [], []
    for i, batch in enumerate(batches):
        if i < 2:
            buffers.append(_pinned_like(batch))
            marks.append(torch.get_device_module(device).Event())
        else:
            marks[i % 2].synchronize()
        view = buffers[i % 2][: len(batch)].copy_(batch)
        before(marks[i % 2])
        result.append(view.to(device, non_blocking=True))
        after(marks[i % 2])
    return result


@wrong("staged_copy", fails="values", says="Wait for the copy")
def records_before_the_copy(batches, device):
    """The event stands before the copy that it was made for."""
    return _with_events(batches, device, lambda event: event.record(), lambda event: None)


@wrong("staged_copy", fails="values", says="refilled early")
def never_records(batches, device):
    """An event that was never recorded has nothing to wait for."""
    return _with_events(batches, device, lambda event: None, lambda event: None)


@wrong("staged_copy", fails="copies that nobody waits for", says="is_pinned()", kind=Kind.PARTLY)
def plain_copies(batches, device):
    """Neither pinned nor asynchronous."""
    return [b.to(device) for b in batches]


@wrong("staged_copy", fails="copies that nobody waits for", says="only from pinned memory", kind=Kind.PARTLY)
def non_blocking_from_pageable(batches, device):
    """non_blocking=True from ordinary memory is no asynchronous copy."""
    return [b.to(device, non_blocking=True) for b in batches]


@wrong("staged_copy", fails="pinned bytes", says="reuse two buffers", kind=Kind.WASTEFUL)
def pins_every_batch(batches, device):
    """A fresh pinned copy of each batch: right, and the whole data set is pinned."""
    return [b.contiguous().pin_memory().to(device, non_blocking=True) for b in batches]


@wrong("staged_copy", fails="waits for the device", says="nothing overlaps", kind=Kind.WASTEFUL)
def waits_for_each(batches, device):
    """Right, and no copy overlaps with anything."""
    buffer, result = None, []
    for batch in batches:
        buffer = _pinned_like(batch) if buffer is None else buffer
        view = buffer[: len(batch)]
        view.copy_(batch)
        result.append(view.to(device, non_blocking=True))
        torch.accelerator.synchronize(device)
    return result


# ------------------------------------------------------------------------------------------------ validation_losses
@right("validation_losses")
def detached_tensors(model, loader, loss_function, device):
    training = model.training
    model.eval()
    with torch.inference_mode():
        losses = [loss_function(model(x.to(device)), y.to(device)) for x, y in loader]
    model.train(training)
    return [v.detach() for v in losses]


@right("validation_losses")
def one_wait_for_all(model, loader, loss_function, device):
    was = model.training
    try:
        model.eval()
        with torch.no_grad():
            found = torch.stack([loss_function(model(x.to(device)), y.to(device)) for x, y in loader])
    finally:
        model.train(was)
    return found.tolist()


def _losses(model, loader, loss_function, device, keep, mode=None, grad=False):
    training = model.training
    model.eval()
    with torch.set_grad_enabled(grad):
        losses = [keep(loss_function(model(x.to(device)), y.to(device))) for x, y in loader]
    model.train(training if mode is None else mode)
    return losses


@right("validation_losses")
@torch.no_grad()
def written_into_a_host_tensor(model, loader, loss_function, device):
    was, losses = model.training, torch.empty(len(loader))
    model.eval()
    for i, (x, y) in enumerate(loader):
        losses[i] = loss_function(model(x.to(device)), y.to(device))
    model.train(was)
    return losses


@wrong("validation_losses", fails="bytes kept on the device", says="item()")
def still_with_graphs(model, loader, loss_function, device):
    """The mode is right now; every loss still holds its graph."""
    return _losses(model, loader, loss_function, device, lambda v: v, grad=True)


@wrong("validation_losses", fails="bytes at the peak", says="no graph", kind=Kind.WASTEFUL)
def item_without_no_grad(model, loader, loss_function, device):
    """Nothing is kept, and each graph is built for nothing."""
    return _losses(model, loader, loss_function, device, lambda v: v.item(), grad=True)


@wrong("validation_losses", fails="mode afterwards", says="Remember model.training", kind=Kind.PARTLY)
def always_back_to_training(model, loader, loss_function, device):
    """Puts a model into training that was not."""
    return _losses(model, loader, loss_function, device, lambda v: v.item(), mode=True)


@wrong("validation_losses", fails="losses", says="evaluation mode")
def no_grad_means_eval(model, loader, loss_function, device):
    """Takes no_grad for eval: dropout drops, BatchNorm learns."""
    training = model.training
    model.train()
    with torch.no_grad():
        losses = [loss_function(model(x.to(device)), y.to(device)).item() for x, y in loader]
    model.train(training)
    return losses


@wrong("validation_losses", fails="type of the result", says="every batch")
def the_mean_only(model, loader, loss_function, device):
    """One number for all."""
    return float(np.mean(_losses(model, loader, loss_function, device, lambda v: v.item())))


@wrong("validation_losses", fails="bytes kept on the device", says="detach()")
def clone_lets_go(model, loader, loss_function, device):
    """A clone is part of the graph."""
    return _losses(model, loader, loss_function, device, lambda v: v.clone(), grad=True)


# ------------------------------------------------------------------------------------------------ FeatureCache
def _cache(keep, close=None):
    class FeatureCache:
        def __init__(self, layer):
            self.latest, self.layer = None, layer
            self.handle = layer.register_forward_hook(self.hook)

        def hook(self, layer, inputs, output):
            kept = keep(output)
            self.latest = kept
            return kept if keep is _returned else None

    def done(self):
        self.handle.remove()
        self.latest = None

    FeatureCache.close = close or done
    return FeatureCache


def _returned(output):
    return output.detach().cpu()


@right("FeatureCache", factory=True)
def copied_into_host_memory():
    return _cache(lambda output: torch.empty(output.shape, dtype=output.dtype).copy_(output.detach()))


@right("FeatureCache", factory=True)
def cpu_under_no_grad():
    def keep(output):
        with torch.no_grad():
            return output.to("cpu", copy=True)

    return _cache(keep)


@right("FeatureCache", factory=True)
def through_numpy():
    return _cache(lambda output: torch.from_numpy(output.numpy(force=True).copy()))


@wrong("FeatureCache", fails="values", says="overwrote", factory=True)
def detach_only():
    """Lets the graph go; shares the memory, which the in-place ReLU overwrites."""
    return _cache(lambda output: output.detach())


@wrong("FeatureCache", fails="bytes kept on the device", says="to the host", kind=Kind.WASTEFUL, factory=True)
def detach_and_clone():
    """A copy, on the device."""
    return _cache(lambda output: output.detach().clone())


@wrong("FeatureCache", fails="the graph is let go", says="detach()", factory=True)
def cpu_is_enough():
    """The copy on the host is a node of the graph on the device."""
    return _cache(lambda output: output.cpu())


@wrong("FeatureCache", fails="values on the host", says="cpu() copies nothing", kind=Kind.PARTLY, factory=True)
def detach_and_cpu():
    """A copy from the device; on the host a second name for the same memory."""
    return _cache(lambda output: output.detach().cpu())


@wrong("FeatureCache", fails="hooks of others", says="somebody else", factory=True)
def clears_all_hooks():
    """Whatever hooks the layer has, they go."""

    def close(self):
        self.layer._forward_hooks.clear()
        self.latest = None

    return _cache(lambda output: output.detach().to("cpu", copy=True), close)


@wrong("FeatureCache", fails="after close()", says="handle", factory=True)
def close_forgets_the_hook():
    """Closed, and called in every forward pass."""
    return _cache(lambda output: output.detach().cpu(), lambda self: setattr(self, "latest", None))


@wrong("FeatureCache", kind=Kind.CRASHED, says="different devices", factory=True)
def hook_returns_the_copy():
    """What a forward hook returns takes the place of the output."""
    return _cache(_returned)


@wrong("FeatureCache", fails="after close()", says="last output still kept", factory=True)
def close_keeps_the_last():
    """Removes the hook and keeps the features."""
    return _cache(lambda output: output.detach().cpu(), lambda self: self.handle.remove())


# ------------------------------------------------------------------------------------------------ LossHistory
def _history(add, mean=lambda self: (self.total / self.count).item()):
    class LossHistory:
        def __init__(self):
            self.total, self.count, self.all = 0.0, 0, []

    LossHistory.add, LossHistory.mean = add, mean
    return LossHistory


@right("LossHistory", factory=True)
def under_no_grad():
    def add(self, loss, n):
        with torch.no_grad():
            self.total = loss * n + self.total
        self.count += n

    return _history(add)


@right("LossHistory", factory=True)
def in_place_into_its_own():
    def add(self, loss, n):
        if not self.count:
            self.total = torch.zeros_like(loss, requires_grad=False)
        self.total += loss.detach() * n
        self.count += n

    return _history(add, lambda self: float(self.total) / self.count)


@right("LossHistory", factory=True)
def a_running_mean():
    def add(self, loss, n):
        self.count += n
        self.total = torch.lerp(self.total + torch.zeros_like(loss.detach()), loss.detach(), n / self.count)

    return _history(add, lambda self: self.total.item())


@wrong("LossHistory", fails="bytes kept on the device", says="graph", factory=True)
def keeps_a_list_of_losses():
    """One tensor with its graph for every batch."""

    def add(self, loss, n):
        self.all.append(loss * n)
        self.count += n

    return _history(add, lambda self: (torch.stack(self.all).sum() / self.count).item())


@wrong("LossHistory", fails="bytes kept on the device", says="one more tensor", kind=Kind.WASTEFUL, factory=True)
def keeps_a_list_of_numbers_on_the_device():
    """Without the graphs, and still one block of memory for every batch."""

    def add(self, loss, n):
        self.all.append(loss.detach() * n)
        self.count += n

    return _history(add, lambda self: (torch.stack(self.all).sum() / self.count).item())


@wrong("LossHistory", fails="waits in add()", says="makes the host wait", factory=True)
def item_in_add():
    """No graph, no memory, and a wait in every batch."""

    def add(self, loss, n):
        self.total += loss.item() * n
        self.count += n

    return _history(add, lambda self: self.total / self.count)


@wrong("LossHistory", fails="the loss is left as it was", says="detach() shares memory", factory=True)
def adds_into_the_first_loss():
    """detach() gives a second name for the same number."""

    def add(self, loss, n):
        if not self.count:
            self.total = loss.detach()
            self.total *= n
        else:
            self.total += loss.detach() * n
        self.count += n

    return _history(add)


@wrong("LossHistory", fails="mean", says="Weight every batch", factory=True)
def mean_of_batches():
    """Every batch counts alike."""

    def add(self, loss, n):
        self.total = self.total + loss.detach()
        self.count += 1

    return _history(add)


@wrong("LossHistory", fails="type of the result", says="Python float", factory=True)
def mean_is_a_tensor():
    """Leaves the number on the device."""

    def add(self, loss, n):
        self.total = self.total + loss.detach() * n
        self.count += n

    return _history(add, lambda self: self.total / self.count)


# ------------------------------------------------------------------------------------------------ training_bytes
def _plan(parameters, gradients, state):
    return {"parameters": parameters, "gradients": gradients, "state": state}


@right("training_bytes")
def by_formula(model, optimizer_class, **options):
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    if issubclass(optimizer_class, torch.optim.Adam):
        times = 3 if options.get("amsgrad") else 2
    elif issubclass(optimizer_class, torch.optim.RMSprop):
        times = 1 + bool(options.get("momentum")) + bool(options.get("centered"))
    else:
        times = 1 if options.get("momentum") else 0
    return _plan(size, trained, times * trained)


@right("training_bytes")
def steps_on_the_host(model, optimizer_class, **options):
    """Stand-ins on the host: their memory is the host's."""
    trained = [p for p in model.parameters() if p.requires_grad]
    fakes = [torch.zeros(p.shape, dtype=p.dtype, requires_grad=True) for p in trained]
    for fake in fakes:
        fake.grad = torch.zeros_like(fake)
    optimizer = optimizer_class(fakes, **options)
    optimizer.step()
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v) and v.dim() > 0)
    return _plan(sum(p.nbytes for p in model.parameters()), sum(f.grad.nbytes for f in fakes), state)


@wrong("training_bytes", fails="state of Adam", says="Adam's step is on the host")
def counts_the_steps(model, optimizer_class, **options):
    """Takes every tensor of the state, the counters on the host among them."""
    plan = by_formula(model, optimizer_class, **options)
    if issubclass(optimizer_class, (torch.optim.Adam, torch.optim.RMSprop)):
        plan["state"] += 4 * sum(p.requires_grad for p in model.parameters())
    return plan


@wrong("training_bytes", fails="state of Adam", says="Not the bytes that this optimizer keeps")
def adam_is_three_times(model, optimizer_class, **options):
    """The belief that Adam's state is three times the parameters."""
    plan = by_formula(model, optimizer_class, **options)
    if optimizer_class is torch.optim.Adam:
        plan["state"] = 3 * plan["gradients"]
    return plan


@wrong("training_bytes", fails="state of AdamW with amsgrad", says="look into optimizer.state")
def options_do_not_matter(model, optimizer_class, **options):
    """The class decides, so AdamW is Adam, whatever it was told."""
    options.pop("amsgrad", None)
    return by_formula(model, optimizer_class, **options)


@wrong("training_bytes", fails="gradients", says="require a gradient")
def frozen_ones_have_gradients(model, optimizer_class, **options):
    """Every parameter gets a gradient and a state."""
    model = copy.deepcopy(model).requires_grad_(True)
    return by_formula(model, optimizer_class, **options)


@wrong("training_bytes", fails="parameters", says="a tied weight exists once")
def tied_weights_count_twice(model, optimizer_class, **options):
    """Walks over the modules and adds up what each of them has."""
    plan = by_formula(model, optimizer_class, **options)
    return {
        **plan,
        "parameters": sum(p.nbytes for m in model.modules() for p in m._parameters.values() if p is not None),
    }


@wrong("training_bytes", fails="parameters", says="element_size()")
def four_bytes_each(model, optimizer_class, **options):
    """Every number is a float32."""
    plan = by_formula(model, optimizer_class, **options)
    return {**plan, "parameters": 4 * sum(p.numel() for p in model.parameters())}


@wrong("training_bytes", fails="bytes used on the device", says="a plan comes before", kind=Kind.WASTEFUL)
def tries_it_on_the_device(model, optimizer_class, **options):
    """Makes a copy on the device and looks how much it takes."""
    twin = copy.deepcopy(model)
    for p in twin.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer_class(twin.parameters(), **options).step()
    return by_formula(model, optimizer_class, **options)


@wrong("training_bytes", fails="model left as it was", says="Planning has changed the model")
def trains_the_model(model, optimizer_class, **options):
    """Gives the model gradients, and leaves them there."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    return by_formula(model, optimizer_class, **options)


# ------------------------------------------------------------------------------------------------ checkpointed
@right("checkpointed")
def by_checkpoint_sequential(blocks, x):
    return checkpoint_sequential(nn.Sequential(*blocks, nn.Identity()), len(blocks) + 1, x, use_reentrant=False)


@right("checkpointed")
def by_recursion(blocks, x):
    if not blocks:
        return x
    return by_recursion(blocks[1:], checkpoint(lambda t: blocks[0](t), x, use_reentrant=False, preserve_rng_state=True))


@right("checkpointed")
def reentrant_with_a_leaf(blocks, x):
    """The reentrant kind works as soon as its input needs a gradient."""
    x = x if x.requires_grad else x.detach().clone().requires_grad_()
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


@wrong("checkpointed", fails="bytes kept after forward", says="insides of blocks", kind=Kind.WASTEFUL)
def the_plain_loop(blocks, x):
    """No checkpoint at all."""
    for block in blocks:
        x = block(x)
    return x


@wrong("checkpointed", fails="the output can be trained", says="use_reentrant=False")
def the_reentrant_kind(blocks, x):
    """The default: no gradient where the input needs none."""
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


@wrong("checkpointed", fails="bytes at peak", says="Make each block", kind=Kind.WASTEFUL)
def one_for_all(blocks, x):
    """One checkpoint around everything: in backward all insides come back at once."""
    return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)


@wrong("checkpointed", fails="the output can be trained", says="graph is cut")
def no_grad_saves_most(blocks, x):
    """Nothing is kept under no_grad, and nothing can be trained."""
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x


@wrong("checkpointed", fails="gradients of the parameters", says="random state")
def other_dropout_the_second_time(blocks, x):
    """Random state is expensive, so it is not kept."""
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


@wrong("checkpointed", fails="gradients of the parameters", says="without checkpoints")
def detached_in_between(blocks, x):
    """Lets go of each block's input, and of the gradient's way back."""
    for block in blocks:
        x = checkpoint(block, x.detach(), use_reentrant=False)
    return x


@wrong("checkpointed", fails="values", says="one after the other")
def skips_the_last(blocks, x):
    """Checkpoints all but the last block, and forgets that one."""
    for block in blocks[:-1]:
        x = checkpoint(block, x, use_reentrant=False)
    return x


# ------------------------------------------------------------------------------------------------ time_on
def _wait(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@right("time_on")
def waits_after_each_call(device, function, repeats=5, clock=time.perf_counter):
    """A wait after every call measures the latency; with one wait at the end the calls overlap. Both are times."""
    function()
    _wait(device)
    total = 0.0
    for _ in range(repeats):
        start = clock()
        function()
        _wait(device)
        total += clock() - start
    return total / repeats


@right("time_on")
def two_to_warm_up(device, function, repeats=5, clock=time.perf_counter):
    module = None if str(device) == "cpu" else torch.get_device_module(device)
    for _ in range(2):
        function()
    if module:
        module.synchronize()
    begin = clock()
    [function() for _ in range(repeats)]
    if module:
        module.synchronize()
    end = clock()
    return (end - begin) / repeats


@wrong("time_on", fails="last thing before the clock starts", says="warm-up")
def no_wait_at_all(device, function, repeats=5, clock=time.perf_counter):
    """Times how long it takes to ask."""
    function()
    start = clock()
    for _ in range(repeats):
        function()
    return (clock() - start) / repeats


@wrong("time_on", fails="last thing before the clock starts", says="still works on the warm-up")
def waits_at_the_end_only(device, function, repeats=5, clock=time.perf_counter):
    """The rest of the warm-up runs into the time."""
    function()
    start = clock()
    for _ in range(repeats):
        function()
    _wait(device)
    return (clock() - start) / repeats


@wrong("time_on", fails="calls to warm up", says="first call is slow")
def no_warm_up(device, function, repeats=5, clock=time.perf_counter):
    """The first call is like all others, is it not?"""
    _wait(device)
    start = clock()
    for _ in range(repeats):
        function()
    _wait(device)
    return (clock() - start) / repeats


@wrong("time_on", fails="seconds per call", says="Divide by repeats")
def forgets_to_divide(device, function, repeats=5, clock=time.perf_counter):
    """The time of all calls."""
    function()
    _wait(device)
    start = clock()
    for _ in range(repeats):
        function()
    _wait(device)
    return clock() - start


@wrong("time_on", fails="looks at the clock", says="another clock")
def uses_another_clock(device, function, repeats=5, clock=time.perf_counter):
    """Uses time.time(), whatever was passed."""
    function()
    _wait(device)
    start = time.time()
    for _ in range(repeats):
        function()
    _wait(device)
    return (time.time() - start) / repeats


@wrong("time_on", fails="last thing before the clock stops", says="queued")
def waits_after_the_clock(device, function, repeats=5, clock=time.perf_counter):
    """The wait comes, one line too late."""
    function()
    _wait(device)
    start = clock()
    for _ in range(repeats):
        function()
    stop = clock()
    _wait(device)
    return (stop - start) / repeats


@wrong("time_on", fails="on the CPU", says="nothing to wait for")
def always_asks_the_accelerator(device, function, repeats=5, clock=time.perf_counter):
    """Waits for a GPU on a machine that has none."""
    function()
    if not torch.accelerator.is_available():
        return None
    torch.accelerator.synchronize(device)
    start = clock()
    for _ in range(repeats):
        function()
    torch.accelerator.synchronize(device)
    return (clock() - start) / repeats
