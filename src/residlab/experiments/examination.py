"""One trained model of the book looked at from three sides: its stream, what quantization does to it, how errors grow.

A record of an `Examination` has

================ ======================================================================================================
metric           meaning
================ ======================================================================================================
``quantization`` as the probe of that name: loss, schemes, noise by input of linear layers; without the weights' noise
``stream``       as the probe of that name, in front of each normalization
``tanh``         each site with a tanh: crest factor of the argument and of the tanh, largest argument
``growth``       in front of each normalization: by how much a small relative error of the embedding has grown
                 (`residlab.probes.sensitivity`), float64
================ ======================================================================================================

All read the beginning of the text that the model's run held out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from residlab.checks import check_counts
from residlab.errors import ResidlabError
from residlab.experiments.measurement import Measurement
from residlab.experiments.probes import HELD_OUT_TOKENS, SEQUENCES, SITES, held_out, observe_tanh
from residlab.experiments.probes import quantization as look_at_quantization
from residlab.experiments.probes import stream as look_at_stream
from residlab.experiments.record import Record
from residlab.experiments.training_run import DIGITS, finished, texts_of
from residlab.models.transformer import Transformer
from residlab.probes.activations import modules_matching
from residlab.probes.kurtosis import crest_factor
from residlab.probes.sensitivity import relative_growth


@dataclass(frozen=True)
class Examination(Measurement):
    """Of a finished run.

    Attributes
    ----------
    source
        The sixteen digits of the run.
    tokens
        How many of held-out text are read without rounding.

    Raises
    ------
    ResidlabError
        If a value is not allowed.
    """

    source: str
    tokens: int = HELD_OUT_TOKENS

    def __post_init__(self) -> None:
        check_counts(self, "tokens")
        if len(self.source) != 16 or not set(self.source) <= set("0123456789abcdef"):
            raise ResidlabError(f"source must be the sixteen digits of a finished run; got {self.source!r}")

    def about(self) -> str:
        """Return the run."""
        return f"examination of {self.source}"

    def sources(self) -> tuple[str, ...]:
        """Return the run's name."""
        return (self.source,)

    def score(self, metrics: Mapping[str, Any]) -> str:
        """Return loss and the last site's growth."""
        loss, grown = metrics["quantization"]["loss"], list(metrics["growth"].values())[-1]
        if loss is None or grown is None:
            return "diverged"
        return f"{loss / math.log(2):.4f} bits per token, errors grow {grown:.3g} times"

    def perform(self, experiment: str, *, cache: Path | None = None) -> Record:
        """Look, and return the record.

        Raises
        ------
        ResidlabError
            If the run is not in the cache, or not finished.
        """
        training, model = finished(self.source, cache=cache)
        context = training.model.context
        ids = held_out(texts_of(training, cache=cache).validation, context)[: max(1, self.tokens // context)]
        seen = look_at_quantization(model, ids)
        del seen["weights"]
        with torch.no_grad():
            stream = look_at_stream(model, ids)
        metrics = {
            "quantization": seen,
            "stream": stream,
            "tanh": bounded_sites(model.double(), ids[:SEQUENCES]),
            "growth": growth(model, ids[:SEQUENCES]),
        }
        return Record(
            experiment=experiment,
            hash=self.hash,
            config=self.to_dict(),
            seed=training.seed,
            metrics=_shortened(metrics),
        )


@torch.no_grad()
def bounded_sites(model: Transformer, ids: Tensor) -> dict[str, dict[str, float]]:
    """Return, for each tanh, the crest factor of its argument and of its value, pooled, and the largest argument.

    The model is in float64, where a tanh of an argument up to 15 can be undone.
    """
    found: dict[str, dict[str, float]] = {}

    def see(site: str, value: Tensor) -> None:
        argument = value.clamp(-1 + 1e-15, 1 - 1e-15).atanh()
        found[site] = {
            "argument": float(crest_factor(argument, "pooled")),
            "value": float(crest_factor(value, "pooled")),
            "largest": float(argument.abs().max()),
        }

    with observe_tanh(model, see):
        model(ids)
    return found


def growth(model: Transformer, ids: Tensor) -> dict[str, float]:
    """Return by how much a small relative error of the embedding has grown in front of each normalization."""
    return relative_growth(model, ids, modules_matching(model, SITES), source=model.embedding)


def _shortened(values: Any) -> Any:
    """Return values with `DIGITS` digits; what is no number, as one token's kurtosis by channel, is null."""
    if isinstance(values, dict):
        return {name: _shortened(value) for name, value in values.items()}
    if not isinstance(values, float):
        return values
    return float(f"{values:.{DIGITS}g}") if math.isfinite(values) else None
