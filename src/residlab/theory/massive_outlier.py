r"""LayerNorm beside one massive outlier: a token of one entry M and d - 1 others, its background, of mean m.

LayerNorm's componentwise condition number is small there, provided that no entry of the background can be the mean:
``delta = d max |x_i - m| / |M - m| < 1``. Then `MassiveOutlier.layer_norm_bound` holds; from 1 on nothing does.

Source: chapter 13, where both are derived; the claim and its regime M >> b d are of Budzinskiy et al. (2025), arXiv
2503.10251, the constants and the hypothesis ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from residlab.theory.conditioning import checked_token, quotient
from residlab.theory.validation import FloatArray, checked, positive


@dataclass(frozen=True)
class MassiveOutlier:
    """A token as one large entry M, its outlier, and d - 1 others, its background, of mean m.

    Attributes
    ----------
    outlier : array, shape (...)
        M, with its sign.
    background : array, shape (..., d - 1)

    Examples
    --------
    >>> token = massive_outlier([1000, 1, 2, 3])
    >>> float(token.outlier), float(token.mean), float(token.gap), round(float(token.delta), 4)
    (1000.0, 2.0, 998.0, 0.004)
    """

    outlier: FloatArray
    background: FloatArray

    @property
    def width(self) -> int:
        """The number of entries, d."""
        return int(self.background.shape[-1]) + 1

    @property
    def mean(self) -> FloatArray:
        """Mean of the background, m."""
        return np.asarray(self.background.mean(-1))

    @property
    def spread(self) -> FloatArray:
        """The largest ``|x_i - m|`` of the background, w."""
        return np.asarray(self._deviations.max(-1))

    @property
    def largest(self) -> FloatArray:
        """The largest ``|x_i|`` of the background, b."""
        return np.asarray(np.abs(self.background).max(-1))

    @property
    def average(self) -> FloatArray:
        """The mean ``|x_i|`` of the background, a."""
        return np.asarray(np.abs(self.background).mean(-1))

    @property
    def gap(self) -> FloatArray:
        """``|M - m|``."""
        return np.abs(self.outlier - self.mean)

    @property
    def delta(self) -> FloatArray:
        """``d w / |M - m|``. Below 1 no entry of the background can be the mean; from 1 on one can."""
        return quotient(self.width * self.spread, self.gap)

    @property
    def ratio(self) -> FloatArray:
        """``|M| / (d b)``: what the literature asks to be large."""
        return quotient(np.abs(self.outlier), self.width * self.largest)

    @property
    def layer_norm_limit(self) -> FloatArray:
        r"""LayerNorm's componentwise number to leading order in ``1/|M|``, the background fixed.

        .. math:: \frac{d}{|M - m|} \Bigl(a + \max_i \bigl(\tfrac{d - 3}{d - 1} |x_i| + |x_i - m|\bigr)\Bigr)
        """
        d = self.width
        size = (d - 3) / (d - 1) * np.abs(self.background) + self._deviations
        return quotient(d * (self.average + size.max(-1)), self.gap)

    @property
    def layer_norm_bound(self) -> FloatArray:
        r"""What LayerNorm's componentwise number never exceeds where ``delta < 1``; infinite elsewhere.

        .. math:: \frac{d}{\Delta (1 - \delta)} \Bigl(a \bigl(1 + \tfrac{\delta(2 + \delta)}{d}\bigr)
                  + \frac{|M| v}{\Delta^2}
                  + \max_i \bigl((1 - \tfrac2d) |x_i| + \tfrac{|M|}{\Delta} |x_i - m|\bigr)\Bigr)

        with v the variance of the background and Delta the gap.
        """
        delta, d = self.delta, self.width
        inside = delta < 1
        gap, delta = np.where(inside, self.gap, 1), np.where(inside, delta, 0)
        tilt = np.abs(self.outlier) / gap
        size = (1 - 2 / d) * np.abs(self.background) + tilt[..., None] * self._deviations
        variance = np.mean((self._deviations / gap[..., None]) ** 2, -1)
        above = self.average * (1 + delta * (2 + delta) / d) + np.abs(self.outlier) * variance + size.max(-1)
        return np.asarray(np.where(inside, d / gap * above / (1 - delta), np.inf))

    @property
    def _deviations(self) -> FloatArray:
        return np.asarray(np.abs(self.background - self.mean[..., None]))


def massive_outlier(x: ArrayLike) -> MassiveOutlier:
    """Split tokens (..., d), d >= 3, into the entry of the largest magnitude, the first of them, and its background.

    Examples
    --------
    >>> massive_outlier([1, -50, 2, 3]).background
    array([1., 2., 3.])
    """
    x = checked_token(x)
    d = x.shape[-1]
    checked("the number of entries", d, lambda n: n >= 3, ">= 3")
    at = np.abs(x).argmax(-1, keepdims=True)
    outlier = np.take_along_axis(x, at, -1)[..., 0]
    return MassiveOutlier(outlier, x[np.arange(d) != at].reshape(*x.shape[:-1], d - 1))


def equal_background(outlier: float, background: float, d: int) -> float:
    """Return LayerNorm's componentwise number at ``(M, b, ..., b)``: ``2 |b| d (d - 2) / (|M - b| (d - 1))``, exactly.

    Raises
    ------
    ValueError
        If M = b, or d < 3.

    Examples
    --------
    >>> round(equal_background(1000, 1, d=4), 6)
    0.005339
    >>> from residlab.theory.conditioning import layer_norm_entries
    >>> round(float(layer_norm_entries([1000, 1, 1, 1]).max()), 6)
    0.005339
    """
    checked("the number of entries", d, lambda n: n >= 3, ">= 3")
    gap = float(positive("|M - b|", abs(outlier - background)))
    return 2 * abs(background) * d * (d - 2) / (gap * (d - 1))
