"""Kurtosis of sums and of mixed vectors: enumeration in rational arithmetic, mpmath, Monte Carlo, counterexamples."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from residlab.theory import kurtosis as ku

# Laws of finitely many values: (value, probability) pairs, in fractions.
THREE_POINTS = ((-1, Fraction(1, 6)), (0, Fraction(2, 3)), (1, Fraction(1, 6)))
SKEWED = ((-2, Fraction(1, 5)), (1, Fraction(3, 5)), (3, Fraction(1, 5)))
COIN = ((-1, Fraction(1, 2)), (1, Fraction(1, 2)))
LAWS = (THREE_POINTS, SKEWED, COIN)


def central(values):
    """Mean, variance, third and fourth central moment of a finite law."""
    mean = sum(p * v for v, p in values)
    return (mean, *(sum(p * (v - mean) ** n for v, p in values) for n in (2, 3, 4)))


def excess(values):
    _, variance, _, fourth = central(values)
    return fourth / variance**2 - 3


def weighted_sum(weights, laws):
    """The law of ``sum w_j x_j``, every combination of values."""
    combinations = product(*laws)
    made = []
    for each in combinations:
        probability = Fraction(1)
        for _, p in each:
            probability *= p
        made.append((sum(w * v for w, (v, _) in zip(weights, each, strict=True)), probability))
    return made


def gaussian_rows(rng, n, d):
    return rng.standard_normal((n, d))


def haar(rng, n, m, d):
    """n corners, (m, d), of Haar matrices of the longer size."""
    long = max(m, d)
    q, r = np.linalg.qr(rng.standard_normal((n, long, long)))
    return (q * np.sign(np.einsum("nii->ni", r))[:, None, :])[:, :m, :d]


# --- One row


@pytest.mark.parametrize("weights", [(1, 1), (3, -1), (Fraction(1, 3), 2, -5), (1, 1, 1), (0, 7, 0)])
def test_equal_laws_contract_by_the_participation_exactly(weights):
    for law in LAWS:
        exact = excess(weighted_sum(weights, [law] * len(weights)))
        w = np.array([float(x) for x in weights])
        assert float(excess(law)) * ku.participation(w) == pytest.approx(float(exact), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("weights", [(1, 1, 1), (2, -3, 5), (Fraction(1, 7), 1, -1)])
def test_unequal_laws_with_means_are_the_exact_kurtosis(weights):
    exact = excess(weighted_sum(weights, LAWS))
    got = ku.sum_excess_kurtosis(
        np.array([float(w) for w in weights]),
        np.array([float(excess(law)) for law in LAWS]),
        np.array([float(central(law)[1]) for law in LAWS]),
    )
    assert got == pytest.approx(float(exact), rel=1e-12)


def test_dependent_inputs_are_outside():
    # x_2 = s x_1 with a fair coin s: uncorrelated with x_1, and of the same law.
    both = [(v + s * v, p * q) for v, p in THREE_POINTS for s, q in COIN]
    assert central([(s * v * v, p * q) for v, p in THREE_POINTS for s, q in COIN])[0] == 0
    independent = float(excess(THREE_POINTS)) * ku.participation([1.0, 1.0])
    assert independent == 0.0  # for this law: kurtosis 0; the dependent pair has another
    assert float(excess(both)) == pytest.approx(3.0)


weights_lists = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12)


@given(weights_lists, st.data())
def test_participation_and_channels_stay_in_range(w, data):
    d = len(w)
    v = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=d, max_size=d))
    assume(max(abs(x) for x in w) > 1e-3)
    assert 1 / d * (1 - 1e-12) <= ku.participation(w) <= 1 + 1e-12
    assert 1 - 1e-12 <= ku.effective_channels(w, v) <= d * (1 + 1e-12)
    k = data.draw(st.lists(st.floats(-2, 1e3), min_size=d, max_size=d))
    assert min(0, min(k)) - 1e-9 <= ku.sum_excess_kurtosis(w, k, v) <= max(0, max(k)) * (1 + 1e-12) + 1e-9


def test_what_is_flat_and_what_is_not():
    assert ku.participation(np.ones(64)) == pytest.approx(1 / 64)
    assert ku.participation([0, 0, -3.0, 0]) == 1
    assert ku.participation(np.eye(5)[[2, 0, 1, 4, 3]]) == pytest.approx(np.ones(5))  # a permutation: an isometry
    # One loud channel among 512: the row is as flat as can be, and averages over next to nothing.
    variances = np.ones(512)
    variances[3] = 1e6
    assert ku.effective_channels(np.ones(512), variances) == pytest.approx(1, abs=2e-3)
    assert ku.effective_channels(np.ones(512) * 1e200) == pytest.approx(512)
    assert ku.effective_channels(np.ones(512) * 1e-200) == pytest.approx(512)


def test_isometry_is_not_needed():
    w = np.ones((4, 64))  # rank one, as far from an isometry as can be: all rows flat
    assert ku.participation(w) == pytest.approx(np.full(4, 1 / 64))


@pytest.mark.parametrize("d", [1, 2, 3, 16, 256])
def test_participation_of_gaussian_rows(d):
    rng = np.random.default_rng(d)
    n = 20_000
    ipr = ku.participation(gaussian_rows(rng, n, d))
    mean, variance = ku.participation_mean(d), ku.participation_variance(d)
    assert abs(ipr.mean() - mean) <= 5 * np.sqrt(variance / n) + 1e-12
    fourth = ((ipr - ipr.mean()) ** 4).mean()
    assert abs(ipr.var() - variance) <= 5 * np.sqrt((fourth - ipr.var() ** 2 + 1e-30) / n)


def test_a_sparse_gaussian_row_averages_over_its_entries_only():
    rng = np.random.default_rng(1)
    w = np.zeros((40_000, 256))
    w[:, :8] = rng.standard_normal((40_000, 8))
    assert ku.participation(w).mean() == pytest.approx(ku.participation_mean(8), rel=0.01)


# --- Pooled


def test_pooled_is_the_kurtosis_of_the_mixture_exactly():
    # Three channels, each a law of finitely many values: the pooled sample is their mixture.
    laws = (THREE_POINTS, SKEWED, tuple((3 * v + 2, p) for v, p in COIN))
    mixture = [(v, p / 3) for law in laws for v, p in law]
    moments = [central(law) for law in laws]
    got = ku.pooled_excess_kurtosis(
        [float(v) for _, v, _, _ in moments],
        [float(fourth / v**2 - 3) for _, v, _, fourth in moments],
        [float(m) for m, *_ in moments],
        [float(third) / float(v) ** 1.5 for _, v, third, _ in moments],
    )
    assert got == pytest.approx(float(excess(mixture)), rel=1e-12)


def test_gaussian_channels_of_two_sizes_look_heavy_tailed():
    assert ku.pooled_excess_kurtosis([1.0, 9.0], 0.0) == pytest.approx(3 * (41 / 25 - 1))


@pytest.mark.parametrize(
    ("m", "d", "law"), [(6, 6, "haar"), (3, 6, "haar"), (9, 6, "haar"), (6, 6, "gaussian"), (3, 7, "gaussian")]
)
def test_expected_pooled_kurtosis_of_random_matrices(m, d, law):
    rng = np.random.default_rng(m * d)
    k, n = 4.0, 5_000
    W = haar(rng, n, m, d) if law == "haar" else rng.standard_normal((n, m, d))
    seen = ku.pooled_excess_kurtosis((W**2).sum(-1), k * ku.participation(W))
    error = seen.std() / np.sqrt(n)
    assert abs(seen.mean() - ku.pooled_mean(m, d, k, law)) <= 5 * error + 1e-12


def test_pooled_mean_at_its_edges():
    assert ku.pooled_mean(64, 64, 3.0, "haar") == pytest.approx(9 / 66)
    assert ku.pooled_mean(64, 256, 3.0, "haar") == pytest.approx(9 / 258)
    assert ku.pooled_mean(1, 16, 3.0, "gaussian") == pytest.approx(9 / 18)  # one channel: no lengths to differ
    assert ku.pooled_mean(10**6, 256, 0.0, "gaussian") == pytest.approx(6 / 256, rel=1e-4)
    # k = -2 from two-point inputs, one input, orthonormal column: x_1 times a row of the sphere.
    assert ku.pooled_mean(8, 1, -2.0, "haar") == pytest.approx((-48 + 42) / 10)


# --- What breaks it


@pytest.mark.parametrize("nu", [5.0, 8.0, 30.0])
def test_a_multivariate_t_keeps_its_kurtosis_under_any_mixing(nu):
    # w.x = |w| times one of its entries in law: Student's, whose excess kurtosis is 6/(nu - 4).
    assert ku.common_radius_excess_kurtosis(ku.student_radius_ratio(nu)) == pytest.approx(6 / (nu - 4))


def test_a_common_radius_survives_mixing_exactly():
    # r in {1, 2} with probabilities 4/5, 1/5, times Gaussians: every linear form has the same kurtosis.
    second, fourth = 4 / 5 + 4 / 5, 4 / 5 + 16 / 5
    rng = np.random.default_rng(3)
    x = np.where(rng.random((400_000, 1)) < 0.2, 2.0, 1.0) * rng.standard_normal((400_000, 8))
    wanted = ku.common_radius_excess_kurtosis(fourth / second**2)
    for w in (np.eye(8)[0], np.ones(8), rng.standard_normal(8)):
        y = x @ w
        assert (y**4).mean() / (y**2).mean() ** 2 - 3 == pytest.approx(wanted, abs=0.1)
    # what independence would promise for a flat row
    assert ku.sum_excess_kurtosis(np.ones(8), wanted) == pytest.approx(wanted / 8)


def test_a_haar_rotation_leaves_the_length_only():
    rng = np.random.default_rng(4)
    d, n = 6, 200_000
    one_giant = np.zeros((n, d))
    one_giant[:, 0] = 1  # every token the same: as dependent and as unequal as can be
    laplace = rng.laplace(size=(n, d))
    for x in (one_giant, laplace):
        squares = (x**2).sum(1)
        rho = (squares**2).mean() / squares.mean() ** 2
        direction = gaussian_rows(rng, n, d)
        y = (x * direction).sum(1) / np.linalg.norm(direction, axis=1)  # an entry of O x, a new O for each x
        error = np.std(y**4) / (y**2).mean() ** 2 / np.sqrt(n)
        assert abs((y**4).mean() / (y**2).mean() ** 2 - 3 - ku.rotated_excess_kurtosis(rho, d)) <= 5 * error
    assert ku.rotated_excess_kurtosis(1.0, 64) == pytest.approx(-6 / 66)


@given(st.floats(-2, 50), st.integers(1, 4096))
def test_rotation_of_independent_entries_is_the_mean_contraction(k, d):
    assume(1 + (k + 2) / d >= 1)
    got = ku.rotated_excess_kurtosis(1 + (k + 2) / d, d)
    assert got == pytest.approx(k * ku.participation_mean(d), abs=1e-9)


def test_raw_moments_of_a_shifted_law_exactly():
    for shift in (Fraction(1, 2), 3, -20):
        moved = [(v + shift, p) for v, p in SKEWED]
        second, fourth = (sum(p * v**n for v, p in moved) for n in (2, 4))
        mean, variance, third, _ = (float(x) for x in central(moved))
        got = ku.raw_excess_kurtosis(float(excess(SKEWED)), mean, variance, third / variance**1.5)
        assert got == pytest.approx(float(fourth / second**2 - 3), rel=1e-11)
    assert ku.raw_excess_kurtosis(1000.0, 1e5) == pytest.approx(-2, abs=1e-6)


# --- Activations


def reference_kurtosis(f):
    mpmath.mp.dps = 25

    def mean(g):
        return mpmath.quad(lambda z: g(z) * mpmath.npdf(z), [-20, -5, 0, 5, 20])

    m = mean(f)
    second, fourth = (mean(lambda z, n=n: (f(z) - m) ** n) for n in (2, 4))
    return fourth / second**2 - 3, second, fourth


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
def test_activations_against_mpmath(scale):
    def silu(z):
        return scale * z / (1 + mpmath.exp(-scale * z))

    gelu, _, _ = reference_kurtosis(lambda z: scale * z * mpmath.ncdf(scale * z))
    second, fourth = (mpmath.quad(lambda z, n=n: silu(z) ** n * mpmath.npdf(z), [-20, -5, 0, 5, 20]) for n in (2, 4))
    assert ku.activation_excess_kurtosis("gelu", scale) == pytest.approx(float(gelu), rel=1e-9)
    assert ku.activation_excess_kurtosis("swiglu", scale) == pytest.approx(float(3 * fourth / second**2 - 3), rel=1e-9)


def test_relu_in_closed_form_and_scale_free():
    pi = np.pi
    second = 1 / 2 - 1 / (2 * pi)
    fourth = 3 / 2 - 4 / np.sqrt(2 * pi) * 2 / np.sqrt(2 * pi) + 6 / (2 * pi) / 2 - 3 / (2 * pi) ** 2
    assert ku.activation_excess_kurtosis("relu", [0.1, 1, 10]) == pytest.approx(
        np.full(3, fourth / second**2 - 3), rel=1e-9
    )


# --- Refusals


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ku.participation([0.0, 0.0]), "above zero"),
        (lambda: ku.participation([1.0, np.nan]), "weights must be finite"),
        (lambda: ku.effective_channels([1.0], [-1.0]), "variances"),
        (lambda: ku.sum_excess_kurtosis([1.0], [-2.1]), ">= -2"),
        (lambda: ku.participation_mean(0), "d must be an integer"),
        (lambda: ku.participation_mean(2.5), "d must be an integer"),
        (lambda: ku.pooled_mean(4, 4, 0.0, "uniform"), "law must be one of"),
        (lambda: ku.pooled_excess_kurtosis([0.0, 0.0], 0.0), "pooled variance"),
        (lambda: ku.rotated_excess_kurtosis(0.9, 4), "radius_ratio"),
        (lambda: ku.student_radius_ratio(4.0), "nu must be"),
        (lambda: ku.activation_excess_kurtosis("tanh"), "activation must be one of"),
        (lambda: ku.activation_excess_kurtosis("gelu", 0.0), "scale"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
