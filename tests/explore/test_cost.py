"""The explorable of chapter 6: its script against theory, in a real browser, and what it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.cost import BALANCES, TOKENS, WIDTHS, cost_explorable
from residlab.explore.static_face import explorable_html

STATES = 10_000
NAMES = ("width", "tokens", "balance", "kernels")
RUN = """([names, states]) => {
  const { form } = residlab.explore.mounted.get("cost");
  return states.map((values, n) => {
    const { series, readouts } = form(Object.fromEntries(names.map((name, i) => [name, values[i]])), {}, {});
    return { series: n % 20 ? [] : Object.entries(series).map(([key, { x, y }]) => [key, x, y]), readouts };
  });
}"""


@pytest.fixture(scope="module")
def explorable() -> Any:
    return cost_explorable()


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, bare_page: Any, visit: Any) -> None:
    page = visit(bare_page(explorable_html(explorable))).page
    page.wait_for_selector(".rl-explorable[data-ready]")
    rng = np.random.default_rng(8)
    states = [
        [*(float(rng.choice(stops)) for stops in (WIDTHS, TOKENS, BALANCES)), str(rng.choice(["fused", "eager"]))]
        for _ in range(STATES)
    ]
    for begin in range(0, STATES, 1000):
        chunk = states[begin : begin + 1000]
        for state, got in zip(chunk, page.evaluate(RUN, [NAMES, chunk]), strict=True):
            wanted = explorable.compute(**dict(zip(NAMES, state, strict=True)))
            assert got["readouts"] == pytest.approx(dict(wanted.readouts), rel=1e-11, abs=1e-13), state
            assert sorted(key for key, _, _ in got["series"]) in ([], sorted(wanted.series))
            for key, x, y in got["series"]:
                np.testing.assert_array_equal(x, wanted.series[key][0])
                np.testing.assert_allclose(y, wanted.series[key][1], rtol=1e-11, atol=1e-13, err_msg=f"{state} {key}")


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
