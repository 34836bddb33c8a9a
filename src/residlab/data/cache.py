"""Where data live: the cache folder, the remembered choice of it, and the rules for writing there.

Every writer takes the one lock of the cache folder, works in a staging folder inside it (same file system, so that the
last step is a rename), and leaves nothing behind when it fails.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from residlab.data.locking import locked
from residlab.errors import ResidlabError

_STAGING_PREFIX = ".staging-"
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def settings_file() -> Path:
    """Return the file that remembers the choice of cache folder."""
    return platformdirs.user_config_path("residlab", appauthor=False) / "settings.toml"


def default_cache_dir() -> Path:
    """Return the cache folder used when none was chosen."""
    return platformdirs.user_cache_path("residlab", appauthor=False)


def cache_dir() -> Path:
    """Return the folder where fetched data live: the remembered one, else the platform's cache folder for residlab.

    Raises
    ------
    ResidlabError
        When the settings file exists and cannot be read.
    """
    chosen = _read_settings().get("cache_dir")
    if chosen is None:
        return default_cache_dir()
    if not isinstance(chosen, str) or not Path(chosen).is_absolute():
        raise ResidlabError(f"{settings_file()}: cache_dir must be an absolute path in quotes, not {chosen!r}")
    return Path(chosen)


def remember_cache_dir(folder: Path | None) -> None:
    """Make ``folder`` the cache folder of later runs; ``None`` returns to the platform's default."""
    target = settings_file()
    if folder is None:
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, f"cannot forget the cache folder in {target}") from error
        return
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    quoted = json.dumps(str(folder.resolve()), ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        content = f"cache_dir = {quoted}\n".encode()
    except UnicodeEncodeError as error:
        raise ResidlabError(f"cannot remember the cache folder {str(folder)!r}: its name is not UTF-8") from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content)
    except OSError as error:
        raise storage_error(error, f"cannot remember the cache folder in {target}") from error


def _read_settings() -> dict[str, object]:
    source = settings_file()
    try:
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ResidlabError(
            f"cannot read the settings in {source} ({error}): correct the file, or delete it to return to the defaults"
        ) from error


def write_atomic(target: Path, content: bytes) -> None:
    """Replace ``target`` by ``content``: a reader sees the old file or the new one, never a part.

    A link is followed, and a file that is replaced keeps its mode. What is there and is no file on a disk, such as
    ``/dev/null`` or a pipe, is written to and stays what it is.

    Raises
    ------
    ResidlabError
        If the target is a folder.
    """
    if target.is_dir():
        raise ResidlabError(f"{target} is a folder: name a file")
    real = Path(os.path.realpath(target))
    if target.exists() and not real.is_file():
        target.write_bytes(content)
        return
    temporary = real.with_name(f".{secrets.token_hex(8)}.tmp")  # short: the target's own name may be of any length
    try:
        with temporary.open("xb") as stream:
            if real.exists():
                temporary.chmod(stat.S_IMODE(real.stat().st_mode))
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(real)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def writing(cache: Path, doing: str) -> Iterator[Path]:
    """Hold the lock of the cache folder and yield an empty staging folder inside it, removed at the end.

    A second writer says once on stderr that it waits, and for whom, then goes on when its turn comes.

    Parameters
    ----------
    cache
        The cache folder, created when absent.
    doing
        What the waiting ones are told this process does, such as ``"residlab fetch smollm2"``.

    Raises
    ------
    ResidlabError
        When the folder cannot be created or written, or its disk is full. ``OSError`` raised inside the block is
        reported in the same way.
    """
    failed = f"cannot write to the cache folder {cache}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ResidlabError(
            f"{failed}: {_file_in_the_way(cache)} is a file, not a folder; choose another with --cache-dir DIR"
        ) from error
    except OSError as error:
        raise storage_error(error, failed) from error
    try:
        with locked(cache / ".lock", doing):
            # The lock is ours, so a staging folder found here belongs to a process that was killed.
            for left in cache.glob(f"{_STAGING_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=cache))
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise storage_error(error, failed) from error


def storage_error(error: OSError, failed: str) -> ResidlabError:
    """Turn an operating system's refusal into one sentence that begins with ``failed``."""
    if error.errno in _FULL:
        return ResidlabError(f"{failed}: no space left on the disk; free some, or choose another with --cache-dir DIR")
    reason = error.strerror or str(error)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return ResidlabError(f"{failed}: {reason}; make it writable, or choose another with --cache-dir DIR")
    return ResidlabError(f"{failed}: {reason}")


def _file_in_the_way(folder: Path) -> Path:
    return next((part for part in [folder, *folder.parents] if part.exists() and not part.is_dir()), folder)
