"""Many runs from one file: a base and a grid, on this machine's cores or on a Dask cluster.

    experiment: bhyt-rates
    base:
      model: {depth: 4, width: 128, heads: 4, vocabulary: 257, context: 256}
      steps: 200
    grid:
      model.norm: [rmsnorm, {kind: bhyt, lam_attention: 3.0}]
      optimizer.lr: [0.001, 0.003]
      seed: [0, 1, 2]

Every configuration is checked before the first one runs. A finished one is in the records and is not run again; one
that was ended half-way goes on from its checkpoint, on whatever worker, if workers share the cache folder.
"""

import copy
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from residlab.checks import environment_count
from residlab.errors import ResidlabError, install
from residlab.experiments.measurement import Measurement
from residlab.experiments.probes import probes_named
from residlab.experiments.record import Record, Records
from residlab.experiments.retraining import Recorded, make_again, measured_losses, missing_sources
from residlab.experiments.training_run import run_hash, train
from residlab.training.config import TrainConfig
from residlab.training.sharding import Strategy
from residlab.training.trainer import default_fabric

KEYS = ("experiment", "base", "grid")


Task = TrainConfig | Measurement
"""What has a record when it is done."""
AnyTask = TypeVar("AnyTask", bound=Task, covariant=True)


@dataclass(frozen=True)
class Sweep(Generic[AnyTask]):
    """An experiment's name and its configurations, each once."""

    experiment: str
    configs: tuple[AnyTask, ...]


def read_sweep(file: Path) -> Sweep[TrainConfig]:
    """Return the sweep that a YAML file describes; a file without a grid describes one run.

    Raises
    ------
    ResidlabError
        If the file cannot be read, a key is unknown or occurs twice, a list is empty, a name of the grid would
        overwrite one before it, or a configuration is not allowed; the message names the place.
    """
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (it is a SafeLoader)
    except ResidlabError as error:
        raise ResidlabError(f"{file}, {error}") from error
    except OSError as error:
        raise ResidlabError(f"{file} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ResidlabError(f"{file} is not YAML that can be read: it is nested too deep") from error
    except (yaml.YAMLError, ValueError) as error:  # a date that is none, a number that is none, text that is not UTF-8
        raise ResidlabError(f"{file} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ResidlabError(f"{file} must hold {', '.join(KEYS)}; it holds {type(values).__name__}")
    unknown = sorted(set(map(str, values)) - set(KEYS))
    if unknown:
        raise ResidlabError(f"{file}: there is no key {', '.join(unknown)}; there are {', '.join(KEYS)}")
    base, grid = values.get("base"), values.get("grid") or {}
    if not isinstance(base, dict):
        raise ResidlabError(f"{file}: base must be the options of a training run")
    if not isinstance(grid, dict):
        raise ResidlabError(f"{file}: grid must map names, such as optimizer.lr, to lists of values")
    for name, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise ResidlabError(f"{file}: grid: {name} must be a list of at least one value; got {choices!r}")
    names = [str(name) for name in grid]
    for place, name in enumerate(names):
        inside = [before for before in names[:place] if before.startswith(f"{name}.")]
        if inside:
            raise ResidlabError(
                f"{file}: grid: {name} would overwrite {inside[0]}, which stands before it: put it first"
            )
    configs: dict[str, TrainConfig] = {}
    for choice in itertools.product(*grid.values()):
        setting = dict(zip(grid, choice, strict=True))
        try:
            config = TrainConfig.from_dict(_with(base, setting))
            probes_named((*config.probes, *config.probes_last))
        except (ResidlabError, TypeError, ValueError) as error:
            where = f" at {', '.join(f'{n} = {v}' for n, v in setting.items())}" if setting else ""
            raise ResidlabError(f"{file}{where}: {error}{_hint(str(error))}") from error
        configs[config.hash] = config
    return Sweep(str(values.get("experiment", file.stem)), tuple(configs.values()))


class _Loader(yaml.SafeLoader):
    """YAML as always, but a key that occurs twice is an error: the second would silently take the first one's place."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, (key.tag, str(key.value))
            if name in lines:
                raise ResidlabError(f"line {line}: the key {key.value} occurs twice, first in line {lines[name]}")
            lines[name] = line
        return node


def _hint(error: str) -> str:
    """Return what to write where YAML took a number for text, since its numbers need a point and a sign: 1.0e-3."""
    found = re.search(r"got '([-+]?\d+(?:\.\d*)?)e([-+]?\d+)'$", error, re.IGNORECASE)
    if found is None:
        return ""
    whole, _, fraction = found[1].partition(".")
    written, plain = f"{whole}.{fraction or 0}e{int(found[2]):+d}", format(Decimal(f"{found[1]}e{found[2]}"), "f")
    return f" (a text, for YAML): write {written}" + (f" or {plain}" if len(plain) < 15 else "")


def _with(base: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    """Return the base with dotted names set."""
    whole = copy.deepcopy(base)
    for name, value in setting.items():
        *path, last = str(name).split(".")
        place = whole
        for part in path:
            inner = place.setdefault(part, {})
            if isinstance(inner, str) and part == "norm":  # a bare name of a norm, about to get options
                inner = place[part] = {"kind": inner}
            if not isinstance(inner, dict):
                raise ResidlabError(f"{name}: {part} is {inner!r}, which has no options")
            place = inner
        place[last] = copy.deepcopy(value)
    return whole


def run_sweep(
    sweep: Sweep[Task],
    records: Records,
    *,
    cache: Path | None = None,
    jobs: int = 1,
    scheduler: str | None = None,
    strategy: Strategy = "ddp",
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> list[Record]:
    """Run what has no record yet, and return all records of the sweep, in its order.

    Parameters
    ----------
    sweep
        What to run.
    records
        Where records are kept; each is added as soon as its run ends.
    cache
        The cache folder, shared by all workers.
    jobs
        Processes on this machine, torch's threads divided among them.
    scheduler
        Address of a Dask scheduler (``tcp://...``), whose workers run instead.
    strategy
        As for `default_fabric`: how the processes of ``torchrun`` share each run.
    say
        Told each run that ends.

    Raises
    ------
    ResidlabError
        If runs failed, after all others ended; or the scheduler does not answer, or records cannot be written.
    """
    hashes = [
        config.hash if isinstance(config, Measurement) else run_hash(config, cache=cache) for config in sweep.configs
    ]
    known_hashes = {record.hash for record in records if record.experiment == sweep.experiment}
    waiting = [config for config, name in zip(sweep.configs, hashes, strict=True) if name not in known_hashes]
    known = len(sweep.configs) - len(waiting)
    if known:
        say(f"residlab: {known} of {len(sweep.configs)} runs of {sweep.experiment} are recorded already")
    missing = missing_sources(waiting, records.file, cache=cache)
    if missing:
        say(
            f"residlab: weights of {len(missing)} recorded runs are not in the cache: each is trained again when needed"
        )
    if waiting:
        records.check()
    failures, done = [], 0
    with _workers(scheduler, min(jobs, len(waiting)) or 1, strategy) as submit:
        for config, outcome in submit(sweep.experiment, waiting, missing, cache):
            done += 1
            name = hashes[sweep.configs.index(config)]
            if isinstance(outcome, Record) and outcome.hash != name:
                outcome = f"the corpus changed while the sweep ran: it is now that of the run {outcome.hash}"
            if isinstance(outcome, Record):
                records.add(outcome)
                say(f"residlab: {done}/{len(waiting)}: {outcome.hash}: {score(config, outcome)}")
            else:
                failures.append(f"{name}: {outcome}")
                say(f"residlab: {done}/{len(waiting)}: {name} failed: {outcome}")
    if failures:
        raise ResidlabError(f"{len(failures)} of {len(waiting)} runs failed, and have no record: {failures[0]}")
    found = {record.hash: record for record in records if record.experiment == sweep.experiment}
    return [found[name] for name in hashes]


def about(task: Task) -> str:
    """Return what is run, for people."""
    if isinstance(task, Measurement):
        return task.about()
    model, optimizer = task.model, task.optimizer
    return f"{model.norm.kind:<9} {model.depth:>3} layers  lr {optimizer.lr:<7g} seed {task.seed}"


def score(task: Task, record: Record) -> str:
    """Return the main figure of a task's record, for people."""
    if isinstance(task, Measurement):
        return task.score(record.metrics)
    bits = record.metrics["bits_per_byte"]
    return "diverged" if bits is None else f"{bits:.4f} bits per byte"


_Outcome = tuple[Task, "Record | str"]
_Submit = Callable[[str, list[Task], Mapping[str, Recorded], "Path | None"], Iterator[_Outcome]]


@contextmanager
def _workers(scheduler: str | None, jobs: int, strategy: Strategy) -> Iterator[_Submit]:
    """Yield what runs configurations and returns them as they end: in this process, in several, or on a cluster."""
    if scheduler is None and jobs == 1:
        yield lambda experiment, configs, missing, cache: (
            _run(experiment, config, missing, cache, None, strategy) for config in configs
        )
        return
    try:
        import joblib
    except ImportError as error:
        raise ResidlabError(f"several runs at once need joblib: {install('training')}") from error

    def submit(
        experiment: str, configs: list[Task], missing: Mapping[str, Recorded], cache: Path | None
    ) -> Iterator[_Outcome]:
        import torch

        # loky replaces a worker whose memory has grown, and warns as if something were wrong.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        threads = None if scheduler else max(1, torch.get_num_threads() // jobs)
        calls = (joblib.delayed(_run)(experiment, config, missing, cache, threads, strategy) for config in configs)
        pool = joblib.Parallel(n_jobs=-1 if scheduler else jobs, return_as="generator_unordered", batch_size=1)
        return iter(pool(calls))

    if scheduler is None:
        yield submit
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise ResidlabError(f"a cluster needs dask: {install('training')}") from error
    try:
        client = Client(scheduler, timeout=20)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ResidlabError(f"the scheduler {scheduler} does not answer: {error}") from error
    with client, joblib.parallel_config(backend="dask"):
        yield submit


def _run(
    experiment: str,
    config: Task,
    missing: Mapping[str, Recorded],
    cache: Path | None,
    threads: int | None,
    strategy: Strategy,
) -> _Outcome:
    """Run one configuration; a failure comes back as its message, so that the others go on."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        follower = environment_count("RANK", 0) > 0
        quiet: dict[str, Any] = {"say": lambda line: None} if follower else {}
        make_again(config, missing, cache=cache, fabric=lambda source: default_fabric(source, strategy), **quiet)
        if isinstance(config, Measurement):
            record = config.perform(experiment, cache=cache)
            losses = measured_losses(config, cache=cache)
            if losses:
                record.metrics["source_bits"] = losses
            return config, record
        return config, train(experiment, config, cache=cache, fabric=default_fabric(config, strategy))
    except ResidlabError as error:
        return config, str(error)
    except Exception as error:  # out of memory, for one: the other runs go on, and this one says what it was
        return config, f"{type(error).__name__}: {error}"
