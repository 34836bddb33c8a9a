"""Condition numbers against mpmath, the constant 3 attacked, absorption against exact fractions in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax
from scipy.special import softmax as scipy_softmax
from tests.precision.oracle import round_fraction, sum_fractions

from residlab.precision.accumulation import PAIRWISE, RECURSIVE
from residlab.precision.formats import BF16, FP16, Format
from residlab.precision.rounding import rounded
from residlab.precision.summation import summed
from residlab.theory import softmax as theory

LOGITS = arrays(np.float64, st.integers(2, 12), elements=st.floats(-60, 60, allow_subnormal=False))
SOME = np.array([[1.5, -0.5, 0.0, 3.0], [2.0, -np.inf, 2.0, 1.0], [-np.inf] * 4])


def test_softmax_is_that_of_scipy_and_masks_count_for_nothing():
    x = np.random.default_rng(0).normal(size=(3, 5, 7)) * 30
    np.testing.assert_allclose(theory.softmax(x), scipy_softmax(x, axis=-1), rtol=1e-13)
    s = theory.softmax(SOME)
    np.testing.assert_allclose(s[1, [0, 2, 3]], scipy_softmax([2.0, 2.0, 1.0]), rtol=1e-13)
    assert s[1, 1] == 0
    assert s[2].tolist() == [0, 0, 0, 0]
    for function in (theory.condition_number, theory.normwise_condition):
        np.testing.assert_allclose(function(SOME)[1], function(np.array([2.0, 2.0, 1.0])), rtol=1e-13)
        assert function(SOME)[2] == 0
    assert theory.shifted(SOME)[1].tolist() == [0, -np.inf, 0, -1]


@settings(max_examples=25, deadline=None)
@given(arrays(np.float64, st.integers(1, 5), elements=st.floats(-8, 8, allow_subnormal=False)))
def test_sensitivities_are_the_worst_corner_of_the_box(x):
    """All signs of all perturbations, one part in 10^20, in 60 digits."""
    with mpmath.workdps(60):
        epsilon = mpmath.mpf(10) ** -20

        def weights(logits):
            e = [mpmath.exp(v) for v in logits]
            return [v / sum(e) for v in e]

        exact = [mpmath.mpf(float(v)) for v in x]
        base = weights(exact)
        worst = np.zeros(len(x))
        size = float(np.abs(x).max())
        normwise = 0.0
        for signs in itertools.product((-1, 1), repeat=len(x)):
            moved = weights([v * (1 + sign * epsilon) for v, sign in zip(exact, signs, strict=True)])
            change = [float(abs(a / b - 1) / epsilon) for a, b in zip(moved, base, strict=True)]
            worst = np.maximum(worst, change)
            moved = weights([v + sign * epsilon * size for v, sign in zip(exact, signs, strict=True)])
            normwise = max(normwise, *(float(abs(a / b - 1) / epsilon) for a, b in zip(moved, base, strict=True)))
    np.testing.assert_allclose(theory.sensitivities(x), worst, rtol=1e-9, atol=1e-12)
    assert theory.normwise_condition(x) == pytest.approx(normwise, rel=1e-9, abs=1e-12)


@settings(max_examples=300)
@given(LOGITS)
@example(np.log(1e15) * np.eye(12)[0])
@example(np.array([-1e-9, -3.0, -60.0]))
def test_no_shift_triples_the_condition_number(x):
    c = theory.condition_number(x)
    assume(c > 1e-200)
    z = theory.shifted(x)
    assert theory.condition_number(z) < 3 * c * (1 + 1e-12)
    assert np.abs(z).max() <= 2 * np.abs(x).max() * (1 + 1e-15)
    # The steps of the proof.
    s, top, before, after = theory.softmax(x), x.argmax(), theory.sensitivities(x), theory.sensitivities(z)
    room = 1e-12 * (1 + np.abs(x).max())
    assert after[top] <= before[top] + room
    assert before[top] >= (1 - s[top]) * abs(x[top]) - room
    others = np.arange(len(x)) != top
    assert np.all((after <= before + 2 * (1 - s - s[top]) * abs(x[top]) + room)[others])


def test_three_is_the_supremum():
    for n in (3, 4, 10, 100, 10**6):
        x = theory.shift_family(n)
        ratio = theory.condition_number(theory.shifted(x)) / theory.condition_number(x)
        assert ratio == pytest.approx(3 - 2 / (n - 1), rel=1e-12)
        assert ratio < theory.SHIFT_SUPREMUM
    # Both perturbed, x and z: 4.
    assert 1 + ratio == pytest.approx(4, abs=1e-5)


def test_a_search_beats_the_family_and_not_three():
    """Hill climbing from the family: better than 3 - 2/(N - 1) from N = 4 on, but not at N = 3."""
    rng = np.random.default_rng(1)

    def ratio(x):
        return theory.condition_number(theory.shifted(x)) / theory.condition_number(x)

    for n, beaten in ((3, False), (5, True), (8, True)):
        x = theory.shift_family(n) + np.geomspace(1e-3, 1, 100)[:, None] * rng.standard_normal((100, n))
        reached = ratio(x)
        for step in np.geomspace(1, 1e-4, 300):
            moved = x + step * rng.standard_normal(x.shape) * (rng.random(x.shape) < 2 / n)
            better = ratio(moved) > reached
            x = np.where(better[:, None], moved, x)
            reached = ratio(x)
        assert reached.max() < 3
        assert (reached.max() > 3 - 2 / (n - 1) + 1e-4) == beaten


def test_what_a_shift_may_do_otherwise():
    """Twice the norm for (a, -a); nothing left of large equal logits; and no bound for another shift."""
    x = np.array([7.0, -7.0])
    assert theory.normwise_condition(theory.shifted(x)) == pytest.approx(2 * theory.normwise_condition(x))
    equal = np.full(3, 1e6)
    assert theory.condition_number(theory.shifted(equal)) == 0
    assert theory.condition_number(equal) > 1e6
    wrong = x - 1e5
    assert theory.condition_number(wrong) > 1e3 * theory.condition_number(x)
    assert theory.condition_number(np.zeros(4)) == 0
    assert theory.condition_number(np.array([5.0])) == 0


def terms_of(fmt):
    """Numbers of a format between 2^-12 and 2, often of one size, so that some are absorbed."""
    low = 2 ** (fmt.t - 1)
    number = st.builds(lambda n, e: Fraction(n) * Fraction(2) ** e, st.integers(low, 2 * low - 1), st.integers(-14, -5))
    zero = st.just(Fraction(0))
    return st.lists(st.one_of(number, number, number, zero), min_size=1, max_size=14)


def added_in_any_order(terms, fmt, draw):
    """Merge two random summands at a time; returns the sum and the depth of the tree."""
    left = [(term, 0) for term in terms]
    while len(left) > 1:
        (a, i), (b, j) = (left.pop(draw(st.integers(0, len(left) - 1))) for _ in range(2))
        left.append((Fraction(round_fraction(a + b, fmt)), max(i, j) + 1))
    return left[0]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_absorption_in_any_order(data, t):
    """Loss at most B S: exactly, for every tree of additions; gain by its depth."""
    fmt = Format.of(t)
    terms = [Fraction(round_fraction(term, fmt)) for term in data.draw(terms_of(fmt))]
    exact = sum(terms, Fraction(0))
    assume(exact > 0)
    total, depth = added_in_any_order(terms, fmt, data.draw)
    u = Fraction(fmt.u)
    bound = sum(min(term, u * exact) for term in terms) - min(max(terms), u * exact)
    assert exact - total <= bound
    p = np.array([float(term / exact) for term in terms])
    assert theory.absorption_bound(p, fmt.u) == pytest.approx(float(bound / exact), rel=1e-12, abs=1e-15)
    assert theory.absorption_bound(p, fmt.u) <= fmt.u * theory.effective_terms(p, fmt.u) + 1e-15
    assert float(total / exact) - 1 <= theory.gain_bound(p, fmt.u, depth) * (1 + 1e-12) + 1e-15


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 6))
def test_recursive_sums_lie_in_their_enclosure_and_gain_no_more_than_allowed(data, t):
    fmt = Format.of(t)
    terms = [Fraction(round_fraction(term, fmt)) for term in data.draw(terms_of(fmt))]
    exact = sum(terms, Fraction(0))
    assume(exact > 0)
    row = np.array([float(term) for term in terms])
    for order in (RECURSIVE, PAIRWISE):
        total = sum_fractions(terms, fmt, order)
        low, high = theory.sum_enclosure(row, row, fmt.u, order.name)
        assert low * (1 - 1e-12) <= total <= high * (1 + 1e-12)
        if order is RECURSIVE and total > exact:
            gained = float((Fraction(total) - exact) / exact)
            assert gained <= theory.gain_bound(row / float(exact), fmt.u) * (1 + 1e-12) + 1e-15


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(3, 8))
def test_enclosures_of_uncertain_terms(data, t):
    """Bounds of the terms become bounds of the sum."""
    fmt = Format.of(t)
    terms = [Fraction(round_fraction(term, fmt)) for term in data.draw(terms_of(fmt))]
    row = np.array([float(term) for term in terms])
    slack = data.draw(st.floats(0, 0.3))
    for order in (RECURSIVE, PAIRWISE):
        low, high = theory.sum_enclosure(row * (1 - slack), row * (1 + slack), fmt.u, order.name)
        assert low * (1 - 1e-12) <= sum_fractions(terms, fmt, order) <= high * (1 + 1e-12)


def test_the_bound_is_attained_and_the_order_matters():
    """All of a tail is lost behind a sink, B exactly; in front of it, hardly anything."""
    tail = [Fraction(1, 2**12)] * 200
    one = [Fraction(1)]
    exact = sum(one + tail)
    p = np.array([float(v / exact) for v in one + tail])
    first, last = (Fraction(sum_fractions(row, BF16, RECURSIVE)) for row in (one + tail, tail + one))
    assert float((exact - first) / exact) == pytest.approx(float(theory.absorption_bound(p, BF16.u)), rel=1e-12)
    assert abs(last - exact) * 10 < exact - first
    row = np.array([float(v) for v in one + tail])
    width = [np.subtract(*theory.sum_enclosure(r, r, BF16.u)[::-1]) for r in (row, row[::-1])]
    assert width[1] < 0.6 * width[0]  # by u N / 2, and the last addition
    gain = [Fraction(1)] + [Fraction(2**7 + 1, 2**15)] * 30  # just above half a gap: each is rounded up
    total, exact = Fraction(sum_fractions(gain, BF16, RECURSIVE)), sum(gain)
    allowed = theory.gain_bound(np.array([float(v / exact) for v in gain]), BF16.u)
    assert 0.7 * float(allowed) < float((total - exact) / exact) <= float(allowed)


def test_a_plain_count_of_unabsorbed_terms_bounds_nothing():
    """256 terms of u/2 behind a sink: one term is not absorbed, a third of the sum is lost."""
    row = [Fraction(1)] + [Fraction(1, 2**9)] * 256
    total = Fraction(sum_fractions(row, BF16, RECURSIVE))
    assert total == 1
    p = np.array([float(v / sum(row)) for v in row])
    assert np.sum(p > BF16.u) == 1
    assert theory.effective_terms(p, BF16.u) == pytest.approx(1 + 256 / 3)
    assert theory.absorption_bound(p, BF16.u) == pytest.approx(1 / 3)
    assert theory.absorbed_weight(p, BF16.u) == pytest.approx(1 / 3)


def test_broken_hypotheses():
    """Signs, flushing to zero, overflow: each exceeds B."""
    mixed = [Fraction(1), Fraction(1, 2**9), Fraction(-1)]
    total = Fraction(sum_fractions(mixed, BF16, RECURSIVE))
    exact = sum(mixed)
    assert exact - total == exact > sum(min(abs(v), Fraction(BF16.u) * exact) for v in mixed[1:])
    flushing = replace(FP16, subnormals=False)
    tiny = [Fraction(1, 2**14), Fraction(-1, 2**14) * (1 + Fraction(1, 2**10))]
    assert Fraction(sum_fractions(tiny, flushing, RECURSIVE)) == 0 != sum(tiny)
    assert round_fraction(Fraction(40000) * 2, FP16) == np.inf


@settings(max_examples=50)
@given(arrays(np.float64, st.integers(1, 50), elements=st.floats(1e-30, 1)), st.integers(2, 24))
def test_effective_terms(e, t):
    p, u = e / e.sum(), 2.0**-t
    n = theory.effective_terms(p, u)
    assert min(1, p.max() / u) - 1e-12 <= n <= min(len(p), 1 / u) + 1e-9
    assert theory.effective_terms(p, u / 2) >= n - 1e-12
    assert theory.absorbed_weight(p, u) <= u * n + 1e-15
    assert theory.gain_bound(p, u) >= 0


def test_the_reference_case():
    """float16, N = 8192, the largest 12 above the others: error 2e-3 to 4e-3, where the classical bound is 4."""
    x = np.random.default_rng(0).standard_normal(8192)
    x[0] = x[1:].max() + 12
    e = rounded(torch.from_numpy(np.exp(x - x[0])), FP16)
    exact = float(e.sum())
    error = 1 - float(summed(e, FP16)) / exact
    p = e.numpy() / exact
    assert 1e-3 < error <= theory.absorption_bound(p, FP16.u) * (1 + 1e-12)
    assert theory.absorption_bound(p, FP16.u) < FP16.u * theory.effective_terms(p, FP16.u) < 5e-3
    assert 8191 * FP16.u == pytest.approx(4.0, abs=1e-3)


def test_the_mean_drop_is_an_entropy():
    """Sum s|z| = H - ln S, at most ln N: what the bound on all weights rests on."""
    x = np.random.default_rng(2).normal(size=(20, 30)) * 3
    s, z = theory.softmax(x), theory.shifted(x)
    entropy = -(s * log_softmax(x, axis=-1)).sum(-1)
    log_sum = np.log(np.exp(z).sum(-1))
    np.testing.assert_allclose((s * np.abs(z)).sum(-1), entropy - log_sum, rtol=1e-12)
    assert np.all(entropy - log_sum <= np.log(30))


def test_first_order_is_the_limit_of_the_enclosures():
    """At u = 2^-40 both say the same to 1 %, for each algorithm, but for what sums may lose."""
    x = np.array([3.0, 1.0, 0.25, -2.0, 2.5])
    s, u = theory.softmax(x), 2.0**-40
    for variant in ("shifted", "unshifted", "division_free"):
        low, high = theory.enclosure(x, u, variant=variant)
        width = np.maximum(high - s, s - low) / s
        parts = [theory.first_order_bound(x, u, bound, variant) for bound in (0.0, 4 * u)]
        assert np.all(width <= parts[1] * 1.001)
        assert np.all(width >= parts[0] * 0.99)
    free = theory.first_order_bound(x + 1000, u, 0.0, "division_free")
    assert np.all(free > 990 * u)
    np.testing.assert_allclose(
        theory.first_order_bound(x + 1000, u, 0.0), theory.first_order_bound(x, u, 0.0), rtol=1e-12
    )


def test_enclosures_of_masked_rows():
    x = np.array([[1.0, -np.inf, 0.0], [-np.inf] * 3])
    for variant in ("shifted", "unshifted", "division_free"):
        for order in ("recursive", "pairwise"):
            low, high = theory.enclosure(x, 2.0**-8, tiny=2.0**-30, order=order, variant=variant)
            assert low[1].tolist() == high[1].tolist() == [0, 0, 0]
            assert low[0, 1] == high[0, 1] == 0
            assert np.all(low[0, [0, 2]] < theory.softmax(x)[0, [0, 2]])
            assert np.all(high[0, [0, 2]] > theory.softmax(x)[0, [0, 2]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.softmax([1.0, np.nan]), "x must be finite or -inf; got nan"),
        (lambda: theory.softmax([1.0, np.inf]), "x must be finite or -inf; got inf"),
        (lambda: theory.softmax(3.0), r"x must have shape \(..., N\), N >= 1; got \(\)"),
        (lambda: theory.effective_terms([0.5, -0.5], 0.1), r"terms must be finite and >= 0; got -0\.5"),
        (lambda: theory.effective_terms(np.zeros((2, 0)), 0.1), r"terms must have shape \(..., N\), N >= 1"),
        (lambda: theory.absorption_bound([1.0], 0), r"u must be in \(0, 1\); got 0"),
        (lambda: theory.sum_enclosure([1.0], [1.0], 0.1, "sorted"), "order must be one of 'recursive', 'pairwise'"),
        (lambda: theory.enclosure([1.0], 0.1, variant="fast"), "variant must be one of 'shifted', 'unshifted'"),
        (lambda: theory.enclosure([1.0], 0.1, tiny=-1), "tiny must be finite and >= 0; got -1"),
        (lambda: theory.first_order_bound([1.0], 0.1, -1), "absorbed must be >= 0; got -1"),
        (lambda: theory.shift_family(2), "keys must be a whole number >= 3; got 2"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
