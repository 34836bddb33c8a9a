"""Bounds on attention's Jacobian: against each other, against mpmath, and attained."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.theory import attention_jacobian as aj
from residlab.theory import lipschitz as lp
from residlab.theory.token_norms import token_norms

radii = st.floats(0, 1e3)
numbers = st.integers(1, 10**6)


@given(radii)
def test_the_sharp_bound_lies_between_four_fifths_of_the_simple_one_and_all_of_it(L):
    share = lp.sharp_bound(L) / lp.simple_bound(L)
    assert 0.8 * (1 - 1e-12) <= share <= 1 + 1e-12
    assert lp.sharp_bound(0.75) == pytest.approx(0.8 * lp.simple_bound(0.75), rel=1e-15)
    assert lp.sharp_bound(L) == pytest.approx(np.exp(np.arcsinh(L)), rel=1e-12)


def exact_family_value(L, N, digits=50):
    """Return what the vector along the tokens shows of the Jacobian of the family, from its rows, in mpmath."""
    with mpmath.workdps(digits):
        L, w = mpmath.mpf(L), mpmath.mpf(1) / N
        own = [w, w * L + L]  # (I + u a')' v / N + (sigma A')' v, v = u, sigma = u u'
        same, other = [w, w * L], [w, -w * L]
        size = lambda z: mpmath.sqrt(z[0] ** 2 + z[1] ** 2)  # noqa: E731
        return size(own) + (N // 2 - 1) * size(same) + (N // 2) * size(other)


@pytest.mark.parametrize("L", ["0", "0.01", "0.75", "3", "250"])
@pytest.mark.parametrize("N", [2, 10, 1000, 10**9])
def test_the_family_approaches_the_sharp_bound_from_below(L, N):
    value, bound = exact_family_value(L, N), mpmath.mpf(L) + mpmath.sqrt(1 + mpmath.mpf(L) ** 2)
    assert value <= bound
    assert bound - value <= mpmath.mpf(1) / N + mpmath.mpf(10) ** -40  # so the constant is the supremum
    assert float(value) == pytest.approx(float(lp.family_value(float(L), N)), rel=1e-13)


@pytest.mark.parametrize(("L", "N"), [(0.3, 2), (0.75, 8), (5.0, 40)])
def test_the_family_is_what_it_is_said_to_be(L, N):
    X, A = lp.family(L, N)
    head = aj.Head.of_form(A, np.eye(2))
    np.testing.assert_allclose(aj.attention_rows(head, X), 1 / N)
    lower, upper = token_norms(aj.jacobian_rows(head, X)).norm
    assert lp.family_value(L, N) <= lower * (1 + 1e-12)
    assert upper <= lp.sharp_bound(L) * (1 + 1e-12)
    assert lower == pytest.approx(upper, rel=1e-6)


shares = st.floats(0, 1)


@given(st.floats(0, 1e3), st.floats(1e-2, 1e2), shares, shares, shares)
def test_local_bounds_are_below_those_for_all_inputs(form, R, long, spread, far):
    query, covariance, distance = long * form * R, spread * R**2, far * R
    one = lp.local_bound(form_norm=form, query_norm=query, covariance_norm=covariance, mean_distance=distance)
    assert one <= lp.sharp_bound(form * R**2) * (1 + 1e-9)
    rotated = lp.rotated_local_bound(
        query_map_norm=form, key_covariance_norm=R**2, query_norm=query, covariance_norm=covariance
    )
    assert one <= rotated * (1 + 1e-9)
    assert rotated <= lp.simple_bound(form * R**2) * (1 + 1e-9)


@given(st.floats(0, 20), numbers)
def test_frobenius_bounds_are_below_both_of_castin_et_al(L, N):
    ours = lp.global_frobenius_bound(L, N)
    assert ours <= lp.castin_discrete(L, N) * (1 + 1e-12)
    assert ours <= lp.castin_mean_field(L) * (1 + 1e-12)
    assert ours <= lp.global_frobenius_bound(L) * (1 + 1e-12)  # without N
    assert lp.column_mass_bound(L, N) <= min(N, np.exp(2 * L)) * (1 + 1e-12)


def test_for_large_radius_and_many_tokens_ours_is_castin_et_al_s_over_two_root_three():
    assert lp.castin_discrete(1e4, 1e4) / lp.global_frobenius_bound(1e4, 1e4) == pytest.approx(2 * 3**0.5, rel=0.02)


def theta(P):
    """Return 4 max_S P(S)(1 - P(S)) by trying every subset."""
    sums = [sum(p for k, p in enumerate(P) if subset >> k & 1) for subset in range(2 ** len(P))]
    return max(4 * s * (1 - s) for s in sums)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.floats(1, 100))
def test_the_balanced_mass_is_the_norm_of_the_softmax_jacobian(weights, first):
    P = np.array([first * weights[0], *weights[1:]])
    P /= P.sum()
    J = np.diag(P) - np.outer(P, P)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(P))).reshape(len(P), -1)
    norm = np.abs(J @ signs).sum(axis=0).max()  # infinity to 1, by enumeration
    bound = float(lp.balanced_mass_bound(P))
    assert norm == pytest.approx(theta(P), abs=1e-12)
    assert norm <= bound + 1e-12
    assert norm >= (bound if P.max() > 0.5 else 8 / 9) - 1e-12


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: lp.sharp_bound(-1.0), "logit_radius"),
        (lambda: lp.simple_bound(np.nan), "logit_radius"),
        (lambda: lp.sharp_bound(1.0, -1.0), "value_norm"),
        (lambda: lp.family(1.0, 3), "even"),
        (lambda: lp.castin_discrete(1.0, 0), "tokens"),
        (lambda: lp.frobenius_bound(0.0, third=1.0), "column_mass"),
        (lambda: lp.sink_bound(1.5, form_norm=1, token_norm=1, distance=1), "remaining_mass"),
        (lambda: lp.balanced_mass_bound([0.5, 0.4]), "add up to 1"),
    ],
)
def test_refuses_what_makes_no_sense(call, word):
    with pytest.raises(ValueError, match=word):
        call()
