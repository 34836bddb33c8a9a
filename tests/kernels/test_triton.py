"""Triton's kernels compile for GPUs that are not here, and say what is missing where Triton is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from residlab.kernels import triton as ours
from residlab.kernels.fused import Norm

FORWARD = "x residual gamma beta scalar spread mean y z".split()
BACKWARD = "x gamma scalar spread mean grad_y grad_z from_spread from_mean grad_x".split()
BACKWARD += "gamma_sums beta_sums scalar_sums grad_spread grad_mean".split()
STORED = {"x", "residual", "y", "z", "grad_y", "grad_z", "grad_x"}
KERNELS = ((ours._forward, FORWARD, ["width"]), (ours._backward, BACKWARD, ["rows", "width"]))

def absent(norm, name):
    given, centred = norm >= Norm.GIVEN, norm in (Norm.MEASURED_CENTRED, Norm.GIVEN_CENTRED)
    return {
        "scalar": norm == Norm.RMS, "scalar_sums": norm == Norm.RMS,
        "spread": norm == Norm.DYT, "mean": not centred,
        "beta": norm != Norm.DYT, "beta_sums": norm != Norm.DYT,
        "from_spread": given or norm == Norm.DYT, "from_mean": norm != Norm.MEASURED_CENTRED,
        "grad_spread": not given, "grad_mean": norm != Norm.GIVEN_CENTRED,
    }.get(name, False)

for norm in Norm:
    for kernel, pointers, sizes in KERNELS:
        signature = {f"{name}_pointer": "*bf16" if name in STORED else "*fp32" for name in pointers}
        constants = {"NORM": int(norm), "SHORTER": True, "BLOCK": 1024}
        constants |= {f"{name}_pointer": None for name in pointers if absent(norm, name)}
        signature |= dict.fromkeys(sizes, "i32") | {"kappa": "fp32", "eps": "fp32"}
        signature |= dict.fromkeys(constants, "constexpr")
        constants = {(list(signature).index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert "ptx" in made.asm
        print(norm.name, kernel.__name__)
"""


def test_every_kernel_compiles_for_a_gpu(triton: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split()) == 24


def test_a_missing_triton_is_named() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\nfrom residlab import kernels\nkernels.rms_norm(torch.ones(2, 3), backend='triton')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: backend 'triton' needs Triton (Linux): in a clone of residlab, " in done.stderr


def test_a_cpu_tensor_is_refused_outside_the_interpreter(triton: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    code = "import torch; from residlab import kernels; kernels.rms_norm(torch.ones(2, 3), backend='triton')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "ValueError: backend 'triton' runs on CUDA tensors, x is on cpu; use 'auto'" in done.stderr


@pytest.mark.gpu
def test_auto_takes_triton_on_a_gpu(triton: str) -> None:
    import torch

    from residlab import kernels

    if not torch.cuda.is_available():
        pytest.skip("not run: no CUDA device")
    x = torch.randn(3, 64, device="cuda")
    assert torch.equal(kernels.rms_norm(x), kernels.rms_norm(x, backend="triton"))
