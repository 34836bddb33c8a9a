"""A chapter's text: a MyST notebook, read without running it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residlab.compendium.parameters import Parameter, read_parameters
from residlab.errors import ResidlabError

_CODE_CELL = re.compile(r"^(`{3,}|:{3,})\{code-cell\}", re.MULTILINE)
_GLUE = re.compile(r"\{glue:(?:text|figure|math|md)?:?\}`([^`:]+)(?::[^`]*)?`|```\{glue:\w*:?\}\s*(\S+)")
_LABEL = re.compile(r"^#\|\s*label:\s*([a-z0-9-]+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class CodeCell:
    """One code cell: its place among code cells (from 1), its line in the text, tags, label and source."""

    number: int
    line: int
    tags: tuple[str, ...]
    source: str

    @property
    def label(self) -> str | None:
        """The cell's name, from a first line ``#| label: name``."""
        match = _LABEL.search(self.source)
        return match[1] if match else None


@dataclass(frozen=True)
class Chapter:
    """One chapter of the book."""

    name: str
    path: Path

    @functools.cached_property
    def text(self) -> str:
        """The MyST source."""
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ResidlabError(f"{self.path} is not UTF-8 text: {error}") from None

    def notebook(self) -> Any:
        """Return a fresh notebook (nbformat) of the text, without outputs."""
        import residlab.compendium.quick_imports  # noqa: F401, I001 (before jupytext)
        import jupytext

        try:
            notebook = jupytext.reads(self.text, fmt="md:myst")
        except Exception as error:  # jupytext raises many kinds, all meaning that the text is malformed
            raise ResidlabError(f"{self.path} is not a MyST notebook: {error}") from None
        if "kernelspec" not in notebook.metadata:
            raise ResidlabError(f"{self.path} has no notebook header (jupytext, kernelspec)")
        return notebook

    @functools.cached_property
    def code_cells(self) -> tuple[CodeCell, ...]:
        """The code cells, in order."""
        notebook = self.notebook()
        lines = [self.text.count("\n", 0, match.start()) + 1 for match in _CODE_CELL.finditer(self.text)]
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        if len(lines) != len(cells):
            lines = [0] * len(cells)
        return tuple(
            CodeCell(i, line, tuple(cell.metadata.get("tags", ())), cell.source)
            for i, (line, cell) in enumerate(zip(lines, cells, strict=True), start=1)
        )

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The declared parameters (see :mod:`residlab.compendium.parameters`)."""
        tagged = [cell for cell in self.code_cells if "parameters" in cell.tags]
        if len(tagged) > 1:
            raise ResidlabError(f"{self.name}: more than one cell is tagged parameters")
        return read_parameters(tagged[0].source, self.name) if tagged else {}

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Inputs declared in the header under ``residlab: inputs:``: ``data/NAME`` or files of the project.

        A pattern, ``results/bhyt-*.jsonl``, stands for all files that match, of which there may be none.
        """
        header = self.notebook().metadata.get("residlab", {})
        if not isinstance(header, dict):
            raise ResidlabError(f"{self.name}: residlab in the header must hold names and values, got {header!r}")
        declared = header.get("inputs", [])
        if not isinstance(declared, list) or not all(isinstance(name, str) for name in declared):
            raise ResidlabError(f"{self.name}: residlab.inputs in the header must be a list of names")
        return tuple(declared)

    @functools.cached_property
    def glue_keys(self) -> frozenset[str]:
        """Names of glued numbers that the text quotes."""
        return frozenset((a or b).strip() for a, b in _GLUE.findall(self.text))
