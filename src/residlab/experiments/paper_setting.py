"""The setting of the BHyT paper (arXiv 2601.09719): C4, LIMA-1K, WikiText-2, for whoever has the machine.

=========== ===========================================================================================================
C4          `C4` is a corpus by its name, streamed (`residlab.training.corpus`): ``corpus: hf:allenai/c4:en`` in a file
            for ``residlab run``, with the model of `paper_model`
LIMA-1K     `read_pairs`, `encoded`, `fine_tune`; `SFT` has the numbers of the authors' file for full fine-tuning
WikiText-2  `wikitext2`, `perplexity`
benchmarks  `residlab.experiments.harness`
=========== ===========================================================================================================

Our tests run all of it on a few kilobytes. Where we differ from the authors: their prompts wear the chat template of
Llama 3, whose special tokens our tokenizers do not have, ours two plain headings (`TEMPLATE`). The loss is on the
response and the end behind it, not on the prompt, as is the default of LLaMA-Factory, which they use. They keep the
epoch with the lowest loss on a few hundred questions of CommonsenseQA, QNLI and RTE; here, the last one is kept.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.experiments.scoring import TextScorer
from residlab.models.config import ModelConfig, NormOptions
from residlab.models.transformer import Transformer
from residlab.training.corpus import corpus
from residlab.training.optimizer_config import OptimizerConfig
from residlab.training.optimizers import clip, make_optimizer
from residlab.training.schedules import ScheduleConfig
from residlab.training.tokenizers import Tokenizer

C4 = "hf:allenai/c4:en"
WIKITEXT2 = "hf:Salesforce/wikitext:wikitext-2-raw-v1"
TEMPLATE = "### Instruction:\n{prompt}\n\n### Response:\n"
IGNORED = -100


def paper_model(norm: NormOptions, vocabulary: int, *, context: int = 1024) -> ModelConfig:
    """Return the authors' model of 374 million parameters, with a norm: 16 layers, width 1024, 16 heads on 4."""
    return ModelConfig(
        depth=16, width=1024, heads=16, kv_heads=4, head_dim=64, feedforward_width=4096,
        rope_base=500_000.0, vocabulary=vocabulary, context=context, norm=norm,
    )  # fmt: skip


# --- LIMA


@dataclass(frozen=True)
class Pair:
    """A prompt and the response to it."""

    prompt: str
    response: str


@dataclass(frozen=True)
class FineTuning:
    """How a model is fine-tuned on pairs: batches of padded sequences, AdamW, warmup, and a cosine to ``final``."""

    lr: float = 5e-6
    epochs: int = 15
    batch: int = 16
    context: int = 2048
    warmup: float = 0.1
    final: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 1.0
    seed: int = 42


SFT = FineTuning()


def read_pairs(file: Path) -> list[Pair]:
    """Return the pairs of a file: a JSON list, or JSON lines, of objects with ``instruction`` and ``output``.

    That is the form of the authors' ``lima1k.json``. An ``input``, if there is one, follows the instruction.

    Raises
    ------
    ResidlabError
        If it cannot be read, or is of another form; the message says where.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResidlabError(f"{file} cannot be read: {error}") from error
    try:
        rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    except ValueError as error:
        raise ResidlabError(f"{file} is neither a JSON list nor JSON lines: {error}") from error
    pairs = []
    for number, row in enumerate(rows, start=1):
        prompt, response = (row.get("instruction"), row.get("output")) if isinstance(row, dict) else (None, None)
        if not isinstance(prompt, str) or not isinstance(response, str):
            raise ResidlabError(f"{file}, pair {number}: needs the texts instruction and output; got {str(row)[:80]}")
        more = row.get("input")
        pairs.append(Pair(f"{prompt}\n{more}" if more else prompt, response))
    return pairs


def encoded(pair: Pair, tokenizer: Tokenizer, context: int) -> tuple[list[int], list[int]]:
    """Return inputs and targets of a pair; targets that are not of the response are `IGNORED`.

    The sequence is ``end``, the prompt in the template, the response, ``end``; cut behind ``context`` inputs.
    """
    prompt = [tokenizer.end, *map(int, tokenizer.encode(TEMPLATE.format(prompt=pair.prompt)))]
    response = [*map(int, tokenizer.encode(pair.response)), tokenizer.end]
    ids = prompt + response
    targets = [IGNORED] * (len(prompt) - 1) + response
    return ids[:-1][:context], targets[:context]


def fine_tune(model: Transformer, pairs: Sequence[Pair], tokenizer: Tokenizer, how: FineTuning = SFT) -> list[float]:
    """Fine-tune a model on pairs, in place; return the loss of each step, in nats per token of the responses.

    Raises
    ------
    ResidlabError
        If no pair has a response within the context, or the context is longer than the model's.
    """
    if how.context > model.config.context:
        raise ResidlabError(f"context must be at most the model's, {model.config.context}; got {how.context}")
    examples = [encoded(pair, tokenizer, how.context) for pair in pairs]
    examples = [one for one in examples if any(target != IGNORED for target in one[1])]
    if not examples:
        raise ResidlabError(f"none of {len(pairs)} pairs has a response within {how.context} tokens")
    steps = how.epochs * -(-len(examples) // how.batch)
    schedule = ScheduleConfig(
        kind="cosine", steps=steps, warmup=min(steps - 1, int(how.warmup * steps)), final=how.final
    )
    optimizer = make_optimizer(
        model, OptimizerConfig(kind="adamw", lr=how.lr, betas=how.betas, weight_decay=how.weight_decay)
    )
    draws = torch.Generator().manual_seed(how.seed)
    losses: list[float] = []
    device = model.embedding.weight.device
    model.train()
    for _ in range(how.epochs):
        order = torch.randperm(len(examples), generator=draws).tolist()
        for low in range(0, len(order), how.batch):
            chosen = [examples[index] for index in order[low : low + how.batch]]
            longest = max(len(inputs) for inputs, _ in chosen)
            inputs, targets = (
                torch.tensor([row + [blank] * (longest - len(row)) for row in rows], device=device)
                for rows, blank in (([i for i, _ in chosen], tokenizer.end), ([t for _, t in chosen], IGNORED))
            )
            optimizer.set_lr(schedule.factor(len(losses)))
            logits = model(inputs).float().flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
            loss.backward()  # type: ignore[no-untyped-call]
            clip(model, how.clip)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
            model.refresh(len(losses))
    model.eval()
    return losses


# --- Perplexity


@dataclass(frozen=True)
class Perplexity:
    """``exp`` of the nats per token, and per word; and bits per byte, the only one that compares tokenizers.

    Words are what white space separates in the text as it stands, so that the perplexity per word does not depend on
    the tokenizer either, but for an unknown token, which ours do not have.
    """

    per_token: float
    per_word: float
    bits_per_byte: float
    tokens: int
    words: int
    bytes: int


def perplexity(scorer: TextScorer, texts: Iterable[str], *, stride: int | None = None) -> Perplexity:
    """Return the perplexity of texts, each by itself behind the beginning of a document.

    Parameters
    ----------
    scorer
        The model.
    texts
        Documents, or one text for a stream.
    stride
        Targets of a window (`residlab.experiments.scoring.windows`): the fewer, the more every token has in front of
        it, and the longer it takes. By default, as many as fit.

    Raises
    ------
    ResidlabError
        If there is no word in them.
    """
    listed = list(texts)
    words, size = sum(len(text.split()) for text in listed), sum(len(text.encode()) for text in listed)
    if not words:
        raise ResidlabError("perplexity needs at least one word of text")
    scores = scorer.texts(listed, stride)
    nats, tokens = -math.fsum(score.log_likelihood for score in scores), sum(score.tokens for score in scores)
    return Perplexity(math.exp(nats / tokens), math.exp(nats / words), nats / (math.log(2) * size), tokens, words, size)


def wikitext2(split: str = "test", *, source: str = WIKITEXT2) -> str:
    """Return a split of WikiText-2, raw, as one text: its rows, blank ones too, joined by two line ends.

    Raises
    ------
    ResidlabError
        If ``datasets`` is missing, or the rows cannot be read.
    """
    return "\n\n".join(row.text for row in corpus(source, split=split).read())
