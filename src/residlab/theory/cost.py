"""What normalising costs on paper: operations, evaluations of tanh and bytes of each norm, and how much they matter.

Counts are those of one forward. An operation is one addition, multiplication, division or root; tanh is counted by
itself (`TANH_OPERATIONS` prices it). A pass is one tensor of the size of the stream that memory gives or takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

TANH_OPERATIONS = 20
"""Operations of one tanh as the library's kernels evaluate it in float32 (`residlab.kernels.rational_tanh`)."""

BLOCK_MATRICES = 12
"""Entries of a block's matrices over width**2: four of attention, three of 8/3 in a SwiGLU layer."""

BLOCK_ACTIVATIONS = 19
"""What the matrix products of a block read and write for a token, over the width: 2 each in attention, 11 in SwiGLU."""


@dataclass(frozen=True)
class Work:
    """What one application of a norm, or all of a block, asks for.

    Attributes
    ----------
    entry, token
        Operations for each entry, and for each token beside them.
    tanhs
        Evaluations of tanh for each entry.
    fused, eager
        Passes: in one fused kernel, and as separate operators that each read and write memory.

    Examples
    --------
    >>> work = Work(entry=4, token=3, tanhs=1, fused=2, eager=6)
    >>> work.operations(width=1000)  # 4 * 1000 + 3
    4003
    """

    entry: int
    token: int
    tanhs: int
    fused: int
    eager: int

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(_fields(self), _fields(other), strict=True)))

    def __mul__(self, times: int) -> Work:
        return Work(*(times * a for a in _fields(self)))

    def operations(self, width: int) -> int:
        """Return the operations for a token, tanh left out."""
        return self.entry * width + self.token

    def priced(self, width: int) -> int:
        """Return the operations for a token, each tanh priced at `TANH_OPERATIONS`."""
        return self.operations(width) + TANH_OPERATIONS * self.tanhs * width


def _fields(work: Work) -> tuple[int, ...]:
    return work.entry, work.token, work.tanhs, work.fused, work.eager


SITE: Mapping[str, Work] = MappingProxyType(
    {
        "layernorm": Work(entry=7, token=3, tanhs=0, fused=2, eager=2),
        "rmsnorm": Work(entry=4, token=3, tanhs=0, fused=2, eager=7),
        "dyt": Work(entry=2, token=0, tanhs=1, fused=2, eager=6),
        "bhyt*": Work(entry=4, token=4, tanhs=1, fused=2, eager=9),
        "bhyt, second site": Work(entry=2, token=5, tanhs=1, fused=2, eager=6),
    }
)
"""One application. Torch's LayerNorm is a fused kernel, eager or not; the other eager counts are those of the formulas
of `residlab.kernels.reference` in float32. The scalar that DyT and BHyT learn, and the gain, are read but not counted.
"""

BLOCK: Mapping[str, Work] = MappingProxyType(
    {
        "layernorm": SITE["layernorm"] * 2,
        "rmsnorm": SITE["rmsnorm"] * 2,
        "lns": SITE["rmsnorm"] * 2,
        "peri-ln": SITE["rmsnorm"] * 4,
        "dyt": SITE["dyt"] * 2,
        "bhyt*": SITE["bhyt*"] * 2,
        "bhyt": SITE["bhyt*"] + SITE["bhyt, second site"],
    }
)
"""All norms of a block: two, or four for Peri-LN. The factor of layer-norm scaling is part of the gain."""


def matrix_time(width: ArrayLike, tokens: ArrayLike, balance: ArrayLike, itemsize: int = 2) -> Array:
    """Return the least time of a block's matrix products, in bytes of memory traffic: divide by the bandwidth.

    ``max(2 * 12 n d**2 / balance, itemsize * (12 d**2 + 19 n d))``: the roofline of the block as a whole. Attention's
    scores, activations and everything else are left out.

    Parameters
    ----------
    width, tokens
        d, and the tokens that pass at once, n.
    balance
        Operations that the machine does while it moves a byte.
    itemsize
        Bytes of a number.

    Examples
    --------
    >>> traffic = float(matrix_time(width=1024, tokens=1, balance=300))
    >>> round(traffic / (2 * 12 * 1024**2), 3)  # one token: the time is that of reading the weights, 2 bytes each
    1.002
    """
    d, n, i = (np.asarray(value, dtype=float) for value in (width, tokens, balance))
    compute = 2 * BLOCK_MATRICES * n * d**2 / i
    return np.asarray(np.maximum(compute, itemsize * (BLOCK_MATRICES * d**2 + BLOCK_ACTIVATIONS * n * d)))


def norm_time(
    work: Work, width: ArrayLike, tokens: ArrayLike, balance: ArrayLike, itemsize: int = 2, *, fused: bool = True
) -> Array:
    """Return the least time of norms, in the unit of `matrix_time`.

    The larger of their bytes and of their operations, tanh priced; ``fused`` says which passes count.

    Examples
    --------
    >>> work = Work(entry=4, token=3, tanhs=0, fused=2, eager=6)
    >>> float(norm_time(work, 1024, 1, balance=300)), float(norm_time(work, 1024, 1, balance=300, fused=False))
    (4096.0, 12288.0)
    """
    d, n, i = (np.asarray(value, dtype=float) for value in (width, tokens, balance))
    passes = work.fused if fused else work.eager
    priced = work.entry + TANH_OPERATIONS * work.tanhs
    return np.asarray(n * d * np.maximum(itemsize * passes, priced / i))


def norm_share(work: Work, width: ArrayLike, tokens: ArrayLike, balance: ArrayLike, **how: Any) -> Array:
    """Return the share of a forward that norms take if they and the matrix products are all there is.

    What else a model does makes the true share smaller, norms that miss their roofline larger. Arguments as of
    `norm_time`.

    Examples
    --------
    >>> work = Work(entry=8, token=6, tanhs=0, fused=4, eager=12)
    >>> norm_share(work, width=[256, 4096], tokens=4096, balance=300).round(4)
    array([0.1684, 0.0238])
    """
    norms = norm_time(work, width, tokens, balance, **how)
    return np.asarray(norms / (norms + matrix_time(width, tokens, balance, how.get("itemsize", 2))))


def most_speedup(share: ArrayLike) -> Array:
    """Return Amdahl's bound ``1/(1 - share)``: throughput, relative to now, if that part took no time at all.

    Source: Amdahl, AFIPS 1967.

    Examples
    --------
    >>> most_speedup([0.1, 0.5]).round(3)
    array([1.111, 2.   ])
    """
    return np.asarray(1 / (1 - np.asarray(share, dtype=float)))


def share_from_doubling(ratio: ArrayLike) -> Array:
    """Return the share of norms in a model, from how much slower one with twice as many norms is.

    If ``ratio`` is the throughput of the model over that of the same with every norm of its blocks doubled, as Peri-LN
    does to RMSNorm, then those norms take ``ratio - 1`` of the model's time.

    Examples
    --------
    >>> float(share_from_doubling(1.25))
    0.25
    """
    return np.asarray(ratio, dtype=float) - 1


def statistics_from_ratios(approximate_over_exact: float, approximate_over_rms: float) -> dict[str, float]:
    """Return what two throughput ratios say of the parts of a block's norms, in units of the approximate model's time.

    BHyT measures one statistic a block, BHyT* and RMSNorm two; both BHyT have two tanh. If a statistic costs the same
    wherever it stands: time(BHyT*) - time(BHyT) = one statistic, time(BHyT*) - time(RMSNorm) = two tanh, and what is
    left of RMSNorm without its two statistics is everything else.

    Parameters
    ----------
    approximate_over_exact
        Throughput of BHyT over that of BHyT*.
    approximate_over_rms
        Throughput of BHyT over that of RMSNorm.

    Returns
    -------
    dict
        ``statistic``, ``tanhs`` and ``rest`` over the time of BHyT; ``share``, the two statistics over RMSNorm's time.

    Examples
    --------
    >>> found = statistics_from_ratios(1.1, 1.05)
    >>> {name: round(value, 2) for name, value in found.items()}
    {'statistic': 0.1, 'tanhs': 0.05, 'rest': 0.85, 'share': 0.19}
    """
    statistic = approximate_over_exact - 1
    tanhs = approximate_over_exact - approximate_over_rms
    return {
        "statistic": statistic,
        "tanhs": tanhs,
        "rest": approximate_over_rms - 2 * statistic,
        "share": 2 * statistic / approximate_over_rms,
    }
