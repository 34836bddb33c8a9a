r"""Rounding of tensors, as integer arithmetic on the bits of the *carrier*: the definition in eager torch.

The carrier, float32 or float64 with P significand bits, holds x and its rounded value. Read as a whole number m, the
bits of |x| count the carrier's numbers from 0 up. Where the format keeps t bits, its numbers are every :math:`2^d`-th,
d = P - t; below the format's smallest normal number d grows by one an octave. Rounding is then

.. math:: m \mapsto \lfloor (m + a) / 2^d \rfloor \, 2^d,

and the mode chooses a: ``0`` toward zero, ``2^d - 1`` away from it, ``2^(d-1) - 1`` plus the bit that stays last for
nearest with ties to even, a uniform number of d bits for stochastic rounding. The carry into the exponent is right by
itself, no floating-point operation takes part, so that nothing is rounded twice, and flushing of subnormals, where a
processor was set to it, does not matter. Below the format's smallest number, where d reaches P, there are two
candidates, it and 0.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from residlab.precision.formats import FP32, FP64, Format, Mode

MODES: tuple[Mode, ...] = ("nearest", "toward_zero", "up", "down", "stochastic")
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Carrier(NamedTuple):
    """A dtype that holds the numbers of formats: its own format, integers of its width, its stored significand bits."""

    format: Format
    dtype: torch.dtype
    integers: torch.dtype
    stored: int
    code: str

    def bits(self, value: float) -> int:
        """Return the bits of a number >= 0, which the carrier holds exactly, as a whole number."""
        size = {"f": "I", "d": "Q"}[self.code]
        return int(struct.unpack(f"<{size}", struct.pack(f"<{self.code}", value))[0])


CARRIERS = {
    torch.float32: Carrier(FP32, torch.float32, torch.int32, 23, "f"),
    torch.float64: Carrier(FP64, torch.float64, torch.int64, 52, "d"),
}


class Layout(NamedTuple):
    """A format as seen from a carrier, for one mode; numbers are given by their bits.

    Attributes
    ----------
    drop : int
        P - t, the bits that a normal number loses.
    least : int
        Exponent field, in the carrier, of the format's smallest normal number.
    unit : int
        Exponent field that its smallest subnormal number would have, which may be below 1.
    plain : int
        Whether the format is its carrier with fewer bits: of the same exponents, overflow and subnormals.
    smallest, half : int
        Its smallest subnormal number and half of that; 0 where the format underflows as the carrier does.
    normal, counting : int
        Where it has subnormal numbers of its own, or none: its smallest normal number, and the number of the carrier
        whose last bit counts the subnormal ones, or is more than twice the smallest normal one. Else 0.
    flush : int
        What is below becomes 0; 0 flushes nothing.
    largest, above, below : int
        Its largest number; what becomes of more, positive and negative.
    infinite : int
        What becomes of infinities.
    """

    drop: int
    least: int
    unit: int
    plain: int
    smallest: int
    half: int
    normal: int
    counting: int
    flush: int
    largest: int
    above: int
    below: int
    infinite: int


@cache
def layout(fmt: Format, dtype: torch.dtype, mode: Mode) -> Layout:
    """Return what rounding to a format needs to know; the format lies within the carrier, see `Format.within`."""
    carrier = CARRIERS[dtype]
    own = carrier.format
    assert own.emin is not None
    assert own.emax is not None
    emin, emax = (own.emin, own.emax) if fmt.emin is None or fmt.emax is None else (fmt.emin, fmt.emax)
    ulp = emin - fmt.t + 1
    largest = carrier.bits(fmt.largest if fmt.bounded else (2**fmt.t - 1) * 2.0 ** (emax - fmt.t + 1))
    infinite = {"infinity": carrier.bits(float("inf")), "saturate": largest, "nan": carrier.bits(float("nan"))}
    beyond = infinite[fmt.overflow]
    graded, has_half = emin > own.emin, ulp - 1 >= own.emin - own.t + 1
    counted = graded or not fmt.subnormals
    counts = ulp if fmt.subnormals else emin + 2
    return Layout(
        drop=own.t - fmt.t,
        least=emin + own.emax,
        unit=ulp + own.emax,
        plain=int(
            (emin, emax, fmt.overflow, fmt.subnormals, fmt.reserved) == (own.emin, own.emax, "infinity", True, 0)
        ),
        smallest=carrier.bits(2.0**ulp) if graded else 0,
        half=carrier.bits(2.0 ** (ulp - 1)) if has_half else 0,
        normal=carrier.bits(2.0**emin) if counted else 0,
        counting=carrier.bits(2.0 ** (counts + carrier.stored)) if counted else 0,
        flush=0 if fmt.subnormals else carrier.bits(2.0**emin),
        largest=largest,
        above=largest if mode in ("toward_zero", "down") else beyond,
        below=largest if mode in ("toward_zero", "up") else beyond,
        infinite=beyond,
    )


def rounded(x: Tensor, fmt: Format, mode: Mode, random: Tensor | None) -> Tensor:
    """Return ``x``, of a carrier's dtype, rounded; stochastic mode takes 64 ``random`` bits (int64) for each entry."""
    carrier, form = CARRIERS[x.dtype], layout(fmt, x.dtype, mode)
    infinity = carrier.bits(float("inf"))
    bits = x.view(carrier.integers)
    size = bits & torch.iinfo(carrier.integers).max
    sign, negative = bits ^ size, bits < 0
    exponent = (size >> carrier.stored).clamp(min=1)
    drop = (form.drop + (form.least - exponent).clamp(min=0)).clamp(max=carrier.stored)
    mask = (torch.ones_like(size) << drop) - 1
    tiny = size < form.smallest
    if mode == "nearest":
        # Where all stored bits go, the one that stays is the leading one, which is not stored: 1.
        last = (size >> drop) | (drop == carrier.stored)
        addend, up = (mask >> 1) + (last & mask & 1), size > form.half
    elif mode == "stochastic":
        assert random is not None
        addend, up = (random & mask).to(size.dtype), _below(random, size, exponent, form, carrier)
    else:
        away = {"toward_zero": torch.zeros_like(negative), "up": ~negative, "down": negative}[mode]
        addend, up = mask * away, away & (size > 0)
    result = (size + addend) & ~mask
    result = torch.where(tiny, up * form.smallest, result)
    result = torch.where(size < form.flush, 0, result)
    result = torch.where(result > form.largest, torch.where(negative, form.below, form.above), result)
    result = torch.where(size == infinity, form.infinite, result)
    result = torch.where(size > infinity, size, result)
    return (result.to(carrier.integers) | sign).view(x.dtype)


def _below(random: Tensor, size: Tensor, exponent: Tensor, form: Layout, carrier: Carrier) -> Tensor:
    """Return whether 63 random bits, as a fraction, are below |x| / smallest subnormal, where that is below 1."""
    stored = size & ((1 << carrier.stored) - 1)
    significand = torch.where(size == stored, stored, stored | (1 << carrier.stored)).long()
    shift = (63 - carrier.stored + exponent - form.unit).long()
    threshold = (significand << shift.clamp(0, 63)) >> (-shift).clamp(0, 63)
    return _shifted(random, 1) < threshold


def odd_sum(a: Tensor, b: Tensor, mode: Mode) -> Tensor:
    """Return a + b rounded to odd: the sum where the carrier holds it, else the neighbour whose last bit is 1.

    Rounding that to t <= P - 2 bits, in any deterministic mode, is rounding a + b once: the last bit keeps what tells a
    tie, or a number of the format, from its surroundings. The error of the sum is Knuth's TwoSum. Above the carrier's
    largest number, which is odd, directed modes get that one; in the others infinity, too, says what the sum becomes.
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(CARRIERS[total.dtype].integers)
    step = torch.where((error > 0) == (total > 0), 1, -1).to(bits.dtype)
    inexact = (error > 0) | (error < 0)  # neither for NaN, which infinities leave
    odd = torch.where(inexact & ((bits & 1) == 0), bits + step, bits)
    if mode in ("toward_zero", "up", "down"):
        odd = odd - (total.isinf() & a.isfinite() & b.isfinite()).to(odd.dtype)  # one below infinity, of either sign
    return odd.view(total.dtype)


def key_of(seed: int) -> int:
    """Return where the random bits of a seed start: seeds that are neighbours must not have streams that are."""
    return _signed(_mixed(seed + _GOLDEN))


def random_bits(key: int, counter: Tensor) -> Tensor:
    """Return 64 random bits (int64) for each counter (int64): SplitMix64 (Steele, Lea and Flood, 2014)."""
    z = counter * _signed(_GOLDEN) + key
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mixed(z: int) -> int:
    z %= 1 << 64
    z = (z ^ (z >> 30)) * _FIRST % (1 << 64)
    z = (z ^ (z >> 27)) * _SECOND % (1 << 64)
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    z %= 1 << 64
    return z - (1 << 64) if z >> 63 else z
