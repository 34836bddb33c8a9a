"""Growth of errors: adversarial streams against every bound, simulated random ones, scaled ones bit by bit."""

from __future__ import annotations

from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from residlab.theory import error_growth as eg
from residlab.theory.propagation import kernel_slope

SMALL = st.floats(0, 3)
DEPTH = st.integers(1, 12)


def unit(rng, d):
    x = rng.standard_normal(d)
    return x / np.linalg.norm(x)


# --- The worst case


def prenorm_layers(rng, depth, d, scale):
    return [scale * rng.standard_normal((d, d)) / sqrt(d) for _ in range(depth)]


def normed(x):
    return sqrt(len(x)) * x / np.linalg.norm(x)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), DEPTH, st.floats(0.01, 3), st.floats(0, 0.05), st.floats(0, 0.3), st.booleans())
def test_no_stream_exceeds_the_bound(seed, depth, scale, u, spoilt, adversarial):
    rng, d = np.random.default_rng(seed), 5
    layers = prenorm_layers(rng, depth, d, scale)
    x = rng.standard_normal(d)
    y = x + 0.01 * unit(rng, d)
    sizes, lipschitz, made, errors = [np.linalg.norm(x)], [], [], [np.linalg.norm(y - x)]
    for W in layers:
        theta = np.linalg.norm(y - x) / np.linalg.norm(x)
        if theta >= 1:
            return
        lipschitz.append(eg.prenorm_lipschitz(np.linalg.norm(W, 2), np.linalg.norm(x) / sqrt(d), theta))
        made.append(spoilt * rng.random())
        away = y - x if adversarial and (y != x).any() else rng.standard_normal(d)
        z = y + W @ normed(y) + made[-1] * away / np.linalg.norm(away)
        x = x + W @ normed(x)
        away = z - x if adversarial and (z != x).any() else rng.standard_normal(d)
        y = z + u * np.linalg.norm(z) * away / np.linalg.norm(away)
        sizes.append(np.linalg.norm(x))
        errors.append(np.linalg.norm(y - x))
    bound = eg.error_bound(lipschitz, made, sizes, u, errors[0])
    assert np.all(errors <= bound * (1 + 1e-9) + 1e-12)


def test_the_bound_is_attained_and_to_first_order_it_is_not_one():
    # On a line: all errors point away, the branch is linear with slope Lambda.
    u, growth, made, x, y = 0.25, 0.5, 0.125, 1.0, 1.5
    sizes, errors = [x], [y - x]
    for _ in range(6):
        y = (1 + u) * (y + growth * y + made)
        x = x + growth * x
        sizes.append(x)
        errors.append(y - x)
    assert eg.error_bound(growth, made, sizes, u, 0.5) == pytest.approx(errors, rel=1e-14)
    first_order = [0.5]
    for size in sizes[1:]:
        first_order.append((1 + growth) * first_order[-1] + made + u * size)
    assert all(e > f for e, f in zip(errors[1:], first_order[1:], strict=True))


def test_the_bound_in_exact_fractions():
    lipschitz, made, sizes, u = (1, 2, 3), (2, 0, 1), (1, 2, 4, 8), Fraction(1, 16)
    e = Fraction(1, 4)
    for growth, new, size in zip(lipschitz, made, sizes[1:], strict=True):
        e = (1 + u) * ((1 + growth) * e + new) + u * size
    assert eg.error_bound(lipschitz, made, sizes, float(u), 0.25)[-1] == float(e)
    assert eg.amplifications(lipschitz).tolist() == [24, 12, 4, 1]


@given(st.lists(SMALL, min_size=1, max_size=8), st.data())
def test_the_solution_is_a_sum_over_what_enters(lipschitz, data):
    made = data.draw(st.lists(SMALL, min_size=len(lipschitz), max_size=len(lipschitz)))
    start = data.draw(SMALL)
    amplified = eg.amplifications(lipschitz)
    last = eg.error_bound(lipschitz, made, np.ones(len(made) + 1), 0.0, start)[-1]
    assert last == pytest.approx(amplified[0] * start + amplified[1:] @ made, rel=1e-12, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 0.999), st.integers(2, 6))
def test_directions_differ_by_at_most_twice_the_distance_over_both_lengths(seed, theta, d):
    rng = np.random.default_rng(seed)
    x = 10 ** rng.uniform(-3, 3) * unit(rng, d)
    y = x + theta * np.linalg.norm(x) * unit(rng, d)
    cap = eg.prenorm_lipschitz(1.0, np.linalg.norm(x) / sqrt(d), theta)
    assert np.linalg.norm(normed(x) - normed(y)) <= cap * np.linalg.norm(x - y) * (1 + 1e-9)


def test_the_derivative_at_the_exact_stream_is_no_lipschitz_constant():
    x, y = np.array([1.0, 0.0]), np.array([0.5, 0.25])
    stretched = np.linalg.norm(normed(x) - normed(y)) / np.linalg.norm(x - y)
    theta = np.linalg.norm(x - y)
    assert eg.prenorm_lipschitz(1, 1 / sqrt(2)) == pytest.approx(sqrt(2))
    assert stretched < eg.prenorm_lipschitz(1, 1 / sqrt(2), theta)
    short, turned = np.array([1.0, 0.0]), 0.4 * np.array([np.cos(0.3), np.sin(0.3)])
    near = np.linalg.norm(normed(short) - normed(turned)) / np.linalg.norm(short - turned)
    assert near < sqrt(2)  # mostly shorter: little of it is felt
    equal = 0.9 * np.array([np.cos(0.9), np.sin(0.9)])
    assert np.linalg.norm(normed(short) - normed(equal)) / np.linalg.norm(short - equal) > sqrt(2)


# --- Three streams


@given(st.floats(0, 5), st.integers(1, 60), st.integers(0, 300))
def test_a_stream_like_a_root(c, first, more):
    product = eg.amplifications(c / np.sqrt(np.arange(first, first + more)))[0] if more else 1.0
    assert product <= eg.root_stream_cap(c, first, first + more) * (1 + 1e-9)


def test_a_stream_like_a_root_has_that_order():
    n = 10**6
    for c in (0.5, 2.0):
        product = np.log1p(c / np.sqrt(np.arange(1, n))).sum()
        assert 0.98 < product / (2 * c * sqrt(n)) <= 1


@given(st.floats(0, 5), st.floats(1.001, 4), st.integers(1, 400))
def test_a_geometric_stream_with_branches_that_do_not_grow(c, ratio, depth):
    product = eg.amplifications(c * ratio ** -np.arange(float(depth)))[0]
    assert product <= eg.geometric_stream_cap(c, ratio) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), DEPTH, st.floats(0.01, 20), st.booleans())
def test_amplification_is_at_least_the_growth_of_the_stream(seed, depth, scale, aligned):
    rng, d = np.random.default_rng(seed), 4
    x = rng.standard_normal(d)
    sizes, lipschitz = [np.linalg.norm(x)], []
    for W in prenorm_layers(rng, depth, d, scale):
        B = scale * 2.0 ** len(lipschitz) * np.eye(d) if aligned else W
        lipschitz.append(eg.prenorm_lipschitz(np.linalg.norm(B, 2), np.linalg.norm(x) / sqrt(d)))
        x = x + B @ normed(x)
        sizes.append(np.linalg.norm(x))
    least, found = eg.least_amplification(sizes), eg.amplifications(lipschitz)
    assert np.all(found >= least * (1 - 1e-9))
    if aligned:  # all in one direction: attained, and geometric
        assert found == pytest.approx(least, rel=1e-9)


def test_a_bias_breaks_that():
    # A stream that grows because every block adds the same vector, whatever it reads: nothing is amplified.
    sizes = 1.0 + np.arange(5) * 10
    assert eg.amplifications(np.zeros(4))[0] == 1 < eg.least_amplification(sizes)[0]


# --- The mean square


def test_storing_a_vector():
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(0, 12 * log(2), 400_000)).astype(np.float64)
    significand, exponent = np.frexp(x)
    rounded = np.ldexp(np.round(significand * 2**8) / 2**8, exponent)
    # Octaves differ in size; the formula is for one octave.
    one = (significand * 2, np.ldexp(rounded, 1 - exponent))
    found = np.sqrt(((one[0] - one[1]) ** 2).sum() / (one[0] ** 2).sum())
    assert found == pytest.approx(eg.stored_error(2.0**-8), rel=0.01)


def test_storing_a_gaussian_vector_is_close():
    from residlab.precision.formats import FORMATS
    from residlab.precision.rounding import rounded

    torch = pytest.importorskip("torch")
    x = torch.from_numpy(np.random.default_rng(1).standard_normal(200_000))
    error = rounded(x, FORMATS["bf16"]).double() - x
    assert float(error.norm() / x.norm()) == pytest.approx(eg.stored_error(2.0**-8), rel=0.1)


def test_linear_branches_simulated():
    """Fresh Gaussian matrices: the mean square of the error follows the recursion, its relative size does not grow."""
    rng, d, depth, trials = np.random.default_rng(2), 32, 24, 400
    v, beta, tau, r0 = 0.5, 0.03, 0.01, 0.02
    total, size = np.zeros(depth + 1), np.zeros(depth + 1)
    for _ in range(trials):
        x = unit(rng, d)
        y = x + r0 * unit(rng, d)
        for layer in range(depth + 1):
            total[layer] += ((y - x) ** 2).sum()
            size[layer] += (x**2).sum()
            W = v * rng.standard_normal((d, d)) / d
            wrong = beta * v * unit(rng, d)
            x, z = x + W @ normed(x), y + W @ normed(y) + wrong
            y = z + tau * np.linalg.norm(z) * unit(rng, d)
    sizes = eg.independent_sizes(1.0, np.full(depth, v))
    assert np.sqrt(size / trials) == pytest.approx(sizes, rel=0.05)
    predicted = eg.mean_square_errors(sizes, beta, tau, initial=r0)
    assert np.sqrt(total / trials) / sizes == pytest.approx(predicted, rel=0.08)


@given(st.lists(st.floats(0, 4), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1), st.floats(0, 2))
def test_with_linear_branches_the_growth_cancels(branches, beta, tau, start):
    s = eg.independent_sizes(1.0, branches)
    closed = start**2 + np.append(0, np.cumsum(beta**2 * (1 - (s[:-1] / s[1:]) ** 2) + tau**2))
    assert eg.mean_square_errors(s, beta, tau, initial=start) == pytest.approx(np.sqrt(closed), rel=1e-10, abs=1e-14)
    logarithm = np.sqrt(start**2 + beta**2 * 2 * np.log(s / s[0]) + tau**2 * np.arange(len(s)))
    assert np.all(np.sqrt(closed) <= logarithm * (1 + 1e-12))


@given(st.lists(st.floats(0, 4), min_size=1, max_size=30), st.floats(0, 4))
def test_a_gain_makes_a_power_of_the_growth(branches, gain):
    s = eg.independent_sizes(1.0, branches)
    last = eg.mean_square_errors(s, 0.0, gain=gain, initial=1.0)[-1]
    cap = eg.mean_square_amplification_cap(s, gain)
    assert last <= cap * (1 + 1e-9) if gain >= 1 else last >= cap * (1 - 1e-9)


def test_without_residual_connections_simulated():
    """Fresh Gaussian matrices behind a norm and nothing added: squares of relative errors add up evenly.

    A token of d entries differs in length from one block to the next, so that chi is 1 + 1/d rather than 1.
    """
    rng, d, depth, trials = np.random.default_rng(4), 128, 16, 100
    beta, r0 = 0.03, 0.02
    found = np.zeros(depth + 1)
    for _ in range(trials):
        x = unit(rng, d)
        y = x + r0 * unit(rng, d)
        for layer in range(depth + 1):
            found[layer] += ((y - x) ** 2).sum() / (x**2).sum() / trials
            W = rng.standard_normal((d, d)) / sqrt(d)
            x, z = W @ normed(x), W @ normed(y)
            y = z + beta * np.linalg.norm(z) * unit(rng, d)
    predicted = eg.errors_without_residual(1.0, beta, initial=r0, depth=depth)
    assert np.sqrt(found) == pytest.approx(predicted, rel=0.06)
    assert predicted[-1] ** 2 == pytest.approx(r0**2 + depth * beta**2)


def test_a_chain_solved_by_hand():
    squares = [0.04, 0.5 * 0.04 + 0.01, 0.5 * (0.5 * 0.04 + 0.01) + 0.09]
    assert eg.errors_without_residual(0.5, [0.1, 0.3], initial=0.2) == pytest.approx(np.sqrt(squares))
    for arguments, said in (((1.0, [-0.1]), "branch"), ((-1.0, [0.1]), "gain"), ((1.0, 0.1), "depth >= 1")):
        with pytest.raises(ValueError, match=said):
            eg.errors_without_residual(*arguments)


def test_what_depth_scaling_changes():
    """The stream's share is the same with and without; the branches' is root-log of the depth, or constant."""
    depths = (12, 48, 192, 768)
    plain = [eg.mean_square_errors(eg.independent_sizes(1, np.full(n, 2.0)), 0.05)[-1] for n in depths]
    scaled = [eg.mean_square_errors(eg.independent_sizes(1, np.full(n, 2.0 / sqrt(n))), 0.05)[-1] for n in depths]
    assert scaled == pytest.approx([0.05 * sqrt(log(5))] * 4, rel=0.05)
    assert np.diff(np.square(plain)) == pytest.approx([0.05**2 * log(4)] * 3, rel=0.05)


@given(st.floats(0, 4), st.floats(0, 0.1), st.floats(0, 0.1), st.floats(0, 0.1), DEPTH)
def test_without_residual_connections_a_gain_is_a_power_of_the_depth(chi, beta, tau, start, depth):
    errors = eg.errors_without_residual(chi, beta, tau, initial=start, depth=depth)
    powers = [Fraction(chi) ** layer for layer in range(depth)]
    exact = Fraction(chi) ** depth * Fraction(start) ** 2 + (Fraction(beta) ** 2 + Fraction(tau) ** 2) * sum(powers)
    assert errors[-1] ** 2 == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


def test_it_is_the_limit_of_a_stream_that_each_branch_drowns():
    sizes = 1e9 ** np.arange(5.0)
    expected = eg.mean_square_errors(sizes, 0.01, 0.02, gain=2.0, initial=0.03)
    assert eg.errors_without_residual(2.0, 0.01, 0.02, initial=0.03, depth=4) == pytest.approx(expected, rel=1e-12)


@given(st.floats(0.2, 4), st.floats(1e-3, 0.3), st.floats(0, 0.5))
def test_layers_until_noise_are_where_the_error_is_one(chi, beta, start):
    layers = float(eg.layers_until_noise(chi, beta, start))
    if np.isinf(layers):
        assert eg.errors_without_residual(chi, beta, initial=start, depth=2000)[-1] <= 1
    elif layers < 2000:
        before, after = eg.errors_without_residual(chi, beta, initial=start, depth=int(layers) + 1)[-2:]
        assert before <= 1 + 1e-9
        assert after >= 1 - 1e-9


def test_layers_until_noise_with_no_gain_are_a_sum():
    assert eg.layers_until_noise(1.0, 0.1, 0.5) == pytest.approx(75)
    assert eg.layers_until_noise(1 + 1e-9, 0.1, 0.5) == pytest.approx(75, rel=1e-6)


def test_half_a_bit_a_block_for_a_gate():
    """A random free network of gated feedforwards, each a Gaussian function of its own, against psi'(1)."""
    rng, d, hidden, depth = np.random.default_rng(0), 256, 1024, 8
    for kind, function in (("swiglu", lambda h: h / (1 + np.exp(-h))), ("gelu", None)):
        growth = []
        for _ in range(12):
            x = normed(rng.standard_normal(d))
            y = normed(x + 1e-6 * rng.standard_normal(d))
            start = np.linalg.norm(y - x)
            for _ in range(depth):
                gate, up = (rng.standard_normal((hidden, d)) / sqrt(d) for _ in range(2))
                down = rng.standard_normal((d, hidden)) / sqrt(hidden)
                if kind == "swiglu":
                    x, y = (normed(down @ (function(gate @ z) * (up @ z))) for z in (x, y))
                else:
                    x, y = (normed(down @ (up @ z * special.ndtr(up @ z))) for z in (x, y))
            growth.append(np.linalg.norm(y - x) ** 2 / start**2)
        chi = float(np.mean(growth)) ** (1 / depth)
        assert chi == pytest.approx(kernel_slope(kind), rel=0.05), kind


def test_correlated_branches_break_the_mean_square():
    """The same matrix in every block: errors add up in amplitude, and the prediction is exceeded manyfold."""
    rng, d, depth = np.random.default_rng(3), 16, 40
    W = 0.5 * np.eye(d) + 0.5 * rng.standard_normal((d, d)) / sqrt(d)
    x = unit(rng, d)
    direction = np.full(d, 1e-6)
    y = x + direction
    sizes, errors = [1.0], [np.linalg.norm(direction)]
    for _ in range(depth):
        x, y = x + W @ normed(x), y + W @ normed(y) + direction
        sizes.append(np.linalg.norm(x))
        errors.append(np.linalg.norm(y - x))
    beta = np.linalg.norm(direction) / np.diff(np.square(sizes)).max() ** 0.5
    predicted = eg.mean_square_errors(sizes, beta, initial=errors[0])
    assert errors[-1] / sizes[-1] > 2 * predicted[-1]


# --- A factor


def float32_stream(layers, x, xi):
    stream = [x.astype(np.float32)]
    for W in layers:
        x = stream[-1]
        branch = (np.float32(xi) * W.astype(np.float32)) @ (x / np.sqrt(np.mean(x * x)))
        stream.append(x + branch)
    return np.array(stream)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-12, 12), DEPTH)
def test_a_factor_of_two_with_its_embedding_changes_no_bit(seed, power, depth):
    rng, d = np.random.default_rng(seed), 8
    layers, x, xi = prenorm_layers(rng, depth, d, 1.0), rng.standard_normal(d).astype(np.float32), 2.0**power
    assert np.array_equal(float32_stream(layers, np.float32(xi) * x, xi), np.float32(xi) * float32_stream(layers, x, 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 20), DEPTH, st.floats(0.1, 5))
def test_with_a_fixed_embedding_the_difference_is_bounded(seed, xi, depth, scale):
    rng, d = np.random.default_rng(seed), 5
    layers = prenorm_layers(rng, depth, d, scale)
    x = y = rng.standard_normal(d)
    start, lipschitz = np.linalg.norm(x), []
    for W in layers:
        both = np.linalg.norm(x) + np.linalg.norm(y / xi)
        lipschitz.append(2 * sqrt(d) * np.linalg.norm(W, 2) / both)
        x, y = x + W @ normed(x), y + xi * W @ normed(y)
    cap = eg.factor_distance_cap(xi, start, lipschitz[1:])
    assert np.linalg.norm(y / xi - x) <= cap * (1 + 1e-9) + 1e-12
    if depth == 1:
        assert np.linalg.norm(y / xi - x) == pytest.approx(cap, rel=1e-9, abs=1e-12)


def test_an_epsilon_in_the_norm_breaks_the_scale():
    layers, x = prenorm_layers(np.random.default_rng(4), 3, 8, 1.0), np.ones(8)

    def last(xi):
        y = xi * x
        for W in layers:
            y = y + xi * W @ (y / np.sqrt(np.mean(y**2) + 0.1))
        return y / xi

    assert np.linalg.norm(last(0.1) - last(1.0)) > 0.01 * np.linalg.norm(last(1.0))


# --- What is refused


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: eg.error_bound(-1.0, 0, [1, 1], 0.1), "lipschitz must be finite and >= 0; got -1"),
        (lambda: eg.error_bound(1.0, 0, [1, 1], 1.0), "u must be in"),
        (lambda: eg.error_bound(1.0, 0, [1], 0.1), "sizes must have the shape"),
        (lambda: eg.prenorm_lipschitz(1, 1, 1.0), "relative_error must be in"),
        (lambda: eg.root_stream_cap(1, 3, 2), "last must be"),
        (lambda: eg.geometric_stream_cap(1, 1), "ratio must be"),
        (lambda: eg.mean_square_errors([2, 1], 0.1), "steps of sizes must be >= 0"),
        (lambda: eg.factor_distance_cap(0, 1, [1]), "factor must be"),
        (lambda: eg.stored_error(0), "u must be"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
