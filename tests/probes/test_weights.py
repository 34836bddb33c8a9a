"""Shapes of matrices against matrices whose shape is known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from residlab.models.init import scaled_orthogonal_
from residlab.probes.weights import matrices, matrix_shape


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (16, 16)])
def test_a_semi_orthogonal_matrix_is_an_isometry(shape):
    found = matrix_shape(3 * scaled_orthogonal_(torch.empty(shape, dtype=torch.float64)))
    assert found.spread == pytest.approx(1)
    assert found.defect == pytest.approx(0, abs=1e-12)
    assert found.stable_rank == pytest.approx(16)


def test_the_larger_gram_matrix_would_mislead():
    W = scaled_orthogonal_(torch.empty(192, 576, dtype=torch.float64))
    larger = W.T @ W / (W.square().sum() / 576) - torch.eye(576).double()
    assert float(larger.norm() / 576**0.5) == pytest.approx(1.414, abs=1e-3)
    assert matrix_shape(W).defect < 1e-12


@given(
    values=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    extra=st.integers(0, 3),
    scale=st.sampled_from([1e-200, 1.0, 1e200]),
)
def test_singular_values_that_are_known(values, extra, scale):
    n = len(values)
    generator = torch.Generator().manual_seed(n)
    U = torch.linalg.qr(torch.randn(n + extra, n, dtype=torch.float64, generator=generator))[0]
    V = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator))[0]
    found = matrix_shape(scale * (U * torch.tensor(values, dtype=torch.float64)) @ V)
    s = np.sort(values)[::-1]
    assert found.largest == pytest.approx(scale * s[0])
    assert found.smallest == pytest.approx(scale * s[-1])
    assert found.spread == pytest.approx(s[0] / s[-1])
    assert found.stable_rank == pytest.approx(np.sum(s**2) / s[0] ** 2)
    assert found.defect == pytest.approx(np.std(s**2) / np.mean(s**2), abs=1e-9)


def test_participation_of_permutations_flat_and_gaussian_rows():
    assert matrix_shape(torch.eye(8)[torch.randperm(8)]).participation == 1
    assert matrix_shape(torch.ones(4, 8)).participation == pytest.approx(1 / 8)
    gaussian = matrix_shape(torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)))
    assert gaussian.delocalisation == pytest.approx(1, abs=0.02)


def test_a_singular_matrix_and_a_zero_row():
    found = matrix_shape(torch.tensor([[1.0, 2.0], [2.0, 4.0], [0.0, 0.0]]))
    assert found.spread == math.inf
    assert found.participation == pytest.approx(17 / 25)
    assert found.stable_rank == pytest.approx(1)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (torch.ones(3), "shape"),
        (torch.ones(0, 3), "none zero"),
        (torch.zeros(2, 2), "not all zero"),
        (torch.tensor([[math.nan]]), "must be finite"),
        (torch.tensor([[math.inf]]), "must be finite"),
    ],
)
def test_what_is_no_matrix_is_refused(weight, said):
    with pytest.raises(ValueError, match=said):
        matrix_shape(weight)


def test_shared_matrices_are_visited_once():
    first, second = nn.Linear(2, 3), nn.Linear(2, 3)
    second.weight = first.weight
    assert [name for name, _ in matrices(nn.Sequential(first, second, nn.Linear(3, 1), nn.Embedding(4, 2)))] == [
        "0",
        "2",
    ]
