"""Sweeps: what a file means, what is wrong with it, and runs that go on after anything."""

from dataclasses import replace

import pytest
import yaml

from residlab.errors import ResidlabError
from residlab.experiments import sweep as sweep_module
from residlab.experiments.record import Record, Records
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


def test_what_is_said_of_a_run(write):
    (config,) = read_sweep(write({"base": {**BASE, "seed": 3}})).configs
    assert sweep_module.about(config).split() == ["bhyt", "1", "layers", "lr", "0.001", "seed", "3"]
    record = Record("sweep", config.hash, config.to_dict(), 3, {"bits_per_byte": 2.5})
    assert sweep_module.score(config, record) == "2.5000 bits per byte"
    assert sweep_module.score(config, replace(record, metrics={"bits_per_byte": None})) == "diverged"


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
        ({"base": {**BASE, "optimizer": "adm"}}, "kind must be one of adamw, signgd"),
        ({"base": {**BASE, "optimizer": None}}, "optimizer must be a name or options; got None"),
        ({"base": {**BASE, "schedule": 3}}, "schedule must be a name or options; got 3"),
        ({"base": {**BASE, "model": "llama"}}, "model must be the options of a model, .*got 'llama'"),
        ({"base": {**BASE, "corpus": 5}}, "corpus must be a name or a path; got 5"),
        ({"base": {**BASE, "clip": float("inf")}}, "clip must be a finite number > 0, or null for no limit; got inf"),
        ({"base": {**BASE, "clip": "one"}}, "clip must be a finite number > 0, .*got 'one'"),
        ({"base": {**BASE, "compile": "maybe"}}, "compile must be true or false; got 'maybe'"),
        ({"base": {**BASE, "seed": 10**22}}, "seed must be a whole number >= 0"),
        ({"base": {**BASE, 3: 4}}, "a training run has no option 3"),
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


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("1e-3", r"got '1e-3' \(a text, for YAML\): write 1\.0e-3 or 0\.001$"),
        ("1.5E3", r"got '1.5E3' \(a text, for YAML\): write 1\.5e\+3 or 1500$"),
        ("1e300", r"write 1\.0e\+300$"),
        ("fast", "got 'fast'$"),
    ],
)
def test_a_number_that_yaml_takes_for_text_is_shown_as_one(tmp_path, write, number, said):
    file = write({"base": {**BASE, "optimizer": {"lr": "RATE"}}})
    file.write_text(file.read_text().replace("RATE", number))
    with pytest.raises(ResidlabError, match=r"lr must be a finite number >= 0; .*" + said):
        read_sweep(file)
    for advice in ("1.0e-3", "1.5e+3"):
        file.write_text(file.read_text().replace(number, advice))
        assert read_sweep(file).configs[0].optimizer.lr == float(advice)
        number = advice


def test_a_key_that_occurs_twice_is_named(tmp_path):
    file = tmp_path / "twice.yml"
    file.write_text("base:\n  steps: 3\n  model: {depth: 1}\n  steps: 4\n")
    with pytest.raises(ResidlabError, match=r"twice\.yml, line 4: the key steps occurs twice, first in line 2$"):
        read_sweep(file)


def test_a_grid_may_not_overwrite_itself(write):
    inner, outer = {"model.norm.lam_attention": [1.0, 3.0]}, {"model.norm": ["bhyt", "bhyt*"]}
    file = write({"base": dict(BASE)})
    text = file.read_text()
    file.write_text(text + yaml.safe_dump({"grid": {**outer, **inner}}, sort_keys=False))
    assert [(c.model.norm.kind, c.model.norm.lam_attention) for c in read_sweep(file).configs] == [
        ("bhyt", 1.0),
        ("bhyt", 3.0),
        ("bhyt*", 1.0),
        ("bhyt*", 3.0),
    ]
    file.write_text(text + yaml.safe_dump({"grid": {**inner, **outer}}, sort_keys=False))
    with pytest.raises(ResidlabError, match=r"grid: model\.norm would overwrite model\.norm\.lam_attention, .*first"):
        read_sweep(file)


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
    with pytest.raises(ResidlabError, match=r"1 of 2 runs failed, and have no record: .*the tokenizer has 257"):
        run_sweep(sweep, records, cache=tmp_path / "cache", say=lambda line: None)
    assert len(list(records)) == 1


def test_names_of_optimizer_and_schedule_are_enough(write):
    (config,) = read_sweep(write({"base": {**BASE, "optimizer": "muon", "schedule": "cosine"}})).configs
    assert config.optimizer.kind == "muon"
    assert (config.schedule.kind, config.schedule.steps) == ("cosine", 3)


def test_a_run_that_diverges_is_recorded_as_that_and_stops_no_other(tmp_path, write):
    rates = {"optimizer.lr": [1e300, 0.001]}
    base = {**BASE, "clip": None, "model": {**BASE["model"], "norm": "dyt"}}
    records = Records(tmp_path / "runs.jsonl")
    found = run_sweep(
        read_sweep(write({"base": base, "grid": rates})), records, cache=tmp_path / "c", say=lambda _: None
    )
    assert [record.metrics["diverged"] for record in found] == [True, False]
    assert found[0].metrics["bits_per_byte"] is None


def test_an_error_that_nobody_foresaw_stops_no_other(tmp_path, write, monkeypatch):
    train = sweep_module.train

    def broken(experiment, config, **options):
        if config.seed == 0:
            raise MemoryError("too little")
        return train(experiment, config, **options)

    monkeypatch.setattr(sweep_module, "train", broken)
    records = Records(tmp_path / "runs.jsonl")
    with pytest.raises(ResidlabError, match=r"1 of 2 runs failed, and have no record: .*MemoryError: too little"):
        run_sweep(
            read_sweep(write({"base": dict(BASE), "grid": {"seed": [0, 1]}})),
            records,
            cache=tmp_path / "cache",
            say=lambda line: None,
        )
    assert [record.seed for record in records] == [1]


def test_another_text_is_another_run(tmp_path, write, text):
    sweep, records = read_sweep(write({"base": dict(BASE)})), Records(tmp_path / "runs.jsonl")
    options = {"cache": tmp_path / "cache", "say": lambda line: None}
    (first,) = run_sweep(sweep, records, **options)
    (text / "more.txt").write_text("A document that was not there before. " * 9)
    (second,) = run_sweep(sweep, records, **options)
    assert second.hash != first.hash
    assert second.metrics["train_loss"] != first.metrics["train_loss"]
    (text / "more.txt").unlink()
    assert run_sweep(sweep, records, **options) == [first]


def test_a_text_that_changes_meanwhile_fails_what_comes_after(tmp_path, write, text, monkeypatch):
    train = sweep_module.train

    def edited(experiment, config, **options):
        if config.seed == 1:
            (text / "more.txt").write_text("A document that was not there before. " * 9)
        return train(experiment, config, **options)

    monkeypatch.setattr(sweep_module, "train", edited)
    records = Records(tmp_path / "runs.jsonl")
    sweep = read_sweep(write({"base": dict(BASE), "grid": {"seed": [0, 1]}}))
    with pytest.raises(ResidlabError, match=r"1 of 2 runs failed, .*: the corpus changed while the sweep ran"):
        run_sweep(sweep, records, cache=tmp_path / "cache", say=lambda line: None)
    assert [record.seed for record in records] == [0]


@pytest.mark.parametrize("file", ["a-file/runs.jsonl", "a-file/b/runs.jsonl", "/proc/self/fd/runs.jsonl"])
def test_records_that_cannot_be_written_are_found_before_anything_runs(tmp_path, write, monkeypatch, file):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setattr(sweep_module, "train", lambda *args, **options: pytest.fail("it trained"))
    with pytest.raises(ResidlabError, match=r"runs\.jsonl cannot be written"):
        run_sweep(read_sweep(write({"base": dict(BASE)})), Records(tmp_path / file), cache=tmp_path / "cache")


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: {steps: 3, steps: 4}", r"line 1: the key steps occurs twice, first in line 1$"),
        ("base: {corpus: 2024-13-45}", "is not YAML: month must be in"),
        ("base: {steps: !!int abc}", "is not YAML: invalid literal"),
        ("base: " + "[" * 3000 + "]" * 3000, "nested too deep"),
        (f"base: {{steps: 3, model: MODEL, clip: {HUGE}}}", "clip must be a finite number > 0"),
        (f"base: {{steps: 3, model: MODEL, optimizer: {{lr: {HUGE}}}}}", "lr must be a finite number >= 0"),
        (f"base: {{steps: 3, model: MODEL, optimizer: {{betas: [0.9, {HUGE}]}}}}", "betas must be"),
    ],
    ids=["a key", "a date", "a number", "nesting", "clip", "lr", "betas"],
)
def test_a_slip_is_told_and_no_traceback(tmp_path, text, said):
    model = "{depth: 1, width: 16, heads: 2, vocabulary: 257, context: 16}"
    (tmp_path / "slip.yml").write_text(text.replace("MODEL", model))
    with pytest.raises(ResidlabError, match=said):
        read_sweep(tmp_path / "slip.yml")
