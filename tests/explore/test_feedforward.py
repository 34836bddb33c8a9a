"""The explorable of chapter 14: its script against Python, its arithmetic against that of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from residlab.explore.feedforward import ARGUMENTS, FORMS, NAMES, _computed, feedforward_explorable
from residlab.precision.formats import FORMATS
from residlab.precision.operations import Operations


@pytest.fixture(scope="module")
def explorable() -> Any:
    return feedforward_explorable()


@pytest.mark.browser
def test_form_equals_python_in_every_state(explorable: Any, equals_its_script: Any) -> None:
    states = [{"x": x, "form": form, "format": name} for x in ARGUMENTS for form in FORMS for name in NAMES]
    equals_its_script(explorable, states, rtol=1e-12, atol=0.0, series_every=50)


def test_arithmetic_is_that_of_the_library() -> None:
    x = np.array(ARGUMENTS)
    for name in NAMES:
        ops = Operations(FORMATS[name])
        for form, function in (("silu", ops.silu), ("erf", ops.gelu), ("erfc", ops.gelu_erfc)):
            np.testing.assert_array_equal(_computed(x, form, FORMATS[name]), function(torch.from_numpy(x)).numpy())


def test_errors_are_within_the_bound_and_only_erf_cancels(explorable: Any) -> None:
    def at(**state: Any) -> dict[str, float]:
        return dict(explorable.compute(**{"x": -5.0, "form": "erf", "format": "fp32", **state}).readouts)

    for form in FORMS:
        for x in ARGUMENTS:
            got = at(x=x, form=form)
            assert np.isnan(got["measured"]) or got["measured"] <= got["bound"] * 1.001
    assert at()["measured"] > 1e3 * at(form="erfc")["measured"]
    assert at()["relative"] == pytest.approx(25, abs=1)
