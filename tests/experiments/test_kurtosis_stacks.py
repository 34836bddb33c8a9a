"""Stacks at initialization against the exact chain and the closure."""

import numpy as np
import pytest

from residlab.errors import ResidlabError
from residlab.experiments.kurtosis_stacks import Stack, expected_kurtosis, run_stack

SMALL = {"depth": 4, "width": 48}


@pytest.mark.parametrize("a", [0.0, 0.8])
def test_linear_stacks_follow_the_exact_chain(a):
    stack = Stack(branch="linear", **SMALL, a=a, b=np.sqrt(1 - a * a))
    seen = np.mean([run_stack(stack, tokens=3000, seed=seed).channel for seed in range(4)], axis=0)
    # A kurtosis over 3000 tokens scatters by about sqrt(24/3000), more when heavy-tailed; 48 channels of 4 seeds.
    assert seen == pytest.approx(expected_kurtosis(stack), abs=0.06)


@pytest.mark.parametrize("branch", ["gelu", "swiglu"])
def test_without_residual_the_input_is_forgotten_and_with_it_not(branch):
    free = run_stack(Stack(branch=branch, **SMALL, a=0.0, b=1.0), tokens=1500, seed=1)
    stays = run_stack(Stack(branch=branch, **SMALL, a=1.0, b=0.3), tokens=1500, seed=1)
    assert abs(free.channel[-1]) < 1 < stays.channel[-1] < stays.channel[0]
    assert free.channel.shape == free.pooled.shape == free.token.shape == (5,)


def test_a_seed_is_a_seed():
    stack = Stack(branch="gelu", depth=2, width=16, a=1.0, b=1.0)
    one, same, other = (run_stack(stack, tokens=50, seed=seed).channel for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "said"), [({"branch": "tanh"}, "branch"), ({"a": -1.0}, "a must"), ({"depth": 0}, "depth")]
)
def test_what_is_refused(change, said):
    with pytest.raises(ResidlabError, match=said):
        Stack(**{"branch": "gelu", "depth": 2, "width": 8, "a": 1.0, "b": 1.0, **change})
