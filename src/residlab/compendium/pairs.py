"""Chapters in pairs: the text (``.md``) and the notebook (``.ipynb``), and the cell that Colab needs.

The cell stands in a chapter only when the repository's address is set in ``_config.yml``, for nobody can install from
an address that is not decided. It is removed from the rendered page, where nobody could run it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from residlab.compendium.project import Project
from residlab.data.cache import write_atomic
from residlab.errors import ResidlabError

_ADDRESS = re.compile(r"https://[\w.-]+/[\w.-]+/[\w.-]+")
_CELL = """\
```{{code-cell}} ipython3
:tags: [colab, remove-cell]

#| label: colab
import sys

if "google.colab" in sys.modules:
    %pip install --quiet "residlab[book] @ git+{address}"
    !residlab fetch
```

"""
_FOUND = re.compile(r"```\{code-cell\} ipython3\n:tags: \[colab, remove-cell\]\n.*?\n```\n\n", re.DOTALL)


def repository(project: Project) -> str:
    """Return the repository's public address, empty while it is not decided.

    Raises
    ------
    ResidlabError
        If ``_config.yml`` cannot be read, or the address is not of the form ``https://HOST/OWNER/REPOSITORY``.
    """
    path = project.root / "_config.yml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        address = config["sphinx"]["config"].get("residlab_repository", "")
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ResidlabError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    return check_address(address)


def check_address(address: object) -> str:
    """Return an address without a closing slash, if it is one of a repository (or empty).

    Raises
    ------
    ResidlabError
        If it is not.
    """
    text = address.rstrip("/") if isinstance(address, str) else repr(address)
    if text and not _ADDRESS.fullmatch(text):
        raise ResidlabError(f"residlab_repository {text!r} is not an address of the form https://HOST/OWNER/REPOSITORY")
    return text


def with_colab_cell(text: str, address: str) -> str:
    """Return a chapter's text with the Colab cell before its first code cell, or without it if ``address`` is empty."""
    text = _FOUND.sub("", text)
    at = text.find("```{code-cell}")
    if not address or at < 0:
        return text
    return text[:at] + _CELL.format(address=address) + text[at:]


def pair(project: Project) -> None:
    """Bring the Colab cells in line with the setting, then each chapter's two files in step (the newer one wins).

    Raises
    ------
    ResidlabError
        If jupytext fails.
    """
    address = repository(project)
    texts = [project.notebooks / f"{name}.md" for name in project.chapter_names()]
    _sync(texts)
    for path in texts:
        old = path.read_text(encoding="utf-8")
        new = with_colab_cell(old, address)
        if new != old:
            write_atomic(path, new.encode())
    _sync(texts)


def _sync(texts: list[Path]) -> None:
    if not texts:
        return
    command = [sys.executable, "-m", "jupytext", "--quiet", "--sync", *map(str, texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ResidlabError(f"jupytext failed: {said[-1]}")
