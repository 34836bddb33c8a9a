"""Random numbers that the kernel and a page draw alike: the generator mulberry32, asked at counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def uniforms(counter: NDArray[Any]) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) of the generator mulberry32 at these counts."""
    mask = np.uint64(0xFFFFFFFF)
    t = (counter.astype(np.uint64) + np.uint64(1)) * np.uint64(0x6D2B79F5) & mask
    t = (t ^ (t >> np.uint64(15))) * (t | np.uint64(1)) & mask
    t = t ^ ((t + ((t ^ (t >> np.uint64(7))) * (t | np.uint64(61)) & mask)) & mask)
    return np.asarray((t ^ (t >> np.uint64(14))) / 2.0**32)


def normals(pair: NDArray[Any]) -> NDArray[np.float64]:
    """Return two normal numbers for each count, shape (..., 2 n): all cosines, then all sines (Box and Muller)."""
    counter = 2 * pair
    radius = np.sqrt(-2 * np.log(1 - uniforms(counter)))
    angle = 2 * np.pi * uniforms(counter + 1)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
