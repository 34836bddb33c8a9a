"""Charts as SVG, made here: no script, no font, no address; colours of the palette, inks of the reader's theme.

Each chart is drawn twice, for a wide page and for a phone, and the page's style shows one of them: text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from residlab.explore.formats import format_value, power_of_ten

Scale = Literal["linear", "log", "asinh"]
WIDE, NARROW = 720, 350
_HEIGHT = 300
_MOST = 1e290
"""No axis goes farther; NaN and infinity are beyond it too."""
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 2")
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "ring")
_CIVIDIS = (
    "#00224e",
    "#123570",
    "#3b496c",
    "#575d6d",
    "#707173",
    "#8a8678",
    "#a59c74",
    "#c3b369",
    "#e1cc55",
    "#fee838",
)


@dataclass(frozen=True)
class Line:
    """One series; points whose y is not finite, or not positive on a logarithmic axis, are left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str


@dataclass(frozen=True)
class Span:
    """One row of a range chart: the numbers of a group under one label."""

    label: str
    name: str
    values: Sequence[float]
    color: str


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    ticks: Sequence[float]
    of: Callable[[float], float]

    def place(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        low, high = self.of(self.low), self.of(self.high)
        return (self.of(value) - low) / (high - low)


def number(value: float) -> str:
    """Write a tick."""
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 1e4 or size < 1e-3:
        exponent = math.floor(math.log10(size) + 1e-9)
        factor = round(value / 10.0**exponent, 2)
        sign = "−" if value < 0 else ""
        return sign + ("" if abs(factor) == 1 else f"{abs(factor):g}·") + power_of_ten(exponent)
    return f"{value:,.6g}".replace("-", "−")


def _axis(values: Sequence[float], scale: Scale, most: int) -> _Axis:
    if scale == "log":
        low, high = math.log10(min(values)), math.log10(max(values))
        if high - low > 2:
            first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
            step = max(1, math.ceil((last - first) / most))
            ticks = [10.0**k for k in range(first, last + 1, step)]
        else:
            first, last = math.floor(low), math.ceil(high)
            marks = [m * 10.0**k for k in range(first, last + 1) for m in (1, 2, 5)]
            below = [mark for mark in marks if mark <= min(values) * 1.000001]
            above = [mark for mark in marks if mark >= max(values) * 0.999999]
            bottom, top = max(below, default=marks[0]), min(above, default=marks[-1])
            ticks = [mark for mark in marks if bottom <= mark <= top]
            if len(ticks) < 2:
                ticks = [bottom, 2 * bottom]
            return _Axis(ticks[0], ticks[-1], ticks, math.log10)
        return _Axis(10.0**first, 10.0**last if last > first else 10.0 ** (first + 1), ticks, math.log10)
    if scale == "asinh":
        most_size = max(1.0, *(abs(value) for value in values))
        decades = math.ceil(math.log10(most_size) - 1e-9)
        step = max(1, math.ceil((decades + 1) / most))
        marks = [10.0**k for k in range(0, decades + 1, step)]
        negative = min(values) < -0.5
        ticks = [*(-mark for mark in reversed(marks) if negative and mark <= 10 * -min(values)), 0.0, *marks]
        return _Axis(min([ticks[0], *values]), max([ticks[-1], *values]), ticks, lambda v: math.asinh(2 * v))
    low, high = float(min(values)), float(max(values))
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-290):  # one number, as far as a picture goes
        low, high = low - max(0.5, size / 100), high + max(0.5, size / 100)
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    width = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough)
    ticks = [k * width for k in range(math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9) + 1)]
    return _Axis(ticks[0], ticks[-1], ticks, lambda v: v)


def _both(draw: Callable[[int], str]) -> str:
    wide, narrow = draw(WIDE), draw(NARROW)
    return f'<div class="in-wide">{wide}</div>\n<div class="in-narrow">{narrow}</div>'


def _svg(width: int, height: int, inside: Sequence[str]) -> str:
    body = "\n".join(inside)
    return f'<svg viewBox="0 0 {width} {height}" aria-hidden="true" focusable="false">\n{body}\n</svg>'


def _text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _marker(kind: str, x: float, y: float, color: str, size: float = 3.2) -> str:
    s = size
    paths = {
        "square": f"M{x - s:.1f} {y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z",
        "triangle": f"M{x:.1f} {y - 1.3 * s:.1f}l{1.2 * s:.1f} {2.2 * s:.1f}h{-2.4 * s:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.4 * s:.1f}l{1.4 * s:.1f} {1.4 * s:.1f}l{-1.4 * s:.1f} {1.4 * s:.1f}"
        f"l{-1.4 * s:.1f} {-1.4 * s:.1f}z",
        "cross": f"M{x - s:.1f} {y:.1f}h{2 * s:.1f}M{x:.1f} {y - s:.1f}v{2 * s:.1f}",
    }
    look = f'fill="none" stroke="{color}" stroke-width="1.8"' if kind in ("cross", "ring") else f'fill="{color}"'
    if kind in paths:
        return f'<path d="{paths[kind]}" {look}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:.1f}" {look}/>'


def legend(names: Sequence[tuple[str, str]], *, lines: bool = True) -> str:
    """Return the legend: names and colours in the order of the series; empty for one series."""
    if len(names) < 2:
        return ""
    entries = []
    for i, (name, color) in enumerate(names):
        dash = f' stroke-dasharray="{_DASHES[i % len(_DASHES)]}"' if _DASHES[i % len(_DASHES)] else ""
        path = f'<path d="M1 8H27" stroke="{color}" stroke-width="2.2" fill="none"{dash if lines else ""}/>'
        drawn = path + _marker(_MARKERS[i % len(_MARKERS)], 14, 8, color, 3.6)
        entries.append(f'<li><svg viewBox="0 0 28 16" aria-hidden="true">{drawn}</svg>{escape(name)}</li>')
    return f'<ul class="in-legend">{"".join(entries)}</ul>\n'


def line_chart(
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    scale: Scale = "linear",
    reference: tuple[float, str] | None = None,
) -> str:
    """Return lines over whole numbers (blocks), each with a dash and a marker of its own; hovering names a point."""
    kept = [
        (
            line,
            [
                (float(x), float(y))
                for x, y in zip(line.x, line.y, strict=True)
                if y is not None and abs(y) < _MOST and (scale != "log" or y > 1 / _MOST)
            ],
        )
        for line in lines
    ]
    every = [point for _, points in kept for point in points]
    if not every:
        return "<p>No finite number to draw.</p>"
    heights = [y for _, y in every] + ([reference[0]] if reference else [])

    def draw(width: int) -> str:
        left, right, top, bottom = 56, 12, 28, 44
        y_axis = _axis(heights, scale, 6)
        x_axis = _axis([x for x, _ in every], "linear", 10 if width > 500 else 5)
        low, high = min(x for x, _ in every), max(x for x, _ in every)
        pad = (high - low) * 0.015 or 0.5
        span = width - left - right

        def at(x: float, y: float) -> tuple[float, float]:
            across = (x - low + pad) / (high - low + 2 * pad)
            return left + span * across, _HEIGHT - bottom - (_HEIGHT - top - bottom) * y_axis.place(y)

        parts = [_text(left, 14, y_title, "start", ' class="in-title"')]
        for tick in y_axis.ticks:
            y = at(low, tick)[1]
            parts.append(f'<path class="in-grid" d="M{left} {y:.1f}H{width - right}"/>')
            parts.append(_text(left - 8, y + 4, number(tick), "end"))
        for tick in x_axis.ticks:
            if low <= tick <= high and tick == round(tick):
                parts.append(_text(at(tick, y_axis.low)[0], _HEIGHT - bottom + 18, number(tick)))
        parts.append(_text(left + span / 2, _HEIGHT - 6, x_title, "middle", ' class="in-title"'))
        if reference:
            y = at(low, reference[0])[1]
            parts.append(f'<path class="in-reference" d="M{left} {y:.1f}H{width - right}"/>')
            parts.append(_text(width - right, y - 5, reference[1], "end"))
        for i, (line, points) in enumerate(kept):
            if not points:
                continue
            places = [at(*point) for point in points]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            dash = f' stroke-dasharray="{_DASHES[i % len(_DASHES)]}"' if _DASHES[i % len(_DASHES)] else ""
            parts.append(f'<path d="{path}" fill="none" stroke="{line.color}" stroke-width="2"{dash}/>')
            every_nth = max(1, len(points) // (40 if width > 500 else 16))
            for k, ((x, y), (px, py)) in enumerate(zip(points, places, strict=True)):
                if k % every_nth and k != len(points) - 1:
                    continue
                label = f"{line.name}, {number(x)}: {format_value(y, 'sig3')}"
                mark = _marker(_MARKERS[i % len(_MARKERS)], px, py, line.color, 2.7)
                parts.append(f"<g>{mark}<title>{escape(label)}</title></g>")
        return _svg(width, _HEIGHT, parts)

    return legend([(line.name, line.color) for line in lines]) + _both(draw)


def range_chart(spans: Sequence[Span], *, x_title: str, reference: tuple[float, str] | None = None) -> str:
    """Return, for each span, the least and largest number (line), the middle half (bar) and the median (marker)."""
    finite = [(span, sorted(v for v in span.values if abs(v) < _MOST)) for span in spans]
    every = [v for _, values in finite for v in values] + ([reference[0]] if reference else [])
    if not every:
        return "<p>No finite number to draw.</p>"
    names = list(dict.fromkeys((span.name, span.color) for span in spans))
    labels = list(dict.fromkeys(span.label for span in spans))
    row, gap = 18, 16

    def draw(width: int) -> str:
        left, right, top, bottom = (128, 18, 22, 44) if width > 500 else (104, 12, 22, 44)
        axis = _axis([0.0, *every], "linear", 8 if width > 500 else 4)
        height = top + bottom + len(spans) * row + len(labels) * gap
        base = height - bottom

        def at(value: float) -> float:
            return left + (width - left - right) * axis.place(value)

        parts = []
        for tick in axis.ticks:
            parts.append(f'<path class="in-grid" d="M{at(tick):.1f} {top}V{base}"/>')
            parts.append(_text(at(tick), base + 18, number(tick)))
        if reference:
            parts.append(f'<path class="in-reference" d="M{at(reference[0]):.1f} {top - 4}V{base}"/>')
            parts.append(_text(at(reference[0]), top - 8, reference[1]))
        parts.append(_text((left + width - right) / 2, height - 6, x_title, "middle", ' class="in-title"'))
        y = top + gap / 2
        for label in labels:
            rows = [(span, values) for span, values in finite if span.label == label]
            parts.append(_text(left - 10, y + len(rows) * row / 2 + 4, label, "end", ' class="in-title"'))
            for span, values in rows:
                y += row
                if not values:
                    continue
                n, middle = len(values), y - row / 2
                low, high, median = at(values[0]), at(values[-1]), at(_quantile(values, 0.5))
                first, third = at(_quantile(values, 0.25)), at(_quantile(values, 0.75))
                kind = _MARKERS[names.index((span.name, span.color)) % len(_MARKERS)]
                words = (
                    f"{label}, {span.name}: {n} tensors from {values[0]:.1f} to {values[-1]:.1f} dB, "
                    f"median {_quantile(values, 0.5):.1f}"
                )
                parts.append(
                    f'<g><path d="M{low:.1f} {middle:.1f}H{high:.1f}" stroke="{span.color}" stroke-width="1.5"/>'
                    f'<path d="M{first:.1f} {middle:.1f}H{max(third, first + 0.5):.1f}" stroke="{span.color}" '
                    f'stroke-width="7" opacity="0.45"/>'
                    f"{_marker(kind, median, middle, span.color, 4)}<title>{escape(words)}</title></g>"
                )
            y += gap
        return _svg(width, height, parts)

    return legend(names, lines=False) + _both(draw)


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the linearly interpolated quantile of sorted numbers."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def shade(value: float) -> str:
    """Return the colour of a share, 0 to 1."""
    place = min(max(value, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(math.floor(place), len(_CIVIDIS) - 2)
    ends = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in _CIVIDIS[low : low + 2]]
    mixed = (round(a + (place - low) * (b - a)) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def heat_map(columns: Sequence[tuple[int, Sequence[float]]], *, x_title: str, y_title: str, mark: float) -> str:
    """Return a field of shares, a column for each block, a cell for each head, a dot where it exceeds ``mark``."""
    most = max(len(values) for _, values in columns)
    cells = sum(len(values) for _, values in columns)

    def draw(width: int) -> str:
        left, right, top, bottom = 40, 8, 22, 76
        size = (width - left - right) / len(columns)
        tall = min(max(size * 0.75, 14.0), 300 / most)
        height = top + bottom + tall * most
        base = top + tall * most
        parts = [_text(left, 12, y_title, "start", ' class="in-title"')]
        step = max(1, math.ceil(most / max(1, int(tall * most / 22))))
        parts += [_text(left - 6, top + (i + 0.5) * tall + 4, str(i), "end") for i in range(0, most, step)]
        apart = max(1, math.ceil(26 / size))
        gap = 1 if size > 6 and tall > 6 else 0
        for k, (block, values) in enumerate(columns):
            x = left + k * size
            if k % apart == 0:
                parts.append(_text(x + size / 2, base + 17, str(block)))
            for i, value in enumerate(values):
                words = f"<title>block {block}, head {i}: {value:.1%}</title>" if cells <= 1200 else ""
                parts.append(
                    f'<rect x="{x:.1f}" y="{top + i * tall:.1f}" width="{size - gap:.1f}" height="{tall - gap:.1f}" '
                    f'fill="{shade(value)}">{words}</rect>'
                )
                if value > mark:
                    middle = (x + (size - gap) / 2, top + i * tall + (tall - gap) / 2)
                    parts.append(_marker("circle", *middle, _CIVIDIS[0], min(2.6, size / 4, tall / 4)))
        parts.append(_text((left + width - right) / 2, base + 36, x_title, "middle", ' class="in-title"'))
        bar = min(260.0, width - left - right - 80)
        start = (left + width - right - bar) / 2
        parts += [
            f'<rect x="{start + bar * i / 40:.1f}" y="{base + 50:.1f}" width="{bar / 40 + 0.4:.1f}" height="10" '
            f'fill="{shade((i + 0.5) / 40)}"/>'
            for i in range(40)
        ]
        parts += [
            _text(start - 6, base + 59, "0 %", "end"),
            _text(start + bar + 6, base + 59, "100 %", "start"),
        ]
        return _svg(width, math.ceil(height), parts)

    return _both(draw)
