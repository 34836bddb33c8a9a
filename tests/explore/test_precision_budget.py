"""The explorable of chapter 18: its script against theory, in a real browser, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.precision_budget import (
    CRESTS,
    DEPTHS,
    EMBEDDINGS,
    FEEDFORWARDS,
    FORMATS,
    GAINS,
    NETWORKS,
    PRECISIONS,
    precision_budget_explorable,
)
from residlab.precision.formats import FORMATS as KNOWN

USUAL: dict[str, Any] = {
    "network": "free",
    "feedforward": "swiglu",
    "format": "bf16",
    "depth": 12.0,
    "gain": 1.0,
    "embedding": 1.0,
    "crest": 4.5,
}


@pytest.fixture(scope="module")
def explorable() -> Any:
    return precision_budget_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(18)
    stops: dict[str, Any] = {"depth": DEPTHS, "gain": GAINS, "embedding": EMBEDDINGS, "crest": CRESTS}
    choices: dict[str, Any] = {"network": NETWORKS, "feedforward": FEEDFORWARDS, "format": FORMATS}
    states = [
        {name: float(rng.choice(values)) for name, values in stops.items()}
        | {name: str(rng.choice(list(values))) for name, values in choices.items()}
        for _ in range(300)
    ]
    equals_its_script(explorable, states, rtol=1e-9, atol=1e-12, series_every=10)


def test_formats_have_the_bits_that_they_say() -> None:
    assert {name: KNOWN[name].t for name in PRECISIONS} == PRECISIONS


def test_half_a_bit_a_block_is_lost_without_residual_connections_and_little_with(explorable: Any) -> None:
    deep, shallow = (
        {net: explorable.compute(**{**USUAL, "network": net, "depth": depth}).readouts for net in NETWORKS}
        for depth in (24.0, 12.0)
    )
    assert deep["free"]["end"] / shallow["free"]["end"] == pytest.approx(2.067**6, rel=0.01)
    assert deep["residual"]["lost"] - shallow["residual"]["lost"] < 1
    without_gate = explorable.compute(**{**USUAL, "feedforward": "gelu"}).readouts
    assert shallow["free"]["lost"] - without_gate["lost"] > 3


def test_where_nothing_is_left(explorable: Any) -> None:
    blocks = explorable.compute(**USUAL).readouts["noise"]
    before, after = (
        explorable.compute(**{**USUAL, "depth": float(depth)}).readouts["end"]
        for depth in (int(blocks), int(blocks) + 1)
    )
    assert before <= 1 <= after


def test_nothing_left_is_no_negative_number_of_bits(explorable: Any) -> None:
    assert explorable.compute(**{**USUAL, "format": "e4m3fn", "depth": 96.0}).readouts["left"] == 0


def test_a_tanh_buys_more_with_a_larger_argument(explorable: Any) -> None:
    _, bought = explorable.compute(**USUAL).series["bought"]
    assert np.all(np.diff(bought) > 0)
    assert explorable.compute(**{**USUAL, "gain": 0.2}).readouts["bought"] == pytest.approx(np.log2(0.9 / np.tanh(0.9)))
