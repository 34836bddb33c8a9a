"""Differences between norms from recorded runs, with their intervals, for chapters that may find none."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from residlab.experiments.intervals import paired_differences
from residlab.experiments.plans import Found
from residlab.experiments.record import Records

Scores = Mapping[str, Mapping[int, float]]
"""Norm -> seed -> what is compared."""


class Difference(NamedTuple):
    """A difference of means with its 95 % interval."""

    middle: float
    low: float
    high: float


UNKNOWN = Difference(math.nan, -math.inf, math.inf)
"""Nothing is recorded that could decide."""


def paired_difference(scores: Scores, first: str, second: str) -> Difference:
    """Return the mean of ``first`` minus that of ``second``, over the seeds that all norms share.

    The interval is that of `residlab.experiments.intervals.paired_differences` with all norms given. Without two norms
    or two seeds in common it is everything.
    """
    seeds = sorted(set.intersection(*(set(of) for of in scores.values()))) if scores else []
    if len(scores) < 2 or len(seeds) < 2 or first not in scores or second not in scores:
        return UNKNOWN
    names = list(scores)
    paired = paired_differences([[scores[name][seed] for seed in seeds] for name in names])
    row, other = names.index(first), names.index(second)
    return Difference(float(paired.differences[row, other]), *paired.interval(row, other))


def approximation_loss(records: Records, experiment: str = "bhyt-depth") -> Difference:
    """Return how many bits per byte BHyT is above BHyT* on held-out text, at the same learning rate.

    BHyT and its opponents come from the stage ``main``, BHyT* from the stage ``exact``; opponents that lack a seed, or
    diverged, are left out. `UNKNOWN` until each seed of BHyT has its twin, with the same rate, and none diverged.
    """
    found = Found(experiment, records)
    scores: dict[str, dict[int, float]] = {}
    rates: dict[str, set[float]] = {}
    for record in (*found.stage("main"), *found.stage("exact")):
        kind, bits = record.config["model"]["norm"]["kind"], record.metrics["bits_per_byte"]
        if bits is not None:
            scores.setdefault(kind, {})[record.seed] = bits
        rates.setdefault(kind, set()).add(record.config["optimizer"]["lr"])
    ours = ("bhyt", "bhyt*")
    seeds = {record.seed for record in found.stage("main")}
    whole = {kind: values for kind, values in scores.items() if values.keys() == seeds}
    if not all(kind in whole for kind in ours) or rates["bhyt"] != rates["bhyt*"]:
        return UNKNOWN
    return paired_difference(whole, *ours)
