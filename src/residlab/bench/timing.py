"""Timing contenders side by side, so that a busy moment of the machine meets all of them."""

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import residlab


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender: its samples, and what they say."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        """The least, in seconds: what the machine can do when nothing else wants it."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range over the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median

    def to_dict(self) -> dict[str, float | int]:
        """Return JSON values."""
        return {
            "median_s": self.median,
            "best_s": self.best,
            "spread": self.spread,
            "samples": len(self.samples),
        }


def race(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warmup: int = 1,
    shuffle: int | None = None,
    advance: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Time contenders in rounds, each round in another order.

    Parameters
    ----------
    contenders
        Name -> what to time.
    repeats
        Rounds, each of one call of every contender.
    warmup
        Calls of each beforehand that are not counted: the first compiles, allocates, fills caches.
    shuffle
        Seed of random orders, in which nobody always follows the same other; by default the order is rotated.
    advance
        Called with a contender's name after each of its calls.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    generator = None if shuffle is None else random.Random(shuffle)  # noqa: S311 (no secret)
    for name in names:
        for _ in range(warmup):
            contenders[name]()
            advance(name)
    for turn in range(repeats):
        shift = turn % len(names)
        order = names[shift:] + names[:shift]
        if generator is not None:
            generator.shuffle(order)
        for name in order:
            begin = time.perf_counter()
            contenders[name]()
            samples[name].append(time.perf_counter() - begin)
            advance(name)
    return {name: Timing(tuple(values)) for name, values in samples.items()}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use that many threads, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, Any]:
    """Return what a measurement depends on besides the code: processor, threads, versions, how busy it is."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "residlab": residlab.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or sys.platform
