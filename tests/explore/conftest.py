from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from residlab.explore.assets import assets, plotly_script
from residlab.explore.chebyshev import MeasuredLaw, chebyshev_explorable, measured_law
from residlab.explore.explorable import Explorable, State
from residlab.explore.static_face import explorable_html

HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
STYLE = (
    "<style>body{font:16px/1.6 system-ui,sans-serif;margin:0;background:var(--rl-paper);color:var(--rl-ink)}"
    "main{max-width:46rem;margin:auto;padding:0 1rem}.gap{height:250vh}</style>"
)

RUN = """([name, states, every]) => {
  const { form, data, options } = residlab.explore.mounted.get(name);
  const plain = (list) => Array.from(list, (v) => (Number.isNaN(v) ? null : v));
  return states.map((state, n) => {
    const { series, readouts } = form(state, data, options);
    const drawn = n % every ? [] : Object.entries(series).map(([key, { x, y }]) => [key, plain(x), plain(y)]);
    return { series: drawn, readouts };
  });
}"""


@pytest.fixture(scope="session")
def recorded() -> dict[str, MeasuredLaw]:
    rng = np.random.default_rng(0)
    laws = {}
    for key, label, nu in (("layer-0", "layer 0", 3.0), ("layer-12", "layer 12", 5.0)):
        x = rng.standard_t(nu, (200, 576)) + 0.2
        laws[key] = measured_law(label, x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)))
    return laws


@pytest.fixture(scope="session")
def explorable(recorded: dict[str, MeasuredLaw]) -> Explorable:
    return chebyshev_explorable(recorded)


@pytest.fixture(scope="session")
def asset_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for path in [plotly_script(), *assets()]:
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def bare_page(asset_folder: Path, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Write a page that holds some HTML and the assets, nothing else; returns where."""

    def write(body: str, *, order: Callable[[list[str]], list[str]] = list, defer: bool = True) -> Path:
        names = [path.name for path in [plotly_script(), *assets()] if path.suffix == ".js"]
        scripts = "".join(f'<script {"defer " if defer else ""}src="{name}"></script>' for name in order(names))
        head = HEAD + "<title>Bare page</title>" + '<link rel="stylesheet" href="residlab-explore.css">' + STYLE
        early, late = (scripts, "") if defer else ("", scripts)
        path = asset_folder / f"{abs(hash(request.node.nodeid))}.html"
        main = f"<main><h1>Bare page</h1>{body}</main>{late}"
        text = f'<!doctype html><html lang="en"><head>{head}{early}</head><body>{main}</body></html>'
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def equals_its_script(bare_page: Callable[..., Path], visit: Callable[..., Any]) -> Callable[..., None]:
    """Compare an explorable with its script in a page: readouts of every state, the series of every so many."""

    def check(
        explorable: Explorable, states: Sequence[State], *, rtol: float, atol: float = 0.0, series_every: int = 1
    ) -> None:
        page = visit(bare_page(explorable_html(explorable))).page
        page.wait_for_selector(".rl-explorable[data-ready]")
        for begin in range(0, len(states), 1000):
            chunk = states[begin : begin + 1000]
            answers = page.evaluate(RUN, [explorable.name, chunk, series_every])
            for n, (state, got) in enumerate(zip(chunk, answers, strict=True)):
                wanted = explorable.compute(**state)
                assert got["readouts"] == pytest.approx(dict(wanted.readouts), rel=rtol, abs=atol, nan_ok=True), state
                drawn = sorted(key for key, _, _ in got["series"])
                assert drawn == ([] if n % series_every else sorted(wanted.series))
                for key, x, y in got["series"]:
                    for values, want in zip((x, y), wanted.series[key], strict=True):
                        np.testing.assert_allclose(
                            np.array(values, float), want, rtol=rtol, atol=atol, err_msg=f"{state} {key}"
                        )

    return check
