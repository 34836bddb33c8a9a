"""The explorable of chapter 10: how alike tokens become in a network without residual connections, before training."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, float32_pair, two_panels
from residlab.explore.theme import BLUE, MUTED, VERMILION
from residlab.theory.propagation import critical_participation, kernel_coefficients, similarity_by_layer

TOKENS, HEAD_DIM, WIDTH = 128, 32, 128
FEEDFORWARDS: dict[str, str] = {"gelu": "not gated (GELU)", "swiglu": "gated (SwiGLU)"}
SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
BETAS = tuple(round(0.9 + i / 100, 2) for i in range(31))
DEPTHS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
INITIALS = tuple(i / 20 for i in range(20))


def propagation_explorable() -> Explorable:
    """Return the explorable of similarity by layer: the scale of logits, its growth with depth, and the start of W_K.

    128 tokens, heads of 32, width 128, rotary positions with base 10,000.

    Source: chapter 10 (ours).
    """
    coefficients = _padded([kernel_coefficients(kind) for kind in ("gelu", "swiglu")])
    return Explorable(
        name="propagation",
        title="Do tokens stay apart without residual connections?",
        alt=(
            "Two panels against layer, {depth} layers, logits times {scale} and {beta} per layer, {start}, a "
            "feedforward that is {feedforward}. Above: "
            "the mean cosine of two tokens, {initial} in the embeddings, {end} at the end. Below: the "
            "participation of attention rows, {first} in the first layer, beside the value {critical} below which "
            "tokens that are nearly alike become more so."
        ),
        controls=(
            Choice("start", "Start", {"apart": "W_Q and W_K apart", "shared": "W_K = W_Q"}, "apart"),
            Choice("feedforward", "Feedforward", FEEDFORWARDS, "gelu"),
            Slider("scale", "s", SCALES, 1.0, description="factor of all logits"),
            Slider("beta", "β", BETAS, 1.03, description="further factor for each layer"),
            Slider("depth", "L", DEPTHS, 12.0, "fixed0", "layers"),
            Slider("initial", "c₀", INITIALS, 0.05, description="cosine of two tokens at first"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("end", "Cosine of two tokens at the end"),
            Readout("first", "Participation in the first layer"),
            Readout("last", "Participation in the last layer"),
            Readout("critical", "Critical participation"),
            Readout("gradient", "Gradient at the first layer ÷ at the end"),
        ),
        sentence=(
            "With {start}, logits times {scale} and {beta} per layer, two tokens of {initial} have a cosine of "
            "{end} after {depth} layers. Rows have a participation of {first} in the first layer and {last} in the "
            "last; {critical} is critical."
        ),
        script="propagation",
        data=float32_pair(coefficients),
        caption=(
            "Predicted, before training. Participation is one over the effective number of tokens that a row of "
            "attention averages. The gradient is what it would be if those of different tokens were uncorrelated."
        ),
    )


def _padded(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    most = max(map(len, rows))
    return np.array([np.pad(row, (0, most - len(row))) for row in rows])


def _compute(*, start: str, feedforward: Any, scale: float, beta: float, depth: float, initial: float) -> Frame:
    made = similarity_by_layer(
        int(depth),
        initial=initial,
        logit_scale=scale,
        beta=beta,
        tokens=TOKENS,
        head_dim=HEAD_DIM,
        width=WIDTH,
        shared=start == "shared",
        feedforward=feedforward,
    )
    critical, layers = critical_participation(feedforward), np.arange(depth + 1)
    return Frame(
        series={
            "similarity": (layers, made.similarity),
            "participation": (layers[1:], made.participation[1:]),
            "critical": (np.array([0.0, depth]), np.array([critical, critical])),
        },
        readouts={
            "end": float(made.similarity[-1]),
            "first": float(made.participation[1]),
            "last": float(made.participation[-1]),
            "critical": critical,
            "gradient": float(made.gradient[0]),
        },
    )


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines+markers", "hovertemplate": "layer %{x}: %{y:.3g}"}
    traces = [
        go.Scatter(name="cosine of two tokens", meta="similarity", line={"color": VERMILION, "width": 2.5}, **line),
        go.Scatter(name="participation", meta="participation", line={"color": BLUE, "width": 2.5}, **line, **LOWER),
        go.Scatter(
            name="critical",
            meta="critical",
            line={"color": MUTED, "dash": "dot", "width": 2},
            **{**line, "mode": "lines"},
            **LOWER,
        ),
    ]
    return two_panels(
        traces,
        upper=(axis("layer", rangemode="tozero"), axis("cosine of two tokens", range=[-0.03, 1.03])),
        lower=(axis("layer", rangemode="tozero"), axis("participation", range=[-0.03, 1.03])),
        height=600,
    )
