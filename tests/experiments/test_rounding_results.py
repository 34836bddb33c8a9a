"""C1's numbers on records that are made up: each condition met, and each broken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from residlab.experiments import rounding_results as rr
from residlab.experiments.plans import Found
from residlab.experiments.record import Record
from residlab.experiments.rounding import FORMATS, alone, inference

U = {"e5m2": 2**-3, "e4m3fn": 2**-4, "bf16": 2**-8, "fp16": 2**-11, "tf32": 2**-11, "fp32": 2**-24}


def record(name: str, relative: float | None) -> Record:
    config = inference("cpu", name)
    metrics: dict[str, Any] = {
        "relative": [0.0, 0.5, relative],
        "added": 0.1,
        "divergence": None if relative is None else 0.2,
        "agreement": 0.9,
    }
    return Record(experiment="rounding/roles", hash=config.hash, config=config.to_dict(), seed=0, metrics=metrics)


def made(changes: dict[tuple[str, str], float | None] | None = None) -> rr.Runs:
    """Each single error is u, and the whole is the root of squares, 2u, but for what is changed."""
    errors: dict[tuple[str, str], float | None] = {
        (role, name): U[name] * (2 if role == "all" else 1) for role in rr.ROLES for name in FORMATS
    }
    errors |= changes or {}
    records = [record(name if role == "all" else alone(role, name), e) for (role, name), e in errors.items()]
    records += [record(name, 1e-6) for name in rr.OTHERS]
    return rr.role_runs(Found("rounding", records))  # type: ignore[arg-type]


def test_runs_are_found_by_what_they_are() -> None:
    runs = made()
    assert runs.complete
    assert runs.roles["a", "tf32"].config["roles"] == "q=fp32 a=tf32 w=fp32 r=fp32"
    assert runs.roles["all", "bf16"].config["roles"] == "bf16"
    np.testing.assert_allclose(rr.predicted(runs, "bf16"), (2 * 2**-8, 4 * 2**-8))
    assert rr.ends(runs.others["bf16 products"]) == (0.1, 0.2, 0.9)


def test_all_conditions_met() -> None:
    found = rr.decides_c1(made())
    assert found == {
        "c1_runs": 15,
        "c1_formats": 3,
        "c1_composed": 3,
        "c1_roles": 4,
        "c1_scaled": 4,
        "c1_excluded": 0,
    }


def test_the_whole_outside_of_the_parts() -> None:
    factors = {0.99: 0, 1.01: 1, 5.99: 1, 6.01: 0}  # of u: half the root is u, 1.5 times the sum 6u
    for factor, composed in factors.items():
        runs = made({("all", name): factor * U[name] for name in ("bf16", "fp16", "tf32")})
        assert rr.decides_c1(runs)["c1_composed"] == 3 * composed


def test_errors_that_do_not_scale() -> None:
    for ratio, scaled in ((3.9, 3), (4.1, 4), (15.9, 4), (16.1, 3)):
        runs = made({("a", "bf16"): ratio * U["fp16"]})
        assert rr.decides_c1(runs)["c1_scaled"] == scaled


def test_what_overflows_counts_for_nothing() -> None:
    runs = made({("w", "fp16"): None, ("all", "fp16"): 7.0})
    found = rr.decides_c1(runs)
    assert (found["c1_composed"], found["c1_scaled"]) == (2, 3)
    found = rr.decides_c1(runs, rr.overflowing(22552.0))
    assert (found["c1_formats"], found["c1_composed"], found["c1_roles"], found["c1_scaled"]) == (2, 2, 3, 3)
    assert found["c1_excluded"] == 2
    assert rr.overflowing(255.0) == frozenset()
    assert rr.overflowing(70000.0) == {"w", "r", "all"}


def test_missing_runs_are_counted_and_have_no_number() -> None:
    runs = rr.role_runs(Found("rounding", [record(alone("q", "bf16"), 1.0)]))  # type: ignore[arg-type]
    assert rr.decides_c1(runs)["c1_runs"] == 1
    assert not runs.complete
    assert math.isnan(rr.error(runs.roles.get(("all", "bf16"))))
    assert all(math.isnan(value) for value in rr.predicted(runs, "bf16"))


def test_orders_are_found() -> None:
    configs = [inference("cpu", alone("a", "bf16")), inference("cpu", "bf16", order="blocked", block=8)]
    stages = ("roles", "orders")
    records = [
        Record(
            experiment=f"rounding/{stage}", hash=each.hash, config=each.to_dict(), seed=0, metrics={"relative": [1.0]}
        )
        for stage, each in zip(stages, configs, strict=True)
    ]
    found = rr.order_runs(Found("rounding", records))  # type: ignore[arg-type]
    assert found == {("a", "recursive"): records[0], ("all", "blocks of 8"): records[1]}


def test_tables_have_a_gap_where_there_is_no_number() -> None:
    found = rr.tables(made({("w", "fp16"): None}))
    assert found["relative"].shape == (5, 5, 2)
    assert found["others"].shape == (4, 2)
    w, fp16 = rr.ROLES.index("w"), FORMATS.index("fp16")
    assert np.isnan(found["relative"][w, fp16, 1])
    assert found["relative"][w, fp16, 0] == 0.5
    assert np.isnan(found["relative"]).sum() == 1
    assert np.isnan(found["ends"][w, fp16, 1])
    empty = rr.tables(rr.role_runs(Found("rounding", [])))  # type: ignore[arg-type]
    assert np.isnan(empty["relative"]).all()
