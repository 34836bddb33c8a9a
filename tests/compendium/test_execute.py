"""Chapters run by the real executor, in real kernels: what goes well, and everything that does not."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from residlab.cli import main
from residlab.compendium.numbers import glued
from residlab.compendium.profiles import recorded_profile
from residlab.compendium.project import Project

GLUE = "from myst_nb import glue\nglue('x', float({}), display=False)"


def kernels_of(root):
    """Return living processes that belong to a compendium's run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ipykernel_launcher" in line or "residlab.compendium.worker" in line:
            try:
                if str(root) in " ".join([process.cwd(), line]):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    return found


def test_runs_what_is_stale_and_only_that(compendium):
    compendium.chapter("01-a", GLUE.format(1))
    compendium.chapter("02-b", GLUE.format(2), "print('two')")
    first = compendium.run("execute")
    assert first.returncode == 0, first.stderr
    assert "2 executed, 0 unchanged" in first.stderr
    assert glued(compendium.executed("02-b")) == {"x": 2.0}
    record = json.loads(compendium.executed("02-b").read_text())["metadata"]["residlab"]
    assert record["profile"] == "smoke"
    assert record["seconds"] > 0
    assert "0 executed, 2 unchanged" in compendium.run("execute").stderr
    before = compendium.executed("01-a").stat().st_mtime_ns
    compendium.chapter("02-b", GLUE.format(3))
    third = compendium.run("execute")
    assert "02-b: executing (changed: text)" in third.stderr
    assert "1 executed, 1 unchanged" in third.stderr
    assert compendium.executed("01-a").stat().st_mtime_ns == before
    assert glued(compendium.executed("02-b")) == {"x": 3.0}


FAILURES = {
    "01-raises": (["x = 1", "#| label: divide\n1 / 0"], "code cell 2 (divide), line 18", "ZeroDivisionError"),
    "02-dies": (["import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"], "code cell 1, line 14", "kernel died"),
    "03-sleeps": (["import time\ntime.sleep(600)"], "code cell 1", "timeout: still running after 15 s"),
    "04-magic": (["x = 1", "%nosuchmagic"], "code cell 2", "UsageError: Line magic function `%nosuchmagic` not found"),
    "05-shell": (["!false"], "code cell 1", "CalledProcessError: Command 'false' returned non-zero exit status 1"),
    "06-capture": (["x = !exit 3"], "code cell 1", "returned non-zero exit status 3"),
    "07-syntax": (["def f(:\n    pass"], "code cell 1", "SyntaxError"),
    "08-exits": (["import sys\nsys.exit(3)"], "code cell 1", "SystemExit"),
    "09-cellmagic": (["%%nosuchmagic\nx"], "code cell 1", "UsageError: Cell magic `%%nosuchmagic` not found"),
    "12-show": (
        ["import plotly.graph_objects as go\ngo.Figure().show(renderer='plotly_mimetype')"],
        "code cell 1",
        "show it with residlab.explore.display.show",
    ),
    "10-figure": (
        ["import plotly.graph_objects as go\ngo.Figure()"],
        "code cell 1",
        "ResidlabError: a plotly figure without alternative text",
    ),
}


def test_each_failure_names_chapter_cell_and_error_while_the_others_are_done(compendium):
    for name, (cells, _, _) in FAILURES.items():
        compendium.chapter(name, *cells)
    compendium.chapter("11-good", GLUE.format(11))
    result = compendium.run("execute", "--cell-timeout", "15", timeout=240)
    assert result.returncode == 1
    assert f"{len(FAILURES)} of {len(FAILURES) + 1} chapters failed" in result.stderr
    assert "Traceback" not in result.stderr
    for name, (_, where, what) in FAILURES.items():
        line = next(line for line in result.stderr.splitlines() if line.strip().startswith(f"{name},"))
        assert where in line
        assert what in line
        assert not compendium.executed(name).exists()
    assert glued(compendium.executed("11-good")) == {"x": 11.0}
    mended, *others = FAILURES
    compendium.chapter(mended, "pass")
    for name in others:
        compendium.root.joinpath("notebooks", f"{name}.md").unlink()
    rerun = compendium.run("execute", timeout=240)
    assert rerun.returncode == 0, rerun.stderr
    assert "1 executed, 1 unchanged" in rerun.stderr


def test_a_chapter_that_hangs_beyond_its_cell_limit_is_killed_with_its_kernel(compendium):
    # Threads that never end keep a kernel from shutting down; the outer limit does not ask.
    compendium.chapter(
        "01-hangs",
        "import time\nwhile True:\n    try:\n        time.sleep(99)\n    except BaseException:\n        pass",
    )
    start = time.monotonic()
    result = compendium.run("execute", "--chapter-timeout", "15", "--cell-timeout", "500")
    assert result.returncode == 1
    assert time.monotonic() - start < 45
    assert (
        "01-hangs, code cell 1, line 14 of notebooks/01-hangs.md: timeout: the chapter was still running after 15 s"
        in result.stderr
    )
    while kernels_of(compendium.root) and time.monotonic() - start < 60:
        time.sleep(0.1)
    assert kernels_of(compendium.root) == []


def test_a_failed_rerun_keeps_the_last_good_notebook(compendium):
    compendium.chapter("01-a", GLUE.format(1))
    compendium.run("execute")
    good = compendium.executed("01-a").read_bytes()
    compendium.chapter("01-a", "1 / 0")
    assert compendium.run("execute").returncode == 1
    assert compendium.executed("01-a").read_bytes() == good


def test_an_interrupt_ends_kernels_and_a_rerun_resumes(compendium):
    compendium.chapter("01-quick", GLUE.format(1))
    compendium.chapter("02-slow", "import time\ntime.sleep(30)")
    process = compendium.started("execute", "--jobs", "2")
    deadline = time.monotonic() + 60
    while not compendium.executed("01-quick").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kernels_of(compendium.root)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    while kernels_of(compendium.root) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kernels_of(compendium.root) == []
    compendium.chapter("02-slow", "pass")
    assert "1 executed, 1 unchanged" in compendium.run("execute").stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_terminated_run_leaves_no_kernel(compendium, name):
    compendium.chapter("01-slow", "open('started', 'w').close()\nimport time\ntime.sleep(60)")
    process = subprocess.Popen(compendium.command("execute"), stderr=subprocess.DEVNULL, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while not (compendium.root / "notebooks" / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kernels_of(compendium.root)
    process.send_signal(getattr(signal, name))
    process.wait(timeout=20)
    while kernels_of(compendium.root) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert kernels_of(compendium.root) == []


@pytest.mark.parametrize("record", ['"x"', '{"fingerprint": "zz"}', '{"fingerprint": {}, "also_loaded": 3}', "[1]"])
def test_an_executed_notebook_that_was_tampered_with_is_made_again(compendium, capsys, record):
    compendium.chapter("01-a", "pass")
    compendium.executed("01-a").parent.mkdir()
    compendium.executed("01-a").write_text(f'{{"cells": [], "metadata": {{"residlab": {record}}}}}')
    assert main(compendium.arguments("execute", "--list")) == 0
    assert "up to date" not in capsys.readouterr().out


def test_a_limit_may_be_a_fraction(compendium):
    compendium.chapter("01-a", "pass")
    assert compendium.run("execute", "--cell-timeout", "29.5").returncode == 0


def test_two_at_once_wait_for_each_other(compendium):
    cell, gate = compendium.gate()
    compendium.chapter("01-a", cell)
    first = compendium.started("execute")
    while not (compendium.root / ".residlab.lock-holder").exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = compendium.started("execute")
    waiting = next((line for line in second.stderr if "waiting" in line), "it never waited")
    gate.touch()
    assert waiting.startswith("residlab: waiting for another process")
    assert "1 executed, 0 unchanged" in first.communicate(timeout=120)[1]
    assert "0 executed, 1 unchanged" in second.communicate(timeout=120)[1]


PARAMETERS = 'lam: float = 2.0  # (0, 10] input bound\nprofile: str = "smoke"  # {smoke, cpu, gpu} how much to compute'


def test_parameters_are_checked_before_a_kernel_starts_and_never_touch_the_book(compendium):
    compendium.chapter("01-a", GLUE.format("lam"), parameters=PARAMETERS)
    wrong = compendium.run("execute", "01", "-p", "lam=11")
    assert wrong.returncode == 1
    assert "01-a: parameter lam: 11.0 is not allowed, only float in (0, 10]" in wrong.stderr
    assert "executing" not in wrong.stderr
    assert "name it" in compendium.run("execute", "-p", "lam=3").stderr
    custom = compendium.run("execute", "01", "-p", "lam=3")
    assert custom.returncode == 0, custom.stderr
    path = compendium.root / "executed" / "custom" / "01-a.ipynb"
    assert custom.stdout.strip() == str(path)
    assert glued(path) == {"x": 3.0}
    assert not compendium.executed("01-a").exists()
    elsewhere = compendium.root / "mine.ipynb"
    assert compendium.run("execute", "01", "-p", "lam=4", "-o", str(elsewhere)).returncode == 0
    assert glued(elsewhere) == {"x": 4.0}
    into_book = compendium.run("execute", "01", "-p", "lam=4", "-o", str(compendium.executed("01-a")))
    assert "belongs to the book" in into_book.stderr


def test_the_profile_is_remembered_and_makes_a_chapter_stale(compendium):
    compendium.chapter(
        "01-a", "from myst_nb import glue\nglue('profile', profile, display=False)", parameters=PARAMETERS
    )
    compendium.chapter("02-b", "pass")
    compendium.run("execute")
    changed = compendium.run("execute", "--profile", "cpu")
    assert "1 executed, 1 unchanged" in changed.stderr
    assert glued(compendium.executed("01-a")) == {"profile": "cpu"}
    assert "0 executed, 2 unchanged" in compendium.run("execute").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["execute", "99"], "no chapter named '99'; chapters are: 01-a"),
        (["execute", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["execute", "--jobs", "0", "--list"], "--jobs must be at least 1, got 0"),
        (["execute", "01", "--jobs", "0", "-p", "lam=1"], "--jobs must be at least 1, got 0"),
        (["execute", "--cell-timeout", "-1"], "--cell-timeout must be a positive number of seconds"),
        (["execute", "--cell-timeout", "-1", "--list"], "--cell-timeout must be a positive number of seconds"),
        (["execute", "--chapter-timeout", "nan", "--list"], "--chapter-timeout must be a positive number of seconds"),
        (
            ["execute", "--cell-timeout", "inf", "--list"],
            "--cell-timeout must be a positive number of seconds, and fin",
        ),
        (["execute", "-o", "x.ipynb"], "--output goes with -p"),
        (["execute", "-o", "x.ipynb", "--list"], "--output goes with -p"),
        (["execute", "01", "-p", "lam=1", "--list"], "--list shows what the book would run: it goes without -p"),
        (["execute", "01", "-p", "lam=1", "-o", "x.txt"], "has no parameter 'lam'"),
        (["serve"], "the book is not built yet: run residlab build"),
    ],
)
def test_slips_are_one_sentence(compendium, capsys, arguments, says):
    compendium.chapter("01-a", "pass")
    assert main(compendium.arguments(*arguments)) == 1
    said = capsys.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1


def test_a_record_of_the_profile_that_is_no_text_is_none(compendium):
    (compendium.root / "executed").mkdir()
    (compendium.root / "executed" / "profile").write_bytes(b"\xff\xfe")
    assert recorded_profile(Project(compendium.root)) == "smoke"


def test_the_list_says_what_the_given_options_would_run(compendium, capsys):
    compendium.chapter("01-a", "pass", parameters=PARAMETERS)
    compendium.chapter("02-b", "pass")
    assert compendium.run("execute").returncode == 0
    reasons = {}
    for options in ([], ["--profile", "cpu"], ["--force"]):
        assert main(compendium.arguments("execute", "--list", *options)) == 0
        lines = capsys.readouterr().out.splitlines()
        reasons[" ".join(options)] = [line.partition("  ")[2] for line in lines if not line.startswith(" ")]
    assert reasons == {
        "": ["(up to date)"] * 2,
        "--profile cpu": ["(changed: parameters)", "(up to date)"],
        "--force": ["(asked for)"] * 2,
    }


def test_a_chapter_outside_the_table_of_contents_is_named(compendium):
    compendium.root.joinpath("_toc.yml").write_text(
        "{format: jb-book, root: index, parts: [{caption: One, chapters: [{file: notebooks/01-a}]}]}"
    )
    compendium.chapter("01-a", "pass")
    compendium.chapter("02-b", "pass")
    result = compendium.run("execute")
    assert result.returncode == 0
    assert "residlab: warning: 02-b is not in _toc.yml: no page shows it" in result.stderr
    assert "01-a is not" not in result.stderr
    assert "02-b  (up to date, not in _toc.yml)" in compendium.run("execute", "--list").stdout


def test_the_executed_notebook_of_a_chapter_that_is_gone_goes_too(compendium):
    for name in ("01-a", "02-b"):
        compendium.chapter(name, "pass")
    compendium.run("execute")
    compendium.root.joinpath("notebooks", "02-b.md").unlink()
    own = compendium.executed("03-mine")
    own.write_text("{}")
    assert "gone" not in compendium.run("execute", "01").stderr
    assert compendium.executed("02-b").exists()
    result = compendium.run("execute")
    assert result.returncode == 0
    assert f"02-b: its chapter is gone; removed {Path('executed', '02-b.ipynb')}" in result.stderr
    assert sorted(compendium.executed("x").parent.glob("*.ipynb")) == [compendium.executed("01-a"), own]


def test_outside_a_compendium_it_says_so(tmp_path):
    import sys

    result = subprocess.run(
        [sys.executable, "-m", "residlab.cli", "execute"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "is not inside a compendium" in result.stderr


def test_a_project_with_its_own_library_refuses_another(compendium):
    (compendium.root / "src" / "residlab").mkdir(parents=True)
    compendium.chapter("01-a", "pass")
    result = compendium.run("execute")
    assert result.returncode == 1
    assert str(compendium.root / "src" / "residlab") in result.stderr
    assert "but Python runs" in result.stderr
