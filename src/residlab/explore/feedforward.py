"""The explorable of chapter 14: one pre-activation, how it is conditioned, and what three forms lose of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_args

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Array, Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, MUTED, VERMILION, decades
from residlab.precision.formats import FORMATS, Format
from residlab.theory import feedforward as ff
from residlab.theory.validation import FloatArray

ARGUMENTS = tuple(float(k) / 8 for k in range(-64, 33))
NAMES = ("bf16", "fp16", "fp32")
BOUNDED: tuple[ff.Bounded, ...] = get_args(ff.Bounded)
FORMS = {"silu": "SiLU", "erf": "GELU by erf", "erfc": "GELU by erfc"}


def feedforward_explorable() -> Explorable:
    """Return the explorable of activations: condition numbers, and relative errors measured and bounded.

    Source: chapter 14.
    """
    return Explorable(
        name="feedforward",
        title="What is lost of a pre-activation?",
        alt=(
            "Two panels against the pre-activation x, -8 to 4. Above: the relative condition number of {form}, "
            "which grows to the left, and the falling slope. At {x} they are {relative} and {absolute}. Below: the "
            "relative error in {format}, there {measured}, and its first-order bound, {bound}."
        ),
        controls=(
            Slider("x", "x", ARGUMENTS, -5.0, "fixed3", "pre-activation"),
            Choice("form", "function", FORMS, "erf", "and its form"),
            Choice("format", "format", {name: name for name in NAMES}, "fp32", "of every operation"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("value", "φ(x)"),
            Readout("relative", "Relative condition"),
            Readout("absolute", "Absolute condition, |φ′|"),
            Readout("measured", "Relative error"),
            Readout("bound", "Bound"),
        ),
        sentence=(
            "At {x}, {form} is {value}; it magnifies relative errors by {relative} and absolute ones by {absolute}. "
            "Computed in {format} it is off by {measured} of itself; the bound is {bound}."
        ),
        script="feedforward",
        data=_data(),
        caption="All x are numbers of all three formats. Gaps: nothing is lost, or the value is subnormal.",
    )


def _data() -> dict[str, Array]:
    """Return what the page looks up, float32."""
    rows: dict[str, FloatArray] = {}
    for form in BOUNDED:
        rows |= {f"{form}-{key}": values for key, values in _conditions(form).items()}
        for name in NAMES:
            rows |= {f"{form}-{name}-{key}": values for key, values in _errors(form, name).items()}
    return {key: values.astype(np.float32) for key, values in rows.items()}


@lru_cache(maxsize=8)
def _conditions(form: ff.Bounded) -> dict[str, FloatArray]:
    x = np.array(ARGUMENTS)
    name: ff.Activation = "silu" if form == "silu" else "gelu"
    return {
        "value": ff.activation(x, name),
        "relative": ff.relative_condition(x, name),
        "absolute": np.abs(ff.derivative(x, name)),
    }


@lru_cache(maxsize=16)
def _errors(form: ff.Bounded, name: str) -> dict[str, FloatArray]:
    """Return relative errors, measured and bounded; NaN at 0, and where the value is below the normal numbers."""
    x, fmt = np.array(ARGUMENTS), FORMATS[name]
    exact = ff.exact_form(x, form)
    kept = np.abs(exact) > fmt.smallest_normal
    size = np.where(kept, np.abs(exact), np.nan)
    error = np.abs(_computed(x, form, fmt) - exact) / size
    return {
        "measured": np.where(error > 0, error, np.nan),
        "bound": ff.evaluation_error(x, form, fmt.u) / size,
    }


def _computed(x: FloatArray, form: ff.Bounded, fmt: Format) -> FloatArray:
    """Return what `residlab.precision.operations.Operations` computes, without torch."""
    from scipy.special import erf, erfc

    if form == "silu":
        return _nearest(x / _nearest(1 + _nearest(np.exp(-x), fmt), fmt), fmt)
    root = _nearest(np.array(0.5**0.5), fmt)
    inner = _nearest(x * root, fmt)
    factor = _nearest(erfc(-inner), fmt) if form == "erfc" else _nearest(1 + _nearest(erf(inner), fmt), fmt)
    return _nearest(x / 2 * factor, fmt)


def _nearest(values: FloatArray, fmt: Format) -> FloatArray:
    """Round to nearest, ties to even; nothing here overflows."""
    place = np.maximum(np.frexp(values)[1] - 1, fmt.emin or 0) - fmt.t + 1
    return np.asarray(np.ldexp(np.rint(np.ldexp(values, -place)), place))


def _compute(*, x: float, form: ff.Bounded, format: str) -> Frame:
    rows = {key: values.astype(np.float32).astype(np.float64) for key, values in _conditions(form).items()}
    rows |= {key: values.astype(np.float32).astype(np.float64) for key, values in _errors(form, format).items()}
    grid, here = np.array(ARGUMENTS), ARGUMENTS.index(x)
    series = {key: (grid, rows[key]) for key in ("relative", "absolute", "measured", "bound")}
    series["here"] = (np.array([x, x]), np.array([rows["relative"][here], rows["absolute"][here]]))
    series["error-here"] = (np.array([x, x]), np.array([rows["measured"][here], rows["bound"][here]]))
    return Frame(series=series, readouts={key: float(values[here]) for key, values in rows.items()})


def _figure() -> go.Figure:
    def line(key: str, title: str, style: dict[str, Any], panel: Mapping[str, Any]) -> go.Scatter:
        hover = "x = %{x}: %{y:.3g}"
        return go.Scatter(name=title, meta=key, mode="lines", line=style, hovertemplate=hover, **MOVING, **panel)

    def place(key: str, colors: list[str], panel: Mapping[str, Any]) -> go.Scatter:
        marker = {"size": 12, "color": colors, "symbol": "circle-open", "line": {"width": 2}}
        name = f"where you are{', error' if panel else ''}"
        return go.Scatter(name=name, meta=key, mode="markers", marker=marker, showlegend=False, **MOVING, **panel)

    traces = [
        line("relative", "relative condition", {"color": VERMILION, "width": 2.5}, {}),
        line("absolute", "absolute condition", {"color": BLUE, "width": 2.5, "dash": "dash"}, {}),
        place("here", [VERMILION, BLUE], {}),
        line("measured", "error, measured", {"color": VERMILION, "width": 1.5}, LOWER),
        line("bound", "error, bound", {"color": MUTED, "width": 2.5, "dash": "dot"}, LOWER),
        place("error-here", [VERMILION, MUTED], LOWER),
    ]
    return two_panels(
        traces,
        upper=(axis("pre-activation x", range=[-8.2, 4.2]), axis("condition", **decades(-3, 2.2))),
        lower=(axis("pre-activation x", range=[-8.2, 4.2]), axis("relative error", **decades(-9, 13, step=4))),
        height=680,
    )
