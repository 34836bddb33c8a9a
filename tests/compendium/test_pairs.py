"""Each chapter stands twice, as text and as a notebook, and the two agree."""

import shutil
import subprocess
import sys

import jupytext
import nbformat
import pytest

from residlab.compendium.project import Project

PROJECT = Project.find()
CHAPTERS = PROJECT.chapter_names()


def test_there_are_chapters_and_no_orphans():
    notebooks = sorted(path.stem for path in PROJECT.notebooks.glob("*.ipynb"))
    assert CHAPTERS
    assert notebooks == CHAPTERS


def test_a_sync_on_a_fresh_copy_changes_nothing_twice(tmp_path):
    shutil.copytree(PROJECT.notebooks, tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(PROJECT.root / "jupytext.toml", tmp_path)
    files = sorted((tmp_path / "notebooks").iterdir())
    before = {path: path.read_bytes() for path in files}
    texts = [str(path) for path in files if path.suffix == ".md"]
    for _ in range(2):
        # As in a clone, where git writes files in any order: the notebook may be older or newer than its text.
        for path in files:
            path.touch()
        subprocess.run([sys.executable, "-m", "jupytext", "--sync", *texts], check=True, capture_output=True)
        assert {path: path.read_bytes() for path in sorted((tmp_path / "notebooks").iterdir())} == before


@pytest.mark.parametrize("name", CHAPTERS)
def test_the_notebook_is_the_text_without_outputs(name):
    text = jupytext.read(PROJECT.notebooks / f"{name}.md")
    notebook = nbformat.read(PROJECT.notebooks / f"{name}.ipynb", 4)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in text.cells
    ]
    assert [cell.metadata for cell in notebook.cells] == [cell.metadata for cell in text.cells]
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
