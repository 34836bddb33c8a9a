"""Products against exact fractions, bit for bit; carriers, orders and backends against each other; the error bound."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.precision.oracle import round_fraction, sum_fractions
from torch import Tensor

from residlab.errors import ResidlabError
from residlab.precision import matmul as module
from residlab.precision.accumulation import PAIRWISE, RECURSIVE, Order, blocked
from residlab.precision.formats import BF16, E4M3FN, E5M2, FP16, FP32, FP64, TF32, Format
from residlab.precision.matmul import matmul
from residlab.precision.rounding import rounded

ORDERS = [RECURSIVE, PAIRWISE, blocked(4)]
OPERANDS = [BF16, FP16, TF32, E4M3FN, E5M2, FP32, Format.of(5)]
ACCUMULATORS = [BF16, FP16, FP32, TF32, Format.of(4), Format.of(8), Format.of(22), Format.of(23)]
WIDE = [FP64, Format.of(40)]
entries = st.one_of(
    st.floats(-40, 40, width=32), st.builds(math.ldexp, st.integers(-255, 255).map(float), st.integers(-40, 1))
)


def draw(rows: int, columns: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * scale


def by_fractions(a: Tensor, b: Tensor, operands: Format, accumulator: Format, order: Order) -> list[list[float]]:
    def quantized(x: Tensor) -> list[list[Fraction]]:
        return [[Fraction(round_fraction(Fraction(v), operands)) for v in row] for row in x.tolist()]

    left, right = quantized(a), list(zip(*quantized(b), strict=True))
    return [
        [sum_fractions([x * y for x, y in zip(row, column, strict=True)], accumulator, order) for column in right]
        for row in left
    ]


@settings(max_examples=40)
@given(st.data(), st.sampled_from(OPERANDS), st.sampled_from(ACCUMULATORS + WIDE), st.sampled_from(ORDERS))
def test_products_are_those_of_fractions(
    backend: Any, data: st.DataObject, operands: Format, accumulator: Format, order: Order
) -> None:
    rows, inner, columns = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 11), st.integers(1, 2)))
    values = data.draw(st.lists(entries, min_size=inner * (rows + columns), max_size=inner * (rows + columns)))
    dtype = torch.float64 if accumulator in WIDE else torch.float32
    flat = torch.tensor(values, dtype=torch.float32).to(dtype)
    a, b = flat[: rows * inner].reshape(rows, inner), flat[rows * inner :].reshape(inner, columns)
    result = matmul(a, b, operands=operands, accumulator=accumulator, order=order, backend=backend)
    assert result.dtype == dtype
    assert result.tolist() == by_fractions(a, b, operands, accumulator, order)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("shape", [(1, 40, 1), (3, 40, 70), (33, 7, 64), (5, 1, 130)])
def test_tiles_threads_and_backends_agree(shape: tuple[int, int, int], order: Order) -> None:
    """Tiles of 64 columns and chunks of 32 rows, whole and not."""
    a, b = draw(shape[0], shape[1]), draw(shape[1], shape[2], seed=1)
    threads = torch.get_num_threads()
    for accumulator, mode, seed in [(BF16, "nearest", None), (FP32, "nearest", None), (FP16, "stochastic", 3)]:
        options: dict[str, Any] = {"operands": BF16, "accumulator": accumulator, "order": order, "mode": mode}
        expected = matmul(a, b, **options, seed=seed, backend="reference")
        try:
            for count in (1, 3):
                torch.set_num_threads(count)
                assert torch.equal(matmul(a, b, **options, seed=seed), expected)
        finally:
            torch.set_num_threads(threads)


def test_large_products_in_two_threads() -> None:
    a, b = draw(40, 64), draw(64, 80, seed=1)
    options: dict[str, Any] = {"operands": FP16, "accumulator": FP16, "order": blocked(16)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        result = matmul(a, b, **options)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(result, matmul(a, b, **options, backend="reference"))


@pytest.mark.parametrize("accumulator", [BF16, FP16, FP32, Format.of(8), Format.of(24)], ids=lambda fmt: fmt.name)
def test_the_carrier_is_a_matter_of_time_only(
    accumulator: Format, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = draw(6, 50, 3.0), draw(50, 9, 1e-3, seed=1)
    options: dict[str, Any] = {"operands": BF16, "accumulator": accumulator, "order": blocked(8), "backend": backend}
    short = matmul(a, b, **options)
    assert module._exact_in_float32(rounded(a, BF16), rounded(b, BF16), BF16)
    monkeypatch.setattr(module, "_exact_in_float32", lambda a, b, fmt: False)
    assert torch.equal(matmul(a, b, **options), short)


def test_products_that_float32_would_lose(backend: Any) -> None:
    """2^-75 squared is below float32's numbers, 2^70 squared above them."""
    tiny = torch.full((1, 4), 2.0**-75)
    assert (tiny @ tiny.T).item() == 0
    exact = matmul(tiny, tiny.T, operands=BF16, accumulator=FP32, order=PAIRWISE, backend=backend)
    assert exact.item() == 0  # every product is rounded to fp32 alone: half of its smallest number
    exact = matmul(
        tiny.double(), tiny.double().T, operands=BF16, accumulator=Format.of(8), order=PAIRWISE, backend=backend
    )
    assert exact.item() == 2.0**-148
    a, b = torch.tensor([[2.0**70, 2.0**-70, 2.0**70]]), torch.tensor([[2.0**70], [1.0], [-(2.0**70)]])
    result = matmul(a.double(), b.double(), operands=BF16, accumulator=Format.of(24), backend=backend)
    assert result.item() == 0.0
    result = matmul(a, b, operands=BF16, accumulator=FP32, backend=backend)
    assert result.item() == math.inf  # from the first term on


def test_when_float32_is_enough() -> None:
    ones = torch.ones(1, 1)
    assert module._exact_in_float32(ones * 2.0**-24, ones * 65504, FP16)
    assert module._exact_in_float32(ones * 2.0**-60, ones * 2.0**-60, BF16)
    assert not module._exact_in_float32(ones * 2.0**-70, ones * 2.0**-70, BF16)
    assert not module._exact_in_float32(ones * 2.0**62, ones * 2.0**62, BF16)
    assert not module._exact_in_float32(ones, ones, FP32)
    assert not module._exact_in_float32(ones * math.inf, ones, BF16)
    assert not module._exact_in_float32(ones * math.nan, ones, BF16)
    assert module._exact_in_float32(ones * 0, ones, BF16)


@pytest.mark.parametrize("fmt", [FP16, E4M3FN, E5M2], ids=lambda fmt: fmt.name)
def test_small_formats_always_multiply_exactly_in_float32(fmt: Format) -> None:
    least = 2 * (math.frexp(fmt.smallest_subnormal)[1] - 1)
    assert least >= -149
    assert 2 * fmt.t <= 24
    assert fmt.largest**2 < FP32.largest
    ends = torch.tensor([fmt.smallest_subnormal, fmt.largest, 1 + 2 * fmt.u])
    assert torch.equal((ends[:, None] * ends).double(), ends[:, None].double() * ends.double())


@settings(max_examples=100)
@given(st.data(), st.sampled_from(ORDERS), st.integers(2, 12), st.integers(2, 22))
def test_the_error_bound(data: st.DataObject, order: Order, operand_bits: int, accumulator_bits: int) -> None:
    """((1 + u_q)^2 (1 + n u_a) - 1) |W||x|, for every order, with n u_a > 1 too."""
    inner = data.draw(st.integers(1, 40))
    values = data.draw(st.lists(entries, min_size=2 * inner, max_size=2 * inner))
    a, b = torch.tensor(values, dtype=torch.float64).reshape(2, inner)
    operands, accumulator = Format.of(operand_bits), Format.of(accumulator_bits)
    result = matmul(a[None], b[:, None], operands=operands, accumulator=accumulator, order=order).item()
    products = [Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    bound = (1 + Fraction(operands.u)) ** 2 * (1 + inner * Fraction(accumulator.u)) - 1
    assert abs(Fraction(result) - sum(products)) <= bound * sum(map(abs, products))


def test_factors_with_the_negative_bit(backend: Any) -> None:
    a = torch.tensor([[1.1 + 2.1j]]).conj().imag
    assert a.is_neg()
    result = matmul(a, torch.ones(1, 1), operands=FP32, accumulator=FP32, backend=backend)
    assert result.item() == a.item() < 0


def test_batches_broadcast(backend: Any) -> None:
    a, b = torch.randn(3, 1, 4, 5), torch.randn(2, 5, 6)
    options: dict[str, Any] = {"operands": BF16, "accumulator": BF16, "backend": backend}
    result = matmul(a, b, **options)
    assert result.shape == (3, 2, 4, 6)
    assert torch.equal(result[1, 0], matmul(a[1, 0], b[0], **options))
    linear = matmul(a, b[1], **options)
    assert linear.shape == (3, 1, 4, 6)
    assert torch.equal(linear, result[:, 1:])
    assert matmul(a[:0], b, **options).shape == (0, 2, 4, 6)
    assert matmul(a[..., :0], b[:, :0], **options).tolist() == torch.zeros(3, 2, 4, 6).tolist()
    transposed = matmul(b.mT, a.mT, **options)
    assert torch.equal(transposed.mT, result)


def test_each_product_of_a_batch_has_its_own_random_bits() -> None:
    a, b = draw(20, 50), draw(50, 20, seed=1)
    options: dict[str, Any] = {"operands": BF16, "accumulator": Format.of(6), "mode": "stochastic"}
    batch = matmul(a.expand(2, 20, 50), b.expand(2, 50, 20), **options, seed=1)
    assert not torch.equal(batch[0], batch[1])
    assert torch.equal(batch, matmul(a.expand(2, 20, 50), b.expand(2, 50, 20), **options, seed=1, backend="reference"))
    assert not torch.equal(matmul(a, b, **options, seed=1), matmul(a, b, **options, seed=2))


def test_stochastic_products_are_unbiased() -> None:
    a, b = draw(1, 60).expand(4000, 60), draw(60, 3, seed=1)
    exact = (a[:1].double() @ b.double())[0]
    results = matmul(a, b, operands=FP32, accumulator=Format.of(6), mode="stochastic", seed=9).double()
    assert ((results.mean(0) - exact).abs() < 5 * results.std(0) / 4000**0.5).all()
    nearest = matmul(a[:1], b, operands=FP32, accumulator=Format.of(6)).double()[0]
    assert ((nearest - exact).abs() > 5 * results.std(0) / 4000**0.5).any()


M = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: matmul(M, M.T.double(), operands=BF16, accumulator=BF16), "got torch.float32 and torch.float64"),
        (lambda: matmul(M, M, operands=BF16, accumulator=BF16), r"got \(2, 3\) and \(2, 3\)"),
        (lambda: matmul(M[0], M.T, operands=BF16, accumulator=BF16), r"got \(3,\) and \(3, 2\)"),
        (lambda: matmul(M.double(), M.T.double(), operands=FP64, accumulator=FP64), r"t <= 26.*got fp64 \(t = 53\)"),
        (lambda: matmul(M, M.T, operands=BF16, accumulator=FP64), "float32 does not hold every number of fp64"),
        (lambda: matmul(M, M.T, operands=BF16, accumulator=BF16, mode="down"), "nearest or stochastic; got 'down'"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ResidlabError, match=message):
        call()
