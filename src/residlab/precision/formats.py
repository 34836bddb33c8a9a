r"""Floating-point formats, and the rounding of one number as the standard states it.

A format with t significand bits holds 0 and the numbers

.. math:: \pm n \cdot 2^{e - t + 1}, \qquad 2^{t-1} \le n < 2^t, \quad e_{\min} \le e \le e_{\max},

and, with subnormals, those with :math:`e = e_{\min}` and :math:`n < 2^{t-1}`. Its unit roundoff is :math:`u = 2^{-t}`:
rounding to nearest is off by at most u relative to the number or to its result, without overflow and underflow.

========== == ========== ============ ======================= ===========================================
format     t  u          largest      smallest normal, other  overflow
========== == ========== ============ ======================= ===========================================
`BF16`     8  2^-8       3.39e38      2^-126, 2^-133          infinity
`FP16`     11 2^-11      65504        2^-14, 2^-24            infinity
`TF32`     11 2^-11      3.40e38      2^-126, 2^-136          infinity
`FP32`     24 2^-24      3.40e38      2^-126, 2^-149          infinity
`FP64`     53 2^-53      1.80e308     2^-1022, 2^-1074        infinity
`E4M3FN`   4  2^-4       448          2^-6, 2^-9              saturates, infinities too
`E5M2`     3  2^-3       57344        2^-14, 2^-16            infinity
========== == ========== ============ ======================= ===========================================

E4M3FN has NaN and no infinities: its largest significand of all, ``1.111`` at 2^8, is a NaN. What becomes of larger
numbers is open: the OCP specification has two conversions, of which this is the saturating one, that of torch 2.13;
``dataclasses.replace(E4M3FN, overflow="nan")`` is the other, that of `ml_dtypes`.

Sources: IEEE 754-2019, sections 3 and 4; OCP 8-bit Floating Point Specification 1.0 (2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from residlab.checks import check_booleans, check_one_of
from residlab.errors import ResidlabError

Overflow = Literal["infinity", "saturate", "nan"]
Mode = Literal["nearest", "toward_zero", "up", "down", "stochastic"]
MOST_BITS = 53
_LEAST, _MOST = -1022, 1023  # exponents of float64


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, at most as wide as float64.

    Attributes
    ----------
    name : str
        What messages and tables call it.
    t : int
        Bits of the significand, the leading one included: 2 to 53.
    emin, emax : int or None
        Exponents of the smallest and the largest normal numbers, with emin <= 0 <= emax. Both None: the exponent is
        *unbounded*, as theorems want it; what holds the numbers bounds it then (float32 or float64, see
        `residlab.precision.rounding.rounded`).
    overflow : {"infinity", "saturate", "nan"}
        What becomes of a number that rounds above `largest`, and of an infinity: infinity, `largest`, or NaN. A
        directed rounding that stops at `largest` does so under each, for finite numbers.
    subnormals : bool
        Whether there are subnormal numbers. If not, every number below the smallest normal one is flushed to a zero of
        its sign before it is rounded, in every mode: no bound on the relative error survives.
    reserved : int
        How many significands of the exponent emax, from the largest down, are codes of something else (E4M3FN: 1).

    Raises
    ------
    ResidlabError
        If a value is outside its range.

    Examples
    --------
    >>> from residlab.precision.formats import E4M3FN, Format
    >>> E4M3FN.u, E4M3FN.largest, E4M3FN.smallest_subnormal
    (0.0625, 448.0, 0.001953125)
    >>> Format.of(t=5)
    Format(name='t5', t=5, emin=None, emax=None, overflow='infinity', subnormals=True, reserved=0)
    """

    name: str
    t: int
    emin: int | None = None
    emax: int | None = None
    overflow: Overflow = "infinity"
    subnormals: bool = True
    reserved: int = 0

    def __post_init__(self) -> None:
        if not _is_whole(self.t) or not 2 <= self.t <= MOST_BITS:
            raise ResidlabError(f"t must be a whole number from 2 to {MOST_BITS}; got {self.t!r}")
        check_one_of(self, "overflow", get_args(Overflow))
        check_booleans(self, "subnormals")
        if not _is_whole(self.reserved) or not 0 <= self.reserved < 2 ** (self.t - 1):
            raise ResidlabError(f"reserved must be a whole number from 0 to 2**(t - 1) - 1; got {self.reserved!r}")
        if self.emin is None and self.emax is None:
            if (self.overflow, self.subnormals, self.reserved) != ("infinity", True, 0):
                raise ResidlabError(
                    "a format of unbounded exponent takes no overflow, subnormals or reserved; give emin and emax"
                )
        elif not (_is_whole(self.emin) and _is_whole(self.emax)) or not _LEAST <= self.emin <= 0 <= self.emax <= _MOST:
            raise ResidlabError(
                f"emin and emax must be whole numbers with {_LEAST} <= emin <= 0 <= emax <= {_MOST}, or both None; "
                f"got {self.emin!r} and {self.emax!r}"
            )

    @classmethod
    def of(cls, t: int, exponent_bits: int | None = None) -> Format:
        """Return the format of t significand bits: unbounded, or as IEEE 754 lays out so many exponent bits.

        With w exponent bits emax is ``2**(w - 1) - 1`` and emin is ``1 - emax``: ``Format.of(11, 5)`` has the numbers
        of `FP16`.

        Raises
        ------
        ResidlabError
            If t is not a whole number from 2 to 53, or w not one from 2 to 11.
        """
        if exponent_bits is None:
            return cls(f"t{t}", t)
        if not _is_whole(exponent_bits) or not 2 <= exponent_bits <= 11:
            raise ResidlabError(f"exponent_bits must be a whole number from 2 to 11; got {exponent_bits!r}")
        emax = 2 ** (exponent_bits - 1) - 1
        return cls(f"t{t}e{exponent_bits}", t, 1 - emax, emax)

    @property
    def bounded(self) -> bool:
        """Whether the format has a largest and a smallest number of its own."""
        return self.emax is not None

    @property
    def u(self) -> float:
        """The unit roundoff, 2^-t."""
        return math.ldexp(1.0, -self.t)

    @property
    def largest(self) -> float:
        """The largest finite number; infinity if unbounded."""
        if self.emax is None:
            return math.inf
        return math.ldexp(2**self.t - 1 - self.reserved, self.emax - self.t + 1)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number, 2^emin; 0 if unbounded."""
        return 0.0 if self.emin is None else math.ldexp(1.0, self.emin)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number: 2^(emin - t + 1), or 2^emin without subnormals; 0 if unbounded."""
        if self.emin is None or not self.subnormals:
            return self.smallest_normal
        return math.ldexp(1.0, self.emin - self.t + 1)

    def within(self, other: Format) -> bool:
        """Return whether every finite number of this format is one of the other's, and every normal one a normal one.

        An unbounded format is taken to have the exponents of the other.
        """
        if self.t > other.t:
            return False
        if self.emin is None or self.emax is None or other.emin is None or other.emax is None:
            return self.emin is None or other.emin is None
        ends = self.smallest_subnormal >= other.smallest_subnormal and self.largest <= other.largest
        return ends and self.emin >= other.emin


BF16 = Format("bf16", 8, -126, 127)
FP16 = Format("fp16", 11, -14, 15)
TF32 = Format("tf32", 11, -126, 127)
FP32 = Format("fp32", 24, -126, 127)
FP64 = Format("fp64", 53, -1022, 1023)
E4M3FN = Format("e4m3fn", 4, -6, 8, overflow="saturate", reserved=1)
E5M2 = Format("e5m2", 3, -14, 15)
FORMATS = {each.name: each for each in (BF16, FP16, TF32, FP32, FP64, E4M3FN, E5M2)}


def round_number(x: float, fmt: Format, mode: Mode = "nearest") -> float:
    """Round one number: x in units of the last place becomes a whole number, and that is scaled back.

    The definition that `residlab.precision.rounding.rounded` follows for tensors, for those who have no torch and for
    tests. An unbounded format has the exponents of float64.

    Parameters
    ----------
    x : float
        Any; NaN returns itself, and a zero keeps its sign.
    fmt : Format
        The format.
    mode : {"nearest", "toward_zero", "up", "down"}
        Nearest takes ties to the even significand. Stochastic rounding needs random bits: see `rounded`.

    Raises
    ------
    ResidlabError
        If the mode is another.

    Examples
    --------
    >>> from residlab.precision.formats import BF16, E5M2, round_number
    >>> round_number(0.1, BF16), round_number(61439.0, E5M2), round_number(61440.0, E5M2)
    (0.10009765625, 57344.0, inf)
    """
    if mode not in ("nearest", "toward_zero", "up", "down"):
        raise ResidlabError(f"mode must be one of nearest, toward_zero, up, down; got {mode!r}")
    if math.isnan(x) or x == 0:
        return x
    size = abs(x)
    away = mode == ("up" if x > 0 else "down")
    emin = _LEAST if fmt.emin is None else fmt.emin
    largest = fmt.largest if fmt.bounded else math.ldexp(2**fmt.t - 1, _MOST - fmt.t + 1)
    if size < fmt.smallest_normal and not fmt.subnormals:
        result = 0.0
    elif math.isinf(x):
        result = _beyond(fmt)
    else:
        place = max(math.frexp(size)[1] - 1, emin) - fmt.t + 1
        units = math.ldexp(size, -place)  # exact: emin <= 0, so that only large numbers are scaled down
        whole = round(units) if mode == "nearest" else math.ceil(units) if away else math.floor(units)
        # 2**t units above the last exponent of float64 are too many for ldexp.
        result = math.ldexp(whole, place) if whole < 2**fmt.t or place + fmt.t <= _MOST else math.inf
        if result > largest:
            result = _beyond(fmt) if mode == "nearest" or away else largest
    return math.copysign(result, x)


def _beyond(fmt: Format) -> float:
    return {"infinity": math.inf, "saturate": fmt.largest, "nan": math.nan}[fmt.overflow]
