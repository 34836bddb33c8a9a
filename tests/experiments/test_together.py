"""The experiment together: what it trains, which models it measures, and an examination against direct computation."""

import math

import numpy as np
import pytest
import torch

from residlab.errors import ResidlabError
from residlab.experiments import bhyt_depth, residual_free, together
from residlab.experiments.examination import Examination, bounded_sites
from residlab.experiments.plans import Found, run_experiment, stages_of
from residlab.experiments.record import Record, Records
from residlab.experiments.together import ARMS, ROLES, arm_of
from residlab.experiments.together_results import ARITHMETICS, Model, all_models, bits, measured_networks
from residlab.explore.architect import MEASURES, MeasuredNetworks, architect_explorable
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer

STAGES = {stage.name: stage for stage in stages_of("together")}


def recorded(found, stage, configs, bits, **metrics):
    for config in configs:
        values = {"bits_per_byte": bits(config), "diverged": False, **metrics}
        found.records.add(Record(f"{found.experiment}/{stage}", config.hash, config.to_dict(), config.seed, values))


def test_rates_are_tuned_and_main_has_them(tmp_path):
    found = Found("together", Records(tmp_path / "together-cpu.jsonl"))
    with pytest.raises(ResidlabError, match="no record of tuning residual, gain"):
        STAGES["main"].configs("cpu", found)
    best = {arm: 1e-2 if arm.startswith("free") else 8e-2 for arm in ARMS}

    def bits(config):
        arm = arm_of(Record("x", "0", config.to_dict(), 0, {}))
        return abs(math.log(config.optimizer.lr / best[arm]))

    for _ in range(3):
        known = {record.hash for record in found.stage("tuning")}
        recorded(found, "tuning", [c for c in STAGES["tuning"].configs("cpu", found) if c.hash not in known], bits)
    assert len(found.stage("tuning")) == 3 * 4 + 2  # a rate beyond for each of two whose best was at the edge
    runs = STAGES["main"].configs("cpu", found)
    assert len({run.hash for run in runs}) == 12
    assert {run.optimizer.lr for run in runs} == {1e-2, 8e-2}
    assert {run.optimizer.kind for run in runs} == {"muon"}
    # Arms differ from residual-free's in what their names say, and in nothing else.
    usual = residual_free.config("cpu", residual_free.FREE, "muon", 1e-2, 0, steps=400, checkpoint_every=200).to_dict()
    for arm, names in (("free, gain", {"norm", "logit_scale"}), ("free, bhyt*", {"norm", "logit_scale"})):
        mine = next(run for run in runs if run.seed == 0 and arm_of(Record("x", "0", run.to_dict(), 0, {})) == arm)
        model = mine.to_dict()["model"]
        assert {name for name in model if model[name] != usual["model"].get(name)} == names
        assert {**mine.to_dict(), "model": 0} == {**usual, "model": 0}


def test_free_logits_are_as_large_with_a_small_gain():
    """At the start a token attends to itself as much with gains of 0.2 and logits of 50 as with 1 and 2."""
    options = {"depth": 1, "width": 64, "heads": 2, "vocabulary": 50, "context": 16}
    rows = []
    for arm in (residual_free.FREE, ARMS["free, gain"]):
        model = Transformer(ModelConfig(**options, **arm), seed=0)
        ids = torch.randint(50, (1, 16), generator=torch.Generator().manual_seed(0))
        rows.append(model.forward_with_rows(ids)[1][0])
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All of it at its smallest: the models of three experiments, and what is measured of them."""
    root = tmp_path_factory.mktemp("together")
    text = root / "text"
    text.mkdir()
    for number in range(30):
        (text / f"{number:02}.txt").write_text(f"Document {number} says that {number} follows {number - 1}. " * 3)
    small = {"depth": 2, "width": 16, "heads": 2, "context": 16, "batch": 2, "steps": 8, "init_std": 0.1}
    deep, free = bhyt_depth.config, residual_free.config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bhyt_depth, "MAIN", ("rmsnorm", "bhyt"))
        patch.setattr(bhyt_depth, "SEEDS", (0,))
        patch.setattr(bhyt_depth, "RATE_LIMITS", (1e-3, 8e-3))
        patch.setattr(bhyt_depth, "PROBES", ())
        patch.setitem(bhyt_depth.PROFILES, "smoke", bhyt_depth.Size(**small, short=2, evaluation_tokens=64))
        patch.setattr(bhyt_depth, "config", lambda *a, **k: deep(*a, corpus=str(text), **k))
        patch.setattr(residual_free, "TUNED", (("free", "muon"),))
        patch.setattr(residual_free, "GATED_TUNED", (("free", "muon"),))
        patch.setattr(residual_free, "MAIN", (("free", "muon"),))
        patch.setattr(residual_free, "SEEDS", (0,))
        patch.setattr(residual_free, "RATE_LIMIT", 1.0)
        patch.setitem(residual_free.PROFILES, "smoke", residual_free.Size(**small, evaluation_tokens=64))
        patch.setattr(residual_free, "config", lambda *a, **k: free(*a, corpus=str(text), **k))
        patch.setattr(together, "ARMS", {arm: ARMS[arm] for arm in ("residual, bhyt*", "free, gain")})
        patch.setattr(together, "SEEDS", (0,))
        patch.setattr(together, "RATE_LIMIT", 1.0)
        for experiment, stages in together.SOURCES.items():
            records = Records(root / f"{experiment}-smoke.jsonl")
            wanted = () if experiment == "together" else ("tuning", *stages)
            wanted += ("gated-tuning",) if experiment == "residual-free" else ()
            quiet = {"cache": root / "cache", "say": lambda line: None}
            list(run_experiment(experiment, records, profile="smoke", stages=wanted, **quiet))
    return root


def test_every_model_is_measured(folder):
    found = Found("together", Records(folder / "together-smoke.jsonl"))
    runs = together.models("smoke", found)
    assert len(runs) == (2 + 1 + 1) + (1 + 1) + 2
    assert [record.config["source"] for record in found.stage("examine")] == [run.hash for run in runs]
    rounding = found.stage("rounding")
    assert len(rounding) == len(runs) * len(ROLES)
    fp32, bf16 = (
        {r.config["source"]: r.metrics["relative"][-1] for r in rounding if r.config["roles"] == roles}
        for roles in ("fp32", "bf16")
    )
    assert all(fp32[name] < bf16[name] / 1000 for name in fp32)
    with pytest.raises(ResidlabError, match="first residlab run bhyt-depth --profile cpu"):
        together.models("cpu", found)


def test_answers_wait_for_all_models(folder, tmp_path):
    found = Found("together", Records(folder / "together-smoke.jsonl"))
    whole = all_models(found, "smoke")
    assert sum(map(len, whole.values())) == len(together.models("smoke", found))
    lines = found.records.file.read_text().splitlines()
    for experiment in together.SOURCES:
        name = f"{experiment}-smoke.jsonl"
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    part = Found("together", Records(tmp_path / "together-smoke.jsonl"))
    for kept in (lines[:-1], [line for line in lines if '"together/examine"' not in line], []):
        part.records.file.write_text("".join(f"{line}\n" for line in kept))
        assert all_models(part, "smoke") == {}


def test_the_loss_is_that_of_the_weights_that_were_measured():
    def model(**metrics):
        run = Record("bhyt-depth/main", "a" * 16, {}, 0, {"bits_per_byte": 2.5})
        return Model(None, run, Record("together/examine", "b" * 16, {}, 0, metrics), {})

    assert bits(model()) == 2.5
    assert bits(model(source_bits={"a" * 16: 2.75})) == 2.75
    assert bits(model(source_bits={"a" * 16: None})) == 2.5


def test_an_examination_is_what_it_says(folder):
    found = Found("together", Records(folder / "together-smoke.jsonl"))
    runs = {run.hash: run for run in together.models("smoke", found)}
    for record in found.stage("examine"):
        run, metrics = runs[record.config["source"]], record.metrics
        depth = run.config["model"]["depth"]
        assert list(metrics["growth"])[-1] == "final_norm"
        assert len(metrics["growth"]) == len(metrics["stream"]) == 2 * depth + 1
        assert "weights" not in metrics["quantization"]
        bounded = run.config["model"]["norm"]["kind"].startswith("bhyt")
        assert len(metrics["tanh"]) == (2 * depth if bounded else 0)  # the final norm is an RMSNorm
        for site in metrics["tanh"].values():
            bought = math.log2(site["argument"] / site["value"])
            assert -1e-4 <= bought <= math.log2(site["largest"] / math.tanh(site["largest"])) + 1e-4
        scored = record.metrics["quantization"]["schemes"]
        assert scored["W4A4"]["loss"] != scored["W8A8"]["loss"]


def test_a_tanh_is_undone():
    norm = norm_options("bhyt*", lam_attention=20.0, lam_feedforward=1.0)
    config = ModelConfig(depth=1, width=32, heads=2, vocabulary=20, context=8, norm=norm, init_std=0.5)
    model = Transformer(config, seed=0).double()
    ids = torch.arange(8)[None]
    site = bounded_sites(model, ids)["blocks.0.attention_norm"]
    x = model.embedding.weight[:8].detach().numpy()
    a = 20 * x / (10 * np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6))
    assert site["largest"] == pytest.approx(np.abs(a).max(), rel=1e-6)
    assert site["argument"] == pytest.approx(np.abs(a).max() / np.sqrt((a**2).mean()), rel=1e-6)
    t = np.tanh(a)
    assert site["value"] == pytest.approx(np.abs(t).max() / np.sqrt((t**2).mean()), rel=1e-6)


@pytest.mark.parametrize("source", ["", "0" * 15, "smollm2", "g" * 16])
def test_a_source_is_a_run(source):
    with pytest.raises(ResidlabError, match="sixteen digits of a finished run"):
        Examination(source)


def test_measured_networks_are_the_table_s_numbers(folder):
    found = Found("together", Records(folder / "together-smoke.jsonl"))
    kinds = all_models(found, "smoke")
    said = MeasuredNetworks(**measured_networks(kinds))
    by_slug = {kind.slug: each for kind, each in kinds.items()}
    assert set(said.titles) == set(by_slug)
    assert len(by_slug) == len(kinds) == len(set(said.labels))
    losses = [np.mean([bits(model) for model in by_slug[slug]]) for slug in said.titles]
    assert losses == sorted(losses)
    for row, (slug, title) in enumerate(said.titles.items()):
        (model,) = by_slug[slug]
        assert title == model.kind.title
        assert said.residual[row] == model.kind.residual
        schemes = model.exam.metrics["quantization"]["schemes"]
        for name, (key, _) in ARITHMETICS.items():
            if key in schemes:
                more = (schemes[key]["loss"] - schemes["full"]["loss"]) / math.log(2)
            else:
                more = model.rounded[key].metrics["added"] / math.log(2)
            column = 1 + list(said.arithmetics).index(name)
            assert said.losses[row, 0, column] == pytest.approx(bits(model) + more, rel=1e-6)
        measures = dict(zip(MEASURES, said.measures[row].astype(float), strict=True))
        assert measures["loss"] == pytest.approx(bits(model), rel=1e-6)
        assert 2 ** measures["error"] == pytest.approx(list(model.exam.metrics["growth"].values())[-1], rel=1e-5)
        sites = list(model.exam.metrics["stream"].values())[1:]
        largest = max(site["all"]["kurtosis_pooled"] for site in sites)
        assert 3 * (2 ** measures["kurtosis"] - 1) == pytest.approx(largest, rel=1e-4, abs=1e-4)
    assert architect_explorable(said).default_state["network"] == next(iter(said.titles))
