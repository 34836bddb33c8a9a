"""Rounded softmax against exact arithmetic, operation by operation; its enclosures attacked; masks, overflow, casts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.precision.oracle import round_fraction, sum_fractions
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, E4M3FN, E5M2, FP16, FP32, FP64, Format
from residlab.precision.rounding import rounded
from residlab.precision.softmax import cast_weights, softmax, softmax_steps
from residlab.theory import softmax as theory

VARIANTS = ("shifted", "unshifted", "division_free")
formats = st.sampled_from([BF16, FP16, E4M3FN, E5M2, FP32, Format.of(5), Format.of(12)])


def exactly(function: Any, x: float, fmt: Format) -> float:
    """Round exp or log of a number, known to 60 digits, once."""
    if not math.isfinite(x):
        return {-math.inf: 0.0}.get(x, x)
    with mpmath.workdps(60):
        value = function(mpmath.mpf(x))
        sign, mantissa, exponent, _ = value._mpf_
        return round_fraction((-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** int(exponent), fmt)


def one_by_one(logits: list[float], fmt: Format, order: Order, variant: str) -> list[float]:
    """Softmax as the variants are worded, in fractions."""

    def fl(x: Fraction) -> float:
        return round_fraction(x, fmt)

    x = [fl(Fraction(v)) for v in logits]
    top = max(x)
    shift = 0.0 if variant == "unshifted" else top
    e = [exactly(mpmath.exp, fl(Fraction(v) - Fraction(shift)), fmt) for v in x]
    total = sum_fractions([Fraction(v) for v in e], fmt, order)
    if variant != "division_free":
        return [fl(Fraction(v) / Fraction(total)) for v in e]
    f = fl(Fraction(top) + Fraction(exactly(mpmath.log, total, fmt)))
    return [exactly(mpmath.exp, fl(Fraction(v) - Fraction(f)), fmt) for v in x]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.floats(-4, 4, width=32), st.integers(-5, 4).map(float)), min_size=1, max_size=9),
    formats,
    st.sampled_from([RECURSIVE, PAIRWISE, blocked(3)]),
    st.sampled_from(VARIANTS),
)
def test_each_operation_is_rounded_once(
    backend: Any, logits: list[float], fmt: Format, order: Order, variant: Any
) -> None:
    x = torch.tensor(logits, dtype=torch.float64)
    result = softmax(x, fmt, order=order, variant=variant, backend=backend)
    assert result.tolist() == one_by_one(logits, fmt, order, variant)


@pytest.mark.parametrize("fmt", [BF16, FP16, E4M3FN])
def test_exponentials_of_all_negative_numbers_are_rounded_right(fmt: Format) -> None:
    """Every number of 8 bits, one in 17 of those of 16, whose exponential is not 0 or 1 whatever is done."""
    if fmt is BF16:
        x = (torch.arange(0x8000, 0xFFFF, 17).to(torch.int32) << 16).view(torch.float32).double()
    elif fmt is FP16:
        x = torch.arange(0x8000, 0xFC00, 17).to(torch.uint16).view(torch.float16).double()
    else:
        x = torch.arange(0x80, 0xFF).to(torch.uint8).view(torch.float8_e4m3fn).double()
    x = x[(x > -95) & (x < -(2.0**-12))]
    got = rounded(torch.exp(x), fmt)
    assert len(x) > 50
    assert got.tolist() == [exactly(mpmath.exp, value, fmt) for value in x.tolist()]


def rows(data: st.DataObject, fmt: Format, least: float, most: float) -> Tensor:
    spread = data.draw(st.sampled_from((0.1, 1.0, 4.0)))
    seed, keys = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 80))
    x = spread * torch.randn(4, keys, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[1, 0] += data.draw(st.floats(0, 12))  # a sink, first or last
    x[2, -1] += data.draw(st.floats(0, 12))
    x = rounded(x.clamp(least, most), fmt)
    x[3] = torch.where(torch.arange(keys) % 3 == 1, -torch.inf, x[3])
    return x


@settings(max_examples=120, deadline=None)
@given(st.data(), formats, st.sampled_from([RECURSIVE, PAIRWISE]), st.sampled_from(VARIANTS))
def test_no_weight_leaves_its_enclosure(data: st.DataObject, fmt: Format, order: Order, variant: Any) -> None:
    """Every format, order and algorithm; sums below 80 e and logits below 1.5 where they are not shifted."""
    x = rows(data, fmt, -20, 1.5 if variant == "unshifted" else 30)
    result = softmax(x, fmt, order=order, variant=variant)
    low, high = theory.enclosure(x, fmt.u, tiny=fmt.smallest_subnormal / 2, order=order.name, variant=variant)
    assert np.all(result.numpy() >= low * (1 - 1e-12))
    assert np.all(result.numpy() <= high * (1 + 1e-12))
    true = theory.softmax(x)
    assert np.all((low <= true * (1 + 1e-12)) & (true <= high * (1 + 1e-12)))


def test_without_the_underflow_term_the_bound_fails_in_fp16() -> None:
    """Subnormal weights: far more than the first-order bound; the enclosure with tiny holds."""
    x = rounded(torch.linspace(-16.5, -15, 50, dtype=torch.float64), FP16)
    x[0] = 0.0
    true, got = theory.softmax(x), softmax(x, FP16).numpy()
    relative = np.abs(got / true - 1)
    bound = theory.first_order_bound(x, FP16.u, theory.absorption_bound(true, FP16.u))
    assert (relative / bound).max() > 20
    low, high = theory.enclosure(x, FP16.u, tiny=FP16.smallest_subnormal / 2)
    assert np.all((got >= low) & (got <= high))
    low, high = theory.enclosure(x, FP16.u)
    assert np.any((got < low) | (got > high))


def test_division_free_pays_for_the_offset() -> None:
    """u |f|: a thousand units at offset 1000, where the two others have a few."""
    x = rounded(1000 + torch.randn(64, 40, generator=torch.Generator().manual_seed(0)), FP32)
    true = theory.softmax(x)
    errors = {v: np.abs(softmax(x, FP32, variant=v).numpy() / true - 1).max(-1) / FP32.u for v in VARIANTS[::2]}
    assert errors["shifted"].max() < 20
    assert np.median(errors["division_free"]) > 100
    assert errors["division_free"].max() <= 1000 + 60


def test_masks(backend: Any) -> None:
    """A mask is as though the keys were not there; a row without any is zeros; -inf is a mask."""
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    for variant in VARIANTS:
        s = softmax(x, BF16, mask=causal, variant=variant, backend=backend)
        for query in range(6):
            alone = softmax(x[..., query, : query + 1], BF16, variant=variant, backend=backend)
            assert torch.equal(s[..., query, : query + 1], alone)
            assert not s[..., query, query + 1 :].any()
        assert torch.equal(s, softmax(x.masked_fill(~causal, -torch.inf), BF16, variant=variant, backend=backend))
        nothing = softmax(x, FP16, mask=torch.zeros(6, dtype=torch.bool), variant=variant, backend=backend)
        assert nothing.shape == x.shape
        assert not nothing.any()
    hidden = x.clone()
    hidden[..., -1] = torch.nan
    kept = torch.arange(6) < 5
    assert torch.equal(softmax(hidden, BF16, mask=kept)[..., :5], softmax(x[..., :5], BF16))
    assert softmax(torch.tensor([1.0, torch.nan]), BF16).isnan().all()
    assert softmax(torch.tensor([1.0, torch.inf]), BF16).isnan().any()


def test_overflow() -> None:
    x = torch.tensor([7.0, 12.0, 90.0])
    assert [math.isnan(v) for v in softmax(x, FP16, variant="unshifted").tolist()] == [False, True, True]
    assert softmax(x, E4M3FN, variant="unshifted").tolist() == [1, 1, 1]  # saturated, and no sign of it
    assert softmax(-x - 20, FP16, variant="unshifted").isnan().all()  # 0/0
    assert softmax(x, FP16).tolist() == [0, 0, 1]
    many = torch.zeros(70_000)
    assert softmax(many, FP16, order=PAIRWISE)[0] == 0  # a sum of infinity
    assert softmax(many, FP16)[0] == 2.0**-11  # one that stops at 1/u
    assert softmax_steps(torch.zeros(1000), E4M3FN, order=PAIRWISE).total == 448


def test_steps_dtypes_and_float64() -> None:
    x = torch.randn(5, 20, generator=torch.Generator().manual_seed(2))
    for dtype in (torch.float32, torch.float64):
        steps = softmax_steps(x.to(dtype), BF16)
        assert {part.dtype for part in steps} == {dtype}
        assert torch.equal(steps.weights, softmax(x.to(dtype), BF16))
        assert torch.equal(steps.weights, rounded(steps.terms / steps.total[:, None], BF16))
        assert torch.equal(softmax(x.to(dtype), Format.of(8)), softmax(x.to(dtype), BF16))
    torch.testing.assert_close(softmax(x.double(), FP64), x.double().softmax(-1), rtol=1e-14, atol=0)
    torch.testing.assert_close(softmax(x, FP32), x.softmax(-1), rtol=2e-6, atol=0)
    assert not softmax(x.requires_grad_(), BF16).requires_grad


def test_the_order_is_that_of_the_keys() -> None:
    x = torch.zeros(400)
    x[0] = 5.0
    first, last = (softmax(v, BF16).max() for v in (x, x.flip(0)))
    exact = float(theory.softmax(x).max())
    assert abs(last - exact) < abs(first - exact) / 2
    assert first > exact  # the sum is too small


def test_stochastic_rounding_is_reproducible_and_unbiased() -> None:
    x = torch.randn(12, generator=torch.Generator().manual_seed(3)).double().expand(4000, 12)
    s = softmax(x, BF16, mode="stochastic", seed=5)
    assert torch.equal(s, softmax(x, BF16, mode="stochastic", seed=5))
    assert not torch.equal(s, softmax(x, BF16, mode="stochastic", seed=6))
    drift = (s.mean(0) / x[0].softmax(0) - 1).abs().max()
    assert drift < 5 * float((s.std(0) / s.mean(0)).max()) / 4000**0.5 + 4 * BF16.u**2
    assert s.unique(dim=0).shape[0] > 100
    generator = torch.Generator().manual_seed(0)
    one, two = (softmax(x, BF16, mode="stochastic", seed=generator) for _ in range(2))
    assert not torch.equal(one, two)


def test_casts_underflow_behind_a_sink_and_not_in_front_of_it() -> None:
    x = torch.full((128,), -8.0)
    x[0] = 0.0
    true = torch.from_numpy(theory.softmax(x)).float()
    plain = cast_weights(x, E4M3FN)
    assert not plain[1:].any()
    assert torch.equal(plain[:1], true[:1])
    for kept in (cast_weights(x, E4M3FN, last_first=True, block=32), cast_weights(x, E4M3FN, scale=256.0)):
        assert torch.count_nonzero(kept) >= 97
        torch.testing.assert_close(kept[kept > 0], true[kept > 0], rtol=E4M3FN.u, atol=0)
    assert cast_weights(x, E4M3FN, scale=256.0).all()
    sunk = cast_weights(x, E4M3FN, last_first=True, block=32)[:32]
    assert not sunk[1:].any()  # in the sink's own block nothing helps


@pytest.mark.parametrize("last_first", [False, True])
def test_a_cast_to_a_fine_format_is_softmax(last_first: bool) -> None:
    x = 5 * torch.randn(3, 7, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mask = torch.rand(3, 7, 100, generator=torch.Generator().manual_seed(5)) < 0.7
    mask[0, 0] = False
    for block in (1, 7, 64, 100, 1000):
        got = cast_weights(x, FP64, mask=mask, block=block, last_first=last_first, scale=3.0)
        np.testing.assert_allclose(got, theory.softmax(x.masked_fill(~mask, -torch.inf)), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax(torch.ones(3), BF16, variant="fast"), "variant must be one of shifted, unshifted"),  # type: ignore[arg-type]
        (lambda: softmax(torch.ones(()), BF16), r"logits must have shape \(..., N\), N >= 1; got \(\)"),
        (lambda: softmax(torch.ones(2, 0), BF16), r"logits must have shape \(..., N\), N >= 1; got \(2, 0\)"),
        (lambda: softmax(torch.ones(3).half(), BF16), "logits must be of dtype float32 or float64; got float16"),
        (lambda: softmax(torch.ones(3), FP64), "float32 does not hold every number of fp64"),
        (lambda: softmax(torch.ones(3).double(), Format.of(30)), r"t <= 25, or fp64 in mode nearest; got t30"),
        (lambda: softmax(torch.ones(3), BF16, mode="up"), "mode nearest or stochastic; got 'up'"),
        (lambda: softmax(torch.ones(3), BF16, mode="stochastic"), "needs a seed"),
        (lambda: softmax(torch.ones(3), BF16, seed=1), "takes no seed"),
        (lambda: softmax(torch.ones(3), BF16, mask=torch.ones(3)), "mask must be of dtype bool"),
        (
            lambda: softmax(torch.ones(3), BF16, mask=torch.ones(2, dtype=torch.bool)),
            r"broadcast .* \(3,\); got \(2,\)",
        ),
        (lambda: cast_weights(torch.ones(3), E4M3FN, scale=0), "scale must be finite and > 0; got 0"),
        (lambda: cast_weights(torch.ones(3), E4M3FN, block=0), "block must be a whole number >= 1; got 0"),
        (lambda: cast_weights(torch.ones(3), E4M3FN, block=2.5), r"block must be a whole number >= 1; got 2\.5"),  # type: ignore[arg-type]
        (lambda: cast_weights(torch.ones(3), E4M3FN, block=True), "block must be a whole number >= 1; got True"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        call()
