"""Transformers' models as ours and back: the oracle is transformers itself."""

import importlib.util
import json
import socket

import pytest
import safetensors.torch
import torch
import transformers

from residlab.data.fetch import status
from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.files import save_model
from residlab.models.hf import from_hugging_face, load_swapped, smollm2, swap_norms, to_hugging_face
from residlab.models.transformer import Transformer


@pytest.fixture(scope="module")
def gpt2():
    def build(**settings):
        torch.manual_seed(0)
        small = {"vocab_size": 50, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**{**small, "bos_token_id": None, "eos_token_id": None, **settings})
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))  # biases too, which start at zero
        return model.eval()

    return build


@torch.no_grad()
def relative_difference(ours, theirs, tokens):
    expected = theirs(tokens).logits
    return ((ours(tokens) - expected).abs().max() / expected.abs().max()).item()


LLAMAS = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "one key-value head for each": {"num_key_value_heads": 4},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "another head_dim, base and eps": {
        "head_dim": 16,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
}


@pytest.mark.parametrize("settings", LLAMAS.values(), ids=LLAMAS)
def test_a_llama_has_the_same_logits(make, ids, tmp_path, settings):
    theirs = make("Llama", **settings)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    assert relative_difference(from_hugging_face(theirs), theirs, ids) < 1e-5
    theirs.save_pretrained(tmp_path / "whole")
    assert relative_difference(from_hugging_face(tmp_path / "whole"), theirs, ids) < 1e-5
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert relative_difference(from_hugging_face(str(tmp_path / "shards")), theirs, ids) < 1e-5


@pytest.mark.parametrize("window", [None, 64, 100])
def test_a_mistral_whose_window_is_no_restriction(make, ids, window):
    theirs = make("Mistral", sliding_window=window)
    assert relative_difference(from_hugging_face(theirs), theirs, ids) < 1e-5


@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_gpt2_has_the_same_logits(gpt2, ids, tmp_path, activation, tied):
    theirs = gpt2(activation_function=activation, tie_word_embeddings=tied)
    tokens = ids % 50
    assert relative_difference(from_hugging_face(theirs), theirs, tokens) < 1e-5
    theirs.save_pretrained(tmp_path)
    ours = from_hugging_face(tmp_path)
    assert relative_difference(ours, theirs, tokens) < 1e-5
    assert ours.config.feedforward == ("gelu-tanh" if activation == "gelu_new" else "gelu")


def test_the_gpt2_of_the_hub_has_bare_names_and_masks_among_its_weights(gpt2, ids, tmp_path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = {k.removeprefix("transformer."): v for k, v in safetensors.torch.load_file(file).items()}
    weights |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32) for i in range(2)}
    safetensors.torch.save_file(weights, file)
    assert relative_difference(from_hugging_face(tmp_path), theirs, ids % 50) < 1e-5


@pytest.mark.smollm2
def test_smollm2_has_the_same_logits():
    if status("smollm2").state != "present":
        pytest.skip("not run: residlab fetch smollm2")
    theirs, tokenizer = smollm2()
    tokens = tokenizer("A lighthouse is a tower designed to emit light.", return_tensors="pt").input_ids
    assert relative_difference(from_hugging_face(theirs), theirs, tokens) < 1e-5


def test_dtype_device_mode_and_independence(make, ids, tmp_path):
    theirs = make("Llama")
    theirs.save_pretrained(tmp_path)
    ours = from_hugging_face(tmp_path, dtype=torch.float64)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    assert not ours.training
    theirs.to(torch.bfloat16).save_pretrained(tmp_path)
    assert from_hugging_face(tmp_path).embedding.weight.dtype == torch.bfloat16
    copy = from_hugging_face(theirs)
    before = theirs.model.layers[0].self_attn.q_proj.weight.clone()
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    assert torch.equal(theirs.model.layers[0].self_attn.q_proj.weight, before)
    with pytest.raises(ResidlabError, match=r"dtype must be a floating-point type; got torch\.int8"):
        from_hugging_face(tmp_path, dtype=torch.int8)
    with pytest.raises(ResidlabError, match="device must be one of"):
        from_hugging_face(tmp_path, device="nowhere")


# --- Out

SHAPE = {"depth": 2, "width": 24, "heads": 4, "vocabulary": 50, "context": 32}
GPT2 = {"norm": norm_options("layernorm"), "position": "learned", "bias": True}
EXPRESSIBLE = {
    "llama": {"kv_heads": 2, "norm": norm_options("rmsnorm", eps=1e-3), "rope_base": 777.0},
    "untied llama with biases": {"tied_embeddings": False, "bias": True},
    "gpt2": {**GPT2, "feedforward": "gelu-tanh"},
    "untied gpt2, erf": {**GPT2, "feedforward": "gelu", "feedforward_width": 40, "tied_embeddings": False},
}


@pytest.mark.parametrize("settings", EXPRESSIBLE.values(), ids=EXPRESSIBLE)
def test_out_and_in_again(ids, tmp_path, settings):
    ours = Transformer(ModelConfig(**SHAPE, **settings), seed=3)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    to_hugging_face(ours, tmp_path / "out")
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert relative_difference(ours, theirs.eval(), ids % 50) < 1e-5
    again = from_hugging_face(tmp_path / "out")
    assert again.config == ours.config
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in ours.state_dict().items())
    to_hugging_face(ours.to(torch.bfloat16), tmp_path / "out")  # replaces a model
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert saved.dtype == torch.bfloat16
    (tmp_path / "other").mkdir()
    with pytest.raises(ResidlabError, match="is not a saved model"):
        to_hugging_face(ours, tmp_path / "other")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"norm": norm_options("bhyt")},
            r"its Llama has no norm = bhyt; its GPT-2 no norm = bhyt, feedforward = swiglu",
        ),
        ({"residual": False}, r"its Llama has no residual = False"),
        ({"temperature_base": 0.9}, r"its Llama has no temperature_base = 0.9"),
        ({**GPT2, "feedforward": "gelu", "logit_scale": 2.0}, r"its GPT-2 no logit_scale = 2.0$"),
        ({**GPT2, "feedforward": "gelu", "kv_heads": 2}, r"its GPT-2 no kv_heads = 2$"),
        ({**GPT2, "feedforward": "gelu", "norm": norm_options("layernorm", bias=False)}, r"a layernorm without bias$"),
        ({"heads": 5, "head_dim": 4}, r"its Llama has no width = 24 that heads = 5 do not divide"),
    ],
)
def test_what_transformers_cannot_express_is_named(tmp_path, settings, named):
    model = Transformer(ModelConfig(**{**SHAPE, **settings}))
    with pytest.raises(ResidlabError, match=named):
        to_hugging_face(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


# --- Refusals


@pytest.fixture
def saved(make, tmp_path):
    make("Llama").save_pretrained(tmp_path)
    return tmp_path


def edit(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (
            {"architectures": ["BertModel"], "model_type": "bert"},
            r"architecture must be one of LlamaForCausalLM, MistralForCausalLM, GPT2LMHeadModel; got BertModel$",
        ),
        ({"architectures": None, "model_type": "qwen2"}, r"got none \(model_type 'qwen2'\)"),
        ({"architectures": ["MistralForCausalLM"]}, r"model_type of a MistralForCausalLM must be mistral; got 'llama'"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            r"rope_type must be default: .* got .*'linear'",
        ),
        ({"attention_bias": True}, r"attention_bias and mlp_bias must be equal, .* got True and False"),
        ({"hidden_act": "gelu"}, r"hidden_act of a llama must be silu; got 'gelu'"),
        (
            {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8},
            r"sliding_window must be null or at least max_position_embeddings = 64, .* got 8",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"the checkpoint is quantized"),
        ({"num_hidden_layers": 4}, r"they lack model\.layers\.3\."),
        ({"num_hidden_layers": 2}, r"they have model\.layers\.2\..* too many"),
        ({"hidden_size": 16}, r"must have shape .*; the weights have"),
        ({"hidden_size": "wide"}, r"is not the configuration of a llama"),
    ],
)
def test_a_configuration_that_is_not_ours_is_refused(saved, values, named):
    edit(saved, **values)
    with pytest.raises(ResidlabError, match=named):
        from_hugging_face(saved)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx of a gpt2 must be False; got True",
        ),
        ({"activation_function": "relu"}, "activation_function must be one of gelu_new, .* got 'relu'"),
    ],
)
def test_a_gpt2_of_another_kind_is_refused(gpt2, setting, named):
    with pytest.raises(ResidlabError, match=named):
        from_hugging_face(gpt2(**setting))


def test_damaged_weights_are_refused(saved, make):
    file = saved / "model.safetensors"
    intact = file.read_bytes()
    file.write_bytes(intact[: len(intact) // 2])
    with pytest.raises(ResidlabError, match=r"model\.safetensors is missing or damaged"):
        from_hugging_face(saved)
    file.unlink()
    with pytest.raises(ResidlabError, match=r"holds no model\.safetensors"):
        from_hugging_face(saved)
    torch.save({}, saved / "pytorch_model.bin")
    with pytest.raises(ResidlabError, match=r"as a pickle \(pytorch_model.bin\), .* never opened"):
        from_hugging_face(saved)
    theirs = make("Llama")
    theirs.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ResidlabError, match=r"blocks\.1\.feedforward\.W_up\.weight holds values that are not finite"):
        from_hugging_face(theirs)
    (saved / "config.json").write_text("{")
    with pytest.raises(ResidlabError, match=r"config\.json is not JSON"):
        from_hugging_face(saved)


def test_an_index_that_leaves_its_folder_or_is_incomplete(make, tmp_path):
    make("Llama").save_pretrained(tmp_path, max_shard_size="20KB")
    next(iter(tmp_path.glob("model-00002*"))).unlink()
    with pytest.raises(ResidlabError, match=r"model-00002.* is missing or damaged"):
        from_hugging_face(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    with pytest.raises(ResidlabError, match=r"names a file outside its folder: \.\./b\.safetensors"):
        from_hugging_face(tmp_path)


def test_models_with_another_door_are_sent_there(make, tmp_path):
    save_model(Transformer(ModelConfig(**SHAPE)), tmp_path / "ours")
    with pytest.raises(ResidlabError, match=r"load it with residlab\.models\.files\.load_model"):
        from_hugging_face(tmp_path / "ours")
    theirs = make("Llama")
    swap_norms(theirs, "bhyt")
    theirs.save_pretrained(tmp_path / "swapped")
    for source in (theirs, tmp_path / "swapped"):
        with pytest.raises(ResidlabError, match="has swapped norms: load it with"):
            from_hugging_face(source)
    with pytest.raises(ResidlabError, match="some are on the meta device"):
        from_hugging_face(make("Llama").to("meta"))
    with pytest.raises(ResidlabError, match=r"architecture must be one of .* got Linear"):
        from_hugging_face(torch.nn.Linear(2, 2))


def test_without_transformers(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for act in (
        from_hugging_face,
        load_swapped,
        lambda folder: to_hugging_face(Transformer(ModelConfig(**SHAPE)), folder),
    ):
        with pytest.raises(ResidlabError, match=r"needs transformers, which is not installed: .*\.\[hf\]"):
            act(tmp_path)


def test_names_of_the_hub(saved, monkeypatch):
    import huggingface_hub

    for missing in (saved / "nowhere", "a/b/c"):
        with pytest.raises(ResidlabError, match="is no folder, nor the name of a model on the hub"):
            from_hugging_face(missing)

    def refuse(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ResidlabError, match=r"the hub did not give it .* run `hf download residlab/no-such-model"):
        from_hugging_face("residlab/no-such-model")

    asked = []

    def download(name, **patterns):
        asked.append((name, patterns["allow_patterns"]))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert from_hugging_face("some/llama").config.depth == 3
    assert asked == [("some/llama", ["*.json", "*.safetensors"])], "a pickle is not even downloaded"


def test_a_gpt2_that_transformers_cannot_make_is_refused(tmp_path):
    config = ModelConfig(
        depth=1, width=33, heads=2, head_dim=16, vocabulary=50, context=8, norm=norm_options("layernorm", bias=True),
        bias=True, position="learned", feedforward="gelu",
    )  # fmt: skip
    with pytest.raises(ResidlabError, match="width = 33 that heads = 2 do not divide"):
        to_hugging_face(Transformer(config, seed=0), tmp_path / "gpt2")
