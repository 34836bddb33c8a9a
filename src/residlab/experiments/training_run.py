"""One training run as an experiment: configuration in, record out; checkpoints and tokens in the cache."""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residlab.data import cache as storage
from residlab.data.locking import locked
from residlab.errors import ResidlabError
from residlab.experiments.departure import departure_probe
from residlab.experiments.probes import held_out, probes_named
from residlab.experiments.record import Record
from residlab.experiments.recorded import recipe
from residlab.models.files import load_weights
from residlab.models.generation import generate
from residlab.models.transformer import Transformer
from residlab.training.checkpoint import Checkpoint, latest_checkpoint, newest_checkpoint, newest_state
from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus
from residlab.training.tokenizers import tokenizer_for
from residlab.training.tokens import TokenizedCorpus, tokenized
from residlab.training.trainer import Probe, Trainer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CURVE_POINTS = 200
DIGITS = 6
"""Significant digits of what probes said, in a record."""


def run_hash(config: TrainConfig, *, cache: Path | None = None) -> str:
    """Return sixteen digits that name a run: its configuration *and the text* that ``config.corpus`` now stands for.

    Raises
    ------
    ResidlabError
        If there is no such corpus.
    """
    text = corpus(config.corpus, cache=cache).fingerprint
    return hashlib.sha256(f"{config.hash} {text}".encode()).hexdigest()[:16]


def run_folder(config: TrainConfig, *, cache: Path | None = None) -> Path:
    """Return the folder of a run's checkpoints and metrics."""
    return _named_folder(run_hash(config, cache=cache), cache)


def _named_folder(name: str, cache: Path | None) -> Path:
    return (storage.cache_dir() if cache is None else cache) / "runs" / name


def texts_of(config: TrainConfig, *, cache: Path | None = None) -> TokenizedCorpus:
    """Return the tokenized corpus of a run, from the cache where it has been made before."""
    text = corpus(config.corpus, cache=cache)
    return tokenized(text, tokenizer_for(config.tokenizer, text, cache=cache), cache=cache)


def trained(config: TrainConfig, *, cache: Path | None = None) -> Transformer:
    """Return the model of a finished run, in evaluation mode.

    Raises
    ------
    ResidlabError
        If the run's last checkpoint is not in this cache.
    """
    found = latest_checkpoint(run_folder(config, cache=cache), config.to_dict())
    if found is None or found.step < config.steps:
        raise ResidlabError(
            f"the run {run_hash(config, cache=cache)} has no finished checkpoint in this cache: train it here, "
            "or name the cache that has it; one that is recorded is trained again with --results naming another file"
        )
    model = Transformer(config.model)
    load_weights(model, found.model)
    return model.eval()


def is_finished(name: str, *, cache: Path | None = None) -> bool:
    """Return whether a run's last checkpoint is in this cache, by the sixteen digits that `run_hash` gives it.

    Only its state is read; whether weights are damaged is found when they are loaded.
    """
    state = newest_state(_named_folder(name, cache))
    return state is not None and state[0] >= state[1]["steps"]


def bits_in_cache(name: str, *, cache: Path | None = None) -> float | None:
    """Return the held-out loss, bits per byte, of the weights of a finished run in this cache.

    None if it diverged, or if nothing is written beside the weights.
    """
    file, state = _named_folder(name, cache) / "metrics.jsonl", newest_state(_named_folder(name, cache))
    if state is None or not file.exists():  # a checkpoint that was brought here alone
        return None
    lines = (json.loads(line) for line in reversed(file.read_text().splitlines()) if '"evaluation"' in line)
    found = (line for line in lines if "evaluation" in line and line["step"] == state[0])  # not one on the way
    last = next((line["evaluation"]["bits_per_byte"] for line in found), None)
    return None if last is None else _or_none(float(last))


def started(name: str, *, cache: Path | None = None) -> Checkpoint:
    """Return the last checkpoint of a finished run, by the sixteen digits that `run_hash` gives it.

    Raises
    ------
    ResidlabError
        If the run is not in this cache, or not finished.
    """
    root = storage.cache_dir() if cache is None else cache
    found = newest_checkpoint(root / "runs" / name)
    if found is not None and found.step >= found.config["steps"]:
        return found
    state = "is not in" if found is None else f"has come to step {found.step} of {found.config['steps']} in"
    otherwise = (
        "make it with residlab run and the experiment or file that it belongs to, with a new file for --results, since "
        "what is recorded is not run again"
    )
    raise ResidlabError(
        f"the run {name} {state} the cache {root}: name the cache that has it with --cache-dir, or make it: "
        f"{recipe(name) or otherwise}"
    )


def finished(name: str, *, cache: Path | None = None) -> tuple[TrainConfig, Transformer]:
    """Return the configuration and the model, in evaluation mode, of a finished run; errors as `started`."""
    found = started(name, cache=cache)
    config = TrainConfig.from_dict(found.config)
    model = Transformer(config.model)
    load_weights(model, found.model)
    return config, model.eval()


def sampled(config: TrainConfig, tokens: int, *, cache: Path | None = None) -> str:
    """Return a text that a finished run's model writes after the end of a document: temperature 0.8, seed 0."""
    tokenizer = texts_of(config, cache=cache).tokenizer
    most = min(tokens, config.model.context - 1)
    (ids,) = generate(trained(config, cache=cache), [[tokenizer.end]], most, temperature=0.8, seed=0)
    return tokenizer.decode(ids)


def train(
    experiment: str,
    config: TrainConfig,
    *,
    cache: Path | None = None,
    fabric: "Fabric | None" = None,
    probes: Mapping[str, Probe] | None = None,
) -> Record:
    """Train, or go on with training, and return the record.

    A run with ``config.start`` also looks, whenever its probes do, at how it departs from where it began
    (`residlab.experiments.departure`), under the name ``departure``.

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
        As `Trainer.run` and the corpus; if the run to start from is not in the cache, or its model is another.
    """
    tokens = texts_of(config, cache=cache)
    named = probes_named(
        (*config.probes, *config.probes_last), lambda: held_out(tokens.validation, config.model.context)
    )
    looks, initial = {**named, **(probes or {})}, None
    if config.start is not None:
        base = started(config.start, cache=cache)
        looks["departure"], initial = _departure(config, base, tokens, cache), base.model
    folder = run_folder(config, cache=cache)
    trainer = Trainer(config, folder, tokens, fabric=fabric, probes=looks, initial=initial)
    with contextlib.ExitStack() as hold:
        if trainer.fabric.is_global_zero:  # another process with this run waits, and then finds it finished
            folder.mkdir(parents=True, exist_ok=True)
            hold.enter_context(locked(folder / ".lock", f"training {folder.name}"))
        result = trainer.run()
    every = max(1, math.ceil(len(result.losses) / CURVE_POINTS))
    blocks = [result.losses[start : start + every] for start in range(0, len(result.losses), every)]
    finite = [[value for value in block if math.isfinite(value)] for block in blocks]
    return Record(
        experiment=experiment,
        hash=folder.name,
        config=config.to_dict(),
        seed=config.seed,
        metrics={
            "bits_per_byte": _or_none(result.evaluation.bits_per_byte),
            "nats_per_token": _or_none(result.evaluation.nats_per_token),
            "diverged": not math.isfinite(result.evaluation.nats_per_token),
            "evaluated_tokens": result.evaluation.tokens,
            "train_loss": [sum(block) / len(block) if block else None for block in finite],
            "train_loss_every": every,
            "skipped": result.skipped,
            **_seen(folder / "metrics.jsonl"),
            "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
            "tokens": config.steps * config.batch * config.model.context,
            "seconds": result.seconds,
        },
    )


def _departure(config: TrainConfig, base: Checkpoint, tokens: TokenizedCorpus, cache: Path | None) -> Probe:
    before = TrainConfig.from_dict(base.config)
    if before.model != config.model:
        raise ResidlabError(
            f"the run {config.start}, from which training was to start, has another model: "
            + "; ".join(_differences(before.model.to_dict(), config.model.to_dict()))
        )
    former = texts_of(before, cache=cache)
    if former.tokenizer.fingerprint != tokens.tokenizer.fingerprint:
        raise ResidlabError(
            f"the run {config.start} reads {former.tokenizer.name} learnt from {before.corpus}, this one "
            f"{tokens.tokenizer.name} learnt from {config.corpus}: their ids are not the same"
        )
    return departure_probe(
        base.model,
        {"own": tokens.validation, "former": former.validation},
        context=config.model.context,
        most=config.evaluation_tokens,
        batch=config.batch,
    )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [f"{name} {before[name]!r}, here {now[name]!r}" for name in before if before[name] != now[name]]


def _seen(metrics: Path) -> dict[str, Any]:
    """Return what a run wrote down on its way: evaluations, spikes, and its probes' looks, each leaf a list by step."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    looks = [line for line in lines if "probes" in line]
    found: dict[str, Any] = {
        "evaluations": [[line["step"], line["evaluation"]["bits_per_byte"]] for line in lines if "evaluation" in line],
        "spikes": [line["step"] for line in lines if line.get("spike")],
    }
    if looks:
        names = dict.fromkeys(name for look in looks for name in look["probes"])  # some look only at the end
        seen = {name: [look["probes"][name] for look in looks if name in look["probes"]] for name in names}
        found["looks"] = {
            "step": [look["step"] for look in looks],
            **{name: _stacked(values) for name, values in seen.items()},
        }
    return found


def _stacked(looks: list[Any]) -> Any:
    """Return looks of one shape as one, with a list in the place of each number, rounded to `DIGITS` digits."""
    if isinstance(looks[0], dict):
        return {name: _stacked([look[name] for look in looks]) for name in looks[0]}
    return [float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for value in looks]


def _or_none(value: float) -> float | None:
    """Return what JSON can hold: a loss that is not finite is none."""
    return value if math.isfinite(value) else None
