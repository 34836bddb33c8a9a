"""The norms on this CPU: eager, compiled by torch.compile, and ours, beside what copying and tanh alone cost.

``residlab bench norms`` prints the table. Repetitions of all
contenders are interleaved, and ratios are taken between the fastest repetition of each, which is what a busy machine
disturbs least; the quartiles say how busy it was. Read the ratios, not the times.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles

import torch
from torch import Tensor

from residlab.bench.norms import DIRECTIONS, OPERATORS, Arguments, Direction, Operator, Pass, one_pass
from residlab.bench.timing import threads as limited_threads
from residlab.kernels import compiled
from residlab.kernels.rational_tanh import LONG, SHORT

_BUFFER = 4096  # entries that stay in the first cache


@dataclass(frozen=True)
class Timing:
    """The fastest repetition and the quartiles of all, in microseconds."""

    least: float
    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timing":
        """Summarise the repetitions."""
        lower, median, upper = quantiles(seconds, n=4, method="inclusive")
        return cls(*(round(1e6 * value, 1) for value in (min(seconds), lower, median, upper)))


@dataclass(frozen=True)
class Row:
    """One operator in one direction.

    Attributes
    ----------
    eager, torch_compile, ours : Timing
        The reference, the reference compiled by torch.compile (None if not asked for), and ``backend="compiled"``.
    copy_floor : float
        Microseconds to move what must be moved, at the measured speed of ``x.clone()``: like every operator, it writes
        to memory that was just allocated, which costs about as much as the copy itself.
    tanh_floor : float
        Microseconds for the evaluations of tanh, to and from the dtype, measured on a buffer that stays in the cache.
    ratio : float
        Ours over the larger floor.
    speedup : float
        Eager over ours.
    """

    operator: str
    direction: Direction
    dtype: str
    threads: int
    eager: Timing
    torch_compile: Timing | None
    ours: Timing
    copy_floor: float
    tanh_floor: float
    ratio: float
    speedup: float


def measure(
    rows: int = 2048,
    width: int = 512,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    threads: Sequence[int] = (1, 2),
    repetitions: int = 100,
    with_torch_compile: bool = True,
    advance: Callable[[str], None] = lambda name: None,
) -> list[Row]:
    """Measure every operator in both directions.

    Parameters
    ----------
    rows, width : int
        Tokens and entries of each.
    dtypes : sequence of torch.dtype
        float32 and bfloat16.
    threads : sequence of int
        Numbers of threads to run with, one after the other.
    repetitions : int
        How often each contender runs, interleaved; at least 2.
    with_torch_compile : bool
        Whether to compile the reference, which takes seconds an operator, direction, dtype and number of threads.
    advance : callable
        Told the operator before it is measured.

    Returns
    -------
    list of Row
    """
    table = []
    for count in threads:
        with limited_threads(count):
            for dtype in dtypes:
                arguments = Arguments.draw(rows, width, dtype)
                for name, operator in OPERATORS.items():
                    for direction in DIRECTIONS:
                        advance(f"{name}, {direction}, {dtype}")
                        table.append(_row(name, operator, direction, arguments, count, repetitions, with_torch_compile))
                torch.compiler.reset()
    return table


def _row(
    name: str,
    operator: Operator,
    direction: Direction,
    arguments: Arguments,
    threads: int,
    repetitions: int,
    with_torch_compile: bool,
) -> Row:
    x = arguments.x.detach()
    passes: dict[str, Pass] = {
        "copy": x.clone,
        "tanh": _tanh_alone(x, threads),
        "eager": one_pass(operator.function, arguments, direction, "reference"),
        "ours": one_pass(operator.function, arguments, direction, "compiled"),
    }
    if with_torch_compile:
        function = torch.compile(operator.function, fullgraph=True, dynamic=False)
        passes["torch_compile"] = one_pass(function, arguments, direction, "reference")
    times = {key: Timing.of(seconds) for key, seconds in interleave(passes, repetitions).items()}
    copy_floor = times["copy"].least * operator.streams[direction] / 2
    tanh_floor = times["tanh"].least * operator.tanhs[direction]
    ours = times["ours"]
    return Row(
        name,
        direction,
        str(x.dtype).removeprefix("torch."),
        threads,
        times["eager"],
        times.get("torch_compile"),
        ours,
        round(copy_floor, 1),
        round(tanh_floor, 1),
        round(ours.least / max(copy_floor, tanh_floor), 2),
        round(times["eager"].least / ours.least, 2),
    )


def interleave(passes: dict[str, Pass], repetitions: int) -> dict[str, list[float]]:
    """Return the seconds that each pass took, one repetition of all after the other, after three to warm up.

    Each repetition runs a pass twice and times the second: the first finds the caches and the memory allocator as the
    pass before left them, which can cost several times the pass itself.
    """
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for repetition in range(-3, repetitions):
        for name, run in passes.items():
            run()
            start = time.perf_counter()
            run()
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def _tanh_alone(x: Tensor, threads: int) -> Pass:
    # One thread measures its share: the kernels deal rows out evenly.
    fraction = LONG if x.dtype == torch.float32 else SHORT
    source = (torch.randn(_BUFFER) / 5).to(x.dtype)
    target = torch.empty_like(source)
    times = max(1, round(x.numel() / threads / _BUFFER))
    return lambda: compiled.tanh(source, fraction, target, times)


def render(table: Sequence[Row]) -> str:
    """Return the table as text: fastest repetitions in microseconds, and how far the quartiles of ours lie apart."""
    lines = [
        f"{'operator':<28}{'direction':<18}{'dtype':<10}{'threads':>7}{'eager':>9}{'compile':>9}{'ours':>9}"
        f"{'spread':>8}{'copy':>8}{'tanh':>8}{'ratio':>7}{'speedup':>9}"
    ]
    for row in table:
        compile_ = "-" if row.torch_compile is None else f"{row.torch_compile.least:.0f}"
        spread = f"{(row.ours.upper - row.ours.lower) / row.ours.median:.0%}"
        lines.append(
            f"{row.operator:<28}{row.direction:<18}{row.dtype:<10}{row.threads:>7}{row.eager.least:>9.0f}"
            f"{compile_:>9}{row.ours.least:>9.0f}{spread:>8}{row.copy_floor:>8.0f}{row.tanh_floor:>8.0f}"
            f"{row.ratio:>7.2f}{row.speedup:>9.2f}"
        )
    return "\n".join(lines)
