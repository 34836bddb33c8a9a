"""The recorded cost of norms: ratios of throughput and their intervals, read from what ``residlab bench cost`` wrote.

A ratio is formed round by round, so that what slows the machine slows both; a block of rounds gives the median of its
logarithms, and the interval is Student's over the blocks. Where a norm has several kernels, the best one *of the other
blocks* stands for it in each block: none is chosen for its luck.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from residlab.errors import ResidlabError

Kernels = Literal["best", "eager"]
Cell = tuple[int, int]


class Ratio(NamedTuple):
    """A ratio with its 95 % interval."""

    middle: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What it says of "more than 1": ``holds`` or ``does not hold`` with the whole interval, else ``undecided``."""
        return "holds" if self.low > 1 else "does not hold" if self.high < 1 else "undecided"


@dataclass(frozen=True)
class CostRecord:
    """One recorded run.

    Attributes
    ----------
    found
        The suite's part of the file.
    around
        The rest: machine, versions, commit, time.
    """

    found: Mapping[str, Any]
    around: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> "CostRecord":
        """Read a file.

        Raises
        ------
        ResidlabError
            If it is missing or no such record.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(content.pop("cost"), content)
        except FileNotFoundError:
            raise ResidlabError(f"{file} is not there: residlab bench cost --json {file} records it") from None
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ResidlabError(f"{file} is no record of residlab bench cost: {error!r}") from None

    @property
    def cells(self) -> list[Cell]:
        """The (width, batch) pairs, in the order of the file."""
        return list(dict.fromkeys((point["width"], point["batch"]) for point in self.found["points"]))

    def point(self, workload: str, cell: Cell) -> Mapping[str, Any]:
        """Return what was found of a workload at a size.

        Raises
        ------
        ResidlabError
            If it was not measured.
        """
        for point in self.found["points"]:
            if (point["workload"], point["width"], point["batch"]) == (workload, *cell):
                return point  # type: ignore[no-any-return]
        raise ResidlabError(f"the record has no {workload} at width {cell[0]}, batch {cell[1]}")

    def kernels(self, kind: str, workload: str, cell: Cell) -> list[str]:
        """Return the kernels that a norm was timed with."""
        names = (name.rpartition("/") for name in self.point(workload, cell)["seconds"])
        found = [kernel for mine, _, kernel in names if mine == kind]
        if not found:
            raise ResidlabError(f"the record has no {kind!r} in {workload}")
        return found

    def chosen(self, kind: str, workload: str, cell: Cell, kernels: Kernels, block: int | None = None) -> str:
        """Return the contender that stands for a norm in a block; without one, the best of all blocks."""
        names = [f"{kind}/{kernel}" for kernel in self.kernels(kind, workload, cell)]
        if kernels == "eager":
            return next(name for name in names if name.endswith("/eager"))
        seconds = self.point(workload, cell)["seconds"]

        def median(name: str) -> float:
            return float(statistics.median(s for b, rounds in enumerate(seconds[name]) if b != block for s in rounds))

        return min(names, key=median)

    def seconds(self, kind: str, workload: str, cell: Cell, kernels: Kernels = "best") -> float:
        """Return the median seconds of a call."""
        blocks = self.point(workload, cell)["seconds"][self.chosen(kind, workload, cell, kernels)]
        return float(statistics.median(s for block in blocks for s in block))

    def ratio(
        self,
        kind: str,
        workload: str,
        *,
        over: str = "rmsnorm",
        cells: Sequence[Cell] | None = None,
        kernels: Kernels = "best",
        over_kernels: Kernels | None = None,
    ) -> Ratio:
        """Return the throughput of a norm over that of another; of several sizes, the geometric mean (default: all)."""
        cells = self.cells if cells is None else cells
        logs = []
        for block in range(self.found["blocks"]):
            parts = []
            for cell in cells:
                mine = self.chosen(kind, workload, cell, kernels, block)
                other = self.chosen(over, workload, cell, over_kernels or kernels, block)
                seconds = self.point(workload, cell)["seconds"]
                rounds = zip(seconds[mine][block], seconds[other][block], strict=True)
                parts.append(statistics.median(math.log(theirs / ours) for ours, theirs in rounds))
            logs.append(statistics.fmean(parts))
        return _ratio(logs)

    def fused_gain(self, kind: str, workload: str) -> Ratio:
        """Return the throughput with the best kernel over that of the same norm run eagerly."""
        return self.ratio(kind, workload, over=kind, over_kernels="eager")


def _ratio(logs: Sequence[float]) -> Ratio:
    """Return the geometric mean and Student's 95 % interval of logarithms."""
    from scipy.stats import t

    middle = statistics.fmean(logs)
    half = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
