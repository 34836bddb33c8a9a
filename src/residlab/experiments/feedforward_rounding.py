"""Feedforward blocks computed in rounded arithmetic, beside float64 and beside their bounds.

Source: chapter 14; bounds in `residlab.theory.feedforward`, algorithms in `residlab.precision.operations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from residlab.precision.formats import FP64, Format
from residlab.precision.operations import Operations
from residlab.precision.roles import Roles, product
from residlab.theory import feedforward
from residlab.theory.feedforward import Block, Bounded, Precision
from residlab.theory.validation import FloatArray

PARTS: Mapping[str, str] = {
    "all": "everything",
    "products": "matrix products",
    "functions": "functions",
}


def precision_of(roles: Roles) -> Precision:
    """Return the unit roundoffs of four roles; float64 counts as exact."""

    def both(fmt: Format) -> tuple[float, float]:
        exact = fmt == FP64
        return (0.0 if exact else fmt.u), (0.0 if exact or not fmt.bounded else fmt.smallest_subnormal / 2)

    (q, tq), (a, ta), (w, tw), (r, tr) = map(both, (roles.operands, roles.accumulator, roles.functions, roles.stream))
    return Precision(q, a, w, r, tq, ta, tw, tr, roles.functions.largest if roles.functions != FP64 else np.inf)


def computed_block(block: Block, x: FloatArray, roles: Roles, form: Bounded) -> FloatArray:
    """Return what four roles make of a block: (..., d'), stored in u_r.

    As `residlab.models.rounded.Rounded` does it, whose only GELU is by erf: products in (u_q, u_a), activation and
    gate's product in u_w, to which their inputs are rounded first.
    """
    return _after(_arguments(block, x, roles), block, roles, form)


def _arguments(block: Block, x: FloatArray, roles: Roles) -> list[Tensor]:
    """Return a, and b of SwiGLU, in u_a."""
    return [
        product(torch.from_numpy(x), torch.from_numpy(weight).T, roles)
        for weight in (block.first, block.up)
        if weight is not None
    ]


def _after(arguments: list[Tensor], block: Block, roles: Roles, form: Bounded) -> FloatArray:
    """Return the output for the first products' results."""
    w = Operations(roles.functions, roles.order)
    functions = {"silu": w.silu, "erf": w.gelu, "erfc": w.gelu_erfc}
    first, *rest = map(w.store, arguments)
    hidden = functions[form](first)
    for factor in rest:
        hidden = w.multiply(hidden, factor)
    y = product(hidden, torch.from_numpy(block.second).T, roles)
    return np.asarray(Operations(roles.stream).store(y).numpy())


@dataclass(frozen=True)
class BlockErrors:
    """What rounding does to one block at some tokens.

    Attributes
    ----------
    exact : array, shape (tokens, d)
        In float64.
    errors : dict of str to array, shape (tokens, d)
        Signed, with only some of it rounded: the keys of `PARTS`.
    bound, condition : array, shape (tokens, d)
        The rigorous bound with everything rounded, and kappa.
    terms : dict of str to array, shape (tokens, d)
        First-order bounds, by the keys of `residlab.theory.feedforward.TERMS`.
    """

    exact: FloatArray
    errors: Mapping[str, FloatArray]
    bound: FloatArray
    condition: FloatArray
    terms: Mapping[str, FloatArray]

    @property
    def finite(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether all results of the token are finite, (tokens,)."""
        return np.asarray(np.all([np.isfinite(each).all(-1) for each in self.errors.values()], axis=0))

    @property
    def violations(self) -> int:
        """How many outputs of finite tokens are off by more than the bound."""
        slack = 1e-12 * self.condition  # float64's own
        return int((np.abs(self.errors["all"]) > self.bound * (1 + 1e-9) + slack)[self.finite].sum())

    def size(self, part: str) -> FloatArray:
        """Return the 2-norm of a part's error over that of the output, (finite tokens,)."""
        keep = self.finite
        return np.asarray(np.linalg.norm(self.errors[part][keep], axis=-1) / np.linalg.norm(self.exact[keep], axis=-1))


def block_errors(block: Block, x: FloatArray, fmt: Format, accumulator: Format, form: Bounded) -> BlockErrors:
    """Return the errors of a block in a format, sums one by one in another, the whole stored in the first.

    Parameters
    ----------
    block : Block
        float64 weights of any size.
    x : array, shape (tokens, d)
        Numbers of the format.
    fmt, accumulator : Format
        Of operands, functions and the output; of sums.
    form : {"silu", "erf", "erfc"}
    """
    whole = Roles(fmt, accumulator, fmt, fmt)
    exact = block.output(x)
    parts = {
        "all": whole,
        "products": Roles(fmt, accumulator, FP64, FP64),
        "functions": Roles(FP64, FP64, fmt, FP64),
    }
    rounded, unrounded = _arguments(block, x, whole), _arguments(block, x, parts["functions"])
    errors = {
        name: _after(unrounded if name == "functions" else rounded, block, roles, form) - exact
        for name, roles in parts.items()
    }
    precision = precision_of(whole)
    terms = feedforward.first_order_terms(block, x, precision, form)
    into, out = (2 * fmt.u + weight.shape[1] * accumulator.u for weight in (block.first, block.second))
    return BlockErrors(
        exact,
        errors,
        feedforward.rigorous_bound(block, x, precision, form),
        2 * terms["input"] / into + terms["output"] / out,
        terms,
    )
