r"""Forward errors of normalizations computed in a format: bounds for the algorithms of `residlab.precision.norms`.

With rounding to nearest, unit roundoff u, no overflow and no underflow, ``fl(a o b) = (a o b) w**theta`` where
``w = 1 + u`` and ``|theta| <= 1``: the relative error is at most ``u/(1 + u)``, and ``1 - u/(1 + u) = 1/w``. So errors
of products, quotients, roots and sums of numbers of one sign add up in the exponent, without a condition such as
``nu < 1``. With h the depth of the order of summation (`residlab.precision.accumulation.Order.depth`), unit gain, no
bias, and numbers of the format for x, eps, alpha, lam and kappa, the outputs are within

============================ ========================= ================================================================
algorithm                    N, roundings              bound on the error of output y_i
============================ ========================= ================================================================
RMSNorm                      h/2 + 4                   ``(w**N - 1) |y_i|``
LayerNorm                    h/2 + 6                   ``(w**N - 1)(|y_i| + tau) + tau + |y_i| tau**2/2``
DyT                          2                         ``(w**N - 1) |y_i|``
BHyT, mean-free              h/2 + 6                   ``(w**N - 1) |y_i|``
BHyT, centred                h/2 + 8                   ``(w**N D/D_low - 1) |y_i|``
============================ ========================= ================================================================

half a rounding more each where eps > 0 (not DyT). tau is the error of the mean over the standard deviation,
`mean_error`; D is BHyT's denominator, and D_low what that error may lower it to.

Source: chapter 13. The technique is in Higham 2002, chapter 3; `mean_error` also uses Jeannerod and Rump 2013.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.conditioning import bhyt, layer_norm
from residlab.theory.validation import FloatArray, checked, non_negative, positive


def growth(u: ArrayLike, roundings: ArrayLike) -> FloatArray:
    """Return ``(1 + u)**N - 1``, N not negative and not necessarily whole.

    Examples
    --------
    >>> (growth(2**-24, roundings=[1, 10]) / 2**-24).round(6)
    array([ 1.      , 10.000003])
    """
    count = checked("roundings", roundings, non_negative, "finite and >= 0")
    return np.asarray(np.expm1(count * np.log1p(positive("u", u))))


def rms_norm_error(u: float, depth: int, *, eps: bool = False) -> float:
    """Return the bound on the relative error of each output of RMSNorm: it knows nothing of the token.

    Roundings: the square, h additions, the division by d and eps's addition count half, being under the root; the
    root, the reciprocal and the product one each.

    Examples
    --------
    >>> round(rms_norm_error(2**-8, depth=4095), 1), round(rms_norm_error(2**-8, depth=12), 4)  # d = 4096, bf16
    (2974.2, 0.0398)
    """
    return float(growth(u, rms_norm_roundings(depth, eps=eps)))


def rms_norm_roundings(depth: int, *, eps: bool = False) -> float:
    """Return ``h/2 + 4``, half a one more with eps.

    Examples
    --------
    >>> rms_norm_roundings(12), rms_norm_roundings(12, eps=True)
    (10.0, 10.5)
    """
    return _depth(depth) / 2 + 4 + eps / 2


def mean_error(x: ArrayLike, u: float, depth: int) -> FloatArray:
    """Return the bound on the error of the computed mean, ``(sigma (1 + u) + u) mean|x|``, (..., 1).

    sigma is the smaller of ``(1 + u)**h - 1`` and ``(d - 1) u``.

    Examples
    --------
    >>> (mean_error([1, 2, 3], u=2**-24, depth=2) / 2**-24).round(4)
    array([6.])
    """
    x = np.asarray(x, dtype=np.float64)
    sigma = min(float(growth(u, _depth(depth))), (x.shape[-1] - 1) * u)
    return np.asarray((sigma * (1 + u) + u) * np.abs(x).mean(-1, keepdims=True))


def layer_norm_error(x: ArrayLike, u: float, depth: int, eps: float = 0.0) -> FloatArray:
    """Return the bound on the absolute error of each output of LayerNorm, (..., d).

    The mean's error e shifts all entries alike: it enters the variance only as e**2, but an output near 0 as e/s.

    Examples
    --------
    >>> (layer_norm_error([1, 2, 3], u=2**-24, depth=2) / 2**-24).round(1)
    array([15.9,  7.3, 15.9])
    >>> (layer_norm_error([1001, 1002, 1003], u=2**-24, depth=2) / 2**-24).round(0)  # a mean, subtracted
    array([3691., 3682., 3691.])
    """
    x = np.asarray(x, dtype=np.float64)
    y = layer_norm(x, eps)
    size = np.sqrt(np.var(x, axis=-1, keepdims=True) + eps)
    tau = mean_error(x, u, depth) / size
    rest = growth(u, _depth(depth) / 2 + 6 + (eps > 0) / 2)
    return np.asarray(rest * (np.abs(y) + tau) + tau + np.abs(y) * tau**2 / 2)


def dyt_error(u: float) -> float:
    """Return the bound on the relative error of each output of DyT: the product and tanh, which magnifies nothing.

    Examples
    --------
    >>> round(dyt_error(2**-24) / 2**-24, 4)
    2.0
    """
    return float(growth(u, 2))


def bhyt_error(
    x: ArrayLike, u: float, depth: int, lam: float, kappa: float, *, centred: bool, eps: float = 0.0
) -> FloatArray:
    """Return the bound on the absolute error of each output of BHyT, (..., d).

    Mean-free it is a constant times ``|y_i|``. Centred, the mean's error e changes the denominator by at most e and
    little: no entry is ever subtracted from another, and there is nothing to cancel. Infinite only for a constant
    token, eps = 0, whose mean e may exceed.

    Examples
    --------
    >>> x = [1001, 1002, 1003]
    >>> (bhyt_error(x, 2**-24, depth=2, lam=2, kappa=10, centred=True) / 2**-24).round(1)  # there is nothing to cancel
    array([11.5, 11.5, 11.5])
    """
    x = np.asarray(x, dtype=np.float64)
    size = np.abs(bhyt(x, lam, kappa, centred=centred, eps=eps))
    count = _depth(depth) / 2 + 6 + (eps > 0) / 2
    if not centred:
        return np.asarray(growth(u, count) * size)
    mean, spread = np.abs(x.mean(-1, keepdims=True)), np.sqrt(np.var(x, axis=-1, keepdims=True) + eps)
    e = mean_error(x, u, depth)
    whole = kappa * spread + mean
    # Over all errors from -e to e of the mean: |mean| goes down by e at most, and the root only up.
    low, high = kappa * spread + np.maximum(mean - e, 0), kappa * np.hypot(spread, e) + mean + e
    factor = 1 + growth(u, count + 2)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(factor * whole / low - 1, 1 - whole / (factor * high)) * size)


def _depth(depth: int) -> float:
    return float(checked("depth", depth, non_negative, "finite and >= 0"))
