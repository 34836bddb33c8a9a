"""Costs on paper: every count against numbers that count what is done to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from residlab.kernels.rational_tanh import LONG, evaluate
from residlab.theory.cost import (
    BLOCK,
    SITE,
    TANH_OPERATIONS,
    Work,
    matrix_time,
    most_speedup,
    norm_share,
    norm_time,
    share_from_doubling,
    statistics_from_ratios,
)


class Counted:
    """A number that counts the operations done to it and its like."""

    done = 0
    tanhs = 0

    def __init__(self, value):
        self.value = float(value)

    def _with(self, other, function):
        Counted.done += 1
        return Counted(function(self.value, other.value if isinstance(other, Counted) else other))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other):
        return self._with(other, lambda a, b: a / b)

    __radd__, __rmul__ = __add__, __mul__

    def __rtruediv__(self, other):
        return self._with(other, lambda a, b: b / a)

    def sqrt(self):
        return self._with(0.0, lambda a, _: math.sqrt(a))

    def tanh(self):
        Counted.tanhs += 1
        return Counted(math.tanh(self.value))

    def clamp(self, low, high):
        return Counted(min(max(self.value, low), high))


def total(terms):
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def rms_norm(x, gamma, eps):
    scale = 1 / (total([v * v for v in x]) / len(x) + eps).sqrt()
    return [v * scale * g for v, g in zip(x, gamma, strict=True)]


def layer_norm(x, gamma, beta, eps):
    mean = total(x) / len(x)
    centred = [v - mean for v in x]
    scale = 1 / (total([v * v for v in centred]) / len(x) + eps).sqrt()
    return [v * scale * g + b for v, g, b in zip(centred, gamma, beta, strict=True)]


def dyt(x, gamma, alpha):
    return [(v * alpha).tanh() * g for v, g in zip(x, gamma, strict=True)]


def bounded(x, gamma, lam, kappa, spread, eps):
    scale = lam / ((spread + eps).sqrt() * kappa)
    return [(v * scale).tanh() * g for v, g in zip(x, gamma, strict=True)]


def bhyt_star(x, gamma, lam, kappa, eps):
    return bounded(x, gamma, lam, kappa, total([v * v for v in x]) / len(x), eps)


@pytest.mark.parametrize("width", [1, 2, 7, 64])
@pytest.mark.parametrize("name", list(SITE))
def test_operations_are_those_of_numbers_that_count(name, width):
    rng = np.random.default_rng(0)
    x, gamma, beta = ([Counted(v) for v in rng.normal(size=width)] for _ in range(3))
    lam = Counted(2.0)
    Counted.done = Counted.tanhs = 0
    match name:
        case "rmsnorm":
            rms_norm(x, gamma, 1e-6)
        case "layernorm":
            layer_norm(x, gamma, beta, 1e-6)
        case "dyt":
            dyt(x, gamma, lam)
        case "bhyt*":
            bhyt_star(x, gamma, lam, 10.0, 1e-6)
        case "bhyt, second site":
            bounded(x, gamma, lam, 10.0, Counted(1.0) + 0.1, 1e-6)
    assert Counted.done == SITE[name].operations(width)
    assert Counted.tanhs == SITE[name].tanhs * width


def test_a_tanh_costs_what_the_kernel_does():
    x = Counted(0.3)
    Counted.done = 0
    assert evaluate(x, LONG).value == pytest.approx(math.tanh(0.3), rel=1e-6)
    assert Counted.done == TANH_OPERATIONS


def test_a_block_has_its_sites():
    assert BLOCK["bhyt"] == Work(6, 9, 2, 4, 15)
    assert BLOCK["peri-ln"] == BLOCK["rmsnorm"] + BLOCK["lns"]
    assert BLOCK["bhyt"].priced(10) == 6 * 10 + 9 + 2 * 10 * TANH_OPERATIONS


def test_time_is_a_roofline():
    # compute-bound: operations over balance; one token: the matrices are read
    assert matrix_time(1000, 1e6, 10.0) == pytest.approx(24 * 1e6 * 1e6 / 10)
    assert matrix_time(1000, 1, 1e9) == pytest.approx(2 * (12e6 + 19e3))
    assert norm_time(BLOCK["rmsnorm"], 1000, 3, 1e9) == 2 * 4 * 3000
    assert norm_time(BLOCK["rmsnorm"], 1000, 3, 1e9, fused=False) == 2 * 14 * 3000
    assert norm_time(BLOCK["dyt"], 1000, 3, 0.1) == pytest.approx(3000 * 44 / 0.1)
    # many tokens, much bandwidth wanted: the share tends to passes * itemsize * balance / (24 d)
    share = norm_share(BLOCK["rmsnorm"], 4096, 1e5, 100.0)
    assert share / (1 - share) == pytest.approx(4 * 2 * 100 / (24 * 4096))
    assert np.all(np.diff(norm_share(BLOCK["rmsnorm"], np.array([64, 128, 256]), 1e5, 100.0)) < 0)
    assert norm_share(BLOCK["rmsnorm"], 512, 64, 8.0, itemsize=4) > norm_share(BLOCK["rmsnorm"], 512, 64, 8.0)


def test_amdahl():
    assert most_speedup(0.5) == 2
    assert most_speedup(0) == 1


def test_parts_from_ratios_give_the_ratios_back():
    base, statistic, tanh = 10.0, 0.7, 0.2
    rms, exact, approximate = base + 2 * statistic, base + 2 * statistic + 2 * tanh, base + statistic + 2 * tanh
    parts = statistics_from_ratios(exact / approximate, rms / approximate)
    assert parts["statistic"] * approximate == pytest.approx(statistic)
    assert parts["tanhs"] * approximate == pytest.approx(2 * tanh)
    assert parts["rest"] * approximate == pytest.approx(base)
    assert parts["share"] == pytest.approx(2 * statistic / rms)
    assert share_from_doubling((base + 4 * statistic) / (base + 2 * statistic)) == pytest.approx(2 * statistic / rms)
