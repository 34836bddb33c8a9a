"""What the recorded runs of `residlab.experiments.residual_free` say, and the numbers that decide claims B3 and B4.

Nothing is trained here. Where runs are missing, an answer is None: chapters say "not recorded yet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.experiments.norm_results import by_layer
from residlab.experiments.residual_free import COORDINATEWISE, OPTIMIZERS, PROFILES, SPECTRAL, arm_of, variants

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

FloatArray = NDArray[np.float64]
QUANTITIES = ("spread", "defect", "stable_rank", "participation", "delocalisation")
MARGIN = 0.3
"""Nats below the unigram entropy at which a model has learnt more than the frequencies of bytes (B4)."""
GAP = 0.3
"""Nats above the residual model up to which a model without residual connections is trainable like it (B4)."""


def nats(record: Record) -> float:
    """Return a run's loss on held-out text in nats per byte; infinity if it diverged."""
    value = record.metrics["nats_per_token"]
    return float("inf") if value is None else float(value)


# --- Matrices


def matrices(record: Record, quantity: str) -> dict[str, FloatArray]:
    """Return matrix -> a quantity of the probe ``weights`` at each look.

    Raises
    ------
    ResidlabError
        If the run did not look at its weights, or there is no such quantity.
    """
    if quantity not in QUANTITIES:
        raise ResidlabError(f"quantity must be one of {', '.join(QUANTITIES)}; got {quantity!r}")
    looks = record.metrics.get("looks", {}).get("weights")
    if looks is None:
        raise ResidlabError(f"the run {record.hash} of {record.experiment} did not look at its weights")
    return {name: np.array([float(value) for value in shape[quantity]]) for name, shape in looks.items()}


def median_shape(record: Record, quantity: str, *, part: str = "") -> FloatArray:
    """Return the median of a quantity over a run's matrices whose names contain `part`, at each look."""
    return np.median([seen for name, seen in matrices(record, quantity).items() if part in name], axis=0)


def losses_at_looks(record: Record) -> FloatArray:
    """Return the held-out loss, bits per byte, at each look; infinity where none was taken, as before training."""
    evaluated = {int(step): bits for step, bits in record.metrics["evaluations"]}
    return np.array([float(evaluated.get(step, np.inf)) for step in record.metrics["looks"]["step"]])


def at_loss(losses: FloatArray, values: FloatArray, level: float) -> float:
    """Return a quantity when the loss first came down to a level, between two looks by linear interpolation.

    Parameters
    ----------
    losses
        By look, infinite where not known. What counts is the lowest so far.
    values
        The quantity by look.
    level
        A loss.

    Returns
    -------
    The interpolated value; that of the first known loss, if it is below the level already.

    Raises
    ------
    ResidlabError
        If the level is never reached.
    """
    lowest = np.minimum.accumulate(losses)
    below = np.flatnonzero(lowest <= level)
    if not below.size:
        raise ResidlabError(f"the loss never comes down to {level:g}; the lowest is {lowest[-1]:g}")
    look = int(below[0])
    if look == 0 or not np.isfinite(lowest[look - 1]):
        return float(values[look])
    share = (lowest[look - 1] - level) / (lowest[look - 1] - lowest[look])
    return float(values[look - 1] + share * (values[look] - values[look - 1]))


def optimizer_runs(found: Found, arm: str = "residual") -> dict[int, dict[str, Record]]:
    """Return seed -> optimizer -> run of ``optimizers``, for the seeds at which all six are recorded."""
    runs: dict[int, dict[str, Record]] = {}
    for record in found.stage("optimizers"):
        if arm_of(record) == arm:
            runs.setdefault(record.seed, {})[record.config["optimizer"]["kind"]] = record
    return {
        seed: {kind: kinds[kind] for kind in OPTIMIZERS}
        for seed, kinds in sorted(runs.items())
        if set(kinds) == set(OPTIMIZERS)
    }


def common_level(runs: Mapping[str, Record]) -> float:
    """Return the lowest loss that all runs reach: the worst of their best."""
    return max(float(np.min(losses_at_looks(record))) for record in runs.values())


def at_equal_loss(
    runs: Mapping[str, Record], quantity: str, level: float | None = None, *, part: str = ""
) -> dict[str, float]:
    """Return optimizer -> the median over matrices of a quantity, when the held-out loss came down to a common level.

    Parameters
    ----------
    runs
        By optimizer.
    quantity
        One of `QUANTITIES`.
    level
        Bits per byte; by default `common_level`.
    part
        Only matrices whose names contain it count, such as ``"attention"``.
    """
    level = common_level(runs) if level is None else level
    return {
        name: at_loss(losses_at_looks(record), median_shape(record, quantity, part=part), level)
        for name, record in runs.items()
    }


def steps_to(run: Record, level: float) -> float:
    """Return the step at which a run's held-out loss first came down to a level, linear between two looks."""
    return at_loss(losses_at_looks(run), np.array(run.metrics["looks"]["step"], dtype=float), level)


@dataclass(frozen=True)
class Isometry:
    """What decides B3, from the residual runs of ``optimizers``.

    Attributes
    ----------
    spread_wins, defect_wins
        Of the pairs (spectral optimizer, coordinate-wise one) of one seed, the share in which the spectral one's median
        over matrices is lower, at equal loss; over all seeds.
    spread_ratios
        By seed: geometric mean over coordinate-wise optimizers of the median spread, over that of spectral ones.
    levels
        By seed: the equal loss, bits per byte.
    """

    spread_wins: float
    defect_wins: float
    spread_ratios: tuple[float, ...]
    levels: tuple[float, ...]


def isometry(found: Found, arm: str = "residual") -> Isometry | None:
    """Return what decides B3, or None until the six optimizers are recorded."""
    by_seed = optimizer_runs(found, arm)
    if not by_seed:
        return None
    wins: dict[str, list[bool]] = {"spread": [], "defect": []}
    ratios = []
    for runs in by_seed.values():
        for quantity, won in wins.items():
            median = at_equal_loss(runs, quantity)
            won += [median[ours] < median[other] for ours in SPECTRAL for other in COORDINATEWISE]
        spread = at_equal_loss(runs, "spread")
        means = [float(np.mean(np.log([spread[kind] for kind in kinds]))) for kinds in (COORDINATEWISE, SPECTRAL)]
        ratios.append(float(np.exp(means[0] - means[1])))
    return Isometry(
        spread_wins=float(np.mean(wins["spread"])),
        defect_wins=float(np.mean(wins["defect"])),
        spread_ratios=tuple(ratios),
        levels=tuple(common_level(runs) for runs in by_seed.values()),
    )


# --- The recipe


def recipe_runs(found: Found, profile: str) -> dict[str, Record]:
    """Return variant -> run of ``recipe``, those that are recorded.

    Raises
    ------
    ResidlabError
        As `residlab.experiments.residual_free.variants`, if some are recorded.
    """
    records = found.stage("recipe")
    if not records:
        return {}
    wanted = {name: config.to_dict() for name, config in variants(profile, found).items()}
    recorded = {name: [record for record in records if record.config == config] for name, config in wanted.items()}
    return {name: runs[0] for name, runs in recorded.items() if runs}


def recorded_similarity(runs: Mapping[str, Record]) -> dict[str, NDArray[np.float32]] | None:
    """Return the cosine of two tokens by block as runs of ``recipe`` recorded it, or None without runs.

    Those with the rate, heads, length and optimizer of the variant ``recipe``, once for each setting.

    Parameters
    ----------
    runs
        As from `recipe_runs`.

    Returns
    -------
    ``settings``, shape (runs, 4): whether W_K began as W_Q, factor of logits, factor for each layer, layers; and
    ``similarity``, shape (runs, 2, deepest): before training and after it, NaN beyond a network's end.
    """
    if "recipe" not in runs:
        return None
    usual = runs["recipe"].config
    found: dict[tuple[float, ...], Record] = {}
    for record in runs.values():
        config, model = record.config, record.config["model"]
        alike = all(config[name] == usual[name] for name in ("optimizer", "steps"))
        starts = {"orthogonal": 0.0, "orthogonal-shared-qk": 1.0}
        if not alike or model["residual"] or model["heads"] != usual["model"]["heads"]:
            continue
        if model["initialization"] in starts:
            scale, beta = model["logit_scale"], model["temperature_base"]
            found.setdefault((starts[model["initialization"]], scale, beta, model["depth"]), record)
    deepest = max(int(setting[3]) for setting in found)
    similarity = np.full((len(found), 2, deepest), np.nan, np.float32)
    for row, ((*_, depth), record) in enumerate(found.items()):
        looks = by_layer(record, "attention", "token_similarity")
        similarity[row, :, : int(depth)] = looks[0], looks[-1]
    return {"settings": np.array(list(found), np.float32), "similarity": similarity}


def is_published(name: str) -> bool:
    """Return whether a variant is the recipe as published: no shared start, no doubled logits."""
    return name.startswith("published")


def group(name: str) -> str:
    """Return what a variant belongs to.

    ``as published``, ``with residual connections``, ``with another start`` (ours, but for the matrices) or ``with our
    start``.
    """
    if is_published(name):
        return "as published"
    if name.startswith("initial"):
        return "with another start"
    return "with residual connections" if name.startswith("residual") else "with our start"


@dataclass(frozen=True)
class Trainability:
    """What decides B4 at one depth, in nats per byte on held-out text.

    Attributes
    ----------
    best
        The variant with the lowest loss.
    loss
        Its loss.
    gain
        How far it is below the unigram entropy.
    gap
        How far it is above the residual model with AdamW, of the same depth and length.
    """

    best: str
    loss: float
    gain: float
    gap: float

    @property
    def trains(self) -> bool:
        """Whether it has learnt more than the frequencies of bytes."""
        return self.gain >= MARGIN

    @property
    def trains_alike(self) -> bool:
        """Whether it also comes near the residual model."""
        return self.trains and self.gap <= GAP


def trainability(
    runs: Mapping[str, Record], profile: str, depth_factor: int, unigram: float, *, published: bool
) -> Trainability | None:
    """Return what decides B4, or None until the runs that it takes are recorded.

    Parameters
    ----------
    runs
        As from `recipe_runs`.
    profile
        Of the runs.
    depth_factor
        1 for the profile's depth, 2 for twice as many layers.
    unigram
        Loss of the best prediction that knows no context, nats per byte.
    published
        Whether to look among the variants as published, or among those with our start.
    """
    depth = depth_factor * PROFILES[profile].depth
    steps = {record.config["steps"] for name, record in runs.items() if name.startswith("residual")}
    reference = runs.get(f"residual, AdamW, {depth} layers")
    candidates = {
        name: nats(record)
        for name, record in runs.items()
        if record.config["model"]["depth"] == depth
        and not record.config["model"]["residual"]
        and is_published(name) is published
        and record.config["steps"] in steps
    }
    if reference is None or not candidates:
        return None
    best = min(candidates, key=lambda name: candidates[name])
    loss = candidates[best]
    return Trainability(best, loss, unigram - loss, loss - nats(reference))


def unigram_nats(train: NDArray[np.integer], held_out: NDArray[np.integer], vocabulary: int) -> float:
    """Return the loss, nats per token, of predicting each token by its frequency in the training text, plus one.

    Parameters
    ----------
    train, held_out
        Token ids.
    vocabulary
        How many there are.
    """
    counts = np.bincount(np.asarray(train), minlength=vocabulary) + 1.0
    logs = np.log(counts / counts.sum())
    return float(-logs[np.asarray(held_out)].mean())


def bigram_bits(train: NDArray[np.integer], held_out: NDArray[np.integer], vocabulary: int) -> float:
    """Return the loss, bits per token, of predicting each token by how often it followed the one before it.

    Frequencies of pairs in the training text, plus a tenth.

    Parameters
    ----------
    train, held_out
        Token ids.
    vocabulary
        How many there are.
    """
    ids, seen = np.asarray(train, np.int64), np.asarray(held_out, np.int64)
    pairs = np.bincount(ids[:-1] * vocabulary + ids[1:], minlength=vocabulary**2).reshape(vocabulary, vocabulary) + 0.1
    logs = np.log2(pairs / pairs.sum(axis=1, keepdims=True))
    return float(-logs[seen[:-1], seen[1:]].mean())


def is_muon(record: Record) -> bool:
    """Return whether Muon trained a run's matrices."""
    return bool(record.config["optimizer"]["kind"] == "muon")
