"""``residlab run NAME``: an experiment of the book, stage by stage, from the command line."""

import argparse
from pathlib import Path

from residlab.errors import ResidlabError
from residlab.experiments.plans import EXPERIMENTS, chosen_stages, results_file, run_experiment, stage_sweep

PROFILES = ("smoke", "cpu", "gpu", "gpu-short")


def is_named(file: Path) -> bool:
    """Return whether a command's FILE is the name of an experiment."""
    return str(file) in EXPERIMENTS


def add_named_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what only an experiment with a name takes."""
    group = parser.add_argument_group("for an experiment of the book", f"FILE is one of {', '.join(EXPERIMENTS)}")
    group.add_argument("--profile", choices=PROFILES, help="its size, where it has it (default: cpu)")
    group.add_argument(
        "--stage", action="append", metavar="NAME", help="run this stage (may be repeated; default: all)"
    )
    group.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="processes on this machine (default: 1)")
    group.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://...: its workers run instead")
    group.add_argument("--list", action="store_true", help="list the stages and what is recorded, and run nothing")


def check_not_named(args: argparse.Namespace) -> None:
    """Refuse options of named experiments beside a file.

    Raises
    ------
    ResidlabError
        If one was given.
    """
    given = {
        "--profile": args.profile,
        "--stage": args.stage,
        "--scheduler": args.scheduler,
        "--list": args.list,
        "--jobs": args.jobs != 1,
    }
    for option, value in given.items():
        if value:
            raise ResidlabError(
                f"{option} belongs to the experiments {', '.join(EXPERIMENTS)}; {args.file} is none of them"
            )


def run_named(args: argparse.Namespace) -> int:
    """Run an experiment, or what is missing of it, and print a line for each run.

    Raises
    ------
    ResidlabError
        If an option is not allowed, or as `run_experiment`.
    """
    from residlab.experiments.record import Records
    from residlab.experiments.sweep import about, score

    experiment, profile = str(args.file), args.profile or "cpu"
    if args.jobs < 1:
        raise ResidlabError(f"--jobs must be >= 1; got {args.jobs}")
    if args.scheduler and args.jobs != 1:
        raise ResidlabError("--jobs is for this machine, --scheduler for a cluster: give one of them")
    if args.sample:
        raise ResidlabError(f"--sample is for a file that describes one run; {experiment} has many")
    chosen = chosen_stages(experiment, profile, tuple(args.stage or ()))
    file = args.results or results_file(experiment, profile, Path())
    records = Records(file)
    if args.list:
        print(f"{file}{'' if file.exists() else ', which is not there yet'}")
        counts: dict[str, int] = {}
        for record in records:
            counts[record.experiment] = counts.get(record.experiment, 0) + 1
        for stage in chosen:
            print(f"{stage.name:<10} {counts.get(f'{experiment}/{stage.name}', 0):>3} recorded  {stage.purpose}")
        return 0
    if not file.parent.is_dir():
        raise ResidlabError(f"records go to {file}: there is no folder {file.parent}; run this in a clone's root")
    done = run_experiment(
        experiment,
        records,
        profile=profile,
        stages=tuple(args.stage or ()),
        cache=args.cache_dir,
        jobs=args.jobs,
        scheduler=args.scheduler,
        strategy=args.strategy,
    )
    for stage, found in done:
        tasks = stage_sweep(experiment, stage, profile, records).configs
        for task, record in zip(tasks, found, strict=True):
            print(f"{stage.name:<10} {record.hash}  {about(task)}  {score(task, record)}", flush=True)
    return 0
