"""Where attention goes: the mass that a head puts on one key."""

from __future__ import annotations

import torch
from torch import Tensor


def mass_on_key(weights: Tensor, key: int = 0) -> Tensor:
    """Return the share of attention that each head puts on one key, averaged over the queries that have a choice.

    Under a causal mask only queries after the key are averaged over: earlier ones cannot see it, and for key 0 the
    query at position 0 sees nothing else.

    Parameters
    ----------
    weights : Tensor, shape (..., heads, queries, keys)
        Rows that add up to 1, of any floating-point dtype. Queries and keys are the positions of one sequence.
    key : int
        Position of the key.

    Returns
    -------
    Tensor, float64, shape (..., heads)

    Raises
    ------
    ValueError
        If there is no query after the key, or a row does not add up to 1 within 1 %.
    """
    queries, keys = weights.shape[-2:]
    if not 0 <= key < min(queries - 1, keys):
        raise ValueError(f"no query comes after key {key} in attention of {queries} queries and {keys} keys")
    rows = weights.detach()[..., key + 1 :, :].double()
    if not torch.allclose(rows.sum(-1), torch.ones((), dtype=torch.float64, device=rows.device), atol=0.01):
        raise ValueError("rows of attention must add up to 1; were these logits?")
    return rows[..., key].mean(-1)


def uniform_mass_on_key(queries: int, key: int = 0) -> float:
    """Return what `mass_on_key` would be if each query spread its attention evenly over itself and all before it.

    Raises
    ------
    ValueError
        If there is no query after the key.
    """
    if not 0 <= key < queries - 1:
        raise ValueError(f"no query comes after key {key} in {queries} queries")
    return sum(1 / (q + 1) for q in range(key + 1, queries)) / (queries - key - 1)
