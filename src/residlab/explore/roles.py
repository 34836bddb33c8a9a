"""The explorable of chapter 12 on roles: what each of the four precisions costs an inference, as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, GREEN, INK, MUTED, RUST, VERMILION, VIOLET, decades

Recorded = NDArray[np.float32]
ROLES: Mapping[str, str] = {
    "q": "operands, u_q",
    "a": "accumulation, u_a",
    "w": "functions, u_w",
    "r": "stream, u_r",
    "all": "all four",
}
FORMATS: Mapping[str, str] = {"e5m2": "e5m2", "e4m3fn": "e4m3", "bf16": "bf16", "fp16": "fp16", "tf32": "tf32"}
OTHERS: Mapping[str, str] = {
    "fp32": "all fp32",
    "bf16-products": "bf16 products, bf16 stream",
    "fp16-products": "fp16 products, fp16 stream",
    "bf16-fp32-stream": "bf16 products, fp32 stream",
}
_COLORS = {"q": BLUE, "a": GREEN, "w": VIOLET, "r": RUST, "all": INK}
_DASHES = {"q": "solid", "a": "dash", "w": "dot", "r": "dashdot", "all": "solid"}


@dataclass(frozen=True, eq=False)
class RecordedRoles:
    """What recorded inferences lost; NaN where there is no number.

    Parameters
    ----------
    relative : array, shape (roles, formats, blocks), float32
        Relative error of the stream after each block, the other roles in fp32, in the order of `ROLES` and `FORMATS`.
    ends : array, shape (roles, formats, 3), float32
        What is added to the loss, nats per token; divergence, nats; share of predictions that agree with float64.
    others, other_ends : array, shapes (others, blocks) and (others, 3), float32
        The same of `OTHERS`.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together.
    """

    relative: Recorded
    ends: Recorded
    others: Recorded
    other_ends: Recorded

    def __post_init__(self) -> None:
        roles, blocks = (len(ROLES), len(FORMATS)), self.relative.shape[-1]
        wanted = {
            "relative": (*roles, blocks),
            "ends": (*roles, 3),
            "others": (len(OTHERS), blocks),
            "other_ends": (len(OTHERS), 3),
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise ResidlabError(f"{name} has the shape {getattr(self, name).shape}, not {shape}")


def roles_explorable(recorded: RecordedRoles) -> Explorable:
    """Return the explorable of the four roles: one is rounded to a format, or all, beside what hardware does.

    Source: chapter 12.
    """
    return Explorable(
        name="roles",
        title="Which of the four precisions costs what?",
        alt=(
            "Two panels. Above: relative error of the residual stream after each block, with one role in {format} and "
            "the others in fp32, with all four in it, and for comparison {other}. Below: the error after the last "
            "block of each role, the root of their summed squares, their sum, and all four at once. With {role} in "
            "{format} it is {error} and the loss changes by {added} nats; for {other} {other-error} and {other-added}."
        ),
        controls=(
            Choice("role", "rounded", ROLES, "all", "the others are fp32"),
            Choice("format", "format", FORMATS, "bf16", "of what is rounded"),
            Choice("other", "beside", OTHERS, "bf16-products", "for comparison"),
        ),
        figure=_figure(),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("error", "Relative error at the end"),
            Readout("added", "Added to the loss, nats"),
            Readout("divergence", "Divergence, nats"),
            Readout("agreement", "Predictions that agree", "share"),
            Readout("root", "Root of squares of the four"),
            Readout("total", "Sum of the four"),
            Readout("other-error", "Beside: relative error"),
            Readout("other-added", "Beside: added, nats"),
        ),
        sentence=(
            "{role} in {format}: relative error {error}, {added} nats added to the loss, {agreement} of predictions "
            "agree. {other}: {other-error} and {other-added} nats."
        ),
        script="roles",
        data={
            "relative": recorded.relative,
            "ends": recorded.ends,
            "others": recorded.others,
            "otherEnds": recorded.other_ends,
        },
        caption=(
            "SmolLM2 on 256 tokens against float64, recorded. Above: circles mark what is chosen. Below, for the "
            "chosen format: each role alone, two ways of adding the four up, and all four at once. Errors above 10 are "
            "not drawn."
        ),
    )


def _compute(recorded: RecordedRoles, *, role: str, format: str, other: str) -> Frame:
    column, row = list(FORMATS).index(format), list(ROLES).index(role)
    beside = list(OTHERS).index(other)
    relative = recorded.relative[:, column].astype(np.float64)
    x = np.arange(1.0, relative.shape[-1] + 1)
    singles, whole = relative[:-1, -1], relative[-1, -1]
    root, total = float(np.sqrt(np.sum(singles**2))), float(np.sum(singles))
    added, divergence, agreement = recorded.ends[row, column].astype(np.float64)
    last = recorded.others[beside].astype(np.float64)
    return Frame(
        series={
            **{name: (x, relative[i]) for i, name in enumerate(ROLES)},
            "chosen": (x, relative[row]),
            "other": (x, last),
            "bars": (np.arange(7.0), np.array([*singles, root, total, whole])),
            "other-end": (np.array([-0.5, 6.5]), np.array([last[-1], last[-1]])),
        },
        readouts={
            "error": float(relative[row, -1]),
            "added": float(added),
            "divergence": float(divergence),
            "agreement": float(agreement),
            "root": root,
            "total": total,
            "other-error": float(last[-1]),
            "other-added": float(recorded.other_ends[beside, 0]),
        },
    )


def _figure() -> go.Figure:
    traces: list[Any] = [
        go.Scatter(
            name=name,
            meta=key,
            mode="lines",
            line={"color": _COLORS[key], "dash": _DASHES[key], "width": 2},
            hovertemplate="block %{x}: %{y:.3g}",
            **MOVING,
        )
        for key, name in ROLES.items()
    ]
    marker: dict[str, Any] = {"symbol": "circle-open", "color": INK, "size": 8, "line": {"width": 1.5}}
    beside = {"color": VERMILION, "dash": "longdash", "width": 2}
    traces += [
        go.Scatter(name="what is chosen", meta="chosen", mode="markers", marker=marker, hoverinfo="skip", **MOVING),
        go.Scatter(
            name="beside",
            meta="other",
            mode="lines",
            line=beside,
            legendgroup="other",
            hovertemplate="block %{x}: %{y:.3g}",
            **MOVING,
        ),
        go.Scatter(
            name="error at the end",
            meta="bars",
            mode="markers",
            showlegend=False,
            marker={
                "color": [*(_COLORS[role] for role in ("q", "a", "w", "r")), MUTED, MUTED, INK],
                "size": 13,
                "symbol": ["circle", "diamond", "square", "cross", "triangle-up", "triangle-down", "star"],
            },
            hovertemplate="%{y:.3g}",
            **MOVING,
            **LOWER,
        ),
        go.Scatter(
            name="beside, at the end",
            meta="other-end",
            mode="lines",
            legendgroup="other",
            showlegend=False,
            line=beside,
            hoverinfo="skip",
            **MOVING,
            **LOWER,
        ),
    ]
    size = decades(-6, 1)  # what is larger ended the model
    return two_panels(
        traces,
        upper=(axis("block", rangemode="tozero"), axis("relative error", **size)),
        lower=(
            axis(
                "",
                tickvals=list(range(7)),
                ticktext=["u_q", "u_a", "u_w", "u_r", "√Σ²", "Σ", "all"],
                range=[-0.5, 6.5],
            ),
            axis("relative error, end", **size),
        ),
        height=680,
    )
