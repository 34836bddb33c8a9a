"""Checkpoints: the same bits back, never half of one, and clear words about damage."""

import json
import shutil

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.training import checkpoint as files
from residlab.training.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)

CONFIG = {"steps": 5, "model": {"depth": 2, "betas": (0.9, 0.95)}}


def make(step, config=CONFIG):
    optimizer = {"state": {0: {"step": torch.tensor(3.0), "m": torch.randn(2, 3)}}, "param_groups": [{"lr": 0.1}]}
    model = {"a": torch.randn(4), "tied": torch.arange(3.0).bfloat16()}
    return Checkpoint(step, config, model, optimizer, random_state(), {"losses": [1.5, 0.1 + 0.2], "skipped": 0})


def test_the_same_comes_back(tmp_path):
    saved = make(7)
    path = save_checkpoint(tmp_path, saved)
    loaded = load_checkpoint(path, CONFIG)
    assert (loaded.step, loaded.progress) == (7, saved.progress)
    assert all(torch.equal(loaded.model[name], saved.model[name]) for name in saved.model)
    assert loaded.model["tied"].dtype == torch.bfloat16
    assert torch.equal(loaded.optimizer["state"][0]["m"], saved.optimizer["state"][0]["m"])
    assert loaded.optimizer["param_groups"] == saved.optimizer["param_groups"]
    expected = torch.rand(5)
    set_random_state(loaded.random)
    assert torch.equal(torch.rand(5), expected)


def test_the_newest_counts_and_two_are_kept(tmp_path):
    assert latest_checkpoint(tmp_path / "none", CONFIG) is None
    for step in (5, 20, 1000):
        save_checkpoint(tmp_path, make(step))
    assert latest_checkpoint(tmp_path, CONFIG).step == 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000020", "step-001000"]


@pytest.mark.parametrize("when", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_full_disk_leaves_the_earlier_ones(tmp_path, monkeypatch, when):
    save_checkpoint(tmp_path, make(1))
    write = files._write

    def full(file, content):
        if file.name == when:
            raise OSError(28, "No space left on device")
        return write(file, content)

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(ResidlabError, match="No space left on device; earlier ones are intact"):
        save_checkpoint(tmp_path, make(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert latest_checkpoint(tmp_path, CONFIG).step == 1


def test_what_a_crash_left_is_not_seen_and_goes(tmp_path):
    left = tmp_path / ".step-000002.part"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert latest_checkpoint(tmp_path, CONFIG) is None
    save_checkpoint(tmp_path, make(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "is damaged"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "is damaged: model.safetensors; remove it"),
        (lambda path: flip(path / "optimizer.safetensors"), "is damaged: optimizer.safetensors"),
        (lambda path: (path / "state.json").write_text("{"), "is damaged"),
        (lambda path: (path / "state.json").write_text("[]"), "is no residlab-checkpoint-1"),
    ],
)
def test_damage_is_named(tmp_path, damage, said):
    damage(save_checkpoint(tmp_path, make(1)))
    with pytest.raises(ResidlabError, match=said):
        latest_checkpoint(tmp_path, CONFIG)


def test_an_earlier_one_serves_when_the_damaged_is_removed(tmp_path):
    save_checkpoint(tmp_path, make(1))
    second = save_checkpoint(tmp_path, make(2))
    shutil.rmtree(second)
    assert latest_checkpoint(tmp_path, CONFIG).step == 1


def test_another_configuration_is_refused_by_what_differs(tmp_path):
    save_checkpoint(tmp_path, make(1))
    other = {"steps": 6, "model": {"depth": 3, "betas": (0.9, 0.95)}}
    with pytest.raises(ResidlabError, match=r"these differ: model.depth \(2, now 3\), steps \(5, now 6\)"):
        latest_checkpoint(tmp_path, other)


def test_no_pickle_inside(tmp_path):
    path = save_checkpoint(tmp_path, make(1))
    assert sorted(file.name for file in path.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    json.loads((path / "state.json").read_text())


@pytest.mark.parametrize("name", ["step", "config", "progress", "optimizer", "sha256"])
def test_a_state_that_lacks_something_is_damaged(tmp_path, name):
    file = save_checkpoint(tmp_path, make(1)) / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in state.items() if key != name}))
    with pytest.raises(ResidlabError, match=f"is damaged: state.json has no valid {name}; remove it"):
        latest_checkpoint(tmp_path, CONFIG)
    file.write_text(json.dumps({**state, name: [1]}))
    with pytest.raises(ResidlabError, match=r"is damaged: state\.json"):
        latest_checkpoint(tmp_path, CONFIG)
