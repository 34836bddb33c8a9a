"""The explorable of chapter 12 on roles: its script against its tables, in a real browser, gaps included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments import rounding_results
from residlab.experiments.rounding import FORMATS as RECORDED_FORMATS
from residlab.explore.roles import FORMATS, OTHERS, ROLES, RecordedRoles, roles_explorable


def tables() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"relative": (5, 5, 6), "ends": (5, 5, 3), "others": (4, 6), "other_ends": (4, 3)}
    found = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    found["relative"][2, 3, 4:] = np.nan
    found["ends"][2, 3, 1] = np.nan
    return found


@pytest.fixture(scope="module")
def explorable() -> Any:
    return roles_explorable(RecordedRoles(**tables()))


@pytest.mark.browser
def test_form_equals_the_tables_on_every_state(explorable: Any, equals_its_script: Any) -> None:
    states = [{"role": role, "format": fmt, "other": other} for role in ROLES for fmt in FORMATS for other in OTHERS]
    equals_its_script(explorable, states, rtol=1e-12)


def test_it_is_declared_as_the_experiment_is() -> None:
    assert tuple(FORMATS) == RECORDED_FORMATS
    assert tuple(ROLES) == rounding_results.ROLES
    assert len(OTHERS) == len(rounding_results.OTHERS)


def test_what_is_shown_is_what_is_in_the_tables(explorable: Any) -> None:
    frame, given = explorable.compute(role="r", format="bf16", other="bf16-fp32-stream"), tables()
    assert frame.readouts["error"] == given["relative"][3, 2, -1]
    assert frame.readouts["other-added"] == given["other_ends"][3, 0]
    singles = given["relative"][:4, 2, -1].astype(float)
    assert frame.readouts["total"] == pytest.approx(singles.sum())
    assert frame.readouts["root"] == pytest.approx(np.linalg.norm(singles))
    assert np.isnan(explorable.compute(role="all", format="fp16", other="fp32").readouts["total"])


def test_nothing_recorded_is_drawn_empty() -> None:
    nothing = {name: np.full_like(values, np.nan) for name, values in tables().items()}
    frame = roles_explorable(RecordedRoles(**nothing)).compute(role="all", format="bf16", other="fp32")
    assert np.isnan(frame.readouts["error"])


def test_shapes_are_checked() -> None:
    given = tables() | {"others": np.zeros((3, 6), np.float32)}
    with pytest.raises(ResidlabError, match=r"others has the shape \(3, 6\), not \(4, 6\)"):
        RecordedRoles(**given)
