"""The Jacobian of a head against finite differences and autograd, and every bound under attack."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from residlab.theory import attention_jacobian as aj
from residlab.theory import lipschitz as lp
from residlab.theory.attention_outlier import outlier_norms, outlier_tokens
from residlab.theory.token_norms import token_norms

FLOAT64 = 1 + 1e-9


def rotations(N, k, angle=0.7):
    turned = np.zeros((N, k, k))
    for n in range(N):
        for pair in range(k // 2):
            c, s = np.cos(n * angle / (pair + 1)), np.sin(n * angle / (pair + 1))
            turned[n, 2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[c, -s], [s, c]]
    return turned


@st.composite
def cases(draw, rotating=None):
    """A head, tokens and a mask: small, logits of all sizes, now and then with repeated, parallel or zero tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    N, d, m = draw(st.integers(1, 7)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    x = rng.standard_normal((N, d)) * 10 ** draw(st.floats(-1.5, 0.7))
    kind = draw(st.sampled_from(["plain", "signs", "repeated", "sink", "zero"]))
    if kind == "signs":
        x = x[:1] * rng.choice([-1.0, 1.0], size=(N, 1))
    elif kind == "repeated":
        x[:] = x[rng.integers(0, max(1, N // 2), N)]
    elif kind == "sink":
        x[0] *= 20
    elif kind == "zero":
        x[rng.integers(0, N)] = 0
    value = rng.standard_normal((m, d))
    if draw(st.booleans()) if rotating is None else rotating:
        k = 2 * draw(st.integers(1, 2))
        head = aj.Head(rng.standard_normal((k, d)), rng.standard_normal((k, d)), value, rotations(N, k))
    else:
        head = aj.Head.of_form(rng.standard_normal((d, d)) * 10 ** draw(st.floats(-1.5, 0.5)), value)
    return head, x, aj.causal_mask(N) if draw(st.booleans()) else None


def dense(head, x, mask):
    """The whole Jacobian from autograd, shape (N, m, N, d)."""
    Q, K, V = (torch.as_tensor(np.array(w)) for w in (head.query, head.key, head.value))
    turn = None if head.rotation is None else torch.as_tensor(head.rotation)

    def f(x):
        q, k = x @ Q.T, x @ K.T
        if turn is not None:
            q, k = ((turn @ s[..., None])[..., 0] for s in (q, k))
        logits = q @ k.T
        if mask is not None:
            logits = logits.masked_fill(~torch.as_tensor(mask), -torch.inf)
        return logits.softmax(-1) @ x @ V.T

    return torch.autograd.functional.jacobian(f, torch.as_tensor(x)).numpy()


@given(cases())
@settings(max_examples=60)
def test_products_and_blocks_are_those_of_autograd(case):
    head, x, mask = case
    J = dense(head, x, mask)
    N, m = J.shape[:2]
    rng = np.random.default_rng(0)
    H, G, v = rng.standard_normal(x.shape), rng.standard_normal((N, m)), rng.standard_normal((N, m))
    jvp, vjp = aj.products(head, x, mask)
    scale = 1e-9 * max(1, np.abs(J).max()) * J.size
    np.testing.assert_allclose(jvp(H), np.einsum("imjd,jd->im", J, H), atol=scale)
    np.testing.assert_allclose(vjp(G), np.einsum("imjd,im->jd", J, G), atol=scale)
    rows = aj.jacobian_rows(head, x, mask)
    lengths = rows.lengths(v)
    wanted = np.linalg.norm(np.einsum("imjd,im->ijd", J, v), axis=2)
    own = np.arange(N)
    np.testing.assert_allclose(lengths[:, -1], wanted[own, own], atol=3e-5 * max(1, np.abs(J).max()))
    wanted[own, own] = 0
    np.testing.assert_allclose(lengths[:, :-1], wanted, atol=3e-5 * max(1, np.abs(J).max()))
    weights = rng.uniform(0.5, 2, lengths.shape)
    blocks = np.einsum("ij,imjd,injd->imn", weights[:, :-1], J, J) + np.einsum(
        "i,imid,inid->imn", weights[:, -1] - weights[own, own], J, J
    )
    np.testing.assert_allclose(rows.matrices(weights), blocks, atol=scale * max(1, np.abs(J).max()))
    np.testing.assert_allclose(rows.applied(v, weights), np.einsum("imn,in->im", blocks, v), atol=10 * scale * m)


@given(cases())
@settings(max_examples=150)
def test_no_norm_exceeds_its_bound(case):
    head, x, mask = case
    found = aj.analyse(head, x, mask)
    R, value = np.linalg.norm(x, axis=1).max(), aj.spectral_norm(head.value)
    norms, bounds = found.norms, found.bounds
    assert (norms.lower <= norms.upper).all()
    for bound in (bounds.rows, found.matrices):
        assert (norms.lower <= bound * FLOAT64 + 1e-12).all()
    rotating = head.rotation is not None
    forms = [aj.spectral_norm(head.form(i, j)) for i in range(len(x)) for j in range(len(x))]
    L = max(forms) * R**2
    world = lp.simple_bound(L, value) if rotating else lp.sharp_bound(L, value)
    assert norms.norm[0] <= world * FLOAT64
    assert (bounds.rows <= lp.simple_bound(head.product_norm * R**2, value) * FLOAT64).all()
    J = dense(head, x, mask)
    frobenius = np.linalg.norm(J.reshape(J.shape[0] * J.shape[1], -1), 2)
    assert frobenius <= bounds.frobenius * FLOAT64
    if mask is None and not rotating:
        assert bounds.column_mass <= lp.column_mass_bound(L, len(x)) * FLOAT64
        assert frobenius <= lp.global_frobenius_bound(L, len(x), value) * FLOAT64
    assert aj.frobenius_norm(head, x, mask) <= frobenius * FLOAT64


@given(cases())
@settings(max_examples=60)
def test_a_finite_change_is_stretched_by_no_more_than_the_bound_for_the_ball(case):
    head, x, mask = case
    rng = np.random.default_rng(1)
    other = x + rng.standard_normal(x.shape) * rng.choice([1e-3, 0.1, 3])
    R = max(np.linalg.norm(both, axis=1).max() for both in (x, other))
    forms = max(aj.spectral_norm(head.form(i, j)) for i in range(len(x)) for j in range(len(x)))
    bound = lp.sharp_bound if head.rotation is None else lp.simple_bound
    moved = np.linalg.norm(aj.output(head, other, mask) - aj.output(head, x, mask), axis=1).max()
    by = np.linalg.norm(other - x, axis=1).max()
    assert moved <= bound(forms * R**2, aj.spectral_norm(head.value)) * by * FLOAT64 + 1e-12 * R


@given(cases())
@settings(max_examples=40)
def test_both_sides_of_a_norm_are_right_where_the_sphere_can_be_searched(case):
    head, x, mask = case
    head = aj.Head(head.query, head.key, np.vstack([head.value, head.value])[:2], head.rotation)
    J = dense(head, x, mask)
    angles = np.linspace(0, np.pi, 4001)
    v = np.stack([np.cos(angles), np.sin(angles)])
    searched = np.sum(np.sqrt(np.sum(np.einsum("imjd,ma->ijda", J, v) ** 2, axis=2)), axis=1).max(axis=1)
    norms = token_norms(aj.jacobian_rows(head, x, mask), starts=4)
    assert (norms.lower <= searched * (1 + 1e-5) + 1e-7).all()
    assert (searched <= norms.upper * (1 + 1e-7) + 1e-7).all()
    assert (norms.lower >= 0.95 * searched - 1e-7).all()  # a local maximum, now and then


def test_the_two_sides_meet_for_nearly_all_random_heads():
    rng = np.random.default_rng(5)
    gaps = []
    for _ in range(40):
        head = aj.Head.of_form(rng.standard_normal((5, 5)), rng.standard_normal((5, 5)))
        lower, upper = token_norms(aj.jacobian_rows(head, rng.standard_normal((6, 5)))).norm
        gaps.append(upper / lower - 1)
    assert np.median(gaps) < 1e-8
    assert np.mean(np.array(gaps) < 1e-6) >= 0.9


def test_a_logit_of_rotated_keys_has_its_form():
    rng = np.random.default_rng(2)
    head = aj.Head(rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), np.eye(3), rotations(6, 4))
    x = rng.standard_normal((6, 3))
    logits = np.log(aj.attention_rows(head, x))
    wanted = np.array([[x[i] @ head.form(i, j) @ x[j] for j in range(6)] for i in range(6)])
    np.testing.assert_allclose(logits - logits[:, :1], wanted - wanted[:, :1], atol=1e-10)
    np.testing.assert_allclose(head.form_norms(), [aj.spectral_norm(head.form(j, 0)) for j in range(6)], rtol=1e-10)
    assert head.form_norms().max() <= head.product_norm * FLOAT64


def test_with_rotated_keys_the_local_bound_of_one_form_fails_without_limit():
    # W_Q' W_K = 0, so that the form of equal positions is zero; a quarter turn makes it what the product says.
    t, N = 1.0, 8
    query, key = np.zeros((2, 2)), np.zeros((2, 2))
    query[0, 0] = key[1, 0] = np.sqrt(t)
    turns = rotations(N, 2, np.pi / 2)
    head = aj.Head(query, key, np.eye(2), turns)
    x = np.array([[1.0, 50.0 if n % 4 < 2 else -50.0] for n in range(N)])  # the second entry meets no query and no key
    found = aj.analyse(head, x)
    R = np.linalg.norm(x, axis=1).max()
    own_form = aj.spectral_norm(query.T @ key)
    wrong = lp.local_bound(form_norm=own_form, query_norm=own_form * R, covariance_norm=found.bounds.covariance).max()
    assert own_form == 0
    assert wrong == 1
    assert found.norms.norm[0] > 10 * wrong
    assert found.norms.norm[0] <= found.bounds.rows.max()


@pytest.mark.parametrize(("L", "angle"), [(0.5, 0.6), (1.0, np.pi / 6), (4.0, 0.2)])
def test_rotated_keys_exceed_the_sharp_bound_and_not_the_simple_one(L, angle):
    head, x = aj.rotated_family(L, 401, angle)
    assert head.form_norms().max() == pytest.approx(L)
    assert np.linalg.norm(x, axis=1).max() == 1
    lower, upper = token_norms(aj.jacobian_rows(head, x, None, slice(0, 1))).norm
    assert lower == pytest.approx(float(aj.rotated_family_value(L, angle)), rel=0.01)
    assert lower > 1.01 * lp.sharp_bound(L)
    assert upper <= lp.simple_bound(L) * FLOAT64
    still, x = aj.rotated_family(L, 401, 0.0)
    assert token_norms(aj.jacobian_rows(still, x)).norm[0] <= lp.sharp_bound(L)


@given(st.floats(1e-6, 1), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60)
def test_a_sink_calms_a_row_as_its_remaining_mass(rest, seed, long):
    rng = np.random.default_rng(seed)
    N, d = 6, 4
    x = rng.standard_normal((N, d))
    x[0] = rng.standard_normal(d) * (10 if long else 1)
    form = rng.standard_normal((d, d))
    # A larger form gives a larger mass to one key or another: test whichever it is, in every row.
    head = aj.Head.of_form(form / rest, np.eye(d))
    found = aj.analyse(head, x)
    P = aj.attention_rows(head, x)
    sinks = P.argmax(axis=1)
    for i, s in enumerate(sinks):
        eps = float(np.delete(P[i], s).sum())
        bound = lp.sink_bound(
            min(eps, 1.0),
            form_norm=aj.spectral_norm(head.form()),
            token_norm=np.linalg.norm(x[i]),
            distance=np.linalg.norm(x - x[s], axis=1).max(),
        )
        assert found.norms.lower[i] <= bound * FLOAT64
        assert found.bounds.rows[i] <= bound * (1 + 1e-7)


def test_in_frobenius_norm_a_sink_gives_root_n_and_in_the_token_norm_one():
    N = 50
    x = np.concatenate([[[10.0, 0]], np.tile([[1.0, 0]], (N - 1, 1))])
    head = aj.Head.of_form(np.diag([5.0, 0]), np.eye(2))
    found = aj.analyse(head, x)
    assert found.norms.norm == pytest.approx((1, 1), rel=1e-6)
    assert aj.frobenius_norm(head, x) == pytest.approx(np.sqrt(N), rel=1e-6)
    assert found.bounds.column_mass == pytest.approx(N)


def test_in_frobenius_norm_a_bound_without_n_is_exponential():
    for chi in (1.0, 2.0, 3.0):
        N = round(np.exp(2 * chi)) + 1
        x = np.concatenate([[[-1.0, 0]], np.tile([[1.0, 0]], (N - 1, 1))])
        head = aj.Head.of_form([[-chi, 0], [0, 0]], np.eye(2))
        assert aj.attention_rows(head, x)[1:, 0] == pytest.approx(0.5, rel=0.05)
        norm = aj.frobenius_norm(head, x)
        assert 0.49 * np.exp(chi) < norm <= lp.global_frobenius_bound(chi, N)
        assert token_norms(aj.jacobian_rows(head, x)).norm[0] <= lp.sharp_bound(chi)


@pytest.mark.parametrize("attended", ["every", "half"])
def test_the_outlier_family_is_that_of_explicit_tokens(attended):
    rng = np.random.default_rng(3)
    for _ in range(12):
        N, R, form = 2 * int(rng.integers(1, 10)), rng.uniform(0.2, 3), rng.uniform(0.1, 3)
        given_ = {"radius": R, "form": form, "outlier": 10 ** rng.uniform(-1, 1.3)}
        head, x, mask = outlier_tokens(N, attended=attended, **given_)
        short = outlier_norms(N, attended=attended, **given_)
        whole = aj.analyse(head, x, mask)
        lower, upper = whole.norms.norm
        assert aj.spectral_norm(head.form()) == pytest.approx(form)
        assert aj.attention_rows(head, x, mask)[1:, 0].min() == pytest.approx(float(short.mass), rel=1e-9)
        assert whole.bounds.rows.max() == pytest.approx(float(short.local), rel=1e-9)
        assert 0.999 * lower <= short.norm <= upper * FLOAT64


def test_the_norm_in_forty_digits():
    """One row of a head with d = m = 1 has the norm sum_j |D_ij|: from mpmath's own derivatives."""
    x, A, V = [mpmath.mpf(v) for v in ("0.3", "-1.7", "2.25")], mpmath.mpf("0.8"), mpmath.mpf("1.5")

    def f(i, *tokens):
        weights = [mpmath.exp(tokens[i] * A * t) for t in tokens]
        return V * sum(w * t for w, t in zip(weights, tokens, strict=True)) / sum(weights)

    with mpmath.workdps(40):
        unit = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
        wanted = [sum(abs(mpmath.diff(lambda *t, i=i: f(i, *t), tuple(x), order)) for order in unit) for i in range(3)]
    norms = token_norms(aj.jacobian_rows(aj.Head.of_form([[0.8]], [[1.5]]), np.array([[0.3], [-1.7], [2.25]])))
    for got in norms:
        np.testing.assert_allclose(got, [float(w) for w in wanted], rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: aj.Head(np.eye(2), np.eye(3), np.eye(2)), "one shape"),
        (lambda: aj.Head(np.eye(2), np.eye(2), np.eye(3)), "value"),
        (lambda: aj.Head(np.eye(2), np.eye(2), np.eye(2), np.ones((4, 2, 2))), "orthogonal"),
        (lambda: aj.Head(np.eye(2), np.eye(2), np.eye(2), np.ones((4, 3, 3))), "rotation"),
        (lambda: aj.output(aj.Head.of_form(np.eye(2), np.eye(2)), np.ones((3, 5))), "tokens"),
        (lambda: aj.output(aj.Head(*[np.eye(2)] * 3, rotations(4, 2)), np.ones((3, 2))), "4 positions"),
        (
            lambda: aj.attention_rows(aj.Head.of_form(np.eye(2), np.eye(2)), np.ones((2, 2)), np.eye(2) < 0),
            "one key at least",
        ),
        (lambda: aj.rotated_family(1.0, 4, 0.1), "odd"),
        (lambda: outlier_norms(3, radius=1, form=1, outlier=1), "tokens"),
        (lambda: outlier_norms(4, radius=1, form=1, outlier=1, attended="all"), "attended"),
    ],
)
def test_refuses_what_makes_no_sense(call, word):
    with pytest.raises(ValueError, match=word):
        call()
