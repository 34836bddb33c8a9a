"""Errors of rounding: both kinds against their definitions."""

from __future__ import annotations

import pytest
import torch

from residlab.inspection import folder as folders
from residlab.inspection import rounding
from residlab.models.hf import from_hugging_face
from residlab.models.rounded import Rounded


def ids(length: int = 24) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("parameters", "length", "tokens"),
    [(1000, 512, 128), (1000, 64, 64), (135_000_000, 512, 128), (10**9, 512, 20), (10**11, 512, 16), (10**11, 8, 8)],
)
def test_tokens(parameters, length, tokens):
    assert rounding.rounded_tokens(parameters, length) == tokens


def test_by_torch_is_the_difference_of_two_forwards(save, tmp_path):
    found = folders.read_folder(save(tmp_path / "model"))
    model = folders.load(found)
    with torch.no_grad():
        exact = model(ids(), output_hidden_states=True)
    result = rounding.by_torch(model, found, ids())
    with torch.no_grad():
        coarse = model(ids(), output_hidden_states=True)  # bfloat16 by now
    assert coarse.logits.dtype == torch.bfloat16
    for layer in range(3):
        x, y = (each.hidden_states[layer].double() for each in (exact, coarse))
        relative = (y - x).norm(dim=-1) / x.norm(dim=-1)
        assert result["rest"][layer] == pytest.approx(float(relative[:, 1:].mean()), rel=1e-6)
        assert result["first"][layer] == pytest.approx(float(relative[:, 0].mean()), rel=1e-6)
    agree = (exact.logits.argmax(-1) == coarse.logits.argmax(-1)).double().mean()
    assert result["agreement"] == pytest.approx(float(agree), rel=1e-7)
    # In front of the first block only the embedding is rounded: at most a unit roundoff.
    assert 0 < result["rest"][0] < 2**-8


def test_rotary_angles_keep_their_precision(save, tmp_path):
    found = folders.read_folder(save(tmp_path / "model"))
    model = folders.load(found)
    rounding.by_torch(model, found, ids())
    assert {buffer.dtype for name, buffer in model.named_buffers() if "inv_freq" in name} == {torch.float32}


def test_emulated_is_the_rounded_transformer(save, tmp_path):
    folder = save(tmp_path / "model")
    found, missing = rounding.emulated(folder, ids(), lambda what: None)
    assert not missing
    model = from_hugging_face(folder)
    with torch.no_grad():
        exact, coarse = (model(ids(), arithmetic=Rounded(name)) for name in ("fp64", "bf16 products"))
    divergence = torch.nn.functional.kl_div(
        coarse.log_softmax(-1), exact.log_softmax(-1), log_target=True, reduction="none"
    )
    assert found["bf16 products"]["divergence"] == pytest.approx(float(divergence.sum(-1).mean()), rel=1e-6)
    errors = [found[name]["rest"][-1] for name in ("bf16 products", "bf16 products, fp32 stream", "fp16 products")]
    assert errors[0] > errors[1] > errors[2] > 0


def test_what_is_not_emulated_is_said(save, tmp_path, monkeypatch):
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    folder = save(tmp_path / "scaled", rope_parameters=scaled)
    found, missing = rounding.emulated(folder, ids(), lambda what: None)
    assert not found
    assert "rope_type must be default" in missing["bf16 products"]
    monkeypatch.setattr(rounding.compiled, "available", lambda: False)
    _, missing = rounding.emulated(folder, ids(), lambda what: None)
    assert set(missing) == {"bf16 products", "fp16 products", "bf16 products, fp32 stream"}
    assert "C++ compiler" in missing["fp16 products"]


def test_the_model_is_given_up_before_the_next_is_made(save, tmp_path):
    import weakref

    found = folders.read_folder(save(tmp_path / "model"))
    holder = [folders.load(found)]
    model = weakref.ref(holder[0])
    alive: dict[str, bool] = {}
    rounding.growth(holder, found, ids(), lambda what: alive.update({what: model() is not None}))
    assert alive["bfloat16 by torch"]
    assert not alive["converting the weights"]
