"""Transformers without residual connections: which start, optimizer and attention let them train (chapters 8 to 11).

The plan, with what it costs on one core (12 layers: half a second a step with AdamW, up to 1.2 with KL-Shampoo), is in
`results/README.md`, with the rules that decide claims B3 and B4, fixed before the first run:

    gated-tuning  with a gate: 6 optimizers x {residual, free}, AdamW on the usual start; rates; 100 steps, seed 100
    gated         with a gate: the arms of main at these rates, one seed, two of them three; 400 steps
    tuning        6 free optimizers and the residual arms of main: 3 rates and more; 200 steps, seed 100
    optimizers    6 optimizers at their own rate: residual (gated), 2 seeds, and free, one; all matrices; 200 steps
    recipe        one factor at a time around the recipe, pairs that theory says interact, as published; depths
    main          3 residual models and 3 free ones, 3 seeds, all looks, 400 steps
    width         the best residual and the best free model at 4 widths, 200 steps

Feedforwards have no gate, as the published list of matrices has none, but for the stages that say so.

*Free* means without residual connections and with our start: all matrices scaled semi-orthogonal, ``W_K = W_Q``,
attention logits doubled and then multiplied by ``1.03**layer``, so that each token first attends to itself (chapter
10). *As published* (arXiv 2605.25880) there is no shared start and no doubling. Optimizers differ in what they do to
matrices only: everything else has AdamW at one rate, nothing decays (decay goes with the rate, and rates differ a
hundredfold), and both kinds of network start from the same semi-orthogonal matrices. Embeddings start as in
``bhyt-depth``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from residlab.errors import ResidlabError
from residlab.experiments.plans import Found, Stage
from residlab.experiments.rates import best_rate, scores_by_rate, wanted_rates
from residlab.experiments.record import Record
from residlab.models.config import ModelConfig
from residlab.training.config import TrainConfig
from residlab.training.optimizer_config import Kind, OptimizerConfig

Options = Mapping[str, Any]

NO_GATE: Options = MappingProxyType({"feedforward": "gelu"})
GATE: Options = MappingProxyType({"feedforward": "swiglu"})
RESIDUAL: Options = MappingProxyType({**NO_GATE, "initialization": "orthogonal"})
PLAIN: Options = MappingProxyType({**NO_GATE, "initialization": "gpt2-scaled"})
"""A residual model as everybody starts it."""
PUBLISHED: Options = MappingProxyType({**RESIDUAL, "residual": False, "temperature_base": 1.03})
FREE: Options = MappingProxyType({**PUBLISHED, "initialization": "orthogonal-shared-qk", "logit_scale": 2.0})
ARMS: Mapping[str, Options] = MappingProxyType({"residual": RESIDUAL, "plain": PLAIN, "free": FREE})

OPTIMIZERS: tuple[Kind, ...] = ("adamw", "signgd", "muon", "soap", "shampoo", "kl-shampoo")
SPECTRAL: tuple[Kind, ...] = ("muon", "soap", "shampoo", "kl-shampoo")
COORDINATEWISE: tuple[Kind, ...] = ("adamw", "signgd")
GATED_TUNED: tuple[tuple[str, Kind], ...] = (
    *(("residual", kind) for kind in OPTIMIZERS),
    *(("free", kind) for kind in OPTIMIZERS),
    ("plain", "adamw"),
)
GATED_FIRST_RATES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "adamw": (1e-3, 2e-3, 4e-3),
        "signgd": (2.5e-4, 5e-4, 1e-3),
        "muon": (1e-2, 2e-2, 4e-2),
        "soap": (1.5e-3, 3e-3, 6e-3),
        "shampoo": (3e-2, 6e-2, 12e-2),
        "kl-shampoo": (1.5e-3, 3e-3, 6e-3),
    }
)
FIRST_RATES: Mapping[tuple[str, Kind], tuple[float, ...]] = MappingProxyType(
    {
        ("plain", "adamw"): (2e-3, 4e-3, 8e-3),
        ("residual", "muon"): (2e-2, 4e-2, 8e-2),
        ("residual", "kl-shampoo"): (6e-3, 12e-3, 24e-3),
        ("free", "muon"): (5e-3, 1e-2, 2e-2),
        ("free", "kl-shampoo"): (1.5e-3, 3e-3, 6e-3),
        ("free", "soap"): (0.75e-3, 1.5e-3, 3e-3),
        ("free", "adamw"): (0.5e-3, 1e-3, 2e-3),
        ("free", "signgd"): (1.25e-4, 2.5e-4, 5e-4),
        ("free", "shampoo"): (1.5e-2, 3e-2, 6e-2),
    }
)
"""Around what the stage ``gated-tuning`` found."""
TUNED = tuple(FIRST_RATES)
RATE_LIMIT = 16.0
"""A grid does not go beyond its first rates by more than this factor."""
EQUAL = 0.002
"""Losses of two rates that differ by less, bits per byte, are equal: the lower rate is taken, and the grid goes on."""
FREQUENCIES: Mapping[str, int] = MappingProxyType({"soap": 10, "shampoo": 5, "kl-shampoo": 5})
"""Steps between new eigenbases, chosen so that no step takes three times one of AdamW."""
REST_RATE = 2e-3
"""AdamW's rate on embeddings and gains, whatever updates the matrices: RMSNorm's best in ``bhyt-depth``."""
TUNING_SEED, SEEDS = 100, (0, 1, 2)
WIDTH_FACTORS = (0.5, 1, 1.5, 2)
MAIN: tuple[tuple[str, Kind], ...] = (
    ("plain", "adamw"),
    ("residual", "muon"),
    ("residual", "kl-shampoo"),
    ("free", "muon"),
    ("free", "kl-shampoo"),
    ("free", "soap"),
)
THRICE: tuple[tuple[str, Kind], ...] = (("residual", "muon"), ("free", "muon"))
"""Of ``gated``, those with all seeds."""


@dataclass(frozen=True)
class Size:
    """What a profile trains."""

    depth: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    """Of ``main`` and ``gated``; the others take half as many, ``gated-tuning`` a quarter."""
    init_std: float
    """Standard deviation of embeddings, and of the usual start's matrices."""
    precision: str = "float32"
    evaluation_tokens: int = 65_536


PROFILES: dict[str, Size] = {
    "smoke": Size(
        depth=4, width=32, heads=2, context=32, batch=4, steps=16, init_std=0.1, evaluation_tokens=512,
    ),
    "cpu": Size(depth=12, width=128, heads=4, context=128, batch=8, steps=400, init_std=0.06),
    "gpu": Size(
        depth=24, width=512, heads=8, context=512, batch=64, steps=3000, init_std=0.03, precision="bfloat16",
        evaluation_tokens=524_288,
    ),
}  # fmt: skip


def config(profile: str, arm: Options, kind: Kind, lr: float, seed: int, **changes: Any) -> TrainConfig:
    """Return a run of a profile: half the steps of ``main``, nothing looked at.

    Parameters
    ----------
    profile
        A key of `PROFILES`.
    arm
        Options of the model, one of `ARMS` or with changes of its own.
    kind, lr
        The optimizer of matrices and its rate.
    seed
        Of the run.
    changes
        Fields of the model or of the run.

    Raises
    ------
    ResidlabError
        If there is no such profile, or a value is not allowed.
    """
    if profile not in PROFILES:
        raise ResidlabError(f"profile must be one of {', '.join(PROFILES)}; got {profile!r}")
    size = PROFILES[profile]
    model: dict[str, Any] = {
        "depth": size.depth,
        "width": size.width,
        "heads": size.heads,
        "vocabulary": 257,
        "context": size.context,
        "init_std": size.init_std,
        **arm,
    }
    optimizer = OptimizerConfig(kind=kind, lr=lr, rest_lr=REST_RATE, frequency=FREQUENCIES.get(kind))
    run: dict[str, Any] = {
        "steps": max(2, size.steps // 2),
        "batch": size.batch,
        "seed": seed,
        "optimizer": optimizer,
        "precision": size.precision,
        "evaluation_tokens": size.evaluation_tokens,
    }
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    for name, value in changes.items():
        (model if name in fields else run)[name] = value
    return TrainConfig(model=ModelConfig(**model), **run)


# --- Rates


def tuned(found: Found, arm: str, kind: Kind, stage: str = "tuning") -> dict[float, float]:
    """Return learning rate -> bits per byte in ``tuning`` or ``gated-tuning``, for an arm and an optimizer."""
    return scores_by_rate(
        record for record in found.stage(stage) if arm_of(record) == arm and record.config["optimizer"]["kind"] == kind
    )


def own_rate(found: Found, arm: str, kind: Kind, stage: str = "tuning") -> float:
    """Return the rate with the lowest loss in ``tuning`` or ``gated-tuning``.

    Raises
    ------
    ResidlabError
        If there are no records of it.
    """
    scores = tuned(found, arm, kind, stage)
    if not scores:
        raise ResidlabError(f"no record of {stage} {kind}, {arm}: run the stage {stage} first")
    return best_rate(scores, equal=EQUAL)


def best_optimizer(found: Found, residual: bool) -> tuple[str, Kind]:
    """Return the arm and the optimizer of ``main`` whose best rate had the lowest loss in ``tuning``."""
    candidates = [(arm, kind) for arm, kind in MAIN if (arm == "free") is not residual]
    return min(candidates, key=lambda each: tuned(found, *each)[own_rate(found, *each)])


def arm_of(record: Record) -> str:
    """Return a run's arm: ``residual``, ``plain``, or ``free``, which all without residual connections are."""
    model = record.config["model"]
    if not model["residual"]:
        return "free"
    return "plain" if model["initialization"] == PLAIN["initialization"] else "residual"


# --- Stages


def _wanted(first: tuple[float, ...], scores: Mapping[float, float]) -> list[float]:
    return wanted_rates(first, scores, (first[0] / RATE_LIMIT, first[-1] * RATE_LIMIT), equal=EQUAL)


def _gated_tuning(profile: str, found: Found) -> list[TrainConfig]:
    steps = max(2, PROFILES[profile].steps // 4)
    return [
        config(profile, {**ARMS[arm], **GATE}, kind, rate, TUNING_SEED, steps=steps, probes_last=("weights",))
        for arm, kind in GATED_TUNED
        for rate in _wanted(GATED_FIRST_RATES[kind], tuned(found, arm, kind, "gated-tuning"))
    ]


def _gated(profile: str, found: Found) -> list[TrainConfig]:
    return [
        config(profile, {**ARMS[arm], **GATE}, kind, own_rate(found, arm, kind, "gated-tuning"), seed, **_all(profile))
        for seed in SEEDS
        for arm, kind in MAIN
        if seed == SEEDS[0] or (arm, kind) in THRICE
    ]


def _tuning(profile: str, found: Found) -> list[TrainConfig]:
    return [
        config(profile, ARMS[arm], kind, rate, TUNING_SEED, probes_last=("weights",))
        for arm, kind in TUNED
        for rate in _wanted(FIRST_RATES[arm, kind], tuned(found, arm, kind))
    ]


def _optimizers(profile: str, found: Found) -> list[TrainConfig]:
    size = PROFILES[profile]
    every = max(1, size.steps // 20)
    looks: dict[str, Any] = {
        "probes": ("weights",), "probe_at": (0,), "probe_every": every,
        "evaluate_every": every, "evaluation_tokens": size.evaluation_tokens // 4,
    }  # fmt: skip
    gated = {**RESIDUAL, **GATE}
    residual = [
        config(profile, gated, kind, own_rate(found, "residual", kind, "gated-tuning"), seed, **looks)
        for seed in SEEDS[:2]
        for kind in OPTIMIZERS
    ]
    return residual + [
        config(profile, FREE, kind, own_rate(found, "free", kind), SEEDS[0], **looks) for kind in OPTIMIZERS
    ]


def variants(profile: str, found: Found) -> dict[str, TrainConfig]:
    """Return the runs of ``recipe`` by name.

    Raises
    ------
    ResidlabError
        If ``tuning`` has no records of an optimizer that is needed.
    """
    size, seed = PROFILES[profile], SEEDS[0]
    rate = {each: own_rate(found, *each) for each in {*MAIN, ("free", "muon")}}
    muon = rate["free", "muon"]
    steps = max(2, size.steps // 2)
    looks: dict[str, Any] = {
        "probes": ("attention", "stream", "gradients"), "probe_at": (0,), "probe_every": max(1, steps // 2),
    }  # fmt: skip

    def run(arm: Options = FREE, kind: Kind = "muon", lr: float = muon, **changes: Any) -> TrainConfig:
        return config(profile, arm, kind, lr, seed, **{**looks, **changes})

    runs = {
        "recipe": run(),
        "initial GPT-2": run({**FREE, "initialization": "gpt2"}),
        "initial W_K apart": run({**FREE, "initialization": "orthogonal"}),
        **{f"beta {beta:g}": run({**FREE, "temperature_base": beta}) for beta in (1.0, 1.05, 1.1)},
        **{f"scale {scale:g}": run({**FREE, "logit_scale": scale}) for scale in (1.0, 4.0)},
        "scale 1, beta 1": run({**FREE, "logit_scale": 1.0, "temperature_base": 1.0}),
        "half as many heads": run(heads=size.heads // 2),
        "twice as many heads": run(heads=2 * size.heads),
        **{f"published, beta {b:g}": run({**PUBLISHED, "temperature_base": b}) for b in (1.0, 1.03, 1.05, 1.1)},
        "published, half the rate": run(PUBLISHED, lr=muon / 2),
        "published, twice the rate": run(PUBLISHED, lr=2 * muon),
        "published, KL-Shampoo": run(PUBLISHED, "kl-shampoo", rate["free", "kl-shampoo"]),
        "published, SOAP": run(PUBLISHED, "soap", rate["free", "soap"]),
        "published, 4 times as long": run(PUBLISHED, steps=4 * steps, probe_every=steps),
    }
    for depth in (size.depth // 2, size.depth, 2 * size.depth):
        after = f", {depth} layers"
        runs |= {
            f"residual, AdamW{after}": run(PLAIN, "adamw", rate["plain", "adamw"], depth=depth),
            f"residual, Muon{after}": run(RESIDUAL, "muon", rate["residual", "muon"], depth=depth),
        }
        if depth != size.depth:
            runs |= {
                f"recipe{after}": run(depth=depth),
                f"beta 1{after}": run({**FREE, "temperature_base": 1.0}, depth=depth),
                f"published{after}": run(PUBLISHED, depth=depth),
            }
    deep: dict[str, Any] = {"depth": 2 * size.depth}
    after = f", {2 * size.depth} layers"
    return runs | {
        f"scale 4{after}": run({**FREE, "logit_scale": 4.0}, **deep),
        f"half the rate{after}": run(lr=muon / 2, **deep),
        f"a quarter of the rate{after}": run(lr=muon / 4, **deep),
        f"recipe, KL-Shampoo{after}": run(FREE, "kl-shampoo", rate["free", "kl-shampoo"], **deep),
        f"published, half the rate{after}": run(PUBLISHED, lr=muon / 2, **deep),
        f"published, a quarter of the rate{after}": run(PUBLISHED, lr=muon / 4, **deep),
        f"published, beta 1.05{after}": run({**PUBLISHED, "temperature_base": 1.05}, **deep),
        f"published, KL-Shampoo{after}": run(PUBLISHED, "kl-shampoo", rate["free", "kl-shampoo"], **deep),
    }


def _recipe(profile: str, found: Found) -> list[TrainConfig]:
    return list(variants(profile, found).values())


def _all(profile: str) -> dict[str, Any]:
    """Return the fields of a run of ``main``: all steps, all looks."""
    steps = PROFILES[profile].steps
    return {
        "steps": steps,
        "probes": ("stream", "weights", "attention", "gradients"),
        "probes_last": ("quantization",),
        "probe_at": (0,),
        "probe_every": max(1, steps // 10),
        "checkpoint_every": max(1, steps // 2),
    }


def _main(profile: str, found: Found) -> list[TrainConfig]:
    return [
        config(profile, ARMS[arm], kind, own_rate(found, arm, kind), seed, **_all(profile))
        for seed in SEEDS
        for arm, kind in MAIN
    ]


def _width(profile: str, found: Found) -> list[TrainConfig]:
    size, runs = PROFILES[profile], []
    for arm, kind in (best_optimizer(found, residual=True), best_optimizer(found, residual=False)):
        runs += [
            config(
                profile, ARMS[arm], kind, own_rate(found, arm, kind), SEEDS[0],
                width=int(factor * size.width), heads=int(factor * size.heads),
                init_std=size.init_std / factor**0.5, probes_last=("quantization",),
            )
            for factor in WIDTH_FACTORS
        ]  # fmt: skip
    return runs


STAGES = (
    Stage("gated-tuning", "with a gate: a learning rate for each optimizer, with and without residual", _gated_tuning),
    Stage("gated", "with a gate: the arms of main, one seed, two of them three, all looks", _gated),
    Stage("tuning", "a learning rate for each optimizer without residual connections, and for main", _tuning),
    Stage("optimizers", "what each optimizer makes of orthogonal matrices, at its own rate", _optimizers),
    Stage("recipe", "the recipe and what it is without each of its parts; depths; one seed", _recipe),
    Stage("main", "three residual and three free models, three seeds, all looks", _main),
    Stage("width", "the best of each at four widths, one seed", _width),
)
