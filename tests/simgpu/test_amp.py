"""Mixed precision: CUDA's autocast lists and the gradient scaler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import Net
from torch import nn

from course_utils.simgpu import Unsupported, autocast


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_products_run_in_half_precision(device: torch.device, dtype: torch.dtype | None) -> None:
    x, image = torch.randn(4, 4, device=device), torch.randn(1, 3, 8, 8, device=device)
    layer, conv = nn.Linear(4, 4).to(device), nn.Conv2d(3, 4, 3).to(device)
    with torch.autocast(device.type, dtype=dtype):
        results = [
            x @ x,
            layer(x),
            conv(image),
            torch.einsum("ij,jk->ik", x, x),
            torch.baddbmm(x[None], x[None], x[None]),
        ]
    assert {r.dtype for r in results} == {dtype or torch.float16}
    assert layer.weight.dtype == torch.float32


FLOAT32 = {
    "softmax": lambda h: h.softmax(1),
    "log_softmax": lambda h: F.log_softmax(h, 1),
    "layer norm": lambda h: F.layer_norm(h, (4,)),
    "sum": lambda h: h.sum(),
    "exp": lambda h: h.exp(),
    "pow": lambda h: h**2,
    "mse loss": lambda h: F.mse_loss(h, h * 2),
    "cross entropy": lambda h: F.cross_entropy(h, torch.zeros(4, dtype=torch.long, device=h.device)),
    "norm": lambda h: h.norm(),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_what_loses_too_much_runs_in_float32(device: torch.device, name: str) -> None:
    half = torch.randn(4, 4, device=device).half()
    with torch.autocast(device.type):
        assert FLOAT32[name](half).dtype == torch.float32


def test_what_is_harmless_keeps_its_dtype(device: torch.device) -> None:
    half = torch.ones(4, 4, device=device).half()
    with torch.autocast(device.type):
        assert F.relu(half).dtype == (half + half).dtype == torch.float16
        assert torch.addcmul(half, half, half.float()).dtype == torch.float32
        assert torch.ones(2, device=device).dtype == torch.float32
        assert (half.double() @ half.double()).dtype == torch.float64


def test_cpu_tensors_are_left_alone(device: torch.device) -> None:
    with torch.autocast(device.type):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert nn.Linear(2, 2)(torch.ones(2, 2)).dtype == torch.float32


def test_blocks_nest_and_end(device: torch.device) -> None:
    x = torch.ones(2, 2, device=device)
    with torch.autocast(device.type):
        assert torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.float16
    assert (x @ x).dtype == torch.float32


def test_gradients_are_in_the_dtype_of_the_weights(device: torch.device, net: Net) -> None:
    net.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(net(torch.randn(8, 4, device=device)), torch.zeros(8, dtype=torch.long, device=device))
    loss.backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32} and loss.dtype == torch.float32


def test_a_weight_is_converted_once_in_a_block(device: torch.device) -> None:
    layer, x = nn.Linear(4, 4, bias=False).to(device), torch.ones(2, 4, device=device, requires_grad=True)
    copies = []
    with (
        torch.autocast(device.type),
        torch.autograd.graph.saved_tensors_hooks(lambda t: copies.append(t.data_ptr()) or t, lambda t: t),
    ):
        outs = [layer(x), layer(x * 2), layer(x * 3)]
        assert len(outs) == max(map(copies.count, copies)) == 3  # the same half-precision weight, each time


def test_binary_cross_entropy_is_refused(device: torch.device) -> None:
    p = torch.full((2,), 0.5, device=device)
    with torch.autocast(device.type), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)


def test_checkpointing_repeats_the_autocast(device: torch.device) -> None:
    from torch.utils.checkpoint import checkpoint

    layer, dtypes = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device), []
    layer[0].register_forward_hook(lambda module, args, out: dtypes.append(out.dtype))
    x = torch.ones(2, 4, device=device, requires_grad=True)
    with torch.autocast(device.type):
        out = checkpoint(layer, x, use_reentrant=False)
    out.float().sum().backward()
    assert dtypes == [torch.float16, torch.float16]


@pytest.mark.parametrize("overflow", [False, True])
def test_the_scaler_steps_or_skips(device: torch.device, net: Net, overflow: bool) -> None:
    net.to(device)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    before = net.first.weight.detach().clone()
    scaler.scale(net(torch.randn(8, 4, device=device)).square().sum()).backward()
    if overflow:
        net.first.weight.grad[0, 0] = float("inf")
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, net.first.weight) is overflow
    assert scaler.get_scale() == (4.0 if overflow else 16.0)
    fresh = torch.amp.GradScaler(device.type)
    fresh.load_state_dict(scaler.state_dict())
    assert fresh.get_scale() == scaler.get_scale()


def test_autocast_for_the_cpu_around_device_tensors_is_refused(sim: torch.device) -> None:
    with torch.autocast("cpu"), pytest.raises(Unsupported, match=r'Use torch\.autocast\("sim"\)'):
        torch.ones(2, 2, device=sim) @ torch.ones(2, 2, device=sim)


# Names of the header that no CPU tensor can reach, because CPUs have other kernels.
CUDA_ONLY = {
    "_convolution.deprecated",
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
}


@pytest.mark.parametrize(
    ("names", "macros"),
    [
        (autocast.LOWER, ["AT_FORALL_LOWER_PRECISION_FP"]),
        (autocast.FLOAT32, ["AT_FORALL_FP32", "AT_FORALL_FP32_SET_OPT_DTYPE"]),
        (autocast.WIDEST, ["AT_FORALL_PROMOTE"]),
    ],
)
def test_the_lists_are_those_of_the_installed_pytorch(names: str, macros: list[str]) -> None:
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    listed = set()
    for macro in macros:
        body = re.search(rf"#define {macro}\(_\)(.*?)(?:\n\n|\n#|\Z)", header, re.DOTALL)[1]
        for name, overload in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body):
            listed.add(f"{name}.{overload}" if overload else name)
    ours = {name for name in names.split() if not name.startswith("norm.")}  # norm has a rule of its own in C++
    assert len(listed) > 10 and ours == listed - CUDA_ONLY
