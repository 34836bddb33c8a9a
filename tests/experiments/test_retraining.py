"""Runs that are recorded and whose weights are not here: they are trained again where a task needs them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from residlab.errors import ResidlabError
from residlab.experiments.examination import Examination
from residlab.experiments.record import Record, Records
from residlab.experiments.retraining import make_again, missing_sources, sources_of
from residlab.experiments.rounded_inference import RoundedInference
from residlab.experiments.sweep import Sweep, run_sweep
from residlab.experiments.training_run import finished, is_finished, train
from residlab.training.config import TrainConfig

OPTIONS = {
    "model": {"depth": 1, "width": 16, "heads": 2, "vocabulary": 257, "context": 16},
    "batch": 2,
    "steps": 3,
    "evaluation_tokens": 32,
}


@pytest.fixture
def runs(tmp_path):
    """A run, and one that goes on from it, both recorded, and a folder with the cache that has their weights."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number:02}.txt").write_text(f"Document {number} says that {number} follows {number - 1}. " * 3)
    first = TrainConfig.from_dict({**OPTIONS, "corpus": str(text)})
    records, cache = Records(tmp_path / "records.jsonl"), tmp_path / "cache"
    base = train("base", first, cache=cache)
    second = TrainConfig.from_dict({**OPTIONS, "corpus": str(text), "start": base.hash, "seed": 5})
    tuned = train("tuned", second, cache=cache)
    for record in (base, tuned):
        records.add(record)
    return text, records, cache, base, tuned


def test_a_measurement_trains_what_it_measures_and_all_before(runs, tmp_path):
    _, records, cache, base, tuned = runs
    before = finished(tuned.hash, cache=cache)[1].state_dict()
    elsewhere = tmp_path / "another"
    said = []
    sweep = Sweep("look", (Examination(tuned.hash, tokens=16),))
    (record,) = run_sweep(sweep, records, cache=elsewhere, say=said.append)
    assert record.config["source"] == tuned.hash
    assert record.metrics["source_bits"] == {tuned.hash: tuned.metrics["bits_per_byte"]}
    assert said[0].startswith("residlab: weights of 2 recorded runs are not in the cache")
    for name, weight in finished(tuned.hash, cache=elsewhere)[1].state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert is_finished(base.hash, cache=elsewhere)
    assert [r.experiment for r in records] == ["base", "tuned", "look"], "what is trained again is not recorded again"
    said.clear()
    run_sweep(Sweep("once more", sweep.configs), records, cache=elsewhere, say=said.append)
    assert not any("not in the cache" in line for line in said)


def test_several_processes_need_one_source(runs, tmp_path, capfd):
    _, records, _, base, _ = runs
    tasks = [RoundedInference(roles, source=base.hash, tokens=8) for roles in ("bf16", "fp32")]
    run_sweep(Sweep("look", tuple(tasks)), records, cache=tmp_path / "another", jobs=2)
    assert f"{base.hash} was not in the cache and is trained again" in capfd.readouterr().err
    looks = (tmp_path / "another" / "runs" / base.hash / "metrics.jsonl").read_text()
    assert looks.count('"evaluation"') == 1, "one trained, the other waited"


def test_processes_of_torchrun_train_a_source_together(runs, tmp_path):
    """Each needs the weights to start from, and a barrier waits for all of them: none may hold another up."""
    _, records, _, base, tuned = runs
    file = tmp_path / "tuned.yml"
    file.write_text(yaml.safe_dump({"experiment": "tuned", "base": json.loads(json.dumps(tuned.config))}))
    beside = tmp_path / "mine" / "bhyt-depth-smoke.jsonl"
    beside.parent.mkdir()
    beside.write_text(records.file.read_text().splitlines()[0] + "\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "residlab.cli", "run", str(file), "--cache-dir", str(tmp_path / "another")]
    command += ["--results", str(beside.with_name("tuned.jsonl"))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{base.hash} was not in the cache and is trained again") == 1
    assert is_finished(tuned.hash, cache=tmp_path / "another")


def test_both_losses_are_said(runs, tmp_path):
    _, _, _, base, _ = runs
    said = []
    task = Examination(base.hash)
    other = Records(tmp_path / "more.jsonl")
    other.add(Record("base", base.hash, base.config, 0, {**base.metrics, "bits_per_byte": 1.25}))
    missing = missing_sources([task], other.file, cache=tmp_path / "another")
    make_again(task, missing, cache=tmp_path / "another", say=said.append)
    loss = base.metrics["bits_per_byte"]
    assert said == [
        f"residlab: {base.hash} was not in the cache and is trained again: {loss:.4f} bits per byte, recorded 1.2500"
    ]


def test_another_text_is_refused(runs, tmp_path):
    text, records, _, base, _ = runs
    (text / "00.txt").write_text("Another text. " * 9)
    with pytest.raises(ResidlabError, match=f"{base.hash} cannot be trained again: .* is another text"):
        run_sweep(Sweep("look", (Examination(base.hash),)), records, cache=tmp_path / "another", say=lambda line: None)


def test_what_is_here_or_not_recorded_is_not_missing(runs, tmp_path):
    _, records, cache, base, tuned = runs
    tasks = [Examination(base.hash), Examination(tuned.hash), Examination("0" * 16)]
    assert missing_sources(tasks, records.file, cache=cache) == {}
    assert set(missing_sources(tasks, records.file, cache=tmp_path / "another")) == {base.hash, tuned.hash}
    with pytest.raises(ResidlabError, match="0000000000000000 is not in the cache"):
        run_sweep(Sweep("look", (tasks[2],)), records, cache=cache, say=lambda line: None)
    shutil.rmtree(cache / "runs" / base.hash)
    assert set(missing_sources(tasks, records.file, cache=cache)) == {base.hash}


def test_damaged_weights_are_named_by_the_task_and_stop_no_other(runs, tmp_path):
    _, records, cache, base, tuned = runs
    (weights,) = (cache / "runs" / base.hash).glob("step-*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    tasks = [Examination(base.hash, tokens=64), Examination(tuned.hash, tokens=64)]
    with pytest.raises(ResidlabError, match=r"1 of 2 runs failed.*damaged: model\.safetensors"):
        run_sweep(Sweep("look", tuple(tasks)), records, cache=cache, say=lambda line: None)
    assert [record.config["source"] for record in records if record.experiment == "look"] == [tuned.hash]


def test_which_tasks_have_sources(runs):
    _, _, _, base, tuned = runs
    assert sources_of(TrainConfig.from_dict(base.config)) == ()
    assert sources_of(TrainConfig.from_dict(tuned.config)) == (base.hash,)
    assert sources_of(RoundedInference("bf16")) == ()
    assert sources_of(RoundedInference("bf16", source=base.hash)) == (base.hash,)
