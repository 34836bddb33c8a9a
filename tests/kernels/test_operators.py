"""Every operator, backend and dtype against the definition in float64: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from residlab import kernels
from residlab.kernels import TokenStatistic

TOKENS, WIDTH = (2, 4), 21
Inputs = dict[str, Tensor]
Operator = Callable[..., tuple[Tensor, ...]]
# The largest error, relative to the largest value. The interpreter of Triton truncates to bfloat16.
TOLERANCE = {torch.float64: 1e-14, torch.float32: 3e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def _rms_norm(x: Tensor, gamma: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return (kernels.rms_norm(x, gamma, 1e-3, **options),)


def _add_rms_norm(x: Tensor, residual: Tensor, gamma: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return kernels.add_rms_norm(x, residual, gamma, 1e-3, **options)


def _dyt(x: Tensor, scalar: Tensor, gamma: Tensor, beta: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return (kernels.dyt(x, scalar, gamma, beta, **options),)


def _exact(centred: bool, x: Tensor, gamma: Tensor, scalar: Tensor, **options: Any) -> tuple[Tensor, ...]:
    y, statistic = kernels.bhyt_exact(x, gamma, scalar, kappa=2.0, eps=1e-3, centred=centred, **options)
    return (y, statistic.spread) if statistic.mean is None else (y, *statistic)


def _given(centred: bool, x: Tensor, gamma: Tensor, scalar: Tensor, **options: Any) -> tuple[Tensor, ...]:
    statistic = TokenStatistic(options.pop("spread"), options.pop("mean") if centred else None)
    increment = options.pop("increment")
    return kernels.bhyt_approximate(
        x, gamma, scalar, statistic, increment, kappa=2.0, eps=1e-3, centred=centred, **options
    )


_GIVEN = ("x", "gamma", "scalar", "spread", "increment")
OPERATORS: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "rms_norm": (_rms_norm, ("x", "gamma")),
    "add_rms_norm": (_add_rms_norm, ("x", "residual", "gamma")),
    "dyt": (_dyt, ("x", "scalar", "gamma", "beta")),
    "exact": (partial(_exact, False), ("x", "gamma", "scalar")),
    "exact, centred": (partial(_exact, True), ("x", "gamma", "scalar")),
    "given": (partial(_given, False), _GIVEN),
    "given, residual": (partial(_given, False), (*_GIVEN, "residual")),
    "given, centred": (partial(_given, True), (*_GIVEN, "mean")),
    "given, centred, residual": (partial(_given, True), (*_GIVEN, "mean", "residual")),
}


def inputs(names: tuple[str, ...], dtype: torch.dtype, device: str = "cpu", scale: float = 1.0) -> Inputs:
    """Random arguments: tokens in ``dtype``, parameters and statistics in float32 at least, all with gradients."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tokens = {"x": scale * (draw(*TOKENS, WIDTH) + 0.3), "residual": scale * draw(*TOKENS, WIDTH)}
    others = {
        "gamma": draw(WIDTH),
        "beta": draw(WIDTH),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "spread": scale**2 * (draw(*TOKENS, 1).square() + 0.5),
        "mean": scale * draw(*TOKENS, 1),
        "increment": scale**2 * draw(TOKENS[1], 1).square(),
    }
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    made = {name: value.to(dtype) for name, value in tokens.items()} | {k: v.to(wide) for k, v in others.items()}
    return {name: made[name].to(device).requires_grad_() for name in names}


def in_float64(operator: Operator, given: Inputs) -> tuple[tuple[Tensor, ...], Inputs]:
    """Return the definition at the same arguments in float64; a sum of tokens is rounded to their dtype there, too."""
    exact = {name: value.detach().double().requires_grad_() for name, value in given.items()}
    if "residual" not in given:
        return operator(**exact, backend="reference"), exact
    dtype, total = given["x"].dtype, exact["x"] + exact["residual"]
    rounded = total + (total.detach().to(dtype).double() - total.detach())
    zero = torch.zeros_like(rounded)
    names = {name: value for name, value in exact.items() if name not in ("x", "residual")}
    return operator(x=rounded, residual=zero, **names, backend="reference"), exact


def relative(value: Tensor, expected: Tensor) -> float:
    return ((value.cpu().double() - expected.cpu()).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_gradients(name: str, dtype: torch.dtype, backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "triton" and dtype == torch.float64:
        pytest.skip("Triton's kernels take no float64")
    device = request.getfixturevalue("triton") if backend == "triton" else "cpu"
    operator, names = OPERATORS[name]
    given = inputs(names, dtype, device)
    expected, exact = in_float64(operator, given)
    results = operator(**given, backend=backend)
    tolerance = TOLERANCE[dtype] * (3 if backend == "triton" and device == "cpu" else 1)
    for result, value in zip(results, expected, strict=True):
        assert result.shape == value.shape
        assert relative(result, value) <= tolerance
    assert results[0].dtype == dtype
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(result.shape, generator=generator).to(result.dtype) for result in results]
    grads = torch.autograd.grad(results, list(given.values()), [weight.to(device) for weight in weights])
    wanted = torch.autograd.grad(expected, list(exact.values()), [weight.double() for weight in weights])
    for argument, grad, value in zip(names, grads, wanted, strict=True):
        assert grad.dtype == given[argument].dtype
        assert relative(grad, value) <= 4 * tolerance, argument


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("which", ["reference", "compiled"])
def test_gradcheck(name: str, which: str, request: pytest.FixtureRequest) -> None:
    if which == "compiled":
        request.getfixturevalue("compiled")
    operator, names = OPERATORS[name]
    given = inputs(names, torch.float64)
    tensors = tuple(value.detach()[:1].requires_grad_() if value.ndim == 3 else value for value in given.values())

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return operator(**dict(zip(names, values, strict=True)), backend=which)

    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_each_argument_may_be_the_only_one_with_a_gradient(name: str, compiled: None) -> None:
    operator, names = OPERATORS[name]
    everything = inputs(names, torch.float32)
    wanted = torch.autograd.grad(operator(**everything, backend="compiled")[0].sum(), list(everything.values()))
    for alone, expected in zip(names, wanted, strict=True):
        given = {name: value.detach().requires_grad_(name == alone) for name, value in everything.items()}
        y = operator(**given, backend="compiled")[0]
        (grad,) = torch.autograd.grad(y.sum(), [given[alone]])
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_squares_are_taken_after_the_upcast(name: str, dtype: torch.dtype, backend: str) -> None:
    if backend == "triton" and "centred" in name:
        pytest.skip("the mean-free form shows it")
    operator, names = OPERATORS[name]
    given = inputs(names, dtype, scale=300.0)
    expected, _ = in_float64(operator, given)
    results = operator(**given, backend=backend)
    for result, value in zip(results, expected, strict=True):
        assert relative(result, value) <= 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["rms_norm", "exact", "exact, centred"])
def test_eps_is_honoured_on_silent_tokens(name: str, backend: str) -> None:
    operator, names = OPERATORS[name]
    given = {name: value.detach() for name, value in inputs(names, torch.float32).items()}
    given["x"] = 1e-4 * given["x"]
    expected, _ = in_float64(operator, given)
    assert relative(operator(**given, backend=backend)[0], expected[0]) <= 3e-6
    given["x"] = torch.zeros_like(given["x"]).requires_grad_()
    y = operator(**given, backend=backend)[0]
    assert not y.any()
    (grad,) = torch.autograd.grad(y.sum(), given["x"])
    assert grad.isfinite().all()


@pytest.mark.parametrize("tokens", [(), (1,), (0,), (3, 0), (2, 4)])
@pytest.mark.parametrize("width", [1, 5])
def test_any_number_of_tokens(tokens: tuple[int, ...], width: int, backend: str) -> None:
    x = torch.linspace(-2, 2, steps=max(1, width)).expand(*tokens, width).clone().requires_grad_()
    gamma, lam = torch.ones(width, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    y, statistic = kernels.bhyt_exact(x, gamma, lam, backend=backend)
    again, z = kernels.bhyt_approximate(x, gamma, lam, statistic, 0.5, residual=x, backend=backend)
    assert y.shape == again.shape == z.shape == x.shape
    assert statistic.spread.shape == (*tokens, 1)
    grads = torch.autograd.grad((y + again).sum(), [x, gamma, lam])
    expected = kernels.bhyt_exact(x, gamma, lam, backend="reference")
    torch.testing.assert_close(y, expected[0])
    if x.numel() == 0:
        assert all(not grad.any() for grad in grads)


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_with_the_negative_bit(name: str, compiled: None) -> None:
    """What torch has yet to negate is negated before its memory is read: arguments and gradients."""
    operator, names = OPERATORS[name]
    given = inputs(names, torch.float32)
    pending = {name: torch._neg_view(-value.detach()).requires_grad_() for name, value in given.items()}
    assert all(value.is_neg() and value.is_contiguous() for value in pending.values())
    expected, results = operator(**given, backend="compiled"), operator(**pending, backend="compiled")
    weights = [torch.linspace(-1, 2, value.numel()).reshape(value.shape) for value in expected]
    wanted = torch.autograd.grad(expected, list(given.values()), weights)
    grads = torch.autograd.grad(results, list(pending.values()), [torch._neg_view(-weight) for weight in weights])
    for result, value in zip((*results, *grads), (*expected, *wanted), strict=True):
        assert torch.equal(result, value)


def test_a_fixed_scalar_gets_no_gradient(backend: str) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    fixed = torch.tensor(2.0)
    kernels.bhyt_exact(x, None, fixed, backend=backend)[0].sum().backward()
    kernels.dyt(x, fixed, backend=backend).sum().backward()
    assert fixed.grad is None
    as_number = kernels.bhyt_exact(x, None, 2.0, backend=backend)[0]
    assert torch.equal(as_number, kernels.bhyt_exact(x, None, fixed, backend=backend)[0])


def test_a_statistic_may_be_all_that_is_used(backend: str) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    statistic = kernels.bhyt_exact(x, None, 2.0, centred=True, backend=backend)[1]
    assert statistic.mean is not None
    (grad,) = torch.autograd.grad(statistic.spread.sum() + statistic.mean.sum(), x)
    torch.testing.assert_close(grad, 2 * (x - x.mean(-1, keepdim=True)).detach() / 8 + 1 / 8)


def test_not_a_number_stays_in_its_row(backend: str) -> None:
    x = torch.randn(3, 8)
    x[1, 2] = torch.nan
    y = kernels.bhyt_exact(x, None, 2.0, backend=backend)[0]
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
