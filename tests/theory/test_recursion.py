"""The variance recursion and Theorem 3.5: random networks as oracle, thresholds attacked inside and outside."""

from math import inf, sqrt, tanh

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from residlab.theory.recursion import (
    aligned_trajectory,
    critical_ratio,
    first_exceedance,
    second_moments,
    threshold_aligned,
    threshold_paper,
    threshold_uncorrelated,
    uncorrelated_trajectory,
    variance_trajectory,
)
from residlab.theory.variance import gaussian_second_moment

HERMITE = np.polynomial.hermite_e.hermegauss(120)

ratios = st.floats(0.01, 1.5)
initials = st.one_of(st.just(0.0), st.floats(1e-4, 1e4))
powers = st.floats(0.5, 3)
unit = st.floats(0, 1)


@st.composite
def networks(draw):
    """Draw gains, correlations and an initial variance for 1 to 24 layers."""
    depth = draw(st.integers(1, 24))
    gains = draw(st.lists(st.floats(1e-3, 1e3), min_size=depth, max_size=depth))
    correlations = draw(st.lists(unit, min_size=depth, max_size=depth))
    return np.array(gains), np.array(correlations), draw(initials)


def lns(depth: int) -> np.ndarray:
    return second_moments("lns", depth)


def pair(gain, correlation, initial, ratio, power=1.0):
    """Return the trajectories of BHyT, at its bound, and of LNS."""
    depth = len(gain)
    moments = (second_moments("bhyt", depth, ratio=ratio), lns(depth))
    return tuple(variance_trajectory(gain * n**power, correlation=correlation, initial=initial) for n in moments)


def below(gain, correlation, initial, ratio, power=1.0) -> bool:
    bhyt, reference = pair(gain, correlation, initial, ratio, power)
    return bool(np.all(bhyt[1:] < reference[1:]))


# --- The recursion against its definition, closed forms and random networks


def test_recursion_layer_by_layer():
    rng = np.random.default_rng(0)
    branch, rho = rng.exponential(size=(3, 9)), rng.uniform(-1, 1, size=(3, 9))
    v = variance_trajectory(branch, correlation=rho, initial=[0.0, 1.0, 7.0])
    assert v.shape == (3, 10)
    for i, start in enumerate((0.0, 1.0, 7.0)):
        value = start
        assert v[i, 0] == start
        for layer in range(9):
            b = branch[i, layer]
            value = value + b + 2 * rho[i, layer] * sqrt(value * b)
            assert v[i, layer + 1] == pytest.approx(value, rel=1e-12)


@given(networks(), ratios)
def test_closed_forms(network, ratio):
    gain, rho, initial = network
    depth = len(gain)
    for moments in (second_moments("pre-ln", depth), lns(depth), second_moments("bhyt", depth, ratio=ratio)):
        branch = gain * moments
        low, high = uncorrelated_trajectory(branch, initial=initial), aligned_trajectory(branch, initial=initial)
        np.testing.assert_allclose(low, variance_trajectory(branch, correlation=0, initial=initial), rtol=1e-12)
        np.testing.assert_allclose(high, variance_trajectory(branch, correlation=1, initial=initial), rtol=1e-12)
        between = variance_trajectory(branch, correlation=rho, initial=initial)
        assert np.all((low <= between * (1 + 1e-12)) & (between <= high * (1 + 1e-12)))


def test_closed_forms_of_a_constant_gain():
    layers = np.arange(1, 41)
    harmonic = np.cumsum(1 / layers)
    for norm, ratio, total, roots in (
        ("pre-ln", None, layers, layers),
        ("lns", None, harmonic, np.cumsum(layers**-0.5)),
        ("bhyt", 0.3, 0.09 * layers, 0.3 * layers),
    ):
        branch = 2.0 * second_moments(norm, 40, ratio=ratio)
        np.testing.assert_allclose(uncorrelated_trajectory(branch, initial=3)[1:], 3 + 2 * total)
        np.testing.assert_allclose(aligned_trajectory(branch, initial=3)[1:], (sqrt(3) + sqrt(2) * roots) ** 2)


def test_exact_cancellation_stays_at_zero():
    v = variance_trajectory([1.0, 0.3, 0.3], correlation=[-1, 0, -1], initial=1.0)
    np.testing.assert_allclose(v, [1, 0, 0.3, 0], atol=1e-15)
    assert v.min() >= 0


def normalise(x: np.ndarray, norm: str, layer: int, ratio: float) -> np.ndarray:
    root = np.sqrt(np.mean(x**2, axis=-1, keepdims=True))
    if norm == "bhyt":
        return np.tanh(ratio * x / root)
    return x / root / (sqrt(layer) if norm == "lns" else 1)


@pytest.mark.parametrize("norm", ["pre-ln", "lns", "bhyt"])
def test_random_linear_networks_follow_the_uncorrelated_recursion(norm):
    """Gaussian weights, drawn afresh at every layer: E v_l obeys rho = 0 exactly, at any width."""
    rng = np.random.default_rng(1)
    nets, d, depth, ratio = 600, 24, 10, 0.4
    gain = np.linspace(0.3, 1.5, depth)
    x = sqrt(2) * rng.choice([-1.0, 1.0], size=(nets, d))
    measured = [np.mean(x**2, axis=1)]
    moments = []
    for layer in range(1, depth + 1):
        y = normalise(x, norm, layer, ratio)
        moments.append(np.mean(y**2))
        W = rng.normal(size=(nets, d, d)) * sqrt(gain[layer - 1] / d)
        x = x + np.einsum("ni,nij->nj", y, W)
        measured.append(np.mean(x**2, axis=1))
    measured = np.array(measured)
    error = measured.std(axis=1) / sqrt(nets)
    bound = second_moments(norm, depth, ratio=ratio if norm == "bhyt" else None)
    predicted = uncorrelated_trajectory(gain * moments, initial=2)
    assert np.all(np.abs(measured.mean(axis=1) - predicted) <= 4 * error + 1e-12)
    assert error[-1] < 0.02 * predicted[-1]
    if norm == "bhyt":  # from one modulus, tanh(ratio)**2, towards Gaussian: always below (lam/kappa)**2
        assert moments[0] == pytest.approx(tanh(ratio) ** 2, rel=1e-12)
        assert np.all(np.diff(moments) < 0)
        assert gaussian_second_moment(ratio) < moments[-1] < 0.95 * moments[0]
        assert np.all(np.array(moments) < bound)
        assert np.all(measured.mean(axis=1)[4:] < uncorrelated_trajectory(gain * bound, initial=2)[4:])
    else:
        np.testing.assert_allclose(moments, bound, rtol=1e-12)


@pytest.mark.parametrize("rho", [-0.7, 0.0, 0.3, 1.0])
def test_networks_built_to_a_correlation_follow_the_recursion(rho):
    """W = sqrt(g) (rho I + sqrt(1 - rho**2) J), J a rotation by a right angle: a branch of correlation rho, exactly."""
    rng = np.random.default_rng(2)
    d, depth, n = 16, 12, 0.09
    gain = rng.uniform(0.2, 2, size=depth)
    quarter_turn = np.kron(np.eye(d // 2), [[0, 1], [-1, 0]])
    x = rng.normal(size=d)
    measured = [np.mean(x**2)]
    for g in gain:
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        W = sqrt(g) * (rho * np.eye(d) + sqrt(1 - rho**2) * Q @ quarter_turn @ Q.T)
        x = x + sqrt(n) * x / sqrt(np.mean(x**2)) @ W
        measured.append(np.mean(x**2))
    np.testing.assert_allclose(
        variance_trajectory(gain * n, correlation=rho, initial=measured[0]), measured, rtol=1e-11, atol=1e-13
    )


# --- Theorem 3.5


@given(networks(), ratios, powers)
def test_theorem(network, ratio, power):
    """lam/kappa < 1/sqrt(L) suffices, for all gains, correlations in [0, 1], starts, and increasing G_l."""
    gain, rho, initial = network
    ratio = min(ratio, 0.999) * threshold_paper(len(gain))
    bhyt, reference = pair(gain, rho, initial, ratio, power)
    # Far below v_0 the branches vanish in rounding: then the two may be equal.
    assert np.all(bhyt[1:] <= reference[1:])
    if initial < 1:
        assert np.all(bhyt[1:] < reference[1:])


def test_paper_threshold_is_the_best_for_all_gains():
    """All gain in the last layer: a ratio barely above 1/sqrt(L) fails, whatever the correlation."""
    depth = 12
    gain = np.full(depth, 1e-9)
    gain[-1] = 1.0
    for rho in (0.0, 0.5, 1.0):
        assert below(gain, rho, 1.0, 0.999 * threshold_paper(depth))
        assert not below(gain, rho, 1.0, 1.001 * threshold_paper(depth))
    assert threshold_uncorrelated(lns(depth), gain)[-1] == pytest.approx(threshold_paper(depth), rel=1e-6)


def test_negative_correlation_breaks_the_theorem():
    """The recursion then decreases in n, and in v: the smaller input leaves the larger variance."""
    ratio = 0.1  # far below 1/sqrt(1)
    bhyt, reference = pair(np.ones(1), -0.9, 1.0, ratio)
    assert ratio < threshold_paper(1)
    assert reference[1] == pytest.approx(0.2)
    assert bhyt[1] == pytest.approx(0.83)
    assert first_exceedance(bhyt, reference) == 1
    small, large = (variance_trajectory([1.0], correlation=-0.9, initial=v)[1] for v in (0.1, 0.8))
    assert small > large
    with pytest.raises(ValueError, match=r"correlation must be in \[0, 1\]; got -0.9"):
        critical_ratio(lns(4), correlation=-0.9)


def test_flat_gains_leave_equality():
    """A nondecreasing G_l that is flat where it matters (a branch that clips) gives <=, not <: G_l must increase."""
    ratio = 0.5 * threshold_paper(5)
    clipped, reference = (np.minimum(n, 0.01) for n in (second_moments("bhyt", 5, ratio=ratio), lns(5)))
    np.testing.assert_array_equal(variance_trajectory(clipped), variance_trajectory(reference))


# --- Thresholds


@given(networks(), st.floats(0.01, 1.2), powers)
def test_uncorrelated_and_aligned_thresholds_are_exact(network, ratio, power):
    gain, _, initial = network
    initial = min(initial, 10.0)
    for rho, threshold in ((0, threshold_uncorrelated), (1, threshold_aligned)):
        z = threshold(lns(len(gain)), gain, power=power)
        assert np.all(np.diff(z) <= 1e-12)
        assume(abs(ratio / z[-1] - 1) > 1e-6)
        assert below(gain, rho, initial, ratio, power) == (ratio < z[-1])
        # Depth is a prefix: entry l - 1 is the threshold of the first l layers.
        assert below(gain[:1], rho, initial, ratio, power) == (ratio < z[0] == 1) or abs(ratio - 1) < 1e-6


def test_numbers_of_the_text():
    """L = 28: lam/kappa = 0.2 and 0.3 violate the paper's condition, and satisfy the one for every correlation."""
    reference = lns(28)
    m = threshold_aligned(reference)[-1]
    assert threshold_paper(28) == pytest.approx(0.189, abs=5e-4)
    assert m == pytest.approx(0.329, abs=5e-4)
    assert threshold_uncorrelated(reference)[-1] == pytest.approx(0.3745, abs=5e-5)
    for ratio in (0.2, 0.3):
        assert threshold_paper(28) < ratio < m
        for rho in np.linspace(0, 1, 21):
            assert below(np.ones(28), rho, 1.0, ratio)
    depths = np.array([100, 10_000])
    sums = threshold_aligned(lns(10_000))[depths - 1]
    np.testing.assert_allclose(sums, 2 / np.sqrt(depths) - 1.4603545 / depths, rtol=0.005)
    np.testing.assert_array_equal(threshold_paper([1, 4, 100]), [1, 0.5, 0.1])


@given(networks(), st.floats(0.01, 1.2), powers)
def test_the_last_layer_decides_and_curves_cross_once(network, ratio, power):
    gain, rho, initial = network
    initial = min(initial, 10.0)
    bhyt, reference = pair(gain, rho, initial, ratio, power)
    difference = (bhyt - reference)[1:] / reference[1:]
    assume(np.all(np.abs(difference) > 1e-12))
    above = difference > 0
    assert np.all(above[1:] >= above[:-1]), "above, then below again"
    assert bool(np.all(~above)) == (not above[-1])
    assert first_exceedance(bhyt, reference) == (1 + np.argmax(above) if above.any() else inf)


@given(networks(), powers)
@settings(max_examples=40)
def test_critical_ratio_is_exact(network, power):
    gain, rho, initial = network
    initial = min(initial, 10.0)
    z = critical_ratio(lns(len(gain)), gain, correlation=rho, initial=initial, power=power)
    assert threshold_paper(len(gain)) * (1 - 1e-12) <= z <= 1
    assert below(gain, rho, initial, z * (1 - 1e-5), power)
    assert not below(gain, rho, initial, z * (1 + 1e-5), power)


@given(networks(), powers)
@settings(max_examples=60)
def test_aligned_threshold_suffices_for_every_correlation(network, power):
    """Gains and correlations that do not increase with depth, constants among them; any start."""
    gain, rho, initial = network
    initial = min(initial, 100.0)
    gain, rho = -np.sort(-gain), -np.sort(-rho)
    for gains, correlations in ((gain, rho), (np.ones_like(gain), rho[0]), (gain, rho[0]), (np.ones_like(gain), rho)):
        z = threshold_aligned(lns(len(gain)), gains, power=power)[-1]
        bhyt, reference = pair(gains, correlations, initial, z * (1 - 1e-9), power)
        assert np.all(bhyt[1:] <= reference[1:] * (1 + 1e-12))
        assert critical_ratio(lns(len(gain)), gains, correlation=correlations, initial=initial, power=power) >= z * (
            1 - 1e-7
        )


def test_at_the_aligned_threshold_itself_the_end_may_be_equal():
    """m_L is attained: at lam/kappa = m_L and rho = 1 the variances agree at L, so strictness needs less than m_L."""
    m = threshold_aligned(lns(28))[-1]
    bhyt, reference = pair(np.ones(28), 1.0, 1.0, m)
    assert bhyt[-1] == pytest.approx(reference[-1], rel=1e-13)
    bhyt, reference = pair(np.ones(28), 0.5, 1.0, m)
    assert bhyt[-1] < reference[-1] * (1 - 1e-3)


def test_outside_its_hypotheses_the_aligned_threshold_fails():
    reference = lns(8)
    m = threshold_aligned(reference)[-1]
    # Gains that increase with depth: m_L fails at every correlation, and so does its weighted form at rho = 0.
    gain = 4.0 ** np.arange(8)
    for rho in (0.0, 0.5, 1.0):
        assert not below(gain, rho, 1.0, m)
    assert threshold_uncorrelated(lns(2), [1, 4])[-1] == pytest.approx(sqrt(0.6))
    assert threshold_aligned(lns(2), [1, 4])[-1] == pytest.approx((1 + sqrt(2)) / 3)
    assert not below(np.array([1.0, 4.0]), 0.0, 1.0, 0.79)
    assert threshold_aligned(lns(2), [1, 4])[-1] > 0.8
    # Correlations that increase with depth, at a constant gain: with a large stream only the last layer counts.
    assert critical_ratio(lns(2), correlation=[0, 1], initial=1e6) == pytest.approx(sqrt(1 / 2), abs=1e-3)
    assert not below(np.ones(2), np.array([0.0, 1.0]), 1e4, 0.75)
    assert threshold_aligned(lns(2))[-1] > 0.85


def test_the_uncorrelated_threshold_is_not_necessary():
    """sqrt(H_L / L) is exceeded for a small constant correlation by 3e-6, and widely where only early layers align."""
    reference = lns(12)
    z = critical_ratio(reference, correlation=0.002, initial=0.072)
    hair = z / threshold_uncorrelated(reference)[-1] - 1
    assert hair == pytest.approx(3.2e-6, rel=0.05)
    assert below(np.ones(12), 0.002, 0.072, z * (1 - 1e-7))
    assert critical_ratio(lns(2), correlation=[1, 0], initial=1e6) > 0.99 > threshold_uncorrelated(lns(2))[-1]


def test_thresholds_against_pre_ln_and_repeated_layers():
    np.testing.assert_array_equal(threshold_uncorrelated(second_moments("pre-ln", 5)), 1)
    np.testing.assert_array_equal(threshold_aligned(second_moments("pre-ln", 5)), 1)
    two = np.repeat(lns(28), 2)
    for threshold in (threshold_uncorrelated, threshold_aligned):
        assert threshold(two)[-1] == pytest.approx(threshold(lns(28))[-1], rel=1e-13)


# --- Gains that depend on n


def swiglu_branch(n: np.ndarray) -> np.ndarray:
    """Return the variance of SiLU(a) b, a and b independent Gaussians of variance n, by Gauss-Hermite quadrature."""
    nodes, weights = HERMITE
    a = np.sqrt(n)[..., None] * nodes
    return n * ((a / (1 + np.exp(-a))) ** 2 @ weights) / sqrt(2 * np.pi)


def test_swiglu_gain_is_quadratic_and_increasing():
    """n**2/4 for a small input, n**2/2 for a large one, in between increasing: the induction needs no more."""
    n = np.geomspace(1e-4, 100, 200)
    gain = swiglu_branch(n)
    assert np.all(np.diff(gain / n**2) > 0)
    assert gain[0] / n[0] ** 2 == pytest.approx(1 / 4, rel=1e-3)
    assert 0.45 < gain[-1] / n[-1] ** 2 < 1 / 2
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 400_000)) * sqrt(0.5)
    products = (a / (1 + np.exp(-a)) * b) ** 2
    assert abs(products.mean() - swiglu_branch(np.array(0.5))) < 4 * products.std() / sqrt(400_000)


@given(unit, initials, st.floats(0.1, 0.999))
def test_theorem_with_a_swiglu_gain(rho, initial, share):
    depth = 16
    initial = min(initial, 10.0)
    ratio = share * threshold_paper(depth)
    bhyt, reference = (
        variance_trajectory(swiglu_branch(n), correlation=rho, initial=initial)
        for n in (second_moments("bhyt", depth, ratio=ratio), lns(depth))
    )
    assert np.all(bhyt[1:] < reference[1:])


def test_quadratic_gain_has_its_own_thresholds():
    """G = n**2, constant gain: m becomes sqrt(H_L / L), and what suffices at power 1 is no longer exact."""
    reference = lns(28)
    m = threshold_aligned(reference, power=2)[-1]
    assert m == pytest.approx(threshold_uncorrelated(reference)[-1], rel=1e-13)
    assert below(np.ones(28), 1.0, 1.0, 0.999 * m, power=2)
    assert not below(np.ones(28), 1.0, 1.0, 1.001 * m, power=2)
    # Attention and gated feedforward in turn: no closed form, and between the two.
    powers = np.tile([1.0, 2.0], 14)
    mixed = critical_ratio(reference, correlation=1.0, power=powers)
    assert threshold_aligned(reference)[-1] < mixed < m


# --- Shapes and errors


def test_shapes_and_first_exceedance():
    assert second_moments("bhyt", 5, ratio=np.ones((3, 2))).shape == (3, 2, 5)
    curves = variance_trajectory(np.ones((4, 1, 5)), correlation=np.zeros((3, 1)), initial=np.ones((2, 1, 1)))
    assert curves.shape == (2, 4, 3, 6)
    assert uncorrelated_trajectory(np.ones(5), initial=[1, 2]).shape == (2, 6)
    assert aligned_trajectory(np.ones((2, 5)), initial=0).shape == (2, 6)
    assert threshold_uncorrelated(lns(5), np.ones((3, 5))).shape == (3, 5)
    assert critical_ratio(lns(5), correlation=np.zeros((3, 1)), initial=np.ones((2, 1))).shape == (2, 3)
    # A longer network starts like a shorter one.
    np.testing.assert_array_equal(variance_trajectory(lns(9))[:5], variance_trajectory(lns(4)))
    bhyt = variance_trajectory(second_moments("bhyt", 200, ratio=[0.05, 0.2, 0.5, 1.1]))
    first = first_exceedance(bhyt, variance_trajectory(lns(200)))
    harmonic_mean = np.cumsum(lns(200)) / np.arange(1, 201)
    assert first.tolist() == [inf, 1 + np.argmax(harmonic_mean < 0.04), 1 + np.argmax(harmonic_mean < 0.25), 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: second_moments("rmsnorm", 4), "norm must be one of 'pre-ln', 'lns', 'bhyt'; got 'rmsnorm'"),
        (lambda: second_moments("bhyt", 4), "ratio must be given for 'bhyt' .* got ratio=None"),
        (lambda: second_moments("lns", 4, ratio=0.2), "ratio must be given for 'bhyt' and for no other norm"),
        (lambda: second_moments("bhyt", 4, ratio=0), "ratio must be finite and > 0; got 0.0"),
        (lambda: second_moments("lns", 0), "depth must be an integer >= 1, the number of layers; got 0"),
        (lambda: second_moments("lns", 2.0), "depth must be .* got 2.0"),
        (lambda: second_moments("lns", [2, 3]), r"depth must be one integer; got \[2, 3\]"),
        (lambda: threshold_paper([4, 0]), r"depth must be .* got \[4, 0\]"),
        (lambda: variance_trajectory([1, -1]), "branch must be finite and >= 0; got -1.0"),
        (lambda: variance_trajectory(1.0), r"branch must have shape \(\.\.\., L\).* got shape \(\)"),
        (lambda: variance_trajectory([1], correlation=1.1), r"correlation must be in \[-1, 1\]; got 1.1"),
        (lambda: variance_trajectory([1], initial=-1), "initial must be finite and >= 0; got -1.0"),
        (lambda: aligned_trajectory([1], initial=np.nan), "initial must be"),
        (lambda: uncorrelated_trajectory([]), r"branch must have shape .* got shape \(0,\)"),
        (lambda: first_exceedance([1, 2], [1, 2, 3]), r"got \(2,\) and \(3,\)"),
        (lambda: first_exceedance([1, inf], [1, 2]), "candidate must be finite; got inf"),
        (lambda: threshold_uncorrelated([0.5, 1.0]), "each step of reference along the layers must be <= 0; got 0.5"),
        (lambda: threshold_aligned([1.0, 0.0]), "reference must be finite and > 0; got 0.0"),
        (lambda: threshold_aligned([1.0, 0.5], [1, 0]), "gain must be finite and > 0; got 0.0"),
        (lambda: critical_ratio([1.0, 0.5], power=0), "power must be finite and > 0; got 0.0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
