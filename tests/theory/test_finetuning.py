"""Fine-tuning in closed form, against descent step by step, search, and torch's own AdamW."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from residlab.theory.finetuning import (
    adam_step_bounds,
    cheapest,
    descended,
    halving_bound,
    remaining_and_forgotten,
)

RNG = np.random.default_rng(0)
NEW, OLD, DISTANCE = RNG.random(6), RNG.random(6), RNG.normal(size=6)


def test_is_gradient_descent_step_by_step():
    d = np.zeros(6)
    for _ in range(17):
        d -= 0.7 * NEW * (d - DISTANCE)
    np.testing.assert_allclose(descended(0.7, 17, NEW) * DISTANCE, d, rtol=1e-12)
    left, lost = remaining_and_forgotten(descended(0.7, 17, NEW), NEW, OLD, DISTANCE)
    assert left == pytest.approx((NEW * (DISTANCE - d) ** 2).sum() / 2)
    assert lost == pytest.approx((OLD * d**2).sum() / 2)


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_half_the_rate_for_twice_the_steps_lags_by_no_more_than_the_bound(x, steps):
    more = float(descended(x, steps, 1.0) - descended(x / 2, 2 * steps, 1.0))
    assert -1e-12 <= more <= float(halving_bound(x)) + 1e-12


def test_the_bound_on_halving_is_within_a_factor_of_what_happens():
    x = np.linspace(0.05, 1, 20)[:, None]
    more = descended(x, np.arange(1, 200), 1.0) - descended(x / 2, 2 * np.arange(1, 200), 1.0)
    ratio = halving_bound(x[:, 0]) / more.max(axis=1)
    assert np.all((ratio >= 1) & (ratio < 1.6))


def test_nothing_near_forgets_less_for_what_it_learns():
    for price in (0.1, 1.0, 8.0):
        best = cheapest(price, NEW, OLD)
        left, lost = remaining_and_forgotten(best, NEW, OLD, DISTANCE)
        others = best + RNG.normal(scale=0.05, size=(2000, 6))
        left_there, lost_there = remaining_and_forgotten(others, NEW, OLD, DISTANCE)
        assert np.all(left_there + price * lost_there >= left + price * lost)
    assert np.array_equal(cheapest(0.0, [1.0, 0.0], [1.0, 0.0]), [1.0, 0.0])


def adam(gradients, betas):
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=1.0, betas=betas, eps=0.0, weight_decay=0.0)
    updates = []
    for gradient in gradients:
        before = float(weight.detach())
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        updates.append(abs(float(weight.detach()) - before))
    return np.array(updates)


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999), (0.95, 0.9)])
def test_no_update_of_adam_is_larger_and_one_is_as_large(betas):
    steps = 12
    bounds = adam_step_bounds(steps, *betas)
    for _ in range(50):
        gradients = RNG.normal(size=steps) * 10 ** RNG.uniform(-3, 3, steps)
        assert np.all(adam(gradients, betas) <= bounds * (1 + 1e-12))
    back = np.arange(steps)[::-1]  # the attaining gradients, of which the last step's is 0 steps ago
    attaining = (betas[0] / betas[1]) ** back
    assert adam(attaining, betas)[-1] == pytest.approx(bounds[-1], rel=1e-12)
    np.testing.assert_allclose(adam(np.ones(steps), betas), 1, rtol=1e-12)


def test_the_bound_of_the_books_betas():
    bounds = adam_step_bounds(2000)
    assert bounds[0] == pytest.approx(1)
    assert bounds[-1] == pytest.approx(0.1 / np.sqrt(0.05 * (1 - 0.81 / 0.95)), rel=1e-12)
    assert bounds.max() < 1.17


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: descended(3.0, 1, 1.0), "rate curvature must be at most 2; got 3.0"),
        (lambda: descended(-1.0, 1, 1.0), "rate must be finite and >= 0"),
        (lambda: cheapest(1.0, [-1.0], [1.0]), "new must be finite"),
        (lambda: halving_bound(1.5), r"x must be in \[0, 1\]"),
        (lambda: adam_step_bounds(0), "steps must be >= 1"),
        (lambda: adam_step_bounds(3, 1.0), "betas in"),
    ],
)
def test_refuses_what_has_no_answer(call, said):
    with pytest.raises(ValueError, match=said):
        call()
