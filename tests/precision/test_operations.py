"""Each operation against exact fractions and mpmath, bit for bit; functions made of them against their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.precision.oracle import round_fraction
from tests.precision.strategies import floats
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import PAIRWISE
from residlab.precision.formats import BF16, E4M3FN, E5M2, FP16, FP32, FP64, TF32, Format
from residlab.precision.operations import Operations
from residlab.precision.rounding import rounded

FORMATS = [BF16, FP16, TF32, FP32, E4M3FN, E5M2, Format.of(5), Format.of(25)]
formats = st.sampled_from(FORMATS)
numbers = floats(32).filter(math.isfinite)


def scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def fraction(x: mpmath.mpf) -> Fraction:
    """Return a number, exact, unless it is far below every format's: exp(-1e60) has 10^60 binary places."""
    sign, significand, exponent, _ = x._mpf_
    exponent = max(exponent, -5000)
    return (-1) ** sign * Fraction(int(significand)) * Fraction(2) ** int(exponent)


def operand(x: float, fmt: Format) -> float:
    return rounded(scalar(x), fmt, backend="reference").item()


@settings(max_examples=400)
@given(numbers, numbers, formats)
@example(1.0, 2.0**-30, BF16)
@example(1.0, 3.0, FP32)
@example(2.0**-14, 3.0, FP16)
@example(2.0**-8, 7.0, E4M3FN)
def test_arithmetic_is_exact_and_rounded_once(x: float, y: float, fmt: Format) -> None:
    a, b = operand(x, fmt), operand(y, fmt)
    if not (math.isfinite(a) and math.isfinite(b)):
        return
    ops = Operations(fmt, backend="reference")
    exact: dict[Callable[[Tensor, Tensor], Tensor], Fraction] = {
        ops.add: Fraction(a) + Fraction(b),
        ops.subtract: Fraction(a) - Fraction(b),
        ops.multiply: Fraction(a) * Fraction(b),
    }
    if b:
        exact[ops.divide] = Fraction(a) / Fraction(b)
    for operation, result in exact.items():
        if result:  # the sign of an exact zero is that of float64's operation
            assert operation(scalar(a), scalar(b)).item() == round_fraction(result, fmt)
        else:
            assert operation(scalar(a), scalar(b)).item() == 0


@settings(max_examples=300)
@given(numbers, formats)
def test_functions_are_correctly_rounded(x: float, fmt: Format) -> None:
    a = operand(x, fmt)
    if not math.isfinite(a):
        return
    ops = Operations(fmt, backend="reference")
    with mpmath.workprec(400):
        for operation, function in (
            (ops.exp, mpmath.exp),
            (ops.tanh, mpmath.tanh),
            (ops.erf, mpmath.erf),
            (ops.erfc, mpmath.erfc),
        ):
            if operation == ops.exp and not -700 < a < 700:
                continue
            assert operation(scalar(a)).item() == round_fraction(fraction(function(mpmath.mpf(a))), fmt)
        if a > 0:
            assert ops.log(scalar(a)).item() == round_fraction(fraction(mpmath.log(mpmath.mpf(a))), fmt)
        if a >= 0:
            assert ops.sqrt(scalar(a)).item() == round_fraction(fraction(mpmath.sqrt(mpmath.mpf(a))), fmt)


def test_float64_is_torch_itself() -> None:
    ops, x = Operations(FP64), torch.randn(5, 7, dtype=torch.float64)
    torch.testing.assert_close(ops.silu(x), torch.nn.functional.silu(x), rtol=1e-15, atol=0)
    torch.testing.assert_close(ops.gelu(x), torch.nn.functional.gelu(x), rtol=1e-13, atol=1e-16)
    torch.testing.assert_close(ops.gelu_erfc(x), torch.nn.functional.gelu(x), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(
        ops.gelu_tanh(x), torch.nn.functional.gelu(x, approximate="tanh"), rtol=1e-13, atol=1e-16
    )
    assert ops.mean(x).equal(x.mean(-1, keepdim=True))


@settings(max_examples=300)
@given(st.floats(-80, 80, width=32), st.sampled_from([BF16, FP16, TF32, FP32]))
def test_silu_keeps_its_bound_and_gelu_only_its_absolute_one(x: float, fmt: Format) -> None:
    a = operand(x, fmt)
    ops, u = Operations(fmt, backend="reference"), fmt.u
    with mpmath.workprec(200):
        exact = float(a / (1 + mpmath.exp(-mpmath.mpf(a))))
        phi = float(mpmath.mpf(a) * mpmath.ncdf(mpmath.mpf(a)))
    if abs(exact) > 2 * fmt.smallest_normal and math.exp(min(-a, 700)) < fmt.largest / 2:
        assert abs(ops.silu(scalar(a)).item() - exact) <= ((1 + u) ** 3 / (1 - u) - 1) * abs(exact) * (1 + 1e-9)
    if abs(a) > 100 * fmt.smallest_normal:
        # Roundings of 1/sqrt 2 and of its product shift the argument by 2u|a|: 2u|a| times the slope 2/sqrt(pi) e^-t^2.
        assert abs(ops.gelu(scalar(a)).item() - phi) <= 8 * u * abs(a)


def test_gelu_loses_all_of_a_small_result() -> None:
    result = Operations(FP32).gelu(scalar(-5.5)).item()
    exact = float(mpmath.mpf(-5.5) * mpmath.ncdf(-5.5))
    assert abs(result / exact - 1) > 1e5 * FP32.u


def test_means_are_sums_divided_by_the_count_itself() -> None:
    # 577 is no number of bf16; the quotient is by 577.
    x = torch.ones(577, dtype=torch.float64)
    assert Operations(BF16, PAIRWISE).sum(x).item() == 576  # 577 rounded
    assert Operations(BF16, PAIRWISE).mean(x).item() == round_fraction(Fraction(576, 577), BF16)


def test_stochastic_rounding_is_seeded_and_unbiased() -> None:
    thirds = torch.full((20_000,), 1.0, dtype=torch.float64), torch.full((20_000,), 3.0, dtype=torch.float64)
    one = Operations(BF16, mode="stochastic", seed=1)
    first, second = one.divide(*thirds), one.divide(*thirds)
    assert not first.equal(second)
    assert first.equal(Operations(BF16, mode="stochastic", seed=1).divide(*thirds))
    deviation = float(first.std()) / 20_000**0.5
    assert abs(float(first.mean()) - 1 / 3) < 5 * deviation
    assert abs(operand(1 / 3, BF16) - 1 / 3) > 20 * deviation


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"fmt": Format.of(26)}, "t <= 25"),
        ({"fmt": FP64, "mode": "stochastic"}, "t <= 51"),
        ({"fmt": BF16, "mode": "up"}, "up"),
        ({"fmt": BF16, "mode": "stochastic"}, "seed"),
        ({"fmt": BF16, "seed": 3}, "takes no seed"),
    ],
)
def test_what_is_not_allowed(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ResidlabError, match=said):
        Operations(**arguments)  # type: ignore[arg-type]
