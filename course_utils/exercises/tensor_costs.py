"""Section 1, tensor_costs: what does a tensor cost?"""

from __future__ import annotations

import numpy as np

from course_utils.observe import exercise

SECTION = "tensor_costs"


@exercise(
    section=SECTION,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "An image from OpenCV differs from what a model wants in four ways: axis order, channel order, dtype, range.",
        "Reversing the channels with [..., ::-1] makes a negative stride. Which call takes it, and which does not?",
        "Allocate the result once with torch.empty(N, 3, H, W), fill result[i], and divide in place with div_.",
    ),
)
def bgr_to_batch(answer, case, see):
    """Images as OpenCV reads them, (H, W, 3) uint8 BGR, become one batch (N, 3, H, W) float32 RGB in [0, 1]."""
    height, width = case.sizes(2, 40, 60)
    images = case.bgr_images(3, height, width)
    before = [image.copy() for image in images]
    batch = answer(images)
    with see.memory(numpy=True) as used:
        answer(images)  # the second call: the first may import, and imports are no bytes of the answer
    see.form(
        batch,
        why="A model takes one float32 tensor with the channels before height and width.",
        fix="Stack the images, then permute; convert with .float() or .to(torch.float32).",
    )
    see(
        "values",
        batch,
        atol=1e-6,
        why="The numbers are not the RGB values divided by 255.",
        fix="Check one pixel by hand: red, green, blue, each divided by 255.",
        clues=["channels_reversed", "scaled_by_255", "axes_swapped", "same_numbers_other_places"],
    )
    see(
        "result is contiguous",
        batch.is_contiguous(),
        share=0.2,
        why="permute only rearranges strides: every later kernel reads with jumps.",
        fix="Write into a preallocated contiguous result, or call contiguous() once.",
    )
    see(
        "inputs left as they were",
        all(np.array_equal(a, b) for a, b in zip(images, before, strict=True)),
        why="from_numpy shares memory: an in-place step on the tensor changes the caller's image.",
        fix="Copy or convert the dtype before the first in-place operation.",
    )
    see(
        "bytes at peak",
        used.peak,
        at_most=True,
        slack=0.35,
        allowance=16_384,
        why="Several whole copies of the batch were alive at once.",
        fix="Convert image by image into one preallocated result; divide with div_.",
    )


# ==== end of part A ====


# ==== end of part B ====
