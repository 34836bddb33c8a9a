"""Streaming moments against scipy and exact arithmetic, on streams chosen to break raw moments."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from torch import nn

from residlab.probes.activations import modules_matching, observe_inputs
from residlab.probes.stream import CoMoments, Moments, StreamProbe, merged


def streamed(x, cuts, order=None):
    parts = [Moments().update(torch.from_numpy(part)) for part in np.split(x, cuts)]
    return merged(parts[i] for i in (order if order is not None else range(len(parts))))


def check(moments, x, rtol):
    x = np.asarray(x, dtype=np.float64).ravel()
    assert moments.count == x.size
    assert moments.largest == np.abs(x).max()
    assert moments.mean == pytest.approx(x.mean(), rel=rtol)
    assert moments.variance == pytest.approx(x.var(), rel=rtol)
    assert moments.rms == pytest.approx(np.sqrt(np.mean(x**2)), rel=rtol)
    assert moments.excess_kurtosis == pytest.approx(stats.kurtosis(x), rel=rtol, abs=rtol)
    assert moments.m3 / moments.count == pytest.approx(stats.moment(x, 3), rel=rtol, abs=rtol * x.std() ** 3)


@pytest.mark.parametrize("law", ["normal", "student", "outlier", "lognormal"])
def test_equals_scipy_in_any_order(law):
    rng = np.random.default_rng(1)
    x = {
        "normal": rng.normal(3.0, 2.0, 4000),
        "student": rng.standard_t(3, 4000),
        "outlier": np.append(rng.normal(size=3999), 2e4),
        "lognormal": rng.lognormal(0, 2, 4000),
    }[law]
    cuts = [1, 2, 10, 500, 3999]
    for order in (None, [5, 4, 3, 2, 1, 0], [2, 5, 0, 3, 1, 4]):
        check(streamed(x, cuts, order), x, rtol=1e-11)


@pytest.mark.parametrize("offset", [1e6, -1e8, 1e12])
def test_a_huge_offset_costs_only_the_digits_that_the_input_has_lost(offset):
    rng = np.random.default_rng(2)
    x = rng.laplace(size=3000) + offset
    exact = [Fraction(value) for value in x]
    mean = sum(exact) / len(exact)
    m2, m4 = (float(sum((value - mean) ** k for value in exact)) for k in (2, 4))
    moments = streamed(x, [7, 1500])
    assert moments.variance == pytest.approx(m2 / len(x), rel=1e-10)
    assert moments.excess_kurtosis == pytest.approx(len(x) * m4 / m2**2 - 3, rel=1e-9)
    raw = np.mean(x**4) - 4 * np.mean(x) * np.mean(x**3) + 6 * np.mean(x) ** 2 * np.mean(x**2) - 3 * np.mean(x) ** 4
    assert abs(len(x) * raw / m4 - 1) > 1e-3, "raw moments would have done: the test is too easy"


def test_batches_of_very_different_size_and_place():
    rng = np.random.default_rng(3)
    parts = [rng.normal(1e5, 1, 3), rng.normal(-1e5, 1e-3, 2000), rng.normal(0, 1e4, 1), rng.normal(0, 1, 900)]
    x = np.concatenate(parts)
    check(streamed(x, np.cumsum([len(p) for p in parts])[:-1]), x, rtol=1e-11)


@given(
    arrays(np.float64, 24, elements=st.floats(-1e3, 1e3)),
    st.lists(st.integers(1, 23), min_size=1, max_size=5, unique=True),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_merging_is_the_same_whatever_the_cuts(x, cuts, random):
    order = list(range(len(cuts) + 1))
    random.shuffle(order)
    one, many = Moments().update(torch.from_numpy(x)), streamed(x, sorted(cuts), order)
    scale = np.abs(x).max() + 1e-300
    for name, power in (("mean", 1), ("m2", 2), ("m3", 3), ("m4", 4)):
        assert getattr(many, name) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-10 * 24 * scale**power), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_upcasts_before_squaring(dtype):
    x = torch.cat([torch.linspace(-2, 2, 999), torch.tensor([22_000.0])]).to(dtype)
    moments = Moments().update(x)  # the fourth power overflows float16 from 16 on, and loses all in float32
    check(moments, x.double().numpy(), rtol=1e-11)
    assert moments.excess_kurtosis == pytest.approx(994, abs=1)


def test_what_has_no_moments_is_refused():
    with pytest.raises(ValueError, match="nothing was counted yet"):
        _ = Moments().variance
    with pytest.raises(ValueError, match="without entries"):
        Moments().update(torch.zeros(0))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="NaN or infinity"):
            Moments().update(torch.tensor([1.0, bad]))
    assert np.isnan(Moments().update(torch.ones(5)).excess_kurtosis)
    assert Moments(3, 1.0).merge(Moments()) == Moments(3, 1.0)


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_correlations_equal_numpy(offset):
    rng = np.random.default_rng(4)
    x = rng.normal(size=3000) + offset
    y = 0.3 * x + rng.standard_t(4, 3000)
    pairs = CoMoments()
    for a, b in zip(np.split(x, [5, 2000]), np.split(y, [5, 2000]), strict=True):
        pairs.update(torch.from_numpy(a), torch.from_numpy(b))
    assert pairs.correlation == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-8)
    assert pairs.variance_x == pytest.approx(x.var(), rel=1e-9)
    assert pairs.variance_y == pytest.approx(y.var(), rel=1e-9)
    with pytest.raises(ValueError, match="one shape"):
        pairs.update(torch.zeros(2), torch.zeros(3))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.linear(self.norm(x))


def test_observes_any_module_by_class_and_measures_branches():
    torch.manual_seed(0)
    model = nn.Sequential(Block(6), Block(6), nn.Sequential(nn.LayerNorm(6)))
    sites = modules_matching(model, r"[01]\.norm|2\.0")
    batches = [torch.randn(3, 5, 6, dtype=torch.float32) * scale for scale in (1, 30)]
    probe = StreamProbe()
    streams = {name: [] for name in sites}
    with torch.no_grad():
        for batch in batches:
            with observe_inputs(sites, probe):
                model(batch)
            x = batch
            for name, block in zip(sites, model, strict=True):
                streams[name].append(x.double().numpy())
                x = block(x)
    before = None
    for name in sites:
        x = np.concatenate(streams[name])
        check(probe.moments[name]["all"], x, rtol=1e-9)
        check(probe.moments[name]["first"], x[:, :1], rtol=1e-9)
        check(probe.moments[name]["rest"], x[:, 1:], rtol=1e-9)
        if before is not None:
            step = probe.branches[name]["rest"]
            branch = (x - before)[:, 1:]
            assert step.variance_y == pytest.approx(branch.var(), rel=1e-6)
            assert step.correlation == pytest.approx(np.corrcoef(before[:, 1:].ravel(), branch.ravel())[0, 1], rel=1e-6)
            grown = step.variance_x + step.variance_y
            grown += 2 * step.correlation * np.sqrt(step.variance_x * step.variance_y)
            assert grown == pytest.approx(probe.moments[name]["rest"].variance, rel=1e-12)
        before = x
    assert list(probe.branches) == list(sites)[1:]


def test_a_class_that_a_short_sequence_has_not_sees_nothing():
    probe = StreamProbe()
    probe("site", torch.ones(2, 1, 4))
    assert probe.moments["site"]["rest"].count == 0
    assert probe.moments["site"]["first"].count == 8
    with pytest.raises(ValueError, match="tokens, d"):
        probe("site", torch.ones(4))
