"""The explorable of chapter 5: the stream of small trained models by norm, depth and step, as recorded."""

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
from residlab.explore.theme import INK, NORM_COLORS, NORM_DASHES, NORM_TITLES, decades

Recorded = NDArray[np.float32]
QUANTITIES = {"mean-abs": "mean |x|", "variance": "variance"}


@dataclass(frozen=True, eq=False)
class RecordedProfiles:
    """What runs of several norms and depths said of their streams, at several steps.

    Parameters
    ----------
    norms : tuple of str
        Keys of `residlab.explore.theme.NORM_TITLES`.
    depths, steps : tuple of float
        Layers of the models and steps of training, increasing.
    mean_abs, variance : array, shape (norms, depths, steps, 2 deepest + 1), float32
        Of the stream in front of each normalisation, pooled over tokens and entries: attention and feedforward of each
        layer, then the final one; NaN beyond a model's end.
    deviation : array, shape (norms, depths, steps, deepest), float32
        Distance of each block's Jacobian to the identity; NaN beyond a model's end.
    loss : array, shape (norms, depths, steps), float32
        In nats per byte, on a few sequences of the training batch.

    Raises
    ------
    ResidlabError
        If the shapes do not fit together, or nothing was recorded.
    """

    norms: tuple[str, ...]
    depths: tuple[float, ...]
    steps: tuple[float, ...]
    mean_abs: Recorded
    variance: Recorded
    deviation: Recorded
    loss: Recorded

    def __post_init__(self) -> None:
        runs = (len(self.norms), len(self.depths), len(self.steps))
        if not all(runs):
            raise ResidlabError(f"profiles of {runs} norms, depths and steps: nothing was recorded")
        unknown = sorted(set(self.norms) - set(NORM_TITLES))
        if unknown:
            raise ResidlabError(f"norms must be among {', '.join(NORM_TITLES)}; got {', '.join(unknown)}")
        deepest = int(max(self.depths))
        wanted = {
            "mean_abs": (*runs, 2 * deepest + 1),
            "variance": (*runs, 2 * deepest + 1),
            "deviation": (*runs, deepest),
            "loss": runs,
        }
        for name, shape in wanted.items():
            if getattr(self, name).shape != shape:
                raise ResidlabError(f"{name} has the shape {getattr(self, name).shape}, not {shape}")


def profiles_explorable(recorded: RecordedProfiles, *, norm: str = "bhyt", depth: float = 12.0) -> Explorable:
    """Return the explorable of recorded streams: norm, depth and step give the profile and the blocks' Jacobians.

    Parameters
    ----------
    recorded : RecordedProfiles
        What the runs recorded.
    norm, depth
        Where a reader begins, at the last step.

    Source: chapter 5.
    """
    return Explorable(
        name="profiles",
        title="What does training do to the stream, by norm and depth?",
        alt=(
            "Two panels for models of {depth} layers after {step} steps, one curve for each norm. Above: {quantity} of "
            "the stream by layer; with {norm} it goes from {first} to {last}. Below: distance of each block's Jacobian "
            "to the identity; with {norm} it is {middle} in the middle of the network and {deepest} in the last block."
        ),
        controls=(
            Choice("norm", "norm", {name: NORM_TITLES[name] for name in recorded.norms}, norm, "marked with circles"),
            Slider("depth", "layers", recorded.depths, depth, "fixed0"),
            Slider("step", "step", recorded.steps, recorded.steps[-1], "fixed0", "of training"),
            Choice("quantity", "above", QUANTITIES, "mean-abs", "what is drawn above"),
        ),
        figure=_figure(recorded),
        compute=partial(_compute, recorded),
        readouts=(
            Readout("first", "At the embedding"),
            Readout("last", "At the end"),
            Readout("growth", "End ÷ embedding"),
            Readout("middle", "Jacobian to identity, middle block"),
            Readout("deepest", "Last block"),
            Readout("loss", "Training loss, nats per byte"),
        ),
        sentence=(
            "{norm}, {depth} layers, step {step}: the {quantity} of the stream goes from {first} to {last}, a factor "
            "of {growth}. The Jacobian of the middle block is {middle} away from the identity, that of the last "
            "{deepest}. Training loss {loss} nats per byte."
        ),
        script="profiles",
        caption=(
            "Recorded runs, one seed each. Above: the stream in front of each normalisation, layer 0 being the "
            "embedding. Below: ‖J − I‖ over the root of its dimension, for each block. Circles mark the chosen norm."
        ),
        data={
            "depths": np.asarray(recorded.depths, np.float32),
            "steps": np.asarray(recorded.steps, np.float32),
            "mean": recorded.mean_abs,
            "variance": recorded.variance,
            "deviation": recorded.deviation,
            "loss": recorded.loss,
        },
    )


def _compute(recorded: RecordedProfiles, *, norm: str, depth: float, step: float, quantity: str) -> Frame:
    row, column = recorded.depths.index(depth), recorded.steps.index(step)
    chosen, layers = recorded.norms.index(norm), int(depth)
    stream = recorded.mean_abs if quantity == "mean-abs" else recorded.variance
    sites, blocks = np.arange(2 * layers + 1) / 2, np.arange(1.0, layers + 1)
    profiles = stream[:, row, column, : 2 * layers + 1].astype(np.float64)
    deviations = recorded.deviation[:, row, column, :layers].astype(np.float64)
    series = {}
    for index, name in enumerate(recorded.norms):
        series[f"{name} stream"] = (sites, profiles[index])
        series[f"{name} block"] = (blocks, deviations[index])
    series["chosen stream"] = (sites[::2], profiles[chosen, ::2])
    series["chosen block"] = (blocks, deviations[chosen])
    first, last = float(profiles[chosen, 0]), float(profiles[chosen, -1])
    return Frame(
        series=series,
        readouts={
            "first": first,
            "last": last,
            "growth": last / first,
            "middle": float(deviations[chosen, (layers - 1) // 2]),
            "deepest": float(deviations[chosen, -1]),
            "loss": float(recorded.loss[chosen, row, column]),
        },
    )


def _figure(recorded: RecordedProfiles) -> go.Figure:
    lower: dict[str, Any] = {**LOWER, "showlegend": False}
    traces = []
    for panel, where, what in (("stream", {}, "layer"), ("block", lower, "block")):
        for norm in recorded.norms:
            title = NORM_TITLES[norm]
            traces.append(
                go.Scatter(
                    name=title if panel == "stream" else f"{title}, Jacobian",
                    meta=f"{norm} {panel}",
                    mode="lines",
                    line={"color": NORM_COLORS[norm], "dash": NORM_DASHES[norm], "width": 2.25},
                    hovertemplate=f"{what} %{{x}}: %{{y:.3g}}<extra>{title}</extra>",
                    **where,
                    **MOVING,
                )
            )
        traces.append(
            go.Scatter(
                name="the chosen norm" if panel == "stream" else "the chosen norm, Jacobian",
                meta=f"chosen {panel}",
                mode="markers",
                marker={"size": 8, "symbol": "circle-open", "color": INK, "line": {"width": 1.5}},
                hoverinfo="skip",
                **where,
                **MOVING,
            )
        )
    return two_panels(
        traces,
        upper=(
            axis("layer", rangemode="tozero"),
            axis(
                "size of the stream", **_range(np.concatenate([recorded.mean_abs.ravel(), recorded.variance.ravel()]))
            ),
        ),
        lower=(
            axis("block", rangemode="tozero"),
            axis("‖J − I‖ / √(Td)", **_range(recorded.deviation.ravel())),
        ),
        height=640,
    )


def _range(values: Recorded) -> dict[str, object]:
    """Return the properties of a logarithmic axis that holds all values, in whole decades."""
    seen = values[np.isfinite(values) & (values > 0)]
    return decades(int(np.floor(np.log10(seen.min()))), int(np.ceil(np.log10(seen.max()))))
