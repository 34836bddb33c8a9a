"""The variance of tanh(alpha x): attacked on laws and on tokens, with a linear programme and quadrature as oracles."""

from math import atanh, inf, pi, sqrt, tanh

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import integrate, optimize

from residlab.theory.variance import (
    extremal_law,
    gaussian_second_moment,
    mean_tolerance,
    second_moment_bound,
    variance_bound,
)

lams = st.floats(0.05, 20)
kappas = st.floats(0.1, 30)
# Tokens: small multiples (ties, two values), continuous, and one outlier over a small background.
tokens = st.one_of(
    st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=24),
    st.lists(st.floats(-50, 50, allow_subnormal=False), min_size=1, max_size=16),
    st.builds(lambda big, rest: [big, *rest], st.floats(-1e5, 1e5), st.lists(st.floats(-1, 1), min_size=1)),
)


def bhyt(x: np.ndarray, lam: float, kappa: float, *, centred: bool) -> np.ndarray:
    """Return the operator, written out from its definition."""
    if centred:
        return np.tanh(lam * x / (kappa * x.std(axis=-1, keepdims=True) + np.abs(x.mean(axis=-1, keepdims=True))))
    return np.tanh(lam * x / (kappa * np.sqrt(np.mean(x**2, axis=-1, keepdims=True))))


def largest_variance(mean: float, std: float) -> float:
    """Return the largest variance of tanh Z over laws on a fine grid with this mean and standard deviation.

    The variance is the least ``E (tanh Z - c)**2`` over ``c``, and concave in the law: the two optimisations commute,
    and the inner one is a linear programme.
    """
    z = np.concatenate([np.linspace(mean - 12 * std - 3, mean + 12 * std + 3, 801), [mean - std, mean + std]])
    constraints = np.stack([np.ones_like(z), z - mean, (z - mean) ** 2])

    def largest_around(c: float) -> float:
        solution = optimize.linprog(-((np.tanh(z) - c) ** 2), A_eq=constraints, b_eq=[1, 0, std**2], method="highs")
        assert solution.success
        return -solution.fun

    return optimize.minimize_scalar(largest_around, bounds=(-1, 1), method="bounded", options={"xatol": 1e-5}).fun


# --- Variance


@given(tokens, lams, kappas)
def test_no_token_exceeds_the_variance_bounds(token, lam, kappa):
    x = np.array(token)
    scale = np.abs(x).max()
    assume(scale > 1e-3)
    mean, std = x.mean(), x.std()
    variance = bhyt(x, lam, kappa, centred=True).var()
    sharp, linear = (variance_bound(mean, std, lam, kappa, bound=bound) for bound in ("sharp", "linear"))
    assert variance <= sharp * (1 + 1e-9) + 1e-15
    assert sharp <= linear <= (lam / kappa) ** 2 * (1 + 1e-12)


@given(
    st.lists(st.tuples(st.floats(-8, 8), st.integers(1, 40)), min_size=2, max_size=5),
)
def test_no_law_exceeds_the_sharp_variance_bound(law):
    """Any masses, not only equal ones: with lam = kappa std + |mean| the scale alpha is 1."""
    atoms, weights = np.array(law).T
    masses = weights / weights.sum()
    mean = masses @ atoms
    std = sqrt(masses @ (atoms - mean) ** 2)
    assume(std > 1e-6)
    y = np.tanh(atoms)
    variance = masses @ (y - masses @ y) ** 2
    assert variance <= variance_bound(mean, std, 2 * std + abs(mean), 2) * (1 + 1e-9)


@pytest.mark.parametrize("std", [0.2, 1.0, 3.0])
def test_variance_bound_against_a_linear_programme(std):
    """The sharp bound is the largest variance at mean 0, and not exceeded elsewhere; the linear one is not attained."""
    for mean in (0.0, 0.1, 1.0):
        bound = variance_bound(mean, std, 3 * std + mean, 3)
        assert bound == pytest.approx(tanh(std) ** 2, rel=1e-14)
        largest = largest_variance(mean, std)
        assert largest <= bound * (1 + 1e-9)
        if mean == 0:
            assert largest == pytest.approx(bound, rel=1e-6)
            assert largest < 0.99 * variance_bound(mean, std, 3 * std, 3, bound="linear")


def test_two_values_attain_the_variance_bound_and_unequal_masses_do_not():
    x = np.array([-3.0, 3.0, 3.0, -3.0])
    assert bhyt(x, 2, 5, centred=True).var() == pytest.approx(variance_bound(0, 3, 2, 5), rel=1e-14)
    x = np.array([-3.0, 1.0, 1.0, 1.0])  # mean 0 too
    assert bhyt(x, 2, 5, centred=True).var() < 0.99 * variance_bound(0, x.std(), 2, 5)


@given(st.lists(st.floats(-0.999, 0.999), min_size=2, max_size=8))
def test_lemma_of_the_sharp_bound(values):
    """Cov(artanh Y, Y) >= sqrt(v) artanh sqrt(v), from which the bound follows by Cauchy and Schwarz."""
    y = np.array(values)
    v = y.var()
    covariance = np.mean((y - y.mean()) * np.arctanh(y))
    assert covariance >= sqrt(v) * atanh(sqrt(v)) * (1 - 1e-9) - 1e-14


# --- Second moment


@given(tokens, lams, kappas)
def test_no_token_exceeds_the_second_moment_bounds(token, lam, kappa):
    x = np.array(token)
    assume(np.abs(x).max() > 1e-3)
    rms = sqrt(np.mean(x**2))
    for centred, mean, std in ((True, x.mean(), x.std()), (False, 0.0, rms)):
        moment = np.mean(bhyt(x, lam, kappa, centred=centred) ** 2)
        sharp, linear = (second_moment_bound(mean, std, lam, kappa, bound=bound) for bound in ("sharp", "linear"))
        assert moment <= sharp * (1 + 1e-9)
        assert sharp <= linear
    assert sharp == pytest.approx(tanh(lam / kappa) ** 2, rel=1e-12)
    assert linear == pytest.approx((lam / kappa) ** 2, rel=1e-12)


@given(st.floats(-5, 5), st.floats(0.01, 5), lams, kappas)
def test_extremal_law_attains_the_second_moment(mean, std, lam, kappa):
    atoms, masses = extremal_law(mean, std)
    assert masses.min() >= 0
    assert masses.sum() == pytest.approx(1, rel=1e-15)
    assert masses @ atoms == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert masses @ (atoms - mean) ** 2 == pytest.approx(std**2, rel=1e-9)
    alpha = lam / (kappa * std + abs(mean))
    assert masses @ np.tanh(alpha * atoms) ** 2 == pytest.approx(second_moment_bound(mean, std, lam, kappa), rel=1e-12)


@given(st.floats(-5, 5), st.floats(1e-3, 5), lams, kappas)
def test_mean_tolerance_is_the_boundary(mean, std, lam, kappa):
    t = abs(mean) / std
    tolerance = mean_tolerance(kappa)
    assume(abs(t - tolerance) > 1e-6 * (1 + t))
    for bound in ("sharp", "linear"):
        moment = second_moment_bound(mean, std, lam, kappa, bound=bound)
        at_zero = second_moment_bound(0, std, lam, kappa, bound=bound)
        if t < tolerance:
            assert moment <= at_zero * (1 + 1e-12)
        else:
            assert moment >= at_zero * (1 - 1e-12)


def test_mean_tolerance_of_the_default():
    assert mean_tolerance(10) == pytest.approx(20 / 99, rel=1e-15)
    np.testing.assert_array_equal(mean_tolerance([0.5, 1.0]), inf)
    assert mean_tolerance(1 + 1e-12) > 1e11
    # Between 0 and the tolerance a mean lowers the second moment, most at |mean|/std = 1/kappa.
    grid = np.linspace(0, mean_tolerance(10), 2001)
    moments = second_moment_bound(grid, 1, 2, 10, bound="linear")
    assert grid[moments.argmin()] == pytest.approx(0.1, abs=1e-3)
    assert moments.min() == pytest.approx(4 / 101, rel=1e-6)


def test_a_mean_saturates_where_mean_free_does_not():
    """A nearly constant token: centred BHyT returns almost tanh(lam), the mean-free form tanh(lam/kappa)."""
    x = 1 + 1e-6 * np.random.default_rng(0).normal(size=512)
    lam, kappa = 2.0, 10.0
    centred = np.mean(bhyt(x, lam, kappa, centred=True) ** 2)
    assert centred == pytest.approx(tanh(lam) ** 2, rel=1e-4)
    assert centred > 20 * (lam / kappa) ** 2
    assert np.mean(bhyt(x, lam, kappa, centred=False) ** 2) == pytest.approx(tanh(lam / kappa) ** 2, rel=1e-6)
    stds = np.array([1, 0.1, 1e-3, 0])
    moments = second_moment_bound(1, stds, lam, kappa)
    assert np.all(np.diff(moments) > 0)
    assert moments[-1] == pytest.approx(tanh(lam) ** 2, rel=1e-15)
    # The variance does not: it is what the paper bounds, and it vanishes with the token's.
    assert variance_bound(1, 1e-3, lam, kappa) < 1e-5


def test_only_the_largest_gain_bounds_every_token():
    """A gain that has learnt where the token is large defeats mean(gamma**2); a gain at random does not, on average."""
    d, lam, kappa = 64, 2.0, 10.0
    x = np.eye(d)[0] * sqrt(d) + 1e-3
    gamma = 0.5 + 4 * np.eye(d)[0]
    y = bhyt(x, lam, kappa, centred=False)
    bound = second_moment_bound(0, 1, lam, kappa)
    assert np.mean((gamma * y) ** 2) > 3 * np.mean(gamma**2) * np.mean(y**2)
    assert np.mean((gamma * y) ** 2) <= np.max(gamma**2) * bound
    aligned = np.where(np.arange(d) < 2, 3.0, 0.1)
    y = bhyt(np.where(np.arange(d) < 2, 1.0, 0.2), lam, kappa, centred=False)
    assert np.mean((aligned * y) ** 2) > np.mean(aligned**2) * bound
    orders = [np.random.default_rng(seed).permutation(aligned) for seed in range(2000)]
    moments = np.mean((np.array(orders) * y) ** 2, axis=1)
    expected = np.mean(aligned**2) * np.mean(y**2)
    assert abs(moments.mean() - expected) < 4 * moments.std() / sqrt(2000)
    assert expected <= np.mean(aligned**2) * bound


# --- Gaussian tokens


def test_gaussian_second_moment_oracle_values():
    z = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 1])
    expected = [0.9950, 0.9805, 0.9279, 0.8550, 0.6941, 0.3943]
    np.testing.assert_allclose(gaussian_second_moment(z) / z**2, expected, atol=5e-5)


def test_gaussian_second_moment_against_gauss_hermite():
    nodes, weights = np.polynomial.hermite_e.hermegauss(180)
    z = np.linspace(0.01, 0.6, 40)
    by_rule = np.tanh(z[:, None] * nodes) ** 2 @ weights / sqrt(2 * pi)
    np.testing.assert_allclose(gaussian_second_moment(z), by_rule, rtol=1e-12)


@pytest.mark.parametrize("z", [1e-8, 1e-3, 0.3, 0.999, 1.0, 1.001, 2.5, 30.0, 1e6])
def test_gaussian_second_moment_against_adaptive_quadrature(z):
    with mpmath.workdps(30):
        density = lambda g: mpmath.exp(-(g**2) / 2) * mpmath.sqrt(2 / mpmath.pi)  # noqa: E731
        points = [0, *sorted({min(1 / z, 1), min(8 / z, 4), 14})]
        if z <= 1:
            exact = mpmath.quad(lambda g: mpmath.tanh(z * g) ** 2 * density(g), points)
        else:
            exact = 1 - mpmath.quad(lambda g: mpmath.sech(z * g) ** 2 * density(g), points)
    assert gaussian_second_moment(z) == pytest.approx(float(exact), rel=1e-14)
    if 0.1 < z < 40:
        by_scipy = integrate.quad(lambda g: tanh(z * g) ** 2 * np.exp(-(g**2) / 2) * sqrt(2 / pi), 0, 12, limit=200)[0]
        assert gaussian_second_moment(z) == pytest.approx(by_scipy, rel=1e-8)


def test_gaussian_second_moment_limits():
    assert gaussian_second_moment(0) == 0
    small, large = 1e-3, 1e3
    assert gaussian_second_moment(small) == pytest.approx(small**2 - 2 * small**4, rel=1e-10)
    assert gaussian_second_moment(large) == pytest.approx(1 - sqrt(2 / pi) / large, rel=1e-8)
    z = np.geomspace(1e-3, 1e3, 500).reshape(5, 100)
    moments = gaussian_second_moment(z)
    assert moments.shape == z.shape
    assert np.all(np.diff(moments.ravel()) > 0)
    assert np.all(moments < np.tanh(z) ** 2)


def test_gaussian_tokens_have_the_gaussian_second_moment():
    """Simulated: 4 standard errors, and the O(1/d) by which a token normalised by its own RMS lies above."""
    rng = np.random.default_rng(1)
    for d, tokens in ((16, 40_000), (1024, 1500)):
        y = bhyt(rng.normal(size=(tokens, d)), 3, 6, centred=False)
        moments = np.mean(y**2, axis=1)
        error = moments.std() / sqrt(tokens)
        expected = gaussian_second_moment(0.5)
        assert abs(moments.mean() - expected) < 4 * error + expected * 0.5 / d
        assert (moments.mean() > expected + 4 * error) == (d == 16)


# --- Shapes and errors


def test_broadcasting():
    assert variance_bound(np.zeros((3, 1)), np.ones(4), 2, 10).shape == (3, 4)
    assert second_moment_bound(0, 1, np.ones(5), 10).shape == (5,)
    assert np.ndim(variance_bound(0, 1, 2, 10)) == 0
    atoms, masses = extremal_law(np.zeros((2, 3)), 1)
    assert atoms.shape == masses.shape == (2, 3, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: variance_bound(0, -1, 2, 10), "std must be finite and >= 0; got -1.0"),
        (lambda: variance_bound(np.nan, 1, 2, 10), "mean must be finite; got nan"),
        (lambda: variance_bound([1, 0], 0, 2, 10), "mean and std must not both be 0"),
        (lambda: variance_bound(0, 1, 0, 10), "lam must be finite and > 0; got 0.0"),
        (lambda: second_moment_bound(0, 1, 2, -3), "kappa must be finite and > 0; got -3.0"),
        (
            lambda: second_moment_bound(0, 1, 2, 10, bound="exact"),
            "bound must be one of 'sharp', 'linear'; got 'exact'",
        ),
        (lambda: mean_tolerance(0), "kappa must be finite and > 0"),
        (lambda: extremal_law(0, 0), "mean and std must not both be 0"),
        (lambda: gaussian_second_moment(-0.1), "ratio must be finite and >= 0; got -0.1"),
        (lambda: gaussian_second_moment(inf), "ratio must be .* got inf"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
