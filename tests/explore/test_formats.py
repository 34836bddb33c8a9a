from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.explore.formats import check_format, format_value


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (2.0, "fixed2", "2.00"),
        (0.125, "fixed2", "0.13"),
        (-0.125, "fixed2", "−0.13"),
        (10.0, "fixed0", "10"),
        (0.2, "sig3", "0.200"),
        (0.001, "sig3", "0.00100"),
        (0.000999, "sig3", "9.99 × 10⁻⁴"),
        (999.4, "sig3", "999"),
        (999.7, "sig3", "1000"),
        (123456.7, "sig3", "123457"),
        (1.5e-21, "sig3", "1.50 × 10⁻²¹"),
        (0.0, "sig3", "0"),
        (0.01, "share", "1.00%"),
        (1.0, "share", "100%"),
        (0.00012345, "share", "0.0123%"),
        (0.0000123, "share", "1.23 × 10⁻⁵"),
        (0.0, "share", "0%"),
        (math.nan, "sig3", "–"),
        (math.inf, "share", "–"),
    ],
)
def test_known_values(value: float, name: str, text: str) -> None:
    assert format_value(value, name) == text


@given(st.floats(1e-300, 1e300))
def test_three_digits_are_within_half_a_unit(value: float) -> None:
    digits, _, power = format_value(value, "sig3").partition(" × 10")
    exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    assert float(f"{digits}e{exponent}") == pytest.approx(value, rel=5.001e-3)


@pytest.mark.parametrize("name", ["fixed", "fixed7", "fixed2 ", "percent", ""])
def test_unknown_format_names_the_known(name: str) -> None:
    with pytest.raises(ResidlabError, match="use fixed0 to fixed6, sig3 or share"):
        check_format(name)
