"""The explorable over chapter 18's table: trained networks in an arithmetic, and which of their numbers foretold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.stats import rankdata

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, INK, MUTED, VERMILION

FloatArray = NDArray[np.float64]
MEASURES: Mapping[str, str] = {
    "sqnr": "SQNR at 8 bits, in bits",
    "crest": "crest factor, log₂",
    "kurtosis": "kurtosis of the stream, log₂ of its share of 3",
    "kurtosis-rest": "the same without token 0",
    "stream": "growth of the stream, log₂",
    "error": "growth of a small error, log₂",
    "loss": "loss at full precision, bits per byte",
}
"""What may foretell how much an arithmetic adds to the loss; the order of `MeasuredNetworks.measures`."""
ROW = 31
"""Pixels for each network."""


@dataclass(frozen=True, eq=False)
class MeasuredNetworks:
    """Kinds of trained networks and what was measured of them.

    Parameters
    ----------
    titles : mapping of str to str
        Name of each kind, as it stands in an address, to its title.
    labels : sequence of str
        A short title of each, for an axis.
    arithmetics : mapping of str to str
        Name of each arithmetic to its title.
    residual : array, shape (kinds,), float32
        1 with residual connections, else 0.
    losses : array, shape (kinds, seeds, 1 + arithmetics), float32
        Held-out loss in bits per byte at full precision and in each arithmetic; NaN where a seed is not there, or where
        an arithmetic gave nothing finite.
    measures : array, shape (kinds, measures), float32
        As `MEASURES` has them, means over seeds.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together.
    """

    titles: Mapping[str, str]
    labels: Sequence[str]
    arithmetics: Mapping[str, str]
    residual: NDArray[np.float32]
    losses: NDArray[np.float32]
    measures: NDArray[np.float32]

    def __post_init__(self) -> None:
        kinds, wanted = len(self.titles), 1 + len(self.arithmetics)
        fits = self.losses.ndim == 3 and self.losses.shape[::2] == (kinds, wanted) and self.residual.shape == (kinds,)
        if not (fits and self.measures.shape == (kinds, len(MEASURES)) and len(self.labels) == kinds >= 2):
            raise ResidlabError(
                f"losses have the shape {self.losses.shape}, measures {self.measures.shape}, residual "
                f"{self.residual.shape}: ({kinds}, seeds, {wanted}), ({kinds}, {len(MEASURES)}) and ({kinds},) are "
                f"wanted for {kinds} kinds with {len(self.labels)} labels, two kinds at least"
            )


def architect_explorable(measured: MeasuredNetworks) -> Explorable:
    """Return the explorable of measured networks: their loss in an arithmetic, and what of them foretells it.

    Parameters
    ----------
    measured
        The networks, in the order in which they are drawn, from above.

    Source: chapter 18 (ours).
    """
    first, arithmetic = next(iter(measured.titles)), next(iter(measured.arithmetics))
    return Explorable(
        name="architect",
        title="Which network would you run in this arithmetic?",
        alt=(
            "Two panels. Above, each kind of network and its loss at full precision and in {arithmetic}: {network} has "
            "{full} and {under} bits per byte, place {place} of {count}, {behind} above the best. Below, what the "
            "arithmetic adds to the loss against {measure}: a rank correlation of {correlation}."
        ),
        controls=(
            Choice("arithmetic", "arithmetic", measured.arithmetics, arithmetic),
            Choice("network", "network", measured.titles, first),
            Choice("measure", "below, against", MEASURES, "sqnr"),
        ),
        figure=_figure(measured),
        compute=partial(_compute, measured),
        readouts=(
            Readout("full", "Its loss at full precision, bits per byte", "fixed3"),
            Readout("under", "In this arithmetic", "fixed3"),
            Readout("added", "Which adds", "fixed3"),
            Readout("place", "Its place", "fixed0"),
            Readout("count", "Of networks", "fixed0"),
            Readout("behind", "Above the best by", "fixed3"),
            Readout("added-residual", "Median added, with residual connections", "fixed3"),
            Readout("added-free", "Median added, without", "fixed3"),
            Readout("correlation", "Rank correlation, below", "fixed2"),
            Readout("correlation-residual", "With residual connections only", "fixed2"),
        ),
        sentence=(
            "In {arithmetic}, {network} has {under} bits per byte, {added} more than at full precision: place {place} "
            "of {count}, {behind} above the best. Over all networks, what is added has a rank correlation of "
            "{correlation} with: {measure}; over those with residual connections, {correlation-residual}."
        ),
        script="architect",
        data={"residual": measured.residual, "losses": measured.losses, "measures": measured.measures},
        caption=(
            "Recorded. Above (∅: no residual connections, ×: a gate): circles at full precision, dots in the "
            "arithmetic, the mean of three seeds where there are three, bars from their lowest to their highest; "
            "dotted, the best. Below: each dot is a kind of network. Ringed: yours."
        ),
    )


def _compute(measured: MeasuredNetworks, *, arithmetic: str, network: str, measure: str) -> Frame:
    losses = measured.losses.astype(np.float64)
    full = _means(losses[:, :, 0])
    seeds = losses[:, :, 1 + list(measured.arithmetics).index(arithmetic)]
    under = _means(seeds)
    added, against = under - full, measured.measures[:, list(MEASURES).index(measure)].astype(np.float64)
    rows, residual = np.arange(len(full), dtype=np.float64), measured.residual > 0.5
    one = list(measured.titles).index(network)
    known = np.isfinite(under)
    best = float(np.min(under[known])) if known.any() else np.nan
    gap = np.full(len(full), np.nan)
    low, high = np.where(known[:, None], _ends(np.where(np.isfinite(seeds), seeds, under[:, None])), np.nan).T
    return Frame(
        series={
            "full": (full, rows),
            "residual": (np.where(residual, under, np.nan), rows),
            "free": (np.where(residual, np.nan, under), rows),
            "span": (np.stack([low, high, gap], axis=1).ravel(), np.repeat(rows, 3)),
            "best": (np.array([best, best]), np.array([-0.9, len(full) - 0.5])),
            "mine": (under[one : one + 1], rows[one : one + 1]),
            "added-residual": (against, np.where(residual, added, np.nan)),
            "added-free": (against, np.where(residual, np.nan, added)),
            "added-mine": (against[one : one + 1], added[one : one + 1]),
        },
        readouts={
            "full": float(full[one]),
            "under": float(under[one]),
            "added": float(added[one]),
            "place": float(1 + np.sum(under[known] < under[one])) if known[one] else np.nan,
            "count": float(known.sum()),
            "behind": float(under[one] - best),
            "added-residual": _median(added[known & residual]),
            "added-free": _median(added[known & ~residual]),
            "correlation": rank_correlation(against[known], added[known]),
            "correlation-residual": rank_correlation(against[known & residual], added[known & residual]),
        },
    )


def _means(values: FloatArray) -> FloatArray:
    """Return the mean of each row's finite values, NaN for a row without any."""
    finite = np.isfinite(values)
    count = finite.sum(axis=1)
    return np.where(count > 0, np.where(finite, values, 0).sum(axis=1) / np.maximum(count, 1), np.nan)


def _ends(values: FloatArray) -> FloatArray:
    return np.stack([values.min(axis=1), values.max(axis=1)], axis=1)


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if len(values) else np.nan


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's rank correlation, NaN if one of the two does not vary.

    Parameters
    ----------
    first, second : array, shape (n,)
        Finite values; equal ones share the mean of their ranks.

    Examples
    --------
    >>> import numpy as np
    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 100.0]))
    1.0
    """
    one, two = (rankdata(values) - (len(values) + 1) / 2 for values in (first, second))
    scale = float(np.sum(one**2) * np.sum(two**2)) ** 0.5
    return float(np.sum(one * two) / scale) if scale > 0 else np.nan


def _figure(measured: MeasuredNetworks) -> go.Figure:
    count, names = len(measured.titles), list(measured.titles.values())
    dot: dict[str, Any] = {**MOVING, "mode": "markers", "text": names, "hovertemplate": "%{text}: %{x:.3f}"}
    below: dict[str, Any] = {**dot, **LOWER, "hovertemplate": "%{text}: %{x:.2f}, adds %{y:.3f}"}
    line: dict[str, Any] = {**MOVING, "mode": "lines", "hoverinfo": "skip"}
    blue, red = {"color": BLUE, "size": 9}, {"color": VERMILION, "size": 9, "symbol": "diamond"}
    ring = {"color": INK, "size": 17, "symbol": "circle-open", "line": {"width": 2}}
    quiet: dict[str, Any] = {"showlegend": False, "hoverinfo": "skip", **MOVING, "mode": "markers", "marker": ring}
    traces = [
        go.Scatter(name="the best", meta="best", line={"color": MUTED, "dash": "dot", "width": 2}, **line),
        go.Scatter(name="lowest to highest seed", meta="span", line={"color": INK, "width": 1.5}, **line),
        go.Scatter(
            name="at full precision",
            meta="full",
            marker={"color": MUTED, "size": 8, "symbol": "circle-open", "line": {"width": 1.5}},
            **dot,
        ),
        go.Scatter(name="with residual connections", meta="residual", marker=blue, **dot),
        go.Scatter(name="without", meta="free", marker=red, **dot),
        go.Scatter(name="yours", meta="mine", **quiet),
        go.Scatter(name="added, with", meta="added-residual", marker=blue, showlegend=False, **below),
        go.Scatter(name="added, without", meta="added-free", marker=red, showlegend=False, **below),
        go.Scatter(name="added, yours", meta="added-mine", **quiet, **LOWER),
    ]
    above, apart, lower = ROW * count, 96, 240
    whole = above + apart + lower
    words = go.Scatter(
        x=[0.0] * count,
        y=[row - 0.16 for row in range(count)],
        text=list(measured.labels),
        mode="text",
        textposition="top right",
        textfont={"size": 11, "color": INK},
        cliponaxis=False,
        xaxis="x3",
        showlegend=False,
        hoverinfo="skip",
    )
    return two_panels(
        [*traces, words],
        upper=(
            axis("loss, bits per byte"),
            {
                "range": [count - 0.5, -0.9],
                "domain": [1 - above / whole, 1],
                "tickvals": list(range(count)),
                "showticklabels": False,
                "ticks": "",
            },
        ),
        lower=(axis("the number that is chosen"), axis("added, bits per byte", domain=[0, lower / whole])),
        height=whole + 140,
        xaxis3={"overlaying": "x", "anchor": "y", "range": [0, 1], "visible": False},
    )
