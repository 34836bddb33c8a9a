"""The examples in docstrings run, and every public name has one."""

import ast
import doctest
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest

from residlab.compendium.api import PAGES, public_names

MODULES = [module for modules in PAGES.values() for module in modules]


def names_of(module):
    """What an example may use without importing it: the names of its module, numpy, torch and `Path`."""
    import torch

    home = importlib.import_module(module)
    own = home.__all__ if hasattr(home, "__path__") else defined_in(home)
    given = {"np": np, "torch": torch, "nn": torch.nn, "Path": Path}
    return given | {name: getattr(home, name) for name in own}


def defined_in(module):
    for node in ast.parse(inspect.getsource(module)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        for target in targets:
            name = getattr(target, "id", getattr(target, "name", "_"))
            if not name.startswith("_"):
                yield name


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    objects = [getattr(importlib.import_module(one.module), one.name) for one in public_names(module)]
    for thing in (importlib.import_module(module), *objects):
        for test in doctest.DocTestFinder(recurse=False).find(thing, globs=names_of(module)):
            runner.run(test, out=said.append)
    assert not said, "".join(said)
    assert runner.summarize(verbose=False).attempted >= len(public_names(module))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example(module):
    without = [one.name for one in public_names(module) if not doctest.DocTestParser().get_examples(one.docstring)]
    assert without == []
