"""The explorable over chapter 18's table: its script against its definition, in a real browser, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from residlab.errors import ResidlabError
from residlab.explore.architect import MEASURES, MeasuredNetworks, architect_explorable, rank_correlation

ARITHMETICS = {"w8a8": "W8A8", "w4a4": "W4A4", "bf16": "bf16"}
KINDS, SEEDS = 9, 3


def measured(**changed: Any) -> MeasuredNetworks:
    rng = np.random.default_rng(18)
    losses = (2.5 + rng.random((KINDS, SEEDS, 4))).astype(np.float32)
    losses[2, 1:] = np.nan  # one seed only
    losses[4, :, 3] = np.nan  # nothing finite in bf16
    losses[5, 0, 3] = np.nan
    measures = rng.normal(size=(KINDS, len(MEASURES))).astype(np.float32)
    measures[:4, 0] = 1.5  # ties
    values: dict[str, Any] = {
        "titles": {f"kind-{i}": f"Kind {i}" for i in range(KINDS)},
        "labels": [f"K{i}" for i in range(KINDS)],
        "arithmetics": ARITHMETICS,
        "residual": (np.arange(KINDS) % 3 > 0).astype(np.float32),
        "losses": losses,
        "measures": measures,
    }
    return MeasuredNetworks(**{**values, **changed})


@pytest.fixture(scope="module")
def explorable() -> Any:
    return architect_explorable(measured())


@pytest.mark.browser
def test_form_equals_its_definition_in_every_state(explorable: Any, equals_its_script: Any) -> None:
    states = [
        {"arithmetic": arithmetic, "network": f"kind-{i}", "measure": measure}
        for arithmetic in ARITHMETICS
        for i in range(KINDS)
        for measure in MEASURES
    ]
    equals_its_script(explorable, states, rtol=1e-12, atol=1e-12, series_every=5)


def test_places_are_those_of_sorted_means(explorable: Any) -> None:
    under = measured().losses.astype(float)[:, :, 2].copy()
    means = np.nanmean(under, axis=1)
    for place, row in enumerate(np.argsort(means), 1):
        said = explorable.compute(arithmetic="w4a4", network=f"kind-{row}", measure="loss").readouts
        assert said["place"] == place
        assert said["under"] == pytest.approx(means[row])
        assert said["behind"] == pytest.approx(means[row] - means.min())
        assert said["count"] == KINDS


def test_a_network_without_a_finite_loss_has_no_place_and_counts_for_nothing(explorable: Any) -> None:
    frame = explorable.compute(arithmetic="bf16", network="kind-4", measure="crest")
    assert frame.readouts["count"] == KINDS - 1
    assert np.isnan([frame.readouts[name] for name in ("place", "under", "added", "behind")]).all()
    assert np.isfinite(frame.readouts["correlation"])
    assert frame.readouts["full"] == pytest.approx(measured().losses.astype(float)[4, :, 0].mean())
    lost = measured()
    lost.losses[:, :, 3] = np.nan
    nothing = architect_explorable(lost).compute(arithmetic="bf16", network="kind-0", measure="crest").readouts
    assert nothing["count"] == 0
    assert np.isnan([nothing[name] for name in ("added-residual", "added-free", "correlation")]).all()


def test_rank_correlation_is_spearman_s() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 5, 40):
        one, two = rng.integers(0, 10, n).astype(float), rng.normal(size=n)
        one[0], one[1] = 0, 1
        assert rank_correlation(one, two) == pytest.approx(float(spearmanr(one, two).statistic))
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
    assert np.isnan(rank_correlation(np.array([]), np.array([])))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ResidlabError, match=r"losses have the shape \(9, 3\)"):
        measured(losses=np.zeros((KINDS, SEEDS), np.float32))
    with pytest.raises(ResidlabError, match=r"measures \(9, 2\)"):
        measured(measures=np.zeros((KINDS, 2), np.float32))
    with pytest.raises(ResidlabError, match="two kinds at least"):
        measured(labels=["K"])
