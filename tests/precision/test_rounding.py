"""Rounding of tensors: every tie of the small formats, a million hard numbers a format, other libraries, fractions."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.precision.oracle import round_fraction
from tests.precision.strategies import floats, formats
from tests.precision.test_formats import GFLOAT, MODES
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.formats import (
    BF16,
    E4M3FN,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Mode,
    round_number,
)
from residlab.precision.rounding import added, rounded

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
HARD = 1_000_000


def identical(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in every bit, payloads of NaN left out."""
    numbers = torch.equal(a.isnan(), b.isnan())
    integers = INTEGERS[a.dtype]
    return numbers and torch.equal(a.nan_to_num(0).view(integers), b.nan_to_num(0).view(integers))


@cache
def numbers(name: str) -> np.ndarray:
    """All finite numbers >= 0 of a format, in order, and the power of two that would follow."""
    dtype = NUMPY[name]
    codes = np.arange(2 ** (8 * np.dtype(dtype).itemsize - 1), dtype=f"u{np.dtype(dtype).itemsize}")
    with np.errstate(invalid="ignore"):  # NaN
        values = codes.view(dtype).astype(np.float64)
    values = values[np.isfinite(values)]
    return np.append(values, 2 * values[-1] - values[-2])


@pytest.mark.parametrize("carrier", INTEGERS, ids=str)
@pytest.mark.parametrize("name", NUMPY)
def test_every_tie_and_its_neighbours(name: str, carrier: torch.dtype, backend: Any) -> None:
    """Between neighbours the middle goes to the even code, what is next to it to the nearer one: by construction."""
    fmt, values = FORMATS[name], numbers(name)
    low, high = values[:-1], values[1:].copy()
    middle = low + (high - low) / 2
    even = np.arange(len(low)) % 2 == 0
    high[-1] = fmt.largest if fmt.overflow == "saturate" else np.inf
    numpy = np.float32 if carrier == torch.float32 else np.float64
    if carrier == torch.float32:  # where it has no room between two numbers, nothing is to be rounded
        representable = middle.astype(np.float32) == middle
        low, high, middle, even = (each[representable] for each in (low, high, middle, even))
        assert len(middle) == len(values) - 1
    below, above = (np.nextafter(middle.astype(numpy), numpy(side)).astype(np.float64) for side in (0, np.inf))
    cases = [(low, low), (middle, np.where(even, low, high)), (below, low), (above, high)]
    for given_, expected in cases:
        for sign in (1, -1):
            x, y = torch.from_numpy(sign * given_).to(carrier), torch.from_numpy(sign * expected).to(carrier)
            assert identical(rounded(x, fmt, backend=backend), y)


@cache
def hard(name: str) -> np.ndarray:
    """A million float64: near ties and numbers of the format, subnormals, thresholds, zeros, NaN, any bits at all."""
    rng, fmt = np.random.default_rng(7), FORMATS[name]
    quarter = HARD // 4
    exponents = rng.integers(fmt.emin - fmt.t - 3, fmt.emax + 2, quarter)
    halves = rng.integers(0, 2 ** (fmt.t + 1), quarter)  # numbers and ties
    near = np.ldexp(halves.astype(np.float64), np.clip(exponents - fmt.t, -1074, 1023 - fmt.t - 1))
    near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, 0)])[: 2 * quarter]
    thresholds = np.array([fmt.largest, fmt.smallest_normal, fmt.smallest_subnormal, 2.0**fmt.emax * (2 - fmt.u)])
    around = thresholds[rng.integers(0, 4, quarter)] * (1 + rng.integers(-6, 7, quarter) * 2.0 ** -rng.integers(1, 53))
    any_bits = rng.integers(0, 2**64, quarter - 5, dtype=np.uint64, endpoint=False).view(np.float64)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    x = np.concatenate([near, around, any_bits, special])
    return np.where(rng.random(len(x)) < 0.5, x, -x)


@pytest.mark.parametrize("name", GFLOAT)
def test_a_million_hard_float64_as_gfloat(name: str, backend: Any) -> None:
    fmt, x = FORMATS[name], hard(name)
    assert len(x) >= HARD - 3
    with np.errstate(all="ignore"):
        expected = gfloat.round_ndarray(GFLOAT[name], x, sat=fmt.overflow == "saturate")
    assert identical(rounded(torch.from_numpy(x), fmt, backend=backend), torch.from_numpy(expected))


@pytest.mark.parametrize("name", NUMPY)
def test_a_million_hard_float32_as_ml_dtypes(name: str, backend: Any) -> None:
    fmt = replace(FORMATS[name], overflow="nan") if name == "e4m3fn" else FORMATS[name]
    with np.errstate(all="ignore"):
        x = hard(name).astype(np.float32)
        expected = x.astype(NUMPY[name]).astype(np.float32)
    assert identical(rounded(torch.from_numpy(x), fmt, backend=backend), torch.from_numpy(expected))


@pytest.mark.parametrize("mode", ["toward_zero", "up", "down"])
@pytest.mark.parametrize("name", GFLOAT)
def test_directed_modes_as_gfloat(name: str, mode: Mode, backend: Any) -> None:
    fmt, x = FORMATS[name], hard(name)[::7]
    with np.errstate(all="ignore"):
        expected = gfloat.round_ndarray(GFLOAT[name], x, MODES[mode], sat=fmt.overflow == "saturate")
    assert identical(rounded(torch.from_numpy(x), fmt, mode, backend=backend), torch.from_numpy(expected))


def test_float64_to_float32_as_the_processor(backend: Any) -> None:
    x = torch.from_numpy(hard("fp32"))
    assert identical(rounded(x, FP32, backend=backend), x.float().double())
    assert identical(rounded(x, FP64, backend=backend), x)


def test_saturation_is_torch_s_and_the_other_conversion_is_that_of_ml_dtypes(backend: Any) -> None:
    """torch saturates e4m3fn, infinities too; ml_dtypes makes NaN of both: the two conversions of the specification."""
    x = torch.tensor([448.0, 464.0, 464.1, 1e9, math.inf, -math.inf, -500.0, math.nan])
    saturating, other = rounded(x, E4M3FN, backend=backend), replace(E4M3FN, overflow="nan")
    assert identical(saturating, x.to(torch.float8_e4m3fn).float())
    assert saturating[:6].tolist() == [448, 448, 448, 448, 448, -448]
    expected = x.numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert identical(rounded(x, other, backend=backend), torch.from_numpy(expected))
    assert np.isnan(expected[2:6]).all()


@given(st.lists(floats(), min_size=1, max_size=20), formats(), st.sampled_from(list(MODES)))
def test_float64_tensors_are_rounded_as_numbers_are(backend: Any, values: list[float], fmt: Format, mode: Mode) -> None:
    result = rounded(torch.tensor(values, dtype=torch.float64), fmt, mode, backend=backend)
    expected = [round_number(x, fmt, mode) for x in values]
    assert identical(result, torch.tensor(expected, dtype=torch.float64))


@given(st.lists(floats(32), min_size=1, max_size=20), st.data(), st.sampled_from(list(MODES)))
def test_float32_tensors_are_rounded_as_numbers_are(
    backend: Any, values: list[float], data: st.DataObject, mode: Mode
) -> None:
    fmt = data.draw(formats(24, -126, 127).filter(lambda drawn: drawn.within(FP32)))
    # What holds the numbers bounds an unbounded format.
    bounded = fmt if fmt.bounded else Format(fmt.name, fmt.t, -126, 127)
    result = rounded(torch.tensor(values, dtype=torch.float32), fmt, mode, backend=backend)
    expected = [round_number(x, bounded, mode) for x in values]
    assert identical(result, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize(
    ("fmt", "x"),
    [
        (Format("e9", 12, emin=-134, emax=66), 5.819032002955235e-41),
        (Format("x", 5, emin=-131, emax=115, subnormals=False), 5.280541e-40),
    ],
    ids=lambda case: getattr(case, "name", None),
)
def test_formats_with_smaller_normal_numbers_than_the_carrier_s_take_a_wider_one(
    fmt: Format, x: float, backend: Any
) -> None:
    values = torch.tensor([x, -x, 2.0**-130, 2.0**-126])
    with pytest.raises(ResidlabError, match=r"float32 does not hold every number of .*; use float64"):
        rounded(values, fmt, backend=backend)
    expected = [round_fraction(Fraction(value), fmt) for value in values.tolist()]
    assert rounded(values.double(), fmt, backend=backend).tolist() == expected


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("carrier", INTEGERS, ids=str)
def test_flushing_by_the_processor_does_not_matter(carrier: torch.dtype, threads: int, backend: Any) -> None:
    own = FP32 if carrier == torch.float32 else FP64
    assert own.emin is not None
    fmt = Format("x", 8, own.emin + 6, 127)
    values = [math.ldexp(n, own.emin - 2) for n in (1, 2, 3, 4, 5, 7, 255, 256, 257)]
    x = torch.tensor(values, dtype=carrier).repeat(5000)
    expected = torch.tensor([round_fraction(Fraction(value), fmt) for value in values], dtype=carrier).repeat(5000)
    before = torch.get_num_threads()
    if not torch.set_flush_denormal(True):
        pytest.skip("not run: this processor cannot be set to flush subnormal numbers")
    try:
        torch.set_num_threads(threads)
        result = rounded(x, fmt, backend=backend)
        kept = torch.ones(1, dtype=carrier) * own.smallest_normal / 2 == 0  # the processor's state stays as it was
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
    assert identical(result, expected)
    assert kept


@pytest.mark.parametrize("carrier", INTEGERS, ids=str)
def test_tensors_with_the_negative_bit(carrier: torch.dtype, backend: Any) -> None:
    """What torch has yet to negate: the imaginary part of a conjugate."""
    for count in (1, 3):
        parts = torch.arange(1, count + 1, dtype=carrier) + 0.1
        x = torch.complex(parts, 2 * parts).conj().imag
        assert x.is_neg()
        assert identical(rounded(x, BF16, backend=backend), rounded(-2 * parts, BF16, backend=backend))
        for a, b in ((x, parts), (parts, x)):
            expected = [round_fraction(Fraction(p) - 2 * Fraction(p), BF16) for p in parts.tolist()]
            assert added(a, b, BF16, backend=backend).tolist() == expected


@pytest.mark.parametrize(
    ("integers", "floats_", "bits"),
    [
        (torch.int32, torch.float32, (0x7F800001, 0x7FC12345, -1)),
        (torch.int64, torch.float64, (0x7FF0000000000001, -1)),
    ],
)
def test_nan_keeps_its_payload(integers: Any, floats_: Any, bits: tuple[int, ...], backend: Any) -> None:
    x = torch.tensor(bits, dtype=integers).view(floats_)
    for fmt in (BF16, FP16, E4M3FN, Format.of(9)):
        for mode in MODES:
            assert torch.equal(rounded(x, fmt, mode, backend=backend).view(integers), x.view(integers))


def test_zeros_keep_their_sign_and_results_theirs(backend: Any) -> None:
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-30], dtype=torch.float64)
    assert identical(rounded(x, FP16, backend=backend), torch.tensor([0.0, -0.0, 0.0, -0.0], dtype=torch.float64))
    up = torch.tensor([0.0, -0.0, 2.0**-24, -0.0], dtype=torch.float64)
    assert identical(rounded(x, FP16, "up", backend=backend), up)
    flushing = replace(FP16, subnormals=False)
    assert identical(rounded(x, flushing, "up", backend=backend), torch.tensor([0.0, -0.0, 0.0, -0.0]).double())


def test_flushing_breaks_every_relative_bound(backend: Any) -> None:
    """The largest number below the smallest normal one is off by all of itself, and is not the nearest."""
    x = torch.tensor([2.0**-14 - 2.0**-24])
    assert rounded(x, FP16, backend=backend).item() == x.item()
    assert rounded(x, replace(FP16, subnormals=False), backend=backend).item() == 0


# --- arrays, shapes -------------------------------------------------------------------------------------------------


def test_arrays_and_tensors_of_any_shape(backend: Any) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    expected = rounded(torch.from_numpy(x), BF16, backend=backend)
    assert isinstance(expected, Tensor)
    for array in (x, x.transpose(2, 0, 1), x[::-1, ::2], np.array(1.1), np.empty((0, 3)), x.astype(np.float32)):
        result = rounded(array, BF16, backend=backend)
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        entries = [round_number(float(v), BF16) for v in array.ravel()]
        assert result.ravel().tolist() == entries
    assert torch.equal(rounded(torch.from_numpy(x).permute(1, 2, 0), BF16, backend=backend), expected.permute(1, 2, 0))


@pytest.mark.parametrize("value", [np.float32(1.1), np.float64(-1.1)])
def test_scalars_of_numpy(value: Any, backend: Any) -> None:
    result = rounded(value, BF16, backend=backend)
    assert (type(result), np.shape(result)) == (type(value), ())
    assert result == round_fraction(Fraction(float(value)), BF16)


def test_the_argument_is_left_alone_and_there_is_no_gradient(backend: Any) -> None:
    x = torch.randn(9, requires_grad=True)
    before = x.detach().clone()
    result = rounded(x, BF16, backend=backend)
    assert not result.requires_grad
    assert not added(x, x, BF16, backend=backend).requires_grad
    assert torch.equal(x, before)
    assert rounded(x.detach(), FP32, backend=backend).data_ptr() != x.data_ptr()


# --- stochastic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", INTEGERS, ids=str)
@pytest.mark.parametrize("fmt", [BF16, FP16, E5M2, Format.of(6)], ids=lambda fmt: fmt.name)
def test_stochastic_rounding_is_unbiased_and_goes_to_a_neighbour(fmt: Format, carrier: Any, backend: Any) -> None:
    """64 numbers, subnormal and tiny ones too: the share of 4000 draws that go up is within 5 standard errors.

    The probability that one of 64 shares is further off is below 1e-4; seeds are fixed.
    """
    generator = torch.Generator().manual_seed(1)
    mantissas = torch.rand(64, generator=generator, dtype=torch.float64) + 1
    smallest = -20.0 if not fmt.bounded else math.log2(fmt.smallest_subnormal)
    exponents = torch.cat([torch.linspace(-4, 3, 32), torch.linspace(smallest - 5, smallest + 6, 32)]).round()
    x = (mantissas * 2.0 ** exponents.double() * torch.tensor([1.0, -1.0]).repeat(32)).to(carrier)
    low, high = (rounded(x, fmt, mode, backend=backend).double() for mode in ("down", "up"))
    count = 4000
    draws = rounded(x.expand(count, 64), fmt, "stochastic", seed=5, backend=backend).double()
    assert ((draws == low) | (draws == high)).all()
    width = (high - low).clamp(min=1e-300)
    share, probability = (draws == high).double().mean(0), (x.double() - low) / width
    deviation = (probability * (1 - probability) / count).sqrt()
    assert ((share - probability).abs() <= 5 * deviation + 2 / count).all()


def test_stochastic_probabilities_are_exact_down_to_the_last_bit(backend: Any) -> None:
    """float32 to 22 bits drops two: of the four addends each is as likely, so shares are 0, 1/4, 1/2, 3/4."""
    count = 200_000
    x = (1 + torch.arange(4) * 2.0**-23).expand(count, 4)
    shares = (rounded(x, Format.of(22), "stochastic", seed=0, backend=backend) > 1).double().mean(0)
    assert shares[0] == 0
    assert ((shares - torch.arange(4) / 4).abs() < 5 * (0.25 / count) ** 0.5).all()


@pytest.mark.parametrize("fmt", [BF16, FP16, E4M3FN, TF32, Format.of(5)], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("carrier", INTEGERS, ids=str)
def test_stochastic_rounding_is_the_same_everywhere(fmt: Format, carrier: Any) -> None:
    x = torch.from_numpy(hard("fp16")[::9]).to(carrier)
    reference = rounded(x, fmt, "stochastic", seed=3, backend="reference")
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert identical(rounded(x, fmt, "stochastic", seed=3), reference)
    finally:
        torch.set_num_threads(threads)
    assert not identical(rounded(x, fmt, "stochastic", seed=4), reference)


def test_entries_and_neighbouring_seeds_are_independent() -> None:
    x = torch.full((100_000,), 1 + 2.0**-8)  # a coin
    coins = torch.stack([rounded(x, BF16, "stochastic", seed=seed) > 1 for seed in (0, 1, 2, 3)]).double() - 0.5
    rows = torch.cat([coins, coins.roll(1, 1)])
    correlations = 4 * rows @ rows.T / rows.shape[1] - torch.eye(len(rows))
    assert correlations.abs().max() < 5 / rows.shape[1] ** 0.5


def test_a_generator_gives_seeds_and_moves_on() -> None:
    x = torch.randn(1000)
    generator = torch.Generator().manual_seed(8)
    first, second = (rounded(x, BF16, "stochastic", seed=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, rounded(x, BF16, "stochastic", seed=torch.Generator().manual_seed(8)))


# --- sums -----------------------------------------------------------------------------------------------------------

carriers = st.sampled_from(["float32", "float64"])


@settings(max_examples=150)
@given(st.data(), carriers, st.sampled_from(list(MODES)))
def test_a_sum_is_rounded_once(backend: Any, data: st.DataObject, carrier: str, mode: Mode) -> None:
    width, bits = (32, 22) if carrier == "float32" else (64, 51)
    own = FP32 if carrier == "float32" else FP64
    fmt = data.draw(formats(bits, own.emin or 0, own.emax or 0).filter(lambda drawn: drawn.within(own)))
    finite = floats(width).filter(lambda x: math.isfinite(x) and abs(x) <= own.largest / 4)
    pairs = data.draw(st.lists(st.tuples(finite, finite), min_size=1, max_size=8))
    # And what cannot be told from a number of the format in the carrier.
    pairs += [(a, math.ldexp(b, -own.t) if abs(b) > own.smallest_normal * 2**own.t else 0.0) for a, b in pairs]
    a, b = torch.tensor(pairs, dtype=getattr(torch, carrier)).unbind(-1)
    result = added(a, b, fmt, mode, backend=backend)
    exact = [Fraction(x.item()) + Fraction(y.item()) for x, y in zip(a, b, strict=True)]
    expected = [round_fraction(total, fmt, mode, carrier) for total in exact]
    assert result.tolist() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


@settings(max_examples=150)
@given(st.data(), carriers, st.sampled_from(list(MODES)))
def test_sums_that_overflow_the_carrier(backend: Any, data: st.DataObject, carrier: str, mode: Mode) -> None:
    """A directed mode stops at the format's largest number, however large the exact sum is."""
    own, bits = (FP32, 22) if carrier == "float32" else (FP64, 51)
    fmt = data.draw(formats(bits, own.emin or 0, own.emax or 0).filter(lambda drawn: drawn.within(own)))
    share = st.integers(0, 255).map(lambda n: (1 - n / 256) * own.largest)
    pairs = data.draw(st.lists(st.tuples(share, share), min_size=1, max_size=8))
    for sign in (1, -1):
        a, b = (sign * torch.tensor(pairs, dtype=getattr(torch, carrier))).unbind(-1)
        exact = [Fraction(x.item()) + Fraction(y.item()) for x, y in zip(a, b, strict=True)]
        expected = [round_fraction(total, fmt, mode, carrier) for total in exact]
        result = added(a, b, fmt, mode, backend=backend)
        assert result.tolist() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_infinite_terms_stay_infinite_in_every_mode(backend: Any) -> None:
    a, b = torch.tensor([3e38, -3e38, math.inf, -math.inf, math.inf]), torch.tensor([3e38, -3e38, 1, 1, -math.inf])
    most, inf = BF16.largest, math.inf
    ends = {"nearest": (inf, -inf), "toward_zero": (most, -most), "up": (inf, -most), "down": (most, -inf)}
    for mode in MODES:
        expected = torch.tensor([*ends[mode], inf, -inf, math.nan])
        assert identical(added(a, b, BF16, mode, backend=backend), expected)
    certain = torch.tensor([inf, -inf, inf, -inf, math.nan])
    for seed in range(8):
        assert identical(added(a, b, BF16, "stochastic", seed=seed, backend=backend), certain)


def test_rounding_the_carrier_s_sum_would_round_twice(backend: Any) -> None:
    """The case that round-to-odd is for; without it a directed mode does not even see the small term."""
    a, b = torch.tensor([1 + 2.0**-8, 1.0]), torch.tensor([2.0**-40, 2.0**-40])
    assert rounded(a + b, BF16, backend=backend).tolist() == [1.0, 1.0]
    assert added(a, b, BF16, backend=backend).tolist() == [1 + 2.0**-7, 1.0]
    assert rounded(a + b, BF16, "up", backend=backend).tolist() == [1 + 2.0**-7, 1.0]
    assert added(a, b, BF16, "up", backend=backend).tolist() == [1 + 2.0**-7, 1 + 2.0**-7]


def test_sums_with_infinities(backend: Any) -> None:
    a, b = torch.tensor([math.inf, math.inf, 65504.0, -65504.0]), torch.tensor([1.0, -math.inf, 16.0, -15.9])
    expected = torch.tensor([math.inf, math.nan, math.inf, -65504.0])
    assert identical(added(a, b, FP16, backend=backend), expected)


def test_native_sums_are_the_carrier_s_own(backend: Any) -> None:
    a, b = torch.randn(2, 1000).unbind()
    for fmt in (FP32, Format.of(24)):
        assert torch.equal(added(a, b, fmt, backend=backend), a + b)
    wide = added(a.double(), b.double(), FP32, backend=backend)
    assert torch.equal(wide, (a + b).double())
    assert torch.equal(added(a.double(), b.double(), FP64, backend=backend), a.double() + b.double())


def test_sums_broadcast_and_stochastic_ones_agree(backend: Any) -> None:
    a, b = torch.randn(5, 1, 7, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    result = added(a, b, BF16, "stochastic", seed=2, backend=backend)
    assert result.shape == (5, 3, 7)
    assert torch.equal(result, added(a, b, BF16, "stochastic", seed=2, backend="reference"))
    low, high = (added(a, b, BF16, mode, backend=backend) for mode in ("down", "up"))
    assert ((result == low) | (result == high)).all()


# --- what is refused, and what falls back ---------------------------------------------------------------------------

X = torch.ones(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rounded(X.bfloat16(), BF16), "x must be of dtype float32 or float64; got bfloat16"),
        (lambda: rounded(np.ones(3, dtype=np.int64), BF16), "x must be of dtype float32 or float64; got int64"),
        (lambda: rounded(np.ones(3, dtype=np.float16), BF16), "got float16"),
        (lambda: rounded(np.ones(3, ">f4"), BF16), "float32 or float64; got >f4, of foreign byte order"),
        pytest.param(
            lambda: rounded(np.ones(3, np.longdouble), BF16),
            f"x must be of dtype float32 or float64; got {np.dtype(np.longdouble)}",
            marks=pytest.mark.skipif(np.finfo(np.longdouble).bits == 64, reason="long double is float64 here"),
        ),
        (lambda: rounded(np.int64(3), BF16), "x must be of dtype float32 or float64; got int64"),
        (lambda: rounded(X, FP64), r"float32 does not hold every number of fp64 .*use float64"),
        (lambda: rounded(X, BF16, "even"), "mode must be one of nearest, .*, stochastic; got 'even'"),
        (lambda: rounded(X, BF16, "stochastic"), "needs a seed, a whole number from 0 to .*; got None"),
        (lambda: rounded(X, BF16, "stochastic", seed=-1), "got -1"),
        (lambda: rounded(X, BF16, seed=1), "mode 'nearest' takes no seed"),
        (lambda: rounded(X, BF16, backend="fast"), "backend must be one of auto, reference, compiled; got 'fast'"),
        (lambda: rounded(X.to("meta"), BF16, backend="compiled"), "'compiled' runs on CPU tensors; got one on meta"),
        (lambda: added(X, X.double(), BF16), "of one dtype; got torch.float32 and torch.float64"),
        (lambda: added(X, X, Format.of(23)), r"t23 \(t = 23, mode nearest\) need a carrier of t \+ 2 bits.*has 24"),
        (lambda: added(X, X, FP32, "up"), r"fp32 \(t = 24, mode up\) need"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        call()


def test_one_notice_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from residlab.kernels import building
    from residlab.precision import compiled

    x = torch.randn(100)
    expected = rounded(x, BF16, backend="reference")
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    compiled.available.cache_clear()
    compiled.library.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert torch.equal(rounded(x, BF16), expected)
            assert torch.equal(rounded(x, BF16, backend="compiled"), expected)
        assert [str(entry.message) for entry in said] == [
            "emulated arithmetic falls back to eager torch: no C++ compiler on PATH (tried c++, g++, clang++)"
        ]
    finally:
        compiled.available.cache_clear()
        compiled.library.cache_clear()


def test_the_package_itself_imports_nothing() -> None:
    code = "import sys, residlab.precision; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
