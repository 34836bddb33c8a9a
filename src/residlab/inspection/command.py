"""``residlab inspect``: the command, its progress, its summary on the terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from residlab.inspection.measure import Inspection

_WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a folder with config.json, safetensors files and a tokenizer"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report, one HTML page, to this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument(
        "--max-memory", metavar="SIZE", help="refuse a model that needs more, as 3GB (default: 3/4 of what is free)"
    )
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help="how many to read (default: 2048)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="a text of yours (default: one that is packaged)")


def run(args: argparse.Namespace) -> int:
    """Inspect a model, write what was asked for, and print a summary.

    Raises
    ------
    ResidlabError
        If a file could not be written, before anything is read; or as `residlab.inspection.inspect.inspect`.
    """
    for option, file in (("--report", args.report), ("--json", args.json)):
        if file is not None:
            _check_target(option, file)
            _check_not_read(option, file, args)
    if args.report and args.json and args.report.resolve() == args.json.resolve():
        raise ResidlabError(f"--report and --json are one file, {args.report}: name two")

    from residlab.data.cache import write_atomic
    from residlab.data.progress import say
    from residlab.inspection.inspect import inspect
    from residlab.inspection.page import page

    with _progress() as advance:
        seen = inspect(
            args.path,
            tokens=args.tokens,
            text=args.text,
            max_memory=args.max_memory,
            tell_memory=lambda memory: say(f"this takes {memory}"),
            advance=advance,
        )
    if args.json:
        numbers = json.dumps(seen.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_atomic(args.json, numbers.encode(errors="backslashreplace"))  # the name of a file may be no text
    if args.report:
        write_atomic(args.report, page(seen).encode(errors="backslashreplace"))
    print(summary(seen))
    for what, file in (("report", args.report), ("numbers", args.json)):
        if file:
            print(f"The {what}: {file}")
    if not args.report:
        print("The whole report as a page: --report FILE.html")
    return 0


def _check_target(option: str, file: Path) -> None:
    if file.is_dir():
        raise ResidlabError(f"{option} {file} is a folder: name a file")
    if file.exists() and not file.is_file():  # a device or a pipe
        if not os.access(file, os.W_OK):
            raise ResidlabError(f"{option} {file} cannot be written: it allows no writing")
        return
    folder = Path(os.path.realpath(file)).parent if file.is_symlink() else file.parent
    if not folder.is_dir():
        raise ResidlabError(f"{option} {file}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise ResidlabError(f"{option} {file} cannot be written: {folder} allows no writing")


def _check_not_read(option: str, file: Path, args: argparse.Namespace) -> None:
    """Refuse to write over what is read."""
    target = file.resolve()
    if args.text is not None and target == args.text.resolve():
        raise ResidlabError(f"{option} {file} is the text that is read: name another file")
    if not target.exists() or not args.path.is_dir():
        return
    # In the cache of Hugging Face, the files of the folder are links into another one.
    own = {each.resolve() for each in args.path.iterdir()}
    if target in own or args.path.resolve() in (target.parent, file.parent.resolve()):
        raise ResidlabError(f"{option} {file} is a file of the model: name another")


def summary(seen: Inspection) -> str:
    """Return what was found, for a terminal of 80 columns."""
    from residlab.inspection.findings import findings
    from residlab.inspection.memory import gigabytes
    from residlab.inspection.page import millions

    model, text, resources = seen.model, seen.text, seen.resources
    lines = textwrap.wrap(
        f"{model['name']}: {model['architecture']}, {millions(model['parameters'])}, {model['layers']} blocks; "
        f"{text['tokens']:,} tokens of {text['name']}, {seen.nats:.2f} nats per token",
        _WIDTH,
    )
    for each in findings(seen):
        lines += ["", f"{each.title}: {each.value} {each.unit}"]
        lines += textwrap.wrap(each.sentence, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", f"{resources['total_seconds']:.0f} s, {gigabytes(resources['memory_taken'])} of memory"]
    return "\n".join(lines)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what happens now."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting ...") as status:
        yield lambda what: status.update(f"{what} ...")
