"""What the simulated GPU costs: a training step of ResNet-18 on it beside the same step on the plain CPU.

Both runs give the same losses, bit for bit, and use the optimizer in the form that PyTorch chooses for a GPU (foreach). One thread;
processor time, which other programs on the machine disturb less than they do a clock; the runs alternate, and the quickest step of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torchvision.models import resnet18

from course_utils.simgpu import counting, disable, enable


def step_on(device: torch.device, batch: int, size: int) -> Callable[[], float]:
    """A training step as a function that returns the loss."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    images, labels = torch.randn(batch, 3, size, size), torch.arange(batch) % 10

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def timed(step: Callable[[], float]) -> tuple[float, float]:
    start = time.process_time()
    loss = step()
    return time.process_time() - start, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain = step_on(torch.device("cpu"), options.batch, options.size)
    device = enable()
    simulated = step_on(device, options.batch, options.size)
    on, off = [], []
    for index in range(options.steps):
        disable()
        off.append(timed(plain))
        enable()
        on.append(timed(simulated))
        assert on[index][1] == off[index][1], "the simulation changed a number"
    with counting() as cost:
        simulated()
    cpu, sim = min(seconds for seconds, _ in off[2:]), min(seconds for seconds, _ in on[2:])
    print(f"ResNet-18, batch {options.batch} of {options.size} x {options.size}, 1 thread, torch {torch.__version__}")
    print(
        f"CPU {cpu * 1000:.1f} ms, simulated GPU {sim * 1000:.1f} ms a step: ratio {sim / cpu:.3f} (goal: at most 1.15)"
    )
    print(f"{cost.kernels} operators a step on the device, {(sim - cpu) / cost.kernels * 1e6:.1f} us more for each")


if __name__ == "__main__":
    main()
