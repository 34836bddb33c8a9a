"""Runs that start from another's weights: where they begin, how far they go, and what is said when they cannot."""

import json
import math

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.experiments.departure import movement, role, root_mean_squares
from residlab.experiments.training_run import run_hash, started, texts_of, train, trained
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer
from residlab.training.config import TrainConfig
from residlab.training.evaluation import evaluate
from residlab.training.optimizers import OptimizerConfig

MODEL = ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=16, norm=norm_options("bhyt"))


@pytest.fixture
def base(text):
    return TrainConfig(model=MODEL, corpus=str(text), steps=4, batch=2, evaluation_tokens=64)


@pytest.fixture
def other(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(f"{number} SHALL be {number}, quoth the {number}th. " * 4)
    return folder


def tuned(base, other, start, **changes):
    options = {"steps": 6, "probe_at": (0, 2, 6), "seed": 3, "optimizer": OptimizerConfig(lr=0.01), **changes}
    return TrainConfig(
        **{"model": base.model, "batch": 2, "evaluation_tokens": 64, "corpus": str(other), "start": start, **options}
    )


def test_every_parameter_has_a_role():
    for kind in ("rmsnorm", "peri-ln", "lns", "layernorm", "dyt", "bhyt"):
        model = Transformer(ModelConfig(depth=1, width=8, heads=2, vocabulary=9, context=8, norm=norm_options(kind)))
        roles = {name: role(name) for name, _ in model.named_parameters()}
        assert "other" not in roles.values()
        assert ("bound" in roles.values()) == (kind == "bhyt")
    assert role("blocks.3.attention.W_K.weight") == "query-key"
    assert role("blocks.3.attention_output_norm.gamma") == "gain"


def test_movement_is_relative_by_role_and_in_all():
    model = Transformer(MODEL, seed=0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert set(movement(model, start).values()) == {0.0}
    with torch.no_grad():
        for layer in (model.blocks[0].attention.W_Q, model.blocks[0].attention.W_K):
            layer.weight.mul_(1.5)
    found = movement(model, start)
    assert found["query-key"] == pytest.approx(0.5)
    assert found["embedding"] == found["bound"] == 0
    moved = sum(float(start[f"blocks.0.attention.W_{m}.weight"].double().square().sum()) / 4 for m in "QK")
    size = sum(float(start[name].double().square().sum()) for name, _ in model.named_parameters())
    assert found["all"] == pytest.approx(math.sqrt(moved / size))


def test_root_mean_squares_are_of_all_entries_of_a_role():
    model = Transformer(MODEL, seed=0)
    with torch.no_grad():
        model.blocks[0].attention_norm.gamma.fill_(3.0)
    found = root_mean_squares(model)
    assert found["gain"] == pytest.approx(math.sqrt((9 + 1 + 1) / 3))  # three sites of 16 gains
    entries = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    assert found["all"] == pytest.approx(float(entries.square().mean().sqrt()))


def test_begins_where_the_other_run_ended_and_sees_both_texts(tmp_path, base, other):
    cache = tmp_path / "cache"
    train("base", base, cache=cache)
    config = tuned(base, other, run_hash(base, cache=cache))
    record = train("tuned", config, cache=cache)
    looks = record.metrics["looks"]
    assert looks["step"] == [0, 2, 6]
    former, own = (texts_of(c, cache=cache).validation for c in (base, config))
    for model, place in ((trained(base, cache=cache), 0), (trained(config, cache=cache), 2)):
        for name, text in (("former", former), ("own", own)):
            want = evaluate(model, text, 16, most=64, batch=2).bits_per_byte
            assert looks["departure"]["bits_per_byte"][name][place] == pytest.approx(want, rel=1e-5)
    assert looks["departure"]["moved"]["all"][0] == 0
    assert looks["departure"]["moved"]["all"][1] > 0
    assert record.metrics["bits_per_byte"] == pytest.approx(looks["departure"]["bits_per_byte"]["own"][2], rel=1e-5)
    assert record.config["start"] == run_hash(base, cache=cache)
    json.dumps(record.metrics, allow_nan=False)
    assert train("tuned", config, cache=cache).metrics["looks"] == looks  # finished: read, not trained, again


def test_the_first_steps_of_a_run_are_a_shorter_run(tmp_path, base, other):
    cache = tmp_path / "cache"
    train("base", base, cache=cache)
    start = run_hash(base, cache=cache)
    schedule = {"kind": "constant", "warmup": 1}
    long, short = (
        train(
            "tuned",
            TrainConfig.from_dict(
                {
                    **tuned(base, other, start).to_dict(),
                    "steps": n,
                    "probe_at": [2],
                    "schedule": {**schedule, "steps": n},
                }
            ),
            cache=cache,
        )
        for n in (6, 2)
    )
    assert short.metrics["looks"] == long.metrics["looks"]


def test_says_where_the_start_is_missing_unfinished_or_another(tmp_path, base, other, text):
    cache = tmp_path / "cache"
    with pytest.raises(ResidlabError, match=r"0123456789abcdef is not in the cache .*residlab run"):
        train("tuned", tuned(base, other, "0123456789abcdef"), cache=cache)
    train("base", base, cache=cache)
    start = run_hash(base, cache=cache)
    wider = ModelConfig(depth=1, heads=2, vocabulary=257, context=16, width=24)
    with pytest.raises(ResidlabError, match=r"has another model: width 16, here 24; .*norm "):
        train("tuned", tuned(base, other, start, model=wider), cache=cache)
    state = cache / "runs" / start / "step-000004" / "state.json"
    values = json.loads(state.read_text())
    values["config"]["steps"] = 9
    state.write_text(json.dumps(values))
    with pytest.raises(ResidlabError, match="has come to step 4 of 9"):
        started(start, cache=cache)


def test_refuses_ids_of_another_tokenizer(tmp_path, base, other):
    pytest.importorskip("tokenizers")
    cache = tmp_path / "cache"
    learnt = TrainConfig.from_dict({**base.to_dict(), "tokenizer": "bpe-4096"})
    vocabulary = texts_of(learnt, cache=cache).tokenizer.vocabulary
    values = learnt.to_dict()
    values["model"]["vocabulary"] = vocabulary
    learnt = TrainConfig.from_dict(values)
    train("base", learnt, cache=cache)
    start = run_hash(learnt, cache=cache)
    with pytest.raises(ResidlabError, match="their ids are not the same"):
        train("tuned", tuned(learnt, other, start, tokenizer="bpe-4096"), cache=cache)
