"""Reading the recorded runs: every number goes where it belongs, and what is missing is named."""

import json

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments import bhyt_depth
from residlab.experiments import norm_results as nr
from residlab.experiments.plans import Found, results_file, run_experiment
from residlab.experiments.record import Record, Records
from residlab.experiments.recorded import results_folder
from residlab.explore.profiles import RecordedProfiles


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The experiment at its smallest, really run."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text"
    text.mkdir()
    for number in range(30):
        (text / f"{number:02}.txt").write_text(f"Document {number} says that {number} follows {number - 1}. " * 3)
    size = bhyt_depth.Size(
        depth=2, width=16, heads=2, context=16, batch=2, steps=4, short=2, init_std=0.1, evaluation_tokens=64
    )
    whole = bhyt_depth.config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bhyt_depth, "MAIN", ("rmsnorm", "bhyt"))
        patch.setattr(bhyt_depth, "SEEDS", (0, 1))
        patch.setattr(bhyt_depth, "RATE_LIMITS", (1e-3, 8e-3))
        patch.setitem(bhyt_depth.PROFILES, "smoke", size)
        patch.setattr(bhyt_depth, "config", lambda *a, **k: whole(*a, corpus=str(text), **k))
        records = Records(folder / "runs.jsonl")
        stages = ("tuning", "main", "exact", "control", "depth", "spike", "bounds")
        done = run_experiment(
            "bhyt-depth", records, profile="smoke", stages=stages, cache=folder / "cache", say=lambda line: None
        )
        assert [stage.name for stage, _ in done] == list(stages)
    return Found("bhyt-depth", records)


def test_contenders_and_their_tables(found):
    runs = nr.contenders(found)
    assert {name: [record.seed for record in records] for name, records in runs.items()} == {
        name: [0, 1] for name in ("rmsnorm", "bhyt", "bhyt*", "control")
    }
    assert all(record.config["model"]["norm"].get("gain_attention") == 0.2 for record in runs["control"])
    values = nr.table(runs, ("bhyt", "rmsnorm"), nr.bits)
    assert values[1, 0] == runs["rmsnorm"][0].metrics["bits_per_byte"]
    assert values.shape == (2, 2)
    with pytest.raises(ResidlabError, match=r"no records of lns; there are rmsnorm, bhyt, bhyt\*, control"):
        nr.table(runs, ("lns",), nr.bits)


def test_the_rates_and_the_best(found):
    scores = nr.by_rate(found.stage("tuning"))
    assert {2e-3, 4e-3, 8e-3} <= set(scores["bhyt"])
    winner = nr.best(found.stage("tuning"), "bhyt")
    assert scores["bhyt"][nr.rate(winner)] == min(scores["bhyt"].values()) == nr.bits(winner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bhyt_depth, "MAIN", ("rmsnorm", "bhyt"))
        assert bhyt_depth.best_rates(found)["bhyt"] == nr.rate(winner)
    with pytest.raises(ResidlabError, match="no records of dyt; there are bhyt, rmsnorm"):
        nr.best(found.stage("tuning"), "dyt")


def test_what_the_probes_saw(found):
    record = nr.contenders(found)["bhyt"][0]
    looks = record.metrics["looks"]
    assert nr.steps(record).tolist() == [1, 2, 3, 4]
    variance = nr.stream(record, "variance", "rest")
    assert variance.shape == (4, 5)
    assert variance[2, 4] == looks["stream"]["final_norm"]["rest"]["variance"][2]
    assert nr.by_layer(record, "jacobian", "first")[1, 0] == looks["jacobian"]["1"]["first"][1]
    assert nr.by_layer(record, "skipping", "rise")[3, 1] == looks["skipping"]["rise"]["2"][3]
    assert nr.by_layer(record, "attention", "entropy")[0, 1] == looks["attention"]["2"]["entropy"][0]
    sites = nr.by_site(record, "bounds", "lam")
    assert sites["attention"].shape == (4, 2)
    assert sites["feedforward"][3, 1] == looks["bounds"]["blocks.1.feedforward_norm"]["lam"][3]
    shares = [values["beyond_0.9"][-1] for values in looks["saturation"].values()]
    assert nr.saturated(record) == pytest.approx(sum(shares) / len(shares))
    assert nr.bound(record) == pytest.approx(0.15)
    harder = found.stage("bounds")
    assert [(nr.kind(each), nr.bound(each)) for each in harder] == [
        (kind, bound) for kind in ("bhyt", "bhyt*") for bound in (0.5, 1.0)
    ]
    assert nr.saturated(harder[1]) > nr.saturated(harder[0])
    assert np.isnan(nr.saturated(nr.contenders(found)["rmsnorm"][0]))
    with pytest.raises(ResidlabError, match="was not probed"):
        nr.saturated(found.stage("tuning")[0])
    ranges, ratio = nr.octaves(record, "log_ratio", look=1)
    assert ranges == ("1-1", "2-3", "4-7", "8-15", "16-16")
    assert ratio[1, 2] == looks["approximation"]["2"]["4-7"]["log_ratio"][1]
    spiky = next(record for record in found.stage("spike") if nr.kind(record) == "rmsnorm")
    assert nr.profile(spiky, "largest").shape == (4, 5)
    with pytest.raises(ResidlabError, match="was not probed"):
        nr.steps(found.stage("tuning")[0])


def test_profiles_fit_the_explorable(found):
    made = RecordedProfiles(**nr.profiles(found, ("rmsnorm", "bhyt")))
    assert made.depths == (1.0, 2.0, 4.0, 8.0)
    deep = next(r for r in found.stage("depth") if nr.kind(r) == "bhyt" and r.config["model"]["depth"] == 4)
    np.testing.assert_array_equal(made.mean_abs[1, 2, :, :9], nr.stream(deep, "mean_abs").astype(np.float32))
    assert np.isnan(made.mean_abs[1, 2, :, 9:]).all()
    assert np.isfinite(made.deviation[0, 3]).all()
    with pytest.raises(ResidlabError, match="no records of lns at one depth"):
        nr.profiles(found, ("lns",))


def test_a_depth_that_is_not_complete_is_left_out(found, tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    for record in found.stage("depth"):
        if (nr.kind(record), record.config["model"]["depth"]) != ("bhyt", 4):
            records.add(record)
    assert nr.profiles(Found("bhyt-depth", records), ("rmsnorm", "bhyt"))["depths"] == (1.0, 2.0, 8.0)


def test_what_is_missing_or_uneven_is_named(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    found = Found("bhyt-depth", records)
    with pytest.raises(ResidlabError, match="recorded are none"):
        nr.contenders(found)
    with pytest.raises(ResidlabError, match="no records of bhyt at one depth"):
        nr.profiles(found, ("bhyt",))
    for norm, seed in (("rmsnorm", 0), ("rmsnorm", 1), ("bhyt", 0)):
        config = {"model": {"norm": {"kind": norm}}, "seed": seed}
        records.add(Record("bhyt-depth/main", f"{norm}{seed}", config, seed, {"bits_per_byte": None}))
    with pytest.raises(ResidlabError, match=r"must have run on the same seeds; recorded are \{'rmsnorm': \[0, 1\]"):
        nr.contenders(found)
    assert nr.bits(found.stage("main")[0]) == float("inf")


def test_a_missing_or_doubled_run_at_the_best_rate_is_no_reason_to_take_another_rate(tmp_path):
    lines = results_file("bhyt-depth", "cpu", results_folder().parent).read_text().splitlines()
    star = [line for line in lines if json.loads(line)["experiment"] == "bhyt-depth/star"]

    def reread(changed):
        file = tmp_path / "changed.jsonl"
        file.write_text("".join(f"{line}\n" for line in changed))
        return Found("bhyt-depth", Records(file))

    whole = nr.star(reread(lines))
    assert [record.seed for record in whole] == [0, 1, 2]
    assert {nr.rate(record) for record in whole} == {0.008}
    assert nr.others(reread(lines))["BHyT*"].hash == whole[0].hash
    for changed in ([line for line in lines if line != star[-1]], [*lines, star[-1]]):
        with pytest.raises(ResidlabError, match=r"at its best rate, 0\.008, must have run once with each"):
            nr.star(reread(changed))
    untuned = nr.star(reread([line for line in lines if line not in star]))
    assert {nr.rate(record) for record in untuned} == {0.016}
