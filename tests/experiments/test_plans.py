"""Named experiments: their plans, stages that build on earlier ones, and the command."""

import json

import pytest

from residlab.cli import main
from residlab.errors import ResidlabError
from residlab.experiments import bhyt_depth, plans
from residlab.experiments.norm_results import star
from residlab.experiments.plans import EXPERIMENTS, Found, results_file, run_experiment, stages_of
from residlab.experiments.rates import best_rate, wanted_rates
from residlab.experiments.record import Record, Records
from residlab.training.config import TrainConfig


def record(experiment, config, bits):
    return Record(experiment, config.hash, config.to_dict(), config.seed, {"bits_per_byte": bits})


def tuned(tmp_path, score):
    """Return records of ``tuning`` in which ``score(kind, lr)`` came out, as many as it asked for."""
    records = Records(tmp_path / "runs.jsonl")
    found = Found("bhyt-depth", records)
    stage = stages_of("bhyt-depth")[0]
    for _ in range(20):
        waiting = [c for c in stage.configs("cpu", found) if not records.find("bhyt-depth/tuning", c.hash)]
        if not waiting:
            return found
        for config in waiting:
            records.add(record("bhyt-depth/tuning", config, score(config.model.norm.kind, config.optimizer.lr)))
    raise AssertionError("tuning asks for ever more")


def test_the_grid_goes_on_until_the_best_rate_is_inside(tmp_path):
    optimum = {"rmsnorm": 4e-3, "lns": 32e-3, "peri-ln": 0.5e-3, "bhyt": 8e-3}
    found = tuned(tmp_path, lambda kind, lr: abs(lr / optimum[kind] - 1))
    assert bhyt_depth.best_rates(found) == optimum
    rates = {kind: set() for kind in optimum}
    for run in found.stage("tuning"):
        rates[run.config["model"]["norm"]["kind"]].add(run.config["optimizer"]["lr"])
    common = {2e-3, 4e-3, 8e-3}
    assert rates == {
        "rmsnorm": common,
        "lns": common | {16e-3, 32e-3, 64e-3},
        "peri-ln": common | {1e-3, 0.5e-3, 0.25e-3},
        "bhyt": common | {16e-3},
    }


def test_a_diverged_run_is_the_worst_and_the_grid_has_limits(tmp_path):
    found = tuned(tmp_path, lambda kind, lr: None if kind == "bhyt" and lr > 1e-3 else lr)
    assert set(bhyt_depth.best_rates(found).values()) == {1.25e-4}


def test_noise_chooses_no_rate():
    scores = {0.03: 4.5188, 0.06: 4.5177, 0.12: 4.6}
    assert best_rate(scores) == 0.06
    assert best_rate(scores, equal=0.002) == 0.03
    assert wanted_rates(list(scores), scores, (0.001, 1.0)) == [0.03, 0.06, 0.12]
    assert wanted_rates(list(scores), scores, (0.001, 1.0), equal=0.002) == [0.015, 0.03, 0.06, 0.12]
    assert wanted_rates(list(scores), scores, (0.02, 1.0), equal=0.002) == [0.03, 0.06, 0.12]


def test_bhyt_star_is_tuned_from_where_it_has_been(tmp_path):
    found = tuned(tmp_path, lambda kind, lr: lr)
    stages = {stage.name: stage for stage in stages_of("bhyt-depth")}
    norm = bhyt_depth.NORMS["bhyt*"]
    loss = {16e-3: 3.05, 8e-3: 2.99, 32e-3: 3.2, 4e-3: 3.1}
    for stage, rates in (("exact", [16e-3]), ("norms", [8e-3, 32e-3])):
        for lr in rates:
            made = bhyt_depth.config("cpu", norm, lr, 0)
            found.records.add(record(f"bhyt-depth/{stage}", made, loss[lr]))
    found.records.add(record("bhyt-depth/exact", bhyt_depth.config("cpu", norm, 4e-3, 1), 1.0))  # not the first seed
    asked = stages["star"].configs("cpu", found)
    while missing := [c for c in asked if not found.records.find("bhyt-depth/star", c.hash)]:
        for one in missing:
            found.records.add(record("bhyt-depth/star", one, loss[one.optimizer.lr]))
        asked = stages["star"].configs("cpu", found)
    # 8e-3 was the lowest of three rates and at their edge: the grid goes on to 4e-3, and comes back.
    assert sorted({(c.optimizer.lr, c.seed) for c in asked}) == [(4e-3, 0), (8e-3, 0), (8e-3, 1), (8e-3, 2)]
    assert [(one.config["optimizer"]["lr"], one.seed) for one in star(found)] == [(8e-3, 0), (8e-3, 1), (8e-3, 2)]


def test_main_waits_for_tuning(tmp_path):
    empty = Found("bhyt-depth", Records(tmp_path / "none.jsonl"))
    with pytest.raises(ResidlabError, match="no record of tuning rmsnorm: run the stage tuning first"):
        stages_of("bhyt-depth")[1].configs("cpu", empty)


def test_every_stage_is_as_the_plan_says(tmp_path):
    found = tuned(tmp_path, lambda kind, lr: lr)
    stages = {stage.name: stage for stage in stages_of("bhyt-depth")}
    with pytest.raises(ResidlabError, match="run the stage gpt2-tuning first"):
        stages["gpt2"].configs("cpu", found)
    for config in stages["gpt2-tuning"].configs("cpu", found):
        found.records.add(record("bhyt-depth/gpt2-tuning", config, abs(config.optimizer.lr - 4e-3)))
    runs = {stage.name: stage.configs("cpu", found) for stage in stages.values()}
    counts = {name: len({config.hash for config in configs}) for name, configs in runs.items()}
    counts.pop("tuning")
    assert counts == {
        "main": 12,
        "exact": 3,
        "star": 1,
        "control": 3,
        "equal": 2,
        "depth": 16,
        "norms": 8,
        "refresh": 5,
        "stability": 35,
        "data": 8,
        "spike": 2,
        "bounds": 4,
        "small": 18,
        "gpt2-tuning": 3,
        "gpt2": 3,
    }
    gpt2, rmsnorm = runs["gpt2"][0].to_dict(), runs["main"][0].to_dict()
    other = {name for name in rmsnorm["model"] if gpt2["model"][name] != rmsnorm["model"][name]}
    assert other == {"norm", "feedforward", "feedforward_width", "position", "bias"}
    assert gpt2 == {
        **rmsnorm,
        "model": gpt2["model"],
        "optimizer": {**rmsnorm["optimizer"], "lr": 4e-3, "rest_lr": 4e-3},
    }
    assert {config.seed for config in runs["tuning"]}.isdisjoint(config.seed for config in runs["main"])
    # What is compared differs in nothing but what it is compared by.
    for config in runs["main"]:
        plain = {**config.to_dict(), "seed": 0, "optimizer": None, "model": {**config.model.to_dict(), "norm": None}}
        first = runs["main"][0]
        assert plain == {**first.to_dict(), "optimizer": None, "model": {**first.model.to_dict(), "norm": None}}
    assert {config.model.depth for config in runs["depth"]} == {6, 12, 24, 48}


@pytest.mark.parametrize("profile", list(bhyt_depth.PROFILES))
def test_every_profile_makes_valid_runs(profile, tmp_path):
    for kind, norm in bhyt_depth.NORMS.items():
        made = bhyt_depth.config(profile, norm, 1e-3, 0)
        assert isinstance(made, TrainConfig)
        assert made.model.norm.kind == kind
    with pytest.raises(ResidlabError, match="profile must be one of smoke, cpu, gpu, gpu-short; got 'tpu'"):
        bhyt_depth.config("tpu", norm, 1e-3, 0)


def test_unknown_names(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    with pytest.raises(ResidlabError, match=r"experiment must be one of .*; got 'bhyt'"):
        stages_of("bhyt")
    with pytest.raises(ResidlabError, match="has no stage tunning; it has tuning, main"):
        next(run_experiment("bhyt-depth", records, profile="smoke", stages=("tunning",)))


@pytest.mark.parametrize("experiment", [name for name in EXPERIMENTS if name != "bhyt-depth"])
def test_a_profile_of_another_experiment_is_one_sentence(experiment, tmp_path, capsys):
    code = main(["run", experiment, "--profile", "gpu-short", "--results", str(tmp_path / "r.jsonl")])
    assert code != 0
    sizes = ", ".join(plans.profiles_of(experiment))
    assert f"{experiment} has the profiles {sizes}; got 'gpu-short'" in capsys.readouterr().err


def test_all_experiments_have_stages_with_names_of_their_own():
    for experiment in EXPERIMENTS:
        names = [stage.name for stage in stages_of(experiment)]
        assert len(names) == len(set(names))
        assert all(stage.purpose for stage in stages_of(experiment))


@pytest.fixture
def tiny(monkeypatch, text):
    """Make the experiment small: one norm, the test's text, runs of a second."""
    monkeypatch.setattr(bhyt_depth, "MAIN", ("rmsnorm", "bhyt"))
    size = bhyt_depth.Size(
        depth=1, width=16, heads=2, context=16, batch=2, steps=4, short=2, init_std=0.1, evaluation_tokens=64
    )
    monkeypatch.setitem(bhyt_depth.PROFILES, "smoke", size)
    whole = bhyt_depth.config
    monkeypatch.setattr(bhyt_depth, "config", lambda *a, **k: whole(*a, corpus=str(text), **k))


def test_the_command_runs_what_is_missing_and_nothing_twice(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bhyt_depth, "RATE_LIMITS", (1e-3, 8e-3))
    file = tmp_path / "out.jsonl"
    options = ["--profile", "smoke", "--results", str(file), "--cache-dir", str(tmp_path / "cache")]
    assert main(["run", "bhyt-depth", "--stage", "tuning", "--stage", "main", *options]) == 0
    said = capsys.readouterr()
    assert said.out.count("tuning ") >= 6
    assert said.out.count("main ") == 6
    lines = file.read_text().splitlines()
    assert len(lines) == said.out.count("tuning ") + 6
    assert main(["run", "bhyt-depth", "--stage", "main", *options]) == 0
    assert file.read_text().splitlines() == lines
    capsys.readouterr()
    assert main(["run", "bhyt-depth", "--list", *options]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"{file}\n")
    assert "main         6 recorded" in listed
    nowhere = str(tmp_path / "none.jsonl")
    assert main(["run", "bhyt-depth", "--list", *options[:3], nowhere]) == 0
    assert capsys.readouterr().out.startswith(f"{nowhere}, which is not there yet\n")
    file.write_bytes(b"\xff\xfe no records")
    assert main(["run", "bhyt-depth", "--list", *options]) == 1
    assert f"{file} is no file of records" in capsys.readouterr().err
    looks = next(json.loads(line) for line in lines if "/main" in line and '"bhyt"' in line)["metrics"]["looks"]
    assert looks["step"] == [1, 2, 3, 4]
    profile = looks["stream"]["final_norm"]["all"]["mean_abs"]
    assert len(profile) == 4
    assert all(value > 0 for value in profile)
    assert len(looks["approximation"]["1"]["8-15"]["log_ratio"]) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bhyt-depth", "--jobs", "0"], "--jobs must be >= 1; got 0"),
        (["bhyt-depth", "--jobs", "2", "--scheduler", "tcp://a:1"], "give one of them"),
        (["bhyt-depth", "--sample", "5"], "--sample is for a file that describes one run"),
        (["bhyt-depth", "--stage", "none", "--results", "x.jsonl"], "has no stage none"),
        (["bhyt-depth", "--stage", "none", "--list"], "has no stage none"),
        (
            ["forgetting", "--profile", "gpu-short", "--list"],
            "forgetting has the profiles smoke, cpu, gpu; got 'gpu-short'",
        ),
        (["nothing.yml", "--profile", "cpu"], "--profile belongs to the experiments"),
        (["bhyt-depth", "--results", "no/such/x.jsonl"], "there is no folder no"),
    ],
)
def test_slips(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_where_records_go(tmp_path):
    assert results_file("bhyt-depth", "gpu", tmp_path) == tmp_path / "results" / "bhyt-depth-gpu.jsonl"
    assert plans.Found("none", Records(tmp_path / "none")).stage("main") == []
