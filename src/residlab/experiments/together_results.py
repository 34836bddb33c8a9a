"""What the records of ``together`` say: one line for each kind of model, and the numbers of chapter 18's questions.

A *kind* is an optimizer, a norm, with or without residual connections, with or without a gate; its models differ in
their seed. Rules and predictions stand in `results/README.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.experiments import together
from residlab.experiments.bhyt_depth import CONTROL
from residlab.experiments.growth_results import numbers, predicted
from residlab.experiments.intervals import paired_differences
from residlab.experiments.results import UNKNOWN, Difference
from residlab.models.config import ModelConfig
from residlab.theory.quantization import bounding_bits

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

FloatArray = NDArray[np.float64]
BIT = 20 * math.log10(2)
"""Decibels of one bit."""
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon", "soap": "SOAP", "kl-shampoo": "KL-Shampoo"}
NORMS = {
    "rmsnorm": "RMSNorm",
    "gain": "RMSNorm with gains λ/κ",
    "lns": "LNS",
    "peri-ln": "Peri-LN",
    "bhyt": "BHyT",
    "bhyt*": "BHyT*",
}
SETTINGS = (("adamw", True, "swiglu"), ("muon", True, "gelu"), ("muon", False, "gelu"))
"""Optimizer, residual connections and feedforward of the settings in which a tanh is compared with its gains alone."""
Setting = tuple[str, bool, str]
Measure = Callable[["Model"], float]


@dataclass(frozen=True)
class Kind:
    """What models of one kind share.

    Attributes
    ----------
    optimizer, norm, feedforward
        As configurations name them; the norm ``gain`` is RMSNorm with BHyT's first gains.
    residual
        Whether there are residual connections.
    start
        The initialization.
    decay
        Weight decay.
    """

    optimizer: str
    norm: str
    residual: bool
    feedforward: str
    start: str
    decay: float

    @property
    def _without_decay(self) -> bool:
        return self.optimizer == "adamw" and not self.decay  # others never have it

    @property
    def slug(self) -> str:
        """For an address: lower-case words with hyphens."""
        words = ["stream" if self.residual else "free", self.norm.replace("*", "-star"), self.feedforward]
        return "-".join([*words, self.optimizer, *(["no-decay"] if self._without_decay else [])])

    @property
    def label(self) -> str:
        """For an axis: short; ∅ is no residual connections, × a gate."""
        norm = {"rmsnorm": "RMSNorm", "gain": "gains λ/κ"}.get(self.norm, NORMS[self.norm])
        gate = " ×" if self.feedforward == "swiglu" else ""
        decay = ", no decay" if self._without_decay else ""
        return f"{'' if self.residual else '∅ '}{norm}{gate} · {OPTIMIZERS.get(self.optimizer, self.optimizer)}{decay}"

    @property
    def title(self) -> str:
        """For people."""
        norm, gate = NORMS[self.norm], "" if self.feedforward == "swiglu" else ", GELU"
        stream = "" if self.residual else "no residual, "
        decay = " without decay" if self._without_decay else ""
        return f"{stream}{norm}{gate}, {OPTIMIZERS.get(self.optimizer, self.optimizer)}{decay}"


@dataclass(frozen=True)
class Model:
    """One trained model: its run, its examination, and its rounded inferences by roles."""

    kind: Kind
    run: Record
    exam: Record
    rounded: Mapping[str, Record]

    @property
    def seed(self) -> int:
        """Of its run."""
        return self.run.seed


def kind_of(run: Record) -> Kind:
    """Return the kind of a training run."""
    config = run.config
    model = ModelConfig.from_dict(config["model"])
    norm = "gain" if model.norm == CONTROL else model.norm.kind
    optimizer, decay = config["optimizer"]["kind"], float(config["optimizer"]["weight_decay"])
    return Kind(optimizer, norm, model.residual, model.feedforward, model.initialization, decay)


def models(found: Found, runs: Iterable[Record]) -> dict[Kind, list[Model]]:
    """Return the measured models of each kind, in the order of their seeds; runs without a record are left out.

    Parameters
    ----------
    found
        The records of ``together``.
    runs
        The training runs, as `residlab.experiments.together.models` returns them.
    """
    exams = {record.config["source"]: record for record in found.stage("examine")}
    rounded: dict[str, dict[str, Record]] = {}
    for record in found.stage("rounding"):
        rounded.setdefault(record.config["source"], {})[record.config["roles"]] = record
    kinds: dict[Kind, list[Model]] = {}
    for run in runs:
        if run.hash in exams and run.hash in rounded:
            model = Model(kind_of(run), run, exams[run.hash], rounded[run.hash])
            kinds.setdefault(model.kind, []).append(model)
    return {kind: sorted(each, key=lambda model: model.seed) for kind, each in kinds.items()}


def all_models(found: Found, profile: str) -> dict[Kind, list[Model]]:
    """Return the models of each kind when all of them are examined and rounded in every way, else none.

    What is asked of them is asked of all: an answer from those that happen to be recorded first would be another
    question's.

    Parameters
    ----------
    found
        The records of ``together``; those of the other experiments are in files beside them.
    profile
        The size, as `residlab.experiments.together.models` takes it.
    """
    if not found.stage("examine") or not found.stage("main"):
        return {}
    runs = together.models(profile, found)
    kinds = models(found, runs)
    measured = [model for each in kinds.values() for model in each]
    whole = len(measured) == len(runs) and all(set(together.ROLES) <= set(model.rounded) for model in measured)
    return kinds if whole else {}


# --- Measures of one model


def bits(model: Model) -> float:
    """Return the loss on held-out text, bits per byte, of the weights that were measured."""
    measured = model.exam.metrics.get("source_bits", {}).get(model.run.hash)
    return float(model.run.metrics["bits_per_byte"] if measured is None else measured)


def stream_growth(model: Model) -> float:
    """Return the root mean square of the stream at the final norm over that of the embedding, without token 0."""
    sites = list(model.exam.metrics["stream"].values())
    return float(sites[-1]["rest"]["rms"] / sites[0]["rest"]["rms"])


def kurtosis(tokens: str = "all") -> Measure:
    """Return a measure: the largest pooled excess kurtosis of the stream in front of any norm but the first."""
    return lambda model: max(
        float(site[tokens]["kurtosis_pooled"]) for site in list(model.exam.metrics["stream"].values())[1:]
    )


def crest(tokens: str = "all") -> Measure:
    """Return a measure: crest factor of what linear layers read, the geometric mean over inputs."""
    return lambda model: float(np.exp(np.mean([math.log(each["crest_factor"]) for each in _inputs(model, tokens)])))


def sqnr(width: str, tokens: str = "all", *, behind_norm: bool | None = None) -> Measure:
    """Return a measure: SQNR in dB, mean over the inputs of linear layers.

    Parameters
    ----------
    width
        Bits, or FP8.
    tokens
        ``all`` or ``rest``.
    behind_norm
        Only those that a norm writes (True) or only the others (False).
    """
    return lambda model: float(np.mean([each["sqnr"][width] for each in _inputs(model, tokens, behind_norm)]))


def added(scheme: str) -> Measure:
    """Return a measure: what a scheme adds to the loss, bits per byte, on the same bytes."""

    def measure(model: Model) -> float:
        schemes = model.exam.metrics["quantization"]["schemes"]
        return float((schemes[scheme]["loss"] - schemes["full"]["loss"]) / math.log(2))

    return measure


def relative_error(roles: str, tokens: str = "rest") -> Measure:
    """Return a measure: mean relative error behind the last block."""
    return lambda model: float(numbers(model.rounded[roles], tokens)[-1])


def rounding_adds(roles: str) -> Measure:
    """Return a measure: what the arithmetic adds to the loss, bits per byte."""
    return lambda model: float(model.rounded[roles].metrics["added"] or math.nan) / math.log(2)


def amplification(model: Model) -> float:
    """Return by how much a small relative error of the embedding has grown at the final norm."""
    return float(list(model.exam.metrics["growth"].values())[-1])


def growth_by_block(model: Model) -> FloatArray:
    """Return that growth in front of each block and of the final norm, (depth + 1,)."""
    values = list(model.exam.metrics["growth"].values())
    return np.array([*values[0:-1:2], values[-1]], np.float64)


def growth_per_block(model: Model) -> float:
    """Return the slope of the logarithm of `growth_by_block`, least squares, nats per block."""
    values = np.log(growth_by_block(model))
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def error_per_block(model: Model, roles: str = "fp32") -> float:
    """Return the slope of the logarithm of the relative error from block 1 on, without token 0, nats per block."""
    values = np.log(numbers(model.rounded[roles], "rest")[1:])
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def bought(model: Model) -> FloatArray:
    """Return (sites, 2): by how many bits each tanh lowers the crest factor, and the most that its argument allows."""
    sites = model.exam.metrics["tanh"].values()
    return np.array(
        [[math.log2(each["argument"] / each["value"]), bounding_bits(each["largest"])] for each in sites], np.float64
    ).reshape(-1, 2)


def _inputs(model: Model, tokens: str, behind_norm: bool | None = None) -> list[Any]:
    named = model.exam.metrics["quantization"]["inputs"]
    return [
        classes[tokens]
        for site, classes in named.items()
        if behind_norm is None or behind_norm is not site.endswith(("W_O", "W_down"))
    ]


# --- For the explorable

ARITHMETICS: Mapping[str, tuple[str, str]] = {
    "w4a4": ("W4A4", "W4A4, one scale a tensor"),
    "w4a4-hadamard": ("W4A4 hadamard", "W4A4, rotated"),
    "w8a4": ("W8A4", "W8A4, one scale a tensor"),
    "w8a4-row": ("W8A4 row", "W8A4, one scale a token"),
    "w8a4-hadamard": ("W8A4 hadamard", "W8A4, rotated"),
    "w8a8": ("W8A8", "W8A8, one scale a tensor"),
    "fp8": ("FP8", "FP8"),
    "bf16": ("bf16", "all bf16, sums too"),
    "e4m3": ("q=e4m3fn a=fp32 w=fp32 r=fp32", "products of e4m3fn, the rest fp32"),
}
"""Name in an address -> a scheme of the examination or the roles of a rounded inference, and its title."""


def measured_networks(kinds: Mapping[Kind, list[Model]]) -> dict[str, Any]:
    """Return what chapter 18's table says of each kind, best first, as `MeasuredNetworks` of its explorable takes it.

    The loss in an arithmetic is that of the whole held-out text plus what the arithmetic adds on the bytes on which it
    was measured.

    Parameters
    ----------
    kinds
        As `models` returns them, two at least.
    """
    order = sorted(kinds, key=lambda kind: mean(kinds[kind], bits))
    seeds = max(len(each) for each in kinds.values())
    adds = [rounding_adds(key) if key in together.ROLES else added(key) for key, _ in ARITHMETICS.values()]
    losses = np.full((len(order), seeds, 1 + len(adds)), np.nan)
    for row, kind in enumerate(order):
        for column, model in enumerate(kinds[kind]):
            losses[row, column] = bits(model) + np.array([0.0, *(add(model) for add in adds)])
    measures = [
        [
            mean(each, sqnr("8")) / BIT,
            math.log2(geometric_mean(each, crest())),
            *(math.log2(mean(each, kurtosis(tokens)) / 3 + 1) for tokens in ("all", "rest")),
            math.log2(geometric_mean(each, stream_growth)),
            math.log2(geometric_mean(each, amplification)),
            mean(each, bits),
        ]
        for each in map(kinds.__getitem__, order)
    ]
    return {
        "titles": {kind.slug: kind.title for kind in order},
        "labels": [kind.label for kind in order],
        "arithmetics": {name: title for name, (_, title) in ARITHMETICS.items()},
        "residual": np.array([kind.residual for kind in order], np.float32),
        "losses": losses.astype(np.float32),
        "measures": np.array(measures, np.float32),
    }


# --- Differences


def mean(models: Iterable[Model], measure: Measure) -> float:
    """Return a measure's mean over models."""
    return float(np.mean([measure(model) for model in models]))


def geometric_mean(models: Iterable[Model], measure: Measure) -> float:
    """Return a measure's geometric mean over models."""
    return float(np.exp(np.mean([math.log(measure(model)) for model in models])))


def difference(first: list[Model], second: list[Model], measure: Measure) -> Difference:
    """Return first less second, paired by seed, with the 95 % interval of the paired t test; unknown without pairs."""
    one, two = ({model.seed: measure(model) for model in models} for models in (first, second))
    seeds = sorted(one.keys() & two.keys())
    table = np.array([[values[seed] for seed in seeds] for values in (one, two)])
    if len(seeds) < 2 or not np.isfinite(table).all():
        return UNKNOWN
    paired = paired_differences(table)
    return Difference(float(paired.differences[0, 1]), *paired.interval(0, 1))


def ratios(first: list[Model], second: list[Model], measure: Measure) -> FloatArray:
    """Return first over second for each seed that both have."""
    one, two = ({model.seed: measure(model) for model in models} for models in (first, second))
    return np.array([one[seed] / two[seed] for seed in sorted(one.keys() & two.keys())], np.float64)


def select(kinds: Mapping[Kind, list[Model]], **wanted: Any) -> list[Model]:
    """Return the models of the one kind that has these attributes; none if there is no such kind.

    Raises
    ------
    ResidlabError
        If several kinds have them.
    """
    chosen = [kind for kind in kinds if all(getattr(kind, name) == value for name, value in wanted.items())]
    if len(chosen) > 1:
        raise ResidlabError(f"{wanted} is not one kind of model: {'; '.join(kind.title for kind in chosen)}")
    return kinds[chosen[0]] if chosen else []


# --- The three questions


def bits_bought(kinds: Mapping[Kind, list[Model]]) -> dict[Setting, Difference]:
    """Return setting -> SQNR at 8 bits of the tanh less that of its gains alone, in bits."""
    found = {}
    for optimizer, residual, feedforward in SETTINGS:
        bounded, gains = (
            select(kinds, optimizer=optimizer, residual=residual, norm=norm, feedforward=feedforward)
            for norm in ("bhyt*", "gain")
        )
        found[optimizer, residual, feedforward] = difference(bounded, gains, lambda model: sqnr("8")(model) / BIT)
    return found


def buys_bits(differences: Mapping[Setting, Difference]) -> str:
    """Return the answer to the first question: yes, no, undecided."""
    if all(each.low > 0.5 for each in differences.values()):
        return "yes"
    return "no" if all(each.high < 0.5 for each in differences.values()) else "undecided"


def damping(kinds: Mapping[Kind, list[Model]]) -> FloatArray:
    """Return the ratios of the second question: three with AdamW, three with Muon."""
    found = []
    for optimizer, norm, feedforward, decay in (("adamw", "bhyt", "swiglu", 0.1), ("muon", "bhyt*", "gelu", 0.0)):
        bounded, plain = (
            select(kinds, optimizer=optimizer, norm=each, residual=True, feedforward=feedforward, decay=decay)
            for each in (norm, "rmsnorm")
        )
        found.append(ratios(bounded, plain, relative_error("bf16")))
    return np.concatenate(found)


def damps(found: FloatArray) -> str:
    """Return the answer to the second question: damps, cancels, neither; undecided without six ratios."""
    if len(found) < 6:
        return "undecided"
    if (found < 0.5).all():
        return "damps"
    return "cancels" if ((found >= 0.5) & (found <= 2)).all() else "neither"


def fragility(kinds: Mapping[Kind, list[Model]], feedforward: str, roles: str = "fp32") -> FloatArray:
    """Return the ratios of the third question: relative errors, without residual connections over with them."""
    with_, without = (
        select(kinds, optimizer="muon", norm="rmsnorm", residual=residual, feedforward=feedforward)
        for residual in (True, False)
    )
    return ratios(without, with_, relative_error(roles))


def is_fragile(gated: FloatArray, ungated: FloatArray) -> str:
    """Return the answer to the third question."""
    if len(gated) < 3 or len(ungated) < 3:
        return "undecided"
    if (gated >= 2).all():
        if (ungated >= 2).all():
            return "more fragile"
        if (ungated < 2).all():
            return "because of the gate"
    return "not" if (np.concatenate([gated, ungated]) < 2).all() else "undecided"


def foreseen(model: Model, roles: str = "bf16") -> float:
    """Return the predicted relative error behind the last block over the measured one (chapter 17's recursion)."""
    record = model.rounded[roles]
    return float(predicted(record)[-1] / numbers(record, "relative")[-1])
