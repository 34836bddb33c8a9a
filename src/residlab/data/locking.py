"""One writer at a time: a lock between processes that says for whom one waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock


@contextmanager
def locked(lock_file: Path, doing: str) -> Iterator[None]:
    """Hold a lock file, waiting for its turn; who waits says so once on standard error.

    The operating system releases the lock when its holder ends, however it ends.

    Parameters
    ----------
    lock_file : Path
        Stays in place, empty; who holds it stands in a file beside it, for those who wait.
    doing : str
        What the waiting ones are told this process does, such as ``"residlab build"``.

    Raises
    ------
    OSError
        If the lock file cannot be made.
    """
    os.close(os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644))  # filelock takes some errors here for a held lock
    lock, holder = filelock.FileLock(lock_file), lock_file.with_name(f"{lock_file.name}-holder")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"residlab: waiting for {_describe(holder)}", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        with suppress(OSError):  # a courtesy to those who wait: a full disk is reported by the work itself
            holder.write_text(json.dumps({"pid": os.getpid(), "doing": doing}), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):
            holder.unlink()
        lock.release()


def _describe(holder: Path) -> str:
    try:
        said = json.loads(holder.read_text(encoding="utf-8"))
        return f"another process ({said['doing']}, pid {said['pid']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another residlab process"  # it has the lock and has not said yet what it does
