"""How near a weight matrix is to an isometry, and how widely its rows are spread: float64, from one SVD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class MatrixShape:
    """What one matrix, (m, d), does to norms and to kurtosis.

    Attributes
    ----------
    largest, smallest
        Singular values sigma_1 and sigma_n, n = min(m, d).
    spread
        ``sigma_1 / sigma_n``: 1 for a multiple of a semi-orthogonal matrix; infinite for a singular one.
    defect
        ``||G/tau - I||_F / sqrt(n)``, G the smaller of the two Gram matrices and ``tau = tr G / n``: 0 for a multiple
        of a semi-orthogonal matrix. The larger Gram matrix would never be near the identity.
    stable_rank
        ``||W||_F**2 / sigma_1**2``, in [1, n].
    participation
        Inverse participation ratio of the rows, ``sum_j W_ij**4 / (sum_j W_ij**2)**2``, averaged over the rows that are
        not zero: 1/d when a row is flat, 1 when it has one entry. It multiplies independent inputs' excess kurtosis.
    delocalisation
        ``participation (d + 2)/3``: 1 on average for Haar-distributed and Gaussian rows.

    Source: chapters 8 and 9 (ours, after arXiv 2605.25880).

    Examples
    --------
    >>> shape = matrix_shape(torch.eye(8))
    >>> shape.spread, shape.participation
    (1.0, 1.0)
    """

    largest: float
    smallest: float
    spread: float
    defect: float
    stable_rank: float
    participation: float
    delocalisation: float


def matrix_shape(weight: Tensor) -> MatrixShape:
    """Return the shape of a matrix, (m, d), rows as outputs, as in ``nn.Linear.weight``.

    Raises
    ------
    ValueError
        If it is no matrix, is empty, all zero or not finite.

    Examples
    --------
    >>> shape = matrix_shape(torch.diag(torch.tensor([2.0, 1, 1, 1])))
    >>> shape.spread, shape.stable_rank, shape.delocalisation
    (2.0, 1.75, 2.0)
    """
    if weight.ndim != 2 or not weight.numel():
        raise ValueError(f"a matrix must have shape (m, d), none zero; got {tuple(weight.shape)}")
    W = weight.detach().double()
    scale = W.abs().max()
    if not (torch.isfinite(scale) and scale > 0):
        raise ValueError("a matrix must be finite and not all zero")
    W = W / scale  # squares of large and of tiny entries stay in range
    singular = torch.linalg.svdvals(W)
    squares = singular.square()
    d = W.shape[1]
    tau = squares.mean()
    powers = W.square()
    rows = powers.sum(dim=1)
    kept = rows > 0
    participation = float((powers.square().sum(dim=1)[kept] / rows[kept].square()).mean())
    largest, smallest = float(singular[0]), float(singular[-1])
    # A singular matrix's last value is rounding, not a size.
    singular_to_rounding = smallest <= max(W.shape) * torch.finfo(torch.float64).eps * largest
    return MatrixShape(
        largest=largest * float(scale),
        smallest=smallest * float(scale),
        spread=float("inf") if singular_to_rounding else largest / smallest,
        defect=float((squares / tau - 1).square().mean().sqrt()),
        stable_rank=float(squares.sum() / squares[0]),
        participation=participation,
        delocalisation=participation * (d + 2) / 3,
    )


def matrices(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of each linear layer, shared ones once.

    Examples
    --------
    >>> layer = nn.Linear(2, 3)
    >>> [(name, tuple(weight.shape)) for name, weight in matrices(nn.Sequential(layer, nn.ReLU(), layer))]
    [('0', (3, 2))]
    """
    seen: set[int] = set()
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and id(layer.weight) not in seen:
            seen.add(id(layer.weight))
            yield name, layer.weight
