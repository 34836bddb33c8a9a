"""Differences between norms from records: against a linear model fitted by least squares, and what is missing."""

import math

import numpy as np
import pytest
from scipy.stats import t

from residlab.experiments.record import Record, Records
from residlab.experiments.results import UNKNOWN, approximation_loss, paired_difference, results_folder


def test_the_interval_is_that_of_a_linear_model():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(4, 3)) + np.arange(3) * 5  # seeds differ by much more than norms
    scores = {f"n{i}": dict(enumerate(row.tolist())) for i, row in enumerate(y)}
    got = paired_difference(scores, "n1", "n3")
    design = np.zeros((12, 6))  # three norms and two seeds against the first ones
    for k, (i, j) in enumerate((i, j) for i in range(4) for j in range(3)):
        design[k, 0] = 1
        if i:
            design[k, i] = 1
        if j:
            design[k, 3 + j] = 1
    beta, rest, *_ = np.linalg.lstsq(design, y.ravel(), rcond=None)
    contrast = np.zeros(6)
    contrast[1], contrast[3] = 1, -1
    variance = rest[0] / 6 * contrast @ np.linalg.inv(design.T @ design) @ contrast
    half = t.ppf(0.975, 6) * np.sqrt(variance)
    assert got.middle == pytest.approx(contrast @ beta)
    assert (got.low, got.high) == pytest.approx((got.middle - half, got.middle + half))


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


def test_results_are_those_of_this_checkout():
    assert (results_folder() / "README.md").is_file()
