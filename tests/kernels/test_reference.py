"""The definition against the worked example of the book (float64) and against the faults of its peers."""

from __future__ import annotations

import pytest
import torch

from residlab import kernels
from residlab.kernels import TokenStatistic

X = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
ONE = torch.ones(5, dtype=torch.float64)
MEAN_FREE = torch.tensor([-0.3411640, -0.1179186, 0.0, 0.0591657, 0.2326029], dtype=torch.float64)
CENTRED = torch.tensor([-0.3405827, -0.1177024, 0.0, 0.0590565, 0.2321881], dtype=torch.float64)
DYT = torch.tensor([-0.9051483, -0.4621172, 0.0, 0.2449187, 0.7615942], dtype=torch.float64)


@pytest.mark.parametrize(("centred", "expected"), [(False, MEAN_FREE), (True, CENTRED)])
def test_exact_bhyt_of_the_worked_example(centred: bool, expected: torch.Tensor) -> None:
    y, statistic = kernels.bhyt_exact(X, ONE, torch.tensor(2.0), kappa=10.0, eps=0.0, centred=centred)
    torch.testing.assert_close(y, expected, atol=1e-7, rtol=0)
    assert statistic.spread.item() == pytest.approx(X.var(correction=0).item() if centred else X.square().mean().item())
    if centred:
        assert statistic.mean is not None
        assert statistic.mean.item() == pytest.approx(-0.3)
    else:
        assert statistic.mean is None


@pytest.mark.parametrize("centred", [False, True])
def test_the_second_site_with_the_true_spread_is_the_first(centred: bool) -> None:
    x, h = X[None] - 0.25, torch.full((1, 5), 0.25, dtype=torch.float64)
    y, statistic = kernels.bhyt_exact(X[None], ONE, 2.0, centred=centred)
    spread = TokenStatistic(statistic.spread - 0.125, statistic.mean)
    again, z = kernels.bhyt_approximate(x, ONE, 2.0, spread, torch.tensor(0.125), centred=centred, residual=h)
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(z, X[None])


def test_dyt_of_the_worked_example() -> None:
    torch.testing.assert_close(kernels.dyt(X, torch.tensor(0.5), ONE), DYT, atol=1e-7, rtol=0)
    torch.testing.assert_close(kernels.dyt(X, 0.5, ONE, 2 * ONE), DYT + 2, atol=1e-7, rtol=0)


def test_rms_norm_is_that_of_torch() -> None:
    torch.testing.assert_close(
        kernels.rms_norm(X, 2 * ONE, 1e-2), torch.nn.functional.rms_norm(X, (5,), 2 * ONE, eps=1e-2)
    )
    y, z = kernels.add_rms_norm(X, ONE, 2 * ONE, 1e-2)
    torch.testing.assert_close(z, X + 1)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(X + 1, (5,), 2 * ONE, eps=1e-2))
