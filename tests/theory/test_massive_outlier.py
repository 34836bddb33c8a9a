"""One massive outlier: the bound attacked, its limit, its exact case, and tokens outside of its hypothesis."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from residlab.theory import conditioning as cond
from residlab.theory import massive_outlier as mo


def test_a_batch_is_its_tokens():
    x = np.random.default_rng(0).normal(size=(2, 3, 9)) + 0.4
    outliers = mo.massive_outlier(x)
    assert outliers.layer_norm_bound.shape == outliers.delta.shape == (2, 3)
    assert outliers.average[1, 0] == pytest.approx(mo.massive_outlier(x[1, 0]).average)


@settings(max_examples=200)
@given(
    st.integers(3, 40),
    st.floats(1, 1e6),
    st.floats(-3, 3),
    st.floats(1e-6, 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
@example(64, 1e3, 1.0, 1e-6, 0, True)
def test_the_massive_outlier_bound(d, size, mean, spread, seed, two_sided):
    rng = np.random.default_rng(seed)
    shape = rng.choice([-1.0, 1.0], d - 1) if two_sided else rng.standard_t(2, d - 1)
    background = mean + spread * shape
    x = np.append(background, size * rng.choice([-1, 1]) * (1 + np.abs(background).max()))
    token = mo.massive_outlier(x)
    assume(token.delta < 1)
    assert cond.layer_norm_entries(x).max() <= token.layer_norm_bound * (1 + 1e-9) + 1e-12


@settings(max_examples=150)
@given(st.integers(3, 40), st.floats(-3, 3), st.floats(0.5, 0.999), st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_the_massive_outlier_bound_close_to_its_edge(d, mean, delta, seed, kind):
    """Also where the outlier is not the largest entry: the mean may be far from 0."""
    rng = np.random.default_rng(seed)
    shape = [rng.standard_normal(d - 1), rng.choice([-1.0, 1.0], d - 1), np.eye(d - 1)[0]][kind]
    assume(np.ptp(shape) > 0)
    background = 10 * mean + shape
    outlier = background.mean() - d * np.abs(background - background.mean()).max() / delta
    token = mo.MassiveOutlier(np.asarray(outlier), background)
    assert token.delta == pytest.approx(delta)
    assert cond.layer_norm_entries(np.append(background, outlier)).max() <= token.layer_norm_bound * (1 + 1e-9)


@pytest.mark.parametrize("d", [3, 4, 8, 64, 576])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_far_out_it_is_the_limit_and_the_bound_is_near(d, shift):
    rng = np.random.default_rng(d)
    background = rng.normal(size=d - 1) + shift
    x = np.append(background, -1e8)
    token, got = mo.massive_outlier(x), cond.layer_norm_entries(x)[:-1].max()
    assert got == pytest.approx(token.layer_norm_limit, rel=1e-4)
    assert got <= token.layer_norm_bound <= got * (1 + 4 / d)
    b = token.largest
    assert 0 < token.layer_norm_limit <= 4 * b * d / token.gap


@pytest.mark.parametrize(("outlier", "background", "d"), [(1e3, 1.0, 64), (50.0, -2.0, 7), (-1e4, 3.0, 576)])
def test_an_equal_background_exactly(outlier, background, d):
    x = np.append(np.full(d - 1, background), outlier)
    wanted = mo.equal_background(outlier, background, d)
    assert cond.layer_norm_entries(x).max() == pytest.approx(wanted, rel=1e-9)
    assert mo.massive_outlier(x).layer_norm_bound >= wanted
    y, J = cond.layer_norm(x), cond.layer_norm_jacobian(x)
    assert cond.condition_numbers(J, x, y).componentwise == pytest.approx(wanted, rel=1e-7)


def test_worked_figures():
    assert mo.equal_background(1e3, 1.0, 64) == pytest.approx(0.1261, abs=5e-5)
    rms = cond.rms_norm_entries(np.append(np.ones(63), 1e3)).max()
    assert rms == pytest.approx(2, abs=1e-5)


@pytest.mark.parametrize("d", [4, 9, 576])
def test_two_equal_outliers_are_harmless_though_the_theorem_is_silent(d):
    x = np.zeros(d)
    x[:2] = 1e4
    assert mo.massive_outlier(x).delta == pytest.approx(d)
    assert cond.layer_norm_entries(x) == pytest.approx([d / (d - 2)] * 2 + [0] * (d - 2), abs=1e-9)


def test_without_the_hypothesis_there_is_no_bound():
    """For every delta >= 1 some background of that spread has an entry at the mean."""
    d, outlier, w = 64, 100.0, 2.0
    gap = outlier
    reach = gap / d
    assert reach <= w
    background = np.zeros(d - 1)
    background[:4] = [reach, -reach, w, -w]
    x = np.append(background, outlier)
    token = mo.massive_outlier(x)
    assert token.delta >= 1
    assert token.layer_norm_bound == np.inf
    assert token.ratio < 1
    assert cond.layer_norm_entries(x).max() > 1e12
    typical = [
        cond.layer_norm_entries(np.append(np.random.default_rng(seed).normal(size=575), 1e3)).max()
        for seed in range(40)
    ]
    assert 100 < np.median(typical) < 3000, "M = 1000 is no massive outlier at d = 576"
