"""What our transformers are like before training: how alike tokens are, how large gradients are (chapter 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from residlab.experiments.probes import PROBES
from residlab.models.config import Feedforward, ModelConfig
from residlab.models.transformer import Transformer

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class InitialState:
    """By block, in front of it: mean cosine of two tokens, participation of its rows, gradient of the loss.

    The gradient is that in the normalised tokens, all of them together, up to a common factor.
    """

    similarity: FloatArray
    participation: FloatArray
    gradient: FloatArray


@torch.no_grad()
def initial_state(
    *,
    shared: bool,
    logit_scale: float = 1.0,
    beta: float = 1.0,
    depth: int = 8,
    tokens: int = 96,
    width: int = 128,
    heads: int = 4,
    residual: bool = False,
    feedforward: Feedforward = "gelu",
    sequences: int = 2,
    seed: int = 0,
) -> InitialState:
    """Return what a model with semi-orthogonal matrices makes of different random tokens.

    Parameters
    ----------
    shared
        Whether ``W_K = W_Q``.
    logit_scale, beta, depth, width, heads, residual, feedforward, seed
        Of the model.
    tokens, sequences
        Each sequence has so many; none occurs twice.
    """
    config = ModelConfig(
        depth=depth,
        width=width,
        heads=heads,
        vocabulary=max(3000, tokens * sequences),
        context=tokens,
        residual=residual,
        feedforward=feedforward,
        logit_scale=logit_scale,
        temperature_base=beta,
        initialization="orthogonal-shared-qk" if shared else "orthogonal",
        init_std=0.06,
    )
    model = Transformer(config, seed=seed)
    order = torch.randperm(config.vocabulary, generator=torch.Generator().manual_seed(seed + 1))
    ids = order[: tokens * sequences].view(sequences, tokens)
    attention, gradients, stream = (PROBES[name](model, ids) for name in ("attention", "gradients", "stream"))
    _, rows = model.forward_with_rows(ids)
    blocks = range(1, depth + 1)
    size = [stream[f"blocks.{block - 1}.attention_norm"]["all"]["rms"] for block in blocks]
    return InitialState(
        similarity=np.array([attention[str(block)]["token_similarity"] for block in blocks]),
        participation=np.array([float(row.square().sum(dim=-1).mean()) for row in rows]),
        gradient=np.array([gradients[str(n)]["stream"] * s for n, s in zip(blocks, size, strict=True)]),
    )
