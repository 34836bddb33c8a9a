"""What recorded runs say of kurtosis by depth: the numbers of claims B2 and B5 for chapter 8; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from residlab.errors import ResidlabError
from residlab.experiments.norm_results import FloatArray, stream

if TYPE_CHECKING:
    from residlab.experiments.record import Record

Over = Literal["pooled", "channel", "token"]
_QUANTITIES: Mapping[str, str] = {
    "pooled": "kurtosis_pooled",
    "channel": "kurtosis_by_channel",
    "token": "kurtosis_by_token",
}
RISE = 0.5
"""From which rank correlation with depth on a kurtosis is said to rise."""


def kurtosis(record: Record, over: Over = "pooled", tokens: str = "rest") -> FloatArray:
    """Return the excess kurtosis of the stream in front of each normalisation, (looks, 2 depth + 1).

    Parameters
    ----------
    record
        A run that was looked at with the probe ``stream``.
    over
        All entries, or the mean over channels, or over tokens, of each one's own.
    tokens
        ``all``, ``first`` or ``rest``.

    Raises
    ------
    ResidlabError
        If ``over`` is another word, or the run was not probed.
    """
    if over not in _QUANTITIES:
        raise ResidlabError(f"over must be one of {', '.join(_QUANTITIES)}; got {over!r}")
    return stream(record, _QUANTITIES[over], tokens)


def rises(profile: ArrayLike) -> bool:
    """Return whether a kurtosis by depth ends above where it began and goes up with depth, by ranks, `RISE` or more.

    Raises
    ------
    ResidlabError
        If it has fewer than three values, or one is not finite.
    """
    from scipy.stats import spearmanr

    values = np.asarray(profile, dtype=np.float64)
    if values.ndim != 1 or values.size < 3 or not np.isfinite(values).all():
        raise ResidlabError(f"a profile must be three finite values or more; got {values.tolist()!r}")
    if values[-1] <= values[0]:
        return False
    return float(spearmanr(np.arange(values.size), values).statistic) >= RISE


def worst(record: Record) -> float:
    """Return the largest absolute pooled kurtosis at any look and site but the embedding, with and without token 0."""
    return float(max(np.abs(kurtosis(record, "pooled", tokens)[:, 1:]).max() for tokens in ("all", "rest")))


def peak(record: Record) -> float:
    """Return the largest pooled kurtosis after the last step at any site but the embedding, without token 0."""
    return float(kurtosis(record)[-1, 1:].max())


def by_kind(records: Iterable[Record]) -> dict[tuple[bool, str], list[Record]]:
    """Return (with a residual stream?, optimizer) -> runs in the order of their seeds."""
    found: dict[tuple[bool, str], list[Record]] = {}
    for record in sorted(records, key=lambda each: each.seed):
        kind = (bool(record.config["model"]["residual"]), str(record.config["optimizer"]["kind"]))
        found.setdefault(kind, []).append(record)
    return found


def gaussian_without_residual(records: Iterable[Record], optimizer: str = "kl-shampoo") -> dict[str, float]:
    """Return the numbers of claim B5's predicate, from the stage ``main`` of the experiment ``residual-free``.

    ``recorded`` is 1 where both kinds of model were run, else 0, and so are all numbers. ``free_least`` and
    ``free_most`` are over the seeds' `worst`, ``residual_least`` and ``residual_most`` over their `peak`.
    """
    runs = by_kind(records)
    free, residual = ([*runs.get((stays, optimizer), [])] for stays in (False, True))
    if not free or not residual:
        return dict.fromkeys(("recorded", "free_least", "free_most", "residual_least", "residual_most"), 0.0)
    off, up = [worst(record) for record in free], [peak(record) for record in residual]
    return {
        "recorded": 1.0,
        "free_least": min(off),
        "free_most": max(off),
        "residual_least": min(up),
        "residual_most": max(up),
    }
