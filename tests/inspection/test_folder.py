"""What a folder must hold, and what is said where it does not; the model that comes out of it."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from residlab.errors import ResidlabError
from residlab.inspection import folder as folders
from residlab.inspection.inspect import inspect


@pytest.fixture(scope="module")
def llama(tmp_path_factory, save) -> Path:
    return save(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def copy(llama, tmp_path) -> Path:
    return shutil.copytree(llama, tmp_path / "copy")


def reconfigure(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def refuses(folder: Path, message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        folders.read_folder(folder)


def test_what_is_no_folder_with_a_model(tmp_path):
    refuses(tmp_path / "nowhere", "^there is no folder .*nowhere$")
    (tmp_path / "file").touch()
    refuses(tmp_path / "file", "is a file: name the folder")
    (tmp_path / "empty").mkdir()
    refuses(tmp_path / "empty", "empty$")
    refuses(tmp_path, "holds no model")
    (tmp_path / "adapter_config.json").write_text("{}")
    refuses(tmp_path, "adapter alone")


def test_a_broken_configuration(copy):
    (copy / "config.json").write_text("{")
    refuses(copy, "is not JSON")
    (copy / "config.json").write_text("[]")
    refuses(copy, "describes no model")
    (copy / "config.json").write_text("[" * 100_000)
    refuses(copy, "is not JSON")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": ["llama"]}, r"model_type \['llama'\] is none"),
        ({"architectures": "GPT"}, "architecture GPT is none"),
        ({"architectures": 5}, "^architectures in config.json must be a list of names; got 5$"),
        ({"architectures": [5]}, r"must be a list of names; got \[5\]$"),
        ({"num_hidden_layers": 0}, "no blocks: num_hidden_layers is 0"),
    ],
)
def test_a_configuration_of_odd_values(copy, values, message):
    reconfigure(copy, **values)
    refuses(copy, message)


def test_an_architecture_by_itself_is_a_list_of_one(copy):
    reconfigure(copy, architectures="LlamaForCausalLM")
    assert folders.read_folder(copy).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("index", ["[]", '{"weight_map": {"a": 5}}', "[" * 100_000])
def test_an_index_that_is_none(copy, index):
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(index)
    refuses(copy, "does not say where the weights are")


def test_the_single_file_goes_before_an_index(copy):
    weights = load_file(copy / "model.safetensors")
    others = {f"{name}_other": torch.full_like(tensor, float("nan")) for name, tensor in weights.items()}
    save_file(others, copy / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    index = {"weight_map": dict.fromkeys(others, "model-00001-of-00001.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    found = folders.read_folder(copy)
    assert found.tensors.keys() == weights.keys()
    folders.check_weights(found)
    loaded = folders.load(found).state_dict()  # by transformers, which has the same order
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


class _Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_is_named_and_never_opened(copy):
    (copy / "model.safetensors").unlink()
    mark = copy / "opened"
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap(mark)))
    refuses(copy, r"pickle \(pytorch_model\.bin\).*convert it to safetensors")
    assert not mark.exists()
    pickle.loads((copy / "pytorch_model.bin").read_bytes())
    assert mark.exists()  # the trap works


def test_code_of_the_folder_is_never_run(copy):
    mark = copy / "run"
    (copy / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\nclass OwnConfig: ...\nclass Own: ...\n")
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    reconfigure(copy, auto_map=own)
    folders.load(folders.read_folder(copy))  # a Llama with code beside it is transformers' Llama
    reconfigure(copy, auto_map=own, model_type="own", architectures=["Own"])
    refuses(copy, r"model_type 'own' is none that transformers .* knows\. Its own code \(auto_map\) is never run")
    assert not mark.exists()


def test_architectures_that_are_no_causal_language_models(copy, tmp_path):
    reconfigure(copy, architectures=["LlamaForSequenceClassification"])
    refuses(copy, "LlamaForSequenceClassification is none of .* for model_type 'llama' that is LlamaForCausalLM$")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    refuses(tmp_path / "t5", "architecture T5ForConditionalGeneration is none of transformers' causal language models")


def test_a_model_that_sees_later_tokens(save, tmp_path):
    folder = save(tmp_path / "bert", "bert")
    with pytest.raises(ResidlabError, match="BertLMHeadModel is not causal as configured"):
        inspect(folder, tokens=32)


def test_quantized_and_swapped_models(copy):
    reconfigure(copy, quantization_config={"quant_method": "gptq", "bits": 4})
    refuses(copy, "quantized: only plain floating-point")
    reconfigure(copy, quantization_config=None, residlab={"norm": "bhyt"})
    refuses(copy, "swapped norms")


def test_weights_in_eight_bits(copy):
    weights = load_file(copy / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    refuses(copy, rf"{re.escape(name)} is stored as F8_E4M3")


def test_a_missing_tokenizer_is_named(save, tmp_path):
    refuses(save(tmp_path / "mute", tokenizer=False), r"holds no tokenizer \(tokenizer\.json, ")


def test_a_damaged_tokenizer(copy):
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(ResidlabError, match=r"^the tokenizer in .* cannot be read: "):
        folders.load_tokenizer(folders.read_folder(copy))


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "1 NaN"), (float("-inf"), "1 infinity")])
def test_a_weight_that_is_no_number_is_named(save, tmp_path, value, kind):
    def spoil(model):
        model.model.layers[1].mlp.down_proj.weight[3, 5] = value

    folder = save(tmp_path / "spoilt", edit=spoil)
    message = rf"^the weights are not all numbers: model\.layers\.1\.mlp\.down_proj\.weight holds {kind} among 1,536 "
    with pytest.raises(ResidlabError, match=message):
        inspect(folder, tokens=32)


def test_weights_that_are_all_zero(copy):
    file = copy / "model.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(ResidlabError, match="all weights are 0"):
        inspect(copy, tokens=32)


def test_weights_that_are_missing(copy):
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.2.self_attn.k_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ResidlabError, match=r"lack weights of LlamaForCausalLM: model\.layers\.2\.self_attn\.k_proj"):
        folders.load(folders.read_folder(copy))


@pytest.mark.parametrize(("kind", "depth"), [("llama", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_weights_of_blocks_beyond_the_last(save, tmp_path, kind, depth):
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 3} if kind == "gpt2" else {}
    folder = save(tmp_path / kind, kind, **sizes)
    reconfigure(folder, **{depth: 2})
    message = (
        r"^num_hidden_layers in config\.json is 2, but the files .* of more blocks: .*(layers|h)\.2\..* and \d+ more$"
    )
    with pytest.raises(ResidlabError, match=message):
        folders.load(folders.read_folder(folder))


def test_tensors_that_are_left_over_and_do_no_harm(copy):
    weights = load_file(copy / "model.safetensors")
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.rotary_emb.inv_freq": torch.ones(4),
        "other.layers.9.weight": torch.ones(4),
    }
    save_file(weights | extra, copy / "model.safetensors", metadata={"format": "pt"})
    folders.load(folders.read_folder(copy))


def test_a_file_without_tensors(copy):
    save_file({}, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ResidlabError, match=r"the safetensors files in .* hold no tensors$"):
        folders.check_weights(folders.read_folder(copy))


def test_weights_of_another_shape(copy):
    reconfigure(copy, intermediate_size=40)
    message = (
        r"^model\.layers\.0\.mlp\.\w+_proj\.weight in .* has the shape \((48, 32|32, 48)\); by config\.json it is "
    )
    with pytest.raises(ResidlabError, match=message):
        folders.load(folders.read_folder(copy))


def test_a_truncated_file(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refuses(copy, "missing or damaged")


@pytest.mark.parametrize("tied", [False, True])
def test_counts_are_those_of_the_model(save, build, tmp_path, tied):
    found = folders.read_folder(save(tmp_path / "model", tie_word_embeddings=tied))
    model = build("llama", tie_word_embeddings=tied)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert sum(torch.Size(h.shape).numel() for h in found.tensors.values()) == found.parameters
    assert (found.architecture, found.dtypes, found.context) == ("LlamaForCausalLM", ("F32",), 64)


def test_shards_give_the_same_model(save, llama, tmp_path):
    sharded = save(tmp_path / "sharded", shard="30kB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    ids = torch.arange(16)[None]
    with torch.no_grad():
        one, other = (folders.load(folders.read_folder(folder))(ids).logits for folder in (llama, sharded))
    assert torch.equal(one, other)
    next(sharded.glob("model-00002-*.safetensors")).unlink()
    refuses(sharded, "missing or damaged")


def test_sixteen_bits_are_read_as_they_are(save, tmp_path):
    folder = save(tmp_path / "half", edit=lambda model: model.to(torch.bfloat16))
    found = folders.read_folder(folder)
    assert found.dtypes == ("BF16",)
    stored = load_file(folder / "model.safetensors")
    weights = folders.load(found).state_dict()
    assert all(torch.equal(weights[name], tensor.float()) for name, tensor in stored.items())


def test_the_share_of_linear_layers(save, tmp_path):
    found = folders.read_folder(save(tmp_path / "model"))
    # 2 norms of 32 beside q, o (32 x 32), k, v (16 x 32), gate, up, down (48 x 32).
    weights = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32
    assert folders.linear_share(found) == weights / (weights + 64)


def test_no_network_is_asked(llama, monkeypatch):
    import socket

    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail(f"the network was asked: {a[1:]}"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail(f"the network was asked: {a}"))
    found = folders.read_folder(llama)
    folders.load_tokenizer(found)
    folders.load(found)
