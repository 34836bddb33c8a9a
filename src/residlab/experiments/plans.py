"""Experiments with a name: stages of training runs, where a later stage may look at the records of earlier ones.

``residlab run bhyt-depth`` runs one. A stage is a sweep of its own, recorded under ``experiment/stage``; a run that is
recorded is not run again, and one that was ended half-way goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from residlab.experiments.record import Record, Records
    from residlab.training.config import TrainConfig

EXPERIMENTS: Mapping[str, str] = MappingProxyType(
    {
        "bhyt-depth": "residlab.experiments.bhyt_depth",
        "forgetting": "residlab.experiments.forgetting",
        "residual-free": "residlab.experiments.residual_free",
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
    """

    name: str
    purpose: str
    configs: Callable[[str, Found], list[TrainConfig]]


class Found:
    """The records of one experiment, by stage, for stages that build on them."""

    def __init__(self, experiment: str, records: Records) -> None:
        self.experiment, self.records = experiment, records

    def stage(self, name: str) -> list[Record]:
        """Return a stage's records."""
        return [record for record in self.records if record.experiment == f"{self.experiment}/{name}"]


def stages_of(experiment: str) -> tuple[Stage, ...]:
    """Return an experiment's stages, in their order.

    Raises
    ------
    ResidlabError
        If there is no such experiment.
    """
    stages: tuple[Stage, ...] = _module_of(experiment).STAGES
    return stages


def profiles_of(experiment: str) -> tuple[str, ...]:
    """Return the names of an experiment's profiles; errors as `stages_of`."""
    return tuple(_module_of(experiment).PROFILES)


def _module_of(experiment: str) -> ModuleType:
    if experiment not in EXPERIMENTS:
        raise ResidlabError(f"experiment must be one of {', '.join(EXPERIMENTS)}; got {experiment!r}")
    return importlib.import_module(EXPERIMENTS[experiment])


def run_experiment(
    experiment: str, records: Records, *, profile: str, stages: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple[Stage, list[Record]]]:
    """Run an experiment's stages one after the other; yield each with its records.

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
    """
    from residlab.experiments.sweep import Sweep, run_sweep

    known, sizes = stages_of(experiment), profiles_of(experiment)
    if profile not in sizes:
        raise ResidlabError(f"{experiment} has the profiles {', '.join(sizes)}; got {profile!r}")
    unknown = sorted(set(stages) - {stage.name for stage in known})
    if unknown:
        raise ResidlabError(
            f"{experiment} has no stage {', '.join(unknown)}; it has {', '.join(stage.name for stage in known)}"
        )
    for stage in known:
        if stages and stage.name not in stages:
            continue
        done: list[Record] = []
        while True:  # a stage may ask for more runs when it has seen the first
            configs = stage.configs(profile, Found(experiment, records))
            sweep = Sweep(f"{experiment}/{stage.name}", tuple({config.hash: config for config in configs}.values()))
            if len(sweep.configs) == len(done):
                break
            done = run_sweep(sweep, records, **options)
        yield stage, done


def results_file(experiment: str, profile: str, root: Path) -> Path:
    """Return where a checkout keeps the records of an experiment: one file for each profile."""
    return root / "results" / f"{experiment}-{profile}.jsonl"
