"""The norms of this book as fused operators, forward and backward: one definition, three ways to run it.

``kernels.rms_norm``, ``add_rms_norm``, ``dyt``, ``bhyt_exact`` and ``bhyt_approximate`` take ``backend=``:

========== =============================================================================================
reference  eager torch formulas, any device and dtype: the definition (`residlab.kernels.reference`)
compiled   fused C++ for CPU tensors (`residlab.kernels.compiled`)
triton     fused Triton kernels for CUDA tensors (`residlab.kernels.triton`)
auto       triton for CUDA tensors where Triton is installed, else reference (the default)
========== =============================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dispatch import BACKENDS, Backend, add_rms_norm, bhyt_approximate, bhyt_exact, dyt, rms_norm
    from .reference import TokenStatistic

__all__ = [
    "BACKENDS",
    "Backend",
    "TokenStatistic",
    "add_rms_norm",
    "bhyt_approximate",
    "bhyt_exact",
    "dyt",
    "rms_norm",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(".dispatch", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
