"""Which backend runs, what is refused, and what surrounds the operators in a model."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from residlab import kernels
from residlab.kernels import TokenStatistic

X = torch.linspace(-3, 3, 24).reshape(2, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "cuda"}, "one of auto, reference, compiled, triton, got 'cuda'"),
        ({"eps": -1.0}, r"eps must be >= 0, got -1\.0"),
        ({"eps": float("nan")}, "eps must be >= 0"),
        ({"kappa": 0.0}, r"kappa must be > 0, got 0\.0"),
        ({"gamma": torch.ones(3)}, r"gamma must have shape \(12,\), got \(3,\)"),
        ({"lam": torch.ones(1)}, r"lam must be a float or a tensor of shape \(\), got shape \(1,\)"),
        ({"x": torch.ones(())}, r"x must have shape \(..., d\) with d >= 1, got \(\)"),
        ({"x": torch.ones(2, 0)}, r"got \(2, 0\)"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.bhyt_exact(**{"x": X, "gamma": None, "lam": 2.0, **arguments})


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point dtype, got torch\.int64"):
        kernels.rms_norm(torch.ones(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("spread", "arguments", "message"),
    [
        ((2, 1), {"centred": True}, r"statistic\.mean is None"),
        ((2,), {}, r"statistic.spread must have shape \(2, 1\), got \(2,\)"),
        ((2, 1), {"increment": torch.ones(3, 1)}, r"increment must broadcast to shape \(2, 1\), got \(3, 1\)"),
        ((2, 1), {"increment": torch.ones(1, 2, 1)}, "increment must broadcast"),
        ((2, 1), {"residual": torch.ones(12)}, r"residual must have the shape of x, \(2, 12\), got \(12,\)"),
    ],
)
def test_wrong_statistics_are_named(spread: tuple[int, ...], arguments: dict[str, Any], message: str) -> None:
    increment = arguments.pop("increment", 0.0)
    with pytest.raises(ValueError, match=message):
        kernels.bhyt_approximate(X, None, 2.0, TokenStatistic(torch.ones(spread), None), increment, **arguments)


def test_auto_is_the_reference_on_a_cpu() -> None:
    assert torch.equal(kernels.rms_norm(X), kernels.rms_norm(X, backend="reference"))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, residlab.kernels; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="layer_norm"):
        _ = kernels.layer_norm
    assert {"rms_norm", "bhyt_exact"} <= set(dir(kernels))


def test_meta_tensors_have_shapes(backend: str) -> None:
    y, statistic = kernels.bhyt_exact(X.to("meta"), None, 2.0, backend=backend)
    assert y.shape == X.shape
    assert statistic.spread.shape == (2, 1)


def test_compiled_refuses_what_it_cannot_run(compiled: None) -> None:
    with pytest.raises(TypeError, match=r"takes float64, float32, bfloat16 .* got torch\.float8_e5m2"):
        kernels.rms_norm(X.to(torch.float8_e5m2), backend="compiled")


def test_triton_refuses_what_it_cannot_run(triton: str) -> None:
    with pytest.raises(TypeError, match=r"takes float32, bfloat16 and float16, got torch\.float64"):
        kernels.rms_norm(X.double().to(triton), backend="triton")
    with pytest.raises(ValueError, match="at most 65536 entries, got 65537"):
        kernels.rms_norm(torch.ones(1, 65537, device=triton), backend="triton")


def test_one_notice_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from residlab.kernels import building, compiled

    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    compiled.available.cache_clear()
    compiled.library.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                y = kernels.rms_norm(X, backend="compiled")
        assert torch.equal(y, kernels.rms_norm(X))
        assert [str(entry.message) for entry in said] == [
            "compiled norms fall back to the eager reference: no C++ compiler on PATH (tried c++, g++, clang++)"
        ]
    finally:
        compiled.available.cache_clear()
        compiled.library.cache_clear()


def test_strides_do_not_matter(backend: str) -> None:
    x = torch.randn(12, 6).T.requires_grad_()
    gamma = torch.randn(24)[::2].requires_grad_()
    y = kernels.bhyt_exact(x, gamma, 2.0, backend=backend)[0]
    expected = kernels.bhyt_exact(x.contiguous(), gamma.contiguous(), 2.0, backend="reference")[0]
    torch.testing.assert_close(y, expected)
    weights = torch.randn(12, 6).T
    torch.testing.assert_close(
        torch.autograd.grad(y, [x, gamma], weights), torch.autograd.grad(expected, [x, gamma], weights)
    )


def test_mixed_dtypes_of_stream_and_branch(backend: str) -> None:
    x = X.bfloat16().requires_grad_()
    branch = torch.full_like(X, 0.25, requires_grad=True)
    y, z = kernels.add_rms_norm(x, branch, backend=backend)
    assert (y.dtype, z.dtype) == (torch.bfloat16, torch.float32)
    grads = torch.autograd.grad(y.float().sum() + z.sum(), [x, branch])
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.float32]


def test_autocast_and_checkpointing(backend: str) -> None:
    x = X.clone().requires_grad_()
    gamma, lam = torch.ones(12, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    weight = torch.randn(12, 12)

    def block(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y, statistic = kernels.bhyt_exact(x @ weight, gamma, lam, backend=backend)
            assert y.dtype == torch.bfloat16
            assert statistic.spread.dtype == torch.float32
            return y @ weight

    plain = torch.autograd.grad(block(x).sum(), [x, gamma, lam])
    again = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).sum(), [x, gamma, lam])
    assert all(map(torch.equal, plain, again))


def test_double_backward_is_the_reference_s(compiled: None) -> None:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(kernels.rms_norm(x).square().sum(), x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].isfinite().all()
    y = kernels.rms_norm(x, backend="compiled")
    with pytest.raises(RuntimeError, match=r"'compiled' has no double backward.*use backend='reference'"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_function_transforms_of_the_reference() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return kernels.bhyt_exact(x, None, 2.0)[0]

    rows = torch.func.vmap(function)(X)
    torch.testing.assert_close(rows, function(X))
    tangent = torch.ones_like(X)
    step = 1e-4
    slope = (function(X.double() + step) - function(X.double() - step)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(function, (X,), (tangent,))[1].double(), slope, atol=1e-5, rtol=1e-4)


def test_sums_over_tokens_do_not_depend_on_threads(compiled: None) -> None:
    x = torch.randn(700, 96, requires_grad=True)
    gamma, lam = torch.randn(96, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    weights, threads = torch.randn(700, 96), torch.get_num_threads()
    grads = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            y = kernels.bhyt_exact(x, gamma, lam, backend="compiled")[0]
            grads.append(torch.autograd.grad(y, [x, gamma, lam], weights))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for others in grads[1:] for a, b in zip(grads[0], others, strict=True))


def test_inside_a_compiled_model(compiled: None) -> None:
    gamma, lam = torch.randn(12, requires_grad=True), torch.tensor(2.0, requires_grad=True)

    def model(x: torch.Tensor, backend: Any) -> torch.Tensor:
        y, statistic = kernels.bhyt_exact(x, gamma, lam, backend=backend)
        return kernels.bhyt_approximate(y, gamma, lam, statistic, 0.1, residual=x, backend=backend)[0]

    x = X.clone().requires_grad_()
    expected = model(x, "auto")
    y = torch.compile(model, fullgraph=True)(x, "compiled")
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y.sum(), [x, gamma, lam]), torch.autograd.grad(expected.sum(), [x, gamma, lam])
    )
