"""The explorable of chapter 4: its script against theory, in a real browser, and what it declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.explore.panels import KAPPAS, LAMBDAS
from residlab.explore.static_face import explorable_html
from residlab.explore.variance import DEPTHS, RHOS, variance_explorable
from residlab.theory.recursion import critical_ratio, second_moments

STATES = 10_000
RUN = """(states) => {
  const { form } = residlab.explore.mounted.get("variance");
  const plain = (list) => Array.from(list, (v) => (Number.isNaN(v) ? null : v));
  return states.map(([lam, kappa, depth, rho]) => {
    const { series, readouts } = form({ lam, kappa, depth, rho }, {}, {});
    const ends = ["preln", "lns", "bhyt"].map((name) => series[name].y[depth]);
    const [names, values] = [Object.keys(readouts), plain(Object.values(readouts))];
    return { ends, exceeds: plain(series.exceeds.y), readouts: values, names };
  });
}"""


@pytest.fixture(scope="module")
def explorable():
    return variance_explorable()


def random_states() -> list[list[float]]:
    rng = np.random.default_rng(5)
    stops = (LAMBDAS, KAPPAS, DEPTHS, RHOS)
    return [[float(rng.choice(values)) for values in stops] for _ in range(STATES)]


@pytest.mark.browser
def test_form_equals_theory_on_random_states(explorable: Any, bare_page: Any, visit: Any) -> None:
    page = visit(bare_page(explorable_html(explorable))).page
    page.wait_for_selector(".rl-explorable[data-ready]")
    states = random_states()
    for begin in range(0, STATES, 2000):
        chunk = states[begin : begin + 2000]
        drawn, wanted = [], []
        for state, got in zip(chunk, page.evaluate(RUN, chunk), strict=True):
            frame = explorable.compute(**dict(zip(("lam", "kappa", "depth", "rho"), state, strict=True)))
            drawn.append([*got["ends"], *got["exceeds"], *got["readouts"]])
            ends = [frame.series[name][1][-1] for name in ("preln", "lns", "bhyt")]
            readouts = [frame.readouts[name] for name in got["names"]]
            wanted.append([*ends, *frame.series["exceeds"][1], *readouts])
        np.testing.assert_allclose(np.array(drawn, float), wanted, rtol=1e-11)
        assert len(readouts) == len(frame.readouts)


@pytest.mark.parametrize("rho", [0.0, 0.35, 1.0])
@pytest.mark.parametrize("depth", [2.0, 28.0, 128.0])
def test_it_says_exceeds_exactly_beyond_the_critical_ratio(explorable: Any, depth: float, rho: float) -> None:
    exact = float(critical_ratio(second_moments("lns", int(depth)), correlation=rho))
    for factor, above in ((1 - 1e-6, False), (1 + 1e-6, True)):
        frame = explorable.compute(lam=exact * factor * 10, kappa=10.0, depth=depth, rho=rho)
        assert np.isfinite(frame.readouts["first"]) == above
        assert (frame.readouts["end"] > 1) == above
    assert frame.readouts["paper"] < exact
    assert frame.readouts["every"] <= exact * (1 + 1e-12)
