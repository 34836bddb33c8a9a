"""The norms as benchmarks see them: arguments, a forward and a full backward, and what must at least be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from residlab import kernels
from residlab.kernels import Backend, TokenStatistic

Pass = Callable[[], object]
Direction = Literal["forward", "forward+backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "forward+backward")


@dataclass(frozen=True)
class Operator:
    """One operator with its work per entry.

    Attributes
    ----------
    function : callable
        Takes the arguments of `Arguments` and a backend, returns tensors of which the first has the shape of ``x``.
    streams : dict
        How many tensors of the size of ``x`` a direction must read or write, at least.
    tanhs : dict
        How often a direction evaluates tanh for each entry; the backward does it again.
    """

    function: Callable[[Arguments, Backend], tuple[Tensor, ...]]
    streams: dict[Direction, int]
    tanhs: dict[Direction, int]


@dataclass(frozen=True)
class Arguments:
    """Tokens with gradients, and all that the operators take beside them."""

    x: Tensor
    residual: Tensor
    gamma: Tensor
    beta: Tensor
    scalar: Tensor
    spread: Tensor
    increment: Tensor
    grad_y: Tensor
    grad_z: Tensor

    @classmethod
    def draw(cls, rows: int, width: int, dtype: torch.dtype, device: str | torch.device = "cpu") -> Arguments:
        """Draw standard normal tokens of shape (rows, width) and parameters around their initial values."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        x, residual, grad_y, grad_z = (normal(rows, width).to(device, dtype) for _ in range(4))
        vectors = (1 + 0.1 * normal(width), 0.1 * normal(width))
        others = (*vectors, torch.tensor(2.0), torch.ones(rows, 1), torch.tensor(0.1))
        gamma, beta, scalar, spread, increment = (value.to(device).requires_grad_() for value in others)
        return cls(
            x.requires_grad_(), residual.requires_grad_(), gamma, beta, scalar, spread, increment, grad_y, grad_z
        )


def _rms_norm(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    return (kernels.rms_norm(a.x, a.gamma, backend=backend),)


def _add_rms_norm(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    return kernels.add_rms_norm(a.x, a.residual, a.gamma, backend=backend)


def _dyt(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    return (kernels.dyt(a.x, a.scalar, a.gamma, a.beta, backend=backend),)


def _bhyt_exact(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    return (kernels.bhyt_exact(a.x, a.gamma, a.scalar, backend=backend)[0],)


def _bhyt_exact_centred(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    return (kernels.bhyt_exact(a.x, a.gamma, a.scalar, centred=True, backend=backend)[0],)


def _bhyt_approximate(a: Arguments, backend: Backend) -> tuple[Tensor, ...]:
    statistic = TokenStatistic(a.spread, None)
    return kernels.bhyt_approximate(
        a.x, a.gamma, a.scalar, statistic, a.increment, residual=a.residual, backend=backend
    )


# Forward: x -> y, or x, residual -> z, y. Backward: x (or z), grad_y (and grad_z) -> grad_x.
_PLAIN: dict[Direction, int] = {"forward": 2, "forward+backward": 5}
_ADDING: dict[Direction, int] = {"forward": 4, "forward+backward": 8}
_NO_TANH: dict[Direction, int] = {"forward": 0, "forward+backward": 0}
_TANH: dict[Direction, int] = {"forward": 1, "forward+backward": 2}

OPERATORS: dict[str, Operator] = {
    "rms_norm": Operator(_rms_norm, _PLAIN, _NO_TANH),
    "add_rms_norm": Operator(_add_rms_norm, _ADDING, _NO_TANH),
    "dyt": Operator(_dyt, _PLAIN, _TANH),
    "bhyt_exact": Operator(_bhyt_exact, _PLAIN, _TANH),
    "bhyt_exact, centred": Operator(_bhyt_exact_centred, _PLAIN, _TANH),
    "bhyt_approximate + residual": Operator(_bhyt_approximate, _ADDING, _TANH),
}


def one_pass(
    function: Callable[[Arguments, Backend], tuple[Tensor, ...]],
    arguments: Arguments,
    direction: Direction,
    backend: Backend,
) -> Pass:
    """Return a function of nothing that runs one direction: forward without gradients, or with all of them."""
    if direction == "forward":

        def forward() -> object:
            with torch.no_grad():
                return function(arguments, backend)

        return forward
    tensors = [value for name, value in vars(arguments).items() if not name.startswith("grad")]

    def both() -> object:
        results = function(arguments, backend)
        grads = [arguments.grad_y, arguments.grad_z][: len(results)]
        return torch.autograd.grad(results, tensors, grads, allow_unused=True)

    return both
