"""One training run as an experiment: configuration in, record out; checkpoints and tokens in the cache."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from residlab.data import cache as storage
from residlab.experiments.record import Record
from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus
from residlab.training.tokenizers import tokenizer_for
from residlab.training.tokens import tokenized
from residlab.training.trainer import Probe, Trainer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CURVE_POINTS = 200


def run_folder(config: TrainConfig, *, cache: Path | None = None) -> Path:
    """Return the folder of a configuration's checkpoints and metrics."""
    return (storage.cache_dir() if cache is None else cache) / "runs" / config.hash


def train(
    experiment: str,
    config: TrainConfig,
    *,
    cache: Path | None = None,
    fabric: "Fabric | None" = None,
    probes: Mapping[str, Probe] | None = None,
) -> Record:
    """Train, or go on with training, and return the record.

    Parameters
    ----------
    experiment
        The name that the record gets.
    config
        The run.
    cache
        The cache folder; by default `residlab.data.cache.cache_dir`.
    fabric, probes
        As for `Trainer`.

    Raises
    ------
    ResidlabError
        As `Trainer.run` and the corpus.
    """
    text = corpus(config.corpus, cache=cache)
    tokens = tokenized(text, tokenizer_for(config.tokenizer, text, cache=cache), cache=cache)
    trainer = Trainer(config, run_folder(config, cache=cache), tokens, fabric=fabric, probes=probes)
    result = trainer.run()
    every = max(1, math.ceil(len(result.losses) / CURVE_POINTS))
    blocks = [result.losses[start : start + every] for start in range(0, len(result.losses), every)]
    finite = [[value for value in block if math.isfinite(value)] for block in blocks]
    return Record(
        experiment=experiment,
        hash=config.hash,
        config=config.to_dict(),
        seed=config.seed,
        metrics={
            "bits_per_byte": result.evaluation.bits_per_byte,
            "nats_per_token": result.evaluation.nats_per_token,
            "evaluated_tokens": result.evaluation.tokens,
            "train_loss": [sum(block) / len(block) if block else None for block in finite],
            "train_loss_every": every,
            "skipped": result.skipped,
            "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
            "tokens": config.steps * config.batch * config.model.context,
            "seconds": result.seconds,
        },
    )
