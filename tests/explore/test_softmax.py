"""The explorable of chapter 15: its script against theory, in a real browser, and its sums against those of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from residlab.explore.softmax import FORMATS, GAPS, KEYS, ORDERS, _by_keys, _nearest, _terms, softmax_explorable
from residlab.precision.accumulation import PAIRWISE, RECURSIVE
from residlab.precision.formats import round_number
from residlab.precision.rounding import rounded
from residlab.precision.summation import summed


@pytest.fixture(scope="module")
def explorable() -> Any:
    return softmax_explorable()


@pytest.mark.browser
def test_form_equals_theory(explorable: Any, equals_its_script: Any) -> None:
    states = [
        {"keys": keys, "gap": gap, "format": name, "order": order}
        for gap in GAPS[::2]
        for name in FORMATS
        for order in ORDERS
        for keys in (KEYS[0], KEYS[6], KEYS[9])
    ]
    equals_its_script(explorable, states, rtol=1e-9, atol=1e-15, series_every=7)


@pytest.mark.parametrize("name", FORMATS)
def test_sums_are_those_of_the_emulator(name: str) -> None:
    fmt = FORMATS[name]
    for gap in (0.0, 4.0, 11.0):
        terms = torch.tensor(_terms(gap, fmt))
        assert torch.equal(terms, rounded(terms, fmt))
        for order in ORDERS:
            error, _, _ = _by_keys(gap, name, order)
            for i, keys in enumerate(KEYS[::3]):
                others = terms[: int(keys) - 1]
                row = torch.cat([others, torch.ones(1)] if order == "last" else [torch.ones(1), others])
                exact = row.sum()
                wanted = abs(summed(row, fmt, PAIRWISE if order == "pairwise" else RECURSIVE) - exact) / exact
                assert error[3 * i] == pytest.approx(float(wanted), rel=1e-6, abs=1e-15)


def test_rounding_is_that_of_numbers() -> None:
    x = np.exp(-np.linspace(0, 30, 500))
    for fmt in FORMATS.values():
        assert _nearest(x, fmt).tolist() == [round_number(value, fmt) for value in x.tolist()]


def test_no_error_above_its_bound_but_where_the_sum_saturates() -> None:
    for name, fmt in FORMATS.items():
        for order in ORDERS:
            for gap in GAPS[::4]:
                error, bound, effective = _by_keys(gap, name, order)
                overflows = order == "pairwise" and name == "e4m3fn" and gap == 0
                assert np.all((error <= bound * (1 + 1e-9) + 1e-15) | overflows)
                assert np.all(effective <= np.array(KEYS) + 1e-9)
                if order == "last":
                    assert np.all(error <= _by_keys(gap, name, "first")[1] * (1 + 1e-9))
                assert fmt.u * effective[-1] <= 1 + 1e-9


def test_what_the_chapter_says_of_it(explorable: Any) -> None:
    """bf16, a sink of 5: first, the sum loses several times as much as last."""
    state = {"keys": 512.0, "gap": 5.0, "format": "bf16"}
    first, last = (explorable.compute(**state, order=order).readouts for order in ("first", "last"))
    assert first["measured"] > 3 * last["measured"]
    assert first["effective"] == pytest.approx(last["effective"])
    assert first["effective"] < 0.5 * 512
    assert explorable.compute(**(state | {"format": "fp32"}), order="first").readouts["effective"] == 512
