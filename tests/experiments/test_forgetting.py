"""The plan of chapter 7, end to end at its smallest, and what is read from its records."""

import dataclasses
import itertools

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments import forgetting
from residlab.experiments.forgetting_results import (
    Tuned,
    chosen,
    differences,
    former_at,
    front,
    pace,
    settings,
    tuned_runs,
)
from residlab.experiments.plans import Found, run_experiment, stages_of
from residlab.experiments.record import Record, Records
from residlab.experiments.recorded import recorded, results_folder
from residlab.experiments.training_run import run_hash, train
from residlab.models.config import ModelConfig, norm_options
from residlab.training.config import TrainConfig


def start(text, kind="bhyt", seed=0):
    model = ModelConfig(depth=1, width=16, heads=2, vocabulary=257, context=16, norm=norm_options(kind))
    return TrainConfig(model=model, corpus=str(text), steps=2, batch=2, seed=seed, evaluation_tokens=64)


def record_of(config, name="0123456789abcdef"):
    return Record("bhyt-depth/main", name, config.to_dict(), config.seed, {}, {}, {}, None, "")


def test_every_main_model_is_the_start_of_three_runs(tmp_path, text):
    records = Records(tmp_path / "bhyt-depth-cpu.jsonl")
    for number, (kind, seed) in enumerate(itertools.product(("rmsnorm", "bhyt"), (0, 1))):
        records.add(record_of(start(text, kind, seed), f"{number:016x}"))
    (stage,) = stages_of("forgetting")
    configs = stage.configs("cpu", Found("forgetting", Records(tmp_path / "forgetting-cpu.jsonl")))
    assert [(c.start, c.model.norm.kind, c.seed, c.optimizer.lr) for c in configs] == [
        (f"{number:016x}", kind, seed, lr)
        for number, (kind, seed) in enumerate(itertools.product(("rmsnorm", "bhyt"), (0, 1)))
        for lr in forgetting.RATES
    ]
    (one, *_) = configs
    assert (one.corpus, one.steps, one.probe_at) == ("shakespeare", 200, (0, 25, 50, 100, 200))
    assert (one.schedule.kind, one.optimizer.weight_decay) == ("constant", 0)
    assert TrainConfig.from_dict(one.to_dict()) == one


@pytest.mark.parametrize("profile", forgetting.PROFILES)
def test_the_plan_in_every_profile(text, profile):
    config = forgetting.config(profile, record_of(start(text)), 1e-3)
    assert config.probe_at[0] == 0
    assert config.probe_at[-1] == config.steps
    assert config.schedule.factor(config.steps) == config.schedule.factor(config.schedule.warmup) == 1


def test_says_what_has_to_run_first(tmp_path):
    with pytest.raises(ResidlabError, match=r"no record of bhyt-depth/main, .*residlab run bhyt-depth --profile cpu"):
        next(run_experiment("forgetting", Records(tmp_path / "forgetting-cpu.jsonl"), profile="cpu"))
    with pytest.raises(ResidlabError, match="profile must be one of smoke, cpu, gpu; got 'tiny'"):
        forgetting.config("tiny", record_of(start(tmp_path)), 1e-3)


def test_from_the_base_to_its_fronts(tmp_path, text, monkeypatch):
    cache, other = tmp_path / "cache", tmp_path / "other"
    other.mkdir()
    for number in range(30):
        (other / f"{number:02}.txt").write_text(f"{number} SHALL be {number}, quoth the {number}th. " * 4)
    monkeypatch.setattr(forgetting, "CORPUS", str(other))
    monkeypatch.setattr(forgetting, "RATES", (1e-3, 1e-2))
    monkeypatch.setitem(forgetting.PROFILES, "smoke", forgetting.Size((0, 1, 3), 1, 64))
    base = Records(tmp_path / "bhyt-depth-smoke.jsonl")
    for kind, seed in itertools.product(("rmsnorm", "bhyt"), (0, 1)):
        base.add(train("bhyt-depth/main", start(text, kind, seed), cache=cache))
    records = Records(tmp_path / "forgetting-smoke.jsonl")
    options = {"profile": "smoke", "cache": cache, "say": lambda line: None}
    ((stage, done),) = run_experiment("forgetting", records, **options)
    assert (stage.name, len(done)) == ("main", 8)
    assert {record.config["start"] for record in done} == {
        run_hash(start(text, kind, seed), cache=cache) for kind in ("rmsnorm", "bhyt") for seed in (0, 1)
    }
    assert [found for _, found in run_experiment("forgetting", records, **options)] == [done]  # nothing runs again
    runs = tuned_runs(done)
    assert all(run.moved["all"][0] == run.forgotten[0] == run.learnt[0] == 0 for run in runs)
    assert len(settings(runs)) == 2 * 2 * 2
    best = chosen(runs)
    assert list(best) == ["rmsnorm", "bhyt"]
    assert set(differences({name: one.of("former") for name, one in best.items()})) == {"rmsnorm"}


# --- Reading


def run(norm="bhyt", seed=0, lr=1e-3, own=(5.0, 4.0, 3.0), former=(2.0, 2.5, 3.5), steps=(0, 10, 20)):
    moved = {"all": np.sqrt(np.array(steps) / 10)}
    return Tuned(norm, seed, lr, np.array(steps), np.array(own), np.array(former), moved, moved)


def test_a_front_is_what_nothing_beats():
    rng = np.random.default_rng(0)
    for _ in range(50):
        own, former = rng.integers(0, 6, size=(2, 12)).astype(float)
        found = front(own, former)
        beaten = [
            any(
                own[j] <= own[i] and former[j] <= former[i] and (own[j], former[j]) != (own[i], former[i])
                for j in range(12)
            )
            for i in range(12)
        ]
        assert {(own[i], former[i]) for i in found} == {(own[i], former[i]) for i in range(12) if not beaten[i]}
        assert np.all(np.diff(own[found]) > 0)
        assert np.all(np.diff(former[found]) < 0)
    assert front(np.array([1.0, np.nan, 2.0]), np.array([1.0, 0.0, np.inf])).tolist() == [0]


def test_the_setting_of_a_norm_is_the_lowest_mean_over_seeds_length_zero_excluded():
    runs = [
        run(seed=0, lr=1e-3, own=(0.0, 4.0, 3.0)),
        run(seed=1, lr=1e-3, own=(0.0, 4.0, 3.4)),
        run(seed=0, lr=1e-2, own=(0.0, 2.0, np.nan)),
        run(seed=1, lr=1e-2, own=(0.0, 4.2, 1.0)),
    ]
    best = chosen(runs)["bhyt"]
    assert (best.lr, best.steps) == (1e-2, 10)
    assert best.of("own").tolist() == [2.0, 4.2]
    assert best.before("former").tolist() == [2.0, 2.0]
    assert best.of("forgotten").tolist() == [0.5, 0.5]
    assert np.isnan(best.moved("bound")).all()


def test_runs_that_are_not_paired_are_refused():
    with pytest.raises(ResidlabError, match=r"bhyt at 0.01 has the seeds \[0\], the runs \[0, 1\]"):
        settings([run(seed=0), run(seed=1), run(lr=1e-2)])
    with pytest.raises(ResidlabError, match="looked at other steps"):
        settings([run(seed=0), run(seed=1, steps=(0, 5, 20))])
    with pytest.raises(ResidlabError, match="no looks at its departure"):
        tuned_runs([record_of(start("text"))])
    with pytest.raises(ResidlabError, match="norm must be one of rmsnorm; got 'bhyt'"):
        differences({"rmsnorm": np.zeros(3)})


def test_differences_are_paired():
    level = np.array([0.0, 1.0, 2.0])
    found = differences({"rmsnorm": level, "bhyt": level - 0.5, "lns": level + 0.25})
    assert found["rmsnorm"] == pytest.approx((-0.5, -0.5, -0.5))
    assert found["lns"] == pytest.approx((-0.75, -0.75, -0.75))


def test_what_is_forgotten_at_equal_learning():
    assert former_at(3.5, run()) == pytest.approx(3.0)
    assert former_at(4.0, run()) == pytest.approx(2.5)
    assert former_at(6.0, run()) == 2.0
    assert np.isnan(former_at(1.0, run()))


def test_pace_is_an_exponent():
    steps = (0, 25, 50, 100, 200)
    one = dataclasses.replace(
        run(own=(1.0,) * 5, former=(1.0,) * 5, steps=steps), moved={"all": 0.01 * np.array(steps) ** 0.7}
    )
    assert pace(one) == pytest.approx(0.7)


def test_records_of_the_checkout():
    assert (results_folder() / "README.md").is_file()
    assert recorded("no-such-experiment", "cpu") == []
