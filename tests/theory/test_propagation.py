"""Similarity of tokens: the exact lemma against matrices, the kernel against samples, the closure against our model."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from residlab.experiments.probes import PROBES
from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer
from residlab.theory import propagation as pr


def tokens_with_cosine(c, count, d=40):
    """Unit vectors whose cosines are all c."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return np.sqrt(c) * basis[:, :1].T + np.sqrt(1 - c) * basis[:, 1 : count + 1].T


@given(st.floats(0, 1), st.integers(0, 1000))
def test_attention_mixes_cosines_as_the_lemma_says(c, seed):
    rng = np.random.default_rng(seed)
    X, P = tokens_with_cosine(c, 5), rng.dirichlet(0.5 * np.ones(5), size=5)
    U = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    Y = P @ X @ U
    directions = Y / np.linalg.norm(Y, axis=1, keepdims=True)
    cosines = directions @ directions.T
    np.testing.assert_allclose(pr.mixed_gram(X @ X.T, P), cosines, atol=1e-9)
    pi, omega = (P**2).sum(axis=1), P[0] @ P[1]
    wanted = (c + (1 - c) * omega) / np.sqrt((c + (1 - c) * pi[0]) * (c + (1 - c) * pi[1]))
    assert cosines[0, 1] == pytest.approx(wanted, abs=1e-9)


def test_odds_are_multiplied_by_the_participation_and_uniform_rows_make_tokens_one():
    c = pr.attention_similarity(0.3, 0.25)
    assert (1 - c) / c == pytest.approx(0.25 * 0.7 / 0.3)
    assert pr.attention_similarity(0.3, 1 / 64, 1 / 64) == pytest.approx(1)
    assert (
        pr.attention_similarity(0.0, 0.5) == 0
    )  # tokens at right angles stay so, whatever the rows, if they share none
    gram = np.full((6, 6), 0.2) + 0.8 * np.eye(6)
    np.testing.assert_allclose(pr.mixed_gram(gram, np.full((6, 6), 1 / 6)), 1)
    with pytest.raises(ValueError, match="overlap must be at most"):
        pr.attention_similarity(0.3, 0.2, 0.3)
    with pytest.raises(ValueError, match="the sum of each row must be 1"):
        pr.mixed_gram(gram, np.ones((6, 6)))


def correlated(c, rng):
    first, other = rng.normal(size=(2, 400_000))
    return first, c * first + np.sqrt(1 - c * c) * other


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_the_kernel_against_samples(kind):
    rng = np.random.default_rng(0)
    function = {"swiglu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}[kind]
    for c in (0.0, 0.3, 0.8):
        h = [function(torch.as_tensor(g)).numpy() for g in correlated(c, rng)]
        if kind == "swiglu":
            h = [a * b for a, b in zip(h, correlated(c, rng), strict=True)]
        measured = (h[0] * h[1]).mean() / np.sqrt((h[0] ** 2).mean() * (h[1] ** 2).mean())
        assert pr.feedforward_kernel(c, kind) == pytest.approx(measured, abs=0.012)
    assert pr.feedforward_kernel(1.0, kind) == pytest.approx(1)
    assert pr.critical_participation(kind) == pytest.approx(1 / pr.kernel_slope(kind))


def test_the_slope_is_that_of_gradients():
    # psi'(1) = 1 + E silu'**2 / E silu**2 for a gate.
    from scipy.integrate import quad

    def mean(f):
        return quad(lambda x: f(x) * np.exp(-x * x / 2) / np.sqrt(2 * np.pi), -12, 12)[0]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    slope = mean(lambda x: (sigmoid(x) * (1 + x * (1 - sigmoid(x)))) ** 2) / mean(lambda x: (x * sigmoid(x)) ** 2)
    assert pr.kernel_slope("swiglu") == pytest.approx(1 + slope, rel=1e-6)
    with pytest.raises(ValueError, match="kind must be one of 'swiglu', 'gelu'; got 'relu'"):
        pr.kernel_slope("relu")


def measured(shared, scale, beta, depth=6):
    config = ModelConfig(
        depth=depth, width=128, heads=4, vocabulary=3000, context=96, residual=False, logit_scale=scale,
        temperature_base=beta, initialization="orthogonal-shared-qk" if shared else "orthogonal", init_std=0.06,
    )  # fmt: skip
    model, ids = Transformer(config, seed=0), torch.randperm(3000, generator=torch.Generator().manual_seed(1))[:192]
    ids = ids.view(2, 96)
    with torch.no_grad():
        seen, gradient, stream = (PROBES[name](model, ids) for name in ("attention", "gradients", "stream"))
        _, rows = model.forward_with_rows(ids)
    layers = range(1, depth + 1)
    size = [stream[f"blocks.{layer - 1}.attention_norm"]["all"]["rms"] for layer in layers]
    return {
        "similarity": np.array([seen[str(layer)]["token_similarity"] for layer in layers]),
        "participation": np.array([float((row**2).sum(-1).mean()) for row in rows]),
        "gradient": np.array([gradient[str(n)]["stream"] * s for n, s in zip(layers, size, strict=True)]),
    }


@pytest.mark.parametrize(("scale", "beta"), [(1.0, 1.0), (1.0, 1.05), (2.0, 1.03)])
def test_with_a_shared_start_tokens_stay_apart_and_gradients_grow_as_predicted(scale, beta):
    predicted = pr.similarity_by_layer(6, initial=0.0, logit_scale=scale, beta=beta, tokens=96)
    seen = measured(True, scale, beta)
    np.testing.assert_allclose(seen["participation"], predicted.participation[1:], atol=0.02)
    assert seen["similarity"].max() < 0.03
    assert predicted.similarity.max() < 0.01
    growth, wanted = seen["gradient"][1] / seen["gradient"][-1], predicted.gradient[1] / predicted.gradient[-2]
    assert growth == pytest.approx(wanted, rel=0.5 if scale == 1 else 0.2)


def test_without_it_they_become_alike_as_predicted():
    predicted = pr.similarity_by_layer(6, initial=0.0, tokens=96, shared=False)
    seen = measured(False, 1.0, 1.0)
    np.testing.assert_allclose(seen["similarity"], predicted.similarity[:-1], atol=0.09)
    np.testing.assert_allclose(seen["participation"], predicted.participation[1:], atol=0.03)
    assert predicted.similarity[-1] > 0.6


def test_the_closure_is_exact_for_flat_rows():
    # Logits of scale nearly 0 and separate matrices: rows are flat, and P G P^T has no noise.
    made = pr.similarity_by_layer(1, initial=0.2, logit_scale=1e-6, tokens=12, shared=False)
    gram = np.full((12, 12), 0.2) + 0.8 * np.eye(12)
    exact = pr.feedforward_kernel(
        pr.mixed_gram(gram, np.tril(np.ones((12, 12))) / np.arange(1, 13)[:, None]).clip(0, 1)
    )
    assert made.similarity[1] == pytest.approx((exact.sum() - np.trace(exact)) / (12 * 11), abs=1e-9)


def test_logits_as_large_as_numbers_go():
    made = pr.similarity_by_layer(3, logit_scale=1e3, beta=2.0, tokens=16)
    assert np.isfinite(made.similarity).all()
    assert made.participation[1:] == pytest.approx(1, abs=0.1)
    with pytest.raises(ValueError, match=r"depth must be a whole number >= 1; got 0.0"):
        pr.similarity_by_layer(0)
    with pytest.raises(ValueError, match="tokens must be a whole number >= 2"):
        pr.initial_rows(0.1, 1.0, tokens=1, head_dim=32, width=128)


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
@pytest.mark.parametrize("variance", [1e-3, 1.0, 25.0, 1e4])
def test_the_slope_is_exact_at_every_variance(kind, variance):
    root = mpmath.sqrt(variance)

    def f(x):
        return x * mpmath.ncdf(x) if kind == "gelu" else x / (1 + mpmath.exp(-x))

    bend = min(8 / root, 12)
    marks = [-14, -bend, -bend / 4, 0, bend / 4, bend, 14]
    above, below = (
        mpmath.quad(lambda g, of=of: of(root * g) ** 2 * mpmath.npdf(g), marks)
        for of in (lambda x: mpmath.diff(f, x), f)
    )
    assert pr.kernel_slope(kind, variance=variance) == pytest.approx(
        float(variance * above / below) + (kind == "swiglu"), rel=1e-8
    )


def test_coefficients_know_up_to_which_variance_they_suffice():
    for kind in ("gelu", "swiglu"):
        b = pr.kernel_coefficients(kind, variance=4.0)
        assert np.arange(len(b)) @ b == pytest.approx(pr.kernel_slope(kind, variance=4.0), rel=1e-4)
    with pytest.raises(ValueError, match=r"variance must be in \(0, 4\]; got 25"):
        pr.kernel_coefficients("gelu", variance=25.0)
