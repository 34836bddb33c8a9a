"""The explorable of chapter 13: one outlier over a background, and what LayerNorm and RMSNorm make of small changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Array, Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, MUTED, VERMILION
from residlab.precision.formats import FORMATS
from residlab.theory.conditioning import layer_norm, layer_norm_entries, rms_norm_entries
from residlab.theory.massive_outlier import MassiveOutlier
from residlab.theory.norm_errors import layer_norm_error, rms_norm_error
from residlab.theory.validation import FloatArray

OUTLIERS = tuple(float(f"{10 ** (i / 5):.3g}") for i in range(31))
BACKGROUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MEANS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WIDTHS = (8.0, 16.0, 64.0, 256.0, 576.0, 1024.0)
NAMES = ("bf16", "fp16", "fp32")
_ENDLESS = 1e9
SERIES = ("worst", "median", "rms", "bound", "error-worst", "error-median", "error-rms")


def background(width: float) -> Array:
    """Return ``d - 1`` quantiles of the standard normal law, evenly spaced, increasing, float32."""
    from scipy.special import ndtri

    count = int(width) - 1
    return np.asarray(ndtri((np.arange(count) + 0.5) / count), dtype=np.float32)


_BACKGROUNDS: Mapping[float, FloatArray] = {width: background(width).astype(np.float64) for width in WIDTHS}


def conditioning_explorable() -> Explorable:
    """Return the explorable of condition numbers and error bounds beside one outlier M.

    The background is Gaussian, of mean m and standard deviation b. Errors are bounds, all operations in the format,
    pairwise sums, no eps, a token of numbers of the format; none where squares overflow.

    Source: chapter 13.
    """
    return Explorable(
        name="conditioning",
        title="When does an outlier help LayerNorm?",
        alt=(
            "Two panels against the size of one outlier, logarithmic, for {width} entries whose background has mean "
            "{mean} and standard deviation {background}. Above: componentwise condition numbers. RMSNorm's is at most "
            "2; LayerNorm's, of the worst entry, is rugged and large, and falls once the outlier is past the width "
            "times the largest deviation. At an outlier of {outlier} it is {worst}, of the median entry {median}, "
            "and RMSNorm's is {rms}. Below: bounds on relative errors in {format}: there {error-worst}, "
            "{error-median} and {error-rms}."
        ),
        controls=(
            Slider("outlier", "M", OUTLIERS, 1000.0, "sig3", "outlier"),
            Slider("background", "b", BACKGROUNDS, 1.0, "sig3", "standard deviation of the background"),
            Slider("mean", "m", MEANS, 0.0, "sig3", "mean of the background"),
            Slider("width", "d", WIDTHS, 64.0, "fixed0", "entries"),
            Choice("format", "format", {name: name for name in NAMES}, "bf16", "of every operation"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("delta", "d max|x − m| / |M − m|"),
            Readout("worst", "LayerNorm, worst entry"),
            Readout("median", "LayerNorm, median entry"),
            Readout("rms", "RMSNorm, worst entry"),
            Readout("error-worst", "Error ≤, LayerNorm, worst"),
            Readout("error-median", "Error ≤, LayerNorm, median"),
            Readout("error-rms", "Error ≤, RMSNorm"),
        ),
        sentence=(
            "With an outlier of {outlier}, d max|x − m| / |M − m| is {delta}. LayerNorm's condition number is {worst} "
            "at the worst entry and {median} at the median one, RMSNorm's is {rms}; in {format} relative errors are at "
            "most {error-worst}, {error-median} and {error-rms}."
        ),
        script="conditioning",
        data={f"width-{int(width)}": background(width) for width in WIDTHS},
        caption=(
            "Dotted: the theorem’s bound, where it says anything. Circles: where you are. Curves below end where the "
            "squares overflow the format."
        ),
    )


def _at(outlier: float, rest: FloatArray, name: str) -> dict[str, float]:
    """Return the values of one token; NaN for what is infinite, or so large that float64 cannot tell."""
    x = np.append(rest, outlier)
    d, fmt = len(x), FORMATS[name]
    with np.errstate(all="ignore"):
        entries = layer_norm_entries(x)
        depth = (d - 1).bit_length()
        relative = layer_norm_error(x, fmt.u, depth) / np.abs(layer_norm(x))
    token = MassiveOutlier(np.asarray(outlier), rest)
    squares = float(np.sum(x**2))
    fits = squares < fmt.largest
    values = {
        "delta": float(token.delta),
        "worst": float(entries.max()),
        "median": float(np.median(entries)),
        "rms": float(rms_norm_entries(x).max()),
        "bound": float(token.layer_norm_bound),
        "error-worst": float(relative.max()) if fits else np.nan,
        "error-median": float(np.median(relative)) if fits else np.nan,
        "error-rms": rms_norm_error(fmt.u, depth) if fits else np.nan,
    }
    return {key: value if value < _ENDLESS else np.nan for key, value in values.items()}


def _compute(*, outlier: float, background: float, mean: float, width: float, format: str) -> Frame:
    rest = mean + background * _BACKGROUNDS[width]
    curves = [_at(each, rest, format) for each in OUTLIERS]
    here = curves[OUTLIERS.index(outlier)]
    grid = np.array(OUTLIERS)
    series = {name: (grid, np.array([curve[name] for curve in curves])) for name in SERIES}
    for place, prefix in (("here", ""), ("error-here", "error-")):
        names = [f"{prefix}{name}" for name in ("worst", "median", "rms")]
        series[place] = (np.full(3, outlier), np.array([here[name] for name in names]))
    return Frame(series=series, readouts={name: value for name, value in here.items() if name != "bound"})


def _figure() -> go.Figure:
    styles: list[tuple[str, str, dict[str, Any]]] = [
        ("worst", "LayerNorm, worst entry", {"color": BLUE, "width": 2}),
        ("median", "LayerNorm, median entry", {"color": BLUE, "width": 2, "dash": "dash"}),
        ("rms", "RMSNorm", {"color": VERMILION, "width": 2.5}),
        ("bound", "bound of the theorem", {"color": MUTED, "width": 2.5, "dash": "dot"}),
    ]
    traces: list[Any] = []
    for prefix, panel in (("", {}), ("error-", LOWER)):
        traces += [
            go.Scatter(
                name=f"{title}, error" if prefix else title,
                meta=f"{prefix}{key}",
                mode="lines",
                line=line,
                legendgroup=key,
                showlegend=not prefix,
                hovertemplate="M = %{x}: %{y:.3g}",
                **MOVING,
                **panel,
            )
            for key, title, line in styles
            if f"{prefix}{key}" in SERIES
        ]
        traces.append(
            go.Scatter(
                name="where you are, error" if prefix else "where you are",
                meta=f"{prefix}here",
                mode="markers",
                showlegend=False,
                marker={"size": 12, "color": [BLUE, BLUE, VERMILION], "symbol": "circle-open", "line": {"width": 2}},
                hovertemplate="M = %{x}: %{y:.3g}",
                **MOVING,
                **panel,
            )
        )
    size = {"type": "log", "range": [-0.1, 6.1], "tickvals": [1, 10, 100, 1e3, 1e4, 1e5, 1e6]}
    ticks = {"tickvals": [10.0**k for k in range(-8, 9, 2)], "exponentformat": "power"}
    return two_panels(
        traces,
        upper=(axis("outlier M", **size), axis("condition number", type="log", range=[-4.2, 6.2], **ticks)),
        lower=(axis("outlier M", **size), axis("relative error, bound", type="log", range=[-6.8, 4.2], **ticks)),
        height=680,
    )
