"""The picture on the front page: its script against its declaration, in a real browser, and what it shows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from residlab.explore import one_stream
from residlab.explore.one_stream import (
    BITS,
    BLOCKS,
    BLOWS,
    CHANGES,
    DEPTH,
    GAIN,
    RATIOS,
    STRUCK,
    D,
)
from residlab.precision.formats import Format
from residlab.precision.rounding import rounded

USUAL: dict[str, Any] = {"change": "nothing", "ratio": 0.25, "blow": 9.0, "block": 6.0, "format": "exact"}


@pytest.fixture(scope="module")
def explorable() -> Any:
    return one_stream.one_stream_explorable()


@pytest.mark.browser
def test_form_equals_the_network_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(0)
    states = [
        {name: str(rng.choice(list(values))) for name, values in (("change", CHANGES), ("format", BITS))}
        | {name: float(rng.choice(v)) for name, v in (("ratio", RATIOS), ("blow", BLOWS), ("block", BLOCKS))}
        for _ in range(200)
    ]
    equals_its_script(explorable, states, rtol=1e-9, atol=1e-12, series_every=10)


def test_weights_mix_as_they_should() -> None:
    np.testing.assert_array_equal(one_stream._hadamard(), hadamard(D))
    assert abs(one_stream._signs().mean()) < 4 / np.sqrt(DEPTH * D)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_is_the_emulator_s(bits: int) -> None:
    x = np.concatenate([np.random.default_rng(bits).standard_normal(4000), [0.0, -0.0, 1.0, 2.5, 3.5, 9.0, 11.0]])
    wanted = rounded(torch.tensor(x), Format.of(t=bits))
    np.testing.assert_array_equal(one_stream._rounded(x, bits), wanted)


def test_entries_are_drawn_once(explorable: Any) -> None:
    series = explorable.compute(**USUAL).series
    lines = [y.reshape(-1, DEPTH + 2)[:, :-1] for name, (_, y) in series.items() if name.startswith("shade")]
    drawn = np.concatenate([*lines, series["struck"][1][None]])
    wanted = one_stream.stream("nothing", 0.25, 9.0, 6, 0)
    assert drawn.shape == (D, DEPTH + 1)
    np.testing.assert_array_equal(np.sort(drawn, axis=0), np.sort(wanted.T, axis=0))
    starts = [line[:, 0] for line in lines]
    assert all(low.max() < high.min() for low, high in pairwise(starts))


def test_a_blow_stays_in_a_stream_and_is_gone_at_once_without(explorable: Any) -> None:
    struck, unstruck = (
        {change: one_stream.stream(change, 0.25, blow, 6, 0) for change in CHANGES} for blow in (12.0, 0.0)
    )
    for change in ("nothing", "bounded"):
        moved = struck[change][-1] - unstruck[change][-1]
        assert np.abs(moved).argmax() == STRUCK
        assert np.abs(moved).max() == pytest.approx(12, abs=1.5)
    assert struck["removed"][6].max() > 10
    assert np.abs(struck["removed"][7]).max() < 1.5 * np.abs(unstruck["removed"]).max()


def test_sizes_are_those_of_the_theory(explorable: Any) -> None:
    def size(change: str) -> float:
        return float(explorable.compute(**{**USUAL, "blow": 0.0, "change": change}).readouts["size"])

    # Squares add up but for the cosines of random vectors with each other, each of spread D**-0.5.
    for change, branch in (("nothing", GAIN), ("bounded", GAIN * 0.25)):
        spread = 2 * np.sqrt((DEPTH * branch**2 + DEPTH * (DEPTH - 1) / 2 * branch**4) / D)
        assert abs(size(change) ** 2 - (1 + DEPTH * branch**2)) < 3 * spread
    assert size("removed") == pytest.approx(1, abs=1e-12)


def test_without_rounding_there_is_no_error_and_fewer_bits_make_a_larger_one(explorable: Any) -> None:
    for change in CHANGES:
        errors = [explorable.compute(**{**USUAL, "change": change, "format": f}).readouts["error"] for f in BITS]
        assert errors[0] == 0
        assert errors == sorted(errors)
