"""``residlab run`` and ``residlab sweep``: training runs from a file, recorded."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from residlab.checks import environment_count
from residlab.errors import ResidlabError
from residlab.experiments.named import add_named_arguments, check_not_named, is_named, run_named
from residlab.experiments.plans import EXPERIMENTS


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``residlab run``."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="YAML: experiment and base, a training run's options; or a name, below"
    )
    _add_common(parser)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="print a text of N tokens from the model")
    parser.add_argument(
        "--strategy",
        choices=("ddp", "fsdp"),
        default="ddp",
        help="how processes started by torchrun train one model: each holds all of it (ddp, the default) or a part of "
        "weights, gradients and optimizer state (fsdp); the result is the same up to rounding",
    )
    add_named_arguments(parser)


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``residlab sweep``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML: experiment, base and grid")
    _add_common(parser)
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes on this machine (default: 1)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://...: its workers run instead")
    parser.add_argument("--list", action="store_true", help="list the runs and which are recorded, and run nothing")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="records, JSON lines (default: FILE's name, .jsonl, beside it; of an experiment of the book, "
        "results/NAME-PROFILE.jsonl)",
    )
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="texts and checkpoints (default: the user's)")


def run_one(args: argparse.Namespace) -> int:
    """Train what a file describes, or go on with it, and print the record's main figures.

    Raises
    ------
    ResidlabError
        If the file describes several runs, or as `run_sweep`.
    """
    from residlab.experiments.record import Records
    from residlab.experiments.sweep import read_sweep, run_sweep, score
    from residlab.experiments.training_run import sampled
    from residlab.training.memory import step_memory

    _end_on_termination()
    if is_named(args.file) and not args.file.exists():
        return run_named(args)
    check_not_named(args)
    if not args.file.exists():
        raise ResidlabError(
            f"{args.file} is no file, and no experiment of the book either; these are {', '.join(EXPERIMENTS)}"
        )
    sweep = read_sweep(args.file)
    if len(sweep.configs) != 1:
        raise ResidlabError(f"{args.file} describes {len(sweep.configs)} runs: residlab sweep runs them")
    (config,) = sweep.configs
    if not 0 <= args.sample < config.model.context:
        raise ResidlabError(f"--sample must be in [0, {config.model.context}), the context; got {args.sample}")
    follower = environment_count("RANK", 0) > 0  # under torchrun, one process speaks
    quiet: dict[str, Any] = {"say": lambda line: None} if follower else {}
    if not follower:
        processes = environment_count("WORLD_SIZE", 1)
        each = " in each process" if processes > 1 else ""
        memory = step_memory(config, processes=processes, strategy=args.strategy)
        print(f"residlab: training takes {memory}{each}", file=sys.stderr)
    (record,) = run_sweep(sweep, Records(_results(args)), cache=args.cache_dir, strategy=args.strategy, **quiet)
    if follower:
        return 0
    metrics = record.metrics
    print(f"{record.experiment} {record.hash}: {score(config, record)} on held-out text")
    print(f"{metrics['parameters']:,} parameters, {metrics['tokens']:,} tokens, {metrics['skipped']} updates skipped")
    if args.sample:
        print(sampled(config, args.sample, cache=args.cache_dir))
    return 0


def run_many(args: argparse.Namespace) -> int:
    """Run a sweep, and print a line for each of its runs.

    Raises
    ------
    ResidlabError
        As `read_sweep` and `run_sweep`.
    """
    from residlab.experiments.record import Records
    from residlab.experiments.sweep import read_sweep, run_sweep, score
    from residlab.experiments.training_run import run_hash

    _end_on_termination()
    if args.jobs < 1:
        raise ResidlabError(f"--jobs must be >= 1; got {args.jobs}")
    if args.scheduler and args.jobs != 1:
        raise ResidlabError("--jobs is for this machine, --scheduler for a cluster: give one of them")
    sweep, records = read_sweep(args.file), Records(_results(args))
    if args.list:
        known = {record.hash for record in records if record.experiment == sweep.experiment}
        for config in sweep.configs:
            name = run_hash(config, cache=args.cache_dir)
            state = "recorded" if name in known else "to run"
            print(f"{name}  {state:<9} {config.model.norm.kind:<10} {config.optimizer.kind:<11} {config.seed}")
        return 0
    found = run_sweep(sweep, records, cache=args.cache_dir, jobs=args.jobs, scheduler=args.scheduler)
    for config, record in zip(sweep.configs, found, strict=True):
        print(f"{record.hash}  {score(config, record)}")
    return 0


def _end_on_termination() -> None:
    """Make a termination or a closed terminal end this process as Ctrl-C does, with its workers; not under nohup."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


def _results(args: argparse.Namespace) -> Path:
    file: Path = args.results or args.file.with_suffix(".jsonl")
    if file.is_dir():
        raise ResidlabError(f"--results {file} is a folder: name a file")
    if file.parent.exists() and not os.access(file.parent, os.W_OK):
        raise ResidlabError(f"{file} cannot be written: {file.parent} allows no writing")
    if not environment_count("RANK", 0):
        print(f"residlab: records are kept in {file}", file=sys.stderr)
    return file
