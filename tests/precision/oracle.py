"""Rounding as exact arithmetic on fractions."""

from __future__ import annotations

import math
from fractions import Fraction

from residlab.precision.accumulation import Order
from residlab.precision.formats import Format, Mode

EXPONENTS = {"float32": (-126, 127), "float64": (-1022, 1023)}


def round_fraction(x: Fraction, fmt: Format, mode: Mode = "nearest", carrier: str = "float64") -> float:
    """Round a fraction as IEEE 754 words it; an unbounded format has the exponents of the carrier.

    First as though the exponent had no upper bound, then overflow. 0 is +0.
    """
    emin, emax = EXPONENTS[carrier] if fmt.emin is None or fmt.emax is None else (fmt.emin, fmt.emax)
    size = abs(x)
    if size == 0 or (not fmt.subnormals and size < Fraction(2) ** emin):
        return math.copysign(0.0, x) if x else 0.0
    exponent = max(emin, size.numerator.bit_length() - size.denominator.bit_length() - 1)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - fmt.t + 1)
    below = size // ulp
    left = size - below * ulp
    away = {
        "nearest": 2 * left > ulp or (2 * left == ulp and below % 2 == 1),
        "toward_zero": False,
        "up": left > 0 and x > 0,
        "down": left > 0 and x < 0,
    }[mode]
    result = (below + away) * ulp
    largest = (2**fmt.t - 1 - fmt.reserved) * Fraction(2) ** (emax - fmt.t + 1)
    if result > largest:
        stops = mode == "toward_zero" or mode == ("down" if x > 0 else "up")
        beyond = {"infinity": math.inf, "saturate": float(largest), "nan": math.nan}[fmt.overflow]
        return math.copysign(float(largest) if stops else beyond, 1 if x > 0 else -1)  # x may be no float64
    return math.copysign(float(result), x)


def sum_fractions(terms: list[Fraction], fmt: Format, order: Order) -> float:
    """Sum as the order is worded, each rounding exact: blocks by slicing, pairs level by level."""

    def fl(x: Fraction) -> Fraction:
        return Fraction(round_fraction(x, fmt))

    def recursive(values: list[Fraction]) -> Fraction:
        total = values[0]
        for value in values[1:]:
            total = fl(total + value)
        return total

    def first(values: list[Fraction]) -> list[Fraction]:
        return [fl(values[0]), *values[1:]]

    if not terms:
        return 0.0
    if order.name == "pairwise":
        level = [fl(term) for term in terms]
        while len(level) > 1:
            pairs = [fl(a + b) for a, b in zip(level[::2], level[1::2], strict=False)]
            level = pairs + ([level[-1]] if len(level) % 2 else [])
        return float(level[0])
    block = order.block or len(terms)
    runs = [recursive(first(terms[i : i + block])) for i in range(0, len(terms), block)]
    return float(recursive(runs))
