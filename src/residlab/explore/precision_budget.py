"""The explorable of chapter 18: bits that are left at each depth, and what a tanh in front of a quantizer can buy."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, float32_pair, two_panels
from residlab.explore.theme import BLUE, INK, MUTED, VERMILION, decades
from residlab.theory.error_growth import errors_without_residual, layers_until_noise, mean_square_errors, stored_error
from residlab.theory.propagation import Feedforward, kernel_slope
from residlab.theory.quantization import bounding_bits

NETWORKS = {"residual": "with residual connections", "free": "without"}
FEEDFORWARDS = dict(zip(get_args(Feedforward), ("gated (SwiGLU)", "not gated (GELU)"), strict=True))
PRECISIONS = {"fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8, "e4m3fn": 4}
"""Format -> its significand's bits."""
FORMATS = {name: f"{name}, {bits} bits" for name, bits in PRECISIONS.items()}
DEPTHS = (1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0)
GAINS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
EMBEDDINGS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CRESTS = (2.0, 3.0, 4.0, 4.5, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
ROUNDINGS = 4
"""Of a branch: what the norm writes, the factors of its product, a function, the product."""


def precision_budget_explorable() -> Explorable:
    """Return the explorable of bits left by depth, and bits bought by a tanh.

    Source: chapter 18 (ours).
    """
    return Explorable(
        name="precision-budget",
        title="How many bits are left, and how many does bounding buy?",
        alt=(
            "Two panels. Above, the relative error by block, in {format}, {network}, {feedforward}, over {depth} "
            "blocks: {end} at the end, {left} bits are left. Below, the most bits that a tanh in front of a quantizer "
            "can buy, against its gain: {bought} at a gain of {gain} with a crest factor of {crest}."
        ),
        controls=(
            Choice("network", "network", NETWORKS, "free"),
            Choice("feedforward", "feedforward", FEEDFORWARDS, "swiglu"),
            Choice("format", "format", FORMATS, "bf16", "of everything"),
            Slider("depth", "L", DEPTHS, 12.0, "fixed0", "blocks"),
            Slider("gain", "λ/κ", GAINS, 0.2, "fixed2", "gain in front of every sublayer; 1: RMSNorm"),
            Slider("embedding", "s₀", EMBEDDINGS, 1.0, "fixed2", "embedding ÷ what a sublayer writes with gain 1"),
            Slider("crest", "C", CRESTS, 4.5, "sig3", "largest entry ÷ root mean square"),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("end", "Relative error at the end"),
            Readout("left", "Bits left", "fixed1"),
            Readout("lost", "Bits lost on the way", "fixed1"),
            Readout("noise", "Blocks until nothing is left, without residual", "sig3"),
            Readout("bought", "A tanh buys at most, bits", "fixed2"),
        ),
        sentence=(
            "In {format}, {network}, with a feedforward that is {feedforward}, {left} bits are left after {depth} "
            "blocks; {lost} were lost on the way. Without residual connections nothing is left after {noise} blocks. "
            "A tanh with the gain {gain} buys at most {bought} bits."
        ),
        script="precision_budget",
        data=float32_pair(_gains()),
        caption=(
            "Predicted for random weights, to first order: above 1 an error has nothing left to destroy. Two sublayers "
            "a block; attention keeps relative errors as they are, each branch rounds four times, the stream once."
        ),
    )


@cache
def _gains() -> NDArray[np.float64]:
    """Return chi of each feedforward at each gain, (feedforwards, gains)."""
    return np.array([[kernel_slope(kind, variance=gain**2) for gain in GAINS] for kind in get_args(Feedforward)])


def _compute(
    *, network: str, feedforward: str, format: str, depth: float, gain: float, embedding: float, crest: float
) -> Frame:
    chi = float(_gains()[list(FEEDFORWARDS).index(feedforward), GAINS.index(gain)])
    tau = float(stored_error(2.0 ** -PRECISIONS[format]))
    beta, layers = ROUNDINGS**0.5 * tau, int(depth)
    chis = np.tile([1.0, chi], layers)
    sizes = np.sqrt(embedding**2 + gain**2 * np.arange(2 * layers + 1))
    found = {
        "residual": mean_square_errors(sizes, beta, tau, gain=chis, initial=tau)[::2],
        "free": errors_without_residual(chis, beta, tau, initial=tau)[::2],
    }
    made = ((beta**2 + tau**2) * (1 + chi)) ** 0.5  # of a block: attention's error goes through the feedforward
    errors, blocks = found[network], np.arange(depth + 1)
    ends = np.array([0.0, depth])
    gains = np.array(GAINS)
    bought = bounding_bits(gains * crest)
    here = float(bounding_bits(gain * crest))
    return Frame(
        series={
            "chosen": (blocks, errors),
            "other": (blocks, found["free" if network == "residual" else "residual"]),
            "nothing": (ends, np.ones(2)),
            "bought": (gains, bought),
            "here": (np.array([gain]), np.array([here])),
        },
        readouts={
            "end": float(errors[-1]),
            "left": max(0.0, float(-np.log2(errors[-1]))),
            "lost": float(np.log2(errors[-1] / errors[0])),
            "noise": float(layers_until_noise(chi, made, tau)),
            "bought": here,
        },
    )


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines", "hovertemplate": "block %{x}: %{y:.3g}"}
    below: dict[str, Any] = {**MOVING, **LOWER, "hovertemplate": "λ/κ %{x}: %{y:.2f} bits"}
    traces = [
        go.Scatter(name="nothing is left", meta="nothing", line={"color": MUTED, "dash": "dot", "width": 2}, **line),
        go.Scatter(name="the other network", meta="other", line={"color": BLUE, "dash": "dash", "width": 2}, **line),
        go.Scatter(name="relative error", meta="chosen", line={"color": VERMILION, "width": 2.5}, **line),
        go.Scatter(
            name="bits bought, at most", meta="bought", mode="lines", line={"color": INK, "width": 2.5}, **below
        ),
        go.Scatter(
            name="at the chosen λ/κ", meta="here", mode="markers", marker={"color": VERMILION, "size": 10}, **below
        ),
    ]
    return two_panels(
        traces,
        upper=(axis("block", rangemode="tozero"), axis("relative error", **decades(-8, 1))),
        lower=(axis("λ/κ", range=[0, 1.03]), axis("bits", rangemode="tozero")),
        height=640,
    )
