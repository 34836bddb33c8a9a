"""What does each precision of an inference cost, and how does the error grow with depth? (Chapters 12 and 17.)

Everything is compared with float64 on the same weights and tokens (`residlab.experiments.rounded_inference`). The plan,
with SmolLM2 reading 256 tokens: 7 to 195 s of one busy core each, as the metric ``seconds`` says; sums in 16 bits or
fewer of fp32 factors take longest:

    roles        SmolLM2: one role at a time in each format, the others fp32; all equal; the three of practice   29 runs
    orders       SmolLM2: all bf16 and sums in bf16 alone, in blocks of 32, pairwise and in blocks of 8          6 runs
    texts        SmolLM2: all bf16, bf16 products, and the stream in bf16 alone, on two more texts               6 runs
    scaling      SmolLM2: W_O and W_down times 0.1 to 20, all bf16 and bf16 products                            16 runs
    random       random models of 12 to 48 layers: RMSNorm and SwiGLU, LayerNorm and GELU, with and without
                 GPT-2's scaling by 1/sqrt(2 depth); seeds 0, 1, 2; all bf16                                    36 runs
    random-scaling   the deepest of them, W_O and W_down times 0.1 to 20, seed 0                                16 runs
    random-formats   the deepest of them, scaled, all in a format other than bf16, seed 0                       10 runs
    artefacts    what the book trained, all bf16 and bf16 products, on 128 bytes of held-out text: every model of
                 bhyt-depth/main, bhyt-depth/gpt2 and residual-free/main that is recorded beside this experiment;
                 their weights must be in the cache                                                   30 runs and more
    passing      these models and the deepest random ones, scaled: what they make of an error that they are given behind
                 block 1, in float64                                                                  21 runs and more

A stage that varies one thing decides nothing by itself; verdict rules are in results/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from residlab.errors import ResidlabError
from residlab.experiments.bhyt_depth import GPT2
from residlab.experiments.passed_error import PassedError
from residlab.experiments.plans import Found, Stage
from residlab.experiments.record import Record
from residlab.experiments.rounded_inference import RoundedInference
from residlab.precision.roles import PRACTICE

FORMATS = ("e5m2", "e4m3fn", "bf16", "fp16", "tf32")
"""What a role is set to, the others being `FINE`."""
FINE = "fp32"
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
PRACTICAL = "bf16 products"
ARTEFACTS = (("bhyt-depth", "main"), ("bhyt-depth", "gpt2"), ("residual-free", "main"))
"""Experiment and stage of the models that the book trained."""
ARTEFACT_TOKENS = 128


@dataclass(frozen=True)
class Size:
    """A profile: the trained model or a random one in its place, how many tokens, and how deep random models are."""

    source: str
    model: dict[str, Any] | None
    tokens: int
    width: int
    depths: tuple[int, ...]
    random_tokens: int
    seeds: tuple[int, ...] = (0, 1, 2)


_TOY = {"depth": 2, "width": 16, "heads": 2, "vocabulary": 32, "context": 16}
PROFILES: dict[str, Size] = {
    "smoke": Size("random", _TOY, 8, 16, (2, 4), 8, (0,)),
    "cpu": Size("smollm2", None, 256, 128, (12, 24, 48), 64),
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "rmsnorm, swiglu": {"norm": "rmsnorm", "feedforward": "swiglu", "position": "rope"},
    "layernorm, gelu": {"norm": "layernorm", **GPT2},
}
"""Of random models: like Llama's and like GPT-2's."""
STARTS = {"scaled": "gpt2-scaled", "plain": "gpt2"}
"""Initializations with and without the scaling of what writes to the stream by 1/sqrt(2 depth)."""


def _size(profile: str) -> Size:
    if profile not in PROFILES:
        raise ResidlabError(f"rounding has the profiles {', '.join(PROFILES)}; got {profile!r}")
    return PROFILES[profile]


def inference(profile: str, roles: str, **changes: Any) -> RoundedInference:
    """Return the inference of a profile's trained model with these roles; ``changes`` of its other settings."""
    size = _size(profile)
    values = {"source": size.source, "model": size.model, "tokens": size.tokens, **changes}
    return RoundedInference(roles, **values)


def alone(role: str, name: str) -> str:
    """Return the roles in which one, of q, a, w and r, has a format and the others `FINE`."""
    return " ".join(f"{letter}={name if letter == role else FINE}" for letter in "qawr")


def random_inference(
    profile: str, architecture: str, start: str, depth: int, seed: int, **changes: Any
) -> RoundedInference:
    """Return the inference of a random model, all bf16; ``changes`` of its settings."""
    size = _size(profile)
    model = {
        "depth": depth,
        "width": size.width,
        "heads": max(1, size.width // 32),
        "vocabulary": 256,
        "context": size.random_tokens,
        "init_std": 0.02 * (1024 / size.width) ** 0.5,
        "initialization": STARTS[start],
        **ARCHITECTURES[architecture],
    }
    values = {"roles": "bf16", "source": "random", "model": model, "tokens": size.random_tokens, "seed": seed}
    return RoundedInference(**{**values, **changes})


def _roles(profile: str, found: Found) -> list[RoundedInference]:
    names = [alone(role, name) for role in "qawr" for name in FORMATS]
    return [inference(profile, name) for name in (*names, *FORMATS, FINE, *PRACTICE)]


def _orders(profile: str, found: Found) -> list[RoundedInference]:
    orders: tuple[dict[str, Any], ...] = (
        {"order": "blocked", "block": 32},
        {"order": "pairwise"},
        {"order": "blocked", "block": 8},
    )
    return [inference(profile, name, **order) for name in ("bf16", alone("a", "bf16")) for order in orders]


def _texts(profile: str, found: Found) -> list[RoundedInference]:
    return [inference(profile, name, text=text) for name in ("bf16", PRACTICAL, alone("r", "bf16")) for text in (1, 2)]


def _scaling(profile: str, found: Found) -> list[RoundedInference]:
    return [inference(profile, name, factor=factor) for name in ("bf16", PRACTICAL) for factor in FACTORS]


def _random(profile: str, found: Found) -> list[RoundedInference]:
    size = _size(profile)
    return [
        random_inference(profile, architecture, start, depth, seed)
        for architecture in ARCHITECTURES
        for start in STARTS
        for depth in size.depths
        for seed in size.seeds
    ]


def _random_scaling(profile: str, found: Found) -> list[RoundedInference]:
    deepest = _size(profile).depths[-1]
    return [
        random_inference(profile, architecture, "scaled", deepest, 0, factor=factor)
        for architecture in ARCHITECTURES
        for factor in FACTORS
    ]


def _random_formats(profile: str, found: Found) -> list[RoundedInference]:
    deepest = _size(profile).depths[-1]
    return [
        random_inference(profile, architecture, "scaled", deepest, 0, roles=name)
        for architecture in ARCHITECTURES
        for name in (*FORMATS, FINE)
        if name != "bf16"  # that is a run of ``random``
    ]


def trained_runs(found: Found, profile: str) -> list[Record]:
    """Return the recorded training runs of `ARTEFACTS` that lie beside these records, those that diverged left out."""
    runs = [run for experiment, stage in ARTEFACTS for run in found.beside(experiment, profile).stage(stage)]
    return [run for run in runs if not run.metrics["diverged"]]


def _artefacts(profile: str, found: Found) -> list[RoundedInference]:
    trained = trained_runs(found, profile)
    if not trained:
        first, stage = ARTEFACTS[0]
        file = found.beside(first, profile).records.file
        raise ResidlabError(
            f"{file} has no record of {first}/{stage}, whose models are rounded: "
            f"first residlab run {first} --profile {profile} --stage tuning --stage {stage} --results {file}"
        )
    return [
        RoundedInference(roles, source=run.hash, tokens=min(ARTEFACT_TOKENS, int(run.config["model"]["context"])))
        for run in trained
        for roles in ("bf16", PRACTICAL)
    ]


def _passing(profile: str, found: Found) -> list[PassedError]:
    size = _size(profile)
    random = [
        random_inference(profile, architecture, "scaled", size.depths[-1], seed)
        for architecture in ARCHITECTURES
        for seed in size.seeds
    ]
    read = {run.source: run for run in _artefacts(profile, found)}.values()
    return [PassedError(run.source, run.model, run.tokens, seed=run.seed) for run in (*random, *read)]


STAGES = (
    Stage("roles", "SmolLM2: one role at a time in each format, all equal, and what hardware does", _roles),
    Stage("orders", "SmolLM2: other orders of sums in bf16", _orders),
    Stage("texts", "SmolLM2: two more texts", _texts),
    Stage("scaling", "SmolLM2: what writes to the stream, times 0.1 to 20", _scaling),
    Stage("random", "random models of several depths, three seeds, all bf16", _random),
    Stage("random-scaling", "random models: what writes to the stream, times 0.1 to 20", _random_scaling),
    Stage("random-formats", "random models: all in a format other than bf16", _random_formats),
    Stage("artefacts", "models that the book trained, all bf16 and bf16 products", _artefacts),
    Stage("passing", "what these and random models make of an error behind their first block", _passing),
)
