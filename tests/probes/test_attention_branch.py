"""Branches of a small random Llama: recomputed as the model did, and estimated where estimates are exact."""

import numpy as np
import pytest
import torch

from residlab.probes.activations import modules_matching, observe_inputs
from residlab.probes.attention_branch import (
    AttentionBranch,
    TokenMoments,
    attention_branches,
    bhyt_normalised,
    branch_estimates,
    rms_normalised,
)
from residlab.theory.block_variance import head_gram

D, HEADS, KV, T = 32, 4, 2, 12


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=D, intermediate_size=48, num_hidden_layers=3, num_attention_heads=HEADS,
        num_key_value_heads=KV, max_position_embeddings=32, initializer_range=0.2, rms_norm_eps=1e-12,
    )  # fmt: skip
    model = LlamaModel(config).eval()
    model.set_attn_implementation("eager")
    for layer in model.layers:
        layer.input_layernorm.weight.data.uniform_(0.5, 1.5)
    return model


def test_branch_is_what_the_model_adds(llama):
    tokens = torch.randint(0, 40, (5, T), generator=torch.Generator().manual_seed(1))
    after = []
    sites = modules_matching(llama, r"layers\.\d+\.post_attention_layernorm")
    with observe_inputs(sites, lambda _, x: after.append(x)):
        branches = attention_branches(llama, tokens)
    assert len(branches) == 3
    for branch, z in zip(branches, after, strict=True):
        added = branch.output(rms_normalised(branch.x))
        torch.testing.assert_close(added, (z - branch.x).double(), rtol=1e-4, atol=1e-5)


def test_attention_without_weights_is_refused(llama):
    llama.set_attn_implementation("sdpa")
    try:
        with pytest.raises(ValueError, match="eager"):
            attention_branches(llama, torch.zeros(1, 4, dtype=torch.long))
    finally:
        llama.set_attn_implementation("eager")


def random_branch(texts, generator):
    attention = torch.rand(texts, HEADS, T, T, generator=generator).tril() ** 3
    W_V, W_O = torch.randn(D, D // 2, generator=generator), torch.randn(D, D, generator=generator)
    return AttentionBranch(
        torch.randn(texts, T, D, generator=generator, dtype=torch.float64),
        attention / attention.sum(-1, keepdim=True),
        W_V / D**0.5,
        W_O / D**0.5,
        torch.linspace(0.5, 1.5, D),
        KV,
    )


def test_estimates_meet_independent_tokens():
    """Random tokens fulfil every hypothesis but uniform attention: from the Gram form on, estimates are right."""
    generator = torch.Generator().manual_seed(2)
    branch = random_branch(1500, generator)
    for y, n in ((rms_normalised(branch.x), 1.0), (bhyt_normalised(branch.x, 2.0, 10.0), 0.04)):
        moments = TokenMoments.of(branch.x, y)
        seen = branch_estimates(branch, n, moments)
        h = branch.output(y).numpy()
        measured, kappa = (h**2).mean(-1).mean(0), float(y.square().mean()) / n
        for estimate in (kappa * seen.gram, kappa * seen.shared, seen.moments):
            np.testing.assert_allclose(estimate.mean(0), measured, rtol=0.06)
        covariance = 2 * (branch.x.numpy() * h).mean(-1)
        noise = 4 * covariance.std(0) / len(h) ** 0.5
        # Inside their own text, all but token 0; the trace is first order in the scale.
        assert np.all(np.abs(seen.covariance - covariance).mean(0)[1:] < 0.2 * np.abs(covariance).mean(0)[1:] + 1)
        assert np.all(np.abs(seen.covariance.mean(0) - covariance.mean(0))[1:] < noise[1:])
        first_order = 0.06 * np.abs(seen.trace).mean()
        assert np.all(np.abs(seen.trace.mean(0) - covariance.mean(0))[1:] < noise[1:] + first_order)
        energy = head_gram(**branch.weights).sum()
        assert np.allclose(seen.paper, energy * n / (T * D))
        np.testing.assert_allclose(seen.causal, seen.paper * T / np.arange(1, T + 1))
        assert np.all(seen.rows > 1.2 * seen.causal * np.where(np.arange(T) > 4, 1, 0))


def test_moments_of_tokens():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4000, 5, 8, generator=generator, dtype=torch.float64)
    common = torch.randn(4000, 1, 8, generator=generator, dtype=torch.float64)
    y = 0.6 * x + 0.8 * common  # correlation 0.64 between the tokens of a text
    y[:, 0] = torch.arange(8.0)
    moments = TokenMoments.of(x, y)
    assert moments.shared == pytest.approx(0.64, abs=0.02)
    np.testing.assert_allclose(moments.means[0], np.arange(8.0))
    np.testing.assert_allclose(moments.covariances[0], 0, atol=1e-12)
    np.testing.assert_allclose(moments.covariances[1], np.eye(8), atol=0.05)
    with pytest.raises(ValueError, match="tokens >= 3"):
        TokenMoments.of(x[:, :2], y[:, :2])
