"""The branch of tokens with given moments: against simulation, and against its special cases."""

from math import sqrt

import numpy as np
import pytest

from residlab.theory.block_variance import attention_variance, attention_variance_from_rows, head_gram, head_means
from residlab.theory.branch_moments import attention_variance_from_moments, expected_branch

D, T, HEADS = 24, 16, 3


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    return {"W_V": rng.normal(size=(D, D)) / sqrt(D), "W_O": rng.normal(size=(D, D)) / sqrt(D), "heads": HEADS}


@pytest.fixture
def rows():
    logits = 2 * np.random.default_rng(1).normal(size=(HEADS, T))
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_against_simulated_tokens(weights, rows):
    """A first token of its own, all others with a common mean and unequal, correlated channels."""
    rng = np.random.default_rng(2)
    gamma = rng.uniform(0.5, 1.5, D)
    roots = rng.normal(size=(2, D, D)) / sqrt(D)
    means = rng.normal(size=(2, D))
    classes = np.minimum(np.arange(T), 1)
    samples = 4000
    y = means[classes] + np.einsum("stf,tfg->stg", rng.normal(size=(samples, T, D)), roots[classes])
    values = ((y * gamma) @ weights["W_V"]).reshape(samples, T, HEADS, -1)
    h = np.einsum("at,sta...->sa...", rows, values).reshape(samples, D) @ weights["W_O"]
    grams = np.stack([head_gram(**weights, gamma=gamma, covariance=root.T @ root) for root in roots])
    written = head_means(means, **weights, gamma=gamma)
    expected = attention_variance_from_moments(grams, written, rows, classes, D)
    moments = np.mean(h**2, axis=-1)
    assert abs(moments.mean() - expected) < 4 * moments.std() / sqrt(samples)
    error = h.std(axis=0) / sqrt(samples)
    assert np.all(np.abs(h.mean(axis=0) - expected_branch(written, rows, classes)) < 4.5 * error)
    # Pooling the classes, or leaving the means out, would be seen.
    assert moments.std() / sqrt(samples) < 0.01 * expected
    assert np.mean(expected_branch(written, rows, classes) ** 2) > 0.1 * expected


def test_mean_zero_and_equal_channels_is_the_gram_form(weights, rows):
    n = 0.04
    grams = head_gram(**weights, covariance=n * np.eye(D))[None]
    zero = np.zeros((1, HEADS, D))
    one = attention_variance_from_moments(grams, zero, np.stack([rows, rows]), np.zeros(T, int), D)
    np.testing.assert_allclose(one, attention_variance_from_rows(head_gram(**weights), rows, n, D), rtol=1e-12)
    uniform = np.full((HEADS, T), 1 / T)
    energy = head_gram(**weights).sum()
    assert attention_variance_from_moments(grams, zero, uniform, np.zeros(T, int), D) == pytest.approx(
        attention_variance(energy, n, T, D)
    )


def test_what_a_mean_writes(weights):
    rng = np.random.default_rng(3)
    W_V, mean = rng.normal(size=(D, 8)), rng.normal(size=(2, D))  # one key-value head for all
    written = head_means(mean, W_V, weights["W_O"], HEADS, kv_heads=1, gamma=2.0)
    for a in range(HEADS):
        np.testing.assert_allclose(written[:, a], 2 * mean @ W_V @ weights["W_O"][8 * a : 8 * a + 8])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: head_gram(**w, covariance=np.eye(3)), r"covariance must have shape .*got \(3, 3\)"),
        (lambda w: head_means(np.ones(3), **w), r"mean must have shape \(\.\.\., 24\)"),
        (lambda w: expected_branch(np.ones((1, 2, D)), np.ones((3, 1)), [0]), "with 2 heads; got"),
        (lambda w: expected_branch(np.ones((1, 3, D)), np.ones((3, 1)), [1]), r"integers from 0 to 0; got \[1\]"),
        (lambda w: expected_branch(np.ones((1, 3, D)), np.ones((3, 2)), [0, 0]), "row must be 1"),
        (
            lambda w: attention_variance_from_moments(np.ones((2, 3, 3)), np.ones((1, 3, D)), np.ones((3, 1)), [0], D),
            r"gram must have shape .*got \(2, 3, 3\)",
        ),
    ],
)
def test_errors(weights, call, message):
    with pytest.raises(ValueError, match=message):
        call(weights)
