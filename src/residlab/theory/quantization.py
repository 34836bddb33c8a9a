r"""Signal-to-noise ratio of a uniform quantizer: the crest-factor law, floors that always hold, where the law fails.

A tensor of n entries, root mean square r and largest magnitude P, is rounded to the nearest of the levels
``k Delta``, ``|k| <= 2**(b-1) - 1``, with ``Delta = 2 P / (2**b - 2)``. With ``C = P/r``, the crest factor, and errors
e,

.. math:: \mathrm{NMSE} = \frac{\sum e^2}{\sum x^2}, \qquad \mathrm{SQNR} = -10 \log_{10} \mathrm{NMSE} .

The *law* puts ``Delta**2 / 12`` for the mean squared error. The *floors* assume nothing: ``|e| <= Delta/2``, and,
since 0 is a level and P is one, ``|e| <= |x|`` with no error at all at the peak. All functions broadcast, in float64.

Source: chapter 11. The law is folklore after Bennett 1948; the floor by the peak's share and the bound on the law's
error are ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.validation import FloatArray, checked, positive

LAW_CONSTANT = 2 / (3 * 3**0.5)
"""Of `law_error_bound`: ``2 / (3 sqrt(3))``."""


def steps(bits: ArrayLike) -> FloatArray:
    """Return ``2**b - 2``, the steps from ``-P`` to ``P``.

    Raises
    ------
    ValueError
        If a number of bits is below 2 or not finite.

    Examples
    --------
    >>> steps([2, 4, 8])
    array([  2.,  14., 254.])
    """
    return np.asarray(2 ** checked("bits", bits, lambda b: np.isfinite(b) & (b >= 2), "finite and >= 2") - 2)


def decibels(ratio: ArrayLike) -> FloatArray:
    """Return ``20 log10`` of a ratio of sizes, such as a crest factor.

    Raises
    ------
    ValueError
        If a ratio is not finite and positive.

    Examples
    --------
    >>> decibels([1, 10]), round(float(decibels(2)), 2)  # a bit is worth 6.02 dB
    (array([ 0., 20.]), 6.02)
    """
    return np.asarray(20 * np.log10(positive("ratio", ratio)))


def nmse(sqnr: ArrayLike) -> FloatArray:
    """Return ``10**(-SQNR/10)``, SQNR in dB.

    Examples
    --------
    >>> float(nmse(20))
    0.01
    """
    return np.asarray(10 ** (-np.asarray(sqnr, dtype=np.float64) / 10))


def law_sqnr(bits: ArrayLike, crest: ArrayLike) -> FloatArray:
    r"""Return the crest-factor law, in dB: ``10 log10(3) + 20 log10(2**b - 2) - 20 log10(C)``.

    It follows from a mean squared error of ``Delta**2/12``, and holds as far as `law_error_bound` says.

    Parameters
    ----------
    bits
        At least 2.
    crest
        ``C >= 1``.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> law_sqnr(bits=8, crest=[4, 40]).round(2)  # a peak ten times as large costs 20 dB
    array([40.83, 20.83])
    """
    return np.asarray(10 * np.log10(3) + decibels(steps(bits) / _crest(crest)))


def sqnr_floor(bits: ArrayLike, crest: ArrayLike, entries: ArrayLike | None = None) -> FloatArray:
    r"""Return what SQNR is never below, in dB: the largest of the floors.

    ``20 log10(2**b - 2) - 20 log10(C)``, from ``|e| <= Delta/2``; 0, from ``|e| <= |x|``; and, for n entries,
    ``-10 log10(1 - C**2/n)``, from ``|e| <= |x|`` and an exact peak: one entry that has nearly all the energy is kept
    whole. The first is lowered by 4.77 dB from `law_sqnr`; the last is attained where all others are rounded to 0.

    Parameters
    ----------
    bits, crest
        As for `law_sqnr`.
    entries : optional
        ``n >= C**2``. At ``n = C**2`` all other entries are zero, and the floor is infinite.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> sqnr_floor(bits=4, crest=[4, 100]).round(2)
    array([10.88,  0.  ])
    >>> round(float(sqnr_floor(4, crest=100, entries=10001)), 2)  # one entry has nearly all the energy
    40.0
    """
    crest = _crest(crest)
    floor: FloatArray = np.maximum(decibels(steps(bits) / crest), 0)
    if entries is None:
        return floor
    n = np.asarray(entries, dtype=np.float64)
    checked("entries", n - crest**2, lambda rest: rest >= -1e-9 * n, "at least C**2, by which they are given less")
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(floor, -10 * np.log10(np.clip(1 - crest**2 / n, 0, 1))))


def law_error_bound(step: ArrayLike, variation: ArrayLike) -> FloatArray:
    r"""Return by what share of ``Delta**2/12`` the mean squared error can differ from it: ``2/(3 sqrt(3)) V Delta``.

    For a random x whose density f has total variation V over the real line, rounded to the multiples of Delta. Over a
    cell the mean of ``e**2 - Delta**2/12`` is 0, so that f may be replaced there by its distance to the middle of its
    range, at most half its oscillation; the integral of ``|e**2 - Delta**2/12|`` is ``8/3 (Delta**2/12)**(3/2)``, and
    oscillations of all cells add up to V at most. A unimodal density has ``V = 2 max f``: 0.80 / sigma for the
    Gaussian, 1.41 / sigma for the Laplace distribution. An atom has infinite variation: there the law says nothing.

    Raises
    ------
    ValueError
        If an argument is not finite and positive.

    Examples
    --------
    >>> law_error_bound(step=[0.1, 1], variation=0.8).round(3)  # a Gaussian of standard deviation 1
    array([0.031, 0.308])
    """
    return np.asarray(LAW_CONSTANT * positive("variation", variation) * positive("step", step))


def gaussian_peak(entries: ArrayLike) -> FloatArray:
    """Return the median of the largest magnitude of n Gaussian entries over their standard deviation.

    ``sqrt(2) erfcinv(1 - 2**(-1/n))``, which grows like ``sqrt(2 ln n)``.

    Raises
    ------
    ValueError
        If there is less than one entry.

    Examples
    --------
    >>> gaussian_peak([100, 10**6]).round(2)
    array([2.7 , 4.96])
    """
    from scipy.special import erfcinv

    return np.asarray(np.sqrt(2) * erfcinv(_beyond(entries)))


def laplace_peak(entries: ArrayLike) -> FloatArray:
    """Return the same for Laplace entries: ``-ln(1 - 2**(-1/n)) / sqrt(2)``, which grows like ``ln(n) / sqrt(2)``.

    Examples
    --------
    >>> laplace_peak([100, 10**6]).round(2)
    array([ 3.52, 10.03])
    """
    return np.asarray(-np.log(_beyond(entries)) / np.sqrt(2))


def _beyond(entries: ArrayLike) -> FloatArray:
    """Return ``1 - 2**(-1/n)``, the probability of exceeding the median of the largest of n."""
    n = checked("entries", entries, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")
    return np.asarray(-np.expm1(-np.log(2) / n))


def bounding_bits(largest: ArrayLike) -> FloatArray:
    r"""Return ``log2(P / tanh P)``, the most bits that a tanh in front of a quantizer can buy.

    Let phi be odd, above zero non-decreasing and concave, ``phi'(0) = 1``. Then ``phi(x)/x`` falls with ``|x|``: for
    entries up to P the root mean square of ``phi(x)`` lies between ``phi(P)/P`` and 1 times that of x, while the peak
    is ``phi(P)``: the crest factor of ``phi(x)`` is at most that of x, and at least ``phi(P)/P`` times it.

    Parameters
    ----------
    largest : array_like, > 0
        P, the largest magnitude of the tanh's argument.

    Raises
    ------
    ValueError
        If it is not positive.

    Source: chapter 18 (ours).

    Examples
    --------
    >>> bounding_bits([0.2, 2, 20]).round(3)
    array([0.019, 1.053, 4.322])
    """
    P = positive("largest", largest)
    return np.asarray(np.log2(P / np.tanh(P)))[()]


def rounded(x: ArrayLike, bits: ArrayLike, peak: ArrayLike) -> FloatArray:
    """Return x on the levels of b bits for a peak P, ties to even, clipped to ``[-P, P]``: the definition, in float64.

    Raises
    ------
    ValueError
        If the peak is not positive, or bits are out of range.

    Examples
    --------
    >>> rounded([-1, -0.3, 0.1, 0.5, 2], bits=3, peak=1).round(4)  # multiples of 1/3, clipped
    array([-1.    , -0.3333,  0.    ,  0.6667,  1.    ])
    """
    half = steps(bits) / 2
    delta = positive("peak", peak) / half
    level = np.clip(np.rint(np.asarray(x, dtype=np.float64) / delta), -half, half)
    return np.asarray(level * delta)


def measured_sqnr(x: ArrayLike, bits: ArrayLike) -> FloatArray:
    """Return the SQNR in dB of the entries along the last axis, the largest magnitude the peak; infinite without loss.

    Raises
    ------
    ValueError
        If all entries are zero.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal(100_000)
    >>> crest = np.abs(x).max() / np.sqrt(np.mean(x**2))
    >>> round(float(measured_sqnr(x, 8)), 2), round(float(law_sqnr(8, crest)), 2)
    (39.35, 39.37)
    """
    x = np.asarray(x, dtype=np.float64)
    peak = positive("the largest magnitude", np.abs(x).max(axis=-1, keepdims=True))
    b = np.asarray(bits, dtype=np.float64)
    error = rounded(x, b[..., None] if b.ndim else b, peak) - x
    with np.errstate(divide="ignore"):
        signal, noise = (np.log10(np.sum((values / peak) ** 2, axis=-1)) for values in (x, error))
        return np.asarray(10 * (signal - noise))


def _crest(crest: ArrayLike) -> FloatArray:
    return checked("crest", crest, lambda c: np.isfinite(c) & (c >= 1 - 1e-12), "finite and >= 1")
