"""Normalizations as an algorithm of rounded operations: what `residlab.kernels` defines, step by step, in one format.

Each takes `residlab.precision.operations.Operations` first, then tokens (..., d), and rounds what it is given to the
format before it starts. Squares overflow where those of the format do: fp16 gives infinity from ``|x| = 256`` on, and
then a token of zeros, as hardware does that computes the statistic in it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from residlab.precision.operations import Operations


class Statistic(NamedTuple):
    """What BHyT measures of each token, (..., 1) each: mean square or variance, and the mean if it is centred.

    Examples
    --------
    >>> Statistic(spread=torch.ones(2, 1), mean=None)._fields
    ('spread', 'mean')
    """

    spread: Tensor
    mean: Tensor | None


def layer_norm(ops: Operations, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float) -> Tensor:
    """Return ``gamma (x - mean) / sqrt(mean((x - mean)^2) + eps) + beta``; the two-pass variance.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.operations import Operations
    >>> x = torch.tensor([[1001.0, 1002, 1003, 1004]]).double()  # 1000, 1000, 1000 and 1004 in bf16
    >>> layer_norm(Operations(BF16), x, None, None, eps=0.0)
    tensor([[-1.4141, -1.4141,  0.0000,  0.0000]], dtype=torch.float64)
    """
    centred = _centred(ops, ops.store(x))[0]
    y = ops.multiply(centred, _reciprocal_root(ops, _mean_square(ops, centred), eps))
    y = _gained(ops, y, gamma)
    return y if beta is None else ops.add(y, ops.store(beta))


def rms_norm(ops: Operations, x: Tensor, gamma: Tensor | None, eps: float, scale: float = 1.0) -> Tensor:
    """Return ``scale gamma x / sqrt(mean(x^2) + eps)``: x times the reciprocal of the root, then the gain.

    Examples
    --------
    >>> from residlab.precision.formats import BF16, FP16
    >>> from residlab.precision.operations import Operations
    >>> x = torch.tensor([[300.0, 400, 0, 0]]).double()
    >>> rms_norm(Operations(BF16), x, None, eps=0.0)
    tensor([[1.2031, 1.6016, 0.0000, 0.0000]], dtype=torch.float64)
    >>> rms_norm(Operations(FP16), x, None, eps=0.0)  # 300**2 is infinite
    tensor([[0., 0., 0., 0.]], dtype=torch.float64)
    """
    x = ops.store(x)
    y = ops.multiply(x, _reciprocal_root(ops, _mean_square(ops, x), eps))
    return _gained(ops, y, gamma if gamma is None or scale == 1 else gamma.double() * scale)


def dyt(ops: Operations, x: Tensor, alpha: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """Return ``gamma tanh(alpha x) + beta``.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.operations import Operations
    >>> dyt(Operations(BF16), torch.tensor([[0.5, 2.0]]).double(), torch.tensor([0.5]), None, None)
    tensor([[0.2451, 0.7617]], dtype=torch.float64)
    """
    y = _gained(ops, ops.tanh(ops.multiply(ops.store(alpha), ops.store(x))), gamma)
    return y if beta is None else ops.add(y, ops.store(beta))


def bhyt_exact(
    ops: Operations, x: Tensor, gamma: Tensor | None, lam: Tensor, kappa: float, eps: float, centred: bool
) -> tuple[Tensor, Statistic]:
    """Return ``gamma tanh(lam x / (kappa sqrt(spread + eps) + |mean|))``, and what was measured, in the format.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.operations import Operations
    >>> x, lam = torch.tensor([[3.0, 4, 0, 0]]).double(), torch.tensor([2.0])
    >>> y, statistic = bhyt_exact(Operations(BF16), x, None, lam, kappa=1.0, eps=0.0, centred=False)
    >>> y, statistic.spread
    (tensor([[0.9844, 0.9961, 0.0000, 0.0000]], dtype=torch.float64), tensor([[6.2500]], dtype=torch.float64))
    """
    x = ops.store(x)
    if centred:
        difference, mean = _centred(ops, x)
        statistic = Statistic(_mean_square(ops, difference), mean)
    else:
        statistic = Statistic(_mean_square(ops, x), None)
    return _bounded(ops, x, gamma, lam, statistic, kappa, eps), statistic


def bhyt_approximate(
    ops: Operations,
    z: Tensor,
    gamma: Tensor | None,
    lam: Tensor,
    statistic: Statistic,
    increment: Tensor,
    kappa: float,
    eps: float,
    centred: bool,
) -> Tensor:
    """Return BHyT of z with the spread predicted as ``statistic.spread + increment``.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.operations import Operations
    >>> z, lam = torch.tensor([[3.0, 4, 1, 0]]).double(), torch.tensor([2.0])
    >>> measured = Statistic(spread=torch.tensor([[6.25]]).double(), mean=None)
    >>> options = {"kappa": 1.0, "eps": 0.0, "centred": False}
    >>> bhyt_approximate(Operations(BF16), z, None, lam, measured, torch.tensor([0.25]).double(), **options)
    tensor([[0.9805, 0.9961, 0.6562, 0.0000]], dtype=torch.float64)
    """
    if centred and statistic.mean is None:
        raise ValueError("centred needs the mean of each token: statistic.mean is None")
    spread = ops.add(ops.store(statistic.spread), ops.store(increment))
    mean = ops.store(statistic.mean) if centred and statistic.mean is not None else None
    return _bounded(ops, ops.store(z), gamma, lam, Statistic(spread, mean), kappa, eps)


def _centred(ops: Operations, x: Tensor) -> tuple[Tensor, Tensor]:
    mean = ops.mean(x)
    return ops.subtract(x, mean), mean


def _mean_square(ops: Operations, x: Tensor) -> Tensor:
    return ops.mean(ops.multiply(x, x))


def _reciprocal_root(ops: Operations, square: Tensor, eps: float) -> Tensor:
    root = ops.sqrt(ops.add(square, ops.constant(eps, square)))
    return ops.divide(torch.ones_like(root), root)


def _bounded(
    ops: Operations, x: Tensor, gamma: Tensor | None, lam: Tensor, statistic: Statistic, kappa: float, eps: float
) -> Tensor:
    bound = ops.sqrt(ops.add(statistic.spread, ops.constant(eps, x)))
    bound = ops.multiply(ops.constant(kappa, x), bound)
    if statistic.mean is not None:
        bound = ops.add(bound, statistic.mean.abs())
    return _gained(ops, ops.tanh(ops.multiply(x, ops.divide(ops.store(lam), bound))), gamma)


def _gained(ops: Operations, x: Tensor, gamma: Tensor | None) -> Tensor:
    return x if gamma is None else ops.multiply(x, ops.store(gamma))
