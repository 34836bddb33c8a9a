"""The scripts against Python, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from residlab.explore.explorable import Explorable
from residlab.explore.formats import format_value
from residlab.explore.panels import KAPPAS, LAMBDAS
from residlab.explore.static_face import explorable_html
from residlab.theory.laws import gaussian_tail

pytestmark = pytest.mark.browser

STATES = 10_000
RUN = """(states) => {
  const { form, data, options } = residlab.explore.mounted.get("chebyshev");
  const plain = (list) => Array.from(list, (v) => (Number.isNaN(v) ? null : v));
  return states.map(([lam, kappa, law, site, whole]) => {
    const { series, readouts } = form({ lam, kappa, law, site }, data, options);
    if (!whole) return { readouts };
    const pairs = Object.entries(series).map(([key, { x, y }]) => [key, [plain(x), plain(y)]]);
    return { readouts, series: Object.fromEntries(pairs) };
  });
}"""


def random_states(explorable: Explorable, whole_every: int) -> list[list[Any]]:
    rng = np.random.default_rng(7)
    laws, sites = list(explorable.controls[2].options), list(explorable.controls[3].options)
    states = []
    for i in range(STATES):
        law = laws[rng.integers(len(laws))]
        stops = law == "measured" or rng.random() < 0.5
        lam = rng.choice(LAMBDAS) if stops else rng.uniform(0.25, 6)
        kappa = rng.choice(KAPPAS) if stops else rng.uniform(1, 20)
        states.append([float(lam), float(kappa), law, sites[rng.integers(len(sites))], i % whole_every == 0])
    return states


@pytest.fixture
def page(explorable: Explorable, bare_page: Callable[..., Path], visit: Callable[..., Any]) -> Any:
    seen = visit(bare_page(explorable_html(explorable)))
    seen.page.wait_for_selector(".rl-explorable[data-ready]")
    return seen.page


def test_form_equals_theory_on_random_states(explorable: Explorable, page: Any) -> None:
    states = random_states(explorable, whole_every=10)
    for begin in range(0, STATES, 1000):
        chunk = states[begin : begin + 1000]
        for (lam, kappa, law, site, _), got in zip(chunk, page.evaluate(RUN, chunk), strict=True):
            where = f"λ {lam}, κ {kappa}, {law}, {site}"
            wanted = explorable.frame({"lam": lam, "kappa": kappa, "law": law, "site": site})
            for name, value in wanted.readouts.items():
                assert got["readouts"][name] == pytest.approx(value, rel=1e-9, abs=1e-300), (where, name)
            for name, pair in wanted.series.items() if "series" in got else ():
                for axis, values in zip(got["series"][name], pair, strict=True):
                    np.testing.assert_allclose(
                        np.array(axis, dtype=float), values, rtol=1e-9, atol=1e-14, err_msg=f"{where}: {name}"
                    )


def test_gaussian_tail_is_exact_far_out(explorable: Explorable, page: Any) -> None:
    kappas = np.linspace(0.001, 37, 2000)
    states = [[1.0, float(k), "gaussian", "layer-0", False] for k in kappas]
    shares = np.array([got["readouts"]["share"] for got in page.evaluate(RUN, states)])
    np.testing.assert_allclose(shares, gaussian_tail(kappas), rtol=2e-12, atol=0)


def test_formats_write_the_same_characters(page: Any) -> None:
    rng = np.random.default_rng(3)
    values = (10.0 ** rng.uniform(-30, 8, 3000) * rng.choice([-1, 1], 3000)).tolist()
    values += (
        (np.arange(-4000, 4000) / 2000).tolist() + [k / 8 for k in range(800)] + [999.5, 999.4999, 9.995, 0.09995, 1e6]
    )
    for name in ("fixed0", "fixed2", "fixed3", "sig3", "share"):
        texts = page.evaluate("([values, name]) => values.map((v) => residlab.explore.format(v, name))", [values, name])
        assert texts == [format_value(value, name) for value in values], name
