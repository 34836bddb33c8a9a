"""An inference beside float64: its metrics against numpy, its plan, and its records from the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from residlab.cli import main
from residlab.errors import ResidlabError
from residlab.experiments import recorded, rounding
from residlab.experiments.growth_results import artefacts
from residlab.experiments.plans import Found, run_experiment
from residlab.experiments.record import Records
from residlab.experiments.rounded_inference import RoundedInference, compared, inferred, subject
from residlab.experiments.training_run import run_hash, texts_of, train, trained
from residlab.models.rounded import Rounded
from residlab.training.config import TrainConfig

TOY = {"depth": 3, "width": 16, "heads": 2, "vocabulary": 32, "context": 12, "init_std": 0.3}


def run(roles="bf16", **values):
    return RoundedInference(roles, **{"source": "random", "model": TOY, "tokens": 10, **values})


def test_metrics_are_what_they_say():
    model, ids = subject(run(seed=4))
    exact, rough = (inferred(model, ids, Rounded(name)) for name in ("fp64", "e5m2"))
    metrics = compared(exact, rough, ids)
    x, y = exact.stream.numpy()[:, 0], rough.stream.numpy()[:, 0]
    assert x.shape == (4, 10, 16)
    np.testing.assert_array_equal(x[0], model.embedding.weight.detach().double().numpy()[ids[0]])
    error, size = np.sqrt(((y - x) ** 2).sum(-1)), np.sqrt((x**2).sum(-1))
    close = {"rtol": 1e-7}
    np.testing.assert_allclose(metrics["error"], error.mean(1), **close)
    np.testing.assert_allclose(metrics["size"], size.mean(1), **close)
    np.testing.assert_allclose(metrics["relative"], (error / size).mean(1), **close)
    np.testing.assert_allclose(metrics["first"], (error / size)[:, 0], **close)
    np.testing.assert_allclose(metrics["rest"], (error / size)[:, 1:].mean(1), **close)
    p, q = (
        np.exp(each) / np.exp(each).sum(-1, keepdims=True)
        for each in (exact.logits[0].numpy(), rough.logits[0].numpy())
    )
    nats, rough_nats = (-np.log(each[np.arange(9), ids[0, 1:].numpy()]).mean() for each in (p, q))
    assert metrics["nats"] == pytest.approx(nats, rel=1e-7)
    assert metrics["added"] == pytest.approx(rough_nats - nats, rel=1e-6)
    assert metrics["divergence"] == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-6)
    assert metrics["agreement"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert metrics["finite"]


def test_float64_beside_itself_is_no_error():
    metrics = run("fp64").perform("test").metrics
    assert set(metrics["error"]) == {0.0}
    assert metrics["added"] == metrics["divergence"] == 0
    assert metrics["agreement"] == 1


def test_the_factor_scales_what_writes_to_the_stream():
    model, ids = subject(run())
    scaled, same = subject(run(factor=4.0))
    assert ids.equal(same)
    for block, other in zip(model.layers, scaled.layers, strict=True):
        assert other.attention.W_O.weight.equal(4 * block.attention.W_O.weight)
        assert other.feedforward.W_down.weight.equal(4 * block.feedforward.W_down.weight)
        assert other.feedforward.W_up.weight.equal(block.feedforward.W_up.weight)


def test_overflow_is_null_and_said():
    model = {**TOY, "init_std": 60.0, "initialization": "gpt2"}
    metrics = run("fp16", model=model).perform("test").metrics
    assert not metrics["finite"]
    assert metrics["added"] is None
    assert None in metrics["relative"]
    json.dumps(metrics, allow_nan=False)


def test_seeds_and_texts():
    one, other = (run(seed=seed).perform("test").metrics for seed in (0, 1))
    assert one["nats"] != other["nats"]
    assert subject(run())[1].equal(subject(run())[1])
    assert not subject(run())[1].equal(subject(run(text=1))[1])
    stochastic = [run(mode="stochastic", seed=seed).perform("test").metrics["error"] for seed in (0, 0, 1)]
    assert stochastic[0] == stochastic[1] != stochastic[2]
    assert run(order="pairwise").hash != run().hash == run().hash


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"roles": "bf61"}, "roles are named"),
        ({"tokens": 1}, "tokens must be >= 2"),
        ({"tokens": 13}, "at most the model's context, 12; got 13"),
        ({"factor": 0.0}, "factor must be"),
        ({"text": -1}, "text must be"),
        ({"order": "sorted"}, "order must be one of"),
        ({"order": "blocked"}, "block must be"),
        ({"source": "smollm2"}, "only that takes them"),
        ({"model": None}, "needs the options"),
        ({"mode": "upwards"}, "upwards"),
    ],
)
def test_what_is_refused(values, said):
    with pytest.raises(ResidlabError, match=said):
        run(**values)


def test_a_run_that_is_nowhere_is_named(tmp_path):
    with pytest.raises(ResidlabError, match="0123456789abcdef is not in the cache"):
        RoundedInference("bf16", source="0123456789abcdef").perform("test", cache=tmp_path)


def test_the_plan_is_as_long_as_it_says_and_measures_nothing_twice_in_a_stage():
    for name, count in (
        ("roles", 29),
        ("orders", 6),
        ("texts", 6),
        ("scaling", 16),
        ("random", 36),
        ("random-scaling", 16),
        ("random-formats", 10),
    ):
        stage = next(stage for stage in rounding.STAGES if stage.name == name)
        runs = stage.configs("cpu", Found("rounding", Records.__new__(Records)))
        assert len({each.hash for each in runs}) == len(runs) == count
        assert f"{name} " in rounding.__doc__


def test_random_models_in_other_formats_are_no_second_run_of_bf16():
    stages = {stage.name: stage for stage in rounding.STAGES}
    nothing = Found("rounding", Records.__new__(Records))
    wanted = {each.hash for each in stages["random"].configs("cpu", nothing)}
    formats = stages["random-formats"].configs("cpu", nothing)
    assert wanted.isdisjoint(each.hash for each in formats)
    assert {replace(each, roles="bf16").hash for each in formats} < wanted


@pytest.fixture
def tiny(text):
    return TrainConfig.from_dict(
        {
            "model": {"depth": 2, "width": 16, "heads": 2, "vocabulary": 257, "context": 16},
            "corpus": str(text), "steps": 2, "batch": 2, "evaluation_tokens": 64,
        }
    )  # fmt: skip


def test_artefacts_are_those_that_are_recorded_beside(tmp_path, tiny, monkeypatch):
    records = Records(tmp_path / "rounding-smoke.jsonl")
    options = {"profile": "smoke", "stages": ("artefacts",), "cache": tmp_path, "say": lambda line: None}
    with pytest.raises(
        ResidlabError, match="no record of bhyt-depth/main, whose models are rounded: first residlab run"
    ):
        next(run_experiment("rounding", records, **options))
    free = replace(tiny, model=replace(tiny.model, residual=False))
    for experiment, stage, config in (
        ("bhyt-depth", "main", tiny),
        ("bhyt-depth", "norms", replace(tiny, seed=1)),
        ("residual-free", "main", free),
    ):
        record = train(f"{experiment}/{stage}", config, cache=tmp_path)
        Records(tmp_path / f"{experiment}-smoke.jsonl").add(record)
    diverged = replace(train("residual-free/main", replace(free, seed=2), cache=tmp_path), metrics={"diverged": True})
    Records(tmp_path / "residual-free-smoke.jsonl").add(diverged)
    ((_, done),) = run_experiment("rounding", records, **options)
    hashes = [run_hash(config, cache=tmp_path) for config in (tiny, free)]
    assert [each.config["source"] for each in done] == [name for name in hashes for _ in range(2)]
    assert [each.config["roles"] for each in done] == ["bf16", "bf16 products"] * 2
    assert {each.config["tokens"] for each in done} == {16}
    ((_, passed),) = run_experiment("rounding", records, **{**options, "stages": ("passing",)})
    assert [each.config["source"] for each in passed] == ["random", "random", *hashes]
    assert all(each.metrics["passed"][0] == 1 for each in passed)
    training = rounding.trained_runs(Found("rounding", records), "smoke")
    assert list(artefacts(Found("rounding", records), training)) == ["rmsnorm", "free adamw"]


def test_an_artefact_that_is_not_in_the_cache_is_trained_again(tmp_path, tiny, monkeypatch, capsys):
    made = train("bhyt-depth/main", tiny, cache=tmp_path)
    monkeypatch.setattr(recorded, "results_folder", lambda: tmp_path / "results")
    Records(tmp_path / "results" / "bhyt-depth-smoke.jsonl").add(made)
    records, said = Records(tmp_path / "results" / "rounding-smoke.jsonl"), []
    options = {"profile": "smoke", "stages": ("artefacts",), "cache": tmp_path / "empty", "say": said.append}
    command = "residlab run bhyt-depth --profile smoke --stage main --results FILE makes it again"
    with pytest.raises(ResidlabError, match=f"{made.hash} is not in the cache .*{command}"):
        RoundedInference("bf16", source=made.hash, tokens=8).perform("alone", cache=tmp_path / "empty")
    next(run_experiment("rounding", records, **options))
    assert [record.config["source"] for record in records] == [made.hash, made.hash]
    loss = made.metrics["bits_per_byte"]
    again = f"{made.hash} was not in the cache and is trained again: {loss:.4f} bits per byte, recorded {loss:.4f}"
    assert capsys.readouterr().err.count(again) == 1


def test_a_stage_is_recorded_once(tmp_path, capsys):
    records = Records(tmp_path / "runs.jsonl")
    said = []
    for _ in range(2):
        ((stage, found),) = run_experiment("rounding", records, profile="smoke", stages=("orders",), say=said.append)
    assert stage.name == "orders"
    assert len(list(records)) == len(found) == 6
    assert said[-1] == "residlab: 6 of 6 runs of rounding/orders are recorded already"
    assert RoundedInference(**found[0].config).hash == found[0].hash
    assert main(["run", "rounding", "--profile", "smoke", "--stage", "orders", "--results", str(records.file)]) == 0
    out = capsys.readouterr().out
    assert "random, 2 layers of width 16, seed 0  bf16  blocks of 32  text 0  error " in out


def test_a_trained_run_reads_what_it_held_out(tmp_path, tiny):
    record = train("test", tiny, cache=tmp_path)
    measured = RoundedInference("bf16", source=record.hash, tokens=12, text=1)
    found, ids = subject(measured, cache=tmp_path)
    assert ids[0].tolist() == texts_of(tiny, cache=tmp_path).validation.ids[12:24].tolist()
    assert found.embedding.weight.equal(trained(tiny, cache=tmp_path).embedding.weight)
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(found.double()(ids)[0, :-1], ids[0, 1:]))
    assert measured.perform("test", cache=tmp_path).metrics["nats"] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ResidlabError, match="no sequence number 100000 of 12 tokens"):
        RoundedInference("bf16", source=record.hash, tokens=12, text=100_000).perform("test", cache=tmp_path)
