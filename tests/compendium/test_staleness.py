"""Stale by what a chapter depends on, and by nothing else."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from residlab.compendium import staleness
from residlab.compendium.chapter import Chapter
from residlab.compendium.project import Project
from residlab.errors import ResidlabError

PROJECT = Project.find()


HEADER = """\
---
jupytext:
  text_representation: {{extension: .md, format_name: myst}}
kernelspec: {{name: python3, display_name: Python 3, language: python}}
---

# {title}
"""


def modules_of(*cells):
    return staleness.required_modules(staleness.imported_modules(cells))


def test_imports_are_found_wherever_they_stand():
    found = staleness.imported_modules(
        [
            "%matplotlib inline\nimport residlab.theory.chebyshev as ch",
            "from residlab.probes import tails",
            "from residlab.theory.laws import gaussian_tail\n!ls",
            "def f():\n    from residlab.data.texts import wikipedia_summaries",
            "import numpy, residlab.errors",
        ]
    )
    assert found >= {
        "residlab.theory.chebyshev",
        "residlab.probes.tails",
        "residlab.theory.laws",
        "residlab.data.texts",
        "residlab.errors",
    }
    assert "residlab.models.hf" not in found


def test_a_chapter_needs_what_its_imports_need_and_their_packages():
    needed = modules_of("from residlab.explore.chebyshev import chebyshev_explorable")
    assert needed >= {
        "residlab",
        "residlab.explore",
        "residlab.explore.theme",
        "residlab.theory",
        "residlab.theory.chebyshev",
    }
    assert not {module for module in needed if module.startswith(("residlab.models", "residlab.compendium"))}


def test_what_an_import_loads_in_a_real_process_is_predicted():
    code = "import residlab.explore.chebyshev, residlab.data.texts, residlab.probes.tails"
    report = "import sys; print(*sorted(m for m in sys.modules if m.partition('.')[0] == 'residlab'))"
    loaded = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    assert set(loaded.stdout.split()) <= modules_of(code)


@pytest.fixture
def chapter():
    return Chapter("02-chebyshev", PROJECT.notebooks / "02-chebyshev.md")


def test_only_what_changed_is_named(chapter, monkeypatch):
    before = staleness.fingerprint(PROJECT, chapter, {})
    assert staleness.changes(before, staleness.fingerprint(PROJECT, chapter, {})) == []
    changed = Path(staleness.module_file("residlab.theory.laws"))
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: plain(self) + (b"\nMORE = 1\n" if self == changed else b""))
    assert staleness.changes(before, staleness.fingerprint(PROJECT, chapter, {})) == ["module residlab.theory.laws"]
    changed = Path(staleness.module_file("residlab.compendium.ledger"))
    assert staleness.changes(before, staleness.fingerprint(PROJECT, chapter, {})) == []


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ('"""Other."""\n\n\ndef f(x):\n    """More."""  # and this\n    return x + 1\n', True),
        ("def f(x):\n    return x + 1\n", True),
        ('"""Doc."""\ndef f(x):\n    """Doc."""\n    return x + 2\n', False),
        ('"""Doc."""\ndef f(x):\n    """Doc."""\n    y = "Doc."\n    return x + 1\n', False),
        ('"""Doc."""\nTEXT = "Doc."\ndef f(x):\n    """Doc."""\n    return x + 1\n', False),
        ("no Python at all", False),
    ],
)
def test_docstrings_and_comments_compute_nothing(after, same):
    before = '"""Doc."""\ndef f(x):\n    """Doc."""\n    return x + 1\n'
    assert (staleness._code_digest(before.encode()) == staleness._code_digest(after.encode())) is same


def test_parameters_inputs_python_and_pins_count(chapter):
    before = staleness.fingerprint(PROJECT, chapter, {})
    assert staleness.changes(before, staleness.fingerprint(PROJECT, chapter, {"kappa": 5.0})) == ["parameters"]
    assert {"input data/smollm2", "input data/wikipedia", "constraints", "python", "text"} <= before.keys()


def test_modules_loaded_behind_the_imports_back_count_too(chapter):
    extra = "residlab.compendium.numbers"
    assert f"module {extra}" not in staleness.fingerprint(PROJECT, chapter, {})
    assert f"module {extra}" in staleness.fingerprint(PROJECT, chapter, {}, [extra])


@pytest.mark.parametrize("name", ["results/none.parquet", "data/none", "../outside.txt"])
def test_an_input_that_is_not_there_is_said(name, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "outside.txt").touch()
    header = HEADER.format(title="T").replace("---\n\n#", f"residlab:\n  inputs: ['{name}']\n---\n\n#")
    path = tmp_path / "notebooks" / "01-a.md"
    path.write_text(header)
    with pytest.raises(ResidlabError, match="is neither a file of this project nor data/NAME"):
        staleness.fingerprint(Project(tmp_path / "notebooks"), Chapter("01-a", path), {})


def test_a_header_that_is_a_list_is_said(tmp_path):
    path = tmp_path / "01-a.md"
    path.write_text(HEADER.format(title="T").replace("---\n\n#", "residlab: [1]\n---\n\n#"))
    with pytest.raises(ResidlabError, match=r"^01-a: residlab in the header must hold names and values, got \[1\]$"):
        Chapter("01-a", path).inputs  # noqa: B018


def test_a_pattern_stands_for_the_files_that_match_and_may_match_none(tmp_path):
    (tmp_path / "notebooks").mkdir()
    header = HEADER.format(title="T").replace("---\n\n#", "residlab:\n  inputs: ['results/a-*.json']\n---\n\n#")
    path = tmp_path / "notebooks" / "01-a.md"
    path.write_text(header)
    seen = [staleness.fingerprint(Project(tmp_path), Chapter("01-a", path), {})]
    (tmp_path / "results").mkdir()
    for name, text in (
        ("a-cpu.json", "1"),
        ("a-cpu.json", "2"),
        ("a-gpu.json", "2"),
        ("b-cpu.json", "3"),
        (".a-.json", ""),
    ):
        (tmp_path / "results" / name).write_text(text)
        seen.append(staleness.fingerprint(Project(tmp_path), Chapter("01-a", path), {}))
    changed = [staleness.changes(*pair) for pair in itertools.pairwise(seen)]
    assert changed == [["input results/a-*.json"]] * 3 + [[], []]


@pytest.mark.parametrize("pattern", ["../*.md", "a**b", "a/b**"])
def test_a_pattern_stays_inside_the_project_and_is_one(pattern, tmp_path):
    path = tmp_path / "01-a.md"
    path.write_text(HEADER.format(title="T").replace("---\n\n#", f"residlab:\n  inputs: ['{pattern}']\n---\n\n#"))
    with pytest.raises(ResidlabError, match="is not a pattern of files of this project"):
        staleness.fingerprint(Project(tmp_path), Chapter("01-a", path), {})


def test_an_importlib_import_is_recorded_and_makes_stale(compendium):
    compendium.chapter("01-a", "import importlib\nimportlib.import_module('residlab.theory.laws')")
    assert compendium.run("execute").returncode == 0
    import json

    record = json.loads(compendium.executed("01-a").read_text())["metadata"]["residlab"]
    assert "residlab.theory.laws" in record["also_loaded"]
    assert "module residlab.theory.laws" in record["fingerprint"]
    assert "0 executed, 1 unchanged" in compendium.run("execute").stderr
