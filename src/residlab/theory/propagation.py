"""How alike tokens become in a network without residual connections, before it is trained (ours; chapter 10).

Tokens are unit vectors after their norm, and ``c`` is the cosine of two different ones: their *similarity*. A layer
averages tokens in attention, then maps each by itself in the feedforward.

**Attention, exactly.** Let all pairs have the cosine c, rows of attention ``P_t`` add up to 1, and values and outputs
be one isometry. Then ``<y_t, y_s> = c + (1 - c) sum_j P_tj P_sj``, so

    ``cos(y_t, y_s) = (c + (1 - c) omega) / sqrt((c + (1 - c) pi_t)(c + (1 - c) pi_s))``

with the *overlap* omega of the two rows and the *participation* ``pi_t = sum_j P_tj**2``, one over the effective number
of tokens attended. If rows do not overlap, the odds ``(1 - c)/c`` are multiplied by pi. If all rows are one, c becomes
1.

**Feedforward**, of random weights and many hidden units: ``c -> psi(c)``, a power series with non-negative
coefficients and ``psi(1) = 1`` (`feedforward_kernel`). Where ``c -> 1``, distances are multiplied by ``psi'(1)``:
tokens become alike when ``pi psi'(1) < 1`` and stay apart when it is above.

**Closure.** At initialization pi follows from logits that are Gaussian but for that of a token with itself
(`initial_rows`), with one mean c in place of all pairs. `similarity_by_layer` carries the cosines of all pairs of
positions through layers whose rows are flat but for the token itself, with the participation that noise adds.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, checked_choice, non_negative, positive

FloatArray = NDArray[np.float64]
Feedforward = Literal["swiglu", "gelu"]
KERNEL_TERMS = 40
_NODES = 5


def _fraction(values: FloatArray) -> ArrayLike:
    return (values >= 0) & (values <= 1)


# --- Exact: one layer of attention


def attention_similarity(similarity: ArrayLike, participation: ArrayLike, overlap: ArrayLike = 0.0) -> FloatArray:
    """Return ``(c + (1 - c) omega) / (c + (1 - c) pi)``: the cosine after attention whose rows share one participation.

    Parameters
    ----------
    similarity : array_like, in [0, 1]
        c, of all pairs of tokens.
    participation : array_like, in (0, 1]
        pi, of the rows.
    overlap : array_like, in [0, participation]
        omega, of two rows; at most pi by Cauchy and Schwarz.

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 10 (ours).

    Examples
    --------
    >>> attention_similarity(0.5, participation=[1, 0.5, 0.1]).round(4)
    array([0.5   , 0.6667, 0.9091])
    """
    c = checked("similarity", similarity, _fraction, "in [0, 1]")
    pi = checked("participation", participation, lambda v: (v > 0) & (v <= 1), "in (0, 1]")
    omega = checked("overlap", overlap, _fraction, "in [0, participation]")
    checked("overlap", np.maximum(omega - pi, 0), lambda v: v <= 1e-12, "at most the participation; the excess is")
    return (c + (1 - c) * omega) / (c + (1 - c) * pi)


def mixed_gram(gram: ArrayLike, rows: ArrayLike) -> FloatArray:
    """Return the cosines of all tokens after attention with given rows: ``P G P^T``, divided by its diagonal's roots.

    Exact for any cosines, if values and outputs are one isometry and the heads attend alike.

    Parameters
    ----------
    gram : array_like, shape (T, T)
        Cosines before.
    rows : array_like, shape (T, T)
        Rows of attention, from query to key.

    Raises
    ------
    ValueError
        If rows do not add up to 1.

    Examples
    --------
    >>> rows = np.array([[1.0, 0], [0.5, 0.5]])
    >>> mixed_gram(np.eye(2), rows).round(4)
    array([[1.    , 0.7071],
           [0.7071, 1.    ]])
    """
    P = checked("rows", rows, non_negative, "finite and >= 0")
    checked("the sum of each row", P.sum(axis=-1), lambda v: np.abs(v - 1) < 1e-6, "1")
    inner = P @ np.asarray(gram, dtype=np.float64) @ P.T
    size = np.sqrt(np.diagonal(inner))
    return np.asarray(inner / np.outer(size, size))


# --- Feedforward


def _activation(kind: Feedforward, x: FloatArray) -> FloatArray:
    from scipy.special import expit, ndtr

    if kind == "swiglu":
        return np.asarray(x * expit(x))
    return np.asarray(x * ndtr(x), dtype=np.float64)


def _derivative(kind: Feedforward, x: FloatArray) -> FloatArray:
    from scipy.special import expit, ndtr

    if kind == "swiglu":
        return np.asarray(expit(x) * (1 + x * expit(-x)))
    return np.asarray(ndtr(x) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def kernel_coefficients(kind: Feedforward = "swiglu", *, variance: float = 1.0) -> FloatArray:
    """Return the coefficients of ``psi(c) = sum_k b_k c**k``, which add up to 1.

    With the orthonormal Hermite coefficients ``a_k = E f(sqrt(v) g) he_k(g)`` of the activation f, two Gaussian
    pre-activations of correlation c have ``E f f' = sum_k a_k**2 c**k`` (Mehler). A gate multiplies by the other
    factor's correlation, c: ``psi_swiglu(c) = c sum_k a_k**2 c**k / sum_k a_k**2``.

    Parameters
    ----------
    kind : {"swiglu", "gelu"}
    variance : float, in (0, 4]
        v, of the pre-activations; 1 for scaled semi-orthogonal matrices behind a norm. Beyond 4 more than these
        coefficients are needed; `kernel_slope` has no such limit.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> b = kernel_coefficients("gelu")
    >>> b[:3].round(4), round(float(b.sum()), 6)
    (array([0.1871, 0.5879, 0.2105]), 1.0)
    """
    checked_choice("kind", kind, Feedforward)
    root = float(np.sqrt(checked("variance", variance, lambda v: (v > 0) & (v <= 4), "in (0, 4]")))
    x, w = np.polynomial.hermite_e.hermegauss(160)
    w = w / w.sum()
    f, polynomial, before = _activation(kind, root * x), np.ones_like(x), np.zeros_like(x)
    squares = []
    for k in range(KERNEL_TERMS):
        squares.append(float(w @ (f * polynomial)) ** 2)
        polynomial, before = (x * polynomial - np.sqrt(k) * before) / np.sqrt(k + 1), polynomial
    series = np.array(squares) / sum(squares)
    return np.concatenate(([0.0], series)) if kind == "swiglu" else series


def feedforward_kernel(similarity: ArrayLike, kind: Feedforward = "swiglu", *, variance: float = 1.0) -> FloatArray:
    """Return ``psi(c)``, the cosine behind a feedforward with random weights; see `kernel_coefficients`.

    Examples
    --------
    >>> feedforward_kernel([0, 0.5, 1], "swiglu").round(4)
    array([0.    , 0.2574, 1.    ])
    >>> feedforward_kernel([0, 0.5, 1], "gelu").round(4)  # GELU has a mean: unlike tokens become alike
    array([0.1871, 0.5345, 1.    ])
    """
    c = checked("similarity", similarity, _fraction, "in [0, 1]")
    return np.asarray(np.polynomial.polynomial.polyval(c, kernel_coefficients(kind, variance=variance)))


def kernel_slope(kind: Feedforward = "swiglu", *, variance: float = 1.0) -> float:
    """Return ``psi'(1)``: by how much a feedforward multiplies small squared distances, and squared gradients.

    Examples
    --------
    With the activation f it is ``v E f'(sqrt(v) g)**2 / E f(sqrt(v) g)**2``, and 1 more with a gate.

    Parameters
    ----------
    kind : {"swiglu", "gelu"}
    variance : float, > 0
        v, of the pre-activations.

    Raises
    ------
    ValueError
        If an argument is not allowed.

    Examples
    --------
    >>> round(kernel_slope("swiglu"), 4), round(kernel_slope("gelu"), 4)
    (2.0666, 1.072)
    >>> round(kernel_slope("gelu", variance=1e4), 4)  # nearly a ReLU, which has 1
    1.0011
    """
    checked_choice("kind", kind, Feedforward)
    return _slope(kind, float(positive("variance", variance)))


@lru_cache(maxsize=256)
def _slope(kind: Feedforward, variance: float) -> float:
    from scipy.integrate import quad

    root = np.sqrt(variance)

    def mean_square(function: Callable[[Feedforward, FloatArray], FloatArray]) -> float:
        # The functions bend where their argument is a few: there are breaks, and at the ends of the Gaussian.
        inner = min(8 / root, 20.0)
        breaks = sorted({-40.0, -inner, 0.0, inner, 40.0})
        parts = [
            quad(
                lambda g: function(kind, np.asarray(root * g)) ** 2 * np.exp(-(g**2) / 2),
                low,
                high,
                epsabs=0,
                limit=200,
            )[0]
            for low, high in pairwise(breaks)
        ]
        return float(sum(parts))

    return float(kind == "swiglu") + variance * mean_square(_derivative) / mean_square(_activation)


def critical_participation(kind: Feedforward = "swiglu", *, variance: float = 1.0) -> float:
    """Return ``1/psi'(1)``, the participation below which almost equal tokens become more so with every layer.

    Examples
    --------
    >>> round(critical_participation("swiglu"), 4)
    0.4839
    """
    return 1 / kernel_slope(kind, variance=variance)


# --- Attention at initialization


class Rows(NamedTuple):
    """What rows of attention do, by position, (tokens,): weight on the token itself, and participation.

    Examples
    --------
    >>> rows = initial_rows(0.0, 1.0, tokens=4, head_dim=32, width=128)
    >>> rows._fields
    ('self_weight', 'participation')
    >>> float(rows.participation[0])  # the first token sees itself only
    1.0
    """

    self_weight: FloatArray
    participation: FloatArray


def initial_rows(
    similarity: float,
    scale: float,
    *,
    tokens: int,
    head_dim: int,
    width: int,
    shared: bool = True,
    rope_base: float | None = 10_000.0,
) -> Rows:
    """Return the mean field of causal attention with semi-orthogonal ``W_Q`` and ``W_K``, at initialization.

    A head's queries have ``u head_dim`` as squared length, u about normal with mean 1 and variance
    ``2/head_dim - 2/width``. With ``W_K = W_Q`` a token's logit with itself is ``s sqrt(head_dim) u``, and with one
    r positions before ``s sqrt(head_dim) c rho_r u`` plus Gaussian noise of variance ``s**2 (1 - c) u``; rho_r is the
    mean cosine of the rotary angles. With separate matrices all logits are noise of variance ``s**2 (1 - c)``: what
    keys have in common changes no row. The sum of m exponentials of noise ``sigma`` is taken at its typical size
    (random energy model): ``m exp(sigma**2/2)`` while ``sigma**2 < 2 ln m``, else ``exp(sigma sqrt(2 ln m))``.

    Parameters
    ----------
    similarity : float, in [0, 1]
        c, of the tokens that come in.
    scale : float, > 0
        s, the factor of ``q . k / sqrt(head_dim)``: ``logit_scale beta**layer``.
    tokens, head_dim, width : int
    shared : bool
        Whether ``W_K = W_Q``.
    rope_base : float, optional
        Base of the rotary positions; None for none.

    Source: chapter 10 (ours).

    Examples
    --------
    >>> flat = initial_rows(0.5, 1e-9, tokens=4, head_dim=32, width=128, shared=False)
    >>> flat.participation.round(4)  # without logits the row is uniform
    array([1.    , 0.5   , 0.3333, 0.25  ])
    >>> peaked = initial_rows(0.05, 1.0, tokens=4, head_dim=32, width=128)
    >>> bool(peaked.self_weight[-1] > 0.9)  # W_K = W_Q: a token sees itself
    True
    """
    c = float(checked("similarity", similarity, _fraction, "in [0, 1]"))
    s = float(positive("scale", scale))
    T = int(checked("tokens", tokens, lambda v: (v >= 2) & (v == np.floor(v)), "a whole number >= 2"))
    positive("head_dim", head_dim)
    m = np.arange(1.0, T)  # tokens before the query, from the second position on
    log_m = np.log(m)
    if not shared:
        # Of t alike, the token itself is any one.
        logs = np.log(m + 1)
        noise = s * np.sqrt(1 - c)
        participation = np.exp(np.minimum(_log_sum(2 * noise, logs) - 2 * _log_sum(noise, logs), 0))
        return Rows(np.concatenate(([1.0], 1 / (m + 1))), np.concatenate(([1.0], participation)))
    x, w = np.polynomial.hermite_e.hermegauss(_NODES)
    w = w / w.sum()
    u = np.maximum(1 + x * np.sqrt(max(2 / head_dim - 2 / width, 0.0)), 0.05)[:, None]
    own = s * np.sqrt(head_dim) * u
    rho = rotary_alignment(T, head_dim, rope_base)[1:]
    noise = s * np.sqrt((1 - c) * u)
    logs = [_log_cumulative(b * own * c * rho) - log_m + _log_sum(b * noise, log_m) for b in (1, 2)]
    ratio = np.exp(np.clip(logs[0] - own, -700, 700))  # the others' weight over the token's own
    p = 1 / (1 + ratio)
    others = np.exp(np.minimum(logs[1] - 2 * logs[0], 0))  # participation among the others
    participation = p**2 + (1 - p) ** 2 * others
    return Rows(np.concatenate(([1.0], w @ p)), np.concatenate(([1.0], w @ participation)))


def _log_sum(sigma: ArrayLike, log_m: FloatArray) -> FloatArray:
    """Return the logarithm of the typical size of a sum of m exponentials of Gaussians with deviation sigma."""
    sigma = np.asarray(sigma, dtype=np.float64)
    critical = np.sqrt(2 * log_m)
    return np.where(sigma < critical, log_m + sigma**2 / 2, sigma * critical)


def _log_cumulative(values: FloatArray) -> FloatArray:
    """Return ``log sum_{r <= m} exp(values_r)`` for each m, along the last axis."""
    return np.asarray(np.logaddexp.accumulate(values, axis=-1), dtype=np.float64)


def rotary_alignment(tokens: int, head_dim: int, base: float | None) -> FloatArray:
    """Return ``rho_r = (2/head_dim) sum_i cos(r base**(-2i/head_dim))`` for r = 0 ... tokens - 1; ones without base.

    Examples
    --------
    >>> rotary_alignment(3, head_dim=32, base=None)
    array([1., 1., 1.])
    >>> rotary_alignment(3, head_dim=32, base=10000.0).round(4)
    array([1.    , 0.9571, 0.8581])
    """
    r = np.arange(tokens, dtype=np.float64)
    if base is None:
        return np.ones_like(r)
    angles = float(positive("rope_base", base)) ** (-np.arange(0, head_dim, 2) / head_dim)
    return np.asarray(np.cos(np.outer(r, angles)).mean(axis=1), dtype=np.float64)


# --- All layers


class Propagation(NamedTuple):
    """What becomes of tokens layer by layer, each of shape (depth + 1,); the first entry is the embeddings'.

    Attributes
    ----------
    similarity
        Mean cosine of two different tokens, in front of each block and at the end.
    participation
        Mean over positions, of the block that made a layer; nan for the embeddings.
    gradient
        Root mean square gradient in the normalised tokens there over that at the end, if gradients of different tokens
        are uncorrelated and rows of attention are held fixed.

    Examples
    --------
    >>> run = similarity_by_layer(2, tokens=16)
    >>> run._fields, run.similarity.shape
    (('similarity', 'participation', 'gradient'), (3,))
    """

    similarity: FloatArray
    participation: FloatArray
    gradient: FloatArray


def similarity_by_layer(
    depth: int,
    *,
    initial: float = 0.05,
    logit_scale: float = 1.0,
    beta: float = 1.0,
    tokens: int = 128,
    head_dim: int = 32,
    width: int = 128,
    shared: bool = True,
    rope_base: float | None = 10_000.0,
    feedforward: Feedforward = "swiglu",
) -> Propagation:
    """Return how alike tokens are in front of each block and at the end, without residual connections.

    Each block mixes the cosines of all pairs by rows that are flat but for the token itself, at scale
    ``logit_scale beta**layer``, adds to each token's length what participation beyond those rows adds, and applies
    `feedforward_kernel`.

    Raises
    ------
    ValueError
        If a value leaves its range.

    Source: chapter 10 (ours).

    Examples
    --------
    >>> apart = similarity_by_layer(8, tokens=16)
    >>> alike = similarity_by_layer(8, tokens=16, shared=False)
    >>> round(float(apart.similarity[-1]), 3), round(float(alike.similarity[-1]), 3)
    (0.001, 0.841)
    """
    layers = int(checked("depth", depth, lambda v: (v >= 1) & (v == np.floor(v)), "a whole number >= 1"))
    positive("logit_scale", logit_scale)
    positive("beta", beta)
    start = float(checked("initial", initial, _fraction, "in [0, 1]"))
    coefficients, slope = kernel_coefficients(feedforward), kernel_slope(feedforward)
    gram = np.full((tokens, tokens), start)
    np.fill_diagonal(gram, 1.0)
    similarity, participation, factors = [start], [np.nan], []
    for layer in range(1, layers + 1):
        rows = initial_rows(
            similarity[-1],
            logit_scale * beta**layer,
            tokens=tokens,
            head_dim=head_dim,
            width=width,
            shared=shared,
            rope_base=rope_base,
        )
        inner = _mixed(gram, rows, similarity[-1])
        size = np.sqrt(np.diagonal(inner))
        gram = np.polynomial.polynomial.polyval(np.clip(inner / np.outer(size, size), 0, 1), coefficients)
        np.fill_diagonal(gram, 1.0)
        pi = float(rows.participation.mean())
        factors.append(slope * pi / (similarity[-1] + (1 - similarity[-1]) * pi))
        similarity.append(float((gram.sum() - tokens) / (tokens * (tokens - 1))))
        participation.append(pi)
    gradient = np.sqrt(np.concatenate((np.cumprod(factors[::-1])[::-1], [1.0])))
    return Propagation(np.array(similarity), np.array(participation), gradient)


def _mixed(gram: FloatArray, rows: Rows, mean: float) -> FloatArray:
    """Return ``P G P^T`` for rows with p on the token itself and the rest flat, and the noise on the diagonal."""
    m = np.arange(len(gram), dtype=np.float64)
    p = rows.self_weight
    flat = (1 - p) / np.maximum(m, 1)
    own = p - flat
    half = own[:, None] * gram + flat[:, None] * np.cumsum(gram, axis=0)
    inner = own * half + flat * np.cumsum(half, axis=1)
    extra = (1 - mean) * np.maximum(rows.participation - p**2 - m * flat**2, 0)
    return np.asarray(inner + np.diag(extra), dtype=np.float64)
