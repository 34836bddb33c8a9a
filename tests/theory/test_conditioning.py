"""Condition numbers of norms: Jacobians by complex steps, closed forms by Jacobians and mpmath, bounds under attack."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from residlab.theory import conditioning as cond

ENTRY = st.one_of(
    st.builds(
        lambda sign, size, power: sign * size * 10.0**power,
        st.sampled_from([-1, 1]),
        st.floats(1, 10),
        st.integers(-5, 5),
    ),
    st.sampled_from([0.0, 1.0, -1.0, 256.0, 1e6, 1.0 + 2.0**-40]),
)
TOKENS = arrays(np.float64, st.integers(3, 24), elements=ENTRY)
WORKED = np.array([-3.0, -1.0, 0.0, 0.5, 2.0])
KAPPAS = st.floats(0.2, 30)
LAMS = st.floats(0.01, 8)


def usable(x):
    """Neither zero nor so nearly constant that float64 cannot tell: the oracle's own limits."""
    size = np.abs(x).max()
    return size > 1e-9 and np.std(x) > 1e-6 * size


def complex_norm(name, eps=0.0, lam=2.0, kappa=10.0, alpha=0.5, sign=1.0):
    """The functions once more, of complex numbers; `sign` is that of the mean, whose absolute value is wanted."""

    def layer(x):
        c = x - x.mean()
        return c / np.sqrt((c * c).mean() + eps)

    def star(x):
        c = x - x.mean()
        return np.tanh(lam * x / (kappa * np.sqrt((c * c).mean() + eps) + sign * x.mean()))

    return {
        "layer": layer,
        "rms": lambda x: x / np.sqrt((x * x).mean() + eps),
        "dyt": lambda x: np.tanh(alpha * x),
        "bhyt": lambda x: np.tanh(lam * x / (kappa * np.sqrt((x * x).mean() + eps))),
        "star": star,
    }[name]


def ours(name, x, eps=0.0, lam=2.0, kappa=10.0, alpha=0.5):
    """Value and Jacobian by the library."""
    return {
        "layer": lambda: (cond.layer_norm(x, eps), cond.layer_norm_jacobian(x, eps)),
        "rms": lambda: (cond.rms_norm(x, eps), cond.rms_norm_jacobian(x, eps)),
        "dyt": lambda: (cond.dyt(x, alpha), cond.dyt_jacobian(x, alpha)),
        "bhyt": lambda: (
            cond.bhyt(x, lam, kappa, centred=False, eps=eps),
            cond.bhyt_jacobian(x, lam, kappa, centred=False, eps=eps),
        ),
        "star": lambda: (
            cond.bhyt(x, lam, kappa, centred=True, eps=eps),
            cond.bhyt_jacobian(x, lam, kappa, centred=True, eps=eps),
        ),
    }[name]()


NAMES = ["layer", "rms", "dyt", "bhyt", "star"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_jacobians_are_those_of_a_complex_step(name, eps, seed):
    x = np.random.default_rng(seed).normal(size=7) * 3 + seed
    f = complex_norm(name, eps, sign=math.copysign(1.0, x.mean()))
    y, J = ours(name, x, eps)
    np.testing.assert_allclose(y, f(x + 0j).real, rtol=1e-13)
    steps = np.array([f(x + 1e-40j * e).imag / 1e-40 for e in np.eye(7)]).T
    np.testing.assert_allclose(J, steps, rtol=1e-11, atol=1e-14)


def test_a_batch_is_its_tokens():
    x = np.random.default_rng(0).normal(size=(2, 3, 9)) + 0.4
    for name in NAMES:
        y, J = ours(name, x)
        whole = cond.condition_numbers(J, x, y)
        for place in np.ndindex(2, 3):
            own_y, own_J = ours(name, x[place])
            own = cond.condition_numbers(own_J, x[place], own_y)
            assert whole.normwise[place] == pytest.approx(own.normwise)
            assert whole.componentwise[place] == pytest.approx(own.componentwise)
            assert whole.mixed[place] == pytest.approx(own.mixed)
    np.testing.assert_allclose(cond.layer_norm_entries(x)[1, 2], cond.layer_norm_entries(x[1, 2]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_the_numbers_are_what_the_worst_small_change_does(name, seed):
    """No Jacobian of ours in the oracle: signs from a complex step, then an honest change of the token, in mpmath."""
    x = np.random.default_rng(seed).normal(size=6) * 2 + 0.3
    y, J = ours(name, x)
    numbers = cond.condition_numbers(J, x, y)
    f = complex_norm(name, sign=math.copysign(1.0, x.mean()))
    slopes = np.array([f(x + 1e-40j * e).imag / 1e-40 for e in np.eye(6)]).T
    size = 1e-7
    for i in range(6):
        changed = x * (1 + size * np.sign(slopes[i] * x))
        assert abs(f(changed)[i] - y[i]) / abs(y[i]) / size == pytest.approx(numbers.entries[i], rel=1e-4)
    direction = np.linalg.svd(slopes)[2][0] * np.linalg.norm(x)
    moved = np.linalg.norm(f(x + size * direction) - y) / np.linalg.norm(y)
    assert moved / size == pytest.approx(numbers.normwise, rel=1e-4)
    assert cond.mixed(numbers.entries, y) == pytest.approx(numbers.mixed)


# --- Closed forms


@given(TOKENS)
@example(WORKED)
@example(np.array([1e3] + [1.0] * 63))
@example(np.array([1.0, 1.0, -2.0, 0.0, 5.0]))
def test_layer_norm_in_closed_form(x):
    assume(usable(x))
    y, J = ours("layer", x)
    wanted = cond.condition_numbers(J, x, y)
    assert cond.layer_norm_normwise(x) == pytest.approx(wanted.normwise, rel=1e-6)
    got = cond.layer_norm_entries(x)
    # Both lose eps times what is summed, over what is left; the normwise number stands for what is summed.
    spare = 1e-12 * wanted.normwise * np.abs(x).max() / np.maximum(np.abs(x - x.mean()), 1e-300)
    finite = np.abs(x - x.mean()) > 1e-9 * np.abs(x).max()
    assert np.all(np.abs(got[finite] - wanted.entries[finite]) <= (1e-6 * wanted.entries + spare)[finite])


def test_layer_norm_in_closed_form_by_mpmath():
    rng = np.random.default_rng(1)
    tokens = [rng.normal(size=40), rng.standard_t(2, size=40) + 50, np.append(rng.normal(size=39), 3e4)]
    tokens += [np.append(np.full(39, 2.0), 1e3), np.array([1.0, 2.0, 4.0, 1e8])]
    for x in tokens:
        with mpmath.workdps(50):
            v = [mpmath.mpf(float(each)) for each in x]
            d = len(v)
            c = [each - sum(v) / d for each in v]
            s = mpmath.sqrt(sum(each**2 for each in c) / d)
            for i, got in enumerate(cond.layer_norm_entries(x)):
                row = [((i == j) - mpmath.mpf(1) / d - c[i] * c[j] / s**2 / d) / s for j in range(d)]
                wanted = sum(abs(a * b) for a, b in zip(row, v, strict=True)) / abs(c[i] / s)
                # An outlier's own row is a difference of numbers d times as large, so this is absolute there.
                assert got == pytest.approx(float(wanted), rel=1e-9, abs=1e-9)


@given(TOKENS)
@example(WORKED)
@example(np.array([1e6, 1e-6, 1e-6]))
def test_rms_norm_is_two_at_most_on_every_token(x):
    assume(np.abs(x).max() > 1e-9)
    y, J = ours("rms", x)
    wanted = cond.condition_numbers(J, x, y)
    got = cond.rms_norm_entries(x)
    np.testing.assert_allclose(got, wanted.entries, rtol=1e-9, atol=1e-9)
    assert np.all(got <= 2)
    assert wanted.normwise == pytest.approx(1)
    assert cond.mixed(got, y) <= 2


@given(TOKENS, st.floats(0, 10))
def test_eps_only_helps(x, eps):
    assume(np.abs(x).max() > 1e-6)
    y, J = ours("rms", x, eps)
    assert cond.condition_numbers(J, x, y).componentwise <= 2 + 1e-9
    if usable(x):
        y, J = ours("layer", x, eps)
        assert cond.condition_numbers(J, x, y).normwise <= cond.layer_norm_normwise(x) * (1 + 1e-6)


def test_two_is_the_supremum_and_mixed_can_be_anything_below():
    assert cond.rms_norm_entries([1.0, 1e-8, 1e-8]).max() == pytest.approx(2, abs=1e-15)
    x = np.append(1e6, np.ones(63))
    y = cond.rms_norm(x)
    assert cond.mixed(cond.rms_norm_entries(x), y) < 1e-5
    flat = np.ones(64)
    assert cond.mixed(cond.rms_norm_entries(flat), flat) == pytest.approx(2 * (1 - 1 / 64))


def test_widths_where_the_statements_stop():
    """LayerNorm of two entries is their order: its Jacobian is 0, and the normwise formula would say otherwise."""
    np.testing.assert_allclose(cond.layer_norm_jacobian([3.0, 1.0]), 0, atol=1e-15)
    with pytest.raises(ValueError, match="number of entries must be >= 3; got 2"):
        cond.layer_norm_normwise([3.0, 1.0])
    with pytest.raises(ValueError, match="got \\(1,\\)"):
        cond.rms_norm([3.0])
    with pytest.raises(ValueError, match="standard deviation"):
        cond.layer_norm([2.0, 2.0, 2.0])
    with pytest.raises(ValueError, match="root mean square"):
        cond.rms_norm([0.0, 0.0])
    with pytest.raises(ValueError, match="finite"):
        cond.rms_norm([np.inf, 1.0])
    assert cond.layer_norm([2.0, 2.0, 2.0], 1e-5).tolist() == [0, 0, 0]


# --- LayerNorm: what makes it large


@given(TOKENS)
@example(np.array([1.0, 2.0, 3.0]))
def test_it_is_that_of_centring_but_for_the_normwise_one(x):
    assume(usable(x))
    both = cond.layer_norm_entries(x), cond.centring_entries(x)
    ratio = cond.layer_norm_normwise(x)
    known = np.isfinite(both[0]) & (np.abs(x - x.mean()) > 1e-9 * np.abs(x).max())
    assert np.all(np.abs(both[0][known] - both[1][known]) <= ratio * (1 + 1e-6) + 1e-7 * both[1][known])


def test_an_entry_at_the_mean_has_no_relative_accuracy_at_all():
    assert cond.layer_norm_entries([1.0, 2.0, 3.0])[1] == np.inf
    assert np.isfinite(cond.layer_norm_entries([1.0, 2.0, 3.0])[[0, 2]]).all()
    assert cond.layer_norm_entries([-1.0, 0.0, 1.0])[1] == np.inf, "zero itself: other entries' changes move it"


# --- BHyT and DyT


@given(TOKENS, LAMS, KAPPAS, st.booleans())
@example(WORKED, 2.0, 10.0, True)
@example(WORKED, 2.0, 10.0, False)
@example(np.array([1.0, 1.0, 1.0, 2.0]), 0.01, 10.0, True)
def test_bhyt_in_closed_form_and_below_its_bound(x, lam, kappa, centred):
    assume(usable(x))
    if centred:
        assume(abs(x.mean()) > 1e-9 * np.abs(x).max())
    y = cond.bhyt(x, lam, kappa, centred=centred)
    J = cond.bhyt_jacobian(x, lam, kappa, centred=centred)
    wanted = cond.condition_numbers(J, x, y)
    got = cond.bhyt_entries(x, lam, kappa, centred=centred)
    z = np.arctanh(np.clip(y, -1 + 1e-16, 1 - 1e-16))
    fine = np.abs(z) < 6  # beyond, 1 - tanh(z)**2 has lost its digits
    np.testing.assert_allclose(got[fine], wanted.entries[fine], rtol=1e-7, atol=1e-9)
    s, mu, r = np.std(x), abs(x.mean()), np.sqrt(np.mean(x**2))
    if centred:
        own = 1 + math.sqrt(kappa**2 + 1) * r / (kappa * s + mu)
        assert got.max() <= own * (1 + 1e-9)
        assert own <= cond.bhyt_centred_bound(kappa) * (1 + 1e-9)
    else:
        assert np.all(got <= cond.rms_norm_entries(x) + 1e-12)
        assert wanted.normwise <= cond.bhyt_normwise_bound(lam, kappa, len(x)) * (1 + 1e-9)
        low, high = cond.bhyt_normwise(x, lam, kappa)
        assert low * (1 - 1e-9) <= wanted.normwise <= high * (1 + 1e-9)


def test_the_normwise_bound_is_attained_and_above_one():
    x = np.zeros(16)
    x[3] = 5.0
    y, J = ours("bhyt", x, lam=3.0, kappa=2.0)
    bound = cond.bhyt_normwise_bound(3.0, 2.0, 16)
    assert cond.condition_numbers(J, x, y).normwise == pytest.approx(bound)
    assert bound == pytest.approx(6 / math.tanh(6))
    flat = np.tile([1.0, -1.0], 8)
    y, J = ours("bhyt", flat, lam=3.0, kappa=2.0)
    assert cond.condition_numbers(J, flat, y).normwise == pytest.approx(3 / math.sinh(3))


def test_the_centred_bound_is_nearly_attained():
    """Two values, kappa z + 1 = +-sqrt(kappa**2 + 1), all entries close to one another, lam small."""
    kappa, d = 10.0, 20000
    c = math.sqrt(kappa**2 + 1)
    plus = round(d * (1 + 1 / c) / 2)
    z = np.append(np.full(plus, c - 1), np.full(d - plus, -c - 1)) / kappa
    x = 1 + 1e-6 * (z - z.mean()) / z.std()
    got = cond.bhyt_entries(x, 0.01, kappa, centred=True).max()
    assert 0.999 * cond.bhyt_centred_bound(kappa) < got <= cond.bhyt_centred_bound(kappa)
    # The same token at lam = 2: every argument is nearly 2, and tanh forgets.
    assert cond.bhyt_entries(x, 2.0, kappa, centred=True).max() < 0.15 * cond.bhyt_centred_bound(kappa)


def test_the_published_form_of_the_centred_bound_needs_kappa_of_one_or_more():
    kappa = 0.25
    x = np.array([1.0, -1.0]).repeat(50) + 1e-7
    got = cond.bhyt_entries(x, 1e-3, kappa, centred=True).max()
    assert got <= cond.bhyt_centred_bound(kappa)
    skew = np.append(np.full(99, 1e-9), 1.0)
    assert cond.bhyt_entries(skew, 1e-3, kappa, centred=True).max() <= cond.bhyt_centred_bound(kappa)
    assert cond.bhyt_centred_bound(1.0) == pytest.approx(1 + math.sqrt(2))


@given(TOKENS, st.floats(1e-3, 5))
def test_dyt_is_one_at_most_componentwise(x, alpha):
    y = cond.dyt(x, alpha)
    got = cond.dyt_entries(x, alpha)
    assert np.all((got >= 0) & (got <= 1))
    assert np.all(got[x == 0] == 0)
    fine = (np.abs(alpha * x) < 6) & (x != 0)
    J = cond.dyt_jacobian(x, alpha)
    wanted = np.abs(np.diag(J) * x)[fine] / np.abs(y)[fine]
    np.testing.assert_allclose(got[fine], wanted, rtol=1e-7)


def test_dyt_has_no_normwise_bound():
    """One large entry, saturated, and one small: a change of the size of the large one is free to meet the small."""
    for large in (1e2, 1e4):
        x = np.array([large, 1e-3, 1e-3])
        y, J = ours("dyt", x)
        wanted = cond.condition_numbers(J, x, y).normwise
        assert cond.dyt_normwise(x, 0.5) == pytest.approx(wanted)
        assert wanted == pytest.approx(0.5 * large, rel=1e-3)


# --- Changes that are not small


CHANGES = st.floats(1e-6, 0.6)


@settings(max_examples=150)
@given(TOKENS, CHANGES, st.integers(0, 2**32 - 1), st.booleans())
@example(np.array([1.0, 1.1, 1.2, 9.0]), 0.3, 3, True)
def test_changes_of_any_size(x, change, seed, extreme):
    assume(usable(x))
    rng = np.random.default_rng(seed)
    share = rng.choice([-1.0, 1.0], len(x)) if extreme else rng.uniform(-1, 1, len(x))
    changed = x * (1 + change * share)
    for norm, bound in (
        (cond.layer_norm, cond.layer_norm_change(x, change)),
        (cond.rms_norm, cond.rms_norm_change(change)),
    ):
        if norm is cond.layer_norm and np.std(changed) <= 1e-9 * np.abs(x).max():
            assert np.all(bound == np.inf)
            continue
        y = norm(x)
        known = np.abs(y) > 1e-9
        moved = np.abs(norm(changed) - y)
        limit = np.broadcast_to(bound, y.shape)
        assert np.all(moved[known] <= (limit * np.abs(y))[known] * (1 + 1e-6) + 1e-9)


def test_of_a_small_change_both_bounds_are_the_condition_numbers():
    x = WORKED + 0.05
    got = cond.layer_norm_change(x, 1e-9) / 1e-9
    assert np.all(got >= cond.layer_norm_entries(x) * (1 - 1e-6))
    assert np.all(got <= cond.layer_norm_entries(x) + 2 * cond.layer_norm_normwise(x) + 2 / len(x) * 100)
    assert cond.rms_norm_change(1e-9) / 1e-9 == pytest.approx(2)
    assert cond.layer_norm_change(np.array([1.0, 1.0 + 1e-3, 1.0 - 1e-3]), 0.1).max() == np.inf


@pytest.mark.parametrize("value", [0.1, 1.0, 1 / 3, 1e200, 1e-200])
def test_a_constant_token_has_no_deviation(value):
    """BHyT does not notice a factor (eps = 0), and the deviation's slope is 0 where there is none."""
    entries = cond.bhyt_entries(np.full(3, value), 2.0, 10.0, centred=True)
    np.testing.assert_allclose(entries, cond.bhyt_entries(np.ones(3), 2.0, 10.0, centred=True), rtol=1e-12)
    jacobian = cond.bhyt_jacobian(np.full(3, value), 2.0, 10.0, centred=True) * value
    np.testing.assert_allclose(jacobian, cond.bhyt_jacobian(np.ones(3), 2.0, 10.0, centred=True), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_no_square_leaves_the_range_of_float64(scale):
    x = np.array([1.0, 2, 0, -0.5])
    for centred in (False, True):
        np.testing.assert_allclose(
            cond.bhyt_entries(scale * x, 2.0, 10.0, centred=centred),
            cond.bhyt_entries(x, 2.0, 10.0, centred=centred),
            rtol=1e-12,
        )
    assert cond.rms_norm_jacobian(1e-200 * x, eps=1e-5) == pytest.approx(np.eye(4) / np.sqrt(1e-5))
