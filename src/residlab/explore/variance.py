"""The explorable of chapter 4: three variance curves, three thresholds, and where BHyT would pass LNS."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, kappa_slider, lam_slider, two_panels
from residlab.explore.theme import INK, MUTED, NORM_COLORS, NORM_DASHES, VIOLET
from residlab.theory.recursion import (
    first_exceedance,
    second_moments,
    threshold_aligned,
    threshold_paper,
    threshold_uncorrelated,
    variance_trajectory,
)

DEPTHS = tuple(float(depth) for depth in range(2, 129))
RHOS = tuple(i / 20 for i in range(21))


def variance_explorable() -> Explorable:
    """Return the explorable of Theorem 3.5: λ, κ, depth and correlation against the variance recursion.

    Gains and the initial variance are 1, and BHyT's second moment is λ²/κ² exactly.

    Source: [A] Theorem 3.5; chapter 4.
    """
    return Explorable(
        name="variance",
        title="Does BHyT stay below LNS?",
        alt=(
            "Two panels. Above: variance of the stream against layer for Pre-LN, LNS and BHyT, {depth} layers, "
            "correlation {rho}; BHyT ends at {end} times the variance of LNS. Below: the thresholds of λ/κ against "
            "depth, and the point at depth {depth} and λ/κ = {ratio}; there they are {paper} (the paper's), {every} "
            "(for every correlation) and {uncorrelated} (uncorrelated branches)."
        ),
        controls=(
            lam_slider(3.0),
            kappa_slider(10.0),
            Slider("depth", "L", DEPTHS, 28.0, format="fixed0", description="layers"),
            Slider("rho", "ρ", RHOS, 0.0, description="correlation of branch and stream"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("ratio", "λ\u2060/\u2060κ"),
            Readout("paper", "Threshold of the paper, 1\u2060/\u2060√L"),
            Readout("every", "For every ρ"),
            Readout("uncorrelated", "For ρ = 0"),
            Readout("first", "First layer above LNS", "fixed0"),
            Readout("end", "BHyT ÷ LNS at the end"),
        ),
        sentence=(
            "With λ/κ = {ratio}, {depth} layers and ρ = {rho}, BHyT ends at {end} times the variance "
            "of LNS. First layer above it: {first}. The paper asks for λ/κ below {paper}; {every} is enough "
            "for every ρ, and {uncorrelated} for uncorrelated branches."
        ),
        script="variance",
        caption=(
            "Gains and initial variance 1. Above: the recursion; a circle marks the first layer at which BHyT exceeds "
            "LNS. Below: thresholds against depth, and where you are."
        ),
    )


def _compute(*, lam: float, kappa: float, depth: float, rho: float) -> Frame:
    layers, ratio = int(depth), lam / kappa
    moments = np.stack(
        [second_moments("pre-ln", layers), second_moments("lns", layers), second_moments("bhyt", layers, ratio=ratio)]
    )
    x, curves = np.arange(layers + 1.0), variance_trajectory(moments, correlation=rho)
    first = float(first_exceedance(curves[2], curves[1]))
    where, height = (first, float(curves[2, int(first)])) if np.isfinite(first) else (np.nan, np.nan)
    return Frame(
        series={name: (x, curve) for name, curve in zip(("preln", "lns", "bhyt"), curves, strict=True)}
        | {
            "exceeds": (np.array([where]), np.array([height])),
            "here": (np.array([float(layers)]), np.array([ratio])),
        },
        readouts={
            "ratio": ratio,
            "paper": float(threshold_paper(layers)),
            "every": float(threshold_aligned(moments[1])[-1]),
            "uncorrelated": float(threshold_uncorrelated(moments[1])[-1]),
            "first": where,
            "end": float(curves[2, -1] / curves[1, -1]),
        },
    )


def _figure() -> go.Figure:
    depths, lns = np.arange(1, 129), second_moments("lns", 128)
    upper: dict[str, Any] = {**MOVING, "mode": "lines", "hovertemplate": "layer %{x}: %{y:.3g}"}
    lower: dict[str, Any] = {**LOWER, "mode": "lines", "hovertemplate": "L = %{x}: %{y:.3f}"}
    curves = [
        go.Scatter(
            name=name, meta=key, line={"color": NORM_COLORS[norm], "dash": NORM_DASHES[norm], "width": 2.5}, **upper
        )
        for name, key, norm in (("Pre-LN", "preln", "rmsnorm"), ("LNS", "lns", "lns"), ("BHyT", "bhyt", "bhyt"))
    ]
    marks = [
        go.Scatter(
            name="first layer above LNS",
            meta="exceeds",
            **{**upper, "mode": "markers"},
            marker={"size": 13, "symbol": "circle-open", "color": INK, "line": {"width": 2.5}},
        ),
        go.Scatter(
            name="where you are",
            meta="here",
            **{**MOVING, **lower, "mode": "markers", "hovertemplate": "L = %{x}: λ/κ = %{y:.3f}"},
            marker={"size": 12, "color": NORM_COLORS["bhyt"]},
        ),
    ]
    thresholds = [
        go.Scatter(name=name, x=depths, y=threshold, line={"color": color, "dash": dash, "width": 2}, **lower)
        for name, threshold, color, dash in (
            ("1/√L (paper)", 1 / np.sqrt(depths), MUTED, "dot"),
            ("every ρ", threshold_aligned(lns), INK, "solid"),
            ("ρ = 0", threshold_uncorrelated(lns), VIOLET, "dash"),
        )
    ]
    return two_panels(
        [*curves, marks[0], *thresholds, marks[1]],
        upper=(
            axis("layer", rangemode="tozero"),
            axis("variance of the stream", type="log", exponentformat="none"),
        ),
        lower=(
            axis("depth L", type="log", range=[np.log10(2), np.log10(128)], tickvals=[2, 4, 8, 16, 32, 64, 128]),
            axis("λ/κ", type="log", range=[-2, 0.85], tickvals=[0.01, 0.03, 0.1, 0.3, 1, 3]),
        ),
    )
