"""How well a model predicts a text: nats per token, and bits per byte, which does not depend on the tokenizer."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from residlab.training.batches import EvaluationBatch, evaluation_windows
from residlab.training.tokens import TokenFile, bits_per_byte

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over a text, and what it was measured on.

    Examples
    --------
    >>> Evaluation(nats_per_token=1.0, bits_per_byte=1.44, tokens=100, bytes=100).bits_per_byte
    1.44
    """

    nats_per_token: float
    bits_per_byte: float
    tokens: int
    bytes: int


@torch.no_grad()
def evaluate(
    model: nn.Module,
    tokens: TokenFile,
    context: int,
    *,
    most: int | None = None,
    batch: int = 16,
    fabric: "Fabric | None" = None,
) -> Evaluation:
    """Return a model's loss on a text, each token predicted once, from those before it in its window.

    ``bits per byte = total nats / (ln 2 * bytes of the predicted tokens)``. Sums in float64, in the order of the text,
    however many processes there are.

    Parameters
    ----------
    model
        Token ids, (B, T), to logits, (B, T, vocabulary).
    tokens
        The text.
    context
        Tokens in a window.
    most
        Stop at the end of the window in which so many predicted tokens are reached, whatever ``batch``.
    batch
        Windows at once.
    fabric
        Lightning Fabric, whose processes take turns with the batches; all must call this. By default one process.

    Raises
    ------
    ResidlabError
        If the text is shorter than a window.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> from residlab.training.tokens import token_file
    >>> model = Transformer(ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=16), seed=0)
    >>> found = evaluate(model, token_file("hello", ["hello " * 20], ByteTokenizer()), context=16)
    >>> found.bytes, round(found.bits_per_byte)  # before training: 8 bits a byte
    (120, 8)
    """
    device = next(model.parameters()).device
    rank, world = (0, 1) if fabric is None else (fabric.global_rank, fabric.world_size)
    windows = _enough(evaluation_windows(tokens, context, batch=batch), context, most)
    sums: list[float] = []
    batches = counted = size = 0
    while turn := list(itertools.islice(windows, world)):
        # In the last turn some have nothing left, and compute what does not count: where parameters are divided, every
        # process must take part in every forward.
        sums.append(_nats(model, turn[min(rank, len(turn) - 1)], device))
        batches += len(turn)
        counted += sum(int(each.mask.sum()) for each in turn)
        size += sum(int(each.bytes.sum()) for each in turn)
    if fabric is not None and world > 1:
        mine = torch.tensor(sums, dtype=torch.float64, device=fabric.device)
        sums = cast(Tensor, fabric.all_gather(mine)).T.flatten()[:batches].tolist()
    nats = 0.0
    for each in sums:  # one after the other: sum() of Python 3.12 rounds otherwise than that of 3.11
        nats += each
    return Evaluation(nats / counted, bits_per_byte(nats, size), counted, size)


def _enough(windows: Iterator[EvaluationBatch], context: int, most: int | None) -> Iterator[EvaluationBatch]:
    """Yield windows until so many predictions are reached; the last batch is cut to those that it takes."""
    if most is None:
        yield from windows
        return
    left = max(1, -(-most // context))
    for each in windows:
        if len(each.tokens) >= left:
            yield EvaluationBatch(each.tokens[:left], each.mask[:left], each.bytes[:left])
            return
        yield each
        left -= len(each.tokens)


def _nats(model: nn.Module, windows: EvaluationBatch, device: torch.device) -> float:
    """Return the loss of a batch, summed over its predictions."""
    tokens = torch.from_numpy(windows.tokens).to(device)
    logits = model(tokens[:, :-1])
    precise = logits if logits.dtype == torch.float64 else logits.float()
    losses = nn.functional.cross_entropy(precise.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    # On the CPU, since mps has no float64.
    return float(losses.cpu().double()[torch.from_numpy(windows.mask).flatten()].sum())
