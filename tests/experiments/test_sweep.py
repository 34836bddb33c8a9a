"""Sweeps: what a file means, what is wrong with it, and runs that go on after anything."""

import pytest

from residlab.errors import ResidlabError
from residlab.experiments.record import Records
from residlab.experiments.sweep import read_sweep, run_sweep

BASE = {
    "model": {"depth": 1, "width": 16, "heads": 2, "vocabulary": 257, "context": 16, "norm": "bhyt"},
    "steps": 3,
    "batch": 2,
    "evaluation_tokens": 64,
}


def test_a_grid_is_every_combination_once(write):
    sweep = read_sweep(
        write(
            {"base": dict(BASE), "grid": {"model.norm": ["rmsnorm", "bhyt"], "seed": [0, 1, 1], "optimizer.lr": [0.01]}}
        )
    )
    assert sweep.experiment == "sweep"
    assert [(c.model.norm.kind, c.seed, c.optimizer.lr) for c in sweep.configs] == [
        ("rmsnorm", 0, 0.01),
        ("rmsnorm", 1, 0.01),
        ("bhyt", 0, 0.01),
        ("bhyt", 1, 0.01),
    ]
    assert len({c.hash for c in sweep.configs}) == 4


def test_options_of_a_norm_named_in_the_base(write):
    sweep = read_sweep(write({"base": dict(BASE), "grid": {"model.norm.lam_attention": [1.0, 3.0]}}))
    assert [c.model.norm.lam_attention for c in sweep.configs] == [1.0, 3.0]


def test_no_grid_is_one_run(write):
    assert len(read_sweep(write({"base": dict(BASE)})).configs) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"base": dict(BASE), "gird": {}}, "there is no key gird; there are experiment, base, grid"),
        ({"base": {**BASE, "setps": 3}}, "a training run has no option setps; it has model, steps"),
        ({"base": dict(BASE), "grid": {"optimizer.lrr": [1]}}, "optimizer.lrr = 1: .*has no option lrr"),
        ({"base": dict(BASE), "grid": {"seed": 3}}, "grid: seed must be a list of at least one value; got 3"),
        ({"base": dict(BASE), "grid": {"seed": []}}, "grid: seed must be a list"),
        ({"base": dict(BASE), "grid": {"steps.more": [1]}}, "steps is 3, which has no options"),
        ({"base": dict(BASE), "grid": {"model.norm": ["bhyt", "bhtt"]}}, "model.norm = bhtt: norm must be one of"),
        ({"base": dict(BASE), "grid": [1]}, "grid must map names"),
        (
            {"base": {**BASE, "probes": ["weight"], "probe_every": 2}},
            "probes must be among stream, .*got weight",
        ),
        ({"base": {**BASE, "probes": ["weights"]}}, "probes weights need probe_every"),
        ({"base": {**BASE, "probes": "weights", "probe_every": 2}}, "probes must be a list of names; got 'weights'"),
    ],
)
def test_a_typo_is_found_before_anything_runs(write, values, said):
    with pytest.raises(ResidlabError, match=said):
        read_sweep(write(values))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ResidlabError, match="cannot be read"):
        read_sweep(tmp_path / "none.yml")
    (tmp_path / "bad.yml").write_text("a: [")
    with pytest.raises(ResidlabError, match="is not YAML"):
        read_sweep(tmp_path / "bad.yml")
    (tmp_path / "list.yml").write_text("- a")
    with pytest.raises(ResidlabError, match="it holds list"):
        read_sweep(tmp_path / "list.yml")


def test_what_is_recorded_is_not_run_again(tmp_path, write):
    sweep = read_sweep(write({"base": dict(BASE), "grid": {"seed": [0, 1]}}))
    records, told = Records(tmp_path / "runs.jsonl"), []
    first = run_sweep(sweep, records, cache=tmp_path / "cache", say=told.append)
    assert [record.seed for record in first] == [0, 1]
    assert len(told) == 2
    again = run_sweep(sweep, records, cache=tmp_path / "cache", say=told.append)
    assert again == first
    assert told[2:] == ["residlab: 2 of 2 runs of sweep are recorded already"]


def test_a_failed_run_stops_no_other(tmp_path, write):
    model = {**BASE["model"], "vocabulary": 300}
    sweep = read_sweep(write({"base": dict(BASE), "grid": {"model": [model, BASE["model"]]}}))
    records = Records(tmp_path / "runs.jsonl")
    with pytest.raises(ResidlabError, match=r"1 of 2 runs failed; a rerun goes on with them: .*the tokenizer has 257"):
        run_sweep(sweep, records, cache=tmp_path / "cache", say=lambda line: None)
    assert len(list(records)) == 1
