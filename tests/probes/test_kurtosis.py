"""Kurtosis and crest factor against scipy, on streams that ruin raw moments."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from residlab.probes.kurtosis import crest_factor, excess_kurtosis

NUMBERS = arrays(np.float64, (3, 4, 5), elements=st.floats(-1e3, 1e3, width=16))


@given(x=NUMBERS, shift=st.sampled_from([0.0, 1e8]), scale=st.sampled_from([1e-90, 1.0, 1e90]))
def test_kurtosis_is_scipys(x, shift, scale):
    x = (np.round(x, 3) + shift) * scale
    groups = {"pooled": x.reshape(1, -1), "channel": x.reshape(-1, 5).T, "token": x.reshape(-1, 5)}
    for over, rows in groups.items():
        got = np.atleast_1d(excess_kurtosis(torch.from_numpy(x), over).numpy()).ravel()
        for row, value in zip(rows, got, strict=True):
            if np.ptp(row) == 0:
                assert np.isnan(value)
            else:
                unit = (row - row.mean()) / np.ptp(row)  # scipy overflows on its own at 1e90
                assert value == pytest.approx(scipy.stats.kurtosis(unit), rel=1e-5, abs=1e-5)


@given(x=NUMBERS)
def test_crest_factor_is_its_definition(x):
    for over, axis in (("pooled", None), ("channel", (0, 1)), ("token", 2)):
        with np.errstate(invalid="ignore"):
            expected = np.max(np.abs(x), axis=axis) / np.sqrt(np.mean(x**2, axis=axis))
        np.testing.assert_allclose(crest_factor(torch.from_numpy(x), over).numpy(), expected, rtol=1e-12)


def test_bounds_that_every_vector_keeps():
    one_hot = torch.nn.functional.one_hot(torch.tensor(3), 64).float()
    assert float(crest_factor(one_hot, "token")) == pytest.approx(8)
    assert float(crest_factor(torch.ones(64), "token")) == pytest.approx(1)
    assert float(excess_kurtosis(torch.tensor([-1.0, 1.0]), "pooled")) == -2


def test_half_precision_is_upcast():
    x = torch.full((64,), 300.0, dtype=torch.float16)
    x[::2] = -300
    assert float(excess_kurtosis(x, "pooled")) == -2


def test_wrong_words_and_no_entries_are_refused():
    with pytest.raises(ValueError, match="over must be one of pooled, channel, token; got 'row'"):
        excess_kurtosis(torch.ones(3), "row")
    with pytest.raises(ValueError, match="must have shape"):
        crest_factor(torch.ones(0, 3), "pooled")
