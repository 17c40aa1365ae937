"""Distortions of the training images, off unless asked for: noise, random crop, colour jitter.

They are put into the files, once, so that everybody trains on the same images. Test images are never distorted.
"""

from dataclasses import dataclass

import numpy as np

from course_utils.data.images import SIDE, DataError

PADDING = 4
"""Pixels that a random crop may move an image by: He et al., *Deep residual learning*, 2015, section 4.2."""
STRENGTH = 0.2
"""Brightness, contrast and saturation are each multiplied by 0.8 to 1.2."""
GREY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""


@dataclass(frozen=True)
class Distortions:
    """Which distortions to apply.

    Attributes:
        noise: standard deviation of Gaussian noise on pixels from 0 to 1; 0 for none.
        crop: shift by up to four pixels each way; the border is filled by reflection.
        jitter: brightness, contrast and saturation each changed by up to a fifth.
    """

    noise: float = 0.0
    crop: bool = False
    jitter: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 1:  # also false for NaN
            raise DataError(f"--noise {self.noise:g}: a standard deviation from 0 to 1 is needed (pixels are 0 to 1).")

    def __bool__(self) -> bool:
        return self.noise > 0 or self.crop or self.jitter

    def __str__(self) -> str:
        parts = [f"Gaussian noise {self.noise:g}"] * (self.noise > 0)
        parts += ["random crop"] * self.crop + ["colour jitter"] * self.jitter
        return ", ".join(parts) or "none"

    def apply(self, images: np.ndarray, seed: int) -> np.ndarray:
        """Distorted copies of (N, 32, 32, 3) uint8 images. Image i depends on the seed and on i alone."""
        if not self:
            return images
        out = np.empty_like(images)
        for i, image in enumerate(images):
            # The 2 sets these streams apart from those of drawing, which start with the split, 0 or 1.
            out[i] = self._one(np.random.default_rng([seed, 2, i]), image)
        return out

    def _one(self, rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
        x = image.astype(np.float64)
        if self.jitter:
            brightness, contrast, saturation = rng.uniform(1 - STRENGTH, 1 + STRENGTH, 3)
            x = x * brightness
            middle = (x * GREY).sum(axis=-1).mean()
            x = (x - middle) * contrast + middle
            grey = (x * GREY).sum(axis=-1, keepdims=True)
            x = (x - grey) * saturation + grey
        if self.crop:
            top, left = rng.integers(0, 2 * PADDING + 1, 2)
            padded = np.pad(x, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)), mode="reflect")
            x = padded[top : top + SIDE, left : left + SIDE]
        if self.noise > 0:
            x = x + rng.normal(0, self.noise * 255, x.shape)
        return np.clip(np.rint(x), 0, 255).astype(np.uint8)
