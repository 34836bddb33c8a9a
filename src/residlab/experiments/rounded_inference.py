"""What rounding does to an inference: a model in an arithmetic of four roles beside the same model in float64.

A `RoundedInference` names a model, a text, the roles, and a factor for the matrices that write to the stream. Its
record has the error of the stream after each block and what is left of the predictions:

================== =================================================================================================
metric             meaning
================== =================================================================================================
``error``          by block, from the embedding on (depth + 1 numbers): mean over tokens of the 2-norm of the
                   difference to float64
``size``           mean 2-norm of the token in float64
``relative``       mean over tokens of one divided by the other; ``first`` of token 0 alone, ``rest`` without it
``nats``           loss in float64, nats per token, on the same text; ``added`` is what rounding adds to it
``divergence``     mean Kullback-Leibler divergence of the rounded predictions from those of float64, nats
``agreement``      share of positions at which both predict the same token
``finite``         whether all logits were finite; if not, what is not a number is null
================== =================================================================================================
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from residlab.checks import check_counts, check_non_negative, check_one_of, check_positive
from residlab.errors import ResidlabError
from residlab.experiments.measurement import Measurement
from residlab.experiments.record import Record
from residlab.models.config import ModelConfig
from residlab.models.rounded import Rounded
from residlab.models.transformer import Transformer, next_token_loss
from residlab.precision.accumulation import Order, OrderName
from residlab.precision.formats import Mode
from residlab.precision.roles import Roles

REFERENCE = "fp64"
DIGITS = 8


@dataclass(frozen=True)
class RoundedInference(Measurement):
    """One inference in rounded arithmetic.

    Attributes
    ----------
    roles
        As `Roles.named` reads them.
    source
        The model: ``"smollm2"``, the sixteen digits of a finished run in the cache, or ``"random"``.
    model
        Options of the `ModelConfig` of a random one, whose weights come from ``seed``; else None.
    tokens, text
        Length of the sequence, and which one of those that are long enough, from 0. SmolLM2 reads Wikipedia summaries,
        a run the text that it held out, a random model random tokens.
    factor
        Multiplies W_O and W_down of every block.
    order, block
        Of sums, as `residlab.precision.accumulation.Order`.
    mode, seed
        How operations are rounded, and the seed of that and of random weights and tokens.

    Raises
    ------
    ResidlabError
        If a value is not allowed.
    """

    roles: str
    source: str = "smollm2"
    model: dict[str, Any] | None = None
    tokens: int = 256
    text: int = 0
    factor: float = 1.0
    order: OrderName = "recursive"
    block: int | None = None
    mode: Mode = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "tokens")
        check_positive(self, "factor")
        check_one_of(self, "order", get_args(OrderName))
        if self.tokens < 2:
            raise ResidlabError(f"tokens must be >= 2, so that one is predicted; got {self.tokens}")
        check_non_negative(self, "text")
        if (self.source == "random") != (self.model is not None):
            raise ResidlabError("a random model needs the options of its configuration, and only that takes them")
        if self.model is not None:
            config = ModelConfig.from_dict(self.model)
            if config.context < self.tokens:
                raise ResidlabError(f"tokens must be at most the model's context, {config.context}; got {self.tokens}")
        self.arithmetic()

    def arithmetic(self) -> Rounded:
        """Return the arithmetic that it computes in."""
        roles = Roles.named(self.roles, Order(self.order, self.block))
        return Rounded(roles, mode=self.mode, seed=self.seed if self.mode == "stochastic" else None)

    def about(self) -> str:
        """Return model, factor and roles."""
        factor = "" if self.factor == 1 else f" x{self.factor:g}"
        order = self.order if self.block is None else f"blocks of {self.block}"
        model = self.source
        if self.model is not None:
            model += f", {self.model['depth']} layers of width {self.model['width']}, seed {self.seed}"
        return f"{model}{factor}  {self.roles}  {order}  text {self.text}"

    def sources(self) -> tuple[str, ...]:
        """Return the run whose model it is, if it is one's."""
        return () if self.source in ("smollm2", "random") else (self.source,)

    def score(self, metrics: Mapping[str, Any]) -> str:
        """Return the relative error behind the last block and what was added to the loss."""
        added, error = metrics["added"], metrics["relative"][-1]
        return "overflow" if error is None or added is None else f"error {error:.2e}, {added:+.4f} nats per token"

    def perform(self, experiment: str, *, cache: Path | None = None) -> Record:
        """Infer in both arithmetics, and return the record.

        Raises
        ------
        ResidlabError
            If the model or its text is not in the cache.
        """
        start = time.perf_counter()
        model, ids = subject(self, cache=cache)
        exact = inferred(model, ids, Rounded(REFERENCE))
        seconds = -time.perf_counter()
        result = inferred(model, ids, self.arithmetic())
        seconds += time.perf_counter()
        metrics = compared(exact, result, ids)
        metrics |= {"parameters": sum(parameter.numel() for parameter in model.parameters())}
        metrics |= {"seconds": round(seconds, 3), "total_seconds": round(time.perf_counter() - start, 3)}
        return Record(experiment=experiment, hash=self.hash, config=self.to_dict(), seed=self.seed, metrics=metrics)


@dataclass(frozen=True)
class Inference:
    """What was computed: the stream in front of the first block and after each, (depth + 1, B, T, d), and logits."""

    stream: Tensor
    logits: Tensor


def subject(run: RoundedInference, *, cache: Path | None = None) -> tuple[Transformer, Tensor]:
    """Return a measurement's model, its factor applied, and its tokens, (1, T).

    Raises
    ------
    ResidlabError
        If one of them is not in the cache, or the text has no such sequence.
    """
    model, ids = _subject(run, cache)
    if run.factor != 1:
        with torch.no_grad():
            for block in model.layers:
                for layer in (block.attention.W_O, block.feedforward.W_down):
                    for parameter in layer.parameters():
                        parameter.mul_(run.factor)
    return model.eval(), ids


def _subject(run: RoundedInference, cache: Path | None) -> tuple[Transformer, Tensor]:
    if run.source == "random":
        config = ModelConfig.from_dict(run.model or {})
        generator = torch.Generator().manual_seed(run.seed + run.text)
        return Transformer(config, seed=run.seed), torch.randint(
            config.vocabulary, (1, run.tokens), generator=generator
        )
    if run.source == "smollm2":
        from residlab.data.texts import wikipedia_summaries
        from residlab.models.hf import converted_smollm2, from_hugging_face

        folder = converted_smollm2(cache=cache)
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        texts = (tokenizer(article.text)["input_ids"] for article in wikipedia_summaries(cache=cache))
        return from_hugging_face(folder), _long_enough(texts, run)
    from residlab.experiments.training_run import finished, texts_of

    training, model = finished(run.source, cache=cache)
    held = texts_of(training, cache=cache).validation.ids
    windows = (held[start : start + run.tokens].tolist() for start in range(0, len(held), run.tokens))
    return model, _long_enough(windows, run)


def _long_enough(texts: Iterator[list[int]], run: RoundedInference) -> Tensor:
    long = (ids for ids in texts if len(ids) >= run.tokens)
    for number, ids in enumerate(long):
        if number == run.text:
            return torch.tensor([ids[: run.tokens]])
    raise ResidlabError(f"the text has no sequence number {run.text} of {run.tokens} tokens")


def inferred(model: Transformer, ids: Tensor, arithmetic: Rounded) -> Inference:
    """Run a model in an arithmetic and keep its stream."""
    with torch.no_grad(), _kept(model) as stream:
        logits = model(ids, arithmetic=arithmetic)
    return Inference(torch.stack(stream), logits)


@contextmanager
def _kept(model: Transformer) -> Iterator[list[Tensor]]:
    stream: list[Tensor] = []
    first, *_ = model.layers
    hooks = [first.register_forward_pre_hook(lambda _, arguments: stream.append(arguments[0]))]
    hooks += [
        block.register_forward_hook(lambda _, arguments, result: stream.append(result[0])) for block in model.layers
    ]
    try:
        yield stream
    finally:
        for hook in hooks:
            hook.remove()


def compared(exact: Inference, result: Inference, ids: Tensor) -> dict[str, Any]:
    """Return the metrics of an inference beside the exact one of the same tokens; null for what is not finite."""
    size = exact.stream.norm(dim=-1)  # (depth + 1, B, T)
    error = (result.stream - exact.stream).norm(dim=-1)
    relative = error / size
    nats, rounded_nats = (float(next_token_loss(each.logits, ids)) for each in (exact, result))
    before, after = (each.logits.log_softmax(-1) for each in (exact, result))
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    return {
        "error": _listed(error.mean((1, 2))),
        "size": _listed(size.mean((1, 2))),
        "relative": _listed(relative.mean((1, 2))),
        "first": _listed(relative[:, :, 0].mean(1)),
        "rest": _listed(relative[:, :, 1:].mean((1, 2))),
        "nats": _number(nats),
        "added": _number(rounded_nats - nats),
        "divergence": _number(float(divergence)),
        "agreement": _number(float((exact.logits.argmax(-1) == result.logits.argmax(-1)).double().mean())),
        "finite": bool(result.logits.isfinite().all()),
    }


def _listed(values: Tensor) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
