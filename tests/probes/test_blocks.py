"""Recorded calls, skipped blocks, angles, attention mass."""

import numpy as np
import pytest
import torch
from torch import nn

from residlab.probes.activations import modules_matching, observe_outputs
from residlab.probes.attention import mass_on_key, uniform_mass_on_key
from residlab.probes.blocks import angles, record_calls, skipped


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, shift=0.0, *, sign=1):
        return sign * self.factor * x + shift


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Scale(2.0), Scale(3.0), Scale(5.0)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x, 1.0, sign=-1)
        return x


def test_a_recorded_call_can_be_run_again_on_other_tokens():
    chain = Chain()
    with record_calls(modules_matching(chain, r"blocks\.\d")) as calls:
        chain(torch.ones(2))
    assert torch.equal(calls["blocks.1"].x, torch.full((2,), -1.0))
    assert torch.equal(calls["blocks.1"](torch.tensor([10.0])), torch.tensor([-29.0]))
    assert not any(block._forward_pre_hooks for block in chain.blocks)


def test_skipping_is_the_identity_and_is_undone():
    chain, x = Chain(), torch.ones(2)
    whole = chain(x)
    with skipped(chain.blocks[0], chain.blocks[2]):
        assert torch.equal(chain(x), -3 * x + 1)
        with skipped(chain.blocks[1]):
            assert torch.equal(chain(x), x)
        assert torch.equal(chain(x), -3 * x + 1)
    assert torch.equal(chain(x), whole)
    assert all("forward" not in vars(block) for block in chain.blocks)
    with pytest.raises(RuntimeError, match="stop"), skipped(chain.blocks[0]):
        raise RuntimeError("stop")
    assert torch.equal(chain(x), whole)


def test_a_forward_that_stood_on_the_instance_stands_there_again():
    block = Scale(2.0)
    own = block.forward = lambda x: x + 7
    with skipped(block, block):
        assert block(1.0) == 1.0
    assert block.forward is own


def test_angles_are_exact_where_an_arc_cosine_is_not():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([[5.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [1.0, 1.0], [1.0, 1e-10]], dtype=torch.float64)
    np.testing.assert_allclose(angles(x, y), [0, np.pi / 2, np.pi, 0, 1e-10], rtol=1e-12, atol=1e-15)
    assert torch.isnan(angles(torch.zeros(1, 2), torch.ones(1, 2))).all()
    with pytest.raises(ValueError, match="one shape"):
        angles(x, y[:2])


def test_mass_on_a_key():
    t = 6
    uniform = torch.tril(torch.ones(2, 3, t, t)) / torch.arange(1, t + 1)[:, None]
    torch.testing.assert_close(mass_on_key(uniform), torch.full((2, 3), uniform_mass_on_key(t), dtype=torch.float64))
    assert uniform_mass_on_key(t) == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6) / 5)
    sink = torch.zeros(1, t, t)
    sink[..., 0] = 1.0
    assert mass_on_key(sink).item() == 1.0
    own = torch.eye(t)[None]
    assert mass_on_key(own).item() == 0.0  # not 1/t: the query at position 0 has no choice
    assert mass_on_key(own, key=2).item() == 0.0
    with pytest.raises(ValueError, match="logits"):
        mass_on_key(torch.zeros(1, t, t))
    with pytest.raises(ValueError, match="no query comes after"):
        mass_on_key(own, key=t - 1)
    with pytest.raises(ValueError, match="no query comes after"):
        uniform_mass_on_key(1)


def test_outputs_are_seen_as_they_are():
    linear, seen = nn.Linear(2, 2), {}
    with observe_outputs({"only": linear}, lambda name, output: seen.update({name: output})):
        y = linear(torch.ones(2))
    assert seen["only"] is y
    assert not linear._forward_hooks
