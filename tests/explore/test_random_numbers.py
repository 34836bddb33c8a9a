"""The numbers that the kernel and a page draw alike, against the generator as published."""

import numpy as np
import pytest
from scipy import stats

from residlab.explore.random_numbers import normals, uniforms


def test_the_generator_is_mulberry32() -> None:
    def mulberry32(seed: int) -> float:  # as published, on Python's integers
        mask = 0xFFFFFFFF
        seed = (seed + 0x6D2B79F5) & mask
        t = ((seed ^ (seed >> 15)) * (seed | 1)) & mask
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & mask)) & mask
        return float((t ^ (t >> 14)) / 2**32)

    counts = np.array([0, 1, 2, 77, 524_287])
    wanted = [mulberry32((int(n) * 0x6D2B79F5) & 0xFFFFFFFF) for n in counts]
    assert uniforms(counts).tolist() == wanted
    many = uniforms(np.arange(200_000))
    assert many.mean() == pytest.approx(0.5, abs=0.003)
    assert np.corrcoef(many[:-1], many[1:])[0, 1] == pytest.approx(0, abs=0.01)


def test_normals_are_normal_and_come_in_uncorrelated_pairs() -> None:
    x = normals(np.arange(100_000))
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert np.corrcoef(x[:100_000], x[100_000:])[0, 1] == pytest.approx(0, abs=0.02)
