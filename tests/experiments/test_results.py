"""Differences between norms from records, and what is missing."""

import math

import pytest

from residlab.experiments.intervals import paired_differences
from residlab.experiments.record import Record, Records
from residlab.experiments.results import UNKNOWN, approximation_loss, paired_difference


def test_the_difference_is_that_of_the_paired_table():
    scores = {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {1: 2.5, 2: 4.0, 0: 1.25}, "c": {2: 0.0, 0: 3.0, 1: 1.0, 9: 5.0}}
    paired = paired_differences([[1.0, 2.0, 4.0], [1.25, 2.5, 4.0], [3.0, 1.0, 0.0]])
    assert paired_difference(scores, "c", "a")[1:] == paired.interval(2, 0)
    assert paired_difference(scores, "c", "a").middle == pytest.approx(4 / 3 - 7 / 3)


@pytest.mark.parametrize("scores", [{}, {"a": {0: 1.0}}, {"a": {0: 1.0}, "b": {0: 2.0}}, {"a": {0: 1.0, 1: 2.0}}])
def test_without_two_norms_and_two_seeds_nothing_is_known(scores):
    assert paired_difference(scores, "a", "b") is UNKNOWN


def record(stage, kind, seed, bits, lr=1e-3):
    config = {"model": {"norm": {"kind": kind}}, "optimizer": {"lr": lr}, "seed": seed}
    return Record(f"bhyt-depth/{stage}", f"{kind}{seed}", config, seed, {"bits_per_byte": bits})


def filled(tmp_path, exact, main=(("rmsnorm", 2.1), ("bhyt", 2.0))):
    records = Records(tmp_path / "r.jsonl")
    for seed in range(3):
        for kind, bits in main:
            records.add(record("main", kind, seed, None if bits is None else bits + 0.1 * seed))
    for seed, bits, lr in exact:
        records.add(record("exact", "bhyt*", seed, bits, lr))
    return records


def test_the_loss_of_the_approximation(tmp_path):
    records = filled(tmp_path, [(seed, 1.99 + 0.1 * seed, 1e-3) for seed in range(3)])
    got = approximation_loss(records)
    assert got == pytest.approx((0.01, 0.01, 0.01))


@pytest.mark.parametrize(
    "exact",
    [
        [],
        [(0, 2.0, 1e-3), (1, 2.0, 1e-3)],
        [(seed, 2.0, 2e-3) for seed in range(3)],
        [(0, None, 1e-3), (1, 2.0, 1e-3), (2, 2.0, 1e-3)],
    ],
    ids=["none", "a seed short", "another rate", "diverged"],
)
def test_what_is_missing_leaves_it_unknown(tmp_path, exact):
    assert approximation_loss(filled(tmp_path, exact)) is UNKNOWN


def test_an_opponent_that_diverged_is_left_out(tmp_path):
    exact = [(seed, 2.0 + 0.1 * seed, 1e-3) for seed in range(3)]
    with_it = filled(tmp_path, exact, main=(("rmsnorm", None), ("bhyt", 2.0)))
    assert approximation_loss(with_it) == pytest.approx((0, 0, 0), abs=1e-12)


def test_no_file_is_no_records(tmp_path):
    assert approximation_loss(Records(tmp_path / "none.jsonl")) is UNKNOWN
    assert math.isinf(UNKNOWN.high)
