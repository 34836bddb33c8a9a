"""Rounded norms against a second statement with Python's fractions, bit for bit, and against the kernels in float64."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from tests.precision.oracle import round_fraction, sum_fractions
from torch import Tensor

from residlab import kernels
from residlab.precision import norms
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, E4M3FN, FP16, FP64, Format
from residlab.precision.operations import Operations

WIDTH = 12
FORMATS = [BF16, FP16, E4M3FN]


class Scalars:
    """Arithmetic on Python numbers, each result rounded as a fraction; exp and the like are Python's."""

    def __init__(self, fmt: Format, order: Order) -> None:
        self.fmt, self.order = fmt, order

    def fl(self, x: Fraction | float) -> float:
        return round_fraction(Fraction(x), self.fmt)

    def mean(self, terms: list[float]) -> float:
        total = sum_fractions([Fraction(term) for term in terms], self.fmt, self.order)
        return self.fl(Fraction(total) / len(terms))

    def rooted(self, spread: float, eps: float) -> float:
        return self.fl(math.sqrt(self.fl(Fraction(spread) + Fraction(self.fl(eps)))))


def data(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))  # type: ignore[return-value]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("order", [RECURSIVE, PAIRWISE, blocked(5)], ids=lambda order: order.name)
@pytest.mark.parametrize("seed", range(3))
def test_every_step_is_rounded(fmt: Format, order: Order, seed: int) -> None:
    x, gamma, beta = data(seed)
    ops, s = Operations(fmt, order), Scalars(fmt, order)
    fl = s.fl
    t, g, b = ([fl(value) for value in each.tolist()] for each in (x, gamma, beta))
    eps, lam, kappa = 1e-3, 2.125, 9.7

    def product(*factors: float) -> float:
        total = factors[0]
        for factor in factors[1:]:
            total = fl(Fraction(total) * Fraction(factor))
        return total

    def plus(u: float, v: float) -> float:
        return fl(Fraction(u) + Fraction(v))

    def quotient(u: float, v: float) -> float:
        return fl(Fraction(u) / Fraction(v))

    square = s.mean([product(v, v) for v in t])
    inverse = quotient(1.0, s.rooted(square, eps))
    expected = [product(v, inverse, w) for v, w in zip(t, g, strict=True)]
    assert norms.rms_norm(ops, x, gamma, eps).tolist() == expected

    mean = s.mean(t)
    centred = [plus(v, -mean) for v in t]
    variance = s.mean([product(v, v) for v in centred])
    inverse = quotient(1.0, s.rooted(variance, eps))
    expected = [plus(product(v, inverse, w), c) for v, w, c in zip(centred, g, b, strict=True)]
    assert norms.layer_norm(ops, x, gamma, beta, eps).tolist() == expected

    expected = [plus(product(fl(math.tanh(product(fl(lam), v))), w), c) for v, w, c in zip(t, g, b, strict=True)]
    assert norms.dyt(ops, x, torch.tensor(lam, dtype=torch.float64), gamma, beta).tolist() == expected

    for is_centred, spread in ((False, square), (True, variance)):
        bound = product(fl(kappa), s.rooted(spread, eps))
        bound = plus(bound, abs(mean)) if is_centred else bound
        factor = quotient(fl(lam), bound)
        expected = [product(fl(math.tanh(product(v, factor))), w) for v, w in zip(t, g, strict=True)]
        y, statistic = norms.bhyt_exact(ops, x, gamma, torch.tensor(lam), kappa, eps, is_centred)
        assert y.tolist() == expected
        assert statistic.spread.item() == spread

        increment = torch.tensor([0.25], dtype=torch.float64)
        predicted = plus(spread, 0.25)
        bound = product(fl(kappa), s.rooted(predicted, eps))
        bound = plus(bound, abs(mean)) if is_centred else bound
        factor = quotient(fl(lam), bound)
        expected = [product(fl(math.tanh(product(v, factor))), w) for v, w in zip(t, g, strict=True)]
        z = norms.bhyt_approximate(ops, x, gamma, torch.tensor(lam), statistic, increment, kappa, eps, is_centred)
        assert z.tolist() == expected


def test_float64_is_what_the_kernels_define() -> None:
    ops = Operations(FP64)
    x = torch.randn(4, 3, WIDTH, dtype=torch.float64)
    gamma, beta = torch.rand(WIDTH, dtype=torch.float64), torch.rand(WIDTH, dtype=torch.float64)
    lam = torch.tensor(2.0, dtype=torch.float64)
    close = {"rtol": 1e-13, "atol": 1e-15}
    torch.testing.assert_close(norms.rms_norm(ops, x, gamma, 1e-5), kernels.rms_norm(x, gamma, 1e-5), **close)
    torch.testing.assert_close(
        norms.layer_norm(ops, x, gamma, beta, 1e-5), torch.nn.functional.layer_norm(x, (WIDTH,), gamma, beta), **close
    )
    torch.testing.assert_close(norms.dyt(ops, x, lam, gamma, beta), kernels.dyt(x, lam, gamma, beta), **close)
    for centred in (False, True):
        y, statistic = norms.bhyt_exact(ops, x, gamma, lam, 10.0, 1e-6, centred)
        expected, measured = kernels.bhyt_exact(x, gamma, lam, kappa=10.0, eps=1e-6, centred=centred)
        torch.testing.assert_close(y, expected, **close)
        increment = torch.full((4, 3, 1), 0.3, dtype=torch.float64)
        z = norms.bhyt_approximate(ops, x, gamma, lam, statistic, increment, 10.0, 1e-6, centred)
        expected, _ = kernels.bhyt_approximate(
            x, gamma, lam, measured, increment, kappa=10.0, eps=1e-6, centred=centred
        )
        torch.testing.assert_close(z, expected, **close)


def test_a_large_entry_overflows_fp16_and_leaves_zeros() -> None:
    x = torch.ones(WIDTH, dtype=torch.float64)
    x[3] = 300.0
    assert norms.rms_norm(Operations(FP16), x, None, 1e-5).tolist() == [0.0] * WIDTH
    assert norms.rms_norm(Operations(BF16), x, None, 1e-5).abs().max() > 3


def test_centred_bhyt_without_a_mean_is_refused():
    x, lam = torch.ones(1, 4).double(), torch.tensor([2.0])
    measured = norms.Statistic(torch.ones(1, 1).double(), None)
    with pytest.raises(ValueError, match="centred needs the mean of each token"):
        norms.bhyt_approximate(Operations(FP16), x, None, lam, measured, torch.zeros(()), 1.0, 0.0, True)
