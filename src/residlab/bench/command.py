"""``residlab bench``: the benchmarks, their progress, their tables and their file."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from residlab.errors import ResidlabError

SUITES = ("norms", "rounding", "training", "generation", "scaling", "trainer", "cost")
BY_NAME = ("cost",)
"""Suites that take ten minutes and run only when asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    suites = f"any of {', '.join(SUITES)} (default: all but {', '.join(BY_NAME)})"
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=suites)
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="torch threads (default: 2)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="rounds, blocks of cost (default: 7)")
    parser.add_argument("--no-compile", action="store_true", help="leave out what needs a C++ compiler")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, and the machine, to this file")


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks that were asked for.

    Raises
    ------
    ResidlabError
        If a suite is unknown, a number is out of range, or the file cannot be written.
    """
    unknown = [name for name in args.suites if name not in SUITES]
    if unknown:
        raise ResidlabError(f"there is no benchmark {unknown[0]!r}; there are {', '.join(SUITES)}")
    for name in ("threads", "repeats"):
        if getattr(args, name) < 1:
            raise ResidlabError(f"--{name} must be >= 1; got {getattr(args, name)}")
    if args.json and not args.json.parent.is_dir():
        raise ResidlabError(f"--json {args.json}: there is no folder {args.json.parent}")
    if args.json and args.json.is_dir():
        raise ResidlabError(f"--json {args.json} is a folder: name a file")

    from rich.console import Console

    from residlab.bench.timing import machine, threads
    from residlab.data.cache import write_atomic
    from residlab.experiments.record import commit, hardware, now, versions

    console = Console(width=None if sys.stdout.isatty() else 100)
    found: dict[str, Any] = {}
    with threads(args.threads):
        found["machine"] = machine()
        load = found["machine"]["load"]
        if load is not None and load > 0.3 * (os.cpu_count() or 1):
            print(f"residlab: this machine is busy (load {load:.1f}): believe ratios only", file=sys.stderr)
        for suite in args.suites or [suite for suite in SUITES if suite not in BY_NAME]:
            with _progress(suite) as advance:
                found[suite] = _RUNNERS[suite](args, console, advance)
    if args.json:
        found |= {"versions": versions(), "hardware": hardware(), "commit": commit(), "time": now()}
        write_atomic(args.json, (json.dumps(found, indent=2) + "\n").encode())
    return 0


def _norms(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.norm_kernels import measure, render
    from residlab.kernels import compiled

    if not compiled.available():
        return None
    table = measure(
        threads=sorted({1, args.threads}),
        repetitions=10 * args.repeats,
        with_torch_compile=not args.no_compile,
        advance=advance,
    )
    console.print(render(table), highlight=False, soft_wrap=True)
    console.print()
    return [dataclasses.asdict(row) for row in table]


def _rounding(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.report import show
    from residlab.bench.rounding import product_speed, rounding_speed
    from residlab.precision import compiled
    from residlab.precision.formats import BF16, FP16

    with_compiler = not args.no_compile and compiled.available()
    reports = {
        fmt.name: rounding_speed(fmt, repeats=args.repeats, compiled=with_compiler, advance=advance)
        for fmt in (BF16, FP16)
    }
    if with_compiler:
        reports["product"] = product_speed(repeats=args.repeats, advance=advance)
    for report in reports.values():
        show(report, console)
    return {name: report.to_dict() for name, report in reports.items()}


def _training(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.models import training_step
    from residlab.bench.report import show

    report = training_step(repeats=args.repeats, compiled=not args.no_compile, advance=advance)
    show(report, console)
    return report.to_dict()


def _generation(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.models import cached_generation
    from residlab.bench.report import show

    report = cached_generation(repeats=args.repeats, advance=advance)
    show(report, console)
    return report.to_dict()


def _scaling(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench import scaling

    found = {}
    for sweep in scaling.SWEEPS:
        points = scaling.points(sweep, repeats=min(args.repeats, 5), advance=advance)
        scaling.show(sweep, points, console)
        found[sweep] = [dataclasses.asdict(point) for point in points]
    return found


def _trainer(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.trainer import show, trainer_costs

    costs = trainer_costs(min(args.repeats, 5), advance=advance)
    show(costs, console)
    return {**dataclasses.asdict(costs), "overhead": costs.overhead}


def _cost(args: argparse.Namespace, console: Any, advance: Callable[[str], None]) -> Any:
    from residlab.bench.cost import WORKLOADS, measure, settings_here
    from residlab.bench.cost_record import CostRecord
    from residlab.models.config import NORMS

    found = measure(settings_here(), blocks=args.repeats, advance=advance)
    record = CostRecord(found, {})
    console.print("throughput over RMSNorm, best kernel of each, all sizes: ratio [95 % interval]")
    for kind in NORMS:
        ratios = {workload: record.ratio(kind, workload) for workload in WORKLOADS}
        cells = (f"{name} {r.middle:.3f} [{r.low:.3f}, {r.high:.3f}]" for name, r in ratios.items())
        console.print(f"{kind:<10} {'  '.join(cells)}", highlight=False, markup=False, soft_wrap=True)
    return found


_RUNNERS = {
    "norms": _norms,
    "rounding": _rounding,
    "training": _training,
    "generation": _generation,
    "scaling": _scaling,
    "trainer": _trainer,
    "cost": _cost,
}


@contextmanager
def _progress(suite: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being timed."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{suite} ...") as status:
        calls = 0

        def advance(name: str) -> None:
            nonlocal calls
            calls += 1
            status.update(f"{suite}: {name} ({calls} runs)")

        yield advance
