"""Quantizers against torch's operator, against scalar definitions, and at the edges of the number formats."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.precision.oracle import round_fraction

from residlab.errors import ResidlabError
from residlab.precision.formats import FORMATS
from residlab.precision.quantization import Quantizer

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BITS = range(2, 17)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("clip", [1.0, 0.9])
def test_it_is_torchs_operator_to_the_bit(bits, dtype, clip):
    x, most = 3 * normal(64, 33, dtype=dtype), 2 ** (bits - 1) - 1
    x[0, 0] = 0.0
    zero = torch.tensor(0, dtype=torch.int32)
    tensor, row = Quantizer(bits, clip=clip), Quantizer(bits, over="row", clip=clip)
    step = tensor.peak(x).float() / most
    assert torch.equal(tensor(x), torch.fake_quantize_per_tensor_affine(x, step, zero, -most, most))
    steps = row.peak(x).float() / most
    other = torch.fake_quantize_per_channel_affine(x, steps, zero.expand(64), 0, -most, most)
    assert torch.equal(row(x), other)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("pattern", range(2))
def test_every_float16_is_what_torch_makes_of_it(bits, pattern):
    """All finite values of float16 and of bfloat16 at once, with a peak of 6."""
    dtype = (torch.float16, torch.bfloat16)[pattern]
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    most = 2 ** (bits - 1) - 1
    step = torch.tensor(6.0) / most
    # Beyond 2**63 steps torch's operator overflows, and ours does not.
    x = x[x.isfinite() & (x.float().abs() < 2.0**40)]
    zero = torch.tensor(0, dtype=torch.int32)
    assert torch.equal(
        Quantizer(bits)(x, torch.tensor(6.0)), torch.fake_quantize_per_tensor_affine(x, step, zero, -most, most)
    )


@pytest.mark.parametrize("bits", BITS)
def test_float64_is_torchs_where_torchs_step_is_exact(bits):
    x, most = 3 * normal(500, dtype=torch.float64), 2 ** (bits - 1) - 1
    ours = Quantizer(bits)(x, torch.tensor(most / 64, dtype=torch.float64))
    assert torch.equal(ours, torch.fake_quantize_per_tensor_affine(x, 1 / 64, 0, -most, most))


@given(
    arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e6, 1e6, allow_subnormal=False)),
    st.integers(2, 16),
)
def test_float64_against_exact_rationals(values, bits):
    x, most = torch.from_numpy(values), 2 ** (bits - 1) - 1
    peak = Fraction(float(x.abs().max()))
    got = Quantizer(bits)(x)
    if not peak:
        assert torch.equal(got, x)
        return
    for value, rounded in zip(values, got.tolist(), strict=True):
        ratio = Fraction(float(value)) * most / peak
        nearest = {round(ratio)}
        if abs(abs(ratio - math.floor(ratio)) - Fraction(1, 2)) < Fraction(1, 10**9):
            nearest = {math.floor(ratio), math.ceil(ratio)}
        assert min(abs(rounded - float(level * peak / most)) for level in nearest) <= 1e-12 * float(peak)


@given(
    arrays(np.float32, (3, 4), elements=st.floats(-1000, 1000, width=32)),
    st.one_of(st.integers(2, 16), st.sampled_from(("e4m3fn", "e5m2"))),
    st.sampled_from(("tensor", "row")),
)
def test_odd_bounded_idempotent_and_within_half_a_step(values, kind, over):
    x, quantizer = torch.from_numpy(values), Quantizer(kind, over)
    y, peak = quantizer(x), quantizer.peak(x)
    assert torch.equal(quantizer(-x), -y)
    reach = peak[:, None] if over == "row" else peak
    assert torch.all(y.abs() <= reach * (1 + 1e-6))
    torch.testing.assert_close(quantizer(y), y, rtol=1e-5, atol=1e-30)
    if isinstance(kind, int):
        step = reach.double() / (2 ** (kind - 1) - 1)
        assert torch.all((y.double() - x.double()).abs() <= step / 2 * (1 + 1e-6) + 2e-7 * x.double().abs())


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("over", ["tensor", "row"])
@pytest.mark.parametrize("scale", [1e-38, 1e-6, 1.0, 3e4, 1e37])
def test_fp8_of_a_narrow_tensor_is_that_of_the_same_numbers_in_float64(kind, dtype, over, scale):
    x = (torch.randn(16, 33, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale).to(dtype)
    x = x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    quantizer = Quantizer(kind, over)
    expected = quantizer(x.double(), quantizer.peak(x).double()).to(dtype)
    assert torch.equal(quantizer(x), expected)


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2"])
def test_fp8_is_the_nearest_of_all_code_points(kind):
    dtype = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    points = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype).double()
    points = torch.unique(points[points.isfinite()])
    x = normal(2000, seed=3)
    x[:200] *= 1e-4  # subnormals of the format
    scale = x.abs().max().double() / points.max()
    distance = (x.double()[:, None] - points * scale).abs()
    got = (Quantizer(kind)(x).double()[:, None] - points * scale).abs()
    assert torch.all(got.min(dim=1).values <= 1e-7 * x.abs().max())  # it is a point of the format
    chosen = distance[torch.arange(len(x)), got.argmin(dim=1)]
    assert torch.all(chosen <= distance.min(dim=1).values * (1 + 1e-6))


@pytest.mark.parametrize("kind", ["e4m3fn", "e5m2"])
def test_fp8_of_float64_is_rounded_once(kind):
    """Every tie of the format, and what is nearer to it than float32 can tell; the peak is the largest number."""
    fmt = FORMATS[kind]
    points = torch.arange(128, dtype=torch.uint8).view(getattr(torch, f"float8_{kind}")).double()
    points = points[points.isfinite()]
    ties = (points[1:] + points[:-1]) / 2
    x = torch.cat((points.flip(0), ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40)))
    expected = [round_fraction(Fraction(value), fmt) for value in x.tolist()]
    assert Quantizer(kind)(x).tolist() == expected
    assert Quantizer(kind)(-x).tolist() == [-value for value in expected]
    clipped = Quantizer(kind)(torch.tensor([math.inf, 1e300, -1e300]).double(), torch.tensor(1.0), finite=False)
    assert clipped.tolist() == [1, 1, -1]


def test_rows_are_tensors_of_their_own():
    x = normal(2, 5, 7) * torch.tensor([1.0, 10.0, 0.0, 1e-3, 1e4])[:, None]
    for kind in (4, "e4m3fn"):
        rows = Quantizer(kind, "row")(x)
        for i in range(2):
            for j in range(5):
                assert torch.equal(rows[i, j], Quantizer(kind)(x[i, j]))


def test_clipping_takes_the_quantile_by_rank():
    x = torch.tensor([1.0, -2.0, 3.0, -4.0, 100.0])
    assert Quantizer(4, clip=0.8).peak(x) == 4
    assert Quantizer(4, clip=0.61).peak(x) == 4
    assert Quantizer(4, clip=0.6).peak(x) == 3
    assert Quantizer(4, clip=0.8)(x)[-1] == 4
    sparse = torch.tensor([0.0, 0.0, 0.0, 5.0])
    assert Quantizer(4, clip=0.5).peak(sparse) == 5  # a peak of 0 would leave nothing
    assert Quantizer(4, clip=0.5, over="row").peak(torch.stack((sparse, sparse + 1))).tolist() == [5, 1]
    half = normal(64, dtype=torch.float16)
    assert Quantizer(4, clip=0.9).peak(half) == half.float().abs().kthvalue(58).values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [2, 8, "e4m3fn"])
@pytest.mark.parametrize("over", ["tensor", "row"])
def test_zeros_and_nothing(dtype, kind, over):
    quantizer = Quantizer(kind, over)
    zeros = torch.zeros(3, 4, dtype=dtype)
    assert torch.equal(quantizer(zeros), zeros)
    for shape in ((0,), (0, 4), (4, 0)):
        empty = torch.zeros(shape, dtype=dtype)
        assert quantizer(empty).shape == shape
        assert quantizer(empty).dtype == dtype
        assert not quantizer.peak(empty).any()
    assert not quantizer.peak(zeros).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [2, 4, 8, 16, "e4m3fn"])
@pytest.mark.parametrize("over", ["tensor", "row"])
@pytest.mark.parametrize("which", ["tiny", "huge"])
def test_both_ends_of_each_format(dtype, kind, over, which):
    """Numbers at the ends of a dtype are rounded as those of ordinary size, up to the dtype's own granularity."""
    info = torch.finfo(dtype)
    x = normal(4, 16, dtype=torch.float64).clamp(-3, 3)
    x[:, 0] = 3.0
    wanted = Quantizer(kind, over)(x)
    grain = info.tiny * info.eps
    scale = 2.0 ** round(math.log2(grain) + 11) if which == "tiny" else info.max / 3.01
    y = Quantizer(kind, over)((x * scale).to(dtype)).double() / scale
    assert y.isfinite().all()
    loose = info.eps + grain / scale if which == "tiny" else info.eps
    steps = 1 if kind == "e4m3fn" else 3 / (2 ** (kind - 1) - 1)
    close = (y - wanted).abs() <= 3 * loose
    # Entries that were perturbed across the middle between two levels may take the other one.
    assert close.double().mean() > 0.9
    assert torch.all((y - wanted).abs() <= steps + 3 * loose)


def test_gradients_go_straight_through_where_nothing_is_clipped():
    for dtype in DTYPES:
        x = normal(100, dtype=dtype).requires_grad_()
        y = Quantizer(4)(x, torch.tensor(1.0))
        assert not torch.equal(y, x)
        y.backward(torch.arange(100.0).to(dtype))
        # What is within half a step of the range counts as inside, as in torch's operator.
        inside = x.detach().abs() <= 1 + 0.5 / 7
        assert torch.equal(x.grad, torch.arange(100.0).to(dtype) * inside)
        assert 0 < inside.sum() < 100
    x = normal(100).requires_grad_()
    own = torch.fake_quantize_per_tensor_affine(x, 1 / 7, 0, -7, 7)
    (theirs,) = torch.autograd.grad(own.sum(), x)
    (ours,) = torch.autograd.grad(Quantizer(4)(x, torch.tensor(1.0)).sum(), x)
    assert torch.equal(ours, theirs)
    (all_inside,) = torch.autograd.grad(Quantizer("e4m3fn", "row")(x).sum(), x)
    assert all_inside.eq(1).all()
    (some,) = torch.autograd.grad(Quantizer("e4m3fn")(x, torch.tensor(1.0)).sum(), x)
    assert torch.equal(some, (x.detach().abs() <= 1).float())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [8, "e5m2"])
def test_what_is_not_finite_is_refused(bad, kind):
    x = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(ResidlabError, match="NaN or infinity among its 3 entries"):
        Quantizer(kind)(x)
    with pytest.raises(ResidlabError, match="NaN or infinity"):
        Quantizer(kind, clip=0.5)(x)
    if not math.isnan(bad):
        clipped = Quantizer(kind)(x, torch.tensor(2.0), finite=False)
        assert clipped.tolist() == [pytest.approx(1, rel=0.01), math.copysign(2, bad), 2]


@pytest.mark.parametrize("bits", [1, 17, 0, -3, 4.0, True, None, "e3m4"])
def test_bits_out_of_range(bits):
    with pytest.raises(ResidlabError, match=r"from 2 to 16, or a format: e4m3fn, e5m2; got"):
        Quantizer(bits)


def test_other_refusals():
    with pytest.raises(ResidlabError, match="over must be one of tensor, row; got 'channel'"):
        Quantizer(4, over="channel")
    for clip in (0, 1.5, math.nan, "0.5"):
        with pytest.raises(ResidlabError, match="clip must be in"):
            Quantizer(4, clip=clip)
    with pytest.raises(ResidlabError, match=r"float64; got torch\.int64"):
        Quantizer(4)(torch.arange(3))
    for refused in (Quantizer(4, "row"), Quantizer(4, "row").peak, Quantizer("e5m2", "row", 0.5)):
        with pytest.raises(ResidlabError, match=r"x must have shape \(\.\.\., d\), to have rows; got \(\)"):
            refused(torch.tensor(3.0))
    assert Quantizer(4)(torch.tensor(3.0)) == 3
    for peak in (torch.tensor(-1.0), torch.tensor(math.inf), torch.ones(2)):
        with pytest.raises(ResidlabError, match=r"peak must be finite, >= 0, of shape \(\) or \(3,\)"):
            Quantizer(4)(torch.ones(3, 4), peak)


def test_names():
    assert str(Quantizer(4)) == "4"
    assert str(Quantizer("e4m3fn", "row", 0.999)) == "e4m3fn row clip=0.999"


@settings(max_examples=200)
@given(st.integers(2, 10), st.floats(0.1, 50), st.integers(0, 10**6))
def test_a_larger_peak_than_needed_is_never_exact_by_accident(bits, scale, seed):
    """Levels of a fixed peak are multiples of its step, whatever the data."""
    x = normal(20, seed=seed, dtype=torch.float64)
    most = 2 ** (bits - 1) - 1
    y = Quantizer(bits)(x, torch.tensor(scale, dtype=torch.float64))
    level = y * most / scale
    assert torch.allclose(level, level.round(), rtol=0, atol=1e-9)
    assert level.abs().max() <= most + 1e-9
