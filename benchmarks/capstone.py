"""What the reference recipe of the capstone reaches, and what it costs. Prints mean and spread over seeds.

    python benchmarks/capstone.py [--budget 12] [--seeds 3]              CIFAR-mini as it is built: the test images
    python benchmarks/capstone.py --npz images.npz --budget 42           real images: x_train, y_train, x_test, y_test
    python benchmarks/capstone.py --held-back                            train on 4/5 of the training images, ask the rest

Settings are chosen with --held-back, never on test images. Seconds are processor time over all threads, so that other
programs disturb them less than a clock; on a busy machine they still grow by a factor of two or more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course_utils.budget import CountedImages  # noqa: E402
from course_utils.data.reading import load_cifar_mini  # noqa: E402
from course_utils.devices import available_device, seed_everything  # noqa: E402
from grading.references import load_references  # noqa: E402


def read(npz: str | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, str]:
    """Training images (N, 3, 32, 32) uint8 and labels, test images and labels, and what they are."""
    if npz:
        with np.load(npz) as file:
            arrays, what = [file[k] for k in ("x_train", "y_train", "x_test", "y_test")], Path(npz).name
    else:
        train, test = load_cifar_mini("train"), load_cifar_mini("test")
        arrays, what = [train.images, train.labels, test.images, test.labels], train.describe()
    images, labels, unseen, truth = (torch.from_numpy(np.array(a)) for a in arrays)
    planes = [x.permute(0, 3, 1, 2).contiguous() for x in (images, unseen)]
    return planes[0], labels.long(), planes[1], truth.long(), what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=12, help="passes over the training images")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--npz", help="real images in place of those that are built")
    parser.add_argument("--held-back", action="store_true", help="ask held-back training images, not the test images")
    options = parser.parse_args()
    images, labels, unseen, truth, what = read(options.npz)
    if options.held_back:
        cut = len(images) * 4 // 5
        images, unseen, labels, truth = images[:cut], images[cut:], labels[:cut], labels[cut:]
    recipe = load_references("resnet_mini_amp").answers["train_cifar_mini"]
    device = available_device()
    print(f"{what}: {len(images)} to train on, {len(unseen)} {'held back' if options.held_back else 'test images'}")
    print(f"{options.budget} passes on {device}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    found = []
    for seed in range(options.seeds):
        seed_everything(seed)
        started = time.process_time()
        predict = recipe(CountedImages(images.to(device), options.budget), labels.to(device), options.budget)
        trained = time.process_time() - started
        accuracy = (predict(unseen.to(device)).cpu() == truth).float().mean().item()
        found.append((100 * accuracy, trained, time.process_time() - started - trained))
        print(
            f"seed {seed}: {100 * accuracy:.1f} %, {trained:.0f} s to train, {found[-1][2]:.1f} s to predict",
            flush=True,
        )
    accuracies, seconds, _ = zip(*found, strict=True)
    spread = statistics.stdev(accuracies) if len(found) > 1 else float("nan")
    print(f"accuracy {statistics.mean(accuracies):.1f} +- {spread:.1f} %, {statistics.mean(seconds):.0f} CPU seconds")


if __name__ == "__main__":
    main()
