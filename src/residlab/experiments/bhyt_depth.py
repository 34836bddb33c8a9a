"""Does bounding pay? Norms, depth, data and refresh policies, on one small language model of bytes (chapter 5).

The plan, with what it costs on one core of the machine that the records name (one run of 12 layers, 400 steps: about 3
minutes):

    tuning       4 norms x 3 learning rates (more at an edge), seed 100       12 runs and more
    main         4 norms x 3 seeds at their own best rate, with all probes    12 runs
    exact        BHyT* x 3 seeds at BHyT's rate                                3 runs
    star         BHyT* at its own best rate x 3 seeds                          3 runs and more
    control      RMSNorm x 3 seeds with BHyT's first gain and rate             3 runs
    equal        LNS and BHyT at RMSNorm's rate, probed; one seed              2 runs
    depth        4 norms at 6, 12, 24, 48 layers, 120 steps; one seed         16 runs of 0.4 to 4 min
    norms        LayerNorm, DyT, BHyT*; one seed                               8 runs
    refresh      BHyT with other constants; one seed                           5 runs
    stability    7 norms x 5 rates, 60 steps; one seed                        35 runs of 30 s
    data         4 norms at a quarter and at four times the tokens; one seed   8 runs of 0.7 and 12 min
    spike        RMSNorm and BHyT at 16 times their rate, 120 steps, closely   2 runs
    bounds       BHyT and BHyT* with lam/kappa of 0.5 and 1; one seed          4 runs
    small        4 norms x 4 rates, initial weights of 0.02; seed 100         18 runs
    gpt2-tuning  LayerNorm, GELU, learned positions and biases, as GPT-2
                 has them, x 3 learning rates (more at an edge), seed 100      3 runs and more
    gpt2         that model x 3 seeds at its best rate, with all probes        3 runs

``tuning``, ``main``, ``exact``, ``star`` and ``control`` decide; the rest explores, one factor at a time, and says so.
Seeds of ``main`` are not that of ``tuning``, so that no rate was chosen for its luck. Every norm sees the same weights'
seed and the same data. ``gpt2`` trains a model for chapter 17, which rounds its inference.

Initial weights have a standard deviation of 0.02 sqrt(1024/width), that of the paper's smallest model carried over to
another width: a product of a matrix with a normalised token then has the same size. ``small`` keeps 0.02 itself.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from residlab.errors import ResidlabError
from residlab.experiments.plans import Found, Stage
from residlab.experiments.rates import best_rate, scores_by_rate, wanted_rates
from residlab.models.config import ModelConfig, NormOptions, RMSNormOptions, norm_options
from residlab.training.config import TrainConfig
from residlab.training.optimizer_config import OptimizerConfig
from residlab.training.schedules import ScheduleConfig

NORMS: dict[str, NormOptions] = {
    "rmsnorm": norm_options("rmsnorm"),
    "lns": norm_options("lns"),
    "peri-ln": norm_options("peri-ln", embedding_norm=True),
    "bhyt": norm_options("bhyt"),
    "layernorm": norm_options("layernorm"),
    "dyt": norm_options("dyt", alpha_attention=1.0, alpha_feedforward=1.0, alpha_final=1.0, embedding_scale=True),
    "bhyt*": norm_options("bhyt*"),
}
"""Each as its authors have it: DyT with the values of its LLaMA experiments at the smallest width they report. Peri-LN
normalises the embeddings too, which its paper leaves open: without, branches of size 1 drown embeddings of size 0.02,
and two runs lost half a bit (recorded, in ``small``)."""
MAIN = ("rmsnorm", "lns", "peri-ln", "bhyt")
CONTROL = RMSNormOptions(gain_attention=0.2, gain_feedforward=0.1)
"""BHyT without the tanh: its gain lam/kappa at the start, and nothing that bounds."""
OTHERS = ("layernorm", "dyt", "bhyt*")
GPT2: dict[str, Any] = {"feedforward": "gelu", "position": "learned", "bias": True}
"""What GPT-2 has besides its LayerNorm; its initialization is that of all runs."""
TUNING_SEED, SEEDS = 100, (0, 1, 2)
FIRST_RATES = (2e-3, 4e-3, 8e-3)
RATE_LIMITS = (1.25e-4, 6.4e-2)
STABILITY_RATES = (8e-3, 16e-3, 32e-3, 64e-3, 128e-3)
DEPTH_FACTORS = (0.5, 1, 2, 4)
PROBES = ("stream", "attention", "bounds", "saturation", "approximation", "jacobian", "skipping")
CONSTANTS: dict[str, NormOptions] = {
    "construction": norm_options("bhyt", refresh="construction"),
    "frozen": norm_options("bhyt", refresh="frozen"),
    "every 50": norm_options("bhyt", refresh=50),
    "position": norm_options("bhyt", averaged="position"),
    "rows": norm_options("bhyt", averaged="rows"),
}
"""BHyT with a constant other than that of the weights at every forward; ``construction`` is the authors' code."""


@dataclass(frozen=True)
class Size:
    """What a profile trains."""

    depth: int
    width: int
    heads: int
    context: int
    batch: int
    steps: int
    short: int
    """Steps of the stage ``stability``; ``depth`` takes twice as many."""
    init_std: float
    """Standard deviation of initial weights: 0.02 sqrt(1024/width), to one digit."""
    precision: str = "float32"
    evaluation_tokens: int = 65_536


PROFILES: dict[str, Size] = {
    "smoke": Size(
        depth=3, width=32, heads=2, context=32, batch=4, steps=12, short=4, init_std=0.1, evaluation_tokens=512,
    ),
    "cpu": Size(depth=12, width=128, heads=4, context=128, batch=8, steps=400, short=60, init_std=0.06),
    "gpu": Size(
        depth=24, width=512, heads=8, context=512, batch=64, steps=3000, short=300, init_std=0.03, precision="bfloat16",
        evaluation_tokens=524_288,
    ),
    "gpu-short": Size(
        depth=12, width=512, heads=8, context=256, batch=64, steps=400, short=60, init_std=0.03, precision="bfloat16",
        evaluation_tokens=131_072,
    ),
}  # fmt: skip


def config(profile: str, norm: NormOptions, lr: float, seed: int, **changes: Any) -> TrainConfig:
    """Return a run of a profile; ``changes`` are fields of the model or of the run."""
    if profile not in PROFILES:
        raise ResidlabError(f"profile must be one of {', '.join(PROFILES)}; got {profile!r}")
    size = PROFILES[profile]
    model: dict[str, Any] = {
        "depth": size.depth,
        "width": size.width,
        "heads": size.heads,
        "vocabulary": 257,
        "context": size.context,
        "norm": norm,
        "init_std": size.init_std,
    }
    run: dict[str, Any] = {
        "steps": size.steps,
        "batch": size.batch,
        "seed": seed,
        "optimizer": OptimizerConfig(kind="adamw", lr=lr, weight_decay=0.1),
        "precision": size.precision,
        "evaluation_tokens": size.evaluation_tokens,
    }
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    for name, value in changes.items():
        (model if name in fields else run)[name] = value
    return TrainConfig(model=ModelConfig(**model), **run)


def best_rates(found: Found) -> dict[str, float]:
    """Return each main norm's learning rate with the lowest loss in ``tuning``.

    Raises
    ------
    ResidlabError
        If ``tuning`` has no records of a norm.
    """
    best = {}
    for kind in MAIN:
        scores = _scores(found, kind)
        if not scores:
            raise ResidlabError(f"no record of tuning {kind}: run the stage tuning first")
        best[kind] = best_rate(scores)
    return best


def _scores(found: Found, kind: str) -> dict[float, float]:
    """Return learning rate -> bits per byte in ``tuning``; a run that diverged scores infinity."""
    return scores_by_rate(
        record for record in found.stage("tuning") if ModelConfig.from_dict(record.config["model"]).norm == NORMS[kind]
    )


def _rate(found: Found, kind: str) -> float:
    """Return the rate at which a norm runs in the exploring stages: its own, or that of its nearest kin."""
    return best_rates(found)[{"layernorm": "rmsnorm", "dyt": "rmsnorm", "bhyt*": "bhyt"}.get(kind, kind)]


def _tuning(profile: str, found: Found) -> list[TrainConfig]:
    runs = []
    for kind in MAIN:
        rates = wanted_rates(FIRST_RATES, _scores(found, kind), RATE_LIMITS)
        runs += [config(profile, NORMS[kind], rate, TUNING_SEED) for rate in rates]
    return runs


def _main(profile: str, found: Found) -> list[TrainConfig]:
    rates = best_rates(found)
    return [_probed(profile, NORMS[kind], rates[kind], seed) for seed in SEEDS for kind in MAIN]


def _exact(profile: str, found: Found) -> list[TrainConfig]:
    return [_probed(profile, NORMS["bhyt*"], _rate(found, "bhyt*"), seed) for seed in SEEDS]


def _control(profile: str, found: Found) -> list[TrainConfig]:
    return [_probed(profile, CONTROL, _rate(found, "bhyt"), seed) for seed in SEEDS]


def _equal(profile: str, found: Found) -> list[TrainConfig]:
    return [_probed(profile, NORMS[kind], _rate(found, "rmsnorm"), SEEDS[0]) for kind in ("bhyt", "lns")]


def _norms(profile: str, found: Found) -> list[TrainConfig]:
    factors = {"layernorm": (1, 0.5, 2), "dyt": (1, 0.5, 2), "bhyt*": (0.5, 2)}  # BHyT* at BHyT's own is in ``exact``
    return [
        _probed(profile, NORMS[kind], factor * _rate(found, kind), SEEDS[0])
        for kind in OTHERS
        for factor in factors[kind]
    ]


def star_scores(found: Found) -> dict[float, float]:
    """Return learning rate -> bits per byte of BHyT* with the first seed, from all stages that have trained it."""
    runs = [record for stage in ("exact", "norms", "star") for record in found.stage(stage)]
    return scores_by_rate(
        record
        for record in runs
        if record.seed == SEEDS[0] and ModelConfig.from_dict(record.config["model"]).norm == NORMS["bhyt*"]
    )


def _star(profile: str, found: Found) -> list[TrainConfig]:
    scores = star_scores(found)
    first = scores or (_rate(found, "bhyt*"),)
    beyond = [rate for rate in wanted_rates(first, scores, RATE_LIMITS) if rate not in scores]
    own = [_probed(profile, NORMS["bhyt*"], best_rate(scores), seed) for seed in SEEDS if not beyond]
    tried = {record.config["optimizer"]["lr"] for record in found.stage("star") if record.seed == SEEDS[0]}
    return [_probed(profile, NORMS["bhyt*"], rate, SEEDS[0]) for rate in sorted({*tried, *beyond})] + own


def _probed(profile: str, norm: NormOptions, rate: float, seed: int, **changes: Any) -> TrainConfig:
    every = max(1, PROFILES[profile].steps // 12)
    return config(
        profile, norm, rate, seed,
        probes=PROBES, probe_every=every, evaluate_every=4 * every, checkpoint_every=2 * every, **changes,
    )  # fmt: skip


def _refresh(profile: str, found: Found) -> list[TrainConfig]:
    return [config(profile, norm, _rate(found, "bhyt"), SEEDS[0]) for norm in CONSTANTS.values()]


def _stability(profile: str, found: Found) -> list[TrainConfig]:
    short = PROFILES[profile].short
    constant = ScheduleConfig(kind="constant", steps=short, warmup=max(1, short // 10))
    return [
        config(
            profile, norm, rate, SEEDS[0],
            steps=short, schedule=constant, bad_steps=short, probes=("stream",), probe_every=max(1, short // 5),
        )
        for rate in STABILITY_RATES
        for norm in NORMS.values()
    ]  # fmt: skip


def _depth(profile: str, found: Found) -> list[TrainConfig]:
    size = PROFILES[profile]
    steps = 2 * size.short
    return [
        config(
            profile, NORMS[kind], _rate(found, kind), SEEDS[0],
            depth=int(factor * size.depth), steps=steps,
            probes=("stream", "jacobian", "skipping"), probe_every=max(1, steps // 4),
        )
        for factor in DEPTH_FACTORS
        for kind in MAIN
    ]  # fmt: skip


def _data(profile: str, found: Found) -> list[TrainConfig]:
    steps = PROFILES[profile].steps
    order = sorted(MAIN, key=("rmsnorm", "bhyt", *MAIN).index)  # the long ones last, the telling two of them first
    return [
        config(profile, NORMS[kind], _rate(found, kind), SEEDS[0], steps=budget)
        for budget in (max(1, steps // 4), 4 * steps)
        for kind in order
    ]


def _spike(profile: str, found: Found) -> list[TrainConfig]:
    steps = 2 * PROFILES[profile].short
    constant = ScheduleConfig(kind="constant", steps=steps, warmup=max(1, steps // 10))
    return [
        config(
            profile, NORMS[kind], 16 * _rate(found, kind), SEEDS[0],
            steps=steps, schedule=constant, bad_steps=steps, probes=("profile",), probe_every=max(1, steps // 40),
        )
        for kind in ("rmsnorm", "bhyt")
    ]  # fmt: skip


def _bounds(profile: str, found: Found) -> list[TrainConfig]:
    return [
        config(
            profile, norm_options(kind, lam_attention=lam, lam_feedforward=lam), _rate(found, "rmsnorm"), SEEDS[0],
            probes=("stream", "bounds", "saturation"), probe_every=max(1, PROFILES[profile].steps // 12),
        )
        for kind in ("bhyt", "bhyt*")
        for lam in (5.0, 10.0)
    ]  # fmt: skip


def _small(profile: str, found: Found) -> list[TrainConfig]:
    plain = norm_options("peri-ln")
    grid = [(NORMS[kind], rate) for kind in MAIN for rate in (1e-3, 2e-3, 4e-3, 8e-3)] + [(plain, 1e-3), (plain, 2e-3)]
    return [config(profile, norm, rate, TUNING_SEED, init_std=0.02) for norm, rate in grid]


def _gpt2_tuning(profile: str, found: Found) -> list[TrainConfig]:
    scores = scores_by_rate(found.stage("gpt2-tuning"))
    rates = wanted_rates(FIRST_RATES, scores, RATE_LIMITS)
    return [config(profile, NORMS["layernorm"], rate, TUNING_SEED, **GPT2) for rate in rates]


def _gpt2(profile: str, found: Found) -> list[TrainConfig]:
    scores = scores_by_rate(found.stage("gpt2-tuning"))
    if not scores:
        raise ResidlabError("no record of tuning GPT-2's architecture: run the stage gpt2-tuning first")
    return [_probed(profile, NORMS["layernorm"], best_rate(scores), seed, **GPT2) for seed in SEEDS]


STAGES = (
    Stage("tuning", "a learning rate for each norm", _tuning),
    Stage("main", "the comparison: norms at their own rate, three seeds, probed", _main),
    Stage("exact", "BHyT*, three seeds, to compare the approximation with", _exact),
    Stage("star", "BHyT* at a rate of its own, three seeds", _star),
    Stage("control", "RMSNorm with BHyT's first gain, three seeds: what the tanh itself does", _control),
    Stage("equal", "norms at RMSNorm's rate instead of their own, one seed", _equal),
    Stage("depth", "6 to 48 layers, one seed", _depth),
    Stage("norms", "the other norms, one seed", _norms),
    Stage("refresh", "BHyT with other constants, one seed", _refresh),
    Stage("stability", "how large a learning rate each norm survives, one seed", _stability),
    Stage("data", "less and more text, one seed", _data),
    Stage("spike", "what a rate that is too large does to the stream, one seed", _spike),
    Stage("bounds", "BHyT that bounds harder, one seed", _bounds),
    Stage("small", "initial weights of 0.02 at every width, one seed", _small),
    Stage("gpt2-tuning", "a learning rate for GPT-2's architecture", _gpt2_tuning),
    Stage("gpt2", "GPT-2's architecture at its own rate, three seeds, for chapter 17", _gpt2),
)
