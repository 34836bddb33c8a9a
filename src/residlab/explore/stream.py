"""The explorable of chapter 1: one token of a real model, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import BLUE, INK, MUTED, VERMILION, decades

FloatArray = NDArray[np.float64]
Recorded = NDArray[np.float32]

LOW, HIGH, WIDTH = -3.0, 1.6, 0.1
"""Drawn bins of log10(|x|/r): the first collects everything below, the last everything above."""
BINS = round((HIGH - LOW) / WIDTH)
_EDGES = LOW + WIDTH * np.arange(BINS + 1)
_CENTRES = (_EDGES[:-1] + _EDGES[1:]) / 2
_FLOOR = 0.7


@dataclass(frozen=True, eq=False)
class RecordedStream:
    """The stream of one text, token by token, as counted.

    Parameters
    ----------
    tokens : tuple of str, length T
        What each token says.
    counts : array, shape (layers, T, 46), float32
        Entries in bins of log10(|x|/r) of width 0.1 from −3 to 1.6, r the token's root mean square.
    rms, largest, channel, kurtosis : array, shape (layers, T), float32
        The token's root mean square, its largest absolute entry, that entry's index, and its excess kurtosis.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together.
    """

    tokens: tuple[str, ...]
    counts: Recorded
    rms: Recorded
    largest: Recorded
    channel: Recorded
    kurtosis: Recorded

    def __post_init__(self) -> None:
        shape = self.rms.shape
        others = [self.largest.shape, self.channel.shape, self.kurtosis.shape]
        if len(shape) != 2 or shape[1] != len(self.tokens) or others != [shape] * 3:
            raise ResidlabError(f"a recorded stream of {len(self.tokens)} tokens has the shapes {[shape, *others]}")
        if self.counts.shape != (*shape, BINS):
            raise ResidlabError(f"counts have the shape {self.counts.shape}, not {(*shape, BINS)}")


def record_stream(tokens: Sequence[str], stream: ArrayLike) -> RecordedStream:
    """Count the entries of each token at each layer.

    Parameters
    ----------
    tokens : sequence of str, length T
        What each token says.
    stream : array_like, shape (layers, T, d)
        The embedding, then the stream after each layer; finite.

    Raises
    ------
    ResidlabError
        If the shape does not fit the tokens, or a token is zero or not finite.
    """
    x = np.asarray(stream, dtype=np.float64)
    if x.ndim != 3 or x.shape[1] != len(tokens):
        raise ResidlabError(f"a stream of {len(tokens)} tokens has shape (layers, {len(tokens)}, d), not {x.shape}")
    rms = np.sqrt(np.mean(x**2, axis=-1))
    if not (np.isfinite(rms) & (rms > 0)).all():
        raise ResidlabError("every token must be finite and not zero")
    size = np.abs(x)
    with np.errstate(divide="ignore"):
        index = np.floor((np.log10(size / rms[..., None]) - LOW) / WIDTH)
    index = np.clip(index, 0, BINS - 1).astype(int)
    counts = np.stack([np.count_nonzero(index == i, axis=-1) for i in range(BINS)], axis=-1)
    centred = x - x.mean(-1, keepdims=True)
    kurtosis = np.mean(centred**4, -1) / np.mean(centred**2, -1) ** 2 - 3
    arrays = (counts, rms, size.max(-1), size.argmax(-1), kurtosis)
    return RecordedStream(tuple(tokens), *(np.asarray(a, dtype=np.float32) for a in arrays))


def stream_explorable(recorded: RecordedStream, *, layer: int = 12, token: int = 0) -> Explorable:
    """Return the explorable of the residual stream: layer and token give the token's histogram and its profile.

    Parameters
    ----------
    recorded : RecordedStream
        The stream of one text.
    layer, token : int
        Where a reader begins; layer 0 is the embedding.

    Source: chapter 1.
    """
    layers, d = len(recorded.rms), int(recorded.counts[0, 0].sum())
    names = {f"t{i}": f"{i}: “{_printable(text)}”" for i, text in enumerate(recorded.tokens)}
    return Explorable(
        name="stream",
        title="What does one token of the stream look like, layer by layer?",
        alt=(
            "Two panels for token {token} after layer {layer}. Above: histogram of its entries' sizes in units of the "
            "token's root mean square, on logarithmic axes, beside that of a Gaussian; the largest entry is {crest} "
            "times the root mean square. Below: root mean square and largest entry of this token at every layer; here "
            "they are {rms} and {largest}."
        ),
        controls=(
            Slider("layer", "layer", tuple(map(float, range(layers))), float(layer), "fixed0", "0 is the embedding"),
            Choice("token", "token", names, f"t{token}", "position and text"),
        ),
        figure=_figure(recorded, d),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("rms", "Root mean square r"),
            Readout("largest", "Largest |xᵢ|"),
            Readout("crest", "Largest |xᵢ| ÷ r"),
            Readout("channel", "In dimension", "fixed0"),
            Readout("kurtosis", "Excess kurtosis"),
        ),
        sentence=(
            "Token {token} after layer {layer}: root mean square {rms}. Its largest entry is {largest}, in dimension "
            "{channel}, {crest} times the root mean square; the excess kurtosis of its entries is {kurtosis}."
        ),
        script="stream",
        caption=(
            "Above: the entries of one token by size, in bins of a tenth of a decade; the first bar collects all that "
            "are smaller. The dotted line is what a Gaussian token would have. Below: the same token at every layer."
        ),
        data={
            "counts": recorded.counts,
            "rms": recorded.rms,
            "largest": recorded.largest,
            "channel": recorded.channel,
            "kurtosis": recorded.kurtosis,
        },
    )


def _printable(text: str) -> str:
    return text.strip().replace("\n", "⏎") or "␣"


def _compute(recorded: RecordedStream, *, layer: float, token: str) -> Frame:
    row, column = round(layer), int(token[1:])
    counts = recorded.counts[row, column].astype(np.float64)
    rms, largest = (a[:, column].astype(np.float64) for a in (recorded.rms, recorded.largest))
    depth = np.arange(len(rms), dtype=np.float64)
    return Frame(
        series={
            "histogram": (10.0**_CENTRES, np.where(counts > 0, counts, np.nan)),
            "rms": (depth, rms),
            "largest": (depth, largest),
            "here": (np.array([layer, layer]), np.array([rms[row], largest[row]])),
        },
        readouts={
            "rms": float(rms[row]),
            "largest": float(largest[row]),
            "crest": float(largest[row] / rms[row]),
            "channel": float(recorded.channel[row, column]),
            "kurtosis": float(recorded.kurtosis[row, column]),
        },
    )


def _gaussian_counts(d: int) -> FloatArray:
    from residlab.theory.laws import gaussian_tail

    beyond = gaussian_tail(10.0**_EDGES)
    beyond[0], beyond[-1] = 1.0, 0.0
    return np.asarray(-d * np.diff(beyond))


def _figure(recorded: RecordedStream, d: int) -> go.Figure:
    sizes = np.concatenate([recorded.rms.ravel(), recorded.largest.ravel()])
    low, high = np.floor(np.log10(sizes.min())), np.ceil(np.log10(sizes.max()))
    expected = _gaussian_counts(d)
    lower: dict[str, Any] = {**LOWER, "mode": "lines"}
    traces = [
        go.Bar(
            name="entries of the token",
            meta="histogram",
            marker={"color": BLUE},
            width=(10 ** _EDGES[1:] - 10 ** _EDGES[:-1]) * 0.94,
            hovertemplate="|x|/r ≈ %{x:.3g}: %{y}<extra></extra>",
            **MOVING,
        ),
        go.Scatter(
            name="a Gaussian token",
            x=10**_CENTRES,
            y=np.where(expected > _FLOOR / 10, expected, np.nan),
            mode="lines",
            line={"color": INK, "dash": "dot", "width": 2},
            hovertemplate="|x|/r ≈ %{x:.3g}: %{y:.2g}<extra>Gaussian</extra>",
        ),
        go.Scatter(
            name="its largest entry",
            meta="largest",
            line={"color": VERMILION, "width": 2.25},
            hovertemplate="layer %{x}: %{y:.4g}<extra>largest entry</extra>",
            **lower,
            **MOVING,
        ),
        go.Scatter(
            name="its root mean square",
            meta="rms",
            line={"color": BLUE, "width": 2.25, "dash": "dash"},
            hovertemplate="layer %{x}: %{y:.4g}<extra>root mean square</extra>",
            **lower,
            **MOVING,
        ),
        go.Scatter(
            name="at the chosen layer",
            meta="here",
            line={"color": MUTED, "width": 1.5},
            marker={"size": 10, "color": [BLUE, VERMILION]},
            showlegend=False,
            hoverinfo="skip",
            **{**lower, "mode": "lines+markers"},
            **MOVING,
        ),
    ]
    sizes_at = [0.001, 0.01, 0.1, 1, 10]
    return two_panels(
        traces,
        upper=(
            axis(
                "size of an entry, |x| / r",
                type="log",
                range=[LOW, HIGH],
                tickvals=sizes_at,
                ticktext=[f"{size:g}" for size in sizes_at],
            ),
            axis(
                f"entries, out of {d}",
                type="log",
                range=[np.log10(_FLOOR), np.log10(d)],
                tickvals=[1, 3, 10, 30, 100, 300],
            ),
        ),
        lower=(
            axis("layer", range=[-0.5, len(recorded.rms) - 0.5], dtick=5),
            axis("size", **decades(int(low), float(high))),
        ),
        height=620,
        right=24,
        bargap=0,
    )
