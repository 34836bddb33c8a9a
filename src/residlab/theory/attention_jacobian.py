"""The Jacobian of an attention head, exactly: its products, its norm in two norms of tokens, bounds at one input.

A head is ``f_i(X) = V sum_j P_ij x_j``, ``P_i = softmax_j((O_i Q x_i) . (O_j K x_j))``, ``O_i`` a rotation that belongs
to position i (RoPE) or the identity. Its Jacobian has the blocks, m by d,

    ``D_ij = P_ij V (I + (x_j - m_i) a_ij.T) + [i = j] E_i``,
    ``a_ij = K.T O_j.T O_i Q x_i``, ``E_i = V sum_j P_ij (x_j - m_i) (O_j K x_j).T O_i Q``.

Their norm in the token norm is that of `residlab.theory.token_norms`. All in float64; bounds are exact but for its
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.lipschitz import frobenius_bound, local_bound, rotated_local_bound
from residlab.theory.token_norms import Rows, TokenNorms, inverse, root_of_largest, token_norms
from residlab.theory.validation import FloatArray

BoolArray = NDArray[np.bool_]


def spectral_norm(matrix: ArrayLike) -> float:
    """Return the largest singular value of a matrix, by way of the smaller Gram matrix.

    Examples
    --------
    >>> round(spectral_norm([[3, 0, 0], [0, 4, 0]]), 6)
    4.0
    """
    M = np.asarray(matrix, dtype=np.float64)
    return float(root_of_largest(M @ M.T if M.shape[0] <= M.shape[1] else M.T @ M))


@dataclass(frozen=True, eq=False)
class Head:
    """One head of attention.

    Parameters
    ----------
    query, key : ndarray, shape (k, d)
        ``Q`` and ``K``. The factor ``1/sqrt(d_k)`` of the logits belongs to ``query``.
    value : ndarray, shape (m, d)
        ``V``: any matrix with the same ``V.T V`` as ``W_O W_V`` gives the same norms.
    rotation : ndarray, shape (N, k, k), optional
        ``O_i``, orthogonal.

    Examples
    --------
    >>> head = Head.of_form(np.eye(2), np.eye(2))
    >>> attention_rows(head, np.eye(2)).round(4)  # logits 1 with itself, 0 with the other
    array([[0.7311, 0.2689],
           [0.2689, 0.7311]])
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    rotation: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.query.ndim != 2 or self.query.shape != self.key.shape:
            raise ValueError(f"query and key must have one shape (k, d); got {self.query.shape} and {self.key.shape}")
        k, d = self.query.shape
        if self.value.ndim != 2 or self.value.shape[1] != d:
            raise ValueError(f"value must have shape (m, {d}), as query has columns; got {self.value.shape}")
        if self.rotation is not None:
            if self.rotation.ndim != 3 or self.rotation.shape[1:] != (k, k):
                raise ValueError(f"rotation must have shape (N, {k}, {k}); got {self.rotation.shape}")
            if not np.allclose(self.rotation @ np.swapaxes(self.rotation, 1, 2), np.eye(k), atol=1e-5):
                raise ValueError("rotation must be orthogonal at each position")

    @classmethod
    def of_form(cls, form: ArrayLike, value: ArrayLike) -> Head:
        """Return the head with the logits ``x_i . A x_j``."""
        A = np.asarray(form, dtype=np.float64)
        return cls(A.T, np.eye(len(A)), np.asarray(value, dtype=np.float64))

    def at(self, positions: slice) -> Head:
        """Return the same head for some of the positions."""
        return self if self.rotation is None else replace(self, rotation=self.rotation[positions])

    def form(self, i: int = 0, j: int = 0) -> FloatArray:
        """Return ``A_ij = Q.T O_i.T O_j K``: the logit of tokens x at i and y at j is ``x . A_ij y``."""
        if self.rotation is None:
            return np.asarray(self.query.T @ self.key)
        return np.asarray(self.query.T @ (self.rotation[i].T @ self.rotation[j]) @ self.key)

    @property
    def product_norm(self) -> float:
        """``|Q| |K|``, at least the norm of every form: ``|W_Q| |W_K|/sqrt(d_k)``."""
        return spectral_norm(self.query) * spectral_norm(self.key)

    def form_norms(self, i: int = 0) -> FloatArray:
        """Return ``|A_ji|`` for all positions j: with RoPE, which sees differences only, i = 0 gives all there are."""
        left, right = np.linalg.qr(self.query.T).R, np.linalg.qr(self.key.T).R.T
        if self.rotation is None:
            return np.array([spectral_norm(left @ right)])
        return np.array([spectral_norm(left @ turn.T @ self.rotation[i] @ right) for turn in self.rotation])

    def turned(self, states: FloatArray) -> FloatArray:
        """Return ``O_i s_i`` for states of shape (N, k)."""
        return states if self.rotation is None else np.asarray((self.rotation @ states[..., None])[..., 0])

    def turned_back(self, states: FloatArray) -> FloatArray:
        """Return ``O_i.T s_i``."""
        return states if self.rotation is None else np.asarray((states[:, None] @ self.rotation)[:, 0])


def _tokens(head: Head, x: ArrayLike) -> FloatArray:
    tokens = np.asarray(x, dtype=np.float64)
    if tokens.ndim != 2 or tokens.shape[1] != head.value.shape[1]:
        raise ValueError(f"tokens must have shape (N, {head.value.shape[1]}); got {tokens.shape}")
    if head.rotation is not None and len(head.rotation) != len(tokens):
        raise ValueError(f"the head has {len(head.rotation)} positions; got {len(tokens)} tokens")
    return tokens


def _states(head: Head, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return queries and keys, rotated."""
    return head.turned(tokens @ head.query.T), head.turned(tokens @ head.key.T)


def causal_mask(tokens: int) -> BoolArray:
    """Return which key each query sees when it sees itself and what came before: shape (tokens, tokens).

    Examples
    --------
    >>> causal_mask(3).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    return np.tril(np.ones((tokens, tokens), dtype=bool))


def attention_rows(head: Head, x: ArrayLike, mask: BoolArray | None = None) -> FloatArray:
    """Return P, shape (N, N); ``mask`` is true where query i sees key j, and each query sees one at least.

    Examples
    --------
    >>> head = Head.of_form(np.zeros((2, 2)), np.eye(2))
    >>> attention_rows(head, np.eye(2), causal_mask(2))
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    tokens = _tokens(head, x)
    q, k = _states(head, tokens)
    logits = q @ k.T
    if mask is not None:
        if not mask.any(axis=1).all():
            raise ValueError("each query must see one key at least")
        logits = np.where(mask, logits, -np.inf)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def output(head: Head, x: ArrayLike, mask: BoolArray | None = None) -> FloatArray:
    """Return f(X), shape (N, m).

    Examples
    --------
    >>> head = Head.of_form(np.zeros((2, 2)), np.eye(2))  # no logits: means of what is seen
    >>> output(head, [[2.0, 0], [0, 4]], causal_mask(2))
    array([[2., 0.],
           [1., 2.]])
    """
    return np.asarray(attention_rows(head, x, mask) @ _tokens(head, x) @ head.value.T)


class Products(NamedTuple):
    """The Jacobian at one input as two linear maps: ``jvp(H)`` and ``vjp(G)``, its transpose.

    Examples
    --------
    >>> head = Head.of_form(np.eye(2), np.eye(2))
    >>> maps = products(head, np.eye(2))
    >>> maps._fields
    ('jvp', 'vjp')
    """

    jvp: Callable[[FloatArray], FloatArray]
    vjp: Callable[[FloatArray], FloatArray]


def products(head: Head, x: ArrayLike, mask: BoolArray | None = None) -> Products:
    """Return products with the Jacobian, (N, d) to (N, m), and with its transpose; no matrix of N d rows is formed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> head, x = Head.of_form(np.eye(3), np.eye(3)), rng.standard_normal((5, 3))
    >>> H, G = rng.standard_normal((2, 5, 3))
    >>> maps = products(head, x)
    >>> bool(np.isclose(np.sum(maps.jvp(H) * G), np.sum(H * maps.vjp(G))))  # one is the other's transpose
    True
    >>> moved = (output(head, x + 1e-6 * H) - output(head, x - 1e-6 * H)) / 2e-6
    >>> bool(np.abs(moved - maps.jvp(H)).max() < 1e-6)
    True
    """
    tokens, P = _tokens(head, x), attention_rows(head, x, mask)
    q, k = _states(head, tokens)

    def softmax_product(change: FloatArray) -> FloatArray:
        return np.asarray(P * (change - np.sum(P * change, axis=1, keepdims=True)))

    def jvp(H: FloatArray) -> FloatArray:
        change, moved = _states(head, H)
        logits = change @ k.T + q @ moved.T
        return np.asarray((softmax_product(logits) @ tokens + P @ H) @ head.value.T)

    def vjp(G: FloatArray) -> FloatArray:
        pulled = G @ head.value
        logits = softmax_product(pulled @ tokens.T)
        query, key = head.turned_back(logits @ k) @ head.query, head.turned_back(logits.T @ q) @ head.key
        return np.asarray(P.T @ pulled + query + key)

    return Products(jvp, vjp)


def frobenius_norm(head: Head, x: ArrayLike, mask: BoolArray | None = None, *, iterations: int = 200) -> float:
    """Return the spectral norm of the whole Jacobian, a lower bound that power iteration raises to it.

    Stops when an iteration adds less than 1e-12 of it.

    Examples
    --------
    >>> head = Head.of_form(np.zeros((2, 2)), np.eye(2))  # means over four tokens: the norm of a projection
    >>> round(frobenius_norm(head, np.eye(4)[:, :2]), 6)
    1.0
    """
    tokens = _tokens(head, x)
    jvp, vjp = products(head, tokens, mask)
    H = np.random.default_rng(0).standard_normal(tokens.shape)
    value = 0.0
    for _ in range(iterations):
        H = vjp(jvp(H / np.linalg.norm(H)))
        before, value = value, float(np.sqrt(np.linalg.norm(H)))
        if value - before <= 1e-12 * value:
            break
    return value


class _Local(NamedTuple):
    """What rows and bounds share, for n queries: P, y, b, g with all keys, and the maps behind ``E_i = M_i Q``."""

    P: FloatArray
    y: FloatArray
    b: FloatArray
    g: FloatArray
    M: FloatArray
    query: FloatArray  # Q x_i, not rotated
    queries: NDArray[np.int64]


def _local(head: Head, tokens: FloatArray, P: FloatArray, queries: slice) -> _Local:
    index = np.arange(len(tokens))[queries]
    (q, k), rows = _states(head, tokens), P[index]
    y = _deviations(tokens @ head.value.T, rows)
    M = np.swapaxes(y * rows[..., None], 1, 2) @ k  # n, m, k
    if head.rotation is not None:
        M = M @ head.rotation[index]
    seen = _seen(head, q, index)
    b = seen @ (head.key @ head.value.T)
    g = np.sum((seen @ (head.key @ head.key.T)) * seen, axis=-1)
    return _Local(rows, y, b, np.maximum(g, 0), M, tokens[index] @ head.query.T, index)


def _seen(head: Head, q: FloatArray, index: NDArray[np.int64]) -> FloatArray:
    """Return the query as each key's map sees it, ``O_j.T O_i Q x_i``, shape (n, N, k)."""
    if head.rotation is None:
        return np.broadcast_to(q[index][:, None], (len(index), *q.shape))
    return np.swapaxes(q[index] @ head.rotation, 0, 1)


def jacobian_rows(head: Head, x: ArrayLike, mask: BoolArray | None = None, queries: slice = slice(None)) -> Rows:
    """Return the rows of the Jacobian for some queries, for `token_norms`.

    Examples
    --------
    >>> rows = jacobian_rows(Head.of_form(np.eye(2), np.eye(2)), np.eye(2))
    >>> rows.P.shape, rows.own.shape
    ((2, 2), (2, 2, 2))
    """
    tokens = _tokens(head, x)
    return _rows(head, _local(head, tokens, attention_rows(head, tokens, mask), queries))


def _rows(head: Head, local: _Local) -> Rows:
    """Return the rows, the own blocks ``p (V + y a.T) + M Q`` times their transposes without a matrix of width d."""
    place = np.arange(len(local.queries)), local.queries
    p, y, b, g = (part[place] for part in (local.P, local.y, local.b, local.g))
    gram, M = head.value @ head.value.T, local.M
    twice = head.query @ head.query.T
    cross = np.swapaxes(M @ (head.query @ head.value.T), 1, 2) + y[..., None] * (
        M @ (local.query @ (head.key @ head.query.T))[..., None]
    ).swapaxes(1, 2)
    mixed = b[..., None] * y[:, None]
    pure = gram + mixed + np.swapaxes(mixed, 1, 2) + g[:, None, None] * y[..., None] * y[:, None]
    p = p[:, None, None]
    own = p**2 * pure + p * (cross + np.swapaxes(cross, 1, 2)) + M @ twice @ np.swapaxes(M, 1, 2)
    others = local.P.copy()
    others[place] = 0
    return Rows(others, local.y, local.b, local.g, gram, own)


def rotated_family(logit_radius: float, tokens: int, angle: float) -> tuple[Head, FloatArray]:
    """Return a head with rotated keys, and its tokens, of which `lipschitz.sharp_bound` is not a bound.

    Token 0 lies along the third axis, the others along plus and minus the first; a key is turned by ``angle`` with the
    sign of its token. All forms have the norm L, all logits of row 0 with other tokens are ``L sin(angle)``, and its
    norm tends to `rotated_family_value`.

    Parameters
    ----------
    logit_radius : float, >= 0
    tokens : int, odd, >= 3
    angle : float
        In radians; with 0 nothing is rotated.

    Examples
    --------
    >>> from residlab.theory.lipschitz import sharp_bound
    >>> head, x = rotated_family(1.0, 201, np.pi / 4)
    >>> norm = analyse(head, x, queries=slice(0, 1)).norms.norm[0]
    >>> round(norm, 3), round(float(sharp_bound(1.0)), 3)
    (2.549, 2.414)
    """
    if tokens < 3 or not tokens % 2:
        raise ValueError(f"tokens must be odd and at least 3; got {tokens}")
    signs = np.where(np.arange(tokens) % 2, 1.0, -1.0)
    signs[0] = 0
    x = np.zeros((tokens, 4))
    x[:, 0], x[0, 2] = signs, 1
    c, s = np.cos(signs * angle), np.sin(signs * angle)
    turns = np.stack([np.stack([c, -s], axis=1), np.stack([s, c], axis=1)], axis=1)
    query, key = np.zeros((2, 4)), np.zeros((2, 4))
    query[0, 3] = query[1, 2] = float(logit_radius)
    key[0, 0] = key[1, 1] = 1
    return Head(query, key, np.eye(4), turns), x


def rotated_family_value(logit_radius: ArrayLike, angle: ArrayLike) -> FloatArray:
    """Return ``L cos(angle) + sqrt(1 + L**2 + 2 L sin(angle))``, the norm of `rotated_family` for many tokens.

    Examples
    --------
    >>> rotated_family_value(1.0, [0, np.pi / 4]).round(3)
    array([2.414, 2.555])
    """
    L, angle = np.asarray(logit_radius, dtype=np.float64), np.asarray(angle, dtype=np.float64)
    return np.asarray(L * np.cos(angle) + np.sqrt(1 + L**2 + 2 * L * np.sin(angle)))


class NormBounds(NamedTuple):
    """Bounds at one input from norms alone; arrays have an entry for each query, shape (n,).

    Parameters
    ----------
    rows : ndarray
        `local_bound` of each row, or `rotated_local_bound` where keys are rotated.
    frobenius : float
        `frobenius_bound` of the Jacobian's rows of these queries.
    covariance, mean_distance, query : ndarray
        ``|Sigma_i|``, ``E|x - m|``, ``max_j |a_ij|``.
    column_mass : float
        The largest column sum of P, over these queries.

    Examples
    --------
    >>> bounds = norm_bounds(Head.of_form(np.eye(2), np.eye(2)), np.eye(2))
    >>> bounds._fields
    ('rows', 'frobenius', 'covariance', 'mean_distance', 'query', 'column_mass')
    """

    rows: FloatArray
    frobenius: float
    covariance: FloatArray
    mean_distance: FloatArray
    query: FloatArray
    column_mass: float


def norm_bounds(head: Head, x: ArrayLike, mask: BoolArray | None = None, queries: slice = slice(None)) -> NormBounds:
    """Return the bounds on the Jacobian of a head at one input that need norms alone.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((8, 4))
    >>> head = Head.of_form(np.eye(4) / 4, np.eye(4))
    >>> bounds = norm_bounds(head, x, causal_mask(8))
    >>> bool(bounds.rows.max() >= analyse(head, x, causal_mask(8)).norms.norm[1])
    True
    """
    tokens = _tokens(head, x)
    P = attention_rows(head, tokens, mask)[queries]
    q, k = _states(head, tokens)
    seen = _seen(head, q, np.arange(len(tokens))[queries])
    g = np.sum((seen @ (head.key @ head.key.T)) * seen, axis=-1)
    query = np.sqrt(np.maximum(np.where(P > 0, g, 0).max(axis=1), 0))
    covariance, distance = _spread(tokens, P)
    common = {"query_norm": query, "covariance_norm": covariance, "mean_distance": distance}
    if head.rotation is not None:
        query_map = spectral_norm(head.query)
        keys, _ = _spread(k, P)
        rows = rotated_local_bound(query_map_norm=query_map, key_covariance_norm=keys, **common)
        second, third = query_map * np.sqrt(covariance * keys), 1 + query * np.sqrt(covariance)
    else:
        form = spectral_norm(head.form())
        rows = local_bound(form_norm=form, **common)
        second, third = form * covariance, np.sqrt(1 + query**2 * covariance)
    value, column = spectral_norm(head.value), float(P.sum(axis=0).max())
    frobenius = float(frobenius_bound(column, third=third.max(), second=second.max(), value_norm=value))
    return NormBounds(value * rows, frobenius, covariance, distance, query, column)


class Analysis(NamedTuple):
    """What `analyse` finds of some rows.

    Parameters
    ----------
    bounds : NormBounds
    matrices : ndarray, shape (n,)
        ``|E_i| + sqrt(lambda_max(sum_j P_ij (V + y a.T)(V + y a.T).T))``: the proof of the bounds, matrices kept.
    norms : TokenNorms

    Examples
    --------
    >>> found = analyse(Head.of_form(np.eye(2), np.eye(2)), np.eye(2))
    >>> found._fields
    ('bounds', 'matrices', 'norms')
    """

    bounds: NormBounds
    matrices: FloatArray
    norms: TokenNorms


def analyse(
    head: Head, x: ArrayLike, mask: BoolArray | None = None, queries: slice = slice(None), *, starts: int = 2
) -> Analysis:
    """Return the bounds on the rows of some queries at one input, and their norms.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((8, 4))
    >>> found = analyse(Head.of_form(np.eye(4) / 4, np.eye(4)), x)
    >>> low, high = found.norms.norm
    >>> round(low, 3), round(high, 3), round(float(found.bounds.rows.max()), 3)
    (1.548, 1.548, 1.724)
    """
    tokens = _tokens(head, x)
    local = _local(head, tokens, attention_rows(head, tokens, mask), queries)
    n, _, m = local.y.shape
    whole = Rows(local.P, local.y, local.b, local.g, head.value @ head.value.T, np.zeros((n, m, m)))
    weights = np.concatenate([inverse(local.P), np.zeros((n, 1))], axis=1)
    E = local.M @ (head.query @ head.query.T) @ np.swapaxes(local.M, 1, 2)
    matrices = root_of_largest(whole.matrices(weights)) + root_of_largest(E)
    return Analysis(norm_bounds(head, x, mask, queries), matrices, token_norms(_rows(head, local), starts=starts))


def _deviations(points: FloatArray, P: FloatArray) -> FloatArray:
    """Return ``x_j - m_i``, shape (n, N, d): subtracted first and multiplied later, so that little cancels."""
    return np.asarray(points[None] - (P @ points)[:, None])


def _spread(points: FloatArray, P: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest eigenvalue of ``Cov_{P_i}``, by way of the smaller Gram matrix, and ``E|x - m|``."""
    if len(points) < points.shape[1]:
        points = np.linalg.qr(points.T).R.T  # coordinates in the span of the points: all lengths and angles stay
    scaled = _deviations(points, P) * np.sqrt(P)[..., None]
    distance = np.sum(np.sqrt(P * np.sum(scaled**2, axis=-1)), axis=1)
    other = np.swapaxes(scaled, 1, 2)
    matrices = scaled @ other if scaled.shape[1] <= scaled.shape[2] else other @ scaled
    return root_of_largest(matrices) ** 2, np.asarray(distance)
