"""The predicates of B2 and B5 come out either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments import kurtosis_results as kr
from residlab.experiments.record import Record


def run(residual: bool, optimizer: str, seed: int, *looks: list[float], tokens: Any = None) -> Record:
    """A record whose probe saw these kurtoses, a look a list, a site an entry; without token 0 the same, or others."""
    sites = {
        f"site {i}": {
            group: {f"kurtosis_{over}": list(values) for over in ("pooled", "by_channel", "by_token")}
            for group, values in (("all", column), ("rest", column if tokens is None else tokens[i]))
        }
        for i, column in enumerate(zip(*looks, strict=True))
    }
    config = {"model": {"residual": residual}, "optimizer": {"kind": optimizer}}
    metrics = {"looks": {"step": list(range(len(looks))), "stream": sites}}
    return Record("residual-free/main", f"{residual}{optimizer}{seed}", config, seed, metrics, {}, {}, None, "")


def test_the_embedding_does_not_count_and_every_look_does():
    free = run(False, "kl-shampoo", 0, [9.0, 0.1, -0.4], [9.0, 0.1, 0.2])
    assert kr.worst(free) == 0.4
    assert kr.peak(free) == 0.2  # the last look alone


def test_token_0_counts_against_both_halves():
    spiked = run(False, "kl-shampoo", 0, [0.0, 0.1], tokens=[[0.0], [0.7]])
    assert kr.worst(spiked) == 0.7
    sink = run(True, "kl-shampoo", 0, [0.0, 900.0], tokens=[[0.0], [0.3]])
    assert kr.peak(sink) == 0.3


def test_b5_takes_kl_shampoo_only_and_both_kinds():
    free = [run(False, "kl-shampoo", seed, [0.0, 0.1 * (seed + 1)]) for seed in (1, 0)]
    residual = [run(True, "kl-shampoo", seed, [0.0, 2.0 + seed]) for seed in (0, 1)]
    other = [run(False, "muon", 0, [0.0, 50.0]), run(True, "adamw", 0, [0.0, 0.0])]
    numbers = kr.gaussian_without_residual([*free, *residual, *other])
    assert numbers == {
        "recorded": 1, "free_least": 0.1, "free_most": 0.2, "residual_least": 2.0, "residual_most": 3.0,
    }  # fmt: skip
    assert kr.gaussian_without_residual([*free, *other])["recorded"] == 0
    assert [r.seed for r in kr.by_kind([*free])[False, "kl-shampoo"]] == [0, 1]


@pytest.mark.parametrize(
    ("profile", "goes"),
    [
        ([0.0, 1.0, 2.0, 3.0], True),
        ([0.0, 3.0, 2.0, 1.0, 0.5], False),  # ends above where it began, but falls
        ([2.0, 0.0, 1.0, 1.5, 1.9], False),  # rises, but ends below
        ([1.0, 1.0, 1.0], False),
    ],
)
def test_what_rises(profile, goes):
    assert kr.rises(profile) is goes


@pytest.mark.parametrize("profile", [[1.0, 2.0], [0.0, np.nan, 1.0]])
def test_no_profile(profile):
    with pytest.raises(ResidlabError, match="three finite values"):
        kr.rises(profile)


def test_an_unknown_grouping_is_refused():
    with pytest.raises(ResidlabError, match="over must be one of pooled, channel, token"):
        kr.kurtosis(run(True, "muon", 0, [0.0, 1.0]), "head")  # type: ignore[arg-type]
