"""Continuing texts: one token at a time from the cache, greedy or sampled."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.models.attention import KVCache
from residlab.models.transformer import Transformer


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | Tensor,
    new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
    seed: int | None = None,
) -> list[list[int]]:
    """Return each prompt's continuation, without the prompt.

    Parameters
    ----------
    model
        In evaluation or training mode, which does not matter to it.
    prompts
        Token ids, sequences of any lengths >= 1. Shorter ones are padded on the left, unseen.
    new_tokens
        How many tokens at most; prompt and continuation must fit the model's context.
    temperature
        0 takes the likeliest token (the lowest id among equals); otherwise logits are divided by it.
    top_k, top_p
        Sample only among the k likeliest tokens, and among the fewest that together have probability p (the one that
        crosses p included).
    stop_token
        Ends a continuation; it is not part of it.
    seed
        Of the sampling; by default torch's global generator.

    Raises
    ------
    ResidlabError
        If a prompt is empty, a value is out of range, or the context is too short.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> continuations = generate(model, [[1, 2, 3], [4]], new_tokens=5)
    >>> [len(ids) for ids in continuations]
    [5, 5]
    >>> generate(model, [[4]], new_tokens=5) == continuations[1:]  # the padding of a batch is not seen
    True
    """
    rows = [list(map(int, prompt)) for prompt in prompts]
    continuations: list[list[int]] = [[] for _ in rows]
    going = [True] * len(rows)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    for tokens in generate_steps(model, rows, new_tokens, **options):  # type: ignore[arg-type]
        for index, token in enumerate(tokens.tolist()):
            going[index] = going[index] and token != stop_token
            if going[index]:
                continuations[index].append(token)
        if not any(going):
            break
    return continuations


@torch.no_grad()
def generate_steps(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every prompt, (B,), ``new_tokens`` times; parameters and errors as in `generate`.

    Examples
    --------
    >>> from residlab.models.config import ModelConfig
    >>> from residlab.models.transformer import Transformer
    >>> model = Transformer(ModelConfig(depth=2, width=32, heads=2, vocabulary=50, context=16), seed=0)
    >>> tokens = [step.item() for step in generate_steps(model, [[1, 2, 3]], 5)]
    >>> tokens == generate(model, [[1, 2, 3]], 5)[0]
    True
    """
    _check(model, prompts, new_tokens, temperature, top_k, top_p)
    if not prompts or not new_tokens:
        return
    device = model.embedding.weight.device
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    tokens = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask = None
    if min(lengths) < longest:
        mask = (
            torch.arange(longest + new_tokens, device=device) >= longest - torch.tensor(lengths, device=device)[:, None]
        )
    cache = KVCache(model.config, len(prompts), longest + new_tokens, dtype=model.embedding.weight.dtype, device=device)
    constants = model.variance_constants()
    for _ in range(new_tokens):
        seen = None if mask is None else mask[:, : cache.length + tokens.shape[1]]
        logits = model(tokens, mask=seen, cache=cache, constants=constants)[:, -1]
        following = _pick(logits, temperature, top_k, top_p, generator)
        yield following
        tokens = following[:, None]


def _pick(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """Return one token for each row of logits, (B, vocabulary)."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    ordered, order = logits.double().sort(dim=-1, descending=True, stable=True)
    ordered = (ordered - ordered[:, :1]) / temperature  # of any size: the largest stays 0
    if top_k is not None:
        ordered[:, top_k:] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    if top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0)
    return order.gather(1, torch.multinomial(probabilities, 1, generator=generator))[:, 0]


def _check(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> None:
    if new_tokens < 0:
        raise ResidlabError(f"new_tokens must be >= 0; got {new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ResidlabError(f"temperature must be finite and >= 0; got {temperature}")
    if top_k is not None and top_k < 1:
        raise ResidlabError(f"top_k must be >= 1; got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ResidlabError(f"top_p must be in (0, 1]; got {top_p}")
    empty = [index for index, prompt in enumerate(prompts) if not len(prompt)]
    if empty:
        raise ResidlabError(f"a prompt needs at least one token; prompt {empty[0]} has none")
    needed = max(map(len, prompts), default=0) + new_tokens
    if needed > model.config.context:
        raise ResidlabError(
            f"the model's context is {model.config.context} tokens; prompt and continuation need {needed}"
        )
