"""The explorable of chapter 10: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.propagation import BETAS, DEPTHS, INITIALS, SCALES, propagation_explorable


@pytest.fixture(scope="module")
def explorable() -> Any:
    return propagation_explorable()


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
