"""The public operators: arguments checked once, then handed to the backend that was asked for."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from . import reference
from .reference import TokenStatistic

__all__ = [
    "BACKENDS",
    "Backend",
    "TokenStatistic",
    "add_rms_norm",
    "bhyt_approximate",
    "bhyt_exact",
    "dyt",
    "rms_norm",
]

Backend = Literal["auto", "reference", "compiled", "triton"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def rms_norm(x: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, *, backend: Backend = "auto") -> Tensor:
    """Divide each token by its root mean square: ``gamma * x / sqrt(mean x^2 + eps)``.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Tokens, of any floating-point dtype; the mean is taken over the last axis, in float32 at least.
    gamma : Tensor of shape (d,), or None
        Gain.
    eps : float
        Added to the second moment, >= 0.
    backend : {"auto", "reference", "compiled", "triton"}
        See `residlab.kernels`.

    Returns
    -------
    Tensor, shape and dtype of ``x``

    Raises
    ------
    ValueError
        For an unknown backend, a shape that does not fit, or ``eps < 0``.
    TypeError
        If ``x`` is not of a floating-point dtype.

    References
    ----------
    Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019 (arXiv 1910.07467).

    Examples
    --------
    >>> rms_norm(torch.tensor([3.0, 4, 0, 0]), eps=0.0)
    tensor([1.2000, 1.6000, 0.0000, 0.0000])
    >>> rms_norm(torch.tensor([300.0, 400, 0, 0], dtype=torch.float16))  # squares are taken in float32
    tensor([1.2002, 1.5996, 0.0000, 0.0000], dtype=torch.float16)
    """
    _check(x, eps=eps, gamma=gamma)
    return _choose(backend, x).rms_norm(x, gamma, eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, gamma: Tensor | None = None, eps: float = 1e-6, *, backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Add a branch to the stream and normalise the sum: ``z = x + residual``, ``y = rms_norm(z, gamma, eps)``.

    Parameters
    ----------
    x, residual : Tensor, shape (..., d)
        The stream and what a branch adds to it. The sum is rounded to its dtype (by torch's promotion) before use.
    gamma, eps, backend
        As in `rms_norm`.

    Returns
    -------
    y : Tensor, shape and dtype of ``x``
    z : Tensor, shape of ``x``

    Raises
    ------
    ValueError, TypeError
        As in `rms_norm`; also if ``residual`` has another shape than ``x``.

    Examples
    --------
    >>> y, z = add_rms_norm(torch.tensor([3.0, 0, 0, 0]), torch.tensor([0.0, 4, 0, 0]), eps=0.0)
    >>> y, z
    (tensor([1.2000, 1.6000, 0.0000, 0.0000]), tensor([3., 4., 0., 0.]))
    """
    _check(x, eps=eps, gamma=gamma)
    _check_residual(x, residual)
    return _choose(backend, x).add_rms_norm(x, residual, gamma, eps)


def dyt(
    x: Tensor,
    alpha: Tensor | float,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    backend: Backend = "auto",
) -> Tensor:
    """Dynamic tanh, which measures nothing of the token: ``gamma * tanh(alpha x) + beta``.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Tokens, of any floating-point dtype; computed in float32 at least.
    alpha : Tensor of shape (), or float
        Input scale. A float, or a tensor that requires no gradient, is fixed.
    gamma, beta : Tensor of shape (d,), or None
        Gain and bias.
    backend : {"auto", "reference", "compiled", "triton"}
        See `residlab.kernels`.

    Returns
    -------
    Tensor, shape and dtype of ``x``

    Raises
    ------
    ValueError
        For an unknown backend or a shape that does not fit.
    TypeError
        If ``x`` is not of a floating-point dtype.

    References
    ----------
    Zhu et al., Transformers without Normalization, CVPR 2025 (arXiv 2503.10622).

    Examples
    --------
    >>> dyt(torch.tensor([-100.0, 0, 1]), alpha=0.5)
    tensor([-1.0000,  0.0000,  0.4621])
    """
    _check(x, gamma=gamma, beta=beta)
    _check_scalar("alpha", alpha)
    return _choose(backend, x).dyt(x, alpha, gamma, beta)


def bhyt_exact(
    x: Tensor,
    gamma: Tensor | None,
    lam: Tensor | float,
    *,
    kappa: float = 10.0,
    eps: float = 1e-6,
    centred: bool = False,
    backend: Backend = "auto",
) -> tuple[Tensor, TokenStatistic]:
    """Bounded hyperbolic tanh with the measured statistic of each token (BHyT*, and the first site of BHyT).

    Mean-free, ``r2 = mean x^2``: ``y = gamma * tanh(lam x / (kappa sqrt(r2 + eps)))``. Centred, with mean ``mu`` and
    population variance ``s2``: ``y = gamma * tanh(lam x / (kappa sqrt(s2 + eps) + |mu|))``.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Tokens, of any floating-point dtype; statistics over the last axis, in float32 at least.
    gamma : Tensor of shape (d,), or None
        Gain.
    lam : Tensor of shape (), or float
        Input bound. A float, or a tensor that requires no gradient, is fixed.
    kappa : float
        Chebyshev's constant ``1 / sqrt(1 - p)``, > 0.
    eps : float
        Added to the second moment or variance, >= 0.
    centred : bool
        Whether the mean is measured.
    backend : {"auto", "reference", "compiled", "triton"}
        See `residlab.kernels`.

    Returns
    -------
    y : Tensor, shape and dtype of ``x``
    statistic : TokenStatistic
        Spread and mean, shape (..., 1), float32 at least, differentiable: what `bhyt_approximate` takes.

    Raises
    ------
    ValueError
        For an unknown backend, a shape that does not fit, ``kappa <= 0`` or ``eps < 0``.
    TypeError
        If ``x`` is not of a floating-point dtype.

    References
    ----------
    arXiv 2601.09719, the exact variant; the mean-free form is that of the authors' code.

    Examples
    --------
    >>> y, statistic = bhyt_exact(torch.tensor([3.0, 4, 0, 0]), None, 2.0, kappa=10.0, eps=0.0)
    >>> y, statistic.spread  # tanh(0.2 * 1.2), tanh(0.2 * 1.6)
    (tensor([0.2355, 0.3095, 0.0000, 0.0000]), tensor([6.2500]))
    """
    _check(x, kappa=kappa, eps=eps, gamma=gamma)
    _check_scalar("lam", lam)
    return _choose(backend, x).bhyt_exact(x, gamma, lam, kappa, eps, centred)


def bhyt_approximate(
    x: Tensor,
    gamma: Tensor | None,
    lam: Tensor | float,
    statistic: TokenStatistic,
    increment: Tensor | float,
    *,
    kappa: float = 10.0,
    eps: float = 1e-6,
    centred: bool = False,
    residual: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """Bounded hyperbolic tanh that predicts the spread instead of measuring it (the second site of BHyT).

    With ``z = x + residual`` and the statistic of the first site:
    ``y = gamma * tanh(lam z / (kappa sqrt(spread + increment + eps) + |mean|))``, without ``|mean|`` if mean-free.

    Parameters
    ----------
    x : Tensor, shape (..., d)
        Tokens of the stream, of any floating-point dtype.
    gamma, lam, kappa, eps, centred, backend
        As in `bhyt_exact`.
    statistic : TokenStatistic
        Spread, and mean if ``centred``, shape (..., 1).
    increment : Tensor that broadcasts with (..., 1), or float
        What the branch is predicted to add to the spread, >= 0; differentiable if a tensor.
    residual : Tensor of the shape of ``x``, or None
        What the branch adds to the stream. The sum is rounded to its dtype (by torch's promotion) before use.

    Returns
    -------
    y : Tensor, shape and dtype of ``x``
    z : Tensor, shape of ``x``
        The sum; ``x`` itself without ``residual``.

    Raises
    ------
    ValueError
        As in `bhyt_exact`; also if the statistic lacks the mean, or a shape does not fit.
    TypeError
        If ``x`` is not of a floating-point dtype.

    References
    ----------
    arXiv 2601.09719, the block-level variance approximation.

    Examples
    --------
    >>> x, branch = torch.tensor([3.0, 4, 0, 0]), torch.tensor([0.0, 0, 1, -1])
    >>> _, statistic = bhyt_exact(x, None, 2.0, eps=0.0)
    >>> y, z = bhyt_approximate(x, None, 2.0, statistic, increment=0.5, residual=branch, eps=0.0)
    >>> torch.allclose(y, bhyt_exact(x + branch, None, 2.0, eps=0.0)[0])  # the branch did add 0.5
    True
    """
    _check(x, kappa=kappa, eps=eps, gamma=gamma)
    _check_scalar("lam", lam)
    _check_statistic(x, statistic, increment, centred)
    if residual is not None:
        _check_residual(x, residual)
    return _choose(backend, x).bhyt_approximate(x, gamma, lam, statistic, increment, kappa, eps, centred, residual)


class _Operators(Protocol):
    """What each backend module offers, without defaults."""

    def rms_norm(self, x: Tensor, gamma: Tensor | None, eps: float) -> Tensor: ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, gamma: Tensor | None, eps: float) -> tuple[Tensor, Tensor]: ...

    def dyt(self, x: Tensor, alpha: Tensor | float, gamma: Tensor | None, beta: Tensor | None) -> Tensor: ...

    def bhyt_exact(
        self, x: Tensor, gamma: Tensor | None, lam: Tensor | float, kappa: float, eps: float, centred: bool
    ) -> tuple[Tensor, TokenStatistic]: ...

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
    ) -> tuple[Tensor, Tensor]: ...


def _choose(backend: Backend, x: Tensor) -> _Operators:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    # A surrounding torch.compile fuses the formulas with their neighbours; a meta tensor has nothing to compute.
    if backend == "reference" or torch.compiler.is_compiling() or x.device.type == "meta":
        return reference
    if backend == "auto" and not (x.device.type == "cuda" and _takes(x) and _has_triton()):
        return reference
    if backend == "compiled":
        if x.device.type != "cpu":
            raise ValueError(f"backend 'compiled' runs on CPU tensors, x is on {x.device}; use 'auto'")
        from . import compiled

        return compiled.OPERATORS if compiled.available() else reference
    from . import triton

    return triton.OPERATORS


def _takes(x: Tensor) -> bool:
    # What Triton's kernels refuse otherwise.
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and x.shape[-1] <= 1 << 16


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _check(x: Tensor, *, kappa: float = 1.0, eps: float = 0.0, **vectors: Tensor | None) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x must be of a floating-point dtype, got {x.dtype}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., d) with d >= 1, got {tuple(x.shape)}")
    if not kappa > 0:
        raise ValueError(f"kappa must be > 0, got {kappa}")
    if not eps >= 0:
        raise ValueError(f"eps must be >= 0, got {eps}")
    for name, vector in vectors.items():
        if vector is not None and vector.shape != x.shape[-1:]:
            raise ValueError(f"{name} must have shape ({x.shape[-1]},), got {tuple(vector.shape)}")


def _check_scalar(name: str, value: Tensor | float) -> None:
    if isinstance(value, Tensor) and value.ndim != 0:
        raise ValueError(f"{name} must be a float or a tensor of shape (), got shape {tuple(value.shape)}")


def _check_residual(x: Tensor, residual: Tensor) -> None:
    if residual.shape != x.shape:
        raise ValueError(f"residual must have the shape of x, {tuple(x.shape)}, got {tuple(residual.shape)}")


def _check_statistic(x: Tensor, statistic: TokenStatistic, increment: Tensor | float, centred: bool) -> None:
    per_token = (*x.shape[:-1], 1)
    if centred and statistic.mean is None:
        raise ValueError("centred needs the mean of each token: statistic.mean is None")
    for name, value in (("statistic.spread", statistic.spread), ("statistic.mean", statistic.mean)):
        if value is not None and tuple(value.shape) != per_token:
            raise ValueError(f"{name} must have shape {per_token}, got {tuple(value.shape)}")
    if isinstance(increment, Tensor):
        trailing = zip(reversed(increment.shape), reversed(per_token), strict=False)
        if increment.ndim > len(per_token) or any(given not in (1, wanted) for given, wanted in trailing):
            raise ValueError(f"increment must broadcast to shape {per_token}, got {tuple(increment.shape)}")
