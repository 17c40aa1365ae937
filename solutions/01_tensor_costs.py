# %% [markdown]
# # 1. What does a tensor cost?

# %% tags=["setup"]
import cv2
import numpy as np
import torch

from course_utils import check, hint, progress

# %% [markdown] exercise="bgr_to_batch"
# Write `bgr_to_batch(images)`. It gets a list of images as OpenCV reads them: (H, W, 3), `uint8`, blue first.
# It returns one tensor (N, 3, H, W), `float32`, red first, values from 0 to 1.

# %% exercise="bgr_to_batch"
def bgr_to_batch(images):
    """List of (H, W, 3) uint8 BGR images -> (N, 3, H, W) float32 RGB in [0, 1]."""
    ### BEGIN SOLUTION
    height, width, _ = images[0].shape
    batch = torch.empty(len(images), 3, height, width)
    for slot, image in zip(batch, images):
        # from_numpy shares memory and copy_ converts on the way: the batch is the only allocation of its size.
        # flip, not [..., ::-1]: torch has no negative strides. It copies, one small uint8 image at a time.
        slot.copy_(torch.from_numpy(image).flip(-1).permute(2, 0, 1))
    return batch.div_(255)
    ### END SOLUTION

# ==== end of part A ====

# ==== end of part B ====
