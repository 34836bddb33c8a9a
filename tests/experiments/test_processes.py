"""Several processes: those of torchrun train one model as one does, Dask's workers run a sweep, and one may die."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from residlab.data.locking import locked
from residlab.experiments.record import Records
from residlab.experiments.sweep import read_sweep, run_sweep
from residlab.experiments.training_run import run_folder, run_hash, sampled, trained
from residlab.training.checkpoint import latest_checkpoint

BASE = {
    "model": {"depth": 2, "width": 16, "heads": 2, "vocabulary": 257, "context": 16, "norm": "bhyt", "init_std": 0.1},
    "steps": 8,
    "batch": 4,
    "evaluation_tokens": 64,
    "optimizer": {"lr": 0.01},
}


def residlab(*arguments, launcher=()):
    command = [sys.executable, *launcher, "-m", "residlab.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def test_two_processes_train_as_one(tmp_path, write):
    file = write({"base": dict(BASE)})
    (config,) = read_sweep(file).configs
    alone = residlab("run", file, "--cache-dir", tmp_path / "one", "--results", tmp_path / "one.jsonl")
    assert alone.returncode == 0, alone.stderr
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = residlab(
        "run", file, "--cache-dir", tmp_path / "two", "--results", tmp_path / "two.jsonl", launcher=launcher
    )
    assert both.returncode == 0, both.stderr
    assert both.stdout == alone.stdout
    assert both.stderr.count("residlab: 1/1") == 1
    one, two = (latest_checkpoint(run_folder(config, cache=tmp_path / n), config.to_dict()) for n in ("one", "two"))
    assert two.progress["losses"] == pytest.approx(one.progress["losses"], abs=1e-6)
    for name, tensor in one.model.items():
        torch.testing.assert_close(two.model[name], tensor, rtol=1e-3, atol=1e-4)
    assert len(list(Records(tmp_path / "two.jsonl"))) == 1


def test_the_command_samples_and_does_not_train_twice(tmp_path, write):
    file = write({"base": dict(BASE)})
    (config,) = read_sweep(file).configs
    first = residlab("run", file, "--cache-dir", tmp_path / "cache", "--sample", "12")
    assert first.returncode == 0, first.stderr
    assert "bits per byte on held-out text" in first.stdout
    assert trained(config, cache=tmp_path / "cache").config == config.model
    text = sampled(config, 12, cache=tmp_path / "cache")
    assert first.stdout.endswith(f"updates skipped\n{text}\n")
    assert "recorded already" in residlab("run", file, "--cache-dir", tmp_path / "cache").stderr
    assert len((tmp_path / "sweep.jsonl").read_text().splitlines()) == 1


def test_two_at_once_are_one_run(tmp_path, write):
    file = write({"base": {**BASE, "steps": 40, "checkpoint_every": 2}})
    command = [sys.executable, "-m", "residlab.cli", "run", str(file), "--cache-dir", str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    (config,) = read_sweep(file).configs
    lines = (run_folder(config, cache=tmp_path / "cache") / "metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "loss" in line]
    assert steps == list(range(1, 41))
    assert len(list(Records(tmp_path / "sweep.jsonl"))) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "FILE", "--results", "."], "--results . is a folder: name a file"),
        (["sweep", "FILE", "--jobs", "0"], "--jobs must be >= 1; got 0"),
        (["sweep", "FILE", "--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "give one of them"),
        (["sweep", "FILE", "--scheduler", "127.0.0.1"], "does not answer"),
        (["run", "FILE"], "describes 2 runs: residlab sweep runs them"),
        (["run", "none.yml"], "none.yml is no file, and no experiment of the book either; these are bhyt-depth, "),
    ],
)
def test_a_slip_is_one_sentence(write, arguments, said):
    file = write({"base": dict(BASE), "grid": {"seed": [0, 1]}})
    done = residlab(*[file if each == "FILE" else each for each in arguments])
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_runs_nothing(tmp_path, write):
    file = write({"base": dict(BASE), "grid": {"seed": [0, 1]}})
    done = residlab("sweep", file, "--list", "--cache-dir", tmp_path / "cache")
    named = [run_hash(config, cache=tmp_path / "cache") for config in read_sweep(file).configs]
    assert [line.split()[0] for line in done.stdout.splitlines()] == named
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [
        ["to", "run", "bhyt", "adamw", "0"],
        ["to", "run", "bhyt", "adamw", "1"],
    ]
    assert not (tmp_path / "cache").exists()


def test_dask_workers_run_a_sweep_and_one_may_die(tmp_path, write):
    pytest.importorskip("distributed")
    values = {"base": {**BASE, "steps": 150, "checkpoint_every": 10}, "grid": {"seed": [0, 1, 2]}}
    sweep = read_sweep(write(values))
    here = run_sweep(sweep, Records(tmp_path / "here.jsonl"), cache=tmp_path / "one", say=lambda line: None)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"}
    scheduler_file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    started = [subprocess.Popen([*dask, "--scheduler-file", str(scheduler_file)], env=environment, **quiet)]
    try:
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(scheduler_file)]
        worker += ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        started += [subprocess.Popen(worker, env=environment, **quiet) for _ in range(2)]
        from distributed import Client

        with Client(scheduler_file=str(scheduler_file), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            address = client.scheduler.address
        command = [sys.executable, "-m", "residlab.cli", "sweep", str(tmp_path / "sweep.yml"), "--scheduler", address]
        command += ["--cache-dir", str(tmp_path / "two"), "--results", str(tmp_path / "there.jsonl")]
        running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        deadline = time.monotonic() + 120
        while not list((tmp_path / "two").glob("runs/*/step-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        started[1].send_signal(signal.SIGKILL)
        _, said = running.communicate(timeout=200)
        assert running.returncode == 0, said
    finally:
        for process in started:
            process.kill()
            process.wait()
    there = {record.hash: record for record in Records(tmp_path / "there.jsonl")}
    assert there.keys() == {record.hash for record in here}
    for record in here:
        assert there[record.hash].metrics["train_loss"] == record.metrics["train_loss"]


def test_a_rank_that_is_none_is_told(tmp_path, write, monkeypatch):
    monkeypatch.setenv("RANK", "x")
    done = residlab("run", write({"base": dict(BASE)}), "--cache-dir", tmp_path / "cache")
    assert done.returncode == 1
    assert done.stderr == "residlab: error: the environment's RANK must be a whole number >= 0; got 'x'\n"


def test_a_lock_that_cannot_be_made_is_not_waited_for(tmp_path):
    with pytest.raises(OSError, match="No such file"), locked(tmp_path / "none" / ".lock", "testing"):
        pytest.fail("it is held")
    with pytest.raises(OSError, match=r"No such file|not permitted|denied"), locked(Path("/proc/self/fd/.lock"), "it"):
        pytest.fail("it is held")


def session(leader):
    """Return the processes of a session that are not zombies."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it reads Linux's list of processes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_ends_the_workers(tmp_path, write, number):
    file = write({"base": {**BASE, "steps": 100_000, "checkpoint_every": 5}, "grid": {"seed": [0, 1]}})
    command = [sys.executable, "-m", "residlab.cli", "sweep", str(file), "-j", "2", "--cache-dir", str(tmp_path / "c")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment) as sweep:
        try:
            deadline = time.monotonic() + 120
            while len(list((tmp_path / "c").glob("runs/*/step-*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            sweep.send_signal(number)
            assert sweep.wait(30) == 130
            assert "interrupted" in sweep.stderr.read()
            deadline = time.monotonic() + 10
            while session(sweep.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert session(sweep.pid) == []
        finally:
            for process in session(sweep.pid):
                os.kill(process, signal.SIGKILL)


def test_a_run_that_was_interrupted_goes_on(tmp_path, write):
    file = write({"base": {**BASE, "steps": 100_000, "checkpoint_every": 0}})
    command = [sys.executable, "-m", "residlab.cli", "run", str(file), "--cache-dir", str(tmp_path / "cache")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "cache").glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        run.send_signal(signal.SIGTERM)
        said = run.communicate(timeout=30)[1]
    assert run.returncode == 130, said
    assert len(list((tmp_path / "cache").glob("runs/*/step-*"))) == 1
