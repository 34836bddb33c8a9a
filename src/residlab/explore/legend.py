"""The legend of a figure as HTML: it wraps at any width, and its entries are buttons for keyboard, touch and mouse."""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.graph_objects as go

from residlab.explore.theme import PALETTE, roles

_DASHES = {"dash": "6 4", "dot": "1.5 3", "dashdot": "6 3 1.5 3", "longdash": "10 4", "longdashdot": "10 3 1.5 3"}
_SYMBOLS = {"square": "■", "triangle-up": "▲", "diamond": "◆", "cross": "✚", "star": "★", "x": "✖"}
_SYMBOLS |= {"circle-open": "○", "square-open": "□", "triangle-up-open": "△", "diamond-open": "◇"}
_LINES, _AREAS = ("scatter", "scattergl"), ("bar", "histogram", "box", "violin")


def legend_html(fig: go.Figure) -> str:
    """Return the legend of `fig`, empty where plotly would show none.

    An entry stands for its trace, or for every trace of its ``legendgroup``; pressed means shown. As in plotly, a
    figure with one entry has no legend unless ``layout.showlegend`` is true.
    """
    entries, groups = [], set()
    for index, trace in enumerate(fig.data):
        if trace.type not in (*_LINES, *_AREAS) or trace.showlegend is False or trace.legendgroup in groups:
            continue
        if trace.legendgroup:
            groups.add(trace.legendgroup)
        entries.append(_entry(fig, index, trace))
    if fig.layout.showlegend is False or (len(entries) < 2 and not fig.layout.showlegend):
        return ""
    return f'<ul class="rl-legend" aria-label="Legend">\n{"".join(entries)}</ul>\n'


def _entry(fig: go.Figure, index: int, trace: Any) -> str:
    name = trace.name or f"trace {index}"
    members = [
        str(i)
        for i, t in enumerate(fig.data)
        if i == index or (trace.legendgroup and t.legendgroup == trace.legendgroup)
    ]
    return (
        f'<li><button type="button" class="rl-key" aria-pressed="true" data-traces="{" ".join(members)}" disabled>'
        f"{_swatch(fig, index, trace)}<span>{escape(name)}</span></button></li>\n"
    )


def _colour(fig: go.Figure, index: int, *candidates: object) -> str:
    """Return the first plain colour among the candidates, else the colorway's; ink follows the page."""
    colorway = fig.layout.colorway or (fig.layout.template.layout.colorway if fig.layout.template else None) or PALETTE
    chosen = next((c for c in candidates if isinstance(c, str)), colorway[index % len(colorway)])
    role = roles().get(chosen)
    return f"var(--rl-{role})" if role else chosen


def _swatch(fig: go.Figure, index: int, trace: Any) -> str:
    if trace.type in _AREAS:
        colour = _colour(
            fig, index, trace.marker.color, None if trace.type in ("bar", "histogram") else trace.line.color
        )
        drawn = f'<rect x="7" y="2" width="12" height="12" rx="2" fill="{escape(colour)}"/>'
        return f'<svg class="rl-swatch" viewBox="0 0 26 16" aria-hidden="true">{drawn}</svg>'
    mode, drawn = trace.mode or "lines+markers", ""
    if "lines" in mode:
        colour = _colour(fig, index, trace.line.color, trace.marker.color)
        dash = _DASHES.get(trace.line.dash or "", "")
        drawn += (
            f'<path d="M1 8H25" stroke="{escape(colour)}" stroke-width="2.5" stroke-dasharray="{dash}" fill="none"/>'
        )
    if "markers" in mode:
        colour = _colour(fig, index, trace.marker.color, trace.line.color)
        symbol = _SYMBOLS.get(str(trace.marker.symbol or ""), "●")
        drawn += f'<text x="13" y="12" text-anchor="middle" font-size="11" fill="{escape(colour)}">{symbol}</text>'
    return f'<svg class="rl-swatch" viewBox="0 0 26 16" aria-hidden="true">{drawn}</svg>'
