"""Mixed precision: what BHyT takes from the weights is measured in float32, whatever autocast does to products."""

import pytest
import torch

from residlab.models.config import ModelConfig, norm_options
from residlab.models.norms import variance_increment
from residlab.models.transformer import Transformer


@pytest.mark.parametrize("averaged", ["context", "rows"])
def test_the_constant_of_a_block(averaged):
    norm = norm_options("bhyt", averaged=averaged)
    model = Transformer(ModelConfig(depth=1, width=32, heads=4, vocabulary=8, norm=norm), seed=0)
    block = model.layers[0]
    exact = block.measured_constant()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(block.measured_constant(), exact)


def test_the_increment_from_attention_weights():
    norm = norm_options("bhyt", averaged="rows")
    rows, gram = torch.rand(2, 4, 5, 5).softmax(dim=-1), torch.rand(4, 4)
    exact = variance_increment(norm, torch.tensor(2.0), 32, gram, tokens=5, rows=rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(variance_increment(norm, torch.tensor(2.0), 32, gram, tokens=5, rows=rows), exact)
