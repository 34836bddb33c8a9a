"""Every number of an inspection, computed another way: by transformers' own outputs, scipy and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kurtosis

from residlab.errors import ResidlabError
from residlab.inspection import folder as folders
from residlab.inspection import measure
from residlab.inspection.inspect import inspect
from residlab.inspection.page import page
from residlab.inspection.text import Reading, packaged_text, read
from residlab.theory.quantization import measured_sqnr

from .conftest import byte_tokenizer

SHAPE = (3, 40)


def opened(folder) -> tuple[folders.Folder, Any, Reading]:
    found = folders.read_folder(folder)
    reading = read(packaged_text(), "text", byte_tokenizer(False), SHAPE, 260)
    return found, folders.load(found), reading


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request, save, tmp_path_factory):
    return opened(save(tmp_path_factory.mktemp(request.param), request.param))


@pytest.fixture(scope="module")
def seen(model) -> dict[str, Any]:
    found, module, reading = model
    return measure.observed(module, found, reading, lambda token: chr(token))


@pytest.fixture(scope="module")
def theirs(model) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Streams, attentions and loss as transformers hands them out."""
    _, module, reading = model
    ends: list[torch.Tensor] = []
    blocks = module.base_model.layers if hasattr(module.base_model, "layers") else module.base_model.h
    hook = blocks[-1].register_forward_hook(
        lambda _, inputs, output: ends.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        output = module(reading.ids, output_hidden_states=True, output_attentions=True, labels=reading.ids)
    hook.remove()
    # The last hidden state of transformers is behind the final norm.
    stream = [*output.hidden_states[:-1], *ends]
    return [x.double().numpy() for x in stream], [a.double().numpy() for a in output.attentions], float(output.loss)


def test_the_stream(seen, theirs):
    stream, found = theirs[0], seen["stream"]
    assert len(found.median) == len(stream) == 4
    for name, cut in {"all": slice(None), "first": slice(0, 1), "rest": slice(1, None)}.items():
        parts = [x[:, cut].ravel() for x in stream]
        rms = [np.sqrt(np.mean(x**2)) for x in parts]
        np.testing.assert_allclose(found.rms[name], rms, rtol=1e-5)
        np.testing.assert_allclose(found.largest[name], [np.abs(x).max() for x in parts], rtol=1e-5)
        np.testing.assert_allclose(found.excess_kurtosis[name], [kurtosis(x) for x in parts], rtol=1e-4, atol=1e-5)
        crest = [np.abs(x).max() / r for x, r in zip(parts, rms, strict=True)]
        np.testing.assert_allclose(found.crest_factor[name], crest, rtol=1e-5)
    # torch's median is the lower of two middle entries.
    low = [np.quantile(np.abs(x), 0.5, method="lower") for x in stream]
    np.testing.assert_allclose(found.median, low, rtol=1e-5)


def test_the_sinks(seen, theirs):
    attention, found = theirs[1], seen["sinks"]
    assert list(found.mass) == [1, 2, 3]
    for block, rows in zip(found.mass, attention, strict=True):
        np.testing.assert_allclose(found.mass[block], rows[:, :, 1:, 0].mean((0, 2)), rtol=1e-5)
    assert found.uniform == pytest.approx(np.mean([1 / t for t in range(2, SHAPE[1] + 1)]))
    assert found.heads == 12
    assert found.count == sum((rows[:, :, 1:, 0].mean((0, 2)) > 0.5).sum() for rows in attention)


def test_the_loss(model, theirs):
    _, module, reading = model
    assert measure.loss(module, reading) == pytest.approx(theirs[2], rel=1e-5)


def test_quantization(model, seen):
    _, module, reading = model
    read_by: dict[str, np.ndarray] = {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, x, name=name: read_by.update({name: x[0].double().numpy()}))
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) or type(layer).__name__ == "Conv1D"
    ]
    with torch.no_grad():
        module(reading.ids)
    for hook in hooks:
        hook.remove()
    assert len(seen["inputs"]) == 12  # four tensors in each of three blocks
    assert [each.block for each in seen["inputs"]] == [1] * 4 + [2] * 4 + [3] * 4
    for each in seen["inputs"]:
        x = read_by[each.name]
        flat, rest = x.ravel(), x[:, 1:].ravel()
        assert each.entries == flat.size
        assert each.crest_factor["all"] == pytest.approx(np.abs(flat).max() / np.sqrt(np.mean(flat**2)), rel=1e-6)
        assert each.excess_kurtosis["rest"] == pytest.approx(kurtosis(rest), rel=1e-6)
        for fmt, bits in {"int8": 8, "int4": 4}.items():
            assert each.sqnr["all"][fmt] == pytest.approx(float(measured_sqnr(flat, bits)), abs=1e-3)
            step = np.abs(flat).max() / (2 ** (bits - 1) - 1)
            error = np.rint(rest / step) * step - rest
            shared = 10 * np.log10(np.sum(rest**2) / np.sum(error**2))
            assert each.sqnr["rest"][fmt] == pytest.approx(shared, abs=1e-3)
            step = np.abs(x).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)
            error = np.rint(x / step) * step - x
            by_token = 10 * np.log10(np.sum(x**2) / np.sum(error**2))
            assert each.sqnr["all"][f"{fmt} per token"] == pytest.approx(by_token, abs=1e-3)
        assert each.sqnr["apart"]["int8"] == pytest.approx(float(measured_sqnr(rest, 8)), abs=1e-3)


def test_fp8_by_another_library(model, seen):
    dtypes = pytest.importorskip("ml_dtypes")
    _, module, reading = model
    first = seen["inputs"][0]
    x: list[np.ndarray] = []
    hook = module.get_submodule(first.name).register_forward_pre_hook(lambda _, i: x.append(i[0].numpy()))
    with torch.no_grad():
        module(reading.ids)
    hook.remove()
    scale = np.abs(x[0]).max() / 448
    rounded = (x[0] / scale).astype(dtypes.float8_e4m3fn).astype(np.float64) * scale
    expected = 10 * np.log10(np.sum(x[0].astype(np.float64) ** 2) / np.sum((rounded - x[0]) ** 2))
    assert first.sqnr["all"]["fp8 e4m3"] == pytest.approx(expected, abs=1e-2)


def test_no_massive_activation_where_there_is_none(seen):
    assert seen["massive"] == []


def test_a_massive_activation_is_found(save, tmp_path):
    def plant(model):
        model.model.embed_tokens.weight[:, 7] *= 0.01
        model.model.embed_tokens.weight[5, 7] = -3000.0

    found, module, _ = opened(save(tmp_path / "planted", edit=plant))
    ids = torch.randint(10, 250, SHAPE, generator=torch.Generator().manual_seed(0))
    ids[1, 0], ids[2, 17] = 5, 5
    seen = measure.observed(module, found, Reading("ids", ids, ""), lambda token: f"token {token}")
    (channel,) = seen["massive"]
    assert (channel.channel, channel.token, channel.begins) == (7, "token 5", 0)
    assert channel.value == pytest.approx(-3000, rel=0.01)
    assert channel.ratio == pytest.approx(abs(channel.value) / seen["stream"].median[channel.layer])
    assert channel.first == 0.5  # one of two tokens stands first in its window
    assert channel.entries == 2 * (channel.ends + 1)


def test_a_head_that_is_a_sink(save, tmp_path):
    def sink(model):
        # Only the first token is long, in a direction that LayerNorm keeps; all queries of block 2 point there.
        d = model.config.n_embd
        direction = torch.tensor([1.0, -1.0]).repeat(d // 2)
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[0] = 30 * direction
        projection = model.transformer.h[1].attn.c_attn
        projection.weight[:, d : 2 * d] = torch.eye(d)
        projection.bias[:d] = 10 * direction

    found, module, reading = opened(save(tmp_path / "sink", "gpt2", edit=sink))
    with torch.no_grad():
        rows = module(reading.ids, output_attentions=True).attentions
    expected = sum(int((each[:, :, 1:, 0].mean((0, 2)) > 0.5).sum()) for each in rows)
    assert expected >= rows[1].shape[1]
    seen = measure.observed(module, found, reading, chr)
    assert seen["sinks"].count == expected


def test_activations_that_overflow(save, tmp_path):
    def explode(model):
        model.model.layers[1].mlp.down_proj.weight.fill_(3e38)

    with pytest.raises(ResidlabError, match="not finite"):
        inspect(save(tmp_path / "wild", edit=explode), tokens=32)


FAMILIES = ("mistral", "qwen3", "gemma2", "phi", "gpt_neox", "opt", "bloom", "mixtral", "mamba")


@pytest.mark.parametrize("kind", FAMILIES)
def test_any_family(save, tmp_path, kind):
    seen = inspect(save(tmp_path / kind, kind), tokens=96)
    assert seen.depth == 3
    assert np.isfinite(seen.nats)
    assert seen.stream.rms["rest"][-1] > 0
    assert (seen.sinks is None) == (kind == "mamba")
    assert seen.sinks is None or seen.sinks.heads == 12
    assert len(seen.inputs) == {"mamba": 9, "mixtral": 6}.get(kind, 12)  # stacked experts are no linear layers
    assert seen.growth.results["bfloat16 by torch"]["finite"]
    emulated = "bf16 products" in seen.growth.results
    assert emulated == (kind == "mistral") == ("bf16 products" not in seen.growth.missing)
    text = page(seen)
    assert ("is none of the emulated architectures" in text) != emulated
    assert ("No layer of this architecture returned attention weights" in text) == (kind == "mamba")


def test_json_values(save, tmp_path):
    import json

    seen = inspect(save(tmp_path / "model"), tokens=96)
    values = json.loads(json.dumps(seen.to_dict(), allow_nan=False))
    assert values["stream"]["rms"]["rest"] == seen.stream.rms["rest"]
    assert values["sinks"]["mass"]["2"] == seen.sinks.mass[2]
    assert values["inputs"][0]["sqnr"]["all"]["int8"] == seen.inputs[0].sqnr["all"]["int8"]
    assert values["model"]["parameters"] == seen.model["parameters"]
