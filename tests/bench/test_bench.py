"""Benchmarks: the counts on paper against torch's own counter, the race, the growth, the command."""

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from residlab.bench import norm_kernels, scaling
from residlab.bench.command import run
from residlab.bench.models import STANDARD, cached_generation, llama, training_step
from residlab.bench.norms import OPERATORS
from residlab.bench.operations import forward_operations, matrix_parameters, matrix_peak, training_operations
from residlab.bench.report import Row, duration, rows
from residlab.bench.timing import Timing, machine, race, threads
from residlab.models.transformer import Transformer, next_token_loss

TINY = replace(
    STANDARD, depth=2, width=32, heads=4, kv_heads=2, head_dim=8, feedforward_width=48, vocabulary=64, context=32
)


@pytest.mark.parametrize("feedforward", ["swiglu", "gelu"])
def test_operations_are_those_that_torch_counts(feedforward):
    config = replace(TINY, feedforward=feedforward)
    model, tokens = Transformer(config), torch.randint(0, 64, (3, 16))
    with FlopCounterMode(display=False) as counter:
        loss = next_token_loss(model(tokens), tokens)
    attention = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" in str(op))
    matrices = counter.get_total_flops() - attention
    scores = forward_operations(config, 3, 16) - 2 * 3 * 16 * matrix_parameters(config)
    assert matrices == 2 * 3 * 16 * matrix_parameters(config)
    assert scores == 2 * 2 * 3 * 16 * 17 * 4 * 8  # torch counts the masked half as well
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    attention = sum(n for op, n in backward.get_flop_counts()["Global"].items() if "attention" in str(op))
    assert backward.get_total_flops() - attention == 2 * matrices
    assert training_operations(config, 3, 16) == 3 * forward_operations(config, 3, 16)


def test_matrix_parameters_are_those_of_the_model():
    model = Transformer(TINY)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2)
    assert matrix_parameters(TINY) == matrices


def test_transformers_llama_has_the_same_size():
    assert sum(p.numel() for p in llama(TINY).parameters()) == sum(p.numel() for p in Transformer(TINY).parameters())


def test_a_race_takes_turns_and_counts_no_warmup():
    calls, told = [], []
    timings = race({name: lambda name=name: calls.append(name) for name in "abc"}, 4, warmup=2, advance=told.append)
    assert calls == [*"aabbcc", *"abc", *"bca", *"cab", *"abc"]
    assert told == calls
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 4, "b": 4, "c": 4}


def test_what_samples_say():
    timing = Timing((4.0, 1.0, 2.0, 3.0, 100.0))
    assert (timing.median, timing.best, timing.spread) == (3.0, 1.0, 2 / 3)
    assert Timing((2.0,)).spread == 0
    made = rows({"a": timing, "b": Timing((1.5,))}, "a", {"b": 1.0})
    assert made == (Row("a", timing), Row("b", Timing((1.5,)), 2.0, 1.0))


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (0.01234, "12.3 ms"), (5e-6, "5 µs"), (3e-9, "3 ns")])
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text


def test_growth():
    assert scaling.fit([1, 2, 4, 8], [3, 12, 48, 192]).exponent == pytest.approx(2)
    line = scaling.fit([2, 4, 8, 16], [5, 7, 11, 19])
    assert line.linear_misfit == pytest.approx(0, abs=1e-12)


def test_threads_are_set_and_set_back():
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == machine()["threads"] == 1
    assert torch.get_num_threads() == before


def test_peak_is_a_rate():
    assert 1e8 < matrix_peak(0.03) < 1e14


def test_reports_of_tiny_models():
    report = training_step(TINY, batch=2, tokens=16, repeats=1, compiled=False, norms=("rmsnorm", "bhyt"))
    assert [row.name for row in report.rows] == ["transformers Llama", "rmsnorm", "bhyt"]
    assert report.rows[0].speed is None
    assert report.rows[1].speed == report.rows[0].timing.median / report.rows[1].timing.median
    report = cached_generation(TINY, prompt=4, new_tokens=4, repeats=1, norms=("bhyt",))
    assert json.loads(json.dumps(report.to_dict()))["rows"][1]["floor_s"] > 0


def test_a_point_is_measured_in_its_own_process(monkeypatch):
    monkeypatch.setitem(scaling.SWEEPS, "depth", (1,))
    point = scaling.measure("depth", 1, "bhyt", repeats=1)
    assert point.seconds > 0
    assert 1 < point.megabytes < 2000


@pytest.mark.skipif(shutil.which("c++") is None, reason="not run: no C++ compiler")
def test_the_command_writes_all_figures(tmp_path, monkeypatch, capsys):
    def tiny(**options):
        options["advance"]("rms_norm")
        return norm_kernels.measure(4, 8, (torch.float32,), (1,), repetitions=2, with_torch_compile=False)

    measure = norm_kernels.measure
    monkeypatch.setattr("residlab.bench.norm_kernels.measure", lambda *a, **o: measure(*a, **o) if a else tiny(**o))
    file = tmp_path / "bench.json"
    arguments = Namespace(suites=["norms"], threads=1, repeats=1, no_compile=True, json=file)
    assert run(arguments) == 0
    assert "bhyt_exact, centred" in capsys.readouterr().out
    said = json.loads(file.read_text())
    assert said["machine"]["torch"] == torch.__version__
    assert len(said["norms"]) == 2 * len(OPERATORS)
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "residlab.cli", "bench", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["speed"],
            "there is no benchmark 'speed'; there are norms, rounding, training, generation, scaling, trainer, cost",
        ),
        (["training", "--threads", "0"], "--threads must be >= 1; got 0"),
        (["training", "--json", "nowhere/x.json"], "there is no folder nowhere"),
        (["training", "--json", "."], "--json . is a folder: name a file"),
    ],
)
def test_a_wrong_command_is_one_sentence(arguments, said):
    done = command(*arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
