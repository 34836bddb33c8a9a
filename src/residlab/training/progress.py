"""What a person sees while a model trains: loss, tokens a second and the time left, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def training_bar(label: str, steps: int, done: int) -> Iterator[Callable[[int, float, float], None]]:
    """Show a bar; yield the function that takes the step, the loss and tokens a second. Quiet without a terminal."""
    if not sys.stderr.isatty():
        yield lambda step, loss, rate: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total}  loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(label, total=steps, completed=done, loss="-", rate="-")

        def advance(step: int, loss: float, rate: float) -> None:
            progress.update(task, completed=step, loss=f"{loss:.3f}", rate=f"{rate:,.0f}")

        yield advance
