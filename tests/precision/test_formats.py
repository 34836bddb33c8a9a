"""Formats against the standards' figures, numpy and ml_dtypes; the scalar reference against gfloat and fractions."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.precision.oracle import round_fraction
from tests.precision.strategies import floats, formats

from residlab.errors import ResidlabError
from residlab.precision.formats import BF16, E4M3FN, E5M2, FORMATS, FP16, FP32, FP64, TF32, Format, Mode, round_number

FINFO = {
    "bf16": ml_dtypes.finfo(ml_dtypes.bfloat16),
    "fp16": np.finfo(np.float16),
    "fp32": np.finfo(np.float32),
    "fp64": np.finfo(np.float64),
    "e4m3fn": ml_dtypes.finfo(ml_dtypes.float8_e4m3fn),
    "e5m2": ml_dtypes.finfo(ml_dtypes.float8_e5m2),
}
GFLOAT = {
    "bf16": gfloat.formats.format_info_bfloat16,
    "fp16": gfloat.formats.format_info_binary16,
    "fp32": gfloat.formats.format_info_binary32,
    "e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
}
MODES: dict[Mode, gfloat.RoundMode] = {
    "nearest": gfloat.RoundMode.TiesToEven,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("name", FINFO)
def test_figures_are_those_of_other_libraries(name: str) -> None:
    fmt, other = FORMATS[name], FINFO[name]
    assert fmt.t == other.nmant + 1
    assert fmt.u == float(other.eps) / 2
    assert fmt.largest == float(other.max)
    assert fmt.smallest_normal == float(other.smallest_normal)
    assert fmt.smallest_subnormal == float(other.smallest_subnormal)


def test_tf32_has_the_range_of_fp32_and_the_significand_of_fp16() -> None:
    assert (TF32.emin, TF32.emax, TF32.t) == (FP32.emin, FP32.emax, FP16.t)
    assert TF32.largest == (2 - 2**-10) * 2.0**127


def test_unbounded_and_flushing_formats() -> None:
    fmt = Format.of(8)
    assert (fmt.bounded, fmt.u, fmt.largest, fmt.smallest_normal) == (False, 2**-8, math.inf, 0.0)
    assert replace(Format.of(11, 5), name="fp16") == FP16
    assert replace(FP16, subnormals=False).smallest_subnormal == FP16.smallest_normal


def test_which_format_holds_which() -> None:
    assert [fmt.name for fmt in FORMATS.values() if fmt.within(FP32)] == [name for name in FORMATS if name != "fp64"]
    assert all(fmt.within(FP64) for fmt in FORMATS.values())
    assert not BF16.within(FP16)
    assert not FP16.within(BF16)
    assert Format.of(24).within(FP32)
    assert not Format.of(25).within(FP32)
    assert not Format("x", 24, -127, 127).within(FP32)
    assert E5M2.within(FP16)
    assert not FP16.within(replace(FP16, subnormals=False))


@pytest.mark.parametrize("subnormals", [True, False])
def test_normal_numbers_lie_within_normal_numbers(subnormals: bool) -> None:
    """Every number of these is one of float32's, but the normal ones below 2^-126 have fewer bits there."""
    wide = [Format("x", 5, emin, 127, subnormals=subnormals) for emin in range(-131, -121)]
    assert [fmt.emin for fmt in wide if fmt.within(FP32)] == list(range(-126, -121))
    assert all(fmt.smallest_subnormal >= FP32.smallest_subnormal for fmt in wide)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"t": 1}, "t must be a whole number from 2 to 53; got 1"),
        ({"t": 54}, "t must be a whole number from 2 to 53; got 54"),
        ({"t": 8.0}, r"t must be a whole number from 2 to 53; got 8\.0"),
        ({"emin": -3}, "emin and emax must be whole numbers .* got -3 and None"),
        ({"emin": 1, "emax": 3}, "-1022 <= emin <= 0 <= emax <= 1023"),
        ({"emin": -3, "emax": 1024}, "got -3 and 1024"),
        ({"overflow": "wrap"}, "overflow must be one of infinity, saturate, nan; got 'wrap'"),
        ({"overflow": "nan"}, "unbounded exponent takes no overflow"),
        ({"subnormals": 1}, "subnormals must be true or false; got 1"),
        ({"emin": -3, "emax": 3, "reserved": 128}, "reserved must be .* got 128"),
    ],
)
def test_wrong_formats_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        Format(**{"name": "x", "t": 8, **arguments})


def test_wrong_exponent_bits_are_named() -> None:
    with pytest.raises(ResidlabError, match="exponent_bits must be a whole number from 2 to 11; got 12"):
        Format.of(8, 12)


def test_stochastic_needs_more_than_a_number() -> None:
    with pytest.raises(ResidlabError, match="mode must be one of nearest, toward_zero, up, down; got 'stochastic'"):
        round_number(1.0, BF16, "stochastic")


@given(floats(), formats(), st.sampled_from(list(MODES)))
def test_a_number_is_rounded_as_fractions_are(x: float, fmt: Format, mode: Mode) -> None:
    result = round_number(x, fmt, mode)
    if math.isfinite(x):
        expected = round_fraction(Fraction(x), fmt, mode)
        assert same(result, math.copysign(expected, x))
    elif math.isnan(x):
        assert math.isnan(result)
    else:
        beyond = {"infinity": math.inf, "saturate": fmt.largest, "nan": math.nan}[fmt.overflow]
        assert same(result, math.copysign(beyond, x)) or math.isnan(result)


@given(floats(), st.sampled_from(list(GFLOAT)), st.sampled_from(list(MODES)))
def test_a_number_is_rounded_as_gfloat_does(x: float, name: str, mode: Mode) -> None:
    fmt, info = FORMATS[name], GFLOAT[name]
    saturating = fmt.overflow == "saturate"
    assert same(round_number(x, fmt, mode), gfloat.round_float(info, x, MODES[mode], saturating))
    if fmt is E4M3FN:
        assert same(round_number(x, replace(fmt, overflow="nan"), mode), gfloat.round_float(info, x, MODES[mode]))


def test_formats_need_no_torch() -> None:
    code = "import sys, residlab.precision.formats; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
