"""What a section of the report shows under its sentence: a figure, its text alternative, the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from residlab.explore.formats import format_value
from residlab.explore.palette import BLUE, GREEN, GREY, PINK, RUST, VERMILION, VIOLET
from residlab.inspection.drawing import Line, Span, heat_map, line_chart, range_chart
from residlab.inspection.findings import GOOD, STEADY, db, sig
from residlab.inspection.measure import BASE, FORMATS, LARGE, SINK, TIMES, Inspection
from residlab.inspection.rounding import BY_TORCH
from residlab.theory.quantization import decibels, gaussian_peak

_COLORS = (BLUE, VERMILION, GREEN, VIOLET, RUST, PINK, GREY)
_NAMES = {"first": "first token of each window", "rest": "all other tokens", "all": "all tokens"}
_CLASS_COLORS = {"first": VERMILION, "rest": BLUE, "all": GREY}
_BLOCK = "block (0: in front of the first)"
_MOST_KINDS = 6


def _figure(chart: str, alt: str, caption: str, table: str) -> str:
    return (
        f'<figure>\n<div role="img" aria-label="{escape(alt)}">\n{chart}\n</div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>\n"
        f"<details><summary>Data</summary>\n{table}</details>"
    )


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="in-scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _cell(value: float | None) -> str:
    return "–" if value is None else sig(value)


def _by_layer(
    seen: Inspection, values: dict[str, Sequence[float | None]], caption: str, first: Sequence[float] | None = None
) -> str:
    layers = range(len(seen.stream.median)) if first is None else first
    rows = zip(*values.values(), strict=True)
    return _table(
        caption,
        ["block", *values],
        ([str(layer), *map(_cell, row)] for layer, row in zip(layers, rows, strict=True)),
    )


def _of_stream(seen: Inspection, measure: Any, names: Sequence[str]) -> list[Line]:
    layers = range(len(seen.stream.median))
    return [Line(_NAMES[name], layers, measure[name], _CLASS_COLORS[name]) for name in names]


def stream(seen: Inspection) -> str:
    """Return figure and tables of `findings.stream`."""
    lines = _of_stream(seen, seen.stream.rms, ("rest", "first"))
    rms = seen.stream.rms
    alt = (
        f"Root mean square of the stream by block, logarithmic. First tokens: from {sig(rms['first'][0])} to "
        f"{sig(rms['first'][-1])}, at most {sig(max(rms['first']))}. All others: from {sig(rms['rest'][0])} to "
        f"{sig(rms['rest'][-1])}."
    )
    chart = line_chart(lines, x_title=_BLOCK, y_title="root mean square", scale="log")
    columns = {_NAMES[name]: rms[name] for name in ("rest", "first", "all")}
    caption = f"Root mean square over all entries of the tokens. Steady means: within a factor of {STEADY:g}."
    return _figure(chart, alt, caption, _by_layer(seen, dict(columns), "Root mean square of the stream"))


def massive(seen: Inspection) -> str:
    """Return figure and tables of `findings.massive`."""
    layers = range(len(seen.stream.median))
    largest = seen.stream.largest
    lines = [
        Line("largest, first tokens", layers, largest["first"], VERMILION),
        Line("largest, all other tokens", layers, largest["rest"], BLUE),
        Line("median, all tokens", layers, seen.stream.median, GREY),
    ]
    top = max(range(len(largest["all"])), key=largest["all"].__getitem__)
    alt = (
        f"Largest and median magnitude of an entry of the stream by block, logarithmic. The largest of all is "
        f"{sig(largest['all'][top])} at block {top}, where the median is {sig(seen.stream.median[top])}."
    )
    chart = line_chart(lines, x_title=_BLOCK, y_title="magnitude of an entry", scale="log")
    table = ""
    if seen.massive:
        table = _table(
            "Channels with massive activations",
            ["channel", "largest", "times median", "block", "token", "blocks", "entries", "in first tokens"],
            (
                [
                    str(each.channel),
                    sig(each.value),
                    sig(each.ratio),
                    str(each.layer),
                    repr(each.token),
                    f"{each.begins}–{each.ends}",
                    f"{each.entries:,}",
                    format_value(each.first, "share"),
                ]
                for each in seen.massive[:20]
            ),
        )
    columns = {"first tokens": largest["first"], "other tokens": largest["rest"], "median": seen.stream.median}
    caption = f"Massive: over {LARGE:g} and over {TIMES:,.0f} times the median (Sun and others 2024, arXiv 2402.17762)."
    figure = _figure(chart, alt, caption, _by_layer(seen, dict(columns), "Magnitudes of entries of the stream"))
    return figure + ("\n" + table if table else "")


def sinks(seen: Inspection) -> str:
    """Return figure and tables of `findings.sinks`."""
    if seen.sinks is None:
        return ""
    columns = list(seen.sinks.mass.items())
    block, values = max(columns, key=lambda column: sum(value > SINK for value in column[1]))
    alt = (
        f"A field of {seen.sinks.heads} heads, a column for each block: the share of attention on the first token. "
        f"{seen.sinks.count} of them have over half; most of them in block {block}, "
        f"{sum(value > SINK for value in values)} of {len(values)}."
    )
    chart = heat_map(columns, x_title="block", y_title="head", mark=SINK)
    table = _table(
        "Share of attention on the first token",
        ["block", "sinks", "largest", "mean"],
        (
            [
                str(block),
                f"{sum(value > SINK for value in values)} of {len(values)}",
                format_value(max(values), "share"),
                format_value(sum(values) / len(values), "share"),
            ]
            for block, values in columns
        ),
    )
    caption = (
        "Attention of each head on the first token of a window, averaged over windows and later tokens (Xiao and "
        f"others 2024, arXiv 2309.17453). A dot marks a sink, over {SINK:.0%}."
    )
    return _figure(chart, alt, caption, table)


def kurtosis(seen: Inspection) -> str:
    """Return figure and tables of `findings.kurtosis`."""
    values = seen.stream.excess_kurtosis
    lines = _of_stream(seen, values, ("rest", "all"))
    alt = (
        f"Excess kurtosis of the stream by block. All tokens: from {sig(values['all'][0])} to {sig(values['all'][-1])}"
        f", at most {sig(max(values['all']))}. Without first tokens: at most {sig(max(values['rest']))}."
    )
    chart = line_chart(lines, x_title=_BLOCK, y_title="excess kurtosis", scale="asinh", reference=(0.0, "Gaussian"))
    columns = {_NAMES[name]: values[name] for name in ("rest", "all", "first")}
    caption = (
        "Fourth central moment over the squared variance, less 3, pooled over entries and tokens; linear about 0, "
        "logarithmic far from it."
    )
    return _figure(chart, alt, caption, _by_layer(seen, dict(columns), "Excess kurtosis of the stream"))


def _kinds(seen: Inspection) -> list[str]:
    """Return the kinds of tensors to draw: those with the largest crest factors, in the order of the model."""
    most: dict[str, float] = {}
    for each in seen.inputs:
        most[each.kind] = max(most.get(each.kind, 0.0), each.crest_factor["all"])
    chosen = sorted(most, key=lambda kind: -most[kind])[:_MOST_KINDS]
    return [kind for kind in most if kind in chosen]


def crest(seen: Inspection) -> str:
    """Return figure and tables of `findings.crest`."""

    def level(value: float) -> float | None:
        return float(decibels(value)) if math.isfinite(value) and value > 0 else None

    kinds = _kinds(seen)
    lines = []
    for kind, color in zip(kinds, _COLORS, strict=False):
        of_kind = [each for each in seen.inputs if each.kind == kind]
        lines.append(
            Line(kind, [each.block for each in of_kind], [level(each.crest_factor["all"]) for each in of_kind], color)
        )
    entries = sorted(each.entries for each in seen.inputs)[len(seen.inputs) // 2]
    gaussian = float(decibels(gaussian_peak(entries)))
    worst = max(seen.inputs, key=lambda each: each.crest_factor["all"])
    alt = (
        f"Crest factor in decibels of the tensors that linear layers read, by block; a line for each of "
        f"{', '.join(kinds)}. The largest is {db(level(worst.crest_factor['all']) or math.nan)}, {worst.kind} of block "
        f"{worst.block}; a Gaussian tensor would have {db(gaussian)}."
    )
    chart = line_chart(lines, x_title="block", y_title="crest factor, dB", reference=(gaussian, "Gaussian"))
    table = _table(
        "Tensors that linear layers read",
        ["block and layer", "crest factor, dB", "without first tokens", "excess kurtosis", "without first tokens"],
        (
            [
                f"{each.block} {each.kind}",
                *(
                    _cell(None if (value := level(each.crest_factor[name])) is None else value)
                    for name in ("all", "rest")
                ),
                *(sig(each.excess_kurtosis[name]) for name in ("all", "rest")),
            ]
            for each in seen.inputs
        ),
    )
    caption = (
        "Largest magnitude over root mean square, all tokens. Each line is named after the first linear layer that "
        "reads the tensor. Six decibels are one bit of a uniform grid."
    )
    return _figure(chart, alt, caption, table)


def sqnr(seen: Inspection) -> str:
    """Return figure and tables of `findings.sqnr`."""
    spans = [
        Span(fmt, name, [each.sqnr[key][fmt] for each in seen.inputs], color)
        for fmt in FORMATS
        for key, name, color in (("all", "all tokens", GREY), ("rest", "without first tokens", BLUE))
    ]
    spans += [Span(f"{BASE}, apart", "without first tokens", [each.sqnr["apart"][BASE] for each in seen.inputs], BLUE)]
    worst = min(seen.inputs, key=lambda each: each.sqnr["rest"][BASE])
    alt = (
        f"Signal-to-quantization-noise ratio in decibels of {len(seen.inputs)} tensors, least, middle half and largest"
        f", for {', '.join(FORMATS)}. The least without first tokens in {BASE} is {db(worst.sqnr['rest'][BASE])}, "
        f"{worst.kind} of block {worst.block}."
    )
    chart = range_chart(spans, x_title="SQNR, dB", reference=(GOOD, "1 % noise"))
    table = _table(
        "SQNR in dB without first tokens",
        ["block and layer", *FORMATS, f"{BASE}, apart"],
        (
            [
                f"{each.block} {each.kind}",
                *(format_value(each.sqnr["rest"][fmt], "fixed1") for fmt in FORMATS),
                format_value(each.sqnr["apart"][BASE], "fixed1"),
            ]
            for each in seen.inputs
        ),
    )
    caption = (
        "Line: least to largest tensor; bar: middle half; marker: median. Scales are set by the largest magnitude that "
        "a tensor, or a token, has over all windows; apart: first tokens of windows set no scale. Weights are left as "
        "they are."
    )
    return _figure(chart, alt, caption, table)


def growth(seen: Inspection) -> str:
    """Return figure and tables of `findings.growth`."""
    results = seen.growth.results
    missing = "".join(
        f"<p>Not measured in {escape(name)}: {escape(reason)}.</p>\n" for name, reason in _reasons(seen).items()
    )
    if not results:
        return missing
    lines = [
        Line(name, range(len(result["rest"])), result["rest"], color)
        for (name, result), color in zip(results.items(), _COLORS, strict=False)
    ]
    ends = ", ".join(f"{_cell(result['rest'][-1])} in {name}" for name, result in results.items())
    alt = f"Relative error of the stream by block, logarithmic. Behind the last block: {ends}."
    chart = line_chart(lines, x_title=_BLOCK, y_title="relative error of the stream", scale="log")
    rows = [
        [
            name,
            _cell(result["added"]),
            _cell(result["divergence"]),
            "–" if result["agreement"] is None else format_value(result["agreement"], "share"),
            _cell(result["first"][-1]),
            "yes" if result["finite"] else "no",
        ]
        for name, result in results.items()
    ]
    costs = _table(
        f"What rounding costs, on {seen.growth.tokens} tokens",
        ["arithmetic", "nats added", "KL, nats", "same prediction", "error, token 0", "finite"],
        rows,
    )
    columns = {name: result["rest"] for name, result in results.items()}
    caption = (
        f"Norm of the error of a token over its own norm, averaged over the tokens after the first, on the first "
        f"{seen.growth.tokens} tokens. bf16 products: factors and stream in bf16, sums and functions in fp32; every "
        "operation emulated, beside float64. "
        f"{BY_TORCH}: the model in torch's bfloat16, beside torch's float32."
    )
    table = _by_layer(seen, dict(columns), "Relative error of the stream, without the first token")
    return _figure(chart, alt, caption, table) + "\n" + costs + missing


def _reasons(seen: Inspection) -> dict[str, str]:
    """Return what is missing, kinds with one reason together."""
    grouped: dict[str, list[str]] = {}
    for name, reason in seen.growth.missing.items():
        grouped.setdefault(reason, []).append(name)
    return {" and ".join(names): reason for reason, names in grouped.items()}
