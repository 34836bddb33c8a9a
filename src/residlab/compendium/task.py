"""A chapter running in a worker process: events in, a deadline, and an end that leaves no kernel behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from residlab.compendium.chapter import Chapter
from residlab.compendium.worker import Request


class Task:
    """One worker process and the kernel it started.

    Parameters
    ----------
    request : Request
        What the worker is to run; its scratch folder is made here.
    chapter : Chapter
        Its text, to name the line of a cell that fails.
    limit : float
        Seconds after which worker and kernel are killed.
    threads : int
        Threads that the kernel's numerical libraries may use.
    on_cell : callable
        Called with the chapter's name and the number of each cell that starts.
    """

    def __init__(
        self, request: Request, chapter: Chapter, limit: float, threads: int, on_cell: Callable[[str, int], None]
    ) -> None:
        self._chapter, self._limit, self._on_cell = chapter, limit, on_cell
        self._started = time.monotonic()
        self._cell, self._kernel, self._timed_out = 0, 0, False
        self._result: dict[str, Any] = {}
        self._stderr = ""
        # Here and not in the worker, so that it goes also when the worker is killed.
        self._folder = tempfile.TemporaryDirectory(prefix="residlab-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "residlab.compendium.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=request.root,
            env=os.environ | {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._drain)]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a worker that dies at once is reported by failure()
            self._process.stdin.write(replace(request, folder=self._folder.name).to_json())
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            match event["event"]:
                case "kernel":
                    self._kernel = event["pid"]
                case "cell":
                    self._cell = event["number"]
                    self._on_cell(self._chapter.name, self._cell)
                case _:
                    self._result = event

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._stderr = self._process.stderr.read()

    @property
    def seconds(self) -> float:
        """How long the chapter ran, its kernel's start included."""
        return float(self._result.get("seconds", time.monotonic() - self._started))

    def ended(self) -> bool:
        """Whether the worker has ended; one past its deadline is killed here."""
        if self._process.poll() is None:
            if time.monotonic() - self._started < self._limit:
                return False
            self._timed_out = True
        self.kill()
        return True

    def kill(self) -> None:
        """End the worker and its kernel (a session of its own), and collect what they said."""
        for group in filter(None, (self._process.pid, self._kernel)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        self._folder.cleanup()

    def failure(self) -> str | None:
        """Return one sentence that names chapter, cell and error, or ``None`` if the chapter is done."""
        if self._result.get("event") == "done":
            return None
        if self._result.get("event") == "failed":
            where = self._where(self._result["number"])
            message = " ".join(str(self._result["message"]).split())
            return f"{where}: {self._result['kind']}: {message}"
        if self._timed_out:
            return f"{self._where(self._cell)}: timeout: the chapter was still running after {self._limit:g} s"
        last = self._stderr.strip().splitlines()[-1:] or [f"exit code {self._process.returncode}"]
        return f"{self._where(self._cell)}: the worker failed: {last[0]}"

    def _where(self, number: int) -> str:
        if not number:
            return self._chapter.name
        cell = self._chapter.code_cells[number - 1]
        name = f" ({cell.label})" if cell.label else ""
        return f"{self._chapter.name}, code cell {number}{name}, line {cell.line} of notebooks/{self._chapter.name}.md"
