"""A recorded run that trains nothing: it measures a model, and its record has the form of a training run's."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from residlab.experiments.record import Record


@dataclass(frozen=True)
class Measurement(ABC):
    """A frozen dataclass of settings that JSON can hold; equal settings are one measurement."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return asdict(self)

    @property
    def hash(self) -> str:
        """Sixteen digits that name it."""
        said = json.dumps([type(self).__name__, self.to_dict()], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def sources(self) -> tuple[str, ...]:
        """Return the sixteen digits of the finished runs whose weights it needs; by default none."""
        return ()

    @abstractmethod
    def perform(self, experiment: str, *, cache: Path | None = None) -> Record:
        """Measure, and return the record."""

    @abstractmethod
    def about(self) -> str:
        """Return the settings for people, in less than a line."""

    @abstractmethod
    def score(self, metrics: Mapping[str, Any]) -> str:
        """Return the main figure of its record's metrics for people."""
