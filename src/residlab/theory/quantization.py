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
    """
    return np.asarray(2 ** checked("bits", bits, lambda b: np.isfinite(b) & (b >= 2), "finite and >= 2") - 2)


def decibels(ratio: ArrayLike) -> FloatArray:
    """Return ``20 log10`` of a ratio of sizes, such as a crest factor.

    Raises
    ------
    ValueError
        If a ratio is not finite and positive.
    """
    return np.asarray(20 * np.log10(positive("ratio", ratio)))


def nmse(sqnr: ArrayLike) -> FloatArray:
    """Return ``10**(-SQNR/10)``, SQNR in dB."""
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
    """
    return np.asarray(LAW_CONSTANT * positive("variation", variation) * positive("step", step))


def gaussian_peak(entries: ArrayLike) -> FloatArray:
    """Return the median of the largest magnitude of n Gaussian entries over their standard deviation.

    ``sqrt(2) erfcinv(1 - 2**(-1/n))``, which grows like ``sqrt(2 ln n)``.

    Raises
    ------
    ValueError
        If there is less than one entry.
    """
    from scipy.special import erfcinv

    return np.asarray(np.sqrt(2) * erfcinv(_beyond(entries)))


def laplace_peak(entries: ArrayLike) -> FloatArray:
    """Return the same for Laplace entries: ``-ln(1 - 2**(-1/n)) / sqrt(2)``, which grows like ``ln(n) / sqrt(2)``."""
    return np.asarray(-np.log(_beyond(entries)) / np.sqrt(2))


def _beyond(entries: ArrayLike) -> FloatArray:
    """Return ``1 - 2**(-1/n)``, the probability of exceeding the median of the largest of n."""
    n = checked("entries", entries, lambda v: np.isfinite(v) & (v >= 1), "finite and >= 1")
    return np.asarray(-np.expm1(-np.log(2) / n))


def rounded(x: ArrayLike, bits: ArrayLike, peak: ArrayLike) -> FloatArray:
    """Return x on the levels of b bits for a peak P, ties to even, clipped to ``[-P, P]``: the definition, in float64.

    Raises
    ------
    ValueError
        If the peak is not positive, or bits are out of range.
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
