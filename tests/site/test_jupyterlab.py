"""A chapter opened in JupyterLab as a researcher opens it: run, and its sliders moved."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from residlab.explore.variance import variance_explorable

CHAPTER = "04-theorem"
SAYS = "(said) => [...document.querySelectorAll('.widget-html-content p')].some((p) => p.textContent === said)"
LEFT = ("notebooks", "_build", "executed", ".git", ".venv")


@pytest.fixture
def lab(project, tmp_path):
    """Start JupyterLab over a copy of one chapter, beside all that it reads, and return the address."""
    for path in project.root.iterdir():
        if path.name not in LEFT:
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "notebooks").mkdir()
    for suffix in (".md", ".ipynb"):
        shutil.copy(project.notebooks / f"{CHAPTER}{suffix}", tmp_path / "notebooks")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    command += ["--IdentityProvider.token=a-token-of-the-test", f"--ServerApp.root_dir={tmp_path}"]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with (tmp_path / "lab.log").open("w+") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, cwd=tmp_path)
        try:
            address = None
            while address is None and process.poll() is None:
                time.sleep(0.2)
                log.seek(0)
                address = re.search(r"http://127\.0\.0\.1:\d+/", log.read())
            assert address, (tmp_path / "lab.log").read_text()
            yield f"{address[0]}lab/tree/notebooks/{CHAPTER}.ipynb?token=a-token-of-the-test"
        finally:
            process.terminate()  # its kernels end with it
            process.wait(timeout=30)


@pytest.fixture
def run_to(project):
    """Return how many cells there are up to the explorable."""
    cells = json.loads((project.notebooks / f"{CHAPTER}.ipynb").read_text(encoding="utf-8"))["cells"]
    return 1 + next(i for i, cell in enumerate(cells) if "\nvariance_explorable()" in "".join(cell["source"]))


@pytest.mark.browser
def test_sliders_of_a_chapter_move_in_jupyterlab(lab, run_to, visit):
    seen = visit(lab, viewport={"width": 1280, "height": 900})
    page = seen.page
    page.set_default_timeout(90_000)
    page.get_by_text("(ipykernel) | Idle").wait_for()
    page.locator(".jp-NotebookPanel .jp-Cell").first.click()
    for _ in range(run_to):
        page.keyboard.press("Shift+Enter")  # cell after cell: what is far from the active one has no place in the page
    explorable = variance_explorable()
    state = dict(explorable.default_state)
    cell = page.locator(".jp-CodeCell", has_text="variance_explorable()").locator(".jp-OutputArea-output")
    for key in ("", "ArrowRight", "ArrowRight", "ArrowLeft"):
        slider = next(control for control in explorable.controls if control.name == "lam")
        if key:
            cell.locator(".widget-slider .noUi-handle").first.press(key)
            step = 1 if key == "ArrowRight" else -1
            state["lam"] = slider.values[slider.values.index(state["lam"]) + step]
        wanted = explorable.sentence.format_map(explorable.texts(state, explorable.frame(state)))
        page.wait_for_function(SAYS, arg=wanted)
    assert cell.locator(".js-plotly-plot .main-svg").count()
    text = page.locator(".jp-MarkdownCell", has_text="exactly, by the definition of a correlation")
    assert text.locator(".katex-display").count()  # MyST's directives are read, not shown
    assert ":label:" not in text.inner_text()
    assert seen.blocked == []
