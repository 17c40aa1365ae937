"""Right and wrong answers to the exercises of section 1, tensor_costs."""

from __future__ import annotations

import numpy as np
import torch

from grading.bank import Kind, right, wrong


# ------------------------------------------------------------------------------------------------ bgr_to_batch
@right("bgr_to_batch")
def stack_flip_copy(images):
    stacked = np.stack(images)[..., ::-1].copy()
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).contiguous().float().div_(255)


@right("bgr_to_batch")
def index_the_channels(images):
    out = torch.empty((len(images), 3, *images[0].shape[:2]), dtype=torch.float32)
    for i, image in enumerate(images):
        for channel in range(3):
            out[i, channel] = torch.from_numpy(np.ascontiguousarray(image[:, :, 2 - channel]))
    return out / 255


@wrong("bgr_to_batch", fails="values", says="BGR")
def keeps_bgr(images):
    """Takes the channel order of OpenCV for that of everybody else."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255


@wrong("bgr_to_batch", kind=Kind.CRASHED, says="negative")
def negative_stride(images):
    """Reverses with a numpy slice and hands the view to torch."""
    return torch.stack([torch.from_numpy(image[..., ::-1]) for image in images]).permute(0, 3, 1, 2).float() / 255


# ==== end of part A (creation, sharing, dtype, strides) - part A answers go above this line ====


# ==== end of part B (layout, tokens, memory kept alive) - part B answers go above this line ====
