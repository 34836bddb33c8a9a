"""The explorable of chapter 13: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.conditioning import (
    BACKGROUNDS,
    MEANS,
    NAMES,
    OUTLIERS,
    WIDTHS,
    background,
    conditioning_explorable,
)
from residlab.precision.accumulation import PAIRWISE
from residlab.precision.formats import BF16
from residlab.theory.massive_outlier import equal_background
from residlab.theory.norm_errors import rms_norm_error


@pytest.fixture(scope="module")
def explorable() -> Any:
    return conditioning_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(0)
    choices = {"outlier": OUTLIERS, "background": BACKGROUNDS, "mean": MEANS, "width": WIDTHS}
    states = [
        {**{name: float(rng.choice(values)) for name, values in choices.items()}, "format": str(rng.choice(NAMES))}
        for _ in range(60)
    ]
    # An entry close to the mean magnifies the rounding errors of either side by its own condition number.
    equals_its_script(explorable, states, rtol=1e-6, atol=1e-9, series_every=1)


def test_the_background_is_gaussian() -> None:
    for width in WIDTHS:
        x = background(width).astype(float)
        assert len(x) == width - 1
        assert np.all(np.diff(x) > 0)
        assert np.mean(x) == pytest.approx(0, abs=1e-6)
    assert np.std(background(1024.0)) == pytest.approx(1, abs=0.01)


def at(explorable: Any, **state: Any) -> dict[str, float]:
    whole = {"outlier": 1000.0, "background": 1.0, "mean": 0.0, "width": 64.0, "format": "bf16", **state}
    return dict(explorable.compute(**whole).readouts)


def test_far_out_layer_norm_is_the_better_one_and_near_the_worse(explorable: Any) -> None:
    near, far = at(explorable, outlier=10.0), at(explorable, outlier=1e6)
    assert near["delta"] > 1
    assert near["worst"] > near["rms"]
    assert far["delta"] < 1
    assert far["worst"] < 1e-3 < 1.99 < far["rms"] <= 2
    flat = at(explorable, background=0.01, mean=1.0, outlier=1e3)
    assert flat["worst"] == pytest.approx(equal_background(1e3, 1.0, 64), rel=0.05)


def test_errors_of_rms_norm_know_nothing_of_the_token_until_squares_overflow(explorable: Any) -> None:
    wanted = rms_norm_error(BF16.u, PAIRWISE.depth(64))
    assert {at(explorable, outlier=each, mean=3.0)["error-rms"] for each in OUTLIERS} == {wanted}
    assert np.isfinite(at(explorable, outlier=251.0, format="fp16")["error-rms"])
    lost = at(explorable, outlier=398.0, format="fp16")
    assert np.isnan([lost["error-rms"], lost["error-worst"], lost["error-median"]]).all()


def test_the_bound_is_above_the_curve(explorable: Any) -> None:
    for width in WIDTHS:
        state = {"outlier": 1000.0, "background": 0.1, "mean": 0.3, "width": width, "format": "fp32"}
        series = explorable.compute(**state).series
        worst, bound = series["worst"][1], series["bound"][1]
        known = np.isfinite(bound)
        assert known.any()
        assert not known.all()
        assert np.all(worst[known] <= bound[known] * (1 + 1e-9))
