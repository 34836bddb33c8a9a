"""The two fractions against torch's float64 tanh: on every exponent always, on every float32 with --exhaustive."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from residlab.kernels import compiled
from residlab.kernels.rational_tanh import LONG, SHORT, Fraction, evaluate, rational_tanh

INFINITY = 0x7F800000  # the bits of float32 infinity: those below are the finite numbers >= 0, in order
CHUNK = 1 << 16  # stays in the cache
Evaluate = Callable[[Tensor, Fraction], Tensor]


@pytest.fixture(params=["eager", "native"])
def tanh(request: pytest.FixtureRequest) -> Evaluate:
    """Both ways that the fractions are evaluated: torch's operators, and fused multiply-adds in C++."""
    if request.param == "eager":
        return evaluate
    if not compiled.available():
        pytest.skip("not run: no C++ compiler; install one (Debian, Ubuntu: apt-get install g++)")
    return compiled.tanh


@dataclass
class Worst:
    ulp: float = 0.0  # the largest error, in units in the last place of the true value
    relative: float = 0.0
    back: int = 0  # the largest step back between neighbours, in units in the last place
    top: float = 0.0


def units(x: Tensor) -> Tensor:
    """The spacing of float32 around float64 ``x``."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x).exponent.clamp(min=-125) - 24)


def survey(tanh: Evaluate, fraction: Fraction, chunks: Iterable[range]) -> Worst:
    """Try the positive float32 numbers of these bit patterns, and that their negatives mirror them."""
    worst, last = Worst(), None
    for chunk in chunks:
        x = torch.arange(chunk.start, chunk.stop, chunk.step, dtype=torch.int64).to(torch.int32).view(torch.float32)
        y = tanh(x, fraction)
        assert torch.equal(tanh(-x, fraction).view(torch.int32), (-y).view(torch.int32)), "not odd"
        true = x.double().tanh()
        error = (y.double() - true).abs()
        worst.ulp = max(worst.ulp, (error / units(true)).max().item())
        worst.relative = max(worst.relative, (error / true.clamp(min=2.0**-126)).max().item())
        worst.top = max(worst.top, y.max().item())
        bits = y.view(torch.int32)
        bits = bits if last is None else torch.cat([last, bits])
        worst.back = max(worst.back, int((bits[:-1] - bits[1:]).max())) if len(bits) > 1 else worst.back
        last = bits[-1:]
    return worst


def every_float() -> Iterable[range]:
    return (range(start, min(start + CHUNK, INFINITY + 1)) for start in range(0, INFINITY + 1, CHUNK))


def stratified() -> list[range]:
    """A prime stride through every exponent, every float around the bounds, and the smallest and largest numbers."""
    around = [torch.tensor(bound).view(torch.int32).item() for bound in (SHORT.bound, LONG.bound)]
    dense = [range(int(bits) - 50_000, int(bits) + 50_000) for bits in around]
    return [range(1000), range(1000, INFINITY, 1499), *dense, range(INFINITY - 1000, INFINITY + 1)]


def check(tanh: Evaluate, fraction: Fraction, worst: Worst) -> None:
    if fraction is LONG:
        assert worst.ulp <= 4.0
    else:
        assert worst.relative <= 60 * 2.0**-24
    assert worst.top <= (1 + 2.0**-21 if fraction is SHORT and tanh is not evaluate else 1)
    print(f"\n{'LONG' if fraction is LONG else 'SHORT'}: {worst}")


@pytest.mark.parametrize("fraction", [LONG, SHORT], ids=["long", "short"])
def test_error_on_every_exponent(tanh: Evaluate, fraction: Fraction) -> None:
    check(tanh, fraction, survey(tanh, fraction, stratified()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("fraction", [LONG, SHORT], ids=["long", "short"])
def test_error_on_every_float32(tanh: Evaluate, fraction: Fraction) -> None:
    worst = survey(tanh, fraction, every_float())
    check(tanh, fraction, worst)
    assert worst.back <= 6 or fraction is SHORT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_16_bits_is_rounded_almost_correctly(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    y = rational_tanh(x)
    assert torch.equal(y.isnan(), x.isnan())
    x, y = x[~x.isnan()], y[~x.isnan()]
    true = x.double().tanh()
    info = torch.finfo(dtype)
    digits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
    smallest = torch.tensor(info.smallest_normal, dtype=torch.float64).frexp().exponent
    ulp = torch.ldexp(torch.ones_like(true), true.frexp().exponent.clamp(min=int(smallest)) - digits)
    assert ((y.double() - true).abs() / ulp).max() <= 0.5 + 60 * 2.0 ** (digits - 24)
    assert y.abs().max() == 1


@pytest.mark.parametrize("fraction", [LONG, SHORT], ids=["long", "short"])
def test_special_values(tanh: Evaluate, fraction: Fraction) -> None:
    inf, tiny = torch.inf, 1e-45
    x = torch.tensor([inf, -inf, torch.nan, 0.0, -0.0, tiny, -tiny, 1e-20, 3e38])
    y = tanh(x, fraction)
    expected = torch.tensor([1, -1, torch.nan, 0.0, -0.0, tiny, -tiny, 1e-20, 1])
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit()[3:5], torch.tensor([False, True]))


def test_derivatives_are_those_of_tanh() -> None:
    x = torch.linspace(-6, 6, 1001, requires_grad=True)
    slope = 1 - x.detach().double().tanh().square()
    (grad,) = torch.autograd.grad(rational_tanh(x).sum(), x, create_graph=True)
    torch.testing.assert_close(grad.double(), slope, atol=1e-6, rtol=0)
    (second,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(second.double(), -2 * x.detach().double().tanh() * slope, atol=1e-6, rtol=0)
    forward = torch.func.jvp(rational_tanh, (x.detach(),), (torch.ones(1001),))[1]
    torch.testing.assert_close(forward, grad.detach())
    each = torch.func.vmap(torch.func.grad(rational_tanh))(x.detach())
    torch.testing.assert_close(each, grad.detach())


def test_float64_is_left_to_torch() -> None:
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    assert torch.equal(rational_tanh(x), x.tanh())
