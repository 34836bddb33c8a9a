"""The explorable of chapter 8: kurtosis through depth, with a residual connection and without."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.random_numbers import normals
from residlab.explore.theme import BLUE, INK, MUTED, VERMILION, decades
from residlab.theory.kurtosis import participation, participation_mean
from residlab.theory.kurtosis_depth import (
    chain_participation,
    closure,
    closure_fixed_point,
    residual_contraction,
    transported,
)
from residlab.theory.validation import FloatArray

INITIAL = 3.0
"""Excess kurtosis of the inputs: Laplace."""
WIDTHS = tuple(2.0**i for i in range(4, 11))
STREAMS = tuple(i / 20 for i in range(21))
DEPTHS = tuple(float(depth) for depth in range(2, 65))
INJECTED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
ROWS = 8
"""Channels that are simulated."""
_DEEPEST, _WIDEST = int(DEPTHS[-1]), int(WIDTHS[-1])
_GRID = np.arange(0, 101) / 100


def kurtosis_explorable() -> Explorable:
    """Return the explorable of residual mixing: width, weight of the stream, depth and injection against kurtosis.

    Layers ``x <- a x + b W x + injected``, ``b = sqrt(1 - a**2)``, W Haar; inputs with excess kurtosis 3. The sample is
    of 8 channels, the same random directions in the kernel and on the page.

    Source: chapter 8 (ours).
    """
    return Explorable(
        name="kurtosis",
        title="Does mixing make it Gaussian?",
        alt=(
            "Two panels. Above: excess kurtosis of a channel against layer, from 3 at the input, width {width}, stream "
            "weight {stream}; after {depth} layers the chain has {end}, the closure {end-closure}, eight simulated "
            "channels {end-sample}; a dotted line marks the floor {floor}. Below: the factor of one layer against the "
            "weight of the stream, at this width and for infinite width; here it is {factor}."
        ),
        controls=(
            Slider("width", "d", WIDTHS, 64.0, "fixed0", "width"),
            Slider("stream", "a", STREAMS, 0.7, description="weight of the stream; of the branch: b = √(1 − a²)"),
            Slider("depth", "L", DEPTHS, 24.0, "fixed0", "layers"),
            Slider("injected", "q", INJECTED, 0.0, description="kurtosis injected at each layer"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("factor", "Factor of one layer"),
            Readout("floor", "Floor, 3k\u2060/\u2060(d + 2)"),
            Readout("end", "Chain at the end"),
            Readout("end-closure", "Closure at the end"),
            Readout("end-sample", "Simulated at the end"),
            Readout("fixed-point", "Where the closure goes"),
        ),
        sentence=(
            "Width {width}, a = {stream}, {depth} layers, {injected} injected at each: a layer multiplies kurtosis by "
            "{factor}; the chain ends at {end}, the closure at {end-closure}, the simulated channels at {end-sample}. "
            "The floor is {floor}."
        ),
        script="kurtosis",
        caption=(
            "Inputs of excess kurtosis 3. Above: the exact mean of a linear chain, the closure that forgets "
            "dependence, and the mean of eight simulated channels. Below: the mean factor of one layer."
        ),
    )


def _compute(*, width: float, stream: float, depth: float, injected: float) -> Frame:
    d, layers, b = int(width), int(depth), float(np.sqrt(1 - stream * stream))
    x = np.arange(layers + 1.0)
    g = chain_participation(d, stream, b, layers)
    factor = float(g[1])
    chain = transported(g, injected, INITIAL)
    closed = closure(factor, injected, INITIAL, layers)
    sample = transported(_walked(d, stream, b, layers), injected, INITIAL)
    floor = INITIAL * float(participation_mean(d))
    fixed = float(closure_fixed_point(min(factor, 1.0), injected))
    across = residual_contraction(d, _GRID, np.sqrt(1 - _GRID**2))
    return Frame(
        series={
            "chain": (x, chain),
            "closure": (x, closed),
            "sample": (x, sample),
            "floor": (x[[0, -1]], np.array([floor, floor])),
            "factors": (_GRID, across),
            "here": (np.array([stream]), np.array([factor])),
        },
        readouts={
            "factor": factor,
            "floor": floor,
            "end": float(chain[-1]),
            "end-closure": float(closed[-1]),
            "end-sample": float(sample[-1]),
            "fixed-point": fixed if np.isfinite(fixed) else np.nan,
        },
    )


def _walked(d: int, a: float, b: float, depth: int) -> FloatArray:
    """Return the mean participation of `ROWS` rows of products of 0 ... depth layers, from `_directions`."""
    directions = _directions(d)
    v = np.zeros((ROWS, d))
    v[:, 0] = 1.0
    seen = [1.0]
    for layer in range(depth):
        v = a * v + b * directions[:, layer]
        v = v / np.sqrt((v**2).sum(axis=-1, keepdims=True))
        seen.append(float(participation(v).mean()))
    return np.array(seen)


@lru_cache(maxsize=2)
def _directions(d: int) -> FloatArray:
    """Return unit vectors, (ROWS, deepest, d), the same ones as the script: hashed counters, Box and Muller."""
    row, layer, pair = np.ogrid[:ROWS, :_DEEPEST, : d // 2]
    normal = normals((row * _DEEPEST + layer) * (_WIDEST // 2) + pair)
    return np.asarray(normal / np.sqrt((normal**2).sum(axis=-1, keepdims=True)))


def _figure() -> go.Figure:
    upper: dict[str, Any] = {**MOVING, "mode": "lines", "hovertemplate": "layer %{x}: %{y:.3g}"}
    lower: dict[str, Any] = {**LOWER, "mode": "lines", "hovertemplate": "a = %{x}: %{y:.3g}"}
    traces = [
        go.Scatter(name="linear chain, exact", meta="chain", line={"color": BLUE, "width": 2.5}, **upper),
        go.Scatter(name="closure", meta="closure", line={"color": VERMILION, "width": 2.5, "dash": "dash"}, **upper),
        go.Scatter(
            name="eight channels, simulated",
            meta="sample",
            marker={"color": INK, "size": 6, "symbol": "circle-open"},
            **{**upper, "mode": "markers"},
        ),
        go.Scatter(name="floor", meta="floor", line={"color": MUTED, "width": 1.5, "dash": "dot"}, **upper),
        go.Scatter(name="factor at this width", meta="factors", line={"color": BLUE, "width": 2.5}, **MOVING, **lower),
        go.Scatter(
            name="infinite width, a⁴", x=_GRID, y=_GRID**4, line={"color": MUTED, "width": 2, "dash": "dash"}, **lower
        ),
        go.Scatter(
            name="where you are",
            meta="here",
            marker={"size": 12, "color": VERMILION},
            **{**MOVING, **lower, "mode": "markers"},
        ),
    ]
    return two_panels(
        traces,
        upper=(axis("layer", rangemode="tozero"), axis("excess kurtosis of a channel", **decades(-4, 2))),
        lower=(axis("a, weight of the stream", range=[-0.02, 1.02]), axis("factor of one layer", **decades(-3, 0.1))),
        height=680,
    )
