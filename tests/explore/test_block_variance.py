"""The explorable of chapter 3: its script against theory, in a real browser, and what it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.block_variance import (
    FOCUS,
    GAINS,
    POSITIONS,
    RATIOS,
    SHARED,
    TOKENS,
    block_variance_explorable,
)

STATES = 10_000
NAMES = ("ratio", "tokens", "position", "shared", "focus", "gain")


@pytest.fixture(scope="module")
def explorable() -> Any:
    return block_variance_explorable()


def test_every_length_is_a_position() -> None:
    assert set(TOKENS) <= set(POSITIONS)
    assert np.all(np.diff(POSITIONS) > 0)


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(6)
    stops = dict(zip(NAMES, (RATIOS, TOKENS, POSITIONS, SHARED, FOCUS, GAINS), strict=True))
    states = [{name: float(rng.choice(values)) for name, values in stops.items()} for _ in range(STATES)]
    equals_its_script(explorable, states, rtol=1e-11, atol=1e-13, series_every=20)


def test_where_all_hypotheses_hold_the_constant_is_right_but_for_tanh(explorable: Any) -> None:
    frame = explorable.compute(ratio=0.02, tokens=4096.0, position=4096.0, shared=0.0, focus=1.0, gain=1.0)
    assert frame.readouts["times"] == pytest.approx(1, abs=1e-3)
    first = explorable.compute(ratio=0.02, tokens=4096.0, position=1.0, shared=0.5, focus=0.3, gain=1.0)
    assert first.readouts["times"] == pytest.approx(4096, rel=1e-3)  # one token has nobody to share with
    beyond = explorable.compute(ratio=0.2, tokens=16.0, position=4096.0, shared=0.0, focus=1.0, gain=1.0)
    assert beyond.readouts["at"] == 16
    assert beyond.readouts["error"] == beyond.readouts["causal"]
