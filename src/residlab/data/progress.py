"""Progress of a fetch: a bar on a terminal, one plain line a data set elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


def say(message: str) -> None:
    """Write one line to stderr."""
    print(f"residlab: {message}", file=sys.stderr, flush=True)


def megabytes(size: int) -> str:
    """Write a number of bytes for people, such as ``92.9 MB``."""
    return decimal(size)


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the bytes done so far, their rate and the time left; yield the function that takes the bytes done.

    Where stderr is no terminal nothing is shown.
    """
    if not sys.stderr.isatty():  # rich would be talked into a bar by FORCE_COLOR, in logs too
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=min(done, total))
