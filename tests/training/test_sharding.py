"""Divided parameters (FSDP2): torchrun's two processes are one process, and a checkpoint goes from one to the other."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tests.training.fsdp_worker import DOCUMENTS, configuration, main

from residlab.errors import ResidlabError
from residlab.experiments.record import Records
from residlab.models.transformer import Transformer
from residlab.training.checkpoint import latest_checkpoint
from residlab.training.sharding import divided_like, whole, whole_model
from residlab.training.state import flatten_state
from residlab.training.trainer import default_fabric

WORKER = Path(__file__).with_name("fsdp_worker.py")


def together(*command):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    return done.returncode, done.stderr


def with_parts(folder, **options):
    code, said = together(WORKER, folder, "fsdp", json.dumps(options))
    assert code == 0, said


def alone(folder, **options):
    main(folder, "ddp", options)


def metrics(folder):
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def assert_alike(one, two):
    """Compare two runs: every line of the metrics to 1e-6, and what the last checkpoint holds."""
    numbers = [[values for line in metrics(folder) for values in leaves(line)] for folder in (one, two)]
    assert [name for name, _ in numbers[1]] == [name for name, _ in numbers[0]]
    assert [value for _, value in numbers[1]] == pytest.approx(
        [value for _, value in numbers[0]], rel=1e-6, nan_ok=True
    )
    first, second = (latest_checkpoint(folder / "run", None) for folder in (one, two))
    assert second.step == first.step
    for before, after in ((first.model, second.model), tuple(flatten_state(c.optimizer)[0] for c in (first, second))):
        assert after.keys() == before.keys()
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert flatten_state(second.optimizer)[1] == flatten_state(first.optimizer)[1]
    assert all(torch.equal(second.random[name], state) for name, state in first.random.items())


def leaves(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}")
    else:
        yield path, float(value)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": {"refresh": 3, "averaged": "position"}},
        {"kind": "signgd", "norm": {"kind": "dyt", "embedding_scale": True}, "bad": 3},
    ],
    ids=["adamw, kept constants", "signgd, one process not finite"],
)
def test_two_processes_with_parts_are_one(tmp_path, options):
    alone(tmp_path / "one", **options)
    with_parts(tmp_path / "two", **options)
    assert_alike(tmp_path / "one", tmp_path / "two")
    skipped = [line["step"] for line in metrics(tmp_path / "two") if line.get("skipped")]
    assert skipped == ([options["bad"]] if "bad" in options else [])
    assert any("probes" in line for line in metrics(tmp_path / "two"))


def test_a_run_goes_on_under_the_other_strategy(tmp_path):
    """One process, then two with parts, then one: as one process from end to end."""
    options = {"norm": {"refresh": 3}}
    alone(tmp_path / "whole", **options)
    alone(tmp_path / "run", stop=2, **options)
    with_parts(tmp_path / "run", stop=6, **options)
    assert latest_checkpoint(tmp_path / "run" / "run", None).step == 6
    alone(tmp_path / "run", **options)
    assert_alike(tmp_path / "whole", tmp_path / "run")


def test_an_evaluation_is_the_same_to_the_bit_however_many_take_part(tmp_path):
    """Of a finished run; three batches for two processes, so that one has nothing left in the last turn."""
    alone(tmp_path)
    with_parts(tmp_path)
    one, first, second = (
        json.loads((tmp_path / f"evaluation-{n}.json").read_text()) for n in ("ddp-0", "fsdp-0", "fsdp-1")
    )
    assert one["tokens"] == 10 * 16
    assert first == second == one


@pytest.mark.parametrize(("kind", "works"), [("adamw", True), ("muon", False)])
def test_the_command_divides_where_it_can(tmp_path, kind, works):
    config = configuration(kind, {})
    (tmp_path / "text.txt").write_text("\f".join(DOCUMENTS))
    values = {**config.to_dict(), "corpus": str(tmp_path / "text.txt"), "steps": 2, "schedule": "constant"}
    file = tmp_path / "run.yml"
    file.write_text(yaml.safe_dump({"base": values}))
    arguments = ("run", file, "--strategy", "fsdp", "--cache-dir", tmp_path / "cache")
    code, said = together("-m", "residlab.cli", *arguments)
    assert (code == 0) == works, said
    assert len(list(Records(tmp_path / "run.jsonl"))) == works
    if not works:
        assert "muon needs whole matrices, and fsdp divides them" in said
        assert "use adamw or signgd, or the strategy ddp" in said


# --- Without processes


def test_what_is_whole_stays_as_it_is():
    config = configuration("adamw", {})
    model = Transformer(config.model, seed=0)
    assert whole_model(model, keep=False) is model
    state = {"a": [torch.ones(2), (None, 3)], "b": model.state_dict()}
    for keep in (True, False):
        kept = whole(state, keep=keep)
        assert kept["a"][0] is state["a"][0]
        assert kept["a"][1] == (None, 3)
        assert list(kept["b"]) == list(state["b"])
    assert divided_like(state["a"][0], torch.zeros(2)) is state["a"][0]


def test_a_strategy_that_is_not_there_is_named():
    with pytest.raises(ResidlabError, match="strategy must be one of ddp, fsdp; got 'zero'"):
        default_fabric(replace(configuration("adamw", {}), steps=1), "zero")
