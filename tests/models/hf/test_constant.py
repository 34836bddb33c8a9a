"""The constant of BHyT's variance approximation follows the weights; lam, kappa and eps are what they are told."""

import copy

import pytest
import torch
import transformers
from torch import nn

from residlab.errors import ResidlabError
from residlab.models.hf import RefreshConstants, load_swapped, refresh_constants, swap_norms
from residlab.models.hf.layers import BHyTLayer


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.fixture
def bhyt(make):
    def build(**options):
        model = make("Llama")
        swap_norms(model, "bhyt", **{"tokens": 1, **options})
        return model

    return build


@pytest.fixture
def measured(monkeypatch):
    """How often constants were measured."""
    calls = []
    measure = BHyTLayer.measured_constant
    monkeypatch.setattr(BHyTLayer, "measured_constant", lambda self: calls.append(1) or measure(self))
    return calls


def dense_energy(layer):
    V = layer.self_attn.v_proj.weight.detach().double().view(2, 8, 32)[[0, 0, 1, 1]].reshape(32, 32)
    W = layer.input_layernorm.gamma.detach().double()[:, None] * V.T @ layer.self_attn.o_proj.weight.detach().double().T
    return W.square().sum()


def current(model):
    return torch.stack([layer.current_constant() for layer in model.model.layers])


def expected(model):
    return torch.stack([dense_energy(layer) for layer in model.model.layers]).float()


def test_it_is_measured_once_while_weights_stay(bhyt, ids, measured):
    model = bhyt()
    logits(model, ids)
    assert len(measured) == 3
    model.generate(ids, max_new_tokens=4, do_sample=False)
    model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
    assert len(measured) == 3, "measured again for a token"
    model(ids)
    assert len(measured) == 6, "with gradients enabled it is measured in each forward"
    model.train()
    logits(model, ids)
    logits(model, ids)
    assert len(measured) == 12, "and in training mode"
    model.eval()
    with torch.inference_mode():
        model(ids)
        model(ids)
    assert len(measured) == 15


CHANGES = {
    "in place": lambda model: model.model.layers[0].self_attn.o_proj.weight.mul_(2),
    "the gain": lambda model: model.model.layers[0].input_layernorm.gamma.mul_(2),
    "one entry": lambda model: model.model.layers[0].self_attn.v_proj.weight[0, 0].add_(1),
    "another parameter": lambda model: setattr(
        model.model.layers[0].self_attn.v_proj, "weight", nn.Parameter(torch.ones(16, 32))
    ),
    "load_state_dict": lambda model: model.load_state_dict({k: 1.5 * v for k, v in model.state_dict().items()}),
    "load_state_dict, assigned": lambda model: model.load_state_dict(
        {k: 1.5 * v for k, v in model.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_weights_is_noticed(bhyt, ids, change):
    model = bhyt()
    logits(model, ids)
    with torch.no_grad():
        torch.testing.assert_close(current(model), expected(model))
        before = current(model)
        change(model)
        assert not torch.equal(current(model), before)
        torch.testing.assert_close(current(model), expected(model))


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("evaluated", ["before backward", "after backward"])
def test_an_optimizers_step_is_noticed(bhyt, ids, options, evaluated):
    """Fused AdamW, Trainer's default, changes weights without raising torch's version counter."""
    model = bhyt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for _ in range(2):
        logits(model, ids)
        model(ids, labels=ids).loss.backward()
        if evaluated == "after backward":
            logits(model, ids)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(current(model), expected(model))


def test_writing_through_data_needs_a_word(bhyt, ids):
    model = bhyt()
    logits(model, ids)
    model.model.layers[0].self_attn.o_proj.weight.data.mul_(2)
    refresh_constants(model)
    with torch.no_grad():
        torch.testing.assert_close(current(model), expected(model))
        model.half()
        assert current(model).dtype == torch.float32
        torch.testing.assert_close(current(model), expected(model))


def test_a_copy_has_constants_of_its_own(bhyt, ids):
    model = bhyt()
    logits(model, ids)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.model.layers[0].self_attn.o_proj.weight.mul_(2)
        torch.testing.assert_close(current(twin), expected(twin))
        torch.testing.assert_close(current(model), expected(model))


def test_weights_drawn_after_the_swap_count(bhyt, ids):
    model = bhyt()
    with torch.no_grad():
        for layer in model.model.layers:
            nn.init.normal_(layer.self_attn.v_proj.weight)
            nn.init.normal_(layer.self_attn.o_proj.weight)
        torch.testing.assert_close(current(model), expected(model))
    fresh = type(model)(model.config)  # weights drawn by transformers, then swapped
    with torch.no_grad():
        torch.testing.assert_close(current(fresh), expected(fresh))
    frozen = bhyt(refresh="frozen")
    fresh = type(frozen)(frozen.config)
    torch.testing.assert_close(current(fresh), expected(fresh))


def test_the_length_of_the_first_call_changes_nothing(bhyt, ids):
    model, fresh = bhyt(tokens=4), bhyt(tokens=4)
    logits(model, ids[:, :2])
    assert torch.equal(logits(model, ids), logits(fresh, ids))


def test_tokens_are_explicit_and_recorded(make):
    for context, options, tokens in [(64, {}, 64), (131_072, {}, 2048), (131_072, {"tokens": 8192}, 8192)]:
        model = make("Llama", max_position_embeddings=context)
        swap_norms(model, "bhyt", **options)
        assert model.config.residlab["norm"]["tokens"] == tokens
        assert model.model.layers[0].tokens == tokens


def test_frozen_constants_stay_and_are_saved(bhyt, ids, tmp_path):
    model = bhyt(refresh="frozen")
    before = current(model)
    torch.testing.assert_close(before, expected(model))
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.mul_(2)
    logits(model, ids)
    refresh_constants(model, step=100)
    assert torch.equal(current(model), before)
    model.save_pretrained(tmp_path)
    loaded = load_swapped(tmp_path)
    assert torch.equal(current(loaded), before)
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    refresh_constants(model)
    torch.testing.assert_close(current(model), expected(model))


def test_a_kept_constant_survives_float16(bhyt):
    """The energy itself may be beyond float16; what is kept is not."""
    model = bhyt(refresh="frozen")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(100)
    refresh_constants(model)
    assert expected(model).max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(current(model.half()), expected(model), rtol=2e-3, atol=0)


def test_trainer_trains_refreshes_and_saves(bhyt, ids, tmp_path):
    model = bhyt(refresh=2)
    seen = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append((current(model).detach().clone(), expected(model)))

    data = [{"input_ids": row, "labels": row} for row in ids.repeat(8, 1)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        label_smoothing_factor=0.1,
        activation_checkpointing=True,
        dataloader_pin_memory=False,
    )
    first = current(model)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[RefreshConstants(), Watch()])
    decayed = trainer.get_decay_parameter_names(model)
    assert not [name for name in decayed if "norm" in name], "gains and lam are not decayed"
    assert trainer.train().training_loss > 0
    assert torch.equal(seen[0][0], first)
    torch.testing.assert_close(seen[1][0], seen[1][1])
    assert torch.equal(seen[2][0], seen[1][0])
    torch.testing.assert_close(seen[3][0], seen[3][1])
    assert not torch.allclose(seen[3][0], first)
    loaded = load_swapped(tmp_path / "checkpoint-4")
    model.eval()
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert model._get_name() == "LlamaForCausalLM", "Trainer looks it up to shift smoothed labels"


def test_trainer_evaluates_with_the_weights_of_now(bhyt, ids, tmp_path):
    model = bhyt()
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        learning_rate=0.1,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data)
    assert arguments.optim.value == "adamw_torch_fused"
    trainer.train()
    with torch.no_grad():
        torch.testing.assert_close(current(model.eval()), expected(model))


# --- lam, kappa, eps


def test_a_changed_lam_counts_at_once(bhyt, ids):
    model, other = bhyt(), bhyt(lam_attention=4.0)
    before = logits(model, ids)
    for layer in model.model.layers:
        layer.input_layernorm.lam.data.fill_(4.0)  # even through .data, which no counter sees
    assert not torch.equal(logits(model, ids), before)
    assert torch.equal(logits(model, ids), logits(other, ids))


@pytest.mark.parametrize("kind", ["bhyt", "bhyt*"])
def test_lam_is_fixed_when_told_so(make, ids, tmp_path, kind):
    model = make("Llama")
    swap_norms(model, kind, learn_lam=False, lam_attention=3.0)
    assert not [name for name, _ in model.named_parameters() if name.endswith("lam")]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    assert {layer.input_layernorm.lam.item() for layer in model.model.layers} == {3.0}
    model.save_pretrained(tmp_path)
    assert load_swapped(tmp_path).model.layers[1].input_layernorm.lam.item() == 3.0


def test_frozen_models_get_frozen_norms(make):
    model = make("Llama").requires_grad_(False)
    model.lm_head.requires_grad_(True)
    swap_norms(model, "bhyt")
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["lm_head.weight"]


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm", "lns", "peri-ln"])
def test_eps_is_by_default_that_of_the_model(make, ids, kind):
    def outputs(**options):
        model = make("Llama", rms_norm_eps=0.5)
        swap_norms(model, kind, **options)
        assert model.config.residlab["norm"]["eps"] == options.get("eps", 0.5)
        return logits(model, ids)

    assert torch.equal(outputs(), outputs(eps=0.5))
    assert not torch.allclose(outputs(), outputs(eps=1e-6))


@pytest.mark.parametrize("option", [{"eps": 0.5}, {"kappa": 5.0}, {"lam_feedforward": 2.0}, {"centred": True}], ids=str)
@pytest.mark.parametrize("kind", ["bhyt", "bhyt*"])
def test_no_option_is_ignored(make, ids, kind, option):
    one, other = make("Llama"), make("Llama")
    swap_norms(one, kind)
    swap_norms(other, kind, **option)
    assert not torch.allclose(logits(one, ids), logits(other, ids), atol=1e-4)


def test_weights_that_are_not_dense_are_named(bhyt, ids):
    model = bhyt()
    model.model.layers[0].self_attn.v_proj = nn.Sequential(model.model.layers[0].self_attn.v_proj)
    with pytest.raises(ResidlabError, match=r"v_proj, which must be a torch\.nn\.Linear; got .*Sequential"):
        model(ids)
