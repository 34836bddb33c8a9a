from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from residlab.explore.assets import assets, plotly_script
from residlab.explore.chebyshev import MeasuredLaw, chebyshev_explorable, measured_law
from residlab.explore.explorable import Explorable

HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
STYLE = (
    "<style>body{font:16px/1.6 system-ui,sans-serif;margin:0;background:var(--rl-paper);color:var(--rl-ink)}"
    "main{max-width:46rem;margin:auto;padding:0 1rem}.gap{height:250vh}</style>"
)


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
