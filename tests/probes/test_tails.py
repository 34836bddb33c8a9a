"""Counts of deviations against counting by hand and against theory's exact counts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from residlab.probes.tails import DeviationCounter
from residlab.theory.chebyshev import chebyshev_tail, count_bound, count_outside, extremal_token


@pytest.mark.parametrize("form", ["centred", "mean-free"])
def test_equals_counting_by_hand(form):
    rng = np.random.default_rng(0)
    x = rng.standard_t(2.5, size=(3, 40, 96)) + 0.3
    counter = DeviationCounter(kappa=3.0, form=form)
    for batch in x:
        counter.update(torch.from_numpy(batch))
    counts = count_outside(x, 3.0, form=form)
    assert counter.tokens == 120
    assert counter.most == counts.max()
    assert counter.by_channel.sum() == counts.sum()
    assert counter.share_beyond == counts.sum() / x.size
    kappas, shares = counter.survival()
    for kappa in (0.25, 1.0, 2.75, 6.0):
        expected = count_outside(x, kappa, form=form, comparison=">=").sum() / x.size
        assert shares[kappas == kappa] == expected
        most = count_outside(x, kappa, form=form, comparison=">=").max()
        assert counter.most_at_least()[1][kappas == kappa] == most


def test_leaves_out_the_first_tokens():
    x = torch.zeros(2, 5, 50)
    x[:, 0, 0] = 1.0  # only token 0 has an outlier
    x[:, 1:] = torch.linspace(-1, 1, 50)
    assert DeviationCounter(kappa=5.0).update(x).shape == (2, 5, 50)
    whole, rest = DeviationCounter(kappa=5.0), DeviationCounter(kappa=5.0, skip=1)
    whole.update(x)
    rest.update(x)
    assert (whole.most, rest.most) == (1, 0)
    assert (whole.tokens, rest.tokens) == (10, 8)


def test_ties_fall_on_the_right_side():
    token = extremal_token(64, 4.0, comparison=">=")  # entries exactly at 4 standard deviations
    counter = DeviationCounter(kappa=4.0)
    counter.update(torch.from_numpy(token)[None])
    kappas, shares = counter.survival()
    assert shares[kappas == 4.0] == count_bound(64, 4.0, comparison=">=") / 64
    assert counter.most == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_upcasts_before_squaring(dtype):
    x = torch.full((1, 64), 1.0, dtype=dtype)
    x[0, 0] = 30000.0  # its square overflows float16
    counter = DeviationCounter(kappa=7.0)
    counter.update(x)
    assert counter.most == 1
    assert counter.largest == pytest.approx(np.sqrt(63), rel=1e-12)


@given(arrays(np.float64, (4, 24), elements=st.floats(-1e6, 1e6)), st.sampled_from([0.5, 1.0, 1.75, 3.0, 4.75]))
def test_chebyshev_holds_for_every_batch(x, kappa):
    counter = DeviationCounter(kappa=kappa)
    counter.update(torch.from_numpy(x))
    kappas, shares = counter.survival()
    # Rounding of s: a deviation exactly at kappa can come out on either side, by one part in 1e15.
    slack = np.count_nonzero(x.std(-1) == 0)
    assert counter.most <= count_bound(24, kappa * (1 - 1e-12), comparison=">=") or slack
    assert shares[kappas == kappa] <= chebyshev_tail(kappa * (1 - 1e-9)) + 1e-12


def test_constant_tokens_have_no_deviations():
    counter = DeviationCounter(kappa=1.0)
    assert torch.equal(counter.update(torch.ones(2, 3, 8)), torch.zeros(2, 3, 8, dtype=torch.float64))
    assert counter.share_beyond == 0.0


@pytest.mark.parametrize("x", [torch.zeros(0, 4), torch.ones(4), torch.tensor([[1.0, float("nan")]])])
def test_refuses_what_has_no_statistics(x):
    with pytest.raises(ValueError, match="activations"):
        DeviationCounter(kappa=1.0).update(x)


def test_says_when_nothing_was_counted():
    with pytest.raises(ValueError, match="nothing was counted yet"):
        DeviationCounter(kappa=1.0).survival()
    with pytest.raises(ValueError, match="nothing was counted yet"):
        _ = DeviationCounter(kappa=1.0).share_beyond


@pytest.mark.parametrize("form", ["centred", "mean-free"])
def test_a_token_of_zeros_has_an_infinite_mean_over_deviation(form):
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    x[0, 2] = 0
    counter = DeviationCounter(3.0, form=form)
    counter.update(x)
    finite = (x.double().mean(-1).abs() / x.double().std(-1, correction=0))[0, [0, 1, 3, 4]]
    assert counter.mean_over_std[0] == pytest.approx(float(finite.sort().values[2]))  # the third of five


def test_too_few_tokens_are_refused():
    with pytest.raises(ValueError, match="more than skip = 2 tokens"):
        DeviationCounter(3.0, skip=2).update(torch.ones(1, 2, 4))
