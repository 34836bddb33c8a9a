"""A linear layer's kurtosis: independent, dependent and loud inputs, whose answers are known."""

import pytest
import torch

from residlab.probes.kurtosis import excess_kurtosis
from residlab.probes.mixing import mixing_kurtosis


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def laplace(n, d, generator):
    u = torch.rand(n, d, generator=generator, dtype=torch.float64) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def test_independent_inputs_do_as_predicted(generator):
    x = laplace(200_000, 6, generator) * torch.tensor([1.0, 2, 0.5, 1, 3, 1]) + 5
    W = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    mixed = mixing_kurtosis(x, W, generator)
    error = 0.15  # about 3 standard errors of a kurtosis near 2 here
    assert torch.allclose(mixed.measured, mixed.predicted, atol=error)
    assert torch.allclose(mixed.shuffled, mixed.predicted, atol=error)
    assert torch.allclose(mixed.variance_ratio, torch.ones(4, dtype=torch.float64), atol=0.03)
    assert torch.allclose(mixed.measured, excess_kurtosis(x @ W.T, "channel"), atol=1e-4)
    assert torch.all((mixed.channels >= 1) & (mixed.channels <= 6))


def test_a_common_radius_is_seen_by_the_measure_and_not_by_the_prediction(generator):
    n, d = 50_000, 32
    radius = torch.where(torch.rand(n, 1, generator=generator, dtype=torch.float64) < 0.05, 5.0, 1.0)
    x = radius * torch.randn(n, d, generator=generator, dtype=torch.float64)
    mixed = mixing_kurtosis(x, torch.ones(1, d), generator)
    kurtosis = 3 * (0.95 + 0.05 * 625) / (0.95 + 0.05 * 25) ** 2 - 3
    assert float(mixed.measured) == pytest.approx(kurtosis, rel=0.1)
    assert float(mixed.predicted) == pytest.approx(kurtosis / d, rel=0.1)
    assert float(mixed.shuffled) == pytest.approx(kurtosis / d, rel=0.35)


def test_a_channel_that_does_not_vary_adds_nothing(generator):
    x = laplace(1000, 3, generator)
    x[:, 1] = 7.0
    mixed = mixing_kurtosis(x.reshape(10, 100, 3), torch.tensor([[1.0, 9.0, 0.0]]), generator)
    assert mixed.inputs[1].isnan()
    assert float(mixed.predicted) == pytest.approx(float(mixed.measured))
    assert float(mixed.channels) == pytest.approx(1)


@pytest.mark.parametrize(("x", "w"), [((5, 3), (2, 4)), ((3,), (2, 3)), ((5, 3), (3,))])
def test_shapes_that_do_not_fit(x, w):
    with pytest.raises(ValueError, match="must fit"):
        mixing_kurtosis(torch.zeros(x), torch.zeros(w))


def test_three_tokens_are_too_few():
    with pytest.raises(ValueError, match="4 of them"):
        mixing_kurtosis(torch.randn(3, 3), torch.randn(2, 3))
