"""tanh as a fraction of two polynomials: about fifteen fused multiply-adds and one division.

``x P(x^2) / Q(x^2)``, with ``P(0) = Q(0) = 1``, so that tiny ``x`` returns itself, and positive coefficients, so that
nothing cancels. ``|x|`` is clamped to a bound where the result is 1.

- `SHORT`, for bfloat16 and float16 (computed in float32), is the fraction of degree 7 / 6 of least relative error,
  ``53 x 2^-24``, that equals 1 at its bound: 1/1200 of the unit roundoff of bfloat16, 1/150 of that of float16.
- `LONG`, for float32, approximates ``t = tanh(x/2)`` with degree 5 / 6 and doubles the angle, ``2t / (1 + t^2)``, in
  one division: ``A Q / (Q^2 + A^2/4)`` with ``A = x P``. Rounding errors of ``t`` are damped where tanh saturates,
  which no direct fraction does (the best of degree 9 / 8 was off by 5.4 ulp). Its error after doubling is the least
  possible, ``0.12 x 2^-24``; what remains is rounding.

Every float32 was tried: `LONG` is off by at most 4.0 ulp (3.993) in plain float32 arithmetic and 3.61 ulp with fused
multiply-adds, never exceeds 1, and steps back by at most 6 and 4 ulp between neighbours: rounding makes no fraction
exactly monotone. The tests derive the coefficients again, by Remez' exchange in 40 digits. A form built on ``exp``
(range reduction, then ``e / (e + 2)``) is more accurate where tanh saturates and took 1.5 times as long.

The derivative is taken as ``1 - y^2``, not as that of the fraction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Fraction(NamedTuple):
    """Coefficients of ``P`` and ``Q`` from the constant term up, each a float32, and how to use them.

    Attributes
    ----------
    numerator, denominator : tuple of float
        ``P`` and ``Q`` as polynomials in ``x^2``.
    bound : float
        Where ``|x|`` is clamped.
    doubled : bool
        Whether ``x P / (2 Q)`` approximates ``tanh(x/2)``, rather than ``x P / Q`` tanh itself.
    """

    numerator: tuple[float, ...]
    denominator: tuple[float, ...]
    bound: float
    doubled: bool


LONG = Fraction(
    tuple(map(float.fromhex, ("0x1p0", "0x1.e7e382p-6", "0x1.dfa1c8p-14"))),
    tuple(map(float.fromhex, ("0x1p0", "0x1.cf4e2cp-4", "0x1.3c6a40p-10", "0x1.4a796ep-20"))),
    9.25,
    doubled=True,
)
SHORT = Fraction(
    tuple(map(float.fromhex, ("0x1p0", "0x1.f33e18p-4", "0x1.1cf0ecp-9", "0x1.cedef6p-19"))),
    tuple(map(float.fromhex, ("0x1p0", "0x1.d2213cp-2", "0x1.516b92p-6", "0x1.13140cp-13"))),
    8.0,
    doubled=False,
)


def rational_tanh(x: Tensor, fraction: Fraction | None = None) -> Tensor:
    """Return tanh of ``x``, elementwise: odd, at most 1 in modulus, NaN for NaN, 1 for infinity, ``x`` for tiny ``x``.

    Parameters
    ----------
    x : Tensor
        Of any floating-point dtype. float64 takes `torch.tanh`; 16-bit dtypes are computed in float32.
    fraction : Fraction, optional
        `LONG` for float32 and `SHORT` for 16-bit dtypes unless given.

    Returns
    -------
    Tensor, shape and dtype of ``x``
    """
    if x.dtype == torch.float64:
        return torch.tanh(x)
    if fraction is None:
        fraction = LONG if x.dtype == torch.float32 else SHORT
    function = _RationalTanh if torch.compiler.is_compiling() else _TransformableRationalTanh
    y: Tensor = function.apply(x.float(), fraction)  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


def evaluate(x: Tensor, fraction: Fraction) -> Tensor:
    """Return the fraction at float32 ``x``, in few roundings: ``P`` and ``Q`` are kept as what they exceed 1 by."""
    x = x.clamp(-fraction.bound, fraction.bound)
    square = x * x
    p = _horner(square, fraction.numerator)
    q = _horner(square, fraction.denominator)
    above = x + x * p
    if fraction.doubled:
        above, below = above + above * q, q * (q + 2) + above * (0.25 * above) + 1
    else:
        below = 1 + q
    return (above / below).clamp(-1, 1)


def _horner(square: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    _, *others, next_to_last, last = coefficients  # without the constant term, 1
    value = square * last + next_to_last
    for coefficient in reversed(others):
        value = value * square + coefficient
    return value * square


class _RationalTanh(torch.autograd.Function):
    """What torch.compile can trace: it refuses a rule for forward mode, and needs none for `torch.func.vmap`."""

    @staticmethod
    def forward(x: Tensor, fraction: Fraction) -> Tensor:
        return evaluate(x, fraction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Fraction], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return grad - grad * y * y, None


class _TransformableRationalTanh(_RationalTanh):
    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        y: Tensor = ctx.saved_tensors[0]
        return tangent - tangent * y * y
