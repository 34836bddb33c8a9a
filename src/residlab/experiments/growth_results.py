"""What the recorded runs of ``rounding`` say about depth, and the numbers that decide claims C7, C8 and C9.

Nothing is run here. A *profile* is the relative error behind each block, from block 1 on and without token 0 (the
metric ``rest``). Three laws are fitted to its logarithm by least squares and compared by the Bayesian information
criterion, ``n ln(S/n) + k ln n``, with S the sum of squares and k the number of coefficients (the variance is one more
in every law, and left out):

=================== ============================== ===
law                 log of the relative error      k
=================== ============================== ===
power               a + b log(l)                   2
exponential         a + b l                        2
stretched           a + b l**q, q in [0.05, 1]     3
=================== ============================== ===

Errors of neighbouring blocks are not independent, so the criterion and the intervals look surer than they are. Rules
stand in results/README.md. Source: chapter 17.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from residlab.errors import ResidlabError
from residlab.experiments.residual_free import arm_of
from residlab.experiments.rounding import FACTORS, FINE, FORMATS, PROFILES
from residlab.precision.roles import Roles
from residlab.theory.error_growth import error_bound, errors_without_residual, mean_square_errors, stored_error

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

FloatArray = NDArray[np.float64]
LAWS = ("power", "exponential", "stretched")
LEAST_Q, MOST_Q = 0.05, 1.0
SUMS = 2
"""Times that a block stores the stream: behind attention and behind the feedforward."""
CHI_SQUARE_95 = 3.841458820694124
"""Of one degree of freedom."""
JUDGED = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Factors of C8."""
SLOPES, RATIO = (0.8, 1.2), 2.0
"""Of *proportional and invariant*."""
DEPTHS = PROFILES["cpu"].depths
DEEP = DEPTHS[-1]
ROUNDED = "bf16"
WHOLE = (*FORMATS, FINE)
"""Formats in which all four roles were recorded, from the coarsest to the finest."""


# --- Laws of growth


@dataclass(frozen=True)
class Fit:
    """One law, fitted.

    Attributes
    ----------
    law
        Of `LAWS`.
    intercept, slope
        a and b.
    q
        Power of l in the exponent: 0 for a power law (the limit, a logarithm), 1 for an exponential.
    squares
        Sum of squared residuals of the logarithm.
    bic
        Bayesian information criterion; the lowest is the best.
    interval
        95 %: of b for a power law or exponential (Student's t), of q for a stretched one (profile likelihood, within
        what q may be).
    """

    law: str
    intercept: float
    slope: float
    q: float
    squares: float
    bic: float
    interval: tuple[float, float]

    def at(self, layers: ArrayLike) -> FloatArray:
        """Return the law's errors behind these blocks, counted from 1."""
        return np.asarray(np.exp(self.intercept + self.slope * _feature(np.asarray(layers, np.float64), self.q)))


def fits(errors: ArrayLike) -> dict[str, Fit]:
    """Return the three laws fitted to the errors behind blocks 1, 2, ..., by name.

    Raises
    ------
    ResidlabError
        If there are fewer than five, or one is not above zero and finite.
    """
    values = np.asarray(errors, np.float64)
    if values.ndim != 1 or len(values) < 5:
        raise ResidlabError(f"a law of growth needs the errors of five blocks or more; got the shape {values.shape}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise ResidlabError("a law of growth needs errors that are finite and above zero")
    y, layers = np.log(values), np.arange(1.0, len(values) + 1)
    return {
        "power": _linear("power", y, layers, 0.0),
        "exponential": _linear("exponential", y, layers, 1.0),
        "stretched": _stretched(y, layers),
    }


def best(fitted: dict[str, Fit]) -> Fit:
    """Return the fit with the lowest criterion."""
    return min(fitted.values(), key=lambda fit: fit.bic)


def _feature(layers: FloatArray, q: float) -> FloatArray:
    return np.log(layers) if q == 0 else layers**q


def _solve(y: FloatArray, feature: FloatArray) -> tuple[float, float, float]:
    centred = feature - feature.mean()
    slope = float(centred @ y / (centred @ centred))
    intercept = float(y.mean() - slope * feature.mean())
    residual = y - intercept - slope * feature
    floor = len(y) * (np.finfo(float).eps * max(1.0, float(np.abs(y).max()))) ** 2  # what arithmetic cannot tell from 0
    return intercept, slope, max(float(residual @ residual), floor)


def _criterion(squares: float, count: int, coefficients: int) -> float:
    return float(count * np.log(squares / count) + coefficients * np.log(count))


def _linear(law: str, y: FloatArray, layers: FloatArray, q: float) -> Fit:
    from scipy.special import stdtrit

    feature = _feature(layers, q)
    intercept, slope, squares = _solve(y, feature)
    spread = float(((feature - feature.mean()) ** 2).sum())
    half = float(stdtrit(len(y) - 2, 0.975)) * (squares / (len(y) - 2) / spread) ** 0.5
    return Fit(law, intercept, slope, q, squares, _criterion(squares, len(y), 2), (slope - half, slope + half))


def _stretched(y: FloatArray, layers: FloatArray) -> Fit:
    from scipy.optimize import minimize_scalar

    grid = np.linspace(LEAST_Q, MOST_Q, 191)
    squares = np.array([_solve(y, _feature(layers, q))[2] for q in grid])
    start = int(squares.argmin())
    low, high = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    found = minimize_scalar(lambda q: _solve(y, _feature(layers, q))[2], bounds=(low, high), method="bounded")
    q = float(found.x) if found.fun < squares[start] else float(grid[start])
    intercept, slope, least = _solve(y, _feature(layers, q))
    likely = grid[len(y) * np.log(squares / least) <= CHI_SQUARE_95]
    interval = (min(q, float(likely.min())), max(q, float(likely.max()))) if len(likely) else (q, q)
    return Fit("stretched", intercept, slope, q, least, _criterion(least, len(y), 3), interval)


# --- Runs


def numbers(record: Record, metric: str) -> FloatArray:
    """Return a metric by block, from the embedding on; NaN for what is null."""
    return np.array([math.nan if value is None else value for value in record.metrics[metric]], np.float64)


def profile(record: Record) -> FloatArray:
    """Return the relative error behind each block, without token 0 and without the embedding's."""
    return numbers(record, "rest")[1:]


def _is(record: Record, **wanted: Any) -> bool:
    model = record.config["model"] or {}
    return all(record.config.get(name, model.get(name)) == value for name, value in wanted.items())


def _norm(record: Record) -> str:
    norm = record.config["model"]["norm"]
    return str(norm["kind"] if isinstance(norm, dict) else norm)


def random_models(found: Found, *, norm: str, start: str, depth: int, stage: str = "random") -> list[Record]:
    """Return the random models with a norm, an initialization and a depth, in the order of seeds, then of factors."""
    chosen = [
        record
        for record in found.stage(stage)
        if _is(record, initialization=start, depth=depth) and _norm(record) == norm
    ]
    return sorted(chosen, key=lambda record: (record.seed, record.config.get("factor", 1.0)))


def texts(found: Found, roles: str = ROUNDED) -> list[Record]:
    """Return the trained model's runs on each text, sums one by one, in the order of texts."""
    plain = {"roles": roles, "order": "recursive", "factor": 1.0}
    runs = [record for stage in ("roles", "texts") for record in found.stage(stage) if _is(record, **plain)]
    return sorted(runs, key=lambda record: int(record.config["text"]))


def factors(found: Found, roles: str = ROUNDED) -> list[Record]:
    """Return the trained model's runs with W_O and W_down times a factor, in the order of factors."""
    runs = [record for record in found.stage("scaling") if _is(record, roles=roles)]
    return sorted(runs, key=lambda record: float(record.config["factor"]))


def by_format(found: Found, *, norm: str | None = None) -> list[Record]:
    """Return the runs with all roles alike, from the coarsest format to the finest, sums one by one.

    Of the deepest random model with a norm, GPT-2's scaling and seed 0, or by default of the trained model.

    Raises
    ------
    ResidlabError
        If a format was not recorded.
    """
    if norm is None:
        runs = [record for record in found.stage("roles") if _is(record, order="recursive", factor=1.0, text=0)]
    else:
        runs = [
            record
            for stage in ("random", "random-formats")
            for record in random_models(found, norm=norm, start="gpt2-scaled", depth=DEEP, stage=stage)
            if record.seed == 0
        ]
    named = {record.config["roles"]: record for record in runs}
    missing = [name for name in WHOLE if name not in named]
    if missing:
        raise ResidlabError(f"no run of {norm or 'the trained model'} with all roles in {', '.join(missing)}")
    return [named[name] for name in WHOLE]


def predicted(record: Record, gain: float = 1.0) -> FloatArray:
    """Return the relative errors, from the embedding on, that independent branches with this gain would have.

    `residlab.theory.error_growth.mean_square_errors` with the run's sizes (their running maximum, where a size falls),
    the error of its embedding, the error of storing the stream twice a block, and one number that the run gave: the
    error of the first block. Nothing of the blocks after it is used.
    """
    sizes, beta, tau = _ingredients(record, gain)
    return mean_square_errors(sizes, beta, tau, gain=gain, initial=float(numbers(record, "relative")[0]))


def least_worst_case(record: Record) -> FloatArray:
    """Return relative errors below every worst-case bound of branches orthogonal to the stream.

    Lambda_l is at least the branch over the stream; sizes alone would allow less, ``s[l + 1]/s[l] - 1``.

    As in `predicted`, with errors that all add up: `residlab.theory.error_growth.error_bound`.
    """
    sizes, beta, tau = _ingredients(record)
    written = np.sqrt(np.diff(sizes**2))
    start = float(numbers(record, "relative")[0] * sizes[0])
    return np.asarray(error_bound(written / sizes[:-1], beta * written, sizes, tau, start) / sizes)


def _ingredients(record: Record, gain: float = 1.0) -> tuple[FloatArray, float, float]:
    sizes, relative = np.maximum.accumulate(numbers(record, "size")), numbers(record, "relative")
    tau = float(stored_error(Roles.named(record.config["roles"]).stream.u)) * SUMS**0.5
    written = float(1 - (sizes[0] / sizes[1]) ** 2)
    if written == 0:
        raise ResidlabError(f"the first block of the run {record.hash} writes nothing that could be measured")
    passed = (1 + (gain - 1) * written) * relative[0] ** 2
    return sizes, float(max(0.0, (relative[1] ** 2 - passed - tau**2) / written)) ** 0.5, tau


# --- Models that the book trained


@dataclass(frozen=True)
class Artefact:
    """A trained model and a measurement of it.

    Attributes
    ----------
    record
        Of a rounded inference, or of an error that was passed on.
    training
        Of the run that trained the model.
    """

    record: Record
    training: Record

    @property
    def kind(self) -> str:
        """Its norm; ``"gpt2"``; or, of ``residual-free``, arm and optimizer: ``"free muon"``."""
        experiment, stage = self.training.experiment.split("/")
        if experiment == "residual-free":
            return f"{arm_of(self.training)} {self.training.config['optimizer']['kind']}"
        return stage if stage == "gpt2" else _norm(self.training)

    def predicted(self, gain: float = 1.0) -> FloatArray:
        """Return the relative errors, from the embedding on, that independent branches with this gain would have.

        `predicted` of the record; without residual connections `residual_free_predicted`.
        """
        residual = self.training.config["model"]["residual"]
        return predicted(self.record, gain) if residual else residual_free_predicted(self.record, gain)

    def over_measured(self, gain: float = 1.0) -> float:
        """Return the predicted error behind the last block over the measured one."""
        return float(self.predicted(gain)[-1] / numbers(self.record, "relative")[-1])


def artefacts(
    found: Found, training: Iterable[Record], roles: str | None = ROUNDED, stage: str = "artefacts"
) -> dict[str, list[Artefact]]:
    """Return kind -> what was measured of trained models, by seed.

    Parameters
    ----------
    found
        Records of ``rounding``.
    training
        Those of the runs that trained the models (`residlab.experiments.rounding.trained_runs`); a model whose training
        is not among them is left out.
    roles
        Of the arithmetic; None where nothing is rounded.
    stage
        ``"artefacts"``, or ``"passing"`` for what the models make of an error (`residlab.experiments.passed_error`).
    """
    runs = {record.hash: record for record in training}
    kinds: dict[str, list[Artefact]] = {}
    for record in found.stage(stage):
        if record.config.get("roles") == roles and record.config["source"] in runs:
            artefact = Artefact(record, runs[record.config["source"]])
            kinds.setdefault(artefact.kind, []).append(artefact)
    return {kind: sorted(each, key=lambda artefact: artefact.training.seed) for kind, each in kinds.items()}


def residual_free_predicted(record: Record, gain: float = 1.0) -> FloatArray:
    """Return the relative errors that blocks without residual connections would have, if all err like the first.

    `residlab.theory.error_growth.errors_without_residual` with the error of the embedding and that of block 1.
    """
    relative = numbers(record, "relative")
    made = max(0.0, float(relative[1] ** 2 - gain * relative[0] ** 2)) ** 0.5
    return errors_without_residual(gain, made, initial=float(relative[0]), depth=len(relative) - 1)


def growth_runs(found: Found) -> dict[str, Any]:
    """Return the fields of `residlab.explore.error_growth.RecordedGrowth`: what runs of seed 0 and text 0 recorded."""
    random = [
        random_models(found, norm=norm, start="gpt2-scaled", depth=DEEP, stage="random-scaling")
        for norm in ("layernorm", "rmsnorm")
    ]
    sweeps = [*random, factors(found), factors(found, "bf16 products")]
    starts = [(norm, start) for norm in ("layernorm", "rmsnorm") for start in ("gpt2-scaled", "gpt2")]
    kinds = [
        [random_models(found, norm=norm, start=start, depth=depth)[0] for depth in DEPTHS] for norm, start in starts
    ]
    formats = [*(by_format(found, norm=norm) for norm in ("layernorm", "rmsnorm")), by_format(found)]
    return {
        "factors": FACTORS,
        "depths": tuple(float(depth) for depth in DEPTHS),
        "by_factor": np.array([[_lines(record) for record in records] for records in sweeps], np.float32),
        "by_depth": np.array([[_lines(record) for record in records] for records in kinds], np.float32),
        "by_format": np.array([[_lines(record) for record in records] for records in formats], np.float32),
    }


def _lines(record: Record) -> FloatArray:
    lines = np.full((4, DEEP + 1), math.nan)
    measured = [numbers(record, "relative"), predicted(record), numbers(record, "error"), numbers(record, "size")]
    lines[:, : len(measured[0])] = measured
    return lines


# --- What decides. Rules stand in results/README.md and, over these numbers, in book/claims.yml.


def decides_c7(found: Found) -> dict[str, int]:
    """Return counts of runs: random ones in which the exponential loses, trained ones in which the power law does.

    ``c7_random``, ``c7_trained``, and ``c7_runs``, how many there are of both together; six if all were recorded.
    """
    random = random_models(found, norm="layernorm", start="gpt2-scaled", depth=DEEP)
    trained = texts(found)
    return {
        "c7_random": sum(_exponential_loses(fits(profile(record))) for record in random),
        "c7_trained": sum(_power_loses(fits(profile(record))) for record in trained),
        "c7_runs": len(random) + len(trained),
    }


def _exponential_loses(fitted: dict[str, Fit]) -> bool:
    return min(fitted["power"].bic, fitted["stretched"].bic) < fitted["exponential"].bic


def _power_loses(fitted: dict[str, Fit]) -> bool:
    power, stretched = fitted["power"], fitted["stretched"]
    return fitted["exponential"].bic < power.bic or (stretched.q >= 0.5 and stretched.bic < power.bic)


@dataclass(frozen=True)
class Sweep:
    """A model's last block, by factor.

    Attributes
    ----------
    factors, absolute, relative, sizes
        Of the runs, increasing in the factor: mean error, mean relative error and mean size.
    slope
        Of log error against log factor; with a break, a common one on both sides of it.
    ratio
        Largest over smallest relative error; with a break, the larger of both sides'.
    """

    factors: FloatArray
    absolute: FloatArray
    relative: FloatArray
    sizes: FloatArray
    slope: float
    ratio: float

    @property
    def invariant(self) -> bool:
        """Whether the error is proportional to the factor and the relative one invariant."""
        return SLOPES[0] <= self.slope <= SLOPES[1] and self.ratio <= RATIO

    def breaks(self) -> list[int]:
        """Return where the size grows by less than half or more than twice the factor: i is between i and i + 1."""
        relative = (self.sizes[1:] / self.sizes[:-1]) / (self.factors[1:] / self.factors[:-1])
        return [int(i) for i in np.flatnonzero((relative < 0.5) | (relative > 2))]


def swept(records: Sequence[Record], judged: Sequence[float] = JUDGED, *, without: int | None = None) -> Sweep:
    """Return a sweep over the judged factors; ``without`` leaves out the interval behind that one.

    Raises
    ------
    ResidlabError
        If a factor is missing, or a last block is not finite.
    """
    runs = {float(record.config["factor"]): record for record in records}
    missing = [factor for factor in judged if factor not in runs]
    if missing:
        raise ResidlabError(f"no run with the factors {', '.join(f'{factor:g}' for factor in missing)}")
    last = np.array([[numbers(runs[x], key)[-1] for key in ("error", "relative", "size")] for x in judged]).T
    if not np.isfinite(last).all():
        raise ResidlabError("a run of the sweep overflowed")
    xi = np.array(judged, np.float64)
    sides = [slice(None)] if without is None else [slice(None, without + 1), slice(without + 1, None)]
    x, y = np.log(xi), np.log(last[0])
    centred = np.concatenate([x[side] - x[side].mean() for side in sides])
    slope = float(centred @ np.concatenate([y[side] for side in sides]) / (centred @ centred))
    ratio = float(max(last[1][side].max() / last[1][side].min() for side in sides))
    return Sweep(xi, last[0], last[1], last[2], slope, ratio)


def decides_c8(found: Found) -> dict[str, int]:
    """Return how many of the two random models, and whether the trained one, are proportional and invariant.

    ``c8_random``, ``c8_trained``, ``c8_broken`` (the trained one, with the best interval left out that may be) and
    ``c8_breaks``, how many intervals may be.
    """
    random = [
        swept(random_models(found, norm=norm, start="gpt2-scaled", depth=DEEP, stage="random-scaling"))
        for norm in ("rmsnorm", "layernorm")
    ]
    runs = factors(found)
    trained = swept(runs)
    places = trained.breaks()
    return {
        "c8_random": sum(sweep.invariant for sweep in random),
        "c8_trained": int(trained.invariant),
        "c8_broken": int(any(swept(runs, without=place).invariant for place in places)),
        "c8_breaks": len(places),
    }


def depth_scaling(found: Found) -> dict[tuple[str, int, int], float]:
    """Return (norm, depth, seed) -> relative error with GPT-2's scaling over that without, behind the last block."""
    last = {
        (_norm(record), int(record.config["model"]["depth"]), record.seed, record.config["model"]["initialization"]): (
            float(numbers(record, "relative")[-1])
        )
        for record in found.stage("random")
    }
    return {
        key[:3]: value / last[*key[:3], "gpt2"]
        for key, value in last.items()
        if key[3] == "gpt2-scaled" and (*key[:3], "gpt2") in last
    }


def decides_c9(found: Found) -> dict[str, float]:
    """Return how many ratios lie in [1/2, 2], how many there are, and the least, the middle and the largest."""
    ratios = np.array(list(depth_scaling(found).values()))
    if not len(ratios):
        return {"c9_within": 0, "c9_ratios": 0, "c9_least": math.nan, "c9_median": math.nan, "c9_most": math.nan}
    return {
        "c9_within": int(((ratios >= 0.5) & (ratios <= 2)).sum()),
        "c9_ratios": len(ratios),
        "c9_least": float(ratios.min()),
        "c9_median": float(np.median(ratios)),
        "c9_most": float(ratios.max()),
    }
