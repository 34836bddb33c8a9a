"""A small compendium of its own, to run, break and repair."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# {title}

"""


class SmallCompendium:
    """Chapters written by a test, run by the real command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "notebooks").mkdir()
        (root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters: [{glob: notebooks/*}]\n")

    def chapter(self, name: str, *cells: str, parameters: str = "") -> Path:
        """Write a chapter of code cells, and return its path."""
        text = HEADER.format(title=name)
        if parameters:
            text += f"```{{code-cell}} ipython3\n:tags: [parameters]\n\n{parameters}\n```\n\n"
        for cell in cells:
            text += f"```{{code-cell}} ipython3\n{cell}\n```\n\n"
        path = self.root / "notebooks" / f"{name}.md"
        path.write_text(text)
        return path

    def arguments(self, *arguments: str) -> list[str]:
        """Return the arguments of ``residlab COMMAND --root``."""
        return [arguments[0], "--root", str(self.root), *arguments[1:]]

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``residlab COMMAND --root``."""
        return [sys.executable, "-m", "residlab.cli", *self.arguments(*arguments)]

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command and return what came of it."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=timeout, env=dict(os.environ)
        )

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and return its process, standard error piped."""
        return subprocess.Popen(self.command(*arguments), stderr=subprocess.PIPE, text=True, env=dict(os.environ))

    def gate(self) -> tuple[str, Path]:
        """Return a cell that waits for a file, and the file that lets it pass: a chapter as slow as a test needs."""
        path = self.root / "passed"
        return f"import time\nwhile not __import__('os').path.exists({str(path)!r}):\n    time.sleep(0.05)", path

    def executed(self, name: str) -> Path:
        """Return where a chapter's executed notebook lies."""
        return self.root / "executed" / f"{name}.ipynb"


@pytest.fixture
def compendium(tmp_path):
    return SmallCompendium(tmp_path)
