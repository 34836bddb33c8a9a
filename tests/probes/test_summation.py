"""Terms of inner products against the layers' own, and errors of sums against a loop of scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from residlab.precision.accumulation import PAIRWISE, RECURSIVE, blocked
from residlab.precision.formats import BF16, FP16, FP32, round_number
from residlab.probes.summation import product_terms, square_terms, sum_errors, summary
from residlab.theory.summation import sum_bound


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 12), nn.Linear(12, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False))


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def test_terms_add_up_to_what_the_layer_gives(model: nn.Module) -> None:
    layers = {"one": model[1], "two": model[3]}  # type: ignore[index]
    terms = product_terms(model, IDS, layers, rows=4, operands=FP32)
    assert {name: tuple(each.shape) for name, each in terms.items()} == {"one": (24, 12), "two": (18, 7)}
    hidden = model[1](model[0](IDS))[:, 1:, [0, 2, 4, 6]]  # type: ignore[index]
    torch.testing.assert_close(terms["one"].sum(-1).reshape(2, 3, 4), hidden.double(), rtol=1e-5, atol=1e-6)
    short = product_terms(model, IDS, layers, rows=4, operands=BF16)["one"]
    assert 0 < (short - terms["one"]).abs().max() < 2.1 * BF16.u * terms["one"].abs().max()


def test_squares_are_those_of_the_input(model: nn.Module) -> None:
    squares = square_terms(model, IDS, {"one": model[1]}, FP32)["one"]  # type: ignore[index]
    torch.testing.assert_close(squares, model[0](IDS)[:, 1:].flatten(0, 1).double() ** 2)  # type: ignore[index]


def test_errors_are_those_of_a_loop() -> None:
    terms = torch.randn(5, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = sum_errors(terms, BF16, RECURSIVE, (1, 7, 20))
    assert found.error.shape == found.law.shape == (5, 3)
    for i, row in enumerate(terms.tolist()):
        total = 0.0
        for k, term in enumerate(row):
            total = round_number(total + term, BF16)
            if k + 1 in found.lengths:
                exact, size = np.sum(row[: k + 1]), np.sum(np.abs(row[: k + 1]))
                assert found.error[i, found.lengths.index(k + 1)] == pytest.approx(abs(total - exact) / size, abs=1e-14)
    assert found.law[0, 1] == pytest.approx(
        BF16.u * np.linalg.norm(np.cumsum(terms[0, :7].numpy())) / float(terms[0, :7].abs().sum())
    )


def test_bounds_overflow_and_zeros() -> None:
    terms = torch.randn(50, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).abs()
    for order in (RECURSIVE, PAIRWISE, blocked(8)):
        found = sum_errors(terms, BF16, order, (64,))
        assert found.error.max() <= sum_bound(order.name, 64, BF16.u, order.block)
    assert np.isinf(sum_errors(terms * 1e5, FP16, RECURSIVE, (64,)).error).all()
    assert np.isnan(sum_errors(terms * 0, FP16, RECURSIVE, (64,)).error).all()


def test_the_summary_is_of_the_errors() -> None:
    terms = torch.randn(9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = summary(terms, (BF16, FP16), ((RECURSIVE, "nearest"), (PAIRWISE, "stochastic")), (2, 16), seed=5)
    assert found.shape == (2, 2, 2, 3)
    one = sum_errors(terms, FP16, PAIRWISE, (16,), "stochastic", 5)
    wanted = [np.sqrt(np.mean(one.error**2)), one.error.max(), np.sqrt(np.mean(one.law**2))]
    np.testing.assert_allclose(found[1, 1, 1], wanted, rtol=1e-6)
