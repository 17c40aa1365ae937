"""The device tests run on the simulated GPU everywhere, and on CUDA where there is one: where they differ, the simulation is wrong.

`make test-cuda` runs the CUDA half. It has not been run yet: no GPU was at hand when it was written.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from course_utils.simgpu import simulated_gpu

ON_BOTH = ["sim"]
if torch.cuda.is_available():
    ON_BOTH.append(pytest.param("cuda", marks=pytest.mark.cuda))


@pytest.fixture(params=ON_BOTH)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Index 0 of the simulated GPU, then of the real one."""
    if request.param == "sim":
        with simulated_gpu(count=2) as simulated:
            yield simulated
    else:
        yield torch.device("cuda", 0)


@pytest.fixture
def second(device: torch.device) -> torch.device:
    """Another device of the same kind."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("one CUDA GPU only")
    return torch.device(device.type, 1)


@pytest.fixture
def sim() -> Iterator[torch.device]:
    """The simulated GPU alone: for its own counters, and for mistakes that real hardware shows only now and then."""
    with simulated_gpu(count=2) as simulated:
        yield simulated


class Net(nn.Module):
    """Two linear layers with batch norm between them: (N, 4) to (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu())


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device | str) -> None:
    """Forward and backward on random data of ``device``, and a step."""
    generator = torch.Generator().manual_seed(1)
    loss = model(torch.randn(8, 4, generator=generator).to(device)).square().mean()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
