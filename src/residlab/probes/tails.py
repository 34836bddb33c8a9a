"""How far the entries of tokens lie from their mean, counted as activations stream by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_STEPS = 4  # thresholds are multiples of 1/4: multiplying by 4 is exact, so that no entry falls on the wrong side
_TOP = 64  # the last threshold kept; every larger deviation is counted there
_BINS = _STEPS * _TOP + 1


@dataclass
class DeviationCounter:
    """Counts of normalised deviations ``|x_i - mu| / s`` (centred) or ``|x_i| / r`` (mean-free), a token at a time.

    ``mu`` and ``s`` (population) or ``r`` (root mean square) are those of the token itself, in float64. A token that is
    constant (mean-free: zero) has no deviations and counts as 0.

    Parameters
    ----------
    kappa : float
        Threshold for which counts by token and by channel are kept: entries strictly beyond it.
    form : {"centred", "mean-free"}
        What deviations are measured from.
    skip : int
        Leave out the first ``skip`` positions of every sequence (1 leaves out token 0).

    Attributes
    ----------
    tokens : int
        Tokens seen.
    largest : float
        The largest normalised deviation.
    most : int
        The most entries of one token beyond ``kappa``.
    by_channel : ndarray of int64, shape (d,)
        How many tokens had each channel beyond ``kappa``.
    mean_over_std : list of float
        For each update, the median over tokens of ``|mu| / s`` (``inf`` where ``s`` vanishes).

    Examples
    --------
    >>> counter = DeviationCounter(kappa=3)
    >>> x = torch.zeros(1, 1, 100)
    >>> x[0, 0, 7] = 1.0
    >>> _ = counter.update(x)
    >>> counter.most, round(counter.largest, 4), int(counter.by_channel.argmax())  # sqrt(99), at channel 7
    (1, 9.9499, 7)
    """

    kappa: float
    form: Literal["centred", "mean-free"] = "centred"
    skip: int = 0
    tokens: int = 0
    largest: float = 0.0
    most: int = 0
    by_channel: NDArray[np.int64] | None = None
    mean_over_std: list[float] = field(default_factory=list)
    _reached: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64), repr=False)
    _most_reached: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, np.int64), repr=False)

    def update(self, x: Tensor) -> Tensor:
        """Count one batch and return its signed normalised deviations.

        Parameters
        ----------
        x : Tensor, shape (..., tokens, d)
            Activations, of any floating-point dtype.

        Returns
        -------
        Tensor, float64, shape (..., tokens - skip, d)

        Raises
        ------
        ValueError
            If ``x`` has fewer than two axes, is empty, or holds NaN or infinity.
        """
        if x.ndim < 2 or x.numel() == 0:
            raise ValueError(f"activations must have shape (..., tokens, d) and not be empty, got {tuple(x.shape)}")
        if x.shape[-2] <= self.skip:
            raise ValueError(f"activations must have more than skip = {self.skip} tokens, got {tuple(x.shape)}")
        x = x[..., self.skip :, :].double()
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        spread = centred.square().mean(-1, keepdim=True).sqrt()
        if not torch.isfinite(spread).all():
            raise ValueError("activations hold NaN or infinity, or their square overflows float64")
        scale = spread if self.form == "centred" else x.square().mean(-1, keepdim=True).sqrt()
        deviations = (centred if self.form == "centred" else x) / torch.where(scale > 0, scale, torch.inf)
        size = deviations.abs()
        beyond = size > self.kappa
        reached = _counts_at_least(size.flatten(0, -2))
        self._reached += reached.sum(0).numpy(force=True)
        self._most_reached = np.maximum(self._most_reached, reached.amax(0).numpy(force=True))
        by_channel = beyond.flatten(0, -2).sum(0).numpy(force=True)
        self.by_channel = by_channel if self.by_channel is None else self.by_channel + by_channel
        self.tokens += size[..., 0].numel()
        self.largest = max(self.largest, float(size.max()))
        self.most = max(self.most, int(beyond.sum(-1).max()))
        self.mean_over_std.append(float(torch.where(spread > 0, mean.abs() / spread, torch.inf).median()))
        return deviations

    @property
    def share_beyond(self) -> float:
        """Share of all entries strictly beyond ``kappa``."""
        self._check_counted()
        assert self.by_channel is not None
        return float(self.by_channel.sum()) / (self.tokens * len(self.by_channel))

    def survival(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return thresholds 0, 1/4, 1/2, … and the share of entries at or beyond each."""
        self._check_counted()
        return THRESHOLDS, self._reached / self._reached[0]

    def most_at_least(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return thresholds 0, 1/4, 1/2, … and the most entries of one token at or beyond each."""
        self._check_counted()
        return THRESHOLDS, self._most_reached.copy()

    def _check_counted(self) -> None:
        if not self.tokens:
            raise ValueError("nothing was counted yet")


THRESHOLDS = np.arange(_BINS) / _STEPS
THRESHOLDS.setflags(write=False)


def _counts_at_least(size: Tensor) -> Tensor:
    """Return, for each row of deviations, how many are at or beyond each threshold: shape (rows, thresholds)."""
    rows = len(size)
    bins = (size * _STEPS).floor_().clamp_(max=_BINS - 1).to(torch.int64)
    bins += torch.arange(rows, device=size.device)[:, None] * _BINS
    counts = torch.bincount(bins.flatten(), minlength=rows * _BINS).view(rows, _BINS)
    return counts.flip(1).cumsum(1).flip(1)
