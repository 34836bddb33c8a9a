"""A plotly figure as part of a page: its JSON, its text alternative, the place where the page's script draws it."""

from __future__ import annotations

import base64
import json
import re
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from residlab.errors import ResidlabError
from residlab.explore.legend import legend_html
from residlab.explore.theme import HEIGHT, roles

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def check_name(name: str, what: str) -> str:
    """Return `name` if it can stand in an address: lower-case letters, digits, single hyphens.

    Raises
    ------
    ResidlabError
        If it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ResidlabError(f"{what} {name!r}: lower-case letters, digits and single hyphens only, a letter first")
    return name


def check_text(text: str, what: str, name: str) -> str:
    """Return `text` stripped if there is any.

    Raises
    ------
    ResidlabError
        If it is empty.
    """
    if not text.strip():
        raise ResidlabError(f"{what} of {name!r} is empty: write what a reader who cannot see the figure should know")
    return text.strip()


def embed_json(value: object) -> str:
    """Return JSON that can stand inside a script element whatever the strings in it say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def embed_array(values: np.ndarray[Any, Any]) -> dict[str, object]:
    """Return a recorded array as base64 little-endian float32 with its shape."""
    single = np.ascontiguousarray(values, dtype="<f4")
    return {"shape": list(single.shape), "f4": base64.b64encode(single.tobytes()).decode("ascii")}


def _narrow(value: Any) -> Any:
    """Turn plotly's float64 arrays into float32, where single precision holds them to seven digits."""
    if isinstance(value, list):
        return [_narrow(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("dtype") != "f8" or "bdata" not in value:
        return {key: _narrow(item) for key, item in value.items()}
    wide = np.frombuffer(base64.b64decode(value["bdata"]), dtype="<f8")
    size = np.abs(wide[np.isfinite(wide) & (wide != 0)])
    if size.size and (size.max() > 3e38 or size.min() < 1.2e-38):
        return value
    return {**value, "dtype": "f4", "bdata": base64.b64encode(wide.astype("<f4").tobytes()).decode("ascii")}


def figure_spec(fig: go.Figure) -> dict[str, Any]:
    """Return a figure as plain JSON values for the page's script.

    Float64 arrays become float32, which halves the page; the data table behind the figure shows seven digits at most.
    The width is left out: a figure is as wide as its column. So is the legend: `legend_html` writes it.
    """
    spec: dict[str, Any] = _narrow(json.loads(fig.to_json(validate=False)))
    layout = spec.setdefault("layout", {})
    layout.pop("width", None)
    layout["showlegend"] = False
    return {"data": spec.get("data", []), "layout": layout}


def figure_height(fig: go.Figure) -> int:
    """Return the height in pixels that the page reserves before the figure is drawn."""
    own = fig.layout.height or (fig.layout.template.layout.height if fig.layout.template else None)
    return int(own or HEIGHT)


def figure_html(fig: go.Figure, *, alt: str, name: str, caption: str = "") -> str:
    """Return the HTML of one figure: no executable script, no address outside the page.

    Parameters
    ----------
    fig : plotly.graph_objects.Figure
        What to draw.
    alt : str
        What the figure shows, for a reader who cannot see it. Required.
    name : str
        The figure's name on the page, ``exceedance-by-layer``: its anchor is ``#fig-exceedance-by-layer``.
    caption : str
        Plain text under the figure.

    Returns
    -------
    str
        A ``<figure class="rl-figure">`` that ``residlab-figures.js`` draws, with a folded table of the data.

    Raises
    ------
    ResidlabError
        If `alt` is empty or `name` cannot stand in an address.
    """
    check_name(name, "figure name")
    alt = check_text(alt, "the alt text", name)
    spec = {"figure": figure_spec(fig), "roles": roles()}
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return (
        f'<figure class="rl-figure" id="fig-{name}" data-name="{name}">\n'
        f"{legend_html(fig)}"
        f'<div class="rl-plot" role="img" aria-label="{escape(alt)}" style="height:{figure_height(fig)}px"></div>\n'
        f'<noscript><p class="rl-noscript">{escape(alt)}</p></noscript>\n'
        f"{below}"
        f'<details class="rl-data"><summary>Data</summary></details>\n'
        f'<script type="application/json">{embed_json(spec)}</script>\n'
        "</figure>"
    )
