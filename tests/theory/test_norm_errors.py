"""Forward errors of rounded norms never exceed their bounds: attacked in small and real formats, then broken."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from residlab.precision import norms
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, blocked
from residlab.precision.formats import BF16, FP16, FP32, FP64, Format
from residlab.precision.operations import Operations
from residlab.theory import conditioning as cond
from residlab.theory import norm_errors as errors

FORMATS = st.one_of(st.integers(2, 12).map(Format.of), st.sampled_from([BF16, FP32]))
ORDERS = st.sampled_from([RECURSIVE, PAIRWISE, blocked(4)])
ENTRY = st.one_of(
    st.builds(
        lambda sign, size, power: sign * size * 2.0**power,
        st.sampled_from([-1, 1]),
        st.floats(1, 2),
        st.integers(-16, 16),
    ),
    st.sampled_from([0.0, 1.0, -1.0, 256.0, 1.5, 3.0]),
)
TOKENS = arrays(np.float64, st.integers(3, 40), elements=ENTRY)
EPS = st.sampled_from([0.0, 1e-5, 0.25])
PARAMETERS = st.tuples(st.sampled_from([1.0, 2.0, 0.3]), st.sampled_from([1.0, 10.0, 0.25]))


def stored(x, fmt):
    """Numbers of the format."""
    return Operations(fmt).store(torch.as_tensor(x, dtype=torch.float64)).numpy()


def computed(name, x, fmt, order, eps=0.0, alpha=0.5, lam=2.0, kappa=10.0):
    ops, token = Operations(fmt, order), torch.as_tensor(x)
    factor = torch.tensor(lam, dtype=torch.float64)
    return {
        "rms": lambda: norms.rms_norm(ops, token, None, eps),
        "layer": lambda: norms.layer_norm(ops, token, None, None, eps),
        "dyt": lambda: norms.dyt(ops, token, torch.tensor(alpha, dtype=torch.float64), None, None),
        "bhyt": lambda: norms.bhyt_exact(ops, token, None, factor, kappa, eps, False)[0],
        "star": lambda: norms.bhyt_exact(ops, token, None, factor, kappa, eps, True)[0],
    }[name]().numpy()


def within(got, y, bound):
    """The reference is in float64: its own error is far below u, except of an entry near the mean, of size eps r."""
    assert np.all(np.abs(got - y) <= bound * (1 + 1e-6) + 1e-12), np.max(np.abs(got - y) / np.maximum(bound, 1e-300))


ATTACK = settings(max_examples=150, deadline=None)


@ATTACK
@given(TOKENS, FORMATS, ORDERS, EPS)
@example(np.ones(576), BF16, RECURSIVE, 0.0)
@example(np.append(np.ones(39), 65536.0), Format.of(2), RECURSIVE, 0.0)
def test_rms_norm(x, fmt, order, eps):
    x, eps = stored(x, fmt), float(stored(eps, fmt))
    assume(np.any(x != 0))
    y = cond.rms_norm(x, eps)
    bound = errors.rms_norm_error(fmt.u, order.depth(len(x)), eps=eps > 0)
    got = computed("rms", x, fmt, order, eps)
    within(got, y, bound * np.abs(y))
    assert np.all(got[x == 0] == 0)


@ATTACK
@given(TOKENS, FORMATS, ORDERS, EPS, st.sampled_from([0.0, 8.0, 1024.0]))
@example(np.ones(24) + np.arange(24) % 2 / 64, BF16, RECURSIVE, 0.0, 256.0)
def test_layer_norm(x, fmt, order, eps, shift):
    x, eps = stored(x + shift, fmt), float(stored(eps, fmt))
    assume(np.std(x) > 1e-6 * np.abs(x).max())
    bound = errors.layer_norm_error(x, fmt.u, order.depth(len(x)), eps)
    within(computed("layer", x, fmt, order, eps), cond.layer_norm(x, eps), bound)


@ATTACK
@given(TOKENS, FORMATS, st.sampled_from([0.25, 0.5, 1.0, 3.0]))
def test_dyt(x, fmt, alpha):
    x, alpha = stored(x, fmt), float(stored(alpha, fmt))
    y = cond.dyt(x, alpha)
    within(computed("dyt", x, fmt, RECURSIVE, alpha=alpha), y, errors.dyt_error(fmt.u) * np.abs(y))


@ATTACK
@given(TOKENS, FORMATS, ORDERS, EPS, PARAMETERS, st.booleans(), st.sampled_from([0.0, 8.0, -1024.0]))
@example(np.array([3.0, 3.0, 3.0]), BF16, RECURSIVE, 0.0, (2.0, 10.0), True, 0.0)
@example(np.array([4.0, -4.0, 1.0, -1.0]), BF16, RECURSIVE, 0.0, (2.0, 10.0), True, 0.0)
def test_bhyt(x, fmt, order, eps, parameters, centred, shift):
    x, eps = stored(x + shift, fmt), float(stored(eps, fmt))
    lam, kappa = (float(stored(each, fmt)) for each in parameters)
    assume(np.abs(x).max() > 0)
    assume(not centred or np.std(x) > 0 or abs(x.mean()) > 0)
    y = cond.bhyt(x, lam, kappa, centred=centred, eps=eps)
    bound = errors.bhyt_error(x, fmt.u, order.depth(len(x)), lam, kappa, centred=centred, eps=eps)
    got = computed("star" if centred else "bhyt", x, fmt, order, eps, lam=lam, kappa=kappa)
    within(got, y, bound)


def exact_layer_norm(x):
    """By fractions, and one root."""
    values = [Fraction(float(each)) for each in x]
    mean = sum(values) / len(values)
    variance = sum((each - mean) ** 2 for each in values) / len(values)
    return [math.copysign(math.sqrt((each - mean) ** 2 / variance), each - mean) for each in values]


@settings(max_examples=100, deadline=None)
@given(TOKENS, ORDERS, st.integers(0, 4))
def test_layer_norm_against_fractions(x, order, shift):
    x = stored(x + 2.0 ** (2 * shift), BF16)
    assume(len(set(x)) > 1)
    bound = errors.layer_norm_error(x, BF16.u, order.depth(len(x)))
    y = np.array(exact_layer_norm(x))
    np.testing.assert_allclose(cond.layer_norm(x), y, rtol=1e-9, atol=1e-9)
    assert np.all(np.abs(computed("layer", x, BF16, order) - y) <= bound + 1e-9)


# --- How near the bounds are, and that each of their parts is needed


def worst_ratio(name, bound, tokens, fmt, order):
    ratios = []
    for x in tokens:
        x = stored(x, fmt)
        y = {"rms": cond.rms_norm, "layer": cond.layer_norm}[name](x)
        ratios.append(np.max(np.abs(computed(name, x, fmt, order) - y) / np.maximum(bound(x), 1e-300)))
    return max(ratios)


def test_they_are_not_idle():
    """Errors of a fair share of the bound exist, so that a bound of half the size would be false."""
    rng = np.random.default_rng(0)
    tokens = [rng.normal(size=4) for _ in range(4000)]
    for name, bound in (
        ("rms", lambda x: errors.rms_norm_error(FP16.u, 2) * np.abs(cond.rms_norm(x))),
        ("layer", lambda x: errors.layer_norm_error(x, FP16.u, 2)),
    ):
        assert 0.5 < worst_ratio(name, bound, tokens, FP16, PAIRWISE) <= 1


def test_stagnation_is_within_the_bound_although_nu_exceeds_one():
    """In bf16 the sum of 576 ones stops at 256: an error of a half, where the classical bound says nothing at all."""
    x = np.ones(576)
    got = computed("rms", x, BF16, RECURSIVE)
    assert got[0] == pytest.approx(1.5, abs=0.01)
    assert 576 * BF16.u > 1
    assert errors.rms_norm_error(BF16.u, 575) == pytest.approx((1 + 2**-8) ** 291.5 - 1)
    pairs = computed("rms", x, BF16, PAIRWISE)
    assert abs(pairs[0] - 1) <= errors.rms_norm_error(BF16.u, 10) < 0.04


def test_cancellation_is_the_mean_s():
    """A token far from 0: outputs near 0 lose all digits, the others none; the bound says which."""
    x = np.array(
        [64.0] * 16 + [64.5] * 15 + [65.0]
    )  # neighbours in bf16: the mean is rounded by half of their distance
    y = cond.layer_norm(x)
    got = computed("layer", x, BF16, PAIRWISE)
    bound = errors.layer_norm_error(x, BF16.u, PAIRWISE.depth(len(x)))
    error = np.abs(got - y)
    within(got, y, bound)
    assert error.max() > 0.05, "and it is no small error"
    far = computed("rms", x, BF16, PAIRWISE)
    assert np.abs(far / cond.rms_norm(x) - 1).max() < 0.05


# --- Outside the hypotheses


def test_fp16_overflows_in_the_sum_long_before_a_square_does():
    d = 576
    rms = math.sqrt(FP16.largest / d)
    assert rms < 11
    below, above = (stored(np.full(d, size), FP16) for size in (0.98 * rms, 1.02 * rms))
    assert np.abs(computed("rms", below, FP16, PAIRWISE) - 1).max() <= errors.rms_norm_error(FP16.u, 10)
    for name in ("rms", "bhyt"):
        assert np.all(computed(name, above, FP16, PAIRWISE) == 0), "finite entries, silent zeros"
    assert np.all(np.isfinite(above))
    assert above.max() < 256
    assert computed("dyt", above, FP16, PAIRWISE)[0] == 1, "DyT squares nothing"
    sparse = np.zeros(d)
    sparse[0], sparse[1] = 256.0, 1.0
    assert np.all(computed("rms", sparse, FP16, PAIRWISE) == 0)
    sparse[0] = 255.0
    assert computed("rms", sparse, FP16, PAIRWISE)[0] == pytest.approx(24, rel=0.01)


def test_scaling_by_a_power_of_two_changes_nothing_but_the_range():
    x = stored(np.random.default_rng(1).normal(size=576) * 40, FP16)
    assert np.all(computed("rms", x, FP16, PAIRWISE) == 0)
    small = x * 2.0**-6
    y = cond.rms_norm(x)
    assert np.all(np.abs(computed("rms", small, FP16, PAIRWISE) - y) <= errors.rms_norm_error(FP16.u, 10) * np.abs(y))


def test_subnormal_squares_break_the_bound():
    x = stored(np.full(576, 2.0**-12), FP16)
    got = computed("rms", x, FP16, PAIRWISE)
    assert abs(got[0] - 1) < 0.01, "2^-24 is the smallest subnormal, and exact"
    x = stored(np.full(576, 1.2 * 2.0**-12), FP16)
    relative = abs(computed("rms", x, FP16, PAIRWISE)[0] - 1)
    assert relative > 10 * errors.rms_norm_error(FP16.u, 10)
    x = stored(np.full(576, 2.0**-13), FP16)
    assert not np.isfinite(computed("rms", x, FP16, PAIRWISE)).all(), "all squares are 0"


def test_float64_itself_is_within():
    x = np.random.default_rng(0).normal(size=(3, 100)) + 5
    bound = errors.layer_norm_error(x, FP64.u, 99)
    assert np.all(np.abs(computed("layer", x, FP64, RECURSIVE) - cond.layer_norm(x)) <= bound)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="roundings must be finite and >= 0; got -1"):
        errors.growth(0.1, -1)
    with pytest.raises(ValueError, match="u must be finite and > 0"):
        errors.growth(0.0, 1)
    with pytest.raises(ValueError, match="depth"):
        errors.rms_norm_error(0.1, -2)
    assert errors.growth(2.0**-8, 0) == 0
