"""The benchmark of rounding: what it lists, what it leaves out, where it says so."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from residlab.bench import rounding
from residlab.bench.rounding import NATIVE, product_speed, rounding_speed
from residlab.precision import compiled
from residlab.precision.formats import BF16, FP16, TF32

needs_compiler = pytest.mark.skipif(not compiled.available(), reason="not run: no C++ compiler")


@needs_compiler
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda fmt: fmt.name)
def test_rounding_lists_all_that_is_installed(fmt: Any) -> None:
    report = rounding_speed(fmt, 1000, repeats=2)
    names = [row.name for row in report.rows]
    assert {"ours, eager torch", "ours, C++", "ours, C++, stochastic", "torch, cast there and back"} <= set(names)
    assert ("pychop" in names) == (find_spec("pychop") is not None) == (report.reference == "pychop")
    assert all(row.floor is not None and row.floor > 0 for row in report.rows)
    assert json.loads(json.dumps(report.to_dict()))["settings"] == {"entries": 1000, "format": fmt.name}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "find_spec", lambda name: None)
    report = rounding_speed(BF16, 100, repeats=1, compiled=False)
    assert [row.name for row in report.rows] == ["ours, eager torch", "torch, cast there and back"]
    assert "pychop not installed: python -m pip install pychop" in report.notes
    with pytest.raises(KeyError):
        rounding_speed(TF32, 100)


@needs_compiler
def test_products_are_timed_against_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "matrix_peak", lambda: 1e9)
    report = product_speed(16, repeats=1)
    assert report.reference == NATIVE
    assert len(report.rows) == 7
    assert all(row.floor == 2 * 16**3 / 1e9 for row in report.rows)
