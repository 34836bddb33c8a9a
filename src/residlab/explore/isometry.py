"""The explorable of chapter 9: what steps of one length do to an isometry, by the spectrum of the update."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, GREEN, VERMILION
from residlab.theory.isometry import (
    coherent_defect,
    isotropic_defect,
    isotropic_edges,
    rank_one_defect,
    rank_one_spread,
    spread_bound,
)

RATES = tuple(float(f"{10 ** (i / 12):.3g}") for i in range(-36, -11))
STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
WIDTHS = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
_GRID = np.array(sorted({float(round(10 ** (i / 16))) for i in range(49)}))
KINDS = ("coherent", "isotropic", "aligned")


def isometry_explorable() -> Explorable:
    """Return the explorable of spread and defect after k updates of one Frobenius norm.

    Each update has the Frobenius norm ``eta sqrt(n)``, in units of the isometry. *Coherent*: always the same isometry
    times eta. *Isotropic*: independent isometries. *Aligned*: always the same matrix of rank one, in a random
    direction.

    Source: chapter 9.
    """
    return Explorable(
        name="isometry",
        title="How long does an isometry last?",
        alt=(
            "Two panels against the number of updates, each of relative length {step}, on a matrix of side "
            "{width}. Above: σ₁/σₙ for updates that are the same isometry, independent isometries, and the same "
            "matrix of rank one; after {steps} updates {spread-coherent}, {spread-isotropic} and {spread-aligned}. "
            "Below: the defect; there {defect-coherent}, {defect-isotropic} and {defect-aligned}."
        ),
        controls=(
            Slider("step", "η", RATES, 0.01, "sig3", "length of a step, over the matrix’s own"),
            Slider("steps", "k", STEPS, 50.0, "fixed0", "steps"),
            Slider("width", "n", WIDTHS, 128.0, "fixed0", "side of the matrix"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=tuple(
            Readout(f"{what}-{kind}", f"{label}, {kind}")
            for what, label in (("spread", "σ₁/σₙ"), ("defect", "Defect"))
            for kind in KINDS
        ),
        sentence=(
            "After {steps} steps of relative length {step} on a matrix of side {width}, σ₁/σₙ is {spread-coherent} "
            "if all steps are one isometry, {spread-isotropic} if they are independent ones, and {spread-aligned} "
            "if they are one matrix of rank one; the defect is {defect-coherent}, {defect-isotropic} and "
            "{defect-aligned}."
        ),
        script="isometry",
        caption=(
            "All updates have the same Frobenius norm. A curve ends where a singular value reaches zero: there "
            "σ₁/σₙ is infinite. Dots: where you are."
        ),
    )


def _shapes(step: float, steps: Any, width: float) -> dict[str, tuple[Any, Any]]:
    """Return spread and defect of each kind; NaN for a spread that is infinite."""
    moved, walked, strength = step * steps, step * np.sqrt(steps), step * steps * np.sqrt(width)
    low, high = isotropic_edges(walked)
    with np.errstate(divide="ignore", invalid="ignore"):
        isotropic = np.where(low > 0, high / np.where(low > 0, low, 1), np.nan)
    coherent = spread_bound(moved)
    return {
        "coherent": (np.where(np.isfinite(coherent), coherent, np.nan), coherent_defect(moved)),
        "isotropic": (isotropic, isotropic_defect(walked)),
        "aligned": (rank_one_spread(strength), rank_one_defect(strength, width)),
    }


def _compute(*, step: float, steps: float, width: float) -> Frame:
    curves, here = _shapes(step, _GRID, width), _shapes(step, np.array([steps]), width)
    series, readouts = {}, {}
    for place, what in enumerate(("spread", "defect")):
        for kind in KINDS:
            series[f"{what} {kind}"] = (_GRID, np.asarray(curves[kind][place]))
            readouts[f"{what}-{kind}"] = float(here[kind][place][0])
        series[f"{what} here"] = (np.full(3, steps), np.array([readouts[f"{what}-{kind}"] for kind in KINDS]))
    return Frame(series=series, readouts=readouts)


def _figure() -> go.Figure:
    traces = []
    names = {"coherent": "one isometry", "isotropic": "independent isometries", "aligned": "one matrix of rank one"}
    colors = {"coherent": BLUE, "isotropic": GREEN, "aligned": VERMILION}
    dashes = {"coherent": "dash", "isotropic": "solid", "aligned": "dot"}
    for what, panel in (("spread", {}), ("defect", LOWER)):
        traces += [
            go.Scatter(
                name=names[kind] if what == "spread" else f"{names[kind]}, defect",
                meta=f"{what} {kind}",
                mode="lines",
                showlegend=what == "spread",
                line={"color": colors[kind], "dash": dashes[kind], "width": 2.5},
                hovertemplate="%{x} steps: %{y:.3g}",
                **MOVING,
                **panel,
            )
            for kind in KINDS
        ]
        traces.append(
            go.Scatter(
                name="where you are" if what == "spread" else "where you are, defect",
                meta=f"{what} here",
                mode="markers",
                showlegend=False,
                marker={"size": 11, "color": [colors[kind] for kind in KINDS]},
                **MOVING,
                **panel,
            )
        )
    steps = {"type": "log", "range": [-0.05, 3.05], "tickvals": [1, 10, 100, 1000]}
    return two_panels(
        traces,
        upper=(
            axis("steps", **steps),
            axis("σ₁ ÷ σₙ", type="log", range=[-0.02, 2.3], tickvals=[1, 2, 5, 10, 20, 50, 100]),
        ),
        lower=(
            axis("steps", **steps),
            axis("defect", type="log", range=[-3.2, 1.2], tickvals=[0.001, 0.01, 0.1, 1, 10]),
        ),
        height=640,
    )
