"""The variance that attention adds when the moments of its tokens are known: nothing asked of channels or means.

The general form behind `residlab.theory.block_variance`, whose approximations are the case of mean zero and one
variance for all channels. Keys fall into classes (token 0, the others), each with a mean and a covariance, measured on
some texts and used on others. Float64, vectorised over leading axes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.block_variance import attention_rows
from residlab.theory.validation import checked

FloatArray = NDArray[np.float64]


def expected_branch(means: ArrayLike, attention: ArrayLike, classes: ArrayLike) -> FloatArray:
    """Return the mean of the branch at each query, for tokens whose means are known by class.

    ``sum_a sum_j p_a[j] m_{c(j)} W_a``.

    Parameters
    ----------
    means : array_like, shape (classes, heads, d)
        `head_means` of each class's mean.
    attention : array_like, shape (..., heads, keys)
        As in `attention_variance_from_rows`.
    classes : array_like of int, shape (keys,)
        The class of each key, from 0.

    Returns
    -------
    ndarray, shape (..., d)

    Raises
    ------
    ValueError
        If shapes do not fit, or an entry leaves its range.

    Source: chapter 3 (ours).

    Examples
    --------
    >>> means = np.array([[[1.0, 0]], [[0, 1.0]]])  # two classes, one head, width 2
    >>> expected_branch(means, [[0.9, 0.05, 0.05]], classes=[0, 1, 1])
    array([0.9, 0.1])
    """
    means = checked("means", means, np.isfinite, "finite")
    attention = attention_rows(attention, means.shape[1] if means.ndim == 3 else None)
    members = _members(classes, attention.shape[-1], len(means))
    branch: FloatArray = np.tensordot(attention @ members.T, np.swapaxes(means, 0, 1), 2)
    return branch


def attention_variance_from_moments(
    gram: ArrayLike, means: ArrayLike, attention: ArrayLike, classes: ArrayLike, width: ArrayLike
) -> FloatArray:
    """Return the second moment of the branch at each query, for tokens whose moments are known by class.

    Tokens are uncorrelated with one another, and token ``j`` has the mean and the covariance of its class: nothing is
    asked of channels or means. ``(||expected_branch||**2 + sum_{a,b} sum_j p_a[j] p_b[j] gram[c(j), a, b]) / width``.

    Parameters
    ----------
    gram : array_like, shape (classes, heads, heads)
        `head_gram` with each class's covariance.
    means, attention, classes
        As in `expected_branch`.
    width : int

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
    >>> means = np.zeros((2, 1, 64))
    >>> gram = np.array([[[4.0]], [[64.0]]])  # token 0 writes little, the others write much
    >>> float(attention_variance_from_moments(gram, means, [[0.8, 0.1, 0.1]], classes=[0, 1, 1], width=64).round(4))
    0.06
    >>> round((0.8**2 * 4 + 2 * 0.1**2 * 64) / 64, 4)
    0.06
    """
    branch = expected_branch(means, attention, classes)
    gram = checked("gram", gram, np.isfinite, "finite")
    attention = attention_rows(attention, gram.shape[-1])
    if gram.shape != (np.shape(means)[0], attention.shape[-2], attention.shape[-2]):
        raise ValueError(f"gram must have shape (classes, heads, heads), as means has; got {gram.shape}")
    energy = np.sum(branch**2, axis=-1)
    for members, one in zip(_members(classes, attention.shape[-1], len(gram)), gram, strict=True):
        seen = attention[..., members]
        energy += np.sum((seen @ np.swapaxes(seen, -1, -2)) * one, axis=(-1, -2))
    added: FloatArray = np.maximum(energy, 0) / width
    return added


def _members(classes: ArrayLike, keys: int, count: int) -> NDArray[np.bool_]:
    """Return which keys belong to each class, shape (count, keys)."""
    array = np.asarray(classes)
    if array.dtype.kind not in "iu" or array.shape != (keys,) or np.any((array < 0) | (array >= count)):
        raise ValueError(f"classes must be {keys} integers from 0 to {count - 1}; got {array.tolist()!r}")
    members: NDArray[np.bool_] = array == np.arange(count)[:, None]
    return members
