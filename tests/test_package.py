"""The package as a whole: what importing costs, the walls, the command line, the README's example."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = ("fetch", "execute", "build", "serve", "claims", "run", "sweep", "bench", "inspect", "pair")


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **options)


@pytest.mark.parametrize("module", ["residlab", "residlab.theory", "residlab.theory.chebyshev", "residlab.theory.laws"])
def test_theory_is_light(module):
    """0.3 s is the budget on an idle machine; a test allows three times that."""
    python(f"import {module}")  # compiles
    start = time.perf_counter()
    loaded = python(f"import sys, {module}; print(*sys.modules)").stdout.split()
    assert time.perf_counter() - start < 0.9
    assert not {"torch", "scipy", "plotly", "transformers"} & set(loaded)


def test_the_command_line_starts_without_the_heavy_libraries():
    loaded = python("import sys, residlab.cli as c; c._parser(); print(*sys.modules)").stdout.split()
    assert not {"torch", "scipy", "plotly", "sphinx", "jupytext", "papermill"} & set(loaded)


def test_walls_between_packages_stand():
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def residlab(*arguments):
    env = os.environ | {"COLUMNS": "80"}
    return subprocess.run([sys.executable, "-m", "residlab.cli", *arguments], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(command):
    done = residlab(*filter(None, [command]), "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    if not command:
        assert all(re.search(rf"^\s+{name}\s", done.stdout, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["claim"], "invalid choice: 'claim' (choose from"),
        (["execute", "--profile", "fast"], "invalid choice: 'fast' (choose from"),
        (["serve", "--port", "x"], "invalid int value: 'x'"),
        (["build", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_typing_slip_is_told_with_what_is_allowed(arguments, says):
    done = residlab(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_command_it_shows_the_help():
    done = residlab()
    assert done.returncode == 2
    assert "COMMAND" in done.stdout


def test_the_examples_of_the_readme_run(tmp_path):
    blocks = re.findall(r"^( *)```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for indent, block in blocks:
        python("\n".join(line.removeprefix(indent) for line in block.splitlines()), cwd=tmp_path)


def test_the_readme_names_every_command():
    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"`residlab {name}" not in text] == []
