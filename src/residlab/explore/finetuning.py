"""The explorable of chapter 7: what gradient descent on a new text forgets, in the quadratic model."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, MUTED, VERMILION
from residlab.theory.finetuning import FloatArray, cheapest, descended, remaining_and_forgotten

AXES = 64
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
STEPS = tuple(2.0**i for i in range(11))
OVERLAPS = tuple(i / 20 for i in range(21))
DECAYS = tuple(i / 4 for i in range(9))
_GRID = np.array([0.0, *sorted({float(round(2 ** (i / 4))) for i in range(45)})])
_PRICES = 10.0 ** (np.arange(-30, 31) / 10)


def finetuning_explorable() -> Explorable:
    """Return the explorable of learning and forgetting: rate, steps, and how alike the two texts are.

    64 axes; the new loss has curvatures ``i**-decay``, the old one a mixture of the same, in the same order (overlap 1)
    and in the reverse (overlap 0). The optimum of the new loss is equally far along every axis, and both losses are in
    units of what there is to learn: from 1 to 0 on the new text, and from 0 to 1 on the old one on the way.

    Source: chapter 7.
    """
    return Explorable(
        name="finetuning",
        title="What does learning a new text cost on the old one?",
        alt=(
            "Two panels. Above: loss on the old text against what remains to be learnt of the new one, along gradient "
            "descent at rate {rate}; the dots, {steps} steps at this rate and twice as many at half of it, lie on one "
            "curve. A dotted curve below it is the best exchange there is. Below: both losses against steps. Here "
            "{remaining} remains and {forgotten} is forgotten."
        ),
        controls=(
            Slider("rate", "η h₁", RATES, 0.2, "sig3", "rate, in units of the steepest axis"),
            Slider("steps", "t", STEPS, 32.0, "fixed0", "steps"),
            Slider("overlap", "c", OVERLAPS, 0.5, description="1: both texts curve the same axes"),
            Slider("decay", "α", DECAYS, 1.0, description="curvature of axis i is 1\u2060/\u2060iᵅ"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("remaining", "Remains of the new text", "share"),
            Readout("forgotten", "Forgotten of the old text", "share"),
            Readout("remaining-halved", "Remains at η/2, 2t", "share"),
            Readout("forgotten-halved", "Forgotten at η/2, 2t", "share"),
        ),
        sentence=(
            "After {steps} steps at rate {rate}, {remaining} of the new text remains to be learnt and {forgotten} of "
            "the old one is forgotten; after twice as many at half the rate, {remaining-halved} and {forgotten-halved}."
        ),
        script="finetuning",
        caption=(
            "Above: each point of the line is a number of steps, from none (lower right) on. The circle is where you "
            "are, the diamond half the rate for twice the steps. Dotted: the least forgetting for what is learnt."
        ),
    )


def _curvatures(overlap: float, decay: float) -> tuple[FloatArray, FloatArray, float]:
    """Return the curvatures of the new and the old loss, and the distance that makes both losses 1 at most."""
    new = np.arange(1, AXES + 1, dtype=np.float64) ** -decay
    return new, overlap * new + (1 - overlap) * new[::-1], float(np.sqrt(2 / new.sum()))


def _compute(*, rate: float, steps: float, overlap: float, decay: float) -> Frame:
    new, old, distance = _curvatures(overlap, decay)
    left, lost = remaining_and_forgotten(descended(rate, _GRID[:, None], new), new, old, distance)
    best = remaining_and_forgotten(cheapest(_PRICES[:, None], new, old), new, old, distance)
    here = remaining_and_forgotten(descended(rate, steps, new), new, old, distance)
    halved = remaining_and_forgotten(descended(rate / 2, 2 * steps, new), new, old, distance)
    return Frame(
        series={
            "path": (left, lost),
            "best": best,
            "here": (here[0][None], here[1][None]),
            "halved": (halved[0][None], halved[1][None]),
            "remaining": (_GRID[1:], left[1:]),
            "forgotten": (_GRID[1:], lost[1:]),
            "now": (np.array([steps, steps]), np.array([float(here[0]), float(here[1])])),
        },
        readouts={
            "remaining": float(here[0]),
            "forgotten": float(here[1]),
            "remaining-halved": float(halved[0]),
            "forgotten-halved": float(halved[1]),
        },
    )


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines"}
    dot: dict[str, Any] = {**MOVING, "mode": "markers"}
    traces = [
        go.Scatter(
            name="gradient descent",
            meta="path",
            line={"color": BLUE, "width": 2.5},
            hovertemplate="remains %{x:.1%}, forgotten %{y:.1%}",
            **line,
        ),
        go.Scatter(
            name="the best exchange",
            meta="best",
            line={"color": MUTED, "width": 2.5, "dash": "dot"},
            hovertemplate="remains %{x:.1%}, forgotten %{y:.1%}",
            **line,
        ),
        go.Scatter(name="η, t", meta="here", marker={"size": 12, "color": VERMILION}, **dot),
        go.Scatter(name="η/2, 2t", meta="halved", marker={"size": 18, "color": BLUE, "symbol": "diamond-open"}, **dot),
        go.Scatter(
            name="remains of the new text",
            meta="remaining",
            line={"color": BLUE, "width": 2.5, "dash": "dash"},
            hovertemplate="%{x} steps: %{y:.1%}",
            **line,
            **LOWER,
        ),
        go.Scatter(
            name="forgotten of the old text",
            meta="forgotten",
            line={"color": VERMILION, "width": 2.5},
            hovertemplate="%{x} steps: %{y:.1%}",
            **line,
            **LOWER,
        ),
        go.Scatter(
            name="where you are",
            meta="now",
            marker={"size": 11, "color": [BLUE, VERMILION]},
            showlegend=False,
            **dot,
            **LOWER,
        ),
    ]
    share = {"tickformat": ".0%", "range": [-0.03, 1.05]}
    return two_panels(
        traces,
        upper=(axis("remains of the new text", **share), axis("forgotten", **share)),
        lower=(
            axis("steps", type="log", range=[-0.05, 3.35], tickvals=[1, 10, 100, 1000]),
            axis("loss, of what there is", **share),
        ),
        height=660,
    )
