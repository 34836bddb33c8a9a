"""Time and memory of a training step against depth, width and context, beside transformers' Llama.

Each point runs in a process of its own, since a process gives no memory back: ``python -m residlab.bench.scaling``.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from residlab.bench.models import STANDARD, llama
from residlab.bench.report import duration
from residlab.errors import ResidlabError
from residlab.models.config import ModelConfig, norm_options
from residlab.models.transformer import Transformer, next_token_loss

SWEEPS: dict[str, tuple[int, ...]] = {
    "depth": (2, 4, 8, 16),
    "width": (128, 256, 512),
    "context": (128, 256, 512, 1024),
}


@dataclass(frozen=True)
class Point:
    """One training step of one model at one size."""

    who: str
    sweep: str
    value: int
    seconds: float
    megabytes: float


def measure(sweep: str, value: int, who: str, repeats: int = 3) -> Point:
    """Return a point, measured in a process of its own.

    Raises
    ------
    ResidlabError
        If that process fails.
    """
    task = json.dumps(
        {"sweep": sweep, "value": value, "who": who, "repeats": repeats, "threads": torch.get_num_threads()}
    )
    done = subprocess.run(
        [sys.executable, "-m", "residlab.bench.scaling", task], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ResidlabError(f"measuring {who} at {sweep} {value} failed: {said[-1]}")
    return Point(who, sweep, value, **json.loads(done.stdout.splitlines()[-1]))


WHO = ("transformers", "rmsnorm", "bhyt")


def points(sweep: str, *, repeats: int = 3, advance: Callable[[str], None] = lambda name: None) -> list[Point]:
    """Return the points of a sweep, a key of `SWEEPS`, the contenders taking turns."""
    found = []
    for value in SWEEPS[sweep]:
        for who in WHO:
            found.append(measure(sweep, value, who, repeats))
            advance(f"{sweep} {value}, {who}")
    return found


@dataclass(frozen=True)
class Fit:
    """How a quantity grows: ``quantity ~ value**exponent`` by least squares of logarithms, and how linear it is."""

    exponent: float
    linear_misfit: float  # largest |residual| of a straight line, relative to the largest value


def fit(values: list[int], quantities: list[float]) -> Fit:
    """Fit a power law and a straight line."""
    x, y = np.asarray(values, dtype=float), np.asarray(quantities, dtype=float)
    exponent = float(np.polyfit(np.log(x), np.log(y), 1)[0])
    line = np.polyval(np.polyfit(x, y, 1), x)
    return Fit(exponent, float(np.max(np.abs(y - line)) / np.max(y)))


def show(sweep: str, found: list[Point], console: Console) -> None:
    """Print a sweep: seconds and megabytes of each contender at each value, and how they grow."""
    table = Table(title=f"Training step against {sweep}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column(sweep, justify="right")
    for who in WHO:
        table.add_column(f"{who}\ntime", justify="right")
        table.add_column("\nmemory", justify="right")
    for value in SWEEPS[sweep]:
        here = {point.who: point for point in found if point.value == value}
        cells = (cell for who in WHO for cell in (duration(here[who].seconds), f"{here[who].megabytes:.0f} MB"))
        table.add_row(str(value), *cells)
    fits = []
    for who in WHO:
        mine = [point for point in found if point.who == who]
        values = [point.value for point in mine]
        for quantities in ([point.seconds for point in mine], [point.megabytes for point in mine]):
            grown = fit(values, quantities)
            fits.append(f"^{grown.exponent:.2f} ({grown.linear_misfit:.0%})")
    table.add_row("grows", *fits)
    console.print(table)
    console.print(f"grows: exponent of {sweep}, in brackets the misfit of a straight line\n", style="dim")


def _sized(sweep: str, value: int) -> tuple[ModelConfig, int, int]:
    """Return configuration, batch and tokens."""
    if sweep == "depth":
        return replace(STANDARD, depth=value), 4, 128
    if sweep == "width":
        return replace(STANDARD, width=value, head_dim=value // 8, feedforward_width=3 * value), 4, 128
    return replace(STANDARD, context=value), 2, value


def _run(task: dict[str, Any]) -> dict[str, float]:
    torch.set_num_threads(task["threads"])
    config, batch, tokens = _sized(task["sweep"], task["value"])
    data = torch.randint(0, config.vocabulary, (batch, tokens))
    model: torch.nn.Module
    if task["who"] == "transformers":
        model = llama(config)
    else:
        model = Transformer(replace(config, norm=norm_options(task["who"])))
    before = _peak_megabytes()
    samples = []
    for _ in range(task["repeats"] + 1):
        begin = time.perf_counter()
        if task["who"] == "transformers":
            loss = model(input_ids=data, labels=data, use_cache=False).loss
        else:
            loss = next_token_loss(model(data), data)
        loss.backward()
        model.zero_grad()
        samples.append(time.perf_counter() - begin)
    return {"seconds": statistics.median(samples[1:]), "megabytes": _peak_megabytes() - before}


def _peak_megabytes() -> float:
    """Return the most memory that this process held so far."""
    try:
        # Not getrusage where this exists: there a process inherits the peak of the one that started it.
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 2**10
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    print(json.dumps(_run(json.loads(sys.argv[1]))))
