"""Growth of a small relative error: against the Jacobian itself, and against theory for random networks."""

import numpy as np
import pytest
import torch
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig
from residlab.models.transformer import Transformer
from residlab.probes.activations import modules_matching
from residlab.probes.sensitivity import relative_growth
from residlab.theory.propagation import kernel_slope

SITES = r"blocks\.\d+\.(attention|feedforward)_norm|final_norm"


class Chain(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, d)
        self.first, self.second = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(self.embedding(ids))))


def test_is_the_derivative_in_that_direction():
    torch.manual_seed(0)
    d = 5
    model = Chain(d).double()
    ids = torch.tensor([[3]])
    found = relative_growth(model, ids, {"first": model.first, "second": model.second}, source=model.embedding, seed=4)
    x = model.embedding.weight[3].detach()
    direction = torch.randn((1, 1, d), dtype=torch.float64, generator=torch.Generator().manual_seed(4)).flatten()
    moved = float(x.norm()) * direction / d**0.5
    J = torch.autograd.functional.jacobian(lambda v: torch.tanh(model.first(v)), x)
    hidden = torch.tanh(model.first(x)).detach()
    assert found["first"] == pytest.approx(float(moved.norm() / x.norm()), rel=1e-6)
    assert found["second"] == pytest.approx(float((J @ moved).norm() / hidden.norm()), rel=1e-4)


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
def test_half_a_bit_is_lost_in_each_gated_block_without_residual_connections(kind):
    config = ModelConfig(
        depth=8, width=192, heads=4, vocabulary=64, context=48, residual=False, feedforward=kind,
        initialization="orthogonal-shared-qk", logit_scale=8.0,
    )  # fmt: skip
    growth = []
    for seed in range(3):
        model = Transformer(config, seed=seed).double()
        ids = torch.randint(64, (2, 48), generator=torch.Generator().manual_seed(seed))
        growth.append(
            list(relative_growth(model, ids, modules_matching(model, SITES), source=model.embedding).values())
        )
    mean_square = np.square(growth).mean(0)
    assert mean_square[1] == pytest.approx(mean_square[0], rel=0.05)  # attention to the token itself is an isometry
    assert (mean_square[-1] / mean_square[0]) ** (1 / 8) == pytest.approx(kernel_slope(kind), rel=0.03)


def test_what_is_refused():
    model = Chain(4)
    with pytest.raises(ResidlabError, match="float64"):
        relative_growth(model, torch.tensor([[1]]), {}, source=model.embedding)
    with pytest.raises(ResidlabError, match=r"size must be in \(0, 0.1\); got 1"):
        relative_growth(model.double(), torch.tensor([[1]]), {}, source=model.embedding, size=1)
