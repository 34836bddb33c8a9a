"""The picture on the front page: one stream of a random network, and what each of three changes does to it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import MOVING, axis
from residlab.explore.random_numbers import normals, uniforms
from residlab.explore.theme import INK, MUTED, template

FloatArray = NDArray[np.float64]

D, DEPTH = 64, 24
GAIN = 0.5
"""Of a branch, where there is a stream to add it to."""
STRUCK = 37
"""The entry that is struck."""
CHANGES = {"nothing": "nothing", "bounded": "bound it", "removed": "remove it"}
RATIOS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
BLOWS = tuple(float(size) for size in range(13))
BLOCKS = tuple(float(block) for block in range(1, DEPTH))
BITS = {"exact": 0, "bf16": 8, "fp8": 4, "coarse": 2}
"""Rounding -> bits of the significand, 0 for none; the exponent is unbounded."""
ROUNDINGS = {"exact": "no", "bf16": "to 8 bits, as bfloat16", "fp8": "to 4 bits, as FP8", "coarse": "to 2 bits"}
SHADES = ("#2f6fb7", "#5a6dc0", "#8067be", "#a25fb0", "#bd5a98", "#cf5b78", "#d86255", "#d9702f")
"""Colours of the entries, from the lowest to the highest at the start: equally light, so that none stands out."""


def one_stream_explorable() -> Explorable:
    """Return the picture: 64 entries of one token through 24 random blocks, one of them struck on the way.

    A block adds ``W n(x) / 2`` or, without the stream, leaves ``W n(x)``: W is a Hadamard matrix with random signs,
    divided by 8, and n(x) is ``x / r``, r the root mean square, or ``tanh(ratio x / r)`` (mean-free BHyT, ``ratio``
    being λ/κ). The blow is added to one entry of what the block leaves, all of which is rounded, to nearest even;
    the error is against the same network without rounding.

    Source: the book's front page (ours).
    """
    return Explorable(
        name="one-stream",
        title="One stream, three changes",
        alt=(
            "64 lines, the entries of one token, through 24 blocks of a random network; changed: {change}; rounded: "
            "{format}. One entry, drawn bold, is struck by {blow} behind block {block}. At the end the root mean "
            "square is {size}, and the largest entry is {crest} times that."
        ),
        controls=(
            Choice("change", "Change", CHANGES, "nothing", "what becomes of the stream"),
            Slider("ratio", "λ/κ", RATIOS, 0.25, "fixed2", "bound of what is read", when=("change", "bounded")),
            Slider("blow", "Strike", BLOWS, 9.0, "fixed0", "add so much to one entry"),
            Slider("block", "behind block", BLOCKS, 6.0, "fixed0"),
            Choice("format", "Round it", ROUNDINGS, "exact", "what each block leaves"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("size", "Size r at the end"),
            Readout("crest", "Largest entry ÷ r"),
            Readout("read", "… in what a layer reads"),
            Readout("error", "Relative error"),
        ),
        sentence=(
            "Change: {change}. Rounded: {format}. At the end the stream has the size {size}; its largest entry is "
            "{crest} times that, and {read} times in what a layer reads; its relative error is {error}."
        ),
        script="one_stream",
        caption=(
            "A network of random weights, computed in this page. Colours say where an entry began: with a stream they "
            "more or less stay in order; without one they are mixed at once, and so is the blow."
        ),
    )


def _compute(*, change: str, ratio: float, blow: float, block: float, format: str) -> Frame:
    exact = stream(change, ratio, blow, int(block), 0)
    drawn = stream(change, ratio, blow, int(block), BITS[format])
    blocks = np.arange(DEPTH + 1.0)
    r = np.sqrt(np.mean(drawn**2, axis=1))
    read = _read(drawn[-1], change, ratio)
    series = {f"shade-{i}": _lines(drawn[:, members]) for i, members in enumerate(_groups())}
    return Frame(
        series={
            **series,
            "struck": (blocks, drawn[:, STRUCK]),
            "size": (np.append(np.append(blocks, np.nan), blocks), np.append(np.append(r, np.nan), -r)),
        },
        readouts={
            "size": float(r[-1]),
            "crest": _crest(drawn[-1]),
            "read": _crest(read),
            "error": float(np.linalg.norm(drawn[-1] - exact[-1]) / np.linalg.norm(exact[-1])),
        },
    )


def stream(change: str, ratio: float, blow: float, block: int, bits: int) -> FloatArray:
    """Return the stream of the token, shape (25, 64), from the embedding on; see `one_stream_explorable`."""
    x = _start()
    states = [x]
    for number, signs in enumerate(_signs(), start=1):
        branch = _hadamard() @ (signs * _read(x, change, ratio)) / np.sqrt(D)
        x = branch if change == "removed" else x + GAIN * branch
        if number == block:
            x[STRUCK] += blow
        x = _rounded(x, bits)
        states.append(x)
    return np.array(states)


def _read(x: FloatArray, change: str, ratio: float) -> FloatArray:
    normalised = x / np.sqrt(np.mean(x**2))
    return np.asarray(np.tanh(ratio * normalised) if change == "bounded" else normalised)


def _rounded(x: FloatArray, bits: int) -> FloatArray:
    """Round to `bits` bits of the significand, nearest even; 0 leaves x as it is."""
    if not bits:
        return x
    fraction, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits))


def _crest(x: FloatArray) -> float:
    return float(np.abs(x).max() / np.sqrt(np.mean(x**2)))


@cache
def _start() -> FloatArray:
    x = normals(np.arange(D // 2))
    return np.asarray(x / np.sqrt(np.mean(x**2)))


@cache
def _signs() -> FloatArray:
    return np.where(uniforms(D + np.arange(DEPTH * D).reshape(DEPTH, D)) < 0.5, -1.0, 1.0)


@cache
def _hadamard() -> FloatArray:
    """Return Sylvester's matrix: its entry (i, j) is −1 to the number of ones that i and j share in binary."""
    i = np.arange(D)
    return np.where(np.bitwise_count(i[:, None] & i) % 2, -1.0, 1.0)


@cache
def _groups() -> tuple[NDArray[np.int64], ...]:
    """Return the entries of each colour, by where they begin, the struck one left out."""
    return tuple(part[part != STRUCK] for part in np.argsort(_start()).reshape(len(SHADES), -1))


def _lines(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the columns of x as one line with gaps."""
    gap = np.full((1, x.shape[1]), np.nan)
    blocks = np.append(np.arange(float(len(x))), np.nan)
    return np.tile(blocks, x.shape[1]), np.concatenate([x, gap]).T.ravel()


def _figure() -> go.Figure:
    def line(name: str, key: str, **more: Any) -> go.Scatter:
        return go.Scatter(name=name, meta=key, mode="lines", **MOVING, **more)

    names = {0: "lowest at the start", len(SHADES) - 1: "highest at the start"}
    traces = [
        line(
            names.get(i, f"entries, {i + 1} of {len(SHADES)}"),
            f"shade-{i}",
            showlegend=i in names,
            line={"color": shade, "width": 1.1},
            opacity=0.75,
            hoverinfo="skip",
        )
        for i, shade in enumerate(SHADES)
    ]
    traces += [
        line("root mean square, ±r", "size", line={"color": MUTED, "width": 1.75, "dash": "dash"}),
        line("the entry that is struck", "struck", line={"color": INK, "width": 2.75}),
    ]
    return go.Figure(
        traces,
        {
            "template": template(),
            "height": 420,
            "dragmode": False,
            "margin": {"l": 52, "r": 16, "t": 12, "b": 48},
            "xaxis": axis("block", range=[0, DEPTH], dtick=4),
            "yaxis": axis("entries of the stream", range=[-13, 13], dtick=5),
        },
    )
