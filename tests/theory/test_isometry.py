"""Isometry: the measures against the probe and linear algebra, bounds under attack, closed forms against matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from residlab.probes.weights import matrix_shape
from residlab.theory import isometry as iso

values = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12)


def orthogonal(n, rng):
    Q, R = np.linalg.qr(rng.normal(size=(n, n)))
    return Q * np.sign(np.diag(R))


def singular(W):
    return np.linalg.svd(W, compute_uv=False)


@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (9, 5)])
def test_measures_are_those_of_the_probe(shape):
    W = np.random.default_rng(0).normal(size=shape)
    seen, sigma = matrix_shape(torch.as_tensor(W)), singular(W)
    assert iso.singular_spread(sigma) == pytest.approx(seen.spread)
    assert iso.isometry_defect(sigma) == pytest.approx(seen.defect)
    assert iso.stable_rank(sigma) == pytest.approx(seen.stable_rank)


@given(values)
def test_the_defect_and_the_stable_rank_are_bounded_by_the_spread(sigma):
    spread = iso.singular_spread(sigma)
    assert iso.isometry_defect(sigma) <= iso.defect_bound(spread) * (1 + 1e-9) + 1e-12
    assert iso.stable_rank(sigma) >= iso.stable_rank_bound(spread, len(sigma)) * (1 - 1e-9)


def test_the_bounds_are_attained_and_have_no_converse():
    # Squares 1 and b = 4, with the mean 2ab/(a+b) = 8/5: a share of 4/5 at the lower end.
    assert iso.isometry_defect([1, 1, 1, 1, 2]) == pytest.approx(float(iso.defect_bound(2)))
    assert iso.stable_rank([2, 1, 1]) == pytest.approx(float(iso.stable_rank_bound(2, 3)))
    sigma = np.ones(100)
    sigma[0] = 0
    assert iso.singular_spread(sigma) == np.inf
    assert iso.isometry_defect(sigma) == pytest.approx(1 / np.sqrt(99))


@given(st.integers(0, 10_000), st.floats(0.001, 0.2), st.integers(1, 4))
def test_weyl_bounds_what_updates_do(seed, step, steps):
    rng = np.random.default_rng(seed)
    W = orthogonal(5, rng)
    for _ in range(steps):
        update = rng.normal(size=(5, 5)) if seed % 2 else W.copy()  # along W itself the bound is nearly attained
        W = W + step * rng.choice([-1, 1]) * update / singular(update)[0]
    assert iso.singular_spread(singular(W)) <= iso.spread_bound(step, steps) * (1 + 1e-9)


def test_weyl_s_bound_is_attained_and_ends():
    rng = np.random.default_rng(0)
    U = orthogonal(4, rng)
    u, v = U[:, :1], np.eye(4)[:1]
    w, x = U[:, 1:2], np.eye(4)[1:2]
    assert iso.singular_spread(singular(U + 0.3 * u @ v - 0.3 * w @ x)) == pytest.approx(
        float(iso.spread_bound(0.1, 3))
    )
    assert iso.spread_bound(0.5, 2) == np.inf


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000))
def test_signs_lie_between_their_norms(rows, columns, seed):
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(rows, columns))
    low, high = iso.sign_norms(rows, columns)
    assert low * (1 - 1e-9) <= singular(signs)[0] <= high * (1 + 1e-9)


def test_both_norms_of_signs_are_attained():
    H = np.array([[1, 1], [1, -1]])
    assert singular(np.kron(H, H))[0] == pytest.approx(iso.sign_norms(4, 4)[0])
    assert singular(np.ones((3, 5)))[0] == pytest.approx(iso.sign_norms(3, 5)[1])


@pytest.mark.parametrize("t", [0.05, 0.3, 0.7, 0.95, 1.0, 1.5])
def test_isotropic_updates_against_a_large_matrix(t):
    n = 900
    rng = np.random.default_rng(1)
    sigma = singular(np.eye(n) + t * rng.normal(size=(n, n)) / np.sqrt(n))
    low, high = iso.isotropic_edges(t)
    assert sigma[0] == pytest.approx(float(high), rel=0.01)
    assert sigma[-1] == pytest.approx(float(low), abs=0.02)
    assert iso.isometry_defect(sigma) == pytest.approx(float(iso.isotropic_defect(t)), rel=0.02)


@pytest.mark.parametrize("a", [0.1, 0.6, 2.0])
def test_coherent_updates_attain_weyl_s_bound(a):
    rng = np.random.default_rng(2)
    sigma = singular(orthogonal(400, rng) + a * orthogonal(400, rng))
    assert iso.isometry_defect(sigma) == pytest.approx(float(iso.coherent_defect(a)), rel=0.02)
    assert sigma[0] == pytest.approx(1 + a, rel=0.01)
    assert sigma[-1] == pytest.approx(abs(1 - a), rel=0.02)


def test_isotropic_limits():
    low, high = iso.isotropic_edges([0.0, 1e-4, 1.0, 100.0])
    np.testing.assert_allclose(high[:2], [1, 1 + np.sqrt(2) * 1e-4], rtol=1e-7)
    np.testing.assert_allclose(low[:3], [1, 1 - np.sqrt(2) * 1e-4, 0], rtol=1e-7)
    assert high[3] == pytest.approx(200, rel=0.01)  # Ginibre alone: 2
    assert high[2] == pytest.approx(np.sqrt(27 / 4))  # of I + G


@given(st.floats(-3, 3), st.floats(-1, 1))
def test_rank_one_against_a_matrix(strength, alignment):
    n = 6
    rng = np.random.default_rng(0)
    U = orthogonal(n, rng)
    v = np.eye(n)[0]
    Uv, other = U @ v, U[:, 1]
    u = alignment * Uv + np.sqrt(1 - alignment**2) * other
    sigma = np.sort(singular(U + strength * np.outer(u, v)))
    low, high = iso.rank_one_values(strength, alignment)
    wanted = np.sort(np.concatenate(([low, high], np.ones(n - 2))))
    np.testing.assert_allclose(sigma, wanted, atol=1e-7)


def test_rank_one_defect_and_spread():
    sigma = np.ones(20)
    sigma[:2] = iso.rank_one_values(1.7)
    assert iso.rank_one_spread(1.7) == pytest.approx(float(iso.singular_spread(sigma)))
    assert iso.rank_one_defect(1.7, 20) == pytest.approx(float(iso.isometry_defect(sigma)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: iso.isometry_defect([0.0, 0.0]), "not all zero"),
        (lambda: iso.isometry_defect([-1.0, 1.0]), "singular values must be finite and >= 0; got -1.0"),
        (lambda: iso.defect_bound(0.5), "spread must be finite and >= 1; got 0.5"),
        (lambda: iso.isotropic_edges(-1.0), "t must be finite and >= 0"),
        (lambda: iso.rank_one_values(1.0, 2.0), r"alignment must be in \[-1, 1\]; got 2.0"),
    ],
)
def test_refuses(call, said):
    with pytest.raises(ValueError, match=said):
        call()
