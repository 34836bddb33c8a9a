"""The norms on a GPU: what share of the measured copy bandwidth each reaches, beside torch and, if installed, Liger.

``python -m residlab.bench.norm_bandwidth`` measures (16384, 2048) in bfloat16, under five minutes. An operator that
moves ``n`` tensors of the size of ``x`` in ``t`` seconds reaches ``n / t`` over that of a copy, which moves two.
The target is a share of 0.85.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor

from residlab.bench.norms import DIRECTIONS, OPERATORS, Arguments, Direction, Pass, one_pass
from residlab.kernels import Backend


@dataclass(frozen=True)
class Share:
    """One contender in one direction.

    Attributes
    ----------
    microseconds, spread : float
        Median over the repetitions, and the distance of the quartiles over it.
    gigabytes_per_second : float
        What must be moved, over the median.
    share : float
        Of the bandwidth of ``y.copy_(x)`` in the same run.
    """

    operator: str
    library: str
    direction: Direction
    microseconds: float
    spread: float
    gigabytes_per_second: float
    share: float


def measure(
    rows: int = 16384,
    width: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    repetitions: int = 50,
) -> list[Share]:
    """Measure every operator of ours, and those that other installed libraries have, repetitions interleaved.

    Raises
    ------
    ValueError
        If there is no such device.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("device must be one that is here: there is no CUDA device; 'cpu' runs Triton's interpreter")
    arguments = Arguments.draw(rows, width, dtype, device)
    contenders = {("residlab", name): (operator.function, operator.streams) for name, operator in OPERATORS.items()}
    for (library, name), function in _others(width, dtype, device).items():
        contenders[library, name] = (function, OPERATORS[name].streams)
    target, source = torch.empty_like(arguments.x), arguments.x.detach()
    table = []
    for direction in DIRECTIONS:
        passes: dict[tuple[str, str], Pass] = {("", "copy"): lambda: target.copy_(source)}
        for key, (function, _) in contenders.items():
            passes[key] = one_pass(function, arguments, direction, "triton")
        times = _times(passes, device, repetitions)
        size = source.numel() * source.element_size()
        copying = 2 * size / median(times["", "copy"])
        for (library, name), (_, streams) in contenders.items():
            ordered = sorted(times[library, name])
            middle, quarter = median(ordered), len(ordered) // 4
            speed = streams[direction] * size / middle
            spread = (ordered[-1 - quarter] - ordered[quarter]) / middle
            table.append(
                Share(
                    name,
                    library,
                    direction,
                    round(1e6 * middle, 1),
                    round(spread, 3),
                    round(speed / 1e9, 1),
                    round(speed / copying, 3),
                )
            )
    return table


def _others(width: int, dtype: torch.dtype, device: str) -> dict[tuple[str, str], Callable[..., tuple[Tensor, ...]]]:
    def rms_norm(a: Arguments, _: Backend) -> tuple[Tensor, ...]:
        return (torch.nn.functional.rms_norm(a.x, (width,), a.gamma.to(dtype), eps=1e-6),)

    functions: dict[tuple[str, str], Callable[..., tuple[Tensor, ...]]] = {("torch", "rms_norm"): rms_norm}
    if device.startswith("cuda") and find_spec("liger_kernel") is not None:
        functions |= _of_liger(width, device)
    return functions


def _of_liger(width: int, device: str) -> dict[tuple[str, str], Callable[..., tuple[Tensor, ...]]]:
    from liger_kernel.transformers.dyt import LigerDyT
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    modules = {"rms_norm": LigerRMSNorm(width).to(device), "dyt": LigerDyT(width).to(device)}

    def of(module: Any) -> Callable[..., tuple[Tensor, ...]]:
        return lambda arguments, _: (module(arguments.x),)

    return {("liger", name): of(module) for name, module in modules.items()}


def _times(passes: dict[tuple[str, str], Pass], device: str, repetitions: int) -> dict[tuple[str, str], list[float]]:
    on_gpu = device.startswith("cuda")
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in passes}
    for repetition in range(-3 if on_gpu else 0, repetitions):  # the first compile
        for key, run in passes.items():
            if on_gpu:
                start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                run()
                end.record()
                end.synchronize()
                elapsed = start.elapsed_time(end) / 1e3
            else:
                began = time.perf_counter()
                run()
                elapsed = time.perf_counter() - began
            if repetition >= 0:
                seconds[key].append(elapsed)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m residlab.bench.norm_bandwidth", description=__doc__)
    parser.add_argument("--rows", type=int, default=16384, help="tokens")
    parser.add_argument("--width", type=int, default=2048, help="entries of a token")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for Triton's interpreter at tiny sizes")
    parser.add_argument("--repetitions", type=int, default=50, help="of each contender, interleaved")
    parser.add_argument("--json", action="store_true", help="print everything measured as JSON")
    given = parser.parse_args(arguments)
    try:
        table = measure(given.rows, given.width, device=given.device, repetitions=given.repetitions)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else "Triton's interpreter"
    if given.json:
        print(
            json.dumps({"device": name, "torch": torch.__version__, "rows": [asdict(each) for each in table]}, indent=1)
        )
        return 0
    print(f"{name}, torch {torch.__version__}")
    for each in table:
        print(
            f"{each.operator:<28}{each.library:<10}{each.direction:<18}{each.microseconds:>10.1f} us"
            f"{each.spread:>8.1%}{each.gigabytes_per_second:>9.1f} GB/s{each.share:>7.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
