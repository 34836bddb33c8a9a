"""Noise by input of linear layers, and scores by scheme, against what is computed by hand."""

import math

import pytest
import torch
from torch import nn

from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss
from residlab.precision.quantization import Quantizer
from residlab.precision.quantized_models import Scheme
from residlab.probes.activations import observe_inputs
from residlab.probes.quantization import (
    input_noise,
    next_token_score,
    noise,
    observe_distinct_inputs,
    scheme_scores,
    sqnr,
    token_energies,
)

QUANTIZERS = {"4": Quantizer(4), "FP8": Quantizer("e4m3fn")}


def make():
    config = ModelConfig(depth=2, width=24, heads=2, vocabulary=50, context=16, norm=norm_options("rmsnorm"))
    return Transformer(config, seed=0), torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))


def test_noise_of_a_tensor_by_hand():
    x = torch.tensor([[7.0, 3.4], [-1.2, 0.0]])
    found = noise(x, {"4": Quantizer(4), "same": Quantizer(4, "row")})
    energy, lost = 49 + 3.4**2 + 1.2**2, 0.4**2 + 0.2**2
    assert found.nmse["4"] == pytest.approx(lost / energy, rel=1e-6)
    assert found.sqnr["4"] == pytest.approx(10 * math.log10(energy / lost), rel=1e-6)
    assert found.crest_factor == pytest.approx(7 / math.sqrt(energy / 4), rel=1e-6)


def test_noise_at_the_edges():
    assert noise(torch.tensor([3.0, -3.0, 0.0]), QUANTIZERS).sqnr["4"] == math.inf
    assert math.isnan(noise(torch.zeros(3), QUANTIZERS).nmse["4"])
    assert math.isnan(noise(torch.zeros(3), QUANTIZERS).sqnr["4"])
    broken = noise(torch.tensor([1.0, math.nan]), QUANTIZERS)
    assert all(map(math.isnan, [broken.crest_factor, broken.excess_kurtosis, *broken.nmse.values()]))
    x = torch.randn(50, dtype=torch.float64)
    for scale in (1e-200, 1e200):
        assert noise(x * scale, QUANTIZERS).nmse["4"] == pytest.approx(noise(x, QUANTIZERS).nmse["4"])


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
def test_inputs_that_layers_share_count_once(grad):
    model, ids = make()
    with grad():
        found = input_noise(model, ids, QUANTIZERS)
    sites = [f"blocks.{i}.{name}" for i in (0, 1) for name in ("attention.W_Q", "attention.W_O")]
    assert [site for site in found if "attention" in site] == sites
    assert len(found) == 8
    seen = {}
    layers = {"up": model.layers[1].feedforward.W_up, "O": model.layers[0].attention.W_O}
    with torch.no_grad(), observe_inputs(layers, seen.__setitem__):
        model(ids)
    (up,) = (classes for site, classes in found.items() if site in ("blocks.1.feedforward.W_up",))
    assert up["all"] == noise(seen["up"], QUANTIZERS)
    assert up["rest"] == noise(seen["up"][:, 1:], QUANTIZERS)
    assert found["blocks.0.attention.W_O"]["first"] == noise(seen["O"][:, :1], QUANTIZERS)


def test_two_layers_with_equal_inputs_that_are_not_the_same_tensor():
    pair = nn.Module()
    pair.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    pair.forward = lambda x: [layer(x.clone()) for layer in pair.layers]
    assert len(input_noise(pair, torch.randn(2, 3, 4), QUANTIZERS)) == 2


def test_energies_of_tokens_add_up_to_the_noise_of_all():
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0, 3] = 50.0
    for quantizer in (Quantizer(4), Quantizer(6, "row"), Quantizer("e4m3fn")):
        energy, lost = token_energies(x, quantizer)
        assert energy.shape == lost.shape == (2, 5)
        assert sqnr(energy, lost) == pytest.approx(noise(x, {"it": quantizer}).sqnr["it"], rel=1e-9)
    # Under the scale of all, whose step is 50/7, the other tokens are rounded to 0.
    energy, lost = token_energies(x, Quantizer(4))
    assert sqnr(energy[:, 1:], lost[:, 1:]) == 0
    assert noise(x[:, 1:], QUANTIZERS).sqnr["4"] > 10


def test_sqnr_at_the_edges():
    assert sqnr(torch.ones(3), torch.zeros(3)) == math.inf
    assert math.isnan(sqnr(torch.zeros(3), torch.zeros(3)))
    assert sqnr(torch.tensor([90.0, 10.0]), torch.tensor([0.5, 0.5])) == pytest.approx(20)


def test_a_tensor_that_is_written_to_counts_anew():
    pair = nn.Module()
    pair.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])
    seen = []

    def forward(x):
        pair.layers[0](x), pair.layers[1](x)
        pair.layers[2](x.add_(1))

    with (
        torch.no_grad(),
        observe_distinct_inputs(dict(pair.layers.named_children()), lambda name, x: seen.append(name)),
    ):
        forward(torch.randn(3, 4))
    assert seen == ["0", "2"]


def test_scores_are_the_loss_and_the_share_that_was_right():
    model, ids = make()
    score = next_token_score(model, [ids[:2], ids[2:]])
    logits = model(ids).detach()
    assert score.tokens == 33
    assert score.loss == pytest.approx(float(next_token_loss(logits, ids)), rel=1e-6)
    assert score.accuracy == pytest.approx(float((logits[:, :-1].argmax(-1) == ids[:, 1:]).double().mean()))
    with pytest.raises(ValueError, match="two tokens or more"):
        next_token_score(model, [ids[:, :1]])


def test_a_perfect_model_and_one_with_logits_in_a_field():
    class Oracle(nn.Module):
        def forward(self, ids):
            logits = 30 * nn.functional.one_hot(ids.roll(-1, 1), 50).double()
            return type("Output", (), {"logits": logits})

    score = next_token_score(Oracle(), [torch.randint(0, 50, (2, 9))])
    assert score.accuracy == 1
    assert score.loss == pytest.approx(math.log(1 + 49 * math.exp(-30)), rel=1e-3)


def test_scores_by_scheme():
    model, ids = make()
    schemes = {"full": Scheme(), "W2A2": Scheme.named("W2A2"), "W16A16": Scheme.named("W16A16")}
    found = scheme_scores(model, [ids], schemes)
    plain = next_token_score(model, [ids])
    assert found["full"] == plain
    assert abs(found["W16A16"].loss - plain.loss) < abs(found["W2A2"].loss - plain.loss)
