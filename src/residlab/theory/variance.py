"""The variance that leaves a bounded hyperbolic tangent: bounds for every law, their extremal laws, Gaussian values.

BHyT (Byun et al., arXiv 2601.09719) computes ``y = tanh(alpha x)`` with ``alpha = lam / (kappa s + |mu|)``, for a token
``x`` of mean ``mu``, standard deviation ``s`` (population) and root mean square ``r``, ``r**2 = s**2 + mu**2``. What
holds for every law holds for the entries of every token. The *mean-free* form of the authors' code is the case
``mean = 0, std = r``. All functions are vectorised with numpy broadcasting, in float64. Chapter 3 draws them.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.theory.chebyshev import input_scale
from residlab.theory.validation import checked, non_negative, positive

FloatArray = NDArray[np.float64]
Bound = Literal["sharp", "linear"]


def variance_bound(
    mean: ArrayLike, std: ArrayLike, lam: ArrayLike, kappa: ArrayLike, *, bound: Bound = "sharp"
) -> FloatArray:
    """Bound the variance of ``tanh(alpha X)`` over all laws of ``X`` with this mean and standard deviation.

    With ``a = lam std / (kappa std + |mean|) <= lam / kappa``: linear, ``a**2`` (the paper's; tanh is 1-Lipschitz);
    sharp, ``tanh(a)**2``, attained at ``mean = 0`` by ``+-std``.

    Proof of the sharp form. Let ``Z = alpha X``, ``Y = tanh Z``, ``M = E Y``, ``v = Var Y``. By Cauchy and Schwarz
    ``Var Z >= Cov(Z, Y)**2 / v``, so ``Cov(artanh Y, Y) >= sqrt(v) artanh sqrt(v)`` is enough. It is the mean of
    ``h(y) = (y - M) artanh y``, and ``h''' = (8 y - M (2 + 6 y**2)) / (1 - y**2)**3`` vanishes once in (-1, 1), so that
    ``h`` minus a quadratic has at most four zeros with multiplicity. Given ``M`` and ``v``, the law of least ``E h``
    sits where ``h`` touches a quadratic from above, each time doubly: on two points. For masses ``p, q`` there,
    ``w = sqrt(v) / (2 sqrt(p q)) >= sqrt(v)`` is half their distance, ``artanh y_2 - artanh y_1 >= 2 artanh w``, hence
    ``Cov >= v artanh(w) / w >= sqrt(v) artanh sqrt(v)``.

    Parameters
    ----------
    mean, std, lam, kappa : array_like, broadcast together
        ``std >= 0``, ``lam > 0``, ``kappa > 0``; ``std`` and ``mean`` not both zero.
    bound : {"sharp", "linear"}

    Raises
    ------
    ValueError
        If an entry leaves its range, or ``bound`` is unknown.

    Source: arXiv 2601.09719, variance bound (linear); chapter 3 (sharp, ours).

    Examples
    --------
    >>> float(variance_bound(mean=0, std=1, lam=2, kappa=1, bound="linear"))
    4.0
    >>> round(float(variance_bound(mean=0, std=1, lam=2, kappa=1)), 3)
    0.929
    >>> float(np.var(np.tanh(2 * np.array([-1, 1]))).round(3))  # attained: the token -1, 1
    0.929
    """
    return _squared(_over_input_bound(mean, std, lam, kappa, with_mean=False), bound)


def second_moment_bound(
    mean: ArrayLike, std: ArrayLike, lam: ArrayLike, kappa: ArrayLike, *, bound: Bound = "sharp"
) -> FloatArray:
    """Bound ``E tanh(alpha X)**2`` over all laws of ``X`` with this mean and standard deviation.

    With ``a = lam r / (kappa std + |mean|)``, ``r**2 = std**2 + mean**2``: linear, ``a**2``; sharp, ``tanh(a)**2``, for
    ``tanh(sqrt(t))**2`` is concave (Jensen), and `extremal_law` attains it for every mean. Mean-free (``mean = 0``):
    ``tanh(lam/kappa)**2``, whatever the token. Centred, ``a <= lam/kappa`` iff ``|mean|/std <= mean_tolerance(kappa)``;
    as ``std`` falls to 0, ``a`` tends to ``lam``: a constant token saturates.

    A gain multiplies ``y``. For every token the factor is ``max(gamma**2)``; ``mean(gamma**2)`` needs a gain that does
    not depend on the token's entries.

    Parameters and errors as in `variance_bound`. Source: arXiv 2601.09719 (mean-free, linear); chapter 3.

    Examples
    --------
    >>> x = np.array([3.0, -1, 0, 2])
    >>> float(np.mean(np.tanh(2 * x / (4 * x.std() + abs(x.mean()))) ** 2).round(4))
    0.1934
    >>> float(second_moment_bound(x.mean(), x.std(), lam=2, kappa=4).round(4))
    0.2215
    """
    return _squared(_over_input_bound(mean, std, lam, kappa, with_mean=True), bound)


def mean_tolerance(kappa: ArrayLike) -> FloatArray:
    """Return the largest ``|mean| / std`` for which a mean does not raise `second_moment_bound` above its value at 0.

    ``(std**2 + mean**2) / (kappa std + |mean|)**2 <= 1/kappa**2`` iff ``|mean|/std <= 2 kappa / (kappa**2 - 1)``;
    always (inf) if ``kappa <= 1``. Raises ValueError if ``kappa`` is not positive and finite. Source: chapter 3 (ours).

    Examples
    --------
    >>> mean_tolerance([1, 2, 10]).round(4)
    array([   inf, 1.3333, 0.202 ])
    >>> second_moment_bound(mean=[0, 1.3, 1.4], std=1, lam=2, kappa=2).round(4)  # 4/3 is tolerated
    array([0.58  , 0.5762, 0.5877])
    """
    kappa = positive("kappa", kappa)
    above_one = kappa > 1
    excess = np.where(above_one, (kappa - 1) * (kappa + 1), 1.0)
    return np.where(above_one, 2 * kappa / excess, np.inf)[()]


def extremal_law(mean: ArrayLike, std: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return atoms and masses, shape (..., 2), of the law that attains `second_moment_bound`.

    Atoms ``-r, r``, ``r = sqrt(std**2 + mean**2)``, masses ``(1 -+ mean/r) / 2``: it has this mean and standard
    deviation, and one modulus. Raises ValueError if ``std`` is negative, an entry not finite, or both are zero.

    Examples
    --------
    >>> atoms, masses = extremal_law(mean=3, std=4)
    >>> atoms, masses
    (array([-5.,  5.]), array([0.2, 0.8]))
    >>> mean = float(masses @ atoms)
    >>> round(mean, 12), round(float(masses @ atoms**2) - mean**2, 12)  # mean 3, variance 16
    (3.0, 16.0)
    """
    mean, std = _moments(mean, std)
    r = np.hypot(mean, std)
    right = (1 + mean / r) / 2
    return np.stack([-r, r], axis=-1), np.stack([1 - right, right], axis=-1)


def gaussian_second_moment(ratio: ArrayLike) -> FloatArray:
    """Return ``E tanh(ratio G)**2`` for a standard Gaussian ``G``: a Gaussian token, mean-free, ``ratio = lam/kappa``.

    ``ratio**2 - 2 ratio**4 + O(ratio**6)`` for small ratios, ``1 - sqrt(2/pi)/ratio + O(ratio**-3)`` for large ones.
    Trapezoidal rule, exact to about 1e-15 relative for every ratio. For one token of ``d`` entries, whose own RMS is
    divided out, the value is larger by O(1/d). Raises ValueError if ``ratio`` is negative or not finite.
    Source: chapter 3.

    Examples
    --------
    >>> gaussian_second_moment([0.1, 1, 10]).round(4)
    array([0.0098, 0.3943, 0.9205])
    >>> float(second_moment_bound(0, 1, lam=1, kappa=1).round(4))  # what no law exceeds at ratio 1
    0.58
    """
    ratio = checked("ratio", ratio, non_negative, "finite and >= 0")[..., None]
    # Step 1/4 in the narrower of the variables g and ratio g: both integrands are analytic in a strip of width pi/2,
    # and what is cut off at 20 steps of 1 is below 1e-17.
    step = 0.25 / np.maximum(ratio, 1)
    g = step * np.arange(-80, 81)
    weight = step * np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
    square = np.tanh(ratio * g) ** 2
    inside: FloatArray = np.sum(weight * square, axis=-1)
    outside: FloatArray = np.sum(weight / np.cosh(ratio * g) ** 2, axis=-1)
    return np.where(ratio[..., 0] <= 1, inside, 1 - outside)[()]


def _over_input_bound(
    mean: ArrayLike, std: ArrayLike, lam: ArrayLike, kappa: ArrayLike, *, with_mean: bool
) -> FloatArray:
    """Return ``lam size / (kappa std + |mean|)`` with ``size`` the standard deviation or the root mean square."""
    mean, std = _moments(mean, std)
    size = np.hypot(mean, std) if with_mean else std
    return input_scale(mean, std, lam, kappa) * size


def _squared(argument: FloatArray, bound: str) -> FloatArray:
    allowed = get_args(Bound)
    if bound not in allowed:
        raise ValueError(f"bound must be one of {', '.join(map(repr, allowed))}; got {bound!r}")
    return np.tanh(argument) ** 2 if bound == "sharp" else argument**2


# --- Validation


def _moments(mean: ArrayLike, std: ArrayLike) -> tuple[FloatArray, FloatArray]:
    mean = checked("mean", mean, np.isfinite, "finite")
    std = checked("std", std, non_negative, "finite and >= 0")
    mean, std = np.broadcast_arrays(mean, std)
    if np.any((mean == 0) & (std == 0)):
        raise ValueError("mean and std must not both be 0 (a zero token has no scale); got mean 0.0, std 0.0")
    return mean, std
