"""What an optimizer's update is made of: its singular values, on a small model of ours (chapter 9)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer, next_token_loss
from residlab.training.optimizer_config import Kind, OptimizerConfig
from residlab.training.optimizers import make_optimizer

FloatArray = NDArray[np.float64]


def update_spectrum(kind: Kind, ids: torch.Tensor, *, steps: int = 4, width: int = 64, seed: int = 0) -> FloatArray:
    """Return the singular values of an optimizer's last update of a square matrix, W_O of the second of two blocks.

    Parameters
    ----------
    kind
        The optimizer, with its standard settings. SOAP and KL-Shampoo make no update at the first step.
    ids : (B, T), int64
        The batch of every step, of token ids below 257.
    steps
        How many; the rate is small enough that the weights hardly move.
    width, seed
        Of the model, which has semi-orthogonal matrices and residual connections.

    Returns
    -------
    ndarray, shape (width,)
        Decreasing, divided by the update's Frobenius norm over ``sqrt(width)``: all 1 for a multiple of an isometry,
        ``sqrt(width)`` and zeros for rank one.
    """
    config = ModelConfig(
        depth=2, width=width, heads=4, vocabulary=257, context=ids.shape[1], initialization="orthogonal", init_std=0.1
    )
    model = Transformer(config, seed=seed)
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind, lr=1e-4, rest_lr=1e-4))
    weight = model.layers[1].attention.W_O.weight
    before = weight.detach()
    for _ in range(steps):
        before = weight.detach().clone()
        optimizer.zero_grad()
        next_token_loss(model(ids), ids).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    update = (weight.detach() - before).double()
    values = torch.linalg.svdvals(update)
    return np.asarray((values / values.square().mean().sqrt()).numpy(), dtype=np.float64)
