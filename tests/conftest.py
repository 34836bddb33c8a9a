"""What every test may use: the book as it is built, and a real browser that sees this machine only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest

from residlab.compendium.project import Project

# Test machines are busy: how long one example takes says nothing about the code.
hypothesis.settings.register_profile("residlab", deadline=None)
hypothesis.settings.load_profile("residlab")

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Before torch is imported: tests side by side share the cores, and threads that wait for a core spin.
    beside = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // beside)))

if shutil.which("nvidia-smi") is None:
    # Without a GPU, Triton's kernels run in its interpreter. Triton reads this when it is first imported, by whomever.
    os.environ.setdefault("TRITON_INTERPRET", "1")

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
INSTALL = (
    "install one (Debian, Ubuntu: apt-get install chromium; macOS: brew install --cask chromium; "
    "anywhere: python -m playwright install chromium, then --browser PATH)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("residlab")
    group.addoption("--browser", metavar="PATH", help="Chromium for the tests marked browser (else the one on PATH)")
    group.addoption("--require-browser", action="store_true", help="fail, where tests marked browser could not run")
    group.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive, too: minutes each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--exhaustive"):
        exhaustive = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=exhaustive)
        items[:] = [item for item in items if item not in exhaustive]


@dataclass
class Visit:
    """One page, what it asked of others (blocked) and what went wrong on it."""

    page: Any
    blocked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        assert not self.blocked, f"the page asked for {self.blocked}"
        assert not self.errors, f"the page reported {self.errors}"


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("file", "data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost", "::1")


def _executable(config: pytest.Config) -> str | None:
    given = config.getoption("--browser")
    if given:
        if not Path(given).is_file():
            pytest.fail(f"--browser {given}: there is no such file", pytrace=False)
        return str(given)
    return next(filter(None, map(shutil.which, NAMES)), None)


def _not_run(config: pytest.Config, why: str) -> None:
    if config.getoption("--require-browser"):
        pytest.fail(f"not run: {why}", pytrace=False)
    pytest.skip(f"not run: {why}")


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Playwright's Chromium. Open pages through `visit`, which blocks and records what is not local."""
    executable = _executable(pytestconfig)
    if executable is None:
        _not_run(pytestconfig, f"no Chromium on PATH; {INSTALL}")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _not_run(pytestconfig, "playwright is missing; python -m pip install playwright")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open an address in a fresh context: ``visit(url, viewport=..., color_scheme="dark")``."""
    with ExitStack() as stack:

        def open_page(url: str | Path, **options: Any) -> Visit:
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(15_000)
            seen = Visit(context.new_page())

            def pass_local(route: Any) -> None:
                if is_local(route.request.url):
                    route.continue_()
                else:
                    seen.blocked.append(route.request.url)
                    route.abort()

            context.route("**/*", pass_local)
            seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
            seen.page.on(
                "console", lambda message: message.type in ("error", "warning") and seen.errors.append(message.text)
            )
            seen.page.goto(url.as_uri() if isinstance(url, Path) else url)
            return seen

        yield open_page


@pytest.fixture(scope="session")
def project() -> Project:
    """The compendium of this repository."""
    return Project.find(Path(__file__).parent)


@pytest.fixture(scope="session")
def book(project: Project) -> Path:
    """The rendered book, brought up to date by the command that a reader uses; returns the folder of its pages."""
    done = subprocess.run(
        [sys.executable, "-m", "residlab.cli", "build", "--strict", "--root", str(project.root)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return project.html
