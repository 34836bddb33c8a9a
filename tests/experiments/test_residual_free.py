"""The experiment residual-free: its plan, its runs at their smallest, and what its records say."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments import probes, residual_free
from residlab.experiments import residual_free_results as rf
from residlab.experiments.plans import Found, run_experiment, stages_of
from residlab.experiments.record import Record, Records
from residlab.experiments.residual_free import ARMS, OPTIMIZERS, TUNED
from residlab.models.transformer import Transformer

NOWHERE = {"versions": {}, "hardware": {}, "commit": None, "time": ""}  # asking git for each takes its time
STAGES = {stage.name: stage for stage in stages_of("residual-free")}


def tuned(tmp_path, score):
    """Return records of both tunings in which ``score(arm, kind, lr)`` came out, as many as they asked for."""
    records = Records(tmp_path / "runs.jsonl")
    found = Found("residual-free", records)
    known, lines = set[str](), list[str]()
    for stage in ("gated-tuning", "tuning"):
        for _ in range(20):
            waiting = [c for c in STAGES[stage].configs("cpu", found) if c.hash not in known]
            if not waiting:
                break
            known |= {c.hash for c in waiting}
            for c in waiting:
                record = Record(
                    f"residual-free/{stage}", c.hash, c.to_dict(), c.seed, {"bits_per_byte": None}, **NOWHERE
                )
                bits = score(residual_free.arm_of(record), c.optimizer.kind, c.optimizer.lr)
                record.metrics["bits_per_byte"] = bits
                lines.append(json.dumps(asdict(record)))
            records.file.write_text("".join(f"{line}\n" for line in lines))
        else:
            raise AssertionError("tuning asks for ever more")
    return found


def middle(arm, kind):
    return residual_free.FIRST_RATES.get((arm, kind), residual_free.GATED_FIRST_RATES[kind])[1]


def test_each_optimizer_and_arm_has_a_grid_that_goes_on_by_itself(tmp_path):
    optimum = {each: middle(*each) for each in TUNED}
    optimum["free", "muon"] = 2.5e-3
    optimum["residual", "muon"] = 16e-2
    found = tuned(tmp_path, lambda arm, kind, lr: abs(math.log(lr / optimum.get((arm, kind), middle(arm, kind)))))
    assert {each: residual_free.own_rate(found, *each) for each in TUNED} == optimum
    assert sorted(residual_free.tuned(found, "free", "muon")) == [1.25e-3, 2.5e-3, 5e-3, 1e-2, 2e-2]
    assert len(found.stage("tuning")) == 3 * len(TUNED) + 2 + 2
    gated = [residual_free.own_rate(found, *each, "gated-tuning") for each in residual_free.GATED_TUNED]
    assert gated.count(16e-2) == 1


def test_noise_chooses_no_rate(tmp_path):
    found = tuned(tmp_path, lambda arm, kind, lr: 4.5 if lr < 1 else None)
    assert all(residual_free.own_rate(found, *each) == residual_free.FIRST_RATES[each][0] / 16 for each in TUNED)


def test_a_grid_has_limits_and_a_diverged_run_is_the_worst(tmp_path):
    found = tuned(tmp_path, lambda arm, kind, lr: None if arm == "free" else lr)
    assert residual_free.own_rate(found, "residual", "muon") == 2e-2 / 16
    assert residual_free.best_optimizer(found, residual=True) == ("plain", "adamw")
    for stage in ("tuning", "gated-tuning"):
        with pytest.raises(ResidlabError, match=f"no record of {stage} muon, free: run the stage {stage} first"):
            residual_free.own_rate(Found("residual-free", Records(tmp_path / "none")), "free", "muon", stage)


def test_every_stage_is_as_the_plan_says(tmp_path):
    found = tuned(tmp_path, lambda arm, kind, lr: abs(math.log(lr / middle(arm, kind))))
    runs = {name: stage.configs("cpu", found) for name, stage in STAGES.items()}
    counts = {name: len({config.hash for config in configs}) for name, configs in runs.items()}
    counts.pop("gated-tuning")
    assert counts == {"gated": 10, "tuning": 27, "optimizers": 18, "recipe": 40, "main": 18, "width": 8}
    tunings = {c.seed for c in (*runs["tuning"], *runs["gated-tuning"])}
    assert tunings.isdisjoint(c.seed for name in counts if name != "tuning" for c in runs[name])
    gates = {name: {c.model.feedforward for c in configs} for name, configs in runs.items()}
    assert {name for name, kinds in gates.items() if "swiglu" in kinds} == {"gated-tuning", "gated", "optimizers"}
    assert gates["optimizers"] == {"swiglu", "gelu"}
    # As many parameters with a gate as without.
    sizes = [
        sum(p.numel() for p in Transformer(runs[name][0].model, seed=0).parameters()) for name in ("gated", "main")
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    # Optimizers of one arm and seed differ in nothing but the optimizer of matrices.
    for arm in ("residual", "free"):
        plain = [{**c.to_dict(), "optimizer": c.optimizer.rest_lr} for c in runs["optimizers"]]
        mine = [p for p in plain if p["model"]["residual"] is (arm == "residual") and p["seed"] == 0]
        assert len(mine) == 6
        assert all(p == mine[0] for p in mine)
    variants = residual_free.variants("cpu", found)
    assert len(variants) == 40
    assert sorted({config.model.depth for config in variants.values()}) == [6, 12, 24]
    published = [config.model for name, config in variants.items() if rf.is_published(name)]
    assert all(m.initialization == "orthogonal" and m.logit_scale == 1 and not m.residual for m in published)
    # One factor at a time: a variant at the recipe's depth without another's name differs from it in one option.
    center = variants["recipe"].to_dict()
    for name in ("initial GPT-2", "initial W_K apart", "beta 1", "beta 1.05", "beta 1.1", "scale 1", "scale 4"):
        model = variants[name].to_dict()["model"]
        assert sum(model[key] != center["model"][key] for key in model) == 1, name
    assert [c.model.width for c in runs["width"]] == 2 * [64, 128, 192, 256]
    assert {c.model.head_dim for c in runs["width"]} == {32}


def test_the_arms_start_as_they_say():
    for arm, options in ARMS.items():
        config = residual_free.config("smoke", options, "muon", 1e-2, 0)
        model = Transformer(config.model, seed=0)
        attention = model.layers[0].attention
        W = attention.W_O.weight.detach().double().numpy()
        square = W @ W.T
        assert bool(np.abs(square - np.eye(32)).max() < 1e-5) is (arm != "plain")
        assert bool((attention.W_Q.weight == attention.W_K.weight).all()) is (arm == "free")
    with pytest.raises(ResidlabError, match="profile must be one of smoke, cpu, gpu; got 'tpu'"):
        residual_free.config("tpu", options, "muon", 1e-2, 0)


# --- Really run, at its smallest


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text"
    text.mkdir()
    for number in range(30):
        (text / f"{number:02}.txt").write_text(f"Document {number} says that {number} follows {number - 1}. " * 3)
    size = residual_free.Size(
        depth=2, width=16, heads=2, context=16, batch=2, steps=8, init_std=0.1, evaluation_tokens=64
    )
    whole = residual_free.config
    tuned(folder, lambda arm, kind, lr: abs(math.log(lr / middle(arm, kind))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(residual_free.PROFILES, "smoke", size)
        patch.setattr(residual_free, "MAIN", (("plain", "adamw"), ("free", "soap"), ("free", "kl-shampoo")))
        patch.setattr(residual_free, "config", lambda *a, **k: whole(*a, corpus=str(text), **k))
        patch.setitem(probes.PROBES, "quantization", lambda model, ids: {"W8A8": {"loss": 1.0}})
        records = Records(folder / "runs.jsonl")
        quiet = {"cache": folder / "cache", "say": lambda line: None}
        stages = ("optimizers", "main")
        done = run_experiment("residual-free", records, profile="smoke", stages=stages, **quiet)
        assert [stage.name for stage, _ in done] == list(stages)
    return Found("residual-free", records)


def test_runs_are_recorded_with_what_chapters_need(found):
    for record in found.stage("main"):
        looks = record.metrics["looks"]
        assert looks["step"][0] == 0
        assert looks["step"][-1] == record.config["steps"]
        assert looks["quantization"] == {"W8A8": {"loss": [1.0]}}
        for probe in ("stream", "weights", "attention", "gradients"):
            assert looks[probe]
    shapes = rf.matrices(found.stage("main")[0], "spread")
    assert len(shapes) == 2 * 6
    assert all(len(values) == len(found.stage("main")[0].metrics["looks"]["step"]) for values in shapes.values())
    assert set(rf.optimizer_runs(found)) == {0, 1}
    assert set(rf.optimizer_runs(found, "free")) == {0}
    orthogonal = rf.median_shape(rf.optimizer_runs(found)[0]["muon"], "spread")[0]
    assert orthogonal == pytest.approx(1, abs=1e-4)
    with pytest.raises(ResidlabError, match="did not look at its weights"):
        rf.matrices(found.stage("tuning")[0], "spread")
    with pytest.raises(ResidlabError, match="quantity must be one of spread"):
        rf.matrices(found.stage("main")[0], "rank")


def test_what_decides_b3(found):
    decided = rf.isometry(found)
    assert 0 <= decided.spread_wins <= 1
    assert (16 * decided.defect_wins).is_integer()
    assert len(decided.spread_ratios) == len(decided.levels) == 2
    runs = rf.optimizer_runs(found)[1]
    assert decided.levels[1] == max(min(rf.losses_at_looks(record)) for record in runs.values())
    spread = rf.at_equal_loss(runs, "spread")
    expected = np.sqrt(spread["adamw"] * spread["signgd"])
    expected /= np.prod([spread[kind] for kind in OPTIMIZERS if kind not in ("adamw", "signgd")]) ** 0.25
    assert decided.spread_ratios[1] == pytest.approx(expected)


def test_what_decides_b4(tmp_path):
    found = tuned(tmp_path, lambda arm, kind, lr: abs(math.log(lr / middle(arm, kind))))
    records = Records(tmp_path / "runs.jsonl")
    for number, config in enumerate(STAGES["recipe"].configs("cpu", found)):
        metrics = {"nats_per_token": 2.0 + (number * 7 % 40) / 100}
        records.add(Record("residual-free/recipe", config.hash, config.to_dict(), 0, metrics, **NOWHERE))
    named = rf.recipe_runs(found, "cpu")
    assert list(named) == list(residual_free.variants("cpu", found))
    longer = named["published, 4 times as long"]
    assert longer.config["steps"] == 800
    longer.metrics["nats_per_token"] = 0.5  # it is not compared with runs of 200 steps
    for published in (True, False):
        for factor, depth in ((1, 12), (2, 24)):
            answer = rf.trainability(named, "cpu", factor, 3.0, published=published)
            alike = [
                run
                for name, run in named.items()
                if run.config["model"]["depth"] == depth
                and not run.config["model"]["residual"]
                and name.startswith("published") is published
                and run is not longer
            ]
            assert len(alike) == {(True, 12): 8, (True, 24): 5, (False, 12): 11, (False, 24): 6}[published, depth]
            assert answer.loss == min(run.metrics["nats_per_token"] for run in alike)
            assert named[answer.best].metrics["nats_per_token"] == answer.loss
            assert answer.gain == pytest.approx(3.0 - answer.loss)
            residual = named[f"residual, AdamW, {depth} layers"].metrics["nats_per_token"]
            assert answer.gap == pytest.approx(answer.loss - residual)
    groups = [rf.group(name) for name in named]
    assert {group: groups.count(group) for group in groups} == {
        "with our start": 17,
        "with another start": 2,
        "as published": 15,
        "with residual connections": 6,
    }
    assert rf.trainability(named, "gpu", 2, 3.0, published=True) is None


def test_recorded_similarities_are_those_of_the_usual_run_and_its_settings(tmp_path):
    found = tuned(tmp_path, lambda arm, kind, lr: abs(math.log(lr / middle(arm, kind))))
    records = Records(tmp_path / "runs.jsonl")
    for number, config in enumerate(STAGES["recipe"].configs("cpu", found)):
        layers = {f"blocks.{i}": {"token_similarity": [number, 50.0, 100 + i]} for i in range(config.model.depth)}
        metrics = {"looks": {"step": [0, 100, 200], "attention": layers}}
        records.add(Record("residual-free/recipe", config.hash, config.to_dict(), 0, metrics, **NOWHERE))
    named = rf.recipe_runs(found, "cpu")
    made = rf.recorded_similarity(named)
    settings = [tuple(round(float(value), 3) for value in row) for row in made["settings"]]
    assert len(settings) == len(set(settings))
    for name, setting in {
        "recipe": (1, 2, 1.03, 12),
        "scale 4, 24 layers": (1, 4, 1.03, 24),
        "initial W_K apart": (0, 2, 1.03, 12),
        "published, beta 1.1": (0, 1, 1.1, 12),
    }.items():
        row, depth = settings.index(setting), setting[3]
        assert made["similarity"][row, 0, 0] == list(named).index(name)
        np.testing.assert_array_equal(made["similarity"][row, 1, :depth], 100 + np.arange(depth))
        assert np.isnan(made["similarity"][row, :, depth:]).all()
    numbers = set(made["similarity"][:, 0, 0])
    for name in ("half as many heads", "published, half the rate", "published, 4 times as long", "initial GPT-2"):
        assert list(named).index(name) not in numbers
    assert rf.recorded_similarity({}) is None


def test_trains_means_more_than_frequencies_and_alike_means_near():
    assert rf.Trainability("a", 2.8, 0.3, 0.3).trains_alike
    assert rf.Trainability("a", 2.8, 0.3, 0.31).trains
    assert not rf.Trainability("a", 2.8, 0.3, 0.31).trains_alike
    assert not rf.Trainability("a", 2.8, 0.29, 0.1).trains_alike


def test_nothing_is_decided_before_the_runs(tmp_path):
    empty = Found("residual-free", Records(tmp_path / "none"))
    assert rf.isometry(empty) is None
    assert rf.recipe_runs(empty, "cpu") == {}
    assert rf.trainability({}, "cpu", 1, 3.0, published=True) is None


# --- Interpolation and the unigram


def test_a_quantity_at_a_loss_between_two_looks():
    losses, values = np.array([np.inf, 4.0, 3.0, 3.5, 2.0]), np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert rf.at_loss(losses, values, 3.5) == 3.0
    assert rf.at_loss(losses, values, 3.0) == 4.0
    assert rf.at_loss(losses, values, 2.5) == 12.0  # from the lowest so far, which the third look had
    assert rf.at_loss(losses, values, 5.0) == 2.0
    metrics = {"evaluations": [[10, 4.0], [20, 3.0], [30, 3.5], [40, 2.0]], "looks": {"step": [0, 10, 20, 30, 40]}}
    run = Record("x", "0", {}, 0, metrics)
    assert rf.steps_to(run, 3.5) == 15.0
    assert rf.steps_to(run, 3.0) == 20.0
    with pytest.raises(ResidlabError, match=r"never comes down to 1; the lowest is 2"):
        rf.at_loss(losses, values, 1.0)


def test_unigram_is_the_cross_entropy_of_counted_frequencies():
    train, held_out = np.array([0, 0, 0, 1]), np.array([0, 1, 2])
    probabilities = np.array([4, 2, 1]) / 7
    assert rf.unigram_nats(train, held_out, 3) == pytest.approx(-np.log(probabilities).mean())


def test_bigram_is_the_cross_entropy_of_counted_pairs():
    train, held_out = np.array([0, 1, 0, 1, 0, 2]), np.array([0, 1, 0, 2])
    after_0, after_1 = np.array([0.1, 2.1, 1.1]) / 3.3, np.array([2.1, 0.1, 0.1]) / 2.3
    expected = -np.log2([after_0[1], after_1[0], after_0[2]]).mean()
    assert rf.bigram_bits(train, held_out, 3) == pytest.approx(expected)
