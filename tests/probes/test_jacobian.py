"""Probed Jacobians against dense ones."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer
from residlab.probes.blocks import record_calls
from residlab.probes.jacobian import jacobian_deviation
from residlab.probes.lipschitz import frobenius_norm

T, D = 5, 6


class Attention(nn.Module):
    """A small causal block with a residual, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.q, self.k, self.v = (nn.Linear(D, D, dtype=torch.float64) for _ in range(3))

    def forward(self, x):
        x = x.unsqueeze(0) if x.ndim == 2 else x
        h = nn.functional.rms_norm(x, (D,))
        y = nn.functional.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), is_causal=True)
        return x + y + torch.tanh(h)


def dense_rows(block, x):
    """Return ||(J - I)[t]||**2 / d for each sequence and output token, from the dense Jacobian."""
    rows = []
    for tokens in x:
        jacobian = torch.autograd.functional.jacobian(lambda z: block(z[None])[0], tokens).reshape(T * D, T * D)
        rows.append((jacobian - torch.eye(T * D, dtype=x.dtype)).square().reshape(T, D, T * D).sum((1, 2)) / D)
    return torch.stack(rows).numpy()


@pytest.fixture(scope="module")
def tokens():
    return torch.randn(2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_equals_the_dense_jacobian_within_its_standard_error(tokens):
    block = Attention()
    exact = dense_rows(block, tokens)
    found = jacobian_deviation(block, tokens, probes=1200, generator=torch.Generator().manual_seed(1))
    assert found.squares.shape == (1200, 2, T)
    assert abs(found.square - exact.mean()) < 4 * found.square_error
    assert found.square_error < 0.04 * found.square
    assert found.value == pytest.approx(np.sqrt(exact.mean()), rel=0.03)
    np.testing.assert_allclose(found.squares.mean(0), exact, rtol=0.15)
    rest = found.tokens(slice(1, None))
    assert abs(rest.square - exact[:, 1:].mean()) < 4 * rest.square_error


def test_the_standard_error_is_that_of_repeated_estimates(tokens):
    generator = torch.Generator().manual_seed(2)
    repeats = [jacobian_deviation(Attention(), tokens, probes=8, generator=generator) for _ in range(80)]
    squares = np.array([found.square for found in repeats])
    claimed = np.sqrt(np.mean([found.square_error**2 for found in repeats]))
    assert claimed == pytest.approx(squares.std(ddof=1), rel=0.35)
    assert np.std([found.value for found in repeats]) == pytest.approx(
        np.mean([found.error for found in repeats]), rel=0.35
    )


def test_known_maps():
    x = torch.randn(1, 4, 8)
    for block, value in ((lambda z: z, 0.0), (torch.zeros_like, 1.0), (lambda z: -z, 2.0), (lambda z: 1.5 * z, 0.5)):
        found = jacobian_deviation(block, x, probes=3)
        assert found.value == pytest.approx(value, abs=1e-6)  # diagonal: every probe with signs is exact
        assert found.error == pytest.approx(0.0, abs=1e-6)


class NoForwardMode(torch.autograd.Function):
    """x**3 with a backward pass that can be differentiated, and no forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def test_falls_back_where_there_is_no_forward_mode(tokens):
    found = jacobian_deviation(lambda x: NoForwardMode.apply(x) @ torch.ones(D, D, dtype=x.dtype), tokens, probes=2)
    same = jacobian_deviation(lambda x: (x**3) @ torch.ones(D, D, dtype=x.dtype), tokens, probes=2)
    seeds = [torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)]
    blocks = [lambda x: NoForwardMode.apply(x).cumsum(-2), lambda x: (x**3).cumsum(-2)]
    pair = [jacobian_deviation(b, tokens, probes=3, generator=g) for b, g in zip(blocks, seeds, strict=True)]
    torch.testing.assert_close(pair[0].squares, pair[1].squares)
    assert found.squares.shape == same.squares.shape


def test_leaves_no_gradient_behind(tokens):
    block = Attention()
    jacobian_deviation(block, tokens, probes=1)
    assert all(p.grad is None for p in block.parameters())
    assert not tokens.requires_grad


def test_one_probe_has_no_standard_error(tokens):
    assert np.isnan(jacobian_deviation(Attention(), tokens, probes=1).error)


@pytest.mark.parametrize(
    ("block", "x", "probes", "message"),
    [
        (nn.Identity(), torch.ones(2, 3), 0, "at least 1"),
        (nn.Identity(), torch.ones(3), 1, r"\(\.\.\., T, d\)"),
        (nn.Linear(3, 4), torch.ones(2, 3), 1, r"\(2, 3\) became \(2, 4\)"),
    ],
)
def test_refuses_what_is_no_block(block, x, probes, message):
    with pytest.raises(ValueError, match=message):
        jacobian_deviation(block, x, probes=probes)


def test_the_library_s_own_blocks_can_be_looked_at():
    model = Transformer(ModelConfig(depth=1, width=16, heads=2, vocabulary=50, context=8), seed=0)
    with torch.no_grad(), record_calls({"block": model.blocks[0]}) as calls:
        model(torch.arange(8)[None])
    block, x = calls["block"], calls["block"].x
    with sdpa_kernel(SDPBackend.MATH):
        exact = torch.func.jacrev(lambda x: block(x).flatten())(x.detach()).reshape(x.numel(), x.numel())
    distance = (exact - torch.eye(x.numel())).norm() / x.numel() ** 0.5
    found = jacobian_deviation(block, x, probes=400, generator=torch.Generator().manual_seed(0))
    assert abs(found.value - distance) < 5 * found.error
    assert frobenius_norm(lambda tokens: block(tokens[None])[0], x[0]) == pytest.approx(
        float(torch.linalg.matrix_norm(exact.detach(), 2)), rel=1e-3
    )
