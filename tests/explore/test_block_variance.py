"""The explorable of chapter 3: its script against theory, in a real browser, and what it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.block_variance import (
    FOCUS,
    GAINS,
    POSITIONS,
    RATIOS,
    SHARED,
    TOKENS,
    block_variance_explorable,
)
from residlab.explore.static_face import explorable_html

STATES = 10_000
NAMES = ("ratio", "tokens", "position", "shared", "focus", "gain")
RUN = """([names, states]) => {
  const { form } = residlab.explore.mounted.get("block-variance");
  return states.map((values, n) => {
    const { series, readouts } = form(Object.fromEntries(names.map((name, i) => [name, values[i]])), {}, {});
    return { series: n % 20 ? [] : Object.entries(series).map(([key, { x, y }]) => [key, x, y]), readouts };
  });
}"""


@pytest.fixture(scope="module")
def explorable() -> Any:
    return block_variance_explorable()


def test_every_length_is_a_position() -> None:
    assert set(TOKENS) <= set(POSITIONS)
    assert np.all(np.diff(POSITIONS) > 0)


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, bare_page: Any, visit: Any) -> None:
    page = visit(bare_page(explorable_html(explorable))).page
    page.wait_for_selector(".rl-explorable[data-ready]")
    rng = np.random.default_rng(6)
    stops = (RATIOS, TOKENS, POSITIONS, SHARED, FOCUS, GAINS)
    states = [[float(rng.choice(values)) for values in stops] for _ in range(STATES)]
    for begin in range(0, STATES, 1000):
        chunk = states[begin : begin + 1000]
        for state, got in zip(chunk, page.evaluate(RUN, [NAMES, chunk]), strict=True):
            wanted = explorable.compute(**dict(zip(NAMES, state, strict=True)))
            assert got["readouts"] == pytest.approx(dict(wanted.readouts), rel=1e-11, abs=1e-13), state
            assert [key for key, _, _ in got["series"]] in ([], list(wanted.series))
            for key, x, y in got["series"]:
                np.testing.assert_array_equal(x, wanted.series[key][0])
                np.testing.assert_allclose(y, wanted.series[key][1], rtol=1e-11, atol=1e-13, err_msg=f"{state} {key}")


def test_where_all_hypotheses_hold_the_constant_is_right_but_for_tanh(explorable: Any) -> None:
    frame = explorable.compute(ratio=0.02, tokens=4096.0, position=4096.0, shared=0.0, focus=1.0, gain=1.0)
    assert frame.readouts["times"] == pytest.approx(1, abs=1e-3)
    first = explorable.compute(ratio=0.02, tokens=4096.0, position=1.0, shared=0.5, focus=0.3, gain=1.0)
    assert first.readouts["times"] == pytest.approx(4096, rel=1e-3)  # one token has nobody to share with
    beyond = explorable.compute(ratio=0.2, tokens=16.0, position=4096.0, shared=0.0, focus=1.0, gain=1.0)
    assert beyond.readouts["at"] == 16
    assert beyond.readouts["error"] == beyond.readouts["causal"]
