"""Every chapter as a reader opens it: the plain notebook, in a plain kernel, from any folder."""

import nbformat
import pytest
from nbclient import NotebookClient

from residlab.compendium.project import Project

PROJECT = Project.find()


@pytest.mark.smollm2
@pytest.mark.parametrize("name", PROJECT.chapter_names())
def test_runs_in_plain_jupyter_from_another_folder(name, tmp_path):
    notebook = nbformat.read(PROJECT.notebooks / f"{name}.ipynb", 4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = {mime for cell in notebook.cells for output in cell.get("outputs", ()) for mime in output.get("data", ())}
    assert "application/vnd.jupyter.widget-view+json" in shown  # the live face
    assert "application/vnd.plotly.v1+json" in shown
