"""Log-likelihoods of texts, as benchmarks and perplexities need them, of our models and any of our tokenizers.

What is scored may be longer than the model's context: it is cut into windows, each target once. Sequences of a batch
are padded on the right with ``end``, which a causal model does not see, so that no score depends on its neighbours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from residlab.errors import ResidlabError
from residlab.models.generation import generate_steps
from residlab.models.transformer import Transformer
from residlab.training.tokenizers import Tokenizer

NEW_TOKENS = 256


@dataclass(frozen=True)
class Window:
    """Token ids of a forward, the last ``scored`` of which are targets; in front of them the model has the rest."""

    ids: tuple[int, ...]
    scored: int


@dataclass(frozen=True)
class Score:
    """``log p`` of the targets in nats, how many they are, and whether each is the likeliest token of all."""

    log_likelihood: float
    tokens: int
    greedy: bool


def windows(prefix: Sequence[int], targets: Sequence[int], context: int, stride: int | None = None) -> Iterator[Window]:
    """Cut a sequence into windows of at most ``context`` inputs that hold each target exactly once.

    The first window scores as many targets as fit behind the prefix, and at least ``stride`` (or all), for which the
    prefix loses its beginning if it must. Each further one scores the next ``stride`` targets, or those that are left,
    with as many tokens in front of them as fit. With ``stride = context``, the default, that is the rule of
    lm-evaluation-harness for rolling log-likelihoods, and for continuations.

    Parameters
    ----------
    prefix
        What stands in front, at least one token.
    targets
        What is scored.
    context
        Inputs of a forward.
    stride
        In [1, context].

    Raises
    ------
    ResidlabError
        If the prefix is empty, or the stride out of range.
    """
    stride = context if stride is None else stride
    if not len(prefix):
        raise ResidlabError("a sequence needs at least one token in front of what is scored")
    if not 1 <= stride <= context:
        raise ResidlabError(f"stride must be in [1, context = {context}]; got {stride}")
    return _windows([*prefix, *targets], len(prefix), context, stride)


def _windows(ids: list[int], done: int, context: int, stride: int) -> Iterator[Window]:
    scored = min(len(ids) - done, max(context - done + 1, stride))
    while scored > 0:
        done += scored
        yield Window(tuple(ids[max(0, done - context - 1) : done]), scored)
        scored = min(len(ids) - done, stride)


class TextScorer:
    """A model and its tokenizer, as something that says how likely a text is.

    Parameters
    ----------
    model
        On the device where it should run.
    tokenizer
        Its vocabulary must be the model's.
    context
        Inputs of a forward; by default the model's context, and at most that.
    batch
        Windows at once; it changes no score beyond rounding.

    Raises
    ------
    ResidlabError
        If the vocabulary does not fit, or a number is out of range.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, *, context: int | None = None, batch: int = 16
    ) -> None:
        if tokenizer.vocabulary != model.config.vocabulary:
            raise ResidlabError(
                f"the tokenizer has {tokenizer.vocabulary} tokens, the model a vocabulary of {model.config.vocabulary}"
            )
        self.context = model.config.context if context is None else context
        if not 1 <= self.context <= model.config.context or batch < 1:
            raise ResidlabError(
                f"context must be in [1, {model.config.context}] and batch >= 1; got {self.context} and {batch}"
            )
        self.model, self.tokenizer, self.batch = model.eval(), tokenizer, batch

    # --- Scores

    def continuations(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Return the score of each continuation behind its context, the text of both encoded as one.

        White space at the end of a context belongs to the continuation, as in lm-evaluation-harness: where a token may
        join it to what follows, that is how the model has seen it. A continuation that a token joins to its context
        whole is encoded apart, or nothing of it would be left to score. ``end`` stands in front of every context, also
        of an empty one, as in front of every document in training. A context that does not fit loses its beginning; a
        continuation that does not fit is scored in windows.
        """
        return self._scores([self._split(*pair) for pair in pairs], None)

    def texts(self, texts: Sequence[str], stride: int | None = None) -> list[Score]:
        """Return the score of each text as a document of its own, behind ``end``, in `windows`."""
        return self._scores([([self.tokenizer.end], self._ids(text)) for text in texts], stride)

    def _ids(self, text: str) -> list[int]:
        return [int(one) for one in self.tokenizer.encode(text)]

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        kept = context.rstrip()
        front, whole = self._ids(kept), self._ids(context + continuation)
        if len(whole) <= len(front) and continuation:
            return [self.tokenizer.end, *front], self._ids(context[len(kept) :] + continuation)
        return [self.tokenizer.end, *whole[: len(front)]], whole[len(front) :]

    def _scores(self, sequences: Sequence[tuple[list[int], list[int]]], stride: int | None) -> list[Score]:
        jobs = [
            (index, window)
            for index, (prefix, targets) in enumerate(sequences)
            for window in windows(prefix, targets, self.context, stride)
        ]
        jobs.sort(key=lambda job: -len(job[1].ids))  # neighbours of a length waste little padding
        found = [Score(0.0, 0, True)] * len(sequences)
        parts: list[list[float]] = [[] for _ in sequences]
        for low in range(0, len(jobs), self.batch):
            batch = jobs[low : low + self.batch]
            for (index, window), (likelihood, greedy) in zip(batch, self._forward([w for _, w in batch]), strict=True):
                parts[index].append(likelihood)
                found[index] = Score(0.0, found[index].tokens + window.scored, found[index].greedy and greedy)
        return [Score(math.fsum(part), one.tokens, one.greedy) for part, one in zip(parts, found, strict=True)]

    @torch.no_grad()
    def _forward(self, batch: list[Window]) -> Iterator[tuple[float, bool]]:
        device = self.model.embedding.weight.device
        longest = max(len(window.ids) for window in batch)
        rows = [[*window.ids, *[self.tokenizer.end] * (longest - len(window.ids))] for window in batch]
        ids = torch.tensor(rows, dtype=torch.int64, device=device)
        logits = self.model(ids[:, :-1])
        for row, window in enumerate(batch):
            stop = len(window.ids) - 1
            where = slice(stop - window.scored, stop)
            yield _judged(logits[row, where], ids[row, 1:][where])

    # --- Texts

    def continued(
        self, context: str, *, until: Sequence[str] = (), new_tokens: int = NEW_TOKENS, temperature: float = 0.0
    ) -> str:
        """Return what the model writes behind a context, up to the first of ``until``, which is not part of it.

        A context that does not fit in front of ``new_tokens`` loses its beginning, and at least one token of it stays.
        The end of a document ends it too. The seed of a temperature above 0 is 0.
        """
        new_tokens = min(new_tokens, self.context - 1)
        prompt = [self.tokenizer.end, *self._ids(context)][-(self.context - new_tokens) :]
        written: list[int] = []
        text = ""
        for token in generate_steps(self.model, [prompt], new_tokens, temperature=temperature, seed=0):
            if int(token) == self.tokenizer.end:
                break
            written.append(int(token))
            text = self.tokenizer.decode(written)
            if any(stop and stop in text for stop in until):
                break
        ends = [text.find(stop) for stop in until if stop and stop in text]
        return text[: min(ends)] if ends else text


def _judged(logits: Tensor, targets: Tensor) -> tuple[float, bool]:
    """Return the log-likelihood of targets, summed in float64, and whether each is the likeliest."""
    precise = logits if logits.dtype == torch.float64 else logits.float()
    losses = nn.functional.cross_entropy(precise, targets, reduction="none")
    return -float(losses.double().sum()), bool((precise.argmax(dim=-1) == targets).all())
