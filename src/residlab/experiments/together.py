"""Norms, residual connections, quantization and rounding at once: the models of Parts I and II, and what they lack.

The plan with its predictions and rules, fixed before the first run, is in `results/README.md` (chapter 18):

    tuning    {residual, free} x {gain, bhyt*}, Muon: 3 rates and more, 200 steps, seed 100    12 runs and more
    main      the same at their own rate, 3 seeds, 400 steps                                    12 runs
    examine   each model of bhyt-depth (main, exact, control), of residual-free (main, gated) and of main
    rounding  each of them in four arithmetics

*gain* is RMSNorm with BHyT's first gains lambda/kappa, *bhyt\\** the same with its tanh. Feedforwards have no gate, as
in ``residual-free``. Free models with gains of lambda/kappa have logits times ``2 (kappa/lambda)**2``: each token
first attends to itself as it does without them. BHyT itself, whose second site adds what attention writes to the
variance of a stream, has no meaning without one; BHyT* measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from residlab.errors import ResidlabError
from residlab.experiments import residual_free
from residlab.experiments.bhyt_depth import CONTROL
from residlab.experiments.examination import Examination
from residlab.experiments.plans import Found, Stage
from residlab.experiments.rates import best_rate, scores_by_rate, wanted_rates
from residlab.experiments.record import Record
from residlab.experiments.residual_free import ARMS as BASES
from residlab.experiments.residual_free import EQUAL, FREE, RATE_LIMIT, SEEDS, TUNING_SEED
from residlab.experiments.rounded_inference import RoundedInference
from residlab.models.config import norm_options
from residlab.training.config import TrainConfig

NORMS = MappingProxyType({"gain": CONTROL, "bhyt*": norm_options("bhyt*")})
LOGITS = float(FREE["logit_scale"]) / CONTROL.gain_attention**2
"""Of free models whose queries and keys are smaller by the gain."""
ARMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        f"{base}, {name}": {**BASES[base], "norm": norm, **({"logit_scale": LOGITS} if base == "free" else {})}
        for base in ("residual", "free")
        for name, norm in NORMS.items()
    }
)
FIRST_RATES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"residual": (2e-2, 4e-2, 8e-2), "free": (5e-3, 1e-2, 2e-2)}
)
"""Around what RMSNorm's tuning in ``residual-free`` found."""
SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bhyt-depth": ("main", "exact", "control"), "residual-free": ("main", "gated"), "together": ("main",)}
)
"""Experiment -> the stages whose models are measured."""
ROLES = ("fp32", "bf16", "bf16 products", "q=e4m3fn a=fp32 w=fp32 r=fp32")
PROFILES = residual_free.PROFILES


def config(profile: str, arm: str, lr: float, seed: int, **changes: Any) -> TrainConfig:
    """Return a run of an arm with Muon, in a profile of ``residual-free``; errors as there."""
    return residual_free.config(profile, ARMS[arm], "muon", lr, seed, **changes)


def arm_of(record: Record) -> str | None:
    """Return the arm that a record's model is of, or None."""
    model = TrainConfig.from_dict(record.config).model
    for name, options in ARMS.items():
        if all(getattr(model, field) == value for field, value in options.items()):
            return name
    return None


def own_rate(found: Found, arm: str) -> float:
    """Return an arm's rate with the lowest loss in ``tuning``.

    Raises
    ------
    ResidlabError
        If there are no records of it.
    """
    scores = _tuned(found, arm)
    if not scores:
        raise ResidlabError(f"no record of tuning {arm}: run the stage tuning first")
    return best_rate(scores, equal=EQUAL)


def _tuned(found: Found, arm: str) -> dict[float, float]:
    return scores_by_rate(record for record in found.stage("tuning") if arm_of(record) == arm)


def _tuning(profile: str, found: Found) -> list[TrainConfig]:
    runs = []
    for arm in ARMS:
        first = FIRST_RATES[arm.partition(",")[0]]
        limits = first[0] / RATE_LIMIT, first[-1] * RATE_LIMIT
        rates = wanted_rates(first, _tuned(found, arm), limits, equal=EQUAL)
        runs += [config(profile, arm, rate, TUNING_SEED) for rate in rates]
    return runs


def _main(profile: str, found: Found) -> list[TrainConfig]:
    steps = residual_free.PROFILES[profile].steps
    rates = {arm: own_rate(found, arm) for arm in ARMS}
    return [
        config(profile, arm, rates[arm], seed, steps=steps, checkpoint_every=max(1, steps // 2))
        for seed in SEEDS
        for arm in ARMS
    ]


def models(profile: str, found: Found) -> list[Record]:
    """Return the records of all models that are measured, in the order of `SOURCES`; diverged ones are left out.

    Those of other experiments are in files beside this one's.

    Raises
    ------
    ResidlabError
        If a stage has none.
    """
    runs: list[Record] = []
    for experiment, stages in SOURCES.items():
        other = found.beside(experiment, profile)
        for stage in stages:
            records = other.stage(stage)
            if not records:
                raise ResidlabError(
                    f"no record of {experiment}/{stage}, whose models are measured: "
                    f"first residlab run {experiment} --profile {profile}"
                )
            runs += sorted(_finite(records), key=lambda record: (record.seed, record.hash))
    return runs


def _finite(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if not record.metrics["diverged"]]


def _examine(profile: str, found: Found) -> list[Examination]:
    return [Examination(record.hash) for record in models(profile, found)]


def _rounding(profile: str, found: Found) -> list[RoundedInference]:
    return [
        RoundedInference(roles, source=record.hash, tokens=record.config["model"]["context"])
        for record in models(profile, found)
        for roles in ROLES
    ]


STAGES = (
    Stage("tuning", "a learning rate for each arm that Parts I and II lack", _tuning),
    Stage("main", "these arms, three seeds", _main),
    Stage("examine", "all models: stream, quantization, tanh, growth of a small error", _examine),
    Stage("rounding", "all models in four arithmetics", _rounding),
)
