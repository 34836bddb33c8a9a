"""Backends under test, and what a machine lacks for them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest

TRITON_DEVICE = "cpu" if "TRITON_INTERPRET" in os.environ else "cuda"


def require(backend: str) -> str:
    """Skip, saying what to install, where this machine cannot run a backend; return the device it runs on."""
    if backend == "compiled" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("not run: no C++ compiler; install one (Debian, Ubuntu: apt-get install g++)")
    if backend == "triton" and find_spec("triton") is None:
        pytest.skip("not run: Triton is missing; python -m pip install -e '.[triton]' (Linux)")
    return TRITON_DEVICE if backend == "triton" else "cpu"


@pytest.fixture
def compiled() -> None:
    require("compiled")


@pytest.fixture
def triton() -> str:
    return require("triton")


@pytest.fixture(params=["reference", "compiled", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)
