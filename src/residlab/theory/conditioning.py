r"""Conditioning of normalizations: what changes of a token do to the outputs of LayerNorm, RMSNorm, DyT and BHyT.

For y = f(x) with the Jacobian J there are three condition numbers, all to first order in the size of the change:

========================== ======================================== =================================================
normwise                   ``|J|_2 |x|_2 / |y|_2``                  changes small beside the whole token
componentwise              ``max_i (|J| |x|)_i / |y_i|``            each entry changed by a share of itself, each
                                                                    output judged by itself
mixed                      ``max_i (|J| |x|)_i / max_i |y_i|``      the same changes, outputs judged by the largest
========================== ======================================== =================================================

0/0 is 0: an entry that is zero stays zero under relative changes of itself. Gains are one, biases zero; neither
changes the componentwise number of a norm without a bias. Tokens are the last axis; other axes are a batch. In
float64.

With mean mu, standard deviation s (divisor d), root mean square r, ``z = (x - mu)/s``.

Source: chapter 13; the definitions are those of Higham 2002, and of Gohberg and Koltracht 1993 for the mixed one.
Closed forms and bounds are derived there; those of BHyT and the finite bounds are ours. One entry that outweighs all
others has a module of its own, `residlab.theory.massive_outlier`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, non_negative, positive

# --- The functions and their Jacobians


def layer_norm(x: ArrayLike, eps: float = 0.0) -> FloatArray:
    """Return ``(x - mu) / sqrt(s**2 + eps)``; the mean is subtracted twice, so that it does not limit the accuracy.

    Raises
    ------
    ValueError
        If a token is constant and eps is 0, or an argument is not finite.

    Examples
    --------
    >>> layer_norm([1, 2, 3]).round(4)
    array([-1.2247,  0.    ,  1.2247])
    """
    centred, size = _centred(x, eps)
    return np.asarray(centred / size)


def rms_norm(x: ArrayLike, eps: float = 0.0) -> FloatArray:
    """Return ``x / sqrt(r**2 + eps)``.

    Raises
    ------
    ValueError
        If a token is zero and eps is 0, or an argument is not finite.

    Examples
    --------
    >>> rms_norm([3, 4, 0, 0])
    array([1.2, 1.6, 0. , 0. ])
    """
    x = checked_token(x)
    return np.asarray(x / _size(x, eps, "root mean square"))


def dyt(x: ArrayLike, alpha: float) -> FloatArray:
    """Return ``tanh(alpha x)``.

    Examples
    --------
    >>> dyt([-100, 0, 0.5], alpha=0.5).round(4)
    array([-1.    ,  0.    ,  0.2449])
    """
    return np.asarray(np.tanh(positive("alpha", alpha) * checked_token(x)))


def bhyt(x: ArrayLike, lam: float, kappa: float, *, centred: bool, eps: float = 0.0) -> FloatArray:
    """Return ``tanh(lam x / (kappa sqrt(s**2 + eps) + |mu|))``, or with r for s and without the mean.

    Examples
    --------
    >>> bhyt([3, 4, 0, 0], lam=2, kappa=1, centred=False).round(4)
    array([0.9837, 0.9967, 0.    , 0.    ])
    >>> np.tanh(2 * rms_norm([3, 4, 0, 0])).round(4)
    array([0.9837, 0.9967, 0.    , 0.    ])
    """
    return np.asarray(np.tanh(_argument(x, lam, kappa, centred=centred, eps=eps)))


def layer_norm_jacobian(x: ArrayLike, eps: float = 0.0) -> FloatArray:
    """Return ``(I - 1 1'/d - z z'/d) / sqrt(s**2 + eps)``, (..., d, d), with z as LayerNorm returns it.

    Examples
    --------
    >>> J = layer_norm_jacobian([1.0, 2, 4])
    >>> bool(np.allclose(J @ np.ones(3), 0)), bool(np.allclose(J @ [1.0, 2, 4], 0))  # it sees neither shift nor scale
    (True, True)
    """
    centred, size = _centred(x, eps)
    z = centred / size
    d = z.shape[-1]
    return np.asarray((np.eye(d) - 1 / d - z[..., :, None] * z[..., None, :] / d) / size[..., None])


def rms_norm_jacobian(x: ArrayLike, eps: float = 0.0) -> FloatArray:
    """Return ``(I - y y'/d) / sqrt(r**2 + eps)``, (..., d, d).

    Examples
    --------
    >>> J = rms_norm_jacobian([3.0, 4, 0, 0])
    >>> bool(np.allclose(J @ [3.0, 4, 0, 0], 0))  # it does not see a scale
    True
    """
    x = checked_token(x)
    size = _size(x, eps, "root mean square")
    y = x / size
    d = y.shape[-1]
    return np.asarray((np.eye(d) - y[..., :, None] * y[..., None, :] / d) / size[..., None])


def dyt_jacobian(x: ArrayLike, alpha: float) -> FloatArray:
    """Return ``diag(alpha sech(alpha x)**2)``, (..., d, d).

    Examples
    --------
    >>> dyt_jacobian([0, 1], alpha=0.5).round(4)
    array([[0.5   , 0.    ],
           [0.    , 0.3932]])
    """
    slope = alpha * (1 - dyt(x, alpha) ** 2)
    return np.asarray(slope[..., None] * np.eye(slope.shape[-1]))


def bhyt_jacobian(x: ArrayLike, lam: float, kappa: float, *, centred: bool, eps: float = 0.0) -> FloatArray:
    r"""Return ``diag(sech(z)**2) (lam/D) (I - x g'/D)``, (..., d, d).

    D is the denominator and g its gradient: ``kappa (x - mu)/(d sqrt(s**2 + eps)) + sign(mu)/d``, or
    ``kappa x/(d sqrt(r**2 + eps))``. Where mu = 0 the centred D has a kink; this is the mean of the two sides.

    Examples
    --------
    >>> x, h = np.array([3.0, 4, 1, 0]), 1e-6
    >>> J = bhyt_jacobian(x, 2, 10, centred=True)
    >>> moved = (bhyt(x + [h, 0, 0, 0], 2, 10, centred=True) - bhyt(x, 2, 10, centred=True)) / h
    >>> bool(np.abs(moved - J[:, 0]).max() < 1e-6)
    True
    """
    x = checked_token(x)
    bound, gradient = _denominator(x, kappa, centred=centred, eps=eps)
    z = lam * x / bound
    slope = 1 - np.tanh(z) ** 2
    inner = np.eye(x.shape[-1]) - x[..., :, None] * (gradient / bound)[..., None, :]
    return np.asarray(slope[..., :, None] * lam / bound[..., None] * inner)


# --- Condition numbers of any function


@dataclass(frozen=True)
class ConditionNumbers:
    """The three of a function at a token.

    Attributes
    ----------
    normwise, mixed : array, shape (...)
    entries : array, shape (..., d)
        ``(|J| |x|)_i / |y_i|``, the componentwise number of each output; the largest is `componentwise`.

    Examples
    --------
    >>> x = np.array([3.0, 4, 0, 0])
    >>> numbers = condition_numbers(rms_norm_jacobian(x), x, rms_norm(x))
    >>> round(float(numbers.normwise), 4), round(float(numbers.componentwise), 4), round(float(numbers.mixed), 4)
    (1.0, 1.28, 0.96)
    """

    normwise: FloatArray
    entries: FloatArray
    mixed: FloatArray

    @property
    def componentwise(self) -> FloatArray:
        """The largest of `entries`."""
        return np.asarray(self.entries.max(axis=-1))


def condition_numbers(jacobian: ArrayLike, x: ArrayLike, y: ArrayLike) -> ConditionNumbers:
    """Return all three from the definition: a Jacobian (..., d, d), a token (..., d) and its image (..., d).

    Examples
    --------
    >>> x = np.array([1.0, 2, 3.01])
    >>> numbers = condition_numbers(layer_norm_jacobian(x), x, layer_norm(x))
    >>> numbers.entries.round(1)  # the second entry is almost the mean
    array([  1.3, 800. ,   1.3])
    >>> layer_norm_entries(x).round(1)
    array([  1.3, 800. ,   1.3])
    """
    J, x, y = (np.asarray(each, dtype=np.float64) for each in (jacobian, x, y))
    spread = np.abs(J) @ np.abs(x)[..., None]
    norm = np.linalg.norm(J, 2, axis=(-2, -1)) * np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    entries = quotient(spread[..., 0], np.abs(y))
    return ConditionNumbers(np.asarray(norm), entries, np.asarray(spread[..., 0].max(-1) / np.abs(y).max(-1)))


def mixed(entries: ArrayLike, y: ArrayLike) -> FloatArray:
    """Return the mixed condition number from the componentwise ones of each output, finite, and the outputs.

    Examples
    --------
    >>> float(mixed([2.0, 600.0], y=[1.0, 0.01]))
    6.0
    """
    size = np.abs(np.asarray(y, dtype=np.float64))
    return np.asarray((np.asarray(entries) * size).max(-1) / size.max(-1))


# --- Closed forms, eps = 0


def layer_norm_normwise(x: ArrayLike) -> FloatArray:
    """Return ``sqrt(1 + mu**2/s**2) = r/s``, of LayerNorm for d >= 3. RMSNorm's is 1, for d >= 2.

    J is a projection over s, for d >= 3 not the zero one; with eps > 0 the values stay as they are.

    Examples
    --------
    >>> layer_norm_normwise([[1, 2, 3], [101, 102, 103]]).round(2)
    array([  2.65, 124.93])
    """
    size = _centred(x, 0.0)[1]
    x = checked_token(x)
    checked("the number of entries", x.shape[-1], lambda d: d >= 3, ">= 3")
    unit = np.abs(x).max(-1)
    return np.asarray(unit * np.sqrt(np.mean((x / unit[..., None]) ** 2, -1)) / size[..., 0])


def rms_norm_entries(x: ArrayLike) -> FloatArray:
    """Return ``2 (1 - p_i)``, the componentwise number of each output of RMSNorm, where p is `shares` of energy.

    At most 2, whatever the token. An entry that is zero has 0.

    Examples
    --------
    >>> rms_norm_entries([3, 4, 0, 0])  # 2 (1 - 9/25), 2 (1 - 16/25)
    array([1.28, 0.72, 0.  , 0.  ])
    """
    x = checked_token(x)
    return np.asarray(np.where(x == 0, 0, 2 * (1 - shares(x))))


def layer_norm_entries(x: ArrayLike) -> FloatArray:
    r"""Return the componentwise number of each output of LayerNorm; infinite for an entry equal to the mean.

    .. math:: \frac{|x_i| \bigl(1 - \tfrac{1 + z_i^2}{d}\bigr)
              + \frac1d \sum_{j \ne i} |x_j|\,|1 + z_i z_j|}{|x_i - \mu|} .

    In O(d log d): the sign of ``1 + z_i z_j`` changes once along sorted z, so that two sums of a prefix are enough.

    Examples
    --------
    >>> layer_norm_entries([1, 2, 3]).round(4)
    array([1.3333,    inf, 1.3333])
    """
    centred, size = _centred(x, 0.0)
    x = checked_token(x)
    d = x.shape[-1]
    flat = (np.abs(x).reshape(-1, d), (centred / size).reshape(-1, d))
    total = np.array([_signed_sums(weight, z) for weight, z in zip(*flat, strict=True)]).reshape(x.shape)
    z = centred / size
    # The sum has the term j = i, |x_i| (1 + z_i**2)/d, which is positive; the diagonal of J is not negative.
    spread = np.abs(x) * np.maximum(1 - 2 * (1 + z**2) / d, -(1 + z**2) / d) + total / d
    return quotient(np.maximum(spread, 0), np.abs(centred))


def _signed_sums(weight: FloatArray, z: FloatArray) -> FloatArray:
    """Return ``sum_j w_j |1 + z_i z_j|`` for every i."""
    order = np.argsort(z)
    w, ranked = weight[order], z[order]
    zero = np.zeros(1)
    plain, tilted = np.concatenate([zero, np.cumsum(w)]), np.concatenate([zero, np.cumsum(w * ranked)])
    with np.errstate(divide="ignore"):
        turn = np.where(z == 0, 0, -1 / np.where(z == 0, np.inf, z))
    up = np.searchsorted(ranked, turn)  # entries before it are below -1/z_i
    below = plain[up] + z * tilted[up]
    whole = plain[-1] + z * tilted[-1]
    return np.asarray(np.where(z > 0, whole - 2 * below, np.where(z < 0, 2 * below - whole, plain[-1])))


def dyt_entries(x: ArrayLike, alpha: float) -> FloatArray:
    """Return ``2t / sinh(2t)``, ``t = alpha |x_i|``, of each output of DyT: at most 1. An entry that is zero has 0.

    Examples
    --------
    >>> dyt_entries([0, 0.001, 4], alpha=0.5).round(3)
    array([0.   , 1.   , 0.147])
    """
    x = checked_token(x)
    return np.asarray(np.where(x == 0, 0, elasticity(alpha * x)))


def bhyt_entries(x: ArrayLike, lam: float, kappa: float, *, centred: bool) -> FloatArray:
    r"""Return the componentwise number of each output of BHyT: `elasticity` at its argument, times a sum.

    .. math:: \frac{2z_i}{\sinh 2z_i} \Bigl(\bigl|1 - \tfrac{x_i g_i}{D}\bigr|
              + \sum_{j \ne i} \bigl|\tfrac{x_j g_j}{D}\bigr|\Bigr)

    The sum is ``2 (1 - p_i)`` without the mean, so at most 2, and centred at most `bhyt_centred_bound`.

    Examples
    --------
    >>> bhyt_entries([3, 4, 0, 0], lam=0.01, kappa=10, centred=False).round(4)  # nearly linear: those of RMSNorm
    array([1.28, 0.72, 0.  , 0.  ])
    >>> round(float(bhyt_entries([3, 4, 0, 0], lam=10, kappa=1, centred=False).max()), 6)  # saturated
    0.0
    """
    x = checked_token(x)
    bound, gradient = _denominator(x, kappa, centred=centred, eps=0.0)
    share = x * gradient / bound
    total = np.abs(share).sum(-1, keepdims=True) - np.abs(share) + np.abs(1 - share)
    return np.asarray(np.where(x == 0, 0, elasticity(lam * x / bound) * total))


def elasticity(z: ArrayLike) -> FloatArray:
    """Return ``z sech(z)**2 / tanh(z) = 2z / sinh(2z)``, the condition number of tanh: 1 at 0, then falling.

    Examples
    --------
    >>> elasticity([0, 1, 3]).round(3)
    array([1.   , 0.551, 0.03 ])
    """
    z = np.abs(np.asarray(z, dtype=np.float64))
    safe = np.clip(2 * z, 1e-300, 700)
    return np.asarray(np.where(z < 1e-8, 1.0, safe / np.sinh(safe)))


def bhyt_centred_bound(kappa: float) -> float:
    """Return ``1 + sqrt(kappa**2 + 1) / min(kappa, 1)``, what no componentwise number of centred BHyT exceeds.

    Sharp as s and lam go to 0, but for d finite. Of a token, ``1 + sqrt(kappa**2 + 1) r / (kappa s + |mu|)``.

    Examples
    --------
    >>> round(bhyt_centred_bound(10), 2), round(bhyt_centred_bound(1), 2)
    (11.05, 2.41)
    """
    kappa = float(positive("kappa", kappa))
    return 1 + float(np.hypot(kappa, 1)) / min(kappa, 1.0)


def bhyt_normwise_bound(lam: float, kappa: float, d: int) -> float:
    """Return ``zeta / tanh(zeta)``, ``zeta = lam sqrt(d)/kappa``: what no normwise number of mean-free BHyT exceeds.

    Attained by a token with one entry that is not zero, d >= 2.

    Examples
    --------
    >>> round(bhyt_normwise_bound(lam=2, kappa=10, d=64), 4)
    1.736
    >>> one_hot = np.eye(64)[0]
    >>> J, y = bhyt_jacobian(one_hot, 2, 10, centred=False), bhyt(one_hot, 2, 10, centred=False)
    >>> round(float(condition_numbers(J, one_hot, y).normwise), 4)
    1.736
    """
    zeta = float(positive("lam", lam) / positive("kappa", kappa)) * d**0.5
    return float(zeta / np.tanh(zeta))


def bhyt_normwise(x: ArrayLike, lam: float, kappa: float) -> tuple[FloatArray, FloatArray]:
    """Return a lower and an upper bound on the normwise number of mean-free BHyT, from two slopes of tanh.

    J is ``lam/(kappa r) S P``, S the diagonal of slopes and P a projection that removes one direction: its norm is
    between the second largest and the largest slope (interlacing).

    Examples
    --------
    >>> low, high = bhyt_normwise([3.0, 4, 1, 0], lam=2, kappa=10)
    >>> round(float(low), 4), round(float(high), 4)
    (1.0201, 1.0264)
    """
    x = checked_token(x)
    z = _argument(x, lam, kappa, centred=False, eps=0.0)
    y = np.tanh(z)
    scale = np.linalg.norm(z, axis=-1) / np.linalg.norm(y, axis=-1)
    slopes = np.sort(1 - y**2, axis=-1)
    return np.asarray(scale * slopes[..., -2]), np.asarray(scale * slopes[..., -1])


def dyt_normwise(x: ArrayLike, alpha: float) -> FloatArray:
    """Return the normwise number of DyT, ``alpha max_i sech(alpha x_i)**2 |x|_2 / |y|_2``: no number bounds it.

    Examples
    --------
    >>> dyt_normwise([[10, 10, 10], [10, 10, 0]], alpha=1).round(4)  # an entry near 0 beside saturated ones
    array([ 0., 10.])
    """
    y = dyt(x, alpha)
    slope = alpha * (1 - y**2).max(-1)
    return np.asarray(slope * np.linalg.norm(checked_token(x), axis=-1) / np.linalg.norm(y, axis=-1))


def shares(x: ArrayLike) -> FloatArray:
    """Return ``x_i**2 / sum_j x_j**2``.

    Examples
    --------
    >>> shares([3, 4, 0, 0])
    array([0.36, 0.64, 0.  , 0.  ])
    """
    x = checked_token(x)
    unit = positive("the largest magnitude of a token", np.abs(x).max(-1, keepdims=True))
    square = (x / unit) ** 2
    return np.asarray(square / square.sum(-1, keepdims=True))


# --- Changes of any size


def centring_entries(x: ArrayLike) -> FloatArray:
    """Return ``(|x_i| (1 - 2/d) + mean|x|) / |x_i - mu|``, the componentwise number of ``x - mu``.

    LayerNorm's differs from it by at most `layer_norm_normwise`, in either direction, entry by entry.

    Examples
    --------
    >>> centring_entries([1, 2, 4]).round(4)
    array([2. , 9. , 2.2])
    """
    x = checked_token(x)
    centred, _ = _centred(x, 0.0)
    size = np.abs(x)
    return quotient(size * (1 - 2 / x.shape[-1]) + size.mean(-1, keepdims=True), np.abs(centred))


def layer_norm_change(x: ArrayLike, change: float) -> FloatArray:
    r"""Return by what share of itself an output of LayerNorm changes at most if entries change by ``<= change``.

    .. math:: \varepsilon \, \frac{(|x_i| + \overline{|x|})/|x_i - \mu| + r/s}{1 - \varepsilon r/s}

    No first-order argument: any change with ``change * r/s < 1``; infinite beyond, and for an entry equal to the mean.

    Examples
    --------
    >>> layer_norm_change([1, 2, 4], change=0.01).round(4)
    array([0.0472, 0.1545, 0.0605])
    """
    x = checked_token(x)
    centred, _ = _centred(x, 0.0)
    size = np.abs(x)
    worst = quotient(size + size.mean(-1, keepdims=True), np.abs(centred))
    ratio = layer_norm_normwise(x)[..., None]
    room = 1 - float(non_negative_number("change", change)) * ratio
    return np.asarray(np.where(room > 0, change * (worst + ratio) / np.where(room > 0, room, 1), np.inf))


def rms_norm_change(change: float) -> float:
    """Return the same for RMSNorm, any token: ``2 change / (1 - change)``, change < 1.

    Examples
    --------
    >>> round(rms_norm_change(0.01), 4)
    0.0202
    """
    change = float(checked("change", change, lambda c: (c >= 0) & (c < 1), ">= 0 and < 1"))
    return 2 * change / (1 - change)


# --- Shared


def non_negative_number(name: str, value: ArrayLike) -> FloatArray:
    """Return ``value`` as float64 if it is finite and not negative, else raise ValueError.

    Examples
    --------
    >>> float(non_negative_number("eps", 1e-6))
    1e-06
    >>> non_negative_number("eps", -1)
    Traceback (most recent call last):
        ...
    ValueError: eps must be finite and >= 0; got -1.0
    """
    return checked(name, value, non_negative, "finite and >= 0")


def checked_token(x: ArrayLike) -> FloatArray:
    """Return tokens (..., d), d >= 2, as float64, else raise ValueError.

    Examples
    --------
    >>> checked_token([1, 2])
    array([1., 2.])
    >>> checked_token([1])
    Traceback (most recent call last):
        ...
    ValueError: x must have shape (..., d), d >= 2; got (1,)
    """
    x = checked("x", x, np.isfinite, "finite")
    if x.ndim == 0 or x.shape[-1] < 2:
        raise ValueError(f"x must have shape (..., d), d >= 2; got {x.shape}")
    return x


def _size(x: FloatArray, eps: float, name: str) -> FloatArray:
    """Return ``sqrt(mean x**2 + eps)``, (..., 1); no square leaves float64's range."""
    return positive(f"with eps = 0 the {name} of a token", np.hypot(_root_mean_square(x), _root(eps)))


def _root_mean_square(x: FloatArray) -> FloatArray:
    unit = np.abs(x).max(-1, keepdims=True)
    unit = np.where(unit == 0, 1, unit)
    return np.asarray(unit * np.sqrt(np.mean((x / unit) ** 2, -1, keepdims=True)))


def _root(eps: float) -> float:
    return float(np.sqrt(non_negative_number("eps", eps)))


def _less_mean(x: FloatArray) -> FloatArray:
    """Return x less its mean, twice: of equal entries not even rounding is left."""
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred - centred.mean(-1, keepdims=True))


def _centred(x: ArrayLike, eps: float) -> tuple[FloatArray, FloatArray]:
    centred = _less_mean(checked_token(x))
    return centred, _size(centred, eps, "standard deviation")


def _denominator(x: FloatArray, kappa: float, *, centred: bool, eps: float) -> tuple[FloatArray, FloatArray]:
    """Return BHyT's denominator D, (..., 1), and its gradient, (..., d)."""
    kappa = float(positive("kappa", kappa))
    d = x.shape[-1]
    if not centred:
        size = _size(x, eps, "root mean square")
        return kappa * size, kappa * x / (d * size)
    mean, deviation = x.mean(-1, keepdims=True), _less_mean(x)
    size = np.hypot(_root_mean_square(deviation), _root(eps))
    bound = positive("the denominator of BHyT", kappa * size + np.abs(mean))
    slope = np.where(size == 0, 0, deviation / np.where(size == 0, 1, size))
    return bound, (kappa * slope + np.sign(mean)) / d


def _argument(x: ArrayLike, lam: float, kappa: float, *, centred: bool, eps: float) -> FloatArray:
    x = checked_token(x)
    return np.asarray(positive("lam", lam) * x / _denominator(x, kappa, centred=centred, eps=eps)[0])


def quotient(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return above/below, both not negative; 0/0 is 0, and anything else over 0 infinite.

    Examples
    --------
    >>> quotient(np.array([0.0, 1, 1]), np.array([0.0, 0, 2]))
    array([0. , inf, 0.5])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(below == 0, np.where(above == 0, 0.0, np.inf), above / below))
