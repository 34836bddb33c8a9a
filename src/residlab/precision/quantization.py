r"""Fake quantization: numbers rounded to the levels of a coarse format and kept in the dtype that they had.

Uniform and symmetric, b bits: with the *peak* P, the largest magnitude to be represented, and the step Delta,

.. math:: \Delta = \frac{P}{2^{b-1} - 1}, \qquad
          Q(x) = \Delta \, \mathrm{clip}\bigl(\mathrm{round}(x / \Delta), \pm (2^{b-1} - 1)\bigr),

ties to even. The level ``-2**(b-1)``, which two's complement would have too, is not used, so that Q is odd. FP8 takes
the nearest number of the format times a scale that maps P to the format's largest number.

P is one number for a tensor or one for each row (a row: what the last axis runs over; of a weight, what makes one
output; of activations, a token), and is the largest magnitude there or a quantile of the magnitudes. It is taken from
the tensor itself, *dynamically*: two batches have two steps.

Source: chapter 11; the convention is that of `torch.fake_quantize_per_tensor_affine`, to the bit (but for the sign of
zeros, which stays) in float16, bfloat16 and float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from residlab.checks import check_one_of, is_real
from residlab.errors import ResidlabError
from residlab.precision.formats import FORMATS
from residlab.precision.rounding import rounded

FloatFormat = Literal["e4m3fn", "e5m2"]
Over = Literal["tensor", "row"]
LEAST_BITS, MOST_BITS = 2, 16
_FLOATS = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@dataclass(frozen=True)
class Quantizer:
    """A rule that rounds tensors: calling it returns the rounded tensor, of the same shape and dtype.

    Attributes
    ----------
    kind
        Bits of a uniform quantizer, 2 to 16, or the name of an FP8 format: ``"e4m3fn"``, ``"e5m2"``.
    over
        ``"tensor"``: one peak for all entries. ``"row"``: one for each row of the last axis.
    clip
        In (0, 1]. The peak is the least magnitude that at least this share of the entries does not exceed: 1 takes the
        largest. Where that is 0, because most entries are, the largest is taken after all.

    Raises
    ------
    ResidlabError
        If an option is out of its range.

    Examples
    --------
    >>> Quantizer(3)(torch.tensor([-1.0, -0.3, 0.1, 0.5]))  # multiples of 1/3
    tensor([-1.0000, -0.3333,  0.0000,  0.6667])
    >>> one_outlier = torch.tensor([[1.0, 0.5], [100.0, 50.0]])
    >>> Quantizer(4)(one_outlier)[0], Quantizer(4, over="row")(one_outlier)[0]
    (tensor([0., 0.]), tensor([1.0000, 0.4286]))
    """

    kind: int | FloatFormat
    over: Over = "tensor"
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_one_of(self, "over", get_args(Over))
        if not is_real(self.clip) or not 0 < self.clip <= 1:
            raise ResidlabError(f"clip must be in (0, 1]; got {self.clip!r}")
        if self.kind not in _FLOATS:
            checked_bits(self.kind)

    def peak(self, x: Tensor) -> Tensor:
        """Return the peak, of shape () or ``x.shape[:-1]``, float32 or float64; NaN or infinite where x is, 0 for none.

        With ``clip < 1`` infinities may lie beyond the quantile.

        Raises
        ------
        ResidlabError
            If x is a single number, of shape (), and there is to be a peak for each row.
        """
        if self.over == "row" and not x.ndim:
            raise ResidlabError('x must have shape (..., d), to have rows; got (): take over = "tensor"')
        size = x.detach().abs()
        size = size.flatten() if self.over == "tensor" else size
        shape = size.shape[:-1]
        if not size.shape[-1]:
            return size.new_zeros(shape).to(torch.promote_types(x.dtype, torch.float32))
        if size.numel():
            peak = size.amax(dim=-1)
            if self.clip < 1:
                place = max(1, math.ceil(self.clip * size.shape[-1]))
                quantile = size.float().kthvalue(place).values if size.itemsize < 4 else size.kthvalue(place).values
                peak = torch.where((quantile > 0) & ~peak.isnan(), quantile.to(peak.dtype), peak)
        else:
            peak = size.new_zeros(shape)
        return peak.to(torch.promote_types(x.dtype, torch.float32))

    def __call__(self, x: Tensor, peak: Tensor | None = None, *, finite: bool = True) -> Tensor:
        """Return Q(x), with gradients straight through.

        The gradient of an entry is passed on as it is where the entry lies within the range, and is 0 where it was
        clipped, as torch's operator has it; P counts as a constant.

        Parameters
        ----------
        x : Tensor, shape (..., d)
            float16, bfloat16, float32 or float64. The first three are rounded in float32, steps float32 too, as torch's
            operator does; where such a step would be no normal float32 number, and for float64, in float64.
        peak : Tensor, shape () or x.shape[:-1], optional
            A fixed peak, for instance of other data, finite and >= 0. By default `peak` of x.
        finite : bool
            Whether to refuse NaN and infinity. Unrefused, infinity is clipped, and what NaN becomes is not specified
            (torch's operator makes it the lowest level).

        Raises
        ------
        ResidlabError
            If x is no floating-point tensor, has NaN or infinity and ``finite`` is set, or has no axis where the peaks
            of its rows are wanted.
        """
        if not x.is_floating_point() or x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ResidlabError(f"x must be float16, bfloat16, float32 or float64; got {x.dtype}")
        if not x.numel():
            return x.clone()
        low, high = x.detach().aminmax()
        largest = torch.maximum(-low, high)  # NaN if there is one
        if finite and not bool(largest.isfinite()):
            raise ResidlabError(
                f"x has NaN or infinity among its {x.numel()} entries: no level is near; check the model"
            )
        precise = torch.promote_types(x.dtype, torch.float32)
        if peak is not None:
            peak = peak.detach().to(precise)
            if peak.shape not in ((), x.shape[:-1]) or bool((~(peak.isfinite() & (peak >= 0))).any()):
                raise ResidlabError(f"peak must be finite, >= 0, of shape () or {tuple(x.shape[:-1])}; got {peak}")
        else:
            peak = largest.to(precise) if self.over == "tensor" and self.clip == 1 else self.peak(x)
        peak = torch.where(peak > 0, peak, torch.ones_like(peak))  # where all is zero, all stays zero
        if isinstance(self.kind, str):
            return _to_float8(x, peak, self.kind)
        return _to_levels(x, peak, 2 ** (self.kind - 1) - 1)

    def __str__(self) -> str:
        """Write it: ``8``, ``e4m3fn``, ``4 row``, ``4 clip=0.999``."""
        return " ".join([str(self.kind), *self.options])

    @property
    def options(self) -> list[str]:
        """What differs from the plain quantizer, as `str` writes it."""
        return [*(["row"] if self.over == "row" else []), *([f"clip={self.clip:g}"] if self.clip < 1 else [])]


def checked_bits(bits: object) -> int:
    """Return a number of bits, 2 to 16.

    Raises
    ------
    ResidlabError
        If it is none; one bit has no level but 0.

    Examples
    --------
    >>> checked_bits(4)
    4
    >>> checked_bits(1)
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: bits must be a whole number from 2 to 16, or a format: e4m3fn, e5m2; got 1
    """
    if not isinstance(bits, int) or isinstance(bits, bool) or not LEAST_BITS <= bits <= MOST_BITS:
        formats = ", ".join(_FLOATS)
        raise ResidlabError(
            f"bits must be a whole number from {LEAST_BITS} to {MOST_BITS}, or a format: {formats}; got {bits!r}"
        )
    return bits


def _to_levels(x: Tensor, peak: Tensor, most: int) -> Tensor:
    single = torch.finfo(torch.float32)
    # Beyond a quarter of the largest number a level could round to infinity; below the smallest normal step its
    # reciprocal would overflow.
    ordinary = (peak >= single.tiny * most) & (peak <= single.max / 4)
    if x.dtype == torch.float64 or not bool(ordinary.all()):
        z, unit = _scaled(x, peak)
        step = unit / most
        ratio = z / step
        y = _unscaled(ratio.round().clamp_(-most, most) * step, x, peak)
    else:
        # As torch's operator computes it, in a fraction of its time, and without its overflow of integers far outside.
        step = _column(peak) / most
        ratio = x.detach().float() * (1 / step)
        y = ratio.round().clamp_(-most, most).mul_(step).to(x.dtype)
    return _straight(x, y, ratio, most + 0.5)


def _to_float8(x: Tensor, peak: Tensor, name: FloatFormat) -> Tensor:
    dtype = _FLOATS[name]
    largest = torch.finfo(dtype).max
    if x.dtype == torch.float64:
        z, unit = _scaled(x, peak)
        ratio = z * (largest / unit)
        # Not by torch, which casts float64 to FP8 by way of float32: twice rounded.
        nearest = rounded(ratio.clamp(-largest, largest), FORMATS[name])
        return _straight(x, _unscaled(nearest * (unit / largest), x, peak), ratio, largest)
    # The same numbers in a fraction of the time: peaks of narrower formats are far from float64's ends, and what takes
    # time is fresh memory. The ratio is float32's, so that the peak itself is inside.
    unit, bound = _column(peak.double()), torch.finfo(x.dtype).max
    wide = x.detach().double().mul_(largest / unit)
    ratio = wide.float()
    wide.copy_(ratio.clamp(-largest, largest).to(dtype)).mul_(unit / largest).clamp_(-bound, bound)
    return _straight(x, wide.to(x.dtype), ratio, largest)


def _factor(peak: Tensor) -> Tensor:
    """Return a power of two that brings numbers of float64's last binades to where steps are exact enough."""
    small, large = torch.full_like(peak, 2.0**600), torch.full_like(peak, 2.0**-600)
    return torch.where(peak < 2.0**-900, small, torch.where(peak > 2.0**900, large, torch.ones_like(peak)))


def _column(peak: Tensor) -> Tensor:
    """Return the peak as what can be broadcast against x."""
    return peak.unsqueeze(-1) if peak.ndim else peak


def _scaled(x: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
    unit = _column(peak.double())
    factor = _factor(unit)
    return x.detach().double() * factor, unit * factor


def _unscaled(y: Tensor, x: Tensor, peak: Tensor) -> Tensor:
    bound = torch.finfo(x.dtype).max
    return (y / _factor(_column(peak.double()))).clamp(-bound, bound).to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, inside: Tensor) -> Tensor:
        ctx.save_for_backward(inside)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None


def _straight(x: Tensor, y: Tensor, ratio: Tensor, bound: float) -> Tensor:
    if not (torch.is_grad_enabled() and x.requires_grad):
        return y
    made: Tensor = _StraightThrough.apply(x, y, ratio.abs() <= bound)  # type: ignore[no-untyped-call]
    return made
