"""What both fused backends share: how arguments become rows, and how gradients return to them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .reference import TokenStatistic


class Norm(IntEnum):
    """The operators as the kernels number them; those that are GIVEN a statistic come last."""

    RMS = 0
    DYT = 1
    MEASURED = 2
    MEASURED_CENTRED = 3
    GIVEN = 4
    GIVEN_CENTRED = 5


Launch = Callable[..., None]
"""``launch(norm, backward=, kappa=, eps=, **tensors)`` runs one operator over all rows of contiguous tensors.

The tensors are named as in ``compiled.cpp``; None is absent, or not wanted.
"""


class FusedOperators(NamedTuple):
    """The operators of `residlab.kernels.reference`, run by a launcher, with one fused pass backward.

    Scalars, gains and statistics are brought to the dtype of the computation, and the predicted spread is added up,
    outside the fused pass, where autograd follows them: so every argument gets its gradient in its own shape and dtype.
    """

    backend: str
    launch: Launch

    def rms_norm(self, x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
        """Fused `reference.rms_norm`."""
        return self._run(Norm.RMS, x, gamma=gamma, eps=eps)[0]

    def add_rms_norm(self, x: Tensor, residual: Tensor, gamma: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
        """Fused `reference.add_rms_norm`."""
        y, z, _ = self._run(Norm.RMS, x, residual, gamma=gamma, eps=eps)
        return y, z

    def dyt(self, x: Tensor, alpha: Tensor | float, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
        """Fused `reference.dyt`."""
        return self._run(Norm.DYT, x, gamma=gamma, beta=beta, scalar=alpha)[0]

    def bhyt_exact(
        self, x: Tensor, gamma: Tensor | None, lam: Tensor | float, kappa: float, eps: float, centred: bool
    ) -> tuple[Tensor, TokenStatistic]:
        """Fused `reference.bhyt_exact`."""
        norm = Norm.MEASURED_CENTRED if centred else Norm.MEASURED
        y, _, statistic = self._run(norm, x, gamma=gamma, scalar=lam, kappa=kappa, eps=eps)
        return y, statistic

    def bhyt_approximate(
        self,
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
        norm = Norm.GIVEN_CENTRED if centred else Norm.GIVEN
        predicted = TokenStatistic(statistic.spread + increment, statistic.mean if centred else None)
        y, z, _ = self._run(norm, x, residual, gamma=gamma, scalar=lam, statistic=predicted, kappa=kappa, eps=eps)
        return y, z

    def _run(
        self,
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
        dtype = x.dtype
        if residual is not None and residual.dtype != dtype:
            x, residual = x + residual, None
        compute = torch.float64 if x.dtype == torch.float64 else torch.float32

        def wide(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(compute)

        y, z, spread, mean = _Fused.apply(  # type: ignore[no-untyped-call]
            self,
            norm,
            kappa,
            eps,
            x,
            residual,
            x.new_ones(x.shape[-1], dtype=compute) if gamma is None else wide(gamma),
            wide(beta),
            None if scalar is None else torch.as_tensor(scalar, dtype=compute, device=x.device),
            None if statistic is None else wide(statistic.spread),
            None if statistic is None else wide(statistic.mean),
        )
        return y.to(dtype), x if residual is None else z, TokenStatistic(spread, mean)


class _Fused(torch.autograd.Function):
    """All operators; returns ``y``, ``z`` (with a residual), and the spread and mean (of those that measure)."""

    @staticmethod
    def forward(
        ctx: Any, operators: FusedOperators, norm: Norm, kappa: float, eps: float, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, residual, gamma, beta, scalar, spread, mean = map(_contiguous, tensors)
        assert x is not None
        assert gamma is not None
        per_token = (*x.shape[:-1], 1)
        if norm in (Norm.RMS, Norm.MEASURED, Norm.MEASURED_CENTRED):
            spread = gamma.new_empty(per_token)
        if norm == Norm.MEASURED_CENTRED:
            mean = gamma.new_empty(per_token)
        y = torch.empty_like(x)
        z = None if residual is None else torch.empty_like(x)
        operators.launch(
            norm,
            backward=False,
            kappa=kappa,
            eps=eps,
            x=x,
            residual=residual,
            gamma=gamma,
            beta=beta,
            scalar=scalar,
            spread=spread,
            mean=mean,
            y=y,
            z=z,
        )
        ctx.set_materialize_grads(False)
        ctx.call = (operators, norm, kappa, eps)
        ctx.save_for_backward(x if z is None else z, gamma, scalar, spread, mean)
        return (y, z, None, None) if norm >= Norm.GIVEN else (y, z, spread, mean)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        operators, norm, kappa, eps = ctx.call
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"backend {operators.backend!r} has no double backward (create_graph=True); use backend='reference'"
            )
        x, gamma, scalar, spread, mean = ctx.saved_tensors
        grad_y, grad_z, grad_measured_spread, grad_measured_mean = map(_contiguous, grads)
        wants = dict(zip(("gamma", "beta", "scalar", "spread", "mean"), ctx.needs_input_grad[6:], strict=True))
        like = {"gamma": gamma, "beta": gamma, "scalar": scalar, "spread": spread, "mean": mean}
        results = {f"grad_{name}": torch.empty_like(like[name]) if wanted else None for name, wanted in wants.items()}
        grad_x = torch.empty_like(x)
        operators.launch(
            norm,
            backward=True,
            kappa=kappa,
            eps=eps,
            x=x,
            gamma=gamma,
            scalar=scalar,
            spread=spread,
            mean=mean,
            grad_y=torch.zeros_like(x) if grad_y is None else grad_y,
            grad_z=grad_z,
            grad_measured_spread=grad_measured_spread,
            grad_measured_mean=grad_measured_mean,
            grad_x=grad_x,
            **results,
        )
        return (None, None, None, None, grad_x, grad_x if ctx.needs_input_grad[5] else None, *results.values())


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous().resolve_neg()
