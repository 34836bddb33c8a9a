"""The explorable of chapter 9: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.isometry import RATES, STEPS, WIDTHS, isometry_explorable


@pytest.fixture(scope="module")
def explorable() -> Any:
    return isometry_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(9)
    stops = {"step": RATES, "steps": STEPS, "width": WIDTHS}
    states = [{name: float(rng.choice(values)) for name, values in stops.items()} for _ in range(800)]
    equals_its_script(explorable, states, rtol=1e-8, atol=1e-12, series_every=20)


def test_at_equal_length_rank_one_stretches_most_and_a_walk_least(explorable: Any) -> None:
    for width in WIDTHS:
        said = explorable.compute(step=0.01, steps=20.0, width=width).readouts
        assert said["spread-isotropic"] < said["spread-coherent"] < said["spread-aligned"]
    said = explorable.compute(step=0.1, steps=10.0, width=128.0).readouts
    assert np.isnan(said["spread-coherent"])  # a singular value has come to zero
    assert np.isfinite(said["defect-coherent"])
