"""Recorded runs as chapters read them: where they lie, and differences between norms with their intervals."""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import residlab
from residlab.errors import ResidlabError
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


def results_folder() -> Path:
    """Return ``results/`` of the checkout that this library belongs to.

    Raises
    ------
    ResidlabError
        If the library is installed without one.
    """
    folder = Path(residlab.__file__).resolve().parents[2] / "results"
    if not folder.is_dir():
        raise ResidlabError(f"recorded runs belong to a clone of the repository; there is no folder {folder}")
    return folder


def paired_difference(scores: Scores, first: str, second: str) -> Difference:
    """Return the mean of ``first`` minus that of ``second``, over the seeds that all norms share.

    The interval comes from the residuals of the additive model norm + seed, of all norms given:
    ``(norms - 1)(seeds - 1)`` degrees of freedom. Without two norms or two seeds in common it is everything.
    """
    from scipy.stats import t

    seeds = sorted(set.intersection(*(set(of) for of in scores.values()))) if scores else []
    freedom = (len(scores) - 1) * (len(seeds) - 1)
    if freedom < 1 or first not in scores or second not in scores:
        return UNKNOWN
    of_norm = {norm: statistics.fmean(values[seed] for seed in seeds) for norm, values in scores.items()}
    of_seed = {seed: statistics.fmean(values[seed] for values in scores.values()) for seed in seeds}
    whole = statistics.fmean(of_norm.values())
    residuals = [values[s] - of_norm[norm] - of_seed[s] + whole for norm, values in scores.items() for s in seeds]
    deviation = math.sqrt(math.fsum(r * r for r in residuals) / freedom)
    half = float(t.ppf(0.975, freedom)) * deviation * math.sqrt(2 / len(seeds))
    middle = of_norm[first] - of_norm[second]
    return Difference(middle, middle - half, middle + half)


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
