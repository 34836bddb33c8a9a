"""GELU, SiLU and blocks of them: closed forms against mpmath, bounds against rounded arithmetic in many formats."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from residlab.experiments.feedforward_rounding import computed_block, precision_of
from residlab.precision.formats import BF16, E5M2, FP16, FP32, FP64, Format
from residlab.precision.operations import Operations
from residlab.precision.roles import Roles
from residlab.theory import feedforward as ff

FORMS = {"silu": "silu", "erf": "gelu", "erfc": "gelu_erfc", "tanh": "gelu_tanh"}
FORMATS = st.one_of(st.integers(3, 12).map(Format.of), st.sampled_from([BF16, FP16, FP32, E5M2]))
NUMBERS = st.one_of(
    st.floats(-15, 15), st.floats(-1, 1), st.sampled_from([-5.0, -11.0, -11.5, -13.0, 2.0**-24, -(2.0**-15)])
).map(lambda x: x if abs(x) > 1e-30 else 0.0)  # float64's own subnormal numbers are not the question
ATTACK = settings(max_examples=300, deadline=None)


def stored(x, fmt):
    return Operations(fmt).store(torch.as_tensor(x, dtype=torch.float64)).numpy()


def evaluated(x, form, fmt):
    return getattr(Operations(fmt), FORMS[form])(torch.as_tensor(x, dtype=torch.float64)).numpy()


def gelu(x):
    return x * mpmath.ncdf(x)


def silu(x):
    return x / (1 + mpmath.exp(-x))


ORACLE = {"gelu": gelu, "silu": silu}


# --- The functions


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_functions_and_derivatives_against_mpmath(name):
    with mpmath.workdps(40):
        for x in (-30.0, -12.3, -5.0, -1.0, -0.01, 0.0, 0.3, 2.0, 9.0):
            value, slope = ORACLE[name](mpmath.mpf(x)), mpmath.diff(ORACLE[name], mpmath.mpf(x))
            assert float(ff.activation(x, name)) == pytest.approx(float(value), rel=1e-12)
            assert float(ff.derivative(x, name)) == pytest.approx(float(slope), rel=1e-11, abs=1e-300)
            if x:
                wanted = abs(float(mpmath.mpf(x) * slope / value))
                assert float(ff.relative_condition(x, name)) == pytest.approx(wanted, rel=1e-9)
    assert float(ff.relative_condition(0.0, name)) == 1


def test_constants():
    """1.1289 at sqrt 2 and 1.0998 at 2.3994, and no slope or curvature is above them anywhere."""
    x = np.linspace(-40, 40, 400_001)
    for name, place, value in (("gelu", math.sqrt(2), 1.12890), ("silu", 2.39936, 1.09984)):
        where, most = ff.steepest(name)
        assert (where, most) == (pytest.approx(place, abs=1e-5), pytest.approx(value, abs=1e-5))
        slopes = ff.derivative(x, name)
        assert np.abs(slopes).max() <= ff.lipschitz_constant(name)
        assert np.abs(slopes).max() == pytest.approx(most, rel=1e-8)
        curvature = np.abs(np.diff(slopes) / np.diff(x)).max()
        assert curvature <= ff.CURVATURE[name] * (1 + 1e-6)
        assert curvature == pytest.approx(ff.CURVATURE[name], rel=1e-4)


def test_relative_condition_grows_like_a_square_and_like_x():
    for x in (-20.0, -100.0, -1e4):
        assert x * x - 1 < float(ff.relative_condition(x, "gelu")) < x * x * (1 + 1e-15)
        assert float(ff.relative_condition(x, "silu")) == pytest.approx(abs(x) - 1, rel=1e-6)
    for name in ("gelu", "silu"):
        assert float(ff.relative_condition(50.0, name)) == 1


# --- Evaluation


@ATTACK
@given(NUMBERS, FORMATS, st.sampled_from(sorted(FORMS)))
@example(-11.5, FP16, "silu")
@example(-5.0, FP32, "erf")
def test_enclosure(x, fmt, form):
    x = stored(x, fmt)
    low, high = ff.enclosure(x, form, fmt.u, tiny=fmt.smallest_subnormal / 2 if fmt.bounded else 0, largest=fmt.largest)
    got, exact = evaluated(x, form, fmt), ff.exact_form(x, form)
    slack = 1e-14 * abs(x) + 1e-320
    assert low - slack <= got <= high + slack
    assert low - slack <= exact <= high + slack


@ATTACK
@given(NUMBERS, st.integers(10, 24).map(Format.of), st.sampled_from(["silu", "erf", "erfc"]))
def test_first_order_and_shares(x, fmt, form):
    """The first-order bound holds but for terms of order u**2, the constants A and B with nothing neglected."""
    x = stored(x, fmt)
    error = abs(evaluated(x, form, fmt) - ff.exact_form(x, form))
    second = 20 * fmt.u**2 * (1 + x**2) * (abs(ff.exact_form(x, form)) * (1 + x**2) + (form == "erf") * abs(x))
    assert error <= ff.evaluation_error(x, form, fmt.u) + second + 1e-14 * abs(x)
    a, b = ff._evaluation_shares(form, fmt.u)
    assert error <= a * abs(x) + b * abs(ff.exact_form(x, form)) + 1e-14 * abs(x)


def test_what_cancels_and_what_does_not():
    """In float32 at -5 the erf form is off by millions of units of itself, the erfc form by no more than 2 + 2x**2."""
    x = np.linspace(-5.5, -4.5, 2001)
    x = stored(x, FP32)
    exact = ff.activation(x, "gelu")
    units = {form: np.abs(evaluated(x, form, FP32) / exact - 1).max() / FP32.u for form in ("erf", "erfc", "tanh")}
    assert units["erf"] > 1e5
    assert 4 < units["erfc"] < 2 + 2 * 5.5**2 + 3
    # 2u|phi| is not enough for erfc: the argument's roundings are magnified.
    bound = ff.evaluation_error(x, "erfc", FP32.u)
    measured = np.abs(evaluated(x, "erfc", FP32) - exact)
    assert np.any(measured > 4 * FP32.u * np.abs(exact))
    assert 0.4 < (measured / bound).max() <= 1.001


# --- Blocks

ROLES = st.builds(
    lambda q, a, w, r: Roles(FP64 if a == FP64 else q, a, w, r),
    st.sampled_from([BF16, FP16, Format.of(4), Format.of(9)]),
    st.sampled_from([FP32, BF16, FP16, Format.of(6), FP64]),
    st.sampled_from([BF16, FP16, FP32, Format.of(5), FP64]),
    st.sampled_from([BF16, FP32, FP64]),
)


def random_block(seed, form, d=12, m=20):
    rng = np.random.default_rng(seed)
    scale = 10 ** rng.uniform(-1.5, 0.3)
    first = scale * rng.normal(size=(m, d))
    second = rng.normal(size=(d, m)) * 10 ** rng.uniform(-3, 0)
    up = scale * rng.normal(size=(m, d)) if form == "silu" else None
    block = ff.Block(first, second, up, "silu" if form == "silu" else "gelu")
    x = rng.standard_t(2, (3, d)).clip(-30, 30)
    if seed % 3 == 1:
        x[0] = -4 * first[0] / (first[0] @ first[0])  # a_0 = -4
    return block, x


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), ROLES, st.sampled_from(["silu", "erf", "erfc"]))
def test_rigorous_bound(seed, roles, form):
    block, x = random_block(seed, form)
    got = computed_block(block, x, roles, form)
    error = np.abs(got - block.output(x))
    bound = ff.rigorous_bound(block, x, precision_of(roles), form)
    size = np.abs(block.hidden(x)[1] * block.hidden(x)[2]) @ np.abs(block.second).T
    assert np.all((error <= bound * (1 + 1e-9) + 1e-12 * size) | ~np.isfinite(got))
    assert np.isfinite(bound).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["silu", "erf", "erfc"]))
def test_first_order_is_the_limit_of_the_rigorous_one(seed, form):
    """As u -> 0 their quotient tends to 1 where they count the same: from above, and the terms add up."""
    block, x = random_block(seed, form)
    u = 2.0**-30
    precision = ff.Precision(u, u, u, u)
    terms = ff.first_order_terms(block, x, precision, form)
    total = sum(terms.values())
    rigorous = ff.rigorous_bound(block, x, precision, form)
    assert list(terms) == list(ff.TERMS)
    assert np.all(total <= rigorous * (1 + 1e-6))
    if form == "silu":
        assert np.all(rigorous <= 1.6 * total)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["silu", "erf", "erfc"]))
def test_first_order_bound_of_blocks(seed, form):
    """Formats of many bits, where the second order is nothing."""
    block, x = random_block(seed, form)
    roles = Roles.all(Format.of(20))
    total = sum(ff.first_order_terms(block, x, precision_of(roles), form).values())
    error = np.abs(computed_block(block, x, roles, form) - block.output(x))
    assert np.all(error <= total * 1.01)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["silu", "erfc"]))
def test_dominance(seed, other, form):
    """However weights are chosen, the functions' terms stay below their multiple of the products'."""
    block, x = random_block(seed, form)
    rng = np.random.default_rng(other)
    u = 10 ** rng.uniform(-4, -2, 3)
    terms = ff.first_order_terms(block, x, ff.Precision(u[0], u[1], u[2]), form)
    functions = terms["argument"] + terms["evaluation"] + terms["gate"]
    products = terms["input"] + terms["output"]
    into, out = 2 * u[0] + block.first.shape[1] * u[1], 2 * u[0] + block.second.shape[1] * u[1]
    assert np.all(functions <= ff.dominance(form, u[2], into, out) * products * (1 + 1e-12))


def test_dominance_is_nearly_attained_and_does_not_hold_by_erf():
    """One hidden entry, one input: |a| = |W||x|. For SiLU far to the right 5/(P_d + P_m) is approached."""
    one = np.ones((1, 1))
    gated = ff.Block(one, one, one)
    terms = ff.first_order_terms(gated, np.full((1, 1), -1.27846), ff.Precision(0.01, 0, 0.01), "silu")
    ratio = (terms["argument"] + terms["evaluation"] + terms["gate"]) / (terms["input"] + terms["output"])
    assert ratio.item() > 0.9 * ff.dominance("silu", 0.01, 0.02, 0.02)
    block = ff.Block(one, one, None, "gelu")
    terms = ff.first_order_terms(block, np.full((1, 1), -8.0), ff.Precision(0.01, 0, 0.01), "erf")
    assert (terms["evaluation"] / (terms["input"] + terms["output"])).item() > 1e6
    assert ff.dominance("erf", 0.01, 0.02, 0.02) == math.inf


def test_condition_bounds_small_changes_of_all_data():
    rng = np.random.default_rng(0)
    for form in ("silu", "erf"):
        for seed in range(20):
            block, x = random_block(seed, form)
            eps = 1e-6
            moved = ff.Block(
                *(
                    None if w is None else w * (1 + eps * rng.choice([-1, 1], w.shape))
                    for w in (block.first, block.second, block.up)
                ),
                block.name,
            )
            change = np.abs(moved.output(x * (1 + eps * rng.choice([-1, 1], x.shape))) - block.output(x))
            assert np.all(change <= eps * ff.condition(block, x) * 1.001 + 1e-13)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="name must be one of 'silu', 'gelu'; got 'relu'"):
        ff.activation(1.0, "relu")
    with pytest.raises(ValueError, match="form must be one of"):
        ff.enclosure(1.0, "exact", 0.1)
    with pytest.raises(ValueError, match="x must be finite"):
        ff.derivative(np.inf, "gelu")
    with pytest.raises(ValueError, match="functions must be finite and >= 0; got -1"):
        ff.Precision(functions=-1)
