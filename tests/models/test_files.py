"""A model in a folder: the same after a round trip, and clear words about every damaged one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from residlab.errors import ResidlabError
from residlab.models.config import NORMS, ModelConfig, norm_options
from residlab.models.files import load_model, load_weights, save_model
from residlab.models.transformer import Transformer

TOKENS = torch.tensor([[1, 2, 3, 4]])


def make(kind="bhyt", **options):
    config = ModelConfig(depth=2, width=16, heads=2, vocabulary=30, context=8, norm=norm_options(kind, **options))
    return Transformer(config, seed=0)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_round_trip_is_exact(tmp_path, kind, dtype):
    model = make(kind).to(dtype)
    save_model(model, tmp_path / "a" / "model")
    loaded = load_model(tmp_path / "a" / "model")
    assert not loaded.training
    assert loaded.config == model.config
    assert torch.equal(loaded(TOKENS), model(TOKENS))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


def test_a_frozen_constant_is_saved_not_measured_again(tmp_path):
    model = make("bhyt", refresh="frozen", tokens=1)
    with torch.no_grad():
        for block in model.layers:
            block.attention.W_O.weight.mul_(30)
    save_model(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model")(TOKENS), model(TOKENS))


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    save_model(make("rmsnorm"), tmp_path / "model")
    save_model(make("bhyt"), tmp_path / "model")
    assert load_model(tmp_path / "model").config.norm.kind == "bhyt"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_is_not_a_model_is_left_alone(tmp_path):
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(ResidlabError, match=r"exists and holds diary.txt: it is left as it is"):
        save_model(make(), tmp_path)
    assert (tmp_path / "diary.txt").read_text() == "dear"
    save_model(make(), tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(ResidlabError, match=r"exists and holds notes.txt: it is left as it is"):
        save_model(make(), tmp_path / "model")
    assert load_model(tmp_path / "model").config == make().config


@pytest.fixture
def saved(tmp_path):
    save_model(make(), tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def nan_in_the_output(weights):
    weights["blocks.1.attention.W_O.weight"][3, 4] = float("nan")


DAMAGE = {
    "holds no model": lambda folder: (folder / "config.json").unlink(),
    "is not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "holds no residlab-transformer-1; for a Hugging Face model": lambda folder: change_config(folder, format="llama"),
    "names no floating-point dtype": lambda folder: change_config(folder, dtype="int64"),
    "model has no option tepmerature": lambda folder: change_config(folder, tepmerature=1.0),
    "missing or damaged": lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:-100]
    ),
    "they lack final_norm.gamma": lambda folder: change_weights(folder, lambda w: w.pop("final_norm.gamma")),
    "they have extra too many": lambda folder: change_weights(folder, lambda w: w.update(extra=torch.ones(1))),
    r"embedding.weight must have shape \(31, 16\); the weights have \(30, 16\)": lambda folder: change_config(
        folder, vocabulary=31
    ),
    "blocks.1.attention.W_O.weight holds values that are not finite": lambda folder: change_weights(
        folder, nan_in_the_output
    ),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_is_named(saved, said):
    DAMAGE[said](saved)
    with pytest.raises(ResidlabError, match=said):
        load_model(saved)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_absent_is_refused(saved):
    with pytest.raises(ResidlabError, match="device must be one of cpu on this machine; got cuda"):
        load_model(saved, device="cuda")
    with pytest.raises(ResidlabError, match="got tpu"):
        load_model(saved, device="tpu")


def test_a_model_keeps_its_own_copy_of_weights():
    one, other = make(), make()
    load_weights(other, one.state_dict())
    with torch.no_grad():
        other.embedding.weight.zero_()
    assert one.embedding.weight.abs().sum() > 0


def test_a_model_of_several_dtypes_is_not_saved(tmp_path):
    model = make().bfloat16()
    model.final_norm.float()
    with pytest.raises(ResidlabError, match=r"in one dtype; this one has bfloat16 \(.*\) and float32 \(final_norm"):
        save_model(model, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()
