"""Softmax inside a model: its logits, and what rounding does to each row, beside the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from residlab.errors import ResidlabError
from residlab.precision.accumulation import RECURSIVE
from residlab.precision.formats import Format
from residlab.precision.rounding import rounded
from residlab.precision.softmax import softmax_steps
from residlab.theory import softmax as theory

FloatArray = NDArray[np.float64]
_SOFTMAXES = {torch.softmax, torch.nn.functional.softmax, Tensor.softmax}


class _SoftmaxInputs(TorchFunctionMode):
    def __init__(self, observer: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.observer = observer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SOFTMAXES:
            self.observer((args[0] if args else kwargs["input"]).detach())
        return func(*args, **kwargs)


@contextmanager
def observe_softmax(observer: Callable[[Tensor], None]) -> Iterator[None]:
    """Call ``observer(logits)`` with the input of every softmax that runs inside the block, detached.

    Whatever a module calls: attention that is written out passes masked logits, (..., heads, queries, keys), one layer
    after the other; a fused kernel calls no softmax, and nothing is seen. Masked logits are -inf, or the lowest number
    of their dtype, as the module has it.

    Parameters
    ----------
    observer : callable
        Must not write to the tensor, which shares the model's memory.

    Examples
    --------
    >>> seen = []
    >>> with observe_softmax(seen.append):
    ...     y = torch.softmax(torch.tensor([1.0, 2.0]), -1)
    ...
    >>> seen
    [tensor([1., 2.])]
    """
    with _SoftmaxInputs(observer):
        yield


@dataclass(frozen=True, eq=False)
class RowRounding:
    """Rows of softmax as a format computes them; all of shape (...), one number for each row.

    Attributes
    ----------
    keys : ndarray
        N, visible keys.
    effective : ndarray
        `residlab.theory.softmax.effective_terms` of the rounded exponentials.
    absorption : ndarray
        `residlab.theory.softmax.absorption_bound` of them: bounds how much too small their sum is, relatively.
    absorbed : ndarray
        `residlab.theory.softmax.absorbed_weight` of them.
    sum_error : ndarray
        Relative error of that sum, negative if it is too small.
    sum_bound : ndarray
        Of its magnitude, for the order at hand: `residlab.theory.softmax.sum_enclosure`.
    weight_error, weight_bound : ndarray
        Sum over the keys of the errors of the weights, against the exact softmax of the rounded logits, and its bound
        by `residlab.theory.softmax.enclosure`.
    above : ndarray of bool
        Whether a weight or the sum lies outside its enclosure, or a sum that is too small is so by more than
        ``absorption``.

    Examples
    --------
    >>> list(RowRounding.__dataclass_fields__)
    ['keys', 'effective', 'absorption', 'absorbed', 'sum_error', 'sum_bound', 'weight_error', 'weight_bound', 'above']
    """

    keys: FloatArray
    effective: FloatArray
    absorption: FloatArray
    absorbed: FloatArray
    sum_error: FloatArray
    sum_bound: FloatArray
    weight_error: FloatArray
    weight_bound: FloatArray
    above: NDArray[np.bool_]

    def __getitem__(self, rows: Any) -> RowRounding:
        """Return some of the rows."""
        return RowRounding(*(value[rows] for value in vars(self).values()))


def row_rounding(logits: Tensor, fmt: Format, *, mask: Tensor | None = None, last_first: bool = False) -> RowRounding:
    """Compute softmax over the last axis in a format, recursive sums, and compare it with what theory allows.

    Parameters
    ----------
    logits : Tensor, shape (..., N)
        float32 or float64; rounded to the format first.
    fmt : Format
        With a range of its own.
    mask : Tensor of bool, optional
        True where a key is visible.
    last_first : bool
        Whether keys are summed from the last one on.

    Raises
    ------
    ResidlabError
        If an argument is not allowed.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> found = row_rounding(torch.zeros(1, 1000), BF16)
    >>> float(found.sum_error[0]), bool(found.above[0])  # the sum stopped at 256 of 1000, as theory allows
    (-0.744, False)
    """
    x = logits.detach().double()
    if mask is not None:
        x = x.masked_fill(~mask, -torch.inf)
        if (x == -torch.inf).all(-1).any():
            raise ResidlabError("each row must have a key that mask shows; one has none")
    if last_first:
        x = x.flip(-1)
    steps = softmax_steps(x, fmt, order=RECURSIVE)
    values = rounded(x.masked_fill(x == -torch.inf, 0.0), fmt).masked_fill(x == -torch.inf, -torch.inf).numpy()
    e, total, weights = (part.numpy() for part in steps)
    exact = e.sum(axis=-1)
    p = e / exact[..., None]
    absorption = theory.absorption_bound(p, fmt.u)
    least, most = theory.sum_enclosure(e, e, fmt.u)
    low, high = theory.enclosure(values, fmt.u, tiny=fmt.smallest_subnormal / 2)
    true = theory.softmax(values)
    error = total / exact - 1
    room = 1 + 1e-12  # float64's own rounding
    outside = ((weights * room < low) | (weights > high * room)).any(axis=-1)
    above = outside | (total * room < least) | (total > most * room) | (-error > absorption + 1e-12)
    return RowRounding(
        keys=np.isfinite(values).sum(axis=-1).astype(np.float64),
        effective=theory.effective_terms(p, fmt.u),
        absorption=absorption,
        absorbed=theory.absorbed_weight(p, fmt.u),
        sum_error=error,
        sum_bound=np.maximum(most / exact - 1, 1 - least / exact),
        weight_error=np.abs(weights - true).sum(axis=-1),
        weight_bound=np.maximum(high - true, true - low).sum(axis=-1),
        above=above,
    )
