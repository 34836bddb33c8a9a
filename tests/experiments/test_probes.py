"""Probes of a run: what they say of models whose state is known, and that they change no bit of training."""

import json
import time
from dataclasses import replace

import pytest
import torch

from residlab.experiments.probes import PROBES, held_out, probes_named
from residlab.experiments.record import Records
from residlab.experiments.sweep import read_sweep, run_sweep
from residlab.experiments.training_run import run_folder, texts_of, trained
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss
from residlab.probes.activations import observe_inputs
from residlab.probes.blocks import record_calls

BASE = {
    "model": {"depth": 2, "width": 16, "heads": 2, "vocabulary": 257, "context": 16, "norm": "bhyt"},
    "steps": 6,
    "batch": 4,
    "evaluation_tokens": 64,
}


def make(norm="bhyt", **options):
    config = ModelConfig(depth=3, width=32, heads=4, vocabulary=50, context=24, norm=norm_options(norm, **options))
    return Transformer(config, seed=0), torch.randint(0, 50, (5, 20), generator=torch.Generator().manual_seed(0))


def test_the_stream_begins_as_the_embedding():
    model, ids = make()
    with torch.no_grad():
        found = PROBES["stream"](model, ids)
    assert len(found) == 7
    first, x = found["blocks.0.attention_norm"], model.embedding.weight.detach()[ids[:4]].double()
    assert first["all"]["rms"] == pytest.approx(float(x.square().mean().sqrt()))
    assert first["first"]["largest"] == pytest.approx(float(x[:, 0].abs().max()))
    assert first["rest"]["crest_factor"] == pytest.approx(float(x[:, 1:].abs().max() / x[:, 1:].square().mean().sqrt()))


def test_the_profile_is_part_of_the_stream():
    model, ids = make()
    with torch.no_grad():
        found, whole = PROBES["profile"](model, ids), PROBES["stream"](model, ids)
    assert found == {
        site: {name: classes["all"][name] for name in ("mean_abs", "largest")} for site, classes in whole.items()
    }


def test_bounds_are_those_of_the_configuration():
    model, ids = make(lam_attention=3.0, lam_feedforward=1.5, kappa=5.0)
    found = PROBES["bounds"](model, ids)
    assert len(found) == 6
    assert found["blocks.0.attention_norm"] == {
        "lam": 3.0,
        "ratio": 0.6,
        "largest_gain": 1.0,
        "rms_gain": 1.0,
    }
    assert found["blocks.2.feedforward_norm"]["ratio"] == pytest.approx(0.3)
    assert PROBES["bounds"](*make("rmsnorm")) == {}


def test_attention_and_weights_of_every_layer():
    model, ids = make()
    with torch.no_grad():
        found = PROBES["attention"](model, ids)
        shapes = PROBES["weights"](model, ids)
    assert list(found) == ["1", "2", "3"]
    # Logits near zero: attention is uniform over what a query sees.
    uniform = sum(torch.log(torch.arange(1.0, 21))) / 20
    assert found["1"]["entropy"] == pytest.approx(float(uniform), rel=1e-3)
    assert len(shapes) == 3 * 7


def test_saturation_counts_the_values_of_each_tanh():
    model, ids = make("bhyt*", lam_attention=40.0)  # |x| > 0.37 RMS makes an argument beyond 1.472
    with torch.no_grad():
        found = PROBES["saturation"](model, ids)
        x = model.embedding.weight[ids[:4]].double()
    argument = (4 * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()).abs()
    assert found["blocks.0.attention_norm"]["beyond_0.9"] == pytest.approx(float((argument > 1.4722).double().mean()))
    assert found["blocks.0.attention_norm"]["beyond_0.99"] == pytest.approx(float((argument > 2.6467).double().mean()))
    assert found["blocks.2.feedforward_norm"]["beyond_0.9"] == 0
    assert len(found) == 6
    model, ids = make("dyt", bias=True)
    with torch.no_grad():
        model.final_norm.beta.fill_(5.0)  # which is no saturation
        model.final_norm.gamma[0] = 0.0  # nor has a value
        assert PROBES["saturation"](model, ids)["final_norm"] == {"beyond_0.9": 0.0, "beyond_0.99": 0.0}
    assert PROBES["saturation"](*make("rmsnorm")) == {}


@pytest.mark.parametrize("centred", [False, True])
def test_the_approximation_beside_what_is_measured(centred):
    model, ids = make("bhyt", centred=centred, averaged="position", kappa=5.0)
    with torch.no_grad():
        for block in model.layers:
            block.attention.W_O.weight.mul_(20)
        found = PROBES["approximation"](model, ids)
        seen = {}
        sites = {str(n): block.feedforward_norm for n, block in enumerate(model.layers, start=1)}
        with observe_inputs(sites, seen.__setitem__):
            model(ids[:4])
        z, x = seen["1"].double(), model.embedding.weight[ids[:4]].double()
    size = (lambda y: y.var(-1, correction=0)) if centred else (lambda y: y.square().mean(-1))
    here = found["1"]["4-7"]
    assert list(found["1"]) == ["1-1", "2-3", "4-7", "8-15", "16-20"]
    assert here["measured"] == pytest.approx(float(size(z)[:, 3:7].mean()))
    energy = float(model.layers[0].measured_constant())
    added = energy * (2.0 / 5.0) ** 2 / 32 / torch.arange(4, 8).double()
    approximated = size(x)[:, 3:7] + added
    assert here["approximated"] == pytest.approx(float(approximated.mean()), rel=1e-5)
    assert here["log_ratio"] == pytest.approx(float((approximated / size(z)[:, 3:7]).log().mean()), abs=1e-5)
    assert PROBES["approximation"](*make("bhyt*")) == {}


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "peri-ln", "lns", "dyt", "bhyt*", "bhyt"])
def test_blocks_that_do_nothing(norm):
    model, ids = make(norm)
    with torch.no_grad():
        block = model.layers[1]
        block.attention.W_O.weight.zero_()
        block.feedforward.W_down.weight.zero_()
        model.layers[0].attention.W_O.weight.mul_(100)
        deviations, skips = PROBES["jacobian"](model, ids), PROBES["skipping"](model, ids)
    assert deviations["2"] == {"all": 0.0, "first": 0.0, "rest": 0.0}
    assert deviations["1"]["all"] > 0
    assert skips["rise"]["2"] == 0.0
    assert skips["rise"]["1"] != 0.0
    assert skips["loss"] == pytest.approx(float(next_token_loss(model(ids[:4]), ids[:4]).detach()))


def test_jacobians_of_blocks_are_those_that_autograd_forms():
    model, ids = make("bhyt*")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        found = PROBES["jacobian"](model, ids[:1])
    block, x = model.layers[0], model.embedding.weight.detach()[ids[:1]]
    with torch.no_grad(), record_calls({"1": block}) as calls:
        model.forward_with_rows(ids[:1])
    whole = torch.autograd.functional.jacobian(calls["1"], x).reshape(x.numel(), x.numel()).double()
    exact = float((whole - torch.eye(x.numel())).norm() / x.numel() ** 0.5)
    assert found["1"]["all"] == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize("residual", [True, False])
def test_gradients_are_those_of_a_backward(residual):
    config = ModelConfig(depth=3, width=32, heads=4, vocabulary=50, context=24, residual=residual, init_std=0.2)
    model, ids = Transformer(config, seed=0), torch.randint(0, 50, (5, 20))
    with torch.no_grad():
        found = PROBES["gradients"](model, ids)
    assert all(parameter.grad is None for parameter in model.parameters())
    next_token_loss(model(ids[:4]), ids[:4]).backward()
    for layer, block in enumerate(model.layers, start=1):
        for name in ("attention", "feedforward"):
            norm = sum(p.grad.double().square().sum() for p in getattr(block, name).parameters()) ** 0.5
            assert found[str(layer)][name] == pytest.approx(float(norm), rel=1e-6)
    # In front of the first block the stream is the embedding: its gradient, summed by token, is the embedding's from
    # there (the rest comes from the output layer, which is tied).
    untied = Transformer(replace(config, tied_embeddings=False), seed=0)
    next_token_loss(untied(ids[:1, :2]), ids[:1, :2]).backward()
    with torch.no_grad():
        first = PROBES["gradients"](untied, ids[:1, :2])["1"]["stream"]
    assert first == pytest.approx(float(untied.embedding.weight.grad.norm()), rel=1e-5)


def test_quantization_by_scheme_input_and_weight():
    model, ids = make("rmsnorm")
    with torch.no_grad():
        found = PROBES["quantization"](model, ids)
    assert found["tokens"] == found["scheme_tokens"] == 5 * 19
    assert found["loss"] == pytest.approx(float(next_token_loss(model(ids), ids).detach()), rel=1e-6)
    assert found["schemes"]["full"] == {"loss": found["loss"], "accuracy": found["accuracy"]}
    assert {"W8A8", "W8A6", "W8A4", "W6A6", "W4A8", "W4A4", "FP8", "W8A4 hadamard"} < set(found["schemes"])
    assert len(found["inputs"]) == 3 * 4
    assert len(found["weights"]) == 3 * 7
    site = found["inputs"]["blocks.1.feedforward.W_down"]
    assert site["all"]["crest_factor"] > 1
    decibels = site["rest"]["sqnr"]
    assert decibels["3"] < decibels["4"] < decibels["6"] < decibels["8"] < decibels["10"]
    json.dumps(found, allow_nan=False)


def test_quantization_of_a_model_that_diverged_has_the_same_shape():
    def shape(value):
        return {name: shape(each) for name, each in value.items()} if isinstance(value, dict) else None

    model, ids = make("rmsnorm")
    with torch.no_grad():
        whole = PROBES["quantization"](model, ids)
        model.embedding.weight.fill_(torch.nan)
        broken = PROBES["quantization"](model, ids)
    assert shape(broken) == shape(whole)
    assert broken["loss"] is None
    assert broken["schemes"]["W8A8"] == {"loss": None, "accuracy": None}
    assert broken["inputs"]["blocks.0.attention.W_Q"]["all"]["sqnr"]["4"] is None
    json.dumps(broken, allow_nan=False)


def test_in_a_run_quantization_reads_held_out_text(tmp_path, write):
    sweep = read_sweep(write({"base": {**BASE, "probes": ["quantization", "profile"], "probe_at": [6]}}))
    (record,) = run_sweep(sweep, Records(tmp_path / "r.jsonl"), cache=tmp_path / "cache", say=lambda line: None)
    (config,) = sweep.configs
    looked = record.metrics["looks"]["quantization"]
    ids = held_out(texts_of(config, cache=tmp_path / "cache").validation, 16)
    assert ids.shape[1] == 16
    with torch.no_grad():
        again = PROBES["quantization"](trained(config, cache=tmp_path / "cache"), ids)
    assert looked["tokens"] == [again["tokens"]]
    assert looked["schemes"]["W4A8"]["loss"] == [pytest.approx(again["schemes"]["W4A8"]["loss"], rel=1e-5)]


def test_a_run_writes_what_its_probes_say_and_is_the_same_run(tmp_path, write):
    plain = read_sweep(write({"base": dict(BASE)}))
    probed = read_sweep(write({"base": {**BASE, "probes": list(PROBES), "probe_every": 3}}, "probed.yml"))
    records = Records(tmp_path / "runs.jsonl")
    for sweep in (plain, probed):
        run_sweep(sweep, records, cache=tmp_path / "cache", say=lambda line: None)
    lines = (run_folder(probed.configs[0], cache=tmp_path / "cache") / "metrics.jsonl").read_text().splitlines()
    looks = [line for line in map(json.loads, lines) if "probes" in line]
    assert [look["step"] for look in looks] == [3, 6]
    assert all(set(look["probes"]) == set(PROBES) for look in looks)
    one, two = (trained(sweep.configs[0], cache=tmp_path / "cache") for sweep in (plain, probed))
    for name, tensor in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], tensor)


def test_a_look_every_ten_steps_is_cheap():
    """10 % is the budget on an idle machine; a test allows three times that."""
    config = ModelConfig(depth=4, width=128, heads=4, vocabulary=257, context=128, norm=norm_options("bhyt"))
    model, ids = Transformer(config, seed=0), torch.randint(0, 257, (16, 128))

    def seconds(run, times=3):
        samples = []
        for _ in range(times):
            begin = time.perf_counter()
            run()
            samples.append(time.perf_counter() - begin)
        return min(samples)

    def step():
        next_token_loss(model(ids), ids).backward()
        model.zero_grad()

    def look():
        with torch.no_grad():
            for probe in probes_named(["stream", "attention", "bounds"]).values():
                probe(model, ids)

    step()
    assert seconds(look) < 0.3 * 10 * seconds(step)
