"""Intervals against explicit least squares, the paired t test, and the coverage they promise."""

import numpy as np
import pytest
from scipy import stats

from residlab.errors import ResidlabError
from residlab.experiments.intervals import paired_differences


def table(methods: int, seeds: int, number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(methods, seeds))


@pytest.mark.parametrize(("methods", "seeds"), [(2, 2), (4, 3), (7, 5)])
def test_is_the_least_squares_of_the_additive_model(methods, seeds):
    values = table(methods, seeds)
    found = paired_differences(values)
    design = np.zeros((methods * seeds, 1 + (methods - 1) + (seeds - 1)))
    for row, (i, j) in enumerate(np.ndindex(methods, seeds)):
        design[row, 0] = 1
        if i:
            design[row, i] = 1
        if j:
            design[row, methods - 1 + j] = 1
    target = values.ravel()
    solution, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    degrees = len(target) - rank
    variance = np.square(target - design @ solution).sum() / degrees
    covariance = variance * np.linalg.inv(design.T @ design)
    quantile = stats.t.ppf(0.975, degrees)
    assert found.degrees == degrees
    np.testing.assert_allclose(found.residual, np.sqrt(variance), rtol=1e-12)
    for i in range(1, methods):
        half = quantile * np.sqrt(covariance[i, i])
        np.testing.assert_allclose(found.interval(i, 0), [solution[i] - half, solution[i] + half], rtol=1e-10)
    contrast = np.zeros(design.shape[1])
    contrast[1] = 1
    if methods > 2:
        contrast[2] = -1
        np.testing.assert_allclose(found.half_width, quantile * np.sqrt(contrast @ covariance @ contrast), rtol=1e-10)
        np.testing.assert_allclose(found.differences[1, 2], contrast @ solution, rtol=1e-10)


def test_two_methods_are_the_paired_t_test():
    values = table(2, 6)
    want = stats.ttest_rel(values[0], values[1]).confidence_interval(0.9)
    np.testing.assert_allclose(paired_differences(values, confidence=0.9).interval(0, 1), want, rtol=1e-12)


def test_what_all_methods_share_drops_out():
    values = table(4, 3)
    shared = values + np.array([0.0, 100.0, -300.0])
    assert paired_differences(shared).half_width == pytest.approx(paired_differences(values).half_width, rel=1e-10)
    assert paired_differences(np.ones((3, 2)) * [[1], [2], [4]]).half_width == pytest.approx(0, abs=1e-14)


def test_a_method_does_not_differ_from_itself_and_signs_turn():
    found = paired_differences(table(3, 4))
    assert found.interval(1, 1) == (0, 0)
    low, high = found.interval(0, 2)
    assert found.interval(2, 0) == (-high, -low)


def test_covers_as_often_as_it_says():
    draws = np.random.default_rng(1)
    truth, level, inside, trials = np.array([0.3, 0.0, -0.2, 0.1]), np.array([5.0, -4.0, 0.0]), 0, 4000
    for _ in range(trials):
        low, high = paired_differences(truth[:, None] + level + draws.normal(size=(4, 3))).interval(0, 2)
        inside += low <= 0.5 <= high
    assert abs(inside / trials - 0.95) < 4 * (0.95 * 0.05 / trials) ** 0.5


@pytest.mark.parametrize(
    ("values", "confidence", "message"),
    [
        ([1.0, 2.0], 0.95, "methods x seeds"),
        ([[1.0, 2.0]], 0.95, "at least two"),
        ([[1.0], [2.0]], 0.95, "at least two"),
        ([[1.0, float("nan")], [1.0, 2.0]], 0.95, "method 0, seed 1 is nan"),
        ([[1.0, 2.0], [1.0, 3.0]], 1.0, "confidence"),
    ],
)
def test_refuses_what_gives_no_interval(values, confidence, message):
    with pytest.raises(ResidlabError, match=message):
        paired_differences(values, confidence=confidence)
