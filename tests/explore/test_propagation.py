"""The explorable of chapter 10: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.explore.propagation import (
    BETAS,
    DEPTHS,
    INITIALS,
    SCALES,
    RecordedSimilarity,
    propagation_explorable,
)

SETTINGS = np.array([[0, 1, 1.03, 12], [1, 2, 1.03, 12], [1, 2, 1, 24], [0, 0.25, 0.9, 1]], np.float32)


@pytest.fixture(scope="module")
def recorded() -> RecordedSimilarity:
    similarity = np.random.default_rng(0).random((4, 2, 24)).astype(np.float32)
    for row, (*_, depth) in enumerate(SETTINGS):
        similarity[row, :, int(depth) :] = np.nan
    return RecordedSimilarity(SETTINGS, similarity)


@pytest.fixture(scope="module")
def explorable(recorded: RecordedSimilarity) -> Any:
    return propagation_explorable(recorded)


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(10)
    stops = {"scale": SCALES, "beta": BETAS, "depth": DEPTHS[:-2], "initial": INITIALS}
    states: list[dict[str, Any]] = [
        {name: float(rng.choice(values)) for name, values in stops.items()} for _ in range(300)
    ]
    for state in states:
        state["start"] = str(rng.choice(["apart", "shared"]))
        state["feedforward"] = str(rng.choice(["gelu", "swiglu"]))
    equals_its_script(explorable, states, rtol=1e-7, atol=1e-9, series_every=10)
    there = [
        {"start": start, "feedforward": kind, "scale": scale, "beta": beta, "depth": depth, "initial": 0.05}
        for start, scale, beta, depth in (
            ("apart", 1.0, 1.03, 12.0),
            ("shared", 2.0, 1.0, 24.0),
            ("apart", 0.25, 0.9, 1.0),
        )
        for kind in ("gelu", "swiglu")
    ]
    equals_its_script(explorable, there, rtol=1e-7, atol=1e-9)


def test_recorded_lines_are_drawn_where_a_state_is_a_run_s(explorable: Any, recorded: RecordedSimilarity) -> None:
    state = {"start": "shared", "feedforward": "gelu", "scale": 2.0, "beta": 1.03, "depth": 12.0, "initial": 0.05}
    frame = explorable.compute(**state)
    for look, name in enumerate(("before", "after")):
        x, y = frame.series[name]
        np.testing.assert_array_equal(x, np.arange(12))
        np.testing.assert_array_equal(y, recorded.similarity[1, look, :12])
        assert frame.readouts[name] == y[-1]
    for other in ({"feedforward": "swiglu"}, {"beta": 1.02}, {"depth": 6.0}, {"start": "apart"}):
        frame = explorable.compute(**{**state, **other})
        assert len(frame.series["before"][1]) == 0
        assert np.isnan(frame.readouts["after"])
    assert len(propagation_explorable().compute(**state).series["after"][1]) == 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ResidlabError, match=r"similarity has the shape \(4, 2, 12\)"):
        RecordedSimilarity(SETTINGS, np.zeros((4, 2, 12), np.float32))
    with pytest.raises(ResidlabError, match="of one run at least"):
        RecordedSimilarity(SETTINGS[:0], np.zeros((0, 2, 0), np.float32))


def test_apart_tokens_become_alike_and_shared_they_do_not(explorable: Any) -> None:
    state = {"feedforward": "swiglu", "scale": 1.0, "beta": 1.03, "depth": 12.0, "initial": 0.05}
    assert explorable.compute(start="apart", **state).readouts["end"] > 0.6
    assert explorable.compute(start="shared", **state).readouts["end"] < 0.01


def test_without_a_gate_gradients_stay_and_tokens_need_sharper_rows(explorable: Any) -> None:
    state = {"start": "shared", "beta": 1.03, "depth": 12.0, "initial": 0.05}
    gated, ungated = (explorable.compute(feedforward=kind, scale=2.0, **state).readouts for kind in ("swiglu", "gelu"))
    assert gated["gradient"] > 50
    assert ungated["gradient"] < 5
    assert explorable.compute(feedforward="gelu", scale=1.0, **state).readouts["end"] > 0.5
