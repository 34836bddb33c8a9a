"""The norm of a Jacobian in the token norm, from both sides: a maximum that is not a singular value (ours).

Rows of a Jacobian with blocks ``D_ij`` have the norm ``max over unit h_j of |sum_j D_ij h_j| = max over unit v of sum_j
|D_ij.T v|``, when every token may move by 1 in the 2-norm. The maximum is over a sphere and not of a convex problem.

*From below.* Any v will do. ``v <- sum_j D_ij D_ij.T v/|D_ij.T v|``, scaled to length 1, never lowers the value: it
turns each ``h_j`` along ``D_ij.T v``, then v along the sum.

*From above.* By Cauchy and Schwarz, for any ``w_j > 0`` of sum 1, the square is at most the largest eigenvalue of
``sum_j D_ij D_ij.T/w_j``. At a fixed point of the iteration v is an eigenvector of that matrix for ``w_j`` in
proportion to ``|D_ij.T v|``, and its eigenvalue is the square of the value. If it is the largest one the two bounds
agree.

For attention the blocks are a matrix and one of rank one, so that no block is formed. In float64; what is said to be a
bound is one but for its rounding. Source: chapter 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from residlab.theory.validation import FloatArray


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a Jacobian, ready for `token_norms`: n rows of N blocks ``D_ij``, in the output's m coordinates.

    ``D_ij = P_ij (V + y_ij a_ij.T)``, ``y_ij = V (x_j - m_i)``, and the block of the row's own token as it is.

    Parameters
    ----------
    P : ndarray, shape (n, N)
        Zero at the own token, whose block stands in ``own``.
    y, b : ndarray, shape (n, N, m)
        ``y_ij``, and ``b_ij = V a_ij``.
    g : ndarray, shape (n, N)
        ``|a_ij|**2``.
    gram : ndarray, shape (m, m)
        ``V V.T``.
    own : ndarray, shape (n, m, m)
        ``D_ii D_ii.T``.

    Examples
    --------
    >>> from residlab.theory.attention_jacobian import Head, jacobian_rows
    >>> rows = jacobian_rows(Head.of_form(np.eye(2), np.eye(2)), np.eye(2))
    >>> rows.lengths(np.eye(2)).shape  # a row for each query, the own token last
    (2, 3)
    """

    P: FloatArray
    y: FloatArray
    b: FloatArray
    g: FloatArray
    gram: FloatArray
    own: FloatArray

    def lengths(self, v: FloatArray) -> FloatArray:
        """Return ``|D_ij.T v_i|``, shape (n, N + 1), the own token last."""
        along, across = self._parts(v)
        base = np.sum((v @ self.gram) * v, axis=1, keepdims=True)
        squares = base + 2 * along * across + along**2 * self.g
        own = np.sum((self.own @ v[..., None])[..., 0] * v, axis=1)
        return np.concatenate([self.P * np.sqrt(np.maximum(squares, 0)), np.sqrt(np.maximum(own, 0))[:, None]], axis=1)

    def applied(self, v: FloatArray, weights: FloatArray) -> FloatArray:
        """Return ``sum_j weights_ij D_ij D_ij.T v_i``."""
        along, across = self._parts(v)
        c = weights[:, :-1] * self.P**2
        both = (c * along)[:, None] @ self.b + (c * (across + along * self.g))[:, None] @ self.y
        own = (self.own @ v[..., None])[..., 0]
        return np.asarray(c.sum(1)[:, None] * (v @ self.gram) + both[:, 0] + weights[:, -1:] * own)

    def matrices(self, weights: FloatArray) -> FloatArray:
        """Return ``sum_j weights_ij D_ij D_ij.T``, shape (n, m, m)."""
        c = weights[:, :-1] * self.P**2
        mixed = np.swapaxes(self.y * c[..., None], 1, 2) @ self.b
        pure = np.swapaxes(self.y * (c * self.g)[..., None], 1, 2) @ self.y
        own = weights[:, -1][:, None, None] * self.own
        return np.asarray(c.sum(1)[:, None, None] * self.gram + mixed + np.swapaxes(mixed, 1, 2) + pure + own)

    def _parts(self, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        column = v[..., None]
        return (self.y @ column)[..., 0], (self.b @ column)[..., 0]


class TokenNorms(NamedTuple):
    """The norm of each row, in the token norm: between ``lower`` and ``upper``, shape (n,).

    Examples
    --------
    >>> TokenNorms(lower=np.array([1.0, 2.0]), upper=np.array([1.1, 2.1])).norm
    (2.0, 2.1)
    """

    lower: FloatArray
    upper: FloatArray

    @property
    def norm(self) -> tuple[float, float]:
        """The Jacobian's norm: the largest of its rows'."""
        return float(self.lower.max()), float(self.upper.max())


def ascended(rows: Rows, start: FloatArray, iterations: int) -> tuple[FloatArray, FloatArray]:
    """Return ``sum_j |D_ij.T v_i|``, shape (n,), and v after the iteration from below, shape (n, m).

    Parameters
    ----------
    rows : Rows
    start : ndarray, shape (n, m)
        Not zero.
    iterations : int
        At most; it stops when none of the values has grown by more than 1e-10 of itself.

    Examples
    --------
    >>> from residlab.theory.attention_jacobian import Head, jacobian_rows
    >>> rows = jacobian_rows(Head.of_form(np.eye(2), np.eye(2)), np.eye(2))
    >>> value, v = ascended(rows, np.ones((2, 2)), iterations=50)
    >>> value.round(4), np.linalg.norm(v, axis=1).round(6)
    (array([1., 1.]), array([1., 1.]))
    """
    v = start / np.linalg.norm(start, axis=1, keepdims=True)
    value = np.zeros(len(v))
    for _ in range(iterations):
        lengths = rows.lengths(v)
        before, value = value, lengths.sum(1)
        if (value - before <= 1e-10 * value).all():
            break
        longer = rows.applied(v, inverse(lengths))
        size = np.linalg.norm(longer, axis=1, keepdims=True)
        v = np.where(size > 0, longer / np.maximum(size, 1e-300), v)
    return rows.lengths(v).sum(1), v


_START = 1e-3  # share of the weights that is spread over all blocks, so that none divides by zero


def token_norms(rows: Rows, *, iterations: int = 60, starts: int = 2) -> TokenNorms:
    """Return bounds on the norm of each row from both sides; see the module.

    Parameters
    ----------
    rows : Rows
    iterations : int
        Of the fixed point, for each start.
    starts : int
        The first is the leading eigenvector for ``w = P``; the others are random.

    Examples
    --------
    >>> from residlab.theory.attention_jacobian import Head, jacobian_rows
    >>> x = np.random.default_rng(0).standard_normal((6, 3))
    >>> found = token_norms(jacobian_rows(Head.of_form(np.eye(3) / 2, np.eye(3)), x))
    >>> bool((found.upper / found.lower).max() < 1.001)  # both sides meet
    True
    """
    n, N, m = rows.y.shape
    flat = np.full((n, N + 1), 1 / (N + 1))
    reach = np.sqrt(rows.P**2 * (np.trace(rows.gram) + rows.g * np.sum(rows.y**2, axis=-1)))
    reach = np.concatenate([reach, np.sqrt(np.trace(rows.own, axis1=1, axis2=2))[:, None]], axis=1)
    reach = np.where(reach.sum(1, keepdims=True) > 0, reach / np.maximum(reach.sum(1, keepdims=True), 1e-300), flat)
    values, vectors = np.linalg.eigh(rows.matrices(inverse(reach)))
    rng = np.random.default_rng(0)
    lower, best = np.zeros(n), vectors[..., -1]
    for start in range(starts):
        value, v = ascended(rows, vectors[..., -1] if start == 0 else rng.standard_normal((n, m)), iterations)
        better = value > lower
        lower, best = np.where(better, value, lower), np.where(better[:, None], v, best)
    lengths = rows.lengths(best)
    upper = np.sqrt(np.maximum(values[..., -1], 0))
    for spread in (1e-9, _START):
        share = lengths / np.maximum(lengths.sum(1, keepdims=True), 1e-300)
        w = (1 - spread) * share + spread * reach
        upper = np.minimum(upper, root_of_largest(rows.matrices(inverse(w))))
    return TokenNorms(lower, np.maximum(upper, lower))


def inverse(weights: FloatArray) -> FloatArray:
    """Return ``1/w``, and 0 where w is below 1e-140: there the block is zero, or far below rounding beside others.

    Examples
    --------
    >>> inverse(np.array([0.0, 0.5]))
    array([0., 2.])
    """
    return np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 1e-140)


def root_of_largest(matrices: FloatArray) -> FloatArray:
    """Return the root of the largest eigenvalue of each symmetric matrix, 0 if that is negative by rounding.

    Examples
    --------
    >>> root_of_largest(np.array([np.diag([4.0, 1.0]), np.diag([9.0, 0.0])]))
    array([2., 3.])
    """
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(matrices)[..., -1], 0)))
