"""Kurtosis through depth: hypergeometric closed forms in mpmath, simulated chains, exact small cases, limits."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from residlab.theory import kurtosis_depth as kd
from residlab.theory.kurtosis import participation, participation_mean, sum_excess_kurtosis


def haar(rng, d, n=1):
    """n Haar matrices, (n, d, d)."""
    q, r = np.linalg.qr(rng.standard_normal((n, d, d)))
    return q * np.sign(np.einsum("nii->ni", r))[:, None, :]


def eigenvalue_in_closed_form(d, a, b):
    """``E P_4(c)`` from ``E n, E n**2, E 1/n, E 1/n**2``, ``n = |a e + b u|**2``: hypergeometric spherical means."""
    mpmath.mp.dps = 40
    d, a, b = mpmath.mpf(d), mpmath.mpf(a), mpmath.mpf(b)
    m, r2, delta = max(a, b) ** 2, (min(a, b) / max(a, b)) ** 2, a**2 - b**2
    inverse = mpmath.hyp2f1(1, 2 - d / 2, d / 2, r2) / m
    inverse2 = mpmath.hyp2f1(2, 3 - d / 2, d / 2, r2) / m**2
    n, n2 = a**2 + b**2, (a**2 + b**2) ** 2 + 4 * a**2 * b**2 / d
    c2 = (n + 2 * delta + delta**2 * inverse) / (4 * a**2)
    c4 = (n2 + 4 * delta * n + 6 * delta**2 + 4 * delta**3 * inverse + delta**4 * inverse2) / (16 * a**4)
    return float(((d + 2) * (d + 4) * c4 - 6 * (d + 2) * c2 + 3) / (d**2 - 1))


# --- One layer


@pytest.mark.parametrize("d", [8, 9, 16, 64, 577, 4096])
@pytest.mark.parametrize("a", [0.1, 0.5, 0.7, 0.9, 1.0, 3.0])
def test_the_eigenvalue_against_its_closed_form(d, a):
    for b in (0.3, 0.7, 1.0):
        assert kd.layer_eigenvalue(d, a, b) == pytest.approx(eigenvalue_in_closed_form(d, a, b), rel=1e-11, abs=1e-13)


def test_the_eigenvalue_in_the_plane_is_known_by_hand():
    # d = 2: cos 4 theta, a contour integral: 1 - 4 r**2 + 3 r**4 with r = b/a < 1, and 0 for a < b.
    for r in (0.1, 0.4, 0.6):
        assert kd.layer_eigenvalue(2, 1.0, r) == pytest.approx(1 - 4 * r**2 + 3 * r**4, abs=1e-9)
        assert kd.layer_eigenvalue(2, r, 1.0) == pytest.approx(0, abs=1e-9)


def test_legendre_4_is_the_classical_one():
    from numpy.polynomial.legendre import legval

    c = np.linspace(-1, 1, 41)
    assert kd.legendre_4(c, 3) == pytest.approx(legval(c, [0, 0, 0, 0, 1]), abs=1e-13)
    assert kd.legendre_4(c, 2) == pytest.approx(np.cos(4 * np.arccos(c)), abs=1e-12)
    assert kd.legendre_4(1.0, np.array([2, 5, 100])) == pytest.approx(np.ones(3))


@settings(max_examples=40)
@given(st.integers(8, 2048), st.floats(0, 1), st.sampled_from(["haar", "gaussian"]))
def test_a_layer_never_contracts_below_the_floor_by_much_nor_expands(d, a, law):
    b = np.sqrt(1 - a * a)
    factor = kd.residual_contraction(d, a, b, law)
    assert 1 / d <= factor <= 1 + 1e-12
    assert factor >= a**4 * (1 - 16 / d) - 1e-12  # not O(1/d) for a bounded below
    assert kd.layer_eigenvalue(d, 7 * a, 7 * b, law) == pytest.approx(kd.layer_eigenvalue(d, a, b, law), abs=1e-11)


def test_the_ends():
    assert kd.residual_contraction(64, 0.0, 1.0) == pytest.approx(3 / 66)
    assert kd.residual_contraction(64, 0.0, 1.0, "gaussian") == pytest.approx(3 / 66)
    assert kd.residual_contraction(64, 1.0, 0.0) == pytest.approx(1)


@pytest.mark.parametrize("a", [0.3, 0.5, np.sqrt(0.5), 0.9])
def test_the_order_one_over_d(a):
    b2 = 1 - a * a
    for d in (256, 4096, 65536):
        to_order = a**4 + (3 * (1 - a**4) - 4 * a**4 * b2 * (1 + 3 * b2)) / d
        assert abs(kd.residual_contraction(d, a, np.sqrt(b2)) - to_order) <= 12 / d**2
    # (a**4 + 3 b**4/(d+2)) leaves out the cross terms 6 a**2 b**2 / d and misses the order 1/d
    assert d * (kd.residual_contraction(d, a, np.sqrt(b2)) - a**4 - 3 * b2**2 / (d + 2)) == pytest.approx(
        6 * a * a * b2 - 4 * a**4 * b2 * (1 + 3 * b2), rel=1e-3
    )


@pytest.mark.parametrize("law", ["haar", "gaussian"])
def test_one_layer_as_drawn(law):
    rng = np.random.default_rng(7)
    d, a, b, n = 12, 0.6, 0.8, 4000
    W = haar(rng, d, n) if law == "haar" else rng.standard_normal((n, d, d)) / np.sqrt(d)
    seen = participation(a * np.eye(d) + b * W).mean(-1)
    error = np.std(seen) / np.sqrt(len(seen))
    assert abs(np.mean(seen) - kd.residual_contraction(d, a, b, law)) <= 4.5 * error


def test_a_fixed_matrix_may_do_anything():
    # -I is Haar-typical in nothing: outside the mean over W there is no bound. A permutation halves at a = b.
    cycle = np.roll(np.eye(6), 1, axis=1)
    assert participation(np.eye(6) + cycle) == pytest.approx(np.full(6, 1 / 2))
    with pytest.raises(ValueError, match="above zero"):
        participation(np.eye(6) - np.eye(6))


# --- Chains


@pytest.mark.parametrize("a", [0.0, 0.5, 0.9])
def test_chains_as_drawn(a):
    rng = np.random.default_rng(11)
    d, depth, n, b = 8, 4, 3000, np.sqrt(1 - a * a)
    ratios, fourths = np.empty((n, depth + 1)), np.empty((n, depth + 1))
    M = np.broadcast_to(np.eye(d), (n, d, d))
    for layer in range(depth + 1):
        ratios[:, layer] = participation(M).mean(-1)
        fourths[:, layer] = (M**4).sum(-1).mean(-1)
        M = (a * np.eye(d) + b * haar(rng, d, n)) @ M
    for seen, wanted in (
        (ratios, kd.chain_participation(d, a, b, depth)),
        (fourths, kd.chain_fourth_moment(d, a, b, depth)),
    ):
        error = seen.std(0) / np.sqrt(n)
        assert np.all(np.abs(seen.mean(0) - wanted) <= 4.5 * error + 1e-12), (seen.mean(0), wanted, error)


def test_a_chain_without_residual_stays_on_its_floor_and_can_come_back():
    g = kd.chain_participation(64, 0.0, 1.0, 50)
    assert g[1:] == pytest.approx(np.full(50, 3 / 66))
    W = haar(np.random.default_rng(0), 16)[0]
    assert participation(W).mean() < 0.3
    assert participation(W.T @ W) == pytest.approx(np.ones(16))  # dependent layers: all of it comes back


def test_layers_of_their_own_weights_multiply():
    a, b = np.array([0.9, 0.1, 0.5]), np.array([0.2, 1.0, 0.5])
    F = participation_mean(32)
    lam = kd.layer_eigenvalue(32, a, b)
    assert kd.chain_participation(32, a, b, 3)[-1] == pytest.approx(F + (1 - F) * lam.prod())
    assert kd.chain_participation(32, a[::-1], b[::-1], 3)[-1] == pytest.approx(F + (1 - F) * lam.prod())


@pytest.mark.parametrize("a", [0.5, 0.9, 0.99])
def test_the_error_of_infinite_width(a):
    d, depth, b2 = 512, 12, 1 - a * a
    exact, wide = (f(d, a, np.sqrt(b2), depth) for f in (kd.chain_participation, kd.chain_participation_wide))
    F, layers = participation_mean(d), np.arange(depth + 1)
    first_order = (1 - F) * a ** (4 * layers) * layers * 4 * b2 * (1 + 3 * b2) / d
    assert np.all(wide >= exact - 1e-15)
    assert wide - exact == pytest.approx(first_order, rel=0.15, abs=1e-6)


@given(st.integers(2, 512), st.floats(0.01, 1), st.floats(0, 2), st.integers(1, 40))
def test_the_fourth_moment_is_that_of_the_mean_value_property(d, a, b, depth):
    g = kd.chain_fourth_moment(d, a, b, depth)
    s, F = a * a + b * b, 3 / (d + 2)
    layers = np.arange(1, depth + 1)
    wanted = F * (1 + 4 * a * a * b * b / (d * s * s)) ** layers + (1 - F) * (a * a / s) ** (2 * layers)
    np.testing.assert_allclose(g[1:], wanted, rtol=1e-10)


def test_pooled_kurtosis_of_a_residual_chain_grows_from_gaussian_inputs():
    rng = np.random.default_rng(12)
    d, depth, a, b, n, k = 8, 6, 0.8, 0.6, 4000, 5.0
    M = np.broadcast_to(np.eye(d), (n, d, d))
    for _layer in range(depth):
        M = (a * np.eye(d) + b * haar(rng, d, n)) @ M
    squares, fourths = (M**2).sum(-1), (M**4).sum(-1)  # of each output channel: variance, and fourth cumulant over k
    fourth = (k * fourths + 3 * squares**2).mean(-1)
    error = fourth.std() / np.sqrt(n) / squares.mean() ** 2
    assert squares.mean() == pytest.approx(1, abs=0.01)
    assert abs(fourth.mean() - 3 - kd.chain_pooled(d, a, b, depth, k)[-1]) <= 4.5 * error
    assert kd.chain_pooled(64, 0.8, 0.6, 200, 0.0)[-1] > 3
    assert kd.chain_pooled(64, 0.0, 1.0, 200, 3.0)[1:] == pytest.approx(np.full(200, 9 / 66))


# --- Injection


def test_the_closure_and_where_it_goes():
    k = kd.closure(0.5, 1.0, 10.0, 60)
    assert k[1] == 6.0
    assert k[-1] == pytest.approx(kd.closure_fixed_point(0.5, 1.0))
    assert kd.closure(1.0, 0.25, 0.0, 8) == pytest.approx(0.25 * np.arange(9))
    assert np.isposinf(kd.closure_fixed_point(1.0, 0.1))
    assert kd.closure_fixed_point(1.0, 0.0) == 0


def test_the_closure_forgets_what_a_chain_transports():
    d, depth = 16, 30
    rng = np.random.default_rng(5)
    F = 3 / (d + 2)
    wanted = kd.transported(kd.chain_participation(d, 0.0, 1.0, depth), 1.0, 2.0)
    assert wanted[-1] == pytest.approx(1 + (depth - 1) * F + 2 * F)
    # The fourth cumulant itself, carried through random rotations: a source of 1 at every layer, variances all 1.
    M, seen = np.broadcast_to(np.eye(d), (300, d, d)), np.zeros(300)
    for _layer in range(depth):
        seen += participation(M).mean(-1)
        M = M @ haar(rng, d, 300)
    seen += 2 * participation(M).mean(-1)
    error = np.std(seen) / np.sqrt(len(seen))
    assert abs(np.mean(seen) - wanted[-1]) <= 4.5 * error
    assert kd.closure(F, 1.0, 2.0, depth)[-1] == pytest.approx(1 / (1 - F))


@given(
    st.floats(-2, 100),
    st.floats(-2, 100),
    st.lists(st.tuples(st.floats(0.01, 3), st.floats(0.01, 3)), min_size=1, max_size=12),
)
def test_independent_branches_accumulate_and_do_not_amplify(initial, branch, weights):
    a, b = np.array(weights).T
    k = kd.accumulated_excess_kurtosis(initial, branch, len(weights), a=a, b=b)
    assert np.all(k <= max(initial, branch, 0) * (1 + 1e-12) + 1e-12)
    # the same sum, written out
    scales = [float(np.prod(a))] + [float(b[i] * np.prod(a[i + 1 :])) for i in range(len(b))]
    assert k[-1] == pytest.approx(sum_excess_kurtosis(scales, [initial] + [branch] * len(b)), rel=1e-9, abs=1e-12)


def test_accumulation_in_closed_form():
    layers = np.arange(11)
    assert kd.accumulated_excess_kurtosis(3.0, 2.0, 10) == pytest.approx((3 + 2 * layers) / (1 + layers) ** 2)
    a, b = 0.6, 0.8
    assert kd.accumulated_excess_kurtosis(3.0, 2.0, 200, a=a, b=b)[-1] == pytest.approx(2 * b**2 / (1 + a**2))


def test_dependent_branches_do_amplify():
    # f = x: the stream doubles, its kurtosis stays 3; independence would have halved it and more.
    assert kd.accumulated_excess_kurtosis(3.0, 3.0, 1)[-1] == pytest.approx(1.5)
    # x a sum of coins, nearly Gaussian; f = s x with one more coin s: uncorrelated with x, and of the same law. The sum
    # is 0 or 2 x, evenly: E y**4 / (E y**2)**2 doubles, the excess goes from k to 2 k + 3. Exactly:
    values = {n: Fraction(comb(16, n), 2**16) for n in range(17)}
    second, fourth = (sum(p * (2 * n - 16) ** m for n, p in values.items()) for m in (2, 4))
    k = float(fourth / second**2 - 3)
    both = float(16 * fourth / 2 / (4 * second / 2) ** 2 - 3)
    assert both == pytest.approx(2 * k + 3)
    assert kd.accumulated_excess_kurtosis(k, k, 1)[-1] == pytest.approx(k / 2)  # what independence would give
    assert k < 0 < 2.5 < both


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: kd.layer_eigenvalue(1, 1.0, 1.0), "d must be an integer >= 2"),
        (lambda: kd.layer_eigenvalue(8, 0.0, 0.0), "larger of a and b"),
        (lambda: kd.layer_eigenvalue(8, -1.0, 1.0), "a must be"),
        (lambda: kd.layer_eigenvalue(8, 1.0, 1.0, "uniform"), "law must be one of"),
        (lambda: kd.chain_participation(8, 1.0, 1.0, 0), "depth must be"),
        (lambda: kd.closure(-0.1, 0.0, 0.0, 3), "factor"),
        (lambda: kd.closure_fixed_point(1.1, 0.0), "in \\[0, 1\\]"),
        (lambda: kd.transported([1.2], 0.0, 0.0), "participations"),
        (lambda: kd.accumulated_excess_kurtosis(-3.0, 0.0, 1), "initial"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
