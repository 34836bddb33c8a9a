r"""Softmax in rounded arithmetic: its condition number, what a shift does to it, absorption, and error bounds.

Rows ``x`` of N logits along the last axis; ``-inf`` is a masked key. With the softmax s, the largest logit M and
``z = x - M``,

.. math::
    e_k = e^{z_k}, \qquad S = \sum_k e_k, \qquad s_k = p_k = e_k / S .

A format has the unit roundoff u, and ``tiny`` is half its smallest subnormal number. All functions compute in float64.

Sources: Budzinskiy et al. (2025), arXiv 2503.10251, for the questions; Blanchard, Higham and Higham (2021) for the
algorithms; chapter 15 for the proofs. The constant 3, `absorption_bound` for every order of additions, and the
enclosures are ours.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import FloatArray, checked, checked_choice, non_negative

BoolArray = NDArray[np.bool_]
OrderName = Literal["recursive", "pairwise"]
Variant = Literal["shifted", "unshifted", "division_free"]

SHIFT_SUPREMUM = 3.0
"""The least upper bound of c(x - max x) / c(x) over all N and x; no x attains it."""


def softmax(x: ArrayLike) -> FloatArray:
    """Return the softmax along the last axis; a row without a visible key is all zeros.

    Raises
    ------
    ValueError
        If a logit is NaN or +inf, or there is no axis of keys.

    Examples
    --------
    >>> softmax(np.log([1, 2, 5]))
    array([0.125, 0.25 , 0.625])
    >>> softmax([0, -np.inf]), softmax([-np.inf, -np.inf])
    (array([1., 0.]), array([0., 0.]))
    """
    logits, visible = _rows(x)
    e = _exponentials(_drop(logits, visible), visible)
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(e / np.where(total > 0, total, 1))


def shifted(x: ArrayLike) -> FloatArray:
    """Return ``x - max x``; ``-inf`` stays.

    Raises
    ------
    ValueError
        As `softmax`.

    Examples
    --------
    >>> shifted([1000, 998, -np.inf])
    array([  0.,  -2., -inf])
    """
    logits, visible = _rows(x)
    return np.where(visible, _drop(logits, visible), -np.inf)


def sensitivities(x: ArrayLike) -> FloatArray:
    r"""Return the componentwise condition number of each output.

    .. math::
        D_i(x) = (1 - s_i)|x_i| + \sum_{j \ne i} s_j |x_j|
        = \lim_{\epsilon \to 0} \sup_{|\Delta x_j| \le \epsilon |x_j|} \frac{|\Delta s_i|}{\epsilon s_i} .

    Parameters
    ----------
    x : (..., N)
        Logits. Masked keys count for nothing, and have 0 themselves.

    Raises
    ------
    ValueError
        As `softmax`.

    Examples
    --------
    >>> sensitivities([3, 0]).round(4)  # (1 - s_1) 3 and s_1 3
    array([0.1423, 2.8577])
    """
    logits, visible = _rows(x)
    s = softmax(logits)
    size = np.where(visible, np.abs(np.where(visible, logits, 0)), 0)
    weighted = s * size
    return np.where(visible, (1 - s) * size + weighted.sum(axis=-1, keepdims=True) - weighted, 0)


def condition_number(x: ArrayLike) -> FloatArray:
    r"""Return :math:`c(x) = \max_i D_i(x)`, the componentwise condition number of softmax, of shape (...).

    For ``x != 0``, :math:`c(x - \max x) < 3\,c(x)`: with m the largest, :math:`D_m(z) \le D_m(x)`, and for the others
    :math:`D_i(z) \le D_i(x) + 2(1 - s_i - s_m)|M|`, where :math:`(1 - s_m)|M| \le D_m(x) \le c(x)`. Chapter 15.

    Raises
    ------
    ValueError
        As `softmax`.

    Examples
    --------
    >>> condition_number([[1, 0], [101, 100]]).round(4)
    array([  0.7311, 146.9428])
    >>> condition_number(shifted([[1, 0], [101, 100]])).round(4)
    array([0.7311, 0.7311])
    """
    return np.asarray(sensitivities(x).max(axis=-1))


def normwise_condition(x: ArrayLike) -> FloatArray:
    r"""Return the same for perturbations :math:`|\Delta x_j| \le \epsilon \lVert x \rVert_\infty`, of shape (...).

    :math:`2 (1 - \min_i s_i) \lVert x \rVert_\infty` over visible keys. A shift changes the norm alone: it multiplies
    by at most 2, attained by (a, -a), and may divide by any factor.

    Raises
    ------
    ValueError
        As `softmax`.

    Examples
    --------
    >>> round(float(normwise_condition([5, -5])), 4), round(float(normwise_condition(shifted([5, -5]))), 4)
    (9.9995, 19.9991)
    """
    logits, visible = _rows(x)
    least = np.where(visible, softmax(logits), np.inf).min(axis=-1)
    size = np.where(visible, np.abs(np.where(visible, logits, 0)), 0).max(axis=-1)
    return np.where(visible.any(axis=-1), 2 * (1 - np.minimum(least, 1)) * size, 0.0)


def shift_family(keys: int) -> FloatArray:
    """Return (a, 0, ..., 0) with ``e**a = N - 1``: a shift multiplies its condition number by ``3 - 2/(N - 1)``.

    Raises
    ------
    ValueError
        If N is below 3.

    Examples
    --------
    >>> x = shift_family(1000)
    >>> round(float(condition_number(shifted(x)) / condition_number(x)), 6), round(3 - 2 / 999, 6)
    (2.997998, 2.997998)
    """
    checked("keys", keys, lambda n: (n >= 3) & (n == np.floor(n)), "a whole number >= 3")
    x = np.zeros(int(keys))
    x[0] = np.log(keys - 1)
    return x


def effective_terms(p: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return :math:`N_{\mathrm{eff}}(u) = \sum_k \min(1, p_k/u)`: how many terms are not absorbed, by weight.

    Between ``min(N, 1/u)`` at most and 1 at least; N where every term is at least u.

    Parameters
    ----------
    p : (..., N)
        Shares of a sum, non-negative.
    u
        Unit roundoff, in (0, 1).

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> p = np.array([0.9, *[0.1 / 1000] * 1000])
    >>> round(float(effective_terms(p, u=2**-24)), 2), round(float(effective_terms(p, u=2**-8)), 2)
    (1001.0, 26.6)
    """
    return np.asarray(np.minimum(_shares(p) / _roundoff(u), 1).sum(axis=-1))


def absorption_bound(p: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return :math:`B = \sum_{k \ne m} \min(p_k, u)`, m the largest; :math:`u (N_{\mathrm{eff}}(u) - 1)` if p_m >= u.

    Terms of the format, all non-negative, are added in *any* order, each addition rounded to nearest, without overflow
    and flushing. Then a sum that comes out too small is too small by at most B S. One that comes out too large is so by
    at most :math:`S\,b/(1-b)`, with :math:`b = \sum_{k \ge 2} \min(p_k, u) \le B + u` if the order is recursive: see
    `gain_bound`.

    Proof: with :math:`g(v) = \min(v, uS)`, every node v = fl(a + b) of the tree of additions has
    :math:`g(v) + (a + b - v) \le g(a) + g(b)`; sum over the nodes. Chapter 15 (ours; the recursive order is the
    paper's).

    Parameters
    ----------
    p, u
        As for `effective_terms`.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> p = np.array([0.9, *[0.1 / 1000] * 1000])
    >>> round(float(absorption_bound(p, u=2**-8)), 6)  # all but the largest may be lost
    0.1
    >>> round(float(absorption_bound(p, u=2**-24) / 2**-24), 4)
    1000.0
    """
    kept = np.minimum(_shares(p), _roundoff(u))
    return np.asarray(kept.sum(axis=-1) - kept.max(axis=-1))


def absorbed_weight(p: ArrayLike, u: ArrayLike) -> FloatArray:
    r"""Return :math:`\sum_{p_k < u/2} p_k`, what is sure to be lost once the running sum is S.

    Half the gap above a normal number v lies in (uv/2, uv]: a term below uv/2 is absorbed by v, one above uv is not.

    Parameters
    ----------
    p, u
        As for `effective_terms`.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> p = np.array([0.9, *[0.1 / 1000] * 1000])
    >>> round(float(absorbed_weight(p, 2**-8)), 6), float(absorbed_weight(p, 2**-24))
    (0.1, 0.0)
    """
    shares, roundoff = _shares(p), _roundoff(u)
    return np.asarray(np.where(shares < roundoff / 2, shares, 0).sum(axis=-1))


def gain_bound(p: ArrayLike, u: ArrayLike, depth: int | None = None) -> FloatArray:
    r"""Return by what share of S a rounded sum can be too large: :math:`b/(1-b)`, or inf where b >= 1.

    Parameters
    ----------
    p, u
        As for `effective_terms`.
    depth : int, optional
        Of the tree of additions, for any order: :math:`b = (1+2u)^{depth} u N_{\mathrm{eff}}(u) - u`. By default the
        order is recursive, from the first term on: :math:`b = \sum_{k \ge 2} \min(p_k, u)`.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> p = np.array([0.9, *[0.1 / 1000] * 1000])
    >>> round(float(gain_bound(p, 2**-8)), 4)
    0.1111
    >>> round(float(gain_bound(p, 2**-24) / 2**-24), 2)
    1000.06
    """
    if depth is None:
        b = np.minimum(_shares(p), _roundoff(u))[..., 1:].sum(axis=-1)
    else:
        levels = checked("depth", depth, lambda h: (h >= 0) & (h == np.floor(h)), "a whole number >= 0")
        roundoff = _roundoff(u)
        b = (1 + 2 * roundoff) ** levels * roundoff * effective_terms(p, u) - roundoff
    return np.where(b < 1, b / np.where(b < 1, 1 - b, 1), np.inf)


def sum_enclosure(
    lower: ArrayLike, upper: ArrayLike, u: float, order: OrderName = "recursive"
) -> tuple[FloatArray, FloatArray]:
    r"""Return what the sum of non-negative terms lies between, for one order of the additions.

    Each node v = fl(a + b) has, with :math:`v_0 = a + b` and rounding to nearest,
    :math:`\max(a, b, v_0/(1+u)) \le v \le v_0 + \min(a, b, u v_0/(1+u))`, and both sides increase in a and b: so bounds
    of the terms become bounds of the sum, whatever was absorbed on the way. To first order the width is the
    order-dependent :math:`\sum_k \min(e_k, u S_k)`.

    Parameters
    ----------
    lower, upper : (..., N)
        Bounds of the terms, equal where they are known.
    u : float
        Unit roundoff.
    order : {"recursive", "pairwise"}
        From the first term on, or neighbours first.

    Returns
    -------
    (array, array), shape (...)

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> terms = np.array([256.0, *[0.5] * 100])
    >>> low, high = sum_enclosure(terms, terms, u=2**-8)
    >>> float(low), float(terms.sum()), round(float(high), 4)  # bf16 loses all of the halves
    (256.0, 306.0, 356.0)
    """
    checked_choice("order", order, OrderName)
    low, high = np.moveaxis(_shares(lower), -1, 0), np.moveaxis(_shares(upper), -1, 0)
    u = float(_roundoff(u))

    def add(a: FloatArray, b: FloatArray, c: FloatArray, d: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the bounds of the sum of something in [a, b] and something in [c, d]."""
        below = np.maximum(np.maximum(a, c), (a + c) / (1 + u))
        above = b + d + np.minimum(np.minimum(b, d), (b + d) * (u / (1 + u)))
        return below, above

    if order == "pairwise":
        while len(low) > 1:
            even = len(low) // 2 * 2
            pair = add(low[:even:2], high[:even:2], low[1:even:2], high[1:even:2])
            low, high = (np.concatenate([part, rest[even:]]) for part, rest in zip(pair, (low, high), strict=True))
        return np.asarray(low[0]), np.asarray(high[0])
    below, above = low[0], high[0]
    for a, b in zip(low[1:], high[1:], strict=True):
        below, above = add(below, above, a, b)
    return np.asarray(below), np.asarray(above)


def enclosure(
    x: ArrayLike, u: float, *, tiny: float = 0.0, order: OrderName = "recursive", variant: Variant = "shifted"
) -> tuple[FloatArray, FloatArray]:
    r"""Return what each weight of a rounded softmax lies between, to all orders in u.

    For logits that are numbers of the format, every operation rounded to nearest, exponential and logarithm too,
    without overflow, with subnormal numbers. `first_order_bound` says what it comes to where :math:`u|z| \ll 1`.

    Parameters
    ----------
    x : (..., N)
        Logits.
    u : float
        Unit roundoff.
    tiny : float
        Half the smallest subnormal number, what rounding may lose of a number that is not normal.
    order : {"recursive", "pairwise"}
        Of the additions.
    variant : {"shifted", "unshifted", "division_free"}
        ``e(x_i - M)/S``, ``e(x_i)/S'``, or ``e(x_i - f)`` with ``f = M + ln S``.

    Returns
    -------
    (array, array), shape (..., N)
        Rows without a visible key are 0.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> low, high = enclosure([10.0, 0, 0, 0], u=2**-8)
    >>> exact = softmax([10.0, 0, 0, 0])
    >>> bool(np.all((low <= exact) & (exact <= high)))
    True
    >>> (high / low).round(3)
    array([1.004, 1.099, 1.099, 1.099])
    """
    checked_choice("variant", variant, Variant)
    u, tiny = float(_roundoff(u)), float(checked("tiny", tiny, non_negative, "finite and >= 0"))
    logits, visible = _rows(x)
    some = visible.any(axis=-1, keepdims=True)
    top = _top(logits, visible)
    finite = np.where(visible, logits, 0.0)
    if variant == "unshifted":
        low, high = _between(finite, finite, u, tiny, visible)
    else:
        z = _drop(logits, visible)
        low, high = _between(z * (1 + u), z * (1 - u), u, tiny, visible)
    below, above = (np.where(some, side[..., None], 1.0) for side in sum_enclosure(low, high, u, order))
    if variant != "division_free":
        with np.errstate(divide="ignore", invalid="ignore"):
            smallest = np.where(low > 0, low / above, 0.0) * (1 - u) - tiny
            largest = np.where(high > 0, high / below, 0.0) * (1 + u) + tiny
        return np.maximum(smallest, 0) * visible, np.minimum(largest, 1) * visible
    logarithm = _widened(np.log(below), np.log(above), u, tiny)
    f = _widened(top + logarithm[0], top + logarithm[1], u, 0.0)
    return _between(*_widened(finite - f[1], finite - f[0], u, 0.0), u, tiny, visible)


def first_order_bound(x: ArrayLike, u: float, absorbed: ArrayLike, variant: Variant = "shifted") -> FloatArray:
    r"""Return the bound on each weight's relative error to first order in u, without underflow.

    With :math:`q = \sum_{z_j \ne 0} s_j (|z_j| + 1)` and B the relative error of the sum,

    .. math::
        \text{shifted} &\quad u(|z_i| + [z_i \ne 0] + 1) + u q + B, \\
        \text{unshifted} &\quad 3u + B, \\
        \text{division-free} &\quad u(|\ln s_i| + |f| + |\ln S| + 1) + u q + B, \qquad f = M + \ln S .

    The largest term is exact, :math:`e^0 = 1`, so that a sink makes q small.

    Parameters
    ----------
    x, u, variant
        As for `enclosure`.
    absorbed : (...)
        B, for instance `absorption_bound`.

    Returns
    -------
    array, shape (..., N)
        0 for masked keys.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> first_order_bound([10.0, 0, 0, 0], u=2**-8, absorbed=0).round(3)
    array([0.004, 0.047, 0.047, 0.047])
    >>> first_order_bound([10.0, 0, 0, 0], u=2**-8, absorbed=0, variant="unshifted").round(3)
    array([0.012, 0.012, 0.012, 0.012])
    """
    checked_choice("variant", variant, Variant)
    u = float(_roundoff(u))
    logits, visible = _rows(x)
    absorbed = np.asarray(checked("absorbed", absorbed, lambda b: b >= 0, ">= 0"))[..., None]
    if variant == "unshifted":
        return np.where(visible, 3 * u + absorbed, 0)
    z = _drop(logits, visible)
    s, inexact = softmax(logits), z != 0
    shared = u * (s * (np.abs(z) + 1) * inexact).sum(axis=-1, keepdims=True) + absorbed
    if variant == "shifted":
        return np.where(visible, u * (np.abs(z) + inexact + 1) + shared, 0)
    log_sum = np.log(np.maximum(_exponentials(z, visible).sum(axis=-1, keepdims=True), 1))
    f = _top(logits, visible) + log_sum
    return np.where(visible, u * (np.abs(z - log_sum) + np.abs(f) + log_sum + 1) + shared, 0)


def _rows(x: ArrayLike) -> tuple[FloatArray, BoolArray]:
    logits = checked("x", x, lambda v: ~np.isnan(v) & (v < np.inf), "finite or -inf")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., N), N >= 1; got {logits.shape}")
    return logits, np.isfinite(logits)


def _top(logits: FloatArray, visible: BoolArray) -> FloatArray:
    """Return the largest logit of each row, (..., 1), 0 if none is visible."""
    top = logits.max(axis=-1, keepdims=True)
    return np.where(visible.any(axis=-1, keepdims=True), top, 0.0)


def _drop(logits: FloatArray, visible: BoolArray) -> FloatArray:
    """Return z, 0 at masked keys."""
    return np.where(visible, np.where(visible, logits, 0.0) - _top(logits, visible), 0.0)


def _exponentials(z: FloatArray, visible: BoolArray) -> FloatArray:
    return np.asarray(np.exp(z) * visible)


def _between(
    low: FloatArray,
    high: FloatArray,
    u: float,
    tiny: float,
    visible: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of rounded exponentials of something in [low, high]; that of 0 is exact."""
    exact = (low == 0) & (high == 0)
    below = np.where(exact, 1.0, np.maximum(np.exp(low) * (1 - u) - tiny, 0))
    above = np.where(exact, 1.0, np.exp(high) * (1 + u) + tiny)
    return below * visible, above * visible


def _widened(low: FloatArray, high: FloatArray, u: float, tiny: float) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of a rounded number in [low, high]."""
    return low - u * np.abs(low) - tiny, high + u * np.abs(high) + tiny


def _shares(p: ArrayLike) -> FloatArray:
    shares = checked("terms", p, non_negative, "finite and >= 0")
    if shares.ndim == 0 or shares.shape[-1] == 0:
        raise ValueError(f"terms must have shape (..., N), N >= 1; got {shares.shape}")
    return shares


def _roundoff(u: ArrayLike) -> FloatArray:
    return checked("u", u, lambda v: (v > 0) & (v < 1), "in (0, 1)")
