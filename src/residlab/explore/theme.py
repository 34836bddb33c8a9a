"""The figure theme: one palette, one colour for each norm, one quiet plotly template for light and dark pages.

The palette is that of `residlab.explore.palette`. Colour is never alone: each norm also has a dash and a marker. Use
the *ink* colours for whatever should follow the text rather than the data: reference lines, annotations, shading.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go
import plotly.io as pio

from residlab.explore.formats import power_of_ten
from residlab.explore.palette import (
    AXIS,
    BLUE,
    FONT_FAMILY,
    GREEN,
    GREY,
    GRID,
    INK,
    MUTED,
    PALETTE,
    PAPER,
    PINK,
    RUST,
    VERMILION,
    VIOLET,
    roles,
)

__all__ = [
    "AXIS",
    "BLUE",
    "DIVERGING",
    "FONT_FAMILY",
    "GREEN",
    "GREY",
    "GRID",
    "HEIGHT",
    "INK",
    "MUTED",
    "NORM_COLORS",
    "NORM_DASHES",
    "NORM_SYMBOLS",
    "NORM_TITLES",
    "PALETTE",
    "PAPER",
    "PINK",
    "RUST",
    "SEQUENTIAL",
    "VERMILION",
    "VIOLET",
    "decades",
    "roles",
    "template",
    "use_theme",
]

NORM_COLORS: dict[str, str] = {
    "layernorm": GREY,
    "rmsnorm": BLUE,
    "peri-ln": VIOLET,
    "lns": GREEN,
    "dyt": RUST,
    "bhyt": VERMILION,
    "bhyt*": PINK,
}
NORM_DASHES: dict[str, str] = {
    "layernorm": "dot",
    "rmsnorm": "solid",
    "peri-ln": "dashdot",
    "lns": "dash",
    "dyt": "longdash",
    "bhyt": "solid",
    "bhyt*": "longdashdot",
}
NORM_SYMBOLS: dict[str, str] = {
    "layernorm": "square",
    "rmsnorm": "circle",
    "peri-ln": "triangle-up",
    "lns": "diamond",
    "dyt": "cross",
    "bhyt": "star",
    "bhyt*": "x",
}

NORM_TITLES: dict[str, str] = {
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "peri-ln": "Peri-LN",
    "lns": "LNS",
    "dyt": "DyT",
    "bhyt": "BHyT",
    "bhyt*": "BHyT*",
}
"""How a norm is written in a figure."""

SEQUENTIAL = "Cividis"
DIVERGING: tuple[tuple[float, str], ...] = ((0.0, BLUE), (0.5, "#d8d8d8"), (1.0, VERMILION))

HEIGHT = 420


def _axis() -> dict[str, object]:
    return {
        "gridcolor": GRID,
        "gridwidth": 1,
        "linecolor": AXIS,
        "linewidth": 1,
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": AXIS,
        "tickfont": {"color": MUTED, "size": 12},
        "title": {"font": {"color": INK, "size": 13}, "standoff": 10},
        "automargin": True,
        "exponentformat": "power",
        "minor": {"ticks": "", "showgrid": False},
    }


def decades(low: int, high: float, *, step: int = 1) -> dict[str, object]:
    """Return the properties of a logarithmic axis from ``10**low`` to ``10**high``, labelled every `step` decades.

    ``fig.update_yaxes(title="share", **decades(-8, 0.3, step=2))``
    """
    marks = range(low, math.floor(high) + 1, step)
    labels = ["1" if k == 0 else "10" if k == 1 else power_of_ten(k) for k in marks]
    return {"type": "log", "range": [low, high], "tickvals": [10.0**k for k in marks], "ticktext": labels}


def template() -> go.layout.Template:
    """Return the plotly template ``residlab``.

    Transparent backgrounds, a quiet grid, the system's own font, the palette as colorway, the legend above the plot and
    horizontal. A figure still names its axes, with units.
    """
    layout = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": list(PALETTE),
        "colorscale": {
            "sequential": SEQUENTIAL,
            "sequentialminus": SEQUENTIAL,
            "diverging": [list(s) for s in DIVERGING],
        },
        "font": {"family": FONT_FAMILY, "size": 13, "color": INK},
        "title": {"font": {"size": 15, "color": INK}, "x": 0.0, "xref": "paper", "xanchor": "left"},
        "height": HEIGHT,
        "margin": {"l": 64, "r": 20, "t": 24, "b": 56},
        "xaxis": _axis(),
        "yaxis": _axis(),
        "legend": {
            "orientation": "h",
            "x": 0.0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": INK, "size": 12},
            "bgcolor": "rgba(0,0,0,0)",
        },
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": AXIS,
            "font": {"color": INK, "family": FONT_FAMILY, "size": 12},
        },
        "hovermode": "closest",
        "annotationdefaults": {"font": {"color": MUTED, "size": 12}, "arrowcolor": AXIS},
        "shapedefaults": {"line": {"color": AXIS}},
    }
    data = {
        "scatter": [{"line": {"width": 2.25}, "marker": {"size": 7}}],
        "bar": [{"marker": {"line": {"width": 0}}}],
        "heatmap": [{"colorscale": SEQUENTIAL, "colorbar": {"outlinewidth": 0, "thickness": 14}}],
        "histogram": [{"marker": {"line": {"width": 0}}}],
    }
    return go.layout.Template(layout=layout, data=data)


def use_theme() -> None:
    """Register the template ``residlab`` with plotly and make it the default of every figure made afterwards.

    A chapter calls it once, at its top.
    """
    pio.templates["residlab"] = template()
    pio.templates.default = "residlab"
