"""The explorable of chapter 11: bits, crest factor and law of the entries, and what a uniform quantizer leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Array, Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, MUTED, VERMILION
from residlab.theory.quantization import decibels, law_sqnr, measured_sqnr, sqnr_floor
from residlab.theory.validation import FloatArray

BITS = tuple(float(b) for b in range(2, 13))
PEAKS = tuple(round(10 ** (i / 10), 2) for i in range(31))
HALF = 1024
LAWS: Mapping[str, str] = {"gaussian": "Gaussian", "laplace": "Laplace", "uniform": "uniform"}


def magnitudes(law: str) -> Array:
    """Return the magnitudes of `HALF` entries of a symmetric law of variance 1, float32: its quantiles, evenly spaced.

    With both signs they are the sample that is rounded.
    """
    from scipy.special import ndtri

    share = (np.arange(HALF) + 0.5) / HALF
    values = {
        "gaussian": lambda: ndtri((1 + share) / 2),
        "laplace": lambda: -np.log1p(-share) / np.sqrt(2),
        "uniform": lambda: share * np.sqrt(3),
    }[law]()
    return np.asarray(values, dtype=np.float32)


def quantization_explorable() -> Explorable:
    """Return the explorable of quantization noise: law and floors beside a sample that is rounded.

    The sample has both signs of the `magnitudes` below the peak, and one entry at the peak: what it is given that the
    largest magnitude is the peak, but for chance.

    Source: chapter 11.
    """
    return Explorable(
        name="quantization",
        title="How much does one large entry cost?",
        alt=(
            "Two panels. Above: signal-to-noise ratio against bits, from the crest-factor law, from the floors, and of "
            "a sample that is rounded, straight lines of 6 decibels a bit where steps are fine. Below: the same at "
            "{bits} bits against the peak. At a peak of {peak} standard deviations the crest factor is {crest} dB; the "
            "law says {law-sqnr} dB, the sample has {sampled} dB, and no tensor has less than {floor} dB."
        ),
        controls=(
            Slider("bits", "b", BITS, 8.0, "fixed0", "bits"),
            Slider("peak", "P/σ", PEAKS, PEAKS[6], "sig3", "largest entry, in standard deviations of the law"),
            Choice("law", "entries", LAWS, "gaussian", "law of all entries but the largest"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("crest", "Crest factor, dB", "fixed1"),
            Readout("law-sqnr", "Law, dB", "fixed1"),
            Readout("sampled", "Sample, dB", "fixed1"),
            Readout("floor", "Floor, dB", "fixed1"),
            Readout("zero", "Entries rounded to 0", "share"),
        ),
        sentence=(
            "With {bits} bits and a peak of {peak} the law says {law-sqnr} dB, the sample has {sampled} dB and the "
            "floor is {floor} dB; {zero} of the entries are rounded to 0."
        ),
        script="quantization",
        data={law: magnitudes(law) for law in LAWS},
        caption=(
            "Up to 2049 entries, the largest one the peak. The law (line) fails where steps are coarse: it goes below "
            "the floors (dotted), which no tensor does."
        ),
    )


def _sample(law: str, peak: float) -> FloatArray:
    sizes = _MAGNITUDES[law]
    kept = sizes[sizes < peak]
    return np.concatenate([kept, -kept, [peak]])


_MAGNITUDES: Mapping[str, FloatArray] = {law: magnitudes(law).astype(np.float64) for law in LAWS}


def _of(x: FloatArray) -> tuple[float, int]:
    """Return the crest factor, and the number of entries."""
    return float(np.abs(x).max() / np.sqrt(np.mean(x**2))), len(x)


def _compute(*, bits: float, peak: float, law: str) -> Frame:
    x = _sample(law, peak)
    crest, entries = _of(x)
    all_bits = np.array(BITS)
    by_bits = {
        "law": law_sqnr(all_bits, crest),
        "floor": sqnr_floor(all_bits, crest, entries),
        "sample": np.array([measured_sqnr(x, b) for b in BITS]),
    }
    samples = [_sample(law, each) for each in PEAKS]
    crests, counts = (np.array(values) for values in zip(*map(_of, samples), strict=True))
    by_peak = {
        "law": law_sqnr(bits, crests),
        "floor": sqnr_floor(bits, crests, counts),
        "sample": np.array([measured_sqnr(each, bits) for each in samples]),
    }
    here = BITS.index(bits)
    sampled = float(by_bits["sample"][here])
    return Frame(
        series={
            **{f"{name}-bits": (all_bits, values) for name, values in by_bits.items()},
            **{f"{name}-peak": (np.array(PEAKS), values) for name, values in by_peak.items()},
            "here-bits": (np.array([bits]), np.array([sampled])),
            "here-peak": (np.array([peak]), np.array([sampled])),
        },
        readouts={
            "crest": float(decibels(crest)),
            "law-sqnr": float(by_bits["law"][here]),
            "sampled": sampled,
            "floor": float(by_bits["floor"][here]),
            "zero": float(np.mean(np.abs(x) <= peak / (2**bits - 2))),
        },
    )


def _figure() -> go.Figure:
    styles: list[tuple[str, str, dict[str, Any]]] = [
        ("law", "law", {"mode": "lines", "line": {"color": BLUE, "width": 2.5}}),
        ("floor", "floor", {"mode": "lines", "line": {"color": MUTED, "width": 2.5, "dash": "dot"}}),
        (
            "sample",
            "sample",
            {"mode": "lines+markers", "line": {"color": VERMILION, "width": 1.5}, "marker": {"size": 6}},
        ),
        (
            "here",
            "where you are",
            {"mode": "markers", "marker": {"size": 14, "color": VERMILION, "symbol": "circle-open"}},
        ),
    ]
    traces = [
        go.Scatter(
            name=name if panel == "bits" else f"{name}, by peak",
            meta=f"{key}-{panel}",
            legendgroup=key,
            showlegend=panel == "bits",
            hovertemplate=("%{x} bits" if panel == "bits" else "peak %{x}") + ": %{y:.1f} dB",
            **MOVING,
            **style,
            **(LOWER if panel == "peak" else {}),
        )
        for panel in ("bits", "peak")
        for key, name, style in styles
    ]
    level = {"range": [-28, 78], "zeroline": True}
    return two_panels(
        traces,
        upper=(axis("bits", dtick=2), axis("SQNR, dB", **level)),
        lower=(axis("peak, standard deviations", type="log", tickvals=[1, 10, 100, 1000]), axis("SQNR, dB", **level)),
        height=660,
    )
