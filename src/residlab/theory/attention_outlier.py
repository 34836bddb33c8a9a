"""One outlier among ordinary tokens that every query attends to, or half of them: closed form but for the norm (ours).

In four dimensions with the axes c, u, z, w: N ordinary tokens ``R (0.6 c + 0.8 u)`` and ``R (0.6 c - 0.8 u)``, half of
each, and one outlier of length s. The form, ``A.T`` taking c to w, u to z and z to u, times alpha, gives ordinary
tokens logits of 0 with each other. The outlier lies along w, and all ordinary queries give it the logit ``0.6 alpha R
s``; or along z, and half of them give it ``0.8 alpha R s``, the other half the negative. Ordinary queries see all
tokens, the outlier sees itself, as the first token of a causal sequence does. V is the identity.

With p the mass on the outlier and ``D**2 = s**2 + (0.6 R)**2``, the covariance of a row is diagonal: ``(0.8 R)**2 (1 -
p)`` along u and ``D**2 p (1 - p)`` towards the outlier. So the outlier costs most when it has half of the mass, and
nothing when it has all of it. Source: chapter 16.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.attention_jacobian import Head
from residlab.theory.lipschitz import local_bound, sharp_bound, simple_bound
from residlab.theory.token_norms import Rows, ascended
from residlab.theory.validation import FloatArray, checked, checked_choice, non_negative, positive

Attended = Literal["every", "half"]

SHARED, APART = 0.6, 0.8
ITERATIONS = 60
STARTS: tuple[tuple[float, ...], ...] = ((0.3, 0.9, 0.5, 0.4), (0.7, 0.4, -0.6, 0.5), (-0.2, 0.5, 0.8, 0.9))
_TURN = np.array([[0.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]])  # A.T / alpha


def outlier_tokens(
    tokens: int, *, radius: float, form: float, outlier: float, attended: Attended = "every"
) -> tuple[Head, FloatArray, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Return the head, the N + 1 tokens (the outlier first) and the mask, to be checked against `outlier_norms`.

    Examples
    --------
    >>> head, x, mask = outlier_tokens(8, radius=1.0, form=1.0, outlier=5.0)
    >>> x.shape, int(mask[0].sum()), np.linalg.norm(x, axis=1)[:3].round(6)  # the outlier sees itself only
    ((9, 4), 1, array([5., 1., 1.]))
    """
    checked_choice("attended", attended, Attended)
    x = np.zeros((tokens + 1, 4))
    x[1:, 0] = SHARED * radius
    x[1:, 1] = APART * radius * np.where(np.arange(tokens) % 2, -1.0, 1.0)
    x[0, 3 if attended == "every" else 2] = outlier
    mask = np.ones((tokens + 1, tokens + 1), dtype=bool)
    mask[0, 1:] = False
    return Head.of_form(form * _TURN.T, np.eye(4)), x, mask


class OutlierNorms(NamedTuple):
    """Norm and bounds in the token norm, arrays of one shape.

    Parameters
    ----------
    mass : ndarray
        On the outlier, in the ordinary rows that give it least.
    norm : ndarray
        What the iteration from below has reached from three starts: a lower bound.
    local, sharp, simple : ndarray
        `local_bound`, the largest of all rows; `sharp_bound` and `simple_bound` with the longest token.

    Examples
    --------
    >>> found = outlier_norms(64, radius=1, form=1, outlier=5)
    >>> found._fields
    ('mass', 'norm', 'local', 'sharp', 'simple')
    """

    mass: FloatArray
    norm: FloatArray
    local: FloatArray
    sharp: FloatArray
    simple: FloatArray


def outlier_norms(
    tokens: ArrayLike, *, radius: ArrayLike, form: ArrayLike, outlier: ArrayLike, attended: Attended = "every"
) -> OutlierNorms:
    """Return norm and bounds of the family; arguments broadcast.

    Parameters
    ----------
    tokens : array_like, even, >= 2
        N, ordinary tokens.
    radius, form : array_like, > 0
        R and alpha.
    outlier : array_like, >= 0
        s, its length.
    attended : {"every", "half"}
        The queries that give it mass.

    Examples
    --------
    >>> found = outlier_norms(64, radius=1, form=1, outlier=[0, 7, 30])
    >>> found.mass.round(3)
    array([0.015, 0.51 , 1.   ])
    >>> found.local.round(2)  # it costs most with about half of the mass
    array([ 1.91, 15.99,  1.  ])
    >>> found.sharp.round(0)
    array([   2.,   98., 1800.])
    """
    checked_choice("attended", attended, Attended)
    N = checked("tokens", tokens, lambda v: (v >= 2) & (v % 2 == 0), "even and >= 2")
    R, alpha = positive("radius", radius), positive("form", form)
    s = checked("outlier", outlier, non_negative, "finite and >= 0")
    shape = np.broadcast_shapes(N.shape, R.shape, alpha.shape, s.shape)
    N, R, alpha, s = (np.broadcast_to(v, shape).ravel() for v in (N, R, alpha, s))
    every = attended == "every"
    rows = [_row(N, R, alpha, s, sign, every) for sign in (1.0, -1.0)]
    longest = alpha * np.maximum(R, s) ** 2
    found = OutlierNorms(
        mass=np.minimum(*(mass for mass, _, _ in rows)),
        norm=np.maximum(np.maximum(*(norm for _, norm, _ in rows)), 1.0),  # the outlier's own row is V
        local=np.maximum(np.maximum(*(bound for _, _, bound in rows)), 1.0),
        sharp=sharp_bound(longest),
        simple=simple_bound(longest),
    )
    return OutlierNorms(*(np.reshape(each, shape) for each in found))


def _row(
    N: FloatArray, R: FloatArray, alpha: FloatArray, s: FloatArray, sign: float, every: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the outlier's mass, the norm and the local bound of the rows of one sign."""
    logit = alpha * R * s * (SHARED if every else sign * APART)
    power, ordinary = np.exp(np.minimum(logit, 0)), np.exp(-np.maximum(logit, 0))
    total = power + N * ordinary
    one, p, rest = ordinary / total, power / total, N * ordinary / total  # rest: 1 - p without cancellation
    D = np.hypot(s, SHARED * R)
    zero = np.zeros_like(R)
    towards = np.stack([-SHARED * R, zero, zero if every else s, s if every else zero], axis=1) / D[:, None]
    across = np.stack([zero, sign * APART * R, zero, zero], axis=1)
    mean = (D * p)[:, None] * towards
    y = np.stack([across - mean, -across - mean, (D * rest)[:, None] * towards], axis=1)
    a = (alpha * R)[:, None] * np.array([0, 0, sign * APART, SHARED])
    apart, near = (APART * R) ** 2 * rest, D**2 * p * rest
    axis = np.array([0.0, 1, 0, 0])
    sigma = apart[:, None, None] * np.outer(axis, axis) + near[:, None, None] * towards[..., None] * towards[:, None]
    own = one[:, None, None] * (np.eye(4) + y[:, 0, :, None] * a[:, None]) + alpha[:, None, None] * sigma @ _TURN
    g = np.sum(a**2, axis=1)
    found = Rows(
        P=np.stack([(N / 2 - 1) * one, N / 2 * one, p], axis=1),
        y=y,
        b=np.broadcast_to(a[:, None], y.shape),
        g=np.broadcast_to(g[:, None], y.shape[:2]),
        gram=np.eye(4),
        own=own @ np.swapaxes(own, 1, 2),
    )
    norm = np.max([ascended(found, np.tile(start, (len(N), 1)), ITERATIONS)[0] for start in STARTS], axis=0)
    distance = rest * (np.hypot(APART * R, D * p) + p * D)
    bound = local_bound(
        form_norm=alpha, query_norm=alpha * R, covariance_norm=np.maximum(apart, near), mean_distance=distance
    )
    return p, norm, bound
