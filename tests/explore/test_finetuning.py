"""The explorable of chapter 7: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.finetuning import DECAYS, OVERLAPS, RATES, STEPS, finetuning_explorable

STATES = 1_000
NAMES = ("rate", "steps", "overlap", "decay")


@pytest.fixture(scope="module")
def explorable() -> Any:
    return finetuning_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(7)
    stops = dict(zip(NAMES, (RATES, STEPS, OVERLAPS, DECAYS), strict=True))
    states = [{name: float(rng.choice(values)) for name, values in stops.items()} for _ in range(STATES)]
    equals_its_script(explorable, states, rtol=1e-10, atol=1e-13, series_every=20)


def test_nothing_is_forgotten_before_the_first_step_and_all_at_the_optimum(explorable: Any) -> None:
    left, lost = explorable.compute(rate=1.0, steps=1024.0, overlap=0.3, decay=0.0).series["path"]
    assert (left[0], lost[0]) == (pytest.approx(1), 0)
    assert (left[-1], lost[-1]) == (pytest.approx(0, abs=1e-12), pytest.approx(1))


def test_descent_is_never_better_than_the_best_exchange(explorable: Any) -> None:
    for overlap in OVERLAPS[::5]:
        series = explorable.compute(rate=0.1, steps=1.0, overlap=overlap, decay=1.0).series
        left, lost = series["path"]
        best = np.interp(left[1:], *series["best"])
        inside = (left[1:] > series["best"][0].min()) & (left[1:] < series["best"][0].max())
        assert np.all(lost[1:][inside] >= best[inside] - 2e-3)


def test_half_the_rate_for_twice_the_steps_is_nearly_the_same(explorable: Any) -> None:
    for rate in RATES[:4]:
        own = explorable.compute(rate=rate, steps=64.0, overlap=0.5, decay=1.0).readouts
        assert own["remaining-halved"] == pytest.approx(own["remaining"], abs=0.01)
        assert own["forgotten-halved"] == pytest.approx(own["forgotten"], abs=0.01)
