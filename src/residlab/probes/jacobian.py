"""How far the Jacobian of a block is from the identity, by random probes: no dense Jacobian is ever formed.

A block maps the tokens of a sequence, ``T x d`` numbers, to as many. Its Jacobian ``J`` here is the *whole* one, ``T
d`` by ``T d``: with attention an output token depends on other tokens too, and those off-diagonal blocks are part of
how the block differs from doing nothing. ``||J - I||_F / sqrt(T d)`` is 0 for the identity and 1 for the zero map,
whatever ``T`` and ``d``. Its square is the mean over output tokens ``t`` of ``||(J - I)[t, :]||_F**2 / d``, the rows
of one token: so one set of probes gives each token's share, and any choice of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True, eq=False)
class JacobianDeviation:
    """Probes of ``||J - I||_F**2``, of which each is an unbiased estimate.

    Parameters
    ----------
    squares : Tensor, float64, shape (probes, ..., T)
        For each probe ``v`` with independent signs as entries, ``||((J - I) v)[t]||**2 / d``. Its expectation is
        ``||(J - I)[t, :]||_F**2 / d``.

    Examples
    --------
    >>> probes = JacobianDeviation(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))  # two probes, two tokens
    >>> probes.square, probes.tokens(slice(0, 1)).square
    (2.0, 1.5)
    """

    squares: Tensor

    def tokens(self, positions: slice) -> JacobianDeviation:
        """Return the same for some output tokens: all that *they* depend on, their rows of ``J - I``."""
        return JacobianDeviation(self.squares[..., positions])

    @property
    def square(self) -> float:
        """Unbiased estimate of ``||J - I||_F**2 / (T d)``."""
        return float(self.squares.mean())

    @property
    def square_error(self) -> float:
        """Standard error of `square`, from the spread of the probes; NaN with fewer than two."""
        each = self.squares.flatten(1).mean(1)
        return float(each.std() / math.sqrt(len(each))) if len(each) > 1 else math.nan

    @property
    def value(self) -> float:
        """Estimate of ``||J - I||_F / sqrt(T d)``: the root of `square`, hence biased down by O(1/probes)."""
        return math.sqrt(self.square)

    @property
    def error(self) -> float:
        """Standard error of `value`, to first order."""
        return self.square_error / (2 * self.value) if self.square else self.square_error


def jacobian_deviation(
    block: Callable[[Tensor], Tensor], x: Tensor, *, probes: int = 8, generator: torch.Generator | None = None
) -> JacobianDeviation:
    """Estimate ``||J - I||_F / sqrt(T d)`` of a block at given tokens by Hutchinson's method.

    For ``v`` with independent random signs, ``E ||(J - I) v||**2 = ||J - I||_F**2``. The product ``J v`` comes from
    forward-mode differentiation; where an operation of the block has none, from differentiating the backward pass.

    Parameters
    ----------
    block : callable
        Tensor to tensor of the same shape. A block that mixes no sequences, as is usual, may be given several.
    x : Tensor, shape (..., T, d)
        Where the Jacobian is taken.
    probes : int
        How many vectors ``v``; each costs about two evaluations of the block.
    generator : torch.Generator, optional
        On the CPU, for reproducible probes.

    Returns
    -------
    JacobianDeviation

    Raises
    ------
    ValueError
        If ``probes`` is not positive, ``x`` has no axis of tokens, or the block changes the shape.

    Notes
    -----
    Source: Hutchinson 1990 for the estimator; Sun et al. 2025 for the question; chapter 1.

    Examples
    --------
    >>> x = torch.randn(4, 8)
    >>> [round(float(jacobian_deviation(lambda x: factor * x, x).value), 6) for factor in (1.0, 0.0, 3.0)]
    [0.0, 1.0, 2.0]
    """
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}")
    if x.ndim < 2:
        raise ValueError(f"tokens must have shape (..., T, d), got {tuple(x.shape)}")
    x = x.detach().clone()
    signs = (torch.randint(2, (probes, *x.shape), generator=generator) * 2 - 1).to(x)
    try:
        products = _forward_products(block, x, signs)
    except (NotImplementedError, RuntimeError):  # an operation without forward mode; the block's own errors come again
        products = _double_backward_products(block, x, signs)
    squares = [(product.double() - v.double()).square().mean(-1) for product, v in zip(products, signs, strict=True)]
    return JacobianDeviation(torch.stack(squares))


def _check_shape(y: Tensor, x: Tensor) -> None:
    if y.shape != x.shape:
        raise ValueError(f"a block keeps the shape of its tokens: {tuple(x.shape)} became {tuple(y.shape)}")


def _forward_products(block: Callable[[Tensor], Tensor], x: Tensor, vectors: Tensor) -> list[Tensor]:
    products = []
    with torch.no_grad():  # no graph for the parameters' gradients; forward mode does not need it
        for v in vectors:
            y, product = torch.func.jvp(block, (x,), (v,))[:2]
            _check_shape(y, x)
            products.append(product)
    return products


def _double_backward_products(block: Callable[[Tensor], Tensor], x: Tensor, vectors: Tensor) -> list[Tensor]:
    # u -> J^T u is linear: its own derivative, applied to v, is J v.
    with torch.enable_grad():
        x = x.requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # others cannot be differentiated twice
            y = block(x)
        _check_shape(y, x)
        u = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
        return [torch.autograd.grad(pulled, u, v, retain_graph=True)[0].detach() for v in vectors]
