"""Says what has not been tested."""

import pytest
import torch


@pytest.mark.cuda
def test_every_device_test_runs_on_cuda_too() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU in this machine: the device tests ran on the simulated one alone")
    assert torch.ones(1, device="cuda").item() == 1
