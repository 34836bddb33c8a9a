"""The explorable of chapter 12 on sums: its script against theory, in a real browser, and what it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.explore.summation import (
    BITS,
    FORMATS,
    KINDS,
    LENGTHS,
    WAYS,
    MeasuredSums,
    root_law,
    summation_explorable,
    worst_case,
)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = {"down": len(LENGTHS), "query": LENGTHS.index(576) + 1, "squares": LENGTHS.index(576) + 1}
    return {
        kind: rng.random((len(BITS), len(WAYS), count, 3)).astype(np.float32) * 1e-3 for kind, count in lengths.items()
    }


@pytest.fixture(scope="module")
def explorable() -> Any:
    return summation_explorable(MeasuredSums(arrays()))


@pytest.mark.browser
def test_form_equals_theory_on_every_state(explorable: Any, equals_its_script: Any) -> None:
    states = [
        {"n": float(n), "order": order, "format": fmt, "terms": terms}
        for n in LENGTHS
        for order in WAYS
        for fmt in BITS
        for terms in KINDS
    ]
    equals_its_script(explorable, states, rtol=1e-9, series_every=11)


def test_declared_alike() -> None:
    assert list(FORMATS) == list(BITS)
    assert list(LENGTHS) == sorted(set(LENGTHS))


def test_a_shorter_kind_stops_at_its_length(explorable: Any) -> None:
    frame = explorable.compute(n=1536.0, order="pairwise", format="bf16", terms="query")
    assert frame.readouts["count"] == 576
    assert frame.readouts["worst"] == pytest.approx((1 + 2**-8) ** 11 - 1)
    assert frame.readouts["rms"] == arrays()["query"][1, 2, -1, 0]


def test_the_lines_are_the_theorems() -> None:
    assert worst_case("recursive", 1536, 2**-8) == 6.0
    assert worst_case("blocked", 1536, 2**-24) == pytest.approx(79 * 2**-24, rel=1e-4)
    assert worst_case("stochastic", 10, 2**-8) == pytest.approx((1 + 2**-7) ** 10 - 1)
    assert root_law("stochastic", 100, 2**-11) == pytest.approx(10 * 2**-11, rel=1e-4)
    for way in WAYS:
        assert root_law(way, 2, 2**-8) < worst_case(way, 2, 2**-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("down"), "measured sums are of down, query, squares; got query, squares"),
        (lambda given: given.update(down=np.zeros((4, 4, 3, 2), np.float32)), r"down must have shape \(4, 4, lengths"),
    ],
)
def test_what_is_refused(change: Any, message: str) -> None:
    given = arrays()
    change(given)
    with pytest.raises(ResidlabError, match=message):
        MeasuredSums(given)
