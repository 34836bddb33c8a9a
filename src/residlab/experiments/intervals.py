"""Intervals of paired differences: what a few seeds, shared by all methods, can say about the methods."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.errors import ResidlabError


@dataclass(frozen=True, eq=False)
class PairedDifferences:
    """Differences between the rows of a table, with one half-width for all.

    Attributes
    ----------
    differences
        ``(rows, rows)``: ``[i, j]`` is the mean of row i less that of row j.
    half_width
        Of the interval of each difference between two rows.
    residual
        Standard deviation of the residuals, ``degrees`` in the denominator.
    degrees
        Degrees of freedom, ``(rows - 1) (columns - 1)``.
    confidence
        Of each interval by itself, not of all at once.

    Examples
    --------
    >>> found = paired_differences([[1.0, 2.0, 3.0], [1.1, 2.1, 3.4]])
    >>> found.degrees, found.differences.round(3)
    (2, array([[ 0. , -0.2],
           [ 0.2,  0. ]]))
    """

    differences: NDArray[np.float64]
    half_width: float
    residual: float
    degrees: int
    confidence: float

    def interval(self, row: int, other: int) -> tuple[float, float]:
        """Return the interval of the mean of ``row`` less the mean of ``other``."""
        centre = float(self.differences[row, other])
        half = self.half_width if row != other else 0.0
        return centre - half, centre + half


def paired_differences(values: ArrayLike, *, confidence: float = 0.95) -> PairedDifferences:
    r"""Return the differences between methods, measured on the same seeds, and their intervals.

    The model is additive, ``y_ij = mu + a_i + b_j + e_ij``, with independent normal errors of one variance. Least
    squares gives ``a_i - a_k = mean_j y_ij - mean_j y_kj`` and

    .. math:: s^2 = \frac{\sum_{ij} (y_{ij} - \bar y_{i\cdot} - \bar y_{\cdot j} + \bar y)^2}{(m - 1)(n - 1)}, \qquad
              a_i - a_k \pm t_{(m-1)(n-1)} \, s \sqrt{2 / n}

    for m methods and n seeds. For ratios give logarithms, and take the exponential of what comes back. Two methods give
    the interval of the paired t test.

    Parameters
    ----------
    values
        Methods x seeds, computed in float64.
    confidence
        In (0, 1).

    Raises
    ------
    ResidlabError
        If there are fewer than two methods or seeds, a value is not finite, or the confidence is out of range.

    Examples
    --------
    >>> found = paired_differences([[1.0, 2.0, 3.0], [1.1, 2.1, 3.4]])  # two methods, three seeds
    >>> low, high = found.interval(1, 0)
    >>> round(low, 3), round(high, 3)
    (-0.23, 0.63)
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ResidlabError(f"values must be methods x seeds, at least two of each; got the shape {table.shape}")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        raise ResidlabError(f"values must be finite; method {row}, seed {column} is {table[row, column]}")
    if not 0 < confidence < 1:
        raise ResidlabError(f"confidence must be in (0, 1); got {confidence!r}")
    from scipy.special import stdtrit

    methods, seeds = table.shape
    rows = table.mean(axis=1)
    centred = table - table.mean()  # so that a common level costs the residuals no digits
    residuals = centred - centred.mean(axis=1, keepdims=True) - centred.mean(axis=0, keepdims=True)
    degrees = (methods - 1) * (seeds - 1)
    residual = float(np.sqrt(np.square(residuals).sum() / degrees))
    quantile = float(stdtrit(degrees, (1 + confidence) / 2))
    half_width = quantile * residual * (2 / seeds) ** 0.5
    return PairedDifferences(rows[:, None] - rows[None, :], half_width, residual, degrees, float(confidence))
