r"""Softmax with every operation rounded to a format, by three algorithms.

============== ==========================================================================================
variant        weights
============== ==========================================================================================
shifted        ``e_i = exp(x_i - M)``, ``s_i = e_i / sum e``, M the largest logit: what everybody runs
unshifted      ``e_i = exp(x_i)``, ``s_i = e_i / sum e``: overflows early
division_free  ``s_i = exp(x_i - f)``, ``f = M + log(sum exp(x_j - M))``: no division for each key
============== ==========================================================================================

Logits are rounded to the format first, so that errors of the algorithm are those against the exact softmax of the
*rounded* logits; differences, exponentials, every addition in a stated order, logarithm and quotients are rounded once
each. `residlab.theory.softmax.enclosure` bounds the result.

*Masks.* A masked key, or one whose logit is -inf, has weight 0 and takes part in nothing. A row without a visible key
is all zeros: nothing is attended to (torch gives NaN). A row with a visible NaN or +inf is NaN.

*Overflow.* Only "unshifted" can overflow in the exponentials: then the row has NaN where inf/inf arises and 0
elsewhere, and in a format that saturates (`E4M3FN`) it is wrong without a sign of it; where they all underflow it is
NaN, 0/0. The sum, at most N, can overflow
too: in fp16 for N > 65504, and e4m3fn saturates at 448. A recursive sum stops growing long before, at 1/u.

Source: Blanchard, Higham and Higham (2021); chapter 15.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import RECURSIVE, Order, held
from residlab.precision.formats import Format, Mode
from residlab.precision.operations import Operations
from residlab.precision.rounding import Backend, Seed, check_carrier, rounded

Variant = Literal["shifted", "unshifted", "division_free"]


class Steps(NamedTuple):
    """A softmax and what it was made of, in the carrier's dtype.

    Attributes
    ----------
    terms : Tensor, shape (..., N)
        The rounded exponentials, 0 at masked keys.
    total : Tensor, shape (...)
        Their rounded sum.
    weights : Tensor, shape (..., N)
        The rounded softmax.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> softmax_steps(torch.tensor([0.0, 0.0]), BF16)._fields
    ('terms', 'total', 'weights')
    """

    terms: Tensor
    total: Tensor
    weights: Tensor


def softmax(
    logits: Tensor,
    fmt: Format,
    *,
    mask: Tensor | None = None,
    order: Order = RECURSIVE,
    mode: Mode = "nearest",
    seed: Seed = None,
    variant: Variant = "shifted",
    backend: Backend = "auto",
) -> Tensor:
    """Return the softmax over the last axis, computed in a format.

    Parameters
    ----------
    logits : Tensor, shape (..., N)
        float32 or float64. An unbounded format has the exponents of that dtype.
    fmt : Format
        What everything is rounded to: u_w. Held by the dtype, t <= 25, or `FP64` in mode nearest.
    mask : Tensor of bool, optional
        True where a key is visible; of a shape that broadcasts to that of ``logits``: ``tril`` of ones is causal.
    order : Order
        Of the additions, from the first key on: flip keys, mask and result for the other way round.
    mode : {"nearest", "stochastic"}
        How each operation is rounded.
    seed
        Of stochastic rounding, as in `residlab.precision.rounding.rounded`; each operation draws its own from it.
    variant : {"shifted", "unshifted", "division_free"}
        See above.
    backend
        As in `residlab.precision.rounding.rounded`. There is no gradient.

    Returns
    -------
    Tensor, shape and dtype of ``logits``
        Numbers of the format.

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> import torch
    >>> from residlab.precision.formats import BF16, FP16
    >>> from residlab.precision.softmax import softmax
    >>> x = torch.tensor([12.0, 1.0, 0.0])
    >>> softmax(x, FP16).tolist()
    [1.0, 1.6689300537109375e-05, 6.139278411865234e-06]
    >>> softmax(x, FP16, variant="unshifted").tolist()
    [nan, 0.0, 0.0]
    >>> softmax(x, BF16, mask=torch.tensor([False, True, True])).tolist()
    [0.0, 0.73046875, 0.26953125]
    """
    steps = softmax_steps(logits, fmt, mask=mask, order=order, mode=mode, seed=seed, variant=variant, backend=backend)
    return steps.weights


def softmax_steps(
    logits: Tensor,
    fmt: Format,
    *,
    mask: Tensor | None = None,
    order: Order = RECURSIVE,
    mode: Mode = "nearest",
    seed: Seed = None,
    variant: Variant = "shifted",
    backend: Backend = "auto",
) -> Steps:
    """Return the same with its exponentials and their sum; arguments as for `softmax`.

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Examples
    --------
    >>> from residlab.precision.formats import BF16
    >>> steps = softmax_steps(torch.zeros(300), BF16)
    >>> steps.total.item(), steps.weights.sum().item()  # the sum stopped at 256: weights add up to more than 1
    (256.0, 1.171875)
    """
    if variant not in get_args(Variant):
        raise ResidlabError(f"variant must be one of {', '.join(get_args(Variant))}; got {variant!r}")
    check_carrier("logits", logits.dtype, fmt)
    visible = _visible(logits, mask)
    ops = Operations(held(fmt, logits.dtype), order, mode, seed, backend=backend)
    x = ops.store(logits.detach().masked_fill(~visible, 0.0))
    top = x.masked_fill(~visible, -math.inf).amax(-1, keepdim=True)
    top = top.masked_fill(~visible.any(-1, keepdim=True), 0.0)  # NaN of a visible key stays: amax hands it on
    z = x if variant == "unshifted" else ops.subtract(x, top)
    e = ops.exp(z).masked_fill(~visible, 0.0)
    total = ops.sum(e)
    free = variant == "division_free"
    s = ops.exp(ops.subtract(x, ops.add(top, ops.log(total)))) if free else ops.divide(e, total)
    s = s.masked_fill(~visible, 0.0)
    return Steps(*(part.to(logits.dtype) for part in (e, total[..., 0], s)))


def cast_weights(
    logits: Tensor,
    fmt: Format,
    *,
    mask: Tensor | None = None,
    scale: float = 1.0,
    block: int = 64,
    last_first: bool = False,
) -> Tensor:
    r"""Return softmax whose exponentials alone are cast to a format, block by block, as fused FP8 attention does.

    Keys come in blocks; with :math:`M_b` the largest logit so far, block b is cast as
    :math:`fl(\sigma e^{x_i - M_b})`. Everything else is exact here: the scale :math:`\sigma` is taken out, later
    maxima are made up for by :math:`e^{M_b - M}`, and the sum that is divided by is that of the exponentials before the
    cast. So once a sink has been met, all keys after it are cast at the sink's scale and may underflow to 0.

    Parameters
    ----------
    logits, mask
        As for `softmax`.
    fmt : Format
        What exponentials are cast to, to nearest.
    scale : float
        :math:`\sigma > 0`; 2^8 keeps e^0 below the largest number of `E4M3FN`, 448.
    block : int
        Keys of a block, >= 1.
    last_first : bool
        Whether blocks come from the last key on.

    Returns
    -------
    Tensor, shape and dtype of ``logits``

    Raises
    ------
    ResidlabError
        If an argument is not allowed; the message says what is.

    Source: arXiv 2606.06521 for the two remedies; the emulation is ours.

    Examples
    --------
    >>> from residlab.precision.formats import E4M3FN
    >>> logits = torch.tensor([20.0] + [0.0] * 64)  # a sink
    >>> plain = cast_weights(logits, E4M3FN, block=1)
    >>> scaled = cast_weights(logits, E4M3FN, block=1, last_first=True)
    >>> plain[1].item(), scaled[1].item() > 0  # behind the sink all keys underflow; in front of it none does
    (0.0, True)
    """
    check_carrier("logits", logits.dtype, fmt)
    if not (math.isfinite(scale) and scale > 0):
        raise ResidlabError(f"scale must be finite and > 0; got {scale!r}")
    Order("blocked", block)  # which refuses what is no block
    visible = _visible(logits, mask)
    x = logits.detach().double().masked_fill(~visible, -math.inf)
    if last_first:
        x = x.flip(-1)
    running = x.cummax(-1).values
    keys = x.shape[-1]
    ends = (
        torch.arange(keys, device=x.device).div(block, rounding_mode="floor").add(1).mul(block).clamp(max=keys).sub(1)
    )
    running = running[..., ends]
    running = running.masked_fill(running == -math.inf, 0.0)
    top = running[..., -1:]
    cast = rounded(scale * torch.exp(x - running), held(fmt, logits.dtype)) / scale
    total = torch.exp(x - top).sum(-1, keepdim=True)
    s = cast * torch.exp(running - top) / torch.where(total == 0, 1.0, total)
    return (s.flip(-1) if last_first else s).to(logits.dtype)


def _visible(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return where a key takes part, of the shape of the logits."""
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ResidlabError(f"logits must have shape (..., N), N >= 1; got {tuple(logits.shape)}")
    seen = logits.detach() != -math.inf
    if mask is None:
        return seen
    if mask.dtype != torch.bool:
        raise ResidlabError(f"mask must be of dtype bool, True where a key is visible; got {mask.dtype}")
    try:
        return seen & mask.expand(logits.shape)
    except RuntimeError:
        raise ResidlabError(
            f"mask must broadcast to the shape of logits, {tuple(logits.shape)}; got {tuple(mask.shape)}"
        ) from None
