r"""Matrix products with operands in one format and sums in another: two of the four roles of the rounding model.

Entry (i, j) of the product is :math:`\sum_k fl_q(a_{ik}) \, fl_q(b_{kj})`, where the products are exact and every
addition is rounded to the accumulator's format, as is a product that starts a sum. Rounding to nearest, without
overflow and underflow,

.. math:: |fl(Wx) - Wx| \le \bigl((1 + u_q)^2 (1 + n u_a) - 1\bigr) |W||x| = (2u_q + n u_a)|W||x| + \dots

for every order of the n additions.

*When are products exact?* A number of the format is a whole number below 2^t times a power of two, and the product of
two is one below 2^2t times a power of two: float32 holds it for t <= 12, float64 for t <= 26, unless its exponent is
out of range. All numbers are multiples of the smallest subnormal one, and all products of its square: 2^-48 for `FP16`,
2^-18 for `E4M3FN`, 2^-32 for `E5M2`, all held by float32, as are their largest products: there it is always exact.
`BF16` and `TF32` have the exponents of float32 itself, so that the values decide; float64 has room for all their
products, and for those of `FP32` (2^-298). The carrier is float32 where the values at hand show that nothing is lost,
else float64: the result is the same, the time is not. Sums in `FP32` itself need no room for products: C++ takes each
in by a fused multiply-add, which rounds once.

Source: Budzinskiy et al. (2025), arXiv 2503.10251, for the model; Jeannerod and Rump (2013) for n u_a.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision import reference
from residlab.precision.accumulation import (
    RECURSIVE,
    Order,
    accumulated,
    accumulates_in,
    check_accumulation,
    held,
)
from residlab.precision.formats import Format, Mode
from residlab.precision.rounding import Backend, Seed, check_carrier, is_native, key_of, rounded, uses_compiled

MOST_OPERAND_BITS = 26
_SHORT = 12  # bits of operands whose products float32 can hold
_LOWEST, _HIGHEST = -149, 126  # exponents of float32's smallest number, and of what leaves it room to round up


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    operands: Format,
    accumulator: Format,
    order: Order = RECURSIVE,
    mode: Mode = "nearest",
    seed: Seed = None,
    backend: Backend = "auto",
) -> Tensor:
    """Return ``a @ b`` as rounded arithmetic computes it; the m k n products are never in memory together.

    Parameters
    ----------
    a : Tensor, shape (..., m, k)
        float32 or float64. An unbounded format has the exponents of that dtype.
    b : Tensor, shape (k, n) or (..., k, n)
        Of the dtype of ``a``; leading axes broadcast.
    operands : Format
        What both are rounded to, to nearest: u_q. Held by the dtype, t <= 26. `FP32` leaves float32 as it is.
    accumulator : Format
        What every addition is rounded to: u_a. Held by the dtype; t <= 51, or `FP64` in mode nearest.
    order : Order
        `RECURSIVE`, `PAIRWISE` or ``blocked(b)`` of `residlab.precision.accumulation`.
    mode : {"nearest", "stochastic"}
        How every addition is rounded.
    seed, backend
        As in `residlab.precision.rounding.rounded`. There is no gradient.

    Returns
    -------
    Tensor, shape (..., m, n), dtype of ``a``
        In the accumulator's format: who stores it in a narrower one rounds it again.

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.formats import BF16, FP32
    >>> from residlab.precision.matmul import matmul
    >>> a = torch.full((1, 1000), 0.1)
    >>> [matmul(a, a.T, operands=BF16, accumulator=fmt).item() for fmt in (FP32, BF16)]
    [10.019397735595703, 4.0]
    """
    if a.dtype != b.dtype:
        raise ResidlabError(f"a and b must be of one dtype; got {a.dtype} and {b.dtype}")
    for name, fmt in (("a", operands), ("a", accumulator)):
        check_carrier(name, a.dtype, fmt)
    if operands.t > MOST_OPERAND_BITS:
        raise ResidlabError(
            f"operands must have t <= {MOST_OPERAND_BITS}, so that float64 holds their products; got {operands.name} "
            f"(t = {operands.t})"
        )
    check_accumulation(accumulator, mode)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ResidlabError(
            f"a and b must have shapes (..., m, k) and (..., k, n); got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    key = key_of(mode, seed)
    dtype, shape = a.dtype, a.shape
    operands, accumulator = held(operands, dtype), held(accumulator, dtype)
    a, b = rounded(a, operands, backend=backend), rounded(b, operands, backend=backend)
    fused = is_native(accumulator, torch.float32, mode) and uses_compiled(backend, a.device)
    short = accumulates_in(accumulator, torch.float32, mode) and (fused or _exact_in_float32(a, b, operands))
    carrier = torch.float32 if short else torch.float64
    a, b = a.to(carrier), b.to(carrier)
    if b.ndim == 2:
        flat = a.reshape(shape[:-1].numel(), shape[-1])
        out = accumulated(flat, b, accumulator, order, mode, key, backend)
        return out.reshape(*shape[:-1], b.shape[-1]).to(dtype)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    many_a = a.expand(*batch, *a.shape[-2:]).reshape(math.prod(batch), *a.shape[-2:])
    many_b = b.expand(*batch, *b.shape[-2:]).reshape(math.prod(batch), *b.shape[-2:])
    keys = [reference.key_of(key + i) for i in range(len(many_a))]  # a product alone would repeat the bits of another
    results = [
        accumulated(one, other, accumulator, order, mode, each, backend)
        for one, other, each in zip(many_a, many_b, keys, strict=True)
    ]
    out = torch.stack(results) if results else a.new_zeros(0, shape[-2], b.shape[-1])
    return out.reshape(*batch, shape[-2], b.shape[-1]).to(dtype)


def _exact_in_float32(a: Tensor, b: Tensor, fmt: Format) -> bool:
    """Return whether float32 holds every product, and every sum of them however it is rounded.

    A number x of the format is a multiple of 2^(e - t + 1), e its exponent, and so is every larger one. Of k terms, a
    rounded sum is below 4 k times the sum of the magnitudes, in every order: |fl(x + y)| <= 1.5 (|x| + |y|) pairwise,
    <= |x| + 2|y| one after the other.
    """
    if fmt.t > _SHORT:
        return False
    assert fmt.emin is not None
    quantum, top = 0, 4 * a.shape[-1] ** 2
    size = float(top)
    for x in (a.abs(), b.abs()):
        if not x.numel() or not (largest := float(x.max())):
            return True
        lowest = torch.frexp(torch.where(x > 0, x, largest).min()).exponent
        quantum += max(int(lowest) - fmt.t, fmt.emin - fmt.t + 1)
        size *= largest
    return quantum >= _LOWEST and size < 2.0**_HIGHEST
