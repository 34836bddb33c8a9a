"""Training from given weights, and looks at chosen steps: what a run without them is, it stays, hash included."""

import json
from dataclasses import replace

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.corpus import corpus_of
from residlab.training.optimizers import OptimizerConfig
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized
from residlab.training.trainer import Trainer

MODEL = ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=16, norm=norm_options("bhyt", refresh="frozen"))
CONFIG = TrainConfig(model=MODEL, steps=6, batch=4, evaluation_tokens=100, optimizer=OptimizerConfig(lr=0.01))
DOCUMENTS = [f"Document {n} says: {n} times {n} is {n * n}, and then some more words follow. " * 3 for n in range(40)]


@pytest.fixture
def texts(tmp_path):
    return tokenized(corpus_of("numbers", DOCUMENTS), ByteTokenizer(), cache=tmp_path / "cache")


def size(model, ids):
    return {"size": float(model.embedding.weight.square().sum()), "first": int(ids[0, 0])}


def looks(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["probes"]["size"] for line in lines if "probes" in line}


def test_hashes_of_recorded_runs_are_what_they_were():
    config = TrainConfig(
        model=ModelConfig(depth=12, width=128, heads=4, vocabulary=257, context=128, norm=norm_options("bhyt")),
        steps=600,
        batch=8,
        optimizer=OptimizerConfig(kind="adamw", lr=4e-3, weight_decay=0.1),
    )
    assert config.hash == "c3a3bc35b80cb85b"
    assert not {"start", "probe_at", "probes_last"} & config.to_dict().keys()
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_start_and_looks_are_of_the_run():
    config = replace(CONFIG, start="0123456789abcdef", probe_at=(0, 3, 6))
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert len({config.hash, CONFIG.hash, replace(config, start=None).hash, replace(config, probe_at=()).hash}) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": "0123"}, "start must be the sixteen hexadecimal digits"),
        ({"start": 5}, "start must be the sixteen"),
        ({"probe_at": (3, 0)}, "probe_at must be increasing whole numbers in .0, steps = 6"),
        ({"probe_at": (0, 0)}, "increasing"),
        ({"probe_at": (7,)}, "increasing"),
        ({"probe_at": (0.5,)}, "increasing"),
        ({"probe_at": 3}, "increasing"),
        ({"probes_last": "size"}, "probes_last must be a list of names"),
        ({"probes": ("size",), "probes_last": ("size",), "probe_every": 1}, "probes_last repeats size"),
    ],
)
def test_refuses_what_says_nothing(change, said):
    with pytest.raises(ResidlabError, match=said):
        replace(CONFIG, **change)


def test_begins_with_the_weights_given_and_not_with_the_seeds(tmp_path, texts):
    other = Transformer(MODEL, seed=7).state_dict()
    before = {name: tensor.clone() for name, tensor in other.items()}
    still = replace(CONFIG, steps=1, optimizer=OptimizerConfig(lr=0.0))
    result = Trainer(still, tmp_path / "still", texts, initial=other).run()
    for name, tensor in result.model.state_dict().items():  # the kept constant of BHyT included
        assert torch.equal(tensor, other[name])
    Trainer(CONFIG, tmp_path / "run", texts, initial=other).run()
    assert all(torch.equal(other[name], before[name]) for name in other)


def test_looks_at_the_steps_named_the_first_before_training(tmp_path, texts):
    initial = Transformer(MODEL, seed=7).state_dict()
    config = replace(CONFIG, probe_at=(0, 1, 4, 6), probe_every=4)
    plain = Trainer(CONFIG, tmp_path / "plain", texts, initial=initial).run()
    seen = Trainer(config, tmp_path / "seen", texts, probes={"size": size}, initial=initial).run()
    found = looks(tmp_path / "seen")
    assert list(found) == [0, 1, 4, 6]
    assert found[0]["size"] == float(initial["embedding.weight"].square().sum())
    assert found[0]["first"] == found[1]["first"]
    assert seen.losses == plain.losses


def test_some_look_once_at_the_end(tmp_path, texts):
    plain = Trainer(CONFIG, tmp_path / "plain", texts).run()
    config = replace(CONFIG, probes_last=("last",), probe_at=(0, 3, 6))
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    probes = {"size": size, "last": lambda model, ids: {"tokens": ids.numel()}}
    seen = Trainer(config, tmp_path / "seen", texts, probes=probes).run()
    lines = [json.loads(line) for line in (tmp_path / "seen" / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: set(line["probes"]) for line in lines if "probes" in line}
    assert found == {0: {"size"}, 3: {"size"}, 6: {"size", "last"}}
    assert seen.losses == plain.losses
    alone = Trainer(replace(CONFIG, probes_last=("last",)), tmp_path / "alone", texts, probes={"last": size})
    alone.run()
    lines = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "probes" in line] == [6]


def test_goes_on_from_its_own_checkpoint_and_looks_at_the_beginning_once(tmp_path, texts, monkeypatch):
    initial = Transformer(MODEL, seed=7).state_dict()
    config = replace(CONFIG, probe_at=(0, 6), checkpoint_every=2)
    whole = Trainer(config, tmp_path / "whole", texts, probes={"size": size}, initial=initial).run()
    for last in (0, 3):  # ended before the first checkpoint, then after it
        monkeypatch.setattr(Trainer, "_update", stops_after(last, Trainer._update))
        with pytest.raises(KeyboardInterrupt):
            Trainer(config, tmp_path / "cut", texts, probes={"size": size}, initial=initial).run()
        monkeypatch.undo()
    result = Trainer(config, tmp_path / "cut", texts, probes={"size": size}, initial=initial).run()
    assert result.losses == whole.losses
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name])
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def stops_after(steps, update):
    done = []

    def stopping(self, *arguments):
        if len(done) == steps:
            self.metrics.flush()
            raise KeyboardInterrupt
        done.append(None)
        return update(self, *arguments)

    return stopping
