"""What the recorded runs of ``residual-free`` say about quantization, and the numbers that decide claims B6, B7 and B8.

Nothing is trained here. From the stage ``main``, whose runs carry the probe ``quantization`` after the last step, the
best residual model and the best free one are compared, paired by seed; *best* is the lowest mean loss on held-out text
at full precision. An interval is that of the paired t test of these two, 95 %: arms that quantization damages scatter
more than others, so that no common variance is assumed. Differences are *free less residual*. Where runs are missing a
comparison is None, and chapters say "not recorded yet".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from residlab.errors import ResidlabError
from residlab.experiments.intervals import paired_differences
from residlab.experiments.residual_free import arm_of
from residlab.experiments.results import Difference

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

JUDGED_SCHEMES = ("W8A8", "W8A6", "W8A4")
"""Of B7."""
JUDGED_BITS = ("3", "4", "5", "6", "8", "10")
"""Of B8: all that the probe measures."""
POINTS = 2.0
"""Percentage points of accuracy that count as a little (B6)."""
Measure = Callable[["Record"], float]


def seen(record: Record) -> Mapping[str, Any]:
    """Return what the probe ``quantization`` said, each number in a list of one.

    Raises
    ------
    ResidlabError
        If the run did not look.
    """
    looks: Mapping[str, Any] | None = record.metrics.get("looks", {}).get("quantization")
    if looks is None:
        raise ResidlabError(f"the run {record.hash} of {record.experiment} did not look at quantization")
    return looks


def _last(values: Any) -> float:
    value = values[-1] if isinstance(values, list) else values
    return math.nan if value is None else float(value)


def bits_of(scheme: str = "full") -> Measure:
    """Return a measure: the loss under a scheme, bits per byte; NaN for a model that diverged."""
    return lambda record: _last(seen(record)["schemes"][scheme]["loss"]) / math.log(2)


def increase(scheme: str) -> Measure:
    """Return a measure: what a scheme adds to the loss, bits per byte, on the same tokens."""
    return lambda record: bits_of(scheme)(record) - bits_of()(record)


def accuracy(scheme: str | None = None) -> Measure:
    """Return a measure: next-token accuracy in percent, under a scheme or (over more tokens) as the model is."""
    return lambda record: 100 * _last((seen(record) if scheme is None else seen(record)["schemes"][scheme])["accuracy"])


def sqnr(bits: str, tokens: str = "all") -> Measure:
    """Return a measure: SQNR in dB, mean over the inputs of linear layers; NaN if one has none."""
    return lambda record: _mean(_inputs(record, tokens), lambda each: _last(each["sqnr"][bits]))


def nmse(bits: str, tokens: str = "all") -> Measure:
    """Return a measure: normalized mean squared error, mean over the inputs of linear layers."""
    return lambda record: _mean(_inputs(record, tokens), lambda each: 10 ** (-_last(each["sqnr"][bits]) / 10))


def crest(tokens: str = "all") -> Measure:
    """Return a measure: crest factor in dB, mean over the inputs of linear layers."""
    return lambda record: _mean(_inputs(record, tokens), lambda each: 20 * math.log10(_last(each["crest_factor"])))


def _inputs(record: Record, tokens: str) -> list[Any]:
    return [classes[tokens] for classes in seen(record)["inputs"].values()]


def _mean(values: list[Any], of: Callable[[Any], float]) -> float:
    return float(np.mean([of(each) for each in values]))


def arms(found: Found, stage: str = "main") -> dict[str, list[Record]]:
    """Return ``arm, optimizer`` -> its runs that looked at quantization, in the order of their seeds."""
    runs: dict[str, list[Record]] = {}
    for record in found.stage(stage):
        if "quantization" in record.metrics.get("looks", {}):
            runs.setdefault(f"{arm_of(record)}, {record.config['optimizer']['kind']}", []).append(record)
    return {name: sorted(records, key=lambda record: record.seed) for name, records in runs.items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """The best residual model and the best free one, by name; their runs, seed by seed."""

    residual: str
    free: str
    runs: Mapping[str, tuple[Record, ...]]

    def difference(self, measure: Measure) -> Difference:
        """Return free less residual: the mean over seeds and its interval; everything where one is not finite."""
        table = np.array([[measure(record) for record in self.runs[name]] for name in (self.free, self.residual)])
        if not np.isfinite(table).all():
            return Difference(math.nan, -math.inf, math.inf)
        paired = paired_differences(table)
        return Difference(float(paired.differences[0, 1]), *paired.interval(0, 1))

    def mean(self, name: str, measure: Measure) -> float:
        """Return a measure's mean over the seeds of ``residual`` or ``free``."""
        return float(np.mean([measure(record) for record in self.runs[getattr(self, name)]]))


def comparison(found: Found) -> Comparison | None:
    """Return the comparison, or None until there is a residual and a free arm, complete on two seeds or more.

    An arm counts if it has all seeds that any arm has, and none of its runs diverged.
    """
    runs = arms(found)
    seeds = sorted({record.seed for records in runs.values() for record in records})
    whole = {
        name: records
        for name, records in runs.items()
        if [record.seed for record in records] == seeds and all(math.isfinite(_bits(record)) for record in records)
    }
    best = {}
    for kind in (True, False):
        names = [name for name in whole if name.startswith("free") is not kind]
        if not names or len(seeds) < 2:
            return None
        best[kind] = min(names, key=lambda name: (float(np.mean([_bits(record) for record in whole[name]])), name))
    return Comparison(best[True], best[False], {name: tuple(records) for name, records in whole.items()})


def _bits(record: Record) -> float:
    value = record.metrics["bits_per_byte"]
    return math.inf if value is None else float(value)


# --- What decides. Rules stand in results/README.md and, over these numbers, in book/claims.yml.


def decides_b6(compared: Comparison | None) -> dict[str, float]:
    """Return the difference of accuracies at full precision, percentage points, and its interval within what can be."""
    if compared is None:
        return {"b6_difference": 0.0, "b6_low": -100.0, "b6_high": 100.0}
    found = compared.difference(accuracy())
    return {
        "b6_difference": found.middle if math.isfinite(found.middle) else 0.0,
        "b6_low": max(found.low, -100.0),
        "b6_high": min(found.high, 100.0),
    }


def decides_b7(compared: Comparison | None) -> dict[str, int]:
    """Return counts of schemes, of three: where what is added to the loss differs, and the loss itself, whole interval.

    ``b7_hurts_residual``, ``b7_hurts_free``: more is added to that one's loss; ``b7_free_ahead``: the free one's loss
    under the scheme is lower.
    """
    counts = {"b7_hurts_residual": 0, "b7_hurts_free": 0, "b7_free_ahead": 0}
    for scheme in JUDGED_SCHEMES if compared is not None else ():
        assert compared is not None
        added, loss = compared.difference(increase(scheme)), compared.difference(bits_of(scheme))
        counts["b7_hurts_residual"] += added.high < 0
        counts["b7_hurts_free"] += added.low > 0
        counts["b7_free_ahead"] += loss.high < 0
    return counts


def decides_b8(compared: Comparison | None) -> dict[str, int]:
    """Return counts of bit widths, of six, at which a mean over inputs differs with its whole interval.

    ``b8_higher``, ``b8_lower``: the free one's SQNR; ``b8_nmse_lower``: its NMSE is lower.
    """
    counts = {"b8_higher": 0, "b8_lower": 0, "b8_nmse_lower": 0}
    for bits in JUDGED_BITS if compared is not None else ():
        assert compared is not None
        ratio, error = compared.difference(sqnr(bits)), compared.difference(nmse(bits))
        counts["b8_higher"] += ratio.low > 0
        counts["b8_lower"] += ratio.high < 0
        counts["b8_nmse_lower"] += error.high < 0
    return counts
