"""What the numbers mean: for each measurement one sentence that states the rule by which it was chosen."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from residlab.explore.formats import format_value
from residlab.inspection.measure import BASE, LARGE, SINK, TIMES, Input, Inspection
from residlab.inspection.rounding import BY_TORCH
from residlab.precision.formats import BF16, FP16
from residlab.theory.quantization import decibels, gaussian_peak

STEADY = 4.0
"""A stream whose size stays within this factor counts as steady."""
HEAVY = 10.0
"""Excess kurtosis over which tails count as heavy; 3 is that of the Laplace distribution."""
GOOD = 20.0
"""dB: noise is 1 % of the energy."""
BIT = 20 * math.log10(2)
ADDED = 0.01
"""Nats per token that count as a loss of quality."""
COMMON = "bf16 products"


@dataclass(frozen=True)
class Finding:
    """One measurement in words.

    Attributes
    ----------
    key, title
        Of its section.
    value, unit
        The number that stands for it, and what it counts.
    sentence
        What it means.
    """

    key: str
    title: str
    value: str
    unit: str
    sentence: str


def sig(value: float) -> str:
    """Write a number with three digits, thousands apart."""
    if 999.5 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}".replace("-", "−")
    return format_value(value, "sig3")


def db(value: float) -> str:
    """Write decibels with one digit after the point."""
    return "∞ dB" if value == math.inf else f"{format_value(value, 'fixed1')} dB"


def counted(number: int, what: str, plural: str = "") -> str:
    """Write a number of things."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def findings(seen: Inspection) -> list[Finding]:
    """Return all findings in the order of the page."""
    return [stream(seen), massive(seen), sinks(seen), kurtosis(seen), crest(seen), sqnr(seen), growth(seen)]


def stream(seen: Inspection) -> Finding:
    """Say how the size of the stream changes with depth."""
    rms = seen.stream.rms["rest"]
    begin, end = rms[min(1, len(rms) - 1)], rms[-1]
    if not begin:
        sentence = (
            f"Without each window's first token the stream is 0 behind the first block, and {sig(end)} at the end."
        )
        return Finding("stream", "Stream by layer", "–", "it begins with 0", sentence)
    ratio = end / begin
    if ratio > STEADY:
        meaning = (
            f"it grows by a factor of {sig(ratio)} (over {STEADY:g}), so what a late block adds must be that "
            "much larger "
            "than what an early one adds to turn the stream as far"
        )
    elif ratio < 1 / STEADY:
        meaning = (
            f"it shrinks to {sig(ratio)} of that (below 1/{STEADY:g}): late blocks take away what early ones wrote, or "
            "something normalises the stream itself"
        )
    else:
        meaning = f"it stays within a factor of {STEADY:g}: late blocks write into a stream as large as early ones do"
    sentence = (
        f"Without each window's first token the stream has a root mean square of {sig(begin)} behind the first block "
        f"and {sig(end)} behind the last; {meaning}."
    )
    return Finding("stream", "Stream by layer", f"× {sig(ratio)}", "growth of the stream", sentence)


def massive(seen: Inspection) -> Finding:
    """Say whether there are massive activations."""
    title, found = "Massive activations", seen.massive
    rule = f"over {LARGE:g} and over {TIMES:,.0f} times the median magnitude of its layer"
    if not found:
        most = max(seen.stream.largest["all"])
        sentence = (
            f"No entry of the stream is {rule}; the largest is {sig(most)}: no channel has to be treated apart because "
            "of its size alone."
        )
        return Finding("massive", title, "0", "channels with massive activations", sentence)
    top = found[0]
    total = sum(each.entries for each in found)
    first = sum(each.entries * each.first for each in found) / total
    beyond = (
        f" It is over {FP16.largest:,.0f}, the largest number of fp16, in which this model cannot keep its stream."
        if abs(top.value) > FP16.largest
        else ""
    )
    where = (
        "all of them in a window's first token"
        if first == 1
        else f"{format_value(first, 'share')} of them in a window's first token"
    )
    what = "them" if len(found) > 1 else "it"
    sentence = (
        f"{counted(len(found), 'channel')} of the stream {'hold' if len(found) > 1 else 'holds'} entries "
        f"{rule}, {where}; "
        f"the largest, {sig(top.value)} in channel {top.channel} behind block {top.layer}, is {sig(top.ratio)} "
        "times the "
        f"median: a grid with one scale for the whole tensor has to reach that far, and leaves the other entries what "
        f"steps of that size leave, so keep {what} out of any shared scale.{beyond}"
    )
    return Finding("massive", title, str(len(found)), "channels with massive activations", sentence)


def sinks(seen: Inspection) -> Finding:
    """Say how many heads are sinks."""
    title = "Attention sinks"
    if seen.sinks is None:
        return Finding(
            "sinks", title, "–", "no attention weights", "No layer of this architecture returned attention weights."
        )
    count, heads = seen.sinks.count, seen.sinks.heads
    begin = f"{count} of {counted(heads, 'head')} put more than {SINK:.0%} of their attention on the first token"
    even = f"spread evenly it would get {format_value(seen.sinks.uniform, 'share')}"
    if count == 0:
        meaning = "no head depends on that token being in view"
    else:
        meaning = (
            f"a cache that drops that token takes from these {'heads' if count > 1 else 'head'} where "
            "attention goes when "
            "there is nothing to fetch, so keep it in view"
        )
    return Finding("sinks", title, f"{count} / {heads}", "heads are sinks", f"{begin} ({even}): {meaning}.")


def kurtosis(seen: Inspection) -> Finding:
    """Say how heavy the tails of the stream are, and whether the first token makes them so."""
    every, rest = (
        [value for value in seen.stream.excess_kurtosis[name] if math.isfinite(value)] for name in ("all", "rest")
    )
    most, most_rest = max(every, default=math.nan), max(rest, default=math.nan)
    begin = (
        f"The excess kurtosis of the stream reaches {sig(most)} with all tokens and {sig(most_rest)} without the first "
        "one of each window (0 is Gaussian, 3 Laplace)"
    )
    if not most > HEAVY:
        meaning = f"it never exceeds {HEAVY:g}: no few entries carry the variance"
    elif most > HEAVY * max(most_rest, HEAVY):
        meaning = (
            f"the first token alone makes it more than {HEAVY:g} times larger, so give both numbers, or a statistic of "
            "one token passes for one of the model"
        )
    else:
        meaning = (
            f"over {HEAVY:g} and not because of the first token: in ordinary tokens, too, a few entries carry much of "
            "the variance"
            if most_rest > HEAVY
            else f"only the first token takes it over {HEAVY:g}"
        )
    return Finding(
        "kurtosis", "Kurtosis", sig(most_rest), "excess kurtosis, without first tokens", f"{begin}: {meaning}."
    )


def crest(seen: Inspection) -> Finding:
    """Say what the largest entries of what linear layers read cost."""
    levels = [float(decibels(each.crest_factor["all"])) for each in seen.inputs if each.crest_factor["all"] >= 1]
    title, unit = "Crest factor", "median crest factor"
    if not levels:
        return Finding("crest", title, "–", unit, "All inputs of linear layers are zero.")
    middle = statistics.median(levels)
    worst = max((each for each in seen.inputs if each.crest_factor["all"] >= 1), key=lambda e: e.crest_factor["all"])
    high = float(decibels(worst.crest_factor["all"]))
    gaussian = float(decibels(gaussian_peak(statistics.median(each.entries for each in seen.inputs))))
    bits = (middle - gaussian) / BIT
    if bits > 0.5:
        cost = f"one scale for the whole tensor costs {sig(bits)} bits more than for a Gaussian of that size"
    else:
        cost = "within half a bit of a Gaussian of that size, so that one scale for a tensor wastes little"
    sentence = (
        f"The largest entry of what a linear layer reads lies {db(middle)} over the root mean square in the median of "
        f"{counted(len(levels), 'tensor')} and {db(high)} in the worst ({_place(worst)}), {db(gaussian)} in a Gaussian "
        f"one: {cost}, {BIT:.2f} dB a bit."
    )
    return Finding("crest", title, db(middle), unit, sentence)


def sqnr(seen: Inspection) -> Finding:
    """Say which formats leave ordinary tokens a good signal."""
    title, total = "SQNR by format", len(seen.inputs)

    def poor(fmt: str, tokens: str = "rest") -> int:
        return sum(each.sqnr[tokens].get(fmt, math.nan) < GOOD for each in seen.inputs)

    def middle(fmt: str) -> float:
        return statistics.median(each.sqnr["rest"][fmt] for each in seen.inputs)

    worst = min(seen.inputs, key=lambda each: each.sqnr["rest"][BASE])
    low, own = worst.sqnr["rest"][BASE], worst.sqnr["apart"][BASE]
    begin = (
        f"For tokens after the first of each window, {BASE} with one scale a tensor leaves less than {GOOD:g} "
        "dB (noise "
        f"over 1 % of the energy) to {poor(BASE)} of {counted(total, 'tensor')}, {BASE} with a scale for each token to "
        f"{poor('int8 per token')}, fp8 e4m3 to {poor('fp8 e4m3')}"
    )
    if own - low > BIT and low < GOOD:
        meaning = (
            f"the worst, {_place(worst)}, has {db(low)} because the first token sets the scale, and {db(own)} "
            "if it does "
            "not: give each token a scale"
        )
    elif poor(BASE) and poor("int8 per token") < poor(BASE):
        meaning = "give each token a scale"
    elif poor(BASE):
        meaning = "a scale for each token does not cure it: look at single channels, or rotate"
    else:
        meaning = f"{BASE} with one scale will do for activations"
    return Finding("sqnr", title, db(middle(BASE)), f"median SQNR in {BASE}", f"{begin}; {meaning}.")


def growth(seen: Inspection) -> Finding:
    """Say how errors of rounding grow, and what they cost."""
    title, results = "Error growth", seen.growth.results
    name = COMMON if COMMON in results else BY_TORCH if BY_TORCH in results else None
    if name is None:
        return Finding("growth", title, "–", "not measured", "Nothing could be computed in less precision here.")
    result = results[name]
    profile = [value for value in result["rest"][1:] if value is not None]
    if not result["finite"] or not profile:
        sentence = f"In {name} something overflows: the logits are not finite, and the model does not work in it."
        return Finding("growth", title, "∞", f"relative error, {name}", sentence)
    first, last, added = profile[0], profile[-1], result["added"]
    cost = (
        f"adds {sig(added)} nats per token (over {ADDED:g}): measure what that costs before you use it"
        if added > ADDED
        else f"changes the loss by {sig(added)} nats per token (not over {ADDED:g}), no cost that {seen.growth.tokens} "
        "tokens show"
    )
    spoilt = [other for other, each in results.items() if not each["finite"]]
    overflow = f" In {', '.join(spoilt)} something overflows." if spoilt else ""
    sentence = (
        f"In {name} the relative error of the stream is {sig(first)} behind the first block and {sig(last)} behind the "
        f"last: {sig(last / first) if first else '∞'} times as much, and {sig(last / BF16.u)} unit roundoffs "
        "of bf16; the "
        f"most probable next token stays the same in {format_value(result['agreement'], 'share')} of positions, and it "
        f"{cost}.{overflow}"
    )
    return Finding("growth", title, format_value(last, "share"), f"relative error at the end, {name}", sentence)


def _place(tensor: Input) -> str:
    return f"{tensor.kind} of block {tensor.block}"
