"""The explorable of chapter 16: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.lipschitz import ATTENDED, FORMS, OUTLIERS, RADII, TOKENS, lipschitz_explorable


@pytest.fixture(scope="module")
def explorable() -> Any:
    return lipschitz_explorable()


def random_states(number: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(16)
    stops = {"tokens": TOKENS, "radius": RADII, "form": FORMS, "outlier": OUTLIERS}
    return [
        {name: float(rng.choice(values)) for name, values in stops.items()}
        | {"attended": str(rng.choice(list(ATTENDED)))}
        for _ in range(number)
    ]


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    # The iteration stops at 60: where it has not converged, rounding decides the last digits.
    equals_its_script(explorable, random_states(60), rtol=1e-6, atol=1e-12, series_every=8)


def test_no_curve_crosses_its_bound(explorable: Any) -> None:
    for state in random_states(10):
        series = explorable.compute(**state).series
        for panel in ("length", "tokens"):
            norm, local, sharp, simple = (series[f"{name}-{panel}"][1] for name in ("norm", "local", "sharp", "simple"))
            assert (norm <= local * (1 + 1e-9)).all()
            assert (local <= sharp * (1 + 1e-9)).all()
            assert (sharp <= simple).all()


def test_an_outlier_calms_attention_if_every_query_attends_to_it_and_only_then(explorable: Any) -> None:
    def said(outlier: float, attended: str) -> Any:
        return explorable.compute(tokens=256.0, radius=1.0, form=1.0, outlier=outlier, attended=attended).readouts

    none, half, all_of_it = (said(outlier, "every") for outlier in (0.1, 10.0, 100.0))
    assert half["norm"] > 10 * none["norm"]  # half of the mass is the worst case
    assert all_of_it["norm"] == pytest.approx(1, abs=1e-6)
    assert said(100.0, "half")["norm"] > 0.99 * none["norm"]  # the other half of the queries are as they were
    assert all_of_it["sharp"] > 1000 * none["sharp"]  # the bound for all inputs knows the length only
