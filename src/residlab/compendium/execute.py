"""Run every stale chapter through papermill, in parallel processes, with progress and limits."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residlab.compendium import staleness
from residlab.compendium.chapter import Chapter
from residlab.compendium.parameters import Value, resolve
from residlab.compendium.profiles import Limits, record_profile, recorded_profile
from residlab.compendium.progress import Board
from residlab.compendium.project import Project
from residlab.compendium.task import Task
from residlab.compendium.worker import Request
from residlab.errors import ResidlabError


@dataclass(frozen=True)
class Outcome:
    """What came of one chapter: how long it ran, and the failure in words if it failed."""

    chapter: str
    seconds: float
    failure: str | None


@dataclass(frozen=True)
class Job:
    """A chapter to run, with the reason why."""

    chapter: Chapter
    parameters: dict[str, Value]
    output: Path
    reason: str


def book_parameters(chapter: Chapter, profile: str) -> dict[str, Value]:
    """Return what the book sets in a chapter: the profile, where it declares one and smoke is not meant."""
    declared = chapter.parameters.get("profile")
    return {"profile": profile} if declared is not None and declared.default != profile else {}


def read_metadata(path: Path) -> dict[str, Any]:
    """Return an executed notebook's own record (empty if there is none, or it cannot be read)."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))["metadata"]["residlab"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return record if isinstance(record, dict) else {}


def reason_to_run(project: Project, chapter: Chapter, parameters: dict[str, Value], output: Path) -> str | None:
    """Return why a chapter is stale, or ``None`` if its executed notebook still stands."""
    record = read_metadata(output)
    if not record:
        return "not executed yet"
    also_loaded = record.get("also_loaded")
    known = [m for m in also_loaded if isinstance(m, str)] if isinstance(also_loaded, list) else []
    changed = staleness.changes(record.get("fingerprint"), staleness.fingerprint(project, chapter, parameters, known))
    return ("changed: " + ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")) if changed else None


def stale_jobs(project: Project, names: Sequence[str], profile: str, *, force: bool = False) -> list[Job]:
    """Return the jobs that bring the book's executed notebooks up to date."""
    jobs = []
    for name in names:
        chapter = Chapter(name, project.notebooks / f"{name}.md")
        output = project.executed / f"{name}.ipynb"
        parameters = book_parameters(chapter, profile)
        reason = "asked for" if force else reason_to_run(project, chapter, parameters, output)
        if reason:
            jobs.append(Job(chapter, parameters, output, reason))
    return jobs


def custom_job(project: Project, name: str, given: Sequence[str], output: Path | None) -> Job:
    """Return the job that runs one chapter with other parameters, beside the book and never into it."""
    chapter = Chapter(name, project.notebooks / f"{name}.md")
    parameters = resolve(chapter.parameters, given, name)
    output = (output or project.executed / "custom" / f"{name}.ipynb").resolve()
    if output.suffix != ".ipynb":
        raise ResidlabError(f"--output {output}: an executed notebook ends in .ipynb")
    if output.parent in (project.executed, project.notebooks):
        raise ResidlabError(f"--output {output}: that folder belongs to the book; choose another")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResidlabError(f"--output {output}: {error.strerror}") from None
    if not os.access(output.parent, os.W_OK):
        raise ResidlabError(f"--output {output}: the folder cannot be written")
    return Job(chapter, parameters, output, "asked for")


def default_workers() -> int:
    """Return how many chapters run at once: one a core, at most four (each may hold a model in memory)."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def check_workers(workers: int | None) -> int:
    """Return how many chapters may run at once (default: `default_workers`).

    Raises
    ------
    ResidlabError
        If none may.
    """
    if workers is not None and workers < 1:
        raise ResidlabError(f"--jobs must be at least 1, got {workers}")
    return workers or default_workers()


def run_jobs(
    project: Project, jobs: Sequence[Job], profile: str, limits: Limits, *, workers: int | None = None
) -> list[Outcome]:
    """Run jobs, at most ``workers`` at once, and return what came of each; a failure does not stop the others.

    An interrupt ends all workers and kernels; chapters already written stay, so that a rerun resumes.
    """
    workers = check_workers(workers)
    threads = max(1, default_workers() // max(1, min(workers, len(jobs))))
    _end_on_termination()
    waiting, running, outcomes = list(jobs), dict[str, Task](), dict[str, Outcome]()
    with Board([(job.chapter.name, len(job.chapter.code_cells), job.reason) for job in jobs]) as board:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = waiting.pop(0)
                    name = job.chapter.name
                    request = Request(str(project.root), name, job.parameters, profile, limits.cell, str(job.output))
                    board.start(name)
                    running[name] = Task(request, job.chapter, limits.chapter, threads, board.cell)
                time.sleep(0.02)
                for name in [name for name, task in running.items() if task.ended()]:
                    task = running.pop(name)
                    outcomes[name] = Outcome(name, task.seconds, task.failure())
                    board.finish(name, outcomes[name].seconds, outcomes[name].failure)
        finally:
            for task in running.values():
                task.kill()
    return [outcomes[job.chapter.name] for job in jobs]


def _end_on_termination() -> None:
    """Make a termination or a closed terminal end this process as Ctrl-C does: with its workers and kernels."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.default_int_handler)


def execute(
    project: Project,
    names: Sequence[str] = (),
    *,
    profile: str | None = None,
    force: bool = False,
    workers: int | None = None,
    cell_timeout: float | None = None,
    chapter_timeout: float | None = None,
) -> list[Outcome]:
    """Bring executed notebooks up to date and return what ran (nothing when nothing is stale).

    With no names, that is the whole book: executed notebooks whose chapter is gone are removed, and named on standard
    error. The caller holds the project's lock.

    Raises
    ------
    ResidlabError
        If any chapter failed, naming chapter, cell and error of each, after all others were done.
    """
    if profile is not None:
        record_profile(project, profile)
    profile = recorded_profile(project)
    if not names:
        _remove_orphans(project)
    jobs = stale_jobs(project, list(names) or project.chapter_names(), profile, force=force)
    return raise_failures(
        run_jobs(project, jobs, profile, Limits.of(profile, cell_timeout, chapter_timeout), workers=workers)
    )


def _remove_orphans(project: Project) -> None:
    for path in project.orphans():
        if read_metadata(path):  # ours, and not a file that somebody keeps there
            path.unlink()
            print(f"{path.stem}: its chapter is gone; removed {path.relative_to(project.root)}", file=sys.stderr)


def raise_failures(outcomes: list[Outcome]) -> list[Outcome]:
    """Return outcomes if all are good, else raise one error that lists the failures."""
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    if failures:
        good = len(outcomes) - len(failures)
        raise ResidlabError(
            f"{len(failures)} of {len(outcomes)} chapters failed"
            + (f" (the other {good} are done; a rerun resumes)" if good else "")
            + ":\n  "
            + "\n  ".join(failures)
        )
    return outcomes
