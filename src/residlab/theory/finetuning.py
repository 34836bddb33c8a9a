"""What fine-tuning does to what was known: two quadratic losses with common axes, and how far AdamW can move a weight.

Around weights that have learnt an old text, let the losses on the old text and on a new one be

    ``F = 1/2 sum_i g_i d_i**2`` (forgotten) and ``R = 1/2 sum_i h_i (a_i - d_i)**2`` (remaining),

with ``d`` the movement, ``g_i, h_i >= 0`` the curvatures along axis i, and ``a`` where the new text's optimum lies.
Along each axis the movement is a share of the way, ``d_i = s_i a_i``.

Gradient descent on R with a constant rate goes ``s_i = 1 - (1 - rate h_i)**steps``. Half the rate for twice as many
steps goes nearly as far: for ``x = rate h_i`` in [0, 1], less far by at most ``x/4 exp(x - 1)`` (`halving_bound`). The
least F for a given R has ``s_i = h_i / (h_i + price g_i)``, price the Lagrange multiplier.

Axes are the last ones of arrays, in float64. Source: chapter 7; the shape of the quadratic model is standard.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.validation import checked, non_negative

FloatArray = NDArray[np.float64]


def descended(rate: ArrayLike, steps: ArrayLike, curvature: ArrayLike) -> FloatArray:
    """Return the share of the way that gradient descent goes, ``1 - (1 - rate curvature)**steps``.

    Raises
    ------
    ValueError
        If an argument is negative or not finite, or ``rate curvature`` is more than 2, where descent does not converge.

    Examples
    --------
    >>> descended(rate=0.5, steps=[0, 1, 2], curvature=1)
    array([0.  , 0.5 , 0.75])
    """
    rate, steps, curvature = (
        checked(name, value, non_negative, "finite and >= 0")
        for name, value in (("rate", rate), ("steps", steps), ("curvature", curvature))
    )
    x = checked("rate curvature", rate * curvature, lambda v: v <= 2, "at most 2")
    # (1 - x)**steps loses x below the unit roundoff, steps times over; log1p keeps it.
    with np.errstate(divide="ignore", invalid="ignore"):
        near = -np.expm1(steps * np.log1p(-np.minimum(x, 0.5)))
    return np.where(x <= 0.5, near, 1 - (1 - x) ** steps)


def cheapest(price: ArrayLike, new: ArrayLike, old: ArrayLike) -> FloatArray:
    """Return the shares of the way that forget least for what they learn, ``new / (new + price old)``; 0 where 0/0.

    Raises
    ------
    ValueError
        If an argument is negative or not finite.

    Examples
    --------
    >>> cheapest(price=[0, 1, 100], new=1, old=1).round(4)
    array([1.    , 0.5   , 0.0099])
    """
    price, new, old = (
        checked(name, value, non_negative, "finite and >= 0")
        for name, value in (("price", price), ("new", new), ("old", old))
    )
    total = new + price * old
    return np.asarray(np.divide(new, total, out=np.zeros_like(total), where=total > 0))


def remaining_and_forgotten(
    share: ArrayLike, new: ArrayLike, old: ArrayLike, distance: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return R and F, summed over the last axis, for shares of the way along each axis.

    Parameters
    ----------
    share
        ``s_i``.
    new, old
        Curvatures of the new and the old loss.
    distance
        ``a_i``, from the start to the optimum of the new loss.

    Examples
    --------
    >>> remaining_and_forgotten(share=[1, 0.5], new=[1, 1], old=[2, 0], distance=[1, 1])
    (array(0.125), array(1.))
    """
    share, new, old, distance = (np.asarray(v, dtype=np.float64) for v in (share, new, old, distance))
    left = np.sum(new * (distance * (1 - share)) ** 2, axis=-1) / 2
    lost = np.sum(old * (distance * share) ** 2, axis=-1) / 2
    return np.asarray(left), np.asarray(lost)


def halving_bound(x: ArrayLike) -> FloatArray:
    """Return the most that half the rate for twice the steps lags behind, ``x/4 exp(x - 1)``, as a share of the way.

    With ``a = (1 - x/2)**2`` and ``b = 1 - x``, ``a**t - b**t <= t a**(t-1) (a - b) <= t exp(-x (t - 1)) x**2 / 4``,
    and ``t x exp(-t x) <= 1/e``.

    Parameters
    ----------
    x : array_like, in [0, 1]
        Rate times curvature.

    Raises
    ------
    ValueError
        If ``x`` is out of range.

    Examples
    --------
    >>> halving_bound([0, 0.5, 1])
    array([0.        , 0.07581633, 0.25      ])
    >>> x, steps = 0.5, 2
    >>> bool((1 - x / 2) ** (2 * steps) - (1 - x) ** steps <= halving_bound(x))
    True
    """
    x = checked("x", x, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
    return np.asarray(x / 4 * np.exp(x - 1))


def adam_step_bounds(steps: int, beta1: float = 0.9, beta2: float = 0.95) -> FloatArray:
    r"""Return the largest updates, in units of the rate, that Adam can make at steps ``1 ... steps``, eps = 0.

    An update is ``m / sqrt(v)``, with ``m = sum_k w_k g_k`` and ``v = sum_k u_k g_k**2`` the bias-corrected averages of
    gradients k = 0 (now), ..., t - 1 steps ago, ``w_k = (1 - beta1) beta1**k / (1 - beta1**t)`` and ``u_k`` alike. By
    Cauchy and Schwarz

    .. math:: \frac{|m|}{\sqrt v} \le \Bigl(\sum_k \frac{w_k^2}{u_k}\Bigr)^{1/2},

    which gradients in proportion to ``w_k / u_k`` attain. A constant gradient makes updates of 1.

    Raises
    ------
    ValueError
        If there is no step, or a beta is outside (0, 1).

    Examples
    --------
    >>> adam_step_bounds(1000)[[0, 9, -1]].round(4)  # a constant gradient makes 1
    array([1.    , 1.0115, 1.165 ])
    """
    if steps < 1 or not 0 < beta1 < 1 or not 0 < beta2 < 1:
        raise ValueError(f"steps must be >= 1 and betas in (0, 1); got {steps}, {beta1!r}, {beta2!r}")
    t = np.arange(1, steps + 1, dtype=np.float64)
    sums = np.cumsum((beta1**2 / beta2) ** (t - 1))
    front = (1 - beta1) ** 2 / (1 - beta2) * (1 - beta2**t) / (1 - beta1**t) ** 2
    return np.asarray(np.sqrt(front * sums))
