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

    Examples
    --------
    >>> rows = torch.tensor([[[1.0, 0, 0], [0.9, 0.1, 0], [0.7, 0.2, 0.1]]])  # one head, causal
    >>> mass_on_key(rows)  # (0.9 + 0.7) / 2: query 0 has no choice
    tensor([0.8000], dtype=torch.float64)
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

    Examples
    --------
    >>> round(uniform_mass_on_key(3), 4)  # (1/2 + 1/3) / 2
    0.4167
    """
    if not 0 <= key < queries - 1:
        raise ValueError(f"no query comes after key {key} in {queries} queries")
    return sum(1 / (q + 1) for q in range(key + 1, queries)) / (queries - key - 1)


def row_entropy(weights: Tensor) -> Tensor:
    """Return the Shannon entropy of each attention row, in nats: ``-sum_j p_j ln p_j``, with ``0 ln 0 = 0``.

    Parameters
    ----------
    weights : Tensor, shape (..., keys)
        Rows that add up to 1, of any floating-point dtype.

    Returns
    -------
    Tensor, float64, shape (...)
        0 when one key has it all, ``ln n`` when n keys share alike.

    Raises
    ------
    ValueError
        If a row does not add up to 1 within 1 %.

    Examples
    --------
    >>> row_entropy(torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]))  # 0, and ln 4
    tensor([0.0000, 1.3863], dtype=torch.float64)
    """
    rows = weights.detach().double()
    if not torch.allclose(rows.sum(-1), torch.ones((), dtype=torch.float64, device=rows.device), atol=0.01):
        raise ValueError("rows of attention must add up to 1; were these logits?")
    entropy: Tensor = torch.special.entr(rows).sum(-1)
    return entropy


def token_similarity(x: Tensor) -> Tensor:
    """Return the mean cosine between two different tokens of a sequence: 1 when all point one way (rank collapse).

    ``(||sum_t x_t/|x_t|||**2 - T) / (T (T - 1))``; no T x T matrix is formed. Tokens that are zero count as similar to
    none.

    Parameters
    ----------
    x : Tensor, shape (..., T, d), T >= 2
        Of any floating-point dtype.

    Returns
    -------
    Tensor, float64, shape (...)

    Raises
    ------
    ValueError
        If there are fewer than two tokens.

    Examples
    --------
    >>> token_similarity(torch.stack([torch.eye(2), torch.ones(2, 2)]))  # two sequences of two tokens
    tensor([0.0000, 1.0000], dtype=torch.float64)
    """
    if x.ndim < 2 or x.shape[-2] < 2:
        raise ValueError(f"similarity is between at least two tokens, (..., T, d); got shape {tuple(x.shape)}")
    directions = torch.nn.functional.normalize(x.detach().double(), dim=-1, eps=1e-300)
    T = x.shape[-2]
    own = directions.square().sum(dim=(-1, -2))
    return (directions.sum(dim=-2).square().sum(dim=-1) - own) / (T * (T - 1))
