"""The explorable of chapter 6: its script against theory, in a real browser, and what it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.cost import BALANCES, TOKENS, WIDTHS, cost_explorable

STATES = 10_000
NAMES = ("width", "tokens", "balance")


@pytest.fixture(scope="module")
def explorable() -> Any:
    return cost_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, equals_its_script: Any) -> None:
    rng = np.random.default_rng(8)
    states = [
        {
            **{name: float(rng.choice(stops)) for name, stops in zip(NAMES, (WIDTHS, TOKENS, BALANCES), strict=True)},
            "kernels": str(rng.choice(["fused", "eager"])),
        }
        for _ in range(STATES)
    ]
    equals_its_script(explorable, states, rtol=1e-11, atol=1e-13, series_every=20)


def test_no_norm_wins_more_than_none(explorable: Any) -> None:
    for tokens in TOKENS:
        for balance in BALANCES:
            for kernels in ("fused", "eager"):
                frame = explorable.compute(width=2048.0, tokens=tokens, balance=balance, kernels=kernels)
                most = frame.readouts["most"]
                assert all(frame.readouts[name] <= most for name in ("bhyt", "dyt", "peri"))
                assert frame.readouts["share"] == pytest.approx(1 - 1 / (1 + most))


def test_many_tokens_at_once_reach_the_formula(explorable: Any) -> None:
    frame = explorable.compute(width=8192.0, tokens=65536.0, balance=512.0, kernels="fused")
    assert frame.readouts["most"] == pytest.approx(4 * 2 * 512 / (24 * 8192))
