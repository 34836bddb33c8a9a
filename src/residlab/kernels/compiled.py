"""The operators as fused C++ for CPU tensors: one pass over each token forward, one backward.

Chosen by measurement over functions compiled by torch.compile, which here forbid fused multiply-adds, take two passes
for the sums over tokens that gamma and lambda need, and build each operator, direction and dtype separately. One build
serves all: it happens on the first call, is kept in the cache folder, and needs a C++ compiler; without one a single
notice is given and the eager reference runs. tanh is `residlab.kernels.rational_tanh`, computed again in the backward:
reading it back costs memory and saves little. The sums over tokens are the same for any number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import native, reference
from .native import Norm
from .reference import TokenStatistic

_Gradients = tuple[Tensor | None, ...]


def rms_norm(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """Fused `reference.rms_norm`."""
    if not native.available():
        return reference.rms_norm(x, gamma, eps)
    return _apply(Norm.RMS, x, gamma=gamma, eps=eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, gamma: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Fused `reference.add_rms_norm`."""
    if not native.available():
        return reference.add_rms_norm(x, residual, gamma, eps)
    y, z, _ = _apply(Norm.RMS, x, residual, gamma=gamma, eps=eps)
    return y, z


def dyt(x: Tensor, alpha: Tensor | float, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """Fused `reference.dyt`."""
    if not native.available():
        return reference.dyt(x, alpha, gamma, beta)
    return _apply(Norm.DYT, x, gamma=gamma, beta=beta, scalar=alpha)[0]


def bhyt_exact(
    x: Tensor, gamma: Tensor | None, lam: Tensor | float, kappa: float, eps: float, centred: bool
) -> tuple[Tensor, TokenStatistic]:
    """Fused `reference.bhyt_exact`."""
    if not native.available():
        return reference.bhyt_exact(x, gamma, lam, kappa, eps, centred)
    norm = Norm.MEASURED_CENTRED if centred else Norm.MEASURED
    y, _, statistic = _apply(norm, x, gamma=gamma, scalar=lam, kappa=kappa, eps=eps)
    return y, statistic


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
    """Fused `reference.bhyt_approximate`."""
    if not native.available():
        return reference.bhyt_approximate(x, gamma, lam, statistic, increment, kappa, eps, centred, residual)
    norm = Norm.GIVEN_CENTRED if centred else Norm.GIVEN
    predicted = TokenStatistic(statistic.spread + increment, statistic.mean if centred else None)
    y, z, _ = _apply(norm, x, residual, gamma=gamma, scalar=lam, statistic=predicted, kappa=kappa, eps=eps)
    return y, z


def _apply(
    norm: Norm,
    x: Tensor,
    residual: Tensor | None = None,
    *,
    gamma: Tensor | None,
    beta: Tensor | None = None,
    scalar: Tensor | float | None = None,
    statistic: TokenStatistic | None = None,
    kappa: float = 1.0,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor, TokenStatistic]:
    """Bring all to the dtypes and shapes that the kernels take, in steps that autograd follows; run; undo."""
    dtype = x.dtype
    if residual is not None and residual.dtype != dtype:
        x, residual = x + residual, None
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    gamma = x.new_ones(x.shape[-1], dtype=compute) if gamma is None else gamma.to(compute)
    if scalar is not None:
        scalar = torch.as_tensor(scalar, dtype=compute)
    spread, mean = (None, None) if statistic is None else (_wide(statistic.spread, compute), statistic.mean)
    y, z, spread, mean = _Fused.apply(  # type: ignore[no-untyped-call]
        norm,
        kappa,
        eps,
        x,
        residual,
        gamma,
        None if beta is None else beta.to(compute),
        scalar,
        spread,
        None if mean is None else _wide(mean, compute),
    )
    return y.to(dtype), x if residual is None else z, TokenStatistic(spread, mean)


def _wide(statistic: Tensor, compute: torch.dtype) -> Tensor:
    return statistic.to(compute).contiguous()


class _Fused(torch.autograd.Function):
    """All operators; returns ``y``, ``z`` (with a residual), and the spread and mean (of those that measure)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        norm: Norm,
        kappa: float,
        eps: float,
        x: Tensor,
        residual: Tensor | None,
        gamma: Tensor,
        beta: Tensor | None,
        scalar: Tensor | None,
        spread: Tensor | None,
        mean: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        gamma = gamma.contiguous()
        beta = None if beta is None else beta.contiguous()
        given = norm in (Norm.GIVEN, Norm.GIVEN_CENTRED)
        if not given:
            per_token = (*x.shape[:-1], 1)
            spread = None if norm == Norm.DYT else gamma.new_empty(per_token)
            mean = gamma.new_empty(per_token) if norm == Norm.MEASURED_CENTRED else None
        y = torch.empty_like(x)
        z = None if residual is None else torch.empty_like(x)
        tensors = {"x": x, "gamma": gamma, "scalar": scalar, "spread": spread, "mean": mean}
        native.call(norm, backward=False, kappa=kappa, eps=eps, residual=residual, beta=beta, y=y, z=z, **tensors)
        ctx.set_materialize_grads(False)
        ctx.call = (norm, kappa, eps)
        ctx.save_for_backward(x if z is None else z, gamma, scalar, spread, mean)
        return (y, z, None, None) if given else (y, z, spread, mean)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad_y: Tensor | None,
        grad_z: Tensor | None,
        grad_measured_spread: Tensor | None,
        grad_measured_mean: Tensor | None,
    ) -> _Gradients:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the compiled norms have no double backward (create_graph=True); use backend='reference'"
            )
        norm, kappa, eps = ctx.call
        x, gamma, scalar, spread, mean = ctx.saved_tensors
        _, _, _, _, wants_residual, wants_gamma, wants_beta, wants_scalar, wants_spread, wants_mean = ctx.needs_input_grad
        given = norm in (Norm.GIVEN, Norm.GIVEN_CENTRED)

        def contiguous(grad: Tensor | None) -> Tensor | None:
            return None if grad is None else grad.contiguous()

        results = {
            "grad_x": torch.empty_like(x),
            "grad_gamma": torch.empty_like(gamma) if wants_gamma else None,
            "grad_beta": torch.empty_like(gamma) if wants_beta else None,
            "grad_scalar": torch.empty_like(scalar) if wants_scalar else None,
            "grad_spread": torch.empty_like(spread) if given and wants_spread else None,
            "grad_mean": torch.empty_like(mean) if given and wants_mean else None,
        }
        native.call(
            norm,
            backward=True,
            kappa=kappa,
            eps=eps,
            x=x,
            gamma=gamma,
            scalar=scalar,
            spread=spread,
            mean=mean,
            grad_y=torch.zeros_like(x) if grad_y is None else grad_y.contiguous(),
            grad_z=contiguous(grad_z),
            grad_measured_spread=contiguous(grad_measured_spread),
            grad_measured_mean=contiguous(grad_measured_mean),
            **results,
        )
        grad_x, *others = results.values()
        return (None, None, None, grad_x, grad_x if wants_residual else None, *others)
