"""Numbers and formats that hurt: near ties, near thresholds, subnormal, huge, with every policy."""

from __future__ import annotations

import math
from typing import get_args

from hypothesis import strategies as st

from residlab.precision.formats import FORMATS, Format, Overflow


def formats(most_bits: int = 53, least: int = -1022, most: int = 1023) -> st.SearchStrategy[Format]:
    """Any format of at most so many bits whose exponents lie within these."""
    lowest = max(least, -1022)

    @st.composite
    def bounded(draw: st.DrawFn) -> Format:
        t = draw(st.integers(2, most_bits))
        reserved = draw(st.integers(0, min(3, 2 ** (t - 1) - 1)))
        emin, emax = draw(st.integers(lowest, 0)), draw(st.integers(0, most))
        overflow, subnormals = draw(st.sampled_from(get_args(Overflow))), draw(st.booleans())
        return Format("drawn", t, emin, emax, overflow, subnormals, reserved)

    named = [fmt for fmt in FORMATS.values() if fmt.t <= most_bits and (fmt.emin or 0) >= lowest]
    return st.one_of(st.sampled_from(named), st.integers(2, most_bits).map(Format.of), bounded())


def floats(width: int = 64) -> st.SearchStrategy[float]:
    """Any number of that width: as hypothesis draws them, and a few bits at any exponent, one ulp off or not."""
    largest = {32: 127, 64: 1023}[width]
    bits = {32: 24, 64: 53}[width]

    @st.composite
    def short(draw: st.DrawFn) -> float:
        kept = draw(st.integers(2, bits - 1))
        significand = draw(st.integers(2 ** (kept - 1), 2**kept - 1))
        nudge = draw(st.sampled_from((-1, 0, 0, 1)))
        exponent = draw(st.one_of(st.integers(-30, 30), st.integers(2 - largest, largest - 1)))
        whole = (significand << (bits - kept)) + nudge
        return draw(st.sampled_from((1, -1))) * math.ldexp(whole, exponent - bits + 1)

    return st.one_of(st.floats(width=width), short())
