"""Where the coefficients of tanh come from: Remez' exchange in 40 digits, run again and compared bit for bit.

Sought is the fraction ``f(x) = x P(x^2) / Q(x^2)``, ``P(0) = Q(0) = 1``, of least weighted relative error
``w (f / tanh - 1)`` on ``(0, bound]``. At the optimum that error takes its largest value with alternating sign at one
point more than there are coefficients. The exchange solves for coefficients and level on trial points (Newton), moves
the points to the extrema of the error found on a grid, and repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import pytest
import torch

from residlab.kernels.rational_tanh import LONG, SHORT, Fraction

GRID = 800


@dataclass
class Problem:
    above: int  # coefficients of P beside 1
    below: int  # of Q
    bound: int | float
    weight: Callable[[mpmath.mpf], mpmath.mpf]  # of tanh
    ends_at_one: bool  # whether f(bound) = 1, which replaces one alternation


def solve(problem: Problem) -> tuple[mpmath.mpf, list[mpmath.mpf]]:
    """Return the largest weighted error and the coefficients of P, then Q, in powers of x^2."""
    unknowns, c = problem.above + problem.below, mpmath.mpf(problem.bound)
    alternations = unknowns + (not problem.ends_at_one)
    grid = [(1 - mpmath.cos(mpmath.pi * i / GRID)) / 2 for i in range(1, GRID + 1)]  # of x / c
    tanh = [mpmath.tanh(c * x) for x in grid]
    target = [t / (c * x) for t, x in zip(tanh, grid, strict=True)]
    weight = [problem.weight(t) for t in tanh]
    powers = [[x ** (2 * k) for k in range(1, max(problem.above, problem.below) + 1)] for x in grid]

    def parts(coefficients: list[mpmath.mpf], i: int) -> tuple[mpmath.mpf, mpmath.mpf]:
        p, q = coefficients[: problem.above], coefficients[problem.above :]
        return 1 + mpmath.fdot(p, powers[i][: len(p)]), 1 + mpmath.fdot(q, powers[i][: len(q)])

    def row(i: int, factor: mpmath.mpf) -> list[mpmath.mpf]:
        return [*powers[i][: problem.above], *(-factor * power for power in powers[i][: problem.below])]

    start = [GRID * (2 * k + 1) // (2 * unknowns) for k in range(unknowns)]  # interpolate tanh at these
    rows = mpmath.matrix([row(i, target[i]) for i in start])
    coefficients = list(mpmath.lu_solve(rows, mpmath.matrix([target[i] - 1 for i in start])))
    for _ in range(30):
        errors = []
        for i in range(GRID):
            p, q = parts(coefficients, i)
            errors.append(weight[i] * (p / q / target[i] - 1))
        points: list[int] = []
        for i in range(GRID - problem.ends_at_one):
            inner = 0 < i < GRID - 1
            if inner and (errors[i] - errors[i - 1]) * (errors[i + 1] - errors[i]) > 0:
                continue
            if points and (errors[points[-1]] > 0) == (errors[i] > 0):
                points[-1] = max(points[-1], i, key=lambda j: abs(errors[j]))
            else:
                points.append(i)
        while len(points) > alternations:
            points.pop(0 if abs(errors[points[0]]) < abs(errors[points[-1]]) else -1)
        assert len(points) == alternations, "the error does not alternate often enough: start elsewhere"
        worst = max(map(abs, errors))
        if worst < min(abs(errors[i]) for i in points) * (1 + mpmath.mpf(10) ** -4):
            break
        level = mpmath.fsum(abs(errors[i]) for i in points) / alternations
        signs = [mpmath.sign(errors[i]) for i in points]
        for _ in range(10):
            jacobian, residual = [], []
            for i, sign in zip(points, signs, strict=True):
                p, q = parts(coefficients, i)
                factor = target[i] * (1 + sign * level / weight[i])
                jacobian.append([*row(i, factor), -sign * target[i] / weight[i] * q])
                residual.append(factor * q - p)
            if problem.ends_at_one:
                p, q = parts(coefficients, GRID - 1)
                jacobian.append([*row(GRID - 1, 1 / c), mpmath.mpf(0)])
                residual.append(q / c - p)
            step = mpmath.lu_solve(mpmath.matrix(jacobian), mpmath.matrix(residual))
            coefficients = [value + step[k] for k, value in enumerate(coefficients)]
            level += step[unknowns]
            if max(map(abs, step)) < mpmath.mpf(10) ** -25:
                break
    exponents = [*range(1, problem.above + 1), *range(1, problem.below + 1)]
    return worst, [value / c ** (2 * k) for value, k in zip(coefficients, exponents, strict=True)]


def _relative(tanh: mpmath.mpf) -> mpmath.mpf:
    return mpmath.mpf(1)


def _after_doubling(tanh: mpmath.mpf) -> mpmath.mpf:
    """How a relative error of t = tanh(h) returns in 2t / (1 + t^2), to first order."""
    return (1 - tanh**2) / (1 + tanh**2)


@pytest.mark.parametrize(
    ("fraction", "problem", "error"),
    [
        (LONG, Problem(2, 3, 4.5, _after_doubling, False), 0.1236),
        (SHORT, Problem(3, 3, 8, _relative, True), 53.30),
    ],
    ids=["long", "short"],
)
def test_coefficients_are_derived_again(fraction: Fraction, problem: Problem, error: float) -> None:
    with mpmath.workdps(40):
        worst, coefficients = solve(problem)
        assert float(worst * 2**24) == pytest.approx(error, rel=1e-3)
        if fraction.doubled:  # P and Q take x^2 = 4 h^2
            exponents = [*range(1, problem.above + 1), *range(1, problem.below + 1)]
            coefficients = [value / 4**k for value, k in zip(coefficients, exponents, strict=True)]
        rounded = torch.tensor([float(value) for value in coefficients]).tolist()
    assert rounded == [*fraction.numerator[1:], *fraction.denominator[1:]]
    assert all(value > 0 for value in rounded)
