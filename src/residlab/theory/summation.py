r"""Rounding errors of sums, inner products and matrix products: what is never exceeded, and what chance makes of it.

A sum of terms p_1, ..., p_n is a binary tree. Each node rounds once: :math:`\hat s_v = fl(\hat s' + \hat s'')`, where a
leaf is :math:`fl(p_k)` or, added to a sum that is there already, the exact p_k, as a fused multiply-add takes it. Write
A for :math:`\sum |p_k|`, and m for the most roundings that a term goes through (`roundings`).

========================= ============================================ ==============================================
bound on \|error\| / A    value                                        hypotheses
========================= ============================================ ==============================================
`gamma`                   :math:`nu / (1 - nu)`                        nu < 1: bf16 has none from n = 256 on
n u                       n roundings of leaves and nodes              to nearest; every order; no restriction on n
`compounded`              :math:`(1 + u)^m - 1`                        every rounding with \|δ\| <= u; no restriction
`sum_bound`               the smaller of the last two                  to nearest
`rms_bound`               :math:`u \sqrt m (1 + u^2)^{(m-1)/2}`        errors of mean 0 given the past, E δ² <= u²
`probable_bound`          :math:`\lambda v \sqrt m (1 + v)^{m-1}`      errors of mean 0 given the past, \|δ\| <= v
`higham_mary`             :math:`e^{\lambda \sqrt n u + ...} - 1`      errors independent, of mean 0, \|δ\| <= u
========================= ============================================ ==============================================

All without overflow, and without underflow of products. Stochastic rounding fulfils the hypotheses of `rms_bound` with
u itself and those of `probable_bound` with v = 2u; rounding to nearest is not random, and `stagnation` shows a sum in
which it is nothing like it. Functions broadcast, in float64.

Source: chapter 12; Higham (2002) for gamma, Jeannerod and Rump (2013) for n u, whose proof is extended there to terms
that are not rounded, Higham and Mary (2019), Ipsen and Zhou (2020), Hallman and Ipsen (2023).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, checked_choice

SumOrder = Literal["recursive", "blocked", "pairwise"]


def depth(order: str, count: int, block: int | None = None) -> int:
    """Return how many additions a term of a sum of ``count`` terms goes through at most.

    n - 1 recursively, b + ceil(n / b) - 2 in blocks of b <= n, ceil(log2 n) pairwise; 0 for one term or none.

    Raises
    ------
    ValueError
        If the order is not ``recursive``, ``blocked`` or ``pairwise``, or its block is missing.

    Examples
    --------
    >>> [depth(order, 1024, block=32) for order in ("recursive", "blocked", "pairwise")]
    [1023, 62, 10]
    """
    run = _run(order, count, block)
    if count <= 1:
        return 0
    return run + -(-count // run) - 2 if run else (count - 1).bit_length()


def roundings(order: str, count: int, block: int | None = None) -> int:
    """Return m, the most roundings of a term whose products are exact: `depth` and one, that of a product that starts.

    A fused multiply-add takes in the next product unrounded, but the first product of a run is rounded alone; pairwise,
    each one is. Terms that are numbers of the format need one less.

    Examples
    --------
    >>> [roundings(order, 1024, block=32) for order in ("recursive", "blocked", "pairwise")]
    [1024, 63, 11]
    """
    return 0 if count < 1 else depth(order, count, block) + 1


def node_sums(terms: ArrayLike, order: str, block: int | None = None) -> FloatArray:
    r"""Return the exact value of everything that is rounded, (..., nodes), from terms (..., n), n >= 1.

    Recursively :math:`s_1, ..., s_n`; in blocks, those of each block and then the sums of blocks; pairwise the terms,
    then each level of the tree. To first order the error is at most u times the sum of their magnitudes, and
    `rms_law` is u times the root of the sum of their squares.

    Raises
    ------
    ValueError
        As `depth`, or if there is no term.

    Examples
    --------
    >>> node_sums([1, 2, 3, 4], "recursive")
    array([ 1.,  3.,  6., 10.])
    >>> node_sums([1, 2, 3, 4], "pairwise")  # the terms, then the levels of the tree
    array([ 1.,  2.,  3.,  4.,  3.,  7., 10.])
    """
    p = np.asarray(terms, dtype=np.float64)
    if p.ndim == 0 or not p.shape[-1]:
        raise ValueError(f"terms must have shape (..., n) with n >= 1; got {p.shape}")
    run = _run(order, p.shape[-1], block)
    found: list[FloatArray] = []
    if run:
        parts = [np.cumsum(p[..., start : start + run], axis=-1) for start in range(0, p.shape[-1], run)]
        totals = np.stack([part[..., -1] for part in parts], axis=-1)
        return np.concatenate([*parts, np.cumsum(totals, axis=-1)[..., 1:]], axis=-1)
    found.append(p)
    while p.shape[-1] > 1:
        pairs = p.shape[-1] // 2
        sums = p[..., : 2 * pairs : 2] + p[..., 1 : 2 * pairs : 2]
        found.append(sums)
        p = np.concatenate([sums, p[..., 2 * pairs :]], axis=-1)
    return np.concatenate(found, axis=-1)


def gamma(n: ArrayLike, u: ArrayLike) -> FloatArray:
    """Return ``n u / (1 - n u)``, the classical bound of n roundings; infinity where n u >= 1, where it says nothing.

    Raises
    ------
    ValueError
        If n is negative, or u is not in (0, 1/2].

    Examples
    --------
    >>> gamma([1, 100, 256], u=2**-8).round(4)
    array([0.0039, 0.641 ,    inf])
    """
    x = _number(n) * _unit(u)
    return np.asarray(np.where(x < 1, x / np.where(x < 1, 1 - x, 1.0), np.inf))


def compounded(m: ArrayLike, u: ArrayLike) -> FloatArray:
    """Return ``(1 + u)**m - 1``: m roundings one upon the other, each a factor between 1 - u and 1 + u.

    At most `gamma`, and valid for every m; from m u = 1 on it grows exponentially (infinity: beyond float64). Arguments
    as for `gamma`.

    Examples
    --------
    >>> compounded([1, 100, 256], u=2**-8).round(4)
    array([0.0039, 0.4768, 1.713 ])
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(_number(m) * np.log1p(_unit(u))))


def sum_bound(order: str, count: int, u: float, block: int | None = None) -> float:
    """Return what ``|error| / sum |p_k|`` is at most, to nearest, products exact: ``min(n u, (1 + u)**m - 1)``.

    Recursively the first is the smaller; in blocks and pairwise, where m is far below n, the second.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> u = 2**-8  # bf16
    >>> sum_bound("recursive", 256, u), round(sum_bound("pairwise", 256, u), 4)
    (1.0, 0.0357)
    """
    return float(np.minimum(_number(count) * _unit(u), compounded(roundings(order, count, block), u)))


def product_bound(sums: ArrayLike, operands: ArrayLike, stored: ArrayLike = 0.0) -> FloatArray:
    r"""Return what ``|fl(Wx) - Wx|`` is at most, in units of ``|W||x|``.

    .. math:: (1 + u_q)^2 (1 + \beta)(1 + u_s) - 1

    Parameters
    ----------
    sums
        beta, a bound for sums in the accumulator: n u_a, or `sum_bound`.
    operands
        u_q: both factors are rounded to it, without underflow.
    stored
        u_s, of a result that is rounded once more; 0: it is not.

    Raises
    ------
    ValueError
        If one of them is negative.

    Examples
    --------
    >>> round(float(product_bound(sums=0, operands=2**-8)) * 2**8, 3)  # both factors rounded, in units of u
    2.004
    """
    q, beta, s = _number(operands), _number(sums), _number(stored)
    return np.asarray((1 + q) ** 2 * (1 + beta) * (1 + s) - 1)


def rms_law(nodes: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return :math:`u \sqrt{\sum_v s_v^2}` over the last axis of `node_sums`: the root mean square error, first order.

    An equality, to first order, if errors have mean 0 given the past and E δ² = u². To nearest, u is the *largest*
    error: spread evenly over a gap, with significands that follow Benford's law, one rounding has a root mean square of
    0.42 u to nearest and 0.60 u stochastically.

    Examples
    --------
    >>> nodes = node_sums(np.ones(256), "recursive")
    >>> round(float(rms_law(nodes, 2**-24) / (256 * 2**-24)), 2), sum_bound("recursive", 256, 2**-24) / 2**-24
    (9.26, 256.0)
    """
    values = np.asarray(nodes, dtype=np.float64)
    return np.asarray(_unit(u) * np.sqrt(np.sum(values**2, axis=-1)))


def rms_bound(m: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return :math:`u \sqrt m (1 + u^2)^{(m - 1)/2}`, what the root mean square of ``error / A`` is at most.

    If every rounding error has mean 0 given all before it, and E δ² <= u² given them. Stochastic rounding does: its
    variance is (x - a)(b - x), at most a quarter of the squared gap. Arguments as for `gamma`.

    Examples
    --------
    >>> rms_bound([100, 10_000], u=2**-24) / 2**-24
    array([ 10., 100.])
    """
    m, u = _number(m), _unit(u)
    with np.errstate(over="ignore"):
        return np.asarray(u * np.sqrt(m) * np.exp(np.maximum(m - 1, 0) / 2 * np.log1p(u**2)))


def probable_bound(m: ArrayLike, v: ArrayLike, failure: float) -> FloatArray:
    r"""Return what ``|error| / A`` exceeds with a probability of at most ``failure``: Azuma's inequality.

    :math:`\sqrt{2 \ln(2 / p)} \, v \sqrt m (1 + v)^{m - 1}`, for errors with \|δ\| <= v and mean 0 given all before
    them: stochastic rounding with v = 2u.

    Raises
    ------
    ValueError
        If failure is not in (0, 1), or as `gamma`.

    Examples
    --------
    >>> u = 2**-24
    >>> round(float(probable_bound(10_000, 2 * u, failure=0.01) / u), 0), round(float(gamma(10_000, u) / u), 0)
    (652.0, 10006.0)
    """
    checked("failure", failure, lambda p: (p > 0) & (p < 1), "in (0, 1)")
    m, v = _number(m), checked("v", v, lambda x: (x > 0) & (x <= 1), "in (0, 1]")
    factor = np.sqrt(2 * np.log(2 / failure))
    with np.errstate(over="ignore"):
        return np.asarray(factor * v * np.sqrt(m) * np.exp(np.maximum(m - 1, 0) * np.log1p(v)))


def higham_mary(n: ArrayLike, u: ArrayLike, lam: float) -> tuple[FloatArray, FloatArray]:
    r"""Return the bound on ``|error| / A`` of Higham and Mary's theorem, and the probability that it is exceeded.

    .. math:: \tilde\gamma_n(\lambda) = \exp\Bigl(\lambda\sqrt n\,u + \frac{nu^2}{1-u}\Bigr) - 1, \qquad
              \text{at most } 2n\exp\bigl(-\lambda^2(1-u)^2/2\bigr)

    For *independent* errors of mean 0 with \|δ\| <= u, an inner product of n terms.

    Raises
    ------
    ValueError
        If lam is not positive, or as `gamma`.

    Examples
    --------
    >>> bound, failure = higham_mary(10_000, 2**-24, lam=5)
    >>> round(float(bound / 2**-24), 0), round(float(failure), 2)
    (500.0, 0.07)
    """
    checked("lam", lam, lambda x: np.isfinite(x) & (x > 0), "finite and > 0")
    n, u = _number(n), _unit(u)
    with np.errstate(over="ignore"):
        bound = np.expm1(lam * np.sqrt(n) * u + n * u**2 / (1 - u))
    return np.asarray(bound), np.minimum(1.0, 2 * n * np.exp(-((lam * (1 - u)) ** 2) / 2))


def stagnation(term: ArrayLike, u: ArrayLike) -> FloatArray:
    """Return where a recursive sum of equal positive terms stops for good, to nearest: ``2**ceil(log2(term / u))``.

    Below that power of two half a gap is less than a term, so that the sum goes on, and reaches it; from there on half
    a gap is a term or more, the sum's significand is even, and nothing is added any more. Counting in bf16 ends at 256.

    Raises
    ------
    ValueError
        If a term is not positive and finite, or u not a power of two in (0, 1/4].

    Examples
    --------
    >>> stagnation(term=1, u=[2**-8, 2**-11])  # counting in bf16 and in fp16
    array([ 256., 2048.])
    """
    x = checked("term", term, lambda v: np.isfinite(v) & (v > 0), "finite and > 0")
    mantissa, exponent = np.frexp(x / _power(u))
    return np.asarray(np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)))


def neumaier_bound(total: ArrayLike, magnitude: ArrayLike, n: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return what the error of Neumaier's compensated sum is at most: :math:`u|s| + (1+u)(n-1)(n-2)u^2 A`.

    For n numbers of the format, to nearest, no overflow, and with no restriction on n: errors of the additions are
    computed exactly, the sum of their magnitudes is at most (n-1)uA, they are summed with at most (n-2)u of that, and
    the last addition is off by u of its result. With gamma for n u: Ogita, Rump and Oishi (2005).

    Parameters
    ----------
    total, magnitude
        s and A, the sums of the terms and of their magnitudes.
    n, u
        As for `gamma`; n >= 1.

    Examples
    --------
    >>> round(float(neumaier_bound(total=1, magnitude=1000, n=1000, u=2**-24) / 2**-24), 1)
    60.4
    >>> sum_bound("recursive", 1000, 2**-24) * 1000 / 2**-24
    1000000.0
    """
    s, size, n, u = np.abs(np.asarray(total, np.float64)), _number(magnitude), _number(n), _unit(u)
    second = (1 + u) * np.maximum(n - 1, 0) * np.maximum(n - 2, 0) * u**2
    return np.asarray(u * s + second * size)


def _run(order: str, count: int, block: int | None) -> int:
    """Return how many terms are added in a run before their sum joins others; 0: pairwise."""
    checked_choice("order", order, SumOrder)
    if order != "blocked":
        return 0 if order == "pairwise" else max(count, 1)
    if block is None or block < 1:
        raise ValueError(f"block must be >= 1 in order 'blocked'; got {block!r}")
    return max(1, min(block, count))


def _number(value: ArrayLike) -> FloatArray:
    return checked("a number of terms, or a bound,", value, lambda v: v >= 0, ">= 0")


def _unit(u: ArrayLike) -> FloatArray:
    return checked("u", u, lambda v: (v > 0) & (v <= 0.5), "in (0, 1/2]")


def _power(u: ArrayLike) -> FloatArray:
    return checked(
        "u", u, lambda v: (v > 0) & (v <= 0.25) & (np.frexp(v)[0] == 0.5), "a power of two in (0, 1/4], a unit roundoff"
    )
