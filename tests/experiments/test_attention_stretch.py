"""How tightness is measured: what is counted, and that a bound made too small is noticed."""

import numpy as np
import pytest
import torch

from residlab.experiments import attention_stretch as st
from residlab.probes.lipschitz import RotaryAttention
from residlab.theory.lipschitz import sharp_bound


@pytest.fixture(scope="module")
def layer():
    g = torch.Generator().manual_seed(1)
    T, d, k = 8, 12, 4
    angles = torch.outer(torch.arange(T), torch.tensor([1.0, 0.1])).repeat(1, 2).double()
    x, q, key, v, o = (
        torch.randn(*shape, generator=g, dtype=torch.float64) / 2
        for shape in ((T, d), (2 * k, d), (k, d), (k, d), (d, 2 * k))
    )
    return RotaryAttention(x, q, key, v, o, angles.cos(), angles.sin(), 2, 1, k**-0.5)


def test_random_heads_are_below_all_bounds_and_tighter_when_logits_are_small():
    found = [st.random_stretch(L, 6, seed=1) for L in (0.01, 1.0, 30.0)]
    assert [one.violations for one in found] == [0, 0, 0]
    assert found[0].world / found[0].lower < 1.02
    assert found[0].top < found[2].top
    assert all(one.matrices <= one.local * (1 + 1e-9) for one in found)


def test_a_violation_is_counted_for_each_bound_and_rounding_is_none():
    one = st.random_stretch(1.0, 6)
    assert one._replace(world=one.lower / 1.01).violations == 1
    assert one._replace(world=one.lower * (1 - 1e-12)).violations == 0
    assert one._replace(world=0.0, local=0.0, matrices=0.0, upper=0.0, frobenius_local=0.0).violations == 5


def test_an_attack_ends_below_the_bound():
    assert sharp_bound(0.5) * 0.8 < st.attack(0.5, 4, steps=60, seeds=(0, 1))[-1] <= sharp_bound(0.5)


def test_token_zero_is_left_out_and_its_mass_is_the_least(layer):
    found = st.token_zero([layer], [0])
    assert [(one.layer, one.head) for one in found] == [(0, 0), (0, 1)]
    far = RotaryAttention(**{**vars(layer), "x": torch.cat([50 * layer.x[:1], layer.x[1:]])})
    for near, other in zip(found, st.token_zero([far], [0]), strict=True):
        assert 0 <= near.mass <= 1
        assert other.bound_without == pytest.approx(near.bound_without, rel=1e-12)  # without it nothing has changed
        assert other.bound != pytest.approx(near.bound, rel=1e-3)
    x = layer.x.numpy()
    whole, without = st.norms_without_token_zero(layer.head(0), x)
    assert whole <= found[0].bound
    assert without <= found[0].bound_without
    assert not np.isclose(whole, without)


def test_a_layer_is_below_the_sums_of_its_heads(layer):
    found = st.layer_stretch(layer)
    assert 0.2 * found.heads < found.token <= found.heads <= found.local
