"""Experiments with a name: stages of runs, where a later stage may look at the records of earlier ones.

``residlab run bhyt-depth`` runs one. A stage is a sweep of its own, recorded under ``experiment/stage``; a run that is
recorded is not run again, and one that was ended half-way goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from residlab.experiments.record import Record, Records
    from residlab.experiments.sweep import Sweep, Task

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "bhyt-depth": "residlab.experiments.bhyt_depth",
        "forgetting": "residlab.experiments.forgetting",
        "residual-free": "residlab.experiments.residual_free",
        "rounding": "residlab.experiments.rounding",
        "together": "residlab.experiments.together",
    }
)
"""Name -> the module that has its ``STAGES`` and its ``PROFILES``."""


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes
    ----------
    name
        Its name.
    purpose
        What it is for, a line for people.
    configs
        From a profile and the records so far to its runs, each once. A stage that needs records that are not there
        raises `ResidlabError`.

    Examples
    --------
    >>> Stage("short", "ten steps, to see that it runs", lambda profile, found: []).configs("smoke", None)
    []
    """

    name: str
    purpose: str
    configs: Callable[[str, Found], Sequence[Task]]


class Found:
    """The records of one experiment, by stage, for stages that build on them.

    Examples
    --------
    >>> from residlab.experiments.record import Records
    >>> Found("rounding", Records(Path("none.jsonl"))).stage("roles")  # nothing is recorded there
    []
    """

    def __init__(self, experiment: str, records: Records) -> None:
        self.experiment, self.records = experiment, records

    def stage(self, name: str) -> list[Record]:
        """Return a stage's records."""
        return [record for record in self.records if record.experiment == f"{self.experiment}/{name}"]

    def beside(self, experiment: str, profile: str) -> Found:
        """Return the records of another experiment in a profile, from the file beside this one."""
        if experiment == self.experiment:
            return self
        return Found(experiment, type(self.records)(self.records.file.with_name(f"{experiment}-{profile}.jsonl")))


def stages_of(experiment: str) -> tuple[Stage, ...]:
    """Return an experiment's stages, in their order.

    Raises
    ------
    ResidlabError
        If there is no such experiment.

    Examples
    --------
    >>> [stage.name for stage in stages_of("forgetting")]
    ['main']
    """
    stages: tuple[Stage, ...] = _module_of(experiment).STAGES
    return stages


def profiles_of(experiment: str) -> tuple[str, ...]:
    """Return the names of an experiment's profiles; errors as `stages_of`.

    Examples
    --------
    >>> profiles_of("forgetting")
    ('smoke', 'cpu', 'gpu')
    """
    return tuple(_module_of(experiment).PROFILES)


def _module_of(experiment: str) -> ModuleType:
    if experiment not in EXPERIMENTS:
        raise ResidlabError(f"experiment must be one of {', '.join(EXPERIMENTS)}; got {experiment!r}")
    return importlib.import_module(EXPERIMENTS[experiment])


def chosen_stages(experiment: str, profile: str, names: tuple[str, ...] = ()) -> list[Stage]:
    """Return the stages of these names, by default all, in the experiment's order.

    Raises
    ------
    ResidlabError
        If there is no such experiment, stage or profile.

    Examples
    --------
    >>> [stage.name for stage in chosen_stages("rounding", "smoke", names=("roles",))]
    ['roles']
    """
    known, sizes = stages_of(experiment), profiles_of(experiment)
    if profile not in sizes:
        raise ResidlabError(f"{experiment} has the profiles {', '.join(sizes)}; got {profile!r}")
    unknown = sorted(set(names) - {stage.name for stage in known})
    if unknown:
        raise ResidlabError(
            f"{experiment} has no stage {', '.join(unknown)}; it has {', '.join(stage.name for stage in known)}"
        )
    return [stage for stage in known if not names or stage.name in names]


def run_experiment(
    experiment: str, records: Records, *, profile: str, stages: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple[Stage, list[Record]]]:
    """Run an experiment's stages one after the other; yield each with its records, in the order of `stage_sweep`.

    Parameters
    ----------
    experiment
        A key of `EXPERIMENTS`.
    records
        Where records are, and go.
    profile
        The size, one of the experiment's.
    stages
        Names of those to run; by default all.
    options
        As for `run_sweep`.

    Raises
    ------
    ResidlabError
        If a name is unknown, or as `run_sweep`.

    Examples
    --------
    >>> from residlab.experiments.record import Records
    >>> records = Records(Path("forgetting-smoke.jsonl"))
    >>> for stage, found in run_experiment("forgetting", records, profile="smoke"):  # doctest: +SKIP
    ...     print(stage.name, len(found))
    ...
    >>> next(run_experiment("forgetting", records, profile="huge"))
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: forgetting has the profiles smoke, cpu, gpu; got 'huge'
    """
    from residlab.experiments.sweep import run_sweep

    for stage in chosen_stages(experiment, profile, stages):
        done: list[Record] = []
        while True:  # a stage may ask for more runs when it has seen the first
            sweep = stage_sweep(experiment, stage, profile, records)
            if len(sweep.configs) == len(done):
                break
            done = run_sweep(sweep, records, **options)
        yield stage, done


def stage_sweep(experiment: str, stage: Stage, profile: str, records: Records) -> Sweep[Task]:
    """Return the runs that a stage asks for by the records so far, each once.

    Examples
    --------
    >>> from residlab.experiments.record import Records
    >>> records = Records(Path("none.jsonl"))
    >>> sweep = stage_sweep("bhyt-depth", stages_of("bhyt-depth")[0], "smoke", records)
    >>> len(sweep.configs) == len({config.hash for config in sweep.configs})  # each once
    True
    """
    from residlab.experiments.sweep import Sweep

    configs = stage.configs(profile, Found(experiment, records))
    return Sweep(f"{experiment}/{stage.name}", tuple({config.hash: config for config in configs}.values()))


def results_file(experiment: str, profile: str, root: Path) -> Path:
    """Return where a checkout keeps the records of an experiment: one file for each profile.

    Examples
    --------
    >>> results_file("forgetting", "cpu", Path("clone")).as_posix()
    'clone/results/forgetting-cpu.jsonl'
    """
    return root / "results" / f"{experiment}-{profile}.jsonl"
