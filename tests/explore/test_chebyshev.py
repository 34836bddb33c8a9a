from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from residlab.errors import ResidlabError
from residlab.explore.chebyshev import BIN, REACH, MeasuredLaw, chebyshev_explorable, measured_law
from residlab.explore.explorable import Explorable
from residlab.explore.panels import KAPPAS, LAMBDAS

FROZEN = {
    "gaussian": stats.norm(),
    "laplace": stats.laplace(scale=np.sqrt(0.5)),
    "student-t3": stats.t(3, scale=np.sqrt(1 / 3)),
}


def frame(explorable: Explorable, lam: float, kappa: float, law: str, site: str = "layer-0"):
    return explorable.frame({"lam": lam, "kappa": kappa, "law": law, "site": site})


@pytest.mark.parametrize("law", FROZEN)
@pytest.mark.parametrize(("lam", "kappa"), [(2.0, 10.0), (3.0, 2.0), (6.0, 1.0)])
def test_bins_are_the_probabilities_of_the_law(explorable: Explorable, law: str, lam: float, kappa: float) -> None:
    shown = frame(explorable, lam, kappa, law)
    centres, inside = shown.series["inside"]
    density = np.nansum([inside, shown.series["outside"][1]], axis=0)
    assert density.sum() == pytest.approx(1)
    z = FROZEN[law]
    for i in (1, 30, 52, 70, 102):
        low, high = (centres[i] + np.array([-BIN, BIN]) / 2) * kappa / lam
        assert density[i] == pytest.approx(integrate.quad(z.pdf, low, high, epsabs=0)[0], rel=1e-6, abs=1e-15)
    assert density[-1] == pytest.approx(z.sf((REACH - BIN) * kappa / lam), rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("law", [*FROZEN, "three-point", "measured"])
@pytest.mark.parametrize(("lam", "kappa"), [(2.0, 10.0), (0.25, 1.0), (3.0, 2.25), (6.0, 1.0), (6.0, 7.0)])
def test_bars_outside_add_up_to_the_share(explorable: Explorable, law: str, lam: float, kappa: float) -> None:
    shown = frame(explorable, lam, kappa, law)
    outside = np.nansum(shown.series["outside"][1])
    assert outside == pytest.approx(shown.readouts["share"], rel=1e-5, abs=1e-9)
    assert shown.readouts["share"] <= shown.readouts["bound"] * (1 + 1e-6)


def test_extremal_law_attains_the_bound(explorable: Explorable) -> None:
    for kappa in KAPPAS:
        assert frame(explorable, 2.0, kappa, "three-point").readouts["ratio"] == pytest.approx(1)


def test_measured_share_is_a_count(recorded) -> None:
    values = np.array([[0.5, -0.5, 3.0, 0.25], [1.0, -1.0, 1.0, -1.0]])
    law = measured_law("four", values)
    assert law.survival[KAPPAS.index(1.0)] == np.float32(5 / 8)
    assert law.survival[KAPPAS.index(3.0)] == np.float32(1 / 8)
    assert law.survival[KAPPAS.index(3.25)] == 0
    assert law.histogram.sum() == pytest.approx(1)
    # the edge nearer to zero belongs to the bin, so bars from a gate outwards are the survival
    assert law.histogram[480 + 20] == np.float32(2 / 8)
    assert law.histogram[479 - 20] == np.float32(2 / 8)
    everything = measured_law("far", np.array([-30.0, 30.0]))
    assert everything.histogram[0] == everything.histogram[-1] == 0.5


def test_measured_law_is_drawn_exactly_at_the_gate(explorable: Explorable, recorded) -> None:
    for kappa in (1.0, 2.25, 6.5):
        share = frame(explorable, 2.0, kappa, "measured", "layer-12").readouts["share"]
        assert share == recorded["layer-12"].survival[KAPPAS.index(kappa)]


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, 1.0]])
def test_measured_law_refuses(values: list[float]) -> None:
    with pytest.raises(ResidlabError, match="finite"):
        measured_law("bad", values)


def test_measured_law_checks_shapes_and_sum() -> None:
    good = measured_law("good", np.ones(4))
    with pytest.raises(ResidlabError, match="shapes"):
        MeasuredLaw("bad", good.survival[1:], good.histogram)
    with pytest.raises(ResidlabError, match="add up"):
        MeasuredLaw("bad", good.survival, 2 * good.histogram)


def test_without_records_the_law_is_not_offered() -> None:
    bare = chebyshev_explorable()
    assert list(bare.default_state) == ["lam", "kappa", "law"]
    assert "measured" not in bare.controls[2].options
    assert bare.frame(bare.default_state).readouts["bound"] == pytest.approx(0.01)


def test_every_gate_of_the_slider_is_a_bin_edge() -> None:
    assert all((lam / BIN).is_integer() and lam <= REACH - BIN for lam in LAMBDAS)
