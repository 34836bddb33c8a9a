"""The variance that attention adds to the residual stream, from the weights alone: the block-level approximation.

A block has two normalised sites. BHyT (Byun et al., arXiv 2601.09719) measures a token's variance ``s_x**2`` at the
first only, and takes ``s_x**2`` plus a constant of the attention's weights, `attention_variance`, for the second. This
module holds the constant, grouped queries and gain included, and the corrections where its hypotheses fail.

Weights act on rows: ``h = y diag(gamma) W_V W_O``, the transposes of torch's ``Linear.weight``. All functions are
vectorised over leading axes, in float64. Chapter 3 measures the approximation.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, non_negative, strictly_positive

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROW_SUM_TOLERANCE = 1e-4  # rows of a softmax in float32 or lower do not sum to 1 exactly

# --- The constant of the weights: W_V W_O, head by head


def expand_value_heads(W_V: ArrayLike, heads: int, kv_heads: int) -> FloatArray:
    """Repeat each key-value head's block of columns for the query heads that share it.

    Query head ``a`` reads block ``a // (heads / kv_heads)``: blocks are interleaved (0, 0, 1, 1, ...), not tiled
    (0, 1, 0, 1, ...).

    Parameters
    ----------
    W_V : array_like, shape (..., d, kv_heads * head_dim)
    heads, kv_heads : int, ``kv_heads`` divides ``heads``

    Returns
    -------
    ndarray, shape (..., d, heads * head_dim)

    Raises
    ------
    ValueError
        If the numbers of heads or columns do not divide, or ``W_V`` is not finite.

    Examples
    --------
    >>> expand_value_heads([[1, 2]], heads=4, kv_heads=2)
    array([[1., 1., 2., 2.]])
    """
    W_V = _matrix("W_V", W_V)
    heads, kv_heads = int(_counts("heads", heads)), int(_counts("kv_heads", kv_heads))
    if heads % kv_heads:
        raise ValueError(f"kv_heads must divide heads = {heads}; got {kv_heads}")
    if W_V.shape[-1] % kv_heads:
        raise ValueError(f"W_V must have a multiple of kv_heads = {kv_heads} columns; got shape {W_V.shape}")
    blocks = W_V.reshape(*W_V.shape[:-1], kv_heads, -1)
    return np.repeat(blocks, heads // kv_heads, axis=-2).reshape(*W_V.shape[:-1], -1)


def head_gram(
    W_V: ArrayLike,
    W_O: ArrayLike,
    heads: int,
    *,
    kv_heads: int | None = None,
    gamma: ArrayLike = 1.0,
    covariance: ArrayLike | None = None,
) -> FloatArray:
    """Return the inner products ``<W_a, W_b>_F`` of the heads' maps ``W_a = diag(gamma) W_V^a W_O^a``.

    Their sum is ``||diag(gamma) W_V W_O||_F**2``, the energy in `attention_variance`. No d x d product is formed. With
    the covariance ``C`` of the channels of a normalised token, ``tr(W_a^T C W_b)``, which is ``n <W_a, W_b>_F`` for
    ``C = n I``: what `residlab.theory.branch_moments` takes.

    Parameters
    ----------
    W_V : array_like, shape (..., d, kv_heads * head_dim)
    W_O : array_like, shape (..., heads * head_dim, d)
    heads : int
    kv_heads : int, optional
        Grouped queries (`expand_value_heads`); ``heads`` if omitted.
    gamma : array_like, scalar or shape (..., d)
        The gain of the norm in front of the attention.
    covariance : array_like, shape (..., d, d), optional
        Symmetric; the identity if omitted.

    Returns
    -------
    ndarray, shape (..., heads, heads)

    Raises
    ------
    ValueError
        If shapes do not fit, or an entry is not finite.

    Source: chapter 3 (the sum, with gain 1: arXiv 2601.09719, block-level approximation).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> W_V, W_O = rng.standard_normal((8, 4)), rng.standard_normal((4, 8))
    >>> gram = head_gram(W_V, W_O, heads=2)
    >>> gram.shape, bool(np.isclose(gram.sum(), np.sum((W_V @ W_O) ** 2)))
    ((2, 2), True)
    """
    V, W_O = _value_output(W_V, W_O, heads, kv_heads, gamma, expand=False)
    weighted = V if covariance is None else _square("covariance", covariance, V.shape[-2]) @ V
    values = np.swapaxes(V, -1, -2) @ weighted
    for _ in range(2):  # each head's columns, then its rows: on the small matrix, not on the weights
        values = np.swapaxes(expand_value_heads(values, heads, heads if kv_heads is None else kv_heads), -1, -2)
    products = values * (W_O @ np.swapaxes(W_O, -1, -2))
    head_dim = W_O.shape[-2] // heads
    blocks = products.reshape(*products.shape[:-2], heads, head_dim, heads, head_dim)
    gram: FloatArray = np.sum(blocks, axis=(-3, -1))
    return gram


def head_traces(
    W_V: ArrayLike,
    W_O: ArrayLike,
    heads: int,
    *,
    kv_heads: int | None = None,
    gamma: ArrayLike = 1.0,
    covariance: ArrayLike | None = None,
) -> FloatArray:
    """Return ``tr(diag(gamma) W_V^a W_O^a)`` of each head, shape (..., heads), for `stream_covariance`.

    With the cross-covariance ``C[f, g]`` of stream entry ``f`` and normalised entry ``g``, ``tr(C W_a)``. Parameters
    and errors as in `head_gram`. Source: chapter 3 (ours).

    Examples
    --------
    >>> W_V, W_O = np.eye(4), np.diag([1.0, 2, 3, 4])
    >>> head_traces(W_V, W_O, heads=2)
    array([3., 7.])
    """
    V, W_O = _value_output(W_V, W_O, heads, kv_heads, gamma)
    if covariance is not None:
        V = _square("covariance", covariance, V.shape[-2]) @ V
    diagonal: FloatArray = np.sum(V * np.swapaxes(W_O, -1, -2), axis=-2)
    traces: FloatArray = np.sum(diagonal.reshape(*diagonal.shape[:-1], heads, -1), axis=-1)
    return traces


def head_means(
    mean: ArrayLike,
    W_V: ArrayLike,
    W_O: ArrayLike,
    heads: int,
    *,
    kv_heads: int | None = None,
    gamma: ArrayLike = 1.0,
) -> FloatArray:
    """Return ``m diag(gamma) W_V^a W_O^a``, what each head writes for a token equal to the mean ``m``.

    Parameters
    ----------
    mean : array_like, shape (..., d)
        Leading axes stay.
    W_V, W_O, heads, kv_heads, gamma
        As in `head_gram`, without leading axes.

    Returns
    -------
    ndarray, shape (..., heads, d)

    Raises
    ------
    ValueError
        If shapes do not fit, or an entry is not finite.

    Source: chapter 3 (ours).

    Examples
    --------
    >>> W_V, W_O = np.eye(4), np.diag([1.0, 2, 3, 4])
    >>> head_means([1, 1, 1, 1], W_V, W_O, heads=2)
    array([[1., 2., 0., 0.],
           [0., 0., 3., 4.]])
    """
    V, W_O = _value_output(W_V, W_O, heads, kv_heads, gamma)
    mean = checked("mean", mean, np.isfinite, "finite")
    if V.ndim != 2 or not mean.ndim or mean.shape[-1] != V.shape[0]:
        raise ValueError(f"mean must have shape (..., {V.shape[-2]}), W_V two axes; got {mean.shape} and {V.shape}")
    values = (mean @ V).reshape(*mean.shape[:-1], heads, 1, -1)
    written: FloatArray = (values @ W_O.reshape(heads, -1, W_O.shape[-1]))[..., 0, :]
    return written


def draw_spread(
    W_V: ArrayLike, W_O: ArrayLike, heads: int, *, kv_heads: int | None = None, gamma: ArrayLike = 1.0
) -> FloatArray:
    """Return the relative standard deviation of one token's ``mean(h**2)`` around `attention_variance`.

    ``sqrt(2) ||W W^T||_F / ||W||_F**2``, ``W = diag(gamma) W_V W_O``, for a Gaussian average ``h = g W``: exact as the
    attended tokens become many. Square Gaussian ``W_V, W_O``: about ``sqrt(6/d)``, 0.31 at ``d = 64``. Under uniform
    attention all queries share one draw, so a longer sequence does not average it out.

    Parameters and errors as in `head_gram`, and ValueError if ``W = 0``. Source: chapter 3 (ours).

    Examples
    --------
    >>> identity = np.eye(64)
    >>> round(float(draw_spread(identity, identity, heads=4)), 4), round((2 / 64) ** 0.5, 4)
    (0.1768, 0.1768)
    """
    V, W_O = _value_output(W_V, W_O, heads, kv_heads, gamma)
    product = (np.swapaxes(V, -1, -2) @ V) @ (W_O @ np.swapaxes(W_O, -1, -2))
    energy = np.trace(product, axis1=-2, axis2=-1)
    energy = checked("||W_V W_O||_F**2", energy, strictly_positive, "finite and > 0")
    square: FloatArray = np.sum(product * np.swapaxes(product, -1, -2), axis=(-1, -2))
    return np.sqrt(2 * square) / energy


# --- The second site: Var(x + h) without looking at x + h


def attention_variance(
    energy: ArrayLike, second_moment: ArrayLike, tokens: ArrayLike, width: ArrayLike, *, shared: ArrayLike = 0.0
) -> FloatArray:
    """Return the variance that attention is expected to add, averaging ``tokens`` tokens with equal weights.

    ``energy * second_moment / (tokens * width)``: the paper's ``||W_V W_O||_F**2 lam**2 / (T d kappa**2)`` with
    ``second_moment = (lam/kappa)**2`` (an upper bound of it; see `gaussian_second_moment`) and ``tokens = T``. Causal
    attention averages ``t`` tokens at position ``t``: pass ``tokens = numpy.arange(1, T + 1)``. Tokens whose entries
    correlate, with coefficient ``shared`` between any two tokens: ``1/tokens`` becomes
    ``(1 - shared)/tokens + shared``, which does not vanish in long sequences.

    Hypotheses: attention independent of the values; normalised entries of mean zero and equal second moment,
    uncorrelated across tokens (but for ``shared``) *and across channels*; branch and stream uncorrelated
    (`stream_covariance`). Without the one on channels, tokens along one direction give ``width * sigma**2 / energy``
    times as much, ``sigma`` that direction's singular value. It is an expectation: one draw varies by `draw_spread`.

    Parameters
    ----------
    energy : array_like, >= 0
        ``||diag(gamma) W_V W_O||_F**2``, the sum of `head_gram`.
    second_moment : array_like, >= 0
        Of the entries of the normalised tokens, before the gain.
    tokens, width : array_like of int, >= 1
    shared : array_like, in [0, 1]
        All broadcast together.

    Raises
    ------
    ValueError
        If an entry leaves its range.

    Source: arXiv 2601.09719, block-level variance approximation; chapter 3 (``shared`` and the causal form: ours).

    Examples
    --------
    >>> float(attention_variance(energy=64, second_moment=0.04, tokens=10, width=64))
    0.004
    >>> attention_variance(64, 0.04, tokens=[1, 10, 1000], width=64, shared=0.5).round(4)  # it does not vanish
    array([0.04 , 0.022, 0.02 ])
    """
    shared = _share(shared)
    return _branch(energy, second_moment, width) * ((1 - shared) / _counts("tokens", tokens) + shared)


def attention_variance_from_rows(
    gram: ArrayLike, attention: ArrayLike, second_moment: ArrayLike, width: ArrayLike, *, shared: ArrayLike = 0.0
) -> FloatArray:
    """Return the variance that attention adds at one query, given each head's row of attention weights.

    ``second_moment / width * sum_{a,b} ((1 - shared) <p_a, p_b> + shared) <W_a, W_b>_F``. One head: ``1/tokens`` is
    replaced by ``sum(p**2)``, that is, ``tokens`` by the effective number ``1 / sum(p**2)``.

    Parameters
    ----------
    gram : array_like, shape (..., heads, heads)
        `head_gram`.
    attention : array_like, shape (..., heads, keys)
        Non-negative, each row of sum 1 (within 1e-4). Leading axes broadcast, for instance over queries.
    second_moment, width, shared : array_like, broadcast with the leading axes
        As in `attention_variance`, with the same hypotheses.

    Returns
    -------
    ndarray, shape (...)

    Raises
    ------
    ValueError
        If shapes do not fit, or an entry leaves its range.

    Source: chapter 3 (ours).

    Examples
    --------
    >>> row = np.full(10, 0.1)
    >>> float(attention_variance_from_rows([[64]], [row], second_moment=0.04, width=64).round(4))
    0.004
    >>> sink = np.array([0.91, *[0.01] * 9])
    >>> float(attention_variance_from_rows([[64]], [sink], 0.04, 64).round(4))  # 1.2 tokens instead of 10
    0.0332
    """
    gram = checked("gram", gram, np.isfinite, "finite")
    if gram.ndim < 2 or gram.shape[-1] != gram.shape[-2]:
        raise ValueError(f"gram must have shape (..., heads, heads); got {gram.shape}")
    attention = attention_rows(attention, gram.shape[-1])
    shared = _share(shared)[..., None, None]
    overlap = (1 - shared) * (attention @ np.swapaxes(attention, -1, -2)) + shared
    energy: FloatArray = np.sum(overlap * gram, axis=(-1, -2))
    # A Gram matrix is positive: what is negative is rounding of heads that cancel.
    return _branch(np.maximum(energy, 0), second_moment, width)


def stream_covariance(
    trace: ArrayLike, own_weight: ArrayLike, scale: ArrayLike, std: ArrayLike, width: ArrayLike
) -> FloatArray:
    """Return twice the covariance of branch and stream, the term that `attention_variance` leaves out.

    ``2 scale std**2 trace own_weight / width``, ``scale`` the ``alpha`` of tanh(alpha x), to first order in it
    (Gaussian entries: times ``E sech(scale x)**2``, exactly). The query's own token, weight ``own_weight`` (uniform:
    ``1/t``), correlates with itself through the trace. Beside the variance it is ``2 trace / (scale energy)`` at every
    ``t``; both matter most at small ``t``. Sum over heads, each with its own trace and weight.

    Parameters
    ----------
    trace : array_like
        `head_traces`. Negative where a head writes against the stream.
    own_weight : array_like, in [0, 1]
    scale, std : array_like, >= 0
    width : array_like of int, >= 1
        All broadcast together.

    Raises
    ------
    ValueError
        If an entry leaves its range.

    Source: chapter 3 (ours).

    Examples
    --------
    >>> stream_covariance(trace=64, own_weight=[1, 0.1], scale=0.5, std=1, width=64)
    array([1. , 0.1])
    """
    trace = checked("trace", trace, np.isfinite, "finite")
    own_weight = checked("own_weight", own_weight, _in_unit_interval, "in [0, 1]")
    scale = checked("scale", scale, non_negative, "finite and >= 0")
    std = checked("std", std, non_negative, "finite and >= 0")
    return 2 * scale * std**2 * trace * own_weight / _counts("width", width)


def _branch(energy: ArrayLike, second_moment: ArrayLike, width: ArrayLike) -> FloatArray:
    energy = checked("energy", energy, non_negative, "finite and >= 0")
    second_moment = checked("second_moment", second_moment, non_negative, "finite and >= 0")
    return energy * second_moment / _counts("width", width)


# --- Validation


def _in_unit_interval(values: FloatArray) -> ArrayLike:
    return (values >= 0) & (values <= 1)


def _share(shared: ArrayLike) -> FloatArray:
    return checked("shared", shared, _in_unit_interval, "in [0, 1]")


def _counts(name: str, value: ArrayLike) -> IntArray:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or np.any(array < 1):
        raise ValueError(f"{name} must be an integer >= 1; got {array.tolist()!r}")
    return array.astype(np.int64)


def _matrix(name: str, value: ArrayLike) -> FloatArray:
    array = checked(name, value, np.isfinite, "finite")
    if array.ndim < 2 or 0 in array.shape:
        raise ValueError(f"{name} must have shape (..., rows, columns), none zero; got shape {array.shape}")
    return array


def _square(name: str, value: ArrayLike, size: int) -> FloatArray:
    array = _matrix(name, value)
    if array.shape[-2:] != (size, size):
        raise ValueError(f"{name} must have shape (..., {size}, {size}); got {array.shape}")
    return array


def attention_rows(attention: ArrayLike, heads: int | None) -> FloatArray:
    """Return attention rows, shape (..., heads, keys), as float64, or raise ValueError if they are none.

    Examples
    --------
    >>> attention_rows([[0.25, 0.75]], heads=1)
    array([[0.25, 0.75]])
    >>> attention_rows([[0.25, 0.5]], heads=1)
    Traceback (most recent call last):
        ...
    ValueError: the sum of an attention row must be 1 +- 1e-4; got 0.75
    """
    array = checked("attention", attention, non_negative, "finite and >= 0")
    if array.ndim < 2 or array.shape[-2] != heads:
        raise ValueError(f"attention must have shape (..., heads, keys), with {heads} heads; got {array.shape}")
    off = np.abs(array.sum(axis=-1) - 1)
    checked("the sum of an attention row", array.sum(axis=-1), lambda _: off <= ROW_SUM_TOLERANCE, "1 +- 1e-4")
    return array


def _value_output(
    W_V: ArrayLike, W_O: ArrayLike, heads: int, kv_heads: int | None, gamma: ArrayLike, *, expand: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Return ``diag(gamma) W_V``, as a rule expanded to the query heads, and ``W_O``, of matching shapes."""
    V = expand_value_heads(W_V, heads, heads if kv_heads is None else kv_heads)
    W_O = _matrix("W_O", W_O)
    if W_O.shape[-2:] != V.shape[:-3:-1]:
        raise ValueError(
            f"W_O must have shape (..., heads * head_dim, d) = (..., {V.shape[-1]}, {V.shape[-2]}); got {W_O.shape}"
        )
    gamma = checked("gamma", gamma, np.isfinite, "finite")
    if gamma.ndim and gamma.shape[-1] != V.shape[-2]:
        raise ValueError(f"gamma must be a scalar or have shape (..., {V.shape[-2]}); got shape {gamma.shape}")
    V = V if expand else _matrix("W_V", W_V)
    return V * (gamma[..., None] if gamma.ndim else gamma), W_O
