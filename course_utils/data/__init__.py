"""CIFAR-mini: ten classes of 32 x 32 colour images, by default drawn, not photographed.

`load_cifar_mini` reads it; `python -m course_utils build-data` makes it. See `data/README.md`.
"""

from course_utils.data.images import DataError
from course_utils.data.reading import CifarMiniArrays, load_cifar_mini

__all__ = ["CifarMiniArrays", "DataError", "load_cifar_mini"]
