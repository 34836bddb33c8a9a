"""Initial weights: the laws that the table in `residlab.models.init` promises."""

import pytest
import torch

from residlab.models.config import ModelConfig
from residlab.models.init import scaled_orthogonal_
from residlab.models.transformer import Transformer

SMALL = {"width": 96, "heads": 4, "vocabulary": 800, "depth": 8, "bias": True, "tied_embeddings": False}


@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scaled_orthogonal_keeps_the_variance_of_isotropic_inputs(shape, dtype):
    W = scaled_orthogonal_(torch.empty(shape, dtype=dtype)).double()
    rows, columns = shape
    smaller = W @ W.T if rows <= columns else W.T @ W
    scale = rows / min(shape)
    tolerance = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(smaller / scale, torch.eye(min(shape)).double(), atol=tolerance, rtol=0)
    assert float(W.square().sum() / rows) == pytest.approx(1, rel=tolerance)  # E y_i^2 for E x x^T = I


def test_scaled_orthogonal_is_haar_distributed():
    # Without the signs of R the diagonal of Q has a negative mean; Haar's is zero, of variance 1/n.
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([scaled_orthogonal_(torch.empty(6, 6), generator).diagonal() for _ in range(1000)])
    assert draws.mean().abs() < 4 / (6 * 6000) ** 0.5 * 6**0.5
    assert float(draws.square().mean()) == pytest.approx(1 / 6, rel=0.06)


def test_scaled_orthogonal_wants_a_matrix():
    with pytest.raises(ValueError, match="fills a matrix"):
        scaled_orthogonal_(torch.empty(4))


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-scaled"])
def test_gpt2(kind):
    model = Transformer(ModelConfig(**SMALL, initialization=kind, init_std=0.05), seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "beta")):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            closes = kind == "gpt2-scaled" and ("W_O" in name or "W_down" in name)
            std = 0.05 / 4 if closes else 0.05  # sqrt(2 * 8)
            assert float(parameter.detach().std()) == pytest.approx(std, rel=0.05), name
            assert abs(float(parameter.detach().mean())) < 5 * std / parameter.numel() ** 0.5


@pytest.mark.parametrize("kind", ["orthogonal", "orthogonal-shared-qk"])
def test_orthogonal(kind):
    model = Transformer(ModelConfig(**SMALL, initialization=kind), seed=0)
    for block in model.layers:
        for W in (*(getattr(block.attention, f"W_{name}") for name in "QKVO"), block.feedforward.W_down):
            singular = torch.linalg.svdvals(W.weight.detach())
            torch.testing.assert_close(singular, torch.ones_like(singular), atol=1e-5, rtol=0)
        shared = torch.equal(block.attention.W_Q.weight, block.attention.W_K.weight)
        assert shared == (kind == "orthogonal-shared-qk")
        assert block.attention.W_Q.weight is not block.attention.W_K.weight
    assert float(model.embedding.weight.detach().std()) == pytest.approx(0.02, rel=0.03)


def test_a_shared_start_lets_a_token_attend_to_itself():
    config = {"width": 64, "heads": 4, "vocabulary": 64, "depth": 1, "logit_scale": 8.0, "context": 16}
    tokens = torch.arange(16)[None]
    own = {}
    for kind in ("orthogonal", "orthogonal-shared-qk"):
        model = Transformer(ModelConfig(**config, initialization=kind), seed=0)
        rows = model.forward_with_rows(tokens)[1][0].detach()
        own[kind] = float(rows.diagonal(dim1=-2, dim2=-1).mean())
    assert own["orthogonal"] < 0.5 < 0.9 < own["orthogonal-shared-qk"]
