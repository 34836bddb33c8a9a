"""The explorable of chapter 3: what the paper's constant says of the second site, and what is there, by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.explore.explorable import Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import AXIS, BLUE, MUTED, VERMILION, decades
from residlab.theory.block_variance import attention_variance
from residlab.theory.variance import gaussian_second_moment

RATIOS = tuple(i / 50 for i in range(1, 51))
TOKENS = tuple(2.0**i for i in range(4, 13))
POSITIONS = tuple(float(t) for t in sorted({round(2 ** (i / 4)) for i in range(49)}))
SHARED = tuple(i / 100 for i in range(101))
FOCUS = tuple(i / 20 for i in range(1, 21))
GAINS = tuple(m * 10.0**k for k in range(-1, 3) for m in (1, 2, 5))


def block_variance_explorable() -> Explorable:
    """Return the explorable of the block-level approximation: λ/κ, tokens, position, and two broken hypotheses.

    Tokens have Gaussian entries, one variance for all channels, and a correlation between tokens; attention is uniform
    over a share of the visible tokens, rounded up. Variances are in units of the stream's.

    Source: [A] block-level variance approximation; chapter 3.
    """
    return Explorable(
        name="block-variance",
        title="What does the constant miss?",
        alt=(
            "Two panels against position, 1 to {tokens}. Above: variance that attention adds, in units of the "
            "stream’s: the paper’s constant {paper}, its causal form, and the truth for λ/κ = {ratio}, correlation "
            "{shared}, which is {true} at position {at}. Below: the error of the second denominator, {error} there "
            "with the constant and {causal} with its causal form."
        ),
        controls=(
            Slider("ratio", "λ\u2060/\u2060κ", RATIOS, 0.2, description="root of the second moment"),
            Slider("tokens", "T", TOKENS, 1024.0, format="fixed0", description="tokens in the sequence"),
            Slider("position", "t", POSITIONS, 16.0, format="fixed0", description="position, at most T"),
            Slider("shared", "c", SHARED, 0.0, description="correlation between tokens"),
            Slider("focus", "φ", FOCUS, 1.0, description="share of the visible tokens attended to"),
            Slider("gain", "g", GAINS, 100.0, format="sig3", description="‖W‖² over d times the stream’s variance"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("at", "Position", "fixed0"),
            Readout("effective", "Tokens attended to", "fixed0"),
            Readout("paper", "Predicted by the constant"),
            Readout("true", "True"),
            Readout("times", "True ÷ predicted"),
            Readout("error", "Error of the denominator", "share"),
            Readout("causal", "Error with T → t", "share"),
        ),
        sentence=(
            "At position {at} of {tokens}, attention adds {true} times the stream’s variance; the constant says "
            "{paper}. The denominator of the second site is off by {error}; with t in place of T, by {causal}."
        ),
        script="block_variance",
        caption=(
            "Above: variance added, in units of the stream’s variance. Below: error of κ√(s² + s̃²). Gaussian entries; "
            "the branch uncorrelated with the stream. The dot is where you are."
        ),
    )


def _compute(*, ratio: float, tokens: float, position: float, shared: float, focus: float, gain: float) -> Frame:
    t = np.array([p for p in POSITIONS if p <= tokens])
    here = int(np.searchsorted(t, min(position, tokens)))
    visible = t.astype(int)
    attended = np.maximum(1, np.ceil(focus * t)).astype(int)
    paper = np.full(len(t), attention_variance(gain, ratio**2, int(tokens), 1))
    causal = attention_variance(gain, ratio**2, visible, 1)
    true = attention_variance(gain, gaussian_second_moment(ratio), attended, 1, shared=shared)
    errors = {"paper": _error(paper, true), "causal": _error(causal, true)}
    return Frame(
        series={
            "paper": (t, paper),
            "causal": (t, causal),
            "true": (t, true),
            "here": (t[[here, here]], np.array([paper[here], true[here]])),
            "error-paper": (t, errors["paper"]),
            "error-causal": (t, errors["causal"]),
            "error-here": (t[[here, here]], np.array([errors["paper"][here], errors["causal"][here]])),
        },
        readouts={
            "at": float(t[here]),
            "effective": float(attended[here]),
            "paper": float(paper[here]),
            "true": float(true[here]),
            "times": float(true[here] / paper[here]),
            "error": float(errors["paper"][here]),
            "causal": float(errors["causal"][here]),
        },
    )


def _error(estimate: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt((1 + estimate) / (1 + true)) - 1


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines", "hovertemplate": "t = %{x}: %{y:.3g}"}
    lower: dict[str, Any] = {**line, **LOWER, "hovertemplate": "t = %{x}: %{y:.1%}"}
    paper, causal, true = (
        {"color": MUTED, "dash": "dot", "width": 2.5},
        {"color": BLUE, "dash": "dash", "width": 2.5},
        {"color": VERMILION, "width": 2.5},
    )
    dots = {"size": 11, "color": [MUTED, VERMILION]}
    traces = [
        go.Scatter(name="the paper’s constant, T", meta="paper", line=paper, **line),
        go.Scatter(name="causal form, t", meta="causal", line=causal, **line),
        go.Scatter(name="the truth", meta="true", line=true, **line),
        go.Scatter(name="where you are", meta="here", marker=dots, showlegend=False, **{**line, "mode": "markers"}),
        go.Scatter(name="constant", meta="error-paper", line=paper, showlegend=False, **lower),
        go.Scatter(name="causal form", meta="error-causal", line=causal, showlegend=False, **lower),
        go.Scatter(
            name="where you are",
            meta="error-here",
            marker={"size": 11, "color": [MUTED, BLUE]},
            showlegend=False,
            **{**lower, "mode": "markers"},
        ),
    ]
    return two_panels(
        traces,
        upper=(
            {**decades(0, 3.7), "matches": "x2", "showticklabels": False},
            {"domain": [0.5, 1], **axis("variance added", **decades(-6, 3.1, step=2))},
        ),
        lower=(
            axis("position t", **decades(0, 3.7)),
            axis(
                "error of the denominator",
                tickformat=".0%",
                range=[-1.05, 1.05],
                zeroline=True,
                zerolinecolor=AXIS,
            ),
        ),
    )
