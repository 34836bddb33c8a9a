"""Our norms in transformers' models: the same numbers as ours, and everything of theirs still works."""

import copy
import dataclasses
import importlib
import json
import pickle
import subprocess
import sys

import pytest
import torch
import transformers
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.config import norm_options
from residlab.models.hf import from_hugging_face, load_swapped, swap_norms
from residlab.models.norms import RMSNorm
from residlab.models.transformer import Transformer

KINDS = ("rmsnorm", "layernorm", "lns", "dyt", "bhyt*", "bhyt", "peri-ln")
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3")
UNFIT = {(family, kind) for family in ("Gemma2", "Gemma3") for kind in ("bhyt", "peri-ln")}


def logits(model, ids, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def continued(model, ids, **options):
    return model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_norm_in_every_family_trains_generates_and_is_saved(make, ids, tmp_path, family, kind):
    if (family, kind) in UNFIT:
        with pytest.raises(ResidlabError, match=f"{kind} does not fit {family}ForCausalLM: .* norm"):
            swap_norms(make(family), kind)
        return
    model = make(family)
    before = logits(model, ids)
    report = swap_norms(model, kind)
    after = logits(model, ids)
    difference = ((after - before).abs().max() / before.abs().max()).item()
    assert difference < 1e-5 if kind == "rmsnorm" else difference > 1e-3
    assert (report.kind, report.layers, len(report.replaced)) == (kind, 3, 6)
    assert len(report.added) == (6 if kind == "peri-ln" else 0)

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(ids, labels=ids).loss
    loss.backward()
    ungraded = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not ungraded
    assert all(p.grad.any() for name, p in model.named_parameters() if name.endswith((".gamma", ".lam", ".alpha")))
    optimizer.step()
    model.eval()
    assert model(ids, labels=ids).loss < loss

    cached, uncached = (continued(model, ids, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached, uncached)
    model.save_pretrained(tmp_path)
    loaded = load_swapped(tmp_path)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert type(loaded) is type(model)
    assert not loaded.training


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rmsnorm", {}),
        ("layernorm", {}),
        ("lns", {}),
        ("dyt", {"alpha_attention": 0.7, "alpha_feedforward": 0.3, "bias": True}),
        ("peri-ln", {}),
        ("bhyt*", {"lam_attention": 3.0, "lam_feedforward": 3.0, "centred": True}),
        ("bhyt", {"p": 0.9, "tokens": 7}),
        ("bhyt", {"averaged": "position", "centred": True}),
        ("bhyt", {"averaged": "rows", "eps": 0.1}),
        ("bhyt", {"tokens": 1, "refresh": "frozen"}),
    ],
)
def test_a_swapped_llama_computes_what_our_transformer_computes(make, ids, kind, options):
    model = make("Llama", attn_implementation="eager").double()
    bare = from_hugging_face(model)
    swap_norms(model, kind, **options)
    norm = norm_options(kind, **options)
    if "eps" in {field.name for field in dataclasses.fields(norm)} and kind not in ("bhyt", "bhyt*"):
        norm = dataclasses.replace(norm, eps=model.config.rms_norm_eps)
    ours = Transformer(dataclasses.replace(bare.config, norm=norm)).double()
    ours.final_norm = RMSNorm(32, eps=model.config.rms_norm_eps).double()  # which a swap leaves alone
    ours.load_state_dict(bare.state_dict(), strict=False)
    ours.refresh()
    # HF keeps RMSNorm and the rotary table in float32 whatever the model is, hence no more than 1e-6.
    torch.testing.assert_close(logits(model, ids), ours(ids).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["Llama", "Gemma"])
def test_the_formula_of_bhyt_at_both_sites(make, ids, family):
    model = make(family)
    seen = {}

    def watch(name):
        return lambda module, inputs, output: seen.__setitem__(name, (inputs[0], output))

    theirs = model.model.layers[1]
    offset = 1.0 if family == "Gemma" else 0.0
    gains = [
        (getattr(theirs, f"{site}_layernorm").weight.detach() + offset).double() for site in ("input", "post_attention")
    ]
    swap_norms(model, "bhyt", lam_attention=3.0, lam_feedforward=2.0, kappa=5.0, eps=0.01, tokens=11)
    layer = model.model.layers[1]
    layer.input_layernorm.register_forward_hook(watch("first"))
    layer.post_attention_layernorm.register_forward_hook(watch("second"))
    logits(model, ids)
    (x, (first, _)), (z, second) = ((a.double(), b) for a, b in (seen["first"], seen["second"]))
    spread = x.square().mean(-1, keepdim=True)
    expected = gains[0] * torch.tanh(3 * x / (5 * (spread + 0.01).sqrt()))
    torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-6)
    # 4 query heads read 2 key-value heads, two each: the dense product, written out.
    V = layer.self_attn.v_proj.weight.double().view(2, 8, 32)[[0, 0, 1, 1]].reshape(32, 32)
    product = torch.diag(gains[0]) @ V.T @ layer.self_attn.o_proj.weight.double().T
    predicted = spread + product.square().sum() * 3**2 / (5**2 * 32 * 11)
    expected = gains[1] * torch.tanh(2 * z / (5 * (predicted + 0.01).sqrt()))
    torch.testing.assert_close(second.double(), expected, rtol=1e-5, atol=1e-6)


def test_gains_of_gemma_are_converted(make):
    model = make("Gemma")
    stored = model.model.layers[2].input_layernorm.weight.detach().clone()
    swap_norms(model, "lns")
    assert torch.equal(model.model.layers[2].input_layernorm.gamma, 1 + stored)
    assert model.model.layers[2].input_layernorm.scale == 3**-0.5
    assert model.model.layers[0].post_attention_layernorm.scale == 1


# --- Everything of theirs still works


@pytest.mark.parametrize("options", [{"tokens": 5}, {"averaged": "position"}])
def test_left_padding_changes_nothing(make, ids, options):
    model = make("Llama")
    swap_norms(model, "bhyt", **options)
    short = ids[:1, :6]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), short], dim=1)
    batch, mask = torch.cat([padded, ids[1:]]), torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    together = logits(model, batch, attention_mask=mask, position_ids=positions)[0, 3:]
    torch.testing.assert_close(together, logits(model, short)[0], rtol=1e-4, atol=1e-5)
    generated = continued(model, batch, attention_mask=mask)
    assert torch.equal(generated[0, 9:], continued(model, short)[0, 6:])


@pytest.mark.parametrize("kind", ["bhyt", "peri-ln"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(make, ids, kind, reentrant):
    options = {"averaged": "position"} if kind == "bhyt" else {}

    def gradients(checkpointed):
        model = make("Llama")
        swap_norms(model, kind, **options)
        model.train()
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        with pytest.MonkeyPatch.context() as patch:
            calls = []
            layer = type(model.model.layers[0].self_attn)
            forward = layer.forward
            patch.setattr(layer, "forward", lambda self, *a, **k: calls.append(1) or forward(self, *a, **k))
            model(ids, labels=ids, use_cache=False).loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}, len(calls)

    plain, once = gradients(False)
    checkpointed, twice = gradients(True)
    assert (once, twice) == (3, 6)
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


def test_torch_compile_traces_the_whole_and_sees_new_weights(make, ids):
    model = make("Llama", num_hidden_layers=1)
    swap_norms(model, "bhyt", tokens=1)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for step in range(2):
        losses = [one(ids, labels=ids, use_cache=False).loss for one in (compiled, plain)]
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
        for one, loss in zip((model, plain), losses, strict=True):
            loss.backward()
            with torch.no_grad():
                one.model.layers[0].self_attn.v_proj.weight.mul_(3)
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=f"{name}, step {step}")


@pytest.mark.parametrize(("family", "kind"), [("Llama", "bhyt"), ("Gemma3", "bhyt*"), ("Qwen2", "peri-ln")])
def test_another_process_gets_the_model_by_pickle(make, ids, tmp_path, family, kind):
    """As `torch.multiprocessing` and torch.save of a whole model do; the classes are made when they are asked for."""
    model = make(family)
    swap_norms(model, kind)
    (tmp_path / "model").write_bytes(pickle.dumps((model, ids)))
    read = "import pickle, sys, torch; model, ids = pickle.load(open(sys.argv[1], 'rb'))"
    read += "; torch.save(model(ids).logits.detach(), sys.argv[2])"
    subprocess.run([sys.executable, "-c", read, tmp_path / "model", tmp_path / "logits"], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "logits"), model(ids).logits.detach(), rtol=1e-6, atol=1e-6)
    for module in ("swap", "layers"):
        with pytest.raises(AttributeError, match="has no attribute 'ResidlabNothing'"):
            importlib.import_module(f"residlab.models.hf.{module}").ResidlabNothing  # noqa: B018


def test_weights_in_shared_memory_are_measured_in_every_forward(make, ids):
    """Another process that writes there does not move this one's version counter; here a second tensor does it."""
    model = make("Llama", num_hidden_layers=1)
    swap_norms(model, "bhyt", tokens=1)
    model.share_memory()
    weight = model.model.layers[0].self_attn.v_proj.weight
    elsewhere = torch.from_numpy(weight.detach().numpy())
    with torch.no_grad():
        before, version = model(ids).logits, weight._version
        elsewhere.mul_(3)
        assert weight._version == version
        after = model(ids).logits
        twin = copy.deepcopy(model)(ids).logits
    torch.testing.assert_close(after, twin)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["bhyt", "peri-ln", "dyt"])
def test_other_dtypes(make, ids, tmp_path, dtype, kind):
    exact = make("Llama")
    swap_norms(exact, kind)
    model = make("Llama", dtype=dtype)
    model.load_state_dict(make("Llama").state_dict())
    swap_norms(model, kind)
    assert {p.dtype for p in model.parameters()} == {dtype}
    expected = logits(exact, ids)
    tolerance = 10 * max(torch.finfo(dtype).eps, 1e-7) * expected.abs().max().item()
    torch.testing.assert_close(logits(model, ids).float(), expected, rtol=0, atol=tolerance)
    model.save_pretrained(tmp_path)
    loaded = load_swapped(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    # A matrix product's last bit depends on where in memory its operands begin.
    torch.testing.assert_close(logits(loaded, ids), logits(model, ids), rtol=0, atol=tolerance / 10)
    assert load_swapped(tmp_path, dtype=torch.float32).dtype == torch.float32
    model.train()
    model(ids, labels=ids).loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["bhyt", "bhyt*", "rmsnorm"])
def test_float16_is_not_squared(make, ids, kind):
    """300**2 is beyond float16: a square taken there makes every output zero."""
    model = make("Llama")
    model.model.embed_tokens.weight.data.copy_(300 * model.model.embed_tokens.weight.sign())
    swap_norms(model, kind)
    exact = model.model.layers[0].input_layernorm(model.model.embed_tokens(ids).double())
    model.half()
    embedded = model.model.embed_tokens(ids)
    assert embedded.abs().min() == 300
    y = model.model.layers[0].input_layernorm(embedded)
    torch.testing.assert_close(y.double(), exact, rtol=2e-3, atol=1e-5)
    assert logits(model, ids).isfinite().all()


def test_autocast_measures_the_constant_in_float32(make, ids):
    model = make("Llama")
    swap_norms(model, "bhyt", averaged="position")
    layer = model.model.layers[0]
    exact = layer.measured_constant()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.measured_constant(), exact)
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_static_cache_hidden_states_and_copies(make, ids):
    model = make("Llama")
    swap_norms(model, "bhyt", averaged="position")
    expected = continued(model, ids)
    assert torch.equal(continued(model, ids, cache_implementation="static"), expected)
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 4
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin, ids), logits(model, ids))
    twin.model.layers[0].input_layernorm.lam.data.fill_(9.0)
    assert not torch.equal(logits(twin, ids), logits(model, ids))
    assert "BHyTLlamaDecoderLayer" in model._no_split_modules
    assert isinstance(model.model.layers[0], transformers.models.llama.modeling_llama.LlamaDecoderLayer)


def test_rows_need_eager_attention(make, ids, tmp_path):
    model = make("Llama", attn_implementation="eager")
    swap_norms(model, "bhyt", averaged="rows")
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(load_swapped(tmp_path, attn_implementation="eager"), ids), logits(model, ids))
    with pytest.raises(ResidlabError, match='attn_implementation must be "eager"'):
        load_swapped(tmp_path, attn_implementation="sdpa")(ids)
    with pytest.raises(ResidlabError, match='attn_implementation must be "eager"; got "sdpa"'):
        swap_norms(make("Llama"), "bhyt", averaged="rows")


def test_a_sliding_window_limits_what_a_query_sees(make):
    model = make("Mistral", sliding_window=4)
    swap_norms(model, "bhyt", averaged="position")
    seen = model.model.layers[0]._visible(torch.arange(7)[None])
    assert seen[0, :, 0].tolist() == [1, 2, 3, 4, 4, 4, 4]
    with pytest.raises(ResidlabError, match='averaged = "position" needs position_ids'):
        model.model.layers[0]._visible(None)


# --- What is saved


def test_transformers_alone_refuses_what_was_saved(make, tmp_path):
    model = make("Llama", tie_word_embeddings=True)
    swap_norms(model, "bhyt", p=0.96, averaged="position")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("residlab_llama", ["ResidlabLlamaForCausalLM"])
    assert config["residlab"]["format"] == 1
    assert config["residlab"]["norm"].items() >= {"kind": "bhyt", "averaged": "position", "refresh": "forward"}.items()
    assert config["residlab"]["norm"]["kappa"] == pytest.approx(5)
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModel, transformers.AutoConfig):
        with pytest.raises(ValueError, match="model type `residlab_llama`"):
            auto.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatched"):  # its own class, asked by name, does not quietly start anew
        transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    alone = "import sys, transformers as t; t.AutoModelForCausalLM.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", alone, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "residlab_llama" in done.stderr


def test_a_saved_model_that_does_not_fit_is_refused(make, tmp_path):
    make("Llama").save_pretrained(tmp_path / "plain")
    with pytest.raises(ResidlabError, match="holds no model with swapped norms"):
        load_swapped(tmp_path / "plain")
    with pytest.raises(ResidlabError, match="holds no model"):
        load_swapped(tmp_path / "nowhere")
    model = make("Llama")
    swap_norms(model, "lns")
    model.save_pretrained(tmp_path / "swapped")
    file = tmp_path / "swapped" / "config.json"
    config = json.loads(file.read_text())
    for change, named in [
        ({"residlab": {"format": 2}}, "must be of format 1; got 2"),
        ({"residlab": {"format": 1, "norm": {"kind": "no"}}}, "norm must be one of"),
        ({"residlab": {"format": 1, "norm": {"kind": "bhyt"}}}, r"do not fit its configuration: missing: .*\.lam"),
        ({"model_type": "llama"}, "model_type of a model with swapped norms must be one of residlab_llama"),
        ({"hidden_size": 16}, "cannot be loaded"),
        ({"num_hidden_layers": 2}, r"do not fit its configuration: unexpected: model\.layers\.2"),
    ]:
        file.write_text(json.dumps({**config, **change}))
        with pytest.raises(ResidlabError, match=named):
            load_swapped(tmp_path / "swapped")
    file.write_text(json.dumps(config))
    weights = tmp_path / "swapped" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ResidlabError, match="cannot be loaded"):
        load_swapped(tmp_path / "swapped")


def test_another_model_of_the_same_configuration_is_left_alone(make, ids):
    model = make("Llama")
    other = transformers.LlamaForCausalLM(model.config)
    swap_norms(model, "bhyt")
    assert other.config.model_type == "llama"
    assert not hasattr(other.config, "residlab")
    assert model.model.config is model.config
    assert model.model.layers[0].self_attn.config is model.config
    assert "LlamaRMSNorm" in type(other.model.layers[0].input_layernorm).__name__


# --- What is refused, before anything is changed


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("bhit", {}, "norm must be one of .*bhyt.*; got 'bhit'"),
        ("bhyt", {"lambda_": 2}, "norm bhyt has no option lambda_; it has .*lam_attention"),
        ("bhyt", {"kappa": -1}, "kappa must be a finite number > 0; got -1"),
        ("bhyt", {"tokens": 0}, "tokens must be a whole number >= 1; got 0"),
        ("bhyt", {"averaged": "position", "tokens": 5}, 'tokens = 5 belongs to averaged = "context"'),
        ("bhyt", {"refresh": "sometimes"}, 'refresh must be "forward", "frozen", "construction" or a number'),
        ("bhyt", {"refresh": "construction"}, "has no place in a swap"),
        ("dyt", {"alpha_final": 0.3}, "alpha_final has no place in a swap: the final norm stays"),
        ("dyt", {"embedding_scale": True}, "embedding_scale has no place"),
        ("rmsnorm", {"gain_attention": 0.2}, "gain_attention has no place in a swap: the gain stays as it is"),
        ("peri-ln", {"embedding_norm": True}, "embedding_norm has no place"),
    ],
)
def test_unknown_options(make, kind, options, named):
    model = make("Llama")
    with pytest.raises(ResidlabError, match=named):
        swap_norms(model, kind, **options)
    assert type(model) is transformers.LlamaForCausalLM
    assert not hasattr(model.config, "residlab")


def test_models_that_cannot_be_swapped(make):
    model = make("Llama")
    swap_norms(model, "lns")
    with pytest.raises(ResidlabError, match=r"swapped already, to .*lns"):
        swap_norms(model, "bhyt")
    for other in (nn.Linear(2, 2), make("Llama").model, nn.parallel.DataParallel(make("Llama"))):
        with pytest.raises(ResidlabError, match=r"can be swapped in transformers' LlamaForCausalLM, .*; got "):
            swap_norms(other, "bhyt")
    with pytest.raises(ResidlabError, match="is on the meta device"):
        swap_norms(make("Llama").to("meta"), "bhyt")
    quantized = make("Llama")
    quantized.config.quantization_config = {"bits": 4}
    with pytest.raises(ResidlabError, match="is quantized"):
        swap_norms(quantized, "bhyt")
    dispatched = make("Llama")
    dispatched.model.layers[1]._hf_hook = object()
    with pytest.raises(ResidlabError, match=r"model\.layers\.1 is dispatched by accelerate"):
        swap_norms(dispatched, "bhyt")


def test_a_model_that_transformers_placed_is_swapped(make, ids, tmp_path):
    make("Llama").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu")
    swap_norms(model, "bhyt")
    other = make("Llama")
    swap_norms(other, "bhyt")
    assert torch.equal(logits(model, ids), logits(other, ids))


def test_the_report_says_what_changed_and_what_stayed(make):
    report = swap_norms(make("Qwen3"), "peri-ln")
    assert str(report).splitlines() == [
        "peri-ln in 3 layers of Qwen3ForCausalLM (PeriLNQwen3DecoderLayer)",
        "  replaced: input_layernorm by RMSNorm, post_attention_layernorm by RMSNorm",
        "  added: model.layers.*.attention_output_norm, model.layers.*.feedforward_output_norm",
        "  kept: model.layers.*.self_attn.q_norm, model.layers.*.self_attn.k_norm, model.norm",
    ]
    report = swap_norms(make("Gemma2"), "bhyt*")
    assert report.sites == {"input_layernorm": "BHyTStar", "pre_feedforward_layernorm": "BHyTStar"}
    assert report.layer_class == "Gemma2DecoderLayer"
    assert "model.layers.0.post_feedforward_layernorm" in report.kept


def test_weights_that_are_not_finite_are_named_at_the_door(make, tmp_path):
    model = make("Llama")
    swap_norms(model, "bhyt", tokens=16)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[2, 3] = float("nan")
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ResidlabError, match=r"layers.1.mlp.up_proj.weight holds values that are not finite"):
        load_swapped(tmp_path / "model")
