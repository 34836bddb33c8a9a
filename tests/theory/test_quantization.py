"""The crest-factor law and its floors: attacked by hypothesis, checked by quadrature and by exact rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad

from residlab.theory.laws import LAWS, gaussian_tail, laplace_tail
from residlab.theory.quantization import (
    bounding_bits,
    decibels,
    gaussian_peak,
    laplace_peak,
    law_error_bound,
    law_sqnr,
    measured_sqnr,
    nmse,
    rounded,
    sqnr_floor,
    steps,
)

ENTRIES = arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e4, 1e4, allow_subnormal=False))


def crest_of(x):
    peak = np.abs(x).max()
    return peak / np.sqrt(np.mean((x / peak) ** 2)) / peak


@settings(max_examples=500)
@given(ENTRIES, st.integers(2, 16))
@example(np.array([1.0, 0.0]), 2)
@example(np.array([9e-158, 1.0]), 2)
@example(np.array([1528.0, 0.03125]), 2)
@example(np.array([1.0] + [0.49999] * 39), 2)
@example(np.array([1.0] + [0.5 / 127] * 39), 8)
def test_no_tensor_is_below_the_floors(x, bits):
    assume(np.abs(x).max() > 1e-100)
    crest = crest_of(x)
    got = measured_sqnr(x, bits)
    assert got >= sqnr_floor(bits, crest) - 1e-9
    floor = sqnr_floor(bits, crest, len(x))
    # Where nearly all the energy is one entry's, 1 - C**2/n cancels: its relative error is eps over itself.
    cancelled = 40 * np.finfo(np.float64).eps * 10 ** (min(floor, 140) / 10)
    assert floor > 140 or got >= floor - 1e-9 - cancelled


def test_both_floors_are_attained():
    """Entries half a step away from a level; and entries that are all rounded to 0."""
    most = 2**7 - 1
    halves = np.append(1.0, np.full(10**6, 0.5 / most - 1e-12))
    assert measured_sqnr(halves, 8) == pytest.approx(sqnr_floor(8, crest_of(halves), len(halves)), abs=1e-9)
    worst = np.append(1.0, (np.arange(126) + 0.5) / most)
    worst = np.append(worst, np.tile(worst[1:], 5000))
    assert measured_sqnr(worst, 8) == pytest.approx(sqnr_floor(8, crest_of(worst)), abs=0.01)


def test_an_outlier_holds_the_ratio_up_where_the_law_would_have_it_negative():
    rng = np.random.default_rng(0)
    x = np.append(rng.standard_normal(576 * 512), 5000.0)
    law = law_sqnr(4, crest_of(x))
    assert law < -25
    assert measured_sqnr(x, 4) == pytest.approx(sqnr_floor(4, crest_of(x), len(x)), abs=1e-9)
    assert measured_sqnr(x, 4) > 15


@pytest.mark.parametrize(
    ("law", "variation"),
    [("gaussian", 2 / math.sqrt(2 * math.pi)), ("laplace", math.sqrt(2)), ("uniform", 1 / math.sqrt(3))],
)
@pytest.mark.parametrize("step", [0.01, 0.1, 0.37, 1.0, 2.3])
def test_the_laws_error_is_within_its_bound(law, variation, step):
    density = LAWS[law].density
    reach = 40.0 if law == "laplace" else 12.0

    def cell(k):
        low, high = (k - 0.5) * step, (k + 0.5) * step
        kinks = [point for point in (0.0, 3**0.5) if low < point < high]
        return quad(lambda x: (x - k * step) ** 2 * density(x), low, high, points=kinks or None, epsabs=1e-15)[0]

    total = cell(0) + 2 * math.fsum(cell(k) for k in range(1, min(4000, int(reach / step) + 2)))
    departure = abs(total / (step**2 / 12) - 1)
    assert departure <= law_error_bound(step, variation) + 1e-7


def test_the_bound_is_of_the_right_order():
    """A uniform density on the part of one cell where the error is below average comes to half of it."""
    root = 1 / math.sqrt(12)
    departure = 1 - (root**2 / 3) / (1 / 12)
    assert departure == pytest.approx(float(law_error_bound(1.0, 2 / (2 * root))) / 2)


def test_an_atom_breaks_the_law():
    """Its hypothesis is a density: all entries at levels lose nothing, all half-way lose three times the law."""
    most = 7
    on_levels = np.append(np.tile(np.arange(-7, 8) / most, 100), 1.0)
    assert measured_sqnr(on_levels, 4) == math.inf or measured_sqnr(on_levels, 4) > 250
    between = np.append(np.tile((np.arange(6) + 0.5) / most, 3000), 1.0)
    assert measured_sqnr(between, 4) == pytest.approx(law_sqnr(4, crest_of(between)) - 10 * math.log10(3), abs=0.02)


@pytest.mark.parametrize("bits", [4, 6, 8, 12])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_samples_obey_the_law_where_steps_are_fine(bits, law):
    rng = np.random.default_rng(bits)
    x = (rng.standard_normal if law == "gaussian" else rng.laplace)(size=400_000)
    x /= x.std()
    step = 2 * np.abs(x).max() / steps(bits)
    share = float(law_error_bound(step, 0.8 if law == "gaussian" else 1.42)) + 0.01  # and five standard errors
    got = nmse(measured_sqnr(x, bits)) / nmse(law_sqnr(bits, crest_of(x)))
    assert abs(got - 1) <= share


@pytest.mark.parametrize("n", [1, 10, 10**4, 10**7])
def test_peaks_are_medians(n):
    for peak, tail in ((gaussian_peak, gaussian_tail), (laplace_peak, laplace_tail)):
        assert (1 - tail(peak(n))) ** n == pytest.approx(0.5, rel=1e-6)
    rng = np.random.default_rng(1)
    if n == 10**4:
        largest = np.abs(rng.laplace(size=(2000, n)) / np.sqrt(2)).max(axis=1)
        assert abs(np.mean(largest <= laplace_peak(n)) - 0.5) < 0.05  # 4.5 standard errors


@given(arrays(np.float64, 5, elements=st.floats(-10, 10, allow_subnormal=False)), st.integers(2, 8))
def test_rounded_is_the_definition(x, bits):
    most = 2 ** (bits - 1) - 1
    got = rounded(x, bits, 4.0)
    for value, result in zip(x, got, strict=True):
        ratio = Fraction(float(value)) * most / 4
        distance = min(abs(ratio - level) for level in range(-most, most + 1))
        assert abs(abs(ratio - Fraction(float(result)) * most / 4) - distance) < Fraction(1, 10**12)


@given(
    arrays(np.float64, st.integers(1, 30), elements=st.floats(-50, 50).filter(lambda v: v == 0 or abs(v) > 1e-6)),
    st.floats(0.01, 20),
)
def test_a_tanh_buys_something_and_no_more_than_its_largest_argument_allows(x, gain):
    assume(np.abs(x).max() > 0)
    bought = np.log2(crest_of(gain * x) / crest_of(np.tanh(gain * x)))
    assert -1e-12 <= bought <= bounding_bits(gain * np.abs(x).max()) + 1e-12


def test_both_ends_of_what_a_tanh_buys():
    assert np.log2(crest_of(np.ones(5)) / crest_of(np.tanh(3 * np.ones(5)))) == pytest.approx(0)
    many = np.append(np.full(10**6, 1e-3), 5.0)  # almost all entries are in the linear range, and hold the energy
    many[:-1] *= 1e3 / 50
    assert np.log2(crest_of(many) / crest_of(np.tanh(many))) == pytest.approx(bounding_bits(5.0), rel=0.02)


def test_a_convex_map_costs_bits():
    x = np.array([0.1, 1.0, 3.0])
    assert crest_of(np.sinh(x)) > crest_of(x)


def test_the_law_in_numbers():
    assert law_sqnr(8, 1) == pytest.approx(4.771 + 20 * math.log10(254), abs=1e-3)
    assert law_sqnr(9, 3) - law_sqnr(8, 3) == pytest.approx(6.05, abs=0.02)
    assert nmse(law_sqnr(8, 5)) == pytest.approx((10 / 254) ** 2 / 12)
    assert sqnr_floor(2, 100) == 0
    assert sqnr_floor(2, 10, 100) == math.inf
    assert decibels(10) == pytest.approx(20)


def test_refusals():
    with pytest.raises(ValueError, match=r"bits must be finite and >= 2; got 1\.0"):
        law_sqnr(1, 3)
    with pytest.raises(ValueError, match=r"crest must be finite and >= 1; got 0\.5"):
        sqnr_floor(4, 0.5)
    with pytest.raises(ValueError, match="entries must be at least"):
        sqnr_floor(4, 10, 50)
    with pytest.raises(ValueError, match="largest magnitude must be finite and > 0"):
        measured_sqnr(np.zeros(3), 4)
    with pytest.raises(ValueError, match="variation must be finite and > 0"):
        law_error_bound(0.1, math.inf)
    with pytest.raises(ValueError, match="entries must be finite and >= 1"):
        gaussian_peak(0)
