"""Entropy of attention rows and similarity of tokens, against loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from residlab.probes.attention import row_entropy, token_similarity


def test_entropy_of_known_rows():
    rows = torch.tensor([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]])
    torch.testing.assert_close(row_entropy(rows), torch.tensor([0, math.log(4), math.log(2)]).double())
    with pytest.raises(ValueError, match="were these logits"):
        row_entropy(torch.randn(3, 4))


@given(T=st.integers(2, 6), d=st.integers(1, 5), seed=st.integers(0, 1000), size=st.sampled_from([1e-30, 1.0, 1e4]))
def test_similarity_is_the_mean_over_pairs(T, d, seed, size):
    x = torch.randn(2, T, d, generator=torch.Generator().manual_seed(seed)).double() * size
    for sequence, got in zip(x, token_similarity(x), strict=True):
        unit = sequence / sequence.norm(dim=1, keepdim=True)
        pairs = [float(unit[i] @ unit[j]) for i in range(T) for j in range(T) if i != j]
        assert float(got) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_collapse_and_opposition():
    assert float(token_similarity(torch.ones(5, 3) * torch.arange(1, 6)[:, None])) == pytest.approx(1)
    assert float(token_similarity(torch.eye(4))) == 0
    assert float(token_similarity(torch.tensor([[1.0, 0], [-1.0, 0]]))) == -1
    assert float(token_similarity(torch.zeros(3, 2))) == 0
    with pytest.raises(ValueError, match="at least two tokens"):
        token_similarity(torch.ones(1, 4))
