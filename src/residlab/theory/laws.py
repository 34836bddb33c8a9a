"""Standard laws, scaled to mean 0 and variance 1, to set beside Chebyshev's bound: densities, cdfs and tails.

Each ``*_tail`` is two-sided, ``P(|X| >= kappa)`` for ``kappa >= 0``, and raises ValueError for a ``kappa`` that is
negative or not finite. Densities and distribution functions take any real ``t`` (and pass NaN on). All functions are
vectorised with numpy broadcasting, in float64. Chapter 2 draws them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class StandardLaw:
    """A symmetric law of mean 0 and variance 1: its density, distribution function and two-sided tail.

    Examples
    --------
    >>> law = LAWS["laplace"]
    >>> law.label, round(float(law.tail(2)), 4)
    ('Laplace', 0.0591)
    """

    label: str
    density: Callable[[ArrayLike], FloatArray]
    cdf: Callable[[ArrayLike], FloatArray]
    tail: Callable[[ArrayLike], FloatArray]


def uniform_density(t: ArrayLike) -> FloatArray:
    """Return ``1 / (2 sqrt(3))`` on ``|t| <= sqrt(3)``, and 0 elsewhere.

    Examples
    --------
    >>> uniform_density([0, 1.7, 1.8]).round(4)
    array([0.2887, 0.2887, 0.    ])
    """
    t = _real(t)
    return np.where(np.abs(t) <= sqrt(3), 1 / (2 * sqrt(3)), 0 * t)[()]


def uniform_cdf(t: ArrayLike) -> FloatArray:
    """Return ``P(X <= t) = clip(1/2 + t / (2 sqrt(3)), 0, 1)``.

    Examples
    --------
    >>> uniform_cdf([-2, 0, 1]).round(4)
    array([0.    , 0.5   , 0.7887])
    """
    return np.clip(0.5 + _real(t) / (2 * sqrt(3)), 0, 1)


def uniform_tail(kappa: ArrayLike) -> FloatArray:
    """Return ``P(|X| >= kappa) = max(0, 1 - kappa / sqrt(3))``.

    Examples
    --------
    >>> uniform_tail([0, 1, 2]).round(4)  # nothing beyond sqrt(3)
    array([1.    , 0.4226, 0.    ])
    """
    return np.maximum(0, 1 - _threshold(kappa) / sqrt(3))


def gaussian_density(t: ArrayLike) -> FloatArray:
    """Return ``exp(-t**2 / 2) / sqrt(2 pi)``.

    Examples
    --------
    >>> gaussian_density([0, 1]).round(4)
    array([0.3989, 0.242 ])
    """
    return np.exp(-(_real(t) ** 2) / 2) / sqrt(2 * np.pi)


def gaussian_cdf(t: ArrayLike) -> FloatArray:
    """Return ``P(X <= t) = erfc(-t / sqrt(2)) / 2``.

    Examples
    --------
    >>> gaussian_cdf([-1.96, 0, 1.96]).round(3)
    array([0.025, 0.5  , 0.975])
    """
    from scipy.special import ndtr

    return np.asarray(ndtr(_real(t)))[()]


def gaussian_tail(kappa: ArrayLike) -> FloatArray:
    """Return ``P(|X| >= kappa) = erfc(kappa / sqrt(2))``.

    Examples
    --------
    >>> gaussian_tail([1, 2, 3]).round(4)
    array([0.3173, 0.0455, 0.0027])
    """
    from scipy.special import erfc

    return np.asarray(erfc(_threshold(kappa) / sqrt(2)))[()]


def laplace_density(t: ArrayLike) -> FloatArray:
    """Return ``exp(-sqrt(2) |t|) / sqrt(2)``.

    Examples
    --------
    >>> laplace_density([0, 1]).round(4)
    array([0.7071, 0.1719])
    """
    return np.exp(-sqrt(2) * np.abs(_real(t))) / sqrt(2)


def laplace_cdf(t: ArrayLike) -> FloatArray:
    """Return ``P(X <= t)``: ``exp(sqrt(2) t) / 2`` for ``t < 0``, and ``1 - exp(-sqrt(2) t) / 2`` from there on.

    Examples
    --------
    >>> laplace_cdf([-1, 0, 1]).round(4)
    array([0.1216, 0.5   , 0.8784])
    """
    t = _real(t)
    beyond = np.exp(-sqrt(2) * np.abs(t)) / 2
    return np.where(t < 0, beyond, 1 - beyond)[()]


def laplace_tail(kappa: ArrayLike) -> FloatArray:
    """Return ``P(|X| >= kappa) = exp(-sqrt(2) kappa)``.

    Examples
    --------
    >>> laplace_tail([1, 2, 3]).round(4)
    array([0.2431, 0.0591, 0.0144])
    """
    return np.exp(-sqrt(2) * _threshold(kappa))


def student_t_density(t: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Return ``(1 + t**2/(nu-2))**(-(nu+1)/2) / (sqrt(nu-2) B(1/2, nu/2))``, ``nu > 2`` degrees of freedom.

    The density of ``X = T sqrt((nu - 2) / nu)``, with ``T`` Student's. Raises ValueError for ``nu <= 2``, where ``T``
    has infinite variance and Chebyshev's inequality says nothing.

    Examples
    --------
    >>> student_t_density(0, nu=[3, 5, 1e6]).round(4)  # the last is Gaussian, 1 / sqrt(2 pi)
    array([0.6366, 0.4901, 0.3989])
    """
    from scipy.special import beta

    t, nu = _real(t), _degrees_of_freedom(nu)
    decay = np.exp(-(nu + 1) / 2 * np.log1p(t**2 / (nu - 2)))
    return np.asarray(decay / (np.sqrt(nu - 2) * beta(0.5, nu / 2)))[()]


def student_t_cdf(t: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Return ``P(X <= t)`` for the ``X`` of `student_t_density`; raises ValueError for ``nu <= 2``.

    Examples
    --------
    >>> student_t_cdf([-2, 0, 2], nu=5).round(4)
    array([0.0247, 0.5   , 0.9753])
    """
    from scipy.special import stdtr

    t, nu = _real(t), _degrees_of_freedom(nu)
    return np.asarray(stdtr(nu, t * np.sqrt(nu / (nu - 2))))[()]


def student_t_tail(kappa: ArrayLike, nu: ArrayLike) -> FloatArray:
    """Return ``P(|X| >= kappa)`` for the ``X`` of `student_t_density`; raises ValueError for ``nu <= 2``.

    Examples
    --------
    >>> student_t_tail(5, nu=[3, 5, 30]).round(6)
    array([3.239e-03, 1.328e-03, 1.400e-05])
    """
    return 2 * student_t_cdf(-_threshold(kappa), nu)


def student_t3_density(t: ArrayLike) -> FloatArray:
    """Return ``2 / (pi (1 + t**2)**2)``: `student_t_density` at ``nu = 3``.

    Examples
    --------
    >>> float(student_t3_density(0)), float(2 / np.pi)
    (0.6366197723675814, 0.6366197723675814)
    """
    return 2 / (np.pi * (1 + _real(t) ** 2) ** 2)


def student_t3_cdf(t: ArrayLike) -> FloatArray:
    """Return ``P(X <= t) = 1/2 + (arctan(t) + t / (1 + t**2)) / pi``: `student_t_cdf` at ``nu = 3``.

    Examples
    --------
    >>> student_t3_cdf([-1, 0, 1]).round(4)
    array([0.0908, 0.5   , 0.9092])
    """
    t = _real(t)
    return 0.5 + (np.arctan(t) + t / (1 + t**2)) / np.pi


def student_t3_tail(kappa: ArrayLike) -> FloatArray:
    """Return ``P(|X| >= kappa) = (2/pi) (arctan(1/kappa) - kappa / (1 + kappa**2))``: `student_t_tail` at ``nu = 3``.

    It decays as ``4 / (3 pi kappa**3)``; cancellation leaves a relative error of about ``kappa**2`` roundoffs.

    Examples
    --------
    >>> student_t3_tail([2, 10]).round(5)
    array([0.04052, 0.00042])
    >>> round(float(10**3 * student_t3_tail(10) * 3 * np.pi / 4), 2)  # it decays as 4 / (3 pi kappa**3)
    0.99
    """
    kappa = _threshold(kappa)
    return 2 / np.pi * (np.arctan2(1, kappa) - kappa / (1 + kappa**2))


LAWS: Mapping[str, StandardLaw] = MappingProxyType(
    {
        "uniform": StandardLaw("uniform", uniform_density, uniform_cdf, uniform_tail),
        "gaussian": StandardLaw("Gaussian", gaussian_density, gaussian_cdf, gaussian_tail),
        "laplace": StandardLaw("Laplace", laplace_density, laplace_cdf, laplace_tail),
        "student_t3": StandardLaw("Student t, ν = 3", student_t3_density, student_t3_cdf, student_t3_tail),
    }
)
"""The laws of chapter 2 that have a density, lightest tail first. Its extremal law has atoms: `three_point_law`."""


def _real(t: ArrayLike) -> FloatArray:
    return np.asarray(t, dtype=np.float64)


def _threshold(kappa: ArrayLike) -> FloatArray:
    kappa = _real(kappa)
    wrong = ~(np.isfinite(kappa) & (kappa >= 0))
    if wrong.any():
        raise ValueError(f"kappa must be finite and >= 0; got {float(kappa[wrong].flat[0])!r}")
    return kappa


def _degrees_of_freedom(nu: ArrayLike) -> FloatArray:
    nu = _real(nu)
    wrong = ~(np.isfinite(nu) & (nu > 2))
    if wrong.any():
        raise ValueError(f"nu must be finite and > 2, for a finite variance; got {float(nu[wrong].flat[0])!r}")
    return nu
