"""What the recorded runs of ``rounding`` say: the error of each role, of all, of practice; and what decides claim C1.

An error is the relative one at the output of the last block, the mean over tokens. Rules stand in results/README.md
and, over the numbers given here, in book/claims.yml. Where a run is missing there is no number, and chapters say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from residlab.experiments.rounding import FINE, FORMATS, alone, inference
from residlab.precision.formats import FP16
from residlab.precision.roles import PRACTICE

if TYPE_CHECKING:
    from residlab.experiments.plans import Found
    from residlab.experiments.record import Record

SINGLE = ("q", "a", "w", "r")
ROLES = (*SINGLE, "all")
OTHERS = (FINE, *PRACTICE)
"""All in fp32, and what hardware does."""
ORDERS: Mapping[str, dict[str, Any]] = {
    "recursive": {},
    "blocks of 32": {"order": "blocked", "block": 32},
    "blocks of 8": {"order": "blocked", "block": 8},
    "pairwise": {"order": "pairwise"},
}
JUDGED = ("bf16", "fp16", "tf32")
"""Formats of C1."""
LEAST, MOST = 0.5, 1.5
"""Of the root of the summed squares, and of the sum, of the four single errors: between them lies the whole (C1)."""
SCALING = (4.0, 16.0)
"""Around 8, the ratio of the unit roundoffs of bf16 and fp16 (C1)."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of SmolLM2 on text 0, recursive sums, as far as they are there, by (role, format) and by name.

    Attributes
    ----------
    roles
        (one of `ROLES`, one of `FORMATS`) -> record.
    others
        One of `OTHERS` -> record.
    """

    roles: Mapping[tuple[str, str], Record]
    others: Mapping[str, Record]

    @property
    def complete(self) -> bool:
        """Whether no run is missing."""
        return len(self.roles) == len(ROLES) * len(FORMATS) and len(self.others) == len(OTHERS)


def role_runs(found: Found, profile: str = "cpu") -> Runs:
    """Return the runs of the stage ``roles``."""
    known = {record.hash: record for record in found.stage("roles")}

    def chosen(names: Iterable[tuple[Any, str]]) -> dict[Any, Record]:
        hashes = ((key, inference(profile, name).hash) for key, name in names)
        return {key: known[each] for key, each in hashes if each in known}

    singles = [((role, name), name if role == "all" else alone(role, name)) for role in ROLES for name in FORMATS]
    return Runs(chosen(singles), chosen((name, name) for name in OTHERS))


def order_runs(found: Found, profile: str = "cpu") -> dict[tuple[str, str], Record]:
    """Return the runs in bf16 by role (``a``: sums of products alone, or ``all``) and one of `ORDERS`."""
    known = {record.hash: record for stage in ("roles", "orders") for record in found.stage(stage)}
    names = {"a": alone("a", "bf16"), "all": "bf16"}
    wanted = {
        (role, order): inference(profile, name, **options).hash
        for role, name in names.items()
        for order, options in ORDERS.items()
    }
    return {key: known[each] for key, each in wanted.items() if each in known}


def error(record: Record | None) -> float:
    """Return the relative error at the output of the last block; NaN if it is none, or there is no run."""
    return math.nan if record is None else _number(record.metrics["relative"][-1])


def ends(record: Record | None) -> tuple[float, float, float]:
    """Return what is added to the loss, nats per token; the divergence of predictions, nats; the share that agree."""
    if record is None:
        return math.nan, math.nan, math.nan
    added, divergence, agreement = (_number(record.metrics[name]) for name in ("added", "divergence", "agreement"))
    return added, divergence, agreement


def predicted(runs: Runs, name: str) -> tuple[float, float]:
    """Return the root of the summed squares of the four single errors in a format, and their sum; NaN if one misses."""
    singles = np.array([error(runs.roles.get((role, name))) for role in SINGLE])
    return float(np.sqrt(np.sum(singles**2))), float(np.sum(singles))


def tables(runs: Runs) -> dict[str, Any]:
    """Return the arrays of the explorable of roles: relative errors by block from 1 on, and `ends`; NaN: no number."""
    rows = [runs.roles.get((role, name)) for role in ROLES for name in FORMATS]
    others = [runs.others.get(name) for name in OTHERS]
    depth = max((len(record.metrics["relative"]) for record in (*rows, *others) if record), default=2) - 1

    def by_block(records: list[Record | None]) -> list[list[float]]:
        return [
            [math.nan] * depth if each is None else [_number(value) for value in each.metrics["relative"][1:]]
            for each in records
        ]

    shape = (len(ROLES), len(FORMATS))
    return {
        "relative": np.array(by_block(rows), dtype=np.float32).reshape(*shape, depth),
        "ends": np.array([ends(each) for each in rows], dtype=np.float32).reshape(*shape, 3),
        "others": np.array(by_block(others), dtype=np.float32),
        "other_ends": np.array([ends(each) for each in others], dtype=np.float32),
    }


def overflowing(peak: float) -> frozenset[str]:
    """Return the roles that overflow in fp16 where the stream has an entry of that magnitude.

    Functions square it, the stream holds it; all four do what one of them does.
    """
    found = {role for role, size in (("w", peak**2), ("r", peak)) if size > FP16.largest}
    return frozenset(found | {"all"} if found else found)


def decides_c1(runs: Runs, overflows: frozenset[str] = frozenset()) -> dict[str, float]:
    """Return the numbers that decide C1.

    Parameters
    ----------
    runs
        From `role_runs`.
    overflows
        Roles whose runs in fp16 overflow, and count for nothing: `overflowing`.

    Returns
    -------
    dict
        ``c1_runs``: runs that are there, of 15. ``c1_formats``, ``c1_composed``: formats that count, and in how many of
        them the whole lies between `LEAST` times the root of squares and `MOST` times the sum. ``c1_roles``,
        ``c1_scaled``: roles that count, and how many have an error in bf16 of 4 to 16 times that in fp16.
        ``c1_excluded``: runs that overflow.
    """
    needed = [(role, name) for role in ROLES for name in JUDGED]
    formats = [name for name in JUDGED if name != "fp16" or "all" not in overflows]
    roles = [role for role in SINGLE if role not in overflows]
    return {
        "c1_runs": sum(key in runs.roles for key in needed),
        "c1_formats": len(formats),
        "c1_composed": sum(_composed(runs, name) for name in formats),
        "c1_roles": len(roles),
        "c1_scaled": sum(SCALING[0] <= scaling(runs, role) <= SCALING[1] for role in roles),
        "c1_excluded": len(overflows),
    }


def scaling(runs: Runs, role: str) -> float:
    """Return a role's error in bf16 over that in fp16; NaN if one is no number."""
    return error(runs.roles.get((role, "bf16"))) / (error(runs.roles.get((role, "fp16"))) or math.nan)


def _composed(runs: Runs, name: str) -> bool:
    root, total = predicted(runs, name)
    return LEAST * root <= error(runs.roles.get(("all", name))) <= MOST * total


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
