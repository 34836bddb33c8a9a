"""Profiles: how much a run computes, and how long it may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from residlab.compendium.project import Project
from residlab.data.cache import write_atomic
from residlab.errors import ResidlabError

PROFILES = ("smoke", "cpu", "gpu")
_CELL_LIMIT = {"smoke": 900.0, "cpu": 3600.0, "gpu": 3600.0}
_CHAPTER_LIMIT = {"smoke": 1800.0, "cpu": 14400.0, "gpu": 14400.0}


@dataclass(frozen=True)
class Limits:
    """How long a cell and a whole chapter may run, in seconds."""

    cell: float
    chapter: float

    @classmethod
    def of(cls, profile: str, cell: float | None = None, chapter: float | None = None) -> Limits:
        """Return the limits of a profile, with those given instead.

        Raises
        ------
        ResidlabError
            If a limit is not a positive and finite number.
        """
        for name, value in (("--cell-timeout", cell), ("--chapter-timeout", chapter)):
            if value is not None and not 0 < value < math.inf:
                raise ResidlabError(f"{name} must be a positive number of seconds, and finite; got {value:g}")
        cell = _CELL_LIMIT[profile] if cell is None else cell
        return cls(cell, max(_CHAPTER_LIMIT[profile], cell) if chapter is None else chapter)


def recorded_profile(project: Project) -> str:
    """Return the profile that the book was last built with, smoke if never."""
    path = project.executed / "profile"
    profile = path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else "smoke"
    return profile if profile in PROFILES else "smoke"


def record_profile(project: Project, profile: str) -> None:
    """Remember the profile for the next build.

    Raises
    ------
    ResidlabError
        If there is no such profile.
    """
    if profile not in PROFILES:
        raise ResidlabError(f"no profile named {profile!r}; profiles are: {', '.join(PROFILES)}")
    if recorded_profile(project) != profile:
        project.executed.mkdir(exist_ok=True)
        write_atomic(project.executed / "profile", f"{profile}\n".encode())
