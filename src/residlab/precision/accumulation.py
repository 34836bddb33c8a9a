r"""Sums of exact products, rounded to a format after every addition: what `summation` and `matmul` share.

Terms p_1, ..., p_n become a sum in one of three orders, each of which rounds every term, then every addition:

.. math::
    \text{recursive:} &\quad \hat s_1 = fl(p_1), \quad \hat s_k = fl(\hat s_{k-1} + p_k) \\
    \text{blocked:} &\quad \text{runs of } b \text{ terms recursively, then their sums recursively} \\
    \text{pairwise:} &\quad \text{neighbours, then neighbours of the sums, and so on; an odd one out waits}

"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from residlab.checks import check_counts, check_one_of
from residlab.errors import ResidlabError
from residlab.precision import reference
from residlab.precision.formats import Format, Mode
from residlab.precision.reference import CARRIERS
from residlab.precision.rounding import Backend, is_native, sums_in, uses_compiled
from residlab.theory.summation import depth

OrderName = Literal["recursive", "blocked", "pairwise"]
ACCUMULATING: tuple[Mode, ...] = ("nearest", "stochastic")


@dataclass(frozen=True)
class Order:
    """In which order a sum is taken: `RECURSIVE`, `PAIRWISE` or ``blocked(b)``.

    Attributes
    ----------
    name : {"recursive", "blocked", "pairwise"}
        As above.
    block : int or None
        Terms of a block, >= 1; only for blocked.

    Raises
    ------
    ResidlabError
        If a value is not allowed.

    Examples
    --------
    >>> PAIRWISE.depth(1024), RECURSIVE.depth(1024), Order("blocked", 32).depth(1024)
    (10, 1023, 62)
    """

    name: OrderName
    block: int | None = None

    def __post_init__(self) -> None:
        check_one_of(self, "name", get_args(OrderName))
        if self.name == "blocked":
            check_counts(self, "block")
        elif self.block is not None:
            raise ResidlabError(f"block belongs to order 'blocked', not to {self.name!r}; got {self.block!r}")

    def depth(self, count: int) -> int:
        """Return how many additions a term of a sum of ``count`` terms goes through at most.

        n - 1 recursively, b + ceil(n / b) - 2 in blocks of b <= n, ceil(log2 n) pairwise: so many roundings if the
        terms are numbers of the format, one more if they are rounded first.

        Examples
        --------
        >>> from residlab.precision.accumulation import PAIRWISE, RECURSIVE, blocked
        >>> [order.depth(1000) for order in (RECURSIVE, blocked(32), PAIRWISE)]
        [999, 62, 10]
        """
        return depth(self.name, count, self.block)

    def run(self, count: int) -> int:
        """Return how many of ``count`` terms are added in a run before their sum joins others; 0: pairwise."""
        if self.name == "pairwise":
            return 0
        return count if self.block is None else min(self.block, count)


RECURSIVE = Order("recursive")
PAIRWISE = Order("pairwise")


def blocked(block: int) -> Order:
    """Return the order that sums blocks of so many terms, then their sums.

    Examples
    --------
    >>> blocked(64)
    Order(name='blocked', block=64)
    """
    return Order("blocked", block)


def held(fmt: Format, dtype: torch.dtype) -> Format:
    """Return a format with the exponents of what holds its numbers, where it has none of its own.

    Examples
    --------
    >>> from residlab.precision.formats import Format
    >>> unbounded = Format.of(t=8)
    >>> unbounded.largest, held(unbounded, torch.float32).emax
    (inf, 127)
    """
    own = CARRIERS[dtype].format
    return fmt if fmt.bounded else replace(fmt, emin=own.emin, emax=own.emax)


def accumulates_in(fmt: Format, dtype: torch.dtype, mode: Mode) -> bool:
    """Return whether sums in a carrier can be rounded once; the format is `held` by it.

    Stochastic rounding takes float64, where what the carrier itself rounds off is far below the random bits.

    Examples
    --------
    >>> from residlab.precision.formats import FP16
    >>> accumulates_in(FP16, torch.float32, "nearest"), accumulates_in(FP16, torch.float32, "stochastic")
    (True, False)
    """
    if mode == "stochastic" and dtype != torch.float64:
        return False
    return fmt.within(CARRIERS[dtype].format) and (is_native(fmt, dtype, mode) or sums_in(fmt, dtype))


def check_accumulation(fmt: Format, mode: Mode) -> None:
    """Raise ResidlabError unless float64 can carry sums in a format, and the mode is nearest or stochastic.

    Examples
    --------
    >>> from residlab.precision.formats import FP32
    >>> check_accumulation(FP32, "nearest")
    >>> check_accumulation(FP32, "up")
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: sums are rounded in mode nearest or stochastic; got 'up'
    """
    if mode not in ACCUMULATING:
        raise ResidlabError(f"sums are rounded in mode {' or '.join(ACCUMULATING)}; got {mode!r}")
    if not accumulates_in(held(fmt, torch.float64), torch.float64, mode):
        raise ResidlabError(f"sums need t <= 51, or fp64 in mode nearest; got {fmt.name} (t = {fmt.t}, mode {mode})")


def accumulated(a: Tensor, b: Tensor, fmt: Format, order: Order, mode: Mode, key: int, backend: Backend) -> Tensor:
    """Return the sums over k of ``a[i, k] * b[k, j]``, of which the carrier holds each product.

    Random bits of stochastic rounding are counted: entry (i, j) owns 2K numbers, of which number k belongs to the
    rounding that takes in term k, and those from K on to the sums of sums, in turn.

    Parameters
    ----------
    a, b : Tensor
        Shapes (m, K) and (K, n), of one carrier's dtype for which `accumulates_in` holds.
    fmt : Format
        What is rounded to.
    order, mode, backend
        See `Order`, `residlab.precision.rounding`.
    key : int
        From `residlab.precision.rounding.key_of`.

    Returns
    -------
    Tensor, shape (m, n)

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> ones = torch.ones(1, 300)
    >>> accumulated(ones, ones.T, BF16, RECURSIVE, "nearest", key=0, backend="reference").item()  # it ends at 1/u
    256.0
    """
    (rows, inner), columns = a.shape, b.shape[1]
    if min(rows, inner, columns) == 0:
        return a.new_zeros(rows, columns)
    run = order.run(inner)
    native = is_native(fmt, a.dtype, mode)
    if uses_compiled(backend, a.device):
        from residlab.precision import compiled

        a, b = a.resolve_neg().contiguous(), b.resolve_neg().contiguous()
        return compiled.product(a, b, fmt, mode, key, block=run, native=native)
    step = _Step(a, b, fmt, mode, key, native)
    return step.blocked(run) if run else step.pairwise()


class _Step:
    """The roundings of a product, in eager torch, a (rows, columns) tensor at a time."""

    def __init__(self, a: Tensor, b: Tensor, fmt: Format, mode: Mode, key: int, native: bool) -> None:
        self.a, self.b, self.fmt, self.mode, self.key, self.native = a, b, fmt, mode, key, native
        self.inner = a.shape[1]
        entries = torch.arange(a.shape[0] * b.shape[1], device=a.device).reshape(a.shape[0], b.shape[1])
        self.first = entries * (2 * self.inner)

    def product(self, k: int) -> Tensor:
        return self.a[:, k, None] * self.b[k]

    def rounded(self, x: Tensor, number: int) -> Tensor:
        if self.native:
            return x
        random = reference.random_bits(self.key, self.first + number) if self.mode == "stochastic" else None
        return reference.rounded(x, self.fmt, self.mode, random)

    def sum(self, x: Tensor, y: Tensor, number: int) -> Tensor:
        return x + y if self.native else self.rounded(reference.odd_sum(x, y, self.mode), number)

    def blocked(self, run: int) -> Tensor:
        total: Tensor | None = None
        merged = self.inner
        for start in range(0, self.inner, run):
            part = self.rounded(self.product(start), start)
            for k in range(start + 1, min(start + run, self.inner)):
                part = self.sum(part, self.product(k), k)
            if total is None:
                total = part
            else:
                total = self.sum(total, part, merged)
                merged += 1
        assert total is not None
        return total

    def pairwise(self) -> Tensor:
        stack: list[Tensor] = []  # sums of 2^i terms, of falling i: a binary counter
        merged = self.inner

        def merge() -> None:
            nonlocal merged
            right = stack.pop()
            stack.append(self.sum(stack.pop(), right, merged))
            merged += 1

        for k in range(self.inner):
            stack.append(self.rounded(self.product(k), k))
            full = k + 1
            while full % 2 == 0:
                merge()
                full //= 2
        while len(stack) > 1:
            merge()
        return stack[0]
