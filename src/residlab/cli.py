"""The command line: ``residlab COMMAND``; each command imports what it needs, and no more."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import residlab
from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from residlab.compendium.project import Project

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    _Run = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever its encoding lacks is no reason to lose a result
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 2
    try:
        return int(args.run(args))
    except ResidlabError as error:
        print(f"residlab: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a disk that is full, a folder that cannot be written: no traceback explains more
        print(f"residlab: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("residlab: interrupted; what was finished stays, a rerun resumes", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    from residlab.bench.command import add_arguments as add_bench_arguments
    from residlab.data.command import add_arguments as add_fetch_arguments
    from residlab.experiments.command import add_run_arguments, add_sweep_arguments
    from residlab.inspection.command import add_arguments as add_inspect_arguments

    parser = argparse.ArgumentParser(prog="residlab", description="The residual stream: bound it, remove it, round it.")
    parser.add_argument("--version", action="version", version=f"residlab {residlab.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    fetch = commands.add_parser("fetch", help="bring the data sets: texts and a small trained model")
    add_fetch_arguments(fetch)
    fetch.set_defaults(run=_fetch)

    execute = _project_command(commands, "execute", "run stale chapters through papermill", _execute)
    execute.add_argument("chapters", nargs="*", metavar="CHAPTER", help="chapters (default: all), for instance 02")
    execute.add_argument(
        "-p",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter of one chapter; the result goes to executed/custom/ and never into the book",
    )
    execute.add_argument("-o", "--output", type=Path, metavar="FILE", help="with -p: write the executed notebook here")
    execute.add_argument("--list", action="store_true", help="list chapters, their parameters, and why they are stale")
    execute.add_argument("--force", action="store_true", help="run chapters that are not stale too")
    execute.add_argument("-j", "--jobs", type=int, metavar="N", help="chapters at once (default: one a core, up to 4)")
    execute.add_argument("--cell-timeout", type=float, metavar="S", help="seconds a cell may run (smoke: 900)")
    execute.add_argument("--chapter-timeout", type=float, metavar="S", help="seconds a chapter may run (smoke: 1800)")
    _add_profile(execute)

    build = _project_command(commands, "build", "execute what is stale and render the book", _build)
    build.add_argument("--strict", action="store_true", help="treat every warning as an error")
    build.add_argument("--fresh", action="store_true", help="render every page anew")
    build.add_argument("-v", "--verbose", action="store_true", help="show what Sphinx does")
    _add_profile(build)

    serve = _project_command(commands, "serve", "show the rendered book on this machine", _serve)
    serve.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any free one)")

    claims = _project_command(commands, "claims", "print the ledger of claims", _claims)
    claims.add_argument("--json", action="store_true", help="print a list of {id, verdict, value, interval, …}")
    claims.add_argument("--check", action="store_true", help="fail if a verdict differs from the accepted one")

    bench = commands.add_parser("bench", help="time norms and models side by side, with their floors")
    add_bench_arguments(bench)
    bench.set_defaults(run=_bench)

    inspect = commands.add_parser("inspect", help="measure a Hugging Face model's stream, on one page")
    add_inspect_arguments(inspect)
    inspect.set_defaults(run=_inspect)

    run = commands.add_parser("run", help="train a model that a file describes, or go on with it, and record it")
    add_run_arguments(run)
    run.set_defaults(run=_run)

    sweep = commands.add_parser("sweep", help="train a grid of models, here or on a cluster, and record them")
    add_sweep_arguments(sweep)
    sweep.set_defaults(run=_sweep)

    _project_command(commands, "pair", "bring each chapter's .md and .ipynb in step", _pair)
    return parser


def _project_command(commands: _Commands, name: str, text: str, run: _Run) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--root", type=Path, metavar="DIR", help="the compendium (default: found from here upwards)")
    parser.set_defaults(run=run)
    return parser


def _add_profile(parser: argparse.ArgumentParser) -> None:
    from residlab.compendium.profiles import PROFILES

    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="time limits, and the parameter profile of a chapter that has one (default: the last one, else smoke)",
    )


def _project(args: argparse.Namespace) -> Project:
    from residlab.compendium.project import Project

    return Project.find(args.root)


def _fetch(args: argparse.Namespace) -> int:
    from importlib.util import find_spec

    from residlab.data.command import run

    code = run(args)
    wanted = not args.names or "smollm2" in args.names
    if code == 0 and wanted and not args.list and find_spec("transformers"):
        # Here and not on first use, which is inside a chapter: its pages should not depend on who ran first.
        from residlab.models.hf import converted_smollm2

        converted_smollm2()
    return code


def _run(args: argparse.Namespace) -> int:
    from residlab.experiments.command import run_one

    return run_one(args)


def _sweep(args: argparse.Namespace) -> int:
    from residlab.experiments.command import run_many

    return run_many(args)


def _bench(args: argparse.Namespace) -> int:
    from residlab.bench.command import run

    return run(args)


def _inspect(args: argparse.Namespace) -> int:
    from residlab.inspection.command import run

    return run(args)


def _execute(args: argparse.Namespace) -> int:
    from residlab.compendium import execute as ex
    from residlab.compendium.profiles import Limits, recorded_profile

    project = _project(args)
    names = project.resolve_names(args.chapters)
    profile = args.profile or recorded_profile(project)
    limits = Limits.of(profile, args.cell_timeout, args.chapter_timeout)
    ex.check_workers(args.jobs)
    if args.output and not args.parameters:
        raise ResidlabError("--output goes with -p: without parameters the result belongs to the book")
    if args.list:
        if args.parameters:
            raise ResidlabError("--list shows what the book would run: it goes without -p")
        return _list_chapters(project, names, profile, force=args.force)
    with project.lock():
        if args.parameters:
            if len(names) != 1 or not args.chapters:
                raise ResidlabError(
                    "-p sets the parameters of one chapter: name it, as in residlab execute 02 -p kappa=5"
                )
            job = ex.custom_job(project, names[0], args.parameters, args.output)
            ex.raise_failures(ex.run_jobs(project, [job], profile, limits))
            print(job.output)
            return 0
        done = ex.execute(
            project,
            args.chapters and names,
            profile=args.profile,
            force=args.force,
            workers=args.jobs,
            cell_timeout=args.cell_timeout,
            chapter_timeout=args.chapter_timeout,
        )
    for name in project.unlisted(names):
        print(f"residlab: warning: {name} is not in _toc.yml: no page shows it", file=sys.stderr)
    print(f"{len(done)} executed, {len(names) - len(done)} unchanged", file=sys.stderr)
    return 0


def _list_chapters(project: Project, names: list[str], profile: str, *, force: bool) -> int:
    from residlab.compendium import execute as ex
    from residlab.compendium.chapter import Chapter

    stale = {job.chapter.name: job.reason for job in ex.stale_jobs(project, names, profile, force=force)}
    unlisted = project.unlisted(names)
    for name in names:
        chapter = Chapter(name, project.notebooks / f"{name}.md")
        note = ", not in _toc.yml" if name in unlisted else ""
        print(f"{name}  ({stale.get(name, 'up to date')}{note})")
        for parameter in chapter.parameters.values():
            print(f"    -p {parameter.name}={parameter.default}  {parameter.describe()}: {parameter.meaning}")
    return 0


def _build(args: argparse.Namespace) -> int:
    from residlab.compendium.build import build
    from residlab.compendium.profiles import record_profile

    project = _project(args)
    if args.profile:
        record_profile(project, args.profile)
    page = build(project, strict=args.strict, fresh=args.fresh, quiet=not args.verbose)
    print(f"The book is {page}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from residlab.compendium.build import serve

    return serve(_project(args), args.port)


def _pair(args: argparse.Namespace) -> int:
    from residlab.compendium.pairs import pair

    pair(_project(args))
    return 0


def _claims(args: argparse.Namespace) -> int:
    from residlab.compendium.ledger import departures, findings

    rows = findings(_project(args))
    if args.json:
        print(json.dumps([row.to_dict() for row in rows], indent=2, ensure_ascii=False))
    else:
        for row in rows:
            value = f"  {row.value:.4g}" if isinstance(row.value, float) else ""
            print(f"{row.id:<4} {row.verdict:<18} {row.chapter or '-'}{value}")
    if args.check and (differing := departures(rows)):
        raise ResidlabError("verdicts differ from the accepted ones: " + "; ".join(differing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
