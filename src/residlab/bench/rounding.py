"""The rounding emulator against what else rounds: pychop, casts there and back, and float32's own product.

pychop and ml_dtypes are optional here: what is not installed is left out, and a note says how to get it. They are not
equal in result: pychop turns 70000 into 0 in fp16 (its version 0.6.2).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from residlab.bench.operations import matrix_peak
from residlab.bench.report import Report, rows
from residlab.bench.timing import race
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, FP16, FP32, Format
from residlab.precision.matmul import matmul
from residlab.precision.rounding import rounded

Pass = Callable[[], object]
_EXPONENT_BITS = {"bf16": 8, "fp16": 5}
_TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}
EAGER, NATIVE = "ours, eager torch", "float32 product of torch"


def rounding_speed(
    fmt: Format,
    entries: int = 1 << 22,
    *,
    repeats: int = 7,
    compiled: bool = True,
    advance: Callable[[str], None] = lambda name: None,
) -> Report:
    """Time rounding of float32 to `BF16` or `FP16`, to nearest; the floor is what copying as many bytes takes.

    Raises
    ------
    KeyError
        If the format is another.
    """
    x = torch.randn(entries, generator=torch.Generator().manual_seed(0))
    bits = _EXPONENT_BITS[fmt.name]
    contenders: dict[str, Pass] = {"copy": x.clone, EAGER: lambda: rounded(x, fmt, backend="reference")}
    contenders |= _theirs(x, fmt, bits)
    if compiled:
        contenders["ours, C++"] = lambda: rounded(x, fmt, backend="compiled")
        contenders["ours, C++, stochastic"] = lambda: rounded(x, fmt, "stochastic", seed=0, backend="compiled")
    timings = race(contenders, repeats, advance=advance)
    reference = "pychop" if "pychop" in timings else EAGER
    floor = timings.pop("copy").median
    return Report(
        title=f"Rounding {entries:,} float32 to {fmt.name}",
        reference=reference,
        rows=rows(timings, reference, dict.fromkeys(timings, floor)),
        settings={"entries": entries, "format": fmt.name},
        notes=(f"floor: {2 * x.nbytes / 1e6:.0f} MB copied, in the same run", *missing()),
    )


def product_speed(
    size: int = 512,
    *,
    repeats: int = 7,
    advance: Callable[[str], None] = lambda name: None,
) -> Report:
    """Time emulated products of square matrices, operands in `BF16`; the floor is the peak of float32 products here."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))

    def emulated(accumulator: Format, order: Order, **options: Any) -> Pass:
        return lambda: matmul(a, b, operands=BF16, accumulator=accumulator, order=order, **options)

    contenders: dict[str, Pass] = {
        NATIVE: lambda: a @ b,
        "bf16 sums, blocks of 32": emulated(BF16, blocked(32)),
        "bf16 sums, recursive": emulated(BF16, RECURSIVE),
        "bf16 sums, pairwise": emulated(BF16, PAIRWISE),
        "bf16 sums, stochastic": emulated(BF16, RECURSIVE, mode="stochastic", seed=0),
        "fp16 sums, recursive": emulated(FP16, RECURSIVE),
        "fp32 sums, recursive": emulated(FP32, RECURSIVE),
    }
    timings = race(contenders, repeats, advance=advance)
    peak = matrix_peak()
    work = 2 * size**3
    return Report(
        title=f"Emulated products of {size} x {size}, bf16 operands",
        reference=NATIVE,
        rows=rows(timings, NATIVE, dict.fromkeys(timings, work / peak)),
        settings={"size": size, "operations": work, "peak": peak},
        notes=(f"floor: {work / 1e9:.2f} GFLOP at the {peak / 1e9:.0f} GFLOP/s of float32 measured here",),
    )


def _theirs(x: torch.Tensor, fmt: Format, exponent_bits: int) -> dict[str, Pass]:
    found: dict[str, Pass] = {"torch, cast there and back": lambda: x.to(_TORCH[fmt.name]).float()}
    if find_spec("ml_dtypes"):
        import ml_dtypes
        import numpy as np

        array, dtype = x.numpy(), {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[fmt.name]
        name = "ml_dtypes" if fmt.name == "bf16" else "numpy"
        found[f"{name}, cast there and back"] = lambda: array.astype(dtype).astype(np.float32)
    if find_spec("pychop"):
        from pychop.chop import Chop

        chop = Chop(exponent_bits, fmt.t - 1, rmode=1)
        found["pychop"] = lambda: chop(x)
    return found


def missing() -> tuple[str, ...]:
    """Return a note for each optional contender that is not installed."""
    return tuple(
        f"{name} not installed: python -m pip install {name}" for name in ("pychop", "ml_dtypes") if not find_spec(name)
    )
