"""Progress of chapters on standard error: bars on a terminal, one line a chapter elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Board:
    """A bar for each chapter: cells done of all, time gone and time left; threads may report at once.

    Parameters
    ----------
    chapters : sequence of (name, cells, reason)
        What will run, how many code cells it has, and why it runs.
    """

    def __init__(self, chapters: Sequence[tuple[str, int, str]]) -> None:
        self._console = Console(stderr=True)
        self._cells = {name: cells for name, cells, _ in chapters}
        self._reasons = {name: reason for name, _, reason in chapters}
        self._width = max((len(name) for name, _, _ in chapters), default=0)
        self._done = 0
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the finished bars standing."""
        self._bars.stop()

    def start(self, name: str) -> None:
        """Say that a chapter starts, and why."""
        reason = self._reasons[name]
        self._tasks[name] = self._bars.add_task(name.ljust(self._width), total=self._cells[name], note="")
        if self._bars.disable:
            print(f"{name}: executing ({reason})", file=sys.stderr, flush=True)
        else:
            self._bars.console.print(f"  [dim]{name}: {reason}[/dim]", highlight=False)

    def cell(self, name: str, number: int) -> None:
        """Say that a chapter's code cell ``number`` starts, so that those before it are done."""
        self._bars.update(self._tasks[name], completed=number - 1)

    def finish(self, name: str, seconds: float, failure: str | None) -> None:
        """Say that a chapter ended."""
        self._done += 1
        task = self._tasks[name]
        if failure is None:
            self._bars.update(task, completed=self._cells[name])
        else:
            self._bars.update(task, note="[red]failed[/red]")
            self._bars.stop_task(task)
        if self._bars.disable:
            state = "failed" if failure else "done"
            print(f"{name}: {state} in {seconds:.1f} s [{self._done}/{len(self._cells)}]", file=sys.stderr, flush=True)
