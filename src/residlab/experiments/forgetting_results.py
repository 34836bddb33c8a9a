"""Reading the records of ``forgetting``: fronts, the setting of each norm, and differences with their intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residlab.errors import ResidlabError
from residlab.experiments.intervals import PairedDifferences, paired_differences
from residlab.experiments.record import Record

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tuned:
    """One run, look by look.

    Attributes
    ----------
    norm, seed, lr
        What it was.
    steps
        ``(looks,)``, the first 0.
    own, former
        ``(looks,)``: bits per byte on held-out text of what it was tuned on, and of what it had learnt before.
    moved, rms
        Role -> ``(looks,)``: relative movement of its weights, and their root mean square.
    """

    norm: str
    seed: int
    lr: float
    steps: NDArray[np.int64]
    own: FloatArray
    former: FloatArray
    moved: Mapping[str, FloatArray]
    rms: Mapping[str, FloatArray]

    @property
    def forgotten(self) -> FloatArray:
        """``former`` less what it was before the first step."""
        return np.asarray(self.former - self.former[0])

    @property
    def learnt(self) -> FloatArray:
        """What ``own`` was before the first step, less ``own``."""
        return np.asarray(self.own[0] - self.own)


def tuned_runs(records: Iterable[Record]) -> list[Tuned]:
    """Return the runs of records, in their order.

    Raises
    ------
    ResidlabError
        If a record has no looks at its departure.
    """
    runs = []
    for record in records:
        looks = record.metrics.get("looks", {})
        if "departure" not in looks:
            raise ResidlabError(f"the record {record.hash} of {record.experiment} has no looks at its departure")
        seen = looks["departure"]
        runs.append(
            Tuned(
                norm=record.config["model"]["norm"]["kind"],
                seed=record.seed,
                lr=record.config["optimizer"]["lr"],
                steps=np.asarray(looks["step"], dtype=np.int64),
                own=_numbers(seen["bits_per_byte"]["own"]),
                former=_numbers(seen["bits_per_byte"]["former"]),
                moved={role: _numbers(values) for role, values in seen["moved"].items()},
                rms={role: _numbers(values) for role, values in seen["rms"].items()},
            )
        )
    return runs


def _numbers(values: Sequence[Any]) -> FloatArray:
    """Return values as float64; what was not finite stands in a record as its name."""
    return np.array([float(value) for value in values])


def front(own: FloatArray, former: FloatArray) -> NDArray[np.int64]:
    """Return the indices of the points that no other beats on both losses, from the least ``own`` on.

    A point is beaten by one that is nowhere higher and somewhere lower; of equals the first stays. What is not finite
    is left out.
    """
    finite = np.flatnonzero(np.isfinite(own) & np.isfinite(former))
    order = finite[np.lexsort((former[finite], own[finite]))]
    kept, least = [], np.inf
    for index in order:
        if former[index] < least:
            kept.append(int(index))
            least = former[index]
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Setting:
    """A norm at one rate and length, seed by seed: its place among the looks, and what was seen there."""

    norm: str
    lr: float
    look: int
    runs: tuple[Tuned, ...]

    @property
    def steps(self) -> int:
        """How many."""
        return int(self.runs[0].steps[self.look])

    def of(self, name: str) -> FloatArray:
        """Return ``own``, ``former``, ``forgotten`` or ``learnt`` here, one value for each seed."""
        return np.array([getattr(run, name)[self.look] for run in self.runs])

    def before(self, name: str) -> FloatArray:
        """Return the same before the first step."""
        return np.array([getattr(run, name)[0] for run in self.runs])

    def moved(self, role: str) -> FloatArray:
        """Return a role's relative movement here, one value for each seed; NaN where the norm has no such parameter."""
        return np.array([run.moved[role][self.look] if role in run.moved else np.nan for run in self.runs])


def settings(runs: Sequence[Tuned]) -> list[Setting]:
    """Return every norm at every rate and length but 0, its seeds in order.

    Raises
    ------
    ResidlabError
        If norms or rates do not have the same seeds, or looks differ: such runs are not paired.
    """
    seeds = sorted({run.seed for run in runs})
    found = []
    for norm in dict.fromkeys(run.norm for run in runs):
        for lr in sorted({run.lr for run in runs if run.norm == norm}):
            group = sorted((run for run in runs if (run.norm, run.lr) == (norm, lr)), key=lambda run: run.seed)
            if [run.seed for run in group] != seeds:
                raise ResidlabError(
                    f"{norm} at {lr:g} has the seeds {[run.seed for run in group]}, the runs {seeds}: "
                    "some are missing, or there are two of one"
                )
            if any(not np.array_equal(run.steps, runs[0].steps) for run in group):
                raise ResidlabError(f"{norm} at {lr:g} looked at other steps than {runs[0].steps.tolist()}")
            found += [Setting(norm, lr, look, tuple(group)) for look in range(1, len(runs[0].steps))]
    return found


def chosen(runs: Sequence[Tuned]) -> dict[str, Setting]:
    """Return each norm at the rate and length with the lowest ``own``, averaged over seeds.

    Raises
    ------
    ResidlabError
        As `settings`.
    """
    best: dict[str, Setting] = {}
    for one in settings(runs):
        if one.norm not in best or _mean(one) < _mean(best[one.norm]):
            best[one.norm] = one
    return best


def _mean(setting: Setting) -> float:
    value = float(np.mean(setting.of("own")))
    return value if np.isfinite(value) else np.inf


def differences(values: Mapping[str, FloatArray], norm: str = "bhyt") -> dict[str, tuple[float, float, float]]:
    """Return the difference of a norm to each other one, and its interval of 95 %, from values by norm and seed.

    The interval is `paired_differences`' of all norms together.

    Raises
    ------
    ResidlabError
        As `paired_differences`, or if the norm is not there.
    """
    names = list(values)
    if norm not in names:
        raise ResidlabError(f"norm must be one of {', '.join(names)}; got {norm!r}")
    found: PairedDifferences = paired_differences(np.stack([values[name] for name in names]))
    row = names.index(norm)
    return {
        name: (float(found.differences[row, other]), *found.interval(row, other))
        for other, name in enumerate(names)
        if name != norm
    }


def former_at(own: float, run: Tuned) -> float:
    """Return a run's ``former`` where its ``own`` came down to a value, between looks on a line; NaN if it did not."""
    below = np.flatnonzero(run.own <= own)
    if not len(below):
        return float("nan")
    after = int(below[0])
    if after == 0:
        return float(run.former[0])
    share = (run.own[after - 1] - own) / (run.own[after - 1] - run.own[after])
    return float(run.former[after - 1] + share * (run.former[after] - run.former[after - 1]))


def pace(run: Tuned, role: str = "all") -> float:
    """Return the exponent p of ``moved ~ steps**p``, fitted to the looks after the first step by least squares."""
    after = run.steps > 0
    slope, _ = np.polyfit(np.log(run.steps[after]), np.log(run.moved[role][after]), 1)
    return float(slope)
