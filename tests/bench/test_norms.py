"""The benchmarks of the norms run at tiny sizes and say what they should; their numbers are not judged here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from residlab.bench import norm_kernels
from residlab.bench.norms import DIRECTIONS, OPERATORS

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="not run: no C++ compiler; install one (Debian, Ubuntu: apt-get install g++)",
)


@needs_compiler
def test_every_operator_is_measured_beside_its_floors() -> None:
    table = norm_kernels.measure(8, 16, (torch.float32, torch.bfloat16), (1,), repetitions=2, with_torch_compile=False)
    assert {(row.operator, row.direction, row.dtype) for row in table} == {
        (name, direction, dtype) for name in OPERATORS for direction in DIRECTIONS for dtype in ("float32", "bfloat16")
    }
    for row in table:
        assert row.torch_compile is None
        assert 0 < row.ours.least <= row.ours.lower <= row.ours.median <= row.ours.upper
        assert row.copy_floor > 0
        assert (row.tanh_floor > 0) == ("rms" not in row.operator)
    lines = norm_kernels.render(table).splitlines()
    assert len(lines) == len(table) + 1
    assert len({len(line) for line in lines}) == 1


@pytest.mark.skipif(
    find_spec("triton") is None, reason="not run: Triton is missing; python -m pip install -e '.[triton]' (Linux)"
)
def test_the_gpu_benchmark_runs_in_the_interpreter() -> None:
    # A process of its own: Triton decides between interpreter and compiler when it is first imported.
    command = [sys.executable, "-m", "residlab.bench.norm_bandwidth", "--json", "--device", "cpu"]
    command += ["--rows", "2", "--width", "8", "--repetitions", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    assert {(row["operator"], row["direction"]) for row in rows if row["library"] == "residlab"} == {
        (name, direction) for name in OPERATORS for direction in DIRECTIONS
    }
    assert {row["operator"] for row in rows if row["library"] == "torch"} == {"rms_norm"}
    assert all(row["microseconds"] > 0 and row["share"] >= 0 for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_gpu_benchmark_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    from residlab.bench import norm_bandwidth

    assert norm_bandwidth.main([]) == 1
    assert "there is no CUDA device" in capsys.readouterr().err
