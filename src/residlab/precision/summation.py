r"""Sums in a format: plain, in a stated order, and compensated.

With n numbers of the format, rounding to nearest, no overflow, and every order of additions,

.. math:: |\hat s - s| \le (n - 1) \, u \sum |x_k|,

without the usual restriction :math:`nu < 1` (Jeannerod and Rump, 2013); terms that are rounded first make it n u. To
first order in u the order's `residlab.precision.accumulation.Order.depth` may stand for n - 1. One addition of two
numbers of the format is off by at most :math:`\min(|a|, |b|, u|a + b|)`, because a and b are candidates, too: of
:math:`|b| \le u|a + b|` nothing may be left, b is *absorbed*. Flushing to zero breaks that.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import (
    RECURSIVE,
    Order,
    accumulated,
    accumulates_in,
    check_accumulation,
    held,
)
from residlab.precision.formats import Format, Mode
from residlab.precision.rounding import Backend, Seed, added, check_carrier, key_of, rounded

Compensation = Literal["kahan", "neumaier"]


def summed(
    x: Tensor,
    fmt: Format,
    order: Order = RECURSIVE,
    mode: Mode = "nearest",
    *,
    seed: Seed = None,
    backend: Backend = "auto",
) -> Tensor:
    """Return the sums over the last axis, rounded to the format after every addition, each exactly once.

    Terms need not be numbers of the format: a term alone, first in its sum, is rounded; one that is added is not.
    The sum of none is 0.

    Parameters
    ----------
    x : Tensor, shape (..., n)
        float32 or float64. An unbounded format has the exponents of that dtype.
    fmt : Format
        Held by the dtype of ``x``; t <= 51, or `FP64` in mode nearest.
    order : Order
        `RECURSIVE`, `PAIRWISE` or ``blocked(b)`` of `residlab.precision.accumulation`.
    mode : {"nearest", "stochastic"}
        How every addition is rounded.
    seed, backend
        As in `residlab.precision.rounding.rounded`.

    Returns
    -------
    Tensor, shape (...), dtype of ``x``

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.accumulation import PAIRWISE
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.summation import compensated, summed
    >>> ones = torch.ones(1000)
    >>> summed(ones, BF16).item(), summed(ones, BF16, PAIRWISE).item(), compensated(ones, BF16).item()
    (256.0, 1000.0, 1000.0)
    """
    fmt, terms = _prepared(x, fmt, mode)
    key = key_of(mode, seed)
    flat = terms.reshape(terms.shape[:-1].numel(), terms.shape[-1])
    one = flat.new_ones(1, flat.shape[1])
    return accumulated(one, flat.T, fmt, order, mode, key, backend)[0].reshape(x.shape[:-1]).to(x.dtype)


def compensated(x: Tensor, fmt: Format, variant: Compensation = "kahan", *, backend: Backend = "auto") -> Tensor:
    r"""Return the sums over the last axis with the rounding errors of the additions fed back, all in the format.

    Kahan (1965) subtracts the last error from the next term: :math:`|\hat s - s| \le (2u + O(nu^2)) \sum |x_k|`.
    Neumaier (1974) sums the errors apart and adds them at the end, and also sees those of terms larger than the sum so
    far: :math:`|\hat s - s| \le u|s| + O(n^2u^2) \sum |x_k|`. Terms are rounded to the format first; every operation
    is rounded to nearest.

    Parameters
    ----------
    x, fmt, backend
        As in `summed`.
    variant : {"kahan", "neumaier"}
        See above.

    Returns
    -------
    Tensor, shape (...), dtype of ``x``

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> x = torch.tensor([1.0] + [2.0**-9] * 256)  # 1.5 in all
    >>> summed(x, BF16).item(), compensated(x, BF16).item()  # each term alone is absorbed
    (1.0, 1.5)
    """
    if variant not in get_args(Compensation):
        raise ResidlabError(f"variant must be one of {', '.join(get_args(Compensation))}; got {variant!r}")
    fmt, terms = _prepared(x, fmt, "nearest")
    terms = rounded(terms, fmt, backend=backend).movedim(-1, 0).contiguous()

    def fl(a: Tensor, b: Tensor) -> Tensor:
        return added(a, b, fmt, backend=backend)

    total = terms.new_zeros(terms.shape[1:])
    error = total
    for term in terms:
        if variant == "kahan":
            corrected = fl(term, -error)
            new = fl(total, corrected)
            error = fl(fl(new, -total), -corrected)
        else:
            new = fl(total, term)
            swap = total.abs() < term.abs()
            large, small = torch.where(swap, term, total), torch.where(swap, total, term)
            error = fl(error, fl(fl(large, -new), small))
        total = new
    if variant == "neumaier":
        total = fl(total, error)
    return total.to(x.dtype)


def _prepared(x: Tensor, fmt: Format, mode: Mode) -> tuple[Format, Tensor]:
    """Return the format with the exponents that it has, and the terms in a dtype in which sums can be rounded once."""
    check_carrier("x", x.dtype, fmt)
    check_accumulation(fmt, mode)
    if x.ndim == 0:
        raise ResidlabError("x must have shape (..., n); got ()")
    fmt = held(fmt, x.dtype)
    return fmt, x.detach() if accumulates_in(fmt, x.dtype, mode) else x.detach().double()
