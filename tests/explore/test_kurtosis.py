"""The explorable of chapter 8: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore import kurtosis as ek

STATES = 400
NAMES = ("width", "stream", "depth", "injected")


@pytest.fixture(scope="module")
def explorable() -> Any:
    return ek.kurtosis_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(8)
    stops = dict(zip(NAMES, (ek.WIDTHS, ek.STREAMS, ek.DEPTHS, ek.INJECTED), strict=True))
    states = [{name: float(rng.choice(values)) for name, values in stops.items()} for _ in range(STATES)]
    states.sort(key=lambda state: state["width"])  # directions are drawn once for each width
    equals_its_script(explorable, states, rtol=1e-9, atol=1e-12, series_every=20)


@pytest.mark.parametrize("stream", [0.0, 0.5, 0.9])
def test_simulated_channels_lie_about_the_chain(explorable: Any, stream: float) -> None:
    frame = explorable.compute(width=512.0, stream=stream, depth=64.0, injected=0.0)
    sample, chain = frame.series["sample"][1], frame.series["chain"][1]
    assert sample == pytest.approx(chain, rel=0.25)


def test_the_ends(explorable: Any) -> None:
    free = explorable.compute(width=64.0, stream=0.0, depth=24.0, injected=0.1).readouts
    assert free["factor"] == pytest.approx(3 / 66)
    assert free["end-closure"] == pytest.approx(0.1 / (1 - 3 / 66))
    assert free["end"] == pytest.approx(0.1 * (1 + 23 * 3 / 66) + 9 / 66)
    stays = explorable.compute(width=64.0, stream=1.0, depth=10.0, injected=0.5).readouts
    assert (stays["end"], stays["end-sample"]) == (pytest.approx(8), pytest.approx(8))
    assert np.isnan(stays["fixed-point"])
