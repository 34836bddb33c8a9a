"""Statistics of the residual stream, gathered as it flows by: float64, mergeable, by site and by class of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

TOKEN_CLASSES: Mapping[str, slice] = MappingProxyType(
    {"all": slice(None), "first": slice(0, 1), "rest": slice(1, None)}
)
"""Positions of a sequence: all of them, token 0 alone, all but token 0."""


@dataclass
class Moments:
    """Pooled moments of numbers that come in batches, from which any grouping gives the same answer up to rounding.

    *Pooled*: every entry of every token counts as one number, with one common mean. Kept are the count, the mean and
    the central sums ``m_k = sum (x - mean)**k``, never raw moments, whose difference cancels when the mean is large. A
    batch is centred twice in float64, and merged by Pébay's formulas. The mean is kept as a fixed origin and a drift
    from it, so that the difference of two means near 1e12 keeps its digits.

    Parameters
    ----------
    count : int
        How many numbers were seen.
    origin, drift : float
        Their mean is ``origin + drift``.
    m2, m3, m4 : float
        Their central sums.
    largest : float
        The largest absolute value.

    Notes
    -----
    Source: Pébay 2008, Formulas for robust, one-pass parallel computation of covariances and arbitrary-order
    statistical moments, equations 2.1 and 2.2; chapter 1.

    Examples
    --------
    >>> whole, half = Moments().update(torch.arange(6.0)), Moments().update(torch.arange(3.0))
    >>> whole.mean, round(whole.variance, 4), half.merge(Moments().update(torch.arange(3.0, 6.0))).mean
    (2.5, 2.9167, 2.5)
    """

    count: int = 0
    origin: float = 0.0
    drift: float = 0.0
    m2: float = 0.0
    m3: float = 0.0
    m4: float = 0.0
    largest: float = 0.0

    def update(self, x: Tensor) -> Moments:
        """Take in a batch of any shape and floating-point dtype, upcast to float64 first; return itself.

        Raises
        ------
        ValueError
            If the batch is empty, or holds NaN or infinity.
        """
        if not x.numel():
            raise ValueError("a batch without entries has no moments")
        x = x.detach().double().flatten()
        if not torch.isfinite(x).all():
            raise ValueError("activations hold NaN or infinity")
        centre = x.mean()
        deviations = x - centre
        drift = deviations.mean()
        deviations = deviations - drift
        square = deviations.square()
        sums = (square.sum(), (square * deviations).sum(), square.square().sum(), x.abs().max())
        m2, m3, m4, largest = (float(s) for s in sums)
        return self.merge(Moments(x.numel(), float(centre), float(drift), m2, m3, m4, largest))

    def merge(self, other: Moments) -> Moments:
        """Take in what another one has seen; return itself."""
        if not other.count:
            return self
        if not self.count:
            self.origin = other.origin
        a, b, n = self.count, other.count, self.count + other.count
        delta = (other.origin - self.origin) + (other.drift - self.drift)
        step = delta / n
        m4 = (
            self.m4
            + other.m4
            + delta * step**3 * a * b * (a * a - a * b + b * b)
            + 6 * step**2 * (a * a * other.m2 + b * b * self.m2)
            + 4 * step * (a * other.m3 - b * self.m3)
        )
        m3 = self.m3 + other.m3 + delta * step**2 * a * b * (a - b) + 3 * step * (a * other.m2 - b * self.m2)
        self.m2 += other.m2 + delta * step * a * b
        self.m3, self.m4 = m3, m4
        self.drift += step * b
        self.count, self.largest = n, max(self.largest, other.largest)
        return self

    @property
    def mean(self) -> float:
        """Mean of all numbers; 0 before the first."""
        return self.origin + self.drift

    @property
    def variance(self) -> float:
        """Population variance, ``m2 / count``."""
        return self.m2 / self._counted()

    @property
    def rms(self) -> float:
        """Root mean square, ``sqrt(mean**2 + variance)``."""
        return math.hypot(self.mean, math.sqrt(self.variance))

    @property
    def excess_kurtosis(self) -> float:
        """Pooled excess kurtosis, ``count m4 / m2**2 - 3``; NaN when all numbers are equal."""
        n = self._counted()
        return n * (self.m4 / self.m2) / self.m2 - 3 if self.m2 else math.nan

    def _counted(self) -> int:
        if not self.count:
            raise ValueError("nothing was counted yet")
        return self.count


def merged(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all parts together; the parts stay as they are.

    Examples
    --------
    >>> merged([Moments().update(torch.tensor([1.0])), Moments().update(torch.tensor([3.0]))]).mean
    2.0
    """
    whole = Moments()
    for part in parts:
        whole.merge(part)
    return whole


@dataclass
class CoMoments:
    """Pooled second moments of pairs of numbers that come in batches: variances, covariance, correlation.

    Central sums in float64 as in `Moments`, merged by the same formulas.

    Parameters
    ----------
    count : int
        How many pairs were seen.
    mean_x, mean_y : float
        Means.
    xx, yy, xy : float
        Central sums of squares and products.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2, 3])
    >>> round(CoMoments().update(x, -2 * x).correlation, 12)
    -1.0
    """

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    def update(self, x: Tensor, y: Tensor) -> CoMoments:
        """Take in a batch of pairs, two tensors of one shape; return itself.

        Raises
        ------
        ValueError
            If the shapes differ, or the batch is empty or not finite.
        """
        if x.shape != y.shape or not x.numel():
            raise ValueError(f"pairs need two tensors of one shape, not empty: got {tuple(x.shape)}, {tuple(y.shape)}")
        x, y = x.detach().double().flatten(), y.detach().double().flatten()
        if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
            raise ValueError("activations hold NaN or infinity")
        mean_x, mean_y = x.mean(), y.mean()
        mean_x, mean_y = mean_x + (x - mean_x).mean(), mean_y + (y - mean_y).mean()
        x, y = x - mean_x, y - mean_y
        sums = (mean_x, mean_y, x.square().sum(), y.square().sum(), (x * y).sum())
        return self.merge(CoMoments(x.numel(), *(float(s) for s in sums)))

    def merge(self, other: CoMoments) -> CoMoments:
        """Take in what another one has seen; return itself."""
        if not other.count:
            return self
        n = self.count + other.count
        weight = self.count * (other.count / n)
        dx, dy = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        self.xx += other.xx + dx * dx * weight
        self.yy += other.yy + dy * dy * weight
        self.xy += other.xy + dx * dy * weight
        self.mean_x += dx * (other.count / n)
        self.mean_y += dy * (other.count / n)
        self.count = n
        return self

    @property
    def variance_x(self) -> float:
        """Population variance of the first of each pair."""
        return self.xx / self._counted()

    @property
    def variance_y(self) -> float:
        """Population variance of the second of each pair."""
        return self.yy / self._counted()

    @property
    def correlation(self) -> float:
        """Correlation coefficient; NaN when one of the two does not vary."""
        self._counted()
        scale = math.sqrt(self.xx) * math.sqrt(self.yy)
        return self.xy / scale if scale else math.nan

    def _counted(self) -> int:
        if not self.count:
            raise ValueError("nothing was counted yet")
        return self.count


@dataclass
class StreamProbe:
    """Moments of activations at named sites, for each class of tokens: an observer for `observe_inputs`.

    ``with observe_inputs(sites, probe): model(batch)``, as often as there are batches. If the sites are the inputs of
    the normalisations of a Pre-LN model in their order, the difference of two consecutive sites is what the branch
    between them adds; `branches` then holds its second moments together with the stream it is added to.

    Parameters
    ----------
    classes : mapping of str to slice
        Positions along the axis of tokens, by default `TOKEN_CLASSES`. Sequences must not be padded.

    Attributes
    ----------
    moments : dict of str to dict of str to Moments
        By site, then by class.
    branches : dict of str to dict of str to CoMoments
        By the site *after* the branch, then by class: pairs (stream before, branch).

    Examples
    --------
    >>> from residlab.probes.activations import observe_inputs
    >>> norm = torch.nn.LayerNorm(4)
    >>> probe = StreamProbe()
    >>> with observe_inputs({"norm": norm}, probe):
    ...     y = norm(torch.full((1, 3, 4), 2.0))
    ...
    >>> {name: moments.rms for name, moments in probe.moments["norm"].items()}
    {'all': 2.0, 'first': 2.0, 'rest': 2.0}
    """

    classes: Mapping[str, slice] = field(default_factory=lambda: TOKEN_CLASSES)
    moments: dict[str, dict[str, Moments]] = field(default_factory=dict)
    branches: dict[str, dict[str, CoMoments]] = field(default_factory=dict)
    _previous: Tensor | None = field(default=None, repr=False)

    def __call__(self, site: str, x: Tensor) -> None:
        """Take in the activations of one site.

        Parameters
        ----------
        site : str
            Its name.
        x : Tensor, shape (..., tokens, d)
            Of any floating-point dtype. With fewer tokens than a class begins at, that class sees nothing.

        Raises
        ------
        ValueError
            If ``x`` has no axis of tokens, or holds NaN or infinity.
        """
        if x.ndim < 2:
            raise ValueError(f"activations must have shape (..., tokens, d), got {tuple(x.shape)}")
        x = x.detach().double()
        begins = not self.moments or site == next(iter(self.moments))
        before = None if begins else self._previous
        self._previous = x
        for name, positions in self.classes.items():
            seen = x[..., positions, :]
            moments = self.moments.setdefault(site, {}).setdefault(name, Moments())
            if not seen.numel():
                continue
            moments.update(seen)
            if before is not None and before.shape == x.shape:
                pairs = self.branches.setdefault(site, {}).setdefault(name, CoMoments())
                pairs.update(before[..., positions, :], seen - before[..., positions, :])
