"""Chebyshev's input bound: attacked on laws and on tokens, inside its hypotheses and outside."""

import statistics
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import sqrt

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import optimize

from residlab.theory import laws
from residlab.theory.chebyshev import (
    argument,
    chebyshev_tail,
    count_bound,
    count_outside,
    extremal_token,
    input_scale,
    kappa_from_probability,
    max_count,
    probability_from_kappa,
    samuelson_bound,
    selberg_tail,
    three_point_law,
    vysochanskij_petunin_tail,
)

FORMS = ("centred", "mean-free")
COMPARISONS = (">", ">=")

kappas = st.floats(0.05, 40)
# Tokens with ties (frequent among small multiples of 1 or 1/4), constants, outliers, subnormal and huge entries.
tokens = st.one_of(
    st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=24),
    st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=1, max_size=16),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    st.builds(lambda value, d: [value] * d, st.floats(-1e300, 1e300), st.integers(1, 12)),
    st.builds(
        lambda big, rest: [big, *rest], st.floats(-1e6, 1e6), st.lists(st.floats(-1, 1), min_size=1, max_size=30)
    ),
)
finite_laws = st.integers(2, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.fractions(-9, 9, max_denominator=8), min_size=n, max_size=n),
        st.lists(st.integers(1, 30), min_size=n, max_size=n),
    )
)


def exact_moments(law: tuple[list[Fraction], list[int]]) -> tuple[list[Fraction], list[Fraction], Fraction, Fraction]:
    atoms, weights = law
    masses = [Fraction(weight, sum(weights)) for weight in weights]
    mean = sum(a * m for a, m in zip(atoms, masses, strict=True))
    variance = sum((a - mean) ** 2 * m for a, m in zip(atoms, masses, strict=True))
    return atoms, masses, mean, variance


def exact_count(token: list[float], kappa: float, comparison: str, form: str) -> int:
    """Count with the standard library's exact mean and variance."""
    values = [Fraction(value) for value in token]
    mean = statistics.mean(values) if form == "centred" else Fraction(0)
    level = Fraction(kappa) ** 2 * statistics.mean([(value - mean) ** 2 for value in values])
    squares = [(value - mean) ** 2 for value in values]
    return sum(square >= level if comparison == ">=" else square > level for square in squares)


def largest_threshold(d: int, m: int, form: str) -> Fraction:
    """Return the square of the largest kappa that m entries can reach, recovered from `max_count` by bisection."""
    low, high = 0.0, 4.0 * d  # kappa, always a float: the answer is within one float of the root
    for _ in range(70):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if max_count(d, middle, comparison=">=", form=form) >= m else (low, middle)
    return Fraction(low) ** 2


# --- The bound


def test_default_of_the_paper():
    assert kappa_from_probability(0.99) == pytest.approx(10, rel=1e-15)
    np.testing.assert_allclose(kappa_from_probability([0, 0.75, 0.96]), [1, 2, 5], rtol=1e-15)
    assert probability_from_kappa(10) == pytest.approx(0.99, rel=1e-15)
    np.testing.assert_array_equal(probability_from_kappa([0, 0.3, 1]), 0)


@given(st.floats(0, 1 - 1e-12))
def test_kappa_and_probability_are_inverse(p):
    assert probability_from_kappa(kappa_from_probability(p)) == pytest.approx(p, rel=1e-12, abs=1e-15)


@given(finite_laws, st.fractions(Fraction(1, 10), 12, max_denominator=60))
def test_every_law_with_spread_obeys_chebyshev_exactly(law, kappa):
    atoms, masses, mean, variance = exact_moments(law)
    assume(variance > 0)
    outside = sum(m for a, m in zip(atoms, masses, strict=True) if (a - mean) ** 2 >= kappa**2 * variance)
    assert outside <= min(1, 1 / kappa**2)
    assert float(outside) <= chebyshev_tail(float(kappa)) * (1 + 1e-15)


def test_a_point_mass_breaks_the_bound():
    """With std = 0 the event 0 >= 0 is certain: the hypothesis std > 0 cannot be dropped."""
    assert count_outside([7.0] * 5, 10, comparison=">=") == 5 > 5 * chebyshev_tail(10)
    assert count_outside([7.0] * 5, 10, comparison=">") == 0


@given(st.floats(0, 1))
def test_below_one_the_bound_is_trivial_and_nothing_better_is_true(kappa):
    assert chebyshev_tail(kappa) == selberg_tail(kappa, 0) == vysochanskij_petunin_tail(kappa) == 1
    assert count_outside([-1.0, 1.0], max(kappa, 1e-3), comparison=">=") == 2


@given(st.floats(1, 1e6))
def test_three_point_law_is_standard_and_attains(kappa):
    atoms, masses = three_point_law(kappa)
    assert masses.min() >= 0
    assert masses.sum() == pytest.approx(1, rel=1e-15)
    assert masses @ atoms == pytest.approx(0, abs=1e-15)  # a fused product and sum may leave a rounding
    assert masses @ atoms**2 == pytest.approx(1, rel=1e-14)
    assert masses[np.abs(atoms) >= kappa].sum() == pytest.approx(chebyshev_tail(kappa), rel=1e-14)
    assert masses[np.abs(atoms) > kappa].sum() == 0


def test_infinite_variance_is_outside_the_theorem():
    """Cauchy tokens: no kappa s bounds the law, yet each token, having finite s, still obeys its count."""
    x = np.random.default_rng(0).standard_cauchy((200, 512))
    assert np.all(count_outside(x, 10) <= count_bound(512, 10))
    # The sample std never settles: it grows with the sample, like its size.
    few, many = (np.median(np.std(np.random.default_rng(1).standard_cauchy((64, n)), axis=1)) for n in (100, 10_000))
    assert many > 5 * few
    # With scale 1 in place of s the tail is 2 arctan(1/kappa) / pi, six times Chebyshev's at kappa = 10.
    assert np.mean(np.abs(x) >= 10) > 5 * chebyshev_tail(10)


# --- The sharp bound, for |X| >= kappa std + |mean|


@given(finite_laws, st.fractions(Fraction(1, 10), 12, max_denominator=60))
def test_every_law_obeys_selberg(law, kappa):
    atoms, masses, mean, variance = exact_moments(law)
    assume(variance > 0)
    rho = abs(float(mean)) / sqrt(variance)
    scale = float(kappa) * sqrt(variance) + abs(float(mean))
    outside = sum(m for a, m in zip(atoms, masses, strict=True) if abs(float(a)) >= scale * (1 - 1e-12))
    assert float(outside) <= selberg_tail(float(kappa), rho) * (1 + 1e-9)
    assert selberg_tail(float(kappa), rho) <= chebyshev_tail(float(kappa))


@given(st.floats(1, 30), st.floats(0, 3))
@example(10.0, 0.1)
def test_selberg_is_attained_by_a_law_of_that_mean(kappa, rho):
    edge = kappa + rho
    if kappa * rho <= 1:  # atoms at both edges and at zero
        both, difference = (1 + rho**2) / edge**2, rho / edge
        atoms, masses = (
            np.array([-edge, 0, edge]),
            np.array([(both - difference) / 2, 1 - both, (both + difference) / 2]),
        )
    else:  # Cantelli's two atoms
        low = 1 / (1 + kappa**2)
        atoms, masses = np.array([rho - 1 / kappa, edge]), np.array([1 - low, low])
    assert masses.min() >= -1e-15
    assert masses @ atoms == pytest.approx(rho, abs=1e-12)
    assert masses @ (atoms - rho) ** 2 == pytest.approx(1, rel=1e-9)
    assert masses[np.abs(atoms) >= edge].sum() == pytest.approx(selberg_tail(kappa, rho), rel=1e-9)


@pytest.mark.parametrize("kappa", [0.5, 0.9, 1.5, 3.0])
@pytest.mark.parametrize("rho", [0.0, 0.2, 0.7, 2.0])
def test_selberg_is_the_optimum_of_the_moment_problem(kappa, rho):
    """An independent oracle: linear programming over all laws on a grid of atoms with that mean and variance."""
    edge = kappa + rho
    atoms = np.unique(np.concatenate([np.linspace(-8, 8, 801), [-edge, edge, rho - 1 / kappa]]))
    moments = np.vstack([np.ones_like(atoms), atoms, atoms**2])
    solution = optimize.linprog(-(np.abs(atoms) >= edge).astype(float), A_eq=moments, b_eq=[1, rho, 1 + rho**2])
    assert solution.status == 0
    assert -solution.fun == pytest.approx(selberg_tail(kappa, rho), rel=2e-3)
    assert -solution.fun <= selberg_tail(kappa, rho) * (1 + 1e-9)


def test_chebyshev_is_the_sharp_bound_only_without_a_mean():
    assert selberg_tail(10, 0) == chebyshev_tail(10)
    assert selberg_tail(10, [0.1, -0.1, 5]) == pytest.approx([1 / 101] * 3, rel=1e-14)
    # The three-point law moved off zero leaves on one side only, and misses the bound by half.
    atoms, masses = three_point_law(10)
    assert masses[np.abs(atoms + 1) >= 10 + 1].sum() == pytest.approx(0.5 / 100)


# --- Vysochanskij and Petunin


@given(st.floats(0.01, 20))
def test_unimodal_mixture_attains_vysochanskij_petunin(kappa):
    """An atom at 0 and a uniform law on [-a, a], a = 3 kappa / 2: unimodal while its mass 4/(3 kappa**2) <= 1."""
    assume(kappa >= 2 / sqrt(3))
    mass = 4 / (3 * kappa**2)
    tail = mass * (1 - kappa / (1.5 * kappa))
    assert mass * (1.5 * kappa) ** 2 / 3 == pytest.approx(1)
    assert tail <= vysochanskij_petunin_tail(kappa) * (1 + 1e-12)
    if kappa >= sqrt(8 / 3):
        assert tail == pytest.approx(vysochanskij_petunin_tail(kappa), rel=1e-12)


@given(st.floats(0, 4), st.floats(0.01, 5), st.floats(0, 1), st.floats(0.05, 6))
@example(mode=0.0, width=3.0, mass=0.5, kappa=1.3)
def test_atom_and_uniform_piece_beside_it_obey_vysochanskij_petunin(mode, width, mass, kappa):
    """Skewed unimodal laws: an atom 1 - mass at 0 and a uniform law from -mode to width, which contains it."""
    low, high = -mode, width
    mean = mass * (low + high) / 2
    variance = mass * (low**2 + low * high + high**2) / 3 - mean**2
    assume(variance > 1e-9)
    inside = np.clip([mean - kappa * sqrt(variance), mean + kappa * sqrt(variance)], low, high)
    tail = mass * (1 - (inside[1] - inside[0]) / (high - low))
    tail += (1 - mass) * (abs(mean) >= kappa * sqrt(variance) * (1 + 1e-12))
    assert tail <= vysochanskij_petunin_tail(kappa) + 1e-9


def worst_unimodal_tail(kappa, modes):
    """Linear programming over mixtures of uniform laws that end at the mode (Khinchin), of mean 0 and variance 1."""
    worst = 0.0
    for mode in modes:
        ends = np.unique(np.concatenate([np.linspace(-8, 8, 401), [mode, -1.5 * kappa, 1.5 * kappa]]))
        low, high = np.minimum(mode, ends), np.maximum(mode, ends)
        width = np.where(high > low, high - low, 1)
        inside = (np.clip(high, -kappa, kappa) - np.clip(low, -kappa, kappa)) / width
        tail = np.where(high > low, 1 - inside, float(abs(mode) >= kappa))
        moments = np.vstack([np.ones_like(ends), (low + high) / 2, (low**2 + low * high + high**2) / 3])
        solution = optimize.linprog(-tail, A_eq=moments, b_eq=[1, 0, 1])
        worst = max(worst, -solution.fun if solution.status == 0 else 0.0)
    return worst


@pytest.mark.parametrize("kappa", [1.1, 1.3, 1.5, 1.8, 3.0])
def test_worst_unimodal_law_obeys_vysochanskij_petunin(kappa):
    """The upper branch is sharp. The lower one holds but is not, about the mean: the worst mode is 0 or kappa."""
    worst = worst_unimodal_tail(kappa, [0, 0.1, 0.3, 0.7, kappa])
    assert worst <= vysochanskij_petunin_tail(kappa) + 1e-9
    if kappa >= sqrt(8 / 3):
        assert worst == pytest.approx(vysochanskij_petunin_tail(kappa), rel=1e-6)
    else:
        mode_at_kappa = 1 - (4 * kappa**2 / (3 * (1 + kappa**2))) ** 2
        assert worst == pytest.approx(max(4 / (9 * kappa**2), mode_at_kappa), rel=1e-3)


@given(st.floats(1.01, 50))
def test_vysochanskij_petunin_fails_for_a_law_that_is_not_unimodal(kappa):
    atoms, masses = three_point_law(kappa)
    assert masses[np.abs(atoms) >= kappa].sum() > vysochanskij_petunin_tail(kappa)


def test_vysochanskij_petunin_fails_as_a_count():
    """Eight entries of one token: two lie at 2 s, where a unimodal law has at most 0.89 of eight."""
    token = [1.0, -1.0, 0, 0, 0, 0, 0, 0]
    assert count_outside(token, 2, comparison=">=") == 2 > 8 * vysochanskij_petunin_tail(2)


def test_vysochanskij_petunin_branches_meet():
    kappa = sqrt(8 / 3)
    np.testing.assert_allclose(vysochanskij_petunin_tail([kappa * (1 - 1e-12), kappa, kappa * (1 + 1e-12)]), 1 / 6)
    assert vysochanskij_petunin_tail([1.2, 1.5, 3]) == pytest.approx([16 / 27, 7 / 27, 4 / 81])


@given(st.floats(0, 40))
def test_laws_stay_below_the_bounds_they_satisfy(kappa):
    for law in laws.LAWS.values():
        assert law.tail(kappa) <= vysochanskij_petunin_tail(kappa) + 1e-15
        assert law.tail(kappa) <= chebyshev_tail(kappa) + 1e-15


# --- The argument of the hyperbolic tangent


def test_oracle_values_of_the_operator():
    x = np.array([-3, -1, 0, 0.5, 2])
    centred = [-0.3405827, -0.1177024, 0, 0.0590565, 0.2321881]
    mean_free = [-0.3411640, -0.1179186, 0, 0.0591657, 0.2326029]
    np.testing.assert_allclose(np.tanh(argument(x, 2, 10)), centred, atol=5e-8)
    np.testing.assert_allclose(np.tanh(argument(x, 2, 10, form="mean-free")), mean_free, atol=5e-8)


@given(tokens, st.floats(0.1, 10), st.floats(0.1, 40), st.sampled_from(FORMS))
def test_no_more_entries_leave_than_lie_outside(token, lam, kappa, form):
    assume(1e-100 < max(map(abs, token)) < 1e100)
    leaving = np.abs(argument(token, lam, kappa, form=form)) > lam * (1 + 1e-12)
    assert np.count_nonzero(leaving) <= count_outside(token, kappa, form=form) <= count_bound(len(token), kappa)


@given(tokens, st.floats(-3, 3).filter(lambda c: abs(c) > 1e-3))
def test_argument_ignores_the_scale_of_the_token_and_keeps_its_sign(token, factor):
    x = np.array(token)
    assume(1e-100 < np.abs(x).max() < 1e100)
    np.testing.assert_allclose(argument(factor * x, 2, 10), np.sign(factor) * argument(x, 2, 10), rtol=1e-9, atol=1e-12)


def test_argument_is_one_scale_a_token():
    x = np.random.default_rng(0).normal(size=(2, 3, 8))
    for form in FORMS:
        whole = argument(x, 2, 10, form=form, eps=1e-6)
        assert whole.shape == x.shape
        np.testing.assert_array_equal(whole[1, 2], argument(x[1, 2], 2, 10, form=form, eps=1e-6))
    by_hand = 2 * x / (10 * np.sqrt(x.var(axis=-1, keepdims=True) + 0.5) + np.abs(x.mean(axis=-1, keepdims=True)))
    np.testing.assert_allclose(argument(x, 2, 10, eps=0.5), by_hand, rtol=1e-14)


def test_constant_token_sits_on_the_edge():
    """As s -> 0 the centred argument tends to lam itself, the edge of what is promised: nothing leaves strictly."""
    np.testing.assert_allclose(argument([5.0, 5.0, 5.0], 2, 10), 2)
    np.testing.assert_allclose(argument([5.0, 5.0, 5.0], 2, 10, form="mean-free"), 0.2)
    with pytest.raises(ValueError, match="eps"):
        argument([0.0, 0.0], 2, 10)
    np.testing.assert_array_equal(argument([0.0, 0.0], 2, 10, eps=1e-6), 0)


def test_input_scale_broadcasts_and_covers_both_forms():
    np.testing.assert_allclose(input_scale([0, -3], [[1], [2]], 2, 10), [[2 / 10, 2 / 13], [2 / 20, 2 / 23]])
    x = np.array([3.0, 4.0])
    np.testing.assert_allclose(argument(x, 2, 10, form="mean-free"), x * input_scale(0, sqrt(12.5), 2, 10))


# --- Counts of one token


@given(tokens, kappas, st.sampled_from(COMPARISONS), st.sampled_from(FORMS))
@example([0.1, 0.1, 0.1], 0.5, ">", "centred")  # the float mean of three 0.1 is not 0.1
@example([1.0, -1.0, 0, 0, 0, 0, 0, 0], 2.0, ">", "centred")
@example([1.0, -1.0, 0.5, -0.5, 0, 0, 0, 0, 0, 0], 2.0, ">=", "centred")  # a tie among unlike denominators
@example([5e-324, 0.0, 0.0], 1.0, ">", "centred")
@example([1.7e308, -1.7e308], 1.0, ">=", "centred")
@example([1e308, 1e308, 1e308], 1.0, ">", "mean-free")
def test_count_is_exact(token, kappa, comparison, form):
    assert count_outside(token, kappa, comparison=comparison, form=form) == exact_count(token, kappa, comparison, form)


@given(tokens, st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), st.sampled_from(COMPARISONS), st.sampled_from(FORMS))
def test_count_is_exact_at_likely_ties(token, kappa, comparison, form):
    assert count_outside(token, kappa, comparison=comparison, form=form) == exact_count(token, kappa, comparison, form)


def test_count_is_exact_where_a_plain_comparison_is_wrong():
    """Floats get the constant token and many ties wrong: that is what the integer arithmetic is for."""
    x = np.array([[0.1, 0.1, 0.1], [0.1, 0.2, 0.3]])
    naive = np.abs(x - x.mean(axis=-1, keepdims=True)) > 0.5 * x.std(axis=-1, keepdims=True)
    assert naive[0].sum() != 0
    assert count_outside(x, 0.5).tolist() == [0, 2]


@given(tokens, kappas, st.sampled_from(COMPARISONS), st.sampled_from(FORMS))
def test_no_token_exceeds_the_maximum_nor_the_maximum_the_bound(token, kappa, comparison, form):
    d = len(token)
    largest, bound = max_count(d, kappa, comparison=comparison, form=form), count_bound(d, kappa, comparison=comparison)
    assert bound - 1 <= largest <= bound <= d
    spread = len(set(token)) > 1 if form == "centred" else any(token)
    if spread or comparison == ">":
        assert count_outside(token, kappa, comparison=comparison, form=form) <= largest


@given(st.integers(2, 40), st.floats(0.1, 8), st.sampled_from(COMPARISONS), st.sampled_from(FORMS))
@example(100, 5.0, ">=", "centred")
@example(3, 0.7, ">=", "centred")
@example(7, 0.5, ">", "centred")
def test_extremal_token_attains(d, kappa, comparison, form):
    token = extremal_token(d, kappa, comparison=comparison, form=form)
    largest = max_count(d, kappa, comparison=comparison, form=form)
    assert token.shape == (d,)
    assert count_outside(token, kappa, comparison=comparison, form=form) == largest
    if form == "centred":
        assert token.sum() == 0
    if largest == 0:
        scale = token.std() if form == "centred" else sqrt(np.mean(token**2))
        assert np.abs(token).max() / scale == pytest.approx(samuelson_bound(d, form=form))


def test_exact_ties():
    """Where kappa**2 m = d the two comparisons differ, and neither may depend on rounding."""
    for m, kappa in product([2, 4, 6, 50], [1.5, 2.0, 3.0, 10.0]):
        d = Fraction(m) * Fraction(kappa) ** 2
        if d.denominator == 1:
            assert max_count(int(d), kappa, comparison=">=") == count_bound(int(d), kappa, comparison=">=") == m
            assert max_count(int(d), kappa) == m - 2 + (kappa**2 * (m - 1 + 1 / (d - m + 1)) < d)
            assert count_bound(int(d), kappa) == m - 1
    # An odd tie: d = 10, m = 1, kappa = 3 is Samuelson's bound.
    assert max_count(10, 3.0, comparison=">=") == 1
    assert max_count(10, 3.0, comparison=">") == 0
    assert max_count(10, np.nextafter(3.0, 0), comparison=">") == 1
    # kappa is the float given: sqrt(2) rounds up, and 1/sqrt(1 - 0.99) falls short of 10.
    assert Fraction(sqrt(2)) ** 2 > 2
    assert count_bound(4, sqrt(2), comparison=">=") == 1
    assert count_bound(100, kappa_from_probability(0.99)) == 1 > count_bound(100, 10) == 0


@pytest.mark.parametrize("d", range(2, 9))
def test_maximum_against_every_token_of_small_integers(d):
    """Exhaustive: the largest m-th deviation over all tokens of integers below d in modulus, up to order."""
    x = np.array(list(combinations_with_replacement(range(1 - d, d), d)), dtype=np.int64)
    for form in FORMS:
        total = x.sum(axis=1) if form == "centred" else np.zeros(len(x), dtype=np.int64)
        squares = np.sort((d * x - total[:, None]) ** 2, axis=1)[:, ::-1]
        energy = squares.sum(axis=1) / d  # (d s)**2
        for m in range(1, d + 1):
            best = (squares[energy > 0, m - 1] / energy[energy > 0]).max()
            assert best == pytest.approx(float(largest_threshold(d, m, form)), rel=1e-12)


@pytest.mark.parametrize("d", range(2, 9))
def test_maximum_against_numerical_optimisation_over_all_signs(d):
    """Least energy of z with sum 0 and m entries beyond 1, p of them positive: a quadratic programme."""
    for m in range(1, d + 1):
        least = np.inf
        for p in range((m + 1) // 2, m + 1):
            bounds = [(1, None)] * p + [(None, -1)] * (m - p) + [(None, None)] * (d - m)
            if p == m == d:
                continue  # all positive: the sum cannot vanish
            start = np.array([1.5] * p + [-1.5] * (m - p) + [0.1] * (d - m))
            solution = optimize.minimize(
                lambda z: z @ z,
                start,
                jac=lambda z: 2 * z,
                bounds=bounds,
                constraints={"type": "eq", "fun": np.sum, "jac": np.ones_like},
                method="SLSQP",
                options={"ftol": 1e-13},
            )
            assert solution.success
            least = min(least, solution.fun)
        assert d / least == pytest.approx(float(largest_threshold(d, m, "centred")), rel=1e-6)


def test_smallest_dimensions():
    # d = 1: a centred token is constant; mean-free, |x| = rms.
    assert max_count(1, 0.5, comparison=">=") == max_count(1, 0.5) == 0
    assert max_count(1, [0.5, 1, 2], comparison=">=", form="mean-free").tolist() == [1, 1, 0]
    assert max_count(1, [0.5, 1, 2], form="mean-free").tolist() == [1, 0, 0]
    # d = 2: both entries deviate by s exactly.
    assert max_count(2, [0.9, 1, 1.1], comparison=">=").tolist() == [2, 2, 0]
    assert max_count(2, [0.9, 1, 1.1]).tolist() == [2, 0, 0]
    # d = 3: thresholds 1/sqrt(2) = 0.7071, sqrt(3/2) = 1.2247, sqrt(2) = 1.4142.
    assert max_count(3, [0.70, 0.71, 1.22, 1.23, 1.41, 1.42]).tolist() == [3, 2, 2, 1, 1, 0]


def test_samuelson():
    np.testing.assert_allclose(samuelson_bound([1, 2, 10, 576]), np.sqrt([0, 1, 9, 575]))
    np.testing.assert_allclose(samuelson_bound([1, 10], form="mean-free"), np.sqrt([1, 10]))
    for root in (2, 3, 8, 24):  # d - 1 and its root are exact
        one_hot = np.eye(root**2 + 1)[0]
        assert count_outside(one_hot, root, comparison=">=") == 1
        assert count_outside(one_hot, root) == max_count(root**2 + 1, root) == 0
        assert count_outside(one_hot, np.nextafter(root, 0)) == 1
        assert count_outside(np.eye(root**2)[0], np.nextafter(root, 0), form="mean-free") == 1
        assert (
            count_outside(np.eye(root**2)[0], root, form="mean-free") == max_count(root**2, root, form="mean-free") == 0
        )


def test_counts_keep_the_batch_shape():
    x = np.random.default_rng(0).normal(size=(2, 3, 16))
    x[1, 2] = 4.0
    counts = count_outside(x, 1.5)
    assert counts.shape == (2, 3)
    assert counts.dtype == np.int64
    assert counts[1, 2] == 0
    assert counts[0, 1] == exact_count(x[0, 1].tolist(), 1.5, ">", "centred")
    assert max_count([[4], [9]], [1, 2, 3]).shape == (2, 3)


# --- Errors say what was given and what is allowed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kappa_from_probability([0.5, 1.0]), r"p must be in \[0, 1\); got 1.0"),
        (lambda: kappa_from_probability(np.nan), "p must be .* got nan"),
        (lambda: probability_from_kappa(-1), "kappa must be finite and >= 0; got -1.0"),
        (lambda: chebyshev_tail(np.inf), "kappa must be .* got inf"),
        (lambda: selberg_tail(2, np.nan), "mean_over_std must be finite"),
        (lambda: three_point_law(0.5), "kappa must be finite and >= 1; got 0.5"),
        (lambda: input_scale(0, -1, 2, 10), "std must be finite and >= 0; got -1.0"),
        (lambda: input_scale(0, 0, 2, 10), "must be positive"),
        (lambda: input_scale(0, 1, 0, 10), "lam must be finite and > 0; got 0.0"),
        (lambda: argument([1.0], 2, 10, form="centered"), "form must be one of 'centred', 'mean-free'; got 'centered'"),
        (lambda: argument([1.0], 2, 10, eps=-1), "eps must be"),
        (lambda: argument([1.0, np.nan], 2, 10), "x must be finite; got nan"),
        (lambda: count_outside(3.0, 2), r"x must have shape \(\.\.\., d\)"),
        (lambda: count_outside(np.zeros((0, 4)), 2), r"got shape \(0, 4\)"),
        (lambda: count_outside([1.0], 2, comparison="=>"), "comparison must be one of '>=', '>'; got '=>'"),
        (lambda: count_bound(2.5, 2), "d must be an integer >= 1.*got 2.5"),
        (lambda: max_count(0, 2), "d must be .* got 0"),
        (lambda: max_count(4, 0), "kappa must be finite and > 0"),
        (lambda: extremal_token(1, 2), "d must be >= 2"),
        (lambda: samuelson_bound(4, form="rms"), "form must be one of"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
