"""The compendium on disk: where chapters, executed notebooks and the book live."""

from __future__ import annotations

import fnmatch
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import residlab
from residlab.data.locking import locked
from residlab.errors import ResidlabError

CHAPTER_NAME = re.compile(r"\d\d-[a-z0-9-]+")


@dataclass(frozen=True)
class Project:
    """A compendium rooted at the folder that holds ``_config.yml``, ``_toc.yml`` and ``notebooks/``."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """Return the project that contains ``start`` (default: the working directory).

        Raises
        ------
        ResidlabError
            If no folder from ``start`` upwards is a compendium, or if the ``residlab`` that runs
            is not the one under the project's own ``src``.
        """
        start = (start or Path.cwd()).resolve()
        for folder in (start, *start.parents):
            if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
                project = cls(folder)
                project.check_library()
                return project
        raise ResidlabError(
            f"{start} is not inside a compendium: no folder from there upwards holds _toc.yml and notebooks/; "
            "run this inside a clone of the repository, or name it with --root"
        )

    def check_library(self) -> None:
        """Refuse to run another residlab than the project's own (an installed wheel would win silently)."""
        own = self.root / "src" / "residlab"
        running = Path(residlab.__file__).resolve().parent
        if own.is_dir() and own.resolve() != running:
            raise ResidlabError(
                f"this compendium's library is {own}, but Python runs {running}; "
                "install the project itself: pip install -c constraints.txt -e '.[dev]'"
            )

    @property
    def notebooks(self) -> Path:
        """Folder of chapter texts, one ``NN-name.md`` a chapter."""
        return self.root / "notebooks"

    @property
    def executed(self) -> Path:
        """Folder of executed notebooks, which the book is rendered from."""
        return self.root / "executed"

    @property
    def html(self) -> Path:
        """Folder of the rendered book."""
        return self.root / "_build" / "html"

    def chapter_names(self) -> list[str]:
        """Names of all chapters, in order."""
        names = sorted(path.stem for path in self.notebooks.glob("*.md"))
        for name in names:
            if not CHAPTER_NAME.fullmatch(name):
                raise ResidlabError(
                    f"notebooks/{name}.md: a chapter is named NN-name.md, with two digits, then lower-case words"
                )
        return names

    def unlisted(self, names: Iterable[str]) -> list[str]:
        """Return those of some chapters that ``_toc.yml`` does not name: they run, but no page shows them.

        Raises
        ------
        ResidlabError
            If ``_toc.yml`` cannot be read.
        """
        try:
            content = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ResidlabError(f"{self.root / '_toc.yml'} cannot be read: {error}") from None
        patterns = [entry.removesuffix(".md") for entry in _listed(content)]
        return [name for name in names if not any(fnmatch.fnmatch(f"notebooks/{name}", p) for p in patterns)]

    def orphans(self) -> list[Path]:
        """Return executed notebooks of the book whose chapter is gone."""
        known = set(self.chapter_names())
        found = sorted(self.executed.glob("*.ipynb"))
        return [path for path in found if CHAPTER_NAME.fullmatch(path.stem) and path.stem not in known]

    def resolve_names(self, requested: list[str]) -> list[str]:
        """Map what a user typed (``02-chebyshev``, ``02``, ``notebooks/02-chebyshev.md``) to chapter names."""
        known = self.chapter_names()
        resolved = []
        for text in requested:
            stem = Path(text).name.removesuffix(".md").removesuffix(".ipynb")
            matches = [name for name in known if stem in (name, name[:2])]
            if not matches:
                raise ResidlabError(f"no chapter named {text!r}; chapters are: {', '.join(known) or 'none'}")
            resolved.extend(matches)
        return list(dict.fromkeys(resolved)) if requested else known

    @functools.cached_property
    def constraints(self) -> bytes:
        """The pinned versions that the numbers of the book were made with (empty without the file)."""
        path = self.root / "constraints.txt"
        return path.read_bytes() if path.is_file() else b""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the project for one build or execution; another process waits its turn and says so."""
        with ExitStack() as hold:
            try:
                hold.enter_context(locked(self.root / ".residlab.lock", f"{Path(sys.argv[0]).name} in {self.root}"))
            except OSError as error:
                raise ResidlabError(f"cannot write to {self.root}: {error.strerror}") from None
            yield


def _listed(content: Any) -> Iterator[str]:
    """Yield the files that a table of contents names, and the patterns that stand for several."""
    if isinstance(content, list):
        for entry in content:
            yield from _listed(entry)
    elif isinstance(content, dict):
        for key, value in content.items():
            if key in ("file", "glob", "root") and isinstance(value, str):
                yield value
            else:
                yield from _listed(value)
