"""Every chapter as a reader opens it: the plain notebook, in a plain kernel, from any folder.

The book has run each chapter as it stands. Here the values in the parameters cell are edited, as a reader would, to the
smallest that its ranges allow: a few seconds instead of a minute, and proof that the chapter keeps its ranges.
"""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from residlab.compendium.chapter import Chapter
from residlab.compendium.parameters import Interval
from residlab.compendium.project import Project

PROJECT = Project.find()


def smallest(chapter):
    """Return the least value of each whole-number parameter, where the range has one."""
    return {
        name: int(parameter.allowed.low)
        for name, parameter in chapter.parameters.items()
        if parameter.type is int and isinstance(parameter.allowed, Interval) and parameter.allowed.low_closed
    }


@pytest.mark.smollm2
@pytest.mark.parametrize("name", PROJECT.chapter_names())
def test_runs_in_plain_jupyter_from_another_folder(name, tmp_path):
    notebook = nbformat.read(PROJECT.notebooks / f"{name}.ipynb", 4)
    values = smallest(Chapter(name, PROJECT.notebooks / f"{name}.md"))
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())] if values else [None]
    for key, value in values.items():
        cell.source, replaced = re.subn(rf"(?m)^({key}: int = )\d+", rf"\g<1>{value}", cell.source)
        assert replaced == 1
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = {mime for cell in notebook.cells for output in cell.get("outputs", ()) for mime in output.get("data", ())}
    movable = any("_explorable(" in cell.source for cell in notebook.cells)
    assert movable or name == "19-learnt"
    assert ("application/vnd.jupyter.widget-view+json" in shown) is movable  # the live face
    assert "application/vnd.plotly.v1+json" in shown
