"""What explorables have in common: two panels, one above the other, moving traces, the sliders of λ and κ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.explore.explorable import Slider
from residlab.explore.theme import template

LAMBDAS = tuple(i / 4 for i in range(1, 25))
KAPPAS = tuple(i / 4 for i in range(4, 81))

MOVING: Mapping[str, Any] = {"x": [], "y": []}
"""Properties of a trace that the state fills (besides ``meta``, the name of its series)."""
LOWER: Mapping[str, Any] = {"xaxis": "x2", "yaxis": "y2"}
"""Properties of a trace in the lower panel."""


def float32_pair(values: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
    """Return ``high`` and ``low``, whose sum has twice float32's digits, as data for a page that reads float32."""
    high = values.astype(np.float32)
    return {"high": high, "low": (values - high).astype(np.float32)}


def lam_slider(default: float) -> Slider:
    """Return the slider of BHyT's input bound λ."""
    return Slider("lam", "λ", LAMBDAS, default, description="input bound")


def kappa_slider(default: float) -> Slider:
    """Return the slider of Chebyshev's multiple κ."""
    return Slider("kappa", "κ", KAPPAS, default, description="Chebyshev’s multiple")


def axis(title: str, **properties: Any) -> dict[str, Any]:
    """Return the properties of an axis with a title."""
    return {"title": {"text": title}, **properties}


def two_panels(
    traces: Sequence[Any],
    *,
    upper: tuple[Mapping[str, Any], Mapping[str, Any]],
    lower: tuple[Mapping[str, Any], Mapping[str, Any]],
    height: int = 640,
    right: int = 20,
    **layout: Any,
) -> go.Figure:
    """Return a figure of two panels, one above the other, that no gesture drags.

    Parameters
    ----------
    traces : sequence of plotly traces
        Those with `LOWER` are drawn below.
    upper, lower : (mapping, mapping)
        Properties of each panel's x and y axis.
    height, right : int
        Height of the figure and right margin, in pixels.
    **layout
        Further properties of plotly's layout: a third y axis, how bars stand.
    """
    (x, y), (x2, y2) = upper, lower
    return go.Figure(
        list(traces),
        {
            "template": template(),
            "height": height,
            "dragmode": False,
            "margin": {"l": 68, "r": right, "t": 12, "b": 56},
            "xaxis": {"anchor": "y", **x},
            "yaxis": {"domain": [0.57, 1], **y},
            "xaxis2": {"anchor": "y2", **x2},
            "yaxis2": {"domain": [0, 0.42], "anchor": "x2", **y2},
            **layout,
        },
    )
