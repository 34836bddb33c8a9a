"""Observing inputs changes nothing, and sees what there is."""

import pytest
import torch
from torch import nn

from residlab.probes.activations import modules_matching, observe_inputs


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4))


def test_sees_each_input_and_changes_neither_outputs_nor_gradients(model):
    x = torch.randn(3, 4)
    model(x).sum().backward()
    plain_output, plain_grad = model(x).detach(), model[0].weight.grad.clone()
    model.zero_grad()
    seen = {}
    with observe_inputs(modules_matching(model, r"[14]"), lambda name, value: seen.update({name: value.clone()})):
        output = model(x)
        output.sum().backward()
    assert torch.equal(output.detach(), plain_output)
    assert torch.equal(model[0].weight.grad, plain_grad)
    assert torch.equal(seen["1"], model[0](x).detach())
    assert set(seen) == {"1", "4"}
    assert not seen["1"].requires_grad


def test_hooks_are_removed_also_by_an_exception(model):
    def fail(name, value):
        raise RuntimeError(name)

    with pytest.raises(RuntimeError, match="1"), observe_inputs({"1": model[1]}, fail):
        model(torch.randn(3, 4))
    model(torch.randn(3, 4))
    assert not model[1]._forward_pre_hooks


def test_a_pattern_that_matches_nothing_shows_names(model):
    with pytest.raises(ValueError, match=r"no submodule matches 'norm'; there are 5, for instance \['0', '1'"):
        modules_matching(model, "norm")
