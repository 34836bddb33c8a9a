"""Real inner products of a model, and how far from exact rounded sums of them are.

Source: chapter 12; the bounds beside them are in `residlab.theory.summation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from residlab.precision.accumulation import Order
from residlab.precision.formats import Format, Mode
from residlab.precision.rounding import rounded
from residlab.precision.summation import summed
from residlab.probes.activations import observe_inputs
from residlab.theory.summation import node_sums, rms_law
from residlab.theory.validation import FloatArray


@torch.no_grad()
def product_terms(
    model: nn.Module, ids: Tensor, layers: Mapping[str, nn.Module], *, rows: int, operands: Format
) -> dict[str, Tensor]:
    """Return the terms ``w_k x_k`` of inner products of linear layers' rows with what they read, by layer.

    Parameters
    ----------
    model
        Token ids, (B, T), in.
    ids
        What it reads, of T >= 2. The first token of each sequence is left out: it is often unlike all others.
    layers
        Linear layers by name, or modules with a ``weight`` (out, in).
    rows
        How many rows of each matrix, evenly spaced; all if there are fewer.
    operands
        What both factors are rounded to; their products are exact in float64 for t <= 26.

    Returns
    -------
    dict of str to Tensor, shape (B (T - 1) rows, in), float64

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 6, bias=False))
    >>> terms = product_terms(model, torch.arange(5)[None], {"linear": model[1]}, rows=2, operands=BF16)
    >>> tuple(terms["linear"].shape)  # 4 tokens and 2 rows, of 4 terms each
    (8, 4)
    """
    found: dict[str, Tensor] = {}

    def see(name: str, x: Tensor) -> None:
        weight = layers[name].get_parameter("weight").detach()
        chosen = torch.linspace(0, weight.shape[0] - 1, min(rows, weight.shape[0])).round().long()
        w, tokens = (rounded(each.double(), operands) for each in (weight[chosen], x[:, 1:].flatten(0, 1)))
        found[name] = (tokens[:, None] * w).flatten(0, 1)

    with observe_inputs(layers, see):
        model(ids)
    return found


@torch.no_grad()
def square_terms(model: nn.Module, ids: Tensor, layers: Mapping[str, nn.Module], operands: Format) -> dict[str, Tensor]:
    """Return the squares ``x_k**2`` that a normalization sums, (B (T - 1), d) in float64, by layer; as above.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> model = nn.Sequential(nn.Embedding(8, 4), nn.LayerNorm(4))
    >>> tuple(square_terms(model, torch.arange(5)[None], {"norm": model[1]}, BF16)["norm"].shape)
    (4, 4)
    """
    found: dict[str, Tensor] = {}

    def see(name: str, x: Tensor) -> None:
        found[name] = rounded(x[:, 1:].flatten(0, 1).double(), operands).square()

    with observe_inputs(layers, see):
        model(ids)
    return found


@dataclass(frozen=True, eq=False)
class SumErrors:
    """Errors of rounded sums of the first n terms, in units of the sum of those terms' magnitudes.

    Attributes
    ----------
    lengths
        The numbers n.
    error
        ``|rounded - exact| / sum |p_k|``, shape (sums, lengths).
    law
        `residlab.theory.summation.rms_law` of the same sums, in the same units and shape.

    Examples
    --------
    >>> list(SumErrors.__dataclass_fields__)
    ['lengths', 'error', 'law']
    """

    lengths: tuple[int, ...]
    error: FloatArray
    law: FloatArray


def sum_errors(
    terms: Tensor, fmt: Format, order: Order, lengths: Sequence[int], mode: Mode = "nearest", seed: int | None = None
) -> SumErrors:
    """Round sums of the first n terms, for each n, and compare them with float64.

    A sum that overflows has an infinite error. Sums of zeros are left out of both, as NaN.

    Parameters
    ----------
    terms : Tensor, shape (sums, N), float64
    fmt, order, mode, seed
        As for `residlab.precision.summation.summed`.
    lengths
        Numbers of terms, 1 to N.

    Examples
    --------
    >>> from residlab.precision.accumulation import PAIRWISE, RECURSIVE
    >>> from residlab.precision.formats import BF16
    >>> ones = torch.ones(1, 1024).double()
    >>> sum_errors(ones, BF16, RECURSIVE, [256, 1024]).error, sum_errors(ones, BF16, PAIRWISE, [256, 1024]).error
    (array([[0.  , 0.75]]), array([[0., 0.]]))
    """
    errors, laws = [], []
    for n in lengths:
        first = terms[:, :n]
        size = first.abs().sum(-1).numpy()
        size[size == 0] = float("nan")
        difference = (summed(first, fmt, order, mode, seed=seed) - first.sum(-1)).abs().numpy()
        errors.append(torch.from_numpy(difference / size))
        laws.append(torch.from_numpy(rms_law(node_sums(first.numpy(), order.name, order.block), fmt.u) / size))
    return SumErrors(tuple(lengths), torch.stack(errors, -1).numpy(), torch.stack(laws, -1).numpy())


def summary(
    terms: Tensor,
    formats: Sequence[Format],
    ways: Sequence[tuple[Order, Mode]],
    lengths: Sequence[int],
    *,
    seed: int = 0,
) -> NDArray[np.float32]:
    """Return `sum_errors` of all formats and ways of summing, in short, (formats, ways, lengths, 3).

    Over the sums: root mean square and largest of the error, root mean square of the law. NaN are left out.

    Examples
    --------
    >>> from residlab.precision.accumulation import PAIRWISE, RECURSIVE
    >>> from residlab.precision.formats import BF16
    >>> found = summary(torch.ones(1, 1024).double(), [BF16], [(RECURSIVE, "nearest"), (PAIRWISE, "nearest")], [1024])
    >>> found[0, :, 0, 0]  # root mean square errors
    array([0.75, 0.  ], dtype=float32)
    """
    found = np.empty((len(formats), len(ways), len(lengths), 3), dtype=np.float32)
    for i, fmt in enumerate(formats):
        for j, (order, mode) in enumerate(ways):
            errors = sum_errors(terms, fmt, order, lengths, mode, seed if mode == "stochastic" else None)
            found[i, j, :, 0] = np.sqrt(np.nanmean(errors.error**2, axis=0))
            found[i, j, :, 1] = np.nanmax(errors.error, axis=0)
            found[i, j, :, 2] = np.sqrt(np.nanmean(errors.law**2, axis=0))
    return found
