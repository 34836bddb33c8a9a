"""The operators as fused C++ for CPU tensors: one pass over each token forward, one backward.

``compiled.cpp`` is built by the machine's C++ compiler on the first call (seconds) and kept in the cache folder;
without a compiler one notice is given, and the eager reference runs. tanh is that of `residlab.kernels.rational_tanh`,
computed again in the backward: reading it back would cost memory and save little. Sums over tokens do not depend on
the number of threads.

Chosen by measurement over functions compiled by torch.compile (``residlab bench norms`` shows both):
those fuse no multiply with an add, need a second pass for the sums over tokens that gamma and lambda take, and are
built anew for each operator, direction and dtype.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from . import building
from .fused import FusedOperators, Norm
from .rational_tanh import LONG, SHORT, Fraction

_SERIAL = 1 << 15  # entries below which a second thread costs more than it saves
_SYMBOLS = {
    torch.float64: "residlab_float64",
    torch.float32: "residlab_float32",
    torch.bfloat16: "residlab_bfloat16",
    torch.float16: "residlab_float16",
}
_TENSORS = (
    *("x", "residual", "gamma", "beta", "scalar", "spread", "mean", "y", "z"),
    *("grad_y", "grad_z", "grad_measured_spread", "grad_measured_mean"),
    *("grad_x", "grad_gamma", "grad_beta", "grad_scalar", "grad_spread", "grad_mean"),
)


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "width", "threads")),
        *((name, ctypes.c_double) for name in ("kappa", "eps")),
        *((name, ctypes.c_void_p) for name in _TENSORS),
    )


def launch(norm: Norm, *, backward: bool, kappa: float, eps: float, **tensors: Tensor | None) -> None:
    """Launch one operator on the CPU; see `residlab.kernels.fused`.

    Raises
    ------
    TypeError
        For a dtype that the kernels, or the compiler, lack.
    """
    x = tensors["x"]
    assert x is not None
    function = getattr(library(), _SYMBOLS.get(x.dtype, "none"), None)
    if function is None:
        raise TypeError(
            f"backend 'compiled' takes float64, float32, bfloat16 and, where the compiler has it, float16, "
            f"got {x.dtype}; use 'reference'"
        )
    width = x.shape[-1]
    threads = 1 if x.numel() < _SERIAL else torch.get_num_threads()
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    arguments = _Call(x.numel() // width, width, threads, kappa, eps, **pointers)
    function(int(norm), int(backward), ctypes.byref(arguments))


def tanh(x: Tensor, fraction: Fraction, y: Tensor | None = None, times: int = 1) -> Tensor:
    """Evaluate one of the two fractions as the kernels do, ``times`` times over, for tests and benchmarks.

    ``x`` is contiguous, float32, or bfloat16 for `SHORT`; the result, of its dtype, goes to ``y`` if given.
    """
    y = torch.empty_like(x) if y is None else y
    name = "bfloat16" if x.dtype == torch.bfloat16 else "long" if fraction is LONG else "short"
    function = getattr(library(), f"residlab_tanh_{name}")
    function(*(ctypes.c_void_p(z.data_ptr()) for z in (x, y)), ctypes.c_int64(x.numel()), ctypes.c_int64(times))
    return y


OPERATORS = FusedOperators("compiled", launch)


@cache
def available() -> bool:
    """Return whether the kernels can be built here; if not, say once why eager formulas run instead."""
    return building.succeeds(library, "compiled norms fall back to the eager reference")


@cache
def library() -> ctypes.CDLL:
    """Load the built kernels, building them first where this machine has not done so.

    Raises
    ------
    BuildError
        If there is no C++ compiler, or it fails.
    """
    source = _prelude() + Path(__file__).with_name("compiled.cpp").read_text(encoding="utf-8")
    return building.load("norms", source, ("-ffp-contract=fast",))


def _prelude() -> str:
    lines = [f"#include <{header}>" for header in ("algorithm", "bit", "cmath", "cstdint", "vector")]
    for name, fraction in (("LONG", LONG), ("SHORT", SHORT)):
        for letter, coefficients in (("P", fraction.numerator), ("Q", fraction.denominator)):
            values = ", ".join(f"{value.hex()}f" for value in coefficients)
            lines.append(f"constexpr float {name}_{letter}[] = {{{values}}};")
        lines.append(f"constexpr float {name}_BOUND = {fraction.bound.hex()}f;")
    return "\n".join(lines) + "\n"
