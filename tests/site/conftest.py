"""The rendered book, opened from disk and from the server that readers use, and the explorables on its pages."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

DESKTOP = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="session")
def pages(book):
    """Return the book's pages, relative to its folder."""
    found = sorted(path.relative_to(book).as_posix() for path in book.rglob("*.html") if "_static" not in path.parts)
    return [page for page in found if page not in ("genindex.html", "prf-prf.html", "search.html")]


@pytest.fixture(scope="session")
def served(project, book):
    """Serve the book with the real command, and return its address."""
    command = [sys.executable, "-m", "residlab.cli", "serve", "--port", "0", "--root", str(project.root)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())[0]
    yield address
    process.terminate()
    process.communicate(timeout=10)


@dataclass(frozen=True)
class Shown:
    """What an explorable shows: the state it is in, its readouts, and each trace of its figure by name, as plotted."""

    state: dict[str, Any]
    readouts: dict[str, Any]
    series: dict[str, tuple[np.ndarray, np.ndarray]]


class OnPage:
    """One explorable of an open page: its controls moved as a reader moves them, and what it then shows."""

    def __init__(self, seen: Any, name: str) -> None:
        self.seen, self.page, self.name = seen, seen.page, name
        self.page.locator(f"#explore-{name}").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#explore-{name}[data-drawn]")

    def press(self, control: str, *keys: str) -> None:
        """Focus a control and press keys."""
        self.page.focus(f"#explore-{self.name}-{control}")
        for key in keys:
            self.page.keyboard.press(key)

    def drag(self, control: str, share: float) -> None:
        """Drag along a slider from its middle to a share of its length."""
        self.page.mouse.move(*self._point(control, 0.5))
        self.page.mouse.down()
        self.page.mouse.move(*self._point(control, share), steps=8)
        self.page.mouse.up()

    def click(self, control: str, share: float) -> None:
        """Click on a slider, at a share of its length."""
        self.page.mouse.click(*self._point(control, share))

    def tap(self, control: str, share: float) -> None:
        """Tap on a slider, at a share of its length."""
        self.page.touchscreen.tap(*self._point(control, share))

    def _point(self, control: str, share: float) -> tuple[float, float]:
        slider = self.page.locator(f"#explore-{self.name}-{control}")
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        return box["x"] + share * box["width"], box["y"] + box["height"] / 2

    def shown(self) -> Shown:
        """Return what is shown once what was asked for is drawn."""
        self.page.wait_for_function("(name) => !residlab.explore.mounted.get(name).pending", arg=self.name)
        got = self.page.evaluate(
            """(name) => {
              const list = (values) => Array.from(values, (v) => (Number.isFinite(v) ? v : null));
              const { state, frame } = residlab.explore.mounted.get(name);
              const { data } = document.querySelector(`#explore-${name} .rl-plot`);
              const series = data.map((trace) => [trace.name, [list(trace.x), list(trace.y)]]);
              return { state, readouts: frame.readouts, series: Object.fromEntries(series) };
            }""",
            self.name,
        )
        series = {name: (np.array(x, float), np.array(y, float)) for name, (x, y) in got["series"].items()}
        return Shown(got["state"], got["readouts"], series)


@pytest.fixture
def explorable(book, served, visit):
    """Open an explorable: ``explorable("notebooks/02-chebyshev.html", "chebyshev", phone=True)``.

    A desktop reads the book from disk, a phone over http.
    """

    def opened(page: str, name: str, *, phone: bool = False) -> OnPage:
        return OnPage(visit(served + page, **PHONE) if phone else visit(book / page, **DESKTOP), name)

    return opened
