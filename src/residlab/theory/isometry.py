"""How far a matrix is from an isometry, and what updates make of one (chapter 9; ours, after arXiv 2605.25880).

Of a matrix with singular values ``sigma_1 >= ... >= sigma_n``, n its shorter side: the *spread* ``sigma_1/sigma_n``;
the *defect* ``||G/tau - I||_F/sqrt(n)``, G the smaller Gram matrix and tau its mean eigenvalue; the *stable rank*
``sum sigma**2/sigma_1**2``. The defect is the coefficient of variation of the squared singular values.

**After k updates of spectral norm at most eta**, in units of the isometry's own scale, Weyl's inequality leaves every
singular value within ``1 +- k eta``: `spread_bound`. What an optimizer does decides how near it comes:

* *isotropic* updates, independent, of root mean square singular value eta: the sum grows like ``t = eta sqrt(k)``, and
  the singular values of ``I + t G``, G Ginibre, have edges in closed form (`isotropic_edges`), and a defect
  (`isotropic_defect`);
* *coherent* ones, always the same isometry: ``a = eta k``, and Weyl's bound is attained (`coherent_defect`);
* *aligned* ones, of rank one and always the same: ``a = eta k``, and only two singular values move (`rank_one_values`).

A sign matrix of shape (m, n) has Frobenius norm ``sqrt(m n)`` and spectral norm between ``sqrt(max(m, n))`` and
``sqrt(m n)``; a matrix with orthonormal rows or columns has ``sqrt(n)`` and 1. At equal Frobenius norm a sign update
moves the largest singular value up to sqrt(n) times as far as Muon's.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, non_negative, positive

FloatArray = NDArray[np.float64]

# --- Three measures, and how they bound each other


def singular_spread(values: ArrayLike) -> FloatArray:
    """Return ``sigma_1/sigma_n`` of singular values on the last axis; infinite where one is zero.

    Examples
    --------
    >>> singular_spread([[2, 1], [1, 0]])
    array([ 2., inf])
    """
    values = _singular(values)
    with np.errstate(divide="ignore"):
        return np.asarray(values.max(axis=-1) / values.min(axis=-1))


def isometry_defect(values: ArrayLike) -> FloatArray:
    """Return ``sqrt(mean sigma**4/(mean sigma**2)**2 - 1)`` of singular values on the last axis.

    Examples
    --------
    >>> float(isometry_defect([1, 1, 1])), round(float(isometry_defect([2, 1, 0])), 4)
    (0.0, 1.0198)
    """
    squares = _singular(values) ** 2
    mean = squares.mean(axis=-1, keepdims=True)
    return np.asarray(np.sqrt(np.mean((squares / mean - 1) ** 2, axis=-1)))


def stable_rank(values: ArrayLike) -> FloatArray:
    """Return ``sum sigma**2/sigma_1**2`` of singular values on the last axis.

    Examples
    --------
    >>> stable_rank([[1, 1, 1], [10, 1, 1]])
    array([3.  , 1.02])
    """
    squares = _singular(values) ** 2
    return np.asarray(squares.sum(axis=-1) / squares.max(axis=-1))


def defect_bound(spread: ArrayLike) -> FloatArray:
    """Return ``(spread**2 - 1)/(2 spread)``, the largest defect at a spread, for any number of singular values.

    Squared singular values in [a, b] with mean M have a variance of at most ``(b - M)(M - a)`` (Bhatia and Davis), and
    ``(b - M)(M - a)/M**2`` is largest at ``M = 2ab/(a + b)``. The other way there is no bound: one singular value of n
    that is zero gives an infinite spread and a defect of ``1/sqrt(n - 1)``.

    Examples
    --------
    >>> float(defect_bound(2.0)), float(isometry_defect([2, 1, 1, 1, 1]))  # attained: one of five at twice the others
    (0.75, 0.75)
    """
    spread = _spread(spread)
    return (spread**2 - 1) / (2 * spread)


def stable_rank_bound(spread: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return ``1 + (n - 1)/spread**2``, the least stable rank at a spread.

    Examples
    --------
    >>> float(stable_rank_bound(2, n=5)), float(stable_rank([2, 1, 1, 1, 1]))
    (2.0, 2.0)
    """
    return 1 + (positive("n", n) - 1) / _spread(spread) ** 2


def _singular(values: ArrayLike) -> FloatArray:
    values = checked("singular values", values, non_negative, "finite and >= 0")
    if not values.ndim or not values.shape[-1] or (values.max(axis=-1) <= 0).any():
        raise ValueError("singular values must be some, and not all zero")
    return values


def _spread(spread: ArrayLike) -> FloatArray:
    return checked("spread", spread, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")


# --- What k updates can do: Weyl


def spread_bound(step: ArrayLike, steps: ArrayLike = 1) -> FloatArray:
    """Return ``(1 + k eta)/(1 - k eta)``, infinite from ``k eta = 1`` on: the largest spread of an isometry.

    Parameters
    ----------
    step : array_like, >= 0
        eta, the spectral norm of each update over that of the isometry.
    steps : array_like, >= 0
        k.

    Examples
    --------
    >>> spread_bound(0.01, steps=[0, 10, 50, 100]).round(4)
    array([1.    , 1.2222, 3.    ,    inf])
    """
    moved = checked("step", step, non_negative, "finite and >= 0") * checked(
        "steps", steps, non_negative, "finite, >= 0"
    )
    with np.errstate(divide="ignore"):
        return np.where(moved < 1, (1 + moved) / np.maximum(1 - moved, 0), np.inf)


def sign_norms(rows: int, columns: int) -> tuple[float, float]:
    """Return the least and the largest spectral norm of a matrix of signs: ``sqrt(max(m, n))`` and ``sqrt(m n)``.

    Its Frobenius norm is ``sqrt(m n)`` and it has at most ``min(m, n)`` singular values; of rank one it has one. The
    least is attained by (partial) Hadamard matrices, so it is not attained in every shape.

    Examples
    --------
    >>> sign_norms(4, 16)
    (4.0, 8.0)
    """
    m, n = float(positive("rows", rows)), float(positive("columns", columns))
    return float(np.sqrt(max(m, n))), float(np.sqrt(m * n))


# --- Two extremes


def isotropic_edges(t: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest singular value of ``U + t G``, n -> infinity.

    U is orthogonal and G has independent entries of mean 0 and variance 1/n. The Stieltjes transform m of the squared
    singular values solves ``z = ((1 - t**2) m - 1)/(m (1 + t**2 m)**2)`` (information plus noise, Dozier and
    Silverstein 2007), and the support ends where ``dz/dm = 0``: ``2 (1 - t**2) t**2 m**2 - 3 t**2 m - 1 = 0``. From t =
    1 on the lower end is 0.

    Parameters
    ----------
    t : array_like, >= 0
        Root mean square singular value of the sum of all updates over that of U.

    Examples
    --------
    >>> low, high = isotropic_edges([0, 0.5, 1])
    >>> low.round(4), high.round(4)
    (array([1.   , 0.369, 0.   ]), array([1.    , 1.7602, 2.5981]))
    """
    t = checked("t", t, non_negative, "finite and >= 0")
    a, b = 1 - t**2, t**2
    root = np.sqrt(9 * b * b + 8 * a * b)
    # Both roots as -2/(3b -+ root), which stays finite where a is 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = _edge(-2 / (3 * b + root), a, b)
        lower = _edge(-2 / (3 * b - root), a, b)
    low = np.where(
        (t > 0) & (t < 1), np.sqrt(np.maximum(np.nan_to_num(lower, nan=0.0, posinf=0.0, neginf=0.0), 0)), 0.0
    )
    return np.where(t == 0, 1.0, low), np.where(t == 0, 1.0, np.sqrt(np.nan_to_num(upper, nan=1.0)))


def _edge(m: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    return np.asarray((a * m - 1) / (m * (1 + b * m) ** 2))


def coherent_defect(a: ArrayLike) -> FloatArray:
    """Return ``sqrt(2) a/(1 + a**2)``, the defect of ``U + a V`` for independent orthogonal U and V, n -> infinity.

    Singular values are ``|1 + a exp(i theta)|`` with uniform theta: between ``|1 - a|`` and ``1 + a``, as
    `spread_bound` allows; ``mean sigma**2 = 1 + a**2``, ``mean sigma**4 = (1 + a**2)**2 + 2 a**2``.

    Examples
    --------
    >>> coherent_defect([0, 0.5, 1]).round(4)
    array([0.    , 0.5657, 0.7071])
    """
    a = checked("a", a, non_negative, "finite and >= 0")
    return np.asarray(np.sqrt(2) * a / (1 + a * a))


def isotropic_defect(t: ArrayLike) -> FloatArray:
    """Return ``sqrt(2 t**2 + t**4)/(1 + t**2)``, the defect of ``U + t G`` for square matrices, n -> infinity.

    ``mean sigma**2 = 1 + t**2`` and ``mean sigma**4 = 1 + 4 t**2 + 2 t**4``.

    Examples
    --------
    >>> round(float(isotropic_defect(0.5)), 4)
    0.6
    >>> rng = np.random.default_rng(0)
    >>> values = np.linalg.svd(np.eye(256) + 0.5 * rng.standard_normal((256, 256)) / 16, compute_uv=False)
    >>> round(float(isometry_defect(values)), 2)
    0.6
    """
    b = checked("t", t, non_negative, "finite and >= 0") ** 2
    return np.sqrt(2 * b + b * b) / (1 + b)


def rank_one_values(strength: ArrayLike, alignment: ArrayLike = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return the two singular values of ``U + a u v^T`` that are not 1; U orthogonal, u and v unit vectors.

    With ``c = u . U v``: their product is ``|1 + a c|`` (the determinant) and the sum of their squares ``2 + 2 a c +
    a**2`` (the trace). Random directions have c near 0.

    Parameters
    ----------
    strength : array_like
        a.
    alignment : array_like, in [-1, 1]
        c.

    Examples
    --------
    >>> small, large = rank_one_values(1.0)
    >>> round(float(small), 4), round(float(large), 4), round(float(small * large), 4)
    (0.618, 1.618, 1.0)
    """
    a = checked("strength", strength, np.isfinite, "finite")
    c = checked("alignment", alignment, lambda v: np.abs(v) <= 1, "in [-1, 1]")
    product, total = np.abs(1 + a * c), 2 + 2 * a * c + a * a
    plus, minus = np.sqrt(total + 2 * product), np.sqrt(np.maximum(total - 2 * product, 0))
    largest = (plus + minus) / 2
    return product / largest, largest


def rank_one_spread(strength: ArrayLike) -> FloatArray:
    """Return the spread after an update of rank one in a random direction: ``(a/2 + sqrt(1 + a**2/4))**2``.

    Examples
    --------
    >>> small, large = rank_one_values(1.0)
    >>> round(float(rank_one_spread(1.0)), 4), round(float(large / small), 4)
    (2.618, 2.618)
    """
    low, high = rank_one_values(strength)
    return high / low


def rank_one_defect(strength: ArrayLike, n: ArrayLike) -> FloatArray:
    """Return the defect after an update of rank one in a random direction: two values of n have moved.

    ``mean sigma**2 = 1 + a**2/n`` and ``mean sigma**4 = 1 + (4 a**2 + a**4)/n``.

    Examples
    --------
    >>> rank_one_defect(1.0, n=[16, 1024]).round(4)  # it vanishes in a large matrix, the spread does not
    array([0.4033, 0.0541])
    """
    b = checked("strength", strength, np.isfinite, "finite") ** 2
    n = checked("n", n, lambda v: np.isfinite(v) & (v >= 2), "finite and >= 2")
    return np.sqrt(np.maximum(1 + (4 * b + b * b) / n - (1 + b / n) ** 2, 0)) / (1 + b / n)
