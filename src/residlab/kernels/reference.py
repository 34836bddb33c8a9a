"""The definition of each norm: readable torch formulas that autograd differentiates.

Everything is computed in float32 at least, upcast *before* squaring (float16 overflows at ``|x| = 256``); float64 stays
float64. The output returns to the dtype of ``x``; statistics stay in the dtype they were computed in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .rational_tanh import LONG, SHORT, rational_tanh


class TokenStatistic(NamedTuple):
    """What BHyT measures of each token, float32 at least, differentiable.

    Attributes
    ----------
    spread : Tensor, shape (..., 1)
        Second moment ``mean x^2`` (mean-free) or population variance (centred).
    mean : Tensor of shape (..., 1), or None
        Mean of the token (centred), None (mean-free).

    Examples
    --------
    >>> statistic = TokenStatistic(spread=torch.tensor([[6.25]]), mean=None)  # mean-free
    >>> statistic.spread.shape
    torch.Size([1, 1])
    """

    spread: Tensor
    mean: Tensor | None


def upcast(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype that statistics are computed in: float64 for float64, else float32."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Return ``gamma * x / sqrt(mean x^2 + eps)``."""
    wide = upcast(x)
    return _gain(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps), gamma).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, gamma: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``rms_norm(z)`` and ``z = x + residual``."""
    z = x + residual
    return rms_norm(z, gamma, eps).to(x.dtype), z


def dyt(x: Tensor, alpha: Tensor | float, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """Return ``gamma * tanh(alpha x) + beta``."""
    wide = upcast(x)
    y = _gain(_tanh(_scalar(alpha, wide) * wide, x.dtype), gamma)
    return (y if beta is None else y + beta.to(y.dtype)).to(x.dtype)


def bhyt_exact(
    x: Tensor, gamma: Tensor | None, lam: Tensor | float, kappa: float, eps: float, centred: bool
) -> tuple[Tensor, TokenStatistic]:
    """Return ``gamma * tanh(lam x / (kappa sqrt(spread + eps) + |mean|))`` and the measured spread and mean."""
    wide = upcast(x)
    if centred:
        mean = wide.mean(-1, keepdim=True)
        statistic = TokenStatistic((wide - mean).square().mean(-1, keepdim=True), mean)
    else:
        statistic = TokenStatistic(wide.square().mean(-1, keepdim=True), None)
    return _bounded(wide, gamma, lam, statistic, kappa, eps, x.dtype).to(x.dtype), statistic


def bhyt_approximate(
    x: Tensor,
    gamma: Tensor | None,
    lam: Tensor | float,
    statistic: TokenStatistic,
    increment: Tensor | float,
    kappa: float,
    eps: float,
    centred: bool,
    residual: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return BHyT of ``z = x + residual`` with the spread predicted as ``statistic.spread + increment``, and ``z``."""
    z = x if residual is None else x + residual
    wide = upcast(z)
    predicted = TokenStatistic(statistic.spread + increment, statistic.mean if centred else None)
    return _bounded(wide, gamma, lam, predicted, kappa, eps, x.dtype).to(x.dtype), z


def _bounded(
    x: Tensor,
    gamma: Tensor | None,
    lam: Tensor | float,
    statistic: TokenStatistic,
    kappa: float,
    eps: float,
    storage: torch.dtype,
) -> Tensor:
    bound = kappa * torch.sqrt(statistic.spread.to(x.dtype) + eps)
    if statistic.mean is not None:
        bound = bound + statistic.mean.to(x.dtype).abs()
    return _gain(_tanh(x * (_scalar(lam, x) / bound), storage), gamma)


def _tanh(x: Tensor, storage: torch.dtype) -> Tensor:
    # Inside a model that torch.compile compiles for a CPU, arithmetic fuses and vectorises; a call of tanh is slow.
    if x.dtype == torch.float32 and x.device.type == "cpu" and torch.compiler.is_compiling():
        return rational_tanh(x, LONG if storage == torch.float32 else SHORT)
    return torch.tanh(x)


def _gain(x: Tensor, gamma: Tensor | None) -> Tensor:
    return x if gamma is None else x * gamma.to(x.dtype)


def _scalar(value: Tensor | float, like: Tensor) -> Tensor | float:
    return value.to(like.dtype) if isinstance(value, Tensor) else value
