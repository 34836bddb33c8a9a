"""What a benchmark says: rows of one table, for a terminal of 80 columns and for a file."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from residlab.bench.timing import Timing, machine


@dataclass(frozen=True)
class Row:
    """One contender: its timing, how many times faster than the reference it is, and its floor.

    Attributes
    ----------
    name
        The contender.
    timing
        Its seconds.
    speed
        The reference's median over this one's; None for the reference itself.
    floor
        The least seconds that its operations or bytes need here; None where none is known.
    note
        What else to know, one phrase.
    """

    name: str
    timing: Timing
    speed: float | None = None
    floor: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.name,
            **self.timing.to_dict(),
            "speed": self.speed,
            "floor_s": self.floor,
            "note": self.note,
        }


@dataclass(frozen=True)
class Report:
    """One benchmark: what was timed, against what, where."""

    title: str
    reference: str
    rows: tuple[Row, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=machine)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}


def rows(timings: dict[str, Timing], reference: str, floors: dict[str, float] | None = None) -> tuple[Row, ...]:
    """Return a row for each timing, its speed relative to the reference's."""
    base = timings[reference].median
    return tuple(
        Row(name, timing, None if name == reference else base / timing.median, (floors or {}).get(name))
        for name, timing in timings.items()
    )


def show(report: Report, console: Console) -> None:
    """Print a report."""
    table = Table(title=report.title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("median", "spread", "speed", "floor", "× floor"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in report.rows:
        speed = "1" if row.speed is None else f"{row.speed:.2f}"
        floor = "" if row.floor is None else duration(row.floor)
        times = "" if row.floor is None else f"{row.timing.median / row.floor:.2f}"
        table.add_row(row.name, duration(row.timing.median), f"{row.timing.spread:.0%}", speed, floor, times, row.note)
    console.print(table)
    console.print(f"speed: how many times faster than {report.reference}, same run", style="dim")
    for note in report.notes:
        console.print(note, style="dim")
    console.print()


def duration(seconds: float) -> str:
    """Write seconds for people, three digits: 12.3 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
