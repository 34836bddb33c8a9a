"""The explorable of chapter 15: keys, sink, format and order of a sum of exponentials, its bounds and its error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, GREEN, INK, MUTED, VERMILION, decades
from residlab.precision.formats import BF16, E4M3FN, FP16, FP32, Format
from residlab.theory.softmax import effective_terms, sum_enclosure
from residlab.theory.validation import FloatArray

KEYS = tuple(2.0**i for i in range(3, 13))
GAPS = tuple(float(gap) for gap in range(17))
FORMATS: Mapping[str, Format] = {fmt.name: fmt for fmt in (BF16, FP16, E4M3FN, FP32)}
ORDERS: Mapping[str, str] = {"first": "sink first", "last": "sink last", "pairwise": "pairwise"}
SPREAD = 3.0
"""Logits of the other keys lie this far apart."""
RANKS = 64
"""Weights that are drawn, at most."""
_MOST = int(KEYS[-1])
_GOLDEN = 0.6180339887498949


def softmax_explorable() -> Explorable:
    """Return the explorable of absorption: one sink and N - 1 keys whose logits are lower by the gap and up to 3 more.

    Their exponentials are rounded to the format and summed in it; the error is that of the sum, against the exact sum
    of the rounded exponentials.

    Source: chapter 15.
    """
    return Explorable(
        name="softmax",
        title="Does a long row cost accuracy?",
        alt=(
            "Two panels. Above: relative error of the softmax sum against the number of keys, measured and bounded, in "
            "{format}, {order}, with a sink {gap} above the largest other logit. At {keys} keys {effective} terms "
            "count; the error is {measured}, the bound for this order {bounded}, the roundoff times effective terms "
            "{soft}, the classical bound {classical}. Below: the weights by rank, and the unit roundoff."
        ),
        controls=(
            Slider("keys", "N", KEYS, 512.0, "fixed0", "keys"),
            Slider("gap", "sink", GAPS, 5.0, "fixed0", "by how much its logit exceeds the largest other one"),
            Choice("format", "format", {name: name for name in FORMATS}, "bf16"),
            Choice("order", "order", ORDERS, "first", "of the additions"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("effective", "Effective terms"),
            Readout("measured", "Error of the sum"),
            Readout("bounded", "Bound, this order"),
            Readout("soft", "u · effective terms"),
            Readout("classical", "Classical, (N − 1)u"),
        ),
        sentence=(
            "{keys} keys in {format}, {order}, sink {gap} above the rest: {effective} effective terms. The sum is off "
            "by {measured}; the bound for this order is {bounded}, by effective terms {soft}, by the number of keys "
            "{classical}."
        ),
        script="softmax",
        caption=(
            "Above: the error of the sum as keys are added. Below: the weights of the keys in front of you; what lies "
            "under the dashed line counts by its weight, what lies above counts as one. A pairwise sum in e4m3fn "
            "saturates at 448, where no bound holds."
        ),
    )


def _compute(*, keys: float, gap: float, format: str, order: str) -> Frame:
    fmt, n = FORMATS[format], int(keys)
    error, bound, effective = _by_keys(gap, format, order)
    count = np.array(KEYS)
    classical = (count - 1) * fmt.u
    here = KEYS.index(keys)
    terms = np.sort(_terms(gap, fmt)[: n - 1])[::-1]
    weights = np.concatenate([[1.0], terms]) / (1.0 + math.fsum(terms))
    rank = np.unique(np.round(np.geomspace(1, n, RANKS)).astype(int))
    return Frame(
        series={
            "measured": (count, np.where(error > 0, error, np.nan)),
            "bounded": (count, np.where(bound > 0, bound, np.nan)),
            "soft": (count, fmt.u * effective),
            "classical": (count, classical),
            "here": (count[[here]], np.where(error > 0, error, np.nan)[[here]]),
            "weights": (rank.astype(float), np.where(weights > 0, weights, np.nan)[rank - 1]),
            "unit": (np.array([1.0, n]), np.array([fmt.u, fmt.u])),
        },
        readouts={
            "effective": float(effective[here]),
            "measured": float(error[here]),
            "bounded": float(bound[here]),
            "soft": float(fmt.u * effective[here]),
            "classical": float(classical[here]),
        },
    )


def _terms(gap: float, fmt: Format) -> FloatArray:
    """Return the rounded exponentials of the keys beside the sink, in the order of the keys."""
    spread = np.mod(np.arange(1, _MOST) * _GOLDEN, 1.0)
    return _nearest(np.exp(-(gap + SPREAD * spread)), fmt)


@lru_cache(maxsize=64)
def _by_keys(gap: float, name: str, order: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return error and bound of the sum, and the effective terms, for every number of keys."""
    fmt = FORMATS[name]
    terms = _terms(gap, fmt)
    rows = []
    for keys in KEYS:
        others = terms[: int(keys) - 1]
        row = np.concatenate([others, [1.0]] if order == "last" else [[1.0], others])
        exact = math.fsum(row)
        low, high = sum_enclosure(row, row, fmt.u, "pairwise" if order == "pairwise" else "recursive")
        total = _pairwise(row, fmt) if order == "pairwise" else _recursive(row, fmt)
        bound = max(float(high) - exact, exact - float(low)) / exact
        rows.append((abs(total - exact) / exact, bound, float(effective_terms(row / exact, fmt.u))))
    error, bounds, effective = np.array(rows).T
    return error, bounds, effective


def _recursive(row: FloatArray, fmt: Format) -> float:
    total, emin, largest = float(row[0]), fmt.emin or 0, fmt.largest
    for term in row[1:].tolist():
        total += term  # float64 holds the sum of two such numbers, but for bits that decide no tie
        place = max(math.frexp(total)[1] - 1, emin) - fmt.t + 1
        total = min(math.ldexp(round(math.ldexp(total, -place)), place), largest)
    return total


def _pairwise(row: FloatArray, fmt: Format) -> float:
    while len(row) > 1:
        row = _nearest(row[::2] + row[1::2], fmt)
    return float(row[0])


def _nearest(values: FloatArray, fmt: Format) -> FloatArray:
    """Round positive numbers to nearest, ties to even, as `residlab.precision.formats.round_number` does."""
    place = np.maximum(np.frexp(values)[1] - 1, fmt.emin or 0) - fmt.t + 1
    return np.asarray(np.minimum(np.ldexp(np.rint(np.ldexp(values, -place)), place), fmt.largest))


def _figure() -> go.Figure:
    upper = {**MOVING, "hovertemplate": "%{x} keys: %{y:.2e}"}
    lower = {**MOVING, **LOWER}
    traces = [
        go.Scatter(name="classical", meta="classical", mode="lines", line={"color": MUTED, "width": 2}, **upper),
        go.Scatter(
            name="u · effective terms",
            meta="soft",
            mode="lines",
            line={"color": BLUE, "width": 2.5, "dash": "dash"},
            **upper,
        ),
        go.Scatter(
            name="bound, this order", meta="bounded", mode="lines", line={"color": GREEN, "width": 2.5}, **upper
        ),
        go.Scatter(
            name="measured",
            meta="measured",
            mode="lines+markers",
            line={"color": VERMILION, "width": 1.5},
            marker={"size": 6},
            **upper,
        ),
        go.Scatter(
            name="where you are",
            meta="here",
            mode="markers",
            marker={"size": 14, "color": VERMILION, "symbol": "circle-open"},
            **upper,
        ),
        go.Scatter(
            name="weights by rank",
            meta="weights",
            mode="markers",
            marker={"size": 5, "color": INK},
            hovertemplate="rank %{x}: %{y:.2e}",
            **lower,
        ),
        go.Scatter(
            name="u",
            meta="unit",
            mode="lines",
            line={"color": MUTED, "width": 2, "dash": "dash"},
            hovertemplate="u = %{y:.2e}",
            **lower,
        ),
    ]
    return two_panels(
        traces,
        upper=(axis("keys N", **decades(0, 3.8)), axis("relative error of the sum", **decades(-8, 2.2, step=2))),
        lower=(axis("rank of the key", **decades(0, 3.8)), axis("weight", **decades(-9, 0.3, step=3))),
        height=680,
    )
