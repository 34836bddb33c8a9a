"""Sums against exact fractions, bit for bit; the error bounds attacked; what breaks them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.precision.oracle import sum_fractions
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, E4M3FN, E5M2, FP16, FP32, FP64, TF32, Format
from residlab.precision.rounding import added, rounded
from residlab.precision.summation import compensated, summed

ORDERS = [RECURSIVE, PAIRWISE, blocked(1), blocked(3), blocked(4), blocked(1000)]
FORMATS = [BF16, FP16, TF32, E4M3FN, E5M2, Format.of(8), Format.of(3), Format.of(22), Format.of(30), Format.of(51)]


def label(value: Order | Format) -> str:
    return f"{value.name}{getattr(value, 'block', None) or ''}"


orders, formats = st.sampled_from(ORDERS), st.sampled_from(FORMATS)
# Of one size, or of very different ones, so that terms are absorbed.
numbers = st.one_of(
    st.integers(-2048, 2048).map(float),
    st.builds(math.ldexp, st.integers(-255, 255).map(float), st.integers(-30, 6)),
)


@settings(max_examples=60)
@given(st.lists(numbers, max_size=23), orders, formats)
def test_sums_are_those_of_fractions(backend: Any, terms: list[float], order: Order, fmt: Format) -> None:
    for dtype in (torch.float32, torch.float64):
        if dtype == torch.float32 and not fmt.within(FP32):
            continue
        x = torch.tensor(terms, dtype=dtype)
        result = summed(x, fmt, order, backend=backend)
        assert result.dtype == dtype
        assert result.item() == sum_fractions([Fraction(term) for term in x.tolist()], fmt, order)


@pytest.mark.parametrize("order", ORDERS, ids=label)
def test_depth_counts_the_additions_a_term_goes_through(order: Order) -> None:
    """By propagating counters through the orders as they are worded."""
    for count in range(1, 40):
        if order.name == "pairwise":
            level = [0] * count
            while len(level) > 1:
                level = [max(level[i : i + 2]) + (len(level[i : i + 2]) == 2) for i in range(0, len(level), 2)]
            assert order.depth(count) == level[0] == math.ceil(math.log2(count))
        else:
            block = min(order.block or count, count)
            runs = [min(block, count - i) - 1 for i in range(0, count, block)]
            depths = [run + (len(runs) - max(i, 1)) for i, run in enumerate(runs)]
            assert order.depth(count) == max(depths) == block + math.ceil(count / block) - 2
    assert order.depth(0) == 0


def test_in_float32_sums_are_its_own(backend: Any) -> None:
    x = torch.randn(4, 100)
    loop = x[:, 0]
    for k in range(1, 100):
        loop = loop + x[:, k]
    assert torch.equal(summed(x, FP32, backend=backend), loop)
    assert torch.equal(summed(x, Format.of(24), backend=backend), loop)
    assert torch.equal(summed(x.double(), FP32, backend=backend), loop.double())


def test_shapes(backend: Any) -> None:
    x = torch.randn(2, 5, 33, dtype=torch.float64)
    result = summed(x, BF16, PAIRWISE, backend=backend)
    assert result.shape == (2, 5)
    assert torch.equal(result[1, 2], summed(x[1, 2], BF16, PAIRWISE, backend=backend))
    assert torch.equal(
        summed(x.transpose(1, 2), BF16, backend=backend)[0, 3], summed(x[0, :, 3], BF16, backend=backend)
    )
    assert summed(torch.empty(3, 0), BF16, backend=backend).tolist() == [0, 0, 0]
    assert compensated(torch.empty(3, 0), BF16, backend=backend).tolist() == [0, 0, 0]
    assert summed(torch.empty(0, 3), BF16, backend=backend).shape == (0,)
    minus_zero = summed(torch.tensor([-0.0]), BF16, backend=backend)
    assert math.copysign(1, minus_zero.item()) == -1


def in_format(values: list[float], fmt: Format) -> Tensor:
    return rounded(torch.tensor(values, dtype=torch.float64), fmt, backend="reference")


def exact(x: Tensor) -> tuple[Fraction, Fraction]:
    terms = [Fraction(value) for value in x.tolist()]
    return sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))


@settings(max_examples=150)
@given(st.lists(numbers, min_size=1, max_size=60), orders, st.integers(2, 12))
def test_jeannerod_rump(terms: list[float], order: Order, t: int) -> None:
    """(n - 1) u sum|x|, with u up to 1/4, where the classical bound has no value; n u for terms not of the format."""
    fmt, n = Format.of(t), len(terms)
    x, raw = in_format(terms, fmt), torch.tensor(terms, dtype=torch.float64)
    total, size = exact(x)
    assert abs(Fraction(summed(x, fmt, order).item()) - total) <= (n - 1) * Fraction(fmt.u) * size
    total, size = exact(raw)
    assert abs(Fraction(summed(raw, fmt, order).item()) - total) <= n * Fraction(fmt.u) * size


@settings(max_examples=150)
@given(st.lists(numbers, min_size=1, max_size=60), orders, st.integers(8, 24))
def test_the_depth_of_the_order_bounds_the_error(terms: list[float], order: Order, t: int) -> None:
    """(1 + u)^depth - 1, without going to first order."""
    fmt = Format.of(t)
    x = in_format(terms, fmt)
    total, size = exact(x)
    growth = (1 + Fraction(fmt.u)) ** order.depth(len(terms)) - 1
    assert abs(Fraction(summed(x, fmt, order).item()) - total) <= growth * size


@settings(max_examples=200)
@given(st.data(), st.sampled_from([BF16, FP16, E5M2, Format.of(3), Format.of(12)]))
def test_absorption(backend: Any, data: st.DataObject, fmt: Format) -> None:
    """|fl(a+b) - (a+b)| <= min(|a|, |b|, u|a+b|), subnormal numbers too, without overflow."""
    smallest = fmt.smallest_subnormal or 2.0**-40
    pair = data.draw(st.lists(st.one_of(numbers, numbers.map(lambda x: x * smallest)), min_size=2, max_size=2))
    a, b = in_format(pair, fmt)
    error = abs(Fraction(added(a, b, fmt, backend=backend).item()) - Fraction(a.item()) - Fraction(b.item()))
    bounds = (
        abs(Fraction(a.item())),
        abs(Fraction(b.item())),
        Fraction(fmt.u) * abs(Fraction(a.item()) + Fraction(b.item())),
    )
    assert error <= min(bounds)


def test_absorption_is_attained_and_flushing_breaks_it() -> None:
    one, half = torch.tensor([1.0, 2.0**-8])
    assert added(one, half, BF16).item() == 1.0  # all of b is lost
    flushing = replace(FP16, subnormals=False)
    a, b = torch.tensor([2.0**-14, -(2.0**-14) * (1 + 2.0**-10)])
    assert added(a, b, flushing).item() == 0.0  # exact: -2^-24, off by all of itself, and u|a+b| is 2^-35
    assert added(a, b, FP16).item() == -(2.0**-24)


def test_what_order_does_to_ones() -> None:
    """bf16 counts to 256: there 1000 ones stop recursively, n u = 3.9 allows it, and Neumaier's sum of errors, too."""
    ones = torch.ones(1000)
    assert [summed(ones, BF16, order).item() for order in (RECURSIVE, blocked(100), PAIRWISE)] == [256, 1000, 1000]
    assert [compensated(ones, BF16, variant).item() for variant in ("kahan", "neumaier")] == [1000, 512]


@settings(max_examples=40)
@given(st.lists(numbers, min_size=1, max_size=60), st.integers(12, 30))
def test_compensated_sums(backend: Any, terms: list[float], t: int) -> None:
    """Kahan: 2u + O(nu^2) times sum|x|; Neumaier: u|s| + O(n^2 u^2) sum|x|. Constants of the second order: 4."""
    fmt, n = Format.of(t), len(terms)
    u = Fraction(fmt.u)
    x = in_format(terms, fmt)
    total, size = exact(x)
    kahan, neumaier = (Fraction(compensated(x, fmt, v, backend=backend).item()) for v in ("kahan", "neumaier"))
    assert abs(kahan - total) <= (2 * u + 4 * n * u**2) * size
    assert abs(neumaier - total) <= u * abs(total) + 4 * n**2 * u**2 * size


def test_neumaier_sees_what_kahan_loses() -> None:
    """Neumaier's own example, 1 + 1e100 + 1 - 1e100 = 2, with a number that float32 holds."""
    x = torch.tensor([1.0, 2.0**60, 1.0, -(2.0**60)])
    assert compensated(x, BF16, "kahan").item() == 0
    assert compensated(x, BF16, "neumaier").item() == 2


def test_stochastic_sums_agree_are_reproducible_and_unbiased() -> None:
    terms = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 0.01
    x = terms.expand(3000, 64)
    for order in (RECURSIVE, PAIRWISE, blocked(10)):
        sums = summed(x, BF16, order, "stochastic", seed=11, backend="reference")
        assert torch.equal(sums, summed(x, BF16, order, "stochastic", seed=11))
        error = sums.double().mean() - terms.double().sum()
        assert error.abs() < 5 * sums.double().std() / 3000**0.5  # 1e-6 by chance, the seed is fixed
        assert sums.std() > 0
    assert abs(summed(terms, BF16).item() - terms.sum().item()) > 0.1  # to nearest, the error has a sign


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order("sorted"), "name must be one of recursive, blocked, pairwise; got 'sorted'"),  # type: ignore[arg-type]
        (lambda: blocked(0), "block must be a whole number >= 1; got 0"),
        (lambda: Order("blocked"), "block must be a whole number >= 1; got None"),
        (lambda: Order("pairwise", 8), "block belongs to order 'blocked', not to 'pairwise'; got 8"),
        (lambda: summed(torch.ones(()), BF16), r"x must have shape \(..., n\); got \(\)"),
        (lambda: summed(torch.ones(3), BF16, mode="up"), "mode nearest or stochastic; got 'up'"),
        (lambda: summed(torch.ones(3), BF16, mode="stochastic"), "needs a seed"),
        (lambda: summed(torch.ones(3).double(), Format.of(52)), r"t <= 51, or fp64 in mode nearest; got t52 \(t = 52"),
        (lambda: summed(torch.ones(3).double(), FP64, mode="stochastic", seed=1), "got fp64"),
        (lambda: summed(torch.ones(3), FP64), "float32 does not hold every number of fp64"),
        (lambda: summed(torch.ones(3, dtype=torch.int64), BF16), "x must be of dtype float32 or float64; got int64"),
        (lambda: compensated(torch.ones(3), BF16, "klein"), "variant must be one of kahan, neumaier; got 'klein'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        call()
