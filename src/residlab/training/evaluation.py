"""How well a model predicts a text: nats per token, and bits per byte, which does not depend on the tokenizer."""

from dataclasses import dataclass

import torch
from torch import nn

from residlab.training.batches import evaluation_windows
from residlab.training.tokens import TokenFile, bits_per_byte


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over a text, and what it was measured on."""

    nats_per_token: float
    bits_per_byte: float
    tokens: int
    bytes: int


@torch.no_grad()
def evaluate(
    model: nn.Module, tokens: TokenFile, context: int, *, most: int | None = None, batch: int = 16
) -> Evaluation:
    """Return a model's loss on a text, each token predicted once, from those before it in its window.

    ``bits per byte = total nats / (ln 2 * bytes of the predicted tokens)``. Sums in float64.

    Parameters
    ----------
    model
        Token ids, (B, T), to logits, (B, T, vocabulary).
    tokens
        The text.
    context
        Tokens in a window.
    most
        Stop after so many predicted tokens.
    batch
        Windows at once.

    Raises
    ------
    ResidlabError
        If the text is shorter than a window.
    """
    device = next(model.parameters()).device
    nats, counted, size = 0.0, 0, 0
    for windows in evaluation_windows(tokens, context, batch=batch):
        tokens_here = torch.from_numpy(windows.tokens).to(device)
        logits = model(tokens_here[:, :-1])
        precise = logits if logits.dtype == torch.float64 else logits.float()
        losses = nn.functional.cross_entropy(precise.flatten(0, 1), tokens_here[:, 1:].flatten(), reduction="none")
        nats += float(losses.double()[torch.from_numpy(windows.mask).to(device).flatten()].sum())
        counted += int(windows.mask.sum())
        size += int(windows.bytes.sum())
        if most is not None and counted >= most:
            break
    return Evaluation(nats / counted, bits_per_byte(nats, size), counted, size)
