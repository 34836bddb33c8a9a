"""The explorable of chapter 2: how much of an input reaches BHyT's gates at ±λ, and what Chebyshev allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Control, Explorable, Frame, Readout
from residlab.explore.panels import KAPPAS, LOWER, MOVING, axis, kappa_slider, lam_slider, two_panels
from residlab.explore.theme import AXIS, BLUE, GREEN, INK, MUTED, VERMILION, VIOLET, decades
from residlab.theory.chebyshev import chebyshev_tail, three_point_law, vysochanskij_petunin_tail
from residlab.theory.laws import LAWS

FloatArray = NDArray[np.float64]
Tail = Callable[[FloatArray], FloatArray]

BIN = 0.125
"""Width of the drawn bins of the argument; every gate of the slider is a bin edge."""
REACH = 6.5
"""The outermost drawn bins collect everything beyond."""
FLOOR, CEILING = 1e-8, 1.9
_EDGES = np.arange(round(REACH / BIN) + 1) * BIN
_CENTRES = np.concatenate([-_EDGES[:0:-1] + BIN / 2, _EDGES[:-1] + BIN / 2])
_CURVE = np.geomspace(1, 20, 141).astype(np.float32).astype(np.float64)

_FINE_EDGES = np.arange(24 * 20 + 1) / 20
"""Edges of the recorded histogram of |x|/r, 0 to 24 in steps of 0.05; every κ of the slider is one."""

_THEORY = {"gaussian": "gaussian", "laplace": "laplace", "student-t3": "student_t3"}


@dataclass(frozen=True, eq=False)
class MeasuredLaw:
    """Activations x in units of their token's root mean square r, as counted.

    Parameters
    ----------
    label : str
        Where they were measured.
    survival : array, shape (77,), float32
        Share of entries with ``|x| >= kappa r``, for each of `KAPPAS`.
    histogram : array, shape (960,), float32
        Share of entries in bins of x/r of width 0.05 from −24 to 24, each with its edge nearer to zero; the outermost
        two collect everything beyond.

    Raises
    ------
    ResidlabError
        If a shape is wrong or the histogram's shares do not add up to 1.
    """

    label: str
    survival: NDArray[np.float32]
    histogram: NDArray[np.float32]

    def __post_init__(self) -> None:
        bins = 2 * (len(_FINE_EDGES) - 1)
        if self.survival.shape != (len(KAPPAS),) or self.histogram.shape != (bins,):
            shapes = f"{self.survival.shape} and {self.histogram.shape}"
            raise ResidlabError(f"{self.label!r}: survival and histogram have shapes {shapes}, not (77,) and ({bins},)")
        if not abs(float(self.histogram.sum(dtype=np.float64)) - 1) < 1e-4:
            raise ResidlabError(f"{self.label!r}: the histogram's shares add up to {self.histogram.sum()}, not 1")


def measured_law(label: str, normalised: ArrayLike) -> MeasuredLaw:
    """Count activations that were divided by their token's root mean square.

    Parameters
    ----------
    label : str
        Where they were measured, ``layer 12, before attention``.
    normalised : array_like, any shape
        x/r, finite.

    Raises
    ------
    ResidlabError
        If there is no entry, or one that is not finite.
    """
    values = np.asarray(normalised, dtype=np.float64).ravel()
    if not values.size or not np.isfinite(values).all():
        raise ResidlabError(
            f"{label!r}: needs finite activations divided by their token's RMS, got {values.size} entries"
        )
    size = np.abs(values)
    bins = len(_FINE_EDGES) - 1
    index = np.minimum(np.searchsorted(_FINE_EDGES, size, side="right") - 1, bins - 1)
    counts = np.bincount(np.where(values < 0, bins - 1 - index, bins + index), minlength=2 * bins)
    ranked = np.sort(size)
    survival = 1 - np.searchsorted(ranked, np.array(KAPPAS), side="left") / size.size
    return MeasuredLaw(label, survival.astype(np.float32), (counts / size.size).astype(np.float32))


def chebyshev_explorable(measured: Mapping[str, MeasuredLaw] | None = None, *, site: str | None = None) -> Explorable:
    """Return the explorable of Chebyshev's input bound.

    The input x has mean 0 and RMS 1 (standardised laws), or is measured in units of its token's RMS; the argument of
    the hyperbolic tangent is z = λx/κ. Whatever the law, at most 1/κ² of it reaches ±λ; this shows how much does.

    Parameters
    ----------
    measured : mapping of str to MeasuredLaw, optional
        Recorded activations of SmolLM2 by the name that stands in the address. Without them that law is not offered.
    site : str, optional
        The name of those shown first, by default the first.

    Source: [A] section 3; chapter 2.
    """
    recorded = dict(measured or {})
    laws = {
        "gaussian": "Gaussian",
        "laplace": "Laplace",
        "student-t3": "Student t, ν = 3",
        "three-point": "three points (extremal)",
    }
    controls: list[Control] = [lam_slider(2.0), kappa_slider(10.0)]
    data: dict[str, NDArray[Any]] = {"curve": _CURVE, "kappas": np.array(KAPPAS)}
    if recorded:
        laws["measured"] = "measured activations (SmolLM2)"
        data["survival"] = np.stack([law.survival for law in recorded.values()])
        data["histogram"] = np.stack([law.histogram for law in recorded.values()])
    controls.append(Choice("law", "Input law", laws, "gaussian"))
    if recorded:
        sites = {key: law.label for key, law in recorded.items()}
        controls.append(Choice("site", "Measured at", sites, site or next(iter(sites)), when=("law", "measured")))
    return Explorable(
        name="chebyshev",
        title="How much of the input reaches the gates at ±λ?",
        alt=(
            "Two panels. Above: histogram of the argument z of tanh for the input law {law}, with gates at ±{lam}; "
            "{share} of the mass lies at or beyond them. Below, on logarithmic axes: the share that reaches ±λ against "
            "κ, for Chebyshev's bound, the Vysochanskij–Petunin bound, a Gaussian and the chosen law; at κ = {kappa} "
            "Chebyshev's bound is {bound}."
        ),
        controls=tuple(controls),
        figure=_figure(),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("share", "Share at or beyond ±λ", "share"),
            Readout("bound", "Chebyshev’s bound 1\u2060/\u2060κ²", "share"),
            Readout("ratio", "Share ÷ bound"),
            Readout("rms", "RMS of the argument, λ\u2060/\u2060κ"),
            Readout("gate", "tanh λ, at the gate"),
        ),
        sentence=(
            "Input law: {law}. With λ\u00a0=\u00a0{lam} and κ\u00a0=\u00a0{kappa}, {share} of it reaches ±λ; Chebyshev "
            "allows no law more than {bound}. The argument of tanh has a root mean square of {rms}."
        ),
        script="chebyshev",
        caption=(
            "Above: the argument of tanh, in bins of 0.125; the outermost bars collect everything beyond ±6.5. Below: "
            "the share that reaches ±λ depends on κ alone; V.–P. is the Vysochanskij–Petunin bound for unimodal laws."
        ),
        data=data,
    )


def _compute(
    recorded: Mapping[str, MeasuredLaw], *, lam: float, kappa: float, law: str, site: str | None = None
) -> Frame:
    scale = lam / kappa
    curve: tuple[FloatArray, FloatArray]
    if law == "three-point":
        atoms, masses = three_point_law(kappa)
        share = float(masses[0] + masses[2])
        density = _atoms(scale * atoms, masses)
        curve = np.array([1.0, kappa, kappa]), np.array([share, share, FLOOR])
    elif law == "measured":
        record = recorded[str(site)]
        survival = record.survival.astype(np.float64)
        share = float(survival[round((kappa - KAPPAS[0]) * 4)])
        half = len(record.histogram) // 2
        density = _bins(
            _recorded_tail(record.histogram[half - 1 :: -1]), _recorded_tail(record.histogram[half:]), scale
        )
        curve = np.array(KAPPAS), np.where(survival > 0, survival, np.nan)
    else:
        tail = LAWS[_THEORY[law]].tail
        share = float(tail(kappa))
        density = _bins(lambda u: tail(u) / 2, lambda u: tail(u) / 2, scale)
        curve = _CURVE, tail(_CURVE)
    bound = float(chebyshev_tail(kappa))
    outside = np.abs(_CENTRES) - BIN / 2 >= lam - 1e-9
    gap = np.nan
    return Frame(
        series={
            "inside": (_CENTRES, np.where(outside, gap, density)),
            "outside": (_CENTRES, np.where(outside, density, gap)),
            "beyond": (
                np.array([-REACH, -lam, -lam, -REACH, gap, lam, REACH, REACH, lam]),
                np.array([FLOOR, FLOOR, CEILING, CEILING, gap, FLOOR, FLOOR, CEILING, CEILING]),
            ),
            "gates": (
                np.array([-lam, -lam, gap, lam, lam]),
                np.array([FLOOR, CEILING, gap, FLOOR, CEILING]),
            ),
            "law": curve,
            "here": (np.array([kappa, kappa]), np.array([bound, share if share > 0 else gap])),
        },
        readouts={
            "share": share,
            "bound": bound,
            "ratio": share / bound,
            "rms": scale,
            "gate": float(np.tanh(lam)),
        },
    )


def _bins(below: Tail, above: Tail, scale: float) -> FloatArray:
    """Return the share in each drawn bin, from the one-sided tails of x on the two sides of zero."""
    low, high = (
        -np.diff(np.append(tail(np.asarray(_EDGES[:-1] / scale, dtype=np.float64)), 0.0)) for tail in (below, above)
    )
    return np.concatenate([low[::-1], high])


def _recorded_tail(outwards: NDArray[np.floating[Any]]) -> Tail:
    """Return the one-sided tail of a recorded histogram, linear within its bins."""
    beyond = np.append(np.cumsum(outwards[::-1].astype(np.float64))[::-1], 0.0)
    return lambda u: np.interp(u, _FINE_EDGES, beyond)


def _atoms(positions: FloatArray, masses: FloatArray) -> FloatArray:
    """Return the share in each drawn bin of a law with atoms; one at zero is halved, one on an edge belongs outside."""
    density, half = np.zeros_like(_CENTRES), len(_CENTRES) // 2
    for position, mass in zip(positions, masses, strict=True):
        index = min(int((abs(position) + 1e-9) / BIN), half - 1)
        density[half + index] += mass / 2 if position == 0 else mass * (position > 0)
        density[half - 1 - index] += mass / 2 if position == 0 else mass * (position < 0)
    return density


def _figure() -> go.Figure:
    z, hover_z = np.linspace(-REACH, REACH, 131), "z ≈ %{x:.2f}: %{y:.2e}<extra></extra>"
    lower: dict[str, Any] = {**LOWER, "mode": "lines", "hovertemplate": "κ = %{x:.2f}: %{y:.2e}"}
    traces = [
        go.Scatter(
            name="beyond the gates",
            meta="beyond",
            fill="toself",
            fillcolor="rgba(255,88,13,0.09)",
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            mode="lines",
            **MOVING,
        ),
        go.Bar(
            name="inside ±λ",
            meta="inside",
            marker={"color": BLUE},
            hovertemplate=hover_z,
            width=BIN,
            **MOVING,
        ),
        go.Bar(
            name="at or beyond ±λ",
            meta="outside",
            marker={"color": VERMILION},
            hovertemplate=hover_z,
            width=BIN,
            **MOVING,
        ),
        go.Scatter(
            name="gates at ±λ",
            meta="gates",
            mode="lines+text",
            line={"color": VERMILION, "width": 1.5, "dash": "dash"},
            text=["", "−λ ", "", "", " λ"],
            textposition=["top left", "bottom left", "top left", "top left", "bottom right"],
            textfont={"color": INK, "size": 13},
            hoverinfo="skip",
            showlegend=False,
            **MOVING,
        ),
        go.Scatter(
            name="tanh z",
            x=z,
            y=np.tanh(z),
            yaxis="y3",
            mode="lines",
            line={"color": MUTED, "width": 1.5, "dash": "dot"},
            hovertemplate="tanh %{x:.2f} = %{y:.3f}<extra></extra>",
        ),
        go.Scatter(
            name="Chebyshev, 1/κ²", x=_CURVE, y=chebyshev_tail(_CURVE), line={"color": INK, "width": 2}, **lower
        ),
        go.Scatter(
            name="unimodal bound (V.–P.)",
            x=_CURVE,
            y=vysochanskij_petunin_tail(_CURVE),
            line={"color": VIOLET, "width": 2, "dash": "dash"},
            **lower,
        ),
        go.Scatter(
            name="Gaussian",
            x=_CURVE,
            y=LAWS["gaussian"].tail(_CURVE),
            line={"color": GREEN, "width": 2, "dash": "dot"},
            **lower,
        ),
        go.Scatter(name="chosen law", meta="law", line={"color": VERMILION, "width": 3}, **lower, **MOVING),
        go.Scatter(
            name="at the chosen κ",
            meta="here",
            line={"color": AXIS, "width": 1.5},
            marker={"size": 10, "color": [INK, VERMILION], "line": {"width": 0}},
            **{**lower, "mode": "lines+markers", "showlegend": False},
            **MOVING,
        ),
    ]
    shares = decades(-8, 0.3, step=2)
    return two_panels(
        traces,
        upper=(axis("argument z of tanh", range=[-REACH, REACH], dtick=2), axis("share per bin", **shares)),
        lower=(
            axis("κ", type="log", range=[0, np.log10(20)], tickvals=[1, 2, 3, 5, 10, 20]),
            axis("share reaching ±λ", **shares),
        ),
        yaxis3=axis("tanh z", overlaying="y", side="right", range=[-1.15, 1.15], tickvals=[-1, 0, 1], showgrid=False),
        right=56,
        barmode="overlay",
        bargap=0,
    )
