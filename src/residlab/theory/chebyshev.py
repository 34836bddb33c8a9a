"""Chebyshev's input bound: how much of a law, or of one token, a bounded hyperbolic tangent sees beyond ``lam``.

BHyT (Byun et al., arXiv 2601.09719) multiplies its input by ``alpha = lam / (kappa s + |mu|)`` and argues with
Chebyshev's inequality that ``|alpha X| <= lam`` with probability at least ``1 - 1/kappa**2``. This module holds

* the bound, its sharp form, its unimodal form, and the law that attains it (vectorised, float64);
* its deterministic twin for the ``d`` entries of one token, where probabilities become counts that are exact.

Two forms run through it. *centred* is the paper's: deviations ``|x_i - mu|`` against the standard deviation ``s``.
*mean-free* is the authors' code: ``|x_i|`` against the root mean square. Chapter 2 of the book carries the proofs.
"""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, checked_choice, non_negative, positive, strictly_positive

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Form = Literal["centred", "mean-free"]
Comparison = Literal[">=", ">"]

# --- The bound and the operator's scale


def kappa_from_probability(p: ArrayLike) -> FloatArray:
    """Return the multiple of the standard deviation at which Chebyshev guarantees probability ``p``.

    ``kappa = 1 / sqrt(1 - p)``. The float 0.99 lies below 99/100 and gives 9.999999999999995: where a tie matters, as
    in counts, write ``kappa = 10``. Raises ValueError if an entry lies outside [0, 1). Source: arXiv 2601.09719, input
    bound; chapter 2.

    Examples
    --------
    >>> kappa_from_probability([0, 0.75, 0.96])
    array([1., 2., 5.])
    """
    p = checked("p", p, lambda v: (v >= 0) & (v < 1), "in [0, 1)")
    return 1 / np.sqrt(1 - p)


def probability_from_kappa(kappa: ArrayLike) -> FloatArray:
    """Return the probability that Chebyshev guarantees within ``kappa`` standard deviations.

    ``p = max(0, 1 - 1/kappa**2)``: nothing is guaranteed for ``kappa <= 1``. Raises ValueError if ``kappa`` is
    negative or not finite. Source: arXiv 2601.09719, input bound; chapter 2.

    Examples
    --------
    >>> probability_from_kappa([0.5, 1, 2, 10])
    array([0.  , 0.  , 0.75, 0.99])
    """
    return 1 - chebyshev_tail(kappa)


def input_scale(mean: ArrayLike, std: ArrayLike, lam: ArrayLike, kappa: ArrayLike) -> FloatArray:
    """Return the factor ``alpha`` by which BHyT multiplies its input.

    ``alpha = lam / (kappa std + |mean|)``. The mean-free form is ``input_scale(0, rms, lam, kappa)``.

    Parameters
    ----------
    mean, std, lam, kappa : array_like, broadcast together
        ``std >= 0``, ``lam > 0``, ``kappa > 0``; ``std`` and ``mean`` not both zero.

    Raises
    ------
    ValueError
        If an entry leaves its range, or if ``std`` and ``mean`` vanish together (no finite ``alpha`` exists).

    Source: arXiv 2601.09719, definition of BHyT; chapter 2.

    Examples
    --------
    >>> float(input_scale(mean=1, std=2, lam=3, kappa=10))  # 3 / (10 * 2 + 1)
    0.14285714285714285
    """
    mean = checked("mean", mean, np.isfinite, "finite")
    std = checked("std", std, non_negative, "finite and >= 0")
    lam, kappa = positive("lam", lam), positive("kappa", kappa)
    bound = checked(
        "kappa * std + |mean|", kappa * std + np.abs(mean), strictly_positive, "positive: the token is zero, give eps"
    )
    return lam / bound


def argument(x: ArrayLike, lam: float, kappa: float, *, form: Form = "centred", eps: float = 0.0) -> FloatArray:
    """Return the argument ``alpha x`` of BHyT's hyperbolic tangent, one ``alpha`` a token.

    Centred: ``lam x / (kappa sqrt(var + eps) + |mean|)``. Mean-free: ``lam x / (kappa sqrt(mean(x**2) + eps))``.

    Parameters
    ----------
    x : array_like, shape (..., d)
    lam, kappa : float, > 0
    form : {"centred", "mean-free"}
    eps : float, >= 0
        The authors' code has 1e-6; the theorem is about 0.

    Returns
    -------
    ndarray, shape (..., d), float64

    Raises
    ------
    ValueError
        If ``x`` is empty or not finite, a parameter leaves its range, or a token is zero while ``eps`` is 0.

    Source: arXiv 2601.09719, definition of BHyT, and the authors' code; chapter 2.

    Examples
    --------
    >>> x = [3, 0, 0, 1]  # mean 1, mean square 2.5
    >>> argument(x, lam=2, kappa=1, form="mean-free").round(4)
    array([3.7947, 0.    , 0.    , 1.2649])
    >>> bool(np.abs(argument(x, lam=2, kappa=10)).max() < 2)  # nothing outside [-lam, lam]
    True
    """
    x = _tokens(x)
    eps = float(checked("eps", eps, non_negative, "finite and >= 0"))
    if checked_choice("form", form, Form) == "centred":
        mean = x.mean(axis=-1, keepdims=True)
        second_moment = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    else:
        mean = np.zeros_like(x[..., :1])
        second_moment = np.mean(x**2, axis=-1, keepdims=True)
    return x * input_scale(mean, np.sqrt(second_moment + eps), lam, kappa)


# --- Tails: P(|X - mean| >= kappa std)


def chebyshev_tail(kappa: ArrayLike) -> FloatArray:
    """Bound ``P(|X - mean| >= kappa std)`` for every law with ``std > 0``: ``min(1, 1/kappa**2)``.

    `three_point_law` attains it for each ``kappa >= 1``. With ``std = 0`` it fails, for then ``0 >= 0`` is certain.
    Mean-free, ``P(|X| >= kappa rms)`` has the same bound. Raises ValueError if ``kappa`` is negative or not finite.

    Examples
    --------
    >>> chebyshev_tail([0.5, 2, 10])
    array([1.  , 0.25, 0.01])
    """
    return (1 / np.maximum(_threshold(kappa), 1)) ** 2


def selberg_tail(kappa: ArrayLike, mean_over_std: ArrayLike) -> FloatArray:
    """Bound ``P(|X| >= kappa std + |mean|)``, the event BHyT is about, as sharply as mean and variance allow.

    With ``rho = |mean| / std``: ``(1 + rho**2) / (kappa + rho)**2`` while ``kappa rho <= 1`` (Markov on ``X**2``), then
    ``1 / (1 + kappa**2)`` (``(X - mean + std/kappa)**2`` majorises the event); never above 1. Both are attained, so
    Chebyshev's ``1/kappa**2`` is exact only for ``mean = 0``, and loses at most the factor ``1 + 1/kappa**2``.

    Parameters
    ----------
    kappa, mean_over_std : array_like, broadcast together, kappa >= 0

    Raises
    ------
    ValueError
        If ``kappa`` is negative, or an entry is not finite.

    Source: Selberg 1940, two inequalities that complete Chebyshev's lemma; chapter 2.

    Examples
    --------
    >>> float(chebyshev_tail(2)), selberg_tail(2, mean_over_std=[0, 1, 3]).round(4)
    (0.25, array([0.25, 0.2 , 0.2 ]))
    """
    kappa = _threshold(kappa)
    rho = np.abs(checked("mean_over_std", mean_over_std, np.isfinite, "finite"))
    root_mean_square = np.hypot(1, rho)
    markov = (root_mean_square / np.maximum(kappa + rho, root_mean_square)) ** 2
    return np.where(kappa * rho <= 1, markov, (1 / np.hypot(1, kappa)) ** 2)[()]


def vysochanskij_petunin_tail(kappa: ArrayLike) -> FloatArray:
    """Bound ``P(|X - mean| >= kappa std)`` for unimodal laws.

    ``4 / (9 kappa**2)`` for ``kappa >= sqrt(8/3)``, ``4 / (3 kappa**2) - 1/3`` below, never above 1. A statement about
    laws: the entries of one token are atoms, hence not unimodal, and their count can exceed it. The first branch is
    attained (an atom at 0 and a uniform law on ``+-1.5 kappa``); the second is not, about the mean.
    Raises ValueError if ``kappa`` is negative or not finite. Source: Vysochanskij and Petunin 1980; chapter 2.

    Examples
    --------
    >>> chebyshev_tail([2, 5]).round(4)  # for all laws
    array([0.25, 0.04])
    >>> vysochanskij_petunin_tail([2, 5]).round(4)  # for unimodal ones
    array([0.1111, 0.0178])
    """
    chebyshev = chebyshev_tail(kappa)
    return np.where(chebyshev <= 3 / 8, 4 / 9 * chebyshev, (4 * chebyshev - 1) / 3)[()]


def three_point_law(kappa: float) -> tuple[FloatArray, FloatArray]:
    """Return atoms and masses of the law that attains Chebyshev's bound at ``kappa >= 1``.

    Atoms ``(-kappa, 0, kappa)``, masses ``(1/(2 kappa**2), 1 - 1/kappa**2, 1/(2 kappa**2))``: mean 0, variance 1, and
    ``P(|X| >= kappa) = 1/kappa**2``, while ``P(|X| > kappa) = 0``. Raises ValueError if ``kappa < 1`` or not finite.

    Examples
    --------
    >>> atoms, masses = three_point_law(2)
    >>> atoms, masses
    (array([-2.,  0.,  2.]), array([0.125, 0.75 , 0.125]))
    >>> float(masses @ atoms**2), float(masses[np.abs(atoms) >= 2].sum())  # variance 1, and the whole of 1/4
    (1.0, 0.25)
    """
    kappa = float(checked("kappa", kappa, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1"))
    side = 0.5 / kappa**2
    return np.array([-kappa, 0.0, kappa]), np.array([side, 1 - 2 * side, side])


# --- One token: counts instead of probabilities


def count_outside(x: ArrayLike, kappa: float, *, comparison: Comparison = ">", form: Form = "centred") -> IntArray:
    """Count, token by token, the entries with ``|x_i - mu| > kappa s`` (or ``>=``; mean-free: ``|x_i| > kappa rms``).

    The count is that of the exact real numbers that the floats denote: entries which rounding could put on either side
    are decided in integer arithmetic, so ties and constant tokens are counted right.

    Parameters
    ----------
    x : array_like, shape (..., d)
    kappa : float, > 0
    comparison : {">", ">="}
        A constant token has 0 entries with ``>``, and all ``d`` with ``>=`` (``0 >= 0``).
    form : {"centred", "mean-free"}

    Returns
    -------
    ndarray, shape (...), int64

    Raises
    ------
    ValueError
        If ``x`` is empty or not finite, or a parameter leaves its range.

    Source: chapter 2.

    Examples
    --------
    >>> token = np.zeros(100)
    >>> token[:3] = [50, 60, 70]
    >>> int(count_outside(token, kappa=3))
    3
    >>> int(count_outside(np.ones(100), kappa=3, comparison=">="))  # 0 >= 0, a hundred times
    100
    """
    x, kappa = _tokens(x), float(positive("kappa", kappa))
    checked_choice("comparison", comparison, Comparison)
    checked_choice("form", form, Form)
    d = x.shape[-1]
    rows = x.reshape(-1, d)
    # By powers of two, so that no square overflows or vanishes and nothing is rounded: the largest entry is near 1.
    exponents = np.frexp(np.max(np.abs(rows), axis=-1, keepdims=True))[1]
    scaled = np.ldexp(rows, -exponents)
    centre = scaled.mean(axis=-1, keepdims=True) if form == "centred" else 0.0
    deviation = np.abs(scaled - centre)
    excess = deviation - kappa * np.sqrt(np.mean(deviation**2, axis=-1, keepdims=True))
    counts = np.count_nonzero(excess > 0, axis=-1)
    # Deviations are off by at most d + 2 roundoffs, and the scale by 2d + 6, whatever the order of summation.
    rounding = 4 * (d + 4) * np.finfo(np.float64).eps * (1 + kappa)
    for row in np.flatnonzero(np.any(np.abs(excess) <= rounding, axis=-1)):
        counts[row] = _count_outside_exactly(rows[row], kappa, comparison, form)
    return np.asarray(counts, dtype=np.int64).reshape(x.shape[:-1])[()]


def count_bound(d: ArrayLike, kappa: ArrayLike, *, comparison: Comparison = ">") -> IntArray:
    """Bound the number of a token's ``d`` entries outside: Chebyshev applied to their empirical law.

    ``>``: ``ceil(d/kappa**2) - 1``, for every token, constants included. ``>=``: ``floor(d/kappa**2)``, for tokens with
    ``s > 0`` (mean-free: ``rms > 0``). Never above ``d``. `max_count` is at most one below it.

    Parameters
    ----------
    d : array_like of int, >= 1
    kappa : array_like, > 0, broadcast with ``d``
        Taken at its exact value: the float sqrt(2) squares to more than 2, so at ``d = 4`` two entries cannot reach it.
    comparison : {">", ">="}

    Returns
    -------
    ndarray of int64

    Raises
    ------
    ValueError
        If ``d`` is not a positive integer, or ``kappa`` not positive and finite.

    Source: chapter 2 (ours; the paper argues with probabilities).

    Examples
    --------
    >>> count_bound(4096, kappa=[1, 10, 64])
    array([4095,   40,    0])
    """
    checked_choice("comparison", comparison, Comparison)
    return _for_each(lambda d, kappa: _chebyshev_count(d, kappa, comparison), d, kappa)


def max_count(d: ArrayLike, kappa: ArrayLike, *, comparison: Comparison = ">", form: Form = "centred") -> IntArray:
    """Return the largest number of entries outside that any token of ``d`` entries (with ``s > 0``) has.

    ``m`` entries can lie at or beyond ``kappa s`` iff ``kappa**2 <= K(m)``, and beyond it iff ``kappa**2 < K(m)``, with

    * mean-free, or ``m`` even: ``K(m) = d / m``;
    * ``m < d`` odd: ``K(m) = d / (m + 1/(d-m))``; ``m = 1`` is Samuelson's ``d - 1``;
    * ``m = d`` odd: ``K(d) = (d-1) / (d+1)``.

    Proof, centred. Let ``m`` entries have ``|z_i| >= 1`` and ``sum z_i = 0``; ``K(m)`` is ``d`` over the least
    ``sum z_i**2``. That is at least ``m``, which ``m/2`` pairs ``+-1`` attain. For ``m`` odd let ``p > q`` of them be
    positive and negative (or mirror), ``S`` their sum, ``n = d - m``. The other ``n`` add ``S**2/n`` or more. If
    ``|S| >= 1`` this is ``1/n``; if not, the ``q`` negative ones sum to at most ``S - (q+1)``, so their squares exceed
    ``q`` by ``2 (1 - S) >= 1 - S**2`` or more: ``1/n`` again. If ``n = 0`` then ``S = 0`` and the squares sum to
    ``p + p**2/q = d p/q`` or more, least at ``p = q + 1``. `extremal_token` attains each.

    Parameters, ties and errors as in `count_bound`; ``d = 1`` has no token with ``s > 0`` and gives 0 when centred.

    Source: chapter 2 (ours); Samuelson 1968 for ``m = 1``.

    Examples
    --------
    >>> int(count_bound(101, 10)), int(max_count(101, 10))  # a single entry at ten standard deviations fits
    (1, 0)
    >>> int(count_bound(100, 10, comparison=">=")), int(max_count(100, 10, comparison=">="))  # it would need sqrt(99)
    (1, 0)
    """
    checked_choice("comparison", comparison, Comparison)
    checked_choice("form", form, Form)
    return _for_each(lambda d, kappa: _largest_count(d, kappa, comparison, form), d, kappa)


def extremal_token(d: int, kappa: float, *, comparison: Comparison = ">", form: Form = "centred") -> FloatArray:
    """Return a token of ``d`` small integers that has `max_count` entries outside, their deviations being equal.

    If none can be outside, the token whose largest deviation is greatest (`samuelson_bound`). Centred tokens have mean
    zero, so the same entries satisfy ``|x_i| > kappa s + |mu|``: they leave ``[-lam, lam]``.

    Parameters
    ----------
    d : int, >= 2 (mean-free: >= 1)
    kappa, comparison, form : as in `max_count`

    Returns
    -------
    ndarray, shape (d,), float64

    Raises
    ------
    ValueError
        As `max_count`, and if ``d = 1`` when centred (such a token is constant).

    Source: chapter 2 (ours).

    Examples
    --------
    >>> token = extremal_token(16, kappa=2)
    >>> token
    array([ 13.,  13., -13.,  -1.,  -1.,  -1.,  -1.,  -1.,  -1.,  -1.,  -1.,
            -1.,  -1.,  -1.,  -1.,  -1.])
    >>> int(count_outside(token, 2)), int(max_count(16, 2))
    (3, 3)
    """
    m = max(1, int(max_count(d, kappa, comparison=comparison, form=form)))
    if form == "centred" and d < 2:
        raise ValueError(f"d must be >= 2 for a centred token that is not constant; got {d}")
    if form == "mean-free":
        blocks = [(m, 1), (d - m, 0)]
    elif m % 2 == 0:
        blocks = [(m // 2, 1), (m // 2, -1), (d - m, 0)]
    elif m < d:
        blocks = [(m // 2 + 1, d - m), (m // 2, m - d), (d - m, -1)]
    else:
        blocks = [(m // 2 + 1, m // 2), (m // 2, -(m // 2 + 1))]
    return np.repeat(np.array([value for _, value in blocks], dtype=np.float64), [size for size, _ in blocks])


def samuelson_bound(d: ArrayLike, *, form: Form = "centred") -> FloatArray:
    """Return the largest possible ``max |x_i - mu| / s`` of ``d`` entries: ``sqrt(d - 1)`` (mean-free: ``sqrt(d)``).

    From this ``kappa`` on, no entry of any token leaves ``[-lam, lam]``. Attained by one-hot tokens. Raises ValueError
    if ``d`` is not a positive integer. Source: Samuelson 1968; chapter 2.

    Examples
    --------
    >>> samuelson_bound([2, 101])
    array([ 1., 10.])
    >>> one_hot = np.eye(101)[0]
    >>> round(float((1 - one_hot.mean()) / one_hot.std()), 6)
    10.0
    """
    offset = 1 if checked_choice("form", form, Form) == "centred" else 0
    return np.sqrt(_dimensions(d) - offset)


def _count_outside_exactly(row: FloatArray, kappa: float, comparison: Comparison, form: Form) -> int:
    """Count by the sign of ``(d x_i - S)**2 - kappa**2 (d Q - S**2)`` in integers, floats being multiples of 2**-k."""
    ratios = [value.as_integer_ratio() for value in row.tolist()]
    common = max(denominator for _, denominator in ratios)
    values = [numerator * (common // denominator) for numerator, denominator in ratios]
    d, total = len(values), sum(values) if form == "centred" else 0
    above, below = kappa.as_integer_ratio()
    level = above**2 * (d * sum(value * value for value in values) - total**2)
    excesses = [(below * (d * value - total)) ** 2 - level for value in values]
    return sum(excess > 0 or (comparison == ">=" and excess == 0) for excess in excesses)


def _chebyshev_count(d: int, kappa: Fraction, comparison: Comparison) -> int:
    share = d / kappa**2
    return min(d, floor(share) if comparison == ">=" else ceil(share) - 1)


def _largest_count(d: int, kappa: Fraction, comparison: Comparison, form: Form) -> int:
    m = _chebyshev_count(d, kappa, comparison)
    if form == "mean-free" or m % 2 == 0:
        return m
    threshold = d / (m + Fraction(1, d - m)) if m < d else Fraction(d - 1, d + 1)
    attained = kappa**2 < threshold or (comparison == ">=" and kappa**2 == threshold)
    return m if attained else m - 1  # m - 1 is even and (m - 1) kappa**2 < d


# --- Validation


def _threshold(kappa: ArrayLike) -> FloatArray:
    return checked("kappa", kappa, non_negative, "finite and >= 0")


def _tokens(x: ArrayLike) -> FloatArray:
    x = checked("x", x, np.isfinite, "finite")
    if x.ndim == 0 or x.size == 0:
        raise ValueError(f"x must have shape (..., d) with at least one token and d >= 1; got shape {x.shape}")
    return x


def _dimensions(d: ArrayLike) -> IntArray:
    d = np.asarray(d)
    if d.dtype.kind not in "iu" or np.any(d < 1):
        raise ValueError(f"d must be an integer >= 1, the number of entries of a token; got {d.tolist()!r}")
    return d.astype(np.int64)


def _for_each(count: Callable[[int, Fraction], int], d: ArrayLike, kappa: ArrayLike) -> IntArray:
    """Apply ``count`` to each broadcast pair, ``kappa`` as the rational number that the float denotes."""
    dims, kappas = np.broadcast_arrays(_dimensions(d), positive("kappa", kappa))
    counts = [count(d, Fraction(k)) for d, k in zip(dims.ravel().tolist(), kappas.ravel().tolist(), strict=True)]
    return np.array(counts, dtype=np.int64).reshape(dims.shape)[()]
