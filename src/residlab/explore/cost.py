"""The explorable of chapter 6: how much of a forward norms can be, and what any norm could win, by a roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.explore.explorable import Choice, Explorable, Frame, Readout, Slider
from residlab.explore.panels import LOWER, MOVING, axis, two_panels
from residlab.explore.theme import AXIS, INK, MUTED, NORM_COLORS, NORM_DASHES, NORM_TITLES, decades
from residlab.theory.cost import BLOCK, matrix_time, norm_share, norm_time

WIDTHS = (*(float(m * 2**k) for k in range(7, 13) for m in (1, 1.5)), 8192.0)
TOKENS = tuple(2.0**k for k in range(17))
BALANCES = tuple(2.0**k for k in range(10))
SHOWN = ("bhyt", "dyt", "peri-ln")
PUBLISHED = (("+1.6 %, training, version 3", 0.016), ("+15.8 %, training, version 1", 0.158))


def cost_explorable() -> Explorable:
    """Return the explorable of a norm's cost: width, tokens at once, the machine's balance, fused or not.

    Norms and the matrix products of SwiGLU blocks are all there is, numbers have two bytes, and each part takes the
    time that its roofline allows. What is left out makes every share smaller, norms that miss their roofline larger.

    Source: [A] claims on throughput; chapter 6.
    """
    return Explorable(
        name="cost",
        title="How much can a norm matter?",
        alt=(
            "Two panels against width, 128 to 8192, for {tokens} tokens at once on a machine of {balance} operations a "
            "byte, {kernels}. Above: throughput over RMSNorm: without any norm at all {most}, BHyT {bhyt}, DyT {dyt}, "
            "Peri-LN {peri} at width {width}; two lines mark the published +1.6 % and +15.8 %. Below: the share of "
            "RMSNorm’s time that its norms take, {share} there."
        ),
        controls=(
            Slider("width", "d", WIDTHS, 2048.0, format="fixed0", description="width of the stream"),
            Slider("tokens", "n", TOKENS, 4096.0, format="fixed0", description="tokens at once; 1 is decoding"),
            Slider("balance", "I", BALANCES, 128.0, format="fixed0", description="operations while a byte moves"),
            Choice(
                "kernels",
                "norms run",
                {"fused": "as one kernel each", "eager": "operator by operator"},
                "fused",
            ),
        ),
        figure=_figure(),
        compute=_compute,
        readouts=(
            Readout("share", "Norms’ share of RMSNorm’s time", "share"),
            Readout("most", "Won without any norm", "share"),
            Readout("bhyt", "BHyT over RMSNorm", "share"),
            Readout("dyt", "DyT over RMSNorm", "share"),
            Readout("peri", "Peri-LN over RMSNorm", "share"),
        ),
        sentence=(
            "At width {width}, {tokens} tokens at once and {balance} operations a byte, norms that run {kernels} take "
            "{share} of the time. Without any norm a model gains {most}; with BHyT {bhyt}, with DyT {dyt}, with "
            "Peri-LN {peri}."
        ),
        script="cost",
        caption=(
            "A roofline: matrix products and norms take the time of their operations or of their bytes, whichever is "
            "longer; nothing else takes any. SwiGLU blocks, 2 bytes a number, forward."
        ),
    )


def _compute(*, width: float, tokens: float, balance: float, kernels: str) -> Frame:
    d, fused = np.array(WIDTHS), kernels == "fused"
    rest = matrix_time(d, tokens, balance)
    base = rest + norm_time(BLOCK["rmsnorm"], d, tokens, balance, fused=fused)
    gains = {key: base / (rest + norm_time(BLOCK[key], d, tokens, balance, fused=fused)) - 1 for key in SHOWN} | {
        "nothing": base / rest - 1
    }
    share = norm_share(BLOCK["rmsnorm"], d, tokens, balance, fused=fused)
    here = WIDTHS.index(width)
    at = np.array([width, width])
    return Frame(
        series={
            **{key: (d, gain) for key, gain in gains.items()},
            "here": (at, np.array([gains["nothing"][here], gains["bhyt"][here]])),
            "share": (d, share),
            "share-here": (at[:1], share[[here]]),
        },
        readouts={
            "share": float(share[here]),
            "most": float(gains["nothing"][here]),
            "bhyt": float(gains["bhyt"][here]),
            "dyt": float(gains["dyt"][here]),
            "peri": float(gains["peri-ln"][here]),
        },
    )


def _figure() -> go.Figure:
    line: dict[str, Any] = {**MOVING, "mode": "lines", "hovertemplate": "d = %{x}: %{y:+.2%}"}
    traces = [
        go.Scatter(name="no norm at all", meta="nothing", line={"color": INK, "dash": "dash", "width": 2.5}, **line),
        *(
            go.Scatter(
                name=NORM_TITLES[key],
                meta=key,
                line={"color": NORM_COLORS[key], "dash": NORM_DASHES[key], "width": 2.5},
                **line,
            )
            for key in SHOWN
        ),
        go.Scatter(
            name="where you are",
            meta="here",
            showlegend=False,
            marker={"size": 11, "color": [INK, NORM_COLORS["bhyt"]]},
            **{**line, "mode": "markers"},
        ),
        go.Scatter(
            name="RMSNorm’s share",
            meta="share",
            line={"color": NORM_COLORS["rmsnorm"], "width": 2.5},
            **{**line, **LOWER, "hovertemplate": "d = %{x}: %{y:.2%}"},
        ),
        go.Scatter(
            name="where you are",
            meta="share-here",
            showlegend=False,
            marker={"size": 11, "color": NORM_COLORS["rmsnorm"]},
            **{**line, **LOWER, "mode": "markers"},
        ),
    ]
    published = [
        go.Scatter(
            name=name,
            x=[WIDTHS[0], WIDTHS[-1]],
            y=[gain, gain],
            mode="lines",
            line={"color": MUTED, "width": 1.5, "dash": dash},
            hovertemplate="published: %{y:+.1%}",
        )
        for (name, gain), dash in zip(PUBLISHED, ("dot", "longdash"), strict=True)
    ]
    widths: dict[str, Any] = {
        "type": "log",
        "range": [np.log10(115), np.log10(9100)],
        "tickvals": [128, 256, 512, 1024, 2048, 4096, 8192],
    }
    return two_panels(
        [*traces[:4], *published, *traces[4:]],
        upper=(
            {**widths, "matches": "x2", "showticklabels": False},
            {
                "domain": [0.42, 1],
                **axis(
                    "throughput over RMSNorm",
                    tickformat="+.0%",
                    range=[-0.32, 0.42],
                    zeroline=True,
                    zerolinecolor=AXIS,
                ),
            },
        ),
        lower=(
            axis("width d", **widths),
            {"domain": [0, 0.36], **axis("norms’ share", **decades(-5, 0.1))},
        ),
        height=680,
    )
