"""The operators as fused Triton kernels for CUDA tensors of 16 and 32 bits: each row is read once a direction.

Forward, one program a row. Backward, a few programs a multiprocessor, each of which walks through its share of the rows
and keeps its own sums for gamma, beta and the scalar; torch adds them up. As in ``compiled.cpp``, every operator is
``y = gamma t + beta`` with ``t = a x`` or ``tanh(a x)``, and every gradient ``dL/dx = a u + c x + e``, where
``u = dL/dy gamma dt/d(a x)`` and the numbers ``c`` and ``e`` of a row carry what flows through its statistics.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from .fused import FusedOperators, Norm
from .rational_tanh import LONG, SHORT

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "backend 'triton' needs Triton (Linux): in a clone of residlab, python -m pip install -e '.[triton]'; "
        "or use backend='reference'"
    ) from error

_WIDEST = 1 << 16  # entries of a row that one program holds
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


RMS = tl.constexpr(int(Norm.RMS))
DYT = tl.constexpr(int(Norm.DYT))
MEASURED_CENTRED = tl.constexpr(int(Norm.MEASURED_CENTRED))
GIVEN = tl.constexpr(int(Norm.GIVEN))
GIVEN_CENTRED = tl.constexpr(int(Norm.GIVEN_CENTRED))

LONG_P1, LONG_P2 = (tl.constexpr(value) for value in LONG.numerator[1:])
LONG_Q1, LONG_Q2, LONG_Q3 = (tl.constexpr(value) for value in LONG.denominator[1:])
LONG_BOUND = tl.constexpr(LONG.bound)
SHORT_P1, SHORT_P2, SHORT_P3 = (tl.constexpr(value) for value in SHORT.numerator[1:])
SHORT_Q1, SHORT_Q2, SHORT_Q3 = (tl.constexpr(value) for value in SHORT.denominator[1:])
SHORT_BOUND = tl.constexpr(SHORT.bound)


@triton.jit
def _clamp(x, bound):  # type: ignore[no-untyped-def]
    x = tl.where(x > bound, bound, x)  # a comparison with NaN is false, so NaN passes
    return tl.where(x < -bound, -bound, x)


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x, SHORTER: tl.constexpr):  # type: ignore[no-untyped-def]
    if SHORTER:
        x = _clamp(x, SHORT_BOUND)
        u = x * x
        p = ((SHORT_P3 * u + SHORT_P2) * u + SHORT_P1) * u
        q = ((SHORT_Q3 * u + SHORT_Q2) * u + SHORT_Q1) * u
        y = (x + x * p) / (1 + q)
    else:
        x = _clamp(x, LONG_BOUND)
        u = x * x
        p = (LONG_P2 * u + LONG_P1) * u
        q = ((LONG_Q3 * u + LONG_Q2) * u + LONG_Q1) * u
        above = x + x * p
        y = (above + above * q) / (q * (q + 2) + above * (0.25 * above) + 1)
    return _clamp(y, 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x_pointer,
    residual_pointer,
    gamma_pointer,
    beta_pointer,
    scalar_pointer,
    spread_pointer,
    mean_pointer,
    y_pointer,
    z_pointer,
    width,
    kappa,
    eps,
    NORM: tl.constexpr,
    SHORTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    entries = row * width + columns
    x = tl.load(x_pointer + entries, mask=inside, other=0.0).to(tl.float32)
    if residual_pointer is not None:
        x += tl.load(residual_pointer + entries, mask=inside, other=0.0).to(tl.float32)
        stored = x.to(z_pointer.dtype.element_ty)
        tl.store(z_pointer + entries, stored, mask=inside)
        x = stored.to(tl.float32)  # what is normalised is the stored sum, as in the reference
    if NORM == DYT:
        a = tl.load(scalar_pointer)
    else:
        mean = 0.0
        if NORM >= GIVEN:
            spread = tl.load(spread_pointer + row)
            if NORM == GIVEN_CENTRED:
                mean = tl.load(mean_pointer + row)
        else:
            deviation = x
            if NORM == MEASURED_CENTRED:
                mean = tl.sum(x, axis=0) / width
                tl.store(mean_pointer + row, mean)
                deviation = tl.where(inside, x - mean, 0.0)
            spread = tl.sum(deviation * deviation, axis=0) / width
            tl.store(spread_pointer + row, spread)
        if NORM == RMS:
            a = 1.0 / tl.sqrt(spread + eps)
        else:
            a = tl.load(scalar_pointer) / (kappa * tl.sqrt(spread + eps) + tl.abs(mean))
    y = a * x
    if NORM != RMS:
        y = _tanh(y, SHORTER)
    y *= tl.load(gamma_pointer + columns, mask=inside, other=0.0)
    if beta_pointer is not None:
        y += tl.load(beta_pointer + columns, mask=inside, other=0.0)
    tl.store(y_pointer + entries, y.to(y_pointer.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    x_pointer,
    gamma_pointer,
    scalar_pointer,
    spread_pointer,
    mean_pointer,
    grad_y_pointer,
    grad_z_pointer,
    from_spread_pointer,
    from_mean_pointer,
    grad_x_pointer,
    gamma_sums_pointer,
    beta_sums_pointer,
    scalar_sums_pointer,
    grad_spread_pointer,
    grad_mean_pointer,
    rows,
    width,
    kappa,
    eps,
    NORM: tl.constexpr,
    SHORTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    gamma_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    beta_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    scalar_sum = 0.0
    scalar = 1.0
    if NORM != RMS:
        scalar = tl.load(scalar_pointer)
    gamma = tl.load(gamma_pointer + columns, mask=inside, other=0.0)
    for row in range(program, rows, tl.num_programs(0)):
        entries = row * width + columns
        x = tl.load(x_pointer + entries, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_y_pointer + entries, mask=inside, other=0.0).to(tl.float32)
        mean = 0.0
        a = scalar
        by_scalar = 1.0
        by_spread = 0.0
        by_mean = 0.0
        if NORM != DYT:
            spread = tl.load(spread_pointer + row)
            if mean_pointer is not None:
                mean = tl.load(mean_pointer + row)
            root = tl.sqrt(spread + eps)
            if NORM == RMS:
                a = 1.0 / root
                by_spread = -0.5 * a * a * a
            else:
                bound = kappa * root + tl.abs(mean)
                a = scalar / bound
                by_scalar = 1.0 / bound
                by_spread = -a * kappa / (2.0 * root * bound)
                by_mean = -a / bound * tl.where(mean > 0, 1.0, tl.where(mean < 0, -1.0, 0.0))
        t = a * x
        slope = grad * gamma
        if NORM != RMS:
            t = _tanh(t, SHORTER)
            slope -= slope * t * t
        gamma_sum += grad * t
        beta_sum += grad
        total = tl.sum(slope * x, axis=0)
        scalar_sum += total * by_scalar
        grad_spread = total * by_spread
        grad_mean = total * by_mean
        grad_x = a * slope
        if NORM >= GIVEN:
            if grad_spread_pointer is not None:
                tl.store(grad_spread_pointer + row, grad_spread)
            if grad_mean_pointer is not None:
                tl.store(grad_mean_pointer + row, grad_mean)
        elif NORM != DYT:
            if from_spread_pointer is not None:
                grad_spread += tl.load(from_spread_pointer + row)
            if from_mean_pointer is not None:
                grad_mean += tl.load(from_mean_pointer + row)
            c = 2.0 * grad_spread / width
            grad_x += c * x
            if NORM == MEASURED_CENTRED:
                grad_x += grad_mean / width - c * mean
        if grad_z_pointer is not None:
            grad_x += tl.load(grad_z_pointer + entries, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x_pointer + entries, grad_x.to(grad_x_pointer.dtype.element_ty), mask=inside)
    sums = program * width + columns
    if gamma_sums_pointer is not None:
        tl.store(gamma_sums_pointer + sums, gamma_sum, mask=inside)
    if beta_sums_pointer is not None:
        tl.store(beta_sums_pointer + sums, beta_sum, mask=inside)
    if scalar_sums_pointer is not None:
        tl.store(scalar_sums_pointer + program, scalar_sum)


def launch(norm: Norm, *, backward: bool, kappa: float, eps: float, **tensors: Tensor | None) -> None:
    """Launch one operator on a CUDA device; see `residlab.kernels.fused`.

    Raises
    ------
    ValueError
        For tensors of another device (outside Triton's interpreter), or rows of more than 65,536 entries.
    TypeError
        For float64.
    """
    x = tensors["x"]
    assert x is not None
    width = x.shape[-1]
    rows = x.numel() // width
    _check(x)
    if rows == 0:
        for name in ("grad_gamma", "grad_beta", "grad_scalar"):
            if (grad := tensors.get(name)) is not None:
                grad.zero_()
        return
    block = triton.next_power_of_2(width)
    options = {
        "NORM": int(norm),
        "SHORTER": x.dtype != torch.float32,
        "BLOCK": block,
        "num_warps": min(max(block // 256, 1), 16),
    }
    with torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext():
        if not backward:
            names = ("residual", "gamma", "beta", "scalar", "spread", "mean", "y", "z")
            _forward[(rows,)](x, *(tensors[name] for name in names), width, kappa, eps, **options)
            return
        programs = min(rows, _programs(x))
        sums: dict[str, Tensor | None] = {}
        for name in ("grad_gamma", "grad_beta", "grad_scalar"):
            grad = tensors[name]
            sums[name] = None if grad is None else grad.new_empty((programs, *grad.shape))
        names = ("gamma", "scalar", "spread", "mean", "grad_y", "grad_z", "grad_measured_spread", "grad_measured_mean")
        arguments = (tensors[name] for name in (*names, "grad_x"))
        per_token = (tensors["grad_spread"], tensors["grad_mean"])
        _backward[(programs,)](x, *arguments, *sums.values(), *per_token, rows, width, kappa, eps, **options)
        for name, parts in sums.items():
            if parts is not None:
                torch.sum(parts, 0, out=tensors[name])


OPERATORS = FusedOperators("triton", launch)


def _check(x: Tensor) -> None:
    if x.device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(f"backend 'triton' runs on CUDA tensors, x is on {x.device}; use 'auto'")
    if x.dtype not in _DTYPES:
        raise TypeError(f"backend 'triton' takes float32, bfloat16 and float16, got {x.dtype}; use 'reference'")
    if x.shape[-1] > _WIDEST:
        raise ValueError(f"backend 'triton' takes rows of at most {_WIDEST} entries, got {x.shape[-1]}")


def _programs(x: Tensor) -> int:
    if x.device.type != "cuda":
        return 3  # in the interpreter: several, so that their sums are tested
    return 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
