"""What the recorded runs of `residlab.experiments.bhyt_depth` say: tables, profiles and maps for chapter 5.

Nothing is trained here. A *measure* maps a record to a number; a *contender* is a name and its records, one for each
seed, in the order of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from residlab.errors import ResidlabError

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

FloatArray = NDArray[np.float64]
Contenders = Mapping[str, "list[Record]"]
STAGES = ("main", "exact", "control")


def kind(record: Record) -> str:
    """Return the kind of a run's norm."""
    return str(record.config["model"]["norm"]["kind"])


def rate(record: Record) -> float:
    """Return a run's learning rate."""
    return float(record.config["optimizer"]["lr"])


def bits(record: Record) -> float:
    """Return a run's loss on held-out text in bits per byte; infinity if it diverged."""
    value = record.metrics["bits_per_byte"]
    return float("inf") if value is None else float(value)


def contenders(found: Found) -> dict[str, list[Record]]:
    """Return the runs of several seeds: those of ``main``, BHyT* of ``exact``, and ``control``.

    Raises
    ------
    ResidlabError
        If there are none, or the contenders were not run on the same seeds.
    """
    runs: dict[str, list[Record]] = {}
    for stage in STAGES:
        for record in found.stage(stage):
            runs.setdefault("control" if stage == "control" else kind(record), []).append(record)
    for records in runs.values():
        records.sort(key=lambda record: record.seed)
    seeds = {name: [record.seed for record in records] for name, records in runs.items()}
    if not seeds or len({tuple(each) for each in seeds.values()}) != 1:
        raise ResidlabError(f"contenders must have run on the same seeds; recorded are {seeds or 'none'}")
    return runs


def table(runs: Contenders, names: Sequence[str], measure: Callable[[Record], float]) -> FloatArray:
    """Return a measure of each contender and seed, (names, seeds).

    Raises
    ------
    ResidlabError
        If a contender has no records.
    """
    missing = [name for name in names if name not in runs]
    if missing:
        raise ResidlabError(f"no records of {', '.join(missing)}; there are {', '.join(runs) or 'none'}")
    return np.array([[measure(record) for record in runs[name]] for name in names])


def by_rate(records: Sequence[Record]) -> dict[str, dict[float, float]]:
    """Return norm -> learning rate -> bits per byte, rates increasing.

    A norm with other options than `residlab.experiments.bhyt_depth.NORMS` has is called by its kind and ``, plain``.
    """
    from residlab.experiments.bhyt_depth import NORMS
    from residlab.models.config import ModelConfig

    found: dict[str, dict[float, float]] = {}
    for record in records:
        name = kind(record)
        if ModelConfig.from_dict(record.config["model"]).norm != NORMS[name]:
            name += ", plain"
        found.setdefault(name, {})[rate(record)] = bits(record)
    return {name: dict(sorted(scores.items())) for name, scores in found.items()}


def star(found: Found) -> list[Record]:
    """Return BHyT*'s runs at its own best rate, by seed; those at BHyT's rate where it has not been tuned.

    Raises
    ------
    ResidlabError
        If it has been tuned, and not run once at that rate with every seed.
    """
    from residlab.experiments.bhyt_depth import SEEDS, star_scores
    from residlab.experiments.rates import best_rate

    runs = found.stage("star")
    if not runs:
        return contenders(found)["bhyt*"]
    own = best_rate(star_scores(found))
    chosen = sorted((record for record in runs if rate(record) == own), key=lambda record: record.seed)
    if [record.seed for record in chosen] != list(SEEDS):
        raise ResidlabError(
            f"BHyT* at its best rate, {own:g}, must have run once with each of the seeds {', '.join(map(str, SEEDS))}; "
            f"recorded are {', '.join(str(record.seed) for record in chosen) or 'none'}"
        )
    return chosen


def best(records: Sequence[Record], name: str) -> Record:
    """Return a norm's run with the lowest loss.

    Raises
    ------
    ResidlabError
        If it has none.
    """
    runs = [record for record in records if kind(record) == name]
    if not runs:
        raise ResidlabError(f"no records of {name}; there are {', '.join(sorted(set(map(kind, records)))) or 'none'}")
    return min(runs, key=bits)


def others(found: Found) -> dict[str, Record]:
    """Return title -> run for what was tried with the first seed of ``main`` only, beside it the runs of ``main``.

    The other norms at the best of their rates, and the constants of `residlab.experiments.bhyt_depth.CONSTANTS`.
    """
    from residlab.experiments.bhyt_depth import CONSTANTS
    from residlab.explore.theme import NORM_TITLES
    from residlab.models.config import ModelConfig

    seeds = contenders(found)
    rows = {NORM_TITLES[name]: seeds[name][0] for name in seeds if name in NORM_TITLES}
    rows[NORM_TITLES["bhyt*"]] = star(found)[0]
    explored = found.stage("norms")
    for name in dict.fromkeys(map(kind, explored)):
        if name not in seeds:
            rows[NORM_TITLES[name]] = best(explored, name)
    names = {norm: name for name, norm in CONSTANTS.items()}
    for record in found.stage("refresh"):
        rows[f"BHyT, {names[ModelConfig.from_dict(record.config['model']).norm]}"] = record
    return rows


def training_curve(record: Record) -> tuple[FloatArray, FloatArray]:
    """Return steps and training loss in nats, each the mean of a few steps; NaN where no update was finite."""
    losses = np.array([np.nan if loss is None else loss for loss in record.metrics["train_loss"]], dtype=np.float64)
    every = int(record.metrics["train_loss_every"])
    return every * np.arange(1.0, len(losses) + 1), losses


# --- What the probes saw


def steps(record: Record) -> FloatArray:
    """Return the steps at which a run was looked at."""
    return np.asarray(_looks(record)["step"], dtype=np.float64)


def stream(record: Record, quantity: str, tokens: str = "all") -> FloatArray:
    """Return a quantity of the stream in front of each normalisation, (looks, 2 depth + 1).

    Parameters
    ----------
    record
        A run that was probed.
    quantity, tokens
        As the probe ``stream`` names them: ``mean_abs``, ``variance``, ...; ``all``, ``first``, ``rest``.
    """
    sites = _looks(record)["stream"]
    return _columns([sites[site][tokens][quantity] for site in sites])


def profile(record: Record, quantity: str) -> FloatArray:
    """Return a quantity of the probe ``profile``, (looks, 2 depth + 1)."""
    sites = _looks(record)["profile"]
    return _columns([sites[site][quantity] for site in sites])


def by_layer(record: Record, probe: str, *path: str) -> FloatArray:
    """Return what a probe said of each layer, (looks, depth): ``by_layer(record, "jacobian", "all")``.

    ``path`` leads from a layer to the number; for ``skipping`` give the layers' key first: ``"rise"``.
    """
    layers = _looks(record)[probe]
    if path and path[0] in layers:
        layers, path = layers[path[0]], path[1:]
    return _columns([_follow(layers[layer], path) for layer in layers])


def by_site(record: Record, probe: str, name: str) -> dict[str, FloatArray]:
    """Return ``attention`` and ``feedforward`` -> what a probe said of each layer's site, (looks, depth)."""
    sites = _looks(record)[probe]
    return {
        where: _columns([sites[site][name] for site in sites if site.endswith(f".{where}_norm")])
        for where in ("attention", "feedforward")
    }


def bound(record: Record) -> float:
    """Return lambda/kappa at the start, the mean of both sites, of a BHyT run."""
    norm = record.config["model"]["norm"]
    return float(norm["lam_attention"] + norm["lam_feedforward"]) / (2 * float(norm["kappa"]))


def saturated(record: Record) -> float:
    """Return the share of tanh values beyond 0.9 at the last look, over all sites; NaN if it has no tanh."""
    if not _looks(record).get("saturation"):
        return float("nan")
    return float(np.mean([site[-1] for site in by_site(record, "saturation", "beyond_0.9").values()]))


def octaves(record: Record, name: str, look: int = -1) -> tuple[tuple[str, ...], FloatArray]:
    """Return the ranges of positions and what ``approximation`` said there, (layers, ranges), at one look."""
    layers = _looks(record)["approximation"]
    ranges = tuple(next(iter(layers.values())))
    return ranges, np.array([[layers[layer][each][name][look] for each in ranges] for layer in layers])


def profiles(found: Found, norms: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `residlab.explore.profiles.RecordedProfiles`, from the runs of ``depth``.

    A depth at which a norm has not been run yet is left out.

    Raises
    ------
    ResidlabError
        If there is no depth at which all were run, or looks were taken at different steps.
    """
    runs = {(kind(record), int(record.config["model"]["depth"])): record for record in found.stage("depth")}
    depths = [depth for depth in sorted({depth for _, depth in runs}) if all((norm, depth) in runs for norm in norms)]
    if not depths:
        raise ResidlabError(f"the stage depth has no records of {', '.join(norms)} at one depth")
    looked = {tuple(steps(runs[norm, depth])) for norm in norms for depth in depths}
    if len(looked) != 1:
        raise ResidlabError(f"the runs of depth were looked at after different steps: {sorted(looked)}")
    (when,) = looked
    shape = (len(norms), len(depths), len(when))
    made = {
        name: np.full((*shape, width), np.nan, np.float32)
        for name, width in (
            ("mean_abs", 2 * depths[-1] + 1),
            ("variance", 2 * depths[-1] + 1),
            ("deviation", depths[-1]),
        )
    }
    loss = np.empty(shape, np.float32)
    for i, norm in enumerate(norms):
        for j, depth in enumerate(depths):
            record = runs[norm, depth]
            for name in ("mean_abs", "variance"):
                made[name][i, j, :, : 2 * depth + 1] = stream(record, name)
            made["deviation"][i, j, :, :depth] = by_layer(record, "jacobian", "all")
            loss[i, j] = _looks(record)["skipping"]["loss"]
    return {"norms": tuple(norms), "depths": tuple(map(float, depths)), "steps": when, "loss": loss, **made}


def _looks(record: Record) -> dict[str, Any]:
    looks = record.metrics.get("looks")
    if looks is None:
        raise ResidlabError(f"the run {record.hash} of {record.experiment} was not probed")
    return dict(looks)


def _columns(columns: Sequence[Any]) -> FloatArray:
    return np.array(columns, dtype=np.float64).T


def _follow(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value[name]
    return value
