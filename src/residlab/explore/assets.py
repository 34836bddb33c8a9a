"""The scripts and style sheet that draw figures and explorables on a page, and where they lie."""

from __future__ import annotations

from pathlib import Path

import plotly

from residlab.errors import ResidlabError

STATIC = Path(__file__).parent / "static"


def form_script(name: str) -> Path:
    """Return the packaged script of the closed form `name`.

    Raises
    ------
    ResidlabError
        If no such script is packaged.
    """
    path = STATIC / "forms" / f"{name}.js"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in (STATIC / "forms").glob("*.js")))
        raise ResidlabError(f"no script for the form {name!r}: the packaged ones are {known}")
    return path


def assets() -> list[Path]:
    """Return the files a page needs, the style sheet first, then the scripts in their order.

    A page that holds an ``rl-figure`` or an ``rl-explorable`` loads `plotly_script`, then these. The order of scripts
    does not matter to them, nor whether they are deferred.
    """
    forms = sorted((STATIC / "forms").glob("*.js"))
    scripts = [STATIC / f"residlab-{name}.js" for name in ("figures", "random", "explore")]
    return [STATIC / "residlab-explore.css", *scripts, *forms]


def plotly_script() -> Path:
    """Return plotly.js as the installed plotly package brings it."""
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
