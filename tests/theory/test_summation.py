"""Every bound attacked with sums that are really rounded, against exact fractions; hypotheses taken away one by one."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, FP16, FP32, Format
from residlab.precision.matmul import matmul
from residlab.precision.rounding import rounded
from residlab.precision.summation import compensated, summed
from residlab.theory import summation as theory

ORDERS = [RECURSIVE, PAIRWISE, blocked(1), blocked(3), blocked(8), blocked(1000)]
orders = st.sampled_from(ORDERS)
numbers = st.one_of(
    st.integers(-2048, 2048).map(float),
    st.builds(math.ldexp, st.integers(-255, 255).map(float), st.integers(-30, 6)),
)
# What is hard: everything in the gap of what was summed before, on ties and next to them.
ties = st.lists(st.sampled_from([1.0, 0.5, 0.25, 0.125, 0.0625, 2.0**-8, 2.0**-9, 0.75, -1.0]), min_size=1, max_size=60)


def exact(values: list[float]) -> tuple[Fraction, Fraction]:
    terms = [Fraction(value) for value in values]
    return sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))


def seen(values: list[float], fmt: Format, order: Order) -> Fraction:
    return Fraction(summed(torch.tensor(values, dtype=torch.float64), fmt, order).item())


def upward(bound: float) -> Fraction:
    """A bound that float64 may have rounded down."""
    return Fraction(bound) * (1 + Fraction(1, 2**48))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(numbers, min_size=1, max_size=60), ties), orders, st.integers(2, 12))
def test_no_sum_of_exact_products_exceeds_the_bound(values: list[float], order: Order, t: int) -> None:
    """min(n u, (1 + u)^m - 1) with u up to 1/4: terms need not be numbers of the format."""
    fmt = Format.of(t)
    total, size = exact(values)
    bound = theory.sum_bound(order.name, len(values), fmt.u, order.block)
    assert abs(seen(values, fmt, order) - total) <= upward(bound) * size


@settings(max_examples=200, deadline=None)
@given(st.data(), orders, st.integers(2, 8), st.integers(2, 8))
def test_no_product_of_matrices_exceeds_its_bound(data: st.DataObject, order: Order, q: int, a: int) -> None:
    n = data.draw(st.integers(1, 24))
    w, x = (data.draw(st.lists(numbers, min_size=n, max_size=n)) for _ in range(2))
    operands, accumulator = Format.of(q), Format.of(a)
    row, column = torch.tensor([w], dtype=torch.float64), torch.tensor(x, dtype=torch.float64)[:, None]
    result = Fraction(matmul(row, column, operands=operands, accumulator=accumulator, order=order).item())
    stored = Fraction(rounded(np.array(float(result)), operands).item())
    total, size = exact([Fraction(left) * Fraction(right) for left, right in zip(w, x, strict=True)])  # type: ignore[misc]
    for sums in (n * accumulator.u, theory.sum_bound(order.name, n, accumulator.u, order.block)):
        assert abs(result - total) <= upward(float(theory.product_bound(sums, operands.u))) * size
        assert abs(stored - total) <= upward(float(theory.product_bound(sums, operands.u, operands.u))) * size


def test_the_bound_for_sums_is_nearly_attained() -> None:
    """1, and then terms that are each rounded away: (n - 1) u of n u; and 2 u for two terms, one of them rounded."""
    for t, n in ((11, 40), (8, 10), (24, 500)):
        fmt = Format.of(t)
        values = [1.0, *[fmt.u] * (n - 1)]
        total, size = exact(values)
        error = abs(seen(values, fmt, RECURSIVE) - total) / size
        assert error >= Fraction(0.85) * (n - 1) * Fraction(fmt.u)
        assert error <= upward(theory.sum_bound("recursive", n, fmt.u))


def test_pairwise_has_no_recursive_error_and_recursive_no_pairwise_bound() -> None:
    """The depth of one order does not bound another."""
    values = [1.0] * 1000
    error = abs(seen(values, BF16, RECURSIVE) - 1000) / 1000
    assert error > theory.sum_bound("pairwise", 1000, BF16.u)
    assert seen(values, BF16, PAIRWISE) == 1000


@given(st.integers(1, 10**6), st.integers(2, 24))
def test_gamma_and_its_relatives(n: int, t: int) -> None:
    u = 2.0**-t
    with mpmath.workdps(60):
        compounded = (1 + mpmath.mpf(u)) ** n - 1
        classical = n * mpmath.mpf(u) / (1 - n * mpmath.mpf(u)) if n * u < 1 else mpmath.inf
        if compounded < 1e300:
            assert float(theory.compounded(n, u)) == pytest.approx(float(compounded), rel=1e-11)
        assert float(theory.gamma(n, u)) == pytest.approx(float(classical), rel=1e-9)
        assert n * u <= compounded * (1 + mpmath.mpf(2) ** -100)
        assert compounded <= classical
    assert theory.sum_bound("recursive", n, u) == n * u


def test_where_gamma_has_no_value() -> None:
    assert np.isfinite(theory.gamma(255, BF16.u))
    assert theory.gamma(256, BF16.u) == math.inf
    assert theory.sum_bound("recursive", 1536, BF16.u) == 6.0
    assert theory.compounded(1536, BF16.u) > 300


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_nodes_are_all_that_is_rounded(order: Order) -> None:
    """By the numbers of nodes; the last is the sum; each term is in as many nodes as roundings says, at most."""
    for n in (1, 2, 3, 7, 8, 9, 31):
        p = np.arange(1.0, n + 1) * (-1) ** np.arange(n)
        nodes = theory.node_sums(p, order.name, order.block)
        assert nodes[-1] == p.sum()
        blocks = 1 if order.name == "recursive" else -(-n // min(order.block or n, n))
        assert len(nodes) == (2 * n - 1 if order.name == "pairwise" else n + blocks - 1)
        through = theory.node_sums(np.eye(n), order.name, order.block).sum(-1)
        assert through.max() == theory.roundings(order.name, n, order.block) == order.depth(n) + 1


@settings(max_examples=200, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40), orders, st.integers(8, 12))
def test_to_first_order_the_nodes_bound_the_error(values: list[float], order: Order, t: int) -> None:
    """u sum |s_v|, and what is missing is of second order: m u times sum over nodes of the error bound of each."""
    fmt = Format.of(t)
    total, _ = exact(values)
    nodes = theory.node_sums(values, order.name, order.block)
    sizes = theory.node_sums(np.abs(values), order.name, order.block).sum()
    m = theory.roundings(order.name, len(values), order.block)
    bound = fmt.u * (np.abs(nodes).sum() + theory.compounded(m, fmt.u) * sizes)
    assert abs(seen(values, fmt, order) - total) <= upward(float(bound)) + Fraction(2.0**-1000)


# --- Chance


def relative_errors(terms: np.ndarray, order: Order, samples: int = 4000, fmt: Format = BF16) -> np.ndarray:
    x = torch.tensor(terms).expand(samples, -1)
    sums = summed(x, fmt, order, "stochastic", seed=3).numpy()
    return np.asarray((sums - terms.sum()) / np.abs(terms).sum())


@pytest.mark.parametrize("order", ORDERS[:2] + ORDERS[4:5], ids=str)
@pytest.mark.parametrize("signs", [True, False])
def test_stochastic_rounding_fulfils_the_theorems(order: Order, signs: bool) -> None:
    """Unbiased, root mean square below the law, no more exceptions than the tail bounds allow; 4000 samples."""
    rng = np.random.default_rng(1)
    n = 200
    p = rng.standard_normal(n) if signs else rng.random(n)
    errors = relative_errors(p, order)
    size = np.abs(p).sum()
    m = theory.roundings(order.name, n, order.block)
    spread = errors.std()
    assert abs(errors.mean()) < 5 * spread / 4000**0.5
    law = theory.rms_law(theory.node_sums(p, order.name, order.block), BF16.u) / size
    assert 0.3 * law < np.sqrt(np.mean(errors**2)) < law  # one rounding has 0.60 u
    assert law <= theory.rms_bound(m, BF16.u)
    for failure in (0.5, 0.1, 0.01):
        assert np.mean(np.abs(errors) > theory.probable_bound(m, 2 * BF16.u, failure)) <= failure
    bound, failure_of = theory.higham_mary(n, 2 * BF16.u, 4.0)
    assert np.mean(np.abs(errors) > bound) <= failure_of


@given(st.lists(numbers, min_size=1, max_size=60), orders)
def test_the_law_of_any_terms_is_below_the_root_of_m(values: list[float], order: Order) -> None:
    """sum s_v^2 <= m A^2."""
    size = np.abs(values).sum()
    law = theory.rms_law(theory.node_sums(values, order.name, order.block), 0.25)
    m = theory.roundings(order.name, len(values), order.block)
    assert law <= float(theory.rms_bound(m, 0.25)) * size * (1 + 1e-12)


def test_stagnation_breaks_the_law_of_chance_and_stochastic_rounding_repairs_it() -> None:
    """n ones in bf16, one after the other: 256. Not random at all, and far outside of every probabilistic bound."""
    n = 4000
    ones = np.ones(n)
    stopped = summed(torch.ones(n), BF16).item()
    assert stopped == theory.stagnation(1.0, BF16.u) == 256
    error = (n - stopped) / n
    law = theory.rms_law(theory.node_sums(ones, "recursive"), BF16.u) / n
    assert error > 6 * law
    assert error <= theory.sum_bound("recursive", n, BF16.u)
    errors = relative_errors(ones, RECURSIVE, 500)
    assert np.sqrt(np.mean(errors**2)) < law
    assert abs(errors.mean()) < 5 * errors.std() / 500**0.5
    # In a wider format the same law is not exceeded: nothing is absorbed before 2^24.
    assert summed(torch.ones(n), FP32).item() == n


@given(st.floats(0.01, 100), st.integers(2, 8))
def test_where_equal_terms_stop(term: float, t: int) -> None:
    fmt = Format.of(t)
    value = rounded(np.array(term), fmt).item()
    x = torch.full((2 ** (t + 2),), value, dtype=torch.float64)
    assert summed(x, fmt).item() == theory.stagnation(value, fmt.u)


def test_to_nearest_is_needed_for_n_u() -> None:
    """Stochastically one rounding can be off by nearly 2u, and so can one sum of two numbers of the format."""
    x = torch.tensor([1.0, 2.0**-14]).expand(2000, 2)
    errors = (summed(x, BF16, mode="stochastic", seed=0).double() - x[0].double().sum()).abs() / x[0].double().sum()
    assert float(errors.max()) > 1.9 * BF16.u
    assert float(errors.max()) <= theory.compounded(1, 2 * BF16.u)


def test_underflow_of_products_is_outside() -> None:
    """2^-13 times 2^-13 is lost in fp16 altogether."""
    a = torch.full((1, 1), 2.0**-13)
    assert matmul(a, a, operands=FP16, accumulator=FP16).item() == 0
    assert theory.product_bound(theory.sum_bound("recursive", 1, FP16.u), FP16.u) < 1


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40), st.integers(2, 12))
def test_no_compensated_sum_exceeds_its_bound(values: list[float], t: int) -> None:
    """Neumaier's, with nu far above 1."""
    fmt = Format.of(t)
    x = rounded(torch.tensor(values, dtype=torch.float64), fmt)
    total, size = exact(x.tolist())
    bound = theory.neumaier_bound(float(total), float(size), len(values), fmt.u)
    result = Fraction(compensated(x, fmt, "neumaier").item())
    assert abs(result - total) <= upward(float(bound)) + Fraction(2.0**-1000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.depth("sorted", 3), "order must be one of 'recursive', 'blocked', 'pairwise'; got 'sorted'"),
        (lambda: theory.depth("blocked", 3), "block must be >= 1 in order 'blocked'; got None"),
        (lambda: theory.node_sums([], "recursive"), r"terms must have shape \(..., n\) with n >= 1; got \(0,\)"),
        (lambda: theory.gamma(-1, 0.1), "must be >= 0; got -1.0"),
        (lambda: theory.gamma(1, 0.7), r"u must be in \(0, 1/2\]; got 0.7"),
        (lambda: theory.stagnation(1.0, 0.1), "u must be a power of two in"),
        (lambda: theory.stagnation(0.0, 0.125), "term must be finite and > 0; got 0.0"),
        (lambda: theory.probable_bound(3, 0.1, 1.0), r"failure must be in \(0, 1\); got 1.0"),
        (lambda: theory.higham_mary(3, 0.1, 0.0), "lam must be finite and > 0; got 0.0"),
    ],
)
def test_what_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
