"""The explorable of chapter 10: how alike tokens become in a network without residual connections, before training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, float32_pair, two_panels
from residlab.explore.theme import BLUE, INK, MUTED, VERMILION
from residlab.theory.propagation import critical_participation, kernel_coefficients, similarity_by_layer

TOKENS, HEAD_DIM, WIDTH = 128, 32, 128
FEEDFORWARDS: dict[str, str] = {"gelu": "not gated (GELU)", "swiglu": "gated (SwiGLU)"}
SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
BETAS = tuple(round(0.9 + i / 100, 2) for i in range(31))
DEPTHS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
INITIALS = tuple(i / 20 for i in range(20))


Lines = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class RecordedSimilarity:
    """What runs without residual connections and without a gate said of the cosine of two tokens.

    Parameters
    ----------
    settings : array, shape (runs, 4), float32
        Of each: 1 where W_K began as W_Q, else 0; the factor of logits; the factor for each layer; layers.
    similarity : array, shape (runs, 2, deepest), float32
        Mean cosine of two tokens of a text in front of each block, before training and after it; NaN beyond the end.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together.
    """

    settings: Lines
    similarity: Lines

    def __post_init__(self) -> None:
        runs, deepest = len(self.settings), int(max(self.settings[:, 3], default=0))
        if self.settings.shape != (runs, 4) or self.similarity.shape != (runs, 2, deepest) or not runs:
            raise ResidlabError(
                f"similarity has the shape {self.similarity.shape} and settings {self.settings.shape}: "
                "(runs, 2, deepest) and (runs, 4) are wanted, of one run at least"
            )

    def of(self, start: str, feedforward: str, scale: float, beta: float, depth: float) -> NDArray[np.float64]:
        """Return the lines, shape (2, depth), of a run with these settings; (2, 0) if none is recorded."""
        wanted = np.array([start == "shared", scale, beta, depth])
        (rows,) = np.nonzero((np.abs(self.settings - wanted) < 1e-6).all(axis=1))
        if feedforward != "gelu" or not len(rows):
            return np.zeros((2, 0))
        return self.similarity[rows[0], :, : int(depth)].astype(np.float64)


def propagation_explorable(recorded: RecordedSimilarity | None = None) -> Explorable:
    """Return the explorable of similarity by layer: the scale of logits, its growth with depth, and the start of W_K.

    128 tokens, heads of 32, width 128, rotary positions with base 10,000.

    Parameters
    ----------
    recorded
        What trained networks said, drawn where a state is theirs; by default nothing.

    Source: chapter 10 (ours).
    """
    if recorded is None:
        recorded = RecordedSimilarity(np.zeros((1, 4), np.float32), np.zeros((1, 2, 0), np.float32))
    coefficients = _padded([kernel_coefficients(kind) for kind in ("gelu", "swiglu")])
    return Explorable(
        name="propagation",
        title="Do tokens stay apart without residual connections?",
        alt=(
            "Two panels against layer, {depth} layers, logits times {scale} and {beta} per layer, {start}, a "
            "feedforward that is {feedforward}. Above: "
            "the mean cosine of two tokens, {initial} in the embeddings, {end} at the end. Below: the "
            "participation of attention rows, {first} in the first layer, beside the value {critical} below which "
            "tokens that are nearly alike become more so."
        ),
        controls=(
            Choice("start", "Start", {"apart": "W_Q and W_K apart", "shared": "W_K = W_Q"}, "apart"),
            Choice("feedforward", "Feedforward", FEEDFORWARDS, "gelu"),
            Slider("scale", "s", SCALES, 1.0, description="factor of all logits"),
            Slider("beta", "β", BETAS, 1.03, description="further factor for each layer"),
            Slider("depth", "L", DEPTHS, 12.0, "fixed0", "layers"),
            Slider("initial", "c₀", INITIALS, 0.05, description="cosine of two tokens at first"),
        ),
        figure=_figure(),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("end", "Cosine of two tokens at the end"),
            Readout("first", "Participation in the first layer"),
            Readout("last", "Participation in the last layer"),
            Readout("critical", "Critical participation"),
            Readout("gradient", "Gradient at the first layer ÷ at the end"),
            Readout("before", "Recorded in front of the last block, before training"),
            Readout("after", "Recorded there, after 200 steps"),
        ),
        sentence=(
            "With {start}, logits times {scale} and {beta} per layer, two tokens of {initial} have a cosine of "
            "{end} after {depth} layers. Rows have a participation of {first} in the first layer and {last} in the "
            "last; {critical} is critical."
        ),
        script="propagation",
        data={
            **float32_pair(coefficients),
            "settings": recorded.settings,
            "recorded": recorded.similarity if recorded.similarity.size else np.full((1, 2, 1), np.nan, np.float32),
        },
        caption=(
            "Lines: predicted, before training. Marks: recorded in text, where tokens repeat, if a run has these "
            "settings: circles before training, crosses after 200 steps with Muon. Participation is one over the "
            "effective number of tokens that a row of attention averages. The gradient is what it would be if those of "
            "different tokens were uncorrelated."
        ),
    )


def _padded(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    most = max(map(len, rows))
    return np.array([np.pad(row, (0, most - len(row))) for row in rows])


def _compute(
    recorded: RecordedSimilarity,
    *,
    start: str,
    feedforward: Any,
    scale: float,
    beta: float,
    depth: float,
    initial: float,
) -> Frame:
    before, after = recorded.of(start, feedforward, scale, beta, depth)
    made = similarity_by_layer(
        int(depth),
        initial=initial,
        logit_scale=scale,
        beta=beta,
        tokens=TOKENS,
        head_dim=HEAD_DIM,
        width=WIDTH,
        shared=start == "shared",
        feedforward=feedforward,
    )
    critical, layers = critical_participation(feedforward), np.arange(depth + 1)
    return Frame(
        series={
            "similarity": (layers, made.similarity),
            "participation": (layers[1:], made.participation[1:]),
            "critical": (np.array([0.0, depth]), np.array([critical, critical])),
            "before": (layers[: len(before)], before),
            "after": (layers[: len(after)], after),
        },
        readouts={
            "end": float(made.similarity[-1]),
            "first": float(made.participation[1]),
            "last": float(made.participation[-1]),
            "critical": critical,
            "gradient": float(made.gradient[0]),
            "before": float(before[-1]) if len(before) else np.nan,
            "after": float(after[-1]) if len(after) else np.nan,
        },
    )


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines+markers", "hovertemplate": "layer %{x}: %{y:.3g}"}
    mark: dict[str, Any] = {**line, "mode": "markers", "cliponaxis": False}
    traces = [
        go.Scatter(
            name="recorded, before training",
            meta="before",
            marker={"color": INK, "size": 9, "symbol": "circle-open", "line": {"width": 1.5}},
            **mark,
        ),
        go.Scatter(
            name="recorded, after 200 steps",
            meta="after",
            marker={"color": INK, "size": 7, "symbol": "x"},
            **mark,
        ),
        go.Scatter(name="cosine of two tokens", meta="similarity", line={"color": VERMILION, "width": 2.5}, **line),
        go.Scatter(name="participation", meta="participation", line={"color": BLUE, "width": 2.5}, **line, **LOWER),
        go.Scatter(
            name="critical",
            meta="critical",
            line={"color": MUTED, "dash": "dot", "width": 2},
            **{**line, "mode": "lines"},
            **LOWER,
        ),
    ]
    return two_panels(
        traces,
        upper=(axis("layer", rangemode="tozero"), axis("cosine of two tokens", range=[-0.03, 1.03])),
        lower=(axis("layer", rangemode="tozero"), axis("participation", range=[-0.03, 1.03])),
        height=600,
    )
