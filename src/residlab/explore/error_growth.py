"""The explorable of chapter 17: recorded errors of rounded inference by block, factor, depth and format."""

from __future__ import annotations

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
from residlab.precision import formats as precision

VARIED = {"factor": "the factor ξ", "depth": "the depth", "format": "the format"}
SWEPT = {
    "layernorm": "random, LayerNorm + GELU, 48 blocks",
    "rmsnorm": "random, RMSNorm + SwiGLU, 48 blocks",
    "smollm2": "SmolLM2, all bf16",
    "products": "SmolLM2, bf16 products, float32 sums",
}
KINDS = {
    "layernorm-scaled": "LayerNorm + GELU, GPT-2’s scaling",
    "layernorm-plain": "LayerNorm + GELU, plain",
    "rmsnorm-scaled": "RMSNorm + SwiGLU, GPT-2’s scaling",
    "rmsnorm-plain": "RMSNorm + SwiGLU, plain",
}
WHOLE = {
    "layernorm": "random, LayerNorm + GELU, 48 blocks",
    "rmsnorm": "random, RMSNorm + SwiGLU, 48 blocks",
    "smollm2": "SmolLM2",
}
"""Models that were recorded with all four roles in each format."""
FORMATS = {"e5m2": "e5m2", "e4m3fn": "e4m3", "bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp32": "fp32"}
UNITS = np.array([precision.FORMATS[name].u for name in FORMATS])
"""Unit roundoffs."""
BF16 = list(FORMATS).index("bf16")
QUANTITIES = ("relative", "predicted", "error", "size")
"""What is recorded by block, in this order."""


@dataclass(frozen=True, eq=False)
class RecordedGrowth:
    """Errors by block of recorded runs.

    Parameters
    ----------
    factors, depths : tuple of float
        Increasing; 1 is among the factors.
    by_factor : array, shape (models of `SWEPT`, factors, `QUANTITIES`, blocks + 1), float32
    by_depth : array, shape (models of `KINDS`, depths, `QUANTITIES`, blocks + 1), float32
    by_format : array, shape (models of `WHOLE`, `FORMATS`, `QUANTITIES`, blocks + 1), float32
        NaN beyond a model's end. Block 0 is the embedding.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together, or no run has the factor 1.
    """

    factors: tuple[float, ...]
    depths: tuple[float, ...]
    by_factor: NDArray[np.float32]
    by_depth: NDArray[np.float32]
    by_format: NDArray[np.float32]

    def __post_init__(self) -> None:
        if 1.0 not in self.factors:
            raise ResidlabError(f"one of the factors must be 1, to compare with; got {self.factors}")
        for name, wanted in (
            ("by_factor", (len(SWEPT), len(self.factors), len(QUANTITIES))),
            ("by_depth", (len(KINDS), len(self.depths), len(QUANTITIES))),
            ("by_format", (len(WHOLE), len(FORMATS), len(QUANTITIES))),
        ):
            shape = getattr(self, name).shape
            if shape[:3] != wanted or len(shape) != 4:
                raise ResidlabError(f"{name} has the shape {shape}, not {wanted} and blocks")


def error_growth_explorable(recorded: RecordedGrowth) -> Explorable:
    """Return the explorable of recorded errors: factor, depth or format, and the model. Errors are in units of u.

    Source: chapter 17.
    """
    return Explorable(
        name="error-growth",
        title="How do rounding errors grow from block to block?",
        alt=(
            "Two panels by block, errors in units of the unit roundoff u. Above, the relative error: measured, "
            "predicted from the first block, and that of the run to compare with. Without the unit it is {first} "
            "behind the first block and {last} behind the last. Below, the size of the stream, at the end {size}, and "
            "its absolute error, at the end {error}."
        ),
        controls=(
            Choice("vary", "vary", VARIED, "factor", "what is changed"),
            Choice("model", "model", SWEPT, "layernorm", "and its arithmetic", when=("vary", "factor")),
            Slider("factor", "ξ", recorded.factors, 1.0, "sig3", "times W_O and W_down", when=("vary", "factor")),
            Choice("kind", "random model", KINDS, "layernorm-scaled", "all bf16", when=("vary", "depth")),
            Slider("depth", "L", recorded.depths, recorded.depths[0], "fixed0", "blocks", when=("vary", "depth")),
            Choice("whole", "model, all alike", WHOLE, "layernorm", "all four roles", when=("vary", "format")),
            Choice("format", "format", FORMATS, "fp16", "of all four roles", when=("vary", "format")),
        ),
        figure=_figure(recorded),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("first", "Relative error, block 1"),
            Readout("last", "Last block"),
            Readout("foreseen", "Predicted there"),
            Readout("against", "In units of u, ÷ the run to compare with"),
            Readout("error", "Absolute error"),
            Readout("size", "Size of the stream"),
        ),
        sentence=(
            "Behind the last block the stream has the size {size} and the error {error}. The relative error is {last}, "
            "predicted are {foreseen}; in units of u it is {against} times that of the run to compare with."
        ),
        script="error_growth",
        caption=(
            "Recorded runs, seed 0. Errors are drawn in units of u, which is 2⁻⁸ for bf16; the numbers below are not. "
            "The run to compare with is that with ξ = 1, the deepest, or bf16 in its own units: where errors are "
            "proportional to u, the two are one. Predicted: independent branches, from the sizes and the error of "
            "block 1."
        ),
        data={
            "factors": np.asarray(recorded.factors, np.float32),
            "depths": np.asarray(recorded.depths, np.float32),
            "swept": recorded.by_factor,
            "deepened": recorded.by_depth,
            "formatted": recorded.by_format,
            "units": UNITS.astype(np.float32),
        },
    )


def _compute(
    recorded: RecordedGrowth, *, vary: str, model: str, factor: float, kind: str, depth: float, whole: str, format: str
) -> Frame:
    unit = bf16 = float(UNITS[BF16])
    if vary == "factor":
        runs = recorded.by_factor[list(SWEPT).index(model)]
        here, other = runs[recorded.factors.index(factor)], runs[recorded.factors.index(1.0)]
    elif vary == "depth":
        runs = recorded.by_depth[list(KINDS).index(kind)]
        here, other = runs[recorded.depths.index(depth)], runs[-1]
    else:
        runs, chosen = recorded.by_format[list(WHOLE).index(whole)], list(FORMATS).index(format)
        here, other, unit = runs[chosen], runs[BF16], float(UNITS[chosen])
    relative, predicted, error, size = _ended(here)
    compared = _ended(other)[0] / bf16
    blocks = np.arange(float(len(relative)))
    return Frame(
        series={
            "relative": (blocks, relative / unit),
            "predicted": (blocks, predicted / unit),
            "compared": (np.arange(float(len(compared))), compared),
            "error": (blocks, error / unit),
            "size": (blocks, size),
        },
        readouts={
            "first": float(relative[1]),
            "last": float(relative[-1]),
            "foreseen": float(predicted[-1]),
            "against": float(relative[-1] / unit / compared[-1]),
            "error": float(error[-1]),
            "size": float(size[-1]),
        },
    )


def _ended(run: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return a run without what is beyond its end."""
    return run[:, np.isfinite(run[0])].astype(np.float64)


def _figure(recorded: RecordedGrowth) -> go.Figure:
    def trace(name: str, key: str, color: str, dash: str, **where: Any) -> go.Scatter:
        return go.Scatter(
            name=name,
            meta=key,
            mode="lines",
            line={"color": color, "dash": dash, "width": 2.25},
            hovertemplate="block %{x}: %{y:.3g}",
            **where,
            **MOVING,
        )

    traces = [
        trace("to compare with", "compared", MUTED, "dash"),
        trace("predicted", "predicted", BLUE, "dot"),
        trace("relative error", "relative", VERMILION, "solid"),
        trace("absolute error", "error", INK, "solid", **LOWER),
        trace("size of the stream", "size", GREEN, "dashdot", **LOWER),
    ]
    ranges = {"relative": _range(recorded, (0, 1), ()), "absolute": _range(recorded, (2,), (3,))}
    return two_panels(
        traces,
        upper=(axis("block", rangemode="tozero"), axis("relative error, u", **ranges["relative"])),
        lower=(axis("block", rangemode="tozero"), axis("2-norm; errors, u", **ranges["absolute"])),
        height=660,
    )


def _range(recorded: RecordedGrowth, errors: tuple[int, ...], sizes: tuple[int, ...]) -> dict[str, object]:
    """Return the axis of some quantities, errors in units of u."""
    parts = []
    for each, units in (
        (recorded.by_factor, UNITS[BF16]),
        (recorded.by_depth, UNITS[BF16]),
        (recorded.by_format, UNITS[:, None, None]),
    ):
        parts += [(each[:, :, errors] / units).ravel(), each[:, :, sizes].ravel()]
    values = np.concatenate(parts)
    seen = values[np.isfinite(values) & (values > 0)]
    return decades(int(np.floor(np.log10(seen.min()))), int(np.ceil(np.log10(seen.max()))))
