"""The backends under test."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="session", params=["reference", "compiled"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("not run: no C++ compiler; install one (Debian, Ubuntu: apt-get install g++)")
    return str(request.param)
