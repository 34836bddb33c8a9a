"""Power iteration against dense Jacobians and theory; rotary attention against the model that it was read from."""

import numpy as np
import pytest
import torch

from residlab.probes import lipschitz as pl
from residlab.theory import attention_jacobian as aj
from residlab.theory.lipschitz import sharp_bound
from residlab.theory.token_norms import token_norms


def generator():
    return torch.Generator().manual_seed(0)


def attention(T=6, d=8, heads=2, kv_heads=1, k=4):
    g = generator()

    def random(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    angles = torch.outer(torch.arange(T, dtype=torch.float64), torch.tensor([1.0, 0.1], dtype=torch.float64))
    angles = torch.cat([angles, angles], dim=1)
    return pl.RotaryAttention(
        x=random(T, d),
        W_Q=random(heads * k, d),
        W_K=random(kv_heads * k, d),
        W_V=random(kv_heads * k, d),
        W_O=random(d, heads * k),
        cos=angles.cos(),
        sin=angles.sin(),
        heads=heads,
        kv_heads=kv_heads,
        scale=0.5,
    )


def test_the_spectral_norm_is_that_of_the_dense_jacobian():
    layer = attention()
    J = torch.autograd.functional.jacobian(layer, layer.x).reshape(48, 48)
    found = pl.frobenius_norm(layer, layer.x, iterations=500, generator=generator())
    assert found == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-6)


def test_one_head_has_the_norm_that_theory_certifies():
    layer = attention(heads=1)
    head, mask = layer.head(0), aj.causal_mask(6)
    x = layer.x.numpy()
    assert np.linalg.norm(layer(layer.x), axis=1) == pytest.approx(
        np.linalg.norm(aj.output(head, x, mask), axis=1), rel=1e-10
    )
    lower, upper = token_norms(aj.jacobian_rows(head, x, mask), starts=4).norm
    found = pl.token_norm(layer, layer.x, iterations=200, starts=4, generator=generator())
    assert lower == pytest.approx(upper, rel=1e-6)
    assert found <= upper * (1 + 1e-9)
    assert found == pytest.approx(upper, rel=1e-5)
    assert pl.token_norm(layer, layer.x, rows=[0], generator=generator()) < found


def test_several_heads_have_no_more_than_the_sum_of_their_norms():
    layer = attention(heads=4, kv_heads=2)
    x, mask = layer.x.numpy(), aj.causal_mask(6)
    parts = [token_norms(aj.jacobian_rows(layer.head(a), x, mask)).upper for a in range(4)]
    whole = pl.token_norm(layer, layer.x, generator=generator())
    assert whole <= np.sum(parts, axis=0).max() * (1 + 1e-9)
    assert whole > 0.3 * np.sum(parts, axis=0).max()  # not vacuous


def test_ascent_comes_close_to_the_sharp_bound_and_stays_below():
    form = torch.zeros(3, 3, dtype=torch.float64)
    form[0, 1] = form[1, 0] = 2.0
    start = torch.randn(8, 3, generator=generator(), dtype=torch.float64)
    run = pl.steepest_tokens(lambda x: (x @ form @ x.T).softmax(-1) @ x, start, 1.0, steps=150)
    bound = float(sharp_bound(2.0))
    assert run == sorted(run)
    assert 0.93 * bound < run[-1] <= bound * (1 + 1e-12)
    assert run[0] < 0.8 * bound


def test_refuses_what_makes_no_sense():
    layer = attention()
    with pytest.raises(ValueError, match="one sequence"):
        pl.frobenius_norm(layer, layer.x[None])
    with pytest.raises(ValueError, match="number of tokens"):
        pl.token_norm(lambda x: x[:2], layer.x)
    with pytest.raises(ValueError, match="radius"):
        pl.steepest_tokens(layer, layer.x, 0.0)
    with pytest.raises(ValueError, match="2 heads"):
        layer.head(2)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def test_attention_is_read_as_the_model_runs_it(llama):
    seen = []
    hook = llama.model.layers[1].self_attn.register_forward_hook(lambda _m, _i, output: seen.append(output[0][0]))
    layers = pl.rotary_attentions(llama.model, torch.arange(7)[None])
    hook.remove()
    assert len(layers) == 2
    with torch.no_grad():
        torch.testing.assert_close(layers[1](layers[1].x), seen[0].double(), rtol=1e-5, atol=1e-7)


def test_more_than_one_text_and_biases_are_refused(llama):
    with pytest.raises(ValueError, match="one text"):
        pl.rotary_attentions(llama.model, torch.zeros(2, 3, dtype=torch.long))
    with_bias = type(llama)(type(llama.config)(**{**llama.config.to_dict(), "attention_bias": True}))
    with pytest.raises(ValueError, match="biases"):
        pl.rotary_attentions(with_bias.model, torch.zeros(1, 3, dtype=torch.long))
