"""The explorable of chapter 16: how far attention stretches a change of its tokens when one of them is an outlier."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, GREEN, INK, MUTED, VERMILION, VIOLET
from residlab.theory.attention_outlier import OutlierNorms, outlier_norms
from residlab.theory.lipschitz import castin_discrete

TOKENS = tuple(float(2**k) for k in range(1, 13))
RADII = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
FORMS = RADII
OUTLIERS = tuple(float(f"{10 ** (i / 10):.3g}") for i in range(-10, 21))
"""Lengths of the outlier over those of the others: the slider's stops."""
_LENGTHS = np.array([10 ** (i / 20) for i in range(-20, 41)])
ATTENDED = {"every": "every query", "half": "half of them"}
CURVES = ("norm", "local", "sharp", "simple")


def lipschitz_explorable() -> Explorable:
    """Return the explorable of the norm of attention's Jacobian and its bounds, on `outlier_norms`.

    Source: chapter 16.
    """
    return Explorable(
        name="lipschitz",
        title="Does an outlier calm attention?",
        alt=(
            "Two panels, logarithmic. Above: how far one head stretches, against the length of one outlier among "
            "{tokens} tokens, with the local bound just above it and two bounds for all inputs far above. Below: the "
            "same against the number of tokens, where one more bound, in the Frobenius norm, rises like its root. With "
            "an outlier {outlier} times as long as the others, which has {mass} of the mass where it has least, the "
            "norm is {norm} and the local bound {local}."
        ),
        controls=(
            Slider("tokens", "N", TOKENS, 256.0, "fixed0", "ordinary tokens"),
            Slider("radius", "R", RADII, 1.0, "fixed2", "their length"),
            Slider("form", "‖A‖", FORMS, 1.0, "fixed2", "norm of the logits’ form"),
            Slider("outlier", "s/R", OUTLIERS, 20.0, "sig3", "length of the outlier, over R"),
            Choice("attended", "attended by", ATTENDED, "every", "the queries that give the outlier its mass"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("mass", "Mass on the outlier, least", "share"),
            Readout("norm", "Norm (token)"),
            Readout("local", "Local bound"),
            Readout("sharp", "Sharp bound, all inputs"),
            Readout("castin", "Castin et al. (Frobenius)"),
        ),
        sentence=(
            "An outlier {outlier} times as long as the {tokens} other tokens has {mass} of the mass in the rows that "
            "give it least. The norm is {norm}, the local bound {local}, and the bound for all inputs {sharp}."
        ),
        script="lipschitz",
        caption=(
            "V is the identity. All but the dotted curve are in the token norm. The norm is what an iteration from "
            "below reaches; the local bound knows the covariance of each row."
        ),
    )


def _longest(radius: float, form: float, outlier: Any) -> Any:
    return form * radius**2 * np.maximum(1, outlier) ** 2


def _compute(*, tokens: float, radius: float, form: float, outlier: float, attended: str) -> Frame:
    common: dict[str, Any] = {"radius": radius, "form": form, "attended": attended}
    numbers = np.array(TOKENS)
    by_length = outlier_norms(tokens, outlier=_LENGTHS * radius, **common)
    by_tokens = outlier_norms(numbers, outlier=outlier * radius, **common)
    here: OutlierNorms = outlier_norms([tokens], outlier=outlier * radius, **common)
    series = {f"{name}-length": (_LENGTHS, getattr(by_length, name)) for name in CURVES}
    series |= {f"{name}-tokens": (numbers, getattr(by_tokens, name)) for name in CURVES}
    castin = castin_discrete(_longest(radius, form, outlier), numbers + 1)
    series["castin-tokens"] = (numbers, castin)
    norm = float(here.norm[0])
    series["here-length"] = (np.array([outlier]), np.array([norm]))
    series["here-tokens"] = (np.array([tokens]), np.array([norm]))
    readouts = {name: float(getattr(here, name)[0]) for name in ("mass", "norm", "local", "sharp")}
    return Frame(series=series, readouts=readouts | {"castin": float(castin[TOKENS.index(tokens)])})


def _figure() -> go.Figure:
    styles: list[tuple[str, str, dict[str, Any]]] = [
        ("norm", "norm", {"mode": "lines", "line": {"color": VERMILION, "width": 3}}),
        ("local", "local bound", {"mode": "lines", "line": {"color": BLUE, "width": 2, "dash": "dash"}}),
        ("sharp", "sharp bound", {"mode": "lines", "line": {"color": GREEN, "width": 2}}),
        ("simple", "1 + 2‖A‖R²", {"mode": "lines", "line": {"color": MUTED, "width": 1.5, "dash": "dashdot"}}),
    ]
    marker = {"size": 14, "color": INK, "symbol": "circle-open", "line": {"width": 2}}
    traces = []
    for panel, place in (("length", {}), ("tokens", LOWER)):
        traces += [
            go.Scatter(
                name=title if panel == "length" else f"{title}, by tokens",
                meta=f"{key}-{panel}",
                legendgroup=key,
                showlegend=panel == "length",
                hovertemplate="%{x:.3g}: %{y:.3g}",
                **MOVING,
                **style,
                **place,
            )
            for key, title, style in styles
        ]
        traces.append(
            go.Scatter(
                name="where you are" if panel == "length" else "where you are, by tokens",
                meta=f"here-{panel}",
                mode="markers",
                marker=marker,
                showlegend=False,
                **MOVING,
                **place,
            )
        )
    traces.append(
        go.Scatter(
            name="Castin et al., Frobenius norm",
            meta="castin-tokens",
            mode="lines",
            line={"color": VIOLET, "width": 2, "dash": "dot"},
            hovertemplate="%{x}: %{y:.3g}",
            **MOVING,
            **LOWER,
        )
    )
    stretch = {"type": "log", "range": [-0.1, 6.1], "exponentformat": "power", "dtick": 1}
    return two_panels(
        traces,
        upper=(
            axis("outlier ÷ ordinary tokens, length", type="log", tickvals=[0.1, 1, 10, 100]),
            axis("stretch", **stretch),
        ),
        lower=(axis("ordinary tokens", type="log", tickvals=[2, 16, 128, 1024]), axis("stretch", **stretch)),
        height=680,
    )
