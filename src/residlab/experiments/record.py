"""Records of runs: one line of JSON each, appended, one for each configuration."""

import datetime
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import residlab
from residlab.data.cache import write_atomic
from residlab.data.locking import locked
from residlab.errors import ResidlabError


@dataclass(frozen=True)
class Record:
    """What one run gave, and all that it depended on.

    Attributes
    ----------
    experiment
        The name it was run under.
    hash
        Of the configuration.
    config, seed
        The configuration whole, and its seed beside it.
    metrics
        What was measured.
    versions, hardware, commit, time
        Packages, processor and device, the source's commit (None outside a checkout; with ``+`` when files differed
        from it), and when it ended, UTC.

    Examples
    --------
    >>> record = Record("demo", "0" * 16, config={"depth": 2}, seed=0, metrics={"loss": 1.5})
    >>> record.metrics["loss"], "torch" in record.versions
    (1.5, True)
    """

    experiment: str
    hash: str
    config: dict[str, Any]
    seed: int
    metrics: dict[str, Any]
    versions: dict[str, str] = field(default_factory=lambda: versions())
    hardware: dict[str, Any] = field(default_factory=lambda: hardware())
    commit: str | None = field(default_factory=lambda: commit())
    time: str = field(default_factory=lambda: now())


_BEGIN = '{"experiment"'  # of every record


class Records:
    """A file of records.

    Several processes may append at once; a line is written whole. A second record of one configuration under one
    experiment is not added. Reading stops with an error at a line that is no record, but for a last line that begins as
    one and has no end, which a crash cut short: it is left out, and the next append removes it.

    Parameters
    ----------
    file
        ``.jsonl``; it need not exist.

    Examples
    --------
    >>> records = Records(Path("demo.jsonl"))
    >>> record = Record("demo", "0" * 16, config={"depth": 2}, seed=0, metrics={"loss": 1.5})
    >>> records.add(record), records.add(record)  # a second one is not added
    (True, False)
    >>> records.find("demo", "0" * 16).metrics
    {'loss': 1.5}
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in the order of the file."""
        if not self.file.exists():
            return
        for number, line in enumerate(self._lines(), start=1):
            try:
                yield Record(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ResidlabError(f"{self.file}, line {number}, is no record: {error}") from error

    def find(self, experiment: str, config_hash: str) -> Record | None:
        """Return the record of a configuration, or None."""
        return next((r for r in self if (r.experiment, r.hash) == (experiment, config_hash)), None)

    def check(self) -> None:
        """Find out whether records can be added, before what takes hours.

        Raises
        ------
        ResidlabError
            If the file cannot be written.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                descriptor, name = tempfile.mkstemp(prefix=f".{self.file.name}-", dir=self.file.parent)
                os.close(descriptor)
                Path(name).unlink()
        except OSError as error:
            raise ResidlabError(f"{self.file} cannot be written: {error}") from error
        if self.file.exists() and not self.file.is_file():
            raise ResidlabError(f"{self.file} cannot be written: it is no file")

    def add(self, record: Record) -> bool:
        """Append a record unless its configuration has one under its experiment; return whether it was appended.

        Raises
        ------
        ResidlabError
            If the file cannot be written, or a metric is no JSON value (NaN is none).
        """
        try:
            line = json.dumps(asdict(record), allow_nan=False)
        except (ValueError, TypeError) as error:
            raise ResidlabError(f"the record of {record.experiment} {record.hash} is not JSON: {error}") from error
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if self.find(record.experiment, record.hash) is not None:
                    return False
                write_atomic(self.file, "".join(f"{each}\n" for each in [*self._lines(), line]).encode())
        except OSError as error:
            raise ResidlabError(f"{self.file} cannot be written: {error}") from error
        return True

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.file.with_name(f".{self.file.name}.lock"), f"writing {self.file.name}")

    def _lines(self) -> list[str]:
        if not self.file.exists():
            return []
        try:
            *lines, rest = self.file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ResidlabError(f"{self.file} is no file of records: {error}") from error
        try:
            json.loads(rest)
        except ValueError:
            if rest.startswith(_BEGIN) or _BEGIN.startswith(rest):
                return lines  # nothing, or a line that was cut short
        return [*lines, rest]  # whole, but for its end, as an editor may leave it; or of another file


def now() -> str:
    """Return the time, UTC, to the second.

    Examples
    --------
    >>> len(now()), now()[10]
    (25, 'T')
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Return the versions of what a number may depend on.

    Examples
    --------
    >>> "torch" in versions()
    True
    """
    found = {"python": platform.python_version(), "residlab": residlab.__version__}
    for package in (
        "torch",
        "numpy",
        "transformers",
        "tokenizers",
        "pytorch_optimizer",
        "heavyball",
        "lightning-fabric",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return processor, cores, threads and accelerator.

    Examples
    --------
    >>> sorted(hardware())
    ['accelerator', 'cores', 'processor', 'system', 'threads']
    """
    import torch

    from residlab.bench.timing import machine

    return {
        **{name: value for name, value in machine().items() if name in ("processor", "cores", "threads", "system")},
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def commit() -> str | None:
    """Return the commit of the source that runs, ``+`` behind it when tracked files differ; None outside a checkout.

    Examples
    --------
    >>> commit() is None or len(commit().removesuffix("+")) == 40
    True
    """
    folder = Path(residlab.__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607 (found on PATH, as a person's git is)
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
        return done.stdout.strip()

    try:
        top = Path(git("rev-parse", "--show-toplevel"))
        if not (top / "src" / "residlab").is_dir():
            return None  # an installed package that lies inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ":/src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
