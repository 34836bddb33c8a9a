"""Datasets of the Hugging Face hub: streamed once, up to a limit, into the cache, and read from there ever after.

    hf:NAME[:CONFIG][@REVISION][?OPTION=VALUE&...]      options: split, column, max_bytes

    hf:allenai/c4:en@1588ec454efa1a09f29cd18ddd04fe05fc8653a2?max_bytes=50000000
    hf:./reviews?column=body                            a local folder of data files (JSON lines, Parquet, CSV, text)

What is kept is ``<cache>/dataset-NAME-<key>/``: ``documents.jsonl``, a row a line, and a manifest with its hash and the
commit that it was read at. So every reader of one cache sees the same text, with or without a network; without
``@REVISION`` that is the newest commit of the first time, and a line on stderr says which.
"""

import dataclasses
import hashlib
import importlib
import json
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residlab.data import cache as storage
from residlab.data import manifest
from residlab.data.progress import bar, say
from residlab.errors import ResidlabError, install
from residlab.training.textfiles import expanded

STREAMED = 100_000_000
OPTIONS = ("split", "column", "max_bytes")
_FORMAT = "residlab-dataset-2"  # 1 left empty rows out
_DOCUMENTS = "documents.jsonl"


@dataclass(frozen=True)
class Dataset:
    """Which rows of which dataset.

    Attributes
    ----------
    source
        What it was asked for as.
    name, config
        As `datasets.load_dataset` takes them; ``name`` may be a local folder.
    revision
        A commit, branch or tag; None: the newest commit.
    split
        Which of its splits is read.
    column
        Where the text is.
    max_bytes
        After how many bytes of text to stop; the row that reaches it is the last.
    """

    source: str
    name: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"
    column: str = "text"
    max_bytes: int = STREAMED

    def __post_init__(self) -> None:
        limit: object = self.max_bytes
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ResidlabError(f"max_bytes must be a whole number >= 1; got {self.max_bytes!r}")

    @property
    def folder(self) -> Path | None:
        """The local folder that it is, if it is one."""
        path = expanded(self.name)
        return path if path.is_dir() else None


def dataset(source: str, **options: Any) -> Dataset:
    """Return what a name with ``hf:`` asks for; ``options`` are fields that the name leaves open, None where they do.

    Raises
    ------
    ResidlabError
        If the name is empty, or an option is unknown, out of range, or said twice.
    """
    rest, asked, query = source.removeprefix("hf:").partition("?")
    try:
        said: dict[str, Any] = dict(urllib.parse.parse_qsl(query, strict_parsing=True)) if asked else {}
    except ValueError as error:
        raise ResidlabError(f"{source}: options are NAME=VALUE, joined by &; got {query!r}") from error
    unknown = [name for name in said if name not in OPTIONS]
    if unknown:
        raise ResidlabError(f"{source}: a dataset has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    if "max_bytes" in said:
        said["max_bytes"] = int(said["max_bytes"]) if said["max_bytes"].isdecimal() else said["max_bytes"]
    if not expanded(rest).is_dir():
        rest, at, revision = rest.partition("@")
        rest, _, config = rest.partition(":")
        said |= {"config": config or None} | ({"revision": revision} if at else {})
    if not rest or said.get("revision") == "":
        raise ResidlabError(
            f"hf: needs the name of a dataset, hf:NAME[:CONFIG][@REVISION][?OPTION=VALUE&...]; got {source!r}"
        )
    for name, value in options.items():
        if value is not None and said.setdefault(name, value) != value:
            raise ResidlabError(f"{name} is said twice: {said[name]!r} in {source}, and {value!r}")
    return Dataset(source, rest, **said)


def documents_file(wanted: Dataset, cache: Path | None) -> Path:
    """Return the file of a dataset's documents in the cache, streamed now if it is not there.

    Raises
    ------
    ResidlabError
        If ``datasets`` is not installed, there is no such dataset, revision, configuration, split or column, the hub
        cannot be reached, no row has text, or the cache cannot be written. Nothing half-written is left.
    """
    where = storage.cache_dir() if cache is None else cache
    said = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted) if field.name != "source"}
    if wanted.folder is not None:
        files = sorted(file for file in wanted.folder.rglob("*") if file.is_file())
        said["name"] = [[file.relative_to(wanted.folder).as_posix(), manifest.sha256_once(file)] for file in files]
    header = {"format": _FORMAT, "dataset": hashlib.sha256(json.dumps(said).encode()).hexdigest()}
    slug = re.sub(r"[^a-z0-9]+", "-", wanted.name.lower()).strip("-")[-40:]
    folder = where / f"dataset-{slug}-{header['dataset'][:16]}"
    if not folder.exists() or manifest.problem(folder, header):
        with storage.writing(where, f"stream {wanted.source}") as staging:
            if not folder.exists() or manifest.problem(folder, header):
                _stream(wanted, header, folder, staging)
    return folder / _DOCUMENTS


def documents(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the rows of `documents_file`: number in the dataset, and text."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row, text = json.loads(line)
            yield row, text


def _stream(wanted: Dataset, header: dict[str, str], folder: Path, staging: Path) -> None:
    load = _load_dataset(wanted.source)
    commit = None if wanted.folder is not None else _commit(wanted)
    staged = staging / folder.name
    staged.mkdir()
    taken = count = 0
    with bar(wanted.source, wanted.max_bytes) as show, (staged / _DOCUMENTS).open("w", encoding="utf-8") as stream:
        for number, text in _texts(wanted, load, commit):
            stream.write(json.dumps([number, text]) + "\n")
            taken, count = taken + len(text.encode(errors="replace")), count + bool(text)
            show(taken)
            if taken >= wanted.max_bytes:
                break
    if not count:
        raise ResidlabError(f"{wanted.source} is empty: no row of split {wanted.split!r} has any text")
    manifest.seal(staged, {**header, "source": wanted.source, "revision": commit or ""})
    manifest.install(staged, folder)
    if commit is not None and commit != wanted.revision:
        say(f"{wanted.source} is at revision {commit}: add @{commit} to its name to name this text anywhere")


def _texts(wanted: Dataset, load: Any, commit: str | None) -> Iterator[tuple[int, str]]:
    """Yield the rows whose column holds a text, blank ones too: WikiText is a row a line."""
    name = wanted.name if wanted.folder is None else str(wanted.folder)
    try:
        rows = load(name, wanted.config, split=wanted.split, revision=commit, streaming=True)
        for number, row in enumerate(rows):
            text = row.get(wanted.column, 0)
            if text is None:
                continue
            if not isinstance(text, str):
                columns = ", ".join(map(str, row))
                raise ResidlabError(
                    f"{wanted.source} has no text in column {wanted.column!r}; its columns are {columns}: "
                    "name one with ?column=NAME"
                )
            yield number, text
    except ResidlabError:
        raise
    except Exception as error:  # datasets, its many file systems and HTTP clients each raise their own
        raise ResidlabError(f"{wanted.source} cannot be read: {type(error).__name__}: {_first_line(error)}") from error


def _commit(wanted: Dataset) -> str:
    """Return the commit that a revision of a dataset on the hub now stands for."""
    name = wanted.name
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ResidlabError(f"{wanted.source}: there is no folder {name}")
    hub: Any = importlib.import_module("huggingface_hub")  # datasets needs it
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        return str(hub.HfApi().dataset_info(name, revision=wanted.revision).sha)
    except errors.GatedRepoError as error:
        raise ResidlabError(
            f"{wanted.source}: the dataset {name} wants its terms accepted on its page, and then `hf auth login` here"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ResidlabError(f"{wanted.source}: the dataset {name} has no revision {wanted.revision!r}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ResidlabError(
            f"{wanted.source}: there is no dataset {name} on the Hugging Face hub, or it is private; "
            "nor is there a folder of that name"
        ) from error
    except Exception as error:  # as many kinds as there are ways for a network to be missing
        raise ResidlabError(
            f"{wanted.source} is not in the cache, and the Hugging Face hub cannot be reached "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _load_dataset(source: str) -> Any:
    try:
        module: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise ResidlabError(f"{source} needs datasets, which is not installed: {install('datasets')}") from error
    return module.load_dataset
