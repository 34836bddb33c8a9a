"""Weights that are recorded and not here: a run that another builds on is trained again from its record.

Records travel with a checkout, checkpoints do not. Whoever measures a recorded run's model, or goes on from it, on a
machine without its checkpoint trains it again, by its own configuration. Training is the same to the last bit on the
same processor with the same libraries; elsewhere it differs as two roundings of one training do. So both losses are
said, and whoever measures records the loss of the weights that it measured (``source_bits``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residlab.errors import ResidlabError
from residlab.experiments.measurement import Measurement
from residlab.experiments.plans import EXPERIMENTS, profiles_of, results_file
from residlab.experiments.record import Record, Records
from residlab.experiments.recorded import results_folder
from residlab.experiments.training_run import bits_in_cache, is_finished, run_hash, train
from residlab.training.config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Recorded:
    """A run as its record has it: configuration, and held-out loss in bits per byte (None if it diverged)."""

    config: dict[str, Any]
    bits_per_byte: float | None


def sources_of(task: TrainConfig | Measurement) -> tuple[str, ...]:
    """Return the sixteen digits of the finished runs whose weights a task needs.

    Examples
    --------
    >>> from residlab.experiments.examination import Examination
    >>> sources_of(Examination("0123456789abcdef"))
    ('0123456789abcdef',)
    """
    if isinstance(task, Measurement):
        return task.sources()
    return () if task.start is None else (task.start,)


def missing_sources(
    tasks: Iterable[TrainConfig | Measurement], file: Path, *, cache: Path | None = None
) -> dict[str, Recorded]:
    """Return what must be trained before these tasks and is recorded: beside `file`, or in the checkout.

    What is neither in the cache nor recorded is left out; the task that needs it says so.

    Parameters
    ----------
    tasks
        What is to run.
    file
        Where their records go; the book's experiments have their files in one folder.
    cache
        The cache folder; by default `residlab.data.cache.cache_dir`.
    """
    wanted = list(dict.fromkeys(name for task in tasks for name in sources_of(task)))
    missing: dict[str, Recorded] = {}
    known: dict[str, Record] | None = None
    while wanted:
        name = wanted.pop()
        if name in missing or is_finished(name, cache=cache):
            continue
        if known is None:
            known = _known(file)
        if name in known:
            record = known[name]
            missing[name] = Recorded(record.config, record.metrics["bits_per_byte"])
            wanted += sources_of(TrainConfig.from_dict(record.config))
    return missing


def _known(file: Path) -> dict[str, Record]:
    """Return all recorded training runs that can be found; those beside `file` count first."""
    folders = [file.parent]
    with contextlib.suppress(ResidlabError):  # installed without a checkout
        folders.append(results_folder())
    names = [results_file(name, profile, Path()).name for name in EXPERIMENTS for profile in profiles_of(name)]
    files = [file, *(folder / name for folder in folders for name in names)]
    found: dict[str, Record] = {}
    for each in dict.fromkeys(each.resolve() for each in files):
        for record in Records(each):
            if "bits_per_byte" in record.metrics:
                found.setdefault(record.hash, record)
    return found


def make_again(
    task: TrainConfig | Measurement,
    missing: Mapping[str, Recorded],
    *,
    cache: Path | None = None,
    fabric: Callable[[TrainConfig], Fabric] | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> None:
    """Train those of a task's sources that are missing, and theirs; a second process that needs one waits for it.

    Every process of ``torchrun`` calls it: they train together.

    Parameters
    ----------
    task
        What is about to run.
    missing
        As `missing_sources` returns it.
    cache
        The cache folder.
    fabric
        Makes what `train` runs on; by default torch alone.
    say
        Told what was trained.

    Raises
    ------
    ResidlabError
        If the corpus is not the text that the run was recorded with, or as `train`.
    """
    for name in sources_of(task):
        if name not in missing or is_finished(name, cache=cache):
            continue
        before = missing[name]
        config = TrainConfig.from_dict(before.config)
        here = run_hash(config, cache=cache)
        if here != name:
            raise ResidlabError(
                f"the run {name} cannot be trained again: {config.corpus} here is another text than it was recorded "
                f"with, and the run on it is {here}"
            )
        make_again(config, missing, cache=cache, fabric=fabric, say=say)
        record = train("again", config, cache=cache, fabric=None if fabric is None else fabric(config))
        now, then = _bits(record.metrics["bits_per_byte"]), _bits(before.bits_per_byte)
        say(f"residlab: {name} was not in the cache and is trained again: {now} bits per byte, recorded {then}")


def _bits(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.4f}"


def measured_losses(task: TrainConfig | Measurement, *, cache: Path | None = None) -> dict[str, float | None]:
    """Return the held-out loss, bits per byte, of each run whose weights in this cache a task has used."""
    return {name: bits_in_cache(name, cache=cache) for name in sources_of(task)}
