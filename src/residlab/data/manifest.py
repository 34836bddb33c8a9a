"""Sealed folders: files beside a manifest of their sizes and hashes, put in place as a whole.

``manifest.json`` holds a header (what the folder is) and, for each file, its size in bytes and its SHA-256.
"""

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from residlab.data.cache import write_atomic

MANIFEST = "manifest.json"


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, read in blocks."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_once(file: Path) -> str:
    """Return the SHA-256 of a file, computed again in this process only when its size or modification time changed."""
    found = file.stat()
    return _sha256_of_version(file.resolve(), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=4096)
def _sha256_of_version(file: Path, mtime_ns: int, size: int) -> str:
    return sha256(file)


def seal(folder: Path, header: Mapping[str, str]) -> None:
    """Flush every file of ``folder`` to the disk and write its manifest, last."""
    files = {}
    for file in sorted(part for part in folder.rglob("*") if part.is_file()):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        files[file.relative_to(folder).as_posix()] = {"size": file.stat().st_size, "sha256": sha256(file)}
    write_atomic(folder / MANIFEST, json.dumps({**header, "files": files}, indent=1).encode())


def problem(folder: Path, header: Mapping[str, str]) -> str | None:
    """Say in a few words what is wrong with a sealed folder, or ``None`` when it is intact.

    Every file named by the manifest is compared by size and hash, and the manifest's header with ``header``.
    """
    file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return f"{file} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{file} cannot be read"
    for key, value in header.items():
        if manifest.get(key) != value:
            return f"{file} is of another {key} ({manifest.get(key)}, expected {value})"
    return next(filter(None, (_file_problem(folder / name, *entry) for name, entry in files.items())), None)


def _file_problem(file: Path, size: int, digest: str) -> str | None:
    try:
        found = file.stat().st_size
        if found != size:
            return f"{file} has {found} bytes, expected {size}"
        if sha256_once(file) != digest:
            return f"{file} has another SHA-256 than the manifest says"
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    return None


def install(staged: Path, target: Path) -> None:
    """Put the finished folder ``staged`` at ``target``; what was there moves into the staging folder beside ``staged``.

    ``staged`` must lie in a staging folder on the file system of ``target``.
    """
    replaced = staged.parent / "replaced"
    if target.exists():
        target.rename(replaced)
    try:
        staged.rename(target)
    except OSError:
        if replaced.exists():
            replaced.rename(target)
        raise
