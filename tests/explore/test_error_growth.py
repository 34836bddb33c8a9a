"""Recorded growth of errors: what a state shows, what is refused, the script against Python on every state."""

from __future__ import annotations

import gzip
import itertools
from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments.growth_results import by_format, factors, growth_runs, random_models
from residlab.experiments.recorded import found
from residlab.explore.error_growth import FORMATS, KINDS, SWEPT, WHOLE, RecordedGrowth, error_growth_explorable
from residlab.explore.explorable import Explorable
from residlab.explore.static_face import explorable_html


@pytest.fixture(scope="module")
def recorded() -> RecordedGrowth:
    return RecordedGrowth(**growth_runs(found("rounding")))


@pytest.fixture(scope="module")
def explorable(recorded: RecordedGrowth) -> Explorable:
    return error_growth_explorable(recorded)


def states(recorded: RecordedGrowth) -> list[dict[str, Any]]:
    idle = (["smollm2"], ["tf32"])
    by_factor = itertools.product(["factor"], SWEPT, recorded.factors, ["layernorm-plain"], [24.0], *idle)
    by_depth = itertools.product(["depth"], ["smollm2"], [5.0], KINDS, recorded.depths, *idle)
    by_format = itertools.product(["format"], ["smollm2"], [5.0], ["layernorm-plain"], [24.0], WHOLE, FORMATS)
    names = ("vary", "model", "factor", "kind", "depth", "whole", "format")
    return [dict(zip(names, state, strict=True)) for state in (*by_factor, *by_depth, *by_format)]


def test_a_state_shows_its_run(explorable: Explorable) -> None:
    runs = found("rounding")
    trained = {record.config["factor"]: record for record in factors(runs, "bf16 products")}
    state: dict[str, Any] = {
        "vary": "factor",
        "model": "products",
        "factor": 5.0,
        "kind": "rmsnorm-plain",
        "depth": 12.0,
        "whole": "rmsnorm",
        "format": "fp32",
    }
    frame = explorable.frame(state)
    assert frame.series["error"][1] / 2**8 == pytest.approx(trained[5.0].metrics["error"], rel=1e-6)
    assert frame.series["compared"][1] / 2**8 == pytest.approx(trained[1.0].metrics["relative"], rel=1e-6)
    frame = explorable.frame({**state, "vary": "depth"})
    shallow = random_models(runs, norm="rmsnorm", start="gpt2", depth=12)[0]
    assert frame.series["size"][1] == pytest.approx(shallow.metrics["size"], rel=1e-6)
    assert len(frame.series["compared"][1]) == 49
    assert frame.readouts["last"] == pytest.approx(shallow.metrics["relative"][-1], rel=1e-6)
    frame = explorable.frame({**state, "vary": "format"})
    bf16, fine = (by_format(runs, norm="rmsnorm")[list(FORMATS).index(name)].metrics for name in ("bf16", "fp32"))
    assert frame.series["relative"][1] / 2**24 == pytest.approx(fine["relative"], rel=1e-6)
    assert frame.series["compared"][1] / 2**8 == pytest.approx(bf16["relative"], rel=1e-6)
    assert frame.readouts["last"] == pytest.approx(fine["relative"][-1], rel=1e-6)
    assert frame.readouts["against"] == pytest.approx(fine["relative"][-1] * 2**16 / bf16["relative"][-1], rel=1e-6)
    assert frame.readouts["error"] == pytest.approx(fine["error"][-1], rel=1e-6)


def test_no_state_shows_a_gap(recorded: RecordedGrowth, explorable: Explorable) -> None:
    for state in states(recorded):
        frame = explorable.frame(state)
        assert all(np.isfinite(y).all() for _, y in frame.series.values())
        assert all(map(np.isfinite, frame.readouts.values()))


def test_a_format_of_a_random_model_errs_by_its_unit(explorable: Explorable) -> None:
    """Proportional to u where errors are small; not where they are as large as the stream, as in eight bits."""
    for whole in ("layernorm", "rmsnorm"):
        state = {"vary": "format", "model": "products", "factor": 1.0, "kind": "rmsnorm-plain", "depth": 12.0}
        against = {
            name: explorable.frame({**state, "whole": whole, "format": name}).readouts["against"] for name in FORMATS
        }
        assert against["bf16"] == 1
        assert all(0.8 < against[name] < 1.25 for name in ("fp16", "tf32", "fp32")), against
        assert all(against[name] < 1 for name in ("e5m2", "e4m3fn"))


def test_stays_light(explorable: Explorable) -> None:
    assert len(gzip.compress(explorable_html(explorable).encode())) < 100_000


def test_what_does_not_fit_is_refused(recorded: RecordedGrowth) -> None:
    fields: dict[str, Any] = {
        "depths": recorded.depths,
        "by_factor": recorded.by_factor,
        "by_depth": recorded.by_depth,
        "by_format": recorded.by_format,
    }
    with pytest.raises(ResidlabError, match="one of the factors must be 1"):
        RecordedGrowth(factors=(2.0,), **fields)
    with pytest.raises(ResidlabError, match="by_depth has the shape"):
        RecordedGrowth(factors=recorded.factors, **{**fields, "by_depth": recorded.by_depth[1:]})
    with pytest.raises(ResidlabError, match="by_format has the shape"):
        RecordedGrowth(factors=recorded.factors, **{**fields, "by_format": recorded.by_format[:, 1:]})


@pytest.mark.browser
def test_the_script_equals_python_on_every_state(
    recorded: RecordedGrowth, explorable: Explorable, equals_its_script: Any
) -> None:
    equals_its_script(explorable, states(recorded), rtol=1e-12)
