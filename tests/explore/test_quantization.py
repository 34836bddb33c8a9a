"""The explorable of chapter 11: its script against theory, in a real browser, and what it says at the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.quantization import BITS, LAWS, PEAKS, magnitudes, quantization_explorable


@pytest.fixture(scope="module")
def explorable() -> Any:
    return quantization_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_every_state(explorable: Any, equals_its_script: Any) -> None:
    states = [{"bits": b, "peak": peak, "law": law} for b in BITS for peak in PEAKS for law in LAWS]
    equals_its_script(explorable, states, rtol=1e-8, atol=1e-8, series_every=20)


def test_the_samples_are_of_their_laws() -> None:
    for law in LAWS:
        x = magnitudes(law).astype(float)
        assert np.mean(x**2) == pytest.approx(1, abs=0.02)
        assert np.all(np.diff(x) > 0)
        assert x[0] > 0
    kurtosis = {law: np.mean(magnitudes(law).astype(float) ** 4) - 3 for law in LAWS}
    assert kurtosis["uniform"] == pytest.approx(-1.2, abs=0.01)
    assert kurtosis["gaussian"] == pytest.approx(0, abs=0.05)
    assert kurtosis["laplace"] == pytest.approx(3, abs=0.4)


def test_the_law_holds_for_fine_steps_and_never_below_the_floors(explorable: Any) -> None:
    for law in LAWS:
        for peak in PEAKS[::5]:
            series = explorable.compute(bits=4.0, peak=peak, law=law).series
            for panel in ("bits", "peak"):
                assert np.all(series[f"sample-{panel}"][1] >= series[f"floor-{panel}"][1] - 1e-9)
        fine = explorable.compute(bits=10.0, peak=PEAKS[6], law=law).readouts
        assert fine["sampled"] == pytest.approx(fine["law-sqnr"], abs=0.2)


def test_one_outlier_and_coarse_steps_round_everything_else_to_zero(explorable: Any) -> None:
    own = explorable.compute(bits=3.0, peak=1000.0, law="gaussian").readouts
    assert own["zero"] == 2048 / 2049
    assert own["sampled"] == pytest.approx(own["floor"], abs=1e-9)
    assert own["law-sqnr"] < own["floor"] - 10
