"""The four precisions of an inference: what is multiplied, what sums, what computes functions, what holds the stream.

Source: Budzinskiy et al. (2025), arXiv 2503.10251, for the model with four roles.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import RECURSIVE, Order
from residlab.precision.formats import BF16, FORMATS, FP16, FP32, FP64, Format, Mode
from residlab.precision.matmul import matmul
from residlab.precision.rounding import Backend, Seed, rounded

_LETTERS = {"q": "operands", "a": "accumulator", "w": "functions", "r": "stream"}


@dataclass(frozen=True)
class Roles:
    r"""A format for each role, and the order of sums.

    Attributes
    ----------
    operands : Format
        :math:`u_q`: both factors of matrix products are rounded to it.
    accumulator : Format
        :math:`u_a`: every addition of a matrix product is rounded to it.
    functions : Format
        :math:`u_w`: every operation of norms, softmax, rotary positions and activation functions is rounded to it.
    stream : Format
        :math:`u_r`: the residual stream is rounded to it whenever a branch is added.
    order : Order
        Of all sums.

    Raises
    ------
    ResidlabError
        If `FP64` is only one of operands and accumulator.

    Examples
    --------
    >>> from residlab.precision.roles import Roles
    >>> Roles.named("q=bf16 a=fp32 w=fp32 r=bf16") == Roles.named("bf16 products")
    True
    """

    operands: Format
    accumulator: Format
    functions: Format
    stream: Format
    order: Order = RECURSIVE

    def __post_init__(self) -> None:
        if (self.operands == FP64) != (self.accumulator == FP64):
            raise ResidlabError(
                "fp64 is for both operands and accumulator or for none, since their products need 106 bits; "
                f"got {self.operands.name} and {self.accumulator.name}"
            )

    @classmethod
    def all(cls, fmt: Format, order: Order = RECURSIVE) -> Roles:
        """Return one format for everything."""
        return cls(fmt, fmt, fmt, fmt, order)

    @classmethod
    def named(cls, name: str, order: Order = RECURSIVE) -> Roles:
        """Return the roles of a name.

        ``"bf16"`` or another format: all equal. ``"q=bf16 a=fp32 w=fp32 r=bf16"``: each by itself. One of `PRACTICE`.

        Raises
        ------
        ResidlabError
            If it is none of these.
        """
        if name in PRACTICE:
            operands, accumulator, functions, stream = PRACTICE[name]
            return cls(operands, accumulator, functions, stream, order)
        if name in FORMATS:
            return cls.all(FORMATS[name], order)
        parts = dict(part.partition("=")[::2] for part in name.split())
        if set(parts) == set(_LETTERS) and set(parts.values()) <= set(FORMATS) and len(name.split()) == len(_LETTERS):
            return cls(**{_LETTERS[letter]: FORMATS[value] for letter, value in parts.items()}, order=order)
        raise ResidlabError(
            f"roles are named by a format ({', '.join(FORMATS)}), as q=bf16 a=fp32 w=fp32 r=bf16, or "
            f"{', '.join(PRACTICE)}; got {name!r}"
        )

    def __str__(self) -> str:
        """Return the formats as `named` reads them."""
        formats = {field.name: getattr(self, field.name) for field in fields(self)}
        return " ".join(f"{letter}={formats[name].name}" for letter, name in _LETTERS.items())


PRACTICE: dict[str, tuple[Format, Format, Format, Format]] = {
    "bf16 products": (BF16, FP32, FP32, BF16),
    "fp16 products": (FP16, FP32, FP32, FP16),
    "bf16 products, fp32 stream": (BF16, FP32, FP32, FP32),
}
"""What hardware does: products of 16-bit numbers summed in fp32, functions in fp32, the stream in 16 bits or in 32."""


def product(
    x: Tensor, weight: Tensor, roles: Roles, *, mode: Mode = "nearest", seed: Seed = None, backend: Backend = "auto"
) -> Tensor:
    """Return ``x @ weight`` in (u_q, u_a): `residlab.precision.matmul.matmul` in the narrowest dtype that holds both.

    In float64 itself it is torch's product, and the order of sums torch's.

    Parameters
    ----------
    x, weight : Tensor, shapes (..., m, k) and (k, n) or (..., k, n)
        float32 or float64, each in a dtype of its own.
    roles, mode, seed, backend
        As for `matmul`.

    Returns
    -------
    Tensor, shape (..., m, n), float64

    Examples
    --------
    >>> x, weight = torch.full((1, 300), 1.0), torch.full((300, 1), 1.0)
    >>> [product(x, weight, Roles.named(name)).item() for name in ("bf16", "bf16 products")]  # the accumulator's format
    [256.0, 300.0]
    """
    q, a = roles.operands, roles.accumulator
    if q == FP64:
        return x.detach().double() @ weight.detach().double()
    short = q.bounded and a.bounded and q.within(FP32) and a.within(FP32)
    dtype = torch.float32 if short else torch.float64

    def factor(each: Tensor) -> Tensor:
        # float32 holds numbers of u_q; a float64 entry must not be rounded to float32 before it is one.
        narrower = each.dtype == torch.float64 and short
        return (rounded(each, q, backend=backend) if narrower else each.detach()).to(dtype)

    return matmul(
        factor(x),
        factor(weight),
        operands=q,
        accumulator=a,
        order=roles.order,
        mode=mode,
        seed=seed,
        backend=backend,
    ).double()
