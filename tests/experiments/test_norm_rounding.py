"""Norms computed in a format beside their bounds: the bookkeeping, and that a broken bound would be seen."""

import dataclasses

import numpy as np
import pytest

from residlab.experiments.norm_rounding import NORMS, attacking_outliers, attacking_tokens, norm_errors_in
from residlab.precision.accumulation import RECURSIVE
from residlab.precision.formats import BF16, FP16, FP32


@pytest.fixture(scope="module")
def tokens():
    return attacking_tokens(200, 48, 0)


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_no_bound_is_exceeded(tokens, fmt, eps):
    found = norm_errors_in(tokens, fmt, eps=eps)
    assert found.keys() == NORMS.keys()
    for name, each in found.items():
        assert each.violations == 0, name
        assert each.error.shape == each.bound.shape == tokens.shape
        assert each.covered.shape == tokens.shape[:-1]
        assert each.covered.mean() > (0.2 if fmt is FP16 else 0.99), name
    assert found["dyt"].covered.all()


def test_a_third_of_a_bound_would_be_exceeded(tokens):
    for name, each in norm_errors_in(tokens[:, :4], FP16).items():
        halved = dataclasses.replace(each, bound=each.bound / 3)
        assert halved.violations > 0, name


def test_what_overflows_is_not_covered_and_lost(tokens):
    found = norm_errors_in(np.full((2, 576), 12.0) + np.arange(2)[:, None] / 64 + np.arange(576) / 64, FP16)
    assert not found["rms"].covered.any()
    np.testing.assert_allclose(found["rms"].relative, 1)
    assert found["rms"].violations == 0, "the theorem says nothing there"


def test_measures(tokens):
    each = norm_errors_in(tokens, BF16, RECURSIVE)["rms"]
    wanted = np.sqrt((each.error**2).sum(-1) / (each.exact**2).sum(-1))
    np.testing.assert_allclose(each.normwise, wanted)
    zero = each.exact == 0
    assert zero.any()
    assert np.all(each.relative[zero] == 0)
    np.testing.assert_allclose(each.relative[~zero], each.error[~zero] / np.abs(each.exact)[~zero])


def test_attacks_come_close_and_do_not_win():
    measured, bound, rms = attacking_outliers(600, 0)
    assert len(measured) == 600
    assert np.all(measured <= bound * (1 + 1e-9))
    assert (measured / bound).max() > 0.9
    assert np.all(rms <= 2)
    assert np.any(measured < rms)
    assert np.any(measured > rms), "also where delta < 1"
