r"""Elementwise arithmetic in one format: every operation is rounded, once.

Numbers of the format are carried by float64 tensors, in which +, -, \*, / and the square root are computed and then
rounded. Twice rounded is here once rounded: sums are rounded to odd (`residlab.precision.rounding.added`), products of
t <= 26 bits are exact in float64, and quotients and roots of t <= 25 bits cannot come as near to a tie as float64's
rounding goes (Figueroa, 1995; with subnormal results too, whose ties are fewer). exp, log, tanh, erf and erfc
are float64's, good to about one unit of its last place, and then rounded: the correctly rounded result except where it
is that near to a tie, of which no rounding bound notices anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import RECURSIVE, Order, check_accumulation
from residlab.precision.formats import FP64, Format, Mode
from residlab.precision.rounding import Backend, Seed, added, key_of, rounded
from residlab.precision.summation import summed

MOST_QUOTIENT_BITS = 25


class Operations:
    """Arithmetic in a format. Operands are tensors of float64 that broadcast, numbers of the format; so are results.

    Parameters
    ----------
    fmt : Format
        t <= 25, or `FP64`, in which nothing but float64's own rounding happens.
    order : Order
        Of sums.
    mode : {"nearest", "stochastic"}
        How each operation is rounded.
    seed
        Of stochastic rounding, for the first operation; each takes the next.
    backend
        As in `residlab.precision.rounding.rounded`.

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.formats import BF16
    >>> from residlab.precision.operations import Operations
    >>> bf16 = Operations(BF16)
    >>> third = bf16.divide(torch.tensor(1.0).double(), torch.tensor(3.0).double())
    >>> third.item(), bf16.exp(third).item()
    (0.333984375, 1.3984375)
    """

    def __init__(
        self,
        fmt: Format,
        order: Order = RECURSIVE,
        mode: Mode = "nearest",
        seed: Seed = None,
        *,
        backend: Backend = "auto",
    ) -> None:
        check_accumulation(fmt, mode)
        if fmt.t > MOST_QUOTIENT_BITS and fmt != FP64:
            raise ResidlabError(
                f"operations need t <= {MOST_QUOTIENT_BITS}, or fp64 in mode nearest; got {fmt.name} (t = {fmt.t})"
            )
        key_of(mode, seed)
        if isinstance(seed, int):
            seed = torch.Generator().manual_seed(seed)
        self.fmt, self.order, self.mode, self.seed, self.backend = fmt, order, mode, seed, backend

    def store(self, x: Tensor) -> Tensor:
        """Round numbers that need not be of the format; float64 of the same shape."""
        if self.fmt == FP64:
            return x.detach().double()
        return rounded(x.detach().double(), self.fmt, self.mode, seed=self.seed, backend=self.backend)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Return fl(a + b)."""
        if self.fmt == FP64:
            return a + b
        return added(a, b, self.fmt, self.mode, seed=self.seed, backend=self.backend)

    def subtract(self, a: Tensor, b: Tensor) -> Tensor:
        """Return fl(a - b)."""
        return self.add(a, -b)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Return fl(a b)."""
        return self.store(a * b)

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        """Return fl(a / b)."""
        return self.store(a / b)

    def sqrt(self, x: Tensor) -> Tensor:
        """Return fl(sqrt(x))."""
        return self.store(x.sqrt())

    def exp(self, x: Tensor) -> Tensor:
        """Return fl(exp(x))."""
        return self.store(x.exp())

    def log(self, x: Tensor) -> Tensor:
        """Return fl(log(x))."""
        return self.store(x.log())

    def tanh(self, x: Tensor) -> Tensor:
        """Return fl(tanh(x))."""
        return self.store(x.tanh())

    def erf(self, x: Tensor) -> Tensor:
        """Return fl(erf(x))."""
        return self.store(x.erf())

    def erfc(self, x: Tensor) -> Tensor:
        """Return fl(1 - erf(x)), which does not cancel."""
        return self.store(x.erfc())

    def sum(self, x: Tensor) -> Tensor:
        """Return the sums over the last axis, (..., 1), every addition rounded, in the stated order."""
        if self.fmt == FP64:
            return x.sum(-1, keepdim=True)
        return summed(x, self.fmt, self.order, self.mode, seed=self.seed, backend=self.backend)[..., None]

    def mean(self, x: Tensor) -> Tensor:
        """Return the sum over the last axis divided by its length, (..., 1): by the number itself, not rounded."""
        return self.divide(self.sum(x), torch.tensor(float(x.shape[-1]), dtype=torch.float64, device=x.device))

    def constant(self, value: float, like: Tensor) -> Tensor:
        """Return a number of the formula, rounded to the format."""
        return self.store(torch.tensor(value, dtype=torch.float64, device=like.device))

    # --- Functions made of these

    def silu(self, x: Tensor) -> Tensor:
        """Return ``x / (1 + exp(-x))`` in three roundings: a relative error of ``(2 + sigma(-x)) u`` to first order.

        One u is the quotient's, one the sum's, and that of exp counts by the share of ``exp(-x)`` in the sum.
        """
        return self.divide(x, self.add(self.constant(1.0, x), self.exp(-x)))

    def gelu(self, x: Tensor) -> Tensor:
        """Return ``0.5 x (1 + erf(x / sqrt 2))``, which cancels for x << 0: off by a few u|x|, not u|gelu(x)|."""
        inner = self.erf(self.multiply(x, self.constant(0.5**0.5, x)))
        return self.multiply(self.multiply(self.constant(0.5, x), x), self.add(self.constant(1.0, x), inner))

    def gelu_erfc(self, x: Tensor) -> Tensor:
        """Return ``0.5 x erfc(-x / sqrt 2)``, GELU without cancellation: off by (2 + 2x**2)u of itself, x << 0."""
        inner = self.erfc(self.multiply(-x, self.constant(0.5**0.5, x)))
        return self.multiply(self.multiply(self.constant(0.5, x), x), inner)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """Return GPT-2's ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``, each operation rounded."""
        cube = self.multiply(self.multiply(x, x), x)
        inner = self.add(x, self.multiply(self.constant(0.044715, x), cube))
        inner = self.tanh(self.multiply(self.constant((2 / torch.pi) ** 0.5, x), inner))
        return self.multiply(self.multiply(self.constant(0.5, x), x), self.add(self.constant(1.0, x), inner))
