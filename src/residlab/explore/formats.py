"""Numbers as the page writes them: three named formats, with a twin of each in ``residlab-explore.js``.

Both sides round the exact binary value, halves away from zero, so that the text a kernel writes and the text a page
writes are the same characters.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Decimal

from residlab.errors import ResidlabError

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NAMES = re.compile(r"fixed[0-6]|sig3|share")


def check_format(name: str) -> str:
    """Return `name` if it is a format: ``fixed0`` to ``fixed6``, ``sig3`` or ``share``.

    Raises
    ------
    ResidlabError
        If it is none of them.
    """
    if not _NAMES.fullmatch(name):
        raise ResidlabError(f"unknown number format {name!r}: use fixed0 to fixed6, sig3 or share")
    return name


def power_of_ten(exponent: int) -> str:
    """Write a power of ten: ``10⁻⁷``."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def _fixed(value: float, digits: int) -> str:
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def _three_digits(value: float) -> tuple[str, int]:
    """Return the mantissa, three digits, and the exponent of a positive number."""
    exact = Decimal(value)
    exponent = exact.adjusted()
    mantissa = exact.scaleb(-exponent).quantize(Decimal("0.01"), ROUND_HALF_UP)
    if mantissa >= 10:
        mantissa, exponent = Decimal("1.00"), exponent + 1
    return str(mantissa), exponent


def _significant(value: float) -> str:
    if value >= 999.5 and value < 1e6:
        return _fixed(value, 0)
    mantissa, exponent = _three_digits(value)
    if -3 <= exponent <= 2:
        return _fixed(value, 2 - exponent)
    return f"{mantissa} × {power_of_ten(exponent)}"


def format_value(value: float, name: str) -> str:
    """Write one number.

    Parameters
    ----------
    value : float
        Any double; a value that is not finite is written as a dash.
    name : str
        ``fixedN``: N digits after the point. ``sig3``: three significant digits, with a power of ten below 10^-3 and
        from 10^6. ``share``: a probability, as a percentage with three significant digits from 10^-4 on, as a power of
        ten below.

    Returns
    -------
    str
        Text with a real minus sign and superscripts.
    """
    check_format(name)
    if not math.isfinite(value):
        return "–"
    sign, size = ("−" if value < 0 else ""), abs(value)
    if name.startswith("fixed"):
        return sign + _fixed(size, int(name[5:]))
    if size == 0:
        return "0%" if name == "share" else "0"
    if name == "share" and size >= 1e-4:
        return f"{sign}{_significant(100.0 * size)}%"
    return sign + _significant(size)
