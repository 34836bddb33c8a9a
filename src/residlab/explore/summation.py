"""The explorable of chapter 12 on sums: n, order and format against bounds, laws and real inner products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, GREEN, INK, MUTED, VERMILION, decades
from residlab.theory.summation import compounded, rms_bound, roundings, sum_bound

LENGTHS = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 576, 724, 1024, 1448, 1536)
"""Numbers of terms; a kind of sum has those up to its own length."""
BITS: Mapping[str, int] = {"t4": 4, "bf16": 8, "tf32": 11, "fp32": 24}
FORMATS: Mapping[str, str] = {
    "t4": "4 bits, as e4m3",
    "bf16": "bf16, 8 bits",
    "tf32": "tf32, 11 bits, as fp16",
    "fp32": "fp32, 24 bits",
}
BLOCK = 32
WAYS: Mapping[str, str] = {
    "recursive": "one after the other",
    "blocked": f"blocks of {BLOCK}",
    "pairwise": "pairwise",
    "stochastic": "one after the other, stochastically",
}
KINDS: Mapping[str, str] = {"down": "W_down x", "query": "W_Q x", "squares": "sum of squares of a norm"}


@dataclass(frozen=True, eq=False)
class MeasuredSums:
    """What rounded sums of real terms are off by, in units of the sum of the terms' magnitudes.

    Parameters
    ----------
    kinds : mapping of str to array, shape (formats, ways, lengths, 3), float32
        For each of `KINDS`, in the order of `BITS`, `WAYS` and `LENGTHS` (a prefix of these): root mean square and
        largest of the error, and the root mean square of the law of chance.

    Raises
    ------
    ResidlabError
        If a kind is missing, or an array has another shape.
    """

    kinds: Mapping[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        if set(self.kinds) != set(KINDS):
            raise ResidlabError(f"measured sums are of {', '.join(KINDS)}; got {', '.join(self.kinds)}")
        for name, values in self.kinds.items():
            lengths = values.shape[2] if values.ndim == 4 else 0
            if values.shape != (len(BITS), len(WAYS), lengths, 3) or not 0 < lengths <= len(LENGTHS):
                raise ResidlabError(
                    f"{name} must have shape ({len(BITS)}, {len(WAYS)}, lengths, 3) with 1 to {len(LENGTHS)} lengths; "
                    f"got {values.shape}"
                )


def worst_case(way: str, n: int, u: float) -> float:
    """Return the bound on the error of a way of `WAYS`: `sum_bound`, or of roundings of up to 2u if stochastic."""
    if way == "stochastic":
        return float(compounded(roundings("recursive", n), 2 * u))
    return sum_bound(way, n, u, BLOCK if way == "blocked" else None)


def root_law(way: str, n: int, u: float) -> float:
    """Return `rms_bound` of a way of `WAYS`."""
    order = "recursive" if way == "stochastic" else way
    return float(rms_bound(roundings(order, n, BLOCK if order == "blocked" else None), u))


def summation_explorable(measured: MeasuredSums) -> Explorable:
    """Return the explorable of sums: bounds and laws as they are proved, and sums of a real model, rounded.

    Source: chapter 12.
    """
    return Explorable(
        name="summation",
        title="How far is a rounded sum off, at worst and in fact?",
        alt=(
            "Two panels, in units of the unit roundoff times the sum of the terms' magnitudes. Above, against the "
            "number of terms, for {terms}, {format}, {order}: the worst case, the root of the number of roundings, the "
            "law of chance for these very sums, and the errors of real sums, largest and root mean square. Below: the "
            "same for four ways of summing {count} terms. Relative to the magnitudes the bound is {worst}, the law of "
            "chance {law}, the root mean square {rms} and the largest {largest}."
        ),
        controls=(
            Slider("n", "n", tuple(map(float, LENGTHS)), 512.0, "fixed0", "terms"),
            Choice("order", "order", WAYS, "recursive", "in which the sum is taken"),
            Choice("format", "accumulator", FORMATS, "bf16", "what every addition is rounded to"),
            Choice("terms", "terms", KINDS, "down", "of SmolLM2"),
        ),
        figure=_figure(),
        compute=partial(_compute, measured),
        readouts=(
            Readout("count", "Terms", "fixed0"),
            Readout("worst", "Worst case"),
            Readout("root", "u √m"),
            Readout("law", "Law of chance, these sums"),
            Readout("rms", "Measured, root mean square"),
            Readout("largest", "Measured, largest"),
            Readout("used", "Largest ÷ worst case", "share"),
        ),
        sentence=(
            "{terms}, {count} terms, {order}, {format}: at worst {worst} of the magnitudes; the law of chance says "
            "{law}, real sums are off by {rms} and at most {largest}."
        ),
        script="summation",
        data={**measured.kinds, "lengths": np.array(LENGTHS, dtype=np.float32)},
        caption=(
            "Errors over u Σ|p|. The worst case is proved to nearest, in every order; the other two lines hold if "
            "rounding errors have mean 0. Try the sum of squares: its terms are positive, and it stagnates."
        ),
    )


def _compute(measured: MeasuredSums, *, n: float, order: str, format: str, terms: str) -> Frame:
    u = 2.0 ** -BITS[format]
    row, column = list(BITS).index(format), list(WAYS).index(order)
    values = measured.kinds[terms].astype(np.float64)[row] / u  # (ways, lengths, 3)
    lengths = LENGTHS[: values.shape[1]]
    here = min(LENGTHS.index(int(n)), len(lengths) - 1)
    count = lengths[here]
    worst = np.array([worst_case(order, each, u) for each in lengths]) / u
    root = np.array([root_law(order, each, u) for each in lengths]) / u
    rms, largest, law = values[column].T
    x, ways = np.array(lengths, dtype=np.float64), np.arange(len(WAYS), dtype=np.float64)
    return Frame(
        series={
            "worst": (x, worst),
            "root": (x, root),
            "law": (x, law),
            "rms": (x, rms),
            "largest": (x, largest),
            "here": (np.array([count, count], dtype=np.float64), np.array([rms[here], largest[here]])),
            "worst-way": (ways, np.array([worst_case(way, count, u) for way in WAYS]) / u),
            "root-way": (ways, np.array([root_law(way, count, u) for way in WAYS]) / u),
            "law-way": (ways, values[:, here, 2]),
            "rms-way": (ways, values[:, here, 0]),
            "largest-way": (ways, values[:, here, 1]),
        },
        readouts={
            "count": float(count),
            "worst": float(worst[here] * u),
            "root": float(root[here] * u),
            "law": float(law[here] * u),
            "rms": float(rms[here] * u),
            "largest": float(largest[here] * u),
            "used": float(largest[here] / worst[here]),
        },
    )


def _figure() -> go.Figure:
    styles: tuple[tuple[str, str, str, dict[str, Any], str], ...] = (
        ("worst", "worst case", BLUE, {"width": 2.5}, "line-ew"),
        ("root", "u √m", MUTED, {"width": 2, "dash": "dash"}, "line-ew"),
        ("law", "law of chance, these sums", GREEN, {"width": 2, "dash": "dot"}, "line-ew"),
        ("largest", "measured, largest", VERMILION, {"width": 1.5, "dash": "dashdot"}, "diamond"),
        ("rms", "measured, root mean square", VERMILION, {"width": 2.5}, "circle"),
    )
    traces: list[Any] = []
    for key, name, color, line, _ in styles:
        traces.append(
            go.Scatter(
                name=name,
                meta=key,
                mode="lines",
                legendgroup=key,
                line={"color": color, **line},
                hovertemplate="n = %{x}: %{y:.3g} u",
                **MOVING,
            )
        )
    traces.append(
        go.Scatter(
            name="where you are",
            meta="here",
            mode="markers",
            marker={"size": 11, "symbol": "circle-open", "color": INK, "line": {"width": 2}},
            hoverinfo="skip",
            **MOVING,
        )
    )
    for key, name, color, _, symbol in styles:
        traces.append(
            go.Scatter(
                name=f"{name}, by order",
                meta=f"{key}-way",
                mode="markers",
                legendgroup=key,
                showlegend=False,
                marker={
                    "size": 26 if symbol == "line-ew" else 10,
                    "symbol": symbol,
                    "color": color,
                    "line": {"width": 3 if symbol == "line-ew" else 0, "color": color},
                },
                hovertemplate="%{y:.3g} u",
                **MOVING,
                **LOWER,
            )
        )
    size = decades(-2, 4)
    return two_panels(
        traces,
        upper=(
            axis("terms", type="log", range=[0.2, 3.3], tickvals=[1, 10, 100, 1000]),
            axis("error ÷ u Σ|p|", **size),
        ),
        lower=(
            axis(
                "",
                tickvals=list(range(len(WAYS))),
                ticktext=["recursive", f"blocks of {BLOCK}", "pairwise", "stochastic"],
                range=[-0.5, len(WAYS) - 0.5],
            ),
            axis("error ÷ u Σ|p|", **size),
        ),
        height=680,
    )
