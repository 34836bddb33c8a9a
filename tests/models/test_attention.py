"""Attention and rotary positions against loops over heads and pairs, in numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from residlab.models.arithmetic import TORCH
from residlab.models.attention import Attention, KVCache, rotary_table
from residlab.models.config import ModelConfig
from residlab.theory.block_variance import head_gram


def attention(heads=4, kv_heads=2, head_dim=6, width=20, layer=1, **values):
    config = ModelConfig(
        depth=2, width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, vocabulary=9, **values
    )
    made = Attention(config, layer).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def by_loops(module, x, scale):
    """Causal attention of one sequence, (T, width), head by head and query by query."""
    weights = [getattr(module, name).weight.detach().numpy() for name in ("W_Q", "W_K", "W_V", "W_O")]
    W_Q, W_K, W_V, W_O = weights
    T, size = len(x), module.head_dim
    out = np.zeros((T, module.heads * size))
    for head in range(module.heads):
        shared = head // (module.heads // module.kv_heads)
        q = x @ W_Q[head * size : (head + 1) * size].T
        k = x @ W_K[shared * size : (shared + 1) * size].T
        v = x @ W_V[shared * size : (shared + 1) * size].T
        for t in range(T):
            e = np.exp(scale * (k[: t + 1] @ q[t]) - np.max(scale * (k[: t + 1] @ q[t])))
            out[t, head * size : (head + 1) * size] = (e / e.sum()) @ v[: t + 1]
    return out @ W_O.T


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (1, 1)])
def test_heads_share_keys_and_values_in_blocks(heads, kv_heads):
    module = attention(heads, kv_heads, layer=3, temperature_base=0.8, logit_scale=0.7)
    x = torch.randn(2, 5, 20).double()
    scale = 0.7 * 0.8**3 / 6**0.5
    expected = np.stack([by_loops(module, part, scale) for part in x.numpy()])
    fast, none = module(x)
    assert none is None
    slow, rows = module(x, return_rows=True)
    np.testing.assert_allclose(fast.detach().numpy(), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(slow.detach().numpy(), expected, rtol=1e-9, atol=1e-11)
    assert rows.shape == (2, heads, 5, 5)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, heads, 5).double())
    assert (rows.triu(1) == 0).all()


@given(base=st.floats(10, 1e6), shift=st.integers(0, 500), first=st.integers(0, 500), second=st.integers(0, 500))
def test_rotary_scores_depend_on_the_distance_only(base, shift, first, second):
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8).double()
    table = rotary_table(torch.tensor([first, second, first + shift, second + shift]), 8, base, torch.float64)

    def score(i, j):
        return (
            TORCH.rotate(q, (table[0][i : i + 1], table[1][i : i + 1]))
            * TORCH.rotate(k, (table[0][j : j + 1], table[1][j : j + 1]))
        ).sum()

    torch.testing.assert_close(score(0, 1), score(2, 3), rtol=1e-9, atol=1e-9)


def test_rotation_is_by_the_angle_of_each_pair():
    x = torch.randn(8, dtype=torch.float64)
    table = rotary_table(torch.tensor([5]), 8, 100.0, torch.float64)
    rotated = TORCH.rotate(x.view(1, 1, 1, 8), table).view(8)
    for i in range(4):
        turned = complex(x[i], x[i + 4]) * np.exp(1j * 5 * 100.0 ** (-2 * i / 8))
        assert complex(rotated[i], rotated[i + 4]) == pytest.approx(turned, rel=1e-12)


def test_angles_stay_precise_in_bfloat16():
    table = rotary_table(torch.tensor([1000]), 8, 1e4, torch.bfloat16)
    assert table[0].dtype == torch.float32
    assert TORCH.rotate(torch.ones(1, 1, 1, 8, dtype=torch.bfloat16), table).dtype == torch.bfloat16


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 2), (3, 1)])
def test_gram_and_energy_are_those_of_the_theory(heads, kv_heads):
    module, gamma = attention(heads, kv_heads), torch.randn(20).double()
    V, O = module.W_V.weight.detach().numpy().T, module.W_O.weight.detach().numpy().T  # noqa: E741
    expected = head_gram(V, O, heads, kv_heads=kv_heads, gamma=gamma.numpy())
    np.testing.assert_allclose(module.value_output_gram(gamma).numpy(), expected, rtol=1e-10, atol=1e-9)
    expanded = np.repeat(V.reshape(20, kv_heads, 6), heads // kv_heads, axis=1).reshape(20, -1)
    direct = np.linalg.norm(np.diag(gamma.numpy()) @ expanded @ O) ** 2
    assert float(module.value_output_energy(gamma)) == pytest.approx(direct, rel=1e-11)
    assert expected.sum() == pytest.approx(direct, rel=1e-10)


def test_the_energy_of_half_precision_weights_is_summed_in_float32():
    module = attention().to(torch.float16)
    for parameter in (module.W_V.weight, module.W_O.weight):
        parameter.data.mul_(100)  # squares that float16 cannot hold
    energy = module.value_output_energy(torch.ones(20, dtype=torch.float16))
    assert energy.dtype == torch.float32
    exact = module.double().value_output_energy(torch.ones(20).double())
    torch.testing.assert_close(energy.double(), exact, rtol=1e-5, atol=0)


def test_a_cache_holds_what_came_before():
    config = ModelConfig(depth=2, width=16, heads=4, kv_heads=2, vocabulary=9)
    cache = KVCache(config, batch=3, capacity=7)
    assert cache.capacity == 7
    new = torch.randn(2, 3, 2, 4, 4)
    keys, values = cache.extend(1, *new)
    assert torch.equal(keys, new[0])
    assert torch.equal(values, new[1])
    cache.length = 4
    more = torch.randn(2, 3, 2, 1, 4)
    keys, values = cache.extend(1, *more)
    assert torch.equal(keys, torch.cat((new[0], more[0]), dim=2))
    assert torch.equal(values, torch.cat((new[1], more[1]), dim=2))
